"""Scores of a sorted set, and ends of ranges, as they are sent.

A score is a double. It is sent as the shortest text that says it exactly, and comes back as what it
was: ``0.1`` is ``0.1``. Infinite scores are scores, what is no number is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import isnan
from typing import Any, TypeAlias

from shardkit.errors import InvalidArgumentError, InvalidKeyError
from shardkit.operations.commands import Argument, Key
from shardkit.routing.keys import key_bytes
from shardkit.structures.base.arguments import shown

Score: TypeAlias = int | float
# Members with scores. (A mapping's keys are invariant: hence Any.)
Scored: TypeAlias = Mapping[Any, Score] | Iterable[tuple[Key, Score]]
# The end of a range: a score, or text as Redis has it.
Limit: TypeAlias = Score | str


def number(owner: str, field: str, value: object) -> float:
    """Return a score.

    Args:
        owner: whose it is, for messages.
        field: what it is called there.
        value: what was given.

    Raises:
        InvalidArgumentError: it is no number, or more than a double can say.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            score = float(value)
        except OverflowError:
            pass
        else:
            if not isnan(score):
                return score
    raise InvalidArgumentError(f"{owner}: {field}={shown(value)}", "give a number, not NaN")


def limit(owner: str, field: str, value: Limit) -> str:
    """Return the end of a range of scores.

    Args:
        owner: whose it is, for messages.
        field: what it is called there.
        value: a score, which is within the range; or text: ``"1.5"``, ``"-inf"``, or ``"(1.5"``,
            which is not within it.

    Raises:
        InvalidArgumentError: it is none.
    """
    if not isinstance(value, str):
        return repr(number(owner, field, value))
    outside = value[:1] == "("
    try:
        score = float(value[outside:])
    except ValueError:
        score = float("nan")
    if isnan(score):
        raise InvalidArgumentError(
            f"{owner}: {field}={shown(value)}",
            'give a score, "-inf", "+inf", or "(1.5" to leave out',
        )
    return "(" * outside + repr(score)


def lex_limit(owner: str, field: str, value: str | bytes) -> bytes:
    """Return the end of a range of members.

    Args:
        owner: whose it is, for messages.
        field: what it is called there.
        value: ``-``, ``+``, ``[member`` for a member that is within the range, or ``(member`` for
            one that is not.

    Raises:
        InvalidArgumentError: it is none.
    """
    try:
        sent = key_bytes(value) if isinstance(value, str | bytes) else b""
    except InvalidKeyError:
        sent = b""
    if sent in (b"-", b"+") or sent[:1] in (b"[", b"("):
        return sent
    raise InvalidArgumentError(
        f"{owner}: {field}={shown(value)}", 'give "-", "+", "[member", or "(member" to leave it out'
    )


def options(owner: str, *, nx: bool, xx: bool, gt: bool, lt: bool, ch: bool) -> list[Argument]:
    """Return the options of a ZADD.

    Raises:
        InvalidArgumentError: they exclude one another.
    """
    given = {"NX": nx, "XX": xx, "GT": gt, "LT": lt, "CH": ch}
    found: list[Argument] = [name for name, wanted in given.items() if wanted]
    if (gt and lt) or (nx and (xx or gt or lt)):
        said = ", ".join(f"{str(name).lower()}=True" for name in found if name != "CH")
        raise InvalidArgumentError(
            f"{owner}: {said} exclude one another",
            "give nx alone; or one of gt and lt, or xx, or both",
        )
    return found


def as_pairs(owner: str, given: Scored) -> Iterable[tuple[Key, Score]]:
    """Return members with scores, from a mapping or from pairs, which are read one by one.

    Raises:
        InvalidArgumentError: something is no pair.
    """
    unchecked: object = given
    if isinstance(unchecked, str | bytes) or not isinstance(unchecked, Iterable):
        raise _no_pairs(owner, given)
    return given.items() if isinstance(given, Mapping) else _checked(owner, given)


def _checked(owner: str, pairs: Iterable[tuple[Key, Score]]) -> Iterator[tuple[Key, Score]]:
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise _no_pairs(owner, pair)
        yield pair


def _no_pairs(owner: str, given: object) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{owner}: {shown(given)} does not say members with scores",
        "give a dictionary of scores by member, or pairs (member, score)",
    )
