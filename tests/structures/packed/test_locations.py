"""Locations: country and region in two bytes, by user."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from importlib.resources import files
from random import Random
from typing import Any

import pycountry
import pytest
from faces import Face, holder, keys_of

from shardkit import ShardKit
from shardkit.errors import InvalidArgumentError, ParameterMismatchError
from shardkit.structures import Location, LocationCounts
from shardkit.structures.packed.locations import decode, encode, location_codes

VECTORS = [
    ("USA", "CA", (235, 9)),
    ("CAN", "ON", (40, 9)),
    ("ABW", None, (1, 0)),
    ("ZWE", None, (249, 0)),
    (None, None, (0, 0)),
]


@pytest.fixture(params=["one", "many", "few", "both"])
def places(request: pytest.FixtureRequest, face: Face) -> Any:
    return face.kit.locations(component=request.param)


@pytest.mark.parametrize(("country", "region", "code"), VECTORS)
def test_codes_match_the_spec(
    country: str | None, region: str | None, code: tuple[int, int]
) -> None:
    assert encode(country, region) == bytes(code)
    assert decode(bytes(code)) == (country, region)


def test_every_code_comes_back() -> None:
    assert len(location_codes().countries) > 200
    for country in location_codes().countries:
        assert decode(encode(country)) == Location(country)
        for region in location_codes().regions.get(country, ()):
            assert decode(encode(country, region)) == (country, region)


def test_tables_are_those_of_iso_and_of_the_posts() -> None:
    _, countries, regions = location_codes()
    assert countries == tuple(sorted(country.alpha_3 for country in pycountry.countries))
    assert len(countries) == 249
    subdivisions: Any = pycountry.subdivisions
    official = {
        country: {found.code[3:] for found in subdivisions.get(country_code=country[:2])}
        for country in ("USA", "CAN")
    }
    assert set(regions["CAN"]) == official["CAN"]
    # Beside the states the packages' list has the territories, not the forces' codes, and UM.
    assert set(regions["USA"]) == (official["USA"] - {"UM"}) | {"AA", "AE", "AP", "FM", "MH", "PW"}
    for codes in (countries, *regions.values()):
        assert list(codes) == sorted(set(codes))
        assert len(codes) <= 255
    assert {country: len(codes) for country, codes in regions.items()} == {"USA": 62, "CAN": 13}


def test_positions_of_a_version_never_change() -> None:
    """What is appended makes a new version, with a digest of its own here."""
    path = files("shardkit.structures") / "tables" / "locations.json"
    versions = json.loads(path.read_text(encoding="utf-8"))
    digests = [
        hashlib.sha256(json.dumps(version, sort_keys=True).encode()).hexdigest()[:16]
        for version in versions
    ]
    assert [version["version"] for version in versions] == [1]
    assert digests == ["25642ecbad265b88"]


def test_codes_that_are_not_in_the_tables_are_unknown() -> None:
    assert encode("ZZZ") == encode("AAA", "CA") == b"\0\0"
    assert encode("USA", "ZZ") == bytes((235, 0))
    assert encode("FRA", "75") == encode("FRA")
    assert decode(b"\xff\xff") == decode(b"\0\7") == Location()
    assert decode(bytes((235, 63))) == Location("USA")
    assert decode(bytes((1, 1))) == Location("ABW")


@pytest.mark.parametrize(
    "bad",
    [
        *((country,) for country in ("usa", "US", "", 840, b"USA")),
        *(("USA", region) for region in ("ca", "", 9)),
        (None, "CA"),
    ],
)
def test_malformed_codes_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"country=|region="):
        encode(*bad)
    for data in (b"", b"abc", "ab", None):
        with pytest.raises(InvalidArgumentError, match="two bytes"):
            decode(data)  # type: ignore[arg-type]


def test_the_books_layout_is_kept(kit: ShardKit) -> None:
    users = kit.locations(component="many", part_size=2**20)
    assert users.records.place(139960061) == ("location:133", 8 * 998906)
    users.set(139960061, "USA", "CA")
    client = holder(kit, "many", "location:133")
    assert client.getrange("location:133", 998906, 998907) == b"\xeb\x09"
    assert client.strlen("location:133") == 2**21
    assert users.highest() == 139960061
    assert users.aggregate() == ({"USA": 1}, {"USA": {"CA": 1}})
    client.delete("location:133")


def test_a_location_is_written_read_and_removed(face: Face, places: Any) -> None:
    assert face.run(places.get(7)) == Location()
    assert face.run(places.set(7, "CAN", "ON")) is None
    assert face.run(places.get(7)) == ("CAN", "ON")
    face.run(places.set(7, "DEU"))
    assert face.run(places.get(7)) == ("DEU", None)
    assert face.run(places.remove(7)) == 1
    assert face.run(places.remove(7)) == 0
    assert face.run(places.get(7)) == (None, None)
    assert face.run(places.highest()) is None


def test_users_are_counted_by_country_and_region(face: Face, places: Any) -> None:
    random = Random(44)
    options = [
        ("USA", "CA"),
        ("USA", "NY"),
        ("USA", None),
        ("CAN", "ON"),
        ("DEU", None),
        (None, None),
    ]
    users = {random.randrange(50_000): random.choice(options) for _ in range(3000)}
    face.run(places.set_many(users))
    assert face.run(places.get_many(list(users)[:50])) == dict(list(users.items())[:50])

    def counted(ids: Any) -> LocationCounts:
        found = [users.get(user, (None, None)) for user in ids]
        regions: dict[str, dict[str, int]] = {}
        for (country, region), count in Counter(found).items():
            if country and region:
                regions.setdefault(country, {})[region] = count
        return LocationCounts(dict(Counter(c for c, _ in found if c)), regions)

    assert face.run(places.aggregate()) == counted(users)
    some = [*range(20_000, 22_500), 10**12]
    assert face.run(places.aggregate(some)) == counted(some)
    assert face.run(places.aggregate(n for n in some)) == counted(some)
    assert face.run(places.delete()) is True
    assert face.run(places.aggregate()) == face.run(places.aggregate(some)) == ({}, {})


def test_bad_users_and_codes_are_named_and_nothing_is_written(kit: ShardKit) -> None:
    users: Any = kit.locations(component="many")
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: users.set(-1, "USA"), "location: id=-1"),
        (lambda: users.set("7", "USA"), "location: id='7'"),
        (lambda: users.get(True), "location: id=True"),
        (lambda: users.aggregate([1, "2"]), "location: id='2'"),
        (lambda: users.set_many({1: ("USA", None), 2: ("usa", None)}), "user 2: country='usa'"),
        (lambda: users.set_many([(1, ("USA", None)), (3, ("USA", "ca"))]), "user 3: region='ca'"),
        (lambda: users.set_many({1: "USA"}), "user 1: location 'USA'"),
        (lambda: users.set_many({1: None}), "user 1: location None"),
        (lambda: users.set_many([5]), "5 in pairs; give tuples"),
    ]
    for call, said in calls:
        with pytest.raises(InvalidArgumentError, match=said):
            call()
    assert keys_of(kit, "many") == set()


def test_lists_do_as_well_as_tuples(kit: ShardKit) -> None:
    users: Any = kit.locations(component="many")
    users.set_many([(1, ["USA", "CA"]), (2, ["USA", "CA"]), (3, ("USA", "CA"))])
    assert users.aggregate().regions == {"USA": {"CA": 3}}


def test_countries_alone_take_a_byte_each(face: Face, kit: ShardKit) -> None:
    countries = face.kit.locations("of", component="many", part_size=100, regions=False)
    face.run(countries.set_many({n: ("CAN" if n % 3 else "USA", None) for n in range(250)}))
    face.run(countries.set(7, None))
    assert face.run(countries.get(3)) == Location("USA")
    assert face.run(countries.get_many([4, 7, 9999])) == {
        4: Location("CAN"),
        7: Location(),
        9999: Location(),
    }
    assert face.run(countries.aggregate()) == LocationCounts({"USA": 84, "CAN": 165}, {})
    assert face.run(countries.aggregate([0, 1, 1])) == LocationCounts({"USA": 1, "CAN": 2}, {})
    assert holder(kit, "many", "of:2").strlen("of:2") == 100
    with pytest.raises(InvalidArgumentError, match="region='ON'; make the locations with"):
        face.run(countries.set(8, "CAN", "ON"))
    with pytest.raises(ParameterMismatchError, match="'of' was created with other parameters:"):
        face.run(face.kit.locations("of", component="many", part_size=100).get(3))
    assert face.run(countries.remove(3, 7)) == 1
    assert face.run(countries.highest()) == 249
