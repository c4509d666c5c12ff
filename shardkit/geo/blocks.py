"""Packs ranges in blocks, and searches blocks.

Addresses are divided into buckets by their leading bits. The ranges of a bucket are one STRING, its
block; a range that spans buckets is split at their borders. IPv6 ranges can be as large as a
continent's or as small as one host, so IPv6 has three levels, /16, /32 and /64, with units of /32,
/64 and /128. Each piece of a range goes to the highest level whose units it fills. So a look-up
reads one block for IPv4, and for IPv6 one block for each level of the data, all in one exchange. No
address is in two levels.

An entry of a block is the offset, in units, at which a city begins; it reaches to the next entry.
The city number 4,294,967,295 marks the beginning of a gap. Numbers are little-endian::

    ┌───┬─────────────────────────────┬───────────────────────────┐
    │ 0 │ n offsets, 2, 2, 4, 8 bytes │ n city numbers of 4 bytes │     1 + 6 n bytes of IPv4
    └───┴─────────────────────────────┴───────────────────────────┘
    ┌───┬─────────────────────────────────┐
    │ 1 │ the first offset of each page   │     a block of more than 4,096 entries: page k is
    └───┴─────────────────────────────────┘     a block at <key>:<k>

Offsets and numbers are separate, so the offsets can be searched without unpacking.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from shardkit.errors import StructureError, counted
from shardkit.geo.readers import IPV4, IPV6

NO_CITY: Final = 2**32 - 1
ENTRIES_A_PAGE: Final = 4096
WHOLE: Final = -1  # instead of a page's number: the block itself
_ENTRIES, _PAGES = b"\0", b"\1"
_BYTES_OF_A_NUMBER: Final = 4


class Level(NamedTuple):
    """One way to divide addresses into buckets."""

    number: int  # its position in LEVELS
    unit: int  # the low bits of an address that a unit spans
    bits: int  # of an offset: a bucket has 2**bits units
    code: str  # the array type of an offset
    digits: int  # of a bucket's number, hexadecimal
    family: int  # 4 or 6

    def place(self, address_number: int) -> tuple[int, int]:
        """Return the bucket and the offset of an address number."""
        units = (address_number if self.family == 4 else address_number - IPV6) >> self.unit
        return units >> self.bits, units & ((1 << self.bits) - 1)

    def suffix(self, bucket: int, page: int = WHOLE) -> str:
        """Return the suffix of a block's key."""
        key = f"{self.family}:{bucket:0{self.digits}x}"
        return key if page == WHOLE else f"{key}:{page}"


LEVELS: Final = (
    Level(0, 0, 16, "H", 4, 4),
    Level(1, 96, 16, "H", 4, 6),
    Level(2, 64, 32, "I", 8, 6),
    Level(3, 0, 64, "Q", 16, 6),
)
IPV4_LEVELS: Final = LEVELS[:1]
IPV6_LEVELS: Final = LEVELS[1:]


class Block(NamedTuple):
    """A block as it is stored."""

    level: int
    bucket: int
    page: int  # WHOLE for a bucket's only block, or its list of pages
    content: bytes


def blocks(ranges: Iterable[tuple[int, int, int]]) -> Iterator[Block]:
    """Pack sorted, disjoint ranges: first and last address number, and the city's number.

    The blocks of a level come in order, and the pages of a bucket before their list.
    """
    packers = [_BlockPacker(level) for level in LEVELS]
    for first, last, number in ranges:
        if last < IPV4:
            yield from packers[0].add(first, last, number)
        else:
            for level, start, end in _pieces(first - IPV6, last - IPV6):
                yield from packers[level].add(start, end, number)
    for packer in packers:
        yield from packer.close()


def _pieces(first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Split an IPv6 range into pieces of whole units: (level, first unit, last unit)."""
    end = last + 1
    for level in reversed(IPV6_LEVELS[1:]):
        # This level gets the pieces that do not fill whole units of the level above.
        start = -(-first >> level.bits)
        stop = end >> level.bits
        if start >= stop:  # fills none of them
            yield level.number, first, end - 1
            return
        if first != start << level.bits:
            yield level.number, first, (start << level.bits) - 1
        if end != stop << level.bits:
            yield level.number, stop << level.bits, end - 1
        first, end = start, stop
    yield IPV6_LEVELS[0].number, first, end - 1


class _BlockPacker:
    """Packs the blocks of one level; keeps only a page of one bucket in memory."""

    def __init__(self, level: Level) -> None:
        self._level = level
        self._most = (1 << level.bits) - 1
        self._begin(-1)

    def _begin(self, bucket: int) -> None:
        self._bucket = bucket
        self._covered = 0  # the first offset after the last range
        self._last = NO_CITY
        self._pages = array(self._level.code)
        self._offsets = array(self._level.code)
        self._numbers = array("I")

    def add(self, first: int, last: int, number: int) -> Iterator[Block]:
        """Add a piece, in units; yield the blocks that are complete."""
        bits, most = self._level.bits, self._most
        for bucket in range(first >> bits, (last >> bits) + 1):
            if bucket != self._bucket:
                yield from self.close()
                self._begin(bucket)
            base = bucket << bits
            start, end = max(first - base, 0), min(last - base, most)
            if start > self._covered:
                yield from self._entry(self._covered, NO_CITY)
            yield from self._entry(start, number)
            self._covered = end + 1

    def _entry(self, offset: int, number: int) -> Iterator[Block]:
        if number == self._last:  # the city continues; initially there is no city
            return
        self._last = number
        if len(self._offsets) == ENTRIES_A_PAGE:
            yield self._page()
        self._offsets.append(offset)
        self._numbers.append(number)

    def close(self) -> Iterator[Block]:
        if self._bucket < 0:
            return
        if self._covered <= self._most:
            yield from self._entry(self._covered, NO_CITY)
        if self._pages:
            yield self._page()
            yield self._block(WHOLE, _PAGES + _little(self._pages))
        else:
            yield self._block(WHOLE, self._content())
        self._bucket = -1

    def _page(self) -> Block:
        page = self._block(len(self._pages), self._content())
        self._pages.append(self._offsets[0])
        del self._offsets[:], self._numbers[:]
        return page

    def _content(self) -> bytes:
        return _ENTRIES + _little(self._offsets) + _little(self._numbers)

    def _block(self, page: int, content: bytes) -> Block:
        return Block(self._level.number, self._bucket, page, content)


def search(level: Level, content: bytes, offset: int) -> tuple[int | None, int]:
    """Return the page to search for an offset, and NO_CITY; or None, and its city or NO_CITY."""
    border = _border(level, content)
    at = bisect_right(_readable(level.code, content, 1, border), offset) - 1
    if at < 0:
        return None, NO_CITY
    if content[:1] == _PAGES:
        return at, NO_CITY
    start = border + _BYTES_OF_A_NUMBER * at
    return None, int.from_bytes(content[start : start + _BYTES_OF_A_NUMBER], "little")


def entries(level: Level, content: bytes) -> tuple[Sequence[int], Sequence[int]]:
    """Return the offsets and the city numbers of a block; a list of pages has no numbers."""
    border = _border(level, content)
    offsets = _readable(level.code, content, 1, border)
    if list(offsets) != sorted({*offsets}):
        raise _unreadable(content)
    return offsets, _readable("I", content, border, len(content))


def _border(level: Level, content: bytes) -> int:
    """Return the position of the city numbers in a block; the end of a list of pages."""
    width, kind = level.bits // 8, content[:1]
    count, left = divmod(len(content) - 1, width + _BYTES_OF_A_NUMBER * (kind == _ENTRIES))
    if kind not in (_ENTRIES, _PAGES) or left or not count:
        raise _unreadable(content)
    return 1 + count * width


def _unreadable(content: bytes) -> StructureError:
    return StructureError(
        f"a block of ranges ({counted(len(content), 'byte')}) cannot be read",
        "import again, or upgrade this program if a later release wrote it",
    )


if sys.byteorder == "little":

    def _little(numbers: array[int]) -> bytes:
        return numbers.tobytes()

    def _readable(code: str, content: bytes, start: int, end: int) -> Sequence[int]:
        return memoryview(content)[start:end].cast(code)  # type: ignore[call-overload,no-any-return]

else:  # pragma: no cover - servers and clients are little-endian nearly everywhere

    def _little(numbers: array[int]) -> bytes:
        swapped = array(numbers.typecode, numbers)
        swapped.byteswap()
        return swapped.tobytes()

    def _readable(code: str, content: bytes, start: int, end: int) -> Sequence[int]:
        numbers = array(code, content[start:end])
        numbers.byteswap()
        return numbers
