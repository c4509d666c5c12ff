"""The blocking link: writes to every server first, then reads from every server.

::

    server 0   write 1 ▸ write 2 ▸ read 1 ▸ write 3 ▸ read 2 ▸ …
    server 1   write 1 ▸ write 2 ▸ read 1 ▸ write 3 ▸ read 2 ▸ …

All servers work in parallel, without threads, and each is read when it has answered. Shards that
are databases of one server share a connection. Threads only open new connections, so that several
unreachable servers cost the timeout of one. A large batch is sent in chunks, at most two in flight
per server, so that buffers are bounded and nothing can deadlock. Each exchange borrows a connection
from redis-py's pool. If it fails or is interrupted, the connection is closed before its release.
"""

from __future__ import annotations

import select
import threading
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from contextvars import copy_context
from math import inf
from queue import Empty, SimpleQueue
from typing import Any

from shardkit.config.component import Component
from shardkit.config.read_from import in_use
from shardkit.errors import ShardFailure, ShardKitError
from shardkit.events import handlers, settled
from shardkit.events import sent as tell_sent
from shardkit.network.connections import read_replies_of, timeout_for
from shardkit.network.connections.clients import Clients
from shardkit.network.connections.connection import refused_select, reraise_handlers
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
from shardkit.network.links.resp import CHUNK_BYTES, CHUNK_REQUESTS, Chunk
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
HELPED_WITHIN = 0.02  # seconds, or the caller connects by itself


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
                connection = pool.get_idle() or pool.borrow()
                sent = True
                replies, refused = connection.round_trip(data, raw, None, len(batch))
            else:
                with within(deadline):
                    connection = pool.get_idle() or pool.borrow()
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
        attempt = Attempt.of_all(batch, component, number, client)
        attempt.error, attempt.sent = error, sent
        if complete:
            attempt.replies, attempt.refused = replies, True
        if told is not None:
            refusal = attempt.refusal
            settled(told, error, maybe_executed=sent, refused=complete, refusal=refusal)
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
        found = self._subscription(request.to, request.key, request.connect)
        return "" if found is None else found.channel

    def await_wakeup(self, request: AwaitWakeup) -> bytes | None:
        """Wait until a script wakes a waiter; return what it says, None if it may be lost."""
        deadline = current.get()
        seconds = request.seconds
        if deadline is not None:
            seconds = min(seconds, max(0.0, deadline.left()))
        started = time.monotonic()
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
    """Write to every server, then read from each as its replies come, chunk by chunk.

    Raises:
        InvalidArgumentError: an argument cannot be sent; then nothing was.
    """
    exchanges = _by_connection(attempts, raw)
    complete = False
    try:
        connected = [exchange for exchange in exchanges if exchange.reserve()]
        for exchange in connected:
            exchange.begin()
        if len(connected) < len(exchanges):
            _connect_all([each for each in exchanges if each.must_connect])
        _read_all([exchange for exchange in exchanges if exchange.due])
        complete = True
    finally:
        for exchange in exchanges:
            exchange.close(complete)
    closed = [attempt for exchange in exchanges for attempt in exchange.fenced]
    for attempt in closed:  # each waits at its fence, while nobody waits for it
        exchange_all([attempt], raw)


def _by_connection(attempts: Sequence[Attempt], raw: bool) -> list[Exchange]:
    """Return the attempts by the connection that they share, in the order of acquisition.

    All calls take connections in this order. So two calls never wait for each other's.
    """
    by_way: dict[Any, Exchange] = {}
    alone: list[Exchange] = []
    for attempt in attempts:
        client: Any = attempt.client
        if attempt.node is not None:
            client = client.get_redis_connection(attempt.node)
        pool = client.connection_pool
        if attempt.server_request.block is not None:
            alone.append(Exchange(pool, attempt, raw))
            continue
        which = pool.way, pool.policy.deadline, pool.draining
        exchange = by_way.get(which)
        if exchange is None:
            by_way[which] = Exchange(pool, attempt, raw)
        else:
            exchange.add(pool, attempt)
    return sorted([*by_way.values(), *alone], key=lambda exchange: exchange.pool.number)


def _connect_all(exchanges: Sequence[Exchange]) -> None:
    """Connect to servers, in threads if they are several, and begin each exchange.

    The threads only connect. What they still connect when the caller is interrupted, they close.
    """
    waiting, ready = deque(exchanges), SimpleQueue[Exchange]()
    lock = threading.Lock()
    left = False  # by the caller

    def help_connecting() -> None:
        while waiting:
            try:
                exchange = waiting.popleft()
            except IndexError:
                return
            exchange.connect()
            with lock:
                if not left:
                    exchange.helped = False
                    ready.put(exchange)
                    continue
            exchange.helped = False
            exchange.close(False)

    if len(exchanges) == 1:
        exchanges[0].helped = False
        exchanges[0].connect()
        exchanges[0].begin()
        return
    try:
        for _ in range(min(len(exchanges), CONNECT_THREADS)):
            # Not a `threading.Thread`: starting that waits for the thread, which an exception that
            # somebody raises in the caller's thread can hit and end before it is there.
            with suppress(RuntimeError):  # Python is shutting down: this thread does it all
                start_new_thread(copy_context().run, (help_connecting,))
        begun = 0
        while begun < len(exchanges):
            try:
                exchange = ready.get(timeout=HELPED_WITHIN if waiting else None)
            except Empty:
                try:
                    exchange = waiting.popleft()
                except IndexError:
                    continue
                exchange.helped = False
                exchange.connect()
            exchange.begin()  # while others connect
            begun += 1
    finally:
        waiting.clear()
        with lock:
            left = True


def _read_all(exchanges: list[Exchange]) -> None:
    """Read what is due, from each server as it comes: a silent one delays no other."""
    while len(exchanges) > 1:
        for exchange in _readable(exchanges):
            exchange.read()
        exchanges = [exchange for exchange in exchanges if exchange.due]
    for exchange in exchanges:
        while exchange.due:
            exchange.read()


def _readable(exchanges: Sequence[Exchange]) -> Sequence[Exchange]:
    """Wait until a server has answered, or one has taken too long; return those."""
    if not hasattr(select, "poll"):  # eventlet removes it, and Windows has none
        return exchanges
    by_number: dict[int, Exchange] = {}
    blind = []  # without a socket, or with bytes that no socket shows
    poll = select.poll()
    for exchange in exchanges:
        number = exchange.poll_number()
        if number is None:
            blind.append(exchange)
        else:
            by_number[number] = exchange
            poll.register(number, select.POLLIN)
    if blind:
        return blind
    while True:
        now = time.monotonic()
        first = min(exchange.until for exchange in exchanges)
        answered = poll.poll(None if first == inf else max(0.0, 1000 * (first - now)))
        if answered:
            return [by_number[number] for number, _ in answered]
        now = time.monotonic()
        if late := [exchange for exchange in exchanges if exchange.until <= now]:
            return late


class Exchange:
    """Attempts at one server over one connection: writes chunks and reads their replies.

    ::

        SELECT 7   chunk of unique:7   SELECT 11   chunk of unique:11      one write

    Attributes:
        fenced: attempts at databases that are closed, which have not been sent.
        until: when the next replies are late, in monotonic seconds.
    """

    __slots__ = (
        *("_chunks", "_parts", "_read", "_refused", "_replies", "_selects", "_written"),
        *("attempts", "block"),
        *("connection", "deadline", "due", "fenced", "helped", "in_time", "must_connect", "pool"),
        *("pools", "raw", "timeout_changed", "until"),
    )

    def __init__(self, pool: Any, attempt: Attempt, raw: bool) -> None:
        self.pool = pool
        self.raw = raw
        self.attempts = [attempt]
        self.pools = [pool]
        self._chunks: list[list[Chunk]] = [attempt.server_request.chunks()]
        self.block = attempt.server_request.block
        self.fenced: list[Attempt] = []
        self.connection: Any = None
        self.helped = self.must_connect = self.timeout_changed = self._refused = False
        self.due = 0  # replies to what has been written, and will be
        self.until = inf
        # What is written at once: bytes, and the number of replies up to its end.
        self._parts: list[tuple[bytes, int]] = []
        self._written = self._read = 0
        self._replies: list[Any] = []
        self._selects: list[bool] = []  # for each attempt: whether SELECT is in front
        self.deadline = earliest(attempt.allowed)
        self.in_time: Any = within(self.deadline) if self.deadline is not None else nullcontext()

    def add(self, pool: Any, attempt: Attempt) -> None:
        """Add an attempt at another database of the server."""
        self.attempts.append(attempt)
        self.pools.append(pool)
        self._chunks.append(attempt.server_request.chunks())

    def reserve(self) -> bool:
        """Take a connection from the pool; return whether it is connected."""
        try:
            with self.in_time:
                self.connection = self.pool.reserve(time.monotonic())
        except ATTEMPT_ERRORS as error:
            self._fail(error)
            return False
        self.must_connect = self.helped = not getattr(self.connection, "is_connected", True)
        return not self.must_connect

    def connect(self) -> None:
        """Connect."""
        connection, self.connection = self.connection, None
        try:
            with self.in_time:
                self.pool.connect(connection)
            self.connection = connection
        except Exception as error:  # whatever it is, only this server's requests fail
            self._fail(error)

    def begin(self) -> None:
        """Open the databases that need it, and write the first chunks."""
        if self.connection is None:
            return
        try:
            with self.in_time:
                self._open()
            if self.attempts:
                self._pack()
                self._write()
                self._write()
        except ATTEMPT_ERRORS as error:
            self._fail(error)

    def _open(self) -> None:
        connection = self.connection
        if len(self.attempts) == 1:
            database = self.pool.database
            if database not in connection.opened:
                for error in connection.open((database,)).values():
                    raise error
            return
        opened = connection.opened
        new = [pool.database for pool in self.pools if pool.database not in opened]
        if not new:
            return
        errors = connection.open(list(dict.fromkeys(new)), waits=False)
        kept = []
        for pool, attempt, chunks in zip(self.pools, self.attempts, self._chunks, strict=True):
            if pool.database in opened:
                kept.append((pool, attempt, chunks))
            elif pool.database in errors:
                attempt.error = errors[pool.database]
            else:
                self.fenced.append(attempt)
        self.pools = [pool for pool, _, _ in kept]
        self.attempts = [attempt for _, attempt, _ in kept]
        self._chunks = [chunks for _, _, chunks in kept]

    def _pack(self) -> None:
        """Decide what is written at once: one chunk, or small ones of several databases."""
        connection = self.connection
        data: list[bytes] = []
        size = requests = due = 0
        for pool, chunks in zip(self.pools, self._chunks, strict=True):
            select = b""
            if pool.database is not connection.entered:
                select = connection.entering(pool.database)
            self._selects.append(bool(select))
            for chunk in chunks:
                if data and (
                    size + len(chunk.data) > CHUNK_BYTES
                    or requests + chunk.replies > CHUNK_REQUESTS
                ):
                    self._parts.append((b"".join(data), due))
                    data, size, requests = [], 0, 0
                if select:
                    data.append(select)
                    due += 1
                    select = b""
                data.append(chunk.data)
                size += len(chunk.data)
                requests += chunk.replies
                due += chunk.replies
        self._parts.append((b"".join(data), due))
        self.due = due

    def _write(self) -> None:
        """Write the next chunk, if there is one."""
        n = self._written
        if n == len(self._parts):
            return
        if self.deadline is not None:
            self.deadline.require_left()
        if n == 0:
            for attempt in self.attempts:
                attempt.sent = True
        connection, self._written = self.connection, n + 1
        timeout = connection.socket_timeout
        if self.block is not None:
            connection.for_block = True
            timeout = timeout_for(self.block, timeout)
            self._set_timeout(timeout)
        # A health check is an exchange of its own: only before the first chunk.
        with self.in_time:
            connection.send_packed_command((self._parts[n][0],), check_health=n == 0)
        self.until = inf if timeout is None else time.monotonic() + timeout
        if self.deadline is not None:
            self.until = min(self.until, self.deadline.at)

    def read(self) -> None:
        """Read the replies to the next chunk, and write the one after the next."""
        n = self._read
        _, expected = self._parts[n]
        more = n + 1 < len(self._parts)
        try:
            if self.until <= time.monotonic():
                self._set_timeout(MIN_TIMEOUT)
            read = read_replies_of(self.connection)
            with self.in_time:
                if read(self._replies, expected, self.raw, more):
                    self._refused = True
            if self.timeout_changed and self.block is None:
                self._set_timeout(self.connection.socket_timeout)
            self._read += 1
            if more:
                self._write()
            else:
                self.due = 0
                self._deliver()
        except ATTEMPT_ERRORS as error:
            self._fail(error)

    def poll_number(self) -> int | None:
        """Return the number of the socket; None if what comes next cannot be seen there."""
        if len(self._replies) >= self._parts[self._read][1]:
            return None
        number = getattr(self.connection, "poll_number", None)
        return None if number is None else number()

    def _deliver(self, error: Exception | None = None) -> None:
        """Give each attempt its replies; those whose replies have not all come get the error."""
        replies, start = self._replies, 0
        ended = time.perf_counter() if handlers else 0.0
        for attempt, chunks, selects in zip(
            self.attempts, self._chunks, self._selects, strict=True
        ):
            end = start + selects + sum([chunk.replies for chunk in chunks])
            attempt.ended = ended
            if end > len(replies):
                attempt.error = error
            elif selects and isinstance(replies[start], Exception):
                attempt.error = refused_select(replies[start])
                self.connection.disconnect()
            else:
                attempt.replies, attempt.refused = replies[start + selects : end], self._refused
            start = end

    def _fail(self, error: Exception) -> None:
        self.due = 0
        if self._selects:
            self._deliver(error)
        else:
            for attempt in self.attempts:
                attempt.error, attempt.ended = error, time.perf_counter()
        if self.connection is not None:
            self.connection.disconnect()
        reraise_handlers(error)

    def close(self, complete: bool) -> None:
        """Release the connection; disconnect it first if replies are still to come."""
        if self.connection is None or self.helped:
            return
        if self.due or not complete:
            self.connection.disconnect()
        elif self.timeout_changed:
            self._set_timeout(self.connection.socket_timeout)
        if self.block is not None:
            self.connection.for_block = False
        self.pool.release(self.connection)

    def _set_timeout(self, seconds: float | None) -> None:
        if hasattr(self.connection, "set_timeout"):  # fake connections have no timeout
            with suppress(OSError):  # it is closed; its next use fails
                self.connection.set_timeout(seconds)
            self.timeout_changed = True
