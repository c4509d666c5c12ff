"""Commands on entries that were written by hand, without a stored count of shards."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
import yaml
from cli_helpers import Cli, edited_map, placed

import shardkit
from shardkit.local import LocalServers

Write = Callable[..., None]
NOTE = "count inferred from {} written by hand, placement crc32 assumed"


@pytest.fixture
def config(town: LocalServers, town_map: Path) -> Iterator[redis.Redis]:
    """The config server, without any entry."""
    with town.servers[0].client() as client:
        yield client


@pytest.fixture
def write(town: LocalServers, config: redis.Redis) -> Write:
    """Write the entries of a component; its shards are the first ones of ``unique``."""

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


def test_commands_infer_the_count_and_say_so(cli: Cli, town_url: str, by_hand: str) -> None:
    count = int(by_hand[-1])
    note = f"note: {by_hand}: {NOTE.format('1 entry' if count == 1 else f'{count} entries')}"
    notes = {}
    for words in commands(
        by_hand, "config show", "doctor NAME --check", "keys NAME", "config pull"
    ):
        result = cli(*words, "-c", town_url, code=0)
        cli(*words, "--json", "-c", town_url, code=0)
        said = [line for line in result.err.splitlines() if "note:" in line]
        notes[" ".join(words)] = [line.count(note) for line in said]
    assert all(said == [1] for said in notes.values()), notes


def test_a_count_that_is_said_needs_no_note(cli: Cli, town_url: str, by_hand: str) -> None:
    said = [
        cli(*words, "--shards", by_hand[-1], "-c", town_url, code=0).err
        for words in commands(by_hand, "doctor NAME --repack", "doctor NAME --check --repair --yes")
    ]
    assert "note:" not in "".join(said)


def test_another_count_than_there_are_entries_is_refused(
    cli: Cli, town_url: str, by_hand: str
) -> None:
    for count in "2", "4":
        result = cli("status", by_hand, "--shards", count, "-c", town_url, code=1)
        assert by_hand in result.error()


def test_repairs_need_the_count(cli: Cli, write: Write, town_url: str) -> None:
    write("unsaid")
    for words in (["--repack"], ["--check", "--repair", "--yes"]):
        result = cli("doctor", "unsaid", *words, "-c", town_url, code=1)
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


def test_keys_are_located_by_the_placement_that_is_said(
    cli: Cli, write: Write, town_url: str
) -> None:
    write("handplaced")
    rule = "redis-in-action"
    words = ["--shards", "3", "--placement", rule, "-c", town_url]
    keys = [f"home:{n}" for n in range(20)]
    found = cli.json("locate", "handplaced", *keys, *words)
    place = placed(rule, 3)
    assert [each["number"] for each in found] == list(map(place, keys))


def test_entries_with_a_gap_or_of_a_lost_count_are_refused(
    cli: Cli, write: Write, config: redis.Redis, town_url: str, town_map: Path
) -> None:
    write("gap")
    config.delete("config:redis:gap:1")
    result = cli("status", "gap", "-c", town_url)
    assert "config:shards:gap" in result.error()
    config.delete("config:redis:gap:0", "config:redis:gap:2")
    assert cli("config", "push", town_map).code == 0
    config.delete("config:shards:unique")
    result = cli("status", "unique", "-c", town_url)
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


def test_a_pulled_map_is_pushed_without_force_and_stores_the_count(
    cli: Cli, config: redis.Redis, by_hand: str, town_url: str, tmp_path: Path
) -> None:
    count = int(by_hand[-1])
    entries = {key: config.get(key) for key in config.keys("config:redis:*")}
    with shardkit.connect(town_url) as kit:
        router = kit.key_sharded(by_hand, count)
        for n in range(60):
            router[f"home:{n}"].set(f"home:{n}", n)
        path = pull(cli, town_url, tmp_path)
        document = yaml.safe_load(path.read_text())["components"][by_hand]
        assert (len(document["shards"]), document["placement"]) == (count, "crc32")
        [change] = cli.json("config", "diff", path, "-c", town_url)["changes"]
        [field] = change["fields"]
        assert change["change"] == "changed"
        assert change["shards"] == {"before": count, "after": count}
        assert field["key"] == f"config:shards:{by_hand}"
        assert cli("config", "push", path, "-c", town_url).code == 0
        assert {key: config.get(key) for key in config.keys("config:redis:*")} == entries
        stored = json.loads(config.get(f"config:shards:{by_hand}") or b"")
        assert stored == {"shards": count, "placement": "crc32", "epoch": 1}
        assert [router[f"home:{n}"].get(f"home:{n}") for n in range(60)] == [
            b"%d" % n for n in range(60)
        ]
    assert "there was nothing to push" in cli("config", "push", path, "-c", town_url).out
    rolled = cli("config", "rollback", "0", "-c", town_url)
    assert "there was nothing to push" in rolled.out
    assert cli("status", by_hand, "-c", town_url).err == ""


def test_a_push_is_refused_if_another_placement_explains_where_the_keys_are(
    cli: Cli, town: LocalServers, config: redis.Redis, town_url: str, tmp_path: Path, write: Write
) -> None:
    write("booked")
    fill(town, "booked", "redis-in-action")
    pulled = pull(cli, town_url, tmp_path)
    refused = cli("config", "push", pulled, "-c", town_url).error()
    assert "holds its keys where placement redis-in-action puts them, not crc32" in refused
    assert "set `placement: redis-in-action` in the map" in refused
    assert not config.exists("config:shards:booked")
    pulled.write_text(pulled.read_text().replace("crc32", "redis-in-action"))
    assert cli("config", "push", pulled, "-c", town_url).code == 0
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
    refused = cli("config", "push", pulled, "-c", town_url).error()
    assert "going from 3 to 2 shards" in refused


def test_the_url_of_an_unsharded_entry_needs_no_count(
    cli: Cli, town: LocalServers, config: redis.Redis, town_url: str, write: Write
) -> None:
    write("apart")
    config.delete("config:redis:apart:1")
    config.set("config:redis:apart", town.shard_map.components["unique"].shards[0].to_json())
    result = cli("url", "apart", "-o", "/dev/null", "-c", town_url)
    assert (result.code, result.err) == (0, "wrote /dev/null\n")
    assert os.stat("/dev/null").st_mode & 0o777 == 0o666, "only files are made private"
