"""Time what events cost: ``python benchmarks/throughput/events.py``.

Switched on, with a handler that does nothing: the same calls with and without it, in turns, by the
processor time of the calling thread, for each batch that went to a server. Switched off: how often
a call looks whether anybody listens, times what a look takes, as a share of the call.
"""

from __future__ import annotations

import sys
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from report import conditions, save, show

import shardkit
from shardkit import ShardKit, events
from shardkit.network.connections import pool
from throughput import cases

ROUNDS, TIMES = 60, 100


class Counting(list[Any]):
    """A list of those who are told that counts how often somebody looks whether it is empty."""

    looks = 0

    def __bool__(self) -> bool:
        self.looks += 1
        return False


@contextmanager
def counted() -> Iterator[Counting]:
    """Count the looks at the handlers of events, and at those of pools, wherever they are."""
    counting = Counting()
    found = [
        (module, name, real)
        for name, real in (("handlers", events.handlers), ("watchers", pool.watchers))
        for module in list(sys.modules.values())
        if getattr(module, name, None) is real
    ]
    for module, name, _ in found:
        setattr(module, name, counting)
    try:
        yield counting
    finally:
        for module, name, real in found:
            setattr(module, name, real)


def seconds(call: Callable[[], object]) -> float:
    """Processor time of one call."""
    began = time.thread_time()
    for _ in range(TIMES):
        call()
    return (time.thread_time() - began) / TIMES


def batches(call: Callable[[], object]) -> int:
    """How many batches a call sends."""
    told: list[Any] = []
    stop = events.subscribe(told.append)
    call()
    stop()
    return sum(isinstance(event, events.CommandsSent) for event in told)


def measured(call: Callable[[], object], look: float) -> dict[str, float]:
    """What a call takes, and what events add to it."""
    call()
    times: dict[bool, list[float]] = {False: [], True: []}
    for n in range(2 * ROUNDS):
        stop = events.subscribe(lambda event: None) if n % 2 else None
        times[n % 2 == 1].append(seconds(call))
        if stop is not None:
            stop()
    # The quicker ones, as whatever else runs on the machine only ever makes a call slower.
    off, on = (quantiles(taken, n=4)[0] for taken in times.values())
    with counted() as counting:
        call()
    return {
        "off, us": off * 1e6,
        "looks": counting.looks,
        "looking, %": 100 * counting.looks * look / off,
        "batches": batches(call),
        "on, us more a batch": (on - off) * 1e6 / batches(call),
    }


def calls(kit: ShardKit) -> dict[str, Callable[[], object]]:
    router = kit.key_sharded("of4")
    client: Any = kit.client("of4", 0)
    hashed = kit.hash("hash", component="of4")
    hashed.hset(mapping=dict.fromkeys(range(100), "v"))
    keys = [f"k{n}" for n in range(100)]
    router.mset(dict.fromkeys(keys, "v"))

    def pipeline() -> object:
        pipe = router.pipeline()
        for key in keys:
            pipe.get(key)
        return pipe.execute()

    return {
        "client.get": lambda: client.get("k1"),
        "hash.hget": lambda: hashed.hget(7),
        "router.mget of 100": lambda: router.mget(keys),
        "pipeline of 100": pipeline,
    }


def main() -> None:
    handlers: list[Any] = []
    empty = min(timeit.repeat("pass", number=100_000, repeat=20))
    looking = timeit.repeat("if x: pass", globals={"x": handlers}, number=100_000, repeat=20)
    look = (min(looking) - empty) / 100_000
    with cases.servers() as shard_map, shardkit.connect(shard_map) as kit:
        figures = {name: measured(call, look) for name, call in calls(kit).items()}
    columns = ["call", *next(iter(figures.values()))]
    show("What events cost", columns, [[name, *row.values()] for name, row in figures.items()])
    save("events", {"conditions": conditions(), "figures": figures})


if __name__ == "__main__":
    main()
