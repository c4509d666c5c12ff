"""docs/unique.md, and a module's text: odds and bytes are right."""

from __future__ import annotations

import math
import re
from pathlib import Path

from shardkit.structures.unique.precision import CounterSettings

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "unique.md").read_text(encoding="utf-8")


def test_the_odds_are_what_they_are() -> None:
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
        missed = (millions * 1e6) ** 2 / 2 ** (bits + 1)
        figures = {
            "missed": missed,
            "days": 1 / missed,
            "years": 1 / missed / 365.25,
            "some": 1 - math.exp(-missed),
        }
        for claim in claims:
            told = re.sub(r"e-0", "e-", claim.format(**figures))
            assert f"| {told} |" in TEXT, told


def test_the_odds_of_compact_are_what_they_are() -> None:
    settings = CounterSettings("d", "compact")
    rows = re.findall(r"\| ([0-9.]+) bits: ([0-9.e-]+)", TEXT)
    assert len(rows) == 4
    for visitors, (bits, missed) in zip((10**4, 10**6, 25 * 10**6, 250 * 10**6), rows, strict=True):
        found = settings.odds(visitors)
        assert f"{found.bits:.1f}" == bits
        assert abs(found.missed / float(missed) - 1) < 0.02
