"""Moving all that a server holds to another one, while it is in use.

::

    begun      the target becomes a replica of the source, and is filled
    attached   FAILOVER: the source holds its writers until the target has all, and follows it
    promoted   the entries are pushed; what still writes to the source is refused and goes on to
               the target, in the same call
    pushed     clients leave the source; both servers are compared
    done       the source is a replica that nobody uses: reverse the move, or take it away

The source is its own fence: it is a replica, so it takes no writes. Until it is promoted, a move
can be aborted, and nothing has changed for anybody. Afterwards it can be reversed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from redis.exceptions import RedisError

from shardkit.admin.client_list import connected_clients
from shardkit.admin.growth import journal
from shardkit.admin.growth.certificate import ServerComparison, compare
from shardkit.admin.growth.entries import LEAVE, push_relocation
from shardkit.admin.growth.failover import HOLD, replicas_of
from shardkit.admin.growth.journal import Lease, ServerMove
from shardkit.admin.growth.known_servers import KnownServers
from shardkit.admin.growth.relocation import Same, ServerAddress, entries_on
from shardkit.admin.growth.servers import (
    GrowthError,
    ask_for_replicas,
    connected_to,
    hand_over,
    persist_roles,
    replicate,
    role_of,
    same_server,
    take_writes_alone,
    unfit,
    wait_for_copy,
)
from shardkit.config.component import Component, entry_key
from shardkit.config.entry import Entry
from shardkit.config.store import read_components, read_epoch
from shardkit.errors import InvalidArgumentError

COPY = 3600.0  # seconds
_BYTES_A_SECOND = 100e6  # of a copy, for the estimate


@dataclass(frozen=True)
class MovePlan:
    """What a move would do, and what stands in its way.

    Attributes:
        source: the server that is left.
        target: the server that takes its place.
        shards: the shards concerned.
        keys: how many keys it has, by database.
        memory: the bytes that it uses.
        seconds: about how long the copy takes.
        steps: what will be done, in words and commands.
        problems: why it cannot be done; empty if it can.
    """

    source: ServerAddress
    target: ServerAddress
    shards: tuple[str, ...]
    keys: Mapping[str, int]
    memory: int
    seconds: float
    steps: tuple[str, ...]
    problems: tuple[str, ...] = field(default=())


Progress = Callable[[str], object]


def plan_move(config: Any, source: str, to: str, *, hold: float = HOLD) -> MovePlan:
    """Say what a move would do. Changes nothing.

    Args:
        config: a client of the config server.
        source: the server, ``host:port``, as entries name it.
        to: the server that shall take its place, empty.
        hold: how long writers may wait, in seconds.

    Raises:
        InvalidArgumentError: no entry names the source as a master.
    """
    return _plan(
        read_components(config), ServerAddress.parse(source), ServerAddress.parse(to), hold
    )


def _like(
    components: Mapping[str, Component], server: ServerAddress, same: Same
) -> tuple[Entry, str]:
    for component, number, entry in entries_on(components.values(), server, same):
        return entry, entry_key(component, number)
    raise InvalidArgumentError(
        f"no entry names {server} as a master", "give HOST:PORT as entries have it"
    )


def _plan(
    components: Mapping[str, Component], source: ServerAddress, target: ServerAddress, hold: float
) -> MovePlan:
    servers = KnownServers(components.values(), source, target)
    same = servers.same
    like, where = _like(components, source, same)
    shards = tuple(
        component if number is None else f"{component}:{number}"
        for component, number, _ in entries_on(components.values(), source, same)
    )
    problems = [
        f"{each} leads to {source} by a socket, Sentinels or a reference: write host and port"
        for each in servers.nameless(source)
    ]
    if same(source, target):
        problems.append(f"{source} and {target} are one server")
    if entries_on(components.values(), target, same):
        problems.append(f"entries name {target} as a master already")
    keys: dict[str, int] = {}
    memory = 0
    with (
        connected_to(source, like, where) as master,
        connected_to(target, like, where) as replica,
    ):
        try:
            info: dict[str, Any] = master.info()
            memory = int(info["used_memory"])
            keys = {
                name.removeprefix("db"): int(each["keys"])
                for name, each in info.items()
                if name.startswith("db") and isinstance(each, dict)
            }
            if info["role"] != "master":
                problems.append(f"{source} is a replica")
            if info.get("cluster_enabled"):
                problems.append(f"{source} is a node of a cluster, which moves slots itself")
        except (RedisError, OSError) as error:
            problems.append(f"{source} does not answer ({error})")
            info = {}
        try:
            there: dict[str, Any] = replica.info()
            problems += unfit(info, there, master, replica, source, target)
        except (RedisError, OSError) as error:
            problems.append(f"{target} does not answer ({error})")
    others = _other_replicas(components, source, target, same)
    steps = (
        f"{target}: REPLICAOF {source.host} {source.port}, and wait until it is filled",
        f"{source}: FAILOVER TO {target.host} {target.port} TIMEOUT {round(1000 * hold)}: writers "
        "wait until the target has all, readers do not",
        *(f"{each}: REPLICAOF {target.host} {target.port}" for each in others),
        f"push {len(shards)} entries that name {target}",
        f"compare both servers; {source} stays as a replica that no entry names",
    )
    return MovePlan(
        source,
        target,
        shards,
        keys,
        memory,
        memory / _BYTES_A_SECOND,
        steps,
        tuple(problems),
    )


def start_move(
    config: Any,
    source: str,
    to: str,
    *,
    hold: float = HOLD,
    copy: float = COPY,
    share: float = 1.0,
    progress: Progress = lambda what: None,
) -> ServerMove:
    """Move all that a server holds to another one; return when that is done.

    Args:
        config: a client of the config server.
        source: the server, ``host:port``, as entries name it.
        to: the server that shall take its place, empty.
        hold: how long writers may wait, in seconds.
        copy: how long the copy may take, in seconds.
        share: for how much of the time the comparison works; it pauses for the rest. (The copy is
            the servers' own, which work as fast as they can.)
        progress: is told what is being done.

    Returns:
        The move, with its certificate.

    Raises:
        GrowthError: something stands in its way, or it cannot go on; says what is as it was.
        InvalidArgumentError: no entry names the source as a master.
    """
    with journal.lease(config) as held:
        components = read_components(config)
        plan = _plan(components, ServerAddress.parse(source), ServerAddress.parse(to), hold)
        if plan.problems:
            raise GrowthError("; ".join(plan.problems), "nothing was changed")
        same = KnownServers(components.values(), plan.source, plan.target).same
        for each in journal.read_all(config):
            if same(each.source_address, plan.source) and each.phase not in ("done", "aborted"):
                raise GrowthError(
                    f"{source} is being moved to {each.target} already ({each.phase})",
                    f"shardkit move resume {each.source}, or abort it",
                )
        move = ServerMove(str(plan.source), str(plan.target), keys=dict(plan.keys))
        move.others = _other_replicas(components, plan.source, plan.target, same)
        held.write(move)
        return _carry_on(held, move, hold, copy, share, progress)


def resume_move(
    config: Any,
    source: str,
    *,
    hold: float = HOLD,
    copy: float = COPY,
    share: float = 1.0,
    progress: Progress = lambda what: None,
) -> ServerMove:
    """Carry on with a move that was interrupted; see `start_move`."""
    with journal.lease(config) as held:
        move = journal.read(config, str(ServerAddress.parse(source)))
        if move.phase == "aborted":
            raise GrowthError(f"the move of {source} was aborted", "start it again")
        return _carry_on(held, move, hold, copy, share, progress)


def _carry_on(
    lease: Lease, move: ServerMove, hold: float, copy: float, share: float, progress: Progress
) -> ServerMove:
    config = lease.config
    source, target = move.source_address, move.target_address
    components = read_components(config)
    same = KnownServers(components.values(), source, target).same
    like, where = _like_either(components, source, target, same)
    with ExitStack() as stack:
        old = stack.enter_context(connected_to(source, like, where))
        new = stack.enter_context(connected_to(target, like, where))
        stack.callback(ask_for_replicas, new, config, target)
        if move.phase == "begun":
            progress(f"copying {source} to {target}")
            _attach(old, new, source, like, where)
            wait_for_copy(old, new, copy)
            _reached(lease, move, "attached")
        if move.phase == "attached":
            progress(f"handing over to {target}")
            if role_of(new).is_master and not role_of(old).is_master:
                pass  # done before a kill
            else:
                _attach(old, new, source, like, where)  # it may have been restarted
                wait_for_copy(old, new, copy)
                take_writes_alone(new, config, target)
                lease.check()
                move.held = hand_over(old, new, target, hold)
            persist_roles(old, new)
            _reached(lease, move, "promoted")
        if move.phase == "promoted":
            progress("pushing the entries")
            move.epoch = push_relocation(
                lease,
                source,
                target,
                same,
                keep_source=move.kept,
                message=f"move of {source} to {target}",
            )
            for each in move.others:
                with (
                    suppress(RedisError, OSError),
                    connected_to(ServerAddress.parse(each), like, where) as other,
                ):
                    replicate(other, target, like, where)
            _reached(lease, move, "pushed")
        if move.phase == "pushed":
            progress(f"waiting until clients have left {source}")
            _wait_for_clients(components, source, same)
            progress("comparing")
            found = _compare(like, where, move, share, progress)
            move.certificate = _certificate(found, read_epoch(config), move)
            _reached(lease, move, "done")
    return move


def _like_either(
    components: Mapping[str, Component], source: ServerAddress, target: ServerAddress, same: Same
) -> tuple[Entry, str]:
    try:
        return _like(components, source, same)
    except InvalidArgumentError:
        return _like(components, target, same)


def _other_replicas(
    components: Mapping[str, Component], source: ServerAddress, target: ServerAddress, same: Same
) -> list[str]:
    replicas = replicas_of(components.values(), source, same)
    return [str(each) for each in replicas if not same(each, target)]


def _attach(old: Any, new: Any, source: ServerAddress, like: Entry, where: str) -> None:
    role = role_of(new)
    if role.is_master or role.master is None or not same_server(role.master, source):
        if role.is_master and new.info("keyspace"):
            raise GrowthError(
                "the target has keys and is no replica of the source",
                "something else uses it: look at it, then resume or abort",
            )
        replicate(new, source, like, where)
        persist_roles(new)


def _reached(lease: Lease, move: ServerMove, phase: str) -> None:
    move.phase = phase
    lease.write(move)


def _wait_for_clients(
    components: Mapping[str, Component], source: ServerAddress, same: Same
) -> None:
    """Wait until no connection of shardkit's has worked on the source lately, but not for ever."""
    concerned = [
        component for component in components.values() if entries_on([component], source, same)
    ]
    end = time.monotonic() + LEAVE
    while concerned and time.monotonic() < end:
        processes, _ = connected_clients(concerned)
        if not any(process.components for process in processes):
            return
        time.sleep(0.1)


def _compare(
    like: Entry, where: str, move: ServerMove, share: float, progress: Progress
) -> ServerComparison:
    source, target = move.source_address, move.target_address
    with ExitStack() as stack:

        def client(server: ServerAddress, number: int) -> Any:
            return stack.enter_context(connected_to(server, like, where, database=number))

        with connected_to(target, like, where) as new:
            used = sorted(int(name[2:]) for name in new.info("keyspace") if name[2:].isdigit())
        used = sorted({*used, *(int(number) for number in move.keys)})
        return compare(
            partial(client, target),
            partial(client, source),
            used,
            lambda keys: progress(f"comparing: {keys:,} keys"),
            share=share,
        )


def _certificate(found: ServerComparison, epoch: int, move: ServerMove) -> dict[str, Any]:
    return {
        **asdict(found),
        "keys_before": sum(move.keys.values()),
        "keys_now": found.total,
        "same": found.same,
        "held": move.held,
        "epoch": epoch,
        "at": time.time(),
    }


def verify_move(
    config: Any,
    source: str,
    progress: Progress = lambda what: None,
    *,
    share: float = 1.0,
) -> ServerMove:
    """Compare both servers of a move again, as long as the source follows the target.

    Raises:
        GrowthError: the source follows the target no more, or the move has not come so far.
    """
    move = journal.read(config, str(ServerAddress.parse(source)))
    before = replace(move)
    if move.phase not in ("pushed", "done"):
        raise GrowthError(f"the move of {source} is {move.phase}", "resume it first")
    components = read_components(config)
    same = KnownServers(components.values(), move.target_address).same
    like, where = _like(components, move.target_address, same)
    with connected_to(move.source_address, like, where) as old:
        role = role_of(old)
        if role.master is None or not same_server(role.master, move.target_address):
            raise GrowthError(
                f"{source} does not follow {move.target} any more", "there is nothing to compare"
            )
    move.certificate = _certificate(
        _compare(like, where, move, share, progress), read_epoch(config), move
    )
    journal.write_verified(config, before, move)
    return move


def abort_move(config: Any, source: str) -> ServerMove:
    """Undo a move that has not been handed over: the target is empty again.

    Raises:
        GrowthError: the target has taken over.
    """
    with journal.lease(config) as held:
        move = journal.read(config, str(ServerAddress.parse(source)))
        components = read_components(config)
        servers = (move.source_address, move.target_address)
        same = KnownServers(components.values(), *servers).same
        like, where = _like_either(components, *servers, same)
        if move.phase in ("done", "aborted"):
            raise GrowthError(f"the move of {source} is {move.phase}", "there is nothing to abort")
        with connected_to(move.target_address, like, where) as new:
            role = role_of(new)
            follows = role.master is not None and same_server(role.master, move.source_address)
            if move.phase in ("promoted", "pushed") or (role.is_master and _follows(move, like)):
                raise GrowthError(
                    f"{move.target} has taken over",
                    f"resume it, and then: shardkit move reverse {source}",
                )
            if follows:
                new.execute_command("REPLICAOF", "NO", "ONE")
                new.execute_command("FLUSHALL", "ASYNC")
                persist_roles(new)
            ask_for_replicas(new, config, move.target_address, 0)
        _reached(held, move, "aborted")
        return move


def _follows(move: ServerMove, like: Entry) -> bool:
    with connected_to(move.source_address, like) as old:
        role = role_of(old)
        return role.master is not None and same_server(role.master, move.target_address)


def reverse_move(
    config: Any,
    source: str,
    *,
    hold: float = HOLD,
    copy: float = COPY,
    share: float = 1.0,
    progress: Progress = lambda what: None,
) -> ServerMove:
    """Move everything back to where it was, with the same promises.

    Raises:
        GrowthError: the source follows the target no more, or the move is not done.
    """
    move = journal.read(config, str(ServerAddress.parse(source)))
    if move.phase != "done":
        raise GrowthError(f"the move of {source} is {move.phase}", "resume it, or abort it")
    return start_move(
        config, move.target, move.source, hold=hold, copy=copy, share=share, progress=progress
    )


def moves(config: Any) -> list[ServerMove]:
    """Return all moves that the journal has."""
    return journal.read_all(config)
