"""Multiplexing: one awaiting connection to each server, shared by the tasks of an event loop.

::

    task A ─ SADD ┐                    ┌─► reply A
    task B ─ GET  ┼─► one write ──► server ─► replies of one connection, in order
    task C ─ SADD ┘  (a loop turn)     └─► reply C

Requests made in one turn of the loop leave in one write, those for another database with SELECT in
front. Replies come back in order; that of a cancelled task is dropped. An idle connection goes back
to redis-py's pool. One that failed, or was silent for the socket timeout, is closed, and requests
in flight on it fail; unwritten ones use the next connection. A request that needs a confirmed
SELECT waits until nothing is in flight, and others behind it. While a fence closes a database, its
requests wait for it apart.

While more than 64 KB of one reply have come, and more are to come, requests take another *lane*: a
further connection with the same rules. A request of more than 1 MB has a lane of its own. Reads
that were sent before, and are behind a reply of more than 2 MB, are sent once more, over a lane for
them alone: they change nothing, and the first reply counts.

redis-py connects and authenticates. While a connection is multiplexed, `MultiplexedConnection`
replaces asyncio's stream as the protocol of its transport, so that no task waits for each write.
"""

from __future__ import annotations

import asyncio
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from contextvars import Context
from itertools import islice, takewhile
from typing import Any, TypeAlias

from hiredis import PushNotification
from redis.exceptions import ConnectionError, InvalidResponse, ResponseError, TimeoutError

from shardkit.events import handlers
from shardkit.network.connections.connection import extended_timeout
from shardkit.network.connections.connection_state import ELSEWHERE, closed_error
from shardkit.network.connections.databases import ClientDatabase
from shardkit.network.connections.effects import ALONE, WRITES, PackedCommands
from shardkit.network.connections.framing import (
    CHANGES,
    CONFIRMED,
    PLAIN,
    SELECTED,
    has_selected,
    refusals,
)
from shardkit.network.connections.policy import CallPolicy, overloaded
from shardkit.network.connections.redis_private import INCOMPLETE, postpone_health_check
from shardkit.network.connections.replies import READ_BYTES
from shardkit.network.links.resp import CHUNK_BYTES, CHUNK_REQUESTS, Chunk
from shardkit.operations.commands import Replies, Reply
from shardkit.operations.deadlines import LONG_ENOUGH, Deadline
from shardkit.operations.steps import arun_steps

# Two chunks in flight, as on the blocking link, so that buffers are bounded.
MAX_BYTES = 2 * CHUNK_BYTES
MAX_REPLIES = 2 * CHUNK_REQUESTS
# Sizes for which others do not wait, of a reply that has not come as a whole, and of a request.
LARGE_REPLY, LARGE_REQUEST = READ_BYTES, 1024 * 1024
MOST_LANES = 4
READ_AGAIN_BEHIND, MOST_READ_AGAIN = 2 * 1024 * 1024, 64  # bytes of a reply; requests
_WRITTEN_EARLY = 32  # requests that are written before the turn of the loop is over


async def give_back(source: Any, connection: Any, *, broken: bool) -> None:
    """Release a connection, closed if it is broken."""
    if broken:
        await connection.disconnect(nowait=True)
    source.release_nowait(connection)


async def carried(
    connection: Any, chunks: Sequence[tuple[bytes, int]], raw: bool, block: float | None = None
) -> list[Reply]:
    """Send chunks over a connection; return the replies, in which errors are values."""
    count = sum(replies for _, replies in chunks)
    try:
        for data, expected in chunks:
            packed = PackedCommands.doing(WRITES | ALONE, (data,), expected)
            await connection.send_packed_command(packed, check_health=False)
    except ResponseError as error:  # to SELECT
        return list(refusals(error, count))
    connection.for_block = block is not None
    with nullcontext() if block is None else extended_timeout(connection, block):
        return await arun_steps(connection.replies(count, raw))


class Received(Replies):
    """The replies to a request. The attributes are the class's, as with `failed`.

    Those to a request for several databases include SELECT's.
    """

    # In place of replies, of databases whose commands are sent by themselves: what their sender
    # knows each by, and its future.
    parts: Sequence[tuple[Any, asyncio.Future[Received]]] = ()
    refused = False  # whether an error is among them, inside one, or in their place
    error: Exception | None = None  # in their place
    sent = True  # whether the server may have seen the request
    written = 0.0  # when the request was written, by `time.perf_counter`, if there are handlers


class QueuedRequest:
    """Chunks of data, each with its number of replies, and the replies so far.

    The future is done when all replies have come or are lost. Its result is only the replies: with
    the request it would be cyclic garbage.
    """

    written = 0  # how many of its chunks
    form = PLAIN  # how it reached its database; see `framing`
    behind: QueuedRequest | None = None  # what it follows, whose SELECT was not answered by then
    unselected = False  # whether its SELECT was not executed
    confirms = False  # whether SELECT must be confirmed before it is written
    # Whether it reads once more what is in flight on another lane, for the same future: the replies
    # that come first count.
    is_copy = False
    deadline: Deadline | None = None
    # Of a request for several databases, whose data has SELECT in front of each; and what returns
    # the commands for each alone.
    databases: Sequence[ClientDatabase] | None = None
    split: Callable[[], list[Part]]

    def __init__(
        self,
        chunks: Sequence[tuple[bytes, int]],
        future: asyncio.Future[Received],
        database: ClientDatabase | None,
        raw: bool,
        does: int,
    ) -> None:
        self.does = does
        self.chunks = chunks
        self.future = future
        self.database = database
        self.raw = raw
        self.replies = Received()

    @property
    def unwritten(self) -> int:
        """How many replies there will be to what was not written."""
        return sum([count for _, count in self.chunks[self.written :]])

    def fail(self, error: Exception, sent: bool) -> None:
        """End without all replies; ``sent`` if the server may have received the request."""
        if not (self.is_copy or self.future.done()):
            replies = self.replies
            replies.error, replies.sent, replies.refused = error, sent, True
            self.future.set_result(replies)


Part: TypeAlias = tuple[Any, Sequence[Chunk], ClientDatabase, int]
"""The commands for one of several databases: what their sender knows them by, and what they do."""


class MultiplexedConnection(asyncio.BufferedProtocol):
    """One connection to one server, shared by the tasks of a loop; acquired when needed.

    ::

        submit ─► queued ─► (write) ─► in flight ─► (replies) ─► the request's future

    The ``first`` lane of a server gets all requests, and opens further ones.
    """

    def __init__(
        self,
        source: Any,  # see `source_of`
        policy: CallPolicy,
        first: MultiplexedConnection | None = None,
        is_taken: bool = False,
    ) -> None:
        self.source = source
        self._policy = policy
        self._first = first
        self._is_taken = is_taken  # whether it is for one request alone
        self._lanes: list[MultiplexedConnection] = []  # others of the first, while they are in use
        self._current = self if first is None else first  # of these, the one for small requests
        self._max_waiting, self._breaker = policy.max_waiting, policy.breaker
        self._waiting = 0  # commands that are queued
        self._loop = asyncio.get_running_loop()
        self._queued: deque[QueuedRequest] = deque()
        # Each with how many bytes were written, how many replies these will have, and whether that
        # was the rest of it.
        self._in_flight: deque[tuple[QueuedRequest, int, int, bool]] = deque()
        self._bytes_in_flight = self._replies_in_flight = self._replies_to_first = 0
        self._connection: Any = None
        self._transport: Any = None
        self._stream_protocol: Any = None
        self._parser: Any = None
        self._pushes = False
        self._bytes = bytearray(READ_BYTES)
        self._buffer = memoryview(self._bytes)
        self._connecting: asyncio.Task[None] | None = None  # or opening databases
        self._others: set[asyncio.Task[None]] = set()
        self._write_scheduled = False
        self._joined = False  # whether several requests shared the last write
        self._must_close: bool
        self._selecting: QueuedRequest | None = None  # the last one whose SELECT is unanswered
        # What waits for an open database; or, while that is written, why it cannot be used.
        self._fenced: dict[ClientDatabase, list[QueuedRequest] | Exception] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._last_read = self._answered_at = self._silent_at = 0.0
        self._unwritten = 0
        self._first_since = 0.0  # when the first in flight became that
        self._received = 0  # bytes since then
        self._incomplete = 0  # bytes of the reply that has begun to come

    def _split(self, request: QueuedRequest, queued: deque[QueuedRequest]) -> int:
        """Put a request for each database in the place of one for several, which ends.

        What was called later must not overtake one of them. Return how many replies more there
        will be.
        """
        parts, futures = [], []
        for attempt, chunks, database, does in request.split():
            future = self._loop.create_future()
            part = QueuedRequest(chunks, future, database, request.raw, does)
            if request.deadline is not None:
                self._limit(part, request.deadline)
            futures.append((attempt, future))
            parts.append(part)
        request.replies.parts = futures
        request.future.set_result(request.replies)
        queued.extendleft(reversed(parts))
        return sum(part.unwritten for part in parts) - request.unwritten

    def submit(
        self,
        chunks: Sequence[tuple[bytes, int]],
        databases: Sequence[ClientDatabase],
        raw: bool,
        deadline: Deadline | None,
        does: int,
        split: Any = None,
    ) -> asyncio.Future[Received]:
        """Queue chunks of packed commands for a database; return the future of their replies.

        Or for several, with SELECT in front of each one's; then what must be sent alone is what
        ``split`` returns, see `QueuedRequest`. With ``raw``, replies are bytes, else as the entry
        says. ``does`` are the commands' effects.
        """
        if asyncio._get_running_loop() is not self._loop:
            raise closed_error(ELSEWHERE)
        future = self._loop.create_future()
        request = QueuedRequest(chunks, future, databases[0], raw, does)
        if len(databases) > 1:
            request.database, request.databases, request.split = None, databases, split
        data, replies = chunks[0]
        size = len(data)
        if len(chunks) > 1:
            size, replies = sum(len(chunk) for chunk, _ in chunks), request.unwritten
        if self._breaker is not None and self._breaker.opened:
            request.fail(self._breaker.error(), sent=False)
            return future
        if deadline is not None and deadline.at != math.inf:
            request.deadline = deadline
            self._limit(request, deadline)
            if future.done():
                return future
        lane, waiting = self, self._waiting
        if self._lanes or self._incomplete > LARGE_REPLY or size > LARGE_REQUEST:
            lane = self._lane_for(size)
            waiting += sum(other._waiting for other in self._lanes)
        if waiting and waiting + replies > self._max_waiting:
            request.fail(overloaded(waiting, self._max_waiting), sent=False)
            return future
        lane._waiting += replies
        lane._queued.append(request)
        if not lane._write_scheduled:
            lane._write_soon()
        elif len(lane._queued) == _WRITTEN_EARLY:  # the server begins while others join
            lane._write()
            lane._write_scheduled = True
        return future

    def _limit(self, request: QueuedRequest, deadline: Deadline) -> None:
        """Have a request fail when a deadline passes; the connection stays in use."""
        left, started = deadline.left(), time.monotonic()
        if left <= 0:
            request.fail(deadline.passed(), sent=False)
            return

        def expire() -> None:
            error = deadline.passed(time.monotonic() - started)
            request.fail(error, bool(request.written))
            now = self._loop.time()  # the breaker counts silence once for all who wait
            if self._in_flight and now - max(self._last_read, self._silent_at) >= LONG_ENOUGH:
                self._silent_at = now
                self._policy.failed(error, math.inf)

        timer = self._loop.call_later(left, expire)
        request.future.add_done_callback(lambda _: timer.cancel())

    def _lane_for(self, size: int) -> MultiplexedConnection:
        """Return the lane for a request, while there are several or some are blocked.

        Requests that are not written yet come along, so that none overtakes another.
        """
        self._lanes = [lane for lane in self._lanes if lane._queued or lane._in_flight]
        if size > LARGE_REQUEST:
            return self._new_lane(is_taken=True) or self
        lanes = [self, *self._lanes]
        current = self._current if self._current in lanes else self
        if current._is_blocked:
            free = next((lane for lane in lanes if not lane._is_blocked), None) or self._new_lane()
            if free is not None:
                current._hand_over(free)
                current = free
        elif not (current._queued or self._is_blocked):
            current = self
        self._current = current
        return current

    def _new_lane(self, is_taken: bool = False) -> MultiplexedConnection | None:
        spare = self.source.max_connections - self.source.connections.counts()[1]
        if len(self._lanes) + 1 >= MOST_LANES or spare < 2:  # one is for others
            return None
        lane = MultiplexedConnection(self.source, self._policy, self, is_taken)
        self._lanes.append(lane)
        return lane

    @property
    def _is_blocked(self) -> bool:
        return self._is_taken or self._incomplete > LARGE_REPLY

    def _hand_over(self, lane: MultiplexedConnection) -> None:
        """Have another lane send what this one has not begun to send."""
        begun = deque(islice(self._queued, bool(self._queued and self._queued[0].written)))
        moved = list(islice(self._queued, len(begun), None))
        self._queued = begun
        count = sum(request.unwritten for request in moved)
        self._waiting -= count
        lane._waiting += count
        lane._queued.extend(moved)
        if moved:
            lane._write_soon()

    def _read_again(self) -> None:
        """Send reads that wait behind a very large reply over another lane, too."""
        copies: list[QueuedRequest] = []
        for read, *_ in islice(self._in_flight, 1, 1 + MOST_READ_AGAIN):
            if read.does & CHANGES or len(read.chunks) > 1 or read.is_copy:
                break  # what follows a write might read too early
            if read.database is not None and not read.future.done():
                copy = QueuedRequest(read.chunks, read.future, read.database, read.raw, read.does)
                copy.is_copy = True
                copies.append(copy)
        lane = (self._first or self)._new_lane(is_taken=True) if copies else None
        if lane is not None:
            lane._queued.extend(copies)
            lane._waiting += sum(request.unwritten for request in copies)
            lane._write_soon()

    def _write_soon(self) -> None:
        """Write what is queued, now or at the end of the turn of the loop."""
        if self._transport is None and not self._joined:
            self._acquire()
        elif not self._write_scheduled:  # later requests of this turn join the same write
            self._write_scheduled = True
            self._loop.call_soon(self._write)

    @property
    def state(self) -> str:
        """What it is doing: ``connected, 0 waiting, 3 replies outstanding``."""
        if self._connecting is not None:
            state = "connecting"
        else:
            state = "idle" if self._transport is None else "connected"
        outstanding = self._replies_in_flight - self._replies_to_first
        return f"{state}, {len(self._queued)} waiting, {outstanding} replies outstanding"

    # ---- acquiring and releasing the connection

    def _acquire(self) -> None:
        """Acquire a connection and write: now if one is idle, else once connected."""
        if self._connecting is not None and not self._connecting.done():
            return
        try:
            connection = self.source.get_idle()
            if connection is not None:
                self._attach(connection)
        except Exception as error:  # whatever it is, nothing was sent
            self._give_up(error)
            return
        if connection is None:
            # For all tasks: the deadline of the one that needs it first is not that of the others.
            self._connecting = self._loop.create_task(self._connect(), context=Context())
        else:
            self._write()

    async def _connect(self) -> None:
        try:
            self._attach(await self.source.acquire())
        except Exception as error:  # whatever it is, nothing was sent
            self._connecting = None
            self._give_up(error)
            return
        except BaseException:  # the loop is shutting down
            self._fail_queued(ConnectionError("the event loop is shutting down"))
            raise
        finally:
            self._connecting = None
        self._write()

    def _attach(self, connection: Any) -> None:
        self._parser, self._connection = connection.reply_parser, connection
        self._parser.refused = self._parser.unusable = False
        self._transport = connection.transport
        self._stream_protocol = self._transport.get_protocol()
        self._transport.set_protocol(self)
        self._pushes = int(connection.protocol) != 2
        self._must_close, self._selecting = False, None

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        transport, self._transport = self._transport, None
        transport.set_protocol(self._stream_protocol)
        if self._must_close:
            connection.unusable = self._parser.unusable
            transport.abort()
        else:
            postpone_health_check(connection, self._last_read)
        self.source.release_nowait(connection)

    def _break_off(self, error: Exception) -> None:
        """Close the connection, and fail what is in flight on it."""
        if self._transport is None:
            return
        if self._connection.closed:
            error = closed_error(self._connection.closed)
        elif self._in_flight:
            self._connection.idle_since = max(self._connection.idle_since, self._answered_at)
            self._connection.note_failure(error)
        for request, _, _, _ in self._in_flight:
            request.fail(error, sent=True)
        self._in_flight.clear()
        self._incomplete = 0
        self._bytes_in_flight = self._replies_in_flight = self._replies_to_first = 0
        if self._queued and self._queued[0].written:  # half of it is out
            self._waiting -= self._queued.popleft().unwritten
        self._must_close = True
        self._release()
        if self._queued:
            self._acquire()

    def _give_up(self, error: Exception) -> None:
        """There is no connection, and nothing was sent: the first lane may still have one."""
        if self._first is None or (self._queued and self._queued[0].is_copy):
            self._fail_queued(error)
        else:
            self._hand_over(self._first)

    def _fail_queued(self, error: Exception) -> None:
        self._waiting = 0
        while self._queued:
            self._queued.popleft().fail(error, sent=False)

    # ---- writing

    def _write(self) -> None:
        """Write what is queued, up to the limits of what may be in flight."""
        self._write_scheduled = False
        if self._transport is None:  # it broke in the meantime, or databases are being opened
            if self._queued:
                self._acquire()
            return
        if not self._in_flight:
            self._last_read = self._first_since = self._loop.time()
            self._unwritten = self._received = 0
            if self._timer is None:
                self._watch()
        data = []
        connection, entered = self._connection, self._connection.entered
        queued, in_flight, fenced = self._queued, self._in_flight, self._fenced
        size, replies = self._bytes_in_flight, self._replies_in_flight
        waiting = self._waiting
        ends = connection.ends or (connection.login_expires and connection.login.is_due())
        while queued and size < MAX_BYTES and replies < MAX_REPLIES:
            request = queued[0]
            if request.future.done():  # cancelled
                queued.popleft()
                waiting -= request.unwritten
                if in_flight and in_flight[-1][0] is request:  # these are all replies to it
                    in_flight[-1] = (*in_flight[-1][:3], True)
                elif request.form or request.behind is not None:
                    self._end_framed(request)
                    entered = connection.entered
                continue
            written = request.written
            if ends and not written:
                break  # `_pause` gets another, or logs in again
            packed, count = request.chunks[written]
            if written:
                pass  # the rest of it
            elif request.databases is not None:
                if not connection.opened.issuperset(request.databases):
                    if fenced.keys().isdisjoint(request.databases):
                        break  # `_pause` opens them
                    queued.popleft()
                    waiting += self._split(request, queued)
                    continue
                entered = None
                connection.be_in_any()
            elif fenced and request.database in fenced:
                queued.popleft()
                waiting -= request.unwritten
                if isinstance(queue := fenced[request.database], Exception):
                    request.fail(queue, sent=False)
                else:
                    queue.append(request)
                continue
            elif request.database is not entered or self._selecting is not None:
                if request.database not in connection.opened:
                    break
                framed = None if request.confirms else self._frame(request)
                if framed is None:
                    request.confirms = request.confirms or not in_flight
                    break  # `_open` selects it then
                waiting += framed[1] - count
                entered, (packed, count) = request.database, framed
            if handlers and not written:
                request.replies.written = time.perf_counter()
            waiting -= count
            request.written = written = written + 1
            if last := written == len(request.chunks):
                queued.popleft()
            in_flight.append((request, len(packed), count, last))
            size += len(packed)
            replies += count
            data.append(packed)
        self._bytes_in_flight, self._replies_in_flight = size, replies
        self._waiting = waiting
        if data:
            self._joined = len(data) > 1
            self._transport.write(data[0] if len(data) == 1 else b"".join(data))
        elif not self._in_flight:
            self._pause()

    def _frame(self, request: QueuedRequest) -> tuple[bytes, int] | None:
        """Return what is written, with replies; None if SELECT must be confirmed first."""
        behind = self._selecting
        form, data, count = self._connection.encode(
            request.database,
            request.does,
            *request.chunks[0],
            several=len(request.chunks) > 1,
            answered=behind is None,
        )
        if form == CONFIRMED:
            return None
        if form == PLAIN:
            request.behind = behind
        else:
            request.form, self._selecting = form, request
        return data, count

    def _send_again(self, request: QueuedRequest) -> None:
        """Queue a request that was not executed behind a confirmed SELECT, in front of others."""
        if request.future.done():
            return
        request.written, request.confirms = 0, True
        request.form, request.behind = PLAIN, None  # what is behind it asks for `unselected`
        request.replies.clear()
        request.replies.refused = False
        before = takewhile(lambda queued: queued.written or queued.confirms, self._queued)
        self._queued.insert(sum(1 for _ in before), request)
        self._waiting += request.unwritten

    async def _await_fence(self, database: ClientDatabase, waiting: list[QueuedRequest]) -> None:
        """Wait at a fence, over a connection for that; then queue in front what waits.

        What is for a database that the entries have left is sent over that connection, in order.
        """
        connection, broken, concerned = None, True, waiting
        try:
            connection = await self.source.acquire()
            connection.database = database
            await connection.enter()
            while database.left and waiting:
                if (request := waiting.pop(0)).future.done():
                    continue
                concerned = [request]
                request.written, request.replies.refused = 1, True  # the latter perhaps
                request.replies[:] = await carried(connection, request.chunks, request.raw)
                if not request.future.done():
                    request.future.set_result(request.replies)
                concerned = waiting
            broken = False
        except Exception as error:  # whatever it is, only these requests fail
            for request in concerned:
                request.fail(error, sent=bool(request.written))
        finally:
            del self._fenced[database]
            if connection is not None:
                await give_back(self.source, connection, broken=broken)
        self._waiting += sum(request.unwritten for request in waiting)
        begun = [self._queued.popleft()] if self._queued and self._queued[0].written else []
        # The rest of what is sent comes first.
        self._queued.extendleft(reversed([*begun, *waiting]))
        self._write_soon()

    def _pause(self) -> None:
        """Nothing is in flight, and nothing could be written: open, select, or release."""
        connection = self._connection
        if not self._queued or connection.ends:
            self._must_close = self._must_close or connection.ends
            self._release()
            if self._queued:
                self._acquire()
            return
        transport, self._transport = self._transport, None
        transport.set_protocol(self._stream_protocol)  # redis-py's code reads the answers
        self._connecting = self._loop.create_task(self._open(connection), context=Context())

    async def _open(self, connection: Any) -> None:
        """Open the databases of the requests that wait, and select the first one's if it must be.

        Log in again if that is due.
        """
        wanted: set[Any] = set()
        for request in self._queued:
            wanted.update(request.databases or (request.database,))
        wanted.difference_update(connection.opened, self._fenced)
        errors: dict[ClientDatabase, Exception] = {}
        try:
            await connection.check_health()
            lasting = [database for database in wanted if not database.left]
            if lasting and connection.is_connected:
                errors = await connection.open(lasting, waits=False)
            first = self._queued[0]
            if first.confirms and first.database in connection.opened and connection.is_connected:
                refusal = await arun_steps(connection.select(first.database))
                if refusal is not None and not first.future.done():
                    first.replies[:] = refusals(refusal, first.unwritten)
                    first.replies.refused = True
                    first.future.set_result(first.replies)
        except BaseException as error:  # whatever it is, nothing was sent
            self._connection = None
            await give_back(self.source, connection, broken=True)
            if isinstance(error, Exception):
                self._fail_queued(error)
                return
            self._fail_queued(ConnectionError("the event loop is shutting down"))
            raise
        finally:
            self._connecting = None
        if not connection.is_connected:  # it could not log in again
            self._connection = None
            self.source.release_nowait(connection)
            self._acquire()
            return
        self._fenced |= errors
        for database in wanted.difference(connection.opened, errors):
            waiting = self._fenced[database] = []
            task = self._loop.create_task(self._await_fence(database, waiting), context=Context())
            self._others.add(task)
            task.add_done_callback(self._others.discard)
        self._attach(connection)
        self._write()
        for database in errors:
            del self._fenced[database]

    def pause_writing(self) -> None:
        """Called by the transport: its buffer is full."""
        self._stream_protocol.pause_writing()

    def resume_writing(self) -> None:
        """Called by the transport: its buffer has room."""
        self._stream_protocol.resume_writing()

    # ---- reading

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by the transport: where to put what arrives."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the transport: ``nbytes`` have arrived."""
        if self._transport is None:
            return  # it broke in the meantime
        self._last_read = self._loop.time()
        self._received += nbytes
        self._incomplete += nbytes
        if self._incomplete > READ_AGAIN_BEHIND >= self._incomplete - nbytes:
            self._read_again()
        try:
            headers = self._parser.headers
            headers.feed(self._bytes, nbytes)
            self._deliver()
            while headers.suspect and self._in_flight:
                headers.go_on()
                self._deliver()
            large = self._incomplete > LARGE_REPLY and bool(self._in_flight)
            if large and self._in_flight[0][0].is_copy:
                self._in_flight.clear()  # the reply is large itself: it is read only once
                self._break_off(ConnectionError("the reply is large"))
                return
            if self._received > READ_BYTES:
                seconds = self._last_read - self._first_since
                self._parser.check(seconds, self._received)
        except (TimeoutError, InvalidResponse) as error:
            self._break_off(error)
            return
        except Exception as error:
            self._break_off(ConnectionError(f"the reply is not RESP: {error}"))
            return
        if self._queued:
            if not self._write_scheduled:
                self._write()
        elif not self._in_flight:
            if self._parser.has_more():
                self._break_off(ConnectionError("the server sent more replies than requests"))
            else:
                self._release()

    def _deliver(self) -> None:
        """Deliver the replies received so far to the requests in flight."""
        parser, in_flight, pushes = self._parser, self._in_flight, self._pushes
        delivered, freed = 0, 0
        while in_flight:
            request, size, count, last = in_flight[0]
            gets = parser.gets_raw if request.raw else parser.gets_decoded
            replies = request.replies
            missing = 0
            if count == 1 and not pushes:
                reply = gets()
                if reply is INCOMPLETE:
                    break
                replies.append(reply)
            else:
                missing = due = count - self._replies_to_first
                if pushes:
                    while missing and (reply := gets()) is not INCOMPLETE:
                        if not isinstance(reply, PushNotification):
                            replies.append(reply)
                            missing -= 1
                else:  # all that have come, without a step of Python each
                    before = len(replies)
                    replies.extend(islice(iter(gets, INCOMPLETE), missing))
                    missing -= len(replies) - before
                self._replies_to_first = count - missing if missing else 0
                if missing < due:
                    self._incomplete = 0
            if parser.refused:
                parser.refused, replies.refused = False, True
                self._must_close = self._must_close or parser.unusable
            if missing:
                break
            if last:
                if request.form or request.behind is not None:
                    self._end_framed(request)  # if that fails, it fails as what is in flight
                elif not request.future.done():
                    request.future.set_result(replies)
            in_flight.popleft()
            delivered += count
            freed += size
        if delivered:
            self._received = self._incomplete = 0
            self._first_since = self._answered_at = self._last_read
            self._bytes_in_flight -= freed
            self._replies_in_flight -= delivered

    def _end_framed(self, request: QueuedRequest) -> None:
        """Give a request its replies; send it again if it has not reached its database."""
        replies, behind, refused = request.replies, request.behind, False
        if request.form and self._selecting is request:
            self._selecting = None
        if request.form == SELECTED and not isinstance(replies[0], Exception):
            del replies[0]  # as almost always, without further calls
        elif request.form:
            connection, form, database = self._connection, request.form, request.database
            request.unselected = not has_selected(form, replies)
            try:
                values = connection.decode(form, replies, database)
            except ConnectionError as error:
                self._must_close = connection.ends = True
                request.fail(error, sent=True)
                return
            refused = values is None
            if values is not None:
                replies[:] = values
        if refused or (behind is not None and behind.unselected):
            self._send_again(request)
        elif not request.future.done():
            request.future.set_result(replies)

    def eof_received(self) -> None:
        """Called by the transport: the server has closed its side."""
        self._stream_protocol.eof_received()
        self._break_off(ConnectionError("the server closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the transport: it is closed."""
        self._stream_protocol.connection_lost(exc)
        self._break_off(ConnectionError(f"the connection was lost{f': {exc}' if exc else ''}"))

    # ---- timeout

    def _watch(self) -> None:
        """Look at the time again when something may have taken too long."""
        moved, whole = self._connection.socket_timeout, self._connection.exchange_timeout
        at = min(
            math.inf if moved is None else self._last_read + moved,
            math.inf if whole is None else self._first_since + whole,
        )
        if at != math.inf:
            # Not by a strong reference, which would keep a closed kit until then.
            self._timer = self._loop.call_at(at, _check_timeout, weakref.ref(self))

    def _check_timeout(self) -> None:
        """Close a connection on which nothing has moved, or a reply has taken too long."""
        self._timer = None
        if self._transport is None:
            return
        now = self._loop.time()
        unwritten = self._transport.get_write_buffer_size()
        if unwritten < self._unwritten:
            self._last_read = now
        self._unwritten = unwritten
        timeout = self._connection.socket_timeout
        try:
            if timeout is not None and self._last_read + timeout <= now:
                raise TimeoutError(f"no reply for {timeout} seconds")
            self._parser.check(now - self._first_since, 0)
        except TimeoutError as error:
            self._break_off(error)
        else:
            self._watch()


def multiplexed(pool: Any) -> MultiplexedConnection | None:
    """Return the connection of all tasks for the way of a pool; None if they cannot share one."""
    way = pool.way
    if way.multiplexed is None and way.connection_class.direct:
        way.multiplexed = MultiplexedConnection(way, way.policy)
    connection: MultiplexedConnection | None = way.multiplexed
    pool.multiplexed = connection
    return connection


def _check_timeout(reference: weakref.ref[MultiplexedConnection]) -> None:
    connection = reference()
    if connection is not None:
        connection._check_timeout()
