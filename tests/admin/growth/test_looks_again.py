"""What an operator's command looks at again before steps that cannot be undone.

Others may have changed, detached, given up or used it otherwise since.
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from arranged import before_sending, client_of
from faces import PATIENCE, eventually
from growth_helpers import (
    PATIENT,
    Fleet,
    follow,
    kill_small_move,
    on_redis_too,
    replication,
    restart_empty,
    small,
    still_there,
)
from moments import killed_at
from test_stopped_processes import Case

import shardkit
from shardkit.admin import growth
from shardkit.admin.growth import (
    awaiting,
    fail_over,
    moves,
    pending_fences,
    shard_move,
    start_split,
)
from shardkit.admin.growth.relocation import Place
from shardkit.errors import ConfigServerError, GrowthError, InvalidArgumentError
from shardkit.local import LocalCluster

faces = pytest.mark.parametrize("face", ["blocking", "async"])


def call(face: str, name: str, *args: Any, **options: Any) -> Any:
    """Call a function of `shardkit.admin.growth` by one of its faces."""
    if face == "blocking":
        return getattr(growth, name)(*args, **options)
    return asyncio.run(getattr(awaiting, name)(*args, **options))


def keys_in(fleet: Fleet, server: int) -> int:
    """How many keys of the clients' the second shard's database of a server has."""
    with fleet.servers[server].client(db=2) as client:
        return len([key for key in client.scan_iter() if not key.startswith(b"config:")])


@faces
@pytest.mark.parametrize("moment", ["hand over", "take writes alone"])
@pytest.mark.parametrize("is_back", [False, True])
def test_a_move_whose_target_a_failover_promoted_is_done(
    fleet: Fleet, face: str, moment: str, is_back: bool
) -> None:
    kill_small_move(fleet, moment, of="server")
    fleet.servers[0].kill()
    fail_over(fleet.config, fleet.name(0), to=fleet.name(1), force=True)
    if is_back:
        fleet.servers[0].restart()
        said = f"{fleet.name(1)} is not the master of {fleet.name(0)}"
        with pytest.raises(GrowthError, match=said):  # they have different writes
            call(face, "resume_move", fleet.config, fleet.name(0))
        fleet.run("failover", "--guard", "1")
    assert call(face, "resume_move", fleet.config, fleet.name(0)).phase == "done"
    assert fleet.masters() == [fleet.name(1)] * 2
    assert still_there(fleet)


@faces
@pytest.mark.parametrize("end", ["resume_move", "abort_move"])
@pytest.mark.parametrize("crash", [False, True])
def test_a_move_of_a_server_follows_a_replica_that_has_replaced_it(
    fleet: Fleet, face: str, end: str, crash: bool
) -> None:
    small(fleet)
    fleet.replicated(2)
    fleet.kill_move("take writes alone", of="server")
    if crash:
        fleet.servers[0].kill()
    fail_over(fleet.config, fleet.name(0), to=fleet.name(2))
    if crash:
        fleet.servers[0].restart()
        fleet.run("failover", "--guard", "20")
    is_resumed = end == "resume_move"
    phase = call(face, end, fleet.config, fleet.name(0)).phase
    assert phase == ("done" if is_resumed else "aborted")
    assert fleet.masters() == [fleet.name(1 if is_resumed else 2)] * 2
    assert still_there(fleet)
    assert bool(client_of(fleet.servers[1], db=1).dbsize()) is is_resumed, (
        "an abort empties the new server"
    )


@faces
def test_a_move_of_a_server_follows_a_failover_of_the_new_one(fleet: Fleet, face: str) -> None:
    kill_small_move(fleet, "server: certify", of="server")
    follow(fleet.servers[2], fleet.servers[1])
    fail_over(fleet.config, fleet.name(1), to=fleet.name(2))
    assert call(face, "resume_move", fleet.config, fleet.name(0)).phase == "done"
    assert fleet.masters() == [fleet.name(2)] * 2
    assert still_there(fleet)


@faces
@pytest.mark.parametrize("moment", ["server: push", "server: certify"])
def test_a_server_that_entries_name_by_mistake_replaces_none(
    fleet: Fleet, face: str, moment: str
) -> None:
    kill_small_move(fleet, moment, of="server")
    old = [fleet.name(0), fleet.name(1)].index(fleet.masters()[0])
    there, back = ({"users": {"shards": [fleet.at(n, db=db) for db in (1, 2)]}} for n in (2, old))
    fleet.describe(there, force=True)
    with pytest.raises((GrowthError, InvalidArgumentError), match="is not the master of any entry"):
        call(face, "resume_move", fleet.config, fleet.name(0))
    fleet.describe(back, force=True)
    assert call(face, "resume_move", fleet.config, fleet.name(0)).phase == "done"
    assert fleet.masters() == [fleet.name(1)] * 2
    assert still_there(fleet)


@faces
def test_a_source_that_has_come_to_evict_is_not_left(fleet: Fleet, face: str) -> None:
    kill_small_move(fleet, "caught up")
    with fleet.servers[0].client() as client:
        client.config_set("maxmemory", 100_000_000)
        client.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(GrowthError, match=r"so it could lose config:fence.*and resume it"):
            call(face, "resume_move", fleet.config, "users:1")
        client.config_set("maxmemory-policy", "noeviction")
    assert call(face, "resume_move", fleet.config, "users:1", hold=PATIENT).phase == "done"
    assert still_there(fleet)


@faces
@pytest.mark.parametrize("moment", ["caught up", "push", "clear"])
@pytest.mark.parametrize("kind", ["shard", "split"])
def test_entries_that_somebody_has_led_elsewhere_stop_a_move(
    fleet: Fleet, tmp_path: Path, face: str, moment: str, kind: str
) -> None:
    name = kill_small_move(fleet, moment, of=kind)
    fleet.run("config", "pull", "-o", str(tmp_path / "map"))
    count = json.loads(fleet.config.get("config:shards:users"))["shards"]
    elsewhere = [fleet.at(2, db=db) for db in range(5, 5 + count)]
    fleet.describe({"users": {"shards": elsewhere}}, force=True)
    with pytest.raises(GrowthError, match=r"pushed an entry that leads to .*no key was deleted"):
        call(face, "resume_move", fleet.config, name, hold=PATIENT)
    assert keys_in(fleet, 0) == 26, "the source has its keys"
    text = (tmp_path / "map").read_text().replace("epoch:", "# epoch:")
    (tmp_path / "map").write_text(text)
    fleet.run("config", "push", str(tmp_path / "map"), "--force", "users")
    assert call(face, "resume_move", fleet.config, name, hold=PATIENT).phase == "done"
    assert still_there(fleet)


@faces
@pytest.mark.parametrize("moment", ["push", "clear"])
def test_what_a_forgotten_move_has_closed_is_not_moved(
    fleet: Fleet, face: str, moment: str
) -> None:
    small(fleet)
    older = fleet.snapshot()
    fleet.kill_move(moment)
    fleet.restore(older)
    with pytest.raises(GrowthError, match=rf"{fleet.name(0)}/2 is closed by another move: noth"):
        call(face, "start_move", fleet.config, ["users:1"], fleet.name(2))
    call(face, "repair_changes", fleet.config)
    assert [(each.phase, each.target) for each in moves(fleet.config)] == [("done", fleet.name(1))]
    assert still_there(fleet)


@faces
@pytest.mark.parametrize("kind", ["shard", "split"])
def test_the_copy_of_a_source_that_comes_back_empty_is_kept(
    fleet: Fleet, face: str, kind: str
) -> None:
    name = kill_small_move(fleet, "caught up", of=kind)
    copied = keys_in(fleet, 1)
    assert copied
    restart_empty(fleet.servers[0])
    said = (
        f"{fleet.name(0)} has come back without its keys, and {fleet.name(1)} has what was copied"
    )
    with pytest.raises(GrowthError, match=said):
        call(face, "resume_move", fleet.config, name, hold=PATIENT)
    assert keys_in(fleet, 1) == copied
    assert call(face, "abort_move", fleet.config, name).phase == "aborted"
    assert keys_in(fleet, 1) == copied


def test_keys_that_clients_delete_are_not_lost(fleet: Fleet) -> None:
    kill_small_move(fleet, "caught up")
    client_of(fleet.servers[0], db=2).flushdb()
    assert growth.resume_move(fleet.config, "users:1", hold=PATIENT).phase == "done"
    assert not keys_in(fleet, 1)


@pytest.mark.parametrize("words", [["persistence", "apply", "everysec"], ["doctor", "--fix"]])
def test_settings_of_a_server_wait_for_moves_of_its_other_databases(
    fleet: Fleet, words: list[str]
) -> None:
    small(fleet)
    shards = {"shards": [fleet.at(0, db=db) for db in (1, 2)]}
    fleet.describe({"users": shards, "other": {"entry": fleet.at(0, db=5)}})
    fleet.kill_move("caught up")
    done = fleet.run(*words, "other", code=1)
    assert "a move of users:1 (begun," in done.output, done.output


def test_a_server_that_is_away_hides_no_move(fleet: Fleet) -> None:
    kill_small_move(fleet, "caught up")
    fleet.servers[0].kill()
    done = fleet.run("retire", "users", code=1)
    assert "a move of users:1 (begun," in done.output, done.output
    assert fleet.config.exists("config:shards:users")


@faces
def test_a_move_that_has_begun_is_not_said_to_have_not(fleet: Fleet, face: str) -> None:
    small(fleet)

    def kill(step: str) -> None:
        if step == "holding writers":
            fleet.config_server.kill()

    with pytest.raises((GrowthError, ConfigServerError), match=r"stopped in phase begun") as failed:
        call(face, "start_move", fleet.config, ["users:1"], fleet.name(1), progress=kill)
    assert "the move has not begun" not in str(failed.value)


def test_a_move_whose_target_dies_when_it_is_done_is_done(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(fleet)
    reached = shard_move.ShardMover._reached

    def kill(mover: Any, phase: str) -> None:
        reached(mover, phase)
        if phase == "done":
            fleet.servers[1].kill()

    # No step is told between these two exchanges.
    monkeypatch.setattr(shard_move.ShardMover, "_reached", kill)
    assert fleet.move_shard().phase == "done"


@faces
def test_old_databases_are_kept_up_to_date_after_an_offline_copy(fleet: Fleet, face: str) -> None:
    small(fleet)
    options = {"hold": PATIENT, "keep": True, "offline": True}
    with ThreadPoolExecutor(1) as threads:
        move = ["users:1"], fleet.name(1)
        keeper = threads.submit(call, face, "start_move", fleet.config, *move, **options)
        assert eventually(fleet.is_kept, 60)
        with shardkit.connect(fleet.url) as kit:
            users = kit.key_sharded("users")
            users.mset({f"k{n}": n + 1 for n in range(50)})
            back = call(face, "reverse_move", fleet.config, "users:1", hold=PATIENT)
            assert (back.phase, keeper.result().id) == ("done", back.id)
            assert users.mget([f"k{n}" for n in range(50)]) == [b"%d" % n for n in range(1, 51)]
    assert fleet.masters() == [fleet.name(0)] * 2


class TestLateRepair(Case):
    """A repair that is stopped, and woken when the database that it would close is used again."""

    __test__ = False
    words = ["changes", "repair"]  # noqa: RUF012

    def setup(self) -> None:
        """Have a move leave a database, and lose its fence."""
        super().setup()
        self.ends("move", "shards", "users:1", "--to", self.new, "--hold", "3")
        client_of(self.fleet.servers[0], db=2).flushdb()

    def act(self) -> None:
        """Move the shard back, and end the command's lease."""
        self.ends("move", "reverse", "users:1", "--hold", "3")

    def check(self, woken: bool) -> None:
        super().check(woken)
        assert client_of(self.fleet.servers[0], db=2).exists("config:fence") is not woken


@pytest.mark.timeout(600)
def test_a_repair_that_wakes_late_closes_nothing(fleet: Fleet, tmp_path: Path) -> None:
    case = TestLateRepair(fleet, tmp_path)
    case.setup()
    with case.process(0, 0) as (process, output):
        process.join(60)
    files = case.noted(output)
    ports = f"{fleet.servers[0].port} "
    late = [n for n, at in enumerate(files, 1) if at.startswith(ports) and "growth/" in at]
    assert len(late) > 2
    for number in late[-3:]:
        case.woken(number)
    assert moves(fleet.config)


@faces
@on_redis_too
def test_an_abort_leaves_a_server_that_others_have_detached_and_filled(
    fleet: Fleet, face: str
) -> None:
    kill_small_move(fleet, "hand over", of="server")
    with fleet.servers[1].client() as new:
        new.replicaof("NO", "ONE")
        new.flushall()
        new.set("theirs", 1)
        assert call(face, "abort_move", fleet.config, fleet.name(0)).phase == "aborted"
        assert new.get("theirs") == b"1"
    assert still_there(fleet)


def write_by_old_entries(fleet: Fleet, tmp_path: Path, server: int, database: int) -> bool:
    """Whether a client whose map is old can write to a database."""
    where = tmp_path / "old.json"
    entry = fleet.at(server, db=database)
    where.write_text(json.dumps({"components": {"users": {"entry": entry}}}), encoding="utf-8")
    with shardkit.connect(str(where)) as kit:
        try:
            with kit.deadline(0.5):
                kit.client("users").set("late", 1)
        except (redis.RedisError, shardkit.ShardKitError):
            return False
    return True


@faces
@pytest.mark.parametrize("kind", ["shard", "split"])
@pytest.mark.parametrize("moment", ["take over", "close to readers"])
def test_databases_of_a_move_that_was_given_up_are_closed(
    fleet: Fleet, tmp_path: Path, face: str, kind: str, moment: str
) -> None:
    small(fleet)
    options = {"over": [fleet.name(1), fleet.name(2)]} if kind == "split" else {}
    name = fleet.kill_move(moment, of=kind, **options)
    [move] = moves(fleet.config)
    targets = [Place.parse(each) for each in move.targets]
    fleet.servers[1].kill()
    assert call(face, "end_change", fleet.config, name, lost=True).phase == "aborted"
    assert still_there(fleet)
    numbers = {fleet.name(n): n for n in (1, 2)}
    for place in targets:
        if fleet.name(2) == str(place.server):  # it is alive
            assert not write_by_old_entries(fleet, tmp_path, 2, place.database)
    assert [each.applied for each in call(face, "apply_fences", fleet.config)] == [False] * len(
        [place for place in targets if str(place.server) == fleet.name(1)]
    )
    fleet.servers[1].restart()
    fences = call(face, "apply_fences", fleet.config, 20)
    assert fences
    assert all(each.applied for each in fences)
    for place in targets:
        number = numbers[str(place.server)]
        assert not write_by_old_entries(fleet, tmp_path, number, place.database)
    assert call(face, "apply_fences", fleet.config) == []
    assert still_there(fleet)


@faces
def test_a_database_that_was_given_up_is_used_again(fleet: Fleet, face: str) -> None:
    kill_small_move(fleet, "take over")
    fleet.servers[1].kill()
    call(face, "end_change", fleet.config, "users:1", lost=True)
    fleet.servers[1].restart()
    client_of(fleet.servers[1], db=2).flushdb()
    assert fleet.move_shard().phase == "done"
    assert [each.applied for each in call(face, "apply_fences", fleet.config)] == [True]
    assert still_there(fleet)


@faces
def test_a_database_that_is_used_again_just_before_it_is_closed_stays_open(
    fleet: Fleet, tmp_path: Path, face: str
) -> None:
    kill_small_move(fleet, "take over")
    fleet.servers[1].kill()
    call(face, "end_change", fleet.config, "users:1", lost=True)
    fleet.servers[1].restart()
    client_of(fleet.servers[1], db=2).flushdb()
    is_lease = lambda connection, text: "SET" in text and "config:growth:lease" in text  # noqa: E731
    with before_sending(is_lease, fleet.move_shard):
        call(face, "apply_fences", fleet.config)
    assert fleet.masters() == [fleet.name(0), fleet.name(1)]
    assert write_by_old_entries(fleet, tmp_path, 1, 2)
    assert still_there(fleet)


@faces
@pytest.mark.parametrize("used", ["cluster", "reference"])
def test_what_was_given_up_is_not_closed_where_entries_may_name_it(
    fleet: Fleet, face: str, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(fleet)
    monkeypatch.setenv("NUMBER", "2")
    with LocalCluster() as cluster:
        port = cluster.nodes[0].port
        place, other = f"127.0.0.1:{port}/0", {"cluster": True, "host": "127.0.0.1", "port": port}
        if used == "reference":
            place, other = f"{fleet.name(1)}/2", {"url": f"redis://{fleet.name(1)}/${{NUMBER}}"}
        shards = {"shards": [fleet.at(0, db=db) for db in (1, 2)]}
        fleet.describe({"users": shards, "other": {"entry": other}})
        fence = {"format": 1, "master": fleet.name(0), "move": "ended"}
        fleet.config.hset("config:growth:fences", place, json.dumps(fence))
        call(face, "apply_fences", fleet.config)
        with shardkit.connect(fleet.url) as kit:
            for n in range(20):
                assert kit.client("other").set(f"k{n}", 1)


@faces
def test_a_master_that_a_second_failover_left_behind_is_fenced(fleet: Fleet, face: str) -> None:
    small(fleet)
    fleet.replicated(1, 2)
    fleet.servers[0].kill()
    call(face, "fail_over", fleet.config, "users:0", fleet.name(1))
    call(face, "fail_over", fleet.config, "users:0", fleet.name(2))
    fleet.servers[0].restart()
    [fence] = call(face, "apply_fences", fleet.config, 20)
    assert fence.applied
    assert replication(fleet.servers[0])["master_port"] == fleet.servers[2].port


@faces
def test_a_master_that_has_its_role_again_is_not_fenced(fleet: Fleet, face: str) -> None:
    small(fleet)
    fleet.replicated(1)
    fleet.servers[0].kill()
    call(face, "fail_over", fleet.config, "users:0", fleet.name(1))
    fleet.servers[0].restart()
    follow(fleet.servers[0], fleet.servers[1])  # by hand, not by `failover --guard`
    call(face, "fail_over", fleet.config, "users:0", fleet.name(0))
    call(face, "detach_replica", fleet.config, fleet.name(1))
    client_of(fleet.servers[1]).flushall()
    shards = {"shards": [fleet.at(0, db=db) for db in (1, 2)]}
    fleet.describe({"users": shards, "other": {"entry": fleet.at(1)}})
    call(face, "apply_fences", fleet.config)
    assert replication(fleet.servers[0])["role"] == "master"
    assert still_there(fleet)
    assert pending_fences(fleet.config) == []


@faces
def test_a_split_into_a_cluster_that_is_gone_is_ended(fleet: Fleet, face: str, lower: Any) -> None:
    small(fleet)
    with LocalCluster() as cluster:
        node = cluster.nodes[0].address
        with killed_at("hold writers"):
            start_split(fleet.config, "users", to_cluster=node, hold=PATIENT)
        for each in cluster.nodes:
            each.pause()  # as if they were gone
        lower(copy_answer=0.2 * PATIENCE)
        assert call(face, "abort_move", fleet.config, "users").phase == "aborted"
        lower(copy_answer=10.0)
        assert still_there(fleet)
        for each in cluster.nodes:
            each.resume()
            client_of(each).flushall()
        with killed_at("take over"):
            start_split(fleet.config, "users", to_cluster=node, hold=PATIENT)
        for each in cluster.nodes:
            each.kill()
        assert call(face, "end_change", fleet.config, "users", lost=True).phase == "aborted"
        assert still_there(fleet)
        for each in cluster.nodes:
            each.restart()
        assert eventually(
            lambda: all(each.applied for each in call(face, "apply_fences", fleet.config)), 60
        )
        for each in cluster.nodes:
            assert int(client_of(each).config_get("min-replicas-to-write")["min-replicas-to-write"])


@pytest.mark.long(2)
@faces
@pytest.mark.parametrize(
    ("step", "number"), [("comparing", 0), ("holding writers", 1), ("emptying", 0)]
)
def test_a_server_that_hangs_stops_a_balance_that_is_resumed(
    fleet: Fleet, face: str, lower: Any, step: str, number: int
) -> None:
    small(fleet)
    lower(copy_answer=1.0)
    report = call(face, "measure_balance", fleet.config, ["users"], to=[fleet.name(1)], seconds=0.1)
    plan = call(face, "plan_balance", fleet.config, report)
    hangs: list[str] = []

    def hang(text: str) -> None:
        if step in text and not hangs:
            hangs.append(text)
            fleet.servers[number].pause()

    try:
        with pytest.raises(GrowthError, match=rf"{fleet.name(number)}.*resume"):
            call(face, "apply_balance", fleet.config, plan, hold=PATIENT, progress=hang)
    finally:
        fleet.servers[number].resume()
    [move] = moves(fleet.config)
    assert call(face, "resume_move", fleet.config, move.name, hold=PATIENT).phase == "done"
    assert still_there(fleet)


@faces
@pytest.mark.parametrize("is_older", [False, True])
def test_clients_are_not_led_back_to_a_database_that_was_emptied(
    fleet: Fleet, face: str, is_older: bool
) -> None:
    kill_small_move(fleet, "clear")
    older = fleet.snapshot()
    with killed_at("verify"):
        call(face, "resume_move", fleet.config, "users:1")
    if is_older:  # the config server is restored from a snapshot
        fleet.restore(older)
    client_of(fleet.servers[1]).save()
    fleet.servers[1].kill()
    with pytest.raises(GrowthError, match=rf"has been emptied.* still name {fleet.name(1)}.*done"):
        call(face, "end_change", fleet.config, "users:1", lost=True)
    fleet.servers[1].restart()
    assert fleet.masters() == [fleet.name(0), fleet.name(1)]
    assert still_there(fleet)


@faces
@pytest.mark.parametrize("is_refilled", [False, True])
def test_clients_are_led_back_to_a_database_that_is_kept_only_if_it_has_all(
    fleet: Fleet, face: str, is_refilled: bool
) -> None:
    kill_small_move(fleet, "keep up to date", keep=True)
    for moment in ["copy all", *["keep up to date"] * is_refilled]:
        with killed_at(moment):
            call(face, "resume_move", fleet.config, "users:1", keep=True)
    client_of(fleet.servers[1]).save()
    fleet.servers[1].kill()
    if is_refilled:
        assert call(face, "end_change", fleet.config, "users:1", lost=True).phase == "aborted"
        assert fleet.masters() == [fleet.name(0)] * 2
    else:
        with pytest.raises(GrowthError, match="has been emptied"):
            call(face, "end_change", fleet.config, "users:1", lost=True)
        fleet.servers[1].restart()
    assert still_there(fleet)


@faces
@pytest.mark.parametrize("command", ["resume_move", "abort_move"])
def test_clients_are_not_led_back_by_a_record_from_before_the_push(
    fleet: Fleet, face: str, command: str
) -> None:
    kill_small_move(fleet, "push")
    older = fleet.snapshot()
    with killed_at("verify"):
        call(face, "resume_move", fleet.config, "users:1")
    fleet.restore(older)
    client_of(fleet.servers[1]).save()
    fleet.servers[1].kill()
    with pytest.raises(GrowthError, match=r"is being emptied|has taken over"):
        call(face, command, fleet.config, "users:1")
    assert client_of(fleet.servers[0], db=2).exists("config:fence")
    fleet.servers[1].restart()
    assert call(face, "resume_move", fleet.config, "users:1").phase == "done"
    assert fleet.masters() == [fleet.name(0), fleet.name(1)]
    assert still_there(fleet)


@faces
def test_a_master_that_is_back_does_not_follow_one_that_has_lost_everything(
    fleet: Fleet, face: str
) -> None:
    small(fleet)
    old, new, _ = fleet.replicated(1)
    client_of(old).save()
    old.kill()
    call(face, "fail_over", fleet.config, "users:0")
    restart_empty(new)
    old.restart()
    fence = {"format": 1, "master": fleet.name(1), "least": 1}  # as an earlier release noted it
    fleet.config.hset("config:growth:fences", fleet.name(2), json.dumps(fence))
    with pytest.raises(GrowthError, match=rf"{fleet.name(0)} is back and has keys, but .* none"):
        call(face, "apply_fences", fleet.config)
    assert [str(each.source) for each in pending_fences(fleet.config)] == [fleet.name(0)]
    assert replication(fleet.servers[2])["role"] == "slave"
    new.kill()
    call(face, "fail_over", fleet.config, fleet.name(1), fleet.name(0), force=True)
    assert still_there(fleet)


@faces
def test_a_replica_that_has_lost_everything_takes_over_from_no_other(
    fleet: Fleet, face: str
) -> None:
    small(fleet)
    old, empty, _ = fleet.replicated(1, 2)
    with empty.client() as client:
        client.config_set("save", "")
        client.config_rewrite()
    old.kill()
    restart_empty(empty)
    assert replication(empty)["role"] == "slave"
    with pytest.raises(GrowthError, match=rf"{fleet.name(1)} has no keys, and other replicas have"):
        call(face, "fail_over", fleet.config, "users:0", fleet.name(1))
    call(face, "fail_over", fleet.config, "users:0")
    assert fleet.masters() == [fleet.name(2)] * 2
    assert still_there(fleet)


@faces
def test_the_copy_of_a_whole_server_that_comes_back_empty_is_kept(fleet: Fleet, face: str) -> None:
    kill_small_move(fleet, "hand over", of="server")
    with fleet.servers[1].client() as new:
        copied = keys_in(fleet, 1)
        assert copied
        fleet.servers[1].pause()  # so that it does not copy the empty server at once
        restart_empty(fleet.servers[0])
        client_of(fleet.servers[0]).execute_command("ACL", "SETUSER", "default", "-psync", "-sync")
        fleet.servers[1].resume()
        said = rf"{fleet.name(0)} has come back without its keys, and {fleet.name(1)} has what was"
        with pytest.raises(GrowthError, match=said):
            call(face, "resume_move", fleet.config, fleet.name(0))
        assert call(face, "abort_move", fleet.config, fleet.name(0)).phase == "aborted"
        assert new.info("replication")["role"] == "master"
    assert keys_in(fleet, 1) == copied
