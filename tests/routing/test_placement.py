"""Placement keeps its promise: the vectors of docs/placement-vectors.json and of other programs.

tools/placement_vectors asked these. And keys as bytes, and the parts of structures.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, strategies as st

import shardkit
from shardkit import ShardMap
from shardkit.errors import ConfigError, InvalidArgumentError, InvalidKeyError, RoutingError
from shardkit.routing.keys import hash_tag, hashed_parts, key_bytes, pair_key, text
from shardkit.routing.others import NAMES as PROGRAM_NAMES, described_rule, rule_of
from shardkit.routing.placement import (
    CRCS,
    PARTITIONS,
    SLOTS,
    part_count,
    partition,
    placement,
    placement_of_all,
    slot_of,
    slot_ranges,
)
from shardkit.testing import MemoryServers

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "placement-specification.md").read_text(encoding="utf-8")
VECTORS = json.loads((DOCS / "placement-vectors.json").read_text(encoding="utf-8"))
NAMES = ["crc32", "slot", "rendezvous", "redis-in-action", *sorted(f"crc:{crc}" for crc in CRCS)]

counts = st.integers(1, 300)
sizes = st.integers(1, 2**40)
LONG = 10**5000  # more digits than Python writes
keys = st.one_of(st.text(), st.binary(), st.integers())


def vectors(name: str) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = VECTORS[name]
    assert rows, name
    return rows


def value(written: str) -> str | bytes | int:
    """A key as the vectors write it."""
    if written.startswith("hex "):
        return bytes.fromhex(written.removeprefix("hex "))
    read: str | int = json.loads(written)
    return read


def test_keys_become_the_bytes_of_the_page() -> None:
    for row in vectors("keys"):
        sent, hashed = (bytes.fromhex(row[name].replace("-", "")) for name in ("sent", "hashed"))
        assert key_bytes(value(row["key"])) == sent
        assert hash_tag(sent) == hashed


def test_keys_are_placed_as_on_the_page() -> None:
    for row in vectors("placements"):
        for head, shard in row.items():
            if head != "key":
                name, count = head.split()
                assert placement(name, int(count))(value(row["key"])) == int(shard), (row, head)


def test_the_hashes_of_the_page_lead_to_its_shards() -> None:
    hashes = {row["key"]: row for row in vectors("hashes")}
    for row in vectors("placements"):
        found = hashes[row["key"]]
        assert int(found["CRC-32"], 16) % 256 == int(row["crc32 256"])
        assert int(found["CRC-64/jones"], 16) % 16 == int(row["crc:crc-64-jones 16"])
        assert slot_of(value(row["key"])) == int(found["slot"])
        weights = [mix(int(found["BLAKE2b-64"], 16) ^ mix(n + 1)) for n in range(16)]
        assert weights.index(max(weights)) == int(row["rendezvous 16"])
        assert bitwise(vectors_of_crc("crc:crc-32"), b"x" + key_bytes(value(row["key"]))) % 16 == (
            int(row["redis-in-action 16"])
        )


def test_the_weights_of_the_page_are_those_of_its_formula() -> None:
    [h] = re.findall(r"`h` is `([0-9a-f]{16})`", PAGE)
    [zero] = re.findall(r"`mix\(0\)` is `([0-9a-f]{16})`", PAGE)
    assert mix(0) == int(zero, 16)
    weights = []
    for row in vectors("weights"):
        assert mix(int(row["shard n"]) + 1) == int(row["mix(n + 1)"], 16)
        weights.append(int(row["weight"], 16))
        assert mix(int(h, 16) ^ mix(int(row["shard n"]) + 1)) == weights[-1]
    assert weights.index(max(weights)) == placement("rendezvous", 4)("home:1") == 2


def mix(z: int) -> int:
    """As the page writes it."""
    wrap = 2**64 - 1
    z = (z + 0x9E3779B97F4A7C15) & wrap
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & wrap
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & wrap
    return z ^ (z >> 31)


def vectors_of_crc(name: str) -> dict[str, str]:
    [row] = [row for row in vectors("crcs") if row["placement"] == name]
    return row


def bitwise(row: dict[str, str], data: bytes) -> int:
    """A CRC by the parameters of the page, a bit at a time."""
    bits = int(row["bits"])
    reflected = row["reflected"] == "yes"
    polynomial, crc, last = (
        int(row[name], 16) for name in ("polynomial", "start", "xor at the end")
    )
    for byte in data:
        crc ^= (int(f"{byte:08b}"[::-1], 2) if reflected else byte) << (bits - 8)
        for _ in range(8):
            crc = (crc << 1) ^ (polynomial if crc >> (bits - 1) & 1 else 0)
            crc &= (1 << bits) - 1
    return (int(f"{crc:0{bits}b}"[::-1], 2) if reflected else crc) ^ last


def test_the_page_describes_every_crc_so_that_it_can_be_written_in_any_language() -> None:
    rows = vectors("crcs")
    assert {row["placement"] for row in rows} == {f"crc:{name}" for name in CRCS}
    for row in rows:
        check = int(row["123456789"], 16)
        assert bitwise(row, b"123456789") == check
        assert placement(row["placement"], 2**64)(b"123456789") == check
        for data in (b"", b"home:1", bytes(range(128, 256))):
            assert placement(row["placement"], 2**64)(data) == bitwise(row, data), row


def test_slots_are_dealt_as_on_the_page() -> None:
    for row in vectors("ranges"):
        ranges = slot_ranges(int(row["shards"]))
        assert [slots.start for slots in ranges] == list(
            map(int, row["first slot of each"].split())
        )


def test_pairs_are_placed_as_on_the_page() -> None:
    for row in vectors("pairs"):
        first, second = json.loads(row["ids"])
        assert pair_key(first, second) == row["key"].encode()
        for rule in ("crc32", "redis-in-action"):
            assert placement(rule, 16)(pair_key(first, second)) == int(row[f"{rule} 16"])


def test_members_are_partitioned_as_on_the_page() -> None:
    for row in vectors("parts"):
        for name in PARTITIONS:
            part = partition(name, int(row["total"]), int(row["part_size"]))
            assert part(value(row["member"])) == int(row[name]), (row, name)


@pytest.mark.parametrize(
    ("key", "count", "shard"),
    [
        ("home:1", 8, 7),
        ("home:2", 8, 5),
        ("home:10", 8, 4),
        ("profile:1", 8, 6),
        ("550e8400-e29b-41d4-a716-446655440000", 16, 12),
        (pair_key(1, 2), 16, 1),
        (pair_key(2, 1), 16, 1),
        (pair_key(7, 10), 16, 3),
        (pair_key("10", "7"), 16, 3),
        (pair_key(10, 10), 16, 0),
    ],
)
def test_data_placed_by_the_source_of_redis_in_action_is_found(
    key: str | bytes, count: int, shard: int
) -> None:
    assert placement("redis-in-action", count)(key) == shard


@given(st.sampled_from(NAMES), counts, st.integers())
def test_every_spelling_of_a_key_is_placed_alike(name: str, count: int, key: int) -> None:
    place = placement(name, count)
    assert place(key) == place(str(key)) == place(str(key).encode())


@given(st.sampled_from([n for n in NAMES if n != "redis-in-action"]), counts, st.binary())
def test_a_tag_decides_alone(name: str, count: int, key: bytes) -> None:
    assert placement(name, count)(b"a{tag}" + key) == placement(name, count)(b"tag")


@given(st.integers(1, 40), keys)
def test_with_one_shard_more_rendezvous_moves_keys_to_it_only(
    count: int, key: str | bytes | int
) -> None:
    after = placement("rendezvous", count + 1)(key)
    assert after in (placement("rendezvous", count)(key), count)


@pytest.mark.parametrize("name", ["crc32", "slot", "rendezvous", "redis-in-action"])
def test_keys_are_spread_evenly(name: str) -> None:
    spread = Counter(placement(name, 16)(f"user:{n}") for n in range(16_000))
    assert len(spread) == 16
    assert max(spread.values()) < 1200


@pytest.mark.parametrize("value", [True, None, 1.0, (), ["a"], {}, object(), 1j, "\ud800"])
def test_what_is_no_key_is_neither_placed_nor_a_member(value: Any) -> None:
    match = rf"{type(value).__name__}.*give a str, bytes or an int|cannot be encoded as UTF-8"
    uses = [placement(name, 4) for name in NAMES]
    uses += [partition(name, 2000, 50) for name in PARTITIONS]
    for use in uses:
        with pytest.raises(InvalidKeyError, match=match) as caught:
            use(value)
        assert isinstance(caught.value, TypeError)
        assert isinstance(caught.value, RoutingError)
        assert caught.value.remedy


@pytest.mark.parametrize(
    "name", ["", "md5", "CRC32", "crc", "crc:", "crc:md5", "crc:CRC-32", "crc:crc32", "crc:crc-32 "]
)
def test_an_unknown_placement_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        placement(name, 4)
    assert repr(name) in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("count", [0, -1, 16.0, True, None, "16"])
def test_a_count_that_is_none_is_refused(count: object) -> None:
    assert placement("crc32", 16)("a") in range(16)  # cached under an equal count
    assert placement("crc32", 1)("a") == 0
    with pytest.raises(ConfigError, match="shards"):
        placement("crc32", count)  # type: ignore[arg-type]


def test_there_are_no_more_shards_than_slots() -> None:
    assert placement("slot", SLOTS)("foo") == slot_of("foo") == 12182
    with pytest.raises(ConfigError, match="16385"):
        placement("slot", SLOTS + 1)


def dealt_by_redis_cli(count: int) -> list[range]:
    """What clusterManagerCommandCreate of redis-cli computes, in its single precision."""

    def single(number: float) -> float:
        rounded: float = struct.unpack("f", struct.pack("f", number))[0]
        return rounded

    each, cursor, first, ranges = single(SLOTS / count), 0.0, 0, []
    for n in range(count):
        last = int(single(single(cursor + each) - 1) + 0.5) if n < count - 1 else SLOTS - 1
        ranges.append(range(first, last + 1))
        first, cursor = last + 1, single(cursor + each)
    return ranges


def test_redis_cli_deals_the_same_ranges_to_up_to_77_masters_and_to_powers_of_two() -> None:
    for count in [*range(1, 78), 128, 256, 512, 1024]:
        assert slot_ranges(count) == dealt_by_redis_cli(count)
    assert slot_ranges(78) != dealt_by_redis_cli(78)
    for count in range(78, 400):
        pairs = zip(slot_ranges(count), dealt_by_redis_cli(count), strict=True)
        assert max(abs(ours.start - theirs.start) for ours, theirs in pairs) <= 1


@pytest.mark.parametrize("key", ["\ud800", "a\udfff", "\udc80:b"])
def test_text_with_lone_surrogates_is_no_key(key: str) -> None:
    with pytest.raises(InvalidKeyError, match="UTF-8") as caught:
        key_bytes(key)
    str(caught.value).encode()  # the message can be printed
    with pytest.raises(InvalidKeyError, match="UTF-8"):
        hashed_parts(["a", key, "b"])


@pytest.mark.parametrize("number", [LONG, -LONG], ids=["positive", "negative"])
def test_an_integer_that_python_does_not_write_is_no_key(number: int) -> None:
    with pytest.raises(InvalidKeyError, match="bits"):
        key_bytes(number)
    with pytest.raises(InvalidKeyError, match="bits"):
        pair_key(number, 1)
    with pytest.raises(InvalidKeyError, match="bits"):
        pair_key(1, number)


NO_IDS = [
    "",
    "-",
    "a",
    "1.0",
    "1e3",
    " 1",
    "1 ",
    "1\n",
    "+1",
    "--1",
    "1_0",
    "0x1",
    "²",
    "\u0661",
    b"\xff",
]


@pytest.mark.parametrize("other", [*NO_IDS, "1" * 5000], ids=lambda other: repr(other)[:9])
def test_an_id_must_be_an_integer_that_python_reads(other: str | bytes) -> None:
    for pair in (other, 1), (1, other):
        with pytest.raises(InvalidKeyError, match="not an integer"):
            pair_key(*pair)


@given(st.text())
def test_a_key_as_text_is_the_same_in_every_spelling(key: str) -> None:
    assert text(key) == text(key.encode()) == key


def test_bytes_that_are_not_utf8_are_no_text() -> None:
    assert text(42) == "42"
    with pytest.raises(InvalidKeyError, match="not UTF-8"):
        text(b"\xff")


@given(st.sampled_from(PARTITIONS), sizes, sizes, st.integers())
def test_an_integer_its_digits_and_their_bytes_have_one_part(
    name: str, total: int, part_size: int, member: int
) -> None:
    part = partition(name, total, part_size)
    assert part(member) == part(str(member)) == part(str(member).encode())


@pytest.mark.parametrize("member", [-5, "-5", "²", "\u0661", "1 ", "", "1.0", "4a", b"\xff"])
def test_what_is_not_ascii_digits_alone_is_hashed(member: str | bytes | int) -> None:
    data = member if isinstance(member, bytes) else str(member).encode()
    assert partition("digits", 2000, 50)(member) == crc32(data) % 80


def test_leading_zeros_do_not_change_a_part() -> None:
    part = partition("digits", 2000, 5)
    assert part("010") == part("10") == part(10) == 2


@pytest.mark.parametrize("value", [0, -1, True, None, 1.5, "12"])
def test_totals_and_sizes_that_are_no_positive_integers_are_refused(value: object) -> None:
    with pytest.raises(InvalidArgumentError, match="total="):
        part_count(value, 1)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="part_size="):
        partition("crc32", 1, value)  # type: ignore[arg-type]


def test_an_unknown_partition_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidArgumentError, match=r"md5.*digits"):
        partition("md5", 1, 1)


PROGRAMS = {
    path.stem: json.loads(path.read_text("utf-8"))
    for path in sorted((Path(__file__).parent / "vectors").glob("*.json"))
}


def rule(case: dict[str, Any]) -> str:
    known = rule_of(case["placement"])
    assert isinstance(known, str)
    assert described_rule(known) == case["placement"] or set(case["placement"]) == {"name"}
    return known


@pytest.mark.parametrize("program", PROGRAMS)
def test_keys_are_placed_where_the_program_places_them(program: str) -> None:
    for case in PROGRAMS[program]["cases"]:
        place = placement(rule(case), case["shards"])
        places = zip(PROGRAMS[program]["keys"], case["places"], strict=True)
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
    asked = {case["placement"]["name"] for each in PROGRAMS.values() for case in each["cases"]}
    assert asked | {"envoy"} == set(PROGRAM_NAMES)


async def test_a_map_describes_placements_by_mappings_or_text() -> None:
    written = """
    components:
      one: {shards: [{port: 1}, {port: 2}], placement: {name: jedis, names: [a, b], hash: md5}}
      two: {shards: [{port: 3}, {port: 4}], placement: 'jedis {"hash":"md5","names":["a","b"]}'}
      by_hand: {shards: [{port: 5}, {port: 6}], placement: "whole:crc32"}
    """
    shard_map = ShardMap.parse(written)
    one, two = (shard_map.components[name] for name in ("one", "two"))
    assert one.placement == two.placement == 'jedis {"hash":"md5","names":["a","b"]}'
    again = ShardMap.parse(shard_map.to_yaml())
    assert again.components["one"].placement == one.placement
    assert "name: jedis" in shard_map.to_yaml()
    with pytest.raises(ConfigError, match=r"components.one.*names=\['a'\] \(give 2"):
        ShardMap.parse(written.replace("names: [a, b]", "names: [a]"))
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
