"""The results of a search: hits, how many documents match, and the cursor of the next page."""

from __future__ import annotations

import json
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import shown
from shardkit.search.model.documents import Value
from shardkit.search.model.schema import TermCounts

OrderValue: TypeAlias = float | str


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that matches.

    Attributes:
        id: the document's id.
        value: its value in the order: its score, a number (a date as seconds since 1970 UTC), or
            text; 0 or empty text if the document has none.
        attributes: its requested attributes.
        snippet: the part of its text that best shows why it matches, if requested and if the index
            keeps text.
    """

    id: str
    value: OrderValue
    attributes: dict[str, Value] = field(default_factory=dict)
    snippet: str | None = None


@dataclass(frozen=True, slots=True)
class Results:
    """A page of hits. Iterating over it yields them.

    Attributes:
        total: the number of matching documents, in all parts that replied.
        hits: those of this page, in order.
        cursor: where the next page begins, for ``cursor=``; None if there is none.
        result: the cached result, for ``result=`` of further pages; None if nothing is cached.
        facets: by attribute, values and their numbers of matches, the most frequent first.
        missing: the parts that failed, if partial results were requested.
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
    """The end of a page."""

    query: str  # a digest of the query and its order
    source: int  # the number of the component that was read
    value: OrderValue  # of the last hit
    id: str
    counts: TermCounts | None  # the weights of relevance

    def token(self) -> str:
        """Return it as opaque text."""
        return _token(*self)


class CachedResult(NamedTuple):
    """A result that servers cache."""

    query: str  # a digest of the query and its order
    source: int  # the number of the component that caches it
    key: str  # the end of its keys
    counts: TermCounts | None  # the weights of relevance

    def token(self) -> str:
        """Return it as opaque text."""
        return _token(*self)


def _token(*fields: Any) -> str:
    *given, counts = fields
    plain = json.dumps([*given, counts and [counts.documents, dict(counts.words)]])
    packed = zlib.compress(plain.encode())
    return urlsafe_b64encode(packed).decode().rstrip("=")


def read_cursor(owner: str, text: str) -> SearchCursor:
    """Decode a cursor."""
    return SearchCursor(*_read(owner, "cursor", text, (str, int, (float, int, str), str)))


def read_cached_result(owner: str, text: str) -> CachedResult:
    """Decode the token of a cached result."""
    return CachedResult(*_read(owner, "result", text, (str, int, str)))


def _read(owner: str, what: str, text: str, types: tuple[Any, ...]) -> Any:
    try:
        packed = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        unpacker = zlib.decompressobj()
        *given, counts = json.loads(unpacker.decompress(packed, 1_000_000))
        "".join(map(str, given)).encode()  # no lone surrogates
        if all(
            isinstance(value, kind) and not isinstance(value, bool)
            for value, kind in zip(given, types, strict=True)
        ):
            return [*given, None if counts is None else _counts(*counts)]
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError, zlib.error):
        pass
    raise InvalidArgumentError(
        f"{owner}: {what}={shown(text)}", "give one that `search` returned"
    ) from None


def _counts(documents: int, words: Mapping[str, int]) -> TermCounts:
    counts = TermCounts(documents, dict(words))
    if not all(weight >= 0 for weight in counts.weights(words)):  # which raises, too
        raise ValueError
    return counts
