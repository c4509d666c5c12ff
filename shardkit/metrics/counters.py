r"""Counts over time, at several precisions: hits each second, minute, hour and day.

::

    counters:{counters:17}:of:hits   HASH   5:5578241  → ▒ 03 07 00 12 …    256 slices of 5 seconds
                                            60:464853  → ▒ 2a 00 40 01 …    256 slices of a minute
    counters:{counters:17}:known     ZSET   hits       → when something of it can be removed

A counter's slices are packed in chunks of 256. All counts of a chunk have one width, 1 to 7 bytes;
a count that outgrows it has the chunk rewritten. A month of minutes with up to 255 hits is
43,200 slices in 169 chunks, about 51 KB; as fields of a HASH, as in the book, it is 1.6 MB.

A counter lives in one of 64 groups, by the CRC-32 of its name. A group has a hash tag, so it is on
one shard, and scripts register, write and clean its counters in one step. No matter how many
processes clean, a chunk is removed once, and cleaning visits only what is due.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from shardkit.callbacks import run
from shardkit.errors import InvalidArgumentError, counted
from shardkit.metrics.outbox import Background, Recorder, RecordingStructure
from shardkit.operations.arguments import Seconds, in_seconds, shown
from shardkit.operations.commands import (
    Argument,
    Command,
    Partial,
    Pause,
    Replies,
    Transaction,
    raise_failures,
)
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Page,
    Stream,
    operation,
    pages,
    stream,
)
from shardkit.structures.base.arguments import check_integer, check_name, check_seconds, distinct
from shardkit.structures.base.check import Damage, check_reads
from shardkit.structures.base.parameters import format_of
from shardkit.structures.base.server_clock import ServerClock

# Precisions in seconds, and the number of slices kept of each.
PRECISIONS = (1, 5, 60, 300, 3600, 18000, 86400)
SAMPLES = 100
MOST_SAMPLES = 100_000
MOST_COUNT = 2**53 - 1
GROUPS = 64
SLICES = 256
# Updates of one script: 200 of seven precisions each take a server about 5 milliseconds.
AT_ONCE = 200
NAMES_A_PAGE = 1000
PATIENCE = 2.0  # seconds for which cleaning waits for a server
CLEANED_AT_ONCE = 100


class Cleaned(NamedTuple):
    """The result of cleaning.

    Attributes:
        chunks: the number of chunks of 256 slices removed.
        counters: the number of counters removed, as nothing was left of them.
    """

    chunks: int
    counters: int


@lru_cache(maxsize=65536)
def group_of(name: str) -> int:
    """Return the group of a name."""
    return zlib.crc32(name.encode()) % GROUPS


class _Hits(Recorder["TimeSliceCounters[Any]"]):
    at_once = AT_ONCE

    def discard(self) -> None:
        super().discard()
        self.hits: dict[str, int] = {}

    def collect(self) -> Mapping[Any, Sequence[Any]]:
        with self.lock:
            hits, self.hits = self.hits, {}
        when = self._owner._clock.local_seconds()
        by_group: dict[int, list[Any]] = {}
        for name, count in hits.items():
            by_group.setdefault(group_of(name), []).append((name, when, count))
        return by_group

    def request(self, place: int, writer: str, number: str, records: Sequence[Any]) -> Command:
        now = self._owner._clock.local_seconds()
        updates = [(name, max(0.0, now - when), count) for name, when, count in records]
        return self._owner._add(place, updates, writer, number)

    def sent(self, replies: Sequence[tuple[Any, Sequence[Any], Any]]) -> list[Transaction]:
        self.dropped += sum(max(0, int(reply)) for _, _, reply in replies)
        return []


class TimeSliceCounters(RecordingStructure[Face]):
    """Counts over time by name. Made by ``kit.counters``.

    Args:
        precisions: the lengths of slices in seconds, or a mapping of these to the numbers of slices
            kept. All processes should use the same: one that keeps fewer removes slices of others.
        samples: the number of slices kept of each precision, unless ``precisions`` is a mapping.
    """

    deferred: DeferredFace[TimeSliceCounters[Deferred]]

    def __init__(
        self,
        driver: Driver,
        background: Background,
        component: str,
        name: str = "counters",
        precisions: Mapping[int | timedelta, int] | Iterable[int | timedelta] = PRECISIONS,
        samples: int = SAMPLES,
        clock: ServerClock | None = None,
    ) -> None:
        check_name(name)
        given: dict[int, int] = {}
        for wanted in precisions:
            precision = _whole(wanted)
            check_integer(name, "precision", precision, 1, 10**7)
            number = precisions[wanted] if isinstance(precisions, Mapping) else samples
            check_integer(name, "samples", number, 1, MOST_SAMPLES)
            given[precision] = number
        if not 0 < len(given) <= 20:
            raise InvalidArgumentError(
                f"{name}: {counted(len(given), 'precision')}", "give 1 to 20"
            )
        self.precisions = dict(sorted(given.items()))
        by_precision = tuple(self.precisions.items())
        self._precision_args: list[Argument] = [len(given)]
        for precision, number in self.precisions.items():
            self._precision_args += [precision, number]
        super().__init__(driver, background, component, name, clock, _Hits, by_precision)

    # ---- counting

    def hit(self, name: str, count: int = 1) -> None:
        """Count in this process; the kit sends hits once a second. Never blocks or awaits.

        A hit counts in the slice in which it is sent, at most an interval late. A killed process
        loses its hits since the last sending.

        Args:
            count: the number to add, 1 to 2**53 - 1.

        Cost: under a microsecond, and no exchange.
        """
        if type(name) is not str:
            check_name(name)
        if type(count) is not int or not 0 < count <= MOST_COUNT:
            check_integer(self.name, "count", count, 1, MOST_COUNT)
        recorder = self._recorder
        with recorder.lock:
            hits = recorder.hits
            if name in hits:
                hits[name] += count
                return
            check_name(name)
            hits[name] = count
        self._background.start()

    @operation
    def add(self, name: str, count: int = 1) -> Operation[None]:
        """Count at once; ``count`` is what `hit` takes.

        Raises:
            InvalidArgumentError: the name is not text, or the count is out of range, or a slice
                would exceed 2**53 - 1.
            ShardErrors: the server failed; ``maybe_executed`` says whether it may have counted.

        Cost: one exchange, O(precisions).
        """
        yield from TimeSliceCounters.add_many.steps(self, {name: count})

    @operation
    def add_many(self, counts: Mapping[str, int]) -> Operation[None]:
        """Count several at once; see `add`. Cost: one exchange for each 200 counters of a group."""
        groups: dict[int, list[tuple[str, float, int]]] = {}
        for name, count in counts.items():
            check_name(name)
            check_integer(self.name, "count", count, 1, MOST_COUNT)
            groups.setdefault(group_of(name), []).append((name, 0.0, count))
        batch = [
            self._add(group, page, "at-once", "")
            for group, updates in groups.items()
            for page in pages(updates, AT_ONCE)
        ]
        if batch and any((yield batch)):
            raise InvalidArgumentError(
                f"{self.name}: a count would exceed {MOST_COUNT}", "count under another name"
            )

    # ---- reading

    @operation
    def get(self, name: str, precision: int | timedelta) -> Operation[list[tuple[int, int]]]:
        """Return the newest slices with counts, oldest first.

        Args:
            precision: one of its precisions, in seconds.

        Returns:
            The start of each slice, in seconds since 1970, and its count, by the server's clock.
            Slices without counts are left out.

        Cost: one exchange, O(slices kept / 256).
        """
        return (yield from TimeSliceCounters.sum.steps(self, [name], precision))

    @operation
    def sum(
        self, names: Iterable[str], precision: int | timedelta
    ) -> Operation[list[tuple[int, int]]]:
        """Return several counters' sums, slice by slice; see `get`. Cost: one exchange."""
        precision = _whole(precision)
        if precision not in self.precisions:
            raise InvalidArgumentError(
                f"{self.name}: precision={shown(precision)}",
                f"give one of {', '.join(map(str, self.precisions))}",
            )
        samples = self.precisions[precision]
        batch = []
        for name in distinct(self.name, "names", names):
            check_name(name)
            key = self._of(group_of(name), name)
            args = (self._clock.script_seconds(), precision, samples)
            batch.append(lua_call(self.component, "metrics/read_counts", [key], args))
        sums: dict[int, int] = {}
        if batch:
            for newest, first, chunks in (yield batch):
                for number, chunk in enumerate(chunks, first):
                    if chunk is not None:
                        for at, count in enumerate(_counts(chunk), number * SLICES):
                            if count and newest - samples < at <= newest:
                                sums[at] = sums.get(at, 0) + count
        return [(at * precision, sums[at]) for at in sorted(sums)]

    @operation
    def total(self, names: Iterable[str], precision: int | timedelta) -> Operation[int]:
        """Return the sum of several counters over all kept slices. Cost: as `sum`."""
        rows = yield from TimeSliceCounters.sum.steps(self, names, precision)
        return sum(count for _, count in rows)

    @stream
    def known(self) -> Stream[str]:
        """Iterate over the names of the counters, in no particular order.

        It may miss counters that come or go in the meantime. Cost: an exchange for about 64,000.
        """
        cursors: dict[int, Argument] = dict.fromkeys(range(GROUPS), 0)
        seen: set[str] = set()
        while cursors:
            batch = [
                self._at(key, "ZSCAN", key, cursor, "COUNT", NAMES_A_PAGE)
                for key, cursor in ((self._known(group), at) for group, at in cursors.items())
            ]
            replies = yield batch
            names = Page[str]()
            for group, (cursor, members) in zip(list(cursors), replies, strict=True):
                for member in members[::2]:
                    name = member.decode(errors="replace")
                    if name not in seen:
                        seen.add(name)
                        names.append(name)
                cursors[group] = cursor
                if int(cursor) == 0:
                    del cursors[group]
            yield names

    @stream
    def check(self, *names: str) -> Stream[Damage]:
        """Return some counters' damage. Cost: one exchange for each precision, and one."""

        def read() -> Operation[None]:
            keys = sorted({self._known(group_of(name)) for name in names})
            yield [self._at(key, "ZCARD", key) for key in keys]
            for precision in self.precisions:
                yield from TimeSliceCounters.sum.steps(self, names, precision)

        if names:
            yield from check_reads(read)

    # ---- cleaning

    @operation
    def clean(self) -> Operation[Cleaned]:
        """Remove slices that are no longer kept.

        Any number of processes may call it, and stop at any time. Cost: one exchange if nothing is
        due, otherwise two more for each 100 counters of a group.

        Raises:
            ShardErrors: servers failed, or did not answer for two seconds; the counters of the
                others are clean.
        """
        chunks = counters = 0
        replies = Replies()
        groups = list(range(GROUPS))
        while groups:
            now, name = self._clock.script_seconds(), "metrics/due_counts"
            asked = (
                lua_call(self.component, name, [key], (now, CLEANED_AT_ONCE), idempotent=True)
                for key in map(self._known, groups)
            )
            due = yield Partial(asked, PATIENCE)
            replies += due
            pages = zip(groups, due, strict=True)
            due_names = [(group, names) for group, names in pages if names and type(names) is list]
            batch = Partial((), PATIENCE)
            for group, names in due_names:
                keys = [
                    self._known(group),
                    *(self._of(group, name.decode(errors="replace")) for name in names),
                ]
                args = [now, *self._precision_args, *names]
                batch.append(
                    lua_call(self.component, "metrics/clean_counts", keys, args, idempotent=True)
                )
            cleaned = (yield batch) if batch else []
            replies += cleaned
            groups = []
            for (group, names), reply in zip(due_names, cleaned, strict=True):
                if type(reply) is list:
                    chunks += reply[0]
                    counters += reply[1]
                    groups += [group] if reply[2] or len(names) == CLEANED_AT_ONCE else []
        raise_failures(replies)
        return Cleaned(chunks, counters)

    @operation
    def keep_clean(
        self, stopped: Callable[[], bool], *, interval: Seconds = 60.0
    ) -> Operation[Cleaned]:
        """Call `clean` every minute until stopped; return what was removed in all.

        Args:
            stopped: returns whether to stop; called once a second, such as ``Event.is_set``.
            interval: the seconds between two starts, at least 1; a pause is at least 1 second.

        Raises:
            ShardErrors: as `clean`; call it again later.
        """
        interval = check_seconds(self.name, "interval", interval, 1, math.inf)
        removed = Cleaned(0, 0)
        while not run(stopped):
            started = self._clock.monotonic()
            chunks, counters = yield from TimeSliceCounters.clean.steps(self)
            removed = Cleaned(removed.chunks + chunks, removed.counters + counters)
            paused = 0
            while not run(stopped) and (not paused or self._clock.monotonic() - started < interval):
                yield Pause(1.0)
                paused += 1
        return removed

    @operation
    def remove(self, name: str) -> Operation[bool]:
        """Remove a counter; return whether there was one. Cost: two exchanges, O(its chunks)."""
        check_name(name)
        group = group_of(name)
        known, key = self._known(group), self._of(group, name)
        [flat] = yield [self._at(key, "HGETALL", key)]
        for chunk in filter(None, flat[1::2]):
            format_of(self.component, key, f"{max(1, chunk[0] >> 4)}")
        commands = (self._at(known, "ZREM", known, name), self._at(key, "UNLINK", key))
        [[registered, removed]] = yield [Transaction(self.component, known, commands)]
        return bool(registered or removed)

    def _add(
        self, group: int, updates: Sequence[tuple[str, float, int]], writer: str, number: str
    ) -> Command:
        numbers: dict[str, int] = {}
        rows: list[Argument] = []
        for name, age, count in updates:
            rows += [numbers.setdefault(name, len(numbers) + 1), f"{age:.6f}", count]
        sent = f"{self.name}:{{{self.name}:{group}}}:sent:{writer}"
        keys = [sent, self._known(group), *(self._of(group, name) for name in numbers)]
        args = [self._clock.script_seconds(), number, *self._precision_args, *numbers, *rows]
        return lua_call(self.component, "metrics/count", keys, args, idempotent=bool(number))

    def _known(self, group: int) -> str:
        return f"{self.name}:{{{self.name}:{group}}}:known"

    def _of(self, group: int, name: str) -> str:
        return f"{self.name}:{{{self.name}:{group}}}:of:{name}"


# It checks its arguments itself, in a fifth of the time.
TimeSliceCounters.hit = TimeSliceCounters.hit.__wrapped__  # type: ignore[attr-defined, method-assign]


def _counts(chunk: bytes) -> list[int]:
    width, read = chunk[0] % 16, int.from_bytes
    return [read(chunk[at : at + width], "little") for at in range(1, len(chunk), width)]


def _whole(precision: int | timedelta) -> int:
    """Return a precision in seconds; what is no whole number of them is refused later."""
    seconds: Any = in_seconds(precision)
    return int(seconds) if isinstance(precision, timedelta) and seconds.is_integer() else seconds
