"""Where packed records are, and the fewest commands that read or write some of them. Pure.

Record ``id`` is in part ``id // part_size``, at bit ``bits * (id % part_size)``. Neighbours are
read by one GETRANGE and written by one SETRANGE; records that stand alone, or share a byte with
others, are written by one BITFIELD for all those of a part::

    write 4, 5, 6 and 9     SETRANGE location:0 8 <6 bytes>    BITFIELD location:0 SET u16 144 60169
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from shardkit.operations.commands import Argument

# Records with so many bytes between them are still read together: less than a command costs.
GAP = 64
# The widest unsigned integer that BITFIELD has; what is wider goes in pieces.
WIDEST = 63
PIECE = 32


class Run(NamedTuple):
    """Bytes of a part that are read together.

    Attributes:
        part: the part.
        first, last: the first and the last byte, both included, as GETRANGE has them.
        ids: whose records are looked for in it.
    """

    part: int
    first: int
    last: int
    ids: list[int]


class Grid:
    """Where records are.

    Args:
        bits: how many bits a record takes: 1, 2, 4 or a multiple of 8.
        part_size: how many records a part has.

    Attributes:
        part_bytes: how many bytes a part has.
    """

    def __init__(self, bits: int, part_size: int) -> None:
        self.bits = bits
        self.part_size = part_size
        self.part_bytes = bits * part_size // 8
        self._size = max(1, bits // 8)
        self._mask = (1 << bits) - 1

    def runs(self, ids: Iterable[int]) -> list[Run]:
        """Return what to read for some ids, in order; ids may come twice."""
        runs: list[Run] = []
        size, bits, part_size = self._size, self.bits, self.part_size
        part = first = last = -1
        row: list[int] = []
        for record_id in sorted(set(ids)):
            here, index = divmod(record_id, part_size)
            at = index * bits // 8
            if here != part or at - last > GAP + 1:
                if row:
                    runs.append(Run(part, first, last, row))
                part, first, row = here, at, []
            row.append(record_id)
            last = at + size - 1
        if row:
            runs.append(Run(part, first, last, row))
        return runs

    def found(self, run: Run, data: bytes) -> Iterator[tuple[int, int]]:
        """Give each id of a run and its record, as an integer; what is missing is zeros."""
        size, bits = self._size, self.bits
        data = data.ljust(run.last + 1 - run.first, b"\0")
        base = run.part * self.part_size
        if bits >= 8:
            start = base * size + run.first
            for record_id in run.ids:
                at = record_id * size - start
                yield record_id, int.from_bytes(data[at : at + size])
            return
        for record_id in run.ids:
            byte, bit = divmod((record_id - base) * bits, 8)
            yield record_id, data[byte - run.first] >> (8 - bits - bit) & self._mask

    def records(self, data: bytes) -> Iterator[int]:
        """Give every record of whole bytes, as an integer."""
        if self.bits >= 8:
            for at in range(0, len(data), self._size):
                yield int.from_bytes(data[at : at + self._size])
            return
        for byte in data:
            for shift in range(8 - self.bits, -1, -self.bits):
                yield byte >> shift & self._mask

    def joined(self, codes: Sequence[int]) -> bytes:
        """Return records side by side, the last byte filled up with zeros."""
        if self.bits >= 8:
            return b"".join([code.to_bytes(self._size) for code in codes])
        each = 8 // self.bits
        joined = bytearray()
        for start in range(0, len(codes), each):
            byte = 0
            for n, code in enumerate(codes[start : start + each], 1):
                byte |= code << (8 - n * self.bits)
            joined.append(byte)
        return bytes(joined)

    def padded(self, data: bytes) -> bytes:
        """Return bytes of a part that end with a record: one that is cut short gets its zeros."""
        short = -len(data) % self._size
        return data + bytes(short) if short else data

    def writes(
        self, records: Mapping[int, int], pieces: Mapping[int, Sequence[tuple[int, int, int]]]
    ) -> dict[int, list[tuple[Argument, ...]]]:
        """Return the commands that write records, by part; each lacks its key.

        Args:
            records: whole records by id.
            pieces: of other ids, some bits: the first (counted from the record's), how many, and
                what they become.

        Returns:
            ``("SETRANGE", offset, bytes)`` and ``("BITFIELD", …)``, which gets the key second.
        """
        commands: dict[int, list[tuple[Argument, ...]]] = {}
        alone: dict[int, list[Argument]] = defaultdict(list)
        bits, single = self.bits, f"u{self.bits}"
        for part, start, codes in self._neighbours(records):
            if bits < 8:
                self._write_narrow(part, start * bits, codes, commands, alone)
            elif len(codes) > 1 or bits > WIDEST:
                data = self.joined(codes)
                commands.setdefault(part, []).append(("SETRANGE", start * bits // 8, data))
            else:
                alone[part] += ("SET", single, start * bits, codes[0])
        for record_id, changes in pieces.items():
            part, index = divmod(record_id, self.part_size)
            fields = alone[part]
            for offset, bits, code in changes:
                fields += setting(index * self.bits + offset, bits, code)
        for part, args in alone.items():
            commands.setdefault(part, []).append(("BITFIELD", *args))
        return commands

    def _neighbours(self, records: Mapping[int, int]) -> Iterator[tuple[int, int, list[int]]]:
        """Give the part, the first index and the records of each row without a gap."""
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

    def _write_narrow(
        self,
        part: int,
        bit: int,
        codes: list[int],
        commands: dict[int, list[tuple[Argument, ...]]],
        alone: dict[int, list[Argument]],
    ) -> None:
        """Write records of less than a byte: whole bytes by SETRANGE, the others by BITFIELD."""
        each = 8 // self.bits
        head = min(-(bit // self.bits) % each, len(codes))
        tail = len(codes) - (len(codes) - head) % each
        for start, end in ((0, head), (tail, len(codes))):
            value = 0
            for code in codes[start:end]:
                value = value << self.bits | code
            if end > start:
                at, bits = bit + start * self.bits, (end - start) * self.bits
                alone[part] += setting(at, bits, value)
        if tail > head:
            data = self.joined(codes[head:tail])
            at = (bit + head * self.bits) // 8
            commands.setdefault(part, []).append(("SETRANGE", at, data))


def setting(offset: int, bits: int, code: int) -> list[Argument]:
    """Return the arguments of BITFIELD that set so many bits."""
    args: list[Argument] = []
    while bits > WIDEST:
        bits -= PIECE
        args += ("SET", f"u{PIECE}", offset, code >> bits)
        code &= (1 << bits) - 1
        offset += PIECE
    args += ("SET", f"u{bits}", offset, code)
    return args
