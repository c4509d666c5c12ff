"""Entries from a real config server: how often it is asked, and what its troubles do to callers."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from link_helpers import clients_of
from topology_helpers import eventually

import shardkit
from shardkit import ConfigError, ShardMap
from shardkit.config import store
from shardkit.config.component import Component
from shardkit.config.entry import Entry
from shardkit.errors import (
    ConfigServerError,
    InvalidEntryError,
    MissingEntryError,
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


@pytest.fixture
def mortal() -> Iterator[LocalServer]:
    """A config server to kill and pause, with the map of `shards_on` itself."""
    with LocalServer(name="mortal", databases=1) as server, server.client() as client:
        push(client, shards_on(server))
        yield server


@pytest.fixture(scope="module")
def a() -> Iterator[LocalServer]:
    with LocalServer(name="a") as server:
        yield server


@pytest.fixture(scope="module")
def b() -> Iterator[LocalServer]:
    with LocalServer(name="b") as server:
        yield server


def shards_on(server: LocalServer, count: int = 4, **fields: Any) -> ShardMap:
    """A map of `few`, with so many shards on one server, and of `one` on it."""
    place = {**server.entry.fields, **fields}
    return shard_map(few=[{**place, "db": n} for n in range(count)], one={**place, "db": 15})


def shard_map(**components: Any) -> ShardMap:
    """A map of components: a list is shards, an object an entry."""
    found = {}
    for name, described in components.items():
        if isinstance(described, list):
            shards = tuple(Entry(fields) for fields in described)
            found[name] = Component(name, None, shards)
        else:
            found[name] = Component(name, Entry(described))
    return ShardMap(found)


def push(client: redis.Redis, wanted: ShardMap) -> None:
    store.push(client, wanted, force=True)


def url(server: LocalServer) -> str:
    return f"redis://{server.address}"


def mgets(client: redis.Redis) -> int:
    stats: Any = client.info("commandstats")
    return int(stats.get("cmdstat_mget", {}).get("calls", 0))


def test_components_are_listed_by_full_name(server: LocalServer, config: redis.Redis) -> None:
    fields = server.entry.fields
    push(config, shard_map(**{"logs:old": [fields] * 12, "logs:old:web": fields, "logs": fields}))
    with shardkit.connect(url(server)) as kit:
        assert kit.topology.names() == ["logs", "logs:old", "logs:old:web"]


def test_threads_read_components_once_a_second(server: LocalServer, config: redis.Redis) -> None:
    push(config, shards_on(server))
    config.config_resetstat()
    with shardkit.connect(url(server)) as kit, ThreadPoolExecutor(32) as pool:
        start = time.monotonic()

        def work() -> int:
            calls = 0
            while time.monotonic() < start + 1.2:
                kit.client("few", calls % 4)
                kit.client("one")
                calls += 1
            return calls

        calls = sum(pool.map(lambda _: work(), range(32)))
        seconds = time.monotonic() - start
    assert calls > 1000
    # And once more when it begins to be told of changes: there may have been one before.
    assert 2 <= mgets(config) <= 2 * (int(seconds) + 2)


async def test_tasks_read_each_component_once(server: LocalServer, config: redis.Redis) -> None:
    push(config, shards_on(server))
    async with await shardkit.aconnect(url(server)) as kit:
        config.config_resetstat()
        start = time.monotonic()
        router = kit.key_sharded("few")

        async def work() -> int:
            calls = 0
            while time.monotonic() < start + 1.2:
                await kit.client("few", calls % 4)
                await kit.client("one")
                assert router[calls]
                calls += 1
                await asyncio.sleep(0)
            return calls

        calls = sum(await asyncio.gather(*[work() for _ in range(200)]))
        seconds = time.monotonic() - start
    assert calls > 1000
    assert mgets(config) <= 2 * (int(seconds) + 1)


def test_a_first_load_by_many_is_one_exchange(server: LocalServer, config: redis.Redis) -> None:
    push(config, shards_on(server))
    config.config_resetstat()
    barrier = threading.Barrier(32)
    with shardkit.connect(url(server)) as kit, ThreadPoolExecutor(32) as pool:

        def first(n: int) -> Any:
            barrier.wait(20)
            return kit.component("few")

        assert len(set(pool.map(first, range(32)))) == 1
    assert mgets(config) == 1


async def test_many_tasks_load_in_one_exchange(server: LocalServer, config: redis.Redis) -> None:
    push(config, shards_on(server))
    config.config_resetstat()
    source, clients = shardkit.kit.kit._source(url(server), {})
    async with shardkit.AsyncShardKit(source, config_clients=clients) as kit:
        found = await asyncio.gather(*[kit.component("few") for _ in range(200)])
        assert len(set(found)) == 1
    assert mgets(config) == 1


def test_more_shards_take_a_second_exchange_once(server: LocalServer, config: redis.Redis) -> None:
    many = [{"host": "h", "port": 1 + n} for n in range(300)]
    push(config, shard_map(many=many))
    config.config_resetstat()
    with shardkit.connect(url(server)) as kit:
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


# ---- changes


def test_a_moved_shard_is_live_within_about_a_second_and_no_call_fails(
    server: LocalServer, config: redis.Redis, a: LocalServer, b: LocalServer
) -> None:
    for each in (a, b):
        for db in range(4):
            with each.client(db=db) as client:
                client.set("who", each.name)
    push(config, shards_on(a))
    seen: set[bytes] = set()
    calls: list[int] = []
    stop = threading.Event()

    def only_b() -> bool:
        seen.clear()
        time.sleep(0.01)  # the callers answer meanwhile
        return seen == {b"b"}

    with shardkit.connect(url(server)) as kit, ThreadPoolExecutor(9) as pool:

        @kit.sharded_connection("few", shards=4)
        def who(conn: redis.Redis, key: str) -> Any:
            return conn.get("who")

        @kit.sharded_connection("few", shards=4)
        async def awho(conn: Any, key: str) -> Any:
            return await conn.get("who")

        def blocking(n: int) -> None:
            router, count = kit.key_sharded("few"), 0
            while not stop.is_set():
                seen.add(who(f"{n}:{count}"))
                seen.add(router[count].get("who"))
                count += 2
            calls.append(count)

        async def one_task(n: int) -> None:
            count = 0
            while not stop.is_set():
                seen.add(await awho(f"{n}:{count}"))
                count += 1
            calls.append(count)

        async def tasks() -> None:
            await asyncio.gather(*[one_task(n) for n in range(20)])

        futures = [pool.submit(blocking, n) for n in range(8)]
        futures.append(pool.submit(asyncio.run, tasks()))
        try:
            assert eventually(lambda: seen == {b"a"})
            push(config, shards_on(b))
            assert eventually(lambda: b"b" in seen)
            # From here on nobody asks a: its connections go as they come back.
            assert eventually(lambda: clients_of(a) == 0)
            assert eventually(only_b)
        finally:
            stop.set()
        for future in futures:
            future.result(20)
    assert seen == {b"b"}
    assert sum(calls) > 100
    assert eventually(lambda: clients_of(b) == 0)


def test_another_count_is_live_for_all_callers(server: LocalServer, config: redis.Redis) -> None:
    push(config, shards_on(server, 4))
    with shardkit.connect(url(server)) as kit:
        router, strict = kit.key_sharded("few"), kit.key_sharded("few", shards=4)
        assert len(router) == len(strict) == 4
        epoch = kit.component("few").epoch
        push(config, shards_on(server, 8))
        kit.topology.expire()
        assert len(router) == 8
        assert kit.component("few").epoch > epoch
        with pytest.raises(ShardCountError, match=r"'few' has 8 shards, but this call says 4"):
            strict["key"]


def test_a_batch_is_routed_by_one_version_of_the_map(a: LocalServer, b: LocalServer) -> None:
    # The map is another one at every look.
    versions = [shards_on(server, count).components["few"] for server, count in ((a, 3), (b, 8))]
    looks = iter(range(10**9))

    class Shifty(shardkit.network.topology.Topology):
        def component(self, name: str) -> Component:
            return versions[next(looks) % 2]

        async def acomponent(self, name: str) -> Component:
            return self.component(name)

    with shardkit.connect(shards_on(a)) as kit:
        shifty = Shifty(kit.topology.source)
        plane = shardkit.kit.lookup.ClientPlane(shifty, kit.clients)
        router = shardkit.KeyShardedConnection("few", plane=plane)

        def sizes(server: LocalServer, count: int) -> list[int]:
            found = []
            for db in range(count):
                with server.client(db=db) as client:
                    found.append(client.dbsize())
            return found

        def check() -> None:
            held = sorted([sum(sizes(a, 3)), sum(sizes(b, 8))])
            assert held == [0, 60]
            for server, version in zip((a, b), versions, strict=True):
                found = sizes(server, len(version.shards))
                if sum(found):
                    assert found == [
                        sum(version.place(f"key:{n}") == shard for n in range(60))
                        for shard in range(len(version.shards))
                    ]

        for _ in range(4):
            flush(a, b)
            pipe = router.pipeline()
            pipe.mset({f"key:{n}": n for n in range(40)})
            for n in range(40, 60):
                pipe.set(f"key:{n}", n)
            pipe.execute()
            check()

        async def awaiting() -> None:
            arouter = shardkit.AsyncKeyShardedConnection("few", plane=plane)
            for _ in range(4):
                flush(a, b)
                pipe = arouter.pipeline()
                pipe.mset({f"key:{n}": n for n in range(60)})
                await pipe.execute()
                check()
            await kit.aclose()

        asyncio.run(awaiting())


def flush(*servers: LocalServer) -> None:
    for server in servers:
        with server.client() as client:
            client.flushall()


# ---- troubles


def test_a_dead_server_is_logged(mortal: LocalServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shardkit")
    with shardkit.connect(url(mortal)) as kit:
        known = {name: kit.component(name) for name in ("few", "one")}
        mortal.kill()
        kit.topology.expire()
        for _ in range(300):
            for name, each in known.items():
                assert kit.component(name) is each
        [said] = caplog.messages
        assert f"config server {mortal.address}/0 cannot be read" in said
        with pytest.raises(ConfigServerError, match="cannot be read"):
            kit.component("never-seen")
        with pytest.raises(ConfigServerError, match="cannot be read"):
            kit.components()
        mortal.restart()
        with mortal.client() as client:
            push(client, shards_on(mortal, 2))
        assert eventually(lambda: len(kit.component("few").shards) == 2)
        kit.topology.expire()
        kit.component("one")
        assert caplog.messages[1:] == [f"config server {mortal.address}/0 can be read again"]


async def test_tasks_go_on_while_the_config_server_is_killed(mortal: LocalServer) -> None:
    async with await shardkit.aconnect(url(mortal)) as kit:
        router = kit.key_sharded("few")
        known = await kit.component("few")
        mortal.kill()
        kit.topology.expire()
        for n in range(300):
            assert router[n]
            assert await kit.component("few") is known
        mortal.restart()
        with mortal.client() as client:
            push(client, shards_on(mortal, 2))
        kit.topology.expire()
        for _ in range(2000):
            if len(router) == 2:
                break
            await asyncio.sleep(0.01)
        assert len(router) == 2


async def test_a_paused_config_server_delays_no_caller(mortal: LocalServer) -> None:
    with shardkit.connect(url(mortal)) as kit:
        known = kit.component("few")
        router, arouter = (
            kit.key_sharded("few"),
            shardkit.AsyncKeyShardedConnection("few", plane=kit.plane),
        )
        assert kit.topology.source.entry.fields["socket_timeout"] == 1.0
        assert kit.topology.source.entry.fields["socket_connect_timeout"] == 1.0
        mortal.pause()
        try:
            cached = kit.topology._cache["few"]
            cached.fresh_until = time.monotonic()  # stale
            assert kit.component("few") is known
            assert eventually(cached.lock.locked)
            calls = 0
            while cached.lock.locked():  # somebody reads, and waits
                assert kit.component("few") is known
                assert await kit.topology.acomponent("few") is known
                assert router[calls]
                assert arouter[calls]
                calls += 1
            assert calls > 200
        finally:
            mortal.resume()
        await kit.aclose()


async def test_more_components_than_connections_are_read_by_few_exchanges(
    server: LocalServer, config: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    push(config, shard_map(**{f"c{n}": [{"host": "h", "port": 1 + n}] * 4 for n in range(150)}))
    config.config_resetstat()
    before = config.info("stats")["total_connections_received"]
    async with await shardkit.aconnect(url(server)) as kit:
        assert len(await kit.components()) == 150
        assert kit.key_sharded("c149")[1]
    # 15 components of 64 expected shards at once; and once more when changes are followed.
    assert mgets(config) <= 22
    assert config.info("stats")["total_connections_received"] - before <= 3
    assert not caplog.messages


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


def test_a_lost_count_does_not_unshard(server: LocalServer, config: redis.Redis) -> None:
    both = Component("both", Entry({"port": 1}), (Entry({"port": 2}), Entry({"port": 3})))
    push(config, ShardMap({"both": both}))
    config.delete("config:shards:both")
    with (
        shardkit.connect(url(server)) as kit,
        pytest.raises(
            MissingEntryError,
            match=r"config:shards:both is missing .*, but 2 entries are stored",
        ),
    ):
        kit.key_sharded("both")["key"]


def test_missing_entries_are_never_localhost(server: LocalServer, config: redis.Redis) -> None:
    push(config, shard_map(unique=[{"host": "h", "port": 1 + n} for n in range(8)]))
    config.delete("config:redis:unique:7")
    with shardkit.connect(url(server)) as kit:
        with pytest.raises(MissingEntryError, match="config:redis:unique:7 is missing"):
            kit.client("unique", 0)
        with pytest.raises(MissingEntryError, match="config:redis:logs and config:shards:logs are"):
            kit.client("logs")
        config.set("config:redis:logs", "")
    with (
        shardkit.connect(url(server)) as kit,
        pytest.raises(InvalidEntryError, match="config:redis:logs: is not JSON"),
    ):
        kit.client("logs")


def test_a_shard_is_not_taken_for_a_component(server: LocalServer, config: redis.Redis) -> None:
    push(config, shards_on(server))
    with (
        shardkit.connect(url(server)) as kit,
        pytest.raises(InvalidEntryError, match="would collide with a shard of 'few'"),
    ):
        kit.client("few:0")


def test_unsharded_components_need_one_entry(server: LocalServer, config: redis.Redis) -> None:
    config.set("config:redis:one", json.dumps({"port": server.port, "db": 15}))
    with shardkit.connect(url(server)) as kit:
        kit.client("one").set("k", "v")
        assert kit.components() == ["one"]
    with server.client(db=15) as client:
        assert client.get("k") == b"v"


def test_urls_may_set_decode_responses(server: LocalServer, config: redis.Redis) -> None:
    push(config, shards_on(server))
    for options in ("decode_responses=true", "protocol=3", "protocol=3&decode_responses=true"):
        with shardkit.connect(f"{url(server)}/0?{options}") as kit:
            assert kit.components() == ["few", "one"]
            assert len(kit.component("few").shards) == 4


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


def test_thousands_of_shards_that_did_not_change_are_not_parsed_again(
    server: LocalServer, config: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(config, shard_map(many=[{"host": "h", "port": 1 + n} for n in range(2000)]))
    with shardkit.connect(url(server)) as kit:
        known = kit.component("many")
        kit.topology.expire()
        monkeypatch.setattr(Entry, "from_json", None)
        assert kit.component("many") is known


def test_a_reading_that_a_renamed_connection_is_refused_is_an_error(mortal: LocalServer) -> None:
    with mortal.client() as client, shardkit.connect(url(mortal)) as kit:
        source: Any = kit.topology.source
        client.execute_command("ACL", "SETUSER", "default", "-mget")
        source.epoch += 1  # which the connection's name says
        with pytest.raises(redis.ResponseError, match="mget"):
            source.fetch(["config:epoch"])
