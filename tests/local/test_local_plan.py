from __future__ import annotations

from typing import Any

import pytest

from shardkit import ShardMap
from shardkit.errors import ConfigError, LocalServerError
from shardkit.local.servers import CompleteEnvironment, ServerPlan


def plan(components: str, environ: dict[str, str] | None = None, top: str = "") -> ServerPlan:
    return ServerPlan(parse(components, top), environ or {})


def parse(components: str, top: str = "") -> ShardMap:
    return ShardMap.parse(f"{top}\ncomponents:\n{components}", "map.yaml")


def fields(entry: Any) -> dict[str, Any]:
    assert entry is not None
    return entry.fields  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("unique", "databases"),
    [
        ("{shards: {count: 8, over: [{host: a}, {host: b}]}}", {"a": 16, "b": 16}),
        ("{shards: {count: 64, over: [{host: a}, {host: b}]}}", {"a": 32, "b": 32}),
        ("{entry: {url: 'redis://a/99'}}", {"a": 100}),
        (
            "{shards: [{db: 1}, {host: localhost, db: 2}, {host: 127.0.0.1, db: 3}]}",
            {"127.0.0.1": 16},
        ),
    ],
)
def test_entries_share_a_server_with_as_many_databases_as_they_need(
    unique: str, databases: dict[str, int]
) -> None:
    servers = plan(f"  unique: {unique}").servers
    assert {address: server.databases for address, server in servers.items()} == {
        (host, 6379): count for host, count in databases.items()
    }


def test_entries_of_one_server_may_name_the_same_replica() -> None:
    planned = plan(
        "  a: {entry: {host: a, password: p, replicas: [{host: b}]}}\n"
        "  b: {entry: {host: a, db: 30, password: p, replicas: [{host: b}]}}"
    )
    master, replica = planned.servers.values()
    assert (replica.label, replica.replica_of) == ("a replica 0", master)
    assert replica.databases == master.databases == 31


def test_users_and_passwords_are_those_of_all_entries() -> None:
    planned = plan(
        "  a: {entry: {host: a, password: one}}\n"
        "  b: {entry: {host: a, username: u, password: two}}"
    )
    assert planned.servers["a", 6379].users.passwords == {"default": "one", "u": "two"}


def test_different_passwords_for_one_user_are_an_error_that_shows_neither() -> None:
    with pytest.raises(LocalServerError) as caught:
        plan("  a: {entry: {host: a, password: pw1}}\n  b: {entry: {host: a, password: pw2}}")
    assert "config:redis:a and config:redis:b are one server" in str(caught.value)
    assert "pw1" not in str(caught.value)
    assert "pw2" not in str(caught.value)


def test_a_secret_is_taken_from_the_environment_or_made_up() -> None:
    text = "  a: {entry: {host: a, password: '${A}'}}\n  b: {entry: {host: b, password: '${B}'}}"
    shard_map = parse(text)
    planned = ServerPlan(shard_map, {"A": "known"})
    assert planned.servers["a", 6379].users.passwords == {"default": "known"}
    assert planned.servers["b", 6379].users.passwords == {"default": "local-B"}
    moved = planned.moved(shard_map, {("a", 6379): 7001, ("b", 6379): 7002})
    assert fields(moved.components["a"].entry)["password"] == "${A}"
    assert fields(moved.components["b"].entry)["password"] == "local-B"


def test_an_environment_in_which_every_name_has_a_value_lists_those_that_are_known() -> None:
    complete = CompleteEnvironment({"A": "known"})
    assert dict(complete) == {"A": "known"}
    assert (len(complete), complete["B"]) == (1, "local-B")


def test_a_url_that_cannot_be_read_without_the_environment_is_an_error() -> None:
    with pytest.raises(ConfigError, match="config:redis:a: url"):
        plan("  a: {entry: {url: 'redis://a:${PORT}'}}")


def test_moved_entries_lose_their_place_and_tls_and_keep_the_rest() -> None:
    shard_map = parse(
        "  a: {entry: {host: a, db: 1, ssl: true, ssl_ca_certs: /ca.pem, socket_timeout: 2}}\n"
        "  b: {entry: {unix_socket_path: /run/b.sock, decode_responses: true}}\n"
        "  c: {entry: {cluster: true, host: c, port: 7000}}\n"
        "  d: {shards: [{host: a, replicas: [{host: b, ssl: true}]}], "
        "placement: slot, route: 'user:(.+)'}\n"
        "  e: {entry: {sentinel: {service: main, sentinels: [[s, 1], [t, 2]]}, db: 4}}"
    )
    planned = ServerPlan(shard_map, {})
    ports = {
        ("a", 6379): 1001,
        ("unix:/run/b.sock", 0): 1002,
        ("c", 7000): 1003,
        ("b", 6379): 1004,
        ("s", 1): 1005,
        ("t", 2): 1006,
    }
    moved = planned.moved(shard_map, ports).components
    here = {"host": "127.0.0.1"}
    assert fields(moved["a"].entry) == {**here, "port": 1001, "db": 1, "socket_timeout": 2}
    assert fields(moved["b"].entry) == {**here, "port": 1002, "decode_responses": True}
    assert fields(moved["c"].entry) == {**here, "port": 1003, "cluster": True}
    [shard] = moved["d"].shards
    assert shard.fields["port"] == 1001
    assert [(r["host"], r["port"]) for r in shard.fields["replicas"]] == [("127.0.0.1", 1004)]
    assert not any(name.startswith("ssl") for name in shard.fields["replicas"][0])
    assert (moved["d"].placement, moved["d"].routes) == ("slot", ("user:(.+)",))
    assert fields(moved["e"].entry) == {
        "db": 4,
        "sentinel": {
            "service": "main",
            "sentinels": [["127.0.0.1", 1005], ["127.0.0.1", 1006]],
        },
    }


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
        plan(components)
