"""The topology: each component's entries, as they are now.

Entries come from a source, the config server or a YAML shard map, and are kept. Whoever asks for a
component gets what is kept; about once a second one of those who ask reads it again first, while
all others go on with what is known:

::

    component("unique") ──► known, younger than a second ──────────────────► kept Component
                     └────► older: one caller reads it (one MGET), others ─► kept Component
                     └────► never seen: all wait for the one who reads it

A changed entry is live within about a second, and a hot call costs a look-up and a glance at the
clock. When the source is away, or holds something broken, the last good entries stay in use and the
reason is logged once. While it is away, the pause between attempts grows to eight seconds; whoever
makes one waits for the source's time-out, all others do not. A component that was never seen cannot
be served: the reason is raised, and known for a second as an entry would be.

The steps of reading are generators that yield the keys they want and are sent the values, so that
they are written once for blocking and awaiting callers.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import random
import re
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from redis.exceptions import RedisError

from shardkit.config.component import Component, check_name, check_shards, entry_key, shards_key
from shardkit.config.entry import Entry, load_json
from shardkit.config.problem import invalid
from shardkit.config.shard_map import ShardMap
from shardkit.errors import (
    ClosedError,
    ConfigError,
    ConfigServerError,
    InvalidEntryError,
    MissingEntryError,
)
from shardkit.routing.placement import DEFAULT

logger = logging.getLogger("shardkit")

INTERVAL = 1.0
LONGEST_PAUSE = 8.0
FIRST_GUESS = 64  # shards asked for before the count is known; an absent key costs next to nothing

Values: TypeAlias = list[Any]
Reading: TypeAlias = Generator[list[str], Values, Component]


class Source(Protocol):
    """Where entries come from.

    Attributes:
        local: it is read without an exchange with a server.
    """

    local: bool

    def read(self, name: str, known: Component | None) -> Reading:
        """Read one component: yield keys, be sent their values, return the component."""

    def fetch(self, keys: list[str]) -> Values:
        """Get the values of keys."""

    async def afetch(self, keys: list[str]) -> Values:
        """Get the values of keys, awaiting."""

    def names(self) -> list[str]:
        """List the components that there are."""

    async def anames(self) -> list[str]:
        """List the components that there are, awaiting."""

    def __str__(self) -> str:
        """Where that is, for messages."""


class ConfigServer:
    """The config server: entries under ``config:redis:*`` and ``config:shards:*``.

    Raises ConfigError for what it holds, and what redis-py raises where it cannot be reached.

    Args:
        entry: how to reach it.
        client: returns a blocking client of it.
        aclient: returns an awaiting client of it, for the running loop.
    """

    local = False

    def __init__(self, entry: Entry, client: Callable[[], Any], aclient: Callable[[], Any]) -> None:
        self.entry = entry
        self._client = client
        self._aclient = aclient
        self._last: dict[str, tuple[Values, Component]] = {}

    def read(self, name: str, known: Component | None) -> Reading:
        """Read a component in one MGET; in two when it has more shards than were expected."""
        if known is None:
            problems = list(check_name(name, "component"))
            if problems:
                raise invalid(problems)
        asked = len(known.shards) if known else FIRST_GUESS
        while True:
            values = yield [shards_key(name), entry_key(name)] + [
                entry_key(name, n) for n in range(asked)
            ]
            same, component = self._last.get(name, ([], None))
            if component is not None and values == same:
                return component  # a component of thousands of shards is not parsed every second
            described = self._shards(name, values)
            if described[0] <= asked:
                break
            asked = described[0]
        component = self._component(name, values, *described)
        self._last[name] = values, component
        return component

    def _shards(self, name: str, values: Values) -> tuple[int, str, int]:
        """Return a component's count of shards, placement and epoch; 0 shards if unsharded."""
        if values[0] is not None:
            return check_shards(load_json(values[0], shards_key(name)), shards_key(name))
        for n, value in enumerate(values[2:]):
            if value is not None:  # or its data would be looked for behind the unsharded entry
                raise MissingEntryError(
                    f"{shards_key(name)} is missing on {self}, but {entry_key(name, n)} is there",
                    _PUSH_AGAIN,
                )
        if values[1] is None:
            raise MissingEntryError(
                f"{entry_key(name)} and {shards_key(name)} are missing on {self}",
                "push a shard map that describes the component: shardkit config push",
            )
        return 0, DEFAULT, 0

    def _component(
        self, name: str, values: Values, shards: int, placement: str, epoch: int
    ) -> Component:
        entry = None if values[1] is None else Entry.from_json(values[1], entry_key(name))
        entries = []
        for n, value in enumerate(values[2 : 2 + shards]):
            key = entry_key(name, n)
            if value is None:
                raise MissingEntryError(
                    f"{key} is missing on {self}, but {shards_key(name)} says {shards} shards",
                    _PUSH_AGAIN,
                )
            entries.append(Entry.from_json(value, key))
            if entries[-1].is_cluster:
                raise InvalidEntryError(
                    f"{key}: cluster = true makes a cluster a shard",
                    "a cluster shards itself: make it the component's entry",
                )
        return Component(name, entry, tuple(entries), placement, epoch)

    def fetch(self, keys: list[str]) -> Values:
        """MGET."""
        values: Values = self._client().mget(keys)
        return values

    async def afetch(self, keys: list[str]) -> Values:
        """MGET, awaiting."""
        values: Values = await self._aclient().mget(keys)
        return values

    def names(self) -> list[str]:
        """List the components, with SCAN."""
        client = self._client()
        return _names(key for pattern in _PATTERNS for key in client.scan_iter(match=pattern))

    async def anames(self) -> list[str]:
        """List the components, awaiting."""
        client = self._aclient()
        return _names([key for p in _PATTERNS async for key in client.scan_iter(match=p)])

    def __str__(self) -> str:
        return f"config server {self.entry.address}"


class MapFile:
    """A YAML shard map used as it is; read again when the file changes."""

    local = True

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._seen: tuple[tuple[int, ...], ConfigError | None] = (), None
        self.shard_map = self._newest()

    def _newest(self) -> ShardMap:
        """Return the map as the file has it now. What is broken is not parsed twice either."""
        stamp = self._stamp()
        if stamp != self._seen[0]:
            try:
                self.shard_map = ShardMap.load(self._path)
            except ConfigError as error:
                self._seen = stamp, error.with_traceback(None)
            else:
                self._seen = stamp, None
                for warning in self.shard_map.warnings:
                    logger.warning("%s; %s", warning, warning.remedy)
        broken = self._seen[1]
        if broken is not None:
            raise copy.copy(broken)
        return self.shard_map

    def _stamp(self) -> tuple[int, ...]:
        """Return what tells one content of the file from the next."""
        try:
            stat = self._path.stat()
        except OSError as error:
            raise ConfigError(f"{self._path}: {error.strerror}", "name a shard map") from None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def read(self, name: str, known: Component | None) -> Reading:
        """Look whether the file changed, and return what it says of a component."""
        yield from ()  # a reading, though it needs no keys
        components = self._newest().components
        try:
            return components[name]
        except KeyError:
            described = ", ".join(sorted(components))
            raise MissingEntryError(
                f"{entry_key(name)} is missing: {self} does not describe component {name!r}",
                f"add it; the map describes {described}",
            ) from None

    def fetch(self, keys: list[str]) -> Values:
        """Never asked."""
        return []

    async def afetch(self, keys: list[str]) -> Values:
        """Never asked."""
        return []

    def names(self) -> list[str]:
        """List the components of the map."""
        return sorted(self._newest().components)

    async def anames(self) -> list[str]:
        """List the components of the map."""
        return self.names()

    def __str__(self) -> str:
        return str(self._path)


class FixedMap(MapFile):
    """A shard map that is already in memory, and stays as it is."""

    def __init__(self, shard_map: ShardMap) -> None:
        self.shard_map = shard_map

    def _newest(self) -> ShardMap:
        return self.shard_map

    def __str__(self) -> str:
        return self.shard_map.source


_PUSH_AGAIN = "push the shard map again: shardkit config push"
_PATTERNS = (entry_key("*"), shards_key("*"))


def _names(keys: Iterable[bytes]) -> list[str]:
    """Return the components that keys of entries belong to."""
    names = (key.decode(errors="replace").split(":", 2)[2] for key in keys)
    return sorted({re.sub(r":[0-9]+$", "", name) for name in names})


@dataclass(slots=True)
class _Kept:
    """What is known of one component.

    Attributes:
        component: as it was last read; None if it never was.
        error: why it could not be read, if it never was.
        until: when it has to be read again.
        claimed: until when somebody has promised to do that.
        reading: held by the one who reads.
        by_task: that is a task of an event loop.
        waiting: wake the tasks that wait for him.
    """

    component: Component | None = None
    error: ConfigError | None = None
    until: float = 0.0
    claimed: float = 0.0
    reading: threading.Lock = field(default_factory=threading.Lock)
    by_task: bool = False
    waiting: list[Callable[[], object]] = field(default_factory=list)


class Topology:
    """The components, kept and read again about once a second.

    Safe to use from many threads and event loops, and in a forked child.

    Args:
        source: where entries come from.
        clock: seconds that never go back.
        interval: how long what was read stays fresh, in seconds.
    """

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
        self._kept: dict[str, _Kept] = {}
        self._closed = False
        self._lock = threading.Lock()  # of the following, which are touched only in trouble
        self._failures = 0
        self._away_until = 0.0
        self._troubles: dict[str, str] = {}
        _topologies.add(self)

    def component(self, name: str) -> Component:
        """Return a component as it is now, to within about a second.

        Cost: about 0.1 microseconds; one exchange with the config server about once a second.

        Raises:
            MissingEntryError: it was never seen and is not there.
            InvalidEntryError: it was never seen and is broken.
            ConfigServerError: it was never seen and the config server is away.
            ClosedError: the kit is closed.
        """
        kept = self._kept.get(name)
        if kept is not None and self._clock() < kept.until:
            found = kept.component
            if found is not None:
                return found
        return self._read(name)

    async def acomponent(self, name: str) -> Component:
        """Return a component as it is now, awaiting; see `component`."""
        return self.fresh(name) or await self._aread(name)

    def fresh(self, name: str) -> Component | None:
        """Return a component if it need not be read again yet. No I/O."""
        kept = self._kept.get(name)
        if kept is not None and self._clock() < kept.until:
            return kept.component
        return None

    def known(self, name: str) -> Component:
        """Return a component as it was last read. No exchange with a server.

        Raises:
            MissingEntryError: it was never read.
            ClosedError: the kit is closed.
        """
        if self.source.local:
            return self.component(name)
        kept = self._slot(name)
        if kept.component is None:
            raise MissingEntryError(
                f"component {name!r} was not read yet from {self.source}",
                f"await the router's load(), or kit.load({name!r}), once before the first use",
            )
        return kept.component

    def claim(self, name: str) -> bool:
        """Whether a component is to be read again by the caller; then nobody else is told so."""
        kept, now = self._slot(name), self._clock()
        if now < max(kept.until, kept.claimed):
            return False
        kept.claimed = now + self._interval
        return True

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

    def expire(self) -> None:
        """Forget that what is kept is fresh: the next call reads again."""
        self._away_until = 0.0
        for kept in list(self._kept.values()):
            kept.until = 0.0

    def close(self) -> None:
        """Stop serving."""
        self._closed = True
        for kept in list(self._kept.values()):
            kept.component = None

    def _read(self, name: str) -> Component:
        kept = self._slot(name)
        known = kept.component
        # He who knows nothing waits for the one who reads; but not for a task, which may be of the
        # loop that this very call holds up.
        alone = kept.reading.acquire(blocking=known is None and not kept.by_task)
        if not alone and known is not None:
            return known
        try:
            found = self._settled(kept)
            if found is not None:
                return found
            steps = self.source.read(name, known)
            try:
                keys = next(steps)
                while True:
                    keys = steps.send(self.source.fetch(keys))
            except StopIteration as done:
                return self._good(kept, done.value)
            except (ConfigError, RedisError, OSError) as error:
                return self._bad(name, kept, error)
        finally:
            if alone:
                self._release(kept)

    async def _aread(self, name: str) -> Component:
        kept = self._slot(name)
        while not kept.reading.acquire(blocking=False):
            if kept.component is not None:
                return kept.component
            await self._wait(kept)
        kept.by_task = True
        try:
            found = self._settled(kept)
            if found is not None:
                return found
            steps = self.source.read(name, kept.component)
            try:
                keys = next(steps)
                while True:
                    keys = steps.send(await self.source.afetch(keys))
            except StopIteration as done:
                return self._good(kept, done.value)
            except (ConfigError, RedisError, OSError) as error:
                return self._bad(name, kept, error)
        finally:
            kept.by_task = False
            self._release(kept)

    @staticmethod
    async def _wait(kept: _Kept) -> None:
        """Wait until whoever reads is done; that may be another thread's loop."""
        loop = asyncio.get_running_loop()
        free = loop.create_future()

        def wake() -> None:
            if not free.done():
                free.set_result(None)

        kept.waiting.append(lambda: loop.call_soon_threadsafe(wake))
        if kept.reading.locked():
            await free

    @staticmethod
    def _release(kept: _Kept) -> None:
        kept.reading.release()
        while kept.waiting:
            with suppress(IndexError, RuntimeError):  # woken by another; its loop has ended
                kept.waiting.pop()()

    def _slot(self, name: str) -> _Kept:
        self._check_open()
        return self._kept.get(name) or self._kept.setdefault(name, _Kept())

    def _settled(self, kept: _Kept) -> Component | None:
        """Return what need not be read, or raise why it cannot; None if it is time to read."""
        now = self._clock()
        if kept.component is not None and now < self._away_until:
            kept.until = self._away_until
        if now >= kept.until:
            return None
        if kept.component is None and kept.error is not None:
            error = copy.copy(kept.error)
            error.__cause__ = kept.error.__cause__
            raise error
        return kept.component

    def _good(self, kept: _Kept, component: Component) -> Component:
        known = kept.component
        if known is not None and component.same_as(known) and component.epoch == known.epoch:
            component = known  # the old object stays, and its clients with it
        kept.component, kept.error = component, None
        kept.until = self._clock() + self._interval
        if self._failures or self._troubles:
            self._recovered(component.name)
        if self._closed:  # while it was read
            kept.component = None
            self._check_open()
        return component

    def _bad(self, name: str, kept: _Kept, error: Exception) -> Component:
        self._check_open()
        known, now = kept.component, self._clock()
        kept.until = now + self._interval
        if known is None:
            if not isinstance(error, ConfigError):
                cause, error = error, self._unreadable(error)
                error.__cause__ = cause
            kept.error = error.with_traceback(None)
            raise copy.copy(error) from error.__cause__
        trouble = str(error)
        if not isinstance(error, ConfigError):
            trouble = ""
            kept.until = self._pause(now)
        with self._lock:
            said = trouble in self._troubles.values()
            self._troubles[name] = trouble
        if not said and trouble:
            logger.warning(
                "component %r keeps its last good entries (epoch %d): %s",
                name,
                known.epoch,
                trouble,
            )
        elif not said:
            logger.warning(
                "%s cannot be read, the last good entries stay in use: %s", self.source, error
            )
        return known

    def _pause(self, now: float) -> float:
        """Return when to try again, now that the source was found away."""
        with self._lock:
            if now >= self._away_until:  # else somebody else has just found so as well
                pause = min(self._interval * 2 ** min(self._failures, 10), LONGEST_PAUSE)
                # The jitter keeps a fleet of clients from asking in step.
                self._away_until = now + pause * random.uniform(1, 1.2)
                self._failures += 1
            return self._away_until

    def _recovered(self, name: str) -> None:
        """Note that the source was read, and a component with it."""
        with self._lock:
            self._failures, self._away_until = 0, 0.0
            over = {"", self._troubles.get(name, "")} & set(self._troubles.values())
            self._troubles = {n: t for n, t in self._troubles.items() if t not in over}
        for trouble in over:
            what = f"component {name!r}" if trouble else str(self.source)
            logger.info("%s can be read again", what)

    def _unreadable(self, error: Exception) -> ConfigServerError:
        return ConfigServerError(
            f"{self.source} cannot be read: {error}", "start it, or name another one"
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the kit is closed", "open a new one with shardkit.connect")

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        for kept in self._kept.values():
            kept.reading, kept.by_task, kept.waiting = threading.Lock(), False, []


_topologies: weakref.WeakSet[Topology] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # A thread of the parent may have held a lock while it forked; nobody would release it here.
    for topology in list(_topologies):
        topology._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
