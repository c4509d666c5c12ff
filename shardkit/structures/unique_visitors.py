"""Unique visitors per day: how many different sessions came, counted as they come.

::

    unique:meta                   HASH    the parameters of all days      ┐
    unique:2015-05-17             STRING  the count                       │ on the component's
    unique:2015-05-17:expected    STRING  how many were expected          ┘ unsharded entry
    unique:2015-05-17:meta        HASH    the set's parameters            ┐
    unique:2015-05-17:0           SET     ids, an intset of at most 512   │ on its shards, each
      ⋮                                                                   │ key where it falls
    unique:2015-05-17:8191                                                ┘

    id of a session = its first 15 hexadecimal digits as an integer (60 bits)
    "550e8400-e29b-41d4-a716-446655440000"  ──►  0x550e8400e29b41d  =  383061330139657245

A day's set is planned for half as many visitors again as came the day before, rounded up to a power
of two (for the very first day: 1.5 times 1,000,000, so 2,097,152 in 8,192 parts), and every process
agrees on it because the first to ask stores it. One million visitors take 9.6 MB so, 72.4 MB as
one SET (Redis 7.0).

On one server an id is added and counted in one step. With the count on another server than the set
it is raised after the id was certainly added as new, so a crash between the two leaves it behind,
never ahead, and `recount` mends it from the sets. A plan that was lost is found again in the set's
own parameters.

A day is a date, UTC; today is what the server says. Where a ``day`` is asked for, a datetime with a
timezone stands for its day UTC.

The odds. Two sessions with the same id are counted as one. With n sessions and d random bits about
n² / 2^(d+1) are missed. 15 digits are 60 bits; of a version 4 UUID 56 of them are random, since its
13th digit is always 4:

=========== ======================= ==============================================
sessions    60 random bits          a version 4 UUID (56 random bits)
=========== ======================= ==============================================
1 million   4.3e-7 a day            6.9e-6 a day: one miss in 395 years
25 million  2.7e-4: one in 10 years 4.3e-3: one in 231 days
250 million 2.7% of days have one   35% of days have one
=========== ======================= ==============================================
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from datetime import date, timedelta
from typing import ClassVar, NamedTuple
from uuid import UUID

from shardkit.commands import Command, Home, Locate, Partial, Pause, Shard, script_call
from shardkit.errors import InvalidArgumentError, ShardFailure
from shardkit.links.parcels import raise_failures
from shardkit.operation import Deferred, Driver, Face, Operation, Structure, operation, pages
from shardkit.scripts import script
from shardkit.structures.arguments import check_integer, check_name, day_of, expiry, shown
from shardkit.structures.clock import ServerClock
from shardkit.structures.meta import Meta, meta_key, open_all
from shardkit.structures.set import (
    DEFAULT_SHARD_SIZE,
    MEMBERS_AT_ONCE,
    ShardedSet,
    hashed_partition,
)

FIRST_DAY = 1_000_000
MOST_FIRST_DAY = 2**40
MOST_DIGITS = 15
DAYS_REMEMBERED = 64
DAYS_AT_ONCE = 1000
LANDING = 0.1  # seconds
IDS_A_SCRIPT = 1000  # Lua's unpack takes some 8,000

_NOT_HEX = re.compile(r"[^0-9a-f]")


class VisitorPlace(NamedTuple):
    """Where a visitor's id lives."""

    id: int
    part: int
    key: str
    shard: Shard


class UniqueVisitors(Structure[Face]):
    """Counts different sessions a day, over one server or many. Made by ``kit.unique_visitors``.

    Args:
        driver: what runs its operations.
        component: its shards hold the ids; its unsharded entry, if it has one, the counts.
        name: the prefix of its keys.
        shard_size: how many ids a part may have: the servers' ``set-max-intset-entries``.
        digits: how many hexadecimal digits of a session make its id, 1 to 15. Fewer digits are
            fewer bits, and more sessions that are taken for one another.
        first_day: how many visitors to assume before the first day.
        rule: the partition's name; ``redis-in-action`` for data placed by that book's rule.
        clock: tells what day it is.

    Raises:
        InvalidArgumentError: an argument is out of range.

    The first operation of a process costs up to two more exchanges, and so does a day's first.
    """

    kind: ClassVar[str] = "unique-visitors"

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str = "unique",
        shard_size: int = DEFAULT_SHARD_SIZE,
        digits: int = MOST_DIGITS,
        first_day: int = FIRST_DAY,
        rule: str = "crc32",
        clock: ServerClock | None = None,
    ) -> None:
        check_name(name)
        check_integer(name, "digits", digits, 1, MOST_DIGITS)
        check_integer(name, "first_day", first_day, 0, MOST_FIRST_DAY)
        hashed_partition(name, rule, planned(first_day), shard_size)  # refuses it now, not one day
        super().__init__(driver, component, name)
        self.shard_size = shard_size
        self.digits = digits
        self.first_day = first_day
        self.rule = rule
        self._clock = clock or ServerClock()
        self._home = Home(component)
        self._days: OrderedDict[date, ShardedSet[Deferred, int]] = OrderedDict()
        parameters = {"digits": digits, "shard_size": shard_size, "partition": rule}
        self._meta = Meta(self._home, name, {"kind": self.kind, **parameters})

    @property
    def deferred(self) -> UniqueVisitors[Deferred]:
        """This counter with the face whose calls return steps."""
        return self._deferred()  # type: ignore[return-value]

    def visitor_id(self, session: str | bytes | UUID) -> int:
        """Return the id that a session is counted by. No exchange.

        Args:
            session: a UUID, or hexadecimal digits in any case, with or without hyphens.

        Raises:
            InvalidArgumentError: it has another character, or fewer digits than an id.
        """
        if isinstance(session, UUID):
            return int(session.hex[: self.digits], 16)
        text = session.decode("latin-1") if isinstance(session, bytes) else session
        if isinstance(text, str):
            spelled = text.replace("-", "").lower()
            if len(spelled) >= self.digits and not _NOT_HEX.search(spelled):
                return int(spelled[: self.digits], 16)
        raise InvalidArgumentError(
            f"{self.name}: session {shown(session)} has not {self.digits} hexadecimal digits",
            "give a UUID, or the hexadecimal digest of what identifies the visitor",
        )

    def count_key(self, day: date) -> str:
        """Return the key of a day's count, which is the name of its set."""
        return f"{self.name}:{day_of(self.name, day).isoformat()}"

    @operation
    def visit(self, session: str | bytes | UUID, day: date | None = None) -> Operation[bool]:
        """Count a session on a day; return whether it is the first time.

        Args:
            session: see `visitor_id`.
            day: by default today, by the server's clock.

        Raises:
            InvalidArgumentError: the session is no id, or the day none.
            ParameterMismatchError: this counter was created with other parameters.
            ShardErrors: a shard failed. If the id was added but not counted, or nobody knows,
                `recount` mends the count.

        Cost: one exchange; two for a new session whose id and count live on different servers.
        """
        visitor = self.visitor_id(session)
        ids = yield from self._ids((yield from self._day(day)), plan=True)
        return (yield from self._add(ids, [visitor])) > 0

    @operation
    def visit_many(
        self, sessions: Iterable[str | bytes | UUID], day: date | None = None
    ) -> Operation[int]:
        """Count sessions on a day, 10,000 an exchange; return how many came for the first time.

        Args:
            sessions: any iterable of them, also a generator: it is read as they are sent.
            day: by default today, by the server's clock, when each 10,000 are sent.

        Raises:
            InvalidArgumentError: a session is no id; earlier pages were counted by then.
            ParameterMismatchError: this counter was created with other parameters.
            ShardErrors: shards failed; the sessions of the others were added and counted.

        Cost: one exchange for 10,000 sessions, two with the count on another server; one command a
        part.
        """
        visitors = map(self.visitor_id, sessions)
        added = 0
        for page in pages(visitors, MEMBERS_AT_ONCE):
            ids = yield from self._ids((yield from self._day(day)), plan=True)
            added += yield from self._add(ids, page)
        return added

    @operation
    def count(self, day: date | None = None) -> Operation[int]:
        """Return how many different sessions came on a day. Cost: one exchange."""
        return (yield from self._count(self.count_key((yield from self._day(day)))))

    @operation
    def counts(self, days: Iterable[date]) -> Operation[dict[date, int]]:
        """Return the counts of many days. Cost: one exchange for every 1,000."""
        wanted = (day_of(self.name, day) for day in days)
        counts: dict[date, int] = {}
        for page in pages(wanted, DAYS_AT_ONCE):
            replies = yield [self._get(self.count_key(day)) for day in page]
            counts |= {day: int(n or 0) for day, n in zip(page, replies, strict=True)}
        return counts

    @operation
    def recount(self, day: date | None = None) -> Operation[int]:
        """Mend a day's count from what its set holds; return the count.

        On a day that nobody visits at the moment the count is then what the set holds. Visits
        meanwhile make the two differ rightly, so the count is changed only as far as they cannot
        explain it: another recount finds the rest. Where an id and the count live on different
        servers, a visit that takes longer than a tenth of a second between adding and counting may
        be counted twice: recount such a day when it is over.

        A day whose set is gone (see `delete`) keeps its count.

        Cost: one command a part, an exchange for every 1,000 parts, and up to five more.
        """
        ids = yield from self._ids((yield from self._day(day)))
        key = ids.name
        before = yield from self._count(key)
        held = yield from ids.scard()
        count = yield from self._count(key)
        if held > count:
            yield Pause(LANDING)  # for visits that have added, but not yet counted
            count = yield from self._count(key)
        if before <= held <= count or not (held or ids.meta.compared):
            return count
        missing = held - (count if held > count else before)
        # By a difference, so that visits counted meanwhile are kept.
        [mended] = yield [Command(self._home, key, ("INCRBY", key, missing))]
        return int(mended)

    @operation
    def expected(self, day: date | None = None) -> Operation[int]:
        """Return how many visitors a day's set is planned for; decides it, if nobody has.

        Cost: none when this process knows it, else one or two exchanges.
        """
        return (yield from self._ids((yield from self._day(day)), plan=True)).total

    @operation
    def locate(
        self, session: str | bytes | UUID, day: date | None = None
    ) -> Operation[VisitorPlace]:
        """Return where a session's id lives, whether or not it came.

        On a day that has no plan yet: where it would live if the day were planned now.

        Cost: none when this process knows the day's plan, else one exchange.
        """
        visitor = self.visitor_id(session)
        ids = yield from self._ids((yield from self._day(day)))
        key = ids.key_of(visitor)
        [(shard, _)] = yield Locate([(self.component, key)])
        return VisitorPlace(visitor, ids.part_of(visitor), key, shard)

    @operation
    def visitors(self, day: date | None = None) -> Operation[ShardedSet[Face, int]]:
        """Return a day's ids as a set, to look into or to combine with other days'.

        Days can be combined when they expected the same number of visitors. Do not add to it: what
        is added is not counted.

        Cost: none when this process knows the day's plan, else one exchange.
        """
        day = yield from self._day(day)
        total = (yield from self._ids(day)).total
        return self._set(day, total)

    @operation
    def expire(
        self, day: date, seconds: int | timedelta, *, keep_count: bool = False
    ) -> Operation[bool]:
        """Have a past day's ids, count and plan expire; return whether there was anything.

        Args:
            day: a day that is over: parts that come into being later do not expire.
            seconds: after what time, at least one second.
            keep_count: whether to keep the count, which is small.

        Cost: one command a part, an exchange for every 1,000 parts.
        """
        after = expiry(self.name, seconds)
        ids = yield from self._ids(day_of(self.name, day))
        some = yield from ids.expire(after)
        keys = [_plan_key(ids.name)] + [ids.name] * (not keep_count)
        replies = yield [Command(self._home, key, ("EXPIRE", key, after)) for key in keys]
        return some or any(replies)

    @operation
    def delete(self, day: date, *, keep_count: bool = False) -> Operation[bool]:
        """Remove a day's ids, count and plan; return whether there was anything.

        Args:
            day: a day that is over: processes that still count it would go on by its old plan.
            keep_count: whether to keep the count, which is small.

        Cost: one command a part, an exchange for every 1,000 parts.
        """
        day = day_of(self.name, day)
        ids = yield from self._ids(day)
        some = yield from ids.delete()
        keys = [_plan_key(ids.name)] + [ids.name] * (not keep_count)
        replies = yield [Command(self._home, key, ("UNLINK", key)) for key in keys]
        self._days.pop(day, None)
        return some or any(replies)

    def _add(self, ids: ShardedSet[Deferred, int], visitors: list[int]) -> Operation[int]:
        """Add ids and raise the count by those that were new."""
        if not ids.meta.compared:
            yield from ids.open(create=True)
        by_key = ids.by_key(visitors)
        count_key = ids.name
        count_at, *places = yield Locate(
            [(self._home, count_key), *((self.component, key) for key in by_key)]
        )
        if all(place == count_at for place in places):
            counted = script("add_and_count")
            replies = yield [
                script_call(self.component, counted, [key, count_key], page)
                for key, sent in by_key.items()
                for page in pages(sent, IDS_A_SCRIPT)
            ]
            return int(sum(replies))
        replies = yield Partial(self._at(key, "SADD", key, *sent) for key, sent in by_key.items())
        added: int = sum(reply for reply in replies if not isinstance(reply, ShardFailure))
        if added:
            replies += yield Partial([Command(self._home, count_key, ("INCRBY", count_key, added))])
        raise_failures(replies)  # only now that what succeeded is counted
        return added

    def _ids(self, day: date, *, plan: bool = False) -> Operation[ShardedSet[Deferred, int]]:
        """Return a day's set.

        Args:
            day: the day.
            plan: whether to store how many visitors it is planned for, if nobody has. Otherwise the
                set of such a day is as if it were planned now.
        """
        if not self._meta.compared:
            yield from open_all([self._meta], create=plan)
        known = self._days.get(day)
        if known is not None:
            return known
        key = _plan_key(self.count_key(day))
        set_key = meta_key(self.count_key(day))
        yesterday = date.fromordinal(max(day.toordinal() - 1, 1))
        [decided, stored, before] = yield [
            self._get(key),
            self._at(set_key, "HGET", set_key, "total", idempotent=True),
            self._get(self.count_key(yesterday)),
        ]
        mine = stored or decided or planned(self.first_day if before is None else int(before))
        if plan and decided is None:
            [_, decided] = yield [
                Command(self._home, key, ("SET", key, mine, "NX"), idempotent=True),
                self._get(key),  # another process may have been first
            ]
        ids = self._set(day, int(stored or decided or mine)).deferred
        if stored or decided:
            self._days[day] = ids
            while len(self._days) > DAYS_REMEMBERED:
                self._days.popitem(last=False)
        return ids

    def _set(self, day: date, total: int) -> ShardedSet[Face, int]:
        name = self.count_key(day)
        return ShardedSet(
            self._driver, self.component, name, total, self.shard_size, int, self.rule
        )

    def _day(self, day: date | None) -> Operation[date]:
        if day is None:
            return (yield from self._clock.today(self._home, self.name))
        return day_of(self.name, day)

    def _count(self, key: str) -> Operation[int]:
        [count] = yield [self._get(key)]
        return int(count or 0)

    def _get(self, key: str) -> Command:
        return Command(self._home, key, ("GET", key), idempotent=True)


def planned(before: int) -> int:
    """Return how many visitors to plan for after a day with so many: half as many again.

    Rounded up to a power of two, so that days of about the same size can be combined.
    """
    return 1 << max(0, (before * 3 + 1) // 2 - 1).bit_length()


def _plan_key(name: str) -> str:
    return f"{name}:expected"
