"""Counts, sums, minima and maxima of packed records, all together or by some of their fields. Pure.

An aggregator takes blocks of records as they were read, and ignores records that are all zeros.
With numpy they are aggregated as arrays (`packed.numpy_aggregates`), with the same results. This
one counts equal records first, so a repeated one costs little more than a dictionary look-up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardkit.errors import InvalidArgumentError
from shardkit.structures.packed.part_store import RecordLayout
from shardkit.structures.packed.record_format import RecordFormat

MAX_KEY_BITS = 64


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
    """A group of records: their number, and the totals of fields by name."""

    count: int
    totals: dict[str, FieldTotals]


class Aggregator:
    """Groups of records, counted and added up."""

    def __init__(
        self,
        owner: str,
        record_format: RecordFormat,
        layout: RecordLayout,
        by: Sequence[str],
        totals: Sequence[str],
    ) -> None:
        if len(set(by)) < len(by) or len(set(totals)) < len(totals):
            raise InvalidArgumentError(
                f"{owner}: by={by!r}, totals={totals!r}", "name each field once"
            )
        self.format = record_format
        self.layout = layout
        self.by = [record_format.field(name) for name in by]
        self.summed = [record_format.field(name) for name in totals]
        self.key_bits = sum(field.type.bits for field in self.by)
        for field in self.by:
            if not field.type.groupable:
                raise InvalidArgumentError(
                    f"{owner}: records cannot be grouped by {field.name}, a {field.type.spec}",
                    "group by integers, bytes, cells or choices",
                )
        for field in self.summed:
            if not field.type.summable:
                raise InvalidArgumentError(
                    f"{owner}: {field.name} is {field.type.spec} and cannot be added up",
                    "use a field of integers or floats",
                )
        if self.key_bits > MAX_KEY_BITS:
            raise InvalidArgumentError(
                f"{owner}: {', '.join(by)} have {self.key_bits} bits together",
                f"group by fields of at most {MAX_KEY_BITS}",
            )
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
            for key, (count, totals) in sorted(self._totals().items())
        }

    def _totals(self) -> Mapping[int, tuple[int, list[FieldTotals]]]:
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
