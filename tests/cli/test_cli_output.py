"""What commands print: tables, texts, progress and files, for people and for programs."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL
from typing import Any
from unittest.mock import patch

import pytest
from cli_helpers import COMMAND, Cli, Result, in_terminal, plain
from click.testing import CliRunner
from hypothesis import given, strategies as st

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.cli.app import app
from shardkit.cli.output import Output, Styled, Table, number, wordy
from shardkit.cli.text import percent, server_list, spans
from shardkit.errors import InvalidArgumentError, ShardKitError
from shardkit.geo import jsonl, mmdb
from shardkit.local import LocalServers
from shardkit.social import SQLiteStatusStore

LONG = "word " * 100 + "end"


def table() -> Table:
    grid = Table.of("name", wordy("text"), number("count"), number("share"))
    grid.row("a", LONG, 1234567, 0.5)
    grid.row(Styled("b", "red"), "", None, 12.345)
    return grid


@pytest.mark.parametrize("columns", ["", "20", "80"])
def test_where_nobody_reads_a_row_is_a_line_without_blanks_at_its_end(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    Output().table(table())
    Output().line(LONG)
    header, first, second, line = capsys.readouterr().out.splitlines()
    assert header.split() == ["name", "text", "count", "share"]
    assert first == f"a     {LONG}  1,234,567   0.50"
    assert second.split() == ["b", "-", "-", "12.35"]
    assert line == LONG
    assert "\x1b" not in header + first + second
    grid = Table.of("a", "b")
    grid.row("x", "long")
    grid.row("long", "x")
    Output().table(grid)
    assert capsys.readouterr().out == "a     b\nx     long\nlong  x\n"


@given(
    st.lists(st.sampled_from(["text", "address", "number"]), min_size=1, max_size=9),
    st.sampled_from([80, 120]),
    st.data(),
)
def test_no_address_and_no_number_is_broken_in_a_terminal(
    kinds: list[str], width: int, data: st.DataObject
) -> None:
    words = st.lists(st.text("abc:-", min_size=1, max_size=70), min_size=1, max_size=5)
    values: dict[str, st.SearchStrategy[Any]] = {
        "text": words.map(" ".join),
        "address": st.text("a.", max_size=50).map(lambda host: f"h{host}:63790/7"),
        "number": st.integers(0, 10**9),
    }
    columns: dict[str, Any] = {"text": wordy("t"), "address": "server", "number": number("keys")}
    grid = Table.of(*(columns[kind] for kind in kinds))
    rows = [[data.draw(values[kind]) for kind in kinds] for _ in range(3)]
    for row in rows:
        grid.row(*row)
    with patch.dict(os.environ, COLUMNS=str(width)), patch("sys.stdout", io.StringIO()) as out:
        out.isatty = lambda: True  # type: ignore[method-assign]
        Output().table(grid)
    shown = plain(out.getvalue())
    left_out = shown.partition("no room for: ")[2].split(", ")
    kept = [n for n, kind in enumerate(kinds) if kind == "number"]
    kept = kept[: len(kept) - (len(left_out) if left_out != [""] else 0)]
    for row in rows:
        assert all(
            value in shown for value, kind in zip(row, kinds, strict=True) if kind == "address"
        )
        assert all(f"{row[n]:,}" in shown for n in kept)
    assert "…" not in shown
    if kinds.count("address") == 0:
        assert max(map(len, shown.splitlines())) <= max(width, 25 * len(kinds))


def test_a_text_is_not_taken_for_markup_or_an_escape(capsys: pytest.CaptureFixture[str]) -> None:
    grid = Table.of("key")
    grid.row("[red]x[/red] :smile: \x1b[31m\n2")
    output = Output()
    output.table(grid)
    output.line("[bold]a\nb")
    output.note("[bold]c\nd")
    found = capsys.readouterr()
    assert found.out == "key\n[red]x[/red] :smile: \\x1b[31m\n2\n[bold]a\\nb\n"
    assert found.err == "[bold]c d\n"


BROKEN = """
components:
  timelines:
    entry: {port: 99999, hostt: a}
    shards: [{host: a, db: -1}, {host: b, password: 12345678}]
"""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "broken.yaml").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    return "broken.yaml"


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_a_table_fits_its_terminal(columns: int, broken: str) -> None:
    code, text = in_terminal(columns, "config", "validate", broken)
    assert code == 1
    assert "\x1b[" in text
    assert "12345678" not in text
    lines = plain(text).splitlines()
    assert max(map(len, lines)) <= columns
    assert not any("…" in line for line in lines)
    assert "a port, 1 to 65535" in " ".join(" ".join(lines).split())


def test_without_colours_there_are_none(broken: str) -> None:
    environment = {**os.environ, "NO_COLOR": "1", "FORCE_COLOR": "1"}
    found = subprocess.run(
        [*COMMAND, "config", "validate", broken], capture_output=True, text=True, env=environment
    )
    assert "\x1b[3" not in found.stdout  # neither red nor yellow


@pytest.mark.parametrize(
    ("numbers", "written"),
    [
        ([], ""),
        ([0, 1], "0,1"),
        ([0, 1, 2], "0-2"),
        ([3, 1, 2, 9], "1-3,9"),
        ([0, 4, 8, 12], "0,4,8,12"),
        (range(0, 256, 4), "0,4,…,252"),
        ([0, 1, 2, 3, 10, 20, 30, 40, 50], "0-3,10,20,…,50"),
    ],
)
def test_numbers_are_shortened(numbers: list[int], written: str) -> None:
    assert spans(numbers) == written


def test_servers_and_shares_are_short() -> None:
    addresses = ["a:1/0", "a:2/0", "a:3/7", "a:1/3", "b:9/0", "[::1]:5/0", "unix:/run/x.sock/0"]
    assert server_list(addresses) == "a:1-3 b:9 [::1]:5 unix:/run/x.sock"
    shares = [percent(1, 2), percent(1, 20), percent(1, 1000), percent(0, 9), percent(0, 0)]
    assert shares == ["50%", "5%", "<1%", "0%", "-"]


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
        with pytest.raises((OSError, ShardKitError), match=r"regular|null|no path|NUL"):
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


def test_a_map_may_be_validated_against_its_servers(cli: Any, town_map: Path) -> None:
    assert cli("config", "validate", "--connect", town_map).code == 0
    text = town_map.read_text()
    wrong = town_map.with_name("wrong.yaml")
    wrong.write_text(text.replace("db: 9", "db: 99"))
    assert cli("config", "validate", wrong).code == 0
    [found] = cli.json("config", "validate", "--connect", wrong, code=1)["maps"]
    assert "has no database 99" in found["problems"][-1]["problem"]


def test_disk_writes_are_estimated_from_figures(
    cli: Cli,
) -> None:
    figures = ("persistence", "estimate", "--commands", "100000", "--bytes", "1000")
    found = cli.json(*figures, "--profile", "everysec", "--data", str(1 << 30))
    assert found["append"] == 100e6
    assert "100,000 writes a second of 1,000 bytes" in cli(*figures).out
    half = cli(*figures[:4], code=2)
    assert "give both --commands and --bytes" in half.error()


def test_a_profile_that_is_set_already_changes_nothing(cli: Cli, town_map: Path) -> None:
    apply = ("persistence", "apply", "none", "sessions", "-c", town_map)
    assert cli(*apply).code == 0
    again = cli(*apply, code=0)
    assert "is so already" in again.out


def test_a_history_that_reaches_back_so_far_says_so(
    cli: Cli, town_map: Path, town_url: str
) -> None:
    at = ("-c", town_url)
    assert "there is no history: nothing was pushed yet" in cli("config", "history", *at).out
    assert cli("config", "push", town_map, *at).code == 0
    gone = cli("config", "show", "nothing", "--at", "1", *at).error()
    assert gone == "component 'nothing' was not there at epoch 1; name another"
    assert "epoch 0" in cli("config", "rollback", "0", *at).error()


def test_a_backup_that_holds_no_writes_says_so_and_comes_back_with_its_objects(
    cli: Cli, town: LocalServers, pushed_map: Path, town_url: str, tmp_path: Path
) -> None:
    with shardkit.connect(town_url) as kit:
        kit.directory.set("flags", "new", {"on": True})
        kit.key_sharded("unique").mset({f"k{n}": n for n in range(20)})
    taken = tmp_path / "taken"
    said = cli("backup", taken, "-c", town_url, "--no-pause", code=0)
    assert "the snapshots are of different moments" in said.out
    assert len(cli.json("restore", taken, "--verify")["servers"]) == 2
    for server in town.servers[:-1]:
        with server.client() as client:
            client.flushall()
    back = cli.json("restore", taken, pushed_map, "--to-origin", "--objects", town_url)
    assert sum(back["keys"].values()) >= 20  # and what witnesses the epoch
    assert back["objects"] == 1
    for server in town.servers[:-1]:
        with server.client() as client:
            client.flushall()
    again = cli("restore", taken, pushed_map, "--to-origin", "--objects", town_url, code=0)
    assert "1 object written to the config server" in again.lines
    with shardkit.connect(pushed_map) as kit:
        assert kit.key_sharded("unique").mget(["k0", "k19"]) == [b"0", b"19"]
