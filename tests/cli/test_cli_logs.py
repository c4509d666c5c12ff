from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_helpers import Result
from faces import clocked

import shardkit

Cli = Callable[..., Result]
AT = ("--component", "unique")


def test_a_log_is_shown_oldest_first_from_a_severity_on(cli: Cli, town_map: Path) -> None:
    with shardkit.connect(town_map) as kit:
        times = iter([1.5e9, 1.5e9 + 1, 1.5e9 + 2])
        logs = clocked(kit, now=times.__next__).logs(component="unique")
        logs.log("shop", "first [bold]ü", "error")
        logs.log("shop", "second")
        logs.log("shop", "hidden", "debug")
    shown = cli("logs", "shop", *AT, "-s", "info", "-c", town_map)
    assert shown.out.splitlines() == [
        "2017-07-14 02:40:00.000 error    first [bold]ü",
        "2017-07-14 02:40:01.000 info     second",
    ]
    lines = cli("logs", "shop", *AT, "-n", "1", "--json", "-c", town_map).out.splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["first [bold]ü", "second", "hidden"]
    assert json.loads(lines[0])["time"] == "2017-07-14T02:40:00+00:00"
    assert cli("logs", "nothing", *AT, "-c", town_map) == Result(0, "", "")


def test_following_ends_with_ctrl_c(
    cli: Cli, town_map: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shardkit.connect(town_map) as kit:
        kit.logs(component="unique").log("shop", "text")

    def interrupt(link: object, seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shardkit.network.links.blocking.BlockingLink.pause", interrupt)
    found = cli("logs", "shop", *AT, "--follow", "-c", town_map)
    assert "text" in found.out
    assert found.code == 130
