"""``shardkit doctor --check``: what is damaged is shown, and repaired after it was said."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import Cli
from faces import holder, sessions

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.completion import fold
from shardkit.geo import City, IpRange
from shardkit.local import LocalServers

MAP = """
components:
  geo: {shards: {count: 4, over: [{port: 7001}]}}
  plain: {entry: {port: 7001, db: 9}}
"""
PARTS: dict[str, Any] = {"parts": 4, "relation_parts": 4}


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[tuple[ShardKit, Path]]:
    """A kit on servers with one structure of each kind, and the map's file."""
    with LocalServers(ShardMap.parse(MAP), ports="free") as servers:
        path = tmp_path / "map.json"
        path.write_text(servers.shard_map.to_yaml())
        with shardkit.connect(servers.shard_map) as kit:
            options: dict[str, Any] = {"component": "geo", "part_size": 64}
            kit.set("ids", **options, members=int, parts=4).sadd_many(range(300))
            kit.set("planned", **options, total=300).sadd_many(map(str, range(300)))
            kit.hash("h", component="geo", parts=2).hset(mapping=dict.fromkeys(range(300), "v"))
            kit.hash("w", **options, codec="json").hset(mapping={"a": 1, "7": 2})
            kit.list("jobs", **options).rpush(*range(300))
            kit.sorted_set("s", **options, parts=2).zadd({f"m{n}": n for n in range(300)})
            kit.packed("p", **options, fields={"a": "u8", "b": "f32"}).set(5, a=1, b=2.5)
            kit.locations(component="geo").set(7, "DEU")
            visitors = kit.unique_visitors(component="geo", first_day=500)
            visitors.visit_many(sessions(100), date(2015, 5, 17))
            kit.queues(component="plain").enqueue("mail", "send")
            kit.search("docs", component="plain").index("1", text="some words")
            kit.ads(component="plain").index("1", ["Rome"], "some words", "cpc", 1)
            kit.job_search(component="plain").index("1", ["python"])
            kit.address_book(component="geo", parts=2, fold=fold).join_many("elves", ["Éa", "b"])
            network = kit.social(component="plain", timelines="geo", followers="geo", **PARTS)
            network.follow(network.create_user("ada", "Ada"), network.create_user("bo", "Bo"))
            plain: Any = kit.client("plain")
            for what, place in (("country", "Peru"), ("region", '["","Peru"]')):
                plain.zadd(f"daily:{what}:{{2015-05-17}}", {place: 1})
            plain.zadd("daily:city:{2015-05-17}", {'["Lima","","Peru"]': 1})
            plain.sadd("daily:done:{2015-05-17}", "a.log")
            kit.ip_to_city(component="geo").import_from([IpRange(0, 255, City("DE", "", "Ulm"))])
            yield kit, path


def test_every_kind_of_structure_is_checked_and_repaired(
    cli: Cli, stored: tuple[ShardKit, Path]
) -> None:
    kit, path = stored
    found = cli.json("doctor", "--check", "-c", path)
    assert found["ok"], found
    kinds = {(each["structure"], each["kind"]): each["unchecked"] for each in found["structures"]}
    assert {kind for kind in kinds if not kind[0].endswith(":cities")} == {
        *(("ids", "set"), ("planned", "set"), ("h", "hash"), ("w", "hash"), ("{jobs}", "list")),
        *(("s", "sorted-set"), ("p", "packed"), ("location", "packed"), ("docs", "search")),
        *(("unique", "unique-visitors"), ("queues:{mail}", "queue"), ("ip2city", "ip-to-city")),
        *(("ads", "ads"), ("jobs", "jobs"), ("{members}", "address-book"), ("social", "social")),
        ("daily", "city-totals"),
    }
    assert set(kinds.values()) == {None}
    result = cli("doctor", "--check", "-c", path)
    assert (result.code, result.lines) == (0, ["checked 18 structures: no damage"])

    group = next(k.decode() for k in holder(kit, "geo", "ids:{4}:0").scan_iter("ids:*}"))
    holder(kit, "geo", group).delete(group)
    holder(kit, "geo", "{jobs}:1").delete("{jobs}:1")
    holder(kit, "geo", "unique:2015-05-17").incr("unique:2015-05-17")
    found = cli.json("doctor", "--check", "-c", path, code=1)
    keys = {each["key"]: each for each in found["damages"]}
    assert {group, "{jobs}:1", "unique:2015-05-17"} <= set(keys)
    assert keys["{jobs}:1"]["loses"] == "64 values, lost already"
    assert keys["unique:2015-05-17"]["repair"] == "recount() counts the ids"
    only = cli.json("doctor", "--check", "-c", path, "--structure", "{jobs}", code=1)
    assert {each["structure"] for each in only["damages"]} == {"{jobs}"}

    result = cli("doctor", "--check", "--repair", "-c", path, input="n\n", code=1)
    assert "64 values, lost already" in result.out
    assert kit.client("geo", kit.component("geo").shard_of(group).number).exists(group) == 0
    result = cli("doctor", "--check", "--repair", "--yes", "-c", path)
    assert "geo/ids: rebuilt" in result.out
    assert "geo/{jobs}: rebuilt" in result.out
    assert kit.set("ids", component="geo", part_size=64, members=int, parts=4).scard() == 300
    found = cli.json("doctor", "--check", "-c", path, code=1)
    assert [each["key"] for each in found["damages"]] == ["unique:2015-05-17"]


def test_structures_without_parameters_are_found(cli: Cli, stored: tuple[ShardKit, Path]) -> None:
    kit, path = stored
    for key in ("ids:meta", "{jobs}:meta", "p:meta"):
        holder(kit, "geo", key).delete(key)
    found = cli.json("doctor", "--check", "-c", path, code=1)
    assert {each["key"] for each in found["damages"]} == {"ids:meta", "{jobs}:meta", "p:meta"}


def test_parameters_that_have_lost_the_size_of_parts_are_damage(
    cli: Cli, stored: tuple[ShardKit, Path]
) -> None:
    kit, path = stored
    kit.unique_visitors("rough", component="plain", precision="hyperloglog").visit_many(
        sessions(9), date(2015, 5, 17)
    )
    wrong = {"ids", "planned", "h", "{jobs}", "s", "p", "unique"}
    for name in wrong:
        client: Any = holder(kit, "geo", f"{name}:meta")
        # One wrong byte
        client.hset(f"{name}:meta", "qart_size", client.hget(f"{name}:meta", "part_size"))
        client.hdel(f"{name}:meta", "part_size")
    holder(kit, "geo", "w:meta").hset("w:meta", "part_size", "0")
    found = cli.json("doctor", "--check", "-c", path, code=1)
    damages = {(each["key"], each["found"]) for each in found["damages"]}
    assert damages == {(f"{name}:meta", "no part_size") for name in {*wrong, "w"}}
    assert {each["unchecked"] for each in found["structures"]} == {None}


def test_a_structure_whose_codec_is_the_applications_is_not_checked(
    cli: Cli, stored: tuple[ShardKit, Path]
) -> None:
    kit, path = stored
    holder(kit, "geo", "w:meta").hset("w:meta", "codec", "ours")
    found = cli.json("doctor", "--check", "-c", path, "--structure", "w", code=1)
    [checked] = found["structures"]
    assert (checked["structure"], found["damages"]) == ("w", [])
    assert checked["unchecked"].startswith("its codec is the application's: ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--repair", "--structure, --repair and --yes go with --check"),
        ("--structure x", "--structure, --repair and --yes go with --check"),
        ("--check --fix", "--check goes with --structure, --repair and --yes only"),
        ("--check --repack", "--check goes with --structure, --repair and --yes only"),
        ("--check --repair --json", "with --json give --yes too"),
        ("--rewrite", "--rewrite saves what --fix sets"),
    ],
)
def test_options_that_do_not_go_together_are_refused(cli: Cli, options: str, said: str) -> None:
    assert said in cli("doctor", *options.split(), code=2).error()


def test_a_server_that_evicts_keys_of_structures_is_found(
    cli: Cli, stored: tuple[ShardKit, Path]
) -> None:
    kit, path = stored
    client: Any = kit.client("plain")
    client.config_set("maxmemory-policy", "allkeys-lru")
    found = cli.json("doctor", "-c", path, code=1)
    found = [each for each in found["findings"] if each["problem"] == "eviction"]
    assert [each["component"] for each in found] == ["geo", "plain"]
    assert found[0]["remedy"] == "CONFIG SET maxmemory-policy noeviction"
    rows = [line.split() for line in cli("doctor", "-c", path).lines if "noeviction" in line]
    assert [row[0] for row in rows] == ["geo", "plain"]
