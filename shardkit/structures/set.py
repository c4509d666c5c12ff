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

One million ids of 60 bits take 72.4 bytes each in one SET of Redis 7.0, and 9.4 in parts of 512
(52.0 and 8.4 on Valkey 9.1); larger parts save little more. Sets of text are kept in parts as well,
of 128: Redis from 7.2 on, and Valkey, have a compact form for text too, with a limit of its own,
``set-max-listpack-entries``.

Members are always hashed, numbers too, because the integers of a set are rarely in sequence. Sets
that were made with the same parameters have the same members in the parts of the same number, so
intersections, unions and differences go part by part: on the server where the parts live together,
otherwise through the client, some hundred parts at a time.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import timedelta
from functools import reduce
from typing import Any, ClassVar, Generic

from shardkit.commands import Argument, Command, Key, Locate, Partial, Transaction
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
from shardkit.routing.partition import Partition, part_count, partition
from shardkit.structures.arguments import check_integer, check_name, expiry, shown
from shardkit.structures.members import M, Members
from shardkit.structures.meta import differences, open_all
from shardkit.structures.parted import PARTS_AT_ONCE, Parted

logger = logging.getLogger("shardkit")

DEFAULT_SHARD_SIZE = 512
DEFAULT_SHARD_SIZE_OF_TEXT = 128
MOST_MEMBERS = 2**63 - 1
MOST_PARTS = 2**32  # CRC-32 tells no more apart
MEMBERS_AT_ONCE = 10_000
# Algebra holds the members of so many parts of every operand in memory.
PARTS_COMBINED = 256

_ALGEBRA: dict[str, Callable[[set[bytes], set[bytes]], set[bytes]]] = {
    "SINTER": operator.and_,
    "SUNION": operator.or_,
    "SDIFF": operator.sub,
}
# By what its members are: the servers' limit to a compact set, and what it is unless changed.
_LIMITS: dict[type, tuple[str, int]] = {
    int: ("set-max-intset-entries", DEFAULT_SHARD_SIZE),
    str: ("set-max-listpack-entries", DEFAULT_SHARD_SIZE_OF_TEXT),
    bytes: ("set-max-listpack-entries", DEFAULT_SHARD_SIZE_OF_TEXT),
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
            ``set-max-intset-entries``, or for text ``set-max-listpack-entries``. By default theirs:
            512, or 128. A larger one than the server's is logged as a warning.
        members: int, str or bytes: what its members are, and come back as.
        rule: the partition's name; see `shardkit.routing.partition`.

    Attributes:
        total, shard_size: as given, or the default.
        parts: how many parts that makes.

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
        total: int,
        shard_size: int | None = None,
        members: type[M] = str,  # type: ignore[assignment]  # kit.set has the exact overloads
        rule: str = "crc32",
    ) -> None:
        self._members: Members[M] = Members(members, name)
        if shard_size is None:
            shard_size = _LIMITS[members][1]
        self._partition = hashed_partition(name, rule, total, shard_size)
        self.total = total
        self.shard_size = shard_size
        self.parts = part_count(total, shard_size)
        parameters = {
            "total": total,
            "shard_size": shard_size,
            "partition": rule,
            "members": members.__name__,
        }
        super().__init__(driver, component, name, parameters)

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

    def by_key(self, members: Iterable[Key]) -> dict[str, list[bytes]]:
        """Return members, as they are sent, by the key that holds them. No exchange.

        Raises:
            InvalidArgumentError: a member does not fit.
        """
        groups: dict[int, list[bytes]] = {}
        for member in members:
            sent = self._members.encode(member)
            groups.setdefault(self._partition(sent), []).append(sent)
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
        groups = self.by_key(members)
        if not groups:
            return 0
        yield from self._open(create=True)
        added = yield [self._at(key, "SADD", key, *sent) for key, sent in groups.items()]
        return sum(added)

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
        groups = self.by_key(members)
        if not groups:
            return 0
        yield from self._open()
        removed = yield [self._at(key, "SREM", key, *sent) for key, sent in groups.items()]
        return sum(removed)

    @operation
    def sismember(self, member: Key) -> Operation[bool]:
        """Return whether a member is in the set. Cost: one exchange."""
        sent = self._members.encode(member)
        yield from self._open()
        [there] = yield [self._read("SISMEMBER", self._partition(sent), sent)]
        return bool(there)

    @operation
    def smismember(self, *members: Key) -> Operation[list[bool]]:
        """Return for each member whether it is in the set. Cost: one exchange."""
        groups = self.by_key(members)
        if not groups:
            return []
        yield from self._open()
        replies = yield [
            self._at(key, "SMISMEMBER", key, *sent, idempotent=True) for key, sent in groups.items()
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
        yield from self._open()
        count = 0
        for parts in self._pages(PARTS_AT_ONCE):
            count += sum((yield [self._read("SCARD", part) for part in parts]))
        return count

    @stream
    def smembers(self) -> Stream[M]:
        """Iterate over the members, part by part; each that is there throughout comes once.

        The set may be written to meanwhile: what is added or removed may come or not.

        Cost: one command a part, an exchange for every 256 parts, whose members are in memory.
        """
        yield from self._open()
        for parts in self._pages(PARTS_COMBINED):
            replies = yield [self._read("SMEMBERS", part) for part in parts]
            for members in replies:
                yield self._page(members)

    @operation
    def delete(self) -> Operation[bool]:
        """Remove the set with its parameters; return whether there was anything.

        Afterwards it can be created with other parameters. Nobody else may be writing to it: what
        has compared the parameters once does not look again.

        The parameters go last, so that what a failure leaves can still be opened and deleted.

        Cost: one command a part, an exchange for every 1,000 parts.
        """
        yield from self._open()
        removed = yield from self._to_all("UNLINK")
        self.meta.compared = False
        return removed > 0

    @operation
    def expire(self, seconds: int | timedelta) -> Operation[bool]:
        """Have every part that exists now, and the parameters, expire; return whether any do.

        Parts that come into being later do not expire: meant for sets that are complete.

        Args:
            seconds: after what time, at least one second.

        Raises:
            InvalidArgumentError: it is no such time.
            ShardErrors: shards failed; parts on the others expire.

        Cost: one command a part, an exchange for every 1,000 parts.
        """
        after = expiry(self.name, seconds)
        yield from self._open()
        return (yield from self._to_all("EXPIRE", after)) > 0

    @stream
    def sinter(self, *others: ShardedSet[Any, M]) -> Stream[M]:
        """Iterate over the members that are in this set and in all others.

        Args:
            others: sets with the same parameters, of any component of this kit. None: the members
                of this set.

        Raises:
            InvalidArgumentError: one is no sharded set.
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

        Each part is replaced in one step, none is left over; a reader may see old parts beside new
        ones meanwhile. What is added meanwhile to a part of this set may be lost.

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
        parts.
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
        if self.meta.compared:
            return
        yield from super()._open(create=create)
        if create:
            yield from self._look_at_limit()

    def _look_at_limit(self) -> Operation[None]:
        """Say so when parts as large as planned will not be compact where the first one lives."""
        setting, usual = _LIMITS[self._members.kind]
        if self.shard_size <= usual:
            return
        asking = self._at(self.part_key(0), "CONFIG", "GET", setting, idempotent=True)
        [reply] = yield Partial([asking])  # not everybody may ask
        limit = int(reply[1]) if isinstance(reply, list) and reply else self.shard_size
        if limit < self.shard_size:
            logger.warning(
                "%s: parts of up to %d members are not compact: the server's %s is %d; "
                "raise it, or make the set with a smaller shard_size",
                self.name,
                self.shard_size,
                setting,
                limit,
            )

    def _command(self, name: str, part: int, *args: Argument) -> Command:
        key = self.part_key(part)
        return Command(self.component, key, (name, key, *args))

    def _read(self, name: str, part: int, *args: Argument) -> Command:
        key = self.part_key(part)
        return Command(self.component, key, (name, key, *args), None, True)

    def _pages(self, size: int) -> Generator[range, None, None]:
        for start in range(0, self.parts, size):
            yield range(start, min(start + size, self.parts))

    def _page(self, members: Iterable[bytes]) -> Page[M]:
        return Page(map(self._members.decode, members))

    def _to_all(self, name: str, *args: Argument) -> Operation[int]:
        """Send a command for every part, and last for the parameters; return the replies' sum."""
        total = 0
        for parts in self._pages(PARTS_AT_ONCE):
            total += sum((yield [self._command(name, part, *args) for part in parts]))
        [last] = yield [self._at(self.meta_key, name, self.meta_key, *args)]
        return int(total + last)

    def _check_alike(self, sets: Sequence[ShardedSet[Any, M]]) -> Operation[None]:
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
            raise InvalidArgumentError(
                f"{self.name}: {verb.lower()}store of no sets", "give at least one"
            )
        yield from self._check_alike(sources)
        yield from self._open(create=True)
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
                    batch.append(self._command(f"{verb}STORE", part, *keys))
                else:
                    batch.append(self._replace(part, _combine(verb, sources, fetched)))
            replies = yield batch
            stored += sum(r if isinstance(r, int) else sum(r[1:]) for r in replies)
        return stored

    def _replace(self, part: int, members: Iterable[bytes]) -> Transaction:
        key = self.part_key(part)
        commands = [self._command("DEL", part)]
        commands += [self._command("SADD", part, *page) for page in pages(members, MEMBERS_AT_ONCE)]
        return Transaction(self.component, key, tuple(commands))


def hashed_partition(name: str, rule: str, total: int, shard_size: int) -> Partition:
    """Return the function from a member of a set to its part; checks what decides it.

    Args:
        name: the set's name.
        rule: the partition's name.
        total: about how many members it will have.
        shard_size: how many members a part may have.

    Raises:
        InvalidArgumentError: an argument is out of range, or the rule does not hash.
    """
    check_name(name)
    check_integer(name, "total", total, 1, MOST_MEMBERS)
    check_integer(name, "shard_size", shard_size, 1, MOST_MEMBERS)
    if rule == "digits":
        raise InvalidArgumentError(
            f"{name}: partition='digits' would give sparse integers a part each",
            "use crc32 or redis-in-action",
        )
    if part_count(total, shard_size) > MOST_PARTS:
        raise InvalidArgumentError(
            f"{name}: total={total} in parts of {shard_size} is more than 2**32 parts",
            "give about how many members there will be",
        )
    try:
        return partition(rule, total, shard_size)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{name}: {error.message}", error.remedy) from None


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
            batch.append(first._read(verb, part, *keys))
        else:
            batch += [s._read("SMEMBERS", part) for s in sets]
    return batch


def _combine(verb: str, sets: Sequence[Any], replies: Any) -> set[bytes]:
    """Combine the next members, one reply for each set."""
    operands = [set(next(replies)) for _ in sets]
    return reduce(_ALGEBRA[verb], operands)
