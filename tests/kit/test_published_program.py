"""The published program runs as it is, with entries written by hand; wrong programs are refused."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import published_program as program
import pytest
import redis
from faces import drawn

import shardkit
from shardkit.errors import ShardKitError
from shardkit.local import LocalServer


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer(databases=64) as running:
        yield running


@pytest.fixture
def config(server: LocalServer) -> Iterator[redis.Redis]:
    with server.client() as client:
        client.flushall()
        client.mset(program.entries(server.port))
        yield client


@pytest.fixture(autouse=True)
def default_kit(server: LocalServer) -> Iterator[None]:
    shardkit.configure(f"redis://{server.address}")
    yield
    shardkit.configure()


def place(component: str, key: str) -> int:
    """The database where the book has a key."""
    return program.FIRST[component] + crc32(key.encode()) % program.COUNTS[component]


EXPECTED = {
    "statistics": 15,
    "expected": 14,
    "count_visit": place("unique", "a-session"),
    "timelines": place("timelines", "home:42"),
    "followers": place("followers", "42:99"),
}


ORDERS = drawn(1, 24)  # of those that begin with one call; each kind of servers has others


@pytest.mark.long(6)
@pytest.mark.parametrize("first", program.CALLS)
@pytest.mark.parametrize("servers", ["real", "memory"])
def test_each_order_of_first_calls_is_served(
    server: LocalServer, config: redis.Redis, servers: str, first: str
) -> None:
    if servers == "memory":
        pytest.importorskip("fakeredis")
    url, orders = f"redis://{server.address}", str(ORDERS)
    ran = subprocess.run(
        [sys.executable, Path(program.__file__), url, servers, first, orders],
        capture_output=True,
        check=False,
        timeout=300,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    runs = json.loads(ran.stdout)
    assert len(runs) == ORDERS * 2 * 3
    assert [run for run in runs if run[1] != EXPECTED] == []


def refused(call: Any) -> str:
    with pytest.raises(ShardKitError) as error:
        call()
    return str(error.value)


def test_wrong_programs_are_refused_and_right_ones_are_served_afterwards(
    server: LocalServer, config: redis.Redis
) -> None:
    where = f" on config server {server.address}/0"
    config.delete("config:redis:unique:7")
    short = shardkit.KeyShardedConnection("unique", 16)
    assert refused(lambda: short["a"]) == (
        f"config:redis:unique:7 is missing{where}: this call says 16 shards, but 15 entries are "
        "stored; write the missing entries"
    )
    wrong, right = (shardkit.KeyShardedConnection("timelines", count) for count in (16, 8))
    assert refused(lambda: wrong["a"]) == (
        f"config:redis:timelines:8 is missing{where}: this call says 16 shards, but 8 entries are "
        "stored; use shards=8, or write the missing entries"
    )
    assert right["a"].ping()
    assert "8 entries are stored and another call says 8; use shards=8" in refused(
        lambda: wrong["a"]
    )
    few = shardkit.IdPairShardedConnection("followers", 4)
    assert refused(lambda: few[1, 2]) == (
        f"config:redis:followers:4 is one too many{where}: this call says 4 shards, but 16 entries "
        "are stored; use shards=16, or delete what does not belong there"
    )
    unsaid = shardkit.KeyShardedConnection("followers")
    assert refused(lambda: unsaid["a"]) == (
        f"config:shards:followers is missing{where}, but 16 entries are stored, from "
        "config:redis:followers:0 on; use shards=16 in each call, or push a shard map: "
        "shardkit config push"
    )
    mistyped = shardkit.KeyShardedConnection("timeline", 8)
    assert refused(lambda: mistyped["a"]).startswith(
        f"config:redis:timeline and config:shards:timeline are missing{where}, or hold no text; "
        "did you mean 'timelines'?"
    )
    assert shardkit.IdPairShardedConnection("followers", 16)[1, 2].ping()
    assert unsaid["a"].ping()  # the count is known now


def test_an_async_kit_logs_nothing_and_needs_no_load(
    server: LocalServer, config: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async def use() -> tuple[int, bool]:
        async with await shardkit.aconnect(f"redis://{server.address}") as kit:
            router = kit.key_sharded("timelines", 8)
            assert await router["home:42"].ping()
            pairs = kit.id_pair_sharded("followers", 16).shard_of(99, 42)
            found = await kit.search("docs", component="timelines", parts=8).index("a", "text")
            return pairs, bool(found)

    assert asyncio.run(use()) == (crc32(b"42:99") % 16, True)
    assert caplog.messages == []
