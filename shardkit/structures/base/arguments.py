"""Checks that structures share for arguments' values; the partition for a checked total."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sized
from datetime import UTC, date, datetime, timedelta
from typing import TypedDict, TypeVar, cast

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import (
    LONGEST_WAIT as LONGEST_WAIT,
    SINGLE,
    Seconds,
    check_integer as check_integer,
    check_seconds as check_seconds,
    is_text,
    shown,
)
from shardkit.routing.keys import key_bytes
from shardkit.routing.placement import Partition, part_count, partition

LONGEST_EXPIRY = 2**31 - 1  # seconds
MOST_MEMBERS = 2**63 - 1
MOST_PARTS = 2**32  # as many as CRC-32 has values
LATEST_EXPIRY = 2**48 - 1  # milliseconds since 1970; the latest time of a field of a HASH

T = TypeVar("T")

# Names that other structures give to keys: a group of splitting parts, the lists and documents in a
# part of an index, the relations in a part of a social network.
_RESERVED = (
    (re.compile(r"(?<=[^:]):\{[0-9]+\}$"), "give a name that does not end in a number in braces"),
    (re.compile(r"^\{.+:[0-9]+\}:[a-z]{1,2}(:.*)?$"), "use a name that begins differently"),
    (re.compile(r"^[a-z]+:\{.+:u?[0-9]+\}$"), "use a name that ends differently"),
)


def check_name(name: str) -> None:
    """Check the name of a structure: the prefix of its keys."""
    valid = is_text(name) and name != ""
    for form, remedy in _RESERVED:
        if valid and form.search(name):
            raise InvalidArgumentError(
                f"structure name {shown(name)} is reserved for another structure's keys", remedy
            )
    if not valid:
        raise InvalidArgumentError(
            f"name={shown(name)} of a structure", "give text: the prefix of its keys"
        )


def wait_seconds(owner: str, timeout: Seconds | None, field: str = "timeout") -> float:
    """Return the seconds to wait, as `check_seconds` does; None means for ever."""
    if timeout is None:
        return LONGEST_WAIT
    return check_seconds(owner, field, timeout)


def distinct(owner: str, field: str, values: Iterable[T]) -> list[T]:
    """Return an argument's values without repetitions, in their order."""
    try:
        return list(dict.fromkeys(values))
    except TypeError:
        raise InvalidArgumentError(
            f"{owner}: {field} with a value that cannot be compared", "give texts"
        ) from None


def check_tag(owner: str, field: str, name: str) -> str:
    """Check a name that becomes the hash tag of keys, such as a mailbox's owner."""
    check_name(name)
    if "{" in name or "}" in name:
        raise InvalidArgumentError(
            f"{owner}: {field}={shown(name)}", "leave out braces: it is the keys' hash tag"
        )
    return name


def check_prefix(name: str) -> str:
    """Check the prefix of keys that have hash tags of their own, so that it has none."""
    check_name(name)
    if b"{" in key_bytes(name):
        raise InvalidArgumentError(
            f"name={shown(name)} has a hash tag", "leave it out: the keys have tags of their own"
        )
    return name


def check_some(owner: str, method: str, given: Sized, what: str) -> None:
    """Check that a method with a redis-py name got an argument: redis-py refuses none, too.

    Our own methods, such as ``sadd_many`` and ``remove``, accept nothing and do nothing.
    """
    if not given:
        raise InvalidArgumentError(f"{owner}: {method} of nothing", f"pass at least one {what}")


def duration(
    owner: str, time: int | timedelta, *, milliseconds: bool = False, least: int = 1
) -> int:
    """Return a time to live in seconds or milliseconds, as redis-py takes it."""
    unit = 1000 if milliseconds else 1
    if isinstance(time, timedelta):
        time = int(time.total_seconds() * unit)
    check_integer(owner, "time", time, least, LONGEST_EXPIRY * unit)
    return time


def timestamp(owner: str, when: int | datetime, *, milliseconds: bool = False) -> int:
    """Return a time in seconds or milliseconds since 1970, as redis-py takes it."""
    unit = 1000 if milliseconds else 1
    if isinstance(when, datetime):
        if when.utcoffset() is None:
            raise InvalidArgumentError(
                f"{owner}: when={shown(when)} has no timezone", "give a datetime with one"
            )
        when = int(when.timestamp() * unit)
    check_integer(owner, "when", when, 0, LATEST_EXPIRY * unit // 1000)
    return when


class Conditions(TypedDict, total=False):
    """When an expiry is set: if there is none, if there is one, if that is sooner, or later."""

    nx: bool
    xx: bool
    gt: bool
    lt: bool


def expiry_condition(
    owner: str, nx: bool = False, xx: bool = False, gt: bool = False, lt: bool = False
) -> tuple[str, ...]:
    """Return the condition of an expiry, NX, XX, GT or LT, as it is sent."""
    conditions = {"nx": nx, "xx": xx, "gt": gt, "lt": lt}
    given = [name for name, wanted in conditions.items() if wanted]
    if len(given) > 1:
        raise InvalidArgumentError(
            f"{owner}: {' and '.join(given)} exclude each other", "give one of nx, xx, gt and lt"
        )
    return tuple(map(str.upper, given))


def list_or_args(first: T | Iterable[T], rest: Iterable[T]) -> list[T]:
    """Return one list from a list, from arguments, or from both, as redis-py does."""
    if isinstance(first, Iterable) and not isinstance(first, SINGLE):
        return [*first, *rest]
    return [cast("T", first), *rest]


def day_of(owner: str, day: date) -> date:
    """Return a date, or the UTC day of a datetime with a timezone."""
    if isinstance(day, datetime):
        if day.utcoffset() is not None:
            return day.astimezone(UTC).date()
    elif isinstance(day, date):
        return day
    raise InvalidArgumentError(
        f"{owner}: day={shown(day)}", "give a date (date.fromisoformat), or a datetime with tzinfo"
    )


def hashed_partition(name: str, rule: str, total: int, part_size: int) -> Partition:
    """Return the function from a member to its part, for about ``total`` members."""
    check_name(name)
    check_integer(name, "total", total, 1, MOST_MEMBERS)
    check_integer(name, "part_size", part_size, 1, MOST_MEMBERS)
    if rule == "digits":
        raise InvalidArgumentError(
            f"{name}: partition='digits' would give sparse integers a part each",
            "use crc32 or redis-in-action",
        )
    if part_count(total, part_size) > MOST_PARTS:
        raise InvalidArgumentError(
            f"{name}: total={total} with part_size={part_size} needs more than 2**32 parts",
            "set total to about the number of members",
        )
    try:
        return partition(rule, total, part_size)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{name}: {error.message}", error.remedy) from None
