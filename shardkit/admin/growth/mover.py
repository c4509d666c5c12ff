"""The base of all moves, and how long they take; `server_move` and `shard_move` copy."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import stdev
from types import MappingProxyType
from typing import Any, ClassVar, TypedDict, TypeVar, Unpack

from redis.exceptions import RedisError

from shardkit.admin.changes import LEASE
from shardkit.admin.growth.certificate import ServerComparison, compare
from shardkit.admin.growth.exchange import check_share
from shardkit.admin.growth.failover import HOLD
from shardkit.admin.growth.journal import (
    KEYS,
    REPLICATION,
    Lease,
    Move,
    pending_fences,
    replace_server,
    servers_in,
)
from shardkit.admin.growth.relocation import ServerAddress, Stored, address_of, entries_in
from shardkit.admin.growth.servers import KnownServers, role_at, touched
from shardkit.config.component import Component
from shardkit.errors import GrowthError
from shardkit.operations.arguments import Seconds, check_seconds

D = TypeVar("D")

COPY = 3600.0  # seconds

Progress = Callable[[str], object]


class MoveOptions(TypedDict, total=False):
    """How a move works. Each option can be left out.

    Attributes:
        hold: how long writers may be held at a time, in seconds; 0.5 by default.
        copy_timeout: how long the copy may take, in seconds; an hour by default.
        kill: whether a move of shards closes connections that do not leave within two fifths of
            the hold; False by default.
        share: the share of the time in which the comparison works, and the copy of shards; they
            pause for the rest. 1.0 by default. (Replication is the servers' own work.)
        offline: whether writers are held for the whole copy of shards or of a split, which then
            needs no keyspace notifications; False by default. Each write waits for ten seconds, and
            then fails. Resume it with the same option.
        keep: whether the old databases of shards or of a split are kept up to date afterwards, so
            that `reverse_move` takes no longer than a cutover. The call then returns when another
            process calls `complete_move` or `reverse_move`. False by default.
        progress: a function that is called with a text about each step.
    """

    hold: Seconds
    copy_timeout: Seconds
    kill: bool
    share: float
    offline: bool
    keep: bool
    progress: Progress


class Mover(ABC):
    """One attempt at a move; the arguments are those of `growth.start_move`."""

    settled: ClassVar[tuple[str, ...]] = ("done", "aborted")
    """Phases in which another move of the same shards may start."""
    comparable: ClassVar[tuple[str, ...]] = ("done",)
    """Phases in which `verify` can compare."""

    def __init__(
        self,
        lease: Lease,
        components: Mapping[str, Component],
        move: Move,
        **options: Unpack[MoveOptions],
    ) -> None:
        self._lease, self._config = lease, lease.config
        self._components = components
        self._move = move
        self._back: MoveOptions = {**options, "keep": False, "offline": False}
        self._hold, self._copy_timeout, self._share = check_numbers(**options)
        self._kill, self._offline = options.get("kill", False), options.get("offline", False)
        if options.get("keep"):
            move.keep = True
        self._progress: Progress = options.get("progress", lambda what: None)
        self._pace = Pace(move, lease, self._progress, self._share)
        servers = *servers_in(move.source), *servers_in(move.target)
        self._servers = KnownServers(components.values(), *servers)
        self._same = self._servers.same

    @property
    def move(self) -> Move:
        """The move as it is now; its reversal once that has replaced it."""
        return self._move

    def _follow_failovers(self) -> bool:
        """Name promoted replicas in the place of the servers that they replace."""
        move = self._move
        servers = [*servers_in(move.source), *servers_in(move.target)]
        followed = False
        for server in servers if not move.is_over else ():
            successor = self._successor(server)
            is_known = any(self._same(successor, known) for known in servers)
            if successor and not is_known and self._has_replaced(successor, server):
                replace_server(move, server, successor)
                followed = True
        return followed

    def _has_replaced(self, successor: ServerAddress, server: ServerAddress) -> bool:
        """Whether a server that entries name was a replica, which a failover promoted."""
        login = self._servers.login(successor)
        try:
            former, role = (role_at(address, login) for address in (server, successor))
        except (RedisError, OSError):  # it is gone
            return True
        return (
            self._same(former.master, successor)
            or former.history in (role.history, role.raw.get("master_replid2"))
            or any(
                (fence.source, fence.target) == (server, successor)
                for fence in pending_fences(self._config)
            )
        )

    def _successor(self, server: ServerAddress) -> ServerAddress | None:
        """Return the server that entries name in the place of one that this move has."""
        entries = entries_in(self._components)
        for name, at, number in self._expected():
            entry = entries.get(name)
            if entry and at == server and number in (None, entry.database):
                return None if entry.is_cluster else address_of(entry)
        return None

    @abstractmethod
    def _expected(self) -> Iterable[tuple[str, ServerAddress, int | None]]:
        """Return where the entries of shards lead by now: a server, and a number or None."""

    @abstractmethod
    def _login(self, server: ServerAddress) -> Stored:
        """Return a login that a server accepts."""

    @abstractmethod
    def _touched(self) -> Mapping[ServerAddress, Iterable[object]]:
        """Return the numbers of the databases that the move touches, by server."""

    def begin(self) -> None:
        """Record the move; a GrowthError tells of another change that touches its databases."""
        self._move.databases += touched(self._touched(), self._login)
        self._lease.write(self._move)

    def _can_continue(self) -> GrowthError:
        name = self._move.name
        return GrowthError(
            f"the move of {name} ({self._move.phase}) has lost no server and closes databases",
            f"resume it: shardkit move resume {name}. If its new server is gone for good: --lost",
        )

    def _in_the_way(self, shard: object, place: object) -> GrowthError:
        return GrowthError(
            f"{shard}: somebody has pushed an entry that leads to {place}, which this move is to "
            "fill or to empty: nothing has changed",
            f"push another one, or: shardkit move abort {self._move.name}",
        )

    def _without_keys(self, source: object) -> GrowthError:
        name, target = self._move.name, self._move.target
        return GrowthError(
            f"{source} has come back without its keys, and {target} has what was copied",
            f"restore a backup, or: shardkit move abort {name}, which leaves the copy",
        )

    def _reached(self, phase: str) -> None:
        self._move.phase, self._move.progress = phase, {}
        self._lease.write(self._move)

    def _compare(
        self,
        first: Callable[[D], Any],
        second: Callable[[D], Any],
        databases: Iterable[D],
        **options: Any,
    ) -> ServerComparison:
        self._progress("comparing")
        return compare(
            first,
            second,
            databases,
            lambda keys: self._pace.note(COMPARING, keys, self._move.total, "keys"),
            self._share,
            **options,
        )


COPIED, COMPARING = "copied", "comparing"
# Seconds for each key, and for each of its bytes in memory, as benchmarks/growth measures them.
_COSTS = {REPLICATION: (0.0, 8e-9), KEYS: (11e-6, 27e-9), COMPARING: (33e-6, 22e-9)}
# Seconds to compare an element, by its collection's type, as measured beside small strings.
_OF_ELEMENT = {"hash": 9e-6, "stream": 8e-6, "zset": 6e-6, "set": 6e-6, "list": 2e-6, "string": 0.0}
_UNSURE = 0.5  # the part by which the load of servers changes in any case
_UNKNOWN = 4.0  # by what an estimate is wrong without a measurement
_FEW = 0.02  # seconds of measured work that tell half of what many would tell
_FIRST = 0.01  # the part of a step from which the rest is estimated
_EVERY = 1.0  # seconds between two notes in the journal


def _expected(what: str, keys: float, size: float) -> float:
    of_key, of_byte = _COSTS[what]
    return keys * of_key + size * of_byte


def duration(
    copying: str,
    keys: float,
    size: float,
    elements: Mapping[str, float] = MappingProxyType({}),
) -> float:
    """Return about how many seconds it takes to copy and compare keys that use some bytes.

    ``elements`` has how many elements there are, by the type of their collections.
    """
    more = sum(count * _OF_ELEMENT[kind] for kind, count in elements.items())
    return _expected(copying, keys, size) + _expected(COMPARING, keys, size) + more


@dataclass(frozen=True)
class Expected:
    """How long a move will probably take, in seconds.

    Attributes:
        seconds: the most probable time.
        least: the shortest time that is probable.
        most: the longest.
        slowness: by what the servers and this machine are slower at the moment than an idle one.
    """

    seconds: float
    least: float
    most: float
    slowness: float = 1.0

    @classmethod
    def of(cls, seconds: float, measured: Sequence[tuple[float, float]]) -> Expected:
        """Return what is expected, by the time on an idle machine.

        ``measured`` has of parts of the work how long each took just now, and on an idle machine.
        """
        parts = [(now, idle) for now, idle in measured if now > 0 < idle]
        now, idle = (sum(column) for column in zip((0.0, 0.0), *parts, strict=True))
        # Of few keys it is the exchanges that take the time: then little is known.
        slowness, known = (now + _FEW) / (idle + _FEW), idle / (idle + _FEW)
        spread = 0.0
        if len(parts) > 1:
            spread = 2 * stdev(now / idle for now, idle in parts) / len(parts) ** 0.5 / slowness
        unsure = max(1 + _UNSURE, 1 + spread, known + (1 - known) * _UNKNOWN)
        seconds *= slowness
        return cls(seconds, seconds / unsure, seconds * unsure, slowness)

    def __str__(self) -> str:
        return f"{self.seconds:,.0f} s ({self.least:,.0f} to {self.most:,.0f} s)"


def check_numbers(
    hold: Seconds = HOLD, copy_timeout: Seconds = COPY, share: float = 1.0, **_others: object
) -> tuple[float, float, float]:
    """Return the options of a move that are numbers, checked; times in seconds."""
    copy_timeout = check_seconds("move", "copy_timeout", copy_timeout)
    return check_seconds("move", "hold", hold), copy_timeout, check_share("move", share)


class Pace:
    """Tells how far the steps of a move are, and notes it in the journal, for other processes.

    What is left is estimated from the number of keys and their bytes, and from the first percent
    on by how long the part took that is done.
    """

    def __init__(self, move: Move, lease: Lease, tell: Callable[[str], object], share: float):
        self._move, self._lease, self._tell = move, lease, tell
        self._step = ""
        self._began = self._noted = time.monotonic()
        slow = move.slowness
        copied = slow * _expected(move.copying, move.total, move.memory)
        self._expected = {COPIED: copied / (share if move.copying == KEYS else 1.0)}
        # Earlier releases noted nothing.
        comparing = slow * _expected(COMPARING, move.total, move.memory)
        comparing = max(comparing, move.expected - copied)
        self._expected[COMPARING] = comparing / share

    def note(self, step: str, done: int, total: int, unit: str, size: int = 0) -> None:
        """Tell that so much of a step is done; `size` is the bytes of the keys that were copied."""
        now, move = time.monotonic(), self._move
        if step != self._step:
            self._step, self._began = step, now
        spent, part = now - self._began, done / max(1, total)
        if size:  # large values may be most of the work
            whole = _expected(KEYS, total, move.memory)
            part = max(part, _expected(KEYS, done, size) / max(whole, 1e-9))
        part = min(1.0, part)
        before = self._expected[step]
        if part >= _FIRST:
            self._expected[step] = spent / part
        left = self._expected[step] * (1 - part)
        if step == COPIED:  # a slower copy than expected is followed by a slower comparison
            if move.copying == KEYS and before:
                self._expected[COMPARING] *= self._expected[step] / before
            left += self._expected[COMPARING]
        rate = done / spent if spent else 0.0
        text = f"{step} {done:,} of {total:,} {unit}"
        text += f", {size / 1e6:,.0f} MB" if size else ""
        if rate:
            text += f", {rate:,.0f} a second, about {_span(left)} left"
        move.progress = {"text": text, "done": done, "total": total}
        move.progress |= {"rate": round(rate, 1), "left": round(left, 1), "at": time.time()}
        if now > self._noted + _EVERY:
            self._noted = now
            with suppress(GrowthError, RedisError):  # the next phase finds out that the lease ended
                self._lease.write(move)
        self._tell(text)


def progress_of(move: Move) -> str:
    """Return how far a move is, whichever process works on it; empty if that is not known."""
    if move.is_over or not move.progress:
        return ""
    age = time.time() - move.progress["at"]
    return f"{move.progress['text']}{f' ({_span(age)} ago)' if age > LEASE else ''}"


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} min"
