"""One verdict on what could hurt: servers, the shards on them, and the rights to use them.

::

    each server once    PINGs, INFO, TIME, the rights   ─► memory, clients, replicas, persistence …
    each database       SELECT, 100 keys of SCAN        ─► is it there, are these this shard's keys?

Servers are asked in parallel. Nothing is changed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import redis
from redis.exceptions import NoPermissionError, ResponseError

from shardkit.admin.doctor.check import check_all
from shardkit.admin.doctor.scan import scan
from shardkit.admin.doctor.targets import default_user_lacks_rights
from shardkit.admin.rights import missing_rights
from shardkit.config.component import Component, entry_key
from shardkit.config.entry import Entry
from shardkit.errors import ConfigError
from shardkit.kit.kit import ShardKit
from shardkit.network.server_queries import TIMEOUT, client_of, query_all
from shardkit.network.topology.witness import read_witness
from shardkit.operations.commands import Shard
from shardkit.operations.server_errors import Meaning, meaning
from shardkit.routing.keys import hash_tag

SAMPLED_KEYS = 100
_CONFIG_KINDS = "redis: shards: epoch witness history pushed removed: rotation:"
CONFIG_KEYS = tuple(f"config:{kind}".encode() for kind in _CONFIG_KINDS.split())
_PINGS = 5
_PING_INTERVAL = 0.05  # seconds
_SLOW_PING = 0.25  # seconds
_PATIENCE = 0.8  # seconds that all PINGs may take before a server is asked no more
_NEARLY = 0.9  # the share of a limit from which on it is worth saying
_MOST_LAG = 10  # seconds that a replica may be behind
_MOST_SKEW = 1.0  # seconds that a server's clock may differ from this machine's
MISPLACED_SHARE = 0.1  # the share of sampled keys that may belong elsewhere


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """Something that hurts, or could.

    Attributes:
        where: the server, or the shard and its server.
        problem: what is wrong.
        remedy: what to do about it.
        warning: whether it does not hurt yet.
    """

    where: str
    problem: str
    remedy: str
    warning: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


@dataclass
class CheckReport:
    """What a check found, and what it looked at.

    Attributes:
        findings: what hurts first, then what could.
        servers: how many servers answered.
        shards: how many databases were looked at.
        keys: how many keys were sampled.
    """

    findings: list[CheckFinding] = field(default_factory=list)
    servers: int = 0
    shards: int = 0
    keys: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing hurts; there may be warnings."""
        return all(finding.warning for finding in self.findings)


@dataclass(frozen=True)
class _Place:
    """One database of a server that an entry names."""

    component: Component
    shard: Shard
    entry: Entry
    is_replica: bool
    number: int

    @property
    def name(self) -> str:
        return f"{self.shard} ({self.entry.address})"


@dataclass
class _Facts:
    """What one server said; None for what it refuses to say."""

    slowest_ping: float
    skew: float
    info: Mapping[str, Any] | None
    missing_rights: list[str]
    keys: dict[int, list[bytes] | None]  # by database; None for one that is not there
    witnessed: int  # the latest push that its databases have witnessed; 0 if unknown
    forgets: bool  # whether it loses what scripts and MULTI wrote when it restarts


def check(
    components: Iterable[Component], timeout: float = TIMEOUT, *, epoch: int | None = None
) -> CheckReport:
    """Look at the servers of components for what hurts, or could.

    Args:
        components: the components.
        timeout: seconds for one answer of a server.
        epoch: the config server's `config:epoch`, to find out whether a server has witnessed a
            later push; None if there is no config server.

    Returns:
        The findings, each with its remedy. Cost: about ten exchanges with each server and two for
        each of its databases, all servers in parallel; at most about four times ``timeout``.
    """
    report = CheckReport()
    places: dict[str, list[_Place]] = {}
    fields_of: dict[str, dict[str, Any]] = {}
    for place in _places(components):
        try:
            fields = place.entry.resolved(entry_key(*place.shard))
        except ConfigError as error:
            report.findings.append(CheckFinding(place.name, error.message, error.remedy))
            continue
        fields.pop("db", None)
        fields.pop("replicas", None)
        key = json.dumps(fields, sort_keys=True)
        fields_of[key] = fields
        places.setdefault(key, []).append(place)

    def look(key: str) -> _Facts:
        with client_of(fields_of[key], timeout) as client:
            names: dict[int, set[str]] = {}
            for place in places[key]:
                names.setdefault(place.number, set()).add(place.component.name)
            return _look(client, names, any(not place.is_replica for place in places[key]))

    answers = query_all(
        {key: lambda key=key: look(key) for key in places},  # type: ignore[misc]
        timeout,
    )
    run_ids: dict[tuple[str, int], _Place] = {}
    for key, answer in answers.items():
        if isinstance(answer, Exception):
            report.findings.append(_unusable(places[key], answer))
            continue
        report.servers += 1
        report.shards += len(places[key])
        report.keys += sum(len(keys or ()) for keys in answer.keys.values())
        report.findings += _of_server(places[key], answer)
        if epoch is not None and answer.witnessed > epoch:
            report.findings.append(_went_back(places[key], answer.witnessed, epoch))
        for place in places[key]:
            report.findings += _of_database(place, answer, run_ids)
    report.findings.sort(key=lambda finding: finding.warning)
    return report


def _places(components: Iterable[Component]) -> Iterator[_Place]:
    for component in components:
        for shard, entry in component.entries():
            number = entry.fields.get("db", 0)
            with suppress(ConfigError):  # named where the entry is used
                number = entry.resolved("entry").get("db", 0)
            yield _Place(component, shard, entry, False, number)
            for replica in entry.replicas:
                yield _Place(component, shard, replica, True, number)


# ---- one server


def _look(client: Any, names: Mapping[int, Collection[str]], is_written: bool) -> _Facts:
    if isinstance(client, redis.RedisCluster):
        node = client.get_primaries()[0]  # type: ignore[no-untyped-call]
        return _look(client.get_redis_connection(node), {}, is_written)
    slowest = waited = 0.0
    for n in range(_PINGS):
        time.sleep(_PING_INTERVAL if n else 0)
        slowest = max(slowest, took := _timed(client.ping))
        waited += took
    if waited > _PATIENCE:  # whatever else is wrong, there is no time to ask
        return _Facts(slowest, 0.0, {}, [], {}, 0, False)
    started = time.time()
    try:
        seconds, microseconds = client.time()
        skew = seconds + microseconds / 1e6 - (started + time.time()) / 2
    except NoPermissionError:
        skew = 0.0
    try:
        info: Mapping[str, Any] | None = client.info()
    except NoPermissionError:
        info = None
    is_master = info is None or info.get("role") != "slave"
    missing = missing_rights(client) if is_written and is_master else []
    keys: dict[int, list[bytes] | None] = {}
    witnessed = 0
    for number in sorted(names):
        keys[number] = _keys(client, number)
        if keys[number] is not None:
            with suppress(ResponseError):  # a right that is missing
                witnessed = max(witnessed, read_witness(client, names[number]))
    persists = info is not None and info.get("aof_enabled") and "valkey_version" not in info
    forgets = bool(persists) and default_user_lacks_rights(client)
    return _Facts(slowest, skew, info, missing, keys, witnessed, forgets)


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _keys(client: Any, number: int) -> list[bytes] | None:
    """Return some keys of a database; None if there is no such database."""
    try:
        client.select(number)
    except NoPermissionError:
        return []
    except ResponseError as error:
        known = meaning(error)
        if known is None or "no database" not in known.text:
            raise
        return None
    try:
        _, keys = client.scan(0, count=SAMPLED_KEYS)
    except NoPermissionError:
        return []
    return [key for key in keys if not key.startswith(CONFIG_KEYS)]


def _unusable(places: list[_Place], error: Exception) -> CheckFinding:
    known = meaning(error)
    if known is None and isinstance(error, redis.TimeoutError):
        known = Meaning(
            "does not answer in time",
            "look whether it is suspended, swaps or runs a long script (its log, its host's load), "
            "or whether the network drops packets",
        )
    text = known.text if known else f"cannot be reached: {error}"
    remedy = known.remedy if known else "start it, or correct the entries"
    return CheckFinding(_names(places), text, remedy)


def _names(places: list[_Place]) -> str:
    """Return a server with some of its shards: ``a:7101 (unique:0, unique:4 and 6 more)``."""
    shards = list(dict.fromkeys(str(place.shard) for place in places))
    shown = ", ".join(shards[:2]) + (f" and {len(shards) - 2} more" if len(shards) > 2 else "")
    address = places[0].entry.address
    server = address if places[0].entry.is_cluster else address.rpartition("/")[0] or address
    return f"{server} ({shown})"


def _of_server(places: list[_Place], facts: _Facts) -> Iterator[CheckFinding]:
    where = _names(places)

    def found(problem: str, remedy: str, warning: bool = False) -> CheckFinding:
        return CheckFinding(where, problem, remedy, warning)

    if facts.slowest_ping > _SLOW_PING:
        yield found(
            f"stands still at times: one PING took {facts.slowest_ping:.1f} s",
            "look for long scripts and big keys: SLOWLOG GET, shardkit keys --biggest 20",
        )
    if abs(facts.skew) > _MOST_SKEW:
        yield found(
            f"its clock is {abs(facts.skew):.1f} s {'ahead' if facts.skew > 0 else 'behind'}",
            "synchronise the clocks: leases and delayed tasks go by the servers'",
            True,
        )
    if facts.missing_rights:
        yield found(
            f"the user may not run {', '.join(facts.missing_rights)}", "grant it (docs/rights.md)"
        )
    if facts.forgets:
        yield found(
            "loses what scripts and MULTI wrote when it restarts: its default user has no rights",
            "ACL SETUSER default ~* &* +@all, and leave it off",
        )
    if facts.info is None:
        yield found("the user may not run INFO", "grant it: ACL SETUSER <user> +info", True)
        return
    yield from _of_info(facts.info, len(places[0].entry.replicas), found)


def _of_info(
    info: Mapping[str, Any], replicas: int, found: Callable[..., CheckFinding]
) -> Iterator[CheckFinding]:
    if info.get("loading"):
        yield found("is loading its data", "wait")
    limit, used = info.get("maxmemory", 0), info.get("used_memory", 0)
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if limit and used >= limit:
        does = "refuses writes" if policy == "noeviction" else f"evicts keys ({policy})"
        yield found(f"is above its maxmemory: it {does}", "raise maxmemory, or let data expire")
    elif limit and used >= _NEARLY * limit:
        yield found(
            f"uses {used / limit:.0%} of its maxmemory", "raise maxmemory, or let data expire", True
        )
    if limit and policy.startswith("allkeys"):
        yield found(
            f"may evict any key ({policy})",
            "set maxmemory-policy to noeviction, unless all of it is a cache",
            True,
        )
    most, clients = info.get("maxclients", 0), info.get("connected_clients", 0)
    if most and clients >= _NEARLY * most:
        yield found(
            f"has {clients:,} clients of {most:,}",
            "raise maxclients, or find out who they are: shardkit clients",
        )
    for name, what in (
        ("rdb_last_bgsave_status", "the last snapshot failed"),
        ("aof_last_write_status", "the last write to its append-only file failed"),
        ("aof_last_bgrewrite_status", "the last rewrite of its append-only file failed"),
    ):
        if info.get(name, "ok") != "ok":
            yield found(what, "look at its log and its disk")
    if info.get("master_link_status", "up") != "up":
        yield found("has lost its master", "start the master, or promote the replica")
    if info.get("role") == "master":
        there = info.get("connected_slaves", 0)
        if there < replicas:
            yield found(
                f"has {there} of the {replicas} replicas that its entry names",
                "start them: reads and failover count on them",
            )
        for n in range(there):
            lag = info.get(f"slave{n}", {}).get("lag", 0)
            if isinstance(lag, int) and lag > _MOST_LAG:
                yield found(f"a replica is {lag} s behind", "look at its load and network", True)


def _went_back(places: list[_Place], witnessed: int, epoch: int) -> CheckFinding:
    return CheckFinding(
        _names(places),
        f"has witnessed push {witnessed}, and the config server is at {epoch}: it was restored "
        "from an old snapshot, or lost its data",
        "push the newest shard map: shardkit config push MAP --restored",
    )


# ---- one database


def _of_database(
    place: _Place, facts: _Facts, run_ids: dict[tuple[str, int], _Place]
) -> Iterator[CheckFinding]:
    info = facts.info or {}
    if facts.keys.get(place.number, []) is None:
        yield CheckFinding(
            place.name,
            f"there is no database {place.number}",
            "correct db in the entry, or raise `databases` in the server's configuration",
        )
        return
    role = info.get("role")
    if role == "slave" and not place.is_replica:
        yield CheckFinding(
            place.name, "is a replica, which refuses writes", "name its master, or promote it"
        )
    if role == "master" and place.is_replica and not place.entry.is_cluster:
        yield CheckFinding(
            place.name, "is a master, with data of its own", "name a replica of the entry's server"
        )
    if place.is_replica or place.entry.is_cluster:
        return
    if info.get("run_id"):
        other = run_ids.setdefault((str(info["run_id"]), place.number), place)
        if other is not place and other.component.name == place.component.name:
            both = place.shard.number is not None and other.shard.number is not None
            yield CheckFinding(
                place.name,
                f"its database is that of {other.shard}",
                "give each a database of its own" + ("" if both else ", or keep it if it is meant"),
                warning=not both,
            )
    keys = facts.keys.get(place.number) or []
    strange = keys_of_other_shards(place.component, place.shard, keys)
    if strange:
        yield CheckFinding(
            place.name,
            strange,
            "check the address; or it holds data of others, or of another number of shards",
            warning=place.component.entry is not None,
        )


def keys_of_other_shards(component: Component, shard: Shard, keys: Sequence[bytes]) -> str:
    """Return, in words, how many keys are placed on other shards; nothing if hardly any is.

    Args:
        component: the component.
        shard: where the keys are.
        keys: some of its keys.
    """
    number = shard.number
    if number is None or not keys:
        return ""
    suffix = b":%d" % number  # of the tag where structures place their parts by number
    others = [
        key for key in keys if component.place(key) != number and not hash_tag(key).endswith(suffix)
    ]
    if len(others) <= MISPLACED_SHARE * len(keys):
        return ""
    return f"{component.placement} places {len(others)} of {len(keys)} sampled keys on other shards"


# ---- structures


def check_structures(
    kit: ShardKit,
    components: Mapping[str, Component],
    progress: Callable[[str, int, int], object] = lambda what, done, total: None,
) -> tuple[list[CheckFinding], int]:
    """Read all structures of components, and compare their counts with what is there.

    Args:
        kit: a kit on their topology.
        components: the components.
        progress: called with a structure's name, how many are done, and how many there are.

    Returns:
        What is damaged, and how many structures were read. Cost: all of it is read, in slices; see
        ``check()`` of each structure.
    """
    seen = scan(kit, components, 1, progress=progress)
    checked = check_all(kit, components, seen, progress=progress)
    findings = [
        CheckFinding(
            f"{each.component}/{each.name} ({damage.shard})",
            f"{damage.key} is damaged: {damage.found}, where {damage.expected} was expected",
            damage.repair or "restore it from a backup",
        )
        for each in checked
        for damage in each.damages
    ]
    findings += [
        CheckFinding(f"{each.component}/{each.name}", f"was not read: {each.unchecked}", "", True)
        for each in checked
        if each.unchecked
    ]
    return findings, len(checked)
