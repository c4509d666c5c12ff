"""One verdict on a fleet: servers, the shards on them, rights, unfinished moves, structures.

Servers are asked in parallel, each once; `shardkit.network.rules` judges. Nothing is changed.

Structures are checked by their own ``check()``. They are found by their ``:meta`` keys, and opened
with the parameters in them; ranges of addresses by their ``:generations``, queues by their
``:tasks``. Parts of a structure without parameters count as damage: only the application knows the
parameters to open and rebuild it. Some structures cannot be opened from what is stored: a hash with
an application's own codec, an index with its own analyzer, an address book with its own function.
They are listed as unchecked. Recent contacts look like an application's own keys: they are checked
by user.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from typing import Any, Final

import redis
from redis.exceptions import NoPermissionError

from shardkit.admin.doctor.scan import (
    Progress,
    ScanResult,
    StoredStructure,
    databases_of,
    distinct_shards,
    scan,
    structure_of,
)
from shardkit.admin.locate import MEMBER_TYPES
from shardkit.completion import fold
from shardkit.config.component import Component
from shardkit.config.store import read_epoch
from shardkit.errors import (
    ConfigError,
    ConfigServerError,
    NewerFormatError,
    ShardKitError,
    ShardUnavailable,
    natural,
)
from shardkit.kit.kit import ShardKit
from shardkit.network.rules import (
    CheckFinding,
    ConfigFacts,
    JudgedEntry,
    OpenMove,
    Severity,
    group_by_server,
    judge,
)
from shardkit.network.server_queries import TIMEOUT, ServerErrors
from shardkit.network.survey import survey, targets_of
from shardkit.operations.arguments import Seconds, check_seconds
from shardkit.operations.commands import Shard
from shardkit.operations.server_errors import meaning
from shardkit.search.schema import analyzer_of, parameters_of
from shardkit.structures import Damage, codec
from shardkit.structures.base.parameters import RENAMED, meta_key

_DAY: Final = re.compile(r"(.+):(\d{4}-\d\d-\d\d)\Z")
_TOTALS: Final = re.compile(rb"(.+):done:\{\d{4}-\d\d-\d\d\}\Z", re.DOTALL)
_SCAN: Final = 10_000
_AWAY: Final = (redis.ConnectionError, redis.TimeoutError, OSError, ShardUnavailable)
# Patterns of keys that structures have beside their parts, with their types.
_SIGNS: Final = (("*:parts", "set"), ("*:ends", "hash"), ("*}", "hash"))
# By kind, the parameter that is a type.
_TYPED: Final = {"set": "members", "hash": "fields", "list": "values", "sorted-set": "members"}
# Kinds whose parameters have a part size; of visitor counters all but one precision.
_IN_PARTS: Final = frozenset(("hash", "list", "packed", "set", "sorted-set", "unique-visitors"))


@dataclass
class CheckedStructure:
    """A structure and its damages; why it was not checked; how to repair it, if it can be."""

    component: str
    name: str
    kind: str
    damages: list[Damage] = field(default_factory=list)
    unchecked: str = ""
    rebuild: Callable[[], Any] | None = None

    @property
    def repairable(self) -> bool:
        """Whether `rebuild` repairs some of the damage."""
        repairs = any(damage.repair.startswith("rebuild()") for damage in self.damages)
        return self.rebuild is not None and repairs


class _UncheckedError(Exception):
    """Why a structure cannot be opened from what is stored."""


@dataclass(frozen=True)
class _Checkable:
    check: Callable[[], Iterable[Damage]]
    rebuild: Callable[[], Any] | None = None


def check_all(
    kit: ShardKit,
    components: Mapping[str, Component],
    scan: ScanResult,
    names: Collection[str] = (),
    progress: Progress = lambda what, done, total: None,
) -> list[CheckedStructure]:
    """Check all structures that a scan found, or those with some names.

    Shards whose keys cannot be listed are added to the scan's failures; the structures on others
    are checked. ``progress`` is called with a structure's name, how many are done, and how many
    there are.

    Cost: all structures are read, in slices: see ``check()`` of each structure.
    """
    stored = [one for one in scan.structures.values() if _counter_of(one, scan) is None]
    stored += [one for name in components for one in _unnamed(kit, components[name], scan)]
    chosen = sorted(
        (one for one in stored if not names or one.name in names),
        key=lambda structure: (natural(structure.component), natural(structure.name)),
    )
    checked = []
    for n, structure in enumerate(chosen):
        progress(f"{structure.component}/{structure.name}", n, len(chosen))
        checked.append(_check(kit, structure, scan, components))
    if not names:
        for component in components.values():
            known = {one.name.encode() for one in stored if one.component == component.name}
            checked += _orphans(kit, component, known, scan)
    progress("", len(chosen), len(chosen))
    return checked


def _check(
    kit: ShardKit,
    structure: StoredStructure,
    scan: ScanResult,
    components: Mapping[str, Component],
) -> CheckedStructure:
    checked = CheckedStructure(structure.component, structure.name, structure.kind)
    try:
        opened = _open(kit, structure, scan, components)
        checked.rebuild = opened.rebuild
        checked.damages = list(opened.check())
    except (KeyError, ValueError) as error:  # not written by shardkit
        key = meta_key(structure.name)
        checked.damages.append(
            Damage(
                structure.component, "", key, f"{error}", "the parameters of a structure", "", ""
            )
        )
    except (_UncheckedError, ShardKitError) as error:
        checked.unchecked = str(error)
    except ServerErrors as error:
        known = meaning(error)
        checked.unchecked = known.text if known else str(error)
    return checked


def _open(
    kit: ShardKit,
    structure: StoredStructure,
    scan: ScanResult,
    components: Mapping[str, Component],
) -> _Checkable:
    name, component = structure.name, structure.component
    stored = {RENAMED.get(word, word): value for word, value in structure.parameters.items()}
    opened: Any
    size = int(stored.get("part_size", 0)) or None
    if size is None and structure.kind in _IN_PARTS and stored.get("precision") != "hyperloglog":
        raise ValueError("no part_size")
    total = int(stored["total"]) if "total" in stored else None
    if stored.get("codec", "none") != "none":
        try:
            codec(stored["codec"])
        except ShardKitError as error:
            raise _UncheckedError(f"its codec is the application's: {error}") from None
    given: dict[str, Any] = {"component": component, "part_size": size}
    if word := _TYPED.get(structure.kind):
        given[word] = MEMBER_TYPES[stored[word]]
    if "groups" in stored:
        given["parts"] = int(stored["groups"])
    if structure.kind == "hash" or (structure.kind == "set" and total):
        given["partition"] = stored["partition"]
    if structure.kind == "set":
        opened = kit.set(name, total=total, **given)
    elif structure.kind == "hash":
        if stored.get("hashed_size", str(size)) != str(size):
            given["part_size"] = None
        codec_name = None if stored["codec"] == "none" else stored["codec"]
        opened = kit.hash(name, total=total, codec=codec_name, **given)
    elif structure.kind == "list":
        opened = kit.list(name, **given)
    elif structure.kind == "sorted-set":
        opened = kit.sorted_set(name, bound=int(stored["bound"]), **given)
    elif structure.kind == "packed":
        fields = dict(pair.split(":", 1) for pair in stored["fields"].split(","))
        opened = kit.packed(name, fields=fields, **given)
    elif structure.kind == "unique-visitors":
        counter = kit.unique_visitors(
            name,
            component=component,
            precision=stored["precision"],
            part_size=size,
            digits=int(stored["digits"]) if "digits" in stored else None,
            partition=stored.get("partition"),
        )
        days = sorted(
            date.fromisoformat(day)
            for other in scan.structures.values()
            if _counter_of(other, scan) == name and (day := other.name.rpartition(":")[2])
        )
        return _Checkable(lambda: (damage for day in days for damage in counter.check(day)))
    elif structure.kind == "search":
        shards, parameters = parameters_of(name, stored)
        index = kit.search(name, component=component, parts=shards, **parameters)
        return _Checkable(index.check, partial(index.rebuild, lossy=True))
    elif structure.kind == "ads":
        shards, analyzer = int(stored["shards"]), analyzer_of(name, stored["analyzer"])
        ads = kit.ads(name, component=component, parts=shards, analyzer=analyzer)
        return _Checkable(ads.check, partial(ads.rebuild, lossy=True))
    elif structure.kind == "jobs":
        measure, shards = stored["measure"], int(stored["shards"])
        jobs = kit.job_search(name, component=component, parts=shards, measure=measure)
        return _Checkable(jobs.check, partial(jobs.rebuild, lossy=True))
    elif structure.kind == "social":
        opened = kit.social(
            name,
            component=component,
            timelines=_home_of(kit, components, component, f"profile:{{{name}:*}}", "zset"),
            followers=_home_of(kit, components, component, f"clock:{{{name}:*}}", "string"),
            parts=int(stored["parts"]),
            relation_parts=int(stored["relation_shards"]),
        )
    elif structure.kind == "address-book":
        if stored["fold"] not in ("", fold.__name__):
            raise _UncheckedError(f"its names are compared by the application's {stored['fold']}")
        name, parts = name.strip("{}"), int(stored["parts"])
        function = fold if stored["fold"] else None
        book = kit.address_book(name, component=component, parts=parts, fold=function)
        keys = _keys(kit, components[component], f"{name}:*", "zset")
        names = (key.decode(errors="replace").removeprefix(f"{name}:") for _, key in keys)
        known = sorted({text.rpartition(":")[0] if parts > 1 else text for text in names})
        return _Checkable(
            lambda: (damage for group in known for damage in book.check(group)),
            lambda: sum(book.rebuild(group) for group in known),
        )
    elif structure.kind == "city-totals":
        totals = kit.city_totals(name, component=component)
        keys = _keys(kit, components[component], f"{name}:done:{{*}}", "set")
        dates = sorted({key.decode()[-11:-1] for _, key in keys})
        return _Checkable(lambda: (damage for day in dates for damage in totals.check(day)))
    elif structure.kind == "ip-to-city":
        return _Checkable(kit.ip_to_city(name, component=component).check)
    else:
        assert structure.kind == "queue", structure.kind
        prefix, _, queue = name.rpartition(":")
        queues = kit.queues(prefix, component=component)
        return _Checkable(lambda: queues.check(queue.strip("{}")))
    return _Checkable(opened.check, opened.rebuild)


def _home_of(
    kit: ShardKit, components: Mapping[str, Component], default: str, pattern: str, kind: str
) -> str:
    """Return the component that has such keys; the default if it does, or if none does."""
    others = [component for name, component in components.items() if name != default]
    for component in (components[default], *others):
        if any(True for _ in _keys(kit, component, pattern, kind)):
            return component.name
    return default


def _counter_of(structure: StoredStructure, scan: ScanResult) -> str | None:
    """Return the counter of visitors that a structure is a day of; None if it is none."""
    day = _DAY.match(structure.name)
    counter = day and scan.structures.get((structure.component, day[1]))
    return counter.name if counter and counter.kind == "unique-visitors" else None


def _unnamed(kit: ShardKit, component: Component, scanned: ScanResult) -> Iterator[StoredStructure]:
    """Yield structures without parameters: ranges of addresses, queues, and totals."""
    for pattern, kind in (("*:generations", "ip-to-city"), ("*:{*}:tasks", "queue")):
        for _, key in _keys(kit, component, pattern, "hash", scanned.failures):
            name = key.decode(errors="backslashreplace").rpartition(":")[0]
            yield StoredStructure(component.name, name, {"kind": kind})
    days = _keys(kit, component, "*:done:{*}", "set", scanned.failures)
    matches = {_TOTALS.match(key) for _, key in days}
    for name in sorted({match[1].decode(errors="backslashreplace") for match in matches if match}):
        yield StoredStructure(component.name, name, {"kind": "city-totals"})


def _orphans(
    kit: ShardKit, component: Component, known: Collection[bytes], scanned: ScanResult
) -> Iterator[CheckedStructure]:
    """Yield structures that have lost their parameters."""
    seen = set()
    for pattern, kind in _SIGNS:
        for shard, key in _keys(kit, component, pattern, kind, scanned.failures):
            name = key[: key.rfind(b":")]
            if name in seen or name in known or structure_of(key, known):
                continue
            if pattern == "*}":
                client: Any = kit.client(component.name, shard.number)
                if None in client.hmget(key, "parts", "count", "of"):
                    continue
            seen.add(name)
            text, shown = name.decode(errors="backslashreplace"), key.decode(errors="replace")
            repair = "open it with its parameters, and rebuild() it"
            damage = Damage(
                component.name,
                str(shard),
                meta_key(text),
                "nothing",
                f"the parameters of {shown}",
                repair,
            )
            yield CheckedStructure(component.name, text, "unknown", [damage])


def _keys(
    kit: ShardKit,
    component: Component,
    pattern: str,
    kind: str,
    failures: dict[str, Exception] | None = None,
) -> Iterator[tuple[Shard, bytes]]:
    """Yield a component's keys of a type; with ``failures``, of the shards that answer."""
    for shard in distinct_shards(component):
        if failures is not None and isinstance(failures.get(str(shard)), _AWAY):
            continue
        try:
            for database in databases_of(kit, component, shard):
                keys = database.client.scan_iter(match=pattern, count=_SCAN, _type=kind.upper())
                yield from ((shard, key) for key in keys)
        except (ShardKitError, *ServerErrors) as error:
            if failures is None:
                raise
            failures.setdefault(str(shard), error)


_LEASE_KEY = "config:growth:lease"  # see shardkit.admin.growth.journal


@dataclass
class CheckReport:
    """The findings of a check, and what it covered.

    Attributes:
        findings: what is wrong first, then warnings.
        servers: how many servers answered.
        shards: how many databases of entries were checked.
        keys: how many keys were sampled.
    """

    findings: list[CheckFinding] = field(default_factory=list)
    servers: int = 0
    shards: int = 0
    keys: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; there may be warnings."""
        return all(finding.warning for finding in self.findings)


def check(
    components: Iterable[Component],
    timeout: Seconds = TIMEOUT,
    *,
    config: redis.Redis | None = None,
) -> CheckReport:
    """Check the servers of components.

    ``timeout`` is in seconds for one answer of a server. By ``config``, a client of the config
    server, it finds out whether that went back in time, and which moves and failovers are
    unfinished.

    Returns:
        The findings, each with its remedy. Cost: about ten exchanges with each server and two with
        each of its databases, all servers in parallel; at most about four times ``timeout``.

    Raises:
        ConfigServerError: the config server cannot be read.
    """
    timeout = check_seconds("check", "timeout", timeout, 0.001)
    rows = survey(targets_of(components), timeout, thorough=True)
    judgement = judge(rows, ConfigFacts() if config is None else config_facts(config))
    report = CheckReport(list(judgement.findings))
    for group in group_by_server(judgement.entries).values():
        shards = list(dict.fromkeys(str(entry.row.target.shard) for entry in group))
        more = f" and {len(shards) - 2} more" if len(shards) > 2 else ""
        name = f"{group[0].row.server.address} ({', '.join(shards[:2])}{more})"
        report.findings += _findings(name, group[0], of_server=True)
        for entry in group:
            where = f"{entry.row.target.shard} ({entry.row.target.entry.address})"
            report.findings += _findings(where, entry, of_server=False)
        facts = group[0].row.server
        if facts.error is None:
            report.servers += 1
            report.shards += len(group)
            report.keys += sum(len(database.keys or ()) for database in facts.databases.values())
    report.findings.sort(key=lambda finding: finding.warning)
    return report


def _findings(where: str, entry: JudgedEntry, *, of_server: bool) -> list[CheckFinding]:
    return [
        CheckFinding(
            where, problem.text, problem.remedy, problem.severity == Severity.WARNING, problem.kind
        )
        for problem in entry.problems
        if problem.of_server == of_server
    ]


def config_facts(config: Any) -> ConfigFacts:
    """Read the epoch, unfinished moves and failovers of a config server.

    What the client's user must not read is left out.
    """
    from shardkit.admin.growth import moves, pending_fences  # much, rarely needed

    unreadable: list[ShardKitError] = []

    def read(query: Callable[[], Iterable[Any]]) -> list[Any]:
        try:
            return list(query())
        except ConfigServerError:
            raise
        except NoPermissionError:
            return []
        except (ConfigError, NewerFormatError) as error:
            unreadable.append(error)
            return []

    epoch = read_epoch(config)
    return ConfigFacts(
        epoch,
        [
            OpenMove(move.name, move.target, move.phase, move.shards)
            for move in read(lambda: moves(config, unreadable))
            if not move.is_over
        ],
        [(str(fence.source), str(fence.target)) for fence in read(lambda: pending_fences(config))],
        bool(read(lambda: [1] * config.exists(_LEASE_KEY))),
        unreadable,
    )


def check_structures(
    kit: ShardKit,
    components: Mapping[str, Component],
    progress: Callable[[str, int, int], object] = lambda what, done, total: None,
) -> tuple[list[CheckFinding], int]:
    """Read all structures of components, and compare their counts with what is there.

    ``progress`` is called with a structure's name, how many are done, and how many there are.

    Returns:
        What is damaged, and how many structures were read. Cost: all of it is read, in slices; see
        ``check()`` of each structure.
    """
    seen = scan(kit, components, 1, progress=progress)
    checked = check_all(kit, components, seen, progress=progress)
    findings = [
        CheckFinding(
            f"{row.component}/{row.name} ({damage.shard})",
            f"{damage.key} is damaged: {damage.found}, where {damage.expected} was expected",
            damage.repair or "restore it from a backup",
            kind="damage",
        )
        for row in checked
        for damage in row.damages
    ]
    findings += [
        CheckFinding(
            f"{row.component}/{row.name}", f"was not read: {row.unchecked}", "", True, "unread"
        )
        for row in checked
        if row.unchecked
    ]
    findings += [
        CheckFinding(shard, f"was not read: {error}", "see the server's findings", True, "unread")
        for shard, error in seen.failures.items()
    ]
    return findings, len(checked)
