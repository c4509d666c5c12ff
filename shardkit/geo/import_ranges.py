"""Turns the items of a reader, in any order, into sorted ranges that do not overlap.

Cities are numbered 0, 1, 2, … and passed on; skipped lines are counted. Where ranges overlap, the
narrowest wins, of equal ones the last; adjacent ranges of one city are merged. Memory holds 200,000
ranges at a time, and the ids of all cities; more ranges go through a temporary file.
"""

from __future__ import annotations

import heapq
import pickle
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from operator import itemgetter
from typing import Any, BinaryIO, Final, TypeAlias

from shardkit.errors import InvalidArgumentError
from shardkit.geo.models import City, IpRange, Item, SkippedLine
from shardkit.operations.arguments import shown

RANGES_IN_MEMORY: Final = 200_000
SKIPPED_KEPT: Final = 10
MOST_CITIES: Final = 2**32 - 1  # the largest number means that there is no city
_RANGES_A_BLOCK: Final = 2_000

Numbered: TypeAlias = tuple[int, int, int]


class ImportInput:
    """The input of an import, read once: first all of `cities`, then `ranges`."""

    def __init__(self, items: Iterable[Item], in_memory: int = RANGES_IN_MEMORY) -> None:
        self._items = items
        self._in_memory = in_memory
        self._numbers: dict[City | int | str, int] = {}
        self._ranges: list[Numbered] = []
        self._files = ExitStack()
        self._runs: list[_SortedRun] = []
        self.read = 0  # ranges that are used
        self.numbered = 0  # cities
        self.skipped = 0
        self.first_skipped: list[SkippedLine] = []

    def close(self) -> None:
        """Remove the temporary file."""
        self._files.close()
        self._runs.clear()
        self._ranges.clear()
        self._numbers.clear()

    def cities(self) -> Iterator[tuple[int, City]]:
        """Read everything; yield each city with its number when it first occurs."""
        for item in self._items:
            if type(item) is IpRange:
                first, last, city, line, source = item
                number = self._numbers.get(city)
                if number is None:
                    if not isinstance(city, City):
                        self._skip(SkippedLine(line, f"no city has the id {shown(city)}", source))
                        continue
                    number = self._number(city)
                    yield number, city
                self._ranges.append((first, last, number))
                self.read += 1
                if len(self._ranges) >= self._in_memory:
                    self._spill()
            elif type(item) is City:
                yield from self._declare(item)
            elif type(item) is SkippedLine:
                self._skip(item)
            else:
                raise InvalidArgumentError(
                    f"{shown(item)} cannot be imported", "give City, IpRange and SkippedLine"
                )

    def ranges(self) -> Iterator[Numbered]:
        """Return the ranges in order, disjoint, with adjacent ranges of one city merged."""
        self._ranges.sort(key=itemgetter(0))  # stable: otherwise in input order
        return merged(disjoint(heapq.merge(*self._runs, self._ranges, key=itemgetter(0))))

    def _declare(self, city: City) -> Iterator[tuple[int, City]]:
        """Number a city that ranges refer to by id; the first city with an id wins."""
        if city.id is None:
            self._skip(SkippedLine(0, f"{city.city!r} has no id that a range could refer to"))
        elif city.id not in self._numbers:
            number = self._numbers[city.id] = self._number(city)
            yield number, city

    def _number(self, city: City) -> int:
        number = self._numbers.setdefault(city, self.numbered)
        if number == self.numbered:
            self.numbered += 1
        if number >= MOST_CITIES:
            raise InvalidArgumentError(f"more than {MOST_CITIES:,} cities", "leave some out")
        return number

    def _skip(self, skipped: SkippedLine) -> None:
        self.skipped += 1
        if len(self.first_skipped) < SKIPPED_KEPT:
            self.first_skipped.append(skipped)

    def _spill(self) -> None:
        if not self._runs:
            file = tempfile.TemporaryFile()  # noqa: SIM115 - until the import ends
            self._file: BinaryIO = self._files.enter_context(file)
        self._ranges.sort(key=itemgetter(0))
        self._runs.append(_SortedRun(self._file, self._ranges))
        self._ranges = []


class _SortedRun:
    """Sorted ranges appended to a file, read in blocks."""

    def __init__(self, file: BinaryIO, ranges: list[Numbered]) -> None:
        self._file = file
        self._blocks: list[int] = []
        for start in range(0, len(ranges), _RANGES_A_BLOCK):
            self._blocks.append(file.seek(0, 2))
            pickle.dump(ranges[start : start + _RANGES_A_BLOCK], file, pickle.HIGHEST_PROTOCOL)

    def __iter__(self) -> Iterator[Numbered]:
        for position in self._blocks:
            self._file.seek(position)
            yield from pickle.load(self._file)


def disjoint(ranges: Iterable[Numbered]) -> Iterator[Numbered]:
    """Cut ranges, sorted by their beginning, so that none overlap: the narrowest or last wins."""
    # The ranges that reach the current address, and some ended ones: the narrowest first.
    open_: list[tuple[int, int, int, int]] = []
    at = 0
    for turn, (first, last, number) in enumerate(ranges):
        while open_ and at < first:
            _, _, end, city = open_[0]
            if end >= at:
                stop = min(end, first - 1)
                yield at, stop, city
                at = stop + 1
            if end < first:
                heapq.heappop(open_)
        at = first
        heapq.heappush(open_, (last - first, -turn, last, number))
    while open_:
        _, _, end, city = heapq.heappop(open_)
        if end >= at:
            yield at, end, city
            at = end + 1


def merged(ranges: Iterable[Numbered]) -> Iterator[Numbered]:
    """Merge adjacent ranges of one city."""
    held: Any = None
    for first, last, number in ranges:
        if held is not None and held[2] == number and held[1] + 1 == first:
            held = (held[0], last, number)
            continue
        if held is not None:
            yield held
        held = first, last, number
    if held is not None:
        yield held
