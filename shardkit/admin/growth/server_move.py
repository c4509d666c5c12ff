"""Moves of a whole server by replication, while it is in use.

::

    begun      the target becomes a replica of the source, and is filled
    attached   FAILOVER: the source holds writers until the target has everything, and follows it
    promoted   the entries are pushed; the source refuses writes that still reach it, and clients
               send them to the target in the same call
    pushed     clients leave the source; both servers are compared
    done       the source is a replica that no entry names: reverse the move, or stop the server

The source is its own fence: it is a replica, so it takes no writes. Until it is promoted, a move
can be aborted, and nothing has changed for any client. Afterwards it can be reversed.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import Any

from redis.exceptions import RedisError, ResponseError

from shardkit.admin.client_list import connected_clients
from shardkit.admin.growth.entries import LEAVE, push_relocation
from shardkit.admin.growth.failover import repoint
from shardkit.admin.growth.mover import COPIED, Mover
from shardkit.admin.growth.relocation import Login, ServerAddress, entries_on
from shardkit.admin.growth.servers import (
    ServerRole,
    ask_for_replicas,
    connected_to,
    follow_as,
    hand_over,
    persist_roles,
    replicate,
    role_of,
    same_server,
    take_writes_alone,
    wait_for_copy,
)
from shardkit.config.store import read_epoch
from shardkit.errors import GrowthError


class ServerMover(Mover):
    """One attempt at the move of a server."""

    settled = ("pushed", "done", "aborted")
    comparable = ("pushed", "done")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._follow_failovers()
        self._source = ServerAddress.parse(self._move.source)
        self._target = ServerAddress.parse(self._move.target)
        self._own = self._servers.login(self._source, self._target)

    def _login(self, server: ServerAddress) -> Login:
        return self._own

    def _touched(self) -> dict[ServerAddress, str]:
        return dict.fromkeys((self._source, self._target), "*")

    def run(self) -> None:
        """Replicate, hand over, push the entries, and compare."""
        move, config = self._move, self._config
        source, target = self._source, self._target
        with ExitStack() as stack:
            old = stack.enter_context(connected_to(source, self._own))
            new = stack.enter_context(connected_to(target, self._own))
            stack.callback(ask_for_replicas, new, config, target)
            if move.phase == "begun":
                self._begin(old, new)
            if move.phase == "attached":
                self._progress(f"handing over to {target}")
                # Otherwise a mover that was killed has handed over.
                if not role_of(new).is_master or role_of(old).is_master:
                    self._attach(new)  # the target may have been restarted
                    wait_for_copy(old, new, self._copy)
                    take_writes_alone(new, config, target)
                    with self._lease.marking(old, new):
                        move.held = hand_over(old, new, target, self._hold, self._lease.order)
                persist_roles(old, new)
                self._reached("promoted")
            if move.phase == "promoted":
                self._require_handover(old, new)
                self._push()
            if move.phase == "pushed":
                self._progress(f"waiting until clients have left {source}")
                self._wait_for_clients()
                self._certify()
                self._reached("done")

    def _begin(self, old: Any, new: Any) -> None:
        others = self._servers.replicas_of(self._source)
        self._move.others = [str(each) for each in others if not self._same(each, self._target)]
        if self._move.followed is None:
            self._move.followed = self._follows(self._target, self._source)
        self._reached("begun")
        self._progress(f"copying {self._source} to {self._target}")
        self._attach(new)
        follow_as(old, self._own)

        def tell() -> None:
            said = new.info("replication")
            total = int(said.get("master_sync_total_bytes", 0)) or self._move.memory
            received = int(said.get("master_sync_read_bytes", 0))
            self._pace.note(COPIED, received, total, "bytes")

        wait_for_copy(old, new, self._copy, tell=tell)
        self._reached("attached")

    def _attach(self, new: Any) -> None:
        role = role_of(new)
        if role.is_master or role.master is None or not same_server(role.master, self._source):
            if role.is_master and new.info("keyspace"):
                raise GrowthError(
                    f"{self._target} has keys and is not a replica of {self._source}: something "
                    "else uses it",
                    "check it, then resume or abort",
                )
            replicate(new, self._source, self._own, self._lease.order)
            persist_roles(new)

    def _require_handover(self, old: Any, new: Any) -> None:
        """Check that the target took over from the source, which may be down by now."""
        follows = True
        with suppress(RedisError, OSError):
            master = role_of(old).master
            follows = master is not None and same_server(master, self._target)
        if not (follows and role_of(new).is_master):
            raise GrowthError(
                f"{self._target} is not the master of {self._source}, although the record of this "
                "move says so: the record is out of date",
                f"find out which server has the keys, then: shardkit changes end {self._move.name}",
            )

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

    def _wait_for_clients(self) -> None:
        """Wait, at most `LEAVE` seconds, until shardkit's connections no longer use the source."""
        concerned = [
            component
            for component in self._components.values()
            if entries_on([component], self._source, self._same)
        ]
        end = time.monotonic() + LEAVE
        while concerned and time.monotonic() < end:
            processes, _ = connected_clients(concerned)
            if not any(process.components for process in processes):
                return
            time.sleep(0.1)

    def _certify(self) -> None:
        move = self._move
        with ExitStack() as stack:

            def client(server: ServerAddress, number: int = 0) -> Any:
                return stack.enter_context(connected_to(server, self._own, database=number))

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
        with connected_to(target, self._own) as new:
            try:
                role = role_of(new)
            except (RedisError, OSError):
                if move.phase not in ("begun", "attached") or not self._is_master(self._source):
                    raise
                self._reached("aborted")  # it is down: if it comes back, it follows the source
                return
            if (
                move.phase in ("promoted", "pushed")
                or (role.is_master and self._follows(self._source, target))
                or self._servers.entries_on(target)  # by a failover
            ):
                raise GrowthError(
                    f"{target} has taken over",
                    f"resume it, and then: shardkit move reverse {self._source}",
                )
            if not move.followed and self._has_copy(role):
                self._require_source()
                try:
                    with (
                        connected_to(self._source, self._own) as old,
                        self._lease.marking(old, new),
                    ):
                        self._require_source()  # it may have handed over in the meantime
                        self._lease.order(new, "REPLICAOF", "NO", "ONE")
                    self._lease.order(new, "FLUSHALL", "ASYNC")
                except ResponseError as error:
                    raise GrowthError(
                        f"{target} could not be detached and emptied: {error}",
                        f"grant the right, and then: shardkit move abort {move.name}",
                    ) from error
                persist_roles(new)
            ask_for_replicas(new, self._config, target, 0)
        self._reached("aborted")

    def give_up(self, lost: bool) -> None:
        """See `Mover.give_up`; roles stay as they are."""
        named = [
            server for server in (self._source, self._target) if self._servers.entries_on(server)
        ]
        if not lost and len(named) == 1:
            with suppress(RedisError, OSError):
                if self._is_master(named[0]) == (named[0] == self._source):
                    self._reached("done" if named[0] == self._target else "aborted")
                    return
        if not lost:
            raise self._can_continue()
        self._reached("aborted")

    def _is_master(self, server: ServerAddress) -> bool:
        with connected_to(server, self._own) as client:
            return role_of(client).is_master

    def _require_source(self) -> None:
        """Check that the target is not the only one that has the data."""
        try:
            if self._is_master(self._source):
                return
            why = "it is a replica"
        except (RedisError, OSError) as error:
            why = str(error)
        raise GrowthError(
            f"{self._source} does not have the data ({why}), so {self._target} keeps its copy",
            f"start {self._source}, or have the copy take over: shardkit failover {self._source} "
            f"--to {self._target} --force",
        )

    def _has_copy(self, role: ServerRole) -> bool:
        """Whether a server with this role follows the source, or did until an abort began."""
        if role.master is not None:
            return same_server(role.master, self._source)
        with connected_to(self._source, self._own) as old:
            return bool(role.raw.get("master_replid2") == role_of(old).history)

    def _follows(self, replica: ServerAddress, master: ServerAddress) -> bool:
        with connected_to(replica, self._own) as client:
            role = role_of(client)
        return role.master is not None and same_server(role.master, master)
