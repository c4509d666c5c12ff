"""How one side of a copy is closed to clients: databases by fences, clusters by their nodes.

See `fence.py` and `cluster_nodes.py` for what each sends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from redis.exceptions import RedisError

from shardkit.admin.growth import cluster_nodes
from shardkit.admin.growth.cluster_nodes import masters_of
from shardkit.admin.growth.databases import at_once, connections_to, only_reads
from shardkit.admin.growth.entries import wait_until_read
from shardkit.admin.growth.exchange import Clients, by_server
from shardkit.admin.growth.fence import (
    change,
    close_for,
    fence_key,
    fence_value,
    is_permanent,
    lift,
    lift_unless_permanent,
    make_permanent,
    take,
)
from shardkit.admin.growth.journal import Lease, Move, essence
from shardkit.admin.growth.relocation import Place, ServerAddress
from shardkit.admin.growth.servers import LoginOf, connected_to
from shardkit.errors import GrowthError, counted

_LEFT = 0.5  # the part of the hold by which writers have left
_LOOK = 0.01  # seconds between two checks of CLIENT LIST
_UNBLOCK = 0.1  # seconds after which blocking commands are ended

T = TypeVar("T")


def each_of(work: Callable[[Any], T], clients: Clients) -> list[T]:
    """Call a function with each client, on all servers at once."""
    servers = by_server(clients).values()
    return [
        answer
        for answers in at_once(lambda own: [work(each) for each in own.values()], servers)
        for answer in answers
    ]


def _wait_until_left(clients: Mapping[int, Any], began: float, hold: float, kill: bool) -> None:
    """Wait until the writers that were connected to a server before the hold have left."""
    client = next(iter(clients.values()))
    end = began + _LEFT * hold
    while True:
        here = [each for each in connections_to(client, clients) if not only_reads(each)]
        if not here:
            return
        now = time.monotonic()
        for each in here:
            if kill and now > began + 0.4 * hold:
                client.client_kill_filter(_id=each["id"])
            elif "b" in each["flags"] and now > began + _UNBLOCK:
                client.client_unblock(int(each["id"]))  # as if it had timed out
        if now > end:
            names = sorted({each["name"] or f"a client at {each['addr']}" for each in here})
            raise GrowthError(
                f"{counted(len(here), 'connection')} did not leave within "
                f"{_LEFT * hold:g} s: {', '.join(names[:5])}. The shards "
                "are where they were",
                "check them, close them with --kill, or allow more time with --hold",
            )
        time.sleep(_LOOK)


def wait_for_readers(
    client: Any, numbers: Collection[int], patience: float, *, all_read: bool = False
) -> None:
    """Wait until readers have left; close those still connected after `patience` seconds.

    With ``all_read`` every connection counts as a reader.
    """
    end = time.monotonic() + max(_LOOK, patience)
    while here := [
        each for each in connections_to(client, numbers) if all_read or only_reads(each)
    ]:
        if time.monotonic() > end:
            for each in here:
                client.client_kill_filter(_id=each["id"])
        time.sleep(_LOOK)


def update_nodes(move: Move, login_of: LoginOf) -> None:
    """Have a split into or out of a cluster name the masters that the cluster has now."""
    move.slots = {}
    sides = [move.sources, move.targets]
    for n, cluster in enumerate(move.clusters):
        if cluster:
            places = [ServerAddress.parse(cluster), *(Place.parse(at).server for at in sides[n])]
            failure: Exception | None = None
            for server in places:
                try:
                    nodes, _ = masters_of(server, login_of(server))
                    break
                except (RedisError, OSError) as error:
                    failure = error
            else:
                raise GrowthError(
                    f"the cluster has no node that answers: {failure}", "start the nodes"
                )
            move.slots |= nodes
            sides[n] = list(nodes)
    move.sources, move.targets = sides
    move.source, move.target = (
        ", ".join(dict.fromkeys(str(Place.parse(at).server) for at in side)) for side in sides
    )


class CopyGate:
    """Closes databases to clients, by fences for which their connections ask.

    Attributes:
        is_cluster: whether the nodes of a cluster are closed instead.
    """

    is_cluster = False

    def __init__(self, move: Move, lease: Lease) -> None:
        self._move, self._lease = move, lease

    def is_closed(self, clients: Clients) -> bool:
        """Whether the first of the databases, which is closed last, is closed for good."""
        return is_permanent(next(iter(clients.values())), self._move.id)

    def enter(self, clients: Clients, attempt: bytes) -> None:
        """Have only this attempt write to the targets."""
        take(clients, attempt, self._lease.check)

    def take_back(self, clients: Clients) -> bool:
        """Open what earlier attempts have closed; return False if one of them has decided."""
        first, *others = clients
        lift({place: clients[place] for place in others}, self._move.id)
        return lift_unless_permanent(clients[first], self._move.id)

    def close(self, clients: Clients, value: bytes, seconds: float, offline: bool) -> None:
        """Close to writers, at most for some seconds."""
        close_for(clients, value, seconds)

    def wait_for_writers(self, clients: Clients, began: float, hold: float, kill: bool) -> None:
        """Wait until the writers that were connected before the hold have left."""
        at_once(lambda own: _wait_until_left(own, began, hold, kill), by_server(clients).values())

    def wait_for_readers(self, clients: Clients, patience: float, epoch: int) -> None:
        """Wait until no client reads at the sources: all have read the push of an epoch."""
        at_once(
            lambda own: wait_for_readers(next(iter(own.values())), own, patience),
            by_server(clients).values(),
        )

    def decide(self, clients: Clients, value: bytes, rest: Callable[[], None]) -> bool:
        """Close for good, if everything is still closed by this attempt.

        ``rest`` copies what was changed until then, where that is possible.
        """
        first, *others = clients
        closed = not others or make_permanent({place: clients[place] for place in others}, value)
        return closed and make_permanent({first: clients[first]}, value)

    def let_go(self, clients: Clients, value: bytes) -> None:
        """Open what this attempt has closed."""
        lift(clients, self._move.id, value)

    def admit_readers(self, clients: Clients, attempt: str) -> None:
        """Have the targets be read, and not yet written."""
        self._change(clients, attempt, readers=True)

    def turn_away(self, clients: Clients, attempt: str) -> None:
        """Send all clients away from the sources, readers too."""
        self._change(clients, attempt, readers=False)

    def _change(self, clients: Clients, attempt: str, *, readers: bool) -> None:
        move = self._move
        record = essence(move)
        value = fence_value(move.id, attempt, move.target, readers=readers, record=record)
        change(clients, move.id, value)

    def open(self, clients: Clients) -> None:
        """Have the targets be written, too."""
        lift(clients, self._move.id)

    def require_slots(self, clients: Clients) -> None:
        """Check that keys have the same places as at the start of the copy."""


class ClusterGate(CopyGate):
    """Closes a cluster: its nodes refuse writes.

    The journal decides, as only the process that has the lease writes it.
    """

    is_cluster = True

    def __init__(
        self,
        move: Move,
        lease: Lease,
        login_of: LoginOf,
        captures: Callable[[], Mapping[ServerAddress, Any]],
    ) -> None:
        super().__init__(move, lease)
        self._login, self._captures = login_of, captures

    def is_closed(self, clients: Clients) -> bool:
        """Whether all nodes refuse writes."""
        return all(map(cluster_nodes.is_closed, clients.values()))

    def enter(self, clients: Clients, attempt: bytes) -> None:
        """See `CopyGate.enter`; it is opened if an earlier split has left it."""
        self._open_nodes(clients)
        self._note_settings(clients)
        super().enter(clients, attempt)

    def take_back(self, clients: Clients) -> bool:
        """See `CopyGate.take_back`."""
        self._open_nodes(clients)
        self._note_settings(clients)
        for place, client in clients.items():  # nothing that another attempt does counts now
            client.set(fence_key(client), fence_value(self._move.id, "", str(place)))
        return True

    def close(self, clients: Clients, value: bytes, seconds: float, offline: bool) -> None:
        """Have writers wait; if for long, refuse them."""
        each_of(lambda client: client.set(fence_key(client), value), clients)
        if offline:
            self._close_nodes(clients, value)
        else:
            each_of(partial(cluster_nodes.pause, seconds=seconds), clients)

    def wait_for_writers(self, clients: Clients, began: float, hold: float, kill: bool) -> None:
        """Do nothing: they wait."""

    def wait_for_readers(self, clients: Clients, patience: float, epoch: int) -> None:
        """See `CopyGate`; connections to nodes do not say whether they only read."""
        wait_until_read(self._lease.config, epoch)

    def decide(self, clients: Clients, value: bytes, rest: Callable[[], None]) -> bool:
        """See `CopyGate.decide`: the pause may have ended, so copy again once nobody can write."""
        self.require_slots(clients)
        closed = self._close_nodes(clients, value)
        if closed:
            rest()
        return closed

    def _close_nodes(self, clients: Clients, value: bytes) -> bool:
        with cluster_nodes.connected_to_all(self._replicas(clients), self._login) as replicas:
            for replica in replicas:  # one that takes over refuses writes, too
                cluster_nodes.force_close(replica)
        for place in clients:
            self._expect_setting(place)
        return all(
            each_of(lambda client: cluster_nodes.close(client, fence_key(client), value), clients)
        )

    def _expect_setting(self, place: Place) -> None:
        capture = self._captures().get(place.server)
        if capture is not None:
            capture.expect_setting()

    def let_go(self, clients: Clients, value: bytes) -> None:
        """See `CopyGate.let_go`."""
        for place, client in clients.items():
            if cluster_nodes.is_closed(client):
                self._expect_setting(place)
                before = self._move.minimums.get(str(place.server), "0")
                cluster_nodes.set_if_marked(client, fence_key(client), value, before)
            cluster_nodes.go_on(client)
        self._open_replicas(clients)

    def admit_readers(self, clients: Clients, attempt: str) -> None:
        """See `CopyGate.admit_readers`."""
        self._note_settings(clients)
        each_of(cluster_nodes.force_close, clients)

    def _note_settings(self, clients: Clients) -> None:
        for place, client in clients.items():
            if not cluster_nodes.is_closed(client):
                self._move.minimums[str(place.server)] = cluster_nodes.setting(client)
        self._lease.write(self._move)

    def turn_away(self, clients: Clients, attempt: str) -> None:
        """Refuse writers that have waited; they go to the targets."""
        each_of(cluster_nodes.go_on, clients)
        for client in clients.values():
            cluster_nodes.keep_settings(client)
            for each in client.client_list():
                if "b" in each["flags"]:
                    client.client_unblock(int(each["id"]))  # as if it had timed out

    def open(self, clients: Clients) -> None:
        """See `CopyGate.open`."""
        self._open_nodes(clients)
        super().open(clients)

    def _open_nodes(self, clients: Clients) -> None:
        self._lease.check()
        for place, client in clients.items():
            if cluster_nodes.is_closed(client):
                self._expect_setting(place)
                before = self._move.minimums.get(str(place.server), "0")
                cluster_nodes.force_open(client, before)
        self._open_replicas(clients)

    def _open_replicas(self, clients: Clients) -> None:
        before = next(iter(self._move.minimums.values()), "0")
        for server in self._replicas(clients):
            with suppress(RedisError, OSError), connected_to(server, self._login(server)) as node:
                if cluster_nodes.is_closed(node):
                    cluster_nodes.force_open(node, before)

    def _replicas(self, clients: Clients) -> list[ServerAddress]:
        server = next(iter(clients)).server
        return masters_of(server, self._login(server))[1]

    def require_slots(self, clients: Clients) -> None:
        """See `CopyGate.require_slots`."""
        expected = {str(place): self._move.slots[str(place)] for place in clients}
        for place, client in clients.items():
            slots, _ = masters_of(place.server, self._login(place.server))
            if slots != expected or cluster_nodes.moving_slots(client):
                raise GrowthError(
                    f"slots of the cluster of {place.server} have moved, or a replica has taken "
                    "over: nothing has changed for clients",
                    "wait until that is done, and resume, which copies again",
                )
