"""What the visitors weigh: in parts, as one SET a day, and as one SET a day of UUIDs as text.

Each form is loaded into a fresh server of its own, all of the same binary. Its weight is what
``used_memory`` grew by, asked for over a connection that was just opened, when there is no other::

    used_memory ─► load ─► let tables settle ─► used_memory

Everything that a form needs is weighed: parts, parameters, plans and counts here, one key a day
there. A table that grows is held twice until its entries are moved, one at each look into it; so it
is looked into until that is over.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import shardkit
from shardkit.config.component import Component
from shardkit.config.shard_map import ShardMap
from shardkit.demo.counting import DayFigures, VisitCounter
from shardkit.errors import LocalServerError
from shardkit.kit import ShardKit
from shardkit.local import LocalServer, Setting
from shardkit.operations.operation import pages

MOST: Final = 1_000_000  # visitors that are weighed, unless the busiest day alone has more
_AT_ONCE: Final = 10_000
_PATIENCE: Final = 10.0  # seconds until connections are closed
# What a server notes down for people who watch it would be weighed as well.
_QUIET: Mapping[str, Setting] = {"latency-tracking": False, "slowlog-max-len": 0}


@dataclass(frozen=True, slots=True)
class VisitorMemory:
    """What visitors weigh, in bytes.

    Attributes:
        server: the server and its allocator: ``valkey 9.1.2, libc``.
        days: how many days were weighed.
        visitors: how many visitors they have together.
        parts: as they are counted, in parts.
        plain: as one SET a day of the same ids.
        text: as one SET a day of 36 characters a visitor, as UUIDs are written.
    """

    server: str
    days: int
    visitors: int
    parts: int
    plain: int
    text: int


def weigh(counting: VisitCounter, days: Iterable[DayFigures]) -> VisitorMemory | None:
    """Weigh the busiest days: as many as have a million visitors together, and one at least.

    Returns:
        The weights; None if nobody came.

    Raises:
        LocalServerError: no server can be started.
        ShardErrors: the visitors cannot be read.

    Cost: reads every id and sends it three times; some 15 microseconds each.
    """
    chosen = list(_busiest(days))
    if not chosen:
        return None
    with ExitStack() as stack:
        servers = [LocalServer(config=_QUIET, name=f"scale {n}") for n in range(3)]
        parts, plain, text = (_MeasuredServer(stack.enter_context(server)) for server in servers)
        with parts.kit() as kit:
            for day in chosen:
                name = counting.visitors.count_key(day.day)
                counted = counting.visitors.visitors(day.day)
                ids = kit.set(name, component="scale", total=counted.total, members=int)
                parts.client.mset({name: day.visitors, f"{name}:expected": day.planned})
                for page in pages(counted.sscan_iter(), _AT_ONCE):
                    ids.sadd(*page)
                    plain.client.sadd(name, *page)
                    text.client.sadd(name, *map(_as_uuid, page))
        for scale in (plain, text):
            for day in chosen:
                scale.settle(counting.visitors.count_key(day.day), day.visitors)
        return VisitorMemory(
            plain.software,
            len(chosen),
            sum(day.visitors for day in chosen),
            parts.weight(),
            plain.weight(),
            text.weight(),
        )


class _MeasuredServer:
    """A fresh server, and how much memory it uses while it holds nothing."""

    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self.client = server.client()
        with self.kit() as kit:  # with all that a first use leaves behind
            warm = kit.set("warm", component="scale", total=1, members=int)
            warm.sadd(1)
            warm.delete()
        self._empty = self._used()

    @property
    def software(self) -> str:
        info: Any = self.client.info()
        name = "valkey" if "valkey_version" in info else "redis"
        return f"{name} {info[f'{name}_version']}, {info['mem_allocator']}"

    def kit(self) -> ShardKit:
        """Open a kit whose component ``scale`` is the server."""
        return shardkit.connect(ShardMap({"scale": Component("scale", self._server.entry)}))

    def settle(self, name: str, size: int) -> None:
        """Look into a SET until it has moved all its entries."""
        for _ in range(0, size, _AT_ONCE):
            self.client.smismember(name, ["0"] * _AT_ONCE)

    def weight(self) -> int:
        return self._used() - self._empty

    def _used(self) -> int:
        """Return how much memory is used, when this connection is the only one."""
        self.client.connection_pool.disconnect()
        deadline = time.monotonic() + _PATIENCE
        while True:
            info: Any = self.client.info()
            if info["connected_clients"] == 1:
                return int(info["used_memory"])
            if time.monotonic() > deadline:
                raise LocalServerError(
                    f"{self._server} has clients that nobody knows", "let nobody use it"
                )
            time.sleep(0.01)


def _busiest(days: Iterable[DayFigures]) -> Iterator[DayFigures]:
    total = 0
    for day in sorted(days, key=lambda day: day.visitors, reverse=True):
        if total and total + day.visitors > MOST:
            return
        total += day.visitors
        yield day


def _as_uuid(visitor: int) -> str:
    """Return a text that is as long as a UUID and as hard to compress."""
    return f"{visitor:015x}".ljust(36, "-")
