"""A component that a push removed is no longer used; one whose entries are lost stays in use."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from faces import eventually, faced

import shardkit
from shardkit import ShardMap, admin, events
from shardkit.errors import RetiredError
from shardkit.local import LocalServer


@pytest.fixture
def config(server: LocalServer) -> Iterator[redis.Redis]:
    with server.client() as client:
        client.flushall()
        admin.push(client, described(server), check=False)
        yield client


@pytest.fixture
def kit(server: LocalServer, config: redis.Redis) -> Iterator[Any]:
    with shardkit.connect(f"redis://{server.address}") as opened:
        yield opened


def described(server: LocalServer, *names: str) -> ShardMap:
    shards = f"{{shards: [{{port: {server.port}, db: 1}}, {{port: {server.port}, db: 2}}]}}"
    texts = [f"{name}: {shards}" for name in names or ("stays", "goes")]
    return ShardMap.parse(f"components: {{{', '.join(texts)}}}")


def prune(config: redis.Redis, server: LocalServer, message: str = "") -> None:
    admin.push(
        config, described(server, "stays"), prune=True, force=True, message=message, check=False
    )


def test_clients_drop_a_removed_component(
    server: LocalServer, config: redis.Redis, kit: Any
) -> None:
    router = kit.key_sharded("goes")
    router["key"].set("key", 1)
    prune(config, server, "replaced by stays")
    kit.topology.expire()
    with pytest.raises(RetiredError, match=r" by a push .* \(epoch 2: replaced by stays\)"):
        router["key"]
    config.set("config:removed:goes", "2")  # as earlier releases wrote it
    kit.topology.expire()
    with pytest.raises(RetiredError, match=r" by a push .* \(epoch 2\)"):
        router["key"]
    kit.key_sharded("stays")["key"].set("key", 1)
    assert kit.components() == ["stays"]
    admin.push(config, described(server), check=False)
    kit.topology.expire()
    assert router["key"].get("key") == b"1"
    assert not config.exists("config:removed:goes")


def test_structures_stop_too(kind: str, server: LocalServer, config: redis.Redis) -> None:
    with faced(kind, f"redis://{server.address}") as face:
        ids = face.kit.set("ids", component="goes", total=100, members=int)
        face.run(ids.sadd(1))
        prune(config, server)
        face.kit.topology.expire()
        with pytest.raises(RetiredError, match="'goes' was removed by a push on config"):
            face.run(ids.sadd(2))


def test_idle_kits_drop_a_removed_component(server: LocalServer, config: redis.Redis) -> None:
    before = len(watching())
    with shardkit.connect(f"redis://{server.address}") as kit:
        pool = kit.client("goes", 0).connection_pool
        kit.client("goes", 0).ping()
        assert pool.get_connection_count()[0][0] == 1
        prune(config, server)
        assert eventually(lambda: pool.get_connection_count()[0][0] == 0)
        assert eventually(lambda: len(watching()) <= before + 1)
    assert eventually(lambda: len(watching()) <= before)


def watching() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "shardkit-watch"]


def test_a_new_entry_whose_reference_is_not_set_here_leaves_the_good_ones_in_use(
    server: LocalServer, config: redis.Redis, kit: Any, caplog: pytest.LogCaptureFixture
) -> None:
    router = kit.key_sharded("stays")
    router["key"].set("key", 1)
    text = f'{{"port": {server.port}, "db": 1, "password": "${{NOT_SET_HERE}}"}}'
    config.mset({"config:redis:stays:0": text, "config:redis:stays:1": text})
    kit.topology.expire()
    assert router["key"].get("key") == b"1"
    assert "keeps its last good entries" in caplog.text
    assert "NOT_SET_HERE" in caplog.text


def test_a_handler_that_is_told_of_a_change_may_call_the_kit(
    server: LocalServer, config: redis.Redis, kit: Any
) -> None:
    """In the thread that has just read the change, and must not wait for itself."""
    seen: list[int] = []

    def told(event: events.Event) -> None:
        if isinstance(event, events.EntryChanged):
            seen.append(kit.component("stays").epoch)

    assert kit.component("stays").epoch == 1
    changed = f"{{shards: [{{port: {server.port}, db: 3}}, {{port: {server.port}, db: 2}}]}}"
    admin.push(config, ShardMap.parse(f"components: {{stays: {changed}}}"), force=True, check=False)
    kit.topology.expire()
    stop = events.subscribe(told)
    began = time.monotonic()
    try:
        assert kit.component("stays").epoch == 2
    finally:
        stop()
    assert seen == [2]
    assert time.monotonic() - began < 5
