"""How servers keep their data: what is shown, set and awaited."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from arranged import meanwhile
from click.testing import CliRunner

from shardkit.admin import (
    PersistenceState,
    apply_profile,
    estimate_disk_rate,
    measure_disk_rate,
    persistence_of,
    rewrite_aof,
    save_snapshot,
)
from shardkit.cli.app import app
from shardkit.errors import InvalidArgumentError, PersistenceError
from shardkit.local import LocalServer


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with LocalServer() as running:
        yield running


def test_profiles_change_settings_and_say_what_changed(server: LocalServer) -> None:
    with server.client() as client:
        apply_profile(client, "none")
        assert persistence_of(client).problems == ["nothing is kept: a restart loses everything"]
        changed = apply_profile(client, "snapshot")
        assert changed["save"] == ("", "60 1000")
        assert persistence_of(client).save_points == ((60, 1000),)
        assert apply_profile(client, "everysec")["appendonly"] == ("no", "yes")
        assert apply_profile(client, "everysec") == {}
        found = persistence_of(client)
        assert found.aof
        assert found.fsync == "everysec"
        assert found.problems == []
        client.config_set("stop-writes-on-bgsave-error", "no")
        assert any("writes go on" in problem for problem in persistence_of(client).problems)
        with pytest.raises(InvalidArgumentError, match="everysec"):
            apply_profile(client, "often")
        apply_profile(client, "none")  # a server that writes its first AOF does not stop


def test_a_snapshot_is_awaited_and_one_that_fails_is_told(server: LocalServer) -> None:
    with server.client() as client:
        client.set("k", 1)
        save_snapshot(client, timeout=30)
        assert persistence_of(client).changes == 0
        with pytest.raises(PersistenceError, match="has no AOF"):
            rewrite_aof(client)
        apply_profile(client, "everysec")
        while persistence_of(client).busy:
            time.sleep(0.05)
        rewrite_aof(client, timeout=30)
        # A directory of the file's name: the snapshot cannot be put in its place.
        name = persistence_of(client).settings["dbfilename"]
        path = Path(persistence_of(client).settings["dir"]) / name
        path.unlink(missing_ok=True)
        path.mkdir()
        with pytest.raises(PersistenceError, match="failed"):
            save_snapshot(client, timeout=30)
        assert "the last snapshot failed" in persistence_of(client).problems


def test_a_snapshot_that_takes_too_long_is_waited_for_no_more(own_server: LocalServer) -> None:
    with own_server.client() as client:
        with pytest.raises(PersistenceError, match="not done within 0 s; it continues"):
            save_snapshot(client, timeout=0)
        assert save_snapshot(client) > 0
        client.config_set("rdb-key-save-delay", 60_000_000)
        client.set("k", 1)
        client.bgsave()
        try:
            with pytest.raises(PersistenceError, match="not done within 0 s; the server saves"):
                save_snapshot(client, timeout=0)
        finally:
            client.config_set("rdb-key-save-delay", 0)


def save(client: redis.Redis) -> None:
    client.bgsave()


def fill_a_replica(client: redis.Redis) -> None:
    client.config_set("repl-diskless-sync-delay", 0)
    connection = client.connection_pool.get_connection()
    connection.send_command("REPLCONF", "capa", "eof")  # filled without a file
    assert connection.read_response() == b"OK"
    connection.send_command("SYNC")
    while not client.info("persistence")["rdb_bgsave_in_progress"]:
        time.sleep(0.01)


def rewrite(client: redis.Redis) -> None:
    client.bgrewriteaof()


@pytest.mark.parametrize("others", [save, fill_a_replica, rewrite])
def test_a_snapshot_has_what_was_written_before_the_call(
    server: LocalServer, others: Callable[[redis.Redis], None]
) -> None:
    with server.client() as client:
        client.mset({f"k{n}": n for n in range(100)})
        client.config_set("rdb-key-save-delay", 5_000)
        others(client)
        client.set("late", 1)
        save_snapshot(client, timeout=30)
        found = persistence_of(client).settings
        assert b"late" in (Path(found["dir"]) / found["dbfilename"]).read_bytes()


def test_a_profile_that_a_restart_loses_is_an_error(server: LocalServer) -> None:
    with (
        server.client() as admin,
        redis.Redis(port=server.port, username="few", password="pw") as client,
    ):
        admin.execute_command(
            "ACL", "SETUSER", "few", "on", ">pw", "~*", "+@all", "-config|rewrite"
        )
        said = "always is in effect only until a restart: .* --appendonly yes --appendfsync always"
        with pytest.raises(PersistenceError, match=said):
            apply_profile(client, "always")
        assert persistence_of(client).fsync == "always"


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({}, []),
        ({"aof": False}, []),
        ({"last_rewrite_ok": False}, ["the last rewrite of the AOF failed"]),
        ({"last_rewrite_ok": False, "aof": False}, []),
        ({"fsync": "no"}, ["the AOF is synced when the system likes (appendfsync no)"]),
        ({"fsync": "no", "aof": False}, []),
        ({"save_points": ()}, []),
        ({"save_points": (), "aof": False}, ["nothing is kept: a restart loses everything"]),
        ({"last_save_ok": False}, ["the last snapshot failed"]),
    ],
)
def test_ways_to_lose_data_silently_are_named(changes: dict[str, Any], problems: list[str]) -> None:
    sound = PersistenceState(((60, 1000),), True, True, "everysec", {}, 0, True, True, 0, False)
    assert replace(sound, **changes).problems == problems


def test_a_server_is_busy_while_it_writes_a_snapshot(server: LocalServer) -> None:
    with server.client() as client:
        client.set("k", 1)
        assert not persistence_of(client).busy
        client.config_set("rdb-key-save-delay", 60_000_000)  # for each key
        client.bgsave()
        try:
            assert persistence_of(client).busy
        finally:
            client.config_set("rdb-key-save-delay", 0)


def test_the_command_shows_every_server(server: LocalServer, tmp_path: Path) -> None:
    shard_map = tmp_path / "map.yaml"
    shard_map.write_text(f"components: {{one: {{entry: {{port: {server.port}}}}}}}", "utf-8")

    def run(*words: str) -> str:
        done = CliRunner().invoke(app, ["persistence", *words, "-c", str(shard_map)])
        assert done.exit_code == 0, done.output
        return done.stdout

    [state] = json.loads(run("show", "--json")).values()
    assert state["last_save_ok"]
    shown = r"^  snapshots: .*AOF.*; [0-9,]+ changes unsaved$"
    assert re.search(shown, run("show"), re.MULTILINE)
    assert re.search(r"^  done in [0-9.]+ s$", run("snapshot"), re.MULTILINE)


def test_a_server_that_cannot_be_asked_is_named_with_the_reason(tmp_path: Path) -> None:
    shard_map = tmp_path / "map.yaml"
    shard_map.write_text("components: {one: {entry: {port: 1}}}", "utf-8")
    done = CliRunner().invoke(app, ["persistence", "show", "-c", str(shard_map)])
    assert done.exit_code == 1
    server, reason = done.output.splitlines()
    assert server.endswith(":1")
    assert "onnect" in reason


EVERYSEC = {"appendonly": "yes", "appendfsync": "everysec", "save": ""}
SNAPSHOT = {"appendonly": "no", "save": "60 1000"}


def test_what_a_disk_has_to_write_is_estimated_from_commands_and_their_size() -> None:
    everysec = estimate_disk_rate(100_000, 1000, EVERYSEC, data=1 << 30)
    assert everysec.append == 100e6
    assert everysec.rewrite == 100e6  # once more each time that it has doubled
    assert everysec.snapshot == 0
    assert everysec.total == 200e6
    snapshots = estimate_disk_rate(100_000, 1000, SNAPSHOT, data=6_000_000)
    assert (snapshots.append, snapshots.snapshot) == (0, 100_000)  # each minute, not more often
    seldom = estimate_disk_rate(10, 1000, SNAPSHOT, data=6_000_000)
    assert seldom.snapshot == 60_000  # a thousand changes take longer than that
    assert estimate_disk_rate(10, 1000, {"appendonly": "no", "save": ""}, data=1).total == 0
    never = {**EVERYSEC, "auto-aof-rewrite-percentage": "0"}
    assert estimate_disk_rate(10, 10, never, data=1).total == 100
    with pytest.raises(InvalidArgumentError, match=r"commands=-1; give a number, 0 to"):
        estimate_disk_rate(-1, 10, {})


def test_written_bytes_are_measured(server: LocalServer) -> None:
    numbers = itertools.count()
    with server.client() as client, server.client() as other:
        apply_profile(client, "always")

        def write() -> None:
            other.set(f"key{next(numbers) % 1000:03}", "v" * 100)

        with meanwhile(write):
            rate = measure_disk_rate(client, seconds=0.2)
            # *3 $3 SET $6 key000 $100 and the value, each line with its end
            assert 130 < rate.size < 150
            assert rate.append == rate.commands * rate.size > 0
            assert measure_disk_rate(client, seconds=0.2, profile="none").total == 0
            client.config_set("appendonly", "no")
            assert 130 < measure_disk_rate(client, seconds=0.2).size < 150
        with pytest.raises(InvalidArgumentError, match="everysec"):
            measure_disk_rate(client, profile="often")
