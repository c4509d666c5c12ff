"""Blocking and muting.

A block lives with the relations of the pair, so one script records it and ends both relations, and
nobody who is blocked can follow. Muting affects reading only: the posts of a muted account stay in
the home timeline and pages leave them out, so that unmuting brings them back.
"""

from __future__ import annotations

from shardkit.errors import InvalidArgumentError
from shardkit.operations.commands import Command, script_call
from shardkit.operations.lua import script
from shardkit.operations.operation import Operation
from shardkit.social.base.keys import FOLLOWING, USER, KeyLayout
from shardkit.social.base.models import BlockResult, MuteResult
from shardkit.social.follows import Follows
from shardkit.social.relations.relations import relation_note


class BlocksAndMutes:
    """A network's blocks and mutes.

    Args:
        layout: the network's keys.
        follows: applies the end of relations.
        limit: the most users that one may mute.
    """

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
        notes = relation_note(USER, uid, other), relation_note(USER, other, uid)
        call = script("social/block")
        to = layout.relations(part)
        [[new, followed, was_followed]] = yield [script_call(to, call, keys, (uid, other, *notes))]
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
        """Return the command that reads whom a user has muted."""
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
