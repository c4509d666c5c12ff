"""Where a component's keys are: every database, and the server processes that hold it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import redis

from shardkit.config.component import Component
from shardkit.encodings.limits import LIMITS_PATTERN, Limits, read_limits
from shardkit.kit import ShardKit
from shardkit.operations.commands import Shard


@dataclass(frozen=True)
class Database:
    """A database of one shard; on a cluster there is one of each node.

    Attributes:
        shard: the shard, the first one where several share the database.
        address: where it is: ``127.0.0.1:7101/1``.
        client: redis-py's client of it, which decodes nothing.
    """

    shard: Shard
    address: str
    client: redis.Redis = field(repr=False)

    @property
    def server(self) -> str:
        """Its address without a database: ``127.0.0.1:7101``."""
        return re.sub(r"/\d+$", "", self.address)


@dataclass(frozen=True)
class ServerInfo:
    """A server process.

    Attributes:
        id: its run id: the same under whatever address it is reached.
        address: where it was reached first, without a database.
        software: ``valkey 9.1.2``.
        limits: its limits to compact forms; None if it does not tell.
        replicas: how many replicas it has: they have limits of their own.
        client: a client of it.
    """

    id: str
    address: str
    software: str
    limits: Limits | None
    replicas: int
    client: redis.Redis = field(repr=False)


def shards_of(component: Component) -> Iterator[Shard]:
    """Yield a component's shards that have a database of their own, its entry first."""
    addresses = set()
    entry = [Shard(component.name)] if component.entry is not None else []
    for shard in [*entry, *(component.all_shards() if component.shards else [])]:
        address = component.entry_of(shard).address
        if address not in addresses:
            addresses.add(address)
            yield shard


def places_of(kit: ShardKit, component: Component, shard: Shard) -> list[Database]:
    """Return the databases of a shard: one, or on a cluster that of each node that takes writes.

    Raises:
        ConfigError: its entry cannot be used.
        ShardUnavailable: it is a cluster of which no node answers.
    """
    client = kit.clients.get(component, shard.number, raw=True)
    if isinstance(client, redis.RedisCluster):
        return [
            Database(shard, f"{node.host}:{node.port}", client.get_redis_connection(node))
            for node in client.get_primaries()  # type: ignore[no-untyped-call]
        ]
    return [Database(shard, component.entry_of(shard).address, client)]


def server_at(place: Database) -> ServerInfo:
    """Ask which server it is, and for its limits.

    Raises:
        RedisError, OSError: it cannot be reached, or answers nobody.
    """
    info: Any = place.client.info()
    name = "valkey" if "valkey_version" in info else "redis"
    try:
        limits = read_limits(place.client.config_get(LIMITS_PATTERN))
    except redis.ResponseError:  # not everybody may ask
        limits = None
    return ServerInfo(
        str(info["run_id"]),
        place.server,
        f"{name} {info[f'{name}_version']}",
        limits,
        int(info.get("connected_slaves", 0)),
        place.client,
    )


def by_server(places: Iterable[Database]) -> list[list[Database]]:
    """Return places grouped by server, as far as their addresses tell."""
    groups: dict[str, list[Database]] = {}
    for place in places:
        groups.setdefault(place.server, []).append(place)
    return list(groups.values())
