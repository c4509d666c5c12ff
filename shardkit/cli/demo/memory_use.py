"""The memory of visitors: in parts, as one SET per day, and as one SET per day of UUIDs as text.

Each form is loaded into a new server, all with the same binary. Its memory is the growth of
``used_memory``, measured while there are no other connections::

    used_memory ─► load ─► finish rehashing ─► used_memory

All keys of a form count: parts, parameters, plans and counts, or one key per day. While a hash
table grows, it exists twice, and each look-up moves one of its entries; so members are looked up
until all have moved.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import shardkit
from shardkit.cli.demo.counting import DayFigures, VisitCounter
from shardkit.config.component import Component
from shardkit.config.shard_map import ShardMap
from shardkit.errors import LocalServerError
from shardkit.kit.kit import ShardKit
from shardkit.local import LocalServer, Setting
from shardkit.operations.operation import pages

MOST: Final = 1_000_000  # visitors to measure at most, unless the busiest day alone has more
_AT_ONCE: Final = 10_000
_CLOSE_TIMEOUT: Final = 10.0  # seconds to wait for other connections to close
# The server's statistics would count as memory.
_QUIET: Mapping[str, Setting] = {"latency-tracking": False, "slowlog-max-len": 0}


@dataclass(frozen=True, slots=True)
class VisitorMemory:
    """The memory of visitors, in bytes.

    Attributes:
        server: the server and its allocator: ``valkey 9.1.2, libc``.
        plain: as one SET per day of the same ids.
        text: as one SET per day of texts of 36 characters, the length of UUIDs.
    """

    server: str
    days: int
    visitors: int
    parts: int
    plain: int
    text: int


def measure_memory(counting: VisitCounter, days: Iterable[DayFigures]) -> VisitorMemory | None:
    """Measure the busiest days, up to a million visitors in total, but at least one day.

    Returns:
        The memory; None without visitors.

    Raises:
        LocalServerError: no server can be started.
        ShardErrors: the visitors cannot be read.

    Cost: reads every id once and sends it three times; about 15 microseconds each.
    """
    chosen = list(_busiest(days))
    if not chosen:
        return None
    with ExitStack() as stack:
        servers = [LocalServer(config=_QUIET, name=f"measured {n}") for n in range(3)]
        parts, plain, text = (_MeasuredServer(stack.enter_context(server)) for server in servers)
        with parts.kit() as kit:
            for day in chosen:
                name = counting.visitors.count_key(day.day)
                counted = counting.visitors.visitors(day.day)
                ids = kit.set(name, component="measured", total=counted.total, members=int)
                parts.client.mset({name: day.visitors, f"{name}:expected": day.planned})
                for page in pages(counted.sscan_iter(), _AT_ONCE):
                    ids.sadd(*page)
                    plain.client.sadd(name, *page)
                    text.client.sadd(name, *map(_as_uuid, page))
        for server in (plain, text):
            for day in chosen:
                server.finish_rehashing(counting.visitors.count_key(day.day), day.visitors)
        return VisitorMemory(
            plain.software,
            len(chosen),
            sum(day.visitors for day in chosen),
            parts.bytes_added(),
            plain.bytes_added(),
            text.bytes_added(),
        )


class _MeasuredServer:
    """A new server, and the memory that it uses when empty."""

    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self.client = server.client()
        with self.kit() as kit:  # includes what the first use of a structure leaves behind
            warm = kit.set("warm", component="measured", total=1, members=int)
            warm.sadd(1)
            warm.delete()
        self._empty = self._used()

    @property
    def software(self) -> str:
        info: Any = self.client.info()
        name = "valkey" if "valkey_version" in info else "redis"
        return f"{name} {info[f'{name}_version']}, {info['mem_allocator']}"

    def kit(self) -> ShardKit:
        """Open a kit whose component ``measured`` is the server."""
        return shardkit.connect(ShardMap({"measured": Component("measured", self._server.entry)}))

    def finish_rehashing(self, name: str, size: int) -> None:
        """Look up members of a SET until all its entries have moved."""
        for _ in range(0, size, _AT_ONCE):
            self.client.smismember(name, ["0"] * _AT_ONCE)

    def bytes_added(self) -> int:
        return self._used() - self._empty

    def _used(self) -> int:
        """Return the used memory, once this connection is the only one."""
        self.client.connection_pool.disconnect()
        deadline = time.monotonic() + _CLOSE_TIMEOUT
        while True:
            info: Any = self.client.info()
            if info["connected_clients"] == 1:
                return int(info["used_memory"])
            if time.monotonic() > deadline:
                raise LocalServerError(f"{self._server} has other clients", "disconnect them")
            time.sleep(0.01)


def _busiest(days: Iterable[DayFigures]) -> Iterator[DayFigures]:
    total = 0
    for day in sorted(days, key=lambda day: day.visitors, reverse=True):
        if total and total + day.visitors > MOST:
            return
        total += day.visitors
        yield day


def _as_uuid(visitor: int) -> str:
    """Return a text as long as a UUID."""
    return f"{visitor:015x}".ljust(36, "-")
