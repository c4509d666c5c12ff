"""The blocking link: writes to every shard first, then reads from every shard.

::

    shard 0   write 1 ▸ write 2 ▸ read 1 ▸ write 3 ▸ read 2 ▸ …
    shard 1   write 1 ▸ write 2 ▸ read 1 ▸ write 3 ▸ read 2 ▸ …

All servers work at the same time, without threads; only connections that have to be made first are
made by threads, so that servers which do not answer cost the time of one. A large batch goes in
chunks, two of them in flight to a shard at most, so that no buffer grows without bound and nothing
can deadlock. Connections are checked out of redis-py's pools for one exchange; one that failed, or
was interrupted before all replies were read, is closed before it goes back.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import redis
from redis.exceptions import RedisClusterException, RedisError

from shardkit.connections import patience, read_replies_of
from shardkit.connections.clients import Clients
from shardkit.errors import ShardFailure
from shardkit.operations.commands import Batch, Command, Locate, Pause, Replies, Shard
from shardkit.topology import Topology
from shardkit.transport.dispatcher import Carrier, NeedClient, NeedComponents, NeedRefresh, Trip
from shardkit.transport.grouping import components_of, locate, place
from shardkit.transport.resp import Chunk, pack_command
from shardkit.transport.server_request import Parcel

# The least time that a server is given when others have used up theirs.
GRACE = 0.1
# As many threads connect at the same time.
CONNECTING = 32


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
        trip = self._short_trip(batch) if len(batch) == 1 else None
        if type(trip) is Replies:
            return trip
        steps = self._carrier.carry(batch, trip)  # type: ignore[arg-type]
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
                    with suppress(RedisError, RedisClusterException, OSError):
                        need.client.nodes_manager.initialize()  # if not, the next attempt tells
                elif isinstance(need, Pause):
                    time.sleep(need.seconds)
                else:
                    exchange(need, self._raw)
        except StopIteration as done:
            replies: Replies = done.value
            return replies

    def _short_trip(self, batch: Batch) -> Replies | Trip | None:
        """Carry one command to one server, in the usual case, without the carrier's book-keeping.

        Returns:
            The reply; or the trip, if something is to be done about it; or None if nothing was
            sent, because it is not the usual case.
        """
        command = batch[0]
        if type(command) is not Command or command.block is not None:
            return None
        to, key, args, script = command[:4]
        if isinstance(to, str):  # the usual case
            component = self._topology.component(to)
            number = component.place(key) if component.shards else None
        else:
            component = self._topology.component(to.component)
            number = place(to, key, {component.name: component}).number
        raw = self._raw
        try:
            client = self._clients.get(component, number, raw)
        except ShardFailure:
            return None
        if type(client) is not redis.Redis or (
            script is not None and script.sha not in self._carrier.loaded(client)
        ):
            return None
        try:
            data = pack_command(args)
        except (TypeError, UnicodeEncodeError):
            return None
        pool: Any = client.connection_pool
        connection: Any = None
        error: Exception | None = None
        sent = whole = False
        reply: Any = None
        try:
            connection = pool.borrow() or pool.get_connection()
            sent = True
            reply, refused = connection.ask(data, raw)
            whole = True
            if not refused:
                return Replies((reply,))
        except (RedisError, OSError) as failure:
            error = failure
        finally:
            if connection is not None:
                if not whole:
                    connection.disconnect()
                pool.release(connection)
        where = Shard(component.name, number)
        trip = Trip(Parcel(where, component.entry_of(where).address, [0], batch), client)
        trip.error, trip.sent = error, sent
        if whole:
            trip.replies, trip.refused = [reply], True
        return trip

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
    voyages = [_Voyage(trip, raw) for trip in trips]
    whole = False
    try:
        cold = [voyage for voyage in voyages if not voyage.set_out()]
        if cold:
            _connect_all(cold)
        late = any(voyage.trip.timed_out for voyage in cold)
        for n in range(1, max((len(voyage.chunks) for voyage in voyages), default=0) + 1):
            for voyage in voyages:
                if n < len(voyage.chunks):
                    voyage.write(n)
            for voyage in voyages:
                if late:
                    voyage.hurry()
                voyage.read(n - 1)
                late = late or voyage.trip.timed_out
        whole = True
    finally:
        for voyage in voyages:
            voyage.close(whole)


def _connect_all(voyages: Sequence[_Voyage]) -> None:
    """Connect to servers, and write to each of them as soon as that is done."""
    left = deque(voyages)

    def work() -> None:
        with suppress(IndexError):
            while True:
                left.popleft().embark()

    threads = [
        threading.Thread(target=work, name="shardkit-connect", daemon=True)
        for _ in range(min(len(voyages), CONNECTING) - 1)
    ]
    started = []
    try:
        with suppress(RuntimeError):  # Python is shutting down: this thread does it all
            for thread in threads:
                thread.start()
                started.append(thread)
        work()
    finally:
        left.clear()
        for thread in started:
            thread.join()


class _Voyage:
    """A trip with its connection."""

    __slots__ = ("awaited", "chunks", "connection", "limited", "pool", "raw", "since", "trip")

    def __init__(self, trip: Trip, raw: bool) -> None:
        self.trip = trip
        self.raw = raw
        self.chunks: list[Chunk] = trip.parcel.chunks()
        self.awaited = 0
        self.connection: Any = None
        self.limited = False
        self.since = 0.0
        holder = trip.client if trip.node is None else trip.client.get_redis_connection(trip.node)
        self.pool = holder.connection_pool

    def set_out(self) -> bool:
        """Write the first chunk, if there is a connection that is ready for it."""
        self.connection = self.pool.borrow()
        if self.connection is None:
            return False
        self.write(0)
        return True

    def embark(self) -> None:
        """Connect, and write the first chunk."""
        try:
            self.connection = self.pool.get_connection()
            self.write(0)
        except Exception as error:  # whatever it is, only this server's requests suffer
            self._fail(error)

    def write(self, n: int) -> None:
        trip = self.trip
        if trip.error is not None:
            return
        trip.sent = True
        self.since = time.monotonic()
        try:
            if n == 0 and trip.parcel.block is not None:
                usual = self.connection.socket_timeout
                self._limit(patience(trip.parcel.block, usual))
            # A health check is an exchange of its own, so it must not come in between.
            self.connection.send_packed_command((self.chunks[n].data,), check_health=n == 0)
        except (RedisError, OSError) as error:
            self._fail(error)

    def read(self, n: int) -> None:
        trip = self.trip
        if trip.error is None and n < len(self.chunks):
            try:
                self.awaited += self.chunks[n].replies
                more = n + 1 < len(self.chunks)
                read = read_replies_of(self.connection)
                if read(trip.replies, self.awaited, self.raw, more):
                    trip.refused = True
            except (RedisError, OSError) as error:
                self._fail(error)

    def hurry(self) -> None:
        """Give the server until its own time is up, which it has had while others were waited for.

        Without that, the times of servers that do not answer would add up.
        """
        if self.trip.error is not None or self.trip.parcel.block is not None:
            return
        usual = self.connection.socket_timeout
        if usual is not None:
            self._limit(max(GRACE, self.since + usual - time.monotonic()))

    def _limit(self, seconds: float | None) -> None:
        if hasattr(self.connection, "limit"):  # in memory there is nothing to wait for
            self.connection.limit(seconds)
            self.limited = True

    def _fail(self, error: Exception) -> None:
        self.trip.error = error
        if self.connection is not None:
            self.connection.disconnect()

    def close(self, whole: bool) -> None:
        if self.connection is not None:
            if not whole:
                self.connection.disconnect()
            elif self.limited:
                self.connection.limit(self.connection.socket_timeout)
            self.pool.release(self.connection)
