"""A search request: a query with its order, its page, and the details of hits; and its compilation.

The servers get its tree and order as arguments of ``search/query``. Words are numbered, as each
part of the index has its own ids. A prefix becomes any of its words.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, TypedDict

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import shown
from shardkit.search.model.documents import value_term
from shardkit.search.model.results import (
    CachedResult,
    SearchCursor,
    read_cached_result,
    read_cursor,
)
from shardkit.search.model.schema import RELEVANCE, Schema
from shardkit.search.query.analysis import (
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
    wanted,
)
from shardkit.search.query.parser import parse
from shardkit.structures.base.arguments import LONGEST_EXPIRY, check_integer

_ORDER_KINDS: Final = {"number": "number", "date": "number", "text": "text"}


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
    kind = _ORDER_KINDS[schema.attributes[name]]
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
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or not math.isfinite(weight):
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


def compile_query(schema: Schema, tree: Node, expansions: Mapping[str, Iterable[str]]) -> QueryPlan:
    """Return the plan of an analyzed tree."""
    plan = QueryPlan(schema, expansions)
    plan.tree = plan.node(tree)
    return plan


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
