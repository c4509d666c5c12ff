"""Writes to groups that need no split: what their script checks and leaves to others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.errors import DamagedDataError
from shardkit.local import LocalServer


@pytest.fixture
def kit(own_map: ShardMap) -> Iterator[ShardKit]:
    with shardkit.connect(own_map) as kit:
        yield kit


@pytest.fixture
def client(own_server: LocalServer) -> Iterator[Any]:
    with own_server.client() as client:
        yield client


def state_key(client: Any) -> bytes:
    [key] = client.keys("ids:{*}")
    assert isinstance(key, bytes)
    return key


def opened(kit: ShardKit) -> Any:
    return kit.set("ids", component="own", members=int, parts=1)


def test_one_member_costs_a_check_a_write_and_its_count(kit: ShardKit, client: Any) -> None:
    ids = opened(kit)
    ids.sadd(1, 2, 3)
    client.config_resetstat()
    assert ids.sadd(4) == 1
    assert ids.sadd(4) == 0
    assert ids.srem(4) == 1
    calls = {name: value["calls"] for name, value in client.info("commandstats").items()}
    assert calls["cmdstat_hmget"] == 3
    assert calls["cmdstat_hincrby"] == 2
    assert calls["cmdstat_pexpiretime"] == 2  # a part that is made expires with its group
    assert calls["cmdstat_sadd"] == 2
    assert "cmdstat_exists" not in calls
    assert client.hget(state_key(client), "count") == b"3"


@pytest.mark.parametrize("count", [b"many", b"-3", b"1.5"])
def test_damaged_states_stop_a_write(kit: ShardKit, client: Any, count: bytes) -> None:
    ids = opened(kit)
    ids.sadd(1, 2)
    client.hset(state_key(client), "count", count)
    with pytest.raises(DamagedDataError, match="count"):
        ids.sadd(3)
    assert client.smembers(state_key(client) + b":0") == {b"1", b"2"}


def test_full_groups_report_expiring_fields(kit: ShardKit, client: Any) -> None:
    table = kit.hash("ids", component="own", parts=1, partition="crc32")
    table.hset(mapping={f"f{n}": "v" for n in range(20)})
    # Another client has given fields a time to live, and most have expired since.
    client.hset(state_key(client), mapping={"expiring": 1, "count": 50_000})
    assert table.hset("new", "v") == 1
    assert table.hset("newer", "v") == 1
    assert client.hgetall(state_key(client))[b"parts"] == b"1"
    assert client.hgetall(state_key(client))[b"count"] == b"22"


def test_a_bulk_load_sends_dozens_of_members_in_a_command(kit: ShardKit, client: Any) -> None:
    ids = kit.set("ids", component="own", members=int)
    ids.sadd_many(range(60_000))
    client.config_resetstat()
    ids.sadd_many(range(60_000, 120_000))
    calls = client.info("commandstats")["cmdstat_sadd"]["calls"]
    assert 60_000 / calls > 24
    assert ids.scard() == 120_000
    assert all(client.object("encoding", key) == b"intset" for key in client.keys("ids:{*}:*"))
