"""The client plane: from a component and a key to a redis-py client.

Decorators and routers use it. It looks up the component, places the key, and returns redis-py's own
client of that shard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from shardkit.config.component import MAX_SHARDS, Component, wrong_placement
from shardkit.config.problem import mask
from shardkit.config.read_from import ReadFrom, as_read_from
from shardkit.errors import InvalidArgumentError, ShardKitError
from shardkit.network.connections.clients import AsyncClient, Client, Clients
from shardkit.network.links.link import AwaitingLink, BlockingLink
from shardkit.network.replicas.reading import LinkReads, ReaderClients
from shardkit.network.replicas.replicas import Replicas
from shardkit.network.topology import Topology
from shardkit.operations.arguments import Seconds, shown
from shardkit.operations.commands import Key
from shardkit.routing.placement import DEFAULT
from shardkit.structures.base.arguments import check_integer, check_seconds

L = TypeVar("L", BlockingLink, AwaitingLink)

MaybeAwaited: TypeAlias = AsyncClient | Coroutine[Any, Any, AsyncClient]
"""An awaiting client; or, if its component must be read first, a coroutine for it."""


class CallSite:
    """A component as one decorator or router uses it; its arguments are theirs.

    With ``unsharded`` it uses the unsharded entry; ``max_age`` is the age in seconds from which a
    call makes the entries be read again; ``seen`` is the version that was checked last.
    """

    __slots__ = ("component", "max_age", "placement", "read_from", "seen", "shards", "unsharded")

    def __init__(
        self,
        component: str,
        shards: int | None = None,
        placement: str | None = None,
        read_from: str | ReadFrom | None = None,
        max_age: Seconds | None = None,
        unsharded: bool = False,
    ) -> None:
        rule = f"placement={shown(mask('host', placement))}"
        if placement is not None and shards is None:
            raise InvalidArgumentError(f"{rule} without shards=", "use both")
        if shards is not None:
            check_integer(str(component), "shards", shards, 1, MAX_SHARDS)
            if wrong := wrong_placement(placement or DEFAULT, shards):
                raise InvalidArgumentError(f"component {component!r}: {rule} {wrong}", "correct it")
        self.component = component
        self.shards = shards
        self.placement = placement
        self.read_from = None if read_from is None else as_read_from(read_from)
        self.unsharded = unsharded
        self.max_age = (
            None if max_age is None else check_seconds(component, "max_age", max_age, 0, math.inf)
        )
        self.seen: Component | None = None

    def checked(self, topology: Topology, component: Component) -> Component:
        """Return a component's version if it is as this call says; see `require_shards`. No I/O."""
        rule = self.placement
        if self.unsharded:
            if component.entry is None:
                topology.refused(self.component)
            else:
                self.seen = component
            return component
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
    """Returns clients by component and key."""

    near: Mapping[str, Any] = MappingProxyType({})  # near copies by component; see `Kit.near`
    check_keys = False  # whether key routers' clients refuse keys of other shards, for tests

    def __init__(self, topology: Topology, clients: Clients, zone: str = "") -> None:
        self.topology = topology
        self.clients = clients
        self.replicas = Replicas(clients, zone)
        self._links: dict[tuple[Any, ...], Any] = {}
        self._readers: dict[ReadFrom | None, ReaderClients] = {}

    def link(self, *, raw: bool = True, read_from: ReadFrom | None = None) -> BlockingLink:
        """Return the link whose reads go where a call or, without that, the entries say.

        Structures need raw replies, pipelines and bulk calls those of the clients.
        """
        return self._link(BlockingLink, raw, read_from)

    def alink(self, *, raw: bool = True, read_from: ReadFrom | None = None) -> AwaitingLink:
        """Return the awaiting `link`."""
        return self._link(AwaitingLink, raw, read_from)

    def _link(self, kind: type[L], raw: bool, read_from: ReadFrom | None) -> L:
        link: L | None = self._links.get((kind, raw, read_from))
        if link is None:
            self._check_zone(read_from)
            reads = LinkReads(self.replicas, self.clients, read_from, structures=raw)
            made = kind(self.topology, self.clients, raw=raw, reads=reads)
            link = self._links.setdefault((kind, raw, read_from), made)
        if self.near and read_from is None:
            from shardkit.caching.near_reads import NearLink  # few programs need it

            return NearLink(link, self.near, raw)  # type: ignore[return-value]
        return link

    def readers(self, read_from: ReadFrom | None) -> ReaderClients:
        """Return the clients that read where a call or, without that, the entries say."""
        readers = self._readers.get(read_from)
        if readers is None:
            self._check_zone(read_from)
            new = ReaderClients(self.clients, self.replicas, read_from)
            readers = self._readers.setdefault(read_from, new)
        return readers

    def _check_zone(self, read_from: ReadFrom | None) -> None:
        if read_from is not None and read_from.by_zone and not self.replicas.zone:
            raise InvalidArgumentError(
                f"read_from={read_from.mode!r} needs the zone of this process",
                "open the kit with connect(…, zone='eu-1a')",
            )

    def plane(self) -> ClientPlane:
        """Return this plane; the default plane returns the default kit's."""
        return self

    def client(self, site: CallSite, key: Key | None = None) -> Client:
        """Return the client of the shard of a key, or of the unsharded entry."""
        if site.max_age is not None:
            self.topology.limit_age(site.component, site.max_age)
        current = self.topology.component(site.component)
        if current is not site.seen:
            current = site.checked(self.topology, current)
        clients: Any = self.clients
        if current.splits_reads or site.read_from is not None:
            clients = self.readers(site.read_from)
        return clients.get(current, None if site.unsharded else current.number_of(key))  # type: ignore[arg-type, no-any-return]

    def aclient(self, site: CallSite, key: Key | None = None) -> MaybeAwaited:
        """Return the awaiting `client`."""
        if site.max_age is not None:
            self.topology.limit_age(site.component, site.max_age)
        fresh = self.topology.fresh(site.component)
        return self._read_client(site, key) if fresh is None else self._aclient(fresh, site, key)

    async def _read_client(self, site: CallSite, key: Key | None) -> AsyncClient:
        return self._aclient(await self.topology.acomponent(site.component), site, key)

    def cached_client(self, site: CallSite, key: Key) -> AsyncClient:
        """Return the awaiting client of the shard of a key without waiting; see `cached`."""
        return self._aclient(self.cached(site.component), site, key)

    def _aclient(self, current: Component, site: CallSite, key: Key | None) -> AsyncClient:
        if current is not site.seen:
            current = site.checked(self.topology, current)
        clients: Any = self.clients
        if current.splits_reads or site.read_from is not None:
            clients = self.readers(site.read_from)
        return clients.aget(current, None if site.unsharded else current.number_of(key))  # type: ignore[arg-type, no-any-return]

    def cached(self, component: str) -> Component:
        """Return a component that was read, or raise MissingEntryError; a stale one is reread."""
        return self.topology.fresh(component) or self.topology.last_known(component)


class DefaultPlane:
    """The client plane of the default kit, opened at the first use by the kit's module."""

    opened: Callable[[], ClientPlane]

    def plane(self) -> ClientPlane:
        """Return the default kit's plane."""
        return self.opened()

    def client(self, site: CallSite, key: Key | None = None) -> Client:
        """See `ClientPlane.client`."""
        return self.opened().client(site, key)

    def aclient(self, site: CallSite, key: Key | None = None) -> MaybeAwaited:
        """See `ClientPlane.aclient`."""
        return self.opened().aclient(site, key)

    def cached_client(self, site: CallSite, key: Key) -> AsyncClient:
        """See `ClientPlane.cached_client`."""
        return self.opened().cached_client(site, key)


DEFAULT_PLANE = DefaultPlane()

Plane: TypeAlias = ClientPlane | DefaultPlane
