"""A file that is no regular one, which may never end or have no writer, keeps nothing waiting."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from resources import bounded

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.cli.app import app
from shardkit.errors import ConfigError, InvalidArgumentError, ShardKitError
from shardkit.geo import jsonl, mmdb
from shardkit.social import SQLiteStatusStore


def key_file(kit: ShardKit, path: Path) -> Any:
    entry = shardkit.Entry({"port": 1, "ssl": True, "ssl_keyfile": str(path)})
    return entry.resolved("entry")


CALLS: list[Callable[[ShardKit, Path], Any]] = [
    lambda kit, path: shardkit.connect(path),
    lambda kit, path: ShardMap.load(path),
    lambda kit, path: list(jsonl(path)),
    lambda kit, path: list(mmdb(path)),
    lambda kit, path: kit.files(component="one").publish("c", path),
    key_file,
]
COMMANDS = [
    *("config validate", "config push --dry-run", "apply --plan", "restore --verify", "up"),
    *("convert --component one --on one", "geo import --component one", "files publish c"),
    *("rotate one --dry-run --password-file", "config pull -o", "plan one --out"),
]


@pytest.mark.parametrize("kind", ["fifo", "endless", "null"])
def test_what_is_no_regular_file_is_refused_at_once(
    kit: ShardKit, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "file"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    else:
        path = Path("a\0b")
    for call in CALLS:
        with pytest.raises((OSError, ShardKitError), match=r"regular|null byte|no path|NUL"):
            call(kit, path)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_does_not_wait_for_the_writer_of_a_fifo(
    shard_map: ShardMap, tmp_path: Path, command: str
) -> None:
    os.mkfifo(path := tmp_path / "fifo.yaml")
    (where := tmp_path / "map.yaml").write_text(shard_map.to_yaml())
    config = ["-c", str(where)] if command not in ("config validate", "up") else []
    result = CliRunner().invoke(app, [*command.split(), str(path), *config])
    assert result.exit_code in (1, 2)
    assert "should not happen" not in result.output


def test_a_file_that_is_no_store_is_named(tmp_path: Path) -> None:
    (path := tmp_path / "store").write_bytes(b"x" * 5000)
    with pytest.raises(InvalidArgumentError, match="store' cannot be used: file is not a database"):
        SQLiteStatusStore(path)


def test_a_map_of_one_long_word_is_read_in_time(tmp_path: Path) -> None:
    (path := tmp_path / "map.yaml").write_text("x" * 5_000_000)
    with bounded(), pytest.raises(ConfigError, match="is not a shard map"):
        ShardMap.load(path)  # PyYAML's own parser takes longer
