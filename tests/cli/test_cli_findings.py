from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardkit.admin.map_file import examine, line_of
from shardkit.config.shard_map import load_yaml

TEXT = """\
defaults: {host: a}
components:
  unique:
    entry:
      host: b
      sentinel:
        service: x
    shards:
      - {port: 1}
      - port: 2
        db: 1
  a.b:
    entry: {port: 3}
  a:
    shards:
      0: {port: 4}
      1: {port: 5}
    placement: slot
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("", 0),
        ("nowhere.at.all", 0),
        ("defaults.host", 1),
        ("components.unique", 3),
        ("components.unique.entry.host", 5),
        ("components.unique.entry.sentinel.service", 7),
        ("components.unique.entry.nothing", 4),
        ("components.unique.shards[0].port", 9),
        ("components.unique.shards[1].db", 11),
        ("components.unique.shards[1] replicas[0].db", 10),
        ("components.unique.shards[7]", 8),
        ("components.a.b.entry.port", 13),
        ("components.a.placement", 18),
        ("components.a.shards[1].port", 17),
        ("components.abc", 2),
    ],
)
def test_a_problem_is_found_in_its_line(path: str, line: int) -> None:
    assert line_of(load_yaml(TEXT, "map"), path) == line


def test_everything_wrong_is_found_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(
        "components:\n"
        "  unique:\n"
        "    entry: {port: 99999}\n"
        "    shards:\n"
        "      - {host: a, passwrod: x}\n"
        "    entry: {host: b}\n"
        "    shard: 3\n"
    )
    shard_map, found = examine(path)
    assert shard_map is None
    said = [(f.line, f.field.rpartition(".")[2], f.remedy) for f in found]
    assert (5, "passwrod", "perhaps password is meant") in said
    assert (6, "entry", "remove one") in said
    assert (7, "shard", "perhaps shards is meant") in said
    assert [f.line for f in found] == sorted(f.line for f in found)


def test_a_file_that_is_no_map_is_one_finding(tmp_path: Path) -> None:
    for text in ("a: [", "", "- 1", "components: {}"):
        path = tmp_path / "map.yaml"
        path.write_text(text)
        shard_map, found = examine(path)
        assert shard_map is None
        assert len(found) == 1
    [finding] = examine(tmp_path / "absent.yaml")[1]
    assert finding.place == str(tmp_path / "absent.yaml")
    assert finding.remedy


def test_a_map_may_be_validated_against_its_servers(
    cli: Any, town_map: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("config", "validate", "--connect", town_map).code == 0
    text = town_map.read_text()
    wrong = town_map.with_name("wrong.yaml")
    wrong.write_text(text.replace("db: 9", "db: 99"))
    assert cli("config", "validate", wrong).code == 0
    [found] = cli.json("config", "validate", "--connect", wrong, code=1)["maps"]
    assert "has no database 99" in found["problems"][-1]["problem"]
    lacking = "shardkit.network.survey.loses_scripts"
    monkeypatch.setattr(lacking, lambda client, info: True)
    warned = cli("config", "validate", "--connect", town_map, code=0)
    assert "loses what scripts and MULTI wrote when it restarts" in warned.out


def test_a_map_whose_servers_have_users_says_what_only_connecting_shows(
    cli: Any, town_map: Path, tmp_path: Path
) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(
        "components: {a: {shards: [{port: 1, username: app, password: x}, "
        "{url: 'redis://other:x@127.0.0.1:2'}]}}"
    )
    said = cli("config", "validate", path).out
    assert "(app, other): whether a restart would lose writes is seen with --connect" in said
    assert "--connect" not in cli("config", "validate", town_map).out
    assert "default user has no rights" in " ".join(cli("config", "validate", "--help").out.split())
