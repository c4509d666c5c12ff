"""Time what counting heat costs, and whether its top 20 are right: ``python benchmarks/heat.py``.

The cost: what a call takes more while it is counted, with and without in turns, by the processor
time of its thread, times the share of the time in which it is; and what the counting thread itself
takes. The order: how many of the 20 true keys of a Zipf load of a minute are among the 20 found.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from report import conditions, save, show

import shardkit
from shardkit import ShardKit, ShardMap, events
from shardkit.admin import push, read_heat
from shardkit.kit.heat import HeatCounter
from shardkit.local import LocalServers

ROUNDS, CALLS, IDLE = 150, 40, 20
MAP = """
config_server: {port: 7000}
components: {shop: {shards: {count: 4, over: [{port: 7001}]}}}
"""


def seconds_a_call(call: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    began = time.thread_time()
    for _ in range(CALLS):
        call()
    return (time.thread_time() - began) / CALLS


def counted(kit: ShardKit, counter: HeatCounter) -> dict[str, float]:
    """Return by how many percent calls take more while they are counted."""
    found = {}
    for name, call in calls_of(kit).items():
        call()
        times: dict[bool, list[float]] = {False: [], True: []}
        for n in range(2 * ROUNDS):
            stop = events.subscribe(counter._count) if n % 2 else None
            times[n % 2 == 1].append(seconds_a_call(call))
            if stop is not None:
                stop()
        # The quicker ones, as whatever else runs on the machine only ever makes a call slower.
        off, on = (statistics.quantiles(taken, n=4)[0] for taken in times.values())
        found[name] = 100 * (on / off - 1)
    return found


def thread_alone(url: str, share: float) -> float:
    """Return the percent of a core that a process takes that only waits, with ``heat=``."""
    with shardkit.connect(url, heat=share):
        began, used = time.monotonic(), time.process_time()
        time.sleep(IDLE)
        return 100 * (time.process_time() - used) / (time.monotonic() - began)


def calls_of(kit: ShardKit) -> dict[str, Callable[[], object]]:
    router, carts = kit.key_sharded("shop"), kit.hash("carts", component="shop")
    keys = [f"k{n}" for n in range(100)]
    carts.hset("7", "1")
    return {
        "router.get": lambda: router.get("k1"),
        "hash.hget": lambda: carts.hget("7"),
        "router.mget of 100": lambda: router.mget(keys),
    }


def right(url: str, config: Any, share: float, seconds: float) -> int:
    """Return how many of the true top 20 are among the 20 hottest."""
    for key in config.scan_iter("config:heat:*"):
        config.delete(key)
    chosen, true = random.Random(7), Counter[str]()
    weights = [1 / rank**1.1 for rank in range(1, 10_001)]
    names = [f"item:{n}" for n in range(10_000)]
    until = time.monotonic() + seconds
    with shardkit.connect(url, heat=share) as kit:
        router = kit.key_sharded("shop")
        while time.monotonic() < until:
            for name in chosen.choices(names, weights, k=1000):
                true[name] += 1
                router.get(name)
    found = {each.name for each in read_heat(config).kinds["key"][:20]}
    return len(found & {name for name, _ in true.most_common(20)})


def main() -> None:
    with LocalServers(ShardMap.parse(MAP), ports="free") as servers:
        assert servers.config_server is not None
        assert servers.shard_map.config_server is not None
        url = servers.shard_map.config_server.url()
        with servers.config_server.client() as client:
            push(client, servers.shard_map)
            with shardkit.connect(url) as kit:
                counter = HeatCounter(0.0001)  # its thread waits for longer than this takes
                more = counted(kit, counter)
                counter.leave(kit.topology.source)  # type: ignore[arg-type]
            rows, figures = [], {}
            for share in (0.005, 0.02, 1):
                costs = {name: share * cost for name, cost in more.items()}
                alone, top = thread_alone(url, share), right(url, client, share, 60)
                figures[f"{share:.1%}"] = {"more, %": costs, "thread, %": alone, "right": top}
                shown = (f"{cost:.2f} %" for cost in (*costs.values(), alone))
                rows.append([f"{share:.1%}", *shown, top])
    columns = ["of the time", *more, "thread, of a core", "right of the top 20"]
    show("What counting heat costs", columns, rows)
    save("heat", {"conditions": conditions(), "figures": figures})


if __name__ == "__main__":
    main()
