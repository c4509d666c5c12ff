"""Following, blocking and muting.

Preconditions (both users exist, the limit is not reached) are checked before anything is written,
and may be outdated by then. Users are never deleted, so only the limit on followed accounts can be
exceeded, by at most the number of concurrent calls.

A block lives with the relations of the pair, so one script records it and ends both relations, and
a blocked user cannot follow. Muting affects reading only: the posts of a muted account stay in the
home timeline, and its pages leave them out. So unmuting brings them back.
"""

from __future__ import annotations

from shardkit.errors import InvalidArgumentError
from shardkit.operations.commands import Command
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation
from shardkit.social.delivery import ResumableJobs
from shardkit.social.keys import FOLLOWING, USER, KeyLayout, RelationKind
from shardkit.social.models import BlockResult, FollowResult, MuteResult
from shardkit.social.relations import (
    NO_CHANGE,
    CounterState,
    RelationChange,
    Relations,
    relation_note,
)
from shardkit.structures.base.damage import stored_integer


class Follows:
    """The rules of following: an account may follow at most ``limit`` others."""

    def __init__(
        self, layout: KeyLayout, relations: Relations, jobs: ResumableJobs, limit: int
    ) -> None:
        self._layout = layout
        self._relations = relations
        self._jobs = jobs
        self._limit = limit

    def follow(self, kind: RelationKind, first: int, second: int) -> Operation[FollowResult]:
        """Have an account follow another; see `SocialNetwork.follow`."""
        if first == second:
            raise InvalidArgumentError(
                f"{self._layout.name}: {first} would follow itself", "give two accounts"
            )
        layout = self._layout
        follower, followed = layout.owned(kind.account, first), layout.owned("user", second)
        following, exists = yield [
            layout.at_user(follower, "HGET", follower, "following"),
            layout.at_user(followed, "EXISTS", followed),
        ]
        if following is None or not exists:
            return FollowResult.NO_SUCH_USER
        if stored_integer(layout.users, follower, "following", following) >= self._limit:
            [already] = yield from self._relations.exist(kind, [(first, second)])
            return FollowResult.ALREADY_FOLLOWING if already else FollowResult.LIMIT_REACHED
        change = yield from self._relations.change("follow", kind, first, second)
        if not isinstance(change, RelationChange):
            return FollowResult.ALREADY_FOLLOWING if change == NO_CHANGE else FollowResult.BLOCKED
        counter = yield from self._relations.propagate(kind, first, second, change)
        yield from self._apply_mode(second, counter)
        return FollowResult.FOLLOWED

    def unfollow(self, kind: RelationKind, first: int, second: int) -> Operation[bool]:
        """Have an account no longer follow another; see `SocialNetwork.unfollow`."""
        if first == second:
            return False
        change = yield from self._relations.change("unfollow", kind, first, second)
        if not isinstance(change, RelationChange):
            return False
        counter = yield from self._relations.propagate(kind, first, second, change)
        yield from self._apply_mode(second, counter)
        yield from self._jobs.backfill(kind, first, ())
        return True

    def check(self, kind: RelationKind, first: int, second: int) -> Operation[None]:
        """Make everything agree with the relation between two accounts."""
        counter = yield from self._relations.check(kind, first, second)
        yield from self._apply_mode(second, counter)
        [follows] = yield from self._relations.exist(kind, [(first, second)])
        if not follows:
            yield from self._jobs.backfill(kind, first, ())

    def _apply_mode(self, uid: int, counter: CounterState | None) -> Operation[None]:
        """Change how an account's posts reach readers, if a count changed the mode."""
        if counter is not None and counter.changed:
            yield from self._jobs.change_mode(uid)


class BlocksAndMutes:
    """A network's blocks and mutes: a user may mute at most ``limit`` others."""

    def __init__(self, layout: KeyLayout, follows: Follows, limit: int) -> None:
        self._layout = layout
        self._follows = follows
        self._limit = limit

    def block(self, uid: int, other: int) -> Operation[BlockResult]:
        """Block a user; see `SocialNetwork.block`."""
        layout = self._layout
        if not (yield from self._exist(uid, other)):
            return BlockResult.NO_SUCH_USER
        part = layout.part(uid, other)
        keys = [
            layout.of_relations("clock", part),
            layout.of_relations("pending", part),
            layout.relation("blocked", part, uid),
            layout.relation(FOLLOWING, part, uid),
            layout.relation(USER.incoming, part, uid),
            layout.relation(FOLLOWING, part, other),
            layout.relation(USER.incoming, part, other),
        ]
        sent = (uid, other, relation_note(USER, uid, other), relation_note(USER, other, uid))
        to = layout.relations(part)
        [[new, followed, was_followed]] = yield [lua_call(to, "social/block", keys, sent)]
        if followed:
            yield from self._follows.check(USER, uid, other)
        if was_followed:
            yield from self._follows.check(USER, other, uid)
        return BlockResult.BLOCKED if new else BlockResult.ALREADY_BLOCKED

    def unblock(self, uid: int, other: int) -> Operation[bool]:
        """Remove a block; see `SocialNetwork.unblock`."""
        [removed] = yield [self._at_pair(uid, other, "ZREM", other)]
        return bool(removed)

    def blocks(self, uid: int, other: int) -> Operation[bool]:
        """Return whether a user has blocked another."""
        [version] = yield [self._at_pair(uid, other, "ZSCORE", other)]
        return version is not None

    def mute(self, uid: int, other: int) -> Operation[MuteResult]:
        """Mute a user; see `SocialNetwork.mute`."""
        if not (yield from self._exist(uid, other)):
            return MuteResult.NO_SUCH_USER
        layout, key = self._layout, self._layout.owned("muted", uid)
        size, muted = yield [
            layout.at_user(key, "SCARD", key),
            layout.at_user(key, "SISMEMBER", key, other),
        ]
        if size >= self._limit and not muted:
            return MuteResult.LIMIT_REACHED
        [added] = yield [Command(layout.users, key, ("SADD", key, other))]
        return MuteResult.MUTED if added else MuteResult.ALREADY_MUTED

    def unmute(self, uid: int, other: int) -> Operation[bool]:
        """Remove a mute; see `SocialNetwork.unmute`."""
        key = self._layout.owned("muted", uid)
        [removed] = yield [Command(self._layout.users, key, ("SREM", key, other))]
        return bool(removed)

    def muted(self, uid: int) -> Command:
        """Return the command that reads the users that a user has muted."""
        key = self._layout.owned("muted", uid)
        return self._layout.at_user(key, "SMEMBERS", key)

    def _exist(self, uid: int, other: int) -> Operation[bool]:
        if uid == other:
            raise InvalidArgumentError(
                f"{self._layout.name}: {uid} would block or mute itself", "give two users"
            )
        keys = [self._layout.owned("user", each) for each in (uid, other)]
        exist = yield [self._layout.at_user(key, "EXISTS", key) for key in keys]
        return all(exist)

    def _at_pair(self, uid: int, other: int, name: str, *args: int) -> Command:
        part = self._layout.part(uid, other)
        key = self._layout.relation("blocked", part, uid)
        return Command(self._layout.relations(part), key, (name, key, *args))
