"""Packed records added up as arrays of numpy: some nanoseconds a record.

Fields that lie beside one another are one number, so that a location's country and region, two
bytes, are looked at as an array of big-endian 16-bit integers, as they were read, and counted by
one ``bincount``. Groups of up to 16 bits have a place each in arrays that last; with wider keys the
groups of each block are found by sorting it, and go into a dictionary.

Sums of integers are exact: ``bincount`` adds up doubles, so it is given at most 32 bits of a value
at a time, and less than 2**21 of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardkit.structures.packed.addressing import Grid
from shardkit.structures.packed.aggregates import Tally, Totals, joined
from shardkit.structures.packed.record_format import RecordFormat, Slot

DENSE_BITS = 16
# Bytes that are looked at together: they and what is made of them should stay in the cache.
AT_ONCE = 2**18

Array = NDArray[Any]


class Sums:
    """The totals of one field in many groups.

    Args:
        slot: the field.
        size: how many groups there are.
    """

    def __init__(self, slot: Slot, size: int) -> None:
        self._floats = not slot.kind.counts
        # Of wider integers the upper and the lower half are added up apart.
        self._halves = slot.kind.bits > 32 and not self._floats
        kind = np.float64 if self._floats else np.int64
        lowest, highest = (-np.inf, np.inf) if self._floats else (-(2**63), 2**63 - 1)
        self._low = np.zeros(size, kind)
        self._high = np.zeros(size, kind)
        self._min = np.full(size, highest, kind)
        self._max = np.full(size, lowest, kind)

    def add(self, places: Array, values: Array) -> None:
        """Add values, each to the group at its place."""
        np.minimum.at(self._min, places, values)
        np.maximum.at(self._max, places, values)
        size = len(self._low)
        low = values & 0xFFFFFFFF if self._halves else values
        # Only integers are changed back: the sums of doubles stay what they are.
        self._low += np.bincount(places, low, size).astype(self._low.dtype)
        if self._halves:
            self._high += np.bincount(places, values >> 32, size).astype(np.int64)

    def totals(self, place: int) -> Totals:
        """Return the totals of one group."""
        total = self._low[place].item() + (self._high[place].item() << 32 if self._halves else 0)
        return Totals(total, self._min[place].item(), self._max[place].item())


class ArrayTally(Tally):
    """A tally of arrays."""

    def __init__(
        self, record_format: RecordFormat, grid: Grid, by: Sequence[Slot], of: Sequence[Slot]
    ) -> None:
        super().__init__(record_format, grid, by, of)
        self._keys = _beside_one_another(by)
        # With every bit of a record in its key, the group of zeros is the records of zeros.
        self._whole = self.key_bits == record_format.bits
        self._dense = self.key_bits <= DENSE_BITS
        size = 1 << self.key_bits if self._dense else 0
        self._counts = np.zeros(size, np.int64)
        self._sums = [Sums(slot, size) for slot in of]
        self._found: dict[int, tuple[int, list[Totals]]] = {}

    def add(self, data: bytes) -> None:
        """Take in whole records."""
        each = AT_ONCE * min(8, self.format.bits) // 8
        step = each // self.format.size * self.format.size
        with np.errstate(all="ignore"):  # doubles may come to infinity, as everywhere
            for start in range(0, len(data), step):
                # A view, so nothing is copied.
                self._add(np.frombuffer(memoryview(data)[start : start + step], np.uint8))

    def _add(self, data: Array) -> None:
        records = self._records(data)
        if not self._whole:
            records = records[_not_zero(records)]
        keys = self._key(records)
        if self._dense:
            places = self._folded(keys.astype(np.uint16)).astype(np.intp)
            self._counts += np.bincount(places, minlength=len(self._counts))
            for slot, sums in zip(self.of, self._sums, strict=True):
                sums.add(places, _values(records, slot))
            return
        groups, places, counts = np.unique(keys, return_inverse=True, return_counts=True)
        block = [Sums(slot, len(groups)) for slot in self.of]
        for slot, sums in zip(self.of, block, strict=True):
            sums.add(places, _values(records, slot))
        for place, (key, count) in enumerate(zip(groups.tolist(), counts.tolist(), strict=True)):
            totals = [sums.totals(place) for sums in block]
            if key in self._found:
                before, known = self._found[key]
                count += before
                totals = [joined(*both) for both in zip(known, totals, strict=True)]
            self._found[key] = (count, totals)
        if self._whole:
            self._found.pop(0, None)

    def found(self) -> Mapping[int, tuple[int, list[Totals]]]:
        """Return what was found."""
        if not self._dense:
            return self._found
        places = np.flatnonzero(self._counts)
        keys = self._folded(places)
        return {
            key: (int(self._counts[place]), [sums.totals(place) for sums in self._sums])
            for key, place in zip(keys.tolist(), places.tolist(), strict=True)
            if key or not self._whole
        }

    def _folded(self, keys: Array) -> Array:
        """Return keys with their upper half folded into the lower; twice gives the keys again.

        Keys that differ in their upper byte only, countries without regions, have counters 2 KiB
        apart, which fall on so few lines of the processor's cache that counting takes three times
        as long.
        """
        folded: Array = keys ^ (keys >> ((self.key_bits + 1) // 2))
        return folded

    def _records(self, data: Array) -> Array:
        """Return a row of bytes for each record; one of less than a byte is in its first bits."""
        bits = self.format.bits
        if bits >= 8:
            return data.reshape(-1, self.format.size)
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        mask = np.uint8(0xFF << (8 - bits) & 0xFF)
        return (data[:, None] << shifts & mask).reshape(-1, 1)

    def _key(self, records: Array) -> Array:
        if not self._keys:
            return np.zeros(len(records), np.intp)
        (offset, bits), *others = self._keys
        key = _column(records, offset, bits)
        for offset, bits in others:
            key = key.astype(np.uint64) << np.uint64(bits) | _column(records, offset, bits)
        return key


def _beside_one_another(slots: Sequence[Slot]) -> list[tuple[int, int]]:
    """Return the offset and width of fields, those without bits between them as one."""
    spans: list[tuple[int, int]] = []
    for slot in slots:
        if spans and sum(spans[-1]) == slot.offset:
            spans[-1] = (spans[-1][0], spans[-1][1] + slot.kind.bits)
        else:
            spans.append((slot.offset, slot.kind.bits))
    return spans


def _column(records: Array, offset: int, bits: int) -> Array:
    """Return some bits of every record as an unsigned integer; at most 64."""
    first, start = divmod(offset, 8)
    if start == 0 and bits in (8, 16, 32, 64):
        column = np.ascontiguousarray(records[:, first : first + bits // 8])
        return column.reshape(-1).view(f">u{bits // 8}")
    # Eight bytes at most, and of a ninth the bits that are still lacking.
    last = (offset + bits - 1) // 8
    value = np.zeros(len(records), np.uint64)
    for byte in range(first, min(last, first + 7) + 1):
        value = value << np.uint64(8) | records[:, byte]
    spare = 7 - (offset + bits - 1) % 8
    if last - first == 8:
        value = value << np.uint64(8 - spare) | records[:, last] >> np.uint8(spare)
    else:
        value >>= np.uint64(spare)
    return value & np.uint64((1 << bits) - 1)


def _values(records: Array, slot: Slot) -> Array:
    """Return a field of every record as int64 or float64."""
    bits = slot.kind.bits
    column = _column(records, slot.offset, bits)
    if not slot.kind.counts:
        width = bits // 8
        return column.astype(f"u{width}").view(f"f{width}").astype(np.float64)
    if slot.kind.signed:
        shift = np.int64(64 - bits)
        return column.astype(np.uint64).view(np.int64) << shift >> shift
    return column.astype(np.int64)


def _not_zero(records: Array) -> Array:
    width = records.shape[1]
    if width in (1, 2, 4, 8):
        return np.asarray(records.reshape(-1).view(f"u{width}") != 0)
    return np.asarray(records.any(axis=1))
