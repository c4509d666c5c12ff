"""The query language: parsing text to a tree (`shardkit.search.query.analysis`), and unparsing it.

docs/search-queries.md has the grammar. `parse` reads what `unparse` writes as the same tree, if it
is one that parse can return. For other trees, built in Python, the text matches the same documents,
unless they have names or words that no query can express, such as a phrase without words.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime
from typing import Final

from shardkit.errors import InvalidArgumentError, QuerySyntaxError
from shardkit.operations.arguments import shown
from shardkit.search.query.analysis import (
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
    all_of,
    any_of,
    check_depth,
)

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
    """Parse a query.

    If a field and an attribute have the same name, ``name:word`` means the field, and
    ``name:=value``, ``name:low..high``, ``name:>value`` and so on mean the attribute.

    Args:
        text: the query, in the language that the module describes. An empty one is `Nothing`.
        fields: the names of the text fields.
        attributes: the kind of each attribute: ``"number"``, ``"date"`` or ``"text"``.
        plain: whether to take the text literally, as from a search box: all its words are
            required, and no character is a sign.

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
                return self._parentheses(depth)
            case "*":
                self.at += 1
                self._end_of_term()
                return Everything()
        name = _NAME.match(self.text, self.at)
        return self._text(None) if name is None else self._named(name)

    def _parentheses(self, depth: int) -> Node:
        opened = self.at
        if depth == MAX_DEPTH:
            raise self._error(f"more than {MAX_DEPTH} parentheses are open", "nest less deep")
        self.at += 1
        node = self._query(depth + 1)
        if not self._next():
            raise self._error('"(" is never closed', 'put ")" where it ends', opened)
        self.at += 1
        return node

    def _named(self, match: re.Match[str]) -> Node:
        """Read a condition with a name: words in a field, or values of an attribute."""
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
        there = ", ".join(sorted({*self.fields, *self.attributes})) or "none"
        raise self._error(
            f"there is no field or attribute {shown(name)}",
            f"the names are: {there}; if the colon is part of the word, put it in quotes",
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
        """Check that nothing follows a term directly."""
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

    Raises:
        InvalidArgumentError: it is not text.
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
            return _shown_range(node)
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
    found = _BARE.fullmatch(text)
    plain = text and found and text[0] not in ("=<>" if after_name else "+-")
    if plain and not always and ".." not in text and (after_name or not _NAME.match(text)):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _shown_range(node: Range) -> str:
    low, high = _shown_bound(node.low), _shown_bound(node.high)
    if low and low == high and not (node.open_low or node.open_high):
        return f"{node.attribute}:{low}"
    if low and not high:
        return f"{node.attribute}:>{'' if node.open_low else '='}{low}"
    if high and not low:
        return f"{node.attribute}:<{'' if node.open_high else '='}{high}"
    above, below = ">" * (node.open_low and bool(low)), "<" * (node.open_high and bool(high))
    return f"{node.attribute}:{above}{low}..{below}{high}"


def _shown_bound(bound: Bound) -> str:
    if bound is None:
        return ""
    if isinstance(bound, datetime | date):
        return bound.isoformat()
    return str(int(bound)) if abs(bound) < 1e15 and bound == int(bound) else repr(float(bound))
