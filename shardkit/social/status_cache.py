"""Recent statuses in Redis, as copies of a store on disk that has all of them.

The disk is authoritative; a copy may be lost at any time. A page of recent statuses takes one
exchange. Others are read from disk with one `Call`, and copied.

**A deleted status never comes back** (docs/status-store.md): a reader passes the time at which it
started, by the shard's clock, so late copies are refused, however long the reader slept. The same
rule protects replaced statuses, and deletions that overtake a writer.

**A crash between disk and Redis is harmless.** If `write` reached only the disk, the next reader
finds the status there. `remove` unlinks the copy first: then the status is either still on disk
and not deleted, or gone from both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from shardkit.errors import InvalidArgumentError, ShardFailure, counted
from shardkit.operations.arguments import shown
from shardkit.operations.commands import (
    Argument,
    Call,
    Command,
    Locate,
    Partial,
    Shard,
    To,
    Transaction,
)
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation, pages
from shardkit.routing.keys import hash_tag, key_bytes
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
from shardkit.structures.base.arguments import check_integer
from shardkit.structures.base.damage import stored_integer

Fields: TypeAlias = Mapping[str, str]
StatusCursor: TypeAlias = tuple[float, int]
TableRow: TypeAlias = tuple[int, int, float, str]

AT_ONCE = 500  # statuses in one exchange, statement or transaction
LARGEST = 2**63 - 1
MOST_FIELDS = 500
WEEK = 7 * 24 * 3600
SHORTEST = 60
# Only what was read within the window is copied; a tombstone outlives it. Milliseconds.
WINDOW = 10_000
TOMBSTONE_TTL = 60_000


class StatusStore(Protocol):
    """Stores all statuses on disk. Thread-safe; its methods block.

    Ids are never reused, and a removed status stays removed, even if it is written again later.

    Each method raises the database's own errors when the database fails.
    """

    def put_many(self, statuses: Mapping[int, Fields], /) -> set[int]:
        """Write statuses, replacing existing ones; they are on disk when this returns.

        Args:
            statuses: fields by id; they include ``uid``, the author's id, and ``posted``, the time
                as a number, such as microseconds since 1970. Each batch of 500 is written
                atomically, but not all together: write them again after an interruption.

        Returns:
            The ids of statuses that were removed before, and so were not written.

        Raises:
            InvalidArgumentError: a status is malformed; nothing was written.
        """
        raise NotImplementedError

    def add_many(self, statuses: Mapping[int, Fields], /) -> set[int]:
        """Write statuses without replacing existing ones; otherwise as `put_many`."""
        raise NotImplementedError

    def get_many(self, ids: Iterable[int], /) -> dict[int, dict[str, str]]:
        """Return the fields of existing statuses, by id."""
        raise NotImplementedError

    def remove_many(self, ids: Iterable[int], /) -> int:
        """Remove statuses for good, written or not; return how many existed."""
        raise NotImplementedError

    def by_author(
        self,
        uid: int,
        *,
        limit: int = 30,
        cursor: StatusCursor | None = None,
        oldest_first: bool = False,
    ) -> list[tuple[int, dict[str, str]]]:
        """Return a page of an author's statuses, ids with fields, by (time, id).

        Args:
            uid: the author's id.
            limit: the most statuses to return, up to 10,000.
            cursor: the (time, id) of the previous page's last status.
            oldest_first: go forward in time; by default the newest come first.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Close its connections."""


class CachedStatuses:
    """Steps that read and write statuses through Redis and a store on disk, which has all.

    Its methods return steps, for ``yield from`` in an operation, on either face. The copies are in
    the component ``to``, under a ``key`` for each id, and expire after ``ttl`` seconds, 60 or more.
    With a ``limit``, the newest copies are kept, and the ZSET ``index`` counts them, about 76 bytes
    each.

    Raises:
        InvalidArgumentError: a number is out of range.
    """

    def __init__(
        self,
        store: StatusStore,
        to: To,
        key: Callable[[int], str] = "status:{}".format,
        *,
        ttl: int | timedelta = WEEK,
        limit: int | None = None,
        index: str = "status:recent",
    ) -> None:
        seconds = int(ttl.total_seconds()) if isinstance(ttl, timedelta) else ttl
        check_integer("statuses", "ttl", seconds, SHORTEST, 2**31 - 1)
        if limit is not None:
            check_integer("statuses", "limit", limit, 1, 2**53)
        self.store = store
        self._to = to
        self._key = key
        self._ttl = seconds * 1000
        self._limit = limit
        self._index = index

    def read(self, ids: Iterable[int]) -> Operation[dict[int, dict[str, str]]]:
        """Return the fields of existing statuses by id, in the order of some thousand ids.

        Raises:
            ShardErrors: a shard with copies is down. A shard that refuses a new copy is no error:
                the status was read.

        Cost: one exchange for each 500; with misses two more, and one query of the store.
        """
        statuses: dict[int, dict[str, str]] = {}
        for batch in _batches(ids):
            copies = yield from self._copies(batch)
            misses = [status for status in batch if status not in copies]
            if misses:
                times = yield from self._times(misses)
                stored: dict[int, dict[str, str]] = yield Call(self.store.get_many, (misses,))
                yield from self._put(stored, times, keep=True)
                copies.update(stored)
            statuses.update((status, copies[status]) for status in batch if status in copies)
        return statuses

    def write(self, statuses: Mapping[int, Fields]) -> Operation[None]:
        """Write new statuses, to disk and then to Redis. May be repeated.

        They are fields by id; see `StatusStore.put_many`. A status that is removed in the meantime
        is not written. To change statuses, use `replace`.

        Raises:
            InvalidArgumentError: a status is malformed; nothing was written.

        Cost: two exchanges and one transaction of the store for each 500.
        """
        table_rows(statuses)
        for batch in _batches(statuses):
            page = {status: statuses[status] for status in batch}
            times = yield from self._times(batch)
            deleted: set[int] = yield Call(self.store.put_many, (page,))
            for status in deleted:
                del page[status]
            yield from self._put(page, times, keep=False)

    def persist(self, ids: Iterable[int]) -> Operation[int]:
        """Write statuses that a script created in Redis to disk; then their copies may expire.

        Until this has run, they are in Redis only and do not expire. Repeat it after an error or a
        crash.

        Returns:
            The number of statuses that were in Redis and are on disk now.

        Cost: two exchanges (three with a ``limit``) and one transaction of the store for each 500.
        """
        persisted = 0
        for batch in _batches(ids):
            copies = yield from self._copies(batch)
            if not copies:
                continue
            dropped: set[int] = yield Call(self.store.add_many, (copies,))  # deleted before
            persisted += len(copies.keys() - dropped)
            if self._limit is not None:
                dropped |= yield from self._admit(copies)
            expiring = copies.keys() - dropped
            yield [
                *(self._at(status, "PEXPIRE", self._ttl, idempotent=True) for status in expiring),
                *(self._at(status, "UNLINK") for status in dropped),
            ]
        return persisted

    def replace(self, statuses: Mapping[int, Fields]) -> Operation[None]:
        """Change statuses on disk and drop their copies. May be repeated.

        For a minute they are read from disk, without a copy.

        Raises:
            InvalidArgumentError: a status is malformed; nothing was written.
            ShardErrors: a shard is down; repeat the call. The disk may have been written; then the
                copies are gone.

        Cost: two exchanges and one transaction of the store for each 500.
        """
        table_rows(statuses)
        for batch in _batches(statuses):
            page = {status: statuses[status] for status in batch}
            yield self._removals(batch)
            yield Call(self.store.put_many, (page,))
            yield self._removals(batch)

    def remove(self, ids: Iterable[int]) -> Operation[int]:
        """Remove statuses; return how many were on disk. Repeat it after an error.

        Cost: two exchanges and one transaction of the store for each 500.
        """
        removed = 0
        for batch in _batches(ids):
            yield self._removals(batch)
            removed += yield Call(self.store.remove_many, (batch,))
            yield self._removals(batch)
        return removed

    def by_author(
        self,
        uid: int,
        *,
        limit: int = 30,
        cursor: StatusCursor | None = None,
        oldest_first: bool = False,
    ) -> Operation[list[tuple[int, dict[str, str]]]]:
        """Return a page of an author's statuses from disk, however old; see `StatusStore`.

        Cost: one query of the store, no exchange.
        """
        query = partial(
            self.store.by_author, uid, limit=limit, cursor=cursor, oldest_first=oldest_first
        )
        page: list[tuple[int, dict[str, str]]] = yield Call(query)
        return page

    def _copies(self, batch: list[int]) -> Operation[dict[int, dict[str, str]]]:
        replies = yield [self._at(status, "HGETALL") for status in batch]
        return {
            status: dict(zip(texts[::2], texts[1::2], strict=True))
            for status, reply in zip(batch, replies, strict=True)
            if (texts := [word.decode() for word in reply])
        }

    def _times(self, batch: list[int]) -> Operation[dict[int, int]]:
        """Return the time of each status's server in milliseconds. Cost: one command a server."""
        keys = [self._key(status) for status in batch]
        places: list[tuple[Shard, int | None]] = yield Locate([(self._to, key) for key in keys])
        key_on = dict(zip(places, keys, strict=True))
        replies = yield [Command(self._to, key, ("TIME",)) for key in key_on.values()]
        times = {
            place: int(reply[0]) * 1000 + int(reply[1]) // 1000
            for place, reply in zip(key_on, replies, strict=True)
        }
        return {status: times[place] for status, place in zip(batch, places, strict=True)}

    def _put(
        self, statuses: Mapping[int, Fields], times: Mapping[int, int], *, keep: bool
    ) -> Operation[None]:
        """Make copies. Errors are ignored: the disk is authoritative."""
        if not statuses:
            return
        batch: list[Command | Transaction] = []
        dropped: set[int] = set()
        if self._limit is not None:
            dropped = yield from self._admit(statuses)
            batch += [self._at(status, "UNLINK") for status in dropped - statuses.keys()]
        for status, fields in statuses.items():
            if status not in dropped:
                key = self._key(status)
                flat = [text for pair in fields.items() for text in pair]
                sent: list[Argument] = [times[status], WINDOW, self._ttl, int(keep), *flat]
                batch.append(
                    lua_call(self._to, "social/status_put", [key, _tombstone_key(key)], sent)
                )
        yield Partial(batch)

    def _admit(self, statuses: Iterable[int]) -> Operation[set[int]]:
        """Register new copies; return the ids of those that exceed the limit."""
        sent = (self._limit or 0, self._ttl, *statuses)
        [reply] = yield Partial([lua_call(self._to, "social/status_admit", [self._index], sent)])
        if isinstance(reply, ShardFailure):
            return set(statuses)  # copies that cannot be counted are not made
        return {int(status) for status in reply}

    def _removals(self, batch: list[int]) -> list[Command | Transaction]:
        commands: list[Command | Transaction] = []
        for status in batch:
            key = self._key(status)
            tombstone = ("SET", _tombstone_key(key), 1, "PX", TOMBSTONE_TTL)
            both = (Command(self._to, key, ("UNLINK", key)), Command(self._to, key, tombstone))
            commands.append(Transaction(self._to, key, both))
        return commands

    def _at(self, status: int, name: str, *args: int, idempotent: bool = False) -> Command:
        key = self._key(status)
        return Command(self._to, key, (name, key, *args), idempotent=idempotent)


def _tombstone_key(key: str) -> str:
    """Return the key of a copy's tombstone, which has the same hash tag."""
    whole = key_bytes(key)
    if hash_tag(whole) != whole:
        return f"{key}:gone"
    if "}" in key:
        raise InvalidArgumentError(f"key {key!r} of a status", "give one without }, or with a tag")
    return f"{{{key}}}:gone"


def _batches(ids: Iterable[int]) -> Iterator[list[int]]:
    unique = dict.fromkeys(ids)
    for status in unique:
        check_integer("statuses", "id", status, 1, LARGEST)
    return pages(unique, AT_ONCE)


def table_rows(statuses: Mapping[int, Fields]) -> list[TableRow]:
    """Return statuses as rows of a table: id, author, time, and all fields as JSON."""
    rows = []
    for status, fields in statuses.items():
        check_integer("status", "id", status, 1, LARGEST)
        if len(fields) > MOST_FIELDS:
            raise InvalidArgumentError(
                f"status {status}: {counted(len(fields), 'field')}", f"give at most {MOST_FIELDS}"
            )
        for name, value in fields.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise InvalidArgumentError(
                    f"status {status}: field {shown(name)} is {shown(value)}", "give text"
                )
        try:
            uid, posted = int(fields["uid"]), float(fields["posted"])
        except KeyError as missing:
            raise InvalidArgumentError(
                f"status {status}: no field {missing}", "give uid and posted"
            ) from None
        except ValueError:
            uid, posted = 0, math.nan
        if not 1 <= uid <= LARGEST or not math.isfinite(posted):
            raise InvalidArgumentError(
                f"status {status}: uid={shown(fields['uid'])} posted={shown(fields['posted'])}",
                "give the author's id, and the time as a number",
            )
        rows.append((status, uid, posted, json.dumps(dict(fields))))
    return rows


READ_AT_ONCE = 1000


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
    """A network's statuses; ``cache`` is None if all of them are in Redis.

    One script creates a status and counts it; another deletes it. Both also note the remaining
    steps in the part's ``pending``, a ZSET of notes by time, for `SocialNetwork.repair`. With a
    store, a status is created in Redis, and written to disk before its post's note is removed.
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
        for page in pages(statuses, READ_AT_ONCE):
            _, statuses_read = yield from self.read((), page)
            result += statuses_read
        return result

    def authors(self, statuses: Sequence[int]) -> Operation[list[int | None]]:
        """Return the authors of statuses, None for unknown ids."""
        result: list[int | None] = []
        for page in pages(statuses, READ_AT_ONCE):
            authors, _ = yield from self.read(page, ())  # one page, so this does not recurse
            result += authors
        return result

    def read(
        self, skipped: Sequence[int], wanted: Sequence[int]
    ) -> Operation[tuple[list[int | None], list[Status | None]]]:
        """Return the authors of some statuses, and others in full, None for unknown ids."""
        layout = self._layout
        if skipped and len(skipped) + len(wanted) > READ_AT_ONCE:
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
