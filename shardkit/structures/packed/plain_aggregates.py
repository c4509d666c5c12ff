"""Packed records aggregated without numpy. Pure.

An aggregator takes blocks of records as they were read, and ignores records that are all zeros:
nothing was written there. This one counts equal records first, so a repeated record costs little
more than a dictionary look-up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardkit.structures.packed.addressing import RecordLayout
from shardkit.structures.packed.record_format import PackedField, RecordFormat


class FieldTotals(NamedTuple):
    """Sum, minimum and maximum of one field's values; of integers exactly."""

    sum: int | float
    min: int | float
    max: int | float

    def plus(self, other: FieldTotals) -> FieldTotals:
        """Return the totals of both."""
        return FieldTotals(self.sum + other.sum, min(self.min, other.min), max(self.max, other.max))


@dataclass(frozen=True, slots=True)
class RecordGroup:
    """Some records: how many, and the totals of fields by name."""

    count: int
    totals: dict[str, FieldTotals]


class Aggregator:
    """Groups of records, counted and added up.

    Args:
        record_format: the records' format.
        layout: where records are in a block.
        by: the fields whose values make a group.
        summed: the fields that are added up.
    """

    def __init__(
        self,
        record_format: RecordFormat,
        layout: RecordLayout,
        by: Sequence[PackedField],
        summed: Sequence[PackedField],
    ) -> None:
        self.format = record_format
        self.layout = layout
        self.by = by
        self.summed = summed
        # By the bits of a group's fields: how many records it has, and the totals.
        self._groups: dict[int, tuple[int, list[FieldTotals]]] = {}

    def add(self, data: bytes) -> None:
        """Add a block of whole records, side by side."""
        records = Counter(self.layout.split(data))
        del records[0]
        for code, count in records.items():
            key = 0
            for field in self.by:
                key = key << field.type.bits | field.code_in(code)
            values = [field.type.decode(field.code_in(code)) for field in self.summed]
            self._merge(key, count, [FieldTotals(value * count, value, value) for value in values])

    def groups(self) -> dict[tuple[Any, ...], RecordGroup]:
        """Return the groups in the order of their bits, by the values of their fields."""
        names = [field.name for field in self.summed]
        return {
            self._values(key): RecordGroup(count, dict(zip(names, totals, strict=True)))
            for key, (count, totals) in sorted(self._found().items())
        }

    def _found(self) -> Mapping[int, tuple[int, list[FieldTotals]]]:
        return self._groups

    def _merge(self, key: int, count: int, totals: list[FieldTotals]) -> None:
        if key in self._groups:
            before, earlier = self._groups[key]
            count += before
            totals = [one.plus(other) for one, other in zip(earlier, totals, strict=True)]
        self._groups[key] = (count, totals)

    def _values(self, key: int) -> tuple[Any, ...]:
        values = []
        for field in reversed(self.by):
            values.append(field.type.decode(key & field.mask))
            key >>= field.type.bits
        return tuple(reversed(values))
