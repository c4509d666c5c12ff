"""Which keys of some databases change, told by the server itself: keyspace notifications.

::

    PSUBSCRIBE __keyspace@3__:*      ◄── every write, expiry and eviction of a key of database 3
    PING                             ◄── what was answered before is all that happened before

One connection is told of everything in the order in which it happens, so the answer to a PING says
that no earlier change is still to come. Two things are not told: what FLUSHDB, FLUSHALL and SWAPDB
do, which `flushes` counts, and what consumers of a stream acknowledge, so streams are copied once
more in the end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError

from shardkit.growth.servers import GrowthError

_FLUSHES = ("flushdb", "flushall", "swapdb")
_BARRIER = 5.0  # seconds
_POLL = 0.1
_WANTED = "KA"  # keyspace events, all kinds of them
# What a server does to keys by itself.
_OF_ITSELF = frozenset({b"expired", b"evicted"})


def turn_on_notifications(client: Any) -> str:
    """Have a server tell of changed keys; return its setting as it was before."""
    before = str(_text(client.config_get("notify-keyspace-events")["notify-keyspace-events"]))
    if not ("K" in before and "A" in before):
        client.config_set("notify-keyspace-events", "".join(dict.fromkeys(before + _WANTED)))
    return before


def flushes(client: Any) -> tuple[str, int]:
    """Return the server's run, and how many commands it has executed that are not told of keys."""
    stats = client.info("commandstats")
    counts = (int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in _FLUSHES)
    return str(client.info("server")["run_id"]), sum(counts)


class KeyCapture:
    """The keys of some databases of one server that have changed since they were last taken.

    Args:
        client: a client of the server, whose pool gives a connection that this keeps.
        databases: the numbers.
    """

    def __init__(self, client: Any, databases: Iterable[int]) -> None:
        self._pool = client.connection_pool
        self._connection = self._pool.get_connection()
        self._prefixes = {b"__keyspace@%d__:" % number: number for number in databases}
        self._lock = threading.Lock()
        self._changed: dict[tuple[int, bytes], bool] = {}
        self._answered = threading.Condition()
        self._asked = self._heard = 0
        self._error: Exception | None = None
        self._ended = False
        patterns = [prefix + b"*" for prefix in self._prefixes]
        try:
            self._connection.send_command("PSUBSCRIBE", *patterns)
            for _ in patterns:
                self._connection.read_response(disable_decoding=True)
        except (RedisError, OSError) as error:
            self._connection.disconnect()
            self._pool.release(self._connection)
            raise GrowthError(
                f"the server does not tell of changed keys: {error}", "see docs/rights.md"
            ) from error
        self._thread = threading.Thread(target=self._listen, name="shardkit-capture", daemon=True)
        self._thread.start()

    def take(self, most: int | None = None) -> dict[tuple[int, bytes], bool]:
        """Return keys that have changed, with their databases, and forget them.

        With each, whether a client changed it; what expired or was evicted, the server did itself.

        Raises:
            GrowthError: the connection was lost, so that changes may be missing.
        """
        self._check()
        with self._lock:
            if most is None or len(self._changed) <= most:
                taken, self._changed = self._changed, {}
            else:
                taken = {key: self._changed.pop(key) for key in list(self._changed)[:most]}
        return taken

    def wait_until_told(self) -> None:
        """Wait until everything that has happened so far has been told.

        Raises:
            GrowthError: the connection was lost, or the server does not answer.
        """
        with self._answered:
            self._asked += 1
            wanted = self._asked
            try:
                self._connection.send_command("PING", str(wanted), check_health=False)
            except (RedisError, OSError) as error:
                self._error = error
            self._answered.wait_for(lambda: self._heard >= wanted or self._error, _BARRIER)
            heard = self._heard >= wanted
        self._check()
        if not heard:
            raise GrowthError("the server does not answer", "nothing has changed; try again")

    def close(self) -> None:
        """Stop listening."""
        self._ended = True
        self._thread.join()
        self._connection.disconnect()
        with suppress(RedisError, OSError):
            self._pool.release(self._connection)

    def _check(self) -> None:
        if self._error is not None:
            raise GrowthError(
                f"the connection that tells of changes was lost ({self._error})",
                "nothing has changed; try again",
            )

    def _listen(self) -> None:
        try:
            while not self._ended:
                if not self._connection.can_read(timeout=_POLL):
                    continue
                said = self._connection.read_response(disable_decoding=True)
                if said[0] == b"pmessage":
                    self._note(said[2], said[3])
                else:  # the PONG of `wait_until_told`: nothing else is asked for
                    with self._answered:
                        self._heard = int(said[1])
                        self._answered.notify_all()
        except (RedisError, OSError, ValueError, LookupError, TypeError) as error:
            with self._answered:
                self._error = error
                self._answered.notify_all()

    def _note(self, channel: bytes, event: bytes) -> None:
        prefix, colon, key = channel.partition(b":")
        found = self._prefixes[prefix + colon], key
        by_client = event not in _OF_ITSELF
        with self._lock:
            self._changed[found] = self._changed.get(found, False) or by_client


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
