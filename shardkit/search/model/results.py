"""What a search returns: hits, how many documents match, and where the next page begins."""

from __future__ import annotations

import json
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import shown
from shardkit.search.model.documents import Value
from shardkit.search.model.term_counts import TermCounts

OrderValue: TypeAlias = float | str


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that was found.

    Attributes:
        id: the document's id.
        value: what it was ordered by: its score, a number (a date as seconds since 1970 UTC), or
            text; 0 or empty text where the document has none.
        attributes: those that were requested and that it has.
        snippet: the part of its text that best shows why it matches, if that was requested and the
            index keeps text.
    """

    id: str
    value: OrderValue
    attributes: dict[str, Value] = field(default_factory=dict)
    snippet: str | None = None


@dataclass(frozen=True, slots=True)
class Results:
    """A page of hits. Iterating over it yields them.

    Attributes:
        total: how many documents match, in all parts that answered.
        hits: those of this page, in order.
        cursor: where the next page begins, for ``cursor=``; None if there is none.
        result: the cached result, for ``result=`` of further pages; None if nothing is cached.
        facets: by attribute, how many matches have each value, the most frequent first.
        missing: the parts that did not answer, if partial results were requested.
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
    """Where a page ended.

    Attributes:
        query: a digest of the query and its order.
        source: which component it was read from.
        value, id: those of the page's last hit.
        counts: what relevance was weighted by.
    """

    query: str
    source: int
    value: OrderValue
    id: str
    counts: TermCounts | None

    def token(self) -> str:
        """Return it as opaque text."""
        return _token(*self)


class CachedResult(NamedTuple):
    """A result that servers cache.

    Attributes:
        query: a digest of the query and its order.
        source: which component caches it.
        key: the end of its keys.
        counts: what relevance was weighted by.
    """

    query: str
    source: int
    key: str
    counts: TermCounts | None

    def token(self) -> str:
        """Return it as opaque text."""
        return _token(*self)


def _token(*fields: Any) -> str:
    *given, counts = fields
    plain = json.dumps([*given, counts and [counts.documents, dict(counts.words)]])
    packed = zlib.compress(plain.encode())
    return urlsafe_b64encode(packed).decode().rstrip("=")


def read_cursor(owner: str, text: str) -> SearchCursor:
    """Decode a cursor.

    Raises:
        InvalidArgumentError: the text is no cursor.
    """
    return SearchCursor(*_read(owner, "cursor", text, (str, int, (float, int, str), str)))


def read_cached_result(owner: str, text: str) -> CachedResult:
    """Decode the token of a cached result.

    Raises:
        InvalidArgumentError: the text is no such token.
    """
    return CachedResult(*_read(owner, "result", text, (str, int, str)))


def _read(owner: str, what: str, text: str, types: tuple[Any, ...]) -> Any:
    try:
        packed = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        unpacker = zlib.decompressobj()
        *given, counts = json.loads(unpacker.decompress(packed, 1_000_000))
        if len(given) == len(types) and all(map(isinstance, given, types)):
            return [*given, counts and TermCounts(int(counts[0]), dict(counts[1]))]
    except (TypeError, ValueError, zlib.error, IndexError):
        pass
    raise InvalidArgumentError(
        f"{owner}: {what}={shown(text)}", "give one that `search` returned"
    ) from None
