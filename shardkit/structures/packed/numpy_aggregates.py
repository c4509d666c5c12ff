"""Packed records aggregated as numpy arrays: some nanoseconds a record.

Adjacent fields are read as one number. Groups of up to 16 bits have a place each in arrays; groups
with wider keys are found by sorting each block, and go into a dictionary. Sums of integers are
exact: ``bincount`` adds doubles, so it is given at most 32 bits of a value at a time, and less than
2**21 of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardkit.structures.packed.aggregates import Aggregator, FieldTotals
from shardkit.structures.packed.record_format import PackedField

DENSE_BITS = 16
# Bytes that are processed together: with the arrays made of them they should fit the CPU's cache.
AT_ONCE = 2**18

Array = NDArray[Any]


class FieldSums:
    """The totals of one field in many groups."""

    def __init__(self, field: PackedField, size: int) -> None:
        floats = not field.type.is_integer
        # The upper and the lower half of wide integers are added up separately.
        self._halves = field.type.bits > 32 and not floats
        kind = np.float64 if floats else np.int64
        lowest, highest = (-np.inf, np.inf) if floats else (-(2**63), 2**63 - 1)
        self._low = np.zeros(size, kind)
        self._high = np.zeros(size, kind)
        self._min = np.full(size, highest, kind)
        self._max = np.full(size, lowest, kind)

    def add(self, groups: Array, values: Array) -> None:
        """Add values, each to the group with the number at its index."""
        np.minimum.at(self._min, groups, values)
        np.maximum.at(self._max, groups, values)
        size = len(self._low)
        low = values & 0xFFFFFFFF if self._halves else values
        self._low += np.bincount(groups, low, size).astype(self._low.dtype)
        if self._halves:
            self._high += np.bincount(groups, values >> 32, size).astype(np.int64)

    def totals(self, group: int) -> FieldTotals:
        """Return the totals of one group."""
        total = self._low[group].item() + (self._high[group].item() << 32 if self._halves else 0)
        return FieldTotals(total, self._min[group].item(), self._max[group].item())


class ArrayAggregator(Aggregator):
    """An aggregator that works on arrays; its arguments are those of `Aggregator`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # The offset and width of fields; fields without bits between them as one.
        self._key_spans: list[tuple[int, int]] = []
        for field in self.by:
            if self._key_spans and sum(self._key_spans[-1]) == field.offset:
                offset, bits = self._key_spans[-1]
                self._key_spans[-1] = (offset, bits + field.type.bits)
            else:
                self._key_spans.append((field.offset, field.type.bits))
        # When every bit of a record is in its key, the group of zeros is the records of zeros.
        self._key_is_record = self.key_bits == self.format.bits
        self._dense = self.key_bits <= DENSE_BITS
        size = 1 << self.key_bits if self._dense else 0
        self._counts = np.zeros(size, np.int64)
        self._sums = [FieldSums(field, size) for field in self.summed]

    def add(self, data: bytes) -> None:
        """Add a block of whole records."""
        block = AT_ONCE * min(8, self.format.bits) // 8
        step = block // self.format.size * self.format.size
        with np.errstate(all="ignore"):  # sums of doubles may be infinite, as everywhere
            for start in range(0, len(data), step):
                # A view, so nothing is copied.
                self._add(np.frombuffer(memoryview(data)[start : start + step], np.uint8))

    def _add(self, data: Array) -> None:
        records = self._rows(data)
        if not self._key_is_record:
            width = records.shape[1]
            one = width in (1, 2, 4, 8)  # number a record
            whole = records.reshape(-1).view(f"u{width}") != 0 if one else records.any(axis=1)
            records = records[whole]
        keys = self._key(records)
        if self._dense:
            groups = self._fold(keys.astype(np.uint16)).astype(np.intp)
            self._counts += np.bincount(groups, minlength=len(self._counts))
            for field, sums in zip(self.summed, self._sums, strict=True):
                sums.add(groups, _values(records, field))
            return
        unique, groups, counts = np.unique(keys, return_inverse=True, return_counts=True)
        block = [FieldSums(field, len(unique)) for field in self.summed]
        for field, sums in zip(self.summed, block, strict=True):
            sums.add(groups, _values(records, field))
        for group, (key, count) in enumerate(zip(unique.tolist(), counts.tolist(), strict=True)):
            if key or not self._key_is_record:
                self._merge(key, count, [sums.totals(group) for sums in block])

    def _totals(self) -> Mapping[int, tuple[int, list[FieldTotals]]]:
        if not self._dense:
            return self._groups
        groups = np.flatnonzero(self._counts)
        return {
            key: (int(self._counts[group]), [sums.totals(group) for sums in self._sums])
            for key, group in zip(self._fold(groups).tolist(), groups.tolist(), strict=True)
            if key or not self._key_is_record
        }

    def _fold(self, keys: Array) -> Array:
        """Return keys with their upper half folded into the lower; twice gives the keys again.

        Counters of keys that differ in their upper byte only share few of the CPU's cache lines.
        """
        folded: Array = keys ^ (keys >> ((self.key_bits + 1) // 2))
        return folded

    def _rows(self, data: Array) -> Array:
        """Return a row of bytes for each record; one of less than a byte is in its first bits."""
        bits = self.format.bits
        if bits >= 8:
            return data.reshape(-1, self.format.size)
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        mask = np.uint8(0xFF << (8 - bits) & 0xFF)
        return (data[:, None] << shifts & mask).reshape(-1, 1)

    def _key(self, records: Array) -> Array:
        if not self._key_spans:
            return np.zeros(len(records), np.intp)
        (offset, bits), *others = self._key_spans
        key = _column(records, offset, bits)
        for offset, bits in others:
            key = key.astype(np.uint64) << np.uint64(bits) | _column(records, offset, bits)
        return key


def _column(records: Array, offset: int, bits: int) -> Array:
    """Return some bits of every record as an unsigned integer; at most 64."""
    first, start = divmod(offset, 8)
    if start == 0 and bits in (8, 16, 32, 64):
        column = np.ascontiguousarray(records[:, first : first + bits // 8])
        return column.reshape(-1).view(f">u{bits // 8}")
    # At most eight bytes, and the remaining bits of a ninth.
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


def _values(records: Array, field: PackedField) -> Array:
    """Return a field of every record as int64 or float64."""
    bits = field.type.bits
    column = _column(records, field.offset, bits)
    if not field.type.is_integer:
        width = bits // 8
        return column.astype(f"u{width}").view(f"f{width}").astype(np.float64)
    if field.type.signed:
        shift = np.int64(64 - bits)
        return column.astype(np.uint64).view(np.int64) << shift >> shift
    return column.astype(np.int64)
