"""Where the commands for a shard go: a database of a way to connect, or a cluster.

::

    unique:7   ─► Endpoint, database 2 ──┐
    unique:11  ─► Endpoint, database 3 ──┼─► Access: entries that differ in the database alone
    hits       ─► Endpoint, database 9 ──┼─► Access
                                         └─► pool of the way ─► connections

There may be hundreds of shards on a server. So what a shard has of its own is little; its pool is
made for its first client, or when its commands use a connection alone.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any

from shardkit.network.connections.databases import ClientDatabase
from shardkit.network.connections.policy import CallPolicy
from shardkit.operations.commands import Shard


@dataclass(slots=True, eq=False, weakref_slot=True)
class Access:
    """How shards are reached whose entries differ in the database alone."""

    client: Any  # of the way, or of the cluster
    way: Any  # the pool that owns the connections; None for a cluster
    policy: CallPolicy  # under the name of the first shard
    built: Any  # what must be closed with the kit
    lock: RLock


@dataclass(slots=True, eq=False, repr=False)
class Endpoint:
    """Where the commands for one shard go."""

    shard: Shard
    address: str
    access: Access
    database: ClientDatabase | None  # of the server; None for a cluster
    _pool: Any = None
    lane: Hashable = None  # endpoints of one lane may share an exchange
    policy: CallPolicy = field(init=False)  # the limits on calls, under the name of the shard

    def __post_init__(self) -> None:
        common = self.policy = self.access.policy
        if self.database is not None:
            self.lane = self.access.way, common.deadline
        if (common.shard, common.address) != (self.shard, self.address):
            self.policy = replace(common, shard=self.shard, address=self.address)

    @property
    def pool(self) -> Any:
        """The pool of the shard's database; not of a cluster."""
        if self._pool is None:
            access = self.access
            with access.lock:
                if self._pool is None:
                    pool = access.way.share(self.database, self.policy)
                    access.built.add(pool)
                    self._pool = pool
        return self._pool

    @property
    def owner(self) -> Any:
        """The pool that owns the connections, or the cluster's client."""
        access = self.access
        return access.client if access.way is None else access.way

    def leave(self) -> None:
        """Use no connections that others use from now on: the entry has changed."""
        if self.database is None:
            self.owner.drain()
            return
        self.lane = self
        if self._pool is not None:
            self._pool.draining = True
        self.access.way.leave(self.database)
