"""Servers that evict keys: a warning, and what they take first."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from faces import Face, faced

from shardkit.local import LocalServers
from shardkit.log_records import Once

MAP = """
components:
  data: {shards: {count: 4, over: [{port: 7001}]}}
  cached: {entry: {port: 7001}}
"""


@pytest.fixture
def full(kind: str, own_servers: LocalServers) -> Iterator[tuple[Face, Any]]:
    """A kit, and a client of its one server, whose memory limit a test may set."""
    with own_servers.servers[0].client() as client, faced(kind, own_servers.shard_map) as face:
        client.flushall()
        yield face, client
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")


def test_the_first_write_warns_of_eviction_once(
    full: tuple[Face, Any], caplog: pytest.LogCaptureFixture, lower: Any
) -> None:
    face, client = full
    lower(eviction_warnings=Once())
    with caplog.at_level(logging.WARNING, "shardkit.structures"):
        face.run(face.kit.set("a", component="cached").sadd("x"))
        assert caplog.records == []
        client.config_set("maxmemory-policy", "volatile-lru")
        face.run(face.kit.set("a", component="cached").sadd("y"))
        face.run(face.kit.set("b", component="cached").sadd("y"))
    [record] = caplog.records
    assert "cached: the server of a:meta has maxmemory-policy volatile-lru" in record.getMessage()
    assert "set it to noeviction" in record.getMessage()


def test_volatile_eviction_takes_parts_of_later_generations(full: tuple[Face, Any]) -> None:
    face, client = full
    names = ("first life", "expires", "created again")
    for name in names:
        made = face.kit.set(name, component="data", total=100, part_size=4, members=int)
        face.run(made.sadd(*range(40)))
        if name == "created again":
            face.run(made.delete())
            face.run(made.sadd(*range(40)))
            assert face.run(made.ttl()) == -1
        elif name == "expires":
            face.run(made.expire(1000))
    client.config_set("maxmemory-eviction-tenacity", 100)
    client.config_set("maxmemory-policy", "volatile-lru")
    client.config_set("maxmemory", 1)
    with pytest.raises(redis.exceptions.OutOfMemoryError, match="maxmemory"):
        client.set("more", "x")
    client.config_set("maxmemory", 0)
    found = {}
    for name in names:
        made = face.kit.set(name, component="data", total=100, part_size=4, members=int)
        found[name] = len(face.run(made.smembers()))
    assert found == {"first life": 40, "expires": 0, "created again": 0}
