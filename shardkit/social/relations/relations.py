"""Who follows whom: both halves of a relation on one shard, and the consequences elsewhere.

::

    following:{social:3}:4113   ZSET  whom 4113 follows, among the pairs of part 3 -> version
    followers:{social:3}:7201   ZSET  who follows 7201, among these pairs          -> version
    listed:{social:3}:7201      ZSET  lists that follow 7201                       -> version
    blocked:{social:3}:4113     ZSET  whom 4113 has blocked                        -> version
    clock:{social:3}            STRING  the latest version
    pending:{social:3}          ZSET  user:4113:7201 -> version: pairs with unfinished consequences

A pair's part is the placement of ``<lower>:<higher>``, as with IdPairShardedConnection, so one
script changes both halves. It also gives the change a version, the time in microseconds made to
grow with every change of the part, and notes the pair as pending. The consequences follow from what
the part holds, in an order that may be interrupted anywhere:

1. both accounts record the part's counts (`shardkit.social.relations.counters`);
2. the follower's timeline gets the newest posts, or loses all of them;
3. the note is removed, if it still has the version that was processed. Otherwise the pair has
   changed meanwhile, and the steps are repeated from what the part holds now.

So the last of any number of concurrent changes of a pair leaves the right state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from shardkit.operations.commands import Command, To, script_call
from shardkit.operations.lua import script
from shardkit.operations.operation import Operation
from shardkit.social.base.keys import FOLLOWING, USER, KeyLayout, RelationKind
from shardkit.social.content.timelines import Timelines, timeline_entries
from shardkit.social.relations.counters import Counters, CounterState
from shardkit.social.relations.delivery_mode import FETCHED, READERS_FETCH

# After so many concurrent changes of a pair, a call leaves it pending.
ROUNDS = 20
# What `change` returns if nothing changed.
NO_CHANGE = 0
BLOCKED = -1


class RelationChange(NamedTuple):
    """The state of a relation after a change.

    Attributes:
        follows: whether the first account follows the second.
        version: the version of the state.
        following: the number of accounts in this part that the first one follows.
        followers: the number of accounts in this part that follow the second one.
    """

    follows: bool
    version: int
    following: int
    followers: int


class Relations:
    """A network's relations.

    Args:
        layout: the network's keys.
        counters: count relations.
        timelines: change with relations.
    """

    def __init__(self, layout: KeyLayout, counters: Counters, timelines: Timelines) -> None:
        self._layout = layout
        self._counters = counters
        self._timelines = timelines

    def change(
        self, action: str, kind: RelationKind, first: int, second: int
    ) -> Operation[RelationChange | int]:
        """Change whether one account follows another, or only note the pair as pending.

        Args:
            action: ``follow``, ``unfollow`` or ``check``.
            kind: the first account's kind.
            first: the follower.
            second: the followed account.

        Returns:
            The new state; `NO_CHANGE`, or `BLOCKED` if one has blocked the other.

        Cost: one exchange.
        """
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
        [reply] = yield [script_call(layout.relations(part), call, keys, arguments)]
        if len(reply) == 1:
            return int(reply[0])
        _, follows, version, following, followers = reply
        return RelationChange(bool(follows), version, following, followers)

    def check(self, kind: RelationKind, first: int, second: int) -> Operation[CounterState | None]:
        """Make everything agree with the relation between two accounts. Cost: as an unfollow."""
        change = yield from self._note(kind, first, second)
        return (yield from self.propagate(kind, first, second, change))

    def propagate(
        self, kind: RelationKind, first: int, second: int, change: RelationChange
    ) -> Operation[CounterState | None]:
        """Apply the consequences of a change; return the second account's counter.

        Cost: three exchanges after a follow, four or five after an unfollow.
        """
        layout = self._layout
        part = layout.part(first, second)
        to, key = layout.relations(part), layout.of_relations("pending", part)
        note = relation_note(kind, first, second)
        counter, changed = None, False
        for _ in range(ROUNDS):
            counter = yield from self._apply(kind, first, second, part, change)
            changed = changed or (counter is not None and counter.changed)
            settle = script("social/relations/settle")
            [settled] = yield [script_call(to, settle, [key], (note, change.version))]
            if settled:
                break
            change = yield from self._note(kind, first, second)
        return counter and counter._replace(changed=changed)

    def exist(self, kind: RelationKind, pairs: Sequence[tuple[int, int]]) -> Operation[list[bool]]:
        """Return for pairs whether the first one follows the second. Cost: one exchange."""
        batch = []
        for first, second in pairs:
            part = self._layout.part(first, second)
            key = self._layout.relation(FOLLOWING, part, first)
            command = ("ZSCORE", key, second)
            batch.append(Command(self._layout.relations(part), key, command, None, True))
        scores = (yield batch) if batch else []
        return [score is not None for score in scores]

    def _note(self, kind: RelationKind, first: int, second: int) -> Operation[RelationChange]:
        """Note a pair as pending and return its state. Cost: one exchange."""
        change = yield from self.change("check", kind, first, second)
        assert isinstance(change, RelationChange)
        return change

    def _apply(
        self, kind: RelationKind, first: int, second: int, part: int, change: RelationChange
    ) -> Operation[CounterState | None]:
        layout, timelines = self._layout, self._timelines
        timeline = layout.timeline(kind, first)
        record, version = self._counters.record, change.version
        if change.follows:
            reading = timelines.newest(layout.profile(second), timelines.home_limit)
        else:
            reading = layout.at_timeline(timeline, "ZRANGE", timeline, 0, -1)
        replies = yield [
            record(kind, FOLLOWING, first, part, version, change.following),
            record(USER, kind.incoming, second, part, version, change.followers),
            reading,
        ]
        counter = self._counters.state_of(replies[1])
        entries = replies[2]
        if not change.follows:
            yield from timelines.remove_author(kind, first, second, entries)
            pulled = layout.pulled(first)
            yield [layout.at_timeline(pulled, "ZREM", pulled, second)]
            return counter
        mode = counter.mode if counter else ""
        if mode != FETCHED:
            yield from timelines.add([timeline], timeline_entries(entries), timelines.home_limit)
        if counter and mode in READERS_FETCH:
            yield from timelines.mark([layout.pulled(first)], second, counter.version)
        return counter


def read_members(to: To, key: str, position: Sequence[Any] | None, limit: int) -> Command:
    """Return the command that reads the next members of a ZSET of relations, oldest first.

    Args:
        to: the shard.
        key: the ZSET.
        position: the version and id of the last member that was read; None to begin.
        limit: the most members.
    """
    if position is None:
        return Command(to, key, ("ZRANGE", key, 0, limit - 1, "WITHSCORES"))
    arguments = ("-inf", "+inf", limit, 0, position[0], position[1])
    call = script("structures/sorted_set/score_range")
    return script_call(to, call, [key], arguments, idempotent=True)


def relation_note(kind: RelationKind, first: int, second: int) -> str:
    """Return the note of a relation whose consequences are not finished."""
    return f"{kind.name}:{first}:{second}"
