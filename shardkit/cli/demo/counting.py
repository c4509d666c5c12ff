"""Counts hits and unique visitors per day.

Hits are in the HASH ``demo:hits`` by day, on component hits, counted by a decorated function, which
is called once per batch; visitors in the structure ``demo:unique`` on component unique, once per
day of a batch. A visitor is the first 15 digits of a hash of address, blank and agent. All names
begin with ``demo:``, so that the job can run on servers with other data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import redis

from shardkit.cli.advise.servers import COMPONENT, ServerSource
from shardkit.cli.demo.access_log import LogBatch, Visitor
from shardkit.kit.kit import ShardKit
from shardkit.operations.commands import Command, Shard
from shardkit.operations.operation import Operation, pages
from shardkit.routing.keys import text
from shardkit.structures.unique.days import VisitorPlace

HITS: Final = "demo:hits"
VISITORS: Final = "demo:unique"
HITS_COMPONENT: Final = "hits"
VISITORS_COMPONENT: Final = "unique"
FIRST_DAY: Final = 10_000
_VISITORS_KNOWN = 32_768


@dataclass(frozen=True, slots=True)
class DayFigures:
    """The counts of a day."""

    day: date
    visitors: int
    hits: int
    planned: int
    parts: int  # how many parts were planned for them


@lru_cache(_VISITORS_KNOWN)
def session_of(visitor: Visitor) -> str:
    """Return a visitor's session id, in hexadecimal digits."""
    return blake2b(b"%b %b" % visitor, digest_size=8).hexdigest()


class VisitCounter:
    """Counts batches of log lines, on the components ``hits`` and ``unique`` of a kit.

    ``first_day`` is how many visitors to plan for on a day if there was none before.
    """

    def __init__(self, kit: ShardKit, first_day: int = FIRST_DAY) -> None:
        self.kit = kit
        self.visitors = kit.unique_visitors(
            VISITORS, component=VISITORS_COMPONENT, first_day=first_day
        )

        @kit.redis_connection(HITS_COMPONENT)
        def count_hits(conn: redis.Redis, batch: LogBatch) -> None:
            with conn.pipeline(transaction=False) as pipe:
                for day, visits in batch.visits.items():
                    pipe.hincrby(HITS, day.isoformat(), len(visits))
                pipe.execute()

        self._count_hits = count_hits
        self._hits: Any = kit.client(HITS_COMPONENT)

    def count(self, batch: LogBatch) -> None:
        """Count a batch of lines. Cost: one exchange, and two for each of its days."""
        if batch.visits:
            self._count_hits(batch)
        for day in sorted(batch.visits):  # the count of a day is the plan of the next
            visitors = set(batch.visits[day])
            self.visitors.visit_many(map(session_of, visitors), day)

    def days(self) -> list[DayFigures]:
        """Return the counts of each day, as stored on the servers. Cost: four exchanges."""
        stored = self._hits.hgetall(HITS)
        hits = {date.fromisoformat(text(day)): int(hits) for day, hits in stored.items()}
        days = sorted(hits)
        visitors = self.visitors.counts(days)
        planned = self.kit.together(*(self.visitors.deferred.expected(day) for day in days))
        return [
            DayFigures(day, visitors[day], hits[day], total, self.visitors.parts(total))
            for day, total in zip(days, planned, strict=True)
        ]

    def locate(self, visitor: Visitor, day: date) -> tuple[VisitorPlace, bool]:
        """Return where a visitor's id is stored, and whether it was found there."""
        place = self.visitors.locate(session_of(visitor), day)
        client = self.kit.key_sharded(VISITORS_COMPONENT)[place.key]
        return place, bool(client.sismember(place.key, str(place.id)))

    def forget(self) -> None:
        """Remove all counts, those of earlier runs included."""
        for day in self._hits.hkeys(HITS):
            self.visitors.remove(date.fromisoformat(text(day)))
        self._hits.unlink(HITS)


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
        known = set(map(text, router.client(number).scan_iter(match=f"{name}:*", count=_PIPELINED)))
        # Shards may share a database.
        keys = [key for key in known if router.shard_of(key) == number]
        ids, size = kit.driver.run(_sums(component, keys))
        yield ShardLoad(shard, described.entry_of(shard).address, ids, len(keys), size)


def _sums(component: str, keys: Iterable[str]) -> Operation[tuple[int, int]]:
    ids = size = 0
    for page in pages(keys, _PIPELINED):
        size += sum((yield [_read(component, key, "MEMORY", "USAGE", key) for key in page]))
        parts = filter(_PART.search, page)
        ids += sum((yield [_read(component, key, "SCARD", key) for key in parts]))
    return ids, size


def _read(component: str, key: str, *args: str) -> Command:
    return Command(component, key, args, idempotent=True)
