"""How many documents, over all parts of an index, hold each term: what relevance is weighted by.

A score has to be the same on every part, so it is computed with the counts of all of them. Counts
are cached for some seconds, and every reply refreshes them; a query whose terms are all cached
needs no exchange to read them first. A count that is some seconds old moves a score by very little,
and by the same for all documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from shardkit.search.text.bm25 import idf

MAX_CACHED: Final = 10_000


@dataclass(frozen=True, slots=True)
class TermCounts:
    """What a query is weighted by.

    Attributes:
        documents: how many documents the index has.
        words: how many of them hold each term.
    """

    documents: int
    words: Mapping[str, int]

    def weights(self, words: Iterable[str]) -> list[float]:
        """Return the factors of the terms' impacts; 0 for a term that is not scored."""
        counts = self.words
        return [idf(self.documents, counts[word]) if word in counts else 0 for word in words]


class TermStatistics:
    """A cache of term counts. Shared by all faces of an index; thread-safe.

    Args:
        ttl: for how many seconds a count is used; 0 to read them for every search.
        monotonic: a clock that never goes back, in seconds.
    """

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
        found = {}
        for word in words:
            count, since = self._words.get(word, (0, -1.0))
            if since < oldest:
                return None
            found[word] = count
        return TermCounts(documents, found)

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
