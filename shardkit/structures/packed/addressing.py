"""Where packed records are, and the fewest commands that read or write some of them. Pure.

Record ``id`` is in part ``id // part_size``, at bit ``bits * (id % part_size)``. Neighbours are
read by one GETRANGE and written by one SETRANGE; records that stand alone, or share a byte with
others, are written by one BITFIELD for all those of a part::

    write 4, 5, 6 and 9     SETRANGE location:0 8 <6 bytes>    BITFIELD location:0 SET u16 144 60169
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from shardkit.operations.commands import Argument

# Records with at most so many bytes between them are read together: that costs less than a command.
MAX_GAP = 64
# The widest unsigned integer of BITFIELD; anything wider is split.
MAX_BITFIELD_BITS = 63
SPLIT_BITS = 32

# By part: the name and the arguments, without the key, of commands.
PartCommands: TypeAlias = dict[int, list[tuple[Argument, ...]]]


class ReadRange(NamedTuple):
    """Bytes of a part that are read together.

    Attributes:
        part: the part.
        first, last: the first and the last byte, both included, as GETRANGE takes them.
        ids: the ids of the wanted records in it.
    """

    part: int
    first: int
    last: int
    ids: list[int]


class RecordLayout:
    """Where records are.

    Args:
        bits: how many bits a record takes: 1, 2, 4 or a multiple of 8.
        part_size: how many records a part has.

    Attributes:
        size: how many bytes a record takes; 1 if it is narrower.
        mask: as many ones as a record has bits.
        part_bytes: how many bytes a part has.
    """

    def __init__(self, bits: int, part_size: int) -> None:
        self.bits = bits
        self.part_size = part_size
        self.part_bytes = bits * part_size // 8
        self.size = max(1, bits // 8)
        self.mask = (1 << bits) - 1

    def read_ranges(self, ids: Iterable[int]) -> list[ReadRange]:
        """Return what to read for some ids, in order; ids may come twice."""
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

    def extract(self, read: ReadRange, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield each id of a range and its record, as an integer; missing bytes are zeros."""
        size, bits = self.size, self.bits
        data = data.ljust(read.last + 1 - read.first, b"\0")
        first_id = read.part * self.part_size
        if bits >= 8:
            start = first_id * size + read.first
            for record_id in read.ids:
                at = record_id * size - start
                yield record_id, int.from_bytes(data[at : at + size])
            return
        for record_id in read.ids:
            byte, bit = divmod((record_id - first_id) * bits, 8)
            yield record_id, data[byte - read.first] >> (8 - bits - bit) & self.mask

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
        joined = 0
        for code in codes:
            joined = joined << self.bits | code
        bits = len(codes) * self.bits
        return (joined << -bits % 8).to_bytes(-(-bits // 8))

    def pad(self, data: bytes) -> bytes:
        """Return bytes of a part, with zeros for what is missing of the last record."""
        missing = -len(data) % self.size
        return data + bytes(missing) if missing else data

    def write_commands(
        self, records: Mapping[int, int], fields: Mapping[int, Sequence[tuple[int, int, int]]]
    ) -> PartCommands:
        """Return the commands that write records, by part, without their keys.

        Args:
            records: whole records by id.
            fields: of other ids, some bits: the first (counted from the record's), how many, and
                their new value.
        """
        commands: PartCommands = {}
        alone: dict[int, list[Argument]] = defaultdict(list)
        bits, per_byte = self.bits, max(1, 8 // self.bits)
        for part, start, codes in self._neighbours(records):
            if len(codes) == 1 and bits <= MAX_BITFIELD_BITS:
                alone[part] += ("SET", f"u{bits}", start * bits, codes[0])
                continue
            # Whole bytes by SETRANGE, the others by BITFIELD.
            head = min(-start % per_byte, len(codes))
            tail = len(codes) - (len(codes) - head) % per_byte
            for first, end in ((0, head), (tail, len(codes))):
                if end > first:
                    code = 0
                    for one in codes[first:end]:
                        code = code << bits | one
                    alone[part] += set_bits((start + first) * bits, (end - first) * bits, code)
            if tail > head:
                at = (start + head) * bits // 8
                commands.setdefault(part, []).append(("SETRANGE", at, self.join(codes[head:tail])))
        for record_id, changes in fields.items():
            part, index = divmod(record_id, self.part_size)
            for offset, width, code in changes:
                alone[part] += set_bits(index * bits + offset, width, code)
        for part, args in alone.items():
            commands.setdefault(part, []).append(("BITFIELD", *args))
        return commands

    def _neighbours(self, records: Mapping[int, int]) -> Iterator[tuple[int, int, list[int]]]:
        """Yield the part, the first index and the records of each row without a gap."""
        part_size = self.part_size
        following = end = -1  # the id that would be a neighbour, and the first of the next part
        part = start = -1
        codes: list[int] = []
        for record_id in sorted(records):
            if record_id != following or record_id == end:
                if codes:
                    yield part, start, codes
                part, start = divmod(record_id, part_size)
                end = (part + 1) * part_size
                codes = []
            codes.append(records[record_id])
            following = record_id + 1
        if codes:
            yield part, start, codes


def set_bits(offset: int, bits: int, code: int) -> list[Argument]:
    """Return the arguments of BITFIELD that set so many bits."""
    args: list[Argument] = []
    while bits > MAX_BITFIELD_BITS:
        bits -= SPLIT_BITS
        args += ("SET", f"u{SPLIT_BITS}", offset, code >> bits)
        code &= (1 << bits) - 1
        offset += SPLIT_BITS
    args += ("SET", f"u{bits}", offset, code)
    return args
