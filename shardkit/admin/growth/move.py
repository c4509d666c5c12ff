"""Moves of servers and shards to other servers, while they are in use.

There is one family of moves. All have a plan, a record in the journal, a lease, a certificate, and
can be resumed, aborted, verified and reversed. They differ in how they copy: a whole server by
replication (`ServerMover`), shards key by key (`shard_move`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any, TypeAlias, Unpack

import redis
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from shardkit.admin.changes import explaining, way_on
from shardkit.admin.growth import journal, servers
from shardkit.admin.growth.failover import HOLD, repoint
from shardkit.admin.growth.gate import proof_key, update_nodes
from shardkit.admin.growth.journal import KEYS, REPLICATION, Lease, Move, push_relocation
from shardkit.admin.growth.move_plan import MovePlan, new_split, plan_of, plan_split_of
from shardkit.admin.growth.mover import COPIED, MoveOptions, Mover, check_numbers
from shardkit.admin.growth.relocation import Place, ServerAddress, Stored, entries_on
from shardkit.admin.growth.rule import like_of
from shardkit.admin.growth.servers import ServerRole
from shardkit.admin.growth.shard_move import ShardMover, reversed_move
from shardkit.config.component import Component
from shardkit.config.store import read_components, read_epoch
from shardkit.errors import GrowthError, ShardKitError
from shardkit.network.survey import missing_rights
from shardkit.operations.arguments import Seconds, check_seconds

# Empties a server that has just been promoted, unless somebody has written there since.
_EMPTY = """
local said = redis.call('INFO', 'replication')
local now, since = said:match('master_repl_offset:(%d+)'), said:match('second_repl_offset:(%d+)')
if since and tonumber(now) < tonumber(since) then redis.call('FLUSHALL', 'ASYNC') end"""


class ServerMover(Mover):
    """One attempt at the move of a whole server by replication, while it is in use.

    ::

        begun      the target becomes a replica of the source, and is filled
        attached   FAILOVER: the source holds writers until the target has everything, and follows
        promoted   the entries are pushed; the source refuses writes that still reach it, and
                   clients send them to the target in the same call
        pushed     clients leave the source; both servers are compared
        done       the source is a replica that no entry names: reverse the move, or stop the server

    The source is its own fence: it is a replica, so it takes no writes. Until it is promoted, a
    move can be aborted, and nothing has changed for any client. Afterwards it can be reversed.
    """

    settled = ("pushed", "done", "aborted")
    comparable = ("pushed", "done")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._follow_failovers()
        self._source = ServerAddress.parse(self._move.source)
        self._target = ServerAddress.parse(self._move.target)
        self._own = self._servers.login(self._source, self._target)

    def _login(self, server: ServerAddress) -> Stored:
        return self._own

    def _expected(self) -> Iterable[tuple[str, ServerAddress, int | None]]:
        move = self._move
        server = move.target if move.phase in ("promoted", "pushed") else move.source
        return [(shard, ServerAddress.parse(server), None) for shard in move.shards]

    def _touched(self) -> dict[ServerAddress, str]:
        return dict.fromkeys((self._source, self._target), "*")

    def run(self) -> None:
        """Replicate, hand over, push the entries, and compare."""
        move, config = self._move, self._config
        source, target = self._source, self._target
        with ExitStack() as stack:
            old = stack.enter_context(servers.connected_to(source, self._own))
            new = stack.enter_context(servers.connected_to(target, self._own))
            stack.callback(servers.ask_for_replicas, new, config, target)

            # Otherwise a mover that was killed, or whose record was lost, has handed over; or a
            # failover has had the target take over, perhaps from a source that is gone for good.
            taken_over = self._leads(target)

            def hands_over() -> bool:
                if taken_over or not (
                    servers.role_of(old).is_master or not servers.role_of(new).is_master
                ):
                    return False
                entries = read_components(config).values()
                for shard, _ in entries_on(entries, target, self._same):
                    raise self._in_the_way(shard, target)
                return True

            if move.phase == "begun" and (
                hands_over() or not (taken_over or self._follows(source, target))
            ):
                self._begin(old, new)
            if move.phase in ("begun", "attached"):
                self._progress(f"handing over to {target}")
                if hands_over():
                    if servers.has_lost_keys(old, new):
                        raise self._without_keys(source)
                    self._attach(new)  # the target may have been restarted
                    for server in (old, new):  # a password may have changed during the copy
                        servers.follow_as(server, self._own, self._lease.order)
                    servers.wait_for_copy(old, new, self._copy_timeout, tell=self._lease.check)
                    servers.take_writes_alone(new, config, target)
                    with self._lease.marking(old, new):
                        with suppress(ResponseError):  # it is full, or the user may not
                            self._lease.order(old, "SET", proof_key(old), move.id)
                            move.run_id = str(new.info("server").get("run_id", ""))
                            self._lease.write(move)
                        move.held = servers.hand_over(
                            old, new, target, self._hold, self._lease.order
                        )
                servers.persist_roles(old, new)
                self._reached("promoted")
            if move.phase == "promoted":
                self._require_handover(old, new)
                self._require_data(old, new)
                self._push()
            if move.phase == "pushed":
                new.ping()
                try:
                    old.ping()
                except (RedisError, OSError) as error:
                    self._progress(f"{source} does not answer, so nothing is compared: {error}")
                else:
                    self._progress(f"waiting until clients have left {source}")
                    journal.wait_until_read(self._config, move.epoch)
                    self._require_data(old, new)
                    self._certify()
                    self._require_data(old, new)
                self._reached("done")

    def _reached(self, phase: str) -> None:
        super()._reached(phase)
        for server in (self._source, self._target) if self._move.is_over else ():
            with suppress(RedisError, OSError), servers.connected_to(server, self._own) as client:
                if client.get(proof_key(client)) == self._move.id.encode():  # of no later move
                    client.delete(proof_key(client))

    def _leads(self, server: ServerAddress) -> bool:
        """Whether an entry of what moves names a server."""
        return any(str(shard) in self._move.shards for shard, _ in self._servers.entries_on(server))

    def _begin(self, old: Any, new: Any) -> None:
        others = self._servers.replicas_of(self._source)
        self._move.others = [str(other) for other in others if not self._same(other, self._target)]
        if self._move.followed is None:
            self._move.followed = self._follows(self._target, self._source)
        self._reached("begun")
        self._progress(f"copying {self._source} to {self._target}")
        self._attach(new)

        def tell() -> None:
            info = new.info("replication")
            total = int(info.get("master_sync_total_bytes", 0)) or self._move.memory
            received = int(info.get("master_sync_read_bytes", 0))
            self._pace.note(COPIED, received, total, "bytes")

        servers.wait_for_copy(old, new, self._copy_timeout, tell=tell)
        self._reached("attached")

    def _attach(self, new: Any) -> None:
        role = servers.role_of(new)
        if (
            role.is_master
            or role.master is None
            or not servers.same_server(role.master, self._source)
        ):
            if role.is_master and new.info("keyspace"):
                raise GrowthError(
                    f"{self._target} has keys and is not a replica of {self._source}: something "
                    "else uses it",
                    "check it, then resume or abort",
                )
            servers.replicate(new, self._source, self._own, self._lease.order)
            servers.persist_roles(new)

    def _require_handover(self, old: Any, new: Any) -> None:
        """Check that the target took over from the source, which may be down by now."""
        follows = True
        with suppress(RedisError, OSError):
            master = servers.role_of(old).master
            follows = master is not None and servers.same_server(master, self._target)
        if not (follows and servers.role_of(new).is_master):
            raise GrowthError(
                f"{self._target} is not the master of {self._source}, although the record of this "
                "move says so: the record is out of date",
                f"find out which server has the keys, then: shardkit changes end {self._move.name}",
            )

    def _require_data(self, old: Any, new: Any) -> None:
        """Check that the target has not come back without its data; if so, go back in time.

        The source follows the target, so soon it would have lost its data, too.
        """
        move, proof = self._move, self._move.id.encode()
        if not move.run_id or new.get(proof_key(new)) == proof:
            return
        # The mark may be evicted, or the record older than the end of the move, which removes it.
        there = sum(counts["keys"] for counts in new.info("keyspace").values())
        if new.info("server").get("run_id") == move.run_id or 2 * there >= move.total:
            return
        lost = f"{self._target} has come back without its data"
        with suppress(RedisError, OSError):
            if old.get(proof_key(old)) == proof:
                self._lease.order(old, "REPLICAOF", "NO", "ONE")
            if servers.role_of(old).is_master and old.get(proof_key(old)) == proof:
                servers.persist_roles(old)
                back = self._target, self._source, self._same
                text = f"move of {self._target} back to {self._source}"
                push_relocation(self._lease, *back, keep_source=False, message=text)
                self._reached("aborted")
        if move.phase == "aborted":
            raise GrowthError(
                f"{lost}: {self._source} takes writes again",
                "empty it (FLUSHALL), and move again",
            )
        if move.phase == "pushed":
            lost += f", and {self._source} has followed it"
            self._certify()
            move.certificate = {**(move.certificate or {}), "same": False, "different": [lost]}
            self._reached("done")
            raise GrowthError(lost, "restore a backup: shardkit restore")

    def _push(self) -> None:
        self._progress("pushing the entries")
        self._move.epoch = push_relocation(
            self._lease,
            self._source,
            self._target,
            self._same,
            keep_source=False,
            message=f"move of {self._source} to {self._target}",
        )
        others = map(ServerAddress.parse, self._move.others)
        repoint(others, self._target, self._own, self._lease.order)
        self._reached("pushed")

    def _certify(self) -> None:
        move = self._move
        with ExitStack() as stack:

            def client(server: ServerAddress, number: int = 0) -> Any:
                return stack.enter_context(servers.connected_to(server, self._own, database=number))

            used = {name[2:] for name in client(self._target).info("keyspace")} | set(move.keys)
            compared = self._compare(
                lambda number: client(self._target, number),
                lambda number: client(self._source, number),
                sorted(int(number) for number in used if number.isdigit()),
            )
        move.certificate = {
            **asdict(compared),
            "keys_before": move.total,
            "keys_now": compared.total,
            "same": compared.same,
            "held": move.held,
            "epoch": read_epoch(self._config),
            "at": time.time(),
        }

    def verify(self) -> None:
        """Compare both servers, if the source follows the target."""
        if not self._follows(self._source, self._target):
            raise GrowthError(
                f"{self._source} no longer follows {self._target}: nothing can be compared",
                "see: shardkit replicas tree",
            )
        self._certify()

    def abort(self) -> None:
        """Detach and empty the target, unless it was a replica before the move."""
        move, target = self._move, self._target
        with servers.connected_to(target, self._own) as new:
            try:
                role = servers.role_of(new)
            except (RedisError, OSError):
                if (
                    move.phase not in ("begun", "attached")
                    or not self._role(self._source).is_master
                ):
                    raise
                self._reached("aborted")  # it is down: if it comes back, it follows the source
                return
            if (
                move.phase in ("promoted", "pushed")
                or (role.is_master and self._follows(self._source, target))
                or self._leads(target)  # by a failover
            ):
                raise GrowthError(
                    f"{target} has taken over",
                    f"resume it, and then: shardkit move reverse {self._source}",
                )
            # A server that others have detached is theirs.
            if not move.followed and role.master is not None and self._has_copy(role.master):
                self._require_source()
                try:
                    if missing_rights(new, ("FLUSHALL",)):
                        raise NoPermissionError("the user must not run FLUSHALL")
                    with servers.connected_to(self._source, self._own) as old:
                        then = "" if servers.has_lost_keys(old, new) else _EMPTY
                        with self._lease.marking(old, new):
                            self._require_source()  # it may have handed over in the meantime
                            self._lease.order(new, "REPLICAOF", "NO", "ONE", then=then)
                except ResponseError as error:
                    raise GrowthError(
                        f"{target} could not be detached and emptied: {error}",
                        f"grant the right, and then: shardkit move abort {move.name}",
                    ) from error
                servers.persist_roles(new)
            servers.ask_for_replicas(new, self._config, target, 0)
        self._reached("aborted")

    def give_up(self, lost: bool) -> str:
        """End the move; with ``lost`` return the server that the source must replace before."""
        named = [server for server in (self._source, self._target) if self._leads(server)]
        if not lost and named == [self._source]:
            with suppress(RedisError, OSError):
                if self._role(self._source).is_master:
                    self._reached("aborted")
                    return ""
        takes_writes = False
        with suppress(RedisError, OSError):
            takes_writes = self._role(self._target).is_master
        if not lost or takes_writes:
            raise self._can_continue()
        if named and (named != [self._source] or not self._role(self._source).is_master):
            return str(named[-1])
        self._reached("aborted")
        return ""

    def _role(self, server: ServerAddress) -> ServerRole:
        return servers.role_at(server, self._own)

    def _require_source(self) -> None:
        """Check that the target is not the only one that has the data."""
        try:
            if self._role(self._source).is_master:
                return
            why = "it is a replica"
        except (RedisError, OSError) as error:
            why = str(error)
        raise GrowthError(
            f"{self._source} does not have the data ({why}), so {self._target} keeps its copy",
            f"start {self._source}, or have the copy take over: shardkit failover {self._source} "
            f"--to {self._target} --force",
        )

    def _has_copy(self, master: ServerAddress) -> bool:
        """Whether the replicas of a server have the data of the source.

        Between them may be the server that a failover has replaced by the source.
        """
        with suppress(RedisError, OSError):
            if self._follows(master, self._source):
                return True
        return servers.same_server(master, self._source)

    def _follows(self, replica: ServerAddress, master: ServerAddress) -> bool:
        master_now = self._role(replica).master
        return master_now is not None and servers.same_server(master_now, master)


_SEE = "see: shardkit move status"
_STEP = 0.05  # seconds between two looks at another process
_MOVERS: Mapping[str, type[ServerMover | ShardMover]] = {REPLICATION: ServerMover, KEYS: ShardMover}


def plan_move(
    config: redis.Redis,
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
    hold = check_seconds("plan_move", "hold", hold)
    return planned_move(config, what, to)(read_components(config), hold, offline)[1]


def start_move(
    config: redis.Redis,
    what: str | Sequence[str],
    to: str,
    *,
    within: str = "",
    **options: Unpack[MoveOptions],
) -> Move:
    """Move a whole server, or shards of one; return the move, certified, when it is done.

    The arguments are those of `plan_move`, the options those of `MoveOptions`; ``within`` is the id
    of the change that the move is a step of. All shards that share a database move together.

    Raises:
        GrowthError: something prevents the move, or it cannot continue; the error says what state
            the servers are in.
        InvalidArgumentError: as `plan_move`.
    """
    return started(config, planned_move(config, what, to), within, **options)


_Components: TypeAlias = Mapping[str, Component]
Planned: TypeAlias = Callable[..., tuple[Move, MovePlan]]
"""Returns a move and its plan.

By the components, the hold, whether it is ``offline``, and databases that will be empty by then.
"""


def planned_move(
    config: Any,
    what: str | Sequence[str],
    to: str,
    numbers: Mapping[int, int] = MappingProxyType({}),
    **fields: Any,
) -> Planned:
    """Plan a move, or the reversal of one.

    Shards go to databases of these numbers, by theirs now, if they are free.
    """

    def planned(components: _Components, *limits: Any) -> tuple[Move, MovePlan]:
        plan = plan_of(config, components, what, ServerAddress.parse(to), numbers, *limits)
        places = list(plan.shards), list(plan.sources), list(plan.targets)
        name = plan.shards[0] if plan.sources else plan.source
        move = Move(name, plan.copying, plan.source, plan.target, *places)
        return replace(move, **fields), plan

    return planned


def planned_split(config: Any, split_of: Callable[[_Components], Move]) -> Planned:
    """Plan a split, or the reversal of one."""

    def planned(components: _Components, *limits: Any) -> tuple[Move, MovePlan]:
        split = split_of(components)
        if split.undoes and any(split.clusters):
            update_nodes(split, lambda server: like_of(components[split.name]))
        return split, plan_split_of(config, components, split, *limits)

    return planned


def started(
    config: Any, planned: Planned, within: str = "", **options: Unpack[MoveOptions]
) -> Move:
    """Carry out a plan, as a step of a change with some id, unless something prevents it."""
    limits = check_numbers(**options)[0], options.get("offline", False)
    with ExitStack() as stack:
        with explaining(lambda: "the move has not begun", lambda: "repeat the command"):
            lease = stack.enter_context(journal.lease(config))
            components = read_components(config)
            move, plan = planned(components, *limits)
            every = journal.read_all(config)
        move.within = within
        for other in every:
            is_other = other.name != move.name and not set(plan.shards) & set(other.shards)
            if not is_other and other.phase not in _MOVERS[other.copying].settled:
                raise GrowthError(
                    f"{other.name} is already being moved to {other.target} ({other.phase})",
                    way_on(other),
                )
        if plan.problems:
            raise GrowthError("; ".join(plan.problems), "correct that: nothing has changed")
        move.keys, move.memory = dict(plan.keys), plan.memory
        move.expected, move.slowness = plan.expected.seconds, plan.expected.slowness
        return _run(lease, move, components, **options)


def plan_split(
    config: redis.Redis,
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
    hold = check_seconds("plan_split", "hold", hold)
    given = component, shards, placement, over, routes, to_cluster
    planned = planned_split(config, lambda components: new_split(components, *given))
    return planned(read_components(config), hold, offline)[1]


def start_split(
    config: redis.Redis,
    component: str,
    *,
    shards: int | None = None,
    placement: str | None = None,
    over: Sequence[str] = (),
    routes: Sequence[str] | None = None,
    to_cluster: str | None = None,
    **options: Unpack[MoveOptions],
) -> Move:
    """Give a component another number of shards, or another placement; return that, certified.

    Every key is copied to its new shard. Until then nothing changes for clients. Then all entries
    change at once. `resume_move`, `abort_move`, `reverse_move` and `verify_move` take the name of
    the component.

    The arguments are those of `plan_split`, the options those of `MoveOptions`.

    Raises:
        GrowthError: something prevents the split, or it cannot continue; the error says what state
            the servers are in.
        InvalidArgumentError: as `plan_split`.
    """
    given = component, shards, placement, over, routes, to_cluster
    split = planned_split(config, lambda components: new_split(components, *given))
    return started(config, split, **options)


def resume_move(config: redis.Redis, name: str, **options: Unpack[MoveOptions]) -> Move:
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


def abort_move(config: redis.Redis, name: str) -> Move:
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


def reverse_move(config: redis.Redis, name: str, **options: Unpack[MoveOptions]) -> Move:
    """Move everything back to where it was, with the same guarantees.

    The arguments are those of `resume_move`.

    Raises:
        GrowthError: the move is not done, something prevents the way back, or the old server no
            longer follows the new one.
        ConfigError: there is no such move.
    """
    move = journal.read(config, name)
    if move.phase not in ("done", "kept"):
        remedy = _SEE if move.is_over else way_on(move)
        raise GrowthError(f"the move of {name} is {move.phase}", remedy)
    if move.phase == "kept":
        return _reverse_kept(config, move, **options)
    if move.placements:
        split = planned_split(config, lambda components: reversed_move(move))
        return started(config, split, **options)
    what = move.target if move.copying == REPLICATION else move.shards
    places = zip(map(Place.parse, move.targets), map(Place.parse, move.sources), strict=True)
    numbers = {now.database: before.database for now, before in places}
    back = planned_move(config, what, move.source, numbers, name=move.name, undoes=move.id)
    return started(config, back, **options)


def _reverse_kept(config: Any, move: Move, **options: Unpack[MoveOptions]) -> Move:
    """Ask the process that keeps the old databases to reverse a move; without one, copy again."""
    with journal.lease(config) as lease:
        if not journal.is_kept(config, move):
            return _run(lease, reversed_move(move), **options)
        move.wanted = "reverse"
        lease.write(move)
    while journal.is_kept(config, move):
        time.sleep(_STEP)
    reversal = journal.read(config, move.name)
    if reversal.undoes != move.id:  # it has ended without that
        return reverse_move(config, move.name, **options)
    return reversal if reversal.is_over else resume_move(config, move.name, **options)


def complete_move(config: redis.Redis, name: str) -> Move:
    """Empty the old databases of a move of shards that were kept up to date; it is done then.

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


def verify_move(config: redis.Redis, name: str, **options: Unpack[MoveOptions]) -> Move:
    """Return a finished move with a new certificate.

    After a move of a server both servers are compared, as long as the old one follows the new one.
    After a move of shards the old databases are searched for keys that were written since.

    The arguments are those of `resume_move`; of its options, ``share`` and ``progress`` count.

    Raises:
        GrowthError: the move is not done, or there is nothing to compare any more.
        ConfigError: there is no such move.
    """
    move = journal.read(config, name)
    if move.phase not in _MOVERS[move.copying].comparable:
        raise GrowthError(f"the move of {name} is {move.phase}", "resume it first")
    before = replace(move)
    mover_of(Lease(config, "none"), move, **options).verify()
    with suppress(GrowthError), journal.lease(config) as leased:  # if nobody else is at work
        if before in journal.read_all(config, []):
            leased.write(move)
    return move


def moves(config: redis.Redis, unreadable: list[ShardKitError] | None = None) -> list[Move]:
    """Return the move of each server, shard or component that moved: the open or last one.

    Args:
        config: a client of the config server.
        unreadable: receives the errors of records that cannot be read.

    Raises:
        ConfigError, NewerFormatError: a record cannot be read, and ``unreadable`` is None.
    """
    return journal.current(journal.read_all(config, unreadable))


def _naming(move: Move) -> AbstractContextManager[None]:
    """Have errors of servers name the move, and what it came to."""
    return explaining(
        lambda: (
            f"the move of {move.name} from {move.source} to {move.target} stopped in phase "
            f"{move.phase}"
        ),
        lambda: (
            way_on(move)
            + f". If {move.target} is gone for good: shardkit changes end {move.name} --lost"
            * (move.phase not in ("begun", "attached"))
        ),
    )


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
) -> ServerMover | ShardMover:
    """Return what works on a move."""
    if components is None:
        components = read_components(lease.config)
    return _MOVERS[move.copying](lease, components, move, **options)
