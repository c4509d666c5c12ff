r"""A large ZSET as many small ones, its highest and lowest members at hand.

A server keeps a ZSET as a *listpack*, one block of bytes, as long as it has at most
``zset-max-listpack-entries`` members (128) and none longer than ``zset-max-listpack-value`` bytes
(64); a larger one becomes a hash table and a skip list. So a sorted set is kept in parts, by the
hash of the member, that split as they fill (`shardkit.structures.layouts.growing`)::

    scores:meta          HASH  kind=sorted-set groups=64 part_size=128 bound=100 members=str
    scores:{4}           HASH  parts=413 count=15622 …       one group of 64
    scores:{4}:0         ZSET  {"user:17": 4096.5, …}        in its parts some 40 members each
      ⋮
    scores:{4}:412
    scores:{4}:top       ZSET  the group's highest 11 to 22 members
    scores:{4}:bottom    ZSET  its lowest

    "user:17" with 4096.5 in the listpack of a part:
    ┌───────────┬─────────┬──────┬───────────┬────────┬──────┐
    │ length: 7 │ user:17 │ size │ length: 6 │ 4096.5 │ size │   9 + 8 bytes
    │ 1 byte    │ 7       │ 1    │ 1         │ 6      │ 1    │   (whole numbers take 2 to 10)
    └───────────┴─────────┴──────┴───────────┴────────┴──────┘

What is asked most of a sorted set, its first or last members, would otherwise take a visit to every
part. So every script that changes members also changes top and bottom of their group
(`shardkit.structures.sorted_set.groups`, ``zset_bounds.lua``): they are exact at all times.
Everything else in order, ranges of scores, pages, ranks, is found by visiting all parts, some 400 a
script, and merging what they give.

One million members of 7 characters with whole scores take 17.9 bytes each on Redis 7.0, and 109.9
in one ZSET (16.5 and 79.9 on Valkey 9.1); 0.1 of them are for tops and bottoms. A change takes two
to three times the processor time of a plain ZADD, server and caller together, in bulk three to four
times; a page, out of some 26,400 parts, 0.15 to 0.18 seconds of the server's. Measured on a busy
machine of two cores by ``benchmarks/sorted_set.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Generic

from shardkit.encodings.limits import FORMS, warn_if_not_compact
from shardkit.operations.commands import Argument, Key
from shardkit.operations.operation import Deferred, Driver, Face, Operation, operation, pages
from shardkit.structures.base.arguments import check_integer, check_name, shown
from shardkit.structures.base.members import M, Members
from shardkit.structures.base.partition import MOST_MEMBERS
from shardkit.structures.layouts import GROUPS, check_groups
from shardkit.structures.sorted_set.groups import (
    Row,
    ScoredGroups,
    adding,
    everything,
    increasing,
    removing,
    taking,
)
from shardkit.structures.sorted_set.queries import MEMBERS_AT_ONCE, OrderedReading
from shardkit.structures.sorted_set.scores import (
    Limit,
    Score,
    Scored,
    as_pairs,
    limit,
    number,
    options,
)

DEFAULT_PART_SIZE = 128
DEFAULT_BOUND = 100
MOST_BOUND = 100_000


class ShardedSortedSet(OrderedReading[Face, M], Generic[Face, M]):
    """A ZSET in parts, over one server or many. Made by ``kit.sorted_set``.

    Members are in order of score, and of their bytes where scores are equal, as in a ZSET. Scores
    are doubles, infinite ones too.

    Args:
        driver: what runs its operations.
        component: where its keys live.
        name: the prefix of its keys.
        total: about how many members it will have, if that is known: it starts with so many parts,
            and need not split them. More or fewer are no error.
        part_size: how many members a part may have: at most the servers'
            ``zset-max-listpack-entries``. A larger one than the server's is logged as a warning.
        bound: how many of the highest, and of the lowest, shall be at hand; 0 for none.
        members: int, str or bytes: what its members are, and come back as.
        groups: how many groups of parts grow by themselves: a power of two, as many as shards or
            more. Few members want few groups.

    Attributes:
        part_size, bound: as given.

    Raises:
        InvalidArgumentError: an argument is out of range.

    Every operation costs one more exchange the first time, for comparing the parameters. A call
    that changes members is one script a group, 500 members a script: members of one group are
    changed at once, those of several are not.
    """

    kind: ClassVar[str] = "sorted-set"

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str,
        total: int | None = None,
        part_size: int | None = None,
        bound: int = DEFAULT_BOUND,
        members: type[M] = str,  # type: ignore[assignment]  # kit.sorted_set has exact overloads
        groups: int = GROUPS,
    ) -> None:
        check_name(name)
        self._members = Members(members, name)
        if part_size is None:
            part_size = DEFAULT_PART_SIZE
        check_integer(name, "part_size", part_size, 1, MOST_MEMBERS)
        check_integer(name, "bound", bound, 0, MOST_BOUND)
        check_groups(name, groups)
        if total is not None:
            check_integer(name, "total", total, 1, MOST_MEMBERS)
        self.part_size = part_size
        self.bound = bound
        self.layout = ScoredGroups(component, name, part_size, groups, bound, total or 1)
        parameters = {"groups": groups, "part_size": part_size, "bound": bound}
        super().__init__(driver, component, name, {**parameters, "members": members.__name__})

    @property
    def deferred(self) -> ShardedSortedSet[Deferred, M]:
        """This one with the face whose calls return steps, for ``yield from`` and ``together``."""
        return self._deferred()  # type: ignore[return-value]

    @operation
    def zadd(
        self,
        mapping: Scored,
        *,
        nx: bool = False,
        xx: bool = False,
        gt: bool = False,
        lt: bool = False,
        ch: bool = False,
    ) -> Operation[int]:
        """Add members, or change their scores.

        Args:
            mapping: scores by member; or pairs ``(member, score)``.
            nx: only add new members.
            xx: only change those that are there.
            gt: change a score only to a higher one; new members are added all the same.
            lt: change a score only to a lower one; likewise.
            ch: return how many were added or changed.

        Returns:
            How many were added.

        Raises:
            InvalidArgumentError: a member or score does not fit, or options exclude one another;
                nothing was changed then.
            ParameterMismatchError: the sorted set exists with other parameters.
            ShardErrors: shards failed; members of the others were changed.

        Cost: one exchange for 10,000 members, one script a group.
        """
        wanted = options(self.name, nx=nx, xx=xx, gt=gt, lt=lt, ch=ch)
        sent = [self._scored(*pair) for pair in as_pairs(self.name, mapping)]
        added = 0
        for page in pages(sent, MEMBERS_AT_ONCE):
            added += yield from self._zadd(page, wanted)
        return added

    @operation
    def zadd_many(
        self,
        pairs: Iterable[tuple[Key, Score]],
        *,
        nx: bool = False,
        xx: bool = False,
        gt: bool = False,
        lt: bool = False,
        ch: bool = False,
    ) -> Operation[int]:
        """Add any number of members, 10,000 an exchange; see `zadd`.

        Args:
            pairs: any iterable of ``(member, score)``, also a generator: it is read as they are
                sent.
            nx: see `zadd`; so are the others.
            xx: likewise.
            gt: likewise.
            lt: likewise.
            ch: likewise.

        Raises:
            InvalidArgumentError: a member or score does not fit; earlier pages were added by then.
        """
        wanted = options(self.name, nx=nx, xx=xx, gt=gt, lt=lt, ch=ch)
        added = 0
        for page in pages(as_pairs(self.name, pairs), MEMBERS_AT_ONCE):
            added += yield from self._zadd([self._scored(*pair) for pair in page], wanted)
        return added

    @operation
    def zincrby(self, amount: Score, member: Key) -> Operation[float]:
        """Add to the score of a member, which is 0 if it is not there; return its score then.

        Raises:
            InvalidArgumentError: the member or amount does not fit.
            ShardErrors: the sum is no number (infinity less infinity).

        Cost: one exchange.
        """
        added = repr(number(f"{self.name}: member {shown(member)}", "amount", amount))
        sent = [(self._members.encode(member), added)]
        yield from self._open(create=True)
        [(_, score)] = yield from self.layout.write(sent, increasing())
        return float(score)

    @operation
    def zrem(self, *members: Key) -> Operation[int]:
        """Remove members; return how many were there. Cost: as `zadd`."""
        sent = dict.fromkeys(map(self._members.encode, members))
        if not sent:
            return 0
        yield from self._open()
        removed = 0
        for page in pages(sent.items(), MEMBERS_AT_ONCE):
            replies = yield from self.layout.write(page, removing, adds=False)
            removed += sum(there for _, there in replies)
        return removed

    @operation
    def zpopmin(self, count: int = 1) -> Operation[list[tuple[M, float]]]:
        """Remove the lowest members and return them with their scores, lowest first.

        No member is returned to two callers. Those that are returned were the lowest when they were
        looked for; a lower one that is added in that moment stays. Whoever else pops, or changes a
        score, between the looking and the removing makes it look again.

        Args:
            count: how many, at most 10,000.

        Raises:
            InvalidArgumentError: it is no such number.
            ShardErrors: shards failed. Members on the others were removed, and are not returned:
                where that matters, pop one at a time.

        Cost: two exchanges or more; see `bottom` for the first.
        """
        return (yield from self._pop(count, reverse=False))

    @operation
    def zpopmax(self, count: int = 1) -> Operation[list[tuple[M, float]]]:
        """Remove the highest members and return them, highest first; see `zpopmin`."""
        return (yield from self._pop(count, reverse=True))

    @operation
    def zremrangebyscore(self, low: Limit, high: Limit) -> Operation[int]:
        """Remove the members with scores within a range; return how many.

        Args:
            low: the lowest score, or ``"(1.5"`` for what is higher than that, or ``"-inf"``.
            high: the highest score; likewise.

        Raises:
            InvalidArgumentError: an end is none.
            ShardErrors: shards failed; members on the others were removed.

        Cost: one script a group, which visits its parts; two exchanges, more above 100,000 parts.
        """
        ends = limit(self.name, "low", low), limit(self.name, "high", high)
        yield from self._open()
        return (yield from self.layout.remove_range(*ends))

    @operation
    def copy_from(self, key: Key) -> Operation[int]:
        """Take over a plain ZSET of the same component; return how many members are new.

        The ZSET is not changed: look, then remove it. What is written to it meanwhile may be
        missed; do it again for that.

        Args:
            key: the key of the ZSET.

        Raises:
            InvalidArgumentError: a member does not fit; earlier ones were taken by then.

        Cost: two exchanges for every 1,000 members.
        """
        new = 0
        cursor: bytes | int = 0
        while True:
            scan = self._at(key, "ZSCAN", key, cursor, "COUNT", 1000, idempotent=True)
            [(cursor, flat)] = yield [scan]
            some = zip(flat[::2], map(float, flat[1::2]), strict=True)
            new += yield from self.deferred.zadd(some)
            if cursor == b"0":
                return new

    @operation
    def rebuild(self) -> Operation[int]:
        """Count all members, and make top and bottom of each group anew; return how many there are.

        Nothing needs it in normal use. It mends what was done to keys behind the structure's back.

        Cost: as `zremrangebyscore`.
        """
        yield from self._open()
        return (yield from self.layout.rebuild())

    def _open(self, *, create: bool = False) -> Operation[None]:
        if self.meta.checked:
            return
        yield from super()._open(create=create)
        if create and self.part_size > FORMS["zset"].usual[0]:
            key = self.layout.first_key
            yield from warn_if_not_compact(self.component, key, "zset", self.part_size, self.name)

    def _scored(self, member: Key, score: Score) -> tuple[bytes, str]:
        sent = self._members.encode(member)
        if type(score) is float and score == score:  # the usual case, which costs no call
            return sent, repr(score)
        return sent, repr(number(f"{self.name}: member {shown(member)}", "score", score))

    def _zadd(
        self, pairs: Sequence[tuple[bytes, str]], wanted: Sequence[Argument]
    ) -> Operation[int]:
        if not pairs:
            return 0
        yield from self._open(create=True)
        added = 0
        for some in _one_each(pairs, last=not wanted):
            replies = yield from self.layout.write(some.items(), adding(wanted))
            added += sum(number for _, number in replies)
        return added

    def _pop(self, count: int, *, reverse: bool) -> Operation[list[tuple[M, float]]]:
        check_integer(self.name, "count", count, 0, MEMBERS_AT_ONCE)
        yield from self._open()
        popped: list[Row] = []
        while len(popped) < count:
            window = everything(reverse=reverse)
            best = yield from self.layout.first(window, count - len(popped))
            if not best:
                break
            asked = [(member, repr(score)) for score, member in best]
            replies = yield from self.layout.write(asked, taking(), adds=False)
            taken = {member for _, (_, *members) in replies for member in members}
            popped += (row for row in best if row[1] in taken)
        return self._page(popped)


def _one_each(pairs: Sequence[tuple[bytes, str]], *, last: bool) -> Iterator[dict[bytes, str]]:
    """Deal out members with scores so that none has two at a time, in the order of its scores.

    Args:
        pairs: members with scores.
        last: give each member its last score only.
    """
    found = dict(pairs)
    if last or len(found) == len(pairs):
        yield found
        return
    rounds: list[dict[bytes, str]] = []
    seen: Counter[bytes] = Counter()
    for member, score in pairs:
        if seen[member] == len(rounds):
            rounds.append({})
        rounds[seen[member]][member] = score
        seen[member] += 1
    yield from rounds
