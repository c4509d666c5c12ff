r"""A large SET as many small ones, each compact on its server.

A server keeps a SET of integers as an *intset*, a sorted array, as long as it has at most
``set-max-intset-entries`` members (512 by default); a larger one becomes a hash table. So a set is
stored in parts, which split as they fill (`shardkit.structures.layouts.growing`)::

    visitors:meta    HASH  kind=set groups=64 part_size=512 members=int
    visitors:{37}    HASH  parts=9 count=2702          the state of one group of parts
    visitors:{37}:0  SET   {17, 90210, …}              some 300 members, never more than 512
      ⋮
    visitors:{37}:8

or, given the number of members to expect, in a fixed number of parts::

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
(42.5 and 8.4 on Valkey 9.1); larger parts save little more. Sets of text have parts of 128: Redis
from 7.2 on, and Valkey, have a compact form for text too, with a limit of its own,
``set-max-listpack-entries``.

Members are always hashed, numbers too, because the integers of a set are rarely in sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from functools import partial
from typing import Any, ClassVar, Generic, TypeAlias

from shardkit.errors import (
    DamagedDataError,
    InvalidArgumentError,
    ParameterMismatchError,
    StructureError,
)
from shardkit.operations.arguments import shown
from shardkit.operations.cancellation import completed
from shardkit.operations.commands import Argument, Key
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Page,
    Stream,
    operation,
    stream,
)
from shardkit.structures.base.arguments import MOST_MEMBERS, check_integer, check_some, list_or_args
from shardkit.structures.base.glob import glob_filter
from shardkit.structures.base.members import M, Members
from shardkit.structures.base.parameters import differences, open_all
from shardkit.structures.base.partitioned import PARTS_AT_ONCE
from shardkit.structures.encodings.limits import FORMS
from shardkit.structures.layouts.base import random_members
from shardkit.structures.layouts.fixed import FixedLayout
from shardkit.structures.layouts.growing import GROUPS, GrowingLayout, check_groups
from shardkit.structures.layouts.replan import plan_anew
from shardkit.structures.layouts.structure import StructureWithLayout
from shardkit.structures.set import algebra

DEFAULT_PART_SIZE = 512
MEMBERS_AT_ONCE = 10_000
# How many parts' members are in memory at a time.
PARTS_READ = 256
MOST_RANDOM = 100_000

# The servers' compact form by the type of members.
_FORMS: dict[type, str] = {int: "intset", str: "set", bytes: "set"}


_MOST_IN_VAIN = 10  # rounds in which nothing of what was drawn could be popped


def _sadd(members: Sequence[bytes], _: Any) -> tuple[Argument, ...]:
    return ("SADD", *members)


class ShardedSet(StructureWithLayout[Face], Generic[Face, M]):
    """A SET in parts, over one server or many. Made by ``kit.set``.

    Args:
        driver, component, name: see `shardkit.operations.Structure`.
        total: about how many members it will have, for a fixed number of parts. More are not an
            error: parts then outgrow their compact form, and take more memory. None: parts split as
            they fill.
        part_size: how many members a part may have to be compact: the servers'
            ``set-max-intset-entries``, 512, or for text ``set-max-listpack-entries``, 128, which
            are the defaults. A part size above the server's limit is logged as a warning.
        members: int, str or bytes: the type of its members.
        rule: the partition's name, with a ``total``; see `shardkit.routing.placement`.
        groups: how many groups of parts grow independently, without a ``total``: a power of two, at
            least the number of shards. Small sets need few groups.

    Attributes:
        total, part_size: the arguments, or the defaults.

    Calls raise InvalidArgumentError when an argument is invalid, ParameterMismatchError when the
    set exists with other parameters, and ShardErrors when shards fail. The first operation costs
    one more exchange, to check the parameters.
    """

    deferred: DeferredFace[ShardedSet[Deferred, M]]

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
        self._members: Members[M] = Members(members, name, self._find)
        if part_size is None:
            part_size = FORMS[_FORMS[members]].usual[0]
        self.part_size = self._largest_part = part_size
        self._form = _FORMS[members]
        self.layout: FixedLayout | GrowingLayout
        if total is None:
            check_integer(name, "part_size", part_size, 1, MOST_MEMBERS)
            check_groups(name, groups)
            self.layout = GrowingLayout(component, name, "SET", part_size, groups)
            parameters: dict[str, object] = {"groups": groups, "part_size": part_size}
        else:
            self.layout = FixedLayout(component, name, rule, total, part_size)
            parameters = {"total": total, "part_size": part_size, "partition": rule}
        super().__init__(driver, component, name, {**parameters, "members": members.__name__})
        if rule == "redis-in-action":  # that book's programs store no parameters
            self.meta.data_keys = None

    @property
    def total(self) -> int | None:
        """About how many members it is planned for; None if its parts split as they fill."""
        return int(self.parameters["total"]) if "total" in self.parameters else None

    @property
    def parts(self) -> int:
        """The number of parts.

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
        return self._fixed().key_of(self._members.encode(member))

    def by_key(self, members: Iterable[Key]) -> dict[str, list[bytes]]:
        """Return members, encoded as they are sent, by the key that holds them. No exchange.

        Raises:
            InvalidArgumentError: a member does not fit, or the parts split as they fill.
        """
        key_of, encode = self._fixed().key_of, self._members.encode
        groups: dict[str, list[bytes]] = {}
        for member in members:
            sent = encode(member)
            groups.setdefault(key_of(sent), []).append(sent)
        return groups

    @operation
    def sadd(self, *values: M) -> Operation[int]:
        """Add members.

        Args:
            values: integers, text or bytes, as the set's ``members`` says.

        Returns:
            How many were new.

        Raises:
            InvalidArgumentError: there is no member, or one does not fit; nothing was added.
            ShardErrors: shards failed; members of the others were added.

        Cost: one exchange, one command per part. O(1) for a member.
        """
        sent = self._encoded(values)
        check_some(self.name, "sadd", sent, "member")
        yield from self._open(create=True)
        replies = yield from self.layout.write(sent, lambda some, _: ("SADD", *some))
        return sum(added for _, added in replies)

    @operation
    def sadd_many(self, members: Iterable[M]) -> Operation[int]:
        """Add any number of members, 10,000 to 500,000 per exchange; return how many were new.

        Args:
            members: any iterable, such as a generator; it is read as they are sent.

        Raises:
            InvalidArgumentError: a member does not fit; earlier pages were added.
            ShardErrors: shards failed; members of the others, and earlier pages, were added.
        """
        if isinstance(members, str | bytes):
            raise InvalidArgumentError(
                f"{self.name}: sadd_many({shown(members)}) would add its characters",
                "give an iterable of members, or use sadd",
            )
        if not isinstance(members, Iterable):
            raise InvalidArgumentError(f"{self.name}: members={shown(members)}", "give a list")
        added = 0
        total = len(members) if isinstance(members, Sized) else None
        for page in self.layout.pages(self._members.encode_all(members), total, bare=True):
            yield from self._open(create=True)
            for _, new in (yield from self.layout.write(page, lambda some, _: ("SADD", *some))):
                added += new
        return added

    @operation
    def srem(self, *values: M) -> Operation[int]:
        """Remove members; return how many existed. Cost: as `sadd`."""
        sent = self._encoded(values)
        check_some(self.name, "srem", sent, "member")
        yield from self._open()
        replies = yield from self.layout.write(sent, lambda some, _: ("SREM", *some), adds=False)
        return sum(removed for _, removed in replies)

    @operation
    def spop(self, count: int | None = None) -> Operation[Any]:
        """Remove and return random members, each with the same probability.

        No member is returned to two callers.

        Args:
            count: how many; fewer are returned only if the set has fewer.

        Returns:
            A member, None if there is none; with ``count`` a set of members.

        Raises:
            ShardErrors: shards failed. Members on the others were removed, and are not returned:
                where that matters, pop one at a time.

        Cost: as `srandmember`, and an exchange.
        """
        wanted = 1 if count is None else count
        check_integer(self.name, "count", wanted, 0, MOST_RANDOM)
        put_back = partial(ShardedSet.sadd_many.steps, self)
        popped = yield from completed(self._popped(wanted), put_back)
        return popped if count is not None else next(iter(popped), None)

    def _popped(self, wanted: int) -> Operation[set[M]]:
        popped: set[bytes] = set()
        in_vain = 0
        while len(popped) < wanted:
            drawn = yield from self._random(wanted - len(popped))
            if not drawn:
                break
            if in_vain == _MOST_IN_VAIN:  # others would have taken them by now
                yield from self.layout.write([(m, None) for m in popped], _sadd)
                raise DamagedDataError(
                    self.name,
                    f"member {shown(drawn[0])} in a part that is not its own",
                    "only members of each part",
                    search=partial(self._find, drawn[0]),
                )
            replies = yield from self.layout.write(
                [(member, None) for member in drawn],
                lambda some, _: ("SPOP", len(some)),
                adds=False,
            )
            new = {member for _, some in replies for member in some}
            in_vain = 0 if new else in_vain + 1
            popped |= new
        try:
            return set(map(self._members.decode, popped))
        except DamagedDataError:  # it names the part that has the member
            yield from self.layout.write([(m, None) for m in popped], _sadd)
            raise

    @operation
    def srandmember(self, number: int | None = None) -> Operation[Any]:
        """Return random members, each with the same probability.

        Args:
            number: how many distinct ones, at most all; if negative, how many with repetition.

        Returns:
            A member, None if there is none; with ``number`` a list of members.

        Cost: one command per part, an exchange for every 1,000 parts, and a few for the members.
        """
        wanted = 1 if number is None else number
        check_integer(self.name, "number", wanted, -MOST_RANDOM, MOST_RANDOM)
        drawn = list(map(self._members.decode, (yield from self._random(wanted))))
        return drawn if number is not None else next(iter(drawn), None)

    @operation
    def sismember(self, value: M) -> Operation[bool]:
        """Return whether a member is in the set. Cost: one exchange."""
        sent = self._members.encode(value)
        yield from self._open()
        return bool((yield from self.layout.read_one("SISMEMBER", sent)))

    @operation
    def smismember(self, values: M | Iterable[M], *args: M) -> Operation[list[bool]]:
        """Return for each member whether it is in the set. Cost: one exchange.

        Args:
            values: a list of members, or the first member.
            args: further members.
        """
        encode = self._members.encode
        numbered = [(encode(member), n) for n, member in enumerate(list_or_args(values, args))]
        check_some(self.name, "smismember", numbered, "member")
        yield from self._open()
        replies = yield from self.layout.read(numbered, lambda some, _: ("SMISMEMBER", *some))
        results = [False] * len(numbered)
        for positions, flags in replies:
            for n, flag in zip(positions, flags, strict=True):
                results[n] = bool(flag)
        return results

    @operation
    def scard(self) -> Operation[int]:
        """Return the number of members.

        Cost: one exchange, one command per group; with a ``total`` one command per part, an
        exchange for every 1,000 parts.
        """
        yield from self._open()
        if isinstance(self.layout, GrowingLayout):
            return (yield from self.layout.count()) or 0
        count = 0
        for chunk in self.layout.chunks(PARTS_AT_ONCE):
            count += sum(held for _, held in (yield from self.layout.read_parts(chunk, "SCARD")))
        return count

    @operation
    def smembers(self) -> Operation[set[M]]:
        """Return all members.

        Other clients may write: a member that exists throughout is returned; one that is added or
        removed in the meantime may be.

        Cost: one command per part, an exchange for every 256. All members are in memory at once;
        for large sets use `sscan_iter`.
        """
        result: set[M] = set()
        seen = 0
        for chunk in (yield from self._chunks(PARTS_READ)):
            for _, members in (yield from self.layout.read_parts(chunk, "SMEMBERS")):
                result.update(map(self._members.decode, members))
                seen += len(members)
        yield from self.layout.verify(seen)
        return result

    @stream
    def sscan_iter(self, match: Key | None = None, count: int | None = None) -> Stream[M]:
        """Iterate over the members, part by part, each once; see `smembers`.

        Args:
            match: only members that match this pattern (``*``, ``?``, ``[a-z]``); they are filtered
                here, after they were read.
            count: about how many members to have in memory at a time; by default those of 256
                parts.

        Cost: one command per part, an exchange for every 256, or as ``count`` says.
        """
        matches = glob_filter(match)
        seen = 0
        for chunk in (yield from self._chunks(PARTS_READ, count)):
            for _, members in (yield from self.layout.read_parts(chunk, "SMEMBERS")):
                seen += len(members)
                yield self._page(members if match is None else filter(matches, members))
        yield from self.layout.verify(seen)

    @operation
    def sinter(self, keys: Operands[M] = (), *args: ShardedSet[Any, M]) -> Operation[set[M]]:
        """Return the members that are in this set and in all others.

        Args:
            keys: a list of sets, or the first other set. They have the same parameters, and belong
                to any component of this kit. Without any, this set's members are returned.
            args: further sets.

        Raises:
            InvalidArgumentError: one is not a sharded set.
            ParameterMismatchError: a set has other parameters.

        Cost: one command per part (one per part and set, where parts do not live together, or split
        as they fill), an exchange for every 256 parts. The result is in memory at once; for large
        results use `sinter_iter`.
        """
        return (yield from self._combined("SINTER", list_or_args(keys, args)))

    @operation
    def sunion(self, keys: Operands[M] = (), *args: ShardedSet[Any, M]) -> Operation[set[M]]:
        """Return the members that are in any of the sets; see `sinter`."""
        return (yield from self._combined("SUNION", list_or_args(keys, args)))

    @operation
    def sdiff(self, keys: Operands[M] = (), *args: ShardedSet[Any, M]) -> Operation[set[M]]:
        """Return the members of this set that are in none of the others; see `sinter`."""
        return (yield from self._combined("SDIFF", list_or_args(keys, args)))

    @stream
    def sinter_iter(self, *others: ShardedSet[Any, M]) -> Stream[M]:
        """Iterate over the members that are in this set and in all others; see `sinter`."""
        yield from self._iterate("SINTER", others)

    @stream
    def sunion_iter(self, *others: ShardedSet[Any, M]) -> Stream[M]:
        """Iterate over the members that are in any of the sets; see `sinter`."""
        yield from self._iterate("SUNION", others)

    @stream
    def sdiff_iter(self, *others: ShardedSet[Any, M]) -> Stream[M]:
        """Iterate over the members of this set that are in none of the others; see `sinter`."""
        yield from self._iterate("SDIFF", others)

    @operation
    def sinterstore(self, keys: Operands[M], *args: ShardedSet[Any, M]) -> Operation[int]:
        """Replace this set by the intersection of others, of which it may be one.

        Each part (each group of splitting parts) is replaced atomically, and no old part remains.
        In the meantime a reader may see old parts beside new ones, and members that are added to
        this set may be lost.

        Args:
            keys: a list of sets with this set's parameters, or the first set.
            args: further sets.

        Returns:
            How many members this set has then.

        Raises:
            InvalidArgumentError: no set was given, or one is not a sharded set.
            ParameterMismatchError: a set has other parameters.
            ShardErrors: shards failed; some parts were replaced. Store it again: the result is the
                same.

        Cost: one command per part, or where parts do not live together two exchanges for every 256
        parts; where they split as they fill, that of reading and adding all members.
        """
        return (yield from self._store("SINTER", list_or_args(keys, args)))

    @operation
    def sunionstore(self, keys: Operands[M], *args: ShardedSet[Any, M]) -> Operation[int]:
        """Replace this set by the union of others; see `sinterstore`."""
        return (yield from self._store("SUNION", list_or_args(keys, args)))

    @operation
    def sdiffstore(self, keys: Operands[M], *args: ShardedSet[Any, M]) -> Operation[int]:
        """Replace this set by the first of others less all following ones; see `sinterstore`.

        If it fails and this set is among the subtracted ones, do not repeat it: replaced parts
        would be subtracted instead of the original ones.
        """
        return (yield from self._store("SDIFF", list_or_args(keys, args)))

    @operation
    def replan(self, total: int) -> Operation[int]:
        """Plan parts for another number of members, while clients use the set.

        Everything is copied into new parts, a multiple of the present number. Clients follow, even
        if their code has another total. Writers wait once, for some tenths of a second; readers do
        not. If it was interrupted, call it again.

        Args:
            total: the expected number of members; rounded up to such a multiple.

        Returns:
            The number of parts.

        Raises:
            InvalidArgumentError: that needs no more parts; the parts split as they fill, or have
                the partition ``redis-in-action``.
            StructureError: the set does not exist, or expires; or another process does the same.

        Cost: that of reading and writing everything at least once, and some exchanges for every
        1,000 parts. It takes a minute more, until the old parts are removed. In the meantime the
        set takes twice the memory, and cannot be deleted, expire or be combined with others.
        """
        return (yield from plan_anew(self.meta, self.layout, "SET", total))

    @operation
    def rebuild(self) -> Operation[int]:
        """Repair the damage that `check` finds, where possible; return the number of members.

        Members move to their own parts, and the states of groups are written as their parts have
        them; a key of another type is removed. Lost parameters are stored as the set was opened. Do
        not write to it at the same time.

        Cost: as `check`, and an exchange for each member that moves.
        """
        yield from self._rebuild()
        return (yield from self.deferred.scard())

    def _validate_member(self, member: bytes, value: Any) -> None:
        self._members.decode(member)

    def _add_if_absent(self, members: list[bytes], values: list[Any]) -> tuple[Argument, ...]:
        return ("SADD", *members)

    def _random(self, number: int) -> Operation[list[bytes]]:
        """Return random members as they are stored; see `srandmember`."""
        yield from self._open()
        drawn = yield from random_members(self.layout, "SCARD", "SRANDMEMBER", number)
        members = [member for _, some in drawn for member in some]
        return members[: abs(number)]  # there are more if a part has split

    def _combined(self, verb: str, others: Sequence[ShardedSet[Any, M]]) -> Operation[set[M]]:
        layouts = yield from self._compatible([self, *others])
        combined, seen = set[M](), [0] * len(layouts)
        for chunk in (yield from algebra.chunks(layouts)):
            combined.update(self._page((yield from algebra.combine(verb, layouts, chunk, seen))))
        yield from algebra.verify(layouts, seen)
        return combined

    def _iterate(self, verb: str, others: Sequence[ShardedSet[Any, M]]) -> Stream[M]:
        layouts = yield from self._compatible([self, *others])
        seen = [0] * len(layouts)
        for chunk in (yield from algebra.chunks(layouts)):
            yield self._page((yield from algebra.combine(verb, layouts, chunk, seen)))
        yield from algebra.verify(layouts, seen)

    def _compatible(
        self, sets: Sequence[ShardedSet[Any, M]]
    ) -> Operation[list[FixedLayout | GrowingLayout]]:
        """Return the layouts of sets; checks that they can be combined with this one."""
        for other in sets:
            if not isinstance(other, ShardedSet):
                raise InvalidArgumentError(
                    f"{self.name}: {shown(other)} is not a sharded set",
                    "give sets as kit.set makes them, each as an argument",
                )
        yield from open_all([other.meta for other in sets])
        for other in sets:
            if other.parameters != self.parameters:
                raise ParameterMismatchError(
                    f"{other.name!r} and {self.name!r} cannot be combined: "
                    f"{differences(other.parameters, self.parameters)}",
                    "combine sets with the same parameters, as only their parts match",
                )
            if other.meta.planning:
                raise StructureError(
                    f"{other.name} is being replanned, so it cannot be combined with others",
                    "try again afterwards, or call replan() again if that was interrupted",
                )
        return [other.layout for other in sets]

    def _store(self, verb: str, sources: Sequence[ShardedSet[Any, M]]) -> Operation[int]:
        if not sources:
            raise InvalidArgumentError(
                f"{self.name}: {verb.lower()}store without sets", "give at least one"
            )
        layouts = yield from self._compatible(sources)
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


# Other sets, as redis-py takes keys: one, or a list of them.
Operands: TypeAlias = ShardedSet[Any, M] | Iterable[ShardedSet[Any, M]]
