"""Servers of a whole map, and clusters, that tests and demos start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from arranged import client_of
from faces import alive, free_port
from local_helpers import eventually
from redis.exceptions import AuthenticationError

from shardkit import Entry, ShardMap
from shardkit.errors import ConfigError, LocalServerError, MissingEntryError
from shardkit.local import LocalCluster, LocalSentinel, LocalServer, LocalServers

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


def servers_of(components: str) -> LocalServers:
    return LocalServers(ShardMap.parse(f"components:\n{components}", "map.yaml"), ports="free")


def fields(servers: LocalServers, component: str) -> dict[str, Any]:
    entry = servers.shard_map.components[component].entry
    assert entry is not None
    return dict(entry.fields)


@pytest.mark.parametrize(
    ("unique", "databases"),
    [
        ("{shards: {count: 8, over: [{host: a}, {host: b}]}}", [16, 16]),
        ("{shards: {count: 64, over: [{host: a}, {host: b}]}}", [32, 32]),
        ("{entry: {url: 'redis://a/99'}}", [100]),
        ("{shards: [{db: 1}, {host: localhost, db: 2}, {host: 127.0.0.1, db: 3}]}", [16]),
    ],
)
def test_entries_share_a_server_with_as_many_databases_as_they_need(
    unique: str, databases: list[int]
) -> None:
    with servers_of(f"  unique: {unique}") as servers:
        settings = [client_of(server).config_get("databases") for server in servers.servers]
    assert settings == [{"databases": str(count)} for count in databases]


def test_entries_of_one_server_may_name_the_same_replica() -> None:
    text = (
        "  a: {entry: {host: a, password: p, replicas: [{host: b}]}}\n"
        "  b: {entry: {host: a, db: 30, password: p, replicas: [{host: b}]}}"
    )
    with servers_of(text) as servers:
        master, replica = servers.servers
        assert replica.name == "a replica 0"
        with replica.client() as client:
            assert client.info("replication")["master_port"] == master.port
            assert client.config_get("databases") == {"databases": "31"}


def test_users_and_passwords_are_those_of_all_entries() -> None:
    one = "  a: {entry: {host: a, password: one}}\n"
    text = f"{one}  b: {{entry: {{host: a, username: u, password: two}}}}"
    with servers_of(text) as servers:
        [server] = servers.servers
        for login in ({"password": "one"}, {"username": "u", "password": "two"}):
            assert client_of(server, **login).ping()


def test_different_passwords_for_one_user_are_an_error_that_shows_neither() -> None:
    with pytest.raises(LocalServerError) as caught:
        servers_of("  a: {entry: {host: a, password: pw1}}\n  b: {entry: {host: a, password: pw2}}")
    assert "config:redis:a and config:redis:b are one server" in str(caught.value)
    assert "pw1" not in str(caught.value)
    assert "pw2" not in str(caught.value)


def test_a_secret_is_taken_from_the_environment_or_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "known")
    monkeypatch.delenv("B", raising=False)
    text = "  a: {entry: {host: a, password: '${A}'}}\n  b: {entry: {host: b, password: '${B}'}}"
    with servers_of(text) as servers:
        for server, password in zip(servers.servers, ("known", "local-B"), strict=True):
            assert client_of(server, password=password).ping()
        assert fields(servers, "a")["password"] == "${A}"
        assert fields(servers, "b")["password"] == "local-B"


def test_a_url_that_cannot_be_read_without_the_environment_is_an_error() -> None:
    with pytest.raises(ConfigError, match="config:redis:a: url"):
        servers_of("  a: {entry: {url: 'redis://a:${PORT}'}}")


def test_moved_entries_lose_their_place_and_tls_and_keep_the_rest() -> None:
    text = (
        "  a: {entry: {host: a, db: 1, ssl: true, ssl_ca_certs: /ca.pem, socket_timeout: 2}}\n"
        "  b: {entry: {unix_socket_path: /run/b.sock, decode_responses: true}}\n"
        "  d: {shards: [{host: a, replicas: [{host: b, ssl: true}]}], "
        "placement: slot, route: 'user:(.+)'}\n"
    )
    with servers_of(text) as servers:
        one, socket, replica = (server.port for server in servers.servers)
        moved = servers.shard_map.components
        here = {"host": "127.0.0.1"}
        assert fields(servers, "a") == {**here, "port": one, "db": 1, "socket_timeout": 2}
        assert fields(servers, "b") == {**here, "port": socket, "decode_responses": True}
        [shard] = moved["d"].shards
        assert shard.fields["port"] == one
        [follower] = shard.fields["replicas"]
        assert (follower["host"], follower["port"]) == ("127.0.0.1", replica)
        assert not any(name.startswith("ssl") for name in follower)
        assert (moved["d"].placement, moved["d"].routes) == ("slot", ("user:(.+)",))


@pytest.mark.parametrize(
    ("components", "message"),
    [
        (
            "  a: {entry: {host: a}}\n  b: {entry: {host: a, cluster: true}}",
            "a:6379 is a server for config:redis:a, but a cluster for config:redis:b",
        ),
        (
            "  a: {shards: [{host: a, replicas: [{host: b}]}, {host: b}]}",
            "b:6379 is a replica of a:0 for .*, but a server for config:redis:a:1",
        ),
        (
            "  a: {shards: [{host: a, replicas: [{host: c}]}, {host: b, replicas: [{host: c}]}]}",
            "c:6379 is a replica of a:0 for .*, but a replica of a:1 for",
        ),
        (
            "  a: {entry: {sentinel: {service: main, sentinels: [[s, 1], [t, 1]]}}}\n"
            "  b: {entry: {sentinel: {service: main, sentinels: [[s, 1]]}}}",
            "service 'main' is given with different lists of Sentinels",
        ),
    ],
)
def test_a_server_cannot_be_two_things(components: str, message: str) -> None:
    with pytest.raises(LocalServerError, match=message):
        servers_of(components)


def test_three_masters_hold_all_keys_between_them(binary: Path) -> None:
    with (
        LocalCluster(users={"app": "s3cret"}, binary=binary) as cluster,
        cluster.client() as client,
    ):
        pids = [node.pid for node in cluster.nodes]
        for n in range(200):
            client.set(f"key:{n}", n)
        assert [client.get(f"key:{n}") for n in (0, 100, 199)] == [b"0", b"100", b"199"]
        sizes = [client_of(node).dbsize() for node in cluster.nodes]
        assert sum(sizes) == 200
        assert all(sizes)
        assert cluster.entry.is_cluster
        with (
            cluster.nodes[0].client(username=None, password=None) as stranger,
            pytest.raises(AuthenticationError, match="Authentication required"),
        ):
            stranger.ping()
    assert not any(alive(pid) for pid in pids)


def test_a_replica_takes_over_from_a_killed_master(binary: Path) -> None:
    cluster = LocalCluster(
        replicas_per_master=1,
        password="s3cret",
        binary=binary,
        config={"cluster-node-timeout": 500},
    )
    with cluster, cluster.client() as client:
        client.set("greeting", "hello")
        owner = client.get_node_from_key("greeting").port
        master, replica = next(
            pair
            for pair in zip(cluster.nodes[:3], cluster.nodes[3:], strict=True)
            if pair[0].port == owner
        )
        assert client_of(master).wait(1, 5000) == 1
        master.kill()

        def answered() -> bool:
            with cluster.client(port=replica.port) as fresh:  # asks a node that lives
                return fresh.get("greeting") == b"hello"

        assert eventually(answered)


def test_a_clusters_data_survives_on_other_ports(binary: Path, tmp_path: Path) -> None:
    cluster = LocalCluster(data_dir=tmp_path, binary=binary)
    ports = []
    for attempt in range(2):
        with cluster, cluster.client() as client:
            ports.append({node.port for node in cluster.nodes})
            assert [client.incr(f"key:{n}") for n in range(20)] == [attempt + 1] * 20
    assert ports[0] != ports[1]


def test_a_start_that_was_broken_off_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(cluster: LocalCluster, deadline: float) -> None:
        cluster.await_ready(time.monotonic())  # all the time that there was

    cluster = LocalCluster(data_dir=tmp_path)
    for node in cluster.nodes:
        node.start()
    with cluster.nodes[0].client() as client:
        client.execute_command("CLUSTER SET-CONFIG-EPOCH", 1)
        client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 5460)
    cluster.stop()
    assert repr(cluster) == "<LocalCluster 'cluster': 0 of 3 nodes running>"
    with monkeypatch.context() as patched:
        patched.setattr(LocalCluster, "_agree", lambda cluster, clients: False)
        patched.setattr(LocalCluster, "join_nodes", late)
        said = "did not form in time: the nodes' logs end:\n(.|\n)*Ready to accept connections"
        with pytest.raises(LocalServerError, match=said):
            cluster.start()
    assert not any(node.running for node in cluster.nodes)
    with cluster, cluster.client() as client:
        assert repr(cluster) == "<LocalCluster 'cluster': 3 of 3 nodes running>"
        assert client.set("greeting", "hello")


def test_the_first_node_can_have_a_given_port() -> None:
    with LocalServer() as other:
        cluster = LocalCluster(port=other.port)
        with pytest.raises(LocalServerError, match=f"port {other.port} .* is taken"):
            cluster.start()
    assert not any(node.running for node in cluster.nodes)
    with cluster.nodes[1]:
        with pytest.raises(LocalServerError, match=f"{cluster.nodes[1].name} runs already"):
            cluster.start()
        assert [node.running for node in cluster.nodes] == [False, True, False]


def test_the_sentinels_replace_a_killed_master_which_comes_back_as_a_replica(binary: Path) -> None:
    watched = LocalSentinel("main", password="s3cret", sentinel_password="other", binary=binary)
    with watched:
        pids = [server.pid for server in watched.servers]
        manager = watched.sentinel()
        assert manager.discover_master("main") == ("127.0.0.1", watched.master.port)
        with manager.master_for("main") as client:
            client.set("greeting", "hello")
            assert client.wait(1, 5000) == 1
            watched.master.kill()
            [replica] = watched.replicas

            def answered() -> bool:
                return (
                    manager.discover_master("main") == ("127.0.0.1", replica.port)
                    and client.get("greeting") == b"hello"
                    and client.set("greeting", "bye")
                )

            assert eventually(answered)
        watched.master.restart()

        def follows() -> bool:
            return client_of(watched.master).get("greeting") == b"bye"

        assert eventually(follows)
        pids.append(watched.master.pid)
    assert not any(alive(pid) for pid in pids)


def test_servers_that_start_too_late_are_reported_and_stopped() -> None:
    watched = LocalSentinel(sentinels=1, replicas=0)
    with pytest.raises(LocalServerError, match=r"^main master .* did not answer in time"):
        watched.start(timeout=0)
    assert not any(server.running for server in watched.servers)


def test_sentinels_ask_for_the_password_that_they_were_given() -> None:
    with LocalSentinel(sentinels=1, replicas=0, sentinel_password="other") as watched:
        assert watched.entry.is_sentinel
        client = watched.sentinel().master_for(watched.service)
        with pytest.raises(LocalServerError, match="main master runs already; stop it first"):
            watched.start()
        assert all(server.running for server in watched.servers)
        assert client.get_retry().get_retries() == 0  # what may have been done is not done again
        with (
            watched.sentinels[0].client(password=None) as stranger,
            pytest.raises(AuthenticationError, match="Authentication required"),
        ):
            stranger.ping()


def test_sentinels_know_each_other_and_all_replicas(binary: Path) -> None:
    with LocalSentinel("orders", replicas=2, sentinels=3, binary=binary) as watched:
        assert len(watched.sentinels) == 3
        assert repr(watched) == "<LocalSentinel 'orders': 6 of 6 running>"
        for sentinel in watched.sentinels:
            with sentinel.client() as client:
                state = client.sentinel_master("orders")
                assert state["num-other-sentinels"] == 2
                assert state["num-slaves"] == 2
                client.sentinel_ckquorum("orders")  # raises if there is none
