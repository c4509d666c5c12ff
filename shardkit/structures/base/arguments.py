"""Checks of the arguments that structures share, and how their messages show a value."""

from __future__ import annotations

import reprlib
from datetime import UTC, date, datetime, timedelta

from shardkit.errors import InvalidArgumentError, InvalidKeyError
from shardkit.routing.keys import key_bytes

LONGEST_EXPIRY = 2**31 - 1

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 60


def shown(value: object) -> str:
    """Return a value as messages show it: cut in the middle when it is long."""
    try:
        return _short.repr(value)
    except ValueError:  # Python writes no integers of thousands of digits
        return f"of {value.bit_length()} bits" if isinstance(value, int) else type(value).__name__


def check_name(name: str) -> None:
    """Check the name of a structure: the prefix of its keys.

    Raises:
        InvalidArgumentError: it is no text, is empty, or cannot be encoded.
    """
    try:
        if isinstance(name, str) and key_bytes(name):
            return
    except InvalidKeyError:
        pass
    raise InvalidArgumentError(
        f"name={shown(name)} of a structure", "give text: the prefix of its keys"
    )


def check_integer(owner: str, field: str, value: int, lowest: int, highest: int) -> None:
    """Check an argument that is a number within bounds.

    Raises:
        InvalidArgumentError: it is no integer, or out of bounds.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise InvalidArgumentError(
            f"{owner}: {field}={shown(value)}", f"give an integer, {lowest:,} to {highest:,}"
        )


def expiry(owner: str, seconds: int | timedelta) -> int:
    """Return after how many seconds something expires.

    Raises:
        InvalidArgumentError: it is less than a second, more than 68 years, or no time.
    """
    if isinstance(seconds, timedelta):
        seconds = int(seconds.total_seconds())
    check_integer(owner, "seconds", seconds, 1, LONGEST_EXPIRY)
    return seconds


def day_of(owner: str, day: date) -> date:
    """Return a day, UTC.

    Args:
        owner: what asks, for messages.
        day: a date; or a datetime with a timezone, whose day UTC is taken.

    Raises:
        InvalidArgumentError: it is neither. A datetime without a timezone does not say which day
            it is.
    """
    if isinstance(day, datetime):
        if day.utcoffset() is not None:
            return day.astimezone(UTC).date()
    elif isinstance(day, date):
        return day
    raise InvalidArgumentError(
        f"{owner}: day={shown(day)}", "give a date (date.fromisoformat), or a datetime with tzinfo"
    )
