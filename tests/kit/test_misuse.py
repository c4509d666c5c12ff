"""What is given by mistake gets one sentence that names it, and the remedy."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import pytest
from arranged import map_of
from faces import Face

import shardkit
from shardkit import Entry, ShardMap
from shardkit.admin import push
from shardkit.errors import (
    ConfigError,
    CrossShardError,
    InvalidArgumentError,
    InvalidEntryError,
    MissingEntryError,
    ShardKitError,
)
from shardkit.local import LocalServer

SECRET = "s3cretWord"
MAP = ShardMap.parse("components: {sessions: {entry: {}}, unique: {shards: [{}, {db: 1}]}}")


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer() as running, running.client() as client:
        push(client, MAP, force=["sessions", "unique"])
        yield running


@pytest.mark.parametrize("wrong", [f"u:{SECRET}@h", f"{SECRET}@h", f"redis://u:{SECRET}@h"])
def test_a_password_in_a_host_is_not_quoted(wrong: str) -> None:
    with pytest.raises(InvalidEntryError) as raised:
        Entry({"host": wrong})
    assert SECRET not in str(raised.value)
    assert "***" in str(raised.value.problems)


@pytest.mark.parametrize("where", ["map", "server"])
def test_a_misspelt_component_gets_the_one_that_is_meant(where: str, server: LocalServer) -> None:
    place: Any = MAP if where == "map" else f"redis://{server.address}"
    with shardkit.connect(place) as kit:
        with pytest.raises(MissingEntryError, match="did you mean 'sessions'") as raised:
            kit.client("sesions")
        assert "push" in raised.value.remedy or "add it" in raised.value.remedy
        with pytest.raises(MissingEntryError) as other:
            kit.client("timelines")
        assert "did you mean" not in str(other.value)

    async def misspelt() -> None:
        async with await shardkit.aconnect(place) as kit:
            with pytest.raises(MissingEntryError, match="did you mean 'sessions'"):
                await kit.set("ids", component="sesions", total=10, members=int).sadd(1)

    asyncio.run(misspelt())


def test_a_decorator_without_parentheses_says_how_to_write_it() -> None:
    with shardkit.connect(MAP) as kit:
        for name, decorator in (
            ("redis_connection", kit.redis_connection),
            ("redis_connection", shardkit.redis_connection),
            ("sharded_connection", kit.sharded_connection),
        ):
            with pytest.raises(InvalidArgumentError, match=rf"write @{name}\(\"<component>\"\)"):

                @decorator  # type: ignore[arg-type]
                def count(conn: Any) -> None:
                    """Never called."""


@pytest.mark.parametrize("where", ["", 5, ["map.yaml"], b"map.yaml"])
def test_what_names_no_topology_is_refused(where: Any) -> None:
    with pytest.raises(ConfigError, match="names no topology; give a shard map's path"):
        shardkit.connect(where)


@pytest.mark.parametrize("where", ["map", "server"])
def test_a_very_long_name_is_not_repeated(where: str, server: LocalServer) -> None:
    place: Any = MAP if where == "map" else f"redis://{server.address}"
    with shardkit.connect(place) as kit, pytest.raises(InvalidEntryError) as raised:
        kit.client("a" * 10_000)
    assert len(str(raised.value)) < 200
    assert "has 10,000 characters; use at most 200" in str(raised.value)


def test_a_key_of_the_wrong_type_on_the_config_server_is_named(server: LocalServer) -> None:
    with server.client() as client:
        client.hset("config:redis:odd", "host", "a")
        with (
            shardkit.connect(f"redis://{server.address}") as kit,
            pytest.raises(MissingEntryError, match=r"config:redis:odd .*or hold no text"),
        ):
            kit.client("odd")
        client.delete("config:redis:odd")


@pytest.mark.parametrize("attempt", [pickle.dumps, copy.deepcopy])
@pytest.mark.parametrize(
    "of",
    [
        lambda kit: kit,
        lambda kit: kit.key_sharded("many"),
        lambda kit: kit.key_sharded("many").pipeline(),
        lambda kit: kit.hash("towns", component="many"),
        lambda kit: kit.queues(component="one"),
        lambda kit: kit.lock("door", component="one"),
        lambda kit: kit.near("one", 1000),
    ],
)
def test_what_holds_connections_says_why_it_does_not_pickle(
    face: Face, attempt: Callable[[Any], Any], of: Callable[[Any], Any]
) -> None:
    with pytest.raises(ShardKitError, match="cannot be pickled or copied: they hold connections"):
        attempt(of(face.kit))


def test_a_deeply_nested_placement_is_refused(face: Face) -> None:
    nested: Any = reduce(lambda inner, _: [inner], range(5000), [])
    with pytest.raises(InvalidArgumentError, match=r"placement=.* names a list as placement"):
        face.kit.key_sharded("many", 2, placement=nested)


@pytest.mark.parametrize("rule", ["whole:crc32", "redis-in-action"])
def test_structures_that_need_tags_are_refused_by_placements_without(
    server: LocalServer, rule: str
) -> None:
    over = [{"port": server.port, "db": n} for n in range(8)]
    many = {"shards": over, "placement": rule}
    with shardkit.connect(map_of(many=many)) as kit:
        for write in (
            lambda: kit.set("ids", component="many", members=int).sadd_many(range(300)),
            lambda: kit.queues(component="many").enqueue("email", "welcome"),
            lambda: kit.lock("stock", component="many").acquire(),
        ):
            with pytest.raises(CrossShardError, match="ignores hash tags"):
                write()
        numbered = kit.hash("cities", component="many", total=1000)
        numbered.hset(mapping=dict.fromkeys(range(300), "x"))
        assert numbered.hlen() == 300
