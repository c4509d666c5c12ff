"""Many schedules of failover and both kinds of moves, with kills; and of each with a part left out.

``SCHEDULES=100000`` tries more of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from growth_models import (
    Steps,
    World,
    check,
    failover_after_a_crash,
    move_of_a_server,
    move_of_a_shard,
)

from shardkit.testing.simulation.linearizability import NotLinearizable

SCHEDULES = int(os.environ.get("SCHEDULES", "150"))
MOST_FOR_A_MUTATION = 4000

# With a schedule that shows it, so that none has to be looked for.
MUTATIONS = [
    (move_of_a_shard, "clients ask for the fence", 7),
    (move_of_a_shard, "the mover waits until clients have left", 87),
    (move_of_a_shard, "what changes is copied again", 8),
    (move_of_a_shard, "a mover that was stopped decides nothing", 100),
    (move_of_a_shard, "each copy is bound to its attempt", 1677),
    (move_of_a_shard, "entries are pushed when it is decided", 9),
    (move_of_a_shard, "who decides looks whether the target is still its own", 2146),
    (move_of_a_shard, "the source is closed to readers", 37),
    (move_of_a_shard, "the target waits until readers have left", 5),
    (move_of_a_server, "writers are held", 1008),
    (move_of_a_server, "entries are pushed after the promotion", 871),
    (failover_after_a_crash, "the old master is fenced", 14),
]


@pytest.mark.parametrize("mover", [move_of_a_shard, move_of_a_server, failover_after_a_crash])
def test_no_schedule_of_kills_and_stops_loses_doubles_or_resurrects_anything(
    mover: Callable[[World], Steps],
) -> None:
    for seed in range(SCHEDULES):
        try:
            check(mover, seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize(("mover", "without", "known"), MUTATIONS)
def test_each_part_of_the_protocols_is_needed(
    mover: Callable[[World], Steps], without: str, known: int
) -> None:
    def shows_why(seed: int) -> bool:
        try:
            check(mover, seed, without)
        except NotLinearizable:
            return True
        except AssertionError:  # it only came to no end
            return False
        return False

    assert any(map(shows_why, (known, *range(MOST_FOR_A_MUTATION)))), without
