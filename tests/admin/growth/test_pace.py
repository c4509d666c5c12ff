"""How long moves take, and what other processes read about it."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from growth_helpers import Fleet, small

from shardkit.admin.growth import Move, mover as pace, moves, plan_move
from shardkit.admin.growth.mover import Expected, Pace, duration, progress_of

KEYS, MB = 100_000, 10_000_000


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pace, "time", clock)
    return clock


def test_the_estimate_is_corrected_by_what_is_measured(clock: Clock) -> None:
    move = Move("u:1", "keys", "a:1", "b:1", ["u:1"], keys={"1": KEYS}, memory=10 * MB)
    lease = Mock()
    told: list[str] = []
    watched = Pace(move, lease, told.append, 1.0)
    watched.note("copied", 1, KEYS, "keys")
    announced = duration("keys", KEYS, 10 * MB)
    assert move.progress["left"] == pytest.approx(announced, abs=0.1)
    clock.now = 1.0
    watched.note("copied", KEYS // 50, KEYS, "keys", 200_000)  # 50 s, many times as slow
    assert told[-1].startswith("copied 2,000 of 100,000 keys, 0 MB, 2,000 a second, about ")
    copying = pace._expected("keys", KEYS, 10 * MB)
    assert move.progress["left"] == pytest.approx(49 + (announced - copying) * 50 / copying, abs=1)
    clock.now = 50.0
    watched.note("comparing", 0, KEYS, "keys")
    clock.now = 60.0
    watched.note("comparing", KEYS // 2, KEYS, "keys")
    assert (move.progress["rate"], move.progress["left"]) == (KEYS / 2 / 10, 10.0)
    assert told[-1].endswith("5,000 a second, about 10 s left")
    assert lease.write.call_count == 2  # once a second at most
    assert progress_of(move) == told[-1]
    clock.now = 360.0
    assert progress_of(move) == f"{told[-1]} (5 min ago)"


@pytest.mark.parametrize("of_shards", [False, True])
def test_other_processes_see_how_far_a_move_is(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, of_shards: bool
) -> None:
    small(fleet)
    monkeypatch.setattr(pace, "_EVERY", -1.0)
    seen: dict[str, str] = {}

    def tell(what: str) -> None:
        step = what.split(" ")[0]
        if " of " in what and step not in seen:
            [move] = moves(fleet.config)
            seen[step] = progress_of(move)
            assert seen[step] in fleet.run("move", "status").output.replace("\n", " ")
            assert seen[step] == what

    fleet.move(of_shards, progress=tell)
    assert seen.keys() >= ({"copied", "comparing"} if of_shards else {"comparing"})
    [move] = moves(fleet.config)
    assert progress_of(move) == ""


def test_an_estimate_has_the_speed_of_what_was_just_measured() -> None:
    busy = Expected.of(10.0, [(30, 10), (50, 10), (40, 10)])
    assert busy.slowness == pytest.approx(4, abs=0.01)
    assert (busy.seconds, busy.least, busy.most) == pytest.approx((40, 40 / 1.5, 60), abs=0.1)
    assert str(busy) == "40 s (27 to 60 s)"
    uneven = Expected.of(10.0, [(10, 10), (90, 10)])
    assert uneven.seconds == pytest.approx(50, abs=0.1)
    assert uneven.most > 100 > busy.most, "a wide range for what varies"
    few = Expected.of(10.0, [(0.01, 0.001)])
    assert few.seconds < 15
    assert few.most > 40, "exchanges of a few keys tell little"
    unknown = Expected.of(10.0, [])
    assert (unknown.least, unknown.seconds, unknown.most) == (2.5, 10, 40)


def planned(fleet: Fleet, what: Any = ("users:1",)) -> tuple[float, float]:
    """How long a move takes on an idle machine, and by what this one is slower."""
    expected = plan_move(fleet.config, what, fleet.name(1)).expected
    assert 0 < expected.least < expected.seconds < expected.most
    return expected.seconds / expected.slowness, expected.slowness


def test_many_small_keys_take_longer_than_few_large_ones(fleet: Fleet) -> None:
    fleet.push(0)

    def announced(keys: dict[str, Any]) -> float:
        with fleet.servers[0].client(db=2) as client:
            client.flushdb()
            client.mset(keys)
        return planned(fleet)[0]

    small_ones = announced({f"k{n}": "x" for n in range(20_000)})
    assert small_ones > 3 * announced({f"k{n}": "x" * 100_000 for n in range(10)})


def test_the_plan_counts_the_elements_of_large_collections(fleet: Fleet) -> None:
    small(fleet)
    before, _ = planned(fleet)
    with fleet.servers[0].client(db=2) as client:
        client.hset("hash", mapping={f"f{n}": n for n in range(50_000)})
        client.rpush("list", *range(50_000))
    for what in (["users:1"], fleet.name(0)):
        seconds, slowness = planned(fleet, what)
        assert before + 0.5 < seconds < before + 1.5
        assert slowness != 1, "the small keys were measured"
