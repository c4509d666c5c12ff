"""The blocking link: writes to every shard first, then reads from every shard.

::

    shard 0   write 1 ▸ write 2 ▸ read 1 ▸ write 3 ▸ read 2 ▸ …
    shard 1   write 1 ▸ write 2 ▸ read 1 ▸ write 3 ▸ read 2 ▸ …

All servers work in parallel, without threads. Threads only open new connections, so that several
unreachable servers cost the timeout of one. A large batch is sent in chunks, at most two in flight
per shard, so that buffers are bounded and nothing can deadlock. Each exchange borrows a connection
from redis-py's pool. If it fails or is interrupted, the connection is closed before its release.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import copy_context
from typing import Any

from shardkit.config.component import Component
from shardkit.config.read_from import in_use
from shardkit.errors import ShardFailure, ShardKitError
from shardkit.events import handlers, settled
from shardkit.events import sent as tell_sent
from shardkit.network.connections import read_replies_of, timeout_for
from shardkit.network.connections.clients import Clients
from shardkit.network.connections.connection import reraise_handlers
from shardkit.network.connections.redis_private import learn_slots
from shardkit.network.links.dispatcher import (
    Attempt,
    Dispatcher,
    Need,
    NeedClients,
    NeedComponents,
    NeedEntries,
    NeedRefresh,
)
from shardkit.network.links.grouping import (
    SEVERAL,
    components_of,
    locate,
    place,
    place_few,
    target_of_few,
)
from shardkit.network.links.resp import Chunk
from shardkit.network.links.server_request import ATTEMPT_ERRORS, commands_in, pack_few
from shardkit.network.links.user_clients import SINGLE_SERVER
from shardkit.network.links.wakeups import LONGEST_POLL, Subscription, Subscriptions
from shardkit.network.topology import Topology
from shardkit.operations.commands import (
    AwaitWakeup,
    Batch,
    Command,
    Key,
    Locate,
    Pause,
    Replies,
    Shard,
    Subscribe,
    To,
)
from shardkit.operations.deadlines import current, earliest, extend, within
from shardkit.operations.steps import run_steps

MIN_TIMEOUT = 0.1  # seconds that a server gets to answer after others have timed out
CONNECT_THREADS = 32


class BlockingLink:
    """Carries batches over blocking connections. Safe to use from many threads.

    With ``raw``, replies are RESP2 and bytes, as operations need them; else as the entry says.
    """

    reads: Any = None  # sends reads to replicas; see `network/replicas/reading.py`

    def __init__(self, topology: Topology, clients: Clients, *, raw: bool = True) -> None:
        self._raw = raw
        self._topology = topology
        self._clients = clients
        self._dispatcher = Dispatcher()
        self._subscriptions = Subscriptions()

    def send(self, batch: Batch) -> Replies:
        """Carry a batch and return its replies in order, failures among them.

        Cost: one exchange with each shard concerned, all at the same time.

        Raises:
            ConfigError: a component cannot be used.
            InvalidArgumentError: an argument cannot be sent; then nothing was sent.
        """
        if in_use.any and self.reads is not None:
            return self.reads.send(self, batch)  # type: ignore[no-any-return]
        to = target_of_few(batch)
        attempt = None if to is None else self._send_few(batch, to)
        if type(attempt) is Replies:
            return attempt
        return run_steps(self._dispatcher.dispatch(batch, attempt), self._provide)  # type: ignore[arg-type]

    def _provide(self, need: Need) -> Any:
        """Carry out a step of the dispatcher."""
        if isinstance(need, NeedComponents):
            return {name: self._topology.component(name) for name in need.names}
        if isinstance(need, NeedClients):
            return [self._client(*shard) for shard in need.shards]
        if isinstance(need, NeedEntries):
            for name in need.names:
                with suppress(ShardKitError):  # the next attempt tells
                    self._topology.reread(name)
        elif isinstance(need, NeedRefresh):
            with suppress(*ATTEMPT_ERRORS):
                learn_slots(need.client)  # if not, the next attempt tells
        elif isinstance(need, Pause):
            self.pause(need.seconds)
        else:
            exchange_all(need, self._raw)
        return None

    def _client(self, component: Component, number: int | None) -> Any:
        try:
            return self._clients.get(component, number, self._raw)
        except ShardFailure as failure:
            return failure

    def _send_few(self, batch: Batch, to: To) -> Replies | Attempt | None:
        """Send a few plain commands to one server without the dispatcher: the fast path.

        Return the attempt if it failed, or None if nothing was sent.
        """
        component = self._topology.component(to if isinstance(to, str) else to.component)
        number, raw = place_few(batch, to, component), self._raw
        if number == SEVERAL:
            return None
        try:
            client: Any = self._clients.get(component, number, raw)
        except ShardFailure:
            return None
        if type(client) not in SINGLE_SERVER:
            return None
        data = pack_few(batch, self._dispatcher.loaded, client)
        if data is None:
            return None
        pool: Any = client.connection_pool
        deadline = current.get()
        if deadline is not None or pool.policy.deadline is not None:
            deadline = earliest(pool.policy.deadline)
        told = None
        if handlers:
            policy = pool.policy
            told = tell_sent(
                policy.shard,
                policy.address,
                len(batch),
                lambda: [command.name for command in batch],
                lambda: commands_in(batch),
            )
        connection: Any = None
        error: Exception | None = None
        sent = complete = False
        replies: list[Any] = []
        try:
            if deadline is None:
                connection = pool.get_idle() or pool.get_connection()
                sent = True
                replies, refused = connection.round_trip(data, raw, None, len(batch))
            else:
                with within(deadline):
                    connection = pool.get_idle() or pool.get_connection()
                    deadline.require_left()
                    sent = True
                    replies, refused = connection.round_trip(data, raw, deadline, len(batch))
            complete = True
            if not refused:
                if told is not None:
                    settled(told, None)
                return Replies(replies)
        except ATTEMPT_ERRORS as failure:
            reraise_handlers(failure)
            error = failure
        finally:
            if connection is not None:
                if not complete:
                    connection.disconnect()
                pool.release(connection)
        if told is not None:
            settled(told, error, maybe_executed=sent, refused=complete)
        attempt = Attempt.of_all(batch, component, number, client)
        attempt.error, attempt.sent = error, sent
        if complete:
            attempt.replies, attempt.refused = replies, True
        return attempt

    def locate(self, request: Locate) -> list[tuple[Shard, int | None]]:
        """Return where keys live, without an exchange with their shards."""
        names = components_of(to for to, _ in request.targets)
        return locate(request, {name: self._topology.component(name) for name in names})

    def pause(self, seconds: float) -> None:
        """Wait, but not beyond the caller's deadline."""
        deadline = current.get()
        time.sleep(seconds if deadline is None else min(seconds, max(0.0, deadline.left())))

    def subscribe(self, request: Subscribe) -> str:
        """Return the channel on which the server of a key wakes waiters; empty if there is none.

        Cost: at the first call for a server, a connection that the kit keeps.
        """
        with self._abandoning(request.abandon):
            found = self._subscription(request.to, request.key, request.connect)
            return "" if found is None else found.channel

    def await_wakeup(self, request: AwaitWakeup) -> bytes | None:
        """Wait until a script wakes a waiter; return what it says, None if it may be lost."""
        deadline = current.get()
        seconds = request.seconds
        if deadline is not None:
            seconds = min(seconds, max(0.0, deadline.left()))
        started = time.monotonic()
        with self._abandoning(request.abandon):
            found = self._subscription(request.to, request.key, False)
            text = None
            if found is None:
                time.sleep(min(seconds, LONGEST_POLL))
            else:
                text = found.wait(request.waiter.encode(), seconds)
        extend(time.monotonic() - started)
        return text

    def abandon(self, command: Command) -> None:
        """Try to send the command that undoes a wait, even beyond the caller's deadline."""
        with suppress(*ATTEMPT_ERRORS, ShardKitError), within(None):
            self.send([command])

    @contextmanager
    def _abandoning(self, abandon: Command | None) -> Iterator[None]:
        """Send a command if a wait is interrupted."""
        try:
            yield
        except BaseException:
            if abandon is not None:
                self.abandon(abandon)
            raise

    def _subscription(self, to: To, key: Key, connect: bool) -> Subscription | None:
        name = to if isinstance(to, str) else to.component
        component = self._topology.component(name)
        number = place(to, key, {name: component}).number
        try:
            client: Any = self._clients.get(component, number, self._raw)
            node = None
            pool = getattr(client, "connection_pool", None)
            if pool is None:
                node = client.get_node_from_key(key)
                pool = client.get_redis_connection(node).connection_pool
        except (*ATTEMPT_ERRORS, ShardFailure):
            return None
        return self._subscriptions.get(client, pool, node, connect=connect)

    def __repr__(self) -> str:
        return f"<BlockingLink{'' if self._raw else ' decoding'}: {self._clients!r}>"


def exchange_all(attempts: Sequence[Attempt], raw: bool = True) -> None:
    """Write to every server, then read from every server, chunk by chunk.

    Raises:
        InvalidArgumentError: an argument cannot be sent; then nothing was.
    """
    exchanges = [Exchange(attempt, raw) for attempt in attempts]
    complete = False
    try:
        unconnected = [exchange for exchange in exchanges if not exchange.try_start()]
        if unconnected:
            _connect_all(unconnected)
        timed_out = any(exchange.attempt.timed_out for exchange in unconnected)
        for n in range(1, max(map(len, [each.chunks for each in exchanges]), default=0) + 1):
            for exchange in exchanges:
                if n < len(exchange.chunks):
                    exchange.write(n)
            for exchange in exchanges:
                if timed_out:
                    exchange.shorten_timeout()
                exchange.read(n - 1)
                timed_out = timed_out or exchange.attempt.timed_out
        complete = True
    finally:
        for exchange in exchanges:
            exchange.close(complete)


def _connect_all(exchanges: Sequence[Exchange]) -> None:
    """Connect to servers, and write to each as soon as it is connected."""
    waiting = deque(exchanges)

    def connect_next() -> None:
        with suppress(IndexError):
            while True:
                waiting.popleft().connect()

    threads = [
        threading.Thread(
            target=copy_context().run, args=(connect_next,), name="shardkit-connect", daemon=True
        )
        for _ in range(min(len(exchanges), CONNECT_THREADS) - 1)
    ]
    started = []
    try:
        with suppress(RuntimeError):  # Python is shutting down: this thread does it all
            for thread in threads:
                thread.start()
                started.append(thread)
        connect_next()
    finally:
        waiting.clear()
        for thread in started:
            thread.join()


class Exchange:
    """An attempt, with its connection: writes chunks and reads their replies."""

    __slots__ = (
        *("attempt", "chunks", "connection", "deadline", "expected", "pool", "raw"),
        *("in_time", "timeout_changed", "written_at"),
    )

    def __init__(self, attempt: Attempt, raw: bool) -> None:
        self.attempt = attempt
        self.raw = raw
        self.chunks: list[Chunk] = attempt.server_request.chunks()
        self.expected = 0
        self.connection: Any = None
        self.timeout_changed = False
        self.written_at = 0.0
        holder = (
            attempt.client
            if attempt.node is None
            else attempt.client.get_redis_connection(attempt.node)
        )
        self.pool = holder.connection_pool
        self.deadline = earliest(attempt.allowed)
        self.in_time: Any = within(self.deadline) if self.deadline is not None else nullcontext()

    def try_start(self) -> bool:
        """Write the first chunk, if the pool has an idle connection."""
        try:
            self.connection = self.pool.get_idle()
        except ATTEMPT_ERRORS as error:
            self._fail(error)
            return True
        if self.connection is None:
            return False
        self.write(0)
        return True

    def connect(self) -> None:
        """Connect, and write the first chunk."""
        try:
            with self.in_time:
                self.connection = self.pool.get_connection()
            self.write(0)
        except Exception as error:  # whatever it is, only this server's requests fail
            self._fail(error)

    def write(self, n: int) -> None:
        """Write chunk ``n``, unless the attempt has failed."""
        attempt = self.attempt
        if attempt.error is not None:
            return
        try:
            if self.deadline is not None:
                self.deadline.require_left()
            attempt.sent = True
            self.written_at = time.monotonic()
            if n == 0 and attempt.server_request.block is not None:
                usual = self.connection.socket_timeout
                self.connection.for_block = True
                self._set_timeout(timeout_for(attempt.server_request.block, usual))
            # A health check is an exchange of its own: only before the first chunk.
            with self.in_time:
                self.connection.send_packed_command((self.chunks[n].data,), check_health=n == 0)
        except ATTEMPT_ERRORS as error:
            self._fail(error)

    def read(self, n: int) -> None:
        """Read the replies to chunk ``n``, unless the attempt has failed."""
        attempt = self.attempt
        if attempt.error is None and n < len(self.chunks):
            try:
                self.expected += self.chunks[n].replies
                more = n + 1 < len(self.chunks)
                read = read_replies_of(self.connection)
                with self.in_time:
                    if read(attempt.replies, self.expected, self.raw, more):
                        attempt.refused = True
                if handlers:
                    attempt.ended = time.perf_counter()
            except ATTEMPT_ERRORS as error:
                self._fail(error)

    def shorten_timeout(self) -> None:
        """Count the timeout from the write, so that several silent servers' do not add up."""
        if self.attempt.error is not None or self.attempt.server_request.block is not None:
            return
        usual = self.connection.socket_timeout
        if usual is not None:
            self._set_timeout(max(MIN_TIMEOUT, self.written_at + usual - time.monotonic()))

    def _set_timeout(self, seconds: float | None) -> None:
        if hasattr(self.connection, "set_timeout"):  # fake connections have no timeout
            with suppress(OSError):  # it is closed; its next use fails
                self.connection.set_timeout(seconds)
            self.timeout_changed = True

    def _fail(self, error: Exception) -> None:
        self.attempt.error, self.attempt.ended = error, time.perf_counter()
        if self.connection is not None:
            self.connection.disconnect()
        reraise_handlers(error)

    def close(self, complete: bool) -> None:
        """Release the connection; disconnect it first if replies are still to come."""
        if self.connection is not None:
            if not complete:
                self.connection.disconnect()
            elif self.timeout_changed:
                self._set_timeout(self.connection.socket_timeout)
            if self.attempt.server_request.block is not None:
                self.connection.for_block = False
            self.pool.release(self.connection)
