from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from arranged import paused
from cli_helpers import SECRET, Cli, edited_map, in_terminal, placed, plain
from redis.crc import key_slot

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalCluster, LocalServers


@pytest.fixture(autouse=True)
def _topology(town_map: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDKIT_CONFIG", str(town_map))


def test_keys_are_where_the_kit_finds_them(cli: Cli, town: LocalServers) -> None:
    keys = ["home:42", "{home:42}:x", "42", "ключ", "a b"]
    found = cli.json("locate", "unique", *keys)
    with shardkit.connect(town.shard_map) as kit:
        router = kit.key_sharded("unique")
        assert [each["number"] for each in found] == [router.shard_of(key) for key in keys]
        assert [each["key"] for each in found] == keys
        for each in found:
            entry = kit.component("unique").shards[each["number"]]
            assert each["server"] == entry.address
            assert each["shard"] == f"unique:{each['number']}"
    assert found[0]["number"] == found[1]["number"]
    assert (found[1]["is_tag"], found[1]["hashed"]) == (True, "home:42")
    shown = cli("locate", "unique", *keys)
    assert len(shown.lines) == 1 + len(keys)
    assert f"tag home:42: crc32 = {found[1]['hash']}, mod 8 = {found[1]['number']}" in shown.out


@pytest.mark.parametrize(
    "placement", ["crc32", "slot", "rendezvous", "redis-in-action", "crc:crc-64", "crc:xmodem"]
)
def test_what_is_told_is_what_the_placement_does(cli: Cli, tmp_path: Path, placement: str) -> None:
    path = tmp_path / "map.json"
    shards = [{"db": n} for n in range(7)]
    components = {"u": {"shards": shards, "placement": placement}, "one": {"entry": {}}}
    path.write_text(json.dumps({"components": components}))
    keys = ["{user:7}:a", "x", "é", *(f"k{n}" for n in range(20))]
    place = placed(placement, 7)
    for key, told in zip(keys, cli.json("locate", "u", *keys, "-c", path), strict=True):
        assert told["number"] == place(key)
        if placement.startswith(("crc", "redis")):
            assert told["hash"] % 7 == told["number"]
            assert told["why"].endswith(f"= {told['hash']}, mod 7 = {told['number']}")
        if placement == "slot":
            assert told["hash"] == key_slot(key.encode())
        assert bool(told["is_tag"]) == (placement != "redis-in-action" and key[0] == "{")
    [told] = cli.json("locate", "one", "k", "-c", path)
    assert (told["number"], told["hash"], told["why"]) == (None, None, "not sharded")


def test_pairs_are_placed_whatever_their_order(cli: Cli, town: LocalServers) -> None:
    one, other, third = cli.json(
        "locate", "followers", *("--pair", "10", "9"), *("--pair", "9", "010"), "k"
    )[-3:]
    found = cli.json("locate", "followers", "k", "--pair", "10", "9")
    assert [each["key"] for each in found] == ["k", "9:10"]
    with shardkit.connect(town.shard_map) as kit:
        assert found[1]["number"] == kit.id_pair_sharded("followers").shard_of(9, 10)
    assert one["key"] == "k"
    assert other == third
    assert "not an integer" in cli("locate", "followers", "--pair", "a", "b").error()


def test_members_of_a_set_are_located_by_what_it_was_made_with(
    cli: Cli, town: LocalServers, pushed_map: Path, town_url: str
) -> None:
    with shardkit.connect(town.shard_map) as kit:
        ids = kit.set("ids", component="unique", total=10_000, members=int, part_size=100)
        ids.sadd(17, 18)
        found = cli.json("locate", "unique", "--in", "ids", "17", "018", "19", "-c", town_url)
        assert [each["there"] for each in found] == [True, True, False]
        assert [each["part"] for each in found] == [ids.part_of(n) for n in (17, 18, 19)]
        assert [each["key"] for each in found] == [ids.key_of(n) for n in (17, 18, 19)]
        router = kit.key_sharded("unique")
        assert [each["number"] for each in found] == [router.shard_of(e["key"]) for e in found]
        for each in found:
            assert bool(router.client(each["number"]).exists(each["key"])) == each["there"]
    shown = cli("locate", "unique", "--in", "ids", "17", "19", "-c", pushed_map)
    assert [line.split()[:3] for line in shown.lines[1:]] == [
        ["17", "yes", found[0]["key"]],
        ["19", "no", found[2]["key"]],
    ]
    assert "not an integer" in cli("locate", "unique", "--in", "ids", "x", "-c", pushed_map).error()


def test_a_set_that_is_not_there_yet_is_described(cli: Cli, town: LocalServers) -> None:
    words = ("locate", "unique", "--in", "ids", "17")
    assert "ids:meta is missing" in cli(*words).error()
    [found] = cli.json(*words, "--total", "1000", "--part-size", "10", "--members", "int")
    with shardkit.connect(town.shard_map) as kit:
        ids = kit.set("ids", component="unique", total=1000, part_size=10, members=int)
        assert found["key"] == ids.key_of(17)
        assert found["there"] is False
        ids.sadd(17)
    [now] = cli.json(*words, "--total", "1000")
    assert now == {**found, "there": True}
    assert "was made with total 1000, not 5" in cli(*words, "--total", "5").error()


def test_locate_refuses_members_of_a_structure_that_is_no_set(cli: Cli, town: LocalServers) -> None:
    with shardkit.connect(town.shard_map) as kit:
        kit.key_sharded("unique")["cities:meta"].hset("cities:meta", mapping={"kind": "hash"})
    refused = cli("locate", "unique", "--in", "cities", "a")
    assert "'cities' is a hash, not a set" in refused.error()


def test_a_server_that_is_away_leaves_the_place_known(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(f"components: {{a: {{entry: {{port: 1, password: {SECRET}}}}}}}")
    [found] = cli.json("locate", "a", "--in", "s", "m", "--total", "9", "-c", path, code=1)
    assert (found["key"], found["there"]) == ("s:0", None)
    shown = cli("locate", "a", "--in", "s", "m", "--total", "9", "-c", path)
    assert "? connection refused" in shown.out
    assert "a" in cli("locate", "a", "--in", "s", "m", "-c", path).error()


@pytest.fixture(scope="module")
def cluster() -> Any:
    with LocalCluster(password=SECRET) as running:
        yield running


def test_a_clusters_keys_are_on_the_node_of_their_slot(
    cli: Cli, cluster: LocalCluster, tmp_path: Path
) -> None:
    path = tmp_path / "map.yaml"
    entry = cluster.entry.fields
    path.write_text(ShardMap.parse(f"components: {{cart: {{entry: {entry}}}}}").to_yaml())
    keys = ["a", "b", "{a}c"]
    found = cli.json("locate", "cart", *keys, "-c", path)
    with cluster.client() as client:
        nodes = [client.get_node_from_key(key) for key in keys]
    assert [each["server"] for each in found] == [f"{node.host}:{node.port}" for node in nodes]
    assert found[0]["hash"] == found[2]["hash"]
    with paused(cluster.nodes[0]):
        away = cli.json("locate", "cart", "a", "-c", path)
    assert away[0]["hash"] == found[0]["hash"]


def test_a_key_of_a_structure_in_numbered_parts_is_on_the_shard_of_its_part(
    cli: Cli, town: LocalServers, town_map: Path
) -> None:
    with shardkit.connect(town.shard_map) as kit:
        docs = kit.search("docs", component="unique", parts=8)
        docs.index_many([(f"d{n}", {"text": f"word{n}"}) for n in range(40)])
        keys = [
            (key.decode(), n)
            for n in range(8)
            for key in kit.client("unique", n).scan_iter(match="{docs:*")
        ]
    assert len({n for _, n in keys}) == 8
    found = cli.json("locate", "unique", *(key for key, _ in keys))
    assert [each["number"] for each in found] == [n for _, n in keys]
    absent = cli.json("locate", "unique", "{docs:5}:nothing", "{other:5}:x")
    by_hash = town.shard_map.components["unique"].place(b"other:5")
    assert [each["number"] for each in absent] == [5, by_hash]
    shown = cli("locate", "unique", "{docs:5}:nothing")
    assert "part 5 of 'docs', on shard 5" in shown.out
    with edited_map(town_map) as components:
        for entry in components["unique"]["shards"]:
            entry["decode_responses"] = True
    assert cli("locate", "unique", "{docs:5}:nothing").out == shown.out


def test_a_key_whose_structure_cannot_be_looked_up_is_not_located(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "away.yaml"
    path.write_text("components: {a: {shards: [{port: 1}, {port: 1, db: 1}]}}")
    assert (
        "a:1 (localhost:1/1) cannot be reached" in cli("locate", "a", "{x:1}:y", "-c", path).error()
    )


def test_the_url_of_an_entry_connects_to_its_server(cli: Cli) -> None:
    for arguments, number in (((), 0), (("--shard", "2"), 2)):
        words = ("url", "unique", *arguments)
        [url] = cli(*words, secret="-" * 20, code=0).lines
        assert cli.json(*words, secret="-" * 20) == {"url": url}
        with redis.Redis.from_url(url) as client:
            assert client.ping()
            assert client.get_connection_kwargs()["db"] in (0, number // 2 + 1)


def test_a_file_with_the_url_is_for_its_owner_alone(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "jobs.url"
    result = cli("url", "sessions", "-o", path)
    assert (result.code, result.out) == (0, "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().startswith(f"redis://:{SECRET}@127.0.0.1:")


def test_a_terminal_sees_the_password_only_if_it_is_asked_for(town_map: Path) -> None:
    code, text = in_terminal(100, "url", "sessions")
    assert code == 0
    assert "redis://:***@127.0.0.1:" in plain(text)
    assert SECRET not in text
    code, text = in_terminal(100, "url", "sessions", "--show-secrets")
    assert SECRET in text


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{cluster: true}", "a cluster's entry has no URL"),
        ("{sentinel: {service: m, sentinels: [[s, 26379]]}}", "a Sentinel's entry has no URL"),
        ("{password: '${SK_ABSENT}'}", "SK_ABSENT"),
    ],
)
def test_an_entry_without_a_url_says_so(cli: Cli, tmp_path: Path, entry: str, message: str) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(f"components: {{jobs: {{entry: {entry}}}}}")
    result = cli("url", "jobs", "-c", path, code=1)
    assert message in result.error()
    assert "config:redis:jobs" in result.error()


Write = Callable[..., None]
NOTE = "count inferred from {} written by hand, placement crc32 assumed"


@pytest.fixture
def config(town: LocalServers, town_map: Path) -> Iterator[redis.Redis]:
    """The config server, without any entry."""
    with town.servers[0].client() as client:
        yield client


@pytest.fixture
def write(
    town: LocalServers, config: redis.Redis, town_url: str, monkeypatch: pytest.MonkeyPatch
) -> Write:
    """Write the entries of a component; its shards are the first ones of ``unique``."""
    monkeypatch.setenv("SHARDKIT_CONFIG", town_url)

    def run(name: str, count: int = 3) -> None:
        for n, entry in enumerate(town.shard_map.components["unique"].shards[:count]):
            config.set(f"config:redis:{name}:{n}", entry.to_json())

    return run


@pytest.fixture(params=[1, 3], ids=["one shard", "three shards"])
def by_hand(request: pytest.FixtureRequest, write: Write) -> str:
    """A component of one shard or three, whose entries were written by hand."""
    name = f"handmade{request.param}"
    write(name, request.param)
    return name


def pull(cli: Cli, town_url: str, path: Path) -> Path:
    """Pull a map that can be pushed again; return its file, in a folder."""
    cli("config", "pull", "--show-secrets", "-o", path / "pulled.yaml", "-c", town_url, code=0)
    return path / "pulled.yaml"


def fill(town: LocalServers, name: str, rule: str) -> None:
    """Store keys where a placement puts them, as callers of these entries did."""
    shards = town.shard_map.components["unique"].shards[:3]
    place = placed(rule, 3)
    for n, entry in enumerate(shards):
        with redis.Redis.from_url(entry.url()) as client:
            client.mset({f"home:{k}": k for k in range(120) if place(f"home:{k}") == n})


def commands(name: str, *more: str) -> list[list[str]]:
    """Return the words of commands that read a component."""
    common = ("config show NAME", "status NAME", "check NAME", "doctor NAME")
    located = ("locate NAME home:42", "url NAME --shard 0 -o /dev/null")
    return [each.replace("NAME", name).split() for each in (*common, *located, *more)]


def test_commands_infer_the_count_and_say_so(cli: Cli, by_hand: str) -> None:
    count = int(by_hand[-1])
    note = f"note: {by_hand}: {NOTE.format('1 entry' if count == 1 else f'{count} entries')}"
    notes = {}
    for words in commands(
        by_hand, "config show", "doctor NAME --check", "keys NAME", "config pull"
    ):
        result = cli(*words, code=0)
        cli(*words, "--json", code=0)
        said = [line for line in result.err.splitlines() if "note:" in line]
        notes[" ".join(words)] = [line.count(note) for line in said]
    assert all(said == [1] for said in notes.values()), notes


def test_a_count_that_is_said_needs_no_note(cli: Cli, by_hand: str) -> None:
    said = [
        cli(*words, "--shards", by_hand[-1], code=0).err
        for words in commands(by_hand, "doctor NAME --repack", "doctor NAME --check --repair --yes")
    ]
    assert "note:" not in "".join(said)


def test_another_count_than_there_are_entries_is_refused(cli: Cli, by_hand: str) -> None:
    for count in "2", "4":
        result = cli("status", by_hand, "--shards", count, code=1)
        assert by_hand in result.error()


def test_repairs_need_the_count(cli: Cli, write: Write) -> None:
    write("unsaid")
    for words in (["--repack"], ["--check", "--repair", "--yes"]):
        result = cli("doctor", "unsaid", *words, code=1)
        assert "push a shard map" in result.error()


def test_options_are_compared_with_the_stored_parameters(
    cli: Cli, pushed_map: Path, town_url: str
) -> None:
    for where in (pushed_map, town_url):
        assert cli("locate", "unique", "a", "--shards", "8", "-c", where).code == 0
        wrong = cli("locate", "unique", "a", "--shards", "7", "-c", where)
        assert "component 'unique' has 8 shards, but this call says 7" in wrong.error()
    words = ["--shards", "2", "--placement", "slot", "-c", pushed_map]
    wrong = cli("locate", "followers", "a", *words)
    assert "placement='slot', but entries say 'rendezvous'" in wrong.error()


def test_a_count_is_that_of_one_component(cli: Cli, town_url: str) -> None:
    assert "--shards is the count of one" in cli("status", "--shards", 2, "-c", town_url).error()
    for words in ("status a b --shards 2", "status a --placement slot"):
        assert cli(*words.split(), "-c", town_url).code == 2
    assert cli("config", "show", "a", "--shards", 2, "--at", 1, "-c", town_url).code == 2


def test_entries_with_a_gap_or_of_a_lost_count_are_refused(
    cli: Cli, write: Write, config: redis.Redis, town_map: Path
) -> None:
    write("gap")
    config.delete("config:redis:gap:1")
    result = cli("status", "gap")
    assert "config:shards:gap" in result.error()
    config.delete("config:redis:gap:0", "config:redis:gap:2")
    assert cli("config", "push", town_map).code == 0
    config.delete("config:shards:unique")
    result = cli("status", "unique")
    assert "config:shards:unique" in result.error()


def test_many_shards_are_counted(
    cli: Cli, town: LocalServers, config: redis.Redis, town_url: str
) -> None:
    entry = town.shard_map.components["unique"].shards[0].to_json()
    for count in 63, 64, 65, 200:
        config.mset({f"config:redis:many{count}:{n}": entry for n in range(count)})
    found = cli.json("config", "show", "-c", town_url)["components"]
    for count in 63, 64, 65, 200:
        assert len(found[f"many{count}"]["shards"]) == count


def test_a_push_is_refused_if_another_placement_explains_where_the_keys_are(
    cli: Cli, town: LocalServers, config: redis.Redis, town_url: str, tmp_path: Path, write: Write
) -> None:
    write("booked")
    fill(town, "booked", "redis-in-action")
    pulled = pull(cli, town_url, tmp_path)
    refused = cli("config", "push", pulled).error()
    assert "holds its keys where placement redis-in-action puts them, not crc32" in refused
    assert "set `placement: redis-in-action` in the map" in refused
    assert not config.exists("config:shards:booked")
    pulled.write_text(pulled.read_text().replace("crc32", "redis-in-action"))
    assert cli("config", "push", pulled).code == 0
    stored = json.loads(config.get("config:shards:booked") or b"")
    assert stored["placement"] == "redis-in-action"


def test_a_push_of_another_count_is_refused_as_ever(
    cli: Cli, town: LocalServers, town_url: str, tmp_path: Path, write: Write
) -> None:
    write("grown")
    fill(town, "grown", "crc32")
    pulled = pull(cli, town_url, tmp_path)
    with edited_map(pulled) as components:
        components["grown"]["shards"].pop()
    refused = cli("config", "push", pulled).error()
    assert "going from 3 to 2 shards" in refused
