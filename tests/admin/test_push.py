"""A push that cannot know what is there already is no push."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from arranged import map_of
from faces import PATIENCE

import shardkit
from shardkit import ShardMap
from shardkit.admin import push
from shardkit.admin.growth import start_move
from shardkit.errors import PushRefusedError
from shardkit.local import LocalServer


@pytest.fixture
def other_server(own_server: LocalServer) -> Iterator[LocalServer]:
    # Of the same kind: it can take over what the other one has.
    with LocalServer(replica_of=own_server) as server, server.client() as client:
        client.replicaof("NO", "ONE")
        yield server


def test_a_push_to_where_the_data_is_not_is_refused(
    own_server: LocalServer, other_server: LocalServer
) -> None:
    def shard_map(*servers: LocalServer) -> ShardMap:
        shards = [{"port": each.port, "db": n} for n, each in enumerate(servers, 1)]
        return ShardMap.parse(json.dumps({"components": {"users": {"shards": shards}}}))

    before, after = (shard_map(own_server, each) for each in (own_server, other_server))
    with own_server.client() as config:
        push(config, before)
        push(config, after)  # neither has data yet
        push(config, before)
        with shardkit.connect(before) as kit:
            kit.key_sharded("users").mset({f"k{n}": n for n in range(100)})
        address = f"localhost:{own_server.port}/2"
        said = (
            rf"users:1 \(\S+/2\) is empty, and {address} holds data; move the data from {address}"
        )
        with pytest.raises(PushRefusedError, match=said):
            push(config, after)
        with pytest.raises(PushRefusedError, match=said):
            push(config, after, force=["others"])
        assert int(config.get("config:epoch") or 0) == 3
        start_move(
            config, ["users:1"], f"localhost:{other_server.port}", hold=min(5, 0.5 * PATIENCE)
        )
        moved = int(config.get("config:epoch") or 0)
        with pytest.raises(PushRefusedError, match=r"users:1 .* is empty, and"):
            push(config, before)  # an old map
        assert int(config.get("config:epoch") or 0) == moved
        for options in ({"check": False}, {"force": ["users"]}, {"force": True}):
            push(config, before, **options)
            push(config, after)  # back to the data


def test_a_push_that_names_a_replica_as_a_master_is_refused(
    own_server: LocalServer, other_server: LocalServer
) -> None:
    with own_server.client() as config, other_server.client() as replica:
        push(config, map_of(own={"entry": {"port": own_server.port}}))
        replica.replicaof("localhost", str(own_server.port))
        changed = map_of(own={"entry": {"port": other_server.port}})
        with pytest.raises(PushRefusedError, match=r"own .* is a replica"):
            push(config, changed)
