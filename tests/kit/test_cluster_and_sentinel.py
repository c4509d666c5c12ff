"""The client plane over a real cluster, and over a server that Sentinels watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
import redis
import redis.asyncio as aioredis

import shardkit
from shardkit import AsyncShardKit, CommandRefused, CrossShardError, ShardErrors, ShardKit, ShardMap
from shardkit.errors import MissingEntryError, RoutingError
from shardkit.local import LocalServers

MAP = """
components:
  archive: {entry: {cluster: true, port: 7301}}
  watched:
    entry: {sentinel: {service: main, sentinels: [[s1, 26379]]}}
    shards:
      - {sentinel: {service: main, sentinels: [[s1, 26379]]}, db: 1}
      - {sentinel: {service: main, sentinels: [[s1, 26379]]}, db: 2}
      - {sentinel: {service: main, sentinels: [[s1, 26379]]}, db: 3}
"""


@pytest.fixture(scope="module")
def local() -> Iterator[LocalServers]:
    with LocalServers(ShardMap.parse(MAP), ports="free") as servers:
        yield servers


@pytest.fixture
def kit(local: LocalServers) -> Iterator[ShardKit]:
    with shardkit.connect(local.shard_map) as opened:
        opened.client("archive").flushall()
        opened.client("watched").flushall()
        yield opened


@pytest_asyncio.fixture
async def akit(kit: ShardKit, local: LocalServers) -> AsyncIterator[AsyncShardKit]:
    async with await shardkit.aconnect(local.shard_map) as opened:
        yield opened


def test_a_kit_shows_the_nodes_of_its_clusters(kit: ShardKit) -> None:
    client: Any = kit.client("archive")
    nodes = sorted(node.name for node in client.get_nodes())
    assert len(nodes) == 3
    assert f"archive <cluster of {', '.join(nodes)}>" in repr(kit)


COMPONENTS = pytest.mark.parametrize("component", ["archive", "watched"])


def use(client: Any) -> list[Any]:
    """Some of everything that redis-py's client does with keys, all of them with one tag."""
    done = [client.set("{t}a", 1), client.incr("{t}a"), client.get("{t}a")]
    done += [client.hset("{t}h", mapping={"f": "v"}), client.hgetall("{t}h")]
    done += [client.rpush("{t}l", "a", "b"), client.blpop("{t}l", 1)]
    done += [client.zadd("{t}z", {"m": 1.5}), client.zrange("{t}z", 0, -1, withscores=True)]
    done += [client.mset({"{t}b": 2, "{t}c": 3}), client.mget("{t}b", "{t}c", "{t}d")]
    done += [client.eval("return redis.call('GET', KEYS[1])", 1, "{t}b")]
    done += [client.register_script("return KEYS[1]")(keys=["{t}s"])]
    with client.pipeline() as pipe:
        pipe.get("{t}b")
        pipe.incr("{t}b")
        done.append(pipe.execute())
    with client.lock("{t}lock", timeout=5):
        done.append(client.exists("{t}lock"))
    done.append(sorted(client.scan_iter("*{t}*")))
    return done


async def ause(client: Any) -> list[Any]:
    done = [await client.set("{t}a", 1), await client.incr("{t}a"), await client.get("{t}a")]
    done += [await client.hset("{t}h", mapping={"f": "v"}), await client.hgetall("{t}h")]
    done += [await client.rpush("{t}l", "a", "b"), await client.blpop("{t}l", 1)]
    done += [await client.zadd("{t}z", {"m": 1.5})]
    done += [await client.zrange("{t}z", 0, -1, withscores=True)]
    done += [await client.mset({"{t}b": 2, "{t}c": 3}), await client.mget("{t}b", "{t}c", "{t}d")]
    done += [await client.eval("return redis.call('GET', KEYS[1])", 1, "{t}b")]
    done += [await client.register_script("return KEYS[1]")(keys=["{t}s"])]
    pipe = client.pipeline()
    pipe.get("{t}b")
    pipe.incr("{t}b")
    done.append(await pipe.execute())
    async with client.lock("{t}lock", timeout=5):
        done.append(await client.exists("{t}lock"))
    done.append(sorted([key async for key in client.scan_iter("*{t}*")]))
    return done


USED = [
    *(True, 2, b"2", 1, {b"f": b"v"}, 2, (b"l", b"a"), 1, [(b"m", 1.5)], True, [b"2", b"3", None]),
    *(b"2", b"{t}s", [b"2", 3], 1, [b"{t}a", b"{t}b", b"{t}c", b"{t}h", b"{t}l", b"{t}z"]),
]
USED[6] = (b"{t}l", b"a")


@COMPONENTS
def test_decorators_and_routers_hand_out_a_client_that_does_everything(
    kit: ShardKit, component: str
) -> None:
    @kit.redis_connection(component)
    def whole(conn: Any) -> Any:
        return use(conn)

    @kit.sharded_connection(component)
    def sharded(conn: Any, key: str) -> Any:
        return use(conn)

    router = kit.key_sharded(component)
    kind = redis.RedisCluster if component == "archive" else redis.Redis
    assert isinstance(router["{t}a"], kind)
    assert isinstance(kit.id_pair_sharded(component)[1, 2], kind)
    assert whole() == USED
    kit.client(component).flushall()
    assert sharded("{t}") == USED
    assert sorted(router.scan_iter()) == USED[-1]


@COMPONENTS
async def test_awaiting_clients_do_everything(akit: AsyncShardKit, component: str) -> None:
    @akit.redis_connection(component)
    async def whole(conn: Any) -> Any:
        return await ause(conn)

    @akit.sharded_connection(component)
    async def sharded(conn: Any, key: str) -> Any:
        return await ause(conn)

    router = akit.key_sharded(component)
    kind = aioredis.RedisCluster if component == "archive" else aioredis.Redis
    assert isinstance(router["{t}a"], kind)
    assert await whole() == USED
    await (await akit.client(component)).flushall()
    assert await sharded("{t}") == USED
    assert sorted([key async for key in router.scan_iter()]) == USED[-1]


def collected(pipe: Any) -> Any:
    for n in range(60):
        pipe.set(f"k{n}", n).incr(f"k{n}")
    keys = [f"k{n}" for n in range(60)]
    pipe.mget(*keys, "none").mset({"a": 1, "b": 2, "c": 3}).mget("c", "b", "a", "c")
    pipe.exists(*keys, "k0", "none").touch("a", "none").delete("k0", "k1", "a").unlink("k2", "b")
    pipe.hset("h", mapping={"f": 1}).hgetall("h").object("encoding", "h").dump("none")
    pipe.sadd("{t}1", "x").sadd("{t}2", "x").sinter("{t}1", "{t}2")
    pipe.rpush("q", "a").blpop("q", 5).blpop("q", 0.01).lpush("c", "wrong").get("c")
    return pipe


def check(replies: list[Any], encoding: bytes = b"listpack") -> None:
    assert replies[:120] == [reply for n in range(60) for reply in (True, n + 1)]
    rest = replies[120:]
    assert rest[0] == [*[str(n + 1).encode() for n in range(60)], None]
    assert rest[1:3] == [True, [b"3", b"2", b"1", b"3"]]
    assert rest[3:7] == [61, 1, 3, 2]
    assert rest[7:11] == [1, {b"f": b"1"}, encoding, None]
    assert rest[11:14] == [1, 1, {b"x"}]
    assert rest[14:17] == [1, (b"q", b"a"), None]
    assert isinstance(rest[17], CommandRefused)
    assert isinstance(rest[17].error, redis.ResponseError)
    assert rest[18:] == [b"3"]


@COMPONENTS
async def test_pipelines_split_by_slot_and_keep_the_order(
    kit: ShardKit, akit: AsyncShardKit, component: str
) -> None:
    check(collected(kit.key_sharded(component).pipeline()).execute(raise_on_error=False))
    kit.client(component).flushall()
    pipe = collected(akit.key_sharded(component).pipeline())
    check(await pipe.execute(raise_on_error=False))
    with pytest.raises(ShardErrors) as group:
        kit.key_sharded(component).pipeline().lpush("c", 1).execute()
    assert "WRONGTYPE" in str(group.value)


def test_a_command_over_several_slots_is_refused(kit: ShardKit) -> None:
    router = kit.key_sharded("archive", shards=16)  # a cluster shards itself: any number will do
    for pipe in (router.pipeline().sinter("a", "b"), router.pipeline().rename("a", "b")):
        with pytest.raises(CrossShardError, match="live on different shards"):
            pipe.set("c", 1).execute()
    with pytest.raises(RoutingError, match="has no key"):
        router.pipeline().set("c", 1).ping().execute()
    assert router["c"].get("c") is None
    assert len(router) == 1
    assert router.group(["a", "b"]) == {0: ["a", "b"]}
    with pytest.raises(MissingEntryError, match="config:redis:archive:1 is missing: component '"):
        router.client(1)


def test_scanning_a_cluster_finds_the_keys_of_all_its_nodes(
    kit: ShardKit, local: LocalServers
) -> None:
    router = kit.key_sharded("archive")
    pipe = router.pipeline()
    for n in range(1000):
        pipe.set(f"k{n}", n)
    pipe.execute()
    sizes = []
    for node in local.clusters["archive"].nodes:
        with node.client() as direct:
            sizes.append(direct.dbsize())
    assert all(sizes)
    assert sorted(router.scan_iter(count=100)) == sorted(f"k{n}".encode() for n in range(1000))

    async def main() -> list[Any]:
        async with await shardkit.aconnect(local.shard_map) as akit:
            return [
                key async for key in akit.key_sharded("archive").scan_iter("k9*", _type="string")
            ]

    assert len(asyncio.run(main())) == 111


def test_structures_work_over_a_cluster_and_behind_sentinels(kit: ShardKit) -> None:
    for component in ("archive", "watched"):
        ids = kit.set("ids", component=component, total=1000, members=int)
        assert ids.sadd_many(range(1000)) == 1000
        assert ids.scard() == 1000
        assert set(ids.smembers()) == set(range(1000))
