"""The parts of packed records: where they are, how they come into being, and what is read of them.

What users call is in `shardkit.structures.packed.records`, which also tells the idea.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

from shardkit.errors import InvalidArgumentError
from shardkit.operations.commands import Argument, Command
from shardkit.operations.operation import Driver, Face, Operation, operation, pages
from shardkit.structures.base.arguments import check_integer, check_name, expiry, shown
from shardkit.structures.base.part_registry import PartRegistry
from shardkit.structures.base.partitioned import PARTS_AT_ONCE, PartitionedStructure
from shardkit.structures.packed.addressing import Grid
from shardkit.structures.packed.aggregates import Tally
from shardkit.structures.packed.plain_aggregates import tally
from shardkit.structures.packed.record_format import Fields, RecordFormat, Slot

HIGHEST_ID = 2**63 - 1
# 32 KiB less a string's header: the most that fits what the allocator gives out for it.
DEFAULT_PART = 2**15 - 16
LARGEST_PART = 2**29  # the servers' limit to a STRING, and to BITFIELD's offsets
IDS_AT_ONCE = 1000
# The most that one GETRANGE asks for, and one exchange.
BLOCK = 2**18
BLOCKS_AT_ONCE = 2**21

T = TypeVar("T")

# Part, first byte and last byte.
Block = tuple[int, int, int]


class PackedParts(PartitionedStructure[Face]):
    """The base of `shardkit.structures.PackedRecords`, whose arguments it has."""

    kind: ClassVar[str] = "packed"

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str,
        fields: Fields,
        part_size: int | None = None,
    ) -> None:
        check_name(name)
        self.format = RecordFormat(fields, name)
        bits = self.format.bits
        if part_size is None:
            part_size = DEFAULT_PART * 8 // bits // 8 * 8
        check_integer(name, "part_size", part_size, 1, LARGEST_PART * 8 // bits)
        if part_size * bits % 8:
            raise InvalidArgumentError(
                f"{name}: part_size={part_size} records of {bits} bits are no whole bytes",
                f"give a multiple of {8 // bits}",
            )
        self.part_size = part_size
        self._grid = Grid(bits, part_size)
        self.part_bytes = self._grid.part_bytes
        super().__init__(
            driver, component, name, {"fields": self.format.text, "part_size": part_size}
        )
        self.registry = PartRegistry(component, name)
        # Parts that this object knows to have their full length.
        self._whole: set[int] = set()

    def place(self, record_id: int) -> tuple[str, int]:
        """Return the key of a record's part, and its first bit there. No exchange."""
        part, index = divmod(self.check_id(record_id), self.part_size)
        return self.part_key(part), index * self.format.bits

    # ---- the whole structure

    @operation
    def clear(self) -> Operation[bool]:
        """Remove all records with their parameters; return whether there was anything.

        Nobody else may be writing. The parameters go last, so that what a failure leaves can be
        opened and cleared again.

        Cost: one command a part, an exchange for every 1,000 parts.
        """
        removed = yield from self._to_all("UNLINK")
        self._whole.clear()
        self.registry.reset()
        self.meta.checked = False
        return removed > 0

    @operation
    def expire(self, seconds: int | timedelta) -> Operation[bool]:
        """Have all parts that exist now, and the parameters, expire; return whether any do.

        Args:
            seconds: after what time, at least one second.

        Raises:
            InvalidArgumentError: it is no such time.

        Cost: one command a part, an exchange for every 1,000 parts.
        """
        return (yield from self._to_all("EXPIRE", expiry(self.name, seconds))) > 0

    # ---- inside

    def pairs(self, values: Mapping[int, T] | Iterable[tuple[int, T]]) -> Iterator[tuple[int, T]]:
        """Give values with their ids, as they are read.

        Raises:
            InvalidArgumentError: an id does not fit, or something is no pair.
        """
        found: Any = values.items() if isinstance(values, Mapping) else values
        for pair in found:
            try:
                record_id, value = pair
            except (TypeError, ValueError):
                raise InvalidArgumentError(
                    f"{self.name}: {shown(pair)} is no pair", "give values by id, or pairs of both"
                ) from None
            if type(record_id) is not int or not 0 <= record_id <= HIGHEST_ID:
                self.check_id(record_id)
            yield record_id, value

    def write_codes(
        self, whole: Mapping[int, int], some: Mapping[int, Sequence[tuple[Slot, int]]] | None = None
    ) -> Operation[None]:
        """Steps: write some thousand records that are packed already.

        Args:
            whole: records by id, as `RecordFormat.pack` gives them.
            some: fields of other records by id, as `RecordFormat.codes` gives them.
        """
        pieces = {
            record_id: [(slot.offset, slot.kind.bits, code) for slot, code in fields]
            for record_id, fields in (some or {}).items()
        }
        by_part = self._grid.writes(whole, pieces)
        commands = [
            self._command(str(name), part, *args, idempotent=True)
            for part, its in by_part.items()
            for name, *args in its
        ]
        if commands:
            yield from self._write(commands, by_part)

    def read_code(self, record_id: int) -> Operation[int]:
        """Steps: return one record, packed."""
        part, index = divmod(self.check_id(record_id), self.part_size)
        first, bit = divmod(index * self.format.bits, 8)
        yield from self._open()
        [data] = yield [self._range(part, first, first + self.format.size - 1)]
        code = int.from_bytes(data.ljust(self.format.size, b"\0"))
        if self.format.bits < 8:
            code = code >> (8 - self.format.bits - bit) & ((1 << self.format.bits) - 1)
        return code

    def read_codes(self, ids: Iterable[int]) -> Operation[list[int]]:
        """Steps: return so many records, packed, in the order given; some thousand at most."""
        ids = list(ids)
        found = yield from self._read(ids)
        return [found[record_id] for record_id in ids]

    def _write(self, commands: list[Command], parts: Iterable[int]) -> Operation[list[Any]]:
        """Send commands that write to parts, which exist in full length then."""
        yield from self._open(create=True)
        new = [part for part in parts if part not in self._whole]
        if new:
            yield from self.registry.add(new)
        # Adding 0 to the last bit changes nothing, and the first to do so creates the part.
        last = 8 * self.part_bytes - 1
        making = [
            self._command("BITFIELD", part, "INCRBY", "u1", last, 0, idempotent=True)
            for part in new
        ]
        replies: list[Any] = yield making + commands
        self._whole.update(new)
        return replies[len(making) :]

    def _read(self, ids: Iterable[int]) -> Operation[dict[int, int]]:
        runs = self._grid.runs(map(self.check_id, ids))
        yield from self._open()
        replies = (yield [self._range(*run[:3]) for run in runs]) if runs else []
        found = self._grid.found
        return {
            record_id: code
            for run, data in zip(runs, replies, strict=True)
            for record_id, code in found(run, data)
        }

    def _tally(
        self, by: Sequence[str], of: Sequence[str], ids: Iterable[int] | None
    ) -> Operation[Tally]:
        found = tally(self.name, self.format, self._grid, by, of)
        if ids is not None:
            for page in pages(ids, IDS_AT_ONCE):
                found.add(self._grid.joined((yield from self.read_codes(page))))
            return found
        blocks = yield from self._blocks()
        for batch in batches(blocks, BLOCKS_AT_ONCE):
            replies = yield [self._range(*block) for block in batch]
            found.add(b"".join(map(self._grid.padded, replies)))
        return found

    def _blocks(self) -> Operation[list[Block]]:
        """Return the blocks of all parts, in order; none cuts a record."""
        yield from self._open()
        parts = yield from self.registry.read()
        step = BLOCK // self.format.size * self.format.size
        return [
            (part, first, min(first + step, self.part_bytes) - 1)
            for part in parts
            for first in range(0, self.part_bytes, step)
        ]

    def _to_all(self, name: str, *args: Argument) -> Operation[int]:
        """Send a command for every part, then for what says which there are; return the sum."""
        yield from self._open()
        total = 0
        for parts in pages((yield from self.registry.read()), PARTS_AT_ONCE):
            total += sum((yield [self._command(name, part, *args) for part in parts]))
        for key in (self.registry.key, self.meta_key):
            [last] = yield [self._at(key, name, key, *args)]
            total += last
        return total

    def _command(self, name: str, part: int, *args: Argument, idempotent: bool = False) -> Command:
        key = self.part_key(part)
        return Command(self.component, key, (name, key, *args), None, idempotent)

    def _range(self, part: int, first: int, last: int) -> Command:
        return self._command("GETRANGE", part, first, last, idempotent=True)

    def check_id(self, record_id: int) -> int:
        """Return an id.

        Raises:
            InvalidArgumentError: it is no integer from 0 to 2**63 - 1.
        """
        if type(record_id) is not int or not 0 <= record_id <= HIGHEST_ID:
            check_integer(self.name, "id", record_id, 0, HIGHEST_ID)
        return record_id


def batches(blocks: Iterable[Block], size: int) -> Iterator[list[Block]]:
    """Cut blocks into lists of at most so many bytes together, and at least one block."""
    batch: list[Block] = []
    total = 0
    for block in blocks:
        length = block[2] - block[1] + 1
        if batch and total + length > size:
            yield batch
            batch, total = [], 0
        batch.append(block)
        total += length
    if batch:
        yield batch
