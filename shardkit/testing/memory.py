"""The servers of a shard map in memory, for tests without processes and with injected faults.

Without a map, entries are read from a config server in memory, as programs read them from theirs:
``config_server`` is there to be filled, and ``shardkit.connect(config_server.entry, connector=…)``
reads it. There are pytest fixtures for this; see `shardkit.testing.plugin`.
"""

from __future__ import annotations

import os
from pathlib import Path

from shardkit.config.component import entry_key
from shardkit.config.entry import Entry
from shardkit.config.shard_map import ShardMap
from shardkit.local.servers import CONFIG_SERVER, CompleteEnvironment
from shardkit.testing.fakes.servers import MemoryConnector, MemoryServer


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
