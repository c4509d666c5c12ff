"""Placement keeps its promise: each of docs/placement-vectors.json, a real server."""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from shardkit.errors import ConfigError, InvalidKeyError
from shardkit.routing.keys import hash_tag, key_bytes, pair_key
from shardkit.routing.placement import (
    CRCS,
    PARTITIONS,
    SLOTS,
    partition,
    placement,
    slot_of,
    slot_ranges,
)

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "placement-specification.md").read_text(encoding="utf-8")
VECTORS = json.loads((DOCS / "placement-vectors.json").read_text(encoding="utf-8"))
NAMES = ["crc32", "slot", "rendezvous", "redis-in-action", *sorted(f"crc:{crc}" for crc in CRCS)]

counts = st.integers(1, 300)
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


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", [None, True, 1.5, "\ud800"])
def test_what_is_no_key_is_not_placed(name: str, key: object) -> None:
    with pytest.raises(
        InvalidKeyError, match=r"give a str, bytes or an int|cannot be encoded as UTF-8"
    ):
        placement(name, 4)(key)  # type: ignore[arg-type]


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
