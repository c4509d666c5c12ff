"""LuaScript on every kind of connection that redis-py has and we hand out."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import redis
import redis.asyncio as aioredis
from arranged import ask
from link_helpers import count_of, of, opened

from shardkit import AsyncShardKit, LuaScript, ShardKit, ShardMap, from_json, to_json
from shardkit.errors import InvalidArgumentError, RoutingError
from shardkit.local import LocalCluster, LocalServers

BUMP = LuaScript("return redis.call('INCRBY', KEYS[1], ARGV[1])", "bump")
SHOW = LuaScript("return {KEYS, ARGV}")
ECHO = LuaScript("return cjson.encode(cjson.decode(ARGV[1]))")


def flush_scripts(servers: LocalServers) -> None:
    for server in servers.servers:
        ask(server, "script_flush")


async def test_a_script_is_called_like_a_function(
    kind: str, shard_map: ShardMap, servers: LocalServers
) -> None:
    keys = [f"k{n}" for n in range(40)]
    async with opened(kind, shard_map) as face:
        router = face.kit.key_sharded("many")
        for n in (1, 2, 3):
            pending = [BUMP(router[key], [key], [1]) for key in keys]
            assert [inspect.iscoroutine(each) for each in pending] == [not face.blocks] * 40
            assert [await of(each) for each in pending] == [n] * 40
            flush_scripts(servers)
        client = await of(face.kit.client("one"))
        assert await of(BUMP(client, keys=("k",), args=("5",))) == 5
        assert await of(BUMP(client, ["k"], [1], force_eval=True)) == 6


def test_the_text_goes_only_where_it_is_missing(kit: ShardKit, servers: LocalServers) -> None:
    client, server = kit.client("one"), servers.server_of("one")
    before = count_of(server, "eval"), count_of(server, "evalsha")
    for _ in range(5):
        BUMP(client, ["k"], [1])
    assert (count_of(server, "eval") - before[0], count_of(server, "evalsha") - before[1]) == (1, 5)
    BUMP(client, ["k"], [1], force_eval=True)
    assert count_of(server, "eval") - before[0] == 2


@pytest.mark.parametrize("wrong", [{"keys": "key"}, {"keys": b"key"}, {"args": "value"}])
def test_a_single_text_is_no_list_of_its_letters(kit: ShardKit, wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"(keys|args)=.*; give a list"):
        SHOW(kit.client("one"), **wrong)


def test_a_script_shows_its_name_and_the_beginning_of_its_hash() -> None:
    assert re.fullmatch(r"LuaScript\('bump', sha=[0-9a-f]{8}\)", repr(BUMP))
    assert BUMP.script.sha[:8] in repr(BUMP)


def test_an_error_of_the_script_is_raised_and_not_taken_for_a_missing_one(kit: ShardKit) -> None:
    failing = LuaScript("redis.call('INCR', KEYS[1]); return redis.call('LPUSH', KEYS[1], 1)")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        failing(kit.client("one"), ["k"])
    assert kit.client("one").get("k") == b"1"  # executed once
    saying = LuaScript("return redis.error_reply('ERR NOSCRIPT is what I say')")
    with pytest.raises(redis.ResponseError, match="NOSCRIPT is what I say"):
        saying(kit.client("one"))


# ---- pipelines


@pytest.mark.parametrize("transaction", [True, False])
async def test_pipelines_of_redis_py_collect_it(
    kind: str, shard_map: ShardMap, servers: LocalServers, transaction: bool
) -> None:
    async with opened(kind, shard_map) as face:
        client = await of(face.kit.client("one"))
        for n in (0, 10):
            flush_scripts(servers)
            pipe = client.pipeline(transaction=transaction)
            pipe.set("k", n)
            assert BUMP(pipe, ["k"], [1]) is pipe
            BUMP(BUMP(pipe, ["k"], [1]), ["k"], [1]).get("k")
            assert await of(pipe.execute()) == [True, n + 1, n + 2, n + 3, str(n + 3).encode()]


async def test_many_shards_refuse_to_register_a_script_with_one(
    kind: str, shard_map: ShardMap
) -> None:
    async with opened(kind, shard_map) as face:
        router = face.kit.key_sharded("many")
        for asked in (router.all, router.pipeline()):
            with pytest.raises(RoutingError, match=r"LuaScript"):
                asked.register_script("return 1")
            with pytest.raises(RoutingError, match=r"^ACL SETUSER"):
                await of(asked.acl_setuser("ada"))


# ---- a cluster


async def test_clusters_and_their_pipelines_take_it(cluster: LocalCluster) -> None:
    keys = [f"k{n}" for n in range(30)]
    with cluster.client() as client:
        for n in (1, 2):
            assert [BUMP(client, [key], [1]) for key in keys] == [n] * 30
        with client.pipeline() as pipe:
            for key in keys:
                assert BUMP(pipe, [key], [1]) is pipe
            assert pipe.execute() == [3] * 30
    node = cluster.nodes[0]
    async with aioredis.RedisCluster(host="127.0.0.1", port=node.port) as acluster:
        assert [await BUMP(acluster, [key], [1]) for key in keys] == [4] * 30
        async with acluster.pipeline() as apipe:
            for key in keys:
                assert BUMP(apipe, [key], [1]) is apipe
            assert await apipe.execute() == [5] * 30


# ---- operations


# ---- JSON


@pytest.mark.parametrize(
    "value",
    [
        1.5,
        -0.25,
        "ü\n\"'",
        True,
        {"a": {"b": [1, 2.5, "x"]}},
        [1, [2, [3]]],
        {},
        2**53 - 1,
        [False],
    ],
)
def test_values_go_to_lua_and_come_back_as_json(kit: ShardKit, value: Any) -> None:
    assert from_json(to_json(value)) == value
    if value != 2**53 - 1:  # cjson writes 14 digits
        assert from_json(ECHO(kit.client("one"), args=[to_json(value)])) == value


def test_nil_is_none_also_through_json() -> None:
    assert from_json(None) is None
    assert from_json(b"null") is None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({1, 2}, "set is not JSON serializable"),
        (b"x", "bytes is not JSON serializable"),
        (float("nan"), "Out of range float values"),
        (float("inf"), "Out of range float values"),
        ({1: 2}, "1 cannot be a key of a JSON object"),
        (2**53, "9007199254740992 is too large"),
        ([-(2**60)], "-1152921504606846976 is too large"),
    ],
)
def test_what_json_or_lua_cannot_hold_is_refused(value: Any, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        to_json(value)


def test_a_reply_that_is_no_json_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="cjson"):
        from_json(b"not json")


async def test_a_script_that_answers_noscript_itself_runs_once(
    kit: ShardKit, akit: AsyncShardKit
) -> None:
    odd = LuaScript("redis.call('INCR', KEYS[1]) return {err='NOSCRIPT of mine'}")
    conn, aconn = kit.client("one"), await akit.client("one")
    conn.script_load(odd.script.text)
    for n in (1, 3):
        with pytest.raises(redis.ResponseError, match="of mine"):
            odd(conn, ["n"])
        with pytest.raises(redis.ResponseError, match="of mine"):
            await odd(aconn, ["n"])
        assert conn.get("n") == str(n + 1).encode()


async def test_a_registered_script_runs_once_by_its_hash_and_by_its_text_where_it_is_missing(
    kind: str, shard_map: ShardMap, servers: LocalServers
) -> None:
    flush_scripts(servers)
    async with opened(kind, shard_map) as face:
        client = await of(face.kit.client("one"))
        sha = client.register_script("return redis.call('INCR', KEYS[1])").sha
        assert await of(client.evalsha(sha, 1, "r")) == 1
        odd = client.register_script("redis.call('INCR', 'r') return {err='NOSCRIPT of mine'}").sha
        await of(client.script_load("redis.call('INCR', 'r') return {err='NOSCRIPT of mine'}"))
        with pytest.raises(redis.ResponseError, match=r"of mine"):
            await of(client.evalsha(odd, numkeys=0))
        assert await of(client.get("r")) == b"2"
