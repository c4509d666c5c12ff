"""Moves of servers and shards to other servers, while they are in use.

There is one family of moves. All have a plan, a record in the journal, a lease, a certificate, and
can be resumed, aborted, verified and reversed. They differ in how they copy: a whole server by
replication (`server_move`), shards key by key (`shard_move`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias, TypedDict, Unpack

from shardkit.admin.growth import journal
from shardkit.admin.growth.failover import HOLD
from shardkit.admin.growth.gate import update_nodes
from shardkit.admin.growth.journal import KEYS, REPLICATION, Lease, Move
from shardkit.admin.growth.move_plan import MovePlan, plan_of
from shardkit.admin.growth.mover import Mover, Progress
from shardkit.admin.growth.relocation import Place, ServerAddress
from shardkit.admin.growth.rule import like_of
from shardkit.admin.growth.server_move import ServerMover
from shardkit.admin.growth.shard_move import ShardMover, reversed_move
from shardkit.admin.growth.split_plan import new_split, plan_split_of
from shardkit.config.component import Component
from shardkit.config.store import read_components
from shardkit.errors import GrowthError, ShardKitError
from shardkit.network.server_queries import ServerErrors
from shardkit.operations.arguments import Seconds, in_seconds
from shardkit.operations.server_errors import failed_command, meaning

_SEE = "see: shardkit move status"
_STEP = 0.05  # seconds between two looks at another process
_MOVERS: Mapping[str, type[Mover]] = {REPLICATION: ServerMover, KEYS: ShardMover}


class MoveOptions(TypedDict, total=False):
    """How a move works. Each option can be left out.

    Attributes:
        hold: how long writers may be held at a time, in seconds; 0.5 by default.
        copy: how long the copy may take, in seconds; an hour by default.
        kill: whether a move of shards closes connections that do not leave within two fifths of
            the hold; False by default.
        share: the share of the time in which the comparison works, and the copy of shards; they
            pause for the rest. 1.0 by default. (Replication is the servers' own work.)
        offline: whether writers are held for the whole copy of shards or of a split, which then
            needs no keyspace notifications; False by default. Each write waits for ten seconds, and
            then fails. Resume it with the same option.
        keep: whether the old databases of shards or of a split are kept up to date afterwards, so
            that `reverse_move` takes no longer than a cutover. The call then returns when another
            process calls `complete_move` or `reverse_move`. False by default.
        progress: a function that is called with a text about each step.
    """

    hold: Seconds
    copy: Seconds
    kill: bool
    share: float
    offline: bool
    keep: bool
    progress: Progress


def plan_move(
    config: Any,
    what: str | Sequence[str],
    to: str,
    *,
    hold: Seconds = HOLD,
    offline: bool = False,
) -> MovePlan:
    """Return what a move would do, and what prevents it. Changes nothing.

    Args:
        config: a client of the config server.
        what: a server, ``host:port``, as entries name it; or a list of shards, as ``timelines:3``,
            all on one server.
        to: the server that takes over, ``host:port``. For a server it must be empty; for shards
            only their databases must be.
        hold: how long writers may be held at a time, in seconds.
        offline: whether writers of shards are held for the whole copy; see `MoveOptions`.

    Raises:
        InvalidArgumentError: no entry names the server as a master, there is no such shard, or the
            shards are on several servers.
        ConfigError: the entry of a shard does not name its server by host and port.
    """
    hold = in_seconds(hold)
    target = ServerAddress.parse(to)
    return plan_of(config, read_components(config), what, target, hold, offline)


def start_move(
    config: Any,
    what: str | Sequence[str],
    to: str,
    *,
    within: str = "",
    **options: Unpack[MoveOptions],
) -> Move:
    """Move a whole server, or shards of one; return when that is done.

    Args:
        config: a client of the config server.
        what: a server, ``host:port``, as entries name it; or a list of shards, as ``timelines:3``:
            all on one server, and all that share their databases.
        to: the server that takes over, ``host:port``; see `plan_move`.
        within: the id of the change that the move is a step of.
        options: see `MoveOptions`.

    Returns:
        The move, with its certificate.

    Raises:
        GrowthError: something prevents the move, or it cannot continue; the error says what state
            the servers are in.
        InvalidArgumentError: as `plan_move`.
    """
    return _started(config, _planned_move(config, what, to, within=within), **options)


_Components: TypeAlias = Mapping[str, Component]
_Planned: TypeAlias = Callable[[_Components, float, bool], tuple[Move, MovePlan]]
"""Returns a move and its plan, by the components, the hold, and whether it is ``offline``."""


def _planned_move(
    config: Any,
    what: str | Sequence[str],
    to: str,
    numbers: Mapping[int, int] = MappingProxyType({}),
    **fields: Any,
) -> _Planned:
    """Plan a move, or the reversal of one.

    Shards go to databases of these numbers, by theirs now, if they are free.
    """

    def planned(components: _Components, hold: float, offline: bool) -> tuple[Move, MovePlan]:
        plan = plan_of(config, components, what, ServerAddress.parse(to), hold, offline, numbers)
        places = list(plan.shards), list(plan.sources), list(plan.targets)
        name = plan.shards[0] if plan.sources else plan.source
        move = Move(name, plan.copying, plan.source, plan.target, *places)
        return replace(move, **fields), plan

    return planned


def _planned_split(config: Any, split_of: Callable[[_Components], Move]) -> _Planned:
    def planned(components: _Components, *limits: Any) -> tuple[Move, MovePlan]:
        split = split_of(components)
        if split.undoes and any(split.clusters):
            update_nodes(split, lambda server: like_of(components[split.name]))
        return split, plan_split_of(config, components, split, *limits)

    return planned


def _started(config: Any, planned: _Planned, **options: Unpack[MoveOptions]) -> Move:
    """Carry out a plan, unless something prevents it."""
    with journal.lease(config) as lease:
        components = read_components(config)
        limits = in_seconds(options.get("hold", HOLD)), options.get("offline", False)
        move, plan = planned(components, *limits)
        for each in journal.read_all(config):
            is_other = each.name != move.name and not set(plan.shards) & set(each.shards)
            if not is_other and each.phase not in _MOVERS[each.copying].settled:
                raise GrowthError(
                    f"{each.name} is already being moved to {each.target} ({each.phase})",
                    f"resume it: shardkit move resume {each.name}, or abort it",
                )
        if plan.problems:
            raise GrowthError("; ".join(plan.problems), "correct that: nothing has changed")
        move.keys, move.memory = dict(plan.keys), plan.memory
        move.expected, move.slowness = plan.expected.seconds, plan.expected.slowness
        return _run(lease, move, components, **options)


def plan_split(
    config: Any,
    component: str,
    *,
    shards: int | None = None,
    placement: str | None = None,
    over: Sequence[str] = (),
    routes: Sequence[str] | None = None,
    to_cluster: str | None = None,
    hold: Seconds = HOLD,
    offline: bool = False,
) -> MovePlan:
    r"""Return what a split would do, and what prevents it. Changes nothing.

    Args:
        config: a client of the config server.
        component: the component, with shards or without.
        shards: how many shards it will have; as many as now by default.
        placement: how keys will find their shards; as now by default, or ``crc32``.
        over: the servers of the new shards, ``host:port``; by default those that it has now. Shard
            n goes to server ``n % len(over)``, into a database that nothing uses.
        routes: rules that find the routing key in the name of a key, as ``visits:(\d+)`` or
            ``pair followers:(\d+):(\d+)``; by default those of the shard map.
        to_cluster: a node of an empty cluster, ``host:port``, that takes the component over in
            place of shards.
        hold: how long writers may be held at a time, in seconds.
        offline: whether writers are held for the whole copy; see `MoveOptions`.

    Raises:
        InvalidArgumentError: there is no such component, or nothing would change.
        ConfigError: an entry does not name its server by host and port, or there is no such
            placement.

    Cost: a few exchanges with each server, and a sample of 1,000 keys of each shard.
    """
    hold = in_seconds(hold)
    components = read_components(config)
    split = new_split(components, component, shards, placement, over, routes, to_cluster)
    return plan_split_of(config, components, split, hold, offline)


def start_split(
    config: Any,
    component: str,
    *,
    shards: int | None = None,
    placement: str | None = None,
    over: Sequence[str] = (),
    routes: Sequence[str] | None = None,
    to_cluster: str | None = None,
    **options: Unpack[MoveOptions],
) -> Move:
    """Give a component another number of shards, or another placement; return when that is done.

    Every key is copied to its new shard. Until then nothing changes for clients. Then all entries
    change at once. `resume_move`, `abort_move`, `reverse_move` and `verify_move` take the name of
    the component.

    The arguments are those of `plan_split`, the options those of `MoveOptions`.

    Returns:
        The split, with its certificate.

    Raises:
        GrowthError: something prevents the split, or it cannot continue; the error says what state
            the servers are in.
        InvalidArgumentError: as `plan_split`.
    """
    given = component, shards, placement, over, routes, to_cluster
    split = _planned_split(config, lambda components: new_split(components, *given))
    return _started(config, split, **options)


def resume_move(config: Any, name: str, **options: Unpack[MoveOptions]) -> Move:
    """Continue an interrupted move, from any machine.

    A copy of shards starts again if the move was not decided yet.

    Args:
        config: a client of the config server.
        name: the server that is left, one of the shards, or the component that was split.
        options: see `MoveOptions`.

    Raises:
        GrowthError: as `start_move`; or the move was aborted.
        ConfigError: there is no such move.
    """
    with journal.lease(config) as lease:
        move = journal.read(config, name)
        if move.phase == "aborted":
            raise GrowthError(f"the move of {name} was aborted", "start it again")
        return _run(lease, move, **options)


def abort_move(config: Any, name: str) -> Move:
    """Undo a move that is not decided: the target is empty again.

    Raises:
        GrowthError: the target has taken over, or the move is over.
        ConfigError: there is no such move.
    """
    with journal.lease(config) as lease:
        move = journal.read(config, name)
        if move.is_over:
            raise GrowthError(f"the move of {name} is {move.phase}: nothing to abort is left", _SEE)
        with _naming(move):
            mover_of(lease, move).abort()
        return move


def reverse_move(config: Any, name: str, **options: Unpack[MoveOptions]) -> Move:
    """Move everything back to where it was, with the same guarantees.

    Args:
        config: a client of the config server.
        name: the server that was left, one of the shards, or the component that was split.
        options: see `MoveOptions`.

    Raises:
        GrowthError: the move is not done, something prevents the way back, or the old server no
            longer follows the new one.
        ConfigError: there is no such move.
    """
    move = journal.read(config, name)
    if move.phase not in ("done", "kept"):
        raise GrowthError(f"the move of {name} is {move.phase}", "resume it, or abort it")
    if move.phase == "kept":
        return _reverse_kept(config, move, **options)
    if move.placements:
        split = _planned_split(config, lambda components: reversed_move(move))
        return _started(config, split, **options)
    what = move.target if move.copying == REPLICATION else move.shards
    places = zip(map(Place.parse, move.targets), map(Place.parse, move.sources), strict=True)
    numbers = {now.database: before.database for now, before in places}
    back = _planned_move(config, what, move.source, numbers, name=move.name, undoes=move.id)
    return _started(config, back, **options)


def _reverse_kept(config: Any, move: Move, **options: Unpack[MoveOptions]) -> Move:
    """Ask the process that keeps the old databases to reverse a move; without one, copy again."""
    with journal.lease(config) as lease:
        if not journal.is_kept(config, move):
            return _run(lease, reversed_move(move), **options)
        move.wanted = "reverse"
        lease.write(move)
    while journal.is_kept(config, move):
        time.sleep(_STEP)
    found = journal.read(config, move.name)
    if found.undoes != move.id:  # it has ended without that
        return reverse_move(config, move.name, **options)
    return found if found.is_over else resume_move(config, move.name, **options)


def complete_move(config: Any, name: str) -> Move:
    """Empty the old databases of a move that were kept up to date; it is done then.

    Args:
        config: a client of the config server.
        name: one of the shards, or the component that was split.

    Raises:
        GrowthError: the old databases are not kept.
        ConfigError: there is no such move.
    """
    with journal.lease(config) as lease:
        move = journal.read(config, name)
        if move.copying == REPLICATION:
            raise GrowthError(
                f"{name} is kept up to date by replication, as a replica of {move.target}",
                "reverse the move, or stop the server",
            )
        if move.phase != "kept":
            raise GrowthError(f"the move of {name} is {move.phase}, not kept", _SEE)
        move.wanted = "complete"
        lease.write(move)
    while journal.is_kept(config, move):
        time.sleep(_STEP)
    with journal.lease(config) as lease:
        move = journal.read(config, name)
        move.keep = False
        return _run(lease, move)


def verify_move(config: Any, name: str, **options: Unpack[MoveOptions]) -> Move:
    """Return a finished move with a new certificate.

    After a move of a server both servers are compared, as long as the old one follows the new one.
    After a move of shards the old databases are searched for keys that were written since.

    Args:
        config: a client of the config server.
        name: the server that was left, one of the shards, or the component that was split.
        options: ``share`` and ``progress`` of `MoveOptions`.

    Raises:
        GrowthError: the move is not done, or there is nothing to compare any more.
        ConfigError: there is no such move.
    """
    move = journal.read(config, name)
    if move.phase not in _MOVERS[move.copying].comparable:
        raise GrowthError(f"the move of {name} is {move.phase}", "resume it first")
    before = replace(move)
    mover_of(Lease(config, "none"), move, **options).verify()
    with suppress(GrowthError), journal.lease(config) as held:  # if nobody else is at work
        if before in journal.read_all(config, []):
            held.write(move)
    return move


def moves(config: Any, unreadable: list[ShardKitError] | None = None) -> list[Move]:
    """Return the move of each server, shard or component that moved: the open or last one.

    Args:
        config: a client of the config server.
        unreadable: receives the errors of records that cannot be read.

    Raises:
        ConfigError, NewerFormatError: a record cannot be read, and ``unreadable`` is None.
    """
    return journal.current(journal.read_all(config, unreadable))


@contextmanager
def _naming(move: Move) -> Iterator[None]:
    """Have errors of servers name the move, and what it came to."""
    try:
        yield
    except ServerErrors as error:
        known = meaning(error)
        raise GrowthError(
            f"the move of {move.name} from {move.source} to {move.target} stopped in phase "
            f"{move.phase}: {known.text if known else failed_command(error)[1]}",
            f"{known.remedy if known else 'correct that'}, and then: shardkit move resume "
            f"{move.name}"
            + (
                ", or abort it"
                if move.phase in ("begun", "attached")
                else f". If {move.target} is gone for good: shardkit changes end {move.name} --lost"
            ),
        ) from error


def _run(
    lease: Lease,
    move: Move,
    components: Mapping[str, Component] | None = None,
    **options: Unpack[MoveOptions],
) -> Move:
    """Carry a move on to its end; return it, or its reversal."""
    mover = mover_of(lease, move, components, **options)
    with _naming(move):
        if not move.started:
            mover.begin()
        mover.run()
    return mover.move


def mover_of(
    lease: Lease,
    move: Move,
    components: Mapping[str, Component] | None = None,
    **options: Unpack[MoveOptions],
) -> Mover:
    """Return what works on a move."""
    if components is None:
        components = read_components(lease.config)
    return _MOVERS[move.copying](lease, components, move, **options)
