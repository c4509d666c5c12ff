"""Sets and hashes with planned parts are replanned while clients use them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import pytest
from arranged import meanwhile
from faces import Exchanges, Face, drawn, keys_of

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.errors import InvalidArgumentError, ParameterMismatchError, StructureError

SET: dict[str, Any] = {"component": "many", "total": 400, "part_size": 16, "members": int}
HASH: dict[str, Any] = {"component": "many", "total": 100, "part_size": 16}


@pytest.fixture(autouse=True)
def short(lower: Any) -> None:
    """Old parts are removed at once, and clients read the parameters more often."""
    lower(plan_grace=0.0, lease=0.2)


@contextmanager
def clients(
    shard_map: ShardMap, *calls: Callable[[ShardKit], Callable[[int], None]]
) -> Iterator[list[float]]:
    """Have threads with kits of their own make calls inside; give how long the longest took."""
    longest: list[float] = [0.0]

    def calling(make: Callable[[ShardKit], Callable[[int], None]]) -> Callable[[], None]:
        call, numbers = make(stack.enter_context(shardkit.connect(shard_map))), count(1)

        def one() -> None:
            began = time.monotonic()
            call(next(numbers))
            longest[0] = max(longest[0], time.monotonic() - began)

        return one

    with ExitStack() as stack:
        for make in calls:
            stack.enter_context(meanwhile(calling(make)))
        yield longest


def test_a_set_and_a_hash_get_more_parts_under_load(face: Face, shard_map: ShardMap) -> None:
    ids, names = face.kit.set("ids", **SET), face.kit.hash("names", **HASH)
    face.run(ids.sadd_many(range(3000)))
    fields = {**{f"f{n}": n for n in range(900)}, **dict.fromkeys(range(0, 4000, 7), "x")}
    face.run(names.hset(mapping=fields))
    counts: dict[str, int] = {}
    kept: set[int] = set(range(3000))

    def writing(kit: ShardKit) -> Callable[[int], None]:
        ids, names = kit.set("ids", **SET), kit.hash("names", **HASH)

        def write(n: int) -> None:
            assert ids.sadd(10_000 + n) == 1
            kept.add(10_000 + n)
            assert ids.srem(n) == (n < 3000)
            kept.discard(n)
            for field in (f"c{n % 50}", str(5000 + n % 50)):
                counts[field] = counts.get(field, 0) + 1
                assert names.hincrby(field) == counts[field]
            if n % 10 == 0:
                assert names.hdel(f"f{n}") == (n < 900)

        return write

    def reading(kit: ShardKit) -> Callable[[int], None]:
        ids, names = kit.set("ids", **SET), kit.hash("names", **HASH)

        def read(n: int) -> None:
            assert ids.sismember(2999)
            assert names.hget("f899") == b"899"
            assert names.hget(14) == b"x"
            if n % 50 == 0:
                assert set(range(2900, 3000)) <= ids.smembers()
                assert len(names.hgetall()) > len(range(0, 4000, 7)) + 800

        return read

    with clients(shard_map, writing, reading) as longest:
        time.sleep(0.1)  # they call before and afterwards
        assert face.run(ids.replan(3000)) == 400
        assert face.run(names.replan(900)) == 120
        time.sleep(0.1)  # see above
    assert longest[0] < 2  # goal: half a second, on a machine that does nothing else
    assert face.run(ids.smembers()) == kept
    assert (ids.total, ids.parts) == (3200, 400)
    held = face.run(names.hgetall())
    assert {field: int(held[field]) for field in counts} == counts
    assert len(held) == face.run(names.hlen())
    with shardkit.connect(shard_map) as kit:
        for found in (kit.set("ids", **SET), kit.hash("names", **HASH)):
            assert list(found.check()) == []
        prefixes = {key.rpartition(":")[0] for key in keys_of(kit, "many")}
        assert prefixes == {"ids", "names", "ids:plan2", "names:plan2"}, "parameters and parts"
        assert kit.set("ids", **SET).delete()
        assert kit.hash("names", **HASH).delete()
        assert keys_of(kit, "many") == set()


def test_fields_keep_their_times_to_live(kit: ShardKit) -> None:
    names = kit.hash("names", **HASH)
    names.hset(mapping={"a": 1, "b": 2, 3: 3, 900: 4})
    names.hexpire(1000, "a", 3, 900)
    names.replan(1000)
    assert [each > 900 for each in names.httl("a", 3, 900)] == [True] * 3
    assert names.httl("b") == [-1]


def test_it_is_carried_on_wherever_it_was_interrupted(kit: ShardKit, lower: Any) -> None:
    lower(plan_lease=0.0, plan_wait=0.05)  # there is one client, which reads before each call
    whole = set(range(200))
    for most in range(1, 100, drawn(3, 1)):
        ids = kit.set(f"ids{most}", **{**SET, "total": 32})
        ids.sadd_many(whole)
        other: Any = kit.set(f"ids{most}", **{**SET, "total": 32})
        if not Exchanges(kit, ids.deferred.replan(100)).stop_after(most):
            assert most > 20
            break
        other.meta.checked = False
        assert other.sadd(1000, 1001) == 2, "writers wait no longer than that"
        assert other.srem(5) == 1
        assert other.smembers() == whole - {5} | {1000, 1001}
        if other.meta.planning:
            assert other.replan(100) == 12
        assert ids.smembers() == whole - {5} | {1000, 1001}
        assert list(ids.check()) == []
        assert ids.delete()
    assert {key for key in keys_of(kit, "many") if not key.startswith(f"ids{most}:")} == set()


@pytest.mark.parametrize("held", [[], list(range(64))], ids=["empty", "full"])
def test_calls_that_began_before_end_in_the_new_parts(kit: ShardKit, held: list[int]) -> None:
    """A client is stopped between any two exchanges of a call for as long as it takes."""
    exchanges = 0
    for stops_after in range(5):
        ids = kit.set(f"ids{stops_after}", **{**SET, "total": 32})
        ids.sadd(-1, *held)
        late: Any = kit.set(f"ids{stops_after}", **{**SET, "total": 32})
        late.open()
        write = Exchanges(kit, late.deferred.sadd(*range(500, 510)))
        if not write.stop_after(stops_after):
            break
        exchanges += 1
        ids.replan(100)
        assert write.end() == 10
        assert ids.smembers() == {-1, *held, *range(500, 510)}
        assert list(ids.check()) == []
    assert exchanges >= (1 if held else 3)  # a part that it creates takes two more


def test_what_cannot_be_replanned_is_refused(kit: ShardKit) -> None:
    ids = kit.set("ids", **SET)
    with pytest.raises(StructureError, match="ids:meta: the structure does not exist"):
        ids.replan(1000)
    ids.sadd(1)
    with pytest.raises(InvalidArgumentError, match="total=400 needs no more than its 50 parts"):
        ids.replan(400)
    with pytest.raises(InvalidArgumentError, match="total=0"):
        ids.replan(0)
    growing = kit.set("growing", component="many")
    with pytest.raises(InvalidArgumentError, match="no parts that can be replanned"):
        growing.replan(1000)
    ids.expire(1000)
    with pytest.raises(StructureError, match="the structure expires"):
        ids.replan(1000)
    ids.persist()
    assert Exchanges(kit, ids.deferred.replan(1000)).stop_after(4)
    other = kit.set("ids", **SET)
    for call in (lambda: other.expire(10), other.persist, other.delete, lambda: ids.expire(10)):
        with pytest.raises(StructureError, match="being replanned, so it can be neither"):
            call()
    with pytest.raises(StructureError, match="replanned, so it cannot be combined"):
        kit.set("others", **SET).sunion(other)
    assert ids.replan(1000) == 150
    assert other.expire(10)
    with pytest.raises(ParameterMismatchError, match="total is"):
        kit.set("fresh", **SET).sinter(ids)
