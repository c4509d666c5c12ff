"""How many visitors came on any, or on all, of several days: counted part by part.

The part of an id is a number of its own (its CRC-32, or the upper bits of a hash), modulo the
number of the day's parts. So days with the same number of parts have the same ids in the same
parts. With other numbers they have them in parts that leave the same remainder when they are
divided by the greatest common divisor of the numbers::

    yesterday, 4 parts     0   1   2   3                divisor 4:
    today, 12 parts        0   1   2   3   4 … 11       part 1 of yesterday is in 1, 5, 9 of today

That is why the numbers that `shardkit.structures.unique.precision` plans have large divisors. Of
days of ``compact`` with different plans, ids are compared in the bits that both keep.

Parts that live together are counted by their server, otherwise their ids are fetched: some hundred
parts at a time, so the days may be of any size.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, Final, TypeAlias

from shardkit.errors import ParameterMismatchError
from shardkit.lua import script
from shardkit.operations.commands import Columns, Command, Locate, script_call
from shardkit.operations.operation import Operation, pages
from shardkit.structures.base.parameters import open_all
from shardkit.structures.unique.bitmap_day import BitmapDay
from shardkit.structures.unique.day import Day, PartedDay, SetDay
from shardkit.structures.unique.hyperloglog_day import HyperLogLogDay, estimate_any

PARTS_AT_ONCE: Final = 256
BITS_AT_ONCE: Final = 2**23  # a megabyte
MOST_IDS_A_GROUP: Final = 2**21  # in memory at the same time
# The keys of one group, a list for each day.
Group: TypeAlias = list[list[str]]

ANY: Final = "any"
ALL: Final = "all"
_COMBINED: Final[Mapping[str, Callable[[Any, Any], Any]]] = {ANY: operator.or_, ALL: operator.and_}


def count_days(days: Sequence[Day], which: str) -> Operation[int]:
    """Count the visitors of any, or of all, of some days of one counter.

    Args:
        days: each once.
        which: ANY or ALL; of HyperLogLogs only ANY.

    Raises:
        ParameterMismatchError: the days' plans have too little in common.
    """
    if len(days) == 1 and isinstance(days[0], PartedDay):
        held = yield from days[0].held()
        return held or 0
    bitmaps = [day for day in days if isinstance(day, BitmapDay)]
    if bitmaps:
        return (yield from count_bitmaps(bitmaps, which))
    estimates = [day for day in days if isinstance(day, HyperLogLogDay)]
    if estimates:
        return (yield from estimate_any(estimates))
    sets = [day for day in days if isinstance(day, SetDay)]
    yield from open_all([day.meta for day in sets])
    there = [day for day in sets if day.meta.checked]
    if not there or (which == ALL and len(there) < len(sets)):
        return 0
    return (yield from count_sets(there, which))


def count_sets(days: Sequence[SetDay], which: str) -> Operation[int]:
    """Count the ids of any, or of all, of some days.

    Args:
        days: days that exist; at least one.
        which: ANY or ALL.

    Raises:
        ParameterMismatchError: their plans have so little in common that more than two million ids
            would have to be compared at once.

    Cost: one command a part, or a script for the same part of all days where they live together;
    an exchange for every 256 parts.
    """
    divisor = math.gcd(*(day.parts for day in days))
    each = sum(day.parts for day in days) // divisor
    total = 0
    for residues in pages(range(divisor), max(1, PARTS_AT_ONCE // each)):
        groups = [
            [[day.part_key(part) for part in range(residue, day.parts, divisor)] for day in days]
            for residue in residues
        ]
        if each <= PARTS_AT_ONCE:
            total += yield from _count_groups(days[0].component, groups, which)
        else:
            total += yield from _count_large(days, groups[0], which)
    return total


def _count_large(days: Sequence[SetDay], group: Group, which: str) -> Operation[int]:
    """Count the ids of one group of so many parts that they take several exchanges."""
    found: list[set[bytes]] = []
    for keys in group:
        ids: set[bytes] = set()
        for page in pages(keys, PARTS_AT_ONCE):
            ids.update(*(yield Columns(days[0].component, "SMEMBERS", page, idempotent=True)))
            if sum(map(len, found)) + len(ids) > MOST_IDS_A_GROUP:
                plans = ", ".join(f"{day.key}: {day.parts:,}" for day in days[:5])
                raise ParameterMismatchError(
                    f"days cannot be combined: their numbers of parts, {plans}, have no large "
                    f"common divisor, so more than {MOST_IDS_A_GROUP:,} ids would be compared at "
                    "once",
                    "combine days with plans of about the same size",
                )
        found.append(ids)
    return len(reduce(_COMBINED[which], found))


def _count_groups(component: str, groups: Sequence[Group], which: str) -> Operation[int]:
    """Count the ids of groups of parts, each by its server or here."""
    flat = [[key for keys in group for key in keys] for group in groups]
    places = iter((yield Locate([(component, key) for keys in flat for key in keys])))
    batch: list[Command] = []
    counted: list[bool] = []
    for group, keys in zip(groups, flat, strict=True):
        together = len({next(places) for _ in keys}) == 1
        single = which == ANY or all(len(parts) == 1 for parts in group)
        counted.append(together and single and len(keys) > 1)
        if counted[-1]:
            name = (
                "structures/unique/count_any" if which == ANY else "structures/unique/count_common"
            )
            batch.append(script_call(component, script(name), keys, idempotent=True))
        else:
            batch += [Command(component, k, ("SMEMBERS", k), None, True) for k in keys]
    replies = iter((yield batch))
    total = 0
    for group, by_server in zip(groups, counted, strict=True):
        if by_server:
            total += int(next(replies))
        else:
            days = [set().union(*(next(replies) for _ in keys)) for keys in group]
            total += len(reduce(_COMBINED[which], days))
    return total


def count_bitmaps(days: Sequence[BitmapDay], which: str) -> Operation[int]:
    """Count the users of any, or of all, of some days.

    Args:
        days: at least one.
        which: ANY or ALL.

    Cost: one command a part and day; an exchange for every megabyte, and one for each day.
    """
    there: list[set[int]] = []
    for day in days:
        found = yield from day.parts_there()
        there.append(set(found or ()))
    parts = sorted(reduce(_COMBINED[which], there))
    at_once = max(1, BITS_AT_ONCE // (days[0].part_size * len(days)))
    total = 0
    for page in pages(parts, at_once):
        replies = iter((yield [day.reading(part) for part in page for day in days]))
        for _ in page:
            bits = [int.from_bytes(next(replies) or b"") for _ in days]
            total += reduce(_COMBINED[which], bits).bit_count()
    return total
