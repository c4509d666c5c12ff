"""Stored forms, plans and odds of each precision, as docs/unique.md says; HyperLogLogs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from arranged import map_of
from faces import SESSION
from hypothesis import given, strategies as st

import shardkit
from shardkit.errors import DamagedDataError, InvalidArgumentError
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
