"""Leader election: at most one leader, whose term is larger than those of all earlier leaders.

An election is a lock whose token is the term. A leader leads until it resigns, dies, or cannot
renew its term in time; then the candidate that has waited longest is elected. Late writes of an
earlier leader are refused where writes go through ``leadership.guard``. The lease is Gray and
Cheriton's; the terms are those of Raft, without its replicated log.
"""

from __future__ import annotations

from typing import Any

from shardkit.coordination.hold import AsyncRenewals, Hold, Renewals
from shardkit.coordination.holdable import UNSET, Holdable, Holder
from shardkit.operations.arguments import Seconds
from shardkit.operations.operation import Deferred, DeferredFace, Driver, Face, Operation, operation
from shardkit.structures.base.server_clock import ServerClock


class Election(Holdable[Face]):
    """An election among processes. Made by ``kit.election``; see `Holdable` for its parameters.

    ::

        with kit.election("cleaner", component="locks", label="worker-3", wait=None) as leadership:
            while True:
                leadership.check()                     # raises when the term is over
                leadership.guard("data").execute(("SET", "cleaned", 1))
    """

    deferred: DeferredFace[Election[Deferred]]

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str,
        renewals: Renewals | AsyncRenewals | None = None,
        clock: ServerClock | None = None,
        **options: Any,
    ) -> None:
        super().__init__(driver, component, name, renewals, clock, kind="election", **options)

    @operation
    def campaign(
        self,
        *,
        wait: Seconds | None = UNSET,
        blocking: bool = True,
        blocking_timeout: Seconds | None = UNSET,
    ) -> Operation[Hold[Face] | None]:
        """Be a candidate until elected, for at most `wait` seconds; see `acquire`.

        Returns:
            The leadership, whose token is the term; None if the wait timed out.
        """
        leadership: Hold[Any] | None = yield from Holdable.acquire.steps(
            self, wait=wait, blocking=blocking, blocking_timeout=blocking_timeout
        )
        return leadership

    @operation
    def resign(self, leadership: Hold[Any] | None = None) -> Operation[bool]:
        """Give up the leadership; see `release`."""
        return (yield from Holdable.release.steps(self, leadership))

    @operation
    def leader(self) -> Operation[Holder | None]:
        """Return the leader, with its term as ``token``; None if there is none.

        Cost: one exchange.
        """
        state = yield from Holdable.inspect.steps(self)
        return state.holders[0] if state.holders else None
