"""The client plane: from a component and a key to a redis-py client.

Decorators and routers use it. It looks up the component, places the key, and returns redis-py's own
client of that shard.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

from shardkit.config.component import Component, wrong_placement
from shardkit.config.read_from import ReadFrom, as_read_from, in_use
from shardkit.errors import InvalidArgumentError, ShardKitError
from shardkit.network.connections.clients import AsyncClient, Client, Clients
from shardkit.network.links.awaiting import AwaitingLink
from shardkit.network.links.blocking import BlockingLink
from shardkit.network.replicas.reading import LinkReads, ReaderClients
from shardkit.network.replicas.replicas import Replicas
from shardkit.network.topology import Topology
from shardkit.operations.commands import Key
from shardkit.routing.placement import DEFAULT

MaybeAwaited: TypeAlias = AsyncClient | Coroutine[Any, Any, AsyncClient]
"""An awaiting client; or, if its component must be read first, a coroutine for it."""


class CallSite:
    """A component as one decorator or router uses it, with the count and placement that it says.

    Args:
        component: the component's name.
        shards: how many shards it must have; None for any number.
        placement: how keys must be placed; None for the stored placement, or ``crc32`` if the
            entries were written by hand.

    Attributes:
        seen: the version of the component that was checked last.

    Raises:
        InvalidArgumentError: the placement cannot be used, or is given without ``shards``.
    """

    __slots__ = ("component", "placement", "seen", "shards")

    def __init__(
        self, component: str, shards: int | None = None, placement: str | None = None
    ) -> None:
        if placement is not None and shards is None:
            raise InvalidArgumentError(f"placement={placement!r} without shards=", "use both")
        if type(shards) is int and shards > 0:
            wrong = wrong_placement(placement or DEFAULT, shards)
            if wrong:
                raise InvalidArgumentError(
                    f"component {component!r}: placement={placement!r} {wrong}", "correct it"
                )
        self.component = component
        self.shards = shards
        self.placement = placement
        self.seen: Component | None = None

    def checked(self, topology: Topology, component: Component) -> Component:
        """Return a version of the component that is as this call says, or refuse it. No I/O.

        Raises: as `Component.require_shards`.
        """
        rule = self.placement
        if self.shards is not None:
            counted = topology.count(self.component, self.shards, rule or DEFAULT)
            component = counted or component
            if component.by_hand is not None:
                rule = rule or DEFAULT
        try:
            component.require_shards(self.shards, rule)
        except ShardKitError:
            topology.refused(self.component)
            raise
        self.seen = component
        return component


class ClientPlane:
    """Returns clients by component and key.

    Attributes:
        check_keys: whether key routers' clients refuse keys of other shards, for tests.
    """

    check_keys = False

    def __init__(self, topology: Topology, clients: Clients, zone: str = "") -> None:
        self.topology = topology
        self.clients = clients
        # By whether replies are raw: structures need raw ones, pipelines those of the clients.
        self.links = {raw: BlockingLink(topology, clients, raw=raw) for raw in (True, False)}
        self.alinks = {raw: AwaitingLink(topology, clients, raw=raw) for raw in (True, False)}
        self.replicas = Replicas(clients, zone)
        self.readers = ReaderClients(clients, self.replicas, None)
        self._reading: dict[ReadFrom, ClientPlane] = {}
        self._have_links_read(clients, None)

    def reading(self, read_from: ReadFrom) -> ClientPlane:
        """Return this plane with reads from replicas, regardless of the entries."""
        if read_from.mode == "zone" and not self.replicas.zone:
            raise InvalidArgumentError(
                "read_from='zone' needs the zone of this process",
                "open the kit with connect(…, zone='eu-1a')",
            )
        plane = self._reading.get(read_from)
        if plane is None:
            plane = copy.copy(self)
            in_use.note(plane)
            plane.readers = ReaderClients(self.clients, self.replicas, read_from)
            plane.clients = plane.readers  # type: ignore[assignment]
            plane._have_links_read(self.clients, read_from)
            plane = self._reading.setdefault(read_from, plane)
        return plane

    def clients_of(self, component: Component) -> Clients:
        """Return a component's clients: those that read from replicas if its entries say so."""
        clients: Any = self.readers if component.reads_apart else self.clients
        return clients  # type: ignore[no-any-return]

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
        if found.entry is None:
            self.topology.refused(component)
        return (self.readers if found.reads_apart else self.clients).get(found, None)

    def shard_connection(self, site: CallSite, key: Key) -> Client:
        """Return the client of the shard of a key."""
        found = self.topology.component(site.component)
        if found is not site.seen:
            found = site.checked(self.topology, found)
        return (self.readers if found.reads_apart else self.clients).get(
            found, found.number_of(key)
        )

    def aconnection(self, component: str) -> MaybeAwaited:
        """Return the awaiting client of a component's unsharded entry."""
        found = self.topology.fresh(component)
        if found is None:
            return self._read_connection(component)
        return self._aconnection(found)

    async def _read_connection(self, component: str) -> AsyncClient:
        return self._aconnection(await self.topology.acomponent(component))

    def _aconnection(self, found: Component) -> AsyncClient:
        if found.entry is None:
            self.topology.refused(found.name)
        return (self.readers if found.reads_apart else self.clients).aget(found, None)

    def ashard_connection(self, site: CallSite, key: Key) -> MaybeAwaited:
        """Return the awaiting client of the shard of a key."""
        found = self.topology.fresh(site.component)
        if found is None:
            return self._read_shard_connection(site, key)
        return self._ashard_connection(found, site, key)

    async def _read_shard_connection(self, site: CallSite, key: Key) -> AsyncClient:
        found = await self.topology.acomponent(site.component)
        return self._ashard_connection(found, site, key)

    def _ashard_connection(self, found: Component, site: CallSite, key: Key) -> AsyncClient:
        if found is not site.seen:
            found = site.checked(self.topology, found)
        return (self.readers if found.reads_apart else self.clients).aget(
            found, found.number_of(key)
        )

    def cached_connection(self, site: CallSite, key: Key) -> AsyncClient:
        """Return the awaiting client of the shard of a key without waiting; see `cached`."""
        return self._ashard_connection(self.cached(site.component), site, key)

    def cached(self, component: str) -> Component:
        """Return a component without waiting; a stale one is read again in the background.

        Raises:
            MissingEntryError: the component has not been read.
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
        """Use a newer version if it places keys alike: only addresses differ."""
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
    """The client plane of the default kit, which is opened at the first use.

    The kit's module sets `opened`.
    """

    opened: Callable[[], ClientPlane]

    def plane(self) -> ClientPlane:
        """Return the default kit's plane."""
        return self.opened()

    def connection(self, component: str) -> Client:
        """See `ClientPlane.connection`."""
        return self.opened().connection(component)

    def shard_connection(self, site: CallSite, key: Key) -> Client:
        """See `ClientPlane.shard_connection`."""
        return self.opened().shard_connection(site, key)

    def cached_connection(self, site: CallSite, key: Key) -> AsyncClient:
        """See `ClientPlane.cached_connection`."""
        return self.opened().cached_connection(site, key)

    def aconnection(self, component: str) -> MaybeAwaited:
        """See `ClientPlane.aconnection`."""
        return self.opened().aconnection(component)

    def ashard_connection(self, site: CallSite, key: Key) -> MaybeAwaited:
        """See `ClientPlane.ashard_connection`."""
        return self.opened().ashard_connection(site, key)


DEFAULT_PLANE = DefaultPlane()


class _ReadingPlane:
    """A plane whose reads go to replicas, looked up at each use."""

    def __init__(self, planes: Any, read_from: ReadFrom) -> None:
        self._planes = planes
        self._read_from = read_from

    def plane(self) -> Any:
        return self._planes.plane().reading(self._read_from)

    def __getattr__(self, name: str) -> Any:
        return lambda *args: getattr(self.plane(), name)(*args)


def reading_plane(planes: Any, read_from: str | ReadFrom | None) -> Any:
    """Return a plane whose reads go to ``read_from``; the plane itself for None."""
    return planes if read_from is None else _ReadingPlane(planes, as_read_from(read_from))
