"""The awaiting link: the batches of all tasks of an event loop, over one connection per server.

A command that may block gets a connection of its own, which is closed if the wait is cancelled;
everything else shares the server's multiplexed connection (see `multiplexer.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import redis.asyncio as aioredis
from redis.exceptions import RedisClusterException, RedisError

from shardkit.config.component import Component
from shardkit.config.read_from import in_use
from shardkit.errors import ShardFailure
from shardkit.events import handlers, settled
from shardkit.network.connections.async_connection import kept_to_deadline
from shardkit.network.connections.clients import Clients
from shardkit.network.connections.databases import ClientDatabase
from shardkit.network.connections.effects import STATE, WATCHES, effects
from shardkit.network.connections.endpoints import Endpoint
from shardkit.network.connections.policy import policy_of
from shardkit.network.connections.redis_private import learn_slots
from shardkit.network.links.dispatcher import (
    Attempt,
    Link,
    Need,
    NeedComponents,
    NeedEndpoints,
    endpoints_or_failures,
    node_of_short,
    turns_of,
)
from shardkit.network.links.grouping import (
    SEVERAL,
    place_short,
    target_of_short,
)
from shardkit.network.links.multiplexer import (
    ConnectionLost,
    MultiplexedConnection,
    Received,
    exchange_alone,
    multiplexed,
    source_of,
)
from shardkit.network.links.resp import Chunk, pack_command
from shardkit.network.links.server_request import pack_short, tell_short
from shardkit.network.links.wakeups import AsyncSubscriptions
from shardkit.network.topology import Topology
from shardkit.operations.commands import (
    Batch,
    Command,
    Replies,
)
from shardkit.operations.deadlines import earliest, within
from shardkit.operations.kept import kept_with
from shardkit.operations.steps import arun_steps

# The future of a batch's replies, and where it was sent: also the node of a cluster.
Started: TypeAlias = tuple[asyncio.Future[Received], Endpoint, Any]


class AwaitingLink(Link):
    """Carries batches over awaiting connections, of which each event loop has its own."""

    run = staticmethod(arun_steps)
    subscriptions_of = AsyncSubscriptions
    sleep = staticmethod(asyncio.sleep)

    async def send(
        self, batch: Batch, topology: Topology | None = None, clients: Clients | None = None
    ) -> Replies:
        """Carry a batch and return its replies in order; see `BlockingLink.send`.

        Cost: one exchange with each server concerned, shared with other tasks' batches.
        """
        topology = topology or self._topology
        if clients is None:
            if in_use.any and self._reads is not None:
                return await self._reads.asend(self, batch, topology)  # type: ignore[no-any-return]
            clients = self._clients
        started = self.start(batch, topology, clients)
        if started is None:
            provide = partial(self._provide, topology, clients)
            return await arun_steps(self._dispatcher.dispatch(batch), provide)
        if not handlers:
            return await self.finish(batch, started, topology, clients)
        told = tell_short(started[1].policy, batch)
        received = await started[0]
        if not received.refused:
            settled(told, None, written=received.written)
            return received
        attempt = await _attempt(batch, started)
        settled(
            told,
            attempt.error,
            maybe_executed=attempt.sent,
            refused=attempt.error is None,
            refusal=attempt.refusal,
            written=attempt.written,
        )
        provide = partial(self._provide, topology, clients)
        return await arun_steps(self._dispatcher.dispatch(batch, attempt), provide)

    def start(
        self, batch: Batch, topology: Topology | None = None, clients: Clients | None = None
    ) -> Started | None:
        """Send a few plain commands to one server, without the dispatcher: the fast path.

        Return None if nothing was sent because the batch needs `send`; else the future of the
        replies, with what `finish` needs. No events are emitted.
        """
        if topology is None or clients is None:
            if in_use.any and self._reads is not None:
                return None
            topology, clients = self._topology, self._clients
        plain = None  # one command without a script, as most batches are
        if len(batch) == 1 and type(batch[0]) is Command:
            to, key, args, script, _, block = batch[0]
            if block is not None:
                return None
            if script is None:
                plain = args
        else:
            target = target_of_short(batch)
            if target is None:
                return None
            to, key = target, None
        component = topology.fresh(to if type(to) is str else to.component)  # type: ignore[union-attr]
        if component is None or component.splits_tags:  # it must be read first, or looked at
            return None
        if key is not None and type(to) is str:  # without further calls
            number = component.number_of(key)
        else:
            number = place_short(batch, to, component)
            if number == SEVERAL:
                return None
        try:
            endpoint = clients.aendpoints(component, self._raw)[number]
        except ShardFailure:
            return None
        database, access = endpoint.database, endpoint.access
        owner, node, name = access.way, None, ""
        if database is None:  # a cluster
            owner = access.client
            node = node_of_short(owner, batch)
            if node is None:
                return None
            name = node.name
            _, database, connection = self._connection_to(owner, node)
        elif database.left or owner.draining:  # the entry has changed
            return None
        else:
            connection = owner.multiplexed or multiplexed(owner)
        if connection is None:
            return None
        try:
            data = None if plain is None else pack_command(plain)
        except (TypeError, UnicodeEncodeError):
            return None
        if data is not None:
            does = effects(plain)  # type: ignore[arg-type]
            if does & (STATE | WATCHES):
                return None  # it is refused
        elif (packed := pack_short(batch, self._dispatcher.loaded, owner, name)) is not None:
            data, does = packed
        else:
            return None
        deadline = earliest(access.policy.deadline)
        future = connection.submit(data, len(batch), database, self._raw, deadline, does)
        return future, endpoint, node

    async def finish(
        self,
        batch: Batch,
        started: Started,
        topology: Topology | None = None,
        clients: Clients | None = None,
    ) -> Replies:
        """Return the replies to a started batch; needed only if those of its future are refused."""
        received = await started[0]
        if not received.refused:
            return received
        attempt = await _attempt(batch, started)
        provide = partial(self._provide, topology or self._topology, clients or self._clients)
        return await arun_steps(self._dispatcher.dispatch(batch, attempt), provide)

    async def _provide(self, topology: Topology, clients: Clients, need: Need) -> Any:
        """Carry out a step of the dispatcher."""
        if isinstance(need, NeedComponents):
            found = {name: topology.fresh(name) for name in need.names}
            if None in found.values():
                async with kept_to_deadline():
                    found = {name: await topology.acomponent(name) for name in need.names}
            return found
        if isinstance(need, NeedEndpoints):
            return await self._endpoints(clients, need)
        if type(need) is list:
            return await self._exchange(need)
        return await arun_steps(self._steps_of(topology, need))

    async def _component(self, topology: Topology, name: str, again: bool = False) -> Component:
        return await (topology.areread(name) if again else topology.acomponent(name))

    async def _learn(self, client: Any) -> None:
        async with kept_to_deadline():
            await learn_slots(client)

    async def _client(self, component: Component, number: int | None) -> Any:
        client = self._clients.aget(component, number, self._raw)
        await _initialized(client)
        return client

    def _source_of(self, client: Any, node: Any) -> Any:
        return source_of(client.connection_pool if node is None else node)

    async def _endpoints(
        self, clients: Clients, need: NeedEndpoints
    ) -> list[Endpoint | ShardFailure]:
        component, numbers = need
        endpoints = clients.aendpoints(component, self._raw)
        found = endpoints_or_failures(endpoints, numbers)
        for n, endpoint in enumerate(found):
            if isinstance(endpoint, Endpoint) and endpoint.lane is None:
                try:
                    await _initialized(endpoint.access.client)
                except (RedisError, RedisClusterException, OSError) as error:
                    found[n] = ShardFailure("", error=error)
        return found

    async def _exchange(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Send attempts and wait for their ends; see `exchange_all`."""
        # All, before anything is sent.
        packed = [attempt.server_request.chunks() for attempt in attempts]
        in_flight, alone = [], []
        for attempt, chunks in zip(attempts, packed, strict=True):
            request = attempt.server_request
            endpoint = request.endpoints[0]
            holder, databases = endpoint.access.way, request.databases
            connection = None
            confirms, attempt.confirms = attempt.confirms, False
            if attempt.node is not None:
                found = self._connection_to(endpoint.access.client, attempt.node)
                holder, databases = found[0], [found[1]]
                connection = found[2] if request.block is None else None
            elif not (
                request.block is not None or confirms or databases[0].left or holder.draining
            ):
                connection = multiplexed(holder)
            else:
                holder = endpoint.pool
            if not chunks:  # each database's are sent alone
                continue
            if connection is None:
                alone.append(_exchange_alone(source_of(holder), attempt, chunks, self._raw))
            else:  # a future: a task for each would cost more than all the rest
                deadline = attempt.deadline
                future = connection.submit_chunks(
                    chunks, databases, request.ends, self._raw, deadline, request.does
                )
                if attempt.told:
                    future.add_done_callback(partial(_note_end, attempt))
                in_flight.append((attempt, future))
        if not alone:
            await _await_replies(in_flight)
        elif len(alone) == 1 and not in_flight:
            await alone[0]
        else:
            await asyncio.gather(_await_replies(in_flight), *alone)
        done, again = [], []
        for attempt in attempts:
            unopened = getattr(attempt.replies, "unopened", None)
            if unopened is None:
                ended, refused = attempt.outcomes()
                done += ended
                again += refused
                continue
            usable, failed, fenced = attempt.without(unopened)
            done += failed
            again += fenced if usable is None else [usable, *fenced]
        confirming = [each for each in again if each.confirms]
        again = [each for each in again if not each.confirms]
        for turn in turns_of(confirming):
            done += await self._exchange(turn)
        return done + await self._exchange(again) if again else done

    def _connection_to(
        self, client: Any, node: Any
    ) -> tuple[Any, ClientDatabase, MultiplexedConnection | None]:
        """Return the pool of a cluster's node, its database, and the connection that all share.

        That is None if its connections cannot be shared.
        """
        holder = getattr(node, "connection_pool", node)
        database = getattr(holder, "database", None) or holder.connection_class.database
        connections = kept_with(client, self)  # it belongs to one loop
        known, connection = connections.get(node.name, (None, None))
        if known is not holder and getattr(holder.connection_class, "direct", False):
            connection = MultiplexedConnection(source_of(holder), policy_of(client))
            connections[node.name] = holder, connection
        return holder, database, connection


def _note_end(attempt: Attempt, future: object) -> None:
    attempt.ended = time.perf_counter()


async def _initialized(client: Any) -> None:
    """Have a cluster's client learn its nodes."""
    if isinstance(client, aioredis.RedisCluster):
        async with kept_to_deadline():
            await client.initialize()


async def _attempt(batch: Batch, started: Started) -> Attempt:
    """Return the attempt at a batch that was started, once that has ended."""
    attempt = Attempt.of_all(batch, *started[1:])
    await _await_replies([(attempt, started[0])])
    return attempt


async def _exchange_alone(source: Any, attempt: Attempt, chunks: list[Chunk], raw: bool) -> None:
    try:
        with within(attempt.deadline):
            block = attempt.server_request.block
            attempt.replies = await exchange_alone(source, chunks, raw, block)
        attempt.refused = True
    except ConnectionLost as lost:
        attempt.error, attempt.sent = lost.error, lost.sent
    _note_end(attempt, None)


async def _await_replies(
    in_flight: Sequence[tuple[Attempt, asyncio.Future[Received]]],
) -> None:
    """Wait for all replies; if cancelled, stop waiting for any of them."""
    try:
        for attempt, future in in_flight:
            received = await future
            attempt.written = received.written
            if received.lost is None:
                attempt.replies, attempt.refused = received, received.refused
            else:
                attempt.error, attempt.sent = received.lost.error, received.lost.sent
                attempt.replies, attempt.refused = received, True
    except BaseException:
        for _, future in in_flight:
            future.cancel()
        raise
