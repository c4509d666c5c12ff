"""The visitors in memory: each shard's share of them, and what several forms take.

Each form is loaded into a new server, all with the same binary, and measured as by
`shardkit.cli.advise.servers`. All keys of a form count: parts, parameters, plans and counts, or one
key per day. The bytes of a shard's share are those of ``MEMORY USAGE``: a key's name, its value and
the server's bookkeeping, without the table of keys. The figure is exact for a compact part; for
others, the server samples members.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from shardkit.cli.advise.servers import COMPONENT, ServerSource
from shardkit.cli.demo.counting import DayFigures, VisitCounter
from shardkit.kit.kit import ShardKit
from shardkit.operations.commands import Command, Shard
from shardkit.operations.operation import Operation, pages
from shardkit.routing.keys import text

MOST: Final = 1_000_000  # visitors to measure at most, unless the busiest day alone has more
_AT_ONCE: Final = 10_000


@dataclass(frozen=True, slots=True)
class VisitorMemory:
    """The memory of visitors, in bytes."""

    server: str  # and its allocator: ``valkey 9.1.2, libc``
    days: int
    visitors: int
    parts: int
    plain_set: int  # as one SET per day of the same ids
    uuid_text_set: int  # as one SET per day of texts of 36 characters, the length of UUIDs


def measure_memory(counting: VisitCounter, days: Iterable[DayFigures]) -> VisitorMemory | None:
    """Measure the busiest days, up to a million visitors in total, but at least one day.

    Return None without visitors. Cost: reads every id once and sends it three times; about 15
    microseconds each.
    """
    chosen = list(_busiest(days))
    if not chosen:
        return None
    with ExitStack() as stack:
        source = ServerSource(exact=False)
        parts, plain, text = [stack.enter_context(source.empty_server()) for _ in range(3)]
        warm = parts.kit.set("warm", component=COMPONENT, total=1, members=int)
        warm.sadd(1)
        warm.delete()
        left_by_first_use = parts.bytes_added()
        for day in chosen:
            name = counting.visitors.count_key(day.day)
            counted = counting.visitors.visitors(day.day)
            ids = parts.kit.set(name, component=COMPONENT, total=counted.total, members=int)
            parts.client.mset({name: day.visitors, f"{name}:expected": day.planned})
            for page in pages(counted.sscan_iter(), _AT_ONCE):
                ids.sadd(*page)
                plain.client.sadd(name, *page)
                text.client.sadd(name, *[f"{visitor:015x}".ljust(36, "-") for visitor in page])
        for server in (plain, text):
            for day in chosen:
                server.finish_rehashing(("SMISMEMBER", counting.visitors.count_key(day.day)))
        return VisitorMemory(
            plain.software,
            len(chosen),
            sum(day.visitors for day in chosen),
            parts.bytes_added() - left_by_first_use,
            plain.bytes_added(),
            text.bytes_added(),
        )


def _busiest(days: Iterable[DayFigures]) -> Iterator[DayFigures]:
    total = 0
    for day in sorted(days, key=lambda day: day.visitors, reverse=True):
        if total and total + day.visitors > MOST:
            return
        total += day.visitors
        yield day


_PIPELINED: Final = 1000  # keys in one pipeline
_PART = re.compile(r":\d+\Z")


@dataclass(frozen=True, slots=True)
class ShardLoad:
    """One shard's share of a structure."""

    shard: Shard
    address: str
    ids: int
    keys: int
    size: int


def loads(kit: ShardKit, component: str, name: str) -> Iterator[ShardLoad]:
    """Query each shard of a component for its share of a structure of sets.

    Cost: a SCAN of each shard's database, and two commands for each key of the structure.
    """
    router = kit.key_sharded(component)
    described = kit.component(component)
    for shard in described.all_shards():
        number = shard.number or 0
        found = set(map(text, router.client(number).scan_iter(match=f"{name}:*", count=_PIPELINED)))
        # Shards may share a database.
        keys = [key for key in found if router.shard_of(key) == number]
        ids, size = kit.driver.run(_sums(component, keys))
        yield ShardLoad(shard, described.entry_of(shard).address, ids, len(keys), size)


def _sums(component: str, keys: Iterable[str]) -> Operation[tuple[int, int]]:
    ids = size = 0
    for page in pages(keys, _PIPELINED):
        size += sum((yield [_ask(component, key, "MEMORY", "USAGE", key) for key in page]))
        parts = filter(_PART.search, page)
        ids += sum((yield [_ask(component, key, "SCARD", key) for key in parts]))
    return ids, size


def _ask(component: str, key: str, *args: str) -> Command:
    return Command(component, key, args, idempotent=True)
