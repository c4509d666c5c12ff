"""Time locks, limits, views and markets.

::

    python benchmarks/coordination [SECONDS [TRADING [ROUNDS]]]

SECONDS is the length of each round of a case, 1 by default, TRADING that of each market, 60 by
default, ROUNDS how many rounds there are, 5 by default.

Everything is measured in turn on this machine against embedded servers, so only ratios within a run
mean something. Writes benchmarks/results/coordination.json and plots.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from report import conditions, save, show

import shardkit
from coordination import touches
from coordination.markets import MARKETS
from coordination.workers import LOCK_ON_SOCKET, SHARE_ON_SOCKET, work
from shardkit.local import LocalServer

PROCESSES = (1, 2, 5, 10)
PAIRS = "pairs a second"
LOCKS = (LOCK_ON_SOCKET, "kit.lock", "kit.lock, fair=False", "redis-py")
SEMAPHORES = (SHARE_ON_SOCKET, "kit.semaphore", "kit.semaphore, fair=False")


def run_all(arguments: list[list[Any]]) -> list[dict[str, Any]]:
    """Run workers at the same time, and return what they found."""
    with get_context("fork").Pool(len(arguments)) as pool:
        return pool.map(work, arguments, chunksize=1)


def pairs(
    seconds: float, rounds: int, ways: Sequence[str], counts: Sequence[int]
) -> dict[str, Any]:
    """Pairs a second of all processes together, and how even their waits were.

    The ways take turns; the median of the rounds counts, and of the rounds' ratios.
    """
    found: dict[str, Any] = {way: {} for way in ways}
    for count in counts:
        ran: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way in ways:
                with LocalServer() as server:
                    ran[way].append(_pairs(way, server.port, count, seconds))
        for way in ways:
            rows = ran[way]
            row = {name: statistics.median(each[name] for each in rows) for name in rows[0]}
            ratios = [
                each[PAIRS] / raw[PAIRS] for each, raw in zip(rows, ran[ways[0]], strict=True)
            ]
            row["ratio to the first, each round"] = [round(ratio, 2) for ratio in ratios]
            row["ratio to the first"] = round(statistics.median(ratios), 2)
            found[way][str(count)] = row
    show(
        PAIRS,
        ["processes", *ways],
        [(n, *(round(found[way][str(n)][PAIRS]) for way in ways)) for n in counts],
    )
    return found


def _pairs(way: str, port: int, count: int, seconds: float) -> dict[str, float]:
    ran = run_all([["lock_pairs", way, port, count, seconds]] * count)
    waits = sorted(wait for each in ran for wait in each["waits"])
    shares = [each["pairs"] for each in ran]
    return {
        PAIRS: round(len(waits) / seconds),
        "median wait, ms": round(1000 * statistics.median(waits), 3),
        "longest wait, ms": round(1000 * waits[-1], 1),
        "longest wait over the median": round(waits[-1] / statistics.median(waits), 1),
        "fewest over most pairs of a process": round(min(shares) / max(shares), 2),
    }


def views(seconds: float, rounds: int) -> dict[str, Any]:
    """Calls a second of what a page's view writes."""
    found: dict[str, Any] = {}
    with LocalServer() as server:
        for _ in range(rounds):
            for way in touches.WAYS:
                rate = touches.benchmark(way, server.port, seconds / rounds)
                found.setdefault(way, []).append(rate)
    medians = {way: round(statistics.median(rates)) for way, rates in found.items()}
    show("calls a second", ["", ""], list(medians.items()))
    return medians


def rate_limits(seconds: float) -> dict[str, Any]:
    """Checks a second, alone and in batches of 1,000 over four shards."""
    found: dict[str, Any] = {}
    with LocalServer() as server:
        shards = ", ".join(f"{{port: {server.port}, db: {n}}}" for n in range(4))
        where = shardkit.ShardMap.parse(f"components: {{a: {{shards: [{shards}]}}}}")
        with shardkit.connect(where) as kit:
            for algorithm in ("gcra", "sliding_window"):
                limit = kit.rate_limit(
                    algorithm, component="a", limit=50, per=10, algorithm=algorithm
                )
                keys = [f"user{n}" for n in range(1000)]
                for name, batch in (("alone", 1), ("in batches of 1,000", 1000)):
                    done, end = 0, time.time() + seconds
                    while time.time() < end:
                        if batch == 1:
                            limit.hit(keys[done % 1000])
                        else:
                            limit.hit_many(keys)
                        done += batch
                    found[f"{algorithm}, {name}"] = round(done / seconds)
    show("checks a second", ["", ""], list(found.items()))
    return found


def markets(seconds: float) -> dict[str, Any]:
    """Five list and five buy; what the book's table has, and this machine's."""
    found: dict[str, Any] = {}
    for way in MARKETS:
        with LocalServer() as server:
            jobs = [
                ["market", way, server.port, 10, seconds, role, n]
                for role in ("lister", "buyer")
                for n in range(5)
            ]
            ran = run_all(jobs)
        listed, bought = ran[:5], ran[5:]
        calls = sum(each["done"] + each["refused"] for each in bought)
        found[way] = {
            "listed": sum(each["done"] for each in listed),
            "bought": sum(each["done"] for each in bought),
            "retries": sum(each["retries"] for each in ran),
            "average wait of a purchase, ms": round(
                1000 * sum(each["seconds"] for each in bought) / max(1, calls), 2
            ),
        }
    names = list(next(iter(found.values())))
    show(
        f"market, {seconds:g} s", ["", *names], [(way, *row.values()) for way, row in found.items()]
    )
    return found


def main(seconds: float = 1.0, trading: float = 60.0, rounds: float = 5.0) -> None:
    found = {
        "locks": pairs(seconds, int(rounds), LOCKS, PROCESSES),
        "semaphores, limit 3": pairs(seconds, int(rounds), SEMAPHORES, (5, 10)),
        "a view in three executions, calls a second": views(seconds, int(rounds)),
        "rate limits, checks a second": rate_limits(seconds),
        "market": markets(trading),
    }
    save(
        "coordination",
        {
            "unit": "see each; only ratios within a run mean something",
            "rounds": f"{rounds:g} of {seconds:g} s, market {trading:g} s",
            "load average at the end": round(os.getloadavg()[1]),
            "figures": found,
            "the book's market, 60 s on its machine": {
                "WATCH": "206,000 listed, <600 bought, 161,000 retries, 498 ms",
                "one lock": "21,000 listed, 20,500 bought, 14 ms",
                "a lock for each item": "116,000 listed, 111,000 bought, <3 ms",
                "scripts": "505,000 listed, 480,000 bought, <1 ms",
            },
            "conditions": conditions(),
        },
    )


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
