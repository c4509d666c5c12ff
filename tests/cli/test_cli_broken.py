"""What commands say of components and servers that cannot be used, beside others that can."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import redis
import yaml
from cli_helpers import Cli, config_server, edited_map

import shardkit
from shardkit.cli import options
from shardkit.cli.commands import doctor
from shardkit.errors import ConfigError, ConfigServerError
from shardkit.local import LocalServers
from shardkit.operations import pages


@pytest.fixture
def broken_url(cli: Cli, town: LocalServers, town_map: Path, town_url: str) -> str:
    """The config server with the map, and a component `bad` whose entry is no JSON."""
    assert cli("config", "push", town_map, "-c", town_url).code == 0
    with config_server(town).client() as client:
        client.set("config:redis:bad", "{")
    return town_url


@pytest.fixture
def half_dead_map(town_map: Path) -> Path:
    """The map, with a component of two shards of which one has no server."""
    with edited_map(town_map) as components:
        there = {**components["followers"]["shards"][0], "db": 11}
        components["half"] = {"shards": [there, {**there, "port": 1}]}
    return town_map


@pytest.mark.parametrize("command", [("doctor",), ("doctor", "--check")])
def test_doctor_goes_on_where_a_component_is_broken(
    cli: Cli, broken_url: str, command: tuple[str, ...]
) -> None:
    result = cli(*command, "-c", broken_url, code=1)
    [line] = [line for line in result.lines if "bad" in line]
    assert line.startswith("bad cannot be used: config:redis:bad: is not JSON")


@pytest.mark.parametrize("command", [("doctor",), ("doctor", "--check")])
@pytest.mark.parametrize(
    ("password", "why"), [(None, "refused"), ("${NOT_SET_HERE}", "${NOT_SET_HERE}")]
)
def test_doctor_names_the_shard_that_is_down_or_lacks_its_password(
    cli: Cli, half_dead_map: Path, command: tuple[str, ...], password: str | None, why: str
) -> None:
    if password is not None:
        with edited_map(half_dead_map) as components:
            components["half"]["shards"][1]["password"] = password
    result = cli(*command, "half", "-c", half_dead_map, code=1)
    [line] = [line for line in result.lines if "half:1" in line]
    assert line.startswith("half:1 cannot be scanned: ")
    assert why in line


def test_locks_of_components_that_answer_are_shown_beside_those_that_do_not(
    cli: Cli, broken_url: str, half_dead_map: Path
) -> None:
    cli("config", "push", half_dead_map, "-c", broken_url, "--no-check", code=0)
    with shardkit.connect(half_dead_map) as kit:
        assert kit.lock("stock", component="unique", label="first", renew=False).acquire()
        result = cli("locks", "show", "-c", broken_url, code=1)
    assert [line.split()[:3] for line in result.lines[1:]] == [["unique", "lock", "stock"]]
    [half] = [line for line in result.err.splitlines() if line.startswith("warning: half: ")]
    assert "refused" in half
    assert "warning: bad: config:redis:bad: is not JSON" in result.err


def test_a_config_server_that_goes_while_it_is_read_is_no_broken_component() -> None:
    kit = Mock()
    topology = options.OpenTopology(kit, None, "redis://a:1")
    kit.components.side_effect = redis.ConnectionError("away")
    with pytest.raises(ConfigServerError, match=r"redis://a:1 cannot be read: .*away.*; start"):
        topology.components()
    kit.components = Mock(return_value=["one", "other"])
    gone = ConfigServerError("the config server is away", "start it")
    kit.component.side_effect = [ConfigError("one is broken", "push it"), gone]
    with pytest.raises(ConfigServerError, match="the config server is away"):
        topology.components()
    kit.component.side_effect = ConfigError("it is broken", "push it")
    found, broken = topology.components()
    assert (found, list(broken)) == ({}, ["one", "other"])


def test_maps_are_not_compared_with_a_config_server_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = import_module("shardkit.admin.pushes")
    client: Any = None
    wanted = dict.fromkeys(["one", "other"])
    gone = ConfigServerError("the config server is away", "start it")
    broken = ConfigError("one is broken", "push it")
    monkeypatch.setattr(module, "read_components", Mock(side_effect=[gone, broken, broken]))
    monkeypatch.setattr(module, "read_component", Mock(side_effect=[gone, broken, None]))
    for _ in range(2):
        with pytest.raises(ConfigServerError, match="the config server is away"):
            module._current(client, wanted)
    assert module._current(client, wanted) == ({}, {"one": broken})


def test_a_structure_that_cannot_be_rebuilt_says_why() -> None:
    rebuild = Mock(side_effect=[None, ConfigError("a shard is away", "start it")])
    structure: Any = SimpleNamespace(rebuild=rebuild)
    assert doctor._rebuilt(structure) == "rebuilt"
    assert doctor._rebuilt(structure) == "not rebuilt: a shard is away; start it"


def test_the_structures_on_the_shards_that_answer_are_checked(
    cli: Cli, half_dead_map: Path
) -> None:
    with shardkit.connect(half_dead_map) as kit:
        client: Any = kit.client("half", 0)
        client.hset("lost:parts", "a", "1")  # no structure's
        client.hset("emails:{x}:tasks", "1", "{")
    command = ("doctor", "--check", "-c", half_dead_map, "half")
    found = cli.json(*command, code=1)
    assert not found["ok"]
    assert list(found["failures"]) == ["half:1"]
    assert [(each["structure"], each["kind"]) for each in found["structures"]] == [
        ("emails:{x}", "queue")
    ]
    looked = cli.json("check", "--structures", "half", "-c", half_dead_map, code=1)
    assert looked["structures"] == 1
    assert any("127.0.0.1:1" in finding["where"] for finding in looked["findings"]), looked


def test_a_structure_that_may_have_keys_on_a_dead_server_is_not_checked(
    cli: Cli, half_dead_map: Path
) -> None:
    with shardkit.connect(half_dead_map) as kit:
        places = {"component": "unique", "timelines": "unique", "followers": "unique"}
        kit.social(**places, parts=4, relation_parts=4).create_user("ada", "Ada")
    result = cli("doctor", "--check", "-c", half_dead_map, code=1)
    [line] = [line for line in result.lines if "social" in line]
    assert line.startswith("unique/social was not checked: ")
    assert "refused" in line


def test_doctor_names_parameters_that_describe_no_structure(cli: Cli, town_map: Path) -> None:
    with shardkit.connect(town_map) as kit:
        client: Any = kit.client("sessions")
        client.set("text:meta", "x")
        client.hset("odd:meta", "format", "1")
    result = cli("doctor", "--check", "sessions", "-c", town_map, code=1)
    assert "sessions/text:meta is not a HASH" in result.lines
    assert "sessions/odd:meta does not say the kind of its structure" in result.lines
    found = cli.json("doctor", "--check", "sessions", "-c", town_map, code=1)
    assert found["parameters"]["sessions/odd:meta"] == "does not say the kind of its structure"


def test_a_structure_that_is_deleted_meanwhile_is_not_broken(
    cli: Cli, town_map: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[bytes] = []
    with shardkit.connect(town_map) as kit:
        client: Any = kit.client("sessions")
        client.hset("ids:meta", "kind", "set")

        def deleted_meanwhile(names: Iterable[bytes], size: int) -> Iterator[list[bytes]]:
            for page in pages(names, size):
                listed.extend(page)
                client.delete("ids:meta")
                yield page

        monkeypatch.setattr("shardkit.admin.doctor.scan.pages", deleted_meanwhile)
        result = cli("doctor", "sessions", "-c", town_map)
    assert listed == [b"ids:meta"]
    assert result.code == 0, result
    assert "ids" not in result.out


def test_a_book_whose_names_an_application_compares_is_not_checked(
    cli: Cli, town_map: Path
) -> None:
    def backwards(name: str) -> str:
        return name[::-1]

    with shardkit.connect(town_map) as kit:
        kit.address_book(component="unique", parts=2, fold=backwards).join("elves", "Arwen")
    result = cli("doctor", "--check", "unique", "-c", town_map, code=0)
    why = "its names are compared by the application's backwards"
    assert f"unique/{{members}} was not checked: {why}" in result.lines
    assert result.lines[-1] == "checked 0 structures: no damage"


def test_a_backup_and_an_upgrade_of_all_name_the_component_that_is_broken(
    cli: Cli, broken_url: str, tmp_path: Path
) -> None:
    said = cli("backup", tmp_path / "taken", "-c", broken_url).error()
    assert said.startswith("component 'bad' cannot be backed up: config:redis:bad: is not JSON")
    assert not (tmp_path / "taken").exists()
    assert cli("upgrade", "-c", broken_url).error().startswith("config:redis:bad: is not JSON")


def test_a_command_that_a_server_refuses_is_an_error_for_programs(cli: Cli, town_map: Path) -> None:
    result = cli("exec", "--on", "sessions", "--json", "-c", town_map, "--", "GET", code=1)
    found = json.loads(result.out)
    assert list(found) == ["sessions"]
    assert "wrong number of arguments" in found["sessions"]["error"]


def test_retire_reports_the_servers_that_could_not_be_asked(
    cli: Cli, town_url: str, half_dead_map: Path
) -> None:
    cli("config", "push", half_dead_map, "-c", town_url, "--no-check", code=0)
    result = cli("retire", "half", "-c", town_url)
    assert result.code == 0, result
    [line] = [line for line in result.lines if "was not asked" in line]
    assert "127.0.0.1:1 was not asked who uses it: " in line


def test_structures_are_read_where_there_is_no_config_server(
    cli: Cli, town_map: Path, tmp_path: Path
) -> None:
    described = yaml.safe_load(town_map.read_text())
    del described["config_server"]
    alone = tmp_path / "alone.yaml"
    alone.write_text(yaml.safe_dump(described))
    with shardkit.connect(alone) as kit:
        kit.set("ids", component="unique", total=100).sadd("a")
    found = cli.json("check", "--structures", "unique", "-c", alone)
    assert found["structures"] == 1
