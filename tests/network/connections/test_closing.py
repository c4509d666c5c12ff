"""Closing while somebody calls: nothing is written elsewhere, and what is closed stays closed."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from arranged import emptied, map_of
from link_helpers import FACES, clients_of, closed, eventually, hearing, of, opened, paused

import shardkit
from shardkit import ClosedError, Entry, ShardKit, ShardMap, aconnect, events
from shardkit.config.component import Component
from shardkit.local import LocalCluster, LocalServer, LocalServers
from shardkit.network.connections import connection as connections

PLAN = "components: {c: {entry: {port: 7001}}, d: {entry: {port: 7002}}}"


@pytest.fixture
def kit(own: LocalServers) -> Iterator[ShardKit]:
    with emptied(own) as opened:
        yield opened


def between_look_up_and_write(
    monkeypatch: pytest.MonkeyPatch, connection: Any, interrupt: Any
) -> None:
    """Have a connection's next call interrupted after it has looked its socket up."""
    find = connections.socket_of

    def socket_of(of: Any) -> Any:
        found = find(of)
        if of is connection:
            monkeypatch.setattr(connections, "socket_of", find)
            interrupt()
        return found

    monkeypatch.setattr(connections, "socket_of", socket_of)


def test_a_call_whose_kit_is_closed_before_it_writes_writes_nowhere_else(
    kit: ShardKit, own: LocalServers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = kit.hash("h", component="c")
    words.hset("f", "v")
    opened = []
    with shardkit.connect(own.shard_map) as other:

        def close_and_open_others() -> None:
            kit.close()
            other.client("d").ping()
            opened.append(os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT))

        client: Any = kit.client("c")
        client.ping()
        [connection] = client.connection_pool.connections.idle  # of the next call
        between_look_up_and_write(monkeypatch, connection, close_and_open_others)
        with closed():
            words.hset("stolen", "x")
        assert other.client("d").get("nothing") is None  # no answer of another's
        assert other.client("d").dbsize() == 0
    assert (tmp_path / "file").read_bytes() == b""
    os.close(opened[0])


def test_a_blocked_call_ends_when_its_kit_is_closed(kit: ShardKit, own: LocalServers) -> None:
    with ThreadPoolExecutor(1) as threads, own.servers[0].client() as asking:
        waiting = threads.submit(kit.client("c").blpop, ["jobs"], 0)
        while "blpop" not in str(asking.client_list()):
            pass
        kit.close()
        assert type(waiting.exception(10)) is ClosedError


async def test_a_kit_may_be_closed_while_it_connects(own: LocalServers, kind: str) -> None:
    async with opened(kind, own.shard_map) as face:
        client = await of(face.kit.client("c"))

        def close(event: events.Event) -> None:
            if isinstance(event, events.ConnectionOpened):
                face.kit.clients.close()

        with hearing(close), closed():
            await of(client.get("k"))
        assert await eventually(lambda: clients_of(own.servers[0]) == 0)


async def test_clients_of_a_closed_kit_stay_closed(own: LocalServers, kind: str) -> None:
    async with opened(kind, own.shard_map) as face:
        client = await of(face.kit.client("c"))
        channel = client.pubsub()
        await of(channel.subscribe("news"))
        assert await of(channel.get_message(timeout=5))
        await face.kit.aclose()
        for use in (client.ping, lambda: channel.get_message(timeout=5), channel.ping):
            with closed():
                await of(use())
    assert await eventually(lambda: clients_of(own.servers[0]) == 0)


async def test_awaiting_calls_under_way_end_when_their_kit_is_closed(own: LocalServers) -> None:
    kit = await shardkit.aconnect(own.shard_map)
    client: Any = await kit.client("c")
    words = kit.hash("h", component="c")
    await words.hget("f")
    with paused(server := own.servers[0]):
        calls: list[Any] = [words.hget("f"), words.hset("f", "v"), client.get("k")]
        tasks = [asyncio.ensure_future(call) for call in calls]
        for _ in range(10):  # turns of the loop: by then they have been sent
            await asyncio.sleep(0)
        await kit.aclose()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in found] == [ClosedError] * 3
    assert await eventually(lambda: clients_of(server) == 0)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # asyncio's, of such loops
@pytest.mark.parametrize("component", ["c", "nodes"])
def test_loops_that_were_dropped_are_collected_with_their_connections(
    own: LocalServers, cluster: LocalCluster, component: str
) -> None:
    entry = cluster.nodes[0].entry.fields | {"cluster": True}
    nodes = Component("nodes", Entry(entry))
    shard_map = ShardMap({**own.shard_map.components, "nodes": nodes})
    kit = asyncio.run(shardkit.aconnect(shard_map))

    async def use() -> None:
        await (await kit.client(component)).ping()
        await kit.hash("h", component=component).hget("f")
        await kit.hash("h", component=component, read_from="prefer_replica").hget("f")
        lock, other = (kit.lock("busy", component=component) for _ in range(2))
        async with lock:
            assert not await other.acquire(blocking_timeout=0.1)  # subscribes

    @kit.redis_connection(component, read_from="prefer_replica")
    async def ping(conn: Any) -> None:
        await conn.ping()

    asyncio.run(use())  # once, as some connections are of the kit
    before = len(os.listdir("/proc/self/fd"))
    for run in (use, ping, use):
        loop = asyncio.new_event_loop()
        seen = weakref.ref(loop)
        loop.run_until_complete(run())
        del loop
        gc.collect()
        assert seen() is None
        assert len(os.listdir("/proc/self/fd")) < before + 4  # as one loop has
    asyncio.run(kit.aclose())


@pytest.mark.parametrize("face", FACES)
async def test_a_kit_that_nobody_closes_leaves_no_connection(own: LocalServers, face: str) -> None:
    """Nor a warning, in whatever order Python collects its parts."""

    async def use() -> None:
        blocks = face == "blocking"
        kit: Any = shardkit.connect(own.shard_map) if blocks else await aconnect(own.shard_map)
        for private in (False, True):
            client = await of(kit.client("c", private=private))
            await of(client.pipeline().set("k", 1).execute())
        await of(kit.hash("h", component="c").hset("f", "v"))

    def is_gone() -> bool:
        gc.collect()
        return clients_of(own.servers[0]) == 0

    await use()
    assert await eventually(is_gone)


CALLS: dict[str, Callable[[Any], Any]] = {
    "command": lambda client: client.get("k"),
    "blocking": lambda client: client.blpop("list", 1),
    "pipeline": lambda client: client.pipeline().get("k").execute(),
    "watch": lambda client: client.pipeline(transaction=True).watch("k"),
}


@pytest.mark.parametrize("name", ["data", "whole"])
@pytest.mark.parametrize(("private", "shuts_down"), [(False, True), (True, True), (False, False)])
def test_a_client_of_an_ended_loop_names_the_loop(
    private: bool, name: str, shuts_down: bool
) -> None:
    async def opened() -> Any:
        kit = await shardkit.aconnect(shards)
        client: Any = await kit.client(name, private=private)
        assert await client.set("k", 1) is True
        return kit, client

    async def calls() -> int:
        assert await (await kit.client(name)).get("k") == b"1"  # the kit is usable
        for call in CALLS.values():
            with pytest.raises(ClosedError, match=r"^the event loop of this client has ended; "):
                await call(client)
        await kit.aclose()
        with pytest.raises(ClosedError, match="the kit is closed"):
            await kit.client(name)
        return len(CALLS)

    with LocalServer() as server, LocalCluster() as cluster:
        whole = {"entry": {**cluster.entry.fields}}
        shards = map_of(data={"entry": {"port": server.port}}, whole=whole)
        first = asyncio.new_event_loop()
        kit, client = first.run_until_complete(opened())
        if shuts_down:
            first.run_until_complete(first.shutdown_asyncgens())
        first.close()
        assert asyncio.run(calls()) == 4
