"""What changes in a fleet is recorded, and what must not overlap does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from faces import eventually
from growth_helpers import PATIENT, Fleet, small, still_there
from moments import Killed, killed_at
from redis.client import Pipeline

from shardkit.admin import backup, changes, delete_data, last_known, remove
from shardkit.admin.changes import (
    Change,
    begin,
    open_changes,
    read_changes,
    require_open,
    taking_part,
)
from shardkit.admin.growth import (
    abort_move,
    apply_balance,
    measure_balance,
    plan_balance,
    plan_move,
    resume_move,
    reverse_move,
    start_split,
)
from shardkit.errors import ConfigError, GrowthError
from shardkit.local import LocalServer

backups: Any = import_module("shardkit.admin.backup")


def of(kind: str, *databases: str, **fields: Any) -> Change:
    return Change(kind=kind, name="users", databases=list(databases), **fields)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (of("split", "a/1", "b/2"), of("retire", "b/2")),
        (of("move", "a/*"), of("retire", "a/7")),
        (of("restore", "a/1"), of("move", "a/*")),
    ],
    ids=lambda change: change.kind,
)
def test_the_second_of_two_commands_that_touch_a_database_is_refused(
    own_server: LocalServer, one: Change, other: Change
) -> None:
    with own_server.client() as config:
        for first, second in ((one, other), (other, one)):
            config.delete(changes.CHANGES_KEY)
            begin(config, first)
            said = f"users: a {first.kind} of users .at work, started .* ago by .*/.* uses the sa"
            with pytest.raises(GrowthError, match=said):
                begin(config, second)
            begin(config, replace(second, databases=["c/2"]))
            assert len(open_changes(config)) == 2


def test_a_change_ends_with_its_process(
    own_server: LocalServer, lower: Callable[..., None]
) -> None:
    lower(change_lease=0.5)
    with own_server.client() as config:
        with taking_part(config, of("retire", "a/1")):
            [at_first] = read_changes(config)
            assert eventually(lambda: read_changes(config)[0].until > at_first.until), "renewed"
        assert open_changes(config) == []
        config.hset(changes.CHANGES_KEY, at_first.id, changes.text_of(at_first))  # was killed
        assert eventually(lambda: open_changes(config) == [])
        old = replace(at_first, id="old", ended=1.0)
        config.hset(changes.CHANGES_KEY, "old", changes.text_of(old))
        begin(config, of("retire", "a/1"))
        assert "old" not in [each.id for each in read_changes(config)]


def test_a_stopped_process_does_not_get_its_change_back(
    own_server: LocalServer, lower: Callable[..., None]
) -> None:
    lower(change_lease=0.5)
    with own_server.client() as config, taking_part(config, of("restore", "a/1")) as stopped:
        ended = replace(stopped, id="of the other", kind="split", until=0.0)
        config.delete(changes.CHANGES_KEY)
        begin(config, ended)
        time.sleep(0.5)  # the lease ends
        with pytest.raises(GrowthError, match="users: this process was stopped"):
            require_open(config, stopped)
        assert [each.id for each in open_changes(config)] == ["of the other"]


def test_a_balance_and_its_own_moves_overlap(fleet: Fleet) -> None:
    small(fleet)
    plan = plan_balance(fleet.config, measure_balance(fleet.config, to=[fleet.name(1)]))
    others = of("attach", f"{fleet.name(0)}/*")
    seen = []

    def look(step: str) -> None:
        seen.append([(each.kind, bool(each.within)) for each in open_changes(fleet.config)])
        with pytest.raises(GrowthError, match=r": a balance of .* uses the same databases"):
            begin(fleet.config, of("split", f"{fleet.name(1)}/1"))

    assert [each.phase for each in apply_balance(fleet.config, plan, progress=look)] == ["done"]
    assert [("balance", False), ("move", True)] in seen
    begin(fleet.config, others)


def test_retire_keeps_what_a_split_fills(fleet: Fleet) -> None:
    old = {"shards": [fleet.at(1, db=0), fleet.at(1, db=1)]}
    fleet.describe({"users": {"shards": [fleet.at(0, db=1), fleet.at(0, db=2)]}, "old": old})
    small(fleet)
    remove(fleet.config, last_known(fleet.config, "old"))
    refused = []

    def retire(step: str) -> None:
        if step == "holding writers" and not refused:
            with pytest.raises(GrowthError, match="old: a split of users") as raised:
                delete_data(last_known(fleet.config, "old"), quiet=0)
            refused.append(raised)

    start_split(
        fleet.config, "users", shards=4, over=[fleet.name(1)], hold=PATIENT, progress=retire
    )
    assert refused
    assert still_there(fleet)


def test_what_an_interrupted_move_needs_is_not_retired(fleet: Fleet) -> None:
    small(fleet)
    with killed_at("push"):
        fleet.move_shard()
    with pytest.raises(GrowthError, match=r"users: a move of users:1 \(fenced, .*resume users:1"):
        remove(fleet.config, last_known(fleet.config, "users"))
    assert resume_move(fleet.config, "users:1", hold=PATIENT).phase == "done"
    assert still_there(fleet)


@pytest.mark.parametrize("moment", ["watch", "unlink"])
def test_retire_that_was_stopped_deletes_nothing_of_others(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It wakes when a move has filled the database, or is about to."""
    old = {"shards": [fleet.at(1, db=0), fleet.at(1, db=2)]}
    fleet.describe({"users": {"shards": [fleet.at(0, db=1), fleet.at(0, db=2)]}, "old": old})
    small(fleet)
    remove(fleet.config, last_known(fleet.config, "old"))
    with fleet.servers[1].client() as client:
        client.set("k", 1)
    go_on = getattr(Pipeline, moment)

    def asleep(pipe: Any, *args: Any) -> Any:
        if args[0] in (b"k", "config:fence"):
            monkeypatch.setattr(Pipeline, moment, go_on)
            for each in open_changes(fleet.config):
                ended = changes.text_of(replace(each, until=1.0))
                fleet.config.hset(changes.CHANGES_KEY, each.id, ended)
            with fleet.servers[1].client() as client:
                client.delete("k")
                client.set("config:fence", "{}")
            fleet.move_shard()
        return go_on(pipe, *args)

    monkeypatch.setattr(Pipeline, moment, asleep)
    with pytest.raises(GrowthError, match=r"may be at work|nothing more was deleted"):
        delete_data(last_known(fleet.config, "old"), quiet=0)
    assert still_there(fleet)


@pytest.fixture
def cut_after_a_move(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have a shard move while a backup connects to the servers."""
    small(fleet)
    moved: list[Any] = []

    def feeds(*args: Any, real: Any = backups._feeds) -> Any:
        opened = list(real(*args))
        moved.extend([] if moved else [fleet.move_shard()])
        return opened

    monkeypatch.setattr(backups, "_feeds", feeds)
    return moved


def test_a_backup_begins_again_if_entries_change(
    fleet: Fleet, cut_after_a_move: list[Any], tmp_path: Path
) -> None:
    users = last_known(fleet.config, "users").component
    with fleet.servers[0].client(db=2) as old:
        keys = old.dbsize() - 1  # without the witness
    manifest = backup([users], tmp_path / "backup", config=fleet.config)
    assert cut_after_a_move[0].phase == "done"
    [there] = [each for each in manifest.servers if "users:1" in each.shards]
    assert there.server == fleet.name(1)
    assert there.keys["2"] >= keys


def test_a_backup_is_refused_if_entries_lead_to_what_a_move_has_left(
    fleet: Fleet, tmp_path: Path
) -> None:
    small(fleet)
    fleet.move_shard()
    fleet.config.flushall()  # and what there was before the move is restored
    shards = [fleet.at(0, db=db) for db in (1, 2)]
    fleet.describe({"users": {"shards": shards}}, force=["users"], above=50)
    users = last_known(fleet.config, "users").component
    said = rf"users:1 .{fleet.name(0)}/2. is closed by a move to {fleet.name(1)} .*shardkit changes"
    with pytest.raises(ConfigError, match=said):
        backup([users], tmp_path / "backup", config=fleet.config)


def test_a_backup_is_refused_while_entries_do_not_tell_where_the_data_is(
    fleet: Fleet, lower: Callable[..., None], tmp_path: Path
) -> None:
    small(fleet)
    lower(backup_pause=0.01)
    users = last_known(fleet.config, "users").component
    with taking_part(fleet.config, of("failover", "a/*")):
        said = "the fleet changed during each of 20 cuts .failover of users is at work.; try again"
        with pytest.raises(ConfigError, match=said):
            backup([users], tmp_path / "backup", config=fleet.config)
    assert not (tmp_path / "backup").exists()


def test_a_fence_that_could_be_evicted_stops_a_move(fleet: Fleet) -> None:
    small(fleet)
    for server in fleet.servers[:2]:
        with server.client() as client:
            client.config_set("maxmemory", 100_000_000)
            client.config_set("maxmemory-policy", "allkeys-lru")
    said = f"{fleet.name(0)} evicts keys .allkeys-lru., so it could lose config:fence.*volatile one"
    with pytest.raises(GrowthError, match=said):
        fleet.move_shard()
    for what in (["users:1"], fleet.name(0)):
        notes = plan_move(fleet.config, what, fleet.name(1)).notes
        assert any(f"{fleet.name(1)} evicts keys (allkeys-lru)" in note for note in notes)
    with fleet.servers[0].client() as client:
        client.config_set("maxmemory-policy", "volatile-lru")
    assert fleet.move_shard().phase == "done"


def test_the_abort_of_a_reversal_leaves_the_move(fleet: Fleet) -> None:
    small(fleet)

    def kill(step: str) -> None:
        if step == "comparing":
            raise Killed

    done = start_split(fleet.config, "users", shards=4, over=[fleet.name(1)], hold=PATIENT)
    with pytest.raises(Killed):
        reverse_move(fleet.config, "users", progress=kill)
    aborted = abort_move(fleet.config, "users")
    assert (aborted.undoes, aborted.phase) == (done.id, "aborted")
    assert reverse_move(fleet.config, "users", hold=PATIENT).phase == "done"
    assert still_there(fleet)
    states = [(each.kind, each.phase, each.undoes) for each in read_changes(fleet.config)]
    assert states == [
        ("split", "done", ""),
        ("split", "aborted", done.id),
        ("split", "done", done.id),
    ]


def test_damaged_records_of_others_are_left_out(own_server: LocalServer) -> None:
    with own_server.client() as config:
        config.hset(changes.CHANGES_KEY, "x", "no JSON")
        config.hset(changes.CHANGES_KEY, "y", "[]")
        assert read_changes(config) == []
