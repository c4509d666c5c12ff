"""A push looks at what it points clients at, and refuses what would strand data."""

from __future__ import annotations

import json
import os
import resource
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import yaml
from arranged import ask, client_of, map_of
from cli_helpers import SECRET, Cli, config_server, edited_map, in_terminal, placed, plain

import shardkit
from shardkit import ShardMap
from shardkit.admin import growth, push
from shardkit.admin.growth import Adoption
from shardkit.errors import GrowthError, InvalidArgumentError, PushRefusedError
from shardkit.local import LocalCluster, LocalServer, LocalServers


def rewrite(path: Path, old: str, new: str) -> Path:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


def with_shards(town: LocalServers, count: int, path: Path, **more: Any) -> Path:
    """Write the map of the running servers with so many shards of `unique`."""
    path.write_text(town.shard_map.to_yaml())
    with edited_map(path) as components:
        shards = components["unique"]["shards"]
        first = [{**shards[n % 2], "db": 1 + n // 2} for n in range(count)]
        components["unique"] |= {"shards": first, **more}
    return path


@pytest.fixture
def broken_map(tmp_path: Path) -> Path:
    path = tmp_path / "broken.yaml"
    path.write_text(
        "components:\n"
        "  unique:\n"
        f"    entry: {{port: 99999, passwrod: {SECRET}}}\n"
        f"    shards: [{{password: [{SECRET}]}}, {{host: '{SECRET}@a'}}]\n"
        f"    placement: crc33\n"
    )
    return path


def test_validate_shows_every_problem_with_its_line_and_remedy(cli: Cli, broken_map: Path) -> None:
    result = cli("config", "validate", broken_map, secret=f": {SECRET}", code=1)
    assert not result.err
    header, *rows = result.lines[:-2]
    assert header.split() == ["place", "field", "value", "problem", "remedy"]
    assert [row.split()[0] for row in rows] == [f"{broken_map}:{n}" for n in (2, 3, 3, 4, 4)]
    [port] = [row for row in rows if "entry.port" in row]
    assert port.split()[2] == "99999"
    assert "1 to 65535" in port
    assert result.lines[-1] == f"{broken_map} cannot be used: 5 problems"
    found = cli.json(
        "config", "validate", "configs/local.yaml", broken_map, code=1, secret=f": {SECRET}"
    )
    assert [each["valid"] for each in found["maps"]] == [True, False]
    assert not found["valid"]
    problems = found["maps"][1]["problems"]
    assert {p["line"] for p in problems} == {2, 3, 4}
    assert set(problems[0]) == {"file", "line", "field", "value", "problem", "remedy", "warning"}
    [typo] = [p for p in problems if p["field"].endswith("passwrod")]
    assert typo["remedy"] == "perhaps password is meant"


LINES = """\
components:
  a.b:
    entry: {prt: 1}
  a:
    shards:
      0: {port: 4}
      1: {prt: 5}
  u:
    entry:
      sentinel:
        service: x
        sentinels: [[s, 1]]
        nope: 1
    shards:
      - {port: 1}
      - port: 2
        prt: 1
      - host: b
        db: 1
        replicas:
          - db: 1
            zone: z
"""


def test_a_problem_is_found_in_its_line(cli: Cli, tmp_path: Path) -> None:
    (path := tmp_path / "lines.yaml").write_text(LINES)
    problems = cli.json("config", "validate", path, code=1)["maps"][0]["problems"]
    assert {each["line"]: each["field"].rpartition(".")[2] for each in problems} == {
        3: "prt",
        7: "prt",
        13: "nope",
        17: "prt",
        21: "host",  # of the replica, which lacks it
    }


def test_the_projects_own_maps_can_be_used(cli: Cli) -> None:
    result = cli("config", "validate", "configs/local.yaml", "configs/production.yaml", "--strict")
    assert result.code == 0
    assert result.lines[0] == "configs/local.yaml can be used: 4 components, 40 shards"


def test_warnings_fail_only_if_it_is_strict(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text("components:\n  a:\n    shards: [{port: 1}, {port: 1}]\n")
    result = cli("config", "validate", path, code=0)
    assert f"{path}:3" in result.out
    assert "warning: a:0, a:1 share localhost:1/0" in result.out
    assert "1 warning" in result.lines[-1]
    assert cli("config", "validate", "--strict", path).code == 1


def test_a_push_shows_what_changes_and_writes_it(
    cli: Cli, town: LocalServers, town_map: Path, town_url: str
) -> None:
    dry = cli("config", "push", town_map, "--dry-run")
    assert dry.lines[-1] == "nothing was pushed: this is a dry run"
    pushed = cli("config", "push", town_map)
    assert pushed.lines[:-1] == dry.lines[:-1]
    assert pushed.lines[-1] == "pushed: 3 added"
    server = town.config_server
    assert server is not None
    assert pushed.lines[0] == f"config server {server.address}/0"
    table = [line.split() for line in pushed.lines]
    assert ["unique", "added", "8", "crc32"] in table
    assert ["unique", "unique:0,2,4,6", "added", town.server_of("unique").address] in table
    with shardkit.connect(town_url) as kit:
        assert kit.components() == ["followers", "sessions", "unique"]
        assert kit.component("unique").same_as(town.shard_map.components["unique"])
    assert cli("config", "push", town_map).lines[-1] == "there was nothing to push"


def test_a_diff_says_what_a_push_would_change_and_writes_nothing(cli: Cli, town_map: Path) -> None:
    assert cli("config", "diff", town_map, "--exit-code").code == 3
    assert cli.json("config", "diff", town_map)["changes"][0]["change"] == "added"
    cli("config", "push", town_map)
    same = cli("config", "diff", town_map, "--exit-code")
    assert (same.code, same.lines[-1]) == (0, "a push would change nothing")
    assert ["unique", "same", "8", "crc32"] in [line.split() for line in same.lines]
    rewrite(town_map, "socket_timeout: 5", "socket_timeout: 2")
    changed = cli("config", "diff", town_map, code=0)
    rows = [line.split() for line in changed.lines]
    assert ["unique", "unique:0-7", "socket_timeout", "5", "2"] in rows
    assert ["sessions", "socket_timeout", "5", "2"] in rows


def change_of(component: str, document: Any) -> Any:
    [change] = [each for each in document["changes"] if each["component"] == component]
    return change


def test_a_diff_counts_how_many_real_keys_would_move(
    cli: Cli, town: LocalServers, pushed_map: Path, tmp_path: Path
) -> None:
    bigger = with_shards(town, 16, tmp_path / "bigger.yaml")
    made_up = change_of("unique", cli.json("config", "diff", bigger, "--sample", "400"))
    assert made_up["sample"]["real"] is False
    assert made_up["sample"]["keys"] == 400
    with shardkit.connect(town.shard_map) as kit:
        kit.key_sharded("unique").mset({f"{{{n}}}:key": 1 for n in range(50)})
        after = ShardMap.load(bigger).components["unique"]
        moved = sum(
            after.shard_of(f"{n}").number != kit.component("unique").shard_of(f"{n}").number
            for n in range(50)
        )
    real = change_of("unique", cli.json("config", "diff", bigger))
    assert real["sample"] == {"keys": 50, "moved": moved, "real": True}
    assert real["shards"] == {"before": 8, "after": 16}
    share = round(100 * moved / 50)
    assert f"{share}%: {moved} of 50 keys" in cli("config", "diff", bigger).out


def test_a_push_that_would_strand_data_is_refused(
    cli: Cli, town: LocalServers, pushed_map: Path, town_url: str, tmp_path: Path
) -> None:
    with shardkit.connect(town.shard_map) as kit:
        kit.key_sharded("unique")["key"].set("key", 1)
    smaller = with_shards(town, 4, tmp_path / "smaller.yaml", placement="rendezvous")
    refused = cli("config", "push", smaller, code=1)
    assert "component 'unique' holds data, and going from 8 to 4 shards" in refused.error()
    assert "--force" in refused.error()
    with shardkit.connect(town_url) as kit:
        assert len(kit.component("unique").shards) == 8
    forced = cli("config", "push", smaller, "--force", "unique")
    assert (forced.code, forced.lines[-1]) == (0, "pushed: 1 changed")
    with shardkit.connect(town_url) as kit:
        assert len(kit.component("unique").shards) == 4


def test_another_count_of_shards_is_pushed_while_there_are_no_keys(
    cli: Cli, town: LocalServers, pushed_map: Path, tmp_path: Path
) -> None:
    smaller = with_shards(town, 4, tmp_path / "smaller.yaml")
    with shardkit.connect(town.shard_map) as kit:
        kit.client("unique").set("of the unsharded entry, which stays where it is", 1)
    pushed = cli.json("config", "push", smaller)
    assert pushed["pushed"] is True
    change = change_of("unique", pushed)
    assert change["epoch"] == 2
    gone = [f for f in change["fields"] if f["after"] is None]
    assert {f["key"] for f in gone} == {f"config:redis:unique:{n}" for n in range(4, 8)}


def test_servers_that_cannot_be_asked_count_as_holding_data(
    cli: Cli, town: LocalServers, town_map: Path, tmp_path: Path
) -> None:
    away = with_shards(town, 8, tmp_path / "away.yaml")
    port = town.server_of("unique", 1).port
    rewrite(away, f"port: {port}", "port: 1")
    assert cli("config", "push", away, "--no-check").code == 0
    smaller = with_shards(town, 4, tmp_path / "smaller.yaml")
    others = ("--force", "followers", "--force", "sessions")
    refused = cli("config", "push", smaller, *others)
    assert "cannot tell whether component 'unique' holds data: unique:1" in refused.error()
    assert "connection refused" in refused.error()
    assert cli("config", "push", smaller, *others, "--force", "unique").code == 0


def test_a_component_whose_data_nobody_can_look_for_is_not_removed(
    cli: Cli, town_map: Path, tmp_path: Path
) -> None:
    bigger = tmp_path / "more.yaml"
    with edited_map(town_map, bigger) as components:
        entry = {**components["sessions"]["entry"], "db": 12, "password": "${NOT_SET_HERE}"}
        components["locked"] = {"entry": {**entry, "replicas": []}}
    assert cli("config", "push", bigger, "--no-check").code == 0
    refused = cli("config", "push", town_map, "--prune").error()
    assert "config:redis:locked: password refers to ${NOT_SET_HERE}" in refused
    assert cli("config", "push", town_map, "--prune", "--force", "locked").code == 0


def test_a_config_server_is_not_led_on_where_no_server_knows_from_which_epoch(
    cli: Cli, town_map: Path
) -> None:
    refused = cli("config", "push", town_map, "--restored").error()
    assert "the servers of the map's components have witnessed no epoch; use --above" in refused


def test_components_missing_from_the_map_stay_unless_pruned(
    cli: Cli, town: LocalServers, pushed_map: Path, town_url: str, tmp_path: Path
) -> None:
    less = ShardMap({"unique": town.shard_map.components["unique"]}, town.shard_map.config_server)
    path = tmp_path / "less.yaml"
    path.write_text(less.to_yaml())
    kept = cli("config", "push", path)
    assert "followers  not in the map: stays" in kept.out
    assert cli.json("config", "diff", path)["not_in_map"] == ["followers", "sessions"]
    pruned = cli("config", "push", path, "--prune")
    assert pruned.lines[-1] == "pushed: 2 removed"
    with shardkit.connect(town_url) as kit:
        assert kit.components() == ["unique"]


def test_the_config_server_is_the_named_one_then_the_maps_then_the_environments(
    cli: Cli,
    town: LocalServers,
    town_map: Path,
    town_url: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("SHARDKIT_CONFIG", "redis://127.0.0.1:1")
    assert cli("config", "diff", town_map).code == 0
    elsewhere = cli("config", "diff", town_map, "-c", "redis://127.0.0.1:2")
    assert "the config server cannot be used" in elsewhere.error()
    alone = tmp_path / "alone.yaml"
    alone.write_text(ShardMap(town.shard_map.components).to_yaml())
    assert "connecting to 127.0.0.1:1" in cli("config", "diff", alone).error()
    monkeypatch.setenv("SHARDKIT_CONFIG", town_url)
    assert cli("config", "diff", alone).code == 0
    monkeypatch.delenv("SHARDKIT_CONFIG")
    assert "alone.yaml names no config_server; use --config" in cli("config", "diff", alone).error()
    assert cli("config", "diff", alone, "-c", town_map).code == 0


def test_a_pulled_map_has_its_secrets_masked_unless_they_are_asked_for(
    cli: Cli, town: LocalServers, pushed_map: Path, town_url: str
) -> None:
    pulled = cli("config", "pull", "-c", town_url)
    assert pulled.err == "warning: passwords are masked: do not push this map\n"
    masked = ShardMap.parse(pulled.out)
    assert masked.components["unique"].shards[0].fields["password"] == "***"
    assert masked.components.keys() == town.shard_map.components.keys()
    command = ("config", "pull", "-c", town_url, "--show-secrets")
    assert SECRET in cli(*command, secret="no secret here").out
    assert cli.json(*command, secret="none")["masked"] is False


def test_a_map_is_written_only_if_it_can_be_pushed_again(
    cli: Cli, pushed_map: Path, town_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "pulled.yaml"
    refused = cli("config", "pull", "-c", town_url, "-o", path)
    assert "--show-secrets" in refused.error()
    assert not path.exists()
    assert cli("config", "pull", "-c", town_url, "-o", path, "--show-secrets").code == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert cli("config", "diff", path, "--exit-code").code == 0
    before = path.read_text()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limit[1]))  # bytes: the disk is full
    try:
        full = [cli("config", "pull", "-c", town_url, "-o", path, "--show-secrets")]
        full.append(cli("init", tmp_path / "new.yaml"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert [result.error() for result in full] == [
        f"{tmp_path / name}: File too large" for name in ("pulled.yaml", "new.yaml")
    ]
    assert path.read_text() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["pulled.yaml", "town.yaml"]
    os.link(path, tmp_path / "other name")
    refused = cli("config", "pull", "-c", town_url, "-o", path, "--show-secrets")
    assert "has a second name" in refused.error()
    assert path.read_text() == before


def test_an_empty_config_server_has_nothing_to_pull(
    cli: Cli, town_map: Path, town_url: str
) -> None:
    assert "shardkit config push" in cli("config", "pull", "-c", town_url).error()
    assert "describes no component" in cli("config", "show", "-c", town_url).error()


def test_components_are_shown_with_their_servers(cli: Cli, pushed_map: Path, town_url: str) -> None:
    shown = cli("config", "show", "-c", town_url)
    assert [line.split()[:4] for line in shown.lines] == [
        ["component", "shards", "placement", "epoch"],
        ["followers", "2", "rendezvous", "1"],
        ["sessions", "-", "-", "-"],
        ["unique", "8", "crc32", "1"],
    ]
    entries = cli("config", "show", "unique", "-c", town_url)
    assert len(entries.lines) == 1 + 9
    assert "password=***" in entries.lines[1]
    found = cli.json("config", "show", "unique", "-c", town_url)["components"]
    assert found["unique"]["epoch"] == 1
    assert [entry["db"] for entry in found["unique"]["shards"]] == [1, 1, 2, 2, 3, 3, 4, 4]
    of_map = cli.json("config", "show", "-c", pushed_map)
    assert of_map["source"] == str(pushed_map)


def test_a_component_or_config_server_that_is_not_there_is_named(cli: Cli, town_map: Path) -> None:
    refused = cli("config", "show", "nope", "-c", town_map)
    assert "config:redis:nope is missing" in refused.error()
    for words in (["pull"], ["show"], ["diff", str(town_map)], ["push", str(town_map)]):
        away = cli("config", *words, "-c", f"redis://:{SECRET}@127.0.0.1:1")
        assert "127.0.0.1:1" in away.error()
        assert "onnection refused" in away.error()


def test_a_wrong_password_is_one_line(cli: Cli, town: LocalServers) -> None:
    url = f"redis://:wr0ngWord@{config_server(town).address}"
    for command in ("pull", "show"):
        assert "password" in cli("config", command, "-c", url, secret="wr0ngWord").error()


RIGHTS = ["+@connection", "+scan"]
KEYS = [f"user:{n}:profile" for n in range(900)]


Fill = Callable[..., list[str]]


@pytest.fixture
def fill(server: LocalServer) -> Fill:
    def place(where: Callable[[str], int], keys: Sequence[str] = KEYS, count: int = 3) -> list[str]:
        ask(server, "flushall")
        for shard in range(count):
            with server.client(db=shard + 1) as client:
                pipe = client.pipeline(transaction=False)
                for key in keys:
                    if where(key) == shard:
                        pipe.set(key, "v")
                pipe.execute()
        return [f"{server.address}/{shard + 1}" for shard in range(count)]

    return place


def options(name: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (name, value)]


def proposed(result: Adoption) -> str:
    assert result.problem == ""
    assert result.shard_map is not None
    again = ShardMap.parse(result.shard_map.to_yaml())
    component = again.components[result.component]
    assert component.placement == result.placement
    for server in result.servers:
        assert server.shard is not None
        entry = component.shards[server.shard]
        assert server.address.endswith(f"/{entry.fields['db']}")
    return result.placement


def test_a_hand_written_crc32_is_found_with_keys_that_have_braces(fill: Fill) -> None:
    keys = [*KEYS, *(f"{{tag}}:{n}" for n in range(100))]
    on = fill(lambda key: crc32(key.encode()) % 3, keys)
    result = growth.adopt("users", on)
    assert proposed(result) == "whole:crc32"
    assert [each.sampled for each in result.servers] == [each.fitting for each in result.servers]
    assert sum(each.sampled for each in result.servers) == 1000
    assert result.alike == ()


def test_hash_tags_are_found_and_rules_that_differ_only_for_braces_are_named(fill: Fill) -> None:
    keys = [*KEYS, *(f"{{tag{n % 7}}}:{n}" for n in range(100))]
    assert proposed(growth.adopt("users", fill(placed("crc32", 3), keys))) == "crc32"
    result = growth.adopt("users", fill(placed("crc32", 3)))
    assert proposed(result) == "crc32"
    assert "whole:crc32" in result.alike
    assert "does not tell crc32 from" in result.notes[0]


RULES = ["rb", "redis-array", "rendezvous", "slot", "crc:crc-64", 'jedis {"hash":"murmur"}']


@pytest.mark.long(1)
@pytest.mark.parametrize("rule", RULES)
def test_rules_without_names_are_found(fill: Fill, rule: str) -> None:
    assert proposed(growth.adopt("users", fill(placed(rule, 3)))) == rule


NAMED = [
    'twemproxy {"distribution":"ketama","hash":"fnv1a_64","names":NAMES}',
    'twemproxy {"distribution":"ketama","hash":"md5","names":NAMES}',
    'jedis {"hash":"murmur","names":NAMES}',
    'django-redis {"names":NAMES}',
]


@pytest.mark.parametrize("rule", NAMED)
def test_rings_are_found_by_the_servers_names(fill: Fill, rule: str) -> None:
    rule = rule.replace("NAMES", '["alpha","beta","gamma"]')
    on = fill(placed(rule, 3))
    assert proposed(growth.adopt("users", on, names=["alpha", "beta", "gamma"])) == rule
    assert "no rule fits" in growth.adopt("users", on).problem


def test_servers_in_another_order_are_put_into_the_order_of_the_rule(fill: Fill) -> None:
    on = fill(placed("rb", 3))
    result = growth.adopt("users", [on[2], on[0], on[1]])
    assert proposed(result) == "rb"
    assert [each.shard for each in result.servers] == [2, 0, 1]
    assert any("another order" in note for note in result.notes)


def test_keys_anywhere_are_refused_with_the_best_rule(fill: Fill) -> None:
    result = growth.adopt("users", fill(lambda key: int(key.split(":")[1]) // 10 % 3))
    assert result.shard_map is None
    assert "no rule fits" in result.problem
    assert all(each.misplaced for each in result.servers)


def test_routing_keys_inside_names_are_found_by_rules(fill: Fill) -> None:
    on = fill(lambda key: crc32(key.split(":")[1].encode()) % 3)
    assert growth.adopt("users", on).shard_map is None
    result = growth.adopt("users", on, routes=[r"user:(\d+):profile"])
    assert proposed(result) == "crc32"
    assert result.shard_map is not None
    assert result.shard_map.components["users"].routes == (r"user:(\d+):profile",)


def test_few_keys_do_not_tell_rules_apart(fill: Fill) -> None:
    for keys in (KEYS[:5], [f"{{one}}:{n}" for n in range(500)]):
        result = growth.adopt("users", fill(placed("crc32", 3), keys))
        assert result.shard_map is None
        assert "too few keys" in result.problem
    assert "hold no keys" in growth.adopt("users", fill(placed("crc32", 3), [])).problem


def test_keys_of_another_program_among_them_are_told_from_keys_without_a_rule(
    fill: Fill, server: LocalServer
) -> None:
    on = fill(placed("crc32", 3))
    client_of(server, db=1).mset({f"session:{n}": 1 for n in range(600)})
    result = growth.adopt("users", on)
    assert result.shard_map is None
    assert "crc32 explains 1,1" in result.problem
    assert "which is no chance" in result.problem
    assert "move or delete keys of other programs" in result.remedy
    assert result.servers[0].misplaced
    # A ring whose weights are not known explains most keys, too.
    rule = 'jedis {"names":["a","b","c"],"weights":[3,2,2]}'
    result = growth.adopt("users", fill(placed(rule, 3)), names=["a", "b", "c"])
    assert result.shard_map is None
    assert "weights (--placement)" in result.remedy
    assert proposed(growth.adopt("users", fill(placed(rule, 3)), placements=[rule])) == rule


def test_nodes_of_a_cluster_are_refused() -> None:
    with LocalCluster(masters=1) as cluster:
        on = [cluster.nodes[0].address, "127.0.0.1:1"]
        with pytest.raises(GrowthError, match=r"is a node of a cluster, .*; write one entry"):
            growth.adopt("users", on)


def test_keys_of_any_bytes_and_many_servers_are_readable(fill: Fill, server: LocalServer) -> None:
    names = [f"a-server-with-a-long-name-{n}.internal" for n in range(8)]
    rule = f'uhashring {{"names":{json.dumps(names)}}}'
    keys = [*KEYS, *(f"[red]\n\x1b]0;{n}" for n in range(100))]
    on = fill(placed(rule, 8), keys, 8)
    client_of(server, db=1).mset({b"\xff\x1b[31m[bold]%d" % n + b"long" * 50: 1 for n in range(20)})
    words = [*options("--on", on), *options("--name", names)]
    code, text = in_terminal(80, "adopt", "users", *words)
    assert code == 0, text
    assert "trying rule " in text
    shown = plain(text)
    assert "\x1b" not in shown
    assert "\\x1b[31m[bold]" in shown
    table = shown[shown.index("agree of each") : shown.index("components:")]
    assert max(map(len, table.splitlines())) <= 80
    assert len(table.splitlines()) < 60
    assert "100%" in shown
    told: list[str] = []
    growth.adopt("users", on, names=names, progress=told.append)
    assert told[7].startswith("sampled ")
    assert told[7].endswith(" of 8 of 8 servers")


def test_one_server_becomes_an_entry(fill: Fill) -> None:
    result = growth.adopt("users", fill(lambda key: 0, count=1))
    assert result.shard_map is not None
    assert result.shard_map.components["users"].entry is not None


def test_nothing_is_written_and_errors_name_the_server(fill: Fill, server: LocalServer) -> None:
    on = fill(placed("crc32", 3))
    ask(server, "config_resetstat")
    growth.adopt("users", on)
    used = {name.removeprefix("cmdstat_") for name in ask(server, "info", "commandstats")}
    assert used <= {"scan", "select", "hello", "client|setinfo", "ping", "config|resetstat", "info"}
    with pytest.raises(GrowthError, match=r"1:1/0 cannot be read: connection refused; check"):
        growth.adopt("users", ["127.0.0.1:1/0", on[0]])
    with pytest.raises(InvalidArgumentError, match="appears twice"):
        growth.adopt("users", [on[0], on[0]])
    with pytest.raises(InvalidArgumentError, match=r"sample=0; give an integer, 1 to"):
        growth.adopt("users", on, sample=0)


def test_the_command_writes_a_map_that_can_be_loaded(fill: Fill, cli: Cli, tmp_path: Path) -> None:
    adopting = ["adopt", "users", *options("--on", fill(placed("rb", 3)))]
    file = tmp_path / "users.yaml"
    done = cli(*adopting, "--output", file, code=0)
    assert f"next: shardkit config push {file}" in done.out
    assert ShardMap.load(file).components["users"].placement == "rb"
    for arguments, code in ([], 0), (["--placement", "slot"], 1):
        cli(*adopting, *arguments, code=code)
        assert len(cli.json(*adopting, *arguments, code=code)["servers"]) == 3


def test_servers_are_read_from_entries_and_passwords_are_not_shown(
    server: LocalServer, fill: Fill, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = fill(placed("rb", 3))
    ask(server, "execute_command", "ACL", "SETUSER", "adopter", "on", ">pw-Secret", "~*", *RIGHTS)
    page = Path(__file__).parents[2] / "docs" / "rights.md"
    assert f"| `shardkit adopt` | data servers | `{' '.join(RIGHTS)}` |" in page.read_text("utf-8")
    monkeypatch.setenv("ADOPT_PASSWORD", "pw-Secret")
    for password in ("pw-Secret", "${ADOPT_PASSWORD}"):
        words = options("--on", [f"redis://adopter:{password}@{each}" for each in on])
        cli("adopt", "users", *words, secret="pw-Secret", code=0)
        cli("adopt", "users", *words, "--json", secret="pw-Secret", code=0)
    shards = [{"host": "127.0.0.1", "port": server.port, "db": n} for n in (1, 2, 3)]
    push(
        server.client(),
        map_of(old={"shards": shards}),
        force=["old"],
    )
    assert "placement: rb" in cli("adopt", "old", "-c", f"redis://{server.address}/0", code=0).out


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
    client_of(stranger, db=1).mset({f"another:{n}": 1 for n in range(50)})
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
        client_of(servers.server_of("unique", zlib.crc32(key) % 2), db=7).set(key, n)
    refused = cli("config", "push", pushed).error()
    assert "by the {tag} in them: whole keys may have been hashed before" in refused
    assert "use a placement that hashes whole keys (docs/placement.md)" in refused


def test_keys_of_other_shards_stop_a_shard_that_moves(
    cli: Cli, servers: LocalServers, stranger: LocalServer, edited: Edit
) -> None:
    with servers.server_of("unique", 1).client(db=1) as own, stranger.client(db=1) as new:
        copy(own, new)
    client_of(servers.server_of("unique", 0), db=1).flushdb()
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
