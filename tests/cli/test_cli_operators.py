"""The commands of operators: who is connected, what is big, one command on many servers."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from cli_helpers import SECRET, Result, in_terminal

import shardkit
from shardkit import ShardKit
from shardkit.admin import biggest_keys
from shardkit.errors import InvalidArgumentError, RetiredError
from shardkit.local import LocalServers

Cli = Callable[..., Result]
ReadJson = Callable[..., Any]


@pytest.fixture
def kit(cli: Cli, town: LocalServers, town_map: Path, town_url: str) -> Iterator[ShardKit]:
    """A kit on the config server, to which the map was pushed; it has used `unique`."""
    assert cli("config", "push", town_map).code == 0
    with shardkit.connect(town_url) as opened:
        pipe = opened.key_sharded("unique").pipeline()
        for n in range(200):
            pipe.set(f"key:{n}", "x" * n)
        pipe.execute()
        opened.topology.expire()
        opened.key_sharded("unique")["key:1"].get("key:1")
        yield opened


def test_clients_are_shown_by_process_with_the_epoch_in_use(
    kit: ShardKit, cli: Cli, read_json: ReadJson, town_url: str
) -> None:
    listed = read_json("clients", "-c", town_url)["clients"]
    [this] = [each for each in listed if each["pid"] == os.getpid()]
    assert this["host"] == platform.node()
    assert this["components"] == ["unique"]
    assert this["epoch"] == 1
    assert this["library"] == f"shardkit {shardkit.__version__}"
    assert this["users"] == ["default"]
    assert this["connections"] >= 9
    assert this["entries"] == {"unique": 1}
    assert "unique" in cli("clients", "-c", town_url, "--using", "unique").out
    using = read_json("clients", "-c", town_url, "--using", "followers")["clients"]
    assert os.getpid() not in [each["pid"] for each in using]
    for epoch, there in ((1, False), (2, True)):
        old = read_json("clients", "-c", town_url, "--older-than", epoch)["clients"]
        assert (os.getpid() in [each["pid"] for each in old]) is there


def test_a_server_that_cannot_be_asked_for_clients_is_named(
    kit: ShardKit, cli: Cli, town: LocalServers, town_url: str
) -> None:
    server = town.server_of("followers", 0)
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-client|list")
        try:
            result = cli("clients", "-c", town_url)
        finally:
            client.execute_command("ACL", "SETUSER", "default", "+client|list")
    assert result.code == 1
    assert f"{server.address} was not asked: the user may not run CLIENT LIST" in result.out


def test_the_biggest_keys_are_found_on_all_shards(
    kit: ShardKit, cli: Cli, read_json: ReadJson, town_url: str
) -> None:
    kit.client("followers", 1).sadd("many", *range(500))
    document = read_json("keys", "--biggest", "3", "-c", town_url)
    assert document["keys"][0]["key"] == "many"
    assert document["looked_at"] >= 201
    rows = read_json("keys", "--biggest", "3", "--by", "elements", "unique", "-c", town_url)["keys"]
    assert [(row["key"], row["elements"]) for row in rows] == [
        ("key:199", 199),
        ("key:198", 198),
        ("key:197", 197),
    ]
    assert rows[0]["shard"] == str(kit.component("unique").shard_of("key:199"))
    only = cli("keys", "--match", "key:7", "-c", town_url)
    assert "key:7 " in only.out
    assert only.lines[-1] == "1 keys were looked at"


def test_keys_whose_elements_may_not_be_counted_have_their_memory(
    kit: ShardKit, town: LocalServers
) -> None:
    kit.client("followers", 1).sadd("many", *range(500))
    with town.server_of("followers", 1).client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-scard")
        try:
            [found] = biggest_keys([kit.component("followers")], 1, match="many")
        finally:
            client.execute_command("ACL", "SETUSER", "default", "+scard")
    assert (found.key, found.elements) == (b"many", 0)
    assert found.size == found.memory > 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"count": 0}, "count=0 is no number of keys"),
        ({"by": "age"}, "by='age' is no way to rank; say memory or elements"),
        ({"count": True}, "count=True is no number of keys"),
    ],
)
def test_how_many_keys_and_by_what_is_checked(kit: ShardKit, given: Any, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        biggest_keys([kit.component("unique")], **given)


def replies(cli: Cli, *arguments: str, on: str, url: str) -> Any:
    result = cli("exec", "--json", "-c", url, "--on", on, *arguments)
    assert result.code == 0, result
    return {place: answer["reply"] for place, answer in json.loads(result.out).items()}


def test_a_command_runs_on_all_servers_or_shards_or_on_one(
    kit: ShardKit, cli: Cli, town: LocalServers, town_url: str
) -> None:
    everywhere = replies(cli, "--", "ECHO", "hello", on="all", url=town_url)
    assert everywhere == {town.server_of("unique", n).address: "hello" for n in (0, 1)}
    sizes = replies(cli, "--", "EXISTS", "key:7", on="unique", url=town_url)
    shard = str(kit.component("unique").shard_of("key:7"))
    assert sizes[shard] == sum(sizes.values()) == 1
    assert len(sizes) == 9  # the entry too
    one = replies(cli, "--", "GET", "key:7", on=shard, url=town_url)
    assert one == {shard: "xxxxxxx"}
    assert "has no shard 8" in cli("exec", "-c", town_url, "--on", "unique:8", "PING").error()
    refused = cli("exec", "-c", town_url, "--on", "followers", "--", "NOSUCH")
    assert refused.code == 1
    assert "unknown command" in refused.out


def test_another_user_may_run_it(
    kit: ShardKit,
    cli: Cli,
    town: LocalServers,
    town_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for n in (0, 1):
        with town.server_of("unique", n).client() as client:
            client.execute_command("ACL", "SETUSER", "admin", "on", f">{SECRET}2", "+@all")
    monkeypatch.setenv("SHARDKIT_EXEC_PASSWORD", f"{SECRET}2")
    found = replies(cli, "--user", "admin", "--", "ACL", "WHOAMI", on="all", url=town_url)
    assert list(found.values()) == ["admin", "admin"]


def test_a_check_gives_one_verdict(
    kit: ShardKit,
    cli: Cli,
    read_json: ReadJson,
    town: LocalServers,
    town_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(import_module("shardkit.admin.check"), "_SLOW_PING", 60)  # a busy machine
    fine = cli("check", "-c", town_url)
    assert fine.code == 0, fine
    assert fine.lines[0] == "nothing hurts"
    assert fine.lines[1].startswith("looked at 3 servers, 13 databases and ")
    with town.server_of("followers", 1).client() as client:
        client.config_set("maxmemory", 1)
        try:
            found = read_json("check", "-c", town_url, code=1)
            shown = cli("check", "followers", "-c", town_url)
            _, coloured = in_terminal(120, "check", "followers", "-c", town_url)
        finally:
            client.config_set("maxmemory", 0)
    assert [each["problem"] for each in found["findings"]] == [
        "is above its maxmemory: it refuses writes"
    ]
    assert not found["ok"]
    assert shown.code == 1
    assert shown.lines[-1].startswith("1 problem, 0 warnings; looked at 2 servers")
    assert "\x1b[31m1 problem" in coloured  # red


def test_a_component_is_retired_and_its_data_deleted_when_nobody_uses_it(
    kit: ShardKit, cli: Cli, read_json: ReadJson, town: LocalServers, town_url: str
) -> None:
    where = ("-c", town_url)
    for n in range(2):
        kit.client("followers", n).mset({f"k{n}:{i}": 1 for i in range(700)})
    place = kit.client("followers", 0).connection_pool.connection_kwargs
    address = {name: place[name] for name in ("host", "port", "db", "username", "password")}
    with redis.Redis(**address, client_name="shardkit:followers:0@elsewhere/4711") as late:
        late.get("x")  # it is not told of the push
        removed = cli("retire", "followers", *where, "-m", "replaced")
        assert removed.code == 0, removed
        assert removed.lines[0].startswith("followers was removed by a push (epoch 2)")
        assert re.search(r"4711 used it \d+ s ago", removed.out)
        refused = cli("retire", "followers", *where, "--delete-data").error()
        assert "component 'followers' is still used: by " in refused
    kit.topology.expire()
    with pytest.raises(
        RetiredError, match=r"component 'followers' was removed by a push .* replaced"
    ):
        kit.component("followers")
    assert read_json("config", "history", *where)["pushes"][0]["message"] == "replaced"
    found = read_json("retire", "followers", *where, "--delete-data", "--quiet", "0")
    assert found["deleted"] == 1400
    again = cli("retire", "followers", *where, "--delete-data", "--quiet", "0")
    assert again.lines == ["nobody has used followers for 0 s: 0 keys were deleted"]
    assert kit.client("unique", 0).dbsize() > 1
    assert "the history has no push that removed it" in cli("retire", "nope", *where).error()


def test_data_in_a_database_of_another_component_is_not_deleted(
    kit: ShardKit, cli: Cli, town: LocalServers, town_url: str, town_map: Path
) -> None:
    more = yaml.safe_load(town_map.read_text())
    more["components"]["twin"] = {"entry": more["components"]["sessions"]["entry"]}
    town_map.write_text(yaml.safe_dump(more))
    assert cli("config", "push", town_map).code == 0
    assert cli("retire", "twin", "-c", town_url).code == 0
    refused = cli("retire", "twin", "-c", town_url, "--delete-data", "--quiet", "0").error()
    assert "shares a database with 'sessions'" in refused


def test_a_backup_is_taken_checked_and_restored_into_embedded_servers(
    kit: ShardKit, cli: Cli, read_json: ReadJson, town_map: Path, town_url: str, tmp_path: Path
) -> None:
    target = tmp_path / "backup"
    taken = cli("backup", target, "followers", "-c", town_url)
    assert taken.code == 0, taken
    assert re.search(r"2 servers, \d+ keys, .*; writes were held for \d+ ms", taken.out)
    assert "is as it was written: 2 servers" in cli("restore", target, "--verify").out
    assert "is not empty" in cli("backup", target, "-c", town_url).error()
    assert "is where the backup came from" in cli("restore", target, town_map).error()
    assert "say one of MAP" in cli("restore", target).error()
    kit.client("followers", 1).set("k", 1)
    queues = kit.queues(component="followers")
    queues.enqueue_many("mail", [("send", [n]) for n in range(3)])
    assert queues.take("mail", lease=600)
    assert queues.take("mail", lease=600)
    document = read_json("backup", tmp_path / "second", "followers", "--no-pause", "-c", town_url)
    assert document["paused_ms"] == 0
    restored = read_json("restore", tmp_path / "second", "--local")
    assert sum(restored["keys"].values()) > 1
    assert restored["leased_tasks"] == 2
    said = cli("restore", tmp_path / "second", "--local").out
    assert "2 tasks of queues were leased: handed out again when that ends" in said
