from __future__ import annotations

import pytest

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalServers
from shardkit.testing.kits import built_in_map, empty, opened
from shardkit.testing.memory import MemoryServers

PRODUCTION = ShardMap.parse("""
config_server: {url: "rediss://config.internal:6380/0?password=${CONFIG_PASSWORD}"}
defaults: {ssl: true, password: "${DATA_PASSWORD}"}
components:
  plain:
    entry: {host: a.internal, db: 1, replicas: [{host: b.internal}]}
    shards: {count: 4, over: [{host: a.internal, db: 2}, {host: "${HOST}.internal", db: 2}]}
  grouped: {entry: {url: "redis://app:${APP_PASSWORD}@c.internal", cluster: true}}
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


def test_the_built_in_map_has_no_warnings() -> None:
    assert built_in_map().warnings == ()


def test_servers_of_every_kind_are_emptied() -> None:
    with LocalServers(PRODUCTION, ports="free") as servers:
        for _ in range(2):
            with opened(shardkit.ShardKit, servers.shard_map) as kit:
                added = [
                    kit.set("ids", component=name, total=9).sadd("a") for name in kit.components()
                ]
                assert added == [1] * len(servers.shard_map.components)
            empty(servers)
