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
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Any, TypeAlias, Unpack

import redis

from shardkit.admin.changes import (
    LEASE,
    Change,
    now_of,
    read_changes,
    require_open,
    taking_part,
)
from shardkit.admin.growth import journal, relocation
from shardkit.admin.growth.attachment import attach_replica, detach_replica, obstacles
from shardkit.admin.growth.exchange import free_databases
from shardkit.admin.growth.journal import KEYS, Move
from shardkit.admin.growth.move import (
    planned_move,
    planned_split,
    resume_move,
    started,
)
from shardkit.admin.growth.move_plan import Components, MovePlan, new_split
from shardkit.admin.growth.mover import Expected, MoveOptions, Progress, check_numbers, duration
from shardkit.admin.growth.relocation import Place, ServerAddress
from shardkit.admin.growth.rule import rule_of
from shardkit.admin.growth.servers import KnownServers, touched
from shardkit.admin.pushes import preflight, push
from shardkit.admin.retire import last_known, remove
from shardkit.config.component import Component
from shardkit.config.entry import Entry
from shardkit.config.shard_map import ShardMap
from shardkit.config.store import read_components, read_epoch
from shardkit.errors import GrowthError, InvalidArgumentError, ShardKitError

_MOST_STEPS = 10_000
_ROLLBACK = "shardkit config rollback EPOCH"
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
    config: redis.Redis, shard_map: ShardMap, *, prune: bool = False, **options: Unpack[MoveOptions]
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
    hold, offline = check_numbers(**options)[0], options.get("offline", False)
    now = read_components(config, shard_map.components)
    left = () if prune else tuple(sorted(now.keys() - shard_map.components.keys()))
    if interrupted := tuple(map(_resumed, _open_moves(config))):
        return ApplyPlan(interrupted, (), left, hold)
    find = _Steps(config, shard_map, now, prune)
    steps: list[ApplyStep] = []
    problems: list[str] = []
    state: Components = now
    filled: dict[Place, tuple[float, float]] = {}  # keys and bytes, by earlier steps
    vacated: set[Place] = set()
    try:
        for step, before, state, work in find.chain(now):
            plan = None
            if step.kind in _MOVING:
                plan = _with_loads(work(before, hold, offline, vacated)[1], filled)
                problems += [f"{step}: {problem}" for problem in plan.problems]
                if step.targets and plan.targets and set(plan.targets) != set(step.targets):
                    problems.append(f"{step}: a database of {step.target} is used")
            problems += [
                f"{step}: {problem}" for problem in find.obstacles(step, before, vacated, filled)
            ]
            vacated |= find.places(before) - find.places(state)
            steps.append(replace(step, plan=plan))
    except ShardKitError as error:
        problems.append(f"{error.message}: {error.remedy}" if error.remedy else error.message)
    if steps and (stale := _stale(config, shard_map)):
        problems.append(stale)
    return ApplyPlan(tuple(steps), tuple(dict.fromkeys(problems)), left, hold)


def apply_map(
    config: redis.Redis,
    shard_map: ShardMap,
    *,
    prune: bool = False,
    finished: Callable[[ApplyStep], object] = lambda step: None,
    **options: Unpack[MoveOptions],
) -> list[ApplyStep]:
    """Make a shard map true, while its servers are in use; return the steps that were taken.

    If this process is killed, call it again: it first resumes the move that was open, and then
    continues. If the map is true already, nothing is done.

    The arguments are those of `plan_apply`, the options those of `MoveOptions`; ``keep`` is
    refused. ``finished`` is called with each step that is done.

    Raises:
        GrowthError: something prevents a step, and nothing has changed; or a step cannot continue:
            earlier ones are done.
        PushRefusedError: others pushed after the last comparison; call it again.
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
    epoch, now = read_epoch(config), read_components(config, shard_map.components)
    find = _Steps(config, shard_map, now, prune)
    find.epoch = epoch
    change = Change(
        kind="apply", name=shard_map.source, phase=_digest(shard_map), databases=find.touched()
    )
    with taking_part(config, change):
        while (link := next(find.chain(now), None)) is not None:
            step, _, _, work = link
            if step in done:
                raise GrowthError(
                    f"{step}: is done, and still to do: another process changes the entries",
                    "see: shardkit config history",
                )
            require_open(config, change)
            tell(f"step {len(done) + 1} of {max(len(plan.steps), len(done) + 1)}: {step}")
            if step.kind in _MOVING:
                started(config, work, change.id, **options)
            else:
                work(within=change.id)
            note(step)
            find.epoch, now = read_epoch(config), read_components(config, shard_map.components)
        change.phase = "done"
    return done


def _with_loads(plan: MovePlan, filled: dict[Place, tuple[float, float]]) -> MovePlan:
    """Return a plan with the keys that earlier steps will have brought to its sources."""
    sources = list(map(Place.parse, plan.sources))
    if any(source in filled for source in sources):
        keys, memory = map(sum, zip(*(filled.get(at, (0, 0)) for at in sources), strict=True))
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
    if any(run.kind == "apply" and run.phase == own for run in read_changes(config)):
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
        if not any(run.kind == "apply" and run.is_open(now) for run in read_changes(config)):
            with suppress(GrowthError), journal.lease(config):
                return
        time.sleep(0.2)


def _open_moves(config: Any) -> list[Move]:
    """Return the open moves of earlier runs; moves of others are refused as overlapping."""
    runs = {run.id for run in read_changes(config) if run.kind == "apply"}
    return [move for move in journal.read_all(config) if move.within in runs and not move.is_over]


def _resumed(move: Move) -> ApplyStep:
    back = f"shardkit move abort {move.name}, or once it is done: move reverse"
    return ApplyStep("resume", (move.name,), move.source, move.target, tuple(move.targets), back)


_MOVING = ("move", "split", "merge")
_Work: TypeAlias = Callable[..., Any]
"""Plans a move, as `Planned`; of other steps, carries them out ``within`` the change of an id."""
_Found: TypeAlias = tuple[ApplyStep, Components, _Work] | None
"""A step, the components that change by it, and its work; None if nothing is left to do."""


class _Steps:
    """Finds the steps from entries to a map; it is pushed if they still have their ``epoch``."""

    def __init__(self, config: Any, shard_map: ShardMap, now: Components, prune: bool) -> None:
        self._config, self._map, self._prune = config, shard_map, prune
        self.epoch = 0
        self._wanted = shard_map.components
        fleet = KnownServers([*now.values(), *self._wanted.values()])
        self._same, self._known = fleet.same, fleet.name_of
        for server, _ in relocation.masters_in(now.values()):
            self._known(server)

    # ---- where entries lead

    def _place(self, entry: Entry) -> Place | None:
        place = relocation.place_of(entry)
        return place and Place(self._known(place.server), place.database)

    def places(self, components: Components) -> set[Place]:
        every = (entry for component in components.values() for _, entry in component.entries())
        return {place for entry in every if (place := self._place(entry)) is not None}

    def touched(self) -> list[str]:
        """Return the servers of the map, as `Change.databases` has them."""
        logins = dict(relocation.masters_in(self._wanted.values()))
        return touched(dict.fromkeys(logins, "*"), logins.__getitem__)

    # ---- the chain of steps

    def chain(self, state: Components) -> Iterator[tuple[ApplyStep, Components, Components, _Work]]:
        """Yield each step with the components before and after it, and its work."""
        for _ in range(_MOST_STEPS):
            ways, names = self._ways(state)
            chosen = (
                self._detached(state)
                or self._moved(state, ways, names)
                or self._split(state)
                or self._made_room(state, ways, names)
                or self._attached(state)
                or self._retired(state)
                or self._pushed(state)
            )
            if chosen is None:
                return
            step, changed, work = chosen
            after = {**state, **changed}
            if step.kind == "retire":
                after.pop(step.what[0])
            yield step, state, after, work
            if step.kind == "push":
                return
            state = after
        raise GrowthError("the map takes too many steps", "use one with fewer changes first")

    def _pairs(self, state: Components) -> Iterator[tuple[Component, Component, bool]]:
        """Yield components as they are and as the map has them, and whether that is a split."""
        for name, wanted in sorted(self._wanted.items()):
            if name in state:
                now = state[name].without_problem()
                layouts = [
                    (len(component.shards), component.placement)
                    if component.shards
                    else (0, bool(component.entry and component.entry.is_cluster))
                    for component in (now, wanted)
                ]
                yield now, wanted, layouts[0] != layouts[1]

    # ---- moves

    def _ways(self, state: Components) -> tuple[dict[Place, Place], dict[Place, list[str]]]:
        """Return where databases go, and the shards in each; refuse what does not move."""
        ways: dict[Place, Place] = {}
        names: dict[Place, list[str]] = {}
        for now, wanted, is_split in self._pairs(state):
            there = dict(wanted.entries())
            for shard, entry in () if is_split else now.entries():
                if shard not in there:
                    raise GrowthError(
                        f"{shard}: the map has no such entry, and its data would be left behind",
                        "add the entry to the map, or move its keys into the shards first",
                    )
                source, target = self._place(entry), self._place(there[shard])
                if source is None or target is None:
                    if entry.address == there[shard].address:
                        continue
                    raise GrowthError(
                        f"{shard}: from {entry.address} to {there[shard].address}: sockets, "
                        "Sentinels, references and clusters do not move",
                        "write host, port and db into both entries, or push the map if no data "
                        "has to move",
                    )
                if any(
                    self._same(relocation.address_of(replica), target.server)
                    for replica in entry.replicas
                ):
                    raise GrowthError(
                        f"{shard}: the map has a replica, {target.server}, as the master",
                        f"use: shardkit failover {source.server} --to {target.server}",
                    )
                names.setdefault(source, []).append(str(shard))
                if source != target and now.shards and shard.number is None:
                    raise GrowthError(
                        f"{shard}: an entry beside shards does not move from {source} to {target}",
                        "move its whole server (shardkit move server), and apply the map again",
                    )
                if source != target and ways.setdefault(source, target) != target:
                    raise GrowthError(
                        f"{shard}: shares database {source}, and the map separates them",
                        "move the keys of one by their names first",
                    )
        return ways, names

    def _moved(
        self, state: Components, ways: Mapping[Place, Place], names: Mapping[Place, list[str]]
    ) -> _Found:
        """Return the move of all databases that can go from one server to another."""
        used = self.places(state)
        free = {source: to for source, to in ways.items() if to not in used}
        pairs = [(a.server, b.server) for a, b in free.items() if a.server != b.server]
        if not pairs:
            return None
        group = {a: b for a, b in free.items() if (a.server, b.server) == pairs[0]}
        return self._move(state, group, names)

    def _made_room(
        self, state: Components, ways: Mapping[Place, Place], names: Mapping[Place, list[str]]
    ) -> _Found:
        """Return the move of a database whose place is taken, or whose number alone changes."""
        if not ways:
            return None
        used = self.places(state)
        for source, target in ways.items():
            if target in used and target not in ways:
                raise GrowthError(
                    f"{names[source][0]}: the map has it in {target}, which "
                    f"{', '.join(names.get(target, ['another component']))} uses and keeps",
                    "choose a database that nothing uses",
                )
        taken = set(ways.values())
        order = sorted(ways, key=lambda place: (ways[place] in used, place not in taken))
        source, final = order[0], ways[order[0]].server
        over = self._between(state, names[source][0], source.server, final)
        return self._move(state, {source: over}, names)

    def _between(
        self,
        state: Components,
        name: str,
        left: ServerAddress,
        final: ServerAddress,
        taken: Collection[Place] = (),
    ) -> Place:
        """Return a database that nothing uses or will use, on a server other than ``left``."""
        both = {**state, **{f"wanted {n}": component for n, component in self._wanted.items()}}
        logins = {self._known(at): login for at, login in relocation.masters_in(both.values())}
        used = self.places(both)
        for server in sorted(logins, key=lambda at: at == final):
            there = {place.database for place in used if place.server == server}
            for number in free_databases(server, logins[server], there):
                if server != left and Place(server, number) not in taken:
                    return Place(server, number)
        raise GrowthError(
            f"{name}: its database in the map is used, and no other server has one to go over",
            "choose databases that nothing uses",
        )

    def _move(
        self, state: Components, ways: Mapping[Place, Place], names: Mapping[Place, list[str]]
    ) -> _Found:
        shards = tuple(name for source in ways for name in names[source])
        numbers = {source.database: target.database for source, target in ways.items()}
        [(source, target), *_] = [(a.server, b.server) for a, b in ways.items()]
        back, places = f"shardkit move reverse {shards[0]}", tuple(map(str, ways.values()))
        step = ApplyStep("move", shards, str(source), str(target), places, back)

        planned = planned_move(self._config, shards, str(target), numbers)
        return step, relocation.moved(state, ways, self._same), planned

    # ---- splits and merges

    def _split(self, state: Components) -> _Found:
        for now, wanted, is_split in self._pairs(state):
            if is_split:
                move = self._new_split(state, now, wanted)
                break
        else:
            return None
        kind = "merge" if len(wanted.shards) < len(now.shards) else "split"
        back, places = f"shardkit move reverse {now.name}", tuple(move.targets)
        step = ApplyStep(kind, (now.name,), move.source, move.target, places, back)

        planned = planned_split(self._config, lambda _: move)
        return step, rule_of(move).changed(state, self._same), planned

    def _new_split(self, state: Components, now: Component, wanted: Component) -> Move:
        if wanted.entry is not None and wanted.entry.is_cluster:
            node = str(relocation.address_of(wanted.entry))
            return new_split(state, now.name, None, None, (), to_cluster=node)
        if now.entry and now.shards and not wanted.shards:
            raise GrowthError(
                f"{now.name}: the map has no shards, and there are an entry and shards",
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
            if place in used or place in targets:
                place = self._between(state, str(shard), place.server, place.server, targets)
            targets.append(place)
        rule = wanted.placement if wanted.shards else ""
        routes = wanted.routes or None
        move = new_split(state, now.name, len(targets), rule, (), routes, places=targets)
        if all(sources := [self._place(now.entry_of(shard)) for shard in now.all_shards()]):
            move = replace(move, sources=list(map(str, sources)))
        return move

    # ---- replicas, retirements, pushes

    def _replicas(self, components: Components) -> list[tuple[ServerAddress, ServerAddress]]:
        """Return the replicas that entries name, each after its master."""
        return [
            (self._known(master), self._known(at))
            for master, at, _ in relocation.replicas_in(components.values())
        ]

    def _detached(self, state: Components) -> _Found:
        stay = {name: component for name, component in state.items() if name not in self._wanted}
        kept = {replica for _, replica in self._replicas({**stay, **self._wanted})}
        gone = [pair for pair in self._replicas(state) if pair[1] not in kept]
        if not gone:
            return None
        master, replica = gone[0]
        back = f"shardkit replicas attach {replica} --to {master}, once it is empty"
        step = ApplyStep("detach", (str(replica),), str(master), back=back)
        work = partial(detach_replica, self._config, str(replica))
        return step, relocation.without_replica(state, replica, self._same), work

    def _attached(self, state: Components) -> _Found:
        there = self._replicas(state)
        masters = {self._known(server) for server, _ in relocation.masters_in(state.values())}
        new = [
            pair
            for pair in self._replicas(self._wanted)
            if pair not in there and pair[0] in masters
        ]
        if not new:
            return None
        master, replica = new[0]
        step = ApplyStep(
            "attach",
            (str(replica),),
            target=str(master),
            back=f"shardkit replicas detach {replica}",
        )
        work = partial(attach_replica, self._config, str(replica), str(master))
        return step, relocation.with_replica(state, master, replica, self._same), work

    def _retired(self, state: Components) -> _Found:
        gone = sorted(state.keys() - self._wanted.keys()) if self._prune else []
        if not gone:
            return None

        def work(within: str) -> None:
            text = f"apply {self._map.source}"
            remove(self._config, last_known(self._config, gone[0]), text, within)

        return ApplyStep("retire", (gone[0],), back=_ROLLBACK), {}, work

    def _pushed(self, state: Components) -> _Found:
        new = {n: one for n, one in self._wanted.items() if not one.same_as(state.get(n))}
        if not new:
            return None

        def work(within: str) -> None:
            text, wanted = f"apply {self._map.source}", replace(self._map, epoch=None)
            push(self._config, wanted, message=text, epoch=self.epoch)

        return ApplyStep("push", tuple(sorted(new)), back=_ROLLBACK), new, work

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
            entries = [entry for component in new.values() for _, entry in component.entries()]
            later = {entry.address for entry in entries if self._place(entry) in arriving}
            for finding in preflight(state, new):
                if not finding.warning and finding.address not in later:
                    yield f"{finding}: {finding.remedy}"
