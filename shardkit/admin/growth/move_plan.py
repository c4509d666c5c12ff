"""Plans of moves and splits: their steps, and what prevents them.

::

    users:0  a/1 ┐            ┌ users:0  a/3     each key to the shard that its name says
    users:1  b/1 ┴─ copies ──►┼ users:1  b/2
                              ├ users:2  a/4     the new shards are in databases that nothing uses
                              └ users:3  b/3
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from redis.exceptions import RedisError

from shardkit.admin.growth import relocation
from shardkit.admin.growth.certificate import unequal
from shardkit.admin.growth.exchange import (
    Slices,
    ask,
    by_server,
    connections_to,
    database_client,
    free_databases,
    one_connection,
    pages,
    strays,
)
from shardkit.admin.growth.failover import master_of, shard_named
from shardkit.admin.growth.gate import (
    CLOSING,
    Ranges,
    evicting,
    is_closed,
    losing_fence,
    masters_of,
)
from shardkit.admin.growth.journal import KEYS, REPLICATION, Move
from shardkit.admin.growth.mover import Expected, duration
from shardkit.admin.growth.pieces import IN_PIECES, large_values
from shardkit.admin.growth.relocation import Place, Same, ServerAddress, Stored
from shardkit.admin.growth.rule import ByPlacement, like_of, misplaced_error, rule_of, shard_names
from shardkit.admin.growth.servers import (
    KnownServers,
    LoginOf,
    Side,
    config_databases,
    connected_to,
    mismatched_tls,
    too_small,
    unfit,
)
from shardkit.admin.growth.shard_copy import libraries
from shardkit.config.component import MAX_SHARDS, Component, entry_key
from shardkit.config.entry import Entry
from shardkit.errors import ConfigError, GrowthError, InvalidArgumentError, counted
from shardkit.network.connections.databases import FENCE_KEY
from shardkit.network.rules import eviction
from shardkit.network.survey import missing_rights
from shardkit.operations.arguments import check_integer
from shardkit.operations.commands import Shard
from shardkit.operations.server_errors import meaning
from shardkit.routing.keys import KeyRoutes
from shardkit.routing.placement import DEFAULT, placement_of_all
from shardkit.structures.encodings.limits import FORMS, LIMITS_PATTERN, Limits

# Commands without which a move fails, by server.
_USER = "masteruser"
_REPLICATING = "PSYNC ? -1 FAILOVER"  # fails on every server, as no history has that name
_COMPARING = (
    *("INFO", "SELECT 0", "SCAN 0", "TYPE k", "PTTL k", "EXISTS k", "GETRANGE k 0 1"),
    *("LRANGE k 0 1", "HSCAN k 0", "HPEXPIRETIME k FIELDS 1 f", "SSCAN k 0", "ZSCAN k 0"),
    *("XRANGE k - +", "XINFO STREAM k", "XINFO GROUPS k", "XPENDING k g"),
    *("VCARD k", "VRANDMEMBER k", "VEMB k e", "VGETATTR k e"),
)
_FENCING = (
    *(f"GET {FENCE_KEY}", f"SET {FENCE_KEY} v", f"DEL {FENCE_KEY}"),
    *("UNLINK k", "DBSIZE", "EVAL return 1 0"),
)
_TELLING = {"CONFIG SET x y", "OBJECT HELP", "PSUBSCRIBE __keyspace@0__:*"}
_LEAVING = {
    REPLICATION: ("FAILOVER", "REPLCONF GETACK *", _REPLICATING),
    KEYS: (
        *_FENCING,
        *(f"PERSIST {FENCE_KEY}", "DUMP k", "OBJECT IDLETIME k", "TIME"),
        *("CLIENT LIST", "CLIENT UNBLOCK 1", "CLIENT KILL ID 1", "FUNCTION LIST"),
        *_TELLING,
    ),
}
_ENTERING = {
    REPLICATION: ("REPLICAOF NO ONE", "REPLCONF GETACK *", _REPLICATING),
    KEYS: (*_FENCING, "RESTORE k 0 v", "FLUSHDB", "FUNCTION LIST", "FUNCTION LOAD x"),
}
_CLOSING_NODES = (
    *("CLUSTER SLOTS", "CLUSTER NODES", "CLIENT PAUSE 1 WRITE", "CLIENT UNPAUSE"),
    *("CONFIG GET x", "CONFIG SET x y", "EVAL return 1 0"),
)
_ABORTING = {REPLICATION: ("FLUSHALL",), KEYS: ()}
_SAMPLED = 100  # keys of a database, which are measured together
_MOST_SAMPLED = 1000  # keys of a database
_MEASURING = 0.2  # seconds for a server, about
_LOOKING = 5.0  # seconds for a server, to find values that have no pieces
_LONG, _MANY = 10_000, 500  # bytes of a string, elements of a collection: more are only counted
_DUMPED = 8e-9  # seconds for a byte of a value that is copied whole
_COPYING = 2.0  # by what a copy takes longer than reading
_NOTING = (
    *("SCAN 0", "MGET config:x", "MSET config:x v", "DEL config:x", "LPUSH config:x v", "TIME"),
    *("LTRIM config:x 0 1", "LRANGE config:x 0 1", "GET config:x", "SET config:x v"),
    *("EVAL return 1 config:x", "PEXPIRE config:x 1", "HSET config:x f v", "HGET config:x f"),
    "HDEL config:x f",
)
_OWN = 4  # connections of a mover to a server, besides one for each database

Components = Mapping[str, Component]


@dataclass(frozen=True)
class MovePlan:
    """The plan of a move.

    Attributes:
        source: the server that is left; of a split all of them, with commas between.
        target: the server that takes over; of a split all of them.
        shards: the shards that move.
        keys: how many keys move, by database.
        memory: the bytes that they use.
        expected: about how long it will take to copy the keys and to compare both sides.
        steps: what will be done, in words and commands.
        problems: what prevents the move; empty if nothing does.
        notes: what changes, or might not work, without preventing the move.
        sources: the databases of the shards; empty if the whole server moves.
        targets: the databases that take over.
        placements: of a split, how keys were placed before, and how afterwards.
        routes: the component's rules for keys that do not tell their place, at a split.
        connections: of each server, how many connections it has ``now``, how many are ``needed``
            at the cutover at most, and how many are ``allowed`` (``maxclients``).
    """

    source: str
    target: str
    shards: tuple[str, ...]
    keys: Mapping[str, int]
    memory: int
    expected: Expected
    steps: tuple[str, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    placements: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    connections: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def copying(self) -> str:
        """``keys`` for shards, ``replication`` for a whole server."""
        return KEYS if self.sources else REPLICATION

    @property
    def seconds(self) -> float:
        """The most probable of the times that are `expected`."""
        return self.expected.seconds


def plan_of(
    config: Any,
    components: Components,
    what: str | Sequence[str],
    target: ServerAddress,
    wanted: Mapping[int, int],
    hold: float,
    offline: bool = False,
    vacated: Collection[Place] = (),
) -> MovePlan:
    """Plan the move of a server, or of a list of shards.

    ``wanted`` has the databases that shards go to, by theirs now; others keep their numbers.
    ``vacated`` are databases that will be empty by then.
    """
    if isinstance(what, str):
        plan = _plan_server(components, ServerAddress.parse(what), target, hold)
    else:
        plan = _plan_shards(components, what, target, wanted, hold, offline, vacated)
    return replace(plan, problems=(*plan.problems, *noting(config)))


def noting(config: Any) -> list[str]:
    """Return what the user of the config server must not do, but a move does."""
    return _forbidden("the config server", config, _NOTING)


def _plan_server(
    components: Components, source: ServerAddress, target: ServerAddress, hold: float
) -> MovePlan:
    servers = KnownServers(components.values(), source, target)
    login = servers.login(source)
    shards = tuple(str(shard) for shard, _ in servers.entries_on(source))
    problems = _problems_of(servers, source, target)
    if servers.entries_on(target):
        problems.append(f"entries already name {target} as a master")
    with connected_to(source, login) as master, connected_to(target, login) as replica:
        info = _info(master, source, problems)
        problems += _is_replica(source, info)
        if info.get("cluster_enabled"):
            problems.append(f"{source} is a node of a cluster, which moves slots itself")
        there = _info(replica, target, problems)
        sides = (source, master, info), (target, replica, there)
        if there:
            problems += unfit(*sides)
        for server, client, _ in sides:
            problems += mismatched_tls(client, server, login)
        notes = _compared(REPLICATION, *sides, problems)
        connections = _room({source: sides[0]}, {target: sides[1]}, {}, {}, problems)
    problems += config_databases(source, login, _counts(info))
    others = servers.replicas_of(source)
    steps = (
        f"{target}: REPLICAOF {source.host} {source.port}, and wait until it is filled",
        f"{source}: FAILOVER TO {target.host} {target.port} TIMEOUT {round(1000 * hold)}: writers "
        "wait until the target has everything, readers do not",
        *(
            f"{other}: REPLICAOF {target.host} {target.port}"
            for other in others
            if not servers.same(other, target)
        ),
        f"push {counted(len(shards), 'entry', 'entries')} naming {target}",
        f"compare both servers; {source} stays as a replica that no entry names",
    )
    keys = {str(number): count for number, count in _counts(info).items()}
    memory = int(info.get("used_memory", 0))
    sample = _SampledKeys()
    sample.add(source, login, _counts(info))
    seconds = duration(REPLICATION, sum(keys.values()), memory, sample.elements)
    return MovePlan(
        str(source),
        str(target),
        shards,
        keys,
        memory,
        Expected.of(seconds, sample.measured),
        steps,
        tuple(problems),
        tuple(notes),
        connections=connections,
    )


def _plan_shards(
    components: Components,
    shards: Sequence[str],
    target: ServerAddress,
    wanted: Mapping[int, int],
    hold: float,
    offline: bool,
    vacated: Collection[Place],
) -> MovePlan:
    servers = KnownServers(components.values(), target)
    names, source, login, databases = _located(components, shards, servers.same)
    numbers = sorted(set(databases))
    problems = _problems_of(servers, source, target, numbers)
    for shard, entry in servers.entries_on(source):
        if entry.database in numbers and str(shard) not in names:
            problems.append(f"{shard} is in the same database: specify it as well")
    at = _numbers_at(servers, target, login, {n: wanted.get(n, n) for n in numbers})
    problems += _hidden(servers, {target: at.values()})
    if len(at) < len(numbers):
        problems.append(f"{target} has too few databases that nothing uses: set more `databases`")
    move = Move(
        names[0],
        KEYS,
        str(source),
        str(target),
        names,
        [str(Place(source, number)) for number in databases],
        [str(Place(target, at.get(number, number))) for number in databases],
    )
    replicas = ", ".join(map(str, servers.replicas_of(source)))
    moved = ", ".join(f"{n} becomes {new}" for n, new in at.items() if n != new)
    push = f"push {counted(len(names), 'entry', 'entries')} naming {target}"
    push += f" (database {moved})" if moved else ""
    push += f", without the replicas {replicas}" if replicas else ""
    return plan_copy(
        move, lambda server: login, hold, push, problems, offline=offline, vacated=vacated
    )


def _numbers_at(
    servers: KnownServers, target: ServerAddress, login: Stored, wanted: Mapping[int, int]
) -> dict[int, int]:
    """Return which database each has at the target: the one that is wanted, unless it is used."""
    taken = {entry.database for _, entry in servers.entries_on(target)}
    if taken.isdisjoint(wanted.values()):
        return dict(wanted)
    free = free_databases(target, login, taken)
    others = (number for number in free if number not in wanted.values())
    at = {n: next(others, None) if new in taken else new for n, new in wanted.items()}
    return {n: new for n, new in at.items() if new is not None}


def plan_copy(
    move: Move,
    login_of: LoginOf,
    hold: float,
    push: str,
    problems: list[str],
    notes: Sequence[str] = (),
    *,
    offline: bool = False,
    vacated: Collection[Place] = (),
) -> MovePlan:
    """Plan the copy of databases, key by key.

    ``push`` says in words which entries are pushed; some ``problems`` and ``notes`` are known.
    """
    rule = rule_of(move)
    sources, targets = (by_server(dict.fromkeys(places)) for places in (rule.sources, rule.targets))
    notes = list(notes)
    in_cluster = bool(move.clusters and move.clusters[0])
    own_nodes = {Place.parse(at).server for at in move.slots}
    keys: dict[str, int] = {}
    memory = 0
    sample = _SampledKeys()
    functions: dict[str, None] = {}
    with ExitStack() as stack:
        old, new = (
            {
                server: (server, client, _info(client, server, problems))
                for server in side
                for client in [stack.enter_context(database_client(server, login_of(server), 0))]
            }
            for side in (sources, targets)
        )
        for server, client, info in old.values():
            counts = _counts(info)
            own = {number: counts.get(number, 0) for number in sources[server]}
            keys |= {rule.label(Place(server, number)): count for number, count in own.items()}
            part = sum(own.values()) / max(1, sum(counts.values()))
            memory += round(part * int(info.get("used_memory", 0)))
            sample.add(server, login_of(server), own)
            if info and not offline:
                try:
                    client.config_get("notify-keyspace-events")
                except (RedisError, OSError) as error:
                    problems.append(f"{server} cannot be used ({error})")
                problems += _is_replica(server, info)
            problems += [] if in_cluster else losing_fence(server, info)
        for target in new.values():
            server, client, there = target
            problems += _is_replica(server, there) if there else ()
            for n, (source, other, info) in enumerate(old.values()):
                if there and n == 0:
                    part = memory * len(targets[server]) / len(rule.targets)
                    others = {f"db{n}" for n in _counts(info).keys() - sources[source].keys()}
                    moving = {name: line for name, line in info.items() if name not in others}
                    needed = round(part) + int(there["used_memory"])
                    problems += too_small((source, other, moving), target, needed)
                if info and there:
                    functions |= dict.fromkeys(_libraries(other, client, server, problems))
        first, other = next(iter(old.values())), next(iter(new.values()))
        for one, two in zip_longest(old.values(), new.values()):
            notes += _compared(KEYS, one or first, two or other, problems, offline)
        for server, client, info in (*old.values(), *new.values()):
            if info and server in own_nodes:
                problems += _forbidden(str(server), client, _CLOSING_NODES)
            elif info.get("cluster_enabled"):
                problems.append(f"{server} is a node of a cluster: specify --to-cluster {server}")
        using: dict[ServerAddress, int] = {}
        with suppress(RedisError, OSError):  # a missing right is among the problems
            using = {
                server: len(connections_to(client, sources[server]))
                for server, client, _ in old.values()
            }
        connections = _room(
            old,
            new,
            using,
            {server: len(numbers) for server, numbers in {**sources, **targets}.items()},
            problems,
        )
    for place in set(rule.targets) - set(vacated):
        with (
            suppress(RedisError, OSError),
            database_client(place.server, login_of(place.server), place.database) as client,
        ):
            if place.server in own_nodes and is_closed(client):
                continue  # an earlier split has left this cluster
            problems += [
                f"{place.server} has keys in database {place.database}, such as {key}: delete them "
                "if nothing needs them"
                for key in strays(client, 1)
            ]
    for server, numbers in sources.items():
        problems += config_databases(server, login_of(server), numbers)
        end = time.monotonic() + _LOOKING
        for number in numbers:
            with (
                suppress(RedisError, OSError),  # the plan reports that it cannot be used
                database_client(server, login_of(server), number) as client,
            ):
                notes += [f"{server}: {text}" for text in _copied_whole(client, end)]
    where = "; ".join(
        f"{server}, databases {', '.join(map(str, numbers))}" for server, numbers in sources.items()
    )
    copying = f"copy every key with DUMP and RESTORE to {move.target}"
    closing = f"{where}: {'CLIENT PAUSE' if in_cluster else f'SET {FENCE_KEY}'}, and push that "
    closing += "they are held; "
    online = (
        f"{where}: CONFIG SET notify-keyspace-events, and PSUBSCRIBE",
        *(f"{move.target}: FUNCTION LOAD {name}" for name in functions),
        f"{copying}, and what changes; compare both",
        f"{closing}writers wait for at most {hold:g} s, until no client that may write is "
        "connected and the rest is copied; readers do not wait",
    )
    while_offline = (
        *(f"{move.target}: FUNCTION LOAD {name}" for name in functions),
        f"{closing}from now on writes wait for ten seconds, and then fail; readers do not wait",
        f"{copying}; compare both",
    )
    steps = (
        *(while_offline if offline else online),
        f"{where}: {f'CONFIG SET {CLOSING}' if in_cluster else f'PERSIST {FENCE_KEY}'}; {push}",
        f"{where}: they keep their keys, and refuse writes; take the cluster away when you are sure"
        if in_cluster
        else f"{where}: delete the keys",
    )
    return MovePlan(
        move.source,
        move.target,
        tuple(move.shards),
        keys,
        memory,
        Expected.of(duration(KEYS, sum(keys.values()), memory, sample.elements), sample.measured),
        steps,
        tuple(dict.fromkeys(problems)),
        tuple(dict.fromkeys(notes)),
        tuple(move.sources),
        tuple(move.targets),
        tuple(move.placements),
        tuple(move.routes),
        connections,
    )


def _room(
    old: Mapping[ServerAddress, Side],
    new: Mapping[ServerAddress, Side],
    using: Mapping[ServerAddress, int],
    databases: Mapping[ServerAddress, int],
    problems: list[str],
) -> dict[str, dict[str, int]]:
    """Return the connections of each server; add servers that allow too few to the problems.

    A process has about as many to a new server as to an old one. While writers wait, it has others
    for reads to the old one.
    """
    arriving = {
        server: using.get(server, int(info.get("connected_clients", 0)))
        for server, _, info in old.values()
        if info
    }
    most = max(arriving.values(), default=0)
    connections = {}
    for server, _, info in {**old, **new}.values():
        if not info:
            continue
        now = int(info.get("connected_clients", 0))
        needed = now + _OWN + databases.get(server, 0) + arriving.get(server, 0)
        needed += most if server in new else 0
        allowed = int(info.get("maxclients", 0))
        connections[str(server)] = {"now": now, "needed": needed, "allowed": allowed}
        if allowed and needed > allowed:
            problems.append(
                f"{server} allows too few connections: maxclients is {allowed:,}, and up to "
                f"{needed:,} are needed at the cutover"
            )
    return connections


def _is_replica(server: ServerAddress, info: Mapping[str, Any]) -> list[str]:
    return [f"{server} is a replica"] if info.get("role", "master") != "master" else []


def _hidden(
    servers: KnownServers, databases: Mapping[ServerAddress, Collection[int] | None]
) -> list[str]:
    """Return the problem of entries that do not say that they name databases, None for all."""
    problems = []
    for server, numbers in databases.items():
        unsure = [named for named in servers.entries_on(server) if named[1].database is None]
        hidden = [] if numbers is None else [entry_key(*shard) for shard, _ in unsure]
        problems += [
            f"{name} leads to {server} by a socket, Sentinels or a reference: write host, port and "
            "db"
            for name in (*servers.nameless(server, numbers), *hidden)
        ]
    return problems


def _problems_of(
    servers: KnownServers,
    source: ServerAddress,
    target: ServerAddress,
    databases: Collection[int] | None = None,
) -> list[str]:
    problems = _hidden(servers, {source: databases})
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


@dataclass
class _SampledKeys:
    """What a sample of the keys tells, read as a move reads them."""

    elements: Counter[str] = field(default_factory=Counter)  # of collections, about, by type
    # Of some keys each, the seconds that a move needs for them now, and on an idle machine.
    measured: list[tuple[float, float]] = field(default_factory=list)

    def add(self, server: ServerAddress, login: Stored, counts: Mapping[int, int]) -> None:
        """Read some keys of databases, which have as many keys."""
        with suppress(RedisError, OSError):
            for number, count in counts.items():
                with database_client(server, login, number) as client:
                    self._add(client, count, time.monotonic() + _MEASURING / len(counts))

    def _add(self, client: Any, count: int, end: float) -> None:
        seen, sampled = 0, Counter[str]()
        for keys in pages(client, _SAMPLED):
            kinds = [kind.decode() for kind in ask(client, [("TYPE", key) for key in keys])]
            known = [(n, kind) for n, kind in enumerate(kinds) if kind in IN_PIECES]
            sizes = ask(client, [(IN_PIECES[kind][0], keys[n]) for n, kind in known])
            measured = Counter[str]()
            usual = []
            for (n, kind), size in zip(known, sizes, strict=True):
                sampled[kind] += size
                if size < (_LONG if kind == "string" else _MANY):  # holds the server only shortly
                    usual.append(keys[n])
                    measured[kind] += size
            seen += len(keys)
            if usual:
                self._measure(client, usual, measured)
            if seen >= _MOST_SAMPLED or time.monotonic() > end:
                break
        self.elements += Counter({kind: round(n * count / seen) for kind, n in sampled.items()})

    def _measure(self, client: Any, keys: Sequence[bytes], elements: Counter[str]) -> None:
        began, size, slices = time.monotonic(), 0, Slices()
        for part in slices.of(keys):
            values = ask(client, [("PTTL", key) for key in part], [("DUMP", key) for key in part])
            read = sum(len(value or b"") for value in values[len(part) :])
            slices.note(len(part), read)
            size += read
        half = time.monotonic()
        unequal(client, client, keys)
        spent = _COPYING * (half - began) + time.monotonic() - half
        self.measured.append((spent, duration(KEYS, len(keys), size, elements)))


def _compared(
    copying: str, source: Side, target: Side, problems: list[str], offline: bool = False
) -> list[str]:
    """Add missing rights on both servers to the problems; return notes."""
    notes: list[str] = []
    for (server, client, info), commands in (
        (source, _LEAVING[copying]),
        (target, _ENTERING[copying]),
    ):
        if info:
            needed = {*_COMPARING, *commands} - (_TELLING if offline else set())
            problems += _unknown(server, client, commands)
            problems += _forbidden(str(server), client, needed)
    _, old, info = source
    server, new, there = target
    if not (info and there):
        return notes
    if policy := evicting(there):
        problem = eviction(policy)
        notes.append(f"{server} {problem.text}: {problem.remedy}")
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
        provider = getattr(client.connection_pool, "credentials", None)
        own = provider or client.get_connection_kwargs().get("password")
        if _REPLICATING in commands and not own and client.config_get(_USER).get(_USER):
            commands = {*commands} - {_REPLICATING}  # replicas log in as another user
        missing = missing_rights(client, sorted(commands)) if commands else ()
        if missing:
            listed = ", ".join(sorted(missing))
            return [f"{server} does not let the user run {listed}: see docs/rights.md"]
    return []


def _unknown(server: ServerAddress, client: Any, commands: Collection[str]) -> list[str]:
    """Return a problem if a server lacks commands that all have, unless they were renamed."""
    names = sorted({command.split()[0] for command in commands} - {"FUNCTION"})
    with suppress(RedisError, OSError):  # COMMAND is not permitted
        [known] = ask(client, [("COMMAND", "INFO", *names)])
        if gone := [name for n, name in enumerate(names) if not any(known[n : n + 1])]:
            return [f"{server} has no {', '.join(gone)} (rename-command): enable what is missing"]
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


def _copied_whole(client: Any, end: float) -> Iterator[str]:
    """Yield which large values without pieces a database has, as far as it is read by ``end``."""
    with one_connection(client) as line:
        vectors, modules = line.ask([("COMMAND", "INFO", "VADD"), ("MODULE", "LIST")])
    # Without the right to ask, there may be some.
    if not any(isinstance(reply, Exception) or any(reply) for reply in (vectors, modules)):
        return
    for keys in pages(client, 10 * _SAMPLED):
        if time.monotonic() > end:
            yield "vector sets and values of modules are copied whole; not all keys were looked at"
            return
        kinds = [kind.decode() for kind in ask(client, [("TYPE", key) for key in keys])]
        others = {key: kind for key, kind in zip(keys, kinds, strict=True) if kind not in IN_PIECES}
        for key, size in large_values(client, list(others)).items() if others else ():
            yield (
                f"{key.decode(errors='backslashreplace')} ({others[key]}, {size:,} bytes) is "
                f"copied whole: that holds the servers for about {size * _DUMPED:.2f} s"
            )


def _counts(info: Mapping[str, Any]) -> dict[int, int]:
    """Return how many keys each database has."""
    return {
        int(name[2:]): int(counts["keys"])
        for name, counts in info.items()
        if name.startswith("db") and name[2:].isdigit() and isinstance(counts, dict)
    }


def _located(
    components: Components, shards: Sequence[str], same: Same
) -> tuple[list[str], ServerAddress, Stored, list[int]]:
    """Return shards as entries call them, their server, a login of it, and their databases."""
    if not shards:
        raise InvalidArgumentError(
            "the shards are not specified", "specify one or more, as timelines:3"
        )
    entries: dict[Shard, Entry] = {}
    servers: list[ServerAddress] = []
    databases: list[int] = []
    for name in shards:
        server, _ = master_of(components, name)
        shard = shard_named(components, name)
        if shard is None:
            raise InvalidArgumentError(f"{name} is not a shard", "see: shardkit status")
        entry = components[shard.component].entry_of(shard)
        if entry.database is None:
            raise InvalidArgumentError(
                f"{entry_key(*shard)} takes its database from the environment",
                "write db: into the entry",
            )
        if shard in entries:
            continue
        entries[shard] = entry
        databases.append(entry.database)
        if not any(same(server, known) for known in servers):
            servers.append(server)
    if len(servers) > 1:
        raise InvalidArgumentError(
            f"the shards are on {counted(len(servers), 'server')} "
            f"({', '.join(map(str, sorted(servers)))})",
            "move the shards of one server at a time",
        )
    shard, like = next(iter(entries.items()))
    names = [str(one) for one in entries]
    return names, servers[0], Stored(like, entry_key(*shard)), databases


_SAMPLE = 1000  # keys of each shard


def new_split(
    components: Components,
    name: str,
    count: int | None,
    rule: str | None,
    over: Sequence[str],
    routes: Sequence[str] | None = None,
    to_cluster: str | None = None,
    places: Sequence[Place] = (),
) -> Move:
    """Return the split of a component, whose targets are databases that nothing uses, or nodes.

    With ``places``, each new shard has that database, or the one entry if ``rule`` is empty.

    Raises:
        InvalidArgumentError: there is no such component, or nothing would change.
        ConfigError: an entry does not name its server, or there is no such placement.
        GrowthError: the cluster cannot be used.
    """
    component = components.get(name)
    if component is None:
        raise InvalidArgumentError(f"component {name!r} is not known", "see: shardkit status")
    if to_cluster is not None and (count, rule, *over) != (None, None):
        raise InvalidArgumentError(
            f"{name}: a cluster has no shards of shardkit's",
            "specify --to-cluster alone, or --shards, --placement and --over",
        )
    before = component.placement if component.shards else ""
    after = rule if places and rule is not None else rule or before or DEFAULT
    there = len(component.shards) or 1
    count = there if count is None else count
    check_integer(name, "shards", count, 1, MAX_SHARDS)
    placement_of_all(after or DEFAULT, count)  # raises ConfigError
    left = _cluster_of(component)
    if left is not None and not (over or to_cluster or places):
        raise InvalidArgumentError(
            f"{name} is in a cluster, whose nodes have one database each",
            "specify --over, the servers of the new shards",
        )
    if (count, after) == (there, before) and not (over or to_cluster or places):
        raise InvalidArgumentError(
            f"{name} already has {counted(there, 'shard')} and placement {after}",
            "specify --shards, --placement or --over",
        )
    slots: dict[str, Ranges] = {}
    if left is None:
        sources = [_place(*like_of(component, shard)) for shard in component.all_shards()]
    else:
        slots, _ = masters_of(left, like_of(component))
        sources = list(map(Place.parse, slots))
    rules = component.routes if routes is None else routes
    KeyRoutes(rules)  # raises ConfigError
    if to_cluster is not None:
        entered = ServerAddress.parse(to_cluster)
        nodes, _ = masters_of(entered, like_of(component))
        targets = list(map(Place.parse, nodes))
        slots |= nodes
        after = ""
    elif places:
        entered, targets = None, list(places)
    else:
        entered = None
        sources, targets = _placed(components, component, sources, over, count)
    return Move(
        name,
        KEYS,
        ", ".join(map(str, dict.fromkeys(place.server for place in sources))),
        ", ".join(map(str, dict.fromkeys(place.server for place in targets))),
        shard_names(name, len(component.shards)),
        list(map(str, sources)),
        list(map(str, targets)),
        [before, after],
        list(rules),
        clusters=[str(left or ""), str(entered or "")] if left or entered else [],
        slots=slots,
    )


def _placed(
    components: Components,
    component: Component,
    sources: Sequence[Place],
    over: Sequence[str],
    count: int,
) -> tuple[list[Place], list[Place]]:
    """Return the sources and as many unused databases, with one name for each server."""
    named = [ServerAddress.parse(name) for name in over] or [place.server for place in sources]
    fleet = KnownServers(components.values(), *named)
    left = [Place(fleet.name_of(place.server), place.database) for place in sources]
    free = {
        server: free_databases(
            server, like_of(component), {entry.database for _, entry in fleet.entries_on(server)}
        )
        for server in dict.fromkeys(map(fleet.name_of, named))
    }
    targets: list[Place] = []
    for n in range(count):
        server = list(free)[n % len(free)]
        try:
            targets.append(Place(server, next(free[server])))
        except StopIteration:
            unused = sum(target.server == server for target in targets)
            raise InvalidArgumentError(
                f"{server} has {counted(unused, 'unused database')}, too few for its share of "
                f"{counted(count, 'shard')} over {counted(len(free), 'server')}",
                "specify more servers (--over), or set a higher `databases` there",
            ) from None
    return left, targets


def _cluster_of(component: Component) -> ServerAddress | None:
    """Return the node that the entry of a component in a cluster names."""
    every = map(component.entry_of, component.all_shards())
    clusters = [entry for entry in every if entry.is_cluster]
    if not clusters:
        return None
    node = relocation.address_of(clusters[0])
    if component.shards or node is None:
        raise ConfigError(
            f"{component.name} is in a cluster, and not by one entry with host and port",
            "write the cluster as the component's entry",
        )
    if clusters[0].database:
        raise ConfigError(
            f"{component.name} is in database {clusters[0].database} of a cluster",
            "copy it into database 0 first, the only one that can be split",
        )
    return node


def _place(entry: Entry, where: str) -> Place:
    if (place := relocation.place_of(entry)) is None:
        raise ConfigError(
            f"{where} does not name its server and database", "write host, port and db into it"
        )
    return place


def plan_split_of(
    config: Any,
    components: Components,
    split: Move,
    hold: float,
    offline: bool = False,
    vacated: Collection[Place] = (),
) -> MovePlan:
    """Plan a split."""
    component = components[split.name]
    rule = ByPlacement(split)
    servers = KnownServers(
        components.values(), *(place.server for place in (*rule.sources, *rule.targets))
    )
    problems = []
    in_cluster, to_cluster = map(bool, split.clusters or ("", ""))
    problems += _sharing(components, split)
    problems += _hidden(servers, by_server(dict.fromkeys((*rule.sources, *rule.targets))))
    for place in [] if in_cluster else rule.sources:
        for shard, entry in servers.entries_on(place.server):
            if entry.database == place.database and shard.component != split.name:
                problems.append(
                    f"{shard} is in database {place.database} of {place.server}, too: its keys "
                    "cannot be told from those of " + split.name
                )
    for place in [] if to_cluster else rule.targets:
        problems += [
            f"{place.server} has {shard} in database {place.database}"
            for shard, entry in servers.entries_on(place.server)
            if entry.database == place.database
        ]

    def login(server: ServerAddress) -> Stored:
        for shard, entry in servers.entries_on(server):
            if shard.component == component.name:
                return Stored(entry, entry_key(*shard))
        return like_of(component)

    problems += _misplaced(rule, split.name, login)
    before, after = split.placements
    notes = []
    if before and (before, len(split.sources)) != (after, len(split.targets)):
        notes.append(
            f"calls that say shards={len(split.sources)} for {split.name} will be refused: leave "
            "shards= and placement= out first"
        )
    if to_cluster:
        notes.append(
            f"commands, scripts and transactions with several keys of {split.name} need keys with "
            "a common {tag} in a cluster"
        )
    if not before and not (in_cluster or to_cluster):
        notes.append(
            f"{split.name} will have no unsharded entry: have all calls use routers or "
            "sharded_connection first, which also serve a component without shards"
        )
    shown = "; ".join(
        f"{server}: {', '.join(f'{name} in {number}' for number, name in own.items())}"
        for server, own in by_server(rule.names).items()
    )
    described = f"{{shards: {len(split.targets)}, placement: {after}}}" if after else "one entry"
    push = f"push {described} with epoch + 1 and these entries: {shown}"
    if to_cluster:
        push = f"push one entry with cluster: true and epoch + 1, for {split.clusters[1]}"
    rule.changed({split.name: component}, servers.same)  # raises ConfigError
    plan = plan_copy(split, login, hold, push, problems, notes, offline=offline, vacated=vacated)
    return replace(plan, problems=(*plan.problems, *noting(config)))


def _sharing(components: Components, split: Move) -> list[str]:
    """Return which other components are in a cluster that is left or entered."""
    concerned = set(split.slots)
    problems = []
    for component in components.values():
        for shard, entry in component.entries():
            node = relocation.address_of(entry) if entry.is_cluster else None
            if component.name == split.name or node is None:
                continue
            nodes: dict[str, Ranges] = {}
            with suppress(RedisError, OSError, GrowthError):
                nodes, _ = masters_of(node, Stored(entry, entry_key(*shard)))
            if concerned & set(nodes) or str(Place(node, 0)) in concerned:
                problems.append(f"{shard} is in the cluster of {node}, too: use another one")
    return problems


def _misplaced(rule: ByPlacement, name: str, login_of: LoginOf) -> list[str]:
    """Return the problem of sampled keys that are not where their names say."""
    seen = 0
    wrong: list[bytes] = []
    for place in rule.sources:
        sampled = 0
        with (
            suppress(RedisError, OSError),  # the plan reports that it cannot be used
            database_client(place.server, login_of(place.server), place.database) as client,
        ):
            for page in pages(client):
                wrong += rule.misplaced(place, page)
                sampled += len(page)
                if sampled >= _SAMPLE:
                    break
        seen += sampled
    if not wrong:
        return []
    error = misplaced_error(name, "the shards", len(wrong), seen, wrong)
    return [f"{error.message}: {error.remedy}"]
