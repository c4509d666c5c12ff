"""Query trees: what the parser returns, Python code may build, and an index executes.

Nodes hold words as users wrote them; `shardkit.search.query.analysis` turns them into index terms:
in lower case, without stop words, stemmed, as the index has them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final, TypeAlias, get_args

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import check_calls, shown

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
