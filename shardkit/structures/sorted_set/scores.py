"""redis-py's queries by score, and their arguments: checked, and encoded for the server.

A score is a double, sent as the shortest text that represents it exactly. NaN is not valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isnan
from typing import Any, TypeAlias

from shardkit.errors import InvalidArgumentError, InvalidKeyError
from shardkit.operations.arguments import shown
from shardkit.operations.commands import Argument, Key
from shardkit.operations.operation import Face, Operation, Structure, operation
from shardkit.routing.keys import key_bytes
from shardkit.structures.base.arguments import check_integer

HIGHEST_RANK = 2**63 - 1

Score: TypeAlias = int | float
# Members with scores. (A mapping's keys are invariant: hence Any.)
Scored: TypeAlias = Mapping[Any, Score] | Iterable[tuple[Key, Score]]
# The bound of a range: a score, or text as in Redis: "(1.5", "-inf".
ScoreBound: TypeAlias = Score | str
# redis-py's score_cast_func.
CastScore: TypeAlias = Callable[[float], Any]


def check_score(owner: str, field: str, value: object) -> float:
    """Return a score as a float."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            score = float(value)
        except OverflowError:
            pass
        else:
            if not isnan(score):
                return score
    raise InvalidArgumentError(f"{owner}: {field}={shown(value)}", "give a number, not NaN")


def score_bound(owner: str, field: str, value: ScoreBound) -> str:
    """Return the bound of a range of scores as it is sent."""
    if not isinstance(value, str):
        return repr(check_score(owner, field, value))
    outside = value[:1] == "("
    try:
        score = float(value[outside:])
    except ValueError:
        score = float("nan")
    if isnan(score):
        raise InvalidArgumentError(
            f"{owner}: {field}={shown(value)}",
            'give a score, "-inf", "+inf", or "(1.5" to exclude it',
        )
    return "(" * outside + repr(score)


def lex_bound(owner: str, field: str, value: str | bytes) -> bytes:
    """Return the bound of a range of members as it is sent."""
    try:
        sent = key_bytes(value) if isinstance(value, str | bytes) else b""
    except InvalidKeyError:
        sent = b""
    if sent in (b"-", b"+") or sent[:1] in (b"[", b"("):
        return sent
    raise InvalidArgumentError(
        f"{owner}: {field}={shown(value)}", 'give "-", "+", "[member", or "(member" to exclude it'
    )


def zadd_options(owner: str, *, nx: bool, xx: bool, gt: bool, lt: bool, ch: bool) -> list[Argument]:
    """Return the options of a ZADD."""
    given = {"NX": nx, "XX": xx, "GT": gt, "LT": lt, "CH": ch}
    options: list[Argument] = [name for name, wanted in given.items() if wanted]
    if (gt and lt) or (nx and (xx or gt or lt)):
        names = ", ".join(f"{str(name).lower()}=True" for name in options if name != "CH")
        raise InvalidArgumentError(
            f"{owner}: {names} are mutually exclusive",
            "give nx alone, or at most one of gt and lt, with or without xx",
        )
    return options


def offset_and_limit(owner: str, start: int | None, num: int | None) -> tuple[int, int | None]:
    """Return a LIMIT as the rows to skip and the rows to return, None for all."""
    if start is None or num is None:
        if start is not num:
            raise InvalidArgumentError(
                f"{owner}: only one of start (offset) and num", "give both or neither"
            )
        return 0, None
    check_integer(owner, "start", start, 0, HIGHEST_RANK)
    check_integer(owner, "num", num, -HIGHEST_RANK, HIGHEST_RANK)
    return start, None if num < 0 else num


def check_cursor(owner: str, cursor: object) -> tuple[Key, float]:
    """Return the member and score of a cursor."""
    if not isinstance(cursor, tuple | list) or len(cursor) != 2:
        raise InvalidArgumentError(
            f"{owner}: cursor={shown(cursor)}", "give a member and its score: a page's last row"
        )
    return cursor[0], check_score(f"{owner}: cursor {shown(cursor[0])}", "score", cursor[1])


def as_pairs(owner: str, given: Scored) -> Iterable[tuple[Key, Score]]:
    """Return members with scores, from a mapping or from pairs, which are read one by one."""
    unchecked: object = given
    if isinstance(unchecked, str | bytes) or not isinstance(unchecked, Iterable):
        raise _not_pairs(owner, given)
    return given.items() if isinstance(given, Mapping) else _checked(owner, given)


def _checked(owner: str, pairs: Iterable[tuple[Key, Score]]) -> Iterator[tuple[Key, Score]]:
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise _not_pairs(owner, pair)
        yield pair


def _not_pairs(owner: str, given: object) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{owner}: {shown(given)} is not members with scores",
        "give a dictionary of scores by member, or pairs (member, score)",
    )


class ScoreQueries(Structure[Face]):
    """ZRANGEBYSCORE and ZREVRANGEBYSCORE with redis-py's arguments."""

    # Returns the members with scores within a range; with ``cast``, pairs with the scores.
    _scores: Callable[..., Operation[list[Any]]]

    @operation
    def zrangebyscore(
        self,
        min: ScoreBound,
        max: ScoreBound,
        start: int | None = None,
        num: int | None = None,
        withscores: bool = False,
        score_cast_func: CastScore = float,
    ) -> Operation[list[Any]]:
        """Return the members with scores within a range, lowest first.

        Args:
            min: the lowest score, ``"(1.5"`` to exclude that score itself, or ``"-inf"``.
            max: the highest score, in the same forms.
            start: how many members to skip; `page` skips without reading them.
            num: how many to return, given with ``start``; negative for all.
            withscores: whether to return pairs ``(member, score)``.
            score_cast_func: converts each score.

        Cost: as `page` for every 10,000 members, skipped ones included; of a `ShardedSortedSet` for
        an eighth of all if that is more.
        """
        cast = score_cast_func if withscores else None
        return (yield from self._scores(min, max, start, num, cast, desc=False))

    @operation
    def zrevrangebyscore(
        self,
        max: ScoreBound,
        min: ScoreBound,
        start: int | None = None,
        num: int | None = None,
        withscores: bool = False,
        score_cast_func: CastScore = float,
    ) -> Operation[list[Any]]:
        """Return the members with scores within a range, highest first; see `zrangebyscore`."""
        cast = score_cast_func if withscores else None
        return (yield from self._scores(min, max, start, num, cast, desc=True))
