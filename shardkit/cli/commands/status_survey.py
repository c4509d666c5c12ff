"""Queries the servers of components for `shardkit status`.

Every server is queried once, however many shards live on it::

    unique:0  127.0.0.1:7101/1 ┐
    unique:4  127.0.0.1:7101/2 ┼─► one connection: PINGs, INFO ─► ServerHealth ─► ShardStatus
    hits      127.0.0.1:7101/0 ┘
    catalogue (a cluster) ─► CLUSTER NODES of any node ─► all nodes, in parallel
    cart (by Sentinel)    ─► who is master? ─► that server
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import redis
from redis.exceptions import AuthenticationError, BusyLoadingError, NoPermissionError, ResponseError

from shardkit.cli.text import reason, server_of
from shardkit.config.component import Component, entry_key
from shardkit.config.entry import Entry
from shardkit.config.stored import WITNESS_KEY
from shardkit.errors import ConfigError
from shardkit.network.server_queries import TIMEOUT, ServerErrors, client_of, query_all
from shardkit.operations.commands import Shard
from shardkit.operations.server_errors import meaning
from shardkit.routing.placement import SLOTS
from shardkit.structures.base.parameters import evicted

OK = "ok"
LOADING = "loading"  # reading its data at the start
STALE = "no link"  # a replica without a link to its master
REFUSED = "refused"  # it denies access to this user
UNREACHABLE = "unreachable"
UNUSABLE = "unusable"  # the entry cannot be used on this machine
SLOW = "slow"  # it answers, but stands still for longer than it should
EVICTS = "evicts"  # its maxmemory-policy removes keys as memory runs out
FULL = "full"  # it uses more memory than its maxmemory
NO_DATABASE = "no database"  # the server has no database of the entry's number
WRONG_ROLE = "wrong role"  # an entry names a replica, or one under `replicas` a master
SHARED = "shared"  # another shard of the component has the same database

PROBLEMS = {
    EVICTS: "evicts keys",
    FULL: "is above its maxmemory",
    NO_DATABASE: "lacks a database",
    SHARED: "holds two shards in one database",
    SLOW: "stands still at times",
    WRONG_ROLE: "has not the role that its entry says",
    LOADING: "is loading its data",
    REFUSED: "refuses access",
    STALE: "has lost its master",
    UNREACHABLE: "cannot be reached",
    UNUSABLE: "was not queried",
}

_PINGS = 4
_PING_INTERVAL = 0.05  # seconds, so that a server that stands still again and again is noticed
_SLOW_PING = 0.25  # seconds
_ABSENT = {"noaddr", "handshake"}

Fields: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """The health of one server.

    Attributes:
        state: ``ok``, or what is wrong in one word.
        reason: what is wrong in a few words.
        server: its address, ``127.0.0.1:7101``; for Sentinels that of the master that they name.
        software: ``redis`` or ``valkey``.
        version: its version.
        role: ``master`` or ``replica``.
        memory: the bytes that it uses.
        connections: the number of connected clients, including this one.
        ops: the current number of commands per second.
        latency: the slowest of several PINGs, in milliseconds.
        keys: the number of keys of each database.
        run_id: identifies the server's process; empty if unknown.
        missing: the databases that were looked for and do not exist.
        witnessed: by database, the epochs that it has witnessed of components.
    """

    state: str = OK
    reason: str = ""
    server: str = ""
    software: str = ""
    version: str = ""
    role: str = ""
    memory: int | None = None
    connections: int | None = None
    ops: int | None = None
    latency: float | None = None
    keys: Mapping[int, int] = field(default_factory=dict, hash=False)
    run_id: str = ""
    missing: frozenset[int] = frozenset()
    witnessed: Mapping[int, Mapping[str, int]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """One shard on one server.

    Attributes:
        shard: the shard; None for the config server.
        node: which of its servers it is: ``replica 0``, or a cluster's node; empty for the server
            that its entry names.
        address: the address in its entry: ``127.0.0.1:7101/1``.
        database: the number of its database.
        health: the server's health.
    """

    shard: Shard | None
    node: str
    address: str
    database: int
    health: ServerHealth

    @property
    def keys(self) -> int | None:
        """The number of keys in its database; None if unknown."""
        if self.health.version:
            return self.health.keys.get(self.database, 0)
        return None


@dataclass(frozen=True, slots=True)
class _Target:
    """One entry to query."""

    shard: Shard | None
    node: str
    where: str
    entry: Entry


def survey(
    components: Iterable[Component], config_server: Entry | None = None, timeout: float = TIMEOUT
) -> list[ShardStatus]:
    """Query all servers of components in parallel.

    Args:
        components: the components.
        config_server: the config server, to query it too.
        timeout: seconds to wait for one answer of a server.

    Returns:
        The status of each shard, each replica in an entry, and each node of a cluster.
    """
    rows: list[ShardStatus | _Target] = []
    servers: dict[str, tuple[Fields, set[int]]] = {}
    query_keys: dict[int, str] = {}
    databases: dict[int, int] = {}
    for target in _targets(components, config_server):
        try:
            fields = target.entry.resolved(target.where)
        except ConfigError as error:
            health = ServerHealth(UNUSABLE, str(error), server_of(target.entry.address))
            rows.append(ShardStatus(target.shard, target.node, target.entry.address, 0, health))
            continue
        databases[len(rows)] = fields.pop("db", 0)
        fields.pop("replicas", None)
        key = json.dumps(fields, sort_keys=True)
        servers.setdefault(key, (fields, set()))[1].add(databases[len(rows)])
        query_keys[len(rows)] = key
        rows.append(target)
    queries: dict[str, Callable[[], list[tuple[str, ServerHealth]]]] = {
        key: lambda fields=fields, wanted=wanted: _query(fields, timeout, wanted)  # type: ignore[misc]
        for key, (fields, wanted) in servers.items()
    }
    answers = query_all(queries, timeout)
    found: list[ShardStatus] = []
    for n, row in enumerate(rows):
        if isinstance(row, ShardStatus):
            found.append(row)
            continue
        answer = answers[query_keys[n]]
        nodes = [("", _failed(answer))] if isinstance(answer, Exception) else answer
        for node, health in nodes:
            at = replace(health, server=health.server or server_of(row.entry.address))
            name = row.node or node
            status = ShardStatus(row.shard, name, row.entry.address, databases[n], at)
            found.append(_judged(status, row))
    return list(_shared(found))


def _judged(status: ShardStatus, target: _Target) -> ShardStatus:
    """Return a status with what is wrong about this entry, rather than its server."""
    health = status.health
    state, reason_why = health.state, health.reason
    if state == OK and status.database in health.missing:
        state, reason_why = NO_DATABASE, f"there is no database {status.database}"
    elif state in (OK, EVICTS, FULL, SLOW) and not target.entry.is_cluster:
        if not status.node and health.role == "replica":
            state, reason_why = WRONG_ROLE, "it is a replica, which refuses writes"
        elif status.node and health.role == "master":
            state, reason_why = WRONG_ROLE, "it is a master, with data of its own"
    return replace(status, health=replace(health, state=state, reason=reason_why))


def _shared(rows: Iterable[ShardStatus]) -> Iterator[ShardStatus]:
    """Mark the shards whose database another shard of the component has, by whatever address."""
    first: dict[tuple[str, str, int], Shard] = {}
    for row in rows:
        health = row.health
        if row.shard is not None and row.shard.number is not None and not row.node:
            other = first.setdefault((row.shard.component, health.run_id, row.database), row.shard)
            if other != row.shard and health.run_id and health.state in (OK, EVICTS):
                why = f"its database is that of {other}"
                yield replace(row, health=replace(health, state=SHARED, reason=why))
                continue
        yield row


def _targets(components: Iterable[Component], config_server: Entry | None) -> Iterable[_Target]:
    if config_server is not None:
        yield _Target(None, "", "config server", config_server)
    for component in components:
        for shard, entry in component.entries():
            where = entry_key(*shard)
            yield _Target(shard, "", where, entry)
            for n, replica in enumerate(entry.replicas):
                yield _Target(shard, f"replica {n}", f"{where} replicas[{n}]", replica)


# ---- one server


def _query(fields: Fields, timeout: float, databases: Set[int]) -> list[tuple[str, ServerHealth]]:
    if fields.get("cluster"):
        return _query_cluster({n: v for n, v in fields.items() if n != "cluster"}, timeout)
    with client_of(fields, timeout) as client:
        server = ""
        if "sentinel" in fields:
            manager = client.connection_pool.sentinel_manager
            host, port = manager.discover_master(fields["sentinel"]["service"])
            server = f"{host}:{port}"
        return [("", replace(_health(client, databases), server=server))]


def _query_cluster(fields: Fields, timeout: float) -> list[tuple[str, ServerHealth]]:
    """Query one node for the others, and then each of them."""
    with client_of(fields, timeout) as client:
        nodes: Mapping[str, Any] = client.cluster("nodes")
    # A node without an address has left; one in a handshake has not joined yet.
    nodes = {a: n for a, n in nodes.items() if not _ABSENT & set(n["flags"].split(","))}
    members = sorted(map(_NodeInfo.read, nodes.items()), key=lambda member: member.order)
    queries: dict[_NodeInfo, Callable[[], ServerHealth]] = {}
    for member in members:
        target = {**fields, "port": member.port}
        if not member.is_self:
            target["host"] = member.host
        queries[member] = lambda target=target: _query(target, timeout, frozenset())[0][1]  # type: ignore[misc]
    healths = []
    for member, answer in query_all(queries, timeout).items():
        health = _failed(answer) if isinstance(answer, Exception) else answer
        host = fields.get("host", "localhost") if member.is_self else member.host
        healths.append((member.name, replace(health, server=f"{host}:{member.port}")))
    return healths


class _NodeInfo(NamedTuple):
    """A node of a cluster in the reply to CLUSTER NODES."""

    order: tuple[int, str]  # masters by their first slot, then the others
    name: str
    host: str
    port: int
    is_self: bool  # the node that replied: its address is the one that we used

    @classmethod
    def read(cls, item: tuple[str, Mapping[str, Any]]) -> _NodeInfo:
        address, node = item
        host, _, port = address.rpartition(":")
        flags = node["flags"].split(",")
        ranges = [(int(each[0]), int(each[-1])) for each in node["slots"]]
        slots = ",".join(f"{a}-{b}" if a < b else str(a) for a, b in ranges)
        name = "replica" if "slave" in flags else f"slots {slots or 'none'}"
        order = (ranges[0][0] if ranges else SLOTS, address)
        return cls(order, name, host, int(port), not host or "myself" in flags)


def _health(client: redis.Redis, databases: Set[int]) -> ServerHealth:
    latency = 0.0
    for n in range(_PINGS):
        time.sleep(_PING_INTERVAL if n else 0)
        latency = max(latency, _timed(client.ping))
    missing = frozenset(n for n in sorted(databases) if not _has_database(client, n))
    witnessed = {n: _witnessed(client, n) for n in sorted(databases - missing)}
    try:
        info: Mapping[str, Any] = client.info()
    except NoPermissionError as error:
        return ServerHealth(REFUSED, reason(error), latency=1000 * latency, missing=missing)
    role = "replica" if info.get("role") == "slave" else str(info.get("role", ""))
    health = ServerHealth(
        software="valkey" if "valkey_version" in info else "redis",
        version=str(info.get("valkey_version") or info.get("redis_version", "?")),
        role=role,
        memory=info.get("used_memory"),
        connections=info.get("connected_clients"),
        ops=info.get("instantaneous_ops_per_sec"),
        latency=1000 * latency,
        run_id=str(info.get("run_id", "")),
        missing=missing,
        witnessed=witnessed,
        keys={
            int(name[2:]): space["keys"]
            for name, space in info.items()
            if name.startswith("db") and name[2:].isdigit()
        },
    )
    if info.get("loading"):
        return replace(health, state=LOADING)
    if info.get("master_link_status", "up") != "up":
        return replace(health, state=STALE)
    if 0 < info.get("maxmemory", 0) <= info["used_memory"]:
        policy = info.get("maxmemory_policy", "noeviction")
        does = "it refuses writes" if policy == "noeviction" else f"it evicts keys ({policy})"
        return replace(health, state=FULL, reason=does)
    if latency > _SLOW_PING:
        return replace(health, state=SLOW, reason=f"one PING took {latency:.1f} s")
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        return replace(health, state=EVICTS, reason=f"{policy}: {evicted(policy)}")
    return health


def _has_database(client: redis.Redis, number: int) -> bool:
    try:
        client.select(number)
    except NoPermissionError:
        return True  # nobody knows; the entry's own clients would say so
    except ResponseError as error:
        known = meaning(error)
        if known is None or "no database" not in known.text:
            raise
        return False
    return True


def _witnessed(client: redis.Redis, number: int) -> dict[str, int]:
    try:
        client.select(number)
        found: Any = client.zrange(WITNESS_KEY, 0, -1, withscores=True)
    except ResponseError:  # it may not be read, or is none
        return {}
    return {name.decode(errors="replace"): int(score) for name, score in found}


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _failed(error: Exception) -> ServerHealth:
    if isinstance(error, BusyLoadingError):
        return ServerHealth(LOADING)
    if isinstance(error, AuthenticationError | ResponseError):
        return ServerHealth(REFUSED, reason(error))
    if isinstance(error, ServerErrors):
        return ServerHealth(UNREACHABLE, reason(error))
    raise error
