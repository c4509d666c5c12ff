"""Totals of records on real servers: each source once, whoever dies when."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from faces import Face

from shardkit import ShardKit
from shardkit.errors import DamagedDataError, InvalidArgumentError, ParameterMismatchError
from shardkit.geo import City, IpRange
from shardkit.messaging import RecordTally, Total, by_place

Words = RecordTally[tuple[str, str]]


def counted(lines: list[bytes]) -> Words:
    """A tally of lines of a day and a word."""

    def key(line: bytes) -> tuple[str, str] | None:
        words = line.decode().split()
        return (words[0], words[1]) if len(words) == 2 else None

    tally: Words = RecordTally(key, lambda key: [Total(key[0], "word", key[1])])
    tally.add(lines)
    return tally


def lines_of(seed: int, count: int = 4000) -> list[bytes]:
    random = Random(seed)
    return [b"day%d w%d" % (random.randrange(3), random.randrange(2500)) for _ in range(count)]


def stored(face: Face, totals: Any) -> dict[str, dict[str, int]]:
    return {day: dict(face.list(totals.all(day, "word"))) for day in ("day0", "day1", "day2")}


def expected(*files: list[bytes]) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = {f"day{n}": Counter() for n in range(3)}
    for line in (line for file in files for line in file):
        day, word = line.decode().split()
        counts[day][word] += 1
    return {day: dict(words) for day, words in counts.items()}


def test_sources_are_added_together_and_each_only_once(face: Face) -> None:
    totals = face.kit.totals(component="many")
    files = [lines_of(1), lines_of(2)]
    for n, lines in enumerate(files):
        assert face.run(totals.flush(f"file{n}", counted([*lines, b"", b"too many words"])))
        assert not face.run(totals.flush(f"file{n}", counted(lines)))
    assert stored(face, totals) == expected(*files)
    assert face.run(totals.flush("file0", counted(files[0]), aggregator="again"))
    found = expected(*files, files[0])
    assert stored(face, totals) == found
    top = face.run(totals.top("day0", "word", 3))
    assert [count for _, count in top] == sorted(found["day0"].values(), reverse=True)[:3]
    word = top[0][0]
    assert face.run(totals.get("day0", "word", word, "no such")) == [top[0][1], 0]
    assert face.run(totals.sources("day0")) == {
        ("", "file0"): True,
        ("", "file1"): True,
        ("again", "file0"): True,
    }
    assert not face.run(totals.flush("empty", counted([])))
    assert face.run(totals.expire("day0", timedelta(minutes=1), "word"))


def test_a_flush_killed_between_any_two_steps_is_repeated_without_counting_twice(
    kit: ShardKit,
) -> None:
    lines = lines_of(3, 7000)
    face = Face(kit, None)
    for killed_after in range(1, 4):
        totals = kit.totals(f"t{killed_after}", component="few")
        steps = totals.deferred.flush("file", counted(lines))
        batch: Any = next(steps)
        for n in range(killed_after):
            replies = kit.driver.link.send(batch)
            if n + 1 < killed_after:
                try:
                    batch = steps.send(replies)
                except StopIteration:
                    break
        totals.flush("file", counted(lines))
        assert stored(face, totals) == expected(lines)
        assert all(totals.sources("day1").values())


def test_a_flush_of_other_counts_under_the_same_name_is_refused(kit: ShardKit) -> None:
    totals = kit.totals(component="few")
    assert totals.flush("file", counted([b"day0 a"]))
    assert not totals.flush("file", counted([b"day0 a"]))
    with pytest.raises(ParameterMismatchError, match=r"'file'.*'day0'"):
        totals.flush("file", counted([b"day0 b"]))
    with pytest.raises(InvalidArgumentError, match="group"):
        totals.top("{day}", "word")
    client: Any = kit.client("few", kit.component("few").shard_of("totals:{day0}:done").number)
    client.hset("totals:{day0}:done", '["","file"]', "what?")
    with pytest.raises(DamagedDataError, match="pages added"):
        totals.flush("file", counted([b"day0 a"]))


def test_log_lines_are_counted_by_day_and_place(kit: ShardKit) -> None:
    ip = kit.ip_to_city(component="one")
    bonn, lyon = City("Bonn", "NRW", "Germany"), City("Lyon", "Rhône", "France")
    ip.import_from([IpRange.of("192.0.2.0/25", city=bonn), IpRange.of("192.0.2.128/25", city=lyon)])

    def parse(line: bytes) -> tuple[str, bytes] | None:
        words = line.split()
        return (words[1].decode(), words[0]) if len(words) > 1 else None

    tally = by_place(ip.local(), parse)
    tally.add([b"192.0.2.1 2015-05-17 x", b"192.0.2.2 2015-05-17", b"192.0.2.200 2015-05-17", b""])
    tally.add([b"no-address 2015-05-17", b"198.51.100.1 2015-05-17"])
    assert tally.skipped == 3
    totals = kit.totals(component="few")
    totals.flush("a.log", tally)
    assert totals.top("2015-05-17", "country") == [("Germany", 2), ("France", 1)]
    assert totals.top("2015-05-17", "city", 1) == [('["Bonn","NRW","Germany"]', 2)]


def test_only_so_many_cities_of_addresses_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardkit.messaging.totals._MOST_KNOWN", 2)
    asked = []

    class Cities:
        def find(self, address: str) -> City:
            asked.append(address)
            return City(f"City of {address}", "", "")

    tally = by_place(Cities(), lambda line: ("day", line.decode()))  # type: ignore[arg-type]
    tally.add([b"a", b"b", b"a", b"c", b"c", b"a"])
    assert asked == ["a", "b", "c", "a"]
    assert tally.skipped == 0


def test_a_kind_that_is_not_text_is_named(kit: ShardKit) -> None:
    totals = kit.totals(component="one")
    totals.flush("file", counted([b"day0 a"]))
    kit.client("one").zadd("totals:{day0}:of:word", {b"\xff": 3})
    for read in (lambda: totals.top("day0", "word"), lambda: list(totals.all("day0", "word"))):
        with pytest.raises(DamagedDataError, match=r"of:word is damaged: b'\\xff', where text"):
            read()
