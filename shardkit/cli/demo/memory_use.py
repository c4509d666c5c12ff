"""The memory of visitors: in parts, as one SET per day, and as one SET per day of UUIDs as text.

Each form is loaded into a new server, all with the same binary, and measured as by
`shardkit.cli.bench.servers`. All keys of a form count: parts, parameters, plans and counts, or one
key per day.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from shardkit.cli.bench.servers import COMPONENT, ServerSource
from shardkit.cli.demo.counting import DayFigures, VisitCounter
from shardkit.operations.operation import pages

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
