"""redis-py's pools, made quick, and able to retire.

A pool lends its connections: they remain checked out of redis-py's own pool while they rest here.
That saves redis-py's book-keeping at every call, a third of what a short call costs. A pool that
retires goes on serving those who hold it, and closes each connection as it comes back.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Any

import redis
import redis.asyncio as aioredis
from redis import sentinel
from redis.asyncio import sentinel as aiosentinel
from redis.exceptions import RedisError


class _Process:
    """This process's number. Asking the system costs a quarter of what a short command does."""

    pid = os.getpid()

    def after_fork(self) -> None:
        self.pid = os.getpid()


_process = _Process()
os.register_at_fork(after_in_child=_process.after_fork)


class _ReusingPool:
    """A pool of connections, which remain checked out of redis-py's own while they rest here.

    That saves redis-py's book-keeping at every call, most of what a short call costs. It can be
    told to retire: connections are closed as they come back.
    """

    draining = False

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
            # That of a parent is of no use to its child.
            if connection.pid == _process.pid and connection.is_reusable():
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
            connection = super().get_connection()  # type: ignore[misc]
            connection.checked_out = True
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
        with suppress(IndexError):
            while True:
                super().release(self._idle.pop())  # type: ignore[misc]
        super().disconnect(inuse_connections)  # type: ignore[misc]

    def drain(self) -> None:
        """Close idle connections now, and every other one when it is released."""
        self.draining = True
        self.disconnect(inuse_connections=False)


class _AsyncReusingPool:
    """The same for awaiting connections, which can be lent and given back without waiting."""

    draining = False
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
        """Take back a connection that was borrowed, or got; does not wait."""
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
        connection = await super().get_connection()  # type: ignore[misc]
        connection.checked_out = hasattr(connection, "is_reusable")
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


class Pool(_ReusingPool, redis.ConnectionPool):
    """redis-py's pool, quick and able to retire."""


class SentinelPool(_ReusingPool, sentinel.SentinelConnectionPool):
    """redis-py's Sentinel pool, quick and able to retire."""

    def disconnect(self, inuse_connections: bool = True) -> None:
        """Close idle connections; all of them, and those to the Sentinels, if wanted."""
        super().disconnect(inuse_connections)
        if inuse_connections:
            for client in self.sentinel_manager.sentinels:
                client.connection_pool.disconnect()


class AsyncPool(_AsyncReusingPool, aioredis.ConnectionPool):
    """The awaiting pool, quick and able to retire."""


class AsyncSentinelPool(_AsyncReusingPool, aiosentinel.SentinelConnectionPool):
    """The awaiting Sentinel pool, quick and able to retire."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """Close idle connections; all of them, and those to the Sentinels, if wanted."""
        await super().disconnect(inuse_connections)
        if inuse_connections:
            for client in self.sentinel_manager.sentinels:
                await client.connection_pool.disconnect()
