"""Unique visitors per day: counts, plans, expiry and refused input."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID
from zlib import crc32

import pytest
from arranged import map_of
from faces import SESSION, Exchanges, Face, faced, holder, keys_of, sessions
from hypothesis import given, strategies as st

import shardkit
from shardkit import ServerClock, ShardKit, ShardMap
from shardkit.errors import (
    DamagedDataError,
    InvalidArgumentError,
    ParameterMismatchError,
    ShardCountError,
    StructureError,
)
from shardkit.local import LocalServer
from shardkit.structures import UniqueVisitors
from shardkit.structures.unique.precision import (
    REGISTERS,
    CounterSettings,
    average_fill,
    estimate,
    expected_for,
    parts_for,
    registers,
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


def read(precision: str, session: Any) -> Any:
    return CounterSettings("daily", precision).encode(session)


SPELLINGS = [
    SESSION,
    SESSION.upper(),
    SESSION.replace("-", ""),
    SESSION.encode(),
    SESSION.replace("-", "").upper().encode(),
    UUID(SESSION),
]


@pytest.mark.parametrize("precision", ["exact", "60-bit", "compact", "hyperloglog"])
def test_a_uuid_is_one_session_however_it_is_spelled(precision: str) -> None:
    assert len({read(precision, spelled) for spelled in SPELLINGS}) == 1


@given(st.integers(0, 2**32 - 1))
def test_a_users_number_is_one_however_it_is_spelled(number: int) -> None:
    assert {read("bitmap", n) for n in (number, str(number), str(number).encode())} == {number}


BAD: list[Any] = ["", b"", None, True, 1.5, [SESSION], "\ud800", b"\xff" * 16, "z" * 1025, UUID]


@pytest.mark.parametrize("precision", ["exact", "compact", "hyperloglog"])
@pytest.mark.parametrize("session", [*BAD, 17])
def test_invalid_sessions_name_the_precision(precision: str, session: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read(precision, session)
    assert f"for precision={precision!r}; give a UUID or text" in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("precision", "given", "message"),
    [
        ("compact", {"digits": 12}, "has no digits; leave it out; it has part_size, first_day"),
        ("compact", {"partition": "crc32"}, "has no partition"),
        ("exact", {"digits": 15}, "has no digits"),
        ("hyperloglog", {"part_size": 512}, "has no part_size; leave it out; it has none"),
        ("hyperloglog", {"first_day": 9}, "has no first_day"),
        ("bitmap", {"first_day": 9}, "has no first_day; leave it out; it has part_size"),
        ("bitmap", {"part_size": 2**20 + 1}, "part_size=1048577; give an integer, 1 to"),
        ("compact", {"part_size": 0}, "part_size=0"),
        ("exact", {"first_day": -1}, "first_day=-1"),
        (
            "60bit",
            {},
            "precision='60bit'; choose exact, 60-bit, 64-bit, compact, hyperloglog, bitmap",
        ),
        (60, {}, "precision=60"),
        (None, {}, "precision=None"),
        ([], {}, "precision=[]"),
    ],
)
def test_parameters_of_other_precisions_are_refused(
    precision: Any, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        CounterSettings("daily", precision, **given)
    assert str(caught.value).startswith("daily: ")
    assert message in str(caught.value)


@given(st.integers(0, 40), st.integers(1, 10_000))
def test_a_part_is_as_full_as_is_safe(doublings: int, part_size: int) -> None:
    expected = 2**doublings
    parts = parts_for(expected, part_size)
    average = expected / parts
    assert average <= average_fill(part_size) or parts == 1
    assert parts < 16 or parts <= expected / average_fill(part_size) * 9 / 8
    if part_size >= 128:
        assert average_fill(part_size) + 5 * math.sqrt(average_fill(part_size)) <= part_size + 1e-9
    assert parts_for(expected_for(parts, part_size), part_size) <= parts


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 2000))
def test_the_parts_of_one_plan_divide_those_of_another(one: int, other: int, size: int) -> None:
    parts = [parts_for(2**doublings, size) for doublings in (one, other)]
    assert math.gcd(*parts) == min(parts)


def test_the_odds_of_each_precision() -> None:
    def of(precision: str, visitors: int, **more: Any) -> Any:
        return CounterSettings("d", precision).odds(visitors, **more)

    assert of("60-bit", 25_000_000).bits == 60
    assert of("60-bit", 25_000_000, uuid4=True).bits == 56
    for digits, bits in ((12, 48), (13, 48), (15, 56)):  # the thirteenth digit is the version
        settings = CounterSettings("d", digits=digits)
        assert settings.odds(1000, uuid4=True).bits == bits
        assert settings.odds(1000).bits == 4 * digits
    assert of("compact", 1_000_000).bits == 32 + math.log2(5120)
    assert of("compact", 1_000_000).missed == pytest.approx(1e12 / 2**33 / 5120)
    assert of("exact", 10**9) == of("bitmap", 10**9) == (math.inf, 0, 0)
    assert of("60-bit", 0).missed == 0
    with pytest.raises(InvalidArgumentError, match=r"'hyperloglog' estimates .* 0\.81%"):
        of("hyperloglog", 10)
    for visitors in (-1, None, 1.5, True):
        with pytest.raises(InvalidArgumentError, match="visitors="):
            of("60-bit", visitors)  # type: ignore[arg-type]


FULL = b"HYLL" + bytes(12) + b"\xff" * (REGISTERS * 6 // 8)  # each says 63


def test_an_estimate_is_the_servers(any_server: LocalServer) -> None:
    """Sparse and dense, from none to 200,000."""
    with any_server.client() as client:
        client.delete("hll")
        client.pfadd("hll")
        total = 0
        for more in (0, 1, 1, 10, 100, 1000, 3000, 20_000, 175_000):
            if more:
                client.pfadd("hll", *range(total, total + more))
            total += more
            found = registers(client.get("hll"))
            assert len(found) == REGISTERS
            assert estimate(found) == client.pfcount("hll")


def test_an_estimate_is_the_servers_where_registers_are_full(any_server: LocalServer) -> None:
    dice = Random(7)
    with any_server.client() as client:
        for full in (1, 100, REGISTERS // 2):  # beyond, servers' numbers overflow
            values = [51] * full + [dice.randrange(30, 51) for _ in range(REGISTERS - full)]
            packed = sum(value << 6 * n for n, value in enumerate(values))
            body = packed.to_bytes(REGISTERS * 6 // 8, "little")
            client.set("full", b"HYLL" + bytes(11) + b"\x80" + body)  # its count is to be made
            assert registers(client.get("full")) == bytes(values)
            assert estimate(bytes(values)) == client.pfcount("full")


def test_registers_that_are_all_full_are_counted() -> None:
    assert estimate(bytes(REGISTERS)) == 0
    assert estimate(bytes([50]) * REGISTERS) > 10**18
    assert estimate(bytes([51]) * REGISTERS) == 2**64


@pytest.mark.parametrize(
    "stored", [b"", b"5", b"HYLL", b"HYLL" + bytes(12), b"HYLL\1" + bytes(99), FULL]
)
def test_a_value_that_is_not_a_hyperloglog_is_refused(stored: bytes) -> None:
    with pytest.raises(DamagedDataError, match=r"unique:1 is damaged: .*, where a HyperLogLog"):
        registers(stored, "one", "unique:1")


ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "unique.md").read_text(encoding="utf-8")


@pytest.fixture
def counted() -> Iterator[Callable[[str], UniqueVisitors]]:
    """Counters of a precision; nothing connects."""
    with shardkit.connect(map_of(a={"entry": {}})) as kit:
        yield lambda precision: kit.unique_visitors(component="a", precision=precision)


def test_the_odds_are_what_they_are(counted: Callable[[str], UniqueVisitors]) -> None:
    for millions, bits, claims in [
        (0.01, 60, ["{missed:.1e}"]),
        (0.01, 56, ["{missed:.1e}"]),
        (1, 60, ["{missed:.1e}"]),
        (1, 56, ["{missed:.1e}: one in {years:.0f} years"]),
        (25, 60, ["{missed:.1e}: one in {years:.0f} years"]),
        (25, 56, ["{missed:.1e}: one in {days:.0f} days"]),
        (250, 60, ["{missed:.1e}: on {some:.1%} of days"]),
        (250, 56, ["{missed:.1e}: on {some:.0%} of days"]),
    ]:
        found = counted("60-bit").odds(int(millions * 1e6), uuid4=bits == 56)
        assert found.bits == bits
        assert found.missed == pytest.approx((millions * 1e6) ** 2 / 2 ** (bits + 1))
        assert found.some == pytest.approx(1 - math.exp(-found.missed))
        figures = {
            "missed": found.missed,
            "days": 1 / found.missed,
            "years": 1 / found.missed / 365.25,
            "some": found.some,
        }
        for claim in claims:
            told = re.sub(r"e-0", "e-", claim.format(**figures))
            assert f"| {told} |" in TEXT, told


def test_the_odds_of_compact_are_what_they_are(
    counted: Callable[[str], UniqueVisitors],
) -> None:
    compact = counted("compact")
    rows = re.findall(r"\| ([0-9.]+) bits: ([0-9.e-]+)", TEXT)
    assert len(rows) == 4
    for visitors, (bits, missed) in zip((10**4, 10**6, 25 * 10**6, 250 * 10**6), rows, strict=True):
        found = compact.odds(visitors)
        assert f"{found.bits:.1f}" == bits
        assert abs(found.missed / float(missed) - 1) < 0.02
