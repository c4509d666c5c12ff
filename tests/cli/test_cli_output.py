from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from cli_helpers import COMMAND, in_terminal, plain
from hypothesis import given, strategies as st

from shardkit.cli.output import Output, Styled, Table, number, wordy
from shardkit.cli.progress import progress

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


def test_a_terminal_that_lacks_a_character_shows_a_question_mark(tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text("components: {a: {shards: {count: 40, over: [{host: h}]}}}")
    found = subprocess.run(
        [*COMMAND, "locate", "a", "ключ", "-c", str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"},
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.splitlines()[1].startswith("????  a:")


def test_progress_without_a_terminal_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> str:
        with Output().busy("moving") as tell, progress("keys") as report:
            tell("copied 1 of 2 keys")
            report("reading a", 1200, 5000)
            report("reading b", 3, None)
        return capsys.readouterr().err

    assert work() == ""
    monkeypatch.setattr("shardkit.cli.output._SELDOM", 0.0)
    assert work() == "copied 1 of 2 keys\nreading a: 1,200 of 5,000 keys\nreading b: 3 keys\n"
