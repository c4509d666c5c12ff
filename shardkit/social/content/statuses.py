"""Statuses: created in one script with the count of their user's posts, and deleted in one.

Both scripts also note what has still to be done, in the part's ``pending``: a ZSET of what and
since when. So however a process ends, what it left half done is known (`SocialNetwork.repair`).

With a store on disk (`content.sqlite_store`), Redis has the recent statuses only: a status is
created in Redis, kept on disk before its post is crossed off, and expires; what is missing is read
from disk (`shardkit.social.content.cache`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shardkit.lua import script
from shardkit.operations.commands import script_call
from shardkit.operations.operation import Operation, pages
from shardkit.social.base.keys import KeyLayout
from shardkit.social.base.models import (
    STATUS_FIELDS,
    Extra,
    Status,
    check_text,
    flat_extras,
    status_of,
    status_of_reply,
)
from shardkit.social.content.cache import MARKED, WINDOW, CachedStatuses

AT_ONCE = 1000


class CreatedStatus(NamedTuple):
    """A status that was created.

    Attributes:
        id: its id.
        time: when it was posted, in microseconds.
        mode: how its author's posts reach readers; see `shardkit.social.relations.delivery_mode`.
        version: the version of the mode.
    """

    id: int
    time: int
    mode: str
    version: str


class Statuses:
    """The steps of a network's statuses.

    Args:
        layout: where the keys are.
        cache: reads and writes those that are on disk; None if all are in Redis.
    """

    def __init__(self, layout: KeyLayout, cache: CachedStatuses | None = None) -> None:
        self._layout = layout
        self._cache = cache

    def create(
        self, uid: int, message: str, extras: Mapping[str, Extra]
    ) -> Operation[CreatedStatus | None]:
        """Write a status and count it; None if there is no such user."""
        layout = self._layout
        check_text(layout.name, "message", message)
        fields = ["message", message, *flat_extras(layout.name, extras, STATUS_FIELDS)]
        part = uid % layout.parts
        keys = [layout.owned("user", uid), layout.near("ids", uid), layout.near("pending", uid)]
        arguments = (layout.of_part("status", part) + ":", part, layout.parts, uid, *fields)
        call = script_call(layout.users, script("social/content/create_status"), keys, arguments)
        [reply] = yield [call]
        if reply is None:
            return None
        return CreatedStatus(reply[0], reply[1], reply[2].decode(), reply[3].decode())

    def keep(self, status: int) -> Operation[None]:
        """Write a status that was created to disk, if there is one."""
        if self._cache is not None:
            yield from self._cache.keep([status])

    def forget(self, status: int) -> Operation[None]:
        """Remove a status that was deleted from disk, if there is one."""
        if self._cache is not None:
            yield from self._cache.delete([status])

    def delete(self, uid: int, status: int) -> Operation[bool]:
        """Remove a status of a user and count; whether there was one."""
        layout = self._layout
        if status % layout.parts != uid % layout.parts:
            return False  # a status is of the part of its author
        key = layout.owned("status", status)
        keys = [key, layout.owned("user", uid), layout.near("pending", status), f"{key}:gone"]
        while True:
            author, since = "", 0
            if self._cache is not None:
                [(seconds, micros)] = yield [layout.at_user(key, "TIME")]
                since = int(seconds) * 1000 + int(micros) // 1000
                found = yield from self._cache.read([status])
                if status not in found:
                    return False
                author = found[status]["uid"]
            arguments = (uid, deletion_note(status, uid), author, since, WINDOW, MARKED)
            call = script_call(
                layout.users, script("social/content/delete_status"), keys, arguments
            )
            [deleted] = yield [call]
            if deleted != -1:
                return deleted is not None

    def get(self, statuses: Sequence[int]) -> Operation[list[Status | None]]:
        """Return statuses by id, None for those that are not there."""
        found: list[Status | None] = []
        for page in pages(statuses, AT_ONCE):
            _, some = yield from self.look((), page)
            found += some
        return found

    def look(
        self, passed: Sequence[int], wanted: Sequence[int]
    ) -> Operation[tuple[list[int | None], list[Status | None]]]:
        """Return the authors of some statuses, and others in full.

        None stands for those that are not there.

        Cost: one exchange, if they are 1,000 or fewer together.
        """
        layout = self._layout
        if passed and len(passed) + len(wanted) > AT_ONCE:
            known = yield from self.authors(passed)
            _, shown = yield from self.look((), wanted)
            return known, shown
        if self._cache is not None:
            found = yield from self._cache.read([*passed, *wanted])
            return (
                [int(found[status]["uid"]) if status in found else None for status in passed],
                [status_of(found.get(status)) for status in wanted],
            )
        keys = [layout.owned("status", status) for status in passed]
        batch = [layout.at_user(key, "HGET", key, "uid") for key in keys]
        keys = [layout.owned("status", status) for status in wanted]
        batch += [layout.at_user(key, "HGETALL", key) for key in keys]
        replies = (yield batch) if batch else []
        authors = [None if uid is None else int(uid) for uid in replies[: len(passed)]]
        return authors, list(map(status_of_reply, replies[len(passed) :]))

    def is_there(self, status: int) -> Operation[bool]:
        """Say whether a status that Redis has not is on disk."""
        return self._cache is not None and bool((yield from self._cache.read([status])))

    def authors(self, statuses: Sequence[int]) -> Operation[list[int | None]]:
        """Return the authors of statuses, None for those that are not there."""
        found: list[int | None] = []
        for page in pages(statuses, AT_ONCE):
            authors, _ = yield from self.look(page, ())  # a page, so it does not come back here
            found += authors
        return found


def post_note(status: int, uid: int) -> str:
    """Return what is pending while a post is on its way to its readers."""
    return f"post:{status}:{uid}"


def deletion_note(status: int, uid: int) -> str:
    """Return what is pending while a deleted status is taken off timelines."""
    return f"delete:{status}:{uid}"
