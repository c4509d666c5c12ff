"""Clients: built once, shared or not, replaced without dropping a call; and their scripts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
import redis.asyncio as aioredis
from link_helpers import Face, command, count_of, mapped, of, opened, script_call
from redis.exceptions import (
    DataError,
    ExecAbortError,
    NoScriptError,
    ResponseError,
)

from shardkit import AsyncShardKit, CommandRefused, ShardMap, ShardUnavailable
from shardkit.local import LocalServer, LocalServers
from shardkit.network.connections import Connector
from shardkit.operations import Command, Script, Subscribe, Transaction

COMBINATIONS = """
components:
  plain: {entry: {port: 7001, db: 1}, shards: [{port: 7001, db: 2}, {port: 7001, db: 3}]}
  text:
    entry: {port: 7001, db: 1, decode_responses: true}
    shards: [{port: 7001, db: 2, decode_responses: true}, {port: 7001, db: 3}]
  resp3:
    entry: {port: 7001, db: 1, protocol: 3}
    shards: [{port: 7001, db: 2, protocol: 3}, {port: 7001, db: 3, protocol: 3}]
  both:
    entry: {port: 7001, db: 1, protocol: 3, decode_responses: true}
    shards:
    - {port: 7001, db: 2, protocol: 3, decode_responses: true}
    - {port: 7001, db: 3, decode_responses: true, health_check_interval: 1}
"""


class Refusing(Connector):
    """Makes no client."""

    def blocking(self, fields: Any) -> Any:
        raise OSError("too many open files")

    def awaiting(self, fields: Any) -> Any:
        raise OSError("too many open files")


async def test_an_unmakable_client_is_an_unavailable_shard(kind: str, shard_map: ShardMap) -> None:
    async with opened(kind, shard_map, connector=Refusing()) as face:
        for _ in range(2):  # the component is known from then on
            [reply] = await face.send(command("one", "k", "GET"))
            assert isinstance(reply, ShardUnavailable)
            assert "cannot be reached: too many open files" in str(reply)
        subscribing = face.kit.driver.link.subscribe(Subscribe("one", "k"))
        assert await face.value(subscribing) == ""  # who waits polls


@pytest.mark.parametrize("component", ["plain", "text", "resp3", "both"])
async def test_entries_do_not_change_structures(kind: str, component: str) -> None:
    with LocalServers(ShardMap.parse(COMBINATIONS), ports="free") as servers:
        async with opened(kind, servers.shard_map) as face:
            words = face.kit.set("words", component=component, total=2000, part_size=100)
            assert await face.value(words.sadd("a", "b", "ü")) == 3
            assert await face.value(words.sadd("a", "c")) == 1
            assert await face.value(words.smismember("a", "z", "ü")) == [True, False, True]
            assert sorted(await face.listed(words.sscan_iter())) == ["a", "b", "c", "ü"]
            assert await face.value(words.scard()) == 4
            numbers = face.kit.set("n", component=component, total=2000, part_size=100, members=int)
            assert await face.value(numbers.sadd_many(range(500))) == 500
            assert await face.value(numbers.sismember(499)) is True
            visitors = face.kit.unique_visitors(component=component)
            session = "550e8400-e29b-41d4-a716-446655440000"
            assert [await face.value(visitors.visit(session)) for _ in range(2)] == [True, False]
            assert await face.value(visitors.count()) == 1
            assert await face.send(command(component, "words:meta", "HGET", "kind")) == [b"set"]


async def seen(client: Any, command: str) -> None:
    """Wait until the server has a client that executes a command."""
    while True:
        if any(command in each["cmd"] for each in await client.client_list()):
            return


async def test_what_blocks_does_not_hold_up_the_others(akit: AsyncShardKit) -> None:
    client: Any = await akit.client("one")
    waiting = asyncio.create_task(client.blpop(["list"], timeout=20))
    reading = asyncio.create_task(client.xread({"stream": "$"}, block=20_000))
    for n in range(20):
        assert await client.incr("n") == n + 1
    await seen(client, "blpop")
    await client.rpush("list", "x")
    assert await waiting == (b"list", b"x")
    await seen(client, "xread")
    await client.xadd("stream", {"f": "v"})
    assert len(await reading) == 1


CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("set", ("a", "1"), {}),
    ("set", ("a", "2"), {"nx": True}),
    ("set", ("a", "3"), {"get": True}),
    ("get", ("a",), {}),
    ("getex", ("a",), {"ex": 100}),
    ("incrbyfloat", ("f", 1.5), {}),
    ("mset", ({"x": 1, "y": bytearray(b"2")},), {}),
    ("mget", (["x", "y", "z"],), {}),
    ("mget", ([],), {}),
    ("hset", ("h",), {"mapping": {"f": "v", "g": 1}}),
    ("hgetall", ("h",), {}),
    ("hmget", ("h", ["f", "no"]), {}),
    ("sadd", ("s", "m", "n"), {}),
    ("smembers", ("s",), {}),
    ("zadd", ("z", {"m": 1.5, "n": 2}), {}),
    ("zrange", ("z", 0, -1), {"withscores": True}),
    ("zscore", ("z", "m"), {}),
    ("zpopmin", ("z",), {}),
    ("xadd", ("t", {"f": "v"}, "1-1"), {}),
    ("xrange", ("t",), {}),
    ("expire", ("a", 100), {}),
    ("ttl", ("a",), {}),
    ("type", ("h",), {}),
    ("object", ("encoding", "h"), {}),
    ("exists", ("a", "b", "h"), {}),
    ("rename", ("x", "x2"), {}),
    ("eval", ("return {1, KEYS[1], ARGV[1]}", 1, "a", "b"), {}),
    ("evalsha", ("0" * 40, 0), {}),
    ("scan", (), {"count": 1000}),
    ("dbsize", (), {}),
    ("ping", (), {}),
    ("echo", ("é",), {}),
    ("config_get", ("maxmemory",), {}),
    ("incr", ("h",), {}),  # WRONGTYPE
    ("get", (None,), {}),
    ("get", ("caf\udce9",), {}),  # a file's name that is no UTF-8
    ("execute_command", (5,), {}),
    ("execute_command", ("NONSENSE",), {}),
    ("dump", ("a",), {}),
    ("delete", ("a", "b", "h"), {}),
]
SPOKEN = """
GET s; GET absent; APPEND s ü; STRLEN s; GETRANGE s 0 -1; SETBIT bits 7 1;
BITFIELD bits GET u8 0 INCRBY i5 100 1; INCRBYFLOAT f 1.5; INCRBY n -3; INCR s; LPUSH n 1;
MSET a 1 b 2.5; MGET a absent b; EXPIRE a 100; TTL absent; PERSIST a; TYPE a; EXISTS a b absent;
RPUSH l 0 1 2 3 4; LRANGE l 0 -1; LPOS l 3; LPOP absent 2; LINSERT l BEFORE 9 1; SADD set x y x;
SMISMEMBER set x z; SCARD set; SPOP absent; HSET h a 1 b 2; HGETALL h; HGETALL absent;
HMGET h a z; HINCRBYFLOAT h a 0.25; ZADD z 1 a 2.5 b inf c; ZRANGE z 0 -1 WITHSCORES;
ZSCORE z absent; ZMSCORE z a absent; ZPOPMIN z; ZADD z nan a; XADD x 1-1 field value;
XRANGE x - +; XREAD COUNT 1 STREAMS x 0; GEOADD g 13.361389 38.115556 Palermo;
GEOPOS g Palermo absent; PFADD p a b; PFCOUNT p; SCAN 0 COUNT 1000 TYPE zset;
OBJECT ENCODING l; COPY s s2; RENAME absent other; GET; UNLINK a b; DBSIZE; PING
"""
COMMANDS: list[tuple[Any, ...]] = [
    ("SET", "s", "text"),
    ("SET", "s", b"\x00\xc3\xbc\r\n", "XX", "GET"),
    *(tuple(each.split()) for each in SPOKEN.split(";")),
    ("EVAL", "return {1, 'two', {3, {err = 'inner'}}, false, 4.9}", 0),
    ("EVAL", "return {err = 'MINE all mine'}", 0),
    ("EVAL", "return redis.call('LPUSH', KEYS[1], 1)", 1, "s"),
    ("ECHO", ""),
]


async def answers(client: Any) -> list[Any]:
    """What a client of either face gives for all calls, on an empty server."""
    await of(client.flushall())
    found = []
    executed = [("execute_command", args, {}) for args in COMMANDS]
    for method, args, named in [*CALLS, *executed]:
        try:
            answer = await of(getattr(client, method)(*args, **named))
            if method == "scan":
                answer = answer[0], sorted(answer[1])
        except (ResponseError, DataError, NoScriptError, UnicodeError, TypeError) as error:
            answer = type(error), str(error).partition(" [own, ")[0]  # the server's name
        found.append((method, repr(answer) if isinstance(answer, list) else answer))
    await of(client.flushall())
    together = client.pipeline(transaction=False)
    for args in COMMANDS:
        together.execute_command(*args)
    found.append(("pipeline", [*map(repr, await of(together.execute(raise_on_error=False)))]))
    for transaction in (False, True):
        with pytest.raises(UnicodeEncodeError) as refused:
            await of(client.pipeline(transaction).set("a", "caf\udce9").execute())
        found.append(("pipeline", str(refused.value)))
    return found


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("protocol", [2, 3])
async def test_calls_are_as_redis_pys(
    kind: str, own_server: LocalServer, decode: bool, protocol: int
) -> None:
    options: dict[str, Any] = {"decode_responses": decode, "protocol": protocol}
    plain = (redis if kind == "blocking" else aioredis).Redis(port=own_server.port, **options)
    expected = await answers(plain)
    await of(plain.close() if kind == "blocking" else plain.aclose())
    async with opened(kind, mapped({"port": own_server.port, **options}, "own")) as face:
        client = await of(face.kit.client("own"))
        assert await answers(client) == expected


@pytest.mark.parametrize("private", [False, True])
async def test_a_library_may_give_our_classes_a_pool_of_redis_pys(
    kind: str, own_map: ShardMap, private: bool
) -> None:
    async with opened(kind, own_map) as face:
        lent = await of(face.kit.client("own", private=private))
        pools: Any = redis if face.blocks else aioredis
        known = lent.connection_pool
        for connections in (pools.Connection, known.connection_class):
            pool = pools.ConnectionPool(connection_class=connections, **known.connection_kwargs)
            client = type(lent)(connection_pool=pool)
            assert await of(client.set("a", "1")) is True
            assert await of(client.pipeline().get("a").incr("a").execute()) == [b"1", 2]
            assert await of(client.blpop(["list"], timeout=0.01)) is None
            await of(pool.disconnect())


BUMP = Script("bump", "return redis.call('INCRBY', KEYS[1], ARGV[1])")
BROKEN = Script("broken", "return return")


def bump(key: str, by: int = 1, to: str = "many") -> Command:
    return script_call(to, BUMP, [key], [by])


async def test_scripts_run_on_servers_without_them(face: Face, servers: LocalServers) -> None:
    keys = [f"k{n}" for n in range(200)]
    before = sum(count_of(server, "eval") for server in servers.servers)
    assert await face.send(*map(bump, keys)) == [1] * 200
    assert await face.send(*map(bump, keys)) == [2] * 200
    # The text went once to each of the four servers of 16 shards, and never again.
    assert sum(count_of(server, "eval") for server in servers.servers) - before == 4


async def test_a_script_that_does_not_compile_is_an_error_that_says_so(face: Face) -> None:
    good, bad, other = await face.send(
        bump("k1"), script_call("many", BROKEN, ["k2"]), command("many", "k3", "SET", 1)
    )
    assert (good, other) == (1, b"OK")
    assert isinstance(bad, CommandRefused)
    assert bad.command == "broken"
    assert "compil" in str(bad)


async def test_a_restarted_server_gets_its_scripts_again(kind: str) -> None:
    plan = ShardMap.parse("components: {data: {shards: [{port: 7001}, {port: 7002}]}}")
    with LocalServers(plan, ports="free") as servers:
        async with opened(kind, servers.shard_map) as face:
            keys = [f"k{n}" for n in range(20)]
            for _ in range(2):
                replies = await face.send(*[bump(key, to="data") for key in keys])
                assert replies == [1] * 20
                for server in servers.servers:
                    server.restart()  # keeps no data
            assert await face.send(bump("k0", to="data")) == [1]


LUA: list[tuple[str, Any]] = [
    ("true", 1),
    ("false", None),
    ("3.7", 3),
    ("-3.7", -3),
    ("2^53", 2**53),
    ("1e30", -(2**63)),
    ("'text'", b"text"),
    ("'\\0\\255'", b"\x00\xff"),
    ("string.format('%.0f', 1e14)", b"100000000000000"),
    ("{}", []),
    ("{1, 'two', {3, {4}}}", [1, b"two", [3, [4]]]),
    ("{1, 2, nil, 4}", [1, 2]),
    ("{1, false, true, 4.9}", [1, None, 1, 4]),
    ("{ok = 'FINE'}", b"FINE"),
    ("redis.call('SET', 'lua', 1)", b"OK"),
    ("redis.call('GET', 'absent')", None),
    ("redis.call('HGETALL', 'absent')", []),
]


@pytest.mark.parametrize(("lua", "python"), LUA)
async def test_lua_values_become_these_replies(face: Face, lua: str, python: Any) -> None:
    script = Script("value", f"return {lua}")
    for _ in range(2):  # by its text, by its SHA-1
        assert await face.send(script_call("one", script, ["k"])) == [python]
    together = await face.send(*[script_call("one", script, ["k"])] * 3)
    assert together == [python] * 3
    [group] = await face.send(Transaction("one", "k", (script_call("one", script, ["k"]),)))
    assert group == [python]


def group(key: str, *commands: Any, to: str = "many") -> Transaction:
    return Transaction(to, key, tuple(commands))


async def test_an_error_inside_a_transaction_stands_in_its_place(face: Face) -> None:
    k = "k"
    replies = await face.send(
        command("many", k, "SET", "text"),
        group(
            k,
            command("many", "k2", "INCR"),
            command("many", k, "LPUSH", 1),
            command("many", k, "GET"),
        ),
        command("many", k, "STRLEN"),
    )
    assert replies.failed
    assert replies[0::2] == [b"OK", 4]
    one, wrong, read = replies[1]
    assert (one, read) == (1, b"text")
    assert isinstance(wrong, CommandRefused)
    assert wrong.command == "LPUSH"
    assert "WRONGTYPE" in str(wrong)


async def test_an_aborted_transaction_says_why_and_did_nothing(face: Face) -> None:
    before, aborted, after = await face.send(
        command("many", "a", "SET", 1),
        group("b", command("many", "b", "SET", 1), Command("many", "b", ("NOSUCH", "b"))),
        command("many", "b", "GET"),
    )
    assert (before, after) == (b"OK", None)
    assert isinstance(aborted, CommandRefused)
    assert aborted.command == "MULTI"
    assert isinstance(aborted.error, ResponseError)
    assert not isinstance(aborted.error, ExecAbortError)
    assert "the server has no command NOSUCH" in str(aborted)
