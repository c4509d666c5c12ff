"""Replies of another kind where no structure reads them: routers, pipelines, caches, tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import count, product
from random import Random
from typing import Any

import pytest
import redis
from arranged import map_of
from faces import PATIENCE, Face, drawn, faced
from relays import Relay

from shardkit import ShardKitError
from shardkit.errors import UnexpectedReply
from shardkit.local import LocalServer

GARBAGE = {
    "nothing": b"$-1\r\n",
    "a number": b":7\r\n",
    "a huge number": b":9223372036854775807\r\n",
    "an empty list": b"*0\r\n",
    "a list of a list": b"*1\r\n*1\r\n*0\r\n",
    "a list of nothing": b"*2\r\n$-1\r\n$-1\r\n",
    "numbers": b"*2\r\n:1\r\n:-1\r\n",
    "an odd number of texts": b"*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n",
    "an empty text": b"$0\r\n\r\n",
    "a text": b"$3\r\nabc\r\n",
    "a status": b"+FINE\r\n",
    "bytes that are no text": b"$2\r\n\xff\xfe\r\n",
    "an error": b"-WHAT is this\r\n",
    "a list of an error": b"*2\r\n-WHAT is this\r\n:1\r\n",
}
OF_ALL: dict[str, Callable[[Any], Any]] = {
    name: lambda every, name=name: getattr(every, name)()  # type: ignore[misc]
    for name in (
        *("ping", "info", "time", "lastsave", "role", "client_list", "function_list"),
        *("function_stats", "module_list", "memory_stats", "slowlog_get", "latency_latest"),
        *("dbsize", "slowlog_len", "pubsub_numpat", "keys", "pubsub_channels", "randomkey"),
        *("config_get", "config_resetstat", "slowlog_reset"),
    )
} | {
    "config_set": lambda every: every.config_set("maxmemory-samples", 5),
    "script_load": lambda every: every.script_load("return 1"),
    "function_load": lambda every: every.function_load("#!lua name=x\n", True),
    "function_delete": lambda every: every.function_delete("x"),
    "script_exists": lambda every: every.script_exists("a", "b"),
    "flushdb": lambda every: every.flushdb(confirm="many"),
}
KEYS = [f"k:{n}" for n in range(8)]
ROUTED: dict[str, Callable[[Any], Any]] = {
    "get": lambda commands: commands.get("k:1"),
    "set": lambda commands: commands.set("k:1", 1),
    "setex, get": lambda commands: commands.set("k:1", 1, get=True),
    "mget": lambda commands: commands.mget(KEYS),
    "mset": lambda commands: commands.mset(dict.fromkeys(KEYS, 1)),
    "delete": lambda commands: commands.delete(*KEYS),
    "exists": lambda commands: commands.exists(*KEYS),
    "touch": lambda commands: commands.touch(*KEYS),
    "unlink": lambda commands: commands.unlink(*KEYS),
    "hgetall": lambda commands: commands.hgetall("h"),
    "hscan": lambda commands: commands.hscan("h"),
    "sscan": lambda commands: commands.sscan("s"),
    "zscan": lambda commands: commands.zscan("z"),
    "smembers": lambda commands: commands.smembers("s"),
    "sinter": lambda commands: commands.sinter("s"),
    "smismember": lambda commands: commands.smismember("s", ["a"]),
    "incrbyfloat": lambda commands: commands.incrbyfloat("n", 1.5),
    "zrange": lambda commands: commands.zrange("z", 0, -1, withscores=True),
    "zscore": lambda commands: commands.zscore("z", "a"),
    "zmscore": lambda commands: commands.zmscore("z", ["a"]),
    "zadd": lambda commands: commands.zadd("z", {"a": 1}, incr=True),
    "zpopmin": lambda commands: commands.zpopmin("z"),
    "bzpopmin": lambda commands: commands.bzpopmin("z", 0.01),
    "blpop": lambda commands: commands.blpop("l", 0.01),
    "geopos": lambda commands: commands.geopos("g", "a"),
    "geosearch": lambda commands: commands.geosearch(
        "g", longitude=1, latitude=1, radius=1, withdist=True, withcoord=True
    ),
    "xadd": lambda commands: commands.xadd("x", {"a": 1}),
    "xrange": lambda commands: commands.xrange("x"),
    "xread": lambda commands: commands.xread(dict.fromkeys(KEYS, 0)),
    "xread of one": lambda commands: commands.xread({"x": 0}),
    "xinfo_stream": lambda commands: commands.xinfo_stream("x"),
    "xinfo_groups": lambda commands: commands.xinfo_groups("x"),
    "xpending": lambda commands: commands.xpending("x", "g"),
    "xautoclaim": lambda commands: commands.xautoclaim("x", "g", "c", 0),
    "expire": lambda commands: commands.expire("k:1", 1),
    "type": lambda commands: commands.type("k:1"),
    "dump": lambda commands: commands.dump("k:1"),
    "memory_usage": lambda commands: commands.memory_usage("k:1"),
    "object": lambda commands: commands.object("encoding", "k:1"),
    "lcs": lambda commands: commands.lcs("{a}1", "{a}2", idx=True),
    "publish": lambda commands: commands.spublish("c", "m"),
}
BULK: dict[str, Callable[[Any], Any]] = {
    f"each {name}": lambda router, name=name: router.each(name, KEYS)  # type: ignore[misc]
    for name in ("GET", "HGETALL", "SMEMBERS", "INCR", "TTL", "TYPE", "XLEN", "DUMP", "LLEN")
} | {
    "each SET": lambda router: router.each("SET", KEYS, 1),
    "each EXPIRE": lambda router: router.each("EXPIRE", KEYS, 9),
    "each ZSCORE": lambda router: router.each("ZSCORE", KEYS, "a"),
    "each INCRBYFLOAT": lambda router: router.each("INCRBYFLOAT", KEYS, 1.5),
    "publish": lambda router: router.publish("c", "m"),
}


class Garbling:
    """A relay that answers with garbage where it is asked to."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.raw: list[Any] = []
        self.errors: list[Any] = []

    def try_out(self, what: str, call: Callable[[], Any], replies: int = 2) -> None:
        """Make a call of which one of the first replies is garbage: several times."""
        cases = list(product(range(replies), GARBAGE))
        for n, name in Random(what).sample(cases, drawn(2, len(cases))):
            self.relay.count, self.relay.nth = 0, {n: GARBAGE[name]}
            try:
                call()
            except (ShardKitError, redis.RedisError) as error:
                self.errors.append(error)
            except Exception as error:
                self.raw.append((what, n, name, error))
            finally:
                self.relay.nth = {}

    def require_named(self) -> None:
        """Require errors of the tree, of which unexpected replies name shard and server."""
        assert self.raw == []
        unexpected = [error for error in _leaves(self.errors) if isinstance(error, UnexpectedReply)]
        assert [error for error in unexpected if not (error.shard and error.address)] == []


def _leaves(errors: Iterable[Any]) -> Iterator[Any]:
    for error in errors:
        yield from _leaves(error.exceptions) if isinstance(error, BaseExceptionGroup) else (error,)


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer() as running:
        yield running


@pytest.fixture
def garbling(server: LocalServer) -> Iterator[Garbling]:
    with closing(Relay(server.port)) as relay:
        yield Garbling(relay)


@pytest.fixture(params=["blocking", "awaiting"])
def behind(request: pytest.FixtureRequest, garbling: Garbling) -> Iterator[Face]:
    where = {"host": "127.0.0.1", "port": garbling.relay.port, "socket_timeout": 2 * PATIENCE}
    shards = [{**where, "db": number} for number in (1, 2)]
    with faced(request.param, map_of(many={"shards": shards})) as face:
        yield face


def test_all_shards_answer_with_garbage(behind: Face, garbling: Garbling) -> None:
    router = behind.kit.key_sharded("many")
    for name, call in OF_ALL.items():
        garbling.try_out(name, lambda call=call: behind.run(call(router.all)))  # type: ignore[misc]
    garbling.try_out("scan_iter", lambda: behind.list(router.scan_iter()))
    garbling.require_named()


@pytest.mark.parametrize("kind", ["blocking", "awaiting"])
def test_sentinels_answer_with_garbage(kind: str, garbling: Garbling) -> None:
    sentinel = {"service": "m", "sentinels": [["127.0.0.1", garbling.relay.port]]}
    for name in ("a status", "a text"):
        garbage = dict.fromkeys(range(10_000), GARBAGE[name])
        with faced(kind, map_of(one={"entry": {"sentinel": sentinel}})) as face:
            garbling.relay.count, garbling.relay.nth = 0, garbage
            with pytest.raises(redis.ConnectionError, match="No master found for 'm'"):
                face.run(face.run(face.kit.client("one")).get("k"))


@pytest.mark.parametrize("raises", [True, False])
def test_pipelines_get_garbage(behind: Face, garbling: Garbling, raises: bool) -> None:
    router = behind.kit.key_sharded("many")

    def execute(call: Callable[[Any], Any]) -> None:
        pipe = router.pipeline()
        call(pipe)
        pipe.get("k:2")
        behind.run(pipe.execute(raises))

    for name, call in ROUTED.items():
        garbling.try_out(name, lambda call=call: execute(call))  # type: ignore[misc]
    garbling.require_named()


def test_routers_get_garbage(behind: Face, garbling: Garbling) -> None:
    router = behind.kit.key_sharded("many")
    for name, call in (ROUTED | BULK).items():
        garbling.try_out(name, lambda call=call: behind.run(call(router)))  # type: ignore[misc]
    garbling.require_named()


def test_joined_commands_get_garbage(behind: Face, garbling: Garbling) -> None:
    """MGET for many keys, and what is wrapped in MULTI to select a database."""
    router = behind.kit.key_sharded("many")
    keys = [f"k:{n}" for n in range(200)]
    calls: dict[str, Callable[[], Any]] = {
        "mget": lambda: router.mget(keys),
        "mset": lambda: router.mset(dict.fromkeys(keys, 1)),
        "delete": lambda: router.delete(*keys),
    }
    for name, call in calls.items():
        for reply in GARBAGE.values():
            garbling.relay.replaced = {"MGET": reply, "EXEC": reply, "DEL": reply}
            garbling.try_out(name, lambda call=call: behind.run(call()))  # type: ignore[misc]
    garbling.require_named()


def test_cached_functions_and_near_copies_get_garbage(behind: Face, garbling: Garbling) -> None:
    @behind.kit.cached("many", ttl=60, key="c:{n}", near=1000)  # type: ignore[untyped-decorator]
    def cached(n: int) -> int:
        return n

    @behind.kit.cached("many", ttl=60, key="c:{n}")  # type: ignore[untyped-decorator]
    async def acached(n: int) -> int:
        return n

    function = cached if behind.runner is None else acached
    near = Face(behind.kit.near("many", 10**6, max_age=30), behind.runner)
    router, numbers = near.kit.key_sharded("many"), count()
    garbling.try_out("a call", lambda: behind.run(function(next(numbers))), 3)
    garbling.try_out("a known value", lambda: behind.run(function(0)), 3)
    garbling.try_out("invalidate", lambda: behind.run(function.invalidate(n=0)), 3)
    for name in ("get", "mget", "hgetall", "zrange"):
        garbling.try_out(f"near {name}", lambda name=name: near.run(ROUTED[name](router)), 4)  # type: ignore[misc]
    garbling.require_named()


def test_subscriptions_get_garbage(behind: Face, garbling: Garbling) -> None:
    router = behind.kit.key_sharded("many")

    def listen() -> None:
        events = router.pubsub()
        try:
            behind.run(events.subscribe("news"))
            for _ in range(3):
                behind.run(events.get_message(timeout=0.01))
        finally:
            events.close()

    garbling.try_out("subscribe", listen, 3)
    garbling.require_named()
