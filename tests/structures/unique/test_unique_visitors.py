"""Unique visitors per day: counts, plans, expiry and refused input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from uuid import UUID
from zlib import crc32

import pytest
from faces import SESSION, Exchanges, Face, faced, holder, keys_of, sessions

from shardkit import ServerClock, ShardKit, ShardMap
from shardkit.errors import (
    DamagedDataError,
    InvalidArgumentError,
    ParameterMismatchError,
    ShardCountError,
    StructureError,
)

DAY = date(2015, 5, 17)
NEXT = DAY + timedelta(days=1)
# The count and the sets on one server; on many; the count on an entry of its own.
COMPONENTS = ("one", "many", "both")


@pytest.fixture(params=COMPONENTS)
def visitors(request: pytest.FixtureRequest, face: Face) -> Any:
    return face.kit.unique_visitors(component=request.param, first_day=1000, part_size=50)


def home(kit: ShardKit, component: str, key: str) -> Any:
    """The client of the server that a day's count is on."""
    return kit.client(component) if kit.component(component).entry else holder(kit, component, key)


def test_the_keys_are_those_of_the_published_layout(face: Face, kit: ShardKit) -> None:
    visitors = face.kit.unique_visitors(component="both", partition="redis-in-action")
    assert face.run(visitors.visit(SESSION, DAY)) is True
    assert keys_of(kit, "both") == {
        "unique:meta",
        "unique:2015-05-17",
        "unique:2015-05-17:expected",
        "unique:2015-05-17:meta",
        "unique:2015-05-17:7628",
    }
    entry = kit.client("both")
    assert entry.get("unique:2015-05-17") == b"1"
    assert entry.get("unique:2015-05-17:expected") == b"2097152"
    key = "unique:2015-05-17:7628"
    assert holder(kit, "both", key).smembers(key) == {b"383061330139657245"}
    entry.delete("unique:2015-05-17:expected")  # the day's own parameters say it too
    again = face.kit.unique_visitors(component="both", partition="redis-in-action")
    assert face.run(again.visit(SESSION, DAY)) is False
    assert entry.get("unique:2015-05-17:expected") == b"2097152"


def test_a_days_visitors_can_be_read_and_combined(face: Face, visitors: Any) -> None:
    both = sessions(40)
    face.run(visitors.visit_many(both + sessions(10, 1), DAY))
    # NEXT expects half as many again as came on DAY; give it DAY's plan to combine the two.
    later = face.kit.unique_visitors(
        "later", component=visitors.component, first_day=1000, part_size=50
    )
    face.run(later.visit_many(both[:30] + sessions(5, 2), NEXT))
    one, other = face.run(visitors.visitors(DAY)), face.run(later.visitors(NEXT))
    assert sorted(face.run(one.sinter(other))) == sorted(map(visitors.visitor_id, both[:30]))
    assert len(face.run(one.sunion(other))) == 55
    kept = face.kit.set(
        "both-days", component=visitors.component, total=one.total, part_size=50, members=int
    )
    assert face.run(kept.sinterstore(one, other)) == 30
    small = face.run(visitors.visitors(NEXT))
    assert small.parts < one.parts
    with pytest.raises(ParameterMismatchError, match=rf"total is '\d+', not '{one.total}'"):
        face.run(one.sinter(small))


INVALID_DAYS = ["2015-05-17", 20150517, 0, "", 1.5, True, datetime(2015, 5, 17), timedelta(1), date]


def test_an_invalid_day_is_refused(face: Face, kit: ShardKit) -> None:
    visitors = face.kit.unique_visitors(component="both")
    for day in INVALID_DAYS:
        for name, arguments in [
            ("visit", (SESSION, day)),
            ("visit_many", ([SESSION], day)),
            ("count", (day,)),
            ("counts", ([DAY, day],)),
            ("recount", (day,)),
            ("expected", (day,)),
            ("locate", (SESSION, day)),
            ("visitors", (day,)),
            ("expire", (day, 10)),
            ("remove", (day,)),
        ]:
            with pytest.raises(InvalidArgumentError, match=r"unique: day=.*; give a date"):
                face.run(getattr(visitors, name)(*arguments))
        with pytest.raises(InvalidArgumentError, match="unique: day="):
            visitors.count_key(day)
    assert keys_of(kit, "both") == set()


def test_a_moment_stands_for_its_day_in_utc(face: Face, visitors: Any) -> None:
    late_in_new_york = datetime(2015, 5, 16, 21, 30, tzinfo=timezone(timedelta(hours=-4)))
    assert face.run(visitors.visit(SESSION, late_in_new_york)) is True
    assert face.run(visitors.visit(SESSION, DAY)) is False
    assert face.run(visitors.visit(SESSION, datetime(2015, 5, 17, 23, 59, tzinfo=UTC))) is False
    assert face.run(visitors.counts([late_in_new_york])) == {DAY: 1}
    assert visitors.count_key(late_in_new_york) == "unique:2015-05-17"


def test_a_new_day_begins_at_midnight_utc(shard_map: ShardMap, kit: ShardKit) -> None:
    now = datetime(2015, 5, 17, 23, 59, 59, tzinfo=UTC).timestamp()
    with faced("blocking", shard_map, clock=ServerClock(now=lambda: now)) as face:
        visitors = face.kit.unique_visitors(component="both", first_day=1000)

        def over_midnight() -> Iterator[str]:
            nonlocal now
            yield from sessions(10_000)
            now += 2  # the next page is sent after midnight
            yield SESSION

        assert visitors.visit_many(over_midnight()) == 10_001
        assert visitors.counts([DAY, NEXT]) == {DAY: 10_000, NEXT: 1}
        assert visitors.count() == 1
        assert visitors.expected() == 16_384
        assert visitors.visit(SESSION) is False


def test_today_is_the_servers_day(face: Face, kit: ShardKit, monkeypatch: Any) -> None:
    seconds, _ = kit.client("one").time()  # type: ignore[union-attr]
    today = datetime.fromtimestamp(seconds, UTC).date()
    monkeypatch.setattr("time.time", lambda: 0.0)  # this machine's clock is wrong
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    visitors = face.kit.unique_visitors(component="one")
    assert face.run(visitors.visit(SESSION)) is True
    found = face.run(visitors.counts([today, today + timedelta(days=1)]))
    assert sum(found.values()) == 1  # (midnight may have passed in between)


def test_a_day_expects_what_the_day_before_says(face: Face, visitors: Any, kit: ShardKit) -> None:
    for n, (came, expected) in enumerate([(0, 1), (1, 2), (10, 16), (85, 128), (86, 256)]):
        before, day = DAY + timedelta(days=3 * n), DAY + timedelta(days=3 * n + 1)
        key = visitors.count_key(before)
        home(kit, visitors.component, key).set(key, came)
        assert face.run(visitors.expected(day)) == expected
        assert face.run(visitors.visit_many(sessions(100), day)) == 100
        assert face.run(visitors.count(day)) == 100


def test_two_that_decide_at_once_agree(kit: ShardKit) -> None:
    """Both have seen that there is no plan, and each would make another."""
    counters = [kit.unique_visitors(component="both", first_day=n) for n in (1000, 9)]
    plans = kit.together(*(counter.deferred.expected(DAY) for counter in counters))
    assert plans == [2048, 2048]


def test_only_so_many_days_are_remembered(face: Face) -> None:
    visitors = face.kit.unique_visitors(component="both", first_day=1)
    for n in range(100):
        assert face.run(visitors.visit(SESSION, DAY + timedelta(days=n))) is True
    assert face.run(visitors.visit(SESSION, DAY)) is False
    assert (
        sum(face.run(visitors.counts(DAY + timedelta(days=n) for n in range(2500))).values()) == 100
    )


@pytest.mark.parametrize("keep_count", [False, True])
def test_a_day_is_removed_with_or_without_its_count(
    face: Face, visitors: Any, kit: ShardKit, keep_count: bool
) -> None:
    face.run(visitors.visit_many(sessions(50), DAY))
    face.run(visitors.visit_many(sessions(70), NEXT))
    assert face.run(visitors.remove(DAY, keep_count=keep_count)) is True
    left = {key for key in keys_of(kit, visitors.component) if "2015-05-17" in key}
    assert left == ({"unique:2015-05-17"} if keep_count else set())
    assert face.run(visitors.count(DAY)) == face.run(visitors.recount(DAY)) == 50 * keep_count
    assert face.run(visitors.count(NEXT)) == 70
    assert face.run(visitors.remove(DAY, keep_count=keep_count)) is False


@pytest.mark.parametrize("keep_count", [False, True])
def test_a_day_expires_with_or_without_its_count(
    face: Face, visitors: Any, kit: ShardKit, keep_count: bool
) -> None:
    face.run(visitors.visit_many(sessions(50), DAY))
    assert face.run(visitors.expire(DAY, timedelta(days=30), keep_count=keep_count)) is True
    lasting = set()
    for key in keys_of(kit, visitors.component):
        for client in (home(kit, visitors.component, key), holder(kit, visitors.component, key)):
            if client.exists(key) and client.ttl(key) == -1:
                lasting.add(key)
    assert lasting == {"unique:meta"} | ({"unique:2015-05-17"} if keep_count else set())


def write_as_the_book_does(kit: ShardKit, sessions: Iterable[str], day: str = "2009-01-01") -> None:
    """Count sessions of a day on the server that each session chooses, as Redis in Action does."""
    home: Any = kit.client("both")
    home.set(f"unique:{day}:expected", 2048)
    for session in sessions:
        client: Any = kit.client("both", crc32(session.encode()) % 4)
        number = int(session.replace("-", "")[:15], 16)
        part = crc32(b"x%d" % number) % (2 * 2048 // 512)
        if client.sadd(f"unique:{day}:{part}", number):
            home.incr(f"unique:{day}")


def test_a_gathered_day_counts_visitors_once(face: Face, kit: ShardKit) -> None:
    day, sessions = (date(2009, 1, 1), [str(UUID(int=n << 68)) for n in range(2**59, 2**59 + 200)])
    write_as_the_book_does(kit, sessions)
    visitors = face.kit.unique_visitors(component="both", partition="redis-in-action")
    # Before, only the visitors whose id is where its part lives are known.
    again = face.run(visitors.visit_many(sessions, day))
    assert 0 < again < 200
    assert face.run(visitors.count(day)) == 200 + again
    for _ in range(2):
        assert face.run(visitors.gather(day, shards=4)) == 200
    assert face.run(visitors.visit_many(sessions, day)) == 0
    assert face.run(visitors.visit(str(UUID(int=5)), day))
    assert face.run(visitors.count(day)) == face.run(visitors.recount(day)) == 201
    assert len(face.list(visitors.ids(day))) == 201
    with pytest.raises(ShardCountError, match="shards"):
        face.run(visitors.gather(day, shards=3))


def test_unions_refuse_days_not_yet_gathered(face: Face, kit: ShardKit) -> None:
    sessions = [str(UUID(int=n << 68)) for n in range(2**59, 2**59 + 60)]
    days = (date(2009, 1, 1), date(2009, 1, 2))
    for day, some in zip(days, (sessions[:40], sessions[30:]), strict=True):
        write_as_the_book_does(kit, some, day.isoformat())
    visitors = face.kit.unique_visitors(component="both", partition="redis-in-action")
    with pytest.raises(StructureError, match=r"40 visitors, is missing.*gather\(day\)"):
        face.run(visitors.count_union(days))
    for day in days:
        face.run(visitors.gather(day, shards=4))
    assert face.run(visitors.count_union(days)) == 60
    assert face.run(visitors.count_intersection(days)) == 10


def test_an_interrupted_gathering_loses_no_visitor(kit: ShardKit) -> None:
    day, sessions = date(2009, 1, 1), [str(UUID(int=n << 68)) for n in range(2**59, 2**59 + 60)]
    visitors = kit.unique_visitors(component="both", partition="redis-in-action")
    done, exchanges = False, 0
    while not done:
        for shard in (None, 0, 1, 2, 3):
            kit.client("both", shard).flushdb()
        write_as_the_book_does(kit, sessions)
        done = not Exchanges(kit, visitors.deferred.gather(day, 4)).stop_after(exchanges)
        assert visitors.gather(day, 4) == 60
        assert len({*visitors.ids(day)}) == 60
        exchanges += 1
    assert exchanges > 5


def test_gathering_is_refused_where_there_are_no_sets(face: Face, kit: ShardKit) -> None:
    for precision in ("bitmap", "hyperloglog"):
        visitors = face.kit.unique_visitors(component="both", precision=precision)
        with pytest.raises(InvalidArgumentError, match="has no SETs of ids"):
            face.run(visitors.gather(date(2009, 1, 1), shards=4))


def test_a_shard_that_forgets_what_was_just_written_is_named(kit: ShardKit) -> None:
    day, sessions = date(2009, 1, 1), [str(UUID(int=n << 68)) for n in range(2**59, 2**59 + 60)]
    write_as_the_book_does(kit, sessions)
    visitors = kit.unique_visitors(component="both", partition="redis-in-action")

    def forget(step: Any) -> None:
        if isinstance(step, list) and step[0].args[0] == "GET" and "gather" in step[0].args[1]:
            kit.client("both", 2).delete(step[0].args[1])

    with pytest.raises(DamagedDataError, match=r":gather:\w+ is damaged: nothing"):
        Exchanges(kit, visitors.deferred.gather(day, 4)).end(before=forget)
    assert visitors.gather(day, 4) == 60
