"""How a component is planned to grow, and how much of a server's time a copy takes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from growth_helpers import Fleet, small

from shardkit import ShardMap
from shardkit.admin.growth import moves, plan_growth
from shardkit.cli.app import app
from shardkit.errors import ConfigError, InvalidArgumentError


def test_four_times_each_half_year_for_two_years_are_256_shards() -> None:
    load: dict[str, Any] = {"data": 8e9, "commands": 400_000 / 256, "size": 10, "processes": 20}
    plan = plan_growth("users", ["a:6379"], growth=4, periods=4, **load)
    assert plan.count == 256
    assert plan.databases == 257
    assert [step.servers for step in plan.steps] == [1, 4, 16, 64, 256]
    assert [step.shards for step in plan.steps] == [256, 64, 16, 4, 1]
    # The load of a server stays what it is: the data and commands of one begin, 8 GB.
    assert {round(step.data) for step in plan.steps} == {8_000_000_000}
    assert {round(step.memory) for step in plan.steps} == {12_000_000_000}
    assert [step.connections for step in plan.steps] == [20] * 5
    assert plan.steps[-1].append * 256 == 4e6  # 400,000 small commands are few MB a second
    moved = [sum(len(shards) for *_, shards in step.moves) for step in plan.steps]
    assert moved == [0, 192, 192, 192, 192]
    shard_map = ShardMap.parse(plan.to_yaml())
    assert len(shard_map.components["users"].shards) == 256


def test_the_moves_of_a_plan_lead_to_even_servers_and_no_shard_moves_without_need() -> None:
    plan = plan_growth("users", ["a:1", "b:1"], growth=1.5, periods=3, new=["c:1", "d:2"], data=6e9)
    assert plan.count == 8
    at = {f"users:{n}": f"{entry['host']}:{entry['port']}" for n, entry in enumerate(plan.entries)}
    for step in plan.steps:
        for source, target, shards in step.moves:
            for shard in shards:
                assert at[shard] == source
                at[shard] = target
        numbers = Counter(at.values())
        assert len(numbers) == step.servers
        assert max(numbers.values()) == step.shards
        assert max(numbers.values()) - min(numbers.values()) <= 1
        least = sum(max(0, 8 // step.servers) for server in numbers if server not in "a:1 b:1")
        assert sum(len(shards) for *_, shards in step.moves) <= least + 1
    assert set(at.values()) == {"a:1", "b:1", "c:1", "d:2", "new1:6379", "new2:6379", "new3:6379"}
    # Any shard can go to any server: their databases differ.
    assert len({entry["db"] for entry in plan.entries}) == 8


def test_with_servers_of_their_own_shards_move_with_their_servers() -> None:
    plan = plan_growth("users", ["a:7000"], growth=2, periods=2, separate=True)
    assert [entry["port"] for entry in plan.entries] == [7000, 7001, 7002, 7003]
    assert plan.warnings == ()
    assert plan.commands(plan.steps[1]) == [
        "shardkit move server a:7002 --to new1:6381",
        "shardkit move server a:7003 --to new1:6382",
    ]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"growth": 0.5}, "growth=0.5; give a number, 1 to 16,384"),
        ({"periods": -1}, "periods=-1; give an integer, 0 to 100"),
        ({"growth": 1, "periods": 101}, "periods=101; give"),
        ({"growth": 100, "periods": 50}, "too many shards"),
        ({"growth": 3, "periods": 9}, "shards"),
        ({"data": -1}, "data=-1; give"),
        ({"data": float("nan")}, "data=nan; give"),
        ({"servers": []}, "not specified"),
        ({"servers": ["a:1", "a:1"]}, "twice"),
        ({"servers": ["a:65535"], "separate": True}, "beyond 65535"),
    ],
)
def test_what_cannot_be_planned_is_refused(changed: dict[str, object], message: str) -> None:
    given = {"servers": ["a:1"], "growth": 2, "periods": 1, **changed}
    with pytest.raises(InvalidArgumentError, match=message):
        plan_growth("users", **given)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="users 1"):
        plan_growth("users 1", ["a:1"], growth=1, periods=1)


def test_the_command_says_what_each_step_takes_and_writes_the_map(tmp_path: Path) -> None:
    out = tmp_path / "users.yaml"
    words = ["plan", "users", "--server", "a:6379", "--growth", "2", "--periods", "1"]
    shown = CliRunner().invoke(app, [*words, "--data", "1e9", "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    assert "1. shardkit move shards users:1 --to new1:6379" in shown.output
    _, _, head, now, then, *_ = (line.split() for line in shown.output.splitlines() if line)
    assert " ".join(head).endswith("moved GB moved minutes")
    assert (now[0], now[-3:]) == ("now", ["0", "0.00", "0"])
    assert (then[0], then[-3:-1]) == ("1", ["1", "1.00"])
    assert len(ShardMap.load(out).components["users"].shards) == 2
    again = CliRunner().invoke(app, [*words, "--out", str(out)])
    assert again.exit_code == 2
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    assert found["count"] == 2
    assert found["steps"][1]["commands"] == ["shardkit move shards users:1 --to new1:6379"]


def test_the_command_shows_connections() -> None:
    arguments = ["plan", "users", "--server", "a:1", "--growth", "2", "--periods", "1"]
    arguments += ["--processes", "10000", "--connections", "8"]
    shown = CliRunner().invoke(app, arguments)
    assert "80,000 connections to a server are too many" in shown.output
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).output)
    assert [step["connections"] for step in found["steps"]] == [80_000, 80_000]
    assert any("maxclients" in warning for warning in found["warnings"])


@pytest.mark.parametrize("connections", [1, 8])
def test_many_processes_need_a_higher_maxclients(connections: int) -> None:
    numbers = {"processes": 10_000 // connections, "connections": connections}
    plan = plan_growth("users", ["a:1"], growth=4, periods=2, **numbers)
    # Neither the number of shards nor that of servers changes it.
    assert [step.connections for step in plan.steps] == [10_000] * 3
    assert "set `maxclients 11112`" in plan.warnings[-1]
    fewer = plan_growth("users", ["a:1"], growth=4, periods=2, processes=8_999)
    assert not any("maxclients" in warning for warning in fewer.warnings)


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
