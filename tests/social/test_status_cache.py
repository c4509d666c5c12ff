"""Recent statuses in Redis over a store on disk: what is read, kept, and never comes back."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis
from arranged import map_of
from faces import drawn
from hypothesis import given, settings, strategies as st
from store_helpers import status

import shardkit
from shardkit import ShardKit
from shardkit.errors import InvalidArgumentError, ShardErrors
from shardkit.local import LocalServers
from shardkit.operations import Call, Locate, Operation, Pause
from shardkit.social import CachedStatuses, SQLiteStatusStore


class CountingStore(SQLiteStatusStore):
    """A store that notes what it is asked."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, safe=False)
        self.asked: list[list[int]] = []

    def get_many(self, ids: Any, /) -> dict[int, dict[str, str]]:
        self.asked.append(list(ids))
        return super().get_many(self.asked[-1])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CountingStore]:
    store = CountingStore(tmp_path / "statuses.db")
    yield store
    store.close()


@pytest.fixture(params=["few", "one"])
def component(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def client_of(kit: ShardKit, component: str, number: int) -> redis.Redis:
    shard = kit.component(component).shard_of(f"status:{number}").number
    client = kit.client(component, shard)
    assert isinstance(client, redis.Redis)
    return client


def copies(kit: ShardKit, component: str, numbers: Any) -> set[int]:
    """Those of the statuses that have a copy in Redis."""
    return {n for n in numbers if client_of(kit, component, n).exists(f"status:{n}")}


def run_until(kit: ShardKit, steps: Operation[Any], wanted: type) -> Any:
    """Run steps up to, and without, the first of that kind; return it."""
    step: Any = next(steps)
    while not isinstance(step, wanted):
        step = steps.send(answer(kit, step))
    return step


def answer(kit: ShardKit, step: Any) -> Any:
    if isinstance(step, Locate):
        return kit.driver.link.locate(step)
    if isinstance(step, Call):
        return step.function(*step.args)
    assert not isinstance(step, Pause)
    return kit.driver.link.send(step)


def finish(kit: ShardKit, steps: Operation[Any], step: Any) -> Any:
    """Run the rest, from a step on."""
    try:
        while True:
            step = steps.send(answer(kit, step))
    except StopIteration as done:
        return done.value


def test_what_is_written_is_on_disk_and_read_from_redis(
    kit: ShardKit, store: CountingStore, component: str
) -> None:
    cached = CachedStatuses(store, component)
    many = {n: status(n, text="é😀") for n in range(1, 31)}
    kit.driver.run(cached.write(many))
    assert store.get_many(many) == many
    store.asked.clear()
    found = kit.driver.run(cached.read([3, 1, 2, 3, 99]))
    assert list(found.items()) == [(n, many[n]) for n in (3, 1, 2)]
    assert store.asked == [[99]]
    assert 0 < client_of(kit, component, 1).ttl("status:1") <= 7 * 24 * 3600


async def test_the_same_steps_run_on_the_awaiting_face(
    akit: Any, store: CountingStore, component: str
) -> None:
    cached = CachedStatuses(store, component, limit=5)
    many = {n: status(n, uid=n % 2 + 1) for n in range(1, 11)}
    await akit.driver.run(cached.write(many))
    assert await akit.driver.run(cached.read(many)) == many
    assert await akit.driver.run(cached.remove([1, 2, 2, 77])) == 2
    assert set(await akit.driver.run(cached.read(many))) == set(range(3, 11))
    page = await akit.driver.run(cached.by_author(1, limit=3))
    assert [found for found, _ in page] == [10, 8, 6]


def test_the_disks_error_reaches_the_caller_and_nothing_is_put(
    kit: ShardKit, store: CountingStore
) -> None:
    class Full(CountingStore):
        def put_many(self, statuses: Any, /) -> None:
            raise OSError("disk full")

    full = Full(store.path)
    with pytest.raises(OSError, match="disk full"):
        kit.driver.run(CachedStatuses(full, "few").write({1: status(1)}))
    assert copies(kit, "few", [1]) == set()
    full.close()


def test_a_limit_keeps_the_newest_copies(kit: ShardKit, store: CountingStore) -> None:
    cached = CachedStatuses(store, "few", limit=20)
    for start in range(1, 101, 10):
        kit.driver.run(cached.write({n: status(n) for n in range(start, start + 10)}))
    assert copies(kit, "few", range(1, 101)) == set(range(81, 101))
    kit.driver.run(cached.read(range(1, 16)))
    kept = copies(kit, "few", range(1, 101))
    assert len(kept) == 20
    assert set(range(1, 16)) <= kept
    found = kit.driver.run(cached.read(range(1, 101)))  # more than there may be copies
    assert set(found) == set(range(1, 101))
    assert len(copies(kit, "few", range(1, 101))) <= 20


def test_a_copy_that_cannot_be_made_does_not_fail_the_reader(
    kit: ShardKit, store: CountingStore
) -> None:
    store.put_many({1: status(1)})
    kit.client("one").set("status:recent", "no sorted set")
    cached = CachedStatuses(store, "one", limit=5)
    assert kit.driver.run(cached.read([1])) == {1: status(1)}
    assert copies(kit, "one", [1]) == set()


def test_what_is_no_status_or_id_is_refused(kit: ShardKit, store: CountingStore) -> None:
    cached = CachedStatuses(store, "one")
    for wrong, said in (
        (cached.write({1: {}}), "status 1: no field 'uid'"),
        (cached.replace({0: status(1)}), "id=0; give an integer"),
        (cached.read([1, "x"]), "id='x'; give an integer"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            kit.driver.run(wrong)
    for options in ({"ttl": 1}, {"limit": 0}):
        with pytest.raises(InvalidArgumentError, match="give an integer"):
            CachedStatuses(store, "one", **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="tag"):
        kit.driver.run(CachedStatuses(store, "one", "a}}b:{}".format).remove([1]))


def test_a_shard_that_is_away_is_an_error_and_the_deletion_may_be_repeated(
    store: CountingStore,
) -> None:
    shards = [{"port": 7001}, {"port": 7002}]
    with (
        LocalServers(map_of(own={"shards": shards}), ports="free") as servers,
        shardkit.connect(servers.shard_map) as kit,
    ):
        cached = CachedStatuses(store, "own")
        many = {n: status(n) for n in range(1, 21)}
        kit.driver.run(cached.write(many))
        servers.servers[1].kill()
        with pytest.raises(ShardErrors, match="own:1"):
            kit.driver.run(cached.remove(many))
        assert store.get_many(many) == many  # nothing was deleted
        servers.servers[1].restart()
        assert kit.driver.run(cached.remove(many)) == 20
        assert kit.driver.run(cached.read(many)) == {}


def keeping(kit: ShardKit, component: str, number: int) -> None:
    """Create a status in Redis only, as a script of the network does."""
    client_of(kit, component, number).hset(f"status:{number}", mapping=status(number))


def test_a_task_that_writes_again_what_was_deleted_long_ago_writes_nothing(
    kit: ShardKit, store: CountingStore, component: str
) -> None:
    cached = CachedStatuses(store, component)
    kit.driver.run(cached.write({1: status(1)}))
    kit.driver.run(cached.remove([1]))
    client_of(kit, component, 1).delete("{status:1}:gone")
    kit.driver.run(cached.write({1: status(1), 2: status(2)}))
    assert copies(kit, component, [1, 2]) == {2}
    assert kit.driver.run(cached.read([1, 2])) == {2: status(2)}


LIKED = {1: status(1, likes="7")}
# Where the status is at first, an operation, whether it has called the store when it is overtaken
# (by nothing, if it then crashes), and what is read at last.
OVERTAKEN: dict[str, tuple[str, str, bool, str | None, Any]] = {
    "a reader, by a deletion": ("disk", "read", True, "remove", {}),
    "a writer, by a deletion": ("", "write", True, "remove", {}),
    "a crash of a writer": ("", "write", True, None, {1: status(1)}),
    "a crash of a deletion": ("both", "remove", False, None, {1: status(1)}),
    "a crash of a deletion that reached the disk": ("both", "remove", True, None, {}),
    "a keeper, by a change": ("Redis", "persist", False, "replace", LIKED),
    "a keeper, by a deletion": ("Redis", "persist", False, "remove", {}),
    "a keeper that wrote, by a deletion": ("Redis", "persist", True, "remove", {}),
}


@pytest.mark.parametrize("case", OVERTAKEN)
def test_an_overtaken_operation_brings_nothing_back(
    kit: ShardKit, store: CountingStore, component: str, case: str
) -> None:
    where, first, called, second, left = OVERTAKEN[case]
    cached = CachedStatuses(store, component)
    given: dict[str, Any] = {"write": {1: status(1)}, "replace": LIKED}
    if where == "Redis":
        keeping(kit, component, 1)
    elif where == "disk":
        store.put_many({1: status(1)})
    elif where:
        kit.driver.run(cached.write({1: status(1)}))
    steps = getattr(cached, first)(given.get(first, [1]))
    call = run_until(kit, steps, Call)
    done = answer(kit, call) if called else None
    if second is None:
        steps.close()
    else:
        kit.driver.run(getattr(cached, second)(given.get(second, [1])))
        finish(kit, steps, steps.send(done) if called else call)
        assert copies(kit, component, [1]) == set()
    assert store.get_many([1]) == kit.driver.run(cached.read([1])) == left
    if not left:
        assert kit.driver.run(cached.persist([1])) == 0
    assert kit.driver.run(cached.remove([1])) == len(left)


IDS = count(1000, 3)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["read", "write", "remove", "replace", "persist"]), st.integers(0, 2)
    ),
    min_size=2,
    max_size=6,
)


@given(operations=STEPS, order=st.lists(st.integers(0, 5), max_size=60))
@settings(max_examples=drawn(25, 60))
def test_however_operations_interleave_redis_never_contradicts_the_disk(
    kit: ShardKit, store: CountingStore, operations: list[tuple[str, int]], order: list[int]
) -> None:
    first = next(IDS)  # what was deleted in another example stays deleted
    ids = [first, first + 1, first + 2]
    cached = CachedStatuses(store, "one")
    store.put_many({first: status(1)})
    keeping(kit, "one", first + 1)
    written: set[int] = {first, first + 1}
    running: list[tuple[Operation[Any], Any]] = []
    for turn, (name, which) in enumerate(operations):
        number = ids[which]
        if name == "write" and number in written:
            name = "replace"  # to write is for new ones
        if name == "write":
            written.add(number)
        new = {number: status(number, turn=str(turn))}
        steps = getattr(cached, name)(new if name in ("write", "replace") else [number])
        running.append((steps, next(steps)))
    while running:
        at = order.pop() % len(running) if order else 0
        steps, step = running.pop(at)
        try:
            running.append((steps, steps.send(answer(kit, step))))
        except StopIteration:
            continue
    kit.driver.run(cached.persist(ids))
    on_disk = store.get_many(ids)
    assert kit.driver.run(cached.read(ids)) == on_disk
    assert not any(name == "remove" and ids[which] in on_disk for name, which in operations)
