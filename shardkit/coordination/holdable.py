"""What can be held: the protocol that locks, semaphores, read-write locks and elections share.

::

    acquire ── one script ──► free, and nobody waits ──────────────► held, with a token
                 │
                 └─► queued, in order of arrival                       ▲
                       │  wait to be woken; ask again every 2 seconds  │
                       └──────────────── granted by release ───────────┘
                                         or by whoever asks after the hold's end

A release gives what is free to the first who waits, in the same step, and wakes it: one round trip
from the release to the next holder, and nobody overtakes. The PUBLISH that wakes it says whether
its process is still there; if not, the next one gets it. A wake-up that is lost costs two seconds:
what was granted is stored. Without subscriptions (no right to channels, servers in memory) waiters
poll, after 5 milliseconds, then less and less often, up to every 100, and keep their places.

Each of these has four keys with its name as the hash tag, so each step is one script on one server,
by that server's clock::

    lock:{stock}            HASH  format 1, limit, token, arrivals, released, broken
    lock:{stock}:holders    ZSET  hold → when it ends, microseconds
    lock:{stock}:details    HASH  hold → "1 x 10000000 … label", see lua/base.lua
    lock:{stock}:waiters    ZSET  hold → order of arrival

A free lock keeps its first key, about 150 bytes, for eight days. If it is forgotten (or a failover
lost it), tokens increase all the same: they are at least the time in microseconds.

What holds: at most the limit hold at a time, by the clock of one server. What does not: replication
is asynchronous, so a failover can forget an acquisition, and grant the lock again while the first
holder works; ``durable`` makes that unlikely, and `Hold.guard` harmless.

After Redis in Action, sections 6.2, 6.3 and 11.2, whose semaphores trust clients' clocks, or can be
exceeded.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypedDict

from shardkit.coordination.hold import AsyncRenewals, Hold, Renewals
from shardkit.coordination.keys import (
    LONGEST_LABEL,
    LONGEST_TTL,
    MICROSECONDS,
    base_key,
    decode_label,
    default_label,
    encode_label,
    microseconds,
    running,
    running_id,
    waiting_time,
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
from shardkit.operations.arguments import shown
from shardkit.operations.cancellation import UndoableBatch, undo_on_cancel
from shardkit.operations.commands import (
    Abandon,
    Argument,
    AwaitWakeup,
    Command,
    Subscribe,
    script_call,
)
from shardkit.operations.drivers import AwaitingDriver
from shardkit.operations.lua import script
from shardkit.operations.operation import Driver, Face, Operation, Structure, operation
from shardkit.structures.base.arguments import check_integer
from shardkit.structures.base.server_clock import ServerClock

TTL = 10.0
WAIT = 10.0
DURABLE_TIMEOUT = 0.5
# Who is woken asks again after so long; its place in the queue is kept for five times that.
ASKS_AGAIN = 2.0
# How long who cannot be woken waits at first.
FIRST_PAUSE = 0.005
LONGEST_POLL = 0.1
# For how long others may overtake one who waits for what is not fair, in microseconds.
PATIENCE = 100_000
# How much later than a hold's end others look.
LATER = 0.001
EXCLUSIVE, SHARED = "x", "s"
UNSET: Any = type("Unset", (), {"__repr__": lambda _: "UNSET"})()


class HoldOptions(TypedDict, total=False):
    """The parameters of what can be held that all kinds share; see `Holdable`."""

    ttl: float
    wait: float | None
    reentrant: bool
    owner: str | None
    fair: bool
    durable: int
    durable_timeout: float
    label: str | None
    on_lost: Callable[[Hold[Any]], object] | None


class Holder(NamedTuple):
    """Who holds or waits for something, as an inspection shows it.

    Attributes:
        label: who it is; by default host, process and thread.
        mode: ``exclusive`` or ``shared``.
        token: its fencing token; 0 for one that waits.
        held: for how many seconds it holds.
        ends: in how many seconds its hold ends unless it is renewed, or its place in the queue
            unless it asks again.
        times: how often it acquired it.
        id: identifies the hold.
    """

    label: str
    mode: str
    token: int
    held: float
    ends: float
    times: int
    id: str


class HoldState(NamedTuple):
    """Who holds something, and who waits for it: the first 1,000 of each.

    Attributes:
        holders: by the end of their holds.
        waiters: in order of arrival.
        limit: how many may share it; 0 for any number.
    """

    holders: list[Holder]
    waiters: list[Holder]
    limit: int


class Holdable(Structure[Face]):
    """Something that can be held; see the module's text.

    Args:
        driver: runs its operations.
        component: where it lives.
        name: its name.
        renewals: renews its holds; None not to renew them.
        clock: tells the time.
        kind: the prefix of its keys.
        mode: whether holds exclude others or share.
        limit: how many may share; 0 for any number.
        ttl: the seconds that a hold lasts if it is not renewed, 0.001 to 86,400.
        wait: the most seconds to wait; 0 not to wait, None for ever.
        reentrant: whether the holding thread or task may acquire it once more.
        owner: text that identifies the holder of a reentrant hold instead; others with the same
            text, in whatever process, are the same holder.
        fair: whether it is given in order of arrival. If not, whoever asks while it is free has it,
            and who has waited for 100 milliseconds is the next all the same: more acquisitions a
            second by processes that all want it, as fewer are waited for until they run. The same
            for all who use it.
        durable: how many replicas must acknowledge an acquisition.
        durable_timeout: for how many seconds to wait for them.
        label: who acquires it, for inspections.
        on_lost: called with a hold that was lost, in the thread or task that found out.

    Raises:
        InvalidArgumentError: an argument is out of range.
    """

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str,
        renewals: Renewals | AsyncRenewals | None = None,
        clock: ServerClock | None = None,
        *,
        kind: str = "lock",
        mode: str = EXCLUSIVE,
        limit: int = 1,
        ttl: float = TTL,
        wait: float | None = WAIT,
        reentrant: bool = False,
        owner: str | None = None,
        fair: bool = True,
        durable: int = 0,
        durable_timeout: float = DURABLE_TIMEOUT,
        label: str | None = None,
        on_lost: Callable[[Hold[Any]], object] | None = None,
    ) -> None:
        super().__init__(undo_on_cancel(driver), component, name)
        self.kind = kind
        self.key = base_key(kind, name)
        self._keys = [self.key, *(f"{self.key}:{part}" for part in ("holders", "details"))]
        self._keys.append(f"{self.key}:waiters")
        self.limit = limit
        self.ttl = ttl
        microseconds(self.key, "ttl", ttl)
        self._wait = wait
        waiting_time(self.key, "wait", wait)
        check_integer(self.key, "durable", durable, 0, 1000)
        microseconds(self.key, "durable_timeout", durable_timeout, 0.001, 3600.0)
        if owner is not None and (not reentrant or not 0 < len(owner) <= LONGEST_LABEL):
            raise InvalidArgumentError(
                f"{self.key}: owner={shown(owner)}",
                f"give text of at most {LONGEST_LABEL} characters, with reentrant=True",
            )
        self._reentrant = reentrant
        self._reentrant_owner = owner
        self._mode = mode
        self._patience = 0 if fair else PATIENCE
        self._durable = durable
        self._durable_timeout = durable_timeout
        self._label = label
        self.on_lost = on_lost
        self.monotonic = (clock or ServerClock()).monotonic
        self._renewals = renewals
        self._holds: dict[object, list[Hold[Any]]] = {}  # by thread or task; of all faces
        self._owner: Holdable[Face] | None = None
        self._channel: str | None = None
        self._awaits = isinstance(driver, AwaitingDriver)

    @property
    def driver(self) -> Driver:
        """What runs its steps."""
        return self._driver

    # ---- acquiring

    @operation
    def acquire(
        self, *, wait: float | None = UNSET, ttl: float | None = None
    ) -> Operation[Hold[Face] | None]:
        """Acquire it, waiting for it in order of arrival.

        Args:
            wait: the most seconds to wait; 0 not to wait, None for ever; as it was made by default.
            ttl: the seconds that the hold lasts if it is not renewed; as it was made by default.

        Returns:
            The hold; None if it was not to be had in time.

        Raises:
            InvalidArgumentError: an argument is out of range.
            ParameterMismatchError: it was created with another limit.
            NotDurableError: too few replicas acknowledged the acquisition, which was given back.
            ShardErrors: the server failed. If it had acquired it by then, the hold is not renewed,
                and ends in time.

        Cancelling an async call gives back what it acquired, and its place in the queue.

        Cost: one exchange if it is free, O(log n) for n holders; with `durable` one more. Else one
        more each two seconds of waiting, and none when it is granted.
        """
        seconds = waiting_time(self.key, "wait", self._wait if wait is UNSET else wait)
        lasts = self.ttl if ttl is None else ttl
        id_ = secrets.token_hex(8)
        if self._reentrant:
            owner = self._reentrant_owner
            id_ = running_id() if owner is None else f"owner-{encode_label(owner)}"
        try:
            hold = yield from self._queue(id_, seconds, lasts)
        except (ShardErrors, DamagedDataError):  # also of a deadline
            yield Abandon(self._abandon(id_))
            raise
        if hold is None:
            return None
        if self._durable:
            yield from self._make_durable(hold)
        self._holds.setdefault(running(), []).append(hold)
        if self._renewals is not None:
            self._renewals.add(hold)
        return hold

    def _abandon(self, id_: str) -> Command:
        """Return what leaves nothing behind of an acquisition, wherever it was.

        What a reentrant holder had before stays; what it may have got now ends in time.
        """
        return self._call("release", id_, "unqueue" if self._reentrant else "abandon")

    def _queue(self, id_: str, seconds: float, ttl: float) -> Operation[Hold[Face] | None]:
        """Ask for it until it is granted, or the time is over."""
        lasts = microseconds(self.key, "ttl", ttl)
        until = self.monotonic() + seconds
        label = encode_label(default_label() if self._label is None else self._label)
        if seconds > 0 and self._channel is None:
            self._channel = yield Subscribe(self.component, self.key, connect=False)
        # It may be one of before, or of the process that forked; it is asked again before waiting.
        channel = (self._channel or "") if seconds > 0 else ""
        arrival, pause = 0, FIRST_PAUSE
        patient, told = 0.0, False
        asked = False
        while True:
            sent = self.monotonic()
            # Who polls asks at least ten times a second; who is woken, every two.
            place = 0 if seconds <= 0 else (5 * ASKS_AGAIN if channel else ASKS_AGAIN)
            args = (id_, self._mode, lasts, self.limit, label, channel or "-")
            once_more = int(self._reentrant and not asked)
            call = self._call(
                "acquire",
                *args,
                round(place * MICROSECONDS),
                arrival,
                once_more,
                self._patience,
                idempotent=not once_more,
            )
            [reply] = yield self._undoable(call, id_)
            token, now = reply[:2]
            if token < 0:
                raise ParameterMismatchError(
                    f"{self.key}: limit={self.limit}, but it was created with {now}",
                    "give the same everywhere, or change it with resize",
                )
            ends = reply[2]
            if token:
                return self._held(id_, token, sent, now, ends, ttl)
            if not asked:
                asked, patient = True, self.monotonic() + self._patience / MICROSECONDS
            arrival = reply[3]
            left = until - self.monotonic()
            if left <= 0:
                return (yield from self._leave(id_, ttl)) if seconds > 0 else None
            given, abandon = channel, self._abandon(id_)
            channel = self._channel = yield Subscribe(self.component, self.key, True, abandon)
            if channel != given:
                continue  # to say where it is to be woken
            ended = max(0.0, (ends - now) / MICROSECONDS) + LATER
            longest = min(left, ended, ASKS_AGAIN if channel else pause)
            if told and sent < patient:  # it is told once, and then granted, but not before that
                longest, pause = min(longest, pause), 2 * pause
            pause = pause if channel else min(LONGEST_POLL, 1.5 * pause)
            text = yield AwaitWakeup(self.component, self.key, id_, longest, abandon)
            if text is not None:
                woken_token, _, woken_until = text.partition(b" ")
                told = woken_token == b"0"  # it may be free, and is to be asked for
                if not told:
                    return self._held(id_, int(woken_token), sent, now, int(woken_until), ttl)

    def _undoable(self, call: Command, id_: str) -> list[Command]:
        """Return a batch that is undone if its task is cancelled; threads are not."""
        return UndoableBatch([call], lambda _: [self._abandon(id_)]) if self._awaits else [call]

    def _leave(self, id_: str, ttl: float) -> Operation[Hold[Face] | None]:
        """Give up waiting; what was granted meanwhile is taken all the same."""
        sent = self.monotonic()
        [reply] = yield self._undoable(self._call("release", id_, "leave"), id_)
        held, _, token, now, ends = reply
        return self._held(id_, token, sent, now, ends, ttl) if held else None

    def _held(
        self, id_: str, token: int, sent: float, now: int, ends: int, ttl: float
    ) -> Hold[Face]:
        owner = self._owner
        if owner is None or owner._driver is not self._driver or owner.on_lost is not self.on_lost:
            # Not this object, which has its holds: one that nobody has any more ends at once then.
            owner = self._owner = copy.copy(self)
            owner._holds, owner._owner = {}, None
        hold: Hold[Face] = Hold(owner, id_, token, 0.0, ttl)
        hold.extended(sent, now, ends)
        return hold

    def _make_durable(self, hold: Hold[Face]) -> Operation[None]:
        """Have replicas acknowledge a hold; WAIT is for what was written on its connection."""
        milliseconds = round(1000 * self._durable_timeout)
        sent = self.monotonic()
        renew = self.extend_call(hold, hold.ttl)
        wait = Command(self.component, self.key, ("WAIT", self._durable, milliseconds))
        [extended, acknowledged] = yield [renew, wait]
        hold.extended(sent, extended[1], extended[2])
        if not extended[0] or acknowledged < self._durable:
            yield [self._call("release", hold.id, "release")]
            hold.released = True
            raise NotDurableError(
                f"{self.key}: {acknowledged} of {self._durable} replicas acknowledged it in "
                f"{self._durable_timeout} s",
                "try again; look at the replicas with INFO replication",
            )

    # ---- what its holder does

    @operation
    def release(self, hold: Hold[Face] | None = None) -> Operation[bool]:
        """Release a hold, and give what is free to those who wait.

        Args:
            hold: the hold; by default the latest of the running thread or task.

        Returns:
            Whether it was still held. If not, others may have held it meanwhile.

        Raises:
            NotHolderError: the running thread or task has none.
            InvalidArgumentError: the hold is not one of this lock.
            ShardErrors: the server failed; the hold is not renewed, and ends in time.

        Cost: one exchange, O(log n) for n holders, and for each waiter that is woken or gone.
        """
        found = self._take(hold)
        lost = found.lost
        found.released = True
        [reply] = yield [self._call("release", found.id, "release", idempotent=True)]
        return bool(reply[0]) and not lost

    @operation
    def extend(self, ttl: float | None = None, hold: Hold[Face] | None = None) -> Operation[bool]:
        """Have a hold last for some seconds from now.

        Args:
            ttl: the seconds; by default those that it was acquired for.
            hold: the hold; by default the latest of the running thread or task.

        Returns:
            Whether it was still held; if not, nothing was changed.

        Raises:
            NotHolderError: the running thread or task has none.
            InvalidArgumentError: the time is out of range, or the hold not one of this lock.

        Cost: one exchange, O(log n) for n holders.
        """
        if ttl is not None:
            microseconds(self.key, "ttl", ttl)
        found = self._own(hold)
        seconds = found.ttl if ttl is None else ttl
        found.ttl = seconds
        return (yield from self.extend_hold(found, seconds))

    def extend_hold(self, hold: Hold[Any], ttl: float) -> Operation[bool]:
        """Extend a hold; if it has ended, note why."""
        sent = self.monotonic()
        [(token, now, until, reason)] = yield [self.extend_call(hold, ttl)]
        if token != hold.token:
            hold.lose(f"broken: {reason.decode(errors='replace')}" if reason else "it expired")
            return False
        hold.extended(sent, now, until)
        return not hold.lost

    def extend_call(self, hold: Hold[Any], ttl: float, token: int = 0) -> Command:
        """Return the command that extends a hold, and makes a token known."""
        return self._call("extend", hold.id, microseconds(self.key, "ttl", ttl), token)

    def release_call(self, id_: str) -> Command:
        """Return the command that releases a hold, if there is one."""
        return self._call("release", id_, "abandon")

    def new_attempt(self, ttl: float) -> tuple[str, Command, float]:
        """Return the id and the command of an attempt to acquire it, and when it is sent."""
        id_ = secrets.token_hex(8)
        label = encode_label(default_label() if self._label is None else self._label)
        lasts = microseconds(self.key, "ttl", ttl)
        call = self._call("acquire", id_, self._mode, lasts, self.limit, label, "-", 0, 0, 0, 0)
        return id_, call, self.monotonic()

    @operation
    def held(self, hold: Hold[Face] | None = None) -> Operation[bool]:
        """Whether a hold is still held, by the server's word.

        Args:
            hold: the hold; by default the latest of the running thread or task, if it has one.

        Cost: one exchange, O(1).
        """
        try:
            found = self._own(hold)
        except NotHolderError:
            return False
        [(token, *_)] = yield [self._call("extend", found.id, 0, 0)]
        return bool(token == found.token)

    def check(self) -> None:
        """Raise an error if the hold of the running thread or task was lost. Costs no exchange.

        Raises:
            LockLostError: it was lost.
            NotHolderError: it has none.
        """
        self._own(None).check()

    # ---- what others see

    @operation
    def inspect(self) -> Operation[HoldState]:
        """Return who holds it and who waits for it, the first 1,000 of each.

        Cost: one exchange, O(n) for n holders and waiters.
        """
        [reply] = yield [self._call("inspect", idempotent=True)]
        now, limit, holders, waiters = reply
        held = [_holder(row, now, waits=False) for row in _rows(holders)]
        waiting = [_holder(row, now, waits=True) for row in _rows(waiters)]
        return HoldState([each for each in held if each.ends > 0], waiting, limit)

    @operation
    def locked(self) -> Operation[bool]:
        """Whether anybody holds it.

        Cost: see `inspect`.
        """
        state = yield from Holdable.inspect.steps(self)
        return bool(state.holders)

    @operation
    def break_holds(self, reason: str, token: int | None = None) -> Operation[int]:
        """End holds that are somebody else's; their holders are told the reason when they renew.

        Args:
            reason: why.
            token: the token of the hold; None for all, at most 1,000.

        Returns:
            How many were ended.

        Cost: one exchange, O(n) for n holders.
        """
        if not reason.strip():
            raise InvalidArgumentError(f"{self.key}: break without a reason", "say why")
        check_integer(self.key, "token", token or 0, 0, 2**53)
        words = reason.encode(errors="replace")[:1000]
        [ended] = yield [self._call("break", token or 0, words)]
        return int(ended)

    # ---- blocks

    def __enter__(self) -> Hold[Face]:
        """Acquire it, or raise.

        Raises:
            LockTimeoutError: it was not to be had in time.
        """
        hold: Any = self._driver.run(Holdable.acquire.steps(self))
        if hold is None:
            raise self._timed_out()
        found: Hold[Face] = hold
        return found

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        hold = self._held_in_block(kind)
        if hold is None:
            return
        released: Any = self._driver.run(Holdable.release.steps(self))
        self._after_block(hold, bool(released), kind)

    async def __aenter__(self) -> Hold[Face]:
        """Acquire it, or raise; see `__enter__`."""
        acquiring: Any = self._driver.run(Holdable.acquire.steps(self))
        hold: Hold[Face] | None = await acquiring
        if hold is None:
            raise self._timed_out()
        return hold

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        hold = self._held_in_block(kind)
        if hold is None:
            return
        releasing: Any = self._driver.run(Holdable.release.steps(self))
        self._after_block(hold, bool(await releasing), kind)

    def _held_in_block(self, error: type[BaseException] | None) -> Hold[Any] | None:
        """Return the hold of a block; None if it failed, and had released it."""
        try:
            return self._own(None)
        except NotHolderError:
            if error is None:
                raise
            return None

    def _timed_out(self) -> LockTimeoutError:
        return LockTimeoutError(
            f"{self.key} was not to be had in {self._wait:g} s",
            "wait longer, or see who has it with `shardkit locks`",
        )

    def _after_block(
        self, hold: Hold[Any], released: bool, error: type[BaseException] | None
    ) -> None:
        if not released and error is None:
            hold.released = False
            hold.lose("it had ended when it was to be released")
            hold.check()

    # ---- helpers

    def _own(self, hold: Hold[Any] | None) -> Hold[Any]:
        """Return the hold that a call is about."""
        if hold is not None:
            if hold.place != (self.component, self.key):
                raise InvalidArgumentError(
                    f"{self.key}: hold={hold!r} in {hold.place[0]!r}",
                    f"give a hold that acquire returned for {self.key} in {self.component!r}",
                )
            return hold
        holds = self._holds.get(running())
        if not holds:
            raise NotHolderError(
                f"{self.key} is not held by the running thread or task",
                "acquire it first, or give the hold that acquire returned",
            )
        return holds[-1]

    def _take(self, hold: Hold[Any] | None) -> Hold[Any]:
        """Return the hold that a call releases, and forget it."""
        found = self._own(hold)
        who = running()
        if not self._forget(who, found):
            any(self._forget(other, found) for other in list(self._holds))
        return found

    def _forget(self, who: object, hold: Hold[Any]) -> bool:
        """Forget a hold of a thread or task; return whether it was one."""
        holds = self._holds.get(who, [])
        try:
            holds.remove(hold)
        except ValueError:
            return False
        if not holds:
            self._holds.pop(who, None)
        return True

    def _call(self, name: str, *args: Argument, idempotent: bool = True) -> Command:
        call = script(f"coordination/{name}")
        return script_call(self.component, call, self._keys, args, idempotent=idempotent)


def _rows(flat: Sequence[Any]) -> list[tuple[bytes, bytes, bytes]]:
    return list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))


def _holder(row: tuple[bytes, bytes, bytes], now: int, *, waits: bool) -> Holder:
    id_, score, details = row
    words = details.decode(errors="replace").split(" ")
    if len(words) < 9 or not all(word.isdecimal() for word in words[2:7]):
        words = ["1", "x", "0", "0", "0", "0", "0", "-", "-"]
    latest = now + LONGEST_TTL * MICROSECONDS  # a clock that was set back, if it is later
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
