"""The client plane: from a component and a key to a redis-py client.

Decorators and routers use it. Nothing is wrapped: it returns redis-py's own client, found by
looking up the component, placing the key, and looking up the client.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

from shardkit.config.component import Component
from shardkit.config.read_from import ReadFrom, as_read_from, in_use
from shardkit.connections.clients import AsyncClient, Client, Clients
from shardkit.errors import InvalidArgumentError
from shardkit.operations.commands import Key
from shardkit.replication.reading import LinkReads, ReaderClients
from shardkit.replication.replicas import Replicas
from shardkit.topology import Topology
from shardkit.transport.awaiting import AwaitingLink
from shardkit.transport.blocking import BlockingLink

MaybeAwaited: TypeAlias = AsyncClient | Coroutine[Any, Any, AsyncClient]
"""An awaiting client; or, if its component has to be read first, a coroutine that returns it."""


class ClientPlane:
    """Hands out clients by component and key.

    Args:
        topology: where each component's shards are.
        clients: their clients.
        zone: the zone that this process is in, for reads from replicas.
    """

    def __init__(self, topology: Topology, clients: Clients, zone: str = "") -> None:
        self.topology = topology
        self.clients = clients
        # By whether replies are raw: structures want them so, pipelines as the clients are.
        self.links = {raw: BlockingLink(topology, clients, raw=raw) for raw in (True, False)}
        self.alinks = {raw: AwaitingLink(topology, clients, raw=raw) for raw in (True, False)}
        self.replicas = Replicas(clients, zone)
        self.readers = ReaderClients(clients, self.replicas, None)
        self._reading: dict[ReadFrom, ClientPlane] = {}
        self._have_links_read(clients, None)

    def reading(self, read_from: ReadFrom) -> ClientPlane:
        """Return this plane with reads that go to replicas, whatever entries say."""
        if read_from.mode == "zone" and not self.replicas.zone:
            raise InvalidArgumentError(
                "read_from='zone', and this process does not know its zone",
                "open the kit with connect(…, zone='eu-1a')",
            )
        found = self._reading.get(read_from)
        if found is None:
            found = copy.copy(self)
            in_use.note(found)
            found.readers = ReaderClients(self.clients, self.replicas, read_from)
            found.clients = found.readers  # type: ignore[assignment]
            found._have_links_read(self.clients, read_from)
            found = self._reading.setdefault(read_from, found)
        return found

    def clients_of(self, component: Component) -> Clients:
        """Return a component's clients: those that read from replicas if its entries say so."""
        found: Any = self.readers if component.reads_apart else self.clients
        return found  # type: ignore[no-any-return]

    def _have_links_read(self, clients: Clients, read_from: ReadFrom | None) -> None:
        self.links, self.alinks = dict(self.links), dict(self.alinks)
        for raw in (True, False):
            reads = LinkReads(self.replicas, clients, read_from, structures=raw)
            link, alink = copy.copy(self.links[raw]), copy.copy(self.alinks[raw])
            link.reads = alink.reads = reads
            self.links[raw], self.alinks[raw] = link, alink

    def plane(self) -> ClientPlane:
        """Return this plane; the default plane returns the default kit's."""
        return self

    def connection(self, component: str) -> Client:
        """Return the client of a component's unsharded entry."""
        found = self.topology.component(component)
        return (self.readers if found.reads_apart else self.clients).get(found, None)

    def shard_connection(self, component: str, shards: int | None, key: Key) -> Client:
        """Return the client of the shard of a key."""
        found = self.topology.component(component)
        if shards is not None and len(found.shards) != shards:
            found.require_shards(shards)
        return (self.readers if found.reads_apart else self.clients).get(
            found, found.number_of(key)
        )

    def aconnection(self, component: str) -> MaybeAwaited:
        """Return the awaiting client of a component's unsharded entry."""
        found = self.topology.fresh(component)
        if found is None:
            return self._read_connection(component)
        return (self.readers if found.reads_apart else self.clients).aget(found, None)

    def ashard_connection(self, component: str, shards: int | None, key: Key) -> MaybeAwaited:
        """Return the awaiting client of the shard of a key."""
        found = self.topology.fresh(component)
        if found is None:
            return self._read_shard_connection(component, shards, key)
        if shards is not None and len(found.shards) != shards:
            found.require_shards(shards)
        return (self.readers if found.reads_apart else self.clients).aget(
            found, found.number_of(key)
        )

    async def _read_connection(self, component: str) -> AsyncClient:
        found = await self.topology.acomponent(component)
        return (self.readers if found.reads_apart else self.clients).aget(found, None)

    async def _read_shard_connection(
        self, component: str, shards: int | None, key: Key
    ) -> AsyncClient:
        found = await self.topology.acomponent(component)
        if shards is not None and len(found.shards) != shards:
            found.require_shards(shards)
        return (self.readers if found.reads_apart else self.clients).aget(
            found, found.number_of(key)
        )

    def cached_connection(self, component: str, shards: int | None, key: Key) -> AsyncClient:
        """Return the awaiting client of the shard of a key without waiting; see `cached`."""
        found = self.cached(component)
        if shards is not None and len(found.shards) != shards:
            found.require_shards(shards)
        return (self.readers if found.reads_apart else self.clients).aget(
            found, found.number_of(key)
        )

    def cached(self, component: str) -> Component:
        """Return a component without waiting; it is read again in the background if it is time.

        Raises:
            MissingEntryError: it has not been read yet.
        """
        return self.topology.fresh(component) or self.topology.last_known(component)

    def link(self, component: Component, *, raw: bool) -> BlockingLink:
        """Return a link for commands placed by one version of one component."""
        return _pinned(self.links[raw], component, self.topology)

    def alink(self, component: Component, *, raw: bool) -> AwaitingLink:
        """Return the awaiting `link`; it shares its connections with the plane's own."""
        return _pinned(self.alinks[raw], component, self.topology)


class _Pinned(Topology):
    """A topology of one version of one component."""

    def __init__(self, component: Component, topology: Topology) -> None:
        self._component = component
        self._topology = topology

    def reread(self, name: str) -> Component:
        return self._replaced_by(self._topology.reread(name))

    async def areread(self, name: str) -> Component:
        return self._replaced_by(await self._topology.areread(name))

    def _replaced_by(self, newer: Component) -> Component:
        """Take a newer version, if it places keys alike: only addresses differ."""
        pinned = self._component
        if len(newer.shards) == len(pinned.shards) and newer.placement == pinned.placement:
            self._component = newer
        return self._component

    def component(self, name: str) -> Component:
        return self._component

    async def acomponent(self, name: str) -> Component:
        return self._component

    def fresh(self, name: str) -> Component:
        return self._component


L = TypeVar("L", BlockingLink, AwaitingLink)


def _pinned(link: L, component: Component, topology: Topology) -> L:
    pinned = copy.copy(link)
    pinned._topology = _Pinned(component, topology)
    return pinned


class DefaultPlane:
    """The client plane of the default kit, which is opened when it is first needed.

    Attributes:
        opened: returns the default kit's plane; the kit's module sets it.
    """

    opened: Callable[[], ClientPlane]

    def plane(self) -> ClientPlane:
        """Return the default kit's plane."""
        return self.opened()

    def connection(self, component: str) -> Client:
        """See `ClientPlane.connection`."""
        return self.opened().connection(component)

    def shard_connection(self, component: str, shards: int | None, key: Key) -> Client:
        """See `ClientPlane.shard_connection`."""
        return self.opened().shard_connection(component, shards, key)

    def cached_connection(self, component: str, shards: int | None, key: Key) -> AsyncClient:
        """See `ClientPlane.cached_connection`."""
        return self.opened().cached_connection(component, shards, key)

    def aconnection(self, component: str) -> MaybeAwaited:
        """See `ClientPlane.aconnection`."""
        return self.opened().aconnection(component)

    def ashard_connection(self, component: str, shards: int | None, key: Key) -> MaybeAwaited:
        """See `ClientPlane.ashard_connection`."""
        return self.opened().ashard_connection(component, shards, key)


DEFAULT_PLANE = DefaultPlane()


class _ReadingPlane:
    """A plane whose reads go to replicas. The plane is looked at when it is used."""

    def __init__(self, planes: Any, read_from: ReadFrom) -> None:
        self._planes = planes
        self._read_from = read_from

    def plane(self) -> Any:
        return self._planes.plane().reading(self._read_from)

    def __getattr__(self, name: str) -> Any:
        return lambda *args: getattr(self.plane(), name)(*args)


def reading_plane(planes: Any, read_from: str | ReadFrom | None) -> Any:
    """Return a plane whose reads go where ``read_from=`` says; as it is, if that says nothing."""
    return planes if read_from is None else _ReadingPlane(planes, as_read_from(read_from))
