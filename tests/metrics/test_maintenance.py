"""The maintenance flag: exactly ``yes``, read once a second, ended by the servers."""

from __future__ import annotations

from typing import Any

import pytest
from faces import Face, Time, clocked, holder

from shardkit import ShardKit
from shardkit.errors import InvalidArgumentError, ShardUnavailable
from shardkit.metrics import MaintenanceState
from shardkit.operations import Replies


def test_the_flag_is_turned_on_and_off_for_all_or_for_a_part(face: Face) -> None:
    flag = face.kit.maintenance(component="many")
    assert not face.run(flag.check())
    face.run(flag.turn_on("shop", reason="a new till"))
    assert face.run(flag.check("shop"))
    assert face.run(flag.state("shop")) == MaintenanceState("a new till", None)
    assert not face.run(flag.check())
    assert not face.run(flag.check("blog"))
    face.run(flag.turn_on(reason="all", ttl=100))
    state = face.run(flag.state("blog"))
    assert state.reason == "all"
    assert 90 < state.remaining <= 100
    assert face.run(flag.turn_off())
    assert not face.run(flag.turn_off())
    assert face.run(flag.turn_off("shop"))
    assert not face.run(flag.check("shop"))


@pytest.mark.parametrize(("value", "on"), [("yes", True), ("no", False), ("1", False), ("", False)])
def test_it_is_on_for_yes_and_for_nothing_else(value: str, on: bool, kit: ShardKit) -> None:
    client = holder(kit, "few", "is-under-maintenance")
    client.set("is-under-maintenance", value)
    assert kit.maintenance(component="few").check() is on


def test_it_is_read_once_a_second_at_most_and_kept_while_the_server_is_away(kit: ShardKit) -> None:
    ticks = Time(1000.0)
    flag = clocked(kit, monotonic=ticks).maintenance(component="few")
    other = kit.maintenance(component="few")
    assert not flag.check()
    other.turn_on()
    ticks.at += 0.9
    assert not flag.check()
    ticks.at += 0.1
    assert flag.check()

    def known() -> Any:
        with pytest.raises(StopIteration) as done:  # without an exchange
            next(flag.deferred.check())
        return done.value.value

    assert known() is True
    ticks.at += 1
    steps = flag.deferred.check()
    next(steps)
    with pytest.raises(StopIteration) as done:
        steps.send(Replies([ShardUnavailable("away")]))
    assert done.value.value is True
    assert known() is True  # not tried again within the second


@pytest.mark.parametrize("arguments", [{"part": "a:b"}, {"ttl": 0}, {"ttl": float("nan")}])
def test_what_cannot_be_a_flag_is_refused(arguments: Any, kit: ShardKit) -> None:
    with pytest.raises(InvalidArgumentError, match="is-under-maintenance:"):
        kit.maintenance(component="few").turn_on(**arguments)
