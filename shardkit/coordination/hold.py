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
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from itertools import count
from math import inf
from typing import Any, Generic, TypeVar

from shardkit import log_records
from shardkit.callbacks import check_ran
from shardkit.coordination.guard import Guard
from shardkit.coordination.keys import MICROSECONDS, running
from shardkit.errors import ClosedError, LockLostError, ShardKitError
from shardkit.operations.arguments import Seconds
from shardkit.operations.deadlines import LONG_ENOUGH
from shardkit.operations.drivers import AwaitingDriver, BlockingDriver
from shardkit.operations.forks import process
from shardkit.operations.lanes import AsyncLanes, Job, Lanes
from shardkit.operations.operation import Face, Operation

T = TypeVar("T")

logger = logging.getLogger("shardkit.coordination")

# Parts of its time after which a hold is renewed, and tried again after a failure.
RENEWED_AFTER = 1 / 3
RETRIED_AFTER = 1 / 10


class Hold(Generic[Face]):
    """One acquisition of a lock, of a share of a semaphore, or of leadership.

    Attributes:
        token: its fencing token, larger than those of all earlier holds of the lock.
        ttl: the seconds that it lasts if it is not renewed.
    """

    def __init__(
        self, owner: Any, id_: str, number: str, token: int, until: float, ttl: float
    ) -> None:
        self._owner = owner  # a `Holdable`
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
        self._reported = False

    @property
    def remaining(self) -> float:
        """The seconds left by the holder's own clock; 0 when it has ended."""
        if self.released or self._reason:
            return 0.0
        now: float = self._owner.monotonic()
        return max(0.0, self._until - now)

    @property
    def lost(self) -> bool:
        """Whether it ended without being released."""
        return not self.released and self.remaining <= 0

    def check(self) -> None:
        """Raise LockLostError if the hold was lost. Costs no exchange."""
        if self.lost:
            self.report_lost()
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
        return Guard(owner._driver, component, owner.kind, owner.name, self.token, remember)

    @property
    def place(self) -> tuple[str, str]:
        """The component and the key of the lock."""
        return self._owner.component, self._owner.key

    def extended(self, sent: float, now: int, until: int) -> None:
        """Record the end that the server returned to a command sent at ``sent``."""
        self._until = sent + (until - now) / MICROSECONDS

    def lose(self, reason: str) -> None:
        """Record that it is lost, and tell its holder."""
        if not self.released and not self._reason:
            self._reason = reason
            self.report_lost()

    def report_lost(self) -> None:
        """Call the holder's callback, once."""
        self._reason = self._reason or "it expired"  # even if a late answer extends it
        if not self._reported:
            self._reported = True
            key, token, reason = self._owner.key, self.token, self._reason
            about = log_records.fields("lock-lost", lock=str(key), token=token, cause=reason)
            logger.warning("%s: token %d was lost: %s", key, token, reason, extra=about)
            if self._owner.on_lost is not None:
                try:
                    check_ran(self._owner.on_lost(self))
                except Exception:
                    about = log_records.fields("lock-callback-failed", lock=str(key))
                    logger.exception("%s: on_lost failed", key, extra=about)

    def patience(self) -> float:
        """Return the seconds that a renewal may take: less than what is left, for another try."""
        return max(LONG_ENOUGH, self.remaining * 2 / 3)

    def renew(self) -> Operation[float | None]:
        """Extend it, tolerating errors; return the seconds until the next time, None at its end."""
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
        me, latest = running(), None
        for holder, hold in reversed(self.copy()):
            if holder == me:
                return hold
            if of_others and latest is None and holder[0] == me[0]:
                latest = hold
        return latest

    def forget(self, hold: T) -> None:
        """Drop a hold."""
        for entry in self.copy():
            if entry[1] is hold:
                with suppress(ValueError):  # another thread was faster
                    self.remove(entry)


class _Renewing:
    """Renews holds by jobs; each adds its hold again."""

    def _job(self, hold: Hold[Any]) -> Job:
        return Job(*hold.place, self._renew(hold), hold.patience)

    def _renew(self, hold: Hold[Any]) -> Operation[None]:
        wait: float | None = hold.ttl * RETRIED_AFTER
        try:
            wait = yield from hold.renew()
        except Exception:  # a bug must not end the renewals
            about = log_records.fields("lock-renewal-failed")
            logger.exception("cannot renew holds", extra=about)
        if wait is not None:
            self._add(hold, wait)

    def add(self, hold: Hold[Any]) -> None:
        """Renew a hold until it is released, lost or no longer referenced."""
        self._add(hold, hold.ttl * RENEWED_AFTER)

    def _add(self, hold: Hold[Any], wait: float) -> None:
        """Renew a hold in ``wait`` seconds."""
        raise NotImplementedError


class Renewals(_Renewing):
    """Renews a blocking kit's holds: a thread tells which are due, lanes renew them.

    Waking the thread costs more than a lock. So a program that acquires many short holds wakes it
    once; it then sleeps until the first of them would have been due.
    """

    def __init__(self, driver: BlockingDriver, monotonic: Callable[[], float]) -> None:
        self._lanes = Lanes(driver, "shardkit-renewals")
        self._monotonic = monotonic
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition(threading.Lock())
        self._heap: list[tuple[float, int, weakref.ref[Hold[Any]]]] = []  # by when they are due
        self._numbers = count()
        self._most = 64  # entries before those that ended are removed
        self._wakes_at = inf  # when the thread wakes by itself
        self._thread: threading.Thread | None = None
        self._closed = False

    def _add(self, hold: Hold[Any], wait: float) -> None:
        if self._pid != os.getpid():
            self._reset()
        at = self._monotonic() + wait
        with self._changed:
            heapq.heappush(self._heap, (at, next(self._numbers), weakref.ref(hold)))
            if len(self._heap) > self._most:
                self._heap = [entry for entry in self._heap if _lasts(entry[2]())]
                heapq.heapify(self._heap)
                self._most = max(64, 2 * len(self._heap))
            if at < self._wakes_at:
                self._wakes_at = at
                self._changed.notify()
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, name="shardkit-renewals", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                due: list[Job] = []
                while not due and not self._closed:
                    self._changed.wait(self._sleep(self._monotonic()))
                    due = self._due(self._monotonic())
                if self._closed:
                    return
            self._lanes.start(due)
            del due  # so that a dropped hold is collected

    def _sleep(self, now: float) -> float | None:
        """Return the seconds to sleep: 0 if a hold is due, None for ever."""
        while self._heap and not _lasts(self._heap[0][2]()):
            heapq.heappop(self._heap)
        if self._heap:
            self._wakes_at = self._heap[0][0]
        elif self._wakes_at <= now:
            self._wakes_at = inf
        return None if self._wakes_at == inf else max(0.0, self._wakes_at - now)

    def _due(self, now: float) -> list[Job]:
        jobs = []
        while self._heap and self._heap[0][0] <= now:
            hold = heapq.heappop(self._heap)[2]()
            if hold is not None and not hold.released:
                jobs.append(self._job(hold))
        return jobs

    def close(self) -> None:
        """Stop: holds expire."""
        if self._pid == os.getpid():
            with self._changed:
                self._closed = True
                self._changed.notify()


def _lasts(hold: Hold[Any] | None) -> bool:
    return hold is not None and not hold.released


class AsyncRenewals(_Renewing):
    """Renews an async kit's holds, each by a timer of its event loop."""

    def __init__(self, driver: AwaitingDriver) -> None:
        self._lanes = AsyncLanes(driver, "shardkit-renewals")
        self._closed = False

    def _add(self, hold: Hold[Any], wait: float) -> None:
        # Without the caller's deadline.
        loop, context = asyncio.get_running_loop(), Context()
        ref = weakref.ref(hold, lambda _: timer.cancel())  # or the loop keeps it until then
        timer = loop.call_later(wait, self._start, ref, context=context)

    def _start(self, ref: weakref.ref[Hold[Any]]) -> None:
        hold = ref()
        if hold is not None and not hold.released and not self._closed:
            self._lanes.start([self._job(hold)])

    def close(self) -> None:
        """Stop: holds expire."""
        self._closed = True
