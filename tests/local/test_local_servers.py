from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from faces import alive, free_port

from shardkit import Entry, ShardMap
from shardkit.errors import LocalServerError, MissingEntryError
from shardkit.local import LocalServer, LocalServers

PLAIN = """
config_server: {host: config.internal}
components:
  unique:
    entry: {host: a.internal}
    shards: {count: 8, over: [{host: a.internal}, {host: b.internal}]}
  timelines:
    shards: [{host: c.internal, db: 40}]
"""

PRODUCTION = """
config_server: {url: "rediss://${CONFIG_USER}:${CONFIG_PASSWORD}@config.internal:6380/0"}
defaults: {ssl: true, ssl_ca_certs: /etc/ssl/redis.pem, password: "${DATA_PASSWORD}"}
components:
  plain:
    entry: {host: a.internal, username: app, db: 3, replicas: [{host: b.internal, username: app}]}
  grouped:
    entry: {host: c.internal, cluster: true}
  watched:
    entry:
      db: 2
      sentinel:
        {service: main, password: "${WATCH}", sentinels: [[s1, 26379], [s2, 26379], [s3, 26379]]}
  more:
    entry:
      sentinel:
        {service: more, password: "${WATCH}", sentinels: [[s1, 26379], [s2, 26379], [s3, 26379]]}
"""


def entries(shard_map: ShardMap) -> Iterator[Entry]:
    for component in shard_map.components.values():
        if component.entry is not None:
            yield component.entry
        yield from component.shards


def client(entry: Entry) -> Any:
    """redis-py's client for an entry, made by the book."""
    fields = entry.resolved("entry")
    fields.pop("replicas", None)
    watched = fields.pop("sentinel", None)
    if watched is not None:
        manager = redis.Sentinel(
            watched["sentinels"], sentinel_kwargs={"password": watched.get("password")}
        )
        return manager.master_for(watched["service"], **fields)
    if fields.pop("cluster", False):
        return redis.RedisCluster(**fields)
    return redis.Redis(**fields)


def test_a_map_runs_on_free_ports_and_its_entries_say_where(binary: Path) -> None:
    shard_map = ShardMap.parse(PLAIN)
    seen: list[tuple[str, int, int]] = []
    servers = LocalServers(
        shard_map, ports="free", binary=binary, progress=lambda *now: seen.append(now)
    )
    with servers:
        pids = [server.pid for server in servers.servers]
        assert len(set(pids)) == 4
        for n, entry in enumerate(entries(servers.shard_map)):
            with client(entry) as connected:
                connected.set(f"from {n}", n)
                assert connected.client_info()["db"] == entry.fields.get("db", 0)
        assert servers.config_server is not None
        assert servers.shard_map.config_server is not None
        assert servers.shard_map.config_server.fields["port"] == servers.config_server.port
        assert servers.server_of("unique") is servers.server_of("unique", 2)
        assert servers.server_of("unique", 1) is not servers.server_of("unique", 2)
        assert repr(servers).endswith("4 of 4 running>")
    assert not any(alive(pid) for pid in pids)
    assert [name for name, _, _ in seen] == ["config server", "unique", "unique:1", "timelines:0"]
    assert [(done, total) for _, done, total in seen] == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_given_ports_that_cannot_be_had_start_nothing() -> None:
    with pytest.raises(LocalServerError, match="would share port 6379"):
        LocalServers(ShardMap.parse(PLAIN))
    with LocalServer() as other:
        text = f"components: {{unique: {{shards: [{{}}, {{port: {other.port}}}]}}}}"
        servers = LocalServers(ShardMap.parse(text.replace("{},", f"{{port: {free_port()}}},")))
        with pytest.raises(LocalServerError, match=f"unique:1.*port {other.port} .* is taken"):
            servers.start()
        assert not any(server.running for server in servers.servers)


def test_a_production_map_can_be_tried_as_it_is(binary: Path) -> None:
    with LocalServers(ShardMap.parse(PRODUCTION), ports="free", binary=binary) as servers:
        # the config server, a master and its replica, three nodes, two services, three Sentinels
        assert len(servers.servers) == 1 + 2 + 3 + 4 + 3
        moved = servers.shard_map
        assert moved.config_server is not None
        with client(moved.config_server) as connected:
            assert connected.acl_whoami() == "local-CONFIG_USER"
        for name, component in moved.components.items():
            assert component.entry is not None
            with client(component.entry) as connected:
                connected.set("component", name)
                assert connected.get("component") == name.encode()
        plain = moved.components["plain"].entry
        assert plain is not None
        with client(plain) as master, client(plain.replicas[0]) as replica:
            assert master.acl_whoami() == "app"
            assert master.wait(1, 5000) == 1
            assert replica.info("replication")["role"] == "slave"
        with (
            servers.server_of("plain").client(username=None, password=None) as stranger,
            pytest.raises(redis.AuthenticationError, match="Authentication required"),
        ):
            stranger.ping()


def test_servers_are_used_after_they_are_started() -> None:
    servers = LocalServers(ShardMap.parse(PLAIN), ports="free")
    with pytest.raises(LocalServerError, match="not started"):
        _ = servers.shard_map
    with pytest.raises(MissingEntryError, match="config:redis:unknown"):
        servers.server_of("unknown")
    with pytest.raises(MissingEntryError, match="config:redis:unique:8"):
        servers.server_of("unique", 8)
    with servers:
        with pytest.raises(LocalServerError, match="run already"):
            servers.start()
        assert all(server.running for server in servers.servers)
