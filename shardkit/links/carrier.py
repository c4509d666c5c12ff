"""The steps of carrying a batch, written once for the blocking and the awaiting link.

::

    batch ─► components ─► groups by shard ─► clients ─► trips, one a server ─► exchange ─► replies
               ▲                                                                  │
               └── again: forgotten scripts, moved slots, broken idempotent ◄─────┘

`carry` is a generator that does no I/O: it yields what it needs (components, a client, an exchange,
a pause) and is sent the answer; each link has its own way to provide it. Only what was certainly
not executed, or is marked idempotent, is sent again.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    RedisClusterException,
    RedisError,
    TimeoutError,  # noqa: A004 - redis-py's own
    TryAgainError,
)

from shardkit.commands import Batch, Pause, Replies, Reply
from shardkit.config.component import Component
from shardkit.errors import ShardFailure
from shardkit.links.parcels import Parcel, lacks_script, may_repeat, needed_scripts, settle
from shardkit.links.plan import Group, components_of, plan
from shardkit.routing.keys import key_bytes

# A request is sent at most so often: again after NOSCRIPT, a moved slot, or (idempotent ones only)
# a broken connection.
ATTEMPTS = 5


class NeedComponents(NamedTuple):
    """Yielded: look up these components."""

    names: set[str]


class NeedClient(NamedTuple):
    """Yielded: get the client of a shard; the answer may be a ShardFailure."""

    component: Component
    number: int | None


class NeedRefresh(NamedTuple):
    """Yielded: have a cluster client learn its slots again."""

    client: Any


class Trip:
    """A parcel on its way to one server, and what came back.

    Attributes:
        client: the shard's client; held, so that its pool outlives the exchange.
        node: the node, if the client is a cluster's.
        asking: the request follows a slot on the move (ASK).
        replies: what the server answered, the preamble's replies first.
        error: why it failed, if it did.
        sent: whether anything may have reached the server.
    """

    __slots__ = ("asking", "client", "error", "node", "parcel", "replies", "sent")

    def __init__(self, parcel: Parcel, client: Any, node: Any = None) -> None:
        self.parcel = parcel
        self.client = client
        self.node = node
        self.asking = False
        self.replies: list[Reply] = []
        self.error: Exception | None = None
        self.sent = False

    @property
    def timed_out(self) -> bool:
        """Whether it failed because no answer came in time."""
        return isinstance(self.error, TimeoutError)


Need: TypeAlias = NeedComponents | NeedClient | NeedRefresh | Pause | list[Trip]


class Carrier:
    """Carries batches; remembers which scripts each server has."""

    def __init__(self) -> None:
        # A server that restarted may lack what is remembered: NOSCRIPT then tells.
        self._loaded: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()

    def carry(self, batch: Batch) -> Generator[Need, Any, Replies]:
        """Carry a batch and return its replies in order; failures stand in their slots."""
        out = Replies([None] * len(batch))
        todo: Sequence[int] = range(len(batch))
        asked: dict[int, str] = {}
        for attempt in range(ATTEMPTS):
            if attempt > 1:
                yield Pause(0.02 * 2**attempt)  # a cluster is moving slots, or electing a master
            components = yield NeedComponents(components_of(batch[n].to for n in todo))
            trips: list[Trip] = []
            for group in plan(batch, todo, components):
                component = components[group.shard.component]
                client = yield NeedClient(component, group.shard.number)
                trips += self._trips(batch, group, component, client, asked, out)
            yield trips
            todo, asked = [], {}
            for trip in trips:
                again = self._take_in(trip, asked, out, last=attempt == ATTEMPTS - 1)
                if (again or trip.error) and trip.node is not None:
                    yield NeedRefresh(trip.client)
                todo += again
            if not todo:
                break
        return out

    def _trips(
        self,
        batch: Batch,
        group: Group,
        component: Component,
        client: Any,
        asked: dict[int, str],
        out: Replies,
    ) -> list[Trip]:
        """Make a group's trips: one, or on a cluster one for each node."""
        shard, positions, block = group
        address = component.entry_of(shard).address
        if isinstance(client, ShardFailure):
            parcel = Parcel(shard, address)
            for position in positions:
                error = client.error or client
                out[position] = parcel.failure(batch[position], error, sent=False)
            out.failed = True
            return []
        if component.entry_of(shard).is_cluster:
            trips = list(self._to_nodes(batch, group, client, asked, out))
        else:
            requests = [batch[position] for position in positions]
            trips = [Trip(Parcel(shard, address, positions, requests, block=block), client)]
        for trip in trips:
            loaded = self._loaded.setdefault(_server(trip), set())
            trip.parcel.preamble = needed_scripts(trip.parcel.requests, loaded)
        return trips

    def _to_nodes(
        self, batch: Batch, group: Group, client: Any, asked: dict[int, str], out: Replies
    ) -> Iterator[Trip]:
        trips: dict[str, Trip] = {}
        for position in group.positions:
            request = batch[position]
            try:
                if position in asked:
                    node = client.get_node(node_name=asked[position])
                    name = f"{node.name} asking for {position}"
                else:
                    node = client.get_node_from_key(key_bytes(request.key))
                    name = node.name
            except (RedisError, RedisClusterException, AttributeError) as error:
                parcel = Parcel(group.shard, "cluster")
                out[position] = parcel.failure(request, error, sent=False)
                out.failed = True
                continue
            if name not in trips:
                parcel = Parcel(group.shard, f"cluster node {node.name}", block=group.block)
                trips[name] = Trip(parcel, client, node)
                trips[name].asking = position in asked
            trips[name].parcel.positions.append(position)
            trips[name].parcel.requests.append(request)
        yield from trips.values()

    def _take_in(self, trip: Trip, asked: dict[int, str], out: Replies, *, last: bool) -> list[int]:
        """Put a trip's replies into their slots, and return the positions to send again."""
        parcel = trip.parcel
        again: list[int] = []
        if trip.error is not None:
            for position, request in zip(parcel.positions, parcel.requests, strict=True):
                if trip.sent and may_repeat(request) and not last and not trip.timed_out:
                    again.append(position)
                else:
                    out[position] = parcel.failure(request, trip.error, trip.sent)
                    out.failed = True
            return again
        loaded = self._loaded[_server(trip)]
        loaded.update(script.sha for script in parcel.preamble)
        for position, request, reply in parcel.unpack(trip.replies):
            if isinstance(reply, Exception) and not last:
                if lacks_script(request, reply):
                    loaded.clear()
                    again.append(position)
                    continue
                if isinstance(reply, AskError):
                    asked[position] = "{}:{}".format(*reply.node_addr)
                    again.append(position)
                    continue
                if isinstance(reply, MovedError | TryAgainError | ClusterDownError):
                    again.append(position)
                    continue
            out[position], failed = settle(parcel, request, reply)
            out.failed = out.failed or failed
        return again


def _server(trip: Trip) -> Any:
    return trip.client if trip.node is None else trip.node


__all__ = [
    "Carrier",
    "Need",
    "NeedClient",
    "NeedComponents",
    "NeedRefresh",
    "Trip",
]
