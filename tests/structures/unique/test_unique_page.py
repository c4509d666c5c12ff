"""docs/unique.md, and a module's text: odds and bytes are right."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from arranged import map_of

import shardkit
from shardkit.structures import UniqueVisitors

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
