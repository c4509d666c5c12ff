"""Groups of parts of a sorted set, each with a ZSET of its highest and one of its lowest members.

The highest members of the whole set are among the highest of each group. Members fall to groups at
random: of the first 1,000, each of 64 groups has 16, hardly ever more than 36. So a group caches
not 1,000 but 36 to 72, which stay compact: at least ``bound_size`` of them, or all. A reader
fetches 28 from each group, and more from those whose last one is still among the first 1,000. If it
needs more than a group caches, it reads the parts: the result is exact however members fall.
``lua/bounds.lua`` updates top and bottom with every change, and proves that they stay correct.

**Ranges** are read page by page. A page is a script per group that visits its parts and returns the
first members after a score and member. So a page costs the same wherever it begins, and nothing is
kept between pages. Pages grow until eight hold everything, which visits each part a dozen times.

To start at a rank far inside, a row somewhat before it is guessed from a sample, its exact rank is
counted, and reading begins there::

    sample         ·    ·  ·    ·    │·  ·    ·       rank 50,000 of 100,000 wanted
    pivot                    ▲                        its rank, counted: 48,731
    read                      ├──────┤                skips 1,268, then returns what was asked for
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import ceil, floor, sqrt
from operator import ge, le
from typing import Any, NamedTuple, TypeAlias

from shardkit.operations.arguments import shown
from shardkit.operations.commands import Argument, Command, Transaction
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation
from shardkit.structures.base.check import Suspicion, Suspicions, read_or_note
from shardkit.structures.base.damage import damage, stored_integer
from shardkit.structures.base.partitioned import PARTS_AT_ONCE
from shardkit.structures.layouts.base import Build, Pairs
from shardkit.structures.layouts.growing import (
    KEYS_PER_EXCHANGE,
    MOST_COUNT,
    OTHERS,
    GrowingLayout,
    WritePlan,
)

# A score and a member: rows compare in the order of a ZSET.
Row: TypeAlias = tuple[float, bytes]

MOST_ROWS = 2500  # that a script returns from 1,000 parts: 15 ms of the server

# In a script's reply: it needs all parts of its group as keys, or it had them.
_NEEDS_ALL_PARTS, _HAD_ALL_PARTS = 1, 2


class OrderedRange(NamedTuple):
    """A range of members in order, and the end from which to read it."""

    start: Argument  # where reading begins, as ZRANGEBYSCORE or ZRANGEBYLEX has it
    stop: Argument
    desc: bool = False  # from the highest: ``start`` is the upper end
    by: str = "SCORE"  # or LEX
    after: Row | None = None  # the row after which to begin; for scores only

    def resume_after(self, row: Row) -> OrderedRange:
        """Return the range after a row."""
        score, member = row
        if self.by == "LEX":
            return self._replace(start=b"(" + member)
        begin = float(str(self.start).lstrip("("))
        beyond = score < begin if self.desc else score > begin
        return self._replace(start=repr(score) if beyond else self.start, after=row)


# The ranges of all members, from the lowest, and from the highest.
FULL_RANGES = (OrderedRange("-inf", "inf"), OrderedRange("inf", "-inf", desc=True))


class ScoredGroups(GrowingLayout):
    """Groups of a sorted set."""

    def __init__(
        self, component: str, name: str, part_size: int, groups: int, bound: int, total: int
    ) -> None:
        super().__init__(component, name, "ZSET", part_size, groups, total)
        share = bound / groups
        self.bound_size = min(bound, ceil(share + 4 * sqrt(share)) + 4)
        self._tops = [f"{key}:top" for key in self._keys]
        self._bottoms = [f"{key}:bottom" for key in self._keys]
        self._needs_all_parts: set[int] = set()

    def _write_command(
        self, plan: WritePlan, build: Build[Any], *, adds: bool, unsure: bool
    ) -> Command:
        """See `GrowingLayout.write`; ``build`` returns a command as ``lua/write.lua`` has it."""
        group = plan.group
        if not unsure and (one := self._one(plan, build, adds)) is not None:
            return one
        whole = group in self._needs_all_parts
        parts = [*plan.writes, *plan.splits(), *(range(plan.wanted) if whole else ())]
        keys = [*self._bounded(group), *self._part_keys(group, parts)]
        args: list[Argument] = [
            *(plan.parts, plan.wanted, self.groups, self.initial, self.bound_size),
            *(len(plan.writes), int(whole), *self._write_terms),
        ]
        for stored, owned in plan.writes.values():
            verb, count, *rest = build(stored, owned)
            args += [verb, count, len(rest) - int(count), *rest]
        return lua_call(self.component, "structures/sorted_set/write", keys, args)

    def _one(self, plan: WritePlan, build: Build[Any], adds: bool) -> Command | None:
        """Return the command of a plan that adds or removes one member and splits nothing."""
        group = plan.group
        if plan.wanted != plan.parts or not self._counts[group] or len(plan.writes) != 1:
            return None
        [(part, (stored, owned))] = plan.writes.items()
        if len(stored) != 1:
            return None
        verb, options, *rest = build(stored, owned)
        if options or verb not in ("ADD", "REM"):
            return None
        most = floor(plan.parts * self._load) - 1 if adds else 2**52
        score, member = rest if verb == "ADD" else ("", *rest)
        keys = [self._keys[group], self.key(group, part)]
        end, of = self._write_terms
        args = (plan.parts, of, end, max(0, most), 2 * self.bound_size, member, score)
        return lua_call(self.component, "structures/sorted_set/write_one", keys, args)

    def _update_state(
        self, group: int, parts: int, number: int, expiring: int | None = None
    ) -> None:
        """Note a reply's state; in its last field, whether a script needs all parts as keys."""
        super()._update_state(group, parts, number)
        if expiring == _NEEDS_ALL_PARTS:
            self._needs_all_parts.add(group)
        elif expiring == _HAD_ALL_PARTS:
            self._needs_all_parts.discard(group)

    def remove_range(self, low: str, high: str) -> Operation[int]:
        """Remove the members with a score within a range; return how many.

        Cost: as `rebuild_beside`.
        """
        replies = yield from self._to_groups(low, high)
        return sum(removed for [removed] in replies)

    def part_keys(self) -> Iterator[str]:
        """See `FixedLayout.part_keys`: also tops and bottoms, which hold members again."""
        return chain(super().part_keys(), self._tops, self._bottoms)

    def rebuild_beside(self) -> Operation[None]:
        """Recount all members, and rebuild tops and bottoms.

        Cost: one script per group, which visits its parts; one exchange per 100,000 parts.
        """
        yield from self._to_groups()

    def check_beside(self, group: int, members: Pairs[Any]) -> Operation[Suspicions]:
        """Check a group's top and bottom against its members. Cost: one exchange."""
        notes: Suspicions = []
        if not self.bound_size:
            return notes
        state, top, bottom = self._bounded(group)
        repair = "rebuild() makes it again"
        highest, lowest, fields = yield from read_or_note(
            [
                self.at(top, "ZRANGE", 0, -1, "WITHSCORES"),
                self.at(bottom, "ZRANGE", 0, -1, "WITHSCORES"),
                self.at(state, "HMGET", "top", "bottom"),
            ],
            notes,
            repair,
        )
        rows = sorted((score, member) for member, score in members)
        least = min(self.bound_size, len(rows))
        for n, (key, flat) in enumerate(((top, highest), (bottom, lowest))):
            if flat is None or fields is None:
                continue
            cached = scored_rows(flat)
            best = rows[-len(cached) :] if n == 0 and cached else rows[: len(cached)]
            size, _, worst = (fields[n] or b"0").partition(b" ")
            wrong = size != b"%d" % len(cached) or (
                bool(cached) and _number(worst) != cached[0 if n == 0 else -1][0]
            )
            if cached != best or len(cached) < least or wrong:
                wanted = f"the {least} or more {('highest', 'lowest')[n]} of its group"
                what = f"{len(cached)} members, noted as {shown(fields[n])}"
                notes.append(Suspicion(damage(self.component, key, what, wanted), repair))
        return notes

    def _to_groups(self, *args: Argument) -> Operation[list[list[Any]]]:
        """Run ``lua/rebuild.lua`` for each group; return the replies without the states."""
        yield from self.refresh()
        waiting, results = list(range(self.groups)), []
        while waiting:
            calls = (
                lua_call(
                    self.component,
                    "structures/sorted_set/rebuild",
                    self._all_keys(group),
                    (self.initial, self.bound_size, self._write_terms[1], *args),
                )
                for group in waiting
            )
            again, others = [], {}
            replies = yield from _send_bounded(calls)
            for group, (done, *state) in zip(waiting, replies, strict=True):
                if done == OTHERS:
                    others[group] = state[0], state[2]
                    again.append(group)
                    continue
                self._update_state(group, *state[:3])
                if done:
                    results.append(state[3:])
                else:
                    again.append(group)
            if others:
                yield from self._settle({}, others)
            waiting = again
        return results

    def _all_keys(self, group: int) -> list[str]:
        """Return the keys of a group, its state first, then top and bottom."""
        return [*self._bounded(group), *self._part_keys(group, range(self.parts[group]))]

    def first(self, wanted: OrderedRange, limit: int) -> Operation[list[Row]]:
        """Return the first members of a range, in order.

        Cost: one or two exchanges, in nearly every case, and one more for each 2,500 members of
        1,000 parts. Within the bound one command per group; otherwise one script per 1,000 parts,
        which visits them.
        """
        reaches = ge if wanted.desc else le
        size = min(limit, _with_margin(limit / self.groups))
        by_group: dict[int, dict[bytes, Row]] = {group: {} for group in range(self.groups)}
        ranges = dict.fromkeys(by_group, wanted)
        while True:
            cached = wanted in FULL_RANGES and size <= self.bound_size
            read = self._first_cached if cached else self._first_of_parts
            replies = yield from read(ranges, size)
            for group, (rows, _) in replies.items():
                if cached:
                    by_group[group].clear()
                # A member whose score has changed in the meantime counts once.
                by_group[group].update((row[1], row) for row in rows)
            all_rows = chain.from_iterable(rows.values() for rows in by_group.values())
            best = sorted(all_rows, reverse=wanted.desc)[:limit]
            ranges = {
                group: wanted.resume_after(rows[-1])
                for group, (rows, more) in replies.items()
                if more
                and len(by_group[group]) < limit
                and (len(best) < limit or reaches(rows[-1], best[-1]))
            }
            if not ranges:
                return best
            size = min(limit, self.bound_size if size < self.bound_size < 4 * size else 4 * size)

    def _first_of_parts(
        self, ranges: Mapping[int, OrderedRange], size: int
    ) -> Operation[dict[int, tuple[list[Row], bool]]]:
        """Return about the first ``size`` members of groups, in order, and whether more follow."""
        args: dict[int, tuple[Argument, ...]] = {}
        for group, wanted in ranges.items():
            share = _with_margin(size / ceil(self.parts[group] / PARTS_AT_ONCE))
            after = (repr(wanted.after[0]), wanted.after[1]) if wanted.after else ()
            bounds = (wanted.by, int(wanted.desc), wanted.start, wanted.stop)
            args[group] = (min(share, size, MOST_ROWS), *bounds, *after)
        results: dict[int, tuple[list[Row], bool]] = {}
        for group, replies in (yield from self._from_parts(args, "sorted_set/range")).items():
            desc = ranges[group].desc
            pages = [sorted(scored_rows(flat), reverse=desc) for flat in replies]
            rows = sorted(chain(*pages), reverse=desc)
            # Beyond the last row of a script that left some out, rows are missing.
            ends = [page[-1] for page in pages if len(page) >= int(args[group][0])]
            if ends:
                rows = rows[: rows.index(max(ends) if desc else min(ends)) + 1]
            results[group] = rows, bool(ends)
        return results

    def _first_cached(
        self, ranges: Mapping[int, OrderedRange], size: int
    ) -> Operation[dict[int, tuple[list[Row], bool]]]:
        """Return the first ``size`` of all members of groups, and whether each has that number.

        A group caches at least ``bound_size`` members, or all that it has.
        """
        desc = next(iter(ranges.values())).desc
        name, keys = ("ZREVRANGE", self._tops) if desc else ("ZRANGE", self._bottoms)
        replies = yield [self.at(keys[group], name, 0, size - 1, "WITHSCORES") for group in ranges]
        by_group = {g: scored_rows(flat) for g, flat in zip(ranges, replies, strict=True)}
        short = [group for group, rows in by_group.items() if len(rows) < size]
        gets = [self.at(self._keys[group], "HGET", "count") for group in short]
        counts = (yield gets) if short else ()  # they must have no other members
        for group, count in zip(short, counts, strict=True):
            state = self._keys[group]
            if self._stored_count(group, count) > len(by_group[group]):
                # Members may have been added since.
                pair = (self.at(keys[group], "ZCARD"), self.at(state, "HGET", "count"))
                [[cached, count]] = yield [Transaction(self.component, state, pair)]
                stored = self._stored_count(group, count)
                if cached < min(self.bound_size, stored):
                    what = f"{self.bound_size} of {stored}"
                    raise damage(self.component, keys[group], f"{cached} members", what)
        return {group: (rows, len(rows) == size) for group, rows in by_group.items()}

    def _stored_count(self, group: int, count: bytes | None) -> int:
        args = (self.component, self._keys[group], "count", count, 0, MOST_COUNT)
        return stored_integer(*args, missing=0)

    def count_between(self, command: str, *args: Argument) -> Operation[int]:
        """Return how many members are within a range.

        Cost: one exchange per 100,000 parts, one script per 1,000, which visits them.
        """
        asked = dict.fromkeys(range(self.groups), (command, *args))
        by_group = yield from self._from_parts(asked, "sorted_set/count")
        return sum(count for replies in by_group.values() for [count] in replies)

    def rank(self, row: Row, *, desc: bool = False) -> Operation[int]:
        """Return how many members precede a row, which need not be stored. Cost: as above."""
        score, member = repr(row[0]), row[1]
        ends = (f"({score}", "inf") if desc else ("-inf", f"({score}")
        return (yield from self.count_between("ZCOUNT", *ends, score, member, int(desc)))

    def sample(self, size: int) -> Operation[list[Row]]:
        """Return the members of some parts of each group, at random scores. One exchange."""
        parts = ceil(size / self.groups / self._load)
        keys = [
            self.key(group, part)
            for group in range(self.groups)
            for part in range(min(parts, self.parts[group]))
        ]
        replies = yield [self.at(key, "ZRANGE", 0, -1, "WITHSCORES") for key in keys]
        return [row for flat in replies for row in scored_rows(flat)]

    def _from_parts(
        self, args: Mapping[int, Sequence[Argument]], name: str
    ) -> Operation[dict[int, list[Any]]]:
        """Run a script that only reads over all parts of groups; return the replies by group."""
        by_group: dict[int, list[Any]] = {}
        waiting: Collection[int] = args
        while waiting:
            plans = [
                (group, self.parts[group], start)
                for group in waiting
                for start in range(0, self.parts[group], PARTS_AT_ONCE)
            ]
            calls = (
                lua_call(
                    self.component,
                    f"structures/{name}",
                    [
                        self._keys[group],
                        *self._part_keys(group, range(parts)[start : start + PARTS_AT_ONCE]),
                    ],
                    (parts, self.initial, *args[group]),
                )
                for group, parts, start in plans
            )
            replies = yield from _send_bounded(calls)
            changed: set[int] = set()
            for (group, parts, _), (now, *rest) in zip(plans, replies, strict=True):
                self.parts[group] = now
                if now == parts:
                    by_group.setdefault(group, []).append(rest)
                else:
                    changed.add(group)
            for group in changed:
                by_group.pop(group, None)
            waiting = list(changed)
        return by_group

    def reset(self) -> None:
        """See `LayoutBase.reset`."""
        super().reset()
        self._needs_all_parts.clear()

    def _bounded(self, group: int) -> tuple[str, str, str]:
        return self._keys[group], self._tops[group], self._bottoms[group]

    def _part_keys(self, group: int, parts: Iterable[int]) -> list[str]:
        prefix = f"{self._keys[group]}:"
        return [f"{prefix}{part}" for part in parts]


def removing(members: list[bytes], _: list[None]) -> tuple[Argument, ...]:
    """Build the arguments of a ZREM."""
    return ("REM", 0, *members)


def scored(verb: str, *options: Argument) -> Build[str]:
    """Return what builds the arguments of ADD or POP; see ``lua/write.lua``."""
    start = (verb, len(options), *options)

    def build(members: list[bytes], scores: list[str]) -> tuple[Argument, ...]:
        flat: list[Argument] = [b""] * (2 * len(members))
        flat[::2] = scores
        flat[1::2] = members
        return (*start, *flat)

    return build


def _send_bounded(calls: Iterable[Command]) -> Operation[list[Any]]:
    """Send scripts with many keys, in exchanges of bounded size."""
    replies: list[Any] = []
    batch: list[Command] = []
    words = 0
    for call in calls:
        if batch and words + len(call.args) > KEYS_PER_EXCHANGE:
            replies += yield batch
            batch, words = [], 0
        batch.append(call)
        words += len(call.args)
    replies += yield batch
    return replies


def _with_margin(share: float) -> int:
    """Return how many members to read where one expects a share of those that are wanted."""
    return ceil(share + 3 * sqrt(share)) + 1


def _number(text: bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def scored_rows(flat: Sequence[bytes]) -> list[Row]:
    """Return the rows of a reply WITHSCORES."""
    return list(zip(map(float, flat[1::2]), flat[::2], strict=True))


FIRST_PAGE = 1000
LARGEST_PAGE = 10_000  # unless that is less than an eighth of all members
PAGES_OF_ALL = 8
GROWTH = 4
SAMPLE = 2500


class RangeReader:
    """Reads a range page by page: ``limit`` rows (None: all) after the first ``offset``.

    The first page has ``first_page`` rows at most, skipped ones included.
    """

    def __init__(
        self,
        groups: ScoredGroups,
        wanted: OrderedRange,
        offset: int = 0,
        limit: int | None = None,
        first_page: int = FIRST_PAGE,
    ) -> None:
        self._groups = groups
        self._wanted = wanted
        self._offset = offset
        self._left = None if limit is None else offset + limit
        self._size = first_page
        self.ended = limit == 0

    def next_page(self) -> Operation[list[Row]]:
        """Return the next rows; check `ended` first. Cost: see `ScoredGroups.first`."""
        size = self._size if self._left is None else min(self._size, self._left)
        rows = yield from self._groups.first(self._wanted, size)
        if self._left is not None:
            self._left -= size
        self.ended = len(rows) < size or self._left == 0
        if rows:
            self._wanted = self._wanted.resume_after(rows[-1])
        offset, self._offset = self._offset, max(0, self._offset - len(rows))
        self._size = min(GROWTH * size, largest_page(self._groups))
        return rows[offset:]


def read_range(
    groups: ScoredGroups, wanted: OrderedRange, offset: int = 0, limit: int | None = None
) -> Operation[list[Row]]:
    """Return all rows of a range, less the first ones, at most ``limit``."""
    reader = RangeReader(groups, wanted, offset, limit, largest_page(groups))
    rows: list[Row] = []
    while not reader.ended:
        rows += yield from reader.next_page()
    return rows


def read_ranks(
    groups: ScoredGroups, start: int, stop: int, *, desc: bool = False
) -> Operation[list[Row]]:
    """Return the rows of some ranks, both included; negative ones count from the end.

    Cost: from either end as `ScoredGroups.first`; elsewhere three exchanges more, one command per
    part and some hundredths of all members.
    """
    if -LARGEST_PAGE <= start <= stop < 0:
        rows = yield from groups.first(FULL_RANGES[not desc], -start)
        return rows[-1 - stop :][::-1]
    total, to_last = None, stop == -1
    if start < 0 or stop < 0 or start > LARGEST_PAGE:
        total = (yield from groups.count()) or 0
        start = max(0, start + total) if start < 0 else start
        stop = min(stop + total if stop < 0 else stop, total - 1)
    if stop < start:
        return []
    limit = None if to_last else stop - start + 1  # others may add members meanwhile
    wanted, offset = FULL_RANGES[desc], start
    if total is not None and start > LARGEST_PAGE:
        wanted, offset = yield from _seek(groups, start, total, desc=desc)
    return (yield from read_range(groups, wanted, offset, limit))


def largest_page(groups: ScoredGroups) -> int:
    """Return how many rows a page may have."""
    room = sum(groups.parts) * groups._load  # for no fewer members than there are
    return max(LARGEST_PAGE, ceil(room / PAGES_OF_ALL))


def _seek(
    groups: ScoredGroups, rank: int, total: int, *, desc: bool
) -> Operation[tuple[OrderedRange, int]]:
    """Return a range that begins somewhat before a rank, and how many of its rows to skip."""
    sample = sorted((yield from groups.sample(SAMPLE)), reverse=desc)
    margin = ceil(sqrt(len(sample)))
    position = len(sample) * rank // total - margin
    while 0 <= position < len(sample):
        pivot = sample[position]
        before = yield from groups.rank(pivot, desc=desc)
        if before < rank:
            return FULL_RANGES[desc].resume_after(pivot), rank - before - 1
        margin *= 2
        position -= margin
    return FULL_RANGES[desc], rank
