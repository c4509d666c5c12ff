"""The weights of relevance: how many documents, over all parts of an index, have each term.

Scores on all parts use the counts of all parts together. They are cached for some seconds, and
every reply refreshes them. An old count changes all documents' scores equally, and very little.

For every word in a document the index keeps one byte, its *impact*: BM25's term-frequency part with
k1 = 1.2 and b = 0.75::

                     tf'                          tf' = sum over fields of weight x times
    byte  =  255  x  ───────────────────────────────────────────────
                     tf' + k1 (1 - b + b length / average_length)

The average length is a constant of the index, a *pivot* (100 terms by default): a byte never has to
be rewritten, and does not depend on other documents. A query weights each word by how rare it is::

    idf(documents, df)  =  ln(1 + (documents - df + 0.5) / (df + 0.5))      in steps of 1/1024

A document's score is the sum of idf x byte over the words of the query that it matches by. Doubles
hold these sums exactly: a server's Lua and Python, adding in any order, get the same score.

The formula is Robertson's and Zaragoza's ("The Probabilistic Relevance Framework: BM25 and Beyond",
2009; weighted fields: their BM25F with one length for all fields); the idf that is never negative,
and the length in a byte, are Lucene's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

K1: Final = 1.2
B: Final = 0.75
AVERAGE_LENGTH: Final = 100
MAX_IMPACT: Final = 255
IDF_STEPS: Final = 1024


def impact_byte(weighted_tf: float, length: int, average_length: float = AVERAGE_LENGTH) -> int:
    """Return the impact of a word in a document, 1 to 255.

    ``weighted_tf`` is tf' above, ``length`` the document's number of terms in all its fields.
    """
    norm = K1 * (1 - B + B * length / average_length)
    return max(1, min(MAX_IMPACT, round(MAX_IMPACT * weighted_tf / (weighted_tf + norm))))


def idf(documents: int, df: int) -> float:
    """Return the weight of a word of a query, a multiple of 1/1024 above 0.

    ``df`` of the ``documents`` have it; it may be more, if read at another moment.
    """
    df = min(df, documents)
    steps = round(math.log(1 + (documents - df + 0.5) / (df + 0.5)) * IDF_STEPS)
    return max(1, steps) / IDF_STEPS


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
