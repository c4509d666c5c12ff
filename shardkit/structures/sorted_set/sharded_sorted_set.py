"""A large ZSET as many small ones, its highest and lowest members at hand.

A server keeps a ZSET as a *listpack*, one block of bytes, as long as it has few short members; a
larger one becomes a hash table and a skip list. So a sorted set is kept in parts, by the hash of
the member, that split as they fill (`layouts.growing`). docs/sorted-sets.md shows the keys, what
they take, and what calls cost.

The most frequent reads, of the first or last members, would otherwise visit every part. So every
script that changes members also updates top and bottom of their group (`sorted_set.groups`,
``lua/bounds.lua``): they are exact at all times. All other reads in order, ranges of scores, pages
and ranks, visit all parts, some 400 per script, and merge the results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import isnan
from typing import Any, ClassVar, Generic, TypeAlias

from shardkit.callbacks import run
from shardkit.errors import InvalidArgumentError, InvalidKeyError, counted
from shardkit.operations.arguments import is_number, rows_of, shown
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
    Structure,
    operation,
    pages,
    stream,
)
from shardkit.routing.keys import key_bytes
from shardkit.structures.base.arguments import MOST_MEMBERS, check_integer, check_some
from shardkit.structures.base.damage import damage
from shardkit.structures.base.members import M, Members
from shardkit.structures.layouts.growing import GROUPS, check_groups
from shardkit.structures.layouts.structure import StructureWithLayout
from shardkit.structures.sorted_set.groups import (
    FULL_RANGES,
    OrderedRange,
    RangeReader,
    Row,
    ScoredGroups,
    read_range,
    read_ranks,
    removing,
    scored,
)

HIGHEST_RANK = 2**63 - 1

Score: TypeAlias = int | float
# Members with scores. (A mapping's keys are invariant: hence Any.)
Scored: TypeAlias = Mapping[Any, Score] | Iterable[tuple[Key, Score]]
# The bound of a range: a score, or text as in Redis: "(1.5", "-inf".
ScoreBound: TypeAlias = Score | str
# redis-py's score_cast_func.
CastScore: TypeAlias = Callable[[float], Any]


def check_score(owner: str, field: str, value: object) -> float:
    """Return a score as a float."""
    if is_number(value):
        return float(value)
    raise InvalidArgumentError(f"{owner}: {field}={shown(value)}", "give a number, not NaN")


def score_bound(owner: str, field: str, value: ScoreBound) -> str:
    """Return the bound of a range of scores as it is sent: the shortest exact text of a double."""
    if not isinstance(value, str):
        return repr(check_score(owner, field, value))
    outside = value[:1] == "("
    try:
        score = float(value[outside:])
    except ValueError:
        score = float("nan")
    if isnan(score):
        raise InvalidArgumentError(
            f"{owner}: {field}={shown(value)}",
            'give a score, "-inf", "+inf", or "(1.5" to exclude it',
        )
    return "(" * outside + repr(score)


def lex_bound(owner: str, field: str, value: str | bytes) -> bytes:
    """Return the bound of a range of members as it is sent."""
    try:
        sent = key_bytes(value) if isinstance(value, str | bytes) else b""
    except InvalidKeyError:
        sent = b""
    if sent in (b"-", b"+") or sent[:1] in (b"[", b"("):
        return sent
    raise InvalidArgumentError(
        f"{owner}: {field}={shown(value)}", 'give "-", "+", "[member", or "(member" to exclude it'
    )


def zadd_options(owner: str, *, nx: bool, xx: bool, gt: bool, lt: bool, ch: bool) -> list[Argument]:
    """Return the options of a ZADD."""
    given = {"NX": nx, "XX": xx, "GT": gt, "LT": lt, "CH": ch}
    options: list[Argument] = [name for name, wanted in given.items() if wanted]
    if (gt and lt) or (nx and (xx or gt or lt)):
        names = ", ".join(f"{str(name).lower()}=True" for name in options if name != "CH")
        raise InvalidArgumentError(
            f"{owner}: {names} are mutually exclusive",
            "give nx alone, or at most one of gt and lt, with or without xx",
        )
    return options


def offset_and_limit(owner: str, start: int | None, num: int | None) -> tuple[int, int | None]:
    """Return a LIMIT as the rows to skip and the rows to return, None for all."""
    if start is None or num is None:
        if start is not num:
            raise InvalidArgumentError(
                f"{owner}: only one of start (offset) and num", "give both or neither"
            )
        return 0, None
    check_integer(owner, "start", start, 0, HIGHEST_RANK)
    check_integer(owner, "num", num, -HIGHEST_RANK, HIGHEST_RANK)
    return start, None if num < 0 else num


def check_cursor(owner: str, cursor: object) -> tuple[Key, float]:
    """Return the member and score of a cursor."""
    if not isinstance(cursor, tuple | list) or len(cursor) != 2:
        raise InvalidArgumentError(
            f"{owner}: cursor={shown(cursor)}", "give a member and its score: a page's last row"
        )
    return cursor[0], check_score(f"{owner}: cursor {shown(cursor[0])}", "score", cursor[1])


def as_pairs(owner: str, given: Scored) -> Iterable[tuple[Key, Score]]:
    """Return members with scores, from a mapping or from pairs, which are read one by one."""
    if isinstance(given, Mapping):
        return given.items()
    return rows_of(owner, "pairs", given, "(member, score)", 2, 2)


class ScoreQueries(Structure[Face]):
    """ZRANGEBYSCORE and ZREVRANGEBYSCORE with redis-py's arguments."""

    # Returns the members with scores within a range; with ``cast``, pairs with the scores.
    _scores: Callable[..., Operation[list[Any]]]

    @operation
    def zrangebyscore(
        self,
        min: ScoreBound,
        max: ScoreBound,
        start: int | None = None,
        num: int | None = None,
        withscores: bool = False,
        score_cast_func: CastScore = float,
    ) -> Operation[list[Any]]:
        """Return the members with scores within a range, lowest first.

        Args:
            min: the lowest score, ``"(1.5"`` to exclude that score itself, or ``"-inf"``.
            max: the highest score, in the same forms.
            start: how many members to skip; `page` skips without reading them.
            num: how many to return, given with ``start``; negative for all.
            withscores: whether to return pairs ``(member, score)``.
            score_cast_func: converts each score.

        Cost: as `page` for every 10,000 members, skipped ones included; of a `ShardedSortedSet` for
        an eighth of all if that is more.
        """
        cast = score_cast_func if withscores else None
        return (yield from self._scores(min, max, start, num, cast, desc=False))

    @operation
    def zrevrangebyscore(
        self,
        max: ScoreBound,
        min: ScoreBound,
        start: int | None = None,
        num: int | None = None,
        withscores: bool = False,
        score_cast_func: CastScore = float,
    ) -> Operation[list[Any]]:
        """Return the members with scores within a range, highest first; see `zrangebyscore`."""
        cast = score_cast_func if withscores else None
        return (yield from self._scores(min, max, start, num, cast, desc=True))


DEFAULT_PART_SIZE = 128
DEFAULT_BOUND = 100
MOST_BOUND = 100_000
MEMBERS_AT_ONCE = 10_000
# How often a pop of the same members may fail before it is damage and not a race.
SAME_IN_VAIN = 5
# How many parts `zscan_iter` reads at a time.
PARTS_READ = 256


class ShardedSortedSet(StructureWithLayout[Face], ScoreQueries[Face], Generic[Face, M]):
    """A ZSET in parts, over one server or many. Made by ``kit.sorted_set``.

    Members are in order of score, and of their bytes where scores are equal, as in a ZSET. Scores
    are doubles, including infinite ones.

    Args:
        driver, component, name: see `shardkit.operations.Structure`.
        total: about how many members it will have, if known: it starts with as many parts and need
            not split them at first. More or fewer are fine.
        part_size: how many members a part may have: at most the servers'
            ``zset-max-listpack-entries``. A larger one than the server's is logged as a warning.
        bound: how many of the highest, and of the lowest, members are cached; 0 for none.
        members: int, str or bytes: the type in which members are returned.
        parts: how many parts it begins with, at least; each splits as it fills. A power of two, at
            least the number of shards. Small sorted sets need few.

    Errors and the first call: see `shardkit.structures`. A call that changes members sends one
    script per group, with up to 500 members each: changes within a group are atomic, of several are
    not.
    """

    deferred: DeferredFace[ShardedSortedSet[Deferred, M]]

    kind: ClassVar[str] = "sorted-set"
    _form = "zset"
    layout: ScoredGroups

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str,
        total: int | None = None,
        part_size: int | None = None,
        bound: int = DEFAULT_BOUND,
        members: type[M] = str,  # type: ignore[assignment]  # kit.sorted_set has exact overloads
        parts: int = GROUPS,
    ) -> None:
        self._members = Members(members, name, self._find)
        if part_size is None:
            part_size = DEFAULT_PART_SIZE
        check_integer(name, "part_size", part_size, 1, MOST_MEMBERS)
        check_integer(name, "bound", bound, 0, MOST_BOUND)
        check_groups(name, parts)
        if total is not None:
            check_integer(name, "total", total, 1, MOST_MEMBERS)
        self.part_size = self._largest_part = part_size
        self.bound = bound
        self.layout = ScoredGroups(component, name, part_size, parts, bound, total or 1)
        parameters = {"groups": parts, "part_size": part_size, "bound": bound}
        super().__init__(driver, component, name, {**parameters, "members": members.__name__})

    # ---- writing

    @operation
    def zadd(
        self,
        mapping: Scored,
        nx: bool = False,
        xx: bool = False,
        ch: bool = False,
        incr: bool = False,
        gt: bool = False,
        lt: bool = False,
    ) -> Operation[Any]:
        """Add members, or change their scores; return how many were added.

        Args:
            mapping: scores by member; or pairs ``(member, score)``.
            nx: only add new members.
            xx: only change existing members.
            ch: return how many were added or changed.
            incr: add to the score of the one member given; return its new score, or None if the
                other options prevented it.
            gt: change a score only to a higher one; new members are still added.
            lt: change a score only to a lower one; new members are still added.

        Cost: one exchange per 10,000 members, one script per group.
        """
        options = zadd_options(self.name, nx=nx, xx=xx, gt=gt, lt=lt, ch=ch)
        sent = [self._scored(*pair) for pair in as_pairs(self.name, mapping)]
        if incr:
            if len(sent) != 1:
                raise InvalidArgumentError(
                    f"{self.name}: incr=True with {counted(len(sent), 'member')}",
                    "give exactly one",
                )
            return (yield from self._increase(sent, options))
        check_some(self.name, "zadd", sent, "member with its score")
        added = 0
        for page in pages(sent, MEMBERS_AT_ONCE):
            added += yield from self._zadd(page, options)
        return added

    @operation
    def zadd_many(
        self,
        pairs: Iterable[tuple[Key, Score]],
        *,
        nx: bool = False,
        xx: bool = False,
        ch: bool = False,
        gt: bool = False,
        lt: bool = False,
    ) -> Operation[int]:
        """Add any number of members, 10,000 per exchange; return how many were added.

        ``pairs`` is any iterable of ``(member, score)``. The options are those of `zadd`.
        """
        options = zadd_options(self.name, nx=nx, xx=xx, gt=gt, lt=lt, ch=ch)
        added = 0
        for page in pages(as_pairs(self.name, pairs), MEMBERS_AT_ONCE):
            added += yield from self._zadd([self._scored(*pair) for pair in page], options)
        return added

    @operation
    def zincrby(self, amount: Score, value: Key) -> Operation[float]:
        """Add to the score of a member, 0 if it is new; return its new score. Cost: one exchange.

        ShardErrors if the sum is not a number (infinity minus infinity).
        """
        added = check_score(f"{self.name}: member {shown(value)}", "amount", amount)
        sent = [(self._members.encode(value), repr(added))]
        score: float = yield from self._increase(sent, ())
        return score

    @operation
    def zrem(self, *values: Key) -> Operation[int]:
        """Remove members; return how many existed. Cost: as `zadd`."""
        sent = dict.fromkeys(map(self._members.encode, values))
        check_some(self.name, "zrem", sent, "member")
        yield from self._open()
        removed = 0
        for page in pages(sent.items(), MEMBERS_AT_ONCE):
            replies = yield from self.layout.write(page, removing, adds=False)
            removed += sum(count for _, count in replies)
        return removed

    @operation
    def zpopmin(self, count: int | None = None) -> Operation[list[tuple[M, float]]]:
        """Remove the lowest members and return them with their scores, lowest first.

        No member is returned to two callers. The members were the lowest when they were read; a
        lower one that is added just then stays. If another client pops one of them, or changes its
        score, the next lowest is read instead. If shards fail, members on the others were removed
        but are not returned: where that matters, pop one at a time.

        Args:
            count: how many, at most 10,000; one unless given.

        Cost: two exchanges or more; the first as `bottom`.
        """
        return (yield from self._pop(count, desc=False))

    @operation
    def zpopmax(self, count: int | None = None) -> Operation[list[tuple[M, float]]]:
        """Remove the highest members and return them, highest first; see `zpopmin`."""
        return (yield from self._pop(count, desc=True))

    @operation
    def zremrangebyscore(self, min: ScoreBound, max: ScoreBound) -> Operation[int]:
        """Remove the members with scores within a range; return how many.

        Args:
            min: the lowest score, ``"(1.5"`` to exclude that score itself, or ``"-inf"``.
            max: the highest score, in the same forms.

        Cost: one script per group, which visits its parts; two exchanges, more above 100,000 parts.
        """
        bounds = score_bound(self.name, "min", min), score_bound(self.name, "max", max)
        yield from self._open()
        return (yield from self.layout.remove_range(*bounds))

    @operation
    def zremrangebyrank(self, min: int, max: int) -> Operation[int]:
        """Remove the members of some ranks whose scores do not change meanwhile; return how many.

        Args:
            min: the lowest rank, from 0; negative ones count from the highest: -1 is the last.
            max: the highest rank.

        Cost: as `zrange`, and as `zrem`.
        """
        self._check_ranks(min=min, max=max)
        yield from self._open()
        rows = yield from read_ranks(self.layout, min, max)
        removed = 0
        for page in pages(rows, MEMBERS_AT_ONCE):
            removed += len((yield from self._remove_unchanged(page)))
        return removed

    @operation
    def copy_from(self, key: Key) -> Operation[int]:
        """Add the members of a plain ZSET of the same component; return how many are new.

        The ZSET is not changed: check the result, then remove it. Changes made to it in between may
        be missed; repeat the call. Cost: two exchanges per 1,000 members.
        """

        def add(flat: list[bytes]) -> Operation[int]:
            pairs = zip(flat[::2], map(float, flat[1::2]), strict=True)
            return self.deferred.zadd_many(pairs)

        return (yield from self._copy("ZSCAN", key, add))

    @operation
    def rebuild(self) -> Operation[int]:
        """Repair what `check` finds, and rebuild each group's top and bottom; return the count.

        Normal use never needs it. Cost: as `check`, and `zremrangebyscore`. See
        `ShardedSet.rebuild`.
        """
        yield from self._rebuild()
        return (yield from self._count())

    def _add_if_absent(self, members: list[bytes], values: list[Any]) -> tuple[Argument, ...]:
        return scored("ADD", "NX")(members, [repr(score) for score in values])

    # ---- members

    @operation
    def zscore(self, value: Key) -> Operation[float | None]:
        """Return a member's score; None if it does not exist. Cost: one exchange."""
        sent = self._members.encode(value)
        yield from self._open()
        return _score((yield from self.layout.read_one("ZSCORE", sent)))

    @operation
    def zmscore(self, members: Iterable[Key]) -> Operation[list[float | None]]:
        """Return the score of each member; None for those that do not exist.

        Cost: one exchange per 10,000 members, one command per part.
        """
        encoded = [(self._members.encode(member), n) for n, member in enumerate(members)]
        check_some(self.name, "zmscore", encoded, "member")
        results: list[float | None] = [None] * len(encoded)
        yield from self._open()
        for page in pages(encoded, MEMBERS_AT_ONCE):
            replies = yield from self.layout.read(page, lambda stored, _: ("ZMSCORE", *stored))
            for positions, scores in replies:
                for n, score in zip(positions, scores, strict=True):
                    results[n] = _score(score)
        return results

    @stream
    def zscan_iter(
        self, match: Key | None = None, count: int | None = None, score_cast_func: CastScore = float
    ) -> Stream[tuple[M, Any]]:
        """Iterate over all members with their scores, part by part, in no order.

        A member that exists throughout is returned once; one that is added or removed in the
        meantime might not be.

        Args:
            match: only members that match this pattern, as SCAN takes it.
            count: about how many members to read per exchange; a hint, as for SCAN.
            score_cast_func: converts each score.

        Cost: one command per part, 256 parts per exchange unless ``count`` is given; their members
        are in memory. Much cheaper than `range_iter`.
        """
        decode = self._members.decode
        command: tuple[Argument, ...] = ("ZRANGE", 0, -1, "WITHSCORES")
        if match is not None:
            command = ("ZSCAN", 0, "MATCH", match, "COUNT", MOST_MEMBERS)
        seen = 0
        for chunk in (yield from self._chunks(PARTS_READ, count)):
            name, *args = command
            for _, reply in (yield from self.layout.read_parts(chunk, str(name), *args)):
                flat = reply if match is None else reply[1]
                seen += len(flat) // 2
                scores = (run(score_cast_func, float(score)) for score in flat[1::2])
                yield Page(zip(map(decode, flat[::2]), scores, strict=True))
        if match is None:
            yield from self.layout.verify(seen)

    # ---- counts and ranks

    @operation
    def zcard(self) -> Operation[int]:
        """Return how many members there are. Cost: one exchange, one command per group."""
        return (yield from self._count())

    @operation
    def zcount(self, min: ScoreBound, max: ScoreBound) -> Operation[int]:
        """Return how many members have a score within a range; see `zremrangebyscore`.

        Cost: one exchange per 100,000 parts, one script per 1,000, which visits them.
        """
        bounds = score_bound(self.name, "min", min), score_bound(self.name, "max", max)
        yield from self._open()
        return (yield from self.layout.count_between("ZCOUNT", *bounds))

    @operation
    def zlexcount(self, min: str | bytes, max: str | bytes) -> Operation[int]:
        """Return how many members are within a range; see `zrangebylex`. Cost: as `zcount`."""
        bounds = lex_bound(self.name, "min", min), lex_bound(self.name, "max", max)
        yield from self._open()
        return (yield from self.layout.count_between("ZLEXCOUNT", *bounds))

    @operation
    def zrank(
        self, value: Key, withscore: bool = False, score_cast_func: CastScore = float
    ) -> Operation[Any]:
        """Return how many members are lower than one; None if it does not exist.

        Expensive: it visits all parts. Concurrent changes may be counted or not. Cost: one
        exchange, and then as `zcount`.

        Args:
            value: the member.
            withscore: whether to return ``[rank, score]``.
            score_cast_func: converts the score.
        """
        return (yield from self._rank(value, withscore, score_cast_func, desc=False))

    @operation
    def zrevrank(
        self, value: Key, withscore: bool = False, score_cast_func: CastScore = float
    ) -> Operation[Any]:
        """Return how many members are higher than one; see `zrank`."""
        return (yield from self._rank(value, withscore, score_cast_func, desc=True))

    # ---- in order

    @operation
    def top(self, limit: int) -> Operation[list[tuple[M, float]]]:
        """Return the highest members with their scores, highest first, at most 10,000.

        Up to ``bound`` they are cached. Cost: one or two exchanges, one command per group; beyond
        ``bound`` as `page`.
        """
        return (yield from self._first(limit, FULL_RANGES[True]))

    @operation
    def bottom(self, limit: int) -> Operation[list[tuple[M, float]]]:
        """Return the lowest members with their scores, lowest first; see `top`."""
        return (yield from self._first(limit, FULL_RANGES[False]))

    @operation
    def page(
        self,
        cursor: tuple[Key, Score] | None = None,
        limit: int = 100,
        *,
        desc: bool = False,
        min: ScoreBound = "-inf",
        max: ScoreBound = "+inf",
    ) -> Operation[list[tuple[M, float]]]:
        """Return the members after a cursor, in order, with their scores.

        A page costs the same wherever it begins. The cursor's member need not exist any more.

        Args:
            cursor: the last row of the previous page, a member and its score; None for the first.
            limit: how many; at most 10,000.
            desc: whether to go from the highest to the lowest.
            min: the lowest score, see `zremrangebyscore`.
            max: the highest score.

        Cost: one or two exchanges for up to 100,000 parts, one script per 1,000, which visits them.
        The very first page as `top` or `bottom`.
        """
        wanted = self._by_score(min, max, desc=desc)
        if cursor is not None:
            member, score = check_cursor(self.name, cursor)
            wanted = wanted.resume_after((score, self._members.encode(member)))
        return (yield from self._first(limit, wanted))

    @operation
    def zrange(
        self,
        start: Any,
        end: Any,
        desc: bool = False,
        withscores: bool = False,
        score_cast_func: CastScore = float,
        byscore: bool = False,
        bylex: bool = False,
        offset: int | None = None,
        num: int | None = None,
    ) -> Operation[list[Any]]:
        """Return the members from one rank to another, both included, in order.

        Args:
            start: the first rank, from 0; negative ones count from the end: -1 is the last.
            end: the last rank.
            desc: whether to count, and go, from the highest.
            withscores: whether to return pairs ``(member, score)``.
            score_cast_func: converts each score.
            byscore: ``start`` and ``end`` are scores, see `zrangebyscore`; with ``desc`` the
                highest comes first.
            bylex: ``start`` and ``end`` are members, see `zrangebylex`.
            offset: with ``byscore`` or ``bylex``, how many members to skip.
            num: how many to return then.

        Cost: within ``bound`` of either end as `top`. Otherwise up to four exchanges and the
        members returned, with some hundredths of all members besides. See `range_iter` for more
        than fits into memory.
        """
        if (byscore and bylex) or (withscores and bylex):
            raise InvalidArgumentError(
                f"{self.name}: bylex=True excludes byscore and withscores", "give one of them"
            )
        if byscore or bylex:
            low, high = (end, start) if desc else (start, end)
            if bylex:
                rows = yield from self._rows(self._by_lex(low, high, desc=desc), offset, num)
                return self._only_members(rows)
            cast = score_cast_func if withscores else None
            return (yield from self._scores(low, high, offset, num, cast, desc=desc))
        if offset is not None or num is not None:
            raise InvalidArgumentError(
                f"{self.name}: offset and num without byscore or bylex", "leave them out"
            )
        return (yield from self._ranks(start, end, withscores, score_cast_func, desc=desc))

    @operation
    def zrevrange(
        self, start: int, end: int, withscores: bool = False, score_cast_func: CastScore = float
    ) -> Operation[list[Any]]:
        """Return the members of some ranks, counted from the highest; see `zrange`."""
        return (yield from self._ranks(start, end, withscores, score_cast_func, desc=True))

    @operation
    def zrangebylex(
        self, min: str | bytes, max: str | bytes, start: int | None = None, num: int | None = None
    ) -> Operation[list[M]]:
        """Return the members within a range, in order of their bytes.

        Only meaningful if all scores are equal, as with the servers' ZRANGEBYLEX. Integers are in
        order of their digits.

        Args:
            min: ``"[member"``, or ``"(member"`` to exclude the member itself, or ``"-"``.
            max: the highest member, in the same forms, or ``"+"``.
            start: how many members to skip.
            num: how many to return, given with ``start``; negative for all.

        Cost: as `zrangebyscore`.
        """
        rows = yield from self._rows(self._by_lex(min, max, desc=False), start, num)
        return self._only_members(rows)

    @operation
    def zrevrangebylex(
        self, max: str | bytes, min: str | bytes, start: int | None = None, num: int | None = None
    ) -> Operation[list[M]]:
        """Return the members within a range, last first; see `zrangebylex`."""
        rows = yield from self._rows(self._by_lex(min, max, desc=True), start, num)
        return self._only_members(rows)

    @stream
    def range_iter(
        self, min: ScoreBound = "-inf", max: ScoreBound = "+inf", *, desc: bool = False
    ) -> Stream[tuple[M, float]]:
        """Iterate over the members with scores within a range, in order, with their scores.

        A member whose score changes in the meantime may be returned twice or not at all; all others
        are returned once. For the arguments see `page`.

        Cost: as `page`, for 1,000 members, then four times as many each time, until a page has
        10,000 members, or an eighth of all if that is more. A page is in memory.
        """
        wanted = self._by_score(min, max, desc=desc)
        yield from self._open()
        reader = RangeReader(self.layout, wanted)
        while not reader.ended:
            yield self._page((yield from reader.next_page()))

    @stream
    def lex_range_iter(
        self, min: str | bytes = "-", max: str | bytes = "+", *, desc: bool = False
    ) -> Stream[M]:
        """Iterate over the members within a range; see `zrangebylex` and `range_iter`."""
        wanted = self._by_lex(min, max, desc=desc)
        yield from self._open()
        reader = RangeReader(self.layout, wanted)
        while not reader.ended:
            yield self._only_members((yield from reader.next_page()))

    def _scored(self, member: Key, score: Score) -> tuple[bytes, str]:
        sent = self._members.encode(member)
        if type(score) is float and score == score:  # the usual case, without a call
            return sent, repr(score)
        return sent, repr(check_score(f"{self.name}: member {shown(member)}", "score", score))

    def _zadd(
        self, pairs: Sequence[tuple[bytes, str]], options: Sequence[Argument]
    ) -> Operation[int]:
        yield from self._open(create=True)
        added = 0
        for batch in _unrepeated(pairs, last=not options):
            replies = yield from self.layout.write(batch.items(), scored("ADD", *options))
            added += sum(count for _, count in replies)
        return added

    def _increase(
        self, sent: Sequence[tuple[bytes, str]], options: Sequence[Argument]
    ) -> Operation[Any]:
        yield from self._open(create=True)
        [(_, score)] = yield from self.layout.write(sent, scored("ADD", *options, "INCR"))
        return _score(score)

    def _pop(self, count: int | None, *, desc: bool) -> Operation[list[tuple[M, float]]]:
        put_back = partial(ShardedSortedSet.zadd_many.steps, self, nx=True)
        return (yield from completed(self._popped(count, desc=desc), put_back))

    def _popped(self, count: int | None, *, desc: bool) -> Operation[list[tuple[M, float]]]:
        wanted = 1 if count is None else count
        check_integer(self.name, "count", wanted, 0, MEMBERS_AT_ONCE)
        yield from self._open()
        popped: list[Row] = []
        before: list[Row] = []
        in_vain = 0
        while len(popped) < wanted:
            best = yield from self.layout.first(FULL_RANGES[desc], wanted - len(popped))
            if not best:
                break
            removed = yield from self._remove_unchanged(best)
            popped += removed
            in_vain = in_vain + 1 if best == before and not removed else 0
            if in_vain == SAME_IN_VAIN:  # others would have changed them by now
                score, member = best[0]
                caches = self.layout._tops if desc else self.layout._bottoms
                key, actual = caches[self.layout.place(member)[0]], f"{shown(member)} at {score:g}"
                raise damage(self.component, key, actual, "its score", "rebuild() corrects it")
            before = best
        return self._page(popped)

    def _remove_unchanged(self, rows: Sequence[Row]) -> Operation[list[Row]]:
        """Remove members that still have the scores in the rows; return the rows of those."""
        sent = [(member, repr(score)) for score, member in rows]
        replies = yield from self.layout.write(sent, scored("POP"), adds=False)
        removed = {member for _, (_, *members) in replies for member in members}
        return [row for row in rows if row[1] in removed]

    def _first(self, limit: int, wanted: OrderedRange) -> Operation[list[tuple[M, float]]]:
        check_integer(self.name, "limit", limit, 0, MEMBERS_AT_ONCE)
        yield from self._open()
        if limit == 0:
            return []
        return self._page((yield from self.layout.first(wanted, limit)))

    def _ranks(
        self, start: int, end: int, withscores: bool, cast: CastScore, *, desc: bool
    ) -> Operation[list[Any]]:
        self._check_ranks(start=start, end=end)
        yield from self._open()
        rows = yield from read_ranks(self.layout, start, end, desc=desc)
        return self._page(rows, cast) if withscores else self._only_members(rows)

    def _scores(
        self,
        low: ScoreBound,
        high: ScoreBound,
        offset: int | None,
        num: int | None,
        cast: CastScore | None,
        *,
        desc: bool,
    ) -> Operation[list[Any]]:
        rows = yield from self._rows(self._by_score(low, high, desc=desc), offset, num)
        return self._only_members(rows) if cast is None else self._page(rows, cast)

    def _rows(
        self, wanted: OrderedRange, offset: int | None, num: int | None
    ) -> Operation[list[Row]]:
        skipped, limit = offset_and_limit(self.name, offset, num)
        yield from self._open()
        return (yield from read_range(self.layout, wanted, skipped, limit))

    def _by_score(self, low: ScoreBound, high: ScoreBound, *, desc: bool) -> OrderedRange:
        bounds = [score_bound(self.name, "min", low), score_bound(self.name, "max", high)]
        return OrderedRange(bounds[desc], bounds[not desc], desc)

    def _by_lex(self, low: str | bytes, high: str | bytes, *, desc: bool) -> OrderedRange:
        bounds = [lex_bound(self.name, "min", low), lex_bound(self.name, "max", high)]
        return OrderedRange(bounds[desc], bounds[not desc], desc, "LEX")

    def _rank(self, value: Key, withscore: bool, cast: CastScore, *, desc: bool) -> Operation[Any]:
        sent = self._members.encode(value)
        yield from self._open()
        score = _score((yield from self.layout.read_one("ZSCORE", sent)))
        if score is None:
            return None
        rank = yield from self.layout.rank((score, sent), desc=desc)
        return [rank, run(cast, score)] if withscore else rank

    def _check_ranks(self, **ranks: int) -> None:
        for field, rank in ranks.items():
            check_integer(self.name, field, rank, -HIGHEST_RANK, HIGHEST_RANK)

    def _page(self, rows: Iterable[Row], cast: CastScore = float) -> Page[tuple[M, Any]]:
        decode, convert = self._members.decode, cast if cast is float else partial(run, cast)
        return Page((decode(member), convert(score)) for score, member in rows)

    def _only_members(self, rows: Iterable[Row]) -> Page[M]:
        decode = self._members.decode
        return Page(decode(member) for _, member in rows)


def _score(reply: bytes | None) -> float | None:
    return None if reply is None else float(reply)


def _unrepeated(pairs: Sequence[tuple[bytes, str]], *, last: bool) -> Iterator[dict[bytes, str]]:
    """Distribute pairs over batches in which no member occurs twice; keep each one's order."""
    last_scores = dict(pairs)
    if last or len(last_scores) == len(pairs):
        yield last_scores
        return
    rounds: list[dict[bytes, str]] = []
    seen: Counter[bytes] = Counter()
    for member, score in pairs:
        if seen[member] == len(rounds):
            rounds.append({})
        rounds[seen[member]][member] = score
        seen[member] += 1
    yield from rounds
