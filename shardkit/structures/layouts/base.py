"""The interface of a layout: where members live, and how to read, write and draw them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeAlias, TypeVar

from shardkit.errors import ShardFailure
from shardkit.operations.commands import (
    WRITE_PART,
    Argument,
    Columns,
    Command,
    Partial,
    Replies,
    Reply,
    raise_failures,
    script_call,
)
from shardkit.operations.lua import script
from shardkit.operations.operation import Operation
from shardkit.routing.placement import Partition, PartitionAll, part_count, partition_of_all
from shardkit.structures.base.arguments import hashed_partition
from shardkit.structures.base.parameters import ChangeScope, Metadata
from shardkit.structures.base.partitioned import PARTS_AT_ONCE
from shardkit.structures.base.writes import (
    REFUSED,
    WRITTEN,
    PartRegistry,
    PartReply,
    PlanChanged,
    send_to_parts,
    settled_writes,
)

T = TypeVar("T")

MEMBERS_PER_SCRIPT = 1000

# Some parts that one exchange visits. Its content is private to the layout.
Chunk: TypeAlias = Sequence[Any]
# Members that a bulk load sends at once: the least, for each part, the most (of pairs, of bare
# members, which take less memory), and their bytes.
PAGE, MEMBERS_PER_PART, MOST_PAIRS, MOST_OF_PAGE = 10_000, 64, 200_000, 500_000
MOST_PAGE_BYTES = 32 * 2**20
SIZED_AT_ONCE = 100
# Builds a part's command, without the key, from its members as stored and the owned value of each.
Build: TypeAlias = Callable[[list[bytes], list[T]], tuple[Argument, ...]]
# Members with their owned values; the same by part, and by a part's key.
Pairs: TypeAlias = Iterable[tuple[bytes, T]]
ByPart: TypeAlias = dict[int, tuple[list[bytes], list[T]]]
Group: TypeAlias = tuple[str, list[bytes], list[T]]
# For each part that was sent to: the owned values of its members, and the reply.
Done: TypeAlias = list[tuple[list[T], Reply]]
# For each part the number that `member` needs, or None, and the reply.
PartReplies: TypeAlias = list[tuple[int | None, Reply]]


class BareMembers(list[Any]):
    """Members without owned values, for `FixedLayout.write`: those of a set.

    A pair for each would double the memory, and keep the garbage collector busy in a bulk load.
    """


class LayoutBase(ABC):
    """What the layouts have in common. All have the methods that `FixedLayout` documents.

    A caller may pass an owned value with each member, such as the field as the user wrote it.
    """

    component: str
    meta: Metadata | None = None

    def bind(self, meta: Metadata) -> None:
        """Set the parameters that the structure was created with."""
        self.meta = meta

    def at(self, key: str, name: Any, *args: Argument) -> Command:
        """Return a command for a key."""
        return Command(self.component, key, (name, key, *args))

    @abstractmethod
    def part_count(self) -> int:
        """Return the number of parts that members fall into at random, as last read."""

    def pages(
        self, members: Iterable[Any], total: int | None = None, *, bare: bool = False
    ) -> Iterator[list[Any]]:
        """Cut many members into pages to `write`, which grow with the number of parts."""
        rest = iter(members)
        while True:
            page: list[Any] = BareMembers() if bare else []
            size = min(self._page_size(), MOST_OF_PAGE if bare else MOST_PAIRS)
            room = MOST_PAGE_BYTES
            while room > 0 and (added := list(islice(rest, min(SIZED_AT_ONCE, size - len(page))))):
                page += added
                if bare:
                    room -= sum(map(len, added))
                else:
                    room -= sum([len(member) for member, _ in added])
                    room -= sum([len(v) for _, v in added if isinstance(v, str | bytes)])
            if not page:
                return
            yield page

    def _page_size(self) -> int:
        return max(PAGE, self.part_count() * MEMBERS_PER_PART)

    def member(self, part: int | None, stored: bytes) -> bytes:
        """Return the whole member that a part stores."""
        return stored

    def verify(self, members: int) -> Operation[None]:
        """Compare the number of members that a visit to all parts read with the stored number.

        Cost: none if it is the same as at `refresh`; else one exchange.
        """
        yield from ()

    def reset(self) -> None:
        """Drop cached state after the structure is deleted."""
        return


def write_parts(
    meta: Metadata,
    component: str,
    groups: Iterable[Group[T]],
    build: Build[T],
    registry: PartRegistry | None = None,
    numbers: Mapping[str, int] | None = None,
    plan: int = 1,
) -> Operation[tuple[Done[T], list[Group[T]], Replies]]:
    """Write to parts that are keys of their own; settle those that were created.

    With a ``registry``, the parts' ``numbers`` are registered before. Returns also the ``groups``
    that are not written, because the structure has another plan now; and then all replies, for
    failures.

    Cost: one exchange; two more if parts were created.
    """
    # The key, the members, their owned values, and the command. A bulk load makes thousands of
    # them: each copy of the members that is not made saves 2% of its time.
    writes: list[tuple[str, list[bytes], list[T], tuple[Argument, ...]]] = []
    for key, members, owned in groups:
        if len(members) <= MEMBERS_PER_SCRIPT:
            writes.append((key, members, owned, build(members, owned)))
            continue
        for at in range(0, len(members), MEMBERS_PER_SCRIPT):
            page, items = members[at : at + MEMBERS_PER_SCRIPT], owned[at : at + MEMBERS_PER_SCRIPT]
            writes.append((key, page, items, build(page, items)))
    lua = script(WRITE_PART)
    first = None
    if len(writes) == 1 and (registry is None or not registry.unseen((numbers or {}).values())):
        [(key, _, items, sent)] = writes  # the usual case, in fewer steps
        [(state, *rest)] = yield [script_call(component, lua, [key], (meta.end, *sent))]
        if state == WRITTEN:
            return [(items, rest[0])], [], Replies()
        first = PartReply(0, state, None if state == REFUSED else rest[0], rest[-1])

    def send(waiting: Sequence[int]) -> Operation[tuple[Replies, list[PartReply]]]:
        end = meta.end
        calls = [
            script_call(component, lua, [key], chain((end,), sent))
            for key, _, _, sent in map(writes.__getitem__, waiting)
        ]
        # The failure of a single command is raised unchanged.
        replies = (yield calls) if len(calls) == 1 else (yield Partial(calls))
        return replies, [
            PartReply(at, REFUSED, None, reply[1]) if reply[0] == REFUSED else PartReply(at, *reply)
            for at, reply in zip(waiting, replies, strict=True)
            if not isinstance(reply, ShardFailure)
        ]

    keys = {at: key for at, (key, *_) in enumerate(writes)}
    left: list[Group[T]] = []
    failures = Replies()
    try:
        results = yield from settled_writes(meta, keys, send, registry, numbers, first, plan)
    except PlanChanged as change:
        results, failures = change.results, change.replies
        left = [writes[at][:3] for at in change.left]
    return [(writes[at][2], reply) for at, reply in results.items()], left, failures


def members_of(groups: Iterable[Group[T]], *, bare: bool) -> list[tuple[bytes, T]]:
    """Return the members of groups with their owned values; see `grouped`."""
    if bare:
        return BareMembers(member for _, members, _ in groups for member in members)
    return [pair for _, members, owned in groups for pair in zip(members, owned, strict=True)]


def by_part(rows: Iterable[tuple[int, bytes, T]]) -> ByPart[T]:
    """Return members and their owned values by part, from rows of a part and both."""
    groups: ByPart[T] = defaultdict(lambda: ([], []))
    for part, member, owned in rows:
        members, values = groups[part]
        members.append(member)
        values.append(owned)
    return groups


def grouped(members: Pairs[T], parts_of: PartitionAll) -> ByPart[T]:
    """Return members and their owned values by part; bare members have no values."""
    if isinstance(members, BareMembers):
        bare: defaultdict[int, list[bytes]] = defaultdict(list)
        for part, member in zip(parts_of(members), members, strict=True):
            bare[part].append(member)
        return {part: (members, []) for part, members in bare.items()}
    pairs = members if isinstance(members, list) else list(members)
    together: defaultdict[int, list[tuple[bytes, T]]] = defaultdict(list)
    for part, pair in zip(parts_of([member for member, _ in pairs]), pairs, strict=True):
        together[part].append(pair)
    return {
        part: ([member for member, _ in pairs], [owned for _, owned in pairs])
        for part, pairs in together.items()
    }


# A structure with members has one in these, unless it has fewer members than parts.
PARTS_PROBED = 64


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts of a planned structure."""

    number: int  # how often it was planned
    prefix: str  # of the keys of its parts
    count: int  # of parts of members that are hashed
    part_of: Partition  # returns the part of a member
    parts_of: PartitionAll


class Parts(list[int]):
    """Numbers of parts; ``plan`` has them."""

    def __init__(self, numbers: Iterable[int], plan: Plan) -> None:
        super().__init__(numbers)
        self.plan = plan


class FixedLayout(LayoutBase):
    """Parts whose number, computed from ``total`` and ``part_size``, is planned.

    They are ``<name>:0`` and so on; those of a second plan (`layouts.replan`) ``<name>:plan2:0``. A
    method reads the plan once: another call may change it.
    """

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
        """Send ``name key member args…``, which reads. Cost: one exchange, nearly always."""
        [reply] = yield [self.at(self.key_of(member), name, member, *args)]
        return reply

    def read(self, members: Pairs[T], build: Build[T]) -> Operation[Done[T]]:
        """Send a reading command to every part that has some of the members; in no order.

        Cost: one exchange, in nearly every case; one command a part.
        """
        plan = self.plan
        groups = grouped(members, plan.parts_of)
        replies = yield [
            self.at(f"{plan.prefix}:{part}", *build(stored, owned))
            for part, (stored, owned) in groups.items()
        ]
        return [(owned, r) for (_, owned), r in zip(groups.values(), replies, strict=True)]

    def bind(self, meta: Metadata) -> None:
        """See `LayoutBase.bind`."""
        super().bind(meta)
        meta.leased, meta.follow = True, self.follow

    def write(self, members: Pairs[T], build: Build[T], *, adds: bool = True) -> Operation[Done[T]]:
        """Send a writing command to every part that has some of the members; see `read`."""
        assert self.meta is not None
        done: Done[T] = []
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
        """See `LayoutBase.part_count`."""
        return self.count

    def key_of(self, member: bytes) -> str:
        """Return the key of a member's part, as last read."""
        plan = self.plan
        return f"{plan.prefix}:{plan.part_of(member)}"

    def part_keys(self) -> Iterator[str]:
        """Return the keys of all parts, as last read."""
        return map(self.key, range(self.count))

    def data_keys(self) -> Iterable[str]:
        """Return keys of which at least one exists if there are members, nearly always."""
        return map(self.key, range(0, self.count, -(-self.count // PARTS_PROBED)))

    def refresh(self) -> Operation[None]:
        """Read which parts exist now, for `chunks`. Cost: at most one exchange."""
        yield from ()

    def chunks(self, size: int) -> Iterator[Chunk]:
        """Cut all parts into chunks of at most ``size``, in a fixed order."""
        plan = self.plan
        for start in range(0, plan.count, size):
            yield Parts(range(start, min(start + size, plan.count)), plan)

    def read_parts(
        self, chunk: Sequence[int], name: str, *args: Argument
    ) -> Operation[PartReplies]:
        """Send a reading command, ``name key args…``, to every part of a chunk.

        If parts split at the same time, the replies are of all parts that then hold the members of
        the chunk, each member once. Cost: one exchange, in nearly every case.
        """
        prefix = getattr(chunk, "plan", self.plan).prefix
        keys = [f"{prefix}:{part}" for part in chunk]
        replies = yield Columns.each(self.component, name, keys, *args)
        return [(None, reply) for reply in replies]

    def send_to_all(self, generation: ChangeScope, name: str, *args: Argument) -> Operation[int]:
        """Send UNLINK, PERSIST or PEXPIREAT to all parts and their state; return the replies' sum.

        Cost: one command a part, an exchange for every 1,000.
        """
        assert self.meta is not None
        total = 0
        for chunk in self.chunks(PARTS_AT_ONCE):
            keys = list(map(self.key, chunk))
            total += yield from send_to_parts(self.meta, generation, name, keys, *args)
        return total
