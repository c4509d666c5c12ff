"""Counts hits and unique visitors per day.

Hits are in the HASH ``demo:hits`` by day, on component hits, counted by a decorated function, which
is called once per batch; visitors in the structure ``demo:unique`` on component unique, once per
day of a batch. A visitor is the first 15 digits of a hash of address, blank and agent. All names
begin with ``demo:``, so that the job can run on servers with other data.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import redis

from shardkit.cli.demo.access_log import LogBatch, Visitor
from shardkit.kit.kit import ShardKit
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

        @kit.redis_connection(HITS_COMPONENT)
        def read_hits(conn: redis.Redis) -> dict[date, int]:
            stored: Any = conn.hgetall(HITS)
            return {date.fromisoformat(text(day)): int(hits) for day, hits in stored.items()}

        @kit.redis_connection(HITS_COMPONENT)
        def forget_hits(conn: redis.Redis) -> None:
            conn.unlink(HITS)

        @kit.sharded_connection(VISITORS_COMPONENT)
        def is_there(conn: redis.Redis, key: str, visitor: int | str) -> bool:
            return bool(conn.sismember(key, str(visitor)))

        self._count_hits = count_hits
        self._read_hits = read_hits
        self._is_there = is_there
        self._forget_hits = forget_hits

    def count(self, batch: LogBatch) -> None:
        """Count a batch of lines. Cost: one exchange, and two for each of its days.

        Raises:
            ShardErrors: some shards failed; visitors on the others are counted.
        """
        if batch.visits:
            self._count_hits(batch)
        for day in sorted(batch.visits):  # the count of a day is the plan of the next
            visitors = set(batch.visits[day])
            self.visitors.visit_many(map(session_of, visitors), day)

    def days(self) -> list[DayFigures]:
        """Return the counts of each day, as stored on the servers. Cost: four exchanges."""
        hits = self._read_hits()
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
        return place, self._is_there(place.key, place.id)

    def forget(self) -> None:
        """Remove all counts, those of earlier runs included."""
        for day in self._read_hits():
            self.visitors.remove(day)
        self._forget_hits()
