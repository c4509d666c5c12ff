"""The interface of a layout: where members live, and how to read, write and draw them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from random import SystemRandom
from typing import Any, TypeAlias, TypeVar

from shardkit.errors import ShardFailure
from shardkit.operations.commands import (
    WRITE_PART,
    Argument,
    Command,
    Partial,
    Replies,
    Reply,
    script_call,
)
from shardkit.operations.lua import script
from shardkit.operations.operation import Operation
from shardkit.routing.placement import PartitionAll
from shardkit.structures.base.parameters import ChangeScope, Metadata
from shardkit.structures.base.part_registry import PartRegistry
from shardkit.structures.base.partitioned import PARTS_AT_ONCE
from shardkit.structures.base.writes import REFUSED, WRITTEN, PartReply, PlanChanged, settled_writes

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


class BareMembers(list[Any]):
    """Members without owned values, for `Layout.write`: those of a set.

    A pair for each would double the memory, and keep the garbage collector busy for a quarter of
    the time of a bulk load.
    """


class Layout(ABC):
    """The places of members, and how to read and write them there.

    A caller may pass an owned value with each member, such as the field of a hash as the user wrote
    it.
    """

    component: str
    meta: Metadata | None = None

    def bind(self, meta: Metadata) -> None:
        """Set the parameters that the structure was created with."""
        self.meta = meta

    def at(self, key: str, name: Any, *args: Argument) -> Command:
        """Return a command for a key."""
        return Command(self.component, key, (name, key, *args))

    @property
    @abstractmethod
    def first_key(self) -> str:
        """The key of the first part."""

    @abstractmethod
    def read_one(self, name: str, member: bytes, *args: Argument) -> Operation[Reply]:
        """Send a command that reads one member: ``name key member args…``.

        Cost: one exchange, in nearly every case.
        """

    @abstractmethod
    def read(
        self, members: Iterable[tuple[bytes, T]], build: Build[T]
    ) -> Operation[list[tuple[list[T], Reply]]]:
        """Send a reading command to every part that has some of the members.

        Returns:
            For each part the owned values of its members, and the reply; in no order.

        Cost: one exchange, in nearly every case; one command a part.
        """

    @abstractmethod
    def write(
        self, members: Iterable[tuple[bytes, T]], build: Build[T], *, adds: bool = True
    ) -> Operation[list[tuple[list[T], Reply]]]:
        """Send a writing command to every part that has some of the members; see `read`."""

    @abstractmethod
    def part_count(self) -> int:
        """Return the number of parts that members fall into at random, as last read."""

    def pages(
        self, members: Iterable[Any], total: int | None = None, *, bare: bool = False
    ) -> Iterator[list[Any]]:
        """Cut many members into pages to `write`.

        A page grows with the number of parts, so that a command carries dozens of members: each
        costs a server little more than one with a single member.
        """
        rest = iter(members)
        while True:
            page: list[Any] = BareMembers() if bare else []
            size = min(self._page_size(), MOST_OF_PAGE if bare else MOST_PAIRS)
            room = MOST_PAGE_BYTES
            while room > 0 and (some := list(islice(rest, min(SIZED_AT_ONCE, size - len(page))))):
                page += some
                if bare:
                    room -= sum(map(len, some))
                else:
                    room -= sum([len(member) for member, _ in some])
                    room -= sum([len(v) for _, v in some if isinstance(v, str | bytes)])
            if not page:
                return
            yield page

    def _page_size(self) -> int:
        return max(PAGE, self.part_count() * MEMBERS_PER_PART)

    @abstractmethod
    def key_of(self, member: bytes) -> str:
        """Return the key of a member's part, as last read."""

    @abstractmethod
    def part_keys(self) -> Iterator[str]:
        """Return the keys of all parts, as last read."""

    @abstractmethod
    def data_keys(self) -> Iterable[str]:
        """Return keys of which at least one exists if there are members, in nearly every case."""

    @abstractmethod
    def refresh(self) -> Operation[None]:
        """Read which parts exist now, for `chunks`. Cost: at most one exchange."""

    @abstractmethod
    def chunks(self, size: int) -> Iterator[Chunk]:
        """Cut all parts into chunks of at most ``size``, in a fixed order."""

    @abstractmethod
    def read_parts(
        self, chunk: Chunk, name: str, *args: Argument
    ) -> Operation[list[tuple[int | None, Reply]]]:
        """Send a reading command, ``name key args…``, to every part of a chunk.

        If parts split at the same time, the replies are of all parts that then hold the members of
        the chunk, each member once.

        Returns:
            For each part the number that `member` needs, or None, and the reply.

        Cost: one exchange, in nearly every case.
        """

    @abstractmethod
    def send_to_all(self, generation: ChangeScope, name: str, *args: Argument) -> Operation[int]:
        """Send UNLINK, PERSIST or PEXPIREAT to all parts and the keys of their state.

        Returns:
            The sum of the replies.

        Cost: one command a part, an exchange for every 1,000.
        """

    def member(self, part: int | None, stored: bytes) -> bytes:
        """Return the whole member that a part stores."""
        return stored

    def verify(self, found: int) -> Operation[None]:
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
    groups: Iterable[tuple[str, list[bytes], list[T]]],
    build: Build[T],
    registry: PartRegistry | None = None,
    numbers: Mapping[str, int] | None = None,
    plan: int = 1,
) -> Operation[tuple[list[tuple[list[T], Reply]], list[tuple[str, list[bytes], list[T]]], Replies]]:
    """Write to parts that are keys of their own; settle those that were created.

    With a ``registry``, the parts' ``numbers`` are registered before.

    Returns:
        For each part the owned values of its members, and the reply, in no order. Then the
        ``groups`` that are not written, because the structure has another plan now; and in that
        case all replies, for failures.

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
            some, its = members[at : at + MEMBERS_PER_SCRIPT], owned[at : at + MEMBERS_PER_SCRIPT]
            writes.append((key, some, its, build(some, its)))
    lua = script(WRITE_PART)
    first = None
    if len(writes) == 1 and (registry is None or not registry.unseen((numbers or {}).values())):
        [(key, _, its, sent)] = writes  # the usual case, in fewer steps
        [(state, *rest)] = yield [script_call(component, lua, [key], (meta.end, *sent))]
        if state == WRITTEN:
            return [(its, rest[0])], [], Replies()
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
    left: list[tuple[str, list[bytes], list[T]]] = []
    failures = Replies()
    try:
        results = yield from settled_writes(meta, keys, send, registry, numbers, first, plan)
    except PlanChanged as change:
        results, failures = change.results, change.replies
        left = [writes[at][:3] for at in change.left]
    return [(writes[at][2], reply) for at, reply in results.items()], left, failures


def members_of(
    groups: Iterable[tuple[str, list[bytes], list[T]]], *, bare: bool
) -> list[tuple[bytes, T]]:
    """Return the members of groups with their owned values; see `grouped`."""
    if bare:
        return BareMembers(member for _, members, _ in groups for member in members)
    return [pair for _, members, owned in groups for pair in zip(members, owned, strict=True)]


def grouped(
    members: Iterable[tuple[bytes, T]], parts_of: PartitionAll
) -> dict[int, tuple[list[bytes], list[T]]]:
    """Return members and their owned values by part; bare members have no values."""
    if isinstance(members, BareMembers):
        bare: defaultdict[int, list[bytes]] = defaultdict(list)
        for part, member in zip(parts_of(members), members, strict=True):
            bare[part].append(member)
        return {part: (some, []) for part, some in bare.items()}
    pairs = members if isinstance(members, list) else list(members)
    together: defaultdict[int, list[tuple[bytes, T]]] = defaultdict(list)
    for part, pair in zip(parts_of([member for member, _ in pairs]), pairs, strict=True):
        together[part].append(pair)
    return {
        part: ([member for member, _ in pairs], [owned for _, owned in pairs])
        for part, pairs in together.items()
    }


# It has no state that forked processes would share.
_RANDOM = SystemRandom()


def random_members(
    layout: Layout, size: str, command: str, number: int, *args: Argument
) -> Operation[list[tuple[int | None, Reply]]]:
    """Draw random members: choose parts by their sizes, then members within each.

    ``size`` is the command for a part's size, such as SCARD; ``command`` draws from one part, such
    as SRANDMEMBER. A negative ``number`` draws independently, so that members may repeat.

    Returns:
        Parts, as `Layout.read_parts`, with the reply of the command.

    Cost: one command per part, an exchange for every 1,000 parts; then an exchange or a few.
    """
    sizes: list[int] = []
    parts: list[Any] = []
    yield from layout.refresh()
    for chunk in layout.chunks(PARTS_AT_ONCE):
        replies = yield from layout.read_parts(chunk, size)
        if len(replies) == len(chunk):  # else parts split in between: start again
            parts += chunk
            sizes += (members for _, members in replies)
        else:
            return (yield from random_members(layout, size, command, number, *args))
    total = sum(sizes)
    if not total:
        return []
    if number < 0:
        drawn = _RANDOM.choices(range(len(parts)), sizes, k=-number)
    else:
        drawn = _RANDOM.sample(range(len(parts)), min(number, total), counts=sizes)
    times: defaultdict[int, int] = defaultdict(int)
    for n in drawn:
        times[n] += 1
    alike: defaultdict[tuple[int, type], list[Any]] = defaultdict(list)
    for n, count in times.items():
        alike[count, type(parts[n])].append(parts[n])
    results: list[tuple[int | None, Reply]] = []
    for (count, _), chunk in alike.items():
        sign = -count if number < 0 else count
        results += yield from layout.read_parts(chunk, command, sign, *args)
    return results
