"""The servers' time, without an exchange at every call.

Values that clients compare, such as the current day, must come from one clock: the server's. Its
offset from the local monotonic clock is measured once a minute, so an operation that needs the time
rarely costs an exchange. Each server has its own offset, so components can share a `ServerClock`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, date, datetime

from shardkit.operations.commands import Command, Key, To
from shardkit.operations.operation import Operation

FRESH = 60.0
MOST_MEASURED = 1000


class ServerClock:
    """Tells the time of each server, accurate to about the duration of an exchange.

    ``now`` returns a fixed time, in seconds since 1970, for tests.
    """

    def __init__(
        self, monotonic: Callable[[], float] | None = None, now: Callable[[], float] | None = None
    ) -> None:
        self._monotonic = monotonic or time.monotonic
        self._fixed = now
        # For each target: its server's offset, and when the measurement expires.
        self._measured: dict[tuple[To, Key], tuple[float, float]] = {}

    def seconds(self, to: To, key: Key) -> Operation[float]:
        """Return the time in seconds since 1970, by the server that ``key`` lives on.

        Cost: one exchange a minute.
        """
        if self._fixed is not None:
            return self._fixed()
        before = self._monotonic()
        ahead, until = self._measured.get((to, key), (0.0, before))
        if before < until:
            return ahead + before
        [reply] = yield [Command(to, key, ("TIME",))]
        after = self._monotonic()
        ahead = int(reply[0]) + int(reply[1]) / 1e6 - (before + after) / 2
        if len(self._measured) >= MOST_MEASURED:
            self._measured.clear()
        self._measured[to, key] = ahead, after + FRESH
        return ahead + after

    def monotonic(self) -> float:
        """Return local seconds since an arbitrary start, which never go back."""
        return self._monotonic()

    def today(self, to: To, key: Key) -> Operation[date]:
        """Return the date, UTC, by the server that ``key`` lives on."""
        return datetime.fromtimestamp((yield from self.seconds(to, key)), UTC).date()
