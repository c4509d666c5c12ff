"""Runs the scripts of one list, and tracks its ends.

A script does nothing unless the list's stored parameters match the caller's. If another client
deleted the list, and perhaps re-created it, the caller checks them and repeats the script.

A change of many parts takes several scripts, so that none holds the server for long. The first one
stores the remaining work in the list's ends, and from then on every other script does nothing. A
client that meets unfinished work completes it first, so the change is atomic for all clients, and
no client that dies leaves it half done (``lua/steps.lua``)::

    client 1                      {jobs}:ends                              client 2
    lrem 0 "x" ─────────────────► part_size=0
                                  unfinished="1000 remove 20 999 1 …"
                                                          ◄─────────────── lpop: does nothing
    finish ─────────────────────► unfinished="1000 remove 40 999 1 …"
                                  unfinished="1000 remove 60 999 1 …"  ◄── finish
                                  …
    finish ─────────────────────► part_size=1000          ◄─────────────── lpop

The ends locate every value::

    {jobs}:ends     first=-1  last=2  left=2  right=3  part_size=4

    part            -1          0               1               2
                 [ · · a b ] [ c d e f ] [ g h i j ] [ k l m · ]
    index              0 1     2 3 4 5     6 7 8 9     10 11 12

Index 7 is 7 - 2 = 5 values after the first part: in part -1 + 1 + 5 // 4 = 1, at place 5 % 4 = 1.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from shardkit.errors import DamagedDataError
from shardkit.operations.commands import Argument, Command, Partial, Transaction
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Cursor, Operation, Stream, pages
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
from shardkit.structures.base.damage import damage, stored_integer, whole_or_0
from shardkit.structures.base.members import escaped
from shardkit.structures.base.parameters import Metadata, open_all
from shardkit.structures.base.writes import unstable

# How often an operation is tried while other clients keep deleting and creating the list.
ATTEMPTS = 5
# How many parts a script visits that does not read their values, and the most parts and values for
# one that does. Each takes 2 to 8 ms of the server.
PARTS_PER_STEP = 1000
PARTS_PER_SEARCH = 500
VALUES_PER_SEARCH = 20_000
MOST_PARTS = 2**50
FIELDS = ("first", "last", "left", "right", "part_size")
UNFINISHED = b"0"  # the part size while a client changes many parts


class Ends(NamedTuple):
    """The ends of a list."""

    first: int  # the number of the first part
    last: int
    left: int  # how many values the first part holds
    right: int
    part_size: int  # 0 if nothing was ever pushed

    @classmethod
    def parse(cls, reply: Sequence[bytes | None]) -> Ends | None:
        """Parse the reply to an HMGET of FIELDS; None if a script should say what is wrong."""
        if not any(reply):
            return cls(0, 0, 0, 0, 0)
        numbers = [number for number in map(_number, reply) if number is not None]
        return cls(*numbers) if len(numbers) == len(FIELDS) else None

    @property
    def length(self) -> int:
        """The number of values."""
        if self.first == self.last:
            return self.left
        return self.left + self.right + (self.last - self.first - 1) * self.part_size

    def find(self, index: int) -> tuple[int, int] | None:
        """Return the part of an index and the place in it; None if there is no such index."""
        if index < 0:
            index += self.length
        if not 0 <= index < self.length:
            return None
        if index < self.left:
            return self.first, index
        beyond, place = divmod(index - self.left, self.part_size)
        return self.first + 1 + beyond, place


class ListScripts:
    """The scripts of one list; shared by all its faces."""

    def __init__(self, component: str, name: str, part_size: int, meta: Metadata) -> None:
        self.meta = meta
        self.signal = f"{name}:signal"
        self.keys = (meta.key, f"{name}:ends", self.signal)
        self.head = (f"{name}:", part_size, meta.parameters["values"])
        self.component = component
        self.part_size = part_size
        self.searched = max(1, min(PARTS_PER_SEARCH, VALUES_PER_SEARCH // part_size))
        self.visited = PARTS_PER_STEP
        self._ends: Ends | None = None  # as last read

    def command(self, name: str, *args: Argument, idempotent: bool = False) -> Command:
        """Return the command that runs ``lua/<name>.lua``."""
        sent = (*self.head, *args)
        lua = f"structures/list/{name}"
        return lua_call(self.component, lua, self.keys, sent, idempotent=idempotent)

    def run(
        self,
        name: str,
        *args: Argument,
        create: bool = False,
        idempotent: bool = False,
    ) -> Operation[Any]:
        """Run a script."""
        batch = [self.command(name, *args, idempotent=idempotent)]
        attempts = ATTEMPTS
        while attempts:
            yield from open_all([self.meta], create=create)
            [reply] = yield batch
            if reply is not None:
                return reply
            if not (yield from self.finish()):
                self.meta.checked = False
                attempts -= 1
        raise unstable(self.meta.key)

    def run_to_end(self, name: str, *args: Argument, idempotent: bool = False) -> Operation[Any]:
        """Run a script whose reply ends with whether work remains; do that too."""
        *reply, more = yield from self.run(name, *args, idempotent=idempotent)
        if more:
            yield from self.finish()
        return reply[0]

    def remove(self, count: int, value: bytes) -> Operation[int]:
        """Remove a value; return how many times, as the last script reports."""
        result = f"{self.head[0]}removed:{secrets.token_hex(8)}"
        removed, more = yield from self.run("remove", count, value, self.searched, result)
        if not more:
            return int(removed)
        yield from self.finish()
        taking = [Command(self.component, result, (name, result)) for name in ("GET", "DEL")]
        [[stored, _]] = yield [Transaction(self.component, result, tuple(taking))]
        return stored_integer(self.component, result, "what was removed", stored, 0)

    def finish(self) -> Operation[bool]:
        """Complete unfinished work; return whether there was any. One exchange a step."""
        finishing = self.command("finish", self.searched, self.visited, idempotent=True)
        steps = 0
        while True:
            [more] = yield [finishing]
            if more < 1:
                return bool(steps or more == 0)
            steps += 1

    def read(self, name: str, *args: Argument) -> Operation[Any]:
        """Run a script that only reads, or may be repeated."""
        return (yield from self.run(name, *args, idempotent=True))

    def ends(self) -> Operation[Ends]:
        """Return the current ends. Cost: one exchange."""
        for _ in range(ATTEMPTS):
            yield from open_all([self.meta])
            [reply] = yield [self._ends_query]
            ends = self._update_ends(reply)
            if ends is not None:
                return ends
            yield from self.finish()
        yield from self.length()  # raises if the ends are damaged
        raise unstable(self.meta.key)

    def length(self) -> Operation[int]:
        """Return the number of values, after a check of the ends. Cost: one exchange."""
        length, *_ = yield from self.read("at", 2**53 - 1)
        return int(length)

    def value_at(self, index: int) -> Operation[bytes | None]:
        """Return the value at an index: read from its place according to the ends last read.

        In a transaction that also reads the ends: a fraction of a script's work for the server.
        """
        ends = self._ends
        if ends is None or ends.find(index) is None:
            ends = yield from self.ends()
        for _ in range(2):
            expected = ends.find(index)
            if expected is None:
                break
            part, place = expected
            key = f"{self.head[0]}{part}"
            value_query = Command(self.component, key, ("LINDEX", key, place))
            sizes = [
                Command(self.component, end, ("LLEN", end))
                for end in (f"{self.head[0]}{ends.first}", f"{self.head[0]}{ends.last}")
            ]
            queries = (self._ends_query, value_query, *sizes)
            [[reply, value, *end_lengths]] = yield [Transaction(self.component, key, queries)]
            ends = self._update_ends(reply)
            if ends is None:
                break
            agree = end_lengths == [ends.left, ends.right] and ends.find(index) == expected
            if agree and value is not None:
                return value  # type: ignore[no-any-return]
        _, *values = yield from self.read("at", index)
        return values[0] if values else None

    @property
    def _ends_query(self) -> Command:
        key = self.keys[1]
        return Command(self.component, key, ("HMGET", key, *FIELDS, "values", "format"))

    def _update_ends(self, reply: Sequence[bytes | None]) -> Ends | None:
        """Store the ends; None if the list has other parameters, or is being changed."""
        *numbers, values, format_ = reply
        if numbers[-1] == UNFINISHED or format_ not in (None, b"1"):
            return None  # the scripts refuse another format
        ends = Ends.parse(numbers)
        other = values is not None and values.decode(errors="replace") != self.head[2]
        if ends is None or other or ends.part_size not in (0, self.part_size):
            self.meta.checked = False
            self._ends = None
            return None
        self._ends = ends
        return ends


# Parts to search for beyond a missing one.
_SEARCHED = 1000
_ENDS = "rebuild() stores the ends as the parts have them"
_LOST = "values of lost parts, lost already"
_MOVES = "rebuild() moves up what follows"


def check_list(scripts: ListScripts, decode: Callable[[bytes], Any]) -> Stream[Damage]:
    """Check the ends of a list and all its parts, which may change at the same time.

    Parts between the ends are full: so a part that was cut, lengthened or lost is found, and so are
    ends that were lost or changed, as long as there are parts.
    """
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
    ends = Command(to, key, ("HMGET", key, "first", "last", "due"))
    [reply, present] = yield Partial([ends, Command(to, key, ("EXISTS", scripts.keys[0]))])
    first, last, due = reply if isinstance(reply, list) else (None, None, None)
    start, stop = _number(first), _number(last)
    sizes_by_part: dict[int, int] = {}

    def read(parts: Iterable[int]) -> Operation[bool]:
        numbers, notes = list(parts), Suspicions()
        if not numbers:
            return False
        sizes = yield from lengths(to, "LIST", [f"{prefix}{part}" for part in numbers], notes)
        for note in notes:
            yield [Command(to, note.error.key, ("UNLINK", note.error.key), idempotent=True)]
        existing = {part: size for part, size in zip(numbers, sizes, strict=True) if size}
        sizes_by_part.update(existing)
        return bool(existing)

    [keys] = yield [Command(to, key, ("DBSIZE",))]
    if start is None or stop is None or not 0 <= stop - start < keys:
        pattern, cursor = escaped(prefix) + "*", Cursor(to, key)
        while (yield from cursor.more()):
            scan = ("SCAN", cursor.at, "MATCH", pattern, "COUNT", _SEARCHED)
            [[cursor.at, names]] = yield [Command(to, key, scan)]
            numbers = (_number(name.removeprefix(prefix.encode())) for name in names)
            yield from read(number for number in numbers if number is not None)
    else:
        for step, begin, least in ((1, start, stop), (-1, start - 1, start)):
            at = begin
            while (yield from read(range(at, at + step * _SEARCHED, step))) or (
                step * (at - least) < 0
            ):
                at += step * _SEARCHED
    for page in pages(sizes_by_part if remove else (), _SEARCHED):
        yield [Command(to, part, ("UNLINK", part)) for part in (f"{prefix}{n}" for n in page)]
    if remove:
        sizes_by_part.clear()
    elif present == 0 and not sizes_by_part:  # there is no list
        yield [Command(to, key, ("UNLINK", key, scripts.signal))]
        return {}
    lowest, highest = min(sizes_by_part, default=0), max(sizes_by_part, default=0)
    fields: list[Argument] = ["first", lowest, "last", highest, "part_size", scripts.part_size]
    left, right = sizes_by_part.get(lowest, 0), sizes_by_part.get(highest, 0)
    fields += ["values", scripts.head[2], "left", left, "right", right]
    meta = scripts.meta
    meta.due = meta.due or whole_or_0(due)  # the remaining parts expire then
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
                *([Command(to, signal, ("RPUSH", signal, "1"))] if sizes_by_part else []),
                Command(to, signal, _expiry(scripts, signal)),
            ),
        )
    ]
    return dict(sorted(sizes_by_part.items()))


def _expiry(scripts: ListScripts, key: str) -> tuple[Argument, ...]:
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
    sizes_by_part = yield from restore_ends(scripts)
    if not sizes_by_part:
        return
    size, (first, *_, last) = scripts.part_size, (*sizes_by_part, *sizes_by_part)
    sizes = list(sizes_by_part.values())
    contiguous = len(sizes_by_part) == last - first + 1
    if contiguous and all(n == size for n in sizes[1:-1]) and all(n <= size for n in sizes):
        return
    to, key, prefix = scripts.component, scripts.keys[1], scripts.head[0]
    waiting: list[bytes] = []
    begin = at = last + 2  # the old parts stay until all values are in new ones
    for part in sizes_by_part:
        old = f"{prefix}{part}"
        [values] = yield [Command(to, old, ("LRANGE", old, 0, -1))]
        waiting += values
        while len(waiting) >= size or (part == last and waiting):
            chunk, waiting = waiting[:size], waiting[size:]
            new = f"{prefix}{at}"
            commands: list[Command] = [Command(to, new, ("DEL", new))]
            commands += [Command(to, new, ("RPUSH", new, *page)) for page in pages(chunk, 1000)]
            commands.append(Command(to, new, _expiry(scripts, new)))
            yield [Transaction(to, new, tuple(commands))]
            at += 1
    right = len(chunk)
    left = right if at - 1 == begin else size
    fields = ("first", begin, "last", at - 1, "left", left, "right", right)
    yield [Command(to, key, ("HSET", key, *fields))]
    for olds in pages(sizes_by_part, _SEARCHED):
        yield [Command(to, f"{prefix}{n}", ("UNLINK", f"{prefix}{n}")) for n in olds]
