"""Wake-ups: how a script wakes one waiter of one process, on a connection that all share.

::

    waiter 1 ─┐                          ┌── PUBLISH shardkit:wake:<process>  "<waiter> <text>"
    waiter 2 ─┼── one connection, SUBSCRIBE shardkit:wake:<process>  ◄── server
    waiter 3 ─┘                          └── PUBLISH returns 0 if the process is gone

On a cluster, `shardkit:wake:{<tag>}<process>` is a sharded channel of one of the node's slots; a
plain one would be carried to all nodes. If the slot moves, the subscription ends, and waiters get a
new one. A server without sharded channels gets a plain one.

PUBLISH has three advantages over a blocking pop: a script touches only its own keys, on a cluster
too; the count of receivers shows that a waiter was killed; and a process can wait for another lock
without interrupting the first wait.

A wake-up is only a hint, because it can be lost with its connection: its content is also stored,
and waiters check that every few seconds. Without a connection, waiters poll. One waiting thread
reads for all, and hands over after its own wake-up, so a process's only waiter is woken without a
switch of threads.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from functools import partial
from itertools import islice
from typing import Any

from redis.exceptions import ResponseError

from shardkit.errors import ShardKitError
from shardkit.network.connections.connection import extended_timeout
from shardkit.network.connections.databases import Steps
from shardkit.network.links.server_request import ATTEMPT_ERRORS
from shardkit.operations.forks import ForkSafeLock
from shardkit.operations.interruptions import reraise_handlers, tolerated
from shardkit.operations.kept import kept_with
from shardkit.operations.steps import arun_steps, run_by_face, run_steps
from shardkit.recent import Recent

PREFIX = "shardkit:wake:"
MOST_EARLY = 10_000  # wake-ups that came before their waiter, which is just sending its command
LONGEST_POLL = 0.1  # seconds between two checks of a waiter that cannot be woken
_MESSAGES = (b"message", "message", b"smessage", "smessage")
_UNSUBSCRIBED = (b"sunsubscribe", "sunsubscribe")  # the slot of the channel was moved
_FAILURES = (*ATTEMPT_ERRORS, ShardKitError)


def _subscribed(connection: Any, tags: Iterable[str]) -> Steps[str]:
    """Subscribe to a unique channel, a sharded one if that is possible, and return it."""
    process = f"{os.getpid()}-{secrets.token_hex(8)}"
    sharded = [("SSUBSCRIBE", f"{PREFIX}{{{tag}}}{process}") for tag in tags]
    for command, channel in [*sharded, ("SUBSCRIBE", f"{PREFIX}{process}")]:
        yield partial(connection.send_command, command, channel)
        try:
            yield partial(connection.read_response, disable_decoding=True)
        except ResponseError:
            if command == "SUBSCRIBE":
                raise
        else:
            break
    return channel


def _tags_on(client: Any, node: Any) -> list[str]:
    """Return a few hash tags of a cluster node's slots, some of which may have moved."""
    tags = () if node is None else map(str, range(1000))
    return list(islice((tag for tag in tags if client.get_node_from_key(tag) == node), 3))


class _ServerSubscription:
    """One process's subscription on one server."""

    channel = ""
    broken = False  # then waiters get a new subscription
    run: Callable[[Steps[Any]], Any]
    _connection: Any = None

    def __init__(self, pool: Any, lock: Any) -> None:
        self._pool = pool
        self._lock = lock
        self._waiters: dict[bytes, Any] = {}
        self._early = Recent[bytes, bytes](MOST_EARLY)

    @run_by_face
    def start(self, tags: Iterable[str]) -> Steps[Any]:
        """Connect, subscribe, and return it; None if that fails."""
        try:
            self._connection = yield self._pool.get_connection
            self._connection.awaits_wakeups = True
            self.channel = yield from _subscribed(self._connection, tags)
        except GeneratorExit:
            raise
        except BaseException as error:
            yield self.close
            reraise_handlers(error)
            if isinstance(error, _FAILURES):
                return None
            raise
        return self

    def _deliver(self, reply: Any) -> bool:
        """Wake the waiter that a message is for; return whether others may follow."""
        if not isinstance(reply, list) or len(reply) != 3 or reply[0] not in _MESSAGES:
            return reply[0] not in _UNSUBSCRIBED
        data = reply[2].encode() if isinstance(reply[2], str) else reply[2]
        name, _, text = data.partition(b" ")
        with self._lock:
            waiter = self._waiters.get(name)
            if waiter is None or waiter.done():
                self._early[name] = text
            else:
                waiter.set_result(text)
        return True

    @run_by_face
    def close(self) -> Steps[None]:
        """Close the connection; waiters check for themselves."""
        self.broken = True
        with self._lock:
            for waiter in self._waiters.values():
                if not waiter.done():
                    waiter.set_result(None)
        with tolerated(*_FAILURES):
            if self._connection is not None:
                yield partial(self._connection.disconnect, True)  # at once
                self._pool.release_nowait(self._connection)


class _Waiter:
    __slots__ = ("text", "turn")

    def __init__(self) -> None:
        self.text: bytes | None = None
        self.turn = threading.Event()

    def done(self) -> bool:
        return self.text is not None

    def set_result(self, text: bytes | None) -> None:
        self.text = text
        self.turn.set()


class Subscription(_ServerSubscription):
    """One process's subscription on one server, for threads."""

    run = staticmethod(partial(run_steps, errors=BaseException))
    _reader: _Waiter | None = None

    def __init__(self, pool: Any) -> None:
        super().__init__(pool, threading.Lock())

    def wait(self, waiter: bytes, seconds: float) -> bytes | None:
        """Wait for a waiter's wake-up; None if there was none in time, or it may be lost."""
        until = time.monotonic() + seconds
        own = _Waiter()
        with self._lock:
            if self.broken or waiter in self._early:
                return self._early.pop(waiter, None)
            self._waiters[waiter] = own
        try:
            while not self.broken and (left := until - time.monotonic()) > 0:
                with self._lock:
                    if own.text is None and self._reader is None:
                        self._reader = own
                    reads = self._reader is own
                    own.turn.clear()
                if own.text is not None:
                    break
                if reads:
                    self._read(left)
                else:
                    own.turn.wait(left)
        finally:
            with self._lock:
                del self._waiters[waiter]
                if self._reader is own:
                    self._reader = None
                if self._reader is None and self._waiters:
                    next(iter(self._waiters.values())).turn.set()
        return own.text

    def _read(self, seconds: float) -> None:
        goes_on = False
        try:
            if not self._connection.can_read(timeout=seconds):
                goes_on = True
                return
            goes_on = self._deliver(self._connection.read_response(disable_decoding=True))
        except _FAILURES as error:
            reraise_handlers(error)
        finally:
            if not goes_on:  # a message may be half read
                self.close()


class Subscriptions:
    """The subscriptions of a blocking kit, one for each server. A forked child gets its own."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()

    def get(self, client: Any, pool: Any, node: Any, *, connect: bool) -> Subscription | None:
        """Return the subscription on a server, or a cluster's node; None if there is none.

        With ``connect``, make one if needed and possible.
        """
        name, by_node = "" if node is None else node.name, kept_with(client, self)
        known: Subscription | None = by_node.get(name)
        if connect and (known is None or known.broken):
            with self._lock:
                known = by_node.get(name)
                if known is None or known.broken:
                    known = by_node[name] = Subscription(pool).start(_tags_on(client, node))
        return None if known is None or known.broken else known


class AsyncSubscription(_ServerSubscription):
    """One process's subscription on one server, for the tasks of an event loop."""

    run = staticmethod(partial(arun_steps, errors=BaseException))
    _reading: asyncio.Task[None] | None = None

    async def _read(self) -> None:
        connection = self._connection
        try:
            with suppress(*_FAILURES), extended_timeout(connection, 0):
                while self._deliver(await connection.read_response(disable_decoding=True)):
                    pass
        finally:
            await self.close()

    async def wait(self, waiter: bytes, seconds: float) -> bytes | None:
        """Wait for a waiter's wake-up; see `Subscription.wait`."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
        if self.broken or waiter in self._early:
            return self._early.pop(waiter, None)
        waiting = self._waiters[waiter] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                text: bytes | None = await waiting
                return text
        except TimeoutError:
            return None
        finally:
            del self._waiters[waiter]


class AsyncSubscriptions:
    """The subscriptions of an async kit, one for each server and event loop."""

    async def get(
        self, client: Any, source: Any, node: Any, *, connect: bool
    ) -> AsyncSubscription | None:
        """Return the subscription on a server; see `Subscriptions.get`."""
        name = "" if node is None else node.name
        subscriptions = kept_with(client, self)  # it belongs to one loop
        starting: asyncio.Future[Any] | None = subscriptions.get(name)
        if starting is None or (starting.done() and self._outcome(starting) is None):
            if not connect:
                return None
            subscription = AsyncSubscription(source, nullcontext())
            starting = asyncio.ensure_future(subscription.start(_tags_on(client, node)))
            subscriptions[name] = starting
        elif not connect and not starting.done():
            return None
        # Not awaited directly: a cancelled task must not cancel it for the others.
        await asyncio.wait([starting])
        return self._outcome(starting)

    @staticmethod
    def _outcome(starting: asyncio.Future[Any]) -> AsyncSubscription | None:
        if starting.cancelled():
            return None
        subscription: AsyncSubscription | None = starting.result()
        return None if subscription is None or subscription.broken else subscription
