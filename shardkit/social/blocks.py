"""Blocking and muting.

A block lives where the relations of the pair do, so one script notes it and ends both relations,
and nobody follows who is blocked. Muting concerns reading only: the posts of a muted account stay
in the home timeline, and pages leave them out, so that unmuting brings them back.
"""

from __future__ import annotations

from shardkit.errors import InvalidArgumentError
from shardkit.lua import script
from shardkit.operations.commands import Command, script_call
from shardkit.operations.operation import Operation
from shardkit.social.base.keys import FOLLOWING, USER, KeyLayout
from shardkit.social.follows import Follows
from shardkit.social.relations.relations import relation_note


class BlocksAndMutes:
    """The steps of blocks and mutes.

    Args:
        layout: where the keys are.
        following: what follows from a block.
        limit: how many a user may mute.
    """

    def __init__(self, layout: KeyLayout, follows: Follows, limit: int) -> None:
        self._layout = layout
        self._follows = follows
        self._limit = limit

    def block(self, uid: int, other: int) -> Operation[bool | None]:
        """Block a user; see `SocialNetwork.block`."""
        layout = self._layout
        if not (yield from self._both(uid, other)):
            return False
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
        call = script_call(
            layout.relations(part), script("social/block"), keys, (uid, other, *notes)
        )
        [[new, followed, was_followed]] = yield [call]
        if followed:
            yield from self._follows.check(USER, uid, other)
        if was_followed:
            yield from self._follows.check(USER, other, uid)
        return True if new else None

    def unblock(self, uid: int, other: int) -> Operation[bool | None]:
        """Take a block back; see `SocialNetwork.unblock`."""
        [removed] = yield [self._at_pair(uid, other, "ZREM", other)]
        return True if removed else None

    def blocks(self, uid: int, other: int) -> Operation[bool]:
        """Say whether a user has blocked another."""
        [version] = yield [self._at_pair(uid, other, "ZSCORE", other)]
        return version is not None

    def mute(self, uid: int, other: int) -> Operation[bool | None]:
        """Mute a user; see `SocialNetwork.mute`."""
        if not (yield from self._both(uid, other)):
            return False
        layout, key = self._layout, self._layout.owned("muted", uid)
        [size] = yield [layout.at_user(key, "SCARD", key)]
        if size >= self._limit:
            return False
        [added] = yield [Command(layout.users, key, ("SADD", key, other))]
        return True if added else None

    def unmute(self, uid: int, other: int) -> Operation[bool | None]:
        """Take that back; see `SocialNetwork.unmute`."""
        key = self._layout.owned("muted", uid)
        [removed] = yield [Command(self._layout.users, key, ("SREM", key, other))]
        return True if removed else None

    def muted(self, uid: int) -> Command:
        """Return the command that reads whom a user has muted."""
        key = self._layout.owned("muted", uid)
        return self._layout.at_user(key, "SMEMBERS", key)

    def _both(self, uid: int, other: int) -> Operation[bool]:
        if uid == other:
            raise InvalidArgumentError(
                f"{self._layout.name}: {uid} would block or mute itself", "give two users"
            )
        keys = [self._layout.owned("user", each) for each in (uid, other)]
        there = yield [self._layout.at_user(key, "EXISTS", key) for key in keys]
        return all(there)

    def _at_pair(self, uid: int, other: int, name: str, *args: int) -> Command:
        part = self._layout.part(uid, other)
        key = self._layout.relation("blocked", part, uid)
        return Command(self._layout.relations(part), key, (name, key, *args))
