"""redis-py's queries by score, for everything that reads members in order of score."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from shardkit.operations.operation import Face, Operation, Structure, operation
from shardkit.structures.sorted_set.scores import CastScore, ScoreBound


class ScoreQueries(Structure[Face]):
    """ZRANGEBYSCORE and ZREVRANGEBYSCORE with redis-py's arguments."""

    @abstractmethod
    def _scores(
        self,
        low: ScoreBound,
        high: ScoreBound,
        offset: int | None,
        num: int | None,
        cast: CastScore | None,
        *,
        desc: bool,
    ) -> Operation[list[Any]]:
        """Return the members with scores within a range; with ``cast`` pairs with the scores."""

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
