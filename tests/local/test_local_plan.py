"""Which servers a map gets, and what its entries say of them."""

from __future__ import annotations

from typing import Any

import pytest

from shardkit import ShardMap
from shardkit.errors import ConfigError, LocalServerError
from shardkit.local import LocalServers


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
    found = []
    with servers_of(f"  unique: {unique}") as servers:
        for server in servers.servers:
            with server.client() as client:
                found.append(int(client.config_get("databases")["databases"]))
    assert found == databases


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
            with server.client(**login) as client:
                assert client.ping()


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
            with server.client(password=password) as client:
                assert client.ping()
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
