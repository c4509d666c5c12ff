"""Entries written by hand as the book does, without a count; and how old an entry may be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import pytest
import redis
from topology_helpers import Clock, settle

import shardkit
from shardkit.errors import (
    InvalidArgumentError,
    MissingEntryError,
    ShardCountError,
)
from shardkit.local import LocalServer

COUNT = 16


@pytest.fixture(scope="module")
def running() -> Iterator[LocalServer]:
    with LocalServer(name="config", databases=20) as server:
        yield server


@pytest.fixture
def config(running: LocalServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """The config server with 16 entries, in its own databases 1 to 16, and no count."""
    with running.client() as client:
        client.flushall()
        for n in range(COUNT):
            write(client, running, n)
        yield client


def write(client: redis.Redis, running: LocalServer, n: int, **more: Any) -> None:
    entry = {"host": "127.0.0.1", "port": running.port, "db": n + 1, **more}
    client.set(f"config:redis:unique:{n}", json.dumps(entry))


@pytest.fixture
def kit(running: LocalServer, config: redis.Redis) -> Iterator[Any]:
    with shardkit.connect(url(running)) as opened:
        yield opened


def url(running: LocalServer) -> str:
    return f"redis://{running.address}"


def test_a_given_count_is_served_in_each_way(running: LocalServer, kit: Any) -> None:
    @kit.sharded_connection("unique", shards=COUNT)
    def set_it(conn: Any, key: str) -> int:
        conn.set(key, 1)
        return int(conn.connection_pool.connection_kwargs["db"])

    @kit.sharded_connection("unique", shards=COUNT)
    async def get_it(conn: Any, key: str) -> Any:
        return await conn.get(key)

    for n in range(40):
        assert set_it(f"k{n}") == 1 + crc32(f"k{n}".encode()) % COUNT
        assert kit.key_sharded("unique", shards=COUNT)[f"k{n}"].get(f"k{n}") == b"1"
    pipe = kit.key_sharded("unique", shards=COUNT).pipeline()
    assert pipe.get("k1").get("k2").execute() == [b"1", b"1"]

    async def awaited() -> None:
        assert await get_it("k3") == b"1"
        async with await shardkit.aconnect(url(running)) as akit:
            assert await akit.key_sharded("unique", shards=COUNT)["k4"].get("k4") == b"1"
        await kit.aclose()

    asyncio.run(awaited())


def test_a_missing_count_is_refused(kit: Any) -> None:
    router = kit.key_sharded("unique")
    with pytest.raises(MissingEntryError, match=r"config:shards:unique is missing.*shards="):
        router["k"]
    assert kit.key_sharded("unique", shards=COUNT)["k"]  # at once, not after a second


def test_a_lost_count_is_not_guessed(config: redis.Redis, kit: Any) -> None:
    """Its placement was lost with it."""
    config.set("config:epoch", 1)
    with pytest.raises(MissingEntryError, match="config:shards:unique is missing on config server"):
        kit.key_sharded("unique", shards=COUNT)["k"]


def test_a_gap_or_an_entry_on_top_is_refused(running: LocalServer, config: redis.Redis) -> None:
    for harm in (
        lambda: config.delete("config:redis:unique:7"),
        lambda: write(config, running, 16),
    ):
        with shardkit.connect(url(running)) as kit:
            assert kit.key_sharded("unique", shards=COUNT)["k"]
            harm()
            kit.topology.expire()
            assert kit.key_sharded("unique", shards=COUNT)["k"]  # the last good entries
        with (
            shardkit.connect(url(running)) as late,
            pytest.raises(
                (MissingEntryError, ShardCountError),
                match=r"unique:(7 is missing|16 is one too many).*says 16 shards, but 1[57]",
            ),
        ):
            late.key_sharded("unique", shards=COUNT)["k"]
        write(config, running, 7)


def test_different_counts_are_refused(kit: Any) -> None:
    assert kit.key_sharded("unique", shards=COUNT)["k"]
    match = "this call says 8 shards, but 16 entries are stored and another call says 16; use "
    with pytest.raises(ShardCountError, match=match):
        kit.key_sharded("unique", shards=8)["k"]
    match = "this call says placement='slot', but another call says 'crc32'; use one placement"
    with pytest.raises(InvalidArgumentError, match=match):
        kit.key_sharded("unique", shards=COUNT, placement="slot")["k"]
    with pytest.raises(InvalidArgumentError, match="without shards="):
        kit.key_sharded("unique", placement="crc32")
    with pytest.raises(InvalidArgumentError, match="placement='nonsense'"):
        kit.key_sharded("other", shards=3, placement="nonsense")


def test_max_age_of_a_decorator(
    running: LocalServer, config: redis.Redis, kit: Any, kind: str
) -> None:
    def write_one(db: int) -> None:
        config.set("config:redis:one", json.dumps({"port": running.port, "db": db}))

    def usual(conn: Any) -> int:
        return int(conn.connection_pool.connection_kwargs["db"])

    async def awaiting(conn: Any) -> int:
        return usual(conn)

    strict = kit.redis_connection("one", max_age=0.1)(usual if kind == "blocking" else awaiting)
    plain = kit.redis_connection("one")(usual)

    def call() -> int:
        return asyncio.run(strict()) if kind == "awaiting" else strict()

    write_one(1)
    clock = kit.topology._clock = Clock()
    kit.topology.source.feed = lambda: None  # of a server that does not tell of changes
    assert call() == plain() == 1
    write_one(2)
    clock.now += 0.05
    assert call() == 1
    settle(kit.topology)
    clock.now += 0.06
    for _ in range(2):
        assert plain() == 1
        settle(kit.topology)
    call()  # finds that it is too old, and waits for nothing
    settle(kit.topology)
    assert call() == plain() == 2
    write_one(3)
    clock.now += 1.01
    plain()
    settle(kit.topology)
    assert plain() == 3


@pytest.mark.parametrize("max_age", [-1, "1", True, float("nan")])
def test_an_age_that_is_none_is_refused(kit: Any, max_age: Any) -> None:
    for decorate in (kit.redis_connection, kit.sharded_connection):
        with pytest.raises(InvalidArgumentError, match="give seconds, 0 to"):
            decorate("one", max_age=max_age)
