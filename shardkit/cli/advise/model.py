"""How many bytes a server takes for keys in their compact encodings. Pure, but for two figures.

A listpack has 7 bytes and its entries; an entry of text its length and itself, a whole number from
one to nine bytes; and each its own length once more. `measure` finds what a key takes besides.
"""

from __future__ import annotations

import random
import re
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from redis.exceptions import ResponseError
from redis.utils import str_if_bytes

from shardkit.cli.advise.servers import BenchServer

_KEYS = 4_000
_NAME = "bench:12345"  # of the keys that are measured
_LONG = 2_000  # bytes of a value in a table
_TABLE = 100  # values of a table
_FIELDS, _HASHES = (32, 64), 80  # fields that expire, and in how many keys
_DUE = 10  # bytes of an entry's time in a listpack
_EMBEDDED = 128  # bytes of the largest block with a field and its value
_NODE = 8_192  # bytes of a full node of a LIST
_YEAR = 31_536_000_000  # milliseconds
_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_WIDTHS = ((7, 1), (12, 2), (15, 3), (23, 4), (31, 5), (63, 9))
# jemalloc's sizes: four in each doubling.
_CLASSES: list[int] = [8, *range(16, 129, 16)]
_CLASSES += [(4 + n) << power for power in range(5, 28) for n in range(1, 5)]


@dataclass(frozen=True)
class ExpiringFields:
    """What fields of a HASH take if they expire."""

    embeds: bool  # whether a table has short fields and their values in one block
    table: float = 0.0  # the bytes of a table besides its fields
    entry: float = 0.0  # the bytes of a field in a table besides its blocks
    # The bytes of a HASH as a listpack besides the same of one that does not expire; None if there
    # is none.
    compact: float | None = None


@dataclass(frozen=True)
class MemoryModel:
    """What a kind of server takes."""

    jemalloc: bool  # whether that is its allocator
    key: float  # the bytes of a key besides its value, its name of 11 bytes included
    entry: float  # the bytes of an entry in a table, besides its value
    due: float = 0.0  # the bytes of a key's time to live
    fields: ExpiringFields | None = None  # what fields take that expire; None if they cannot

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

    def list_part(self, name: str, size: float) -> float:
        """Return the bytes of a key with a LIST whose values take this size."""
        if size + 7 <= _NODE:
            return self.part(name, size + 7)
        full, rest = divmod(size, _NODE - 7)
        nodes = full * self.block(_NODE) + (full + 1) * self.block(32) + self.block(40)
        return self.part(name, rest + 7) + nodes

    def expiring_part(
        self, name: str, pairs: Sequence[tuple[bytes, bytes]], count: float, compact: bool
    ) -> float:
        """Return the bytes of a HASH whose fields expire, with fields and values like some given.

        ``compact`` says that no value is too long for a listpack.
        """
        assert self.fields is not None
        key = self.key + len(name) - len(_NAME)
        if compact and self.fields.compact is not None:
            entry = fmean(entry_size(field) + entry_size(value) for field, value in pairs)
            return key + self.fields.compact + self.allocated(7 + count * (entry + _DUE))
        blocks = fmean(self._table_entry(len(field), len(value)) for field, value in pairs)
        return key + self.fields.table + count * (self.fields.entry + blocks)

    def _table_entry(self, field: int, value: int) -> int:
        """Return the bytes of a field that expires and its value, in a table."""
        together = field + value + 16
        if self.fields is not None and self.fields.embeds and together <= _EMBEDDED:
            return self.block(together)
        return self.block(field + 20) + self.block(value + (4 if value < 256 else 6))


def measure(server: BenchServer, expiring: bool = False) -> MemoryModel:
    """Measure a server's figures, also those of what expires if asked to.

    Writes some thousand keys, and removes them.
    """
    before = server.bytes_added()
    pipe: Any = server.client.pipeline(transaction=False)
    for n in range(_KEYS):
        pipe.hset(f"bench:{10_000 + n}", mapping={"7": "abcdef"})
    pipe.execute()
    first = MemoryModel("jemalloc" in server.software, 0.0, 0.0)
    each = (server.bytes_added() - before) / _KEYS
    key = each - first.block(7 + entry_size(b"7") + entry_size(b"abcdef"))
    keys = server.bytes_added()
    pipe = server.client.pipeline(transaction=False)
    for n in range(_TABLE // 2):
        names = {f"{i}": "x" * _LONG for i in range(_TABLE)}
        pipe.hset(f"bench:{20_000 + n}", mapping=names)
    pipe.execute()
    tables = (server.bytes_added() - keys) / (_TABLE // 2) - key
    entry = tables / _TABLE - first.block(_LONG + 5)
    server.client.flushall()
    model = MemoryModel(first.jemalloc, key, entry)
    if not expiring:
        server.close()
        return model
    return replace(model, due=_due(server), fields=_expiring_fields(server, model))


def _due(server: BenchServer) -> float:
    taken = []
    for end in (None, _YEAR):
        pipe: Any = server.client.pipeline(transaction=False)
        for n in range(_KEYS):
            pipe.set(f"bench:{10_000 + n}", "abcdef", px=end)
        pipe.execute()
        taken.append(server.bytes_added())
    server.client.flushall()
    return (taken[1] - taken[0]) / _KEYS


def _expiring_fields(server: BenchServer, model: MemoryModel) -> ExpiringFields | None:
    fields = ExpiringFields("valkey" in server.software)

    def besides(count: int, compact: bool) -> tuple[float, str]:
        """Return what a HASH takes besides what is known, and its encoding."""
        each, encoding = _load_expiring(server, count)
        known = replace(model, fields=replace(fields, compact=0.0 if compact else None))
        return each - known.expiring_part(_NAME, _pairs(0, count), count, compact), encoding

    few, many = _FIELDS
    try:
        with server.limits({"hash-max-listpack-entries": 0, "hash-max-ziplist-entries": 0}):
            of_few, of_many = besides(few, False)[0], besides(many, False)[0]
    except ResponseError:  # Redis before 7.4, Valkey before 9.0
        server.client.flushall()
        return None
    compact, encoding = besides(many, True)
    entry = (of_many - of_few) / (many - few)
    table = of_few - few * entry
    return replace(
        fields, table=table, entry=entry, compact=None if encoding == "hashtable" else compact
    )


def _pairs(first: int, count: int) -> list[tuple[bytes, bytes]]:
    """Return fields and values of many lengths; fields from another number on are others."""
    lengths = [(4 + 7 * n % 34, 4 + 11 * n % 56) for n in range(count)]
    return [(b"%0*d" % (wide, first + n), b"v" * long) for n, (wide, long) in enumerate(lengths)]


def _load_expiring(server: BenchServer, count: int) -> tuple[float, str]:
    """Return the bytes of a HASH with fields, and its encoding; removes it.

    It is an average of many with other fields: as many fall together in a bucket as by chance.
    """
    choose, due = random.Random(1), round(1000 * time.time()) + _YEAR
    before = server.bytes_added()
    for n in range(_HASHES):
        key, pairs = f"bench:{10_000 + n}", _pairs(count * n, count)
        pipe: Any = server.client.pipeline(transaction=False)
        pipe.hset(key, mapping=dict(pairs))
        for name, _ in pairs:
            pipe.execute_command(
                "HPEXPIREAT", key, due + choose.randrange(_YEAR), "FIELDS", 1, name
            )
        pipe.execute()
    client: Any = server.client
    encoding = str_if_bytes(client.object("encoding", key))
    each = (server.bytes_added() - before) / _HASHES
    server.client.flushall()
    return each, encoding


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
