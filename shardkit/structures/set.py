r"""A large SET as many small ones, each compact on its server.

A server keeps a SET of integers as an *intset*, a sorted array, as long as it has at most
``set-max-intset-entries`` members (512 by default); a larger one becomes a hash table. So a set is
kept in parts::

    visitors:meta    HASH  kind=set total=1000000 shard_size=512 partition=crc32 members=int
    visitors:0       SET   {17, 90210, …}              each about half full: 2 * total // shard_size
    visitors:1       SET   {4, 1093, …}                parts, and CRC-32 of the member decides which
      ⋮
    visitors:3905

    an intset of 64-bit members, as the server holds it:
    ┌──────────┬──────────┬────────┬────────┬───┬────────┐
    │ width: 8 │ count: n │ m₁     │ m₂     │ … │ mₙ     │   8 + 8·n bytes
    │ 4 bytes  │ 4 bytes  │ 8      │ 8      │   │ 8      │
    └──────────┴──────────┴────────┴────────┴───┴────────┘

One million ids of 60 bits take 72.6 bytes each in one SET of Redis 7.0, and 9.5 in parts of 512
(43.9 and 8.5 on Valkey 9.1); larger parts save little more. Sets of text are kept in parts as well:
they save where the server has a compact form for small sets of text (Redis 7.2, Valkey 8, later).

Members are always hashed, numbers too, because the integers of a set are rarely in sequence. Sets
that were made with the same parameters have the same members in the parts of the same number, so
intersections, unions and differences go part by part: on the server where the parts live together,
otherwise through the client, some hundred parts at a time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import reduce
from typing import Any, ClassVar, Generic

from shardkit.commands import Argument, Command, Key, Locate, Transaction
from shardkit.errors import InvalidArgumentError, ParameterMismatchError
from shardkit.operation import (
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
from shardkit.routing.partition import part_count, partition
from shardkit.structures.members import M, Members
from shardkit.structures.parted import PARTS_AT_ONCE, Parted

DEFAULT_SHARD_SIZE = 512
MEMBERS_AT_ONCE = 10_000
# Algebra holds the members of so many parts of every operand in memory.
PARTS_COMBINED = 256

_ALGEBRA: dict[str, Callable[[set[bytes], set[bytes]], set[bytes]]] = {
    "SINTER": operator.and_,
    "SUNION": operator.or_,
    "SDIFF": operator.sub,
}


class ShardedSet(Parted[Face], Generic[Face, M]):
    """A SET in parts, over one server or many. Made by ``kit.set``.

    Args:
        driver: what runs its operations.
        component: where its keys live.
        name: the prefix of its keys.
        total: about how many members it will have. More is not an error: parts then outgrow their
            compact form, and take more memory.
        shard_size: how many members a part may have to be compact: the servers'
            ``set-max-intset-entries``.
        members: int, str or bytes: what its members are, and come back as.
        rule: the partition's name; see `shardkit.routing.partition`.
    """

    kind: ClassVar[str] = "set"

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str,
        total: int,
        shard_size: int = DEFAULT_SHARD_SIZE,
        members: type[M] = str,  # type: ignore[assignment]  # kit.set has the exact overloads
        rule: str = "crc32",
    ) -> None:
        parameters = {
            "total": total,
            "shard_size": shard_size,
            "partition": rule,
            "members": getattr(members, "__name__", members),
        }
        super().__init__(driver, component, name, parameters)
        if rule == "digits":
            raise InvalidArgumentError(
                f"{name}: partition='digits' would give sparse integers a part each",
                "use crc32 or redis-in-action",
            )
        self._members: Members[M] = Members(members, name)
        self._partition = partition(rule, total, shard_size)
        self.parts = part_count(total, shard_size)

    @property
    def deferred(self) -> ShardedSet[Deferred, M]:
        """This set with the face whose calls return steps, for ``yield from`` and ``together``."""
        return self._deferred()  # type: ignore[return-value]

    def part_of(self, member: Key) -> int:
        """Return the number of a member's part. No exchange."""
        return self._partition(self._members.encode(member))

    def key_of(self, member: Key) -> str:
        """Return the key that holds a member. No exchange."""
        return self.part_key(self.part_of(member))

    @operation
    def sadd(self, *members: Key) -> Operation[int]:
        """Add members.

        Args:
            members: integers, text or bytes, as the set's ``members`` says.

        Returns:
            How many were new.

        Raises:
            InvalidArgumentError: a member does not fit; nothing was added then.
            ShardErrors: shards failed; members of the others were added.

        Cost: one exchange, one command a part. O(1) a member.
        """
        groups = self._by_part(members)
        yield from self._open(write=True)
        added = yield [self._command("SADD", part, sent) for part, sent in groups.items()]
        return sum(added)

    @operation
    def sadd_many(self, members: Iterable[Key]) -> Operation[int]:
        """Add any number of members, 10,000 an exchange; return how many were new.

        Raises:
            InvalidArgumentError: a member does not fit; earlier pages were added by then.
            ShardErrors: shards failed.
        """
        added = 0
        for page in pages(members, MEMBERS_AT_ONCE):
            added += yield from self.deferred.sadd(*page)
        return added

    @operation
    def srem(self, *members: Key) -> Operation[int]:
        """Remove members; return how many were there. Cost: as `sadd`."""
        groups = self._by_part(members)
        yield from self._open(write=False)
        removed = yield [self._command("SREM", part, sent) for part, sent in groups.items()]
        return sum(removed)

    @operation
    def sismember(self, member: Key) -> Operation[bool]:
        """Return whether a member is in the set. Cost: one exchange."""
        sent = self._members.encode(member)
        yield from self._open(write=False)
        [there] = yield [self._command("SISMEMBER", self._partition(sent), [sent], reads=True)]
        return bool(there)

    @operation
    def smismember(self, *members: Key) -> Operation[list[bool]]:
        """Return for each member whether it is in the set. Cost: one exchange."""
        groups = self._by_part(members)
        yield from self._open(write=False)
        replies = yield [
            self._command("SMISMEMBER", part, sent, reads=True) for part, sent in groups.items()
        ]
        there = {
            member: bool(flag)
            for sent, flags in zip(groups.values(), replies, strict=True)
            for member, flag in zip(sent, flags, strict=True)
        }
        return [there[self._members.encode(member)] for member in members]

    @operation
    def scard(self) -> Operation[int]:
        """Return how many members there are.

        Cost: one command a part, an exchange for every 1,000 parts.
        """
        yield from self._open(write=False)
        count = 0
        for parts in self._pages(PARTS_AT_ONCE):
            count += sum((yield [self._command("SCARD", part, reads=True) for part in parts]))
        return count

    @stream
    def smembers(self) -> Stream[M]:
        """Iterate over the members, part by part; each that is there throughout comes once.

        Cost: one command a part, an exchange for every 256 parts, whose members are in memory.
        """
        yield from self._open(write=False)
        for parts in self._pages(PARTS_COMBINED):
            replies = yield [self._command("SMEMBERS", part, reads=True) for part in parts]
            for members in replies:
                yield self._page(members)

    @operation
    def delete(self) -> Operation[bool]:
        """Remove the set with its parameters; return whether there was anything.

        The parameters go last, so that what a failure leaves can still be opened and deleted.

        Cost: one command a part, an exchange for every 1,000 parts.
        """
        yield from self._open(write=False)
        removed = yield from self._to_all("UNLINK")
        self._opened.done = False
        return removed > 0

    @operation
    def expire(self, seconds: int) -> Operation[bool]:
        """Have every part that exists now, and the parameters, expire; return whether any do.

        Parts that come into being later do not expire: meant for sets that are complete.

        Cost: one command a part, an exchange for every 1,000 parts.
        """
        if not isinstance(seconds, int) or isinstance(seconds, bool) or seconds < 1:
            raise InvalidArgumentError(f"{self.name}: seconds={seconds!r}", "give 1 or more")
        yield from self._open(write=False)
        return (yield from self._to_all("EXPIRE", seconds)) > 0

    @stream
    def sinter(self, *others: ShardedSet[Any, M]) -> Stream[M]:
        """Iterate over the members that are in this set and in all others.

        Args:
            others: sets with the same parameters, of any component.

        Raises:
            ParameterMismatchError: a set has other parameters.

        Cost: one command a part (one a part and set, where parts do not live together), an
        exchange for every 256 parts.
        """
        yield from self._combined("SINTER", others)

    @stream
    def sunion(self, *others: ShardedSet[Any, M]) -> Stream[M]:
        """Iterate over the members that are in any of the sets; see `sinter`."""
        yield from self._combined("SUNION", others)

    @stream
    def sdiff(self, *others: ShardedSet[Any, M]) -> Stream[M]:
        """Iterate over the members that are in none of the others; see `sinter`."""
        yield from self._combined("SDIFF", others)

    @operation
    def sinterstore(self, *sources: ShardedSet[Any, M]) -> Operation[int]:
        """Make this set the intersection of others; it may be one of them.

        Each part is replaced in one step; a reader may see old parts beside new ones meanwhile.

        Args:
            sources: at least one set with this set's parameters.

        Returns:
            How many members this set has now.

        Raises:
            InvalidArgumentError: no source was given.
            ParameterMismatchError: a set has other parameters.
            ShardErrors: shards failed. Do it again: it is idempotent, unless this set is a source.

        Cost: one command a part, or where parts do not live together two exchanges for every 256
        parts.
        """
        return (yield from self._store("SINTER", sources))

    @operation
    def sunionstore(self, *sources: ShardedSet[Any, M]) -> Operation[int]:
        """Make this set the union of others; see `sinterstore`."""
        return (yield from self._store("SUNION", sources))

    @operation
    def sdiffstore(self, *sources: ShardedSet[Any, M]) -> Operation[int]:
        """Make this set the first of others less all following ones; see `sinterstore`."""
        return (yield from self._store("SDIFF", sources))

    def _command(
        self, name: str, part: int, args: Sequence[Argument] = (), *, reads: bool = False
    ) -> Command:
        key = self.part_key(part)
        return Command(self.component, key, (name, key, *args), None, reads)

    def _by_part(self, members: Iterable[Key]) -> dict[int, list[bytes]]:
        groups: dict[int, list[bytes]] = {}
        for member in members:
            sent = self._members.encode(member)
            groups.setdefault(self._partition(sent), []).append(sent)
        return groups

    def _pages(self, size: int) -> Generator[range, None, None]:
        for start in range(0, self.parts, size):
            yield range(start, min(start + size, self.parts))

    def _page(self, members: Iterable[bytes]) -> Page[M]:
        return Page(map(self._members.decode, members))

    def _to_all(self, name: str, *args: Argument) -> Operation[int]:
        """Send a command for every part, and last for the parameters; return the replies' sum."""
        total = 0
        for parts in self._pages(PARTS_AT_ONCE):
            total += sum((yield [self._command(name, part, args) for part in parts]))
        [last] = yield [self._at(self.meta_key, name, self.meta_key, *args)]
        return int(total + last)

    def _check_alike(self, sets: Sequence[ShardedSet[Any, M]]) -> Operation[None]:
        for other in sets:
            if other.parameters != self.parameters:
                raise ParameterMismatchError(
                    f"{self.name!r} has the parameters {self.parameters}, {other.name!r} has "
                    f"{other.parameters}",
                    "only sets with the same parameters have the same members in the same parts",
                )
            yield from other._open(write=False)

    def _combined(self, verb: str, others: Sequence[ShardedSet[Any, M]]) -> Stream[M]:
        sets: list[ShardedSet[Any, M]] = [self, *others]
        yield from self._check_alike(sets)
        for parts in self._pages(PARTS_COMBINED):
            together = yield from _live_together(sets, parts)
            replies = iter((yield _fetch(verb, sets, parts, together)))
            for there in together:
                yield self._page(next(replies) if there else _combine(verb, sets, replies))

    def _store(self, verb: str, sources: Sequence[ShardedSet[Any, M]]) -> Operation[int]:
        if not sources:
            raise InvalidArgumentError(f"{verb}STORE into {self.name!r}", "give at least one set")
        yield from self._check_alike(sources)
        yield from self._open(write=True)
        stored = 0
        for parts in self._pages(PARTS_COMBINED):
            together = yield from _live_together((self, *sources), parts)
            apart = [part for part, there in zip(parts, together, strict=True) if not there]
            fetched = iter(
                (yield _fetch(verb, sources, apart, [False] * len(apart))) if apart else ()
            )
            batch: list[Command | Transaction] = []
            for part, there in zip(parts, together, strict=True):
                if there:
                    keys = [source.part_key(part) for source in sources]
                    batch.append(self._command(f"{verb}STORE", part, keys))
                else:
                    batch.append(self._replace(part, _combine(verb, sources, fetched)))
            replies = yield batch
            stored += sum(r if isinstance(r, int) else sum(r[1:]) for r in replies)
        return stored

    def _replace(self, part: int, members: Iterable[bytes]) -> Transaction:
        key = self.part_key(part)
        commands = [self._command("DEL", part)]
        commands += [self._command("SADD", part, page) for page in pages(members, MEMBERS_AT_ONCE)]
        return Transaction(self.component, key, tuple(commands))


def _live_together(
    sets: Sequence[ShardedSet[Any, Any]], parts: Sequence[int]
) -> Operation[list[bool]]:
    """Ask for each part whether all sets' keys of it can be used in one command."""
    places = yield Locate([(s.component, s.part_key(part)) for part in parts for s in sets])
    width = len(sets)
    return [len(set(places[n * width : (n + 1) * width])) == 1 for n in range(len(parts))]


def _fetch(
    verb: str,
    sets: Sequence[ShardedSet[Any, Any]],
    parts: Sequence[int],
    together: Sequence[bool],
) -> list[Command]:
    """Have parts that live together combined where they are, and the members of the others sent."""
    batch = []
    for part, there in zip(parts, together, strict=True):
        if there:
            first, *rest = sets
            keys = [other.part_key(part) for other in rest]
            batch.append(first._command(verb, part, keys, reads=True))
        else:
            batch += [s._command("SMEMBERS", part, reads=True) for s in sets]
    return batch


def _combine(verb: str, sets: Sequence[Any], replies: Any) -> set[bytes]:
    """Combine the next members, one reply for each set."""
    operands = [set(next(replies)) for _ in sets]
    return reduce(_ALGEBRA[verb], operands)
