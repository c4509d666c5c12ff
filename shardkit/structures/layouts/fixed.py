"""A fixed number of parts: ``<name>:0`` to ``<name>:<count - 1>``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from shardkit.operations.commands import Argument, Columns, Command, Reply
from shardkit.operations.operation import Operation
from shardkit.routing.partition import part_count, partition_of_all
from shardkit.structures.base.parameters import ChangeScope, Metadata
from shardkit.structures.base.partition import hashed_partition
from shardkit.structures.base.partitioned import PARTS_AT_ONCE
from shardkit.structures.base.writes import send_to_parts
from shardkit.structures.layouts.base import Build, Chunk, Layout, T, grouped, write_parts

# A structure with members has one in these, unless it has fewer members than parts.
PARTS_PROBED = 64


class FixedLayout(Layout):
    """Parts whose number, computed from ``total`` and ``part_size``, never changes.

    Raises:
        InvalidArgumentError: an argument is out of range.
    """

    def __init__(self, component: str, name: str, rule: str, total: int, part_size: int) -> None:
        self._part_of = hashed_partition(name, rule, total, part_size)
        self._parts_of = partition_of_all(rule, total, part_size)
        self.count = part_count(total, part_size)
        self.component = component
        self._name = name

    @property
    def first_key(self) -> str:
        """The key of the first part."""
        return self.key(0)

    def part_of(self, member: bytes) -> int:
        """Return the number of a member's part."""
        return self._part_of(member)

    def holds(self, part: int, stored: bytes) -> bool:
        """Return whether a stored member belongs to a part."""
        return self._part_of(stored) == part

    def key(self, part: int) -> str:
        """Return the key of a part."""
        return f"{self._name}:{part}"

    def command(self, part: int, name: str, *args: Argument) -> Command:
        """Return a command for a part."""
        key = self.key(part)
        return Command(self.component, key, (name, key, *args))

    def read_one(self, name: str, member: bytes, *args: Argument) -> Operation[Reply]:
        """See `Layout.read_one`."""
        key = f"{self._name}:{self._part_of(member)}"
        [reply] = yield [Command(self.component, key, (name, key, member, *args))]
        return reply

    def read(
        self, members: Iterable[tuple[bytes, T]], build: Build[T]
    ) -> Operation[list[tuple[list[T], Reply]]]:
        """See `Layout.read`."""
        groups = grouped(members, self._parts_of)
        replies = yield [
            self.command(part, *build(stored, owned))  # type: ignore[arg-type]
            for part, (stored, owned) in groups.items()
        ]
        return [(owned, r) for (_, owned), r in zip(groups.values(), replies, strict=True)]

    def bind(self, meta: Metadata) -> None:
        """See `Layout.bind`."""
        super().bind(meta)
        meta.leased = True

    def write(
        self, members: Iterable[tuple[bytes, T]], build: Build[T], *, adds: bool = True
    ) -> Operation[list[tuple[list[T], Reply]]]:
        """See `Layout.write`."""
        assert self.meta is not None
        groups = grouped(members, self._parts_of).items()
        sent = ((self.key(part), stored, owned) for part, (stored, owned) in groups)
        return (yield from write_parts(self.meta, self.component, sent, build))

    def part_count(self) -> int:
        """See `Layout.part_count`."""
        return self.count

    def key_of(self, member: bytes) -> str:
        """See `Layout.key_of`."""
        return self.key(self._part_of(member))

    def part_keys(self) -> Iterator[str]:
        """See `Layout.part_keys`."""
        return map(self.key, range(self.count))

    def data_keys(self) -> Iterable[str]:
        """See `Layout.data_keys`: some parts."""
        return map(self.key, range(0, self.count, -(-self.count // PARTS_PROBED)))

    def refresh(self) -> Operation[None]:
        """See `Layout.refresh`: the parts never change."""
        yield from ()

    def chunks(self, size: int) -> Iterator[Chunk]:
        """See `Layout.chunks`: ranges of parts."""
        for start in range(0, self.count, size):
            yield range(start, min(start + size, self.count))

    def read_parts(
        self, chunk: Sequence[int], name: str, *args: Argument
    ) -> Operation[list[tuple[int | None, Reply]]]:
        """See `Layout.read_parts`."""
        keys = list(map(self.key, chunk))
        replies = yield Columns.each(self.component, name, keys, *args)
        return [(None, reply) for reply in replies]

    def send_to_all(self, generation: ChangeScope, name: str, *args: Argument) -> Operation[int]:
        """See `Layout.send_to_all`."""
        assert self.meta is not None
        total = 0
        for chunk in self.chunks(PARTS_AT_ONCE):
            keys = list(map(self.key, chunk))
            total += yield from send_to_parts(self.meta, generation, name, keys, *args)
        return total
