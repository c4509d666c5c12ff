"""Time what counting heat costs, and whether its top 20 are right: ``python benchmarks/heat.py``.

The cost: the processor time of a whole process, the counting thread included, for the same calls
with ``heat=`` and without, in turns. The order: 20 true keys of a Zipf load, counted in 2% and in
5% of the time.
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
from shardkit import ShardKit, ShardMap
from shardkit.admin import push, read_heat
from shardkit.local import LocalServers

ROUNDS, SECONDS = 40, 0.5
MAP = """
config_server: {port: 7000}
components: {shop: {shards: {count: 4, over: [{port: 7001}]}}}
"""


def seconds_a_call(call: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    until, began, calls = time.monotonic() + SECONDS, time.process_time(), 0
    while time.monotonic() < until:
        for _ in range(20):
            call()
        calls += 20
    return (time.process_time() - began) / calls


def costs(url: str, share: float, calls: Callable[[ShardKit], dict[str, Any]]) -> dict[str, float]:
    """Return by how many percent calls take more, by the quicker half of the rounds."""
    times: dict[str, dict[bool, list[float]]] = {}
    for n in range(2 * ROUNDS):
        on = bool(n % 2)
        with shardkit.connect(url, **({"heat": share} if on else {})) as kit:
            for name, call in calls(kit).items():
                call()
                times.setdefault(name, {False: [], True: []})[on].append(seconds_a_call(call))
    best = {
        name: {on: statistics.quantiles(each, n=4)[0] for on, each in both.items()}
        for name, both in times.items()
    }
    return {name: 100 * (each[True] / each[False] - 1) for name, each in best.items()}


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
            figures = {f"{share:.0%}": costs(url, share, calls_of) for share in (0.02, 0.05)}
            tops = {f"{share:.0%}": right(url, client, share, 60) for share in (0.02, 0.05, 1)}
    rows = [
        [share, *(f"{cost:.1f} %" for cost in costs.values()), tops[share]]
        for share, costs in figures.items()
    ]
    show("What counting heat costs", ["of the time", *figures["2%"], "right of the top 20"], rows)
    save("heat", {"conditions": conditions(), "more processor time, %": figures, "top 20": tops})


if __name__ == "__main__":
    main()
