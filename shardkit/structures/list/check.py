"""Check and repair a list: see `shardkit.structures.base.check`.

Parts between the ends are full. So the check detects a part that was cut, lengthened or lost, and
ends that were lost or changed, as long as there are parts. Lost values cannot be restored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from shardkit.errors import DamagedDataError
from shardkit.operations.commands import Argument, Command, Partial, Transaction
from shardkit.operations.operation import Operation, Stream, pages
from shardkit.structures.base.check import (
    KEYS_CHECKED,
    Damage,
    Suspicion,
    Suspicions,
    confirmed,
    first_wrong,
    lengths,
    raised_twice,
    read_or_note,
)
from shardkit.structures.base.damage import damage
from shardkit.structures.base.glob import escaped
from shardkit.structures.list.scripts import MOST_PARTS, ListScripts

# Parts to search for beyond a missing one.
_SEARCHED = 1000
_ENDS = "rebuild() stores the ends as the parts have them"
_LOST = "values of lost parts, lost already"
_MOVES = "rebuild() moves up what follows"


def check_list(scripts: ListScripts, decode: Callable[[bytes], Any]) -> Stream[Damage]:
    """Check the ends of a list and all its parts, which may change at the same time."""
    at: int | None = None
    # In one script, against the parts.
    if (yield from raised_twice(scripts.length, repair=_ENDS, loses=_LOST)):
        return
    while True:
        ends = yield from scripts.ends()
        at = ends.first if at is None else max(at, ends.first)
        if not ends.part_size or at > ends.last:
            return
        page = yield from confirmed(_check_parts, scripts, at, decode)
        missing = sum(damage.found == "0 values" for damage in page)
        if missing == KEYS_CHECKED:  # the ends may say anything
            return
        at += KEYS_CHECKED


def _check_parts(
    scripts: ListScripts, first: int, decode: Callable[[bytes], Any]
) -> Operation[Suspicions]:
    ends, notes = (yield from scripts.ends()), Suspicions()
    start = max(first, ends.first)
    parts = range(start, min(start + KEYS_CHECKED, ends.last + 1))
    keys = [f"{scripts.head[0]}{part}" for part in parts]
    replies = yield from read_or_note(
        [Command(scripts.component, key, ("LRANGE", key, 0, -1)) for key in keys],
        notes,
        "rebuild() removes it",
        "what the key holds; what it held before is lost already",
    )
    sizes = {ends.last: ends.right, ends.first: ends.left}
    for part, key, values in zip(parts, keys, replies, strict=True):
        if values is None:
            continue
        wanted = sizes.get(part, ends.part_size)
        if len(values) != wanted:
            expected = f"{wanted}, as its list has it,"
            error = damage(scripts.component, key, f"{len(values)} values", expected)
            lost = "" if len(values) > wanted else f"{wanted - len(values)} values, lost already"
            notes.append(Suspicion(error, _MOVES, lost))
        rows = ((value, None) for value in values)
        notes += first_wrong(scripts.component, key, rows, lambda value, _: decode(value))
    return notes


# ---- repair


def restore_ends(scripts: ListScripts, *, remove: bool = False) -> Operation[dict[int, int]]:
    """Store the ends as the existing parts have them; return how many values each part has.

    With ``remove``, remove these parts first, of whatever length: the ends are an empty list's.
    Keys of another type are removed. Parts are searched between the stored ends, and outwards until
    1,000 are missing; among all keys of the server, if these ends are impossible.
    """
    to, key, prefix = scripts.component, scripts.keys[1], scripts.head[0]
    [reply] = yield Partial([Command(to, key, ("HMGET", key, "first", "last", "due"))])
    first, last, due = reply if isinstance(reply, list) else (None, None, None)
    start, stop = _number(first), _number(last)
    held: dict[int, int] = {}

    def read(parts: Iterable[int]) -> Operation[bool]:
        numbers, notes = list(parts), Suspicions()
        if not numbers:
            return False
        sizes = yield from lengths(to, "LIST", [f"{prefix}{part}" for part in numbers], notes)
        for note in notes:
            yield [Command(to, note.error.key, ("UNLINK", note.error.key), idempotent=True)]
        existing = {part: size for part, size in zip(numbers, sizes, strict=True) if size}
        held.update(existing)
        return bool(existing)

    [keys] = yield [Command(to, key, ("DBSIZE",))]
    if start is None or stop is None or not 0 <= stop - start < keys:
        yield from _each_part(scripts, read)
    else:
        for step, begin, least in ((1, start, stop), (-1, start - 1, start)):
            at = begin
            while (yield from read(range(at, at + step * _SEARCHED, step))) or (
                step * (at - least) < 0
            ):
                at += step * _SEARCHED
    for some in pages(held if remove else (), _SEARCHED):
        yield [Command(to, part, ("UNLINK", part)) for part in (f"{prefix}{n}" for n in some)]
    if remove:
        held.clear()
    lowest, highest = min(held, default=0), max(held, default=0)
    fields: list[Argument] = ["first", lowest, "last", highest, "part_size", scripts.part_size]
    left, right = held.get(lowest, 0), held.get(highest, 0)
    fields += ["values", scripts.head[2], "left", left, "right", right]
    meta = scripts.meta
    if not meta.due and isinstance(due, bytes) and due.isdigit() and len(due) < 16:
        meta.due = int(due)  # the remaining parts expire then
    if meta.due:
        fields += ["due", meta.due]
    signal = scripts.signal
    yield [
        Transaction(
            to,
            key,
            (
                Command(to, key, ("DEL", key)),
                Command(to, key, ("HSET", key, *fields)),
                Command(to, key, _expiry(scripts, key)),
                Command(to, signal, ("DEL", signal)),
                *([Command(to, signal, ("RPUSH", signal, "1"))] if held else []),
                Command(to, signal, _expiry(scripts, signal)),
            ),
        )
    ]
    return dict(sorted(held.items()))


def _each_part(
    scripts: ListScripts, read: Callable[[Iterable[int]], Operation[bool]]
) -> Operation[None]:
    """Find the parts among all keys of the server."""
    key, prefix = scripts.keys[1], scripts.head[0]
    pattern, cursor = escaped(prefix) + "*", b"0"
    while True:
        scan = ("SCAN", cursor, "MATCH", pattern, "COUNT", _SEARCHED)
        [[cursor, names]] = yield [Command(scripts.component, key, scan)]
        numbers = (_number(name.removeprefix(prefix.encode())) for name in names)
        yield from read(number for number in numbers if number is not None)
        if int(cursor) == 0:
            return


def _expiry(scripts: ListScripts, key: str) -> tuple[Argument, ...]:
    """Return the command that gives a key the list's expiry."""
    name, *args = scripts.meta.expiry
    return (name, key, *args)


def _number(stored: bytes | None) -> int | None:
    """Return the number of a part; None if it is not valid."""
    if stored is None or len(stored) > 17 or not re.fullmatch(rb"0|-?[1-9][0-9]*", stored):
        return None
    return int(stored) if abs(int(stored)) < MOST_PARTS else None


def rebuild_list(scripts: ListScripts) -> Operation[None]:
    """Complete unfinished work if it can be read; store the ends again; pack values after a gap."""
    with suppress(DamagedDataError):
        yield from scripts.finish()
    held = yield from restore_ends(scripts)
    if not held:
        return
    size, (first, *_, last) = scripts.part_size, (*held, *held)
    sizes = list(held.values())
    contiguous = len(held) == last - first + 1
    if contiguous and all(n == size for n in sizes[1:-1]) and all(n <= size for n in sizes):
        return
    to, key, prefix = scripts.component, scripts.keys[1], scripts.head[0]
    waiting: list[bytes] = []
    begin = at = last + 2  # the old parts stay until all values are in new ones
    for part in held:
        old = f"{prefix}{part}"
        [values] = yield [Command(to, old, ("LRANGE", old, 0, -1))]
        waiting += values
        while len(waiting) >= size or (part == last and waiting):
            some, waiting = waiting[:size], waiting[size:]
            new = f"{prefix}{at}"
            commands: list[Command] = [Command(to, new, ("DEL", new))]
            commands += [Command(to, new, ("RPUSH", new, *each)) for each in pages(some, 1000)]
            commands.append(Command(to, new, _expiry(scripts, new)))
            yield [Transaction(to, new, tuple(commands))]
            at += 1
    right = len(some)
    left = right if at - 1 == begin else size
    fields = ("first", begin, "last", at - 1, "left", left, "right", right)
    yield [Command(to, key, ("HSET", key, *fields))]
    for olds in pages(held, _SEARCHED):
        yield [Command(to, f"{prefix}{n}", ("UNLINK", f"{prefix}{n}")) for n in olds]
