"""Captures which keys of some databases change, by keyspace notifications.

::

    PSUBSCRIBE __keyspace@3__:*      ◄── every write, expiry and eviction of a key of database 3
    PING                             ◄── notifications before the reply cover all earlier changes

One connection receives every notification in the order of the changes. Some changes send none:

==========================================  ======================================================
`UNTOLD` calls, and all changes while       INFO commandstats counts them: copy everything again.
``notify-keyspace-events`` is another       CONFIG RESETSTAT clears the counts, so a call of
                                            OBJECT HELP must still be counted
types that are not `TOLD`: what consumers   a look at these keys tells which changed (see
do to a stream, all of a vector set but     `DatabaseCopy`)
that it is new
PFCOUNT, which keeps its result in a        the result is not compared
HyperLogLog
==========================================  ======================================================

The table is complete for the servers' own commands: `test_untold.py` tries each of them.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError, ResponseError
from redis.utils import str_if_bytes

from shardkit.admin.growth.fence import fence_key
from shardkit.errors import GrowthError, MissedChangesError

_CANARY = "object|help"
# Calls that may change any key without a notification; Redis 6 counts the last two.
UNTOLD = (
    *("config|set", "config|resetstat", "flushdb", "flushall", "swapdb", "cluster|flushslot"),
    *("debug", "pfdebug", "replicaof", "slaveof", "failover", _CANARY, "config", "object"),
)
TOLD = frozenset({"none", "string", "list", "set", "zset", "hash"})
"""The types whose changes all send a notification."""
_BARRIER = 5.0  # seconds
_POLL = 0.1
_SETTING = "notify-keyspace-events"
_ALWAYS = "KA"  # keyspace events, all kinds of them
_WANTED = f"{_ALWAYS}n"  # also that a key is new, whatever its type
# Events that no client causes; the last is followed by a DEL if no field is left.
_OF_ITSELF = frozenset({b"expired", b"evicted", b"hexpired"})


def turn_on_notifications(client: Any) -> str:
    """Turn on a server's notifications of changed keys; return the setting before."""
    before = str_if_bytes(client.config_get(_SETTING)[_SETTING])
    if not set(_WANTED) <= set(before):
        try:
            client.config_set(_SETTING, "".join(dict.fromkeys(before + _WANTED)))
        except ResponseError:  # a server before Redis 7.0
            client.config_set(_SETTING, "".join(dict.fromkeys(before + _ALWAYS)))
    return before


def _calls(stats: Mapping[str, Any]) -> dict[str, int]:
    """Return how often each command was called, refused calls included."""
    found = {name: stats.get(f"cmdstat_{name}") or {} for name in UNTOLD}
    kinds = "calls", "rejected_calls"
    return {name: sum(int(each.get(kind, 0)) for kind in kinds) for name, each in found.items()}


class KeyCapture:
    """The keys of some databases of one server that have changed since the last `take`.

    Raises:
        MissedChangesError: the server does not send all notifications.
        GrowthError: the server refuses, or does not count calls.
    """

    def __init__(self, client: Any, databases: Collection[int]) -> None:
        self._client = client
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
            try:
                self._connection.send_command("PSUBSCRIBE", *patterns)
                for _ in patterns:
                    self._connection.read_response(disable_decoding=True)
            except (RedisError, OSError) as error:
                raise GrowthError(
                    f"the server does not tell of changed keys: {error}", "see docs/rights.md"
                ) from error
            self._calls = self._calls_at_first()
        except BaseException:
            self._connection.disconnect()
            self._pool.release(self._connection)
            raise
        self._thread = threading.Thread(target=self._listen, name="shardkit-capture", daemon=True)
        self._thread.start()

    def _calls_at_first(self) -> dict[str, int]:
        """Return the counts of calls at a moment when the server sends all notifications."""
        with suppress(ResponseError):  # a refused call is counted, too
            self._client.execute_command("OBJECT", "HELP")
        with self._client.pipeline(transaction=True) as pipe:
            pipe.config_get(_SETTING)
            pipe.info("commandstats")
            setting, stats = pipe.execute()
        if not set(_ALWAYS) <= set(str_if_bytes(setting[_SETTING])):
            raise MissedChangesError(f"{_SETTING} was changed", "copy again")
        calls = _calls(stats)
        if not calls[_CANARY] and not calls["object"]:
            raise GrowthError(
                "the server does not count calls (INFO commandstats), so a move could miss changes",
                "move the whole server: shardkit move server",
            )
        return calls

    def require_complete(self) -> None:
        """Check that no change can have been missed so far.

        Raises:
            MissedChangesError: a command was called that changes keys without a notification, or
                the setting; or the connection was lost.
        """
        self._check()
        now = _calls(self._client.info("commandstats"))
        called = [name for name in UNTOLD if now[name] != self._calls[name]]
        if called:
            names = {"CONFIG RESETSTAT" if each == _CANARY else each for each in called}
            listed = ", ".join(sorted(each.upper().replace("|", " ") for each in names))
            raise MissedChangesError(f"{listed} was called", "copy again")

    def expect_setting(self) -> None:
        """Note that the mover itself is about to call CONFIG SET, of another setting."""
        for name in ("config|set", "config"):
            self._calls[name] += bool(self._calls[name])

    def note(self, number: int, keys: Iterable[bytes]) -> None:
        """Take keys for changed."""
        with self._lock:
            self._changed |= {(number, key): True for key in keys}

    def take(self, most: int | None = None) -> dict[tuple[int, bytes], bool]:
        """Return and drop changed keys, by database; and for each whether a client changed it.

        A client has not changed keys that expired or were evicted.

        Raises:
            MissedChangesError: the connection was lost.
        """
        self._check()
        with self._lock:
            if most is None or len(self._changed) <= most:
                taken, self._changed = self._changed, {}
            else:
                taken = {key: self._changed.pop(key) for key in list(self._changed)[:most]}
        return taken

    def wait_until_told(self) -> None:
        """Wait until the notifications of all changes so far have arrived."""
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
            raise GrowthError("the server does not answer: nothing has changed", "try again")

    def close(self) -> None:
        """Stop listening."""
        self._ended = True
        self._thread.join()
        self._connection.disconnect()
        with suppress(RedisError, OSError):
            self._pool.release(self._connection)

    def _check(self) -> None:
        if self._error is not None:
            raise MissedChangesError(
                f"the connection that tells of changes was lost ({self._error})", "copy again"
            )

    def _listen(self) -> None:
        last: list[bytes] = []  # the key and the event before
        try:
            while not self._ended:
                if not self._connection.can_read(timeout=_POLL):
                    continue
                said = self._connection.read_response(disable_decoding=True)
                if said[0] == b"pmessage":
                    prefix, colon, name = said[2].partition(b":")
                    key = self._prefixes[prefix + colon], name
                    emptied = said[3] == b"del" and last == [said[2], b"hexpired"]
                    by_client = not emptied and said[3] not in _OF_ITSELF
                    last = said[2:]
                    with self._lock:
                        self._changed[key] = self._changed.get(key, False) or by_client
                else:  # the PONG for `wait_until_told`
                    with self._answered:
                        self._heard = int(said[1])
                        self._answered.notify_all()
        except (RedisError, OSError, ValueError, LookupError, TypeError) as error:
            with self._answered:
                self._error = error
                self._answered.notify_all()


class Standstill:
    """Takes the place of a `KeyCapture` while no client can write: nothing changes."""

    def __init__(self, databases: Mapping[int, Any]) -> None:
        self._fences = {
            (number, fence_key(client).encode()): True for number, client in databases.items()
        }

    def require_complete(self) -> None:
        """See `KeyCapture.require_complete`."""

    def expect_setting(self) -> None:
        """See `KeyCapture.expect_setting`."""

    def note(self, number: int, keys: Iterable[bytes]) -> None:
        """See `KeyCapture.note`."""

    def take(self, most: int | None = None) -> dict[tuple[int, bytes], bool]:
        """Return the fences alone, which the mover has set."""
        return self._fences if most is None else {}

    def wait_until_told(self) -> None:
        """See `KeyCapture.wait_until_told`."""
