"""What a command finds late: fences of another attempt, entries that others have pushed since."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from arranged import before_sending, client_of, paused
from faces import eventually
from growth_helpers import (
    PATIENT,
    Fleet,
    replication,
    restart_empty,
    small,
    still_there,
    strays,
)
from moments import Killed, before, end_changes, kill, killed_at, open_changes
from test_looks_again import call, faces, write_by_old_entries

import shardkit
from shardkit.admin.growth import complete_move, moves, pending_fences, start_move
from shardkit.admin.growth.relocation import Place
from shardkit.errors import GrowthError, MissedChangesError

LEASE = "config:growth:lease"


@faces
@pytest.mark.parametrize("moment", ["open", "empty"])
def test_an_abort_that_wakes_late_opens_nothing_that_another_attempt_has_closed(
    fleet: Fleet, tmp_path: Path, face: str, moment: str
) -> None:
    small(fleet)
    with killed_at("hold writers"):
        fleet.move(of_shards=True)
    shards = ["users:0", "users:1"]
    call(face, "abort_move", fleet.config, "users:1")
    with killed_at("hold writers"):
        call(face, "start_move", fleet.config, shards, fleet.name(1), hold=PATIENT)

    def resume() -> None:
        fleet.config.delete(LEASE)  # of the abort, which is stopped
        call(face, "resume_move", fleet.config, "users:0", hold=PATIENT)

    with before(moment, resume), pytest.raises(GrowthError, match=r"taken over|lease ended"):
        call(face, "abort_move", fleet.config, "users:0")
    assert still_there(fleet)
    assert fleet.masters() == [fleet.name(1)] * 2
    assert not any(write_by_old_entries(fleet, tmp_path, 0, db) for db in (1, 2))


def begun_on_one_of_two(fleet: Fleet, face: str) -> Place:
    """Begin a split, which is killed before it takes one of two targets; return that."""
    small(fleet)
    port = fleet.servers[2].port

    def is_fence(connection: Any, text: str) -> bool:
        return connection.port == port and "WATCH" in text and "config:fence" in text

    over = [fleet.name(1), fleet.name(2)]
    with before_sending(is_fence, kill), pytest.raises(Killed):
        call(face, "start_split", fleet.config, "users", shards=3, over=over, hold=PATIENT)
    [move] = moves(fleet.config)
    [place] = [at for at in map(Place.parse, move.targets) if at.server.port == port]
    shards = [fleet.at(0, db=db) for db in (1, 2)]
    other = {"entry": fleet.at(2, db=place.database)}
    fleet.describe({"users": {"shards": shards}, "other": other})
    with shardkit.connect(fleet.url) as kit:
        kit.client("other").set("theirs", 1)
    return place


@faces
def test_an_abort_empties_no_database_that_the_move_has_not_taken(fleet: Fleet, face: str) -> None:
    begun_on_one_of_two(fleet, face)
    assert call(face, "abort_move", fleet.config, "users").phase == "aborted"
    with shardkit.connect(fleet.url) as kit:
        assert kit.client("other").get("theirs") == b"1"
        assert kit.client("other").set("theirs", 2)
    with fleet.servers[1].client() as client:
        assert not client.info("keyspace")
    assert still_there(fleet)


@faces
def test_a_move_does_not_fill_what_entries_have_come_to_name(fleet: Fleet, face: str) -> None:
    place = begun_on_one_of_two(fleet, face)
    with fleet.servers[2].client(db=place.database) as client:
        client.delete("theirs")
    with pytest.raises(GrowthError, match=rf"other: .* leads to {place}, which this move is to"):
        call(face, "resume_move", fleet.config, "users", hold=PATIENT)
    with shardkit.connect(fleet.url) as kit:
        assert kit.client("other").set("theirs", 2)
    assert call(face, "abort_move", fleet.config, "users").phase == "aborted"
    assert still_there(fleet)


def kill_failover(fleet: Fleet, face: str) -> None:
    """Kill a failover after a crash before its push; then the old master comes back."""
    fleet.replicated(1)
    fleet.servers[0].kill()
    with killed_at("failover: push entries"):
        call(face, "fail_over", fleet.config, "users:0")
    fleet.config.delete(LEASE)
    fleet.servers[0].restart()


@faces
def test_a_master_that_is_back_before_the_push_of_a_killed_failover_keeps_its_writes(
    fleet: Fleet, face: str
) -> None:
    kill_failover(fleet, face)
    with shardkit.connect(fleet.url) as kit:
        kit.key_sharded("users").mset({f"k{n}": n for n in range(50)})
    with pytest.raises(GrowthError, match="is back and takes writes, though a failover"):
        call(face, "fail_over", fleet.config, "users:0")
    assert still_there(fleet)
    [fence] = call(face, "apply_fences", fleet.config)
    assert fence.applied
    assert fence.state == "entries name it again"
    assert pending_fences(fleet.config) == []


@faces
def test_what_a_killed_failover_has_promoted_takes_over_by_force(fleet: Fleet, face: str) -> None:
    kill_failover(fleet, face)
    with fleet.servers[0].client(db=1) as client:
        client.set("late", 1)
    call(face, "fail_over", fleet.config, "users:0", force=True)
    assert fleet.masters() == [fleet.name(1)] * 2


@faces
def test_a_failover_that_wakes_late_notes_no_fence(fleet: Fleet, face: str) -> None:
    fleet.replicated(1)
    fleet.servers[0].kill()

    def another() -> None:
        fleet.config.delete(LEASE)
        call(face, "fail_over", fleet.config, "users:0")
        fleet.servers[0].restart()
        assert eventually(
            lambda: all(each.applied for each in call(face, "apply_fences", fleet.config)), 20
        )

    with before("take writes alone", another), pytest.raises(GrowthError, match="lease ended"):
        call(face, "fail_over", fleet.config, "users:0")
    assert pending_fences(fleet.config) == []


@faces
def test_a_master_that_a_push_names_again_is_fenced_no_longer(fleet: Fleet, face: str) -> None:
    small(fleet)
    fleet.replicated(1)
    fleet.servers[0].kill()
    call(face, "fail_over", fleet.config, "users:0")
    fleet.servers[0].restart()
    shards = [fleet.at(0, db=db) for db in (1, 2)]
    fleet.describe({"users": {"shards": shards}}, force=True)
    done = fleet.run("failover", "--guard", "0")
    assert f"{fleet.name(0)} is back: entries name it again" in done.output
    assert pending_fences(fleet.config) == []
    assert replication(fleet.servers[0])["role"] == "master"


@faces
def test_what_was_given_up_is_closed_by_a_login_of_its_own(fleet: Fleet, face: str) -> None:
    small(fleet)
    shards = {"shards": [fleet.at(0, db=db) for db in (1, 2)]}
    place = f"{fleet.name(1)}/7"
    fence = {"format": 1, "master": fleet.name(0), "move": "ended"}
    fleet.config.hset("config:growth:fences", place, json.dumps(fence))
    with fleet.servers[1].client() as client:
        client.acl_setuser("app", True, passwords=["+its own"], keys="*", commands=["+@all"])
        client.acl_setuser("default", False)
    try:
        [pending] = call(face, "apply_fences", fleet.config)
        assert not pending.applied
        assert "it refuses the users of all entries" in pending.state
        refused = fleet.run("failover", "--guard", "0", code=1)
        assert f"{place} is not fenced: it refuses the users" in refused.output
        other = fleet.at(1, db=3, username="app", password="its own")
        fleet.describe({"users": shards, "other": {"entry": other}})
        [done] = call(face, "apply_fences", fleet.config)
        assert (done.applied, done.state) == (True, "closed")
    finally:
        with redis.Redis(
            port=fleet.servers[1].port, username="app", password="its own", db=7
        ) as client:
            assert client.exists("config:fence")
            client.acl_setuser("default", True)


@faces
@pytest.mark.timeout(120)
def test_a_program_that_connects_again_and_again_does_not_keep_a_move_open(
    fleet: Fleet, face: str
) -> None:
    small(fleet)
    with killed_at("take over"):
        fleet.move_shard()
    with fleet.servers[1].client(db=2) as client:
        client.flushdb()
    ended = threading.Event()

    def connect() -> None:
        while not ended.is_set():
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", fleet.servers[1].port)) as program,
            ):
                program.sendall(b"SELECT 2\r\n")
                while not ended.wait(0.001):
                    program.sendall(b"GET k\r\n")
                    if not program.recv(100):
                        break

    threads = [threading.Thread(target=connect) for _ in range(24)]
    for thread in threads:
        thread.start()
    try:
        ended_move = call(face, "end_change", fleet.config, "users:1", lost=True)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert ended_move.phase == "aborted"
    assert still_there(fleet)


@faces
def test_a_library_of_functions_that_is_loaded_during_a_move_moves(fleet: Fleet, face: str) -> None:
    small(fleet)
    code = "#!lua name=late\nredis.register_function('late', function() return 7 end)"

    def load() -> None:
        with fleet.servers[0].client() as client:
            client.function_load(code)

    with before("hold writers", load):
        call(face, "start_move", fleet.config, ["users:1"], fleet.name(1), hold=PATIENT)
    with fleet.servers[1].client() as client:
        assert client.fcall("late", 0) == 7
    assert still_there(fleet)
    with fleet.servers[0].client(db=2) as client:
        assert strays(client) == []


@faces
def test_a_move_is_not_said_to_have_ended_before_its_server_is_replaced(
    fleet: Fleet, face: str
) -> None:
    small(fleet)
    with killed_at("server: wait until left"):
        fleet.move_server()
    fleet.servers[1].kill()
    with killed_at("failover: push entries"):
        call(face, "end_change", fleet.config, fleet.name(0), lost=True)
    fleet.config.delete(LEASE)
    assert call(face, "end_change", fleet.config, fleet.name(0), lost=True).phase == "aborted"
    assert fleet.masters() == [fleet.name(0)] * 2
    assert still_there(fleet)


@faces
@pytest.mark.parametrize("kind", ["move", "split"])
@pytest.mark.parametrize("url", ["redis://127.0.0.1:{}/${{NUMBER}}", "redis://${{HOST}}:{}/1"])
def test_a_database_that_an_entry_names_by_a_reference_is_neither_left_nor_filled(
    fleet: Fleet, face: str, kind: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(fleet)
    monkeypatch.setenv("NUMBER", "1")
    monkeypatch.setenv("HOST", "127.0.0.1")
    hidden = {"entry": {"url": url.format(fleet.servers[0].port)}}
    shards = [fleet.at(0, db=db) for db in (1, 2)]
    fleet.describe({"users": {"shards": shards}, "other": hidden}, force=True)
    if kind == "move":
        plan = call(face, "plan_move", fleet.config, ["users:0"], fleet.name(1))
    else:
        plan = call(face, "plan_split", fleet.config, "users", shards=3, over=[fleet.name(1)])
    said = f"config:redis:other leads to {fleet.name(0)} by a socket, Sentinels or a reference"
    assert any(said in problem for problem in plan.problems)
    shards = [fleet.at(1, db=db) for db in (1, 2)]
    fleet.describe({"users": {"shards": shards}, "other": hidden}, force=True)
    back = call(face, "plan_split", fleet.config, "users", shards=3, over=[fleet.name(0)])
    assert any(said in problem for problem in back.problems) or f"{fleet.name(0)}/1" not in (
        back.targets
    )


@faces
def test_clients_are_not_led_back_to_what_an_aborted_reversal_has_emptied(
    fleet: Fleet, face: str
) -> None:
    small(fleet)
    with killed_at("keep up to date"):
        call(face, "start_move", fleet.config, ["users:1"], fleet.name(1), hold=PATIENT, keep=True)
    for change in open_changes(fleet.config):
        end_changes(fleet.config, change.owner)
    fleet.config.delete(LEASE)
    with killed_at("compare"):
        call(face, "reverse_move", fleet.config, "users:1", hold=PATIENT)
    fleet.config.delete(LEASE)
    call(face, "abort_move", fleet.config, "users:1")
    assert still_there(fleet)
    with fleet.servers[1].client(db=2) as client:
        client.flushdb()
    with pytest.raises(GrowthError, match="has been emptied, perhaps in part"):
        call(face, "end_change", fleet.config, "users:1", lost=True)


@contextmanager
def kept_up_to_date(fleet: Fleet) -> Iterator[None]:
    """Move a shard in another thread, which keeps the old database up to date."""
    small(fleet)
    options: dict[str, Any] = {"hold": PATIENT, "keep": True}
    with ThreadPoolExecutor() as threads:
        keeping = threads.submit(start_move, fleet.config, ["users:1"], fleet.name(1), **options)
        assert eventually(fleet.is_kept, 30)
        try:
            yield
        except BaseException:  # or the thread would keep it for ever
            with suppress(GrowthError):
                complete_move(fleet.config, "users:1")
            raise
        with suppress(Killed, GrowthError):  # another process may have taken over
            keeping.result()


@faces
def test_clients_are_not_led_back_to_what_a_reversal_that_copied_again_has_emptied(
    fleet: Fleet, face: str
) -> None:
    def miss() -> None:
        raise MissedChangesError("a change was missed", "copy again")

    with (
        kept_up_to_date(fleet),
        before("caught up", miss),
        before("copy all", kill, once=False),
        pytest.raises(Killed),
    ):
        call(face, "reverse_move", fleet.config, "users:1", hold=PATIENT)
    for change in open_changes(fleet.config):
        end_changes(fleet.config, change.owner)
    fleet.config.delete(LEASE)
    call(face, "abort_move", fleet.config, "users:1")
    assert still_there(fleet)
    fleet.servers[1].kill()
    with pytest.raises(GrowthError, match=r"has been emptied, perhaps in part"):
        call(face, "end_change", fleet.config, "users:1", lost=True)
    assert fleet.masters()[1] == fleet.name(1)


@faces
def test_a_library_of_functions_that_is_loaded_after_a_move_is_there_after_its_reversal(
    fleet: Fleet, face: str
) -> None:
    code = "#!lua name=later\nredis.register_function('later', function() return 8 end)"
    with kept_up_to_date(fleet):
        with fleet.servers[1].client() as client:
            client.function_load(code)
        call(face, "reverse_move", fleet.config, "users:1", hold=PATIENT)
    with fleet.servers[0].client() as client:
        assert client.fcall("later", 0) == 8
    assert still_there(fleet)


@faces
def test_a_move_goes_on_after_its_own_push_was_taken_back(fleet: Fleet, face: str) -> None:
    small(fleet)
    with killed_at("readers left"):
        fleet.move_shard()
    assert fleet.masters() == [fleet.name(0), fleet.name(1)]
    fleet.config.delete(LEASE)
    restart_empty(fleet.servers[1])
    assert call(face, "resume_move", fleet.config, "users:1", hold=PATIENT).phase == "done"
    assert fleet.masters() == [fleet.name(0), fleet.name(1)]
    assert still_there(fleet)


@faces
def test_entries_do_not_lead_to_what_is_being_emptied_whatever_is_pushed(
    fleet: Fleet, face: str
) -> None:
    small(fleet)
    port = fleet.servers[0].port

    def is_emptying(connection: Any, text: str) -> bool:
        return connection.port == port and "ARGV" in text and "UNLINK" in text

    with before_sending(is_emptying, kill), pytest.raises(Killed):
        fleet.move_shard()
    fleet.config.delete(LEASE)
    shards = [fleet.at(0, db=db) for db in (1, 2)]
    fleet.describe({"users": {"shards": shards}}, force=["users"])
    assert call(face, "resume_move", fleet.config, "users:1", hold=PATIENT).phase == "done"
    assert fleet.masters() == [fleet.name(0), fleet.name(1)]
    assert still_there(fleet)


@faces
def test_a_replica_that_a_killed_failover_promoted_stays_a_master_when_it_is_restarted(
    fleet: Fleet, face: str
) -> None:
    fleet.replicated(1)
    with fleet.servers[1].client() as client:
        client.config_rewrite()  # as if it had been attached
    fleet.servers[0].kill()
    with before_sending(lambda _, text: "REWRITE" in text, kill), pytest.raises(Killed):
        call(face, "fail_over", fleet.config, "users:0")
    fleet.config.delete(LEASE)
    call(face, "fail_over", fleet.config, "users:0")
    fleet.servers[1].restart()
    assert replication(fleet.servers[1])["role"] == "master"


@faces
@pytest.mark.parametrize(
    "entry",
    [
        {"url": "redis://${NOWHERE}/1"},
        {"host": "127.0.0.1", "port": 1, "password": "${NO_PASSWORD}"},
        {"sentinel": {"service": "main", "sentinels": [["127.0.0.1", 1]]}},
    ],
)
def test_a_master_is_fenced_though_another_component_cannot_be_reached_from_here(
    fleet: Fleet, face: str, entry: dict[str, Any]
) -> None:
    small(fleet)
    fleet.replicated(1)
    fleet.servers[0].kill()
    call(face, "fail_over", fleet.config, "users:0")
    fleet.servers[0].restart()
    shards = [fleet.at(1, db=db) for db in (1, 2)]
    fleet.describe({"users": {"shards": shards}, "zone": {"entry": entry}}, force=True)
    assert [each.applied for each in call(face, "apply_fences", fleet.config, 5)] == [True]
    assert replication(fleet.servers[0])["role"] == "slave"


@faces
def test_a_master_that_is_fenced_logs_in_as_the_entries_of_the_new_master_do(
    fleet: Fleet, face: str
) -> None:
    fleet.replicated(1)
    fleet.servers[0].kill()
    call(face, "fail_over", fleet.config, "users:0")
    fleet.servers[0].restart()
    for server in fleet.servers[:2]:
        with server.client() as client:
            client.acl_setuser("app", True, passwords=["+own"], keys="*", commands=["+@all"])
            client.acl_setuser("zone", True, passwords=["+own"], keys="*", commands=["+@all"])
    shards = [fleet.at(1, db=db, username="app", password="own") for db in (1, 2)]
    zone = fleet.at(2, db=3, username="zone", password="own")
    fleet.describe({"users": {"shards": shards}, "zone": {"entry": zone}}, force=True)
    assert [each.applied for each in call(face, "apply_fences", fleet.config, 5)] == [True]
    with fleet.servers[0].client() as client:
        user = client.config_get("masteruser")
        client.config_set("masteruser", "")
        client.config_set("masterauth", "")
    assert user == {"masteruser": "app"}


@faces
def test_a_failover_after_the_handover_of_a_killed_move_finishes_that(
    fleet: Fleet, face: str
) -> None:
    small(fleet)
    fleet.replicated(2)
    with paused(fleet.servers[2]):  # it lacks the last write
        with shardkit.connect(fleet.url) as kit:
            kit.key_sharded("users")["k0"].set("k0", 7)
        with killed_at("server: push entries"):
            call(face, "start_move", fleet.config, fleet.name(0), fleet.name(1), hold=PATIENT)
        fleet.servers[0].kill()
    call(face, "fail_over", fleet.config, "users:0")
    assert fleet.masters() == [fleet.name(1)] * 2
    assert fleet.value("k0") == 7
    fleet.servers[0].restart()
    assert eventually(
        lambda: all(each.applied for each in call(face, "apply_fences", fleet.config)), 20
    )
    assert replication(fleet.servers[0])["master_port"] == fleet.servers[1].port
    move = call(face, "resume_move", fleet.config, fleet.name(0), hold=PATIENT)
    assert move.phase == "done"


@faces
def test_a_failover_takes_no_server_that_was_detached_before_the_handover(
    fleet: Fleet, face: str
) -> None:
    small(fleet)
    fleet.replicated(2)
    with killed_at("hand over"):
        call(face, "start_move", fleet.config, fleet.name(0), fleet.name(1), hold=PATIENT)
    fleet.config.delete(LEASE)
    client_of(fleet.servers[1]).replicaof("NO", "ONE")
    with shardkit.connect(fleet.url) as kit:
        kit.key_sharded("users")["k0"].set("k0", 7)
    assert client_of(fleet.servers[0]).wait(1, 5000) == 1
    fleet.servers[0].kill()
    call(face, "fail_over", fleet.config, "users:0")
    assert fleet.masters() == [fleet.name(2)] * 2
    assert fleet.value("k0") == 7


@faces
def test_a_record_from_before_the_push_follows_a_split(fleet: Fleet, face: str) -> None:
    fleet.push(0)
    records: dict[bytes, bytes] = {}
    options: Any = {"shards": 5, "over": [fleet.name(1)], "hold": PATIENT}
    with (
        before("copy all", lambda: records.update(fleet.config.hgetall("config:changes"))),
        killed_at("clear"),
    ):
        call(face, "start_split", fleet.config, "users", **options)
    fleet.config.hset("config:changes", mapping=records)
    fleet.config.delete(LEASE)
    assert moves(fleet.config)[0].phase == "begun"
    assert call(face, "resume_move", fleet.config, "users").phase == "done"
    assert fleet.masters() == [fleet.name(1)] * 2


@faces
def test_an_old_master_that_follows_a_server_that_nobody_uses_is_fenced(
    fleet: Fleet, face: str
) -> None:
    small(fleet)
    fleet.replicated(1)
    fleet.servers[0].kill()
    call(face, "fail_over", fleet.config, "users:0")
    fleet.servers[0].restart()
    client_of(fleet.servers[0]).replicaof("127.0.0.1", fleet.servers[2].port)
    [fence] = call(face, "apply_fences", fleet.config)
    assert (fence.applied, fence.state) == (True, f"a replica of {fleet.name(1)}")
    assert replication(fleet.servers[0])["master_port"] == fleet.servers[1].port
    assert still_there(fleet)
    call(face, "detach_replica", fleet.config, fleet.name(0))
    shards = [fleet.at(1, db=db, replicas=[fleet.at(0)]) for db in (1, 2)]
    fleet.describe({"users": {"shards": shards}})
    call(face, "detach_replica", fleet.config, fleet.name(0))  # a master that entries name
    assert "replicas" not in json.loads(fleet.config.get("config:redis:users:0"))


@faces
@pytest.mark.parametrize(("of", "moment"), [("server", "hand over"), ("split", "hold writers")])
def test_nothing_is_decided_while_entries_of_others_are_in_the_way(
    fleet: Fleet, face: str, of: str, moment: str
) -> None:
    small(fleet)
    name = fleet.kill_move(moment, of=of)
    fleet.config.delete(LEASE)
    users = {"shards": [fleet.at(0, db=db) for db in (1, 2)]}
    other = {"entry": fleet.at(1, db=5) if of == "server" else fleet.at(0, db=1)}
    fleet.describe({"users": users, "other": other}, force=True)
    said = rf"other: somebody has pushed an entry that leads to .*, which this move .*abort {name}"
    with pytest.raises(GrowthError, match=said):
        call(face, "resume_move", fleet.config, name, hold=PATIENT)
    assert fleet.masters() == [fleet.name(0)] * 2
    assert call(face, "abort_move", fleet.config, name).phase == "aborted"
    with shardkit.connect(fleet.url) as kit:
        assert kit.client("other").set("theirs", 1)
    assert still_there(fleet)
