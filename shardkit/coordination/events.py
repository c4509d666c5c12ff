"""Countdown latches and barriers.

::

    latch    set(3) ── count_down ── count_down ── count_down ──► open, for all waiters
    barrier  arrive … arrive … arrive (of 3) ──► open for these three; the next round begins

A waiting caller is woken through the kit's subscription (see `shardkit.network.links.wakeups`), and
asks again every two seconds, so a lost wake-up costs no more than that. Each call is one script on
the server of the name. After the classes of the same names in java.util.concurrent and Redisson.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

from shardkit.coordination.holdable import ASKS_AGAIN, FIRST_PAUSE, LONGEST_POLL
from shardkit.coordination.keys import base_key
from shardkit.errors import DamagedDataError, ParameterMismatchError, ShardErrors
from shardkit.operations.arguments import Seconds
from shardkit.operations.cancellation import Interrupted
from shardkit.operations.commands import Abandon, Argument, AwaitWakeup, Command, Subscribe
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Stream,
    Structure,
    operation,
    stream,
)
from shardkit.structures.base.arguments import check_integer, wait_seconds
from shardkit.structures.base.check import Damage, check_reads
from shardkit.structures.base.server_clock import ServerClock

MOST_PARTIES = 1000
MOST_COUNT = 2**40
LIFETIME = 8 * 86_400_000  # milliseconds after the latest use


class _Awaited(Structure[Face]):
    def __init__(
        self, driver: Driver, component: str, name: str, kind: str, clock: ServerClock | None
    ) -> None:
        super().__init__(driver, component, name)
        self.key = base_key(kind, name)
        self._monotonic = (clock or ServerClock()).monotonic

    def _wait(
        self,
        waiter: str,
        ask: Callable[[str], Command],
        give_up: Callable[[str], Command],
        opened: Callable[[Any], bool],
        timeout: Seconds | None,
    ) -> Operation[bool]:
        """Ask until it has opened, and be woken in between; return whether it has in time."""
        until = self._monotonic() + wait_seconds(self.key, timeout)
        pause, channel = FIRST_PAUSE, ""
        try:
            channel = yield Subscribe(self.component, self.key)
            while True:
                [reply] = yield [ask(channel)]
                if opened(reply):
                    return True
                left = until - self._monotonic()
                if left <= 0:
                    [reply] = yield [give_up(channel)]
                    return opened(reply)
                longest = min(left, ASKS_AGAIN if channel else pause)
                pause = min(LONGEST_POLL, 1.5 * pause)
                yield AwaitWakeup(self.component, self.key, waiter, longest)
                channel = yield Subscribe(self.component, self.key)
        except (ShardErrors, DamagedDataError, Interrupted):
            yield Abandon(give_up(channel))
            raise


class CountdownLatch(_Awaited[Face]):
    """A latch that opens when it is counted down to zero. Made by ``kit.countdown_latch``.

    A latch that was never set is open. Its key expires eight days after its latest use.
    """

    deferred: DeferredFace[CountdownLatch[Deferred]]

    def __init__(
        self, driver: Driver, component: str, name: str, *, clock: ServerClock | None = None
    ) -> None:
        super().__init__(driver, component, name, "latch", clock)

    @operation
    def set(self, count: int) -> Operation[bool]:
        """Close it until counted down ``count`` times; False if it is closed. One exchange."""
        check_integer(self.key, "count", count, 1, MOST_COUNT)
        [(_, was_open)] = yield [self._call("set", count)]
        return bool(was_open)

    @operation
    def count_down(self, by: int = 1) -> Operation[int]:
        """Count down, not below zero; return what is left. Not sent again if the connection breaks.

        Cost: one exchange, O(1); for the call that opens it, O(n) for n waiters.
        """
        check_integer(self.key, "by", by, 1, MOST_COUNT)
        [(left, _)] = yield [self._call("down", by)]
        return int(left)

    @operation
    def count(self) -> Operation[int]:
        """Return the remaining count. Cost: one exchange, O(1)."""
        [(left, _)] = yield [self._call("ask", "", idempotent=True)]
        return int(left)

    @stream
    def check(self) -> Stream[Damage]:
        """Return what its calls would refuse as damaged; change nothing. Cost: one exchange."""
        yield from check_reads(partial(CountdownLatch.count.steps, self))

    @operation
    def wait(self, timeout: Seconds | None = None) -> Operation[bool]:
        """Wait, at most ``timeout`` seconds, until it is open; return whether it is.

        Cost: one exchange, and one each two seconds.
        """
        waiter = secrets.token_hex(8)

        def ask(channel: str) -> Command:
            return self._call("ask", f"{channel} {waiter}" if channel else "", idempotent=True)

        def forget(channel: str) -> Command:
            return self._call("forget", f"{channel} {waiter}", idempotent=True)

        return (yield from self._wait(waiter, ask, forget, lambda reply: reply[0] == 0, timeout))

    def _call(self, *args: Argument, idempotent: bool = False) -> Command:
        keys = (self.key, f"{self.key}:waiters")
        lua = "coordination/latch"
        return lua_call(self.component, lua, keys, (*args, LIFETIME), idempotent=idempotent)


class Barrier(_Awaited[Face]):
    """A barrier at which ``parties`` callers wait for one another. Made by ``kit.barrier``.

    It can be used repeatedly. A caller that was killed while waiting counts as arrived.

    Args:
        parties: the number of callers that must arrive, 1 to 1,000; the same for all.
    """

    deferred: DeferredFace[Barrier[Deferred]]

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str,
        *,
        parties: int,
        clock: ServerClock | None = None,
    ) -> None:
        super().__init__(driver, component, name, "barrier", clock)
        check_integer(self.key, "parties", parties, 1, MOST_PARTIES)
        self.parties = parties

    @operation
    def wait(self, timeout: Seconds | None = None) -> Operation[bool]:
        """Arrive, and wait for the others.

        Args:
            timeout: the most seconds; None for ever.

        Returns:
            Whether all arrived in time. If not, this arrival is withdrawn, and another caller must
            arrive in its place.

        Raises:
            ParameterMismatchError: others wait for another number of parties.
            ShardErrors: a connection broke. If it broke while this caller arrived or withdrew, the
                arrival may count.

        Cost: one exchange, and one each two seconds; for the last to arrive O(n) for n parties.
        """
        waiter = secrets.token_hex(8)
        in_round = 0

        def ask(channel: str) -> Command:
            return self._call("arrive", waiter, channel or "-", in_round)

        def withdraw(channel: str) -> Command:
            return self._call("withdraw", waiter, "-", in_round)

        def opened(reply: Any) -> bool:
            nonlocal in_round
            if reply[0] < 0:
                raise ParameterMismatchError(
                    f"{self.key}: parties={self.parties}, but others wait for {reply[3]}",
                    "use the same number everywhere",
                )
            in_round = reply[1]
            return bool(reply[0])

        return (yield from self._wait(waiter, ask, withdraw, opened, timeout))

    @stream
    def check(self) -> Stream[Damage]:
        """Return what its calls would refuse as damaged; change nothing. Cost: one exchange."""
        yield from check_reads(self._look)

    def _look(self) -> Operation[None]:
        yield [self._call("look", "-", "-", 1)]

    def _call(self, what: str, waiter: str, channel: str, in_round: int) -> Command:
        keys = (self.key, f"{self.key}:arrived")
        args = (what, waiter, self.parties, channel, in_round, LIFETIME)
        # A repeated first arrival could count in the next round, if it completed this one. A
        # repeated withdrawal could report a round that opened without it.
        repeatable = in_round > 0 and what != "withdraw"
        return lua_call(self.component, "coordination/barrier", keys, args, idempotent=repeatable)
