"""Checks of the arguments that structures share: of what is more than its type."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sized
from datetime import UTC, date, datetime, timedelta
from typing import TypeVar, cast

from shardkit.errors import InvalidArgumentError, InvalidKeyError
from shardkit.operations.arguments import SINGLE, shown
from shardkit.routing.keys import key_bytes

LONGEST_EXPIRY = 2**31 - 1  # seconds
LATEST_EXPIRY = 2**48 - 1  # milliseconds since 1970; the latest time of a field of a HASH

T = TypeVar("T")

# Names whose keys would be those of another structure: what it calls a group of its parts (a
# structure whose parts split as they fill), the lists and documents of a part (an index), the
# relations in a part (a social network).
_TAKEN = (
    (re.compile(r"(?<=[^:]):\{[0-9]+\}$"), "give a name that does not end in a number in braces"),
    (re.compile(r"^\{.+:[0-9]+\}:[a-z]{1,2}(:.*)?$"), "give a name that begins otherwise"),
    (re.compile(r"^[a-z]+:\{.+:u?[0-9]+\}$"), "give a name that ends otherwise"),
)


def check_name(name: str) -> None:
    """Check the name of a structure: the prefix of its keys.

    Raises:
        InvalidArgumentError: it is not text, is empty, cannot be encoded, or is what another
            structure calls keys of its own, such as ``ids:{4}`` or ``{docs:0}:d``.
    """
    try:
        valid = isinstance(name, str) and bool(key_bytes(name))
    except InvalidKeyError:
        valid = False
    for form, remedy in _TAKEN:
        if valid and form.search(name):
            raise InvalidArgumentError(
                f"name={shown(name)} of a structure is what another one calls keys of its own",
                remedy,
            )
    if valid:
        return
    raise InvalidArgumentError(
        f"name={shown(name)} of a structure", "give text: the prefix of its keys"
    )


def check_integer(owner: str, field: str, value: int, lowest: int, highest: int) -> None:
    """Check that an argument is an integer within bounds.

    Raises:
        InvalidArgumentError: it is not an integer, or out of bounds.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise InvalidArgumentError(
            f"{owner}: {field}={shown(value)}", f"give an integer, {lowest:,} to {highest:,}"
        )


def check_some(owner: str, method: str, given: Sized, what: str) -> None:
    """Check that a method with a redis-py name was given something to work on.

    redis-py and the servers refuse the same calls (DataError, "wrong number of arguments"). Methods
    with names of our own, such as ``sadd_many`` and ``remove``, accept nothing and do nothing.

    Raises:
        InvalidArgumentError: nothing was given.
    """
    if not given:
        raise InvalidArgumentError(f"{owner}: {method} of nothing", f"give at least one {what}")


def duration(
    owner: str, time: int | timedelta, *, milliseconds: bool = False, least: int = 1
) -> int:
    """Return a time to live in seconds or milliseconds, as redis-py takes it.

    Args:
        owner: whose argument it is, for messages.
        time: the time.
        milliseconds: whether it is in milliseconds.
        least: the least that is allowed.

    Raises:
        InvalidArgumentError: it is less, more than 68 years, or not a duration.
    """
    unit = 1000 if milliseconds else 1
    if isinstance(time, timedelta):
        time = int(time.total_seconds() * unit)
    check_integer(owner, "time", time, least, LONGEST_EXPIRY * unit)
    return time


def timestamp(owner: str, when: int | datetime, *, milliseconds: bool = False) -> int:
    """Return a time in seconds or milliseconds since 1970, as redis-py takes it.

    Raises:
        InvalidArgumentError: it is out of range, or a datetime without a timezone.
    """
    unit = 1000 if milliseconds else 1
    if isinstance(when, datetime):
        if when.utcoffset() is None:
            raise InvalidArgumentError(
                f"{owner}: when={shown(when)} has no timezone", "give a datetime with one"
            )
        when = int(when.timestamp() * unit)
    check_integer(owner, "when", when, 0, LATEST_EXPIRY * unit // 1000)
    return when


def expiry_condition(owner: str, **conditions: bool) -> tuple[str, ...]:
    """Return the condition of an expiry, NX, XX, GT or LT, as it is sent.

    Raises:
        InvalidArgumentError: there are several.
    """
    given = [name for name, wanted in conditions.items() if wanted]
    if len(given) > 1:
        raise InvalidArgumentError(
            f"{owner}: {' and '.join(given)} exclude one another", "give one of nx, xx, gt and lt"
        )
    return tuple(map(str.upper, given))


def list_or_args(first: T | Iterable[T], rest: Iterable[T]) -> list[T]:
    """Return one list of what was given as a list, as arguments, or as both, as redis-py does."""
    if isinstance(first, Iterable) and not isinstance(first, SINGLE):
        return [*first, *rest]
    return [cast("T", first), *rest]


def day_of(owner: str, day: date) -> date:
    """Return a day in UTC.

    Args:
        owner: whose argument it is, for messages.
        day: a date; or a datetime with a timezone, which is converted to its day in UTC.

    Raises:
        InvalidArgumentError: it is neither. A datetime without a timezone is ambiguous.
    """
    if isinstance(day, datetime):
        if day.utcoffset() is not None:
            return day.astimezone(UTC).date()
    elif isinstance(day, date):
        return day
    raise InvalidArgumentError(
        f"{owner}: day={shown(day)}", "give a date (date.fromisoformat), or a datetime with tzinfo"
    )
