"""Checks of stored values where they are read: digits, ranges, agreement with other values."""

from __future__ import annotations

import re

from shardkit.errors import DamagedDataError
from shardkit.operations.arguments import shown
from shardkit.operations.commands import To

MOST_STORED = 2**53 - 1  # what Lua's numbers hold exactly
_DIGITS = re.compile("0|-?[1-9][0-9]{0,19}")  # as commands such as HINCRBY read them: not 007


def stored_integer(
    to: To,
    key: str | bytes,
    field: str,
    text: bytes | str | None,
    lowest: int = 0,
    highest: int = MOST_STORED,
    *,
    missing: int | None = None,
) -> int:
    """Return a number that is stored as digits in a field of a key; ``missing`` if none is."""
    if text is None and missing is not None:
        return missing
    digits = text.decode("latin-1") if isinstance(text, bytes) else text or ""
    if _DIGITS.fullmatch(digits) and lowest <= int(digits) <= highest:
        return int(digits)
    actual = f"{field}=missing" if text is None else f"{field}={shown(text)}"
    raise damage(to, key, actual, f"an integer from {lowest} to {highest}")


def stored_text(to: To, key: str | bytes, text: bytes) -> str:
    """Return text that is stored in a key."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise damage(to, key, shown(text), "text, in UTF-8") from None


def is_whole(score: float) -> bool:
    """Return whether a score is a whole number that is not negative."""
    return 0 <= score <= MOST_STORED and score.is_integer()


def stored_score(to: To, key: str, score: bytes | float) -> int:
    """Return a whole, non-negative number that is stored as a score."""
    value = float(score)
    if is_whole(value):
        return int(value)
    raise damage(to, key, f"a score of {value:g}", f"a whole number from 0 to {MOST_STORED}")


def damage(
    to: To, key: str | bytes, found: str, expected: str, remedy: str = ""
) -> DamagedDataError:
    """Return the error that reports damage; the operation's driver adds the shard."""
    component = to if isinstance(to, str) else to.component
    return DamagedDataError(key, found, expected, remedy, component=component, place=to)
