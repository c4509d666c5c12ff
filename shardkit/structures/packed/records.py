"""Fixed-width records by id, packed side by side in STRINGs: two bytes a user, say, and no keys.

Record ``id`` is in part ``id // part_size``, at byte ``width * (id % part_size)``; docs/packed.md
shows the keys. `packed.record_format` tells how a record is packed. What was never written reads as
zeros, so **a record of zeros is no record**: iteration, counts and groups leave it out.

A part gets its full length with the first write into it, by a BITFIELD that adds 0 to its last bit
and changes nothing in a part that exists: a server over-allocates a STRING that grows as ids
arrive. The size of parts follows the allocator: 2**14 records of two bytes and the string's header
are just more than 32 KiB and take 40; 16,376 fit, so that is the default. A part costs its length
even if it holds a single record: ids should be dense.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, Literal

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import shown
from shardkit.operations.commands import Argument, Columns
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Page,
    Stream,
    operation,
    pages,
    stream,
)
from shardkit.structures.base.arguments import check_integer, check_name
from shardkit.structures.base.check import Damage
from shardkit.structures.base.parameters import ChangeScope
from shardkit.structures.base.partitioned import (
    PARTS_AT_ONCE,
    ExpirableStructure,
    check_parameters,
    restore_parameters,
)
from shardkit.structures.packed.aggregates import Aggregator, RecordGroup
from shardkit.structures.packed.part_store import (
    IDS_AT_ONCE,
    PartStore,
    RecordLayout,
    bitfields,
    set_bits,
)
from shardkit.structures.packed.record_format import Fields, Record, RecordFormat, join_codes

# 32 KiB less a string's header: the most that the allocator's 32 KiB have room for.
DEFAULT_PART_BYTES = 2**15 - 16
MAX_PART_BYTES = 2**29  # the servers' limit for a STRING, and for BITFIELD's offsets
WRITES_AT_ONCE = 10_000
FIELDS_AT_ONCE = 8_000
# Bytes that one exchange reads.
SCAN_BYTES = 2**17
AGGREGATE_BYTES = 2**21

Overflow = Literal["wrap", "sat", "fail"]


class PackedRecords(ExpirableStructure[Face]):
    """Fixed-width records by id, over one server or many. Made by ``kit.packed``.

    Args:
        driver, component, name: see `shardkit.operations.Structure`.
        fields: the type of each field of a record, in order, ``{"country": "u8", "score": "i32"}``.
            Or the name of a preset: ``flag``, ``postal``, ``position16``, ``position24``.
        part_size: the records of a part. By default as many as take 32 KiB with the header.

    Attributes:
        format: encodes and decodes records.
        part_size, part_bytes: the records, and bytes, of a part.
        store: reads and writes packed records.

    Ids are integers, 0 to 2**63 - 1. Errors and the first call: see `shardkit.structures`; the
    first write of this object into a part costs one more exchange, to register the part.
    """

    deferred: DeferredFace[PackedRecords[Deferred]]

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
            part_size = DEFAULT_PART_BYTES * 8 // bits // 8 * 8
        check_integer(name, "part_size", part_size, 1, MAX_PART_BYTES * 8 // bits)
        if part_size * bits % 8:
            raise InvalidArgumentError(
                f"{name}: part_size={part_size} records of {bits} bits are not whole bytes",
                f"give a multiple of {8 // bits}",
            )
        super().__init__(
            driver, component, name, {"fields": self.format.spec, "part_size": part_size}
        )
        self.part_size = part_size
        layout = RecordLayout(bits, part_size)
        self.part_bytes = layout.part_bytes
        self.store = PartStore(component, name, layout, self.meta)
        self.meta.data_keys = lambda: [
            (component, key) for key in (self.store.registry.key, self.part_key(0))
        ]

    def place(self, record_id: int) -> tuple[str, int]:
        """Return the key of a record's part, and its first bit there. No exchange."""
        part, index = divmod(self.store.check_id(record_id), self.part_size)
        return self.part_key(part), index * self.format.bits

    @operation
    def set(
        self, record_id: int, record: Record | None = None, /, **fields: Any
    ) -> Operation[None]:
        """Write a record, or some fields of it, in one step. Cost: one exchange; O(1).

        ``record`` has values by field, ``fields`` the same as keywords. Others keep their values.
        """
        if isinstance(record, Mapping):
            fields = {**record, **fields}
        elif record is not None:
            self.format.refuse(record)
        yield from self._write(self.store.pairs([(record_id, fields)]))

    @operation
    def set_many(
        self, records: Mapping[int, Record] | Iterable[tuple[int, Record]]
    ) -> Operation[None]:
        """Write records, or some fields of each, 10,000 records an exchange.

        Each record is written in one step, not all of them. ``records`` has values by field, by id;
        or is any iterable of pairs. If an id comes twice, later values replace earlier ones.

        Cost: one exchange for 10,000 records, or 8,000 fields where not all of a record are given;
        a command for each row of neighbours, and one for all others of a part.
        """
        for page in pages(self.store.pairs(records), WRITES_AT_ONCE):
            yield from self._write(page)

    def _write(self, records: Iterable[tuple[int, Record]]) -> Operation[None]:
        """Write some thousand records, in one exchange if they are not of many fields each."""
        whole: dict[int, int] = {}
        partial: dict[int, dict[int, tuple[int, int, int]]] = {}
        for record_id, record in records:
            codes = self.format.codes(record)
            if len(codes) == len(self.format.fields):
                whole[record_id] = join_codes(codes)
                partial.pop(record_id, None)
            elif record_id in whole:
                for field, code in codes:
                    others = whole[record_id] & ~(field.mask << field.shift)
                    whole[record_id] = others | code << field.shift
            else:
                partial.setdefault(record_id, {}).update(
                    (field.offset, (field.offset, field.type.bits, code)) for field, code in codes
                )
        most = max(map(len, partial.values()), default=1)
        # No script sets more bits than a server does in 20 ms, even if all are in one part.
        for page in [*pages(partial.items(), max(1, FIELDS_AT_ONCE // most))] or [[]]:
            fields = {record_id: [*changes.values()] for record_id, changes in page}
            by_part = self.store.layout.write_commands(whole, fields)
            whole = {}
            yield from self.store.write(by_part)

    @operation
    def get(self, record_id: int) -> Operation[dict[str, Any]]:
        """Return a record by field; zeros where nothing was written. Cost: one exchange."""
        return self.format.unpack((yield from self.store.read_one(record_id)))

    @operation
    def get_field(self, record_id: int, field: str) -> Operation[Any]:
        """Return one field of a record. Cost: one exchange."""
        wanted = self.format.field(field)
        return wanted.type.decode(wanted.code_in((yield from self.store.read_one(record_id))))

    @operation
    def get_many(self, ids: Iterable[int]) -> Operation[dict[int, dict[str, Any]]]:
        """Return records by id, in the order given; zeros where nothing was written.

        Cost: one exchange for 1,000 ids; a command for each row of near ones.
        """
        records: dict[int, dict[str, Any]] = {}
        for page in pages(ids, IDS_AT_ONCE):
            codes = yield from self.store.read(page)
            records |= {record_id: self.format.unpack(codes[record_id]) for record_id in page}
        return records

    @operation
    def increment(
        self, record_id: int, field: str, amount: int = 1, overflow: Overflow = "wrap"
    ) -> Operation[int | None]:
        """Add to an integer field, in one step; return its new value. Cost: one exchange; O(1).

        Args:
            record_id: the record's id.
            field: an integer field.
            amount: the number to add.
            overflow: the result of a sum that does not fit: ``wrap`` wraps around, ``sat`` stores
                the greatest or least value, ``fail`` leaves the field unchanged and returns None.
        """
        sums = yield from self.deferred.increment_many([(record_id, amount)], field, overflow)
        return sums[record_id]

    @operation
    def increment_many(
        self,
        amounts: Mapping[int, int] | Iterable[tuple[int, int]],
        field: str,
        overflow: Overflow = "wrap",
    ) -> Operation[dict[int, int | None]]:
        """Add to an integer field of many records, each in one step; return new values by id.

        ``amounts`` has the numbers to add, by id, or pairs of both; for the others see `increment`.

        Cost: one exchange for 10,000 records, one command a part.
        """
        target = self.format.field(field)
        if not target.type.is_integer:
            raise InvalidArgumentError(
                f"{self.name}: {field} is {target.type.spec} and cannot be added to",
                "increment integers",
            )
        if overflow not in ("wrap", "sat", "fail"):
            raise InvalidArgumentError(
                f"{self.name}: overflow={shown(overflow)}", "give wrap, sat or fail"
            )
        checked = list(self.store.pairs(amounts))
        for _, amount in checked:
            check_integer(self.name, "amount", amount, -(2**63), 2**63 - 1)
        sums: dict[int, Any] = {}
        for page in pages(checked, WRITES_AT_ONCE):
            ids: dict[int, list[int]] = {}
            args: dict[int, list[Argument]] = {}
            for record_id, amount in page:
                part, index = divmod(record_id, self.part_size)
                at = index * self.format.bits + target.offset
                ids.setdefault(part, []).append(record_id)
                args.setdefault(part, []).extend(("INCRBY", target.type.spec, at, amount))
            how = ("OVERFLOW", overflow.upper())
            replies = yield from self._bitfields(args, *how, idempotent=False)
            for part, values in replies.items():
                sums.update(zip(ids[part], values, strict=True))
        for record_id, total in sums.items():
            if isinstance(total, list):  # the upper bits, and the lower 32
                sums[record_id] = target.type.decode(total[0] << 32 | total[1])
        return sums

    def _bitfields(
        self, args: Mapping[int, Sequence[Argument]], *first: Argument, **how: bool
    ) -> Operation[dict[int, list[Any]]]:
        """Send BITFIELDs with these arguments; return the replies, by part."""
        parts = {part: [*bitfields(words, *first)] for part, words in args.items()}
        replies = yield from self.store.write(parts, replies=True, **how)
        return {part: [*chain(*values)] for part, values in replies.items()}

    @operation
    def remove(self, *ids: int) -> Operation[int]:
        """Set records to zeros; return how many were not. Parts are neither created nor removed.

        Cost: one exchange for 10,000 ids, fewer of wide records; one command a part.
        """
        removed, bits = 0, self.format.bits
        # A record that is wider than BITFIELD's integers takes several of them.
        width = len(set_bits(0, bits, 0)) // 4
        for page in pages(dict.fromkeys(map(self.store.check_id, ids)), WRITES_AT_ONCE // width):
            args: dict[int, list[Argument]] = {}
            for record_id in page:
                part, index = divmod(record_id, self.part_size)
                args.setdefault(part, []).extend(set_bits(index * bits, bits, 0))
            for old in (yield from self._bitfields(args, create=False)).values():
                removed += sum(any(old[n : n + width]) for n in range(0, len(old), width))
        return removed

    @stream
    def scan_iter(self) -> Stream[tuple[int, dict[str, Any]]]:
        """Iterate over ids and records that are not zeros, in the order of ids.

        Cost: an exchange for every 128 KiB.
        """
        unpack, layout = self.format.unpack, self.store.layout
        for blocks in (yield from self.store.blocks(SCAN_BYTES)):
            replies = yield from self.store.read_ranges(blocks)
            for block, data in zip(blocks, replies, strict=True):
                records = enumerate(layout.split(data), block.ids[0])
                yield Page((record_id, unpack(code)) for record_id, code in records if code)

    @operation
    def highest(self) -> Operation[int | None]:
        """Return the highest id whose record is not zeros; None if there is none.

        Cost: an exchange for the parts that exist, and one for each block of 256 KiB, from the
        last.
        """
        layout = self.store.layout
        for [block] in reversed((yield from self.store.blocks(1))):
            [data] = yield from self.store.read_ranges([block])
            last = (len(data.rstrip(b"\0")) - 1) // layout.size * layout.size
            if last >= 0:
                ends = layout.block(
                    block.part, block.first + last, block.first + last + layout.size
                )
                entries = layout.extract(ends, data[last : last + layout.size])
                return max(record_id for record_id, code in entries if code)
        return None

    @operation
    def count(self, flag: str | None = None, ids: Iterable[int] | None = None) -> Operation[int]:
        """Return how many records are not zeros, or have a flag set.

        Args:
            flag: a field of one bit.
            ids: only these records; a repeated id counts again.

        Cost: as `aggregate`. Records of one bit are counted by their servers: one BITCOUNT a part,
        two exchanges for every 1,000 parts.
        """
        if flag is not None and self.format.field(flag).type.bits != 1:
            raise InvalidArgumentError(
                f"{self.name}: {flag} is {self.format.field(flag).type.spec}, not a flag",
                "use group_by, which counts by value",
            )
        if self.format.bits == 1 and ids is None:
            total = 0
            for parts in pages((yield from self.store.parts()), PARTS_AT_ONCE):
                keys = [self.part_key(part) for part in parts]
                yield from self.store.verify_lengths(parts)
                total += sum((yield Columns(self.component, "BITCOUNT", keys)))
            return total
        if flag is None:
            return (yield from self.deferred.aggregate(ids=ids)).count
        groups = yield from self.deferred.group_by(flag, ids=ids)
        return groups[1].count if 1 in groups else 0

    @operation
    def aggregate(self, *totals: str, ids: Iterable[int] | None = None) -> Operation[RecordGroup]:
        """Count the records that are not zeros, and return the totals of their fields.

        They are sum, minimum and maximum of each field, none without records.

        Args:
            totals: fields to total: integers (exact) or floats.
            ids: only these records; a repeated id counts again.

        Cost: everything is read, an exchange for every 2 MiB, in blocks of at most 256 KiB; for ids
        an exchange for every 1,000. With numpy some nanoseconds a record.
        """
        groups = (yield from self._aggregate((), totals, ids)).groups()
        return groups.get((), RecordGroup(0, {}))

    @operation
    def group_by(
        self, *by: str, totals: Sequence[str] = (), ids: Iterable[int] | None = None
    ) -> Operation[dict[Any, RecordGroup]]:
        """Return counts by the values of fields (tuples of several), and totals of other fields.

        Args:
            by: one field, or several that have at most 64 bits together: no floats.
            totals: fields to add up, see `aggregate`.
            ids: take only these records.

        Cost: as `aggregate`. The groups are in the order of their bits.
        """
        if not by or isinstance(totals, str):
            raise InvalidArgumentError(
                f"{self.name}: group_by{shown(by)}, totals={shown(totals)}",
                "name at least one field to group by, and give totals as a list of names",
            )
        groups = (yield from self._aggregate(by, totals, ids)).groups()
        return {key[0]: group for key, group in groups.items()} if len(by) == 1 else groups

    def _aggregate(
        self, by: Sequence[str], totals: Sequence[str], ids: Iterable[int] | None
    ) -> Operation[Aggregator]:
        aggregator = aggregator_class()(self.name, self.format, self.store.layout, by, totals)
        if ids is not None:
            for page in pages(ids, IDS_AT_ONCE):
                codes = yield from self.store.read(page)
                aggregator.add(self.store.layout.join([codes[record_id] for record_id in page]))
            return aggregator
        for blocks in (yield from self.store.blocks(AGGREGATE_BYTES)):
            aggregator.add(b"".join((yield from self.store.read_ranges(blocks))))
        return aggregator

    def _restore_index(self) -> Operation[None]:
        yield from self.store.restore_registry()

    @stream
    def check(self) -> Stream[Damage]:
        """Yield the damage of the parts' lengths and of their register; change nothing.

        Any bits are a record. Cost: one command per part, an exchange for every 1,000.
        """
        yield from check_parameters(self.meta)
        yield from self.store.check()

    @operation
    def rebuild(self) -> Operation[int]:
        """Repair what `check` finds and can be repaired; return the number of parts.

        Existing parts among the first 1,024 are registered. A short part is filled with zeros, a
        long one is cut, and a key of another type is removed. Do not write at the same time.

        Cost: as `check`, and an exchange for the parts that are repaired.
        """
        yield from restore_parameters(self.meta)
        yield from self.store.restore_registry()
        return (yield from self.store.restore_lengths())

    def _send_to_all(self, generation: ChangeScope, name: str, *args: Argument) -> Operation[int]:
        return self.store.send_to_all(generation, name, *args)

    def _reset(self) -> None:
        self.store.registry.reset()
        self.meta.checked = False


def aggregator_class() -> type[Aggregator]:
    """Return the aggregator on arrays if numpy is installed, else the plain one."""
    try:
        from shardkit.structures.packed.numpy_aggregates import ArrayAggregator
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        return Aggregator
    return ArrayAggregator
