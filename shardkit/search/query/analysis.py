"""Query trees, which the parser returns and Python code may build, and their analysis.

Nodes hold words as users wrote them; `analyze` turns them into index terms, in the normal form that
an index executes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Final, TypeAlias, TypeGuard, get_args

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import check_calls, shown
from shardkit.search.text.analyzer import Analyzer

MAX_TREE_DEPTH: Final = 100

Bound: TypeAlias = float | date | datetime | None


@dataclass(frozen=True, slots=True)
class Word:
    """Documents with a word, in one field or in any."""

    text: str
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Prefix:
    """Documents with a word that has a prefix."""

    text: str
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Phrase:
    """Documents with consecutive words, in one field or in any."""

    words: tuple[str, ...]
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Range:
    """Documents whose attribute is a number or date from ``low`` to ``high``.

    Attributes:
        low, high: the bounds; None for no bound. Documents without the attribute never match.
        open_low, open_high: whether the bound itself is excluded.
    """

    attribute: str
    low: Bound = None
    high: Bound = None
    open_low: bool = False
    open_high: bool = False


@dataclass(frozen=True, slots=True)
class Equal:
    """Documents with exactly this value of a text attribute."""

    attribute: str
    value: str


@dataclass(frozen=True, slots=True)
class AllOf:
    """Documents that match every part; those in a `Not` are excluded."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Documents that match at least one part: synonyms."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """Documents that do not match. Alone, or among `AnyOf`, it matches nothing."""

    part: Node


@dataclass(frozen=True, slots=True)
class Everything:
    """All documents; a query of only ranges narrows them down."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """No document: a query of only stop words, or only unwanted words."""


Node: TypeAlias = (
    Word | Prefix | Phrase | Range | Equal | AllOf | AnyOf | Not | Everything | Nothing
)

for _node in get_args(Node):
    check_calls(_node, "__init__")


def all_of(parts: Iterable[Node]) -> Node:
    """Return a node that matches every part: a single part itself, `Nothing` without parts."""
    nodes = tuple(parts)
    return nodes[0] if len(nodes) == 1 else AllOf(nodes) if nodes else Nothing()


def any_of(parts: Iterable[Node]) -> Node:
    """Return a node that matches any part."""
    nodes = tuple(parts)
    return nodes[0] if len(nodes) == 1 else AnyOf(nodes) if nodes else Nothing()


def wanted(node: Node) -> Iterator[Word | Prefix | Phrase]:
    """Iterate over the words, prefixes and phrases to look for: all that are not in a `Not`."""
    match node:
        case Word() | Prefix() | Phrase():
            yield node
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from wanted(part)


def check_depth(node: Node) -> None:
    """Check that a tree is not too deep for the functions that walk it, one call for each level."""
    level = [node]
    for _ in range(MAX_TREE_DEPTH):
        below: list[Node] = []
        for one in level:
            match one:
                case AllOf(parts) | AnyOf(parts):
                    below += parts
                case Not(part):
                    below.append(part)
        if not below:
            return
        level = below
    raise InvalidArgumentError(
        f"a query tree of more than {MAX_TREE_DEPTH} levels",
        "give many parts to one AllOf or AnyOf, not each pair to one of its own",
    )


def check_names(node: Node, fields: Collection[str], attributes: Mapping[str, str]) -> None:
    """Check the names in a tree that was built in Python, as the parser does for text."""
    match node:
        case Word(_, field) | Prefix(_, field) | Phrase(_, field):
            if field is not None and field not in fields:
                known = ", ".join(sorted(fields)) or "no field"
                raise InvalidArgumentError(
                    f"text field {shown(field)} is unknown", f"use one of {known}"
                )
        case Range(name) | Equal(name):
            kinds = ("text",) if isinstance(node, Equal) else ("number", "date")
            if attributes.get(name) not in kinds:
                known = ", ".join(sorted(n for n, kind in attributes.items() if kind in kinds))
                raise InvalidArgumentError(
                    f"attribute {shown(name)} of kind {' or '.join(kinds)} is unknown",
                    f"use one of {known or 'no attribute'}",
                )
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                check_names(part, fields, attributes)
        case Not(part):
            check_names(part, fields, attributes)


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
