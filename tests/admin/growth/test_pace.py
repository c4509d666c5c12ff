"""How long moves take, and what other processes read about it."""

from __future__ import annotations

import pytest
from growth_helpers import Fleet, small

from shardkit.admin.growth import mover as pace, moves
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
