"""Mailboxes: messages that wait for their recipient.

::

    send ──► messages  ZSET  JSON by id ── fetch ──► leased  ZSET  id by the end of the lease
                 │                                     │   │
                 │ pop                     acknowledge │   │ release, or the lease ends
                 ▼                                     ▼   └──────► fetched again, before others
              removed                               removed

A mailbox has four keys with the hash tag of its owner, so it lives on one server, and each call is
one script there, by its clock; many mailboxes are spread over all shards::

    mailbox:{anna}          ZSET  {"id":7,"at":1733000000.12,"sender":"ben","body":"hello"}  7
    mailbox:{anna}:leased   ZSET  7  1733000060120000
    mailbox:{anna}:state    HASH  format 1, last 7, next 7, bytes 63, dropped 0
    mailbox:{anna}:waiters  SET   readers that wait for the next message

A message takes about 60 bytes more than its text. The state, about 100 bytes, stays when a mailbox
is empty, so that an id is never used again.

After Redis in Action, section 6.5.1, whose reader loses popped messages when it dies.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from shardkit.errors import DamagedDataError, InvalidArgumentError
from shardkit.messaging.tagged import (
    MOST_AT_ONCE,
    Message,
    Tagged,
    decode_message,
    encode_message,
    ids_of,
    seconds_until,
)
from shardkit.operations.arguments import Seconds, rows_of, shown
from shardkit.operations.cancellation import surely
from shardkit.operations.commands import Argument, Command, CommandList, Replies, Transaction
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Page,
    Stream,
    operation,
    pages,
    stream,
)
from shardkit.structures.base.arguments import check_integer, check_seconds, wait_seconds
from shardkit.structures.base.check import (
    Damage,
    Suspicion,
    Suspicions,
    confirmed,
    raised_twice,
    script_damage,
)
from shardkit.structures.base.damage import damage
from shardkit.structures.base.server_clock import ServerClock

REFUSE = "refuse"
DROP_OLDEST = "drop oldest"
UNLIMITED = 2**40
LEASE = 60.0
LONGEST_LEASE = 30 * 86_400.0
_CLEARS = "clear(owner) removes all messages"


class MailboxCounts(NamedTuple):
    """The contents of a mailbox.

    Attributes:
        unread: messages that were not acknowledged or removed, including leased ones.
        leased: fetched messages that were not acknowledged, even after the lease has ended.
        dropped: messages that were ever dropped because the mailbox was full.
        bytes: the size of the stored messages.
    """

    unread: int
    leased: int
    dropped: int
    bytes: int


class Mailboxes(Tagged[Face]):
    """Mailboxes by owner, each on the shard of its owner's name. Made by ``kit.mailboxes``.

    Args:
        limit: the most messages of a mailbox; None for no limit.
        byte_limit: the most bytes of a mailbox's messages, as stored; None for no limit.
        policy: how `send` treats a full mailbox: ``"refuse"``, or ``"drop oldest"``, even leased
            messages.

    Limits apply to the sending process; they are not stored.
    """

    deferred: DeferredFace[Mailboxes[Deferred]]
    _scripts, _tag = "mailbox", "owner"
    _parts = (
        ("", "ZCARD"),
        (":leased", "ZCARD"),
        (":state", "HLEN"),
        (":waiters", "SCARD"),
    )

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str = "mailbox",
        limit: int | None = None,
        byte_limit: int | None = None,
        policy: str = REFUSE,
        clock: ServerClock | None = None,
    ) -> None:
        super().__init__(driver, component, name, clock)
        for field, value in (("limit", limit), ("byte_limit", byte_limit)):
            if value is not None:
                check_integer(name, field, value, 1, UNLIMITED)
        if policy not in (REFUSE, DROP_OLDEST):
            raise InvalidArgumentError(
                f"{name}: policy={shown(policy)}", f'give "{REFUSE}" or "{DROP_OLDEST}"'
            )
        self._limits = (
            limit or UNLIMITED,
            byte_limit or UNLIMITED,
            "drop" if policy == DROP_OLDEST else "refuse",
        )

    # ---- for senders

    @operation
    def send(self, to: str, sender: str, body: Any) -> Operation[int | None]:
        """Send a message; return its id, or None if the mailbox is full and refuses.

        Args:
            body: data that JSON can represent, at most 1 MiB.

        Raises:
            ShardErrors: the server failed; the error tells whether it may have been sent. It is not
                sent a second time.

        Cost: one exchange, O(log n); O(log n) more for each message that is dropped.
        """
        sent = encode_message(self.name, sender, body)
        [[id_]] = yield [self._send(to, [sent])]
        return id_ or None

    @operation
    def send_many(self, messages: Iterable[tuple[str, str, Any]]) -> Operation[list[int | None]]:
        """Send messages to any mailboxes, 1,000 an exchange; return each one's id, or None.

        Args:
            messages: tuples of the mailbox's owner, the sender and the body; read lazily.

        Raises:
            InvalidArgumentError: a message is not valid; earlier pages were already sent.
            ShardErrors: some servers failed; the others have the messages of this page.
        """
        ids: list[int | None] = []
        rows = rows_of(self.name, "messages", messages, "(to, sender, body)", 3, 3)
        for page in pages(rows, MOST_AT_ONCE):
            places: dict[str, list[int]] = {}
            sent = []
            for n, (to, sender, body) in enumerate(page):
                places.setdefault(to, []).append(n)
                sent.append(encode_message(self.name, sender, body))
            batch = [self._send(to, [sent[n] for n in at]) for to, at in places.items()]
            replies = yield batch
            page_ids: list[int | None] = [None] * len(page)
            for at, reply in zip(places.values(), replies, strict=True):
                for n, id_ in zip(at, reply, strict=True):
                    page_ids[n] = id_ or None
            ids += page_ids
        return ids

    @operation
    def unread(self, owner: str) -> Operation[int]:
        """Return the number of messages not acknowledged or removed. Cost: one exchange, O(1)."""
        [count] = yield from Mailboxes.unread_many.steps(self, [owner])
        return count

    @operation
    def unread_many(self, owners: Sequence[str]) -> Operation[list[int]]:
        """Return `unread` of many mailboxes, in order. Cost: one exchange, O(1) each."""
        return [unread for unread, *_ in (yield [self._call("counts", owner) for owner in owners])]

    # ---- for recipients

    @operation
    def fetch(
        self,
        owner: str,
        limit: int = 10,
        *,
        lease: Seconds = LEASE,
        timeout: Seconds | None = 0.0,
    ) -> Operation[list[Message]]:
        """Lease the oldest unleased messages: each is delivered at least once.

        Args:
            limit: the most messages, 1 to 1,000.
            lease: the seconds after which unacknowledged messages are fetched again.
            timeout: the most seconds to wait for a message; 0 not to wait, None to wait for ever.

        Returns:
            The messages, oldest first; messages with an ended lease come before others.

        Raises:
            DamagedDataError: a stored value is not a message. `acknowledge` with its id, which the
                error contains, removes it.

        Cancelling an async call releases the messages that it did not return.

        Cost: one exchange, O(limit log n); while waiting, one every ten seconds.
        """
        microseconds = round(check_seconds(self.name, "lease", lease, 0.001, LONGEST_LEASE) * 1e6)
        return (yield from self._fetch(owner, limit, microseconds, timeout))

    @operation
    def pop(
        self, owner: str, limit: int = 10, *, timeout: Seconds | None = 0.0
    ) -> Operation[list[Message]]:
        """Remove and return the oldest messages: each is delivered at most once.

        Messages are lost if this process dies, or its connection breaks, before they are used.

        The arguments and the cost are those of `fetch`. Cancelling an async call puts back the
        messages that it did not return.
        """
        return (yield from self._fetch(owner, limit, 0, timeout))

    @stream
    def pop_all(self, owner: str) -> Stream[Message]:
        """Remove and return all messages, 1,000 an exchange, as `pop` does."""
        while messages := (yield from self._fetch(owner, MOST_AT_ONCE, 0, 0)):
            yield Page(messages)

    @operation
    def acknowledge(self, owner: str, messages: Iterable[int | Message]) -> Operation[int]:
        """Remove messages that were processed.

        Args:
            messages: the messages or their ids.

        Returns:
            The number of messages that existed. A message may be acknowledged after its lease has
            ended.

        Cost: one exchange for 1,000 messages, O(log n) each.
        """
        removed = 0
        for page in pages(ids_of(self.name, messages), MOST_AT_ONCE):
            [count] = yield [self._call("acknowledge", owner, *page)]
            removed += count
        return removed

    @operation
    def release(self, owner: str, messages: Iterable[int | Message]) -> Operation[int]:
        """Release messages for the next `fetch`; return how many were leased. Cost: as above."""
        released = 0
        for page in pages(ids_of(self.name, messages), MOST_AT_ONCE):
            args = [part for id_ in page for part in (id_, "")]
            [count] = yield from surely([self._release_call(owner, args)])
            released += count
        return released

    # ---- for monitoring

    @operation
    def counts(self, owner: str) -> Operation[MailboxCounts]:
        """Return the contents of a mailbox. Cost: one exchange, O(1)."""
        [counts] = yield [self._call("counts", owner)]
        return MailboxCounts(*counts)

    @operation
    def clear(self, owner: str) -> Operation[int]:
        """Remove all messages of a mailbox, even a damaged one; return their number.

        Ids continue. Cost: one exchange for 1,000 messages.
        """
        removed = 0
        while True:
            [count] = yield [self._call("clear", owner, MOST_AT_ONCE)]
            removed += int(count)
            if count < MOST_AT_ONCE:
                return removed

    @stream
    def check(self, owner: str) -> Stream[Damage]:
        """Look for damage in a mailbox. Cost: one exchange for 1,000 messages."""
        keys = self._keys(owner)
        counting = partial(Mailboxes.counts.steps, self, owner)  # as all calls read the state
        if (yield from confirmed(self._check_types, keys)) or (
            yield from raised_twice(counting, repair=_CLEARS)
        ):
            return
        counts = yield from Mailboxes.counts.steps(self, owner)
        for start in range(0, max(counts.unread, counts.leased), MOST_AT_ONCE):
            yield from confirmed(self._check_page, owner, keys, start)
        yield from confirmed(self._check_bytes, keys)

    def _release_call(self, owner: str, args: Sequence[Argument]) -> Command:
        return self._call("release", owner, secrets.token_hex(8), *args, idempotent=True)

    def _send(self, to: str, messages: Sequence[bytes]) -> Command:
        return self._call("send", to, self._clock.script_microseconds(), *self._limits, *messages)

    def _fetch(
        self, owner: str, limit: int, lease: int, timeout: Seconds | None
    ) -> Operation[list[Message]]:
        check_integer(self.name, "limit", limit, 1, MOST_AT_ONCE)
        seconds = wait_seconds(self.name, timeout)
        keys = self._keys(owner)

        def undo(replies: Replies) -> Operation[None]:
            ids, stored, _ = replies[0]
            if ids:
                texts = [b""] * len(ids) if lease else stored
                args = [part for pair in zip(ids, texts, strict=True) for part in pair]
                yield [self._release_call(owner, args)]

        def attempt(waiting: str) -> Operation[tuple[list[tuple[bytes, bytes]], float]]:
            fetch = self._call(
                "fetch", owner, self._clock.script_microseconds(), limit, lease, waiting
            )
            [(ids, stored, left)] = yield CommandList([fetch], undo=undo)
            return list(zip(ids, stored, strict=True)), seconds_until(left)

        rows = yield from self._wait_for(keys[0], keys[3], attempt, seconds)
        remedy = f"acknowledge({owner!r}, [id]) removes it"
        try:
            return [
                decode_message(self.component, keys[0], int(id_), stored, remedy)
                for id_, stored in rows
            ]
        except DamagedDataError:  # the others must not be lost with it
            yield from undo(Replies([(*zip(*rows, strict=True), b"")]))
            raise

    def _check_page(self, owner: str, keys: Sequence[str], start: int) -> Operation[Suspicions]:
        [leases] = yield [self._call("check", owner, start, start + MOST_AT_ONCE - 1)]
        acknowledges = "acknowledge(owner, [id]) removes it"
        notes = yield from self._check_messages(keys, start, acknowledges, _CLEARS)
        return script_damage(self.component, leases, _CLEARS) + notes

    def _check_bytes(self, keys: Sequence[str]) -> Operation[Suspicions]:
        """Compare the count of bytes with the messages, if they are few enough for one read."""
        reads = (
            self._at(keys[0], "ZRANGE", keys[0], 0, MOST_AT_ONCE),
            self._at(keys[2], "HGET", keys[2], "bytes"),
        )
        [(messages, text)] = yield [Transaction(self.component, keys[0], reads)]
        total, notes = sum(map(len, messages)), Suspicions()
        right = text == b"%d" % total or (not total and text is None)
        if len(messages) <= MOST_AT_ONCE and not right:
            counted = "no bytes" if text is None else f"bytes={shown(text)}"
            notes.append(Suspicion(damage(self.component, keys[2], counted, f"{total}"), _CLEARS))
        return notes
