"""Clients whose pools are their holder's own, and follow the entry.

Other libraries keep a client for days, change its arguments and disconnect its pool. So they get a
client with a pool of its own, which opens connections by the entry as it is then::

    FollowingPool ── get_connection ──► the pool of the entry as it is now
                  └─ release ─────────► the pool that lent the connection

When the entry has changed, the pool of the old address drains: its idle connections are closed, and
those in use as they come back. Whoever waits on one for what may never come, as a subscriber or a
blocking command does, finds its connection lost, as when a server goes away, and reconnects to the
new address.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import redis
import redis.asyncio as aioredis

from shardkit.connections.pool import renew_after_fork
from shardkit.errors import ConfigError

# What is kept here. Whatever else is asked of the pool, the current one of the entry answers.
_OWN = frozenset({"_find", "_pool", "_given", "_lent", "_switch"})
# What leads a connection to its server.
_ADDRESS = (
    *("host", "port", "path", "db", "username", "password", "credential_provider"),
    "connection_pool",  # a Sentinel's
)


class _Following:
    """What both kinds of pool have.

    Args:
        find: returns the client of the entry as it is now.
        client: the same, as it is at first.
    """

    def __init__(self, find: Callable[[], Any], client: Any) -> None:
        self._find = find
        self._pool = client.connection_pool
        self._given = dict(self._pool.connection_kwargs)
        self._lent: dict[Any, Any] = {}
        self._switch = threading.Lock()
        renew_after_fork(self)

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # it is being made
            raise AttributeError(name)
        return getattr(self._pool, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._pool, name, value)

    def __del__(self) -> None:
        """Nothing; the pools behind it have their own."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} now at {self._pool!r}>"

    def reset(self) -> None:
        """Forget every connection, idle or in use; new ones are made as `connection_kwargs` say."""
        self._pool.reset()
        self._lent.clear()

    def _take(self, client: Any) -> Any:
        """Return the pool of a client of the entry as it is now; the old one's users are told."""
        if not hasattr(client, "connection_pool"):
            raise ConfigError("the entry is a cluster now", "ask the kit for a new client")
        pool = client.connection_pool
        if pool is self._pool:
            return pool
        with self._switch:
            old = self._pool
            if pool is old or pool.draining:  # of a version before: the caller was overtaken
                return old
            changed = {
                name: value
                for name, value in old.connection_kwargs.items()
                if name not in self._given or self._given[name] is not value
            }
            self._given = dict(pool.connection_kwargs)
            pool.connection_kwargs.update(changed)
            self._pool = pool
            lent = list(self._lent)
        for connection in lent:
            _lead_to(pool, connection)
        return pool

    def after_fork(self) -> None:
        """Forget the parent's connections, and its lock: a thread of it may have held it."""
        self._switch = threading.Lock()
        self._lent.clear()

    def _pools(self) -> list[Any]:
        """Return the current pool, and those of earlier addresses with connections in use."""
        return list(dict.fromkeys([self._pool, *self._lent.values()]))


def _lead_to(pool: Any, connection: Any) -> None:
    """Have a connection that is in use reconnect to another address; at once, if its user waits."""
    fresh = pool.connection_class(**pool.connection_kwargs)
    for name in _ADDRESS:
        if hasattr(fresh, name) and hasattr(connection, name):
            setattr(connection, name, getattr(fresh, name))
    if connection.waits():
        connection.lose()


class FollowingPool(_Following, redis.ConnectionPool):
    """A blocking pool that follows its entry."""

    def get_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Return a connection to where the entry points now."""
        pool = self._take(self._find())
        self._lent[connection := pool.get_connection()] = pool
        return connection

    def release(self, connection: Any) -> None:
        """Take a connection back, once; one that is not this pool's is left alone."""
        pool = self._lent.pop(connection, None)
        if pool is not None:
            pool.release(connection)

    def disconnect(self, inuse_connections: bool = True) -> None:
        """Close idle connections; have those who use the others, if wanted, find them closed."""
        for pool in self._pools():
            pool.disconnect(inuse_connections)


class AsyncFollowingPool(_Following, aioredis.ConnectionPool):
    """An awaiting pool that follows its entry."""

    _find: Callable[[], Awaitable[Any]]

    async def get_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Return a connection to where the entry points now."""
        pool = self._take(await self._find())
        self._lent[connection := await pool.get_connection()] = pool
        return connection

    async def release(self, connection: Any) -> None:
        """Take a connection back, once; one that is not this pool's is left alone."""
        pool = self._lent.pop(connection, None)
        if pool is not None:
            await pool.release(connection)

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """Close idle connections, and the others, if wanted, under their users' hands."""
        for pool in self._pools():
            await pool.disconnect(inuse_connections)
