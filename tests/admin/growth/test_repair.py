"""Fences and records rebuild each other, and nothing stays closed, whatever server was lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from arranged import client_of
from faces import eventually
from growth_helpers import (
    PATIENT,
    Fleet,
    follow,
    kill_small_move,
    replication,
    restart_empty,
    small,
    still_there,
)

import shardkit
from shardkit import ShardMap
from shardkit.admin import push
from shardkit.admin.growth import (
    abort_move,
    apply_fences,
    end_change,
    fail_over,
    moves,
    open_database,
    repair_changes,
    resume_move,
    reverse_move,
    start_move,
    start_split,
)
from shardkit.errors import GrowthError, PushRefusedError

CHANGES_KEY = "config:changes"

USERS = "users"


def split(fleet: Fleet, shards: int = 4) -> Any:
    return start_split(fleet.config, USERS, shards=shards, over=[fleet.name(1)], hold=PATIENT)


def lose_the_config_server(fleet: Fleet) -> None:
    """Lose all entries and records, and push the map of before."""
    before = fleet.config.get("config:epoch")
    fleet.config.flushall()
    shards = [fleet.at(0, db=db) for db in (1, 2)]
    said = r"config:redis:users:0 .* is closed by a move to .*; shardkit changes repair, or push wi"
    with pytest.raises(PushRefusedError, match=said):
        fleet.describe({USERS: {"shards": shards}})
    fleet.describe({USERS: {"shards": shards}}, force=[USERS], above=int(before or 0) + 5)


@pytest.mark.parametrize(
    ("moment", "does"),
    [
        ("push", "resume"),
        ("admit writers", "resume"),
        ("take over", "resume"),
        ("", "follow"),
    ],
)
def test_a_split_goes_on_after_the_config_server_was_lost(
    fleet: Fleet, moment: str, does: str
) -> None:
    kill_small_move(fleet, moment, of="split", shards=4)
    lose_the_config_server(fleet)
    planned = repair_changes(fleet.config, dry_run=True)
    assert {each.action for each in planned} == {does}
    assert fleet.config.hlen(CHANGES_KEY) == 0
    assert repair_changes(fleet.config) == planned
    [found] = moves(fleet.config)
    assert (found.name, found.phase, len(found.targets)) == (USERS, "done", 4)
    assert still_there(fleet)
    assert {each.action for each in repair_changes(fleet.config)} <= {"left"}


@pytest.mark.parametrize("moment", ["server: push", "server: certify", ""])
@pytest.mark.parametrize("lost", [True, False], ids=["config server lost", "record there"])
def test_a_move_of_a_server_goes_on(fleet: Fleet, moment: str, lost: bool) -> None:
    kill_small_move(fleet, moment, of="server", hold=PATIENT)
    if lost:
        shards = [fleet.at(0, db=db) for db in (1, 2)]
        fleet.config.flushall()
        fleet.describe({USERS: {"shards": shards}}, force=[USERS])
    wanted = ["follow"] if lost else ["resume"] if moment else []
    planned = repair_changes(fleet.config, dry_run=True)
    assert [each.action for each in planned] == wanted
    assert repair_changes(fleet.config) == planned
    assert fleet.masters() == [fleet.name(1)] * 2
    assert still_there(fleet)
    with shardkit.connect(fleet.url) as kit:
        assert kit.key_sharded(USERS)["k1"].set("k1", 1)
    assert repair_changes(fleet.config) == []


@pytest.mark.long(6)
@pytest.mark.parametrize("work", ["shards", "split", "server"])
@pytest.mark.parametrize(
    "moment", ["cop", "comparing", "holding", "pushing", "emptying", "waiting"]
)
def test_a_record_and_entries_that_are_older_than_the_servers_follow_them(
    fleet: Fleet, work: str, moment: str
) -> None:
    small(fleet)
    snapshot: dict[Any, Any] = {}

    def note(said: str) -> None:
        if said.startswith(moment):
            keys = fleet.config.keys("config:[^g]*")  # without the lease
            snapshot.update({key: fleet.config.dump(key) for key in keys})

    if work == "split":
        options: Any = {"over": [fleet.name(1)], "hold": PATIENT, "progress": note}
        start_split(fleet.config, USERS, shards=4, **options)
    else:
        fleet.move(work == "shards", progress=note)
    if not snapshot:
        return  # it has no such step
    fleet.restore(snapshot)
    repair_changes(fleet.config)
    assert [each.phase for each in moves(fleet.config)] == ["done"]
    assert still_there(fleet)
    with shardkit.connect(fleet.url) as kit:
        assert kit.key_sharded(USERS)["k1"].set("k1", 1)
    assert {each.action for each in repair_changes(fleet.config)} <= {"left"}


@pytest.mark.parametrize("records", [True, False], ids=["records there", "all lost"])
def test_a_map_from_before_two_moves_follows_both(fleet: Fleet, records: bool) -> None:
    small(fleet)
    snapshot = fleet.snapshot()
    fleet.move_shard()
    start_move(fleet.config, ["users:1"], fleet.name(2), hold=PATIENT)
    if records:
        snapshot[CHANGES_KEY] = fleet.config.dump(CHANGES_KEY)
    fleet.restore(snapshot)
    assert {each.action for each in repair_changes(fleet.config)} == {"follow"}
    fleet.run("move", "status")
    assert "done" in fleet.run("move", "verify", "users:1").output
    assert fleet.masters() == [fleet.name(0), fleet.name(2)]
    assert still_there(fleet)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize(
    ("moment", "side", "text"),
    [("hold writers", 0, "{}"), ("push", 0, "nonsense"), ("push", 1, "null")],
)
def test_a_fence_that_somebody_has_overwritten_closes_nothing_for_ever(
    fleet: Fleet, moment: str, side: int, text: str, host: str
) -> None:
    kill_small_move(fleet, moment)
    for key in (f"config:redis:{USERS}:{n}" for n in range(2)):
        named = json.loads(fleet.config.get(key))
        fleet.config.set(key, json.dumps({**named, "host": host}))
    client_of(fleet.servers[side], db=2).set("config:fence", text)
    assert "unknown" not in {each.action for each in repair_changes(fleet.config)}
    assert resume_move(fleet.config, "users:1", hold=PATIENT).phase == "done"
    assert still_there(fleet)
    with shardkit.connect(fleet.url) as kit:
        assert kit.key_sharded(USERS)["k1"].set("k1", 1)


def test_a_replica_whose_master_is_another_ones_stays_unknown(fleet: Fleet) -> None:
    small(fleet)
    follow(fleet.servers[0], fleet.servers[1])
    fleet.servers[1].kill()
    [found] = repair_changes(fleet.config)
    assert (found.database, found.action) == (f"{fleet.name(0)}/*", "unknown")
    assert "cannot be asked" in found.reason
    assert fleet.masters() == [fleet.name(0)] * 2


def test_entries_that_follow_are_newer_than_servers_have_witnessed(
    fleet: Fleet, tmp_path: Path
) -> None:
    small(fleet)
    split(fleet)
    fleet.run("config", "pull", "-o", str(tmp_path / "map.yaml"))
    push(fleet.config, ShardMap.load(tmp_path / "map.yaml"), above=40)
    lose_the_config_server(fleet)
    repair_changes(fleet.config)
    assert still_there(fleet), "a client that has just started is not refused"


def test_databases_that_a_split_left_are_listed_and_opened(fleet: Fleet) -> None:
    small(fleet)
    start_split(fleet.config, USERS, shards=4, over=[fleet.name(0), fleet.name(1)], hold=PATIENT)
    left = repair_changes(fleet.config)
    places = [f"{fleet.name(0)}/{db}" for db in (1, 2)]
    assert [(each.database, each.action, each.name) for each in left] == [
        (place, "left", USERS) for place in places
    ]
    shown = fleet.run("changes", "repair", "--dry-run", "--json").stdout
    assert [each["database"] for each in json.loads(shown)] == places
    fleet.run("changes", "open", places[0].replace("127.0.0.1", "localhost"))
    with fleet.servers[0].client(db=2) as old:
        old.set("stray", 1)
        with pytest.raises(GrowthError, match=f"{places[1]} has keys, such as stray; delete"):
            open_database(fleet.config, places[1])
        old.delete("stray")
    assert open_database(fleet.config, places[1]).action == "open"
    with pytest.raises(GrowthError, match=f"{places[1]} is not closed"):
        open_database(fleet.config, places[1])
    assert repair_changes(fleet.config) == [], "they stay open"


@pytest.mark.parametrize("moment", ["push", "keep or empty", "keep up to date"])
def test_a_repair_ends_although_a_move_keeps_its_old_databases(fleet: Fleet, moment: str) -> None:
    kill_small_move(fleet, moment, keep=True)
    repair_changes(fleet.config)
    assert [each.action for each in repair_changes(fleet.config)] == ["kept"]
    with pytest.raises(GrowthError, match="is closed by the move of users:1: shardkit move resum"):
        open_database(fleet.config, f"{fleet.name(0)}/2")
    assert still_there(fleet)
    assert reverse_move(fleet.config, "users:1", hold=PATIENT).phase == "done"
    assert still_there(fleet)


def test_a_lost_fence_is_set_again(fleet: Fleet) -> None:
    small(fleet)
    fleet.move_shard()
    with fleet.servers[0].client(db=2) as old:
        old.flushdb()  # as after a restart without persistence
        [repair] = repair_changes(fleet.config)
        assert (repair.action, repair.name) == ("close", "users:1")
        assert json.loads(old.get("config:fence"))["to"] == fleet.name(1)  # type: ignore[arg-type]


def test_a_replica_needs_no_fence(fleet: Fleet) -> None:
    small(fleet)
    fleet.move_shard()
    fleet.move_server(to=2, hold=PATIENT)
    with fleet.servers[2].client(db=2) as new, fleet.servers[0].client(db=2) as old:
        new.delete("config:fence")
        assert eventually(lambda: not old.exists("config:fence"))
    assert repair_changes(fleet.config) == []


def test_a_change_whose_new_server_is_lost_ends(fleet: Fleet) -> None:
    kill_small_move(fleet, "take over")
    with pytest.raises(GrowthError, match="has lost no server and closes databases; resume it"):
        end_change(fleet.config, "users:1")
    with pytest.raises(GrowthError, match="has lost no server and closes databases; resume it"):
        end_change(fleet.config, "users:1", lost=True)
    fleet.servers[1].kill()
    fleet.run("changes", "end", "users:1", "--lost")
    assert fleet.masters() == [fleet.name(0)] * 2
    assert still_there(fleet)
    with shardkit.connect(fleet.url) as kit:
        kit.key_sharded(USERS)["k1"].set("k1", 1)
    fleet.servers[1].restart()
    assert fleet.move_shard().phase == "done"


def test_a_move_that_was_killed_after_all_was_emptied_ends(fleet: Fleet) -> None:
    kill_small_move(fleet, "verify")
    assert resume_move(fleet.config, "users:1").phase == "done"
    with fleet.servers[1].client(db=2) as client:
        assert not list(client.scan_iter(match="config:fence*"))
    assert still_there(fleet)


def test_a_record_whose_databases_are_open_ends(fleet: Fleet) -> None:
    kill_small_move(fleet, "push")
    for server in fleet.servers[:2]:
        client_of(server, db=2).delete("config:fence")
    with pytest.raises(GrowthError, match=r"out of date; find .*: shardkit changes end users:1"):
        resume_move(fleet.config, "users:1")
    assert end_change(fleet.config, "users:1").phase == "aborted"
    assert still_there(fleet)


def test_changes_are_listed(fleet: Fleet) -> None:
    assert "nothing has changed" in fleet.run("changes").output
    small(fleet)
    fleet.move_shard()
    assert "users:1" in fleet.run("changes").output
    [listed] = json.loads(fleet.run("changes", "--json").stdout)
    assert (listed["kind"], listed["phase"], listed["is_open"]) == ("move", "done", False)
    assert "no servers" not in fleet.run("changes", "repair").output


@pytest.mark.parametrize("work", [resume_move, abort_move], ids=["resumed", "aborted"])
@pytest.mark.parametrize("moment", ["caught up", "push"])
def test_a_promoted_replica_takes_the_place_of_its_master(
    fleet: Fleet, work: Any, moment: str
) -> None:
    small(fleet)
    fleet.replicated(2)
    fleet.kill_move(moment)
    assert client_of(fleet.servers[0]).wait(1, 5000)
    fleet.servers[0].kill()
    fail_over(fleet.config, fleet.name(0))
    if (work, moment) == (abort_move, "push"):
        with pytest.raises(GrowthError, match=f"{fleet.name(1)} has taken over; resume it, and th"):
            abort_move(fleet.config, "users:1")
        return
    phase = work(fleet.config, "users:1").phase
    assert phase == ("done" if work is resume_move else "aborted")
    assert fleet.masters() == [fleet.name(2), fleet.name(1 if work is resume_move else 2)]
    assert still_there(fleet)
    assert start_split(fleet.config, "users", shards=3, hold=PATIENT).phase == "done"
    assert still_there(fleet)


def test_a_source_that_was_promoted_before_it_was_closed_is_copied_again(fleet: Fleet) -> None:
    small(fleet)
    fleet.replicated(2)
    fleet.kill_move("push")
    with fleet.servers[2].client(db=2) as replica:
        replica.execute_command("REPLICAOF", "NO", "ONE")
        replica.delete("config:fence")  # as if it had not arrived
    fleet.servers[0].kill()
    fail_over(fleet.config, fleet.name(0), fleet.name(2), force=True)
    with shardkit.connect(fleet.url) as kit:
        client: Any = kit.client("users", 1)
        client.set("new", 1)
        assert resume_move(fleet.config, "users:1", hold=PATIENT).phase == "done"
        assert client.get("new") == b"1"
    assert still_there(fleet)


@pytest.mark.parametrize("followed", [False, True])
@pytest.mark.parametrize("moment", ["server: push entries", "server: wait until left"])
def test_a_new_server_that_comes_back_empty_does_not_replace_the_old_one(
    fleet: Fleet, moment: str, followed: bool
) -> None:
    kill_small_move(fleet, moment, of="server")
    old, new = fleet.servers[:2]
    if not followed:
        client_of(old).config_set("masterauth", "wrong")  # it cannot follow in the meantime
    restart_empty(new)
    if followed:
        with old.client() as client:
            assert eventually(lambda: not client.exists("config:fence{}:copied"), 30)
        said = "has come back without its data, and .* has followed it; restore a backup"
    else:
        said = f"{fleet.name(0)} takes writes again; empty it .*and move again"
    with pytest.raises(GrowthError, match=said):
        resume_move(fleet.config, fleet.name(0))
    assert [each.phase for each in moves(fleet.config)] == ["done" if followed else "aborted"]
    if not followed:
        assert still_there(fleet)
        assert fleet.masters() == [fleet.name(0)] * 2


@pytest.mark.long(4)
@pytest.mark.parametrize("since", ["done", "restarted", "flushed"])
@pytest.mark.parametrize("moment", ["hand over", "server: push entries", "server: wait until left"])
def test_data_without_the_mark_of_its_move_is_not_lost(
    fleet: Fleet, moment: str, since: str
) -> None:
    kill_small_move(fleet, moment, of="server")
    snapshot = fleet.snapshot()
    with fleet.servers[1].client() as new:
        if since == "flushed" and moment != "hand over":
            new.flushall()
        else:
            assert resume_move(fleet.config, fleet.name(0)).phase == "done"
            assert not new.exists("config:fence{}:copied")
        if since == "restarted":
            new.save()
            fleet.servers[1].kill()
            fleet.servers[1].restart()
        fleet.restore(snapshot)  # the record is older than the servers
        for _ in range(2):
            assert resume_move(fleet.config, fleet.name(0)).phase == "done"
    assert fleet.masters() == [fleet.name(1)] * 2
    assert still_there(fleet) or since == "flushed"


def test_an_abort_removes_the_mark_of_the_move(fleet: Fleet) -> None:
    kill_small_move(fleet, "hand over", of="server")
    with fleet.servers[0].client() as old:
        assert old.exists("config:fence{}:copied")
        abort_move(fleet.config, fleet.name(0))
        assert not old.exists("config:fence{}:copied")
    assert still_there(fleet)


def test_an_abort_does_not_need_a_dead_target(fleet: Fleet) -> None:
    small(fleet)
    for of, moment in (("shard", "caught up"), ("server", "take writes alone")):
        name = fleet.kill_move(moment, of=of)
        fleet.servers[1].kill()
        assert abort_move(fleet.config, name).phase == "aborted"
        assert still_there(fleet)
        fleet.servers[1].restart()


def test_an_abort_does_not_empty_the_only_copy(fleet: Fleet) -> None:
    kill_small_move(fleet, "take writes alone", of="server")
    fleet.servers[0].kill()
    said = f"{fleet.name(0)} does not have the data .*, so {fleet.name(1)} keeps its copy; start"
    with pytest.raises(GrowthError, match=said):
        abort_move(fleet.config, fleet.name(0))
    assert replication(fleet.servers[1])["role"] == "slave"
    assert client_of(fleet.servers[1], db=1).dbsize()


def test_an_abort_without_the_source_leaves_what_was_copied(fleet: Fleet) -> None:
    kill_small_move(fleet, "caught up")
    with fleet.servers[1].client(db=2) as target:
        copied = target.dbsize()
        fleet.servers[0].kill()
        assert abort_move(fleet.config, "users:1").phase == "aborted"
        assert target.dbsize() == copied
    assert [each.phase for each in moves(fleet.config)] == ["aborted"]


@pytest.mark.parametrize("moment", ["server: push", "server: certify"])
def test_the_move_of_a_server_that_is_gone_is_resumed(fleet: Fleet, moment: str) -> None:
    kill_small_move(fleet, moment, of="server")
    fleet.servers[0].kill()
    assert resume_move(fleet.config, fleet.name(0)).phase == "done"
    assert fleet.masters() == [fleet.name(1)] * 2
    assert still_there(fleet)


@pytest.mark.parametrize("moment", ["server: push", "server: certify"])
@pytest.mark.parametrize("command", ["changes end", "failover"])
def test_the_old_server_takes_the_place_of_a_new_one_that_is_gone(
    fleet: Fleet, moment: str, command: str
) -> None:
    kill_small_move(fleet, moment, of="server")
    with pytest.raises(GrowthError, match="has lost no server"):
        end_change(fleet.config, fleet.name(0), lost=True)
    fleet.servers[1].kill()
    if command == "changes end":
        fleet.run("changes", "end", fleet.name(0), "--lost")
    elif moment == "server: push":
        with pytest.raises(GrowthError, match=r"which does not take writes; .* --force has"):
            fail_over(fleet.config, fleet.name(0))
        fail_over(fleet.config, fleet.name(0), force=True)
    else:
        fail_over(fleet.config, fleet.name(1), to=fleet.name(0), force=True)
    assert end_change(fleet.config, fleet.name(0)).phase == "aborted"
    assert fleet.masters() == [fleet.name(0)] * 2
    assert still_there(fleet)
    with shardkit.connect(fleet.url) as kit:
        assert kit.key_sharded("users")["k1"].set("k1", 1)
    fleet.servers[1].restart()
    [fence] = apply_fences(fleet.config, 20)
    assert fence.applied, "it comes back as a replica"
