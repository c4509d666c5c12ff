"""LuaScript on every kind of connection that redis-py has and we hand out."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
import redis
import redis.asyncio as aioredis
from faces import Face, own_client
from link_helpers import count_of, of, opened

import shardkit
from shardkit import AsyncShardKit, LuaScript, ShardKit, ShardMap, from_json, to_json
from shardkit.dashboard import FleetWatch
from shardkit.errors import ConfigError, InvalidArgumentError, ShardErrors
from shardkit.local import LocalCluster, LocalSentinel, LocalServer, LocalServers
from shardkit.network.health import wsgi
from shardkit.network.replicas import ReadFrom
from shardkit.structures import Degrees, FixedBytes, Float, Signed, Tokens, Unsigned, Zstd

BUMP = LuaScript("return redis.call('INCRBY', KEYS[1], ARGV[1])", "bump")
SHOW = LuaScript("return {KEYS, ARGV}")
ECHO = LuaScript("return cjson.encode(cjson.decode(ARGV[1]))")


def flush_scripts(servers: LocalServers) -> None:
    for server in servers.servers:
        with server.client() as client:
            client.script_flush()


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


@pytest.mark.parametrize(
    ("keys", "args"),
    [
        (["a", "b"], ["1"]),
        (("a", "b"), ("1",)),
        (iter(["a", "b"]), (str(n) for n in [1])),
        ({"a": 1, "b": 2}, {"1": 1}.values()),
        ([b"a", "b"], [1]),
    ],
)
def test_keys_and_args_are_any_sequence(kit: ShardKit, keys: Any, args: Any) -> None:
    client = kit.client("one")
    assert SHOW(client, keys, args) == [[b"a", b"b"], [b"1"]]
    assert SHOW(client) == [[], []]


@pytest.mark.parametrize("wrong", [{"keys": "key"}, {"keys": b"key"}, {"args": "value"}])
def test_a_single_text_is_no_list_of_its_letters(kit: ShardKit, wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="single text"):
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


@pytest.mark.parametrize("text", ["return {KEYS[1], ARGV[1]}", b"return {KEYS[1], ARGV[1]}"])
async def test_pipelines_over_shards_load_a_registered_script(
    kind: str, shard_map: ShardMap, servers: LocalServers, text: str | bytes
) -> None:
    async with opened(kind, shard_map) as face:
        script = (await of(face.kit.client("one"))).register_script(text)
        pipe = face.kit.key_sharded("many").pipeline()
        for _ in range(2):
            for n in range(30):
                assert await of(script(keys=[f"k{n}"], args=[n], client=pipe)) is pipe
            replies = await of(pipe.get("k1").execute())
            assert replies == [*([b"k%d" % n, b"%d" % n] for n in range(30)), None]
            flush_scripts(servers)


def test_a_script_registered_elsewhere_is_refused_with_a_remedy(kit: ShardKit) -> None:
    pipe = kit.key_sharded("many").pipeline()
    script: Any = redis.Redis().register_script("return 'elsewhere'")
    script(keys=["k"], client=pipe)
    with pytest.raises(ShardErrors, match="1 shard failed") as refused:
        pipe.execute()
    assert "has not loaded the script; call a shardkit.LuaScript" in str(refused.value)


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


def test_an_integer_of_thousands_of_digits_is_refused_wherever_it_is_given(face: Face) -> None:
    big, kit = 10**5000, face.kit
    router = kit.key_sharded("many")
    face.run(router.mget(["k"]))
    client: Any = own_client(kit, "one") if face.runner is None else None
    lock = face.run(kit.lock("l", component="one").acquire())

    async def by_client() -> None:
        await own_client(kit, "one").set("k", big)

    calls: list[Callable[[], Any]] = [
        lambda: router.mset({"k": big}),
        lambda: router.mset({str(n): big for n in range(100)}),
        lambda: router.pipeline().set("k", -big).execute(),
        lambda: lock.guard("one").execute(("SET", "k", big)),
        lambda: kit.hash("h", component="one").hset("k", big),
        by_client if client is None else lambda: client.set("k", big),
    ]
    if client is not None:
        calls += [
            lambda: client.pipeline().set("k", big).execute(),
            lambda: client.pubsub().subscribe(big),
            lambda: client.blpop("k", big),
        ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match=r"an? integer .*cannot be sent|give"):
            face.run(call())
    assert face.run(router.mget(["k"])) == [None]


NUMBERS: list[Any] = [10**5000, -(10**5000), 10**400, math.nan, -math.inf]
OTHERS: list[Any] = [Decimal(1), Decimal("nan"), Fraction(1, 2), "5", 1j, [5]]
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "deadline": lambda kit, bad: kit.deadline(bad),
    "durable": lambda kit, bad: kit.durable(timeout=bad),
    "replicas": lambda kit, bad: kit.durable(replicas=bad),
    "health": lambda kit, bad: kit.health(bad),
    "shard": lambda kit, bad: kit.client("many", bad),
    "shards": lambda kit, bad: kit.key_sharded("many", bad),
    "max_age": lambda kit, bad: kit.redis_connection("one", max_age=bad),
    "ttl": lambda kit, bad: kit.cached("one", ttl=bad, key="k")(int)(1),
    "averages_ttl": lambda kit, bad: kit.ads(component="one", averages_ttl=bad),
    "weight": lambda kit, bad: kit.search(component="one", fields={"text": bad}),
    "sort": lambda kit, bad: kit.search(component="one").search("x", sort={"relevance": bad}),
    "wait": lambda kit, bad: kit.rate_limit("r", component="one", limit=1).wait("k", timeout=bad),
    "amount": lambda kit, bad: kit.hash("h", component="one").hincrbyfloat("k", bad),
    "value": lambda kit, bad: kit.statistics(component="one").record("a", "b", bad),
    "older_than": lambda kit, bad: kit.social(component="one", parts=1).repair(older_than=bad),
    "max_lag": lambda kit, bad: ReadFrom("replica", max_lag=bad),
    "threshold": lambda kit, bad: wsgi(kit, threshold=bad),
    "interval": lambda kit, bad: FleetWatch(kit, interval=bad),
    "masters": lambda kit, bad: LocalCluster(bad),
    "down_after": lambda kit, bad: LocalSentinel(down_after=bad),
    "databases": lambda kit, bad: LocalServer(databases=bad),
    **{
        made.__name__: lambda kit, bad, made=made: made(bad)
        for made in (Unsigned, Signed, Float, FixedBytes, Tokens, Zstd)
    },
    "Degrees": lambda kit, bad: Degrees("lat", bad),
    "size": lambda kit, bad: Zstd(size=bad),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_number_is_refused(face: Face, name: str) -> None:
    for bad in NUMBERS + OTHERS:
        with pytest.raises(InvalidArgumentError, match=r"give|use"):
            face.run(CALLS[name](face.kit, bad))


@pytest.mark.parametrize("option", ["deadline", "heat"])
def test_options_of_a_kit_that_are_no_numbers_are_refused(
    shard_map: shardkit.ShardMap, option: Any
) -> None:
    for bad in (*NUMBERS, "x"):
        with pytest.raises((InvalidArgumentError, ConfigError), match=r"give|use"):
            shardkit.connect(shard_map, **{option: bad})
