"""The blocking link: writes to every shard first, then reads from every shard.

::

    shard 0   write 1 ▸ write 2 ▸ read 1 ▸ write 3 ▸ read 2 ▸ …
    shard 1   write 1 ▸ write 2 ▸ read 1 ▸ write 3 ▸ read 2 ▸ …

All servers work at the same time, without threads. A large batch goes in chunks, two of them in
flight to a shard at most, so that no buffer grows without bound and nothing can deadlock.
Connections are checked out of redis-py's pools for one exchange; one that failed, or was
interrupted before all replies were read, is closed before it goes back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError, ResponseError

from shardkit.clients import Clients
from shardkit.commands import Batch, Locate, Pause, Replies, Shard
from shardkit.connections import patience
from shardkit.errors import ShardFailure
from shardkit.links.carrier import Carrier, NeedClient, NeedComponents, NeedRefresh, Trip
from shardkit.links.parcels import Chunk
from shardkit.links.plan import components_of, locate
from shardkit.topology import Topology

# How long the others may still take when one shard has used up the time they were all given.
GRACE = 0.1


class BlockingLink:
    """Carries batches over blocking connections. Safe to use from many threads.

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

    def send(self, batch: Batch) -> Replies:
        """Carry a batch and return its replies in order; failures stand in their slots.

        Cost: one exchange with each shard concerned, all at the same time.

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
                    answer = {name: self._topology.component(name) for name in need.names}
                elif isinstance(need, NeedClient):
                    try:
                        answer = self._clients.get(need.component, need.number, self._raw)
                    except ShardFailure as failure:
                        answer = failure
                elif isinstance(need, NeedRefresh):
                    with suppress(RedisError, OSError):  # the next attempt tells
                        need.client.nodes_manager.initialize()
                elif isinstance(need, Pause):
                    time.sleep(need.seconds)
                else:
                    exchange(need, self._raw)
        except StopIteration as done:
            replies: Replies = done.value
            return replies

    def locate(self, request: Locate) -> list[tuple[Shard, int | None]]:
        """Return where keys live, without an exchange with their shards."""
        names = components_of(to for to, _ in request.targets)
        return locate(request, {name: self._topology.component(name) for name in names})

    def pause(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


def exchange(trips: Sequence[Trip], raw: bool = True) -> None:
    """Write to every server, then read from every server, chunk by chunk.

    Raises:
        InvalidArgumentError: an argument cannot be sent; then nothing was.
    """
    voyages = [_Voyage(trip) for trip in trips]
    whole = False
    try:
        for voyage in voyages:
            voyage.open()
        hurry: float | None = None
        for n in range(max((len(voyage.chunks) for voyage in voyages), default=0) + 1):
            for voyage in voyages:
                voyage.write(n)
            if n == 0:
                continue
            for voyage in voyages:
                voyage.read(n - 1, raw, hurry)
                if voyage.trip.timed_out:
                    hurry = GRACE
        whole = True
    finally:
        for voyage in voyages:
            voyage.close(whole)


class _Voyage:
    """A trip with its connection."""

    __slots__ = ("chunks", "connection", "pool", "trip")

    def __init__(self, trip: Trip) -> None:
        self.trip = trip
        self.chunks: list[Chunk] = trip.parcel.chunks()
        self.connection: Any = None
        holder = trip.client if trip.node is None else trip.client.get_redis_connection(trip.node)
        self.pool = holder.connection_pool

    def open(self) -> None:
        try:
            self.connection = self.pool.get_connection()
            if self.trip.asking:
                self.connection.send_command("ASKING")
                self.connection.read_response()
        except (RedisError, OSError) as error:
            self.trip.error = error

    def write(self, n: int) -> None:
        trip = self.trip
        if trip.error is None and n < len(self.chunks):
            trip.sent = True
            try:
                self.connection.send_packed_command((self.chunks[n].data,))
            except (RedisError, OSError) as error:
                self._fail(error)

    def read(self, n: int, raw: bool, hurry: float | None) -> None:
        trip = self.trip
        if trip.error is not None or n >= len(self.chunks):
            return
        read, add = self.connection.read_response, trip.replies.append
        options: dict[str, Any] = {"disable_decoding": raw}
        if trip.parcel.block is not None:
            options["timeout"] = patience(trip.parcel.block, self.connection.socket_timeout)
        elif hurry is not None:
            options["timeout"] = hurry
        try:
            for _ in range(self.chunks[n].replies):
                try:
                    add(read(**options))
                except ResponseError as error:
                    add(error)
        except (RedisError, OSError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.trip.error = error
        self.connection.disconnect()

    def close(self, whole: bool) -> None:
        if self.connection is not None:
            if not whole:
                self.connection.disconnect()
            self.pool.release(self.connection)
