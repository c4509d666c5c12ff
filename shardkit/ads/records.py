"""Ads as users give them, as the index stores them, and as they are returned.

The expected income from 1,000 views, eCPM, is the value of a ``cpm`` ad; of others it is 1,000 x
value x clicks (``cpc``) or actions (``cpa``) / views. A new ad starts as if it had had 1,000 views,
and the clicks or actions that these bring its type on average, or one if there are none yet.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from shardkit.errors import DamagedDataError, InvalidArgumentError, counted
from shardkit.operations.arguments import shown
from shardkit.search.model.documents import (
    PreparedDocument,
    check_id,
    prepare,
    terms_in,
    unpack,
    value_term,
)
from shardkit.search.model.schema import Schema

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


# The columns of ads. The document has the eCPM that was estimated when the ad was indexed; the
# current one is in the column alone.
ATTRIBUTES: Final = {"ecpm": "number", "value": "number", "type": "text", "location": "text"}
MAX_LOCATIONS: Final = 1_000
MAX_LOCATION_BYTES: Final = 256


class Served(NamedTuple):
    """The ad to show.

    Attributes:
        target: the id under which clicks on it are recorded.
        ad: the ad's id.
    """

    target: str
    ad: str


@dataclass(frozen=True, slots=True)
class WordCounts:
    """The counts of a word of an ad, from pages that had the word too.

    Attributes:
        views, clicks, actions: how many.
        bonus: how much more such views earn than others, in eCPM.
    """

    views: int
    clicks: int
    actions: int
    bonus: float


@dataclass(frozen=True, slots=True)
class Ad:
    """The current state of an ad.

    Attributes:
        id: its id.
        type: ``cpm``, ``cpc`` or ``cpa``.
        value: the price of 1,000 views, a click, or an action.
        locations: where it is shown.
        ecpm: the expected income from 1,000 views.
        views, clicks, actions: its counts.
        words: the counts of those of its words that were on a page with it.
    """

    id: str
    type: str
    value: float
    locations: tuple[str, ...]
    ecpm: float
    views: int
    clicks: int
    actions: int
    words: Mapping[str, WordCounts]


class CheckedAd(NamedTuple):
    """An ad whose arguments were checked, not yet estimated."""

    id: str
    locations: list[str]
    text: str
    type: str
    value: float

    def prepared(self, schema: Schema, averages: Mapping[str, float]) -> PreparedDocument:
        """Return the ad as a document."""
        attributes = {
            "ecpm": expected(self.type, self.value, averages),
            "value": self.value,
            "type": self.type,
            "location": self.locations,
        }
        return prepare(schema, self.id, self.text, attributes)


def check_ad(schema: Schema, given: object) -> CheckedAd:
    """Check an ad: its id, locations, text, type and value."""
    if not isinstance(given, list | tuple) or len(given) != 5:
        raise InvalidArgumentError(
            f"{schema.name}: ad {shown(given)}", "give (id, locations, text, type, value)"
        )
    ad_id, locations, text, kind, value = given
    check_id(schema, ad_id)
    value = check_price(schema.name, ad_id, kind, value)
    where = f"{schema.name}: ad {shown(ad_id)}"
    places = check_locations(where, locations)
    if not places:
        raise InvalidArgumentError(f"{where} has no locations", "give at least one")
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{where}: text={shown(text)}", "give text")
    return CheckedAd(ad_id, places, text, kind, value)


def check_locations(where: str, given: object) -> list[str]:
    """Return locations, each once; messages start with ``where``."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidArgumentError(f"{where}: locations={shown(given)}", "give a list of locations")
    places = list(given)
    for place in places:
        if not isinstance(place, str) or not 0 < len(utf8(place)) <= MAX_LOCATION_BYTES:
            raise InvalidArgumentError(
                f"{where}: location {shown(place)}",
                f"give text, 1 to {MAX_LOCATION_BYTES} bytes of UTF-8",
            )
    places = list(dict.fromkeys(places))
    if len(places) > MAX_LOCATIONS:
        raise InvalidArgumentError(
            f"{where}: {counted(len(places), 'location')}", f"give at most {MAX_LOCATIONS:,}"
        )
    return places


def location_word(place: str) -> bytes:
    """Return the word that stands for a location in the index."""
    return value_term(list(ATTRIBUTES).index("location") + 1, place.encode())


def utf8(text: str) -> bytes:
    """Return a text's UTF-8; empty if it cannot be encoded."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return b""


def read_ad(stored: bytes, key: str) -> tuple[float, str, tuple[str, ...]]:
    """Return an ad's value, type and locations, from the attributes that are stored of it."""
    try:
        _, value, kind, locations = json.loads(stored)
        if not isinstance(value, int | float) or kind not in TYPES:
            raise ValueError("no value, or no type")
        return value, kind, tuple(locations)
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedDataError(key, f"{shown(stored)} ({error})", "an ad") from None


def recovered_ad(
    schema: Schema, ad_id: str, stored: bytes, key: str, words: Mapping[int, bytes], lossy: bool
) -> PreparedDocument:
    """Return an ad as it was indexed, from the value of its key; see `rebuild_parts`."""
    attributes = unpack(schema, ad_id, stored, key).attributes
    [terms] = terms_in(stored, key, words, lossy, 1)
    text = [term for term in terms if not term.startswith("\1")]  # else it is of a value
    try:
        ad = prepare(schema, ad_id, "", attributes)
    except InvalidArgumentError as error:
        raise DamagedDataError(key, str(error), "an ad") from None
    return ad._replace(fields=[text], size=len(text))


def ad_of(
    ad_id: str, tag: str, stored: bytes, ecpm: bytes, flat: Sequence[Any], bonuses: Sequence[bytes]
) -> Ad:
    """Return an ad from what the script ``ads/get`` replied."""
    value, kind, locations = read_ad(stored, f"{tag}d:{ad_id}")
    counts = {name.decode(): int(n) for name, n in zip(flat[::2], flat[1::2], strict=True)}
    try:
        worth = {w.decode(): float(b) for w, b in zip(bonuses[::2], bonuses[1::2], strict=True)}
    except ValueError as error:
        raise DamagedDataError(f"{tag}bonus", str(error), f"those of {shown(ad_id)}") from None
    seen = sorted(field[2:] for field in counts if field.startswith("v:"))
    words = {
        word: WordCounts(
            counts[f"v:{word}"],
            counts.get(f"c:{word}", 0),
            counts.get(f"a:{word}", 0),
            worth.get(word, 0.0),
        )
        for word in seen
    }
    views, clicks, actions = (counts.get(what, 0) for what in "vca")
    return Ad(ad_id, kind, value, locations, float(ecpm), views, clicks, actions, words)
