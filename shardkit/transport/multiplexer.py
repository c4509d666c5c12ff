"""Lines: one awaiting connection to each server, shared by the tasks of an event loop.

::

    task A ─ SADD ┐                    ┌─► reply A
    task B ─ GET  ┼─► one write ──► server ─► replies of one connection, in order
    task C ─ SADD ┘  (a loop turn)     └─► reply C

Requests made in one turn of the loop leave in one write: automatic pipelining. Replies come back in
order, so each finds its request; a task that was cancelled meanwhile just does not get its own.
While a line has nothing to do, its connection lies in redis-py's pool, which looks at it again
before the next use. A connection that failed, or was silent for the socket timeout, is closed, and
what is in flight on it fails; what was not yet written goes out on the next one.

redis-py connects and authenticates. While a line uses a connection, it takes the place of asyncio's
stream as the protocol of its transport, so that no task has to wait for each write and reply.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from itertools import islice
from typing import Any

from hiredis import PushNotification
from redis.exceptions import (
    ConnectionError,  # noqa: A004 - redis-py's own
    MaxConnectionsError,
    RedisError,
    ResponseError,
    TimeoutError,  # noqa: A004 - redis-py's own
)

from shardkit.connections import MISSING, READ_BYTES, patient
from shardkit.operations.commands import Replies, Reply
from shardkit.transport.resp import CHUNK_BYTES, CHUNK_REQUESTS, Chunk

# Two chunks are in flight on a line, as on the blocking link: its buffers are bounded.
MOST_BYTES = 2 * CHUNK_BYTES
MOST_REPLIES = 2 * CHUNK_REQUESTS


class Lost(Exception):
    """A request failed; ``sent`` if the server may have seen it."""

    def __init__(self, error: Exception, sent: bool) -> None:
        super().__init__(error, sent)
        self.error = error
        self.sent = sent


class Server:
    """Where connections come from: a client's pool, or a node of a cluster, which is one itself."""

    def __init__(self, source: Any, raw: bool) -> None:
        self.raw = raw
        self.source = source
        self._is_pool = hasattr(source, "get_connection")

    def borrow(self) -> Any:
        """Return a connection that can be used at once, or None."""
        if self._is_pool:
            return self.source.borrow()
        with suppress(MaxConnectionsError):  # who then waits for one, is told
            connection = self.source.acquire_connection()
            if connection.is_quiet():
                return connection
            self.source.release(connection)
        return None

    async def acquire(self) -> Any:
        """Return a connection that is connected, and was asked for its health if it is time."""
        if self._is_pool:
            connection = await self.source.get_connection()
        else:
            connection = self.source.acquire_connection()
            try:
                if connection.is_connected and not connection.is_quiet():
                    await connection.disconnect(nowait=True)
                await connection.connect()
            except BaseException:
                self.source.release(connection)
                raise
        try:
            await connection.check_health()
        except BaseException:
            await self.release(connection, broken=True)
            raise
        return connection

    async def release(self, connection: Any, *, broken: bool) -> None:
        """Give a connection back, closed if it is broken."""
        if broken:
            await connection.disconnect(nowait=True)
        released = self.source.release(connection)
        if self._is_pool:
            await released

    def give_back(self, connection: Any) -> None:
        """Release a connection, without waiting."""
        if self._is_pool:
            self.source.give_back(connection)
        else:
            self.source.release(connection)

    async def alone(self, block: float | None, chunks: list[Chunk]) -> list[Reply]:
        """Carry one parcel on a connection of its own."""
        try:
            connection = await self.acquire()
        except (RedisError, OSError) as error:
            raise Lost(error, sent=False) from error
        whole = False
        try:
            for chunk in chunks:
                await connection.send_packed_command(chunk.data, check_health=False)
            count = sum(chunk.replies for chunk in chunks)
            if block is None:
                replies = await self._read(connection, count)
            else:
                with patient(connection, block):
                    replies = await self._read(connection, count)
            whole = True
        except (RedisError, OSError) as error:
            raise Lost(error, sent=True) from error
        else:
            return replies
        finally:
            await self.release(connection, broken=not whole)

    async def _read(self, connection: Any, count: int) -> list[Reply]:
        replies: list[Reply] = []
        while len(replies) < count:
            try:
                replies.append(await connection.read_response(disable_decoding=self.raw))
            except ResponseError as error:
                replies.append(error)
        return replies


class Request:
    """Chunks to write, the replies so far, and the future that is done when all have come."""

    __slots__ = ("chunks", "future", "left", "refused", "replies", "sent")

    def __init__(self, chunks: list[Chunk], left: int, future: asyncio.Future[Request]) -> None:
        self.chunks = chunks
        self.future = future
        self.sent = 0
        self.replies = Replies()
        self.refused = False  # whether an error is among them, or inside of one
        self.left = left

    def fail(self, error: Exception, sent: bool) -> None:
        """Say that no answer came; ``sent`` if the server may have seen it."""
        if not self.future.done():
            self.future.set_exception(Lost(error, sent))


class Line(asyncio.BufferedProtocol):
    """One connection to one server, shared by the tasks of a loop; takes one when there is need.

    ::

        carry ─► queued ─► (write) ─► flying ─► (replies) ─► the request's future
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self._decode = not server.raw
        self._loop = asyncio.get_running_loop()
        self._queued: deque[Request] = deque()
        self._flying: deque[tuple[Request, Chunk]] = deque()
        self._bytes = self._replies = self._answered = 0
        self._connection: Any = None
        self._transport: Any = None
        self._stream: Any = None
        self._answers: Any = None
        self._pushes = False
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._connecting: asyncio.Task[None] | None = None
        self._is_due = False
        self._is_spent = False
        self._timer: asyncio.TimerHandle | None = None
        self._heard = 0.0
        self._unwritten = 0

    def carry(self, chunks: list[Chunk]) -> asyncio.Future[Request]:
        """Queue a request, and return the future of it with its replies."""
        replies = chunks[0].replies if len(chunks) == 1 else sum(each.replies for each in chunks)
        future: asyncio.Future[Request] = self._loop.create_future()
        self._queued.append(Request(chunks, replies, future))
        if self._transport is None:
            self._set_out()
        elif not self._is_due:  # the others of this turn join in
            self._is_due = True
            self._loop.call_soon(self._write)
        return future

    # ---- a connection, while there is something to do

    def _set_out(self) -> None:
        """Take a connection and write, at once or when one is made."""
        if self._connecting is not None and not self._connecting.done():
            return
        connection = self.server.borrow()
        if connection is None or _wants_check(connection, self._loop):
            self._connecting = self._loop.create_task(self._connect(connection))
        else:
            self._take(connection)
            self._write()

    async def _connect(self, connection: Any) -> None:
        try:
            if connection is not None:
                await self.server.release(connection, broken=False)
            connection = await self.server.acquire()
        except Exception as error:  # whatever it is, nothing was sent
            self._fail_queued(error)
            return
        except BaseException:  # the loop is shutting down
            self._fail_queued(ConnectionError("the event loop is shutting down"))
            raise
        finally:
            self._connecting = None
        self._take(connection)
        self._write()

    def _take(self, connection: Any) -> None:
        self._connection = connection
        self._transport = connection.transport
        self._stream = self._transport.get_protocol()
        self._transport.set_protocol(self)
        self._answers = connection.answers()
        self._pushes = int(connection.protocol) != 2
        self._is_spent = False

    def _rest(self) -> None:
        """Give the connection back: everything is answered."""
        connection, self._connection = self._connection, None
        transport, self._transport = self._transport, None
        transport.set_protocol(self._stream)
        if self._is_spent:
            transport.abort()
        elif connection.health_check_interval:
            connection.next_health_check = self._loop.time() + connection.health_check_interval
        self.server.give_back(connection)

    def _break(self, error: Exception) -> None:
        """Close the connection: what is in flight on it is lost."""
        if self._transport is None:
            return
        for request, _ in self._flying:
            request.fail(error, sent=True)
        self._flying.clear()
        self._bytes = self._replies = self._answered = 0
        if self._queued and self._queued[0].sent:  # half of it is out
            self._queued.popleft()
        self._is_spent = True
        self._rest()
        if self._queued:
            self._set_out()

    def _fail_queued(self, error: Exception) -> None:
        while self._queued:
            self._queued.popleft().fail(error, sent=False)

    # ---- writing

    def _write(self) -> None:
        """Write what is queued, as far as there is room for it in flight."""
        self._is_due = False
        if self._transport is None:  # it broke meanwhile
            if self._queued:
                self._set_out()
            return
        if not self._flying:
            self._start_watch()
        data = []
        while self._queued and self._bytes < MOST_BYTES and self._replies < MOST_REPLIES:
            request = self._queued[0]
            if request.future.done():  # cancelled
                self._queued.popleft()
                continue
            chunk = request.chunks[request.sent]
            request.sent += 1
            if request.sent == len(request.chunks):
                self._queued.popleft()
            self._flying.append((request, chunk))
            self._bytes += len(chunk.data)
            self._replies += chunk.replies
            data.append(chunk.data)
        if data:
            self._transport.write(data[0] if len(data) == 1 else b"".join(data))
        elif not self._flying:
            self._rest()

    def pause_writing(self) -> None:
        """Called by the transport: its buffer is full."""
        self._stream.pause_writing()

    def resume_writing(self) -> None:
        """Called by the transport: its buffer has room."""
        self._stream.resume_writing()

    # ---- reading

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by the transport: where to put what arrives."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the transport: so much has arrived."""
        if self._transport is None:
            return  # broken meanwhile
        self._heard = self._loop.time()
        try:
            self._answers.reader.feed(self._buffer, 0, nbytes)
            self._deal_out()
        except Exception as error:  # no RESP
            self._break(ConnectionError(f"the answer makes no sense: {error}"))
            return
        if self._queued:
            if not self._is_due:
                self._write()
        elif not self._flying:
            if self._answers.reader.has_data():
                self._break(ConnectionError("the server says more than it was asked for"))
            else:
                self._rest()

    def _deal_out(self) -> None:
        """Give the replies that are there to the requests in flight."""
        answers, flying = self._answers, self._flying
        gets = answers.gets(self._decode)
        while flying:
            request, chunk = flying[0]
            replies = request.replies
            missing = chunk.replies - self._answered
            if missing == 1 and not self._pushes:
                reply = gets()
                if reply is MISSING:
                    return
                replies.append(reply)
                missing = 0
            elif self._pushes:
                while missing and (reply := gets()) is not MISSING:
                    if not isinstance(reply, PushNotification):
                        replies.append(reply)
                        missing -= 1
            else:  # as many as there are, without a step of Python each
                before = len(replies)
                replies.extend(islice(iter(gets, MISSING), missing))
                missing -= len(replies) - before
            if answers.refused:
                answers.refused, request.refused = False, True
                self._is_spent = self._is_spent or answers.useless
            if missing:
                self._answered = chunk.replies - missing
                return
            flying.popleft()
            self._answered = 0
            self._bytes -= len(chunk.data)
            self._replies -= chunk.replies
            request.left -= chunk.replies
            if not request.left and not request.future.done():
                request.future.set_result(request)

    def eof_received(self) -> None:
        """Called by the transport: the server says no more."""
        self._stream.eof_received()
        self._break(ConnectionError("the server closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the transport: it is closed."""
        self._stream.connection_lost(exc)
        self._break(ConnectionError(f"the connection was lost{f': {exc}' if exc else ''}"))

    # ---- silence

    def _start_watch(self) -> None:
        self._heard = self._loop.time()
        self._unwritten = 0
        timeout = self._connection.socket_timeout
        if timeout is not None and self._timer is None:
            self._timer = self._loop.call_later(timeout, self._watch)

    def _watch(self) -> None:
        """Break a connection on which nothing has moved for the socket timeout."""
        self._timer = None
        if self._transport is None:
            return
        now = self._loop.time()
        unwritten = self._transport.get_write_buffer_size()
        if unwritten < self._unwritten:
            self._heard = now
        self._unwritten = unwritten
        timeout = self._connection.socket_timeout
        left = self._heard + timeout - now
        if left > 0:
            self._timer = self._loop.call_later(left, self._watch)
        else:
            self._break(TimeoutError(f"nothing came for {timeout} seconds"))


def _wants_check(connection: Any, loop: asyncio.AbstractEventLoop) -> bool:
    interval = connection.health_check_interval
    return bool(interval) and loop.time() > connection.next_health_check
