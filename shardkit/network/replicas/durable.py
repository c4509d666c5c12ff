"""Writes that are on replicas, or on disk, before the program continues.

::

    with kit.durable(replicas=1, fsync=True):
        users.hset("7", "Ada")                   # noted: shard users:3 was written to
    # ── at the end of the block, to each such shard, all at the same time:
    #    SET shardkit:durable 1 PX 1000 · WAIT 1 … · WAITAOF 1 0 … · CONFIG GET appendfsync

WAIT and WAITAOF wait for the writes of their own connection. The block may have used others, so it
writes a marker first: older writes are replicated, and synced, before the marker.

If the master dies between write and marker, another master, or the same with less data, may accept
the marker although the write is lost. In that case, this process has lost a connection to the shard
since the write. So if one was closed, for any reason, the block checks that the server has been the
master ever since.

Under ``appendfsync everysec``, Valkey (up to 9.1 at least) and Redis before 8 answer WAITAOF before
a sync (redis/redis#13793). There, without WAITAOF (before Redis 7.2), and without the right to run
CONFIG GET, the block waits for a second, within which a sync starts, and until none is pending.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any, Self

from shardkit.errors import InvalidArgumentError, NotDurableError, ShardFailure
from shardkit.events import CommandsFinished, CommandsSent, ConnectionClosed, Event, subscribe
from shardkit.operations.arguments import shown
from shardkit.operations.commands import Command, Partial, Pause, Shard
from shardkit.operations.deadlines import DeadlineBlock, earliest, extend
from shardkit.operations.operation import Operation
from shardkit.routing.command_keys import reads_by_name

MARKER = "shardkit:durable"
TIMEOUT = 2.0  # a sync begins within a second, where it is not done at once
_AT_A_TIME = 1.0  # seconds of one WAIT: a server's answer must come within its socket timeout
_BETWEEN_LOOKS = 0.05  # seconds between checks
_GRACE = 0.5  # seconds that the answer to the last WAIT may take
_EVERY_SECOND = 1.0  # the period of AOF syncs

_NO_HISTORY = "0" * 40  # before its own, of a server that always was a master

_current: ContextVar[DurableBlock | None] = ContextVar("shardkit_durable", default=None)


class DurableBlock:
    """A block, not reentrant, whose writes are on replicas or on disk at its end.

    See `kit.durable`; ``run`` runs operations.
    """

    def __init__(
        self, run: Callable[[Operation[None]], Any], replicas: int, fsync: bool, timeout: float
    ) -> None:
        for name, value, fits in (
            ("replicas", replicas, type(replicas) is int and 0 <= replicas <= 1000),
            ("fsync", fsync, type(fsync) is bool),
            ("timeout", timeout, type(timeout) in (int, float) and 0 < timeout <= 3600),
        ):
            if not fits:
                raise InvalidArgumentError(
                    f"durable: {name}={shown(value)}", "give replicas=1, fsync=True, timeout=2.0"
                )
        if not replicas and not fsync:
            raise InvalidArgumentError("durable: neither replicas nor fsync", "ask for one of them")
        self._run = run
        self._replicas = replicas
        self._fsync = fsync
        self._timeout = timeout
        self._token: Token[DurableBlock | None]
        self._unsubscribe: Callable[[], None] = lambda: None
        self._forget()

    def _forget(self) -> None:
        self._began = time.monotonic()
        self._written: set[str] = set()  # shards, as the next two
        self._answered: set[str] = set()  # with an answered write
        self._doubtful: set[str] = set()  # with a connection closed after that

    def __enter__(self) -> Self:
        self._forget()
        self._token = _current.set(self)
        self._unsubscribe = subscribe(self._note)
        return self

    def _note(self, event: Event) -> None:
        """Note the shards that the block writes to, and connections closed afterwards."""
        if isinstance(event, ConnectionClosed):
            if event.shard in self._answered:  # whichever thread's it was
                self._doubtful.add(event.shard)
        elif isinstance(event, CommandsSent):
            if _current.get() is self and not all(map(reads_by_name, event.names_of())):
                self._written.add(event.shard)
        elif isinstance(event, CommandsFinished) and event.sent.shard in self._written:
            self._answered.add(event.sent.shard)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        _current.reset(self._token)
        try:
            with DeadlineBlock(self._timeout + _GRACE):
                yield
        finally:
            self._unsubscribe()

    def __exit__(self, kind: object, *_: object) -> None:
        with self._ending():
            if kind is None and self._written:
                self._run(self._steps(self._written))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: object, *_: object) -> None:
        with self._ending():
            if kind is None and self._written:
                await self._run(self._steps(self._written))

    def _steps(self, written: set[str]) -> Operation[None]:
        end = time.monotonic() + self._timeout
        deadline = earliest(None)
        if deadline is not None:
            end = min(end, deadline.at)
        extend(self._timeout)  # which an entry's deadline does not shorten
        waiting = sorted(written)
        why: dict[str, str] = {}
        while waiting:
            left = max(0.001, min(_AT_A_TIME, end - time.monotonic()))
            commands = [command for name in waiting for command in self._commands(name, left)]
            per_shard = len(commands) // len(waiting)
            replies: Any = yield Partial(commands)
            marked = time.monotonic()
            late = []
            for n, name in enumerate(waiting):
                problem = self._why_late(replies[n * per_shard : (n + 1) * per_shard])
                if problem is _UNSURE:
                    problem = yield from _synced(_shard(name), marked, end)
                if not problem and name in self._doubtful:
                    problem = yield from self._is_another_master(name)
                if problem:
                    why[name] = problem
                    late.append(name)
            if late and end - time.monotonic() <= _BETWEEN_LOOKS:
                shown = "; ".join(f"{name}: {why[name]}" for name in late)
                raise NotDurableError(
                    f"writes were executed, but not durable within {self._timeout:g} s ({shown})",
                    "see `shardkit status`, or allow more time",
                )
            waiting = late
            if late:  # a replica, which Sentinels took for the master, refuses at once
                yield Pause(_BETWEEN_LOOKS)

    def _is_another_master(self, name: str) -> Operation[str]:
        """Return why a shard's master cannot be checked; empty if it has always been the master.

        A server may have become the master, or was restarted; the write may have gone to an unaware
        predecessor. A master does not report since when it is one.
        """
        [reply] = yield Partial([Command(_shard(name), MARKER, ("INFO",))])
        if isinstance(reply, ShardFailure):
            return str(reply)
        info = _lines(reply)
        ran = int(info.get("uptime_in_seconds", 0))
        if info.get("master_replid2") != _NO_HISTORY or ran <= time.monotonic() - self._began:
            raise NotDurableError(
                f"{name}: a connection to the master was lost, and the master may have been "
                "replaced or restarted, so the writes may be lost",
                "check the data, and write again what is missing",
            )
        return ""

    def _commands(self, name: str, seconds: float) -> list[Command]:
        shard, milliseconds = _shard(name), max(1, round(1000 * seconds))
        sent: list[tuple[Any, ...]] = [("SET", MARKER, 1, "PX", 1000)]
        if self._replicas:
            sent.append(("WAIT", self._replicas, milliseconds))
        if self._fsync:
            sent += [("WAITAOF", 1, 0, milliseconds), ("CONFIG", "GET", "appendfsync")]
        # On a connection of their own: the server answers nothing else there while it waits.
        return [Command(shard, MARKER, args, block=seconds) for args in sent]

    def _why_late(self, replies: list[Any]) -> str:
        answers = iter(replies)
        written = next(answers)
        if isinstance(written, ShardFailure):
            return str(written)
        if self._replicas:
            have = next(answers)
            if isinstance(have, ShardFailure):
                return str(have)
            if have < self._replicas:
                return f"{have} of {self._replicas} replicas"
        if self._fsync:
            synced, policy = answers
            if isinstance(synced, ShardFailure):
                unknown = "unknown command" in str(synced.error).lower()
                return _UNSURE if unknown else str(synced)
            if synced[0] < 1:
                return "not on disk yet"
            words = policy.values() if isinstance(policy, dict) else policy  # a map in RESP3
            if isinstance(policy, ShardFailure) or b"everysec" in words:
                return _UNSURE
        return ""


_UNSURE = "the server has no WAITAOF, or one that answers too early"


def _lines(info: bytes) -> dict[str, str]:
    return dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)


def _synced(shard: Shard, marked: float, end: float) -> Operation[str]:
    """Wait until a server has synced its data of a time; return why not, or an empty text."""
    while True:
        [reply] = yield Partial([Command(shard, MARKER, ("INFO",))])
        if isinstance(reply, ShardFailure):
            return str(reply)
        lines = _lines(reply)
        if lines.get("aof_enabled") != "1":
            return "it has no AOF"
        major = lines.get("redis_version", "0").partition(".")[0]
        if "valkey_version" not in lines and int(major) >= 8:  # its WAITAOF waits for the sync
            return ""
        # A sync that was due when the marker was written starts at most a second later.
        left = marked + _EVERY_SECOND - time.monotonic()
        if left < 0 and lines.get("aof_pending_bio_fsync") == "0":
            return ""
        if end - time.monotonic() <= _BETWEEN_LOOKS:
            return "not on disk yet"
        yield Pause(min(max(left, _BETWEEN_LOOKS), end - time.monotonic()))


def _shard(name: str) -> Shard:
    component, _, number = name.rpartition(":")
    return Shard(component, int(number)) if component and number.isdigit() else Shard(name)
