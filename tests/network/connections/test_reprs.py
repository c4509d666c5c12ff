"""What a debugger shows of kits, links, connections and pools. Never a secret."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalServers

MAP = """
defaults: {client_name: somebody}
components:
  visits:
    entry: {port: 7001, db: 2, username: default, password: s3cret}
    shards: {count: 2, over: [{port: 7002}]}
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[LocalServers]:
    with LocalServers(ShardMap.parse(MAP), ports="free") as servers:
        yield servers


def test_a_blocking_kit_shows_its_pools(servers: LocalServers) -> None:
    with shardkit.connect(servers.shard_map) as kit:
        assert repr(kit) == f"<ShardKit of {servers.shard_map.source}>"
        client = kit.client("visits", 1)
        client.ping()
        port = client.connection_pool.connection_kwargs["port"]
        held = client.connection_pool.get_connection()
        pool = repr(client.connection_pool)
        assert pool == f"<Pool 127.0.0.1:{port}/1: 1 in use, 0 idle>"
        assert repr(kit) == f"<ShardKit of {servers.shard_map.source}: visits:1 {pool}>"
        client.connection_pool.release(held)
        assert repr(client.connection_pool).endswith("0 in use, 1 idle>")
        kit.client("visits")
        for raw in (True, False):
            shown = repr(kit.plane.link(raw=raw))
            assert "visits:1 <Pool" in shown
            assert "s3cret" not in shown
        client.connection_pool.drain()
        assert repr(client.connection_pool).endswith(" idle, draining>")


async def test_an_awaiting_kit_shows_what_is_in_flight(servers: LocalServers) -> None:
    async with await shardkit.aconnect(servers.shard_map) as kit:
        link = kit.plane.alink()
        assert repr(link) == "<AwaitingLink: <Clients: none yet>>"
        ids = kit.set("ids", component="visits", members=int, total=1000)
        await ids.sadd(1, 2, 3)
        shown = repr(link)
        assert "; idle, 0 waiting, 0 replies outstanding>" in shown
        asked = asyncio.ensure_future(ids.scard())
        await asyncio.sleep(0)
        shown = repr(link)
        assert "; connected, 0 waiting, 3 replies outstanding>" in shown
        await asked
        assert "visits:0 <AsyncPool 127.0.0.1:" in repr(kit)
        assert "s3cret" not in repr(kit) + repr(link)
