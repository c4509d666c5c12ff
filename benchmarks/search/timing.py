"""Timing: queries in rounds that alternate between contestants, so that all meet the same noise."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median, quantiles
from typing import Any

from search.corpus import Passage
from search.engines import Engine
from search.queries import Query


def latencies(
    asks: Mapping[str, Callable[[Query], Any]], queries: Sequence[Query], rounds: int
) -> dict[str, list[float]]:
    """Return the seconds of each query, by contestant: the fastest of its rounds.

    Contestants take turns with every query, in an order that changes from round to round, after a
    round that does not count. The fastest is what others on the machine disturbed least.
    """
    names = list(asks)
    found: dict[str, list[list[float]]] = {name: [[] for _ in queries] for name in names}
    for turn in range(rounds + 1):
        for place, query in enumerate(queries):
            for name in names:
                began = time.perf_counter()
                asks[name](query)
                if turn:
                    found[name][place].append(time.perf_counter() - began)
        names.append(names.pop(0))
    return {name: [min(times) for times in each] for name, each in found.items()}


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Return how many queries a second that is, and the median and 95th percentile in ms."""
    return {
        "queries a second": round(1 / fmean(seconds), 1),
        "median, ms": round(median(seconds) * 1000, 3),
        "95th percentile, ms": round(quantiles(seconds, n=20)[-1] * 1000, 3),
    }


def indexing(engine: Engine, corpus: Sequence[Passage]) -> dict[str, float]:
    """Index the corpus; return how fast that was, and what processor time it took."""
    count = len(corpus)
    used = Used(engine)
    began = time.perf_counter()
    engine.index(corpus)
    rate = count / (time.perf_counter() - began)
    found = used.each(count)
    print(f"{engine.name}: {rate:,.0f} documents a second")
    return {
        "documents a second": round(rate),
        "bytes a document": round(engine.memory() / count),
        **found,
    }


def processor(engine: Engine, queries: Sequence[Query], rounds: int) -> dict[str, float]:
    """Return the processor time of a query on average."""
    used = Used(engine)
    for _ in range(rounds):
        for query in queries:
            engine.ask(query)
    return used.each(rounds * len(queries))


class Used:
    """Counts processor time from now on: this process's, and that of an engine's servers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._servers = engine.processor()
        self._caller = time.process_time()

    def each(self, count: int) -> dict[str, float]:
        """Return the microseconds since then, for each of so many; of the servers, and the busiest.

        What the busiest one takes is what limits servers that have a core each.
        """
        caller = time.process_time() - self._caller
        pairs = zip(self._engine.processor(), self._servers, strict=True)
        servers = [now - before for now, before in pairs]
        return {
            "caller, us": round(caller / count * 1e6, 1),
            "servers, us": round(sum(servers) / count * 1e6, 1),
            "busiest server, us": round(max(servers, default=0.0) / count * 1e6, 1),
        }
