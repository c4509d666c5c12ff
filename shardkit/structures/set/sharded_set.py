r"""A large SET as many small ones, each compact on its server.

A server keeps a SET of integers as an *intset*, a sorted array, as long as it has at most
``set-max-intset-entries`` members (512 by default); a larger one becomes a hash table. So a set is
kept in parts, which split as they fill (`shardkit.structures.layouts.growing`)::

    visitors:meta    HASH  kind=set groups=64 part_size=512 members=int
    visitors:{37}    HASH  parts=9 count=2702          the state of one group of parts
    visitors:{37}:0  SET   {17, 90210, …}              some 300 members, never more than 512
      ⋮
    visitors:{37}:8

or, when it is told how many members there will be, in parts whose number never changes::

    visitors:meta    HASH  kind=set total=1000000 part_size=512 partition=crc32 members=int
    visitors:0       SET   {17, 90210, …}              each about half full: 2 * total // part_size
      ⋮                                                parts, and CRC-32 of the member decides which
    visitors:3905

    an intset of 64-bit members, as the server holds it:
    ┌──────────┬──────────┬────────┬────────┬───┬────────┐
    │ width: 8 │ count: n │ m₁     │ m₂     │ … │ mₙ     │   8 + 8·n bytes
    │ 4 bytes  │ 4 bytes  │ 8      │ 8      │   │ 8      │
    └──────────┴──────────┴────────┴────────┴───┴────────┘

One million ids of 60 bits take 72.4 bytes each in one SET of Redis 7.0, and 9.4 in parts of 512
(52.0 and 8.4 on Valkey 9.1); larger parts save little more. Sets of text are kept in parts as well,
of 128: Redis from 7.2 on, and Valkey, have a compact form for text too, with a limit of its own,
``set-max-listpack-entries``.

Members are always hashed, numbers too, because the integers of a set are rarely in sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic

from shardkit.encodings.limits import FORMS, warn_if_not_compact
from shardkit.errors import InvalidArgumentError, ParameterMismatchError
from shardkit.operations.commands import Key
from shardkit.operations.operation import (
    Deferred,
    Driver,
    Face,
    Operation,
    Page,
    Stream,
    operation,
    pages,
    stream,
)
from shardkit.routing.partition import part_count
from shardkit.structures.base.arguments import check_integer, check_name, shown
from shardkit.structures.base.members import M, Members
from shardkit.structures.base.parameters import differences, open_all
from shardkit.structures.base.partition import MOST_MEMBERS, hashed_partition
from shardkit.structures.base.partitioned import PARTS_AT_ONCE
from shardkit.structures.layouts import GROUPS, FixedLayout, GrowingLayout, check_groups
from shardkit.structures.layouts.structure import StructureWithLayout
from shardkit.structures.set import algebra

DEFAULT_PART_SIZE = 512
DEFAULT_PART_SIZE_OF_TEXT = 128
MEMBERS_AT_ONCE = 10_000
# Members of so many parts are in memory at a time.
PARTS_READ = 256

# By what its members are: the servers' compact form.
_FORMS: dict[type, str] = {int: "intset", str: "set", bytes: "set"}


class ShardedSet(StructureWithLayout[Face], Generic[Face, M]):
    """A SET in parts, over one server or many. Made by ``kit.set``.

    Args:
        driver: what runs its operations.
        component: where its keys live.
        name: the prefix of its keys.
        total: about how many members it will have, when its parts shall be so many for ever; more
            is not an error: parts then outgrow their compact form, and take more memory. None:
            parts split as they fill.
        part_size: how many members a part may have to be compact: the servers'
            ``set-max-intset-entries``, or for text ``set-max-listpack-entries``. By default theirs:
            512, or 128. A larger one than the server's is logged as a warning.
        members: int, str or bytes: what its members are, and come back as.
        rule: the partition's name, if ``total`` is given; see `shardkit.routing.partition`.
        groups: how many groups of parts grow by themselves, if ``total`` is not given: a power of
            two, as many as shards or more. A set of few members wants few groups.

    Attributes:
        total, part_size: as given, or the default.

    Raises:
        InvalidArgumentError: an argument is out of range.

    Every operation costs one more exchange the first time, for comparing the parameters.
    """

    kind: ClassVar[str] = "set"

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str,
        total: int | None = None,
        part_size: int | None = None,
        members: type[M] = str,  # type: ignore[assignment]  # kit.set has the exact overloads
        rule: str = "crc32",
        groups: int = GROUPS,
    ) -> None:
        check_name(name)
        self._members: Members[M] = Members(members, name)
        if part_size is None:
            part_size = FORMS[_FORMS[members]].usual[0]
        self.total = total
        self.part_size = part_size
        self.layout: FixedLayout | GrowingLayout
        if total is None:
            check_integer(name, "part_size", part_size, 1, MOST_MEMBERS)
            check_groups(name, groups)
            self.layout = GrowingLayout(component, name, "SET", part_size, groups)
            parameters: dict[str, object] = {"groups": groups, "part_size": part_size}
        else:
            part_of = hashed_partition(name, rule, total, part_size)
            self.layout = FixedLayout(component, name, part_of, part_count(total, part_size))
            parameters = {"total": total, "part_size": part_size, "partition": rule}
        super().__init__(driver, component, name, {**parameters, "members": members.__name__})

    @property
    def deferred(self) -> ShardedSet[Deferred, M]:
        """This set with the face whose calls return steps, for ``yield from`` and ``together``."""
        return self._deferred()  # type: ignore[return-value]

    @property
    def parts(self) -> int:
        """How many parts it has.

        Raises:
            InvalidArgumentError: its parts split as they fill.
        """
        return self._fixed().count

    def part_of(self, member: Key) -> int:
        """Return the number of a member's part. No exchange.

        Raises:
            InvalidArgumentError: the member does not fit, or the parts split as they fill.
        """
        return self._fixed().part_of(self._members.encode(member))

    def key_of(self, member: Key) -> str:
        """Return the key that holds a member; see `part_of`. No exchange."""
        return self.part_key(self.part_of(member))

    def by_key(self, members: Iterable[Key]) -> dict[str, list[bytes]]:
        """Return members, as they are sent, by the key that holds them. No exchange.

        Raises:
            InvalidArgumentError: a member does not fit, or the parts split as they fill.
        """
        part_of, encode = self._fixed().part_of, self._members.encode
        groups: dict[int, list[bytes]] = {}
        for member in members:
            sent = encode(member)
            groups.setdefault(part_of(sent), []).append(sent)
        return {self.part_key(part): group for part, group in groups.items()}

    @operation
    def sadd(self, *members: Key) -> Operation[int]:
        """Add members.

        Args:
            members: integers, text or bytes, as the set's ``members`` says. Of none, nothing is
                added, and nothing created.

        Returns:
            How many were new.

        Raises:
            InvalidArgumentError: a member does not fit; nothing was added then.
            ParameterMismatchError: the set exists with other parameters.
            ShardErrors: shards failed; members of the others were added.

        Cost: one exchange, one command a part. O(1) a member.
        """
        sent = self._encoded(members)
        if not sent:
            return 0
        yield from self._open(create=True)
        replies = yield from self.layout.write(sent, lambda some, _: ("SADD", *some))
        return sum(added for _, added in replies)

    @operation
    def sadd_many(self, members: Iterable[Key]) -> Operation[int]:
        """Add any number of members, 10,000 an exchange; return how many were new.

        Args:
            members: any iterable of them, also a generator: it is read as they are sent.

        Raises:
            InvalidArgumentError: a member does not fit; earlier pages were added by then.
            ParameterMismatchError: the set exists with other parameters.
            ShardErrors: shards failed; members of the others, and earlier pages, were added.
        """
        if isinstance(members, str | bytes):
            raise InvalidArgumentError(
                f"{self.name}: sadd_many({shown(members)}) would add its characters",
                "give an iterable of members, or use sadd",
            )
        added = 0
        for page in pages(members, MEMBERS_AT_ONCE):
            added += yield from self.deferred.sadd(*page)
        return added

    @operation
    def srem(self, *members: Key) -> Operation[int]:
        """Remove members; return how many were there. Cost: as `sadd`."""
        sent = self._encoded(members)
        if not sent:
            return 0
        yield from self._open()
        replies = yield from self.layout.write(sent, lambda some, _: ("SREM", *some), adds=False)
        return sum(removed for _, removed in replies)

    @operation
    def sismember(self, member: Key) -> Operation[bool]:
        """Return whether a member is in the set. Cost: one exchange."""
        sent = self._members.encode(member)
        yield from self._open()
        return bool((yield from self.layout.read_one("SISMEMBER", sent)))

    @operation
    def smismember(self, *members: Key) -> Operation[list[bool]]:
        """Return for each member whether it is in the set. Cost: one exchange."""
        encode = self._members.encode
        asked = [(encode(member), n) for n, member in enumerate(members)]
        if not asked:
            return []
        yield from self._open()
        replies = yield from self.layout.read(asked, lambda some, _: ("SMISMEMBER", *some))
        there = [False] * len(asked)
        for positions, flags in replies:
            for n, flag in zip(positions, flags, strict=True):
                there[n] = bool(flag)
        return there

    @operation
    def scard(self) -> Operation[int]:
        """Return how many members there are.

        Cost: one exchange, one command a group; if ``total`` was given one command a part, an
        exchange for every 1,000 parts.
        """
        yield from self._open()
        if isinstance(self.layout, GrowingLayout):
            return (yield from self.layout.count()) or 0
        count = 0
        for chunk in self.layout.chunks(PARTS_AT_ONCE):
            count += sum(held for _, held in (yield from self.layout.read_parts(chunk, "SCARD")))
        return count

    @stream
    def smembers(self) -> Stream[M]:
        """Iterate over the members, part by part; each that is there throughout comes once.

        The set may be written to meanwhile: what is added or removed may come or not.

        Cost: one command a part, an exchange for every 256 parts, whose members are in memory.
        """
        yield from self._open()
        yield from self.layout.refresh()
        for chunk in self.layout.chunks(PARTS_READ):
            for _, members in (yield from self.layout.read_parts(chunk, "SMEMBERS")):
                yield self._page(members)

    @stream
    def sinter(self, *others: ShardedSet[Any, M]) -> Stream[M]:
        """Iterate over the members that are in this set and in all others.

        Args:
            others: sets with the same parameters, of any component of this kit. None: the members
                of this set.

        Raises:
            InvalidArgumentError: one is no sharded set.
            ParameterMismatchError: a set has other parameters.

        Cost: one command a part (one a part and set, where parts do not live together, or split as
        they fill), an exchange for every 256 parts.
        """
        layouts = yield from self._alike([self, *others])
        yield from algebra.combined("SINTER", layouts, self._members.decode)

    @stream
    def sunion(self, *others: ShardedSet[Any, M]) -> Stream[M]:
        """Iterate over the members that are in any of the sets; see `sinter`."""
        layouts = yield from self._alike([self, *others])
        yield from algebra.combined("SUNION", layouts, self._members.decode)

    @stream
    def sdiff(self, *others: ShardedSet[Any, M]) -> Stream[M]:
        """Iterate over the members that are in none of the others; see `sinter`."""
        layouts = yield from self._alike([self, *others])
        yield from algebra.combined("SDIFF", layouts, self._members.decode)

    @operation
    def sinterstore(self, *sources: ShardedSet[Any, M]) -> Operation[int]:
        """Make this set the intersection of others; it may be one of them.

        Each part is replaced in one step (each group of parts, where they split as they fill), none
        is left over; a reader may see old parts beside new ones meanwhile. What is added meanwhile
        to this set may be lost.

        Args:
            sources: at least one set with this set's parameters.

        Returns:
            How many members this set has now.

        Raises:
            InvalidArgumentError: no source was given, or one is no sharded set.
            ParameterMismatchError: a set has other parameters.
            ShardErrors: shards failed; some parts are replaced by then. Do it again: it gives what
                it would have given.

        Cost: one command a part, or where parts do not live together two exchanges for every 256
        parts; where they split as they fill, that of reading and adding all members.
        """
        return (yield from self._store("SINTER", sources))

    @operation
    def sunionstore(self, *sources: ShardedSet[Any, M]) -> Operation[int]:
        """Make this set the union of others; see `sinterstore`."""
        return (yield from self._store("SUNION", sources))

    @operation
    def sdiffstore(self, *sources: ShardedSet[Any, M]) -> Operation[int]:
        """Make this set the first of others less all following ones; see `sinterstore`.

        When it failed half-way and this set is one of those taken away, do not do it again: parts
        that were replaced would be taken away in place of what they were.
        """
        return (yield from self._store("SDIFF", sources))

    def _open(self, *, create: bool = False) -> Operation[None]:
        if self.meta.checked:
            return
        yield from super()._open(create=create)
        form = _FORMS[self._members.kind]
        if create and self.part_size > FORMS[form].usual[0]:
            first = self.layout.first_key
            size = self.part_size
            yield from warn_if_not_compact(self.component, first, form, size, self.name)

    def _alike(
        self, sets: Sequence[ShardedSet[Any, M]]
    ) -> Operation[list[FixedLayout | GrowingLayout]]:
        """Return the layouts of sets that can be combined with this one; checks that they can."""
        for other in sets:
            if not isinstance(other, ShardedSet):
                raise InvalidArgumentError(
                    f"{self.name}: {shown(other)} is no sharded set",
                    "give sets as kit.set makes them, each as an argument",
                )
            if other.parameters != self.parameters:
                raise ParameterMismatchError(
                    f"{other.name!r} and {self.name!r} cannot be combined: "
                    f"{differences(other.parameters, self.parameters)}",
                    "only sets with the same parameters have the same members in the same parts",
                )
        yield from open_all([other.meta for other in sets])
        return [other.layout for other in sets]

    def _store(self, verb: str, sources: Sequence[ShardedSet[Any, M]]) -> Operation[int]:
        if not sources:
            raise InvalidArgumentError(
                f"{self.name}: {verb.lower()}store of no sets", "give at least one"
            )
        layouts = yield from self._alike(sources)
        yield from self._open(create=True)
        return (yield from algebra.store(verb, self.layout, layouts))

    def _encoded(self, members: Iterable[Key]) -> list[tuple[bytes, None]]:
        encode = self._members.encode
        return [(encode(member), None) for member in members]

    def _fixed(self) -> FixedLayout:
        if isinstance(self.layout, FixedLayout):
            return self.layout
        raise InvalidArgumentError(
            f"{self.name}: its parts split as they fill, so a member's part is not fixed",
            "make the set with a total",
        )

    def _page(self, members: Iterable[bytes]) -> Page[M]:
        return Page(map(self._members.decode, members))
