"""Pools of private clients, ``kit.client(..., private=True)``, which follow their entry.

Other libraries keep a client for days, change its connection arguments and disconnect its pool. So
they get a client with a pool of its own, which connects to where the entry points at the time::

    PrivatePool ── get_connection ──► the pool of the current entry
                └─ release ─────────► the pool that lent the connection

When the entry changes, the pool of the old address drains: idle connections are closed at once,
connections in use when they are released. A subscriber or a blocking command might wait for ever on
the old server, so its connection is closed as if the server had gone away, and its user reconnects
to the new address. After a failover, a caller that a replica refuses waits until the entry names
another server, and then finds its connection lost as well.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio as aioredis

from shardkit.errors import ConfigError, ShardKitError
from shardkit.network.connections.connection_state import ServerReplacedError
from shardkit.network.connections.databases import DatabaseMovedError, Steps
from shardkit.network.connections.pool import require_lent
from shardkit.network.connections.redis_private import is_unready
from shardkit.operations.deadlines import earliest
from shardkit.operations.forks import renewed_in_children
from shardkit.operations.steps import arun_steps, run_by_face, run_steps, sleep

# Seconds to wait for the entry to name another server, if there is no socket timeout; and between
# two checks.
PATIENCE, PAUSE = 5.0, 0.05


class _FollowsEntry:
    """What the blocking and the awaiting pool share.

    ``find`` returns the client of the current entry; called with True, it reads the entry again.
    """

    pause: Callable[[float], Any]
    as_redis_py = True  # connections differ in where they lead, so none is used by several

    def __init__(self, find: Callable[[bool], Any], client: Any) -> None:
        self._find = find
        self._pool = client.connection_pool
        self._given = dict(self._pool.connection_kwargs)
        # Weak, so that connections are forgotten whose users were interrupted before the release.
        self._lent: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._switch = threading.Lock()
        renewed_in_children(self)

    if not TYPE_CHECKING:  # it would hide misspelled names

        def __getattribute__(self, name: str) -> Any:
            if name in _OWN or name[:2] == "__":
                return object.__getattribute__(self, name)
            return getattr(object.__getattribute__(self, "_pool"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._pool, name, value)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} now at {self._pool!r}>"

    def reset(self) -> None:
        self._pool.reset()
        self._lent.clear()

    def _switch_to(self, client: Any) -> Any:
        """Switch to the pool of a client of the current entry, and return it."""
        if not hasattr(client, "connection_pool"):
            raise ConfigError("the entry is a cluster now", "ask the kit for a new client")
        pool = client.connection_pool
        if pool is self._pool:
            return pool
        with self._switch:
            old = self._pool
            if pool is old or pool.draining:  # another thread has switched to a newer one
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
        for connection in lent:  # they reconnect to the new address; at once if users are waiting
            connection.moved_to = pool.make_connection()
            if not connection.released and connection.waits():
                connection.lose()
        return pool

    @run_by_face
    def get_connection(self, *args: Any, **kwargs: Any) -> Steps[Any]:
        while True:
            pool = self._switch_to((yield partial(self._find, False)))
            try:
                connection = yield pool.get_connection
            except DatabaseMovedError:
                if self._switch_to((yield partial(self._find, True))) is pool:
                    raise
                continue
            self._lent[connection] = pool
            if pool.master is None:  # those that Sentinels find notice by themselves
                connection.follower = weakref.ref(self)
            if pool is self._pool:
                return connection
            yield partial(self.release, connection)  # the entry has just changed

    @run_by_face
    def release(self, connection: Any) -> Steps[None]:
        """Return a connection to its pool, once; ignore a foreign one."""
        require_lent(connection)
        pool = self._lent.pop(connection, None)
        if pool is not None:
            yield partial(pool.release, connection)

    @run_by_face
    def leave(self, connection: Any, error: Exception) -> Steps[None]:
        """Have a connection reconnect to another server, because its own is a replica now.

        Raises:
            ServerReplacedError: the connection may be used again; nothing was executed.
            ConnectionError: the server ended a blocking command.
            ResponseError: the entry still names the replica after the socket timeout.
        """
        for pause in _pauses(connection):
            yield partial(self.pause, pause)
            self._switch_to((yield partial(self._find, True)))
            if connection.moved_to is not None:
                yield partial(connection.disconnect, True)  # at once
                break
        if connection.moved_to is None:
            raise error
        kind = ServerReplacedError if is_unready(error) else redis.ConnectionError
        raise kind("the server is a replica now, and the entry names another") from error

    @run_by_face
    def disconnect(self, inuse_connections: bool = True) -> Steps[None]:
        for pool in dict.fromkeys([self._pool, *self._lent.values()]):
            yield partial(pool.disconnect, inuse_connections)

    def after_fork(self) -> None:
        """Forget the parent's connections and lock, which its threads may have held."""
        self._switch = threading.Lock()
        self._lent.clear()


def _pauses(connection: Any) -> Iterator[float]:
    """Yield the pause before each reading of the entry of a connection's server."""
    patience = PATIENCE if connection.socket_timeout is None else connection.socket_timeout
    end, deadline = time.monotonic() + patience, earliest(None)
    yield 0.0
    while time.monotonic() < end:
        if deadline is not None and deadline.left() <= PAUSE:
            raise deadline.passed()
        yield PAUSE


class PrivatePool(_FollowsEntry, redis.ConnectionPool):
    """A blocking pool that follows its entry."""

    pause = staticmethod(sleep)
    run = staticmethod(run_steps)
    close = _FollowsEntry.disconnect

    def follow(self) -> None:
        """Switch to the changed entry now; the next use of the pool raises errors."""
        with suppress(ShardKitError):
            self._switch_to(self._find(False))


class AsyncPrivatePool(_FollowsEntry, aioredis.ConnectionPool):
    """An awaiting pool that follows its entry."""

    _find: Callable[[bool], Awaitable[Any]]
    pause = staticmethod(asyncio.sleep)
    run = staticmethod(arun_steps)
    aclose = _FollowsEntry.disconnect

    def __init__(self, find: Callable[[bool], Awaitable[Any]], client: Any) -> None:
        self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        self._following: asyncio.Task[None] | None = None
        super().__init__(find, client)

    def follow(self) -> None:
        """Switch to the current entry in this pool's event loop; see the blocking pool's."""
        if self._loop is not None:
            with suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(self._start_following)

    def after_fork(self) -> None:
        """Forget the parent's connections, lock and event loop."""
        super().after_fork()
        self._loop = self._following = None

    def _start_following(self) -> None:
        async def follow() -> None:
            with suppress(ShardKitError):
                self._switch_to(await self._find(False))

        self._following = asyncio.get_running_loop().create_task(follow())


# All other attributes are those of the current pool.
_OWN = frozenset({"_find", "_pool", "_given", "_lent", "_switch", "_loop", "_following"}).union(
    *map(vars, (_FollowsEntry, PrivatePool, AsyncPrivatePool))
)
