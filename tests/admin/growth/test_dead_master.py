"""What an operator sees of a server that died at night, before and after the failover."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from faces import eventually
from growth_helpers import Fleet

import shardkit
from shardkit.cli.app import app
from shardkit.config.entry import Entry
from shardkit.config.store import pull
from shardkit.dashboard.fleet import FleetWatch
from shardkit.errors import ShardErrors, ShardUnavailable


@pytest.fixture
def map_file(fleet: Fleet, tmp_path: Path) -> Path:
    """The map of a fleet with a replica, which names its config server."""
    fleet.replicated(1)
    path = tmp_path / "map.yaml"
    server = Entry({"host": "127.0.0.1", "port": fleet.config_server.port})
    path.write_text(pull(fleet.config, server).to_yaml(), encoding="utf-8")
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
    assert "wrote" in run("config", "pull", "-o", str(map_file), at=map_file)
    assert "older" not in run("check", at=map_file) + run("status", at=map_file)


def test_a_dead_replica_is_a_warning_and_is_called_a_replica(fleet: Fleet, map_file: Path) -> None:
    fleet.servers[1].kill()
    done = CliRunner().invoke(app, ["check", "-c", str(map_file)])
    assert done.exit_code == 0, done.output
    assert "warning: is a replica that cannot be reached: connection refused" in done.output
    assert f"shardkit replicas detach {fleet.name(1)}" in done.output
    assert run("status", "--check", at=map_file).startswith("OK")


def test_doctor_names_each_shard_that_it_could_not_read(fleet: Fleet, map_file: Path) -> None:
    fleet.servers[0].kill()
    shown = run("doctor", at=map_file)
    assert "users:0 cannot be scanned: users:0 " in shown
    assert "users:1 cannot be scanned: " in shown
    assert "users:1 cannot be scanned: users:0" not in shown
    unread = run("check", "--structures", at=map_file)
    assert "users:1" in unread
    assert "warning: was not read: " in unread
