"""Time locks, rate limits and markets: ``python benchmarks/coordination [SECONDS]``.

Everything is measured in turn on this machine against embedded servers, so only ratios within a run
mean something. Writes benchmarks/results/coordination.json and plots.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from report import conditions, lines, save, show

import shardkit
from coordination.markets import MARKETS
from shardkit.local import LocalServer

HERE = Path(__file__).parents[1]
PROCESSES = (1, 2, 5, 10)
WAYS = ("raw", "shardkit", "redis-py")


def run_all(arguments: list[list[Any]]) -> list[dict[str, Any]]:
    """Run workers at the same time, and return what they found."""
    paths = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "coordination.workers", json.dumps(each)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        for each in arguments
    ]
    return [json.loads(process.communicate()[0]) for process in started]


def locks(seconds: float) -> dict[str, Any]:
    """Pairs a second of all processes together, and how even their waits were."""
    found: dict[str, Any] = {}
    for count in PROCESSES:
        for way in WAYS:
            with LocalServer() as server:
                ran = run_all([["lock_pairs", way, server.port, count, seconds]] * count)
            waits = sorted(wait for each in ran for wait in each["waits"])
            shares = [each["pairs"] for each in ran]
            found.setdefault(way, {})[str(count)] = {
                "pairs a second": round(len(waits) / seconds),
                "median wait, ms": round(1000 * statistics.median(waits), 3),
                "longest wait, ms": round(1000 * waits[-1], 1),
                "longest wait over the median": round(waits[-1] / statistics.median(waits), 1),
                "fewest over most pairs of a process": round(min(shares) / max(shares), 2),
            }
    show(
        "pairs a second",
        ["processes", *WAYS],
        [(n, *(found[way][str(n)]["pairs a second"] for way in WAYS)) for n in PROCESSES],
    )
    return found


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


def main(seconds: float) -> None:
    found = {
        "locks": locks(seconds),
        "rate limits, checks a second": rate_limits(seconds),
        f"market, {seconds:g} s": markets(seconds),
    }
    save(
        "coordination",
        {
            "unit": "see each; the machine was busy, so only ratios within a run mean something",
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
    series = {
        way: {float(n): row["pairs a second"] for n, row in rows.items()}
        for way, rows in found["locks"].items()
    }
    lines("coordination_locks", "Processes that want one lock", series, "pairs a second")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 3.0)
