"""Rules that turn facts about servers into problems: the one verdict that all commands share.

::

    network/survey.py ─► facts ─► judge() ─► problems ─┬─► status   quick ones, by shard
                                                       ├─► check    all, by server and shard
                                                       └─► a push   those of changed entries

Each problem has a kind, by which a command chooses what it shows. No I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import redis
from redis.exceptions import AuthenticationError, BusyLoadingError, ResponseError

from shardkit.config.component import Component
from shardkit.errors import ConfigError, ShardKitError, few
from shardkit.network.rights import features_without
from shardkit.network.survey import BASIC, ServerFacts, SurveyedEntry, reason
from shardkit.operations.arguments import parse_json
from shardkit.operations.commands import Shard
from shardkit.operations.server_errors import meaning
from shardkit.routing.keys import hash_tag

SLOW_PING = 0.25  # seconds
MISPLACED_SHARE = 0.1  # the share of sampled keys that may belong elsewhere
NEARLY = 0.9  # the share of a limit from which on there is a warning
_MOST_LAG = 10  # seconds that a replica may be behind
MOST_DOWN = 30  # seconds that the link of a replica that takes over may have been down
_MOST_SKEW = 1.0  # seconds that a server's clock may differ from this machine's

OK = "ok"
UNUSABLE = "unusable"  # the entry cannot be used on this machine
UNREACHABLE = "unreachable"
REFUSED = "refused"  # it denies access to this user
LOADING = "loading"  # it reads its data at the start
NO_DATABASE = "no database"  # the server has no database of the entry's number
WRONG_ROLE = "wrong role"  # an entry names a replica, or one under `replicas` a master
CLOSED = "closed"  # a fence keeps clients out, because its shards move
NO_LINK = "no link"  # a replica without a link to its master
FULL = "full"  # it uses more memory than its maxmemory
SLOW = "slow"  # it stalls for longer than it should
SHARED = "shared"  # another shard of the component has the same database
EVICTS = "evicts"  # its maxmemory-policy removes keys as memory runs out
NO_INFO = "no info"  # the user must not run INFO
NEARLY_FULL, CLIENTS, PERSISTENCE = "nearly full", "clients", "persistence"
REPLICAS, LAG, CLOCK, RIGHTS, RESTART = "replicas", "lag", "clock", "rights", "restart"
KEYS = "keys"  # the database holds keys of other shards
COPY = "copy"  # a replica cannot read its master's data
SAMPLING = "sampling"  # the user must not run SELECT or SCAN
CONFIG, MOVE, FAILOVER = "config server", "move", "failover"

QUICK = frozenset(
    {UNUSABLE, UNREACHABLE, REFUSED, LOADING, NO_DATABASE, WRONG_ROLE, CLOSED}
    | {NO_LINK, FULL, SLOW, SHARED, EVICTS, NO_INFO}
)
"""The kinds that `shardkit status` shows."""


class Severity(IntEnum):
    """How bad a problem is."""

    WARNING = 1  # nothing is wrong yet
    PROBLEM = 2
    CRITICAL = 3  # a shard cannot be used


_CRITICAL = {UNUSABLE, UNREACHABLE, REFUSED, LOADING, NO_DATABASE, WRONG_ROLE, CLOSED}
_WARNINGS = {REPLICAS, EVICTS, NO_INFO, NEARLY_FULL, LAG, CLOCK, RESTART, SAMPLING}
_OF_ENTRIES = {NO_DATABASE, WRONG_ROLE, CLOSED, SHARED, KEYS, SAMPLING}


@dataclass(frozen=True, slots=True)
class ServerProblem:
    """What is wrong with a server or an entry; ``text`` follows its name in a message."""

    kind: str
    text: str
    remedy: str
    mild: bool = False  # a warning, although problems of its kind are usually more

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        if self.mild or self.kind in _WARNINGS:
            return Severity.WARNING
        return Severity.CRITICAL if self.kind in _CRITICAL else Severity.PROBLEM

    @property
    def of_server(self) -> bool:
        """Whether it concerns the whole server, and not one entry."""
        return self.kind not in _OF_ENTRIES


@dataclass(frozen=True)
class JudgedEntry:
    """An entry with its problems, the worst first."""

    row: SurveyedEntry
    problems: tuple[ServerProblem, ...] = ()

    @property
    def severity(self) -> int:
        """The severity of its worst problem; 0 if it has none."""
        return self.problems[0].severity if self.problems else 0

    @property
    def state(self) -> str:
        """The kind of its worst problem; ``ok`` if it has none."""
        return self.problems[0].kind if self.problems else OK

    @property
    def server(self) -> ServerFacts:
        """The facts of its server."""
        return self.row.server

    @property
    def keys(self) -> int | None:
        """The number of keys in its database but for configuration; None if unknown."""
        if not self.server.info:
            return None
        database = self.row.database
        configuration = bool(database.witnessed) + (database.fence is not None)
        counted = int(self.server.info.get(f"db{self.row.number}", {}).get("keys", 0))
        return max(0, counted - configuration)


@dataclass(frozen=True)
class OpenMove:
    """A move that the config server records as unfinished."""

    name: str
    target: str
    phase: str
    shards: Sequence[str] = ()


@dataclass(frozen=True)
class ConfigFacts:
    """What the config server reports about unfinished work."""

    epoch: int | None = None  # its ``config:epoch``; None if it could not be read
    moves: Sequence[OpenMove] = ()
    # Masters that were replaced while they were down and do not follow yet, and their successors.
    replaced: Sequence[tuple[str, str]] = ()
    busy: bool = False  # whether a process works on a move or failover now
    unreadable: Sequence[ShardKitError] = ()  # why moves or replaced masters could not be read


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """Something that is wrong, or will be.

    Attributes:
        where: the server, or the shard and its server.
        problem: what is wrong.
        remedy: what to do about it.
        warning: whether nothing is wrong yet.
        kind: what it is in a word or two, such as ``evicts``.
    """

    where: str
    problem: str
    remedy: str
    warning: bool = False
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


@dataclass(frozen=True)
class Judgement:
    """The judgement of a survey."""

    entries: Sequence[JudgedEntry] = ()
    findings: Sequence[CheckFinding] = field(default_factory=tuple)


def judge(
    rows: Sequence[SurveyedEntry],
    config: ConfigFacts = ConfigFacts(),
    kinds: Iterable[str] | None = None,
) -> Judgement:
    """Apply the rules."""
    shown = None if kinds is None else frozenset(kinds)
    replicas: dict[int, int] = {}
    for row in rows:
        named = 0 if row.node else len(row.target.entry.replicas)
        replicas[id(row.server)] = max(named, replicas.get(id(row.server), 0))
    shared = _shared(rows)
    masters = {row.target.shard: row.server for row in rows if not row.target.node}
    entries = []
    for n, row in enumerate(rows):
        problems = [
            *of_server(row.server, replicas[id(row.server)]),
            *of_entry(row, config),
            *([shared[n]] if n in shared else ()),
        ]
        master = masters.get(row.target.shard)
        link = row.server.info.get("master_link_status")
        if row.target.node and master and master.info and link == "down":
            refused = refused_copy(master.info, row.server.info, row.server.reads_later)
            problems += [] if refused is None else [refused]
        problems = [_with_role(problem, row, rows, master) for problem in problems]
        problems.sort(key=lambda problem: -problem.severity)
        entries.append(
            JudgedEntry(row, tuple(p for p in problems if shown is None or p.kind in shown))
        )
    return Judgement(entries, list(_of_config_server(rows, config)))


def _with_role(
    problem: ServerProblem,
    row: SurveyedEntry,
    rows: Sequence[SurveyedEntry],
    master: ServerFacts | None,
) -> ServerProblem:
    """Say of a dead server what its role makes of that: a master has a successor, or none.

    And of a successor that it is one: the entry is older than the failover.
    """
    server = row.server.address
    if problem.kind == WRONG_ROLE and row.server.role == "master":
        port = server.rpartition(":")[2]  # it may have several names
        follows = [
            not one.server.role or str(one.server.info.get("master_port")) == port
            for one in rows
            if one.target.shard == row.target.shard and not one.target.node
        ]
        if follows and all(follows):
            text, remedy = "is the master instead", "after a failover: shardkit config pull"
            return replace(
                problem, text=text, remedy=f"{remedy}; else correct the entry", mild=True
            )
    if problem.kind == NO_LINK and row.target.node and master:
        dead = master.error is not None
        remedies = "wait while it copies; else see its log", f"see its master, {master.address}"
        return replace(problem, remedy=remedies[dead], mild=dead)
    if problem.kind != UNREACHABLE or row.target.entry.is_cluster:
        return problem
    if row.target.node:
        remedy = f"start it, or take it out: shardkit replicas detach {server}"
        return replace(problem, text=f"is a replica that {problem.text}", remedy=remedy, mild=True)
    if not row.target.entry.replicas:
        return problem
    nodes = [one.server for one in rows if one.target.node and one.target.shard == row.target.shard]
    there = [facts for facts in nodes if facts.role == "replica"]
    if successor := next((facts for facts in nodes if facts.role == "master"), None):
        remedy = f"{successor.address} is a master by now: shardkit config pull updates a map file"
        return replace(problem, remedy=remedy)
    if not there:
        none = ": none of its replicas answers" if nodes else ""  # a push does not ask them
        return replace(problem, remedy=f"{problem.remedy}{none}")
    best = max(there, key=lambda facts: int(facts.info.get("slave_repl_offset", 0)))
    since = best.info.get("master_link_down_since_seconds")
    missing = f"in the last {since} s" if since else "since the link broke"
    command = f"shardkit failover {server}" + " --force" * (int(since or 0) > MOST_DOWN)
    return replace(
        problem,
        remedy=f"{command}: {best.address} takes over, and what it had not "
        f"received of the writes {missing} is lost",
    )


# ---- a server


def of_server(facts: ServerFacts, replicas: int = 0) -> Iterator[ServerProblem]:
    """Yield what is wrong with a server that has as many replicas in entries."""
    if facts.error is not None:
        yield _unusable(facts.error)
        return
    if facts.info.get("loading"):
        yield ServerProblem(LOADING, "is loading its data", "wait")
    if facts.info.get("master_link_status", "up") != "up":
        yield ServerProblem(
            NO_LINK,
            "has lost its master",
            "start the master, or replace it: shardkit failover "
            f"{facts.info.get('master_host')}:{facts.info.get('master_port')}",
        )
    yield from _memory(facts)
    if facts.latency is not None and facts.latency > SLOW_PING:
        yield ServerProblem(
            SLOW,
            f"stalls: one PING took {facts.latency:.1f} s",
            "look for long scripts and big keys: SLOWLOG GET, shardkit keys --biggest 20",
        )
    yield from _limits(facts, replicas)
    if abs(facts.clock_skew) > _MOST_SKEW:
        side = "ahead" if facts.clock_skew > 0 else "behind"
        yield ServerProblem(
            CLOCK,
            f"has a clock that is {abs(facts.clock_skew):.1f} s {side}",
            "synchronise the clocks: leases and delayed tasks use the servers' clocks",
        )
    if facts.missing_rights:
        basic = [name for name in facts.missing_rights if name in BASIC]
        missing = basic or list(facts.missing_rights)
        text = f"does not let the user run {few(missing, ', ')}"
        if not basic:
            text += f", so it cannot be used for {few(list(features_without(missing)), ', ')}"
        remedy = "grant what the application uses (docs/rights.md)"
        yield ServerProblem(RIGHTS, text, remedy, mild=not basic)
    if facts.loses_scripts:
        yield ServerProblem(
            RESTART,
            "loses what scripts and MULTI wrote when it restarts: its default user has no rights",
            "ACL SETUSER default ~* &* +@all, and leave it off",
        )
    if facts.info_refused is not None:
        yield ServerProblem(
            NO_INFO,
            "does not let the user run INFO",
            "grant it, for health and reads from replicas: ACL SETUSER <user> +info",
        )


def _unusable(error: Exception) -> ServerProblem:
    if isinstance(error, ConfigError):
        return ServerProblem(UNUSABLE, f"was not queried: {error.message}", error.remedy)
    if isinstance(error, BusyLoadingError):
        return ServerProblem(LOADING, "is loading its data", "wait")
    known = meaning(error)
    if isinstance(error, AuthenticationError | ResponseError):
        remedy = known.remedy if known else "correct the entry"
        return ServerProblem(REFUSED, f"refuses access: {reason(error)}", remedy)
    remedy = "start it, or correct the entry"
    if known:
        remedy = known.remedy
    elif isinstance(error, redis.TimeoutError):
        remedy = (
            "check whether it is suspended, swaps or runs a long script, "
            "or whether the network drops packets"
        )
    return ServerProblem(UNREACHABLE, f"cannot be reached: {reason(error)}", remedy)


def _memory(facts: ServerFacts) -> Iterator[ServerProblem]:
    limit, used = facts.info.get("maxmemory", 0), facts.info.get("used_memory", 0)
    policy = facts.eviction_policy
    if limit and used >= limit:
        does = "refuses writes" if policy == "noeviction" else f"evicts keys ({policy})"
        yield ServerProblem(
            FULL, f"is above its maxmemory: it {does}", "raise maxmemory, or let data expire"
        )
    elif limit and used >= NEARLY * limit:
        yield ServerProblem(
            NEARLY_FULL,
            f"uses {used / limit:.0%} of its maxmemory",
            "raise maxmemory, or let data expire",
        )
    if policy != "noeviction" and not (limit and used >= limit):
        yield eviction(policy)


def evicted(policy: str) -> str:
    """Return what a server with a ``maxmemory-policy`` does to structures, in words."""
    which = "lose"
    if policy.startswith("volatile"):
        which = "that expire, or were created again within a minute of their deletion, lose"
    return f"structures {which} parts and parameters as memory runs out"


def eviction(policy: str) -> ServerProblem:
    """Return the problem of a server with a ``maxmemory-policy`` that evicts keys."""
    return ServerProblem(
        EVICTS,
        f"evicts keys ({policy}): {evicted(policy)}",
        "CONFIG SET maxmemory-policy noeviction, unless all of it is a cache",
    )


def _limits(facts: ServerFacts, replicas: int) -> Iterator[ServerProblem]:
    info = facts.info
    most, clients = info.get("maxclients", 0), info.get("connected_clients", 0)
    if most and clients >= NEARLY * most:
        yield ServerProblem(
            CLIENTS,
            f"has {clients:,} clients of {most:,}",
            "raise maxclients, or find out which they are: shardkit clients",
        )
    for name, text in (
        ("rdb_last_bgsave_status", "failed to save its last snapshot"),
        ("aof_last_write_status", "failed to write to its append-only file"),
        ("aof_last_bgrewrite_status", "failed to rewrite its append-only file"),
    ):
        if info.get(name, "ok") != "ok":
            yield ServerProblem(PERSISTENCE, text, "see its log, and whether its disk is full")
    if info.get("role") == "master":
        there = info.get("connected_slaves", 0)
        if there < replicas:
            yield ServerProblem(
                REPLICAS,
                f"has {there} of the {replicas} replicas that its entry names",
                "start them: reads and failover need them",
            )
        for n in range(there):
            lag = info.get(f"slave{n}", {}).get("lag", 0)
            if isinstance(lag, int) and lag > _MOST_LAG:
                yield ServerProblem(
                    LAG, f"has a replica that is {lag} s behind", "check its load and network"
                )


def refused_copy(
    info: Mapping[str, Any], there: Mapping[str, Any], relaxed: bool
) -> ServerProblem | None:
    """Return why a server cannot read copies of another's keys, by their INFO; None if it can.

    ``relaxed`` is whether its ``rdb-version-check`` accepts versions that it does not have itself.
    """
    valkey, to_valkey = "valkey_version" in info, "valkey_version" in there
    if valkey and not to_valkey:
        return ServerProblem(
            COPY, "is a Redis, which cannot read what a Valkey sends", "use a Valkey"
        )
    if valkey or not to_valkey or version_of(info) < (7, 4):
        return None
    if any(isinstance(counts, Mapping) and counts.get("subexpiry") for counts in info.values()):
        return ServerProblem(
            COPY,
            "is a Valkey, which cannot read hashes whose fields expire, or did, from Redis 7.4 and "
            "later",
            "write these hashes again without HEXPIRE, or use a Redis",
        )
    if not relaxed or version_of(there) < (9, 0):
        return ServerProblem(
            COPY,
            "is a Valkey, which does not read what Redis 7.4 and later send",
            "CONFIG SET rdb-version-check relaxed on it; those before Valkey 9 cannot",
        )
    return None


def version_of(info: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the version of a server's own software, by INFO: major and minor."""
    text = str(info.get("valkey_version") or info["redis_version"])
    return tuple(int(part) for part in text.split(".")[:2])


# ---- an entry


def of_entry(row: SurveyedEntry, config: ConfigFacts = ConfigFacts()) -> Iterator[ServerProblem]:
    """Yield what is wrong about an entry, rather than its server."""
    target, facts, database = row.target, row.server, row.database
    if facts.error is not None:
        return
    if not database.exists:
        yield ServerProblem(
            NO_DATABASE,
            f"has no database {row.number}",
            "correct db in the entry, or raise `databases` in the server's configuration",
        )
        return
    if database.refused is not None:
        known = meaning(database.refused)
        yield ServerProblem(
            SAMPLING,
            f"cannot be sampled: {reason(database.refused)}",
            known.remedy if known else "grant the right (docs/rights.md)",
        )
    if target.entry.is_cluster:
        return
    if facts.role == "replica" and not target.node:
        yield ServerProblem(
            WRONG_ROLE,
            "is a replica, which refuses writes",
            f"name its master, {facts.info.get('master_host')}:{facts.info.get('master_port')} "
            "(after a failover: shardkit config pull), or promote it",
        )
    if facts.role == "master" and target.node:
        yield ServerProblem(
            WRONG_ROLE, "is a master, with data of its own", "name a replica of the entry's server"
        )
    if database.fence is not None and target.shard is not None and not target.node:
        yield closed(str(target.shard), database.fence, config)
    if target.node or target.component is None or target.shard is None:
        return
    strange = keys_of_other_shards(target.component, target.shard, database.keys or ())
    if strange:
        yield ServerProblem(
            KEYS,
            f"holds keys that are not this shard's: {strange}",
            "check the address; or it holds data of others, or of another number of shards; or "
            "declare keys that functions place by another argument: route: 'any NAMES'",
            mild=target.component.entry is not None,
        )


def closed(shard: str, fence: bytes, config: ConfigFacts | None = None) -> ServerProblem:
    """Return the problem of a database that a fence closes."""
    if config is not None and config.busy:
        return ServerProblem(
            CLOSED,
            "is closed while its shards move",
            "wait, and see: shardkit move status",
            mild=True,
        )
    moves = () if config is None else config.moves
    name = next((move.name for move in moves if shard in move.shards), None)
    if name is not None:
        return ServerProblem(
            CLOSED,
            "is closed by a move of its shards that was interrupted: clients wait, and then fail",
            f"shardkit move resume {name}",
        )
    try:
        place = parse_json(fence)["to"]
    except (ValueError, TypeError, KeyError):
        place = "an unknown place"
    return ServerProblem(
        CLOSED,
        f"is closed by a move to {place} that may be over or have no record: clients wait, and "
        "then fail",
        "shardkit changes repair",
    )


def _shared(rows: Sequence[SurveyedEntry]) -> dict[int, ServerProblem]:
    """Return, by row, the problem of shards whose database another shard of the component has."""
    first: dict[tuple[str, str, int], Shard] = {}
    problems = {}
    for n, row in enumerate(rows):
        shard, run_id = row.target.shard, row.server.run_id
        if shard is None or not run_id or row.node or row.target.entry.is_cluster:
            continue
        other = first.setdefault((shard.component, run_id, row.number), shard)
        if other != shard:
            both = None not in (shard.number, other.number)
            problems[n] = ServerProblem(
                SHARED,
                f"has the same database as {other}",
                "give each a database of its own" + ("" if both else ", unless that is intended"),
                mild=not both,
            )
    return problems


def keys_of_other_shards(component: Component, shard: Shard, keys: Sequence[bytes]) -> str:
    """Return, in words, how many keys are placed on other shards; empty if hardly any is."""
    if shard.number is None or not keys:
        return ""
    address = component.shards[shard.number].address
    here = [n for n, entry in enumerate(component.shards) if entry.address == address]
    suffixes = tuple(b":%d" % n for n in here)  # of tags where structures place parts by number
    routes = component.key_routes
    placed = {key: component.place(routes.of(key)) for key in keys if routes.tells(key)}
    others = [
        key for key, n in placed.items() if n not in here and not hash_tag(key).endswith(suffixes)
    ]
    if len(others) <= MISPLACED_SHARE * len(keys):
        return ""
    [(likely, count)] = Counter(placed[key] for key in others).most_common(1)
    where = "other shards" if count < NEARLY * len(others) else f"shard {likely}"
    problem = f"{component.placement} places {len(others)} of {len(keys)} sampled keys on {where}"
    if sum(hash_tag(key) != key for key in others) < NEARLY * len(others):
        return problem
    return f"{problem}, by the {{tag}} in them: whole keys may have been hashed before"


# ---- the config server


def _of_config_server(rows: Sequence[SurveyedEntry], config: ConfigFacts) -> Iterator[CheckFinding]:
    """Judge the config server by what the databases of components have witnessed of its epoch."""
    witnessed = max(
        (
            row.database.witnessed.get(row.target.shard.component, 0)
            for row in rows
            if row.target.shard is not None
        ),
        default=0,
    )
    if config.epoch is not None and witnessed > config.epoch:
        yield CheckFinding(
            CONFIG,
            f"went back to epoch {config.epoch}: its servers have witnessed epoch {witnessed}, so "
            "it was restored from an old snapshot, or lost its data",
            "push the newest shard map: shardkit config push MAP --restored",
            kind=CONFIG,
        )
    for error in config.unreadable:
        yield CheckFinding(CONFIG, error.message, error.remedy, kind=CONFIG)
    for move in config.moves:
        state = "is running" if config.busy else "was interrupted"
        yield CheckFinding(
            move.name,
            f"its move to {move.target} {state} (phase {move.phase})",
            "see: shardkit move status" if config.busy else f"shardkit move resume {move.name}",
            warning=config.busy,
            kind=MOVE,
        )
    for source, successor in config.replaced:
        yield CheckFinding(
            source,
            f"was replaced by {successor} and is not fenced yet: if it comes back as a "
            "master, writes to it are lost",
            "shardkit failover --guard 0",
            warning=True,
            kind=FAILOVER,
        )


def group_by_server(entries: Iterable[JudgedEntry]) -> Mapping[int, Sequence[JudgedEntry]]:
    """Return the entries of each server, in order."""
    groups: dict[int, list[JudgedEntry]] = {}
    for entry in entries:
        groups.setdefault(id(entry.row.server), []).append(entry)
    return groups
