"""What a dry run announces, and how long the move then takes, whatever else the machine does."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from report import conditions, show

from shardkit import ShardMap
from shardkit.admin import push
from shardkit.admin.growth import plan_move, start_move
from shardkit.local import LocalServer

Figures = dict[str, Any]


def strings(pipe: Any, count: int, size: int) -> None:
    for n in range(count):
        pipe.set(f"string{n}", "x" * size)


def hashes(pipe: Any, count: int, fields: int) -> None:
    for n in range(count):
        for start in range(0, fields, 1000):
            names = range(start, min(fields, start + 1000))
            pipe.hset(f"hash{n}", mapping={f"f{each}": each for each in names})


CASES: dict[str, Callable[[Any], None]] = {
    "60,000 strings of 100 bytes": lambda pipe: strings(pipe, 60_000, 100),
    "4,000 strings of 9 KB": lambda pipe: strings(pipe, 4_000, 9_000),
    "20,000 hashes of 20 fields": lambda pipe: hashes(pipe, 20_000, 20),
    "10 hashes of 50,000 fields": lambda pipe: hashes(pipe, 10, 50_000),
}


def measure(fill: Callable[[Any], None]) -> Figures:
    """Plan a move and carry it out."""
    with LocalServer() as config, LocalServer() as a, LocalServer() as b, config.client() as told:
        entry = {"host": "127.0.0.1", "port": a.port, "db": 1}
        push(told, ShardMap.parse(json.dumps({"components": {"users": {"shards": [entry]}}})))
        with a.client(db=1) as source, source.pipeline(transaction=False) as pipe:
            fill(pipe)
            pipe.execute()
        expected = plan_move(told, ["users:0"], b.address).expected
        began = time.monotonic()
        start_move(told, ["users:0"], b.address, hold=5)
        took = time.monotonic() - began
        return {
            "announced, seconds": round(expected.seconds, 1),
            "from": round(expected.least, 1),
            "to": round(expected.most, 1),
            "took": round(took, 1),
            "within a factor of 2": expected.least / 2 <= took <= 2 * expected.most,
            "load average": round(os.getloadavg()[0], 1),
        }


def run() -> Figures:
    """Measure keys of several kinds."""
    cases = {name: measure(fill) for name, fill in CASES.items()}
    rows = [(name, *row.values()) for name, row in cases.items()]
    show("a move of a shard", ["", *next(iter(cases.values()))], rows)
    return cases | {"conditions": conditions() | {"load average": round(os.getloadavg()[1])}}
