"""Log lines counted by place: increments, each file once, whatever lines hold."""

from __future__ import annotations

from collections import Counter
from datetime import date, timedelta
from typing import Any

import pytest
from faces import Exchanges, Face
from geo_helpers import BONN, LIMA, OSLO, local_copy, ranges

from shardkit import ShardKit
from shardkit.errors import DamagedDataError, InvalidArgumentError, ParameterMismatchError
from shardkit.geo import City, LocalCities, LogTally

DAY = "2015-05-17"
KOLN = City("Köln", "North Rhine-Westphalia", "Germany")


@pytest.fixture
def copy() -> LocalCities:
    places = {"1.0.0.0/24": BONN, "1.0.1.0/24": OSLO, "1.0.2.0/24": KOLN, "2001:db8::/32": LIMA}
    return local_copy(ranges(*places.items()))


@pytest.fixture(params=["one", "many"])
def totals(request: pytest.FixtureRequest, face: Face) -> Any:
    return face.kit.city_totals(component=request.param)


def counted(copy: LocalCities, *lines: str | bytes) -> LogTally:
    tally = LogTally(copy)
    tally.lines(lines)  # type: ignore[arg-type]  # both at once
    return tally


def test_lines_are_counted_by_day_and_place(face: Face, copy: LocalCities, totals: Any) -> None:
    tally = counted(
        copy,
        f"1.0.0.1 {DAY} 10:05:03 7\n",
        f"1.0.0.2 {DAY} 10:05:03 7\n".encode(),
        f"1.0.2.2\t{DAY}\t10:05:03\t9",
        f"2001:db8::1 {DAY} 23:59:59 7 and more",
        "1.0.1.1 2015-05-18 00:00:00 7",
    )
    assert (tally.unknown, tally.skipped) == (0, 0)
    assert face.run(totals.add("a.log", tally)) is True
    assert face.run(totals.top("country", DAY)) == [
        (City("", "", "Germany"), 3),
        (City("", "", "Peru"), 1),
    ]
    assert face.run(totals.top("region", date(2015, 5, 17))) == [
        (City("", "North Rhine-Westphalia", "Germany"), 3),
        (City("", "Lima region", "Peru"), 1),
    ]
    assert face.run(totals.top("city", DAY, 1)) == [(City(*BONN[:3]), 2)]
    assert face.run(totals.top("city", "2015-05-18")) == [(City(*OSLO[:3]), 1)]
    assert face.run(totals.top("city", "2015-05-19")) == []


def test_a_second_file_of_a_day_adds_and_a_repeated_one_does_not(
    face: Face, copy: LocalCities, totals: Any
) -> None:
    lines = [f"1.0.0.{n} {DAY} 10:05:03 7" for n in range(5)]
    for name, added, count in [("a", True, 5), ("b", True, 10), ("a", False, 10), ("b", False, 10)]:
        assert face.run(totals.add(name, counted(copy, *lines))) is added
        assert face.run(totals.top("country", DAY)) == [(City("", "", "Germany"), count)]


def test_lines_that_cannot_be_counted_stop_nothing(copy: LocalCities) -> None:
    tally = counted(
        copy,
        *("", "\n", b"\r\n", "   "),  # the end of a file, not a sign to flush
        *("9.9.9.9 2015-05-17 1 1", b"9.9.9.9 2015-05-17 1 1"),
        *("1.0.0 2015-05-17 1 1", "999.0.0.1 2015-05-17 1 1", "1.0.0.1 17.5.2015 1 1"),
        *("1.0.0.1", "1.0.0.1 20150517 1 1", b"\xff\xfe \xff 1", "1.0.0.1 2015-02-30 1 1"),
    )
    assert (tally.counts, tally.unknown, tally.skipped) == ({}, 2, 7)


def test_a_file_without_lines_that_count_adds_nothing(
    face: Face, copy: LocalCities, totals: Any
) -> None:
    assert face.run(totals.add("a", counted(copy, "", "nonsense"))) is False


def test_a_day_can_be_left_to_expire(
    face: Face, kit: ShardKit, copy: LocalCities, totals: Any
) -> None:
    face.run(totals.add("a", counted(copy, f"1.0.0.1 {DAY} 1 1")))
    assert face.run(totals.expire(DAY, timedelta(hours=1))) is True
    assert face.run(totals.expire("2015-05-18", 10)) is False


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda totals, tally: totals.add("", tally), "file=''"),
        (lambda totals, tally: totals.add(None, tally), "file=None"),
        (lambda totals, tally: totals.top("town", DAY), "kind='town'"),
        (lambda totals, tally: totals.top("city", "17.5.2015"), "day='17.5.2015'"),
        (lambda totals, tally: totals.top("city", DAY, 0), "limit=0"),
        (lambda totals, tally: totals.expire(DAY, 0), "time=0"),
    ],
)
def test_bad_arguments_are_refused(
    face: Face, copy: LocalCities, totals: Any, call: Any, why: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        face.run(call(totals, LogTally(copy)))


def test_a_check_names_totals_that_cannot_be(face: Face, kit: ShardKit, copy: LocalCities) -> None:
    totals = face.kit.city_totals(component="one")
    lines = [f"1.0.{n % 3}.1 {DAY} 10:05:03 7\n" for n in range(9)]
    face.run(totals.add("a.log", counted(copy, *lines)))
    assert face.list(totals.check(DAY)) == face.list(totals.check("2015-05-18")) == []
    client: Any = kit.client("one")
    city, country, done = (f"daily:{what}:{{{DAY}}}" for what in ("city", "country", "done"))
    held = {key: client.dump(key) for key in client.scan_iter()}
    damages: list[tuple[Any, str, str]] = [
        (lambda: client.zpopmin(city), city, "6 in all"),
        (lambda: client.zadd(country, {"Norway": -3}), country, "b'Norway'=-3.0"),
        (lambda: client.zadd(city, {"[1,2,3]": 1}), city, "b'[1,2,3]'"),
        (lambda: client.zadd(city, {"x": 1}), city, "b'x'"),
        (lambda: client.delete(done), done, "no files"),
        (lambda: client.set(country, "x"), country, "a value of another type"),
    ]
    for damage, key, what in damages:
        damage()
        found = face.list(totals.check(DAY))
        assert [(each.key, each.found) for each in found] == [(key, what)]
        assert found[0].loses == "files that are gone"
        for each, dump in held.items():
            client.restore(each, 0, dump, replace=True)
    client.zadd(city, {"x": 100})
    with pytest.raises(DamagedDataError, match=r"city:{2015-05-17} is damaged: b'x', where a city"):
        face.run(totals.top("city", DAY))


def test_a_large_file_is_added_once_wherever_it_is_stopped(
    face: Face, kit: ShardKit, copy: LocalCities
) -> None:
    totals = face.kit.city_totals(component="one")
    tally = LogTally(copy)
    tally.counts = {DAY: Counter({City(f"C{n}", f"R{n % 900}", "DE"): 2 for n in range(2500)})}
    fewer = LogTally(copy)
    fewer.counts = {DAY: Counter({City("Bonn", "", "DE"): 1})}
    for begun in (1, 2):
        killed = Exchanges(face, totals.deferred.add("a.log", tally))
        assert killed.stop_after(begun)
        [damage] = face.list(totals.check(DAY))
        assert (damage.key, damage.repair[:3]) == (f"daily:adding:{{{DAY}}}", "add")
        with pytest.raises(ParameterMismatchError, match=r"part of other totals of 'a\.log'"):
            face.run(totals.add("a.log", fewer))
    assert face.run(totals.add("a.log", tally)) is True
    assert face.run(totals.add("a.log", tally)) is False
    assert face.list(totals.check(DAY)) == []
    assert face.run(totals.top("country", DAY)) == [(City("", "", "DE"), 5000)]
    assert len(face.run(totals.top("city", DAY, 9999))) == 2500
    assert not kit.client("one").exists(f"daily:adding:{{{DAY}}}")
