"""Moves of streams: how long writers wait, and what was announced."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from report import conditions, show

import shardkit
from shardkit import ShardMap
from shardkit.admin import push
from shardkit.admin.growth import plan_move, start_move
from shardkit.local import LocalServer

STREAMS = 20
COMPONENT = "events"

Figures = dict[str, Any]


@contextmanager
def consumers(url: str, names: Sequence[str], wanted: bool) -> Iterator[None]:
    """Have a consumer add to all streams, read from them, and acknowledge."""
    end = threading.Event()

    def consume() -> None:
        with shardkit.connect(url) as kit:
            while not end.wait(0.002):
                for name in names:
                    client = kit.key_sharded(COMPONENT)[name]
                    client.xadd(name, {"n": 1})
                    for _, entries in client.xreadgroup("g", "c", {name: ">"}, count=2):
                        client.xack(name, "g", *(entry for entry, _ in entries))

    thread = threading.Thread(target=consume)
    if wanted:
        thread.start()
    try:
        yield
    finally:
        end.set()
        if wanted:
            thread.join()


def measure(entries: int, used: bool) -> Figures:
    """Move streams of some entries, which are in use or not."""
    with (
        LocalServer() as config,
        LocalServer() as a,
        LocalServer() as b,
        config.client() as told,
        a.client(db=1) as source,
    ):
        entry = {"host": "127.0.0.1", "port": a.port, "db": 1}
        push(told, ShardMap.parse(json.dumps({"components": {COMPONENT: {"shards": [entry]}}})))
        names = [f"s{n}" for n in range(STREAMS)]
        for name in names:
            pipe = source.pipeline(transaction=False)
            for n in range(entries):
                pipe.xadd(name, {"event": "something", "n": n, "text": "x" * 30})
            pipe.xgroup_create(name, "g", "0")
            pipe.execute()
        size = sum(source.memory_usage(name) for name in names) / 1e6
        source.connection_pool.disconnect()
        plan, began = plan_move(told, [f"{COMPONENT}:0"], b.address), time.monotonic()
        with consumers(f"redis://{config.address}", names, used):
            move = start_move(told, [f"{COMPONENT}:0"], b.address)
        assert move.certificate is not None
        assert move.certificate["same"]
        return {
            "MB": round(size, 1),
            "held, ms": round(1000 * (move.held or 0)),
            "seconds": round(time.monotonic() - began, 1),
            "announced, seconds": round(plan.expected.seconds, 1),
            "at most": round(plan.expected.most, 1),
        }


def run() -> Figures:
    """Measure small and large streams, in use and not."""
    cases = {
        f"{entries:,} entries each, {'in use' if used else 'not in use'}": measure(entries, used)
        for entries in (5_000, 20_000)
        for used in (False, True)
    }
    rows = [(name, *row.values()) for name, row in cases.items()]
    show(f"a move of {STREAMS} streams", ["", *next(iter(cases.values()))], rows)
    return cases | {"conditions": conditions() | {"load average": round(os.getloadavg()[1])}}
