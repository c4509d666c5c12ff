"""Relations between accounts: both halves on one shard, and their consequences elsewhere.

A pair's part is the placement of ``<lower>:<higher>``, as with IdPairShardedConnection, so one
script changes both halves. The script also gives the change a version (the time in microseconds,
increased with every change of the part) and notes the pair as pending. The consequences follow from
the part's data. They can be interrupted anywhere:

1. both accounts record the part's counts;
2. the follower's timeline gets the newest posts, or loses all of them;
3. the note is removed if it still has the processed version. Otherwise the pair was noted again: if
   it has changed, the steps are repeated with the part's new data.

So the last of any number of concurrent changes of a pair leaves the right state.

**Counters stay exact, although relations live on other servers.** Each part reports its current
count with a version that grows with each change of the part. The account stores both and adds the
difference. A count that arrives late or twice has no newer version and changes nothing. A lost
count is corrected by the next one of its part, or by a recount. This is a last-writer-wins register
for each part (M. Shapiro and others, "Conflict-free replicated data types", 2011).

**Pushed or fetched.** Of an account with very many followers, readers fetch the posts: they have
it in their ``pull`` (docs/social.md). During a change both ways apply:

=========== =============== ==============================================================
mode        posts           followers
=========== =============== ==============================================================
(none)      are pushed      get the newest posts when they follow
marking     are pushed      get them, and ``pull`` has the account; then pull
pull        are not pushed  ``pull`` has the account
filling     are pushed      get the newest posts, and ``pull`` no longer has the account; then none
=========== =============== ==============================================================

Each change has a version. A pass of an earlier change does not undo a later mark, and ``pull``
begins only if no other change has started. A post that was not pushed checks the mode again once it
is in its author's profile. If the mode has changed since, the post is pushed after all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import shown
from shardkit.operations.commands import Argument, Command, To
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation
from shardkit.social.keys import FOLLOWING, LIST, USER, KeyLayout, RelationKind
from shardkit.social.timelines import Timelines, timeline_entries
from shardkit.structures.base.arguments import check_integer

PUSHED: Final = ""
MARKING: Final = "marking"
FETCHED: Final = "pull"
FILLING: Final = "filling"
# Modes in which new followers have to fetch.
READERS_FETCH: Final = (MARKING, FETCHED)

# By counter: the beginning of the fields that hold the parts' counts.
PART_FIELDS: Final = {USER.incoming: ":f", FOLLOWING: ":g", LIST.incoming: ":l"}

# After this many concurrent changes of a pair, a call leaves it pending.
ROUNDS = 20
# What `change` returns if nothing changed.
NO_CHANGE = 0
BLOCKED = -1


class RelationChange(NamedTuple):
    """The state of a relation after a change."""

    follows: bool  # whether the first account follows the second
    version: int
    following: int  # accounts in this part that the first one follows
    followers: int  # accounts in this part that follow the second one


class CounterState(NamedTuple):
    """A counter after a part's count was recorded."""

    mode: str  # how the account's posts reach readers
    version: str  # of the mode
    changed: bool  # whether this count changed the mode


class Relations:
    """A network's relations, and the commands that count them."""

    def __init__(self, layout: KeyLayout, timelines: Timelines, fan_out_limit: int) -> None:
        check_integer(layout.name, "fan_out_limit", fan_out_limit, 0, 2**53)
        if 0 < fan_out_limit < 5:
            raise InvalidArgumentError(
                f"{layout.name}: fan_out_limit={shown(fan_out_limit)}",
                "give 5 or more, or 0 to push always",
            )
        self._layout = layout
        self._timelines = timelines
        self._high = fan_out_limit
        # Lower than the limit, so that one follower who comes and goes does not switch the mode.
        self._low = fan_out_limit - fan_out_limit // 5

    def record(
        self, kind: RelationKind, counter: str, id_: int, part: int, version: int, count: int
    ) -> Command:
        """Return the command that records a part's count, of a version, with an account."""
        layout = self._layout
        high = 0 if counter == FOLLOWING else self._high
        field, note = f"{PART_FIELDS[counter]}{part}", mode_change_note(id_)
        arguments = (counter, field, version, count, high, self._low, note)
        keys = [layout.owned(kind.account, id_), layout.near("pending", id_)]
        return lua_call(layout.users, "social/record_count", keys, arguments, idempotent=True)

    def recount(
        self, kind: RelationKind, counter: str, id_: int, counts: Sequence[tuple[int, int]]
    ) -> Command:
        """Return the command that sets a counter from the version and count of each part."""
        numbers = (number for pair in counts for number in pair)
        arguments: list[Argument] = [counter, PART_FIELDS[counter], *numbers]
        key = self._layout.owned(kind.account, id_)
        return lua_call(self._layout.users, "social/recount", [key], arguments, idempotent=True)

    @staticmethod
    def state_of(reply: list[object] | None) -> CounterState | None:
        """Return the counter in a reply of `record`; None if there is no such account."""
        if reply is None:
            return None
        mode, version, changed = reply
        assert isinstance(mode, bytes)
        assert isinstance(version, bytes)
        return CounterState(mode.decode(), version.decode(), changed == 1)

    def change(
        self,
        action: str,
        kind: RelationKind,
        first: int,
        second: int,
        applied: bool | None = None,
    ) -> Operation[RelationChange | int]:
        """Have an account follow or unfollow another; or (``check``) only note the pair as pending.

        Return the new state; `NO_CHANGE`, also of a check that finds what was ``applied``; or
        `BLOCKED` if one has blocked the other.
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
        state = "" if applied is None else int(applied)
        arguments = (action, first, second, relation_note(kind, first, second), state)
        [reply] = yield [lua_call(layout.relations(part), "social/relate", keys, arguments)]
        if len(reply) == 1:
            return int(reply[0])
        _, follows, version, following, followers = reply
        return RelationChange(bool(follows), version, following, followers)

    def check(self, kind: RelationKind, first: int, second: int) -> Operation[CounterState | None]:
        """Make everything agree with the relation between two accounts. Cost: as an unfollow."""
        change = yield from self.change("check", kind, first, second)
        assert isinstance(change, RelationChange)
        return (yield from self.propagate(kind, first, second, change))

    def propagate(
        self, kind: RelationKind, first: int, second: int, change: RelationChange
    ) -> Operation[CounterState | None]:
        """Apply the consequences of a change; return the second account's counter."""
        part = self._layout.part(first, second)
        to, key = self._layout.relations(part), self._layout.of_relations("pending", part)
        note = relation_note(kind, first, second)
        counter, changed = None, False
        for _ in range(ROUNDS):
            counter = yield from self._apply(kind, first, second, part, change)
            changed = changed or (counter is not None and counter.changed)
            [removed] = yield [remove_note(to, key, note, change.version)]
            if removed:
                break
            again = yield from self.change("check", kind, first, second, change.follows)
            if not isinstance(again, RelationChange):
                break
            change = again
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

    def _apply(
        self, kind: RelationKind, first: int, second: int, part: int, change: RelationChange
    ) -> Operation[CounterState | None]:
        layout, timelines = self._layout, self._timelines
        timeline = layout.timeline(kind, first)
        record, version = self.record, change.version
        if change.follows:
            reading = timelines.newest(layout.profile(second), timelines.home_limit)
        else:
            reading = layout.at_timeline(timeline, "ZRANGE", timeline, 0, -1)
        _, reply, entries = yield [
            record(kind, FOLLOWING, first, part, version, change.following),
            record(USER, kind.incoming, second, part, version, change.followers),
            reading,
        ]
        counter = self.state_of(reply)
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


def counters_of(kind: RelationKind) -> list[str]:
    """Return the counters of relations that an account of a kind has."""
    return [FOLLOWING] if kind is LIST else [USER.incoming, FOLLOWING, LIST.incoming]


def read_members(to: To, key: str, position: Sequence[Any] | None, limit: int) -> Command:
    """Return the command that reads the next members of a ZSET of relations, oldest first.

    ``position`` is the version and id of the last member that was read; None to begin.
    """
    if position is None:
        return Command(to, key, ("ZRANGE", key, 0, limit - 1, "WITHSCORES"))
    arguments = ("-inf", "+inf", limit, 0, position[0], position[1])
    return lua_call(to, "structures/sorted_set/score_range", [key], arguments, idempotent=True)


def relation_note(kind: RelationKind, first: int, second: int) -> str:
    """Return the note of a relation whose consequences are not finished."""
    return f"{kind.name}:{first}:{second}"


def mode_change_note(uid: int) -> str:
    """Return the note of an account that changes between pushing and fetching."""
    return f"cross:{uid}"


def remove_note(to: To, key: str, note: str, version: int | bytes) -> Command:
    """Return the command that removes a note that still has a version."""
    return lua_call(to, "social/remove_note", [key], (note, version))
