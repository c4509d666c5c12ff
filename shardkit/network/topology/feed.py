"""Receives changes of entries from the config server, on one connection of a process.

::

    HELLO 3, CLIENT TRACKING ON BCAST PREFIX config:redis: …    once
    ◄── invalidate [config:redis:unique:7, config:shards:unique, config:epoch]   within milliseconds
    MGET config:epoch                    every two seconds, and after changes: which is the latest?

So a process reads nothing while nothing changes, no matter how many components and shards it uses,
and uses each change immediately. If this is impossible (before Redis 6, or without the right to run
CLIENT TRACKING), the server is read once a second.
"""

from __future__ import annotations

import re
import socket
import time
from contextlib import suppress
from typing import Any

import hiredis
from redis.exceptions import ConnectionError, RedisError

from shardkit.config.component import (
    EPOCH_KEY,
    entry_key,
    epoch_number,
    pushed_key,
    removed_key,
    shards_key,
)
from shardkit.network.connections.redis_private import socket_of
from shardkit.network.connections.slot_owner import plain

BEAT = 2.0  # seconds between two checks of the server
_ANSWER = 2.0  # seconds for its answer
_RECEIVE = 64 * 1024
_OF_COMPONENTS = tuple(make("") for make in (entry_key, shards_key, removed_key, pushed_key))
_PREFIXES = (*_OF_COMPONENTS, EPOCH_KEY)


class ChangeFeed:
    """Receives changes of entries on a RESP3 connection of redis-py's, which it owns."""

    announced = 0  # the epoch in the connection's name

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        try:
            connection.connect()
            command = ["CLIENT", "TRACKING", "ON", "BCAST"]
            for prefix in _PREFIXES:
                command += ["PREFIX", prefix]
            connection.send_command(*command)
            connection.read_response()
            self._socket: socket.socket = socket_of(connection)
        except BaseException:
            connection.disconnect()
            raise
        self._asked = False  # and no answer has come since
        self._beat = 0.0

    def wait(self) -> tuple[set[str] | None, int | None]:
        """Wait for changes or an answer; return changed components (None: all) and a read epoch.

        Raises:
            RedisError, OSError: the connection was lost, or the server does not answer.
        """
        changed: set[str] | None = set()
        epoch = None
        while not changed and changed is not None and epoch is None:
            now = time.monotonic()
            if now >= self._beat:
                if self._asked:
                    raise ConnectionError("the config server does not answer")
                if self._connection.is_replaced:
                    raise ConnectionError("the config server is no longer the master")
                self._send("MGET", EPOCH_KEY)
                self._asked, self._beat = True, now + BEAT
            self._socket.settimeout(self._beat - now)
            try:
                data = self._socket.recv(_RECEIVE)
            except TimeoutError:
                continue
            if not data:
                raise ConnectionError("the config server closed the connection")
            try:
                for reply in self._connection.reply_parser.received(data):
                    if isinstance(reply, hiredis.PushNotification):
                        keys = reply[1] if reply[0] == b"invalidate" else []
                        if keys is None:
                            changed = None  # FLUSHALL
                        elif changed is not None:
                            changed |= {_component(plain(key)) for key in keys}
                    elif reply != b"OK":  # to a new name
                        self._asked = False
                        epoch = 0 if isinstance(reply, Exception) else epoch_number(reply[0])
            except (AttributeError, LookupError, TypeError) as error:
                raise ConnectionError(
                    f"the config server's reply cannot be used: {error}"
                ) from None
        if (changed or changed is None) and not self._asked:  # an answer to come is later
            self._beat = 0.0
        return changed, epoch

    def rename(self, name: str) -> None:
        """Give the connection another name."""
        self._send("CLIENT", "SETNAME", name)

    def _send(self, *command: str) -> None:
        self._socket.settimeout(_ANSWER)
        self._connection.send_command(*command, check_health=False)

    def close(self) -> None:
        """Shut the connection down, so that `wait` fails."""
        with suppress(OSError, ValueError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def release(self) -> None:
        """Close the connection, in the waiting thread."""
        with suppress(RedisError, OSError):
            self._connection.disconnect()


def _component(key: bytes) -> str:
    text = key.decode(errors="replace")
    for prefix in _OF_COMPONENTS:
        if text.startswith(prefix):
            return re.sub(r":[0-9]+$", "", text.removeprefix(prefix))
    return EPOCH_KEY
