"""Servers whose saved files are something else: one error, and nothing that waits for ever."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardkit.cli.app import app
from shardkit.errors import LocalServerError
from shardkit.local import LocalServer

ODD: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a directory": os.mkdir,
    "a link to nowhere": lambda path: path.symlink_to("/nonexistent/file"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_a_log_that_is_no_file_is_an_error(tmp_path: Path, make: Callable[[Path], object]) -> None:
    (tmp_path / "map.yaml").write_text("components: {a: {entry: {host: 127.0.0.1, port: 7101}}}")
    for folder in ("own", "data/127.0.0.1-7101"):
        (tmp_path / folder).mkdir(parents=True)
        make(tmp_path / folder / "server.log")
    with pytest.raises(LocalServerError, match=r"server\.log cannot be opened: .*; remove it"):
        LocalServer(data_dir=tmp_path / "own").start()
    words = ["up", "map.yaml", "--free-ports", "--data-dir", "data"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert done.stderr.count("shardkit: error: ") == 1
    assert "server.log cannot be opened: " in done.stderr
