"""Unique visitors per day: how many different sessions came, counted as they come.

::

    unique:meta                   HASH    the parameters of all days      ┐
    unique:2015-05-17             STRING  the count                       │ on the component's
    unique:2015-05-17:expected    STRING  how many were expected          ┘ unsharded entry
    unique:2015-05-17:meta        HASH    the day's parameters            ┐
    unique:2015-05-17:0           SET     ids, an intset of at most 512   │ on its shards, each
      ⋮                                                                   │ key where it falls
    unique:2015-05-17:5119                                                ┘

    id of a session = its first 15 hexadecimal digits as an integer (60 bits)
    "550e8400-e29b-41d4-a716-446655440000"  ──►  0x550e8400e29b41d  =  383061330139657245

What is kept of a visitor is the choice of ``precision``:

=============== ======================================== ============== =======================
precision       kept, in parts of                        bytes each     may miss, of 1 million
=============== ======================================== ============== =======================
``exact``       the whole session, 128                   20.3 | 85.8    none
``60-bit``      60 bits, 512                             8.5 | 9.2      4.3e-7 a day
``compact``     32 bits and the part's number, 512       4.5 | 4.9      2.3e-2 a day
``hyperloglog`` 12 KB of registers for all               0.013          standard error of 0.81%
``bitmap``      a bit for every number, 130,944          0.24           none
=============== ======================================== ============== =======================

Bytes with 1,000,000 visitors on Valkey 9.1 | Redis 7.0, all keys counted; as one SET of 60-bit ids
they take 52.1 | 72.6. `shardkit.structures.unique.precision` has the formats, the odds and how many
parts there are.

A day's set is planned for half as many visitors again as came the day before, rounded up to a power
of two (for the very first day: 1.5 times 1,000,000, so 2,097,152 in 5,120 parts), and every process
agrees on it because the first to ask stores it. A HyperLogLog and a bitmap need no plan.

On one server an id is added and counted in one step. With the count on another server than the set
it is raised after the id was certainly added as new, so a crash between the two leaves it behind,
never ahead, and `recount` mends it from the sets. A plan that was lost is found again in the day's
own parameters, which are what decides where its ids are.

A day is a date, UTC; today is what the server says. Where a ``day`` is asked for, a datetime with a
timezone stands for its day UTC.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, timedelta

from shardkit.errors import InvalidArgumentError
from shardkit.operations.commands import Command, Pause
from shardkit.operations.operation import (
    Deferred,
    Face,
    Operation,
    Stream,
    operation,
    pages,
    stream,
)
from shardkit.structures.base.arguments import day_of, expiry, shown
from shardkit.structures.set.sharded_set import MEMBERS_AT_ONCE, ShardedSet
from shardkit.structures.unique.counter import UNPLANNED, DailyCounter
from shardkit.structures.unique.day import Day, SetDay, VisitorPlace
from shardkit.structures.unique.plans import plan_key
from shardkit.structures.unique.precision import SIXTY_BIT, Id, Session
from shardkit.structures.unique.set_operations import ALL, ANY, count_days

DAYS_AT_ONCE = 1000
LANDING = 0.1  # seconds


class UniqueVisitors(DailyCounter[Face]):
    """Counts different sessions a day, over one server or many. Made by ``kit.unique_visitors``.

    Its arguments are those of `shardkit.structures.unique.counter.DailyCounter`. What the precision
    cannot do is refused with InvalidArgumentError.

    The first operation of a process costs up to two more exchanges, and so does a day's first.
    """

    @property
    def deferred(self) -> UniqueVisitors[Deferred]:
        """This counter with the face whose calls return steps."""
        return self._deferred()  # type: ignore[return-value]

    @operation
    def visit(self, session: Session, day: date | None = None) -> Operation[bool]:
        """Count a session on a day; return whether it is the first time.

        With ``hyperloglog`` True says that registers have changed: then the session is new. False
        is for those that came, and for new ones that change nothing.

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
        visitor = self._stored(session)
        found = yield from self._day((yield from self._date(day)), write=True)
        return (yield from found.add([visitor])) > 0

    @operation
    def visit_many(self, sessions: Iterable[Session], day: date | None = None) -> Operation[int]:
        """Count sessions on a day, 10,000 an exchange; return how many came for the first time.

        With ``hyperloglog`` by how many the estimate grew.

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
        if isinstance(sessions, str | bytes):
            raise InvalidArgumentError(
                f"{self.name}: visit_many({shown(sessions)}) would count its characters",
                "give an iterable of sessions, or use visit",
            )
        added = 0
        for page in pages(map(self._stored, sessions), MEMBERS_AT_ONCE):
            found = yield from self._day((yield from self._date(day)), write=True)
            added += yield from found.add(page)
        return added

    @operation
    def count(self, day: date | None = None) -> Operation[int]:
        """Return how many different sessions came on a day. Cost: one exchange."""
        return (yield from self._count(self.count_key((yield from self._date(day)))))

    @operation
    def counts(self, days: Iterable[date]) -> Operation[dict[date, int]]:
        """Return the counts of many days. Cost: one exchange for every 1,000."""
        wanted = (day_of(self.name, day) for day in days)
        counts: dict[date, int] = {}
        for page in pages(wanted, DAYS_AT_ONCE):
            replies = yield [self._counting(self.count_key(day)) for day in page]
            counts |= {day: int(n or 0) for day, n in zip(page, replies, strict=True)}
        return counts

    @operation
    def count_union(self, days: Iterable[date]) -> Operation[int]:
        """Return how many different sessions came on any of some days.

        Days with different plans can be combined; of ``compact`` their ids are compared in the bits
        that both keep. With ``hyperloglog`` an estimate, as exact as that of a day.

        Args:
            days: at most 1,000; none is 0.

        Raises:
            InvalidArgumentError: one is no day, or they are too many.
            ParameterMismatchError: a day was made with parameters that have too little in common.

        Cost: with ``hyperloglog`` one exchange; otherwise reads all ids of the days: one command a
        part and day, an exchange for 256 parts. Where the days' parts live together they are
        counted there.
        """
        return (yield from self._combined(days, ANY))

    @operation
    def count_intersection(self, days: Iterable[date]) -> Operation[int]:
        """Return how many different sessions came on all of some days; see `count_union`.

        Raises:
            InvalidArgumentError: the precision is ``hyperloglog``, which has no intersection.
        """
        self._refuse("hyperloglog", "has no intersection", "count with another precision")
        return (yield from self._combined(days, ALL))

    @operation
    def recount(self, day: date | None = None) -> Operation[int]:
        """Mend a day's count from the ids that it has; return the count.

        On a day that nobody visits at the moment the count is then what the ids are. Visits
        meanwhile make the two differ rightly, so the count is changed only as far as they cannot
        explain it: another recount finds the rest. Where an id and the count live on different
        servers, a visit that takes longer than a tenth of a second between adding and counting may
        be counted twice: recount such a day when it is over.

        A day whose ids are gone (see `delete`) keeps its count, and so does a HyperLogLog, which
        has no other data than its count.

        Cost: one command a part, an exchange for every 1,000 parts, and up to five more.
        """
        found = yield from self._day((yield from self._date(day)))
        before = yield from self._count(found.key)
        held = yield from found.held()
        count = yield from self._count(found.key)
        if held is None:
            return count
        if held > count:
            yield Pause(LANDING)  # for visits that have added, but not yet counted
            count = yield from self._count(found.key)
        if before <= held <= count:
            return count
        missing = held - (count if held > count else before)
        # By a difference, so that visits counted meanwhile are kept.
        [mended] = yield [Command(self._home, found.key, ("INCRBY", found.key, missing))]
        return int(mended)

    @operation
    def expected(self, day: date | None = None) -> Operation[int]:
        """Return how many visitors a day is planned for; decides it, if nobody has.

        Raises:
            InvalidArgumentError: the precision is ``hyperloglog`` or ``bitmap``, which need no
                plan.

        Cost: none when this process knows it, else one or two exchanges.
        """
        found = yield from self._day((yield from self._date(day)), write=self._plans.needed)
        if found.expected is None:
            raise self._refused(*UNPLANNED)
        return found.expected

    @operation
    def locate(self, session: Session, day: date | None = None) -> Operation[VisitorPlace]:
        """Return where a session's id lives, whether or not it came.

        On a day that has no plan yet: where it would live if the day were planned now.

        Cost: none when this process knows the day's plan, else one exchange.
        """
        visitor = self._stored(session)
        found = yield from self._day((yield from self._date(day)))
        return (yield from found.locate(visitor))

    @stream
    def ids(self, day: date | None = None) -> Stream[Id]:
        """Iterate over a day's ids in no order; each that is there throughout comes once.

        With ``exact`` they are sessions, UUIDs with hyphens; otherwise numbers.

        Raises:
            InvalidArgumentError: the precision is ``hyperloglog``, which keeps none.

        Cost: one command a part, an exchange for every 256 parts, whose ids are in memory.
        """
        self._refuse("hyperloglog", "keeps no ids", "count with another precision")
        found = yield from self._day((yield from self._date(day)))
        yield from found.ids()

    @operation
    def visitors(self, day: date | None = None) -> Operation[ShardedSet[Face, int]]:
        """Return a day's ids as a set, to look into or to combine with other sets; ``60-bit`` only.

        Do not add to it: what is added is not counted.

        Raises:
            InvalidArgumentError: the precision is another one.

        Cost: none when this process knows the day's plan, else one exchange.
        """
        if self.precision != SIXTY_BIT:
            raise self._refused("has no set of integers", "list ids(day), or use count_union")
        found = yield from self._day((yield from self._date(day)))
        assert isinstance(found, SetDay)
        return self._plans.sharded_set(self._driver, found.key, int(found.meta.parameters["total"]))

    @operation
    def expire(
        self, day: date, seconds: int | timedelta, *, keep_count: bool = False
    ) -> Operation[bool]:
        """Have a past day's ids, count and plan expire; return whether there was anything.

        Args:
            day: a day that is over: parts that come into being later do not expire.
            seconds: after what time, at least one second.
            keep_count: whether to keep the count, which is small. Not with ``hyperloglog``, whose
                count is all that there is.

        Cost: one command a part, an exchange for every 1,000 parts.
        """
        after = expiry(self.name, seconds)
        return (yield from self._remove(day, keep_count, "EXPIRE", after))

    @operation
    def delete(self, day: date, *, keep_count: bool = False) -> Operation[bool]:
        """Remove a day's ids, count and plan; return whether there was anything.

        Args:
            day: a day that is over: processes that still count it would go on by its old plan.
            keep_count: whether to keep the count, which is small; see `expire`.

        Cost: one command a part, an exchange for every 1,000 parts.
        """
        removed = yield from self._remove(day, keep_count, "UNLINK")
        self._days.pop(day_of(self.name, day), None)
        return removed

    def _remove(self, day: date, keep_count: bool, name: str, *args: int) -> Operation[bool]:
        day = day_of(self.name, day)
        if keep_count:
            self._refuse("hyperloglog", "has nothing but its count", "leave out keep_count")
        found = yield from self._day(day)
        some = yield from found.remove(name, *args)
        keys = [plan_key(found.key)] * self._plans.needed + [found.key] * (not keep_count)
        replies = yield [Command(self._home, key, (name, key, *args)) for key in keys]
        return some > 0 or any(replies)

    def _combined(self, days: Iterable[date], which: str) -> Operation[int]:
        wanted = list(dict.fromkeys(day_of(self.name, day) for day in days))
        if len(wanted) > DAYS_AT_ONCE:
            raise InvalidArgumentError(
                f"{self.name}: {len(wanted):,} days at once", f"give at most {DAYS_AT_ONCE:,}"
            )
        found: list[Day] = []
        for day in wanted:
            one = yield from self._day(day)
            found.append(one)
        return (yield from count_days(found, which)) if found else 0
