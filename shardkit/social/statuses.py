"""Statuses: one script creates a status and counts it; another deletes it.

Both scripts also note the remaining steps in the part's ``pending``, a ZSET of notes by time, where
`SocialNetwork.repair` finds what a process left half done.

With a store on disk (`status_cache`), Redis has the recent statuses only. A status is created in
Redis, written to disk before its post's note is removed, and expires. Missing ones are read from
disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation, pages
from shardkit.social.keys import IDEMPOTENCY_TTL, KeyLayout
from shardkit.social.models import (
    STATUS_FIELDS,
    Extra,
    Status,
    check_text,
    flat_extras,
    read_record,
    status_of,
    status_of_reply,
)
from shardkit.social.status_cache import TOMBSTONE_TTL, WINDOW, CachedStatuses
from shardkit.structures.base.damage import stored_integer

AT_ONCE = 1000


class CreatedStatus(NamedTuple):
    """A new status."""

    id: int
    time: int | None  # in microseconds; None if an earlier call has delivered it
    mode: str  # how its author's posts reach readers
    version: str  # of the mode


class DeletedStatus(Enum):
    """The result of deleting a status, as its script replies."""

    NONE = 0  # there was none, or it is another user's
    PUSHED = 1  # it is, or may be, in readers' timelines
    FETCHED = 2  # it is in its author's profile only


class Statuses:
    """A network's statuses; ``cache`` is None if all of them are in Redis."""

    def __init__(self, layout: KeyLayout, cache: CachedStatuses | None = None) -> None:
        self._layout = layout
        self._cache = cache

    def create(
        self,
        uid: int,
        message: str,
        extras: Mapping[str, Extra],
        idempotency_key: str | None,
        profile_limit: int,
    ) -> Operation[CreatedStatus | None]:
        """Write a status and count it; None if there is no such user."""
        layout = self._layout
        check_text(layout.name, "message", message)
        fields = ["message", message, *flat_extras(layout.name, extras, STATUS_FIELDS)]
        keys = [layout.owned("user", uid), layout.near("ids", uid), layout.near("pending", uid)]
        keys += layout.once("post", uid, idempotency_key)
        arguments = (*layout.new_record(uid), uid, IDEMPOTENCY_TTL, profile_limit, *fields)
        [reply] = yield [lua_call(layout.users, "social/create_status", keys, arguments)]
        if reply is None:
            return None
        id_, posted, mode, version = reply
        time = int(posted) if posted else None
        return CreatedStatus(int(id_), time, mode.decode(), version.decode())

    def persist(self, status: int) -> Operation[None]:
        """Write a new status to disk, if there is a store."""
        if self._cache is not None:
            yield from self._cache.persist([status])

    def remove_from_disk(self, status: int) -> Operation[None]:
        """Remove a deleted status from disk, if there is a store."""
        if self._cache is not None:
            yield from self._cache.remove([status])

    def delete(self, uid: int, status: int) -> Operation[DeletedStatus]:
        """Delete a user's status and decrease the count."""
        layout = self._layout
        if status % layout.parts != uid % layout.parts:
            return DeletedStatus.NONE  # a status belongs to the part of its author
        key = layout.owned("status", status)
        keys = [key, layout.owned("user", uid), layout.near("pending", status), f"{key}:gone"]
        while True:
            author, since = "", 0
            if self._cache is not None:
                [(seconds, micros)] = yield [layout.at_user(key, "TIME")]
                since = int(seconds) * 1000 + int(micros) // 1000
                stored = yield from self._cache.read([status])
                if status not in stored:
                    return DeletedStatus.NONE
                author = stored[status]["uid"]
            arguments = (uid, deletion_note(status, uid), author, since, WINDOW, TOMBSTONE_TTL)
            [deleted] = yield [lua_call(layout.users, "social/delete_status", keys, arguments)]
            if deleted != -1:  # the disk was read recently enough
                return DeletedStatus(deleted or 0)

    def get(self, statuses: Sequence[int]) -> Operation[list[Status | None]]:
        """Return statuses by id, None for unknown ids."""
        result: list[Status | None] = []
        for page in pages(statuses, AT_ONCE):
            _, some = yield from self.read((), page)
            result += some
        return result

    def authors(self, statuses: Sequence[int]) -> Operation[list[int | None]]:
        """Return the authors of statuses, None for unknown ids."""
        result: list[int | None] = []
        for page in pages(statuses, AT_ONCE):
            authors, _ = yield from self.read(page, ())  # one page, so this does not recurse
            result += authors
        return result

    def read(
        self, skipped: Sequence[int], wanted: Sequence[int]
    ) -> Operation[tuple[list[int | None], list[Status | None]]]:
        """Return the authors of some statuses, and others in full, None for unknown ids."""
        layout = self._layout
        if skipped and len(skipped) + len(wanted) > AT_ONCE:
            authors = yield from self.authors(skipped)
            _, statuses = yield from self.read((), wanted)
            return authors, statuses
        if self._cache is not None:
            stored = yield from self._cache.read([*skipped, *wanted])
            return (
                [int(stored[status]["uid"]) if status in stored else None for status in skipped],
                [status_of(stored.get(status)) for status in wanted],
            )
        keys = [layout.owned("status", status) for status in skipped]
        batch = [layout.at_user(key, "HGET", key, "uid") for key in keys]
        keys = [layout.owned("status", status) for status in wanted]
        batch += [layout.at_user(key, "HGETALL", key) for key in keys]
        replies = (yield batch) if batch else []
        authors = [
            None
            if uid is None
            else stored_integer(layout.users, layout.owned("status", status), "uid", uid, 1)
            for status, uid in zip(skipped, replies[: len(skipped)], strict=True)
        ]
        flats = replies[len(skipped) :]
        return authors, [
            read_record(layout.users, key, status_of_reply, flat)
            for key, flat in zip(keys, flats, strict=True)
        ]

    def is_on_disk(self, status: int) -> Operation[bool]:
        """Return whether a status that Redis does not have is on disk."""
        return self._cache is not None and bool((yield from self._cache.read([status])))


def post_note(status: int, uid: int) -> str:
    """Return the note of a post on its way to its readers."""
    return f"post:{status}:{uid}"


def deletion_note(status: int, uid: int) -> str:
    """Return the note of a deleted status that is being removed from timelines."""
    return f"delete:{status}:{uid}"
