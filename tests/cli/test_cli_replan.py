"""``shardkit replan``: planned sets and hashes that have outgrown their plan get more parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cli_helpers import Cli

import shardkit


@pytest.fixture(autouse=True)
def short(lower: Callable[..., None]) -> None:
    """Nobody else uses the structures, so nothing has to wait for anybody."""
    lower(plan_grace=0.0, plan_lease=0.0, plan_short_lease=0.0)


def test_structures_that_have_outgrown_their_plan_are_replanned(cli: Cli, town_map: Path) -> None:
    at = ("-c", str(town_map))
    with shardkit.connect(town_map) as kit:
        ids = kit.set("ids", component="followers", total=64, part_size=16, members=int)
        ids.sadd(*range(500))
        names = kit.hash("names", component="followers", total=64, part_size=16, codec="json")
        names.hset(mapping={**{n: n for n in range(500)}, **{f"f{n}": n for n in range(40)}})
        kit.set("growing", component="followers").sadd("a")
        assert cli("replan", "followers", "--dry-run", *at).code == 1
        [row] = cli.json("replan", "followers", "--dry-run", *at, code=1)
        assert row == {
            "structure": "ids",
            "kind": "set",
            "members": 500,
            "total": 64,
            "parts": 8,
            "interrupted": False,
        }
        assert cli("replan", "followers", *at, input="n\n").code == 1
        [row] = cli.json("replan", "followers", "--yes", *at)
        assert (row["total"], row["parts"]) == (1024, 128)
        assert 400 < row["members"] < 600  # of half of the parts
        fresh = kit.set("ids", component="followers", total=64, part_size=16, members=int)
        assert fresh.smembers() == set(range(500))
        said = cli("replan", "followers", *at)
        assert said.lines == ["2 planned structures: none has outgrown its plan"]
        [row] = cli.json("replan", "followers", "names", "--total", "300", "--yes", *at)
        assert (row["total"], row["parts"], row["members"]) == (320, 40, 40)
        fresh = kit.hash("names", component="followers", total=64, part_size=16, codec="json")
        assert fresh.hget("f39") == 39
        assert fresh.hlen() == 540
        meta = kit.client("followers", kit.component("followers").shard_of("ids:meta").number)
        meta.hset("ids:meta", "planning", "copying 3 4096 2 1024")
        assert "interrupted" in cli("replan", "followers", "--dry-run", *at).out
        assert cli("replan", "followers", "--yes", *at).code == 0
        fresh = kit.set("ids", component="followers", total=64, part_size=16, members=int)
        assert fresh.scard() == 500
        assert fresh.parts == 256
        failed = cli("replan", "followers", "growing", *at, code=1)
        assert "growing is not a set or hash that was created with a total" in failed.err
