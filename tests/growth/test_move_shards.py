"""Moving some of a server's shards, on real servers, under clients that write at full speed."""

from __future__ import annotations

from growth_helpers import PATIENT, Fleet, check_nothing_lost, writing
from test_move_server import filled

from shardkit.growth import (
    reverse_shard_move,
    start_shard_move,
    verify_shard_move,
)
from shardkit.simulation.linearizability import Register, check_linearizable


def test_a_shard_is_moved_under_full_load_and_back_without_losing_anything(fleet: Fleet) -> None:
    fleet.push(0)
    filled(fleet)
    with writing(fleet) as writers:
        move = start_shard_move(fleet.config, ["users:1"], fleet.name(1), hold=PATIENT)
        assert fleet.masters() == [fleet.name(0), fleet.name(1)]
        assert move.phase == "done"
        assert move.certificate is not None
        assert move.certificate["same"]
        assert move.certificate["stale"] == []
        assert move.certificate["keys_now"] >= 106
        assert move.held is not None
        assert move.held < PATIENT
        with fleet.servers[0].client(db=2) as old, fleet.servers[1].client(db=2) as new:
            assert set(old.keys()) <= {b"config:fence", b"config:witness"}
            assert new.hlen("hash") == 3000
            assert new.object("encoding", "hash") == b"hashtable"
            assert 0 < new.ttl("soon") <= 1000
            assert new.config_get("notify-keyspace-events") == {"notify-keyspace-events": ""}
        back = reverse_shard_move(fleet.config, "users:1", hold=PATIENT)
        assert back.certificate is not None
        assert back.certificate["same"]
        assert fleet.masters() == [fleet.name(0)] * 2
    assert writers.errors == []
    check_nothing_lost(fleet, writers)
    check_linearizable(writers.history, Register())
    assert verify_shard_move(fleet.config, "users:1").certificate is not None
