"""The expected income of ads: eCPM, the income from 1,000 views.

========  =======================  =====================================================
type      its value is paid for    eCPM
========  =======================  =====================================================
``cpm``   1,000 views              value
``cpc``   a click                  1,000 x value x clicks / views
``cpa``   an action after a click  1,000 x value x actions / views
========  =======================  =====================================================

A new ad starts as if it had had 1,000 views, and the clicks or actions that 1,000 views of its type
bring on average, or one if there are none yet. So a new cpc ad of 0.25 starts with 0.25.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import shown

TYPES: Final = ("cpm", "cpc", "cpa")
MAX_VALUE: Final = 1e9
_PAID: Final = {"cpm": "v", "cpc": "c", "cpa": "a"}
_VIEWS: Final = 1_000
_UNKNOWN: Final = 1.0


def check_price(owner: str, ad_id: str, kind: str, value: float) -> float:
    """Return an ad's value, per 1,000 views, click or action."""
    if kind not in TYPES:
        raise InvalidArgumentError(
            f"{owner}: ad {shown(ad_id)}: type={shown(kind)}", f"give one of {', '.join(TYPES)}"
        )
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0 <= value <= MAX_VALUE:
        raise InvalidArgumentError(
            f"{owner}: ad {shown(ad_id)}: value={shown(value)}",
            f"give a price, 0 to {MAX_VALUE:,.0f}",
        )
    return float(value)


def expected(kind: str, value: float, averages: Mapping[str, float]) -> float:
    """Return the eCPM of an ad that was never shown."""
    return value if kind == "cpm" else 1000 * value * averages[kind] / _VIEWS


def averages_of(replies: Iterable[Sequence[bytes]]) -> dict[str, float]:
    """Return how many clicks 1,000 views of ``cpc`` ads bring, and actions of ``cpa`` ads.

    ``replies`` are the counts of each part, names and numbers in turn. Without any clicks or
    actions, a type has 1.
    """
    counts: Counter[str] = Counter()
    for flat in replies:
        for name, count in zip(flat[::2], flat[1::2], strict=True):
            counts[name.decode()] += int(count)
    averages = {}
    for kind in ("cpc", "cpa"):
        views, paid = counts[f"{kind}:v"], counts[f"{kind}:{_PAID[kind]}"]
        averages[kind] = 1000 * paid / views if views and paid else _UNKNOWN
    return averages


class CachedAverages:
    """A cache of the averages for ``ttl`` seconds. Shared by all faces; thread-safe."""

    def __init__(self, ttl: float, monotonic: Callable[[], float]) -> None:
        self._ttl = ttl
        self._monotonic = monotonic
        self._cached: tuple[dict[str, float], float] | None = None

    def get(self) -> dict[str, float] | None:
        """Return the averages, if they are cached and fresh."""
        cached = self._cached
        return cached[0] if cached and self._monotonic() < cached[1] else None

    def set(self, averages: dict[str, float]) -> None:
        """Cache averages that were just read."""
        self._cached = averages, self._monotonic() + self._ttl
