"""A kit in memory behaves as one on real servers: the same tests on both; servers in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from faces import Face, faced

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.admin import push
from shardkit.errors import (
    CommandRefused,
    CrossShardError,
    ShardErrors,
)
from shardkit.local import LocalServers
from shardkit.network.connections import Connector
from shardkit.operations import Script
from shardkit.testing import MemoryServers

ADD = Script("add", "return redis.call('INCRBY', KEYS[1], ARGV[1])")

Ground = tuple[ShardMap, Connector]


@pytest.fixture(params=["servers", "memory"])
def ground(request: pytest.FixtureRequest, servers: LocalServers) -> Ground:
    """What to open a kit with: real servers, or the same in memory."""
    if request.param == "servers":
        return request.getfixturevalue("shard_map"), Connector()
    memory = MemoryServers(servers.shard_map)
    return memory.shard_map, memory


@pytest.fixture
def kit(ground: Ground) -> Iterator[ShardKit]:
    with shardkit.connect(ground[0], connector=ground[1]) as kit:
        yield kit


@pytest.fixture(params=["blocking", "awaiting"])
def face(request: pytest.FixtureRequest, ground: Ground) -> Iterator[Face]:
    with faced(request.param, ground[0], connector=ground[1]) as opened:
        yield opened


def test_pipelines_split_and_merge(face: Face) -> None:
    router = face.kit.key_sharded("many", shards=16)
    pipe = router.pipeline()
    pipe.mset({f"k{n}": n for n in range(50)}).set("k0", 7)
    pipe.mget("k1", "nope", "k49").delete("k1", "k2", "nope").exists("k1", "k3", "k4").getdel("k0")
    pipe.hset("h", mapping={"a": 1}).hgetall("h").zadd("z", {"a": 1})
    pipe.zrange("z", 0, -1, withscores=True)
    assert face.run(pipe.execute()) == [
        *(True, True, [b"1", None, b"49"], 2, 2, b"7"),
        *(1, {b"a": b"1"}, 1, [(b"a", 1.0)]),
    ]
    assert len(set(face.list(router.scan_iter("k*")))) == 47
    with pytest.raises(CrossShardError, match="1, SINTER: the keys live on different shards"):
        face.run(pipe.sinter("a", "b", "c", "d", "e").execute())
    wrong, right = face.run(pipe.incr("h").incr("n").execute(raise_on_error=False))
    assert isinstance(wrong, CommandRefused)
    assert "WRONGTYPE" in str(wrong) or "wrong kind of value" in str(wrong)
    assert right == 1


PRODUCTION = ShardMap.parse("""
config_server: {url: "rediss://config.internal:6380/0?password=${CONFIG_PASSWORD}"}
defaults: {ssl: true, password: "${DATA_PASSWORD}"}
components:
  plain:
    entry: {host: a.internal, db: 1, replicas: [{host: b.internal}]}
    shards: {count: 4, over: [{host: a.internal, db: 2}, {host: "${HOST}.internal", db: 2}]}
  grouped: {entry: {url: "rediss://app:${APP_PASSWORD}@c.internal", cluster: true}}
  watched: {entry: {db: 2, sentinel: {service: main, sentinels: [[s1, 26379]]}}}
""")


def test_a_production_map_is_served_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATA_PASSWORD", raising=False)
    monkeypatch.setenv("HOST", "b")
    servers = MemoryServers(PRODUCTION)
    assert [server.address for server in servers.servers] == [
        "a.internal:6379",
        "b.internal:6379",
        "c.internal:6379",
        "sentinel:main@s1:26379",
    ]
    with shardkit.connect(servers.shard_map, connector=servers) as kit:
        for name in kit.components():
            for shard in kit.component(name).all_shards():
                assert kit.client(name, shard.number).set(str(shard), 1)
    assert servers.server_of("plain", 3).address == "b.internal:6379"
    assert servers.server_of("plain", 3).client(db=3).get("plain:3") == b"1"
    assert servers.server_of("grouped").client().get("grouped") == b"1"
    servers.flush()
    assert [server.client(db=2).dbsize() for server in servers.servers] == [0] * 4


def write_by_hand(servers: MemoryServers) -> None:
    with servers.config_server.client() as config:
        config.set("config:redis:unique", '{"host": "a.internal", "db": 99}')
        config.mset({f"config:redis:unique:{n}": f'{{"db": {n + 1}}}' for n in range(16)})


def test_entries_are_read_from_a_config_server_in_memory() -> None:
    servers = MemoryServers()
    write_by_hand(servers)
    with shardkit.connect(servers.config_server.entry, connector=servers) as kit:
        shardkit.configure(kit)
        try:
            assert expected("day")
            assert visit("550e8400")
        finally:
            shardkit.configure(None)
    assert servers.server("a.internal:6379").client(db=99).get("day") == b"1000"
    held = [servers.server("127.0.0.1:6379").client(db=n).exists("550e8400") for n in range(17)]
    assert sum(held) == 1


@shardkit.redis_connection("unique")
def expected(conn: redis.Redis, day: str) -> object:
    return conn.set(day, 1000)


@shardkit.sharded_connection("unique", 16)
def visit(conn: redis.Redis, session: str) -> object:
    return conn.set(session, 1)


@pytest.mark.parametrize("call", ["client", "pipeline", "router", "each"])
@pytest.mark.parametrize("fault", ["lose_answer", "lose_command", "hang", "down"])
def test_errors_say_what_those_of_real_servers_say(kind: str, fault: str, call: str) -> None:
    servers = MemoryServers(ShardMap.parse("components: {e: {entry: {}}}"))
    [server] = servers.servers
    with faced(kind, servers.shard_map, connector=servers) as face:
        client = face.kit.client("e") if kind == "blocking" else face.run(face.kit.client("e"))

        def piped() -> Any:
            return client.pipeline(transaction=False).incr("n").execute()

        calls = {
            "client": lambda: client.incr("n"),
            "pipeline": piped,
            "router": lambda: face.kit.key_sharded("e").incr("n"),
            "each": lambda: face.kit.key_sharded("e").each("INCR", ["n"]),
        }
        face.run(client.ping())
        getattr(server, fault)()
        with pytest.raises((redis.ConnectionError, redis.TimeoutError, ShardErrors)) as caught:
            face.run(calls[call]())
    assert caught.value.maybe_executed is (fault != "down")  # type: ignore[union-attr]


def test_a_map_is_pushed_to_a_config_server_in_memory() -> None:
    servers = MemoryServers(PRODUCTION)
    with servers.config_server.client() as config:
        changes = push(config, servers.shard_map, connector=servers)
        assert {change.kind for change in changes} == {"added"}
        again = push(config, servers.shard_map, connector=servers)
        assert {change.kind for change in again} == {"unchanged"}
    assert servers.config_server.address == "config.internal:6380"
    with shardkit.connect(servers.config_server.entry, connector=servers) as kit:
        assert kit.key_sharded("plain")["a"].set("a", 1)


@pytest.mark.parametrize(
    "entry",
    [
        {"host": "a.internal", "port": 7001},
        {"host": "::1", "port": 7001},
        {"host": "fe80::1", "port": 7001},
        {"unix_socket_path": "/run/redis/a.sock"},
        {"sentinel": {"service": "main", "sentinels": [["s1", 26379], ["s2", 26380]]}},
    ],
)
def test_a_server_gives_the_entry_that_leads_to_it(entry: dict[str, Any]) -> None:
    servers = MemoryServers()
    server = servers.server(shardkit.Entry(entry))
    assert servers.server(server.entry) is server
