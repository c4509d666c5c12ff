"""redis-py's pools, made quicker, and able to drain.

Idle connections wait here and stay checked out of redis-py's own pool, which saves its bookkeeping
on every call: a third of the cost of a short one. A pool that drains goes on serving whoever holds
it, and closes each connection as it comes back.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import redis
import redis.asyncio as aioredis
from redis import sentinel
from redis.asyncio import sentinel as aiosentinel
from redis.exceptions import RedisError

from shardkit.connections.connection import process, require_open
from shardkit.connections.redis_private import connections_in_use, count_available, count_in_use
from shardkit.errors import ClosedError


class _Shown:
    """A pool's repr: the server, and how many connections are idle and in use. No secrets."""

    _idle: list[Any]
    draining = False
    closed = False
    connection_kwargs: dict[str, Any]

    def __repr__(self) -> str:
        where = self.connection_kwargs
        server = where.get("path") or f"{where.get('host')}:{where.get('port')}"
        if hasattr(self, "service_name"):
            server = f"sentinel:{self.service_name}"
        in_use = count_in_use(self) - len(self._idle)
        idle = count_available(self) + len(self._idle)
        state = ", draining" if self.draining else ""
        return (
            f"<{type(self).__name__} {server}/{where.get('db', 0)}: "
            f"{in_use} in use, {idle} idle{state}>"
        )


class _ReusingPool(_Shown):
    """A blocking pool that keeps its idle connections itself; see the module's text."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._idle: list[Any] = []
        super().__init__(*args, **kwargs)

    def get_idle(self) -> Any:
        """Return a connection that can be used at once, or None."""
        try:
            connection = self._idle.pop()
        except IndexError:
            return None
        try:
            # A child process cannot use its parent's.
            if connection.pid == process.pid and connection.is_reusable():
                connection.checked_out = True
                return connection
        except (RedisError, OSError):
            pass  # the server closed it
        connection.disconnect()
        super().release(connection)  # type: ignore[misc]
        return None

    def get_connection(self, *args: Any, **kwargs: Any) -> Any:
        connection = self.get_idle()
        if connection is None:
            require_open(self)
            connection = super().get_connection()  # type: ignore[misc]
            connection.checked_out = True
            try:
                require_open(self)
            except ClosedError:  # it was closed meanwhile
                connection.closed = True
                connection.disconnect()
                self.release(connection)
                raise
        return connection

    def release(self, connection: Any) -> None:
        if not getattr(connection, "checked_out", False):
            super().release(connection)  # type: ignore[misc]
            return
        connection.checked_out = False
        self._idle.append(connection)
        if self.draining:
            self.disconnect(inuse_connections=False)

    def disconnect(self, inuse_connections: bool = True) -> None:
        """Close idle connections; have those who use the others, if wanted, find them closed."""
        with suppress(IndexError):
            while True:
                super().release(self._idle.pop())  # type: ignore[misc]
        super().disconnect(inuse_connections=False)  # type: ignore[misc]
        if inuse_connections:
            for connection in connections_in_use(self):
                connection.closed = self.closed
                getattr(connection, "shut_down", connection.mark_for_reconnect)()

    def drain(self) -> None:
        """Close idle connections now, and every other one when it is released."""
        self.draining = True
        self.disconnect(inuse_connections=False)

    def close_for_good(self) -> None:
        """Close every connection, and open no other. Who uses one gets ClosedError."""
        self.closed = self.draining = True
        self.disconnect()


class _AsyncReusingPool(_Shown):
    """The same for awaiting connections, which are taken and released without waiting."""

    connection_class: type[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._idle: list[Any] = []
        self._closing: set[asyncio.Task[None]] = set()
        super().__init__(*args, **kwargs)

    def get_idle(self) -> Any:
        """Return a connection that can be used at once, or None."""
        if not self._idle or not self._idle[-1].is_reusable():
            return None
        connection = self._idle.pop()
        connection.checked_out = True
        return connection

    def release_nowait(self, connection: Any) -> None:
        """Release a connection without waiting."""
        connection.checked_out = False
        self._idle.append(connection)
        if self.draining:
            task = asyncio.get_running_loop().create_task(self.disconnect(inuse_connections=False))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def get_connection(self, *args: Any, **kwargs: Any) -> Any:
        while self._idle:
            connection = self.get_idle()
            if connection is not None:
                return connection
            await self._close_idle(self._idle.pop())
        require_open(self)
        connection = await super().get_connection()  # type: ignore[misc]
        connection.checked_out = hasattr(connection, "is_reusable")
        try:
            require_open(self)
        except ClosedError:  # it was closed meanwhile
            connection.closed = True
            await connection.disconnect(nowait=True)
            await self.release(connection)
            raise
        return connection

    async def release(self, connection: Any) -> None:
        if getattr(connection, "checked_out", False):
            connection.checked_out = False
            self._idle.append(connection)
        else:
            await super().release(connection)  # type: ignore[misc]
        if self.draining:
            await self.disconnect(inuse_connections=False)

    async def disconnect(self, inuse_connections: bool = True) -> None:
        while self._idle:
            await self._close_idle(self._idle.pop())
        await super().disconnect(inuse_connections)  # type: ignore[misc]

    async def _close_idle(self, connection: Any) -> None:
        await connection.disconnect(nowait=True)
        await super().release(connection)  # type: ignore[misc]

    async def drain(self) -> None:
        """Close idle connections now, and every other one when it is released."""
        self.draining = True
        await self.disconnect(inuse_connections=False)

    async def close_for_good(self) -> None:
        """Close every connection, and open no other. Who uses one gets ClosedError."""
        self.closed = self.draining = True
        for connection in connections_in_use(self):
            connection.closed = True
        await self.disconnect()


class Pool(_ReusingPool, redis.ConnectionPool):
    """redis-py's pool, quicker and able to drain."""


class SentinelPool(_ReusingPool, sentinel.SentinelConnectionPool):
    """redis-py's Sentinel pool, quicker and able to drain."""

    def disconnect(self, inuse_connections: bool = True) -> None:
        """Close idle connections; all of them, and those to the Sentinels, if wanted."""
        super().disconnect(inuse_connections)
        if inuse_connections:
            for client in self.sentinel_manager.sentinels:
                client.connection_pool.disconnect()


class AsyncPool(_AsyncReusingPool, aioredis.ConnectionPool):
    """The awaiting pool, quicker and able to drain."""


class AsyncSentinelPool(_AsyncReusingPool, aiosentinel.SentinelConnectionPool):
    """The awaiting Sentinel pool, quicker and able to drain."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """Close idle connections; all of them, and those to the Sentinels, if wanted."""
        await super().disconnect(inuse_connections)
        if inuse_connections:
            for client in self.sentinel_manager.sentinels:
                await client.connection_pool.disconnect()
