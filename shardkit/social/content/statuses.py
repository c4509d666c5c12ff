"""Statuses: created in one script with the count of their user's posts, and deleted in one.

Both scripts also note what remains to be done, in the part's ``pending``: a ZSET of notes by time.
So whatever a process leaves half done is known to `SocialNetwork.repair`.

With a store on disk, Redis has the recent statuses only: a status is created in Redis, written to
disk before its post's note is removed, and expires; missing ones are read from disk
(`shardkit.social.content.cache`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from shardkit.operations.commands import script_call
from shardkit.operations.lua import script
from shardkit.operations.operation import Operation, pages
from shardkit.social.base.keys import REMEMBERED, KeyLayout
from shardkit.social.base.models import (
    STATUS_FIELDS,
    Extra,
    Status,
    check_text,
    flat_extras,
    read_record,
    status_of,
    status_of_reply,
)
from shardkit.social.content.cache import TOMBSTONE_TTL, WINDOW, CachedStatuses
from shardkit.structures.base.damage import stored_integer

AT_ONCE = 1000


class CreatedStatus(NamedTuple):
    """A status that was created.

    Attributes:
        id: its id.
        time: when it was posted, in microseconds; None if an earlier call did all of it.
        mode: how its author's posts reach readers; see `shardkit.social.relations.delivery_mode`.
        version: the version of the mode.
    """

    id: int
    time: int | None
    mode: str
    version: str


class DeletedStatus(Enum):
    """What became of a status that was to be deleted, as its script replies."""

    NONE = 0  # there was none, or it is another user's
    PUSHED = 1  # it is, or may be, in readers' timelines
    FETCHED = 2  # it is in its author's profile only


class Statuses:
    """A network's statuses.

    Args:
        layout: the network's keys.
        cache: reads and writes the store on disk; None if all statuses are in Redis.
    """

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
        part = uid % layout.parts
        keys = [layout.owned("user", uid), layout.near("ids", uid), layout.near("pending", uid)]
        keys += layout.once("post", uid, idempotency_key)
        suffix = layout.record_suffix(part)
        arguments = (suffix, part, layout.parts, uid, REMEMBERED, profile_limit, *fields)
        call = script_call(layout.users, script("social/content/create_status"), keys, arguments)
        [reply] = yield [call]
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
        """Delete a user's status and count; return what became of it."""
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
                found = yield from self._cache.read([status])
                if status not in found:
                    return DeletedStatus.NONE
                author = found[status]["uid"]
            arguments = (uid, deletion_note(status, uid), author, since, WINDOW, TOMBSTONE_TTL)
            delete = script("social/content/delete_status")
            [deleted] = yield [script_call(layout.users, delete, keys, arguments)]
            if deleted != -1:  # the disk was read recently enough
                return DeletedStatus(deleted or 0)

    def get(self, statuses: Sequence[int]) -> Operation[list[Status | None]]:
        """Return statuses by id, None for unknown ids."""
        found: list[Status | None] = []
        for page in pages(statuses, AT_ONCE):
            _, some = yield from self.read((), page)
            found += some
        return found

    def authors(self, statuses: Sequence[int]) -> Operation[list[int | None]]:
        """Return the authors of statuses, None for unknown ids."""
        found: list[int | None] = []
        for page in pages(statuses, AT_ONCE):
            authors, _ = yield from self.read(page, ())  # one page, so this does not recurse
            found += authors
        return found

    def read(
        self, skipped: Sequence[int], wanted: Sequence[int]
    ) -> Operation[tuple[list[int | None], list[Status | None]]]:
        """Return the authors of some statuses, and others in full, None for unknown ids.

        Cost: one exchange, if they are 1,000 or fewer together.
        """
        layout = self._layout
        if skipped and len(skipped) + len(wanted) > AT_ONCE:
            authors = yield from self.authors(skipped)
            _, statuses = yield from self.read((), wanted)
            return authors, statuses
        if self._cache is not None:
            found = yield from self._cache.read([*skipped, *wanted])
            return (
                [int(found[status]["uid"]) if status in found else None for status in skipped],
                [status_of(found.get(status)) for status in wanted],
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
    """Return the note of a deleted status that is being taken off timelines."""
    return f"delete:{status}:{uid}"
