"""Splitting parts when shards fail: nothing is lost on the other shards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from faces import Face, faced, over, sends

from shardkit import ShardMap
from shardkit.errors import ShardErrors, ShardUnavailable
from shardkit.local import LocalServers

MAP = """
components:
  data: {shards: [{port: 7001}, {port: 7002}]}
"""


@pytest.fixture(scope="module")
def own_servers() -> Iterator[LocalServers]:
    with LocalServers(ShardMap.parse(MAP), ports="free") as running:
        yield running


@pytest.fixture(params=["blocking", "awaiting"])
def face(request: pytest.FixtureRequest, own_servers: LocalServers) -> Iterator[Face]:
    for server in own_servers.servers:
        if not server.running:
            server.restart()
        with server.client() as client:
            client.flushall()
    with faced(request.param, own_servers.shard_map) as opened:
        yield opened


def test_writes_can_be_repeated_after_a_dead_shard(face: Face, own_servers: LocalServers) -> None:
    ids = face.kit.set("ids", component="data", members=int, part_size=64)
    assert face.run(ids.sadd_many(range(2000))) == 2000
    own_servers.server_of("data", 1).kill()
    with pytest.raises(ShardErrors) as caught:
        face.run(ids.sadd_many(range(2000, 4000)))
    assert {failure.shard for failure in caught.value.exceptions} == {"data:1"}
    assert all(isinstance(failure, ShardUnavailable) for failure in caught.value.exceptions)
    own_servers.server_of("data", 1).restart()
    # That server lost its data, and its groups are as at first: no client was told.
    face.run(ids.sadd_many(range(4000)))
    assert face.run(ids.scard()) == 4000
    assert sorted(face.run(ids.smembers())) == list(range(4000))
    assert face.run(ids.smismember(3999, 4000)) == [True, False]


def test_no_field_is_in_two_parts_when_a_server_dies_while_parts_split(
    face: Face, own_servers: LocalServers
) -> None:
    killer = threading.Thread(target=own_servers.server_of("data", 0).kill)
    link = face.kit.driver.link

    def kill_at_a_split(batch: Any) -> Any:
        if written and sends(batch, "structures/layouts/write_growing") and not killer.ident:
            killer.start()
        return link.send(batch)

    kit = over(face.kit, SimpleNamespace(send=kill_at_a_split))
    fields = kit.hash("h", component="data", part_size=16, parts=2, partition="crc32")
    written = 0

    def write() -> None:
        nonlocal written
        while written < 200_000:
            some = {f"f{n}": str(n) for n in range(written, written + 100)}
            face.run(fields.hset(mapping=some))
            written += 100

    with pytest.raises(ShardErrors, match="data:0"):
        write()
    killer.join()
    with own_servers.server_of("data", 1).client() as client:
        held = [field for key in client.scan_iter("h:*:*") for field in client.hkeys(key)]
    assert len(held) == len(set(held))
    own_servers.server_of("data", 0).restart()
    every = {f"f{n}": str(n).encode() for n in range(written + 100)}
    face.run(fields.hset(mapping={field: value.decode() for field, value in every.items()}))
    assert face.run(fields.hgetall()) == every
