"""Writes that are on replicas, or on disk, when their block ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from faces import Face, faced
from replication_helpers import BINARIES

from shardkit import ShardMap
from shardkit.errors import InvalidArgumentError, NotDurableError
from shardkit.local import LocalServer


@pytest.fixture(scope="module", params=list(BINARIES))
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[LocalServer, LocalServer]]:
    """A master with an AOF, and its replica, of each kind of server."""
    binary = BINARIES[request.param]
    config = {"repl-diskless-sync-delay": 0, "appendonly": True}
    with (
        LocalServer(binary=binary, config=config) as master,
        LocalServer(binary=binary, replica_of=master) as replica,
    ):
        yield master, replica


@pytest.fixture(params=["blocking", "awaiting"])
def opened(request: pytest.FixtureRequest, pair: tuple[LocalServer, LocalServer]) -> Iterator[Face]:
    shards = [{"port": pair[0].port, "db": n} for n in range(4)]
    text = json.dumps({"components": {"users": {"shards": shards}}})
    with faced(request.param, ShardMap.parse(text)) as face:
        yield face


def write(face: Face, **options: Any) -> None:
    """Write two keys on different shards in a durable block."""
    router = face.kit.key_sharded("users")

    async def awaited() -> None:
        async with face.kit.durable(**options):
            await router.mset({"a": 1, "b": 2})
            await router["c"].set("c", 3)

    if face.runner:
        face.run(awaited())
        return
    with face.kit.durable(**options):
        router.mset({"a": 1, "b": 2})
        router["c"].set("c", 3)


def test_what_is_written_is_on_the_replica_and_on_disk_when_the_block_ends(
    opened: Face, pair: tuple[LocalServer, LocalServer]
) -> None:
    write(opened, replicas=1, fsync=True, timeout=10)
    number = opened.kit.plane.topology.component("users").place("c")
    with pair[1].client(db=number) as client:
        assert client.get("c") == b"3"


def test_a_replica_that_hangs_or_is_missing_is_told(
    opened: Face, pair: tuple[LocalServer, LocalServer]
) -> None:
    with pytest.raises(NotDurableError, match="1 of 2 replicas"):
        write(opened, replicas=2, timeout=0.3)
    pair[1].pause()
    try:
        with pytest.raises(NotDurableError, match="0 of 1 replicas"):
            write(opened, replicas=1, timeout=0.3)
    finally:
        pair[1].resume()
    write(opened, replicas=1, timeout=10)


def test_blocks_that_only_read_and_wrong_arguments(opened: Face) -> None:
    router = opened.kit.key_sharded("users")
    if opened.runner is None:
        with opened.kit.durable(replicas=9, timeout=0.1):
            router.mget(["a", "b"])
    for wrong in ({"replicas": -1}, {"replicas": 0}, {"timeout": 0}, {"fsync": 1}):
        with pytest.raises(InvalidArgumentError, match="durable"):
            opened.kit.durable(**wrong)
