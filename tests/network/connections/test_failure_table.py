"""What clients raise when something fails, as the table of docs/resilience.md has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from arranged import map_of
from faces import PATIENCE
from link_helpers import Face, eventually, of, opened, paused
from redis.exceptions import (
    AuthenticationError,
    MaxConnectionsError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

import shardkit
from shardkit.errors import BreakerOpenError, ClosedError, ShardTimeout
from shardkit.local import LocalServer, LocalServers


class Client:
    """A client of either face, whose calls are awaited."""

    def __init__(self, face: Face, client: Any, address: str) -> None:
        self.kit, self.client = face.kit, client
        self.address = address

    async def fails(self, kind: type[Exception], *command: Any) -> None:
        with pytest.raises(kind) as found:
            await of(self.client.execute_command(*command or ("SET", "k", 1)))
        assert type(found.value) is kind
        if kind is not ClosedError:
            text = str(found.value)
            assert f"c, {self.address}" in text or f"c ({self.address})" in text


@asynccontextmanager
async def client_of(server: LocalServer, kind: str, **fields: Any) -> AsyncIterator[Client]:
    entry = {"host": "127.0.0.1", "port": server.port, "socket_timeout": 0.5 * PATIENCE, **fields}
    shard_map = map_of(c={"entry": entry})
    async with opened(kind, shard_map) as face:
        yield Client(face, await of(face.kit.client("c")), f"{server.address}/0")


async def test_a_server_that_hangs_times_out_until_its_breaker_opens(kind: str) -> None:
    with LocalServer() as server:
        async with client_of(server, kind) as client:
            await of(client.client.ping())
            with paused(server):
                for _ in range(3):
                    await client.fails(ShardTimeout)
                await client.fails(BreakerOpenError)


@pytest.mark.parametrize(
    ("settings", "error"),
    [({"maxmemory": "1"}, OutOfMemoryError), ({"requirepass": "secret"}, AuthenticationError)],
)
async def test_what_a_server_refuses_is_its_own_error(
    kind: str, settings: dict[str, str], error: type[Exception]
) -> None:
    with LocalServer() as server, server.client() as admin:
        for name, value in settings.items():
            admin.config_set(name, value)
        async with client_of(server, kind) as client:
            await client.fails(error)


async def test_replicas_and_missing_rights_refuse_writes(server: LocalServer, kind: str) -> None:
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "reader", "on", "nopass", "~*", "+@read")
        async with client_of(server, kind, username="reader", password="any") as client:
            await client.fails(NoPermissionError)
        admin.replicaof("127.0.0.1", "1")
        try:
            async with client_of(server, kind) as client:
                await client.fails(ReadOnlyError)
        finally:
            admin.replicaof("NO", "ONE")


async def test_a_long_script_makes_the_server_busy(server: LocalServer, kind: str) -> None:
    with server.client() as admin, server.client() as other:
        admin.config_set("busy-reply-threshold", 1)
        running = asyncio.create_task(asyncio.to_thread(until_killed, admin))
        try:
            async with client_of(server, kind, socket_timeout=5) as client:
                assert await eventually(lambda: is_busy(other))
                await client.fails(ResponseError)
        finally:
            other.script_kill()
            await running


def until_killed(client: Any) -> None:
    with pytest.raises(ResponseError, match="Script killed by user"):
        client.eval("while true do end", 0)


def is_busy(client: Any) -> bool:
    try:
        client.ping()
    except ResponseError:
        return True
    return False


async def test_pool_limits_and_closed_kits_fail_at_once(server: LocalServer, kind: str) -> None:
    async with client_of(server, kind, max_connections=1, multiplex=False) as client:
        held = await of(client.client.connection_pool.get_connection())
        await client.fails(MaxConnectionsError)
        await of(client.client.connection_pool.release(held))
        await client.kit.aclose()
        await client.fails(ClosedError)


MAP = """
defaults: {client_name: somebody}
components:
  visits:
    entry: {port: 7001, db: 2, username: default, password: s3cret}
    shards: {count: 2, over: [{port: 7002}]}
"""


def test_a_blocking_kit_shows_its_pools(own_servers: LocalServers) -> None:
    with shardkit.connect(own_servers.shard_map) as kit:
        assert repr(kit) == f"<ShardKit of {own_servers.shard_map.source}>"
        client = kit.client("visits", 1)
        client.ping()
        port = client.connection_pool.connection_kwargs["port"]
        held = client.connection_pool.get_connection()
        pool = repr(client.connection_pool)
        assert pool == f"<Pool 127.0.0.1:{port}/1: 1 in use, 0 idle>"
        assert repr(kit) == f"<ShardKit of {own_servers.shard_map.source}: visits:1 {pool}>"
        client.connection_pool.release(held)
        assert repr(client.connection_pool).endswith("0 in use, 1 idle>")
        kit.client("visits")
        for raw in (True, False):
            shown = repr(kit.plane.link(raw=raw))
            assert "visits:1 <Pool" in shown
            assert "s3cret" not in shown
        client.connection_pool.drain()
        assert repr(client.connection_pool).endswith(" idle, draining>")
