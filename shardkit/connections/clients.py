"""redis-py clients by component and shard: built when first used, kept, replaced with their entry.

A client is cached until its entry changes. Then a new client replaces it, and the old one drains:
it goes on serving the calls that hold it, and each connection is closed when it is released.

Awaiting clients belong to one event loop. Each loop gets its own, which are closed when the loop
ends: asyncio.run and others then shut down asynchronous generators, and a generator here waits for
that. A forked child builds its own.

The operation plane needs replies as RESP2 and bytes. Where an entry asks for something else it gets
a client of its own (``raw=True``); elsewhere both planes share one.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import redis
import redis.asyncio as aioredis
from redis.exceptions import RedisClusterException, RedisError

from shardkit.config.component import Component, entry_key
from shardkit.config.entry import Entry
from shardkit.connections import Connector
from shardkit.connections.redis_private import close_cluster, drain_node
from shardkit.errors import ShardUnavailable
from shardkit.operations.commands import Shard

Client: TypeAlias = redis.Redis | redis.RedisCluster
AsyncClient: TypeAlias = aioredis.Redis | aioredis.RedisCluster

_RAW = {"protocol": 2, "decode_responses": False}


@dataclass
class _ClientTable:
    """The clients of one version of a component, by shard; None is its unsharded entry's.

    ``previous`` is the version that it replaced: a call that looked the component up just before
    the change still uses that one's draining clients.
    """

    component: Component
    clients: dict[int | None, Any] = field(default_factory=dict)
    previous: _ClientTable | None = None
    build_lock: threading.RLock = field(default_factory=threading.RLock)


_ClientTables: TypeAlias = dict[tuple[str, bool], _ClientTable]


def _no_loop() -> None:
    """Stands for a loop that has ended."""


class Clients:
    """Builds and keeps clients. Safe to use from many threads and event loops.

    Args:
        connector: what builds them.
    """

    def __init__(self, connector: Connector | None = None) -> None:
        self._connector = connector or Connector()
        self._lock = threading.RLock()
        self._tables: _ClientTables = {}
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _ClientTables] = (
            weakref.WeakKeyDictionary()
        )
        self._last_loop: tuple[Callable[[], object], _ClientTables | None] = _no_loop, None
        # A draining client may still be in use; what is left of it is closed with the others.
        self._draining: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[AsyncClient]] = (
            weakref.WeakKeyDictionary()
        )
        self._loop_cleanups: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, AsyncGenerator[None, None]
        ] = weakref.WeakKeyDictionary()
        _all_clients.add(self)

    def get(self, component: Component, number: int | None, raw: bool = False) -> Client:
        """Return the blocking client of a shard, or (number None) of the unsharded entry.

        Cost: about 0.1 microseconds once it is built.

        Raises:
            MissingEntryError: there is no such entry.
            ConfigError: the entry refers to a name that is not in the environment.
            ShardUnavailable: the entry is a cluster, and none of its nodes answers.
        """
        table = self._tables.get((component.name, raw))
        if table is not None and table.component is component and number in table.clients:
            return table.clients[number]  # type: ignore[no-any-return]
        with self._lock:
            table, displaced = _current(self._tables, component, raw)
        for old in displaced:
            _drain(old)
        found: Client = self._get_or_build(table, number, raw, awaiting=False)
        return found

    def aget(self, component: Component, number: int | None, raw: bool = False) -> AsyncClient:
        """Return the awaiting client of a shard for the running event loop; see `get`."""
        loop = asyncio.get_running_loop()
        latest, tables = self._last_loop  # mostly there is one loop; to look it up takes longer
        if latest() is not loop:
            tables = self._by_loop.get(loop)
        if tables is not None:
            table = tables.get((component.name, raw))
            if table is not None and table.component is component:
                known: AsyncClient | None = table.clients.get(number)
                if known is not None:
                    return known
        with self._lock:
            if tables is None:
                tables = self._by_loop[loop] = {}
                self._register_loop_cleanup(loop)
            self._last_loop = weakref.ref(loop), tables
            table, displaced = _current(tables, component, raw)
        for old in displaced:
            self._draining.setdefault(loop, []).append(old)
            task = loop.create_task(_adrain(old))
            _drain_tasks.add(task)
            task.add_done_callback(_drain_tasks.discard)
        found: AsyncClient = self._get_or_build(table, number, raw, awaiting=True)
        return found

    def close(self) -> None:
        """Close every blocking client's pool."""
        with self._lock:
            tables, self._tables = self._tables, {}
        for client in _all_of(tables):
            _close(client)

    async def aclose(self) -> None:
        """Close the running loop's clients' pools."""
        loop = asyncio.get_running_loop()
        with self._lock:
            tables = self._by_loop.pop(loop, {})
            self._last_loop = _no_loop, None
            self._loop_cleanups.pop(loop, None)
            displaced = self._draining.pop(loop, [])
        for client in [*_all_of(tables), *displaced]:
            await _aclose(client)

    def shown(self) -> list[str]:
        """Return a line for each client that has been built: its shard and its connections."""
        tables = list(self._tables.values())
        for of_loop in list(self._by_loop.values()):
            tables += of_loop.values()
        return [
            f"{Shard(table.component.name, number)} {_shown(client)}"
            for table in tables
            for number, client in list(table.clients.items())
        ]

    def __repr__(self) -> str:
        return f"<Clients: {'; '.join(self.shown()) or 'none yet'}>"

    def _get_or_build(
        self, table: _ClientTable, number: int | None, raw: bool, *, awaiting: bool
    ) -> Any:
        # Not under the common lock: a cluster's client connects, which may take long.
        with table.build_lock:
            client = table.clients.get(number)
            if client is None:
                client = table.clients[number] = self._build(table.component, number, raw, awaiting)
        return client

    def _build(self, component: Component, number: int | None, raw: bool, awaiting: bool) -> Any:
        entry = component.entry_of(Shard(component.name, number))
        fields = entry.resolved(entry_key(component.name, number))
        if raw:
            if {**_RAW, **fields} == fields | _RAW:  # a user's client is raw as well
                return (self.aget if awaiting else self.get)(component, number)
            fields |= _RAW
        try:
            return (self._connector.awaiting if awaiting else self._connector.blocking)(fields)
        except (RedisError, RedisClusterException, OSError) as error:
            shard = Shard(component.name, number)
            raise ShardUnavailable(
                f"{shard} ({entry.address}) cannot be reached: {error}",
                "start the server, or fix the entry",
                shard=str(shard),
                error=error,
            ) from error

    def _register_loop_cleanup(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the loop's clients closed when it shuts down its asynchronous generators."""
        cleanup = _until_shutdown(weakref.ref(self))
        with suppress(StopIteration):
            cleanup.asend(None).send(None)  # run to its yield, where no loop is needed
        self._loop_cleanups[loop] = cleanup

    def _after_fork(self) -> None:
        # A thread of the parent may have held a lock, of ours or of a pool, which would never be
        # released here. Dropping the parent's clients closes this process's copies.
        self._lock = threading.RLock()
        self._tables = {}


async def _until_shutdown(clients: weakref.ref[Clients]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        alive = clients()
        if alive is not None:
            await alive.aclose()


def _current(
    tables: _ClientTables, component: Component, raw: bool
) -> tuple[_ClientTable, list[Any]]:
    """Return the table of this version of a component, and the clients that it displaced."""
    key = (component.name, raw)
    old = tables.get(key)
    if old is not None and old.component is component:
        return old, []
    if old is not None and old.previous is not None and old.previous.component is component:
        return old.previous, []
    table = _ClientTable(component, previous=old)
    if old is None:
        tables[key] = table
        return table, []
    old.previous = None
    displaced = []
    for number, client in list(old.clients.items()):
        if _entry(old.component, number) == _entry(component, number):
            table.clients[number] = client
        else:
            displaced.append(client)
    tables[key] = table
    return table, displaced


def _all_of(tables: _ClientTables) -> list[Any]:
    current = list(tables.values())
    current += [table.previous for table in current if table.previous is not None]
    return [client for table in current for client in table.clients.values()]


def _entry(component: Component, number: int | None) -> Entry | None:
    if number is None:
        return component.entry
    return component.shards[number] if number < len(component.shards) else None


# A client's pool is closed here and not when the client is collected: a pipeline or a lock made
# from it holds the pool alone.


def _drain(client: Any) -> None:
    for pool in _pools(client):
        pool.drain()


async def _adrain(client: Any) -> None:
    if not isinstance(client, aioredis.RedisCluster):
        await client.connection_pool.drain()
        return
    for node in client.get_nodes():
        await drain_node(node)


def _close(client: Any) -> None:
    if isinstance(client, redis.RedisCluster):
        client.close()
    for pool in _pools(client):
        pool.close_for_good()


async def _aclose(client: Any) -> None:
    if not isinstance(client, aioredis.RedisCluster):
        await client.connection_pool.close_for_good()
        return
    await close_cluster(client)


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


_drain_tasks: set[asyncio.Task[None]] = set()
_all_clients: weakref.WeakSet[Clients] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for clients in list(_all_clients):
        clients._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
