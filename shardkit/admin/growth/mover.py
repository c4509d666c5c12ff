"""The base of all moves; `server_move` and `shard_move` are the two ways of copying."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from shardkit.admin.growth.certificate import ServerComparison, compare
from shardkit.admin.growth.failover import HOLD, pending_fences
from shardkit.admin.growth.journal import Lease, Move, replace_server, servers_in
from shardkit.admin.growth.known_servers import KnownServers
from shardkit.admin.growth.pace import COMPARING, Pace
from shardkit.admin.growth.relocation import ServerAddress, entries_on
from shardkit.admin.growth.servers import touched
from shardkit.config.component import Component
from shardkit.config.entry import Entry
from shardkit.errors import GrowthError
from shardkit.operations.arguments import Seconds, in_seconds

D = TypeVar("D")

COPY = 3600.0  # seconds

Progress = Callable[[str], object]


class Mover(ABC):
    """One attempt at a move; the arguments are those of `growth.start_move`."""

    settled: ClassVar[tuple[str, ...]] = ("done", "aborted")
    """Phases in which another move of the same shards may start."""
    comparable: ClassVar[tuple[str, ...]] = ("done",)
    """Phases in which `verify` can compare."""

    def __init__(
        self,
        lease: Lease,
        components: Mapping[str, Component],
        move: Move,
        *,
        hold: Seconds = HOLD,
        copy: Seconds = COPY,
        kill: bool = False,
        share: float = 1.0,
        offline: bool = False,
        keep: bool = False,
        progress: Progress = lambda what: None,
    ) -> None:
        hold, copy = in_seconds(hold), in_seconds(copy)
        self._lease, self._config = lease, lease.config
        self._components = components
        self._move = move
        self._hold, self._copy, self._kill, self._share = hold, copy, kill, share
        self._offline = offline
        if keep:
            move.keep = True
        self._options: dict[str, Any] = {"hold": hold, "copy": copy, "kill": kill, "share": share}
        self._options["progress"] = progress
        self._progress = progress
        self._pace = Pace(move, lease, progress, share)
        servers = *servers_in(move.source), *servers_in(move.target)
        self._same = KnownServers(components.values(), *servers).same

    @abstractmethod
    def run(self) -> None:
        """Carry the move on to its end, whatever phase it is in."""

    @abstractmethod
    def abort(self) -> None:
        """Undo what was done."""

    @abstractmethod
    def give_up(self, lost: bool) -> None:
        """End the move; with ``lost`` without what lost servers have."""

    @abstractmethod
    def verify(self) -> None:
        """Renew the certificate of a move that is done."""

    @property
    def move(self) -> Move:
        """The move as it is now; its reversal once that has replaced it."""
        return self._move

    def _follow_failovers(self) -> bool:
        """Name promoted replicas in the place of the servers that they replace."""
        move, components = self._move, self._components.values()
        servers = [*servers_in(move.source), *servers_in(move.target)]
        followed = False
        for server in servers if not move.is_over else ():
            successor = self._successor(server)
            known = any(self._same(successor, each) for each in servers)
            if successor and not known and entries_on(components, successor, self._same):
                replace_server(move, server, successor)
                followed = True
        return followed

    def _successor(self, server: ServerAddress) -> ServerAddress | None:
        """Return the replica that a failover after a crash promoted in a server's place."""
        fences = pending_fences(self._config)
        return next((each.target for each in fences if self._same(each.source, server)), None)

    @abstractmethod
    def _login(self, server: ServerAddress) -> tuple[Entry, str]:
        """Return an entry whose user a server accepts, and where it is stored."""

    @abstractmethod
    def _touched(self) -> Mapping[ServerAddress, Iterable[object]]:
        """Return the numbers of the databases that the move touches, by server."""

    def begin(self) -> None:
        """Record the move, unless another change touches its databases.

        Raises:
            GrowthError: there is such a change.
        """
        self._move.databases += touched(self._touched(), self._login)
        self._lease.write(self._move)

    def _can_continue(self) -> GrowthError:
        name = self._move.name
        return GrowthError(
            f"the move of {name} ({self._move.phase}) has lost no server and closes databases",
            f"resume it: shardkit move resume {name}. If its new server is gone for good: --lost",
        )

    def _reached(self, phase: str) -> None:
        self._move.phase, self._move.progress = phase, {}
        self._lease.write(self._move)

    def _compare(
        self,
        first: Callable[[D], Any],
        second: Callable[[D], Any],
        databases: Iterable[D],
        ignored: Collection[bytes] = (),
        **options: Any,
    ) -> ServerComparison:
        self._progress("comparing")
        return compare(
            first,
            second,
            databases,
            lambda keys: self._pace.note(COMPARING, keys, self._move.total, "keys"),
            ignored,
            self._share,
            **options,
        )
