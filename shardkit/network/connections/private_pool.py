"""Pools of private clients, ``kit.client(..., private=True)``, which follow their entry.

Other libraries keep a client for days, change its connection arguments and disconnect its pool. So
they get a client with a pool of its own, which connects to where the entry points at the time.

When the entry changes, connections to the old address are closed: idle ones at once, others when
they are released. A subscriber or a blocking command might wait for ever on the old server, so its
connection is closed as if the server had gone away, and its user reconnects to the new address.
After a failover, a caller that a replica refuses waits until the entry names another server, and
then finds its connection lost as well.
"""

from __future__ import annotations

import copy
import time
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import redis

from shardkit.errors import ConfigError, ShardKitError
from shardkit.network.connections.connection_state import ServerReplacedError
from shardkit.network.connections.databases import DatabaseMovedError, Steps
from shardkit.network.connections.pool import AsyncPool, Pool, _Common
from shardkit.network.connections.redis_private import is_unready
from shardkit.operations.deadlines import earliest
from shardkit.operations.forks import ForkSafeLock
from shardkit.operations.steps import run_by_face

# Seconds to wait for the entry to name another server, if there is no socket timeout; and between
# two checks.
PATIENCE, PAUSE = 5.0, 0.05


class _FollowsEntry(_Common):
    """What the blocking and the awaiting pool share.

    ``find`` returns the client of the current entry; called with True, it reads the entry again.
    """

    _entrys: Any  # the pool of the entry that it follows now

    def __init__(self, find: Callable[[bool], Any], client: Any) -> None:
        self._find = find
        self.connections = self.connections_of()
        self._switch = ForkSafeLock()
        self._become(client.connection_pool)
        # A pool of the same connections, to close them once this one is collected.
        self.keeper = copy.copy(self._entrys)
        self.keeper.connections, self.keeper._origin = self.connections, None

    def _become(self, pool: Any) -> None:
        """Make connections as another pool does from now on."""
        vars(self).update(vars(pool.share()), connections=self.connections)
        self._entrys, self._origin, self.multiplexed = pool, None, None
        self.as_redis_py = True  # connections differ in where they lead, so none is used by several
        self.register()

    def reset(self) -> None:
        self.connections.end()
        super().reset()
        self.keeper.connections = self.connections

    def switch_to(self, client: Any) -> None:
        """Switch to the entry of a client, unless that is an older one."""
        if not hasattr(client, "connection_pool"):
            raise ConfigError("the entry is a cluster now", "ask the kit for a new client")
        pool = client.connection_pool
        with self._switch:
            if pool is self._entrys or pool.draining:
                return
            given = self._given[1]
            changed = {
                name: value
                for name, value in self.connection_kwargs.items()
                if name not in given or given[name] is not value
            }
            self.connections.end()
            lent = self.connections.lent
            self._become(pool)
            self.connection_kwargs.update(changed)
        for connection in lent:  # they reconnect to the new address; at once if users are waiting
            connection.moved_to = self.make_connection()
            if not connection.released and connection.waits():
                connection.shut_down()

    def make_connection(self, **instead: Any) -> Any:
        connection = super().make_connection(**instead)
        if self.master is None:  # those that Sentinels find notice by themselves
            connection.follower = weakref.ref(self)
        return connection

    @run_by_face
    def get_connection(self, *args: Any, **kwargs: Any) -> Steps[Any]:
        while True:
            self.switch_to((yield partial(self._find, False)))
            entrys = self._entrys
            try:
                return (yield super().get_connection)
            except DatabaseMovedError:
                self.switch_to((yield partial(self._find, True)))
                if self._entrys is entrys:
                    raise

    @run_by_face
    def leave_server(self, connection: Any, error: Exception) -> Steps[None]:
        """Have a connection reconnect to another server, because its own is a replica now.

        Raises:
            ServerReplacedError: the connection may be used again; nothing was executed.
            ConnectionError: the server ended a blocking command.
            ResponseError: the entry still names the replica after the socket timeout.
        """
        patience = PATIENCE if connection.socket_timeout is None else connection.socket_timeout
        end, deadline = time.monotonic() + patience, earliest(None)
        while True:
            self.switch_to((yield partial(self._find, True)))
            if connection.moved_to is not None:
                break
            if time.monotonic() >= end:
                raise error
            if deadline is not None and deadline.left() <= PAUSE:
                raise deadline.passed()
            yield partial(connection.pause, PAUSE)
        yield partial(connection.disconnect, True)  # at once
        kind = ServerReplacedError if is_unready(error) else redis.ConnectionError
        raise kind("the server is a replica now, and the entry names another") from error

    @run_by_face
    def follow(self) -> Steps[None]:
        """Switch to the changed entry now; the next use of the pool raises errors."""
        try:
            self.switch_to((yield partial(self._find, False)))
        except ShardKitError:
            self.connections.end()


class PrivatePool(_FollowsEntry, Pool):
    """A blocking pool that follows its entry."""


class AsyncPrivatePool(_FollowsEntry, AsyncPool):
    """An awaiting pool that follows its entry."""

    _find: Callable[[bool], Awaitable[Any]]

    def switch_to(self, client: Any) -> None:
        """Switch to the entry of a client of the same event loop."""
        self.connections.require_loop()
        super().switch_to(client)
