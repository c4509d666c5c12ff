"""Encode, decode and filter members of sets, fields of hashes and values of lists.

``42``, ``"42"`` and ``b"42"`` are the same member; the structure decides as what it is returned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, Generic, TypeAlias, TypeVar

from shardkit.errors import (
    DamagedDataError,
    InvalidArgumentError,
    InvalidKeyError,
    ShardFailure,
    not_pickled,
)
from shardkit.operations.arguments import shown
from shardkit.operations.commands import Argument, Command, Key, Partial, To
from shardkit.operations.operation import Operation, pages
from shardkit.routing.keys import key_bytes


def escaped(text: str) -> str:
    """Return the pattern of a text."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)


def glob_filter(pattern: Key | None) -> Callable[[bytes], bool]:
    """Return a function that tests whether a member matches a pattern of SCAN; None matches all.

    Unfinished patterns mean what they mean to servers. Each piece between two stars matches texts
    of one length, so its leftmost match is as good as any other: the time is linear in the length.
    """
    if pattern is None:
        return lambda _: True
    glob = key_bytes(pattern)
    if len(glob) > 1 and not glob.strip(b"*"):
        return bool  # servers match the empty member by one star only
    texts = _pieces(glob)
    pieces = [re.compile(b"".join(text), re.DOTALL) for text in texts]
    if len(pieces) == 1:
        match = pieces[0].fullmatch
        return lambda member: match(member) is not None
    first, *inner, last = pieces
    length = len(texts[-1])

    def matches(member: bytes) -> bool:
        match = first.match(member)
        for piece in inner:
            if match is None:
                return False
            match = piece.search(member, match.end())
        return match is not None and bool(
            last.fullmatch(member, max(match.end(), len(member) - length))
        )

    return matches


def _pieces(glob: bytes) -> list[list[bytes]]:
    """Return what is between stars: a regular expression for each byte."""
    pieces: list[list[bytes]] = [[]]
    at = 0
    while at < len(glob):
        token = glob[at : at + 1]
        if token == b"*":
            if pieces[-1] or len(pieces) == 1:
                pieces.append([])
        elif token == b"?":
            pieces[-1].append(b".")
        elif token == b"[":
            expression, at = _class(glob, at + 1)
            pieces[-1].append(expression)
        else:
            if token == b"\\" and at + 1 < len(glob):
                at += 1
            pieces[-1].append(re.escape(glob[at : at + 1]))
        at += 1
    return pieces


def _class(glob: bytes, at: int) -> tuple[bytes, int]:
    """Return the regular expression of the class that begins here, and its end."""
    negated = glob[at : at + 1] == b"^"
    at += negated
    ranges = b""
    while at < len(glob) and glob[at : at + 1] != b"]":
        if glob[at : at + 1] == b"\\" and at + 1 < len(glob):
            at += 1
            low = high = glob[at]
        elif glob[at + 1 : at + 2] == b"-" and at + 2 < len(glob):
            low, high = sorted((glob[at], glob[at + 2]))
            at += 2
        else:
            low = high = glob[at]
        ranges += b"\\x%02x-\\x%02x" % (low, high)
        at += 1
    if not ranges:
        return (b"." if negated else b"(?!)"), at
    return b"[%b%b]" % (b"^" if negated else b"", ranges), at


M = TypeVar("M", bound="int | str | bytes")

_INTEGER = re.compile(rb"-?[0-9]{1,19}")
_LONG_INTEGER = re.compile(rb"-?[0-9]{1,4300}")  # Python parses no more digits
_ENCODED_AT_ONCE = _SEARCHED_AT_ONCE = 1000
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


Place: TypeAlias = tuple[To, Key]
# Returns steps that find where a member is stored; None if it is not any more.
Find: TypeAlias = Callable[[bytes], Operation[Place | None]]


def decoder(kind: type, name: str, noun: str, find: Find) -> Callable[[bytes], Any]:
    """Return a function that converts a member from a reply."""
    if kind is bytes:
        return bytes
    convert: Callable[[bytes], Any] = int if kind is int else bytes.decode

    def decode(stored: bytes) -> Any:
        try:
            return convert(stored)
        except ValueError:
            wanted = "an integer" if kind is int else "UTF-8"
            raise DamagedDataError(
                name, f"{noun} {shown(stored)}", wanted, search=partial(find, stored)
            ) from None

    return decode


def find(places: Iterable[Place], name: str, *args: Argument) -> Operation[Place | None]:
    """Return the first key of which a command returns something; None if there is none.

    Cost: one command for each key, an exchange for every 1,000.
    """
    for page in pages(places, _SEARCHED_AT_ONCE):
        replies = yield Partial([Command(to, key, (name, key, *args)) for to, key in page])
        for place, reply in zip(page, replies, strict=True):
            if reply and not isinstance(reply, ShardFailure):
                return place
    return None


class Members(Generic[M]):
    """Encodes and decodes the members of one structure."""

    decode: Callable[[bytes], M]  # raises DamagedDataError
    takes = "use an int, str or bytes"
    __reduce__ = not_pickled

    def __init__(self, kind: type[M], name: str, find: Find, noun: str = "member") -> None:
        if kind not in (int, str, bytes):
            raise InvalidArgumentError(f"{name}: {noun}s={shown(kind)}", "give int, str or bytes")
        self.kind: type[M] = kind
        self.decode = decoder(kind, name, noun, find)
        self._name = name
        self._noun = noun

    def encode(self, member: Key) -> bytes:
        """Return a member as it is sent and hashed."""
        if type(member) is int and _LOWEST <= member <= _HIGHEST:  # the usual case, at no call
            return b"%d" % member
        if type(member) is str and self.kind is str and member.isascii():
            return member.encode()
        try:
            sent = key_bytes(member)
        except InvalidKeyError:
            raise self._refused_type(member) from None
        if self.kind is int:
            if not _INTEGER.fullmatch(sent) or not _LOWEST <= int(sent) <= _HIGHEST:
                raise self._refused(
                    member,
                    "is not an integer of 64 bits",
                    f"give -2**63 to 2**63 - 1, or open it with {self._noun}s=str",
                )
            return b"%d" % int(sent)
        if self.kind is str and not isinstance(member, str | int):
            try:
                sent.decode()
            except UnicodeDecodeError:
                raise self._refused(
                    member, "is not UTF-8", f"open it with {self._noun}s=bytes"
                ) from None
        return sent

    def encode_all(self, members: Iterable[Key]) -> Iterator[bytes]:
        """Return members as they are sent; see `encode`. Reads a thousand at a time."""
        return chain.from_iterable(map(self._encoded, pages(members, _ENCODED_AT_ONCE)))

    def _encoded(self, keys: list[Key]) -> Iterable[bytes]:
        types = set(map(type, keys))
        if types == {int} and min(keys) >= _LOWEST and max(keys) <= _HIGHEST:  # type: ignore[operator]
            return map(b"%d".__mod__, keys)
        if types == {str} and self.kind is str and all(map(str.isascii, keys)):  # type: ignore[arg-type]
            return map(str.encode, keys)  # type: ignore[arg-type]
        return map(self.encode, keys)

    def _refused_type(self, member: object) -> InvalidArgumentError:
        if isinstance(member, str):
            return self._refused(member, "cannot be encoded as UTF-8", "remove lone surrogates")
        if isinstance(member, int) and not isinstance(member, bool):
            return self._refused(member, "is too long", "pass its digits as text")
        return self._refused(member, f"is a {type(member).__name__}", self.takes)

    def _refused(self, member: object, why: str, remedy: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self._name}: {self._noun} {shown(member)} {why}", remedy)


class Values(Members[M]):
    """The values of one list: like members, but also floats, and integers of any size."""

    takes = "a value is text, bytes or a number; rpush_many takes any iterable of them"

    def __init__(self, kind: type[M], name: str, find: Find) -> None:
        super().__init__(kind, name, find, "value")

    def encode(self, value: Argument) -> bytes:
        """Return a value as it is sent. A float is sent as Python writes it."""
        if isinstance(value, float) and self.kind is not int:
            return float.__repr__(value).encode()
        if self.kind is not int:
            return super().encode(value)  # type: ignore[arg-type]  # it refuses other types
        try:
            sent = b"" if isinstance(value, float) else key_bytes(value)
        except InvalidKeyError:
            raise self._refused_type(value) from None
        if not _LONG_INTEGER.fullmatch(sent):
            raise self._refused(
                value, "is not an integer", "give one, or use a list with values=str"
            )
        return b"%d" % int(sent)
