"""Ranges of scores over many ZSETs: what ZRANGEBYSCORE returns, merged into one order.

The next page begins after the last row of the previous one: that row, a member and its score, is
the cursor. It is exclusive, so nothing comes twice, and total, so nothing is left out however many
scores are equal. A script finds its rank in each part, by bisecting the members with that score, so
a page costs the same wherever it begins, and the cursor's member need not exist.

Of n parts each has about an nth of a page. So a reader fetches somewhat more than its share from
each, and more only where that was too little. After Redis in Action, section 10.3.4, where each
shard returns a whole page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, inf, sqrt
from typing import Any, Generic, TypeAlias

from shardkit.callbacks import run
from shardkit.errors import InvalidArgumentError, InvalidKeyError, counted
from shardkit.operations.arguments import shown
from shardkit.operations.commands import Command, Key, Shard, ShardOf, To
from shardkit.operations.lua import lua_call
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
from shardkit.routing.keys import key_bytes
from shardkit.structures.base.arguments import check_integer, check_name
from shardkit.structures.base.members import M, Members, Place, find
from shardkit.structures.sorted_set.groups import Row, scored_rows
from shardkit.structures.sorted_set.sharded_sorted_set import (
    CastScore,
    Score,
    ScoreBound,
    ScoreQueries,
    check_cursor,
    offset_and_limit,
    score_bound,
)

# The last row of a page, a member and its score: the next page begins after it.
RangeCursor: TypeAlias = tuple[Key, Score]

MOST_ROWS = 10_000
MOST_PLACES = 10_000
FIRST_PAGE = 1000


def range_over(
    places: Sequence[tuple[To, Key]],
    min: ScoreBound,
    max: ScoreBound,
    limit: int,
    cursor: RangeCursor | None = None,
    desc: bool = False,
) -> Operation[list[tuple[bytes, float]]]:
    """Return the first members of a range of scores, over many ZSETs: steps for ``yield from``.

    Args:
        places: the ZSETs: for each, where it lives and its key. A missing one is empty. A member
            should be in only one of them; otherwise it comes more than once.
        min: the lowest score: a number; or text, ``"-inf"``, or ``"(1.5"`` to exclude 1.5.
        max: the highest score, in the same forms.
        limit: how many at most, 0 to 10,000.
        cursor: the last row of the previous page, a member and its score, which is not returned
            again; None for the first page. The member need not exist any more.
        desc: whether to go from the highest to the lowest.

    Returns:
        Pairs (member, score), in order of score, and of their bytes where scores are equal; with
        ``desc`` in the opposite order, as the servers have it.

    Cost: one exchange with all shards concerned, O(log n + limit / places) per ZSET of n members,
    O(log² n) after a cursor whose member is gone; one more exchange for ZSETs that hold much more
    than their share of the range.
    """
    bounds = score_bound("score range", "min", min), score_bound("score range", "max", max)
    check_integer("score range", "limit", limit, 0, MOST_ROWS)
    if len(places) > MOST_PLACES:
        raise InvalidArgumentError(
            f"a score range over {counted(len(places), 'sorted set')}",
            f"give at most {MOST_PLACES:,}",
        )
    after = None if cursor is None else _row(cursor)
    if not limit or not places:
        return []
    share = limit / len(places)
    size = sorted((limit, ceil(share + 3 * sqrt(share)) + 1))[0]
    readers = [_ZsetReader(to, key, after) for to, key in places]
    reading = readers
    while reading:
        replies = yield [reader.command(bounds, size, desc) for reader in reading]
        for reader, reply in zip(reading, replies, strict=True):
            reader.add(reply, size, desc)
        rows = [row for reader in readers for row in reader.rows]
        rows.sort(reverse=desc)
        del rows[limit:]
        # A ZSET may have more rows before the last one, or to fill the page.
        reading = [reader for reader in readers if reader.may_have_more(rows, limit, desc)]
        size = limit
    return [(member, score) for score, member in rows]


@dataclass(slots=True)
class _ZsetReader:
    """Reads one ZSET: the rows so far, and after which one to continue."""

    to: To
    key: Key
    after: Row | None
    rows: list[Row] = field(default_factory=list)
    ended: bool = False

    def command(self, bounds: tuple[str, str], size: int, desc: bool) -> Command:
        low, high = bounds
        if self.after is None:
            by = (high, low, "BYSCORE", "REV") if desc else (low, high, "BYSCORE")
            args = ("ZRANGE", self.key, *by, "LIMIT", 0, size, "WITHSCORES")
            return Command(self.to, self.key, args)
        score, member = self.after
        sent = (low, high, size, int(desc), repr(score), member)
        return lua_call(self.to, "structures/sorted_set/score_range", [self.key], sent)

    def add(self, flat: Sequence[bytes], size: int, desc: bool) -> None:
        fresh = scored_rows(flat)
        self.ended = len(fresh) < size
        if fresh:
            self.rows += fresh
            self.after = min(fresh) if desc else max(fresh)

    def may_have_more(self, rows: Sequence[Row], limit: int, desc: bool) -> bool:
        if self.ended or self.after is None:
            return False
        if len(rows) < limit:
            return True
        return self.after > rows[-1] if desc else self.after < rows[-1]


def _row(cursor: RangeCursor) -> Row:
    member, score = check_cursor("score range", cursor)
    try:
        return score, key_bytes(member)
    except InvalidKeyError:
        raise InvalidArgumentError(
            f"score range: cursor={shown(cursor)}",
            "give a cursor whose member is an int, str or bytes",
        ) from None


class ScoreRanges(ScoreQueries[Face], Generic[Face, M]):
    """Reads a sorted set that has one part on each shard. Made by ``kit.score_ranges``.

    It only reads: which member goes to which part is up to the application that writes.

    Args:
        driver, component, name: see `shardkit.operations.Structure`.
        shards: how many parts there are: as many as the component has shards. Over an unsharded
            component or a cluster, any number.
        members: int, str or bytes: the type in which members are returned.
        one_key: whether part n is the key ``name`` itself, on shard n of a sharded component; by
            default it is ``{name:n}``, on shard n, or on the one server or cluster.
    """

    deferred: DeferredFace[ScoreRanges[Deferred, M]]

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
        self._members: Members[M] = Members(
            members, name, lambda member: find(self.places, "ZSCORE", member)
        )
        self.places: list[Place]
        if one_key:
            self.places = [(Shard(component, n), name) for n in range(shards)]
        else:
            self.places = [
                (ShardOf(component, n, shards), part_key(name, n)) for n in range(shards)
            ]

    @operation
    def page(
        self,
        cursor: RangeCursor | None = None,
        limit: int = 100,
        *,
        desc: bool = False,
        min: ScoreBound = "-inf",
        max: ScoreBound = "+inf",
    ) -> Operation[list[tuple[M, float]]]:
        """Return the members after a cursor, in order, with their scores; see `range_over`."""
        if isinstance(cursor, tuple) and len(cursor) == 2:
            cursor = self._members.encode(cursor[0]), cursor[1]
        return self._page((yield from range_over(self.places, min, max, limit, cursor, desc)))

    @stream
    def range_iter(
        self, min: ScoreBound = "-inf", max: ScoreBound = "+inf", *, desc: bool = False
    ) -> Stream[tuple[M, float]]:
        """Iterate over the members with scores within a range, in order, with their scores.

        The parts may change in the meantime: a member whose score changes may be returned twice or
        not at all; all others are returned once.

        Cost: as `range_over` for the first 1,000, then for the next 2,000, and so on to 10,000.
        """
        cursor, size = None, FIRST_PAGE
        while True:
            rows = yield from range_over(self.places, min, max, size, cursor, desc)
            yield self._page(rows)
            if len(rows) < size:
                return
            cursor, size = rows[-1], MOST_ROWS if 2 * size > MOST_ROWS else 2 * size

    def _scores(
        self,
        low: ScoreBound,
        high: ScoreBound,
        start: int | None,
        num: int | None,
        cast: CastScore | None,
        *,
        desc: bool,
    ) -> Operation[list[Any]]:
        offset, limit = offset_and_limit(self.name, start, num)
        left = inf if limit is None else offset + limit
        rows: list[tuple[bytes, float]] = []
        cursor = None
        while left > 0:
            size = int(min(left, MOST_ROWS))
            batch = yield from range_over(self.places, low, high, size, cursor, desc)
            rows += batch
            if len(batch) < size:
                break
            cursor, left = batch[-1], left - size
        page = self._page(rows[offset:])
        if cast is None:
            return [member for member, _ in page]
        return [(member, run(cast, score)) for member, score in page]

    def _page(self, rows: Sequence[tuple[bytes, float]]) -> Page[tuple[M, float]]:
        decode = self._members.decode
        return Page((decode(member), score) for member, score in rows)


def part_key(name: str, number: int) -> str:
    """Return the key of a part: a tag, so that more keys of the part can live beside it."""
    check_integer(name, "number", number, 0, MOST_PLACES - 1)
    return f"{{{name}:{number}}}"
