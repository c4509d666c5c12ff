"""Refilling a timeline from the profiles of those whom its owner follows.

A timeline keeps its newest entries only. When somebody is no longer followed, what that account has
posted goes, and older posts of the others were cut off long ago. So a timeline with less than three
quarters of its limit is filled again, from some profiles at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest
from typing import Any

from shardkit.lua import script
from shardkit.operations.commands import Command, script_call
from shardkit.operations.operation import Operation
from shardkit.social.base.keys import FOLLOWING, KeyLayout, RelationKind
from shardkit.social.content.timelines import Timelines
from shardkit.social.relations.relations import Relations, scored_members

# Profiles that one step reads: with 1,000 entries each, 50,000 entries.
PROFILES_AT_ONCE = 50


class Backfill:
    """The steps that refill a timeline.

    Args:
        layout: where the keys are.
        timelines: what is filled.
        relations: who is followed.
    """

    def __init__(self, layout: KeyLayout, timelines: Timelines, relations: Relations) -> None:
        self._layout = layout
        self._timelines = timelines
        self._relations = relations

    def step(
        self, kind: RelationKind, owner: int, places: Sequence[Any], *, always: bool = False
    ) -> Operation[list[Any]]:
        """Fill a timeline from the next profiles.

        Args:
            kind: whose timeline it is.
            owner: the user or list.
            places: how far each part of the relations has come, as in a Job; empty to begin. Then
                nothing is done if the timeline has three quarters of what it may have.
            always: begin in any case.

        Returns:
            How far they have come now; empty if that was all.

        Cost: four exchanges; one if there is nothing to do.
        """
        timelines, limit = self._timelines, self._timelines.home_limit
        key = self._layout.timeline(kind, owner)
        if not places:
            if not always:
                [size] = yield [self._layout.at_timeline(key, "ZCARD", key)]
                if size >= limit * 3 // 4:
                    return []
            places = [None] * self._layout.relation_shards
        followed, places = yield from self.followed(owner, places, PROFILES_AT_ONCE)
        if followed:
            replies = yield [timelines.newest(self._layout.profile(uid), limit) for uid in followed]
            rows = [row for flat in replies for row in scored_members(flat)]
            newest = nlargest(limit, rows, key=lambda row: (row[1], row[0]))
            yield from timelines.add([key], newest, limit)
            pairs = [(owner, uid) for uid in followed]
            held = yield from self._relations.holds(kind, pairs)
            for uid, holds in zip(followed, held, strict=True):
                if not holds:  # no longer followed since
                    yield from self._relations.check(kind, owner, uid)
        return [] if all(place == 0 for place in places) else places

    def followed(
        self, owner: int, places: Sequence[Any], count: int
    ) -> Operation[tuple[list[int], list[Any]]]:
        """Return the next accounts that are followed, and how far the parts have come.

        Cost: one exchange.
        """
        places = list(places) or [None] * self._layout.relation_shards
        parts = [part for part, place in enumerate(places) if place != 0]
        most = max(1, count // max(1, len(parts)))
        replies = yield [
            _reading(to, key, places[part], most)
            for part, (to, key) in enumerate(self._layout.places(FOLLOWING, owner))
            if part in parts
        ]
        found: list[int] = []
        for part, flat in zip(parts, replies, strict=True):
            rows = scored_members(flat)
            found += [int(member) for member, _ in rows]
            places[part] = 0
            if len(rows) == most:
                places[part] = [int(rows[-1][1]), rows[-1][0].decode()]
        return found, places


def _reading(to: Any, key: str, place: Any, most: int) -> Command:
    if place is None:
        return Command(to, key, ("ZRANGE", key, 0, most - 1, "WITHSCORES"), None, True)
    arguments = ("-inf", "+inf", most, 0, place[0], place[1])
    return script_call(
        to, script("structures/sorted_set/score_range"), [key], arguments, idempotent=True
    )
