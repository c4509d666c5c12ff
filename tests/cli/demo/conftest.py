"""Fixtures for the demo: servers of the laptop map that run once, empty for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from arranged import client_of

from shardkit import ShardMap
from shardkit.admin import push
from shardkit.local import LocalServers


@pytest.fixture(scope="package")
def laptop() -> Iterator[LocalServers]:
    """The servers of the laptop map, on free ports."""
    with LocalServers(ShardMap.load("configs/local.yaml"), ports="free") as servers:
        yield servers


@pytest.fixture
def url(laptop: LocalServers) -> str:
    """The URL of a config server that has the laptop map; all servers are empty otherwise."""
    for server in laptop.servers:
        client_of(server).flushall()
    assert laptop.config_server is not None
    with laptop.config_server.client() as client:
        push(client, laptop.shard_map, check=False)
    return f"redis://{laptop.config_server.address}/0"
