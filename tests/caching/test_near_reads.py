"""Near copies of what routers, pipelines and structures read: `Kit.near`."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from random import Random
from typing import Any

import pytest
import redis
from arranged import map_of, meanwhile
from faces import PATIENCE, Face, drawn, eventually, faced
from redis.exceptions import RedisError
from slow_way import slow

import shardkit
from shardkit import InvalidArgumentError, ShardErrors, ShardKit, ShardMap
from shardkit.admin import growth, push
from shardkit.local import LocalCluster, LocalServer
from shardkit.testing import MemoryServers

LARGE = 10_000_000
KEYS = [f"k:{n}" for n in range(6)]


@contextmanager
def counted(kit: ShardKit) -> Iterator[Callable[[], int]]:
    """Count the commands with keys that the servers of "many" execute."""

    def total() -> int:
        rows = [client.info("commandstats") for client in kit.key_sharded("many")]
        names = ("get", "mget", "hgetall", "hget", "hmget", "evalsha", "pttl")
        return sum(
            row.get(f"cmdstat_{name}", {"calls": 0})["calls"] for row in rows for name in names
        )

    before = total()
    yield lambda: total() - before


@pytest.fixture
def near(face: Face) -> Face:
    """The face with near copies; its servers have told that they tell of changes."""
    found = Face(face.kit.near("many", LARGE, max_age=30), face.runner)
    router = found.kit.key_sharded("many")
    keys = [f"ready:{n}" for n in range(50)]

    def are_kept() -> bool:
        found.run(router.mget(keys))
        [copies] = face.kit.near_copies.values()  # nothing else shows that there is a copy
        return len(copies.copies) == len(keys)

    assert eventually(are_kept)
    return found


@pytest.fixture
def there(shard_map: ShardMap) -> Iterator[ShardKit]:
    """The kit of another process."""
    with shardkit.connect(shard_map) as opened:
        yield opened


READS: dict[str, Callable[[Any, Any], Any]] = {
    "get": lambda router, _: router.get("k:0"),
    "mget": lambda router, _: router.mget(KEYS),
    "each": lambda router, _: router.each("GETRANGE", KEYS, 0, 3),
    "pipeline": lambda router, _: router.pipeline().get("k:1").hgetall("h").execute(),
    "hgetall": lambda router, _: router.hgetall("h"),
    "hash": lambda _, hashed: hashed.hget("field"),
    "whole hash": lambda _, hashed: hashed.hmget(["field", "other"]),
}


@pytest.mark.parametrize("kind_of_key", [bytearray, memoryview])
def test_keys_that_may_change_are_read_as_without_copies(near: Face, kind_of_key: Any) -> None:
    router, key = near.kit.key_sharded("many"), kind_of_key(bytearray(b"k:0"))
    near.run(router.set("k:0", "value"))
    for read in (router.get, lambda name: router.pipeline().get(name).execute()):
        assert near.run(read(key)) in (b"value", [b"value"])
    assert near.run(router.mget([key, "k:1"])) == [b"value", None]
    assert near.run(router.hget("h", key)) is None


@pytest.mark.parametrize("name", READS)
def test_a_read_that_was_made_before_sends_nothing(near: Face, there: ShardKit, name: str) -> None:
    router, hashed = near.kit.key_sharded("many"), near.kit.hash("profile", component="many")
    near.run(router.mset(dict.fromkeys(KEYS, "value")))
    near.run(router.hset("h", mapping={"a": 1}))
    near.run(hashed.hset(mapping={"field": "one", "other": "two"}))
    first = near.run(READS[name](router, hashed))
    with counted(there) as commands:

        def sends_nothing() -> bool:  # once the writes above have been told
            before = commands()
            assert near.run(READS[name](router, hashed)) == first
            return commands() == before

        assert eventually(sends_nothing)
    changed: Any = near.run(READS[name](router, hashed))
    if isinstance(changed, list | dict):
        changed.clear()  # a caller's own
    assert near.run(READS[name](router, hashed)) == first


def test_what_another_process_writes_is_read_soon(near: Face, there: ShardKit) -> None:
    router, hashed = near.kit.key_sharded("many"), near.kit.hash("profile", component="many")
    writer, other = there.key_sharded("many"), there.hash("profile", component="many")
    assert near.run(router.mget(KEYS)) == [None] * 6
    assert near.run(hashed.hget("field")) is None
    for number in range(5):
        writer.mset(dict.fromkeys(KEYS, number))
        other.hset("field", number)
        assert eventually(lambda: near.run(router.mget(KEYS)) == [b"%d" % number] * 6)  # noqa: B023
        assert eventually(lambda: near.run(hashed.hget("field")) == b"%d" % number)  # noqa: B023
    for client in writer:
        client.flushdb()
    assert eventually(lambda: near.run(router.mget(KEYS)) == [None] * 6)
    assert eventually(lambda: near.run(hashed.hget("field")) is None)


def test_calls_read_what_they_wrote(near: Face) -> None:
    router = near.kit.key_sharded("many")
    random = Random(1)
    model: dict[str, str] = {}
    for step in range(drawn(300, 3000)):
        key, value = random.choice(KEYS), str(step)
        some = random.sample(KEYS, 3)
        match random.randrange(6):
            case 0:
                near.run(router.set(key, value))
                model[key] = value
            case 1:
                near.run(router.mset(dict.fromkeys(some, value)))
                model |= dict.fromkeys(some, value)
            case 2:
                near.run(router.delete(*some))
                for each in some:
                    model.pop(each, None)
            case 3:
                near.run(router.pipeline().set(key, value).append(key, "x").execute())
                model[key] = value + "x"
            case _:
                pass
        replies = near.run(router.mget(KEYS))
        assert [each and each.decode() for each in replies] == [model.get(each) for each in KEYS]
        assert near.run(router.get(key)) == replies[KEYS.index(key)]


def test_a_key_is_not_read_after_its_time_to_live(near: Face) -> None:
    router = near.kit.key_sharded("many")
    near.run(router.set("k:0", "old", px=300))
    began, read = time.monotonic(), []
    while time.monotonic() < began + 0.29:
        read.append(near.run(router.get("k:0")))
    time.sleep(0.05)  # until 40 ms after it has expired
    assert near.run(router.get("k:0")) is None
    assert b"old" in read


def test_what_varies_by_itself_is_asked_for_each_time(near: Face, there: ShardKit) -> None:
    router = near.kit.key_sharded("many")
    near.run(router.set("k:0", "x", ex=100))
    near.run(router.sadd("s", *range(1000)))
    lives = {near.run(router.pttl("k:0")) for _ in range(200)}
    assert len(lives) > 1
    assert len({near.run(router.srandmember("s")) for _ in range(50)}) > 1


def test_errors_are_those_of_a_router_without_copies(near: Face, face: Face) -> None:
    plain, router = face.kit.key_sharded("many"), near.kit.key_sharded("many")
    near.run(router.sadd("s", 1))
    for call in ("get", "hgetall", "lrange"):
        args = ("s", 0, 1) if call == "lrange" else ("s",)
        errors = []
        for each in (plain, router):
            with pytest.raises(Exception) as caught:  # noqa: PT011 - it is compared
                face.run(getattr(each, call)(*args))
            errors.append((type(caught.value), str(caught.value)))
        assert errors[0] == errors[1]
    assert near.run(router.mget(["s"])) == [None]


def test_on_a_cluster_a_copy_is_used_for_its_age(kind: str, cluster: LocalCluster) -> None:
    shards = map_of(many={"entry": dict(cluster.entry.fields)})
    with faced(kind, shards) as face, shardkit.connect(shards) as there:
        near = face.kit.near("many", LARGE, max_age=0.5).key_sharded("many")
        writer = there.key_sharded("many")
        ages, reused, since = [], 0, {}
        for number in range(30):
            writer.set("k", number)
            since[number] = time.monotonic()
            asked = time.monotonic()
            read = int(face.run(near.get("k")))
            reused += read < number
            ages.append(asked - since.get(read + 1, asked))
            time.sleep(0.05)
        assert max(ages) <= 0.5 + 0.1 * PATIENCE
        assert reused


def test_in_memory_a_copy_is_used_for_its_age(shard_map: ShardMap) -> None:
    memory = MemoryServers(shard_map)
    with shardkit.connect(memory.shard_map, connector=memory) as kit:
        router = kit.near("many", LARGE, max_age=0.2).key_sharded("many")
        plain = kit.key_sharded("many")

        def is_kept() -> bool:
            router.set("k", 1)
            assert router.get("k") == b"1"
            plain.set("k", 2)
            return router.get("k") == b"1"

        assert eventually(is_kept)
        assert eventually(lambda: router.get("k") == b"2")


def test_bad_arguments_are_refused_before_anything_is_sent(kit: ShardKit) -> None:
    for options in (
        {"size": 0},
        {"size": 10**30},
        {"max_age": 0},
        {"max_age": float("nan")},
        {"prefixes": "user:"},
        {"prefixes": [""]},
        {"prefixes": [1]},
        {"prefixes": ["user:", "user:1"]},
        {"prefixes": ["config:"]},
    ):
        with pytest.raises(InvalidArgumentError, match="near copies of 'many'"):
            kit.near("many", **{"size": LARGE} | options)  # type: ignore[arg-type]


class Ages:
    """How old what is read of a key is, whose values are numbers that grow."""

    def __init__(self, write: Callable[[int], object]) -> None:
        self._write = write
        self.since: list[float] = []
        self.change()

    def change(self) -> None:
        self._write(len(self.since))
        self.since.append(time.monotonic())

    def of(self, read: Callable[[], Any]) -> float:
        """When it was asked for, as a call may take long on a busy machine."""
        asked = time.monotonic()
        later = int(read()) + 1
        return asked - self.since[later] if later < len(self.since) else 0.0


@pytest.mark.parametrize("direction", ["up", "down"])
def test_no_copy_is_too_old_while_its_connection_hangs(direction: str) -> None:
    with LocalServer() as server, server.client() as client, slow(server) as (way, behind):
        ages = Ages(lambda number: client.set("k", number))
        with shardkit.connect(behind) as kit:
            router = kit.near("many", LARGE, max_age=0.5).key_sharded("many")
            assert eventually(lambda: router.get("k") and of(kit).copies)
            way.stop(direction)
            ages.change()
            read, until = [], time.monotonic() + 2
            while time.monotonic() < until:
                with suppress(RedisError):  # it must be read anew, and cannot
                    read.append(ages.of(lambda: router.get("k")))
            assert max(read, default=0) <= 0.5 + 0.1 * PATIENCE
            way.go_on(direction)
            assert eventually(lambda: router.get("k") == b"1")


def test_a_move_leaves_no_copy_that_is_too_old() -> None:
    with LocalServer() as at_config, LocalServer() as old, LocalServer() as new:
        config = at_config.client()
        shards = [{"port": old.port, "db": 1}, {"port": old.port, "db": 2}]
        push(config, map_of(many={"shards": shards}))
        url = f"redis://127.0.0.1:{at_config.port}"
        with shardkit.connect(url) as kit, shardkit.connect(url) as there, config:
            router = kit.near("many", LARGE, max_age=0.3).key_sharded("many")
            writer = there.key_sharded("many")
            ages = Ages(lambda number: writer.set("k", number))
            assert eventually(lambda: router.get("k") and of(kit).copies)
            target = f"127.0.0.1:{new.port}"
            move = partial(growth.start_move, config, ["many:0", "many:1"], target)
            read = []
            with ThreadPoolExecutor(1) as threads:
                moving = threads.submit(move, hold=3 * PATIENCE)
                while not moving.done():
                    ages.change()
                    read.append(ages.of(lambda: router.get("k")))
            assert moving.result().certificate
            assert max(read) <= 0.3 + 0.1 * PATIENCE


def test_only_keys_with_a_prefix_are_kept(kit: ShardKit, there: ShardKit) -> None:
    near = kit.near("many", LARGE, max_age=30, prefixes=("user:",)).key_sharded("many")
    assert eventually(lambda: near.get("user:1") is None and len(of(kit).copies) == 1)
    assert near.get("other:1") is None
    assert len(of(kit).copies) == 1
    there.key_sharded("many").mset({"user:1": 1, "other:1": 1})
    assert near.get("other:1") == b"1"
    assert eventually(lambda: near.get("user:1") == b"1")


def of(kit: ShardKit) -> Any:
    [copies] = kit.near_copies.values()
    return copies


def test_threads_that_write_and_read_at_once_keep_nothing_old(kit: ShardKit) -> None:
    near = kit.near("many", LARGE, max_age=30).key_sharded("many")
    written = [0]

    def read() -> None:
        least = written[0]
        assert int(near.get("k")) >= least

    near.set("k", 0)
    with meanwhile(read), meanwhile(read), meanwhile(read):
        for number in range(1, drawn(500, 5000)):
            near.set("k", number)
            written[0] = number
    assert int(near.get("k")) == written[0]


SPIN = "local ends = os.clock() + ARGV[1] / 1000 while os.clock() < ends do end"


def map_behind(server: LocalServer, **fields: Any) -> ShardMap:
    entry = {"port": server.port, "socket_timeout": 1, "breaker": False, **fields}
    return map_of(many={"shards": [entry]})


def spinning(milliseconds: int) -> bytes:
    parts = [b"EVAL", SPIN.encode(), b"0", b"%d" % milliseconds]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)


def write_before_it_is_busy(server: LocalServer, client: redis.Redis) -> bool:
    """Make it busy right after a write, in the same turn of its loop; return whether that went."""
    ways = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
    with closing(ways[0]) as first, closing(ways[1]) as writer, closing(ways[2]) as last:
        first.sendall(spinning(100))  # the others arrive meanwhile, in this order
        time.sleep(0.03)  # until it executes that
        writer.sendall(b"SET k new\r\n")
        time.sleep(0.03)  # until that has come
        last.sendall(spinning(3_600_000))
        writer.settimeout(20 * PATIENCE)
        if writer.recv(100) == b"+OK\r\n":
            return True
        with suppress(redis.ResponseError):  # the first has ended, and the last not yet begun
            client.script_kill()
        return False


def answer(router: Any) -> Any:
    with suppress(ShardErrors, redis.RedisError):
        return router.get("k")
    return None


def test_a_busy_server_confirms_nothing() -> None:
    """It answers HELLO, but does not announce what it has executed before it became busy."""
    with LocalServer() as server, server.client() as client:
        # The milliseconds until it says that it is busy: before an answer is missed.
        client.config_set("lua-time-limit", 600)
        client.set("k", "old")
        with shardkit.connect(map_behind(server)) as kit:
            router = kit.near("many", LARGE, max_age=0.5).key_sharded("many")
            [copies] = kit.near_copies.values()  # nothing else shows that there is a copy
            assert eventually(lambda: router.get("k") and copies.copies)
            assert eventually(lambda: write_before_it_is_busy(server, client))
            time.sleep(0.5 + 0.1 * PATIENCE)  # until no copy may be used
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                assert answer(router) is None
            client.script_kill()
            assert eventually(lambda: answer(router) == b"new")


@pytest.mark.parametrize("refused", ["client|tracking", "ping"])
def test_without_a_right_that_announcements_need_a_copy_is_used_for_its_age(refused: str) -> None:
    with LocalServer() as server, server.client() as client:
        client.execute_command(
            "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", f"-{refused}"
        )
        with shardkit.connect(map_behind(server, username="app", password="pw")) as kit:
            router = kit.near("many", LARGE, max_age=0.3).key_sharded("many")

            def is_kept() -> bool:
                client.set("k", 1)
                assert router.get("k") in (None, b"1", b"2")
                client.set("k", 2)
                return router.get("k") == b"1"

            assert eventually(is_kept)
            assert eventually(lambda: router.get("k") == b"2")
