"""A server with several names in the map is moved and failed over as one server; addresses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from arranged import before_sending
from growth_helpers import FAST, PATIENT, Fleet, follow, small, still_there
from moments import killed_at

import shardkit
from shardkit.admin.growth import (
    abort_move,
    attach_replica,
    fail_over,
    moves,
    plan_move,
    resume_move,
    start_move,
)
from shardkit.errors import ConfigError, GrowthError, InvalidArgumentError, PushRefusedError
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


def entry(fleet: Fleet) -> dict[str, Any]:
    return dict(json.loads(fleet.config.get("config:redis:data")))


@pytest.mark.parametrize("rest", ["", "/4", "/4?socket_timeout=2"])
def test_a_url_keeps_everything_but_its_server(fleet: Fleet, rest: str) -> None:
    fleet.describe(
        {"data": {"entry": {"url": f"redis://{fleet.name(0)}{rest}", "read_from": "replica"}}}
    )
    before = entry(fleet)
    fleet.move_server(hold=PATIENT)
    moved = before["url"].replace(fleet.name(0), fleet.name(1))
    assert entry(fleet) == {**before, "url": moved}


def test_a_replica_that_takes_over_brings_its_zone_and_leaves_the_others_as_they_were(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARE", "127.0.0.1")
    follow(fleet.servers[1], fleet.servers[0])
    others = [
        {"url": f"redis://{fleet.name(2)}", "zone": "north"},
        {"host": "${SPARE}", "port": 1},
    ]
    new = fleet.at(1, zone="east")
    described = fleet.at(0, db=5, zone="west", replicas=[new, *others])
    fleet.describe({"data": {"entry": described}}, check=False)
    fail_over(fleet.config, "data", fleet.name(1), hold=PATIENT)
    former = fleet.at(0, zone="west")
    assert entry(fleet) == fleet.at(1, db=5, zone="east", replicas=[*others, former])
    fleet.servers[1].kill()
    fail_over(fleet.config, "data", fleet.name(0), hold=PATIENT)
    assert entry(fleet) == fleet.at(0, db=5, zone="west", replicas=others)


@pytest.mark.parametrize("text", ["", "a:0", "a:65536", "a:b", "::1", "redis://a:1", "a b", "a/1"])
def test_what_is_no_address_is_refused(fleet: Fleet, text: str) -> None:
    fleet.push(0)
    with pytest.raises(InvalidArgumentError, match=f"^{text!r} is not a server; specify"):
        attach_replica(fleet.config, text, fleet.name(0))


@pytest.mark.parametrize("once", [True, False])
def test_a_mover_repeats_its_push_a_few_times(fleet: Fleet, once: bool) -> None:
    small(fleet)
    pushes = 0

    def push_others() -> None:
        nonlocal pushes
        pushes += 1
        fleet.describe({"others": {"entry": fleet.at(2, db=pushes)}}, check=False)

    def is_push(connection: Any, text: str) -> bool:
        return "MULTI" in text and "config:epoch" in text and "config:redis:users" in text

    with before_sending(is_push, push_others, once=once):
        if once:
            assert fleet.move_shard().phase == "done"
        else:
            with pytest.raises(PushRefusedError, match="other pushes came in between"):
                fleet.move_shard()
    assert pushes == (1 if once else 10)
    assert fleet.config.exists("config:redis:others")
    if not once:
        assert resume_move(fleet.config, "users:1", hold=PATIENT).phase == "done"
    assert fleet.masters() == [fleet.name(0), fleet.name(1)]
    assert still_there(fleet)
