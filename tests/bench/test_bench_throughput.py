"""Throughput, end to end, with short batches and one round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardkit.bench.throughput.measuring import SERVERS, comparison
from shardkit.bench.throughput.works import WORKS, columns_of, gets, sets
from shardkit.cli.app import app


def test_everybody_gets_the_same_replies() -> None:
    with comparison(shards=SERVERS + 2) as here:
        for name, work in WORKS.items():
            commands = work(60)
            here.limit.batch(sets(60))
            calls = here._contestants(name, commands)
            if name == "get":
                replies = [list(call()) for call in calls.values()]  # type: ignore[call-overload]
                replies.append(here.redis_py.batch_in_threads(commands))
                assert all(found == replies[0] for found in replies)
                assert replies[0] == [b"v" * 16] * 60
            else:
                assert {len(call()) for call in calls.values()} == {60}  # type: ignore[arg-type]


def test_commands_by_column_are_the_same_commands() -> None:
    name, *columns = columns_of(sets(3))
    assert [(name, *row) for row in zip(*columns, strict=True)] == sets(3)
    assert columns_of(gets(2)) == ["GET", ["user:0:name", "user:1:name"]]


FEW = ["bench", "throughput", "get", "mixed", "--sizes", "1,40", "--repeats", "1"]


def test_the_command_writes_a_table_and_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "throughput.svg"
    done = CliRunner().invoke(app, [*FEW, "--shards", "6", "--plot", str(plot)])
    assert done.exit_code == 0, done.output
    assert "6 shards" in done.output
    assert "coalesced" in done.output
    assert plot.read_text().startswith("<?xml")


def test_the_command_writes_json() -> None:
    done = CliRunner().invoke(app, [*FEW, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [(each["work"], each["commands"]) for each in found["works"]] == [
        *(("get", 1), ("get", 40), ("mixed", 1), ("mixed", 40))
    ]
    [_, batch, *_] = found["works"]
    assert set(batch["times_the_limit"]) == {"shardkit", "redis-py", "by column", "coalesced"}
    assert batch["limit_microseconds"] > 0
