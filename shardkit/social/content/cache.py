r"""Recent statuses in Redis, as copies of a store on disk that has them all.

::

    status:17           HASH  {"uid": "4", "posted": "1431864000.5", …}, expires    a copy
    {status:17}:gone    STRING  for a minute after 17 was changed or deleted        a tombstone
    status:recent       ZSET  {"17": 1431864000512, …}, if the number of copies is limited

The disk is authoritative; a copy may be lost at any time. A page of recent statuses takes one
exchange. Others are read from disk with one `Call`, and copied::

    read      HGETALL …  ──► hits
                 │ misses
                 ▼
              TIME t  ──►  disk  ──►  copy, unless there is a tombstone or t is 10 s old
    write     TIME t  ──►  disk  ──►  copy, by the same rule
    remove    unlink, tombstone  ──►  disk  ──►  unlink, tombstone again

**A deleted status never comes back.** A reader may read a status from disk just before it is
deleted there, and copy it afterwards. It passes the time t at which it started, by the shard's own
clock: within a minute of the deletion's second tombstone, the tombstone refuses the copy; later, t
is older than 10 seconds and is refused, however long the reader slept. The same holds for a status
that was replaced, and for a writer that a deletion overtook.

**A crash between disk and Redis is harmless.** If `write` reached only the disk, the next reader
finds the status there. `remove` unlinks the copy first: then either the status is still on disk,
and not deleted, or it is gone from both. A task that writes a status, and is repeated after the
status was deleted, writes nothing: the store remembers what was deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from shardkit.errors import InvalidArgumentError, ShardFailure
from shardkit.operations.commands import (
    Argument,
    Call,
    Command,
    Locate,
    Partial,
    Shard,
    To,
    Transaction,
    script_call,
)
from shardkit.operations.lua import script
from shardkit.operations.operation import Operation, pages
from shardkit.routing.keys import hash_tag, key_bytes
from shardkit.social.content.status_store import (
    AT_ONCE,
    LARGEST,
    Fields,
    StatusCursor,
    StatusStore,
    table_rows,
)
from shardkit.structures.base.arguments import check_integer

WEEK = 7 * 24 * 3600
SHORTEST = 60
# A copy is made only of what was read within the window; a tombstone outlives it. Milliseconds.
WINDOW = 10_000
TOMBSTONE_TTL = 60_000


class CachedStatuses:
    """Steps that read and write statuses through Redis and a store on disk.

    Its methods return steps, for ``yield from`` in an operation, on either face.

    Args:
        store: has all statuses.
        to: the component of the copies.
        key: returns the key of a copy for a status's id.
        ttl: the seconds after which a copy expires, 60 or more.
        limit: the most copies, of which the newest are kept; by default any number.
        index: with a ``limit``, the key of the ZSET that counts copies, about 76 bytes each.

    Raises:
        InvalidArgumentError: a number is out of range.
    """

    def __init__(
        self,
        store: StatusStore,
        to: To,
        key: Callable[[int], str] = "status:{}".format,
        *,
        ttl: int = WEEK,
        limit: int | None = None,
        index: str = "status:recent",
    ) -> None:
        check_integer("statuses", "ttl", ttl, SHORTEST, 2**31 - 1)
        if limit is not None:
            check_integer("statuses", "limit", limit, 1, 2**53)
        self.store = store
        self._to = to
        self._key = key
        self._ttl = ttl * 1000
        self._limit = limit
        self._index = index

    def read(self, ids: Iterable[int]) -> Operation[dict[int, dict[str, str]]]:
        """Return the fields of existing statuses by id, in the order of the ids.

        Args:
            ids: some thousands at most; duplicates are read once.

        Raises:
            ShardErrors: a shard with copies is down. A shard that refuses a new copy is no error:
                the status was read.

        Cost: one exchange for each 500; with misses two more, and one query of the store.
        """
        found: dict[int, dict[str, str]] = {}
        for batch in _batches(ids):
            copies = yield from self._copies(batch)
            misses = [status for status in batch if status not in copies]
            if misses:
                times = yield from self._times(misses)
                stored: dict[int, dict[str, str]] = yield Call(self.store.get_many, (misses,))
                yield from self._put(stored, times, keep=True)
                copies.update(stored)
            found.update((status, copies[status]) for status in batch if status in copies)
        return found

    def write(self, statuses: Mapping[int, Fields]) -> Operation[None]:
        """Write new statuses, to disk and then to Redis. May be repeated.

        A status that was removed meanwhile is not written.

        Args:
            statuses: fields by id; see `StatusStore.put_many`. To change statuses, use `replace`.

        Raises:
            InvalidArgumentError: a status is malformed; nothing was written.

        Cost: two exchanges and one transaction of the store for each 500.
        """
        table_rows(statuses)
        for batch in _batches(statuses):
            some = {status: statuses[status] for status in batch}
            times = yield from self._times(batch)
            deleted: set[int] = yield Call(self.store.put_many, (some,))
            for status in deleted:
                del some[status]
            yield from self._put(some, times, keep=False)

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
            ShardErrors: a shard is down; repeat the call. The disk may have been written, and then
                copies are gone.

        Cost: two exchanges and one transaction of the store for each 500.
        """
        table_rows(statuses)
        for batch in _batches(statuses):
            some = {status: statuses[status] for status in batch}
            yield self._removals(batch)
            yield Call(self.store.put_many, (some,))
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
        found: list[tuple[int, dict[str, str]]] = yield Call(query)
        return found

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
                    script_call(
                        self._to,
                        script("social/content/status_put"),
                        [key, _tombstone_key(key)],
                        sent,
                    )
                )
        yield Partial(batch)

    def _admit(self, statuses: Iterable[int]) -> Operation[set[int]]:
        """Register new copies; return the ids of those that exceed the limit."""
        sent = (self._limit or 0, self._ttl, *statuses)
        [reply] = yield Partial(
            [script_call(self._to, script("social/content/status_admit"), [self._index], sent)]
        )
        if isinstance(reply, ShardFailure):
            return set(statuses)  # copies that cannot be counted are not made
        return {int(status) for status in reply}

    def _removals(self, batch: list[int]) -> list[Command | Transaction]:
        commands: list[Command | Transaction] = []
        for status in batch:
            key = self._key(status)
            tombstone = _tombstone_key(key)
            commands.append(
                Transaction(
                    self._to,
                    key,
                    (
                        Command(self._to, key, ("UNLINK", key)),
                        Command(self._to, key, ("SET", tombstone, 1, "PX", TOMBSTONE_TTL)),
                    ),
                )
            )
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
