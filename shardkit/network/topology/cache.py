"""Cached components: when they are read again, who reads, who waits, and what if that fails.

A component that was never read is read by its first caller. After that a thread of the topology's
own reads it again, blocking, for callers of both faces: no caller and no event loop ever waits for
it. The thread starts when a call finds a component stale, and ends when nothing is left to read.

Who holds connections asks for more (`Topology.watch`): a thread that is told by the config server
what changes (see `feed.py`), and reads that, at once and though nobody calls. So an idle
kit closes its connections to an address that no entry names any more, and what waits there is
moved. While it is told, nothing else is read again. Where it cannot be told, it reads what is stale
about once a second.
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
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from redis.exceptions import RedisError

from shardkit.config.component import Component
from shardkit.config.problem import did_you_mean
from shardkit.errors import (
    ClosedError,
    ConfigError,
    ConfigServerError,
    MissingEntryError,
    RetiredError,
)
from shardkit.network.topology.feed import BEAT, ChangeFeed
from shardkit.network.topology.sources import Reading, Source, Values
from shardkit.operations.deadlines import DeadlineExceeded, earliest
from shardkit.operations.forks import ForkSafeLock, renewed_in_children
from shardkit.operations.server_errors import meaning
from shardkit.operations.steps import arun_steps, run_steps
from shardkit.routing.placement import DEFAULT

logger = logging.getLogger("shardkit")

INTERVAL = 1.0
HELD_INTERVAL = 0.1  # while a shard of the component is being moved
LONGEST_PAUSE = 8.0
MAX_WAIT = 10.0  # for another who reads; a config server's time-outs are shorter
_CLAIMED = 0.005
LOOK_AGAIN = 0.1  # whether he still can
FED = 3 * BEAT  # how long entries stay fresh while the source tells of changes
FEED_PAUSE = 8.0  # at most, before a source that does not tell of changes is asked for it again
MOST_KEYS = 1000  # of one exchange, unless a single component has more

Outcomes: TypeAlias = dict[str, Component | Exception]
"""What became of reading components: each, or why not."""


@dataclass(slots=True)
class CacheEntry:
    """The cached state of one component.

    Attributes:
        component: as it was last read; None if it never was.
        error: why it could not be read, if it never was.
        fresh_until: when it has to be read again; 0 if the next caller is to do that and wait.
        refused: whether it refused a call, so that the next call reads it again if it is stale.
        lock: held by the one who reads.
        loop: the event loop whose task that is, if it is one.
        since: when he began.
        read_at: when it was last read, or that was tried.
        waiting: wake the tasks that wait for him.
    """

    component: Component | None = None
    error: ConfigError | None = None
    fresh_until: float = 0.0
    refused: bool = False
    lock: threading.Lock = field(default_factory=lambda: threading.Lock())
    loop: asyncio.AbstractEventLoop | None = None
    since: float = 0.0
    read_at: float = 0.0
    waiting: list[Callable[[], object]] = field(default_factory=list)


class Topology:
    """The components, cached and read again about once a second.

    Safe to use from many threads and event loops, and in a forked child.

    Args:
        source: where entries come from.
        clock: seconds that never go back.
        interval: how long what was read stays fresh, in seconds.

    Attributes:
        changed: is told each component that has changed; the kit sets it.
    """

    changed: Callable[[Component], object] = staticmethod(lambda component: None)

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
        self._closed = False
        self._lock = threading.Lock()  # of the following, which are touched only in trouble
        self._failures = 0
        self._away_until = 0.0
        self._problems: dict[str, str] = {}
        self._counts: dict[str, dict[int, str | None]] = {}  # placements by count, see `count`
        self._due: set[str] = set()  # what the thread is to read
        self._thread: threading.Thread | None = None
        self._watch_lock = ForkSafeLock()  # held by the watching thread while it reads
        self._end_of_watch: threading.Event | None = None
        self._feed: ChangeFeed | None = None  # while it tells of changes
        renewed_in_children(self)

    def component(self, name: str) -> Component:
        """Return a component as it is now, to within about a second.

        Cost: about 0.1 microseconds; for the first caller an exchange with the config server.

        Raises:
            MissingEntryError: it was never seen and is not there.
            InvalidEntryError: it was never seen and is broken.
            ConfigServerError: it was never seen and the config server is away.
            ClosedError: the kit is closed.
        """
        cached = self._cache.get(name)
        if cached is not None and self._clock() < cached.fresh_until:
            found = cached.component
            if found is not None:
                return found
        return self.fresh(name) or self._read(name)

    async def acomponent(self, name: str) -> Component:
        """Return a component as it is now, awaiting; see `component`."""
        return self.fresh(name) or await self._aread(name)

    def fresh(self, name: str) -> Component | None:
        """Return a component as it is known; None if the caller has to read it. No I/O.

        A stale one is read again meanwhile, in the background.
        """
        cached = self._cache.get(name)
        found = cached.component if cached is not None else None
        if cached is None or found is None:
            return None
        if self._clock() >= cached.fresh_until:
            if self.source.local or not cached.fresh_until or cached.refused:
                return None
            self._refresh(name, cached)
        return found

    def count(self, name: str, shards: int | None, rule: str | None = None) -> Component | None:
        """Note how many shards a caller says that a component has. No I/O.

        Entries that were written by hand have no stored count: a kit uses as many as are stored, if
        one of its callers has said this number. Nothing changes for pushed entries.

        Args:
            name: the component's name.
            shards: the number; None for a caller that does not say.
            rule: the placement; None for a caller that may use any. The first one counts.

        Returns:
            The component as it is known now; None if it was never read.
        """
        cached = self._cache.get(name)
        if type(shards) is int and shards > 0:
            rules = self._counts.setdefault(name, {})
            if rules.setdefault(shards, rule) is None:
                rules[shards] = rule
            if cached is not None and cached.component is not None:
                cached.component = self._counted(cached.component)
        return None if cached is None else cached.component

    def _counted(self, component: Component) -> Component:
        """Return the component with the placement that its callers give, if it is whole."""
        by_hand, shards = component.by_hand, len(component.shards)
        counts = self._counts.get(component.name, {})
        if by_hand is None or shards not in counts or not by_hand.is_exactly(shards):
            return component
        rule = counts[shards] or DEFAULT
        if component.problem is None and component.placement == rule:
            return component
        return component.placed_by(rule)

    def refused(self, name: str) -> None:
        """Note that a component refused a call: the next one looks whether that has changed."""
        cached = self._cache.get(name)
        if cached is not None:
            cached.refused = True

    def last_known(self, name: str) -> Component:
        """Return a component as it was last read. No exchange with a server.

        Raises:
            MissingEntryError: it was never read.
            ClosedError: the kit is closed.
        """
        if self.source.local:
            return self.component(name)
        cached = self._entry(name)
        found = cached.component
        if found is None:
            raise MissingEntryError(
                f"component {name!r} was not read yet from {self.source}",
                f"await the router's load(), or kit.load({name!r}), once before the first use",
            )
        if self._clock() >= cached.fresh_until:
            self._refresh(name, cached)
        return found

    async def aload(self, names: Iterable[str]) -> Outcomes:
        """Read components together, awaiting; those that are fresh are not read again.

        Returns:
            Each component, or why it cannot be used.

        Cost: one exchange for about 15 components of up to 64 shards.
        """
        outcomes: Outcomes = {}
        own: dict[str, CacheEntry] = {}
        locks: dict[str, threading.Lock] = {}
        try:
            for name in dict.fromkeys(names):
                cached = self._entry(name)
                found = self.fresh(name)
                if found is not None:
                    outcomes[name] = found
                elif (lock := self._claim(cached)) is not None:
                    own[name], locks[name] = cached, lock
            found_now = await arun_steps(self._read_together(own), self.source.afetch)
            for name, outcome in found_now.items():
                if own[name].lock is not locks[name]:  # it took too long: somebody else reads it
                    continue
                try:
                    outcomes[name] = self._settle(name, own[name], outcome)
                except ConfigError as error:
                    outcomes[name] = error
        finally:
            for name, cached in own.items():
                self._release(cached, locks[name])
        for name in names:
            if name not in outcomes:  # somebody else was reading it
                try:
                    outcomes[name] = await self.acomponent(name)
                except ConfigError as error:
                    outcomes[name] = error
        return outcomes

    def names(self) -> list[str]:
        """List the components that there are.

        Raises:
            ConfigServerError: the config server is away.
        """
        self._check_open()
        try:
            return self.source.names()
        except (RedisError, OSError) as error:
            raise self._unreadable(error) from error

    async def anames(self) -> list[str]:
        """List the components that there are, awaiting."""
        self._check_open()
        try:
            return await self.source.anames()
        except (RedisError, OSError) as error:
            raise self._unreadable(error) from error

    def limit_age(self, name: str, wait: float, *, trusting: bool = True) -> None:
        """Have a component read again if what is known of it is older than ``wait`` seconds.

        In the background, as always; a shard map's is read by the next call. Not while the source
        tells of changes, unless it is not to be trusted with that.
        """
        cached = self._cache.get(name)
        if cached is None or cached.component is None or (trusting and self._feed is not None):
            return
        now = self._clock()
        if now < max(cached.read_at + wait, self._away_until) or cached.lock.locked():
            return
        cached.fresh_until = min(cached.fresh_until, now)
        if not self.source.local and cached.fresh_until:
            self._refresh(name, cached)

    def reread(self, name: str) -> Component:
        """Read a component now, however fresh it is: what it names refuses to serve.

        Whoever comes while it is being read gets what is known, as does everybody while the source
        is away.
        """
        cached = self._cache.get(name)
        if cached is not None:
            cached.fresh_until = 0.0
        return self.component(name)

    async def areread(self, name: str) -> Component:
        """Read a component now, awaiting; see `reread`."""
        cached = self._cache.get(name)
        if cached is not None:
            cached.fresh_until = 0.0
        return await self.acomponent(name)

    @property
    def closed(self) -> bool:
        """Whether the kit is closed."""
        return self._closed

    def age(self, name: str) -> float:
        """Return how many seconds ago a component's entries were read; infinite if never."""
        cached = self._cache.get(name)
        if cached is None or cached.component is None:
            return math.inf
        return max(0.0, self._clock() - cached.read_at)

    def expire(self) -> None:
        """Forget how old the cached components are: the next call reads again, and waits."""
        self._away_until = 0.0
        with self._watch_lock:  # what is being read there would count as new otherwise
            for cached in list(self._cache.values()):
                cached.fresh_until = 0.0

    def watch(self) -> None:
        """Read what has changed from now on, though nobody calls.

        By a thread that ends when this topology is closed, or nobody has it any more. A source
        that does not change needs none.
        """
        if self._end_of_watch is not None or not self.source.changes:
            return
        with self._lock:
            if self._end_of_watch is not None or self._closed:
                return
            self._end_of_watch = end = threading.Event()
        thread = threading.Thread(
            target=_watch,
            args=(weakref.ref(self), end, self._interval),
            name="shardkit-watch",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError:  # there can be no more threads now: with the next client, once more
            self._end_of_watch = None

    def close(self) -> None:
        """Stop serving."""
        with self._lock:
            self._closed = True
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
        # With nothing cached, wait for the current reader, but not for ever; and not if it is a
        # task, which may belong to the event loop that this call would block.
        would_deadlock = cached.loop is not None and _running_loop() is not None
        lock = self._claim(cached, 0 if previous or would_deadlock else MAX_WAIT)
        if lock is None and previous is not None:
            return previous
        try:
            found = self._fresh_or_error(cached)
            if found is not None:
                return found
            outcomes = run_steps(self._read_together([name]), self.source.fetch)
            if _is_unknown(cached, outcomes[name]):
                _suggest(outcomes[name], name, self.names())
            return self._settle(name, cached, outcomes[name])
        finally:
            if lock is not None:
                self._release(cached, lock)

    async def _aread(self, name: str) -> Component:
        cached = self._entry(name)
        while (lock := self._claim(cached)) is None:
            if cached.component is not None:
                return cached.component
            await self._wait(cached)
        try:
            found = self._fresh_or_error(cached)
            if found is not None:
                return found
            outcomes = await arun_steps(self._read_together([name]), self.source.afetch)
            if _is_unknown(cached, outcomes[name]):
                _suggest(outcomes[name], name, await self.anames())
            if cached.lock is not lock and cached.component is not None:
                return cached.component  # it took too long: somebody else has read it
            return self._settle(name, cached, outcomes[name])
        finally:
            self._release(cached, lock)

    # ---- reading again, in the background

    def _refresh(self, name: str, cached: CacheEntry) -> None:
        """Have the thread read a component again."""
        with self._lock:
            now = self._clock()
            if self._closed or now < cached.fresh_until:
                return
            cached.fresh_until = now + self._interval  # until then nobody else comes here
            self._due.add(name)
            if self._thread is not None:
                return
            self._thread = threading.Thread(
                target=self._read_due, name="shardkit-config", daemon=True
            )
        try:
            self._thread.start()
        except RuntimeError:  # there can be no more threads now: after a second, once more
            self._thread = None

    def _read_due(self) -> None:
        while True:
            with self._lock:
                names, self._due = self._due, set()
                if not names or self._closed:
                    self._thread = None
                    return
            try:
                self._read_again(sorted(names))
            except ClosedError:
                pass
            except Exception:  # nobody is there to be told, and the next names are to be read
                logger.exception("%s cannot be read", self.source)

    def _read_stale(self) -> None:
        """Read what is stale, but for what the next caller is to read itself."""
        with self._watch_lock:
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
        """Return for how many seconds what was read last stays fresh, without a feed."""
        known = [cached.component for cached in list(self._cache.values())]
        return min(map(self._interval_of, known), default=self._interval)

    def begin_feed(self) -> ChangeFeed | None:
        """Have the source tell of changes, and read what may have changed before."""
        feed = self.source.feed()
        if feed is not None:
            self._away_until = 0.0
            self._feed = feed
            if self._closed:
                feed.close()
            try:
                self._read_fed(feed, None)
            except BaseException:
                self._feed = None
                feed.release()
                raise
        return feed

    def end_feed(self) -> None:
        """Go on without being told: what is known is stale."""
        self._feed = None
        now = self._clock()
        for cached in list(self._cache.values()):
            if cached.fresh_until > now:
                cached.fresh_until = now + self._interval

    def follow(self, feed: ChangeFeed, changed: set[str] | None, epoch: int | None) -> None:
        """Read what the source says has changed; all of it if its epoch is an unexpected one."""
        if changed or changed is None:
            self._read_fed(feed, changed)
        elif epoch is not None and epoch != self.source.epoch:
            self._read_fed(feed, None)
        else:
            self._all_fresh()

    def _read_fed(self, feed: ChangeFeed, changed: set[str] | None) -> None:
        known = {name for name, cached in list(self._cache.items()) if cached.component is not None}
        left = sorted(known if changed is None else known & changed)
        with self._watch_lock:
            while left and not self._closed:  # others may be reading what was there before
                left = self._read_again(left)
                if left:
                    time.sleep(_CLAIMED)
        self._all_fresh()
        self.source.note_epoch(feed)

    def _all_fresh(self) -> None:
        now = self._clock()
        for cached in list(self._cache.values()):
            if cached.component is not None and cached.fresh_until and now >= self._away_until:
                cached.read_at, cached.fresh_until = now, now + FED

    def _read_again(self, names: Sequence[str]) -> list[str]:
        """Read components again; return those that somebody else is reading."""
        claimed: list[str] = []
        own: dict[str, CacheEntry] = {}
        locks: dict[str, threading.Lock] = {}
        try:
            for name in names:
                cached = self._entry(name)
                if cached.component is None:
                    continue
                if (lock := self._claim(cached)) is not None:
                    own[name], locks[name] = cached, lock
                else:
                    claimed.append(name)
            if self._clock() < self._away_until:
                for cached in own.values():
                    cached.fresh_until = self._away_until
                return []
            for name, outcome in run_steps(self._read_together(own), self.source.fetch).items():
                with suppress(RetiredError):  # whoever uses it is told
                    self._settle(name, own[name], outcome)
        finally:
            for name, cached in own.items():
                self._release(cached, locks[name])
        return claimed

    # ---- reading

    def _claim(self, cached: CacheEntry, wait: float = 0.0) -> threading.Lock | None:
        """Become the one who reads, and return the lock to release; None if somebody else is.

        Args:
            cached: what is read.
            wait: how long to wait for him, in seconds.
        """
        limit = earliest(wait, anew=True)
        deadline = time.monotonic() + wait if limit is None else limit.at
        while True:
            lock = self._lock_of(cached)
            # His event loop may be stopped meanwhile: look again now and then.
            if lock.acquire(timeout=max(0.0, min(LOOK_AGAIN, deadline - time.monotonic()))):
                if lock is cached.lock:
                    cached.loop, cached.since = _running_loop(), self._clock()
                    return lock
                lock.release()
            elif time.monotonic() >= deadline:
                return None

    def _lock_of(self, cached: CacheEntry) -> threading.Lock:
        """Return the lock; a new one if the task that holds it was left in a stopped loop."""
        with self._lock:
            loop = cached.loop
            if loop is not None and (
                not loop.is_running() or self._clock() > cached.since + MAX_WAIT
            ):
                cached.lock, cached.loop = threading.Lock(), None
            return cached.lock

    def _read_together(self, names: Iterable[str]) -> Generator[list[str], Values, Outcomes]:
        """Read components, as many as fit into an exchange; yields keys, is sent their values."""
        outcomes: Outcomes = {}
        waiting: deque[tuple[str, Reading, list[str]]] = deque()

        def go_on(name: str, reading: Reading, values: Values | None) -> None:
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
            known = cached.component if cached is not None else None
            go_on(name, self.source.read(name, known), None)
        while waiting:
            taken = [waiting.popleft()]
            count = len(taken[0][2])
            while waiting and count + len(waiting[0][2]) <= MOST_KEYS:
                taken.append(waiting.popleft())
                count += len(taken[-1][2])
            try:
                values = yield [key for _, _, keys in taken for key in keys]
            except Exception as error:
                return outcomes | dict.fromkeys([each[0] for each in (*taken, *waiting)], error)
            start = 0
            for name, reading, keys in taken:
                go_on(name, reading, values[start : start + len(keys)])
                start += len(keys)
        return outcomes

    def _settle(self, name: str, cached: CacheEntry, outcome: Component | Exception) -> Component:
        previous = cached.component
        if isinstance(outcome, Component):
            outcome = self._counted(outcome)
            broke = outcome.problem if previous and previous.shards else None
            if previous is None or previous.problem is not None or broke is None:
                return self._store(cached, outcome)
            outcome = broke
        return self._keep_previous(name, cached, outcome)

    @staticmethod
    async def _wait(cached: CacheEntry) -> None:
        """Wait until whoever reads is done; that may be another thread's loop."""
        loop = asyncio.get_running_loop()
        free = loop.create_future()
        cached.waiting.append(partial(loop.call_soon_threadsafe, free.set_result, None))
        if cached.lock.locked():
            await asyncio.wait([free], timeout=LOOK_AGAIN)  # his loop may be stopped meanwhile

    @staticmethod
    def _release(cached: CacheEntry, lock: threading.Lock) -> None:
        if cached.lock is lock:
            cached.loop = None
        lock.release()
        while cached.waiting:
            with suppress(IndexError, RuntimeError):  # woken by another; its loop has ended
                cached.waiting.pop()()

    def _entry(self, name: str) -> CacheEntry:
        self._check_open()
        return self._cache.get(name) or self._cache.setdefault(name, CacheEntry())

    def _fresh_or_error(self, cached: CacheEntry) -> Component | None:
        """Return a fresh component, or raise its cached error; None if it is time to read."""
        now = self._clock()
        if cached.component is not None and now < self._away_until:
            cached.fresh_until = self._away_until
        if now >= cached.fresh_until:
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
        cached.component, cached.error, cached.refused = component, None, False
        if previous is not None and component is not previous:
            self.changed(component)
        cached.read_at = self._clock()
        cached.fresh_until = cached.read_at + (FED if self._feed else self._interval_of(component))
        if self._failures or self._problems:
            self._recovered(component.name)
        if self._closed:  # while it was read
            cached.component = None
            self._check_open()
        return component

    def _keep_previous(self, name: str, cached: CacheEntry, error: Exception) -> Component:
        self._check_open()
        if isinstance(error, DeadlineExceeded):  # the caller's; others may have more time
            if cached.component is not None:
                return cached.component
            raise self._unreadable(error) from error
        previous, now = cached.component, self._clock()
        cached.read_at = now
        cached.fresh_until = now + self._interval
        if previous is not None and isinstance(error, RetiredError):
            logger.warning("%s; it is no longer used", error)
            cached.component = None
            self.changed(Component(name, epoch=previous.epoch))  # its clients go
            previous = None
        if previous is None:
            if not isinstance(error, ConfigError):
                cause, error = error, self._unreadable(error)
                error.__cause__ = cause
            cached.error = error.with_traceback(None)
            raise copy.copy(error) from error.__cause__
        problem = str(error)
        if not isinstance(error, ConfigError):
            problem = ""
            cached.fresh_until = self._pause(now)
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
            )
        elif not reported:
            logger.warning(
                "%s cannot be read, the last good entries stay in use: %s", self.source, error
            )
        return previous

    def _pause(self, now: float) -> float:
        """Return when to try again, now that the source was found away."""
        with self._lock:
            if now >= self._away_until:  # else somebody else has just found so as well
                pause = min(self._interval * 2 ** min(self._failures, 10), LONGEST_PAUSE)
                # The jitter keeps many clients from reading at the same time.
                self._away_until = now + pause * random.uniform(1, 1.2)
                self._failures += 1
            return self._away_until

    def _recovered(self, name: str) -> None:
        """Note that the source was read, and a component with it."""
        with self._lock:
            self._failures, self._away_until = 0, 0.0
            over = {"", self._problems.get(name, "")} & set(self._problems.values())
            self._problems = {n: t for n, t in self._problems.items() if t not in over}
        for problem in over:
            what = f"component {name!r}" if problem else str(self.source)
            logger.info("%s can be read again", what)

    def _unreadable(self, error: Exception) -> ConfigServerError:
        text, remedy = meaning(error) or (error, "start it, or name another one")
        return ConfigServerError(f"{self.source} cannot be read: {text}", remedy)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the kit is closed", "open a new one with shardkit.connect")

    def after_fork(self) -> None:
        """Have no thread and no reader, in a forked child."""
        self._lock, self._due, self._thread = threading.Lock(), set(), None
        self._end_of_watch = self._feed = None
        for cached in self._cache.values():
            cached.lock, cached.loop, cached.waiting = threading.Lock(), None, []


def _watch(found: Callable[[], Topology | None], end: threading.Event, interval: float) -> None:
    """Have a topology read what has changed until its end, without keeping it from being collected.

    Told by the source, if that can do so; else about once a second.
    """
    feed: ChangeFeed | None = None
    again, pause = 0.0, interval  # when to ask it for that once more
    while not end.is_set():
        topology = found()
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
            topology = found()
            if topology is None:
                break
            topology.follow(feed, changed, epoch)
        except ClosedError:
            break
        except (RedisError, OSError) as error:
            if not end.is_set():
                logger.debug("%s does not tell of changes: %s", source, error)
            topology = found()
            if topology is not None:
                topology.end_feed()
            if feed is not None:
                feed.release()
                feed, again = None, time.monotonic() + interval
            else:
                end.wait(interval)
        except Exception:  # nobody is there to be told
            logger.exception("%s cannot be read", source)
            end.wait(interval)
        topology = None
    if feed is not None:
        feed.release()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _is_unknown(cached: CacheEntry, outcome: object) -> bool:
    """Whether a component is missing that was never there: its name may be misspelt."""
    return cached.component is None and isinstance(outcome, MissingEntryError)


def _suggest(outcome: Any, name: str, names: Iterable[str]) -> None:
    """Have the error of a missing component name the one that is probably meant."""
    if not outcome.remedy.startswith("did you mean"):
        outcome.remedy = f"{did_you_mean(name, names)}{outcome.remedy}"
