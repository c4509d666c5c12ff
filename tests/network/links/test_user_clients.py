"""Clients of a kit: redis-py's for their users, with a shorter way to the socket."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import redis.asyncio as aioredis
from fakeredis import FakeAsyncRedis
from link_helpers import clients_of, mapped, of, opened
from redis.exceptions import (
    DataError,
    NoScriptError,
    ResponseError,
)

import shardkit
from shardkit import AsyncShardKit, ShardMap
from shardkit.local import LocalCluster, LocalServer
from shardkit.network.connections.effects import READS, WRITES
from shardkit.network.links import user_clients
from shardkit.network.links.user_clients import DirectClient, MultiplexedClient
from shardkit.testing.fakes.servers import MemoryConnector


def map_of(port: int, **fields: Any) -> ShardMap:
    return mapped({"port": port, **fields}, "own")


async def seen(client: Any, command: str) -> None:
    """Wait until the server has a client that executes a command."""
    while True:
        if any(command in each["cmd"] for each in await client.client_list()):
            return


async def test_a_thousand_calls_share_one_connection(own_server: LocalServer) -> None:
    before = clients_of(own_server)
    shards = [{"port": own_server.port, "db": n, "max_connections": 2} for n in range(8)]
    text = json.dumps({"components": {"eight": {"shards": shards}}})
    async with await shardkit.aconnect(ShardMap.parse(text)) as kit:

        @kit.sharded_connection("eight")
        async def count(conn: aioredis.Redis, key: str) -> Any:
            return await conn.incr(key)

        for round_ in (1, 2):
            found = await asyncio.gather(*(count(f"k{n}") for n in range(1000)))
            assert found == [round_] * 1000
        assert clients_of(own_server) - before <= 8


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
    ("execute_command", ("NONSENSE",), {}),
    ("dump", ("a",), {}),
    ("delete", ("a", "b", "h"), {}),
]


async def answers(client: Any) -> list[Any]:
    """What a client of either face gives for all calls, on an empty server."""
    await of(client.flushall())
    found = []
    for method, args, named in CALLS:
        try:
            answer = await of(getattr(client, method)(*args, **named))
            if method == "scan":
                answer = answer[0], sorted(answer[1])
        except (ResponseError, DataError, NoScriptError) as error:
            answer = type(error), str(error).partition(" [own, ")[0]  # the server's name
        found.append((method, answer))
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
    async with opened(kind, map_of(own_server.port, **options)) as face:
        client = await of(face.kit.client("own"))
        assert type(client) is (DirectClient if face.blocks else MultiplexedClient)
        assert await answers(client) == expected


async def test_a_callback_that_a_user_sets_is_called(akit: AsyncShardKit) -> None:
    client: Any = await akit.client("one")

    async def later(reply: bytes, **options: Any) -> tuple[str, bytes]:
        return "later", reply

    await client.set("a", 1)
    client.set_response_callback("GET", lambda reply, **options: ("mine", reply))
    assert await client.get("a") == ("mine", b"1")
    client.set_response_callback("GET", later)
    assert await client.get("a") == ("later", b"1")


@pytest.mark.parametrize(
    "fields", [{"multiplex": False}, {"retries": 2}, {"encoding_errors": "replace"}]
)
async def test_an_entry_can_ask_for_redis_pys_own_way(
    own_server: LocalServer, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(self: Any, chunks: Any) -> Any:
        raise AssertionError("multiplexed")

    monkeypatch.setattr("shardkit.network.links.multiplexer.MultiplexedConnection.submit", never)
    async with await shardkit.aconnect(map_of(own_server.port, **fields)) as kit:
        client: Any = await kit.client("own")
        assert await client.set("a", "é") is True
        assert await client.get("a") == "é".encode()


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


async def test_a_cluster_can_be_connected_to_by_our_classes(
    kind: str, cluster: LocalCluster
) -> None:
    entry = dict(cluster.entry.fields)
    async with opened(kind, mapped(entry, "own")) as face:
        lent = await of(face.kit.client("own"))
        client = type(lent)(host=entry["host"], port=entry["port"])
        assert await of(client.set("a", "1"))
        assert await of(client.get("a")) == b"1"
        await of(client.close() if face.blocks else client.aclose())


async def test_a_call_goes_from_a_loading_server_to_a_cluster(kind: str) -> None:
    memory = MemoryConnector()
    memory.server("a").answer("LOADING Redis is loading the dataset in memory")
    other = memory.server("b")
    async with opened(kind, mapped({"host": "a"}, "own"), connector=memory) as face:
        client = await of(face.kit.client("own"))
        found: Any = other.client() if face.blocks else FakeAsyncRedis(server=other.fake)
        cluster = SimpleNamespace(execute_command=found.execute_command)

        async def follow(args: Any) -> Any:
            return cluster

        client.successor = (lambda args: cluster) if face.blocks else follow
        assert await of(client.set("k", 1)) is True
        assert other.client().get("k") == b"1"
        assert memory.server("a").client().get("k") is None
        if not face.blocks:
            await found.aclose()


def test_of_many_names_only_some_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_clients, "_shared", {f"NAME{n}": 0 for n in range(4095)})
    assert [user_clients._learn(name) for name in ("GET", "BLPOP", "SET")] == [READS, None, WRITES]
    assert len(user_clients._shared) == 4096
    assert user_clients._shared["GET"] == READS
