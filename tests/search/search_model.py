"""A model of an index that looks at every document.

Definitions, for those who compare an index with it:

* A document matches by `search.query`, after `analyze`. A phrase stands within one field,
  its words one after another once stop words are gone.
* A field says where a word has to be; the score and the word's rarity count it in all fields.
* score = sum over the query's words of idf x impact byte (`search.schema`): a `Phrase`
  counts its words, each as often as it is in the phrase; a `Prefix` counts every different word of
  the document that begins so (in its field, if it names one); `AllOf` sums its parts, `AnyOf`
  those of its parts that match; a Range, an Equal, a Not and Everything count 0.
* Order: by (value, id), both in the same direction; ids and text compare as UTF-8. A document
  without the value sorts as 0, or as the empty text. Of several texts the first counts.
* What is no number (NaN too) is a missing number; dates are seconds since 1970 UTC.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any

from hypothesis import strategies as st

from shardkit.search import (
    AllOf,
    Analyzer,
    AnyOf,
    Equal,
    Everything,
    Node,
    Not,
    Phrase,
    Prefix,
    Range,
    Word,
    analyze,
    parse,
)
from shardkit.search.schema import AVERAGE_LENGTH, idf, impact_byte

RELEVANCE = "relevance"
Row = tuple[Any, str]


def number_of(value: object) -> float | None:
    """A value as a number; None if it is not one."""
    if isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, date):
        return datetime.combine(value, time(), UTC).timestamp()
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return None if number != number else number


def texts_of(value: object) -> list[str]:
    """The texts of a text attribute: one or several."""
    return [value] if isinstance(value, str) else [str(each) for each in value or ()]  # type: ignore[attr-defined]


@dataclass
class Document:
    terms: dict[str, list[str]]
    attributes: dict[str, Any]

    def words(self, field: str | None = None) -> set[str]:
        return {
            word for name, terms in self.terms.items() if field in (None, name) for word in terms
        }

    def has_phrase(self, words: tuple[str, ...], field: str | None) -> bool:
        size = len(words)
        return any(
            tuple(terms[start : start + size]) == words
            for name, terms in self.terms.items()
            if field in (None, name)
            for start in range(len(terms) - size + 1)
        )


class ModelIndex:
    def __init__(
        self,
        fields: Mapping[str, float],
        attributes: Mapping[str, str] | None = None,
        analyzer: Analyzer | None = None,
        average_length: float = AVERAGE_LENGTH,
    ) -> None:
        self.fields = dict(fields)
        self.attributes = dict(attributes or {})
        self.analyzer = analyzer or Analyzer()
        self.average_length = average_length
        self.documents: dict[str, Document] = {}

    def index(
        self, id_: str, texts: Mapping[str, str], attributes: Mapping[str, Any] | None = None
    ) -> int:
        """Index a document, replacing one with the same id; return how many words it has."""
        terms = {name: self.analyzer.terms(text) for name, text in texts.items()}
        self.documents[id_] = Document(terms, dict(attributes or {}))
        return len(self.documents[id_].words())

    def remove(self, id_: str) -> bool:
        return self.documents.pop(id_, None) is not None

    # matching

    def tree(self, query: str | Node) -> Node:
        if isinstance(query, str):
            query = parse(query, self.fields, self.attributes)
        return analyze(query, self.analyzer)

    def matches(self, document: Document, node: Node) -> bool:
        match node:
            case Word(word, field):
                return word in document.words(field)
            case Prefix(beginning, field):
                return any(word.startswith(beginning) for word in document.words(field))
            case Phrase(words, field):
                return document.has_phrase(words, field)
            case Range():
                number = number_of(document.attributes.get(node.attribute))
                return number is not None and self.within(node, number)
            case Equal(attribute, value):
                return value in texts_of(document.attributes.get(attribute))
            case AllOf(parts):
                return all(
                    not self.matches(document, part.part)
                    if isinstance(part, Not)
                    else self.matches(document, part)
                    for part in parts
                )
            case AnyOf(parts):
                return any(self.matches(document, part) for part in parts)
            case Everything():
                return True
            case _:
                return False

    @staticmethod
    def within(node: Range, number: float) -> bool:
        low, high = node.low, node.high
        assert not isinstance(low, date)
        assert not isinstance(high, date)
        return (low is None or number > low or (number == low and not node.open_low)) and (
            high is None or number < high or (number == high and not node.open_high)
        )

    # scoring

    def word_score(self, document: Document, word: str) -> float:
        df = sum(word in each.words() for each in self.documents.values())
        times = {name: Counter(terms)[word] for name, terms in document.terms.items()}
        weighted = sum(self.fields[name] * count for name, count in times.items())
        length = sum(len(terms) for terms in document.terms.values())
        return idf(len(self.documents), df) * impact_byte(weighted, length, self.average_length)

    def score(self, document: Document, node: Node) -> float:
        """The score of a document that matches."""
        match node:
            case Word(word):
                return self.word_score(document, word)
            case Phrase(words):
                return sum(self.word_score(document, word) for word in words)
            case Prefix(beginning, field):
                found = (word for word in document.words(field) if word.startswith(beginning))
                return sum(self.word_score(document, word) for word in found)
            case AllOf(parts):
                return sum(self.score(document, part) for part in parts)
            case AnyOf(parts):
                return sum(self.score(document, p) for p in parts if self.matches(document, p))
            case _:
                return 0.0

    def found(self, query: str | Node) -> dict[str, float]:
        """Every match, with its score."""
        node = self.tree(query)
        return {
            id_: float(self.score(document, node))
            for id_, document in self.documents.items()
            if self.matches(document, node)
        }

    # order

    def value(self, id_: str, score: float, by: str) -> Any:
        if by == RELEVANCE:
            return score
        value = self.documents[id_].attributes.get(by)
        if self.attributes[by] == "text":
            return (texts_of(value) or [""])[0]
        return number_of(value) or 0.0

    def sorted(self, query: str | Node, by: str = RELEVANCE, descending: bool = True) -> list[Row]:
        """All matches as (value, id), in order; the total is how many there are."""
        rows = [(self.value(id_, score, by), id_) for id_, score in self.found(query).items()]
        return in_order(rows, descending)

    def weighted(
        self,
        query: str | Node,
        weights: Mapping[str, float],
        missing: str = "intersection",
        default: float = 0,
        descending: bool = True,
    ) -> list[Row]:
        """All matches as (value, id) by a weighted sum of relevance and attributes.

        Of an intersection, documents that lack one of the attributes are lost; of a union, they
        count with the default for it.
        """
        rows: list[Row] = []
        for id_, score in self.found(query).items():
            values = {
                name: score
                if name == RELEVANCE
                else number_of(self.documents[id_].attributes.get(name))
                for name in weights
            }
            if missing == "intersection" and None in values.values():
                continue
            total = 0.0
            for name, weight in weights.items():
                value = values[name]
                total += weight * (default if value is None else value)
            rows.append((total, id_))
        return in_order(rows, descending)

    def facets(self, query: str | Node, attribute: str) -> dict[str, int]:
        """How many matches have each value of a text attribute."""
        counts: Counter[str] = Counter()
        for id_ in self.found(query):
            counts.update(set(texts_of(self.documents[id_].attributes.get(attribute))))
        return dict(counts)


def in_order(rows: Iterable[Row], descending: bool) -> list[Row]:
    return sorted(rows, key=_key, reverse=descending)


def _key(row: Row) -> tuple[Any, bytes]:
    value, id_ = row
    return (value.encode() if isinstance(value, str) else value, id_.encode())


def all_of(*parts: Node) -> AllOf:
    return AllOf(parts)


def any_of(*parts: Node) -> AnyOf:
    return AnyOf(parts)


def trees(leaves: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    """Queries of a few leaves."""
    return st.recursive(
        leaves,
        lambda nodes: (
            st.builds(Not, nodes)
            | st.builds(AllOf, st.lists(nodes, max_size=3).map(tuple))
            | st.builds(AnyOf, st.lists(nodes, max_size=3).map(tuple))
        ),
        max_leaves=8,
    )
