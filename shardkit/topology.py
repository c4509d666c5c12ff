"""The topology: each component's entries, as they are now.

Entries come from a source, the config server or a YAML shard map, and are kept. Whoever asks for a
component gets what is kept; about once a second one of those who ask reads it again first, while
all others go on with what is known:

::

    component("unique") ──► known, younger than a second ──────────────────► kept Component
                     └────► older: one caller reads it (one MGET), others ─► kept Component
                     └────► never seen: all wait for the one who reads it

A changed entry is live within about a second, and a hot call costs a look-up and a glance at the
clock. When the source is away, or holds something broken, the last good entries stay in use, the
reason is logged once, and the pause between attempts grows to eight seconds.

The steps of reading are generators that yield the keys they want and are sent the values, so that
they are written once for blocking and awaiting callers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from redis.exceptions import RedisError

from shardkit.config.component import Component, check_shards, entry_key, shards_key
from shardkit.config.entry import Entry, load_json
from shardkit.config.shard_map import ShardMap
from shardkit.errors import (
    ClosedError,
    ConfigError,
    ConfigServerError,
    MissingEntryError,
)

logger = logging.getLogger("shardkit")

INTERVAL = 1.0
LONGEST_PAUSE = 8.0
FIRST_GUESS = 64  # shards asked for before the count is known; an absent key costs next to nothing

Values: TypeAlias = list[Any]
Reading: TypeAlias = Generator[list[str], Values, Component]


class Source(Protocol):
    """Where entries come from."""

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

    Args:
        entry: how to reach it.
        client: returns a blocking client of it.
        aclient: returns an awaiting client of it, for the running loop.
    """

    def __init__(self, entry: Entry, client: Callable[[], Any], aclient: Callable[[], Any]) -> None:
        self.entry = entry
        self._client = client
        self._aclient = aclient

    def read(self, name: str, known: Component | None) -> Reading:
        """Read a component in one MGET; in two when it has more shards than were expected."""
        asked = len(known.shards) if known else FIRST_GUESS
        while True:
            keys = [shards_key(name), entry_key(name)]
            values = yield keys + [entry_key(name, n) for n in range(asked)]
            if values[0] is None:
                shards, placement, epoch = 0, "crc32", 0
            else:
                described = load_json(values[0], shards_key(name))
                shards, placement, epoch = check_shards(described, shards_key(name))
            if shards <= asked:
                break
            asked = shards
        if shards == 0 and values[1] is None:
            raise MissingEntryError(
                f"{entry_key(name)} and {shards_key(name)} are missing on {self}",
                "push a shard map that describes the component: shardkit config push",
            )
        entry = None if values[1] is None else Entry.from_json(values[1], entry_key(name))
        entries = []
        for n, value in enumerate(values[2 : 2 + shards]):
            if value is None:
                raise MissingEntryError(
                    f"{entry_key(name, n)} is missing on {self}, but {shards_key(name)} says "
                    f"{shards} shards",
                    "push the shard map again: shardkit config push",
                )
            entries.append(Entry.from_json(value, entry_key(name, n)))
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

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._stamp = self._now()
        self.shard_map = ShardMap.load(path)
        for warning in self.shard_map.warnings:
            logger.warning("%s; %s", warning, warning.remedy)

    def _now(self) -> tuple[int, int]:
        try:
            stat = self._path.stat()
        except OSError as error:
            raise ConfigError(f"{self._path}: {error.strerror}", "name a shard map") from None
        return stat.st_mtime_ns, stat.st_size

    def read(self, name: str, known: Component | None) -> Reading:
        """Look whether the file changed, and return what it says of a component."""
        yield from ()  # a reading, though it needs no keys
        stamp = self._now()
        if stamp != self._stamp:
            self.shard_map = ShardMap.load(self._path)
            self._stamp = stamp
        try:
            return self.shard_map.components[name]
        except KeyError:
            described = ", ".join(sorted(self.shard_map.components))
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
        return sorted(self.shard_map.components)

    async def anames(self) -> list[str]:
        """List the components of the map."""
        return self.names()

    def __str__(self) -> str:
        return str(self._path)


class FixedMap(MapFile):
    """A shard map that is already in memory, and stays as it is."""

    def __init__(self, shard_map: ShardMap) -> None:
        self.shard_map = shard_map
        self._stamp = (0, 0)

    def _now(self) -> tuple[int, int]:
        return self._stamp

    def __str__(self) -> str:
        return self.shard_map.source


_PATTERNS = (entry_key("*"), shards_key("*"))


def _names(keys: Iterable[bytes]) -> list[str]:
    """Return the components that keys of entries belong to."""
    names = (key.decode(errors="replace").split(":", 2)[2] for key in keys)
    return sorted({re.sub(r":[0-9]+$", "", name) for name in names})


@dataclass
class _Kept:
    """What is known of one component."""

    component: Component | None = None
    until: float = 0.0
    failures: int = 0
    reading: threading.Lock = field(default_factory=threading.Lock)
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
        _topologies.add(self)

    def component(self, name: str) -> Component:
        """Return a component as it is now, to within about a second.

        Cost: about 0.15 microseconds; one exchange with the config server about once a second.

        Raises:
            MissingEntryError: it was never seen and is not there.
            InvalidEntryError: it was never seen and is broken.
            ConfigServerError: it was never seen and the config server is away.
        """
        kept = self._kept.get(name)
        if kept is not None and self._clock() < kept.until and kept.component is not None:
            return kept.component
        return self._read(name)

    async def acomponent(self, name: str) -> Component:
        """Return a component as it is now, awaiting; see `component`."""
        kept = self._kept.get(name)
        if kept is not None and self._clock() < kept.until and kept.component is not None:
            return kept.component
        return await self._aread(name)

    def known(self, name: str) -> Component:
        """Return a component as it was last read. No I/O.

        Raises:
            MissingEntryError: it was never read.
        """
        self._check_open()
        kept = self._kept.get(name)
        if kept is None or kept.component is None:
            raise MissingEntryError(
                f"component {name!r} was not read yet from {self.source}",
                f"await kit.load({name!r}) once, before the first use",
            )
        return kept.component

    def is_stale(self, name: str) -> bool:
        """Whether a component should be read again, and nobody is at it."""
        kept = self._kept[name]
        return self._clock() >= kept.until and not kept.reading.locked()

    def expire(self) -> None:
        """Forget that what is kept is fresh: the next call reads again."""
        for kept in self._kept.values():
            kept.until = 0.0

    def close(self) -> None:
        """Stop serving."""
        self._closed = True
        for kept in self._kept.values():
            kept.component, kept.until = None, 0.0

    def _read(self, name: str) -> Component:
        kept = self._slot(name)
        first = kept.component is None
        if not kept.reading.acquire(blocking=first):
            assert kept.component is not None
            return kept.component
        try:
            if kept.component is not None and self._clock() < kept.until:
                return kept.component  # somebody else read it while we waited
            steps = self.source.read(name, kept.component)
            try:
                keys = next(steps)
                while True:
                    keys = steps.send(self.source.fetch(keys))
            except StopIteration as done:
                return self._good(kept, done.value)
            except (ConfigError, RedisError, OSError) as error:
                return self._bad(name, kept, error)
        finally:
            self._release(kept)

    async def _aread(self, name: str) -> Component:
        kept = self._slot(name)
        while not kept.reading.acquire(blocking=False):
            if kept.component is not None:
                return kept.component
            await self._wait(kept)
        try:
            if kept.component is not None and self._clock() < kept.until:
                return kept.component
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
        waiting, kept.waiting = kept.waiting, []
        for wake in waiting:
            wake()

    def _slot(self, name: str) -> _Kept:
        self._check_open()
        return self._kept.setdefault(name, _Kept())

    def _good(self, kept: _Kept, component: Component) -> Component:
        if kept.failures:
            logger.info("component %r is read from %s again", component.name, self.source)
        kept.failures = 0
        if kept.component is None or not component.same_as(kept.component):
            kept.component = component  # else the old object stays, and its clients with it
        kept.until = self._clock() + self._interval
        return kept.component

    def _bad(self, name: str, kept: _Kept, error: Exception) -> Component:
        if kept.component is None:
            if isinstance(error, ConfigError):
                raise error
            raise ConfigServerError(
                f"{self.source} cannot be read: {error}", "start it, or name another one"
            ) from error
        kept.failures += 1
        if kept.failures == 1:
            logger.warning(
                "component %r keeps its last good entries (epoch %d): %s",
                name,
                kept.component.epoch,
                error,
            )
        pause = min(self._interval * 2 ** (kept.failures - 1), LONGEST_PAUSE)
        # The jitter keeps a fleet of clients from asking in step.
        kept.until = self._clock() + pause * random.uniform(0.8, 1.0)
        return kept.component

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the kit is closed", "open a new one with shardkit.connect")

    def _after_fork(self) -> None:
        for kept in self._kept.values():
            kept.reading, kept.waiting = threading.Lock(), []


_topologies: weakref.WeakSet[Topology] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # A thread of the parent may have held a lock while it forked; nobody would release it here.
    for topology in list(_topologies):
        topology._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
