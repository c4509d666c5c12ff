"""Pushes, the checks before them, and the data servers that witness them.

Each entry that a push adds or changes is surveyed (`shardkit.network.survey`) and judged by
`shardkit.network.rules`. Where an entry leaves one database for another, 100 keys of the old one
are looked for in the new one. For witnesses see `shardkit.network.topology.witness`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import redis
from redis.exceptions import (
    ConnectionError,  # noqa: A004 - redis-py's own
)

from shardkit import log_records
from shardkit.config import store
from shardkit.config.component import EPOCH_KEY, Component
from shardkit.config.entry import Entry
from shardkit.config.shard_map import ShardMap
from shardkit.config.store import (
    ComponentChange,
    components_at,
    diff,
    force_options,
    read_component,
    read_components,
    read_epoch,
    sample_keys,
    with_counts,
)
from shardkit.errors import ConfigError, ConfigServerError, PushRefusedError, few
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
from shardkit.network.server_queries import TIMEOUT, ServerErrors
from shardkit.network.survey import (
    SAMPLED_KEYS,
    SurveyedEntry,
    Target,
    data_keys,
    has_keys,
    query_entries,
    reason,
    sample_of,
    survey,
    targets_of,
)
from shardkit.network.topology.witness import read_witness, witnesses, write_witness
from shardkit.operations.arguments import Seconds, check_seconds
from shardkit.operations.commands import Key, Shard
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
        row = surveyed[change.target.entry]
        own, kinds = SurveyedEntry(change.target, row.number, row.server), {WRONG_ROLE, CLOSED}
        for fault in judge([own], kinds=kinds if moved_only else _SHOWN).entries[0].problems:
            mild = fault.mild or fault.kind in (RESTART, NO_INFO)
            findings.append(change.finding(fault.text, fault.remedy, mild))
        if _is_usable(row):
            findings += [] if moved_only else _same_files(change, surveyed, savers)
            if not change.target.node and not change.target.entry.is_cluster:
                findings += [
                    change.finding(*problem) for problem in _data_problems(change, surveyed, shared)
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


@dataclass(frozen=True)
class Difference:
    """What a push of a map would change."""

    changes: Sequence[ComponentChange]
    sample: Mapping[str, Sequence[Key]]  # whose placement was compared, by component
    real: frozenset[str]  # components whose sample comes from their servers
    left: Sequence[str]  # components that the push does not touch
    epoch: int  # before the push
    current: Mapping[str, Component]

    @property
    def is_empty(self) -> bool:
        """Whether the push would change nothing."""
        return all(change.kind == "unchanged" for change in self.changes)


def compare(client: redis.Redis, shard_map: ShardMap, prune: bool, size: int) -> Difference:
    """Find what a push would change."""
    wanted = shard_map.components
    epoch = read_epoch(client)
    current, broken = _current(client, wanted)
    left = sorted(current.keys() - wanted.keys())
    if not prune:
        current = {name: current[name] for name in current.keys() & wanted.keys()}
    moving = [c.component for c in diff(current, wanted, []) if c.kind == "changed" and c.replaced]
    real = {name: keys for name in moving if (keys := _real_keys(current[name], size))}
    sample = {name: real.get(name) or sample_keys(size) for name in moving}
    changes = diff(current, wanted, {**dict.fromkeys(wanted, ()), **sample})
    changes = with_counts(changes, current)
    for n, change in enumerate(changes):
        if change.component in broken:
            after = change.shards_after, change.placement_after
            changes[n] = ComponentChange(
                change.component, "changed", (), -1, after[0], "", after[1]
            )
    return Difference(changes, sample, frozenset(real), [] if prune else left, epoch, current)


def between(client: redis.Redis, since: int, until: int, size: int) -> Difference:
    """Find what changed between two pushes; keys that moved are counted of a synthetic sample."""
    before, after = components_at(client, since), components_at(client, until)
    changes = diff(before, after, sample_keys(size))
    moved = [change.component for change in changes if change.replaced]
    sample = dict.fromkeys(moved, sample_keys(size))
    return Difference(changes, sample, frozenset(), [], since, before)


def holds_data(shard_map: ShardMap) -> Callable[[Component], bool]:
    """Return the function by which `shardkit.config.store.push` checks if a component holds data.

    It queries the component's current servers. For a component that stays these are its shards, or
    its entry if it has none: only their keys would be placed by another rule. Of one to be removed,
    a database that another component of the map uses as well does not count: its keys cannot be
    told apart, and most likely are the other's.
    """
    used = {e.address for c in shard_map.components.values() for _, e in c.entries()}

    def holds(component: Component) -> bool:
        entries = _entries(component)
        if component.name in shard_map.components and component.shards:
            entries = {shard: e for shard, e in entries.items() if shard.number is not None}
        if component.name not in shard_map.components:
            entries = {shard: e for shard, e in entries.items() if e.address not in used}
        answers = query_entries(entries, lambda shard, client: has_keys(client))
        if any(answer is True for answer in answers.values()):
            return True
        for shard, answer in answers.items():
            if isinstance(answer, ServerErrors):
                server = entries[shard].address
                raise ConnectionError(f"{shard} ({server}): {reason(answer)}") from answer
            if isinstance(answer, Exception):
                raise answer
        return False

    return holds


def _current(
    client: redis.Redis, wanted: Mapping[str, Component]
) -> tuple[dict[str, Component], dict[str, ConfigError]]:
    """Read all components; if any is broken, read the wanted ones one by one."""
    try:
        return read_components(client, wanted), {}
    except ConfigServerError:
        raise
    except ConfigError:
        pass
    current: dict[str, Component] = {}
    broken: dict[str, ConfigError] = {}
    for name, like in wanted.items():
        try:
            component = read_component(client, name, like)
        except ConfigServerError:
            raise
        except ConfigError as error:
            broken[name] = error
        else:
            current |= {} if component is None else {name: component}
    return current, broken


def _entries(component: Component) -> dict[Shard, Entry]:
    """Return a component's entries, one for each database."""
    shard_of: dict[Entry, Shard] = {}
    for shard, entry in component.entries():
        shard_of.setdefault(entry, shard)
    return {shard: entry for entry, shard in shard_of.items()}


def _real_keys(component: Component, size: int) -> list[Key]:
    """Return keys of a component, equally many from each database; none if it is unreachable."""
    entries = _entries(component)
    if component.shards:
        entries = {shard: e for shard, e in entries.items() if shard.number is not None}
    share = -(-size // len(entries))
    answers = query_entries(entries, lambda shard, client: list(islice(data_keys(client), share)))
    lists = [answer for answer in answers.values() if isinstance(answer, list)]
    return [key for keys in lists for key in keys]


logger = logging.getLogger("shardkit.admin")


def push(
    config: redis.Redis,
    shard_map: ShardMap,
    *,
    timeout: Seconds = TIMEOUT,
    connector: Connector | None = None,
    check: bool = True,
    force: bool | Collection[str] = (),
    **options: Any,
) -> list[ComponentChange]:
    """Push a shard map, and have the servers of its components witness the push.

    Components that the map does not describe stay unchanged. ``timeout`` is in seconds for one
    answer of a data server; ``connector`` connects to these: with `shardkit.testing.MemoryServers`,
    pass them. ``check`` refuses the push if an entry's new place lacks its data, or if keys on the
    shards of new components live on other shards than those that the map gives them; an unchanged
    address costs nothing, another one about ten exchanges. ``force`` names components to push in
    spite of that, or is True for all. ``options`` are ``prune``, ``has_data``, ``sample``,
    ``epoch``, ``above``, ``author`` and ``message``, as in `shardkit.config.store.push`.

    Returns:
        The changes. A server that could not witness the push is logged as a warning.

    Raises:
        PushRefusedError: the push would strand data, also data that was there before the first
            push, names a replica as a master, or another push came in between.
        ConfigError: the map cannot be pushed.
        ConfigServerError: the config server cannot be read or written.
    """
    timeout = check_seconds("push", "timeout", timeout, 0.001)
    force = bool(force) if isinstance(force, int) else force
    # Include the old components: clients that have not read the push yet still use them.
    known = [*_components(config, shard_map).values(), *shard_map.components.values()]

    def require_data(pipe: Any) -> None:
        pipe.watch(EPOCH_KEY)  # a move in between has the push tried again
        before = _components(config, shard_map)
        new = [component for name, component in shard_map.components.items() if name not in before]
        findings = misplaced(new, timeout, connector)
        if connector is None:
            findings += preflight(before, shard_map.components, moved_only=True)
        forced = frozenset(() if isinstance(force, bool) else force)
        refuse([one for one in findings if not one.warning and one.component not in forced])

    if check and force is not True:
        options["guard"] = require_data
    changes = store.push(config, shard_map, force=force, **options)
    epoch = store.read_epoch(config)
    missed = attest(known, epoch, timeout, connector)
    if missed:
        logger.warning(
            "%s did not witness epoch %d; the other servers still detect a config server that was "
            "restored from an old snapshot",
            few(missed, ", "),
            epoch,
            extra=log_records.fields("epoch-not-witnessed", servers=missed, epoch=epoch),
        )
    return changes


def _components(config: redis.Redis, shard_map: ShardMap) -> Mapping[str, Component]:
    """Return the current components; none if they are unusable, which the push then reports."""
    try:
        return store.read_components(config, shard_map.components)
    except ConfigServerError:
        raise
    except ConfigError:
        return {}


def newest_witness(components: Iterable[Component], timeout: float = TIMEOUT) -> tuple[int, str]:
    """Return the latest epoch that servers of components have witnessed, and one of the servers.

    Servers that cannot be asked are left out; 0 if none has witnessed any.
    """
    answers = _ask_witnesses(components, read_witness, timeout)
    known = [(epoch, entry.address) for entry, epoch in answers.items() if isinstance(epoch, int)]
    return max(known, default=(0, ""))


def attest(
    components: Iterable[Component],
    epoch: int,
    timeout: float = TIMEOUT,
    connector: Connector | None = None,
) -> list[str]:
    """Have the servers of components witness an epoch; return the addresses that did not."""
    answers = _ask_witnesses(components, partial(write_witness, epoch=epoch), timeout, connector)
    return [entry.address for entry, answer in answers.items() if isinstance(answer, Exception)]


def _ask_witnesses(
    components: Iterable[Component],
    query: Callable[[Any, Collection[str]], Any],
    timeout: float,
    connector: Connector | None = None,
) -> dict[Entry, Any | Exception]:
    names = witnesses(components)
    return query_entries(
        {entry: entry for entry in names},
        lambda entry, client: query(client, names[entry]),
        timeout,
        connector,
    )
