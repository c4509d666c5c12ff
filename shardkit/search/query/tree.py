"""Queries as trees. The grammar parses to them, Python code may build them, the index reads them.

::

    AllOf((Word("redis"), AnyOf((Word("shard"), Word("cluster"))), Not(Word("windows"))))

    str(…)  ──►  redis shard +cluster -windows

Nodes hold terms as users wrote them; `analyze` (in `query.analysis`) makes index terms of
them: lower case, without stop words, stemmed, by the index's own rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import TypeAlias

from shardkit.errors import InvalidArgumentError
from shardkit.structures.base.arguments import shown

Bound: TypeAlias = float | date | datetime | None


@dataclass(frozen=True, slots=True)
class Word:
    """Documents that hold a word, in one field or in any."""

    text: str
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Prefix:
    """Documents that hold a word which begins so."""

    text: str
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Phrase:
    """Documents that hold words one after another, in one field or within any."""

    words: tuple[str, ...]
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Range:
    """Documents whose attribute is a number or date from ``low`` to ``high``.

    Attributes:
        low, high: None is no bound. A document without the attribute is never within.
        open_low, open_high: whether the bound itself is outside.
    """

    attribute: str
    low: Bound = None
    high: Bound = None
    open_low: bool = False
    open_high: bool = False


@dataclass(frozen=True, slots=True)
class Equal:
    """Documents one of whose values of a text attribute is exactly this."""

    attribute: str
    value: str


@dataclass(frozen=True, slots=True)
class AllOf:
    """Documents that match every part. Parts that are `Not` take away."""

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
    """Every document: what a query of ranges only starts from."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """No document: what is left of a query of stop words only, or unwanted words only."""


Node: TypeAlias = (
    Word | Prefix | Phrase | Range | Equal | AllOf | AnyOf | Not | Everything | Nothing
)


def all_of(parts: Iterable[Node]) -> Node:
    """Return what matches every part: the part itself if it is one, nothing if there is none."""
    found = tuple(parts)
    return found[0] if len(found) == 1 else AllOf(found) if found else Nothing()


def any_of(parts: Iterable[Node]) -> Node:
    """Return what matches some part."""
    found = tuple(parts)
    return found[0] if len(found) == 1 else AnyOf(found) if found else Nothing()


def wanted(node: Node) -> Iterator[Word | Prefix | Phrase]:
    """Iterate over the words, beginnings and phrases that are looked for: all not under `Not`."""
    match node:
        case Word() | Prefix() | Phrase():
            yield node
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from wanted(part)


def check_names(node: Node, fields: Collection[str], attributes: Mapping[str, str]) -> None:
    """Check the names in a tree that was built in Python, as the grammar checks those of a query.

    Raises:
        InvalidArgumentError: a field or attribute is unknown, or is compared with what it cannot
            be: `Range` is for attributes of kind number or date, `Equal` for those of kind text.
    """
    match node:
        case Word(_, field) | Prefix(_, field) | Phrase(_, field):
            if field is not None and field not in fields:
                there = ", ".join(sorted(fields)) or "none"
                raise InvalidArgumentError(
                    f"there is no text field {shown(field)}", f"the fields are: {there}"
                )
        case Range(name) | Equal(name):
            kinds = ("text",) if isinstance(node, Equal) else ("number", "date")
            if attributes.get(name) not in kinds:
                there = ", ".join(sorted(n for n, kind in attributes.items() if kind in kinds))
                raise InvalidArgumentError(
                    f"there is no attribute {shown(name)} of kind {' or '.join(kinds)}",
                    f"the attributes of that kind are: {there or 'none'}",
                )
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                check_names(part, fields, attributes)
        case Not(part):
            check_names(part, fields, attributes)
