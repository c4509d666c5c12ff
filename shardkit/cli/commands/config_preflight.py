"""Checks what a push points clients at, before it points them there.

Each entry that the push adds or changes is connected to as it says: is the server there, is it a
master, does its database exist, may the user do what clients do? Where an entry leaves one database
for another, keys are sampled in both::

    now    ── 100 keys ──┐
                         ├─► are they in the new database too?
    then   ── EXISTS ────┘
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from redis.exceptions import ResponseError
from redis.utils import str_if_bytes

from shardkit.admin.check import MISPLACED_SHARE, keys_of_other_shards
from shardkit.admin.doctor.targets import default_user_lacks_rights
from shardkit.admin.rights import missing_rights
from shardkit.cli.commands.config_diff import data_keys
from shardkit.cli.text import reason
from shardkit.config.component import Component, entry_key
from shardkit.config.entry import Entry
from shardkit.errors import ConfigError, few
from shardkit.network.server_queries import TIMEOUT, ServerErrors, client_of, query_all
from shardkit.operations.commands import Shard
from shardkit.operations.server_errors import meaning
from shardkit.routing.placement import DEFAULT, placement

SAMPLED_KEYS = 100
_PLACEMENTS = (DEFAULT, "slot", "rendezvous", "redis-in-action")
_FEWEST_KEYS = 20  # that tell one placement from another
_DATABASES_PER_QUERY = 16
_FILES = ("dir", "save", "dbfilename", "appendonly", "appenddirname", "appendfilename")


@dataclass(frozen=True, slots=True)
class PreflightFinding:
    """What speaks against one entry of a push.

    Attributes:
        component: its component.
        entry: its key, also ``… replicas[0]``.
        address: where it points.
        problem: what is wrong.
        remedy: what to do about it.
        warning: whether it may well be meant.
    """

    component: str
    entry: str
    address: str
    problem: str
    remedy: str
    warning: bool = False

    def __str__(self) -> str:
        return f"{self.entry} ({self.address}) {self.problem}"


@dataclass(frozen=True)
class _DatabaseAddress:
    """What was found in one database.

    Attributes:
        server: the run id of its server; empty if unknown.
        number: its number.
        role: ``master`` or ``replica``.
        keys: a sample of its keys.
        missing: the commands that the user may not run.
        forgets: whether a restart loses what scripts and MULTI wrote, if the server shows that.
        saves_to: the paths that the server saves its data to; none if it keeps them to itself.
    """

    server: str
    number: int
    role: str
    keys: Sequence[bytes]
    missing: Sequence[str]
    forgets: bool = False
    saves_to: frozenset[str] = frozenset()

    def same_as(self, other: _DatabaseAddress) -> bool:
        return bool(self.server) and (self.server, self.number) == (other.server, other.number)


@dataclass(frozen=True)
class _ChangedAddress:
    """One entry that a push adds or changes, and the one that it replaces."""

    component: Component
    shard: Shard
    where: str
    entry: Entry
    before: Entry | None = None
    is_replica: bool = False


def preflight(
    current: Mapping[str, Component], wanted: Mapping[str, Component]
) -> list[PreflightFinding]:
    """Connect to every entry that a push would add or change, and say what speaks against it.

    Args:
        current: the components on the config server.
        wanted: the components to push.

    Returns:
        The findings, in the components' order. Cost: about ten exchanges for each database that
        is added or changed, servers in parallel.
    """
    targets = [
        target for name in sorted(wanted) for target in _targets(current.get(name), wanted[name])
    ]
    counted = [
        wanted[name]
        for name, before in sorted(current.items())
        if before.by_hand is not None and name in wanted
    ]
    visited = _visit(
        [t.entry for t in targets]
        + [t.before for t in targets if t.before]
        + [entry for component in counted for entry in component.shards]
    )
    shared = _shared_keys(targets, visited)
    savers = _savers(targets, visited)
    findings = [f for target in targets for f in _judge(target, visited, shared, savers)]
    return findings + [f for component in counted for f in _wrong_placement(component, visited)]


def _targets(before: Component | None, after: Component) -> Iterator[_ChangedAddress]:
    if before is not None and before.same_as(after):
        return
    old = dict(before.entries()) if before is not None else {}
    moved = before is not None and (
        len(before.shards) != len(after.shards) or before.placement != after.placement
    )
    for shard, entry in after.entries():
        previous = old.get(shard)
        if previous == entry:
            continue
        where = entry_key(*shard)
        compared = None if moved and shard.number is not None else previous
        yield _ChangedAddress(after, shard, where, entry, compared)
        known = previous.replicas if previous else ()
        for n, replica in enumerate(entry.replicas):
            if replica not in known:
                yield _ChangedAddress(
                    after, shard, f"{where} replicas[{n}]", replica, is_replica=True
                )


# ---- queries


_Visited = Mapping[Entry, _DatabaseAddress | Exception]


def _visit(entries: Sequence[Entry]) -> dict[Entry, _DatabaseAddress | Exception]:
    """Look at databases; those of one server by the same thread."""
    visited: dict[Entry, _DatabaseAddress | Exception] = {}
    groups: dict[str, list[tuple[Entry, dict[str, Any]]]] = {}
    for entry in dict.fromkeys(entries):
        try:
            fields = entry.resolved("it")
        except ConfigError as error:
            visited[entry] = error
            continue
        own = {n: v for n, v in fields.items() if n not in ("db", "replicas")}
        server = json.dumps(own, sort_keys=True)
        groups.setdefault(server, []).append((entry, fields))
    longest = max(map(len, groups.values()), default=0)

    def visit(group: Sequence[tuple[Entry, dict[str, Any]]]) -> dict[Entry, Any]:
        found: dict[Entry, Any] = {}
        dead: Exception | None = None
        for entry, fields in group:
            try:
                found[entry] = dead or _look(fields)
            except ResponseError as error:
                found[entry] = error
            except ServerErrors as error:
                found[entry] = dead = error
        return found

    patience = TIMEOUT * (1 + longest // _DATABASES_PER_QUERY)
    queries = {server: lambda group=group: visit(group) for server, group in groups.items()}
    for server, answer in query_all(queries, patience).items():
        for entry, _ in groups[server]:
            visited[entry] = answer if isinstance(answer, Exception) else answer[entry]
    return visited


def _look(fields: Mapping[str, Any]) -> _DatabaseAddress:
    with client_of(fields) as client:
        client.ping()
        if fields.get("cluster"):
            return _DatabaseAddress("", 0, "master", [], [])
        keys = list(islice(data_keys(client), SAMPLED_KEYS))
        role, server = _role(client), _run_id(client)
        missing = [] if role == "replica" else missing_rights(client)
        return _DatabaseAddress(
            server,
            fields.get("db", 0),
            role,
            keys,
            missing,
            _forgets(client),
            _saves_to(client),
        )


def _saves_to(client: Any) -> frozenset[str]:
    """Return the paths of a server's snapshot and append-only file, of those that it makes."""
    settings: dict[str, str] = {}
    for name in _FILES:
        try:
            settings[name] = "".join(map(str_if_bytes, client.config_get(name).values()))
        except ResponseError:  # a right that is missing
            return frozenset()
    found = []
    if settings.get("save"):
        found.append(settings.get("dbfilename", ""))
    if settings.get("appendonly") == "yes":
        found.append(
            posixpath.join(settings.get("appenddirname", ""), settings.get("appendfilename", ""))
        )
    return frozenset(posixpath.join(settings.get("dir", ""), name) for name in found)


def _forgets(client: Any) -> bool:
    """Whether this is a Redis that replays its append-only file as a user without rights."""
    try:
        info = {**client.info("server"), **client.info("persistence")}
    except ResponseError:
        return False
    is_redis = "valkey_version" not in info
    return is_redis and bool(info.get("aof_enabled")) and default_user_lacks_rights(client)


def _role(client: Any) -> str:
    try:  # unlike INFO and ROLE, any user may ask for it
        words = client.execute_command("HELLO", "2")
    except ResponseError:
        return ""
    found = dict(zip(words[::2], words[1::2], strict=False))
    role = found.get(b"role", b"").decode()
    return "replica" if role == "slave" else role


def _run_id(client: Any) -> str:
    try:
        return str(client.info("server")["run_id"])
    except ResponseError:
        return ""


def _shared_keys(
    targets: Sequence[_ChangedAddress], visited: _Visited
) -> dict[_ChangedAddress, float | Exception]:
    """Return which share of the keys sampled at the old address is at the new one too."""

    def share(target: _ChangedAddress, keys: Sequence[bytes]) -> float:
        with client_of(target.entry.resolved(target.where)) as client:
            pipe = client.pipeline(transaction=False)
            for key in keys:
                pipe.exists(key)
            return float(sum(pipe.execute())) / len(keys)

    queries = {}
    for target in targets:
        now, then = _databases(target, visited)
        if now and then and now.keys and then.keys and not now.same_as(then):
            queries[target] = lambda t=target, keys=now.keys: share(t, keys)
    return query_all(queries)


def _databases(
    target: _ChangedAddress, visited: _Visited
) -> tuple[_DatabaseAddress | None, _DatabaseAddress | None]:
    """Return the databases of a target's old and new address, if there are any to compare."""
    if target.before is None or target.entry.is_cluster or target.before.is_cluster:
        return None, None
    now, then = visited[target.before], visited[target.entry]
    return (
        now if isinstance(now, _DatabaseAddress) else None,
        then if isinstance(then, _DatabaseAddress) else None,
    )


_Savers = Mapping[tuple[str, str], Mapping[str, str]]


def _savers(targets: Sequence[_ChangedAddress], visited: _Visited) -> _Savers:
    """Return the servers, by host and path, that save their data there: run ids and addresses."""
    savers: dict[tuple[str, str], dict[str, str]] = {}
    for target in targets:
        found = visited[target.entry]
        if isinstance(found, _DatabaseAddress) and found.server:
            server = _server(target.entry)
            for path in found.saves_to:
                savers.setdefault((_host(server), path), {}).setdefault(found.server, server)
    return savers


def _server(entry: Entry) -> str:
    """Return ``host:port``, or the path of a socket."""
    return entry.address.rpartition("/")[0] or entry.address


def _host(server: str) -> str:
    host, _, port = server.rpartition(":")
    return host if port.isdigit() else ""  # a socket is on this one


# ---- judgement


def _wrong_placement(component: Component, visited: _Visited) -> Iterator[PreflightFinding]:
    """Return a finding if another placement explains where the keys of hand-written shards are.

    Callers set their placement in code. The push stores the map's placement for all callers.
    """
    places = [
        (key, n)
        for n, entry in enumerate(component.shards)
        if isinstance(found := visited[entry], _DatabaseAddress)
        for key in found.keys
    ]
    if len(places) < _FEWEST_KEYS:
        return

    def explains(rule: str) -> bool:
        place = placement(rule, len(component.shards))
        misplaced = sum(place(key) != n for key, n in places)
        return misplaced <= MISPLACED_SHARE * len(places)

    rules = [rule for rule in _PLACEMENTS if explains(rule)]
    if rules and not explains(component.placement):
        yield PreflightFinding(
            component.name,
            component.name,
            f"{len(component.shards)} shards, written by hand",
            f"holds its keys where placement {rules[0]} puts them, not {component.placement}",
            f"set `placement: {rules[0]}` in the map",
        )


def _judge(
    target: _ChangedAddress,
    visited: _Visited,
    shared: Mapping[_ChangedAddress, float | Exception],
    savers: _Savers,
) -> Iterator[PreflightFinding]:
    def finding(problem: str, remedy: str, warning: bool = False) -> PreflightFinding:
        address = target.entry.address
        return PreflightFinding(
            target.component.name, target.where, address, problem, remedy, warning
        )

    found = visited[target.entry]
    if isinstance(found, ConfigError):
        yield finding(found.message.removeprefix("it: "), found.remedy)
        return
    if isinstance(found, Exception):
        known = meaning(found)
        remedy = known.remedy if known else "correct the entry, or start the server"
        yield finding(f"cannot be used: {reason(found)}", remedy)
        return
    if found.role == "replica" and not target.is_replica:
        yield finding("is a replica: it refuses writes", "name its master, or promote it")
    if found.role == "master" and target.is_replica:
        yield finding(
            "is a master: reads would see its own data", "name a replica of the entry's server"
        )
    if found.missing and not target.is_replica:
        listed = ", ".join(found.missing)
        yield finding(f"has a user who may not run {listed}", "grant them, see docs/rights.md")
    if found.forgets:
        yield finding(
            "loses what scripts and MULTI wrote when it restarts: its default user has no rights",
            "ACL SETUSER default ~* &* +@all, and leave it off",
            True,
        )
    for path in sorted(found.saves_to):
        savers_there = savers.get((_host(_server(target.entry)), path), {})
        others = [server for run_id, server in savers_there.items() if run_id != found.server]
        if others:
            yield finding(
                f"saves its data to {path}, and so does {few(others, ', ')}: each "
                "overwrites what the other has saved",
                "give it a dir or file names of its own (if they are not in containers)",
                True,
            )
    if not target.is_replica and not target.entry.is_cluster:
        yield from (finding(*each) for each in _data_problems(target, found, visited, shared))


def _data_problems(
    target: _ChangedAddress,
    then: _DatabaseAddress,
    visited: _Visited,
    shared: Mapping[_ChangedAddress, float | Exception],
) -> Iterator[tuple[str, str, bool]]:
    before = target.before
    if before is None:
        strange = keys_of_other_shards(target.component, target.shard, then.keys)
        if strange:
            yield f"holds keys that are not this shard's: {strange}", "check the address", True
        return
    if before.address == target.entry.address:
        return
    now, _ = _databases(target, visited)
    if now is None:
        gone = visited[before]
        why = reason(gone) if isinstance(gone, Exception) else "it is a cluster"
        problem = ""
        if not then.keys:
            problem = "is empty"
        elif strange := keys_of_other_shards(target.component, target.shard, then.keys):
            problem = f"holds keys that are not this shard's ({strange})"
        if problem:
            yield (
                f"{problem}, and the data at {before.address} cannot be compared: {why}",
                "move the data first",
                False,
            )
        return
    if now.same_as(then) or not (now.keys or then.keys):
        return
    moved = f"move the data from {before.address} first"
    share = shared.get(target, 0.0)
    if now.keys and not then.keys:
        yield f"is empty, and {before.address} holds data", moved, False
    elif now.keys and (isinstance(share, Exception) or share < 1 - MISPLACED_SHARE):
        part = "" if isinstance(share, Exception) else f": it has {share:.0%} of its sampled keys"
        yield f"does not hold the data of {before.address}{part}", moved, False
    elif not now.keys and (
        strange := keys_of_other_shards(target.component, target.shard, then.keys)
    ):
        yield f"holds keys that are not this shard's: {strange}", "check the address", False
