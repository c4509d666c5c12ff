"""What movers push, while others push, too."""

from __future__ import annotations

from typing import Any

import pytest
from arranged import before_sending
from growth_helpers import PATIENT, Fleet, small, still_there

from shardkit.admin.growth import resume_move
from shardkit.errors import PushRefusedError


@pytest.mark.parametrize("once", [True, False])
def test_a_mover_repeats_its_push_a_few_times(fleet: Fleet, once: bool) -> None:
    small(fleet)
    pushes = 0

    def push_others() -> None:
        nonlocal pushes
        pushes += 1
        fleet.describe({"others": {"entry": fleet.at(2, db=pushes)}}, check=False)

    def is_push(connection: Any, text: str) -> bool:
        return "MULTI" in text and "config:epoch" in text and "config:redis:users" in text

    with before_sending(is_push, push_others, once=once):
        if once:
            assert fleet.move_shard().phase == "done"
        else:
            with pytest.raises(PushRefusedError, match="other pushes came in between"):
                fleet.move_shard()
    assert pushes == (1 if once else 10)
    assert fleet.config.exists("config:redis:others")
    if not once:
        assert resume_move(fleet.config, "users:1", hold=PATIENT).phase == "done"
    assert fleet.masters() == [fleet.name(0), fleet.name(1)]
    assert still_there(fleet)
