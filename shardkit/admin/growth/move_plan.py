"""Plans of moves: their steps, and what prevents them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from shardkit.admin.growth.databases import database_client, strays
from shardkit.admin.growth.failover import master_of, replicas_of
from shardkit.admin.growth.journal import KEYS, REPLICATION
from shardkit.admin.growth.known_servers import KnownServers
from shardkit.admin.growth.relocation import Same, ServerAddress, entries_on
from shardkit.admin.growth.servers import config_databases, connected_to, too_small, unfit
from shardkit.config.component import Component, entry_key
from shardkit.config.entry import Entry
from shardkit.config.fields import database_of
from shardkit.errors import InvalidArgumentError, counted
from shardkit.network.connections.greeting import FENCE_KEY
from shardkit.operations.commands import Shard

_BYTES_A_SECOND = {REPLICATION: 100e6, KEYS: 20e6}  # of a copy, for the estimate

Components = Mapping[str, Component]


@dataclass(frozen=True)
class MovePlan:
    """The plan of a move.

    Attributes:
        source: the server that is left.
        target: the server that takes over.
        shards: the shards that move.
        keys: how many keys move, by database.
        memory: the bytes that they use.
        seconds: the approximate duration of the copy.
        steps: what will be done, in words and commands.
        problems: what prevents the move; empty if nothing does.
        databases: the databases of the shards; empty if the whole server moves.
    """

    source: ServerAddress
    target: ServerAddress
    shards: tuple[str, ...]
    keys: Mapping[str, int]
    memory: int
    seconds: float
    steps: tuple[str, ...]
    problems: tuple[str, ...] = ()
    databases: tuple[int, ...] = ()

    @property
    def copying(self) -> str:
        """``keys`` for shards, ``replication`` for a whole server."""
        return KEYS if self.databases else REPLICATION


def plan_of(
    components: Components, what: str | Sequence[str], target: ServerAddress, hold: float
) -> MovePlan:
    """Plan the move of a server, or of a list of shards."""
    if isinstance(what, str):
        return _plan_server(components, ServerAddress.parse(what), target, hold)
    return _plan_shards(components, what, target, hold)


def entry_on(components: Components, server: ServerAddress, same: Same) -> tuple[Entry, str]:
    """Return an entry of a master, and where that is stored.

    Raises:
        InvalidArgumentError: no entry names the server as a master.
    """
    for shard, entry in entries_on(components.values(), server, same):
        return entry, entry_key(*shard)
    raise InvalidArgumentError(
        f"{server} is not the master of any entry", "specify HOST:PORT as entries have it"
    )


def _plan_server(
    components: Components, source: ServerAddress, target: ServerAddress, hold: float
) -> MovePlan:
    servers = KnownServers(components.values(), source, target)
    like, where = entry_on(components, source, servers.same)
    shards = tuple(str(shard) for shard, _ in entries_on(components.values(), source, servers.same))
    problems = _problems_of(servers, source, target)
    if entries_on(components.values(), target, servers.same):
        problems.append(f"entries already name {target} as a master")
    with (
        connected_to(source, like, where) as master,
        connected_to(target, like, where) as replica,
    ):
        info = _info(master, source, problems)
        if info.get("role", "master") != "master":
            problems.append(f"{source} is a replica")
        if info.get("cluster_enabled"):
            problems.append(f"{source} is a node of a cluster, which moves slots itself")
        there = _info(replica, target, problems)
        if there:
            problems += unfit(info, there, master, replica, source, target)
    problems += config_databases(source, like, where, _counts(info))
    others = replicas_of(components.values(), source, servers.same)
    steps = (
        f"{target}: REPLICAOF {source.host} {source.port}, and wait until it is filled",
        f"{source}: FAILOVER TO {target.host} {target.port} TIMEOUT {round(1000 * hold)}: writers "
        "wait until the target has everything, readers do not",
        *(
            f"{each}: REPLICAOF {target.host} {target.port}"
            for each in others
            if not servers.same(each, target)
        ),
        f"push {len(shards)} entries that name {target}",
        f"compare both servers; {source} stays as a replica that no entry names",
    )
    keys = {str(number): count for number, count in _counts(info).items()}
    memory = int(info.get("used_memory", 0))
    seconds = memory / _BYTES_A_SECOND[REPLICATION]
    return MovePlan(source, target, shards, keys, memory, seconds, steps, tuple(problems))


def _plan_shards(
    components: Components, shards: Sequence[str], target: ServerAddress, hold: float
) -> MovePlan:
    servers = KnownServers(components.values(), target)
    same = servers.same
    names, source, like, where, databases = _located(components, shards, same)
    problems = _problems_of(servers, source, target, databases)
    for shard, entry in entries_on(components.values(), source, same):
        if database_of(entry.fields) in databases and str(shard) not in names:
            problems.append(f"{shard} is in the same database: specify it as well")
    problems += [
        f"{target} has {shard} in a database of the same number"
        for shard, entry in entries_on(components.values(), target, same)
        if database_of(entry.fields) in databases
    ]
    with (
        connected_to(source, like, where) as old,
        connected_to(target, like, where) as new,
    ):
        info = _info(old, source, problems)
        counts = _counts(info)
        keys = {number: counts.get(number, 0) for number in databases}
        share = sum(keys.values()) / max(1, sum(counts.values()))
        memory = round(share * int(info.get("used_memory", 0)))
        if info:
            try:
                old.config_get("notify-keyspace-events")
            except (RedisError, OSError) as error:
                problems.append(f"{source} cannot be used ({error})")
        there = _info(new, target, problems)
        if there:
            needed = memory + int(there["used_memory"])
            problems += too_small(info, there, old, new, target, needed)
        problems += [
            f"{server} is a replica"
            for server, said in ((source, info), (target, there))
            if said.get("role", "master") != "master"
        ]
    for number in databases:
        with suppress(RedisError, OSError):
            if number in _counts(there):
                with database_client(target, like, where, number) as client:
                    if strays(client, 1):
                        problems.append(f"{target} has keys in database {number}")
    problems += config_databases(source, like, where, databases)
    listed = ", ".join(str(number) for number in databases)
    replicas = ", ".join(map(str, replicas_of(components.values(), source, same)))
    steps = (
        f"{source}: CONFIG SET notify-keyspace-events, and PSUBSCRIBE to databases {listed}",
        f"copy every key with DUMP and RESTORE to {target}, and what changes; compare both",
        f"{source}: SET {FENCE_KEY} in databases {listed}, and push that they are held; writers "
        f"wait for at most {hold:g} s, until no client that may write is connected and the rest is "
        "copied; readers do not wait",
        f"{source}: PERSIST {FENCE_KEY}; push {len(names)} entries that name {target}"
        + (f", without the replicas {replicas}" if replicas else ""),
        f"{source}: delete the keys of databases {listed}",
    )
    return MovePlan(
        source,
        target,
        tuple(names),
        {str(number): count for number, count in keys.items()},
        memory,
        memory / _BYTES_A_SECOND[KEYS],
        steps,
        tuple(problems),
        tuple(databases),
    )


def _problems_of(
    servers: KnownServers,
    source: ServerAddress,
    target: ServerAddress,
    databases: Collection[int] | None = None,
) -> list[str]:
    problems = [
        f"{each} leads to {source} by a socket, Sentinels or a reference: write host and port"
        for each in servers.nameless(source, databases)
    ]
    if servers.same(source, target):
        problems.append(f"{source} and {target} are one server")
    return problems


def _info(client: Any, server: ServerAddress, problems: list[str]) -> dict[str, Any]:
    """Return what INFO reports; if it fails, add that to the problems and return nothing."""
    try:
        info: dict[str, Any] = client.info()
    except (RedisError, OSError) as error:
        problems.append(f"{server} cannot be used ({error})")
        return {}
    return info


def _counts(info: Mapping[str, Any]) -> dict[int, int]:
    """Return how many keys each database has."""
    return {
        int(name[2:]): int(each["keys"])
        for name, each in info.items()
        if name.startswith("db") and name[2:].isdigit() and isinstance(each, dict)
    }


def _located(
    components: Components, shards: Sequence[str], same: Same
) -> tuple[list[str], ServerAddress, Entry, str, list[int]]:
    """Return shards as entries call them, their server, an entry of it, and their databases."""
    if not shards:
        raise InvalidArgumentError(
            "the shards are not specified", "specify one or more, as timelines:3"
        )
    entries: dict[Shard, Entry] = {}
    servers: list[ServerAddress] = []
    databases: set[int] = set()
    for name in shards:
        server, _, _ = master_of(components, name)
        component, _, number = name.rpartition(":")
        if component in components and number.isdigit():
            shard = Shard(component, int(number))
        elif name in components:
            shard = components[name].all_shards()[0]
        else:
            raise InvalidArgumentError(f"{name} is not a shard", "see: shardkit status")
        entry = components[shard.component].entry_of(shard)
        database = database_of(entry.fields)
        if database is None:
            raise InvalidArgumentError(
                f"{entry_key(*shard)} takes its database from the environment",
                "write db: into the entry",
            )
        entries[shard] = entry
        databases.add(database)
        if not any(same(server, each) for each in servers):
            servers.append(server)
    if len(servers) > 1:
        raise InvalidArgumentError(
            f"the shards are on {counted(len(servers), 'server')} "
            f"({', '.join(map(str, sorted(servers)))})",
            "move the shards of one server at a time",
        )
    shard, like = next(iter(entries.items()))
    names = [str(each) for each in entries]
    return names, servers[0], like, entry_key(*shard), sorted(databases)
