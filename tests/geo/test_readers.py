"""Readers and addresses: what files say, and what is skipped with which reason. Pure."""

from __future__ import annotations

import gzip
import io
import ipaddress
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from geo_helpers import address_text, local_copy
from hypothesis import given, strategies as st
from resources import bounded

from shardkit.errors import InvalidArgumentError
from shardkit.geo import (
    City,
    IpRange,
    LogTally,
    SkippedLine,
    csv_cities,
    csv_ranges,
    geolite2,
    geolite_legacy,
    jsonl,
    mmdb,
)
from shardkit.geo.redis_in_action import redis_in_action

BONN = City("Bonn", "NW", "DE", 7)


def split(items: Iterable[Any]) -> tuple[list[Any], list[str]]:
    """What can be used, without lines; and what was skipped, as text."""
    used: list[Any] = []
    skipped = []
    for item in items:
        if isinstance(item, SkippedLine):
            skipped.append(f"{item.line}: {item.reason}")
        else:
            used.append(IpRange(*item[:3]) if isinstance(item, IpRange) else item)
    return used, skipped


def test_a_line_that_cannot_be_split_is_skipped_among_ranges_and_cities() -> None:
    long = f'"{"x" * 200_000}",1'
    used, skipped = split(csv_ranges([long, "1.0.0.0/24,7"], last=None, id=1))
    assert used == [IpRange.of("1.0.0.0/24", city=7)]
    assert skipped == ["1: field larger than field limit (131072)"]
    assert split(csv_cities([long, "7,Bonn"], city=1)) == ([City("Bonn", "", "", 7)], skipped)
    assert split(csv_cities(["7,Bonn", ",Oslo"], city=1))[1] == ["2: has no id"]


def test_names_may_stand_in_the_line_of_the_range() -> None:
    lines = ['1.0.0.0,1.0.0.255,DE,"Bonn, am Rhein",NW,7']
    names: dict[str, Any] = {"country": 2, "city": 3, "region": 4}
    place = City("Bonn, am Rhein", "NW", "DE")
    assert split(csv_ranges(lines, **names))[0] == [IpRange.of("1.0.0.0/24", city=place)]
    with_id = split(csv_ranges(lines, **names, id=5))[0]
    assert with_id == [IpRange.of("1.0.0.0/24", city=City("Bonn, am Rhein", "NW", "DE", 7))]
    assert split(csv_ranges(["1.0.0.0,1.0.0.255,,,,"], **names))[1] == [
        "1: names no city, region or country"
    ]


FORMS: dict[str, Callable[[bytes, Path], Any]] = {
    "lines of text": lambda data, path: data.decode().splitlines(),
    "lines of bytes": lambda data, path: data.splitlines(keepends=True),
    "open text": lambda data, path: io.StringIO(data.decode()),
    "open bytes": lambda data, path: io.BytesIO(data),
    "path": lambda data, path: (path.write_bytes(data), path)[1],
    "path as text": lambda data, path: (path.write_bytes(data), str(path))[1],
    "gzip": lambda data, path: (
        path.with_suffix(".gz").write_bytes(gzip.compress(data)),
        path.with_suffix(".gz"),
    )[1],
}


@pytest.mark.parametrize("form", list(FORMS))
def test_a_file_may_be_given_in_any_form_with_a_byte_order_mark(form: str, tmp_path: Path) -> None:
    data = "\ufefffirst,last,city\r\n1.0.0.0,1.0.0.255,Köln\r\n".encode()
    file = FORMS[form](data, tmp_path / "ranges.csv")
    used, skipped = split(csv_ranges(file, first="first", last="last", city="city"))
    assert used == [IpRange.of("1.0.0.0/24", city=City("Köln", "", ""))]
    assert skipped == ["1: is the heading"]


def test_garbage_is_skipped_line_by_line_with_the_reason() -> None:
    lines = [
        b"1.0.0.0/24,7",
        b"",
        b"   ",
        b"\xff\xfe\x00,\x01",
        b"1.0.1.0/24",
        b"999.0.0.0/24,7",
        b"1.0.2/24,7",
        b"1.0.2.0/24,",
        b"1.0.3.0/24,\xe9",
        b'"1.0.4.0/24,7',
        b'1.0.5.0/24,"' + b"x" * 200_000,
        b'"1.0.6.0/24","7"',
        b" 1.0.7.0/24 ,\t7 ",
        b"1.0.8.0/24,7,more,than,needed",
    ]
    used, skipped = split(csv_ranges(lines, last=None, id=1))
    networks = ("1.0.0.0/24", "1.0.6.0/24", "1.0.7.0/24", "1.0.8.0/24")
    assert used == [IpRange.of(network, city=7) for network in networks]
    assert skipped == [
        "4: is not encoded as it should be",
        "5: has 1 columns, not 2",
        "6: '999.0.0.0' is not an IP address",
        "7: '1.0.2' is not an IP address",
        "8: has no id of a city",
        "9: is not encoded as it should be",
        "10: has 1 columns, not 2",
        "11: field larger than field limit (131072)",
    ]


def test_a_file_without_lines_is_not_read_as_one(tmp_path: Path) -> None:
    path = tmp_path / "big"
    path.write_bytes(b"\0" * (3 * 2**20))
    assert len(split(csv_ranges(path, id=2))[1]) == 3


def test_a_reader_that_cannot_say_which_city_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="set id="):
        csv_ranges([])
    with pytest.raises(InvalidArgumentError, match="one character"):
        csv_ranges([], id=2, delimiter="")
    with pytest.raises(InvalidArgumentError, match="there is no town"):
        jsonl([], names={"town": "x"})


FILE, NOTHING = {"file": ["1.0.0.0/24,7"], "last": None, "id": 1}, object()


@pytest.mark.parametrize(
    ("read", "arguments", "said"),
    [
        *((csv_cities, {"file": odd}, "file=") for odd in (None, 7, b"7,Bonn", NOTHING)),
        *((read, {"file": [7]}, "line 1 of file=") for read in (csv_cities, jsonl)),
        (geolite_legacy, {"blocks": [], "locations": NOTHING}, "file="),
        *((csv_cities, {**FILE, "delimiter": odd}, "delimiter=") for odd in (None, 7, "")),
        *((csv_ranges, {**FILE, "id": odd}, "column=") for odd in (1.5, -1, 10**5000, [None, -1])),
        *(
            (csv_ranges, {**FILE, "encoding": odd}, "encoding=")
            for odd in (None, "x", "a\0", "hex")
        ),
        *(
            (jsonl, {"file": [], "names": odd}, "names=")
            for odd in (7, "city", {"city": 1}, {1: "x"})
        ),
        *((mmdb, {"path": odd}, "path=") for odd in (None, 7, b"x", "a\0b", "")),
        (mmdb, {"path": "x.mmdb", "language": None}, "language="),
        (redis_in_action, {"client": NOTHING}, "client="),
        (LogTally, {"cities": NOTHING}, "cities="),
    ],
)
def test_odd_arguments_of_readers_are_refused_by_name(
    read: Any, arguments: dict[str, Any], said: str
) -> None:
    if read is csv_cities:
        arguments = {name: value for name, value in arguments.items() if name != "last"}
    with pytest.raises(InvalidArgumentError, match=said):
        list(read(**arguments))


def test_geolite2_as_it_is_published() -> None:
    locations = [
        "geoname_id,locale_code,continent_code,continent_name,country_iso_code,country_name,"
        "subdivision_1_iso_code,subdivision_1_name,subdivision_2_iso_code,subdivision_2_name,"
        "city_name,metro_code,time_zone,is_in_european_union",
        "2946447,en,EU,Europe,DE,Germany,NW,North Rhine-Westphalia,,,Bonn,,Europe/Berlin,1",
        '6252001,en,NA,"North America",US,"United States",,,,,,,America/Chicago,0',
    ]
    heading = (
        "network,geoname_id,registered_country_geoname_id,represented_country_geoname_id,"
        "is_anonymous_proxy,is_satellite_provider,postal_code,latitude,longitude,accuracy_radius"
    )
    ipv4 = [
        heading,
        "1.0.0.0/24,2946447,6252001,,0,0,53111,50.7,7.1,5",
        "1.0.1.0/25,,6252001,,0,0,,,,",
    ]
    ipv6 = [heading, "2001:db8::/33,2946447,,,0,0,,,,", "2001:db9::/32,,,,0,0,,,,"]
    used, skipped = split(geolite2(ipv4, ipv6, locations=locations))
    assert used == [
        City("Bonn", "North Rhine-Westphalia", "Germany", 2946447),
        City("", "", "United States", 6252001),
        IpRange.of("1.0.0.0/24", city=2946447),
        IpRange.of("1.0.1.0/25", city=6252001),
        IpRange.of("2001:db8::/33", city=2946447),
    ]
    assert skipped == [
        "1: is the heading",
        "1: is the heading",
        "1: is the heading",
        "3: has no id of a city",
    ]


def test_the_legacy_pair_as_it_was_published() -> None:
    locations = [
        b"Copyright (c) 2012 MaxMind LLC.  All Rights Reserved.\n",
        b"locId,country,region,city,postalCode,latitude,longitude,metroCode,areaCode\n",
        b'12,"DE","07","K\xf6ln","",50.9333,6.9500,,\n',
    ]
    blocks = [
        b"Copyright (c) 2011 MaxMind Inc.  All Rights Reserved.\n",
        b"startIpNum,endIpNum,locId\n",
        b'"16777216","16777471","12"\n',
    ]
    used, skipped = split(geolite_legacy(blocks, locations))
    assert used == [City("Köln", "07", "DE", 12), IpRange.of("1.0.0.0/24", city=12)]
    assert len(skipped) == 4


def test_objects_a_line() -> None:
    lines: Any = [
        '\ufeff{"network": "1.0.0.0/24", "city": "Bonn", "region": "NW", "country": "DE", "id": 7}',
        '{"id": 7, "city": "Bonn", "region": "NW", "country": "DE"}',
        b'{"first": "1.0.1.0", "last": "1.0.1.9", "id": "7"}',
        '{"first": 16777728, "last": 16777729, "id": 7, "more": [1]}',
        "",
    ]
    assert split(jsonl(lines)) == (
        [
            IpRange.of("1.0.0.0/24", city=BONN),
            BONN,
            IpRange.of("1.0.1.0", "1.0.1.9", city=7),
            IpRange.of("16777728", "16777729", city=7),
        ],
        [],
    )
    renamed = ['{"cidr": "1.0.0.0/24", "town": "Bonn"}']
    assert split(jsonl(renamed, names={"network": "cidr", "city": "town"}))[0] == [
        IpRange.of("1.0.0.0/24", city=City("Bonn", "", ""))
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "is not JSON"),
        (b"\xff{}", "is not JSON"),
        (b'{"network": "1.0.0.0/24", "city": "\xff"}', "is not UTF-8"),
        ('{"network": "1.0.0.0/24", "city": "\\ud800"}', "is not UTF-8"),
        ("[1]", "is not an object"),
        ("{}", "names no city"),
        ('{"id": 7}', "neither a network nor names"),
        ('{"id": 7.5, "city": "Bonn"}', "the id 7.5"),
        ('{"network": "1.0.0.0/24", "city": 7}', "7 is not the name"),
        ('{"network": "1.0.0/24", "id": 7}', "is not an IP address"),
        ('{"network": ["1.0.0.0/24"], "id": 7}', "is not an IP address"),
        ('{"first": "1.0.0.0", "id": 7}', "None is not an IP address"),
        ('{"first": true, "last": 2, "id": 7}', "True is not an IP address"),
        ('{"network": "1.0.0.0/24", "first": "1.0.0.0", "id": 7}', "first or last too"),
        ("[" * 100_000, ""),
    ],
)
def test_objects_that_cannot_be_used_are_skipped(line: Any, reason: str) -> None:
    used, skipped = split(jsonl([line]))
    assert used == []
    assert reason in skipped[0]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    netaddr = pytest.importorskip("netaddr")
    writer = pytest.importorskip("mmdb_writer").MMDBWriter(
        ip_version=6, ipv4_compatible=True, database_type="Test-City"
    )

    def add(network: str, record: Any) -> None:
        writer.insert_network(netaddr.IPSet([network]), record)

    names = {"en": "Cologne", "de": "Köln"}
    place = {
        "city": {"geoname_id": 2886242, "names": names},
        "subdivisions": [{"names": {"en": "North Rhine-Westphalia"}}],
        "country": {"iso_code": "DE", "names": {"en": "Germany", "de": "Deutschland"}},
    }
    add("1.0.0.0/24", place)
    add("1.0.2.0/23", {"registered_country": {"geoname_id": 1, "names": {"en": "Peru"}}})
    add("1.0.4.0/24", {"location": {"latitude": 1.0}})
    add("1.0.5.0/24", {"city": "Bonn", "region": "NW", "country": "DE"})
    add("2001:db8::/33", place)
    path = tmp_path / "cities.mmdb"
    writer.to_db_file(str(path))
    return path


@pytest.mark.parametrize(
    ("language", "named"), [("en", "Cologne"), ("de", "Köln"), ("fr", "Cologne")]
)
def test_a_maxmind_database_in_a_language(database: Path, language: str, named: str) -> None:
    used, skipped = split(mmdb(database, language=language))
    places = {
        text: next(r.city for r in used if r.first == IpRange.of(text, city=0).first)
        for text in ("1.0.0.0/24", "1.0.2.0/23", "1.0.5.0/24", "2001:db8::/33")
    }
    country = "Deutschland" if language == "de" else "Germany"
    cologne = City(named, "North Rhine-Westphalia", country, 2886242)
    assert places["1.0.0.0/24"] == places["2001:db8::/33"] == cologne
    assert places["1.0.2.0/23"] == City("", "", "Peru", 1)
    assert places["1.0.5.0/24"] == City("Bonn", "NW", "DE")
    assert any("1.0.4.0/24: names no city" in reason for reason in skipped)
    assert sum(r.last - r.first + 1 for r in used if r.first < 2**32) == 256 + 512 + 256


def test_what_is_no_maxmind_database_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("maxminddb")
    path = tmp_path / "cities.mmdb"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(InvalidArgumentError, match="is not a MaxMind database"):
        list(mmdb(path))
    with pytest.raises(FileNotFoundError, match=r"missing.mmdb"):
        list(mmdb(tmp_path / "missing.mmdb"))


def test_no_damage_of_a_database_kills_the_reader_or_keeps_it_busy(
    database: Path, tmp_path: Path
) -> None:
    whole, path = database.read_bytes(), tmp_path / "damaged.mmdb"
    random = Random(1)
    for at in random.sample(range(len(whole)), 300):
        path.write_bytes(whole[:at] + random.randbytes(1) + whole[at + 1 :])
        with bounded(seconds=5), suppress(InvalidArgumentError):
            list(mmdb(path))
    for damaged in (b"", whole[:300], whole[-300:], b"\0" * 400 + whole[400:]):
        path.write_bytes(damaged)
        with bounded(), pytest.raises(InvalidArgumentError, match="is not a MaxMind database"):
            list(mmdb(path))


def test_a_database_that_is_truncated_while_it_is_read_ends_no_process(database: Path) -> None:
    cities = iter(mmdb(database))
    next(cities)
    database.write_bytes(b"")  # as `cp` does first
    assert list(cities)


def test_without_maxminddb_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "maxminddb", None)
    with pytest.raises(InvalidArgumentError, match=r"shardkit\[geo\]"):
        list(mmdb("x.mmdb"))


def test_cities_by_numbered_columns_leave_out_the_heading() -> None:
    cities, skipped = split(csv_cities(["id,name", "7,Bonn", "9,Köln"], city=1))
    assert [city.id for city in cities] == [7, 9]
    assert skipped == ["1: is the heading"]


HERE = City("Here", "", "")


def ends(first: str, last: str | None = None) -> tuple[int, int]:
    return IpRange.of(first, last, city=HERE)[:2]


@given(st.ip_addresses())
def test_an_address_is_where_its_number_says(address: Any) -> None:
    mapped = getattr(address, "ipv4_mapped", None)
    number = int(mapped or address) + (2**128 if address.version == 6 and not mapped else 0)
    assert ends(str(address), address.exploded) == (number, number)
    copy = local_copy([IpRange(number, number, HERE)])
    for given_as in (address, str(address), str(address).encode(), address.exploded):
        assert copy.find(given_as) == HERE
    assert ipaddress.ip_address(address_text(number)) == (mapped or address)


NO_ADDRESSES: list[Any] = [
    *("1.2.3", "999.2.3.4", "1.2.3.4.5", "01.2.3.4", "1.2.3.4 ", " 1.2.3.4", "1.2.3.4\n", ""),
    *("1.2.3.4\0", "1.2.3.-4", "0x1.2.3.4", "1,2.3.4", "a.b.c.d", "16909060", "1.2.3.4/24"),
    *("\u0661.2.3.4", "::1%eth0", ":::", "1::2::3", "12345::", "\udc80", b"\xff", b"1.2.3"),
    *(16909060, None, 1.5, True),
]


@pytest.mark.parametrize("wrong", NO_ADDRESSES)
def test_what_is_no_address_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="is not an IP address"):
        local_copy([IpRange(0, 9, HERE)]).find(wrong)


@given(st.ip_addresses(), st.data())
def test_networks_of_any_prefix_length_are_cut_where_they_end(address: Any, data: Any) -> None:
    prefix = data.draw(st.integers(0, address.max_prefixlen))
    network = ipaddress.ip_network(f"{address}/{prefix}", strict=False)
    first, last = (
        ends(str(end), str(end))[0] for end in (network.network_address, network.broadcast_address)
    )
    if (first < 2**32) != (last < 2**32):  # of IPv6, and holds all of IPv4
        with pytest.raises(ValueError, match="one end is an IPv4 address, and the other is not"):
            ends(str(network))
        return
    assert ends(f"{address}/{prefix}") == (first, last) == ends(str(network))


@pytest.mark.parametrize(
    ("first", "last", "wanted"),
    [
        ("1.0.0.0", "1.0.0.255", ("1.0.0.0", "1.0.0.255")),
        ("16777216", "16777471", ("1.0.0.0", "1.0.0.255")),
        ("0", "4294967295", ("0.0.0.0", "255.255.255.255")),
        ("4294967295", "4294967295", ("255.255.255.255", "255.255.255.255")),
        ("281470698520576", "281470698520831", ("1.0.0.0", "1.0.0.255")),
        ("0", "281470681743359", ("::", "::fffe:ffff:ffff")),
        ("::ffff:1.0.0.0", "1.0.0.255", ("1.0.0.0", "1.0.0.255")),
        ("::ffff:1.0.0.0/120", "", ("1.0.0.0", "1.0.0.255")),
        ("::/0", None, ("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")),
        ("10.1.2.3/8", None, ("10.0.0.0", "10.255.255.255")),
        ("1.2.3.4/31", None, ("1.2.3.4", "1.2.3.5")),
        ("1.2.3.4/0", None, ("0.0.0.0", "255.255.255.255")),
        ("2001:db8::", "2001:db8::ff", ("2001:db8::", "2001:db8::ff")),
    ],
)
def test_ranges_are_read_as_files_write_them(first: str, last: str | None, wanted: Any) -> None:
    assert tuple(map(address_text, ends(first, last))) == wanted


@pytest.mark.parametrize(
    ("first", "last", "why"),
    [
        ("1.2.3", "1.2.3.4", "'1.2.3' is not an IP address"),
        ("1.2.3.4", None, "no last address"),
        ("1.2.3.4", "1.2.3.3", "ends before"),
        ("16909060", "16909059", "ends before"),
        ("16909060", "1.2.3.5", "'16909060' is not an IP address"),
        ("1.2.3.4", "::1", "one end is an IPv4"),
        ("1.2.3.0/24", "1.2.3.255", "needs no last"),
        ("1.2.3.0/33", None, "prefix length '33' is not 0 to 32"),
        ("1.2.3.0/-1", None, "prefix length"),
        ("1.2.3.0/", None, "prefix length"),
        ("1.2.3.0/255.255.255.0", None, "prefix length"),
        ("1.2.3/24", None, "'1.2.3' is not an IP address"),
        ("::1/129", None, "not 0 to 128"),
        ("::ffff:0:0/95", None, "one end is an IPv4"),
        ("0", str(2**128), "beyond all addresses"),
        ("", "", "no last"),
    ],
)
def test_what_is_no_range_is_refused_with_the_reason(
    first: str, last: str | None, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        ends(first, last)
