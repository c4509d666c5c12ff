"""A planned number of parts: ``<name>:0`` to ``<name>:<count - 1>``.

The structure may be replanned (`shardkit.structures.layouts.replan`). The parts of its second
plan are ``<name>:plan2:0`` and so on. A method reads the plan once: another call may change it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from shardkit.operations.commands import Argument, Columns, Command, Reply, raise_failures
from shardkit.operations.operation import Operation
from shardkit.routing.placement import Partition, PartitionAll, part_count, partition_of_all
from shardkit.structures.base.arguments import hashed_partition
from shardkit.structures.base.parameters import ChangeScope, Metadata
from shardkit.structures.base.partitioned import PARTS_AT_ONCE
from shardkit.structures.base.writes import send_to_parts
from shardkit.structures.layouts.base import (
    BareMembers,
    Build,
    Chunk,
    Layout,
    T,
    grouped,
    members_of,
    write_parts,
)

# A structure with members has one in these, unless it has fewer members than parts.
PARTS_PROBED = 64


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts of a planned structure.

    Attributes:
        number: how often it was planned.
        prefix: of the keys of its parts.
        count: how many parts there are, of members that are hashed.
        part_of: returns the part of a member.
        parts_of: returns the parts of members.
    """

    number: int
    prefix: str
    count: int
    part_of: Partition
    parts_of: PartitionAll


class Parts(list[int]):
    """Numbers of parts; ``plan`` has them."""

    def __init__(self, numbers: Iterable[int], plan: Plan) -> None:
        super().__init__(numbers)
        self.plan = plan


class FixedLayout(Layout):
    """Parts whose number, computed from ``total`` and ``part_size``, is planned."""

    def __init__(self, component: str, name: str, rule: str, total: int, part_size: int) -> None:
        self.component = component
        self._name, self.rule, self.part_size = name, rule, part_size
        self.plan = self.planned(1, total)

    def planned(self, number: int, total: int) -> Plan:
        """Return a plan for a total."""
        part_of = hashed_partition(self._name, self.rule, total, self.part_size)  # checks them
        prefix = self._name if number == 1 else f"{self._name}:plan{number}"
        count = part_count(total, self.part_size)
        parts_of = partition_of_all(self.rule, total, self.part_size)
        return Plan(number, prefix, count, part_of, parts_of)

    def follow(self, number: int, total: int) -> None:
        """Have another plan from now on."""
        self.plan = self.planned(number, total)

    @property
    def count(self) -> int:
        """The number of parts."""
        return self.plan.count

    @property
    def first_key(self) -> str:
        """The key of the first part."""
        return self.key(0)

    def part_of(self, member: bytes) -> int:
        """Return the number of a member's part."""
        return self.plan.part_of(member)

    def holds(self, part: int, stored: bytes) -> bool:
        """Return whether a stored member belongs to a part."""
        return self.plan.part_of(stored) == part

    def key(self, part: int) -> str:
        """Return the key of a part."""
        return f"{self.plan.prefix}:{part}"

    def command(self, part: int, name: str, *args: Argument) -> Command:
        """Return a command for a part."""
        return self.at(self.key(part), name, *args)

    def read_one(self, name: str, member: bytes, *args: Argument) -> Operation[Reply]:
        """See `Layout.read_one`."""
        plan = self.plan
        key = f"{plan.prefix}:{plan.part_of(member)}"
        [reply] = yield [self.at(key, name, member, *args)]
        return reply

    def read(
        self, members: Iterable[tuple[bytes, T]], build: Build[T]
    ) -> Operation[list[tuple[list[T], Reply]]]:
        """See `Layout.read`."""
        plan = self.plan
        groups = grouped(members, plan.parts_of)
        replies = yield [
            self.at(f"{plan.prefix}:{part}", *build(stored, owned))
            for part, (stored, owned) in groups.items()
        ]
        return [(owned, r) for (_, owned), r in zip(groups.values(), replies, strict=True)]

    def bind(self, meta: Metadata) -> None:
        """See `Layout.bind`."""
        super().bind(meta)
        meta.leased, meta.follow = True, self.follow

    def write(
        self, members: Iterable[tuple[bytes, T]], build: Build[T], *, adds: bool = True
    ) -> Operation[list[tuple[list[T], Reply]]]:
        """See `Layout.write`."""
        assert self.meta is not None
        done: list[tuple[list[T], Reply]] = []
        bare = isinstance(members, BareMembers)
        while True:
            yield from self.meta.wait_for_plan()
            plan = self.plan
            groups = grouped(members, plan.parts_of).items()
            sent = ((f"{plan.prefix}:{n}", stored, owned) for n, (stored, owned) in groups)
            written, left, failures = yield from write_parts(
                self.meta, self.component, sent, build, plan=plan.number
            )
            done += written
            if not left:
                raise_failures(failures)
                return done
            members = members_of(left, bare=bare)

    def part_count(self) -> int:
        """See `Layout.part_count`."""
        return self.count

    def key_of(self, member: bytes) -> str:
        """See `Layout.key_of`."""
        plan = self.plan
        return f"{plan.prefix}:{plan.part_of(member)}"

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
        plan = self.plan
        for start in range(0, plan.count, size):
            yield Parts(range(start, min(start + size, plan.count)), plan)

    def read_parts(
        self, chunk: Sequence[int], name: str, *args: Argument
    ) -> Operation[list[tuple[int | None, Reply]]]:
        """See `Layout.read_parts`."""
        prefix = getattr(chunk, "plan", self.plan).prefix
        keys = [f"{prefix}:{part}" for part in chunk]
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
