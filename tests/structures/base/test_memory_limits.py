"""Full servers leave nothing half written, and eviction is announced."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date
from itertools import count
from typing import Any

import pytest
import redis
from faces import Face, faced, sessions

from shardkit import ShardErrors, ShardMap
from shardkit.local import LocalServers
from shardkit.log_records import Once
from shardkit.structures.base import parameters

MAP = """
components:
  data: {shards: {count: 4, over: [{port: 7001}]}}
  cached: {entry: {port: 7001}}
"""
DAY = date(2015, 5, 17)


@pytest.fixture(scope="module")
def servers() -> Iterator[LocalServers]:
    with LocalServers(ShardMap.parse(MAP), ports="free") as running:
        yield running


@pytest.fixture(params=["blocking", "awaiting"])
def full(request: pytest.FixtureRequest, servers: LocalServers) -> Iterator[tuple[Face, Any]]:
    """A kit, and a client of its one server, whose memory limit a test may set."""
    with servers.servers[0].client() as client, faced(request.param, servers.shard_map) as face:
        client.flushall()
        yield face, client
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")


Some = list[int]
KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Some], Any]]] = {
    "set": (
        lambda kit: kit.set("it", component="data", members=int, groups=4, part_size=64),
        lambda it, some: it.sadd(*some),
    ),
    "planned set": (
        lambda kit: kit.set("it", component="data", members=int, total=5000, part_size=64),
        lambda it, some: it.sadd(*some),
    ),
    "hash": (
        lambda kit: kit.hash("it", component="data", groups=4, part_size=64, partition="crc32"),
        lambda it, some: it.hset(mapping=dict.fromkeys(some, "v" * 50)),
    ),
    "numbers": (
        lambda kit: kit.hash("it", component="data", groups=4, part_size=64),
        lambda it, some: it.hset(mapping=dict.fromkeys(some, "v" * 50)),
    ),
    "sorted set": (
        lambda kit: kit.sorted_set("it", component="data", groups=4, part_size=64, bound=10),
        lambda it, some: it.zadd({f"m{n}": n for n in some}),
    ),
    "list": (
        lambda kit: kit.list("it", component="data", part_size=64),
        lambda it, some: it.rpush_many(some),
    ),
    "packed": (
        lambda kit: kit.packed("it", component="data", fields={"a": "u32"}, part_size=64),
        lambda it, some: it.set_many({n: {"a": n + 1} for n in some}),
    ),
}


@pytest.mark.parametrize("full", ["blocking"], indirect=True)
@pytest.mark.parametrize("name", KINDS)
def test_a_full_server_leaves_nothing_half_written(full: tuple[Face, Any], name: str) -> None:
    face, client = full
    make, add = KINDS[name]
    face.run(add(make(face.kit), list(range(500))))
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 100_000)
    refused = 0
    for n in count(1):
        try:
            face.run(add(make(face.kit), list(range(500 * n, 500 * (n + 1)))))
        except ShardErrors:
            refused += 1
            if refused == 3:
                break
    client.config_set("maxmemory", 0)
    assert face.list(make(face.kit).check()) == []
    face.run(add(make(face.kit), list(range(500 * (n + 1)))))
    assert face.list(make(face.kit).check()) == []


def test_visitors_refused_by_a_full_server_do_not_count(full: tuple[Face, Any]) -> None:
    face, client = full
    visitors = face.kit.unique_visitors("u", component="data", first_day=5000)
    came = sessions(8000)
    face.run(visitors.visit_many(came[:100], DAY))
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 200_000)
    for n in range(80):
        with suppress(ShardErrors):
            face.run(visitors.visit_many(came[100 * n :][:100], DAY))
    client.config_set("maxmemory", 0)
    face.run(visitors.recount(DAY))
    assert face.list(visitors.check(DAY)) == []
    face.run(visitors.visit_many(came, DAY))
    assert face.run(visitors.count(DAY)) == len(set(map(visitors.visitor_id, came)))


def test_the_first_write_warns_of_eviction_once(
    full: tuple[Face, Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    face, client = full
    monkeypatch.setattr(parameters, "_WARNED", Once())
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
