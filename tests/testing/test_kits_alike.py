"""A kit in memory behaves as one on real servers: the same tests on both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio as aioredis
from redis.exceptions import NoScriptError, ResponseError

from shardkit.config.shard_map import ShardMap
from shardkit.errors import (
    CommandRefused,
    CrossShardError,
    DamagedDataError,
    ShardErrors,
)
from shardkit.kit.kit import AsyncShardKit, ShardKit
from shardkit.local import LocalServers
from shardkit.network.connections import Connector
from shardkit.operations.commands import Command, Script, Shard, Transaction, script_call
from shardkit.testing.kits import opened
from shardkit.testing.memory import MemoryServers

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


@pytest.fixture
async def akit(ground: Ground) -> AsyncIterator[AsyncShardKit]:
    with opened(AsyncShardKit, *ground) as kit:
        yield kit
        await kit.aclose()


def test_pipelines_split_and_merge(kit: ShardKit) -> None:
    router = kit.key_sharded("many", shards=16)
    pipe = router.pipeline()
    for n in range(50):
        pipe.set(f"k{n}", n)
    pipe.mget("k1", "nope", "k49").delete("k1", "k2", "nope").hset("h", mapping={"a": 1}).hgetall(
        "h"
    )
    *stored, values, deleted, fields, found = pipe.execute()
    assert stored == [True] * 50
    assert (values, deleted, fields, found) == ([b"1", None, b"49"], 2, 1, {b"a": b"1"})
    assert len(set(router.scan_iter("k*"))) == 48
    with pytest.raises(CrossShardError, match="1, SINTER: the keys live on different shards"):
        pipe.sinter("a", "b", "c", "d", "e").execute()
    wrong, right = pipe.incr("h").incr("n").execute(raise_on_error=False)
    assert isinstance(wrong, CommandRefused)
    assert "WRONGTYPE" in str(wrong) or "wrong kind of value" in str(wrong)
    assert right == 1


async def test_awaiting_pipelines_split_and_merge(akit: AsyncShardKit) -> None:
    pipe = akit.key_sharded("few").pipeline()
    pipe.mset({f"k{n}": n for n in range(9)}).mget([f"k{n}" for n in range(9)]).zadd("z", {"a": 1})
    pipe.zrange("z", 0, -1, withscores=True).exists("k1", "k2", "nope").getdel("k1")
    stored, values, added, scored, there, taken = await pipe.execute()
    assert (stored, added, there, taken) == (True, 1, 2, b"1")
    assert values == [str(n).encode() for n in range(9)]
    assert scored == [(b"a", 1.0)]


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


def test_scripts_are_loaded_where_they_are_missing(kit: ShardKit) -> None:
    link = kit.driver.link
    keys = [f"n{n}" for n in range(40)]
    for turn in (1, 2, 3):
        replies = link.send([script_call("many", ADD, [key], [2]) for key in keys])
        assert replies == [2 * turn] * 40
        for client in kit.key_sharded("many"):
            client.script_flush()
    with pytest.raises(NoScriptError, match="No matching script"):
        kit.client("one").evalsha(ADD.sha, 1, "n", 1)


async def test_transactions_are_whole_and_failures_are_values(akit: AsyncShardKit) -> None:
    incr = Command("one", "n", ("INCR", "n"))
    wrong = Command("one", "n", ("LPUSH", "n", "x"))
    call = script_call("one", ADD, ["n"], [5])
    link = akit.driver.link
    [done] = await link.send([Transaction("one", "n", (incr, wrong, call))])
    assert [done[0], done[2]] == [1, 6]
    assert isinstance(done[1], CommandRefused)
    unknown = Command("one", "n", ("NOSUCH",))
    aborted, after = await link.send([Transaction("one", "n", (incr, unknown)), incr])
    assert isinstance(aborted, CommandRefused)
    assert isinstance(aborted.error, ResponseError)
    assert after == 7
    shards = [Command(Shard("few", n), "k", ("INCR", "k")) for n in range(4)]
    assert await link.send([*shards, wrong][:4]) == [1, 1, 1, 1]


def test_an_operations_failure_is_one_group(kit: ShardKit) -> None:
    ids = kit.set("ids", component="one", total=100, members=int)
    ids.sadd(7)
    kit.client("one").delete(ids.key_of(7))
    kit.client("one").set(ids.key_of(7), "no set")
    with pytest.raises(
        DamagedDataError, match="ids:0 is damaged: a value of another type"
    ) as raised:
        ids.sadd(7)
    cause = raised.value.__cause__
    assert isinstance(cause, ShardErrors)
    assert [type(error) for error in cause.exceptions] == [CommandRefused]
    assert cause.exceptions[0].shard == "one"


async def test_a_command_that_blocks_waits_beside_the_others(akit: AsyncShardKit) -> None:
    link = akit.driver.link
    pop = Command("one", "q", ("BLPOP", "q", 10), block=10)
    push = Command("one", "q", ("RPUSH", "q", "x"))
    waiting = asyncio.create_task(link.send([pop]))
    await asyncio.sleep(0.01)  # it has been sent; in either order both end
    assert await link.send([push]) == [1]
    assert await waiting == [[b"q", b"x"]]
    assert await link.send([Command("one", "q", ("BLPOP", "q", 0.01), block=0.01)]) == [None]
