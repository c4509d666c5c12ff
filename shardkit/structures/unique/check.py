"""Check a day's parts: see `shardkit.structures.base.check`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from shardkit.errors import DamagedDataError
from shardkit.operations.arguments import shown
from shardkit.operations.operation import Operation, Stream, pages
from shardkit.structures.base.check import (
    KEYS_CHECKED,
    Damage,
    Suspicion,
    Suspicions,
    check_registered,
    confirmed,
    contents,
)
from shardkit.structures.base.damage import damage
from shardkit.structures.unique.days import BitmapDay, SetDay


def check_day(day: SetDay | BitmapDay) -> Stream[Damage]:
    """Check all parts of a day."""
    if isinstance(day, BitmapDay):
        yield (yield from confirmed(partial(_check_registered, day)))
    parts, _ = yield from day.existing_parts()
    if isinstance(day, SetDay):
        yield (yield from confirmed(partial(_check_parameters, day)))
    for some in pages(parts, KEYS_CHECKED):
        if isinstance(day, SetDay):
            yield (yield from confirmed(partial(_check_sets, day, some)))
        else:
            yield (yield from confirmed(partial(day.wrong_lengths, some)))


def _check_registered(day: BitmapDay) -> Operation[Suspicions]:
    return (yield from check_registered(day.registry, *(yield from day.first_unregistered())))


def _check_parameters(day: SetDay) -> Operation[Suspicions]:
    _, stored = yield from day.existing_parts()
    try:
        if stored or not (yield from day.size()):
            return []
    except DamagedDataError:  # of a part, which is named with the others
        return []
    error = damage(day.component, day.index_key, "nothing", "the day's parameters")
    return [Suspicion(error, "rebuild() stores them")]


def _check_sets(day: SetDay, parts: Sequence[int]) -> Operation[Suspicions]:
    notes: Suspicions = []
    keys = list(map(day.part_key, parts))
    held = yield from contents(day.component, "SET", keys, notes)
    for part, key, entries in zip(parts, keys, held, strict=True):
        members = [member for member, _ in entries]
        wrong = [member for member in members if not day.is_of(part, member)]
        if wrong:
            found = f"{shown(wrong[0])}, one of {len(wrong)} that are not its own"
            error = damage(day.component, key, found, "only ids of this part")
            notes.append(Suspicion(error))
    return notes
