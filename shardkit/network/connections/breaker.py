"""Breakers: a server that cannot be reached fails its callers at once, until it answers again.

::

    closed ── 3 failures, no success between ──► open: calls fail at once
      ▲                                            │ a thread of the kit's connects and PINGs
      └────────── the server has answered ◄────────┘ after 0.1, 0.2, 0.4 … 2 seconds

There is one breaker for each server of a kit, shared by its shards, threads and event loops. What
counts is that no connection could be made, or that one was lost or silent while a reply was due;
whatever the server answers, it is there. Calls that succeed cost nothing: whether any did meanwhile
is seen, once there are enough failures, by the connections that came back since the first one.

Neither pybreaker nor purgatory: with both, a caller makes the trial call. The idea: M. Nygard,
Release It!
"""

from __future__ import annotations

import logging
import random
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,  # noqa: A004 - redis-py's own
    MaxConnectionsError,
    ResponseError,
    TimeoutError,  # noqa: A004 - redis-py's own
)

from shardkit.events import BreakerClosed, BreakerOpened, emit
from shardkit.operations.deadlines import LONG_ENOUGH, DeadlineExceeded
from shardkit.operations.forks import ForkSafeLock, renewed_in_children

logger = logging.getLogger("shardkit")

PROBE_TIMEOUT = 1.0


class BreakerOpenError(ConnectionError):
    """The breaker of a server is open: it was not asked."""


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """What an entry's ``breaker`` says; times in seconds.

    Attributes:
        failures: so many failures without a success open it.
        window: counted from the first of them, within this time.
        min_seconds: failures that took less time do not count: a server that refuses connections
            costs nobody any time, and serves the first call after it is back.
        interval: how long after it opened the server is tried; twice as long after each trial.
        max_interval: the longest time between two trials.
    """

    failures: int = 3
    window: float = 30.0
    min_seconds: float = LONG_ENOUGH
    interval: float = 0.1
    max_interval: float = 2.0


class Breaker:
    """The breaker of one server. Thread-safe.

    Args:
        address: the server, for messages.
        settings: when it opens, and how often the server is tried.
        probe: reaches the server, or raises.

    Attributes:
        opened: whether it is open.
        pools: those whose connections lead to the server.
    """

    def __init__(
        self, address: str, settings: BreakerSettings, probe: Callable[[], object]
    ) -> None:
        self.address = address
        self.opened = False
        self.pools: weakref.WeakSet[Any] = weakref.WeakSet()
        self._settings = settings
        self._probe = probe
        self._lock = ForkSafeLock()
        self._stopped = threading.Event()
        self._count = 0
        self._first_at = self._next_at = self._since = 0.0
        self._why = ""
        renewed_in_children(self)

    def failed(self, error: BaseException, seconds: float) -> None:
        """Note that the server could not be reached, or did not answer, for so many seconds."""
        if seconds < self._settings.min_seconds or not _counts(error):
            return
        with self._lock:
            now = time.monotonic()
            self._why = str(error)
            if self.opened or self._stopped.is_set():
                return
            if now > self._first_at + self._settings.window or self._has_answered():
                self._count = 0
            if not self._count:
                self._first_at = now
            self._count += 1
            if self._count < self._settings.failures:
                return
            self.opened, self._since = True, time.time()
            self._next_at = now + self._settings.interval
        logger.warning("%s is not asked any more: %s", self.address, self.error())
        emit(BreakerOpened(self.address, self._why))
        for pool in list(self.pools):
            drop = getattr(pool, "drop_idle", None)
            if drop is not None:
                drop()
        thread = threading.Thread(
            target=_try_again, args=(weakref.ref(self),), name="shardkit-probe", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # there can be no more threads now: the callers try themselves
            self.close()

    def reached(self) -> None:
        """Note that a connection was made."""
        if self._count and not self.opened:
            with self._lock:
                self._count = 0

    def error(self) -> BreakerOpenError:
        """Return what a call gets while it is open."""
        since = time.strftime("%H:%M:%S", time.localtime(self._since))
        left = max(0.0, self._next_at - time.monotonic())
        return BreakerOpenError(
            f"its breaker has been open since {since}, after {self._count} failures, the last: "
            f"{self._why}; it is tried again in {left:.1f} s"
        )

    def close(self) -> None:
        """Let calls through again."""
        with self._lock:
            self.opened, self._count = False, 0
        logger.info("%s is asked again", self.address)
        emit(BreakerClosed(self.address, time.time() - self._since))

    def stop(self) -> None:
        """End the trials: the kit is closed."""
        self._stopped.set()

    def after_fork(self) -> None:
        """Forget everything, in a forked child, which has no thread that tries."""
        self.opened, self._count, self._stopped = False, 0, threading.Event()

    def _has_answered(self) -> bool:
        """Whether a connection came back well since the first failure."""
        for pool in list(self.pools):
            for connection in pool.idle_connections():
                if getattr(connection, "idle_since", 0.0) > self._first_at and getattr(
                    connection, "is_connected", False
                ):
                    return True
        return False

    def try_once(self, pause: float) -> bool:
        """Wait, try the server, and return whether that is no longer needed."""
        if self._stopped.wait(pause) or not self.opened:
            return True
        try:
            self._probe()
        except (ResponseError, BusyLoadingError, AuthenticationError):
            pass  # it answers
        except Exception as error:  # whatever it is, the server was not reached
            self._why = str(error)
            return False
        self.close()
        return True

    def pause_after(self, pause: float) -> float:
        """Return how long to wait for the next trial; many clients do not come at once."""
        settings = self._settings
        longer = min(2 * pause, settings.max_interval) * random.uniform(0.9, 1.1)
        self._next_at = time.monotonic() + longer
        return longer

    def __repr__(self) -> str:
        return f"<Breaker of {self.address}: {'open' if self.opened else 'closed'}>"


def _try_again(found: weakref.ref[Breaker]) -> None:
    breaker = found()
    pause = breaker._settings.interval if breaker is not None else 0.0
    while breaker is not None and not breaker.try_once(pause):
        pause = breaker.pause_after(pause)
        breaker = None  # nobody may have it any more
        breaker = found()


def _counts(error: BaseException) -> bool:
    """Whether an error says that the server was not reached, or does not answer."""
    if isinstance(error, DeadlineExceeded):  # a hasty caller says nothing of the server
        return error.waited >= LONG_ENOUGH
    if isinstance(
        error,
        BreakerOpenError | AuthenticationError | BusyLoadingError | MaxConnectionsError,
    ):
        return False
    return isinstance(error, ConnectionError | TimeoutError | OSError)


class Breakers:
    """The breakers of a kit, by server. They live as long as clients that have them."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._by_server: weakref.WeakValueDictionary[tuple[object, ...], Breaker] = (
            weakref.WeakValueDictionary()
        )

    def of(self, fields: Mapping[str, Any], address: str, probe: Callable[[], object]) -> Breaker:
        """Return the breaker of an entry's server.

        Of several entries for one server the first one's settings hold.
        """
        asked = fields.get("breaker")
        settings = BreakerSettings(**asked) if isinstance(asked, Mapping) else BreakerSettings()
        names = ("host", "port", "unix_socket_path", "sentinel")
        server = tuple(repr(fields.get(name)) for name in names)
        with self._lock:
            breaker = self._by_server.get(server)
            if breaker is None:
                breaker = self._by_server[server] = Breaker(address, settings, probe)
            return breaker

    def all(self) -> list[Breaker]:
        """Return the breakers of all servers in use."""
        return list(self._by_server.values())

    def stop(self) -> None:
        """End all trials."""
        for breaker in self.all():
            breaker.stop()
