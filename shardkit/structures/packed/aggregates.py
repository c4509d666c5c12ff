"""What every tally of packed records has: blocks of records in, groups with totals out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardkit.structures.packed.addressing import Grid
from shardkit.structures.packed.record_format import RecordFormat, Slot


class Totals(NamedTuple):
    """What the values of one field come to; of integers exactly."""

    sum: int | float
    min: int | float
    max: int | float


@dataclass(frozen=True, slots=True)
class Group:
    """Some records: how many, and the totals of fields by name."""

    count: int
    of: dict[str, Totals]


class Tally:
    """Groups of records, added up.

    Args:
        record_format: the records' format.
        grid: where records are in a block.
        by: the fields whose values make a group.
        of: the fields that are added up.

    Attributes:
        key_bits: how many bits the fields of a group have together.
    """

    def __init__(
        self, record_format: RecordFormat, grid: Grid, by: Sequence[Slot], of: Sequence[Slot]
    ) -> None:
        self.format = record_format
        self.grid = grid
        self.by = by
        self.of = of
        self.key_bits = sum(slot.kind.bits for slot in by)

    def add(self, data: bytes) -> None:
        """Take in whole records, side by side; those that are all zeros are none."""
        raise NotImplementedError

    def found(self) -> Mapping[int, tuple[int, list[Totals]]]:
        """Return by the bits of a group's fields how many records it has, and their totals."""
        raise NotImplementedError

    def groups(self) -> dict[tuple[Any, ...], Group]:
        """Return the groups in the order of their bits, by the values of their fields."""
        names = [slot.name for slot in self.of]
        return {
            self._values(key): Group(count, dict(zip(names, totals, strict=True)))
            for key, (count, totals) in sorted(self.found().items())
        }

    def _values(self, key: int) -> tuple[Any, ...]:
        values = []
        for slot in reversed(self.by):
            values.append(slot.kind.decode(key & slot.mask))
            key >>= slot.kind.bits
        return tuple(reversed(values))


def joined(one: Totals, other: Totals) -> Totals:
    """Return the totals of two groups together."""
    return Totals(one.sum + other.sum, min(one.min, other.min), max(one.max, other.max))
