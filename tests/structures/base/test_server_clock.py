"""The servers' time: read once a minute, never taken from this machine's clock."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from shardkit import ShardKit
from shardkit.network.links.server_request import may_repeat
from shardkit.operations.commands import Home
from shardkit.operations.operation import Operation
from shardkit.structures.base.server_clock import FRESH, ServerClock

HOME = Home("unique")


class Watch:
    """A monotonic clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def asked(steps: Operation[Any]) -> Any:
    """The command that is asked for the time."""
    [command] = next(steps)  # type: ignore[misc]
    return command


def told(steps: Operation[Any], seconds: int, micros: int = 0) -> Any:
    """What the steps make of a server's answer."""
    with pytest.raises(StopIteration) as end:
        steps.send([[b"%d" % seconds, b"%d" % micros]])
    return end.value.value


def known(steps: Operation[Any]) -> Any:
    """Return the result of steps that send nothing."""
    with pytest.raises(StopIteration) as end:
        next(steps)
    return end.value.value


def test_the_time_comes_from_the_server_of_the_key() -> None:
    command = asked(ServerClock(Watch()).seconds(HOME, "unique"))
    assert (command.to, command.key, command.args) == (HOME, "unique", ("TIME",))
    assert may_repeat(command)


def test_a_measurement_is_used_for_a_minute() -> None:
    watch = Watch()
    clock = ServerClock(watch)
    steps = clock.seconds(HOME, "unique")
    asked(steps)
    assert told(steps, 5_000_000, 250_000) == 5_000_000.25
    watch.now += FRESH - 0.5
    assert known(clock.seconds(HOME, "unique")) == 5_000_000.25 + FRESH - 0.5
    watch.now += 1
    asked(clock.seconds(HOME, "unique"))


def test_the_reply_counts_for_the_middle_of_the_exchange() -> None:
    watch = Watch()
    steps = ServerClock(watch).seconds(HOME, "unique")
    asked(steps)
    watch.now += 0.2
    assert told(steps, 5_000_000) == pytest.approx(5_000_000.1)


def test_two_servers_have_each_their_own_time() -> None:
    clock = ServerClock(Watch())
    for to, key, seconds in [
        (HOME, "a", 1_000_000),
        (HOME, "b", 2_000_000),
        (Home("other"), "a", 3_000_000),
        ("unique", "a", 4_000_000),
    ]:
        steps = clock.seconds(to, key)
        asked(steps)
        assert told(steps, seconds) == seconds
    assert known(clock.seconds(HOME, "a")) == 1_000_000
    assert known(clock.seconds("unique", "a")) == 4_000_000


def test_no_more_than_some_servers_are_remembered() -> None:
    clock = ServerClock(Watch())
    for n in range(5000):
        steps = clock.seconds(HOME, n)
        asked(steps)
        told(steps, n)
    assert len(clock._measured) <= 1000


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
    steps = ServerClock(Watch()).today(HOME, "unique")
    asked(steps)
    assert told(steps, seconds) == day


def test_midnight_passes_without_an_exchange() -> None:
    watch = Watch()
    clock = ServerClock(watch)
    steps = clock.today(HOME, "unique")
    asked(steps)
    assert told(steps, 1_431_907_190) == date(2015, 5, 17)
    watch.now += 10
    assert known(clock.today(HOME, "unique")) == date(2015, 5, 18)


def test_a_fixed_time_needs_no_exchange() -> None:
    assert known(ServerClock(now=lambda: 86_400.5).seconds(HOME, "unique")) == 86_400.5


def test_it_tells_a_real_servers_time(kit: ShardKit) -> None:
    before = int(kit.client("one").time()[0])  # type: ignore[index, union-attr]
    told_time = kit.driver.run(ServerClock().seconds(Home("one"), "unique"))
    after = int(kit.client("one").time()[0])  # type: ignore[index, union-attr]
    assert before - 1 <= told_time <= after + 2
