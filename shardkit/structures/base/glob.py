r"""Patterns of SCAN's ``MATCH``: ``*``, ``?``, ``[a-z]``, ``[^a]`` and ``\``, as servers read them.

Each piece between two stars matches texts of one length. So the leftmost match of each is as good
as any other, and nothing is tried again: the time is linear in the member's length.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from shardkit.operations.commands import Key
from shardkit.routing.keys import key_bytes


def escaped(text: str) -> str:
    """Return the pattern of a text."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)


def glob_filter(pattern: Key | None) -> Callable[[bytes], bool]:
    """Return a function that tests whether a member matches; None matches all."""
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
        found = first.match(member)
        for piece in inner:
            if found is None:
                return False
            found = piece.search(member, found.end())
        return found is not None and bool(
            last.fullmatch(member, max(found.end(), len(member) - length))
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
