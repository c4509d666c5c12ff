"""Cached components: when they are read again, by which thread, and what happens on failure.

A component's first caller reads it. After that a thread reads it again for both faces, so no caller
and no event loop waits. It starts when a call finds a component stale, and ends when nothing is
left to read. A component that has been stale for long is read by its next caller.

With open connections, or components loaded for awaiting routers (`Topology.watch`), another thread
receives changes (see `feed.py`) and reads the changed components immediately, even without calls,
so that an idle kit leaves addresses that no entry names any more. In the meantime, nothing else is
read again.

When a config server was away for a moment, all processes come back together. So they compare only
epochs, and read components that a push has changed. Changes by hand do not raise an epoch: each
process reads the others whole at some time within `SPREAD` seconds.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from redis.exceptions import AuthenticationError, RedisError

from shardkit import log_records
from shardkit.config.component import EPOCH_KEY, Component
from shardkit.config.problem import did_you_mean
from shardkit.errors import (
    ClosedError,
    ConfigError,
    ConfigServerError,
    DeadlineExceeded,
    InvalidArgumentError,
    MissingEntryError,
    RetiredError,
    not_pickled,
)
from shardkit.network.connections.connection_state import require_open
from shardkit.network.topology.feed import BEAT, ChangeFeed
from shardkit.network.topology.saved import shown_age
from shardkit.network.topology.sources import AWAY, Reading, Source, Values
from shardkit.operations.arguments import shown
from shardkit.operations.deadlines import earliest
from shardkit.operations.forks import renewed_in_children
from shardkit.operations.interruptions import reraise_handlers, start_thread
from shardkit.operations.server_errors import meaning
from shardkit.operations.steps import arun_steps, run_steps
from shardkit.recent import Recent
from shardkit.routing.placement import DEFAULT

logger = logging.getLogger("shardkit")

INTERVAL = 1.0
HELD_INTERVAL = 0.1  # while a shard of the component is being moved
LONGEST_PAUSE = 8.0
MAX_WAIT = 10.0  # for another reader; a config server's timeouts are shorter
_CLAIMED = 0.005
LOOK_AGAIN = 0.1  # seconds between checks whether another reader still runs
FED = 3 * BEAT  # how long entries stay fresh while changes are received
FEED_PAUSE = 8.0  # the longest pause before the next attempt to receive changes
SPREAD = 60.0  # seconds over which processes spread their readings of unchanged epochs
SPLIT_LATELY = 60.0  # seconds for which calls are checked whose keys may have been located before
MOST_KEYS = 1000  # of one exchange, unless a single component has more

Outcomes: TypeAlias = dict[str, Component | Exception]
"""The results of reading components, by name."""


@dataclass(slots=True)
class CacheEntry:
    """The cached state of one component."""

    component: Component | None = None  # as it was last read
    error: ConfigError | None = None  # why it could not be read, if it never was
    fresh_until: float = 0.0  # 0 if the next caller must read it
    refused: bool = False  # a call: the next one reads it again if it is stale
    lock: threading.Lock = field(default_factory=lambda: threading.Lock())  # held by the reader
    loop: asyncio.AbstractEventLoop | None = None  # of the reader, if that is a task
    reader: int = 0  # the reader's thread
    since: float = 0.0  # when the reader started
    read_at: float = 0.0  # when it was last read, or an attempt failed
    good_at: float = 0.0  # when it was last read, or saved on disk
    saved: bool = False  # whether its entries come from the disk
    epoch: int = 0  # of all entries, when it was last read
    due: float = 0.0  # when it must be read whole; before that, its epoch is compared
    compared: bool = False  # whether the reader only compares the epoch if that is unchanged
    waiting: list[Callable[[], object]] = field(default_factory=list)  # wake waiting tasks


class Topology:
    """The components, cached and read again about once a second.

    Safe to use from many threads and event loops, and in a forked child. The kit sets ``changed``,
    which is called with each changed component.
    """

    changed: Callable[[Component], object] = staticmethod(lambda component: None)
    # Called once with the names of all components, before the first of them is read; may refuse.
    check_names: Callable[[Iterable[str]], object] | None = None
    __reduce__ = not_pickled

    def __init__(
        self,
        source: Source,
        *,
        clock: Callable[[], float] = time.monotonic,
        interval: float = INTERVAL,
    ) -> None:
        self.source = source
        self._clock = clock
        self._interval = interval
        self._cache: dict[str, CacheEntry] = {}
        self.closed = False
        self._lock = threading.Lock()  # of the following attributes
        self._failures = 0
        self._disk_error: Exception | None = None  # why saved entries are in use
        self._away_until = 0.0
        self._problems: dict[str, str] = {}
        self._missing: Recent[str, None] = Recent()  # names without a component
        # Placements by count, see `count`.
        self._counts: Recent[str, dict[int, str | None]] = Recent(65_536)
        self._due: set[str] = set()  # for the thread to read
        self._thread: threading.Thread | None = None
        self._expired_at = -math.inf  # what was being read then is not new
        self._end_of_watch: threading.Event | None = None
        self._feed: ChangeFeed | None = None  # while it receives changes
        self._had_feed = False
        self._unread: set[str] = set()  # changed components that the watching thread has to read
        self._pushed = False  # whether the feed told of a push that is not announced yet
        renewed_in_children(self)

    def component(self, name: str) -> Component:
        """Return a component as it is now, to within about a second.

        Cost: about 0.1 microseconds; for the first caller an exchange with the config server.

        Raises:
            ConfigError: it was never seen, and is missing or broken, or the config server is away.
            ClosedError: the kit is closed.
        """
        try:
            cached = self._cache.get(name)
        except TypeError:
            cached = self._cached_entry(name)  # which says why
        if cached is not None and self._clock() < cached.fresh_until:
            component = cached.component
            if component is not None:
                return component
        return self.fresh(name) or self._read(name)

    async def acomponent(self, name: str) -> Component:
        """Return a component as it is now, awaiting; see `component`."""
        return self.fresh(name) or await self._aread(name)

    def fresh(self, name: str) -> Component | None:
        """Return a component as it is known; None if the caller must read it. No I/O.

        A stale one is read again in the background; not one that nobody has read for long.
        """
        cached = self._cached_entry(name)
        if cached is None or (component := cached.component) is None:
            return None
        now = self._clock()
        if now >= cached.fresh_until:
            is_old = not cached.fresh_until or now >= cached.fresh_until + self._interval
            if self.source.local or is_old or cached.refused:
                return None
            self._refresh(name, cached)
        return component

    def _cached_entry(self, name: str) -> CacheEntry | None:
        try:
            return self._cache.get(name)
        except TypeError:  # it cannot be hashed
            raise InvalidArgumentError(f"component={shown(name)}", "give text") from None

    def count(self, name: str, shards: int | None, rule: str | None = None) -> Component | None:
        """Note a caller's number of shards and placement; return the component, if known. No I/O.

        Entries written by hand have no stored count: a kit uses them if one of its callers has
        specified exactly the existing number. The first placement specified counts. Nothing changes
        for pushed entries.
        """
        cached = self._cached_entry(name)
        if type(shards) is int and shards > 0:
            rules = self._counts.setdefault(name, {})
            if rules.setdefault(shards, rule) is None:
                rules[shards] = rule
            if cached is not None and cached.component is not None:
                cached.component = self._counted(cached.component)
        return None if cached is None else cached.component

    def _counted(self, component: Component) -> Component:
        """Return the component with its callers' placement, if it has their number of shards."""
        by_hand, shards = component.by_hand, len(component.shards)
        counts = self._counts.get(component.name, {})
        if by_hand is None or shards not in counts or not by_hand.is_exactly(shards):
            return component
        rule = counts[shards] or DEFAULT
        if component.problem is None and component.placement == rule:
            return component
        return replace(component, placement=rule, problem=None)

    def refused(self, name: str) -> None:
        """Note that a component refused a call: the next call reads it again if it is stale."""
        cached = self._cache.get(name)
        if cached is not None:
            cached.refused = True

    def last_known(self, name: str) -> Component:
        """Return a component as it was last read. No exchange with a server."""
        if self.source.local:
            return self.component(name)
        cached = self._entry(name)
        component = cached.component
        if component is None:
            raise MissingEntryError(
                f"component {name!r} was not read yet from {self.source}",
                f"await the router's load(), or kit.load({name!r}), once before the first use",
            )
        if self._clock() >= cached.fresh_until:
            self._refresh(name, cached)
        return component

    async def aload(self, names: Iterable[str]) -> Outcomes:
        """Return components, or their errors; read those that are not fresh together, awaiting.

        Cost: one exchange for about 15 components of up to 64 shards.
        """
        require_open(self)
        known = {name: self.fresh(name) for name in names}
        outcomes: Outcomes = {n: ready for n, ready in known.items() if ready is not None}
        with self._claimed(name for name in known if name not in outcomes) as own:
            found_now = await arun_steps(self._read_together(own), self.source.afetch)
            for name, outcome in found_now.items():
                cached, lock = own[name]
                if cached.lock is not lock:  # it took too long: another task reads it
                    continue
                try:
                    outcomes[name] = self._settle(name, cached, outcome)
                except ConfigError as error:
                    outcomes[name] = error
        self.watch()  # as routers look components up without waiting
        for name in names:
            if name not in outcomes:  # another task was reading it
                try:
                    outcomes[name] = await self.acomponent(name)
                except ConfigError as error:
                    outcomes[name] = error
        return outcomes

    def names(self) -> list[str]:
        """List the components that there are."""
        require_open(self)
        try:
            return self.checked(self.source.names())
        except (RedisError, OSError) as error:
            return self._saved_names(error)

    async def anames(self) -> list[str]:
        """List the components that there are, awaiting."""
        require_open(self)
        try:
            return self.checked(await self.source.anames())
        except (RedisError, OSError) as error:
            return await asyncio.to_thread(self._saved_names, error)

    def checked(self, names: list[str]) -> list[str]:
        """Return the names of all components, after `check_names` has seen, or refused, them."""
        if self.check_names is not None:
            self.check_names(names)
            self.check_names = None
        return names

    def limit_age(self, name: str, max_age: float, *, trusting: bool = True) -> None:
        """Read a component again, in the background, if it is older than ``max_age`` seconds.

        A shard map's is read by the next call. While changes are received, only if these are not
        ``trusting``.
        """
        cached = self._cache.get(name)
        if cached is None or cached.component is None or (trusting and self._feed is not None):
            return
        now = self._clock()
        if now < max(cached.read_at + max_age, self._away_until) or cached.lock.locked():
            return
        if trusting:
            cached.due = now
        cached.fresh_until = min(cached.fresh_until, now)
        if not self.source.local and cached.fresh_until:
            self._refresh(name, cached)

    def reread(self, name: str) -> Component:
        """Read a component now, however fresh it is, because its server refuses to serve.

        During the reading, and while the source is away, calls get the known component.
        """
        self._overdue(name)
        return self.component(name)

    async def areread(self, name: str) -> Component:
        """Read a component now, awaiting; see `reread`."""
        self._overdue(name)
        return await self.acomponent(name)

    def _overdue(self, name: str) -> None:
        cached = self._cache.get(name)
        if cached is not None:
            cached.fresh_until, cached.due = 0.0, self._clock()

    def age(self, name: str) -> float:
        """Return how many seconds ago a component's entries were read; infinite if never."""
        cached = self._cache.get(name)
        if cached is None or cached.component is None:
            return math.inf
        return max(0.0, self._clock() - cached.good_at)

    def known(self) -> Outcomes:
        """Return the components that were read, however long ago. No exchange with a server."""
        return {n: cached.component for n, cached in self._known().items() if cached.component}

    def from_disk(self) -> list[str]:
        """List the components whose entries are those that were saved on disk."""
        return sorted(name for name, cached in self._known().items() if cached.saved)

    def expire(self) -> None:
        """Expire the cached components: the next call reads again, and waits."""
        self._away_until = 0.0
        self._expired_at = self._clock()
        for cached in list(self._cache.values()):
            cached.fresh_until, cached.due = 0.0, self._expired_at

    def watch(self) -> None:
        """Follow changes from now on, in a thread that ends with this topology."""
        if self._end_of_watch is not None or not self.source.changes:
            return
        with self._lock:
            if self._end_of_watch is not None or self.closed:
                return
            self._end_of_watch = end = threading.Event()
        thread = threading.Thread(
            target=_watch,
            args=(weakref.ref(self), end, self._interval),
            name="shardkit-watch",
            daemon=True,
        )
        try:
            start_thread(thread)
        except RuntimeError:  # no more threads can be started; the next client tries again
            self._end_of_watch = None

    def close(self) -> None:
        """Stop serving."""
        with self._lock:
            self.closed = True
            end, feed = self._end_of_watch, self._feed
        if end is not None:
            end.set()
        if feed is not None:
            feed.close()
        self._due.clear()
        for cached in list(self._cache.values()):
            cached.component = None

    def _read(self, name: str) -> Component:
        cached = self._entry(name)
        previous = cached.component
        # With nothing that may be used, wait a limited time for the current reader; not for a task
        # of the event loop that this call may block, nor for this thread itself, if a handler of a
        # change calls the kit.
        would_deadlock = cached.reader == threading.get_ident() or (
            cached.loop is not None and _running_loop() is not None
        )
        must_read = previous is None or not cached.fresh_until
        lock = self._claim(cached, MAX_WAIT if must_read and not would_deadlock else 0)
        if lock is None and previous is not None:
            return previous
        try:
            names, fetch = self.source.names, self.source.fetch
            steps = self._read_claimed(name, cached, lock)
            return run_steps(steps, lambda keys: fetch(keys) if keys else names())
        finally:
            if lock is not None:
                self._release(cached, lock)

    async def _aread(self, name: str) -> Component:
        cached = self._entry(name)
        while (lock := self._claim(cached)) is None:
            if cached.component is not None and cached.fresh_until:
                return cached.component
            await self._wait(cached)
        try:
            names, fetch = self.source.anames, self.source.afetch
            steps = self._read_claimed(name, cached, lock)
            return await arun_steps(steps, lambda keys: fetch(keys) if keys else names())
        finally:
            self._release(cached, lock)

    def _read_claimed(
        self, name: str, cached: CacheEntry, lock: threading.Lock | None
    ) -> Generator[list[str], Any, Component]:
        """Read a component; yields keys, is sent their values; for no keys, all names."""
        fresh = self._fresh_or_error(name, cached)
        if fresh is not None:
            return fresh
        if self.check_names is not None:
            with suppress(RedisError, OSError):  # the reading tells
                self.checked((yield []))
        outcomes = yield from self._read_together([name])
        outcome: Any = outcomes[name]
        is_unknown = cached.component is None and isinstance(outcome, MissingEntryError)
        if is_unknown and not outcome.remedy.startswith("did you mean"):  # it may be misspelt
            with suppress(RedisError, OSError):
                outcome.remedy = f"{did_you_mean(name, (yield []))}{outcome.remedy}"
        if lock is not None and cached.lock is not lock and cached.component is not None:
            return cached.component  # it took too long: another has read it
        return self._settle(name, cached, outcome)

    # ---- reading again, in the background

    def _refresh(self, name: str, cached: CacheEntry) -> None:
        with self._lock:
            now = self._clock()
            if self.closed or now < cached.fresh_until:
                return
            cached.fresh_until = now + self._interval
            self._due.add(name)
            if self._thread is not None:
                return
            self._thread = threading.Thread(
                target=self._read_due, name="shardkit-config", daemon=True
            )
        try:
            start_thread(self._thread)
        except RuntimeError:  # no more threads can be started; it is tried again in a second
            self._thread = None

    def _read_due(self) -> None:
        while True:
            with self._lock:
                names, self._due = self._due, set()
                if not names or self.closed:
                    self._thread = None
                    return
            try:
                self._read_again(sorted(names))
            except ClosedError:
                pass
            except Exception:  # the next names must still be read
                about = log_records.fields("entries-reader-failed", source=str(self.source))
                logger.exception("%s cannot be read", self.source, extra=about)

    def _read_stale(self) -> None:
        now = self._clock()
        stale = [
            name
            for name, cached in list(self._cache.items())
            if cached.component is not None and 0 < cached.fresh_until <= now
        ]
        self._read_again(stale)

    def _interval_of(self, component: Component | None) -> float:
        is_held = component is not None and component.held
        return min(HELD_INTERVAL, self._interval) if is_held else self._interval

    def pause(self) -> float:
        """Return the seconds for which components stay fresh without a feed."""
        known = [cached.component for cached in list(self._cache.values())]
        return min(map(self._interval_of, known), default=self._interval)

    def begin_feed(self) -> ChangeFeed | None:
        """Start to receive changes, and read what may have changed before."""
        feed = self.source.feed()
        if feed is not None:
            self._away_until = 0.0
            self._feed, self._had_feed = feed, True
            if self.closed:
                feed.close()
            self._unread, self._pushed = set(self._known()), False
            try:
                self._read_unread()
            except BaseException:
                self._feed = None
                feed.release()
                raise
        return feed

    def end_feed(self) -> None:
        """Continue without a feed: known components are stale."""
        self._feed = None
        now = self._clock()
        for cached in list(self._cache.values()):
            if cached.fresh_until > now:
                cached.fresh_until = now + self._interval

    def follow(self, feed: ChangeFeed, changed: set[str] | None, epoch: int | None) -> None:
        """Read the changed components, and those that could not be read when they had changed.

        Compare all if the epoch is an unexpected one. Once nothing is left to read, announce it.
        """
        self._away_until = 0.0  # it has just answered
        latest, now = self.source.epoch, self._clock()
        for name, cached in self._known().items():
            if changed and name in changed:
                cached.due = now
            if cached.due <= now:
                self._unread.add(name)
        if changed:
            self._pushed |= EPOCH_KEY in changed
        elif (
            changed is None
            or epoch is None
            or not (epoch == latest or (epoch > latest and self._pushed))
        ):
            changed = set(self._known())
        self._unread |= changed & self._known().keys()
        self._read_unread()
        if epoch is not None and not changed and not self._unread:
            self._pushed = False
            self.source.announce(feed, epoch)

    def _read_unread(self) -> None:
        """Read the changed components, unless the source is away; the others are fresh."""
        while self._unread and not self.closed and self._clock() >= self._away_until:
            self._unread = set(self._read_again(sorted(self._unread)))
            if self._unread:  # others may be reading the previous state
                time.sleep(_CLAIMED)
        now = self._clock()
        for name, cached in self._known().items():
            if cached.fresh_until and name not in self._unread:
                cached.read_at = cached.good_at = now
                cached.fresh_until = now + FED

    def _known(self) -> dict[str, CacheEntry]:
        cache = list(self._cache.items())
        return {name: cached for name, cached in cache if cached.component is not None}

    def _read_again(self, names: Sequence[str]) -> list[str]:
        """Read components again; return those that cannot be read, or that others are reading."""
        known = [name for name in names if self._entry(name).component is not None]
        with self._claimed(known) as own:
            unread = [name for name in known if name not in own]
            if self._clock() < self._away_until:
                for cached, _ in own.values():
                    cached.fresh_until = self._away_until
                return known
            for name, outcome in run_steps(self._read_together(own), self.source.fetch).items():
                if not isinstance(outcome, Component | ConfigError):
                    unread.append(name)
                with suppress(RetiredError):  # its next use raises it
                    self._settle(name, own[name][0], outcome)
        return unread

    # ---- reading

    def _claim(self, cached: CacheEntry, wait: float = 0.0) -> threading.Lock | None:
        """Become the reader and return the lock; None if another is for ``wait`` seconds."""
        limit = earliest(wait, anew=True)
        deadline = time.monotonic() + wait if limit is None else limit.at
        while True:
            lock = self._lock_of(cached)
            # The reader's event loop may have stopped, so check now and then.
            if lock.acquire(timeout=max(0.0, min(LOOK_AGAIN, deadline - time.monotonic()))):
                if lock is cached.lock:
                    cached.loop, cached.since = _running_loop(), self._clock()
                    cached.reader = threading.get_ident()
                    return lock
                lock.release()
            elif time.monotonic() >= deadline:
                return None

    @contextmanager
    def _claimed(
        self, names: Iterable[str]
    ) -> Iterator[dict[str, tuple[CacheEntry, threading.Lock]]]:
        """Be the reader of those components that nobody else reads."""
        own: dict[str, tuple[CacheEntry, threading.Lock]] = {}
        try:
            for name in names:
                cached = self._entry(name)
                if (lock := self._claim(cached)) is not None:
                    own[name] = cached, lock
            yield own
        finally:
            for cached, lock in own.values():
                self._release(cached, lock)

    def _lock_of(self, cached: CacheEntry) -> threading.Lock:
        """Return the lock; a new one if a task in a stopped loop holds it."""
        with self._lock:
            loop = cached.loop
            if loop is not None and (
                not loop.is_running() or self._clock() > cached.since + MAX_WAIT
            ):
                cached.lock, cached.loop = threading.Lock(), None
            return cached.lock

    def _read_together(self, names: Iterable[str]) -> Generator[list[str], Values, Outcomes]:
        """Read components, many in one exchange; yields keys, is sent their values."""
        outcomes: Outcomes = {}
        waiting: deque[tuple[str, Reading, list[str]]] = deque()

        def resume(name: str, reading: Reading, values: Values | None) -> None:
            try:
                keys = next(reading) if values is None else reading.send(values)
            except StopIteration as done:
                outcomes[name] = done.value
            except ConfigError as error:
                outcomes[name] = error
            else:
                waiting.append((name, reading, keys))

        for name in names:
            cached = self._cache.get(name)
            known = None
            if cached is not None:
                known = cached.component
                cached.compared = self._had_feed and self._clock() < cached.due
            compare = cached is not None and cached.compared
            resume(name, self.source.read(name, known, compare=compare), None)
        while waiting:
            taken = [waiting.popleft()]
            count = len(taken[0][2])
            while waiting and count + len(waiting[0][2]) <= MOST_KEYS:
                taken.append(waiting.popleft())
                count += len(taken[-1][2])
            epochs = [cached.epoch for cached in self._known().values()]
            self.source.in_use = max(self.source.in_use, min(epochs, default=0))
            try:
                values = yield [key for _, _, keys in taken for key in keys]
            except Exception as error:
                return outcomes | dict.fromkeys([claim[0] for claim in (*taken, *waiting)], error)
            start = 0
            for name, reading, keys in taken:
                resume(name, reading, values[start : start + len(keys)])
                start += len(keys)
        return outcomes

    def _settle(self, name: str, cached: CacheEntry, outcome: Component | Exception) -> Component:
        previous, now = cached.component, self._clock()
        if isinstance(outcome, Component | ConfigError):
            cached.epoch = self.source.read_epochs.get(name, 0)
            if cached.since <= cached.due <= now:
                pass  # told of a change during the reading
            elif isinstance(outcome, Component) and not (
                cached.compared and previous is not None and outcome.epoch == previous.epoch
            ):
                cached.due = math.inf
            elif not now < cached.due < math.inf:
                cached.due = now + random.uniform(0, SPREAD)
        if isinstance(outcome, Component):
            outcome = self._counted(outcome)
            broke = outcome.problem if previous and previous.shards else None
            if previous is None or previous.problem is not None or broke is None:
                return self._store(cached, outcome)
            outcome = broke
        return self._keep_previous(name, cached, outcome)

    @staticmethod
    async def _wait(cached: CacheEntry) -> None:
        """Wait for the reader, which may be in another thread's loop."""
        loop = asyncio.get_running_loop()
        free = loop.create_future()
        cached.waiting.append(partial(loop.call_soon_threadsafe, free.set_result, None))
        if cached.lock.locked():
            await asyncio.wait([free], timeout=LOOK_AGAIN)  # the reader's loop may have stopped

    @staticmethod
    def _release(cached: CacheEntry, lock: threading.Lock) -> None:
        if cached.lock is lock:
            cached.loop, cached.reader = None, 0
        lock.release()
        while cached.waiting:
            with suppress(IndexError, RuntimeError):  # woken by another; its loop has ended
                cached.waiting.pop()()

    def _entry(self, name: str) -> CacheEntry:
        require_open(self)
        entry = self._cache.get(name)
        if entry is None:
            if len(self._missing) == self._missing.most:
                for missing in list(self._missing):  # a program may ask for any name
                    cached = self._cache.get(missing)
                    if cached is not None and cached.component is None and not cached.lock.locked():
                        self._cache.pop(missing, None)
                        self._counts.pop(missing, None)
                self._missing.clear()
            entry = self._cache.setdefault(name, CacheEntry())
        return entry

    def _fresh_or_error(self, name: str, cached: CacheEntry) -> Component | None:
        """Return a fresh component, or raise its cached error; None if it is time to read."""
        now = self._clock()
        if cached.component is not None and now < self._away_until:
            cached.fresh_until = self._away_until
        if now >= cached.fresh_until:
            if cached.component is None and self._disk_error and now < self._away_until:
                return self._from_disk(name, cached, self._disk_error)
            return None
        if cached.component is None and cached.error is not None:
            error = copy.copy(cached.error)
            error.__cause__ = cached.error.__cause__
            raise error
        return cached.component

    def _store(self, cached: CacheEntry, component: Component) -> Component:
        previous = cached.component
        if (
            previous is not None
            and component.same_as(previous)
            and component.epoch == previous.epoch
        ):
            component = previous  # the old object stays, and its clients with it
        elif previous is not None:
            is_split = component.layout != previous.layout
            until = time.monotonic() + SPLIT_LATELY if is_split else previous.split_until
            vars(component)["split_until"] = until
        cached.component, cached.error, cached.refused = component, None, False
        cached.saved = False
        if previous is not None and component is not previous:
            self.changed(component)
        cached.read_at = cached.good_at = self._clock()
        if cached.since >= self._expired_at:
            lasts = FED if self._feed else self._interval_of(component)
            cached.fresh_until = cached.read_at + lasts
        if self._failures or self._problems:
            self._recovered(component.name)
        if self.closed:  # while it was read
            cached.component = None
            require_open(self)
        return component

    def _keep_previous(self, name: str, cached: CacheEntry, error: Exception) -> Component:
        require_open(self)
        if isinstance(error, DeadlineExceeded):  # the caller's own
            if cached.component is not None:
                return cached.component
            raise self._unreadable(error) from error
        previous, now = cached.component, self._clock()
        cached.read_at = now
        cached.fresh_until = now + self._interval
        if previous is not None and isinstance(error, RetiredError):
            about = log_records.fields("component-retired", component=name)
            logger.warning("%s; it is no longer used", error, extra=about)
            cached.component = None
            self.changed(Component(name, epoch=previous.epoch))  # its clients go
            previous = None
        if previous is None and _is_away(error):
            saved = self._from_disk(name, cached, error)
            if saved is not None:
                return saved
        if previous is None:
            if not isinstance(error, ConfigError):
                cause, error = error, self._unreadable(error)
                error.__cause__ = cause
            cached.error = error.with_traceback(None)
            self._missing[name] = None
            raise copy.copy(error) from error.__cause__
        problem = str(error)
        if not isinstance(error, ConfigError):
            problem = ""
            cached.fresh_until = self._pause(now)
            if cached.saved:
                try:
                    self.source.saved(name)
                except ConfigError as late:
                    error, problem = late, str(late)
        with self._lock:
            reported = problem in self._problems.values()
            self._problems[name] = problem
        if not reported and problem:
            logger.log(
                logging.ERROR if isinstance(error, ConfigServerError) else logging.WARNING,
                "component %r keeps its last good entries (epoch %d): %s",
                name,
                previous.epoch,
                problem,
                extra=log_records.fields("entries-kept", component=name, cause=problem),
            )
        elif not reported:
            logger.warning(
                "%s cannot be read, the last good entries stay in use: %s",
                self.source,
                error,
                extra=log_records.fields(
                    "config-server-unavailable", source=str(self.source), cause=str(error)
                ),
            )
        return previous

    def _from_disk(self, name: str, cached: CacheEntry, error: Exception) -> Component | None:
        """Use a component as it was saved, because the source is away; None if it was not."""
        saved = self.source.saved(name)
        if saved is None:
            return None
        component, age = self._counted(saved[0]), saved[1]
        now = self._clock()
        cached.component, cached.error, cached.saved = component, None, True
        cached.good_at, cached.fresh_until = now - age, self._pause(now)
        with self._lock:
            self._problems[name], self._disk_error = "", error
        logger.warning(
            "%s cannot be read, component %r has the entries that were saved %s ago: %s",
            self.source,
            name,
            shown_age(age),
            error,
            extra=log_records.fields(
                "entries-from-disk", component=name, source=str(self.source), age=age
            ),
        )
        return component

    def _saved_names(self, error: Exception) -> list[str]:
        reraise_handlers(error)
        names = self.source.saved_names() if _is_away(error) else []
        if not names:
            raise self._unreadable(error) from error
        return names

    def _pause(self, now: float) -> float:
        """Return when to try again after the source was unreachable."""
        with self._lock:
            if now >= self._away_until:  # else another reader has just set it
                pause = min(self._interval * 2 ** min(self._failures, 10), LONGEST_PAUSE)
                self._away_until = now + pause * random.uniform(1, 1.2)
                self._failures += 1
            return self._away_until

    def _recovered(self, name: str) -> None:
        with self._lock:
            self._failures, self._away_until, self._disk_error = 0, 0.0, None
            over = {"", self._problems.get(name, "")} & set(self._problems.values())
            self._problems = {n: t for n, t in self._problems.items() if t not in over}
        for problem in over:
            what = f"component {name!r}" if problem else str(self.source)
            event = "entries-back" if problem else "config-server-back"
            about = log_records.fields(event, component=name, source=str(self.source))
            logger.warning("%s can be read again", what, extra=about)

    def _unreadable(self, error: Exception) -> ConfigServerError:
        text, remedy = meaning(error) or (error, "start it, or correct its address")
        return ConfigServerError(f"{self.source} cannot be read: {text}", remedy)

    def after_fork(self) -> None:
        """Forget threads and readers in a forked child."""
        self._lock, self._due, self._thread = threading.Lock(), set(), None
        self._end_of_watch = None
        self.end_feed()
        for cached in self._cache.values():
            cached.lock, cached.loop, cached.waiting = threading.Lock(), None, []
            cached.reader = 0


def _watch(reference: Callable[[], Topology | None], end: threading.Event, interval: float) -> None:
    """Follow changes by a feed, or else about once a second, with a weak reference only."""
    feed: ChangeFeed | None = None
    again, pause = 0.0, interval  # when to try to get a feed again
    while not end.is_set():
        topology = reference()
        if topology is None:
            break
        source = str(topology.source)
        try:
            if feed is None and time.monotonic() >= again:
                again, pause = time.monotonic() + pause, min(2 * pause, FEED_PAUSE)
                feed = topology.begin_feed()
            if feed is None:
                topology._read_stale()
            until_next = topology.pause()
            del topology
            if feed is None:
                end.wait(until_next)
                continue
            changed, epoch = feed.wait()
            pause = interval
            topology = reference()
            if topology is None:
                break
            topology.follow(feed, changed, epoch)
        except ClosedError:
            break
        except (RedisError, OSError) as error:
            if not end.is_set():
                about = log_records.fields("feed-ended", source=source, cause=str(error))
                logger.debug("%s does not tell of changes: %s", source, error, extra=about)
            topology = reference()
            if topology is not None:
                topology.end_feed()
            if feed is not None:
                feed.release()
                feed, again = None, time.monotonic() + interval * random.uniform(0.5, 1.5)
            else:
                end.wait(interval)
        except Exception:  # nobody is there to be told
            about = log_records.fields("entries-reader-failed", source=source)
            logger.exception("%s cannot be read", source, extra=about)
            end.wait(interval)
        topology = None
    if feed is not None:
        feed.release()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _is_away(error: Exception) -> bool:
    """Whether a source did not answer; if it refuses, saved entries would hide that."""
    return isinstance(error, AWAY) and not isinstance(error, AuthenticationError)
