"""The servers' time, without asking for it at every call.

What several clients compare with one another, such as the name of today, must come from one clock:
the server's. Its distance from the local monotonic clock is measured once and used for a minute, so
that an operation that needs the time seldom needs an exchange for it. Of two servers each has its
own time: a clock that several components share does not mix them up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, date, datetime

from shardkit.operations.commands import Command, Key, To
from shardkit.operations.operation import Operation

FRESH = 60.0
MOST_KEPT = 1000


class ServerClock:
    """Tells the time of each server, to within about the time of an exchange.

    Args:
        monotonic: seconds that never go back.
        now: fixes the time for tests: returns seconds since 1970.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._monotonic = monotonic
        self._fixed = now
        # For each target: how far its server is ahead, and until when that is used.
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
        [reply] = yield [Command(to, key, ("TIME",), idempotent=True)]
        after = self._monotonic()
        ahead = int(reply[0]) + int(reply[1]) / 1e6 - (before + after) / 2
        if len(self._measured) >= MOST_KEPT:
            self._measured.clear()
        self._measured[to, key] = ahead, after + FRESH
        return ahead + after

    def monotonic(self) -> float:
        """Return seconds that never go back, of no particular beginning: for what is kept here."""
        return self._monotonic()

    def today(self, to: To, key: Key) -> Operation[date]:
        """Return the date, UTC, by the server that ``key`` lives on."""
        return datetime.fromtimestamp((yield from self.seconds(to, key)), UTC).date()
