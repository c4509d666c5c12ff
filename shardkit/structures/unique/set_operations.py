"""Counts of visitors of any, or of all, of several days, part by part.

The part of an id is a number modulo the number of the day's parts. So days with the same number of
parts have the same ids in the same parts. With other numbers they have them in parts that leave the
same remainder when divided by the greatest common divisor of the numbers::

    yesterday, 4 parts     0   1   2   3                divisor 4:
    today, 12 parts        0   1   2   3   4 … 11       part 1 of yesterday is in 1, 5, 9 of today

Parts that live together are counted by their server; otherwise their ids are fetched, some hundred
parts at a time, so days may be of any size.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, Final, Literal, TypeAlias

from shardkit.errors import ParameterMismatchError, StructureError, counted
from shardkit.operations.commands import Command, Locate
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation, pages
from shardkit.structures.base.damage import stored_integer
from shardkit.structures.base.parameters import open_all
from shardkit.structures.unique.days import BitmapDay, Day, HyperLogLogDay, SetDay
from shardkit.structures.unique.precision import REGISTERS, estimate, registers

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
    """Count the visitors of any, or of all, of some days of one counter, each given once."""
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
            came = stored_integer(day.home, day.key, "count", count, missing=0)
            if came > 0:
                raise StructureError(
                    f"{day.key}: {day.meta.key}, which locates the ids of "
                    f"{counted(came, 'visitor')}, is missing",
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
