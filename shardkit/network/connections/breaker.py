"""Circuit breakers: calls to an unreachable server fail immediately, until it answers again.

::

    closed ── 3 failures, no success between ──► open: calls fail at once
      ▲                                            │ a thread of the kit's connects and PINGs
      └────────── the server has answered ◄────────┘ after 0.1, 0.2, 0.4 … 2 seconds
                  the next failure opens it again, unless a call succeeds before

Each way to connect (an address, a login, TLS) of a kit has one breaker, shared by its shards,
threads and event loops. Failures are connections that could not be made, were lost, or stayed
silent while a reply was due; any answer means that the server is there. Successful calls cost
nothing: only when there are enough failures does the breaker check whether a connection has come
back since the first one.

It also logs when the server becomes unavailable (a connection is refused, or a probe after a
timeout fails) and when it is back, once each, even if it does not open: refused calls do not wait.

pybreaker and purgatory let a caller make the trial call, so neither is used. The idea is from
M. Nygard, Release It!
"""

from __future__ import annotations

import logging
import math
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
    ConnectionError,
    MaxConnectionsError,
    ResponseError,
    TimeoutError,
)

from shardkit import log_records
from shardkit.errors import BreakerOpenError, DeadlineExceeded, few, natural
from shardkit.events import BreakerClosed, BreakerOpened, emit
from shardkit.operations.deadlines import LONG_ENOUGH
from shardkit.operations.forks import ForkSafeLock, renewed_in_children
from shardkit.operations.interruptions import start_thread

logger = logging.getLogger("shardkit")

PROBE_TIMEOUT = 1.0
_LATE = 10.0  # seconds after which a probe that is due is not under way
_ASKED_AFTER, _ASKED_EVERY = 2.0, 30.0  # seconds away until it is asked why, and asked again


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """The settings of an entry's ``breaker``; times in seconds."""

    failures: float = 3  # failures without a success that open the breaker
    window: float = 30.0  # the time within which they are counted
    # Shorter failures do not count: a server that refuses connections delays no caller, and serves
    # the first call after it is back.
    min_seconds: float = LONG_ENOUGH
    interval: float = 0.1  # before the first probe; doubled after each
    max_interval: float = 2.0


def failover_of(address: str) -> str:
    """Return what to do about a server with replicas that stays away."""
    server = address.partition("/")[0]
    return f"If it stays away: shardkit failover {server}, which loses what no replica has received"


class Breaker:
    """The circuit breaker of one server. Thread-safe.

    ``probe`` reaches the server, or raises. ``explain`` says why a server may stay away and what to
    do about it, in the log and in errors; empty if it does not know.
    """

    def __init__(
        self,
        address: str,
        settings: BreakerSettings,
        probe: Callable[[], object],
        explain: Callable[[], str] = str,
    ) -> None:
        self.address = address
        self.opened = False
        self.explanation = ""  # why the server stays away, and what to do, if that was found
        self.pools: weakref.WeakSet[Any] = weakref.WeakSet()  # of connections to the server
        self._settings = settings
        self._probe, self._explain = probe, explain
        self._asks_at = 0.0  # when it is asked next why the server stays away
        self._lock = ForkSafeLock()
        self._stopped = threading.Event()
        self._rounds = 0  # of probing; the latest thread is the only one that goes on
        self._probing = 0  # the round under way; 0 if no thread probes the server
        self._away_at = 0.0  # since when it is unavailable, as was logged; 0 if it is not
        self._count = 0.0
        self._pause = settings.interval  # before the next probe
        self._first_at = self._next_at = self._since = 0.0
        self._why = ""
        renewed_in_children(self)

    def failed(self, error: BaseException, seconds: float, shard: object = None) -> None:
        """Note that the server could not be reached, or did not answer, for ``seconds``.

        These are infinite if a reply did not come in time, and 0 if a connection was lost.
        """
        if not _counts(error):
            return
        with self._lock:
            now = time.monotonic()
            self._why = str(error)
            if self._stopped.is_set():
                return
            if 0 < seconds < math.inf:  # of a silent one, the first probe tells
                self._is_away(shard)
            opens = not self.opened and self._opens(now, seconds)
            if opens:
                self.opened, self._since = True, time.time()
                self._is_away(shard)
            starts = opens or (seconds > 0 and not self._probing)
        if starts:
            self._start_round(now)
        if opens:
            emit(BreakerOpened(self.address, self._why))
            for pool in list(self.pools):
                pool.drop_idle()

    def _start_round(self, now: float) -> None:
        """Probe the server from now on, in a new thread."""
        with self._lock:
            self._rounds += 1
            self._probing = number = self._rounds
            self._next_at = now + self._pause
        try:
            about = weakref.ref(self), number
            start_thread(
                threading.Thread(target=_try_again, args=about, name="shardkit-probe", daemon=True)
            )
        except RuntimeError:  # no more threads can be started: callers try themselves
            self._end_round()

    def _opens(self, now: float, seconds: float) -> bool:
        """Count a failure; return whether there are enough to open."""
        if seconds < self._settings.min_seconds:
            return False
        released_at = (  # connections in good order
            connection.idle_since if connection.is_connected else connection.answered_at
            for pool in list(self.pools)
            for connection in pool.connections
        )
        is_over = now > self._first_at + self._settings.window
        if is_over or max(released_at, default=0.0) > self._first_at:
            self._count, self._pause = 0.0, self._settings.interval
        if not self._count:
            self._first_at = now
        self._count += 1
        return self._count >= self._settings.failures

    def _is_away(self, shard: object = None) -> None:
        """Log that the server is unavailable, once until it is back."""
        if self._away_at:
            return
        self._away_at, self._asks_at = time.time(), time.monotonic() + _ASKED_AFTER
        self._log_away(shard)

    def _log_away(self, shard: object = None) -> None:
        place, about = self._place(shard)
        remedies = (pool.policy.if_away for pool in list(self.pools))
        remedy = next(filter(None, remedies), "")
        about = log_records.fields("server-unavailable", **about, cause=self._why, remedy=remedy)
        text = f"{self._why.rstrip('.')}. {remedy}" if remedy else self._why
        logger.warning("%s is unavailable: %s", place, text, extra=about)

    def _place(self, shard: object = None) -> tuple[str, dict[str, Any]]:
        """Return the shards in use on the server, and the server: as text, and as fields."""
        shards = {str(name or "") for name in (shard, *(p.policy.shard for p in list(self.pools)))}
        named = sorted(shards - {""}, key=natural)
        place = f"{few(named, ', ')} ({self.address})" if named else self.address
        return place, {"shards": named, "server": self.address}

    def error(self) -> BreakerOpenError:
        """Return the error of calls while the breaker is open."""
        since = time.strftime("%H:%M:%S", time.localtime(self._since))
        now = time.monotonic()
        left = max(0.0, self._next_at - now)
        if now > self._next_at + _LATE:  # whoever opened it was interrupted before the thread began
            self._start_round(now)
        return BreakerOpenError(
            f"circuit breaker open since {since} after {self._count:.0f} failures "
            f"(last: {self._why}). Next probe in {left:.1f} s"
        )

    def close(self) -> None:
        """Let calls through again: the server has answered."""
        with self._lock:
            away_at, self._away_at = self._away_at, 0.0
        if away_at:
            seconds = time.time() - away_at
            place, about = self._place()
            about = log_records.fields("server-available", **about, seconds=seconds)
            logger.warning("%s is available again after %.1f s", place, seconds, extra=about)
        self._end_round()

    def connected(self) -> None:
        """Note that a connection was made, and the server has answered on it."""
        if self._away_at:
            self.close()

    def _end_round(self) -> None:
        with self._lock:
            opened, self.opened, self._probing = self.opened, False, 0
            if opened:  # a PING is no proof that commands are answered
                self._count, self._first_at = self._settings.failures - 1, time.monotonic()
        if opened:
            emit(BreakerClosed(self.address, time.time() - self._since))

    def stop(self) -> None:
        """Stop probing: the kit is closed."""
        self._stopped.set()

    @property
    def state(self) -> str:
        """``closed``, ``open``, or ``off`` if the entry has turned it off."""
        if math.isinf(self._settings.failures):
            return "off"
        return "open" if self.opened else "closed"

    def after_fork(self) -> None:
        """Close the breaker in a forked child, which has no probing thread."""
        self.opened, self._count, self._stopped = False, 0.0, threading.Event()
        self._probing, self._away_at = 0, 0.0

    def try_once(self, pause: float, number: int) -> bool:
        """Wait, probe the server, and return whether no further probe is needed."""
        if self._stopped.wait(pause) or self._probing != number:
            return True
        try:
            self._probe()
        except (ResponseError, BusyLoadingError, AuthenticationError):
            pass  # it answers
        except Exception as error:  # whatever it is, the server was not reached
            with self._lock:
                self._why = str(error)
                if not self._stopped.is_set():
                    self._is_away()
            if not self.explanation and time.monotonic() > self._asks_at:
                self._asks_at = time.monotonic() + _ASKED_EVERY
                self.explanation = self._explain()
                if self.explanation:
                    self._log_away()
            return False
        self.close()
        return True

    def pause(self) -> float:
        """Return the pause before a probe; the next one is longer, with jitter."""
        settings, pause = self._settings, self._pause
        self._pause = min(2 * pause, settings.max_interval) * random.uniform(0.9, 1.1)
        self._next_at = time.monotonic() + pause
        return pause

    def __repr__(self) -> str:
        return f"<Breaker of {self.address}: {'open' if self.opened else 'closed'}>"


def _try_again(ref: weakref.ref[Breaker], number: int) -> None:
    while (breaker := ref()) is not None and not breaker.try_once(breaker.pause(), number):
        breaker = None  # so that it can be collected


def _counts(error: BaseException) -> bool:
    """Whether an error means that the server was not reached, or does not answer."""
    if isinstance(error, DeadlineExceeded):  # a short deadline says nothing about the server
        return error.waited >= LONG_ENOUGH
    if isinstance(
        error,
        BreakerOpenError | AuthenticationError | BusyLoadingError | MaxConnectionsError,
    ):
        return False
    return isinstance(error, ConnectionError | TimeoutError | OSError)


class Breakers:
    """The circuit breakers of a kit, by way to connect; each lives as long as a client uses it.

    For ``explain`` see `Breaker`.
    """

    def __init__(self, explain: Callable[[], str] = str) -> None:
        self._explain = explain
        self._lock = ForkSafeLock()
        self._by_way: weakref.WeakValueDictionary[object, Breaker] = weakref.WeakValueDictionary()

    def of(
        self, way: object, fields: Mapping[str, Any], address: str, probe: Callable[[], object]
    ) -> Breaker:
        """Return the breaker of a way to connect, with the settings of its first entry."""
        asked = fields.get("breaker")
        settings = BreakerSettings(**asked) if isinstance(asked, Mapping) else BreakerSettings()
        if asked is False:  # it never opens, but logs
            settings = BreakerSettings(failures=math.inf)
        with self._lock:
            breaker = self._by_way.get(way)
            if breaker is None:
                breaker = self._by_way[way] = Breaker(address, settings, probe, self._explain)
            return breaker

    def all(self) -> list[Breaker]:
        """Return the breakers of all servers in use."""
        return list(self._by_way.values())

    def stop(self) -> None:
        """Stop all probing."""
        for breaker in self.all():
            breaker.stop()
