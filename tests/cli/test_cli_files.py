from __future__ import annotations

import gzip
import io
import json
import re
from pathlib import Path
from subprocess import DEVNULL

import pytest
from cli_helpers import Cli, Result, in_terminal, plain

import shardkit

AT = ("--component", "unique")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "b.log").write_bytes(b"three\nfour\n")
    (folder / "a.log.gz").write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    (folder / "sub").mkdir()
    return folder


def test_files_are_published_read_and_gone(
    cli: Cli, town_map: Path, logs: Path, tmp_path: Path
) -> None:
    at = (*AT, "-c", town_map)
    made = cli("files", "publish", "day", logs, "--reader", "x", "--reader", "y", *at, "--json")
    assert [(file["name"], file["new"]) for file in json.loads(made.out)] == [
        ("a.log.gz", True),
        ("b.log", True),
    ]
    again = cli("files", "publish", "day", logs, "--close", *at, code=0)
    assert [line.split()[-1] for line in again.lines[1:]] == ["no", "no"]
    shown = cli("files", "status", "day", *at, code=0)
    assert shown.lines[0].startswith("closed, ")
    assert "2 files" in shown.lines[0]
    assert cli("files", "read", "day", "x", *at) == Result(0, "one\ntwo\nthree\nfour\n", "")
    read = cli("files", "read", "day", "y", "--raw", "--into", tmp_path / "copy", "--json", *at)
    assert [json.loads(line)["name"] for line in read.err.splitlines()] == ["a.log.gz", "b.log"]
    for name in ("a.log.gz", "b.log"):
        assert (tmp_path / "copy" / name).read_bytes() == (logs / name).read_bytes()
    found = json.loads(cli("files", "status", "day", "--json", *at).out)
    assert (found["held"], found["files"], found["open"]) == (0, [], {"x": 0, "y": 0})


@pytest.mark.parametrize("name", ["../out", "/out", "sub/out", "..", "."])
def test_no_published_name_leads_out_of_the_directory(
    cli: Cli, town_map: Path, tmp_path: Path, name: str
) -> None:
    with shardkit.connect(town_map) as kit:
        files = kit.files(component="unique")
        files.create("day", ["x"])
        files.publish("day", io.BytesIO(b"words"), name=name)
        files.close("day")
    into = tmp_path / "copy" / "here"
    refused = cli("files", "read", "day", "x", "--into", into, *AT, "-c", town_map, code=1)
    assert f"file {name!r} is no file name" in refused.out + refused.err
    assert not [path for path in tmp_path.rglob("*") if path.name == "out"]


def test_an_unreadable_file_is_given_up_and_shown(cli: Cli, town_map: Path, tmp_path: Path) -> None:
    at = (*AT, "-c", town_map)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"text" * 1000)[:-4])
    cli("files", "publish", "day", tmp_path / "cut.gz", "--reader", "x", "--close", *at)
    read = cli("files", "read", "day", "x", *at, code=1)
    assert read.err.count("truncated") == 5
    shown = cli("files", "status", "day", *at, code=1)
    assert "x has given up cut.gz" in shown.err


def test_invalid_calls_say_what_is_missing(cli: Cli, town_map: Path, logs: Path) -> None:
    at = (*AT, "-c", town_map)
    assert "no channel 'day'" in cli("files", "publish", "day", logs, *at).error()
    assert cli("files", "publish", "day", "-", *at).code == 2
    assert cli("files", "publish", "day", logs, "--as", "x", *at).code == 2
    assert "no channel" in cli("files", "status", "day", *at).error()


def test_progress_fits_a_terminal_of_80_columns_and_is_cleared(
    town_map: Path, tmp_path: Path
) -> None:
    path = tmp_path / f"{'a-long-name' * 8}-access.log"
    path.write_bytes(b"a line\n" * 500_000)
    for arguments, total in (
        (("publish", "day", path, "--reader", "x", "--close"), "3.5/3.5 MB"),
        (("read", "day", "x", "--into", tmp_path / "copy"), "3.5/? MB"),
    ):
        code, written = in_terminal(80, "files", *arguments, "-c", town_map, *AT, stdout=DEVNULL)
        assert code == 0
        lines = [line for line in re.split(r"[\r\n]+", plain(written)) if line]
        assert max(map(len, lines)) <= 80
        assert any("a-long-nam" in line and "access.log" in line for line in lines)
        assert any(total in line and "\u2501" in line for line in lines), lines
        assert written.rstrip().endswith("\x1b[2K")  # nothing of it stays
