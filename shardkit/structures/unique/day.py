"""A day's visitors, as each precision keeps them. Only steps; `UniqueVisitors` decides which day.

::

    Day                     what UniqueVisitors asks of a day
    ├── PartedDay           ids in parts, and a count beside them
    │   ├── SetDay          SETs: exact, 60-bit
    │   │   └── CompactDay  SETs of 32-bit integers: compact
    │   └── BitmapDay       `shardkit.structures.unique.bitmap_day`
    └── HyperLogLogDay      `shardkit.structures.unique.hyperloglog_day`

Where a part and the count live on one server, a script adds ids and counts the new ones in one
step. Where they do not, the count is raised after the ids were certainly added as new.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from shardkit.errors import ShardFailure
from shardkit.lua import script
from shardkit.operations.commands import (
    Argument,
    Columns,
    Command,
    Home,
    Locate,
    Partial,
    Shard,
    raise_failures,
    script_call,
)
from shardkit.operations.operation import Operation, Page, Stream, pages
from shardkit.routing.partition import Partition
from shardkit.structures.base.parameters import Metadata, open_all
from shardkit.structures.base.partitioned import PARTS_AT_ONCE
from shardkit.structures.unique.precision import MEMBER_BITS, Id, Stored, called

# Ids as they are sent, by the key of their part.
IdsByKey: TypeAlias = Mapping[str, Sequence[Argument]]

IDS_A_SCRIPT = 1000  # Lua's unpack takes some 8,000
PARTS_LISTED = 256  # whose ids are in memory at the same time

_LOWEST = -(2 ** (MEMBER_BITS - 1))
_MASK = 2**MEMBER_BITS - 1


class VisitorPlace(NamedTuple):
    """Where a visitor's id lives.

    Attributes:
        id: what the visitor is counted as: a number, or with ``exact`` and ``hyperloglog`` the
            session.
        part: the number of the part; 0 where a day has only one key.
        key: the part's key.
        shard: where it lives.
    """

    id: Id
    part: int
    key: str
    shard: Shard


class Day(ABC):
    """A day's visitors.

    Args:
        component: its shards hold the ids; its entry, if it has one, the count.
        key: the key of the count: ``unique:2015-05-17``.

    Attributes:
        expected: how many visitors it is planned for; None where nothing is planned.
    """

    expected: int | None = None

    def __init__(self, component: str, key: str) -> None:
        self.component = component
        self.key = key
        self.home = Home(component)

    @abstractmethod
    def add(self, visitors: Sequence[Stored]) -> Operation[int]:
        """Add visitors, some thousands, and count them; return how many were new."""

    @abstractmethod
    def held(self) -> Operation[int | None]:
        """Return how many visitors the day's own data says there were; None without data."""

    @abstractmethod
    def place(self, visitor: Stored) -> tuple[Id, int, str]:
        """Return a visitor's id, part, and the part's key."""

    def locate(self, visitor: Stored) -> Operation[VisitorPlace]:
        """Return where a visitor's id lives."""
        id_, part, key = self.place(visitor)
        [(shard, _)] = yield Locate([(self._target(), key)])
        return VisitorPlace(id_, part, key, shard)

    @abstractmethod
    def ids(self) -> Stream[Id]:
        """Iterate over the ids."""

    @abstractmethod
    def remove(self, name: str, *args: Argument) -> Operation[int]:
        """Send UNLINK or EXPIRE to everything but the count; return the replies' sum."""

    def _target(self) -> str | Home:
        return self.component


class PartedDay(Day):
    """Ids in parts, ``unique:2015-05-17:<part>``, and a count beside them.

    Attributes:
        sizing: the command that counts a part's ids.
    """

    sizing: str

    def part_key(self, part: int) -> str:
        """Return the key of a part."""
        return f"{self.key}:{part}"

    @abstractmethod
    def kept(self, visitor: Stored) -> tuple[int, Argument]:
        """Return a visitor's part, and its id as it is sent to it."""

    @abstractmethod
    def opened(self, parts: Iterable[int]) -> Operation[None]:
        """Get ready to write to parts."""

    @abstractmethod
    def parts_there(self) -> Operation[Sequence[int] | None]:
        """Return which parts there may be; None if there never were any."""

    @property
    @abstractmethod
    def beside(self) -> str:
        """The key that says which parts there are: removed last."""

    @abstractmethod
    def listed(self, part: int, reply: Any) -> Iterable[Id]:
        """Return the ids of a part from what `reading` was replied."""

    @abstractmethod
    def reading(self, part: int) -> Command:
        """Return the command that reads a part's ids."""

    @abstractmethod
    def adding(self, ids: IdsByKey) -> Iterable[Command]:
        """Return commands that add ids to parts, and reply how many were new."""

    @abstractmethod
    def counting(self, ids: IdsByKey) -> Iterable[Command]:
        """Return commands that also count them; parts and count live on one server."""

    def add(self, visitors: Sequence[Stored]) -> Operation[int]:
        """Add visitors and raise the count by those that were new.

        Cost: one exchange; two for new ones when the count lives on another server.
        """
        parts: dict[int, list[Argument]] = {}
        for visitor in visitors:
            part, sent = self.kept(visitor)
            parts.setdefault(part, []).append(sent)
        yield from self.opened(parts)
        by_key = {self.part_key(part): sent for part, sent in parts.items()}
        count_at, *places = yield Locate(
            [(self.home, self.key), *((self.component, key) for key in by_key)]
        )
        if all(place == count_at for place in places):
            return int(sum((yield list(self.counting(by_key)))))
        replies = yield Partial(self.adding(by_key))
        added: int = sum(reply for reply in replies if not isinstance(reply, ShardFailure))
        if added:
            raising = Command(self.home, self.key, ("INCRBY", self.key, added))
            replies += yield Partial([raising])
        raise_failures(replies)  # only now that what succeeded is counted
        return added

    def held(self) -> Operation[int | None]:
        """Count the ids of all parts. Cost: one command a part, an exchange for 1,000."""
        there = yield from self.parts_there()
        held = 0
        for page in pages(there or (), PARTS_AT_ONCE):
            held += sum((yield [self._read(self.sizing, part) for part in page]))
        return None if there is None and not held else held

    def ids(self) -> Stream[Id]:
        """Iterate over the ids, part by part. Cost: an exchange for 256 parts."""
        for page in pages((yield from self.parts_there()) or (), PARTS_LISTED):
            replies = yield [self.reading(part) for part in page]
            for part, reply in zip(page, replies, strict=True):
                yield Page(self.listed(part, reply))

    def remove(self, name: str, *args: Argument) -> Operation[int]:
        """Send a command to every part, and last to what says which there are."""
        total = 0
        for page in pages((yield from self.parts_there()) or (), PARTS_AT_ONCE):
            keys = [self.part_key(part) for part in page]
            total += sum((yield Columns.each(self.component, name, keys, *args)))
        key = self.beside
        [last] = yield [Command(self.component, key, (name, key, *args))]
        return int(total + last)

    def _read(self, name: str, part: int, *args: Argument) -> Command:
        key = self.part_key(part)
        return Command(self.component, key, (name, key, *args), None, True)


class SetDay(PartedDay):
    """Ids in SETs, as many as were planned: ``exact`` and ``60-bit``.

    Args:
        component, key: see `Day`.
        expected: how many visitors it is planned for.
        parts: how many parts that makes.
        meta: the parameters, stored with the first id.
        partition: the part of an id as it is sent.
    """

    sizing = "SCARD"
    expected: int

    def __init__(
        self,
        component: str,
        key: str,
        expected: int,
        parts: int,
        meta: Metadata,
        partition: Partition,
    ) -> None:
        super().__init__(component, key)
        self.expected = expected
        self.parts = parts
        self.meta = meta
        self._partition = partition

    @property
    def beside(self) -> str:
        """The key of the parameters."""
        return self.meta.key

    def kept(self, visitor: Stored) -> tuple[int, Argument]:
        """Return a visitor's part and member."""
        sent = b"%d" % visitor if isinstance(visitor, int) else visitor
        return self._partition(sent), sent

    def place(self, visitor: Stored) -> tuple[Id, int, str]:
        """See `Day.place`."""
        part, _ = self.kept(visitor)
        return called(visitor), part, self.part_key(part)

    def opened(self, parts: Iterable[int]) -> Operation[None]:
        """Store the parameters, or compare them."""
        yield from open_all([self.meta], create=True)

    def parts_there(self) -> Operation[Sequence[int] | None]:
        """Return all parts that were planned."""
        yield from open_all([self.meta])
        return range(self.parts)

    def held(self) -> Operation[int | None]:
        """Count the ids of all parts."""
        held = yield from super().held()
        return held if held or self.meta.checked else None

    def adding(self, ids: IdsByKey) -> Iterable[Command]:
        """Return a SADD for each part."""
        for key, sent in ids.items():
            yield Command(self.component, key, ("SADD", key, *sent))

    def counting(self, ids: IdsByKey) -> Iterable[Command]:
        """Return calls of a script, each for many parts: a call takes longer than an id."""
        keys, args = [self.key], list[Argument]()
        for key, sent in ids.items():
            for page in [sent] if len(sent) <= IDS_A_SCRIPT else pages(sent, IDS_A_SCRIPT):
                if args and len(args) + len(page) >= IDS_A_SCRIPT:
                    yield script_call(
                        self.home, script("structures/unique/add_and_count"), keys, args
                    )
                    keys, args = [self.key], []
                keys.append(key)
                args += (len(page), *page)
        yield script_call(self.home, script("structures/unique/add_and_count"), keys, args)

    def reading(self, part: int) -> Command:
        """Return the command that reads a part's ids."""
        return self._read("SMEMBERS", part)

    def listed(self, part: int, reply: Any) -> Iterable[Id]:
        """Return the ids of a part from its members."""
        kind = self.meta.parameters["members"]
        return map(int, reply) if kind == "int" else map(called, reply)


class CompactDay(SetDay):
    """Ids in SETs of which a part's number is the upper half: ``compact``."""

    def kept(self, visitor: Stored) -> tuple[int, Argument]:
        """Return a visitor's part and member, as `shardkit.structures.unique.precision` draws."""
        number = int(visitor)
        return (number >> MEMBER_BITS) % self.parts, b"%d" % ((number & _MASK) + _LOWEST)

    def place(self, visitor: Stored) -> tuple[Id, int, str]:
        """See `Day.place`."""
        number = int(visitor) % (self.parts << MEMBER_BITS)
        part = number >> MEMBER_BITS
        return number, part, self.part_key(part)

    def listed(self, part: int, reply: Any) -> Iterable[Id]:
        """Return the ids of a part from its members."""
        first = (part << MEMBER_BITS) - _LOWEST
        return (first + int(member) for member in reply)
