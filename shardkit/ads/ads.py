"""Ad targeting: the ad that is expected to bring most, for a place and a page, over many servers.

An ad is a document of the search index (`shardkit.search.index`), whole on one part: its words are
those of its text and its locations, and a column has what it is expected to bring (its eCPM, see
`shardkit.ads.pricing`). What was counted of it, and what its words have turned out to be
worth more or less than itself, is beside that::

    {ads:0}:d:shoes-1        STRING the document: type, value, locations, words
    {ads:0}:a:1:0            STRING the eCPM of ads 0, 1, 2 … of the part, 8 bytes each
    {ads:0}:ad:shoes-1       HASH   v=1200 c=31 v:running=80 c:running=9 …
    {ads:0}:bonus:0:17       HASH   of word 17: 0=86.7 …     only of words that were clicked
    {ads:0}:types            HASH   cpc:v=51200 cpc:c=1100 …
    {ads:0}:target:9f2c…     HASH   ad=shoes-1 words=["running"]     for 15 minutes

    target(["Berlin"], "Running in the park")
      ├─► part 0   ads for Berlin: eCPM + half the smallest and half the largest bonus
      ├─► part 1   of the words that ad and text share          ─► each part's best
      └─► part 2
      ──► the best of these: its view is recorded on its part, under a new target id

A bonus is what 1,000 views of the ad bring on pages with the word, less what they bring at all. It
can be negative; it is 0 for a word of which no view has brought anything yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from secrets import token_hex
from typing import Final

from shardkit.ads.pricing import CachedAverages, averages_of
from shardkit.ads.records import (
    ATTRIBUTES,
    Ad,
    Served,
    ad_of,
    check_ad,
    check_locations,
    location_word,
    utf8,
)
from shardkit.errors import InvalidArgumentError, ShardFailure
from shardkit.lua import script
from shardkit.operations.commands import Argument, Command, Transaction, script_call
from shardkit.operations.operation import Deferred, Driver, Face, Operation, operation, pages
from shardkit.search.base import InParts
from shardkit.search.model.documents import PreparedDocument, check_id, write_arguments
from shardkit.search.model.schema import CHUNK, Schema
from shardkit.search.shards import Part
from shardkit.search.text.analyzer import Analyzer
from shardkit.structures.base.arguments import shown
from shardkit.structures.base.parameters import open_all

TARGET_SECONDS: Final = 15 * 60
AVERAGES_TTL: Final = 60.0
MAX_TERMS: Final = 10_000
MAX_TARGET_BYTES: Final = 256
ADS_PER_BATCH: Final = 500
# How often another ad is looked for because the best one was removed just then.
MAX_ATTEMPTS: Final = 10


class Ads(InParts[Face]):
    """Ads, chosen by place and text. Made by ``kit.ads``.

    Args:
        driver: what runs its operations.
        component: where its keys live; if it is sharded, of as many shards as there are parts.
        name: the name of the index, in its keys.
        shards: in how many parts it is.
        analyzer: what makes words of texts.
        averages_ttl: for how many seconds a process uses the averages, by which new ads are
            estimated; 0 to read them for every ad.
        new_id: makes target ids, which must be unique; by default 32 random hexadecimal digits.
        monotonic: seconds that never go back.
        chunk: how many ads a chunk of postings is about, a power of two.

    Raises:
        InvalidArgumentError: an argument is out of range.

    A process that has not yet compared the parameters needs one more exchange to write.
    """

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str = "ads",
        shards: int = 1,
        analyzer: Analyzer | None = None,
        averages_ttl: float = AVERAGES_TTL,
        new_id: Callable[[], str] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        chunk: int = CHUNK,
    ) -> None:
        if not isinstance(averages_ttl, int | float) or not averages_ttl >= 0:
            raise InvalidArgumentError(
                f"{name}: averages_ttl={shown(averages_ttl)}", "give seconds, 0 or more"
            )
        schema = Schema(
            name,
            shards,
            attributes=ATTRIBUTES,
            analyzer=analyzer or Analyzer(),
            keep_text=False,
            phrases=False,
            chunk=chunk,
        )
        parameters = {
            "kind": "ads",
            "shards": shards,
            "analyzer": schema.analyzer.fingerprint,
            "chunk": chunk,
        }
        super().__init__(driver, component, schema, parameters)
        self._averages = CachedAverages(averages_ttl, monotonic)
        self._new_id = new_id or _random_id

    @property
    def deferred(self) -> Ads[Deferred]:
        """These ads with the face whose calls return steps."""
        return self._deferred()  # type: ignore[return-value]

    # ---- ads

    @operation
    def index(
        self,
        ad_id: str,
        locations: Iterable[str],
        text: str,
        type: str,  # noqa: A002 - what everybody calls it
        value: float,
    ) -> Operation[bool]:
        """Index an ad, or change one; return whether it is new.

        An ad that was shown before keeps its counts, except those of words that it has no more.
        Once it has brought a click (an action), it is estimated by them.

        Args:
            ad_id: its id, any text of at most 1,024 bytes.
            locations: where it may be shown, 1 to 1,000; any text, compared as it is.
            text: what its words are taken from; may be empty.
            type: what is paid for: ``cpm``, 1,000 views; ``cpc``, a click; ``cpa``, an action.
            value: how much is paid, 0 or more.

        Raises:
            InvalidArgumentError: something cannot be used; nothing was written then.
            ParameterMismatchError: the ads were created with other parameters.
            ShardErrors: the part failed.

        Cost: one exchange; one more if the averages are not known or too old (`averages_ttl`).
        """
        return (yield from self._index([(ad_id, locations, text, type, value)])) == 1

    @operation
    def index_many(
        self, ads: Iterable[tuple[str, Iterable[str], str, str, float]]
    ) -> Operation[int]:
        """Index ads; return how many are new.

        Args:
            ads: what `index` takes, a tuple each. Any iterable, also a generator: it is read as
                they are sent.

        Raises:
            InvalidArgumentError: something cannot be used; of its 500 nothing was written then, but
                those before.
            ParameterMismatchError: the ads were created with other parameters.
            ShardErrors: parts failed; ads of the others were indexed. All may be indexed again.

        Cost: one exchange, a transaction a part, for 500 ads; at times one more for the averages.
        """
        new = 0
        for page in pages(ads, ADS_PER_BATCH):
            new += yield from self._index(page)
        return new

    @operation
    def remove(self, ad_id: str) -> Operation[bool]:
        """Remove an ad with its counts; return whether it was there. Cost: one exchange.

        The averages of its type keep what it has brought.
        """
        return (yield from self._write([check_id(self._schema, ad_id)])) == 1

    @operation
    def get(self, ad_id: str) -> Operation[Ad | None]:
        """Return an ad as it is now; None if it is not there. Cost: one exchange."""
        part = self._part(check_id(self._schema, ad_id))
        [found] = yield from self._ask([part.call("ads/get", [self._schema.chunk, ad_id])])
        return None if found is None else ad_of(ad_id, *found)

    @operation
    def averages(self) -> Operation[dict[str, float]]:
        """Return how many clicks 1,000 views of ``cpc`` ads bring, and actions of ``cpa`` ads.

        They are counted on each part, and summed: by what the parts have said in this exchange.

        Returns:
            By type; 1 where no view has brought any yet.

        Cost: one exchange.
        """
        replies = yield from self._ask(
            [
                Command(part.to, part.state, ("HGETALL", f"{part.tag}types"), idempotent=True)
                for part in self._all
            ]
        )
        averages = averages_of(replies)
        self._averages.learn(dict(averages))
        return averages

    # ---- showing them

    @operation
    def target(
        self, locations: Iterable[str], text: str = "", *, partial: bool = False
    ) -> Operation[Served | None]:
        """Choose the ad to show, and record its view.

        Of the ads for any of the locations the one that is expected to bring most: its eCPM, plus
        half the smallest and half the largest bonus of the words that it shares with the text. Of
        equal ones the first by id.

        After every 100th view an ad that has brought a click (an action) is estimated anew.

        Args:
            locations: where it would be shown; without any there is no ad.
            text: the text of the page; it may have no usable words.
            partial: choose among the ads of those parts that answer, if others fail.

        Returns:
            The target's id, kept for 15 minutes for clicks, and the ad's id. None if there is no ad
            for these locations; no id is spent then.

        Raises:
            InvalidArgumentError: a location is no text; or the text none, or has more than 10,000
                different words.
            ParameterMismatchError: the ads were created with other parameters.
            ShardErrors: parts failed, and a partial choice was not wanted; or all failed; or the
                view could not be recorded.

        Cost: two exchanges: one with all parts, one with that of the ad. If that ad is removed in
        between, they are repeated. A part looks at all its ads for the locations.
        """
        places = check_locations(f"{self.name}: target", locations)
        words = self._words(text)
        asked = [location_word(place) for place in places]
        arguments: list[Argument] = [self._schema.chunk, len(asked), *asked, *words]
        target = ""
        for _ in range(MAX_ATTEMPTS if asked else 0):
            replies = yield from self._ask(
                [part.call("ads/target", arguments) for part in self._all],
                partial=partial,
            )
            found = [one for one in replies if one and not isinstance(one, ShardFailure)]
            if not found:
                return None
            _, ad_id = min((-float(ecpm), ad.decode()) for ad, ecpm in found)
            target = target or self._new_id()
            recording = self._recording("ads/serve", target, ad_id, [TARGET_SECONDS, *words])
            # The script knows a target that was recorded before.
            [there] = yield [recording._replace(idempotent=True)]
            if there:
                return Served(target, ad_id)
        return None

    @operation
    def record_click(self, target: str, ad_id: str, *, action: bool = False) -> Operation[bool]:
        """Record a click on an ad that was shown, or what the user did after it.

        Of each target one click and one action are counted: repeated ones change nothing. A click
        on a ``cpa`` ad keeps the target for another 15 minutes, for its action.

        Args:
            target: the id that `target` gave.
            ad_id: the ad that it gave.
            action: whether it is an action, not a click.

        Returns:
            Whether it was counted; False if it had been before.

        Raises:
            InvalidArgumentError: the target is not known, also when it was shown more than 15
                minutes ago; it showed another ad; or the ad was removed.
            ShardErrors: the part failed. If nobody knows whether it was counted, record it again.

        Cost: one exchange. The ad is estimated anew.
        """
        check_id(self._schema, ad_id)
        what = "a" if action else "c"
        where = f"{self.name}: target {shown(target)}"
        if not isinstance(target, str) or not 0 < len(utf8(target)) <= MAX_TARGET_BYTES:
            raise InvalidArgumentError(where, "give what `target` returned")
        recording = self._recording("ads/click", target, ad_id, [what, TARGET_SECONDS])
        [counted] = yield from self._ask([recording])
        if counted >= 0:
            return bool(counted)
        message, remedy = {
            -1: (" is not known", "clicks are recorded within 15 minutes"),
            -2: (f" did not show ad {shown(ad_id)}", "give the ad that `target` returned"),
            -3: (f": ad {shown(ad_id)} was removed", "its counts went with it"),
        }[counted]
        raise InvalidArgumentError(f"{where}{message}", remedy)

    @operation
    def update(self, ad_id: str) -> Operation[bool]:
        """Estimate an ad anew by its counts; return whether it is there. Cost: one exchange.

        This happens by itself after every click, and after every 100th view.
        """
        part = self._part(check_id(self._schema, ad_id))
        [there] = yield from self._ask([self._settling(part, [ad_id])])
        return bool(there)

    # ---- steps

    def _index(self, ads: Sequence[object]) -> Operation[int]:
        checked = [check_ad(self._schema, ad) for ad in ads]
        averages = self._averages.known()
        if averages is None:
            averages = yield from Ads.averages.steps(self)
        prepared = [ad.prepared(self._schema, averages) for ad in checked]
        return (yield from self._write(prepared, new=True))

    def _write(self, ads: Sequence[PreparedDocument | str], *, new: bool = False) -> Operation[int]:
        """Write ads, remove those of which there is the id.

        Returns:
            How many were there before; (new) how many were not.
        """
        if not ads:
            return 0
        yield from open_all([self.meta], create=True)
        batch = []
        by_part = self._by_part(ads, _id)
        for part, some in by_part:
            writing = self._writing(part, write_arguments(self._schema, some))
            settling = self._settling(part, [_id(one) for one in some])
            batch.append(Transaction(part.to, part.state, (writing, settling)))
        replies = yield batch
        before = sum(sum(written[2:]) for written, _ in replies)
        return sum(len(some) for _, some in by_part) - before if new else before

    def _settling(self, part: Part, ids: Sequence[str]) -> Command:
        arguments: list[Argument] = [self._schema.chunk, *ids]
        return script_call(part.to, script("ads/settle"), [part.state], arguments, idempotent=True)

    def _recording(self, name: str, target: str, ad_id: str, more: Sequence[Argument]) -> Command:
        part = self._part(ad_id)
        keys = [part.state, f"{part.tag}target:{target}"]
        return script_call(part.to, script(name), keys, [self._schema.chunk, ad_id, *more])

    def _words(self, text: object) -> list[str]:
        if not isinstance(text, str):
            raise InvalidArgumentError(f"{self.name}: target: text={shown(text)}", "give text")
        words = list(dict.fromkeys(self._schema.analyzer.terms(text)))
        if len(words) > MAX_TERMS:
            raise InvalidArgumentError(
                f"{self.name}: target: a text of {len(words):,} different words",
                f"give at most {MAX_TERMS:,}: what the page is about",
            )
        return words


def _random_id() -> str:
    return token_hex(16)


def _id(ad: PreparedDocument | str) -> str:
    return ad if isinstance(ad, str) else ad.id
