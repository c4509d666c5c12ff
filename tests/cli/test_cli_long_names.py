"""What an operator reads of a fleet with long names and many shards, in a narrow terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_helpers import Cli, in_terminal, plain

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalServers

LONG = "a-very-long-component-name-of-the-recommendation-service.eu-west-1"
MAP = f"""
config_server: {{port: 7000}}
defaults: {{host: 127.0.0.1, socket_timeout: 5}}
components:
  app:
    shards: {{count: 256, over: [{{port: 7001}}, {{port: 7002}}]}}
  {LONG}:
    shards: {{count: 12, over: [{{port: 7001, db: 128}}, {{port: 7002, db: 128}}]}}
"""


@pytest.fixture(scope="module")
def large() -> Iterator[LocalServers]:
    with LocalServers(ShardMap.parse(MAP, "large.yaml"), ports="free") as running:
        yield running


@pytest.fixture(scope="module")
def large_map(large: LocalServers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "large.yaml"
    path.write_text(large.shard_map.to_yaml())
    Cli()("config", "push", path, "-m", f"{LONG} is new", code=0)
    with shardkit.connect(path) as kit:
        kit.hash("n" * 70, component=LONG).hset(1, "x")
        kit.key_sharded(LONG).set("k" * 100, "x")
    Cli()("backup", path.parent / ("b" * 60), "-c", path, code=0)  # a change with a long name
    return path


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_with_long_names_fit_and_break_no_address(columns: int, large_map: Path) -> None:
    commands = [
        *("config history", f"config show {LONG}", "status", f"locate {LONG} k"),
        *("config show", "changes", "doctor", "keys --biggest 3", f"exec --on {LONG} -- PING"),
    ]
    shown = {
        words: plain(in_terminal(columns, "-c", large_map, *words.split())[1])
        for words in commands[: 4 if columns > 80 else None]
    }
    shown["config diff"] = plain(in_terminal(columns, "config", "diff", large_map)[1])
    wide = {
        words: [line for line in re.split(r"[\r\n]+", text) if len(line) > columns]
        for words, text in shown.items()
    }
    assert {words for words, lines in wide.items() if lines} == set(), wide
    for words in ("status", f"config show {LONG}", f"locate {LONG} k"):
        assert re.search(r"127\.0\.0\.1:\d+/\d+", shown[words]), words
    numbers = [int(n) for n in re.findall(r"^app:(\d+) ", shown["status"], re.MULTILINE)]
    assert numbers == list(range(256))
    assert re.search(r"^ +1 2", shown["config history"], re.MULTILINE)  # `rollback` takes it


def test_a_dead_server_of_many_shards_is_named_once(
    large: LocalServers, large_map: Path, cli: Cli
) -> None:
    dead = large.servers[1]
    dead.kill()
    try:
        [line] = cli("status", "--check", "-c", large_map, code=2).lines
        assert line.count(f"{dead.address} cannot be reached") == 1
        assert line.startswith("CRITICAL: ")
        assert re.search(r"app:\d,\d,…,25\d ", line)
        scanned = cli("doctor", "-c", large_map, code=1).lines
        # The first shard's own error, and all others in one line.
        assert 1 <= len([line for line in scanned if "cannot be scanned" in line]) <= 2
        problems = in_terminal(80, "check", "-c", large_map)[1]
        assert "start it, or" in plain(problems)  # no column is a word wide
    finally:
        dead.restart()


def test_a_structure_without_its_component_names_the_option(large_map: Path, cli: Cli) -> None:
    for words in ("queues show", "queues dead mail", "search info", "files status day"):
        said = cli(*words.split(), "-c", large_map, code=1).error()
        assert "name another with --component, or " in said, words


def test_names_are_sorted_as_people_count(large_map: Path, cli: Cli) -> None:
    with shardkit.connect(large_map) as kit:
        tasks = kit.queues(component="app")
        for number in (10, 9, 2):
            tasks.enqueue(f"mail-{number}", "x")
            kit.hash(f"day-{number}", component="app").hset(1, "x")
    queues = cli.json("queues", "show", "--component", "app", "-c", large_map)
    assert [each["queue"] for each in queues] == ["mail-2", "mail-9", "mail-10"]
    found = cli.json("doctor", "app", "-c", large_map)["structures"]
    days = [each["structure"] for each in found if each["structure"].startswith("day")]
    assert days == ["day-2", "day-9", "day-10"]


@pytest.fixture
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")


@pytest.mark.usefixtures("in_new_york")
def test_times_are_in_utc_and_say_so(large_map: Path) -> None:
    def first(*words: str) -> str:
        header, row, *_ = plain(in_terminal(120, *words, "-c", large_map)[1]).splitlines()
        assert "(UTC)" in header
        [at] = re.findall(r"\d{4}-\d\d-\d\d \d\d", row)
        return str(at)

    assert first("changes") == first("config", "history")
