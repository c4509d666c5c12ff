"""Entries from a real config server: how often it is asked, and what its troubles do to callers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from arranged import map_of
from faces import eventually, faced

import shardkit
from shardkit import ConfigError, ShardMap, admin
from shardkit.errors import (
    ConfigServerError,
    InvalidEntryError,
    ShardCountError,
)
from shardkit.local import LocalServer

SECRET = "hunter2"  # a password in entries; it must show up nowhere


@pytest.fixture
def config(server: LocalServer) -> Iterator[redis.Redis]:
    """Its client; it is empty."""
    with server.client() as client:
        client.flushall()
        client.config_resetstat()
        yield client


@pytest.fixture(autouse=True)
def _without_witnesses() -> Iterator[None]:
    """A push warns of servers that it cannot reach, which these maps have."""
    logger = logging.getLogger("shardkit.admin")
    logger.disabled = True
    yield
    logger.disabled = False


@pytest.fixture
def kit(server: LocalServer) -> Iterator[Any]:
    """A kit of the config server."""
    with shardkit.connect(url(server)) as opened:
        yield opened


@pytest.fixture
def mortal() -> Iterator[LocalServer]:
    """A config server to kill and pause, with the map of `shards_on` itself."""
    with LocalServer(name="mortal", databases=1) as server, server.client() as client:
        push(client, shards_on(server))
        yield server


def url(server: LocalServer) -> str:
    return f"redis://{server.address}"


def shards_on(server: LocalServer, count: int = 4, **fields: Any) -> ShardMap:
    """A map of `few`, with so many shards on one server, and of `one` on it."""
    place = {**server.entry.fields, **fields}
    return shard_map(few=[{**place, "db": n} for n in range(count)], one={**place, "db": 15})


def shard_map(**components: Any) -> ShardMap:
    """A map of components: a list is shards, an object an entry."""
    found = {
        name: {"shards" if isinstance(described, list) else "entry": described}
        for name, described in components.items()
    }
    return map_of(**found)


def push(client: redis.Redis, wanted: ShardMap) -> None:
    admin.push(client, wanted, force=True, check=False)


def mgets(client: redis.Redis) -> int:
    stats: Any = client.info("commandstats")
    return int(stats.get("cmdstat_mget", {}).get("calls", 0))


def test_more_shards_take_a_second_exchange_once(
    server: LocalServer, config: redis.Redis, kit: Any
) -> None:
    many = [{"port": server.port, "db": n % 15} for n in range(300)]
    push(config, shard_map(many=many))
    config.config_resetstat()
    assert len(kit.component("many").shards) == 300
    assert mgets(config) == 2
    kit.topology.expire()
    kit.component("many")
    assert mgets(config) == 3
    push(config, shard_map(many=many[:3]))
    config.config_resetstat()
    kit.topology.expire()
    assert len(kit.component("many").shards) == 3
    assert mgets(config) == 1


def test_another_count_is_live_for_all_callers(
    server: LocalServer, config: redis.Redis, kit: Any
) -> None:
    push(config, shards_on(server, 4))
    router, strict = kit.key_sharded("few"), kit.key_sharded("few", shards=4)
    assert len(router) == len(strict) == 4
    epoch = kit.component("few").epoch
    push(config, shards_on(server, 8))
    kit.topology.expire()
    assert len(router) == 8
    assert kit.component("few").epoch > epoch
    with pytest.raises(ShardCountError, match=r"'few' has 8 shards, but this call says 4"):
        strict["key"]


def test_a_dead_server_is_logged(
    kind: str, mortal: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shardkit")
    with faced(kind, url(mortal)) as face:
        kit = face.kit
        assert kit.topology.source.entry.fields["socket_timeout"] == 1.0
        assert kit.topology.source.entry.fields["socket_connect_timeout"] == 1.0
        known = {name: face.run(kit.component(name)) for name in ("few", "one")}
        mortal.kill()
        kit.topology.expire()

        async def place(n: int) -> Any:
            return kit.key_sharded("few")[n]

        for n in range(300):
            assert face.run(place(n)) if face.runner else kit.key_sharded("few")[n]
            for name, each in known.items():
                assert face.run(kit.component(name)) is each
        [said] = caplog.messages
        assert f"config server {mortal.address}/0 cannot be read" in said
        with pytest.raises(ConfigServerError, match="cannot be read"):
            face.run(kit.component("never-seen"))
        with pytest.raises(ConfigServerError, match="cannot be read"):
            face.run(kit.components())
        mortal.restart()
        with mortal.client() as client:
            push(client, shards_on(mortal, 2))
        assert eventually(lambda: len(face.run(kit.component("few")).shards) == 2)
        kit.topology.expire()
        face.run(kit.component("one"))
        assert caplog.messages[1:] == [f"config server {mortal.address}/0 can be read again"]


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (
            {"redis:few:1": '{"port": "1", "password": "hunter2"}'},
            'config:redis:few:1: port = "1" cannot be used',
        ),
        ({"redis:few:1": '{"password": "hunter2"'}, "config:redis:few:1: is not JSON"),
        ({"redis:few:3": None}, "config:redis:few:3 is missing on "),
        ({"shards:few": None}, "config:shards:few is missing on config server"),
        ({"shards:few": '{"placement": "slot"}'}, "config:shards:few lacks the field shards"),
        ({"redis:few:1": ["x"]}, "config:redis:few:1 is missing"),
        ({"redis:few:2": ""}, "config:redis:few:2: is not JSON"),
        ({"redis:few:0": '{"cluster": true}'}, "makes a cluster a shard"),
        (
            dict.fromkeys(["shards:few", *(f"redis:few:{n}" for n in range(4))]),
            "config:redis:few and config:shards:few are missing",
        ),
    ],
)
def test_what_is_broken_or_gone_keeps_the_last_good_entries(
    server: LocalServer, config: redis.Redis, caplog: pytest.LogCaptureFixture, harm: Any, said: str
) -> None:
    caplog.set_level(logging.INFO, "shardkit")
    wanted = shards_on(server, password=SECRET)
    push(config, wanted)
    with shardkit.connect(url(server)) as kit:
        known = kit.component("few")
        for key, value in harm.items():
            config.delete(f"config:{key}")
            if isinstance(value, list):
                config.lpush(f"config:{key}", *value)
            elif value is not None:
                config.set(f"config:{key}", value)
        for _ in range(3):
            kit.topology.expire()
            assert kit.component("few") is known
        with shardkit.connect(url(server)) as late, pytest.raises(ConfigError) as refused:
            late.component("few")
        assert said in str(refused.value)
        [message] = caplog.messages
        assert "component 'few' keeps its last good entries (epoch 1)" in message
        assert said in message
        push(config, wanted)
        kit.topology.expire()
        assert kit.component("few").same_as(known)
        assert caplog.messages[1:] == ["component 'few' can be read again"]
        shown = [caplog.text, str(refused.value), repr(refused.value), repr(kit), repr(known)]
        assert SECRET not in "".join(shown)


def test_a_shard_is_not_taken_for_a_component(
    server: LocalServer, config: redis.Redis, kit: Any
) -> None:
    push(config, shards_on(server))
    with pytest.raises(InvalidEntryError, match="is the name of a shard of 'few'"):
        kit.client("few:0")


def test_no_secret_shows_when_the_config_server_refuses_or_is_away() -> None:
    with LocalServer(password="right") as server:
        for port in (server.port, 1):
            where = f"redis://:{SECRET}@127.0.0.1:{port}/0"
            with shardkit.connect(where) as kit, pytest.raises(ConfigServerError) as refused:
                kit.component("few")
            assert SECRET not in f"{refused.value!r} {refused.value} {kit!r} {kit.topology.source}"
            with pytest.raises(ConfigServerError) as refused:
                asyncio.run(shardkit.aconnect(where))
            assert SECRET not in f"{refused.value!r} {refused.value}"


def test_an_event_loop_that_is_busy_with_its_first_calls_reads_entries(
    server: LocalServer, config: redis.Redis
) -> None:
    push(config, shards_on(server))

    async def main() -> None:
        with shardkit.connect(url(server)) as kit:

            @kit.redis_connection("one")
            async def ping(conn: Any) -> Any:
                return await conn.ping()

            async def imports() -> None:
                time.sleep(1.2)  # noqa: ASYNC251 - on purpose

            assert (await asyncio.gather(ping(), imports()))[0]

    asyncio.run(main())


def test_a_component_that_cannot_be_used_does_not_keep_an_awaiting_kit_from_opening(
    server: LocalServer, config: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    push(config, shards_on(server))
    config.set("config:redis:broken", "{")

    async def main() -> None:
        async with await shardkit.aconnect(url(server)) as kit:
            assert await (await kit.client("one")).ping()
            with pytest.raises(InvalidEntryError, match="config:redis:broken"):
                await kit.client("broken")
            with pytest.raises(InvalidEntryError, match="config:redis:broken"):
                await kit.load("broken")

    asyncio.run(main())
    assert "component 'broken' cannot be used: config:redis:broken: is not JSON" in caplog.text
