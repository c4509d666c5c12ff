"""Scans the keys of components' databases: all of them, or a sample of each.

SCAN returns keys in the order of their hashes, so the first thousand are a fair sample of a
database; each of them represents an equal share of all keys. Structures are found first, by a SCAN
of every database for ``*:meta``.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

import redis
from redis.exceptions import RedisClusterException, RedisError

from shardkit.config.component import Component
from shardkit.errors import ShardErrors, ShardKitError
from shardkit.kit.kit import ShardKit
from shardkit.network.connections.reply_kinds import check_replies
from shardkit.network.survey import ServerFacts, loses_scripts, server_of
from shardkit.operations.commands import Shard, script_call
from shardkit.operations.lua import script
from shardkit.operations.operation import Operation, pages
from shardkit.operations.server_errors import meaning
from shardkit.structures.base.parameters import meta_key
from shardkit.structures.encodings.limits import (
    KEYS_AT_ONCE,
    LIMITS_PATTERN,
    Excess,
    KeyEncoding,
    Limits,
    check,
    inspect_keys,
    read_limits,
)
from shardkit.structures.layouts.growing import MOST_GROUPS, tags

_LONGEST = 1024  # bytes of the names of structures that are looked for
_PART = re.compile(rb":[0-9]+\Z")
_ENDS = (b":top", b":bottom")
_SUMS = ("seen", "keys", "entries", "bytes", "loose", "stale", "without_form", "unknown_limits")


@dataclass(frozen=True, slots=True)
class StoredStructure:
    """A structure, and the parameters in its ``:meta`` key."""

    component: str
    name: str
    parameters: Mapping[str, str] = field(hash=False)

    @property
    def kind(self) -> str:
        """Its kind: ``set``, ``hash`` and so on."""
        return self.parameters["kind"]

    @property
    def part_size(self) -> int | None:
        """How many entries a part may have."""
        text = self.parameters.get("part_size", "")
        return int(text) if text.isdigit() else None

    @property
    def form(self) -> str | None:
        """The name of its parts' compact form, if its parameters determine it."""
        if self.kind == "set":
            return "intset" if self.parameters.get("members") == "int" else "set"
        return _FORMS.get(self.kind)


_FORMS = {"hash": "hash", "sorted-set": "zset", "sorted_set": "zset", "zset": "zset"}


class KeyGroup(NamedTuple):
    """Keys that are summed up together: a structure's, or others of one type and encoding."""

    component: str
    structure: str | None
    type: str
    encoding: str = ""


class WorstExcess(NamedTuple):
    """The largest excess over one limit, and about how many keys exceed it."""

    excess: Excess
    keys: float


@dataclass
class KeyStatistics:
    """Totals of one group of keys. All but `seen`, `largest` and `longest` may be estimates."""

    form: str | None = None  # the name of their compact form; None if they have none
    seen: int = 0  # how many keys were scanned
    keys: float = 0
    entries: float = 0  # of strings none
    bytes: float = 0
    loose: float = 0  # how many keys are not compact
    stale: float = 0  # how many of those would be compact if they were rewritten
    without_form: float = 0  # how many are on servers that have no compact form for them
    unknown_limits: float = 0  # how many are on servers that do not show their limits
    largest: int = 0  # the largest number of entries of a key
    longest: int = 0  # the longest entry, in bytes, of a key that is not compact
    # The largest excess over each limit, by setting and its value; and the same of the keys that
    # hold a sorted set's first and last members.
    worst: dict[tuple[str, int], WorstExcess] = field(default_factory=dict)
    worst_ends: dict[tuple[str, int], WorstExcess] = field(default_factory=dict)

    def add(self, seen: KeyEncoding, weight: float, limits: Limits | None) -> None:
        """Add a key that represents ``weight`` keys."""
        self.seen += 1
        self.keys += weight
        self.entries += weight * seen.length * (seen.type != "string")
        self.bytes += weight * (seen.bytes or 0)
        self.largest = max(self.largest, seen.length)
        form = seen.form
        if form is None:
            return
        self.form = self.form if self.form == "set" else form.name
        verdict = check(seen, limits)
        if verdict.compact:
            return
        self.loose += weight
        self.longest = max(self.longest, seen.longest or 0)
        self.stale += weight * verdict.stale
        if limits is None:
            self.unknown_limits += weight
        elif limits.entries(form) is None:
            self.without_form += weight
        for excess in verdict.excesses:
            _beyond(self.worst, excess, weight)

    def add_beside(self, seen: KeyEncoding, weight: float, limits: Limits | None) -> None:
        """Add a key of a structure that is not one of its parts: its bytes, and its limits."""
        self.bytes += weight * (seen.bytes or 0)
        if seen.key.endswith(_ENDS):
            for excess in check(seen, limits).excesses:
                _beyond(self.worst_ends, excess, weight)

    def merge(self, other: KeyStatistics) -> None:
        """Add other totals."""
        self.form = self.form if self.form == "set" else other.form or self.form
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.largest = max(self.largest, other.largest)
        self.longest = max(self.longest, other.longest)
        for mine, others in ((self.worst, other.worst), (self.worst_ends, other.worst_ends)):
            for worst in others.values():
                _beyond(mine, worst.excess, worst.keys)


def _beyond(worst: dict[tuple[str, int], WorstExcess], excess: Excess, weight: float) -> None:
    at = (excess.setting, excess.limit)
    known = worst.get(at, WorstExcess(excess, 0))
    worse = max(known.excess, excess, key=lambda one: one.found)
    worst[at] = WorstExcess(worse, known.keys + weight)


def structure_of(key: bytes, names: Collection[bytes]) -> str | None:
    """Return the structure, of those with these names, that a key belongs to; None for none.

    Its name is followed by a colon in the key; of several it is the longest one.
    """
    end = min(len(key), _LONGEST)  # time grows with its square
    while names and (end := key.rfind(b":", 0, end)) > 0:
        if key[:end] in names:
            return key[:end].decode()
    return None


def is_part(key: bytes) -> bool:
    """Whether a structure's key is one of its parts."""
    return bool(_PART.search(key))


SAMPLE: Final = 1_000
_SCAN: Final = 1_000  # keys of one SCAN
_SCAN_NAMES: Final = 10_000  # of a SCAN whose pattern few keys match
_WORKERS: Final = 8
_REPACKED_AT_ONCE: Final = 100
_KINDS: Final = frozenset(
    (
        *("hash", "list", "packed", "set", "sorted-set", "unique-visitors"),
        *("address-book", "ads", "jobs", "search", "social"),
    )
)
_PROBED: Final = 16  # parts of a structure that the sample missed

Progress = Callable[[str, int, int], object]


@dataclass
class ScanResult:
    """The result of a scan of components."""

    sample: int | None  # how many keys of a database were scanned at most; None for all
    servers: dict[str, ServerInfo] = field(default_factory=dict)  # by id
    component_servers: dict[str, set[str]] = field(default_factory=dict)  # their ids
    structures: dict[tuple[str, str], StoredStructure] = field(default_factory=dict)
    groups: dict[KeyGroup, KeyStatistics] = field(default_factory=dict)
    keys: int = 0  # how many there are
    seen: int = 0  # how many were scanned
    repacked: int = 0  # how many were rewritten
    # By component and key, why a ``:meta`` key describes no structure.
    broken: dict[tuple[str, bytes], str] = field(default_factory=dict)
    failures: dict[str, Exception] = field(default_factory=dict)  # by shard

    @property
    def estimated(self) -> bool:
        """Whether figures are estimates, because not all keys were scanned."""
        return self.seen < self.keys

    def limits_of(self, component: str) -> set[Limits]:
        """Return the different limits of a component's servers."""
        servers = map(self.servers.__getitem__, self.component_servers.get(component, ()))
        return {server.limits for server in servers if server.limits is not None}


def scan(
    kit: ShardKit,
    components: Mapping[str, Component],
    sample: int | None = SAMPLE,
    *,
    repack: bool = False,
    progress: Progress = lambda what, done, total: None,
) -> ScanResult:
    """Scan components' keys: how they are stored, their size, and which limits they exceed.

    ``sample`` is how many keys of each database to scan; None for all of them. ``repack`` rewrites
    the parts that become compact. ``progress`` is called with the current step, how many databases
    are done, and how many there are. Shards that cannot be scanned are among the result's failures.

    Cost: for each database a SCAN for structures, which transfers only their names, and a few
    exchanges for the scanned keys; their entries are read only if they are not compact.
    """
    return _Scanner(kit, components, ScanResult(sample), repack, progress).run()


@dataclass(eq=False)
class _Scanner:
    _kit: ShardKit
    _components: Mapping[str, Component]
    _result: ScanResult
    _repack: bool
    _progress: Progress
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _names: dict[str, set[bytes]] = field(default_factory=dict)
    _limits: dict[Database, Limits | None] = field(default_factory=dict)

    def run(self) -> ScanResult:
        databases: list[Database] = []
        for component in self._components.values():
            for shard in distinct_shards(component):
                try:
                    databases += databases_of(self._kit, component, shard)
                except ShardKitError as error:
                    self._result.failures[str(shard)] = error
        reachable = self._visit_all("finding structures", databases, self._find_structures)
        for name in self._components:
            structures = self._result.structures
            self._names[name] = {own.encode() for owner, own in structures if owner == name}
        self._visit_all("inspecting keys", reachable, self._inspect_database)
        for structure in self._result.structures.values():
            statistics = self._result.groups.get(KeyGroup(structure.component, structure.name, ""))
            if statistics is None or not statistics.seen:
                self._probe(structure)
        return self._result

    def _visit_all(
        self, what: str, databases: Sequence[Database], visit: Callable[[Database], None]
    ) -> list[Database]:
        """Visit databases, different servers in parallel; return those that answered."""
        answered: list[Database] = []

        def visit_all(group: Sequence[Database]) -> None:
            dead: Exception | None = None
            for database in group:
                try:
                    if dead is None:
                        visit(database)
                        answered.append(database)
                except (RedisError, RedisClusterException, OSError, ShardErrors) as error:
                    dead = error
                with self._lock:
                    if dead is not None:
                        self._result.failures.setdefault(str(database.shard), dead)
                        # Not the name of the first shard for the next ones.
                        dead = getattr(dead, "error", None) or dead
                    self._done += 1
                    self._progress(what, self._done, len(databases))

        self._done = 0
        self._progress(what, 0, len(databases))
        with ThreadPoolExecutor(_WORKERS) as pool:
            list(pool.map(visit_all, by_server(databases)))
        return answered

    # ---- first: which servers there are, and which structures

    def _find_structures(self, database: Database) -> None:
        server = server_info(database)
        component = database.shard.component
        with self._lock:
            self._result.servers.setdefault(server.id, server)
            self._result.component_servers.setdefault(component, set()).add(server.id)
            self._limits[database] = server.limits
        names = database.client.scan_iter(match=meta_key("*"), count=_SCAN_NAMES)
        for page in pages(names, _SCAN):
            pipe = database.client.pipeline(transaction=False)
            for key in page:
                pipe.hgetall(key)
            for key, fields in zip(page, pipe.execute(raise_on_error=False), strict=True):
                described = _described(component, key, fields)
                with self._lock:
                    if isinstance(described, StoredStructure):
                        self._result.structures[component, described.name] = described
                    elif described:
                        self._result.broken[component, key] = described

    # ---- then: the keys

    def _inspect_database(self, database: Database) -> None:
        sample = self._result.sample
        total = int(database.client.dbsize())
        names = database.client.scan_iter(count=_SCAN if sample is None else min(sample, _SCAN))
        if sample is not None:
            names = islice(names, sample)
        seen = 0
        for page in pages(names, max(KEYS_AT_ONCE, sample or 0)):
            # A sample is one page.
            weight = 1.0 if sample is None else max(1.0, total / len(page))
            self._add(
                database.shard,
                self._limits[database],
                self._kit.driver.run(inspect_keys(database.shard, page)),
                weight,
            )
            seen += len(page)
        with self._lock:
            self._result.keys += max(total, seen)
            self._result.seen += seen

    def _add(
        self, shard: Shard, limits: Limits | None, keys: Sequence[KeyEncoding], weight: float
    ) -> None:
        groups: dict[KeyGroup, KeyStatistics] = {}
        names = self._names[shard.component]
        if self._repack:
            keys = self._repack_stale(shard, limits, keys)
        for seen in keys:
            structure = structure_of(seen.key, names)
            if structure is None:
                group = KeyGroup(shard.component, None, seen.type, seen.encoding)
            else:
                group = KeyGroup(shard.component, structure, "")
            statistics = groups.setdefault(group, KeyStatistics())
            if structure is None or is_part(seen.key):
                statistics.add(seen, weight, limits)
            else:
                statistics.add_beside(seen, weight, limits)
        with self._lock:
            for group, statistics in groups.items():
                self._result.groups.setdefault(group, KeyStatistics()).merge(statistics)

    def _repack_stale(
        self, shard: Shard, limits: Limits | None, keys: Sequence[KeyEncoding]
    ) -> list[KeyEncoding]:
        """Rewrite the parts that become compact; return all keys as they are now."""
        names = self._names[shard.component]
        parts = [seen for seen in keys if structure_of(seen.key, names) and is_part(seen.key)]
        stale = [part.key for part in parts if check(part, limits).stale]
        if not stale:
            return list(keys)
        now = {seen.key: seen for seen in self._kit.driver.run(_repack(shard, stale))}
        with self._lock:
            self._result.repacked += len(now)
        return [now.get(seen.key, seen) for seen in keys]

    def _probe(self, structure: StoredStructure) -> None:
        """Inspect the first parts of a structure that the sample missed."""
        name, groups = structure.name, structure.parameters.get("groups", "")
        keys = [f"{name}:{part}" for part in range(_PROBED)]
        if groups.isdigit():
            keys += [f"{name}:{{{tag}}}:0" for tag in islice(tags(int(groups)), _PROBED)]
        component = self._components[structure.component]
        owned_by: dict[Shard, list[str]] = {}
        for key in keys:
            owned_by.setdefault(component.shard_of(key), []).append(key)
        for shard, owned in owned_by.items():
            try:
                samples = self._kit.driver.run(inspect_keys(shard, owned))
            except (ShardErrors, ShardKitError) as error:
                self._result.failures.setdefault(str(shard), error)
                continue
            limits = next(iter(self._result.limits_of(component.name)), None)
            self._add(shard, limits, samples, 1.0)


def _repack(shard: Shard, keys: Sequence[bytes]) -> Operation[list[KeyEncoding]]:
    """Rewrite keys, each atomically."""
    for page in pages(keys, _REPACKED_AT_ONCE):
        yield [script_call(shard, script("admin/doctor/repack"), [key]) for key in page]
    return (yield from inspect_keys(shard, keys))


def _described(component: str, key: bytes, fields: object) -> StoredStructure | str:
    """Return the structure that a ``:meta`` key describes, or why it describes none."""
    if isinstance(fields, Exception):
        known = meaning(fields)
        return known.text if known else "is not a HASH"
    if not isinstance(fields, dict) or not fields:
        return ""  # it is gone
    if b"kind" not in fields:
        return "does not say the kind of its structure"
    words = {n.decode(errors="replace"): v.decode(errors="replace") for n, v in fields.items()}
    try:
        name = key.decode().removesuffix(meta_key(""))
    except UnicodeDecodeError:
        return "is not UTF-8"
    if words["kind"] not in _KINDS:
        return f"says kind={words['kind'][:40]!r}, which is not known"
    for word, most in (("part_size", 2**63), ("groups", MOST_GROUPS)):
        if not re.fullmatch("[0-9]{1,19}", words.get(word, "1")) or int(words.get(word, 1)) > most:
            return f"says {word}={words[word][:40]!r}, which cannot be"
    return StoredStructure(component, name, words)


@dataclass(frozen=True)
class Database:
    """A database of one shard; a cluster has one on each node."""

    shard: Shard
    address: str
    client: redis.Redis = field(repr=False)

    @property
    def server(self) -> str:
        """Its server's address: ``127.0.0.1:7101``."""
        return server_of(self.address)


@dataclass(frozen=True)
class ServerInfo:
    """A server process."""

    id: str
    address: str
    software: str
    limits: Limits | None
    replicas: int
    policy: str
    loses_scripts: bool
    client: redis.Redis = field(repr=False)


def distinct_shards(component: Component) -> Iterator[Shard]:
    """Yield a component's shards, its entry first; of those that share a database, the first."""
    addresses = set()
    for shard, entry in component.entries():
        if entry.address not in addresses:
            addresses.add(entry.address)
            yield shard


def databases_of(kit: ShardKit, component: Component, shard: Shard) -> list[Database]:
    """Return the databases of a shard: one, or on a cluster one for each master."""
    client = kit.clients.get(component, shard.number, raw=True)
    if isinstance(client, redis.RedisCluster):
        databases = [
            Database(shard, f"{node.host}:{node.port}", client.get_redis_connection(node))
            for node in client.get_primaries()  # type: ignore[no-untyped-call]
        ]
    else:
        databases = [Database(shard, component.entry_of(shard).address, client)]
    for database in databases:
        check_replies(database.client, reports=True)
    return databases


def databases_with(kit: ShardKit, *names: str) -> list[Database]:
    """Return the databases of components, each once.

    Raises:
        ConfigError: there is no such component, or an entry cannot be used.
    """
    databases = (
        database
        for name in names
        for shard in distinct_shards(kit.component(name))
        for database in databases_of(kit, kit.component(name), shard)
    )
    return list({database.address: database for database in databases}.values())


def server_info(database: Database) -> ServerInfo:
    """Return which server holds a database, and its limits."""
    client = database.client
    facts = ServerFacts(info=client.info())
    try:
        limits = read_limits(client.config_get(LIMITS_PATTERN))
    except redis.ResponseError:  # CONFIG is not permitted
        limits = None
    return ServerInfo(
        facts.run_id,
        database.server,
        f"{facts.software} {facts.version}",
        limits,
        int(facts.info.get("connected_slaves", 0)),
        facts.eviction_policy,
        loses_scripts(client, facts.info),
        client,
    )


def by_server(databases: Iterable[Database]) -> list[list[Database]]:
    """Return databases grouped by the server in their addresses."""
    groups: dict[str, list[Database]] = {}
    for database in databases:
        groups.setdefault(database.server, []).append(database)
    return list(groups.values())
