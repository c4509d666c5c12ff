"""Finds a day's data, and plans days whose parts depend on how many visitors are expected.

::

    unique:2015-05-16             1302              how many came the day before ┐ read in one
    unique:2015-05-17:expected    2048              the plan, if one is stored   ├ exchange
    unique:2015-05-17:meta        total=1280 …      the parameters of the day    ┘

A process that needs a plan stores one unless it exists, and reads it again, so all processes agree.
The stored parameters of a day decide where its ids are, even if a plan differs: days that were
created by other rules keep theirs.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import date
from typing import Final

from shardkit.operations.commands import Command, Home, To
from shardkit.operations.operation import Operation, pages
from shardkit.routing.placement import part_count
from shardkit.structures.base.arguments import (
    MOST_PARTS,
    check_integer,
    check_name,
    hashed_partition,
)
from shardkit.structures.base.damage import damage, stored_integer
from shardkit.structures.base.parameters import Metadata, meta_key, open_all
from shardkit.structures.base.partitioned import PARTS_AT_ONCE
from shardkit.structures.encodings.limits import warn_if_not_compact
from shardkit.structures.unique.days import (
    MOST_UNLISTED,
    BitmapDay,
    Day,
    HyperLogLogDay,
    SetDay,
    plan_key,
)
from shardkit.structures.unique.precision import (
    MAX_VISITORS,
    CounterSettings,
    expected_after,
    expected_for,
    parts_for,
)

DAYS_CACHED: Final = 64
_PARTS_LOOKED_AT: Final = 256
_MOST_LOOKED_AT: Final = 4096


class DayPlanner:
    """Finds and plans the days of one counter, shared by all its faces."""

    def __init__(self, component: str, name: str, settings: CounterSettings) -> None:
        check_name(name)
        self.component = component
        self.name = name
        self.settings = settings
        self.home = Home(component)
        self.plans = settings.first_day is not None
        self._part_size = settings.part_size or 0
        self._compact = settings.precision == "compact"
        self._days: OrderedDict[date, Day] = OrderedDict()
        parameters = {
            "kind": "unique-visitors",
            "precision": settings.precision,
            "digits": settings.digits,
            "part_size": settings.part_size,
            "partition": settings.partition,
        }
        given = {field: value for field, value in parameters.items() if value is not None}
        self.meta = Metadata(self.home, name, given)
        self._sought: list[tuple[To, str]] = []
        self._is_book = settings.partition == "redis-in-action"  # which stores no parameters
        if not self._is_book:
            self.meta.data_keys = lambda: self._sought
        if settings.first_day is not None:  # refuse it now, not on the first visit
            self._set_day(name, expected_after(settings.first_day))

    def count_key(self, day: date) -> str:
        """Return the key of a day's count, which is the prefix of its other keys."""
        return f"{self.name}:{day.isoformat()}"

    def parts(self, expected: int) -> int:
        """Return how many parts a day with ``expected`` visitors has."""
        check_integer(self.name, "expected", expected, 1, 2 * MAX_VISITORS)
        self.check_plans()
        return self._set_day(self.name, expected).parts

    def check_plans(self) -> None:
        """Check that the precision plans its days."""
        if not self.plans:
            raise self.settings.refusal("plans nothing", "count(day) says how many came")

    def day(self, day: date, *, write: bool = False, verify: bool = True) -> Operation[Day]:
        """Return a day's data; unless told otherwise, its plan must agree with its ids.

        Cost: none when this process knows the day, else one exchange, or two to store a plan; the
        first day costs one or two more, to compare the counter's parameters.
        """
        if not self.meta.checked:
            self.seek(day)
            yield from open_all([self.meta], create=write)
            # The server may have no compact form for parts larger than the default.
            if write and self.plans and not self.settings.part_size_is_default():
                form = "set" if self.settings.precision == "exact" else "intset"
                first, size = f"{self.count_key(day)}:0", self._part_size
                yield from warn_if_not_compact(self.component, first, form, size, self.name)
        if day in self._days:
            return self._days[day]
        key = self.count_key(day)
        data: Day
        if self.plans:
            before = self.count_key(date.fromordinal(max(day.toordinal() - 1, 1)))
            data, decided = yield from self._find(key, before, store=write, verify=verify)
            if not (decided and verify):  # another process may still plan it otherwise
                return data
        elif self.settings.precision == "bitmap":
            data = BitmapDay(self.component, key, self._part_size)
        else:
            data = HyperLogLogDay(self.component, key)
        self._days[day] = data
        while len(self._days) > DAYS_CACHED:
            self._days.popitem(last=False)
        return data

    def seek(self, day: date) -> None:
        """Check for the count of a day without parameters."""
        self._sought[:] = [(self.home, self.count_key(day))]

    def forget(self, day: date) -> None:
        """Drop the cached data of a removed day."""
        self._days.pop(day, None)

    def _find(
        self, key: str, before: str, *, store: bool, verify: bool
    ) -> Operation[tuple[SetDay, bool]]:
        """Return a planned day, and whether its plan is final."""
        plan, meta = plan_key(key), meta_key(key)
        field = "parts" if self._compact else "total"
        stored, size, came = yield [
            self._get(plan),
            Command(self.component, meta, ("HGET", meta, field)),
            self._get(before),
        ]
        if size is not None:
            size = stored_integer(self.component, meta, field, size, 1, 4 * MAX_VISITORS)
            if self._parts(size) > MOST_PARTS:
                raise damage(self.component, meta, f"{field}={size}", "2**32 parts at most")
        if stored is not None:
            expected = self._stored_plan(plan, stored)
        elif size is not None:
            # redis-in-action stores the number itself.
            own = self.settings.partition == "redis-in-action"
            expected = size if own else expected_for(self._parts(size), self._part_size)
        else:
            first = self.settings.first_day or 0
            # A damaged count of yesterday does not spoil today's plan.
            known = came is not None and came.isdigit() and len(came) < 16
            came = int(came) if known else first
            expected = expected_after(came if came <= MAX_VISITORS else first)
            if self._parts(self._size(expected)) > MOST_PARTS:
                expected = expected_after(first)
        if store and stored is None:
            if size is None and not self._is_book:
                yield from self._look_for_ids(key, expected)
            set_plan = ("SET", plan, expected, "NX")
            [_, stored] = yield [
                Command(self.home, plan, set_plan, idempotent=True),
                self._get(plan),  # another process may have been first
            ]
            expected = self._stored_plan(plan, stored)
        if None not in (size, stored) and size != self._size(expected):
            yield from self._check_size(key, size, expected, ids=verify)
        return self._set_day(key, expected, size), stored is not None or size is not None

    def _look_for_ids(self, key: str, expected: int) -> Operation[None]:
        """Check that a day has no ids, if neither its plan nor its parameters are stored."""
        plan, day = plan_key(key), self._set_day(key, expected)
        keys = [day.part_key(part) for part in range(min(day.parts, _PARTS_LOOKED_AT))]
        there = yield [Command(self.component, part, ("EXISTS", part)) for part in keys]
        if not any(there):
            return
        planned, size = yield [  # another process may have been first
            self._get(plan),
            Command(self.component, day.meta.key, ("EXISTS", day.meta.key)),
        ]
        if planned is None and not size:
            raise damage(
                self.component,
                day.meta.key,
                "nothing",
                f"the parameters of {keys[there.index(1)]}",
                f"store how many visitors the day was planned for at {plan}, or remove(day)",
            )

    def _stored_plan(self, key: str, stored: bytes | None) -> int:
        expected = stored_integer(self.home, key, "expected", stored, 1, 2 * MAX_VISITORS)
        if self._parts(self._size(expected)) > MOST_PARTS:
            raise damage(self.home, key, f"expected={expected}", "2**32 parts at most")
        return expected

    def _check_size(self, key: str, size: int, expected: int, *, ids: bool) -> Operation[None]:
        """Check a day whose size does not follow from its plan: created by other rules, or damaged.

        It checks whether ids are in the parts where that size puts them, one of each part; without
        ``ids`` only whether all keys can be found.
        """
        day, partition = self._set_day(key, expected, size), self.settings.partition
        yield from day.unlisted_parts()
        field = "total" if partition else "parts"
        wanted = f"{field}={self._size(expected)}, as it was planned"
        wrong = damage(self.component, meta_key(key), f"{field}={size}", wanted)
        if not ids and day.parts < day.planned_parts + MOST_UNLISTED:
            return
        if partition is None or not ids:  # where an id of 32 bits belongs is not stored
            raise wrong
        place = hashed_partition(key, partition, size, self._part_size)
        most = min(max(day.parts, day.planned_parts), _MOST_LOOKED_AT)
        for parts in pages(range(most), PARTS_AT_ONCE):
            replies = yield [day.read("SRANDMEMBER", part) for part in parts]
            for part, member in zip(parts, replies, strict=True):
                if member is not None and place(member) != part:
                    raise wrong

    def _set_day(self, key: str, expected: int, size: int | None = None) -> SetDay:
        """Return a day; its size, as stored in its parameters, follows from what is expected."""
        settings, part_size = self.settings, self._part_size
        if size is None:
            size = self._size(expected)
        if settings.partition is None:  # compact
            partition, parts = None, size
        else:
            partition = hashed_partition(key, settings.partition, size, part_size)
            parts = part_count(size, part_size)
        parameters = {  # a day can be opened as a sharded set with these
            "kind": "set",
            "parts" if self._compact else "total": size,
            "part_size": part_size,
            "partition": settings.partition or settings.precision,
            "members": "bytes" if settings.precision == "exact" else "int",
        }
        meta = Metadata(self.component, key, parameters)
        day = SetDay(self.component, key, expected, parts, meta, partition)
        day.planned_parts = self._parts(self._size(expected))
        return day

    def _size(self, expected: int) -> int:
        """Return the size in a day's parameters: the parts, or a sharded set's total."""
        if self.settings.partition == "redis-in-action":
            return expected
        parts = parts_for(expected, self._part_size)
        # A sharded set has parts for twice its total.
        return parts if self._compact else (parts * self._part_size + 1) // 2

    def _parts(self, size: int) -> int:
        """Return how many parts a day of a size has."""
        return size if self._compact else part_count(size, self._part_size)

    def _get(self, key: str) -> Command:
        return Command(self.home, key, ("GET", key))
