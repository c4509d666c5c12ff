"""Who follows whom: both halves of a relation on one shard, and what follows from them elsewhere.

::

    following:{social:3}:4113   ZSET  whom 4113 follows, of the pairs of part 3 -> version
    followers:{social:3}:7201   ZSET  who follows 7201, of these pairs          -> version
    listed:{social:3}:7201      ZSET  lists that follow 7201                    -> version
    blocked:{social:3}:4113     ZSET  whom 4113 has blocked                     -> version
    clock:{social:3}            STRING  the version last given out
    pending:{social:3}          ZSET  user:4113:7201 -> version: pairs that are being dealt with

A pair's part is the placement of ``<lower>:<higher>``, as with IdPairShardedConnection, so one
script changes both halves. It also gives the change a version, which is the time in microseconds
but grows with every change of the part, and notes the pair as pending. The rest follows from what
holds, and is done in an order in which it may end anywhere:

1. both accounts take in what the part holds now (`shardkit.social.relations.counters`);
2. the follower's timeline gets the newest posts, or loses all of them;
3. the pair is crossed off, if its version is still the one that was dealt with. Otherwise it has
   changed meanwhile, and what was just done may be wrong: once more from what holds now.

So whoever comes last, of any number that change one pair at the same time, leaves what is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from shardkit.lua import script
from shardkit.operations.commands import Command, script_call
from shardkit.operations.operation import Operation
from shardkit.social.base.keys import FOLLOWING, USER, KeyLayout, RelationKind
from shardkit.social.content.timelines import Timelines
from shardkit.social.relations.counters import Counters, CounterState
from shardkit.social.relations.delivery_mode import FETCHED, READ

# How often a pair that keeps changing is dealt with in one call; then it stays pending.
ROUNDS = 20


class RelationChange(NamedTuple):
    """What holds between two accounts.

    Attributes:
        follows: whether the first one follows the second.
        version: since when, or when that was looked at.
        following: how many the first one follows, in this part.
        followers: how many follow the second one, in this part.
    """

    follows: bool
    version: int
    following: int
    followers: int


class Relations:
    """The steps of a network's relations.

    Args:
        layout: where the keys are.
        counters: count them.
        timelines: what follows from them.
    """

    def __init__(self, layout: KeyLayout, counters: Counters, timelines: Timelines) -> None:
        self._layout = layout
        self._counters = counters
        self._timelines = timelines

    def change(
        self, action: str, kind: RelationKind, first: int, second: int
    ) -> Operation[RelationChange | int]:
        """Have one follow another or not any more, or (``look``) only say what holds.

        Returns:
            What holds now; 0 if that was so already; -1 if one has blocked the other.

        Cost: one exchange.
        """
        [reply] = yield [self.changing(action, kind, first, second)]
        if len(reply) == 1:
            return int(reply[0])
        _, follows, version, following, followers = reply
        return RelationChange(bool(follows), version, following, followers)

    def changing(self, action: str, kind: RelationKind, first: int, second: int) -> Command:
        """Return the command that does so."""
        layout = self._layout
        part = layout.part(first, second)
        keys = [
            layout.of_relations("clock", part),
            layout.of_relations("pending", part),
            layout.relation(FOLLOWING, part, first),
            layout.relation(kind.incoming, part, second),
            layout.relation("blocked", part, first),
            layout.relation("blocked", part, second),
        ]
        arguments = (action, first, second, relation_note(kind, first, second))
        call = script("social/relations/relate")
        return script_call(layout.relations(part), call, keys, arguments)

    def finish(
        self, kind: RelationKind, first: int, second: int, change: RelationChange
    ) -> Operation[CounterState | None]:
        """Do what follows from what holds; return the second one's counter.

        Cost: three exchanges after a follow, four or five after an unfollow.
        """
        layout = self._layout
        part = layout.part(first, second)
        to, key = layout.relations(part), layout.of_relations("pending", part)
        member = relation_note(kind, first, second)
        counted, changed = None, False
        for _ in range(ROUNDS):
            counted = yield from self._derive(kind, first, second, part, change)
            changed = changed or (counted is not None and counted.changed)
            settle = script("social/relations/settle")
            [settled] = yield [script_call(to, settle, [key], (member, change.version))]
            if settled:
                break
            change = yield from self.look(kind, first, second)
        return counted and counted._replace(changed=changed)

    def look(self, kind: RelationKind, first: int, second: int) -> Operation[RelationChange]:
        """Note a pair as pending and say what holds. Cost: one exchange."""
        change = yield from self.change("look", kind, first, second)
        assert isinstance(change, RelationChange)
        return change

    def check(self, kind: RelationKind, first: int, second: int) -> Operation[CounterState | None]:
        """Have everything agree with what holds between two accounts. Cost: as an unfollow."""
        change = yield from self.look(kind, first, second)
        return (yield from self.finish(kind, first, second, change))

    def _derive(
        self, kind: RelationKind, first: int, second: int, part: int, change: RelationChange
    ) -> Operation[CounterState | None]:
        layout, timelines = self._layout, self._timelines
        timeline = layout.timeline(kind, first)
        count, version = self._counters.take_in, change.version
        if change.follows:
            reading = timelines.newest(layout.profile(second), timelines.home_limit)
        else:
            reading = layout.at_timeline(timeline, "ZRANGE", timeline, 0, -1)
        replies = yield [
            count(kind, FOLLOWING, first, part, version, change.following),
            count(USER, kind.incoming, second, part, version, change.followers),
            reading,
        ]
        counted = self._counters.counted(replies[1])
        flat = replies[2]
        if not change.follows:
            yield from timelines.drop(kind, first, second, flat)
            pulled = layout.pulled(first)
            yield [layout.at_timeline(pulled, "ZREM", pulled, second)]
            return counted
        mode = counted.mode if counted else ""
        if mode != FETCHED:
            rows = scored_members(flat)
            yield from timelines.add([timeline], rows, timelines.home_limit)
        if counted and mode in READ:
            yield from timelines.mark([layout.pulled(first)], second, counted.version)
        return counted

    def holds(self, kind: RelationKind, pairs: Sequence[tuple[int, int]]) -> Operation[list[bool]]:
        """Say of pairs whether the first one follows the second. Cost: one exchange."""
        batch = []
        for first, second in pairs:
            part = self._layout.part(first, second)
            key = self._layout.relation(FOLLOWING, part, first)
            batch.append(
                Command(self._layout.relations(part), key, ("ZSCORE", key, second), None, True)
            )
        scores = (yield batch) if batch else []
        return [score is not None for score in scores]


def scored_members(flat: Sequence[Any]) -> list[tuple[bytes, float]]:
    """Return members and scores as pairs."""
    return [(member, float(score)) for member, score in zip(flat[::2], flat[1::2], strict=True)]


def relation_note(kind: RelationKind, first: int, second: int) -> str:
    """Return what is pending while a relation is dealt with."""
    return f"{kind.name}:{first}:{second}"
