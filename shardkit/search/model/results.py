"""What a query gives: hits, how many there are, and where the next page begins."""

from __future__ import annotations

import json
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from shardkit.errors import InvalidArgumentError
from shardkit.search.model.documents import Value
from shardkit.search.model.term_counts import TermCounts
from shardkit.structures.base.arguments import shown

OrderValue: TypeAlias = float | str


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that was found.

    Attributes:
        id: the document's id.
        value: what it was put in order by: its score, a number (a date as seconds since 1970 UTC),
            or text; 0 or empty text where the document has none.
        attributes: those that were asked for and that it has.
        snippet: the part of its text that shows best why it was found, if that was asked for and
            text is kept.
    """

    id: str
    value: OrderValue
    attributes: dict[str, Value] = field(default_factory=dict)
    snippet: str | None = None


@dataclass(frozen=True, slots=True)
class Results:
    """A page of what was found. Iterating gives its hits.

    Attributes:
        total: how many documents match, on all parts that answered.
        hits: those of this page, in order.
        cursor: where the next page begins, for ``after``; None when there is none.
        result: what ``result`` takes, so that further pages come from what the servers keep; None
            if nothing is kept.
        facets: by attribute, how many matches have each value, the most frequent first.
        missing: the parts that did not answer, if partial results were wanted.
    """

    total: int
    hits: list[Hit]
    cursor: str | None = None
    result: str | None = None
    facets: dict[str, list[tuple[OrderValue, int]]] = field(default_factory=dict)
    missing: tuple[int, ...] = ()

    @property
    def partial(self) -> bool:
        """Whether parts are missing."""
        return bool(self.missing)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)


class SearchCursor(NamedTuple):
    """The end of a page.

    Attributes:
        query: a digest of the query and its order.
        source: which component was read from.
        value, id: those of the page's last hit.
        counts: what it was weighed by.
    """

    query: str
    source: int
    value: OrderValue
    id: str
    counts: TermCounts | None


class CachedResult(NamedTuple):
    """A result that servers keep.

    Attributes:
        query: a digest of the query and its order.
        source: which component keeps it.
        key: the end of its keys.
        counts: what it was weighed by.
    """

    query: str
    source: int
    key: str
    counts: TermCounts | None


def write_token(token: SearchCursor | CachedResult) -> str:
    """Return a cursor or result as opaque text."""
    *given, counts = token
    plain = json.dumps([*given, counts and [counts.documents, dict(counts.words)]])
    packed = zlib.compress(plain.encode())
    return urlsafe_b64encode(packed).decode().rstrip("=")


def read_cursor(owner: str, text: str) -> SearchCursor:
    """Return what a cursor says.

    Raises:
        InvalidArgumentError: it is none.
    """
    return SearchCursor(*_read(owner, "after", text, 5))


def read_cached_result(owner: str, text: str) -> CachedResult:
    """Return what a result's id says.

    Raises:
        InvalidArgumentError: it is none.
    """
    return CachedResult(*_read(owner, "result", text, 4))


def _read(owner: str, what: str, text: str, size: int) -> Any:
    try:
        packed = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        unpacker = zlib.decompressobj()
        *given, counts = json.loads(unpacker.decompress(packed, 1_000_000))
        if len(given) + 1 == size and isinstance(given[0], str) and type(given[1]) is int:
            return [*given, counts and TermCounts(int(counts[0]), dict(counts[1]))]
    except (TypeError, ValueError, zlib.error, IndexError):
        pass
    raise InvalidArgumentError(
        f"{owner}: {what}={shown(text)}", "give one that `search` returned"
    ) from None
