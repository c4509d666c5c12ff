"""Plans of moves: their steps, and what prevents them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from redis.exceptions import RedisError

from shardkit.admin.growth.databases import database_client, strays
from shardkit.admin.growth.failover import master_of, replicas_of
from shardkit.admin.growth.journal import KEYS, REPLICATION
from shardkit.admin.growth.known_servers import KnownServers
from shardkit.admin.growth.relocation import Same, ServerAddress, entries_on
from shardkit.admin.growth.servers import (
    config_databases,
    connected_to,
    mismatched_tls,
    too_small,
    unfit,
)
from shardkit.admin.growth.shard_copy import libraries
from shardkit.config.component import Component, entry_key
from shardkit.config.entry import Entry
from shardkit.config.fields import database_of
from shardkit.errors import InvalidArgumentError, counted
from shardkit.network.connections.databases import FENCE_KEY
from shardkit.network.survey import missing_rights
from shardkit.operations.commands import Shard
from shardkit.operations.server_errors import meaning
from shardkit.structures.encodings.limits import FORMS, LIMITS_PATTERN, Limits

# Commands without which a move fails, by server.
_USER = "masteruser"
_REPLICATING = "PSYNC ? -1 FAILOVER"  # fails on every server, as no history has that name
_COMPARING = (
    *("INFO", "SELECT 0", "SCAN 0", "TYPE k", "PTTL k", "EXISTS k", "GETRANGE k 0 1"),
    *("LRANGE k 0 1", "HSCAN k 0", "HPEXPIRETIME k FIELDS 1 f", "SSCAN k 0", "ZSCAN k 0"),
    *("XRANGE k - +", "XINFO STREAM k", "XINFO GROUPS k", "XPENDING k g"),
)
_FENCING = (f"GET {FENCE_KEY}", f"SET {FENCE_KEY} v", f"DEL {FENCE_KEY}", "UNLINK k", "DBSIZE")
_LEAVING = {
    REPLICATION: ("FAILOVER", "REPLCONF GETACK *", _REPLICATING),
    KEYS: (
        *_FENCING,
        *(f"PERSIST {FENCE_KEY}", "DUMP k", "OBJECT IDLETIME k", "TIME"),
        *("CONFIG SET x y", "CLIENT LIST", "CLIENT UNBLOCK 1", "CLIENT KILL ID 1", "FUNCTION LIST"),
        *("OBJECT HELP", "PSUBSCRIBE __keyspace@0__:*"),
    ),
}
_ENTERING = {
    REPLICATION: ("REPLICAOF NO ONE", "REPLCONF GETACK *", _REPLICATING),
    KEYS: (*_FENCING, "RESTORE k 0 v", "FLUSHDB", "FUNCTION LIST", "FUNCTION LOAD x"),
}
_ABORTING = {REPLICATION: ("FLUSHALL",), KEYS: ()}
_NOTING = (
    *("SCAN 0", "MGET config:x", "MSET config:x v", "DEL config:x", "LPUSH config:x v", "TIME"),
    *("LTRIM config:x 0 1", "LRANGE config:x 0 1", "GET config:x", "SET config:x v"),
    *("EVAL return 1 config:x", "PEXPIRE config:x 1", "HSET config:x f v", "HGET config:x f"),
    "HDEL config:x f",
)
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
        notes: what changes, or might not work, without preventing the move.
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
    notes: tuple[str, ...] = ()

    @property
    def copying(self) -> str:
        """``keys`` for shards, ``replication`` for a whole server."""
        return KEYS if self.databases else REPLICATION


def plan_of(
    config: Any,
    components: Components,
    what: str | Sequence[str],
    target: ServerAddress,
    hold: float,
) -> MovePlan:
    """Plan the move of a server, or of a list of shards."""
    if isinstance(what, str):
        plan = _plan_server(components, ServerAddress.parse(what), target, hold)
    else:
        plan = _plan_shards(components, what, target, hold)
    noting = _forbidden("the config server", config, _NOTING)
    return replace(plan, problems=(*plan.problems, *noting))


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
        for server, client in ((source, master), (target, replica)):
            problems += mismatched_tls(client, server, like, where)
        notes = _compared(REPLICATION, (source, master, info), (target, replica, there), problems)
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
        f"push {counted(len(shards), 'entry', 'entries')} naming {target}",
        f"compare both servers; {source} stays as a replica that no entry names",
    )
    keys = {str(number): count for number, count in _counts(info).items()}
    memory = int(info.get("used_memory", 0))
    seconds = memory / _BYTES_A_SECOND[REPLICATION]
    return MovePlan(
        source,
        target,
        shards,
        keys,
        memory,
        seconds,
        steps,
        tuple(problems),
        notes=tuple(notes),
    )


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
            others = {f"db{number}" for number in counts} - {f"db{number}" for number in databases}
            moving = {name: said for name, said in info.items() if name not in others}
            problems += too_small(moving, there, old, new, target, needed)
        notes = _compared(KEYS, (source, old, info), (target, new, there), problems)
        functions = _libraries(old, new, target, problems) if info and there else ()
        problems += [
            f"{server} is a replica"
            for server, said in ((source, info), (target, there))
            if said.get("role", "master") != "master"
        ]
    for number in databases:
        with suppress(RedisError, OSError):
            if number in _counts(there):
                with database_client(target, like, where, number) as client:
                    for key in strays(client, 1):
                        problems.append(
                            f"{target} has keys in database {number}, such as {key}: delete them "
                            "if nothing needs them"
                        )
    problems += config_databases(source, like, where, databases)
    listed = ", ".join(str(number) for number in databases)
    replicas = ", ".join(map(str, replicas_of(components.values(), source, same)))
    steps = (
        f"{source}: CONFIG SET notify-keyspace-events, and PSUBSCRIBE to databases {listed}",
        *(f"{target}: FUNCTION LOAD {name}" for name in functions),
        f"copy every key with DUMP and RESTORE to {target}, and what changes; compare both",
        f"{source}: SET {FENCE_KEY} in databases {listed}, and push that they are held; writers "
        f"wait for at most {hold:g} s, until no client that may write is connected and the rest is "
        "copied; readers do not wait",
        f"{source}: PERSIST {FENCE_KEY}; push {counted(len(names), 'entry', 'entries')} naming "
        + str(target)
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
        tuple(notes),
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
        client.ping()  # refused if the disk is full, as writes and the copy to a replica are
        info: dict[str, Any] = client.info()
    except (RedisError, OSError) as error:
        known = meaning(error)
        problems.append(f"{server} cannot be used ({known.text if known else error})")
        return {}
    return info


Side = tuple[ServerAddress, Any, Mapping[str, Any]]
"""A server, a client of it, and what INFO reports; empty if it does not answer."""


def _compared(copying: str, source: Side, target: Side, problems: list[str]) -> list[str]:
    """Add missing rights on both servers to the problems; return notes."""
    notes: list[str] = []
    for (server, client, info), commands in (
        (source, _LEAVING[copying]),
        (target, _ENTERING[copying]),
    ):
        if info:
            problems += _forbidden(str(server), client, {*_COMPARING, *commands})
    _, old, info = source
    server, new, there = target
    if not (info and there):
        return notes
    notes += _forbidden(f"an abort will fail: {server}", new, _ABORTING[copying])
    with suppress(RedisError, OSError):  # CONFIG is not permitted
        before, after = (Limits(client.config_get(LIMITS_PATTERN)) for client in (old, new))
        for form in FORMS.values():
            for limit_of in (Limits.entries, Limits.longest):
                mine, its = limit_of(before, form), limit_of(after, form)
                if mine and its and its.value < mine.value:
                    notes.append(
                        f"{server}: {its.setting} is {its.value}, and {mine.value} at "
                        f"{source[0]}: each larger {form.type} takes more memory there, until it "
                        "is written again under a higher limit"
                    )
    return notes


def _forbidden(server: str, client: Any, commands: Collection[str]) -> list[str]:
    """Return a problem if the user must not run some commands; none if that is unknown."""
    with suppress(RedisError, OSError):
        own = client.get_connection_kwargs().get("password")
        if _REPLICATING in commands and not own and client.config_get(_USER).get(_USER):
            commands = {*commands} - {_REPLICATING}  # replicas log in as another user
        missing = missing_rights(client, sorted(commands)) if commands else ()
        if missing:
            listed = ", ".join(sorted(missing))
            return [f"{server} does not let the user run {listed}: see docs/rights.md"]
    return []


def _libraries(old: Any, new: Any, target: ServerAddress, problems: list[str]) -> list[str]:
    """Return which libraries of functions the target lacks."""
    try:
        mine, its = libraries(old), libraries(new)
    except RedisError:  # a missing right is among the problems
        return []
    problems += [
        f"{target} has another library of functions named {name}: FUNCTION DELETE it, if nothing "
        "uses it"
        for name in sorted(mine.keys() & its.keys())
        if mine[name] != its[name]
    ]
    return sorted(mine.keys() - its.keys())


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
