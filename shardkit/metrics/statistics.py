r"""Statistics of measured values by hour: minimum, maximum, count, sums, deviation, quantiles.

::

    stats:{stats:12}:shop/latency:current  HASH   hour 1732280400 · count 20311 · sum 914.2
    stats:{stats:12}:shop/latency:last            sumsq 61.8 · min 0.0021 · max 1.9
                                                  spread "20311 20.65"
                                                  p-312 → 117 · p-311 → 240 · …

The quantiles are DDSketch's (Masson et al., 2019; the library ``ddsketch``): each bucket counts the
values within 1% of one another, and is a field. Merging processes, shards and hours means adding
counts, which a server does by itself; a t-digest must be read, merged and written back. Latencies
from a microsecond to a minute take at most 900 buckets.

`spread` has the squared differences from the average, merged by the formula of Chan, Golub and
LeVeque: the difference of two sums of squares is noise for values from 10^8 on. It begins with the
count that it is of. With another one, an earlier release has added values since, and the sums of
squares are used.

The process collects values, and sums them up before they are sent; see `metrics.outbox`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from shardkit.errors import InvalidArgumentError, extra
from shardkit.metrics.counters import group_of
from shardkit.metrics.outbox import Background, Recorder, RecordingStructure
from shardkit.operations.arguments import check_number, shown
from shardkit.operations.commands import Argument, Command, Transaction
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Stream,
    operation,
    stream,
)
from shardkit.structures.base.arguments import check_integer, check_name, distinct
from shardkit.structures.base.check import Damage, check_reads
from shardkit.structures.base.damage import damage
from shardkit.structures.base.server_clock import ServerClock

ACCURACY = 0.01
AT_ONCE = 10  # sums of one script, which checks all buckets of two hours of each: some hundreds
MOST_SLOWEST = 100
SLOWEST_TTL = 172800
# Values collected for one context before they are summed up in the process.
_SUMMED_AT = 10_000
# Contexts that a process collects in an interval.
_MOST_CONTEXTS = 10_000
# Values beyond these are in the last bucket; sums are exact.
_LEAST, _GREATEST = 1e-12, 1e15
_GAMMA_LOG = math.log((1 + ACCURACY) / (1 - ACCURACY))  # as DDSketch's LogarithmicMapping
_BUCKET = re.compile("zero|[pn]-?[0-9]{1,4}")
_MOST_VALUE = 1e150  # its square is a number

PERIODS = ("current", "last")


@dataclass(frozen=True)
class Statistics:
    """Statistics of a period.

    Attributes:
        hour: the start of the hour, in UTC; of merged ones, the latest.
        sumsq: the sum of their squares.
        spread: the sum of their squared differences from the average.
        buckets: DDSketch's buckets, by field.
    """

    hour: datetime
    count: int
    sum: float
    sumsq: float
    spread: float = field(repr=False)
    min: float
    max: float
    buckets: Mapping[str, int] = field(default_factory=dict, repr=False)

    @property
    def mean(self) -> float:
        """The average."""
        return self.sum / self.count

    @property
    def deviation(self) -> float:
        """The sample standard deviation: divided by count - 1, or by 1 when count is 1."""
        return math.sqrt(self.spread / max(1, self.count - 1))

    def quantile(self, fraction: float) -> float:
        """Return a quantile: of 0.99, the value that 99% do not exceed, within 1%.

        Raises:
            MissingExtraError: ddsketch is not installed.
        """
        with extra("metrics", "quantiles"):
            from ddsketch.ddsketch import DDSketch
            from ddsketch.mapping import LogarithmicMapping

        if not 0 <= fraction <= 1:
            raise InvalidArgumentError(f"fraction={shown(fraction)}", "give 0 to 1")
        sketch: Any = DDSketch(ACCURACY)
        mapping: Any = LogarithmicMapping(ACCURACY)
        for name, count in self.buckets.items():
            number = 0 if name == "zero" else int(name[1:])
            value = 0.0 if name == "zero" else mapping.value(number)
            sketch.add(-value if name[0] == "n" else value, count)
        return float(min(self.max, max(self.min, sketch.get_quantile_value(fraction))))


def merged(statistics: Iterable[Statistics]) -> Statistics | None:
    """Return statistics merged into one; None without any."""
    several = list(statistics)
    if not several:
        return None
    buckets: dict[str, int] = {}
    for part in several:
        for name, count in part.buckets.items():
            buckets[name] = buckets.get(name, 0) + count
    count = sum(part.count for part in several)
    total = math.fsum(part.sum for part in several)
    between = (part.count * (part.mean - total / count) ** 2 for part in several)
    return Statistics(
        hour=max(part.hour for part in several),
        count=count,
        sum=total,
        sumsq=math.fsum(part.sumsq for part in several),
        spread=math.fsum((*between, *(part.spread for part in several))),
        min=min(part.min for part in several),
        max=max(part.max for part in several),
        buckets=buckets,
    )


def _bucket(value: float) -> str:
    size = abs(value)
    if size < _LEAST:
        return "zero"
    number = math.ceil(math.log(min(size, _GREATEST)) / _GAMMA_LOG)
    return f"{'n' if value < 0 else 'p'}{number}"


class _Sum:
    __slots__ = ("buckets", "count", "max", "min", "spread", "sum", "sumsq")

    def __init__(self) -> None:
        self.count, self.sum, self.sumsq, self.spread = 0, 0.0, 0.0, 0.0
        self.min, self.max = math.inf, -math.inf
        self.buckets: dict[str, int] = {}

    def add(self, values: Sequence[float]) -> None:
        mean = math.fsum(values) / len(values)
        self.spread += math.fsum((value - mean) ** 2 for value in values)
        if self.count:
            weight = self.count * len(values) / (self.count + len(values))
            self.spread += weight * (mean - self.sum / self.count) ** 2
        self.count += len(values)
        self.sum += math.fsum(values)
        self.sumsq += math.fsum(value * value for value in values)
        self.min = min(self.min, *values)
        self.max = max(self.max, *values)
        for value in values:
            name = _bucket(value)
            self.buckets[name] = self.buckets.get(name, 0) + 1

    def row(self) -> list[Argument]:
        numbers = (self.sum, self.sumsq, self.spread, self.min, self.max)
        return [
            self.count,
            *(f"{number:.17g}" for number in numbers),
            len(self.buckets),
            *(word for pair in self.buckets.items() for word in pair),
        ]


class _Measured(Recorder["MeasuredValues[Any]"]):
    at_once = AT_ONCE

    def discard(self) -> None:
        super().discard()
        self.values: dict[tuple[str, str], list[float]] = {}
        self.sums: dict[tuple[str, str], _Sum] = {}

    def add(self, context: str, kind: str, value: float) -> None:
        key = (context, kind)
        with self.lock:
            values = self.values.get(key)
            if values is None:
                if len(self.values) >= _MOST_CONTEXTS:
                    self.dropped += 1
                    return
                values = self.values[key] = []
            values.append(value)
            if len(values) >= _SUMMED_AT:
                self.sums.setdefault(key, _Sum()).add(values)
                values.clear()

    def collect(self) -> Mapping[Any, Sequence[Any]]:
        with self.lock:
            values, self.values = self.values, {}
            sums, self.sums = self.sums, {}
        when = self._owner._clock.local_seconds()
        by_group: dict[int, list[Any]] = {}
        for key, numbers in values.items():
            total = sums.get(key) or _Sum()
            if numbers:
                total.add(numbers)
            by_group.setdefault(group_of("/".join(key)), []).append((key, when, total))
        return by_group

    def request(self, place: int, writer: str, number: str, records: Sequence[Any]) -> Command:
        now = self._owner._clock.local_seconds()
        rows = [(key, max(0.0, now - when), total) for key, when, total in records]
        return self._owner._observe(place, rows, writer, number)

    def sent(self, replies: Sequence[tuple[Any, Sequence[Any], Any]]) -> list[Transaction]:
        rows = [
            (key, row)
            for _, records, reply in replies
            if isinstance(reply, list)
            for (key, _, _), row in zip(records, reply, strict=True)
        ]
        return self._owner._rank(rows)


class MeasuredValues(RecordingStructure[Face]):
    """Statistics by context and type, of this hour and the last. Made by ``kit.statistics``."""

    deferred: DeferredFace[MeasuredValues[Deferred]]

    def __init__(
        self,
        driver: Driver,
        background: Background,
        component: str,
        name: str = "stats",
        clock: ServerClock | None = None,
    ) -> None:
        check_name(name)
        super().__init__(driver, background, component, name, clock, _Measured)

    def record(self, context: str, kind: str, value: float) -> None:
        """Record a value; the kit sends them once a second. Never blocks or awaits.

        Args:
            context: where it was measured, such as a page.
            kind: what was measured, such as "latency"; without slashes and braces.
            value: a finite number up to 1e150.

        Cost: some microseconds, and no exchange.
        """
        self._check(context, kind, value)
        self._recorder.add(context, kind, float(value))
        self._background.start()

    @operation
    def update(
        self, context: str, kind: str, value: float
    ) -> Operation[tuple[int, float, float] | None]:
        """Add a value at once.

        Returns:
            The count, the sum and the sum of squares of its hour; None if the server's clock was
            set back by more than two hours.

        Raises:
            ShardErrors: the server failed; ``maybe_executed`` says whether it may have been added.

        Cost: two exchanges.
        """
        self._check(context, kind, value)
        total = _Sum()
        total.add([float(value)])
        group = group_of(f"{context}/{kind}")
        row = ((context, kind), 0.0, total)
        [[reply]] = yield [self._observe(group, [row], "at-once", "")]
        if len(reply) == 1:
            return None
        yield self._rank([((context, kind), reply)])
        return int(float(reply[1])), float(reply[2]), float(reply[3])

    @operation
    def get(self, context: str, kind: str, period: str = "current") -> Operation[Statistics | None]:
        """Return the statistics of an hour; None if there are none.

        Args:
            period: "current" for the latest hour with values, "last" for the one before it.

        Cost: one exchange, O(buckets).
        """
        [statistics] = yield from self._read([context], kind, period)
        return statistics

    @operation
    def merge(
        self, contexts: Iterable[str], kind: str, period: str = "current"
    ) -> Operation[Statistics | None]:
        """Return several contexts' merged statistics; see `get`. Cost: one exchange."""
        several = yield from self._read(distinct(self.name, "contexts", contexts), kind, period)
        return merged(part for part in several if part is not None)

    @operation
    def slowest(
        self, kind: str, period: str = "current", limit: int = MOST_SLOWEST
    ) -> Operation[list[tuple[str, float]]]:
        """Return the contexts with the greatest averages of an hour, in descending order.

        Args:
            period: "current" for this hour, "last" for the one before it, by the server's clock.
            limit: the most contexts, up to 100.

        Cost: one exchange, and another one a minute for the time.
        """
        check_period(self.name, period)
        check_integer(self.name, "limit", limit, 1, MOST_SLOWEST)
        home = f"{self.name}:slowest:{{{kind}}}"
        seconds = yield from self._clock.seconds(self.component, home)
        hour = int(seconds) // 3600 * 3600 - 3600 * PERIODS.index(period)
        key = f"{home}:{hour}"
        read = ("ZREVRANGE", key, 0, limit - 1, "WITHSCORES")
        [rows] = yield [self._at(key, *read)]
        ranked = [
            (member.decode(errors="replace"), float(score))
            for member, score in zip(rows[::2], rows[1::2], strict=True)
        ]
        if ranked and not math.isfinite(ranked[0][1] - ranked[-1][1]):
            raise damage(self.component, key, f"{ranked[0]} … {ranked[-1]}", "averages")
        return ranked

    @stream
    def check(self, context: str, kind: str) -> Stream[Damage]:
        """Return what calls would refuse as damaged; change nothing. Cost: four exchanges."""

        def read(period: str) -> Operation[None]:
            yield from MeasuredValues.get.steps(self, context, kind, period)
            yield from MeasuredValues.slowest.steps(self, kind, period)

        yield from check_reads(*(partial(read, period) for period in PERIODS))

    def _read(
        self, contexts: Sequence[str], kind: str, period: str
    ) -> Operation[list[Statistics | None]]:
        check_period(self.name, period)
        batch = []
        for context in contexts:
            self._check(context, kind, 0)
            key = self._key(context, kind, period)
            batch.append(lua_call(self.component, "metrics/statistics", [key]))
        replies = (yield batch) if batch else []
        return [_statistics(*reply) if reply else None for reply in replies]

    def _observe(
        self,
        group: int,
        rows: Sequence[tuple[tuple[str, str], float, _Sum]],
        writer: str,
        number: str,
    ) -> Command:
        places: dict[tuple[str, str], int] = {}
        args: list[Argument] = [self._clock.script_seconds(), number]
        for key, age, total in rows:
            args += [places.setdefault(key, len(places) + 1), f"{age:.6f}", *total.row()]
        keys = [f"{self.name}:{{{self.name}:{group}}}:sent:{writer}"]
        keys += [self._key(*place, period) for place in places for period in PERIODS]
        return lua_call(self.component, "metrics/observe", keys, args, idempotent=bool(number))

    def _rank(self, rows: Iterable[tuple[tuple[str, str], Sequence[bytes]]]) -> list[Transaction]:
        """Return what writes averages among the slowest of their hours."""
        ranked: dict[str, list[Argument]] = {}
        for (context, kind), row in rows:
            if len(row) > 1:
                key = f"{self.name}:slowest:{{{kind}}}:{int(row[0])}"
                average = float(row[2]) / float(row[1])
                ranked.setdefault(key, []).extend((f"{average:.17g}", context))
        transactions = []
        for key, pairs in ranked.items():
            commands = (
                self._at(key, "ZADD", key, *pairs),
                self._at(key, "ZREMRANGEBYRANK", key, 0, -MOST_SLOWEST - 1),
                self._at(key, "EXPIRE", key, SLOWEST_TTL),
            )
            transactions.append(Transaction(self.component, key, commands))
        return transactions

    def _key(self, context: str, kind: str, period: str) -> str:
        group = group_of(f"{context}/{kind}")
        return f"{self.name}:{{{self.name}:{group}}}:{context}/{kind}:{period}"

    def _check(self, context: str, kind: str, value: float) -> None:
        check_name(context)
        check_name(kind)
        if any(sign in kind for sign in "/{}"):
            raise InvalidArgumentError(
                f"{self.name}: kind={shown(kind)}", "leave out slashes and braces"
            )
        check_number(self.name, "value", value, -_MOST_VALUE, _MOST_VALUE)


def _statistics(flat: Sequence[bytes], spread: bytes) -> Statistics:
    known = {
        name.decode(errors="replace"): value
        for name, value in zip(flat[::2], flat[1::2], strict=True)
    }
    total, squares, least, most = (float(known[field]) for field in ("sum", "sumsq", "min", "max"))
    hour = datetime.fromtimestamp(int(known["hour"]), UTC)
    buckets = {name: int(text) for name, text in known.items() if _BUCKET.fullmatch(name)}
    count = int(float(known["count"]))
    return Statistics(hour, count, total, squares, float(spread), least, most, buckets)


def check_period(owner: str, period: str) -> None:
    """Refuse what is neither ``current`` nor ``last``."""
    if period not in PERIODS:
        raise InvalidArgumentError(f"{owner}: period={shown(period)}", "give current or last")
