"""Look-ups, bulk look-ups and the local copy, over one server and many, on both faces."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from ipaddress import ip_address
from random import Random
from typing import Any

import pytest
from faces import Face, keys_of
from geo_helpers import BONN, LIMA, OSLO, expected, ranges, some_ranges, telling_points

from shardkit import ShardKit
from shardkit.errors import DamagedDataError, InvalidArgumentError, StructureError
from shardkit.geo.addresses import address_text
from shardkit.geo.blocks import ENTRIES_A_PAGE
from shardkit.geo.models import City, IpRange, Item, SkippedLine
from shardkit.geo.view_cache import CACHED_CITIES

COMPONENTS = ["one", "many", "both"]


@pytest.fixture(params=COMPONENTS)
def ip(request: pytest.FixtureRequest, face: Face) -> Any:
    return face.kit.ip_to_city(component=request.param)


def test_addresses_are_found_with_the_ends_of_ranges_and_gaps(face: Face, ip: Any) -> None:
    items = ranges(
        ("1.0.0.0/24", BONN),
        ("1.0.1.0-1.0.1.9", OSLO),
        ("1.0.255.0-1.2.0.255", LIMA),  # over the borders of two /16
        ("2001:db8::/33", OSLO),
        ("255.255.255.255-255.255.255.255", BONN),
    )
    done = face.run(ip.import_from(items))
    assert (done.ranges, done.cities, done.skipped) == (5, 3, 0)
    places = {
        "0.255.255.255": None,
        "1.0.0.0": BONN,
        "1.0.0.255": BONN,
        "1.0.1.0": OSLO,
        "1.0.1.9": OSLO,
        "1.0.1.10": None,
        "1.0.254.255": None,
        "1.0.255.0": LIMA,
        "1.1.7.7": LIMA,
        "1.2.0.255": LIMA,
        "1.2.1.0": None,
        "9.9.9.9": None,
        "2001:db8::1": OSLO,
        "2001:db8:7fff:ffff:ffff:ffff:ffff:ffff": OSLO,
        "2001:db8:8000::": None,
        "::": None,
        "::1.0.0.1": None,
        "::ffff:1.0.0.1": BONN,
        "255.255.255.255": BONN,
        "255.255.255.254": None,
    }
    assert {text: face.run(ip.find(text)) for text in places} == places
    assert face.run(ip.find_many(iter(places))) == list(places.values())
    assert face.run(ip.find_many([text.encode() for text in places])) == list(places.values())
    assert face.run(ip.find_many(map(ip_address, places))) == list(places.values())
    copy = face.run(ip.local())
    assert copy.find_many(places) == list(places.values())
    assert face.run(ip.find_many([])) == []


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


@pytest.mark.parametrize("wrong", ["1.2.3", "999.2.3.4", "", None, 16909060])
def test_what_is_no_address_is_refused_before_anything_is_asked(face: Face, wrong: Any) -> None:
    ip = face.kit.ip_to_city(component="few")
    calls: list[Callable[[], Any]] = [
        lambda: ip.find(wrong),
        lambda: ip.find_many(["1.2.3.4", wrong]),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match="is not an IP address"):
            face.run(call())
    face.run(ip.import_from(ranges(("1.0.0.0/24", BONN))))
    with pytest.raises(InvalidArgumentError, match="is not an IP address"):
        face.run(ip.local()).find(wrong)


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
    items = [IpRange(n, n, (BONN, OSLO, LIMA)[n % 3]) for n in range(2 * ENTRIES_A_PAGE + 9)]
    ip = face.kit.ip_to_city(component="few")
    done = face.run(ip.import_from(items))
    assert done.blocks == 4
    number = done.generation
    assert {f"ip2city:{number}:4:0000{page}" for page in ("", ":0", ":1", ":2")} < keys_of(
        kit, "few"
    )
    asked = [0, 1, ENTRIES_A_PAGE - 1, ENTRIES_A_PAGE, 2 * ENTRIES_A_PAGE + 8, 65_000]
    wanted = [*((BONN, OSLO, LIMA)[n % 3] for n in asked[:-1]), None]
    assert [face.run(ip.find(address_text(n))) for n in asked] == wanted
    assert face.run(ip.find_many(map(address_text, asked))) == wanted
    assert face.run(ip.local()).find_many(map(address_text, asked)) == wanted
    assert face.run(ip.delete()) is True
    assert keys_of(kit, "few") == set()


def test_more_cities_than_a_process_keeps_are_found(face: Face) -> None:
    count = CACHED_CITIES + 500
    items = [IpRange(n << 8, (n << 8) + 9, City(f"C{n}", "", "")) for n in range(count)]
    ip = face.kit.ip_to_city(component="many")
    face.run(ip.import_from(items))
    asked = [address_text(n << 8) for n in range(count)]
    for _ in range(2):
        found = face.run(ip.find_many(asked))
        assert [place.city for place in found] == [f"C{n}" for n in range(count)]


def test_cities_may_come_first_and_be_named_by_their_ids(face: Face, ip: Any) -> None:
    items: list[Item] = [
        City("Bonn", "NW", "DE", 7),
        City("Bonn again", "NW", "DE", 7),
        City("nowhere", "", ""),
        IpRange.of("1.0.0.0/24", city=7),
        IpRange.of("1.0.1.0/24", city=8)._replace(line=12, source="blocks.csv"),
        SkippedLine(13, "is garbage", "blocks.csv"),
    ]
    done = face.run(ip.import_from(items))
    assert (done.ranges, done.cities, done.skipped) == (1, 1, 3)
    assert [str(skipped) for skipped in done.first_skipped] == [
        "line 0: 'nowhere' has no id that a range could name",
        "blocks.csv, line 12: no city has the id 8",
        "blocks.csv, line 13: is garbage",
    ]
    assert face.run(ip.find("1.0.0.1")) == City("Bonn", "NW", "DE", 7)
    assert face.run(ip.find("1.0.1.1")) is None


def test_a_city_that_was_lost_is_said_to_be(face: Face, kit: ShardKit) -> None:
    ip = face.kit.ip_to_city(component="one")
    done = face.run(ip.import_from(ranges(("1.0.0.0/24", BONN))))
    client = kit.client("one")
    assert client.delete(f"ip2city:{done.generation}:cities:0")
    with pytest.raises(DamagedDataError, match="cities:0 is damaged: nothing, where city 0"):
        face.run(ip.find("1.0.0.1"))
    assert face.run(ip.find("1.0.1.1")) is None
    with pytest.raises(StructureError, match="are missing"):
        face.run(ip.local())


def test_any_text_is_a_name(face: Face, ip: Any) -> None:
    place = City('Sant Julià de Lòria "x"', "北京", "", "an id")
    face.run(ip.import_from([IpRange.of("1.0.0.0/24", city=place)]))
    assert face.run(ip.find("1.0.0.1")) == place


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


def test_structures_of_other_names_do_not_mix(face: Face) -> None:
    one, other = (face.kit.ip_to_city(name, component="few") for name in ("one", "other"))
    face.run(one.import_from(ranges(("1.0.0.0/24", BONN))))
    face.run(other.import_from(ranges(("1.0.0.0/24", OSLO))))
    assert face.run(one.delete())
    assert face.run(other.find("1.0.0.1")) == OSLO
    with pytest.raises(StructureError, match="one: no ranges were imported yet"):
        face.run(one.find("1.0.0.1"))


def test_many_look_ups_together_are_one_exchange(kit: ShardKit) -> None:
    ip = kit.ip_to_city(component="many")
    ip.import_from(ranges(("1.0.0.0/24", BONN), ("2.0.0.0/24", OSLO)))
    finds = (ip.deferred.find(address) for address in ("1.0.0.1", "2.0.0.1", "3.0.0.1"))
    assert kit.together(*finds) == [BONN, OSLO, None]


def test_a_look_up_is_one_exchange_and_asks_for_the_generation_once_a_second(
    kit: ShardKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(kit._clock, "_fixed", lambda: now[0])
    ip = kit.ip_to_city(component="many")
    ip.import_from(ranges(("1.0.0.0/24", BONN)))

    def exchanges() -> list[list[str]]:
        """The commands of each exchange of a look-up."""
        steps = ip.deferred.find("1.0.0.1")
        sent: list[list[str]] = []
        answer: Any = None
        while True:
            try:
                batch: Any = steps.send(answer)
            except StopIteration:
                return sent
            sent.append([command.name for command in batch])
            answer = kit.plane.links[True].send(batch)

    exchanges()
    assert exchanges() == [["GET"]]
    now[0] += 0.9
    assert exchanges() == [["GET"]]
    now[0] += 0.2
    assert exchanges() == [["HGET", "GET"]]
    assert exchanges() == [["GET"]]


def test_what_there_was_nothing_of_is_found_once_it_is_imported(
    kit: ShardKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(kit._clock, "_fixed", lambda: now[0])
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


def test_a_slow_server_is_not_taken_for_new_data(
    kit: ShardKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(10**6))  # every look at the clock is a second later
    monkeypatch.setattr(kit._clock, "_fixed", lambda: float(next(seconds)))
    ip = kit.ip_to_city(component="many")
    ip.import_from(ranges(("1.0.0.0/24", BONN)))
    assert ip.find_many(["1.0.0.1", "1.0.1.1", "9.9.9.9", "::1"]) == [BONN, None, None, None]
    assert [ip.find(address) for address in ("::1", "9.9.9.9", "1.0.0.1")] == [None, None, BONN]
