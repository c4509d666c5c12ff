"""Filling a timeline from the profiles of those whom its owner follows.

A timeline keeps its newest entries only. When its owner unfollows an account, that account's posts
leave, and older posts of the others were trimmed long ago. So a timeline with fewer entries than
its limit is filled again, from some profiles at a time. Accounts whose posts are fetched on reading
are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest
from typing import Any

from shardkit.operations.operation import Operation
from shardkit.social.base.keys import FOLLOWING, KeyLayout, RelationKind
from shardkit.social.base.models import stored_ids
from shardkit.social.content.timelines import Timelines, scored_members, timeline_entries
from shardkit.social.delivery.fan_out_job import DONE
from shardkit.social.relations.delivery_mode import FETCHED
from shardkit.social.relations.relations import Relations, read_members

# The profiles that one step reads: with 1,000 entries each, 50,000 entries.
PROFILES_AT_ONCE = 50


class Backfill:
    """Fills timelines.

    Args:
        layout: the network's keys.
        timelines: the timelines.
        relations: whom an owner follows.
    """

    def __init__(self, layout: KeyLayout, timelines: Timelines, relations: Relations) -> None:
        self._layout = layout
        self._timelines = timelines
        self._relations = relations

    def step(
        self, kind: RelationKind, owner: int, positions: Sequence[Any], *, always: bool = False
    ) -> Operation[list[Any]]:
        """Fill a timeline from the next profiles.

        Args:
            kind: the kind of its owner.
            owner: the user or list.
            positions: the progress in each part of the relations, as in a FanOutJob; empty to
                begin, which does nothing if the timeline is full.
            always: begin in any case.

        Returns:
            The progress now; empty once finished.

        Cost: four exchanges; one if there is nothing to do.
        """
        timelines, limit = self._timelines, self._timelines.home_limit
        key = self._layout.timeline(kind, owner)
        if not positions and not always:
            [size] = yield [self._layout.at_timeline(key, "ZCARD", key)]
            if size >= limit:
                return []
        followed, positions = yield from self.followed(owner, positions, PROFILES_AT_ONCE)
        if followed:
            users = [self._layout.owned("user", uid) for uid in followed]
            replies = yield [
                *(timelines.newest(self._layout.profile(uid), limit) for uid in followed),
                *(self._layout.at_user(key, "HGET", key, ":mode") for key in users),
            ]
            profiles, modes = replies[: len(followed)], replies[len(followed) :]
            rows = [
                row
                for flat, mode in zip(profiles, modes, strict=True)
                if mode != FETCHED.encode()
                for row in timeline_entries(flat)
            ]
            newest = nlargest(limit, rows, key=lambda row: (row[1], row[0]))
            yield from timelines.add([key], newest, limit)
            still = yield from self._relations.exist(kind, [(owner, uid) for uid in followed])
            for uid, follows in zip(followed, still, strict=True):
                if not follows:  # unfollowed meanwhile
                    yield from self._relations.check(kind, owner, uid)
        return [] if all(position == DONE for position in positions) else positions

    def followed(
        self, owner: int, positions: Sequence[Any], limit: int
    ) -> Operation[tuple[list[int], list[Any]]]:
        """Return the next accounts that an owner follows, and the progress in each part.

        Cost: one exchange.
        """
        positions = list(positions) or [None] * self._layout.relation_shards
        parts = [part for part, position in enumerate(positions) if position != DONE]
        most = max(1, limit // max(1, len(parts)))
        places = self._layout.places(FOLLOWING, owner)
        replies = yield [read_members(*places[part], positions[part], most) for part in parts]
        found: list[int] = []
        for part, flat in zip(parts, replies, strict=True):
            rows = scored_members(*places[part], flat)
            found += stored_ids(*places[part], (member for member, _ in rows))
            positions[part] = DONE
            if len(rows) == most:
                positions[part] = [int(rows[-1][1]), rows[-1][0].decode()]
        return found, positions
