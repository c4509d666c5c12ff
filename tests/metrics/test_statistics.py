"""Statistics by hour, times of blocks, and the slowest contexts."""

from __future__ import annotations

import asyncio
import math
import re
import statistics
import time
from collections.abc import AsyncGenerator, Iterator
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from faces import Face, Time, clocked, holder, keys_of

from shardkit import AsyncShardKit, ShardKit
from shardkit.errors import DamagedDataError, InvalidArgumentError, NewerFormatError
from shardkit.metrics import merged

pytestmark = pytest.mark.usefixtures("within_an_hour")
HOUR = 1_700_000_000 // 3600 * 3600


def test_an_update_returns_the_count_and_the_sums_of_its_hour(face: Face) -> None:
    now = Time(HOUR + 100)
    values = clocked(face.kit, now=now).statistics(component="many")
    assert face.run(values.get("page", "latency")) is None
    assert face.run(values.merge(["page", "other"], "latency")) is None
    assert face.run(values.update("page", "latency", 2)) == (1, 2.0, 4.0)
    assert face.run(values.update("page", "latency", -0.5)) == (2, 1.5, 4.25)
    found = face.run(values.get("page", "latency"))
    assert (found.min, found.max, found.mean) == (-0.5, 2.0, 0.75)
    assert found.deviation == pytest.approx(statistics.stdev([2, -0.5]))
    assert found.hour == datetime.fromtimestamp(HOUR, UTC)
    now.at += 2 * 3600
    assert face.run(values.update("page", "latency", 0)) == (1, 0.0, 0.0)
    assert face.run(values.get("page", "latency", "last")) == found
    now.at -= 3600  # late: in its own hour, which is the last now
    assert face.run(values.update("page", "latency", 7)) == (1, 7.0, 49.0)
    now.at -= 3600
    assert face.run(values.update("page", "latency", 7)) is None
    assert face.run(values.get("page", "latency")).count == 1


def test_equal_values_deviate_by_nothing(kit: Any) -> None:
    values = kit.statistics(component="few")
    for _ in range(3):
        values.update("x", "y", 0.1)
    found = values.get("x", "y")
    assert found.deviation == pytest.approx(0, abs=1e-9)
    assert found.quantile(0.5) == pytest.approx(0.1, rel=0.01)
    for fraction in (-0.01, 1.01):
        with pytest.raises(InvalidArgumentError, match=f"fraction={fraction}; give 0 to 1"):
            found.quantile(fraction)


def test_what_is_recorded_is_sent_by_itself(face: Face) -> None:
    values = face.kit.statistics(component="many")
    values.record("x", "y", 2)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not face.run(values.get("x", "y")):
        pass
    assert face.run(values.get("x", "y")).sum == 2


def test_quantiles_of_many_processes_and_contexts_are_within_one_percent(face: Face) -> None:
    values = face.kit.statistics(component="many")
    random = Random(7)
    everything = []
    for n in range(4):
        for _ in range(500):
            value = random.lognormvariate(n, 1) * (-1 if n == 3 else 1)
            everything.append(value)
            values.record(f"page {n}", "latency", value)
        assert face.run(values.flush())
    found = face.run(values.merge([f"page {n}" for n in range(4)], "latency"))
    assert found.count == 2000
    assert found.sum == pytest.approx(sum(everything))
    assert (found.min, found.max) == (min(everything), max(everything))
    assert found.deviation == pytest.approx(statistics.stdev(everything))
    everything.sort()
    for fraction in (0.0, 0.1, 0.5, 0.9, 0.99, 1.0):
        exact = everything[int(fraction * 1999)]
        assert found.quantile(fraction) == pytest.approx(exact, rel=0.0101)
    assert merged([]) is None


@pytest.mark.parametrize("offset", [1e8, -1e12])
def test_large_values_deviate_by_what_they_differ(face: Face, offset: float) -> None:
    values = face.kit.statistics(component="many")
    everything = [offset + n for n in (4, 7, 13, 16, 4, 7, 13)]
    for context, value in zip("aababab", everything, strict=True):
        values.record(context, "size", value)
        assert face.run(values.flush())
    found = face.run(values.merge(["a", "b"], "size"))
    assert found.deviation == pytest.approx(statistics.stdev(everything), rel=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e151, True, "1", None])
def test_what_is_not_a_number_is_refused(value: Any, kit: ShardKit) -> None:
    values = kit.statistics(component="few")
    with pytest.raises(InvalidArgumentError, match=r"give a number, -1e\+150 to 1e\+150"):
        values.update("x", "y", value)
    with pytest.raises(InvalidArgumentError, match=r"give a number"):
        values.record("x", "y", value)
    with pytest.raises(InvalidArgumentError, match="slashes"):
        values.get("x", "y/z")
    with pytest.raises(InvalidArgumentError, match="period"):
        values.get("x", "y", "next")


def test_the_hundred_slowest_contexts_of_an_hour_are_kept(face: Face) -> None:
    now = Time(HOUR + 100)
    times = clocked(face.kit, now=now).access_times(component="many")
    for n in range(130):
        times.record(f"page {n}", float(n))
    assert face.run(times.flush())
    found = face.run(times.slowest())
    assert found == [(f"page {n}", float(n)) for n in range(129, 29, -1)]
    times.record("page 129", 0.0)  # its average falls
    face.run(times.flush())
    assert face.run(times.slowest(limit=1)) == [("page 128", 128.0)]
    now.at += 3600
    assert face.run(times.slowest()) == []
    assert face.run(times.slowest("last", 1)) == [("page 128", 128.0)]


def test_blocks_functions_and_coroutines_are_timed_also_when_they_raise(kit: ShardKit) -> None:
    times = kit.access_times(component="few")

    @kit.timed("function", component="few")
    def function(n: int) -> int:
        return function(n - 1) + 1 if n else 0

    @times.timed("coroutine")
    async def coroutine() -> str:
        async with times.timed("block"):
            return "done"

    assert function(3) == 3
    assert function.__name__ == "function"
    assert asyncio.run(coroutine()) == "done"
    with pytest.raises(KeyError, match="one"), times.timed("raises"):
        raise KeyError("one")
    with pytest.raises(KeyError, match="two"), times.timed("excluded", errors=False):
        raise KeyError("two")
    times.flush()
    counts = {}
    for context in ("function", "coroutine", "block", "raises", "excluded"):
        found = times.get(context)
        counts[context] = found.count if found else 0
    assert counts == {"function": 4, "coroutine": 1, "block": 1, "raises": 1, "excluded": 0}


async def test_what_a_plain_function_returns_is_timed_until_it_is_done(
    akit: AsyncShardKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = akit.access_times(component="few")
    seconds = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: seconds[0])

    async def work(fails: bool = False) -> str:
        seconds[0] += 1
        if fails:
            raise KeyError("task")
        return "done"

    coroutine = times.timed("coroutine")(lambda *args: work(*args))
    task = times.timed("task", errors=False)(lambda *args: asyncio.create_task(work(*args)))
    assert [await coroutine(), await task()] == ["done", "done"]
    for fails in (coroutine(True), task(True)):
        with pytest.raises(KeyError, match="task"):
            await fails
    await asyncio.sleep(0)
    await times.flush()
    assert (await times.get("coroutine")).count == (await times.get("coroutine")).sum == 2
    assert (await times.get("task")).count == (await times.get("task")).sum == 1


def test_generators_are_timed_to_their_end(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    times = kit.access_times(component="few")
    seconds = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: seconds[0])

    @times.timed("generator", errors=False)
    def generator() -> Iterator[Any]:
        seconds[0] += 1
        try:
            yield (yield "first")
        except KeyError:
            yield "caught"

    @times.timed("async generator")
    async def async_generator() -> AsyncGenerator[Any, Any]:
        seconds[0] += 1
        try:
            yield (yield "first")
        except KeyError:
            yield "caught"

    async def use() -> None:
        assert [each async for each in async_generator()] == ["first", None]
        steps = async_generator()
        found = [await anext(steps), await steps.asend("echo"), await steps.athrow(KeyError())]
        assert found == ["first", "echo", "caught"]
        await steps.aclose()

    asyncio.run(use())
    assert [*generator()] == ["first", None]
    steps: Any = generator()
    found = [next(steps), steps.send("echo"), steps.throw(KeyError())]
    assert found == ["first", "echo", "caught"]
    steps.close()
    times.flush()
    for context in ("generator", "async generator"):
        timed = times.get(context)
        assert (timed.count, timed.sum) == (2, 2.0)


def test_contexts_above_the_overall_average_are_warned_of(face: Face) -> None:
    logs = face.kit.logs(component="few")
    times = face.kit.access_times(component="few", overall=True, logs=logs)
    assert face.run(times.warn()) == []
    for context, seconds in (("fast", 1.0), ("fast", 1.0), ("slow", 9.0)):
        times.record(context, seconds)
    face.run(times.flush())
    assert face.run(times.get("overall")).mean == pytest.approx(11 / 3)
    assert face.run(times.warn()) == ["slow"]
    face.run(logs.flush())
    found = face.run(logs.common("access-times", "warning"))
    assert found.counts == [("slow is slower than the average", 1)]


def current(kit: ShardKit) -> str:
    """The key of the only statistics of this hour."""
    [key] = [key for key in keys_of(kit, "few") if key.endswith(":current")]
    return key


def test_damaged_statistics_are_named_and_left_as_they_are(kit: ShardKit) -> None:
    values = kit.statistics(component="few")
    values.update("x", "y", 1)
    key = current(kit)
    client = holder(kit, "few", key)
    client.hset(key, "count", "many")
    with pytest.raises(DamagedDataError, match="count=many"):
        values.update("x", "y", 1)
    with pytest.raises(DamagedDataError, match="x/y:current"):
        values.get("x", "y")
    assert client.hget(key, "count") == b"many"


def test_an_infinite_average_is_named(kit: ShardKit) -> None:
    values = clocked(kit, now=Time(HOUR + 100)).statistics(component="one")
    key = f"{values.name}:slowest:{{latency}}:{HOUR}"
    kit.client("one").zadd(key, {"a": math.inf, "b": 1})
    with pytest.raises(DamagedDataError, match=re.escape(key)):
        values.slowest("latency")


def test_an_earlier_release_keeps_what_it_does_not_know(face: Face, kit: ShardKit) -> None:
    """Without a new format: it reads, adds to and moves on what this release has stored."""
    values = face.kit.statistics(component="few")
    for value in (1e9, 1e9 + 1):
        face.run(values.update("x", "y", value))
    key = current(kit)
    client = holder(kit, "few", key)
    # As releases added before there was a spread.
    for name, value in {"count": 1, "sum": 1e9 + 2, "sumsq": (1e9 + 2) ** 2}.items():
        client.hincrbyfloat(key, name, value)
    [bucket] = [name for name in client.hkeys(key) if name.startswith(b"p")]
    client.hincrby(key, bucket, 1)
    between = face.run(values.get("x", "y"))
    assert (between.count, between.sum) == (3, 3e9 + 3)
    assert 0 <= between.spread < 1e4  # noise, as there
    face.run(values.update("x", "y", 1e9))
    after = face.run(values.get("x", "y"))
    assert client.hget(key, "spread").startswith(b"4 ")
    assert after.spread == pytest.approx(between.spread + 0.75, rel=1e-6)


@pytest.mark.parametrize("field", ["format", "count", "min", "hour", "spread", "p-34"])
@pytest.mark.parametrize("stored", ["0", "inf", "nan", "-1"])
def test_numbers_that_cannot_be_of_statistics_are_named(
    field: str, stored: str, kit: ShardKit
) -> None:
    if (field, stored) in (("min", "0"), ("min", "-1"), ("hour", "0"), ("hour", "-1")):
        stored = "1e999"
    values = kit.statistics(component="few")
    values.update("x", "y", 1)
    key = current(kit)
    holder(kit, "few", key).hset(key, field, stored)
    with pytest.raises(DamagedDataError, match=f"statistics of format 1|{field}="):
        values.get("x", "y")
    holder(kit, "few", key).hset(key, "format", 2)
    with pytest.raises(NewerFormatError, match="current has format 2, this release reads 1"):
        values.get("x", "y")


def test_a_process_keeps_only_so_many_contexts_and_sums_of_their_values(
    kit: ShardKit, lower: Any
) -> None:
    lower(statistics_contexts=2, statistics_values=3)
    values = kit.statistics(component="few")
    for context, count in (("a", 3), ("b", 4), ("c", 5)):
        for n in range(count):
            values.record(context, "y", n)
    assert values.dropped == 5  # of the third context
    assert values.flush()
    found = [values.get(context, "y") for context in "abc"]
    assert [each and (each.count, each.sum, each.max) for each in found] == [
        (3, 3.0, 2.0),
        (4, 6.0, 3.0),
        None,
    ]


def test_what_is_recorded_too_late_for_its_hour_is_not_among_the_slowest(kit: ShardKit) -> None:
    now = Time(HOUR + 100)
    values = clocked(kit, now=now).statistics(component="few")
    now.at += 2 * 3600
    values.update("page", "latency", 1)
    now.at -= 3600
    values.update("page", "latency", 2)
    now.at -= 3600  # two hours late: its hour is not kept any more
    values.record("page", "latency", 9)
    assert values.flush()
    assert values.slowest("latency") == []
    now.at += 2 * 3600
    assert values.slowest("latency") == [("page", 1.0)]


def test_times_without_a_log_are_warned_of_to_the_caller_alone(kit: ShardKit) -> None:
    times = kit.access_times(component="few", overall=True)
    for context, seconds in (("fast", 1.0), ("slow", 9.0)):
        times.record(context, seconds)
    times.flush()
    assert times.warn() == ["slow"]
    assert kit.logs(component="few").common("access-times", "warning") is None
    read = (times.deferred.get(context) for context in ("fast", "slow"))
    assert [each.mean for each in kit.together(*read)] == [1.0, 9.0]  # type: ignore[union-attr]
