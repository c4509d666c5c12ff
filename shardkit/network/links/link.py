"""The links, which carry batches: blocking, and awaiting.

::

    server 0   write 1 ▸ write 2 ▸ read 1 ▸ write 3 ▸ read 2 ▸ …
    server 1   write 1 ▸ write 2 ▸ read 1 ▸ write 3 ▸ read 2 ▸ …

The blocking link writes to every server first, and then reads from each when it has answered: all
work in parallel, without threads. Shards that are databases of one server share a connection.
Threads only open new connections, so that several unreachable servers cost the timeout of one. A
large batch is sent in chunks, at most two in flight per server, so that buffers are bounded and
nothing can deadlock. Each exchange borrows a connection from a pool. If it fails or is interrupted,
the connection is closed before its release.

The awaiting link sends the batches of all tasks of an event loop over one connection per server
(see `multiplexer.py`). Only a command that may block gets a connection of its own, which is closed
if the wait is cancelled.
"""

from __future__ import annotations

import asyncio
import select
import threading
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from math import inf
from operator import attrgetter, call
from queue import Empty, SimpleQueue
from typing import Any

import redis.asyncio as aioredis
from redis.exceptions import ConnectionError

from shardkit.config.component import Component
from shardkit.config.read_from import in_use
from shardkit.errors import ShardFailure, ShardKitError
from shardkit.events import handlers, settled
from shardkit.network.connections.clients import Clients
from shardkit.network.connections.connection import kept_to_deadline
from shardkit.network.connections.connection_state import timeout_for
from shardkit.network.connections.databases import Steps
from shardkit.network.connections.effects import ALONE, PackedCommands
from shardkit.network.connections.endpoints import Endpoint
from shardkit.network.connections.framing import CONFIRMED, PLAIN
from shardkit.network.connections.redis_private import (
    health_check_is_due,
    learn_slots,
    pool_of_node,
    set_timeout,
)
from shardkit.network.links.dispatcher import Dispatcher, node_of_short, turns_of
from shardkit.network.links.grouping import (
    components_of,
    locate,
    place,
    place_short,
)
from shardkit.network.links.multiplexer import Part, Received, carried, give_back, multiplexed
from shardkit.network.links.resp import Chunk
from shardkit.network.links.server_request import ATTEMPT_ERRORS, Attempt, pack_short
from shardkit.network.links.wakeups import LONGEST_POLL, AsyncSubscriptions, Subscriptions
from shardkit.network.topology import Topology
from shardkit.operations.commands import (
    AwaitWakeup,
    Batch,
    Command,
    Key,
    Locate,
    Replies,
    Shard,
    Subscribe,
    To,
)
from shardkit.operations.deadlines import current, earliest, extend, within
from shardkit.operations.interruptions import reraise_handlers, tolerated
from shardkit.operations.steps import arun_steps, run_by_face, run_steps, sleep


class Link(Dispatcher):
    """What the blocking and the awaiting link have in common.

    With ``raw``, replies are RESP2 and bytes, as operations need them; else as the entry says.
    ``reads`` sends reads to replicas; see `network/replicas/reading.py`.
    """

    # Of each face.
    run: Callable[[Steps[Any]], Any]
    sleep: Callable[[float], Any]
    subscriptions_of: Callable[[], Any]
    send: Callable[..., Any]
    _source_of: Callable[..., Any]

    def __init__(self, topology: Any, clients: Any, *, raw: bool = True, reads: Any = None) -> None:
        self._raw = raw
        self._reads = reads
        self._topology: Topology = topology
        self._clients: Clients = clients
        self._subscriptions = self.subscriptions_of()

    def pause(self, seconds: float) -> Any:
        """Wait, but not beyond the caller's deadline."""
        return self.sleep(limited(seconds))

    @run_by_face
    def locate(self, request: Locate) -> Steps[list[tuple[Shard, int | None]]]:
        """Return where keys live, without an exchange with their shards."""
        components = {}
        for name in components_of(to for to, _ in request.targets):
            components[name] = yield partial(self.component, name)
        return locate(request, components)

    def address_of(self, shard: Shard) -> str:
        """Return the address of a shard that was located."""
        return self._topology.last_known(shard.component).entry_of(shard).address

    @run_by_face
    def subscribe(self, request: Subscribe) -> Steps[str]:
        """Return the channel on which the server of a key wakes waiters; empty if there is none.

        Cost: at the first call for a server, a connection that the kit keeps.
        """
        subscription = yield partial(self._subscription, request.to, request.key, request.connect)
        return "" if subscription is None else subscription.channel

    @run_by_face
    def await_wakeup(self, request: AwaitWakeup) -> Steps[bytes | None]:
        """Wait until a script wakes a waiter; return what it says, None if it may be lost."""
        seconds, started = limited(request.timeout), time.monotonic()
        topic, text = (yield partial(self._subscription, request.to, request.key, False)), None
        if topic is None:
            yield partial(self.sleep, min(seconds, LONGEST_POLL))
        else:
            text = yield partial(topic.wait, request.waiter.encode(), seconds)
        extend(time.monotonic() - started)
        return text

    @run_by_face
    def abandon(self, command: Command) -> Steps[None]:
        """Try to send the command that undoes a wait, even beyond the caller's deadline."""
        with tolerated(*ATTEMPT_ERRORS, ShardKitError), within(None):
            yield partial(self.send, [command])

    @run_by_face
    def _subscription(self, to: To, key: Key, connect: bool) -> Steps[Any]:
        try:
            endpoint, node = yield from self._server_of(to, key)
        except (*ATTEMPT_ERRORS, ShardFailure):
            return None
        source = self._source_of(endpoint, node)
        client = endpoint.owner if node else source
        return (yield partial(self._subscriptions.get, client, source, node, connect=connect))

    def _server_of(self, to: To, key: Key) -> Steps[tuple[Endpoint, Any]]:
        """Return where the commands for a key go; of a cluster, also the node."""
        name = to if isinstance(to, str) else to.component
        component = yield partial(self.component, name)
        number = place(to, key, {name: component}).number
        endpoint = self._endpoints(self._clients, component)[number]
        if endpoint.database is not None:
            return endpoint, None
        yield partial(self._initialize, endpoint.owner)
        return endpoint, endpoint.owner.get_node_from_key(key)

    def _short(
        self, batch: Batch, component_of: Callable[[str], Any], endpoints_of: Callable[..., Any]
    ) -> tuple[Endpoint, Any, bytes, int] | None:
        """Pack a few plain commands for one server; return also a cluster's node, and what they do.

        Return None if the batch needs the dispatcher.
        """
        where = place_short(batch, component_of)
        if where is None:
            return None
        component, number = where
        try:
            endpoint: Endpoint = endpoints_of(component, self._raw)[number]
        except ShardFailure:
            return None
        owner, node = endpoint.access.way, None
        if owner is None:  # a cluster
            owner = endpoint.access.client
            node = node_of_short(owner, batch)
            if node is None:
                return None
        packed = pack_short(batch, self.loaded, owner, node)
        return None if packed is None else (endpoint, node, *packed)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{'' if self._raw else ' decoding'}: {self._clients!r}>"


def limited(seconds: float) -> float:
    """Return the seconds to wait, but not beyond the caller's deadline."""
    deadline = current.get()
    return seconds if deadline is None else min(seconds, max(0.0, deadline.left()))


MIN_TIMEOUT = 0.1  # seconds that a server gets to answer after others have timed out
CONNECT_THREADS = 32
HELPED_WITHIN = 1.0  # seconds, or the caller connects by itself, and begins no other meanwhile
_NUMBER, _UNTIL = attrgetter("pool.number"), attrgetter("until")


class BlockingLink(Link):
    """Carries batches over blocking connections. Safe to use from many threads."""

    run = staticmethod(run_steps)
    subscriptions_of = Subscriptions
    sleep = staticmethod(sleep)
    in_thread: Any = staticmethod(call)
    _learn = staticmethod(learn_slots)

    def send(self, batch: Batch, clients: Clients | None = None) -> Replies:
        """Carry a batch and return its replies in order, failures among them.

        With ``clients``, everything goes to the servers that these say, reads too.

        Cost: one exchange with each server concerned, all at the same time.

        Raises:
            ConfigError: a component cannot be used.
            InvalidArgumentError: an argument cannot be sent; then nothing was sent.
        """
        if clients is None:
            if in_use.any and self._reads is not None:
                return self._reads.send(self, batch)  # type: ignore[no-any-return]
            clients = self._clients
        attempt = self._send_short(batch, clients)
        if type(attempt) is Replies:
            return attempt
        return run_steps(self.dispatch(batch, clients, attempt))  # type: ignore[arg-type]

    def component(self, name: str, again: bool = False) -> Component:
        """Return a component, read ``again`` if that is wanted."""
        return self._topology.reread(name) if again else self._topology.component(name)

    def _endpoints(self, clients: Clients, component: Component) -> Mapping[Any, Endpoint]:
        return clients.endpoints(component, self._raw)

    def _initialize(self, client: Any) -> None:
        """Do nothing: a blocking cluster's client was initialized when it was made."""

    def _exchange(self, attempts: list[Attempt]) -> list[Attempt]:
        return exchange_all(attempts, self._raw)

    def _send_short(self, batch: Batch, clients: Clients) -> Replies | Attempt | None:
        """Send a few plain commands to one server without the dispatcher: the fast path.

        Return the attempt if it failed, or None if nothing was sent.
        """
        short = self._short(batch, self._topology.component, clients.endpoints)
        if short is None:
            return None
        endpoint, node, data, does = short
        pool = endpoint.pool if node is None else self._source_of(endpoint, node)
        deadline = earliest(pool.policy.deadline)
        events = Attempt.of_all(batch, endpoint).tell() if handlers else []
        try:
            replies, refused = pool.exchange(data, self._raw, deadline, len(batch), does)
            if not refused:
                for event in events:
                    settled(event, None)
                return Replies(replies)
            attempt = Attempt.of_all(batch, endpoint, node)
            attempt.replies, attempt.sent, attempt.refused = replies, True, True
        except ATTEMPT_ERRORS as failure:
            error: Any = failure
            reraise_handlers(error)
            attempt = Attempt.of_all(batch, endpoint, node)
            attempt.error, attempt.sent = error, error.maybe_executed
        attempt.events = events
        attempt.tell_end()
        return attempt

    def server_of(self, to: To, key: Key) -> Hashable:
        """Return what is the same for the keys on a server; for each key if it is not known."""
        try:
            endpoint, node = run_steps(self._server_of(to, key))
        except (*ATTEMPT_ERRORS, ShardKitError):
            return to, key
        return endpoint.lane if node is None else (endpoint.owner, node.name)

    def _source_of(self, endpoint: Endpoint, node: Any) -> Any:
        if node is None:
            return endpoint.pool
        return endpoint.owner.get_redis_connection(node).connection_pool

    def pool_of(self, to: To, key: Key) -> Any:
        """Return the pool of the server on which a key lives; None on a cluster."""
        endpoint, node = run_steps(self._server_of(to, key))
        return endpoint.pool if node is None else None

    def version_of(self, component: str) -> object:
        """Return what is the same object until the entries of a component change."""
        return self._topology.last_known(component)


def exchange_all(attempts: Sequence[Attempt], raw: bool = True) -> list[Attempt]:
    """Write to every server, then read from each as its replies come, chunk by chunk.

    Return the attempts. Where databases could not be opened, they are several in place of one.
    """
    # All calls take connections in this order. So two calls never wait for each other's.
    exchanges = sorted([Exchange(attempt, raw) for attempt in attempts], key=_NUMBER)
    complete = False
    try:
        connected = [exchange for exchange in exchanges if exchange.reserve()]
        for exchange in connected:
            exchange.begin()
        if len(connected) < len(exchanges):
            _connect_all([exchange for exchange in exchanges if exchange.helped])
        _read_all([exchange for exchange in exchanges if exchange.due])
        complete = True
    finally:
        for exchange in exchanges:
            exchange.close(complete)
    done: list[Attempt] = []
    again: list[Attempt] = []
    for exchange in exchanges:
        if not exchange.parts:
            ended, refused = exchange.attempt.outcomes()
            done += ended
            again += refused
    for turn in turns_of(again):
        done += exchange_all(turn, raw)
    for exchange in exchanges:
        for attempt in exchange.parts:  # one by one: each waits, while nobody waits for it
            done += exchange_all([attempt], raw)
    return done


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
                is_late, exchange.helped = left, False
                ready.put(exchange)
            if is_late:
                exchange.close(False)

    if len(exchanges) == 1:
        exchanges[0].helped = False
        exchanges[0].connect()
        exchanges[0].begin()
        return
    try:
        patience = 0.0
        for _ in range(min(len(exchanges), CONNECT_THREADS)):
            # Not a `threading.Thread`: starting that waits for the thread, which an exception that
            # somebody raises in the caller's thread can hit and end before it is there.
            with suppress(RuntimeError):  # Python is shutting down: this thread does it all
                start_new_thread(copy_context().run, (help_connecting,))
                patience = HELPED_WITHIN
        begun = 0
        while begun < len(exchanges):
            try:
                exchange = ready.get(timeout=patience if waiting else None)
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
        first = min(map(_UNTIL, exchanges))
        answered = poll.poll(None if first == inf else max(0.0, 1000 * (first - now)))
        if answered:
            return [by_number[number] for number, _ in answered]
        now = time.monotonic()
        if late := [exchange for exchange in exchanges if exchange.until <= now]:
            return late


class Exchange:
    """An attempt at one server over one connection: writes chunks and reads their replies."""

    def __init__(self, attempt: Attempt, raw: bool) -> None:
        endpoint = attempt.endpoints[0]
        self.pool: Any
        self._databases: Sequence[Any] = attempt.databases
        if attempt.node is not None:
            self.pool = endpoint.owner.get_redis_connection(attempt.node).connection_pool
            self._databases = [self.pool.database]
        else:
            self.pool = endpoint.pool if len(attempt.endpoints) == 1 else endpoint.access.way
        self.raw = raw
        self.attempt = attempt
        self._chunks = attempt.chunks()
        self.block = attempt.block
        self.parts: list[Attempt] = []  # what is sent next instead, as a database cannot be used
        self.connection: Any = None
        self.helped = self.timeout_changed = self._refused = False
        self.until = inf  # when the next replies are late, in monotonic seconds
        self.form = PLAIN  # how the requests reach a single database
        self.due = 0  # replies to what has been written, and will be
        self._written = self._read = 0  # chunks
        self._replies: list[Any] = []
        self.deadline = attempt.deadline

    def reserve(self) -> bool:
        """Take a connection from the pool; return whether it can be written to at once."""
        try:
            self.connection = self._in_time(self.pool.acquire, False)
        except ATTEMPT_ERRORS as error:
            self._fail(error)
            return False
        connection = self.connection
        ready = (
            connection.is_connected
            and not health_check_is_due(connection, time.monotonic())
            and connection.opened.issuperset(self._databases)
            and self._frame()
        )
        self.helped = not ready
        return ready

    def connect(self) -> None:
        """Do what takes exchanges of their own: connect, check health, open databases, SELECT."""
        try:
            self._in_time(self._connect)
        except Exception as error:  # whatever it is, only this server's requests fail
            self._fail(error)

    def _connect(self) -> None:
        """Connect, and open the databases that were not."""
        connection, self.connection = self.connection, None
        if health_check_is_due(connection, time.monotonic()):
            connection.check_health()  # closes it if it is dead
        if not connection.is_connected:
            self.pool.connect(connection)
        self.connection = connection
        if new := [database for database in self._databases if database not in connection.opened]:
            alone = len(self._databases) == 1
            errors = connection.open(new, waits=alone)
            for error in errors.values() if alone else ():
                raise error
            if not connection.opened.issuperset(new):
                self._chunks = []
                self.parts = self.attempt.divided(connection.opened)
        if not self._frame():
            self.attempt.confirms = False
            refusal = run_steps(connection.select(self._databases[0]))
            if refusal is None:
                self._frame()
            else:
                self.attempt.refuse(refusal)

    def _in_time(self, call: Callable[..., Any], *args: Any) -> Any:
        if self.deadline is None:  # as mostly: a context manager would cost more than all the rest
            return call(*args)
        with within(self.deadline):
            return call(*args)

    def begin(self) -> None:
        """Write the first chunks."""
        if self.connection is None or not self.due:
            return
        try:
            for _ in self._chunks[:2]:
                self._write()
        except ATTEMPT_ERRORS as error:
            self._fail(error)

    def _frame(self) -> bool:
        """Have the requests reach opened databases; return False if SELECT must be confirmed."""
        connection, chunks, attempt = self.connection, self._chunks, self.attempt
        if not chunks:
            return True
        if len(self._databases) > 1:
            connection.be_in_any()
        else:
            [database], (first, *others) = self._databases, chunks
            does = ALONE if self.block is not None else attempt.does
            if attempt.confirms and connection.selected != database.number:
                return False
            attempt.confirms = False
            self.form, data, count = connection.encode(
                database, does, first.data, first.replies, several=bool(others)
            )
            if self.form == CONFIRMED:
                return False
            self._chunks = [Chunk(data, count), *others]
        self.due = sum([chunk.replies for chunk in self._chunks])
        return True

    def _write(self) -> None:
        n = self._written
        if self.deadline is not None:
            self.deadline.require_left()
        self.attempt.sent = True
        connection, self._written = self.connection, n + 1
        timeout = connection.socket_timeout
        if self.block is not None:
            connection.for_block = True
            timeout = timeout_for(self.block, timeout)
        packed = PackedCommands((self._chunks[n].data,))
        self._in_time(connection.send_packed_command, packed, False)
        if self.block is not None:  # with a deadline, sending has set the usual one
            self._set_timeout(timeout)
        self.until = inf if timeout is None else time.monotonic() + timeout
        if self.deadline is not None:
            self.until = min(self.until, self.deadline.at)

    def read(self) -> None:
        """Read the replies to the next chunk, and write the one after the next."""
        n = self._read
        more = n + 1 < len(self._chunks)
        try:
            if self.until <= time.monotonic():
                self._set_timeout(MIN_TIMEOUT)
            replies, refused = self.connection.round_trip(
                b"", self.raw, self.deadline, self._chunks[n].replies, more
            )
            self._replies += replies
            self._refused = self._refused or refused
            if self.timeout_changed and self.block is None:
                self._set_timeout(self.connection.socket_timeout)
            self._read += 1
            if more:
                while self._written < min(len(self._chunks), n + 3):
                    self._write()
            else:
                self._deliver()
        except ATTEMPT_ERRORS as error:
            self._fail(error)

    def poll_number(self) -> int | None:
        """Return the number of the socket; None if what comes next cannot be seen there."""
        number = getattr(self.connection, "poll_number", None)
        return None if number is None else number()

    def _deliver(self, error: Exception | None = None) -> None:
        """Give the attempt its replies, and the error if some have not come."""
        attempt, replies = self.attempt, self._replies
        self.due = 0
        attempt.ended = time.perf_counter() if handlers else 0.0
        attempt.error, attempt.refused = error, self._refused
        attempt.replies = replies
        if self.form != PLAIN and error is None:
            try:
                values = self.connection.decode(self.form, replies, self._databases[0])
                attempt.replies, attempt.confirms = values or [], values is None
            except ConnectionError as astray:
                attempt.replies, attempt.error = [], astray
        if attempt.error is not None and self.connection is not None:
            self.connection.disconnect()

    def _fail(self, error: Exception) -> None:
        self._chunks = []  # nothing more is written
        self._deliver(error)
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
        with tolerated(OSError):  # it is closed; its next use fails
            set_timeout(self.connection, seconds)
        self.timeout_changed = True


# ---- awaiting


class AwaitingLink(Link):
    """Carries batches over awaiting connections, of which each event loop has its own."""

    run = staticmethod(arun_steps)
    subscriptions_of = AsyncSubscriptions
    sleep = staticmethod(asyncio.sleep)
    in_thread: Any = staticmethod(asyncio.to_thread)

    async def send(self, batch: Batch, clients: Clients | None = None) -> Replies:
        """Carry a batch and return its replies in order; see `BlockingLink.send`.

        Cost: one exchange with each server concerned, shared with other tasks' batches.
        """
        if clients is None:
            if in_use.any and self._reads is not None:
                return await self._reads.send(self, batch)  # type: ignore[no-any-return]
            clients = self._clients
        short = self._short(batch, self._topology.fresh, clients.aendpoints)
        connection = None
        if short is not None:  # the fast path
            endpoint, node, data, does = short
            access = endpoint.access
            database: Any = endpoint.database
            if database is None:  # a cluster
                pool = pool_of_node(node)
                database, connection = pool.database, multiplexed(pool)
            elif not (database.left or access.way.draining):  # else the entry has changed
                connection = access.way.multiplexed or multiplexed(access.way)
        if connection is None:
            return await arun_steps(self.dispatch(batch, clients))
        events = Attempt.of_all(batch, endpoint).tell() if handlers else []
        deadline = earliest(access.policy.deadline)
        chunks, raw = ((data, len(batch)),), self._raw
        received = await connection.submit(chunks, (database,), raw, deadline, does)
        if not received.refused:
            for event in events:
                settled(event, None, written=received.written)
            return received
        attempt = Attempt.of_all(batch, endpoint, node)
        _receive(attempt, received)
        attempt.events = events
        attempt.tell_end()
        return await arun_steps(self.dispatch(batch, clients, attempt))

    async def component(self, name: str, again: bool = False) -> Component:
        """Return a component; see the blocking link's."""
        topology = self._topology
        component = None if again else topology.fresh(name)
        if component is None:
            async with kept_to_deadline():
                component = await (topology.areread(name) if again else topology.acomponent(name))
        return component

    async def _learn(self, client: Any) -> None:
        async with kept_to_deadline():
            await learn_slots(client)

    def _source_of(self, endpoint: Endpoint, node: Any) -> Any:
        return endpoint.pool if node is None else pool_of_node(node)

    def _endpoints(self, clients: Clients, component: Component) -> Mapping[Any, Endpoint]:
        return clients.aendpoints(component, self._raw)

    async def _initialize(self, client: Any) -> None:
        if isinstance(client, aioredis.RedisCluster):
            async with kept_to_deadline():
                await client.initialize()

    async def _exchange(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Send attempts and wait for their ends; see `exchange_all`."""
        packed: list[tuple[Attempt, Sequence[Chunk]]] = []  # all, before anything is sent
        for attempt in attempts:
            attempt.confirms = False  # what sends it sees to that
            chunks: Sequence[Chunk] = attempt.chunks()
            confirmed = CONFIRMED in attempt.forms  # its place is among the others
            packed += [piece[:2] for piece in _split(attempt)] if confirmed else [(attempt, chunks)]
        in_flight, alone = [], []
        for attempt, chunks in packed:
            endpoint = attempt.endpoints[0]
            holder, databases = endpoint.access.way, attempt.databases
            connection = None
            if attempt.node is not None:
                holder = pool_of_node(attempt.node)
                databases = [holder.database]
                connection = multiplexed(holder) if attempt.block is None else None
            elif not (attempt.block is not None or databases[0].left or holder.draining):
                connection = multiplexed(holder)
            else:
                holder = endpoint.pool
            if connection is None:
                alone.append(_exchange_alone(holder, attempt, chunks, self._raw))
            else:  # a future: a task for each would cost more than all the rest
                deadline, split = attempt.deadline, partial(_split, attempt)
                future = connection.submit(
                    chunks, databases, self._raw, deadline, attempt.does, split
                )
                in_flight.append((attempt, future))
        if alone:
            tried, done = await asyncio.gather(_await_replies(in_flight), asyncio.gather(*alone))
        else:
            tried, done = await _await_replies(in_flight), []
        again: list[Attempt] = []
        for attempt in tried:
            ended, refused = attempt.outcomes()
            done += ended
            again += refused
        return done + await self._exchange(again) if again else done


def _split(attempt: Attempt) -> list[Part]:
    """Return the commands for each of several databases."""
    return [(part, part.chunks(), part.databases[0], part.does) for part in attempt.parts]


def _receive(attempt: Attempt, received: Received) -> None:
    attempt.replies, attempt.refused, attempt.written = received, received.refused, received.written
    attempt.error, attempt.sent = received.error, received.sent


def _note_end(attempt: Attempt, future: object) -> None:
    attempt.ended = time.perf_counter()


async def _exchange_alone(
    pool: Any, attempt: Attempt, chunks: Sequence[Chunk], raw: bool
) -> Attempt:
    connection = None
    try:
        with within(attempt.deadline):
            connection = await pool.get_connection()
            attempt.sent = True
            attempt.replies = await carried(connection, chunks, raw, attempt.block)
            attempt.refused = True
    except Exception as error:  # whatever it is, only this server's requests fail
        attempt.error = error
    finally:
        if connection is not None:
            connection.for_block = False
            await give_back(pool, connection, broken=not attempt.refused)
    _note_end(attempt, None)
    return attempt


async def _await_replies(
    in_flight: list[tuple[Attempt, asyncio.Future[Received]]],
) -> list[Attempt]:
    """Wait for all replies, and return the attempts; if cancelled, stop waiting for any of them."""
    ended: list[Attempt] = []
    timed = 0
    try:
        for attempt, future in in_flight:
            for sent, done in in_flight[timed:] if handlers else ():
                done.add_done_callback(partial(_note_end, sent))
            timed = len(in_flight)
            received = await future
            in_flight += received.parts
            if not received.parts:
                _receive(attempt, received)
                ended.append(attempt)
    except BaseException:
        for _, future in in_flight:
            if not future.cancel() and not future.cancelled():
                for _, part in future.result().parts:
                    part.cancel()
        raise
    return ended
