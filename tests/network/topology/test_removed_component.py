"""A component that a push removed is no longer used; one whose entries are lost stays in use.

And maps in files.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from faces import eventually, faced
from link_helpers import hearing
from topology_helpers import Clock

import shardkit
from shardkit import ShardMap, admin, events
from shardkit.errors import ConfigError, InvalidEntryError, MissingEntryError, RetiredError
from shardkit.local import LocalServer
from shardkit.network.topology import MapFile, Topology


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
    began = time.monotonic()
    with hearing(told):
        assert kit.component("stays").epoch == 2
    assert seen == [2]
    assert time.monotonic() - began < 5


MAP = """
components:
  few: {{shards: {{count: {shards}, over: [{{port: {port}}}]}}}}
  one: {{entry: {{port: {port}, db: 15, password: s3cret}}}}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "map.yaml", shards=4)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def write(path: Path, shards: int = 4, port: int = 7001, text: str = "") -> Path:
    """Put a map in the file's place, as an editor or a config map's mount does."""
    other = path.with_suffix(".new")
    other.write_text(text or MAP.format(shards=shards, port=port))
    os.replace(other, path)
    return path


@pytest.fixture
def topology(path: Path, clock: Clock) -> Topology:
    return Topology(MapFile(path), clock=clock)


def port_of(topology: Topology) -> int:
    return topology.component("one").entry.fields["port"]


def next_port(topology: Topology, clock: Clock) -> int:
    """The port a second later."""
    clock.now += 1.01
    return port_of(topology)


@pytest.mark.parametrize(
    "broken",
    [
        "components: {few: {shards: [{port: 99999999}]}, one: {entry: {port: 1}}}",
        "components: {few: {shards: [{port: 1",
        "[]",
        "components: {few: {entry: {password:s3cret}}}",
    ],
)
def test_a_broken_change_keeps_the_old_map_and_is_said_once(
    topology: Topology, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    caplog.set_level(logging.INFO, "shardkit")
    known = topology.component("few"), topology.component("one")
    write(path, text=broken)
    for _ in range(5):
        clock.now += 1.01
        assert (topology.component("few"), topology.component("one")) == known
    [said] = caplog.messages
    assert str(path) in said
    assert "keeps its last good entries" in said
    write(path, port=7003)
    assert next_port(topology, clock) == 7003
    assert topology.component("few").entry_of(known[0].all_shards()[0]).fields["port"] == 7003
    assert caplog.messages[1:] == ["component 'one' can be read again"]
    assert "s3cret" not in caplog.text


def test_a_missing_file_keeps_the_old_map(topology: Topology, path: Path, clock: Clock) -> None:
    assert port_of(topology) == 7001
    path.unlink()
    assert next_port(topology, clock) == 7001
    write(path, port=7004)
    assert next_port(topology, clock) == 7004


def test_a_component_that_leaves_the_map_keeps_its_entries_for_who_has_seen_it(
    topology: Topology, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    known = topology.component("few")
    write(path, text="components: {one: {entry: {port: 7001}}}")
    clock.now += 1.01
    assert topology.component("few") is known
    [said] = caplog.messages
    assert f"config:redis:few is missing: {path} does not describe component 'few'" in said
    with pytest.raises(MissingEntryError, match="config:redis:few is missing"):
        Topology(MapFile(path)).component("few")


def test_a_file_that_cannot_be_used_at_first_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        MapFile(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="it is no regular file"):
        MapFile(tmp_path)
    with pytest.raises(InvalidEntryError, match="99999999"):
        MapFile(write(tmp_path / "map.yaml", port=99999999))


def test_a_change_in_the_same_tick_is_seen(topology: Topology, path: Path, clock: Clock) -> None:
    assert port_of(topology) == 7001
    before = path.stat()
    path.write_text(MAP.format(shards=4, port=7002))  # in place, and of the same size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert next_port(topology, clock) == 7002


def test_a_component_that_was_never_read_comes_from_the_last_good_map(
    topology: Topology, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(path, text="components: {few: {sha")
    assert port_of(topology) == 7001
    assert "component 'one' is read from the last good map" in caplog.text
    with pytest.raises(ConfigError, match="is not YAML"):
        topology.component("other")
