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
from collections.abc import Generator, Sequence
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

from shardkit.config.component import Component
from shardkit.errors import ShardFailure
from shardkit.operations.commands import Batch, Columns, Command, Pause, Replies, Reply, coalesced
from shardkit.routing.keys import key_bytes
from shardkit.routing.placement import slots_of
from shardkit.transport.coalescing import split
from shardkit.transport.grouping import Group, components_in, plan
from shardkit.transport.server_request import Parcel, lacks_script, may_repeat, settle

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
        replies: what the server answered.
        refused: whether an error may be among that, or inside of it.
        error: why it failed, if it did.
        sent: whether anything may have reached the server.
    """

    __slots__ = ("client", "error", "node", "parcel", "refused", "replies", "sent")

    def __init__(self, parcel: Parcel, client: Any, node: Any = None) -> None:
        self.parcel = parcel
        self.client = client
        self.node = node
        self.replies: list[Reply] = []
        self.refused = False
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
        # By client, and the name of a cluster's node. A server that restarted may lack what is
        # remembered: NOSCRIPT then tells.
        self._loaded: weakref.WeakKeyDictionary[Any, dict[str, set[str]]] = (
            weakref.WeakKeyDictionary()
        )

    def loaded(self, client: Any, node: str = "") -> set[str]:
        """Return the SHA-1s of the scripts that a server is known to have."""
        try:
            return self._loaded[client][node]
        except KeyError:
            return self._loaded.setdefault(client, {}).setdefault(node, set())

    def carry(self, batch: Batch, trip: Trip | None = None) -> Generator[Need, Any, Replies]:
        """Carry a batch and return its replies in order; failures stand in their slots.

        Args:
            batch: the batch.
            trip: the first attempt at all of it, if the link has made that already.
        """
        out = Replies([None] * len(batch))
        todo: Sequence[int] = range(len(batch))
        asked: dict[int, str] = {}
        trips = [trip] if trip else []
        for attempt in range(ATTEMPTS):
            if attempt > 1:
                yield Pause(0.02 * 2**attempt)  # a cluster is moving slots, or electing a master
            if not trips:
                components = yield NeedComponents(components_in(batch, todo))
                for group in plan(batch, todo, components):
                    component = components[group.shard.component]
                    client = yield NeedClient(component, group.shard.number)
                    trips += self._trips(batch, group, component, client, asked, out)
                yield trips
            again: list[int] = []
            asked = {}
            stale: dict[Any, None] = {}
            for trip in trips:
                again += self._take_in(trip, asked, out, stale, attempt)
            for client in stale:
                yield NeedRefresh(client)
            todo = again
            if not todo:
                break
            trips = []
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
        shard, positions, block, plain, alike = group
        entry = component.entry_of(shard)
        if isinstance(client, ShardFailure):
            parcel = Parcel(shard, entry.address)
            for position in positions:
                error = client.error or client
                out[position] = parcel.failure(batch[position], error, sent=False)
            out.failed = True
            return []
        if entry.is_cluster:
            return self._to_nodes(batch, group, client, asked, out)
        loaded, joins = self.loaded(client), coalesced(batch)
        parcel = Parcel(shard, entry.address, positions, batch, loaded, block=block, joins=joins)
        parcel.plain, parcel.alike = plain, alike
        return [Trip(parcel, client)]

    def _to_nodes(
        self, batch: Batch, group: Group, client: Any, asked: dict[int, str], out: Replies
    ) -> list[Trip]:
        trips: dict[str, Trip] = {}
        found: dict[str, list[int]] = {}

        def trip_to(node: Any, asking: bool) -> Trip:
            parcel = Parcel(
                group.shard,
                f"cluster node {node.name}",
                batch=batch,
                loaded=self.loaded(client, node.name),
                asking=asking,
                block=group.block,
                joins=coalesced(batch),
                in_slots=True,
                plain=group.plain,
            )
            return Trip(parcel, client, node)

        known = None if asked else _nodes_of(client, batch, group.positions)
        if known is not None:
            made = [trip_to(node, asking=False) for node, _ in known]
            for trip, (_, positions) in zip(made, known, strict=True):
                trip.parcel.positions = positions
            return made
        for position in group.positions:
            request = batch[position]
            try:
                node: Any = None
                if position in asked:
                    node = client.get_node(node_name=asked[position])
                asking = node is not None
                if not asking:
                    node = client.get_node_from_key(key_bytes(request.key))
                name = f"{node.name} asking for {position}" if asking else node.name
            except (RedisError, RedisClusterException, AttributeError) as error:
                parcel = Parcel(group.shard, "cluster")
                out[position] = parcel.failure(request, error, sent=False)
                out.failed = True
                continue
            if name not in trips:
                trips[name] = trip_to(node, asking)
            found.setdefault(name, []).append(position)
        for name, positions in found.items():
            trips[name].parcel.positions = positions
        return list(trips.values())

    def _take_in(
        self, trip: Trip, asked: dict[int, str], out: Replies, stale: dict[Any, None], attempt: int
    ) -> list[int]:
        """Put a trip's replies into their slots, and return the positions to send again.

        ``stale`` gets its client, if that should learn its cluster's slots again.
        """
        parcel = trip.parcel
        again: list[int] = []
        if trip.error is not None:
            # Once, as it may be the request that breaks it; and not where waiting was in vain.
            repeats = attempt == 0 and not trip.timed_out
            moved = not trip.sent and trip.node is not None  # maybe, to another node
            for position, request in zip(parcel.positions, parcel.requests, strict=True):
                if repeats and (moved or (trip.sent and may_repeat(request))):
                    again.append(position)
                else:
                    out[position] = parcel.failure(request, trip.error, trip.sent)
                    out.failed = True
            if trip.node is not None:
                stale[trip.client] = None
            return again
        parcel.loaded.update(parcel.brought)
        if parcel.runs:
            trip.replies = split(trip.replies, parcel.runs)
        if not trip.refused and len(trip.replies) == len(parcel.positions):  # no transactions
            for position, reply in zip(parcel.positions, trip.replies, strict=True):
                out[position] = reply
            return again
        last = attempt == ATTEMPTS - 1
        for position, request, reply in parcel.unpack(trip.replies):
            if type(request) is Command and not isinstance(reply, Exception):
                out[position] = reply
                continue
            if isinstance(reply, Exception) and not last:
                if lacks_script(request, reply):
                    parcel.loaded.clear()
                    again.append(position)
                    continue
                if isinstance(reply, MovedError | ClusterDownError):
                    stale[trip.client] = None
                    again.append(position)
                    continue
                if isinstance(reply, AskError):
                    asked[position] = "{}:{}".format(*reply.node_addr)
                    again.append(position)
                    continue
                if isinstance(reply, TryAgainError):
                    again.append(position)
                    continue
            out[position], failed = settle(parcel, request, reply)
            out.failed = out.failed or failed
        return again


def _nodes_of(
    client: Any, batch: Batch, positions: Sequence[int]
) -> list[tuple[Any, list[int]]] | None:
    """Return a cluster's nodes, each with the positions of what goes there; None if not known.

    All keys at once: a fifth of the time that asking the client for each would take.
    """
    try:
        nodes = client.nodes_manager.slots_cache
        if isinstance(batch, Columns):
            keys = [batch.keys[position] for position in positions]
        else:
            keys = [batch[position].key for position in positions]
        owners = [nodes[slot][0] for slot in slots_of(keys)]
    except (AttributeError, LookupError):
        return None
    found: dict[str, tuple[Any, list[int]]] = {}
    for position, node in zip(positions, owners, strict=True):
        try:
            found[node.name][1].append(position)
        except KeyError:
            found[node.name] = node, [position]
    return list(found.values())


__all__ = [
    "Carrier",
    "Need",
    "NeedClient",
    "NeedComponents",
    "NeedRefresh",
    "Trip",
]
