"""Measures how evenly servers are loaded, and moves shards until they are.

::

    measure   SCAN and MEMORY USAGE of some keys of each database; INFO; with `watch`, MONITOR
    plan      which databases move where, so that each server is near the mean: `place`
    carry out `start_move`, one after the other

Only reads. Each exchange is of 100 keys at most, with pauses in between.
"""

from __future__ import annotations

import heapq
import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Unpack, get_args

import redis
from redis.exceptions import NoPermissionError, RedisError

from shardkit.admin.changes import Change, taking_part
from shardkit.admin.growth.exchange import (
    at_once,
    at_work,
    check_share,
    database_client,
    database_count,
)
from shardkit.admin.growth.journal import Move
from shardkit.admin.growth.move import plan_move, start_move
from shardkit.admin.growth.mover import MoveOptions, Progress
from shardkit.admin.growth.relocation import ServerAddress, Stored, masters_in, place_of
from shardkit.admin.growth.servers import KnownServers, config_databases, touched
from shardkit.admin.heat import HotName
from shardkit.config.component import entry_key
from shardkit.config.store import read_components, read_epoch
from shardkit.errors import GrowthError, InvalidArgumentError, RoutingError
from shardkit.network.survey import CONFIG_KEYS, reason
from shardkit.operations.arguments import Seconds, check_integer, check_number, check_seconds
from shardkit.operations.server_errors import meaning
from shardkit.routing.command_keys import key_positions
from shardkit.routing.keys import hash_tag

By = Literal["bytes", "keys", "operations"]

TOLERANCE = 0.1
SAMPLE = 10_000  # keys of a database
SHARE = 0.2
_PAGE = 100  # keys of one exchange
_ELEMENTS = 5  # of a key, whose memory is sampled
_COMMANDS = 20_000  # of a server, that are watched at most
_LONGEST = 65_536  # bytes of a watched command that are looked at
_PARTS = 50_000  # tags or keys that are counted at a time; then the smaller half is dropped
_LISTED = 100  # tags and keys of a report
_UNEVEN = 2.0  # times the mean of a component's shards
_LINE = re.compile(rb"\S+ \[(\d+) (?!lua\])[^\]]*\] (.*)", re.DOTALL)
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE = re.compile(rb"\\(x[0-9a-f]{2}|.)", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b"}


@dataclass(frozen=True)
class PartLoad:
    """A key, or all keys with one hash tag.

    Attributes:
        kind: ``key`` or ``tag``.
        name: the key, or the tag without braces.
        shards: the shards that have it, as ``users:1``.
        bytes: its bytes; of a tag, estimated from the sample.
        keys: how many keys it has, estimated.
        operations: commands a second; None if none were watched.
    """

    kind: str
    name: bytes
    shards: tuple[str, ...]
    bytes: float
    keys: float
    operations: float | None = None


@dataclass(frozen=True)
class DatabaseLoad:
    """The shards of one database, which move together.

    Attributes:
        server: the name of its server.
        database: its number.
        shards: its shards, as ``users:1``, of all components.
        bytes: its bytes, estimated from the sample.
        keys: how many keys it has.
        operations: commands a second; None if none were watched.
        sampled: how many of its keys were examined.
        fixed: why it cannot move; empty if it can.
    """

    server: str
    database: int
    shards: tuple[str, ...]
    bytes: float
    keys: int
    operations: float | None
    sampled: int
    fixed: str = ""


@dataclass(frozen=True)
class ServerLoad:
    """A server and what its databases of the measured components have together.

    Attributes:
        server: its name, as entries have it.
        bytes: the bytes of its data, estimated.
        keys: how many keys it has.
        operations: all commands that it executes in a second.
        watched: commands a second for the measured databases; None if none were watched.
        memory: the memory that it uses, in bytes.
        limit: its ``maxmemory``; 0 if it has none.
        free: how many of its databases nothing uses.
    """

    server: str
    bytes: float
    keys: int
    operations: float
    watched: float | None
    memory: int
    limit: int
    free: int


@dataclass(frozen=True)
class LoadReport:
    """What `measure_balance` found.

    Attributes:
        servers: the servers, new ones included.
        databases: their databases.
        parts: the biggest and busiest keys and tags, at most 100 of each.
        skipped: entries that cannot be moved, such as clusters, and were not measured.
        epoch: `config:epoch` at the start; None if unknown.
    """

    servers: tuple[ServerLoad, ...]
    databases: tuple[DatabaseLoad, ...]
    parts: tuple[PartLoad, ...]
    skipped: tuple[str, ...] = ()
    epoch: int | None = None


@dataclass(frozen=True)
class BalanceMove:
    """Shards that move from one server to another.

    Attributes:
        source: the server that is left.
        target: the server that takes over.
        shards: the shards.
        bytes: their bytes, estimated.
        seconds: about how long it will take to copy them and to compare both sides.
    """

    source: str
    target: str
    shards: tuple[str, ...]
    bytes: float
    seconds: float = 0.0


@dataclass(frozen=True)
class BalancePlan:
    """The moves that balance servers.

    Attributes:
        by: what is balanced.
        tolerance: how far a server may be from the mean, as a part of it.
        before: by server, its load in times the mean.
        after: the same after all moves.
        moves: the moves, in order.
        fits: whether all servers are within the tolerance afterwards.
        fewest: whether no other plan does it with fewer bytes; False if not all were tried.
        uneven: what is out of balance, in words.
        problems: what prevents the moves; empty if nothing does.
        epoch: that of the report: with other entries the plan is not carried out.
    """

    by: By
    tolerance: float
    before: Mapping[str, float]
    after: Mapping[str, float]
    moves: tuple[BalanceMove, ...]
    fits: bool
    fewest: bool
    uneven: tuple[str, ...]
    problems: tuple[str, ...] = ()
    epoch: int | None = None


def measure_balance(
    config: redis.Redis,
    names: Collection[str] = (),
    *,
    to: Sequence[str] = (),
    sample: int = SAMPLE,
    seconds: Seconds = 1.0,
    watch: bool = False,
    share: float = SHARE,
    progress: Progress = lambda what: None,
) -> LoadReport:
    """Measure bytes, keys and operations by server, shard, tag and key. Changes nothing.

    Args:
        config: a client of the config server.
        names: components; all if there are none.
        to: new servers, ``host:port``, that shards may move to as well.
        sample: how many keys of each database to examine at most; 0 for all.
        seconds: how long to count a server's commands.
        watch: whether to see which shards, tags and keys they are for (``MONITOR``, for
            `seconds`, at most 20,000 commands). A busy server executes fewer commands meanwhile.
        share: the share of the time to work on each server; pauses fill the rest.
        progress: is called with a text about each database.

    Returns:
        The report. Cost: one exchange for 100 keys of the sample; servers in parallel.

    Raises:
        InvalidArgumentError: there is no such component, or a number cannot be used.
        GrowthError: a server cannot be measured; names it.
        ConfigError: the entries cannot be read.
    """
    seconds = check_seconds("balance", "seconds", seconds, 0.001, 60)
    share = check_share("balance", share)
    check_integer("balance", "sample", sample, 0, 2**31)
    epoch = read_epoch(config)
    components = read_components(config)
    if unknown := sorted(set(names) - components.keys()):
        raise InvalidArgumentError(f"{unknown[0]!r} is no component", "see: shardkit config show")
    chosen = [one for name, one in components.items() if not names or name in names]
    new = [ServerAddress.parse(name) for name in to]
    known = KnownServers(components.values(), *new)
    servers: dict[ServerAddress, Stored] = {}
    databases: defaultdict[ServerAddress, dict[int, list[str]]] = defaultdict(dict)
    skipped: list[str] = []
    for component in chosen:
        for shard, entry in component.entries():
            if (at := place_of(entry)) is None:
                skipped.append(str(shard))
                continue
            address = known.name_of(at.server)
            servers.setdefault(address, Stored(entry, entry_key(*shard)))
            databases[address].setdefault(at.database, [])
    if not servers:
        raise InvalidArgumentError(
            f"{', '.join(skipped)}: nothing there names a server by host, port and database",
            "use redis-cli --cluster rebalance if it is a cluster",
        )
    login = next(iter(servers.values()))
    for address in map(known.name_of, new):
        servers.setdefault(address, login)
    for address, numbers in databases.items():
        for shard, entry in known.entries_on(address):
            if entry.database in numbers:
                numbers[entry.database].append(str(shard))

    def measure(
        address: ServerAddress,
    ) -> tuple[ServerLoad, list[DatabaseLoad], list[PartLoad]]:
        try:
            named = {pair.database for _, pair in known.entries_on(address)}
            how = databases[address], named, sample, seconds, watch, share, progress
            return _measured(address, servers[address], known.nameless, *how)
        except NoPermissionError as error:
            raise GrowthError(
                f"{address} cannot be measured: {error}", "grant the right: see docs/rights.md"
            ) from error
        except (RedisError, OSError) as error:
            meant = meaning(error)
            remedy = meant.remedy if meant else "check its address, and that it runs"
            why = f"{address} cannot be measured: {reason(error)}"
            raise GrowthError(why, remedy) from error

    measured = at_once(measure, servers)
    return LoadReport(
        tuple(server for server, _, _ in measured),
        tuple(database for _, own, _ in measured for database in own),
        tuple(_biggest([part for _, _, parts in measured for part in parts])),
        tuple(skipped),
        epoch,
    )


def plan_balance(
    config: redis.Redis, report: LoadReport, *, by: By = "bytes", tolerance: float = TOLERANCE
) -> BalancePlan:
    """Plan the moves that bring servers near their mean, with the fewest bytes. Changes nothing.

    Args:
        config: a client of the config server.
        report: what `measure_balance` found.
        by: what to balance: ``bytes``, ``keys``, or ``operations`` if the report has watched them.
        tolerance: how far a server may be from the mean, as a part of it: 0.1 for a tenth.

    Raises:
        InvalidArgumentError: the report has no operations, or the tolerance cannot be used.
    """
    tolerance = check_number("balance", "tolerance", tolerance, 0, 0.99)
    if by == "operations" and any(load.watched is None for load in report.servers):
        raise InvalidArgumentError("the report has no watched operations", "use watch=True")
    names = [load.server for load in report.servers]
    units = [
        Unit(names.index(database.server), _load(database, by), database.bytes, not database.fixed)
        for database in report.databases
    ]
    room = [
        float("inf") if not load.limit else float(max(0, load.limit - load.memory))
        for load in report.servers
    ]
    placed = place(units, room, [load.free for load in report.servers], tolerance)
    loads = [0.0] * len(names)
    for unit in units:
        loads[unit.server] += unit.weight
    mean = sum(loads) / len(loads)
    before = _times(names, loads, mean)
    moved: defaultdict[tuple[str, str], list[DatabaseLoad]] = defaultdict(list)
    for n, server in placed.moves:
        loads[units[n].server] -= units[n].weight
        loads[server] += units[n].weight
        moved[report.databases[n].server, names[server]].append(report.databases[n])
    moves, problems = [], []
    for (source, target), databases in moved.items():
        shards = tuple(shard for database in databases for shard in database.shards)
        plan = plan_move(config, shards, target)
        size = sum(database.bytes for database in databases)
        moves.append(BalanceMove(source, target, shards, size, plan.expected.seconds))
        problems += [problem for problem in plan.problems if problem not in problems]
    return BalancePlan(
        by,
        tolerance,
        before,
        _times(names, loads, mean),
        tuple(moves),
        placed.fits,
        placed.exact,
        tuple(_uneven(report, by, before, mean, tolerance)),
        tuple(problems),
        report.epoch,
    )


def with_operations(
    report: LoadReport,
    rates: Mapping[str, float],
    hot: Mapping[str, Sequence[HotName]] | None = None,
) -> LoadReport:
    """Return a report with the commands a second that clients counted for shards.

    So `plan_balance` balances operations without MONITOR. See `shardkit.admin.read_heat`; ``hot``
    are its `Heat.kinds`, of which keys and tags become parts of the report.
    """
    for shard, rate in rates.items():
        check_number(shard, "rate", rate, 0, 2**63)
    databases = tuple(
        replace(load, operations=sum(rates.get(shard, 0.0) for shard in load.shards))
        for load in report.databases
    )
    watched: defaultdict[str, float] = defaultdict(float)
    for database in databases:
        watched[database.server] += database.operations or 0.0
    servers = tuple(replace(server, watched=watched[server.server]) for server in report.servers)
    busy = {
        (kind, hot_key.name, hot_key.component): hot_key.now
        for kind in ("tag", "key")
        for hot_key in (hot or {}).get(kind, ())
    }
    parts = []
    for part in report.parts:
        names = {(part.kind, _text(part), shard.partition(":")[0]) for shard in part.shards}
        if hottest := names & busy.keys():
            part = replace(part, operations=sum(map(busy.pop, hottest)))
        parts.append(part)
    # A name that was not in the sample is shown with its component.
    for (kind, name, component), rate in busy.items():
        parts.append(PartLoad(kind, name.encode(), (component,), 0.0, 1, rate))
    return replace(report, servers=servers, databases=databases, parts=tuple(parts))


def apply_balance(
    config: redis.Redis, plan: BalancePlan, **options: Unpack[MoveOptions]
) -> list[Move]:
    """Carry out the moves of a plan, one after the other; return them, with their certificates.

    The options are those of `MoveOptions`.

    Raises:
        GrowthError: something prevents a move, before the first of them, such as another change of
            these servers; or one cannot continue. Earlier ones are done; resume or abort that one,
            then measure again.
    """
    if plan.problems:
        raise GrowthError("; ".join(plan.problems), "correct that, and plan again")
    if not plan.moves:
        return []
    tell: Progress = options.get("progress", lambda what: None)
    done = []
    servers = dict.fromkeys(at for move in plan.moves for at in (move.source, move.target))
    logins = dict(masters_in(read_components(config).values()))
    usual = next(iter(logins.values()))
    change = Change(
        kind="balance",
        name=", ".join(servers),
        databases=touched(
            dict.fromkeys(map(ServerAddress.parse, servers), "*"),
            lambda server: logins.get(server, usual),
        ),
    )
    with taking_part(config, change):
        if plan.epoch not in (None, read_epoch(config)):
            raise GrowthError(
                "the entries have changed since the plan", "plan again: shardkit balance"
            )
        for n, move in enumerate(plan.moves, 1):

            def progress(what: str, n: int = n) -> None:
                tell(f"move {n} of {len(plan.moves)}: {what}")

            own: MoveOptions = {**options, "progress": progress}
            done.append(start_move(config, move.shards, move.target, within=change.id, **own))
    return done


def _text(part: PartLoad) -> str:
    return part.name.decode(errors="backslashreplace")


def _load(load: DatabaseLoad | PartLoad, by: By) -> float:
    return float({"bytes": load.bytes, "keys": load.keys}.get(by, load.operations or 0))


def _times(names: Sequence[str], loads: Sequence[float], mean: float) -> dict[str, float]:
    return {name: load / mean if mean else 1.0 for name, load in zip(names, loads, strict=True)}


def _uneven(
    report: LoadReport, by: By, before: Mapping[str, float], mean: float, tolerance: float
) -> Iterator[str]:
    """Yield what is out of balance: keys and tags too hot for any server first, then the rest."""
    least = max(tolerance, TOLERANCE) * mean
    single = {(part.shards, _load(part, by)) for part in report.parts if part.kind == "key"}
    parts: dict[str, float] = {}
    for part in sorted(report.parts, key=lambda load: -_load(load, by)):
        load = _load(part, by)
        is_one_key = part.kind == "tag" and (part.shards, load) in single
        if load > least and not is_one_key:
            named = f"tag {{{_text(part)}}}" if part.kind == "tag" else f"key {_text(part)}"
            parts[f"{named} ({', '.join(part.shards)})"] = load
    for named, load in parts.items():
        if load > (1 + tolerance) * mean:
            remedy = "split it" if by != "operations" else "keep near copies of it, or split it"
            yield (
                f"{named} alone has {load / mean:.0%} of a server's mean {by}: no move helps; "
                f"{remedy}"
            )
    for server, times in before.items():
        if abs(times - 1) > tolerance + 1e-9:
            yield f"{server} has {times:.2f} times the mean {by} of a server"
    for server_load in report.servers:
        if not server_load.free and before[server_load.server] < 1 - tolerance - 1e-9:
            yield f"{server_load.server} has no database that nothing uses: no shard can move there"
    own: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for database in report.databases:
        if len(database.shards) == 1 and ":" in (shard := database.shards[0]):
            own[shard.rpartition(":")[0]][shard] = _load(database, by)
    for shards in own.values():
        usual = sum(shards.values()) / len(shards)
        for shard, load in shards.items():
            if load > _UNEVEN * usual:
                yield f"{shard} has {load / usual:.1f} times the mean {by} of its shards"
    for named, load in parts.items():
        if load <= (1 + tolerance) * mean:
            yield f"{named} has {load / mean:.0%} of a server's mean {by}"


def _biggest(parts: Sequence[PartLoad]) -> Iterator[PartLoad]:
    """Yield the biggest and busiest keys, and tags."""
    for kind in ("tag", "key"):
        those = [part for part in parts if part.kind == kind]
        top = {
            (part.name, part.shards): part
            for by in get_args(By)
            for part in heapq.nlargest(_LISTED // 3, those, key=lambda load: _load(load, by))
        }
        yield from sorted(top.values(), key=lambda load: -load.bytes)


def _measured(
    address: ServerAddress,
    login: Stored,
    nameless: Callable[[ServerAddress, Collection[int]], list[str]],
    databases: Mapping[int, Sequence[str]],
    named: Collection[int | None],
    sample: int,
    seconds: float,
    watch: bool,
    share: float,
    progress: Progress,
) -> tuple[ServerLoad, list[DatabaseLoad], list[PartLoad]]:
    """Measure one server, and the shards of its databases."""
    name = str(address)
    with database_client(address, login, 0) as client:
        before, began = client.info("stats"), time.monotonic()
        seen: Counter[tuple[int, bytes]] = Counter()
        watched: float | None = None
        if watch:
            progress(f"watching {name}")
            watched = _watch(client, seconds, seen)
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        after, memory = client.info("stats"), client.info("memory")
        passed = time.monotonic() - began
        filled = {int(name[2:]) for name in client.info("keyspace")}
        free = database_count(client) - len(filled | set(named))
    executed = after["total_commands_processed"] - before["total_commands_processed"]
    loads: list[DatabaseLoad] = []
    parts: list[PartLoad] = []
    for number, shards in databases.items():
        progress(f"measuring database {number} of {name}")
        own = {key: count for (at, key), count in seen.items() if at == number}
        tags, keys = _Sums(), _Sums()
        examined, size = 0, 0
        with database_client(address, login, number) as client:
            total = client.dbsize()
            for page, sizes in _sizes(client, sample or total, share):
                for key, used in zip(page, sizes, strict=True):
                    if key.startswith(CONFIG_KEYS):
                        total -= 1
                    elif used is not None:
                        examined += 1
                        size += used
                        keys.add(key, used)
                        if (tag := hash_tag(key)) != key:
                            tags.add(tag, used)
        scale = max(1.0, total / examined) if examined else 0.0
        operations: dict[str, Counter[bytes]] = {"tag": Counter(), "key": Counter(own)}
        for key, count in own.items():
            if (tag := hash_tag(key)) != key:
                operations["tag"][tag] += count
        for kind, sums in ("tag", tags), ("key", keys):
            for part in sums.sizes.keys() | operations[kind].keys():
                used, many = sums.sizes.get(part, 0), sums.counts.get(part, 0)
                by = scale if kind == "tag" else 1.0
                rate = None if watched is None else operations[kind][part] / watched
                parts.append(PartLoad(kind, part, tuple(shards), used * by, many * by, rate))
        parts = list(_biggest(parts))
        fixed = ""
        if config_databases(address, login, [number]):
            fixed = "it is the config server's"
        elif nameless(address, [number]):
            fixed = "an entry leads there by a socket, Sentinels or a reference"
        rate = None if watched is None else sum(own.values()) / watched
        measured = size * scale, total, rate, examined, fixed
        loads.append(DatabaseLoad(name, number, tuple(shards), *measured))
    server = ServerLoad(
        name,
        sum(load.bytes for load in loads),
        sum(load.keys for load in loads),
        max(0.0, executed / passed),
        sum(load.operations or 0.0 for load in loads) if watch else None,
        int(memory["used_memory"]),
        int(memory.get("maxmemory", 0)),
        max(0, free),
    )
    return server, loads, parts


class _Sums:
    """The bytes and numbers of keys by name, of not too many names."""

    def __init__(self) -> None:
        self.sizes: Counter[bytes] = Counter()
        self.counts: Counter[bytes] = Counter()

    def add(self, name: bytes, size: int) -> None:
        self.sizes[name] += size
        self.counts[name] += 1
        if len(self.sizes) > _PARTS:
            self.sizes = Counter(dict(self.sizes.most_common(_PARTS // 2)))
            self.counts = Counter({name: self.counts[name] for name in self.sizes})


def _sizes(client: Any, most: int, share: float) -> Iterator[tuple[list[bytes], list[int | None]]]:
    """Yield some keys of a database and their bytes, until there are `most`."""
    cursor, examined = 0, 0
    while examined < most:
        with at_work(share):
            cursor, keys = client.scan(cursor, count=min(_PAGE, most))
            pipe = client.pipeline(transaction=False)
            for key in keys:
                pipe.memory_usage(key, samples=_ELEMENTS)
            yield keys, pipe.execute() if keys else []
        examined += len(keys)
        if not cursor:
            return


def _watch(client: Any, seconds: float, seen: Counter[tuple[int, bytes]]) -> float:
    """Count the commands of clients by database and key; return for how many seconds."""
    connection = client.connection_pool.get_connection()
    began = time.monotonic()
    try:
        connection.send_command("MONITOR")
        connection.read_response()
        for _ in range(_COMMANDS):
            left = began + seconds - time.monotonic()
            if left <= 0 or not connection.can_read(timeout=left):
                break
            line = connection.read_response(disable_decoding=True)
            _count(bytes(line[:_LONGEST]), seen)
        return time.monotonic() - began
    finally:
        connection.disconnect()
        client.connection_pool.release(connection)


def _count(line: bytes, seen: Counter[tuple[int, bytes]]) -> None:
    """Count a line of MONITOR: ``1700000000.000000 [3 127.0.0.1:5000] "get" "k"``.

    What scripts call is not counted, as the script is.
    """
    match = _LINE.fullmatch(line)
    if match is None:
        return
    words = [_ESCAPE.sub(_unescape, word) for word in _WORD.findall(match[2])]
    with suppress(RoutingError):
        keys = {words[at] for at in key_positions(words) if at < len(words)}
        for key in keys:
            if not key.startswith(CONFIG_KEYS):
                seen[int(match[1]), key] += 1


def _unescape(match: re.Match[bytes]) -> bytes:
    escape = match[1]
    if escape[:1] == b"x" and len(escape) == 3:
        return bytes.fromhex(escape[1:].decode())
    return _ESCAPES.get(escape, escape)


# Steps of the search, times units, and at least; then the best plan so far is taken.
_WORK, _LEAST_STEPS = 1_000_000, 2000


@dataclass(frozen=True)
class Unit:
    """The shards of one database."""

    server: int
    weight: float  # what is balanced: bytes, keys or operations
    size: float  # bytes
    movable: bool = True


@dataclass
class Placement:
    """The places of units, by their indices."""

    moves: list[tuple[int, int]] = field(default_factory=list)  # units, and servers
    off: float = math.inf  # by how much all servers together miss the tolerance
    exact: bool = False  # whether no plan within the tolerance moves fewer bytes
    size: float = math.inf

    @property
    def fits(self) -> bool:
        """Whether all servers are within the tolerance."""
        return self.off == 0


def place(
    units: Sequence[Unit], room: Sequence[float], free: Sequence[int], tolerance: float
) -> Placement:
    """Return the moves after which all servers have about the same, with the fewest bytes moved.

    `room` has the bytes that each server can still take, `free` its free databases::

        a: 50 + 20   b: 15 + 5   c: new      mean 30; within a tolerance of 0.2: 24 to 36
        50 alone is too much for any server:  as near as is worth it, and `fits` is False
        a: 20 + 20   b: 30   c: new          20 from a to c: 20 bytes move
    """
    search = _Search(units, room, free, tolerance)
    search.run()
    search.best.exact = search.best.fits and search.is_whole
    return search.best


class _Search:
    """Takes the fullest server, tries each of its databases in each other place, then the next.

    It drops every branch that moves as many bytes as the best plan so far.
    """

    def __init__(
        self, units: Sequence[Unit], room: Sequence[float], free: Sequence[int], tolerance: float
    ) -> None:
        self._units = units
        self._room = list(room)
        self._left = list(free)
        self._loads = [0.0] * len(room)
        for unit in units:
            self._loads[unit.server] += unit.weight
        mean = sum(self._loads) / len(room)
        self._least, self._most = mean * (1 - tolerance), mean * (1 + tolerance)
        self._worth = mean * max(tolerance, TOLERANCE)  # what moves must bring if they do not fit
        self._free = {n for n, unit in enumerate(units) if unit.movable and unit.weight > 0}
        self._excluded: set[tuple[int, int]] = set()
        # The fewest bytes that a move has for what it relieves a server of.
        self._ratio = min((units[n].size / units[n].weight for n in self._free), default=0.0)
        self._steps = max(_LEAST_STEPS, _WORK // max(1, len(units)))
        self.is_whole = True
        self.best = Placement()

    def run(self) -> None:
        moves, sizes = list[tuple[int, int]](), [0.0]
        tried = [self._choices(moves, sizes)]  # after each number of moves
        while tried and self._steps > 0:
            if (move := next(tried[-1], None)) is not None:
                n, server = move
                self._move(n, self._units[n].server, server)
                moves.append(move)
                sizes.append(sizes[-1] + self._units[n].size)
                tried.append(self._choices(moves, sizes))
            else:
                tried.pop()
                if moves:
                    n, server = moves.pop()
                    self._move(n, server, self._units[n].server)
                    sizes.pop()

    def _choices(
        self, moves: Sequence[tuple[int, int]], sizes: Sequence[float]
    ) -> Iterator[tuple[int, int]]:
        """Yield moves, one of which every better plan from here has: from or to the worst server.

        What was tried is excluded from the branches that follow.
        """
        slack, size = 1e-9 * self._most, sizes[-1]
        over = sum(max(0.0, load - self._most - slack) for load in self._loads)
        under = sum(max(0.0, self._least - load - slack) for load in self._loads)
        off, best = over + under, self.best
        is_better = off + (self._worth if off else 0.0) < best.off
        if is_better or (off <= best.off and size < best.size):
            self.best = Placement(list(moves), off, size=size)
        if off == 0:
            return
        self._steps -= 1
        if self._steps <= 0:
            self.is_whole = False
            return
        if self.best.fits and size + self._ratio * max(over, under) >= self.best.size:
            return
        fullest = max(range(len(self._loads)), key=self._loads.__getitem__)
        emptiest = min(range(len(self._loads)), key=self._loads.__getitem__)
        kept: set[int] = set()
        excluded: set[tuple[int, int]] = set()
        if self._loads[fullest] > self._most:
            excess = self._loads[fullest] - self._most
            for n in self._by_weight(excess, lambda unit: unit.server == fullest):
                seen = set()
                for server in sorted(range(len(self._loads)), key=self._loads.__getitem__):
                    is_new = not self._loads[server]
                    like = self._room[server], self._left[server]
                    if self._is_possible(n, server) and not (is_new and like in seen):
                        if is_new:
                            seen.add(like)  # another one like it is no other choice
                        yield n, server
                kept.add(n)
                self._free.discard(n)
        else:
            deficit = self._least - self._loads[emptiest]
            for n in self._by_weight(deficit, lambda unit: unit.server != emptiest):
                if self._is_possible(n, emptiest):
                    yield n, emptiest
                    excluded.add((n, emptiest))
                    self._excluded.add((n, emptiest))
        self._free |= kept
        self._excluded -= excluded

    def _by_weight(self, wanted: float, concerns: Callable[[Unit], bool]) -> list[int]:
        """Return the free units that are concerned, first those that weigh about what is wanted."""
        chosen = [n for n in self._free if concerns(self._units[n])]
        return sorted(chosen, key=lambda n: (abs(self._units[n].weight - wanted), n))

    def _is_possible(self, n: int, server: int) -> bool:
        unit = self._units[n]
        return (
            server != unit.server
            and (n, server) not in self._excluded
            and self._left[server] > 0
            and unit.size <= self._room[server]
        )

    def _move(self, n: int, source: int, target: int) -> None:
        """Move a unit, or undo that: each moves once."""
        unit = self._units[n]
        self._loads[source] -= unit.weight
        self._loads[target] += unit.weight
        if target == unit.server:  # undone
            self._left[source] += 1
            self._room[source] += unit.size
            self._free.add(n)
        else:
            self._left[target] -= 1
            self._room[target] -= unit.size
            self._free.discard(n)
