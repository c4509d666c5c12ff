"""Movers that were stopped for longer than their lease, and go on after somebody else has."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis
from click.testing import CliRunner
from faces import eventually
from growth_helpers import PATIENT, Fleet, small, still_there

import shardkit
from shardkit.admin.growth import (
    Move,
    abort_move,
    entries,
    fail_over,
    failover,
    journal,
    moves,
    resume_move,
    reverse_move,
    rule,
    server_move,
    shard_move,
    start_move,
    verify_move,
)
from shardkit.cli.app import app
from shardkit.errors import ConfigError, GrowthError
from shardkit.local import LocalServer


class Losing(redis.Redis):
    """A client to whom a move is listed that is deleted before it is read."""

    def get(self, name: Any) -> Any:
        self.delete("config:growth:move:lost")
        return super().get(name)


def test_a_move_that_goes_while_moves_are_read_is_not_shown(own_server: LocalServer) -> None:
    with Losing(port=own_server.port) as config:
        for shard in ("lost", "there"):
            with journal.lease(config) as lease:
                lease.write(Move(shard, "keys", "a:1", "b:1", [shard]))
        config.set("config:growth:move:lost", "unreadable")
        assert [each.name for each in moves(config)] == ["there"]


ENDED = "Another process may have taken over"


def asleep_at(
    monkeypatch: pytest.MonkeyPatch,
    fleet: Fleet,
    owner: Any,
    moment: str,
    meanwhile: Callable[[], object],
) -> None:
    """Have a mover be stopped when it first calls a function, until others have done something."""
    go_on = getattr(owner, moment)

    def asleep(*args: object, **options: object) -> object:
        monkeypatch.setattr(owner, moment, go_on)
        fleet.config.delete("config:growth:lease")
        meanwhile()
        return go_on(*args, **options)

    monkeypatch.setattr(owner, moment, asleep)


def test_a_lease_is_renewed_while_it_is_held(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "LEASE", 1.0)
    with journal.lease(fleet.config):
        fleet.config.pexpire("config:growth:lease", 3_600_000)
        assert eventually(lambda: fleet.config.pttl("config:growth:lease") <= 1000)
    assert not fleet.config.exists("config:growth:lease"), "others may have it"


def masters_write(fleet: Fleet) -> bool:
    """Whether the servers that entries name take writes, and have what there was."""
    with shardkit.connect(fleet.url) as kit:
        router = kit.key_sharded("users")
        for n in range(50):
            router[f"more{n}"].incr(f"more{n}")
    return still_there(fleet)


@pytest.mark.parametrize(
    ("owner", "moment"),
    [
        (server_move, "wait_for_copy"),
        (server_move, "take_writes_alone"),
        (entries, "relocated"),
        (server_move.ServerMover, "_certify"),
        (rule, "moved"),
        (shard_move, "attest"),
    ],
)
def test_a_mover_that_slept_leaves_alone_what_was_moved_back_meanwhile(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, owner: Any, moment: str
) -> None:
    small(fleet)
    source, target = fleet.name(0), fleet.name(1)
    of_shards = owner in (rule, shard_move)
    name = "users:1" if of_shards else source

    def meanwhile() -> None:
        resume_move(fleet.config, name, hold=PATIENT)
        reverse_move(fleet.config, name, hold=PATIENT)

    asleep_at(monkeypatch, fleet, owner, moment, meanwhile)
    with pytest.raises(GrowthError, match=ENDED):
        fleet.move(of_shards, hold=PATIENT)
    records = {each.name: (each.target, each.phase) for each in moves(fleet.config)}
    assert records == (
        {name: (source, "done")}  # of the way back
        if of_shards
        else {source: (target, "done"), target: (source, "done")}
    )
    assert fleet.masters() == [source] * 2
    assert masters_write(fleet)


def test_a_mover_that_slept_sees_the_abort(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    small(fleet)
    source = fleet.name(0)
    asleep_at(
        monkeypatch,
        fleet,
        server_move,
        "take_writes_alone",
        lambda: abort_move(fleet.config, source),
    )
    with pytest.raises(GrowthError, match=ENDED):
        start_move(fleet.config, source, fleet.name(1), hold=PATIENT)
    assert [each.phase for each in moves(fleet.config)] == ["aborted"]
    assert masters_write(fleet)


def test_a_late_push_changes_nothing_after_an_abort(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(fleet)
    before = fleet.config.get("config:redis:users:1")
    asleep_at(monkeypatch, fleet, entries, "push", lambda: abort_move(fleet.config, "users:1"))
    with pytest.raises(GrowthError, match=ENDED):
        fleet.move_shard()
    assert fleet.config.get("config:redis:users:1") == before


@pytest.mark.parametrize("kind", ["set", "rpush"])
def test_a_lease_without_an_end_gets_one(fleet: Fleet, kind: str) -> None:
    small(fleet)
    getattr(fleet.config, kind)("config:growth:lease", "gone/1/x")
    who = "gone/1" if kind == "set" else "another process"
    with pytest.raises(GrowthError, match=f"^{who} is working on a move or failover; wait"):
        fleet.move_server()
    assert 0 < fleet.config.pttl("config:growth:lease") <= 10_000


@pytest.mark.parametrize("of_shards", [True, False])
def test_a_stale_record_points_no_entries_at_an_empty_place(fleet: Fleet, of_shards: bool) -> None:
    small(fleet)
    phase = "fenced" if of_shards else "promoted"
    move = fleet.move(of_shards, hold=PATIENT)
    reverse_move(fleet.config, move.name, hold=PATIENT)
    with journal.lease(fleet.config) as lease:  # as in an old snapshot of the config server
        lease.write(replace(move, phase=phase))
    said = f"the record is out of date; find out .* DEL config:growth:move:{move.name}$"
    with pytest.raises(GrowthError, match=said):
        resume_move(fleet.config, move.name)
    assert fleet.masters() == [fleet.name(0)] * 2
    assert still_there(fleet)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("source", None), ("source", "a:b"), ("shards", 7), ("sources", ["1"])),
        *(("fences", []), ("fences", {"1": 1}), ("certificate", []), ("phase", "x")),
        *(("others", ["/"]), ("copying", [1]), ("format", "2")),
    ],
)
def test_a_damaged_record_is_named(own_server: LocalServer, field: str, value: object) -> None:
    key = "config:growth:move:users:1"
    said = f"^{key} does not describe a move; check it, and delete it"
    with own_server.client() as config:
        with journal.lease(config) as lease:
            lease.write(Move("users:1", "keys", "a:1", "b:1", ["users:1"], ["a:1/1"], ["b:1/1"]))
            lease.write(Move("users:2", "keys", "a:1", "b:1", ["users:2"], phase="done"))
        assert len(moves(config)) == 2
        config.set(key, json.dumps({**json.loads(config.get(key)), field: value}))
        with pytest.raises(ConfigError, match=said):
            moves(config)
        config.delete(key)
        config.rpush(key, "x")
        with pytest.raises(ConfigError, match=said):
            resume_move(config, "users:1")
        assert journal.read(config, "users:2").phase == "done"
    where = f"redis://127.0.0.1:{own_server.port}"
    shown = CliRunner().invoke(app, ["move", "status", "--config", where])
    assert shown.exit_code == 1
    assert f"{key} does not describe a move" in shown.stderr
    assert "users:2" in shown.stdout


def test_a_late_failover_promotes_nothing(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, _ = fleet.servers
    small(fleet)
    fleet.replicated(1, 2)
    a.kill()
    asleep_at(
        monkeypatch,
        fleet,
        failover,
        "take_writes_alone",
        lambda: fail_over(fleet.config, "users:0", fleet.name(2)),
    )
    with pytest.raises(GrowthError, match=ENDED):
        fail_over(fleet.config, "users:0", fleet.name(1))
    assert fleet.masters() == [fleet.name(2)] * 2
    with b.client() as client:
        assert client.info("replication")["role"] == "slave"
    assert masters_write(fleet)


def test_a_verification_keeps_a_new_move(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    small(fleet)
    fleet.move_shard()
    with monkeypatch.context() as patched:
        asleep_at(
            patched,
            fleet,
            shard_move.ShardMover,
            "_note_strays",
            lambda: reverse_move(fleet.config, "users:1", hold=PATIENT),
        )
        assert verify_move(fleet.config, "users:1").target == fleet.name(1)
    assert [each.target for each in moves(fleet.config)] == [fleet.name(0)]
    fleet.move_server(to=2, hold=PATIENT)
    written = fleet.config.get(f"config:growth:move:{fleet.name(0)}")
    fleet.config.set("config:growth:lease", "somebody")
    assert verify_move(fleet.config, fleet.name(0)).phase == "done", "it finds what it finds"
    assert fleet.config.get(f"config:growth:move:{fleet.name(0)}") == written
