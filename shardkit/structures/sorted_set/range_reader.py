"""Reads members of a sorted set in order, page by page, and finds where a rank is.

A page is a script per group that visits its parts and returns the first members after a score and
member. So a page costs the same wherever it begins, and nothing is kept between pages. Because
each page visits all parts, pages grow until eight hold everything: reading all of a sorted set
visits each part about a dozen times, however many members there are.

To start at a rank far inside, a row somewhat before it is guessed from a sample, its exact rank is
counted, and reading begins there::

    sample         ·    ·  ·    ·    │·  ·    ·       rank 50,000 of 100,000 wanted
    pivot                    ▲                        its rank, counted: 48,731
    read                      ├──────┤                skips 1,268, then returns what was asked for
"""

from __future__ import annotations

from math import ceil, sqrt

from shardkit.operations.operation import Operation
from shardkit.structures.sorted_set.groups import OrderedRange, Row, ScoredGroups, full_range

FIRST_PAGE = 1000
LARGEST_PAGE = 10_000  # unless that is less than an eighth of all members
PAGES_OF_ALL = 8
GROWTH = 4
SAMPLE = 2500


class RangeReader:
    """Reads a range page by page: ``limit`` rows (None: all) after the first ``offset``.

    The first page has ``first_page`` rows at most, skipped ones included.
    """

    def __init__(
        self,
        groups: ScoredGroups,
        wanted: OrderedRange,
        offset: int = 0,
        limit: int | None = None,
        first_page: int = FIRST_PAGE,
    ) -> None:
        self._groups = groups
        self._wanted = wanted
        self._offset = offset
        self._left = None if limit is None else offset + limit
        self._size = first_page
        self.ended = limit == 0

    def next_page(self) -> Operation[list[Row]]:
        """Return the next rows; check `ended` first. Cost: see `ScoredGroups.first`."""
        size = self._size if self._left is None else min(self._size, self._left)
        rows = yield from self._groups.first(self._wanted, size)
        if self._left is not None:
            self._left -= size
        self.ended = len(rows) < size or self._left == 0
        if rows:
            self._wanted = self._wanted.resume_after(rows[-1])
        offset, self._offset = self._offset, max(0, self._offset - len(rows))
        self._size = min(GROWTH * size, largest_page(self._groups))
        return rows[offset:]


def read_range(
    groups: ScoredGroups, wanted: OrderedRange, offset: int = 0, limit: int | None = None
) -> Operation[list[Row]]:
    """Return all rows of a range, less the first ones, at most ``limit``."""
    reader = RangeReader(groups, wanted, offset, limit, largest_page(groups))
    rows: list[Row] = []
    while not reader.ended:
        rows += yield from reader.next_page()
    return rows


def read_ranks(
    groups: ScoredGroups, start: int, stop: int, *, desc: bool = False
) -> Operation[list[Row]]:
    """Return the rows of some ranks, both included; negative ones count from the end.

    Cost: from either end as `ScoredGroups.first`; elsewhere three exchanges more, one command per
    part and some hundredths of all members.
    """
    if -LARGEST_PAGE <= start <= stop < 0:
        rows = yield from groups.first(full_range(desc=not desc), -start)
        return rows[-1 - stop :][::-1]
    total = None
    if start < 0 or stop < 0 or start > LARGEST_PAGE:
        total = (yield from groups.count()) or 0
        start = max(0, start + total) if start < 0 else start
        stop = min(stop + total if stop < 0 else stop, total - 1)
    if stop < start:
        return []
    limit = stop - start + 1
    wanted, offset = full_range(desc=desc), start
    if total is not None and start > LARGEST_PAGE:
        wanted, offset = yield from _seek(groups, start, total, desc=desc)
    return (yield from read_range(groups, wanted, offset, limit))


def largest_page(groups: ScoredGroups) -> int:
    """Return how many rows a page may have."""
    return max(LARGEST_PAGE, ceil(groups.capacity / PAGES_OF_ALL))


def _seek(
    groups: ScoredGroups, rank: int, total: int, *, desc: bool
) -> Operation[tuple[OrderedRange, int]]:
    """Return a range that begins somewhat before a rank, and how many of its rows to skip."""
    sample = sorted((yield from groups.sample(SAMPLE)), reverse=desc)
    margin = ceil(sqrt(len(sample)))
    position = len(sample) * rank // total - margin
    while 0 <= position < len(sample):
        pivot = sample[position]
        before = yield from groups.rank(pivot, desc=desc)
        if before < rank:
            return full_range(desc=desc).resume_after(pivot), rank - before - 1
        margin *= 2
        position -= margin
    return full_range(desc=desc), rank
