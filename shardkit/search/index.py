"""An index of documents over shards: a document is whole in one part, a query goes to all parts.

A document is in part ``crc32(id) % n``. A part numbers its documents and words as they come, and
keeps an inverted index of them; docs/search.md lists its keys, and has measurements. A posting has
four bytes: two of the document's number in its chunk of 65,536, one of the impact, and a bit for
each field that has the word.

Most words are in few documents: up to 14 postings are 56 bytes, and fit a listpack, so 128 such
words share a HASH. A document has its words in order, as ids of three bytes: they tell which
postings to remove when it is replaced or removed, and a phrase is found by searching for its bytes
there. A value of text is a word too, one that no text contains. Columns hold side by side what
documents are sorted and filtered by: one read for a chunk instead of one for each document.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Unpack

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import Seconds, rows_of, shown
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Page,
    Stream,
    operation,
    pages,
    stream,
)
from shardkit.search.check import check_parts
from shardkit.search.documents import (
    Attributes,
    Document,
    Hit,
    PreparedDocument,
    Results,
    Text,
    check_id,
    check_ids,
    names_words,
    prepare,
    recovered,
    unpack,
    write_arguments,
)
from shardkit.search.parts import IDS_PER_BATCH, DocumentForm, DocumentStructure, IndexParts
from shardkit.search.query import Node
from shardkit.search.schema import Schema, TermStatistics
from shardkit.search.searcher import (
    DEFAULT_LIMIT,
    MAX_EXPANSIONS,
    MAX_LIMIT,
    MAX_OFFSET,
    ResultOptions,
    Searcher,
    SearchOptions,
    search_request,
)
from shardkit.structures.base.arguments import check_integer, check_seconds
from shardkit.structures.base.check import Damage
from shardkit.structures.base.server_clock import ServerClock

DOCUMENTS_PER_BATCH: Final = 100  # of a part
TERMS_PER_BATCH: Final = 20_000
STATISTICS_TTL: Final = 10.0
PAGE_SIZE: Final = 1_000


@dataclass(frozen=True, slots=True)
class PartInfo:
    """The content of a part of an index.

    Attributes:
        words: the number of words and values of text, unused ones included.
        numbers: the document numbers issued so far.
        version: the number of writes so far.
    """

    documents: int
    words: int
    numbers: int
    version: int


class SearchIndex(DocumentStructure[Face]):
    """An index of documents over shards. Made by ``kit.search``.

    Args:
        component: where the keys live; if sharded, with as many shards as the index has parts.
        read_from: components with as many shards: replicas, which serve searches.
        statistics_ttl: the seconds for which a process caches the counts of words, which weight
            relevance; 0 to read them for every search.
        clock: tells the time and makes the ids of cached results.

    Raises:
        InvalidArgumentError: an argument cannot be used.

    Calls raise ParameterMismatchError if the index was created with other parameters.
    """

    deferred: DeferredFace[SearchIndex[Deferred]]

    def __init__(
        self,
        driver: Driver,
        component: str,
        schema: Schema,
        read_from: Sequence[str] = (),
        statistics_ttl: Seconds = STATISTICS_TTL,
        clock: ServerClock | None = None,
    ) -> None:
        ttl = check_seconds(schema.name, "statistics_ttl", statistics_ttl, 0, math.inf)
        form = DocumentForm(
            partial(write_arguments, schema), partial(recovered, schema), names_words
        )
        parts = IndexParts(component, schema, schema.parameters, form, read_from)
        super().__init__(driver, parts)
        clock = clock or ServerClock()
        self._statistics = TermStatistics(ttl, clock.monotonic)
        self._searcher = Searcher(self._parts, self._statistics, clock.new_id)

    # ---- documents

    @stream
    def check(self) -> Stream[Damage]:
        """Read everything, and yield the damage; change nothing.

        Damage is a lost or contradictory state or word; a document that cannot be read, or has lost
        its mark, columns or postings; a posting without a document. `rebuild` repairs everything
        but lost documents.

        Cost: an exchange for about 500 words of documents, for 20,000 postings, for 64 documents
        and for 64 keys of the lexicon; scripts of some milliseconds.
        """
        yield from check_parts(self._parts, partial(unpack, self.schema))

    @operation
    def index(
        self, doc_id: str, text: Text, attributes: Attributes | None = None
    ) -> Operation[int]:
        """Index a document, replacing one with the same id; return its number of words.

        Args:
            doc_id: its id, any text of at most 1,024 bytes.
            text: the text of the first field; or text by field.
            attributes: numbers (NaN is none), dates (or datetimes with tzinfo), text, or several
                texts as a list, by name. None is no value.

        Returns:
            The number of different words of its text, without stop words.

        Raises:
            InvalidArgumentError: something cannot be indexed; nothing was written.

        Cost: one exchange; one command that takes some microseconds a word. With more than 1,500
        different words one exchange for 300 of them, and one or more to remove what it replaces.
        """
        document = prepare(self.schema, doc_id, text, attributes)
        yield from self._parts.write([document])
        return len({term for terms in document.fields for term in terms})

    @operation
    def index_many(self, documents: Iterable[Sequence[Any]]) -> Operation[int]:
        """Index many documents; return their number.

        They are any iterable, such as a generator, of ``(id, text)`` or ``(id, text, attributes)``,
        see `index`. It is read while documents are sent.

        Raises:
            InvalidArgumentError: something cannot be indexed. Nothing of its batch was written.
            ShardErrors: shards failed; documents on the others were indexed. Repeat the call.

        Cost: one exchange with each part for about 1,500 words, fewer if documents are replaced.
        """
        count = 0
        batch: list[PreparedDocument] = []
        sizes: dict[int, list[int]] = {}
        what = "(id, text) or (id, text, attributes)"
        for given in rows_of(self.name, "documents", documents, what, 2, 3):
            document = prepare(self.schema, *given, *[None] * (3 - len(given)))
            batch.append(document)
            size = sizes.setdefault(self._parts.number(document.id), [0, 0])
            size[0] += 1
            size[1] += document.size
            if size[0] >= DOCUMENTS_PER_BATCH or size[1] >= TERMS_PER_BATCH:
                yield from self._parts.write(batch)
                count += len(batch)
                batch, sizes = [], {}
        yield from self._parts.write(batch)
        return count + len(batch)

    @operation
    def remove(self, doc_id: str) -> Operation[bool]:
        """Remove a document; return whether it existed.

        Cost: one exchange; more for a document with many words.
        """
        return (yield from self._parts.write([check_id(self.schema, doc_id)])).existing > 0

    @operation
    def get(self, doc_id: str) -> Operation[Document | None]:
        """Return a document with its attributes and, if the index keeps it, its text; or None.

        Cost: one exchange.
        """
        documents = yield from self._read([check_id(self.schema, doc_id)])
        return documents.get(doc_id)

    @operation
    def get_many(self, ids: Iterable[str]) -> Operation[dict[str, Document]]:
        """Return the documents that exist, by id. Cost: one exchange for 1,000."""
        documents: dict[str, Document] = {}
        for page in pages(check_ids(self.schema, ids), IDS_PER_BATCH):
            documents |= yield from self._read(page)
        return documents

    @operation
    def search(self, query: str | Node, **options: Unpack[SearchOptions]) -> Operation[Results]:
        """Find documents.

        Args:
            query: text, see `shardkit.search.parse`, or a tree of nodes such as `AllOf`.
            sort: ``"relevance"`` (the default), the best first; an attribute, with ``-`` before it
                the highest first; or weights by name, of attributes that are numbers and of
                ``relevance``: by the sum of weight x value, the highest first. Documents with equal
                values come in the same order by id.
            ascending: start with the lowest relevance or weighted sum.
            combine: whether a weighted sum leaves out documents that lack one of the attributes
                (``"intersection"``, the default) or takes ``default`` for it (``"union"``).
            default: the value of a missing attribute: 0.
            limit: the number of hits to return, at most 10,000; 20 by default; 0 only counts them.
            offset: the number of hits to skip.
            cursor: the cursor of the page before, in place of ``offset``.
            result: the cached result of the page before. If the servers no longer have it, the
                query runs again.
            cache: the seconds for which servers cache the first 10,000 hits, after each use; a
                read-only replica caches nothing.
            attributes: which attributes to return with each hit; True for all.
            snippets: whether to return snippets; or options of `shardkit.search.snippet`, such as
                ``{"length": 200}``.
            facets: attributes whose values are counted over all matches.
            facet_limit: the number of values of each facet, the most frequent ones; 10.
            partial: if some parts fail, return the results of the others, marked as partial.
            session: any text; searches with the same one read from the same replica.
            plain: take the query literally, as text from a search box: all its words are required,
                and no character is a sign.

        Raises:
            QuerySyntaxError: the query cannot be parsed; the error has the position.
            InvalidArgumentError: another argument cannot be used; or more than 1,000 words begin
                with a prefix; or a facet has more than 10,000 different values in a part.
            ShardErrors: shards failed, and partial results were not requested; or all failed.

        Cost: one exchange. A part with more than some milliseconds of work takes several, so that
        its server serves other clients in between. One more if counts of words are not cached
        (`statistics_ttl`) or the query has a prefix; one more for attributes or snippets with
        ``offset + limit`` above 200. A part reads all postings of the rarest required word, and
        looks these documents up in the postings of the other words.
        """
        return (yield from self._searcher.search(search_request(self.schema, query, **options)))

    @operation
    def page(
        self,
        /,
        query: str | Node,
        number: int = 1,
        limit: int = DEFAULT_LIMIT,
        **options: Unpack[ResultOptions],
    ) -> Operation[Results]:
        """Return a page by its number, from 1 on; see `search` for everything else."""
        check_integer(self.name, "page", number, 1, MAX_OFFSET)
        check_integer(self.name, "limit", limit, 1, MAX_LIMIT)
        request = search_request(
            self.schema, query, offset=(number - 1) * limit, limit=limit, **options
        )
        return (yield from self._searcher.search(request))

    @stream
    def all(
        self,
        /,
        query: str | Node,
        *,
        page_size: int = PAGE_SIZE,
        cursor: str | None = None,
        **options: Unpack[ResultOptions],
    ) -> Stream[Hit]:
        """Iterate over all documents that match, in order, page by page; see `search`.

        ``page_size`` is the number of documents that an exchange reads, at most 10,000; ``cursor``,
        that of a page, is where to begin.

        Cost: one exchange for each page (two with attributes or snippets), which reads the postings
        of everything that matches.
        """
        while True:
            request = search_request(self.schema, query, limit=page_size, cursor=cursor, **options)
            results = yield from self._searcher.search(request)
            yield Page(results.hits)
            cursor = results.cursor
            if cursor is None:
                return

    @operation
    def count(self, query: str | Node | None = None, *, plain: bool = False) -> Operation[int]:
        """Return the number of documents, or of those that match a query. Cost: one exchange."""
        if query is None:
            return (yield from self._parts.count())
        request = search_request(self.schema, query, limit=0, plain=plain)
        results = yield from self._searcher.search(request)
        return results.total

    @operation
    def words(self, prefix: str, limit: int = 100) -> Operation[list[tuple[str, int]]]:
        """Return the first words with a prefix, in order, with their numbers of documents.

        The prefix is spelled as in a query. Words are returned as stored: without accents, in lower
        case, stemmed with a stemmer. ``limit`` is at most 1,000.

        Raises:
            InvalidArgumentError: the prefix is not that of one word, or the limit out of range.

        Cost: one exchange.
        """
        check_integer(self.name, "limit", limit, 1, MAX_EXPANSIONS)
        tokens = self.schema.analyzer.beginnings(prefix)
        if len(tokens) != 1:
            raise InvalidArgumentError(
                f"{self.name}: words({shown(prefix)})", "give the beginning of one word"
            )
        term = tokens[0].term
        _, expansions = yield from self._searcher.expand([], [term], limit)
        return list(expansions[term].items())

    @operation
    def info(self) -> Operation[list[PartInfo]]:
        """Return the content of each part. Cost: one exchange."""
        return [PartInfo(*state) for state in (yield from self._parts.states())]

    def _drop_cached(self) -> None:
        self._statistics.clear()

    def _read(self, ids: Sequence[str]) -> Operation[dict[str, Document]]:
        stored = yield from self._parts.send(
            [self._parts.of(doc_id).read_document(doc_id) for doc_id in ids]
        )
        documents = {}
        for doc_id, value in zip(ids, stored, strict=True):
            if value:
                key = self._parts.document_key(doc_id)
                with self._parts.naming_place(doc_id):
                    documents[doc_id] = unpack(self.schema, doc_id, value, key)
        return documents
