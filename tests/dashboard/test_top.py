"""`shardkit top`: the table in a terminal, and as JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from fleets import Shown
from textual.widgets import DataTable, Input, Static

from shardkit.cli.app import app
from shardkit.cli.commands import dashboard


async def test_servers_and_shards_can_be_sorted_and_filtered(shown: Shown) -> None:
    application = dashboard._application(shown.fleet, 0.1)  # no terminal: Textual's own pilot
    async with application.run_test(size=(100, 30)) as pilot:
        table = application.query_one(DataTable)
        assert table.row_count == 3
        assert "3 of 3 servers up" in str(application.query_one("#line", Static).content)
        await pilot.press("t")
        assert table.row_count == 9
        await pilot.press("right", "right", "right", "right", "r")
        keys = [int(str(table.get_row_at(n)[4]).replace(",", "")) for n in range(9)]
        assert keys == sorted(keys, reverse=True)
        await pilot.press("slash", *"users:3")
        assert [str(table.get_row_at(0)[0])] == ["users:3"]
        assert table.row_count == 1
        await pilot.press("enter", "escape")
        assert (table.row_count, application.query_one(Input).value) == (9, "")
        await pilot.press("q")


async def test_an_error_of_the_table_is_the_commands(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Textual would show the values of all variables."""
    application = dashboard._application(shown.fleet, 0.1)
    async with application.run_test(size=(100, 30)) as pilot:
        monkeypatch.setitem(shown.fleet.servers, "broken:1", None)
        await pilot.press("r")
    assert isinstance(application.return_value, AttributeError)


def test_without_a_terminal_it_refuses_to_run(shown: Shown) -> None:
    result = CliRunner().invoke(app, ["top", "-c", shown.url, "--interval", "0.2"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "there is no terminal to show servers in: use --json; see shardkit top" in result.stderr


def test_json_is_one_answer_of_all_servers(shown: Shown) -> None:
    result = CliRunner().invoke(app, ["top", "-c", shown.url, "--interval", "0.2", "--json"])
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert [each["state"] for each in answer["servers"]] == ["up"] * 3
    assert len(answer["shards"]) == 9
    assert "a-secret" not in result.stdout


def test_the_dashboard_command_is_interrupted_with_a_hundred_pages_open(shown: Shown) -> None:
    command = [sys.executable, "-m", "shardkit", "dashboard", "--port", "0"]
    environment = {**os.environ, "SHARDKIT_CONFIG": shown.url, "NO_COLOR": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0].decode()
        with ExitStack() as stack:
            for _ in range(100):
                events = stack.enter_context(urlopen(f"{url}api/events", timeout=30))
                assert events.readline().startswith(b"data: ")
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
