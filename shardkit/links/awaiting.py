"""The awaiting link: concurrent operations of one event loop share a connection to each server.

::

    task A ─ SADD ┐                    ┌─► reply A
    task B ─ GET  ┼─► one write ──► server ─► replies of one connection, in order
    task C ─ SADD ┘  (a loop turn)     └─► reply C

Requests made in one turn of the loop leave in one write: automatic pipelining. Replies come back in
order, so each finds its request; a task that was cancelled meanwhile just does not get its own.
While a line has nothing to do, its connection lies in redis-py's pool, which checks it again before
the next use. A connection that failed is closed, and what is in flight on it fails; what was not
yet written goes out on the next one.

A command that may block has a connection of its own, which is closed if the wait is cancelled.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError, RedisError, ResponseError  # noqa: A004 - redis-py's own

from shardkit.clients import Clients
from shardkit.commands import Batch, Locate, Pause, Replies, Reply, Shard
from shardkit.connections import patient
from shardkit.errors import ShardFailure
from shardkit.links.carrier import Carrier, NeedClient, NeedComponents, NeedRefresh, Trip
from shardkit.links.parcels import Chunk
from shardkit.links.plan import components_of, locate
from shardkit.topology import Topology


class AwaitingLink:
    """Carries batches over awaiting connections. Each event loop has lines of its own.

    Args:
        topology: where each component's shards are.
        clients: their clients.
        raw: whether replies come as RESP2 and bytes, as operations want them, or as the clients
            that users get would have them.
    """

    def __init__(self, topology: Topology, clients: Clients, *, raw: bool = True) -> None:
        self._raw = raw
        self._topology = topology
        self._clients = clients
        self._carrier = Carrier()
        # A client belongs to one loop, so a line does as well.
        self._lines: weakref.WeakKeyDictionary[Any, _Line] = weakref.WeakKeyDictionary()

    async def send(self, batch: Batch) -> Replies:
        """Carry a batch and return its replies in order; failures stand in their slots.

        Cost: one exchange with each shard concerned, all at the same time, shared with other
        tasks' batches.

        Raises:
            ConfigError: where a component lives is not known.
            InvalidArgumentError: an argument cannot be sent; then nothing was.
        """
        steps = self._carrier.carry(batch)
        answer: Any = None
        try:
            while True:
                need = steps.send(answer)
                answer = None
                if isinstance(need, NeedComponents):
                    answer = {name: await self._topology.acomponent(name) for name in need.names}
                elif isinstance(need, NeedClient):
                    answer = await self._client(need)
                elif isinstance(need, NeedRefresh):
                    with suppress(RedisError, OSError):  # the next attempt tells
                        await need.client.nodes_manager.initialize()
                elif isinstance(need, Pause):
                    await asyncio.sleep(need.seconds)
                else:
                    await self._exchange(need)
        except StopIteration as done:
            replies: Replies = done.value
            return replies

    async def locate(self, request: Locate) -> list[tuple[Shard, int | None]]:
        """Return where keys live, without an exchange with their shards."""
        names = components_of(to for to, _ in request.targets)
        return locate(request, {name: await self._topology.acomponent(name) for name in names})

    async def pause(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def _client(self, need: NeedClient) -> Any:
        try:
            client: Any = self._clients.aget(need.component, need.number, self._raw)
            if need.component.entry is not None and need.component.entry.is_cluster:
                await client.initialize()
        except ShardFailure as failure:
            return failure
        except (RedisError, OSError) as error:
            shard = Shard(need.component.name, need.number)
            return ShardFailure("", shard=str(shard), error=error)
        return client

    async def _exchange(self, trips: Sequence[Trip]) -> None:
        packed = [trip.parcel.chunks() for trip in trips]  # all, before anything is sent
        if len(trips) == 1:
            await self._travel(trips[0], packed[0])
        else:
            await asyncio.gather(*map(self._travel, trips, packed))

    async def _travel(self, trip: Trip, chunks: list[Chunk]) -> None:
        server = _Server(trip, self._raw)
        try:
            if trip.asking or trip.parcel.block is not None:
                trip.replies = await server.alone(trip, chunks)
                return
            line = self._lines.get(server.key)
            if line is None:
                line = self._lines[server.key] = _Line(server)
            trip.replies = await line.carry(chunks)
        except _Lost as lost:
            trip.error, trip.sent = lost.error, lost.sent


class _Lost(Exception):
    """A request failed; ``sent`` if the server may have seen it."""

    def __init__(self, error: Exception, sent: bool) -> None:
        super().__init__(error, sent)
        self.error = error
        self.sent = sent


class _Server:
    """Where connections come from: a client's pool, or a node of a cluster."""

    def __init__(self, trip: Trip, raw: bool) -> None:
        self.raw = raw
        self.key = trip.client if trip.node is None else trip.node
        self._source = weakref.ref(self.key)

    async def acquire(self) -> Any:
        source = self._source()
        pool = getattr(source, "connection_pool", None)
        if pool is not None:
            return await pool.get_connection()
        connection = source.acquire_connection()  # type: ignore[union-attr]
        try:
            await connection.connect()
        except BaseException:
            source.release(connection)  # type: ignore[union-attr]
            raise
        return connection

    async def release(self, connection: Any) -> None:
        source = self._source()
        pool = getattr(source, "connection_pool", None)
        if pool is not None:
            await pool.release(connection)
        elif source is not None:
            source.release(connection)

    async def read(self, connection: Any) -> Reply:
        try:
            return await connection.read_response(disable_decoding=self.raw)
        except ResponseError as error:
            return error

    async def alone(self, trip: Trip, chunks: list[Chunk]) -> list[Reply]:
        """Carry one parcel on a connection of its own."""
        try:
            connection = await self.acquire()
        except (RedisError, OSError) as error:
            raise _Lost(error, sent=False) from error
        whole = False
        try:
            if trip.asking:
                await connection.send_command("ASKING")
                await connection.read_response()
            for chunk in chunks:
                await connection.send_packed_command(chunk.data)
            with patient(connection, trip.parcel.block or 0):
                replies = [await self.read(connection) for c in chunks for _ in range(c.replies)]
            whole = True
        except (RedisError, OSError) as error:
            raise _Lost(error, sent=True) from error
        else:
            return replies
        finally:
            if not whole:
                await connection.disconnect(nowait=True)
            await self.release(connection)


class _Request:
    """Chunks to write, and the future of their replies."""

    __slots__ = ("chunks", "future", "replies")

    def __init__(self, chunks: list[Chunk], future: asyncio.Future[list[Reply]]) -> None:
        self.chunks = chunks
        self.future = future
        self.replies = sum(chunk.replies for chunk in chunks)

    def fail(self, error: Exception, sent: bool) -> None:
        if not self.future.done():
            self.future.set_exception(_Lost(error, sent))


class _Line:
    """One connection to one server, shared by the tasks of a loop.

    ``carry`` queues a request; a writer task sends what is queued, one write a turn of the loop,
    and a reader task deals out the replies. Both end when there is nothing left to do.
    """

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._queued: list[_Request] = []
        self._flying: deque[_Request] = deque()
        self._connection: Any = None
        self._writer: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None

    async def carry(self, chunks: list[Chunk]) -> list[Reply]:
        loop = asyncio.get_running_loop()
        request = _Request(chunks, loop.create_future())
        self._queued.append(request)
        if self._writer is None:
            self._writer = loop.create_task(self._write())
        return await request.future

    async def _write(self) -> None:
        """Write whatever is queued; the first turn lets the other tasks queue theirs."""
        try:
            while self._queued:
                if self._connection is None and not await self._connect():
                    return
                requests, self._queued = self._queued, []
                self._flying.extend(requests)
                if self._reader is None:
                    self._reader = asyncio.get_running_loop().create_task(self._read())
                await self._connection.send_packed_command(
                    [chunk.data for request in requests for chunk in request.chunks]
                )
        except (RedisError, OSError) as error:
            await self._break(error)
        except BaseException:  # the loop is cancelling its tasks
            await self._break(ConnectionError("the event loop is shutting down"))
            self._queued.clear()
            raise
        finally:
            self._writer = None
            await self._rest()

    async def _connect(self) -> bool:
        try:
            self._connection = await self._server.acquire()
        except (RedisError, OSError) as error:
            queued, self._queued = self._queued, []
            for request in queued:
                request.fail(error, sent=False)
            return False
        return True

    async def _read(self) -> None:
        """Read the replies of what is in flight, in order."""
        connection = self._connection
        try:
            while self._flying:
                replies = [
                    await self._server.read(connection) for _ in range(self._flying[0].replies)
                ]
                request = self._flying.popleft()
                if not request.future.done():
                    request.future.set_result(replies)
        except (RedisError, OSError) as error:
            await self._break(error)
        except BaseException:  # the loop is cancelling its tasks
            await self._break(ConnectionError("the event loop is shutting down"))
            raise
        finally:
            self._reader = None
            await self._rest()

    async def _break(self, error: Exception) -> None:
        """Close the connection: what is in flight on it is lost."""
        connection, self._connection = self._connection, None
        flying, self._flying = self._flying, deque()
        for request in flying:
            request.fail(error, sent=True)
        if connection is not None:
            await connection.disconnect(nowait=True)
            await self._server.release(connection)

    async def _rest(self) -> None:
        """Give the connection back when neither task has anything to do; start over if not."""
        if self._writer is not None or self._reader is not None:
            return
        if self._queued:
            self._writer = asyncio.get_running_loop().create_task(self._write())
        elif self._connection is not None and not self._flying:
            connection, self._connection = self._connection, None
            await self._server.release(connection)
