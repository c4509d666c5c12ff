"""Holds: what an acquisition gives, and the kit's own thread or task that renews them.

A hold ends when it is released, when it expires, or when somebody breaks it. Its holder is told at
the next `Hold.check`, at the end of the ``with`` block, and by a callback. By itself it can only
know when it ends by its own clock. It counts from before the command was sent whose answer told the
time, so unless clocks run at different speeds it thinks of itself as lost before others can hold
the lock::

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
from typing import Any, Generic, Protocol

from shardkit.coordination.guard import Guard
from shardkit.coordination.keys import MICROSECONDS
from shardkit.errors import ClosedError, LockLostError, ShardKitError
from shardkit.operations.commands import Command
from shardkit.operations.drivers import AwaitingDriver, BlockingDriver
from shardkit.operations.operation import Driver, Face, Operation

logger = logging.getLogger("shardkit.coordination")

# A hold is renewed when a third of its time is over; when that fails, again after a tenth of it.
RENEWED_AFTER = 1 / 3
RETRIED_AFTER = 1 / 10


class HoldOwner(Protocol):
    """What a hold is of."""

    kind: str
    component: str
    name: str
    key: str
    on_lost: Callable[[Hold[Any]], object] | None
    monotonic: Callable[[], float]

    @property
    def driver(self) -> Driver:
        """What runs its steps."""

    def extend_hold(self, hold: Hold[Any], ttl: float) -> Operation[bool]:
        """Extend a hold."""

    def extend_call(self, hold: Hold[Any], ttl: float, token: int = 0) -> Command:
        """Return the command that extends a hold, and makes a token known."""


class Hold(Generic[Face]):
    """One acquisition of a lock, of a share of a semaphore, or of the leadership.

    Attributes:
        name: the lock's name.
        token: its fencing token: larger than that of every earlier hold of the lock.
        id: identifies it.
        ttl: the seconds that it lasts if it is not renewed.
    """

    def __init__(self, owner: HoldOwner, id_: str, token: int, until: float, ttl: float) -> None:
        self._owner = owner
        self.name = owner.name
        self.id = id_
        self.token = token
        self.ttl = ttl
        self.released = False
        self._until = until
        self._reason = ""
        self._told = False

    @property
    def remaining(self) -> float:
        """The seconds for which it lasts by the holder's own clock; 0 when it has ended."""
        if self.released or self._reason:
            return 0.0
        return max(0.0, self._until - self._owner.monotonic())

    @property
    def lost(self) -> bool:
        """Whether it has ended although it was not released."""
        return not self.released and self.remaining <= 0

    def check(self) -> None:
        """Raise an error if the hold was lost. Costs no exchange.

        Raises:
            LockLostError: it was.
        """
        if self.lost:
            self.tell_lost()
            raise LockLostError(
                f"{self._owner.key}: the hold with token {self.token} was lost: "
                f"{self._reason or 'it expired'}",
                "undo or repeat what was done under it; others may hold it now",
            )

    def guard(self, component: str, *, remember: float | None = None) -> Guard[Face]:
        """Return what writes to a component only while no later holder has; see `Guard`.

        Args:
            component: where it writes.
            remember: the seconds for which a server remembers a token after its latest use, longer
                than any holder can be stopped for; None for ever, which costs one small key for
                each lock and server, on a cluster each slot.
        """
        owner = self._owner
        return Guard(owner.driver, component, owner.kind, owner.name, self.token, remember)

    @property
    def place(self) -> tuple[str, str]:
        """The component and the key of what is held."""
        return self._owner.component, self._owner.key

    def claim_token(self, token: int) -> Command:
        """Return the command that extends it, and makes a token known to its server."""
        return self._owner.extend_call(self, self.ttl, token)

    def extended(self, sent: float, now: int, until: int) -> None:
        """Note until when it lasts: what the server said in answer to what was sent then."""
        self._until = sent + (until - now) / MICROSECONDS

    def lose(self, reason: str) -> None:
        """Note that it is lost, and tell its holder."""
        if not self.released and not self._reason:
            self._reason = reason
            self.tell_lost()

    def tell_lost(self) -> None:
        """Call the holder's callback, once."""
        self._reason = self._reason or "it expired"  # from now on, whatever a late answer says
        if not self._told:
            self._told = True
            logger.warning("%s: token %d was lost: %s", self._owner.key, self.token, self._reason)
            if self._owner.on_lost is not None:
                try:
                    self._owner.on_lost(self)
                except Exception:
                    logger.exception("%s: on_lost failed", self._owner.key)

    def renew(self) -> Operation[float | None]:
        """Extend it as the renewal does: errors are tolerated while it lasts.

        Returns:
            The seconds until the next time; None when it has ended.
        """
        if self.released:
            return None
        try:
            if (yield from self._owner.extend_hold(self, self.ttl)):
                return self.ttl * RENEWED_AFTER
            self.lose(self._reason or "it had expired when it was to be renewed")
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


class _Schedule:
    """Which holds are to be renewed when. A hold that nobody has any more is left to expire.

    Waking who renews costs more than a lock. Who holds for a moment only, again and again, is to
    wake it once: it then sleeps until the first of these holds were due, not until another comes.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, weakref.ref[Hold[Any]]]] = []
        self._numbers = count()
        self._most = 64  # entries, until those that have ended are removed
        self._looks_at = inf  # when who renews looks again by itself

    def add(self, hold: Hold[Any], at: float) -> bool:
        """Add a hold; return whether who renews must be woken."""
        heapq.heappush(self._heap, (at, next(self._numbers), weakref.ref(hold)))
        if len(self._heap) > self._most:
            self._heap = [entry for entry in self._heap if _lasts(entry[2]())]
            heapq.heapify(self._heap)
            self._most = max(64, 2 * len(self._heap))
        if at >= self._looks_at:
            return False
        self._looks_at = at
        return True

    def add_all(self, holds: list[Hold[Any]], waits: Sequence[float | None], now: float) -> None:
        for hold, wait in zip(holds, waits, strict=True):
            if wait is not None:
                self.add(hold, now + wait)

    def sleep(self, now: float) -> float | None:
        """Return for how many seconds to sleep: 0 if something is due, None for ever."""
        while self._heap and not _lasts(self._heap[0][2]()):
            heapq.heappop(self._heap)
        if self._heap:
            self._looks_at = self._heap[0][0]
        elif self._looks_at <= now:
            self._looks_at = inf
        return None if self._looks_at == inf else max(0.0, self._looks_at - now)

    def due(self, now: float) -> list[Hold[Any]]:
        found = []
        while self._heap and self._heap[0][0] <= now:
            hold = heapq.heappop(self._heap)[2]()
            if hold is not None and not hold.released:
                found.append(hold)
        return found


def _lasts(hold: Hold[Any] | None) -> bool:
    return hold is not None and not hold.released


class Renewals:
    """Renews a blocking kit's holds, all that are due in one exchange, in a thread of its own."""

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
        """Renew a hold from now on, until it is released, lost or nobody's."""
        if self._pid != os.getpid():
            self._reset()
        at = self._monotonic() + hold.ttl * RENEWED_AFTER
        with self._changed:
            wake = self._schedule.add(hold, at)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
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
            self._renew(due)
            del due  # or it would keep what nobody else has any more

    def _renew(self, due: list[Hold[Any]]) -> None:
        try:
            waits = self._driver.together(*(hold.renew() for hold in due))
        except Exception:  # each handles its own; this thread serves the others
            logger.exception("holds could not be renewed")
            waits = [hold.ttl * RETRIED_AFTER for hold in due]
        with self._changed:
            self._schedule.add_all(due, waits, self._monotonic())

    def close(self) -> None:
        """Stop: what is held expires."""
        if self._pid == os.getpid():
            with self._changed:
                self._closed = True
                self._changed.notify()


class AsyncRenewals:
    """Renews an async kit's holds, in a task of each event loop."""

    def __init__(self, driver: AwaitingDriver, monotonic: Callable[[], float]) -> None:
        self._driver = driver
        self._monotonic = monotonic
        self._loops: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[_Schedule, asyncio.Event, asyncio.Task[None]]
        ] = weakref.WeakKeyDictionary()

    def add(self, hold: Hold[Any]) -> None:
        """Renew a hold from now on, until it is released, lost or nobody's."""
        loop = asyncio.get_running_loop()
        found = self._loops.get(loop)
        if found is None or found[2].done():
            schedule, changed = _Schedule(), asyncio.Event()
            task = loop.create_task(self._run(schedule, changed), name="shardkit-renewals")
            found = self._loops[loop] = schedule, changed, task
        if found[0].add(hold, self._monotonic() + hold.ttl * RENEWED_AFTER):
            found[1].set()

    async def _run(self, schedule: _Schedule, changed: asyncio.Event) -> None:
        while True:
            seconds = schedule.sleep(self._monotonic())
            if seconds != 0:
                changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await changed.wait()
            due = schedule.due(self._monotonic())
            if not due:
                continue
            try:
                waits = await self._driver.together(*(hold.renew() for hold in due))
            except Exception:  # each handles its own; this task serves the others
                logger.exception("holds could not be renewed")
                waits = [hold.ttl * RETRIED_AFTER for hold in due]
            schedule.add_all(due, waits, self._monotonic())
            del due  # or it would keep what nobody else has any more

    def close(self) -> None:
        """Stop: what is held expires."""
        for loop, (_, _, task) in list(self._loops.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)
        self._loops.clear()
