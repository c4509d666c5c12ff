"""The client plane: from a component and a key to a redis-py client.

What decorators and routers stand on. Nothing is wrapped: what comes out is redis-py's own client,
found by a look-up of the component, its placement, and a look-up of the client.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

from shardkit.config.component import Component
from shardkit.connections.clients import AsyncClient, Client, Clients
from shardkit.operations.commands import Key
from shardkit.topology import Topology
from shardkit.transport.awaiting import AwaitingLink
from shardkit.transport.blocking import BlockingLink

Soon: TypeAlias = AsyncClient | Coroutine[Any, Any, AsyncClient]
"""An awaiting client; or, if its component has to be read first, a coroutine that returns it."""


class ClientPlane:
    """Hands out clients by component and key.

    Args:
        topology: where each component's shards are.
        clients: their clients.
    """

    def __init__(self, topology: Topology, clients: Clients) -> None:
        self.topology = topology
        self.clients = clients
        # By whether replies are raw: structures want them so, pipelines as the clients are.
        self.links = {raw: BlockingLink(topology, clients, raw=raw) for raw in (True, False)}
        self.alinks = {raw: AwaitingLink(topology, clients, raw=raw) for raw in (True, False)}
        self._refreshing: set[asyncio.Task[Component]] = set()

    def plane(self) -> ClientPlane:
        """Return this plane; the default plane returns the default kit's."""
        return self

    def connection(self, component: str) -> Client:
        """Return the client of a component's unsharded entry."""
        return self.clients.get(self.topology.component(component), None)

    def shard_connection(self, component: str, shards: int | None, key: Key) -> Client:
        """Return the client of the shard of a key."""
        found = self.topology.component(component)
        if shards is not None and len(found.shards) != shards:
            found.require_shards(shards)
        number = found.place(key)
        return self.clients.get(found, number if found.shards else None)

    def aconnection(self, component: str) -> Soon:
        """Return the awaiting client of a component's unsharded entry."""
        found = self.topology.fresh(component)
        if found is None:
            return self._read_connection(component)
        return self.clients.aget(found, None)

    def ashard_connection(self, component: str, shards: int | None, key: Key) -> Soon:
        """Return the awaiting client of the shard of a key."""
        found = self.topology.fresh(component)
        if found is None:
            return self._read_shard_connection(component, shards, key)
        if shards is not None and len(found.shards) != shards:
            found.require_shards(shards)
        number = found.place(key)
        return self.clients.aget(found, number if found.shards else None)

    async def _read_connection(self, component: str) -> AsyncClient:
        return self.clients.aget(await self.topology.acomponent(component), None)

    async def _read_shard_connection(
        self, component: str, shards: int | None, key: Key
    ) -> AsyncClient:
        return self._owner(await self.topology.acomponent(component), shards, key)

    def _owner(self, component: Component, shards: int | None, key: Key) -> AsyncClient:
        if shards is not None and len(component.shards) != shards:
            component.require_shards(shards)
        number = component.place(key)
        return self.clients.aget(component, number if component.shards else None)

    def known_connection(self, component: str, shards: int | None, key: Key) -> AsyncClient:
        """Return the awaiting client of the shard of a key, as far as it is known; see `known`."""
        found = self.topology.fresh(component)
        if found is None:
            found = self.known(component)
        if shards is not None and len(found.shards) != shards:
            found.require_shards(shards)
        number = found.place(key)
        return self.clients.aget(found, number if found.shards else None)

    def known(self, component: str) -> Component:
        """Return a component without waiting; have it read again behind, if it is time.

        Raises:
            MissingEntryError: it was not read yet.
        """
        topology = self.topology
        found = topology.fresh(component)
        if found is None:
            found = topology.last_known(component)
            if topology.claim(component):
                task = asyncio.get_running_loop().create_task(topology.acomponent(component))
                self._refreshing.add(task)
                task.add_done_callback(self._refreshed)
        return found

    def _refreshed(self, task: asyncio.Task[Component]) -> None:
        self._refreshing.discard(task)
        if not task.cancelled():
            task.exception()  # that the kit was closed meanwhile, its next user is told

    def link(self, component: Component, *, raw: bool) -> BlockingLink:
        """Return a link that knows one version of one component, for what was cut by it."""
        return _pinned(self.links[raw], component)

    def alink(self, component: Component, *, raw: bool) -> AwaitingLink:
        """Return the awaiting `link`; it shares its connections with the plane's own."""
        return _pinned(self.alinks[raw], component)


class _Pinned(Topology):
    """A topology of one version of one component."""

    def __init__(self, component: Component) -> None:
        self._component = component

    def component(self, name: str) -> Component:
        return self._component

    async def acomponent(self, name: str) -> Component:
        return self._component

    def fresh(self, name: str) -> Component:
        return self._component


L = TypeVar("L", BlockingLink, AwaitingLink)


def _pinned(link: L, component: Component) -> L:
    pinned = copy.copy(link)
    pinned._topology = _Pinned(component)
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

    def known_connection(self, component: str, shards: int | None, key: Key) -> AsyncClient:
        """See `ClientPlane.known_connection`."""
        return self.opened().known_connection(component, shards, key)

    def aconnection(self, component: str) -> Soon:
        """See `ClientPlane.aconnection`."""
        return self.opened().aconnection(component)

    def ashard_connection(self, component: str, shards: int | None, key: Key) -> Soon:
        """See `ClientPlane.ashard_connection`."""
        return self.opened().ashard_connection(component, shards, key)


DEFAULT_PLANE = DefaultPlane()
