"""A shard map's file as the source of entries."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from topology_helpers import Clock

from shardkit.errors import ConfigError, InvalidEntryError, MissingEntryError
from shardkit.network.topology import MapFile, Topology

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
