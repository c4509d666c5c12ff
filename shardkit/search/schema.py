"""The parameters of an index: its fields of text, its attributes, and how text is analyzed.

They are stored with the index, and checked when it is opened: what postings, columns and words mean
depends on them. Tools that did not create an index read them from there. Only the fingerprint of an
analyzer is stored, so only analyzers made of this package's parts can be recovered: the two
tokenizers, the English stop words or none, and the stemmers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypedDict

from shardkit.errors import InvalidArgumentError, ParameterMismatchError
from shardkit.operations.arguments import is_number, shown
from shardkit.operations.commands import Command, ShardOf
from shardkit.operations.operation import Operation
from shardkit.search.text import ENGLISH, Analyzer, English, Unicode
from shardkit.structures.base.arguments import check_integer
from shardkit.structures.base.parameters import meta_key

K1: Final = 1.2
B: Final = 0.75
AVERAGE_LENGTH: Final = 100
MAX_IMPACT: Final = 255
IDF_STEPS: Final = 1024


def impact_byte(weighted_tf: float, length: int, average_length: float = AVERAGE_LENGTH) -> int:
    """Return the *impact* of a word in a document, 1 to 255: BM25's part for its frequency.

    ``weighted_tf`` is the sum over fields of weight x times, ``length`` the document's number of
    terms in all its fields. The average length is a constant of the index, a *pivot*: a byte never
    has to be rewritten, and does not depend on other documents.

    A document's score is the sum of idf x byte over the words of the query that it matches by.
    Doubles hold these sums exactly: a server's Lua and Python, adding in any order, get the same.

    The formula is Robertson's and Zaragoza's ("The Probabilistic Relevance Framework: BM25 and
    Beyond", 2009; weighted fields: their BM25F with one length for all fields); the idf that is
    never negative, and the length in a byte, are Lucene's.
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


KINDS: Final = ("number", "date", "text")
MAX_FIELDS: Final = 8  # a posting has a bit for each
MAX_ATTRIBUTES: Final = 64
CHUNK: Final = 65_536  # a posting has 16 bits for the number in its chunk
MAX_SHARDS: Final = 16_384
RELEVANCE: Final = "relevance"
_NAME: Final = re.compile(r"[^\W\d][\w.-]*")


class SchemaParameters(TypedDict, total=False):
    """The arguments of `Schema`, except the name and the number of parts."""

    fields: Mapping[str, float]
    attributes: Mapping[str, str]
    analyzer: Analyzer
    keep_text: bool
    phrases: bool
    average_length: float
    chunk: int


@dataclass(frozen=True)
class Schema:
    """The parameters of an index, which decide what is stored, and where.

    Args:
        fields: the weight of each field of text, by name; at most 8.
        attributes: the kind of each attribute, ``number``, ``date`` or ``text``, by name; at most
            64.
        analyzer: turns text into words.
        keep_text: whether to keep text as it was given, for snippets.
        phrases: whether to keep the order of words, for phrases.
        average_length: the average number of words of a document; see
            `shardkit.search.schema`.
        chunk: the number of documents in a chunk of postings, a power of two.

    Raises:
        InvalidArgumentError: an argument cannot be used.
    """

    name: str
    parts: int
    fields: Mapping[str, float] = field(default_factory=lambda: {"text": 1.0})
    attributes: Mapping[str, str] = field(default_factory=dict)
    analyzer: Analyzer = field(default_factory=Analyzer)
    keep_text: bool = True
    phrases: bool = True
    average_length: float = AVERAGE_LENGTH
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        check_integer(self.name, "parts", self.parts, 1, MAX_SHARDS)
        _check_names(self.name, "fields", self.fields, 1, MAX_FIELDS)
        _check_names(self.name, "attributes", self.attributes, 0, MAX_ATTRIBUTES)
        numbers = {f"field {name}: weight": weight for name, weight in self.fields.items()}
        for option, number in {**numbers, "average_length": self.average_length}.items():
            if not is_number(number) or not 0 < number < math.inf:
                raise InvalidArgumentError(
                    f"{self.name}: {option}={shown(number)}", "give a number above 0"
                )
        for name, kind in self.attributes.items():
            if kind not in KINDS:
                raise InvalidArgumentError(
                    f"{self.name}: attribute {name}: kind={shown(kind)}",
                    f"give one of {', '.join(KINDS)}",
                )
        if RELEVANCE in self.attributes:
            raise InvalidArgumentError(
                f"{self.name}: an attribute called {RELEVANCE}",
                "choose another name: sort='relevance' means the score",
            )
        if not isinstance(self.analyzer, Analyzer):
            raise InvalidArgumentError(
                f"{self.name}: analyzer={shown(self.analyzer)}", "give an Analyzer"
            )
        check_integer(self.name, "chunk", self.chunk, 8, CHUNK)
        if self.chunk & (self.chunk - 1):
            raise InvalidArgumentError(f"{self.name}: chunk={self.chunk}", "give a power of two")

    @property
    def parameters(self) -> dict[str, object]:
        """The stored and compared parameters. ``keep_text`` concerns later documents only."""
        return {
            "kind": "search",
            "shards": self.parts,
            "fields": " ".join(f"{name}={float(w)!r}" for name, w in self.fields.items()),
            "attributes": " ".join(f"{name}={kind}" for name, kind in self.attributes.items()),
            "analyzer": self.analyzer.fingerprint,
            "phrases": int(self.phrases),
            "average_length": repr(float(self.average_length)),
            "chunk": self.chunk,
        }

    @property
    def columns(self) -> str:
        """The content of the columns, a letter for each: n a number, t the place of a text."""
        return "".join("t" if kind == "text" else "n" for kind in self.attributes.values())

    def place(self, attribute: str) -> int:
        """Return the number of an attribute's column, from 1 on."""
        return list(self.attributes).index(attribute) + 1

    def mask(self, name: str | None) -> int:
        """Return the bit of a field in postings; for None 0, which is any field."""
        return 0 if name is None else 1 << list(self.fields).index(name)

    def number(self, name: str | None) -> int:
        """Return the number of a field, from 1 on; 0 for None."""
        return 0 if name is None else list(self.fields).index(name) + 1


def _check_names(owner: str, what: str, given: object, least: int, most: int) -> None:
    if not isinstance(given, Mapping) or not least <= len(given) <= most:
        raise InvalidArgumentError(
            f"{owner}: {what}={shown(given)}", f"give a mapping by name, of {least} to {most}"
        )
    for name in given:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidArgumentError(
                f"{owner}: {what}: the name {shown(name)}",
                "use a letter, then letters, digits, '_', '.' and '-'",
            )


def stored_parameters(component: str, name: str, shards: int) -> Operation[dict[str, str] | None]:
    """Return the stored parameters of an index; None if it does not exist. Cost: one exchange.

    ``shards`` is the component's number of shards; any number if it is not sharded.
    """
    key, first = meta_key(name), ShardOf(component, 0, shards)
    [flat] = yield [Command(first, key, ("HGETALL", key))]
    words = [word.decode(errors="replace") for word in flat]
    return dict(zip(words[::2], words[1::2], strict=True)) or None


def parameters_of(name: str, stored: Mapping[str, str]) -> tuple[int, SchemaParameters]:
    """Return an index's number of parts and its other parameters, from its stored ones."""
    if stored.get("kind") != "search":
        raise ParameterMismatchError(
            f"{meta_key(name)}: {name!r} is of kind {stored.get('kind')!r}, not a search index",
            "give the name of an index",
        )
    try:
        return int(stored["shards"]), {
            "fields": {key: float(weight) for key, weight in _pairs(stored["fields"])},
            "attributes": dict(_pairs(stored["attributes"])),
            "analyzer": analyzer_of(name, stored["analyzer"]),
            "phrases": stored["phrases"] == "1",
            "average_length": float(stored["average_length"]),
            "chunk": int(stored["chunk"]),
        }
    except (KeyError, ValueError) as error:
        raise ParameterMismatchError(
            f"{meta_key(name)}: the stored parameters of {name!r} cannot be read: {error}",
            "use the version of shardkit that wrote them",
        ) from error


def _pairs(text: str) -> list[tuple[str, str]]:
    """Return names and values of ``title=3.0 text=1.0``."""
    return [(name, value) for name, _, value in (pair.partition("=") for pair in text.split())]


def analyzer_of(name: str, fingerprint: str) -> Analyzer:
    """Return the analyzer with a stored fingerprint."""
    stemmer = fingerprint.rpartition(" ")[2]
    for tokenizer in (Unicode(), English()):
        for stop_words in (ENGLISH, frozenset[str]()):
            analyzer = Analyzer(tokenizer, stop_words, None if stemmer == "-" else stemmer)
            if analyzer.fingerprint == fingerprint:
                return analyzer
    raise ParameterMismatchError(
        f"{meta_key(name)}: {name!r} has an analyzer of its own: {fingerprint!r}",
        "open it in Python, with that analyzer",
    )
