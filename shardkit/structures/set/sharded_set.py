"""A large SET as many small ones, each compact on its server.

A server keeps a small SET of integers as an *intset*, a sorted array of 8 bytes each; a larger one
becomes a hash table. So a set is stored in parts, which split as they fill (`layouts.growing`), or,
given the number of members to expect, in a fixed number of parts. docs/sets.md shows the keys, and
what they take. Members are always hashed, numbers too, because the integers of a set are rarely in
sequence.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from functools import partial, reduce
from itertools import islice
from typing import Any, ClassVar, Generic, TypeAlias

from shardkit.errors import (
    DamagedDataError,
    InvalidArgumentError,
    ParameterMismatchError,
    StructureError,
)
from shardkit.operations.arguments import shown
from shardkit.operations.cancellation import completed
from shardkit.operations.commands import Argument, Command, Key, Locate, Transaction
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
    relocated,
    stream,
)
from shardkit.structures.base.arguments import MOST_MEMBERS, check_integer, check_some, list_or_args
from shardkit.structures.base.members import M, Members, glob_filter
from shardkit.structures.base.parameters import differences, open_all
from shardkit.structures.encodings.limits import FORMS
from shardkit.structures.layouts.base import Chunk, FixedLayout
from shardkit.structures.layouts.growing import (
    GROUPS,
    GrowingLayout,
    check_groups,
    chunks_of,
    read_parts_together,
)
from shardkit.structures.layouts.replan import plan_anew
from shardkit.structures.layouts.structure import StructureWithLayout, random_members

DEFAULT_PART_SIZE = 512
MEMBERS_AT_ONCE = 10_000
# How many parts' members are in memory at a time.
PARTS_READ = 256
MOST_RANDOM = 100_000

# The servers' compact form by the type of members.
_FORMS: dict[type, str] = {int: "intset", str: "set", bytes: "set"}
_MOST_IN_VAIN = 10  # rounds in which nothing of what was drawn could be popped


class ShardedSet(StructureWithLayout[Face], Generic[Face, M]):
    """A SET in parts, over one server or many. Made by ``kit.set``.

    Args:
        driver, component, name: see `shardkit.operations.Structure`.
        total: about how many members it will have, for a fixed number of parts. More are not an
            error: parts then outgrow their compact form, and take more memory. None: parts split as
            they fill.
        part_size: how many members a part may have to be compact: the servers'
            ``set-max-intset-entries``, 512, or for text ``set-max-listpack-entries``, 128, which
            are the defaults. One above the server's limit is logged as a warning.
        members: int, str or bytes: the type of its members.
        partition: the partition's name, with a ``total``; see `shardkit.routing.placement`.
        parts: how many parts it begins with, without a ``total``; each splits as it fills. A power
            of two, at least the number of shards. Small sets need few.

    Errors and the first call: see `shardkit.structures`.
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
        partition: str = "crc32",
        parts: int = GROUPS,
    ) -> None:
        self._members: Members[M] = Members(members, name, self._find)
        if part_size is None:
            part_size = FORMS[_FORMS[members]].usual[0]
        self.part_size = self._largest_part = part_size
        self._form = _FORMS[members]
        self.layout: FixedLayout | GrowingLayout
        if total is None:
            check_integer(name, "part_size", part_size, 1, MOST_MEMBERS)
            check_groups(name, parts)
            self.layout = GrowingLayout(component, name, "SET", part_size, parts)
            parameters: dict[str, object] = {"groups": parts, "part_size": part_size}
        else:
            self.layout = FixedLayout(component, name, partition, total, part_size)
            parameters = {"total": total, "part_size": part_size, "partition": partition}
        super().__init__(driver, component, name, {**parameters, "members": members.__name__})
        if partition == "redis-in-action":  # that book's programs store no parameters
            self.meta.data_keys = None

    @property
    def total(self) -> int | None:
        """About how many members it is planned for; None if its parts split as they fill."""
        return int(self.parameters["total"]) if "total" in self.parameters else None

    @property
    def parts(self) -> int:
        """The number of parts; refused if its parts split as they fill."""
        return self._fixed().count

    def part_of(self, member: Key) -> int:
        """Return the number of a member's part; refused if parts split. No exchange."""
        return self._fixed().part_of(self._members.encode(member))

    def key_of(self, member: Key) -> str:
        """Return the key that holds a member; see `part_of`. No exchange."""
        return self._fixed().key_of(self._members.encode(member))

    def by_key(self, members: Iterable[Key]) -> dict[str, list[bytes]]:
        """Return members, encoded as they are sent, by their key; see `part_of`. No exchange."""
        key_of, encode = self._fixed().key_of, self._members.encode
        groups: dict[str, list[bytes]] = {}
        for member in members:
            sent = encode(member)
            groups.setdefault(key_of(sent), []).append(sent)
        return groups

    @operation
    def sadd(self, *values: M) -> Operation[int]:
        """Add members; return how many were new. Cost: one exchange, one command per part."""
        sent = self._encoded(values)
        check_some(self.name, "sadd", sent, "member")
        yield from self._open(create=True)
        replies = yield from self.layout.write(sent, self._add_if_absent)
        return sum(added for _, added in replies)

    @operation
    def sadd_many(self, members: Iterable[M]) -> Operation[int]:
        """Add any number of members, 10,000 to 500,000 per exchange; return how many were new."""
        if isinstance(members, str | bytes):
            raise InvalidArgumentError(
                f"{self.name}: sadd_many({shown(members)}) would add its characters",
                "give an iterable of members, or use sadd",
            )
        added = 0
        total = len(members) if isinstance(members, Sized) else None
        for page in self.layout.pages(self._members.encode_all(members), total, bare=True):
            yield from self._open(create=True)
            for _, new in (yield from self.layout.write(page, self._add_if_absent)):
                added += new
        return added

    @operation
    def srem(self, *values: M) -> Operation[int]:
        """Remove members; return how many existed. Cost: as `sadd`."""
        sent = self._encoded(values)
        check_some(self.name, "srem", sent, "member")
        yield from self._open()
        replies = yield from self.layout.write(sent, lambda batch, _: ("SREM", *batch), adds=False)
        return sum(removed for _, removed in replies)

    @operation
    def spop(self, count: int | None = None) -> Operation[Any]:
        """Remove and return a random member, each with the same probability; None if there is none.

        No member is returned to two callers. With ``count`` a set of that size is returned, fewer
        only if there are fewer. If shards fail, members on the others were removed, and are not
        returned: where that matters, pop one at a time.

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
                yield from self.layout.write([(m, None) for m in popped], self._add_if_absent)
                raise DamagedDataError(
                    self.name,
                    f"member {shown(drawn[0])} in a part that is not its own",
                    "only members of each part",
                    search=partial(self._find, drawn[0]),
                )
            replies = yield from self.layout.write(
                [(member, None) for member in drawn],
                lambda batch, _: ("SPOP", len(batch)),
                adds=False,
            )
            new = {member for _, popped in replies for member in popped}
            in_vain = 0 if new else in_vain + 1
            popped |= new
        try:
            return set(map(self._members.decode, popped))
        except DamagedDataError:  # it names the part that has the member
            yield from self.layout.write([(m, None) for m in popped], self._add_if_absent)
            raise

    @operation
    def srandmember(self, number: int | None = None) -> Operation[Any]:
        """Return a random member, each with the same probability; None if there is none.

        Args:
            number: return a list of ``number`` distinct ones, at most all; if negative, with
                repetition.

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

        ``values`` is a list of members, or the first member.
        """
        encode = self._members.encode
        numbered = [(encode(member), n) for n, member in enumerate(list_or_args(values, args))]
        check_some(self.name, "smismember", numbered, "member")
        yield from self._open()
        replies = yield from self.layout.read(numbered, lambda batch, _: ("SMISMEMBER", *batch))
        results = [False] * len(numbered)
        for positions, flags in replies:
            for n, flag in zip(positions, flags, strict=True):
                results[n] = bool(flag)
        return results

    @operation
    def scard(self) -> Operation[int]:
        """Return the number of members. Cost: one exchange, one command per group.

        With a ``total`` one command per part, an exchange for every 1,000 parts.
        """
        return (yield from self._count())

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
            match: only members that match this pattern; filtered after they were read.
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
            keys: a list of sets, or the first other set: with the same parameters, of any component
                of this kit. Without any, this set's members are returned.
            args: further sets.

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
        """Replace this set by the intersection of others; return how many members it has then.

        Each part (each group of splitting parts) is replaced atomically, and no old part remains.
        In the meantime a reader may see old parts beside new ones, and members that are added to
        this set may be lost. If shards fail, store it again: the result is the same.

        Args:
            keys: a list of sets with this set's parameters, or the first set. This one may be among
                them.
            args: further sets.

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
        """Plan other parts for more members, while clients use the set; return their number.

        Everything is copied into new parts, a multiple of the present number. Clients follow, even
        if their code has another total. Writers wait once, for some tenths of a second; readers do
        not. If it was interrupted, call it again.

        Args:
            total: the expected number of members; rounded up to such a multiple.

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

        Members move to their own parts, and groups are counted again; a key of another type is
        removed. Lost parameters are stored as the set was opened. Do not write to it at the same
        time.

        Cost: as `check`, and an exchange for each member that moves.
        """
        yield from self._rebuild()
        return (yield from self._count())

    def _add_if_absent(self, members: list[bytes], values: list[Any]) -> tuple[Argument, ...]:
        return ("SADD", *members)

    def _random(self, number: int) -> Operation[list[bytes]]:
        """Return random members as they are stored; see `srandmember`."""
        yield from self._open()
        drawn = yield from random_members(self.layout, "SCARD", "SRANDMEMBER", number)
        members = [member for _, page in drawn for member in page]
        return members[: abs(number)]  # there are more if a part has split

    def _combined(self, verb: str, others: Sequence[ShardedSet[Any, M]]) -> Operation[set[M]]:
        layouts = yield from self._compatible([self, *others])
        combined, seen = set[M](), [0] * len(layouts)
        for chunk in (yield from corresponding_chunks(layouts)):
            combined.update(self._page((yield from combine_chunk(verb, layouts, chunk, seen))))
        yield from verify_counts(layouts, seen)
        return combined

    def _iterate(self, verb: str, others: Sequence[ShardedSet[Any, M]]) -> Stream[M]:
        layouts = yield from self._compatible([self, *others])
        seen = [0] * len(layouts)
        for chunk in (yield from corresponding_chunks(layouts)):
            yield self._page((yield from combine_chunk(verb, layouts, chunk, seen)))
        yield from verify_counts(layouts, seen)

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
        if isinstance(self.layout, FixedLayout):
            return (yield from _store_fixed(verb, self.layout, _fixed(layouts)))
        return (yield from _store_growing(verb, self.layout, _growing(layouts)))

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


# How many parts of every operand are in memory at a time.
PARTS_COMBINED = 256
# Seconds after which the incomplete result of a process that died expires.
_UNFINISHED = 24 * 3600

_ALGEBRA: dict[str, Callable[[set[bytes], set[bytes]], set[bytes]]] = {
    "SINTER": operator.and_,
    "SUNION": operator.or_,
    "SDIFF": operator.sub,
}


def corresponding_chunks(layouts: Sequence[FixedLayout | GrowingLayout]) -> Operation[list[Chunk]]:
    """Return the corresponding parts of sets in chunks. Cost: at most one exchange per set.

    Sets with the same parameters have the same members in corresponding parts. With a fixed number
    of parts, part 7 of one corresponds to part 7 of another: where these live on one server, it
    combines them. Where parts split as they fill, a part of the set that was split least
    corresponds to the parts that the same part was split into in the others.
    """
    growing = _growing(layouts)
    for layout in growing:
        yield from layout.refresh()
    return list(_corresponding(growing) if growing else layouts[0].chunks(PARTS_COMBINED))


@relocated
def combine_chunk(
    verb: str, layouts: Sequence[FixedLayout | GrowingLayout], chunk: Chunk, seen: list[int]
) -> Operation[list[bytes]]:
    """Return the members of a combined chunk; ``seen`` counts what was read of each set."""
    fixed = _fixed(layouts)
    if not fixed:
        return list((yield from _combined_growing(verb, _growing(layouts), chunk, seen)))
    together = yield from _live_together(fixed, chunk)
    replies = iter((yield _fetch(verb, fixed, chunk, together)))
    members: list[bytes] = []
    for is_live in together:
        members += next(replies) if is_live else _combine(verb, islice(replies, len(fixed)))
    return members


def verify_counts(
    layouts: Sequence[FixedLayout | GrowingLayout], seen: Sequence[int]
) -> Operation[None]:
    """Compare what was read of each set with its count; see `LayoutBase.verify`."""
    for layout, count in zip(layouts, seen, strict=True):
        yield from layout.verify(count)


def _fixed(layouts: Iterable[FixedLayout | GrowingLayout]) -> list[FixedLayout]:
    return [layout for layout in layouts if isinstance(layout, FixedLayout)]


def _growing(layouts: Iterable[FixedLayout | GrowingLayout]) -> list[GrowingLayout]:
    return [layout for layout in layouts if isinstance(layout, GrowingLayout)]


# ---- where the number of parts is fixed


@relocated
def _store_fixed(verb: str, target: FixedLayout, sources: Sequence[FixedLayout]) -> Operation[int]:
    stored = 0
    for parts in target.chunks(PARTS_COMBINED):
        together = yield from _live_together((target, *sources), parts)
        split = [part for part, is_live in zip(parts, together, strict=True) if not is_live]
        fetched = iter((yield _fetch(verb, sources, split, [False] * len(split))) if split else ())
        batch: list[Command | Transaction] = []
        for part, is_live in zip(parts, together, strict=True):
            if is_live:
                keys = [source.key(part) for source in sources]
                batch.append(target.command(part, f"{verb}STORE", *keys))
            else:
                members = _combine(verb, islice(fetched, len(sources)))
                commands = [target.command(part, "DEL")]
                commands += [
                    target.command(part, "SADD", *page) for page in pages(members, MEMBERS_AT_ONCE)
                ]
                batch.append(Transaction(target.component, target.key(part), tuple(commands)))
        replies = yield batch
        stored += sum(r if isinstance(r, int) else sum(r[1:]) for r in replies)
    return stored


def _live_together(layouts: Sequence[FixedLayout], parts: Sequence[int]) -> Operation[list[bool]]:
    """Return for each part whether all sets' keys of it can be used in one command."""
    commands = [layout.command(part, "") for part in parts for layout in layouts]
    places = yield Locate([(command.to, command.key) for command in commands])
    width = len(layouts)
    return [len(set(places[n * width : (n + 1) * width])) == 1 for n in range(len(parts))]


def _fetch(
    verb: str, layouts: Sequence[FixedLayout], parts: Sequence[int], together: Sequence[bool]
) -> list[Command]:
    """Return the commands that combine parts on their server, or fetch those that are apart."""
    batch = []
    for part, is_live in zip(parts, together, strict=True):
        if is_live:
            first, *rest = layouts
            keys = [other.key(part) for other in rest]
            batch.append(first.command(part, verb, *keys))
        else:
            batch += [layout.command(part, "SMEMBERS") for layout in layouts]
    return batch


# ---- where parts split as they fill


def _corresponding(layouts: Sequence[GrowingLayout]) -> Iterator[Any]:
    """Return chunks of the parts of the set that has fewest, group by group."""
    numbers = [min(parts) for parts in zip(*(layout.parts for layout in layouts), strict=True)]
    return chunks_of(numbers, PARTS_COMBINED)


def _combined_growing(
    verb: str, layouts: Sequence[GrowingLayout], chunk: Any, seen: list[int]
) -> Operation[set[bytes]]:
    replies = yield from read_parts_together(layouts, chunk, "SMEMBERS")
    for n, parts in enumerate(replies):
        seen[n] += sum(map(len, parts))
    return _combine(verb, ([m for part in parts for m in part] for parts in replies))


def _store_growing(
    verb: str, target: GrowingLayout, sources: Sequence[GrowingLayout]
) -> Operation[int]:
    counter = f"{target.name}:storing"
    number, _, ends = yield [
        Command(target.component, counter, ("INCR", counter)),
        Command(target.component, counter, ("EXPIRE", counter, 2 * _UNFINISHED)),
        Command(target.component, counter, ("PEXPIRETIME", counter)),
    ]
    result = target.sibling(f"{counter}:{number}", ends - 1000 * _UNFINISHED)
    for layout in sources:
        yield from layout.refresh()
    seen = [0] * len(sources)
    for chunk in _corresponding(sources):
        members = yield from _combined_growing(verb, sources, chunk, seen)
        for page in pages(members, MEMBERS_AT_ONCE):
            sent = [(member, None) for member in page]
            yield from result.write(sent, lambda batch, _: ("SADD", *batch))
    yield from verify_counts(sources, seen)
    return (yield from target.replace_by(result))


def _combine(verb: str, operands: Iterable[Iterable[bytes]]) -> set[bytes]:
    return reduce(_ALGEBRA[verb], map(set, operands))
