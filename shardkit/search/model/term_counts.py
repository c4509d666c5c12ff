"""In how many documents words are, over all parts of an index: what relevance is weighed by.

A score has to be the same on every part, so it is computed with the counts of all of them. They are
kept for some seconds, and every reply brings new ones; a query whose words are all known needs no
exchange before it. A count that is some seconds old moves a score by very little, and the same for
all documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from shardkit.search.text.bm25 import idf

MAX_CACHED: Final = 10_000


@dataclass(frozen=True, slots=True)
class TermCounts:
    """What a query is weighed by.

    Attributes:
        documents: how many documents the index has.
        words: in how many of them each word is.
    """

    documents: int
    words: Mapping[str, int]

    def weights(self, words: Iterable[str]) -> list[float]:
        """Return by what the impacts of words are multiplied; 0 for one that is not scored."""
        return [idf(self.documents, self.words[w]) if w in self.words else 0 for w in words]


class TermStatistics:
    """Cached counts of terms. Shared by all faces of an index; any thread may use it.

    Args:
        ttl: for how many seconds a count is used; 0 to ask every time.
        monotonic: seconds that never go back.
    """

    def __init__(self, ttl: float, monotonic: Callable[[], float]) -> None:
        self.ttl = ttl
        self._monotonic = monotonic
        self._words: dict[str, tuple[int, float]] = {}
        self._documents = (0, -1.0)

    def known(self, words: Iterable[str]) -> TermCounts | None:
        """Return the counts of words if all of them are known, and not too old."""
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

    def learn(self, counts: TermCounts) -> None:
        """Take in counts that were just read."""
        if self.ttl <= 0:
            return
        now = self._monotonic()
        if len(self._words) + len(counts.words) > MAX_CACHED:
            self._words = {}
        self._words.update({word: (count, now) for word, count in counts.words.items()})
        self._documents = (counts.documents, now)

    def forget(self) -> None:
        """Know nothing, as the documents have changed."""
        self._words = {}
        self._documents = (0, -1.0)
