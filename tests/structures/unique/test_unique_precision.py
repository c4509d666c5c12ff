"""Stored forms, plans and odds of each precision. No server."""

from __future__ import annotations

import math
from typing import Any
from uuid import UUID

import pytest
from faces import SESSION, SESSION_ID
from hypothesis import given, strategies as st

from shardkit.errors import InvalidArgumentError
from shardkit.structures.unique.precision import (
    CounterSettings,
    average_fill,
    expected_for,
    parts_for,
    visitor_id,
)


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


def test_sixty_bits_are_the_first_fifteen_digits() -> None:
    assert read("60-bit", SESSION) == SESSION_ID == 383061330139657245


def test_exact_keeps_the_sixteen_bytes_of_a_uuid() -> None:
    assert read("exact", SESSION) == bytes.fromhex("550e8400e29b41d4a716446655440000")
    assert visitor_id(read("exact", SESSION.upper())) == SESSION


@given(st.lists(st.one_of(st.uuids(), st.text(min_size=1, max_size=40)), max_size=30))
def test_no_two_sessions_are_stored_alike(sessions: list[UUID | str]) -> None:
    def canonical(session: UUID | str) -> str:
        return str(visitor_id(read("exact", session)))

    stored = {read("exact", session) for session in sessions}
    assert len(stored) == len(set(map(canonical, sessions)))
    for session in sessions:
        assert canonical(session) == str(session) or UUID(str(session)) == UUID(canonical(session))


def test_text_of_sixteen_bytes_is_no_uuid() -> None:
    text = "abcdefghijklmnop"
    same_bytes = UUID(bytes=text.encode())
    assert read("exact", text) != read("exact", same_bytes)
    assert visitor_id(read("exact", text)) == text
    assert visitor_id(read("exact", same_bytes)) == str(same_bytes)


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
    "session", [*BAD, -1, 2**32, "-1", "1.0", " 7", "\u0667", "99999999999", 10**99]
)
def test_an_invalid_user_number_is_refused(session: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="for precision='bitmap'; give users' numbers"):
        read("bitmap", session)


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


def test_compact_hashes_alike_everywhere() -> None:
    """What ``b2sum -l 128`` says of the 16 bytes."""
    assert f"{read('compact', SESSION):032x}" == "57272e92ca298e77c98eb55a1bcc06c6"
    assert 0 <= read("compact", "Ada") < 2**128


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
