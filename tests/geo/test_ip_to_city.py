"""Look-ups, bulk look-ups and the local copy, over one server and many, on both faces."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from ipaddress import ip_address
from random import Random
from typing import Any

import pytest
from faces import Face, clocked, holder, keys_of
from geo_helpers import (
    BONN,
    LIMA,
    OSLO,
    address_text,
    expected,
    ranges,
    some_ranges,
    telling_points,
)

from shardkit import ShardKit, ShardMap, connect
from shardkit.errors import DamagedDataError, StructureError
from shardkit.geo import City, IpRange, SkippedLine

COMPONENTS = ["one", "both"]


@pytest.fixture(params=COMPONENTS)
def ip(request: pytest.FixtureRequest, face: Face) -> Any:
    return face.kit.ip_to_city(component=request.param)


@pytest.fixture
def now() -> list[float]:
    """The time of a kit that asks for it, which a test sets."""
    return [1000.0]


@pytest.mark.parametrize("seed", range(2))
def test_random_ranges_are_as_brute_force_finds_them(face: Face, ip: Any, seed: int) -> None:
    random = Random(seed)
    items = some_ranges(random, 40)
    face.run(ip.import_from(items))
    points = list(telling_points(items, random))
    wanted = [expected(items, address_number) for address_number in points]
    assert face.run(ip.find_many(map(address_text, points))) == wanted
    assert face.run(ip.local()).find_many(map(address_text, points)) == wanted
    for address_number, place in list(zip(points, wanted, strict=True))[:20]:
        assert face.run(ip.find(address_text(address_number))) == place


def test_before_anything_is_imported_looking_up_says_so(face: Face, ip: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: ip.find("1.2.3.4"),
        lambda: ip.find_many(["1.2.3.4"]),
        ip.local,
    ]
    for call in calls:
        with pytest.raises(StructureError, match="no ranges were imported yet"):
            face.run(call())
    assert face.run(ip.info()) is None
    assert face.run(ip.delete()) is False


def test_a_crowded_bucket_is_found_in_pages(face: Face, kit: ShardKit) -> None:
    items = [IpRange(n, n, (BONN, OSLO, LIMA)[n % 3]) for n in range(8201)]
    ip = face.kit.ip_to_city(component="few")
    done = face.run(ip.import_from(items))
    assert done.blocks == 4
    number = done.generation
    assert {f"ip2city:{number}:4:0000{page}" for page in ("", ":0", ":1", ":2")} < keys_of(
        kit, "few"
    )
    asked = [0, 1, 4095, 4096, 8200, 65_000]
    wanted = [*((BONN, OSLO, LIMA)[n % 3] for n in asked[:-1]), None]
    assert [face.run(ip.find(address_text(n))) for n in asked] == wanted
    assert face.run(ip.find_many(map(address_text, asked))) == wanted
    assert face.run(ip.local()).find_many(map(address_text, asked)) == wanted
    assert face.run(ip.delete()) is True
    assert keys_of(kit, "few") == set()


def test_more_cities_than_a_process_keeps_are_found(face: Face) -> None:
    count = 10_500
    items = [IpRange(n << 8, (n << 8) + 9, City(f"C{n}", "", "")) for n in range(count)]
    ip = face.kit.ip_to_city(component="many")
    face.run(ip.import_from(items))
    asked = [address_text(n << 8) for n in range(count)]
    for _ in range(2):
        found = face.run(ip.find_many(asked))
        assert [place.city for place in found] == [f"C{n}" for n in range(count)]


def test_cities_may_come_first_and_be_named_by_their_ids(face: Face, ip: Any) -> None:
    items: list[Any] = [
        City("Bonn", "NW", "DE", 7),
        City("Bonn again", "NW", "DE", 7),
        City("nowhere", "", ""),
        IpRange.of("1.0.0.0/24", city=7),
        IpRange(1 << 24 | 256, 1 << 24 | 511, 8, line=12, source="blocks.csv"),
        SkippedLine(13, "is garbage", "blocks.csv"),
    ]
    done = face.run(ip.import_from(items))
    assert (done.ranges, done.cities, done.skipped) == (1, 1, 3)
    assert [str(skipped) for skipped in done.first_skipped] == [
        "line 0: 'nowhere' has no id that a range could refer to",
        "blocks.csv, line 12: no city has the id 8",
        "blocks.csv, line 13: is garbage",
    ]
    assert face.run(ip.find("1.0.0.1")) == City("Bonn", "NW", "DE", 7)
    assert face.run(ip.find("1.0.1.1")) is None


def test_a_local_copy_is_loaded_again_only_if_there_is_new_data(face: Face, ip: Any) -> None:
    face.run(ip.import_from(ranges(("1.0.0.0/24", BONN))))
    copy = face.run(ip.local())
    assert face.run(ip.local(copy)) is copy
    face.run(ip.import_from(ranges(("1.0.0.0/24", OSLO))))
    new = face.run(ip.local(copy))
    assert (copy.find("1.0.0.1"), new.find("1.0.0.1")) == (BONN, OSLO)
    assert new.generation == face.run(ip.info())
    assert pickle.loads(pickle.dumps(new)).find("1.0.0.1") == OSLO
    assert 0 < new.memory() < 700_000
    assert len(new) == 1


def test_what_there_was_nothing_of_is_found_once_it_is_imported(
    kit: ShardKit, now: list[float]
) -> None:
    kit = clocked(kit, now=lambda: now[0])
    reader, writer = (kit.ip_to_city(component="many") for _ in range(2))
    writer.import_from(ranges(("1.0.0.0/24", BONN)))
    assert reader.find_many(["2001:db8::1", "9.9.9.9"]) == [None, None]
    for _ in range(3):
        now[0] += 2
        assert reader.find("2001:db8::1") is None
        assert reader.find("9.9.9.9") is None
    writer.import_from(ranges(("2001:db8::/32", OSLO), ("9.9.0.0/16", LIMA)))
    now[0] += 2
    assert reader.find("2001:db8::1") == OSLO
    assert reader.find("9.9.9.9") == LIMA


@pytest.mark.parametrize(
    ("lost", "key", "found"),
    [
        ("keys:0", "keys:0", "3 bytes"),
        ("4:0002", "4:0002", "nothing"),
        ("4:0001", "4:0001", "a block of ranges (3 bytes) cannot be read"),
        ("4:0000", "4:0000", "a value of another type"),
        ("cities:0", "cities:0", "nothing"),
        ("cities:0", "cities:0", "a value of another type"),
    ],
)
def test_a_check_names_what_is_lost_or_damaged_and_an_import_replaces_it(
    face: Face,
    kit: ShardKit,
    lost: str,
    key: str,
    found: str,
) -> None:
    items = [IpRange(n << 16, (n << 16) + 9, (BONN, OSLO)[n % 2]) for n in range(4)]
    ip = face.kit.ip_to_city(component="many")
    number = face.run(ip.import_from(items)).generation
    assert face.list(ip.check()) == []
    damaged = f"ip2city:{number}:{lost}"
    client = holder(kit, "many", damaged)
    if "3 bytes" in found:
        client.set(damaged, b"\0\0\0")
    else:
        assert client.delete(damaged)
        if "type" in found:
            client.rpush(damaged, "x")
    assert "import_from() replaces everything" in {
        each.repair
        for each in face.list(ip.check())
        if each.key == f"ip2city:{number}:{key}" and each.found.startswith(found)
    }
    face.run(ip.import_from(items))
    assert face.list(ip.check()) == []


def test_a_deletion_finds_what_no_list_names_on_all_nodes_of_a_cluster(
    cluster_map: ShardMap,
) -> None:
    with connect(cluster_map) as kit:
        ip = kit.ip_to_city(component="cluster")
        ip.import_from(IpRange(n << 16, (n << 16) + 9, BONN) for n in range(40))
        client: Any = kit.client("cluster")
        client.delete("ip2city:generations")
        assert ip.delete() is True
        assert list(client.scan_iter()) == []


@pytest.mark.parametrize(
    ("at", "byte", "found"),
    [
        (0, 1, "39 bytes"),  # a level without blocks
        (5, 2, "block 1 of level 0 after 2"),
        (18, 0, "block 0 of level 0 after 0"),
        (33, 1, "block 10002 of level 0 after 1"),
        (17, 0, "block 1 of level 0 after 0"),  # a page that there cannot be
        (None, 0, "0 bytes"),
    ],
)
def test_a_list_that_was_not_written_so_is_named_rather_than_its_blocks(
    face: Face, kit: ShardKit, at: int | None, byte: int, found: str
) -> None:
    items = [IpRange(n << 16, (n << 16) + 9, BONN) for n in range(3)]
    ip = face.kit.ip_to_city(component="one")
    key = f"ip2city:{face.run(ip.import_from(items)).generation}:keys:0"
    client: Any = kit.client("one")
    stored = bytearray(client.get(key))
    if at is None:
        stored.clear()
    else:
        stored[at] = byte
    client.set(key, bytes(stored))
    with pytest.raises(DamagedDataError, match=rf"{key} is damaged: {found}, where a list"):
        face.run(ip.local())
    assert next(iter(face.list(ip.check()))).key == key
    assert face.run(ip.delete()) is True


def test_a_removal_elsewhere_is_noticed_and_a_reader_gives_up_after_some_changes(
    kit: ShardKit, now: list[float]
) -> None:
    kit = clocked(kit, now=lambda: now[0])
    reader, writer = (kit.ip_to_city(component="many") for _ in range(2))
    writer.import_from(ranges(("1.0.0.0/24", BONN)))
    steps = reader.deferred.find("1.0.0.1")
    imports, answer = 0, None

    def overtaken() -> Any:
        """Import again between any two exchanges of the look-up, a minute later each time."""
        nonlocal imports, answer
        while True:
            batch = steps.send(answer)
            answer = yield batch
            writer.import_from(ranges(("1.0.0.0/24", BONN)))
            imports += 1
            now[0] += 60

    with pytest.raises(StructureError, match="new data was imported 5 times while addresses"):
        kit.driver.run(overtaken())
    assert imports >= 5
    assert reader.find("1.0.0.1") == BONN
    assert writer.delete() is True
    now[0] += 60
    with pytest.raises(StructureError, match="no ranges were imported yet"):
        reader.find("1.0.0.1")


def test_who_was_suspended_while_a_generation_expired_looks_again(
    kit: ShardKit, now: list[float]
) -> None:
    kit = clocked(kit, now=lambda: now[0])
    reader, writer = (kit.ip_to_city(component="one") for _ in range(2))
    old = writer.import_from(ranges(("1.0.0.0/24", BONN))).generation
    assert reader.find("9.9.9.9") is None
    steps = reader.deferred.find("1.0.0.1")

    def suspended() -> Any:
        """Sleep between the block, which names a city, and the city."""
        batch = steps.send(None)
        batch = steps.send((yield batch))
        writer.import_from(ranges(("1.0.0.0/24", OSLO)))
        kit.client("one").delete(f"ip2city:{old}:cities:0")
        now[0] += 60
        while True:
            try:
                batch = steps.send((yield batch))
            except StopIteration as done:
                return done.value

    assert kit.driver.run(suspended()) == OSLO


@pytest.mark.parametrize(
    ("field", "stored", "found"),
    [
        ("number", "x", "number=b'x'"),
        ("number", "1" * 20, f"number={b'1' * 20!r}"),
        ("current", "x", "current=b'x'"),
        ("retired:x", "7", "number=b'x'"),
    ],
)
def test_an_import_repairs_the_record_of_generations(
    face: Face, kit: ShardKit, field: str, stored: str, found: str
) -> None:
    ip = face.kit.ip_to_city(component="one")
    old = face.run(ip.import_from(ranges(("1.0.0.0/24", BONN)))).generation
    client: Any = kit.client("one")
    client.hset("ip2city:generations", field, stored)
    [damaged] = face.list(ip.check())
    assert damaged.found == found
    assert damaged.repair == "import_from() replaces everything"
    new = face.run(ip.import_from(ranges(("1.0.0.0/24", OSLO)))).generation
    assert new > old
    assert face.list(ip.check()) == []
    assert face.run(ip.find("1.0.0.1")) == OSLO
    assert face.run(ip.delete()) is True


CITIES = [City("DE", "NW", "Bonn"), City("FR", "", "Paris")]
FIRST = int(ip_address("1.0.0.0"))
ENTRIES_A_PAGE = 4096
IN_PAGE_2 = str(ip_address(FIRST + 2 * ENTRIES_A_PAGE + 5))
RANGES = [IpRange(FIRST + n, FIRST + n, CITIES[n % 2]) for n in range(3 * ENTRIES_A_PAGE)]


@pytest.mark.parametrize("page_is_lost", [True, False])
def test_a_look_up_names_the_list_or_the_page(
    face: Face, kit: ShardKit, page_is_lost: bool
) -> None:
    ip = face.kit.ip_to_city(component="one")
    face.run(ip.import_from(RANGES))
    assert face.run(ip.find(IN_PAGE_2)) == CITIES[1]
    client = holder(kit, "one", "x")
    listing = min((key.decode() for key in client.scan_iter("*:4:0100*")), key=len)
    if page_is_lost:
        damaged = f"{listing}:2"
        client.delete(damaged)
    else:
        damaged = listing
        client.set(listing, b"\1" + bytes(4000))
    with pytest.raises(DamagedDataError) as raised:
        face.run(ip.find(IN_PAGE_2))
    assert raised.value.key == damaged
    assert damaged in [found.key for found in face.list(ip.check())]


@pytest.mark.parametrize("content", [b"", b"\2", b"\0\0", b"\0" * 8, b"\0" * 9, b"garbage"])
def test_bytes_that_are_no_block_are_named(face: Face, kit: ShardKit, content: bytes) -> None:
    ip = face.kit.ip_to_city(component="one")
    face.run(ip.import_from(ranges(("1.0.0.0/24", BONN))))
    client = holder(kit, "one", "x")
    [block] = client.scan_iter("*:4:0100*")
    client.set(block, content)
    with pytest.raises(DamagedDataError, match=r"cannot be read") as raised:
        face.run(ip.find("1.0.0.1"))
    assert raised.value.key == block.decode()
