"""The steps of a search: what is asked of the parts of an index, and what is made of the answers.

::

    query ─► tree ─► plan ─┬─► part 0 ─┐
                           ├─► part 1 ─┼─► merge by (value, id) ─► page
                           └─► part 2 ─┘

Each part gives its first ``start + num`` documents in order; merged, the page is cut out of them.
So a page far behind costs every part all that comes before it. A cursor is the value and id that a
page ended with: each part gives what is beyond, so the thousandth page costs what the second does.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from shardkit.errors import InvalidArgumentError, ShardFailure
from shardkit.operations.commands import Argument, Command, Reply
from shardkit.operations.operation import Operation
from shardkit.search.compiler import QueryPlan, compile_query, prefixes_of, scored_words
from shardkit.search.merge import PartHit, facet_of, merged, part_hits
from shardkit.search.model.documents import Document, document_of, unpacked
from shardkit.search.model.results import (
    CachedResult,
    Hit,
    OrderValue,
    Results,
    SearchCursor,
    write_token,
)
from shardkit.search.model.schema import Schema
from shardkit.search.model.term_counts import TermCounts, TermStatistics
from shardkit.search.request import SearchRequest
from shardkit.search.shards import PRIMARY, Parts, ask
from shardkit.search.snippets import find_matches, snippet
from shardkit.structures.base.parameters import Metadata

MAX_CACHED: Final = 10_000
MAX_EXPANSIONS: Final = 1_000
MAX_FACET_VALUES: Final = 10_000
_NONE: Final = TermCounts(0, {})


class _Answers(NamedTuple):
    """What the parts gave: how many documents match, and the first ones of each."""

    total: int
    found: list[list[PartHit]]
    missing: tuple[int, ...]
    counts: TermCounts
    kept: CachedResult | None
    facets: dict[str, list[tuple[OrderValue, int]]]


class Searcher:
    """Searches one index; shared by all its faces.

    Args:
        schema: its parameters.
        parts: where it is.
        metas: the parameters as they are stored, where each of the sources has them.
        statistics: what words are weighed by.
        new_id: makes the ids of results that servers keep.
    """

    def __init__(
        self,
        schema: Schema,
        parts: Parts,
        metas: Sequence[Metadata],
        statistics: TermStatistics,
        new_id: Callable[[], str],
    ) -> None:
        self._schema = schema
        self._parts = parts
        self._metas = metas
        self._statistics = statistics
        self._new_id = new_id

    def ask(
        self, commands: Sequence[Command], *, source: int = PRIMARY, partial: bool = False
    ) -> Operation[list[Reply]]:
        """Return replies; the parameters are compared on the way if nobody has.

        Args:
            commands: what is asked.
            source: what is read from. A replica is asked for the parameters that it has.
            partial: whether failures are replies too, as long as not all have failed.
        """
        return (yield from ask(self._metas[source], commands, partial))

    def find(self, request: SearchRequest) -> Operation[Results]:
        """Return a page of what is found."""
        source = self._parts.source(request.session, request.source)
        answers = None
        if request.kept is not None and not request.facets:
            answers = yield from self._kept(request, source, request.kept)
        if answers is None:
            answers = yield from self._queried(request, source)
        documents = merged(answers.found, reverse=request.order.reverse)
        if request.after is None:
            more = answers.total > request.start + request.num
        else:
            more = len(documents) > request.num
        documents = documents[request.start : request.start + request.num]
        cursor = None
        if more and documents:
            last, counts = documents[-1], answers.counts if request.order.scores else None
            cursor = write_token(SearchCursor(request.digest, source, last.value, last.id, counts))
        found = yield from self._hits(request, source, documents)
        result = write_token(answers.kept) if answers.kept else None
        return Results(answers.total, found, cursor, result, answers.facets, answers.missing)

    def beginnings(
        self,
        words: Sequence[str],
        beginnings: Sequence[str],
        most: int,
        *,
        source: int = PRIMARY,
        partial: bool = False,
    ) -> Operation[tuple[TermCounts, dict[str, dict[str, int]]]]:
        """Return the counts of words, and for each beginning the first words that begin so.

        Each part gives its first words, in order, that documents have: the first of all are among
        them, with all their counts.
        """
        arguments: list[Argument] = [self._schema.chunk, most, len(beginnings), *beginnings, *words]
        replies = yield from self.ask(
            [part.call("search/words", arguments) for part in self._parts.read(source)],
            source=source,
            partial=partial,
        )
        there = [reply for reply in replies if not isinstance(reply, ShardFailure)]
        counts: Counter[str] = Counter()
        for reply in there:
            counts.update(dict(zip(words, reply[2], strict=True)))
        found: dict[str, dict[str, int]] = {}
        for place, beginning in enumerate(beginnings, 3):
            sums: Counter[str] = Counter()
            for reply in there:
                flat = reply[place]
                for word, count in zip(flat[::2], flat[1::2], strict=True):
                    sums[word.decode()] += count
            found[beginning] = dict(sorted(sums.items())[:most])
        return TermCounts(sum(reply[0] for reply in there), dict(counts)), found

    # ---- what is asked

    def _queried(self, request: SearchRequest, source: int) -> Operation[_Answers]:
        expansions, counts = yield from self._counts(request, source)
        plan = compile_query(self._schema, request.tree, expansions)
        key = self._new_id() if request.keep else None
        arguments: list[Argument] = [self._schema.chunk, self._query(request, plan, counts)]
        kept_key = f"q:{key}" if key else None
        replies = yield from self.ask(
            [
                part.call("search/query", arguments, key=kept_key)
                for part in self._parts.read(source)
            ],
            source=source,
            partial=request.partial,
        )
        there = [reply for reply in replies if not isinstance(reply, ShardFailure)]
        for reply in there:
            if reply[2] < 0:
                raise InvalidArgumentError(
                    f"{self._schema.name}: attribute {request.facets[-reply[2] - 1]} has more than "
                    f"{MAX_FACET_VALUES:,} different values here",
                    "count attributes that have few, or make the query narrower",
                )
        if request.order.scores and len(there) == len(replies):
            self._learn(plan, counts, there)
        kept = None
        if key and len(there) == len(replies) and all(reply[4] for reply in there):
            kept = CachedResult(
                request.digest, source, key, counts if request.order.scores else None
            )
        return _Answers(
            sum(reply[2] for reply in there),
            [self._found(request, reply[5]) for reply in there],
            tuple(n for n, reply in enumerate(replies) if isinstance(reply, ShardFailure)),
            counts,
            kept,
            {
                name: facet_of(
                    (reply[place] for reply in there),
                    text=self._schema.attributes[name] == "text",
                    size=request.facet_size,
                )
                for place, name in enumerate(request.facets, 6)
            },
        )

    def _counts(
        self, request: SearchRequest, source: int
    ) -> Operation[tuple[Mapping[str, Mapping[str, int]], TermCounts]]:
        """Return the words that beginnings stand for, and what words are weighed by."""
        prefixes = prefixes_of(request.tree)
        scored = scored_words(request.tree) if request.order.scores else []
        before = request.counts
        if before is None and not prefixes:
            before = self._statistics.known(scored) if scored else _NONE
        if before is not None and not prefixes:
            return {}, before
        counts, expansions = yield from self.beginnings(
            scored, prefixes, MAX_EXPANSIONS + 1, source=source, partial=request.partial
        )
        for prefix, words in expansions.items():
            if len(words) > MAX_EXPANSIONS:
                raise InvalidArgumentError(
                    f"{self._schema.name}: more than {MAX_EXPANSIONS:,} words begin with {prefix}",
                    "give more of the word",
                )
        if not request.order.scores:
            return expansions, _NONE
        known = dict(counts.words)
        for words in expansions.values():
            known |= words
        if before is None:
            before = TermCounts(counts.documents, known)
            self._statistics.learn(before)
        return expansions, TermCounts(before.documents, {**known, **before.words})

    def _query(self, request: SearchRequest, plan: QueryPlan, counts: TermCounts) -> str:
        schema, after = self._schema, request.after
        return json.dumps(
            {
                "words": list(plan.words),
                "tree": plan.tree,
                "weights": counts.weights(plan.words) if request.order.scores else [],
                "sort": request.order.spec,
                "reverse": request.order.reverse,
                "most": request.most,
                "after": after is not None and [_exact(after.value), after.id],
                "facets": [
                    [schema.place(name), schema.attributes[name] == "text"]
                    for name in request.facets
                ],
                "values": MAX_FACET_VALUES,
                "attributes": request.inline and bool(request.attributes),
                "text": request.inline and request.snippets is not None,
                "keep": request.keep,
                "kept": MAX_CACHED,
            },
            ensure_ascii=False,
        )

    def _learn(self, plan: QueryPlan, counts: TermCounts, replies: Sequence[Reply]) -> None:
        sums = [sum(column) for column in zip(*(reply[3] for reply in replies), strict=True)]
        words = {w: n for w, n in zip(plan.words, sums, strict=True) if w in counts.words}
        self._statistics.learn(TermCounts(sum(reply[0] for reply in replies), words))

    def _kept(
        self, request: SearchRequest, source: int, kept: CachedResult
    ) -> Operation[_Answers | None]:
        """Return what the parts keep of a result; nothing if one of them does not any more."""
        wanted = [int(request.inline and bool(request.attributes))]
        wanted.append(int(request.inline and request.snippets is not None))
        arguments = [self._schema.chunk, request.most, request.keep, *wanted]
        replies = yield from self.ask(
            [
                part.call("search/page", arguments, key=f"q:{kept.key}")
                for part in self._parts.read(source)
            ],
            source=source,
            partial=request.partial,
        )
        if any(reply is None for reply in replies):
            return None
        there = [reply for reply in replies if not isinstance(reply, ShardFailure)]
        return _Answers(
            sum(reply[0] for reply in there),
            [self._found(request, reply[1]) for reply in there],
            tuple(n for n, reply in enumerate(replies) if isinstance(reply, ShardFailure)),
            kept.counts or _NONE,
            kept,
            {},
        )

    # ---- what is made of it

    def _found(self, request: SearchRequest, reply: Sequence[bytes]) -> list[PartHit]:
        return part_hits(reply, text_order=request.order.text, blobs=request.inline)

    def _hits(
        self, request: SearchRequest, source: int, found: Sequence[PartHit]
    ) -> Operation[list[Hit]]:
        if not request.blobs or not found:
            return [Hit(one.id, one.value) for one in found]
        if request.inline:
            documents = [
                document_of(self._schema, one.id, one.attributes or b"", one.text or b"")
                for one in found
            ]
        else:
            parts = self._parts.read(source)
            stored = yield from self.ask(
                [parts[self._parts.number(one.id)].document(one.id) for one in found],
                source=source,
                partial=request.partial,
            )
            documents = [
                unpacked(self._schema, one.id, value)
                if isinstance(value, bytes)
                else Document(one.id, {}, None)  # removed meanwhile, or its part failed
                for one, value in zip(found, stored, strict=True)
            ]
        return [
            Hit(
                one.id,
                one.value,
                {name: v for name, v in document.attributes.items() if name in request.attributes},
                self._snippet(request, document),
            )
            for one, document in zip(found, documents, strict=True)
        ]

    def _snippet(self, request: SearchRequest, document: Document) -> str | None:
        """Return a snippet of the field that has most of what is wanted."""
        if request.snippets is None or not document.text:
            return None
        tree, analyzer = request.tree, self._schema.analyzer

        def shown(item: tuple[str, str]) -> int:
            return len({hit.found for hit in find_matches(item[1], tree, analyzer, item[0])})

        texts = document.text.items()
        name, text = max(texts, key=shown) if len(texts) > 1 else next(iter(texts))
        return snippet(text, tree, analyzer, field=name, **request.snippets)


def _exact(value: OrderValue) -> str:
    return value if isinstance(value, str) else repr(value)
