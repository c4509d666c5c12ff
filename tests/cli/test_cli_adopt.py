"""Placements of data that others placed are found, on real servers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from zlib import crc32

import pytest
from arranged import ask, map_of
from cli_helpers import Cli, in_terminal, placed, plain

from shardkit import ShardMap
from shardkit.admin import push
from shardkit.admin.growth import Adoption, adopt
from shardkit.errors import GrowthError, InvalidArgumentError
from shardkit.local import LocalCluster, LocalServer

RIGHTS = ["+@connection", "+scan"]
KEYS = [f"user:{n}:profile" for n in range(900)]


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer() as running:
        yield running


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
    result = adopt("users", on)
    assert proposed(result) == "whole:crc32"
    assert [each.sampled for each in result.servers] == [each.fitting for each in result.servers]
    assert sum(each.sampled for each in result.servers) == 1000
    assert result.alike == ()


def test_hash_tags_are_found_and_rules_that_differ_only_for_braces_are_named(fill: Fill) -> None:
    keys = [*KEYS, *(f"{{tag{n % 7}}}:{n}" for n in range(100))]
    assert proposed(adopt("users", fill(placed("crc32", 3), keys))) == "crc32"
    result = adopt("users", fill(placed("crc32", 3)))
    assert proposed(result) == "crc32"
    assert "whole:crc32" in result.alike
    assert "does not tell crc32 from" in result.notes[0]


RULES = ["rb", "redis-array", "rendezvous", "slot", "crc:crc-64", 'jedis {"hash":"murmur"}']


@pytest.mark.parametrize("rule", RULES)
def test_rules_without_names_are_found(fill: Fill, rule: str) -> None:
    assert proposed(adopt("users", fill(placed(rule, 3)))) == rule


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
    assert proposed(adopt("users", on, names=["alpha", "beta", "gamma"])) == rule
    assert "no rule fits" in adopt("users", on).problem


def test_names_are_taken_from_addresses(fill: Fill, server: LocalServer) -> None:
    names = ",".join(f'"redis://{server.address}/{n}"' for n in (1, 2, 3))
    rule = f'django-redis {{"names":[{names}]}}'
    assert proposed(adopt("users", fill(placed(rule, 3)))) == rule


def test_servers_in_another_order_are_put_into_the_order_of_the_rule(fill: Fill) -> None:
    on = fill(placed("rb", 3))
    result = adopt("users", [on[2], on[0], on[1]])
    assert proposed(result) == "rb"
    assert [each.shard for each in result.servers] == [2, 0, 1]
    assert any("another order" in note for note in result.notes)


def test_keys_anywhere_are_refused_with_the_best_rule(fill: Fill) -> None:
    result = adopt("users", fill(lambda key: int(key.split(":")[1]) // 10 % 3))
    assert result.shard_map is None
    assert "no rule fits" in result.problem
    assert all(each.misplaced for each in result.servers)


def test_routing_keys_inside_names_are_found_by_rules(fill: Fill) -> None:
    on = fill(lambda key: crc32(key.split(":")[1].encode()) % 3)
    assert adopt("users", on).shard_map is None
    result = adopt("users", on, routes=[r"user:(\d+):profile"])
    assert proposed(result) == "crc32"
    assert result.shard_map is not None
    assert result.shard_map.components["users"].routes == (r"user:(\d+):profile",)


def test_few_keys_do_not_tell_rules_apart(fill: Fill) -> None:
    for keys in (KEYS[:5], [f"{{one}}:{n}" for n in range(500)]):
        result = adopt("users", fill(placed("crc32", 3), keys))
        assert result.shard_map is None
        assert "too few keys" in result.problem
    assert "hold no keys" in adopt("users", fill(placed("crc32", 3), [])).problem


def test_foreign_keys_are_named(fill: Fill, server: LocalServer) -> None:
    on = fill(placed("crc32", 3))
    with server.client(db=1) as client:
        client.set("foreign:0", "v")
        client.set("foreign:1", "v")
        wrong = [k for k in (b"foreign:0", b"foreign:1") if placed("crc32", 3)(k) != 0]
    result = adopt("users", on)
    assert proposed(result) == "crc32"
    assert sorted(result.servers[0].misplaced) == wrong
    assert wrong


def test_keys_of_another_program_among_them_are_told_from_keys_without_a_rule(
    fill: Fill, server: LocalServer
) -> None:
    on = fill(placed("crc32", 3))
    with server.client(db=1) as client:
        client.mset({f"session:{n}": 1 for n in range(600)})
    result = adopt("users", on)
    assert result.shard_map is None
    assert "crc32 explains 1,1" in result.problem
    assert "which is no chance" in result.problem
    assert "move or delete keys of other programs" in result.remedy
    assert result.servers[0].misplaced
    # A ring whose weights are not known explains most keys, too.
    rule = 'jedis {"names":["a","b","c"],"weights":[3,2,2]}'
    result = adopt("users", fill(placed(rule, 3)), names=["a", "b", "c"])
    assert result.shard_map is None
    assert "weights (--placement)" in result.remedy
    assert proposed(adopt("users", fill(placed(rule, 3)), placements=[rule])) == rule


def test_nodes_of_a_cluster_are_refused() -> None:
    with LocalCluster(masters=1) as cluster:
        on = [cluster.nodes[0].address, "127.0.0.1:1"]
        with pytest.raises(GrowthError, match=r"is a node of a cluster, .*; write one entry"):
            adopt("users", on)


def test_keys_of_any_bytes_and_many_servers_are_readable(fill: Fill, server: LocalServer) -> None:
    names = [f"a-server-with-a-long-name-{n}.internal" for n in range(8)]
    rule = f'uhashring {{"names":{json.dumps(names)}}}'
    keys = [*KEYS, *(f"[red]\n\x1b]0;{n}" for n in range(100))]
    on = fill(placed(rule, 8), keys, 8)
    with server.client(db=1) as client:
        client.mset({b"\xff\x1b[31m[bold]%d" % n + b"long" * 50: 1 for n in range(20)})
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
    adopt("users", on, names=names, progress=told.append)
    assert told[7].startswith("sampled ")
    assert told[7].endswith(" of 8 of 8 servers")


def test_one_server_becomes_an_entry(fill: Fill) -> None:
    result = adopt("users", fill(lambda key: 0, count=1))
    assert result.shard_map is not None
    assert result.shard_map.components["users"].entry is not None


def test_nothing_is_written_and_errors_name_the_server(fill: Fill, server: LocalServer) -> None:
    on = fill(placed("crc32", 3))
    ask(server, "config_resetstat")
    adopt("users", on)
    used = {name.removeprefix("cmdstat_") for name in ask(server, "info", "commandstats")}
    assert used <= {"scan", "select", "hello", "client|setinfo", "ping", "config|resetstat", "info"}
    with pytest.raises(GrowthError, match=r"1:1/0 cannot be read: connection refused; check"):
        adopt("users", ["127.0.0.1:1/0", on[0]])
    with pytest.raises(InvalidArgumentError, match="appears twice"):
        adopt("users", [on[0], on[0]])
    with pytest.raises(InvalidArgumentError, match=r"sample=0; specify 1 to"):
        adopt("users", on, sample=0)


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
