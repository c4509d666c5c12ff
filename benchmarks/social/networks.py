"""Networks to measure: over four servers and over one, of made-up people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import shardkit
from examples.social.loading import BulkFollow, create_users
from shardkit import ShardKit, ShardMap
from shardkit.local import LocalServer, LocalServers, Setting
from shardkit.operations.operation import Blocking
from shardkit.social.network import SocialNetwork

# One database of each server for all by-key data, four more for relations.
FOUR = """
components:
  data: {shards: [{port: 1}, {port: 2}, {port: 3}, {port: 4}]}
  followers:
    shards:
      count: 16
      over: [{port: 1, db: 1}, {port: 2, db: 1}, {port: 3, db: 1}, {port: 4, db: 1}]
"""
ONE = """
components:
  data: {entry: {port: 1}}
  followers: {entry: {port: 1, db: 1}}
"""
# Home timelines are cut when they are a tenth above 1,000, after up to 500 were added at once.
COMPACT: Mapping[str, Setting] = {"zset-max-listpack-entries": 1600}


@dataclass
class Site:
    """A network on servers of its own.

    Attributes:
        name: ``4 servers`` or ``1 server``.
        kit: a kit.
        network: the network.
        servers: its servers.
        shard_map: where they are.
        uids: the users, by number.
    """

    name: str
    kit: ShardKit
    network: SocialNetwork[Blocking]
    servers: list[LocalServer]
    shard_map: ShardMap
    uids: list[int]

    def build(self, users: int, following: Sequence[Sequence[int]] = ()) -> None:
        """Create users and their relations."""
        self.uids = create_users(self.kit, self.network, users, lambda _: None)
        bulk = BulkFollow(self.network, self.uids, 0)
        self.kit.driver.run(bulk.run(following, lambda _: None))

    def spent(self) -> float:
        """How many seconds of a processor the servers have used."""
        total = 0.0
        for server in self.servers:
            with server.client() as client:
                info: Any = client.info("cpu")
            total += info["used_cpu_user"] + info["used_cpu_sys"]
        return total


def options_of(name: str, parts: int = 1) -> dict[str, Any]:
    """Return the arguments of the network over four servers or one."""
    return {
        "component": "data",
        "followers": "followers",
        "relation_parts": 16 if name == "4 servers" else parts,
        "fan_out_limit": 0,
    }


@contextmanager
def site(name: str, config: Mapping[str, Setting] = COMPACT, parts: int = 1) -> Iterator[Site]:
    """Start servers, and give an empty network on them.

    Args:
        name: ``4 servers``, with 16 shards of relations, or ``1 server``.
        config: of the servers.
        parts: in how many parts one server has relations.
    """
    text = FOUR if name == "4 servers" else ONE
    with (
        LocalServers(ShardMap.parse(text), ports="free", config=config) as servers,
        shardkit.connect(servers.shard_map) as kit,
    ):
        network = kit.social(**options_of(name, parts))
        yield Site(name, kit, network, servers.servers, servers.shard_map, [])
