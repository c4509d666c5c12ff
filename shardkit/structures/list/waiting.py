"""Blocking reads of a list: wait for the list's signal and try again, until a timeout.

A waiting consumer blocks on a list of tokens, not on the values: see `list.sharded_list`. It blocks
for at most a second at a time, so a token lost with another consumer delays it by at most a second.
A block that timed out counts in full, so a clock that is set back does not extend a timeout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import Seconds, in_seconds, shown
from shardkit.operations.commands import Command
from shardkit.operations.operation import Operation
from shardkit.structures.base.server_clock import ServerClock

LONGEST_BLOCK = 1.0  # seconds
SHORTEST_BLOCK = 0.001
LONGEST_TIMEOUT = 2**31 - 1

T = TypeVar("T")


class SignalWaiter:
    """Waits for the signal of a list."""

    def __init__(self, component: str, name: str, signal: str, clock: ServerClock) -> None:
        self._component = component
        self._name = name
        self._signal = signal
        self._clock = clock

    def wait(
        self, attempt: Callable[[], Operation[list[T]]], timeout: Seconds | None
    ) -> Operation[list[T]]:
        """Make attempts until one returns something or the timeout has passed."""
        left = self._seconds(timeout)
        values = yield from attempt()
        if values:
            return values
        deadline = left
        if left < math.inf:
            deadline += yield from self._clock.seconds(self._component, self._name)
        while left > 0:
            block = max(SHORTEST_BLOCK, min(left, LONGEST_BLOCK))
            args = ("BLPOP", self._signal, f"{block:.3f}")
            [token] = yield [Command(self._component, self._signal, args, None, True, block)]
            values = yield from attempt()
            if values:
                return values
            if left < math.inf:
                now = yield from self._clock.seconds(self._component, self._name)
                left = min(deadline - now, left if token else left - block)
        return []

    def _seconds(self, timeout: Seconds | None) -> float:
        timeout = in_seconds(timeout)
        if timeout is None:
            return math.inf
        if (
            not isinstance(timeout, int | float)
            or isinstance(timeout, bool)
            or not 0 <= timeout <= LONGEST_TIMEOUT
        ):
            raise InvalidArgumentError(
                f"{self._name}: timeout={shown(timeout)}", "give seconds, or 0 to wait forever"
            )
        return float(timeout) or math.inf
