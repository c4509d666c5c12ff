"""Holds: the result of an acquisition, and the kit's thread or task that renews them.

A hold ends when it is released, expires or is broken. Its holder is told at the next `Hold.check`,
at the end of the ``with`` block, and by a callback. Between answers of the server, a holder relies
on its own clock. It counts from before it sent the command that extended the hold, so unless clocks
run at different speeds it considers the hold lost before others can acquire the lock::

    holder   sent ─────────────── answer: now=N, until=U      lost here ▼
               └── N is at the earliest here ────────────── sent + (U - N) ┊
    server            N ──────────────────────────────────────────────── U ▼ others may hold it

A process that is stopped or swapped out between a check and a write can still write too late. Only
`Hold.guard` protects the data from that.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from shardkit import log_records
from shardkit.callbacks import check_ran
from shardkit.coordination.guard import Guard
from shardkit.coordination.keys import MICROSECONDS, running
from shardkit.errors import ClosedError, LockLostError, ShardKitError
from shardkit.operations.arguments import Seconds
from shardkit.operations.commands import Command
from shardkit.operations.drivers import AwaitingDriver, BlockingDriver
from shardkit.operations.forks import process
from shardkit.operations.interruptions import BackgroundThread
from shardkit.operations.kept import kept_with
from shardkit.operations.operation import Driver, Face, Operation

T = TypeVar("T")

logger = logging.getLogger("shardkit.coordination")

_RENEWAL_FAILED = log_records.fields("lock-renewal-failed")

# Parts of its time after which a hold is renewed, and tried again after a failure.
RENEWED_AFTER = 1 / 3
RETRIED_AFTER = 1 / 10


class HoldOwner(Protocol):
    """What a hold belongs to."""

    kind: str
    component: str
    name: str
    key: str
    on_lost: Callable[[Hold[Any]], object] | None
    monotonic: Callable[[], float]

    @property
    def driver(self) -> Driver:
        """The driver that runs its operations."""

    def extend_hold(self, hold: Hold[Any], ttl: float) -> Operation[bool]:
        """Extend a hold."""

    def extend_call(self, hold: Hold[Any], ttl: float, token: int = 0) -> Command:
        """Return the command that extends a hold, and raises the server's latest token."""


class Hold(Generic[Face]):
    """One acquisition of a lock, of a share of a semaphore, or of leadership.

    Attributes:
        name: the lock's name.
        token: its fencing token, larger than those of all earlier holds of the lock.
        id: its id.
        ttl: the seconds that it lasts if it is not renewed.
        released: whether it was released.
    """

    def __init__(
        self, owner: HoldOwner, id_: str, number: str, token: int, until: float, ttl: float
    ) -> None:
        self._owner = owner
        self.name = owner.name
        self.id = id_
        self.token = token
        self.ttl = ttl
        self.released = False
        self.number = number  # of this acquisition, if it is one of several with the id
        self.returned = False  # whether the server has answered the release
        self.pid = process.pid
        self._until = until
        self._reason = ""
        self._told = False

    @property
    def remaining(self) -> float:
        """The seconds left by the holder's own clock; 0 when it has ended."""
        if self.released or self._reason:
            return 0.0
        return max(0.0, self._until - self._owner.monotonic())

    @property
    def lost(self) -> bool:
        """Whether it ended without being released."""
        return not self.released and self.remaining <= 0

    def check(self) -> None:
        """Raise an error if the hold was lost. Costs no exchange.

        Raises:
            LockLostError: it was lost.
        """
        if self.lost:
            self.tell_lost()
            raise LockLostError(
                f"{self._owner.key}: the hold with token {self.token} was lost: "
                f"{self._reason or 'it expired'}",
                "undo or repeat what was done under it, as others may hold it now",
            )

    def guard(self, component: str, *, remember: Seconds | None = None) -> Guard[Face]:
        """Return a guard, whose writes are refused once a later holder has written; see `Guard`.

        Args:
            component: where it writes.
            remember: the seconds for which a server keeps a token after its latest use. Must exceed
                the longest time that a holder can be stopped. None for ever, at the cost of one
                small key for each lock and server, on a cluster each slot.
        """
        owner = self._owner
        return Guard(owner.driver, component, owner.kind, owner.name, self.token, remember)

    @property
    def place(self) -> tuple[str, str]:
        """The component and the key of the lock."""
        return self._owner.component, self._owner.key

    def claim_token(self, token: int) -> Command:
        """Return the command that extends it, and raises the server's latest token."""
        return self._owner.extend_call(self, self.ttl, token)

    def extended(self, sent: float, now: int, until: int) -> None:
        """Record the end that the server returned to a command sent at ``sent``."""
        self._until = sent + (until - now) / MICROSECONDS

    def lose(self, reason: str) -> None:
        """Record that it is lost, and tell its holder."""
        if not self.released and not self._reason:
            self._reason = reason
            self.tell_lost()

    def tell_lost(self) -> None:
        """Call the holder's callback, once."""
        self._reason = self._reason or "it expired"  # even if a late answer extends it
        if not self._told:
            self._told = True
            key, token, reason = self._owner.key, self.token, self._reason
            about = log_records.fields("lock-lost", lock=str(key), token=token, cause=reason)
            logger.warning("%s: token %d was lost: %s", key, token, reason, extra=about)
            if self._owner.on_lost is not None:
                try:
                    check_ran(self._owner.on_lost(self))
                except Exception:
                    about = log_records.fields("lock-callback-failed", lock=str(key))
                    logger.exception("%s: on_lost failed", key, extra=about)

    def renew(self) -> Operation[float | None]:
        """Extend it, tolerating errors while it lasts.

        Returns:
            The seconds until the next renewal; None when it has ended.
        """
        if self.released:
            return None
        try:
            if (yield from self._owner.extend_hold(self, self.ttl)):
                return self.ttl * RENEWED_AFTER
            self.lose(self._reason or "it expired before it was renewed")
        except ClosedError:
            return None
        except ShardKitError as error:
            if self.remaining > 0:
                return min(self.ttl * RETRIED_AFTER, self.remaining)
            self.lose(f"it could not be renewed: {error}")
        return None

    def __repr__(self) -> str:
        state = "released" if self.released else "lost" if self.lost else f"{self.remaining:.3f} s"
        return f"<Hold of {self._owner.key}, token {self.token}: {state}>"


class OwnHolds(list[tuple[tuple[int, int], T]]):
    """What the threads and tasks of this process hold; a forked child holds none of it."""

    def add(self, hold: T) -> None:
        """Add a hold of the running thread or task."""
        self.append((running(), hold))

    def latest(self, *, of_others: bool = False) -> T | None:
        """Return the latest hold of the running thread or task, or if wanted of another one."""
        me, found = running(), None
        for holder, hold in reversed(self.copy()):
            if holder == me:
                return hold
            if of_others and found is None and holder[0] == me[0]:
                found = hold
        return found

    def forget(self, hold: T) -> None:
        """Drop a hold."""
        for entry in self.copy():
            if entry[1] is hold:
                with suppress(ValueError):  # another thread was faster
                    self.remove(entry)


class _Schedule:
    """When to renew each hold. A hold without references is left to expire.

    Waking the renewing thread costs more than a lock. So a program that acquires many short holds
    wakes it once; it then sleeps until the first of them would have been due.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, weakref.ref[Hold[Any]]]] = []
        self._numbers = count()
        self._most = 64  # entries before those that ended are removed
        self._wakes_at = inf  # when the renewing thread wakes by itself

    def add(self, hold: Hold[Any], at: float) -> bool:
        """Add a hold; return whether the renewing thread must be woken."""
        heapq.heappush(self._heap, (at, next(self._numbers), weakref.ref(hold)))
        if len(self._heap) > self._most:
            self._heap = [entry for entry in self._heap if _lasts(entry[2]())]
            heapq.heapify(self._heap)
            self._most = max(64, 2 * len(self._heap))
        if at >= self._wakes_at:
            return False
        self._wakes_at = at
        return True

    def add_all(self, holds: list[Hold[Any]], waits: Sequence[float | None], now: float) -> None:
        for hold, wait in zip(holds, waits, strict=True):
            if wait is not None:
                self.add(hold, now + wait)

    def sleep(self, now: float) -> float | None:
        """Return the seconds to sleep: 0 if a hold is due, None for ever."""
        while self._heap and not _lasts(self._heap[0][2]()):
            heapq.heappop(self._heap)
        if self._heap:
            self._wakes_at = self._heap[0][0]
        elif self._wakes_at <= now:
            self._wakes_at = inf
        return None if self._wakes_at == inf else max(0.0, self._wakes_at - now)

    def due(self, now: float) -> list[Hold[Any]]:
        holds = []
        while self._heap and self._heap[0][0] <= now:
            hold = heapq.heappop(self._heap)[2]()
            if hold is not None and not hold.released:
                holds.append(hold)
        return holds


def _lasts(hold: Hold[Any] | None) -> bool:
    return hold is not None and not hold.released


class Renewals:
    """Renews a blocking kit's holds in a thread, all that are due in one exchange."""

    def __init__(self, driver: BlockingDriver, monotonic: Callable[[], float]) -> None:
        self._driver = driver
        self._monotonic = monotonic
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition(threading.Lock())
        self._schedule = _Schedule()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, hold: Hold[Any]) -> None:
        """Renew a hold until it is released, lost or no longer referenced."""
        if self._pid != os.getpid():
            self._reset()
        at = self._monotonic() + hold.ttl * RENEWED_AFTER
        with self._changed:
            wake = self._schedule.add(hold, at)
            if self._thread is None and not self._closed:
                self._thread = BackgroundThread(
                    target=self._run, name="shardkit-renewals", daemon=True
                )
                self._thread.start()
            elif wake:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                due: list[Hold[Any]] = []
                while not due and not self._closed:
                    self._changed.wait(self._schedule.sleep(self._monotonic()))
                    due = self._schedule.due(self._monotonic())
                if self._closed:
                    return
            try:
                waits = self._driver.together(*(hold.renew() for hold in due))
            except Exception:  # each handles its own; this thread serves the others
                logger.exception(
                    "cannot renew holds", extra=log_records.fields("lock-renewal-failed")
                )
                waits = [hold.ttl * RETRIED_AFTER for hold in due]
            with self._changed:
                self._schedule.add_all(due, waits, self._monotonic())
            del due  # so that a dropped hold is collected

    def close(self) -> None:
        """Stop: holds expire."""
        if self._pid == os.getpid():
            with self._changed:
                self._closed = True
                self._changed.notify()


class AsyncRenewals:
    """Renews an async kit's holds, in a task of each event loop."""

    def __init__(self, driver: AwaitingDriver, monotonic: Callable[[], float]) -> None:
        self._driver = driver
        self._monotonic = monotonic
        self._tasks: weakref.WeakSet[asyncio.Task[None]] = weakref.WeakSet()

    def add(self, hold: Hold[Any]) -> None:
        """Renew a hold until it is released, lost or no longer referenced."""
        loop = asyncio.get_running_loop()
        kept = kept_with(loop, self)
        renewal = kept.get("renewal")
        if renewal is None or renewal[2].done():
            schedule, changed = _Schedule(), asyncio.Event()
            renewing = _renew(self._driver, self._monotonic, schedule, changed)
            task = loop.create_task(renewing, name="shardkit-renewals")
            renewal = kept["renewal"] = schedule, changed, task
            self._tasks.add(task)
        if renewal[0].add(hold, self._monotonic() + hold.ttl * RENEWED_AFTER):
            renewal[1].set()

    def close(self) -> None:
        """Stop: holds expire."""
        for task in list(self._tasks):
            if not task.get_loop().is_closed():
                task.get_loop().call_soon_threadsafe(task.cancel)
        self._tasks.clear()


async def _renew(
    driver: AwaitingDriver,
    monotonic: Callable[[], float],
    schedule: _Schedule,
    changed: asyncio.Event,
) -> None:
    """Renew a loop's holds; for as long as the loop and the kit exist."""
    while True:
        seconds = schedule.sleep(monotonic())
        if seconds != 0:
            changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await changed.wait()
        due = schedule.due(monotonic())
        if not due:
            continue
        try:
            waits = await driver.together(*(hold.renew() for hold in due))
        except Exception:  # each handles its own; this task serves the others
            logger.exception("cannot renew holds", extra=log_records.fields("lock-renewal-failed"))
            waits = [hold.ttl * RETRIED_AFTER for hold in due]
        schedule.add_all(due, waits, monotonic())
        del due  # so that a dropped hold is collected
