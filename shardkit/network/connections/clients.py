"""redis-py clients by component and shard: built when first used, kept, replaced with their entry.

When an entry changes, a new client replaces the cached one, and the old one drains: calls that hold
it go on using it, and each connection is closed on release. The topology reports each change, so
unused clients drain as well, in every event loop. A caller with an outdated component gets a client
of that version, which drains from the start.

Each event loop has its own awaiting clients, which are closed when the loop ends: asyncio.run shuts
down asynchronous generators, and a generator here waits for that. The clients of a loop that was
closed without this are closed when the next loop comes. Only the loop itself refers to its clients,
so one that was dropped takes them with it. A forked child builds its own.

There are three kinds of clients, which share connections where possible:

=========  ==================================  ================================================
``raw``    for                                 connections
=========  ==================================  ================================================
``True``   structures: replies as RESP2 and    its own where the entry asks for something else;
           bytes                               else those of ``False``
``False``  pipelines over shards, and other    its own
           users of the entry's settings
``None``   users: decorated functions,         those of ``False`` until the user changes or
           routers, `kit.client`               closes the pool; a cluster's client has its own
=========  ==================================  ================================================
"""

from __future__ import annotations

import asyncio
import copy
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import redis
import redis.asyncio as aioredis
from redis.credentials import CredentialProvider
from redis.exceptions import RedisClusterException, RedisError

from shardkit.config.component import Component, Layout, entry_key
from shardkit.config.entry import Entry
from shardkit.config.fields import with_url
from shardkit.config.url import REFERENCE
from shardkit.errors import (
    MissingEntryError,
    RoutingError,
    ShardKitError,
    ShardUnavailable,
    counted,
)
from shardkit.network.connections import Connector
from shardkit.network.connections.breaker import PROBE_TIMEOUT, Breaker, Breakers
from shardkit.network.connections.connection_state import ENDED, closed_error, require_open
from shardkit.network.connections.credentials import EntryCredentials, credentials_of
from shardkit.network.connections.databases import ClientDatabase, Steps
from shardkit.network.connections.endpoints import Access, Endpoint
from shardkit.network.connections.policy import CallPolicy
from shardkit.network.connections.redis_private import (
    abandon_connections,
    client_over,
    reply_callbacks,
)
from shardkit.operations.commands import Shard
from shardkit.operations.forks import renewed_in_children
from shardkit.operations.interruptions import reraise_handlers
from shardkit.operations.kept import kept_with
from shardkit.operations.steps import arun_steps, run_by_face, run_steps
from shardkit.routing.command_keys import key_positions
from shardkit.routing.keys import key_bytes

Client: TypeAlias = redis.Redis | redis.RedisCluster
AsyncClient: TypeAlias = aioredis.Redis | aioredis.RedisCluster


class ReplicaOf(NamedTuple):
    """Names the client of a shard's replica, in place of the shard's number.

    ``entry`` is None for a cluster's client that reads from replicas; if it ``stays``, it prefers a
    master in this process's zone to replicas elsewhere. While a move holds the shard, ``entry`` is
    the shard's own, for a client that only reads; see `reader_of`.
    """

    number: int | None
    entry: Entry | None = None
    stays: bool = False


Number: TypeAlias = int | ReplicaOf | None
"""Which client: of a shard, of the unsharded entry (None), or of a replica of either."""


def reader_of(component: Component, number: int | None) -> Number:
    """Return the client for reads from a shard's master: a separate one while a move holds it."""
    entry = component.entry_of(Shard(component.name, number))
    # The nodes of a cluster refuse writes alone.
    return ReplicaOf(number, entry) if entry.held and not entry.is_cluster else number


SHOWN = 5  # shards that share connections, in a repr
_MOVE_AGE = 0.05  # seconds; how old entries may be while their shard is being moved
_UNKNOWN: Any = object()
_RAW = {"protocol": 2, "decode_responses": False}


class _Endpoints(dict["Number", Endpoint]):
    """The endpoints of one version of a component, and its clients; both are built when needed."""

    def __init__(self, clients: Clients, scope: _Scope, component: Component, raw: bool | None):
        super().__init__()
        self.component = component
        self.raw = raw
        self.clients: dict[Number, Any] = {}
        # By what entries share; None if clients with raw replies are as the others.
        self.accesses: dict[object, Access | None] = {}
        self.build_lock = threading.RLock()
        self._clients, self._held = weakref.ref(clients), weakref.ref(scope)

    def __missing__(self, number: Number) -> Endpoint:
        clients, scope = self._clients(), self._held()
        if clients is None or scope is None:
            raise closed_error()
        return clients._endpoint(scope, self, number)


_EndpointTables: TypeAlias = dict[tuple[str, bool | None], _Endpoints]


@dataclass(eq=False)
class _Scope:
    """The clients of one event loop, or the blocking ones of all threads."""

    loop: Any = None
    tables: _EndpointTables = field(default_factory=dict)  # of the current components
    # What must be closed, earlier versions included: pools, and the clients of clusters. A pipeline
    # or a lock holds the pool alone.
    built: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    # The pools that own connections, by way to connect.
    ways: weakref.WeakValueDictionary[object, Any] = field(
        default_factory=weakref.WeakValueDictionary
    )
    cleanup: Any = None  # waits for the end of the loop
    awaiting: bool = False

    def __del__(self) -> None:
        """Let connections go in silence if the loop is collected without having been closed.

        Weak references are gone by then.
        """
        if self.awaiting and asyncio._get_running_loop() is not self.loop:
            for table in self.tables.values():
                owners = [endpoint.owner for endpoint in table.values()]
                for closable in {*owners, *map(_closable, table.clients.values())}:
                    abandon_connections(closable)


def _nothing() -> None:
    """Take the place of a weak reference."""


class Clients:
    """Builds and keeps clients. Safe to use from many threads and event loops.

    Args:
        connector: builds the clients.
        credential_providers: redis-py's, by component; asked at each connect, instead of using the
            user and password of the component's entries.
        deadline: the seconds for a call whose entry has no ``deadline``.
        describe: returns what the names of connections say of a shard.
        breakers: the kit's circuit breakers; without them, servers have none.
    """

    def __init__(
        self,
        connector: Connector | None = None,
        credential_providers: Mapping[str, CredentialProvider] | None = None,
        deadline: float | None = None,
        describe: Callable[[Shard], str] = attrgetter("component"),
        breakers: Breakers | None = None,
    ) -> None:
        self._connector = connector or Connector()
        self._deadline = deadline
        self._breakers = breakers
        CallPolicy(deadline=deadline)  # so that calls are timed from the first one on
        self.describe = describe
        self._credential_providers = dict(credential_providers or {})
        self.near: set[str] = set()  # the nodes of clusters that are in this process's zone
        self._lock = threading.RLock()
        self.closed = False
        self.topology: Callable[[], Any] = _nothing  # a weak reference; the kit sets it
        self.follower: Callable[[], Any] = _nothing  # the private pool that follows changes
        self._blocking = _Scope()
        self._of_loops: weakref.WeakSet[_Scope] = weakref.WeakSet()  # each is kept by its loop
        self._last: Callable[[], _Scope | None] = _nothing
        renewed_in_children(self)

    def get(self, component: Component, number: Number, raw: bool | None = None) -> Client:
        """Return the blocking client of a shard, or (number None) of the unsharded entry.

        ``raw`` is the kind of client (see the module). Cost: about 0.1 microseconds once built.

        Raises:
            MissingEntryError: there is no such entry.
            ConfigError: the entry refers to a name that is not in the environment.
            ShardUnavailable: the entry is a cluster, and none of its nodes answers.
            ClosedError: the kit is closed.
        """
        table = self._blocking.tables.get((component.name, raw))
        if table is not None and table.component is component and number in table.clients:
            return table.clients[number]  # type: ignore[no-any-return]
        return self._client(self._blocking, component, number, raw)  # type: ignore[no-any-return]

    def aget(self, component: Component, number: Number, raw: bool | None = None) -> AsyncClient:
        """Return the awaiting client of a shard for the running event loop; see `get`."""
        scope = self._of_loop()
        table = scope.tables.get((component.name, raw))
        if table is not None and table.component is component:
            known: AsyncClient | None = table.clients.get(number)
            if known is not None:
                return known
        return self._client(scope, component, number, raw)  # type: ignore[no-any-return]

    def aendpoints(self, component: Component, raw: bool) -> Mapping[Number, Endpoint]:
        """Return the `endpoints` for the running event loop."""
        return self.endpoints(component, raw, self._of_loop())

    def callbacks(
        self, component: Component, numbers: Iterable[Number], awaiting: bool
    ) -> dict[Number, Mapping[Any, Callable[..., Any]]]:
        """Return how the users' clients of shards convert replies, by the shards' numbers.

        Clients that nobody has used yet are not built for this.
        """
        scope = self._of_loop() if awaiting else self._blocking
        endpoints = self.endpoints(component, False, scope)
        clients = self.endpoints(component, None, scope).clients
        return {
            number: reply_callbacks(clients.get(number) or endpoints[number].access.client)
            for number in numbers
        }

    def _of_loop(self) -> _Scope:
        loop = asyncio.get_running_loop()
        scope = self._last()  # mostly there is one loop; a look-up takes longer
        if scope is None or scope.loop is not loop:
            with self._lock:
                require_open(self)
                scope = kept_with(loop, self).get("clients") or self._hold(loop)
                self._last = weakref.ref(scope)
        return scope

    def endpoints(
        self, component: Component, raw: bool | None, scope: _Scope | None = None
    ) -> _Endpoints:
        """Return where a link's commands for each shard of a component go; blocking by default.

        A shard is looked up at the first access, which raises as `get`.
        """
        scope = scope or self._blocking
        known = scope.tables.get((component.name, raw))
        if known is not None and known.component is component:
            return known
        with self._lock:
            require_open(self)
            table, displaced = self._current(scope, component, raw)
        _leave(displaced)
        if table.component is not component:  # the caller's is older than the last change
            return _Endpoints(self, scope, component, raw)
        return table

    def _newest(self, scope: _Scope, table: _Endpoints) -> _Endpoints:
        """Return the table of the latest version of a table's component."""
        return scope.tables.get((table.component.name, table.raw), table)

    def changed(self, component: Component) -> None:
        """Drain the clients of earlier versions of a component, in all threads and loops."""
        with self._lock:
            displaced = self._displaced(self._blocking, component)
            of_loops = list(self._of_loops)
        _leave(displaced)
        for scope in of_loops:
            with suppress(RuntimeError):  # it is closed
                scope.loop.call_soon_threadsafe(self._changed_in, scope, component)
        follower = self.follower()
        if follower is not None and follower.run is run_steps:
            follower.follow()
        self._abandon_closed_loops()

    def close(self) -> None:
        """Close every client, awaiting ones in the next turn of their loop.

        Afterwards, existing clients and requests for new ones raise ClosedError.
        """
        with self._lock:
            self.closed = True
            built = list(self._blocking.built)  # some are in the tables alone
            self._blocking.tables = {}
            self._abandon_closed_loops()
            of_loops = [(scope, list(scope.built)) for scope in self._of_loops]
            for scope, closables in of_loops:
                scope.tables = {}
                for closable in closables:
                    closable.closed = True
                self._forget(scope)
        for closable in built:
            closable.close_for_good()
        for scope, closables in of_loops:
            if asyncio._get_running_loop() is scope.loop:
                _close_in_loop(scope, closables)
            else:
                with suppress(RuntimeError):  # it is closed
                    scope.loop.call_soon_threadsafe(_close_in_loop, scope, closables)

    def close_with(self, closable: Any) -> None:
        """Have what uses blocking connections closed with the clients, by `close_for_good`."""
        with self._lock:
            self._blocking.built.add(closable)

    def keep(self, private_pool: Any) -> None:
        """Have a private pool follow changes, and closed with the clients."""
        self.follower = weakref.ref(private_pool)
        scope = self._blocking if private_pool.run is run_steps else self._of_loop()
        self._keeper = private_pool.keeper
        scope.built.update((private_pool, self._keeper))

    @property
    def loops(self) -> list[asyncio.AbstractEventLoop]:
        """The event loops that have clients."""
        return [scope.loop for scope in list(self._of_loops)]

    async def aclose(self) -> None:
        """Close the running loop's clients; they say that it has ended unless the kit is closed."""
        loop = asyncio.get_running_loop()
        with self._lock:
            scope = kept_with(loop, self).get("clients")
            if scope is None:
                return
            self._forget(scope)
        _close_in_loop(scope, list(scope.built), self.closed or ENDED)

    def shown(self) -> list[str]:
        """Return a line for each way to connect: some of its shards, and its connections."""
        tables = [scope.tables.items() for scope in (self._blocking, *self._of_loops)]
        lines: dict[int, tuple[list[str], str]] = {}
        for (component, _), table in list(chain.from_iterable(tables)):
            used = [(n, _closable(client)) for n, client in list(table.clients.items())]
            used += [(n, endpoint.owner) for n, endpoint in list(table.items())]
            for number, closable in used:
                owner = getattr(closable, "way", closable)
                names, _ = lines.setdefault(id(owner), ([], repr(closable)))
                if (name := _name_of(component, number)) not in names:
                    names.append(name)
        return [
            f"{', '.join(names[:SHOWN])}{', …' if len(names) > SHOWN else ''} {shown}"
            for names, shown in lines.values()
        ]

    def __repr__(self) -> str:
        return f"<Clients: {'; '.join(self.shown()) or 'none yet'}>"

    def _client(self, scope: _Scope, component: Component, number: Number, raw: bool | None) -> Any:
        table = self.endpoints(component, raw, scope)
        latest = self._newest(scope, table).component
        if latest is not component and _entry(component, number) == _entry(latest, number):
            return self._client(scope, latest, number, raw)
        shares = (
            raw is None and not component.entry_of(_shard_of(component.name, number)).is_cluster
        )
        endpoint = (self.endpoints(component, False, scope) if shares else table)[number]
        with table.build_lock:
            client = table.clients.get(number)
            if client is not None:
                return client
            if endpoint.database is None:
                client = endpoint.access.client
            else:
                pool = endpoint.pool
                if raw is None:
                    pool = pool.share()
                    with self._lock:
                        scope.built.add(pool)
                client = client_over(endpoint.access.client, pool)
            reads, shard = isinstance(number, ReplicaOf), endpoint.shard
            find = _Successors(weakref.ref(self), component, shard, raw, scope.awaiting, reads)
            if endpoint.database is None:
                find.own = {None: endpoint}
            if self.topology() is not None and hasattr(client, "place"):
                client.place = find
            elif self.topology() is not None and hasattr(client, "successor"):
                client.successor = find.successor
                if not reads:
                    client.reader = find.reader
            with self._lock:
                table.clients[number] = client
                is_current = self._newest(scope, table) is table
        if not is_current and endpoint.database is not None:
            client.connection_pool.drain()
        return client

    def _endpoint(self, scope: _Scope, table: _Endpoints, number: Number) -> Endpoint:
        """Return where the commands for a shard go, and remember it in the table."""
        component = table.component
        # Not under the common lock, because a cluster's client connects.
        with table.build_lock:
            known: Endpoint | None = table.get(number)
            if known is not None:
                return known
            newest = self._newest(scope, table)
            if newest is not table and _entry(component, number) == _entry(
                newest.component, number
            ):
                return newest[number]
            endpoint = self._built(scope, table, component, number)
            with self._lock:
                table[number] = endpoint
                is_current = self._newest(scope, table) is table
        if self.closed:  # while it was built
            endpoint.owner.close_for_good()
            require_open(self)
        if not is_current:
            _leave([endpoint])
        return endpoint

    def _built(
        self, scope: _Scope, table: _Endpoints, component: Component, number: Number
    ) -> Endpoint:
        replica = number if isinstance(number, ReplicaOf) else None
        shard = _shard_of(component.name, number)
        own = component.entry_of(shard)
        entry = own if replica is None or replica.entry is None else replica.entry
        reads = replica is not None and bool(own.held)
        shared: object = number
        is_shared = self._connector.shares and not entry.is_cluster
        if is_shared and "client_name" not in with_url(entry.known):
            shared = entry.server_settings, replica is not None, reads
        access = table.accesses.get(shared, _UNKNOWN)
        if access is _UNKNOWN or (access and access.way is not None and access.way.draining):
            access = self._access(scope, table.raw, number, shard, entry, reads)
            table.accesses[shared] = access
        if access is None:
            return self.endpoints(component, False, scope)[number]
        if access.way is None:
            return Endpoint(shard, entry.address, access, None)
        if not self._connector.shares:
            return Endpoint(shard, entry.address, access, access.way.database, access.way)
        database = self._database(component, shard, entry, own, reads)
        if isinstance(access.way.credentials, EntryCredentials):
            current = partial(_current_entry, weakref.ref(self), shard, entry)
            database.login = EntryCredentials(current, entry_key(*shard))
        access.way.users.add(database)
        return Endpoint(shard, entry.address, access, database)

    def _access(
        self,
        scope: _Scope,
        raw: bool | None,
        number: Number,
        shard: Shard,
        entry: Entry,
        reads: bool,
    ) -> Access | None:
        """Return how a shard is reached; None if as without ``raw``."""
        where = entry_key(*shard)
        fields = entry.resolved(where)
        if isinstance(number, ReplicaOf) and entry.is_cluster:
            fields["reads_replicas"] = True
        provider = self._credential_providers.get(shard.component)
        is_shared = self._connector.shares and not entry.is_cluster
        if provider is None:
            current = partial(_current_entry, weakref.ref(self), shard, entry)
            # Others share the login as it is written, whatever becomes of this entry.
            present = (lambda: entry) if is_shared else current
            fields |= credentials_of(present, fields, where)
        else:
            fields["credentials"] = provider
        if raw:
            if {**_RAW, **fields} == fields | _RAW:
                return None
            fields |= _RAW
        way = _way(fields, entry, provider, shard, reads)
        fields["policy"] = policy = self._policy(fields, shard, entry.address, way)
        policy.near, policy.stays = self.near, isinstance(number, ReplicaOf) and number.stays
        policy.of_replica = isinstance(number, ReplicaOf) and not (reads or entry.is_cluster)
        try:
            if is_shared:
                with self._lock:
                    pool = scope.ways.get(way)
                    if pool is None or pool.draining:
                        client = self._connected({**fields, "db": 0}, scope.awaiting)
                        pool = scope.ways[way] = client.connection_pool
                        pool.client = copy.copy(client)  # without the pool: that would be a cycle
                        pool.client.connection_pool = None
                        scope.built.add(pool)
                client = pool.client
            else:
                client = self._connected(fields, scope.awaiting)
                pool = None if entry.is_cluster else client.connection_pool
                with self._lock:
                    scope.built.add(_closable(client))
        except (RedisError, RedisClusterException, OSError) as error:
            reraise_handlers(error)
            raise ShardUnavailable(
                f"{shard} ({entry.address}) cannot be reached: {error}",
                "start the server, or correct the entry",
                shard=str(shard),
                error=error,
            ) from error
        topology = self.topology()
        if topology is not None:
            topology.watch()
        return Access(client, pool, policy, scope.built, self._lock)

    def _connected(self, fields: Mapping[str, Any], awaiting: bool) -> Any:
        connector = self._connector
        return connector.awaiting(fields) if awaiting else connector.blocking(fields)

    def _database(
        self, component: Component, shard: Shard, entry: Entry, own: Entry, reads: bool
    ) -> ClientDatabase:
        number = entry.database
        if number is None:
            number = int(entry.resolved(entry_key(*shard)).get("db") or 0)
        label = partial(_label, weakref.ref(self), shard, component.epoch)
        topology = self.topology()
        if topology is None:
            return ClientDatabase(number, shard, label, reads=reads)
        return ClientDatabase(
            number,
            shard,
            label,
            witness=topology.source.witness(component.name),
            has_moved=partial(
                _has_moved, weakref.ref(self), shard, (entry if reads else own).address
            ),
            reads=reads,
        )

    def _policy(
        self, fields: dict[str, Any], shard: Shard, address: str, way: object
    ) -> CallPolicy:
        deadline = fields.pop("deadline", self._deadline)
        breakers, connector = self._breakers, self._connector
        if breakers is None or not (connector.breaks or fields.get("breaker")):
            return CallPolicy.of(fields, shard, address, deadline=deadline)

        def of_node(host: str, port: int) -> Breaker:
            alone = {n: v for n, v in fields.items() if n not in ("cluster", "policy")}
            alone |= {"host": host, "port": port}
            probe = partial(_probe, connector, alone)
            return breakers.of((way, host, port), alone, f"{host}:{port}", probe)

        if fields.get("cluster"):
            return CallPolicy.of(fields, shard, address, deadline=deadline, node=of_node)
        own = breakers.of(way, fields, address, partial(_probe, connector, dict(fields)))
        return CallPolicy.of(fields, shard, address, deadline=deadline, breaker=own)

    def _current(
        self, scope: _Scope, component: Component, raw: bool | None
    ) -> tuple[_Endpoints, list[Any]]:
        """Return the current table of a component (a newer one, perhaps), and what it displaced."""
        key = (component.name, raw)
        old = scope.tables.get(key)
        if old is not None and old.component.version >= component.version:
            return old, []
        table = scope.tables[key] = _Endpoints(self, scope, component, raw)
        if old is None:
            return table, []
        displaced = []
        for kept, items in ((table.clients, old.clients), (table, old)):
            for number, item in items.items():
                if _entry(old.component, number) == _entry(component, number):
                    kept[number] = item
                else:
                    displaced.append(item)
        return table, displaced

    def _displaced(self, scope: _Scope, component: Component) -> list[Any]:
        kinds = [raw for raw in (None, False, True) if (component.name, raw) in scope.tables]
        return [old for raw in kinds for old in self._current(scope, component, raw)[1]]

    def _hold(self, loop: asyncio.AbstractEventLoop) -> _Scope:
        """Return the table of a new loop's clients, which are closed when the loop ends."""
        self._abandon_closed_loops()
        scope = _Scope(loop, cleanup=_until_shutdown(weakref.ref(self)), awaiting=True)
        kept_with(loop, self)["clients"] = scope
        self._of_loops.add(scope)
        with suppress(StopIteration):
            scope.cleanup.asend(None).send(None)  # run to its yield, where no loop is needed
        return scope

    def _changed_in(self, scope: _Scope, component: Component) -> None:
        with self._lock:
            displaced = self._displaced(scope, component)
        _leave(displaced)
        if (follower := self.follower()) is not None:
            follower.following = scope.loop.create_task(follower.follow())

    def _abandon_closed_loops(self) -> None:
        """Close the clients of loops that were closed without shutting down their generators."""
        with self._lock:
            left = [scope for scope in self._of_loops if scope.loop.is_closed()]
            for scope in left:
                self._forget(scope)
                for closable in list(scope.built):
                    closable.closed, closable.draining = ENDED, True
        _abandon(left)

    def _forget(self, scope: _Scope) -> None:
        self._of_loops.discard(scope)
        kept_with(scope.loop, self).clear()
        self._last = _nothing

    def after_fork(self) -> None:
        """Forget everything in a forked child, whose locks a thread of the parent may hold."""
        self._lock = threading.RLock()
        self._blocking = _Scope()
        left = list(self._of_loops)
        for scope in left:
            self._forget(scope)
        _abandon(left)


# Fields that do not concern a connection, or have a stand-in.
_NOT_OF_THE_WAY = frozenset(
    {
        *("db", "deadline", "policy", "read_from", "replicas", "zone", "held"),
        *("username", "password", "auth", "sentinel", "credentials", "sentinel_credentials"),
    }
)


def _way(
    fields: Mapping[str, Any], entry: Entry, provider: object, shard: Shard, reads: bool
) -> object:
    """Return what identifies a way to connect: the address, the login as it is written, and so on.

    Passwords are compared by the references to them, which are looked up at each connect.
    """
    written = with_url(entry.known)
    names = ("username", "password", "password_file", "auth", "sentinel")
    login = repr([written.get(name) for name in names])
    if REFERENCE.fullmatch(written.get("url", "")):
        login += written["url"]
    concerned = {name: value for name, value in fields.items() if name not in _NOT_OF_THE_WAY}
    # Whoever names connections wants to tell them apart.
    named = (shard, reads) if "client_name" in fields else reads
    return repr(sorted(concerned.items())), login, provider, named


def _probe(connector: Connector, fields: Mapping[str, Any]) -> None:
    limits = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), PROBE_TIMEOUT)
    for name in limits:
        if fields.get(name) is not None:
            limits[name] = min(limits[name], fields[name])
    client: Any = connector.blocking({**fields, **limits, "retries": 0})
    try:
        client.ping()
    finally:
        client.connection_pool.close_for_good()


async def _until_shutdown(clients: weakref.ref[Clients]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        alive = clients()
        if alive is not None:
            await alive.aclose()


def _alive(ref: weakref.ref[Clients]) -> tuple[Clients, Any] | None:
    """Return the clients and their topology, while the kit exists."""
    clients = ref()
    topology = clients.topology() if clients is not None else None
    return None if clients is None or topology is None else (clients, topology)


def _require_alive(ref: weakref.ref[Clients]) -> tuple[Clients, Any]:
    alive = _alive(ref)
    if alive is None:
        raise closed_error()
    return alive


def _current_entry(ref: weakref.ref[Clients], shard: Shard, entry: Entry) -> Entry:
    """Return a shard's entry as it was read last, if it still names the same server."""
    if alive := _alive(ref):
        with suppress(ShardKitError):
            latest: Entry = alive[1].last_known(shard.component).entry_of(shard)
            return latest if latest.address == entry.address else entry
    return entry


def _label(ref: weakref.ref[Clients], shard: Shard, epoch: int) -> str:
    """Return what the names of connections say of a shard."""
    clients = ref()
    described = shard.component if clients is None else clients.describe(shard)
    return f"{described}/{epoch}" if epoch else described


def _has_moved(ref: weakref.ref[Clients], shard: Shard, address: str) -> bool:
    """Whether a shard's entry names another server than ``address``, or is gone after a split."""
    _, topology = _require_alive(ref)
    topology.limit_age(shard.component, _MOVE_AGE, trusting=False)
    component: Component = topology.last_known(shard.component)
    try:
        return component.entry_of(shard).address != address
    except MissingEntryError:
        return bool(component.shards) or component.entry is not None


def require_unsplit(layout: Layout, component: Component, number: int | None) -> None:
    """Refuse a client of a shard by its number whose component has another layout by now.

    Raises:
        RoutingError: it does.
    """
    if not (number is None and component.entry is not None) and component.layout != layout:
        raise RoutingError(
            f"{Shard(component.name, number)} was split: the component has "
            f"{counted(len(component.shards), 'shard')} now, and its keys have other places",
            "use a new client",
        )


@dataclass(eq=False)
class _Successors:
    """Finds the clients that take the place of a shard's client, or that read in its place.

    After a split, a command goes to the shard where its keys are. The link of a cluster's client
    takes this for a topology and for clients.
    """

    _clients: weakref.ref[Clients]  # the client may outlive its kit
    _built_for: Component
    shard: Shard
    _raw: bool | None
    _awaits: bool
    _reads: bool
    own: Mapping[Number, Endpoint] = field(default_factory=dict)  # of a cluster's client: itself

    def run(self, steps: Steps[Any]) -> Any:
        """Run steps as the client does."""
        return arun_steps(steps) if self._awaits else run_steps(steps)

    def _get(self, component: Component, number: Number, raw: bool | None) -> Any:
        clients = _require_alive(self._clients)[0]
        return (clients.aget if self._awaits else clients.get)(component, number, raw)

    def reader(self, args: Sequence[Any]) -> Any:
        """Return the client that reads the shard while a move holds it; None if none does."""
        if alive := _alive(self._clients):
            with suppress(ShardKitError):
                component = alive[1].last_known(self.shard.component)
                which = reader_of(component, self.number(component, args))
                if isinstance(which, ReplicaOf):
                    return self._get(component, which, False)
        return None

    @run_by_face
    def successor(self, args: Sequence[Any]) -> Steps[Any]:
        """Return the client for a command after reading its component again."""
        component: Component = yield self._reread
        number = self.number(component, args)
        which = reader_of(component, number) if self._reads else number
        return self._get(component, which, self._raw)

    def left(self) -> Component | None:
        """Return the component if a split has moved it out of its cluster, or holds it."""
        if alive := _alive(self._clients):
            try:
                latest: Component = alive[1].last_known(self.shard.component)
            except ShardKitError:
                return None
            if latest.entry is None or latest.entry.held:
                return latest
        return None

    def _reread(self) -> Any:
        topology = _require_alive(self._clients)[1]
        return (topology.areread if self._awaits else topology.reread)(self.shard.component)

    def component(self, name: str) -> Component:
        """Return the component: that for which the client was built, unless it has left it."""
        return self.left() or self._built_for

    @run_by_face
    def reread(self, name: str) -> Steps[Component]:
        """Return the component after reading it again; of an awaiting client, a coroutine."""
        yield self._reread
        return self.component(name)

    fresh, areread = component, reread

    def endpoints(self, component: Component, raw: bool) -> Mapping[Number, Endpoint]:
        """Return where commands for the shards go: to the client itself, unless it has left it."""
        if component is self._built_for:
            return self.own
        clients = _require_alive(self._clients)[0]
        return (clients.aendpoints if self._awaits else clients.endpoints)(component, raw)

    aendpoints = endpoints

    def number(self, component: Component, args: Sequence[Any]) -> int | None:
        """Return the number of the shard where a command belongs by now.

        Raises:
            RoutingError: the command names no key, or keys of several shards.
        """
        shard = self.shard
        if shard.number is None and component.entry is not None:
            return None
        if component.layout == self._built_for.layout:
            return shard.number
        keys = [key_bytes(args[n]) for n in key_positions(args)]
        numbers = {component.number_of(component.key_routes.of(key)) for key in keys}
        if args[0] == "PUBLISH":
            numbers = {component.number_of(args[1])}
        if len(numbers) == 1:
            return numbers.pop()
        what = "names keys of several of them" if numbers else "names no key"
        raise RoutingError(
            f"{shard} was split into {counted(len(component.shards), 'shard')}, and {args[0]} "
            f"{what} (it was not executed)",
            "use a new client, or kit.pipeline and structures, which find each key's shard",
        )


def _entry(component: Component, number: Number) -> Entry | None:
    if isinstance(number, ReplicaOf):
        master = _entry(component, number.number)
        if master is None or number.entry is None:
            return master
        is_known = master.is_sentinel or number.entry in (*master.replicas, master)
        return number.entry if is_known else None
    if number is None:
        return component.entry
    return component.shards[number] if number < len(component.shards) else None


def _shard_of(component: str, number: Number) -> Shard:
    """Return a shard, for a replica its master's."""
    return Shard(component, number.number if isinstance(number, ReplicaOf) else number)


def _name_of(component: str, number: Number) -> str:
    shard = str(_shard_of(component, number))
    if not isinstance(number, ReplicaOf):
        return shard
    is_own = number.entry is not None and number.entry.held
    return f"{shard} {'reader' if is_own else 'replica'}"


def _closable(client: Any) -> Any:
    """Return what must be closed of a client: its pool, which may outlive it in a pipeline."""
    is_cluster = isinstance(client, redis.RedisCluster | aioredis.RedisCluster)
    return client if is_cluster else client.connection_pool


def _leave(displaced: Iterable[Any]) -> None:
    """Have connections of displaced clients and endpoints closed when they are released.

    Those of an event loop, in the loop.
    """
    for old in displaced:
        if isinstance(old, Endpoint):
            old.leave()
        else:
            _closable(old).drain()


def _close_in_loop(scope: _Scope, closables: list[Any], why: bool | str = True) -> None:
    """Close pools of the running loop now; it may never turn again."""
    for closable in closables:
        closable.close_for_good(why)
    if not scope.cleanup.ag_running:  # or it is the one that calls
        with suppress(StopIteration):
            scope.cleanup.aclose().send(None)  # nothing is held, so it does not wait


def _abandon(left: Iterable[_Scope]) -> None:
    for scope in left:
        for closable in list(scope.built):
            if (master := getattr(closable, "master", None)) is not None:
                master.stop_listening()
            abandon_connections(closable)


def pools_of(client: Any) -> list[Any]:
    """Return a blocking client's pools: of a cluster's, one of each node."""
    pools: list[Any] = client.below if hasattr(client, "below") else [client.connection_pool]
    return pools
