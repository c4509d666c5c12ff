"""Kits for one test: opened without an event loop, closed in every loop that used them.

A fixture that opened an async kit in a loop of its own would tie users to one pytest plugin for
asyncio. So a kit is opened without a loop: reading a shard map needs none, and clients are created
in the loop that first uses them, be it pytest-asyncio's, anyio's or ``asyncio.run``'s.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.resources import files
from typing import Any, TypeVar

import redis
import redis.asyncio as aioredis
from redis.exceptions import ReadOnlyError

from shardkit.config.shard_map import ShardMap
from shardkit.kit.kit import AsyncShardKit, ShardKit
from shardkit.local import LocalServers
from shardkit.local.sentinel import SentinelServer
from shardkit.network.connections import Connector
from shardkit.network.topology import FixedMap

K = TypeVar("K", ShardKit, AsyncShardKit)


def built_in_map() -> ShardMap:
    """Return the default map of the fixtures."""
    text = files("shardkit.testing").joinpath("map.yaml").read_text("utf-8")
    return ShardMap.parse(text, "shardkit's map for tests")


@contextmanager
def opened(kind: type[K], shard_map: ShardMap, connector: Connector | None = None) -> Iterator[K]:
    """Open a kit and read all its components; close it in every event loop that used it."""
    tracking = _LoopTrackingConnector(connector or Connector())
    kit = kind(FixedMap(shard_map), connector=tracking)
    for name in shard_map.components:
        kit.topology.component(name)
    try:
        yield kit
    finally:
        tracking.close(kit)


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


class _LoopTrackingConnector(Connector):
    """A connector that records the event loops of its async clients."""

    def __init__(self, inner: Connector) -> None:
        self._inner = inner
        self.shares, self.breaks = inner.shares, inner.breaks
        self._loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()

    def blocking(self, fields: Mapping[str, Any]) -> redis.Redis | redis.RedisCluster:
        return self._inner.blocking(fields)

    def awaiting(self, fields: Mapping[str, Any]) -> aioredis.Redis | aioredis.RedisCluster:
        self._loops.add(asyncio.get_running_loop())
        return self._inner.awaiting(fields)

    def close(self, kit: ShardKit | AsyncShardKit) -> None:
        """Close a kit. A loop that has ended closed its clients itself."""
        for loop in list(self._loops):
            if not loop.is_closed() and not loop.is_running():
                loop.run_until_complete(kit.aclose())
        kit._close()  # an async kit's, too: it sends what was recorded, and ends its threads
