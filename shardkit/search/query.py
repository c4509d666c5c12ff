"""The query language: its trees, parsing text to a tree, unparsing it, and the analysis of trees.

docs/search-queries.md has the grammar. `parse` reads what `unparse` writes as the same tree, if it
is one that parse can return. For other trees, built in Python, the text matches the same documents,
unless they have names or words that no query can express, such as a phrase without words.

Nodes hold words as users wrote them; `analyze` turns them into index terms, in the normal form that
an index executes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Final, TypeAlias, get_args

from shardkit.errors import InvalidArgumentError, QuerySyntaxError
from shardkit.operations.arguments import check_calls, shown
from shardkit.search.text import Analyzer

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
            len(analyzed) > 1 or isinstance(next(iter(analyzed)), Not)
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


def _based(node: Node) -> Node:
    """Return a node that can stand alone."""
    return AllOf((Everything(), node)) if isinstance(node, Range | Equal) else node


_ORDER: Final = (Everything, Word, Phrase, Prefix, AnyOf, AllOf, Range, Equal, Not)


def _in_order(parts: Iterable[Node]) -> tuple[Node, ...]:
    return tuple(sorted(parts, key=lambda part: (_ORDER.index(type(part)), repr(part))))


KINDS: Final = ("number", "date", "text")
MAX_DEPTH: Final = 20

_SPACE: Final = re.compile(r"\s*")
_NAME: Final = re.compile(r"([^\W\d][\w.-]*):")
_BARE: Final = re.compile(r'[^\s"()*]*')
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_RANGE: Final = re.compile(r"(>=?)?(.*?)\.\.(<=?)?(.*)", re.DOTALL)
_ONE_SIDED: Final = re.compile(r"([<>]=?)(.*)", re.DOTALL)
_NUMBER: Final = re.compile(r"[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|inf)", re.ASCII)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d(T[\d:.]+(?:Z|[+-]\d\d:?\d\d)?)?", re.ASCII)


def parse(
    text: str,
    fields: Collection[str] = (),
    attributes: Mapping[str, str] | None = None,
    *,
    plain: bool = False,
) -> Node:
    """Parse a query; an empty one is `Nothing`.

    If a field and an attribute have the same name, ``name:word`` means the field, and
    ``name:=value``, ``name:low..high``, ``name:>value`` and so on mean the attribute.
    ``attributes`` has the kind of each: ``"number"``, ``"date"`` or ``"text"``. ``plain`` takes the
    text literally, as from a search box: all its words are required, and no character is a sign.

    Raises:
        QuerySyntaxError: it cannot be parsed; the error has the position.
        InvalidArgumentError: the query is not text, or there is no such kind.
    """
    if not isinstance(text, str):
        raise InvalidArgumentError(f"query={shown(text)}", "give text")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # half a surrogate pair, as of a wrongly decoded argument
        message = f"query={shown(text)}, position {error.start}: not a character"
        readable = text.encode(errors="replace").decode()
        raise QuerySyntaxError(
            message, "give text that UTF-8 can encode", readable, error.start
        ) from None
    if plain:
        return all_of(map(Word, text.split()))
    attributes = attributes or {}
    for name, kind in attributes.items():
        if kind not in KINDS:
            raise InvalidArgumentError(
                f"attribute {name}: kind={shown(kind)}", f"give one of {', '.join(KINDS)}"
            )
    return _Parser(text, fields, attributes).parse()


class _Parser:
    """A recursive-descent parser: one method for each rule of the grammar."""

    def __init__(self, text: str, fields: Collection[str], attributes: Mapping[str, str]) -> None:
        self.text = text
        self.fields = fields
        self.attributes = attributes
        self.at = 0

    def parse(self) -> Node:
        node = self._query(0)
        if self.at < len(self.text):
            raise self._error('")" closes nothing', 'put "(" before, or the word in quotes')
        return node

    def _error(self, message: str, remedy: str, at: int | None = None) -> QuerySyntaxError:
        position = self.at if at is None else at
        where = f"query, position {position}"
        return QuerySyntaxError(f"{where}: {message}", remedy, self.text, position)

    def _next(self) -> str:
        """Return the next character, or "" at the end."""
        return self.text[self.at : self.at + 1]

    def _skip_space(self) -> None:
        space = _SPACE.match(self.text, self.at)
        assert space
        self.at = space.end()

    def _query(self, depth: int) -> Node:
        parts: list[Node] = []
        self._skip_space()
        while self._next() not in ("", ")"):
            if unwanted := self._next() == "-":
                self._sign("-")
            elif self._next() == "+":
                what = "an unwanted word" if parts else "nothing"
                raise self._error(f'"+" follows {what}', "put a synonym right after its word")
            node = self._group(depth, unwanted)
            parts.append(Not(node) if unwanted else node)
        return all_of(parts)

    def _group(self, depth: int, unwanted: bool) -> Node:
        parts = [self._term(depth)]
        self._skip_space()
        while self._next() == "+" and not unwanted:
            self._sign("+")
            parts.append(self._term(depth))
            self._skip_space()
        return any_of(parts)

    def _sign(self, sign: str) -> None:
        """Read a sign, and check that something follows it."""
        self.at += 1
        following = self._next()
        if not following or following.isspace() or following in "+-)":
            raise self._error(
                f'"{sign}" without a word',
                "put the sign right before a word, or the sign in quotes",
                self.at - 1,
            )

    def _term(self, depth: int) -> Node:
        match self._next():
            case "(":
                opened = self.at
                if depth == MAX_DEPTH:
                    what = f"more than {MAX_DEPTH} parentheses are open"
                    raise self._error(what, "nest less deep")
                self.at += 1
                node = self._query(depth + 1)
                if not self._next():
                    raise self._error('"(" is never closed', 'put ")" where it ends', opened)
                self.at += 1
                return node
            case "*":
                self.at += 1
                self._end_of_term()
                return Everything()
        name = _NAME.match(self.text, self.at)
        return self._text(None) if name is None else self._named(name)

    def _named(self, match: re.Match[str]) -> Node:
        name, start = match[1], self.at
        self.at = match.end()
        kind = self.attributes.get(name)
        if self._next() in ("", ")") or self._next().isspace():
            raise self._error(f"nothing after {name}:", "put a word or value right after the colon")
        bare = _BARE.match(self.text, self.at)
        value = bare[0] if bare else ""
        compares = value[:1] in ("=", "<", ">")
        if kind is not None and (
            name not in self.fields or compares or (kind != "text" and ".." in value)
        ):
            return self._equal(name) if kind == "text" else self._range(name, kind, value)
        if name in self.fields:
            if compares:
                raise self._error(
                    f"{name} is a text field, which has no values to compare",
                    "ask for words, or put the word in quotes",
                )
            return self._text(name)
        names = ", ".join(sorted({*self.fields, *self.attributes})) or "none"
        raise self._error(
            f"there is no field or attribute {shown(name)}",
            f"the names are: {names}; if the colon is part of the word, put it in quotes",
            start,
        )

    def _text(self, field: str | None) -> Node:
        """Read a word, a phrase, or a prefix."""
        start = self.at
        quoted = self._next() == '"'
        text = self._quoted() if quoted else self._bare()
        if self._next() == "*":
            if not text:
                raise self._error("nothing before *", "put the beginning of a word there")
            self.at += 1
            self._end_of_term()
            return Prefix(text, field)
        self._end_of_term()
        if not text.strip():
            raise self._error(
                "nothing in quotes" if quoted else "a word is missing", "put words", start
            )
        words = tuple(text.split()) if quoted else (text,)
        return Phrase(words, field) if len(words) > 1 else Word(words[0], field)

    def _bare(self) -> str:
        word = _BARE.match(self.text, self.at)
        assert word
        self.at = word.end()
        return word[0]

    def _quoted(self) -> str:
        quoted = _QUOTED.match(self.text, self.at)
        if not quoted:
            raise self._error("the quote is never closed", 'put " where it ends; \\" is one within')
        self.at = quoted.end()
        return _ESCAPED.sub(r"\1", quoted[1])

    def _end_of_term(self) -> None:
        if (following := self._next()) and not following.isspace() and following not in ")":
            raise self._error(
                f"{following} right after the end of a word, phrase or parenthesis",
                "put a space between; * stands at the end of a word; quotes around what is literal",
            )

    def _equal(self, name: str) -> Node:
        if exact := self._next() == "=":
            self.at += 1
        start, quoted = self.at, self._next() == '"'
        value = self._quoted() if quoted else self._bare()
        if not value and not quoted:
            raise self._error(
                f"no value for {name}", 'put it right after the =; "" is the empty text'
            )
        if self._next() == "*" or (value[:1] in ("<", ">") and not exact and not quoted):
            raise self._error(
                f"{name} is compared as a whole: it is an attribute of kind text",
                f"write {name}:=value, the value in quotes if it is not one word",
                start,
            )
        self._end_of_term()
        return Equal(name, value)

    def _range(self, name: str, kind: str, value: str) -> Node:
        start = self.at
        self.at += len(value)
        self._end_of_term()

        def bound(text: str) -> Bound:
            return self._bound(name, kind, text, start + value.index(text)) if text else None

        if match := _RANGE.fullmatch(value):
            low, high = bound(match[2]), bound(match[4])
            node = Range(name, low, high, match[1] == ">", match[3] == "<")
            if (match[1] and low is None) or (match[3] and high is None):
                raise self._error("a bound is missing", f"write {name}:low..high", start)
            if low is not None and high is not None and _moment(low) > _moment(high):
                raise self._error(
                    "the range ends before it begins", "put the lower bound first", start
                )
            return node
        if match := _ONE_SIDED.fullmatch(value):
            sign, limit = match[1], self._bound(name, kind, match[2], start + len(match[1]))
            if sign[0] == ">":
                return Range(name, low=limit, open_low=sign == ">")
            return Range(name, high=limit, open_high=sign == "<")
        shift = value.startswith("=")
        limit = self._bound(name, kind, value[shift:], start + shift)
        return Range(name, limit, limit)

    def _bound(self, name: str, kind: str, text: str, at: int) -> Bound:
        if kind == "number":
            if _NUMBER.fullmatch(text):
                return float(text)
            raise self._error(
                f"{shown(text)} is not a number, and {name} is an attribute of kind number",
                "give one such as 12, -2.5 or 1e6",
                at,
            )
        if match := _DATE.fullmatch(text):
            try:
                if not match[1]:
                    return date.fromisoformat(text)
                moment = datetime.fromisoformat(text)
                return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
            except (ValueError, OverflowError):
                pass
        raise self._error(
            f"{shown(text)} is not a date, and {name} is an attribute of kind date",
            "give one such as 2020-01-31 or 2020-01-31T12:00Z",
            at,
        )


def _moment(bound: Bound) -> float:
    """Return a bound as a number, to compare; for a date the beginning of the day."""
    if isinstance(bound, date) and not isinstance(bound, datetime):
        bound = datetime(bound.year, bound.month, bound.day, tzinfo=UTC)
    return bound.timestamp() if isinstance(bound, datetime) else float(bound or 0)


def quote(text: str) -> str:
    """Return text in quotes, for a place in a query: no character in it is a sign.

    As a term it means its consecutive words, also after ``title:``; after ``lang:=`` it is a value.
    """
    if not isinstance(text, str):
        raise InvalidArgumentError(f"quote({shown(text)})", "give text")
    return _quote(text, True, always=True)


def unparse(node: Node) -> str:
    """Return a tree as a query, which `parse` reads as this tree again.

    Raises:
        InvalidArgumentError: the tree has more than 100 levels.
    """
    check_depth(node)
    return _unparse(node)


def _unparse(node: Node) -> str:
    match node:
        case Nothing() | AllOf(()) | AnyOf(()):
            return ""
        case AllOf(parts):
            return " ".join(_part(part) for part in parts)
        case _:
            return _part(node)


def _part(node: Node) -> str:
    """Return a node as a part of a query, in parentheses if necessary."""
    match node:
        case Word(text, field):
            return _name(field) + _quote(text, bool(field))
        case Prefix(text, field):
            return f"{_name(field)}{_quote(text, bool(field))}*"
        case Phrase(words, field):
            return _name(field) + _quote(" ".join(words), True, always=True)
        case Equal(attribute, value):
            return f"{attribute}:={_quote(value, True)}"
        case Range():
            low, high = _shown_bound(node.low), _shown_bound(node.high)
            if low and low == high and not (node.open_low or node.open_high):
                return f"{node.attribute}:{low}"
            if low and not high:
                return f"{node.attribute}:>{'' if node.open_low else '='}{low}"
            if high and not low:
                return f"{node.attribute}:<{'' if node.open_high else '='}{high}"
            above = ">" * (node.open_low and bool(low))
            below = "<" * (node.open_high and bool(high))
            return f"{node.attribute}:{above}{low}..{below}{high}"
        case Not(part):
            return f"-{_operand(part)}"
        case AnyOf((Not() | AllOf() as part,)):  # in parentheses it would be read as the part alone
            return f"{_operand(part)} +()"
        case AnyOf(parts) if parts:
            return " +".join(_operand(part) for part in parts)
        case Everything():
            return "*"
        case _:  # AllOf, and what is empty
            return f"({_unparse(node)})"


def _operand(node: Node) -> str:
    """Return what stands behind a sign."""
    return f"({_unparse(node)})" if isinstance(node, AllOf | AnyOf | Not) else _part(node)


def _name(field: str | None) -> str:
    return "" if field is None else f"{field}:"


def _quote(text: str, after_name: bool, *, always: bool = False) -> str:
    """Return text as a word if it would be parsed as that, else in quotes."""
    match = _BARE.fullmatch(text)
    plain = text and match and text[0] not in ("=<>" if after_name else "+-")
    if plain and not always and ".." not in text and (after_name or not _NAME.match(text)):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _shown_bound(bound: Bound) -> str:
    if bound is None:
        return ""
    if isinstance(bound, datetime | date):
        return bound.isoformat()
    return str(int(bound)) if abs(bound) < 1e15 and bound == int(bound) else repr(float(bound))
