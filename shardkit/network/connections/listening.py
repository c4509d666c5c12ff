"""A connection on which a server speaks unasked: subscribed, or told of changes."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisClusterException, RedisError

from shardkit.errors import InvalidArgumentError, ShardKitError
from shardkit.network.connections.redis_private import socket_of

PATIENCE = 5.0  # seconds for what is sent
FAILURES = (RedisError, RedisClusterException, ShardKitError, OSError)
_RECEIVE, _READS = 64 * 1024, 64  # bytes, and how often in a turn: a server may be faster


class ListeningConnection:
    """A connection of a pool that is read without waiting, for as long as it is open."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._connection = pool.get_connection()
        self.socket = socket_of(self._connection)
        if not isinstance(self.socket, socket.socket):
            self.close()
            raise InvalidArgumentError(
                "in-memory servers tell nothing by themselves", "use shardkit.local"
            )
        self._connection.calls.append(None)  # only its user closes it, who reads the socket itself

    def require_master(self) -> None:
        """Raise OSError if its server has a successor: it answers until Sentinels demote it."""
        if self._connection.is_replaced:
            raise OSError("its server is no longer the master")

    def send(self, *command: Any) -> None:
        """Send a command."""
        self.socket.settimeout(PATIENCE)
        self._connection.send_command(*command)

    def replies(self) -> Iterator[Any]:
        """Yield what has come; raise OSError or InvalidResponse when the connection is lost."""
        with suppress(BlockingIOError, InterruptedError, ssl.SSLWantReadError):
            for _ in range(_READS):
                self.socket.setblocking(False)  # who takes a reply may send
                if not (data := self.socket.recv(_RECEIVE)):
                    raise OSError("closed")
                yield from self._connection.reply_parser.received(data)

    def close(self) -> None:
        """Close the connection."""
        with suppress(*FAILURES):
            self._connection.disconnect()
            self._pool.release(self._connection)
