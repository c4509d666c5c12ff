"""Clients: built once, shared or not, replaced with their entry without dropping a call."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
import redis
import redis.asyncio as aioredis
from arranged import ask
from fakeredis import FakeAsyncRedis
from link_helpers import FACES, clients_of, command, eventually, mapped, of, opened
from redis.exceptions import (
    DataError,
    NoScriptError,
    ResponseError,
)

from shardkit import AsyncShardKit, Entry, ShardMap, ShardUnavailable
from shardkit.config.component import Component
from shardkit.errors import MissingEntryError
from shardkit.local import LocalServer, LocalServers
from shardkit.network.connections import Connector
from shardkit.network.connections.clients import Clients
from shardkit.network.links.link import AwaitingLink, BlockingLink
from shardkit.network.links.user_clients import DirectClient, MultiplexedClient
from shardkit.operations import Command, Replies, Subscribe
from shardkit.testing.fakes.servers import MemoryConnector

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


class Now:
    """A topology of one component, which the test changes."""

    def __init__(self, component: Component) -> None:
        self.now = component

    def component(self, name: str) -> Component:
        return self.now

    def fresh(self, name: str) -> Component:
        return self.component(name)

    async def acomponent(self, name: str) -> Component:
        return self.now


class Linked:
    """A link of either kind over a topology that changes."""

    def __init__(self, face: str, entry: Entry) -> None:
        self.clients = Clients()
        self.topology = Now(Component("c", entry))
        self.blocks = face == "blocking"
        kind: Any = BlockingLink if self.blocks else AwaitingLink
        self.link = kind(self.topology, self.clients)

    def move(self, entry: Entry) -> Component:
        before = self.topology.now
        self.topology.now = Component("c", entry)
        return before

    def get(self, component: Component) -> Any:
        return (self.clients.get if self.blocks else self.clients.aget)(component, None)

    async def send(self, *batch: Command) -> Replies:
        if self.blocks:  # in a thread, so that several can be under way
            found: Replies = await asyncio.to_thread(self.link.send, list(batch))
            return found
        return await self.link.send(list(batch))  # type: ignore[no-any-return]


@pytest_asyncio.fixture(params=FACES)
async def linked(
    request: pytest.FixtureRequest, here: LocalServer, there: LocalServer
) -> AsyncIterator[Linked]:
    for server in (here, there):
        ask(server, "flushall")
    found = Linked(request.param, here.entry)
    yield found
    found.clients.close()
    await found.clients.aclose()


async def test_changes_drop_nothing(linked: Linked, here: LocalServer, there: LocalServer) -> None:
    await linked.send(command("c", "k", "SET", "here"))
    blocked = asyncio.create_task(
        linked.send(Command("c", "jobs", ("BLPOP", "jobs", 20), block=20))
    )
    assert await eventually(lambda: "blpop" in str(clients(here)))
    linked.move(there.entry)
    assert await linked.send(command("c", "k", "GET")) == [None]  # there
    assert clients_of(there) >= 1
    ask(here, "rpush", "jobs", "done")
    assert await blocked == [[b"jobs", b"done"]]
    assert await eventually(lambda: clients_of(here) == 0)
    assert await linked.send(command("c", "k", "SET", "there")) == [b"OK"]


def clients(server: LocalServer) -> list[Any]:
    with server.client() as client:
        return [found["cmd"] for found in client.client_list()]


async def test_many_calls_go_on(linked: Linked, here: LocalServer, there: LocalServer) -> None:
    for server in (here, there):
        ask(server, "set", "k", "v")
    batch = [command("c", "k", "GET") for _ in range(200)]

    async def work() -> list[Any]:
        return [await linked.send(*batch) for _ in range(20)]

    tasks = [asyncio.create_task(work()) for _ in range(6)]
    for n in range(20):
        await asyncio.sleep(0.005)
        linked.move((here, there)[n % 2].entry)
    for task in tasks:
        for replies in await task:
            assert replies == [b"v"] * 200
    await linked.send(command("c", "k", "GET"))
    assert await eventually(lambda: min(clients_of(here), clients_of(there)) == 0)


async def test_a_component_from_before_a_change_works(linked: Linked, there: LocalServer) -> None:
    """A late caller is served at the old server, and displaces no new client."""
    old_client = linked.get(linked.topology.now)
    old = linked.move(there.entry)
    new_client = linked.get(linked.topology.now)
    assert new_client is not old_client
    for client in (linked.get(old), old_client):
        assert linked.get(linked.topology.now) is new_client
        value = client.ping()
        assert await value if not linked.blocks else value


async def test_only_gone_close(own: LocalServers, here: LocalServer, there: LocalServer) -> None:
    held = Clients()
    two = Component("c", shards=(here.entry, there.entry))
    first, second = held.get(two, 0), held.get(two, 1)
    first.ping(), second.ping()
    one = Component("c", shards=(here.entry,))
    assert held.get(one, 0) is first
    assert await eventually(lambda: clients_of(there) == 0)
    with pytest.raises(MissingEntryError, match="config:redis:c:1"):
        held.get(one, 1)
    with pytest.raises(MissingEntryError, match="config:redis:c is missing"):
        held.get(one, None)
    held.close()


async def test_closing_closes_every_connection(linked: Linked, here: LocalServer) -> None:
    await asyncio.gather(*[linked.send(command("c", "k", "SET", n)) for n in range(10)])
    linked.clients.close()
    await linked.clients.aclose()
    gc.collect()
    assert await eventually(lambda: clients_of(here) == 0)


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


async def test_a_cluster_that_is_away_is_a_shard_unavailable(linked: Linked) -> None:
    linked.move(Entry({"host": "127.0.0.1", "port": 1, "cluster": True}))
    if linked.blocks:
        with pytest.raises(ShardUnavailable, match="cannot be reached"):
            linked.get(linked.topology.now)
    [reply, other] = await linked.send(command("c", "k", "GET"), command("c", "j", "SET", 1))
    assert isinstance(reply, ShardUnavailable)
    assert (reply.shard, reply.command) == ("c", "GET")
    assert other.command == "SET"


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


def map_of(port: int, **fields: Any) -> ShardMap:
    return mapped({"port": port, **fields}, "own")


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


async def answers(client: Any) -> list[Any]:
    """What a client of either face gives for all calls, on an empty server."""
    await of(client.flushall())
    found = []
    for method, args, named in CALLS:
        try:
            answer = await of(getattr(client, method)(*args, **named))
            if method == "scan":
                answer = answer[0], sorted(answer[1])
        except (ResponseError, DataError, NoScriptError, UnicodeError, TypeError) as error:
            answer = type(error), str(error).partition(" [own, ")[0]  # the server's name
        found.append((method, answer))
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
    async with opened(kind, map_of(own_server.port, **options)) as face:
        client = await of(face.kit.client("own"))
        assert type(client) is (DirectClient if face.blocks else MultiplexedClient)
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
