"""Kits: one topology opened, and everything that shardkit offers handed out.

::

    with shardkit.connect("configs/local.yaml") as kit:        # or "redis://config-host:6379/0",
        @kit.redis_connection("unique")                        # or nothing: $SHARDKIT_CONFIG
        def expected(conn, day): ...

        timelines = kit.key_sharded("timelines", shards=8)
        ids = kit.set("ids", component="unique", total=1_000_000, members=int)

    async with await shardkit.aconnect() as kit:               # the same, awaited
        await kit.set("ids", component="unique", total=1_000_000, members=int).scard()

Either kit's decorators serve blocking and async functions. The default kit, which the module-level
decorators and routers use, is opened from ``configure`` or ``$SHARDKIT_CONFIG`` when it is first
needed, never at import.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Self, TypeAlias, TypeVar, overload

from shardkit import decorators
from shardkit.client_plane import DEFAULT_PLANE, ClientPlane
from shardkit.clients import AsyncClient, Client, Clients
from shardkit.config.component import Component
from shardkit.config.directory import AsyncDirectory, Directory
from shardkit.config.entry import Entry
from shardkit.config.shard_map import ShardMap
from shardkit.connections import Connector
from shardkit.decorators import Decorator, KeyOf
from shardkit.drivers import AwaitingDriver, BlockingDriver
from shardkit.errors import ConfigError, InvalidEntryError, ShardKitError
from shardkit.geo.city_totals import CityTotals
from shardkit.geo.ip_to_city import IpToCity
from shardkit.operation import Awaiting, Blocking, Driver, Face, Operation
from shardkit.routers import (
    AsyncIdPairShardedConnection,
    AsyncKeyShardedConnection,
    IdPairShardedConnection,
    KeyShardedConnection,
)
from shardkit.routing.placement import DEFAULT
from shardkit.structures.clock import ServerClock
from shardkit.structures.codecs import Codec
from shardkit.structures.hash import ShardedHash, V
from shardkit.structures.layouts import GROUPS
from shardkit.structures.list import PIECE_SIZE, ShardedList
from shardkit.structures.locations import Locations
from shardkit.structures.members import M
from shardkit.structures.packed import PackedRecords
from shardkit.structures.packed_format import Fields
from shardkit.structures.set import ShardedSet
from shardkit.structures.sorted_set import DEFAULT_BOUND, ShardedSortedSet
from shardkit.structures.strings import ShardedStrings
from shardkit.structures.unique_precision import SIXTY_BIT
from shardkit.structures.unique_visitors import UniqueVisitors
from shardkit.topology import ConfigServer, FixedMap, MapFile, Source, Topology

logger = logging.getLogger("shardkit")

ENVIRONMENT = "SHARDKIT_CONFIG"
# The config server is asked in the way of somebody's call: it gets less time than data does.
CONFIG_TIMEOUT = 1.0

Where: TypeAlias = str | Path | ShardMap | Entry

T = TypeVar("T")


class _Kit(Generic[Face]):
    """What both kits have: the topology, the clients, decorators, and structures of either face.

    Args:
        source: where entries come from.
        connector: what builds clients.
        clock: tells the servers' time.
        config_clients: the clients of the config server, closed with the kit.
    """

    _driver: Driver  # of the kit's face; structures get it

    def __init__(
        self,
        source: Source,
        *,
        connector: Connector | None = None,
        clock: ServerClock | None = None,
        config_clients: Clients | None = None,
    ) -> None:
        self.topology = Topology(source)
        self.clients = Clients(connector)
        self.plane = ClientPlane(self.topology, self.clients)
        self._clock = clock or ServerClock()
        self._config_clients = config_clients

    def redis_connection(self, component: str) -> Decorator:
        """Return a decorator that hands a function the client of a component's unsharded entry.

        See `shardkit.decorators.redis_connection`.
        """
        return decorators.redis_connection(self.plane, component)

    def sharded_connection(
        self, component: str, shards: int | None = None, key: KeyOf = None
    ) -> Decorator:
        """Return a decorator that hands a function the client of the shard of its first argument.

        See `shardkit.decorators.sharded_connection`.
        """
        return decorators.sharded_connection(self.plane, component, shards, key)

    @overload
    def hash(
        self,
        name: str,
        *,
        component: str,
        total: int | None = ...,
        shard_size: int | None = ...,
        codec: None = ...,
        partition: str = ...,
        groups: int = ...,
    ) -> ShardedHash[Face, str, bytes]: ...
    @overload
    def hash(
        self,
        name: str,
        *,
        component: str,
        total: int | None = ...,
        shard_size: int | None = ...,
        codec: None = ...,
        fields: type[M],
        partition: str = ...,
        groups: int = ...,
    ) -> ShardedHash[Face, M, bytes]: ...
    @overload
    def hash(
        self,
        name: str,
        *,
        component: str,
        total: int | None = ...,
        shard_size: int | None = ...,
        codec: Codec[V],
        partition: str = ...,
        groups: int = ...,
    ) -> ShardedHash[Face, str, V]: ...
    @overload
    def hash(
        self,
        name: str,
        *,
        component: str,
        total: int | None = ...,
        shard_size: int | None = ...,
        codec: Codec[V],
        fields: type[M],
        partition: str = ...,
        groups: int = ...,
    ) -> ShardedHash[Face, M, V]: ...
    @overload
    def hash(
        self,
        name: str,
        *,
        component: str,
        total: int | None = ...,
        shard_size: int | None = ...,
        codec: str,
        partition: str = ...,
        groups: int = ...,
    ) -> ShardedHash[Face, str, Any]: ...
    @overload
    def hash(
        self,
        name: str,
        *,
        component: str,
        total: int | None = ...,
        shard_size: int | None = ...,
        codec: str,
        fields: type[M],
        partition: str = ...,
        groups: int = ...,
    ) -> ShardedHash[Face, M, Any]: ...
    def hash(
        self,
        name: str,
        *,
        component: str,
        total: int | None = None,
        shard_size: int | None = None,
        codec: Codec[Any] | str | None = None,
        fields: type[Any] = str,
        partition: str = "digits",
        groups: int = GROUPS,
    ) -> ShardedHash[Face, Any, Any]:
        """Return a HASH in parts; see `shardkit.structures.hash.ShardedHash`."""
        return ShardedHash(
            self._driver, component, name, total, shard_size, codec, fields, partition, groups
        )

    @overload
    def strings(
        self,
        name: str,
        *,
        component: str,
        total: int | None = ...,
        shard_size: int | None = ...,
        codec: None = ...,
        partition: str = ...,
        groups: int = ...,
    ) -> ShardedStrings[Face, bytes]: ...
    @overload
    def strings(
        self,
        name: str,
        *,
        component: str,
        total: int | None = ...,
        shard_size: int | None = ...,
        codec: Codec[V],
        partition: str = ...,
        groups: int = ...,
    ) -> ShardedStrings[Face, V]: ...
    @overload
    def strings(
        self,
        name: str,
        *,
        component: str,
        total: int | None = ...,
        shard_size: int | None = ...,
        codec: str,
        partition: str = ...,
        groups: int = ...,
    ) -> ShardedStrings[Face, Any]: ...
    def strings(self, name: str, **parameters: Any) -> ShardedStrings[Face, Any]:
        """Return the strings of a namespace, ``name``; see `shardkit.structures.strings`.

        Its parameters are those of `hash`.
        """
        return ShardedStrings(self._driver, self.hash(name, **parameters))

    @overload
    def set(
        self,
        name: str,
        *,
        component: str,
        total: int | None = ...,
        shard_size: int | None = ...,
        partition: str = ...,
        groups: int = ...,
    ) -> ShardedSet[Face, str]: ...
    @overload
    def set(
        self,
        name: str,
        *,
        component: str,
        total: int | None = ...,
        shard_size: int | None = ...,
        members: type[M],
        partition: str = ...,
        groups: int = ...,
    ) -> ShardedSet[Face, M]: ...
    def set(
        self,
        name: str,
        *,
        component: str,
        total: int | None = None,
        shard_size: int | None = None,
        members: type[Any] = str,
        partition: str = DEFAULT,
        groups: int = GROUPS,
    ) -> ShardedSet[Face, Any]:
        """Return a SET in parts; see `shardkit.structures.set.ShardedSet`."""
        return ShardedSet(
            self._driver, component, name, total, shard_size, members, partition, groups
        )

    @overload
    def sorted_set(
        self,
        name: str,
        *,
        component: str,
        total: int | None = ...,
        shard_size: int | None = ...,
        bound: int = ...,
        groups: int = ...,
    ) -> ShardedSortedSet[Face, str]: ...
    @overload
    def sorted_set(
        self,
        name: str,
        *,
        component: str,
        total: int | None = ...,
        shard_size: int | None = ...,
        bound: int = ...,
        members: type[M],
        groups: int = ...,
    ) -> ShardedSortedSet[Face, M]: ...
    def sorted_set(
        self,
        name: str,
        *,
        component: str,
        total: int | None = None,
        shard_size: int | None = None,
        bound: int = DEFAULT_BOUND,
        members: type[Any] = str,
        groups: int = GROUPS,
    ) -> ShardedSortedSet[Face, Any]:
        """Return a ZSET in parts; see `shardkit.structures.sorted_set.ShardedSortedSet`."""
        return ShardedSortedSet(
            self._driver, component, name, total, shard_size, bound, members, groups
        )

    @overload
    def list(
        self, name: str, *, component: str, shard_size: int = ...
    ) -> ShardedList[Face, str]: ...
    @overload
    def list(
        self, name: str, *, component: str, shard_size: int = ..., values: type[M]
    ) -> ShardedList[Face, M]: ...
    def list(
        self,
        name: str,
        *,
        component: str,
        shard_size: int = PIECE_SIZE,
        values: type[Any] = str,
    ) -> ShardedList[Face, Any]:
        """Return a LIST in pieces; see `shardkit.structures.list.ShardedList`."""
        return ShardedList(self._driver, component, name, shard_size, values, self._clock)

    def unique_visitors(
        self,
        name: str = "unique",
        *,
        component: str = "unique",
        precision: str = SIXTY_BIT,
        shard_size: int | None = None,
        first_day: int | None = None,
        digits: int | None = None,
        partition: str | None = None,
    ) -> UniqueVisitors[Face]:
        """Return a counter of unique visitors; see `shardkit.structures.unique_visitors`."""
        return UniqueVisitors(
            self._driver,
            component,
            name,
            precision,
            shard_size,
            first_day,
            digits,
            partition,
            self._clock,
        )

    def packed(
        self, name: str, *, component: str, fields: Fields, shard_size: int | None = None
    ) -> PackedRecords[Face]:
        """Return fixed-width records by id; see `shardkit.structures.packed.PackedRecords`."""
        return PackedRecords(self._driver, component, name, fields, shard_size)

    def locations(
        self,
        name: str = "location",
        *,
        component: str = "location",
        shard_size: int | None = None,
    ) -> Locations[Face]:
        """Return country and region by user, in two bytes; see `shardkit.structures.locations`."""
        return Locations(self._driver, component, name, shard_size)

    def ip_to_city(self, name: str = "ip2city", *, component: str = "geo") -> IpToCity[Face]:
        """Return what finds the cities of IP addresses; see `shardkit.geo.ip_to_city`."""
        return IpToCity(self._driver, component, name, self._clock)

    def city_totals(self, name: str = "daily", *, component: str = "geo") -> CityTotals[Face]:
        """Return totals of log lines by day and place; see `shardkit.geo.city_totals`."""
        return CityTotals(self._driver, component, name)

    def _close(self) -> None:
        self.topology.close()
        for clients in self._all_clients():
            clients.close()

    async def aclose(self) -> None:
        """Close every pool: the blocking ones, and the running event loop's.

        Another event loop's are closed when it ends.
        """
        self._close()
        for clients in self._all_clients():
            await clients.aclose()

    def _all_clients(self) -> Sequence[Clients]:  # `list` is a method here
        return [self.clients, *([self._config_clients] if self._config_clients else [])]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topology.source})"


class ShardKit(_Kit[Blocking]):
    """A topology opened for blocking use. Made by `connect`; a context manager.

    Thread-safe. A forked child may go on using it: it gets connections of its own.
    """

    def __init__(self, source: Source, **options: Any) -> None:
        super().__init__(source, **options)
        self._driver = self.driver = BlockingDriver(self.plane.links[True])

    @cached_property
    def directory(self) -> Directory:
        """Named configuration of any type on the config server; see `shardkit.config.directory`.

        Raises:
            ConfigError: the kit was opened from a shard map, which has no config server's place.
        """
        return Directory(_config_server(self.topology.source).client)

    def component(self, name: str) -> Component:
        """Return a component as it is now: its entries, shards, placement and epoch.

        Raises:
            ConfigError: it is missing or broken, or where it is described cannot be read.
        """
        return self.topology.component(name)

    def components(self) -> list[str]:
        """List the components that there are."""
        return self.topology.names()

    def client(self, component: str, shard: int | None = None) -> Client:
        """Return the client of a shard, or (None) of a component's unsharded entry."""
        return self.clients.get(self.topology.component(component), shard)

    def key_sharded(self, component: str, shards: int | None = None) -> KeyShardedConnection:
        """Return a router by key; see `shardkit.routers`."""
        return KeyShardedConnection(component, shards, plane=self.plane)

    def id_pair_sharded(self, component: str, shards: int | None = None) -> IdPairShardedConnection:
        """Return a router by pairs of ids; see `shardkit.routers`."""
        return IdPairShardedConnection(component, shards, plane=self.plane)

    def together(self, *operations: Operation[T]) -> list[T]:
        """Run deferred operations in lock step; see `shardkit.drivers`.

        Example: ``kit.together(a.deferred.scard(), b.deferred.scard())`` is one exchange.
        """
        return self.driver.together(*operations)

    def close(self) -> None:
        """Close every pool. Whoever uses the kit afterwards gets ClosedError.

        The pools that async functions used are closed when their event loop ends, those of a loop
        that runs here in its next turns; ``await kit.aclose()`` waits for that.
        """
        self._close()
        with suppress(RuntimeError):  # no loop runs here
            _closing.add(task := asyncio.get_running_loop().create_task(self.aclose()))
            task.add_done_callback(_closing.discard)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


_closing: set[asyncio.Task[None]] = set()


class AsyncShardKit(_Kit[Awaiting]):
    """A topology opened for awaiting use. Made by `aconnect`; an asynchronous context manager.

    Each event loop that uses it gets connections of its own.
    """

    def __init__(self, source: Source, **options: Any) -> None:
        super().__init__(source, **options)
        self._driver = self.driver = AwaitingDriver(self.plane.alinks[True])

    @cached_property
    def directory(self) -> AsyncDirectory:
        """Named configuration of any type on the config server; see `shardkit.config.directory`.

        Raises:
            ConfigError: the kit was opened from a shard map, which has no config server's place.
        """
        return AsyncDirectory(_config_server(self.topology.source).aclient)

    async def component(self, name: str) -> Component:
        """Return a component as it is now; see `ShardKit.component`."""
        return await self.topology.acomponent(name)

    async def components(self) -> list[str]:
        """List the components that there are."""
        return await self.topology.anames()

    async def load(self, *names: str) -> None:
        """Read components, so that routers can hand out their clients without waiting.

        Args:
            names: the components; none for all that there are, of which broken ones are logged.

        Raises:
            ConfigError: a named component is missing or broken.
        """
        found = names or await self.components()
        outcomes = await asyncio.gather(
            *map(self.topology.acomponent, found), return_exceptions=True
        )
        for name, outcome in zip(found, outcomes, strict=True):
            if isinstance(outcome, ShardKitError) and not names:
                logger.warning("component %r cannot be used: %s", name, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

    async def client(self, component: str, shard: int | None = None) -> AsyncClient:
        """Return the awaiting client of a shard, or (None) of the unsharded entry."""
        return self.clients.aget(await self.topology.acomponent(component), shard)

    def key_sharded(self, component: str, shards: int | None = None) -> AsyncKeyShardedConnection:
        """Return a router by key; see `shardkit.routers`."""
        return AsyncKeyShardedConnection(component, shards, plane=self.plane)

    def id_pair_sharded(
        self, component: str, shards: int | None = None
    ) -> AsyncIdPairShardedConnection:
        """Return a router by pairs of ids; see `shardkit.routers`."""
        return AsyncIdPairShardedConnection(component, shards, plane=self.plane)

    async def together(self, *operations: Operation[T]) -> list[T]:
        """Run deferred operations in lock step; see `ShardKit.together`."""
        return await self.driver.together(*operations)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()


def connect(where: Where | None = None, **options: Any) -> ShardKit:
    """Open a topology for blocking use.

    Args:
        where: a YAML shard map's path; or the config server that holds the entries, as a
            redis://, rediss:// or unix:// URL or an Entry; or a ShardMap. By default what
            ``$SHARDKIT_CONFIG`` says.
        options: ``connector`` builds clients in another way, ``clock`` tells another time.

    Returns:
        The kit. It connects to nothing before it is used.

    Raises:
        ConfigError: the map cannot be read, or nothing says where to look.
        InvalidEntryError: something in the map or URL cannot be used.
    """
    source, clients = _source(where, options.get("connector"))
    return ShardKit(source, config_clients=clients, **options)


async def aconnect(where: Where | None = None, **options: Any) -> AsyncShardKit:
    """Open a topology for awaiting use, and read all its components; see `connect`.

    A component that cannot be used is logged; whoever uses it gets the error.

    Raises:
        ConfigError: the map or the config server cannot be read, or nothing says where to look.
    """
    source, clients = _source(where, options.get("connector"))
    kit = AsyncShardKit(source, config_clients=clients, **options)
    try:
        await kit.load()
    except BaseException:
        await kit.aclose()
        raise
    return kit


def _source(where: Where | None, connector: Connector | None) -> tuple[Source, Clients | None]:
    if where is None:
        where = os.environ.get(ENVIRONMENT)
        if not where:
            raise ConfigError(
                f"no topology was named, and ${ENVIRONMENT} is not set",
                f"give a shard map's path or a config server's URL, or export {ENVIRONMENT}",
            )
    if isinstance(where, ShardMap):
        return FixedMap(where), None
    if isinstance(where, str) and "://" in where:
        where = Entry({"url": where.strip()}, "config server")
    if isinstance(where, Entry):
        if where.is_cluster:
            raise InvalidEntryError(
                "config server: cluster = true cannot be used",
                "a component's entries are read at once, from one server",
            )
        where.resolved("config server")  # whether the environment has what it refers to
        limits = {"socket_timeout": CONFIG_TIMEOUT, "socket_connect_timeout": CONFIG_TIMEOUT}
        entry = Entry({**limits, **where.fields}, "config server")
        component = Component("config-server", entry)
        clients = Clients(connector)
        return ConfigServer(
            entry,
            lambda: clients.get(component, None, raw=True),
            lambda: clients.aget(component, None, raw=True),
        ), clients
    return MapFile(where), None


def _config_server(source: Source) -> ConfigServer:
    if not isinstance(source, ConfigServer):
        raise ConfigError(
            f"{source} is a shard map: it has no directory", "connect to the config server's URL"
        )
    return source


class _Default:
    """The default kit, opened once."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.where: Where | None = None
        self.kit: ShardKit | None = None

    def opened(self) -> ShardKit:
        kit = self.kit
        if kit is None:
            with self.lock:
                kit = self.kit = self.kit or connect(self.where)
        return kit

    def plane(self) -> ClientPlane:
        return (self.kit or self.opened()).plane

    def configure(self, where: Where | ShardKit | None) -> None:
        with self.lock:
            old, self.kit = self.kit, None
            if isinstance(where, ShardKit):
                self.kit = where
            else:
                self.where = where
            if old is not None and old is not where:
                old.close()


_default = _Default()
DEFAULT_PLANE.opened = _default.plane
os.register_at_fork(after_in_child=lambda: setattr(_default, "lock", threading.RLock()))


def configure(where: Where | ShardKit | None = None) -> None:
    """Say where the default kit's topology is; an open default kit is closed.

    Args:
        where: see `connect`; or a kit that is open already.
    """
    _default.configure(where)


def default_kit() -> ShardKit:
    """Return the default kit, which is opened now if it was not yet.

    Raises:
        ConfigError: neither `configure` nor ``$SHARDKIT_CONFIG`` says where its topology is.
    """
    return _default.opened()


def redis_connection(component: str) -> Decorator:
    """The default kit's `ShardKit.redis_connection`, opened when the function is first called."""
    return decorators.redis_connection(DEFAULT_PLANE, component)


def sharded_connection(component: str, shards: int | None = None, key: KeyOf = None) -> Decorator:
    """The default kit's `ShardKit.sharded_connection`, opened when the function is first called."""
    return decorators.sharded_connection(DEFAULT_PLANE, component, shards, key)
