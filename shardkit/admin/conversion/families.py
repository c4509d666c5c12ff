"""Recognises families of keys by their names. Pure.

::

    user:7:name, user:8:name, …                    user:<n>:name
    session:2f1c9b52-…                             session:<uuid>
    unique:2026-11-26                              unique:<date>
    mail:ann, mail:bob, … (many words)             mail:<text>

A word with digits in it, ``v1``, is a word. What has the same value in all keys is no variable.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from shardkit.errors import InvalidArgumentError

_LONGEST = 64  # parts of a name that is compared with others: time grows with their square
_MANY = 16  # distinct words in one place from which on they are values, not names
_KINDS = {
    "uuid": rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "date": rb"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "n": rb"[0-9]+",
    "hex": rb"(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{16,}",
    "text": rb"[^:/|#{}]+",
}
_OUTER = re.compile(rb"([:/|#{}])")  # between words
_INNER = re.compile(rb"([._-])")  # between words, if one of them is a number
_WHOLE = {kind: re.compile(rule) for kind, rule in _KINDS.items() if kind != "text"}
_VARIABLE = re.compile(rf"<({'|'.join(_KINDS)})>")


class _NamePart(NamedTuple):
    kind: str  # of a variable; "word", or "" for what is between words
    text: bytes


@dataclass(frozen=True)
class Pattern:
    """The names of a family: ``user:<n>:name``.

    A key's *field* is its text from the first variable to the end of the last one.

    Raises:
        InvalidArgumentError: there is no variable, or an unknown one.
    """

    text: str

    def __post_init__(self) -> None:
        unknown = [each for each in re.findall(r"<(\w+)>", self.text) if each not in _KINDS]
        if unknown or not self.variables:
            listed = ", ".join(f"<{kind}>" for kind in _KINDS)
            raise InvalidArgumentError(
                f"{self.text!r:.80} is not a family of keys", f"use {listed} for what varies"
            )

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """The kinds of its variables, in order."""
        return tuple(_VARIABLE.findall(self.text))

    @cached_property
    def prefix(self) -> bytes:
        """What is before the first variable."""
        return _bytes(_VARIABLE.split(self.text)[0])

    @cached_property
    def suffix(self) -> bytes:
        """What is behind the last one."""
        return _bytes(_VARIABLE.split(self.text)[-1])

    @cached_property
    def name(self) -> str:
        """A name for a structure: ``user:name``."""
        words = re.findall(r"[\w.-]*\w[\w.-]*", _VARIABLE.sub(" ", self.text))
        return ":".join(word.strip("_.-") for word in words) or "values"

    @cached_property
    def glob(self) -> bytes:
        """A pattern for SCAN, which more keys may match."""
        return b"*".join([_escaped(self.prefix), _escaped(self.suffix)])

    @cached_property
    def _expression(self) -> re.Pattern[bytes]:
        parts = _VARIABLE.split(self.text)
        middle = b"".join(
            b"(?:" + _KINDS[part] + b")" if n % 2 else re.escape(_bytes(part))
            for n, part in enumerate(parts[1:-1], 1)
        )
        return re.compile(
            re.escape(self.prefix) + b"(" + middle + b")" + re.escape(self.suffix), re.DOTALL
        )

    def field_of(self, key: bytes) -> bytes | None:
        """Return a key's field; None if it does not belong to the family."""
        match = self._expression.fullmatch(key)
        return match[1] if match else None

    def key_of(self, field: bytes) -> bytes:
        """Return the key with a field."""
        return self.prefix + field + self.suffix


@dataclass
class KeyFamily:
    """Keys of one type whose names differ only in variables; or a single key, without any."""

    type: str
    text: str  # user:<n>:name, or the key's name
    keys: list[bytes] = field(default_factory=list)

    @property
    def pattern(self) -> Pattern | None:
        """Its pattern; None for a single key."""
        return Pattern(self.text) if _VARIABLE.search(self.text) else None


def families(keys: Iterable[tuple[bytes, str]]) -> list[KeyFamily]:
    """Return the families of keys, given with their types, those with the most keys first."""
    shapes: dict[tuple[str, tuple[_NamePart, ...]], list[bytes]] = defaultdict(list)
    values: dict[bytes, tuple[_NamePart, ...]] = {}
    for key, type_ in keys:
        if key not in values:
            values[key] = _tokens(key)
            shapes[type_, tuple(map(_shape, values[key]))].append(key)
    shapes = _with_texts(shapes)
    found = []
    for (type_, shape), members in shapes.items():
        tokens = [values[key] for key in members]
        text = ""
        for n, kind in enumerate(token.kind for token in shape):
            seen = {each[n].text for each in tokens}
            text += _text(seen.pop()) if len(seen) == 1 else f"<{kind}>"
        found.append(KeyFamily(type_, text, members))
    return sorted(found, key=lambda family: (-len(family.keys), family.text))


def _tokens(key: bytes) -> tuple[_NamePart, ...]:
    tokens: list[_NamePart] = []
    for n, piece in enumerate(_OUTER.split(key)):
        if n % 2 or not piece:
            tokens.append(_NamePart("", piece))
        elif kind := _kind(piece):
            tokens.append(_NamePart(kind, piece))
        else:
            inner = _INNER.split(piece)
            if any(map(_kind, inner[::2])):
                tokens += [
                    _NamePart("" if n % 2 or not part else _kind(part) or "word", part)
                    for n, part in enumerate(inner)
                ]
            else:
                tokens.append(_NamePart("word", piece))
    return tuple(tokens) if len(tokens) <= _LONGEST else (_NamePart("word", key),)


def _kind(piece: bytes) -> str:
    return next((kind for kind, rule in _WHOLE.items() if rule.fullmatch(piece)), "")


def _shape(token: _NamePart) -> _NamePart:
    return token if token.kind in ("", "word") else _NamePart(token.kind, b"")


def _with_texts(
    shapes: dict[tuple[str, tuple[_NamePart, ...]], list[bytes]],
) -> dict[tuple[str, tuple[_NamePart, ...]], list[bytes]]:
    """Join the shapes that differ in a word only, where there are many different words."""
    longest = max((len(shape) for _, shape in shapes), default=0)
    for at in range(longest):
        alike: dict[object, list[tuple[str, tuple[_NamePart, ...]]]] = defaultdict(list)
        for type_, shape in shapes:
            if at < len(shape) and shape[at].kind in ("word", "n", "hex", "uuid"):
                alike[type_, shape[:at], shape[at + 1 :]].append((type_, shape))
        for group in alike.values():
            if sum(shape[at].kind == "word" for _, shape in group) > _MANY:
                type_, shape = group[0]
                joined = (type_, (*shape[:at], _NamePart("text", b""), *shape[at + 1 :]))
                members = [key for each in group for key in shapes.pop(each)]
                shapes.setdefault(joined, []).extend(members)
    return shapes


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _escaped(text: bytes) -> bytes:
    return re.sub(rb"([*?\[\]\\^-])", rb"\\\1", text)
