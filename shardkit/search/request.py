"""A search request: a query with its order, its page, and the details of hits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, TypedDict

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import shown
from shardkit.search.compiler import SortOrder, sort_order
from shardkit.search.model.results import (
    CachedResult,
    SearchCursor,
    read_cached_result,
    read_cursor,
)
from shardkit.search.model.schema import RELEVANCE, Schema
from shardkit.search.query.analysis import analyze
from shardkit.search.query.parser import parse
from shardkit.search.query.tree import Node, check_depth, check_names
from shardkit.structures.base.arguments import LONGEST_EXPIRY, check_integer

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
