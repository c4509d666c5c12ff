"""A pipeline over many shards answers like redis-py's own pipeline on one server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import redis
import redis.asyncio as aioredis
from arranged import map_of
from faces import drawn
from hypothesis import HealthCheck, given, settings, strategies as st
from redis.exceptions import ResponseError

import shardkit
from shardkit import AsyncShardKit, CommandRefused, ShardKit, ShardMap
from shardkit.local import LocalServers

KEYS = [f"k{n}" for n in range(8)]
key = st.sampled_from([*KEYS, b"k0", "k1", 7])
same = st.sampled_from([f"{{tag}}{n}" for n in range(4)])  # these live on one shard
# Whatever part of a text a client that decodes may be given has to be UTF-8: redis-py breaks its
# connection otherwise. So what is no text has keys of its own.
ascii = st.sampled_from(["", "a", "b", b"\x00", "10", 3, -1, 2.5])  # noqa: A001
value = st.one_of(ascii, st.sampled_from(["é", "ü".encode()]))
bits = st.sampled_from(["bits1", "bits2"])
text = st.sampled_from(["", "a", "b", "é", "10"])
field = st.sampled_from(["f", "g", b"h", 1])
number = st.integers(-3, 12)
score = st.sampled_from([0, 1, -2.5, 1e20])
mapping = st.dictionaries(field, value, min_size=1, max_size=3)
scores = st.dictionaries(text, score, min_size=1, max_size=3)
pairs = st.dictionaries(st.sampled_from(KEYS), ascii, min_size=1, max_size=8)
values = st.lists(value, min_size=1, max_size=3)
keys = st.lists(key, max_size=8)
some = st.lists(key, min_size=1, max_size=8)
sames = st.lists(same, min_size=1, max_size=3)
LATER = 4102444800  # the year 2100
flag = st.booleans()


class Call(NamedTuple):
    """A call of a pipeline's method."""

    method: str
    args: tuple[Any, ...]
    options: dict[str, Any]


def call(method: str, *args: Any, **options: Any) -> st.SearchStrategy[Call]:
    return st.builds(
        Call,
        st.just(method),
        st.tuples(*[arg if isinstance(arg, st.SearchStrategy) else st.just(arg) for arg in args]),
        st.fixed_dictionaries(options),
    )


def spread(method: str, *args: Any) -> st.SearchStrategy[Call]:
    """A call whose last argument is spread over several."""
    return st.builds(
        lambda call: Call(call.method, (*call.args[:-1], *call.args[-1]), call.options),
        call(method, *args),
    )


def each(methods: str, *args: Any, calling: Any = call) -> list[st.SearchStrategy[Call]]:
    """Calls of several methods that take the same."""
    return [calling(method, *args) for method in methods.split()]


CALLS = st.one_of(
    *each("get getdel strlen decr type expiretime persist dump", key),
    *each("hgetall hkeys hscan lpop llen smembers scard zcard zscan xlen xrange", key),
    *each("getset setnx append", key, ascii),
    *each("incrby lindex", key, number),
    *each("getrange lrange ltrim", key, number, number),
    *each("lset lrem", key, number, value),
    *each("lpos sismember", key, value),
    *each("zscore zrank", key, text),
    *each("hget hexists hstrlen", key, field),
    *each("rename renamenx rpoplpush", same, same),
    *each("sinter sunion", sames),
    *each("sdiffstore zinterstore", same, sames),
    *each("mget delete unlink exists touch", some, calling=spread),
    *each("rpush lpush sadd srem", key, values, calling=spread),
    call("set", key, ascii, nx=flag, get=flag),
    call("set", key, ascii, xx=flag, exat=st.just(LATER)),
    call("getex", key, persist=st.just(True)),
    call("setrange", key, st.integers(0, 9), ascii),
    call("incrbyfloat", key, st.sampled_from([0.5, 1])),
    call("setbit", bits, st.integers(0, 20), st.integers(0, 1)),
    call("getbit", bits, st.integers(0, 20)),
    call("bitcount", bits),
    call("bitpos", bits, 1),
    call("expireat", key, LATER),
    call("object", "encoding", key),
    call("copy", same, same, replace=flag),
    call("sort", key, alpha=st.just(True)),
    call("sort", same, alpha=st.just(True), store=same),
    call("mget", keys),
    call("mset", pairs),
    call("hset", key, mapping=mapping),
    call("hmget", key, st.lists(field, min_size=1, max_size=3)),
    spread("hdel", key, st.lists(field, min_size=1, max_size=2)),
    call("hincrby", key, field, number),
    call("hincrbyfloat", key, field, 0.5),
    call("rpop", key, st.integers(1, 3)),
    call("linsert", key, "BEFORE", value, value),
    call("lmove", same, same, "LEFT", "RIGHT"),
    call("smismember", key, values),
    call("smove", same, same, value),
    call("zadd", key, scores, gt=flag, ch=flag),
    call("zadd", key, scores, nx=flag),
    call("zincrby", key, 1.5, text),
    call("zmscore", key, st.lists(text, min_size=1, max_size=3)),
    call("zrange", key, number, number, withscores=flag, desc=flag),
    call("zrangebyscore", key, "-inf", "+inf", withscores=flag),
    call("zrevrangebylex", key, "+", "-"),
    call("zcount", key, "-inf", 1),
    spread("zrem", key, st.lists(text, min_size=1, max_size=2)),
    call("zpopmin", key, st.integers(1, 2)),
    call("zunion", sames, withscores=flag),
    call("zrangestore", same, same, 0, -1),
    call("pfadd", "{hll}1", value),
    call("pfcount", "{hll}1"),
    call("pfmerge", "{hll}2", "{hll}1"),
    call("geoadd", key, st.just((13.361389, 38.115556, "p"))),
    call("geopos", key, "p"),
    call("xadd", key, mapping, id=st.sampled_from(["1-1", "2-1", "3-1"])),
    call("xread", st.dictionaries(key, st.sampled_from(["0", "1-1"]), min_size=1)),
    call("eval", "return {KEYS[1], ARGV[1], 1}", 1, key, text),
    call("eval", "return redis.error_reply('MINE ' .. KEYS[1])", 1, key),
    call("execute_command", "get", key),
    call("execute_command", b"HGETALL", key),
    call("execute_command", "OBJECT", "ENCODING", key),
)

UNORDERED = {"smembers", "sinter", "sunion", "hgetall", "hkeys", "hscan", "zscan"}


def told(method: str, reply: Any) -> Any:
    """A reply as it can be compared: errors by what they say."""
    if isinstance(reply, CommandRefused):
        reply = reply.error
    if isinstance(reply, ResponseError):
        return type(reply).__name__, str(reply).partition(" [")[0]  # where a client got it
    if method in UNORDERED and isinstance(reply, list):
        return sorted(reply, key=repr)
    return type(reply), reply


FORMS = [
    {},
    {"decode_responses": True},
    {"protocol": 3},
    {"protocol": 3, "decode_responses": True},
]


@pytest.fixture(scope="module", params=FORMS, ids=["bytes", "text", "resp3", "resp3 text"])
def form(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.param
    return found


@pytest.fixture(scope="module")
def one(servers: LocalServers, form: dict[str, Any]) -> dict[str, Any]:
    """A database that nobody else uses."""
    return {**servers.server_of("one").entry.fields, "db": 9, "protocol": 2, **form}


@pytest.fixture(scope="module")
def sharded(servers: LocalServers, form: dict[str, Any]) -> ShardMap:
    """Seven shards in databases that nobody else uses, three of them on one server."""
    shards = [
        {**servers.server_of("many", n % 4).entry.fields, "db": 13 + n // 4 % 2, **form}
        for n in range(7)
    ]
    seven = map_of(seven={"shards": shards})
    assert len({shard.address for shard in seven.components["seven"].shards}) == 7
    return seven


@pytest.fixture(scope="module")
def over_many(sharded: ShardMap) -> Iterator[ShardKit]:
    with shardkit.connect(sharded) as kit:
        yield kit


def fill(pipe: Any, calls: list[Call]) -> Any:
    for each in calls:
        assert getattr(pipe, each.method)(*each.args, **each.options) is pipe
    assert len(pipe) == len(calls)
    return pipe


def check(calls: list[Call], expected: list[Any], got: list[Any]) -> None:
    assert len(got) == len(calls)
    for each, want, have in zip(calls, expected, got, strict=True):
        assert told(each.method, have) == told(each.method, want), each


SETTINGS = settings(
    max_examples=drawn(12, 40),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@SETTINGS
@given(calls=st.lists(CALLS, min_size=1, max_size=40))
def test_random_commands_have_the_replies_of_one_server(
    one: dict[str, Any], over_many: ShardKit, calls: list[Call]
) -> None:
    with redis.Redis(**one) as plain:
        plain.flushdb()
        for client in over_many.key_sharded("seven"):
            client.flushdb()
        expected = fill(plain.pipeline(transaction=False), calls).execute(raise_on_error=False)
    got = fill(over_many.key_sharded("seven").pipeline(), calls).execute(raise_on_error=False)
    check(calls, expected, got)


@pytest.mark.long(2)
@SETTINGS
@given(calls=st.lists(CALLS, min_size=1, max_size=40))
def test_random_commands_have_the_replies_of_one_server_awaiting(
    one: dict[str, Any], sharded: ShardMap, calls: list[Call]
) -> None:
    async def main() -> tuple[list[Any], list[Any]]:
        async with (
            aioredis.Redis(**one) as plain,
            await shardkit.aconnect(sharded) as kit,
        ):
            await plain.flushdb()
            for client in kit.key_sharded("seven"):
                await client.flushdb()
            pipe = fill(plain.pipeline(transaction=False), calls)
            expected = await pipe.execute(raise_on_error=False)
            return expected, await akit_execute(kit, calls)

    check(calls, *asyncio.run(main()))


async def akit_execute(kit: AsyncShardKit, calls: list[Call]) -> list[Any]:
    pipe = fill(kit.key_sharded("seven").pipeline(), calls)
    return await pipe.execute(raise_on_error=False)
