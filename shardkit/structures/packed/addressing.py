"""Places of packed records, and the fewest commands that read or write some of them. Pure.

Record ``id`` is in part ``id // part_size``, at bit ``bits * (id % part_size)``. Neighbours are
read by one GETRANGE and written by one SETRANGE; records that stand alone, or share a byte with
others, are written by one BITFIELD for all those of a part::

    write 4, 5, 6 and 9     SETRANGE location:0 8 <6 bytes>    BITFIELD location:0 SET u16 144 60169
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from shardkit.operations.commands import Argument

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
