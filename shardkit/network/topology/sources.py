"""Where entries come from: the config server, or a YAML shard map.

::

    read("unique")  ──► [config:shards:unique, config:redis:unique, config:redis:unique:0, …]
                    ◄── their values
                    ──► Component

A reading is a generator that yields keys and is sent their values, for blocking and awaiting
callers alike. A map needs no keys.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import re
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from redis.exceptions import ConnectionError, RedisError, TimeoutError

from shardkit import log_records
from shardkit.config.component import (
    EPOCH_KEY,
    EXPECTED_SHARDS,
    WITNESS_KEY,
    Component,
    Stored,
    check_name,
    component_of,
    entry_key,
    epoch_number,
    head_keys,
    reading,
    shards_key,
)
from shardkit.config.entry import Entry, read_regular
from shardkit.config.problem import did_you_mean, invalid
from shardkit.config.shard_map import ShardMap, unreadable
from shardkit.config.store import HISTORY_KEY, values_of
from shardkit.errors import ConfigError, ConfigServerError, MissingEntryError, RetiredError
from shardkit.network.connections.databases import ClientDatabase, Steps, connection_name
from shardkit.network.topology.feed import ChangeFeed
from shardkit.network.topology.saved import SavedEntries
from shardkit.network.topology.witness import witnessed_epoch
from shardkit.operations.commands import Shard
from shardkit.operations.forks import ForkSafeLock
from shardkit.operations.steps import arun_steps, run_steps
from shardkit.recent import Recent

# Nanoseconds after which a file's time identifies its content: file systems have ticks of up to two
# seconds.
_TICK = 2_000_000_000

logger = logging.getLogger("shardkit")

AWAY = (ConnectionError, TimeoutError, OSError)
"""What is raised if a config server does not answer."""

Values: TypeAlias = list[Any]
Reading: TypeAlias = Generator[list[str], Values, Component]
StoredReading: TypeAlias = Generator[list[str], Values, Stored]


class Source:
    """Where entries come from; by itself neither pushed to, nor saved on disk."""

    local = False  # read without an exchange with a server
    changes = False  # whether its content may change
    epoch = 0  # the highest ``config:epoch`` read
    in_use = 0  # the latest of which all entries are in use
    # The ``config:epoch`` with which each component was last read.
    read_epochs: Mapping[str, int] = MappingProxyType({})

    def read(self, name: str, known: Component | None, *, compare: bool = False) -> Reading:
        """Read one component: yield keys, be sent their values, return the component.

        With ``compare`` only what each push changes, as long as that is as it was.
        """
        raise NotImplementedError

    def fetch(self, keys: list[str]) -> Values:
        """Get the values of keys."""
        raise NotImplementedError

    async def afetch(self, keys: list[str]) -> Values:
        """Get the values of keys, awaiting."""
        return self.fetch(keys)

    def witness(self, name: str) -> Any:
        """Return the epoch witness of a component; None if there are no pushes."""

    def feed(self) -> ChangeFeed | None:
        """Return a feed of changes, or raise why the server cannot do this; None if none can."""
        return None

    def announce(self, feed: ChangeFeed, epoch: int) -> None:
        """Put an epoch whose entries are all in use into the names of connections."""

    def saved(self, name: str) -> tuple[Component, float] | None:
        """Return a component that is saved on disk, and its age in seconds; None if there is none.

        Raises:
            ConfigError: it cannot be used, or is too old.
        """
        return None

    def saved_names(self) -> list[str]:
        """List the components that are saved on disk."""
        return []

    def names(self) -> list[str]:
        """List the components that there are."""
        raise NotImplementedError

    async def anames(self) -> list[str]:
        """List the components that there are, awaiting."""
        return self.names()


class ConfigServer(Source):
    """The config server: entries under ``config:redis:*`` and ``config:shards:*``.

    Raises ConfigError for its content, and redis-py's errors if it cannot be reached. ``clients``
    has for each address what returns a blocking client, and an awaiting one for the running loop:
    when one does not answer, the next is used. ``saves`` keeps the entries on disk.
    """

    changes = True

    def __init__(
        self,
        entry: Entry,
        clients: Sequence[tuple[Callable[[], Any], Callable[[], Any]]],
        saves: SavedEntries | None = None,
        address: str = "",
    ) -> None:
        self.entry = entry
        self._address = address or entry.address
        self._clients = clients
        self._current = 0  # the index of the one that is used
        self.saves = saves
        self._is_named = bool(entry.resolved("config server").get("client_name"))
        self._last: dict[str, tuple[Stored, Component]] = {}
        self.read_epochs: Recent[str, int] = Recent(65_536)
        self._named = 0  # the epoch in the name of the connection
        self.witnessed = 0  # the highest that a data server has witnessed, if it is later

    def read(self, name: str, known: Component | None, *, compare: bool = False) -> Reading:
        """Read a component in one MGET; in two when it has more shards than expected.

        With ``compare``, only its epoch and that of all entries, if it was pushed and no push has
        changed it.

        Raises:
            ConfigServerError: its epoch, or config:epoch, is lower than one seen before.
        """
        place = f" on {self}"
        same, component = self._last.get(name, ({}, None))
        stored = None
        if compare and component is not None and component.epoch:
            head = dict(zip(keys := head_keys(name), (yield from self._checked(keys)), strict=True))
            if all(head[key] == same[key] for key in keys if key != EPOCH_KEY):
                self.read_epochs[name], stored = epoch_number(head[EPOCH_KEY]), same
        if stored is None:
            stored = yield from self._reading(name, known)
            same, component = self._last.get(name, ({}, None))
        if component is None or stored != same:  # else thousands of shards were parsed every second
            self._last.pop(name, None)
            try:
                component = component_of(name, stored, place)
            except RetiredError:
                if self.saves is not None:
                    self.saves.forget(name)
                raise
            if component is None:
                if self.saves is not None:
                    self.saves.forget(name)
                raise MissingEntryError(
                    f"{entry_key(name)} and {shards_key(name)} are missing{place}, or hold no text",
                    "push a shard map that describes the component: shardkit config push",
                )
            self._last[name] = stored, component
        if known is not None and 0 < component.epoch < known.epoch:
            raise self.went_back(f"component {name!r}", known.epoch, component.epoch)
        _require_references(component, known)
        if self.saves is not None and component.problem is None:
            self.saves.note(name, stored)
        return component

    def saved(self, name: str) -> tuple[Component, float] | None:
        """Return a component that is saved on disk, and its age."""
        loaded = self.saves and self.saves.load(name)
        if not loaded:
            return None
        stored, age = loaded
        component = component_of(name, stored, f" in {self.saves.path}")  # type: ignore[union-attr]
        if component is None:
            return None
        # So that a config server that lost its data is noticed.
        self.epoch = max(self.epoch, epoch_number(stored.get(EPOCH_KEY)))
        return component, age

    def saved_names(self) -> list[str]:
        """List the components that are saved on disk."""
        return self.saves.names() if self.saves is not None else []

    def _reading(self, name: str, known: Component | None) -> StoredReading:
        steps = reading(name, len(known.shards) if known else EXPECTED_SHARDS)
        keys = next(steps)
        while True:
            values = yield from self._checked(keys)
            try:
                keys = steps.send(values)
            except StopIteration as done:
                stored: Stored = done.value
                self.read_epochs[name] = epoch_number(stored[EPOCH_KEY])
                return stored

    def _checked(self, keys: list[str]) -> Generator[list[str], Values, Values]:
        """Read values, the first of which is config:epoch, and check that."""
        # Before the exchange: others may read something newer in the meantime.
        newest = max(self.epoch, self.witnessed)
        values = yield keys
        epoch = epoch_number(values[0])
        if epoch < newest:
            raise self.went_back("config:epoch", newest, epoch)
        self.epoch = max(self.epoch, epoch)
        return values

    def went_back(self, what: str, seen: int, now: int) -> ConfigServerError:
        """Return the error of an epoch that is lower than one seen."""
        return ConfigServerError(
            f"{self} went back in time: {what} was {seen} and is {now or 'missing'}, as if it was "
            "restored from an old snapshot, or lost its data",
            f"push the newest shard map: shardkit config push MAP --above {max(seen, self.epoch)}",
        )

    def witness(self, name: str) -> EpochWitness:
        """Return the epoch witness of a component."""
        return EpochWitness(self, name)

    def client(self) -> Any:
        """Return a blocking client."""
        return self._clients[self._current][0]()

    def aclient(self) -> Any:
        """Return an awaiting client for the running loop."""
        return self._clients[self._current][1]()

    def _try_next(self) -> None:
        self._current = (self._current + 1) % len(self._clients)
        self._named = 0

    def described(self, shard: Shard) -> str:
        """Return the name of connections to the config server, with the epoch in use."""
        return f"config-server/{self.in_use}"

    def _attempts(self) -> Generator[str | None, Values, Values]:
        """Yield the connection's new name, or None, for each attempt; be sent the values.

        A slow server is asked twice if no entries are known: it may be busy with connecting.
        """
        for failures in count(1):
            try:
                if self._named == self.in_use or self._is_named:
                    return (yield None)
                self._named = self.in_use
                return (yield connection_name(self.described(Shard("config-server"))))
            except AWAY as error:
                is_slow = isinstance(error, TimeoutError)
                has_none = is_slow and not self.read_epochs and not self.saved_names()
                if failures >= len(self._clients) * (1 + has_none):
                    raise
                self._try_next()
        raise AssertionError

    def fetch(self, keys: list[str]) -> Values:
        """MGET."""

        def attempt(name: str | None) -> Any:
            client = self.client()
            if name is None:
                return _texts(keys, [client.mget(keys)])
            with client.pipeline(transaction=False) as pipe:
                pipe.client_setname(name).mget(keys)
                return _texts(keys, pipe.execute(raise_on_error=False))

        return run_steps(self._attempts(), attempt)

    async def afetch(self, keys: list[str]) -> Values:
        """MGET, awaiting."""

        async def attempt(name: str | None) -> Any:
            client = self.aclient()
            if name is None:
                return _texts(keys, [await client.mget(keys)])
            async with client.pipeline(transaction=False) as pipe:
                pipe.client_setname(name).mget(keys)
                return _texts(keys, await pipe.execute(raise_on_error=False))

        return await arun_steps(self._attempts(), attempt)

    def feed(self) -> ChangeFeed:
        """Return a feed of changes, over a connection of its own."""
        pool = self.client().connection_pool
        connection = pool.make_connection(protocol=3)
        # Not the pool's own database, which would keep the clients alive.
        named = self.described(Shard("config-server"))
        connection.database = ClientDatabase(pool.database.number, label=lambda: named)
        try:
            return ChangeFeed(connection)
        except AWAY:
            self._try_next()
            raise

    def announce(self, feed: ChangeFeed, epoch: int) -> None:
        """Put an epoch into the names of both connections."""
        self.epoch = max(self.epoch, epoch)
        self.in_use = max(self.in_use, epoch)
        if self.saves is not None:
            self.saves.confirm()
        if epoch > feed.announced and not self._is_named:
            feed.announced = epoch
            feed.rename(connection_name(self.described(Shard("config-server"))))
            if self._named != epoch:
                self.fetch([EPOCH_KEY])

    def names(self) -> list[str]:
        """List the components, with SCAN."""
        self.fetch(_ASKED)  # of a server that answers
        client = self.client()
        return _names(key for pattern in _PATTERNS for key in client.scan_iter(match=pattern))

    async def anames(self) -> list[str]:
        """List the components, awaiting."""
        await self.afetch(_ASKED)
        client = self.aclient()
        return _names([key for p in _PATTERNS async for key in client.scan_iter(match=p)])

    def __str__(self) -> str:
        return f"config server {self._address}"


class EpochWitness:
    """Asks what one shard's server has witnessed, on the first connection to it."""

    def __init__(self, source: ConfigServer, component: str) -> None:
        self._source = source
        self.command = ("ZSCORE", WITNESS_KEY, component)
        self.settled = False

    def doubts(self, reply: Any) -> int:
        """Return the epoch witnessed, if it is later than any read; otherwise, or if refused, 0."""
        witnessed = witnessed_epoch(reply)
        self.settled = witnessed <= self._source.epoch
        return 0 if self.settled else witnessed

    def confirm(self, witnessed: int, fetch: str) -> Steps[None]:
        """Read the config server again: the push may be younger than the last reading.

        ``fetch`` is the name of the source's method for that.

        Raises:
            ConfigServerError: it went back.
        """
        with suppress(RedisError, OSError):  # while it is away, the known entries stay in use
            values = yield partial(getattr(self._source, fetch), [EPOCH_KEY])
            now = epoch_number(values[0])
            if now < witnessed:
                self._source.witnessed = max(self._source.witnessed, witnessed)
                raise self._source.went_back("config:epoch", witnessed, now)
            self.settled = True


def _require_references(component: Component, known: Component | None) -> None:
    """Refuse new entries whose references this process lacks, if it knows earlier ones."""
    if known is None or component is known or component.same_as(known):
        return
    before = dict(known.entries())
    for shard, entry in component.entries():
        text = entry.to_json()
        if entry != before.get(shard) and ("${" in text or "password_file" in text):
            entry.resolved(entry_key(*shard))


def _texts(keys: list[str], replies: list[Any]) -> Values:
    """Return MGET's reply, the last one; others may have been refused."""
    if isinstance(replies[-1], Exception):
        raise replies[-1]
    return values_of(keys, replies[-1])


class MapFile(Source):
    """A YAML shard map used as it is; read again when the file changes."""

    local = True
    changes = True
    _digest = b""  # of the file's content

    def __init__(self, path: str | Path) -> None:
        self._path = path if isinstance(path, Path) else Path(path)
        self._lock = ForkSafeLock()  # of the following two, which are changed together
        self._seen: tuple[tuple[int, ...], ConfigError | None] = (), None
        self._told = log_records.Once()
        self.shard_map = self._newest()

    def _newest(self) -> ShardMap:
        """Return the file's current map; the same content is parsed only once, even if broken."""
        with self._lock:
            stamp = self._stamp()  # before reading: later writes have another
            if stamp != self._seen[0]:
                broken = self._load()
                # A file may be written twice in one tick of its clock, and keep its size.
                is_old = abs(time.time_ns() - stamp[0]) > _TICK
                self._seen = stamp if is_old else (), broken
            broken = self._seen[1]
            if broken is not None:
                raise copy.copy(broken)
            return self.shard_map

    def _load(self) -> ConfigError | None:
        """Read the file, unless its content is known; return why it cannot be used."""
        self._digest, before = b"", self._digest
        try:
            data = read_regular(self._path)
            self._digest = hashlib.sha256(data).digest()
            if self._digest == before:
                return self._seen[1]
            loaded = ShardMap.decode(data, str(self._path))  # these bytes: it may change any time
        except OSError as error:
            return unreadable(str(self._path), str(error.strerror))
        except ConfigError as error:
            return error.with_traceback(None)
        for warning in loaded.warnings:
            about = log_records.fields("map-doubtful", source=str(self._path))
            logger.warning("%s; %s", warning, warning.remedy, extra=about)
        self.shard_map = loaded
        return None

    def _stamp(self) -> tuple[int, ...]:
        try:
            stat = self._path.stat()
        except (OSError, ValueError) as error:  # a null byte in it
            why = getattr(error, "strerror", "it is no path")
            raise unreadable(str(self._path), why) from None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def read(self, name: str, known: Component | None, *, compare: bool = False) -> Reading:
        """Return a component of the current map."""
        yield from ()  # a reading, though it needs no keys
        try:
            components = self._newest().components
        except ConfigError as error:
            if known is not None or name not in self.shard_map.components:
                raise
            if self._told.first(name, str(error)):
                about = log_records.fields("map-kept", component=name, cause=str(error))
                text = "component %r is read from the last good map: %s"
                logger.warning(text, name, error, extra=about)
            components = self.shard_map.components
        try:
            component = components[name]
        except KeyError:
            problems = list(check_name(name, "component"))
            if problems:
                raise invalid(problems) from None
            described = ", ".join(sorted(components))
            raise MissingEntryError(
                f"{entry_key(name)} is missing: {self} does not describe component {name!r} "
                f"(known: {described})",
                f"{did_you_mean(name, components)}add it",
            ) from None
        _require_references(component, known)
        return component

    def names(self) -> list[str]:
        """List the components of the map."""
        return sorted(self._newest().components)

    def __str__(self) -> str:
        return str(self._path)


class FixedMap(MapFile):
    """A shard map that is already in memory, and stays as it is."""

    changes = False

    def __init__(self, shard_map: ShardMap) -> None:
        self.shard_map = shard_map

    def _newest(self) -> ShardMap:
        return self.shard_map

    def __str__(self) -> str:
        return self.shard_map.source


_PATTERNS = (entry_key("*"), shards_key("*"))
_ASKED = [EPOCH_KEY, HISTORY_KEY]  # several keys: a cluster, where SCAN finds few, refuses them


def _names(keys: Iterable[bytes]) -> list[str]:
    names = (key.decode(errors="replace").split(":", 2)[2] for key in keys)
    return sorted({re.sub(r":[0-9]+$", "", name) for name in names})
