"""Groups of parts of a sorted set, each with its first and last members at hand.

::

    scores:{4}           HASH   parts=7 count=170         the state of one group
    scores:{4}:0 … 6     ZSET   its members               see `shardkit.structures.layouts.growing`
    scores:{4}:top       ZSET   its highest members       ┐ at least ``held`` of them, or all;
    scores:{4}:bottom    ZSET   its lowest members        ┘ at most twice as many

What the highest members of all are, follows from the highest of each group. A group has its share
of the first k as members fall to groups, at random, so of the first 1,000 a group out of 64 has 16,
seldom more than 28 and hardly ever more than 36. So it need not hold 1,000, but 36 to 72, which
stay compact; and a reader asks each group for 28, and then those whose last one is still among the
first 1,000 for more. Whoever wants more than a group holds reads its parts. So what is read is
exact, however members fall.

``zset_bounds.lua`` says how top and bottom follow every change, and proves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from math import ceil, sqrt
from typing import Any, NamedTuple, TypeAlias

from shardkit.lua import script
from shardkit.operations.commands import Argument, Columns, Command, script_call
from shardkit.operations.operation import Operation
from shardkit.structures.base.partitioned import PARTS_AT_ONCE
from shardkit.structures.layouts import GrowingLayout
from shardkit.structures.layouts.base import Build
from shardkit.structures.layouts.growing import WritePlan

# A score and a member: they are in the order of a ZSET.
Row: TypeAlias = tuple[float, bytes]

KEYS_AN_EXCHANGE = 100_000
# What a script says of the parts of its group: that it wants them all, or that it had them.
_WANTED, _HAD = 1, 2


class Window(NamedTuple):
    """A range of members, and from which end to read it.

    Attributes:
        start: where reading begins, as ZRANGEBYSCORE or ZRANGEBYLEX takes it.
        stop: where it ends.
        reverse: from the highest.
        by: SCORE or LEX.
        after: the row behind which to begin; of scores only.
    """

    start: Argument
    stop: Argument
    reverse: bool = False
    by: str = "SCORE"
    after: Row | None = None

    def behind(self, row: Row) -> Window:
        """Return the window of what is behind a row."""
        score, member = row
        if self.by == "LEX":
            return self._replace(start=b"(" + member)
        begin = float(str(self.start).lstrip("("))
        beyond = score < begin if self.reverse else score > begin
        return self._replace(start=repr(score) if beyond else self.start, after=row)

    @property
    def ends(self) -> bool:
        """Whether it begins with the first or last member of all, and ends with the other."""
        return self in _EVERYTHING


def everything(*, reverse: bool) -> Window:
    """Return the window of all members."""
    return _EVERYTHING[reverse]


_EVERYTHING = (Window("-inf", "inf"), Window("inf", "-inf", reverse=True))


class ScoredGroups(GrowingLayout):
    """Groups of a sorted set.

    Args:
        component: where they live.
        name: the prefix of their keys.
        part_size: how many members a part may have.
        groups: how many groups; a power of two.
        bound: how many of the first and last members shall be read without reading parts; 0: none.
        total: about how many members to start with, so that the first ones split nothing.

    Attributes:
        held: how many of its first and last members each group has at hand, at least.
    """

    def __init__(
        self, component: str, name: str, part_size: int, groups: int, bound: int, total: int
    ) -> None:
        super().__init__(component, name, "ZSET", part_size, groups, total)
        share = bound / groups
        self.held = min(bound, ceil(share + 4 * sqrt(share)) + 4)
        self._tops = [f"{key}:top" for key in self._keys]
        self._bottoms = [f"{key}:bottom" for key in self._keys]
        self._whole: set[int] = set()

    # ---- writing

    def _write_command(self, plan: WritePlan, build: Build[Any]) -> Command:
        """Make the command of a plan; see `GrowingLayout.write`.

        What ``build`` gives is what the command does, how many options it has, these, and its
        arguments: see ``zset_write.lua``.
        """
        group = plan.group
        whole = group in self._whole
        parts = [*plan.writes, *plan.splits(), *(range(plan.wanted) if whole else ())]
        keys = [*self._bounded(group), *self._part_keys(group, parts)]
        args: list[Argument] = [
            *(plan.parts, plan.wanted, self.groups, self.initial, self.held),
            *(len(plan.writes), int(whole)),
        ]
        for stored, owned in plan.writes.values():
            verb, count, *rest = build([member for member, _ in stored], owned)
            args += [verb, count, len(rest) - int(count), *rest]
        return script_call(self.component, script("structures/sorted_set/write"), keys, args)

    def _update_state(self, group: int, parts: int, number: int, expiring: bool) -> None:
        """Take in what a script says: in the last place whether it needs all parts as keys."""
        super()._update_state(group, parts, number, False)
        if expiring == _WANTED:
            self._whole.add(group)
        elif expiring == _HAD:
            self._whole.discard(group)

    def remove_range(self, low: str, high: str) -> Operation[int]:
        """Remove the members with a score within a range; return how many. See `rebuild`."""
        replies = yield from self._to_groups("structures/sorted_set/remove_range", low, high)
        return sum(removed for [removed] in replies)

    def rebuild(self) -> Operation[int]:
        """Count all members, and make tops and bottoms anew; return how many members there are.

        Cost: one script a group that visits its parts, an exchange for every 100,000 parts.
        """
        yield from self._to_groups("structures/sorted_set/rebuild")
        return sum(self._counts)

    def _to_groups(self, name: str, *args: Argument) -> Operation[list[list[Any]]]:
        """Run a script with all keys of each group; return the replies, less the states."""
        yield from self.refresh()
        waiting, results = list(range(self.groups)), []
        while waiting:
            calls = (
                script_call(
                    self.component,
                    script(name),
                    [*self._bounded(group), *self._part_keys(group, range(self.parts[group]))],
                    (self.initial, self.held, *args),
                )
                for group in waiting
            )
            again = []
            replies = yield from _exchanged(calls)
            for group, (done, *state) in zip(waiting, replies, strict=True):
                self._update_state(group, *state[:3])
                if done:
                    results.append(state[3:])
                else:
                    again.append(group)
            waiting = again
        return results

    def send_to_all(self, name: str, *args: Argument) -> Operation[int]:
        """See `Layout.send_to_all`; tops and bottoms come first."""
        bounds = [*self._tops, *self._bottoms]
        replies = yield Columns.each(self.component, name, bounds, *args)
        return sum(replies) + (yield from super().send_to_all(name, *args))

    # ---- reading

    def first(self, window: Window, count: int) -> Operation[list[Row]]:
        """Return the first members of a window, in order.

        Args:
            window: from where to where.
            count: how many at most; some thousands.

        Cost: one or two exchanges, in nearly every case. Within the bound one command a group;
        otherwise one script for every 1,000 parts, which visits them.
        """
        share = count / self.groups
        size = min(count, ceil(share + 3 * sqrt(share)) + 1)
        found: dict[int, list[Row]] = {}
        full: dict[int, bool] = {}
        asked: Sequence[int] = range(self.groups)
        while True:
            found.update((yield from self._first_of(asked, window, size)))
            full.update((group, len(found[group]) == size < count) for group in asked)
            best = sorted(chain.from_iterable(found.values()), reverse=window.reverse)[:count]
            asked = [
                group
                for group, more in full.items()
                if more
                and (len(best) < count or _reaches(found[group][-1], best[-1], window.reverse))
            ]
            if not asked:
                return best
            size = min(count, self.held if size < self.held < 4 * size else 4 * size)

    def _first_of(
        self, groups: Sequence[int], window: Window, size: int
    ) -> Operation[dict[int, list[Row]]]:
        """Return the first members of groups, in order; fewer than ``size`` only if these are all.

        A group has at least ``held`` members at hand, or all that it has: so what is at hand is
        what there is of the first ``held``.
        """
        if not (window.ends and size <= self.held):
            return (yield from self._first_of_parts(groups, window, size))
        if window.reverse:
            name, keys = "ZREVRANGE", self._tops
        else:
            name, keys = "ZRANGE", self._bottoms
        asking = (0, size - 1, "WITHSCORES")
        replies = yield [self._read(keys[group], name, *asking) for group in groups]
        return {g: _rows(flat) for g, flat in zip(groups, replies, strict=True)}

    def _first_of_parts(
        self, groups: Sequence[int], window: Window, size: int
    ) -> Operation[dict[int, list[Row]]]:
        after = (repr(window.after[0]), window.after[1]) if window.after else ()
        args = (size, window.by, int(window.reverse), window.start, window.stop, *after)
        found = yield from self._from_parts(groups, "structures/sorted_set/range", args)
        return {
            group: sorted((row for flat in replies for row in _rows(flat)), reverse=window.reverse)[
                :size
            ]
            for group, replies in found.items()
        }

    def tally(self, command: str, *args: Argument) -> Operation[int]:
        """Return how many members are within a range; see ``zset_count.lua``.

        Args:
            command: ZCOUNT or ZLEXCOUNT.
            args: where the range begins and ends; and perhaps a score, a member, and 1 to count of
                those with this score the ones behind the member as well, 0 the ones before it.

        Cost: one exchange for every 100,000 parts, one script for every 1,000, which visits them.
        """
        found = yield from self._from_parts(
            range(self.groups), "structures/sorted_set/count", (command, *args)
        )
        return sum(count for replies in found.values() for [count] in replies)

    def _from_parts(
        self, groups: Sequence[int], name: str, args: Sequence[Argument]
    ) -> Operation[dict[int, list[Any]]]:
        """Run a script that reads on all parts of groups; return the replies by group."""
        found: dict[int, list[Any]] = {}
        waiting: Sequence[int] = groups
        while waiting:
            plans = [
                (group, self.parts[group], start)
                for group in waiting
                for start in range(0, self.parts[group], PARTS_AT_ONCE)
            ]
            calls = (
                script_call(
                    self.component,
                    script(name),
                    [
                        self._keys[group],
                        *self._part_keys(group, range(parts)[start : start + PARTS_AT_ONCE]),
                    ],
                    (parts, self.initial, *args),
                    idempotent=True,
                )
                for group, parts, start in plans
            )
            replies = yield from _exchanged(calls)
            changed: set[int] = set()
            for (group, parts, _), (now, *rest) in zip(plans, replies, strict=True):
                self.parts[group] = now
                if now == parts:
                    found.setdefault(group, []).append(rest)
                else:
                    changed.add(group)
            for group in changed:
                found.pop(group, None)
            waiting = list(changed)
        return found

    def reset(self) -> None:
        """See `Layout.reset`."""
        super().reset()
        self._whole.clear()

    def _bounded(self, group: int) -> tuple[str, str, str]:
        return self._keys[group], self._tops[group], self._bottoms[group]

    def _part_keys(self, group: int, parts: Iterable[int]) -> list[str]:
        prefix = f"{self._keys[group]}:"
        return [f"{prefix}{part}" for part in parts]


def adding(options: Sequence[Argument]) -> Build[str]:
    """Return what a part is sent for ZADD; see `ScoredGroups._write_command`."""
    return _scored("ADD", options)


def taking() -> Build[str]:
    """Return what a part is sent to remove members that still have a score."""
    return _scored("TAKE", ())


def increasing() -> Build[str]:
    """Return what a part is sent for ZINCRBY; of one member."""
    return _scored("INCR", ())


def removing(members: list[bytes], _: list[None]) -> tuple[Argument, ...]:
    """Return what a part is sent for ZREM."""
    return ("REM", 0, *members)


def _scored(verb: str, options: Sequence[Argument]) -> Build[str]:
    start = (verb, len(options), *options)

    def build(members: list[bytes], scores: list[str]) -> tuple[Argument, ...]:
        flat: list[Argument] = [b""] * (2 * len(members))
        flat[::2] = scores
        flat[1::2] = members
        return (*start, *flat)

    return build


def _exchanged(calls: Iterable[Command]) -> Operation[list[Any]]:
    """Send scripts with many keys, so many at a time that an exchange is bounded."""
    replies: list[Any] = []
    for batch in _batches(calls, lambda call: len(call.args)):
        replies += yield batch
    return replies


def _batches(calls: Iterable[Command], size: Callable[[Command], int]) -> Iterator[list[Command]]:
    batch: list[Command] = []
    held = 0
    for call in calls:
        if batch and held + size(call) > KEYS_AN_EXCHANGE:
            yield batch
            batch, held = [], 0
        batch.append(call)
        held += size(call)
    if batch:
        yield batch


def _reaches(last: Row, worst: Row, reverse: bool) -> bool:
    return last >= worst if reverse else last <= worst


def _rows(flat: Sequence[bytes]) -> list[Row]:
    return list(zip(map(float, flat[1::2]), flat[::2], strict=True))
