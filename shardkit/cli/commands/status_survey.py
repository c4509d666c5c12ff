"""What `shardkit status` asks: which servers there are, and how each of them is.

Every server is asked once, however many shards live on it::

    unique:0  127.0.0.1:7101/1 ┐
    unique:4  127.0.0.1:7101/2 ┼─► one connection: PINGs, INFO ─► Health ─► one Row a shard
    hits      127.0.0.1:7101/0 ┘
    catalogue (a cluster) ─► CLUSTER NODES of any node ─► each node, asked at the same time
    cart (by Sentinel)    ─► who is master? ─► that server
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import redis
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ResponseError,
)

from shardkit.cli.server_queries import TIMEOUT, ServerErrors, ask_all, client_of
from shardkit.cli.text import reason, server_of
from shardkit.config.component import Component, entry_key
from shardkit.config.entry import Entry
from shardkit.errors import ConfigError
from shardkit.operations.commands import Shard
from shardkit.routing.placement import SLOTS

OK = "ok"
LOADING = "loading"  # it reads its data, and answers soon
STALE = "no link"  # a replica that has lost its master
REFUSED = "refused"  # it answers, but not to this user
UNREACHABLE = "unreachable"
UNUSABLE = "unusable"  # the entry is, on this machine

_PINGS = 3
_ABSENT = {"noaddr", "handshake"}

Fields: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """How one server is.

    Attributes:
        state: ``ok``, or what is wrong in a word.
        reason: what is wrong in a few words.
        server: where it is, ``127.0.0.1:7101``: also of a master that Sentinels name.
        software: ``redis`` or ``valkey``.
        version: its version.
        role: ``master`` or ``replica``.
        memory: bytes that it uses.
        connections: how many clients are connected, this one included.
        ops: commands a second, lately.
        latency: milliseconds for a PING, the best of some.
        keys: how many keys each of its databases holds.
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


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """One shard on one server, and how that is.

    Attributes:
        shard: the shard; None for the config server.
        node: which of several servers of it, ``replica 0`` or a cluster's node; empty for the
            one that its entry names.
        address: what its entry says: ``127.0.0.1:7101/1``.
        database: the number of its database.
        health: how the server is.
    """

    shard: Shard | None
    node: str
    address: str
    database: int
    health: ServerHealth

    @property
    def keys(self) -> int | None:
        """How many keys its database holds; None if nobody knows."""
        if self.health.version:
            return self.health.keys.get(self.database, 0)
        return None


@dataclass(frozen=True, slots=True)
class _Target:
    """One entry to ask."""

    shard: Shard | None
    node: str
    where: str
    entry: Entry


def survey(
    components: Iterable[Component], config_server: Entry | None = None, timeout: float = TIMEOUT
) -> list[ShardStatus]:
    """Ask all servers of components, all at the same time.

    Args:
        components: the components.
        config_server: the config server, if it is to be asked as well.
        timeout: seconds that a server has for one answer.

    Returns:
        A row for each shard, each replica that an entry names, and each node of a cluster.
    """
    rows: list[ShardStatus | _Target] = []
    questions: dict[str, Callable[[], list[tuple[str, ServerHealth]]]] = {}
    asked: dict[int, str] = {}
    databases: dict[int, int] = {}
    for place in _places(components, config_server):
        try:
            fields = place.entry.resolved(place.where)
        except ConfigError as error:
            health = ServerHealth(UNUSABLE, str(error), server_of(place.entry.address))
            rows.append(ShardStatus(place.shard, place.node, place.entry.address, 0, health))
            continue
        databases[len(rows)] = fields.pop("db", 0)
        fields.pop("replicas", None)
        key = json.dumps(fields, sort_keys=True)
        questions.setdefault(key, lambda fields=fields: _ask(fields, timeout))  # type: ignore[misc]
        asked[len(rows)] = key
        rows.append(place)
    answers = ask_all(questions, timeout)
    found: list[ShardStatus] = []
    for n, row in enumerate(rows):
        if isinstance(row, ShardStatus):
            found.append(row)
            continue
        answer = answers[asked[n]]
        nodes = [("", _ill(answer))] if isinstance(answer, Exception) else answer
        for node, health in nodes:
            at = replace(health, server=health.server or server_of(row.entry.address))
            name = row.node or node
            found.append(ShardStatus(row.shard, name, row.entry.address, databases[n], at))
    return found


def _places(components: Iterable[Component], config_server: Entry | None) -> Iterable[_Target]:
    if config_server is not None:
        yield _Target(None, "", "config server", config_server)
    for component in components:
        for shard, entry in component.entries():
            where = entry_key(*shard)
            yield _Target(shard, "", where, entry)
            for n, replica in enumerate(entry.replicas):
                yield _Target(shard, f"replica {n}", f"{where} replicas[{n}]", replica)


# ---- one server


def _ask(fields: Fields, timeout: float) -> list[tuple[str, ServerHealth]]:
    if fields.get("cluster"):
        return _ask_cluster({n: v for n, v in fields.items() if n != "cluster"}, timeout)
    with client_of(fields, timeout) as client:
        server = ""
        if "sentinel" in fields:
            manager = client.connection_pool.sentinel_manager
            host, port = manager.discover_master(fields["sentinel"]["service"])
            server = f"{host}:{port}"
        return [("", replace(_health(client), server=server))]


def _ask_cluster(fields: Fields, timeout: float) -> list[tuple[str, ServerHealth]]:
    """Ask one node for the others, and then each of them."""
    with client_of(fields, timeout) as client:
        nodes: Mapping[str, Any] = client.cluster("nodes")
    # A node without an address has left, one in a handshake has not come yet.
    nodes = {a: n for a, n in nodes.items() if not _ABSENT & set(n["flags"].split(","))}
    members = sorted(map(_NodeInfo.read, nodes.items()), key=lambda member: member.order)
    questions: dict[_NodeInfo, Callable[[], ServerHealth]] = {}
    for member in members:
        place = {**fields, "port": member.port}
        if not member.is_asked:
            place["host"] = member.host
        questions[member] = lambda place=place: _ask(place, timeout)[0][1]  # type: ignore[misc]
    healths = []
    for member, answer in ask_all(questions, timeout).items():
        health = _ill(answer) if isinstance(answer, Exception) else answer
        host = fields.get("host", "localhost") if member.is_asked else member.host
        healths.append((member.name, replace(health, server=f"{host}:{member.port}")))
    return healths


class _NodeInfo(NamedTuple):
    """A node of a cluster, as CLUSTER NODES tells."""

    order: tuple[int, str]  # masters by their first slot, then the others
    name: str
    host: str
    port: int
    is_asked: bool  # the one that tells: it is where we found it, whatever it calls itself

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


def _health(client: redis.Redis) -> ServerHealth:
    latency = min(_timed(client.ping) for _ in range(_PINGS))
    info: Mapping[str, Any] = client.info()
    role = "replica" if info.get("role") == "slave" else str(info.get("role", ""))
    health = ServerHealth(
        software="valkey" if "valkey_version" in info else "redis",
        version=str(info.get("valkey_version") or info.get("redis_version", "?")),
        role=role,
        memory=info.get("used_memory"),
        connections=info.get("connected_clients"),
        ops=info.get("instantaneous_ops_per_sec"),
        latency=1000 * latency,
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
    return health


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _ill(error: Exception) -> ServerHealth:
    if isinstance(error, BusyLoadingError):
        return ServerHealth(LOADING)
    if isinstance(error, AuthenticationError | ResponseError):
        return ServerHealth(REFUSED, reason(error))
    if isinstance(error, ServerErrors):
        return ServerHealth(UNREACHABLE, reason(error))
    raise error
