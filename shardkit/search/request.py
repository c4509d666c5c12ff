"""What is asked of an index: a query with its order, its page, and what is wanted of each hit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from shardkit.errors import InvalidArgumentError
from shardkit.search.compiler import SortOrder, sort_order
from shardkit.search.model.results import (
    CachedResult,
    SearchCursor,
    read_cached_result,
    read_cursor,
)
from shardkit.search.model.schema import Schema
from shardkit.search.model.term_counts import TermCounts
from shardkit.search.query.analysis import analyze
from shardkit.search.query.parser import parse
from shardkit.search.query.tree import Node, check_names
from shardkit.structures.base.arguments import LONGEST_EXPIRY, check_integer, shown

MAX_LIMIT: Final = 10_000
MAX_OFFSET: Final = 1_000_000
INLINE: Final = 200  # of so many documents attributes come with their ids; of more only the page's
CACHE_SECONDS: Final = 300
MAX_FACET_LIMIT: Final = 10_000


@dataclass(frozen=True)
class SearchRequest:
    """A question, checked.

    Attributes:
        tree: the query, analyze.
        order: what documents are put in order by.
        digest: tells queries and orders apart.
        start, num: which page is wanted.
        after: what it begins behind, in place of ``start``.
        kept: the result that it is a page of, if servers keep it.
        keep: for how many seconds servers shall keep the result; 0 if not.
        attributes: which are wanted of each hit.
        snippets: how snippets shall be; None without.
        facets: the attributes whose values are counted.
        facet_size: how many values of each are wanted.
        partial: whether the results of some parts are better than none.
        session: the session that asks.
    """

    tree: Node
    order: SortOrder
    digest: str
    start: int
    num: int
    after: SearchCursor | None
    kept: CachedResult | None
    keep: int
    attributes: Sequence[str]
    snippets: Mapping[str, Any] | None
    facets: Sequence[str]
    facet_size: int
    partial: bool
    session: str | None

    @property
    def most(self) -> int:
        """How many documents every part has to give: one more than the page tells of a next."""
        return self.num + 1 if self.after and self.num else self.start + self.num

    @property
    def blobs(self) -> bool:
        """Whether attributes or text are wanted."""
        return bool(self.attributes) or self.snippets is not None

    @property
    def inline(self) -> bool:
        """Whether they come with the ids."""
        return self.blobs and self.most <= INLINE

    @property
    def counts(self) -> TermCounts | None:
        """What the pages before were weighed by."""
        return self.after.counts if self.after else self.kept.counts if self.kept else None

    @property
    def source(self) -> int | None:
        """What the pages before were read from."""
        return self.after.source if self.after else self.kept.source if self.kept else None


def tree_of(schema: Schema, query: str | Node) -> Node:
    """Return a query analyze.

    Raises:
        QuerySyntaxError: it cannot be read; the error has the position.
        InvalidArgumentError: it names a field or attribute that there is not.
    """
    if isinstance(query, str):
        query = parse(query, schema.fields, schema.attributes)
    if not isinstance(query, Node):
        raise InvalidArgumentError(
            f"{schema.name}: query={shown(query)}",
            "give text, or a tree of shardkit.search.query.tree",
        )
    check_names(query, schema.fields, schema.attributes)
    return analyze(query, schema.analyzer)


def request_of(
    schema: Schema,
    query: str | Node,
    *,
    sort: str | Mapping[str, float],
    ascending: bool,
    combine: str,
    default: float,
    start: int,
    num: int,
    after: str | None,
    result: str | None,
    cache: int,
    attributes: Sequence[str] | bool,
    snippets: bool | Mapping[str, Any],
    facets: Sequence[str],
    facet_size: int,
    partial: bool,
    session: str | None,
) -> SearchRequest:
    """Return a question that was checked; see `shardkit.search.search.Searching.search`.

    Raises:
        QuerySyntaxError: the query cannot be read.
        InvalidArgumentError: something else in it cannot be used.
    """
    name = schema.name
    tree = tree_of(schema, query)
    order = sort_order(schema, sort, combine, default, ascending)
    check_integer(name, "num", num, 0, MAX_LIMIT)
    check_integer(name, "start", start, 0, MAX_OFFSET)
    check_integer(name, "cache", cache, 0, LONGEST_EXPIRY)
    check_integer(name, "facet_size", facet_size, 1, MAX_FACET_LIMIT)
    digest = blake2b(repr((tree, order.name)).encode(), digest_size=9).hexdigest()
    cursor = None if after is None else read_cursor(name, after)
    kept = None if result is None else read_cached_result(name, result)
    if after is not None and (start or result is not None):
        raise InvalidArgumentError(
            f"{name}: after= with start= or result=", "a cursor says where the page begins"
        )
    for what, token in (("after", cursor), ("result", kept)):
        if token is not None and token.query != digest:
            raise InvalidArgumentError(
                f"{name}: {what} is of another query or order", "give the same query and sort"
            )
    if cursor is not None and isinstance(cursor.value, str) is not order.text:
        raise InvalidArgumentError(f"{name}: after={shown(after)}", "give what search returned")
    return SearchRequest(
        tree,
        order,
        digest,
        start,
        num,
        cursor,
        kept,
        cache or (CACHE_SECONDS if kept else 0),
        _known(schema, "attributes", schema.attributes if attributes is True else attributes or ()),
        None if snippets is False else {} if snippets is True else dict(snippets),
        _known(schema, "facets", facets),
        facet_size,
        partial,
        session,
    )


def _known(schema: Schema, what: str, names: object) -> list[str]:
    if isinstance(names, str) or not isinstance(names, Sequence | Mapping):
        raise InvalidArgumentError(f"{schema.name}: {what}={shown(names)}", "give a list of names")
    for name in names:
        if name not in schema.attributes:
            raise InvalidArgumentError(
                f"{schema.name}: {what}: there is no attribute {shown(name)}",
                f"the attributes are: {', '.join(schema.attributes) or 'none'}",
            )
    return list(names)
