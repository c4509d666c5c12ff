"""The databases of a component, and the server processes that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import redis

from shardkit.config.component import Component
from shardkit.kit.kit import ShardKit
from shardkit.network.survey import ServerFacts, loses_scripts, server_of
from shardkit.operations.commands import Shard
from shardkit.structures.encodings.limits import LIMITS_PATTERN, Limits, read_limits


@dataclass(frozen=True)
class Database:
    """A database of one shard; a cluster has one on each node."""

    shard: Shard
    address: str
    client: redis.Redis = field(repr=False)

    @property
    def server(self) -> str:
        """Its server's address: ``127.0.0.1:7101``."""
        return server_of(self.address)


@dataclass(frozen=True)
class ServerInfo:
    """A server process."""

    id: str
    address: str
    software: str
    limits: Limits | None
    replicas: int
    policy: str
    loses_scripts: bool
    client: redis.Redis = field(repr=False)


def distinct_shards(component: Component) -> Iterator[Shard]:
    """Yield a component's shards, its entry first; of those that share a database, the first."""
    addresses = set()
    for shard, entry in component.entries():
        if entry.address not in addresses:
            addresses.add(entry.address)
            yield shard


def databases_of(kit: ShardKit, component: Component, shard: Shard) -> list[Database]:
    """Return the databases of a shard: one, or on a cluster one for each master."""
    client = kit.clients.get(component, shard.number, raw=True)
    if isinstance(client, redis.RedisCluster):
        return [
            Database(shard, f"{node.host}:{node.port}", client.get_redis_connection(node))
            for node in client.get_primaries()  # type: ignore[no-untyped-call]
        ]
    return [Database(shard, component.entry_of(shard).address, client)]


def databases_with(kit: ShardKit, *names: str) -> list[Database]:
    """Return the databases of components, each once.

    Raises:
        ConfigError: there is no such component, or an entry cannot be used.
    """
    found = (
        database
        for name in names
        for shard in distinct_shards(kit.component(name))
        for database in databases_of(kit, kit.component(name), shard)
    )
    return list({database.address: database for database in found}.values())


def server_info(database: Database) -> ServerInfo:
    """Return which server holds a database, and its limits."""
    client = database.client
    facts = ServerFacts(info=client.info())
    try:
        limits = read_limits(client.config_get(LIMITS_PATTERN))
    except redis.ResponseError:  # CONFIG is not permitted
        limits = None
    return ServerInfo(
        facts.run_id,
        database.server,
        f"{facts.software} {facts.version}",
        limits,
        int(facts.info.get("connected_slaves", 0)),
        facts.eviction_policy,
        loses_scripts(client, facts.info),
        client,
    )


def by_server(databases: Iterable[Database]) -> list[list[Database]]:
    """Return databases grouped by the server in their addresses."""
    groups: dict[str, list[Database]] = {}
    for database in databases:
        groups.setdefault(database.server, []).append(database)
    return list(groups.values())
