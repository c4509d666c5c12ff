"""Commands on a router itself, and the check that a client is used for its own shard's keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio as aioredis
from faces import Face
from hypothesis import HealthCheck, given, settings, strategies as st
from link_helpers import FACES, of, opened
from test_pipeline_parity import CALLS, Call, told

import shardkit
from shardkit import AsyncShardKit, CrossShardError, ShardKit, ShardMap, connect
from shardkit.errors import RoutingError
from shardkit.local import LocalServers

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


def test_a_command_goes_to_the_shard_of_its_key(face: Face) -> None:
    router = face.kit.key_sharded("many")
    for n in range(50):
        assert face.run(router.set(f"k{n}", n)) is True
    held = face.run(router.mget([f"k{n}" for n in range(50)]))
    assert held == [str(n).encode() for n in range(50)]
    assert face.run(router.execute_command("OBJECT", "ENCODING", "k7")) == b"int"
    assert face.run(router.sadd("{t}a", "x", "y")) == 2
    assert face.run(router.sunionstore("{t}b", "{t}a", "{t}c")) == 2
    assert face.run(router.bitfield("bits").set("u8", 0, 3).execute()) == [0]
    assert face.run(router.blpop(["nothing"], timeout=0.01)) is None


async def test_iterators_over_one_key_are_routed(kit: ShardKit, akit: AsyncShardKit) -> None:
    kit.key_sharded("many").hset("h", mapping={f"f{n}": n for n in range(5_000)})
    assert len(dict(kit.key_sharded("many").hscan_iter("h"))) == 5_000
    assert len([pair async for pair in akit.key_sharded("many").hscan_iter("h")]) == 5_000


def test_a_router_refuses_commands_that_belong_to_no_shard(face: Face) -> None:
    router: Any = face.kit.key_sharded("many")
    for call in (lambda: router.keys(), lambda: router.execute_command("PING")):
        with pytest.raises(RoutingError, match=r"has no key to route by; use router\.all"):
            face.run(call())
    with pytest.raises(CrossShardError, match=r"SINTER: the keys live on different .*common \{tag"):
        face.run(router.sinter("a", "b", "c"))
    with pytest.raises(RoutingError, match="command 'NONSENSE' is unknown"):
        face.run(router.execute_command("NONSENSE", "a"))
    with pytest.raises(AttributeError, match=r"no flushall\(\).*for client in router"):
        router.flushall()
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        router.nonsense("a")


async def test_an_awaiting_router_of_the_default_kit_reads_its_component_first(
    shard_map: ShardMap, tmp_path: Path
) -> None:
    (tmp_path / "map.yaml").write_text(shard_map.to_yaml())
    shardkit.configure(tmp_path / "map.yaml")
    try:
        router = shardkit.AsyncKeyShardedConnection("many")
        assert await router.incr("n") == 1
    finally:
        await shardkit.default_kit().aclose()
        shardkit.configure(None)


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


@pytest.mark.parametrize("kind", FACES)
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


def test_kits_check_no_keys_by_default(kit: ShardKit, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kit.key_sharded("many")["a"].set("b", 1)
    monkeypatch.setenv("SHARDKIT_CHECK_KEYS", "0")
    with connect(kit.topology.source.shard_map) as other:  # type: ignore[attr-defined]
        assert other.key_sharded("many")["a"].set("b", 1)
