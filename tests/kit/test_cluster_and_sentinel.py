"""The client plane over a real cluster, and over a server that Sentinels watch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio as aioredis
from link_helpers import listed, of, opened

import shardkit
from shardkit import CommandRefused, ShardErrors, ShardKit
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


@pytest.fixture
def kit(own_servers: LocalServers) -> Iterator[ShardKit]:
    with shardkit.connect(own_servers.shard_map) as opened:
        opened.client("archive").flushall()
        opened.client("watched").flushall()
        yield opened


def test_a_kit_shows_the_nodes_of_its_clusters(kit: ShardKit) -> None:
    client: Any = kit.client("archive")
    nodes = sorted(node.name for node in client.get_nodes())
    assert len(nodes) == 3
    assert f"archive <cluster of {', '.join(nodes)}>" in repr(kit)


COMPONENTS = pytest.mark.parametrize("component", ["archive", "watched"])
CLIENTS = {
    ("archive", "blocking"): redis.RedisCluster,
    ("archive", "awaiting"): aioredis.RedisCluster,
    ("watched", "blocking"): redis.Redis,
    ("watched", "awaiting"): aioredis.Redis,
}


async def use(client: Any) -> list[Any]:
    """Some of everything that redis-py's client does with keys, all of them with one tag."""
    done = [
        await of(call)
        for call in (
            client.set("{t}a", 1),
            client.incr("{t}a"),
            client.get("{t}a"),
            client.hset("{t}h", mapping={"f": "v"}),
            client.hgetall("{t}h"),
            client.rpush("{t}l", "a", "b"),
            client.blpop("{t}l", 1),
            client.zadd("{t}z", {"m": 1.5}),
            client.zrange("{t}z", 0, -1, withscores=True),
            client.mset({"{t}b": 2, "{t}c": 3}),
            client.mget("{t}b", "{t}c", "{t}d"),
            client.eval("return redis.call('GET', KEYS[1])", 1, "{t}b"),
            client.register_script("return KEYS[1]")(keys=["{t}s"]),
        )
    ]
    pipe = client.pipeline()
    pipe.get("{t}b")
    pipe.incr("{t}b")
    done.append(await of(pipe.execute()))
    lock = client.lock("{t}lock", timeout=5)
    await of(lock.acquire())
    done.append(await of(client.exists("{t}lock")))
    await of(lock.release())
    done.append(sorted(await listed(client.scan_iter("*{t}*"))))
    return done


USED = [
    *(
        True,
        2,
        b"2",
        1,
        {b"f": b"v"},
        2,
        (b"{t}l", b"a"),
        1,
        [(b"m", 1.5)],
        True,
        [b"2", b"3", None],
    ),
    *(b"2", b"{t}s", [b"2", 3], 1, [b"{t}a", b"{t}b", b"{t}c", b"{t}h", b"{t}l", b"{t}z"]),
]


@COMPONENTS
async def test_decorators_and_routers_hand_out_a_client_that_does_everything(
    kit: ShardKit, own_servers: LocalServers, component: str, kind: str
) -> None:
    def handed(conn: Any, key: str = "") -> Any:
        return conn

    async def ahanded(conn: Any, key: str = "") -> Any:
        return conn

    function = handed if kind == "blocking" else ahanded
    async with opened(kind, own_servers.shard_map) as face:
        router = face.kit.key_sharded(component)
        assert isinstance(router["{t}a"], CLIENTS[component, kind])
        assert isinstance(face.kit.id_pair_sharded(component)[1, 2], CLIENTS[component, kind])
        assert await use(await of(face.kit.redis_connection(component)(function)())) == USED
        kit.client(component).flushall()
        assert await use(await of(face.kit.sharded_connection(component)(function)("{t}"))) == USED
        assert sorted(await listed(router.scan_iter())) == USED[-1]


@COMPONENTS
async def test_pipelines_split_by_slot_and_keep_the_order(
    kit: ShardKit, own_servers: LocalServers, component: str, kind: str
) -> None:
    async with opened(kind, own_servers.shard_map) as face:
        router = face.kit.key_sharded(component)
        check(await of(collected(router.pipeline()).execute(raise_on_error=False)))
        with pytest.raises(ShardErrors) as group:
            await of(router.pipeline().lpush("c", 1).execute())
        assert "WRONGTYPE" in str(group.value)
