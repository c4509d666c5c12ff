r"""Recent statuses in Redis before a store on disk that has them all.

::

    status:17           HASH  {"uid": "4", "posted": "1431864000.5", …}, expires    a copy
    {status:17}:gone    STRING  for a minute after 17 was changed or deleted        a mark
    status:recent       ZSET  {"17": 1431864000512, …}, if the copies are limited in number

The disk is right; a copy is one that nobody misses. A page is read in one exchange when its
statuses are recent. Others come from the disk by one `Call`, and are put back::

    read      HGETALL …  ──► hits
                 │ misses
                 ▼
              TIME t  ──►  disk  ──►  put back, unless the mark is there or t is 10 s old
    write     TIME t  ──►  disk  ──►  put, by the same rule
    delete    unlink, mark  ──►  disk  ──►  unlink, mark again

**A deleted status never comes back.** A reader may have read a status from the disk just before it
was deleted there, and put it back afterwards. It says the time t, by the shard's own clock, at
which it set out: if the put is executed within a minute of the deletion's second mark, the mark
refuses it; if later, t is older than 10 seconds, and that refuses it, however long the reader
slept. The same holds for a status that was replaced, and for a writer that a deletion overtook.

**A crash between disk and Redis is harmless.** After `write` wrote to the disk only, the next
reader finds the status there. `delete` unlinks the copy first: then either the status is still on
disk, and not deleted, or it is gone from both. A task that writes a status, and is repeated after
the status was deleted, writes nothing: the store remembers what was deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from shardkit.errors import InvalidArgumentError, ShardFailure
from shardkit.lua import script
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
from shardkit.operations.operation import Operation, pages
from shardkit.routing.keys import hash_tag, key_bytes
from shardkit.social.content.sqlite_store import (
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
# A copy is made of what was read at most so long ago; the mark stays longer than that.
WINDOW = 10_000
MARKED = 60_000


class CachedStatuses:
    """Steps that read and write statuses through Redis and a store on disk.

    Its methods return steps, for ``yield from`` in an operation, on either face.

    Args:
        store: where all statuses are.
        to: the component of the copies.
        key: gives the key of a copy by the status's id.
        ttl: after how many seconds a copy expires: what bounds the copies by age. 60 or more.
        limit: how many copies there are at most, the newest made; without it any number.
        index: the key of the ZSET that counts them, some 76 bytes a copy; see ``limit``.

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
        """Return the fields of those statuses that there are, by id, in the order asked for.

        Args:
            ids: at most some thousands; those asked for twice are read once.

        Raises:
            ShardErrors: a shard that would have a copy is away. One that refuses to take a copy
                is no error: the status was read.

        Cost: one exchange for every 500; with misses two more, and one query of the store.
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

        One that was deleted meanwhile is not written.

        Args:
            statuses: fields by id; see `StatusStore.put_many`. To change statuses, `replace`.

        Raises:
            InvalidArgumentError: a status is none; nothing was written.

        Cost: two exchanges and one transaction of the store for every 500.
        """
        table_rows(statuses)
        for batch in _batches(statuses):
            some = {status: statuses[status] for status in batch}
            times = yield from self._times(batch)
            deleted: set[int] = yield Call(self.store.put_many, (some,))
            for status in deleted:
                del some[status]
            yield from self._put(some, times, keep=False)

    def keep(self, ids: Iterable[int]) -> Operation[int]:
        """Write statuses that were created in Redis to disk; then their copies may expire.

        For networks whose statuses are created by a script: until this has run they are in Redis
        only, and do not expire. May be repeated, and is, after an error or a crash.

        Returns:
            how many there were in Redis, and are on disk.

        Cost: two exchanges (three with a ``limit``) and one transaction of the store for every 500.
        """
        kept = 0
        for batch in _batches(ids):
            copies = yield from self._copies(batch)
            if not copies:
                continue
            dropped: set[int] = yield Call(self.store.add_many, (copies,))  # were deleted
            kept += len(copies.keys() - dropped)
            if self._limit is not None:
                dropped |= yield from self._admit(copies)
            expiring = copies.keys() - dropped
            yield [
                *(self._at(status, "PEXPIRE", self._ttl, idempotent=True) for status in expiring),
                *(self._at(status, "UNLINK") for status in dropped),
            ]
        return kept

    def replace(self, statuses: Mapping[int, Fields]) -> Operation[None]:
        """Change statuses: whoever reads them afterwards reads what is on disk. May be repeated.

        For a minute they are read from disk, and no copy is made.

        Raises:
            InvalidArgumentError: a status is none; nothing was written.
            ShardErrors: a shard is away. If it was there before the disk was written, copies are
                gone; write again.

        Cost: two exchanges and one transaction of the store for every 500.
        """
        table_rows(statuses)
        for batch in _batches(statuses):
            some = {status: statuses[status] for status in batch}
            yield self._marks(batch)
            yield Call(self.store.put_many, (some,))
            yield self._marks(batch)

    def delete(self, ids: Iterable[int]) -> Operation[int]:
        """Delete statuses; return how many were on disk. May be repeated, and is, after an error.

        Cost: two exchanges and one transaction of the store for every 500.
        """
        removed = 0
        for batch in _batches(ids):
            yield self._marks(batch)
            removed += yield Call(self.store.delete_many, (batch,))
            yield self._marks(batch)
        return removed

    def of_owner(
        self,
        uid: int,
        *,
        before: StatusCursor | None = None,
        after: StatusCursor | None = None,
        num: int = 30,
    ) -> Operation[list[tuple[int, dict[str, str]]]]:
        """Return a page of an author's statuses from disk, however old; see `StatusStore`.

        Cost: one query of the store, no exchange.
        """

        def page() -> list[tuple[int, dict[str, str]]]:
            return self.store.of_owner(uid, before=before, after=after, num=num)

        found: list[tuple[int, dict[str, str]]] = yield Call(page)
        return found

    def _copies(self, batch: list[int]) -> Operation[dict[int, dict[str, str]]]:
        replies = yield [self._at(status, "HGETALL", idempotent=True) for status in batch]
        return {
            status: dict(zip(texts[::2], texts[1::2], strict=True))
            for status, reply in zip(batch, replies, strict=True)
            if (texts := [word.decode() for word in reply])
        }

    def _times(self, batch: list[int]) -> Operation[dict[int, int]]:
        """Return the time of each status's server, in milliseconds; one command a server."""
        keys = [self._key(status) for status in batch]
        places: list[tuple[Shard, int | None]] = yield Locate([(self._to, key) for key in keys])
        asked = dict(zip(places, keys, strict=True))
        replies = yield [
            Command(self._to, key, ("TIME",), idempotent=True) for key in asked.values()
        ]
        times = {
            place: int(reply[0]) * 1000 + int(reply[1]) // 1000
            for place, reply in zip(asked, replies, strict=True)
        }
        return {status: times[place] for status, place in zip(batch, places, strict=True)}

    def _put(
        self, statuses: Mapping[int, Fields], times: Mapping[int, int], *, keep: bool
    ) -> Operation[None]:
        """Make copies. A failure is none of the caller's: the disk has the statuses."""
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
                        self._to, script("social/content/status_put"), [key, _mark_key(key)], sent
                    )
                )
        yield Partial(batch)

    def _admit(self, statuses: Iterable[int]) -> Operation[set[int]]:
        """Note that copies are made; return the ids of those that there shall not be."""
        sent = (self._limit or 0, self._ttl, *statuses)
        [reply] = yield Partial(
            [script_call(self._to, script("social/content/status_admit"), [self._index], sent)]
        )
        if isinstance(reply, ShardFailure):
            return set(statuses)  # what cannot be counted is not kept
        return {int(status) for status in reply}

    def _marks(self, batch: list[int]) -> list[Command | Transaction]:
        commands: list[Command | Transaction] = []
        for status in batch:
            key = self._key(status)
            mark = _mark_key(key)
            commands.append(
                Transaction(
                    self._to,
                    key,
                    (
                        Command(self._to, key, ("UNLINK", key)),
                        Command(self._to, key, ("SET", mark, 1, "PX", MARKED)),
                    ),
                )
            )
        return commands

    def _at(self, status: int, name: str, *args: int, idempotent: bool = False) -> Command:
        key = self._key(status)
        return Command(self._to, key, (name, key, *args), idempotent=idempotent)


def _mark_key(key: str) -> str:
    """Return the key of the mark beside a copy: it has the same tag."""
    whole = key_bytes(key)
    if hash_tag(whole) != whole:
        return f"{key}:gone"
    if "}" in key:
        raise InvalidArgumentError(f"key {key!r} of a status", "give one without }, or with a tag")
    return f"{{{key}}}:gone"


def _batches(ids: Iterable[int]) -> Iterator[list[int]]:
    every = dict.fromkeys(ids)
    for status in every:
        check_integer("statuses", "id", status, 1, LARGEST)
    return pages(every, AT_ONCE)
