"""Work on a server in use, in slices that are too small for other clients to notice.

A server executes all that one connection has sent without a pause, and other clients wait. So only
as many keys are read and written at a time as the server handles in about 0.1 ms.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

_BYTES = 12_000  # of values in one exchange, about: DUMP packs 4 KB in 25 microseconds
_MOST = 32  # keys of one exchange

T = TypeVar("T")


class Slices:
    """The number of keys for one exchange, adapted to the size of the values before."""

    def __init__(self, size: int = _BYTES) -> None:
        self._bytes = size
        self._count = 8

    def of(self, keys: Sequence[T]) -> Iterator[Sequence[T]]:
        """Yield keys in slices of the size that currently fits."""
        start = 0
        while start < len(keys):
            part = keys[start : start + self._count]
            start += len(part)
            yield part

    def note(self, keys: int, size: int) -> None:
        """Record the bytes of the values of one exchange."""
        fitting = keys * self._bytes // max(size, 1)
        self._count = max(1, min(_MOST, fitting, 2 * self._count))


@contextmanager
def at_work(share: float) -> Iterator[None]:
    """Pause after the block, so that the block takes at most a share of the time."""
    began = time.monotonic()
    yield
    if share < 1:
        time.sleep((time.monotonic() - began) * (1 / share - 1))
