"""Rounds: contestants take turns, so that other load on the machine affects all of them."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from statistics import median

LIMIT = "limit"


def ratios(
    contestants: Mapping[str, Callable[[], object]], repeats: int = 7, least: float = 0.03
) -> dict[str, float]:
    """Return each contestant's time as a ratio to that of `LIMIT`, which is in microseconds.

    They are medians of rounds, each in a new random order. Short work is repeated, so that a turn
    of the limit takes about ``least`` seconds.
    """
    for call in contestants.values():
        call()
    times = _times(_timed(contestants[LIMIT], 1), least)
    rounds = []
    for _ in range(repeats):
        order = random.sample(list(contestants), len(contestants))
        gc.collect()
        rounds.append({name: _timed(contestants[name], times) for name in order})
    return _summed(rounds)


async def aratios(
    contestants: Mapping[str, Callable[[], Awaitable[object]]],
    repeats: int = 7,
    least: float = 0.03,
) -> dict[str, float]:
    """Return the same as `ratios`, for awaitable contestants."""
    for call in contestants.values():
        await call()
    times = _times(await _atimed(contestants[LIMIT], 1), least)
    rounds = []
    for _ in range(repeats):
        order = random.sample(list(contestants), len(contestants))
        gc.collect()
        rounds.append({name: await _atimed(contestants[name], times) for name in order})
    return _summed(rounds)


def _times(seconds: float, least: float) -> int:
    return max(1, round(least / seconds))


def _timed(call: Callable[[], object], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


async def _atimed(call: Callable[[], Awaitable[object]], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        await call()
    return (time.perf_counter() - start) / times


def _summed(rounds: list[dict[str, float]]) -> dict[str, float]:
    found = {
        name: median(took[name] / took[LIMIT] for took in rounds)
        for name in rounds[0]
        if name != LIMIT
    }
    return {"limit, us": median(took[LIMIT] for took in rounds) * 1e6} | found
