"""Locks, semaphores, read-write locks and elections; see `shardkit.coordination.holdable`."""

from __future__ import annotations

import secrets
from typing import Any

from shardkit.coordination.hold import AsyncRenewals, Hold, Renewals
from shardkit.coordination.holdable import EXCLUSIVE, MOST_HOLDERS, SHARED, UNSET, Holdable, Holder
from shardkit.operations.arguments import Seconds
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Deferred, DeferredFace, Driver, Face, Operation, operation
from shardkit.structures.base.arguments import check_integer
from shardkit.structures.base.server_clock import ServerClock


class Lock(Holdable[Face]):
    """A lock with at most one holder. Made by ``kit.lock``; see `Holdable` for its parameters.

    ::

        with kit.lock("stock", component="locks") as held:
            held.check()                       # raises if it was lost
            held.guard("shop").execute(("HSET", "stock:7", "left", 3))
    """

    deferred: DeferredFace[Lock[Deferred]]


class Semaphore(Holdable[Face]):
    """A counting semaphore: at most ``limit`` holders at a time, in order of arrival.

    Made by ``kit.semaphore``. Each holder has its own time to live, by the server's clock.

    Args:
        driver, component, name, renewals, clock, options: see `Holdable`.
        limit: the most holders, 1 to 10,000. The first call stores it; others must use the same.
    """

    deferred: DeferredFace[Semaphore[Deferred]]
    _kind, _mode, _fewest = "semaphore", SHARED, 1

    @operation
    def resize(self, limit: int) -> Operation[int]:
        """Change the limit for all clients; return the old one, 0 for an unused semaphore.

        Current holders keep their slots even if they exceed the new limit. Freed slots go to
        waiters. Clients that still use the old limit get ParameterMismatchError.

        Cost: one exchange, O(log n) for each waiter that is woken.
        """
        check_integer(self.key, "limit", limit, 1, MOST_HOLDERS)
        args = limit, secrets.token_hex(8)
        lua = "coordination/resize"
        [before] = yield [lua_call(self.component, lua, self._keys, args, idempotent=True)]
        self.limit = limit
        return int(before)


class ReadWriteLock:
    """A read-write lock: any number of readers, or one writer, in order of arrival.

    Made by ``kit.read_write_lock``. A waiting writer blocks later readers, so writers do not
    starve; readers that arrive together read together. A reader cannot become a writer, since two
    that tried would deadlock: release, then acquire to write.

    Args:
        driver, component, name, renewals, clock, options: see `Holdable`.

    Attributes:
        read: acquire this to read, ``with lock.read:``.
        write: acquire this to write.
    """

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str,
        renewals: Renewals | AsyncRenewals | None = None,
        clock: ServerClock | None = None,
        **options: Any,
    ) -> None:
        common: dict[str, Any] = {"kind": "rwlock", "limit": 0, **options}
        where = (driver, component, name, renewals, clock)
        self.read: Lock[Any] = Lock(*where, mode=SHARED, **common)
        self.write: Lock[Any] = Lock(*where, mode=EXCLUSIVE, **common)

    def __repr__(self) -> str:
        return f"ReadWriteLock({self.read.name!r}, component={self.read.component!r})"


class Election(Holdable[Face]):
    """Leader election: at most one leader, whose term is larger than those of earlier leaders.

    Made by ``kit.election``; see `Holdable` for its parameters. It is a lock whose token is the
    term. A leader leads until it resigns, dies, or cannot renew its term in time; then the
    candidate that has waited longest is elected. Late writes of an earlier leader are refused where
    writes go through ``leadership.guard``. The lease is Gray and Cheriton's; the terms are those of
    Raft, without its replicated log.

    ::

        with kit.election("cleaner", component="locks", label="worker-3", wait=None) as leadership:
            while True:
                leadership.check()                     # raises when the term is over
                leadership.guard("data").execute(("SET", "cleaned", 1))
    """

    deferred: DeferredFace[Election[Deferred]]
    _kind = "election"

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
