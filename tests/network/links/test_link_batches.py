"""Batches over many shards: order, parity with redis-py, and size."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
import redis
from link_helpers import FACES, Face, command, opened
from redis.exceptions import ResponseError

from shardkit import CommandRefused, ShardMap
from shardkit.errors import (
    InvalidArgumentError,
    InvalidKeyError,
    MissingEntryError,
    ShardCountError,
)
from shardkit.local import LocalServers
from shardkit.operations.commands import Command, Home, Locate, Shard, ShardOf
from shardkit.operations.operation import Operation

MANY_SHARDS = """
components:
  wide: {shards: {count: 64, over: [{port: 7001}, {port: 7002}], spread: databases}}
  text: {entry: {port: 7001, db: 40, decode_responses: true}}
  resp3: {entry: {port: 7001, db: 40, protocol: 3}}
  resp3_text: {entry: {port: 7001, db: 40, protocol: 3, decode_responses: true}}
  raw: {entry: {port: 7001, db: 40}}
"""


@pytest.fixture(scope="module")
def wide_map() -> Iterator[ShardMap]:
    with LocalServers(ShardMap.parse(MANY_SHARDS), ports="free") as servers:
        yield servers.shard_map


@pytest_asyncio.fixture(params=FACES)
async def wide(request: pytest.FixtureRequest, wide_map: ShardMap) -> AsyncIterator[Face]:
    async with opened(request.param, wide_map) as found:
        for number in range(64):
            await found.send(Command(Shard("wide", number), "", ("FLUSHDB",)))
        yield found


@pytest.mark.parametrize("component", ["many", "few", "one", "both"])
async def test_a_key_goes_where_the_router_looks_for_it(face: Face, component: str) -> None:
    keys = [f"key:{n}" for n in range(50)]
    await face.send(*[command(component, key, "SET", key) for key in keys])
    place = face.kit.topology.last_known(component).place
    number = None if component == "one" else place
    for key in keys:
        shard = Shard(component, number(key) if number else None)
        assert await face.send(command(shard, key, "GET")) == [key.encode()]


async def test_home_is_the_unsharded_entry_if_there_is_one(face: Face) -> None:
    await face.send(
        command(Home("both"), "count", "SET", 1), command(Home("few"), "count", "SET", 2)
    )
    assert await face.send(command(Shard("both"), "count", "GET")) == [b"1"]
    assert await face.send(command("few", "count", "GET")) == [b"2"]


async def test_a_numbered_shard_of_an_entry_is_the_entry(face: Face) -> None:
    await face.send(*[command(ShardOf("few", n, 4), "part", "SET", n) for n in range(4)])
    for n in range(4):
        assert await face.send(command(Shard("few", n), "part", "GET")) == [str(n).encode()]
    await face.send(command(ShardOf("one", 7, 8), "part", "SET", 7))
    assert await face.send(command("one", "part", "GET")) == [b"7"]


async def test_a_numbered_shard_of_another_number_of_shards_is_refused(face: Face) -> None:
    with pytest.raises(ShardCountError, match="has 4 shards, but this call says 8"):
        await face.send(command(ShardOf("few", 7, 8), "part", "SET", 7))


async def test_many_keys_are_located_where_each_of_them_is(face: Face) -> None:
    keys = [*range(100), *(f"home:{n}" for n in range(100)), *(b"{t}%d" % n for n in range(9))]

    def steps(targets: list[tuple[Any, Any]]) -> Operation[Any]:
        return (yield Locate(targets))

    for to in ("many", "few", "one", "both", Home("both"), Shard("few", 2)):
        together = await face.run(steps([(to, key) for key in keys]))
        assert together == [(await face.run(steps([(to, key)])))[0] for key in keys]
    mixed = [(to, key) for key in keys for to in ("many", "one")]
    assert [shard.component for shard, _ in await face.run(steps(mixed))] == ["many", "one"] * 209


async def test_an_empty_batch_is_an_empty_list(face: Face) -> None:
    assert await face.send() == []


async def test_one_command_takes_the_short_way_and_gives_the_same(face: Face) -> None:
    for to in ("one", "many", Home("both"), Shard("few", 3)):
        assert await face.send(command(to, "k", "SET", "v")) == [b"OK"]
        assert await face.send(command(to, "k", "GET")) == [b"v"]
        [refused] = await face.send(command(to, "k", "LPUSH", 1))
        assert isinstance(refused, CommandRefused)
        assert refused.command == "LPUSH"
        assert isinstance(refused.error, ResponseError)


async def test_batches_reach_64_shards(wide: Face) -> None:
    keys = [f"k{n}" for n in range(3_000)]
    await wide.send(*[command("wide", key, "SET", key) for key in keys])
    place = wide.kit.topology.last_known("wide").place
    assert {place(key) for key in keys} == set(range(64))
    dice = random.Random(2)
    dice.shuffle(keys)
    assert await wide.send(*[command("wide", key, "GET") for key in keys]) == [
        key.encode() for key in keys
    ]


async def test_a_batch_spans_components(face: Face) -> None:
    batch = [command(name, f"k{n}", "SET", n) for n in range(20) for name in ("many", "one", "few")]
    assert await face.send(*batch) == [b"OK"] * 60


def commands(text: str) -> list[tuple[Any, ...]]:
    """The commands of a text, divided by semicolons."""
    return [tuple(each.split()) for each in text.split(";")]


PARITY: list[tuple[Any, ...]] = [
    *commands("""
SET s text
"""),
    ("SET", "s", b"\x00\xff\r\n", "XX", "GET"),
    *commands("""
GET s; GET absent; APPEND s ü; STRLEN s; GETRANGE s 0 -1; SETBIT bits 7 1;
BITFIELD bits GET u8 0 INCRBY i5 100 1; INCRBYFLOAT f 1.5; INCRBY n -3; INCR s; LPUSH n 1;
MSET a 1 b 2.5; MGET a absent b; EXPIRE a 100; TTL absent; PERSIST a; TYPE a; EXISTS a b absent;
RPUSH l 0 1 2 3 4; LRANGE l 0 -1; LPOS l 3; LPOP absent 2; LINSERT l BEFORE 9 1; SADD set x y x;
SMISMEMBER set x z; SCARD set; SPOP absent; HSET h a 1 b 2; HGETALL h; HGETALL absent;
HMGET h a z; HINCRBYFLOAT h a 0.25; ZADD z 1 a 2.5 b inf c; ZRANGE z 0 -1 WITHSCORES;
ZSCORE z absent; ZMSCORE z a absent; ZPOPMIN z; ZADD z nan a; XADD x 1-1 field value;
XRANGE x - +; XREAD COUNT 1 STREAMS x 0; GEOADD g 13.361389 38.115556 Palermo;
GEOPOS g Palermo absent; PFADD p a b; PFCOUNT p; SCAN 0 COUNT 1000 TYPE zset; OBJECT ENCODING l
"""),
    ("EVAL", "return {1, 'two', {3, {err = 'inner'}}, false, 4.9}", 0),
    ("EVAL", "return {err = 'MINE all mine'}", 0),
    ("EVAL", "return redis.call('LPUSH', KEYS[1], 1)", 1, "s"),
    *commands("""
COPY s s2; RENAME absent other; GET; UNLINK a b; DBSIZE; PING
"""),
    ("ECHO", ""),
]


def plain(port: int, db: int, commands: list[tuple[Any, ...]]) -> list[Any]:
    """What redis-py's own connection answers, one command after another."""
    connection = redis.Connection(port=port, db=db, protocol=2)
    replies = []
    for args in commands:
        connection.send_command(*args)
        try:
            replies.append(connection.read_response(disable_decoding=True))
        except ResponseError as error:
            replies.append(error)
    connection.disconnect()
    return replies


def alike(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, Exception):
        error = ours.error if isinstance(ours, CommandRefused) else ours
        return type(error) is type(theirs) and str(error) == str(theirs)
    if isinstance(theirs, list):
        return type(ours) is list and len(ours) == len(theirs) and all(map(alike, ours, theirs))
    return type(ours) is type(theirs) and bool(ours == theirs)


@pytest.mark.parametrize("component", ["raw", "text", "resp3", "resp3_text"])
async def test_user_replies_are_redis_pys(wide: Face, wide_map: ShardMap, component: str) -> None:
    port = wide_map.components["raw"].entry.fields["port"]  # type: ignore[union-attr]
    with redis.Redis(port=port, db=39) as client:
        client.flushdb()
        theirs = plain(port, 39, PARITY)
        for how in ("one by one", "together"):
            client.execute_command("SELECT", 40)
            await wide.send(Command(component, "", ("FLUSHDB",)))
            if how == "together":
                ours = await wide.send(*[Command(component, "", args) for args in PARITY])
            else:
                ours = [(await wide.send(Command(component, "", args)))[0] for args in PARITY]
            differing = [
                (args, mine, his)
                for args, mine, his in zip(PARITY, ours, theirs, strict=True)
                if not alike(mine, his)
            ]
            assert differing == [], how


async def test_deeply_nested_replies_come_through(wide: Face) -> None:
    nested = "return {{{{{{{'deep'}}}}}}}"
    one = Command("raw", "", ("EVAL", nested, 0))
    replies = await wide.send(one, one)
    assert replies == [[[[[[[[b"deep"]]]]]]]] * 2


@pytest.mark.parametrize("bad", [None, True, object(), [1], {"a": 1}, "\ud800"])
async def test_what_cannot_be_sent_is_named_and_nothing_is_sent(face: Face, bad: Any) -> None:
    good = command("many", "k1", "SET", 1)
    for batch in ([command("many", "k2", "SET", bad)], [good, command("many", "k2", "SET", bad)]):
        with pytest.raises(InvalidArgumentError, match=type(bad).__name__):
            await face.send(*batch)
    assert await face.send(command("many", "k1", "GET")) == [None]


@pytest.mark.parametrize("bad", ["\ud800", 10**5_000], ids=["surrogate", "too many digits"])
async def test_an_invalid_argument_refuses_the_whole_batch(face: Face, bad: Any) -> None:
    other = bad if isinstance(bad, int) else "v"
    batch = [command("one", f"k{n}", "SET", value) for n, value in enumerate([other] * 9 + [bad])]
    with pytest.raises(InvalidArgumentError, match="cannot be sent"):
        await face.send(*batch)
    assert await face.send(command("one", "k1", "GET")) == [None]


async def test_a_bad_key_or_shard_is_an_error_and_nothing_is_sent(face: Face) -> None:
    good = command("few", "k", "SET", 1)
    with pytest.raises(InvalidKeyError, match="5 is a float; give a str, bytes or an int"):
        await face.send(good, Command("few", 1.5, ("GET", "x")))  # type: ignore[arg-type]
    with pytest.raises(MissingEntryError, match="config:redis:few:9"):
        await face.send(good, command(Shard("few", 9), "x", "GET"))
    with pytest.raises(MissingEntryError, match="nowhere"):
        await face.send(good, command("nowhere", "x", "GET"))
    assert await face.send(command("few", "k", "GET")) == [None]


async def test_200_000_commands_fit_into_one_batch(face: Face) -> None:
    batch = [command("few", f"k{n % 5000}", "INCR") for n in range(200_000)]
    replies = await face.send(*batch)
    assert not replies.failed
    assert sorted(replies) == sorted(n for n in range(1, 41) for _ in range(5000))


async def test_a_value_of_20_megabytes_goes_and_comes(face: Face) -> None:
    value = random.Random(3).randbytes(20 << 20)
    replies = await face.send(
        command("many", "big", "SET", value),
        *[command("many", f"k{n}", "SET", n) for n in range(100)],
        command("many", "big", "GET"),
        command("many", "big", "STRLEN"),
    )
    assert replies[-2] == value
    assert replies[-1] == len(value)
    assert replies[:-2] == [b"OK"] * 101
    await face.send(command("many", "big", "UNLINK"))


async def test_many_large_replies_and_requests_do_not_get_in_each_others_way(face: Face) -> None:
    megabyte = b"x" * (1 << 20)
    batch = []
    for n in range(48):  # requests and replies are both more than any socket buffers
        batch += [command("few", f"k{n % 4}", "SET", megabyte), command("few", f"k{n % 4}", "GET")]
    replies = await face.send(*batch)
    assert replies[::2] == [b"OK"] * 48
    assert all(reply == megabyte for reply in replies[1::2])
    await face.send(*[command("few", f"k{n}", "UNLINK") for n in range(4)])
