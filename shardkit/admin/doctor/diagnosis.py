"""Turns the result of a scan into findings and remedies, and raises limits on the servers.

Raising a limit pays off as long as the parts that it allows are fast. A compact part is searched
from its beginning, so beyond some length it costs time and saves little memory. The part size that
a structure was created with is taken as intended; beyond it, smaller parts help, not higher limits.

A new limit applies to keys that are written from now on. A key that is already a table stays one
until it is rewritten, which `shardkit.admin.doctor.scan` does for parts of structures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from redis.exceptions import RedisError

from shardkit.admin.doctor.scan import (
    KeyGroup,
    KeyStatistics,
    ScanResult,
    ServerInfo,
    StoredStructure,
    WorstExcess,
)
from shardkit.errors import natural
from shardkit.network.rules import eviction
from shardkit.structures.base.parameters import meta_key
from shardkit.structures.encodings.limits import FORMS, Excess, beyond, recommend

# Up to these sizes parts are fast: an HGET from 1,024 fields takes seven times as long as from 128,
# an intset is searched by bisection, and only adding to it moves the members that follow.
MOST_ENTRIES: Final[Mapping[str, int]] = {"hash": 1024, "zset": 1024, "set": 1024, "intset": 4096}
# Longer entries save little: the overhead of an entry is some 60 bytes.
MOST_BYTES: Final = 1024

# Problems: a limit is exceeded, or will be when parts reach their planned size.
ENTRIES, BYTES, PLAN = "entries", "bytes", "plan"
# No limit is raised above it: a server takes a millisecond for a command on so long a part.
_MOST_PLANNED = 2**16
# It was exceeded once; there is no compact form; the limits are unknown; a key describes nothing.
STALE, NO_FORM, UNKNOWN, BROKEN = "stale", "no form", "unknown", "broken"
RIGHTS, EVICTION = "rights", "eviction"  # a restart loses data; keys go as memory runs out

_SMALLER_BOUND = "make it with a smaller bound"
_OTHERS = {"hash": "kit.hash", "zset": "kit.sorted_set", "intset": "kit.set", "set": "kit.set"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as compact as it could be."""

    component: str
    structure: str | None  # None for other keys
    type: str  # TYPE of the keys, if they belong to no structure
    problem: str  # see the constants above
    keys: int  # about how many are affected; 0 for ``plan``
    text: str
    remedy: str
    setting: str | None = None  # the limit that is exceeded, as the server names it
    limit: int | None = None
    found: int | None = None  # the number of entries, or bytes, that exceeds it
    form: str | None = None  # the name of the compact form
    needed: int | None = None  # what to raise the limit to; None if raising it does not help


@dataclass(frozen=True, slots=True)
class GroupReport:
    """The findings about a structure, or about other keys of one type and encoding."""

    group: KeyGroup
    structure: StoredStructure | None
    statistics: KeyStatistics
    findings: tuple[Finding, ...] = ()

    @property
    def compact(self) -> float | None:
        """The share of its keys that are compact; None without a compact form or keys."""
        statistics = self.statistics
        return None if statistics.form is None else 1 - statistics.loose / statistics.keys


@dataclass(frozen=True)
class Diagnosis:
    """The findings; `broken` are bad ``:meta`` keys, and servers that will lose data."""

    scan: ScanResult
    structures: list[GroupReport] = field(default_factory=list)
    others: list[GroupReport] = field(default_factory=list)
    broken: list[Finding] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """Everything that is wrong, structures first."""
        reports = (*self.structures, *self.others)
        return [*self.broken, *(finding for report in reports for finding in report.findings)]

    @property
    def healthy(self) -> bool:
        """Whether all scanned keys are compact, and will stay so."""
        return not self.findings and not self.scan.failures


def diagnose(scan: ScanResult) -> Diagnosis:
    """Return the findings about scanned keys."""
    structures = []
    for key in sorted(scan.structures, key=lambda pair: tuple(map(natural, pair))):
        structure = scan.structures[key]
        group = KeyGroup(*key, "")
        statistics = scan.groups.get(group, KeyStatistics())
        findings = (
            *_beyond(group, statistics, structure),
            *_planned(scan, structure),
            *_rest(group, statistics),
        )
        structures.append(GroupReport(group, structure, statistics, findings))
    others = [
        GroupReport(
            group, None, statistics, (*_beyond(group, statistics, None), *_rest(group, statistics))
        )
        for group, statistics in sorted(
            scan.groups.items(), key=lambda item: item[0][::2] + item[0][3:]
        )
        if group.structure is None
    ]
    broken = [
        Finding(
            component,
            key.decode(errors="backslashreplace").removesuffix(meta_key("")),
            "",
            BROKEN,
            1,
            f"its :meta {text}",
            "restore it from a backup; if the key is your own, rename it",
        )
        for (component, key), text in sorted(scan.broken.items())
    ]
    for component, servers in sorted(scan.component_servers.items()):
        for server in (scan.servers[id_] for id_ in sorted(servers)):
            has_structures = any(owner == component for owner, _ in scan.structures)
            if has_structures and server.policy != "noeviction":
                text = f"{server.address} {eviction(server.policy).text}"
                remedy = "CONFIG SET maxmemory-policy noeviction"
                broken.append(Finding(component, None, "", EVICTION, 0, text, remedy))
            if server.loses_scripts:
                text = (
                    f"{server.address} appends to a file, and its default user is off without "
                    "rights: when it starts again it loses what scripts and MULTI wrote"
                )
                remedy = "ACL SETUSER default off ~* &* +@all, and ACL SAVE"
                broken.append(Finding(component, None, "", RIGHTS, 0, text, remedy))
    return Diagnosis(scan, structures, others, broken)


def _beyond(
    group: KeyGroup, statistics: KeyStatistics, structure: StoredStructure | None
) -> Iterator[Finding]:
    """Yield the limits that keys exceed, and those with a sorted set's first and last members."""
    form = statistics.form or ""
    for worst in statistics.worst.values():
        needed = _needed(form, worst.excess, structure.part_size if structure else None)
        remedy = _remedy(form, worst.excess, needed, structure)
        yield _exceeded(group, worst, "", remedy, form, needed)
    for worst in statistics.worst_ends.values():
        needed = _needed("zset", worst.excess, None)
        remedy = f"set {worst.excess.setting} to {needed}" if needed else _SMALLER_BOUND
        yield _exceeded(group, worst, ", of its first or last members", remedy, "zset", needed)


def _exceeded(
    group: KeyGroup, worst: WorstExcess, which: str, remedy: str, form: str, needed: int | None
) -> Finding:
    problem = BYTES if worst.excess.of_bytes else ENTRIES
    text = f"{worst.excess}{which}"
    return _finding(group, problem, round(worst.keys), text, remedy, worst.excess, form, needed)


def _needed(form: str, excess: Excess, planned: int | None) -> int | None:
    """Return what to raise a limit to; None if raising it costs more than it saves."""
    planned = min(planned or 0, _MOST_PLANNED)
    most = MOST_BYTES if excess.of_bytes else max(MOST_ENTRIES.get(form, 0), planned)
    if excess.found > most:
        return None
    if not excess.of_bytes and planned and excess.found <= planned:
        return planned
    return min(most, 1 << (excess.found - 1).bit_length())


def _remedy(
    form: str, excess: Excess, needed: int | None, structure: StoredStructure | None
) -> str:
    if needed is not None:
        return f"set {excess.setting} to {needed}"
    if excess.of_bytes:
        return "store long values elsewhere, or compress them (codec=)"
    if structure is not None:
        return "its parts outgrew their size: create it again with a larger total"
    return f"store it in parts ({_OTHERS.get(form, 'a structure')})"


def _planned(scan: ScanResult, structure: StoredStructure) -> Iterator[Finding]:
    """Yield the limits that parts will exceed when they reach their planned size."""
    form, size = structure.form, structure.part_size
    group = KeyGroup(structure.component, structure.name, "")
    statistics = scan.groups.get(group, KeyStatistics())
    if form is None or size is None:
        return
    for limits in scan.limits_of(structure.component):
        for excess in beyond(FORMS[form], size, None, limits):
            if (excess.setting, excess.limit) not in statistics.worst:
                text = (
                    f"{excess.setting} is {excess.limit:,}: parts may have {size:,} {excess.entry}s"
                )
                needed = size if size <= _MOST_PLANNED else None
                remedy = f"create it again with part_size up to {_MOST_PLANNED:,}"
                if needed:
                    remedy = f"set {excess.setting} to {needed}"
                yield _finding(group, PLAN, 0, text, remedy, excess, form, needed)


def _rest(group: KeyGroup, statistics: KeyStatistics) -> Iterator[Finding]:
    """Yield the reasons other than limits why keys are not compact."""
    what = "part" if group.structure else "key"
    if statistics.stale:
        text = f"{what}s are within the limits now, but exceeded them once"
        remedy = "rewrite them: " + ("--repack" if group.structure else "DUMP, RESTORE … REPLACE")
        yield _finding(group, STALE, round(statistics.stale), text, remedy)
    if statistics.without_form:
        text = "the server has no compact form for sets of text"
        remedy = "use integers (members=int), Redis 7.2 or later, or Valkey"
        yield _finding(group, NO_FORM, round(statistics.without_form), text, remedy)
    if statistics.unknown_limits:
        text = f"{what}s are not compact, and the server does not show its limits"
        yield _finding(
            group,
            UNKNOWN,
            round(statistics.unknown_limits),
            text,
            "allow CONFIG GET, or check them",
        )


def _finding(
    group: KeyGroup,
    problem: str,
    keys: int,
    text: str,
    remedy: str,
    excess: Excess | None = None,
    form: str | None = None,
    needed: int | None = None,
) -> Finding:
    where = (group.component, group.structure, group.type, problem, keys, text, remedy)
    if excess is None:
        return Finding(*where, form=form, needed=needed)
    return Finding(*where, excess.setting, excess.limit, excess.found, form, needed)


@dataclass(frozen=True, slots=True)
class LimitChange:
    """A limit to raise on one server; once that was tried, ``error`` is why it failed."""

    server: ServerInfo
    setting: str
    before: int
    after: int
    error: Exception | None = None


def limit_changes(diagnosis: Diagnosis) -> list[LimitChange]:
    """Return which limits to raise: on all servers of a component, so that new parts fit too."""
    servers = diagnosis.scan.servers
    wanted: dict[tuple[str, str, str], int] = {}  # by address, server and setting
    for finding in diagnosis.findings:
        if finding.needed is None or finding.form is None:
            continue
        of_bytes = finding.problem == BYTES
        entries, longest = (0, finding.needed) if of_bytes else (finding.needed, None)
        for id_ in diagnosis.scan.component_servers[finding.component]:
            limits = servers[id_].limits
            if limits is None:
                continue
            settings = recommend(finding.form, entries, longest, limits)
            for setting, value in settings.items():
                key = servers[id_].address, id_, setting
                wanted[key] = max(value, wanted.get(key, 0))
    return [
        LimitChange(servers[id_], setting, limits.settings[setting], value)
        for (_, id_, setting), value in sorted(wanted.items())
        if (limits := servers[id_].limits) and limits.settings[setting] < value
    ]


def apply_changes(changes: Iterable[LimitChange]) -> list[LimitChange]:
    """Raise limits until the servers restart; return the changes with their outcomes."""
    return [
        replace(
            change, error=_failure(change.server.client.config_set, change.setting, change.after)
        )
        for change in changes
    ]


def rewrite_configs(servers: Iterable[ServerInfo]) -> dict[str, Exception | None]:
    """Make servers save their settings in their configuration files, to survive a restart.

    Returns:
        By address: None, or why it failed.
    """
    return {server.address: _failure(server.client.config_rewrite) for server in servers}


def _failure(call: Callable[..., Any], *args: object) -> Exception | None:
    try:
        call(*args)
    except (RedisError, OSError) as error:
        return error
    return None
