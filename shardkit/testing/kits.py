"""Kits for one test: opened without an event loop, closed in every loop that used them.

A fixture that opened an async kit in a loop of its own would tie users to one pytest plugin for
asyncio. So a kit is opened without a loop: reading a shard map needs none, and clients are created
in the loop that first uses them, be it pytest-asyncio's, anyio's or ``asyncio.run``'s.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from redis.exceptions import ReadOnlyError

from shardkit.config.component import entry_key
from shardkit.config.entry import Entry
from shardkit.config.shard_map import ShardMap
from shardkit.kit.kit import AsyncShardKit, ShardKit
from shardkit.local import LocalServers
from shardkit.local.sentinel import SentinelServer
from shardkit.local.servers import CONFIG_SERVER, CompleteEnvironment
from shardkit.network.connections import Connector
from shardkit.network.topology import FixedMap
from shardkit.testing.fakes.servers import MemoryConnector, MemoryServer

K = TypeVar("K", ShardKit, AsyncShardKit)


def built_in_map() -> ShardMap:
    """Return the default map of the fixtures."""
    text = files("shardkit.testing").joinpath("map.yaml").read_text("utf-8")
    return ShardMap.parse(text, "shardkit's map for tests")


@contextmanager
def opened(kind: type[K], shard_map: ShardMap, connector: Connector | None = None) -> Iterator[K]:
    """Open a kit and read all its components; close it in every event loop that used it."""
    kit = kind(FixedMap(shard_map), connector=connector)
    for name in shard_map.components:
        kit.topology.component(name)
    try:
        yield kit
    finally:
        for loop in {loop for clients in kit._all_clients() for loop in clients.loops}:
            if not loop.is_closed() and not loop.is_running():  # one that has ended closed its own
                loop.run_until_complete(kit.aclose())
        kit._close()  # an async kit's, too: it sends what was recorded, and ends its threads


def empty(servers: LocalServers) -> None:
    """Delete all data and scripts; restart killed servers and resume paused ones."""
    for server in servers.servers:
        if server.running:
            server.resume()
        else:
            server.restart()
        if not isinstance(server, SentinelServer):
            # A replica is emptied by its master.
            with server.client() as client, suppress(ReadOnlyError):
                client.flushall()
                client.script_flush()


class MemoryServers(MemoryConnector):
    """The servers of a shard map in memory; also the connector to them.

    Args:
        shard_map: the map, or its path; None for servers that only the config server's entries
            name. A ``${NAME}`` in a map that is not set becomes ``local-NAME``, so that a
            production map can be tested as it is.

    Attributes:
        shard_map: the map to connect to, with the same addresses, which need not exist.

    Raises:
        ConfigError: the map cannot be read.
        InvalidEntryError: something in the map cannot be used.
        LocalServerError: fakeredis is not installed.
    """

    def __init__(self, shard_map: ShardMap | str | Path | None = None) -> None:
        super().__init__()
        given = ShardMap({}, source="no map") if shard_map is None else as_map(shard_map)
        self.shard_map = _in_memory(given)

    @property
    def servers(self) -> list[MemoryServer]:
        """All servers of the map, and those that were created by `server`."""
        for component in self.shard_map.components.values():
            for _, entry in component.entries():
                self.server(entry)
        return super().servers

    @property
    def config_server(self) -> MemoryServer:
        """The config server: the map's, or one at ``config-server:6379``. It starts empty."""
        return self.server(self.shard_map.config_server or "config-server:6379")

    def server_of(self, component: str, number: int | None = None) -> MemoryServer:
        """Return the server of a shard, or (number None) of the unsharded entry.

        Raises:
            MissingEntryError: the map has no such entry.
        """
        return self.server(self.shard_map.entry_of(component, number))


def as_map(shard_map: ShardMap | str | Path) -> ShardMap:
    """Return a map, or load it from a path."""
    return shard_map if isinstance(shard_map, ShardMap) else ShardMap.load(shard_map)


def _in_memory(shard_map: ShardMap) -> ShardMap:
    environ = CompleteEnvironment(os.environ)

    def resolved(entry: Entry, where: str) -> Entry:
        if "${" not in entry.to_json():
            return entry
        return Entry(entry.resolved(where, environ), where)

    config_server = shard_map.config_server
    return ShardMap(
        {
            name: old.with_entries(lambda shard, entry: resolved(entry, entry_key(*shard)))
            for name, old in shard_map.components.items()
        },
        config_server and resolved(config_server, CONFIG_SERVER),
        (),
        f"{shard_map.source} (in memory)",
    )
