"""Makes a shard map true: finds the moves, splits, replicas and pushes, and carries them out.

::

    entries ──► next step ──► entries as they will be ──► next step ──► … ──► the map
                    │
                    └─ detach, move, split, attach, retire, push

A plan is a chain of steps: each comes from comparing the map with the entries that the step before
leaves. `apply_map` compares again after each step, so it continues where an earlier run was killed.
A shard whose place is taken goes over a database that nothing uses, on another server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Unpack

from shardkit.admin.changes import LEASE, Change, now_of, read_changes, taking_part
from shardkit.admin.growth import journal
from shardkit.admin.growth.attachment import attach_replica, detach_replica, obstacles
from shardkit.admin.growth.cluster_nodes import masters_of
from shardkit.admin.growth.databases import free_databases
from shardkit.admin.growth.failover import HOLD
from shardkit.admin.growth.journal import KEYS, Move
from shardkit.admin.growth.move import (
    MoveOptions,
    planned_move,
    planned_split,
    resume_move,
    started,
)
from shardkit.admin.growth.move_plan import Components, MovePlan, plan_of
from shardkit.admin.growth.mover import Expected, Progress, duration
from shardkit.admin.growth.relocation import (
    Place,
    ServerAddress,
    address_of,
    cluster_at,
    masters_in,
    moved,
    with_replica,
    without_replica,
)
from shardkit.admin.growth.rule import like_of, rule_of
from shardkit.admin.growth.servers import KnownServers, touched
from shardkit.admin.growth.split_plan import new_split, plan_split_of
from shardkit.admin.preflight import preflight
from shardkit.admin.push import push
from shardkit.admin.retire import last_known, remove
from shardkit.config.component import Component, entry_key
from shardkit.config.entry import Entry
from shardkit.config.fields import database_of
from shardkit.config.shard_map import ShardMap
from shardkit.config.store import read_components, read_epoch
from shardkit.errors import GrowthError, InvalidArgumentError, ShardKitError
from shardkit.operations.arguments import in_seconds

_MOST_STEPS = 10_000
_WAIT = LEASE + 2.0  # seconds: by then a process that was killed holds nothing any more


@dataclass(frozen=True)
class ApplyStep:
    """One step of a plan.

    Attributes:
        kind: ``resume``, ``detach``, ``move``, ``split``, ``merge``, ``attach``, ``retire`` or
            ``push``.
        what: the shards, the component, or the replica.
        source: the server that is left, or the replica's master; empty for a push.
        target: the server that takes over.
        targets: the databases that take over, as ``host:port/3``.
        back: the way back: a command.
        plan: of a move or split its keys, bytes, time, connections and steps.
    """

    kind: str
    what: tuple[str, ...]
    source: str = ""
    target: str = ""
    targets: tuple[str, ...] = ()
    back: str = ""
    plan: MovePlan | None = field(default=None, compare=False)

    def __str__(self) -> str:
        to = f" to {self.target}" if self.target else ""
        return f"{self.kind} {' '.join(self.what)}{f' from {self.source}' * bool(self.source)}{to}"


@dataclass(frozen=True)
class ApplyPlan:
    """What makes a shard map true.

    Attributes:
        steps: the steps, in order; empty if the map is true. If an earlier run was killed in a
            move, only that is there: the others are planned when it is done.
        problems: what prevents it; empty if nothing does.
        left: the components that the map does not describe, which stay.
        hold: how long writers may wait at a time, in seconds.
    """

    steps: tuple[ApplyStep, ...]
    problems: tuple[str, ...]
    left: tuple[str, ...]
    hold: float


def plan_apply(
    config: Any, shard_map: ShardMap, *, prune: bool = False, **options: Unpack[MoveOptions]
) -> ApplyPlan:
    """Return the steps that make a shard map true, and what prevents them. Changes nothing.

    Args:
        config: a client of the config server.
        shard_map: the map. Components that it does not describe stay as they are.
        prune: whether to remove these components from the entries; their data stays.
        options: ``hold`` and ``offline`` of `MoveOptions`.

    Raises:
        ConfigError: the entries cannot be read.

    Cost: that of `plan_move` and `plan_split` for each step.
    """
    hold, offline = in_seconds(options.get("hold", HOLD)), options.get("offline", False)
    now = read_components(config, shard_map.components)
    left = () if prune else tuple(sorted(now.keys() - shard_map.components.keys()))
    if interrupted := tuple(map(_resumed, _open_moves(config))):
        return ApplyPlan(interrupted, (), left, hold)
    differ = _Difference(config, shard_map, now, prune)
    steps: list[ApplyStep] = []
    problems: list[str] = []
    state: Components = now
    filled: dict[Place, tuple[float, float]] = {}  # keys and bytes, by earlier steps
    vacated: set[Place] = set()
    try:
        for step, before, state in differ.chain(now):
            plan, work = None, differ.planner(step, before, hold, offline, vacated)
            if work is not None:
                plan = _with_loads(work(), filled)
                problems += [f"{step}: {each}" for each in plan.problems]
                if step.targets and plan.targets and set(plan.targets) != set(step.targets):
                    problems.append(f"{step}: a database of {step.target} is used")
            problems += [
                f"{step}: {each}" for each in differ.obstacles(step, before, vacated, filled)
            ]
            vacated |= differ.places(before) - differ.places(state)
            steps.append(replace(step, plan=plan))
    except ShardKitError as error:
        problems.append(f"{error.message}: {error.remedy}" if error.remedy else error.message)
    if steps and (stale := _stale(config, shard_map)):
        problems.append(stale)
    return ApplyPlan(tuple(steps), tuple(dict.fromkeys(problems)), left, hold)


def apply_map(
    config: Any,
    shard_map: ShardMap,
    *,
    prune: bool = False,
    finished: Callable[[ApplyStep], object] = lambda step: None,
    **options: Unpack[MoveOptions],
) -> list[ApplyStep]:
    """Make a shard map true, while its servers are in use; return the steps that were taken.

    If this process is killed, call it again: it first resumes the move that was open, and then
    continues. If the map is true already, nothing is done.

    Args:
        config: a client of the config server.
        shard_map: the map; see `plan_apply`.
        prune: whether to remove components that it does not describe; their data stays.
        finished: is called with each step that is done.
        options: see `MoveOptions`; ``keep`` is refused.

    Raises:
        GrowthError: something prevents a step, and nothing has changed; or a step cannot continue:
            earlier ones are done.
        ConfigError: the entries cannot be read.
    """
    if options.get("keep"):
        raise InvalidArgumentError("keep=True would wait after a move", "leave keep out")
    _wait_for_the_killed(config)
    tell: Progress = options.get("progress", lambda text: None)
    done: list[ApplyStep] = []

    def note(step: ApplyStep) -> None:
        done.append(step)
        tell(f"{step}: done")
        finished(step)

    for move in _open_moves(config):
        resume_move(config, move.name, **options)
        note(_resumed(move))
    plan = plan_apply(config, shard_map, prune=prune, **options)
    if plan.problems:
        raise GrowthError("; ".join(plan.problems), "correct that: nothing has changed")
    if not plan.steps:
        return done
    now = read_components(config, shard_map.components)
    differ = _Difference(config, shard_map, now, prune)
    change = Change(
        kind="apply", name=shard_map.source, phase=_digest(shard_map), databases=differ.touched()
    )
    with taking_part(config, change):
        while (link := next(differ.chain(now), None)) is not None:
            step, before, _ = link
            if step in done:
                raise GrowthError(
                    f"{step}: is done, and still to do: another process changes the entries",
                    "see: shardkit config history",
                )
            tell(f"step {len(done) + 1} of {max(len(plan.steps), len(done) + 1)}: {step}")
            differ.run(step, before, change.id, **options)
            note(step)
            now = read_components(config, shard_map.components)
        change.phase = "done"
    return done


def _with_loads(plan: MovePlan, filled: dict[Place, tuple[float, float]]) -> MovePlan:
    """Return a plan with the keys that earlier steps will have brought to its sources."""
    sources = list(map(Place.parse, plan.sources))
    if any(source in filled for source in sources):
        keys, memory = map(sum, zip(*(filled.get(each, (0, 0)) for each in sources), strict=True))
        seconds = plan.expected.slowness * duration(KEYS, round(keys), memory)
        expected = Expected.of(seconds, [])
        plan = replace(
            plan, keys={plan.source: round(keys)}, memory=round(memory), expected=expected
        )
    count = max(1, len(plan.targets))
    load = sum(plan.keys.values()) / count, plan.memory / count
    filled |= dict.fromkeys(map(Place.parse, plan.targets), load)
    return plan


def _digest(shard_map: ShardMap) -> str:
    return sha256(replace(shard_map, epoch=None).to_yaml().encode()).hexdigest()[:16]


def _stale(config: Any, shard_map: ShardMap) -> str:
    """Return the problem of a map that is older than others' changes of the entries."""
    epoch = read_epoch(config)
    if shard_map.epoch in (None, epoch):
        return ""
    own = _digest(shard_map)
    if any(each.kind == "apply" and each.phase == own for each in read_changes(config)):
        return ""
    return (
        f"{shard_map.source} is of epoch {shard_map.epoch}, and the entries of {epoch}: bring it "
        "up to date with `shardkit config pull`, and change that"
    )


def _wait_for_the_killed(config: Any) -> None:
    """Wait, at most `_WAIT` seconds, until a process that was killed holds nothing any more."""
    end = time.monotonic() + _WAIT
    while time.monotonic() < end:
        now = now_of(config)
        if not any(each.kind == "apply" and each.is_open(now) for each in read_changes(config)):
            with suppress(GrowthError), journal.lease(config):
                return
        time.sleep(0.2)


def _open_moves(config: Any) -> list[Move]:
    """Return the open moves of earlier runs; moves of others are refused as overlapping."""
    runs = {each.id for each in read_changes(config) if each.kind == "apply"}
    return [each for each in journal.read_all(config) if each.within in runs and not each.is_over]


def _resumed(move: Move) -> ApplyStep:
    back = f"shardkit move abort {move.name}, or once it is done: move reverse"
    return ApplyStep("resume", (move.name,), move.source, move.target, tuple(move.targets), back)


class _Difference:
    """Finds the steps from entries to a map."""

    def __init__(self, config: Any, shard_map: ShardMap, now: Components, prune: bool) -> None:
        self._config, self._map, self._prune = config, shard_map, prune
        self._wanted = shard_map.components
        self._same = KnownServers([*now.values(), *self._wanted.values()]).same
        self._servers: list[ServerAddress] = []
        for server, _, _ in masters_in(now.values()):
            self._known(server)
        self._moves: dict[str, Move] = {}

    # ---- where entries lead

    def _known(self, server: ServerAddress) -> ServerAddress:
        """Return the one name that this plan has for a server."""
        for each in self._servers:
            if self._same(server, each):
                return each
        self._servers.append(server)
        return server

    def _place(self, entry: Entry) -> Place | None:
        server, database = address_of(entry), database_of(entry.fields)
        if entry.is_cluster or server is None or database is None:
            return None
        return Place(self._known(server), database)

    def places(self, components: Components) -> set[Place]:
        """Return the databases that entries name."""
        every = (entry for each in components.values() for _, entry in each.entries())
        return {place for entry in every if (place := self._place(entry)) is not None}

    def touched(self) -> list[str]:
        """Return the servers of the map, as `Change.databases` has them."""
        logins = {server: (like, at) for server, like, at in masters_in(self._wanted.values())}
        return touched(dict.fromkeys(logins, "*"), logins.__getitem__)

    # ---- the chain of steps

    def chain(self, state: Components) -> Iterator[tuple[ApplyStep, Components, Components]]:
        """Yield each step with the components before it, and those that there will be after it."""
        for _ in range(_MOST_STEPS):
            found = self._next(state)
            if found is None:
                return
            step, after = found
            yield step, state, {**state, **after}
            state = {**state, **after}
            if step.kind == "retire":
                state = {name: each for name, each in state.items() if name not in step.what}
            if step.kind == "push":
                return
        raise GrowthError("the map takes too many steps", "apply a part of it first")

    def _next(self, state: Components) -> tuple[ApplyStep, Components] | None:
        self._refuse(state)
        return (
            self._detached(state)
            or self._moved(state)
            or self._split(state)
            or self._moved(state, over=True)
            or self._attached(state)
            or self._retired(state)
            or self._pushed(state)
        )

    def _pairs(self, state: Components) -> Iterator[tuple[Component, Component]]:
        """Yield the components that there are and stay: as they are, and as the map has them."""
        for name, wanted in sorted(self._wanted.items()):
            if name in state:
                yield state[name].without_problem(), wanted

    def _refuse(self, state: Components) -> None:
        for now, wanted in self._pairs(state):
            if self._is_split(now, wanted):
                continue
            there = dict(wanted.entries())
            for shard, entry in now.entries():
                if shard not in there:
                    raise GrowthError(
                        f"{shard}: the map has no such entry, and its data would be left behind",
                        "add the entry to the map, or move its keys into the shards first",
                    )
                is_known = None not in (self._place(entry), self._place(there[shard]))
                if not (is_known or entry.address == there[shard].address):
                    if entry.is_cluster and there[shard].is_cluster:
                        continue
                    raise GrowthError(
                        f"{shard}: from {entry.address} to {there[shard].address}: sockets, "
                        "Sentinels, references and databases of clusters do not move",
                        "write host, port and db into both entries",
                    )
                target = self._place(there[shard])
                if target and any(
                    self._same(address_of(each), target.server) for each in entry.replicas
                ):
                    raise GrowthError(
                        f"{shard}: the map has a replica, {target.server}, as the master",
                        f"shardkit failover {entry.address.rpartition('/')[0] or entry.address} "
                        f"--to {target.server}",
                    )

    # ---- moves

    def _moved(self, state: Components, over: bool = False) -> tuple[ApplyStep, Components] | None:
        """Return a move of databases; with ``over``, of one that has to make room."""
        ways: dict[Place, Place] = {}
        names: dict[Place, list[str]] = {}
        for now, wanted in self._pairs(state):
            if self._is_split(now, wanted):
                continue
            there = dict(wanted.entries())
            for shard, entry in now.entries():
                source, target = self._place(entry), self._place(there[shard])
                if source is None or target is None:
                    continue
                if source != target and now.shards and shard.number is None:
                    raise GrowthError(
                        f"{shard}: an entry beside shards does not move from {source} to {target}",
                        "move its whole server (shardkit move server), and apply the map again",
                    )
                names.setdefault(source, []).append(str(shard))
                if source != target and ways.setdefault(source, target) != target:
                    raise GrowthError(
                        f"{shard}: shares database {source}, and the map separates them",
                        "move the keys of one by their names first",
                    )
        used = self.places(state)
        free = {source: to for source, to in ways.items() if to not in used}
        for source, target in () if over else free.items():
            if source.server == target.server:
                continue
            group = {
                each: to
                for each, to in free.items()
                if (each.server, to.server) == (source.server, target.server)
            }
            return self._move(state, group, names)
        if not over or not ways:
            return None
        for source, target in ways.items():
            if target in used and target not in ways:
                raise GrowthError(
                    f"{names[source][0]}: the map has it in {target}, which "
                    f"{', '.join(names.get(target, ['another component']))} uses and keeps",
                    "choose a database that nothing uses",
                )
        wanted_places = set(ways.values())
        source = next(
            (each for each in free if each in ways),  # only the database changes
            next((each for each in ways if each in wanted_places), next(iter(ways))),
        )
        target = self._between(state, names[source][0], source.server, ways[source].server)
        return self._move(state, {source: target}, names)

    def _between(
        self, state: Components, name: str, left: ServerAddress, final: ServerAddress
    ) -> Place:
        """Return a database that nothing uses or will use, on a server other than ``left``."""
        both = {**state, **{f"wanted {n}": each for n, each in self._wanted.items()}}
        logins = {self._known(at): (like, where) for at, like, where in masters_in(both.values())}
        for server in sorted(logins, key=lambda at: at == final):
            if server != left:
                for number in free_databases(both, server, *logins[server], self._same):
                    return Place(server, number)
        raise GrowthError(
            f"{name}: its database in the map is used, and no other server has one to go over",
            "choose databases that nothing uses",
        )

    def _move(
        self, state: Components, ways: Mapping[Place, Place], names: Mapping[Place, list[str]]
    ) -> tuple[ApplyStep, Components]:
        shards = tuple(name for source in ways for name in names[source])
        [source, *_], [target, *_] = list(ways), list(ways.values())
        places = tuple(map(str, dict.fromkeys(ways.values())))
        step = ApplyStep(
            "move",
            shards,
            str(source.server),
            str(target.server),
            places,
            f"shardkit move reverse {shards[0]}",
        )
        return step, moved(state, ways, self._same)

    # ---- splits and merges

    def _is_split(self, now: Component, wanted: Component) -> bool:
        if bool(now.shards) != bool(wanted.shards):
            return True
        if now.shards:
            return (len(now.shards), now.placement) != (len(wanted.shards), wanted.placement)
        assert now.entry is not None
        assert wanted.entry is not None
        if not now.entry.is_cluster and not wanted.entry.is_cluster:
            return False
        if now.entry.is_cluster != wanted.entry.is_cluster:
            return True
        if now.entry.address == wanted.entry.address:
            return False
        clusters = []
        for entry in (now.entry, wanted.entry):
            node = address_of(entry)
            assert node is not None
            clusters.append(masters_of(node, entry, entry_key(now.name))[0].keys())
        return clusters[0] != clusters[1]

    def _split(self, state: Components) -> tuple[ApplyStep, Components] | None:
        for now, wanted in self._pairs(state):
            if not self._is_split(now, wanted):
                continue
            name = now.name
            if wanted.entry and wanted.entry.is_cluster and not wanted.shards:
                node = address_of(wanted.entry)
                move = new_split(state, name, None, None, (), to_cluster=str(node))
                like, where = like_of(now)
                assert node is not None
                after = replace(now, entry=cluster_at(like, node, where), shards=())
                return self._split_step(move, {name: after}, "split")
            if now.shards and now.entry and not wanted.shards:
                raise GrowthError(
                    f"{name}: the map has no shards, and there are an entry and shards",
                    "keep the shards in the map, or retire the component",
                )
            used, targets = self.places(state), list[Place]()
            for shard in wanted.all_shards():
                place = self._place(wanted.entry_of(shard))
                if place is None:
                    raise GrowthError(
                        f"{shard}: its new entry does not name its server and database",
                        "write host, port and db into it",
                    )
                if place in used | set(targets):
                    taken = {f"taken {each}": self._at(wanted, each) for each in targets}
                    place = self._between(
                        {**state, **taken}, str(shard), place.server, place.server
                    )
                targets.append(place)
            rule = wanted.placement if wanted.shards else ""
            move = new_split(
                state, name, len(targets), rule, (), wanted.routes or None, places=targets
            )
            if all(sources := [self._place(now.entry_of(shard)) for shard in now.all_shards()]):
                move = replace(move, sources=list(map(str, sources)))
            kind = "merge" if len(targets) < max(1, len(now.shards)) else "split"
            return self._split_step(move, rule_of(move).changed(state, self._same), kind)
        return None

    @staticmethod
    def _at(like: Component, place: Place) -> Component:
        server = place.server
        fields = {"host": server.host, "port": server.port, "db": place.database}
        return Component(like.name, Entry(fields))

    def _split_step(self, move: Move, after: Components, kind: str) -> tuple[ApplyStep, Components]:
        step = ApplyStep(
            kind,
            (move.name,),
            move.source,
            move.target,
            tuple(move.targets),
            f"shardkit move reverse {move.name}",
        )
        self._moves[str(step)] = move
        return step, after

    # ---- replicas, retirements, pushes

    def _replicas(self, components: Components) -> dict[tuple[ServerAddress, ServerAddress], str]:
        """Return each replica that entries name: its master and itself; and one of the entries."""
        return {
            (self._known(master), self._known(at)): where
            for master, entry, where in masters_in(components.values())
            for at in map(address_of, entry.replicas)
            if at is not None
        }

    def _detached(self, state: Components) -> tuple[ApplyStep, Components] | None:
        stay = {name: each for name, each in state.items() if name not in self._wanted}
        kept = {replica for _, replica in self._replicas({**stay, **self._wanted})}
        for master, replica in self._replicas(state):
            if replica not in kept:
                back = f"shardkit replicas attach {replica} --to {master}, once it is empty"
                step = ApplyStep("detach", (str(replica),), str(master), back=back)
                return step, without_replica(state, replica, self._same)
        return None

    def _attached(self, state: Components) -> tuple[ApplyStep, Components] | None:
        there = self._replicas(state)
        masters = {self._known(server) for server, _, _ in masters_in(state.values())}
        for master, replica in self._replicas(self._wanted):
            if (master, replica) not in there and master in masters:
                back = f"shardkit replicas detach {replica}"
                step = ApplyStep("attach", (str(replica),), target=str(master), back=back)
                return step, with_replica(state, master, replica, self._same)
        return None

    def _retired(self, state: Components) -> tuple[ApplyStep, Components] | None:
        for name in sorted(state.keys() - self._wanted.keys()) if self._prune else ():
            return ApplyStep("retire", (name,), back="shardkit config rollback EPOCH"), {}
        return None

    def _pushed(self, state: Components) -> tuple[ApplyStep, Components] | None:
        differing = tuple(
            name for name, each in sorted(self._wanted.items()) if not each.same_as(state.get(name))
        )
        if not differing:
            return None
        step = ApplyStep("push", differing, back="shardkit config rollback EPOCH")
        return step, {name: self._wanted[name] for name in differing}

    # ---- a step's plan, and its work

    def planner(
        self, step: ApplyStep, state: Components, hold: float, offline: bool, vacated: set[Place]
    ) -> Callable[[], MovePlan] | None:
        """Return what plans a move or split, from components as they will be by then."""
        if step.kind == "move":
            server = ServerAddress.parse(step.target)
            numbers = self._numbers(step, state)
            return lambda: plan_of(
                self._config, state, step.what, server, hold, offline, numbers, vacated
            )
        if (move := self._moves.get(str(step))) is not None:
            return lambda: plan_split_of(self._config, state, move, hold, offline, vacated)
        return None

    def _numbers(self, step: ApplyStep, state: Components) -> dict[int, int]:
        """Return which database each of a move's databases goes to."""
        order = {str(shard): entry for each in state.values() for shard, entry in each.entries()}
        places = dict.fromkeys(self._place(order[name]) for name in step.what)
        found = zip(places, map(Place.parse, step.targets), strict=True)
        return {source.database: target.database for source, target in found if source is not None}

    def obstacles(
        self, step: ApplyStep, state: Components, vacated: set[Place], arriving: Container[Place]
    ) -> Iterator[str]:
        """Yield what prevents a step that is no move, as far as it can be seen before.

        Databases where data is still arriving are not looked at.
        """
        if step.kind == "attach":
            yield from obstacles(state, step.what[0], step.target)
        elif step.kind == "push":
            new = {name: self._wanted[name] for name in step.what}
            for name in sorted(new.keys() - state.keys()):
                if left := sorted(self.places({name: new[name]}) & vacated):
                    yield f"{name} would get {left[0]}, which others leave: choose another one"
            later = {
                entry.address
                for each in new.values()
                for _, entry in each.entries()
                if self._place(entry) in arriving
            }
            for finding in preflight(state, new):
                if not finding.warning and finding.address not in later:
                    yield f"{finding}: {finding.remedy}"

    def run(
        self, step: ApplyStep, state: Components, within: str, **options: Unpack[MoveOptions]
    ) -> None:
        """Carry out a step."""
        config = self._config
        if step.kind == "move":
            numbers = self._numbers(step, state)
            work = planned_move(config, step.what, step.target, numbers, within=within)
            started(config, work, **options)
        elif (move := self._moves.get(str(step))) is not None:
            move = replace(move, within=within)
            started(config, planned_split(config, lambda _: move), **options)
        elif step.kind == "detach":
            detach_replica(config, step.what[0], within=within)
        elif step.kind == "attach":
            attach_replica(config, step.what[0], step.target, within=within)
        elif step.kind == "retire":
            remove(config, last_known(config, step.what[0]), f"apply {self._map.source}")
        else:
            message = f"apply {self._map.source}"
            push(config, replace(self._map, epoch=None), message=message)
