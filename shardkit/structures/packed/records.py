r"""Fixed-width records by id, packed side by side in STRINGs: two bytes a user, say, and no keys.

Record ``id`` is in part ``id // part_size``, at byte ``width * (id % part_size)``::

    location:meta     HASH     kind=packed fields=country:u8,region:u8 part_size=16376
    location:parts    SET      {0, 1, 8546}               the parts that there are
    location:0        STRING   32,752 bytes: ids 0 to 16,375
    location:1        STRING   ids 16,376 to 32,751
    location:8546     STRING   ids 139,949,296 to 139,965,671

    ┌────┬────┬────┬────┬────┬────┬─ … ─┐     id 1 is USA (235), CA (9):
    │ 00   00 │ eb   09 │ 28   09 │     │     set(1, country=235, region=9)
    └────┴────┴────┴────┴────┴────┴─ … ─┘       SETRANGE location:0 2 <eb 09>
      id 0      id 1      id 2

How a record is packed, see `packed.record_format`; narrow ones share a byte. What was
never written reads as zeros, so **a record of zeros is no record**: iteration, counts and groups
leave it out.

A part gets its full length with the first write into it. A STRING that grows as ids arrive is
over-allocated by its server, one that is created with its last byte has the size it needs: ten
million locations in random order take 3.10 bytes each when strings grow, and 2.04 this way (Redis
7.0; Valkey 9.1: 2.82 and 2.04; in sequential order 2.03). It is one BITFIELD that adds 0 to the
last bit: it creates the part or lengthens it, whoever comes first, and never changes what is there.

The size of parts follows the allocator: 2**14 records of two bytes and the string's header are just
more than 32 KiB and take 40; 16,376 fit, so that is the default (2.52 and 2.02 bytes a record).
Larger parts save nothing more, smaller ones cost a key more often; larger ones are read a little
faster. A part costs its length even if it holds a single record: ids should be dense.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from shardkit.errors import InvalidArgumentError
from shardkit.operations.commands import Argument, Columns
from shardkit.operations.operation import (
    Deferred,
    Face,
    Operation,
    Page,
    Stream,
    operation,
    pages,
    stream,
)
from shardkit.structures.base.arguments import check_integer, shown
from shardkit.structures.base.partitioned import PARTS_AT_ONCE
from shardkit.structures.packed.addressing import setting
from shardkit.structures.packed.aggregates import Group
from shardkit.structures.packed.base import IDS_AT_ONCE, PackedParts, batches
from shardkit.structures.packed.record_format import Record, Slot, joined

WRITES_AT_ONCE = 10_000
SCANNED_AT_ONCE = 2**17

Overflow = Literal["wrap", "sat", "fail"]


class PackedRecords(PackedParts[Face]):
    """Fixed-width records by id, over one server or many. Made by ``kit.packed``.

    Args:
        driver: what runs its operations.
        component: where its keys live.
        name: the prefix of its keys.
        fields: what each field of a record holds, in order, ``{"country": "u8", "score": "i32"}``;
            see `packed.field_types`. Or the name of a preset: ``flag``, ``postal``,
            ``position16``, ``position24``.
        part_size: how many records a part has. By default as many as take 32 KiB with the header.

    Attributes:
        format: encodes and decodes records.
        part_size: as given, or the default.
        part_bytes: how long a part is.
        registry: which parts there are.

    Raises:
        InvalidArgumentError: an argument is out of range.

    Ids are integers, 0 to 2**63 - 1. Every operation costs one more exchange the first time, for
    comparing the parameters; a write into a part that this object has not written to yet costs one
    for writing down that it exists.
    """

    @property
    def deferred(self) -> PackedRecords[Deferred]:
        """These records with the face whose calls return steps."""
        return self._deferred()  # type: ignore[return-value]

    # ---- single records

    @operation
    def set(
        self, record_id: int, record: Record | None = None, /, **fields: Any
    ) -> Operation[None]:
        """Write a record, or some fields of it, in one step.

        Args:
            record_id: whose record.
            record: values by field. Fields that are not given stay as they are.
            fields: the same as keywords.

        Raises:
            InvalidArgumentError: the id, a field or a value does not fit; nothing was written then.
            ParameterMismatchError: the records exist with other parameters.
            ShardErrors: the part's shard failed, or that of the parameters.

        Cost: one exchange; O(1).
        """
        if isinstance(record, Mapping):
            fields = {**record, **fields}
        elif record is not None:
            self.format.refuse(record)
        codes = self.format.codes(fields)
        if len(codes) == len(self.format.slots):
            yield from self.write_codes({self.check_id(record_id): joined(codes)})
        else:
            yield from self.write_codes({}, {self.check_id(record_id): codes})

    @operation
    def get(self, record_id: int) -> Operation[dict[str, Any]]:
        """Return a record by field; zeros where nothing was written. Cost: one exchange."""
        return self.format.unpack((yield from self.read_code(record_id)))

    @operation
    def get_field(self, record_id: int, field: str) -> Operation[Any]:
        """Return one field of a record.

        Raises:
            InvalidArgumentError: there is no such field, or the id does not fit.

        Cost: one exchange.
        """
        slot = self.format.slot(field)
        code = yield from self.read_code(record_id)
        return slot.kind.decode(code >> slot.shift & slot.mask)

    @operation
    def incr(
        self, record_id: int, field: str, by: int = 1, overflow: Overflow = "wrap"
    ) -> Operation[int | None]:
        """Add to an integer field, in one step.

        Args:
            record_id: whose record.
            field: an integer field.
            by: what to add.
            overflow: what becomes of a sum that does not fit: ``wrap`` goes round, ``sat`` keeps
                the greatest or the least, ``fail`` leaves the field as it was.

        Returns:
            The new value; None if it was left as it was.

        Raises:
            InvalidArgumentError: an argument does not fit; nothing was changed then.

        Cost: one exchange; O(1).
        """
        sums = yield from self.deferred.incr_many({self.check_id(record_id): by}, field, overflow)
        return sums[record_id]

    @operation
    def delete(self, record_id: int) -> Operation[bool]:
        """Make a record zeros; return whether it was not. Cost: one exchange; O(1)."""
        return (yield from self.deferred.delete_many([record_id])) > 0

    # ---- many records

    @operation
    def set_many(
        self, records: Mapping[int, Record] | Iterable[tuple[int, Record]]
    ) -> Operation[None]:
        """Write records, or some fields of each, 10,000 records an exchange.

        Each record is written in one step, not all of them.

        Args:
            records: values by field, by id; or pairs of both, also a generator: it is read as they
                are sent. Of an id that comes twice the later values hold.

        Raises:
            InvalidArgumentError: an id, a field or a value does not fit; of its 10,000 nothing was
                written then, but those before.
            ParameterMismatchError: the records exist with other parameters.
            ShardErrors: shards failed; records on the others were written.

        Cost: one exchange for 10,000 records; a command for each row of neighbours, and one for all
        others of a part.
        """
        all_fields = len(self.format.slots)
        for page in pages(self.pairs(records), WRITES_AT_ONCE):
            whole: dict[int, int] = {}
            some: dict[int, list[tuple[Slot, int]]] = {}
            for record_id, record in page:
                codes = self.format.codes(record)
                if len(codes) == all_fields:
                    whole[record_id] = joined(codes)
                    some.pop(record_id, None)
                elif record_id in whole:
                    for slot, code in codes:
                        others = whole[record_id] & ~(slot.mask << slot.shift)
                        whole[record_id] = others | code << slot.shift
                else:
                    some.setdefault(record_id, []).extend(codes)
            yield from self.write_codes(whole, some)

    @operation
    def get_many(self, ids: Iterable[int]) -> Operation[dict[int, dict[str, Any]]]:
        """Return records by id, in the order given; zeros where nothing was written.

        Raises:
            InvalidArgumentError: an id does not fit.
            ShardErrors: shards failed.

        Cost: one exchange for 1,000 ids; a command for each row of near ones.
        """
        found: dict[int, dict[str, Any]] = {}
        unpack = self.format.unpack
        for page in pages(ids, IDS_AT_ONCE):
            codes = yield from self._read(page)
            found |= {record_id: unpack(codes[record_id]) for record_id in map(self.check_id, page)}
        return found

    @operation
    def incr_many(
        self, amounts: Mapping[int, int], field: str, overflow: Overflow = "wrap"
    ) -> Operation[dict[int, int | None]]:
        """Add to an integer field of many records, each in one step.

        Args:
            amounts: what to add, by id.
            field: an integer field.
            overflow: see `incr`.

        Returns:
            The new values; None where a field was left as it was.

        Raises:
            InvalidArgumentError: an argument does not fit; nothing was changed then.
            ShardErrors: shards failed; fields on the others were changed.

        Cost: one exchange for 10,000 records, one command a part.
        """
        slot = self.format.slot(field)
        if not slot.kind.counts:
            raise InvalidArgumentError(
                f"{self.name}: {field} is {slot.kind.text} and cannot be added to",
                "increments are of integers",
            )
        if overflow not in ("wrap", "sat", "fail"):
            raise InvalidArgumentError(
                f"{self.name}: overflow={shown(overflow)}", "give wrap, sat or fail"
            )
        if not isinstance(amounts, Mapping):
            raise InvalidArgumentError(
                f"{self.name}: amounts={shown(amounts)}", "give what to add by id"
            )
        for record_id, by in amounts.items():
            self.check_id(record_id)
            check_integer(self.name, "by", by, -(2**63), 2**63 - 1)
        sums: dict[int, int | None] = {}
        for page in pages(amounts.items(), WRITES_AT_ONCE):
            members: dict[int, list[int]] = {}
            args: dict[int, list[Argument]] = {}
            for record_id, by in page:
                part, index = divmod(record_id, self.part_size)
                members.setdefault(part, []).append(record_id)
                args.setdefault(part, ["OVERFLOW", overflow.upper()]).extend(
                    ("INCRBY", slot.kind.text, index * self.format.bits + slot.offset, by)
                )
            replies = yield from self._write(
                [self._command("BITFIELD", part, *its) for part, its in args.items()], args
            )
            for ids, values in zip(members.values(), replies, strict=True):
                sums.update(zip(ids, values, strict=True))
        return sums

    @operation
    def delete_many(self, ids: Iterable[int]) -> Operation[int]:
        """Make records zeros; return how many were not.

        Cost: one exchange for 10,000 ids, one command a part. Nothing is created.
        """
        deleted = 0
        yield from self._open()
        for page in pages(map(self.check_id, ids), WRITES_AT_ONCE):
            by_part: dict[int, dict[int, None]] = {}
            for record_id in page:
                by_part.setdefault(record_id // self.part_size, {})[record_id] = None
            if not by_part.keys() <= self._whole:
                there = set((yield from self.registry.read()))
                by_part = {part: ids for part, ids in by_part.items() if part in there}
            # A record that is wider than BITFIELD's integers is several of them.
            each = len(setting(0, self.format.bits, 0)) // 4
            batch = []
            for part, its in by_part.items():
                args: list[Argument] = []
                for record_id in its:
                    args += setting(
                        record_id % self.part_size * self.format.bits, self.format.bits, 0
                    )
                batch.append(self._command("BITFIELD", part, *args))
            for old in (yield batch) if batch else ():
                deleted += sum(any(old[n : n + each]) for n in range(0, len(old), each))
        return deleted

    # ---- all records

    @stream
    def scan(self) -> Stream[tuple[int, dict[str, Any]]]:
        """Iterate over the records that are not zeros, in the order of their ids.

        Cost: an exchange for every 128 KiB.
        """
        unpack, bits = self.format.unpack, self.format.bits
        blocks = yield from self._blocks()
        for batch in batches(blocks, SCANNED_AT_ONCE):
            replies = yield [self._range(*block) for block in batch]
            for (part, first, _), data in zip(batch, replies, strict=True):
                start = part * self.part_size + first * 8 // bits
                records = self._grid.records(self._grid.padded(data))
                yield Page(
                    (record_id, unpack(code))
                    for record_id, code in enumerate(records, start)
                    if code
                )

    @operation
    def highest(self) -> Operation[int | None]:
        """Return the highest id whose record is not zeros; None when there is none.

        Cost: one exchange for what parts there are, and one for each block of 256 KiB, from the
        last, until one is found: usually one.
        """
        blocks = yield from self._blocks()
        for part, first, last in reversed(blocks):
            [data] = yield [self._range(part, first, last)]
            filled = self._grid.padded(data).rstrip(b"\0")
            if filled:
                codes = list(self._grid.records(self._grid.padded(filled)[-self.format.size :]))
                row = (len(filled) - 1) // self.format.size * self.format.size
                inside = max(n for n, code in enumerate(codes) if code)
                return part * self.part_size + (first + row) * 8 // self.format.bits + inside
        return None

    @operation
    def count(self, flag: str | None = None, ids: Iterable[int] | None = None) -> Operation[int]:
        """Return how many records are not zeros, or have a flag set.

        Args:
            flag: a field of one bit.
            ids: count among these only; one that comes twice counts twice.

        Raises:
            InvalidArgumentError: there is no such field, it has more bits, or an id does not fit.

        Cost: as `aggregate`. Records of one bit are counted by their servers: one BITCOUNT a part,
        an exchange for every 1,000 parts.
        """
        if flag is not None and self.format.slot(flag).kind.bits != 1:
            raise InvalidArgumentError(
                f"{self.name}: {flag} is {self.format.slots[flag].kind.text}, not a flag",
                "use group_by, which counts by value",
            )
        if self.format.bits == 1 and ids is None:
            yield from self._open()
            total = 0
            for parts in pages((yield from self.registry.read()), PARTS_AT_ONCE):
                keys = [self.part_key(part) for part in parts]
                total += sum((yield Columns(self.component, "BITCOUNT", keys, idempotent=True)))
            return total
        if flag is None:
            return (yield from self.deferred.aggregate(ids=ids)).count
        groups = yield from self.deferred.group_by(flag, ids=ids)
        return groups[1].count if 1 in groups else 0

    @operation
    def aggregate(self, *of: str, ids: Iterable[int] | None = None) -> Operation[Group]:
        """Count the records that are not zeros, and add up fields of them.

        Args:
            of: fields to add up: integers, exactly, or floats.
            ids: take these only, instead of all; one that comes twice counts twice.

        Returns:
            How many they are, and sum, minimum and maximum of each field (of no records, none).

        Raises:
            InvalidArgumentError: there is no such field, it cannot be added up, or an id does not
                fit.
            ShardErrors: shards failed.

        Cost: everything is read, an exchange for every 2 MiB, in blocks of at most 256 KiB; for ids
        an exchange for every 1,000. With numpy some nanoseconds a record.
        """
        found = yield from self._tally((), of, ids)
        return found.groups().get((), Group(0, {}))

    @operation
    def group_by(
        self, *by: str, of: Sequence[str] = (), ids: Iterable[int] | None = None
    ) -> Operation[dict[Any, Group]]:
        """Count records by the values of fields, and add up other fields of each group.

        Args:
            by: one field, or several that have at most 64 bits together: no floats.
            of: fields to add up.
            ids: take these only, instead of all.

        Returns:
            The groups, in the order of their bits, by the value; by tuples of values when several
            fields are given.

        Raises, Cost: as `aggregate`.
        """
        if not by or isinstance(of, str):
            raise InvalidArgumentError(
                f"{self.name}: group_by{shown(by)}, of={shown(of)}",
                "name at least one field to group by; of takes a list of names",
            )
        groups = (yield from self._tally(by, of, ids)).groups()
        return {key[0]: group for key, group in groups.items()} if len(by) == 1 else groups
