"""Replies that never end, in time or in size; and what is said of too many connections."""

from __future__ import annotations

import itertools
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from faces import PATIENCE
from link_helpers import command, eventually, mapped, of, opened, two
from redis.exceptions import InvalidResponse, TimeoutError  # noqa: A004 - redis-py's own
from resources import bounded
from scripted_server import bulk, drip, scripted

import shardkit
from shardkit import DeadlineExceeded, ShardUnavailable
from shardkit.local import LocalCluster, LocalServer
from shardkit.operations import Command, Shard

pytestmark = pytest.mark.one_server


def on(shard: int, name: str, *args: Any) -> Command:
    return Command(Shard("data", shard), "k", (name, *args))


@pytest.mark.parametrize("size", [1, 2])
async def test_a_reply_that_drips_ends_with_the_exchange_timeout(beside: Any, size: int) -> None:
    seconds = 0.5 * PATIENCE
    async with beside(scripted(GET=drip), socket_timeout=60, exchange_timeout=seconds) as face:
        batch = [on(0, "GET", "k"), on(1, "INCR", "k")][:size]
        started = time.monotonic()
        replies = await face.send(*batch)
        assert time.monotonic() - started > 0.9 * seconds
        assert isinstance(replies[0], ShardUnavailable)
        assert isinstance(replies[0].error, TimeoutError)
        assert "exchange_timeout" in str(replies[0])
        assert "may have been executed" in replies[0].remedy
        assert replies[1:] == [1][: size - 1]


@pytest.mark.parametrize("size", [1, 2])
async def test_a_too_large_reply_fails(kind: str, size: int, own_server: LocalServer) -> None:
    shard_map = two(own_server.port, own_server.port, max_reply_bytes=1_000_000)
    async with opened(kind, shard_map) as face:
        await face.send(
            on(0, "SET", "large", b"x" * 3_000_000), on(0, "SET", "small", b"y" * 900_000)
        )
        batch = [on(0, "GET", "large"), on(1, "INCR", "k")][:size]
        replies = await face.send(*batch)
        assert isinstance(replies[0], ShardUnavailable)
        assert isinstance(replies[0].error, InvalidResponse)
        assert "larger than 1,000,000 bytes" in str(replies[0])
        assert await face.send(on(0, "GET", "small")) == [b"y" * 900_000]
        for _ in range(3):  # each for itself: the limit is that of one exchange
            assert await face.send(on(0, "GET", "small")) == [b"y" * 900_000]


async def test_the_limit_is_per_exchange(kind: str, own_server: LocalServer) -> None:
    shard_map = two(own_server.port, own_server.port, max_reply_bytes=3_000_000)
    async with opened(kind, shard_map) as face:
        await face.send(on(0, "SET", "k", b"x" * 2_000))
        replies = await face.send(*[command(Shard("data", 0), "k", "GET") for _ in range(10_000)])
        assert replies == [b"x" * 2_000] * 10_000  # 20 MB, 2 MB a chunk


async def test_a_clusters_connections_know_the_limits(kind: str, cluster: LocalCluster) -> None:
    entry = {**cluster.entry.fields, "max_reply_bytes": 100_000, "exchange_timeout": 7}
    async with opened(kind, mapped(entry)) as face:
        assert await face.send(command("data", "k", "SET", b"x" * 500_000)) == [b"OK"]
        [reply] = await face.send(command("data", "k", "GET"))
        assert "max_reply_bytes" in str(reply)


TOO_LONG = {
    "a reply": b"*2147483648\r\n",
    "inside": b"*2\r\n$1\r\na\r\n*99999999\r\n:1\r\n",
    "late": b"*100\r\n" + b"*0\r\n" * 99 + b"*2147483647\r\n",
    "after a string": b"*2\r\n$70000\r\n" + b"x" * 70_000 + b"\r\n*4294967295\r\n",
}


@pytest.mark.parametrize("reply", TOO_LONG.values(), ids=TOO_LONG)
@pytest.mark.parametrize("protocol", [2, 3])
async def test_headers_that_announce_too_much_are_refused(
    beside: Any, reply: bytes, protocol: int
) -> None:
    hello = b"%1\r\n$5\r\nproto\r\n:3\r\n"
    async with beside(
        scripted(GET=reply, LRANGE=reply, HELLO=hello), max_reply_bytes=10**8, protocol=protocol
    ) as face:
        for batch in ([on(0, "GET", "k")], [on(0, "PING"), on(0, "GET", "k"), on(1, "PING")]):
            with bounded(held=1.0):
                replies = await face.send(*batch)
            failures = [each for each in replies if isinstance(each, ShardUnavailable)]
            assert failures
            for failure in failures:
                assert isinstance(failure.error, InvalidResponse)
                assert "elements, more than fit into 100,000,000 bytes" in str(failure)
        client = await of(face.kit.client("one"))
        for call in (lambda: client.get("k"), lambda: client.lrange("k", 0, 1)):
            with pytest.raises(InvalidResponse, match=r"max_reply_bytes"):
                await of(call())
        pipe = client.pipeline(transaction=False)
        pipe.get("k").ping()
        with pytest.raises(InvalidResponse, match=r"max_reply_bytes"):
            await of(pipe.execute())


PUSH = b">2\r\n+a\r\n+b\r\n"
RESP3 = b"%1\r\n$5\r\nproto\r\n:3\r\n"


@pytest.mark.parametrize("name", ["GET", "BLPOP"])
async def test_pushes_without_end_end_by_the_deadline(beside: Any, name: str) -> None:
    endless = {name: lambda _: itertools.repeat(PUSH * 1_000)}
    async with beside(scripted(HELLO=RESP3, **endless), protocol=3) as face:
        for private in (True, False):
            client = await of(face.kit.client("data", 0, private=private))
            await of(client.ping())  # connected before, as that takes its time on a busy machine
            with (
                pytest.raises(DeadlineExceeded, match="has passed") as caught,
                face.kit.deadline(0.2 * PATIENCE),
            ):
                await of(client.get("k") if name == "GET" else client.blpop(["k"], 0))
            assert caught.value.maybe_executed


async def test_strings_may_contain_any_header(kind: str, own_server: LocalServer) -> None:
    shard_map = two(own_server.port, own_server.port, max_reply_bytes=10**7)
    texts = [b"*99999999\r\n", b"\r\n*99999999\r\n" * 5, b"*", b"\r\n*9", b"*1\r\n" * 20_000]
    async with opened(kind, shard_map) as face:
        for text in (*texts, b"x" * 70_000 + texts[1], texts[1] * 1_000):
            await face.send(on(0, "SET", "k", text))
            assert await face.send(on(0, "GET", "k")) == [text]
            assert await face.send(*[on(0, "GET", "k")] * 3) == [text] * 3
            client = await of(face.kit.client("data", 0))
            assert await of(client.get("k")) == text
            pipe = client.pipeline()
            assert await of(pipe.get("k").get("k").execute()) == [text, text]


BATCH = 3_500  # four chunks
TOO_MANY = b"+OK\r\n+OK\r\n"
RESET = b"reset"


@pytest.mark.long(3)
@pytest.mark.parametrize(
    "ends",
    [None, RESET, b"", TOO_MANY, b"?\r\n"],
    ids=["closed", "reset", "silent", "one reply too many", "no RESP"],
)
async def test_a_connection_that_fails_between_chunks_fails_its_requests_and_returns_to_its_pool(
    kind: str, ends: bytes | None, own_server: LocalServer
) -> None:
    count = 0

    def answer(args: list[bytes]) -> bytes | None:
        nonlocal count
        count += 1
        # What is one too many in between shifts all that follow, and nobody can see that.
        if count != (BATCH if ends == TOO_MANY else 1_500):
            return bulk(b"v")
        if ends != RESET:
            return ends
        for each in bad.accepted:
            with suppress(OSError):  # closed before
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return None

    with scripted(INCR=answer) as bad:  # which is sent once
        shard_map = two(bad.port, own_server.port, socket_timeout=0.3 * PATIENCE, max_connections=2)
        async with opened(kind, shard_map) as face:
            for _ in range(3):  # more often than there are connections
                count = 0
                batch = [command(Shard("data", 0), f"k{n}", "INCR") for n in range(BATCH)]
                replies = await face.send(*batch, on(1, "SET", "k", "v"))
                assert replies[-1] == b"OK"
                if ends == TOO_MANY:
                    assert replies[: BATCH - 1] == [b"v"] * (BATCH - 1)
                else:
                    assert all(isinstance(reply, ShardUnavailable) for reply in replies[:-1])
                    assert "may have been executed" in replies[0].remedy
                assert await face.send(on(0, "PING")) == [b"PONG"]


async def test_lost_blocking_calls_free_a_pool(beside: Any) -> None:
    wait = Command(Shard("data", 0), "k", ("BLPOP", "k", 1), block=1.0)
    async with beside(scripted(BLPOP=lambda args: None), max_connections=1) as face:
        for _ in range(3):
            [lost] = await face.send(wait)
            assert isinstance(lost, ShardUnavailable)
            assert "may have been executed" in lost.remedy
            assert await face.send(on(0, "PING")) == [b"PONG"]


async def test_too_many_uses_at_once_name_the_field_and_say_that_nothing_was_sent() -> None:
    answered = threading.Event()
    with scripted(GET=lambda args: answered.wait(20) and bulk(b"v")) as slow:
        with shardkit.connect(two(slow.port, slow.port, max_connections=1)) as kit:
            other = threading.Thread(target=kit.driver.link.send, args=([on(0, "GET", "k")],))
            other.start()
            assert await eventually(lambda: "GET" in slow.names())
            [reply] = kit.driver.link.send([on(0, "SET", "k", 1)])
            answered.set()
            other.join()
        assert isinstance(reply, ShardUnavailable)
        assert "max_connections" in str(reply)
        assert "cannot be reached" not in str(reply)
        assert "may have been executed" not in str(reply)
        assert "SET" not in slow.names()


NO_POLL = """
import asyncio, select
del select.poll  # as eventlet.monkey_patch() does
import shardkit

shard_map = shardkit.ShardMap.parse("components: {c: {entry: {port: %d}}}")

def steps():
    for n in range(3):
        replies = yield [shardkit.operations.Command("c", "k", ("INCR", "k"))] * 3000
        assert list(replies) == list(range(3000 * n + 1, 3000 * n + 3001))
    yield [shardkit.operations.Command("c", "k", ("SET", "k", 0))]

async def awaiting():
    async with await shardkit.aconnect(shard_map) as kit:
        await kit.driver.run(steps())

with shardkit.connect(shard_map) as kit:
    kit.driver.run(steps())
asyncio.run(awaiting())
"""


def test_pipelines_work_where_there_is_no_poll(own_server: LocalServer) -> None:
    assert subprocess.run([sys.executable, "-c", NO_POLL % own_server.port]).returncode == 0
