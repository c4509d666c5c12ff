"""How many visitors a day is planned for, and the day's data as that makes it.

::

    unique:2015-05-16             1302              what came the day before   ┐  one exchange
    unique:2015-05-17:expected    2048              the plan, if somebody made ├─►  for all three
    unique:2015-05-17:meta        total=1280 …      what the day was made for  ┘

Whoever needs a plan first stores it if none is there, and reads it again, so all agree. What the
day was made for decides where its ids are, whatever a plan says: days that were made by other rules
keep theirs.
"""

from __future__ import annotations

from typing import Any, Final

from shardkit.encodings.limits import warn_if_not_compact
from shardkit.operations.commands import Command, Home
from shardkit.operations.operation import Driver, Face, Operation
from shardkit.routing.partition import partition
from shardkit.structures.base.parameters import Metadata, meta_key
from shardkit.structures.set.sharded_set import ShardedSet
from shardkit.structures.unique.bitmap_day import BitmapDay
from shardkit.structures.unique.day import CompactDay, Day, SetDay
from shardkit.structures.unique.hyperloglog_day import HyperLogLogDay
from shardkit.structures.unique.precision import (
    SIXTY_BIT,
    Settings,
    expected_for,
    parts_for,
    planned,
    usual_part_size,
)

BOOK: Final = "redis-in-action"


class Plans:
    """Makes the days of one counter.

    Args:
        driver: any; nothing is run by it.
        component: where days live.
        chosen: the counter's parameters.

    Attributes:
        needed: whether the precision plans its days.
    """

    def __init__(self, driver: Driver, component: str, chosen: Settings) -> None:
        self._driver = driver
        self._component = component
        self._chosen = chosen
        self._home = Home(component)
        self._part_size = chosen.part_size or 0
        self.needed = chosen.first_day is not None
        self._field = "parts" if chosen.precision == "compact" else "total"

    def unplanned(self, key: str) -> Day:
        """Return a day of a precision without plans."""
        if self._chosen.precision == "bitmap":
            return BitmapDay(self._component, key, self._part_size)
        return HyperLogLogDay(self._component, key)

    def made(self, key: str, expected: int | None, size: int | None = None) -> SetDay:
        """Return a day.

        Args:
            key: the key of its count.
            expected: how many visitors are expected; None: as its size says.
            size: what it was made for, as it is stored; None: for what is expected.
        """
        if size is None:
            size = self._size(expected or 1)
        if expected is None:
            expected = self._expected(size)
        chosen = self._chosen
        if chosen.precision == "compact":
            parameters = {
                "kind": "set",
                "parts": size,
                "part_size": self._part_size,
                "partition": chosen.precision,
                "members": "int",
            }
            meta = Metadata(self._component, key, parameters)
            return CompactDay(self._component, key, expected, size, meta, int)
        ids: ShardedSet[Any, Any] = self.sharded_set(self._driver, key, size)
        rule = partition(str(chosen.partition), size, self._part_size)
        return SetDay(self._component, key, expected, ids.parts, ids.meta, rule)

    def sharded_set(self, driver: Driver, key: str, total: int) -> ShardedSet[Face, int]:
        """Return a day's ids as a sharded set.

        Raises:
            InvalidArgumentError: the counter's parameters make none.
        """
        kind: type[int] = int if self._chosen.precision == SIXTY_BIT else bytes  # type: ignore[assignment]
        rule = str(self._chosen.partition)
        return ShardedSet(driver, self._component, key, total, self._part_size, kind, rule)

    def warn(self, name: str, key: str) -> Operation[None]:
        """Log a warning when parts as large as planned are not compact on the server.

        Args:
            name: the counter's name.
            key: the key of a day's count, whose first part's server is asked.

        Cost: none with parts of the usual size, otherwise one exchange.
        """
        precision = self._chosen.precision
        if self.needed and self._part_size > usual_part_size(precision):
            form = "set" if precision == "exact" else "intset"
            yield from warn_if_not_compact(self._component, f"{key}:0", form, self._part_size, name)

    def first(self, name: str) -> None:
        """Make a day as the first would be.

        Raises:
            InvalidArgumentError: the counter's parameters make none.
        """
        self.made(name, planned(self._chosen.first_day or 0))

    def find(self, key: str, before: str, *, plan: bool) -> Operation[tuple[SetDay, bool]]:
        """Return a day, and whether it is decided how it is made.

        Args:
            key: the key of its count.
            before: the key of the count of the day before.
            plan: whether to store how many visitors are expected, if nobody has. Otherwise such a
                day is as if it were planned now.

        Cost: one exchange; two when it is planned.
        """
        plan_at, set_at = plan_key(key), meta_key(key)
        reading = Command(self._component, set_at, ("HGET", set_at, self._field), None, True)
        [decided, stored, came] = yield [self._get(plan_at), reading, self._get(before)]
        size = None if stored is None else int(stored)
        if decided is not None or size is not None:
            mine = int(decided) if decided is not None else self._expected(size or 1)
        else:
            mine = planned(self._chosen.first_day or 0 if came is None else int(came))
        if plan and decided is None:
            setting = ("SET", plan_at, mine, "NX")
            [_, decided] = yield [
                Command(self._home, plan_at, setting, idempotent=True),
                self._get(plan_at),  # another process may have been first
            ]
        known = decided is not None or size is not None
        return self.made(key, mine if decided is None else int(decided), size), known

    def _size(self, expected: int) -> int:
        """Return what a day is made for that so many visitors are expected on."""
        if self._chosen.partition == BOOK:
            return expected
        parts = parts_for(expected, self._part_size)
        if self._chosen.precision == "compact":
            return parts
        return (parts * self._part_size + 1) // 2  # a sharded set's parts are half full

    def _expected(self, size: int) -> int:
        """Return how many visitors were expected on a day, from what it was made for."""
        if self._chosen.partition == BOOK:
            return size
        if self._chosen.precision != "compact":
            size = max(1, 2 * size // self._part_size)
        return expected_for(size, self._part_size)

    def _get(self, key: str) -> Command:
        return Command(self._home, key, ("GET", key), idempotent=True)


def plan_key(key: str) -> str:
    """Return the key of a day's plan."""
    return f"{key}:expected"
