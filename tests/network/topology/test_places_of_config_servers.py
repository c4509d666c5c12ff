"""Config servers with several addresses, behind Sentinels, or in a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from arranged import ask
from click.testing import CliRunner
from faces import PATIENCE
from link_helpers import eventually, of, opened
from topology_helpers import follows, one_at

import shardkit
from shardkit import Entry, ShardMap
from shardkit.admin import backup, check, config_client, push, restore_objects, rotate
from shardkit.admin.growth import attach_replica, fail_over, moves, plan_split, start_move
from shardkit.cli.app import app
from shardkit.config import store
from shardkit.errors import ConfigError, ConfigServerError, InvalidEntryError, ShardKitError
from shardkit.local import LocalCluster, LocalSentinel, LocalServer
from shardkit.network.connections.slot_owner import plain, tagged


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, 1) as running:
        yield running


@pytest.fixture(autouse=True)
def _empty(cluster: LocalCluster) -> None:
    ask(cluster, "flushall", target_nodes="primaries")


@pytest.fixture(scope="module")
def servers() -> Iterator[list[LocalServer]]:
    with LocalServer() as a, LocalServer() as b, LocalServer() as c:
        yield [a, b, c]


def url_of(cluster: LocalCluster, scheme: str = "redis+cluster", login: str = "") -> str:
    return f"{scheme}://{login}" + ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)


def is_pushed(url: str, shard_map: ShardMap) -> bool:
    with suppress(ShardKitError, redis.RedisError), config_client(url) as config:
        push(config, shard_map)
        return True
    return False


def owner(cluster: LocalCluster) -> Any:
    """Return the node that has the keys."""
    port = ask(cluster, "get_node_from_key", "{config}").port
    return next(node for node in cluster.nodes if node.port == port)


async def test_all_keys_are_on_one_master_and_changes_arrive(
    kind: str, cluster: LocalCluster
) -> None:
    with config_client(url_of(cluster)) as config:
        push(config, one_at(1))
        names = sorted(config.scan_iter("config:*"))
        assert b"config:redis:one" in names
        assert sorted(ask(owner(cluster), "keys", "*")) == [
            b"{config}" + name[6:] for name in names
        ]
        async with opened(kind, url_of(cluster)) as face:
            assert await of(face.kit.components()) == ["one"]
            assert await follows(face, 1)
            push(config, one_at(2))
            assert await follows(face, 2)
        assert len(store.read_history(config)) == 2


async def test_clients_follow_the_keys_through_a_failover(kind: str) -> None:
    with LocalCluster(3, 1, config={"cluster-node-timeout": 1000}) as cluster:
        url = url_of(cluster)
        with config_client(url) as config:
            push(config, one_at(1))
            config.wait(1, 10_000)
        async with opened(kind, url) as first:
            assert await follows(first, 1)
            owner(cluster).kill()
            assert await follows(first, 1)
            assert await eventually(partial(is_pushed, url, one_at(2)))
            async with opened(kind, url) as later:  # as a program that starts now
                for face in (first, later):
                    assert await follows(face, 2)


@pytest.mark.long(1)
async def test_clients_follow_the_keys_through_a_planned_failover(kind: str) -> None:
    with LocalCluster(3, 1) as cluster, config_client(url := url_of(cluster)) as config:
        async with opened(kind, url) as face:
            push(config, one_at(1))
            assert await follows(face, 1)
            before = owner(cluster)
            replica = cluster.nodes[cluster.nodes.index(before) + 3]
            with replica.client() as client:
                client.execute_command("CLUSTER FAILOVER")
                assert await eventually(lambda: client.role()[0] == b"master")
            # As with Sentinels: the client must reconnect.
            with pytest.raises(ConfigServerError, match=r"previous master|may have been executed"):
                push(config, one_at(2))
            assert await eventually(partial(is_pushed, url, one_at(2)))
            assert await follows(face, 2)


def test_the_directory_is_on_the_cluster(cluster: LocalCluster) -> None:
    with shardkit.connect(url_of(cluster)) as kit:
        kit.directory.set("flags", "checkout", {"on": True})
        assert kit.directory.get("flags", "checkout") == {"on": True}
    assert json.loads(ask(owner(cluster), "get", "{config}:flags:checkout")) == {"on": True}


def test_growth_works_with_it(
    cluster: LocalCluster, servers: list[LocalServer], tmp_path: Path
) -> None:
    a, b, c = (f"127.0.0.1:{server.port}" for server in servers)
    shards = ", ".join(f"{{host: 127.0.0.1, port: {servers[0].port}, db: {n}}}" for n in (1, 2))
    with config_client(url_of(cluster)) as config:
        push(config, ShardMap.parse(f"components: {{one: {{shards: [{shards}]}}}}"))
        with shardkit.connect(url_of(cluster)) as kit:
            router = kit.key_sharded("one")
            for n in range(100):
                router.set(f"k{n}", n)
            start_move(config, ["one:1"], b, hold=3 * PATIENCE)
            start_move(config, a, c, hold=3 * PATIENCE)
            attach_replica(config, a, c)
            assert str(fail_over(config, "one:0").target) == a
            assert [router.get(f"k{n}") for n in range(100)] == [b"%d" % n for n in range(100)]
            assert {move.phase for move in moves(config)} == {"done"}
            assert not plan_split(config, "one", shards=4).problems
            components = store.read_components(config)
            assert not check(components.values(), config=config).findings
        backup(components.values(), tmp_path / "saved", config=config)
        config.delete("config:redis:one:0")
        assert config.delete("config:history") == 1
        config.set("config:flags:a", "1")
        backup(components.values(), tmp_path / "again", config=config)
        config.delete("config:flags:a")
        restore_objects(tmp_path / "again", config)
        assert config.get("config:flags:a") == b"1"


def test_a_password_is_rotated_on_all_nodes(cluster: LocalCluster) -> None:
    for node in cluster.nodes:
        ask(node, "execute_command", "ACL", "SETUSER", "app", "on", ">old", "~*", "&*", "+@all")
    entry = Entry({**cluster.entry.fields, "username": "app", "password": "old"})
    with config_client(entry) as config:
        login = f"username: app, password: old, port: {cluster.nodes[0].port}, cluster: true"
        push(config, ShardMap.parse(f"components: {{one: {{entry: {{{login}}}}}}}"))
    refused = pytest.raises(ConfigError, match="config server gives the old password here")
    with config_client(cluster.entry) as config, refused:
        rotate(config, entry, "app", "new", ignore_others=True)
    for node in cluster.nodes:
        for password in ("old", "new"):
            with node.client(username="app", password=password) as client:
                client.ping()


def test_commands_use_it(cluster: LocalCluster, servers: list[LocalServer], tmp_path: Path) -> None:
    file = tmp_path / "map.yaml"
    file.write_text(
        f"config_server: {{cluster: true, port: {cluster.nodes[1].port}}}\n"
        f"components: {{one: {{entry: {{host: 127.0.0.1, port: {servers[0].port}}}}}}}"
    )

    def run(*words: str) -> str:
        result = CliRunner().invoke(app, list(words))
        assert result.exit_code == 0, (words, result.output)
        return result.output

    run("config", "push", str(file))
    where = "--config", url_of(cluster)
    assert "one" in run("config", "show", *where)
    assert "push would change nothing" in run("config", "diff", str(file), *where)
    assert "cluster: true" in run("config", "pull", *where)
    assert "one" in run("config", "history", *where)
    assert "config server" in run("status", *where)
    run("check", *where)
    run("clients", *where)
    assert "nothing is being moved" in run("move", "status", *where)


@pytest.mark.parametrize(
    "words", [("config", "show"), ("config", "history"), ("status",), ("move", "status")]
)
def test_commands_refuse_a_node_that_is_named_as_a_server(
    cluster: LocalCluster, words: tuple[str, ...]
) -> None:
    for node in cluster.nodes[:3]:
        where = f"redis://127.0.0.1:{node.port}"
        result = CliRunner().invoke(app, [*words, "--config", where])
        assert result.exit_code == 1
        assert "write redis+cluster:// in" in result.output.replace("or write", "write")


async def test_a_kit_refuses_a_node_that_is_named_as_a_server(
    kind: str, cluster: LocalCluster
) -> None:
    url = f"redis://127.0.0.1:{cluster.nodes[0].port}"
    for use in ("components", "component"):
        args = ["one"] if use == "component" else []
        with pytest.raises(ConfigServerError, match=r"several slots.* write redis\+cluster://"):
            async with opened(kind, url) as face:
                await of(getattr(face.kit, use)(*args))


async def test_a_kit_refuses_a_server_that_is_named_as_a_cluster(
    kind: str, servers: list[LocalServer]
) -> None:
    url = f"redis+cluster://127.0.0.1:{servers[0].port}"
    with pytest.raises(ConfigServerError, match="is not part of a cluster"):
        async with opened(kind, url) as face:
            await of(face.kit.component("one"))


def test_such_a_url_is_that_of_a_config_server_only() -> None:
    with pytest.raises(InvalidEntryError, match=r"names a cluster.*; write cluster: true"):
        Entry({"url": "redis+cluster://a"})


@pytest.mark.parametrize(
    ("sent", "renamed"),
    [
        ("config:epoch", "{config}:epoch"),
        (b"config:redis:", b"{config}:redis:"),
        ("configuration", "configuration"),
        (b"a config:", b"a config:"),
        (7, 7),
    ],
)
def test_names_are_renamed_to_and_fro(sent: Any, renamed: Any) -> None:
    assert tagged(sent) == renamed
    assert plain([0, [renamed], {renamed: None}]) == [0, [sent], {sent: None}]


@pytest.fixture
def pair() -> Iterator[tuple[LocalServer, LocalServer]]:
    with LocalServer() as master, LocalServer(replica_of=master) as replica:
        yield master, replica


async def test_the_next_address_is_used_while_the_first_is_away(
    kind: str, pair: tuple[LocalServer, LocalServer]
) -> None:
    master, replica = pair
    with master.client() as client:
        push(client, one_at(1))
        client.wait(1, 10_000)
    url = f"redis://127.0.0.1:{master.port},127.0.0.1:{replica.port}/0"
    async with opened(kind, url) as first:
        assert await follows(first, 1)
        assert await of(first.kit.components()) == ["one"]
        master.kill()
        async with opened(kind, url) as later:  # as a program that starts now
            assert await follows(later, 1)
            assert await of(later.kit.components()) == ["one"]
            with replica.client() as client:
                client.replicaof("NO", "ONE")
                push(client, one_at(2))
            for face in (first, later):
                assert await follows(face, 2)


async def test_if_none_answers_the_error_names_all(kind: str) -> None:
    named = r"config server 127.0.0.1:1/3, 127.0.0.1:2/3 cannot be read"
    with pytest.raises(ConfigServerError, match=named):
        async with opened(kind, "redis://127.0.0.1:1,127.0.0.1:2/3") as face:
            await of(face.kit.component("one"))


async def test_sentinels_name_the_config_server(kind: str) -> None:
    with LocalSentinel("config", replicas=1, sentinels=3) as watched:
        with watched.master.client() as client:
            push(client, one_at(1))
            client.wait(1, 10_000)
        addresses = ",".join(f"127.0.0.1:{each.port}" for each in watched.sentinels)

        def is_pushed() -> bool:
            with suppress(redis.RedisError, ConfigServerError), watched.replicas[0].client() as new:
                if new.role()[0] == b"master" and new.exists("config:epoch"):
                    push(new, one_at(2))
                    return True
            return False

        async with opened(kind, f"redis+sentinel://{addresses}/config/0") as face:
            assert await follows(face, 1)
            with watched.master.client() as client:  # so that it is not demoted
                client.execute_command("ACL", "SETUSER", "default", "-slaveof")
            ask(watched.sentinels[0], "execute_command", "SENTINEL FAILOVER", "config")
            assert await eventually(is_pushed)  # Sentinels cut connections off meanwhile
            assert await follows(face, 2)


def test_commands_use_the_first_master(
    pair: tuple[LocalServer, LocalServer], tmp_path: Path
) -> None:
    master, replica = pair
    file = tmp_path / "map.yaml"
    file.write_text(f"components: {{one: {{entry: {{port: {master.port}}}}}}}")
    url = f"redis://127.0.0.1:{replica.port},127.0.0.1:{master.port}/0"
    result = CliRunner().invoke(app, ["config", "push", str(file), "--config", url])
    assert result.exit_code == 0, result.output
    assert ask(master, "exists", "config:redis:one")


def test_the_url_of_sentinels_becomes_the_fields_of_an_entry() -> None:
    url = (
        "rediss+sentinel://app:${PW}@s1,[::1]:26380/main.db/2?socket_timeout=3&sentinel_password=x"
    )
    assert Entry({"url": url}).fields == {
        "sentinel": {
            "service": "main.db",
            "sentinels": [["s1", 26379], ["::1", 26380]],
            "password": "x",
        },
        "username": "app",
        "password": "${PW}",
        "db": 2,
        "ssl": True,
        "socket_timeout": 3.0,
    }
    shard_map = ShardMap.parse(
        "config_server: {url: 'redis+sentinel://s1,s2/config'}\ncomponents: {a: {entry: {}}}"
    )
    assert shard_map.config_server is not None
    assert shard_map.config_server.address == "sentinel:config/0"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis+sentinel://s1,s2", "names no service"),
        ("redis+sentinel://s1,s2/main/x", "names no service, or no database number"),
        ("redis+sentinel://s1,:1/main", "names a Sentinel that cannot be one"),
        ("redis+sentinel://s1/main?nosuch=1", "sets an unknown field"),
        ("redis://a,b/0", "names several servers"),
    ],
)
def test_unusable_urls_are_refused(url: str, problem: str) -> None:
    with pytest.raises(InvalidEntryError, match=problem):
        Entry({"url": url})
