"""What a move looks at again before steps that cannot be undone, as others may have changed it."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from faces import eventually
from growth_helpers import PATIENT, Fleet, follow, small, still_there
from moments import killed_at
from test_woken_commands import Case

import shardkit
from shardkit.admin import growth
from shardkit.admin.growth import (
    awaiting,
    fail_over,
    moves,
    shard_move,
    start_split,
)
from shardkit.errors import ConfigServerError, GrowthError, InvalidArgumentError

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
    small(fleet)
    with killed_at(moment):
        fleet.move_server()
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
    with killed_at("take writes alone"):
        fleet.move_server()
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
    with fleet.servers[1].client(db=1) as client:
        assert bool(client.dbsize()) is is_resumed, "an abort empties the new server"


@faces
def test_a_move_of_a_server_follows_a_failover_of_the_new_one(fleet: Fleet, face: str) -> None:
    small(fleet)
    with killed_at("server: certify"):
        fleet.move_server()
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
    small(fleet)
    with killed_at(moment):
        fleet.move_server()
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
    small(fleet)
    with killed_at("caught up"):
        fleet.move_shard()
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
@pytest.mark.parametrize("kind", ["move", "split"])
def test_entries_that_somebody_has_led_elsewhere_stop_a_move(
    fleet: Fleet, tmp_path: Path, face: str, moment: str, kind: str
) -> None:
    small(fleet)
    with killed_at(moment):
        if kind == "move":
            fleet.move_shard()
        else:
            start_split(fleet.config, "users", shards=3, over=[fleet.name(1)], hold=PATIENT)
    fleet.run("config", "pull", "-o", str(tmp_path / "map"))
    count = json.loads(fleet.config.get("config:shards:users"))["shards"]
    elsewhere = [fleet.at(2, db=db) for db in range(5, 5 + count)]
    fleet.describe({"users": {"shards": elsewhere}}, force=True)
    name = "users" if kind == "split" else "users:1"
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
    older = {key: fleet.config.dump(key) for key in fleet.config.scan_iter("config:*")}
    with killed_at(moment):
        fleet.move_shard()
    fleet.config.flushall()
    for key, value in older.items():
        fleet.config.restore(key, 0, value or b"")
    with pytest.raises(GrowthError, match=rf"{fleet.name(0)}/2 is closed by another move: noth"):
        call(face, "start_move", fleet.config, ["users:1"], fleet.name(2))
    call(face, "repair_changes", fleet.config)
    assert [(each.phase, each.target) for each in moves(fleet.config)] == [("done", fleet.name(1))]
    assert still_there(fleet)


def restart_empty(fleet: Fleet) -> None:
    """Have the source lose its keys."""
    server = fleet.servers[0]
    with server.client() as client:
        client.config_set("save", "")
    server.kill()
    for snapshot in Path(server.directory).rglob("*.rdb"):
        snapshot.unlink()
    server.restart()


@faces
@pytest.mark.parametrize("kind", ["move", "split"])
def test_the_copy_of_a_source_that_comes_back_empty_is_kept(
    fleet: Fleet, face: str, kind: str
) -> None:
    small(fleet)
    with killed_at("caught up"):
        if kind == "move":
            fleet.move_shard()
        else:
            start_split(fleet.config, "users", shards=3, over=[fleet.name(1)], hold=PATIENT)
    name = "users" if kind == "split" else "users:1"
    copied = keys_in(fleet, 1)
    assert copied
    restart_empty(fleet)
    said = (
        f"{fleet.name(0)} has come back without its keys, and {fleet.name(1)} has what was copied"
    )
    with pytest.raises(GrowthError, match=said):
        call(face, "resume_move", fleet.config, name, hold=PATIENT)
    assert keys_in(fleet, 1) == copied
    assert call(face, "abort_move", fleet.config, name).phase == "aborted"
    assert keys_in(fleet, 1) == copied


def test_keys_that_clients_delete_are_not_lost(fleet: Fleet) -> None:
    small(fleet)
    with killed_at("caught up"):
        fleet.move_shard()
    with fleet.servers[0].client(db=2) as client:
        client.flushdb()
    assert growth.resume_move(fleet.config, "users:1", hold=PATIENT).phase == "done"
    assert not keys_in(fleet, 1)


@pytest.mark.parametrize("words", [["persistence", "apply", "everysec"], ["doctor", "--fix"]])
def test_settings_of_a_server_wait_for_moves_of_its_other_databases(
    fleet: Fleet, words: list[str]
) -> None:
    small(fleet)
    shards = {"shards": [fleet.at(0, db=db) for db in (1, 2)]}
    fleet.describe({"users": shards, "other": {"entry": fleet.at(0, db=5)}})
    with killed_at("caught up"):
        fleet.move_shard()
    done = fleet.run(*words, "other", code=1)
    assert "a move of users:1 (begun," in done.output, done.output


def test_a_server_that_is_away_hides_no_move(fleet: Fleet) -> None:
    small(fleet)
    with killed_at("caught up"):
        fleet.move_shard()
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
        assert eventually(lambda: [each.phase for each in moves(fleet.config)] == ["kept"], 60)
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
        with self.fleet.servers[0].client(db=2) as client:
            client.flushdb()

    def act(self) -> None:
        """Move the shard back, and end the command's lease."""
        self.ends("move", "reverse", "users:1", "--hold", "3")

    def check(self, woken: bool) -> None:
        super().check(woken)
        with self.fleet.servers[0].client(db=2) as client:
            assert client.exists("config:fence") is not woken


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
