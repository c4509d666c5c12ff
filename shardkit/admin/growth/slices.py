"""Work on a server that is in use, in slices that the others who use it do not notice.

A server executes what one connection has sent without a pause, and everybody else waits. So keys
are read and written a few at a time: as many as its thread takes a tenth of a millisecond for.
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
    """How many keys an exchange may have, by the size of the values before.

    Args:
        size: bytes of values in one exchange, about.
    """

    def __init__(self, size: int = _BYTES) -> None:
        self._bytes = size
        self._count = 8

    def of(self, keys: Sequence[T]) -> Iterator[Sequence[T]]:
        """Yield some keys after others, as many as fit by then."""
        start = 0
        while start < len(keys):
            part = keys[start : start + self._count]
            start += len(part)
            yield part

    def note(self, keys: int, size: int) -> None:
        """Note how many bytes the values of the keys of one exchange had."""
        fitting = keys * self._bytes // max(size, 1)
        self._count = max(1, min(_MOST, fitting, 2 * self._count))


@contextmanager
def at_work(share: float) -> Iterator[None]:
    """Pause afterwards, so that what is done inside takes no more than a share of the time."""
    began = time.monotonic()
    yield
    if share < 1:
        time.sleep((time.monotonic() - began) * (1 / share - 1))
