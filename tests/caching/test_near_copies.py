"""Near copies: never older than they may be, whatever happens to connections and servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pytest
from arranged import ask, exit_code, forked, map_of, meanwhile
from faces import PATIENCE, eventually
from redis.exceptions import RedisError, ResponseError
from secure_server import SecureServer
from slow_way import slow

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.admin import growth, push
from shardkit.local import LocalSentinel, LocalServer

LARGE = 10_000_000


class Source:
    """Where values come from: a number that grows, and when others had been told of each."""

    def __init__(self) -> None:
        self.number = 0
        self.since = [time.monotonic()]
        self.calls = 0

    def change(self, tell: Callable[[], object] = bool) -> None:
        self.number += 1
        try:
            tell()
        finally:
            self.since.append(time.monotonic())

    def read(self) -> int:
        self.calls += 1
        return self.number

    def age(self, read: Callable[[], int]) -> float:
        """For how many seconds what is read had not been true any more when it was asked for."""
        asked = time.monotonic()
        later = read() + 1
        return asked - self.since[later] if later < len(self.since) else 0.0


def near(
    kit: Any, source: Source, *, max_age: float = 30.0, size: int = LARGE, **options: Any
) -> Any:
    options = {"ttl": 60, "key": "k:{name}", "near": size, "max_age": max_age} | options
    return kit.cached("many", **options)(lambda name: source.read())


def of(kit: Any) -> Any:
    """The near copies of a kit: of private parts, as nothing else shows that there is a copy."""
    [copies] = kit.near_copies.values()
    return copies


def copied(kit: Any, load: Any, name: str = "a") -> bool:
    """Call until there is a copy."""
    key = load.key(name)
    return bool(eventually(lambda: load(name) is not None and key in of(kit).copies))


@pytest.fixture
def there(shard_map: ShardMap) -> Iterator[ShardKit]:
    """The kit of another process."""
    with shardkit.connect(shard_map) as opened:
        yield opened


def test_a_copy_needs_no_server_and_goes_when_anybody_changes_it(
    kit: ShardKit, there: ShardKit
) -> None:
    source = Source()
    load, other = (
        near(kit, source, tags=("all", "of:{name}")),
        near(there, source, tags=("all", "of:{name}")),
    )
    changes = {
        "invalidate": lambda: other.invalidate("a"),
        "tag": lambda: other.invalidate_tag("of:a"),
        "refresh": lambda: other.refresh("a"),
        "flush": lambda: kit.key_sharded("many")[load.key("a")].flushall(),
        "expiry": lambda: kit.key_sharded("many")[load.key("a")].pexpire(load.key("a"), 1),
        "own": lambda: load.invalidate("a"),
        "own tag": lambda: load.invalidate_tag("all"),
        "own refresh": lambda: load.refresh("a"),
    }
    for name, change in changes.items():
        assert copied(kit, load), name
        source.change()
        change()
        if name.startswith("own"):
            assert load("a") == source.number, name
        assert eventually(lambda: load("a") == source.number), name
    assert copied(kit, load)
    calls = source.calls
    shared: Any = kit.key_sharded("many")[load.key("a")]
    before = shared.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert {load("a") for _ in range(100)} == {source.number}
    assert shared.info("commandstats")["cmdstat_evalsha"]["calls"] == before
    assert source.calls == calls


async def test_tasks_have_copies_too(akit: Any, there: ShardKit) -> None:
    source = Source()

    @akit.cached("many", ttl=60, key="k:{name}", near=LARGE, max_age=30)  # type: ignore[untyped-decorator]
    async def load(name: str) -> int:
        return source.read()

    async def until(done: Callable[[int], object]) -> None:
        async with asyncio.timeout(20 * PATIENCE):
            while not done(await load("a")):  # noqa: ASYNC110 - it is the call that changes it
                await asyncio.sleep(0.01)

    await until(lambda _: of(akit).copies)
    source.change()
    near(there, source).invalidate("a")
    await until(lambda number: number == source.number)
    await until(lambda _: of(akit).copies)
    source.change()
    await load.invalidate("a")
    assert await load("a") == source.number


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_copy_is_not_used_beyond_its_age_while_its_connection_hangs(direction: str) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(LocalServer())
        way, behind = stack.enter_context(slow(server))
        kit = stack.enter_context(shardkit.connect(behind))
        source = Source()
        load = near(kit, source, max_age=0.5, fallback=True)
        assert copied(kit, load)
        way.stop(direction)
        source.change()
        stack.enter_context(server.client()).delete(load.key("a"))
        ages = []
        while source.age(lambda: 0) < 2:
            ages.append(source.age(partial(load, "a")))
        assert max(ages) <= 0.5 + 0.1 * PATIENCE
        assert load("a") == 1
        way.go_on(direction)


def test_nothing_is_kept_before_the_server_tells_of_changes() -> None:
    with LocalServer() as server, slow(server) as (way, behind), shardkit.connect(behind) as kit:
        way.stop("tracking")
        source = Source()
        load = near(kit, source)
        ends = time.monotonic() + 0.3
        while time.monotonic() < ends:
            assert load("a") == 0
            assert not kit.near_copies or not of(kit).copies
        way.go_on("tracking")
        assert copied(kit, load)


def test_copies_stay_while_entries_do_and_go_when_these_change() -> None:
    with LocalServer() as at_config, LocalServer() as old, LocalServer() as new:
        url = f"redis://127.0.0.1:{at_config.port}"

        def pushed(port: int) -> None:
            with at_config.client() as config:
                push(config, map_of(many={"shards": [{"port": port}]}), force=True)

        pushed(old.port)
        with shardkit.connect(url) as kit, old.client() as there:
            source = Source()
            load = near(kit, source)
            assert copied(kit, load)
            kept = of(kit).copies[load.key("a")]
            time.sleep(2.5)  # in which the config server is asked once more
            assert of(kit).copies[load.key("a")] is kept
            source.change()
            pushed(new.port)
            assert eventually(lambda: load("a") == 1)
            assert eventually(lambda: not [c for c in there.client_list() if c["resp"] == "3"])


def test_a_restarted_server_and_a_lost_connection_leave_no_copy(tmp_path: Any) -> None:
    with LocalServer() as server, slow(server) as (way, behind), shardkit.connect(behind) as kit:
        source = Source()
        load = near(kit, source)
        with server.client() as writer:
            for end in (way.cut, server.restart):
                assert copied(kit, load)
                source.change()
                end()
                if end == way.cut:
                    writer.delete(load.key("a"))
                assert eventually(lambda: not of(kit).copies)
                assert eventually(lambda: settled(load) == source.number)


def settled(load: Any) -> Any:
    try:
        return load("a")
    except shardkit.ShardErrors:
        return None


def test_a_forked_child_has_copies_of_its_own(kit: ShardKit) -> None:
    source = Source()
    load = near(kit, source)
    assert copied(kit, load)

    def use() -> None:
        assert not of(kit).copies
        assert copied(kit, load)

    assert exit_code(forked(use)) == 0
    assert copied(kit, load)


def test_copies_take_no_more_bytes_than_they_may(kit: ShardKit) -> None:
    source = Source()
    load = near(kit, source, size=10_000)
    assert copied(kit, load)
    for n in range(200):
        assert load(f"n{n}") == load(f"n{n}")
    copies = of(kit).copies
    assert copied(kit, load, "last")
    assert 5 < len(copies) < 25


def test_a_move_leaves_no_old_copy() -> None:
    """Others write at the new place while this process has not yet heard of it."""
    with (
        LocalServer() as at_config,
        LocalServer() as old,
        LocalServer() as new,
        at_config.client() as config,
    ):
        shards = [{"port": old.port, "db": 1}, {"port": old.port, "db": 2}]
        push(config, map_of(many={"shards": shards}))
        url = f"redis://127.0.0.1:{at_config.port}"
        with shardkit.connect(url) as kit, shardkit.connect(url) as there:
            source = Source()
            load, other = near(kit, source, max_age=0.3), near(there, source, max_age=0.3)
            assert copied(kit, load)
            ages: list[float] = []

            def write() -> None:
                source.change(partial(other.invalidate, "a"))

            shards_moved = ["many:0", "many:1"], f"127.0.0.1:{new.port}"
            with meanwhile(write, 0.01), ThreadPoolExecutor(1) as threads:
                moving = threads.submit(growth.start_move, config, *shards_moved, hold=3 * PATIENCE)
                while not moving.done():
                    ages.append(source.age(partial(load, "a")))
            assert moving.result().certificate
            assert max(ages) <= 0.3 + 0.1 * PATIENCE


def fails_over(sentinel: Any) -> bool:
    with suppress(ResponseError):  # it may not know the replica yet
        return bool(sentinel.execute_command("SENTINEL FAILOVER", "main"))
    return False


def test_the_failover_of_a_master_that_lives_leaves_no_old_copy() -> None:
    """It answers for a while, and others write to its successor as soon as there is one."""
    with (
        LocalSentinel("main", sentinels=1) as watched,
        shardkit.connect(map_of(many={"shards": [dict(watched.entry.fields)]})) as kit,
    ):
        source = Source()
        load = near(kit, source, max_age=0.1, fallback=True)
        assert copied(kit, load)

        def write() -> None:
            with suppress(RedisError):  # a promotion ends connections
                if successor.role()[0] == b"master":
                    source.change(partial(successor.delete, load.key("a")))

        # It is not demoted.
        ask(watched.master, "execute_command", "ACL", "SETUSER", "default", "-slaveof")
        with watched.sentinels[0].client() as client:
            assert eventually(lambda: fails_over(client))
        ages, until = [], time.monotonic() + 20 * PATIENCE
        with watched.replicas[0].client() as successor, meanwhile(write, 0.01):
            while source.number < 100 and time.monotonic() < until:
                ages.append(source.age(partial(load, "a")))
        assert max(ages) <= 0.1 + 0.1 * PATIENCE
        assert source.number >= 100


def test_copies_over_tls(tmp_path: Any) -> None:
    found = SecureServer(tmp_path, None)
    try:
        shard_map = map_of(many={"shards": [found.tls]})
        with shardkit.connect(shard_map) as kit, found.server.client() as writer:
            source = Source()
            load = near(kit, source)
            assert copied(kit, load)
            time.sleep(0.5)  # in which nothing is to be read, several times
            assert load.key("a") in of(kit).copies
            source.change()
            writer.delete(load.key("a"))
            assert eventually(lambda: load("a") == 1)
    finally:
        found.stop()
