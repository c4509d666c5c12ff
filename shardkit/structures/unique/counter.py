"""A counter of days: its parameters, and how it finds the data of a day.

::

    UniqueVisitors       `shardkit.structures.unique.visitors`: what can be done
    └── DailyCounter     which precision, which day
        ├── Plans        how a day is made
        └── Day          where a day's ids and count are

A counter compares its parameters once, and remembers the days that it has met: 64 of them.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import date
from typing import ClassVar

from shardkit.errors import InvalidArgumentError
from shardkit.operations.commands import Command, Home
from shardkit.operations.operation import Driver, Face, Operation, Structure
from shardkit.structures.base.arguments import check_integer, check_name, day_of
from shardkit.structures.base.parameters import Metadata, open_all
from shardkit.structures.base.server_clock import ServerClock
from shardkit.structures.unique.day import Day
from shardkit.structures.unique.plans import Plans
from shardkit.structures.unique.precision import (
    MOST_FIRST_DAY,
    SIXTY_BIT,
    Id,
    Odds,
    Session,
    called,
    odds_for,
    reader,
    settings,
)

DAYS_REMEMBERED = 64
UNPLANNED = "plans nothing", "count(day) says how many came"


class DailyCounter(Structure[Face]):
    """The parameters of a counter, and its days.

    Args:
        driver: what runs its operations.
        component: its shards hold the ids; its unsharded entry, if it has one, the counts.
        name: the prefix of its keys.
        precision: what is kept of a visitor: ``exact``, ``60-bit``, ``compact``, ``hyperloglog`` or
            ``bitmap``; see `shardkit.structures.unique.visitors`.
        part_size: how many ids a part may have and be compact: the servers'
            ``set-max-intset-entries`` (512), with ``exact`` their ``set-max-listpack-entries``
            (128). With ``bitmap`` how many bits a part has.
        first_day: how many visitors to assume before the first day: 1,000,000. Not with
            ``hyperloglog`` and ``bitmap``.
        digits: with ``60-bit``: how many hexadecimal digits of a session make its id, 1 to 15.
            Fewer digits are fewer bits, and more sessions that are taken for one another.
        rule: with ``exact`` and ``60-bit``: the partition's name, ``crc32``; ``redis-in-action``
            for data placed by that book's rule, in as many parts as that book has.
        clock: tells what day it is.

    Attributes:
        precision, part_size, first_day, digits, rule: as given, or the default; None for what the
            precision does not have, of part_size 0.

    Raises:
        InvalidArgumentError: an argument is out of range, or the precision has no such argument.
    """

    kind: ClassVar[str] = "unique-visitors"

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str = "unique",
        precision: str = SIXTY_BIT,
        part_size: int | None = None,
        first_day: int | None = None,
        digits: int | None = None,
        rule: str | None = None,
        clock: ServerClock | None = None,
    ) -> None:
        check_name(name)
        self._settings = settings(name, precision, part_size, first_day, digits, rule)
        super().__init__(driver, component, name)
        self.precision, size, self.first_day, self.digits, self.rule = self._settings
        self.part_size = size or 0
        self._stored = reader(name, self._settings)
        self._clock = clock or ServerClock()
        self._home = Home(component)
        self._plans = Plans(driver, component, self._settings)
        if self._plans.needed:
            self._plans.first(name)  # refuses it now, not one day
        self._days: OrderedDict[date, Day] = OrderedDict()
        parameters = {
            "precision": self.precision,
            "digits": self.digits,
            "part_size": size,
            "partition": self.rule,
        }
        given = {field: value for field, value in parameters.items() if value is not None}
        self._meta = Metadata(self._home, name, {"kind": self.kind, **given})

    def visitor_id(self, session: Session) -> Id:
        """Return what a session is counted as. No exchange.

        With ``compact`` a number of 128 bits, of which a day keeps as many as its plan has room
        for (see `locate`); with ``exact`` and ``hyperloglog`` the session as text.

        Args:
            session: with ``60-bit`` a UUID, or hexadecimal digits in any case, with or without
                hyphens; with ``bitmap`` a number from 0, or its digits; otherwise a UUID, however
                it is spelled, or any text of up to 1,024 bytes.

        Raises:
            InvalidArgumentError: the session does not fit the precision.
        """
        return called(self._stored(session))

    def count_key(self, day: date) -> str:
        """Return the key of a day's count, which is the prefix of its other keys."""
        return f"{self.name}:{day_of(self.name, day).isoformat()}"

    def parts(self, expected: int) -> int:
        """Return how many parts a day has that so many visitors are expected on. No exchange.

        Raises:
            InvalidArgumentError: the precision needs no plan, or the number is none.
        """
        check_integer(self.name, "expected", expected, 1, 2 * MOST_FIRST_DAY)
        if not self._plans.needed:
            raise self._refused(*UNPLANNED)
        return self._plans.made(self.name, expected).parts

    def odds(self, visitors: int, *, uuid4: bool = False) -> Odds:
        """Return how often visitors are taken for one another on a day. No exchange.

        Args:
            visitors: how many come, on a day that is planned after one of as many.
            uuid4: whether sessions are version 4 UUIDs: their 13th digit is always 4, so ``60-bit``
                keeps 56 random bits of them.

        Raises:
            InvalidArgumentError: the precision is ``hyperloglog``, or the number is none.
        """
        return odds_for(self.name, self._settings, visitors, uuid4=uuid4)

    def _day(self, day: date, *, write: bool = False) -> Operation[Day]:
        """Return a day's data; when it is going to be written to (write), as everybody plans it."""
        if not self._meta.checked:
            yield from open_all([self._meta], create=write)
            if write:
                yield from self._plans.warn(self.name, self.count_key(day))
        known = self._days.get(day)
        if known is not None:
            return known
        key = self.count_key(day)
        found: Day
        if self._plans.needed:
            before = self.count_key(date.fromordinal(max(day.toordinal() - 1, 1)))
            found, decided = yield from self._plans.find(key, before, plan=write)
        else:
            found, decided = self._plans.unplanned(key), True
        if decided:
            self._days[day] = found
            while len(self._days) > DAYS_REMEMBERED:
                self._days.popitem(last=False)
        return found

    def _date(self, day: date | None) -> Operation[date]:
        if day is None:
            return (yield from self._clock.today(self._home, self.name))
        return day_of(self.name, day)

    def _count(self, key: str) -> Operation[int]:
        [count] = yield [self._counting(key)]
        return int(count or 0)

    def _counting(self, key: str) -> Command:
        name = "PFCOUNT" if self.precision == "hyperloglog" else "GET"
        return Command(self._home, key, (name, key), idempotent=True)

    def _refuse(self, precision: str, why: str, remedy: str) -> None:
        if self.precision == precision:
            raise self._refused(why, remedy)

    def _refused(self, why: str, remedy: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self.name}: precision={self.precision!r} {why}", remedy)
