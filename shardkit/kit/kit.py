"""Kits: an opened topology, and the methods that create everything else; see docs/start.md.

Either kit's decorators serve blocking and async functions. The default kit, which the module-level
decorators and routers use, is opened from ``configure`` or ``$SHARDKIT_CONFIG`` when it is first
needed, never at import.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Generic, Self, TypeAlias, TypedDict, TypeVar, Unpack, cast

import redis
import redis.asyncio as aioredis
from redis.credentials import CredentialProvider

from shardkit import caching as _caching, log_records
from shardkit.config.component import MAX_SHARDS, Component
from shardkit.config.directory import AsyncDirectory, Directory
from shardkit.config.entry import Entry, as_one_server, entries_of_url
from shardkit.config.read_from import ReadFrom, as_read_from
from shardkit.config.shard_map import ShardMap
from shardkit.coordination.hold import AsyncRenewals, Renewals
from shardkit.errors import (
    ConfigError,
    ConfigServerError,
    InvalidArgumentError,
    ShardKitError,
    few,
    not_pickled,
)
from shardkit.events import EntryChanged, emit, handlers
from shardkit.kit import decorators
from shardkit.kit.catalogue import Catalogue
from shardkit.kit.decorators import Decorator, KeyOf
from shardkit.kit.lookup import DEFAULT_PLANE, ClientPlane
from shardkit.kit.routers import (
    AsyncIdPairShardedConnection,
    AsyncKeyShardedConnection,
    IdPairShardedConnection,
    KeyShardedConnection,
)
from shardkit.metrics.outbox import Background
from shardkit.network.connections import Connector
from shardkit.network.connections.breaker import Breakers
from shardkit.network.connections.clients import AsyncClient, Client, Clients, require_unsplit
from shardkit.network.connections.private_pool import AsyncPrivatePool, PrivatePool
from shardkit.network.health import TIMEOUT, Health, ahealth_of, health_of
from shardkit.network.links.cluster_clients import USER_CLIENTS
from shardkit.network.links.user_clients import DirectClient, MultiplexedClient
from shardkit.network.replicas.durable import TIMEOUT as DURABLE_TIMEOUT, DurableBlock
from shardkit.network.server_queries import CONFIG_LIMITS, ServerErrors
from shardkit.network.topology import ConfigServer, FixedMap, MapFile, Source, Topology
from shardkit.network.topology.saved import MAX_AGE, SavedEntries
from shardkit.operations.arguments import Seconds, in_seconds, is_number, shown
from shardkit.operations.deadlines import DeadlineBlock
from shardkit.operations.drivers import AwaitingDriver, BlockingDriver
from shardkit.operations.operation import Awaiting, Blocking, Face, Operation
from shardkit.routing.placement import DEFAULT
from shardkit.structures.base.arguments import check_integer, check_seconds
from shardkit.structures.base.server_clock import ServerClock
from shardkit.structures.upgrade import Upgrade, upgrade_component

logger = logging.getLogger("shardkit")

ENVIRONMENT = "SHARDKIT_CONFIG"
CACHE, CACHE_MAX_AGE = "SHARDKIT_CACHE", "SHARDKIT_CACHE_MAX_AGE"
CHECK_KEYS = "SHARDKIT_CHECK_KEYS"
HEAT = "SHARDKIT_HEAT"

Where: TypeAlias = str | Path | ShardMap | Entry

# The parts of a kit that only shardkit uses.
_PARTS = frozenset({"breakers", "clients", "driver", "face_of", "near_copies", "plane", "topology"})

R = TypeVar("R")
KeyRouter = TypeVar("KeyRouter")
PairRouter = TypeVar("PairRouter")
T = TypeVar("T")


class KitOptions(TypedDict, total=False):
    """The options of `connect` and `aconnect`."""

    connector: Connector
    clock: ServerClock
    credential_providers: Mapping[str, CredentialProvider]
    deadline: Seconds
    zone: str
    check_keys: bool
    heat: float
    cache: str | PathLike[str]
    cache_max_age: Seconds


class Kit(Catalogue[Face], Generic[Face, KeyRouter, PairRouter]):
    """The common part of both kits: topology, clients, decorators, and structures of either face.

    `connect` documents the arguments. ``config_clients`` are those of the config server; the kit
    closes them.
    """

    _by_key: type[KeyRouter]
    _by_pair: type[PairRouter]

    def __init__(
        self,
        source: Source,
        *,
        config_clients: Clients | None = None,
        **options: Unpack[KitOptions],
    ) -> None:
        known = KitOptions.__annotations__
        for name in options.keys() - known.keys():
            raise TypeError(
                f"connect() has no option {name!r}; use one of {', '.join(known)}, or put "
                "connection settings into the map's entries"
            )
        zone, deadline = options.get("zone", ""), options.get("deadline")
        providers, check_keys = options.get("credential_providers"), options.get("check_keys")
        if not isinstance(zone, str):
            raise InvalidArgumentError(f"zone={shown(zone)} is not a name", "pass a str")
        if deadline is not None:
            deadline = check_seconds("kit", "deadline", deadline, 0, math.inf)
        self._deadline = deadline
        heat = _checked_heat(options.get("heat"), source)
        self.topology = Topology(source)
        if providers and providers.keys() - {"config-server"}:
            self.topology.check_names = partial(_check_providers, providers, source)
        self._connector = options.get("connector") or Connector(*USER_CLIENTS)
        self._credential_providers = providers
        self.breakers = Breakers(partial(_explain, source))
        self.clients = self._new_clients()
        self.plane = ClientPlane(self.topology, self.clients, zone)
        if check_keys is None:
            check_keys = os.environ.get(CHECK_KEYS, "") not in ("", "0")
        self.plane.check_keys = check_keys
        self._background = Background(BlockingDriver(self.plane.link()))
        self._clock = options.get("clock") or ServerClock()
        self._config_clients = config_clients
        self._private: set[weakref.ref[Clients]] = set()
        self._directory: Any = None
        self.topology.changed = partial(_notify_changed, self.clients, self._private)
        self._other_face: tuple[Any, Any] | None = None
        self.near_copies: dict[str, Any] = {}  # of cached functions, by component
        self._stop_heat: Callable[[], object] | None = None
        if heat and isinstance(source, ConfigServer):
            from shardkit.kit.heat import counter_of  # few programs need it

            counter = counter_of(source, heat)
            self._stop_heat = partial(counter.leave, source)

    def redis_connection(
        self,
        component: str,
        *,
        max_age: Seconds | None = None,
        read_from: str | ReadFrom | None = None,
    ) -> Decorator:
        """Return the decorator `shardkit.kit.decorators.redis_connection` of this kit."""
        return decorators.redis_connection(self.plane, component, max_age, read_from)

    def sharded_connection(
        self,
        component: str,
        shards: int | None = None,
        key: KeyOf = None,
        *,
        max_age: Seconds | None = None,
        placement: str | None = None,
        read_from: str | ReadFrom | None = None,
    ) -> Decorator:
        """Return the decorator `shardkit.kit.decorators.sharded_connection` of this kit."""
        decorator = decorators.sharded_connection(
            self.plane, component, shards, key, max_age, placement, read_from
        )
        self.topology.count(component, shards, placement or DEFAULT)
        return decorator

    def cached(
        self, component: str, **options: Unpack[_caching.CachingOptions]
    ) -> _caching.Caching:
        """Return a decorator that caches what a function returns, for all processes.

        One caller of all processes computes a value that is missing; the others wait for it. See
        `shardkit.caching.functions.CachedFunction` for what the function can do.

        Args:
            component: where the values live, each on the shard of its key.
            ttl: the seconds for which a value is fresh. Often used values are computed again
                shortly before.
            key: the value's key, with the function's parameters: ``user:{user_id}``, or attributes
                of them: ``cart:{user.id}``.
            tags: templates like ``key``: all values of a tag are invalidated at once.
            stale: the seconds after ``ttl`` in which a value is still used while one caller
                computes it again.
            codec: how values are stored; see `shardkit.structures.codecs`.
            cache_none: whether None is stored like other values.
            exceptions: classes of exceptions that are stored, and raised again.
            fallback: whether to compute, and store nothing, where a server does not answer.
            near: bytes of this process in which values are kept. They are shared: do not change
                what a call returns.
            max_age: the seconds that such a copy may be older than what its server has, also when
                connections hang.

        Cost of a call: one exchange for a hit, three for a computation.
        """
        return _caching.Caching(lambda args, kwargs: self, component, **options)

    def near(
        self, component: str, size: int, *, max_age: Seconds = 1.0, prefixes: Collection[str] = ()
    ) -> Self:
        """Return this kit with near copies: reads of a component use replies of earlier ones.

        Routers, pipelines and structures of the returned kit use the copies, and read their own
        writes. Servers tell of all other writes, also of those by ``router[key]`` and decorators.
        On clusters, in memory, and without the right to CLIENT TRACKING, a copy is used for
        ``max_age``. Closing either kit closes both.

        Args:
            component: whose keys; others are read as usual. Those of replicas are, too.
            size: bytes of this process for the copies; the oldest go first.
            max_age: the seconds that a copy may be older than what its server has, also when
                connections hang.
            prefixes: what the keys begin with, to hear of fewer changes; all keys by default. None
                may be the beginning of another.

        Cost: one connection to each server, which sends each changed key to each such process. A
        read that finds no copy asks for its key's time to live in the same exchange.
        """
        view = object.__new__(type(self))
        vars(view).update(vars(self))
        copies = _caching.near_copies(self, component, size, max_age, prefixes)
        view.plane = plane = copy.copy(self.plane)
        plane.near = {**plane.near, component: copies}
        kind: Any = type(self._driver)
        driver = kind(plane.alink() if kind is AwaitingDriver else plane.link())
        vars(view).update(_driver=driver, driver=driver, _other_face=None)
        return view

    def face_of(self, awaits: bool | None) -> tuple[Any, Any]:
        """Return what runs operations of a face (None: the kit's own), and what renews holds."""
        kinds = BlockingDriver, AwaitingDriver
        if awaits is None or isinstance(self._driver, kinds[awaits]):
            return self._driver, self._renewals
        if self._other_face is None and awaits:
            adriver = AwaitingDriver(self.plane.alink())
            self._other_face = adriver, AsyncRenewals(adriver)
        elif self._other_face is None:
            driver = BlockingDriver(self.plane.link())
            self._other_face = driver, Renewals(driver, self._clock.monotonic)
        return self._other_face

    def deadline(self, timeout: Seconds) -> DeadlineBlock:
        """Return a context that limits everything inside it to ``timeout`` seconds.

        The limit covers connecting, waiting for a connection, all attempts, shards and steps of the
        calls inside: operations, pipelines, clients and blocking commands. A command that is late
        is a `ShardFailure`, whose ``maybe_executed`` says whether it might have run; a redis-py
        client raises its TimeoutError. Blocks can be nested; the earliest deadline applies. A block
        belongs to its thread, or to its task and the tasks started inside.

        Args:
            timeout: the limit, from entering the block; with 0 nothing is sent.
        """
        return DeadlineBlock(check_seconds("kit", "deadline", timeout, 0, math.inf))

    def durable(
        self, *, replicas: int = 1, fsync: bool = False, timeout: Seconds = DURABLE_TIMEOUT
    ) -> DurableBlock:
        """Return a context whose writes are on replicas, or on disk, at its end.

        It covers all operations, pipelines and clients that this thread or task uses inside. Other
        clients see the writes before the block ends.

        Args:
            replicas: how many replicas of each written shard must have the writes (WAIT).
            fsync: whether the masters must have the writes on disk (WAITAOF). They need an AOF.
            timeout: how long to wait, in seconds.

        Raises (at the end of the block):
            NotDurableError: the wait timed out, or there are too few replicas, or no AOF: the
                writes are done but not durable. Or the master was replaced or restarted inside the
                block: then the writes may be lost.

        Cost: one exchange with each written shard, all at the same time. With ``fsync`` and
        ``appendfsync everysec``, a second and two more exchanges.
        """
        return DurableBlock(self._driver.run, replicas, fsync, in_seconds(timeout))

    def key_sharded(
        self,
        component: str,
        shards: int | None = None,
        *,
        placement: str | None = None,
        read_from: str | ReadFrom | None = None,
    ) -> KeyRouter:
        """Return a router by key; see `shardkit.kit.routers`.

        Args:
            shards: the number of shards it must have, checked at every use; None for any number.
            placement: see `shardkit.kit.decorators.sharded_connection`.
            read_from: see `shardkit.kit.decorators.redis_connection`.
        """
        return self._router(self._by_key, component, shards, placement, read_from)

    def id_pair_sharded(
        self,
        component: str,
        shards: int | None = None,
        *,
        placement: str | None = None,
        read_from: str | ReadFrom | None = None,
    ) -> PairRouter:
        """Return a router by pairs of ids; see `key_sharded`."""
        return self._router(self._by_pair, component, shards, placement, read_from)

    def _router(
        self,
        kind: Callable[..., R],
        component: str,
        shards: int | None,
        placement: str | None,
        read_from: str | ReadFrom | None,
    ) -> R:
        """Create a router, and note the count that its caller gives."""
        router = kind(component, shards, placement=placement, plane=self.plane, read_from=read_from)
        self.topology.count(component, shards, placement or DEFAULT)
        return router

    __reduce__ = not_pickled

    def _close(self) -> None:
        self._renewals.close()
        if self._other_face is not None:
            self._other_face[1].close()
        for near in self.near_copies.values():
            near.close()
        self._background.close()
        if self._stop_heat is not None:
            self._stop_heat()
            self._stop_heat = None
        self.topology.close()
        self.plane.replicas.close()
        self.breakers.stop()
        for clients in self._all_clients():
            clients.close()

    async def aclose(self) -> None:
        """Close the blocking pools and those of the running event loop.

        The pools of another event loop are closed when it ends.
        """
        if self._background.used:
            await asyncio.to_thread(self._background.close)
        if self._stop_heat is not None:
            stop, self._stop_heat = self._stop_heat, None
            await asyncio.to_thread(stop)
        self._close()
        await asyncio.gather(*(clients.aclose() for clients in self._all_clients()))

    def _all_clients(self) -> Sequence[Clients]:  # `list` is a method here
        config = [self._config_clients] if self._config_clients else []
        return [self.clients, *config, *_alive(self._private)]

    def _new_clients(self) -> Clients:
        clients = Clients(
            self._connector, self._credential_providers, self._deadline, breakers=self.breakers
        )
        clients.topology = weakref.ref(self.topology)
        return clients

    def _new_private(self) -> Clients:
        clients = self._new_clients()
        self._private.add(weakref.ref(clients, self._private.discard))
        return clients

    def __dir__(self) -> Iterable[str]:
        """Name what users need: completion in a shell leaves out the kit's own parts."""
        return [name for name in super().__dir__() if name not in _PARTS and name[:1] != "_"]

    def __repr__(self) -> str:
        clients = self.clients.shown()
        shown = f": {few(clients, '; ')}" if clients else ""
        return f"<{type(self).__name__} of {self.topology.source}{shown}>"


def _whole(component: Component) -> Component:
    """Raise a component's problem, except for a missing count of entries written by hand."""
    return component if component.by_hand is not None else component.without_problem()


def _alive(private: set[weakref.ref[Clients]]) -> list[Clients]:
    alive = [ref() for ref in list(private)]
    return [clients for clients in alive if clients is not None]


def _notify_changed(
    clients: Clients, private: set[weakref.ref[Clients]], component: Component
) -> None:
    for changing in (clients, *_alive(private)):
        changing.changed(component)
    if handlers:
        emit(EntryChanged(component.name, component.epoch))


class ShardKit(Kit[Blocking, KeyShardedConnection, IdPairShardedConnection]):
    """A topology opened for blocking use. Created by `connect`; a context manager.

    Thread-safe, and so is all that it makes, except pipelines and what `lock` and its like return
    for one hold. A forked child may continue to use it, over connections of its own.
    """

    _by_key, _by_pair = KeyShardedConnection, IdPairShardedConnection

    def __init__(self, source: Source, **options: Any) -> None:
        super().__init__(source, **options)
        self._driver = self.driver = BlockingDriver(self.plane.link())
        self._renewals = Renewals(self.driver, self._clock.monotonic)

    def _component(self, name: str) -> Component:
        return self.topology.component(name)

    def _reading(self, read_from: str | ReadFrom | None) -> BlockingDriver:
        if read_from is None:
            return self.driver
        return BlockingDriver(self.plane.link(read_from=as_read_from(read_from)))

    @property
    def directory(self) -> Directory:
        """Named configuration of any type on the config server; see `shardkit.config.directory`.

        Raises:
            ConfigError: the kit was opened from a shard map, not from a config server.
        """
        # Not a cached_property: before Python 3.12 it has a lock, which a fork may leave held.
        if self._directory is None:
            self._directory = Directory(_config_server(self.topology.source).client)
        return self._directory  # type: ignore[no-any-return]

    def component(self, name: str) -> Component:
        """Return a component's current version; raise ConfigError if it is missing or broken."""
        return _whole(self.topology.component(name))

    def components(self) -> list[str]:
        """List all components."""
        return self.topology.names()

    def client(
        self, component: str, shard: int | None = None, *, private: bool = False
    ) -> redis.Redis:
        """Return the client of a shard, or of a component's unsharded entry.

        Args:
            shard: the shard's number; None for the unsharded entry.
            private: whether the client has connections of its own, for a library that keeps it. You
                may close it, and disconnect, reset or change its pool; the kit closes it with
                itself. It follows its entry: new connections use the current entry, and connections
                to an old address are closed when they are released. A cluster's does not.

        Returns:
            redis-py's client. That of a cluster is a `redis.RedisCluster`: the type leaves it out,
            so that libraries accept the client. Without ``private`` it is shared with decorated
            functions and all other callers: changes to its pool affect them, but not the kit's own
            connections. Do not keep it.

        Raises:
            ConfigError: the component or its entry is missing or broken.
            ShardUnavailable: the entry is a cluster, and none of its nodes answers.
        """
        if shard is not None:
            check_integer(component, "shard", shard, 0, MAX_SHARDS - 1)
        if not private:
            client = self.clients.get(self.topology.component(component), shard)
            return cast("redis.Redis", client)
        clients, layout = self._new_private(), self.topology.component(component).layout

        def find(anew: bool) -> Client:
            read = self.topology.reread if anew else self.topology.component
            described = read(component)
            require_unsplit(layout, described, shard)
            return clients.get(described, shard, raw=False)

        private_client = _followed(clients, find(False), find, PrivatePool, DirectClient)
        return cast("redis.Redis", private_client)

    def health(self, timeout: Seconds = TIMEOUT) -> Health:
        """Check every server: reachability, response time, role, lag, memory, circuit breaker.

        Args:
            timeout: how long to wait for each server, in seconds; also for the config server. If it
                does not answer, the components that were read before are checked.

        Raises:
            ConfigServerError: the components cannot be listed, and none was read before.

        Cost: a PING and an INFO to each server, 16 of them at the same time.
        """
        return health_of(self, check_seconds("kit", "timeout", timeout))

    def upgrade(
        self, component: str, structures: Collection[str] = (), *, dry_run: bool = False
    ) -> list[Upgrade]:
        """Convert the structures of a component to this release's newest format.

        Call it when no process of an earlier release is left: such processes refuse the new format.
        Other processes may read and write in the meantime. It may be interrupted and run again. As
        an operator's step, once a release, it exists only on blocking kits.

        Args:
            structures: the structures' names; empty for all.
            dry_run: whether to change nothing.

        Returns:
            The structures that were not in the newest format.

        Raises:
            NewerFormatError: a later release wrote a structure; nothing was changed.
            ShardErrors: a shard failed; run it again.

        Cost: a SCAN of the component's databases; for each structure three exchanges, one for 1,000
        groups of parts, and a second if its format changes.
        """
        return upgrade_component(
            self.component(component), self.client, self.driver, structures, dry_run=dry_run
        )

    def together(self, *operations: Operation[T]) -> list[T]:
        """Run deferred operations in lock step; see `shardkit.operations.drivers`.

        Example: ``kit.together(a.deferred.scard(), b.deferred.scard())`` is one exchange.
        """
        return self.driver.together(*operations)

    def close(self) -> None:
        """Close every pool. Later calls raise ClosedError.

        Pools of async functions are closed in the next turns of their event loops; ``await
        kit.aclose()`` waits for those of the running loop.
        """
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class AsyncShardKit(Kit[Awaiting, AsyncKeyShardedConnection, AsyncIdPairShardedConnection]):
    """A topology opened for awaiting use. Created by `aconnect`; an asynchronous context manager.

    For the tasks of any event loop, each of which has connections of its own.
    """

    _by_key, _by_pair = AsyncKeyShardedConnection, AsyncIdPairShardedConnection

    def __init__(self, source: Source, **options: Any) -> None:
        super().__init__(source, **options)
        self._driver = self.driver = AwaitingDriver(self.plane.alink())
        self._renewals = AsyncRenewals(self.driver)

    def _component(self, name: str) -> Component:
        return self.topology.last_known(name)

    def _reading(self, read_from: str | ReadFrom | None) -> AwaitingDriver:
        if read_from is None:
            return self.driver
        return AwaitingDriver(self.plane.alink(read_from=as_read_from(read_from)))

    @property
    def directory(self) -> AsyncDirectory:
        """Named configuration of any type on the config server; see `ShardKit.directory`."""
        if self._directory is None:
            self._directory = AsyncDirectory(_config_server(self.topology.source).aclient)
        return self._directory  # type: ignore[no-any-return]

    async def component(self, name: str) -> Component:
        """Return a component's current version; see `ShardKit.component`."""
        return _whole(await self.topology.acomponent(name))

    async def components(self) -> list[str]:
        """List all components."""
        return await self.topology.anames()

    async def load(self, *names: str) -> None:
        """Read components, so that routers can return clients without waiting.

        Args:
            names: the components' names; none for all components. Of these, broken ones are logged.

        Raises:
            ConfigError: a named component is missing or broken.
        """
        outcomes = await self.topology.aload(names or await self.components())
        for name, outcome in outcomes.items():
            if isinstance(outcome, Exception):
                if names:
                    raise outcome
                about = log_records.fields("component-unusable", component=name, cause=str(outcome))
                logger.warning("component %r cannot be used: %s", name, outcome, extra=about)

    async def client(
        self, component: str, shard: int | None = None, *, private: bool = False
    ) -> aioredis.Redis:
        """Return the awaiting client of a shard; see `ShardKit.client`."""
        if shard is not None:
            check_integer(component, "shard", shard, 0, MAX_SHARDS - 1)
        if not private:
            client = self.clients.aget(await self.topology.acomponent(component), shard)
            return cast("aioredis.Redis", client)
        clients, layout = self._new_private(), (await self.topology.acomponent(component)).layout

        async def find(anew: bool) -> AsyncClient:
            read = self.topology.areread if anew else self.topology.acomponent
            described = await read(component)
            require_unsplit(layout, described, shard)
            return clients.aget(described, shard, raw=False)

        described = await find(False)
        private_client = _followed(clients, described, find, AsyncPrivatePool, MultiplexedClient)
        return cast("aioredis.Redis", private_client)

    async def health(self, timeout: Seconds = TIMEOUT) -> Health:  # noqa: ASYNC109 - as blocking
        """Check every server, all at the same time; see `ShardKit.health`."""
        return await ahealth_of(self, check_seconds("kit", "timeout", timeout))

    async def together(self, *operations: Operation[T]) -> list[T]:
        """Run deferred operations in lock step; see `ShardKit.together`."""
        return await self.driver.together(*operations)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()


def _followed(clients: Clients, client: Any, find: Any, pool_class: Any, client_class: Any) -> Any:
    """Return a client of its own, which follows its entry; a cluster's as it is.

    Its connections are closed when its pool, or the cluster's client, is collected.
    """
    holder = client
    if hasattr(client, "connection_pool"):
        holder = pool_class(find, client)
        clients.keep(holder)
        client = client_class.from_pool(holder)
    weakref.finalize(holder, clients.close).atexit = False
    return client


def connect(where: Where | None = None, **options: Unpack[KitOptions]) -> ShardKit:
    """Open a topology for blocking use.

    Args:
        where: a YAML shard map's path; or the config server that holds the entries, as a
            redis://, valkey:// or unix:// URL or an Entry; or a ShardMap. By default
            ``$SHARDKIT_CONFIG``. A URL may name several servers, ``redis://a,b:6380/0``, of which
            the first that answers is used, or Sentinels: ``redis+sentinel://s1,s2/service/0``, or
            a cluster: ``redis+cluster://a,b``.
        options: ``connector`` builds clients in another way, ``clock`` replaces the servers' time.
            ``credential_providers`` maps components to redis-py's `CredentialProvider`, for
            passwords or tokens that expire (``config-server`` is the config server's key): each
            connect uses it instead of the entry's user and password. Names that are not components
            are refused; if the config server is away, by the first call that reads a component.
            ``deadline`` limits a whole call, in seconds, where an entry sets no deadline. ``zone``
            is the zone of this process, for reads from replicas. ``cache`` is a file in which the
            entries of a config server are saved, so that a program starts while the config server
            is away; by default ``$SHARDKIT_CACHE``. ``cache_max_age`` is the age in seconds up to
            which they are used then; by default ``$SHARDKIT_CACHE_MAX_AGE``, or a day.
            ``check_keys`` has clients of key routers refuse keys of other shards, for tests and
            staging (by default as ``$SHARDKIT_CHECK_KEYS`` says). ``heat`` is the share of the time
            in which to count which keys, structures and functions are used most, for the dashboard
            (by default as ``$SHARDKIT_HEAT`` says, or 0: never).

    Returns:
        The kit. It connects only when it is used; with ``credential_providers`` it asks the config
        server for the components' names at once.

    Raises:
        ConfigError: the map cannot be read, or no topology is given.
        InvalidEntryError: the map or URL has an invalid field.
        TypeError: an option is unknown.
    """
    kit = _unread(ShardKit, where, options)
    if kit.topology.check_names is not None:
        try:
            kit.components()
        except ConfigServerError:
            pass  # the first reading checks
        except BaseException:
            kit.close()
            raise
    return kit


def aconnect(where: Where | None = None, **options: Unpack[KitOptions]) -> KitOpening:
    """Open a topology for awaiting use, and read all its components; see `connect`.

    ``async with`` closes the kit at its end; after ``await``, call ``await kit.aclose()``. A broken
    component is logged; calls that use it raise the error.

    Raises:
        ConfigError: the map or the config server cannot be read, or no topology is given.
        TypeError: an option is unknown.
    """
    return KitOpening(_open(where, options))


class KitOpening(Coroutine[Any, Any, AsyncShardKit]):
    """A kit that is being opened: await it for the kit, or enter it, with or without ``await``."""

    def __init__(self, opening: Coroutine[Any, Any, AsyncShardKit]) -> None:
        self._opening = opening
        self._kit: AsyncShardKit | None = None

    def __await__(self) -> Generator[Any, Any, AsyncShardKit]:
        return self._opening.__await__()

    def send(self, value: Any) -> Any:
        """See `collections.abc.Coroutine`; ``asyncio.run`` calls it."""
        return self._opening.send(value)

    def throw(self, *error: Any) -> Any:
        """See `collections.abc.Coroutine`."""
        return self._opening.throw(*error)

    def close(self) -> None:
        """See `collections.abc.Coroutine`."""
        self._opening.close()

    async def __aenter__(self) -> AsyncShardKit:
        self._kit = await self
        return self._kit

    async def __aexit__(self, *exc_info: object) -> None:
        if self._kit is not None:
            await self._kit.aclose()


async def _open(where: Where | None, options: KitOptions) -> AsyncShardKit:
    kit = _unread(AsyncShardKit, where, options)
    try:
        await kit.load()
    except BaseException:
        await kit.aclose()
        raise
    return kit


def _config_source(
    entries: Sequence[Entry], options: Mapping[str, Any]
) -> tuple[ConfigServer, Clients]:
    """Return the config server with some addresses, and its clients."""
    for entry in entries:
        entry.resolved("config server")  # refuses references that the environment lacks
    limited = [
        as_one_server(Entry({**CONFIG_LIMITS, **entry.fields}, "config server"))
        for entry in entries
    ]
    component = Component("config-server", limited[0], tuple(limited[1:]))
    clients = Clients(
        options.get("connector"),
        options.get("credential_providers"),
        describe=lambda shard: source.described(shard),
    )
    numbers = [None, *range(len(component.shards))]
    ways = [
        (partial(clients.get, component, n, True), partial(clients.aget, component, n, True))
        for n in numbers
    ]
    address = ", ".join(entry.address for entry in entries)
    path, max_age = _cache(options)
    saves = SavedEntries(path, max_age, address) if path else None
    source = ConfigServer(limited[0], ways, saves, address)
    return source, clients


def _unread(kind: Callable[..., R], where: Where | None, options: Mapping[str, Any]) -> R:
    """Return a kit that has read no entries yet."""
    source, clients = _source(where, options)
    return kind(source, config_clients=clients, **options)


def _source(where: Where | None, options: Mapping[str, Any]) -> tuple[Source, Clients | None]:
    if where is None:
        where = os.environ.get(ENVIRONMENT)
        if not where:
            raise ConfigError(
                f"${ENVIRONMENT} is not set, and no shard map or config server is specified",
                f"give a shard map's path or a config server's URL, or export {ENVIRONMENT}",
            )
    if not isinstance(where, str | PathLike | ShardMap | Entry) or where == "":
        what = "empty text" if where == "" else f"a {type(where).__name__}"
        raise ConfigError(
            f"{what} names no topology",
            "give a shard map's path, a config server's URL, a ShardMap or an Entry",
        )
    if isinstance(where, Entry):
        return _config_source([where], options)
    if isinstance(where, str) and "://" in where:
        return _config_source(entries_of_url(where.strip()), options)
    if options.get("cache") is not None:
        raise ConfigError(
            "cache: the entries of a shard map are not saved, as the map is a file itself",
            "connect to a config server, or leave cache out",
        )
    return FixedMap(where) if isinstance(where, ShardMap) else MapFile(where), None


def _cache(options: Mapping[str, Any]) -> tuple[Path | None, float]:
    """Return the file for a config server's entries, if one is wanted, and their greatest age."""
    path = options.get("cache") or os.environ.get(CACHE)
    age: Any = in_seconds(options.get("cache_max_age"))
    if age is None:
        text = os.environ.get(CACHE_MAX_AGE) or MAX_AGE
        try:
            age = float(text)
        except ValueError:
            age = text
    if not is_number(age) or age <= 0:
        raise ConfigError(
            f"cache_max_age={shown(age)} is not a number of seconds above 0", "use seconds: 86400"
        )
    if not path:
        return None, age
    if not isinstance(path, str | PathLike) or not Path(path).absolute().parent.is_dir():
        raise ConfigError(
            f"cache={str(path)!r:.200} cannot be used: its folder does not exist",
            "create the folder, or give another path",
        )
    return Path(path), age


def _checked_heat(heat: object, source: Source) -> float:
    """Return the share of the time in which to count what is used."""
    given = heat
    if heat is None:
        given = os.environ.get(HEAT) or "0"
    try:
        share = float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        share = -1.0
    if not 0 <= share <= 1 or isinstance(given, bool):
        name = f"${HEAT}" if heat is None else "heat"
        raise InvalidArgumentError(
            f"{name}={shown(given)} is not a share of the time", "use 0 to 1: 0.005"
        )
    if not isinstance(source, ConfigServer):
        if heat:
            raise ConfigError(
                f"heat={heat!r}: {source} is a shard map, and heat is kept on the config server",
                "connect to the config server's URL",
            )
        return 0.0  # the environment is for all kits, also those of tests
    return share


def _check_providers(providers: Collection[str], source: Source, names: Iterable[str]) -> None:
    unknown = set(providers) - {"config-server", *names}
    if unknown:
        raise ConfigError(
            f"credential_providers: {source} has no component {sorted(unknown)[0]!r}",
            f"correct the name (known: {few(sorted(names), ', ')})",
        )


def _explain(source: Source) -> str:
    """Return why a server may stay away: the map is older than the entries; see `Breaker`."""
    from shardkit.kit.config_client import config_client, stale_map

    if isinstance(source, MapFile) and (entry := source.shard_map.config_server) is not None:
        with suppress(ShardKitError, *ServerErrors), config_client(entry) as config:
            for fault in stale_map(config, source.shard_map):
                return f"{fault.where} {fault.problem}: {fault.remedy}"
    return ""


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
    """Set the default kit's topology; an open default kit is closed.

    Args:
        where: see `connect`; or a kit that is open already. None for ``$SHARDKIT_CONFIG``.

    Raises:
        ConfigError: `connect` would refuse it. The default kit stays as it is.
    """
    if where is not None and not isinstance(where, ShardKit):
        if isinstance(where, str | Path) and where != "" and "://" not in str(where):
            ShardMap.load(where)  # its warnings are logged when the kit is opened
        else:
            _source(where, {})  # connects to nothing
    _default.configure(where)


def default_kit() -> ShardKit:
    """Return the default kit; the first call opens it, or raises ConfigError without a topology."""
    return _default.opened()


def redis_connection(
    component: str, *, max_age: Seconds | None = None, read_from: str | ReadFrom | None = None
) -> Decorator:
    """The default kit's `ShardKit.redis_connection`, opened when the function is first called."""
    return decorators.redis_connection(DEFAULT_PLANE, component, max_age, read_from)


def sharded_connection(
    component: str,
    shards: int | None = None,
    key: KeyOf = None,
    *,
    max_age: Seconds | None = None,
    placement: str | None = None,
    read_from: str | ReadFrom | None = None,
) -> Decorator:
    """The default kit's `ShardKit.sharded_connection`, opened when the function is first called."""
    return decorators.sharded_connection(
        DEFAULT_PLANE, component, shards, key, max_age, placement, read_from
    )


def cached(component: str, **options: Unpack[_caching.CachingOptions]) -> _caching.Caching:
    """The default kit's `ShardKit.cached`, opened when the function is first called."""
    return _caching.Caching(lambda args, kwargs: default_kit(), component, **options)
