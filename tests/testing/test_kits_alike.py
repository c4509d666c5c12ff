"""A kit in memory behaves as one on real servers: the same tests on both."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio as aioredis
from faces import Face, faced
from redis.exceptions import NoScriptError, ResponseError

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.errors import (
    CommandRefused,
    CrossShardError,
    DamagedDataError,
    ShardErrors,
)
from shardkit.local import LocalServers
from shardkit.network.connections import Connector
from shardkit.operations import Command, Script, Shard, Transaction
from shardkit.operations.commands import script_call
from shardkit.testing import MemoryServers
from shardkit.testing.kits import opened

ADD = Script("add", "return redis.call('INCRBY', KEYS[1], ARGV[1])")

Ground = tuple[ShardMap, Connector]


@pytest.fixture(params=["servers", "memory"])
def ground(request: pytest.FixtureRequest, servers: LocalServers) -> Ground:
    """What to open a kit with: real servers, or the same in memory."""
    if request.param == "servers":
        return request.getfixturevalue("shard_map"), Connector()
    memory = MemoryServers(servers.shard_map)
    return memory.shard_map, memory


@pytest.fixture
def kit(ground: Ground) -> Iterator[ShardKit]:
    with opened(ShardKit, *ground) as kit:
        yield kit


@pytest.fixture(params=["blocking", "awaiting"])
def face(request: pytest.FixtureRequest, ground: Ground) -> Iterator[Face]:
    with faced(request.param, ground[0], connector=ground[1]) as opened:
        yield opened


def test_pipelines_split_and_merge(face: Face) -> None:
    router = face.kit.key_sharded("many", shards=16)
    pipe = router.pipeline()
    pipe.mset({f"k{n}": n for n in range(50)}).set("k0", 7)
    pipe.mget("k1", "nope", "k49").delete("k1", "k2", "nope").exists("k1", "k3", "k4").getdel("k0")
    pipe.hset("h", mapping={"a": 1}).hgetall("h").zadd("z", {"a": 1})
    pipe.zrange("z", 0, -1, withscores=True)
    assert face.run(pipe.execute()) == [
        *(True, True, [b"1", None, b"49"], 2, 2, b"7"),
        *(1, {b"a": b"1"}, 1, [(b"a", 1.0)]),
    ]
    assert len(set(face.list(router.scan_iter("k*")))) == 47
    with pytest.raises(CrossShardError, match="1, SINTER: the keys live on different shards"):
        face.run(pipe.sinter("a", "b", "c", "d", "e").execute())
    wrong, right = face.run(pipe.incr("h").incr("n").execute(raise_on_error=False))
    assert isinstance(wrong, CommandRefused)
    assert "WRONGTYPE" in str(wrong) or "wrong kind of value" in str(wrong)
    assert right == 1


async def test_decorators_hand_out_redis_pys_clients(kit: ShardKit) -> None:
    @kit.sharded_connection("many", shards=16)
    def put(conn: redis.Redis, key: str, value: str) -> Any:
        return conn.set(key, value)

    @kit.sharded_connection("many", key="key")
    async def get(conn: aioredis.Redis, default: str, *, key: str) -> str:
        found: bytes | None = await conn.get(key)
        return default if found is None else found.decode()

    @kit.redis_connection("one")
    def count(conn: redis.Redis) -> Iterator[int]:
        for _ in range(3):
            yield conn.incr("n")

    for n in range(30):
        assert put(f"k{n}", str(n)) is True
    assert await asyncio.gather(*(get("-", key=f"k{n}") for n in range(31))) == [
        *map(str, range(30)),
        "-",
    ]
    assert list(count()) == [1, 2, 3]
    await kit.aclose()


def test_scripts_are_loaded_where_they_are_missing(face: Face) -> None:
    link = face.kit.driver.link
    keys = [f"n{n}" for n in range(40)]
    for turn in (1, 2, 3):
        calls = [script_call("many", ADD, [key], [2]) for key in keys]
        assert face.run(link.send(calls)) == [2 * turn] * 40
        for n in range(16):
            face.run(face.run(face.kit.client("many", n)).script_flush())
    client = face.run(face.kit.client("one"))
    with pytest.raises(NoScriptError, match="No matching script"):
        face.run(client.evalsha(ADD.sha, 1, "n", 1))


def test_transactions_are_whole_and_failures_are_values(face: Face) -> None:
    incr = Command("one", "n", ("INCR", "n"))
    wrong = Command("one", "n", ("LPUSH", "n", "x"))
    call = script_call("one", ADD, ["n"], [5])
    send = face.kit.driver.link.send
    [done] = face.run(send([Transaction("one", "n", (incr, wrong, call))]))
    assert [done[0], done[2]] == [1, 6]
    assert isinstance(done[1], CommandRefused)
    unknown = Command("one", "n", ("NOSUCH",))
    aborted, after = face.run(send([Transaction("one", "n", (incr, unknown)), incr]))
    assert isinstance(aborted, CommandRefused)
    assert isinstance(aborted.error, ResponseError)
    assert after == 7
    shards = [Command(Shard("few", n), "k", ("INCR", "k")) for n in range(4)]
    assert face.run(send(shards)) == [1, 1, 1, 1]


def test_an_operations_failure_is_one_group(face: Face) -> None:
    ids = face.kit.set("ids", component="one", total=100, members=int)
    face.run(ids.sadd(7))
    client = face.run(face.kit.client("one"))
    face.run(client.delete(ids.key_of(7)))
    face.run(client.set(ids.key_of(7), "no set"))
    with pytest.raises(
        DamagedDataError, match="ids:0 is damaged: a value of another type"
    ) as raised:
        face.run(ids.sadd(7))
    cause = raised.value.__cause__
    assert isinstance(cause, ShardErrors)
    assert [type(error) for error in cause.exceptions] == [CommandRefused]
    assert cause.exceptions[0].shard == "one"


async def test_a_command_that_blocks_waits_beside_the_others(ground: Ground) -> None:
    pop = Command("one", "q", ("BLPOP", "q", 10), block=10)
    push = Command("one", "q", ("RPUSH", "q", "x"))
    async with await shardkit.aconnect(ground[0], connector=ground[1]) as kit:
        link = kit.driver.link
        waiting = asyncio.create_task(link.send([pop]))
        await asyncio.sleep(0.01)  # it has been sent; in either order both end
        assert await link.send([push]) == [1]
        assert await waiting == [[b"q", b"x"]]
        assert await link.send([Command("one", "q", ("BLPOP", "q", 0.01), block=0.01)]) == [None]
