"""How many bytes a server takes for keys in their compact encodings. Pure, but for two figures.

A listpack has 7 bytes and its entries; an entry of text its length and itself, a whole number from
one to nine bytes; and each its own length once more. `measure` finds what a key takes besides.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from shardkit.cli.bench.servers import BenchServer

_KEYS = 4_000
_NAME = "bench:12345"  # of the keys that are measured
_LONG = 2_000  # bytes of a value in a table
_TABLE = 100  # values of a table
_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_WIDTHS = ((7, 1), (12, 2), (15, 3), (23, 4), (31, 5), (63, 9))
# jemalloc's sizes: four in each doubling.
_CLASSES: list[int] = [8, *range(16, 129, 16)]
_CLASSES += [(4 + n) << power for power in range(5, 28) for n in range(1, 5)]


@dataclass(frozen=True)
class MemoryModel:
    """What a kind of server takes.

    Attributes:
        jemalloc: whether that is its allocator.
        key: the bytes of a key besides its value, its name of 11 bytes included.
        entry: the bytes of an entry in a table, besides its value.
    """

    jemalloc: bool
    key: float
    entry: float

    def allocated(self, size: float) -> float:
        """Return the bytes that are allocated for blocks of about this size."""
        return fmean(self.block(round(size * share)) for share in (0.92, 0.96, 1.0, 1.04, 1.08))

    def block(self, size: int) -> int:
        """Return the bytes that are allocated for a block."""
        if self.jemalloc:
            return _CLASSES[bisect_left(_CLASSES, size)]
        return max(24, (size + 23) // 16 * 16 - 8)

    def part(self, name: str, size: float) -> float:
        """Return the bytes of a key with a value of one block."""
        return self.key + len(name) - len(_NAME) + self.allocated(size)

    def table(self, name: str, count: float, size: float) -> float:
        """Return the bytes of a key with a table of entries that have values of this size."""
        return self.key + len(name) - len(_NAME) + count * (self.entry + self.allocated(size + 5))


def measure(server: BenchServer) -> MemoryModel:
    """Measure a server's figures. Writes some thousand keys, and removes them."""
    before = server.bytes_added()
    pipe: Any = server.client.pipeline(transaction=False)
    for n in range(_KEYS):
        pipe.hset(f"bench:{10_000 + n}", mapping={"7": "abcdef"})
    pipe.execute()
    first = MemoryModel("jemalloc" in server.software, 0.0, 0.0)
    each = (server.bytes_added() - before) / _KEYS
    key = each - first.block(listpack([b"7", b"abcdef"]))
    keys = server.bytes_added()
    pipe = server.client.pipeline(transaction=False)
    for n in range(_TABLE // 2):
        names = {f"{i}": "x" * _LONG for i in range(_TABLE)}
        pipe.hset(f"bench:{20_000 + n}", mapping=names)
    pipe.execute()
    tables = (server.bytes_added() - keys) / (_TABLE // 2) - key
    entry = tables / _TABLE - first.block(_LONG + 5)
    server.client.flushall()
    server.close()
    return MemoryModel(first.jemalloc, key, entry)


def listpack(entries: Iterable[bytes]) -> int:
    """Return the bytes of a listpack."""
    return 7 + sum(map(entry_size, entries))


def entry_size(text: bytes) -> int:
    """Return the bytes of an entry of a listpack."""
    if _INTEGER.fullmatch(text) and -(2**63) <= (number := int(text)) < 2**63:
        bits = number if number >= 0 else ~number
        if 0 <= number < 128:
            return 2
        size = next(size for width, size in _WIDTHS[1:] if bits < 1 << width)
        return size + 1
    size = len(text) + (1 if len(text) < 64 else 2 if len(text) < 4096 else 5)
    return size + (1 if size < 128 else 2 if size < 16_384 else 3 if size < 2_097_152 else 4)


def mean_size(entries: Sequence[bytes]) -> float:
    """Return the average size of entries of a listpack."""
    return fmean(map(entry_size, entries)) if entries else 0.0


def integer_width(numbers: Iterable[int]) -> int:
    """Return the bytes of each member of an intset."""
    highest = max((n if n >= 0 else ~n for n in numbers), default=0)
    return 2 if highest < 2**15 else 4 if highest < 2**31 else 8
