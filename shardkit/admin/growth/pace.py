"""How long a move takes, and how far it has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType

from redis.exceptions import RedisError

from shardkit.admin.changes import LEASE
from shardkit.admin.growth.journal import KEYS, REPLICATION, Lease, Move
from shardkit.errors import GrowthError

COPIED, COMPARING = "copied", "comparing"
# Seconds for each key, and for each of its bytes in memory, as benchmarks/growth measures them.
_COSTS = {REPLICATION: (0.0, 8e-9), KEYS: (11e-6, 27e-9), COMPARING: (33e-6, 22e-9)}
# Seconds to compare an element, by its collection's type, as measured beside small strings.
_OF_ELEMENT = {"hash": 9e-6, "stream": 8e-6, "zset": 6e-6, "set": 6e-6, "list": 2e-6}
_FIRST = 0.01  # the part of a step from which the rest is estimated
_EVERY = 1.0  # seconds between two notes in the journal


def _expected(what: str, keys: float, size: float) -> float:
    of_key, of_byte = _COSTS[what]
    return keys * of_key + size * of_byte


def duration(
    copying: str,
    keys: float,
    size: float,
    elements: Mapping[str, float] = MappingProxyType({}),
) -> float:
    """Return about how many seconds it takes to copy and compare keys that use some bytes.

    ``elements`` has how many elements there are, by the type of their collections.
    """
    more = sum(count * _OF_ELEMENT[kind] for kind, count in elements.items())
    return _expected(copying, keys, size) + _expected(COMPARING, keys, size) + more


class Pace:
    """Tells how far the steps of a move are, and notes it in the journal, for other processes.

    What is left is estimated from the number of keys and their bytes, and from the first percent
    on by how long the part took that is done.
    """

    def __init__(self, move: Move, lease: Lease, tell: Callable[[str], object], share: float):
        self._move, self._lease, self._tell = move, lease, tell
        self._step = ""
        self._began = self._noted = time.monotonic()
        copied = _expected(move.copying, move.total, move.memory)
        self._expected = {COPIED: copied / (share if move.copying == KEYS else 1.0)}
        # Earlier releases noted nothing.
        comparing = max(_expected(COMPARING, move.total, move.memory), move.expected - copied)
        self._expected[COMPARING] = comparing / share

    def note(self, step: str, done: int, total: int, unit: str, more: str = "") -> None:
        """Tell that so much of a step is done."""
        now, move = time.monotonic(), self._move
        if step != self._step:
            self._step, self._began = step, now
        spent, part = now - self._began, min(1.0, done / max(1, total))
        before = self._expected[step]
        if part >= _FIRST:
            self._expected[step] = spent / part
        left = self._expected[step] * (1 - part)
        if step == COPIED:  # a slower copy than expected is followed by a slower comparison
            if move.copying == KEYS and before:
                self._expected[COMPARING] *= self._expected[step] / before
            left += self._expected[COMPARING]
        rate = done / spent if spent else 0.0
        text = f"{step} {done:,} of {total:,} {unit}{more}"
        if rate:
            text += f", {rate:,.0f} a second, about {_span(left)} left"
        move.progress = {"text": text, "done": done, "total": total}
        move.progress |= {"rate": round(rate, 1), "left": round(left, 1), "at": time.time()}
        if now > self._noted + _EVERY:
            self._noted = now
            with suppress(GrowthError, RedisError):  # the next phase finds out that the lease ended
                self._lease.write(move)
        self._tell(text)


def progress_of(move: Move) -> str:
    """Return how far a move is, whichever process works on it; empty if that is not known."""
    if move.is_over or not move.progress:
        return ""
    age = time.time() - move.progress["at"]
    return f"{move.progress['text']}{f' ({_span(age)} ago)' if age > LEASE else ''}"


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} min"
