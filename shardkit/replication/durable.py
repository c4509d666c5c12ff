"""Writes that are on replicas, or on disk, before the program goes on.

::

    with kit.durable(replicas=1, fsync=True):
        users.hset("7", "Ada")                   # noted: shard users:3 was written to
    # ── at the end of the block, to each such shard, all at the same time:
    #    SET shardkit:durable 1 PX 1000 · WAIT 1 … · WAITAOF 1 0 … · CONFIG GET appendfsync

WAIT and WAITAOF wait for what their own connection has written. The block's writes may have used
others, so a marker is written first: what is older than it was replicated, and synced, before it.

Under ``appendfsync everysec``, WAITAOF says yes before there was a sync: Valkey up to 9.1 at least,
and Redis before 8 (redis/redis#13793). There, as with servers that have no WAITAOF (before Redis
7.2), the block waits for a second, by when a sync has begun, and until none is pending. So it does
where the user may not run CONFIG GET.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any, Self

from shardkit.errors import InvalidArgumentError, NotDurableError, ShardFailure
from shardkit.events import CommandsSent, Event, subscribe
from shardkit.operations.commands import Command, Partial, Pause, Shard
from shardkit.operations.operation import Operation
from shardkit.routing.command_keys import reads_by_name

MARKER = "shardkit:durable"
TIMEOUT = 2.0  # a sync begins within a second, where it is not done at once
_AT_A_TIME = 1.0  # seconds of one WAIT: a server's answer must come within its socket timeout
_SYNC_PENDING = 0.05  # seconds between looks
_EVERY_SECOND = 1.0  # an AOF is synced so often

_written: ContextVar[set[str] | None] = ContextVar("shardkit_written", default=None)


class DurableBlock:
    """What is written inside is on replicas, or on disk, when the block ends; see `kit.durable`.

    It can be used once at a time.
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
                    f"durable: {name}={value!r:.80}", "give replicas=1, fsync=True, timeout=2.0"
                )
        if not replicas and not fsync:
            raise InvalidArgumentError("durable: neither replicas nor fsync", "ask for one of them")
        self._run = run
        self._replicas = replicas
        self._fsync = fsync
        self._timeout = timeout
        self._token: Token[set[str] | None] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        self._token = _written.set(set())
        self._unsubscribe = subscribe(_note)
        return self

    def _leave(self) -> set[str]:
        written = _written.get() or set()
        self._unsubscribe()
        if self._token is not None:
            _written.reset(self._token)
        return written

    def __exit__(self, kind: object, *_: object) -> None:
        written = self._leave()
        if kind is None and written:
            self._run(self._steps(written))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: object, *_: object) -> None:
        written = self._leave()
        if kind is None and written:
            await self._run(self._steps(written))

    def _steps(self, written: set[str]) -> Operation[None]:
        """Wait for all shards.

        Raises:
            NotDurableError: it took too long; the writes were carried out all the same.
        """
        end = time.monotonic() + self._timeout
        waiting = sorted(written)
        why: dict[str, str] = {}
        while waiting:
            left = max(0.001, min(_AT_A_TIME, end - time.monotonic()))
            commands = [command for name in waiting for command in self._commands(name, left)]
            each = len(commands) // len(waiting)
            replies: Any = yield Partial(commands)
            marked = time.monotonic()
            late = []
            for n, name in enumerate(waiting):
                problem = self._problem(replies[n * each : (n + 1) * each])
                if problem is _UNSURE:
                    problem = yield from _synced(_shard(name), marked, end)
                if problem:
                    why[name] = problem
                    late.append(name)
            if late and time.monotonic() >= end:
                shown = "; ".join(f"{name}: {why[name]}" for name in late)
                raise NotDurableError(
                    f"not durable within {self._timeout:g} s ({shown})",
                    "the writes were carried out; see `shardkit status`, or allow more time",
                )
            waiting = late

    def _commands(self, name: str, seconds: float) -> list[Command]:
        shard, milliseconds = _shard(name), max(1, round(1000 * seconds))
        found = [Command(shard, MARKER, ("SET", MARKER, 1, "PX", 1000))]
        if self._replicas:
            found.append(Command(shard, MARKER, ("WAIT", self._replicas, milliseconds)))
        if self._fsync:
            found.append(Command(shard, MARKER, ("WAITAOF", 1, 0, milliseconds)))
            found.append(Command(shard, MARKER, ("CONFIG", "GET", "appendfsync")))
        return found

    def _problem(self, replies: list[Any]) -> str:
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
            if isinstance(policy, ShardFailure) or b"everysec" in _words(policy):
                return _UNSURE
        return ""


_UNSURE = "the server has no WAITAOF, or one that says yes too early"


def _words(reply: Any) -> Any:
    """Return the words of a reply, which is a map in RESP3."""
    return reply.values() if isinstance(reply, dict) else reply


def _synced(shard: Shard, marked: float, end: float) -> Operation[str]:
    """Wait until a server has synced what it had at a time; return why not, or nothing."""
    while True:
        [reply] = yield Partial([Command(shard, MARKER, ("INFO",))])
        if isinstance(reply, ShardFailure):
            return str(reply)
        lines = dict(line.split(":", 1) for line in reply.decode().splitlines() if ":" in line)
        if lines.get("aof_enabled") != "1":
            return "it has no AOF"
        if _waits_for_syncs(lines):
            return ""
        # A sync that was due when the marker was written has begun a second later at most.
        left = marked + _EVERY_SECOND - time.monotonic()
        if left < 0 and lines.get("aof_pending_bio_fsync") == "0":
            return ""
        if time.monotonic() >= end:
            return "not on disk yet"
        yield Pause(min(max(left, _SYNC_PENDING), max(0.001, end - time.monotonic())))


def _waits_for_syncs(info: dict[str, str]) -> bool:
    """Whether a server's WAITAOF waits for a sync under ``everysec``, too."""
    major = info.get("redis_version", "0").partition(".")[0]
    return "valkey_version" not in info and int(major) >= 8


def _shard(name: str) -> Shard:
    component, _, number = name.rpartition(":")
    return Shard(component, int(number)) if component and number.isdigit() else Shard(name)


def _note(event: Event) -> None:
    if isinstance(event, CommandsSent):
        written = _written.get()
        if written is not None and not all(map(reads_by_name, event.names_of())):
            written.add(event.shard)
