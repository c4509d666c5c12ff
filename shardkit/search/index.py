r"""An index of documents over shards: each document whole in one part, a query sent to all parts.

Part n lives on shard n of a component, all its keys with the tag ``{name:n}``; on an unsharded
component or a cluster the parts are there by their tags. A document is in part ``crc32(id) % n``.
A part numbers its documents and words as they come, and has an inverted index of them::

    {search:0}:state          HASH    docs, next number, next word, version; c0 …: documents a chunk
    {search:0}:l:red          HASH    redis → 7, redistribute → 4711 …     a word's id, by its first
    {search:0}:starts         SET     red, sha …                           three bytes
    {search:0}:r:0:3          HASH    5 → postings, 6 → *, …               of 128 words in a chunk
    {search:0}:w:0:390        STRING  postings of word 390 = 3 · 128 + 6   more than 14 documents
    {search:0}:d:guide.md     STRING  number, words in order, attributes, text
    {search:0}:n:0            HASH    0 → guide.md, 1 → …                  of 128 documents
    {search:0}:v:0            STRING  a bit a document: whether it is there
    {search:0}:a:1:0          STRING  8 bytes a document: a number, a date; 4: a value of text
    {search:0}:y:3            HASH    values of text, by their ids
    {search:0}:q:5f3a…        STRING  a result that is kept for its next pages; always with a TTL

    a posting: four bytes                               postings of a word, by number
    ┌───────────────────────┬────────┬─────────┐        ┌─────────┬─────────┬─────────┐
    │ number in its chunk   │ impact │ fields  │        │ 17 83 1 │ 18 20 1 │ 40 83 3 │ …
    │ 2 bytes               │ 1      │ a bit   │        └─────────┴─────────┴─────────┘
    └───────────────────────┴────────┴─────────┘

A chunk is 65,536 numbers. Most words are in few documents: up to 14 postings are 56 bytes, which a
listpack takes, so 128 such words share a HASH. In a document the words are in order, three bytes of
an id each: that tells which ones vanish when it is indexed anew or removed, and a phrase is found
by looking for its bytes there. A value of text is a word too, one that no text has, so that it is
found as words are. Columns have what documents are sorted and filtered by side by side: one read
for a chunk instead of one for a document.

13,968 passages of documentation, 48 different words each (83 with repetitions; 33,243 words in
all), bytes a passage on Valkey 9.1.2 / Redis 7.0.15::

    words, attributes                          802 /   896      of it a posting  6.2 / 6.9
    with the order of words, for phrases       907 / 1,011
    with text, for snippets                  1,318 / 1,455
    the book's: a SET a word and document    3,098 / 7,481      a posting       64.3 / 155

A query's time is its postings': 0.6 microseconds for each of a word's, with scores and the best 20
found; what sorts or filters by columns takes some 0.5 a document, a phrase 6 to 12 a document that
has all of its words. To index a document takes 7 a posting. (Of the server, while others worked on
the two cores of the machine.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Final

from shardkit.errors import InvalidArgumentError
from shardkit.lua import script
from shardkit.operations.commands import Command, script_call
from shardkit.operations.operation import Deferred, Driver, Face, Operation, operation, pages
from shardkit.search.model.documents import (
    Attributes,
    Document,
    PreparedDocument,
    Text,
    check_id,
    prepare,
    unpacked,
    write_arguments,
)
from shardkit.search.model.schema import Schema
from shardkit.search.model.term_counts import TermStatistics
from shardkit.search.search import Searching
from shardkit.search.searcher import Searcher
from shardkit.search.shards import PRIMARY, Parts
from shardkit.structures.base.arguments import check_name, shown
from shardkit.structures.base.parameters import Metadata, open_all
from shardkit.structures.base.server_clock import ServerClock

DOCUMENTS_PER_BATCH: Final = 100  # of a part
TERMS_PER_BATCH: Final = 20_000
IDS_PER_BATCH: Final = 1_000
BUCKETS_PER_CALL: Final = 20
STATISTICS_TTL: Final = 10.0


@dataclass(frozen=True, slots=True)
class PartInfo:
    """What a part of an index has.

    Attributes:
        documents: how many documents.
        words: how many words and values of text, also those that no document has any more.
        numbers: how many numbers were given to documents.
        version: how often it was written to.
    """

    documents: int
    words: int
    numbers: int
    version: int


class SearchIndex(Searching[Face]):
    """An index of documents over shards. Made by ``kit.search``.

    Args:
        driver: what runs its operations.
        component: where its keys live; if it is sharded, of as many shards as the index has.
        schema: the parameters.
        read_from: components of as many shards that are replicas of it: searches go there.
        statistics_ttl: for how many seconds the counts of words, by which relevance is weighed, are
            used; 0 to read them for every search.
        clock: tells the time.
        new_id: makes the ids of results that servers keep.
    """

    def __init__(
        self,
        driver: Driver,
        component: str,
        schema: Schema,
        read_from: Sequence[str] = (),
        statistics_ttl: float = STATISTICS_TTL,
        clock: ServerClock | None = None,
        new_id: Callable[[], str] = lambda: token_hex(8),
    ) -> None:
        check_name(schema.name)
        if "{" in schema.name or "}" in schema.name:
            raise InvalidArgumentError(
                f"name={shown(schema.name)} of an index", "leave out braces: keys have a tag"
            )
        if isinstance(read_from, str):
            raise InvalidArgumentError(
                f"{schema.name}: read_from={shown(read_from)}", f"give a list: [{read_from!r}]"
            )
        seconds = isinstance(statistics_ttl, int | float) and not isinstance(statistics_ttl, bool)
        if not seconds or not statistics_ttl >= 0:
            raise InvalidArgumentError(
                f"{schema.name}: statistics_ttl={shown(statistics_ttl)}", "give seconds, 0 or more"
            )
        parts = Parts(schema, component, read_from)
        # With the first part, so that a component of another number of shards is refused before.
        metas = [Metadata(part.to, schema.name, schema.parameters) for part in parts.first]
        self.meta = metas[PRIMARY]
        statistics = TermStatistics(statistics_ttl, (clock or ServerClock()).monotonic)
        finder = Searcher(schema, parts, metas, statistics, new_id)
        super().__init__(driver, component, schema, parts, finder)
        self._statistics = statistics

    @property
    def deferred(self) -> SearchIndex[Deferred]:
        """This index with the face whose calls return steps."""
        return self._deferred()  # type: ignore[return-value]

    @operation
    def index(
        self, doc_id: str, text: Text, attributes: Attributes | None = None
    ) -> Operation[int]:
        """Index a document, in place of one of the same id; return how many words it has.

        Args:
            doc_id: its id, any text of at most 1,024 bytes.
            text: its text, that of the first field; or text by field.
            attributes: numbers (NaN is none), dates (or datetimes with tzinfo), text, or several
                texts as a list, by name. None is no value.

        Returns:
            How many different words there are in its text, without stop words.

        Raises:
            InvalidArgumentError: something cannot be indexed; nothing was written then.
            ParameterMismatchError: the index was created with other parameters.
            ShardErrors: the part failed.

        Cost: one exchange; one command of some microseconds a word.
        """
        document = prepare(self.schema, doc_id, text, attributes)
        yield from self._write([document])
        return len({term for terms in document.fields for term in terms})

    @operation
    def index_many(self, documents: Iterable[Sequence[Any]]) -> Operation[int]:
        """Index many documents; return how many.

        Args:
            documents: an id, text and, if there are any, attributes each, as `index` takes them.
                Any iterable of them, also a generator: it is read as they are sent.

        Raises:
            InvalidArgumentError: something cannot be indexed; of its batch nothing was written
                then, but those before.
            ParameterMismatchError: the index was created with other parameters.
            ShardErrors: parts failed; documents of the others were indexed. Whatever of a batch was
                may be indexed again.

        Cost: one exchange with each part for up to 100 documents, or 20,000 words, of that part.
        """
        count = 0
        batch: list[PreparedDocument] = []
        sizes: dict[int, list[int]] = {}
        for given in documents:
            document = self._prepared(given)
            batch.append(document)
            size = sizes.setdefault(self._parts.number(document.id), [0, 0])
            size[0] += 1
            size[1] += document.size
            if size[0] >= DOCUMENTS_PER_BATCH or size[1] >= TERMS_PER_BATCH:
                yield from self._write(batch)
                count += len(batch)
                batch, sizes = [], {}
        yield from self._write(batch)
        return count + len(batch)

    @operation
    def remove(self, doc_id: str) -> Operation[bool]:
        """Remove a document; return whether it was there. Cost: one exchange."""
        return (yield from self._write([check_id(self.schema, doc_id)])) > 0

    @operation
    def remove_many(self, ids: Iterable[str]) -> Operation[int]:
        """Remove documents, 1,000 an exchange; return how many were there.

        Raises:
            InvalidArgumentError: an id is none; of its 1,000 nothing was removed then.
            ShardErrors: parts failed; documents of the others were removed.
        """
        removed = 0
        for page in pages((check_id(self.schema, one) for one in _listed(ids)), IDS_PER_BATCH):
            removed += yield from self._write(page)
        return removed

    @operation
    def get(self, doc_id: str) -> Operation[Document | None]:
        """Return a document with its attributes and, if it is kept, its text. Cost: one exchange.

        Returns:
            None if it is not there.
        """
        found = yield from self._read([check_id(self.schema, doc_id)])
        return found.get(doc_id)

    @operation
    def get_many(self, ids: Iterable[str]) -> Operation[dict[str, Document]]:
        """Return those documents that are there, by id. Cost: one exchange for 1,000."""
        found: dict[str, Document] = {}
        for page in pages((check_id(self.schema, one) for one in _listed(ids)), IDS_PER_BATCH):
            found |= yield from self._read(page)
        return found

    @operation
    def info(self) -> Operation[list[PartInfo]]:
        """Return what each part has. Cost: one exchange."""
        names = ("docs", "words", "next", "version")
        replies = yield from self._finder.ask(
            [
                Command(part.to, part.state, ("HMGET", part.state, *names), idempotent=True)
                for part in self._parts.written
            ]
        )
        infos = []
        for docs, words, numbers, version in replies:
            infos.append(
                PartInfo(int(docs or 0), int(words or 1) - 1, int(numbers or 0), int(version or 0))
            )
        return infos

    @operation
    def delete(self) -> Operation[int]:
        """Remove the index with its parameters; return how many documents it had.

        Nobody else may be writing to it. Results that servers keep go when their time is over.

        Cost: one exchange for some 2,500 documents or words of each part.
        """
        yield from open_all([self.meta])
        removed = 0
        places = dict.fromkeys(range(self.schema.shards), 0)
        while places:
            replies = yield [
                script_call(
                    self._parts.written[n].to,
                    script("search/clear"),
                    [self._parts.written[n].state],
                    [self.schema.chunk, len(self.schema.columns), place, BUCKETS_PER_CALL],
                )
                for n, place in places.items()
            ]
            removed += sum(reply[1] for reply in replies)
            following = zip(places, (reply[0] for reply in replies), strict=True)
            places = {n: place for n, place in following if place}
        yield [Command(self._parts.written[0].to, self.meta.key, ("UNLINK", self.meta.key))]
        self.meta.checked = False
        self._statistics.forget()
        return removed

    # ---- steps

    def _prepared(self, given: Sequence[Any]) -> PreparedDocument:
        if not isinstance(given, list | tuple) or not 2 <= len(given) <= 3:
            raise InvalidArgumentError(
                f"{self.name}: document {shown(given)}", "give (id, text) or (id, text, attributes)"
            )
        return prepare(self.schema, *given, *[None] * (3 - len(given)))

    def _write(self, documents: Sequence[PreparedDocument | str]) -> Operation[int]:
        """Index documents, remove those of which there is the id; return how many were there."""
        if not documents:
            return 0
        yield from open_all([self.meta], create=True)
        last = {one if isinstance(one, str) else one.id: one for one in documents}
        by_part: dict[int, list[PreparedDocument | str]] = {}
        for doc_id, one in last.items():
            by_part.setdefault(self._parts.number(doc_id), []).append(one)
        batch = []
        for number, some in by_part.items():
            part = self._parts.written[number]
            arguments = [self.schema.chunk, *write_arguments(self.schema, some)]
            batch.append(script_call(part.to, script("search/write"), [part.state], arguments))
        replies = yield batch
        return sum(sum(reply[2:]) for reply in replies)

    def _read(self, ids: Sequence[str]) -> Operation[dict[str, Document]]:
        parts = self._parts.written
        stored = yield from self._finder.ask(
            [parts[self._parts.number(one)].document(one) for one in ids]
        )
        return {
            one: unpacked(self.schema, one, value)
            for one, value in zip(ids, stored, strict=True)
            if value
        }


def _listed(ids: Iterable[str]) -> Iterable[str]:
    if isinstance(ids, str):
        raise InvalidArgumentError(
            f"ids={shown(ids)} would be its characters", "give a list of ids"
        )
    return ids
