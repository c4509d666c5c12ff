"""redis-py clients by component and shard: built when first used, kept, replaced with their entry.

A client is cached until its entry changes. Then a new client replaces it, and the old one drains:
it goes on serving the calls that hold it, and each connection is closed when it is released. The
topology tells of each change, so that clients that nobody uses at the time drain as well, in every
event loop; from the first client on it looks for changes though nobody calls. A caller who looked a
component up just before a change gets a client of that version, which drains from the first.

Awaiting clients belong to one event loop. Each loop gets its own, which are closed when the loop
ends: asyncio.run and others then shut down asynchronous generators, and a generator here waits for
that. What a loop leaves that was closed without this is closed when the next loop comes. A forked
child builds its own.

There are three kinds of clients, which share connections as far as they can:

=========  ==================================  ================================================
``raw``    for                                 connections
=========  ==================================  ================================================
``True``   structures: replies as RESP2 and    its own where the entry asks for something else;
           bytes                               else those of ``False``
``False``  pipelines over shards, and others   its own
           that want what the entry says
``None``   those outside: decorated            those of ``False`` until its holder changes or
           functions, routers, `kit.client`    closes the pool; a cluster's client has its own
=========  ==================================  ================================================
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
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
from shardkit.network.connections.greeting import Greeting, connection_name
from shardkit.network.connections.policy import CallPolicy
from shardkit.network.connections.redis_private import (
    abandon_connections,
    close_cluster,
    close_now,
    drain_cluster,
)
from shardkit.operations.commands import Shard
from shardkit.operations.forks import renewed_in_children

Client: TypeAlias = redis.Redis | redis.RedisCluster
AsyncClient: TypeAlias = aioredis.Redis | aioredis.RedisCluster


class ReplicaOf(NamedTuple):
    """Names a client in the place of a shard's number: of a replica of the shard.

    Attributes:
        number: the shard's number; None for the unsharded entry.
        entry: the replica's; None for a cluster's client that reads from replicas. The shard's own
            for what only reads while a move holds it; see `reader_of`.
    """

    number: int | None
    entry: Entry | None = None


Number: TypeAlias = int | ReplicaOf | None
"""Which client: of a shard, of the unsharded entry (None), or of a replica of either."""


def reader_of(component: Component, number: int | None) -> Number:
    """Return which client of a shard's master sends what only reads.

    It is one of its own while a move holds the shard, as only writes wait then.
    """
    entry = component.entry_of(Shard(component.name, number))
    return ReplicaOf(number, entry) if entry.held else number


_MOVE_AGE = 0.05  # seconds; how old entries may be while their shard is being moved
_RAW = {"protocol": 2, "decode_responses": False}


@dataclass
class _ClientTable:
    """The clients of one version of a component, by shard; None is its unsharded entry's.

    Those of replicas are among them, by `ReplicaOf`.

    ``outdated`` has those of earlier versions that somebody still holds.
    """

    component: Component
    clients: dict[Number, Any] = field(default_factory=dict)
    outdated: weakref.WeakKeyDictionary[Component, dict[Number, Any]] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    build_lock: threading.RLock = field(default_factory=threading.RLock)


_ClientTables: TypeAlias = dict[tuple[str, bool | None], _ClientTable]


@dataclass(eq=False)
class _Held:
    """The clients of one event loop, or the blocking ones of all threads.

    Attributes:
        tables: those of the components as they are now, by name and kind.
        built: what has to be closed, also of earlier versions: pools, and the clients of clusters.
            A pipeline or a lock holds the pool alone.
        cleanup: waits for the end of the loop.
    """

    tables: _ClientTables = field(default_factory=dict)
    built: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    cleanup: Any = None


def _no_loop() -> None:
    """Stands for a loop that has ended."""


def _no_topology() -> None:
    """Stands for that of clients without a kit, and for the pool of those that are not private."""


class Clients:
    """Builds and keeps clients. Safe to use from many threads and event loops.

    Args:
        connector: what builds them.
        credential_providers: redis-py's, by component; they are asked at each connect, and what the
            component's entries say as user and password does not count.
        deadline: how long a call may take where the entry does not say it, in seconds.
        describe: returns what connections to a shard are called, after ``shardkit:``.
        breakers: those of the kit; without them, servers have none.

    Attributes:
        topology: returns what reads entries anew, a weak reference; the kit sets it.
        follower: returns the private pool that is to be told of changes, a weak reference, or None.
    """

    def __init__(
        self,
        connector: Connector | None = None,
        credential_providers: Mapping[str, CredentialProvider] | None = None,
        deadline: float | None = None,
        describe: Callable[[Shard], str] = str,
        breakers: Breakers | None = None,
    ) -> None:
        self._connector = connector or Connector()
        self._deadline = deadline
        self._breakers = breakers
        CallPolicy(deadline=deadline)  # from the first call on they are timed
        self._describe = describe
        self._credential_providers = dict(credential_providers or {})
        self._lock = threading.RLock()
        self._closed = False
        self.topology: Callable[[], Any] = _no_topology
        self.follower: Callable[[], Any] = _no_topology
        self._blocking = _Held()
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Held] = (
            weakref.WeakKeyDictionary()
        )
        self._last_loop: tuple[Callable[[], object], _Held | None] = _no_loop, None
        renewed_in_children(self)

    def get(self, component: Component, number: Number, raw: bool | None = None) -> Client:
        """Return the blocking client of a shard, or (number None) of the unsharded entry.

        Args:
            component: the component.
            number: the shard's number; or a `ReplicaOf`, for the client of a replica.
            raw: the kind of client, see the module; by default one to hand out.

        Cost: about 0.1 microseconds once it is built.

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
        found: Client = self._get_or_build(held, table, component, number, raw, None)
        return found

    def aget(self, component: Component, number: Number, raw: bool | None = None) -> AsyncClient:
        """Return the awaiting client of a shard for the running event loop; see `get`."""
        loop = asyncio.get_running_loop()
        latest, held = self._last_loop  # mostly there is one loop; to look it up takes longer
        if latest() is not loop:
            held = self._by_loop.get(loop)
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
            self._last_loop = weakref.ref(loop), held
            table, displaced = _current(held.tables, component, raw)
        _adrain(displaced)
        found: AsyncClient = self._get_or_build(held, table, component, number, raw, loop)
        return found

    def changed(self, component: Component) -> None:
        """Have clients of earlier versions of a component drain, whoever used them last."""
        with self._lock:
            displaced = _displaced(self._blocking.tables, component)
            loops = list(self._by_loop.items())
        _drain(displaced)
        for loop, held in loops:
            with suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(self._changed_in, loop, held, component)
        follower = self.follower()
        if follower is not None:
            follower.follow()
        self._abandon_closed_loops()

    def close(self) -> None:
        """Close every client, the awaiting ones in the next turns of their loops.

        Nobody gets a client afterwards, and those that somebody holds raise ClosedError.
        """
        with self._lock:
            self._closed = True
            built = list(self._blocking.built)  # some are in the tables alone
            self._blocking.tables = {}
            loops = list(self._by_loop)
            for held in self._by_loop.values():
                for each in held.built:
                    each.closed = True
        for each in built:
            _close(each)
        for loop in loops:
            with suppress(RuntimeError):  # it is closed
                if _is_running(loop):
                    self._close_in(loop)
                else:
                    loop.call_soon_threadsafe(self._close_in, loop)
        self._abandon_closed_loops()

    async def aclose(self) -> None:
        """Close the running loop's clients."""
        loop = asyncio.get_running_loop()
        with self._lock:
            held = self._by_loop.pop(loop, None)
            self._last_loop = _no_loop, None
        if held is None:
            return
        for closable in list(held.built):
            if isinstance(closable, aioredis.RedisCluster):
                await close_cluster(closable)
            else:
                await closable.close_for_good()
        if not held.cleanup.ag_running:  # or it is the one that calls
            await held.cleanup.aclose()

    def shown(self) -> list[str]:
        """Return a line for each client that has been built: its shard and its connections."""
        tables = list(self._blocking.tables.values())
        for of_loop in list(self._by_loop.values()):
            tables += of_loop.tables.values()
        return [
            f"{_name_of(table.component.name, number)} {_shown(client)}"
            for table in tables
            for number, client in list(table.clients.items())
            if not getattr(_closable(client), "shares", False)  # the pool's owner is there too
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
        if component is not table.component:  # the caller looked it up before the last change
            if _entry(component, number) == _entry(table.component, number):
                component = table.component
            else:
                with self._lock:
                    clients = table.outdated.setdefault(component, {})
        # Not under the common lock: a cluster's client connects, which may take long.
        with table.build_lock:
            client = clients.get(number)
            if client is not None:
                return client
            client = self._build(component, number, raw, awaiting=loop is not None)
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
                _close_now(held)
            self._require_open()
        if not is_current and loop is None:
            _drain([client])
        elif not is_current and loop is not None:
            _adrain([client])
        return client

    def _build(self, component: Component, number: Number, raw: bool | None, awaiting: bool) -> Any:
        replica = number if isinstance(number, ReplicaOf) else None
        master = number.number if isinstance(number, ReplicaOf) else number
        shard = Shard(component.name, master)
        entry = component.entry_of(shard)
        get: Any = self.aget if awaiting else self.get
        if raw is None and not entry.is_cluster:
            own = get(component, number, False)
            client = type(own)(connection_pool=own.connection_pool.share())
            return self._with_successor(client, shard, raw, awaiting, replica is not None)
        where = entry_key(component.name, master)
        if replica is not None and replica.entry is not None:
            entry = replica.entry
        fields = entry.resolved(where)
        if replica is not None and entry.is_cluster:
            fields["reads_replicas"] = True
        provider = self._credential_providers.get(component.name)
        if provider is None:
            present = partial(_present_entry, weakref.ref(self), shard, entry)
            fields |= credentials_of(present, fields, where)
        else:
            fields["credentials"] = provider
        deadline = fields.pop("deadline", self._deadline)
        fields["policy"] = self._policy(fields, shard, entry.address, deadline)
        if raw:
            if {**_RAW, **fields} == fields | _RAW:
                return get(component, number, False)
            fields |= _RAW
        try:
            connector = self._connector
            client = connector.awaiting(fields) if awaiting else connector.blocking(fields)
            self._with_successor(client, shard, raw, awaiting, replica is not None)
            pool = getattr(client, "connection_pool", None)
            if pool is not None:
                topology = self.topology()
                witness = None if topology is None else topology.source.witness(component.name)
                own = component.entry_of(shard)
                reads = replica is not None and bool(entry.held)
                address = entry.address if reads else own.address
                moved = partial(_has_moved, weakref.ref(self), shard, address)
                pool.greeting = Greeting(
                    partial(self._name, shard, component.epoch),
                    witness,
                    None if topology is None else moved,
                    reads,
                )
            return client
        except (RedisError, RedisClusterException, OSError) as error:
            raise ShardUnavailable(
                f"{shard} ({entry.address}) cannot be reached: {error}",
                "start the server, or fix the entry",
                shard=str(shard),
                error=error,
            ) from error

    def _with_successor(
        self, client: Any, shard: Shard, raw: bool | None, awaiting: bool, reads: bool
    ) -> Any:
        """Have a client find the one that follows it when its server is not to be used any more.

        And, unless it only ``reads`` itself, the one that reads while a move holds the shard.
        """
        if self.topology() is not None and hasattr(client, "successor"):
            find = _asuccessor if awaiting else _successor
            client.successor = partial(find, weakref.ref(self), shard, raw, reads)
            if not reads:
                client.reader = partial(_present_reader, weakref.ref(self), shard, awaiting)
        return client

    def _name(self, shard: Shard, epoch: int) -> str:
        described = self._describe(shard)
        return connection_name(f"{described}/{epoch}" if epoch else described)

    def _policy(
        self, fields: dict[str, Any], shard: Shard, address: str, deadline: float | None
    ) -> CallPolicy:
        """Return what bounds the calls to a server."""
        breakers, connector = self._breakers, self._connector
        if breakers is None or fields.get("breaker", connector.breaks) is False:
            return CallPolicy.of(fields, shard, address, deadline=deadline)

        def breaker(fields: dict[str, Any], address: str) -> Breaker:
            return breakers.of(fields, address, partial(_probe, connector, fields))

        def of_node(host: str, port: int) -> Breaker:
            alone = {n: v for n, v in fields.items() if n not in ("cluster", "policy")}
            return breaker({**alone, "host": host, "port": port}, f"{host}:{port}")

        if fields.get("cluster"):
            return CallPolicy.of(fields, shard, address, deadline=deadline, node=of_node)
        own = breaker(dict(fields), address)
        return CallPolicy.of(fields, shard, address, deadline=deadline, breaker=own)

    def _hold(self, loop: asyncio.AbstractEventLoop) -> _Held:
        """Return what holds a new loop's clients, which are closed when it ends."""
        self._abandon_closed_loops()
        held = self._by_loop[loop] = _Held(cleanup=_until_shutdown(weakref.ref(self)))
        with suppress(StopIteration):
            held.cleanup.asend(None).send(None)  # run to its yield, where no loop is needed
        return held

    def _close_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the clients of the running loop at once: it may never turn again."""
        with self._lock:
            held = self._by_loop.pop(loop, None)
            self._last_loop = _no_loop, None
        if held is not None:
            _close_now(held)
            with suppress(StopIteration):
                held.cleanup.aclose().send(None)  # as nothing is held, it waits for nothing

    def _changed_in(
        self, loop: asyncio.AbstractEventLoop, held: _Held, component: Component
    ) -> None:
        with self._lock:
            displaced = _displaced(held.tables, component)
        _adrain(displaced)

    def _abandon_closed_loops(self) -> None:
        """Close what loops left that were closed without shutting down their generators."""
        with self._lock:
            closed = [loop for loop in self._by_loop if loop.is_closed()]
            left = [self._by_loop.pop(loop) for loop in closed]
        _abandon(left)

    def after_fork(self) -> None:
        """Forget everything, in a forked child."""
        # A thread of the parent may have held a lock, of ours or of a pool, which would never be
        # released here. Dropping the parent's clients closes this process's copies.
        self._lock = threading.RLock()
        self._blocking = _Held()
        left = list(self._by_loop.values())
        self._by_loop = weakref.WeakKeyDictionary()
        self._last_loop = _no_loop, None
        _abandon(left)


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


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


def _present_entry(found: weakref.ref[Clients], shard: Shard, entry: Entry) -> Entry:
    """Return a shard's entry as it was read last, if it still names the same server."""
    clients = found()
    topology = clients.topology() if clients is not None else None
    if topology is not None:
        with suppress(ShardKitError):
            present: Entry = topology.last_known(shard.component).entry_of(shard)
            return present if present.address == entry.address else entry
    return entry


def _has_moved(found: weakref.ref[Clients], shard: Shard, address: str) -> bool:
    """Whether a shard's entry names another place than it did; read again now and then."""
    clients = found()
    topology = clients.topology() if clients is not None else None
    if topology is None:
        raise closed_error()
    topology.limit_age(shard.component, _MOVE_AGE, trusting=False)
    with suppress(MissingEntryError):
        entry: Entry = topology.last_known(shard.component).entry_of(shard)
        return entry.address != address
    return False


def _present_reader(found: weakref.ref[Clients], shard: Shard, awaiting: bool) -> Any:
    """Return the client that reads a shard which a move holds just now; None if none does."""
    clients = found()
    topology = clients.topology() if clients is not None else None
    if clients is None or topology is None:
        return None
    with suppress(ShardKitError):
        component = topology.last_known(shard.component)
        which = reader_of(component, shard.number)
        if isinstance(which, ReplicaOf):
            return (clients.aget if awaiting else clients.get)(component, which, False)
    return None


def _successor(found: weakref.ref[Clients], shard: Shard, raw: bool | None, reads: bool) -> Client:
    """Return the client of a shard, its component read anew."""
    clients = found()
    topology = clients.topology() if clients is not None else None
    if clients is None or topology is None:
        raise closed_error()
    component = topology.reread(shard.component)
    which = reader_of(component, shard.number) if reads else shard.number
    return clients.get(component, which, raw)


async def _asuccessor(
    found: weakref.ref[Clients], shard: Shard, raw: bool | None, reads: bool
) -> AsyncClient:
    """Return the awaiting client of a shard, its component read anew."""
    clients = found()
    topology = clients.topology() if clients is not None else None
    if clients is None or topology is None:
        raise closed_error()
    component = await topology.areread(shard.component)
    which = reader_of(component, shard.number) if reads else shard.number
    return clients.aget(component, which, raw)


def _current(
    tables: _ClientTables, component: Component, raw: bool | None
) -> tuple[_ClientTable, list[Any]]:
    """Return the table of a component as it is now, and the clients that this displaced.

    A caller who has an older version gets the table of the newer one.
    """
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
    """Put tables for a component in the place of those of earlier versions, as far as there are.

    Returns:
        The clients that this displaced.
    """
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
    """Return what has to be closed of a client, and outlives it in a pipeline: its pool."""
    is_cluster = isinstance(client, redis.RedisCluster | aioredis.RedisCluster)
    return client if is_cluster else client.connection_pool


def _drain(clients: Iterable[Any]) -> None:
    for client in clients:
        for pool in _pools(client):
            pool.drain()


def _adrain(clients: Iterable[Any]) -> None:
    """Have an event loop's clients drain, in the loop."""
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


def _close_now(held: _Held) -> None:
    """Close an event loop's clients, in the loop."""
    for closable in list(held.built):
        closable.closed = closable.draining = True
        close_now(closable)


def _abandon(left: Iterable[_Held]) -> None:
    for held in left:
        for closable in list(held.built):
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
