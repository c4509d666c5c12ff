"""From what was seen to what is wrong, and what to do about it: pure rules.

A limit is worth raising as long as what it allows is still fast: a compact part is searched from
its beginning, so beyond some length time is lost for little memory. What a structure was planned
with counts as meant; beyond that it is smaller parts that help, not higher limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from shardkit.doctor.scan import ScanResult
from shardkit.doctor.summary import KeyGroup, KeyStatistics, StoredStructure
from shardkit.doctor.targets import ServerInfo
from shardkit.encodings.limits import FORMS, Excess, beyond, recommend

# So many entries are still fast: an HGET from 1,024 fields takes seven times that from 128, an
# intset is searched by halves, and only adding to it moves what follows.
MOST_ENTRIES: Final[Mapping[str, int]] = {"hash": 1024, "zset": 1024, "set": 1024, "intset": 4096}
# Entries that are longer than this save little: an entry's overhead is some 60 bytes.
MOST_BYTES: Final = 1024

ENTRIES, BYTES, PLAN = "entries", "bytes", "plan"
STALE, FORMLESS, UNTOLD = "stale", "no form", "unknown"

_OTHERS = {"hash": "kit.hash", "zset": "kit.sorted_set", "intset": "kit.set", "set": "kit.set"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as compact as it could be.

    Attributes:
        component: where.
        structure: the structure; None for other keys.
        type: TYPE of the keys concerned, for those that are no structure's.
        problem: ``entries`` or ``bytes``: a limit is exceeded; ``plan``: it will be, once parts
            are as large as planned; ``stale``: it was once; ``no form``: the server has none;
            ``unknown``: it does not tell.
        keys: how many keys are concerned, about; 0 for a plan.
        text: what is wrong.
        remedy: what to do about it.
        setting: the limit, as the server names it.
        limit: its value.
        found: what is beyond it: a number of entries, or of bytes.
        form: the name of the compact form.
        needed: what to raise the limit to; None if that does not help.
    """

    component: str
    structure: str | None
    type: str
    problem: str
    keys: int
    text: str
    remedy: str
    setting: str | None = None
    limit: int | None = None
    found: int | None = None
    form: str | None = None
    needed: int | None = None


@dataclass(frozen=True, slots=True)
class GroupReport:
    """A structure, or other keys of one type and encoding.

    Attributes:
        group: which.
        structure: the structure, if it is one.
        tally: its keys, added up.
        findings: what is wrong with it.
    """

    group: KeyGroup
    structure: StoredStructure | None
    tally: KeyStatistics
    findings: tuple[Finding, ...] = ()

    @property
    def compact(self) -> float | None:
        """The share of its keys that are compact; None if there is no such form or no key."""
        tally = self.tally
        return None if tally.form is None else 1 - tally.loose / tally.keys


@dataclass(frozen=True)
class Diagnosis:
    """What is to be said of components.

    Attributes:
        examination: what was seen.
        structures: the structures, by component and name.
        others: all other keys, by component, type and encoding.
    """

    examination: ScanResult
    structures: list[GroupReport] = field(default_factory=list)
    others: list[GroupReport] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """Everything that is wrong, structures first."""
        return [each for report in (*self.structures, *self.others) for each in report.findings]

    @property
    def healthy(self) -> bool:
        """Whether all that was looked at is compact, and will be."""
        return not self.findings and not self.examination.failures


def diagnose(seen: ScanResult) -> Diagnosis:
    """Say what is wrong with what was seen."""
    structures = []
    for key in sorted(seen.structures):
        structure = seen.structures[key]
        group = KeyGroup(*key, "")
        tally = seen.tallies.get(group, KeyStatistics())
        found = (
            *_beyond(group, tally, structure),
            *_planned(seen, structure),
            *_rest(group, tally),
        )
        structures.append(GroupReport(group, structure, tally, found))
    others = [
        GroupReport(group, None, tally, (*_beyond(group, tally, None), *_rest(group, tally)))
        for group, tally in sorted(
            seen.tallies.items(), key=lambda item: item[0][::2] + item[0][3:]
        )
        if group.structure is None
    ]
    return Diagnosis(seen, structures, others)


def _beyond(
    group: KeyGroup, tally: KeyStatistics, structure: StoredStructure | None
) -> Iterator[Finding]:
    """Yield the limits that keys are beyond."""
    form = tally.form or ""
    for worst in tally.worst.values():
        excess = worst.excess
        planned = structure.part_size if structure else None
        needed = _needed(form, excess, planned)
        yield _finding(
            group,
            BYTES if excess.of_bytes else ENTRIES,
            round(worst.keys),
            str(excess),
            _remedy(form, excess, needed, structure),
            excess,
            form,
            needed,
        )


def _needed(form: str, excess: Excess, planned: int | None) -> int | None:
    """Return what to raise a limit to; None if that would cost more than it saves."""
    most = MOST_BYTES if excess.of_bytes else max(MOST_ENTRIES.get(form, 0), planned or 0)
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
        return "keep what is so long elsewhere, or compress it (codec=)"
    if structure is not None:
        return "its parts outgrew their size: make it anew, for a larger total"
    return f"keep it in parts ({_OTHERS.get(form, 'a structure')})"


def _planned(seen: ScanResult, structure: StoredStructure) -> Iterator[Finding]:
    """Yield the limits that parts as large as planned will be beyond, where none is yet."""
    form, size = structure.form, structure.part_size
    group = KeyGroup(structure.component, structure.name, "")
    tally = seen.tallies.get(group, KeyStatistics())
    if form is None or size is None:
        return
    for limits in seen.limits_of(structure.component):
        for excess in beyond(FORMS[form], size, None, limits):
            if (excess.setting, excess.limit) not in tally.worst:
                text = (
                    f"{excess.setting} is {excess.limit:,}: parts may have {size:,} {excess.entry}s"
                )
                remedy = f"set {excess.setting} to {size}"
                yield _finding(group, PLAN, 0, text, remedy, excess, form, size)


def _rest(group: KeyGroup, tally: KeyStatistics) -> Iterator[Finding]:
    """Yield what keeps keys from being compact beside limits."""
    what = "part" if group.structure else "key"
    if tally.stale:
        text = f"{what}s are within the limits now, but were converted once"
        remedy = "write them anew: " + (
            "--repack" if group.structure else "DUMP, RESTORE … REPLACE"
        )
        yield _finding(group, STALE, round(tally.stale), text, remedy)
    if tally.formless:
        text = "the server has no compact form of text in sets"
        remedy = "use integers (members=int), Redis from 7.2 on, or Valkey"
        yield _finding(group, FORMLESS, round(tally.formless), text, remedy)
    if tally.untold:
        text = f"{what}s are not compact, and the server does not tell its limits"
        yield _finding(group, UNTOLD, round(tally.untold), text, "allow CONFIG GET, or look there")


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
    """A setting of one server that is to be raised.

    Attributes:
        server: which.
        setting: the limit, as the server names it.
        before, after: its value now, and what it is to be.
    """

    server: ServerInfo
    setting: str
    before: int
    after: int


def prescribe(diagnosis: Diagnosis) -> list[LimitChange]:
    """Return what to set on which servers: on all of a component, so that new parts fit as well."""
    seen = diagnosis.examination
    wanted: dict[tuple[str, str], int] = {}
    for finding in diagnosis.findings:
        if finding.needed is None or finding.form is None:
            continue
        for id_ in seen.homes[finding.component]:
            for setting, value in _settings(seen.servers[id_], finding):
                wanted[id_, setting] = max(value, wanted.get((id_, setting), 0))
    return list(_changes(seen.servers, wanted.items()))


def _settings(server: ServerInfo, finding: Finding) -> Iterable[tuple[str, int]]:
    """Return a finding's setting as a server names it."""
    if server.limits is None or finding.form is None or finding.needed is None:
        return ()
    entries, longest = (0, finding.needed) if finding.problem == BYTES else (finding.needed, None)
    return recommend(finding.form, entries, longest, server.limits).items()


def _changes(
    servers: Mapping[str, ServerInfo], wanted: Iterable[tuple[tuple[str, str], int]]
) -> Iterator[LimitChange]:
    for (id_, setting), value in sorted(
        wanted, key=lambda each: (servers[each[0][0]].address, each)
    ):
        limits = servers[id_].limits
        assert limits is not None
        before = limits.settings[setting]
        if before < value:
            yield LimitChange(servers[id_], setting, before, value)
