"""The time and the ids of a kit's structures: those of the servers, or those that a test sets.

Values that clients compare, such as the current day, must come from one clock: the server's. Its
offset from the local monotonic clock is measured once a minute.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from datetime import UTC, date, datetime

from shardkit.operations.commands import Argument, Command, Key, To
from shardkit.operations.operation import Operation
from shardkit.recent import Recent

FRESH = 60.0


class ServerClock:
    """Tells a kit's structures the time, and makes their ids. Pass one to ``connect(clock=…)``.

    The time of a server is accurate to about the duration of an exchange.

    Args:
        monotonic: returns local seconds that never go back.
        now: returns seconds since 1970, in place of the servers' clocks; for tests and imports.
        new_id: returns an id that it never returned before, in place of random digits.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] | None = None,
        now: Callable[[], float] | None = None,
        new_id: Callable[[], str] | None = None,
    ) -> None:
        self.monotonic = monotonic or time.monotonic
        self.fixed = now
        self._new_id = new_id
        # For each target: its server's offset, and when the measurement expires.
        self._measured: Recent[tuple[To, Key], tuple[float, float]] = Recent()

    def seconds(self, to: To, key: Key) -> Operation[float]:
        """Return seconds since 1970 by the server of ``key``. Cost: one exchange a minute."""
        if self.fixed is not None:
            return self.fixed()
        before = self.monotonic()
        ahead, until = self._measured.get((to, key), (0.0, before))
        if before < until:
            return ahead + before
        [reply] = yield [Command(to, key, ("TIME",))]
        after = self.monotonic()
        ahead = int(reply[0]) + int(reply[1]) / 1e6 - (before + after) / 2
        self._measured[to, key] = ahead, after + FRESH
        return ahead + after

    def today(self, to: To, key: Key) -> Operation[date]:
        """Return the date, UTC, by the server that ``key`` lives on."""
        return datetime.fromtimestamp((yield from self.seconds(to, key)), UTC).date()

    def local_seconds(self) -> float:
        """Return seconds whose differences are ages; `now` says them where it is given."""
        return self.monotonic() if self.fixed is None else self.fixed()

    def script_seconds(self) -> Argument:
        """Return the time for a script, in seconds since 1970; empty for the server's own."""
        return "" if self.fixed is None else f"{self.fixed():.6f}"

    def script_microseconds(self) -> Argument:
        """Return the time for a script, in microseconds; empty for the server's own."""
        return "" if self.fixed is None else f"{self.fixed() * 1e6:.0f}"

    def new_id(self, size: int = 8) -> str:
        """Return an id that was never used before: ``size`` random bytes in hexadecimal digits."""
        return secrets.token_hex(size) if self._new_id is None else self._new_id()
