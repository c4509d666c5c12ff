"""Virtual time and seeded randomness in place of Python's, while a simulation runs.

``time.time``, ``time.monotonic`` and ``time.sleep`` use the time of the process that runs: each
client and each server has a clock of its own. ``random``, ``secrets``, ``uuid4`` and ``os.urandom``
give the numbers of the schedule's seed. So a schedule takes no time to wait, and replays exactly.
Code that imported a function by name (``from time import time``) keeps the real one.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

START = 1_700_000_000.0
"""The time at which a simulation begins, in seconds since 1970."""


class Clock:
    """The clock of a client or a server, which follows the simulation's time in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.offset = 0.0  # how far its time of day is ahead, in seconds
        self.rate = 1.0  # how fast it runs; 1 is right
        self._gained = 0.0  # by other rates before this one

    def monotonic(self) -> float:
        """Return seconds since the beginning, which never go back."""
        return self._now() * self.rate + self._gained

    def time(self) -> float:
        """Return seconds since 1970."""
        return START + (self._now() * self.rate + self._gained) + self.offset

    def drift(self, rate: float) -> None:
        """Have it run faster or slower from now on."""
        self._gained += self._now() * (self.rate - rate)
        self.rate = rate

    def reaches(self, monotonic: float) -> float:
        """Return when, in the time of the simulation, it tells a time."""
        return (monotonic - self._gained) / self.rate


@contextmanager
def virtual_time(
    clock: Callable[[], Clock], sleep: Callable[[float], None], numbers: random.Random
) -> Iterator[None]:
    """Replace Python's time and randomness."""
    state = random.getstate()
    values: dict[tuple[Any, str], object] = {
        (time, "time"): lambda: clock().time(),
        (time, "monotonic"): lambda: clock().monotonic(),
        (time, "time_ns"): lambda: int(clock().time() * 1e9),
        (time, "monotonic_ns"): lambda: int(clock().monotonic() * 1e9),
        (time, "sleep"): sleep,
        (os, "urandom"): numbers.randbytes,
        (random, "_urandom"): numbers.randbytes,
    }
    originals = {(module, name): getattr(module, name) for module, name in values}
    random.seed(numbers.getrandbits(32))
    try:
        for (module, name), value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for (module, name), original in originals.items():
            setattr(module, name, original)
        random.setstate(state)
