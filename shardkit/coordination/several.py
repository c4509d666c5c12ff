"""Several locks at once, and one lock on several servers.

**Several locks** are acquired one after the other, always in the order of their names, so two
callers that want the same ones cannot deadlock. All or none: if one times out, or its server fails,
the others are released. While held, each lives on its own server; if one is lost the others stay,
so check all of them before a step that needs them. While a server is down, no set that includes one
of its locks can be acquired, and locks held there expire.

**One lock on several servers** (a quorum) needs a majority of independent servers. It survives the
loss of a minority with its data, as long as no server comes back without its data before the holds
of that time have ended: after a restart without persistence it must stay away for the longest ttl.
Attempts do not queue: a caller without a majority releases what it got, and tries again after a
random time. The token is larger than those of all earlier holds: the largest token of its servers
is stored on a majority before it is returned, and two majorities share a server.

After Redlock (https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/), whose
holds have no increasing token: the point of Kleppmann's criticism.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from shardkit.coordination.guard import Guard
from shardkit.coordination.hold import AsyncRenewals, Hold, OwnHolds, Renewals
from shardkit.coordination.holdable import (
    BLOCKING_TIMEOUT,
    TTL,
    UNSET,
    HeldInBlocks,
    Holdable,
    Lock,
)
from shardkit.coordination.keys import base_key
from shardkit.errors import (
    InvalidArgumentError,
    LockLostError,
    NotHolderError,
    ShardFailure,
    ShardKitError,
)
from shardkit.operations.arguments import Seconds, in_seconds, shown
from shardkit.operations.cancellation import Interrupted, surely
from shardkit.operations.commands import (
    Command,
    Partial,
    Pause,
    Replies,
    raise_failures,
    refused_data,
)
from shardkit.operations.deadlines import LONG_ENOUGH
from shardkit.operations.operation import Driver, Face, Operation, operation
from shardkit.operations.server_errors import lacks_right
from shardkit.structures.base.arguments import wait_seconds
from shardkit.structures.base.server_clock import ServerClock

T = TypeVar("T")

LONGEST_PAUSE = 0.1
# The part of a hold's time that allows for clocks of different speeds.
DRIFT = 0.01
# The part of a hold's time for which a server is waited for.
PATIENCE = 0.2


class _Several(HeldInBlocks[Face, T]):
    _suspects = "check for servers that are down"
    _locks: Sequence[Holdable[Any]]

    def __init__(
        self, driver: Driver, component: str, name: str, key: str, clock: ServerClock | None
    ) -> None:
        super().__init__(driver, component, name)
        self.key = key  # in messages
        self.monotonic = (clock or ServerClock()).monotonic
        self._holds = OwnHolds()

    def _own(self, hold: T | None) -> T:
        """Return what is given, or what this process has acquired last."""
        hold = self._holds.latest(of_others=True) if hold is None else hold
        if hold is None:
            raise NotHolderError(f"{self.key}: not held", "acquire it first")
        return hold

    def _check_own(self, holds: Iterable[Any]) -> None:
        """Refuse holds of other locks, or of the process that forked this one."""
        locks: dict[Any, Any] = {(lock.component, lock.key): lock for lock in self._locks}
        for hold in holds:
            place = hold.place if isinstance(hold, Hold) else ()
            if place not in locks:
                raise InvalidArgumentError(
                    f"{self.key}: hold={' '.join((shown(hold), *place))} is of another lock",
                    "give what its acquire returned",
                )
            locks[place]._own(hold)


class MultiLock(_Several[Face, Sequence[Hold[Any]]]):
    """Several locks, all or none. Made by ``kit.multi_lock``.

    Args:
        locks: the locks, acquired in the order of component and name. Acquiring all takes as long
            as the first one's ``blocking_timeout`` at most.
    """

    def __init__(
        self,
        driver: Driver,
        locks: Iterable[Lock[Any]],
        clock: ServerClock | None = None,
    ) -> None:
        self._locks = sorted(locks, key=lambda lock: (lock.component, lock.name))
        names = [(lock.component, lock.name) for lock in self._locks]
        if not names or len(set(names)) < len(names):
            raise InvalidArgumentError(
                f"several locks: {', '.join(name for _, name in names) or 'none'}",
                "give at least one, and each once",
            )
        name = "+".join(name for _, name in names)
        super().__init__(driver, names[0][0], name, name, clock)
        self._blocking_timeout = self._locks[0]._blocking_timeout

    @operation
    def acquire(
        self, *, blocking: bool = True, blocking_timeout: Seconds | None = UNSET
    ) -> Operation[list[Hold[Face]] | None]:
        """Acquire all or none, as `Holdable.acquire`; return the holds by component and name.

        Raises:
            ShardErrors: a server failed. The acquired locks were released where their servers
                answer; the others are not renewed.

        Cost: one exchange for each lock, one after the other.
        """
        until = self.monotonic() + self._seconds(blocking, blocking_timeout)
        holds: list[Hold[Any]] = []
        try:
            for lock in self._locks:
                left = max(0.0, until - self.monotonic())
                hold = yield from Lock.acquire.steps(lock, blocking_timeout=left)
                if hold is None:
                    break
                holds.append(hold)
        except (ShardKitError, Interrupted):
            yield from _release_all(self._locks, holds)
            raise
        if len(holds) < len(self._locks):
            yield from _release_all(self._locks, holds)
            return None
        self._holds.add(holds)
        return holds

    @operation
    def release(self, holds: Sequence[Hold[Any]] | None = None) -> Operation[bool]:
        """Release all of them; return whether all were still held.

        Raises:
            NotHolderError: nothing is held, or by the process that forked this one.
            ShardErrors: servers failed; the locks on the others were released.

        Cost: one exchange with all servers.
        """
        holds = self._own(holds)
        self._check_own(holds)
        self._holds.forget(holds)
        lost = any(hold.lost or hold.returned for hold in holds)
        replies = yield from _release_all(self._locks, holds)
        raise_failures(replies)
        return not lost and all(reply[0] for reply in replies)

    def check(self) -> None:
        """Raise LockLostError if one of the latest holds was lost. Costs no exchange."""
        for hold in self._holds.latest(of_others=True) or ():
            hold.check()

    def _left(self, hold: Any, kept: bool, error: object) -> None:
        if not kept and error is None:
            raise LockLostError(
                f"{self.name}: a lock was lost before it was released",
                "undo or repeat what was done under them",
            )


def _release_all(
    locks: Iterable[Holdable[Any]], holds: Sequence[Hold[Any]], seconds: float | None = None
) -> Operation[Replies]:
    """Release holds that have not been released, in one exchange; return the replies."""
    by_place = {(lock.component, lock.key): lock for lock in locks}
    given = [hold for hold in holds if not hold.returned]
    batch = Partial([by_place[hold.place].release_call(hold) for hold in given], seconds)
    replies = yield from surely(batch)
    for hold, reply in zip(given, replies, strict=True):
        hold.returned = not isinstance(reply, ShardFailure)
    return replies


class QuorumHold:
    """A hold on a majority of servers: ``token``, and ``holds``, those on the servers."""

    def __init__(self, name: str, token: int, holds: list[Hold[Any]], needed: int) -> None:
        self.name = name
        self.token = token
        self.holds = holds
        self._needed = needed

    @property
    def remaining(self) -> float:
        """The seconds for which a majority lasts, minus an allowance for drifting clocks."""
        lasting = sorted((hold.remaining for hold in self.holds), reverse=True)
        ttl = self.holds[0].ttl
        return max(0.0, lasting[self._needed - 1] - ttl * DRIFT)

    @property
    def lost(self) -> bool:
        """Whether it no longer has a majority."""
        return self.remaining <= 0

    def check(self) -> None:
        """Raise LockLostError if no majority is left. Costs no exchange."""
        if self.lost:
            raise LockLostError(
                f"{self.name}: the majority with token {self.token} was lost",
                "undo or repeat what was done under it, as others may hold it now",
            )

    def guard(self, component: str, *, remember: Seconds | None = None) -> Guard[Any]:
        """Return a guard for writes to a component; see `Hold.guard`."""
        first = self.holds[0].guard(component)
        return Guard(first._driver, component, "quorum", self.name, self.token, remember)


class QuorumLock(_Several[Face, QuorumHold]):
    """One lock on a majority of independent servers. Made by ``kit.quorum_lock``.

    While a server hangs, each attempt takes a fifth of ``ttl``, but at least 0.1 seconds.

    Args:
        components: at least three, on servers that are independent of each other.
        ttl, timeout, blocking, blocking_timeout: see `Holdable`.
    """

    def __init__(
        self,
        driver: Driver,
        name: str,
        components: Sequence[str],
        renewals: Renewals | AsyncRenewals | None = None,
        clock: ServerClock | None = None,
        *,
        ttl: Seconds = TTL,
        timeout: Seconds = UNSET,
        blocking: bool = True,
        blocking_timeout: Seconds | None = BLOCKING_TIMEOUT,
    ) -> None:
        key = base_key("quorum", name)
        texts = all(isinstance(name, str) for name in components)
        if not texts or len(set(components)) != len(components) or len(components) < 3:
            raise InvalidArgumentError(
                f"{key}: components={shown(list(components))}",
                "give at least three different components",
            )
        super().__init__(driver, components[0], name, key, clock)
        if timeout is not UNSET:
            ttl = timeout
        self._locks: list[Holdable[Any]] = [
            Holdable(driver, c, name, None, clock, kind="quorum", ttl=ttl) for c in components
        ]
        self._needed = len(components) // 2 + 1
        self._renewals = renewals
        wait_seconds(key, blocking_timeout, "blocking_timeout")
        self._blocking_timeout = in_seconds(blocking_timeout) if blocking else 0
        self._ttl: float = in_seconds(ttl)
        self._patience = max(LONG_ENOUGH, self._ttl * PATIENCE)

    @operation
    def acquire(
        self, *, blocking: bool = True, blocking_timeout: Seconds | None = UNSET
    ) -> Operation[QuorumHold | None]:
        """Acquire it on a majority of the servers; arguments and result: see `Holdable.acquire`.

        Raises:
            DamagedDataError, NewerFormatError: data on servers leaves no majority.
            ShardErrors: missing rights leave no majority.
            DeadlineExceeded: the caller's deadline has passed.

        Cost: for each attempt one exchange with all servers, and one with a majority; a server that
        does not answer costs a fifth of ``ttl``.
        """
        until = self.monotonic() + self._seconds(blocking, blocking_timeout)
        while True:
            hold, refusals = yield from self._attempt()
            if hold is not None:
                self._holds.add(hold)
                return hold
            left = until - self.monotonic()
            if left <= 0 or len(refusals) > len(self._locks) - self._needed:
                raise_failures(Replies(refusals))
                return None
            yield Pause(min(left, random.uniform(0.001, LONGEST_PAUSE)))

    def _attempt(self) -> Operation[tuple[QuorumHold | None, list[ShardFailure]]]:
        """Ask all servers once; return the hold, or what leaves no majority as long as it lasts."""
        tries = [lock.new_attempt(self._ttl) for lock in self._locks]
        # Even where no answer comes: it may be acquired there.
        undo = Partial(
            [lock.abandon_call(id_) for lock, (id_, _, _) in zip(self._locks, tries, strict=True)],
            self._patience,
        )
        try:
            majority, refusals = yield from self._request(tries)
        except Interrupted:
            yield undo
            raise
        if majority is None:
            yield undo
        return majority, refusals

    def _request(
        self, tries: Sequence[tuple[str, Command, float]]
    ) -> Operation[tuple[QuorumHold | None, list[ShardFailure]]]:
        replies = yield Partial([command for _, command, _ in tries], self._patience)
        holds: list[Hold[Any]] = []
        failures: list[ShardFailure] = []
        for lock, (id_, _, sent), reply in zip(self._locks, tries, replies, strict=True):
            if isinstance(reply, ShardFailure):
                failures.append(reply)
            elif reply[0] > 0:
                token, now, ends = reply[:3]
                holds.append(lock._granted(id_, "0", token, sent, now, ends, self._ttl))
        if len(holds) >= self._needed:
            token = max(hold.token for hold in holds)
            claims = [hold._owner.extend_call(hold, hold.ttl, token) for hold in holds]
            known = yield Partial(claims, self._patience)
            sure = [
                hold
                for hold, reply in zip(holds, known, strict=True)
                if not isinstance(reply, ShardFailure) and reply[0] == hold.token
            ]
            majority = QuorumHold(self.name, token, sure, self._needed)
            if len(sure) >= self._needed and not majority.lost:
                for hold in sure:
                    if self._renewals is not None:
                        self._renewals.add(hold)
                return majority, []
        if len(failures) <= len(self._locks) - self._needed:
            return None, []
        return None, [
            failure for failure in failures if lacks_right(failure.error) or refused_data(failure)
        ]

    @operation
    def release(self, hold: QuorumHold | None = None) -> Operation[bool]:
        """Release it on its servers; return whether it still had a majority.

        Raises:
            NotHolderError: it is not held, or by the process that forked this one.

        Cost: one exchange with its servers; on a server that fails, it expires.
        """
        hold = self._own(hold)
        self._check_own(hold.holds)
        self._holds.forget(hold)
        lost = hold.lost
        replies = yield from _release_all(self._locks, hold.holds, self._patience)
        released = sum(not isinstance(reply, ShardFailure) and bool(reply[0]) for reply in replies)
        return not lost and released >= self._needed
