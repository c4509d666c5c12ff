"""Fixtures of the whole suite: a kit, blocking and awaiting, over real servers that run once.

The map: five servers; `many` has 16 shards over four of them, `few` has 4, `one` is unsharded, and
`both` has an entry and 4 shards. Every test finds the servers empty.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

import shardkit
from shardkit import AsyncShardKit, ShardKit, ShardMap
from shardkit.local import LocalServers

MAP = """
components:
  many: {shards: {count: 16, over: [{port: 7001}, {port: 7002}, {port: 7003}, {port: 7004}]}}
  few:
    shards: [{port: 7001, db: 10}, {port: 7002, db: 10}, {port: 7003, db: 10}, {port: 7004, db: 10}]
  one: {entry: {port: 7005}}
  both:
    entry: {port: 7005, db: 1}
    shards: {count: 4, over: [{port: 7001, db: 12}, {port: 7002, db: 12}]}
"""


@pytest.fixture(scope="session")
def servers() -> Iterator[LocalServers]:
    """Real servers for the map above, on free ports, for the whole session."""
    with LocalServers(ShardMap.parse(MAP), ports="free") as running:
        yield running


@pytest.fixture
def shard_map(servers: LocalServers) -> ShardMap:
    """The map of the running servers, which are empty."""
    for server in servers.servers:
        with server.client() as client:
            client.flushall()
            client.script_flush()
    return servers.shard_map


@pytest.fixture
def kit(shard_map: ShardMap) -> Iterator[ShardKit]:
    """A blocking kit over empty servers."""
    with shardkit.connect(shard_map) as opened:
        yield opened


@pytest_asyncio.fixture
async def akit(shard_map: ShardMap) -> AsyncIterator[AsyncShardKit]:
    """An awaiting kit over empty servers."""
    async with await shardkit.aconnect(shard_map) as opened:
        yield opened
