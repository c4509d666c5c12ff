"""Writes to groups that need no split: what their script checks and leaves to others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import shardkit
from shardkit import ShardKit, ShardMap
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
