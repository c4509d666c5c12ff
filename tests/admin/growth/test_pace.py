"""How long moves take, and what other processes read about it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from growth_helpers import Fleet, small

from shardkit.admin.growth import moves

KEYS, MB = 100_000, 10_000_000


@pytest.mark.parametrize("of_shards", [False, True])
def test_other_processes_see_how_far_a_move_is(
    fleet: Fleet, lower: Callable[..., None], of_shards: bool
) -> None:
    small(fleet)
    lower(move_notes=-1.0)
    seen: set[str] = set()

    def tell(what: str) -> None:
        step = what.split(" ")[0]
        if " of " in what and step not in seen:
            seen.add(step)
            assert what in fleet.run("move", "status").output.replace("\n", " ")

    fleet.move(of_shards, progress=tell)
    assert seen >= ({"copied", "comparing"} if of_shards else {"comparing"})
    [move] = moves(fleet.config)
    assert move.progress == {}
