"""What an operator sees of a server that died at night, before and after the failover."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from faces import eventually
from growth_helpers import Fleet

import shardkit
from shardkit import Entry
from shardkit.cli.app import app
from shardkit.dashboard import FleetWatch
from shardkit.errors import ShardErrors, ShardUnavailable


@pytest.fixture
def map_file(fleet: Fleet, tmp_path: Path) -> Path:
    """The map of a fleet with a replica, which names its config server."""
    fleet.replicated(1)
    path = tmp_path / "map.yaml"
    fleet.run("config", "pull", "-o", str(path))
    return path


def run(*words: str, at: Path) -> str:
    return CliRunner().invoke(app, [*words, "-c", str(at)]).output


def test_everything_names_the_command_that_replaces_a_dead_master_and_what_it_loses(
    fleet: Fleet, map_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    command = f"shardkit failover {fleet.name(0)}"
    with shardkit.connect(fleet.url) as kit:
        members, router = kit.hash("h", component="users"), kit.key_sharded("users")
        members.hset("a", 1)
        fleet.servers[0].kill()
        with caplog.at_level(logging.WARNING, "shardkit"):
            with pytest.raises(ShardErrors) as failed:
                members.hset("a", 2)
            with pytest.raises(ShardUnavailable) as raised:
                router["k"].set("k", 1)
        assert f"{command}, which loses" in raised.value.remedy
        assert f"{command}, which loses" in str(failed.value)
        assert f"{command}, which loses" in caplog.text
    for words in (["status"], ["status", "--check"], ["check"]):
        shown = run(*words, at=map_file)
        assert f"{command}: {fleet.name(1)} takes over, and what it had not received" in shown
    config = Entry({"host": "127.0.0.1", "port": fleet.config_server.port})
    with (
        shardkit.connect(fleet.url) as kit,
        closing(FleetWatch(kit, config, interval=0.2)) as watch,
    ):
        assert eventually(lambda: any(command in each["remedy"] for each in watch.problems), 20)


def test_a_client_and_the_dashboard_of_an_older_map_say_so_until_it_is_pulled(
    fleet: Fleet, map_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pull_it = f"{map_file} is older than the entries: users changed at epoch"
    config = Entry({"host": "127.0.0.1", "port": fleet.config_server.port})
    with (
        shardkit.connect(map_file) as kit,
        caplog.at_level(logging.WARNING, "shardkit"),
        closing(FleetWatch(kit, config, interval=0.2)) as watch,
    ):
        router = kit.key_sharded("users")
        router["k"].set("k", 1)
        fleet.servers[0].kill()
        with pytest.raises(ShardUnavailable, match="cannot be reached") as raised:
            router["k"].set("k", 1)
        assert "older" not in raised.value.remedy
        run("failover", fleet.name(0), at=map_file)
        assert eventually(lambda: pull_it in caplog.text, 20)
        with pytest.raises(ShardUnavailable, match="config pull") as raised:
            router["k"].set("k", 1)
        assert pull_it in raised.value.remedy
        watch.check()
        assert any("is older than the entries" in each["text"] for each in watch.problems)
        run("config", "pull", "-o", str(map_file), at=map_file)
        assert eventually(lambda: not failure(lambda: router["k"].set("k", 2)), 20)
        watch.check()
        assert not any("older" in each["text"] for each in watch.problems)


def failure(call: Callable[[], object]) -> Exception | None:
    """Return why a call failed."""
    try:
        call()
    except ShardUnavailable as error:
        return error
    return None


def test_a_replica_that_lost_its_link_long_ago_takes_over_by_the_command_that_is_shown(
    fleet: Fleet, map_file: Path, lower: Callable[..., None]
) -> None:
    lower(down_link=0)
    fleet.servers[0].kill()
    command = f"failover {fleet.name(0)}"
    forced = f"shardkit {command} --force: {fleet.name(1)} takes over, and what it had not"
    assert eventually(lambda: forced in run("status", at=map_file), 20)
    refused = run(*command.split(), at=map_file)
    assert f"{fleet.name(0)}: {fleet.name(1)} has had no link to it for" in refused
    assert f"{fleet.name(1)} is the master" in run(*command.split(), "--force", at=map_file)


def test_a_dead_replica_is_a_warning_and_is_called_a_replica(fleet: Fleet, map_file: Path) -> None:
    fleet.servers[1].kill()
    done = CliRunner().invoke(app, ["check", "-c", str(map_file)])
    assert done.exit_code == 0, done.output
    assert "warning: is a replica that cannot be reached: connection refused" in done.output
    assert f"shardkit replicas detach {fleet.name(1)}" in done.output
    assert run("status", "--check", at=map_file).startswith("OK")


def test_after_a_failover_all_say_that_the_map_file_is_older_until_it_is_pulled(
    fleet: Fleet, map_file: Path
) -> None:
    fleet.servers[0].kill()
    pull_it = f"shardkit config pull -o {map_file}"
    assert pull_it in run("failover", fleet.name(0), at=map_file)
    for word in ("status", "check"):
        shown = run(word, at=map_file)
        assert "is older than the entries: users changed at epoch" in shown
        assert pull_it in shown
        assert "is the master instead" in shown
    fleet.servers[0].restart()
    run("failover", "--guard", "20", at=map_file)
    assert f"name its master, {fleet.name(1)} (after a failover" in run("status", at=map_file)
    assert "wrote" in run("config", "pull", "-o", str(map_file), at=map_file)
    assert "older" not in run("check", at=map_file) + run("status", at=map_file)


def test_the_replica_of_a_dead_master_is_a_warning_that_leads_to_the_master(
    fleet: Fleet, map_file: Path
) -> None:
    fleet.servers[0].kill()
    assert eventually(lambda: "has lost its master" in run("check", at=map_file), 20)
    shown = " ".join(run("check", at=map_file).split())
    assert f"warning: has lost its master see its master, {fleet.name(0)}" in shown
    assert "1 problem, 1 warning" in shown


def test_a_push_says_nothing_of_replicas_that_it_does_not_ask(fleet: Fleet, map_file: Path) -> None:
    fleet.servers[0].kill()
    described = yaml.safe_load(map_file.read_text())
    described["components"]["users"]["shards"][0]["socket_timeout"] = 4
    map_file.write_text(yaml.safe_dump(described))
    done = CliRunner().invoke(app, ["config", "push", str(map_file)])
    assert "start it, or correct the entry, or push with --force users" in done.output


def test_a_refused_failover_is_recorded_as_failed(fleet: Fleet, map_file: Path) -> None:
    assert "error" in run("failover", fleet.name(1), at=map_file)
    [line] = [line for line in run("changes", at=map_file).splitlines() if "failover" in line]
    assert "failed" in line
