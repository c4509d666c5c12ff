"""Checks the servers that a push adds or changes, before clients are sent there.

Each entry that the push adds or changes is surveyed (`shardkit.network.survey`) and judged by
`shardkit.network.rules`. Where an entry leaves one database for another, 100 keys of the old one
are looked for in the new one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardkit.config.component import Component
from shardkit.config.entry import Entry
from shardkit.config.store import force_options
from shardkit.errors import PushRefusedError, few
from shardkit.network.connections import Connector
from shardkit.network.connections.databases import FENCE_KEY
from shardkit.network.rules import (
    CLOSED,
    LOADING,
    MISPLACED_SHARE,
    NO_DATABASE,
    NO_INFO,
    REFUSED,
    RESTART,
    RIGHTS,
    SAMPLING,
    UNREACHABLE,
    UNUSABLE,
    WRONG_ROLE,
    closed,
    judge,
    keys_of_other_shards,
)
from shardkit.network.survey import (
    SAMPLED_KEYS,
    SurveyedEntry,
    Target,
    query_entries,
    reason,
    sample_of,
    survey,
    targets_of,
)
from shardkit.routing.placement import DEFAULT, placement

_SHOWN = frozenset(
    {UNUSABLE, UNREACHABLE, REFUSED, LOADING, NO_DATABASE, WRONG_ROLE, CLOSED}
    | {RIGHTS, NO_INFO, RESTART, SAMPLING}
)
_WHOLE = ("whole:crc32", "whole:md5", "whole:sha1")
_PLACEMENTS = (DEFAULT, "slot", "rendezvous", "redis-in-action", *_WHOLE)
_FEWEST_KEYS = 20  # that tell one placement from another


@dataclass(frozen=True, slots=True)
class PreflightFinding:
    """A problem with one entry of a push."""

    component: str
    entry: str
    address: str
    problem: str
    remedy: str
    warning: bool = False

    def __str__(self) -> str:
        return f"{self.entry} ({self.address}) {self.problem}"


@dataclass(frozen=True)
class _PushedEntry:
    """One entry that a push adds or changes, and the one that it replaces."""

    target: Target
    component: Component
    before: Entry | None = None

    @property
    def leaves(self) -> bool:
        """Whether the entry leaves one address for another."""
        return self.before is not None and self.before.address != self.target.entry.address

    def finding(self, problem: str, remedy: str, warning: bool = False) -> PreflightFinding:
        target = self.target
        return PreflightFinding(
            self.component.name, target.where, target.entry.address, problem, remedy, warning
        )


_Surveyed = Mapping[Entry, SurveyedEntry]


def refuse(findings: Sequence[PreflightFinding]) -> None:
    """Refuse a push if there are findings."""
    if findings:
        names = dict.fromkeys(finding.component for finding in findings)
        raise PushRefusedError(
            f"nothing was pushed: {few(list(map(str, findings)), '; ')}",
            f"{findings[0].remedy}, or push with {force_options(names)}",
        )


def preflight(
    current: Mapping[str, Component], wanted: Mapping[str, Component], *, moved_only: bool = False
) -> list[PreflightFinding]:
    """Survey every entry that a push would add or change, and return what is wrong with it.

    If ``moved_only``, look only at entries that leave one database for another, and only whether a
    master has the data there. Cost: about ten exchanges with each server, and two for each
    database, servers in parallel.
    """
    changes = [
        change
        for name in sorted(wanted)
        for change in _changes(current.get(name), wanted[name])
        if change.leaves or not moved_only
    ]
    by_hand = [
        wanted[name]
        for name, before in sorted(current.items())
        if before.by_hand is not None and name in wanted and not moved_only
    ]
    others = [change.before for change in changes if change.before] + [
        entry for component in by_hand for entry in component.shards
    ]
    rows = survey(
        [*(change.target for change in changes), *(Target("it", entry) for entry in others)],
        thorough=True,
    )
    surveyed: dict[Entry, SurveyedEntry] = {}
    for row in rows:
        known = surveyed.setdefault(row.target.entry, row)
        if known.server.error is not None and row.server.error is None:
            surveyed[row.target.entry] = row  # another node of a cluster
    shared = _shared_keys(changes, surveyed)
    savers = _savers(changes, surveyed)
    findings: list[PreflightFinding] = []
    for change in changes:
        findings += _own_problems(change, surveyed, {WRONG_ROLE, CLOSED} if moved_only else _SHOWN)
        if _is_usable(surveyed[change.target.entry]):
            findings += [] if moved_only else _same_files(change, surveyed, savers)
            if not change.target.node and not change.target.entry.is_cluster:
                findings += [
                    change.finding(*each) for each in _data_problems(change, surveyed, shared)
                ]
    return findings + [f for component in by_hand for f in _wrong_placement(component, surveyed)]


def _changes(before: Component | None, after: Component) -> Iterator[_PushedEntry]:
    if before is not None and before.same_as(after):
        return
    old = dict(before.entries()) if before is not None else {}
    moved = before is not None and (
        len(before.shards) != len(after.shards) or before.placement != after.placement
    )
    for target in targets_of([after]):
        shard = target.shard
        assert shard is not None
        previous = old.get(shard)
        if target.node:
            if previous != after.entry_of(shard) and (
                previous is None or target.entry not in previous.replicas
            ):
                yield _PushedEntry(target, after)
        elif previous != target.entry:
            yield _PushedEntry(
                target, after, None if moved and shard.number is not None else previous
            )


def _is_usable(row: SurveyedEntry) -> bool:
    return row.server.error is None and row.database.exists


def _own_problems(
    change: _PushedEntry, surveyed: _Surveyed, kinds: Collection[str]
) -> Iterator[PreflightFinding]:
    row = surveyed[change.target.entry]
    judged = judge([SurveyedEntry(change.target, row.number, row.server)], kinds=kinds)
    for problem in judged.entries[0].problems:
        mild = problem.mild or problem.kind in (RESTART, NO_INFO)
        yield change.finding(problem.text, problem.remedy, mild)


def _shared_keys(
    changes: Sequence[_PushedEntry], surveyed: _Surveyed
) -> dict[_PushedEntry, float | Exception]:
    """Return which share of the keys sampled in the old database is in the new one too."""
    samples = {}
    for change in changes:
        old, new = _databases(change, surveyed)
        if old and new and old.database.keys and new.database.keys and not _is_same(old, new):
            samples[change] = old.database.keys

    def share(change: _PushedEntry, client: Any) -> float:
        pipe = client.pipeline(transaction=False)
        for key in samples[change]:
            pipe.exists(key)
        return float(sum(pipe.execute())) / len(samples[change])

    return query_entries({change: change.target.entry for change in samples}, share)


def _databases(
    change: _PushedEntry, surveyed: _Surveyed
) -> tuple[SurveyedEntry | None, SurveyedEntry | None]:
    """Return a change's old and new database, if there are any to compare."""
    if change.before is None or change.target.entry.is_cluster or change.before.is_cluster:
        return None, None
    old, new = surveyed[change.before], surveyed[change.target.entry]
    return (old if _is_usable(old) else None), (new if _is_usable(new) else None)


def _is_same(one: SurveyedEntry, other: SurveyedEntry) -> bool:
    """Whether two entries lead to one database, whatever their addresses."""
    run_id = one.server.run_id
    return bool(run_id) and (run_id, one.number) == (other.server.run_id, other.number)


_Savers = Mapping[tuple[str, str], Mapping[str, str]]


def _savers(changes: Sequence[_PushedEntry], surveyed: _Surveyed) -> _Savers:
    """Return, by host and path, the servers that save their data there: run ids and addresses."""
    savers: dict[tuple[str, str], dict[str, str]] = {}
    for change in changes:
        facts = surveyed[change.target.entry].server
        for path in facts.saves_to if facts.run_id else ():
            servers = savers.setdefault((_host(facts.address), path), {})
            servers.setdefault(facts.run_id, facts.address)
    return savers


def _host(server: str) -> str:
    host, _, port = server.rpartition(":")
    return host if port.isdigit() else ""  # a socket is on this one


def _same_files(
    change: _PushedEntry, surveyed: _Surveyed, savers: _Savers
) -> Iterator[PreflightFinding]:
    facts = surveyed[change.target.entry].server
    for path in sorted(facts.saves_to):
        servers = savers.get((_host(facts.address), path), {})
        others = [server for run_id, server in servers.items() if run_id != facts.run_id]
        if others:
            yield change.finding(
                f"saves its data to {path}, and so does {few(others, ', ')}: each "
                "overwrites what the other has saved",
                "give it a dir or file names of its own (unless they are in containers)",
                True,
            )


def _wrong_placement(component: Component, surveyed: _Surveyed) -> Iterator[PreflightFinding]:
    """Yield a finding if another placement explains where the keys of hand-written shards are.

    Callers set their placement in code. The push stores the map's placement for all callers.
    """
    places = [
        (key, n)
        for n, entry in enumerate(component.shards)
        for key in surveyed[entry].database.keys or ()
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


def _remedy(strange: str) -> str:
    if "{tag}" in strange:
        return "use a placement that hashes whole keys (docs/placement.md)"
    return "check the address, and the order of the shards"


def misplaced(
    components: Iterable[Component], timeout: float, connector: Connector | None = None
) -> list[PreflightFinding]:
    """Return what is wrong with new components: databases are closed, or hold others' keys.

    Servers that cannot be asked are left out. Cost: an exchange with each shard, or a few where
    keys are sparse.
    """
    targets = [
        target
        for target in targets_of(components, replicas=False)
        if target.shard and not target.entry.is_cluster
    ]

    def look(target: Target, client: Any) -> tuple[Any, list[bytes]]:
        is_shard = target.shard is not None and target.shard.number is not None
        return client.get(FENCE_KEY), sample_of(client, SAMPLED_KEYS) if is_shard else []

    answers = query_entries({target: target.entry for target in targets}, look, timeout, connector)
    findings = []
    for target, answer in answers.items():
        assert target.component is not None
        assert target.shard is not None
        if isinstance(answer, Exception):
            continue
        fence, keys = answer
        change = _PushedEntry(target, target.component)
        if fence is not None:
            problem = closed(str(target.shard), fence)
            findings.append(change.finding(problem.text, problem.remedy))
        if strange := keys_of_other_shards(target.component, target.shard, keys):
            text = f"holds keys that are not this shard's: {strange}"
            findings.append(change.finding(text, _remedy(strange)))
    return findings


def _data_problems(
    change: _PushedEntry, surveyed: _Surveyed, shared: Mapping[_PushedEntry, float | Exception]
) -> Iterator[tuple[str, str, bool]]:
    target, before = change.target, change.before
    assert target.shard is not None
    keys = surveyed[target.entry].database.keys or ()
    strange = keys_of_other_shards(change.component, target.shard, keys)
    foreign = f"holds keys that are not this shard's: {strange}", _remedy(strange)
    if before is None:
        if strange:
            yield *foreign, False
        return
    if before.address == target.entry.address:
        return
    old, new = _databases(change, surveyed)
    if old is None or new is None:
        gone = surveyed[before].server.error
        why = "it is a cluster" if gone is None else reason(gone)
        problem = "" if keys else "is empty"
        if strange:
            problem = f"holds keys that are not this shard's ({strange})"
        if problem:
            yield (
                f"{problem}, and the data at {before.address} cannot be compared: {why}",
                "move the data first",
                False,
            )
        return
    if _is_same(old, new) or not (old.database.keys or keys):
        return
    moved = f"move the data from {before.address} first"
    share = shared.get(change, 0.0)
    if old.database.keys and not keys:
        yield f"is empty, and {before.address} holds data", moved, False
    elif old.database.keys and (isinstance(share, Exception) or share < 1 - MISPLACED_SHARE):
        part = "" if isinstance(share, Exception) else f": it has {share:.0%} of its sampled keys"
        yield f"does not hold the data of {before.address}{part}", moved, False
    elif not old.database.keys and strange:
        yield *foreign, False
