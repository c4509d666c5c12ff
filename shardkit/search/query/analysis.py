"""Analyzing a query: index terms for words, in the normal form that an index executes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time
from typing import Final, TypeGuard

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import shown
from shardkit.search.query.tree import (
    AllOf,
    AnyOf,
    Bound,
    Equal,
    Everything,
    Node,
    Not,
    Nothing,
    Phrase,
    Prefix,
    Range,
    Word,
    check_depth,
)
from shardkit.search.text.analyzer import Analyzer

_DAY: Final = 86_400


def analyze(node: Node, analyzer: Analyzer) -> Node:
    """Return a query with index terms for words, in the normal form that an index executes.

    * Words without terms, such as stop words, are dropped. A word with several terms ("re-read",
      "東京都") becomes a phrase, as does a prefix of several characters of a script without spaces.
      A prefix is normalised like a word, but not stemmed.
    * A query of only dropped or unwanted words becomes `Nothing`.
    * Every `Range`, `Equal` and `Not` is part of an `AllOf` that also has another kind of part,
      `Everything` if need be (a Range or Equal may also be in a `Not`): so each only narrows down
      a list of documents. No AllOf is directly in an AllOf, no AnyOf in an AnyOf; no part occurs
      twice; none is `Nothing`.
    * Parts are ordered: Everything, words, phrases, prefixes, AnyOf, AllOf, then Range, Equal,
      Not; parts of a kind by their text. So ``b a`` and ``a b`` are the same.
    * The bounds of ranges are floats: dates become seconds since 1970 UTC. A date as upper bound
      includes the whole day.

    Raises:
        InvalidArgumentError: a bound is a datetime without a timezone, or the tree has more than
            100 levels.
    """
    check_depth(node)
    analyzed = _analyze(node, analyzer)
    return Nothing() if analyzed is None or isinstance(analyzed, Not) else _based(analyzed)


def _analyze(node: Node, analyzer: Analyzer) -> Node | None:
    """Return a node with index terms; None if it no longer constrains anything."""
    match node:
        case Word(text, name):
            return _words((text,), name, analyzer)
        case Phrase(words, name):
            return _words(words, name, analyzer)
        case Prefix(text, name):
            return _prefix(text, name, analyzer)
        case Range():
            return _range(node)
        case AllOf(parts):
            return _all_of(parts, analyzer)
        case AnyOf(parts):
            return _any_of(parts, analyzer)
        case Not(part):
            excluded = _analyze(part, analyzer)
            # Excluding what never matches excludes nothing.
            return (
                None if excluded is None or isinstance(excluded, Not | Nothing) else Not(excluded)
            )
        case _:
            return node


def _words(texts: Iterable[str], name: str | None, analyzer: Analyzer) -> Node | None:
    terms = tuple(term for text in texts for term in analyzer.terms(text))
    if len(terms) > 1:
        return Phrase(terms, name)
    return Word(terms[0], name) if terms else None


def _prefix(text: str, name: str | None, analyzer: Analyzer) -> Node | None:
    tokens = analyzer.beginnings(text)
    if not tokens:
        return None
    last = tokens[-1]
    if len(tokens) == 1:
        return Prefix(last.term, name)
    if tokens[-2].end > last.start:  # overlapping pairs: one for the whole run
        return _words((text,), name, analyzer)
    return _all_of((Word(text[: last.start], name), Prefix(last.term, name)), analyzer)


def _range(node: Range) -> Range:
    low, open_low = _limit(node, node.low, node.open_low, upper=False)
    high, open_high = _limit(node, node.high, node.open_high, upper=True)
    return Range(node.attribute, low, high, open_low, open_high)


def _limit(node: Range, bound: Bound, outside: bool, *, upper: bool) -> tuple[float | None, bool]:
    """Return a bound as a number, and whether the number itself is outside."""
    if bound is None:
        return None, False
    if isinstance(bound, datetime):
        if bound.utcoffset() is None:
            raise InvalidArgumentError(
                f"{node.attribute}: bound {shown(bound)} of a range", "give a datetime with tzinfo"
            )
        return bound.timestamp(), outside
    if isinstance(bound, date):
        # "Up to" and "after" a day mean its end, which is when the next day begins.
        midnight = datetime.combine(bound, time(), UTC).timestamp()
        return midnight + (_DAY if upper is not outside else 0), upper
    return float(bound), outside


def _all_of(parts: Iterable[Node], analyzer: Analyzer) -> Node | None:
    analyzed: set[Node] = set()
    empty = True
    for part in _flat(AllOf, parts):
        empty = False
        node = _analyze(part, analyzer)
        if isinstance(node, Nothing) or node == Not(Everything()):
            return Nothing()
        if node is not None:
            analyzed.update(node.parts if isinstance(node, AllOf) else (node,))
    if empty or (analyzed and all(isinstance(part, Not) for part in analyzed)):
        return Nothing()
    if len(analyzed) > 1:
        analyzed.discard(Everything())
        if all(isinstance(part, Range | Equal | Not) for part in analyzed) and (
            len(analyzed) > 1 or not _is_filter(next(iter(analyzed)))
        ):
            analyzed.add(Everything())
    return AllOf(_in_order(analyzed)) if len(analyzed) > 1 else next(iter(analyzed), None)


def _any_of(parts: Iterable[Node], analyzer: Analyzer) -> Node | None:
    analyzed: set[Node] = set()
    nothing = True
    for part in _flat(AnyOf, parts):
        node = Nothing() if isinstance(part, Not) else _analyze(part, analyzer)
        if node is None:
            nothing = False  # a stop word does not constrain the query, but is allowed
        elif not isinstance(node, Nothing):
            analyzed.update(node.parts if isinstance(node, AnyOf) else (node,))
    based = {_based(part) for part in analyzed}
    if len(based) > 1:
        return AnyOf(_in_order(based))
    return next(iter(analyzed), Nothing() if nothing else None)


def _flat(kind: type[AllOf] | type[AnyOf], parts: Iterable[Node]) -> Iterator[Node]:
    """Iterate over parts, flattening those of the same kind."""
    for part in parts:
        if isinstance(part, kind) and part.parts:
            yield from _flat(kind, part.parts)
        else:
            yield part


def _is_filter(node: Node) -> TypeGuard[Range | Equal]:
    return isinstance(node, Range | Equal)


def _based(node: Node) -> Node:
    """Return a node that can stand alone."""
    return AllOf((Everything(), node)) if _is_filter(node) else node


_ORDER: Final = (Everything, Word, Phrase, Prefix, AnyOf, AllOf, Range, Equal, Not)


def _in_order(parts: Iterable[Node]) -> tuple[Node, ...]:
    return tuple(sorted(parts, key=lambda part: (_ORDER.index(type(part)), repr(part))))
