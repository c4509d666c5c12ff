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
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import redis
import redis.asyncio as aioredis
from redis.credentials import CredentialProvider
from redis.exceptions import RedisClusterException, RedisError

from shardkit.config.component import Component, entry_key
from shardkit.config.entry import Entry
from shardkit.errors import MissingEntryError, ShardKitError, ShardUnavailable
from shardkit.network.connections import Connector
from shardkit.network.connections.breaker import PROBE_TIMEOUT, Breaker, Breakers
from shardkit.network.connections.connection import closed_error
from shardkit.network.connections.credentials import credentials_of
from shardkit.network.connections.databases import ClientDatabase
from shardkit.network.connections.policy import CallPolicy
from shardkit.network.connections.redis_private import (
    abandon_connections,
    client_over,
    close_cluster,
    close_now,
    drain_cluster,
)
from shardkit.network.connections.sentinels import HearsOfFailovers
from shardkit.operations.commands import Shard
from shardkit.operations.forks import renewed_in_children
from shardkit.operations.kept import kept_with

Client: TypeAlias = redis.Redis | redis.RedisCluster
AsyncClient: TypeAlias = aioredis.Redis | aioredis.RedisCluster


class ReplicaOf(NamedTuple):
    """Names the client of a shard's replica, in place of the shard's number.

    ``entry`` is None for a cluster's client that reads from replicas. While a move holds the shard,
    it is the shard's own, for a client that only reads; see `reader_of`.
    """

    number: int | None
    entry: Entry | None = None


Number: TypeAlias = int | ReplicaOf | None
"""Which client: of a shard, of the unsharded entry (None), or of a replica of either."""


def reader_of(component: Component, number: int | None) -> Number:
    """Return the client for reads from a shard's master: a separate one while a move holds it."""
    entry = component.entry_of(Shard(component.name, number))
    return ReplicaOf(number, entry) if entry.held else number


SHOWN = 5  # shards that share connections, in a repr
_MOVE_AGE = 0.05  # seconds; how old entries may be while their shard is being moved
_RAW = {"protocol": 2, "decode_responses": False}


@dataclass
class _ClientTable:
    """The clients of one version of a component; ``outdated`` has those of earlier versions."""

    component: Component
    clients: dict[Number, Any] = field(default_factory=dict)
    outdated: weakref.WeakKeyDictionary[Component, dict[Number, Any]] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    build_lock: threading.RLock = field(default_factory=threading.RLock)


_ClientTables: TypeAlias = dict[tuple[str, bool | None], _ClientTable]


@dataclass(eq=False)
class _Held:
    """The clients of one event loop, or the blocking ones of all threads."""

    loop: Any = None
    tables: _ClientTables = field(default_factory=dict)  # of the current components
    # What must be closed, earlier versions included: pools, and the clients of clusters. A pipeline
    # or a lock holds the pool alone.
    built: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    # The pools that own connections, by way to connect.
    ways: weakref.WeakValueDictionary[object, Any] = field(
        default_factory=weakref.WeakValueDictionary
    )
    cleanup: Any = None  # waits for the end of the loop


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
        self._lock = threading.RLock()
        self._closed = False
        self.topology: Callable[[], Any] = _nothing  # a weak reference; the kit sets it
        self.follower: Callable[[], Any] = _nothing  # the private pool that follows changes
        self._blocking = _Held()
        self._of_loops: weakref.WeakSet[_Held] = weakref.WeakSet()  # each is kept by its loop
        self._last: Callable[[], _Held | None] = _nothing
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
        with self._lock:
            self._require_open()
            held = self._blocking
            table, displaced = _current(held.tables, component, raw)
        _drain(displaced)
        return self._get_or_build(held, table, component, number, raw, None)  # type: ignore[no-any-return]

    def aget(self, component: Component, number: Number, raw: bool | None = None) -> AsyncClient:
        """Return the awaiting client of a shard for the running event loop; see `get`."""
        loop = asyncio.get_running_loop()
        held = self._last()  # mostly there is one loop; a look-up takes longer
        if held is None or held.loop is not loop:
            held = kept_with(loop, self).get("clients")
        if held is not None:
            table = held.tables.get((component.name, raw))
            if table is not None and table.component is component:
                known: AsyncClient | None = table.clients.get(number)
                if known is not None:
                    return known
        with self._lock:
            self._require_open()
            if held is None:
                held = self._hold(loop)
            self._last = weakref.ref(held)
            table, displaced = _current(held.tables, component, raw)
        _adrain(displaced)
        return self._get_or_build(held, table, component, number, raw, loop)  # type: ignore[no-any-return]

    def changed(self, component: Component) -> None:
        """Drain the clients of earlier versions of a component, in all threads and loops."""
        with self._lock:
            displaced = _displaced(self._blocking.tables, component)
            of_loops = list(self._of_loops)
        _drain(displaced)
        for held in of_loops:
            with suppress(RuntimeError):  # it is closed
                held.loop.call_soon_threadsafe(self._changed_in, held, component)
        follower = self.follower()
        if follower is not None:
            follower.follow()
        self._abandon_closed_loops()

    def close(self) -> None:
        """Close every client, awaiting ones in the next turn of their loop.

        Afterwards, existing clients and requests for new ones raise ClosedError.
        """
        with self._lock:
            self._closed = True
            built = list(self._blocking.built)  # some are in the tables alone
            self._blocking.tables = {}
            self._abandon_closed_loops()
            of_loops = [(held, list(held.built)) for held in self._of_loops]
            for held, closables in of_loops:
                held.tables = {}
                for each in closables:
                    each.closed = True
                self._forget(held)
        for each in built:
            _close(each)
        for held, closables in of_loops:
            if asyncio._get_running_loop() is held.loop:
                _close_in_loop(held, closables)
            else:
                with suppress(RuntimeError):  # it is closed
                    held.loop.call_soon_threadsafe(_close_in_loop, held, closables)

    async def aclose(self) -> None:
        """Close the running loop's clients."""
        loop = asyncio.get_running_loop()
        with self._lock:
            held = kept_with(loop, self).get("clients")
            if held is None:
                return
            self._forget(held)
        for closable in list(held.built):
            if isinstance(closable, aioredis.RedisCluster):
                await close_cluster(closable)
            else:
                await closable.close_for_good()
        if not held.cleanup.ag_running:  # or it is the one that calls
            await held.cleanup.aclose()

    def shown(self) -> list[str]:
        """Return a line for each way to connect: some of its shards, and its connections."""
        tables = list(self._blocking.tables.values())
        for of_loop in list(self._of_loops):
            tables += of_loop.tables.values()
        lines: dict[int, tuple[list[str], str]] = {}
        for table in tables:
            for number, client in list(table.clients.items()):
                owner = getattr(_closable(client), "way", client)
                names, _ = lines.setdefault(id(owner), ([], _shown(client)))
                name = _name_of(table.component.name, number)
                if name not in names:
                    names.append(name)
        return [
            f"{', '.join(names[:SHOWN])}{', …' if len(names) > SHOWN else ''} {shown}"
            for names, shown in lines.values()
        ]

    def __repr__(self) -> str:
        return f"<Clients: {'; '.join(self.shown()) or 'none yet'}>"

    def _require_open(self) -> None:
        if self._closed:
            raise closed_error()

    def _get_or_build(
        self,
        held: _Held,
        table: _ClientTable,
        component: Component,
        number: Number,
        raw: bool | None,
        loop: asyncio.AbstractEventLoop | None,
    ) -> Any:
        clients = table.clients
        if component is not table.component:  # the caller's is older than the last change
            if _entry(component, number) == _entry(table.component, number):
                component = table.component
            else:
                with self._lock:
                    clients = table.outdated.setdefault(component, {})
        # Not under the common lock, because a cluster's client connects.
        with table.build_lock:
            client = clients.get(number)
            if client is not None:
                return client
            client = self._build(held, component, number, raw, awaiting=loop is not None)
            with self._lock:
                clients[number] = client
                held.built.add(_closable(client))
                now = held.tables.get((component.name, raw))
                is_current = now is not None and now.clients is clients
        topology = self.topology()
        if topology is not None:
            topology.watch()
        if self._closed:  # while it was built
            if loop is None:
                _close(_closable(client))
            else:
                _close_now(list(held.built))
            self._require_open()
        if not is_current and loop is None:
            _drain([client])
        elif not is_current and loop is not None:
            _adrain([client])
        return client

    def _build(
        self,
        held: _Held,
        component: Component,
        number: Number,
        raw: bool | None,
        awaiting: bool,
    ) -> Any:
        replica = number if isinstance(number, ReplicaOf) else None
        master = number.number if isinstance(number, ReplicaOf) else number
        shard = Shard(component.name, master)
        entry = component.entry_of(shard)
        get: Any = self.aget if awaiting else self.get
        if raw is None and not entry.is_cluster:
            own = get(component, number, False)
            client = client_over(own, own.connection_pool.share())
            return self._with_successor(client, shard, raw, awaiting, replica is not None)
        where = entry_key(component.name, master)
        if replica is not None and replica.entry is not None:
            entry = replica.entry
        fields = entry.resolved(where)
        if replica is not None and entry.is_cluster:
            fields["reads_replicas"] = True
        provider = self._credential_providers.get(component.name)
        if provider is None:
            present = partial(_current_entry, weakref.ref(self), shard, entry)
            fields |= credentials_of(present, fields, where)
        else:
            fields["credentials"] = provider
        if raw:
            if {**_RAW, **fields} == fields | _RAW:
                return get(component, number, False)
            fields |= _RAW
        reads = replica is not None and bool(entry.held)
        way = _way(fields, entry, provider, shard, reads)
        fields["policy"] = policy = self._policy(fields, shard, entry.address, way)
        try:
            if self._connector.shares and not entry.is_cluster:
                pool = self._way_pool(held, way, fields, awaiting)
                database = self._database(component, shard, entry, reads, fields)
                client = client_over(pool.client, pool.share(database, policy))
            else:
                client = self._connected(fields, awaiting)
        except (RedisError, RedisClusterException, OSError) as error:
            raise ShardUnavailable(
                f"{shard} ({entry.address}) cannot be reached: {error}",
                "start the server, or correct the entry",
                shard=str(shard),
                error=error,
            ) from error
        return self._with_successor(client, shard, raw, awaiting, replica is not None)

    def _connected(self, fields: Mapping[str, Any], awaiting: bool) -> Any:
        connector = self._connector
        return connector.awaiting(fields) if awaiting else connector.blocking(fields)

    def _way_pool(self, held: _Held, way: object, fields: dict[str, Any], awaiting: bool) -> Any:
        """Return the pool that owns the connections of a way to connect."""
        with self._lock:
            pool = held.ways.get(way)
            if pool is None or pool.draining:
                client = self._connected({**fields, "db": 0}, awaiting)
                pool = held.ways[way] = client.connection_pool
                pool.client = copy.copy(client)  # without the pool: that would be a cycle
                pool.client.connection_pool = None
                held.built.add(pool)
            return pool

    def _database(
        self,
        component: Component,
        shard: Shard,
        entry: Entry,
        reads: bool,
        fields: Mapping[str, Any],
    ) -> ClientDatabase:
        number = int(fields.get("db") or 0)
        label = partial(_label, weakref.ref(self), shard, component.epoch)
        topology = self.topology()
        if topology is None:
            return ClientDatabase(number, str(shard), label, reads=reads)
        address = entry.address if reads else component.entry_of(shard).address
        return ClientDatabase(
            number,
            str(shard),
            label,
            witness=topology.source.witness(component.name),
            has_moved=partial(_has_moved, weakref.ref(self), shard, address),
            reads=reads,
        )

    def _with_successor(
        self, client: Any, shard: Shard, raw: bool | None, awaiting: bool, reads: bool
    ) -> Any:
        """Let a client find its successor and, unless it only ``reads``, its reader in a move."""
        if self.topology() is not None and hasattr(client, "successor"):
            find = _asuccessor if awaiting else _successor
            client.successor = partial(find, weakref.ref(self), shard, raw, reads)
            if not reads:
                client.reader = partial(_current_reader, weakref.ref(self), shard, awaiting)
        return client

    def _policy(
        self, fields: dict[str, Any], shard: Shard, address: str, way: object
    ) -> CallPolicy:
        """Return the limits on calls to a server."""
        deadline = fields.pop("deadline", self._deadline)
        breakers, connector = self._breakers, self._connector
        if breakers is None or fields.get("breaker", connector.breaks) is False:
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

    def _hold(self, loop: asyncio.AbstractEventLoop) -> _Held:
        """Return the table of a new loop's clients, which are closed when the loop ends."""
        self._abandon_closed_loops()
        held = _Held(loop, cleanup=_until_shutdown(weakref.ref(self)))
        kept_with(loop, self)["clients"] = held
        self._of_loops.add(held)
        with suppress(StopIteration):
            held.cleanup.asend(None).send(None)  # run to its yield, where no loop is needed
        return held

    def _changed_in(self, held: _Held, component: Component) -> None:
        with self._lock:
            displaced = _displaced(held.tables, component)
        _adrain(displaced)

    def _abandon_closed_loops(self) -> None:
        """Close the clients of loops that were closed without shutting down their generators."""
        with self._lock:
            left = [held for held in self._of_loops if held.loop.is_closed()]
            for held in left:
                self._forget(held)
        _abandon(left)

    def _forget(self, held: _Held) -> None:
        """Forget a loop, and let it forget its clients."""
        self._of_loops.discard(held)
        kept_with(held.loop, self).clear()
        self._last = _nothing

    def after_fork(self) -> None:
        """Forget everything in a forked child, whose locks a thread of the parent may hold."""
        self._lock = threading.RLock()
        self._blocking = _Held()
        left = list(self._of_loops)
        for held in left:
            self._forget(held)
        _abandon(left)


# Fields that do not concern a connection, or have a stand-in.
_NOT_OF_THE_WAY = frozenset(
    {
        *("db", "deadline", "breaker", "retry", "max_waiting", "multiplex", "policy"),
        *("read_from", "replicas", "zone", "held", "username", "password", "sentinel"),
        *("credentials", "sentinel_credentials"),
    }
)


def _way(
    fields: Mapping[str, Any], entry: Entry, provider: object, shard: Shard, reads: bool
) -> object:
    """Return what identifies a way to connect: the address, the login as it is written, and so on.

    Passwords are compared by the references to them, which are looked up at each connect.
    """
    written = entry.fields
    names = ("url", "username", "password", "password_file", "sentinel")
    login = repr([written.get(name) for name in names])
    concerned = {name: value for name, value in fields.items() if name not in _NOT_OF_THE_WAY}
    # Whoever names connections wants to tell them apart.
    named = (shard, reads) if "client_name" in fields else reads
    return repr(sorted(concerned.items())), login, provider, named


def _probe(connector: Connector, fields: Mapping[str, Any]) -> None:
    """Connect to a server and PING it, or raise."""
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
    """Whether a shard's entry names another server than ``address``."""
    _, topology = _require_alive(ref)
    topology.limit_age(shard.component, _MOVE_AGE, trusting=False)
    with suppress(MissingEntryError):
        entry: Entry = topology.last_known(shard.component).entry_of(shard)
        return entry.address != address
    return False


def _current_reader(ref: weakref.ref[Clients], shard: Shard, awaiting: bool) -> Any:
    """Return the client that reads a shard while a move holds it; None if none does."""
    if alive := _alive(ref):
        clients, topology = alive
        with suppress(ShardKitError):
            component = topology.last_known(shard.component)
            which = reader_of(component, shard.number)
            if isinstance(which, ReplicaOf):
                return (clients.aget if awaiting else clients.get)(component, which, False)
    return None


def _successor(ref: weakref.ref[Clients], shard: Shard, raw: bool | None, reads: bool) -> Client:
    """Return the client of a shard after reading its component again."""
    clients, topology = _require_alive(ref)
    component = topology.reread(shard.component)
    return clients.get(component, _which(component, shard, reads), raw)


async def _asuccessor(
    ref: weakref.ref[Clients], shard: Shard, raw: bool | None, reads: bool
) -> AsyncClient:
    """Return the awaiting client of a shard after reading its component again."""
    clients, topology = _require_alive(ref)
    component = await topology.areread(shard.component)
    return clients.aget(component, _which(component, shard, reads), raw)


def _which(component: Component, shard: Shard, reads: bool) -> Number:
    return reader_of(component, shard.number) if reads else shard.number


def _current(
    tables: _ClientTables, component: Component, raw: bool | None
) -> tuple[_ClientTable, list[Any]]:
    """Return the current table of a component (a newer one, perhaps), and displaced clients."""
    key = (component.name, raw)
    old = tables.get(key)
    if old is not None and old.component.version >= component.version:
        return old, []
    table = tables[key] = _ClientTable(component)
    if old is None:
        return table, []
    table.outdated = old.outdated
    table.outdated[old.component] = old.clients
    displaced = []
    for number, client in old.clients.items():
        if _entry(old.component, number) == _entry(component, number):
            table.clients[number] = client
        else:
            displaced.append(client)
    return table, displaced


def _displaced(tables: _ClientTables, component: Component) -> list[Any]:
    """Replace the existing tables of earlier versions of a component; return displaced clients."""
    kinds = [raw for raw in (None, False, True) if (component.name, raw) in tables]
    return [client for raw in kinds for client in _current(tables, component, raw)[1]]


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


def _name_of(component: str, number: Number) -> str:
    if isinstance(number, ReplicaOf):
        is_own = number.entry is not None and number.entry.held
        return f"{Shard(component, number.number)} {'reader' if is_own else 'replica'}"
    return str(Shard(component, number))


def _closable(client: Any) -> Any:
    """Return what must be closed of a client: its pool, which may outlive it in a pipeline."""
    is_cluster = isinstance(client, redis.RedisCluster | aioredis.RedisCluster)
    return client if is_cluster else client.connection_pool


def _drain(clients: Iterable[Any]) -> None:
    for client in clients:
        for pool in _pools(client):
            pool.drain()


def _adrain(clients: Iterable[Any]) -> None:
    """Drain an event loop's clients, in the loop."""
    for client in clients:
        closable = _closable(client)
        closable.draining = True
        if closable is client:
            drain_cluster(client)
        else:
            closable.drain()


def _close(closable: Any) -> None:
    closable.closed = True
    if isinstance(closable, redis.RedisCluster):
        closable.close()
        for pool in _pools(closable):
            pool.close_for_good()
    else:
        closable.close_for_good()


def _close_now(closables: list[Any]) -> None:
    """Close an event loop's clients, in the loop."""
    for closable in closables:
        closable.closed = closable.draining = True
        _stop_listening(closable)
        close_now(closable)


def _stop_listening(closable: Any) -> None:
    """Have Sentinels tell a pool of nothing more."""
    if isinstance(closable, HearsOfFailovers):
        closable.stop_listening()


def _close_in_loop(held: _Held, closables: list[Any]) -> None:
    """Close pools of the running loop now; it may never turn again."""
    _close_now(closables)
    with suppress(StopIteration):
        held.cleanup.aclose().send(None)  # nothing is held, so it does not wait


def _abandon(left: Iterable[_Held]) -> None:
    for held in left:
        for closable in list(held.built):
            _stop_listening(closable)
            abandon_connections(closable)


def _shown(client: Any) -> str:
    if isinstance(client, redis.RedisCluster | aioredis.RedisCluster):
        nodes = sorted(node.name for node in client.get_nodes())
        return f"<cluster of {', '.join(nodes)}>"
    return repr(client.connection_pool)


def _pools(client: Any) -> list[Any]:
    if not isinstance(client, redis.RedisCluster):
        return [client.connection_pool]
    nodes = client.get_nodes()  # type: ignore[no-untyped-call]
    return [client.get_redis_connection(node).connection_pool for node in nodes]
