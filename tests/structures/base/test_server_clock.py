"""The servers' time: read once a minute, never taken from this machine's clock."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from faces import Time

from shardkit import ShardKit
from shardkit.network.links.server_request import may_repeat
from shardkit.operations.commands import Home
from shardkit.operations.operation import Operation
from shardkit.structures.base.server_clock import FRESH, ServerClock

HOME = Home("unique")


def told(steps: Operation[Any], seconds: float, watch: Time | None = None, took: float = 0) -> Any:
    """What steps make of a server's answer, which takes a time to come."""
    [command] = next(steps)  # type: ignore[misc]
    assert command.args == ("TIME",)
    assert may_repeat(command)
    if watch is not None:
        watch.at += took
    with pytest.raises(StopIteration) as end:
        steps.send([[b"%d" % seconds, b"%d" % round(seconds % 1 * 1e6)]])
    return end.value.value


def known(steps: Operation[Any]) -> Any:
    """Return the result of steps that send nothing."""
    with pytest.raises(StopIteration) as end:
        next(steps)
    return end.value.value


def test_a_measurement_is_used_for_a_minute() -> None:
    watch = Time(1000.0)
    clock = ServerClock(watch)
    assert told(clock.seconds(HOME, "unique"), 5_000_000.25) == 5_000_000.25
    watch.at += FRESH - 0.5
    assert known(clock.seconds(HOME, "unique")) == 5_000_000.25 + FRESH - 0.5
    watch.at += 1
    assert told(clock.seconds(HOME, "unique"), 6_000_000) == 6_000_000


def test_the_reply_counts_for_the_middle_of_the_exchange() -> None:
    watch = Time(1000.0)
    steps = ServerClock(watch).seconds(HOME, "unique")
    assert told(steps, 5_000_000, watch, took=0.2) == pytest.approx(5_000_000.1)


def test_each_server_has_its_own_time() -> None:
    clock = ServerClock(Time(1000.0))
    places: list[Any] = [(HOME, "a"), (HOME, "b"), (Home("other"), "a"), ("unique", "a")]
    for n, place in enumerate(places):
        assert told(clock.seconds(*place), n) == n
    assert [known(clock.seconds(*place)) for place in places] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("seconds", "day"),
    [
        (0, date(1970, 1, 1)),
        (1_431_907_199, date(2015, 5, 17)),
        (1_431_907_200, date(2015, 5, 18)),
        (4_102_444_800, date(2100, 1, 1)),
    ],
)
def test_today_changes_at_midnight_utc(seconds: int, day: date) -> None:
    watch = Time(1000.0)
    clock = ServerClock(watch)
    assert told(clock.today(HOME, "unique"), seconds - 10 if seconds else 0) <= day
    watch.at += 10 if seconds else 0
    assert known(clock.today(HOME, "unique")) == day


def test_a_fixed_time_needs_no_exchange() -> None:
    assert known(ServerClock(now=lambda: 86_400.5).seconds(HOME, "unique")) == 86_400.5


def test_it_tells_a_real_servers_time(kit: ShardKit) -> None:
    before = int(kit.client("one").time()[0])  # type: ignore[index, union-attr]
    told_time = kit.driver.run(ServerClock().seconds(Home("one"), "unique"))
    after = int(kit.client("one").time()[0])  # type: ignore[index, union-attr]
    assert before - 1 <= told_time <= after + 2
