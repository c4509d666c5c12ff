"""How long moves take, and what other processes read about it."""

from __future__ import annotations

from typing import Any

import pytest
from growth_helpers import Fleet, small

from shardkit.admin.growth import mover as pace, moves, plan_move
from shardkit.admin.growth.mover import progress_of

KEYS, MB = 100_000, 10_000_000


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
