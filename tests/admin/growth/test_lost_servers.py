"""Changes whose servers die for good: a promoted replica takes their place, or the change ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from faces import eventually
from growth_helpers import PATIENT, Fleet, replication, small, still_there
from moments import killed_at

import shardkit
from shardkit.admin.growth import (
    abort_move,
    apply_fences,
    end_change,
    fail_over,
    moves,
    resume_move,
    start_split,
)
from shardkit.errors import GrowthError


@pytest.mark.parametrize("work", [resume_move, abort_move], ids=["resumed", "aborted"])
@pytest.mark.parametrize("moment", ["caught up", "push"])
def test_a_promoted_replica_takes_the_place_of_its_master(
    fleet: Fleet, work: Any, moment: str
) -> None:
    small(fleet)
    fleet.replicated(2)
    with killed_at(moment):
        fleet.move_shard()
    with fleet.servers[0].client() as master:
        assert master.wait(1, 5000)
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
    with killed_at("push"):
        fleet.move_shard()
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
    small(fleet)
    with killed_at(moment):
        fleet.move_server()
    old, new = fleet.servers[:2]
    if not followed:
        with old.client() as client:
            client.config_set("masterauth", "wrong")  # it cannot follow in the meantime
    new.kill()
    for snapshot in Path(new.directory).glob("*.rdb"):
        snapshot.unlink()
    new.restart()
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
    small(fleet)
    with killed_at(moment):
        fleet.move_server()
    snapshot = {key: fleet.config.dump(key) for key in fleet.config.keys("config:*")}
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
        fleet.config.flushall()  # the record is older than the servers
        for key, value in snapshot.items():
            fleet.config.restore(key, 0, value or b"")
        for _ in range(2):
            assert resume_move(fleet.config, fleet.name(0)).phase == "done"
    assert fleet.masters() == [fleet.name(1)] * 2
    assert still_there(fleet) or since == "flushed"


def test_an_abort_removes_the_mark_of_the_move(fleet: Fleet) -> None:
    small(fleet)
    with killed_at("hand over"):
        fleet.move_server()
    with fleet.servers[0].client() as old:
        assert old.exists("config:fence{}:copied")
        abort_move(fleet.config, fleet.name(0))
        assert not old.exists("config:fence{}:copied")
    assert still_there(fleet)


def test_an_abort_does_not_need_a_dead_target(fleet: Fleet) -> None:
    small(fleet)
    for of_shards, moment in ((True, "caught up"), (False, "take writes alone")):
        with killed_at(moment):
            fleet.move(of_shards)
        fleet.servers[1].kill()
        name = "users:1" if of_shards else fleet.name(0)
        assert abort_move(fleet.config, name).phase == "aborted"
        assert still_there(fleet)
        fleet.servers[1].restart()


def test_an_abort_does_not_empty_the_only_copy(fleet: Fleet) -> None:
    small(fleet)
    with killed_at("take writes alone"):
        fleet.move_server()
    fleet.servers[0].kill()
    said = f"{fleet.name(0)} does not have the data .*, so {fleet.name(1)} keeps its copy; start"
    with pytest.raises(GrowthError, match=said):
        abort_move(fleet.config, fleet.name(0))
    assert replication(fleet.servers[1])["role"] == "slave"
    with fleet.servers[1].client(db=1) as client:
        assert client.dbsize()


def test_an_abort_without_the_source_leaves_what_was_copied(fleet: Fleet) -> None:
    small(fleet)
    with killed_at("caught up"):
        fleet.move_shard()
    with fleet.servers[1].client(db=2) as target:
        copied = target.dbsize()
        fleet.servers[0].kill()
        assert abort_move(fleet.config, "users:1").phase == "aborted"
        assert target.dbsize() == copied
    assert [each.phase for each in moves(fleet.config)] == ["aborted"]


@pytest.mark.parametrize("moment", ["server: push", "server: certify"])
def test_the_move_of_a_server_that_is_gone_is_resumed(fleet: Fleet, moment: str) -> None:
    small(fleet)
    with killed_at(moment):
        fleet.move_server()
    fleet.servers[0].kill()
    assert resume_move(fleet.config, fleet.name(0)).phase == "done"
    assert fleet.masters() == [fleet.name(1)] * 2
    assert still_there(fleet)


@pytest.mark.parametrize("moment", ["server: push", "server: certify"])
@pytest.mark.parametrize("command", ["changes end", "failover"])
def test_the_old_server_takes_the_place_of_a_new_one_that_is_gone(
    fleet: Fleet, moment: str, command: str
) -> None:
    small(fleet)
    with killed_at(moment):
        fleet.move_server()
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
