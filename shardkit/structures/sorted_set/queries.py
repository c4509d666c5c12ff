"""What a sorted set in parts tells: scores, counts, ranks, and members in order.

Three kinds of reading, from cheap to expensive:

- of members: their parts are asked;
- of the first or last ones: every group has some at hand (`shardkit.structures.sorted_set.groups`);
- of anything else in order: scripts visit all parts of a group and give the first ones behind a
  score and member. So a page costs the same wherever it is, and nothing is kept between pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from shardkit.errors import InvalidArgumentError
from shardkit.operations.commands import Key
from shardkit.operations.operation import Face, Operation, Page, Stream, operation, pages, stream
from shardkit.structures.base.arguments import check_integer, shown
from shardkit.structures.base.members import M, Members
from shardkit.structures.layouts.structure import StructureWithLayout
from shardkit.structures.sorted_set.groups import Row, ScoredGroups, Window, everything
from shardkit.structures.sorted_set.scores import Limit, Score, lex_limit, limit, number

T = TypeVar("T")

MEMBERS_AT_ONCE = 10_000
# A stream in order begins with pages of so many, which become larger.
FIRST_PAGE = 1000
# Members of so many parts are in memory at a time.
PARTS_READ = 256
_LONGEST_RANK = 2**63 - 1


class OrderedReading(StructureWithLayout[Face], Generic[Face, M]):
    """What a sorted set in parts tells; see `shardkit.structures.sorted_set.sharded_sorted_set`.

    Attributes:
        layout: where its members live.
    """

    layout: ScoredGroups
    _members: Members[M]

    @operation
    def zscore(self, member: Key) -> Operation[float | None]:
        """Return a member's score; None if it is not there. Cost: one exchange."""
        sent = self._members.encode(member)
        yield from self._open()
        return _score((yield from self.layout.read_one("ZSCORE", sent)))

    @operation
    def zmscore(self, *members: Key) -> Operation[list[float | None]]:
        """Return the score of each member; None for what is not there.

        Cost: one exchange for 10,000 members, one command a part.
        """
        asked = [(self._members.encode(member), n) for n, member in enumerate(members)]
        found: list[float | None] = [None] * len(asked)
        if asked:
            yield from self._open()
        for page in pages(asked, MEMBERS_AT_ONCE):
            replies = yield from self.layout.read(page, lambda some, _: ("ZMSCORE", *some))
            for positions, scores in replies:
                for n, score in zip(positions, scores, strict=True):
                    found[n] = _score(score)
        return found

    @operation
    def zcard(self) -> Operation[int]:
        """Return how many members there are. Cost: one exchange, one command a group."""
        yield from self._open()
        return (yield from self.layout.count()) or 0

    @operation
    def zcount(self, low: Limit, high: Limit) -> Operation[int]:
        """Return how many members have a score within a range; see `zremrangebyscore`.

        Cost: one exchange for every 100,000 parts, one script for every 1,000, which visits them.
        """
        ends = limit(self.name, "low", low), limit(self.name, "high", high)
        yield from self._open()
        return (yield from self.layout.tally("ZCOUNT", *ends))

    @operation
    def zlexcount(self, low: str | bytes, high: str | bytes) -> Operation[int]:
        """Return how many members are within a range; see `zrangebylex`. Cost: as `zcount`."""
        ends = lex_limit(self.name, "low", low), lex_limit(self.name, "high", high)
        yield from self._open()
        return (yield from self.layout.tally("ZLEXCOUNT", *ends))

    @operation
    def zrank(self, member: Key) -> Operation[int | None]:
        """Return how many members are lower than one; None if it is not there.

        Expensive: all parts are asked. Who writes meanwhile may or may not be counted.

        Cost: one exchange, and then as `zcount`.
        """
        return (yield from self._rank(member, reverse=False))

    @operation
    def zrevrank(self, member: Key) -> Operation[int | None]:
        """Return how many members are higher than one; see `zrank`."""
        return (yield from self._rank(member, reverse=True))

    @operation
    def top(self, count: int) -> Operation[list[tuple[M, float]]]:
        """Return the highest members with their scores, highest first.

        Args:
            count: how many; at most 10,000. Up to ``bound`` they are at hand; more are found by
                visiting parts.

        Raises:
            InvalidArgumentError: it is no such number.

        Cost: one exchange or two, one command a group; beyond ``bound`` as `page`.
        """
        return (yield from self._best(count, everything(reverse=True)))

    @operation
    def bottom(self, count: int) -> Operation[list[tuple[M, float]]]:
        """Return the lowest members with their scores, lowest first; see `top`."""
        return (yield from self._best(count, everything(reverse=False)))

    @operation
    def page(
        self,
        after: tuple[Key, Score] | None = None,
        count: int = 100,
        *,
        reverse: bool = False,
        low: Limit = "-inf",
        high: Limit = "+inf",
    ) -> Operation[list[tuple[M, float]]]:
        """Return the members behind a certain one, in order: the next page of a list.

        A page costs the same wherever it is. The member that it begins behind need not be there any
        more.

        Args:
            after: a member and its score, the last one of the page before; None for the first page.
            count: how many; at most 10,000.
            reverse: whether to go from the highest to the lowest.
            low: the lowest score, see `zremrangebyscore`.
            high: the highest score.

        Raises:
            InvalidArgumentError: an argument does not fit.

        Cost: one exchange or two for up to 100,000 parts, one script for every 1,000, which visits
        them. The first page of all as `top` or `bottom`.
        """
        window = self._window(low, high, reverse=reverse)
        if after is not None:
            if not isinstance(after, tuple) or len(after) != 2:
                raise InvalidArgumentError(
                    f"{self.name}: after={shown(after)}",
                    "give a member and its score: the last ones of a page",
                )
            member = self._members.encode(after[0])
            score = number(f"{self.name}: after {shown(after[0])}", "score", after[1])
            window = window.behind((score, member))
        return (yield from self._best(count, window))

    @stream
    def zrange(
        self, start: int = 0, stop: int = -1, *, reverse: bool = False
    ) -> Stream[tuple[M, float]]:
        """Iterate over the members of some ranks, with their scores, in order.

        Args:
            start: the first one's rank, from 0; negative ones count from the end: -1 is the last.
            stop: the last one's rank.
            reverse: whether to count, and go, from the highest.

        Raises:
            InvalidArgumentError: one is no integer.

        Cost: within ``bound`` of either end as `top`. Otherwise everything before is read as well,
        as by `zrangebyscore`.
        """
        for field, rank in (("start", start), ("stop", stop)):
            check_integer(self.name, field, rank, -_LONGEST_RANK, _LONGEST_RANK)
        yield from self._open()
        if -MEMBERS_AT_ONCE <= start <= stop < 0:
            rows = yield from self.layout.first(everything(reverse=not reverse), -start)
            yield self._page(reversed(rows[-1 - stop :]))
            return
        if start < 0 or stop < -1:
            there = (yield from self.layout.count()) or 0
            start = max(0, start + there) if start < 0 else start
            if stop < -1:
                stop += there
                if stop < start:
                    return
        left = None if stop == -1 else stop + 1
        yield from self._stream(everything(reverse=reverse), self._page, left, start)

    @stream
    def zrangebyscore(
        self, low: Limit = "-inf", high: Limit = "+inf", *, reverse: bool = False
    ) -> Stream[tuple[M, float]]:
        """Iterate over the members with scores within a range, in order, with their scores.

        The sorted set may be written to meanwhile: a member whose score changes may come twice, or
        not; what is not touched comes once.

        Args:
            low: the lowest score, see `zremrangebyscore`.
            high: the highest score.
            reverse: whether to go from the highest to the lowest.

        Raises:
            InvalidArgumentError: an end is none.

        Cost: as `page`, for the first 1,000 members; then for the next 2,000, and so on to 10,000,
        which are in memory.
        """
        window = self._window(low, high, reverse=reverse)
        yield from self._open()
        yield from self._stream(window, self._page)

    @stream
    def zrangebylex(
        self, low: str | bytes = "-", high: str | bytes = "+", *, reverse: bool = False
    ) -> Stream[M]:
        """Iterate over the members within a range, in order of their bytes.

        Only if all scores are equal; otherwise it is anybody's guess what comes, as with the
        servers' ZRANGEBYLEX. Integers are in order of their digits.

        Args:
            low: ``"[member"``, or ``"(member"`` for what is behind it, or ``"-"`` for no end.
            high: likewise, or ``"+"``.
            reverse: whether to go from the last to the first.

        Raises:
            InvalidArgumentError: an end is none.

        Cost: as `zrangebyscore`.
        """
        ends = [lex_limit(self.name, "low", low), lex_limit(self.name, "high", high)]
        if reverse:
            ends.reverse()
        yield from self._open()
        window = Window(ends[0], ends[1], reverse, "LEX")
        decode = self._members.decode
        yield from self._stream(window, lambda rows: Page(decode(member) for _, member in rows))

    @stream
    def zscan_iter(self) -> Stream[tuple[M, float]]:
        """Iterate over all members with their scores, part by part, in no order.

        Each that is there throughout comes once. It may be written to meanwhile: what is added or
        removed may come or not.

        Cost: one command a part, an exchange for every 256, whose members are in memory. Much
        cheaper than `zrange`.
        """
        decode = self._members.decode
        yield from self._open()
        yield from self.layout.refresh()
        for chunk in self.layout.chunks(PARTS_READ):
            for _, flat in (
                yield from self.layout.read_parts(chunk, "ZRANGE", 0, -1, "WITHSCORES")
            ):
                yield Page(zip(map(decode, flat[::2]), map(float, flat[1::2]), strict=True))

    def _page(self, rows: Iterable[Row]) -> Page[tuple[M, float]]:
        decode = self._members.decode
        return Page((decode(member), score) for score, member in rows)

    def _window(self, low: Limit, high: Limit, *, reverse: bool) -> Window:
        ends = [limit(self.name, "low", low), limit(self.name, "high", high)]
        if reverse:
            ends.reverse()
        return Window(ends[0], ends[1], reverse)

    def _best(self, count: int, window: Window) -> Operation[list[tuple[M, float]]]:
        check_integer(self.name, "count", count, 0, MEMBERS_AT_ONCE)
        yield from self._open()
        if count == 0:
            return []
        return self._page((yield from self.layout.first(window, count)))

    def _stream(
        self,
        window: Window,
        give: Callable[[Sequence[Row]], Page[T]],
        left: int | None = None,
        skip: int = 0,
    ) -> Stream[T]:
        """Give out the rows of a window, page by page: so many, less the first ones."""
        size = FIRST_PAGE
        while left is None or left > 0:
            wanted = size if left is None else min(size, left)
            rows = yield from self.layout.first(window, wanted)
            yield give(rows[skip:])
            if len(rows) < wanted:
                return
            window = window.behind(rows[-1])
            skip = max(0, skip - len(rows))
            left = None if left is None else left - len(rows)
            size = min(2 * size, MEMBERS_AT_ONCE)

    def _rank(self, member: Key, *, reverse: bool) -> Operation[int | None]:
        sent = self._members.encode(member)
        yield from self._open()
        score: bytes | None = yield from self.layout.read_one("ZSCORE", sent)
        if score is None:
            return None
        ends = (b"(" + score, "+inf") if reverse else ("-inf", b"(" + score)
        return (yield from self.layout.tally("ZCOUNT", *ends, score, sent, int(reverse)))


def _score(reply: bytes | None) -> float | None:
    return None if reply is None else float(reply)
