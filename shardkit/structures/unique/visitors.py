"""Unique visitors per day: how many different sessions came, counted as they come.

A day has ids in parts on the component's shards, and a count on its unsharded entry. What is stored
of a visitor is the choice of ``precision``: see `unique.precision` for the formats, the odds of a
mistake and a day's plan; docs/unique.md has the keys, and what they take.

On one server an id is added and counted in one step. With the count on another server than the set,
the count is raised once the id is confirmed to be new; so a crash between the two leaves it too
low, never too high, and `recount` repairs it from the sets. A lost plan is recovered from the day's
own parameters, which decide where its ids are.

A day is a date, UTC; today, the default of a ``day``, is the server's date. A datetime with a
timezone stands for its day UTC.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from functools import reduce
from typing import Any, Final, Literal, TypeAlias

from shardkit.config.component import MAX_SHARDS
from shardkit.errors import (
    DamagedDataError,
    InvalidArgumentError,
    ParameterMismatchError,
    StructureError,
    counted,
)
from shardkit.operations.arguments import shown
from shardkit.operations.commands import Command, Home, Locate, Pause
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Stream,
    Structure,
    operation,
    pages,
    relocated,
    stream,
)
from shardkit.structures.base.arguments import check_integer, day_of, duration
from shardkit.structures.base.check import (
    Damage,
    Suspicion,
    Suspicions,
    confirmed,
    raised_twice,
    register_existing,
)
from shardkit.structures.base.damage import MOST_STORED, damage, stored_integer, whole_or_0
from shardkit.structures.base.parameters import open_all, send_opened
from shardkit.structures.base.partitioned import check_parameters, restore_parameters
from shardkit.structures.base.server_clock import ServerClock
from shardkit.structures.set.sharded_set import MEMBERS_AT_ONCE, ShardedSet
from shardkit.structures.unique.days import (
    FIRST_PARTS,
    BitmapDay,
    Day,
    DayPlanner,
    HyperLogLogDay,
    SetDay,
    VisitorPlace,
    plan_key,
)
from shardkit.structures.unique.precision import (
    REGISTERS,
    SIXTY_BIT,
    WHOLE_BITS,
    CounterSettings,
    Odds,
    Session,
    Visitor,
    VisitorId,
    estimate,
    registers,
    visitor_id,
)

Which: TypeAlias = Literal["any", "all"]

PARTS_AT_ONCE: Final = 256
BITS_AT_ONCE: Final = 2**23  # a megabyte
REGISTERS_AT_ONCE: Final = 64  # days, of 12 KB each
MOST_IDS_A_GROUP: Final = 2**21  # in memory at the same time

_COMBINE: Final[Mapping[Which, Callable[[Any, Any], Any]]] = {
    "any": operator.or_,
    "all": operator.and_,
}


def count_days(days: Sequence[Day], which: Which) -> Operation[int]:
    """Count the visitors of any, or of all, of some days of one counter, each given once.

    The part of an id is a number modulo the number of the day's parts. So days with the same number
    of parts have the same ids in the same parts; with other numbers, in parts that leave the same
    remainder when divided by the greatest common divisor of the numbers. Parts that live together
    are counted by their server; otherwise their ids are fetched, some hundred parts at a time.
    """
    bitmaps = [day for day in days if isinstance(day, BitmapDay)]
    sets = [day for day in days if isinstance(day, SetDay)]
    if len(days) == 1 and (bitmaps or sets):
        return (yield from (*bitmaps, *sets)[0].size()) or 0
    if bitmaps:
        return (yield from _count_bitmaps(bitmaps, which))
    if sets:
        return (yield from _count_sets(sets, which))
    return (yield from _estimate([day for day in days if isinstance(day, HyperLogLogDay)]))


def _count_sets(days: Sequence[SetDay], which: Which) -> Operation[int]:
    """Count ids, an exchange for every 256 parts.

    Cost: one command a part, or where the days live together a script for the same part of all.
    """
    yield from open_all([day.meta for day in days])
    existing = [day for day in days if day.meta.checked]
    missing = [day for day in days if not day.meta.checked]
    if missing:
        replies = yield [Command(day.home, day.key, ("GET", day.key)) for day in missing]
        for day, count in zip(missing, replies, strict=True):
            visits = stored_integer(day.home, day.key, "count", count, missing=0)
            if visits > 0:
                raise StructureError(
                    f"{day.key}: {day.meta.key}, which locates the ids of "
                    f"{counted(visits, 'visitor')}, is missing",
                    "restore that key, or call gather(day) if another program wrote the day, or "
                    "leave the day out if its ids were removed",
                )
    if not existing or (which == "all" and len(existing) < len(days)):
        return 0
    divisor = math.gcd(*(day.parts for day in existing))
    parts_each = sum(day.parts for day in existing) // divisor
    total = 0
    for remainders in pages(range(divisor), max(1, PARTS_AT_ONCE // parts_each)):
        groups = [
            [[day.part_key(part) for part in range(first, day.parts, divisor)] for day in existing]
            for first in remainders
        ]
        if parts_each <= PARTS_AT_ONCE:
            total += yield from _count_groups(existing[0].component, groups, which)
        else:
            total += yield from _count_large_group(existing, groups[0], which)
    return total


@relocated
def _count_groups(
    component: str, groups: Sequence[Sequence[Sequence[str]]], which: Which
) -> Operation[int]:
    """Count groups of keys, a list for each day, each group by its server or here."""
    flat = [[key for keys in group for key in keys] for group in groups]
    places = iter((yield Locate([(component, key) for keys in flat for key in keys])))
    lua, command = "structures/unique/count", "SUNION" if which == "any" else "SINTER"
    batch: list[Command] = []
    by_server: list[bool] = []
    for group, keys in zip(groups, flat, strict=True):
        together = len({next(places) for _ in keys}) == 1
        countable = which == "any" or all(len(parts) == 1 for parts in group)
        by_server.append(together and countable and len(keys) > 1)
        if by_server[-1]:
            batch.append(lua_call(component, lua, keys, [command], idempotent=True))
        else:
            batch += _members(component, keys)
    replies = iter((yield batch))
    total = 0
    for group, on_server in zip(groups, by_server, strict=True):
        if on_server:
            total += int(next(replies))
        else:
            ids = [set().union(*(next(replies) for _ in keys)) for keys in group]
            total += len(reduce(_COMBINE[which], ids))
    return total


def _count_large_group(
    days: Sequence[SetDay], group: Sequence[Sequence[str]], which: Which
) -> Operation[int]:
    """Count the ids of one group whose parts take several exchanges."""
    sets: list[set[bytes]] = []
    for keys in group:
        ids: set[bytes] = set()
        for page in pages(keys, PARTS_AT_ONCE):
            ids.update(*(yield _members(days[0].component, page)))
            if sum(map(len, sets)) + len(ids) > MOST_IDS_A_GROUP:
                plans = ", ".join(f"{day.key}: {day.parts:,}" for day in days[:5])
                raise ParameterMismatchError(
                    f"days cannot be combined: their numbers of parts, {plans}, have no large "
                    f"common divisor, so more than {MOST_IDS_A_GROUP:,} ids would be compared at "
                    "once",
                    "combine days with plans of about the same size",
                )
        sets.append(ids)
    return len(reduce(_COMBINE[which], sets))


def _members(component: str, keys: Sequence[str]) -> list[Command]:
    return [Command(component, key, ("SMEMBERS", key)) for key in keys]


def _count_bitmaps(days: Sequence[BitmapDay], which: Which) -> Operation[int]:
    """Count users. Cost: one command a part and day, an exchange for every megabyte."""
    existing: list[set[int]] = []
    for day in days:
        parts, _ = yield from day.existing_parts()
        existing.append(set(parts))
    at_once = max(1, BITS_AT_ONCE // (days[0].part_size * len(days)))
    total = 0
    for page in pages(sorted(reduce(_COMBINE[which], existing)), at_once):
        replies = iter((yield [day.read("GET", part) for part in page for day in days]))
        for part in page:
            bits = [int.from_bytes(day.checked(part, next(replies))) for day in days]
            total += reduce(_COMBINE[which], bits).bit_count()
    return total


@relocated
def _estimate(days: Sequence[HyperLogLogDay]) -> Operation[int]:
    """Estimate how many visitors came on any day.

    Cost: one exchange where the days live together, otherwise one for 64 days; 12 KB a day.
    """
    home, keys = days[0].home, [day.key for day in days]
    places = yield Locate([(home, key) for key in keys])
    if len(set(places)) == 1:
        [count] = yield [Command(home, keys[0], ("PFCOUNT", *keys))]
        return int(count)
    merged = bytes(REGISTERS)
    for page in pages(keys, REGISTERS_AT_ONCE):
        replies = yield [Command(home, key, ("GET", key)) for key in page]
        estimates = [
            registers(reply, home, key)
            for key, reply in zip(page, replies, strict=True)
            if reply is not None
        ]
        merged = bytes(map(max, merged, *estimates)) if estimates else merged
    return estimate(merged)


DAYS_AT_ONCE = 1000
# Seconds within which a visit that has added its id also counts it.
COUNTING_DELAY = 0.1


class UniqueVisitors(Structure[Face]):
    """Counts different sessions a day, over one server or many. Made by ``kit.unique_visitors``.

    Args:
        driver, name: see `shardkit.operations.Structure`.
        component: its shards hold the ids; its unsharded entry, if it has one, the counts.
        precision: what is stored of a visitor: ``exact``, ``60-bit``, ``64-bit``, ``compact``,
            ``hyperloglog`` or ``bitmap``.
        part_size: how many ids a part may have and be compact: the servers'
            ``set-max-intset-entries`` (512), with ``exact`` their ``set-max-listpack-entries``
            (128). With ``bitmap`` how many bits a part has.
        first_day: how many visitors to assume before the first day: 1,000,000. Not with
            ``hyperloglog`` and ``bitmap``.
        digits: with ``60-bit``: how many hexadecimal digits of a session make its id, 1 to 15.
            Fewer digits are fewer bits, and more sessions that share an id.
        partition: with ``exact``, ``60-bit`` and ``64-bit``: how ids are spread over parts,
            ``crc32``; or ``redis-in-action``, with that book's rule and number of parts.
        clock: provides the current day.

    Attributes:
        precision, part_size, first_day, digits, partition: as given, or the default; None, or for
            part_size 0, where the precision has no such parameter.

    Errors: see `shardkit.structures`; what the precision does not support is refused, too. The
    first operation of a process costs up to two more exchanges, and so does its first for a day.
    """

    deferred: DeferredFace[UniqueVisitors[Deferred]]

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str = "unique",
        precision: str = SIXTY_BIT,
        part_size: int | None = None,
        first_day: int | None = None,
        digits: int | None = None,
        partition: str | None = None,
        clock: ServerClock | None = None,
    ) -> None:
        self._settings = CounterSettings(name, precision, part_size, first_day, digits, partition)
        self._planner = DayPlanner(component, name, self._settings)
        super().__init__(driver, component, name)
        self.precision = precision
        self.part_size = self._settings.part_size or 0
        self.first_day = self._settings.first_day
        self.digits = self._settings.digits
        self.partition = self._settings.partition
        self._clock = clock or ServerClock()
        self._home = Home(component)

    # ---- without an exchange

    def visitor_id(self, session: Session) -> VisitorId:
        """Return the stored form of a session. No exchange.

        With ``compact`` a number of 128 bits, of which a day stores as many as its plan has room
        for (see `locate`); with ``exact`` and ``hyperloglog`` the session as text.

        Args:
            session: with ``60-bit`` and ``64-bit`` a UUID, or hexadecimal digits in any case, with
                or without hyphens; with ``bitmap`` a number from 0, or its digits; otherwise a
                UUID, however it is spelled, or any text of up to 1,024 bytes.
        """
        return visitor_id(self._settings.encode(session))

    def count_key(self, day: date) -> str:
        """Return the key of a day's count, which is the prefix of its other keys."""
        return self._planner.count_key(day_of(self.name, day))

    def parts(self, expected: int) -> int:
        """Return how many parts a planned day with ``expected`` visitors has. No exchange."""
        return self._planner.parts(expected)

    def odds(self, visitors: int, *, uuid4: bool = False) -> Odds:
        """Return the odds that visitors of a day share an id. Not with ``hyperloglog``.

        Args:
            visitors: the number of visitors, on a day after one with as many.
            uuid4: whether sessions are version 4 UUIDs: their 13th digit is always 4, so ``60-bit``
                stores 56 random bits of them, and ``64-bit`` 60.
        """
        return self._settings.odds(visitors, uuid4=uuid4)

    # ---- counting

    @operation
    def visit(self, session: Session, day: date | None = None) -> Operation[bool]:
        """Count a session on a day (by default today); return whether it is the first time.

        With ``hyperloglog``, True means that the session is certainly new; False that it probably
        came before. For ``session`` see `visitor_id`. If a shard failed after the id was, or may
        have been, added but not counted, `recount` repairs the count.

        Cost: one exchange; two for a new session whose id and count live on different servers.
        """
        visitor = self._settings.encode(session)
        return (yield from self._add(day, [visitor])) > 0

    @operation
    def visit_many(self, sessions: Iterable[Session], day: date | None = None) -> Operation[int]:
        """Count sessions on a day, 10,000 an exchange; return how many came for the first time.

        With ``hyperloglog`` by how many the estimate grew. Without a ``day`` it is today, by the
        server's clock, when each 10,000 are sent.

        Cost: one exchange for 10,000 sessions, two with the count on another server; one command a
        part.
        """
        if isinstance(sessions, str | bytes):
            raise InvalidArgumentError(
                f"{self.name}: visit_many({shown(sessions)}) would count its characters",
                "give an iterable of sessions, or use visit",
            )
        added = 0
        for page in pages(map(self._settings.encode, sessions), MEMBERS_AT_ONCE):
            added += yield from self._add(day, page)
        return added

    @operation
    def count(self, day: date | None = None) -> Operation[int]:
        """Return the number of different sessions of a day. Cost: one exchange."""
        day = yield from self._date(day)
        return (yield from self._read_count(self._planner.count_key(day)))

    @operation
    def counts(self, days: Iterable[date]) -> Operation[dict[date, int]]:
        """Return the counts of many days. Cost: one exchange for every 1,000."""
        counts: dict[date, int] = {}
        for page in pages((day_of(self.name, day) for day in days), DAYS_AT_ONCE):
            keys = list(map(self._planner.count_key, page))
            commands = list(map(self._count_command, keys))
            replies = yield from send_opened(self._planner.meta, commands)
            counts |= {
                day: self._stored_count(key, n)
                for day, key, n in zip(page, keys, replies, strict=True)
            }
        return counts

    @operation
    def count_union(self, days: Iterable[date]) -> Operation[int]:
        """Return the number of different sessions that came on any of some days, at most 1,000.

        Ids of ``compact`` are compared in the bits that both days store. With ``hyperloglog`` an
        estimate, as exact as that of a day. ParameterMismatchError if the days' plans have too
        little in common.

        Cost: with ``hyperloglog`` one exchange; otherwise reads all ids of the days: one command a
        part and day, an exchange for 256 parts. Where the days' parts live together they are
        counted by their server.
        """
        return (yield from self._count_days(days, "any"))

    @operation
    def count_intersection(self, days: Iterable[date]) -> Operation[int]:
        """Return the number of sessions that came on all of some days; see `count_union`.

        Not with ``hyperloglog``.
        """
        self._refuse_hyperloglog("has no intersection", "count with another precision")
        return (yield from self._count_days(days, "all"))

    @operation
    def recount(self, day: date | None = None) -> Operation[int]:
        """Repair a day's count from its ids; return the count.

        Without concurrent visits, the count is then exact. With them, only the difference that they
        cannot explain is corrected; another recount finds the rest. If the id and the count live on
        different servers, a visit that takes more than 0.1 seconds between adding and counting may
        be counted twice: recount such a day when it is over.

        A day without ids (see `remove`) keeps its count, and so does a HyperLogLog.

        Cost: one command a part, an exchange for every 1,000 parts, and up to five more.
        """
        data = yield from self._day(day)
        # A count below 0 is wrong, and repaired as any other.
        before = yield from self._read_count(data.key, -MOST_STORED)
        if isinstance(data, HyperLogLogDay):
            return before
        size = yield from data.size()
        count = yield from self._read_count(data.key, -MOST_STORED)
        if size is None:
            return count
        if size > count:
            yield Pause(COUNTING_DELAY)  # for visits that have added, but not yet counted
            count = yield from self._read_count(data.key, -MOST_STORED)
        if before <= size <= count:
            return count
        # A visit is counted twice at most; a bitmap's list of parts may be lost.
        if isinstance(data, BitmapDay) and size < min(before, count) // 2:
            raise damage(
                self._home, data.key, f"count={count}", f"the {size} ids that its parts have"
            )
        missing = size - (count if size > count else before)
        # A difference, so that visits counted in between stay counted.
        [repaired] = yield [Command(self._home, data.key, ("INCRBY", data.key, missing))]
        return int(repaired)

    @operation
    def gather(self, day: date, shards: int) -> Operation[int]:
        """Move a day's ids to the shards on which their parts live; `recount` the day, return that.

        For a day of a program that chose the shard by the session, as Redis in Action's does over
        several servers: each of them has parts of the same names, with other ids. That program must
        have stopped by then. What it adds later, and what an interruption leaves, another call
        gathers.

        Args:
            day: the day.
            shards: how many shards the component has (else ShardCountError); all are read.

        Cost: one command for each part on each shard, and three exchanges for some 256 of them; and
        `recount`.
        """
        check_integer(self.name, "shards", shards, 1, MAX_SHARDS)
        if not self._planner.plans:
            raise self._settings.refusal("has no SETs of ids", "add up what each shard counts")
        data = yield from self._day(day, write=True)
        assert isinstance(data, SetDay)
        yield from data.gather(shards)
        return (yield from self.deferred.recount(day))

    @operation
    def rebuild(self, day: date | None = None) -> Operation[int]:
        """Store the counter's and a day's parameters, if they were lost, and `recount` the day.

        Of ``bitmap`` also the list of the day's parts, as far as the first 64 exist.

        Cost: as `recount`, and three exchanges; with ``bitmap`` six.
        """
        date_ = yield from self._date(day)
        self._planner.seek(date_)
        yield from restore_parameters(self._planner.meta)
        data = yield from self._day(date_)
        if isinstance(data, SetDay) and (yield from data.size()):
            data = yield from self._day(date_, write=True)
            assert isinstance(data, SetDay)
            yield from data.prepare(())
        if isinstance(data, BitmapDay):
            yield from register_existing(data.registry, FIRST_PARTS, 0)
        return (yield from self.deferred.recount(date_))

    @stream
    def check(self, day: date | None = None) -> Stream[Damage]:
        """Read everything stored for a day and yield the damage; change nothing.

        The counter's parameters, the day's plan, parameters and count, the type of each part, and
        each id: whether it can be read, and is in its own part.

        Cost: two commands a part, two exchanges for every 64 parts.
        """
        date_ = yield from self._date(day)
        self._planner.seek(date_)
        if (yield from check_parameters(self._planner.meta)):
            return
        self._planner.forget(date_)
        repair, loses = "restore it, or remove(day)", "the day's ids"
        if (yield from raised_twice(self._planner.day, date_, repair=repair, loses=loses)):
            return
        data = yield from self._planner.day(date_)
        yield from raised_twice(self._read_count, data.key, repair="recount() counts the ids")
        if isinstance(data, HyperLogLogDay):
            yield from raised_twice(data.registers, repair="remove(day)", loses="it")
            return
        if not (yield from raised_twice(data.existing_parts)):
            yield from data.check()
            yield from confirmed(self._suspect_count, data)

    def _suspect_count(self, data: SetDay | BitmapDay) -> Operation[Suspicions]:
        [stored] = yield [self._count_command(data.key)]
        count = whole_or_0(stored)
        if stored is not None and stored != b"%d" % count:
            return []  # already reported
        try:
            size = yield from data.size()
        except DamagedDataError:
            return []  # likewise
        if size is None or count == size:
            return []
        actual = "no count" if stored is None else f"count={count}"
        error = damage(self._home, data.key, actual, f"that of the {size} ids there are")
        return [Suspicion(error, "recount() counts the ids")]

    # ---- looking into a day

    @operation
    def expected(self, day: date | None = None) -> Operation[int]:
        """Return how many visitors a day is planned for; stores the plan, if there is none.

        Cost: none when this process knows it, else one or two exchanges.
        """
        self._planner.check_plans()
        day = yield from self._date(day)
        data = yield from self._planner.day(day, write=True)
        assert isinstance(data, SetDay)
        return data.expected

    @operation
    def locate(self, session: Session, day: date | None = None) -> Operation[VisitorPlace]:
        """Return where a session's id lives, or would if the day were planned now.

        Cost: none when this process knows the day's plan, else one exchange.
        """
        visitor = self._settings.encode(session)
        data = yield from self._day(day)
        return (yield from data.locate(visitor))

    @stream
    def ids(self, day: date | None = None) -> Stream[VisitorId]:
        """Iterate over a day's ids in no order, each once.

        With ``exact`` they are sessions, UUIDs with hyphens; otherwise numbers; not with
        ``hyperloglog``.

        Cost: one command a part, an exchange for every 256 parts, whose ids are in memory.
        """
        self._refuse_hyperloglog("stores no ids", "count with another precision")
        data = yield from self._day(day)
        assert not isinstance(data, HyperLogLogDay)
        yield from data.ids()

    @operation
    def visitors(self, day: date | None = None) -> Operation[ShardedSet[Face, int]]:
        """Return a day's ids as a set, to read or combine with other sets; ``60-bit`` only.

        Do not add to it: added ids are not counted.

        Cost: none when this process knows the day's plan, else one exchange.
        """
        if self.precision not in (SIXTY_BIT, WHOLE_BITS):
            problem = "has no set of integers"
            raise self._settings.refusal(problem, "list ids(day), or use count_union")
        data = yield from self._day(day)
        assert isinstance(data, SetDay)
        total = int(data.meta.parameters["total"])
        size, rule = self.part_size, str(self.partition)
        return ShardedSet(self._driver, self.component, data.key, total, size, int, rule)

    # ---- the end of a day

    @operation
    def expire(
        self, day: date, time: int | timedelta, *, keep_count: bool = False
    ) -> Operation[bool]:
        """Let a past day's ids, count and plan expire; return whether there was anything.

        Args:
            day: the day; ids that are added later expire with it.
            time: seconds, at least one.
            keep_count: whether to keep the count, which is small. Not with ``hyperloglog``.

        Cost: one command a part and for 1,000 more, an exchange for every 1,000.
        """
        seconds = duration(self.name, time)
        return (yield from self._send_to_day(day, keep_count, "EXPIRE", seconds))

    @operation
    def remove(self, day: date, *, keep_count: bool = False) -> Operation[bool]:
        """Remove a day's ids, count and plan; return whether there was anything.

        Args:
            day: a day that is over: processes that still count it would use its old plan.
            keep_count: whether to keep the count, which is small; see `expire`.

        Cost: as `expire`.
        """
        removed = yield from self._send_to_day(day, keep_count, "UNLINK")
        self._planner.forget(day_of(self.name, day))
        return removed

    def _date(self, day: date | None) -> Operation[date]:
        if day is None:
            return (yield from self._clock.today(self._home, self.name))
        return day_of(self.name, day)

    def _add(self, day: date | None, visitors: Sequence[Visitor]) -> Operation[int]:
        date_ = yield from self._date(day)
        for _ in range(2):
            data = yield from self._planner.day(date_, write=True)
            try:
                return (yield from data.add(visitors))
            except ParameterMismatchError:  # the day was removed, and planned again
                self._planner.forget(date_)
        return (yield from (yield from self._planner.day(date_, write=True)).add(visitors))

    def _day(self, day: date | None, *, write: bool = False) -> Operation[Day]:
        date_ = yield from self._date(day)
        return (yield from self._planner.day(date_, write=write))

    def _read_count(self, key: str, lowest: int = 0) -> Operation[int]:
        [count] = yield from send_opened(self._planner.meta, [self._count_command(key)])
        return self._stored_count(key, count, lowest)

    def _stored_count(self, key: str, count: bytes | int | None, lowest: int = 0) -> int:
        if count is None or isinstance(count, int):
            return count or 0
        return stored_integer(self._home, key, "count", count, lowest)

    def _count_command(self, key: str) -> Command:
        name = "PFCOUNT" if self.precision == "hyperloglog" else "GET"
        return Command(self._home, key, (name, key))

    def _count_days(self, days: Iterable[date], which: Which) -> Operation[int]:
        wanted = list(dict.fromkeys(day_of(self.name, day) for day in days))
        if len(wanted) > DAYS_AT_ONCE:
            raise InvalidArgumentError(
                f"{self.name}: {counted(len(wanted), 'day')} at once",
                f"give at most {DAYS_AT_ONCE:,}",
            )
        chosen: list[Day] = []
        for day in wanted:
            data = yield from self._planner.day(day)
            chosen.append(data)
        return (yield from count_days(chosen, which)) if chosen else 0

    def _send_to_day(self, day: date, keep_count: bool, name: str, *args: int) -> Operation[bool]:
        day = day_of(self.name, day)
        if keep_count:
            self._refuse_hyperloglog("has nothing but its count", "leave out keep_count")
        data = yield from self._planner.day(day, verify=False)
        affected = 0
        if not isinstance(data, HyperLogLogDay):
            affected = yield from data.send_to_all(name, *args)
        plans = [plan_key(data.key)] if self._planner.plans else []
        counts = [] if keep_count else [data.key]
        replies = yield [Command(self._home, k, (name, k, *args)) for k in plans + counts]
        return affected > 0 or any(replies)

    def _refuse_hyperloglog(self, problem: str, remedy: str) -> None:
        if self.precision == "hyperloglog":
            raise self._settings.refusal(problem, remedy)
