"""Keys are placed where other programs place them; tools/placement_vectors asked these."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

import shardkit
from shardkit import ConfigError, ShardMap
from shardkit.routing.others import (
    NAMES,
    described_rule,
    rule_of,
)
from shardkit.routing.placement import placement, placement_of_all
from shardkit.testing import MemoryServers

VECTORS = {
    path.stem: json.loads(path.read_text("utf-8"))
    for path in sorted((Path(__file__).parent / "vectors").glob("*.json"))
}


def rule(case: dict[str, Any]) -> str:
    text = rule_of(case["placement"])
    assert isinstance(text, str)
    assert described_rule(text) == case["placement"] or set(case["placement"]) == {"name"}
    return text


@pytest.mark.parametrize("program", VECTORS)
def test_keys_are_placed_where_the_program_places_them(program: str) -> None:
    for case in VECTORS[program]["cases"]:
        place = placement(rule(case), case["shards"])
        places = zip(VECTORS[program]["keys"], case["places"], strict=True)
        expected = {key: shard for key, shard in places if shard is not None}
        found = {key: place(key) for key in expected}
        assert found == expected, (case["placement"], case["shards"])
        assert [place(key.encode()) for key in expected] == list(expected.values())
        place_all = placement_of_all(rule(case), case["shards"])
        assert place_all(list(expected)) == list(expected.values())


NAMED = '{"names":["a","b"]'


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("jedis {", "placement 'jedis': its options are not a JSON object; write"),
        ("jedis []", "its options are not a JSON object"),
        ("go-redis", "names=[]; give 2 different texts, shard 0's first"),
        ('go-redis {"names":["a"]}', "names=['a']; give 2 different texts"),
        ('go-redis {"names":["a","a"]}', "give 2 different texts"),
        (f'go-redis {NAMED},"weights":[1,2]}}', "it has no weights; leave weights out"),
        (f'jedis {NAMED},"weights":[1,0]}}', "weights=[1, 0]; give 2 integers, 1 to 1,000"),
        (f'jedis {NAMED},"weights":[1]}}', "weights=[1]; give 2 integers"),
        (f'jedis {NAMED},"hash":"sha1"}}', "hash='sha1'; use one of murmur, md5"),
        (f'twemproxy {NAMED},"distribution":"random"}}', "use one of ketama, modula"),
        (f'twemproxy {NAMED},"hash_tag":"{{"}}', "hash_tag='{'; give two ASCII characters"),
        (f'jedis {NAMED},"replicas":3}}', "unknown option 'replicas'; use some of hash, hash_tag"),
        ('codis {"slots":["0-511","512-1022"]}', "1 slots are missing; give 2 texts of ranges"),
        ('codis {"slots":["0-512","512-1023"]}', "slot 512 is given twice"),
        ('codis {"slots":["0-511","512-1024"]}', "slots '512-1024'; give 2 texts"),
        ("codis", "slots=None; give 2 texts"),
        (f'envoy {NAMED},"lb":"maglev","table_size":8}}', "table_size=8; give a prime number"),
        (f'envoy {NAMED},"minimum_ring_size":0}}', "minimum_ring_size=0; give 1 to 1,000,003"),
        ("jedi", "placement 'jedi' is unknown"),
    ],
)
def test_wrong_options_are_named(rule: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        placement(rule, 2)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    message = r"placement 'go-redis' needs xxhash; pip install shardkit\[placements\]"
    with pytest.raises(ConfigError, match=message):
        placement('go-redis {"names":["x","y"]}', 2)


def test_every_program_has_vectors() -> None:
    asked = {case["placement"]["name"] for each in VECTORS.values() for case in each["cases"]}
    assert asked | {"envoy"} == set(NAMES)


async def test_a_map_describes_placements_by_mappings_or_text() -> None:
    text = """
    components:
      one: {shards: [{port: 1}, {port: 2}], placement: {name: jedis, names: [a, b], hash: md5}}
      two: {shards: [{port: 3}, {port: 4}], placement: 'jedis {"hash":"md5","names":["a","b"]}'}
      by_hand: {shards: [{port: 5}, {port: 6}], placement: "whole:crc32"}
    """
    shard_map = ShardMap.parse(text)
    one, two = (shard_map.components[name] for name in ("one", "two"))
    assert one.placement == two.placement == 'jedis {"hash":"md5","names":["a","b"]}'
    again = ShardMap.parse(shard_map.to_yaml())
    assert again.components["one"].placement == one.placement
    assert "name: jedis" in shard_map.to_yaml()
    with pytest.raises(ConfigError, match=r"components.one.*names=\['a'\] \(give 2"):
        ShardMap.parse(text.replace("names: [a, b]", "names: [a]"))
    servers = MemoryServers(shard_map)
    keys = [f"{{cart:{n}}}:items" for n in range(100)]
    with shardkit.connect(shard_map, connector=servers) as kit:
        router = kit.key_sharded("by_hand")
        assert [router.shard_of(key) for key in keys] == [crc32(key.encode()) % 2 for key in keys]
        for key in keys:
            router[key].set(key, 1)
    async with await shardkit.aconnect(shard_map, connector=servers) as akit:
        arouter = akit.key_sharded("by_hand")
        assert [await arouter[key].get(key) for key in keys] == [b"1"] * 100
