"""What ads are expected to bring: eCPM, the income of 1,000 views.

========  =======================  =====================================================
type      its value is paid for    eCPM
========  =======================  =====================================================
``cpm``   1,000 views              value
``cpc``   a click                  1,000 x value x clicks / views
``cpa``   an action after a click  1,000 x value x actions / views
========  =======================  =====================================================

A new ad has no counts of its own: it is taken to have had 1,000 views, and the clicks or actions
that 1,000 views of its type bring on average; one, as long as nobody knows. So a new cpc ad of 0.25
begins with 0.25.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from shardkit.errors import InvalidArgumentError
from shardkit.structures.base.arguments import shown

TYPES: Final = ("cpm", "cpc", "cpa")
MAX_VALUE: Final = 1e9
_PAID: Final = {"cpm": "v", "cpc": "c", "cpa": "a"}
_VIEWS: Final = 1_000
_UNKNOWN: Final = 1.0


def check_price(owner: str, ad_id: str, kind: str, value: float) -> float:
    """Return an ad's value, per 1,000 views, click or action.

    Raises:
        InvalidArgumentError: there is no such type; or the value is no number, negative or too
            large.
    """
    if kind not in TYPES:
        raise InvalidArgumentError(
            f"{owner}: ad {shown(ad_id)}: type={shown(kind)}", f"give one of {', '.join(TYPES)}"
        )
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0 <= value <= MAX_VALUE:
        raise InvalidArgumentError(
            f"{owner}: ad {shown(ad_id)}: value={shown(value)}",
            f"give what is paid, 0 to {MAX_VALUE:,.0f}",
        )
    return float(value)


def expected(kind: str, value: float, averages: Mapping[str, float]) -> float:
    """Return the eCPM of an ad that was never shown."""
    return value if kind == "cpm" else 1000 * value * averages[kind] / _VIEWS


def averages_of(replies: Iterable[Sequence[bytes]]) -> dict[str, float]:
    """Return what 1,000 views of each type bring: clicks of ``cpc``, actions of ``cpa``.

    Args:
        replies: the counts of each part, names and numbers one after the other.

    Returns:
        By type; 1 where no view has brought any yet.
    """
    counts: Counter[str] = Counter()
    for flat in replies:
        for name, count in zip(flat[::2], flat[1::2], strict=True):
            counts[name.decode()] += int(count)
    found = {}
    for kind in ("cpc", "cpa"):
        views, paid = counts[f"{kind}:v"], counts[f"{kind}:{_PAID[kind]}"]
        found[kind] = 1000 * paid / views if views and paid else _UNKNOWN
    return found


class CachedAverages:
    """Averages, kept for a while. Shared by all faces; any thread may use it.

    Args:
        ttl: for how many seconds they are used; 0 to ask every time.
        monotonic: seconds that never go back.
    """

    def __init__(self, ttl: float, monotonic: Callable[[], float]) -> None:
        self._ttl = ttl
        self._monotonic = monotonic
        self._kept: tuple[dict[str, float], float] | None = None

    def known(self) -> dict[str, float] | None:
        """Return them if they are known, and not too old."""
        kept = self._kept
        return kept[0] if kept and self._monotonic() < kept[1] else None

    def learn(self, averages: dict[str, float]) -> None:
        """Take in what was just read."""
        self._kept = averages, self._monotonic() + self._ttl
