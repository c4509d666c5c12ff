"""A server with several names in the map is moved and failed over as one server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from growth_helpers import FAST, Fleet, follow
from moments import killed_at

import shardkit
from shardkit.admin.growth import (
    abort_move,
    fail_over,
    moves,
    plan_move,
    start_move,
)
from shardkit.errors import ConfigError, GrowthError
from shardkit.local import LocalServer

HOSTS = {"a": "127.0.0.1", "b": "localhost"}


def two_names(fleet: Fleet, numbers: dict[str, int], **more: Any) -> None:
    """Push two components whose entries have two names of the first server."""
    entries = {name: fleet.at(0, db=db, **more) for name, db in numbers.items()}
    fleet.describe({name: {"entry": {**entries[name], "host": HOSTS[name]}} for name in entries})


def addresses(fleet: Fleet) -> dict[str, str]:
    with shardkit.connect(fleet.url) as kit:
        return {name: kit.component(name).entries()[0][1].address for name in HOSTS}


def write_and_read(fleet: Fleet, value: str) -> list[str | None]:
    """Return what both components had, and write to both."""
    with shardkit.connect(fleet.url) as kit:
        found = [kit.client(name).set("k", value, get=True) for name in HOSTS]
    return [None if each is None else each.decode() for each in found]


def test_move_server_moves_entries_with_every_name_of_the_server(fleet: Fleet) -> None:
    two_names(fleet, {"a": 1, "b": 2})
    assert write_and_read(fleet, "old") == [None, None]
    assert plan_move(fleet.config, fleet.name(0), fleet.name(1)).shards == ("a", "b")
    assert fleet.move_server().phase == "done"
    assert addresses(fleet) == {"a": f"{fleet.name(1)}/1", "b": f"{fleet.name(1)}/2"}
    assert write_and_read(fleet, "new") == ["old", "old"]


def test_move_shards_moves_a_database_with_every_name_of_its_server(fleet: Fleet) -> None:
    two_names(fleet, {"a": 1, "b": 1})
    assert write_and_read(fleet, "old") == [None, "old"]
    with pytest.raises(GrowthError, match="b is in the same database: specify it as well"):
        start_move(fleet.config, ["a"], fleet.name(1))
    plan = plan_move(fleet.config, ["a"], f"localhost:{fleet.servers[0].port}")
    assert any("are one server" in each for each in plan.problems)
    assert start_move(fleet.config, ["a", "b"], fleet.name(1), hold=3).phase == "done"
    assert addresses(fleet) == {"a": f"{fleet.name(1)}/1", "b": f"{fleet.name(1)}/1"}
    assert write_and_read(fleet, "new") == ["old", "new"]


@pytest.mark.parametrize("crashed", [False, True])
def test_failover_repoints_every_name_of_the_master(fleet: Fleet, crashed: bool) -> None:
    follow(fleet.servers[1], fleet.servers[0])
    two_names(fleet, {"a": 1, "b": 2}, replicas=[fleet.at(1)])
    if crashed:
        fleet.servers[0].stop(0)
    done = fail_over(fleet.config, "a")
    assert done.shards == ("a", "b")
    assert addresses(fleet) == {"a": f"{fleet.name(1)}/1", "b": f"{fleet.name(1)}/2"}
    assert write_and_read(fleet, "new") == [None, None]


def test_an_entry_with_a_unix_socket_stops_a_move(fleet: Fleet, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with LocalServer(config={**FAST, "unixsocket": path}) as server:
        there = {"host": "127.0.0.1", "port": server.port, "db": 1}
        entries = {"a": there, "b": {"unix_socket_path": path, "db": 2}}
        described = {name: {"entry": entry} for name, entry in entries.items()}
        fleet.describe(described)
        said = "config:redis:b leads to .* by a socket, Sentinels or a reference"
        with pytest.raises(GrowthError, match=said):
            start_move(fleet.config, f"127.0.0.1:{server.port}", fleet.name(1))
        with pytest.raises(GrowthError, match=said):
            fail_over(fleet.config, "a")
        assert plan_move(fleet.config, ["a"], fleet.name(1)).problems == ()
        described["b"]["entry"]["db"] = 1
        fleet.describe(described, force=["b"])
        with pytest.raises(GrowthError, match=said):
            start_move(fleet.config, ["a"], fleet.name(1))


def test_a_move_is_found_by_any_name_of_its_server(fleet: Fleet) -> None:
    two_names(fleet, {"a": 1, "b": 2})
    names = [f"{host}:{fleet.servers[0].port}" for host in HOSTS.values()]
    with killed_at("hand over"):
        start_move(fleet.config, names[0], fleet.name(1))
    said = f"^{names[0]} is already being moved to .*; resume it: shardkit move resume {names[0]}"
    for to in (1, 2):
        with pytest.raises(GrowthError, match=said):
            start_move(fleet.config, names[1], fleet.name(to))
    assert abort_move(fleet.config, names[1]).phase == "aborted"
    assert start_move(fleet.config, names[1], fleet.name(1)).phase == "done"
    assert [(each.name, each.phase) for each in moves(fleet.config)] == [
        (names[0], "aborted"),
        (names[1], "done"),
    ]
    for unknown in fleet.name(2), "a", "a:1":
        with pytest.raises(ConfigError, match=f"^{unknown} has no move; see: shardkit move status"):
            abort_move(fleet.config, unknown)
