"""Reads and writes packed records, as integers, in the parts of one structure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from shardkit.errors import InvalidArgumentError, ShardFailure
from shardkit.lua import script
from shardkit.operations.commands import (
    Argument,
    Command,
    Partial,
    Replies,
    Transaction,
    raise_failures,
    script_call,
)
from shardkit.operations.operation import Operation, pages
from shardkit.structures.base.arguments import check_integer, shown
from shardkit.structures.base.damage import damage
from shardkit.structures.base.parameters import Metadata, confirm, open_all
from shardkit.structures.base.part_registry import PartRegistry
from shardkit.structures.base.partitioned import PARTS_AT_ONCE
from shardkit.structures.packed.addressing import RecordLayout

HIGHEST_ID = 2**63 - 1
IDS_AT_ONCE = 1000
BLOCK_BYTES = 2**18  # at most, of one GETRANGE

T = TypeVar("T")


class BlockRange(NamedTuple):
    """Whole records of a part: the part, the first and the last byte."""

    part: int
    first: int
    last: int


class PartStore:
    """The parts of one structure, shared by all its faces.

    Args:
        component: where its keys live.
        name: the prefix of its keys.
        layout: where records are in the parts.
        meta: its parameters.

    Attributes:
        registry: which parts exist.
    """

    def __init__(self, component: str, name: str, layout: RecordLayout, meta: Metadata) -> None:
        self.component = component
        self.name = name
        self.layout = layout
        self.meta = meta
        self.registry = PartRegistry(component, name)
        meta.leased = True
        self._complete: set[int] = set()  # parts known to have their full length

    def check_id(self, record_id: int) -> int:
        """Return an id.

        Raises:
            InvalidArgumentError: it is not an integer from 0 to 2**63 - 1.
        """
        if type(record_id) is not int or not 0 <= record_id <= HIGHEST_ID:
            check_integer(self.name, "id", record_id, 0, HIGHEST_ID)
        return record_id

    def pairs(self, values: Mapping[int, T] | Iterable[tuple[int, T]]) -> Iterator[tuple[int, T]]:
        """Yield checked ids with their values, as they are read.

        Raises:
            InvalidArgumentError: an id is invalid, or an item is not a pair.
        """
        items: Any = values.items() if isinstance(values, Mapping) else values
        for pair in items:
            try:
                record_id, value = pair
            except (TypeError, ValueError):
                raise InvalidArgumentError(
                    f"{self.name}: {shown(pair)} is not a pair", "give values by id, or pairs"
                ) from None
            if type(record_id) is not int or not 0 <= record_id <= HIGHEST_ID:
                self.check_id(record_id)
            yield record_id, value

    def read(self, ids: Iterable[int]) -> Operation[dict[int, int]]:
        """Return some thousand records by id. Cost: one exchange."""
        ranges = self.layout.read_ranges(map(self.check_id, ids))
        yield from open_all([self.meta])
        replies = (yield [self._get_range(*read[:3]) for read in ranges]) if ranges else []
        yield from self._check_lengths([BlockRange(*read[:3]) for read in ranges], replies)
        return {
            record_id: code
            for read, data in zip(ranges, replies, strict=True)
            for record_id, code in self.layout.extract(read, data)
        }

    def read_one(self, record_id: int) -> Operation[int]:
        """Return one record. Cost: one exchange."""
        layout = self.layout
        part, index = divmod(self.check_id(record_id), layout.part_size)
        first, bit = divmod(index * layout.bits, 8)
        yield from open_all([self.meta])
        wanted = BlockRange(part, first, first + layout.size - 1)
        [data] = yield [self._get_range(*wanted)]
        if len(data) < layout.size:
            yield from self._check_lengths([wanted], [data])
        code = int.from_bytes(data.ljust(layout.size, b"\0"))
        return code if layout.bits >= 8 else code >> (8 - layout.bits - bit) & layout.mask

    def write(
        self,
        records: Mapping[int, int],
        fields: Mapping[int, Sequence[tuple[int, int, int]]] | None = None,
    ) -> Operation[None]:
        """Write some thousand records; see `RecordLayout.write_commands`. Cost: one exchange."""
        by_part = self.layout.write_commands(records, fields or {})
        commands = [
            self.command(str(name), part, *args, idempotent=True)
            for part, part_commands in by_part.items()
            for name, *args in part_commands
        ]
        if commands:
            yield from self.send(commands, by_part)

    def send(self, commands: list[Command], parts: Iterable[int]) -> Operation[list[Any]]:
        """Send commands that write to parts, after creating them in full length; return replies.

        A part that others have removed meanwhile is shorter after the write than it should be, and
        is created again.
        """
        yield from open_all([self.meta], create=True)
        due, length = self.meta.due, self.layout.part_bytes
        wanted = list(parts)
        new = [part for part in wanted if part not in self._complete]
        if new:
            yield from self.registry.add(new, due)
            yield from self._check_parts(new)
        creation: list[Command | Transaction] = [self._create(part, due) for part in new]
        by_key: dict[str, list[int]] = {self.part_key(part): [] for part in wanted}
        for n, command in enumerate(commands):
            by_key[str(command.key)].append(n)
        lengths = [self.command("STRLEN", part, idempotent=True) for part in wanted]
        writing: list[Command | Transaction] = [
            Transaction(self.component, key, (held, *(commands[n] for n in its)))
            for (key, its), held in zip(by_key.items(), lengths, strict=True)
        ]
        replies: Replies = yield Partial(creation + writing)
        created = {part for part, was in zip(new, replies, strict=False) if was == 1}
        written: list[Any] = [None] * len(commands)
        short = []
        for part, its, reply in zip(wanted, by_key.values(), replies[len(new) :], strict=True):
            if not isinstance(reply, ShardFailure):
                if not isinstance(reply[0], ShardFailure) and reply[0] < length:
                    short.append(part)
                for n, answer in zip(its, reply[1:], strict=True):
                    written[n] = answer
        if short:
            yield [self._create(part, due) for part in short]
        if created or short:
            parts_ = [*created.union(short)]
            keys = [*map(self.part_key, parts_)]
            also = self.registry.add_again(parts_, due)
            undo = [self.command("UNLINK", part, idempotent=True) for part in parts_]
            yield from confirm(
                self.meta, keys, -1 if short else due, undo, also, replies, self.registry.key
            )
        raise_failures(replies)
        self._complete.update(new)
        return written

    def _create(self, part: int, due: int) -> Command:
        return script_call(
            self.component,
            script("structures/base/create_part"),
            [self.part_key(part)],
            [self.layout.part_bytes, due],
            idempotent=True,
        )

    def existing(self, parts: Iterable[int]) -> Operation[set[int]]:
        """Return those of some parts that exist. Cost: one exchange, or none if all are known."""
        wanted = set(parts)
        yield from open_all([self.meta])
        if wanted <= self._complete:
            return wanted
        return wanted & set((yield from self.registry.read()))

    def parts(self) -> Operation[list[int]]:
        """Return the parts that exist, in order. Cost: one exchange."""
        yield from open_all([self.meta])
        return (yield from self.registry.read())

    def blocks(self, most_bytes: int) -> Operation[list[list[BlockRange]]]:
        """Return all blocks, in order, in lists of so many bytes to read at once.

        No block cuts a record. Cost: one exchange.
        """
        parts = yield from self.parts()
        step = BLOCK_BYTES // self.layout.size * self.layout.size
        part_bytes = self.layout.part_bytes
        ranges = (
            BlockRange(part, first, min(first + step, part_bytes) - 1)
            for part in parts
            for first in range(0, part_bytes, step)
        )
        return list(pages(ranges, max(1, most_bytes // min(step, part_bytes))))

    def read_blocks(self, blocks: Sequence[BlockRange]) -> Operation[list[bytes]]:
        """Return what blocks hold, missing bytes of a last record as zeros. Cost: one exchange."""
        replies = yield [self._get_range(*block) for block in blocks]
        yield from self._check_lengths(blocks, replies)
        return list(map(self.layout.pad, replies))

    def _check_lengths(
        self, blocks: Sequence[BlockRange], replies: Sequence[bytes]
    ) -> Operation[None]:
        """Check parts of which less came than was asked for. Cost: one exchange, if there are any.

        A part that does not exist is one of zeros; one that exists has its full length.
        """
        short = {
            block.part
            for block, data in zip(blocks, replies, strict=True)
            if len(data) <= block.last - block.first
        }
        if short:
            yield from self._check_parts(sorted(short))

    def _check_parts(self, parts: Sequence[int]) -> Operation[None]:
        """Check that parts have their full length, or do not exist. Cost: one exchange."""
        lengths = yield [self.command("STRLEN", part, idempotent=True) for part in parts]
        full = self.layout.part_bytes
        for part, length in zip(parts, lengths, strict=True):
            if length not in (0, full):
                found, wanted = f"{length} bytes", f"{full} bytes"
                raise damage(self.component, self.part_key(part), found, wanted)

    def send_to_all(self, name: str, *args: Argument) -> Operation[int]:
        """Send a command to every part, then to the registry; return the sum."""
        total = 0
        for parts in pages((yield from self.parts()), PARTS_AT_ONCE):
            total += sum((yield [self.command(name, part, *args) for part in parts]))
        for key in (self.registry.key,):
            [affected] = yield [Command(self.component, key, (name, key, *args))]
            total += affected
        return total

    def reset(self) -> None:
        """Drop cached state after the structure is deleted."""
        self._complete.clear()
        self.registry.reset()
        self.meta.checked = False

    def part_key(self, part: int) -> str:
        """Return the key of a part."""
        return f"{self.name}:{part}"

    def command(self, name: str, part: int, *args: Argument, idempotent: bool = False) -> Command:
        """Return a command for a part."""
        key = self.part_key(part)
        return Command(self.component, key, (name, key, *args), None, idempotent)

    def _get_range(self, part: int, first: int, last: int) -> Command:
        return self.command("GETRANGE", part, first, last, idempotent=True)
