"""Ad targeting: the ad with the highest expected income for a location and a page.

An ad is a document of the search index (`shardkit.search.index`), whole on one part. Its words come
from its text and its locations, and a column has its expected income (its eCPM). Its counts and the
bonuses of its words have keys of their own: see docs/ads.md. Each part replies with its best ad;
the view of the best of these is recorded on its part, under a new target id.

A new ad starts as if it had had 1,000 views, and the clicks or actions that these bring its type on
average, or one if there are none yet.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from shardkit.errors import DamagedDataError, InvalidArgumentError, counted
from shardkit.operations.arguments import Seconds, is_number, parse_json, rows_of, shown
from shardkit.operations.commands import Argument, Command
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Stream,
    operation,
    pages,
    stream,
)
from shardkit.search.check import Documents, attributes_in, check_parts, state_of
from shardkit.search.documents import (
    PreparedDocument,
    check_id,
    prepare,
    terms_in,
    unpack,
    value_term,
    write_arguments,
)
from shardkit.search.parts import (
    WORK_PER_CALL,
    DocumentForm,
    DocumentStructure,
    IndexPart,
    IndexParts,
)
from shardkit.search.schema import CHUNK, Schema
from shardkit.search.text import Analyzer
from shardkit.structures.base.arguments import check_seconds
from shardkit.structures.base.check import Damage, Suspicion, Suspicions, confirmed, contents
from shardkit.structures.base.damage import damage, stored_integer, stored_text
from shardkit.structures.base.server_clock import ServerClock

TYPES: Final = ("cpm", "cpc", "cpa")
MAX_VALUE: Final = 1e9
_PAID: Final = {"cpm": "v", "cpc": "c", "cpa": "a"}
_VIEWS: Final = 1_000
_UNKNOWN: Final = 1.0


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


# The columns of ads. The document has the eCPM that was estimated when the ad was indexed; the
# current one is in the column alone.
ATTRIBUTES: Final = {"ecpm": "number", "value": "number", "type": "text", "location": "text"}
MAX_LOCATIONS: Final = 1_000
MAX_LOCATION_BYTES: Final = 256


class Served(NamedTuple):
    """The ad to show.

    Attributes:
        target: the id under which clicks on it are recorded.
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
        ecpm = (
            self.value if self.type == "cpm" else 1000 * self.value * averages[self.type] / _VIEWS
        )
        attributes = {
            "ecpm": ecpm,
            "value": self.value,
            "type": self.type,
            "location": self.locations,
        }
        return prepare(schema, self.id, self.text, attributes)


def check_ad(schema: Schema, given: Sequence[Any]) -> CheckedAd:
    """Check an ad: its id, locations, text, type and value."""
    ad_id, locations, text, kind, value = given
    check_id(schema, ad_id)
    where = f"{schema.name}: ad {shown(ad_id)}"
    if kind not in TYPES:
        raise InvalidArgumentError(
            f"{where}: type={shown(kind)}", f"give one of {', '.join(TYPES)}"
        )
    if not is_number(value) or not 0 <= value <= MAX_VALUE:
        raise InvalidArgumentError(
            f"{where}: value={shown(value)}", f"give a price, 0 to {MAX_VALUE:,.0f}"
        )
    places = check_locations(where, locations)
    if not places:
        raise InvalidArgumentError(f"{where} has no locations", "give at least one")
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{where}: text={shown(text)}", "give text")
    return CheckedAd(ad_id, places, text, kind, float(value))


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


def utf8(text: str) -> bytes:
    """Return a text's UTF-8; empty if it cannot be encoded."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return b""


def read_ad(stored: bytes, key: str) -> tuple[float, str, tuple[str, ...]]:
    """Return an ad's value, type and locations, from the attributes that are stored of it."""
    try:
        _, value, kind, locations = parse_json(stored)
        if not is_number(value) or kind not in TYPES:
            raise ValueError("no value, or no type")
        return value, kind, tuple(locations)
    except (ValueError, TypeError) as error:
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
    key = f"{tag}ad:{ad_id}"
    try:
        counts = {name.decode(): int(n) for name, n in zip(flat[::2], flat[1::2], strict=True)}
        key = f"{tag}bonus"
        worth = {w.decode(): float(b) for w, b in zip(bonuses[::2], bonuses[1::2], strict=True)}
    except ValueError as error:
        raise DamagedDataError(key, str(error), f"those of {shown(ad_id)}") from None
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


TARGET_SECONDS: Final = 15 * 60
AVERAGES_TTL: Final = 60.0
MAX_TERMS: Final = 4_000
MAX_TARGET_BYTES: Final = 256
ADS_PER_BATCH: Final = 500
# How often to choose again because the best ad was removed just then.
MAX_ATTEMPTS: Final = 10


class Ads(DocumentStructure[Face]):
    """Ads, chosen by place and text. Made by ``kit.ads``.

    Args:
        component: where the keys live; if sharded, with as many shards as there are parts.
        analyzer: turns texts into words.
        averages_ttl: the seconds for which a process caches the averages, which estimate new ads;
            0 to read them for every ad.
        clock: tells the time and makes ids.
        chunk: the ads in a chunk of postings, a power of two.

    Raises:
        InvalidArgumentError: an argument is out of range.

    The first write of a process takes one more exchange, to compare the parameters.
    Calls raise ParameterMismatchError if the ads were created with other parameters.
    """

    deferred: DeferredFace[Ads[Deferred]]

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str = "ads",
        parts: int = 1,
        analyzer: Analyzer | None = None,
        averages_ttl: Seconds = AVERAGES_TTL,
        clock: ServerClock | None = None,
        chunk: int = CHUNK,
    ) -> None:
        ttl = check_seconds(name, "averages_ttl", averages_ttl, 0, math.inf)
        schema = Schema(
            name,
            parts,
            attributes=ATTRIBUTES,
            analyzer=analyzer or Analyzer(),
            keep_text=False,
            phrases=False,
            chunk=chunk,
        )
        parameters = {
            "kind": "ads",
            "shards": parts,
            "analyzer": schema.analyzer.fingerprint,
            "chunk": chunk,
        }
        form = DocumentForm(
            partial(write_arguments, schema),
            partial(recovered_ad, schema),
            names_words=lambda _: True,
            after=_refresh,
            clear_first="ads/clear",
        )
        super().__init__(driver, IndexParts(component, schema, parameters, form))
        self._clock = clock or ServerClock()
        self._ttl = ttl
        self._cached: tuple[dict[str, float], float] | None = None  # averages, and until when

    @operation
    def index(
        self,
        ad_id: str,
        locations: Iterable[str],
        text: str,
        type: str,  # noqa: A002 - the field's word
        value: float,
    ) -> Operation[bool]:
        """Index an ad, or replace one; return whether it is new.

        A replaced ad keeps its counts, except those of words that it no longer has. Once it has had
        a click (an action), it is estimated by them.

        Args:
            ad_id: its id, any text of at most 1,024 bytes.
            locations: where it may be shown, 1 to 1,000; any text, compared as it is.
            text: what its words come from; may be empty.
            type: what is paid for: ``cpm``, 1,000 views; ``cpc``, a click; ``cpa``, an action.
            value: how much is paid, 0 or more.

        Raises:
            InvalidArgumentError: an argument cannot be used; nothing was written.

        Cost: one exchange; one more if the averages are not cached (`averages_ttl`).
        """
        return (yield from self._index([(ad_id, locations, text, type, value)])) == 1

    @operation
    def index_many(
        self, ads: Iterable[tuple[str, Iterable[str], str, str, float]]
    ) -> Operation[int]:
        """Index ads; return how many are new.

        They are any iterable, such as a generator, of tuples of the arguments of `index`. It is
        read while ads are sent.

        Raises:
            InvalidArgumentError: an ad cannot be indexed. Nothing of its batch of 500 was written.
            ShardErrors: shards failed; ads on the others were indexed. Repeat the call.

        Cost: one exchange, a transaction a part, for 500 ads; sometimes one more for the averages.
        """
        new = 0
        rows = rows_of(self.name, "ads", ads, "(id, locations, text, type, value)", 5, 5)
        for page in pages(rows, ADS_PER_BATCH):
            new += yield from self._index(page)
        return new

    @operation
    def remove(self, ad_id: str) -> Operation[bool]:
        """Remove an ad with its counts; return whether it existed. Cost: one exchange.

        The averages of its type keep what it has earned.
        """
        written = yield from self._parts.write([check_id(self.schema, ad_id)])
        return written.existing > 0

    @operation
    def get(self, ad_id: str) -> Operation[Ad | None]:
        """Return an ad as it is now; None if there is none. Cost: one exchange."""
        part = self._parts.of(check_id(self.schema, ad_id))
        [fields] = yield from self._parts.send([part.call("ads/get", [ad_id])])
        if fields is None:
            return None
        with self._parts.naming_place(ad_id):
            return ad_of(ad_id, part.tag, *fields)

    @operation
    def averages(self) -> Operation[dict[str, float]]:
        """Return the clicks per 1,000 views of ``cpc`` ads, and the actions of ``cpa`` ads.

        By type, 1 where there are none yet. Cost: one exchange.
        """
        replies = yield from self._parts.send(
            [
                Command(part.to, part.state, ("HGETALL", f"{part.tag}types"))
                for part in self._parts.primary
            ]
        )
        averages = averages_of(replies)
        self._cached = dict(averages), self._clock.monotonic() + self._ttl
        return averages

    @stream
    def check(self) -> Stream[Damage]:
        """Read everything, and yield the damage; change nothing.

        As `shardkit.search.SearchIndex.check`; also the counts of ads and of types, and bonuses.

        Cost: an exchange for about 500 words of ads, for 20,000 postings, for 64 keys of the
        lexicon, for 1,000 words of a chunk; three for 64 ads.
        """
        yield from check_parts(
            self._parts,
            lambda ad_id, stored, key: (
                read_ad(attributes_in(stored), key),
                recovered_ad(self.schema, ad_id, stored, key, {}, True),
            ),
            _check_counts,
        )
        for part in self._parts.primary:
            yield from confirmed(_check_types, part)
            try:
                words, _, chunks = yield from state_of(part)
            except DamagedDataError:  # reported before
                continue
            for chunk in chunks:
                for page in pages(range(1, words), _WORDS_AT_ONCE):
                    yield from confirmed(_check_bonuses, part, chunk, page)

    # ---- serving

    @operation
    def target(
        self, locations: Iterable[str], text: str = "", *, partial: bool = False
    ) -> Operation[Served | None]:
        """Choose the ad to show, and record its view.

        Among the ads for any of the locations, the one with the highest expected income wins: its
        eCPM, plus half the smallest and half the largest bonus of the words that it shares with the
        text. Of equal ads the first by id wins. Of an ad about 500 words are counted.

        After every 100th view, an ad that has had a click (an action) is estimated again.

        Args:
            locations: where it would be shown; without any, no ad is found.
            text: the text of the page; it may have no usable words.
            partial: if shards fail, choose among the ads of the others.

        Returns:
            The target's id, valid for 15 minutes for clicks, and the ad's id. None if there is no
            ad for these locations; then no id is used up.

        Raises:
            InvalidArgumentError: a location or the text is not text, or the text has more than
                4,000 different words.
            ShardErrors: shards failed, and a partial choice was not requested; or all failed; or
                the view could not be recorded.

        Cost: two exchanges: one with all parts, one with the ad's; both again if that ad is removed
        in between. A part checks all its ads for the locations, some thousand in an exchange, so
        that its server serves others in between.
        """
        places = check_locations(f"{self.name}: target", locations)
        words = list(dict.fromkeys(self.schema.analyzer.terms(text)))
        if len(words) > MAX_TERMS:
            raise InvalidArgumentError(
                f"{self.name}: target: a text of {counted(len(words), 'different word')}",
                f"give at most {MAX_TERMS:,}: the page's main topics",
            )
        number = list(ATTRIBUTES).index("location") + 1
        wanted = [value_term(number, place.encode()) for place in places]
        arguments: list[Argument] = [len(wanted), *wanted, *words]
        parts = self._parts.primary
        target = ""

        def call(number: int, place: tuple[int, int]) -> Command:
            return parts[number].call("ads/target", [WORK_PER_CALL, *place, *arguments])

        for _ in range(MAX_ATTEMPTS if wanted else 0):
            slices, _, _ = yield from self._parts.query(call, end=0, version=2, partial=partial)
            best = [
                (-float(reply[4]), stored_text(part.to, part.state, reply[3]))
                for part, of_part in slices
                for reply in of_part
                if len(reply) > 3
            ]
            if not best:
                return None
            _, ad_id = min(best)
            target = target or self._clock.new_id(16)
            view = self._record("ads/serve", target, ad_id, [TARGET_SECONDS, *words])
            # The script recognises a target that was recorded before.
            [recorded] = yield [view._replace(idempotent=True)]
            if recorded:
                return Served(target, ad_id)
        return None

    @operation
    def record_click(self, target: str, ad_id: str, *, action: bool = False) -> Operation[bool]:
        """Record a click on an ad that was shown, or the ``action`` that followed it.

        ``target`` and ``ad_id`` are what `target` returned. One click and one action are counted
        for each target: repeated ones change nothing. A click on a ``cpa`` ad keeps the target for
        another 15 minutes, for its action.

        Returns:
            Whether it was counted; False if it had been already.

        Raises:
            InvalidArgumentError: the target does not exist or is older than 15 minutes; it showed
                another ad; or the ad was removed.
            ShardErrors: the shard failed. If it is unclear whether it was counted, record it again.

        Cost: one exchange. The ad is estimated again.
        """
        check_id(self.schema, ad_id)
        event = "a" if action else "c"
        where = f"{self.name}: target {shown(target)}"
        if not isinstance(target, str) or not 0 < len(utf8(target)) <= MAX_TARGET_BYTES:
            raise InvalidArgumentError(where, "give the target id that `target` returned")
        click = self._record("ads/click", target, ad_id, [event, TARGET_SECONDS])
        [result] = yield from self._parts.send([click])
        if result >= 0:
            return bool(result)
        message, remedy = {
            -1: (" does not exist", "record clicks within 15 minutes"),
            -2: (f" did not show ad {shown(ad_id)}", "give the ad that `target` returned"),
            -3: (f": ad {shown(ad_id)} was removed", "drop the click: the ad's counts are gone"),
        }[result]
        raise InvalidArgumentError(f"{where}{message}", remedy)

    @operation
    def update(self, ad_id: str) -> Operation[bool]:
        """Estimate an ad again by its counts; return whether it exists. Cost: one exchange.

        This happens automatically after every click, and after every 100th view.
        """
        part = self._parts.of(check_id(self.schema, ad_id))
        [[existing, _]] = yield from self._parts.send([_refresh(part, [ad_id], False)])
        return bool(existing)

    def _index(self, ads: Sequence[Sequence[Any]]) -> Operation[int]:
        checked = [check_ad(self.schema, ad) for ad in ads]
        cached = self._cached
        if cached is not None and self._clock.monotonic() < cached[1]:
            averages = cached[0]
        else:
            averages = yield from Ads.averages.steps(self)
        prepared = [ad.prepared(self.schema, averages) for ad in checked]
        return (yield from self._parts.write(prepared)).new

    def _record(self, name: str, target: str, ad_id: str, more: Sequence[Argument]) -> Command:
        key = f"target:{target}"
        return self._parts.of(ad_id).call(name, [ad_id, *more], key=key, write=True)


def _refresh(part: IndexPart, ids: Sequence[str], rebuilt: bool) -> Command:
    return part.call("ads/refresh", [int(rebuilt), *ids], write=rebuilt)


_WORDS_AT_ONCE = 1_000
_AGAIN = "remove the ad, and index it again"
_LOSES = "its counts"


def _check_counts(part: IndexPart, ads: Documents) -> Operation[Suspicions]:
    notes: Suspicions = []
    keys = [f"{part.tag}ad:".encode() + ad_id for _, ad_id in ads]
    all_entries = yield from contents(part.to, "HASH", keys, notes, _AGAIN, _LOSES)
    numbered = {(b"%d" % number, ad_id) for number, ad_id in ads}
    for (number, ad_id), key, entries in zip(ads, keys, all_entries, strict=True):
        if not entries:
            continue
        unread = _check_numbers(part, key, entries, _AGAIN, _LOSES)
        own = dict(entries).get(b"number", b"none")
        if not unread and (own, ad_id) not in numbered:  # two numbers of an ad are reported before
            other = damage(part.to, key, f"the counts of number {own!r}", f"those of {number}")
            unread.append(Suspicion(other, _AGAIN, _LOSES))
        notes += unread
    return notes


def _check_types(part: IndexPart) -> Operation[Suspicions]:
    notes: Suspicions = []
    key = f"{part.tag}types"
    [entries] = yield from contents(part.to, "HASH", [key], notes, "delete the key", "averages")
    return notes + _check_numbers(part, key, entries, "delete the key", "averages")


def _check_numbers(
    part: IndexPart, key: str | bytes, entries: Sequence[tuple[bytes, Any]], repair: str, loses: str
) -> Suspicions:
    try:
        for name, text in entries:
            stored_integer(part.to, key, shown(name), text)
    except DamagedDataError as error:
        return [Suspicion(error, repair, loses)]
    return []


def _check_bonuses(part: IndexPart, chunk: int, words: Sequence[int]) -> Operation[Suspicions]:
    notes: Suspicions = []
    keys = [f"{part.tag}bonus:{chunk}:{word}" for word in words]
    all_entries = yield from contents(part.to, "HASH", keys, notes, "delete the key", "bonuses")
    for key, entries in zip(keys, all_entries, strict=True):
        for place, text in entries:
            finite = False
            with suppress(ValueError):
                finite = math.isfinite(float(text))
            wrong = not place.isdigit() or len(place) > 9 or int(place) >= part.chunk
            if wrong or not finite:
                error = damage(part.to, key, f"{shown(place)}={shown(text)}", "a bonus")
                notes.append(Suspicion(error, "delete the key", "bonuses"))
                break
    return notes
