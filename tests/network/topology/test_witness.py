"""Data servers witness pushes: who starts over a restored config server notices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis
from faces import Face, faced
from link_helpers import cut, paused

from shardkit import ShardMap, admin
from shardkit.errors import ConfigServerError, ShardErrors
from shardkit.local import LocalServer

Connect = Callable[[], Face]


@pytest.fixture
def config(server: LocalServer) -> Iterator[redis.Redis]:
    with server.client() as client:
        client.flushall()
        yield client


@pytest.fixture
def connect(kind: str, server: LocalServer) -> Iterator[Connect]:
    """Open a kit of either face on the config server, as a client that just started."""
    with ExitStack() as kits:
        yield lambda: kits.enter_context(faced(kind, f"redis://{server.address}"))


def described(server: LocalServer, *databases: int) -> ShardMap:
    shards = ", ".join(f"{{port: {server.port}, db: {n}}}" for n in databases)
    return ShardMap.parse(f"components: {{data: {{shards: [{shards}]}}}}")


def witness(server: LocalServer, epoch: int, *databases: int) -> None:
    for number in databases:
        with server.client(db=number) as client:
            client.zadd("config:witness", {"data": epoch}, gt=True)


def load(face: Face) -> None:
    face.run(face.kit.load("data")) if face.runner else face.kit.component("data")


def incr(face: Face) -> int:
    names = face.kit.hash("names", component="data")
    count: int = face.run(names.hincrby("0", 1))
    return count


def test_an_old_snapshot_stops(server: LocalServer, config: redis.Redis, connect: Connect) -> None:
    admin.push(config, described(server, 1, 2), check=False)
    witness(server, 7, 2, 3)  # of a push that moved shard 0 from database 1 to 3
    face = connect()
    expected = r"went back in time: config:epoch was 7 and is 1, .* --above 7"
    strings = face.kit.strings("s", component="data")
    with pytest.raises((ShardErrors, ConfigServerError)) as refused:
        face.run(strings.mset({"a": "1", "b": "2", "c": "3"}))
    assert re.search(expected, str(refused.value))
    admin.push(config, described(server, 3, 2), force=True, above=7, check=False)
    face.kit.topology.expire()
    face.run(strings.mset({"a": "1", "b": "2", "c": "3"}))
    assert config.zscore("config:witness", "data") is None


def test_unread_pushes_pass(server: LocalServer, config: redis.Redis, connect: Connect) -> None:
    admin.push(config, described(server, 1), check=False)
    face = connect()
    load(face)
    admin.push(config, described(server, 1, 2), force=True, check=False)
    witness(server, 2, 1)
    assert incr(face) == 1


def test_while_the_config_server_is_away_the_known_entries_stay_in_use(
    server: LocalServer, config: redis.Redis, connect: Connect
) -> None:
    with LocalServer() as data:
        admin.push(config, described(data, 1), check=False)
        face = connect()
        load(face)
        witness(data, 2, 1)
        with paused(server):
            assert incr(face) == 1
        cut(data)
        with pytest.raises((ShardErrors, ConfigServerError)) as refused:
            incr(face)  # the next connection asks again
    failures = getattr(refused.value, "exceptions", [refused.value])
    assert "went back in time" in str(failures[0])
