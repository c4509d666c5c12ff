r"""Patterns as the ``MATCH`` of SCAN takes them: ``*``, ``?``, ``[a-z]``, ``[^a]`` and ``\``."""

from __future__ import annotations

import re
from collections.abc import Callable

from shardkit.operations.commands import Key
from shardkit.routing.keys import key_bytes

_TOKEN = re.compile(rb"\*+|\[\^?(?:\\.|[^\]\\])*\]?|\\.|.", re.DOTALL)
_RANGE = re.compile(rb"\\?(.)(?:-\\?(.))?", re.DOTALL)


def glob_filter(pattern: Key | None) -> Callable[[bytes], bool]:
    """Return the function that says whether a member matches; None matches all.

    Raises:
        InvalidKeyError: the pattern is not text, bytes or an integer.
    """
    if pattern is None:
        return lambda _: True
    text = key_bytes(pattern)
    if text.strip(b"*") == b"" and len(text) > 1:  # servers match nothing else than "*" to ""
        return bool
    tokens = _TOKEN.findall(text)
    match = re.compile(b"".join(map(_expression, tokens)), re.DOTALL).fullmatch
    return lambda member: match(member) is not None


def _expression(token: bytes) -> bytes:
    if token[:1] == b"*":
        return b".*"
    if token == b"?":
        return b"."
    if token[:1] != b"[":
        return re.escape(token[1:] if len(token) > 1 else token)
    negated, body = token[1:2] == b"^", token[1:].removeprefix(b"^")
    if token.endswith(b"]") and not token.endswith(b"\\]"):
        body = body[:-1]
    ranges = b"".join(
        b"\\x%02x-\\x%02x" % tuple(sorted((ord(low), ord(high or low))))
        for low, high in _RANGE.findall(body)
    )
    if not ranges:
        return b"." if negated else b"(?!)"
    return b"[%b%b]" % (b"^" if negated else b"", ranges)
