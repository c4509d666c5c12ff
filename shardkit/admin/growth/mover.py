"""The base of all moves; `server_move` and `shard_move` are the two ways of copying."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from shardkit.admin.growth.certificate import ServerComparison, compare
from shardkit.admin.growth.failover import HOLD
from shardkit.admin.growth.journal import Lease, Move, servers_in
from shardkit.admin.growth.known_servers import KnownServers
from shardkit.admin.growth.pace import COMPARING, Pace
from shardkit.config.component import Component
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
    def verify(self) -> None:
        """Renew the certificate of a move that is done."""

    @property
    def move(self) -> Move:
        """The move as it is now; its reversal once that has replaced it."""
        return self._move

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
