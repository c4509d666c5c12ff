"""Routers: from a key, or a pair of ids, to its shard's client; named configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio as aioredis
from arranged import map_of
from faces import Face
from hypothesis import HealthCheck, given, settings, strategies as st
from link_helpers import FACES, listed, of, opened
from test_pipelines import CALLS, Call, told

import shardkit
from shardkit import ConfigError, CrossShardError, ShardKit, ShardMap, connect
from shardkit.errors import (
    ConfigServerError,
    InvalidArgumentError,
    InvalidEntryError,
    InvalidKeyError,
    MissingEntryError,
    RoutingError,
    ShardCountError,
)
from shardkit.local import LocalServer, LocalServers


async def test_a_router_hands_out_redis_pys_client_of_the_owner(
    kit: ShardKit, shard_map: ShardMap, kind: str
) -> None:
    async with opened(kind, shard_map) as face:
        router = face.kit.key_sharded("many", shards=16)
        assert len(router) == 16
        for n in range(100):
            client = router[f"k{n}"]
            assert isinstance(client, redis.Redis if face.blocks else aioredis.Redis)
            await of(client.set(f"k{n}", n))
            assert client is router.client(router.shard_of(f"k{n}"))
        assert [client is router.client(n) for n, client in enumerate(router)] == [True] * 16
        prefix = "" if face.blocks else "Async"
        assert repr(router) == f"{prefix}KeyShardedConnection('many', shards=16)"
        pairs = face.kit.id_pair_sharded("many")
        await of(pairs[42, 99].zadd("followers:99", {"42": 1.0}))
        assert pairs.shard_of(42, 99) == kit.id_pair_sharded("many").shard_of("99", "42")
        assert kit.id_pair_sharded("many")[99, 42].zscore("followers:99", "42") == 1.0
        held = [
            {int(key[1:]) for key in client.scan_iter("k*")} for client in kit.key_sharded("many")
        ]
        assert held == [{n for n in range(100) if router.shard_of(f"k{n}") == s} for s in range(16)]


def test_text_bytes_and_numbers_are_one_key(kit: ShardKit) -> None:
    router = kit.key_sharded("many")
    assert router[42] is router["42"] is router[b"42"]
    assert router["é"] is router["é".encode()]
    assert router["{user:1}:a"] is router["{user:1}:b"] is router["user:1"]
    for wrong in (None, 1.5, True, ("a", "b"), ["a"], "\ud800"):
        with pytest.raises(
            InvalidKeyError, match=r"give a str, bytes or an int|cannot be encoded as UTF-8"
        ):
            router[wrong]


def test_a_pair_is_one_key_in_either_order_and_spelling(kit: ShardKit) -> None:
    router = kit.id_pair_sharded("many", shards=16)
    client = router[9, 10]
    assert router[10, 9] is router["10", "9"] is router[b"9", 10] is client
    assert kit.key_sharded("many")["9:10"] is client
    assert router.shard_of(9, 10) == router.shard_of("10", b"9")
    assert router.group([(9, 10), (10, 9), (1, 2)])[router.shard_of(9, 10)][:2] == [
        (9, 10),
        (10, 9),
    ]
    for wrong in ((1, "x"), (1.5, 2), (1,), (1, 2, 3), 12, "1:2", (None, 1), (True, 1)):
        with pytest.raises(
            InvalidKeyError,
            match=r"give a str|of a pair is not an integer|is not a pair of ids",
        ):
            router[wrong]
    with pytest.raises(InvalidKeyError, match=r"12 is not a pair of ids; write router\[a, b\]"):
        router[12]
    assert repr(router) == "IdPairShardedConnection('many', shards=16)"


def test_an_unsharded_component_is_routed_to_its_entry(kit: ShardKit) -> None:
    router = kit.key_sharded("one")
    assert len(router) == 1
    assert router["a"] is router["b"] is router.client(0) is kit.client("one")
    assert list(router) == [kit.client("one")]
    assert router.group(["a", "b"]) == {0: ["a", "b"]}
    with pytest.raises(MissingEntryError, match=r"config:redis:one:1 is missing"):
        router.client(1)
    with pytest.raises(InvalidArgumentError, match=r"shard=-1"):
        router.client(-1)
    with pytest.raises(
        ShardCountError,
        match=r"'one' has no shards .config:redis:one:0 is missing., but this call says 16",
    ):
        kit.key_sharded("one", shards=16)["a"]


def test_routers_of_the_default_kit_are_made_by_their_names(shard_map: ShardMap) -> None:
    router = shardkit.KeyShardedConnection("many", shards=16)
    pairs = shardkit.IdPairShardedConnection("many")
    arouter = shardkit.AsyncKeyShardedConnection("many")
    apairs = shardkit.AsyncIdPairShardedConnection("many", 16)
    shardkit.configure(shard_map)
    try:
        kit = shardkit.default_kit()
        assert router["a"] is kit.key_sharded("many")["a"]
        assert pairs[1, 2] is kit.id_pair_sharded("many")[2, 1]
        assert router.pipeline().set("a", 1).execute() == [True]

        async def main() -> None:
            assert await arouter["a"].get("a") == b"1"
            assert apairs[1, 2] is arouter["1:2"]
            assert await arouter.pipeline().get("a").execute() == [b"1"]
            assert [key async for key in arouter.scan_iter()] == [b"a"]

        asyncio.run(main())
    finally:
        shardkit.configure(None)


def scanned(servers: LocalServers, databases: int) -> ShardMap:
    """Sixteen shards on four servers, over so many databases of each."""
    shards = [
        {**servers.server_of("many", n % 4).entry.fields, "db": n // 4 % databases}
        for n in range(16)
    ]
    return map_of(scanned={"shards": shards})


@pytest.mark.parametrize("databases", [4, 2, 1])
async def test_scanning_all_shards_finds_every_key_once(
    shard_map: ShardMap, servers: LocalServers, databases: int
) -> None:
    wanted = scanned(servers, databases)
    keys = {f"key:{n}" for n in range(3000)} | {f"other:{n}" for n in range(50)}
    lists = sorted(key for key in keys if key.startswith("other"))

    async def found(router: Any, *args: Any, **kwargs: Any) -> list[str]:
        return sorted([key.decode() for key in await listed(router.scan_iter(*args, **kwargs))])

    for kind in FACES:
        async with opened(kind, wanted) as face:
            router = face.kit.key_sharded("scanned")
            pipe = router.pipeline()
            for key in keys:
                if key in lists:
                    pipe.delete(key).rpush(key, 1)
                else:
                    pipe.set(key, 1)
            await of(pipe.execute())
            assert await found(router) == sorted(keys)
            ones = {key for key in keys if key.startswith("key:1")}
            assert set(await found(router, "key:1*", 500)) == ones
            assert await found(router, _type="list", count=1000) == lists
            assert await found(router, "o*", _type="list") == lists


SPLIT = {"mget", "mset", "delete", "unlink", "exists", "touch"}  # the router's own
CONNECTIONS = {"eval", "execute_command"}


def tried(function: Any) -> Any:
    try:
        return function()
    except redis.ResponseError as error:
        return error


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(calls=st.lists(CALLS.filter(lambda c: c.method not in SPLIT | CONNECTIONS), max_size=30))
def test_commands_on_a_router_are_those_of_one_server(
    kit: ShardKit, servers: LocalServers, calls: list[Call]
) -> None:
    router = kit.key_sharded("many")
    for shard in router:
        shard.flushdb()
    with redis.Redis(**servers.server_of("one").entry.fields) as plain:
        plain.flushdb()
        for method, args, options in calls:
            expected = tried(lambda m=method, a=args, o=options: getattr(plain, m)(*a, **o))
            got = tried(lambda m=method, a=args, o=options: getattr(router, m)(*a, **o))
            assert told(method, got) == told(method, expected), (method, args)


def test_a_router_refuses_commands_that_belong_to_no_shard(face: Face) -> None:
    router: Any = face.kit.key_sharded("many")
    for call in (lambda: router.keys(), lambda: router.execute_command("PING")):
        with pytest.raises(RoutingError, match=r"has no key to route by; use router\.all"):
            face.run(call())
    with pytest.raises(CrossShardError, match=r"SINTER: the keys live on different .*common \{tag"):
        face.run(router.sinter("a", "b", "c"))
    with pytest.raises(RoutingError, match="command 'NONSENSE' is unknown"):
        face.run(router.execute_command("NONSENSE", "a"))
    with pytest.raises(
        AttributeError, match=r"no flushall\(\).*use router\[key\]\.flushall\(\), or a client"
    ):
        router.flushall()
    with pytest.raises(AttributeError, match=r"no config_set\(\).* router\.all\.config_set\(\)"):
        router.config_set("a", "b")
    with pytest.raises(AttributeError, match=r"no json\(\).* router\[key\]\.json\(\), or a client"):
        router.json()
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        router.nonsense("a")


@pytest.mark.parametrize("router", ["key_sharded", "id_pair_sharded"])
def test_a_router_is_no_mapping_of_values(face: Face, router: str) -> None:
    keys: Any = getattr(face.kit, router)("many")
    with pytest.raises(TypeError, match=r"use router\.exists\(key\)"):
        assert "a" in keys
    with pytest.raises(TypeError, match=r"use router\.set\(key, value\)"):
        keys["a"] = 1


@pytest.fixture(params=["option", "environment"])
def checking(
    request: pytest.FixtureRequest, shard_map: ShardMap, monkeypatch: pytest.MonkeyPatch
) -> Any:
    if request.param == "environment":
        monkeypatch.setenv("SHARDKIT_CHECK_KEYS", "1")
        return shard_map, {}
    return shard_map, {"check_keys": True}


REFUSED = r"SET: key 'b' belongs to shard \d+, but the client is that of shard"


async def test_a_checking_kit_refuses_keys_of_other_shards(checking: Any, kind: str) -> None:
    shard_map, options = checking
    async with opened(kind, shard_map, **options) as face:
        router: Any = face.kit.key_sharded("many")
        assert router.shard_of("a") != router.shard_of("b")
        for client in (router["a"], router.client(router.shard_of("a"))):
            assert isinstance(client, redis.Redis if face.blocks else aioredis.Redis)
            assert await of(client.set("a", 1))
            with pytest.raises(RoutingError, match=REFUSED):
                await of(client.set("b", 1))
            pipe = client.pipeline().incr("a")
            with pytest.raises(RoutingError, match=REFUSED):
                pipe.set("b", 1)
            assert await of(client.lock("a-lock{a}", timeout=1).acquire())
            await of(client.delete("a-lock{a}"))
        assert await of(router.exists("a", "b")) == 1
        pipe = router.pipeline().set("a", 1).set("b", 2)
        assert await of(pipe.execute()) == [True, True]
        assert [await of(client.ping()) for client in router] == [True] * 16
        # A pair, or what a function says, may decide the shard of keys of any name.
        assert await of(face.kit.id_pair_sharded("many")[1, 2].set("b", 1))
    with connect(shard_map, **options) as kit:
        kit.sharded_connection("many")(lambda conn, key: conn.set("b", key))("a")


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with LocalServer() as running:
        yield running


def url(server: LocalServer) -> str:
    return f"redis://127.0.0.1:{server.port}"


async def test_an_object_is_set_read_listed_and_deleted(server: LocalServer, kind: str) -> None:
    async with opened(kind, url(server)) as face:
        directory = face.kit.directory
        await of(directory.set("flags", "checkout", {"new": True, "é": [1, None]}))
        found = await of(directory.get("flags", "checkout"))
        assert found == {"new": True, "é": [1, None]}
        found["new"] = False
        assert (await of(directory.get("flags", "checkout")))["new"] is True
        assert (await of(directory.get("flags", "checkout", max_age=0)))["new"] is True
        assert await of(directory.names("flags")) == ["checkout"]
        assert await of(directory.delete("flags", "checkout"))
        assert not await of(directory.delete("flags", "checkout"))
        with pytest.raises(MissingEntryError, match="config:flags:checkout is missing; set it, or"):
            await of(directory.get("flags", "checkout"))


@pytest.mark.parametrize("value", [{7: 1}, {"a": [{None: 1}]}, {"a": ({True: 1},)}])
async def test_keys_that_are_not_text_are_refused(
    server: LocalServer, kind: str, value: Any
) -> None:
    message = "config:flags:x: (7|None|True) is no key of a JSON object; use text"
    async with opened(kind, url(server)) as face:
        with pytest.raises(InvalidEntryError, match=message):
            await of(face.kit.directory.set("flags", "x", value))
        assert await of(face.kit.directory.names("flags")) == []


def test_an_object_is_read_again_only_after_the_wait(server: LocalServer) -> None:
    with shardkit.connect(url(server)) as kit, server.client() as client:
        kit.directory.set("flags", "checkout", {"v": 1})
        assert kit.directory.get("flags", "checkout", max_age=60) == {"v": 1}
        client.set("config:flags:checkout", '{"v": 2}')
        assert kit.directory.get("flags", "checkout", max_age=60) == {"v": 1}
        assert kit.directory.get("flags", "checkout", max_age=0) == {"v": 2}


def test_the_last_good_object_is_kept_while_the_server_is_broken_or_away(
    server: LocalServer,
) -> None:
    with shardkit.connect(url(server)) as kit, server.client() as client:
        kit.directory.set("flags", "checkout", {"v": 1})
        kit.directory.get("flags", "checkout")
        client.set("config:flags:checkout", "{broken")
        assert kit.directory.get("flags", "checkout", max_age=0) == {"v": 1}
        with pytest.raises(MissingEntryError, match="config:flags:never is missing; set it, or"):
            kit.directory.get("flags", "never")
        client.set("config:flags:list", "[1]")
        with pytest.raises(InvalidEntryError, match="config:flags:list holds no JSON object; set"):
            kit.directory.get("flags", "list")
        server.kill()
        assert kit.directory.get("flags", "checkout", max_age=0) == {"v": 1}
        with pytest.raises(ConfigServerError, match="config:flags:never cannot be read"):
            kit.directory.get("flags", "never")
        assert repr(kit.directory) == "<Directory: 1 cached, 3 failing>"


@pytest.mark.parametrize("value", [None, 1, [("a", 1)], "x", {"x": float("nan")}, {"x": object()}])
def test_what_is_no_json_object_is_refused(server: LocalServer, value: Any) -> None:
    with (
        shardkit.connect(url(server)) as kit,
        pytest.raises(InvalidEntryError, match="config:flags:checkout: the value is no JSON"),
    ):
        kit.directory.set("flags", "checkout", value)


def test_entries_are_left_to_a_push_and_names_are_checked(server: LocalServer) -> None:
    with shardkit.connect(url(server)) as kit:
        with pytest.raises(ConfigError, match="config:redis:unique is an entry"):
            kit.directory.set("redis", "unique", {"host": "a"})
        for kind, component, said in (
            ("a:b", "x", "type 'a:b' cannot be used"),
            ("flags", "x:0", "is the name of a shard of 'x'"),
            ("", "x", "type '' cannot be used"),
            ("flags", "", "is not a component's name"),
        ):
            with pytest.raises(ConfigError, match=said):
                kit.directory.get(kind, component)


def test_a_kit_of_a_shard_map_says_that_it_has_no_directory(kit: shardkit.ShardKit) -> None:
    with pytest.raises(ConfigError, match="it has no directory"):
        _ = kit.directory
