"""`shardkit init`."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from shardkit import ShardMap
from shardkit.cli.app import app


def test_a_map_is_written_that_can_be_run(tmp_path: Path) -> None:
    path = tmp_path / "configs" / "shards.yaml"  # the directory does not exist yet
    result = CliRunner().invoke(app, ["init", str(path)])
    assert result.exit_code == 0
    assert f"shardkit up {path}" in result.output.replace("\n", "")
    assert ShardMap.load(path).components["unique"].shards


def test_a_file_that_exists_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "shards.yaml"
    path.write_text("mine")
    result = CliRunner().invoke(app, ["init", str(path)])
    assert result.exit_code == 1
    assert path.read_text() == "mine"
