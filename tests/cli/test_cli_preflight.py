"""A push looks at what it points clients at, and refuses what would strand data."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from arranged import ask
from cli_helpers import Cli, config_server, edited_map

import shardkit
from shardkit import ShardMap
from shardkit.admin import push
from shardkit.errors import PushRefusedError
from shardkit.local import LocalServer, LocalServers

Edit = Callable[..., Path]

MAP = """
config_server: {port: 7000}
defaults: {host: 127.0.0.1}
components:
  unique: {shards: [{port: 7001, db: 1}, {port: 7002, db: 1}]}
  sessions: {entry: {port: 7002, replicas: [{port: 7003}]}}
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[LocalServers]:
    with LocalServers(ShardMap.parse(MAP), ports="free") as running:
        yield running


@pytest.fixture(scope="module")
def stranger() -> Iterator[LocalServer]:
    """A server of somebody else."""
    with LocalServer() as server:
        yield server


@pytest.fixture
def pushed(servers: LocalServers, stranger: LocalServer, tmp_path: Path, cli: Cli) -> Path:
    """The map of the running servers, pushed; each shard of `unique` holds keys of its own."""
    for server in [*servers.servers[:-1], stranger]:  # the replica follows
        ask(server, "flushall")
    path = tmp_path / "map.yaml"
    path.write_text(servers.shard_map.to_yaml())
    assert cli("config", "push", path).code == 0
    with shardkit.connect(servers.shard_map) as kit:
        pipe = kit.key_sharded("unique").pipeline()
        for n in range(60):
            pipe.set(f"key:{n}", 1)
        pipe.execute()
    return path


@pytest.fixture
def where(servers: LocalServers) -> tuple[str, str]:
    """The option that names the config server."""
    return "-c", f"redis://{config_server(servers).address}"


@pytest.fixture
def edited(servers: LocalServers, pushed: Path) -> Edit:
    """Write the map with fields of one entry changed."""

    def write(component: str, number: int | None = None, **fields: Any) -> Path:
        with edited_map(pushed) as components:
            described = components[component]
            entry = described["entry"] if number is None else described["shards"][number]
            entry.update(fields)
        return pushed

    return write


def stored(servers: LocalServers) -> dict[str, Any]:
    """Return all that the config server holds."""
    with config_server(servers).client() as client:
        return {key.decode(): client.dump(key) for key in client.scan_iter()}


def copy(source: Any, target: Any) -> None:
    for key in source.scan_iter():
        target.restore(key, 0, source.dump(key), replace=True)


def test_an_entry_that_leaves_its_data_behind_is_refused(
    cli: Cli, servers: LocalServers, stranger: LocalServer, edited: Edit
) -> None:
    before = stored(servers)
    wrong = edited("unique", 0, port=stranger.port)
    old = f"{servers.server_of('unique', 0).address}/1"
    refused = cli("config", "push", wrong)
    assert f"config:redis:unique:0 ({stranger.address}/1) is empty, and {old} holds data" in (
        refused.error()
    )
    assert f"move the data from {old} first, or push with --force unique" in refused.error()
    with stranger.client(db=1) as client:
        client.mset({f"another:{n}": 1 for n in range(50)})
    other = cli("config", "push", wrong).error()
    assert f"does not hold the data of {old}: it has 0% of its sampled keys" in other
    assert stored(servers) == before
    assert cli("config", "push", wrong, "--no-check").code == 0


def test_a_dead_server_is_replaced_only_by_one_that_holds_the_shards_keys(
    cli: Cli, servers: LocalServers, stranger: LocalServer, edited: Edit
) -> None:
    dead = edited("unique", 1, port=1)
    assert cli("config", "push", dead, "--no-check").code == 0
    empty = edited("unique", 1, port=stranger.port)
    found = cli("config", "push", empty).error()
    assert "is empty, and the data at 127.0.0.1:1/1 cannot be compared: connection ref" in found
    with stranger.client(db=1) as new:
        with servers.server_of("unique", 0).client(db=1) as first:
            copy(first, new)
        found = cli("config", "push", empty).error()
        assert "holds keys that are not this shard's (crc32 places " in found
        new.flushdb()
        with servers.server_of("unique", 1).client(db=1) as own:
            copy(own, new)
    assert cli("config", "push", empty).code == 0


@pytest.mark.parametrize(
    ("fields", "problem", "remedy"),
    [
        ({"port": 1}, "cannot be reached: connection refused", "start it, or correct"),
        ({"db": 99}, "has no database 99", "correct db in the entry"),
        (
            {"password": "wr0ng"},
            "the server has no password, and the entry gives one",
            "take password",
        ),
        ({"password": "${NOT_SET}"}, "refers to ${NOT_SET}, which is not in the", "export NOT_SET"),
    ],
)
def test_an_entry_that_cannot_be_used_is_refused(
    cli: Cli, servers: LocalServers, edited: Edit, fields: dict[str, Any], problem: str, remedy: str
) -> None:
    before = stored(servers)
    refused = cli("config", "push", edited("unique", 0, **fields)).error()
    assert problem in refused
    assert remedy in refused
    assert stored(servers) == before


@pytest.fixture
def swapped(pushed: Path) -> Path:
    """A map with a new component over data that is there already, its two shards swapped."""
    with edited_map(pushed) as components:
        components["newcomer"] = {"shards": components["unique"]["shards"][::-1]}
    return pushed


def test_a_first_push_over_data_on_other_shards_is_refused(
    cli: Cli, servers: LocalServers, swapped: Path
) -> None:
    before = stored(servers)
    refused = cli("config", "push", swapped).error()
    where = f"config:redis:newcomer:0 ({servers.server_of('unique', 1).address}/1)"
    assert f"{where} holds keys that are not this shard's: crc32 places " in refused
    assert "sampled keys on shard 1" in refused
    assert "check the address, and the order of the shards" in refused
    assert "--force newcomer" in refused
    wanted = ShardMap.load(swapped)
    with config_server(servers).client() as config:
        with pytest.raises(PushRefusedError, match="sampled keys on shard 1"):
            push(config, wanted)
        assert stored(servers) == before
        assert cli("config", "push", swapped, "--force", "newcomer").code == 0
        push(config, wanted)  # only the first one is asked


def test_tags_are_named_where_they_explain_why_keys_are_elsewhere(
    cli: Cli, servers: LocalServers, pushed: Path
) -> None:
    with edited_map(pushed) as components:
        shards = [{**each, "db": 7} for each in components["unique"]["shards"]]
        components["carts"] = {"shards": shards}
    for n in range(200):
        key = b"{cart:%d}:items" % n
        with servers.server_of("unique", zlib.crc32(key) % 2).client(db=7) as client:
            client.set(key, n)
    refused = cli("config", "push", pushed).error()
    assert "by the {tag} in them: whole keys may have been hashed before" in refused
    assert "use a placement that hashes whole keys (docs/placement.md)" in refused


def test_keys_of_other_shards_stop_a_shard_that_moves(
    cli: Cli, servers: LocalServers, stranger: LocalServer, edited: Edit
) -> None:
    with servers.server_of("unique", 1).client(db=1) as own, stranger.client(db=1) as new:
        copy(own, new)
    with servers.server_of("unique", 0).client(db=1) as old:
        old.flushdb()
    refused = cli("config", "push", edited("unique", 0, port=stranger.port)).error()
    assert "config:redis:unique:0" in refused
    assert "holds keys that are not this shard's: crc32 places " in refused


def test_a_replica_is_refused_where_a_master_is_named_and_the_other_way_round(
    cli: Cli, servers: LocalServers, edited: Edit, stranger: LocalServer
) -> None:
    replica = servers.servers[-1]
    path = edited("sessions", port=replica.port, replicas=[{"port": stranger.port}])
    refused = cli("config", "push", path).error()
    assert (
        f"config:redis:sessions ({replica.address}/0) is a replica, which refuses writes" in refused
    )
    assert "config:redis:sessions replicas[0]" in refused
    assert "is a master, with data of its own" in refused


def test_only_what_was_forced_by_name_is_pushed_in_spite_of_it(cli: Cli, edited: Edit) -> None:
    edited("unique", 0, port=1)
    path = edited("sessions", port=1)
    first = cli("config", "push", path, "--force", "unique")
    assert first.error().endswith("or push with --force sessions")
    assert "warning: config:redis:unique:0" in first.err
    both = cli("config", "push", path, "--force", "unique", "--force", "sessions")
    assert both.lines[-1] == "pushed: 2 changed"
    assert (
        "--force nope: the push does not touch"
        in cli("config", "push", path, "--force", "nope").error()
    )


def test_a_misspelt_component_is_not_added(cli: Cli, pushed: Path) -> None:
    pushed.write_text(pushed.read_text().replace("sessions:", "sesions:"))
    refused = cli("config", "push", pushed).error()
    assert "component 'sesions' is new but resembles 'sessions'" in refused
    assert cli("config", "push", pushed, "--force", "sesions").lines[-1] == "pushed: 1 added"


def test_a_map_that_is_out_of_date_is_not_pushed(
    cli: Cli, edited: Edit, tmp_path: Path, where: tuple[str, str]
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(cli("config", "pull", *where).out)
    assert mine.read_text().startswith("epoch: 1\n")
    assert cli("config", "push", edited("unique", 0, socket_timeout=3)).code == 0
    mine.write_text(mine.read_text().replace("db: 1,", "client_name: a, db: 1,"))
    refused = cli("config", "push", mine).error()
    assert "the map was made from epoch 1, and the config server is at epoch 2" in refused
    mine.write_text(cli("config", "pull", *where).out.replace("db: 1,", "client_name: a, db: 1,"))
    pushed = cli("config", "push", mine)
    assert pushed.lines[-1] == f"write epoch: 3 into {mine} now"


def test_a_pulled_map_leaves_out_the_user_who_pulled_it(
    cli: Cli, servers: LocalServers, pushed: Path
) -> None:
    with config_server(servers).client() as client:
        rights = ("on", ">pw", "~*", "+@read", "+@connection")
        client.execute_command("ACL", "SETUSER", "reader", *rights)
    pulled = cli("config", "pull", "-c", f"redis://reader:pw@{config_server(servers).address}")
    server = yaml.safe_load(pulled.out)["config_server"]
    assert server.keys().isdisjoint({"username", "password", "url"})
    assert server["port"] == config_server(servers).port


def test_a_restored_config_server_is_noticed_by_status_and_push_and_led_on(
    cli: Cli, servers: LocalServers, edited: Edit, pushed: Path, where: tuple[str, str]
) -> None:
    old = stored(servers)
    for timeout in (3, 4):
        assert cli("config", "push", edited("unique", 0, socket_timeout=timeout)).code == 0
    assert "went back" not in cli("status", *where).out
    with config_server(servers).client() as client:
        client.flushall()
        for key, value in old.items():
            client.restore(key, 0, value)
    status = cli("status", *where, code=1)
    assert "went back to epoch 1: its servers have witnessed epoch 3" in status.out
    refused = cli("config", "push", pushed).error()
    assert "is at epoch 1" in refused
    assert "has witnessed epoch 3" in refused
    assert refused.endswith("shardkit config push MAP --restored")
    assert cli("config", "push", pushed, "--restored").code == 0
    assert ask(config_server(servers), "get", "config:epoch") == b"4"
    assert "went back" not in cli("status", *where).out


def test_pushes_are_listed_compared_shown_and_taken_back(
    cli: Cli, edited: Edit, pushed: Path, where: tuple[str, str]
) -> None:
    assert cli("config", "push", edited("unique", 0, socket_timeout=3), "-m", "slower").code == 0
    latest, first = json.loads(cli("config", "history", *where, "--json").out)["pushes"]
    assert (latest["epoch"], latest["message"], latest["components"]) == (2, "slower", ["unique"])
    assert first["source"] == str(pushed)
    assert first["components"] == ["sessions", "unique"]
    assert "slower" in cli("config", "history", *where).out
    differs = cli("config", "diff", "1", "2", *where, "--exit-code", code=3)
    assert "unique:0  socket_timeout  3" in differs.out
    assert json.loads(cli("config", "diff", "1", "2", *where, "--json").out)["epoch"] == 1
    assert "those pushes changed nothing" in cli("config", "diff", "2", "2", *where).out
    assert "give two epochs" in cli("config", "diff", "map.yaml", "2", *where).error()
    assert "socket_timeout=3" in cli("config", "show", "unique", *where).out
    assert "socket_timeout" not in cli("config", "show", "unique", "--at", "1", *where).out
    assert "has no epoch 7" in cli("config", "show", "--at", "7", *where).error()
    assert "nothing was pushed" in cli("config", "rollback", "1", *where, "--dry-run").out
    assert cli("config", "rollback", "1", *where).lines[-1] == "pushed: 1 changed"
    assert "socket_timeout" not in cli("config", "show", "unique", *where).out
    [back, *_] = json.loads(cli("config", "history", *where, "--json").out)["pushes"]
    assert (back["epoch"], back["source"], back["message"]) == (3, "epoch 1", "back to epoch 1")


def test_servers_that_overwrite_each_others_files_are_named(cli: Cli, tmp_path: Path) -> None:
    """What only a restart would tell: one of the two has the other's data."""
    free = {"enable-protected-configs": "yes"}
    with LocalServer(config=free) as one, LocalServer(config=free) as other, LocalServer() as apart:
        for server in (one, other):
            ask(server, "config_set", "dir", str(tmp_path))
        for server in (one, other, apart):
            ask(server, "config_set", "save", "3600 1000000")
        path = tmp_path / "map.yaml"
        entries = ", ".join(f"{{host: 127.0.0.1, port: {s.port}}}" for s in (one, other, apart))
        path.write_text(f"components: {{users: {{shards: [{entries}]}}}}\n")
        document = json.loads(cli("config", "validate", "--connect", "--json", path).out)
        found = document["maps"][0]["problems"]
        assert [each["value"] for each in found] == [f"{s.address}/0" for s in (one, other)]
        assert found[0]["problem"].startswith(
            f"saves its data to {tmp_path}/dump.rdb, and so does {other.address}: each overwrites"
        )
        ask(other, "config_set", "save", "")
        assert cli("config", "validate", "--connect", "--strict", path).code == 0
