"""The client plane: from a component and a key to a redis-py client.

What decorators and routers stand on. Nothing is wrapped: what comes out is redis-py's own client,
found by a look-up of the component, its placement, and a look-up of the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shardkit.clients import AsyncClient, Client, Clients
from shardkit.commands import Key
from shardkit.config.component import Component
from shardkit.links.awaiting import AwaitingLink
from shardkit.links.blocking import BlockingLink
from shardkit.topology import Topology


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
        if len(found.shards) != shards:
            found.require_shards(shards)
        number = found.place(key)
        return self.clients.get(found, number if found.shards else None)

    async def aconnection(self, component: str) -> AsyncClient:
        """Return the awaiting client of a component's unsharded entry."""
        return self.clients.aget(await self.topology.acomponent(component), None)

    async def ashard_connection(self, component: str, shards: int | None, key: Key) -> AsyncClient:
        """Return the awaiting client of the shard of a key."""
        found = await self.topology.acomponent(component)
        if len(found.shards) != shards:
            found.require_shards(shards)
        number = found.place(key)
        return self.clients.aget(found, number if found.shards else None)

    def known(self, component: str) -> Component:
        """Return a component without waiting; have it read again behind, if it is time.

        Raises:
            MissingEntryError: it was not read yet.
        """
        found = self.topology.known(component)
        if self.topology.is_stale(component):
            task = asyncio.get_running_loop().create_task(self.topology.acomponent(component))
            self._refreshing.add(task)
            task.add_done_callback(self._refreshing.discard)
        return found


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

    async def aconnection(self, component: str) -> AsyncClient:
        """See `ClientPlane.aconnection`."""
        return await self.opened().aconnection(component)

    async def ashard_connection(self, component: str, shards: int | None, key: Key) -> AsyncClient:
        """See `ClientPlane.ashard_connection`."""
        return await self.opened().ashard_connection(component, shards, key)


DEFAULT_PLANE = DefaultPlane()
