"""Ranges of scores over many ZSETs: what ZRANGEBYSCORE gives, in one order over all of them.

A sorted set in parts, one on each shard, is read as if it were one: each part gives its first
members of the range, and these are merged by score, and by member where scores are equal::

    part 0    1 ann   3 eve   3 ivo   7 pat ┐
    part 1    2 bob   3 dan                 ├─►  1 ann   2 bob   3 cal   3 dan   3 eve  …
    part 2    3 cal   9 zoe                 ┘    the first five of them all

The next page begins behind the last row of the one before: its cursor is a score and a member.
The cursor is exclusive, so that nothing comes twice, and total, so that nothing is left out however
many scores are equal. A script finds its rank in each part, by halves among the members of that
score, so a page costs the same wherever it begins, and the cursor's member need not be there any
more, nor ever have been in that part::

    after (3, dan)    part 0: rank 1      part 1: rank 2, the end      part 2: rank 1

Of n parts each has about an nth of a page. So each is asked for somewhat more than its share, and
asked again only where that was too little: a page of 1,000 over 16 parts reads some 1,400 members,
not 16,000. After Redis in Action, section 10.3.4, where each shard gives a whole page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, sqrt
from typing import Generic, TypeAlias

from shardkit.errors import InvalidArgumentError, InvalidKeyError
from shardkit.lua import script
from shardkit.operations.commands import Command, Key, Shard, ShardOf, To, script_call
from shardkit.operations.operation import (
    Deferred,
    Driver,
    Face,
    Operation,
    Page,
    Stream,
    Structure,
    operation,
    stream,
)
from shardkit.routing.keys import key_bytes
from shardkit.structures.base.arguments import check_integer, check_name, shown
from shardkit.structures.base.members import M, Members
from shardkit.structures.sorted_set.scores import Limit, Score, limit, number

# A score and a member: rows behind it are wanted.
Cursor: TypeAlias = tuple[Score, Key]

MOST_ROWS = 10_000
MOST_PLACES = 10_000
FIRST_PAGE = 1000


def range_over(
    places: Sequence[tuple[To, Key]],
    low: Limit,
    high: Limit,
    num: int,
    after: Cursor | None = None,
    reverse: bool = False,
) -> Operation[list[tuple[bytes, float]]]:
    """Return the first members of a range of scores, over many ZSETs: steps for ``yield from``.

    Args:
        places: the ZSETs, each where it lives and its key. One that does not exist is empty. A
            member should be in one of them only: in two, it comes twice.
        low: the lowest score: a number; or text, ``"-inf"``, or ``"(1.5"`` for what is above 1.5.
        high: the highest score, likewise.
        num: how many at most, 0 to 10,000.
        after: the score and the member of the row behind which to begin, which is not returned;
            None for the first page. The member need not be there any more.
        reverse: whether to go from the highest to the lowest.

    Returns:
        Pairs (member, score), in order of score, and of their bytes where scores are equal; in
        reverse all of it the other way round, as the servers have it.

    Raises:
        InvalidArgumentError: an argument does not fit.
        ShardErrors: a shard failed.

    Cost: one exchange with all shards concerned, O(log n + num / places) for each ZSET of n
    members, behind a cursor whose member is gone O(log² n); one more for those ZSETs that have much
    more than their share of the range.
    """
    ends = limit("score range", "low", low), limit("score range", "high", high)
    check_integer("score range", "num", num, 0, MOST_ROWS)
    if len(places) > MOST_PLACES:
        raise InvalidArgumentError(
            f"a score range over {len(places):,} sorted sets", f"give at most {MOST_PLACES:,}"
        )
    start = None if after is None else _cursor(after)
    if not num or not places:
        return []
    share = num / len(places)
    most = num if len(places) == 1 else min(num, ceil(share + 3 * sqrt(share)) + 1)
    parts = [_Part(to, key, start) for to, key in places]
    asking = parts
    while asking:
        replies = yield [part.command(ends, most, reverse) for part in asking]
        for part, reply in zip(asking, replies, strict=True):
            part.take_in(reply, most, reverse)
        rows = [row for part in parts for row in part.rows]
        rows.sort(reverse=reverse)
        del rows[num:]
        # A part may have more rows before the last one, or to fill the page.
        asking = [part for part in parts if part.may_have_more(rows, num, reverse)]
        most = num
    return [(member, score) for score, member in rows]


@dataclass(slots=True)
class _Part:
    """One ZSET while it is read: the rows that were found, and behind which one to go on."""

    to: To
    key: Key
    after: tuple[float, bytes] | None
    rows: list[tuple[float, bytes]] = field(default_factory=list)
    ended: bool = False

    def command(self, ends: tuple[str, str], most: int, reverse: bool) -> Command:
        low, high = ends
        if self.after is None:
            by = (high, low, "BYSCORE", "REV") if reverse else (low, high, "BYSCORE")
            args = ("ZRANGE", self.key, *by, "LIMIT", 0, most, "WITHSCORES")
            return Command(self.to, self.key, args, None, True)
        score, member = self.after
        sent = (low, high, most, int(reverse), repr(score), member)
        return script_call(
            self.to, script("structures/sorted_set/score_range"), [self.key], sent, idempotent=True
        )

    def take_in(self, flat: Sequence[bytes], most: int, reverse: bool) -> None:
        found = [
            (float(score), member) for member, score in zip(flat[::2], flat[1::2], strict=True)
        ]
        self.ended = len(found) < most
        if found:
            self.rows += found
            self.after = min(found) if reverse else max(found)

    def may_have_more(self, rows: Sequence[tuple[float, bytes]], num: int, reverse: bool) -> bool:
        if self.ended or self.after is None:
            return False
        if len(rows) < num:
            return True
        return self.after > rows[-1] if reverse else self.after < rows[-1]


def _cursor(after: Cursor) -> tuple[float, bytes]:
    unchecked: object = after
    if isinstance(unchecked, tuple | list) and len(unchecked) == 2:
        try:
            return number("score range: after", "score", unchecked[0]), key_bytes(unchecked[1])
        except InvalidKeyError:
            pass
    raise InvalidArgumentError(
        f"score range: after={shown(after)}", "give a score and a member: those of the last row"
    )


class ScoreRanges(Structure[Face], Generic[Face, M]):
    """Reads a sorted set in as many parts as there are shards. Made by ``kit.score_ranges``.

    It does not write: who does decides which member goes to which part, by whatever it likes.

    Args:
        driver: what runs its operations.
        component: where the parts are.
        name: what their keys are made of.
        shards: how many parts there are: as many as the component has shards. Over an unsharded
            component or a cluster, any number.
        members: int, str or bytes: what members come back as.
        one_key: whether part n is the key ``name`` itself, on shard n of a sharded component; by
            default it is ``{name:n}``, on shard n, or on the one server or cluster.

    Raises:
        InvalidArgumentError: an argument does not fit.
    """

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str,
        shards: int,
        members: type[M] = str,  # type: ignore[assignment]  # kit.score_ranges has the overloads
        one_key: bool = False,
    ) -> None:
        check_name(name)
        check_integer(name, "shards", shards, 1, MOST_PLACES)
        super().__init__(driver, component, name)
        self._members: Members[M] = Members(members, name)
        self.places: list[tuple[To, Key]]
        if one_key:
            self.places = [(Shard(component, n), name) for n in range(shards)]
        else:
            self.places = [
                (ShardOf(component, n, shards), part_key(name, n)) for n in range(shards)
            ]

    @property
    def deferred(self) -> ScoreRanges[Deferred, M]:
        """The same with the face whose calls return steps, for ``yield from`` and ``together``."""
        return self._deferred()  # type: ignore[return-value]

    @operation
    def zrangebyscore(
        self, low: Limit, high: Limit, num: int, after: Cursor | None = None
    ) -> Operation[list[tuple[M, float]]]:
        """Return the first members with scores within a range, lowest first; see `range_over`."""
        return self._page((yield from self._range(low, high, num, after, False)))

    @operation
    def zrevrangebyscore(
        self, high: Limit, low: Limit, num: int, after: Cursor | None = None
    ) -> Operation[list[tuple[M, float]]]:
        """Return the last members with scores within a range, highest first; see `range_over`.

        As with the servers' command, the highest score is given first.
        """
        return self._page((yield from self._range(low, high, num, after, True)))

    @stream
    def zrange_all(
        self, low: Limit = "-inf", high: Limit = "+inf", *, reverse: bool = False
    ) -> Stream[tuple[M, float]]:
        """Iterate over all members with scores within a range, in order.

        It may be written to meanwhile: a member whose score changes may come twice or not; what is
        not touched comes once.

        Cost: as `range_over` for the first 1,000, then for the next 2,000, and so on to 10,000.
        """
        after, size = None, FIRST_PAGE
        while True:
            rows = yield from range_over(self.places, low, high, size, after, reverse)
            yield self._page(rows)
            if len(rows) < size:
                return
            member, score = rows[-1]
            after, size = (score, member), min(2 * size, MOST_ROWS)

    def _range(
        self, low: Limit, high: Limit, num: int, after: Cursor | None, reverse: bool
    ) -> Operation[list[tuple[bytes, float]]]:
        if isinstance(after, tuple) and len(after) == 2:
            after = after[0], self._members.encode(after[1])
        return range_over(self.places, low, high, num, after, reverse)

    def _page(self, rows: Sequence[tuple[bytes, float]]) -> Page[tuple[M, float]]:
        decode = self._members.decode
        return Page((decode(member), score) for member, score in rows)


def part_key(name: str, number: int) -> str:
    """Return the key of a part: a tag, so that more keys of the part can live beside it."""
    return f"{{{name}:{number}}}"
