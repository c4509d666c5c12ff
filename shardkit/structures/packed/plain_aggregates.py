"""Counts, sums, minima and maxima of packed records, all together or by some of their fields.

A tally takes in blocks of records as they were read, and no record that is all zeros: nothing was
written there. `tally` gives the one that works on arrays (`packed.numpy_aggregates`) if
numpy is installed, ``pip install shardkit[arrays]``, and otherwise the one here, which gives the
same results: it counts equal records first, so records that repeat cost little more than a look-up
in a dictionary each. Pure: no I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from shardkit.errors import InvalidArgumentError
from shardkit.structures.packed.addressing import Grid
from shardkit.structures.packed.aggregates import Tally, Totals, joined
from shardkit.structures.packed.record_format import RecordFormat, Slot

WIDEST_KEY = 64


class PlainTally(Tally):
    """A tally without arrays."""

    def __init__(
        self, record_format: RecordFormat, grid: Grid, by: Sequence[Slot], of: Sequence[Slot]
    ) -> None:
        super().__init__(record_format, grid, by, of)
        self._found: dict[int, tuple[int, list[Totals]]] = {}

    def add(self, data: bytes) -> None:
        """Take in whole records."""
        records = Counter(self.grid.records(data))
        del records[0]
        for code, count in records.items():
            key = 0
            for slot in self.by:
                key = key << slot.kind.bits | (code >> slot.shift & slot.mask)
            values = [slot.kind.decode(code >> slot.shift & slot.mask) for slot in self.of]
            totals = [Totals(value * count, value, value) for value in values]
            if key in self._found:
                before, sums = self._found[key]
                count += before
                totals = [joined(*both) for both in zip(sums, totals, strict=True)]
            self._found[key] = (count, totals)

    def found(self) -> Mapping[int, tuple[int, list[Totals]]]:
        """Return what was found."""
        return self._found


def tally(
    owner: str, record_format: RecordFormat, grid: Grid, by: Sequence[str], of: Sequence[str]
) -> Tally:
    """Return an empty tally.

    Args:
        owner: the structure's name, for messages.
        record_format: the records' format.
        grid: where records are in a block.
        by: names of the fields whose values make a group.
        of: names of the fields that are added up.

    Raises:
        InvalidArgumentError: there is no such field, or it cannot be used so.
    """
    if len(set(by)) < len(by) or len(set(of)) < len(of):
        raise InvalidArgumentError(f"{owner}: by={by!r}, of={of!r}", "name each field once")
    keys = [record_format.slot(name) for name in by]
    for slot in keys:
        if not slot.kind.groups:
            raise InvalidArgumentError(
                f"{owner}: records cannot be grouped by {slot.name}, which is {slot.kind.text}",
                "group by integers, bytes, cells or choices",
            )
    bits = sum(slot.kind.bits for slot in keys)
    if bits > WIDEST_KEY:
        raise InvalidArgumentError(
            f"{owner}: {', '.join(by)} have {bits} bits together",
            f"group by fields of at most {WIDEST_KEY}",
        )
    values = [record_format.slot(name) for name in of]
    for slot in values:
        if not slot.kind.adds:
            raise InvalidArgumentError(
                f"{owner}: {slot.name} is {slot.kind.text} and cannot be added up",
                "sums are of integers and floats",
            )
    try:
        from shardkit.structures.packed.numpy_aggregates import ArrayTally
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        return PlainTally(record_format, grid, keys, values)
    return ArrayTally(record_format, grid, keys, values)
