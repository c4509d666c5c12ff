"""Reads and writes packed records, as integers, in the parts of one structure.

Record ``id`` is in part ``id // part_size``, at bit ``bits * (id % part_size)``. Neighbours are
read by one GETRANGE and written by one SETRANGE; records that stand alone, or share a byte with
others, are written by one BITFIELD for all those of a part. All writes to a part are one call of
``lua/write.lua``, which creates it::

    write 4, 5, 6 and 9     SETRANGE location:0 8 <6 bytes>    BITFIELD location:0 SET u16 144 60169
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, TypeVar

from shardkit.errors import ShardFailure
from shardkit.operations.arguments import rows_of
from shardkit.operations.commands import Argument, Command, Partial, Replies
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation, Stream, pages
from shardkit.structures.base.arguments import check_integer
from shardkit.structures.base.check import (
    Damage,
    Suspicions,
    check_registered,
    confirmed,
    raised_twice,
    register_existing,
    wrong_lengths,
)
from shardkit.structures.base.parameters import ChangeScope, Metadata, open_all
from shardkit.structures.base.partitioned import PARTS_AT_ONCE
from shardkit.structures.base.writes import (
    HIGHEST,
    PartRegistry,
    PartReply,
    send_to_parts,
    settled_writes,
)

# Records with at most this many bytes between them are read together: cheaper than a command.
MAX_GAP = 64
# The widest unsigned integer of BITFIELD; anything wider is split.
MAX_BITFIELD_BITS = 63
SPLIT_BITS = 32
# Of one BITFIELD: Lua's unpack takes some 8,000, and each of its operations 4.
MOST_ARGUMENTS = 4000

# By part: the name and the arguments, without the key, of commands.
PartCommands: TypeAlias = dict[int, list[tuple[Argument, ...]]]


class ReadRange(NamedTuple):
    """Bytes of a part that are read together."""

    part: int
    first: int  # the first byte
    last: int  # the last byte, included, as GETRANGE has it
    ids: Sequence[int]  # of the wanted records in it


class RecordLayout:
    """The places of records of 1, 2, 4 or a multiple of 8 bits in parts."""

    def __init__(self, bits: int, part_size: int) -> None:
        self.bits = bits
        self.part_size = part_size
        self.part_bytes = bits * part_size // 8
        self.size = max(1, bits // 8)  # bytes of a record
        self.mask = (1 << bits) - 1

    def read_ranges(self, ids: Iterable[int]) -> list[ReadRange]:
        """Return the ranges to read for some ids, in order; ids may repeat."""
        ranges: list[ReadRange] = []
        size, bits, part_size = self.size, self.bits, self.part_size
        part = first = last = -1
        row: list[int] = []
        for record_id in sorted(set(ids)):
            its_part, index = divmod(record_id, part_size)
            at = index * bits // 8
            if its_part != part or at - last > MAX_GAP + 1:
                if row:
                    ranges.append(ReadRange(part, first, last, row))
                part, first, row = its_part, at, []
            row.append(record_id)
            last = at + size - 1
        if row:
            ranges.append(ReadRange(part, first, last, row))
        return ranges

    def block(self, part: int, first: int, end: int) -> ReadRange:
        """Return the range of all records between two bytes of a part."""
        start = part * self.part_size
        ids = range(start + first * 8 // self.bits, start + end * 8 // self.bits)
        return ReadRange(part, first, end - 1, ids)

    def extract(self, read: ReadRange, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield each id of a range and its record, as an integer; missing bytes are zeros."""
        size, bits, mask = self.size, self.bits, self.mask
        data = data.ljust(read.last + 1 - read.first, b"\0")
        first = read.part * self.part_size * bits + 8 * read.first
        for record_id in read.ids:
            at, bit = divmod(record_id * bits - first, 8)
            code = int.from_bytes(data[at : at + size])
            yield record_id, code if bits >= 8 else code >> (8 - bits - bit) & mask

    def split(self, data: bytes) -> Iterator[int]:
        """Yield every record of a block, as an integer."""
        if self.bits >= 8:
            for at in range(0, len(data), self.size):
                yield int.from_bytes(data[at : at + self.size])
            return
        for byte in data:
            for shift in range(8 - self.bits, -1, -self.bits):
                yield byte >> shift & self.mask

    def join(self, codes: Sequence[int]) -> bytes:
        """Return records side by side, the last byte filled up with zeros."""
        if self.bits >= 8:
            return b"".join([code.to_bytes(self.size) for code in codes])
        bits = len(codes) * self.bits
        return (self._joined(codes) << -bits % 8).to_bytes(-(-bits // 8))

    def _joined(self, codes: Iterable[int]) -> int:
        joined = 0
        for code in codes:
            joined = joined << self.bits | code
        return joined

    def write_commands(
        self, records: Mapping[int, int], fields: Mapping[int, Sequence[tuple[int, int, int]]]
    ) -> PartCommands:
        """Return the commands that write records, by part, without their keys.

        ``fields`` has bits of other records: the first, counted from the record's, how many, the
        value.
        """
        commands: PartCommands = {}
        alone: dict[int, list[Argument]] = defaultdict(list)
        bits, part_size, per_byte = self.bits, self.part_size, max(1, 8 // self.bits)
        ids = sorted(records)
        rows = [n for n, i in enumerate(ids) if i - 1 not in records or i % part_size == 0]
        for at, end in pairwise([*rows, len(ids)]):
            part, start = divmod(ids[at], part_size)
            if end - at == 1 and bits <= MAX_BITFIELD_BITS:
                alone[part] += ("SET", f"u{bits}", start * bits, records[ids[at]])
                continue
            # Whole bytes by SETRANGE, the others by BITFIELD.
            codes = [records[record_id] for record_id in ids[at:end]]
            head = min(-start % per_byte, len(codes))
            tail = len(codes) - (len(codes) - head) % per_byte
            for first, last in ((0, head), (tail, len(codes))):
                if last > first:
                    code, width = self._joined(codes[first:last]), (last - first) * bits
                    alone[part] += set_bits((start + first) * bits, width, code)
            if tail > head:
                written = ("SETRANGE", (start + head) * bits // 8, self.join(codes[head:tail]))
                commands.setdefault(part, []).append(written)
        for record_id, changes in fields.items():
            part, index = divmod(record_id, self.part_size)
            for offset, width, code in changes:
                alone[part] += set_bits(index * bits + offset, width, code)
        for part, args in alone.items():
            commands.setdefault(part, []).extend(bitfields(args))
        return commands


def bitfields(args: Sequence[Argument], *first: Argument) -> Iterator[tuple[Argument, ...]]:
    """Return the BITFIELDs, without their key, that have some arguments; ``first`` in each."""
    for at in range(0, len(args), MOST_ARGUMENTS):
        yield ("BITFIELD", *first, *args[at : at + MOST_ARGUMENTS])


def set_bits(offset: int, bits: int, code: int) -> list[Argument]:
    """Return the arguments of BITFIELD that set some bits."""
    args: list[Argument] = []
    while bits > MAX_BITFIELD_BITS:
        bits -= SPLIT_BITS
        args += ("SET", f"u{SPLIT_BITS}", offset, code >> bits)
        code &= (1 << bits) - 1
        offset += SPLIT_BITS
    args += ("SET", f"u{bits}", offset, code)
    return args


IDS_AT_ONCE = 1000
_REMOVES = "rebuild() removes it"
_FIRST_PARTS = range(1024)  # searched even if they are not registered
BLOCK_BYTES = 2**18  # at most, of one GETRANGE

T = TypeVar("T")


class PartStore:
    """The parts of one structure, shared by all its faces."""

    def __init__(self, component: str, name: str, layout: RecordLayout, meta: Metadata) -> None:
        self.component = component
        self.name = name
        self.layout = layout
        self.meta = meta
        self.registry = PartRegistry(component, name)
        meta.leased = True

    def check_id(self, record_id: int) -> int:
        """Return an id, checked: an integer from 0 to 2**63 - 1."""
        if type(record_id) is not int or not 0 <= record_id <= HIGHEST:
            check_integer(self.name, "id", record_id, 0, HIGHEST)
        return record_id

    def pairs(self, values: Mapping[int, T] | Iterable[tuple[int, T]]) -> Iterator[tuple[int, T]]:
        """Yield checked ids with their values, as they are read."""
        items: Any = values.items() if isinstance(values, Mapping) else values
        for record_id, value in rows_of(self.name, "pairs", items, "(id, value)", 2, 2):
            yield self.check_id(record_id), value

    def read(self, ids: Iterable[int]) -> Operation[dict[int, int]]:
        """Return some thousand records by id. Cost: one exchange."""
        ranges = self.layout.read_ranges(map(self.check_id, ids))
        yield from open_all([self.meta])
        replies = yield from self.read_ranges(ranges)
        return {
            record_id: code
            for read, data in zip(ranges, replies, strict=True)
            for record_id, code in self.layout.extract(read, data)
        }

    def read_one(self, record_id: int) -> Operation[int]:
        """Return one record. Cost: one exchange."""
        layout = self.layout
        part, index = divmod(self.check_id(record_id), layout.part_size)
        first = index * layout.bits // 8
        read = ReadRange(part, first, first + layout.size - 1, (record_id,))
        if not self.meta.checked:
            yield from open_all([self.meta])
        [data] = yield from self.read_ranges([read])
        [(_, code)] = layout.extract(read, data)
        return code

    def read_ranges(self, ranges: Sequence[ReadRange]) -> Operation[list[bytes]]:
        """Return the bytes of ranges: none of a part that does not exist.

        Cost: one exchange; another one if parts are missing or have been cut.
        """
        replies = yield [
            Command(self.component, key, ("GETRANGE", key, first, last))
            for part, first, last, _ in ranges
            for key in (self.part_key(part),)
        ]
        short = {
            read.part
            for read, data in zip(ranges, replies, strict=True)
            if len(data) <= read.last - read.first
        }
        if short:
            yield from self.verify_lengths(sorted(short))
        return list(replies)

    def verify_lengths(self, parts: Iterable[int]) -> Operation[None]:
        """Check that parts that exist have their full length."""
        for note in (yield from self._check_lengths(list(parts))):
            raise note.error

    def write(
        self,
        parts: PartCommands,
        *,
        create: bool = True,
        replies: bool = False,
        idempotent: bool = True,
    ) -> Operation[dict[int, list[Any]]]:
        """Write to some parts, each in one step; return the replies by part.

        Cost: one exchange; one more before parts that this process did not see registered, and two
        after parts were created.
        """
        yield from open_all([self.meta], create=create)
        lua, length = "structures/packed/write", self.layout.part_bytes
        numbers = {self.part_key(part): part for part in parts}
        keys = list(numbers)

        def send(waiting: Sequence[int]) -> Operation[tuple[Replies, list[PartReply]]]:
            calls = []
            for at in waiting:
                args: list[Argument] = [length, self.meta.end, int(replies), int(create)]
                for command in parts[numbers[keys[at]]]:
                    args += (len(command), *command)
                calls.append(lua_call(self.component, lua, [keys[at]], args, idempotent=idempotent))
            answers = yield Partial(calls)
            return answers, [
                PartReply(at, reply[0], reply[2:], reply[1])
                for at, reply in zip(waiting, answers, strict=True)
                if not isinstance(reply, ShardFailure)
            ]

        registry = self.registry if create else None
        by_write = dict(enumerate(keys))
        results = yield from settled_writes(self.meta, by_write, send, registry, numbers)
        return {numbers[keys[at]]: reply for at, reply in results.items()}

    def parts(self) -> Operation[list[int]]:
        """Return the parts that exist, in order. Cost: one exchange."""
        yield from open_all([self.meta])
        return (yield from self.registry.read())

    def blocks(self, most_bytes: int) -> Operation[list[list[ReadRange]]]:
        """Return all blocks, in order, in lists of limited size that are read at once.

        No block cuts a record. Cost: one exchange.
        """
        layout = self.layout
        step = BLOCK_BYTES // layout.size * layout.size
        ranges = (
            layout.block(part, first, min(first + step, layout.part_bytes))
            for part in (yield from self.parts())
            for first in range(0, layout.part_bytes, step)
        )
        return list(pages(ranges, max(1, most_bytes // min(step, layout.part_bytes))))

    def send_to_all(self, generation: ChangeScope, name: str, *args: Argument) -> Operation[int]:
        """Send a command to every part, then to the registry; return the sum."""
        parts = yield from self.parts()
        if name == "UNLINK":  # the registry may have lost parts: none of the first is left behind
            parts = [*parts, *(yield from self.registry.unregistered(_FIRST_PARTS))]
        keys = [*map(self.part_key, parts), self.registry.key]
        total = 0
        for page in pages(keys, PARTS_AT_ONCE):
            total += yield from send_to_parts(self.meta, generation, name, page, *args)
        return total

    def check(self) -> Stream[Damage]:
        """Check the registry, and the length of every part; see `PackedRecords.check`."""
        repair = "rebuild() removes invalid parts, and registers the first that exist"
        if (yield from raised_twice(self.registry.read, repair=repair)):
            return
        yield from confirmed(check_registered, self.registry, _FIRST_PARTS)
        for page in pages((yield from self.registry.read()), PARTS_AT_ONCE):
            yield from confirmed(self._check_lengths, page)

    def _check_lengths(self, parts: Sequence[int]) -> Operation[Suspicions]:
        keys, full = list(map(self.part_key, parts)), self.layout.part_bytes
        repairs = (
            "rebuild() gives it its length",
            "records beyond the cut, lost already",
            _REMOVES,
        )
        return (yield from wrong_lengths(self.component, keys, full, *repairs))

    def restore_registry(self) -> Operation[None]:
        """Register the first existing parts; remove invalid ones."""
        yield from self.registry.repair()
        yield from register_existing(self.registry, _FIRST_PARTS, max(0, self.meta.end))

    def restore_lengths(self) -> Operation[int]:
        """Give all parts their length; return how many parts are registered."""
        parts, full = (yield from self.registry.read()), self.layout.part_bytes
        for page in pages(parts, PARTS_AT_ONCE):
            for error, repair, _ in (yield from self._check_lengths(page)):
                key = error.key
                if repair == _REMOVES:
                    yield [Command(self.component, key, ("UNLINK", key), idempotent=True)]
                    continue
                # The last bit, unless another client created the part in between.
                extend = ("BITFIELD", key, "INCRBY", "u1", 8 * full - 1, 0)
                yield [Command(self.component, key, extend, idempotent=True)]
                [stored] = yield [Command(self.component, key, ("GETRANGE", key, 0, full - 1))]
                yield [Command(self.component, key, ("SET", key, stored, "KEEPTTL"))]
        return len(parts)

    def part_key(self, part: int) -> str:
        """Return the key of a part."""
        return f"{self.name}:{part}"
