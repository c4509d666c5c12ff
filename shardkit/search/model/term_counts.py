"""The weights of relevance: how many documents, over all parts of an index, have each term.

Scores on all parts use the same counts, those of all parts together. Counts are cached for some
seconds, and every reply refreshes them, so a query with cached terms needs no exchange to read
them. An old count changes all documents' scores equally, and very little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from shardkit.search.text.bm25 import idf

MAX_CACHED: Final = 10_000


@dataclass(frozen=True, slots=True)
class TermCounts:
    """The number of documents of an index, and of those with each term."""

    documents: int
    words: Mapping[str, int]

    def weights(self, words: Iterable[str]) -> list[float]:
        """Return the factors of the terms' impacts; 0 for a term that is not scored."""
        counts = self.words
        return [idf(self.documents, counts[word]) if word in counts else 0 for word in words]


class TermStatistics:
    """A cache of term counts for ``ttl`` seconds. Shared by all faces of an index; thread-safe."""

    def __init__(self, ttl: float, monotonic: Callable[[], float]) -> None:
        self.ttl = ttl
        self._monotonic = monotonic
        self._words: dict[str, tuple[int, float]] = {}
        self._documents = (0, -1.0)

    def get(self, words: Iterable[str]) -> TermCounts | None:
        """Return the counts of terms, if all of them are cached and fresh."""
        oldest = self._monotonic() - self.ttl
        documents, since = self._documents
        if self.ttl <= 0 or since < oldest:
            return None
        counts = {}
        for word in words:
            count, since = self._words.get(word, (0, -1.0))
            if since < oldest:
                return None
            counts[word] = count
        return TermCounts(documents, counts)

    def update(self, counts: TermCounts) -> None:
        """Cache counts that were just read."""
        if self.ttl <= 0:
            return
        now = self._monotonic()
        if len(self._words) + len(counts.words) > MAX_CACHED:
            self._words = {}
        self._words.update({word: (count, now) for word, count in counts.words.items()})
        self._documents = (counts.documents, now)

    def clear(self) -> None:
        """Drop all counts."""
        self._words = {}
        self._documents = (0, -1.0)
