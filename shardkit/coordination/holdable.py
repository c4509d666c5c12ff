"""Locks, semaphores, read-write locks and elections, and the protocol that they share.

::

    acquire ── one script ──► free, and no waiters ────────────────► held, with a token
                 │
                 └─► queued, in order of arrival                       ▲
                       │  wait to be woken; ask again every 2 seconds  │
                       └──────────────── granted by a release ─────────┘
                                         or by a caller that asks after the hold's end

A release grants what is free to the first waiter, in the same step, and wakes it. So one round trip
separates a release from the next holder, and nobody overtakes. The PUBLISH that wakes a waiter
reports whether its process is still there; if not, the next waiter is granted the lock. The grant
is stored, so a lost wake-up costs two seconds. Without subscriptions (no right to channels, servers
in memory) waiters poll, after 5 milliseconds, then less often, up to every 100, and keep their
places.

Each has four keys with its name as the hash tag, so each step is one script on one server, by that
server's clock::

    lock:{stock}            HASH  format 1, limit, token, arrivals, released, broken, request
    lock:{stock}:holders    ZSET  hold → when it ends, microseconds
    lock:{stock}:details    HASH  hold → "1 x 10000000 … label", see lua/base.lua
    lock:{stock}:waiters    ZSET  hold → order of arrival

A free lock keeps its first key, about 150 bytes, for eight days. Tokens increase even after that,
or when a failover loses the key: a token is at least the time in microseconds.

The guarantee: at most ``limit`` callers hold it at a time, by the clock of one server. Replication
is asynchronous, so a failover can lose an acquisition and grant the lock again while the first
holder works; ``durable`` makes that unlikely, and `Hold.guard` makes it harmless.

After Redis in Action, sections 6.2, 6.3 and 11.2, whose semaphores trust clients' clocks, or can be
exceeded.
"""

from __future__ import annotations

import copy
import re
import secrets
from collections.abc import Callable
from itertools import count
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

from shardkit.coordination.hold import AsyncRenewals, Hold, OwnHolds, Renewals
from shardkit.coordination.keys import (
    LONGEST_LABEL,
    LONGEST_TTL,
    MICROSECONDS,
    base_key,
    decode_label,
    default_label,
    encode_label,
    microseconds,
    running_id,
)
from shardkit.errors import (
    DamagedDataError,
    InvalidArgumentError,
    LockTimeoutError,
    NotDurableError,
    NotHolderError,
    ParameterMismatchError,
    ShardErrors,
)
from shardkit.operations.arguments import Seconds, in_seconds, shown
from shardkit.operations.cancellation import Interrupted, surely
from shardkit.operations.commands import Abandon, Argument, AwaitWakeup, Command, Pause, Subscribe
from shardkit.operations.forks import process
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Stream,
    Structure,
    operation,
    pages,
    stream,
)
from shardkit.structures.base.arguments import check_integer, wait_seconds
from shardkit.structures.base.check import Damage, Suspicions, confirmed, script_damage
from shardkit.structures.base.server_clock import ServerClock

T = TypeVar("T")

TTL = 10.0
BLOCKING_TIMEOUT = 10.0
DURABLE_TIMEOUT = 0.5
# Seconds after which a waiter asks again; its place in the queue is kept five times as long.
ASKS_AGAIN = 2.0
_LISTED = 1_000  # holders and waiters, in one exchange
# Pauses of a waiter that polls.
FIRST_PAUSE, LONGEST_POLL = 0.005, 0.1
_ROLE_LOST = re.compile("WAIT cannot be used with replica|UNBLOCKED ")  # of WAIT
# Microseconds for which others may overtake a waiter with ``fair=False``.
PATIENCE = 100_000
# Seconds after a hold's end at which waiters ask.
LATER = 0.001
EXCLUSIVE, SHARED = "x", "s"
MOST_HOLDERS = 10_000
UNSET: Any = type("Unset", (), {"__repr__": lambda _: "UNSET"})()


class HoldOptions(TypedDict, total=False):
    """The parameters that all kinds of locks share; see `Holdable`."""

    ttl: Seconds
    timeout: Seconds
    blocking: bool
    blocking_timeout: Seconds | None
    reentrant: bool
    owner: str | None
    fair: bool
    durable: int
    durable_timeout: Seconds
    label: str | None
    on_lost: Callable[[Hold[Any]], object] | None


class Holder(NamedTuple):
    """A holder of a lock, or a waiter, as an inspection shows it.

    Attributes:
        label: its label; by default host, process and thread.
        mode: ``exclusive`` or ``shared``.
        token: its fencing token; 0 for a waiter.
        held_for: the seconds since it acquired the lock.
        ends_in: the seconds until its hold ends unless it is renewed, or until a waiter loses its
            place in the queue unless it asks again.
        acquired: how often it acquired the lock.
    """

    label: str
    mode: str
    token: int
    held_for: float
    ends_in: float
    acquired: int
    id: str


class HoldState(NamedTuple):
    """The first 1,000 holders and waiters of a lock.

    Attributes:
        holders: by the end of their holds.
        waiters: in order of arrival.
        limit: the most holders that share it; 0 for any number.
    """

    holders: list[Holder]
    waiters: list[Holder]
    limit: int


class HeldInBlocks(Structure[Face], Generic[Face, T]):
    """What is acquired for a ``with`` block, blocking or async, and released at its end."""

    acquire: Any
    release: Any
    key: str
    monotonic: Callable[[], float]
    _blocking_timeout: Any
    _holds: OwnHolds[T]
    _suspects = "find its holder with `shardkit locks`"

    def _seconds(self, blocking: bool, timeout: Any) -> float:
        """Return how long to wait, given the arguments of `acquire`."""
        timeout = self._blocking_timeout if timeout is UNSET else timeout
        return wait_seconds(self.key, timeout if blocking else 0, "blocking_timeout")

    def __enter__(self) -> T:
        """Acquire it; raise LockTimeoutError if the wait timed out."""
        return self._entered(self._driver.run(type(self).acquire.steps(self)))

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        hold = self._holds.latest()
        if kind is None or hold is not None:  # else it was released, or this is a forked child
            self._left(hold, self._driver.run(type(self).release.steps(self)), kind)

    async def __aenter__(self) -> T:
        """Acquire it; see `__enter__`."""
        return self._entered(await self._driver.run(type(self).acquire.steps(self)))

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        hold = self._holds.latest()
        if kind is None or hold is not None:
            self._left(hold, await self._driver.run(type(self).release.steps(self)), kind)

    def _entered(self, hold: T | None) -> T:
        if hold is None:
            raise LockTimeoutError(
                f"{self.key}: timed out after {self._blocking_timeout:g} s",
                f"wait longer, or {self._suspects}",
            )
        return hold

    def _left(self, hold: Any, kept: bool, error: object) -> None:
        """Take note of a release at the end of a block."""


class Holdable(HeldInBlocks[Face, Hold[Face]]):
    """A lock, semaphore, read-write lock or election.

    Threads and tasks may share it; each hold belongs to the one that acquired it.

    Args:
        renewals: renews its holds; None not to renew them.
        kind: the prefix of its keys.
        mode: whether holds exclude others or share.
        limit: the most holders that share it; 0 for any number.
        ttl: the seconds that a hold lasts if it is not renewed, 0.001 to 86,400.
        timeout: redis-py's name for ``ttl``.
        blocking: whether to wait.
        blocking_timeout: the most seconds to wait; 0 not to wait, None for ever.
        reentrant: whether the holding thread or task may acquire it again.
        owner: text that identifies the holder of a reentrant hold, in place of the thread or task;
            callers with the same text, in any process, are the same holder.
        fair: whether it is granted in order of arrival. If not, a free lock goes to the first
            client that asks, even if others are waiting; a client that has waited 0.1 s is still
            served next. That allows more acquisitions a second under contention. All clients must
            use the same value.
        durable: the number of replicas that must acknowledge an acquisition.
        durable_timeout: the most seconds to wait for them.
        label: describes the caller in inspections.
        on_lost: called with a lost hold, in the thread or task that detects the loss.
    """

    _kind, _mode, _fewest = "lock", EXCLUSIVE, 0  # the last: of its limits

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str,
        renewals: Renewals | AsyncRenewals | None = None,
        clock: ServerClock | None = None,
        *,
        kind: str | None = None,
        mode: str | None = None,
        limit: int = 1,
        ttl: Seconds = TTL,
        timeout: Seconds = UNSET,
        blocking: bool = True,
        blocking_timeout: Seconds | None = BLOCKING_TIMEOUT,
        reentrant: bool = False,
        owner: str | None = None,
        fair: bool = True,
        durable: int = 0,
        durable_timeout: Seconds = DURABLE_TIMEOUT,
        label: str | None = None,
        on_lost: Callable[[Hold[Any]], object] | None = None,
    ) -> None:
        super().__init__(driver, component, name)
        self.kind = kind or self._kind
        self.key = base_key(self.kind, name)
        parts = ("holders", "details", "waiters")
        self._keys = [self.key, *(f"{self.key}:{part}" for part in parts)]
        check_integer(name, "limit", limit, self._fewest, MOST_HOLDERS)
        self.limit = limit
        if timeout is not UNSET:
            ttl = timeout
        self.ttl: float = in_seconds(ttl)
        microseconds(self.key, "ttl", ttl)
        wait_seconds(self.key, blocking_timeout, "blocking_timeout")
        self._blocking_timeout = in_seconds(blocking_timeout) if blocking else 0
        check_integer(self.key, "durable", durable, 0, 1000)
        microseconds(self.key, "durable_timeout", durable_timeout, 0.001, 3600.0)
        if owner is not None and (not reentrant or not 0 < len(owner) <= LONGEST_LABEL):
            raise InvalidArgumentError(
                f"{self.key}: owner={shown(owner)}",
                f"give text of at most {LONGEST_LABEL} characters, with reentrant=True",
            )
        self._reentrant = reentrant
        self._reentrant_owner = owner
        self._mode = mode or self._mode
        self._patience = 0 if fair else PATIENCE
        self._durable = durable
        self._durable_timeout: float = in_seconds(durable_timeout)
        self._label = label
        self.on_lost = on_lost
        self.monotonic = (clock or ServerClock()).monotonic
        self._renewals = renewals
        self._holds = OwnHolds()  # of all faces
        self._owner: Holdable[Face] | None = None
        self._channel: str | None = None

    # ---- acquiring

    @operation
    def acquire(
        self,
        *,
        blocking: bool = True,
        blocking_timeout: Seconds | None = UNSET,
        ttl: Seconds | None = None,
    ) -> Operation[Hold[Face] | None]:
        """Acquire it in order of arrival; return the hold, None if the wait timed out.

        Args:
            blocking: whether to wait.
            blocking_timeout: the most seconds to wait; None for ever. By default, the lock's.
            ttl: the seconds that the hold lasts if it is not renewed. By default, the lock's.

        Raises:
            ParameterMismatchError: it was created with another limit.
            NotDurableError: too few replicas acknowledged the acquisition, which was released.
            ShardErrors: the server failed. If the lock was already acquired, the hold is not
                renewed and expires.

        Cancelling an async call releases what it acquired, and gives up its place in the queue.

        Cost: one exchange if it is free, O(log n) for n holders; with `durable` one more. Otherwise
        one more for each two seconds of waiting, and none when it is granted.
        """
        seconds = self._seconds(blocking, blocking_timeout)
        lasts = self.ttl if ttl is None else in_seconds(ttl)
        id_, number = secrets.token_hex(8), "0"
        if self._reentrant:
            id_, number = running_id(), id_
            if self._reentrant_owner is not None:
                id_ = f"owner-{encode_label(self._reentrant_owner)}"
        try:
            hold = yield from self._queue(id_, number, seconds, lasts)
            if hold is None:
                return None
            if self._durable:
                yield from self._make_durable(hold)
        except (ShardErrors, DamagedDataError, NotDurableError, Interrupted):  # a deadline too
            yield Abandon(self._call("release", id_, "abandon", number))
            raise
        self._holds.add(hold)
        if self._renewals is not None:
            self._renewals.add(hold)
        return hold

    def _queue(
        self, id_: str, number: str, seconds: float, ttl: float
    ) -> Operation[Hold[Face] | None]:
        """Ask for it until it is granted or the wait times out."""
        lasts = microseconds(self.key, "ttl", ttl)
        until = self.monotonic() + seconds
        label = encode_label(default_label() if self._label is None else self._label)
        if seconds > 0 and self._channel is None:
            self._channel = yield Subscribe(self.component, self.key, connect=False)
        # It may be an old channel, or the parent process's; `Subscribe` checks it before a wait.
        channel = (self._channel or "") if seconds > 0 else ""
        arrival, pause = 0, FIRST_PAUSE
        patient, is_woken = 0.0, False
        has_asked = False
        while True:
            sent = self.monotonic()
            # A polling waiter asks at least ten times a second, another one every two seconds.
            keeps = 0 if seconds <= 0 else (5 * ASKS_AGAIN if channel else ASKS_AGAIN)
            args = (id_, self._mode, lasts, self.limit, label, channel or "-")
            place = round(keeps * MICROSECONDS), arrival
            [reply] = yield [self._call("acquire", *args, *place, number, self._patience)]
            token, now = reply[:2]
            if token < 0:
                raise ParameterMismatchError(
                    f"{self.key}: limit={self.limit}, but it was created with {now}",
                    "use the same limit everywhere, or change it with resize",
                )
            ends = reply[2]
            if token:
                return self._granted(id_, number, token, sent, now, ends, ttl)
            if not has_asked:
                has_asked, patient = True, self.monotonic() + self._patience / MICROSECONDS
            arrival = reply[3]
            left = until - self.monotonic()
            if left <= 0:
                if seconds <= 0:
                    return None
                # Give up waiting, but keep what was granted in the meantime.
                sent = self.monotonic()
                [reply] = yield [self._call("release", id_, "leave", number)]
                was_granted, _, token, now, ends = reply
                if not was_granted:
                    return None
                return self._granted(id_, number, token, sent, now, ends, ttl)
            given = channel
            channel = self._channel = yield Subscribe(self.component, self.key)
            if channel != given:
                continue  # the server must know the new channel
            ended = max(0.0, (ends - now) / MICROSECONDS) + LATER
            longest = min(left, ended, ASKS_AGAIN if channel else pause)
            if is_woken and sent < patient:  # it was told to ask, which happens once
                longest, pause = min(longest, pause), 2 * pause
            pause = pause if channel else min(LONGEST_POLL, 1.5 * pause)
            text = yield AwaitWakeup(self.component, self.key, id_, longest)
            if text is not None:
                woken_token, _, woken_until = text.partition(b" ")
                is_woken = woken_token == b"0"  # it may be free: ask again
                if not is_woken:
                    ends = int(woken_until)
                    return self._granted(id_, number, int(woken_token), sent, now, ends, ttl)

    def _granted(
        self, id_: str, number: str, token: int, sent: float, now: int, ends: int, ttl: float
    ) -> Hold[Face]:
        owner = self._owner
        if owner is None or owner._driver is not self._driver or owner.on_lost is not self.on_lost:
            # A copy, since this object refers to its holds: a dropped hold must be collected.
            owner = self._owner = copy.copy(self)
            owner._holds, owner._owner = OwnHolds(), None
        hold: Hold[Face] = Hold(owner, id_, number, token, 0.0, ttl)
        hold.extended(sent, now, ends)
        return hold

    def _make_durable(self, hold: Hold[Face]) -> Operation[None]:
        """Wait for replicas to acknowledge a hold; WAIT covers writes of its own connection."""
        milliseconds = round(1000 * self._durable_timeout)
        until = self.monotonic() + self._durable_timeout
        renew = self.extend_call(hold, hold.ttl)
        wait = Command(self.component, self.key, ("WAIT", self._durable, milliseconds))
        while True:
            sent = self.monotonic()
            try:
                [extended, acknowledged] = yield [renew, wait]
                break
            except ShardErrors as errors:  # the master that extended it has become a replica
                if not _ROLE_LOST.search(str(errors)) or self.monotonic() > until:
                    raise
            yield Pause(FIRST_PAUSE)
        hold.extended(sent, extended[1], extended[2])
        if not extended[0] or acknowledged < self._durable:
            raise NotDurableError(
                f"{self.key}: {acknowledged} of {self._durable} replicas acknowledged it in "
                f"{self._durable_timeout} s",
                "check the replicas with INFO replication, and try again",
            )

    # ---- for its holder

    @operation
    def release(self, hold: Hold[Face] | None = None) -> Operation[bool]:
        """Release a hold, by default the caller's latest, and grant what is free to waiters.

        Returns:
            Whether it was still held. If not, others may have held the lock in the meantime.

        Raises:
            NotHolderError: the running thread or task has none, or another process acquired it.
            ShardErrors: the server failed; the hold is not renewed, and expires. Releasing it again
                is possible.

        Cancelling an async call releases it too.

        Cost: one exchange, O(log n) for n holders, and for each waiter that is woken or gone.
        """
        hold = self._own(hold)
        if hold.returned:
            return False
        lost = hold.lost
        [reply] = yield from surely([self.release_call(hold)])
        hold.returned = True
        return bool(reply[0]) and not lost

    def release_call(self, hold: Hold[Any]) -> Command:
        """Note that a hold is released, and return the command that releases it."""
        self._holds.forget(hold)
        hold.released = True
        return self._call("release", hold.id, "release", hold.number)

    @operation
    def extend(self, ttl: Seconds | None = None, hold: Hold[Face] | None = None) -> Operation[bool]:
        """Extend a hold, by default the caller's latest; return whether it was still held.

        Args:
            ttl: the seconds from now; by default the hold's.

        Raises:
            NotHolderError: the running thread or task has none.

        Cost: one exchange, O(log n) for n holders.
        """
        if ttl is not None:
            microseconds(self.key, "ttl", ttl)
        hold = self._own(hold)
        hold.ttl = hold.ttl if ttl is None else in_seconds(ttl)
        return (yield from self.extend_hold(hold, hold.ttl))

    def extend_hold(self, hold: Hold[Any], ttl: float) -> Operation[bool]:
        """Extend a hold; if it has ended, record why."""
        sent = self.monotonic()
        [(token, now, until, reason)] = yield [self.extend_call(hold, ttl)]
        if token != hold.token:
            hold.lose(f"broken: {reason.decode(errors='replace')}" if reason else "it expired")
            return False
        hold.extended(sent, now, until)
        return not hold.lost

    def extend_call(self, hold: Hold[Any], ttl: float, token: int = 0) -> Command:
        """Return the command that extends a hold, and raises the server's latest token."""
        return self._call("extend", hold.id, microseconds(self.key, "ttl", ttl), token)

    def abandon_call(self, id_: str) -> Command:
        """Return the command that releases a hold if it exists."""
        return self._call("release", id_, "abandon", 0)

    def new_attempt(self, ttl: float) -> tuple[str, Command, float]:
        """Return the id, the command and the start time of an attempt to acquire it."""
        id_ = secrets.token_hex(8)
        label = encode_label(default_label() if self._label is None else self._label)
        lasts = microseconds(self.key, "ttl", ttl)
        call = self._call("acquire", id_, self._mode, lasts, self.limit, label, "-", 0, 0, 0, 0)
        return id_, call, self.monotonic()

    @operation
    def held(self, hold: Hold[Face] | None = None) -> Operation[bool]:
        """Return whether the server has a hold, by default the caller's latest. One exchange."""
        try:
            hold = self._own(hold)
        except NotHolderError:
            return False
        [(token, *_)] = yield [self._call("extend", hold.id, 0, 0)]
        return bool(token == hold.token)

    def check(self) -> None:
        """Raise LockLostError if the caller's hold was lost, or NotHolderError. No exchange."""
        self._own(None).check()

    # ---- for other processes

    @operation
    def inspect(self) -> Operation[HoldState]:
        """Return the first 1,000 holders and waiters. Cost: one exchange, O(n) for n of them."""
        [reply] = yield [self._call("inspect")]
        now, limit, holders, waiters = reply
        active = [_holder(now, *row, waits=False) for row in pages(holders, 3)]
        waiting = [_holder(now, *row, waits=True) for row in pages(waiters, 3)]
        return HoldState([row for row in active if row.ends_in > 0], waiting, limit)

    @operation
    def locked(self) -> Operation[bool]:
        """Return whether it is held. Cost: see `inspect`."""
        state = yield from Holdable.inspect.steps(self)
        return bool(state.holders)

    @stream
    def check_stored(self) -> Stream[Damage]:
        """Return the damage that calls would refuse. Cost: one exchange for 1,000 holders."""
        for first in count(0, _LISTED):
            yield from confirmed(self._check_page, first)
            [[_, listed]] = yield [self._call("check", first)]
            if listed < _LISTED:
                return

    def _check_page(self, first: int) -> Operation[Suspicions]:
        [[damages, _]] = yield [self._call("check", first)]
        return script_damage(self.component, damages)

    @operation
    def break_holds(self, reason: str, token: int | None = None) -> Operation[int]:
        """End others' holds; return how many. Their holders get the reason when they renew.

        Args:
            reason: why; shown to the holders.
            token: the token of the hold; None for all, at most 1,000.

        Cost: one exchange, O(n) for n holders.
        """
        if not reason.strip():
            raise InvalidArgumentError(f"{self.key}: break without a reason", "give a reason")
        check_integer(self.key, "token", token or 0, 0, 2**53)
        words = reason.encode(errors="replace")[:1000]
        [ended] = yield [self._call("break", token or 0, words, secrets.token_hex(8))]
        return int(ended)

    def _left(self, hold: Any, kept: bool, error: object) -> None:
        if not kept and error is None:
            hold.released = False
            hold.lose("it ended before it was released")
            hold.check()

    def _own(self, hold: Hold[Any] | None) -> Hold[Any]:
        """Return the given hold, or the latest of the running thread or task."""
        if hold is None:
            hold = self._holds.latest()
            if hold is None:
                raise NotHolderError(
                    f"{self.key}: not held by the running thread or task",
                    "acquire it first, or give the hold that acquire returned",
                )
        if hold.place != (self.component, self.key):
            raise InvalidArgumentError(
                f"{self.key}: hold={hold!r} in {hold.place[0]!r}",
                f"give a hold that acquire returned for {self.key} in {self.component!r}",
            )
        if hold.pid != process.pid:
            raise NotHolderError(
                f"{self.key}: held by process {hold.pid}, which forked this one",
                "give it back there",
            )
        return hold

    def _call(self, name: str, *args: Argument) -> Command:
        return lua_call(self.component, f"coordination/{name}", self._keys, args, idempotent=True)


class Lock(Holdable[Face]):
    """A lock with at most one holder. Made by ``kit.lock``; see `Holdable` for its parameters."""

    deferred: DeferredFace[Lock[Deferred]]


class Semaphore(Holdable[Face]):
    """A counting semaphore: at most ``limit`` holders at a time, in order of arrival.

    Made by ``kit.semaphore``. Each holder has its own time to live, by the server's clock.

    Args:
        limit: the most holders, 1 to 10,000. The first call stores it; others must use the same.
    """

    deferred: DeferredFace[Semaphore[Deferred]]
    _kind, _mode, _fewest = "semaphore", SHARED, 1

    @operation
    def resize(self, limit: int) -> Operation[int]:
        """Change the limit for all clients; return the old one, 0 for an unused semaphore.

        Current holders keep their slots even if they exceed the new limit. Freed slots go to
        waiters. Clients that still use the old limit get ParameterMismatchError.

        Cost: one exchange, O(log n) for each waiter that is woken.
        """
        check_integer(self.key, "limit", limit, 1, MOST_HOLDERS)
        args = limit, secrets.token_hex(8)
        lua = "coordination/resize"
        [before] = yield [lua_call(self.component, lua, self._keys, args, idempotent=True)]
        self.limit = limit
        return int(before)


class ReadWriteLock:
    """A read-write lock: any number of readers, or one writer, in order of arrival.

    Made by ``kit.read_write_lock``. A waiting writer blocks later readers, so writers do not
    starve; readers that arrive together read together. A reader cannot become a writer, since two
    that tried would deadlock: release, then acquire to write.

    Attributes:
        read: acquire this to read, ``with lock.read:``.
        write: acquire this to write.
    """

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str,
        renewals: Renewals | AsyncRenewals | None = None,
        clock: ServerClock | None = None,
        **options: Any,
    ) -> None:
        common: dict[str, Any] = {"kind": "rwlock", "limit": 0, **options}
        where = (driver, component, name, renewals, clock)
        self.read: Lock[Any] = Lock(*where, mode=SHARED, **common)
        self.write: Lock[Any] = Lock(*where, mode=EXCLUSIVE, **common)

    def __repr__(self) -> str:
        return f"ReadWriteLock({self.read.name!r}, component={self.read.component!r})"


class Election(Holdable[Face]):
    """Leader election: at most one leader, whose term is larger than those of earlier leaders.

    Made by ``kit.election``; see `Holdable` for its parameters. It is a lock whose token is the
    term. A leader leads until it resigns, dies, or cannot renew its term in time; then the
    candidate that has waited longest is elected. Late writes of an earlier leader are refused where
    writes go through ``leadership.guard``. The lease is Gray and Cheriton's; the terms are those of
    Raft, without its replicated log.
    """

    deferred: DeferredFace[Election[Deferred]]
    _kind = "election"

    @operation
    def campaign(
        self, *, blocking: bool = True, blocking_timeout: Seconds | None = UNSET
    ) -> Operation[Hold[Face] | None]:
        """Be a candidate until elected; return a hold whose token is the term, as `acquire`."""
        leadership: Hold[Any] | None = yield from Holdable.acquire.steps(
            self, blocking=blocking, blocking_timeout=blocking_timeout
        )
        return leadership

    @operation
    def resign(self, leadership: Hold[Any] | None = None) -> Operation[bool]:
        """Give up the leadership; see `release`."""
        return (yield from Holdable.release.steps(self, leadership))

    @operation
    def leader(self) -> Operation[Holder | None]:
        """Return the leader, with its term as ``token``; or None. Cost: one exchange."""
        state = yield from Holdable.inspect.steps(self)
        return state.holders[0] if state.holders else None


def _holder(now: int, id_: bytes, score: bytes, details: bytes, *, waits: bool) -> Holder:
    words = details.decode(errors="replace").split(" ")
    if len(words) < 9 or not all(word.isdecimal() for word in words[2:7]):
        words = ["1", "x", "0", "0", "0", "0", "0", "-", "-"]
    latest = now + LONGEST_TTL * MICROSECONDS  # later only if the clock was set back
    ends = int(words[3]) if waits else int(min(max(float(score), 0.0), latest))
    return Holder(
        decode_label(words[8]),
        "exclusive" if words[1] == EXCLUSIVE else "shared",
        0 if waits else int(words[5]),
        0.0 if waits else (now - int(words[4])) / MICROSECONDS,
        (ends - now) / MICROSECONDS,
        0 if waits else int(words[6]),
        id_.decode(errors="replace"),
    )
