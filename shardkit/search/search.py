"""What an index is asked: pages of what matches a query, all of it, counts, and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict, Unpack

from shardkit.errors import InvalidArgumentError
from shardkit.operations.commands import Command
from shardkit.operations.operation import (
    Driver,
    Face,
    Operation,
    Page,
    Stream,
    Structure,
    operation,
    stream,
)
from shardkit.search.model.results import Hit, Results
from shardkit.search.model.schema import RELEVANCE, Schema
from shardkit.search.query.tree import Node
from shardkit.search.request import MAX_LIMIT, request_of
from shardkit.search.searcher import MAX_EXPANSIONS, Searcher
from shardkit.search.shards import Parts
from shardkit.structures.base.arguments import check_integer, shown

DEFAULT_LIMIT: Final = 20
PAGE_SIZE: Final = 1_000
MAX_PAGES: Final = 1_000_000


class PageOptions(TypedDict, total=False):
    """What `Searching.page` takes besides the query and the page."""

    sort: str | Mapping[str, float]
    ascending: bool
    combine: str
    default: float
    result: str | None
    cache: int
    attributes: Sequence[str] | bool
    snippets: bool | Mapping[str, Any]
    facets: Sequence[str]
    facet_size: int
    partial: bool
    session: str | None


class Options(PageOptions, total=False):
    """What `Searching.search` takes besides the query."""

    start: int
    num: int
    after: str | None


class Searching(Structure[Face]):
    """What finds documents. The base of `shardkit.search.index.SearchIndex`.

    Attributes:
        schema: the index's parameters.
    """

    def __init__(
        self, driver: Driver, component: str, schema: Schema, parts: Parts, finder: Searcher
    ) -> None:
        super().__init__(driver, component, schema.name)
        self.schema = schema
        self._parts = parts
        self._finder = finder

    @operation
    def search(
        self,
        query: str | Node,
        *,
        sort: str | Mapping[str, float] = RELEVANCE,
        ascending: bool = False,
        combine: str = "intersection",
        default: float = 0.0,
        start: int = 0,
        num: int = DEFAULT_LIMIT,
        after: str | None = None,
        result: str | None = None,
        cache: int = 0,
        attributes: Sequence[str] | bool = (),
        snippets: bool | Mapping[str, Any] = False,
        facets: Sequence[str] = (),
        facet_size: int = 10,
        partial: bool = False,
        session: str | None = None,
    ) -> Operation[Results]:
        """Find documents.

        Args:
            query: a query, see `shardkit.search.parse`, or a tree of nodes such as `AllOf`.
            sort: ``"relevance"``, the best first; an attribute, with ``-`` before it the highest
                first; or weights by name, of attributes that are numbers and of ``relevance``: the
                sum of weight x value, the highest first. Documents with equal values are in the
                same order by id.
            ascending: have relevance or a weighted sum begin with the lowest.
            combine: whether a weighted sum leaves out documents that lack one of the attributes
                (``"intersection"``) or takes ``default`` for it (``"union"``).
            default: what stands for a missing attribute.
            start: how many documents come before the page.
            num: how many documents it has, at most 10,000. With 0 they are only counted.
            after: the cursor of the page before, in place of ``start``.
            result: the result that the page before had, if servers keep it. If they do not any
                more, the query runs again.
            cache: for how many seconds servers shall keep the first 10,000 documents of the result,
                from each use on; a replica that cannot be written to keeps nothing.
            attributes: which are wanted of each hit; True for all.
            snippets: whether a part of the text is wanted; or the options of
                `shardkit.search.snippets.snippet`, such as ``{"length": 200}``.
            facets: attributes of whose values it shall be counted how many matches have each.
            facet_size: how many values of each, the most frequent ones.
            partial: give the results of those parts that answer, marked as such, if others fail.
            session: sticks to one of the replicas that are read from.

        Raises:
            QuerySyntaxError: the query cannot be read; the error has the position.
            InvalidArgumentError: something else cannot be used; or more than 1,000 words begin as
                a word with ``*`` does; or a facet has more than 10,000 different values in a part.
            ParameterMismatchError: the index was created with other parameters.
            ShardErrors: parts failed, and partial results were not wanted; or all failed.

        Cost: one exchange. One more before it if relevance is wanted and counts of a word are not
        known or are too old (`statistics_ttl`), or if a word with ``*`` is in the query; one more
        after it for attributes or snippets with ``start + num`` above 200. A part looks at all
        postings of the rarest word that documents must have, and looks those documents up in the
        postings of the others.
        """
        request = request_of(
            self.schema,
            query,
            sort=sort,
            ascending=ascending,
            combine=combine,
            default=default,
            start=start,
            num=num,
            after=after,
            result=result,
            cache=cache,
            attributes=attributes,
            snippets=snippets,
            facets=facets,
            facet_size=facet_size,
            partial=partial,
            session=session,
        )
        return (yield from self._finder.find(request))

    @operation
    def page(
        self,
        /,
        query: str | Node,
        number: int = 1,
        size: int = DEFAULT_LIMIT,
        **options: Unpack[PageOptions],
    ) -> Operation[Results]:
        """Return a page by its number, from 1 on; see `search` for everything else.

        Raises:
            InvalidArgumentError: the number or size is below 1, or as `search`.
        """
        check_integer(self.name, "page", number, 1, MAX_PAGES)
        check_integer(self.name, "size", size, 1, MAX_LIMIT)
        return (
            yield from Searching.search.steps(
                self, query, start=(number - 1) * size, num=size, **options
            )
        )

    @stream
    def all(self, /, query: str | Node, **options: Unpack[Options]) -> Stream[Hit]:
        """Iterate over all documents that match, in order, by cursors; see `search`.

        Cost: one exchange for 1,000 documents (two with attributes or snippets), and for each of
        them a look at all that matches; with ``num=10_000`` a tenth of that.
        """
        asked: dict[str, Any] = {"num": PAGE_SIZE, **options}
        while True:
            found: Results = yield from Searching.search.steps(self, query, **asked)
            yield Page(found.hits)
            if found.cursor is None:
                return
            asked |= {"start": 0, "after": found.cursor}

    @operation
    def count(self, query: str | Node | None = None) -> Operation[int]:
        """Return how many documents there are, or (query) how many match. Cost: one exchange."""
        if query is not None:
            found = yield from Searching.search.steps(self, query, num=0)
            return int(found.total)
        parts = self._parts.written
        replies = yield from self._finder.ask(
            [
                Command(part.to, part.state, ("HGET", part.state, "docs"), idempotent=True)
                for part in parts
            ]
        )
        return sum(int(reply or 0) for reply in replies)

    @operation
    def words(self, beginning: str, count: int = 100) -> Operation[list[tuple[str, int]]]:
        """Return the first words, in order, that begin in a way, and how many documents have each.

        Args:
            beginning: of one word, spelled as in a query. The words that come back are as the index
                has them: without accents and upper case, and stemmed if it stems.
            count: how many are wanted, at most 1,000.

        Raises:
            InvalidArgumentError: the beginning is not that of one word, or the count out of range.

        Cost: one exchange.
        """
        if not isinstance(beginning, str):
            raise InvalidArgumentError(f"{self.name}: words({shown(beginning)})", "give text")
        check_integer(self.name, "count", count, 1, MAX_EXPANSIONS)
        tokens = self.schema.analyzer.beginnings(beginning)
        if len(tokens) != 1:
            raise InvalidArgumentError(
                f"{self.name}: words({shown(beginning)})", "give the beginning of one word"
            )
        term = tokens[0].term
        _, found = yield from self._finder.beginnings([], [term], count)
        return list(found[term].items())
