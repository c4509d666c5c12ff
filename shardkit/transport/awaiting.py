"""The awaiting link: the batches of all tasks of an event loop, over one line to each server.

A command that may block has a connection of its own, which is closed if the wait is cancelled;
everything else shares the line of its server (see `shardkit.transport.multiplexer`).
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import redis.asyncio as aioredis
from redis.exceptions import (
    RedisClusterException,
    RedisError,
)

from shardkit.config.component import Component
from shardkit.connections.clients import Clients
from shardkit.errors import ShardFailure
from shardkit.operations.commands import Batch, Command, Locate, Pause, Replies, Shard, Transaction
from shardkit.topology import Topology
from shardkit.transport.dispatcher import Carrier, NeedClient, NeedComponents, NeedRefresh, Trip
from shardkit.transport.grouping import components_of, locate, place
from shardkit.transport.multiplexer import Line, Lost, Request, Server
from shardkit.transport.resp import Chunk, pack_command
from shardkit.transport.server_request import Parcel


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
        # By client, which belongs to one loop, and by the cluster node's name.
        self._lines: weakref.WeakKeyDictionary[Any, dict[str, Line]] = weakref.WeakKeyDictionary()

    async def send(self, batch: Batch) -> Replies:
        """Carry a batch and return its replies in order; failures stand in their slots.

        Cost: one exchange with each shard concerned, all at the same time, shared with other
        tasks' batches.

        Raises:
            ConfigError: where a component lives is not known.
            InvalidArgumentError: an argument cannot be sent; then nothing was.
        """
        trip = None
        if len(batch) == 1:
            begun = self._set_out(batch[0])
            if begun is not None:
                future, component, number, client = begun
                try:
                    answered = await future
                    if not answered.refused:
                        return answered.replies
                    error, sent, replies = None, True, answered.replies
                except Lost as lost:
                    error, sent, replies = lost.error, lost.sent, Replies()
                where = Shard(component.name, number)
                parcel = Parcel(where, component.entry_of(where).address, [0], batch)
                trip = Trip(parcel, client)
                trip.error, trip.sent, trip.replies, trip.refused = error, sent, replies, True
        steps = self._carrier.carry(batch, trip)
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
                    with suppress(RedisError, RedisClusterException, OSError):
                        await need.client.nodes_manager.initialize()  # if not, the next try tells
                elif isinstance(need, Pause):
                    await asyncio.sleep(need.seconds)
                else:
                    await self._exchange(need)
        except StopIteration as done:
            found: Replies = done.value
            return found

    def _set_out(
        self, command: Command | Transaction
    ) -> tuple[asyncio.Future[Request], Component, int | None, Any] | None:
        """Send one command to one server, in the usual case, without the carrier's book-keeping.

        Returns:
            The future of the reply; and the component, the shard's number and its client; or None
            if nothing was sent, because it is not the usual case.
        """
        if type(command) is not Command or command.block is not None:
            return None
        to, key, args, script, _, _ = command
        if isinstance(to, str):  # the usual case
            component = self._topology.fresh(to)
            if component is None:  # it has to be read first
                return None
            number = component.place(key) if component.shards else None
        else:
            component = self._topology.fresh(to.component)
            if component is None:
                return None
            number = place(to, key, {component.name: component}).number
        client = self._clients.aget(component, number, self._raw)
        if type(client) is not aioredis.Redis or (
            script is not None and script.sha not in self._carrier.loaded(client)
        ):
            return None
        try:
            line = self._lines[client][""]
        except KeyError:
            found = self._line(client, Server(client.connection_pool, self._raw), "")
            if found is None:
                return None
            line = found
        try:
            data = pack_command(args)
        except (TypeError, UnicodeEncodeError):
            return None
        return line.carry([Chunk(data, 1)]), component, number, client

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
            if isinstance(client, aioredis.RedisCluster):
                await client.initialize()
        except ShardFailure as failure:
            return failure
        except (RedisError, RedisClusterException, OSError) as error:
            shard = Shard(need.component.name, need.number)
            return ShardFailure("", shard=str(shard), error=error)
        return client

    async def _exchange(self, trips: Sequence[Trip]) -> None:
        packed = [trip.parcel.chunks() for trip in trips]  # all, before anything is sent
        flying, alone = [], []
        for trip, chunks in zip(trips, packed, strict=True):
            holder = trip.client if trip.node is None else trip.node
            server = Server(getattr(holder, "connection_pool", holder), self._raw)
            name = "" if trip.node is None else trip.node.name
            line = self._line(trip.client, server, name) if trip.parcel.block is None else None
            if line is None:
                alone.append(_alone(server, trip, chunks))
            else:  # a future: a task for each would take longer than the rest of it
                flying.append((trip, line.carry(chunks)))
        if not alone:
            await _landed(flying)
        elif len(trips) == 1:
            await alone[0]
        else:
            await asyncio.gather(_landed(flying), *alone)

    def _line(self, client: Any, server: Server, name: str) -> Line | None:
        """Return the line to a server; None if its connections cannot be shared."""
        try:
            lines = self._lines[client]
        except KeyError:
            lines = self._lines[client] = {}
        line = lines.get(name)
        if line is None or line.server.source is not server.source:
            if not hasattr(server.source.connection_class, "is_quiet"):
                return None
            line = lines[name] = Line(server)
        return line


async def _alone(server: Server, trip: Trip, chunks: list[Chunk]) -> None:
    try:
        trip.replies, trip.refused = await server.alone(trip.parcel.block, chunks), True
    except Lost as lost:
        trip.error, trip.sent = lost.error, lost.sent


async def _landed(flying: Sequence[tuple[Trip, asyncio.Future[Request]]]) -> None:
    """Wait for the replies of all; cancelled, none of them is waited for any more."""
    try:
        for trip, future in flying:
            try:
                done = await future
                trip.replies, trip.refused = done.replies, done.refused
            except Lost as lost:
                trip.error, trip.sent = lost.error, lost.sent
    except BaseException:
        for _, future in flying:
            if not future.cancel() and not future.cancelled():
                future.exception()  # nobody asks for it now
        raise
