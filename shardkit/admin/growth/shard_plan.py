"""What a move of shards would do, and what stands in its way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError

from shardkit.admin.growth.databases import database_client, strays
from shardkit.admin.growth.failover import HOLD, master_of, replicas_of
from shardkit.admin.growth.known_servers import KnownServers
from shardkit.admin.growth.move import MovePlan
from shardkit.admin.growth.relocation import Same, ServerAddress, entries_on
from shardkit.admin.growth.servers import connected_to, too_small
from shardkit.config.component import Component, entry_key
from shardkit.config.entry import Entry
from shardkit.config.fields import database_of
from shardkit.config.store import read_components
from shardkit.config.stored import EPOCH_KEY
from shardkit.errors import InvalidArgumentError
from shardkit.network.connections.greeting import FENCE_KEY
from shardkit.operations.commands import Shard

_BYTES_A_SECOND = 20e6  # of a copy, for the estimate


def plan_shard_move(config: Any, shards: Sequence[str], to: str, *, hold: float = HOLD) -> MovePlan:
    """Say what a move of shards would do. Changes nothing.

    Args:
        config: a client of the config server.
        shards: which, as ``timelines:3``; all on one server.
        to: the server that shall have them, ``host:port``; it may have others.
        hold: how long writers may be held at a time, in seconds.

    Raises:
        InvalidArgumentError: there is no such shard, or they are on several servers.
        ConfigError: an entry does not name its server by host and port.
    """
    return plan_of(read_components(config), shards, ServerAddress.parse(to), hold)[0]


def plan_of(
    components: Mapping[str, Component], shards: Sequence[str], target: ServerAddress, hold: float
) -> tuple[MovePlan, list[int]]:
    """Return what a move would do, and which databases that concerns."""
    servers = KnownServers(components.values(), target)
    same = servers.same
    shards, source, like, where, databases = located(components, shards, same)
    problems = [
        f"{each} leads to {source} by a socket, Sentinels or a reference: write host and port"
        for each in servers.nameless(source, databases)
    ]
    for component, number, entry in entries_on(components.values(), source, same):
        name = component if number is None else f"{component}:{number}"
        if database_of(entry.fields) in databases and name not in shards:
            problems.append(f"{name} is in the same database: name it as well")
    for component, number, entry in entries_on(components.values(), target, same):
        if database_of(entry.fields) in databases:
            name = component if number is None else f"{component}:{number}"
            problems.append(f"{target} has {name} in a database of the same number")
    if same(source, target):
        problems.append(f"{source} and {target} are one server")
    keys: dict[str, int] = {}
    memory = 0.0
    with (
        connected_to(source, like, where) as old,
        connected_to(target, like, where) as new,
    ):
        info: dict[str, Any] = {}
        try:
            info = old.info()
            counts = {name: each["keys"] for name, each in info.items() if _is_keyspace(name, each)}
            keys = {str(number): int(counts.get(f"db{number}", 0)) for number in databases}
            share = sum(keys.values()) / max(1, sum(counts.values()))
            memory = share * int(info["used_memory"])
            if info["role"] != "master":
                problems.append(f"{source} is a replica")
            old.config_get("notify-keyspace-events")
        except (RedisError, OSError) as error:
            problems.append(f"{source} cannot be used ({error})")
        try:
            there = new.info()
            needed = round(memory) + int(there["used_memory"])
            problems += too_small(info, there, old, new, target, needed)
            if there["role"] != "master":
                problems.append(f"{target} is a replica")
            used = new.info("keyspace")
            problems += [
                f"{target} has keys in database {number}"
                for number in databases
                if f"db{number}" in used and _foreign(target, like, where, number)
            ]
        except (RedisError, OSError) as error:
            problems.append(f"{target} cannot be used ({error})")
    for number in databases:
        with (
            suppress(RedisError, OSError),
            database_client(source, like, where, number) as client,
        ):
            if client.exists(EPOCH_KEY):
                problems.append(f"database {number} of {source} is the config server's")
    named = ", ".join(str(number) for number in databases)
    replicas = [str(each) for each in replicas_of(components.values(), source, same)]
    steps = [
        f"{source}: CONFIG SET notify-keyspace-events, and PSUBSCRIBE to databases {named}",
        f"copy every key with DUMP and RESTORE to {target}, and what changes; compare both",
        f"{source}: SET {FENCE_KEY} in databases {named}, and push that they are held; writers "
        f"wait for at most {hold:g} s, until nobody who may write is connected and the rest is "
        "copied; readers do not wait",
        f"{source}: PERSIST {FENCE_KEY}; push {len(shards)} entries that name {target}"
        + (f", without the replicas {', '.join(replicas)}" if replicas else ""),
        f"{source}: delete the keys of databases {named}",
    ]
    plan = MovePlan(
        source,
        target,
        tuple(shards),
        keys,
        round(memory),
        memory / _BYTES_A_SECOND,
        tuple(steps),
        tuple(problems),
    )
    return plan, databases


def located(
    components: Mapping[str, Component], shards: Sequence[str], same: Same
) -> tuple[list[str], ServerAddress, Entry, str, list[int]]:
    """Return shards as entries call them, their server, an entry of it, and their databases."""
    if not shards:
        raise InvalidArgumentError("no shard was named", "name one, as timelines:3")
    names: list[str] = []
    servers: dict[ServerAddress, None] = {}
    databases: set[int] = set()
    like: Entry | None = None
    where = ""
    for shard in dict.fromkeys(shards):
        server, _, _ = master_of(components, shard)
        name, _, number = shard.rpartition(":")
        at = int(number) if name in components and number.isdigit() else None
        component = components.get(shard if at is None else name)
        if component is None:
            raise InvalidArgumentError(f"{shard} is no shard", "see: shardkit status")
        if at is None and component.shards:
            at = 0
        entry = component.entry_of(Shard(component.name, at))
        names.append(str(Shard(component.name, at)))
        database = database_of(entry.fields)
        if database is None:
            raise InvalidArgumentError(
                f"{entry_key(component.name, at)} has its database from the environment",
                "write db: into it",
            )
        if not any(same(server, each) for each in servers):
            servers[server] = None
        databases.add(database)
        if like is None:
            like, where = entry, entry_key(component.name, at)
    if len(servers) > 1:
        raise InvalidArgumentError(
            f"the shards are on {len(servers)} servers ({', '.join(map(str, sorted(servers)))})",
            "move those of one server at a time",
        )
    assert like is not None
    return names, next(iter(servers)), like, where, sorted(databases)


def _is_keyspace(name: str, each: object) -> bool:
    return name.startswith("db") and name[2:].isdigit() and isinstance(each, dict)


def _foreign(server: ServerAddress, like: Entry, where: str, number: int) -> bool:
    """Whether a database has keys that are not shardkit's own."""
    with database_client(server, like, where, number) as client:
        return bool(strays(client, 1))
