"""Measures how long batches on four servers of this machine take, compared with the limit.

``benchmarks/throughput`` measures more: async, clusters, large values, delays, other clients.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import shardkit
from shardkit.cli.bench.throughput.contestants import OurClient, RedisPyClient
from shardkit.cli.bench.throughput.limits import Address, RawSockets
from shardkit.cli.bench.throughput.rounds import LIMIT, ratios
from shardkit.cli.bench.throughput.works import WORKS, Commands, columns_of, sets
from shardkit.config.shard_map import ShardMap
from shardkit.kit.kit import ShardKit
from shardkit.local import LocalServers

COMPONENT: Final = "bench"
SERVERS: Final = 4
SIZES: Final = (1, 100, 1_000, 10_000)
REPEATS: Final = 7
_FILLED_AT_ONCE: Final = 1_000  # values per batch that are written before reads are timed


@dataclass(frozen=True)
class BatchTimes:
    """The times of one kind of work, in batches of one size."""

    work: str
    size: int
    limit: float  # the limit's time for a batch, in microseconds
    ratios: Mapping[str, float]  # each contestant's time as a multiple of the limit

    def a_second(self, name: str = LIMIT) -> float:
        """Return how many commands a contestant carries out in a second."""
        return self.size / (self.limit * self.ratios.get(name, 1.0)) * 1e6


@dataclass(frozen=True)
class Comparison:
    """Servers, and the contestants that take turns on them."""

    software: str
    kit: ShardKit
    limit: RawSockets
    redis_py: RedisPyClient

    def measure(self, work: str, size: int, repeats: int = REPEATS) -> BatchTimes:
        """Measure one kind of work in batches of one size."""
        commands = WORKS[work](size)
        written = sets(size)
        for start in range(0, size, _FILLED_AT_ONCE):
            self.limit.batch(written[start : start + _FILLED_AT_ONCE])
        found = ratios(self._contestants(work, commands), repeats, least=0.02)
        limit = found.pop("limit, us")
        return BatchTimes(work, size, limit, found)

    def _contestants(self, work: str, commands: Commands) -> dict[str, Callable[[], object]]:
        ours, theirs, limit = OurClient(self.kit, COMPONENT), self.redis_py, self.limit
        if len(commands) == 1:
            [args] = commands
            return {
                LIMIT: lambda: limit.one(*args),
                "shardkit": lambda: ours.one(*args),
                "redis-py": lambda: theirs.one(*args),
            }
        prepared = ours.prepare(commands)
        found: dict[str, Callable[[], object]] = {
            LIMIT: lambda: limit.batch(commands),
            "shardkit": lambda: ours.batch(prepared),
            "redis-py": lambda: theirs.batch(commands),
        }
        if work != "mixed":
            name, *columns = columns_of(commands)
            found["by column"] = lambda: ours.columns(name, columns)
            if work in ("get", "set"):
                found["coalesced"] = lambda: ours.columns(name, columns, coalesced=True)
        return found


@contextmanager
def comparison(shards: int = SERVERS, binary: str | None = None) -> Iterator[Comparison]:
    """Start servers and connect the contestants."""
    entries = [{"port": 7001 + n} for n in range(SERVERS)]
    shard_map = ShardMap.parse(
        json.dumps({"components": {COMPONENT: {"shards": {"count": shards, "over": entries}}}})
    )
    config = {"databases": -(-shards // SERVERS)}
    with LocalServers(shard_map, ports="free", config=config, binary=binary) as servers:
        fields = [e.resolved("") for e in servers.shard_map.components[COMPONENT].shards]
        addresses: list[Address] = [("127.0.0.1", f["port"], f.get("db", 0)) for f in fields]
        limit, theirs = RawSockets(addresses), RedisPyClient(addresses)
        try:
            info = theirs.clients[0].info("server")
            name = "valkey" if "valkey_version" in info else "redis"
            with shardkit.connect(servers.shard_map) as kit:
                yield Comparison(f"{name} {info[f'{name}_version']}", kit, limit, theirs)
        finally:
            limit.close()
            theirs.close()


def run(
    works: Sequence[str],
    sizes: Sequence[int],
    shards: int,
    repeats: int,
    binary: str | None,
    tell: Callable[[str, int, int], object],
) -> tuple[str, list[BatchTimes]]:
    """Measure kinds of work in batches of several sizes; also return the servers' software."""
    found = []
    with comparison(shards, binary) as compared:
        for n, (work, size) in enumerate((work, size) for work in works for size in sizes):
            tell(f"{work}, {size:,} at once", n, len(works) * len(sizes))
            found.append(compared.measure(work, size, repeats))
        return compared.software, found
