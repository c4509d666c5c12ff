"""Compile a query for the servers: its tree and order as arguments of ``search/query``.

Words are numbered, as each part of the index has its own ids. A prefix becomes any of its words.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import shown
from shardkit.search.model.documents import value_term
from shardkit.search.model.schema import RELEVANCE, Schema
from shardkit.search.query.tree import (
    AllOf,
    AnyOf,
    Equal,
    Everything,
    Node,
    Not,
    Phrase,
    Prefix,
    Range,
    Word,
    wanted,
)

_ORDER_KINDS: Final = {"number": "number", "date": "number", "text": "text"}


@dataclass(frozen=True)
class SortOrder:
    """The order of hits."""

    name: str  # distinguishes orders
    spec: list[Any]  # for the script
    reverse: bool  # whether it is descending
    scores: bool  # whether it needs relevance
    text: bool  # whether it compares text, not numbers


def sort_order(
    schema: Schema, sort: str | Mapping[str, float], combine: str, default: float, ascending: bool
) -> SortOrder:
    """Return the order that `SearchIndex.search` was given."""
    if isinstance(sort, Mapping):
        return _weighted(schema, sort, combine, default, ascending)
    if not isinstance(sort, str):
        raise InvalidArgumentError(
            f"{schema.name}: sort={shown(sort)}", "give an attribute's name, or weights by name"
        )
    if sort == RELEVANCE:
        return SortOrder(RELEVANCE, ["score"], not ascending, True, False)
    name = sort.removeprefix("-")
    if ascending:
        raise InvalidArgumentError(
            f"{schema.name}: sort={shown(sort)}, ascending=True",
            "leave ascending out: without a '-' before its name, an attribute's order is ascending",
        )
    if name not in schema.attributes:
        raise InvalidArgumentError(
            f"{schema.name}: sort={shown(sort)} is not an attribute",
            f"sort by {', '.join((RELEVANCE, *schema.attributes))}, with '-' for descending",
        )
    kind = _ORDER_KINDS[schema.attributes[name]]
    return SortOrder(sort, [kind, schema.place(name)], sort != name, False, kind == "text")


def _weighted(
    schema: Schema, weights: Mapping[str, float], combine: str, default: float, ascending: bool
) -> SortOrder:
    if combine not in ("intersection", "union"):
        raise InvalidArgumentError(
            f"{schema.name}: combine={shown(combine)}", "give 'intersection' or 'union'"
        )
    if not weights:
        raise InvalidArgumentError(f"{schema.name}: sort={{}}", "give a weight by name")
    for name, weight in [*weights.items(), ("default", default)]:
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or not math.isfinite(weight):
            raise InvalidArgumentError(
                f"{schema.name}: {name}={shown(weight)}", "give a finite number"
            )
    sources = []
    for name, weight in weights.items():
        if name != RELEVANCE and schema.attributes.get(name) not in ("number", "date"):
            raise InvalidArgumentError(
                f"{schema.name}: sort: {shown(name)} is not a number or date attribute",
                f"weigh {RELEVANCE} and such attributes",
            )
        place = 0 if name == RELEVANCE else schema.place(name)
        missing = float(default) if combine == "union" else None
        sources.append([place, float(weight), missing])
    return SortOrder(
        json.dumps([list(weights.items()), combine, default, ascending]),
        ["sum", sources],
        not ascending,
        RELEVANCE in weights,
        False,
    )


@dataclass
class QueryPlan:
    """A query for the script: its words and values, numbered from 1 on, and their tree."""

    schema: Schema
    expansions: Mapping[str, Iterable[str]]
    words: dict[str, int] = field(default_factory=dict)
    tree: list[Any] = field(default_factory=list)

    def _number(self, word: str) -> int:
        return self.words.setdefault(word, len(self.words) + 1)

    def node(self, node: Node) -> list[Any]:
        """Return a node of an analyzed tree for the script."""
        schema = self.schema
        match node:
            case Word(text, name):
                return ["word", self._number(text), schema.mask(name)]
            case Prefix(text, name):
                mask = schema.mask(name)
                return ["or", [["word", self._number(w), mask] for w in self.expansions[text]]]
            case Phrase(words, name) if not schema.phrases:
                return self._all_of(Word(word, name) for word in words)
            case Phrase(words, name):
                return ["phrase", [self._number(word) for word in words], schema.number(name)]
            case Equal(attribute, value):
                term = value_term(schema.place(attribute), value.encode())
                return ["word", self._number(term.decode()), 0]
            case Range(attribute, low, high, open_low, open_high):
                bounds = [False if bound is None else repr(bound) for bound in (low, high)]
                return ["range", schema.place(attribute), *bounds, open_low, open_high]
            case AnyOf(parts):
                return ["or", [self.node(part) for part in parts]]
            case AllOf(parts):
                return self._all_of(parts)
            case Everything():
                return ["all"]
            case _:
                return ["none"]

    def _all_of(self, parts: Iterable[Node]) -> list[Any]:
        required, filters, unwanted = [], [], []
        for part in parts:
            if isinstance(part, Not):
                unwanted.append(self.node(part.part))
            elif isinstance(part, Range):
                filters.append(self.node(part))
            else:
                required.append(self.node(part))
        return ["and", required or [["all"]], filters, unwanted]


def compile_query(schema: Schema, tree: Node, expansions: Mapping[str, Iterable[str]]) -> QueryPlan:
    """Return the plan of an analyzed tree."""
    plan = QueryPlan(schema, expansions)
    plan.tree = plan.node(tree)
    return plan


def scored_words(tree: Node) -> list[str]:
    """Return the words of an analyzed tree that are scored, once each, without prefixes."""
    words: list[str] = []
    for node in wanted(tree):
        if isinstance(node, Word):
            words.append(node.text)
        elif isinstance(node, Phrase):
            words += node.words
    return list(dict.fromkeys(words))


def prefixes_of(tree: Node) -> list[str]:
    """Return the prefixes in an analyzed tree, unwanted ones too, once each."""
    match tree:
        case Prefix(text):
            return [text]
        case Not(part):
            return prefixes_of(part)
        case AllOf(parts) | AnyOf(parts):
            return list(dict.fromkeys(text for part in parts for text in prefixes_of(part)))
        case _:
            return []
