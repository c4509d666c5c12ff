"""When the topology reads, who waits for it, and what it does in trouble; all without servers."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any
from zlib import crc32

import pytest
import redis
from arranged import exit_code, forked
from faces import eventually
from redis.exceptions import ConnectionError  # noqa: A004
from topology_helpers import Clock, Directory, aeventually, component, look, settle

import shardkit
from shardkit.config.component import Component
from shardkit.errors import (
    ClosedError,
    ConfigServerError,
    DeadlineExceeded,
    InvalidArgumentError,
    InvalidEntryError,
    MissingEntryError,
    ShardCountError,
)
from shardkit.local import LocalServer
from shardkit.network.topology import LONGEST_PAUSE, Topology, Values, cache

THREADS = 32


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def directory() -> Directory:
    return Directory(component(), component("d"))


@pytest.fixture
def topology(directory: Directory, clock: Clock) -> Topology:
    return Topology(directory, clock=clock)


def test_one_reading_a_second(topology: Topology, directory: Directory, clock: Clock) -> None:
    first = look(topology, "c")
    for _ in range(1000):
        assert look(topology, "c") is first
    assert directory.asked == ["c"]
    clock.now += 0.99
    look(topology, "c")
    assert directory.asked == ["c"]
    clock.now += 0.02
    assert look(topology, "c") is first  # it says the same, so the object stays
    assert directory.asked == ["c", "c"]


@pytest.mark.parametrize("first", ["a thread", "a task"])
def test_threads_and_loops_read_once(topology: Topology, directory: Directory, first: str) -> None:
    async def many() -> set[Component]:
        return set(await asyncio.gather(*[topology.acomponent("c") for _ in range(50)]))

    directory.open.clear()
    with ThreadPoolExecutor(12) as pool:
        if first == "a thread":
            reading = pool.submit(lambda: {topology.component("c")})
        else:
            reading = pool.submit(asyncio.run, many())
        assert eventually(lambda: directory.hanging == 1)
        futures = [reading, *[pool.submit(asyncio.run, many()) for _ in range(4)]]
        futures += [pool.submit(lambda: {topology.component("c")}) for _ in range(6)]
        time.sleep(0.02)  # most of them have asked by now; who comes later finds what was read
        directory.open.set()
        found = set().union(*[future.result(20) for future in futures])
    assert found == {topology.component("c")}
    assert directory.asked == ["c"]


async def test_a_loops_task_is_no_deadlock(topology: Topology, directory: Directory) -> None:
    directory.open.clear()
    task = asyncio.create_task(topology.acomponent("c"))
    await asyncio.sleep(0)
    assert directory.hanging == 1
    directory.open.set()
    assert topology.component("c").name == "c"  # reads by itself: the task cannot go on
    assert (await task).name == "c"


@pytest.mark.parametrize("error", [None, ConnectionError("gone"), RuntimeError("odd")])
async def test_no_caller_waits_for_reading_again(
    topology: Topology, directory: Directory, clock: Clock, error: Exception | None
) -> None:
    known = topology.component("c")
    directory.open.clear()
    directory.error = error
    for _ in range(3):
        clock.now += 1.5
        for _ in range(300):
            assert topology.component("c") is known
            assert await topology.acomponent("c") is known
            assert topology.fresh("c") is known
            assert topology.last_known("c") is known
    assert eventually(lambda: directory.hanging == 1)
    assert directory.asked == ["c", "c"]
    directory.open.set()
    settle(topology)
    assert topology.component("c") is known


def test_an_error_that_nobody_foresaw_does_not_end_reading_in_the_background(
    topology: Topology,
    directory: Directory,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    look(topology, "c")

    def broken(names: object) -> None:
        raise ZeroDivisionError("a mistake")

    with monkeypatch.context() as patched:
        patched.setattr(topology, "_read_again", broken)
        clock.now += 1.5
        look(topology, "c")
    assert "the directory cannot be read" in caplog.text
    assert "ZeroDivisionError: a mistake" in caplog.text
    directory.components["c"] = component(epoch=2)
    clock.now += 1.5
    assert look(topology, "c").epoch == 2


def refuses(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_without_a_thread_the_known_entries_stay_and_the_next_second_tries_again(
    topology: Topology, directory: Directory, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = topology.component("c")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuses)
        clock.now += 1.5
        assert topology.component("c") is known
    directory.components["c"] = component(epoch=2)
    clock.now += 1.5
    assert look(topology, "c").epoch == 2


async def test_many_components_are_loaded_by_few_exchanges(
    directory: Directory, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"c{n}" for n in range(2_500)]
    directory.components = {name: component(name) for name in names[1:]}
    topology = Topology(directory, clock=clock)
    exchanges: list[int] = []
    fetch = directory.afetch
    monkeypatch.setattr(
        directory, "afetch", lambda keys: exchanges.append(len(keys)) or fetch(keys)
    )
    outcomes = await topology.aload(names)
    assert exchanges == [1000, 1000, 500]
    assert isinstance(outcomes.pop("c0"), MissingEntryError)
    assert all(isinstance(each, Component) for each in outcomes.values())
    assert len(outcomes) == 2_499
    await topology.aload(names)
    assert exchanges == [1000, 1000, 500, 1]


async def test_who_loads_together_reads_once(topology: Topology, directory: Directory) -> None:
    directory.open.clear()
    loading = [asyncio.create_task(topology.aload(["c", "d", "nope"])) for _ in range(5)]
    single = asyncio.create_task(topology.acomponent("d"))
    await aeventually(lambda: directory.hanging == 1)
    directory.open.set()
    for outcomes in await asyncio.gather(*loading):
        assert isinstance(outcomes.pop("nope"), MissingEntryError)
        assert list(outcomes) == ["c", "d"]
    assert (await single).name == "d"
    assert sorted(directory.asked) == ["c", "d", "nope"]


async def test_a_cancelled_reader_is_replaced(topology: Topology, directory: Directory) -> None:
    directory.open.clear()
    first = asyncio.create_task(topology.acomponent("c"))
    others = [asyncio.create_task(topology.acomponent("c")) for _ in range(20)]
    await aeventually(lambda: directory.asked == ["c"])
    first.cancel()
    others[3].cancel()
    await aeventually(lambda: directory.asked == ["c", "c"])
    directory.open.set()
    del others[3]
    assert {found.name for found in await asyncio.gather(*others)} == {"c"}


def test_waiters_share_a_failure(topology: Topology, directory: Directory, clock: Clock) -> None:
    directory.error = ConnectionError("nobody there")
    directory.open.clear()
    with ThreadPoolExecutor(THREADS) as pool:
        futures = [pool.submit(topology.component, "c") for _ in range(THREADS)]
        assert eventually(lambda: directory.hanging == 1)
        directory.open.set()
        errors = [future.exception(20) for future in futures]
    assert {type(error) for error in errors} == {ConfigServerError}
    assert len({id(error) for error in errors}) == THREADS  # each raises its own
    assert "the directory cannot be read: nobody there" in str(errors[0])
    assert isinstance(errors[-1].__cause__, ConnectionError)
    assert directory.asked == ["c"]
    clock.now += 1.01
    directory.error = None
    assert topology.component("c").name == "c"


def test_a_short_deadline_gets_the_known_entries(topology: Topology, directory: Directory) -> None:
    known = topology.component("c")
    topology.expire()
    directory.error = DeadlineExceeded("the caller's")
    assert topology.component("c") is known
    with pytest.raises(ConfigServerError, match="the directory cannot be read: the caller's"):
        topology.component("d")
    directory.error = None
    directory.components["c"] = component(epoch=2)
    assert topology.component("c").epoch == 2
    assert topology.component("d").name == "d"


def test_the_last_good_entries_stay_in_use_while_the_source_is_away(
    topology: Topology, directory: Directory, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shardkit")
    known = {name: look(topology, name) for name in ("c", "d")}
    directory.asked.clear()
    for error in (ConnectionError("refused"), TimeoutError("too late"), OSError("no route")):
        directory.error = error
        for _ in range(200):
            clock.now += 0.1
            for name in known:
                assert look(topology, name) is known[name]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "the directory cannot be read, the last good entries stay in use: refused" in caplog.text
    # 60 seconds: pauses of 1, 2, 4 and then 8 seconds, over both components together.
    assert 8 <= len(directory.asked) <= 12

    directory.error = None
    clock.now += 1.2 * LONGEST_PAUSE
    for _ in range(3):
        clock.now += 1.01
        for name in known:
            assert look(topology, name) is known[name]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "the directory can be read again" in caplog.text
    assert directory.asked[-2:] == ["c", "d"]  # every second again


def test_limit_age_rereads(topology: Topology, directory: Directory, clock: Clock) -> None:
    topology.limit_age("c", 0.5)  # it was never read: the first caller does
    topology.component("c")
    for passed, asked in ((0.4, ["c"]), (0.2, ["c", "c"])):
        clock.now += passed
        topology.limit_age("c", 0.5)
        settle(topology)
        assert directory.asked == asked
    clock.now += 0.6
    topology.expire()
    topology.limit_age("c", 0.5)  # the next caller reads it, and waits
    settle(topology)
    assert directory.asked == ["c", "c"]


async def test_reread_reads_fresh_and_unknown(topology: Topology, directory: Directory) -> None:
    assert topology.reread("c").name == "c"
    assert (await topology.areread("d")).name == "d"
    for epoch in (2, 3):
        directory.components = {name: component(name, epoch=epoch) for name in ("c", "d")}
        assert topology.reread("c").epoch == epoch
        assert (await topology.areread("d")).epoch == epoch
    assert directory.asked == ["c", "d"] * 3


def test_the_age_counts_from_the_last_reading(topology: Topology, clock: Clock) -> None:
    assert topology.age("c") == math.inf
    with pytest.raises(MissingEntryError, match="'c' was not read yet from the directory"):
        topology.last_known("c")
    assert topology.age("c") == math.inf
    topology.component("c")
    assert topology.age("c") == 0
    clock.now += 0.7
    assert topology.age("c") == pytest.approx(0.7)


def test_names_need_the_source(topology: Topology, directory: Directory) -> None:
    assert topology.names() == ["c", "d"]
    directory.error = ConnectionError("refused")
    with pytest.raises(ConfigServerError, match="the directory cannot be read: refused"):
        topology.names()
    with pytest.raises(ConfigServerError, match="the directory cannot be read: refused"):
        asyncio.run(topology.anames())


@pytest.mark.parametrize(
    "use",
    [
        lambda topology: topology.component("c"),
        lambda topology: topology.component("unseen"),
        lambda topology: asyncio.run(topology.acomponent("c")),
        lambda topology: topology.last_known("c"),
        lambda topology: asyncio.run(topology.aload(["c"])),
        lambda topology: topology.names(),
        lambda topology: asyncio.run(topology.anames()),
    ],
)
def test_a_closed_topology_says_so(topology: Topology, use: Callable[[Topology], object]) -> None:
    topology.component("c")
    topology.close()
    topology.close()
    for _ in range(2):
        with pytest.raises(ClosedError, match="the kit is closed"):
            use(topology)


@pytest.mark.parametrize("error", [None, ConnectionError("gone"), InvalidEntryError("bad")])
def test_closing_while_somebody_reads_ends_his_call_as_well(
    topology: Topology, directory: Directory, error: Exception | None
) -> None:
    directory.open.clear()
    directory.error = error
    with ThreadPoolExecutor(2) as pool:
        reading = pool.submit(topology.component, "c")
        assert eventually(lambda: directory.hanging == 1)
        waiting = pool.submit(topology.component, "c")
        topology.close()
        directory.open.set()
        for future in (reading, waiting):
            with pytest.raises(ClosedError, match="kit is closed; open a new one with"):
                future.result(20)
    with pytest.raises(ClosedError, match=r"kit is closed; open a new one with shardkit\."):
        topology.component("c")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12: threads, fork
def test_forks_forget_the_parents_reader(topology: Topology, directory: Directory) -> None:
    directory.open.clear()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(topology.component, "c")
        assert eventually(lambda: directory.hanging == 1)

        def use() -> None:
            directory.open = threading.Event()
            directory.open.set()
            assert topology.component("c").name == "c"

        child = forked(use)
        directory.open.set()
        assert reading.result(20).name == "c"
    assert exit_code(child) == 0


def test_a_lock_that_was_replaced_while_somebody_waited_for_it_is_left(
    topology: Topology, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, find = threading.Lock(), topology._lock_of
    found = [old]
    monkeypatch.setattr(topology, "_lock_of", lambda cached: found.pop() if found else find(cached))
    assert topology.component("c").name == "c"
    assert not found
    assert not old.locked()
    assert not topology._cache["c"].lock.locked()


class Silent(Directory):
    """A config server that tells nobody of changes."""

    changes = True
    error_of_feed: Exception | None = None

    def feed(self) -> None:
        if self.error_of_feed is not None:
            raise self.error_of_feed


@pytest.fixture
def silent() -> Silent:
    return Silent(component())


@pytest.fixture
def watched(silent: Silent) -> Iterator[Topology]:
    """The topology of a silent config server, which has read `c`."""
    topology = Topology(silent, interval=0.01)
    topology.component("c")
    yield topology
    topology.close()


def test_without_a_thread_the_watch_starts_later(
    silent: Silent, watched: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuses)
        watched.watch()
    assert silent.asked == ["c"]
    watched.watch()
    assert eventually(lambda: len(silent.asked) > 1)


def test_the_watch_survives_unexpected_errors(
    silent: Silent, watched: Topology, caplog: pytest.LogCaptureFixture
) -> None:
    cache._watch(lambda: None, threading.Event(), 0.01)
    assert silent.asked == ["c"]
    silent.error_of_feed = ZeroDivisionError("a mistake")
    watched.watch()
    assert eventually(lambda: "ZeroDivisionError: a mistake" in caplog.text)
    assert "the directory cannot be read" in caplog.text
    silent.error_of_feed = None
    assert eventually(lambda: len(silent.asked) > 1)


class Slow(Directory):
    """A config server that answers tasks only when the test says so."""

    answers = False

    async def afetch(self, keys: list[str]) -> Values:
        self.asked += keys
        while not self.answers:  # noqa: ASYNC110 - the test sets it
            await asyncio.sleep(0)
        return [None]


@pytest.fixture
def slow() -> Slow:
    return Slow(component(), component("d"))


@contextmanager
def reading(slow: Slow, *works: Any) -> Iterator[Any]:
    """Have tasks read in a loop that stands still from then on; what runs one to its end."""
    loop, before = asyncio.new_event_loop(), len(slow.asked)
    tasks = [loop.create_task(work) for work in works]
    while len(slow.asked) < before + len(tasks):
        loop.run_until_complete(asyncio.sleep(0))
    yield lambda n: loop.run_until_complete(tasks[n])
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
    loop.close()


@pytest.mark.parametrize("known", [False, True])
def test_a_task_that_was_left_reading_in_a_stopped_loop_holds_up_nobody(
    slow: Slow, clock: Clock, known: bool
) -> None:
    topology = Topology(slow, clock=clock)
    if known:
        topology.component("c")
        topology.expire()
    with reading(slow, topology.acomponent("c")):
        for epoch in (2, 3):
            slow.components["c"] = component(epoch=epoch)
            assert topology.component("c").epoch == epoch  # by a thread
            topology.expire()
    assert topology.component("c").epoch == 3


def test_a_reader_whose_loop_goes_on_when_others_have_read_gets_what_they_read(slow: Slow) -> None:
    topology = Topology(slow)
    with reading(slow, topology.acomponent("c"), topology.aload(["d"])) as outcome:
        slow.components = {name: component(name, epoch=2) for name in ("c", "d")}
        for name in ("c", "d"):
            assert topology.component(name).epoch == 2
        slow.components = {name: component(name, epoch=3) for name in ("c", "d")}
        slow.answers = True
        assert outcome(0).epoch == 2
        assert outcome(1)["d"].epoch == 2


def test_a_loop_for_each_request_follows_a_change(
    topology: Topology, directory: Directory, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def request() -> Component:
        return await topology.acomponent("c")

    asyncio.run(request())
    directory.components["c"] = component(port=8001)
    clock.now += 1.01
    asyncio.run(request())  # has it read again in the background, and is not waited for
    assert eventually(lambda: asyncio.run(request()).shards[0].fields["port"] == 8001)
    assert not caplog.messages


COUNT = 16


@pytest.fixture(scope="module")
def running() -> Iterator[LocalServer]:
    with LocalServer(name="config", databases=20) as server:
        yield server


@pytest.fixture
def config(running: LocalServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """The config server with 16 entries, in its own databases 1 to 16, and no count."""
    with running.client() as client:
        client.flushall()
        for n in range(COUNT):
            write(client, running, n)
        yield client


def write(client: redis.Redis, running: LocalServer, n: int, **more: Any) -> None:
    entry = {"host": "127.0.0.1", "port": running.port, "db": n + 1, **more}
    client.set(f"config:redis:unique:{n}", json.dumps(entry))


@pytest.fixture
def kit(running: LocalServer, config: redis.Redis) -> Iterator[Any]:
    with shardkit.connect(url(running)) as opened:
        yield opened


def url(running: LocalServer) -> str:
    return f"redis://{running.address}"


def test_a_given_count_is_served_in_each_way(running: LocalServer, kit: Any) -> None:
    @kit.sharded_connection("unique", shards=COUNT)
    def set_it(conn: Any, key: str) -> int:
        conn.set(key, 1)
        return int(conn.connection_pool.connection_kwargs["db"])

    @kit.sharded_connection("unique", shards=COUNT)
    async def get_it(conn: Any, key: str) -> Any:
        return await conn.get(key)

    for n in range(40):
        assert set_it(f"k{n}") == 1 + crc32(f"k{n}".encode()) % COUNT
        assert kit.key_sharded("unique", shards=COUNT)[f"k{n}"].get(f"k{n}") == b"1"
    pipe = kit.key_sharded("unique", shards=COUNT).pipeline()
    assert pipe.get("k1").get("k2").execute() == [b"1", b"1"]

    async def awaited() -> None:
        assert await get_it("k3") == b"1"
        async with await shardkit.aconnect(url(running)) as akit:
            assert await akit.key_sharded("unique", shards=COUNT)["k4"].get("k4") == b"1"
        await kit.aclose()

    asyncio.run(awaited())


def test_a_missing_count_is_refused(kit: Any) -> None:
    router = kit.key_sharded("unique")
    with pytest.raises(MissingEntryError, match=r"config:shards:unique is missing.*shards="):
        router["k"]
    assert kit.key_sharded("unique", shards=COUNT)["k"]  # at once, not after a second


def test_a_lost_count_is_not_guessed(config: redis.Redis, kit: Any) -> None:
    """Its placement was lost with it."""
    config.set("config:epoch", 1)
    with pytest.raises(MissingEntryError, match="config:shards:unique is missing on config server"):
        kit.key_sharded("unique", shards=COUNT)["k"]


def test_a_gap_or_an_entry_on_top_is_refused(running: LocalServer, config: redis.Redis) -> None:
    for harm in (
        lambda: config.delete("config:redis:unique:7"),
        lambda: write(config, running, 16),
    ):
        with shardkit.connect(url(running)) as kit:
            assert kit.key_sharded("unique", shards=COUNT)["k"]
            harm()
            kit.topology.expire()
            assert kit.key_sharded("unique", shards=COUNT)["k"]  # the last good entries
        with (
            shardkit.connect(url(running)) as late,
            pytest.raises(
                (MissingEntryError, ShardCountError),
                match=r"unique:(7 is missing|16 is one too many).*says 16 shards, but 1[57]",
            ),
        ):
            late.key_sharded("unique", shards=COUNT)["k"]
        write(config, running, 7)


def test_different_counts_are_refused(kit: Any) -> None:
    assert kit.key_sharded("unique", shards=COUNT)["k"]
    match = "this call says 8 shards, but 16 entries are stored and another call says 16; use "
    with pytest.raises(ShardCountError, match=match):
        kit.key_sharded("unique", shards=8)["k"]
    match = "this call says placement='slot', but another call says 'crc32'; use one placement"
    with pytest.raises(InvalidArgumentError, match=match):
        kit.key_sharded("unique", shards=COUNT, placement="slot")["k"]
    with pytest.raises(InvalidArgumentError, match="without shards="):
        kit.key_sharded("unique", placement="crc32")
    with pytest.raises(InvalidArgumentError, match="placement='nonsense'"):
        kit.key_sharded("other", shards=3, placement="nonsense")


def test_max_age_of_a_decorator(
    running: LocalServer, config: redis.Redis, kit: Any, kind: str
) -> None:
    def write_one(db: int) -> None:
        config.set("config:redis:one", json.dumps({"port": running.port, "db": db}))

    def usual(conn: Any) -> int:
        return int(conn.connection_pool.connection_kwargs["db"])

    async def awaiting(conn: Any) -> int:
        return usual(conn)

    strict = kit.redis_connection("one", max_age=0.1)(usual if kind == "blocking" else awaiting)
    plain = kit.redis_connection("one")(usual)

    def call() -> int:
        return asyncio.run(strict()) if kind == "awaiting" else strict()

    write_one(1)
    clock = kit.topology._clock = Clock()
    kit.topology.source.feed = lambda: None  # of a server that does not tell of changes
    assert call() == plain() == 1
    write_one(2)
    clock.now += 0.05
    assert call() == 1
    settle(kit.topology)
    clock.now += 0.06
    for _ in range(2):
        assert plain() == 1
        settle(kit.topology)
    call()  # finds that it is too old, and waits for nothing
    settle(kit.topology)
    assert call() == plain() == 2
    write_one(3)
    clock.now += 1.01
    plain()
    settle(kit.topology)
    assert plain() == 3


@pytest.mark.parametrize("max_age", [-1, "1", True, float("nan")])
def test_an_age_that_is_none_is_refused(kit: Any, max_age: Any) -> None:
    for decorate in (kit.redis_connection, kit.sharded_connection):
        with pytest.raises(InvalidArgumentError, match="give seconds, 0 to"):
            decorate("one", max_age=max_age)
