"""A search request, and its steps: one script for each part of an index, and merging the replies.

The servers get a query's tree and order as arguments of ``search/query``. Words are numbered, as
each part of the index has its own ids. A prefix becomes any of its words.

Each part returns its first ``offset + limit`` hits in order, so a page costs every part more the
deeper it is. A cursor is the value and id of the last hit of a page: each part returns only the
hits behind it, so page 1,000 costs as much as page 2.

A call reads a limited number of postings, so that no query holds a server for long. If a part has
more, its reply has the document to continue at; hits of such slices are merged like those of parts.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypedDict

from shardkit.errors import InvalidArgumentError, counted
from shardkit.operations.arguments import is_number, shown
from shardkit.operations.commands import Argument, Command, Reply
from shardkit.operations.operation import Operation
from shardkit.search.documents import (
    CachedResult,
    Document,
    Hit,
    OrderValue,
    Results,
    SearchCursor,
    document_of,
    read_cached_result,
    read_cursor,
    split_values,
    unpack,
    value_term,
)
from shardkit.search.parts import PRIMARY, WORK_PER_CALL, IndexPart, IndexParts
from shardkit.search.query import (
    AllOf,
    AnyOf,
    Equal,
    Everything,
    Node,
    Not,
    Phrase,
    Prefix,
    Range,
    Word,
    analyze,
    check_depth,
    check_names,
    parse,
    wanted,
)
from shardkit.search.schema import RELEVANCE, Schema, TermCounts, TermStatistics
from shardkit.search.text import Analyzer, Token
from shardkit.structures.base.arguments import LONGEST_EXPIRY, check_integer
from shardkit.structures.base.damage import stored_text

ELLIPSIS: Final = "…"
MAX_TEXT_LENGTH: Final = 100_000
_SPACES: Final = re.compile(r"\s+")
_BLOCK: Final = re.compile(r".{1,400}\S*", re.DOTALL)
_MAX_WORD_LENGTH: Final = 30  # search no further for a space: some scripts have none


class Match(NamedTuple):
    """A part of a text, ``text[start:end]``, and the part of the query that it matches."""

    start: int
    end: int
    node: Word | Prefix | Phrase


def snippet(
    text: str,
    query: Node,
    analyzer: Analyzer,
    *,
    length: int = 160,
    mark: tuple[str, str] | Callable[[str], str] = ("**", "**"),
    escape: Callable[[str], str] | None = None,
    field: str | None = None,
) -> str:
    """Return the part of a text that best shows why it matches a query.

    It is the window of the given length with the most different words, prefixes and phrases of the
    query; of several the one with the most matches, then the first. It begins and ends between
    words where the text has spaces. White space, including line ends, becomes one space.

    The index's analyzer has analyzed the query. Matches are looked for in the first 100,000
    characters of the text. ``length`` is the maximum in characters, without marks and ellipses: 20
    to 10,000. ``mark`` is what to put before and after a match, or a function that marks it.
    ``escape`` is applied to all of the text before it is marked: ``html.escape`` makes a snippet
    safe for a page. Words looked for in another field than ``field`` are not marked. If nothing
    matches, it is the beginning of the text. An ellipsis shows where it was cut.

    Raises:
        InvalidArgumentError: the length is out of range.

    Cost: none on a server; the text is split into words once.
    """
    check_integer("snippet", "length", length, 20, 10_000)
    matches = find_matches(text[:MAX_TEXT_LENGTH], query, analyzer, field)
    start, end = _window(text, matches, length)
    written = escape or str
    marked = mark if callable(mark) else (lambda inner: f"{mark[0]}{inner}{mark[1]}")
    pieces = [ELLIPSIS] if start > 0 else []
    for first, last in _joined(matches, start, end):
        pieces += (written(_spaced(text[start:first])), marked(written(_spaced(text[first:last]))))
        start = last
    pieces.append(written(_spaced(text[start:end])))
    if end < len(text):
        pieces.append(ELLIPSIS)
    return "".join(pieces)


def find_matches(
    text: str, query: Node, analyzer: Analyzer, field: str | None = None
) -> list[Match]:
    """Return the parts of a text that match an analyzed query, ordered by start."""
    words: dict[str, list[Word | Phrase]] = {}  # by the first term
    prefixes: list[Prefix] = []
    for node in dict.fromkeys(wanted(query)):
        if field is not None and node.field not in (None, field):
            continue
        if isinstance(node, Prefix):
            prefixes.append(node)
        else:
            words.setdefault(_terms(node)[0], []).append(node)
    positions = _TermPositions(text, analyzer)
    matches = []
    for number, term in enumerate(positions.terms):
        for node in words.get(term, ()):
            last = number + len(_terms(node))
            if tuple(positions.terms[number:last]) == _terms(node):
                start, end = positions.token(number).start, positions.token(last - 1).end
                matches.append(Match(start, end, node))
        for prefix in prefixes:
            if term.startswith(prefix.text):
                token = positions.token(number)
                matches.append(Match(token.start, token.end, prefix))
    return matches


class _TermPositions:
    """The terms of a text, and on demand their positions.

    Finding terms is fast, finding their positions is slow. So the text is split into blocks of
    about 400 characters, and positions are found only in blocks with matches.
    """

    def __init__(self, text: str, analyzer: Analyzer) -> None:
        self._analyzer = analyzer
        self._blocks = list(_BLOCK.finditer(text))
        self._firsts: list[int] = []  # the index of each block's first term
        self._tokens: dict[int, list[Token]] = {}
        self.terms: list[str] = []
        for block in self._blocks:
            self._firsts.append(len(self.terms))
            self.terms += analyzer.terms(block[0])

    def token(self, number: int) -> Token:
        block = bisect_right(self._firsts, number) - 1
        if block not in self._tokens:
            offset = self._blocks[block].start()
            self._tokens[block] = [
                Token(token.term, token.start + offset, token.end + offset)
                for token in self._analyzer.spans(self._blocks[block][0])
            ]
        return self._tokens[block][number - self._firsts[block]]


def _terms(node: Word | Phrase) -> tuple[str, ...]:
    return node.words if isinstance(node, Phrase) else (node.text,)


def _window(text: str, matches: list[Match], length: int) -> tuple[int, int]:
    best, first, last = (0, 0), 0, min(len(text), length)
    inside: Counter[Word | Prefix | Phrase] = Counter()
    behind = 0  # the first match behind the window that begins with match ``number``
    for number, match in enumerate(matches):
        while behind < len(matches) and (
            behind == number or matches[behind].end - match.start <= length
        ):
            inside[matches[behind].node] += 1
            behind += 1
        if (shows := (len(inside), inside.total())) > best:
            best, first, last = shows, match.start, max(m.end for m in matches[number:behind])
        inside[match.node] -= 1
        if not inside[match.node]:
            del inside[match.node]
    last = min(last, first + length)
    begin = max(0, min(first - (length - (last - first)) // 2, len(text) - length))
    end = min(len(text), begin + length)
    # Whole words only, unless there is no space nearby, as in scripts without spaces.
    if begin and not text[begin - 1].isspace():
        space = _SPACES.search(text, begin, max(begin, min(first, begin + _MAX_WORD_LENGTH)))
        begin = space.end() if space else begin
    if end < len(text) and not text[end].isspace():
        tail = text[max(last, end - _MAX_WORD_LENGTH) : end]
        end -= len(tail) - len(re.sub(r"\s\S*\Z", "", tail))
    inner = text[begin:end]
    return begin + len(inner) - len(inner.lstrip()), begin + len(inner.rstrip())


def _joined(matches: list[Match], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Iterate over the ranges to mark within a window; overlapping matches are joined."""
    first = last = start
    for match in matches:
        if match.end <= start or match.start >= end:
            continue
        if match.start >= last:
            if first < last:
                yield first, last
            first = max(start, match.start)
        last = max(last, min(end, match.end))
    if first < last:
        yield first, last


def _spaced(text: str) -> str:
    return _SPACES.sub(" ", text)


@dataclass(frozen=True)
class SortOrder:
    """The order of hits."""

    name: str  # distinguishes orders
    spec: list[Any]  # for the script
    reverse: bool  # whether it is descending
    scores: bool  # whether it needs relevance
    text: bool  # whether it compares text, not numbers


def sort_order(
    schema: Schema, sort: str | Mapping[str, float], combine: str, default: float, ascending: bool
) -> SortOrder:
    """Return the order that `SearchIndex.search` was given."""
    if isinstance(sort, Mapping):
        return _weighted(schema, sort, combine, default, ascending)
    if not isinstance(sort, str):
        raise InvalidArgumentError(
            f"{schema.name}: sort={shown(sort)}", "give an attribute's name, or weights by name"
        )
    if sort == RELEVANCE:
        return SortOrder(RELEVANCE, ["score"], not ascending, True, False)
    name = sort.removeprefix("-")
    if ascending:
        raise InvalidArgumentError(
            f"{schema.name}: sort={shown(sort)}, ascending=True",
            "leave ascending out: without a '-' before its name, an attribute's order is ascending",
        )
    if name not in schema.attributes:
        raise InvalidArgumentError(
            f"{schema.name}: sort={shown(sort)} is not an attribute",
            f"sort by {', '.join((RELEVANCE, *schema.attributes))}, with '-' for descending",
        )
    kind = "text" if schema.attributes[name] == "text" else "number"
    return SortOrder(sort, [kind, schema.place(name)], sort != name, False, kind == "text")


def _weighted(
    schema: Schema, weights: Mapping[str, float], combine: str, default: float, ascending: bool
) -> SortOrder:
    if combine not in ("intersection", "union"):
        raise InvalidArgumentError(
            f"{schema.name}: combine={shown(combine)}", "give 'intersection' or 'union'"
        )
    if not weights:
        raise InvalidArgumentError(f"{schema.name}: sort={{}}", "give a weight by name")
    for name, weight in [*weights.items(), ("default", default)]:
        if not is_number(weight) or not math.isfinite(weight):
            raise InvalidArgumentError(
                f"{schema.name}: {name}={shown(weight)}", "give a finite number"
            )
    sources = []
    for name, weight in weights.items():
        if name != RELEVANCE and schema.attributes.get(name) not in ("number", "date"):
            raise InvalidArgumentError(
                f"{schema.name}: sort: {shown(name)} is not a number or date attribute",
                f"weigh {RELEVANCE} and such attributes",
            )
        place = 0 if name == RELEVANCE else schema.place(name)
        missing = float(default) if combine == "union" else None
        sources.append([place, float(weight), missing])
    return SortOrder(
        json.dumps([list(weights.items()), combine, default, ascending]),
        ["sum", sources],
        not ascending,
        RELEVANCE in weights,
        False,
    )


@dataclass
class QueryPlan:
    """A query for the script: its words and values, numbered from 1 on, and their tree."""

    schema: Schema
    expansions: Mapping[str, Iterable[str]]
    words: dict[str, int] = field(default_factory=dict)
    tree: list[Any] = field(default_factory=list)

    def _number(self, word: str) -> int:
        return self.words.setdefault(word, len(self.words) + 1)

    def node(self, node: Node) -> list[Any]:
        """Return a node of an analyzed tree for the script."""
        schema = self.schema
        match node:
            case Word(text, name):
                return ["word", self._number(text), schema.mask(name)]
            case Prefix(text, name):
                mask = schema.mask(name)
                return ["or", [["word", self._number(w), mask] for w in self.expansions[text]]]
            case Phrase(words, name) if not schema.phrases:
                return self._all_of(Word(word, name) for word in words)
            case Phrase(words, name):
                return ["phrase", [self._number(word) for word in words], schema.number(name)]
            case Equal(attribute, value):
                term = value_term(schema.place(attribute), value.encode())
                return ["word", self._number(term.decode()), 0]
            case Range(attribute, low, high, open_low, open_high):
                bounds = [False if bound is None else repr(bound) for bound in (low, high)]
                return ["range", schema.place(attribute), *bounds, open_low, open_high]
            case AnyOf(parts):
                return ["or", [self.node(part) for part in parts]]
            case AllOf(parts):
                return self._all_of(parts)
            case Everything():
                return ["all"]
            case _:
                return ["none"]

    def _all_of(self, parts: Iterable[Node]) -> list[Any]:
        required, filters, unwanted = [], [], []
        for part in parts:
            if isinstance(part, Not):
                unwanted.append(self.node(part.part))
            elif isinstance(part, Range):
                filters.append(self.node(part))
            else:
                required.append(self.node(part))
        return ["and", required or [["all"]], filters, unwanted]


def scored_words(tree: Node) -> list[str]:
    """Return the words of an analyzed tree that are scored, once each, without prefixes."""
    words: list[str] = []
    for node in wanted(tree):
        if isinstance(node, Word):
            words.append(node.text)
        elif isinstance(node, Phrase):
            words += node.words
    return list(dict.fromkeys(words))


def prefixes_of(tree: Node) -> list[str]:
    """Return the prefixes in an analyzed tree, unwanted ones too, once each."""
    match tree:
        case Prefix(text):
            return [text]
        case Not(part):
            return prefixes_of(part)
        case AllOf(parts) | AnyOf(parts):
            return list(dict.fromkeys(text for part in parts for text in prefixes_of(part)))
        case _:
            return []


DEFAULT_LIMIT: Final = 20
MAX_LIMIT: Final = 10_000
MAX_OFFSET: Final = 1_000_000
MAX_FACET_LIMIT: Final = 10_000
CACHE_SECONDS: Final = 300
INLINE: Final = 200  # hits at most that come with their attributes; more need another exchange


class ResultOptions(TypedDict, total=False):
    """The options of a search, except its page; see `SearchIndex.search`."""

    sort: str | Mapping[str, float]
    ascending: bool
    combine: str
    default: float
    result: str | None
    cache: int
    attributes: Sequence[str] | bool
    snippets: bool | Mapping[str, Any]
    facets: Sequence[str]
    facet_limit: int
    partial: bool
    session: str | None
    plain: bool


class SearchOptions(ResultOptions, total=False):
    """The options of a search."""

    limit: int
    offset: int
    cursor: str | None


@dataclass(frozen=True)
class SearchRequest:
    """A search request, checked; `SearchIndex.search` describes the options."""

    tree: Node  # analyzed
    order: SortOrder
    digest: str  # of the query and the order
    limit: int
    offset: int
    page_before: SearchCursor | None
    cached: CachedResult | None
    cache: int
    attributes: Sequence[str]
    snippets: Mapping[str, Any] | None
    facets: Sequence[str]
    facet_limit: int
    partial: bool
    session: str | None
    most: int  # hits from each part; with a cursor one more, to know whether a page follows
    details: bool  # whether hits have attributes or snippets
    inline: bool  # whether these come with the hits, not in another exchange


def query_tree(schema: Schema, query: str | Node, *, plain: bool = False) -> Node:
    """Return a query parsed and analyzed; see `parse` for ``plain``."""
    if isinstance(query, str):
        query = parse(query, schema.fields, schema.attributes, plain=plain)
    check_depth(query)
    check_names(query, schema.fields, schema.attributes)
    return analyze(query, schema.analyzer)


def search_request(
    schema: Schema,
    query: str | Node,
    *,
    sort: str | Mapping[str, float] = RELEVANCE,
    ascending: bool = False,
    combine: str = "intersection",
    default: float = 0.0,
    limit: int = DEFAULT_LIMIT,
    offset: int = 0,
    cursor: str | None = None,
    result: str | None = None,
    cache: int = 0,
    attributes: Sequence[str] | bool = (),
    snippets: bool | Mapping[str, Any] = False,
    facets: Sequence[str] = (),
    facet_limit: int = 10,
    partial: bool = False,
    session: str | None = None,
    plain: bool = False,
) -> SearchRequest:
    """Check the arguments of `SearchIndex.search`, and return the request that they make."""
    name = schema.name
    tree = query_tree(schema, query, plain=plain)
    order = sort_order(schema, sort, combine, default, ascending)
    check_integer(name, "limit", limit, 0, MAX_LIMIT)
    check_integer(name, "offset", offset, 0, MAX_OFFSET)
    check_integer(name, "cache", cache, 0, LONGEST_EXPIRY)
    check_integer(name, "facet_limit", facet_limit, 1, MAX_FACET_LIMIT)
    digest = blake2b(repr((tree, order.name)).encode(), digest_size=9).hexdigest()
    page_before = None if cursor is None else read_cursor(name, cursor)
    cached = None if result is None else read_cached_result(name, result)
    if page_before is not None and (offset or cached is not None):
        raise InvalidArgumentError(
            f"{name}: cursor= with offset= or result=", "give the cursor alone"
        )
    for what, token in (("cursor", page_before), ("result", cached)):
        if token is not None and token.query != digest:
            raise InvalidArgumentError(
                f"{name}: {what} is of another query or order", "give the same query and sort"
            )
    if page_before is not None and isinstance(page_before.value, str) is not order.text:
        raise InvalidArgumentError(f"{name}: cursor={shown(cursor)}", "give what search returned")
    wanted = _attributes_in(
        schema, "attributes", schema.attributes if attributes is True else attributes or ()
    )
    details = bool(wanted) or snippets is not False
    most = limit + 1 if page_before and limit else offset + limit
    return SearchRequest(
        tree=tree,
        order=order,
        digest=digest,
        limit=limit,
        offset=offset,
        page_before=page_before,
        cached=cached,
        cache=cache or (CACHE_SECONDS if cached else 0),
        attributes=wanted,
        snippets=None if snippets is False else {} if snippets is True else dict(snippets),
        facets=_attributes_in(schema, "facets", facets),
        facet_limit=facet_limit,
        partial=partial,
        session=session,
        most=most,
        details=details,
        inline=details and most <= INLINE,
    )


def _attributes_in(schema: Schema, what: str, names: object) -> list[str]:
    if isinstance(names, str) or not isinstance(names, Sequence | Mapping):
        raise InvalidArgumentError(f"{schema.name}: {what}={shown(names)}", "give a list of names")
    for name in names:
        if name not in schema.attributes:
            raise InvalidArgumentError(
                f"{schema.name}: {what}: attribute {shown(name)} is unknown",
                f"use one of {', '.join(schema.attributes) or 'no attribute'}",
            )
    return list(names)


MAX_CACHED: Final = 10_000
MAX_EXPANSIONS: Final = 1_000
WORDS_PER_CALL: Final = 2_000  # of those that may have a prefix
HITS_PER_CALL: Final = 1_000  # of a cached result
MAX_FACET_VALUES: Final = 10_000
MAX_WORDS: Final = 1_024  # in a query, with the words of its prefixes
_NO_COUNTS: Final = TermCounts(0, {})


class PartHit(NamedTuple):
    """A hit as a part returns it."""

    value: OrderValue
    id: str
    attributes: bytes | None  # as stored; None if they were not requested
    text: bytes | None


class _Answers(NamedTuple):
    """The answers of the parts: how many documents match, and the first hits of each part."""

    total: int
    hits: list[list[PartHit]]
    missing: tuple[int, ...]
    counts: TermCounts
    cached: CachedResult | None
    facets: dict[str, list[tuple[OrderValue, int]]]
    removed: frozenset[str] = frozenset()


class Searcher:
    """Runs search requests on one index. Shared by all its faces."""

    def __init__(
        self, parts: IndexParts, statistics: TermStatistics, new_id: Callable[[], str]
    ) -> None:
        self._schema = parts.schema
        self._parts = parts
        self._statistics = statistics
        self._new_id = new_id

    def search(self, request: SearchRequest) -> Operation[Results]:
        """Return the page of hits for a request."""
        before = request.page_before or request.cached
        source = self._parts.choose_source(request.session, before and before.source)
        answers = None
        if request.cached is not None and not request.facets:
            answers = yield from self._read_cached(request, source, request.cached)
        if answers is None:
            answers = yield from self._query(request, source, before and before.counts)
        # By value, then id. Python orders text by code points, as Lua orders UTF-8 by bytes.
        hits = [hit for of_part in answers.hits for hit in of_part]
        hits.sort(key=itemgetter(0, 1), reverse=request.order.reverse)
        end = request.offset + request.limit
        more = len(hits) > end if request.page_before else answers.total > end
        hits = hits[request.offset : end]
        cursor = None
        if more and hits:
            last, counts = hits[-1], answers.counts if request.order.scores else None
            cursor = SearchCursor(request.digest, source, last.value, last.id, counts).token()
        # In a cached result removed documents keep their places, or the next page would skip hits.
        hits = [hit for hit in hits if hit.id not in answers.removed]
        page = yield from self._complete(request, source, hits)
        result = answers.cached.token() if answers.cached else None
        return Results(answers.total, page, cursor, result, answers.facets, answers.missing)

    def expand(
        self,
        words: Sequence[str],
        prefixes: Sequence[str],
        limit: int,
        *,
        source: int = PRIMARY,
        partial: bool = False,
    ) -> Operation[tuple[TermCounts, dict[str, dict[str, int]]]]:
        """Return the counts of words, and for each prefix its first words with their counts.

        Each part returns its own first words in order: the first of all are among them, with all
        their counts.
        """
        parts = self._parts.source(source)
        self._check_words(len(words))
        # For each part a call that counts the words, then one for each prefix.
        width = 1 + len(prefixes)
        listed: list[dict[bytes, int]] = [{} for _ in range(width * len(parts))]

        def call(number: int, place: tuple[bytes, bytes]) -> Command:
            part, which = parts[number // width], number % width
            if not which:
                return part.call("search/words", words)
            known = sorted(listed[number])
            last = known[limit - 1] if len(known) >= limit else b""
            arguments = (prefixes[which - 1], limit, last, *place, WORDS_PER_CALL)
            return part.call("search/prefix", arguments)

        def following(number: int, reply: Reply) -> tuple[bytes, bytes] | None:
            if not number % width:
                return None
            flat, start, cursor = reply
            listed[number].update(zip(flat[::2], flat[1::2], strict=True))
            return (start, cursor) if start else None

        replies, failed = yield from self._parts.send_in_slices(
            call, following, [(b"", b"0")] * len(listed), source=source, partial=partial
        )
        missing = {number // width for number in failed}
        documents, counts = 0, Counter[str]()
        sums = {prefix: Counter[str]() for prefix in prefixes}
        numbers = [number for number in range(len(listed)) if number not in failed]
        for number, of_call in zip(numbers, replies, strict=True):
            if number // width in missing:
                continue
            if number % width:
                for word, count in listed[number].items():
                    part = parts[number // width]
                    text = stored_text(part.to, part.state, word)
                    sums[prefixes[number % width - 1]][text] += count
            else:
                documents += of_call[0][0]
                counts.update(dict(zip(words, of_call[0][1], strict=True)))
        expansions = {prefix: dict(sorted(words.items())[:limit]) for prefix, words in sums.items()}
        return TermCounts(documents, dict(counts)), expansions

    def _check_words(self, count: int) -> None:
        if count > MAX_WORDS:
            raise InvalidArgumentError(
                f"{self._schema.name}: a query of {counted(count, 'different word')}, with those "
                "of its prefixes",
                f"give at most {MAX_WORDS:,}: the rarest ones of a long text, or longer prefixes",
            )

    # ---- querying the parts

    def _query(
        self, request: SearchRequest, source: int, counts: TermCounts | None
    ) -> Operation[_Answers]:
        """Run a query on all parts of a source, with the weights of the pages before if known."""
        expansions, counts = yield from self._expansions(request, source, counts)
        plan = QueryPlan(self._schema, expansions)
        plan.tree = plan.node(request.tree)
        self._check_words(len(plan.words))
        key = self._new_id() if request.cache else None
        cache_key = f"q:2:{key}" if key else None
        sent = self._encode(request, plan, counts)
        parts = self._parts.source(source)

        def call(number: int, place: tuple[int, int]) -> Command:
            return parts[number].call("search/query", [sent, *place], key=cache_key)

        slices, missing, moved = yield from self._parts.query(
            call, end=6, version=1, source=source, partial=request.partial
        )
        answered = [(part, reply) for part, of_part in slices for reply in of_part]
        first = [of_part[0] for _, of_part in slices]
        # A reply has no counts if the query has too many words to count them again.
        if request.order.scores and not missing and all(reply[3] for reply in first):
            sums = map(sum, zip(*[reply[3] for reply in first], strict=True))
            fresh = {w: n for w, n in zip(plan.words, sums, strict=True) if w in counts.words}
            self._statistics.update(TermCounts(sum([reply[0] for reply in first]), fresh))
        cached = None
        if key and not missing and not moved and all(reply[4] for _, reply in answered):
            scored = counts if request.order.scores else None
            cached = CachedResult(request.digest, source, key, scored)
        facets = {
            name: self._merge_facet(request, name, place, slices)
            for place, name in enumerate(request.facets, 8)
        }
        total = sum([reply[2] for _, reply in answered])
        hits = [self._read_hits(request, part, reply[5]) for part, reply in answered]
        return _Answers(total, hits, missing, counts, cached, facets)

    def _merge_facet(
        self,
        request: SearchRequest,
        name: str,
        place: int,
        slices: Sequence[tuple[IndexPart, Sequence[Any]]],
    ) -> list[tuple[OrderValue, int]]:
        """Return an attribute's values with their counts, the most frequent first."""
        counts: Counter[Any] = Counter()
        text = self._schema.attributes[name] == "text"
        for part, of_part in slices:
            read = partial(stored_text, part.to, part.state)
            if len({value for reply in of_part for value in reply[place][::2]}) > MAX_FACET_VALUES:
                raise InvalidArgumentError(
                    f"{self._schema.name}: attribute {name} has more than "
                    f"{MAX_FACET_VALUES:,} different values here",
                    "choose attributes that have few, or make the query narrower",
                )
            for reply in of_part:
                for value, count in zip(reply[place][::2], reply[place][1::2], strict=True):
                    for one in map(read, split_values(value)) if text else (float(value),):
                        counts[one] += count
        ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        return ranked[: request.facet_limit]

    def _expansions(
        self, request: SearchRequest, source: int, before: TermCounts | None
    ) -> Operation[tuple[Mapping[str, Mapping[str, int]], TermCounts]]:
        """Return the words of prefixes, and the counts that weight relevance."""
        prefixes = prefixes_of(request.tree)
        scored = scored_words(request.tree) if request.order.scores else []
        if not prefixes:
            if before is None:
                before = self._statistics.get(scored) if scored else _NO_COUNTS
            if before is not None:
                return {}, before
        counts, expansions = yield from self.expand(
            scored, prefixes, MAX_EXPANSIONS + 1, source=source, partial=request.partial
        )
        for prefix, words in expansions.items():
            if len(words) > MAX_EXPANSIONS:
                raise InvalidArgumentError(
                    f"{self._schema.name}: more than {MAX_EXPANSIONS:,} words begin with {prefix}",
                    "give more of the word",
                )
        if not request.order.scores:
            return expansions, _NO_COUNTS
        read = dict(counts.words)
        for words in expansions.values():
            read |= words
        if before is None:
            before = TermCounts(counts.documents, read)
            self._statistics.update(before)
        return expansions, TermCounts(before.documents, {**read, **before.words})

    def _encode(self, request: SearchRequest, plan: QueryPlan, counts: TermCounts) -> str:
        schema, before = self._schema, request.page_before
        facets = [[schema.place(n), schema.attributes[n] == "text"] for n in request.facets]
        return json.dumps(
            {
                "words": list(plan.words),
                "tree": plan.tree,
                "weights": counts.weights(plan.words) if request.order.scores else [],
                "sort": request.order.spec,
                "reverse": request.order.reverse,
                "limit": request.most,
                "after": before is not None and [str(before.value), before.id],
                "facets": facets,
                "work": WORK_PER_CALL,
                "attributes": request.inline and bool(request.attributes),
                "text": request.inline and request.snippets is not None,
                "cache": request.cache,
                "max_cached": MAX_CACHED,
            },
            ensure_ascii=False,
        )

    def _read_cached(
        self, request: SearchRequest, source: int, cached: CachedResult
    ) -> Operation[_Answers | None]:
        """Return a page of a cached result; None if one of the parts no longer has it."""
        arguments: list[Argument] = [
            request.most,
            request.cache,
            int(request.inline and bool(request.attributes)),
            int(request.inline and request.snippets is not None),
        ]
        parts, key = self._parts.source(source), f"q:2:{cached.key}"
        slices, missing = yield from self._parts.send_in_slices(
            lambda number, place: parts[number].call(
                "search/page", [*arguments, place, HITS_PER_CALL], key=key
            ),
            lambda _, reply: (reply and int(reply[2])) or None,
            [0] * len(parts),
            source=source,
            partial=request.partial,
        )
        answered = [reply for of_part in slices for reply in of_part]
        if any(reply is None for reply in answered):
            return None
        total = sum(reply[0] for reply in answered)
        hits, removed = [], set[str]()
        answering = [part for n, part in enumerate(parts) if n not in missing]
        for part, of_part in zip(answering, slices, strict=True):
            for reply in of_part:
                hits.append(self._read_hits(request, part, reply[1]))
                removed |= {stored_text(part.to, part.state, doc_id) for doc_id in reply[3]}
        counts = cached.counts or _NO_COUNTS
        return _Answers(total, hits, missing, counts, cached, {}, frozenset(removed))

    def _read_hits(
        self, request: SearchRequest, part: IndexPart, reply: Sequence[bytes]
    ) -> list[PartHit]:
        """Return the hits in a reply: ids and values, if inline also attributes and text."""
        text, details = request.order.text, request.inline
        read = partial(stored_text, part.to, part.state)
        return [
            PartHit(
                read(reply[at + 1]) if text else float(reply[at + 1]),
                read(reply[at]),
                reply[at + 2] if details else None,
                reply[at + 3] if details else None,
            )
            for at in range(0, len(reply), 4 if details else 2)
        ]

    # ---- completing the page

    def _complete(
        self, request: SearchRequest, source: int, hits: Sequence[PartHit]
    ) -> Operation[list[Hit]]:
        """Return hits with their attributes and snippets; read them unless they came inline."""
        if not request.details or not hits:
            return [Hit(one.id, one.value) for one in hits]
        documents, stored = [], None
        if not request.inline:
            parts = self._parts.source(source)
            stored = yield from self._parts.send(
                [parts[self._parts.number(one.id)].read_document(one.id) for one in hits],
                source=source,
                partial=request.partial,
            )
        for n, one in enumerate(hits):
            key = self._parts.document_key(one.id)
            with self._parts.naming_place(one.id):
                if stored is None:
                    inline = (one.attributes or b"", one.text or b"")
                    documents.append(document_of(self._schema, one.id, *inline, key))
                elif isinstance(stored[n], bytes):
                    documents.append(unpack(self._schema, one.id, stored[n], key))
                else:  # just removed, or its part failed
                    documents.append(Document(one.id, {}, None))
        return [
            Hit(
                one.id,
                one.value,
                {name: v for name, v in document.attributes.items() if name in request.attributes},
                self._snippet(request, document),
            )
            for one, document in zip(hits, documents, strict=True)
        ]

    def _snippet(self, request: SearchRequest, document: Document) -> str | None:
        if request.snippets is None or not document.text:
            return None
        tree, analyzer = request.tree, self._schema.analyzer

        def shown(item: tuple[str, str]) -> int:
            return len({match.node for match in find_matches(item[1], tree, analyzer, item[0])})

        texts = document.text.items()
        name, text = max(texts, key=shown) if len(texts) > 1 else next(iter(texts))
        return snippet(text, tree, analyzer, field=name, **request.snippets)
