"""On the async face, no small call waits for a large one: it takes another connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio
from link_helpers import eventually, mapped, opened
from scripted_server import ScriptedServer, bulk, scripted

from shardkit import ShardMap

SIZE = 1_000_000
BEGUN = 300_000  # bytes of the large reply, before the rest


@pytest.fixture
def rest() -> threading.Event:
    """Set when the rest of the large value may come."""
    return threading.Event()


@pytest.fixture
def server(rest: threading.Event) -> Iterator[ScriptedServer]:
    """It holds back most of a large value, and never answers SET."""

    def in_pieces(times: int) -> Iterator[bytes]:
        yield b"$%d\r\n" % (times * SIZE) + b"x" * (times * BEGUN)
        rest.wait(20)
        yield b"x" * (times * (SIZE - BEGUN)) + b"\r\n"

    def get(args: list[bytes]) -> Iterator[bytes] | bytes:
        sizes = {b"large": 1, b"huge": 10}
        return in_pieces(sizes[args[1]]) if args[1] in sizes else bulk(b"1")

    with scripted(GET=get, SET=b"") as running:
        yield running
        rest.set()


@pytest_asyncio.fixture(params=[{}, {"max_connections": 1}], ids=["many", "one"])
async def client(request: pytest.FixtureRequest, server: ScriptedServer) -> AsyncIterator[Any]:
    fields = {"port": server.port, "socket_timeout": 30, **request.param}
    async with opened("awaiting", mapped(fields)) as face:
        yield await face.value(face.kit.client("data"))


many = pytest.mark.parametrize("client", [{}], indirect=True, ids=["many"])


async def answered(client: Any) -> bool:
    """Whether some small call is answered: the first ones may be sent before the large reply."""
    for _ in range(20):
        with suppress(TimeoutError):
            return bool(await asyncio.wait_for(client.get("small"), 0.5) == b"1")
    return False


@many
async def test_a_small_reply_does_not_wait_for_a_large_one(
    client: Any, server: ScriptedServer, rest: threading.Event
) -> None:
    large = asyncio.ensure_future(client.get("large"))
    assert await eventually(lambda: b"large" in str(server.received).encode())
    assert await answered(client)
    assert await asyncio.gather(*(client.get("small") for _ in range(50))) == [b"1"] * 50
    assert not large.done()
    assert server.connections == 2
    rest.set()
    assert await large == b"x" * SIZE
    assert await client.get("small") == b"1"
    assert server.connections == 2


@many
async def test_reads_behind_a_huge_reply_are_sent_once_more(
    client: Any, server: ScriptedServer, rest: threading.Event
) -> None:
    assert await client.get("small") == b"1"
    keys = ("huge", "small", "small")
    huge, *small = [asyncio.ensure_future(client.get(key)) for key in keys]
    waiting = asyncio.ensure_future(client.set("k", 1))
    assert await asyncio.wait_for(asyncio.gather(*small), 20) == [b"1", b"1"]
    assert not huge.done()
    assert server.names().count("SET") <= 1
    assert server.connections == 2
    rest.set()
    assert await huge == b"x" * (10 * SIZE)
    assert server.names().count("GET") == 6
    assert await eventually(lambda: server.names().count("SET") == 1)
    waiting.cancel()


@many
async def test_a_huge_reply_is_read_once(
    client: Any, server: ScriptedServer, rest: threading.Event
) -> None:
    assert await client.get("small") == b"1"
    huge = [asyncio.ensure_future(client.get("huge")) for _ in range(2)]
    assert await eventually(lambda: server.connections == 2)
    await asyncio.sleep(0.2)  # in which the second connection is closed
    assert await client.get("small") == b"1"
    rest.set()
    assert await asyncio.gather(*huge) == [b"x" * (10 * SIZE)] * 2


@many
async def test_a_large_request_has_a_connection_of_its_own(
    client: Any, server: ScriptedServer
) -> None:
    assert await client.get("small") == b"1"
    large = asyncio.ensure_future(client.set("k", b"x" * 2_000_000))
    assert await eventually(lambda: "SET" in server.names())
    assert await client.get("small") == b"1"
    assert not large.done()
    assert server.connections == 2
    large.cancel()


async def test_calls_wait_for_a_large_reply_if_there_is_no_other_connection(
    client: Any, server: ScriptedServer, rest: threading.Event, request: pytest.FixtureRequest
) -> None:
    if "many" in request.node.callspec.id:  # but the server refuses it
        greetings = iter([b"+OK\r\n"] * 100)
        server.answers["CLIENT"] = lambda args: next(greetings) if large is None else None
    large: Any = None
    assert await client.get("small") == b"1"
    large = asyncio.ensure_future(client.get("large"))
    assert await eventually(lambda: b"large" in str(server.received).encode())
    await asyncio.sleep(0.2)  # in which its beginning comes
    small = [asyncio.ensure_future(client.get("small")) for _ in range(3)]
    await asyncio.sleep(0.2)  # in which they would be answered
    assert not any(each.done() for each in small)
    rest.set()
    assert await asyncio.gather(large, *small) == [b"x" * SIZE, b"1", b"1", b"1"]
    rest.clear()
    huge = [asyncio.ensure_future(client.get(key)) for key in ("huge", "small", "huge")]
    await asyncio.sleep(0.2)  # in which the small one would be sent once more
    rest.set()
    values = [b"x" * (10 * SIZE), b"1", b"x" * (10 * SIZE)]
    assert await asyncio.wait_for(asyncio.gather(*huge), 20) == values


async def test_awaited_writes_keep_their_order_over_lanes(own_map: ShardMap) -> None:
    async with opened("awaiting", own_map) as face:
        client = await face.value(face.kit.client("own"))
        router = face.kit.key_sharded("own_shards")
        await client.set("large", b"x" * 5_000_000)
        for _ in range(3):
            large = asyncio.ensure_future(client.get("large"))
            others = []
            for n in range(200):  # those that nobody awaits in between may change their order
                others.append(asyncio.ensure_future(router.set(f"other{n}", n)))
                await router.set("k", n)
            assert len(await large) == 5_000_000
            await asyncio.gather(*others)
            assert await router.get("k") == b"199"
            assert await router.mset({f"k{n}": b"x" * 500 for n in range(5_000)}) is True
            assert await router.mget(["k0", "k4999"]) == [b"x" * 500] * 2
