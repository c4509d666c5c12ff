"""The server's time for one member added alone, median microseconds a script or command.

Medians of the server's own ``latencystats``: other work on the machine moves the mean, not them.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from report import conditions, save, show

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalServer

MEMBERS, CALLS, AT_ONCE = 50_000, 10_000, 500
RANDOM = Random(1)

CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "set of numbers": (
        lambda kit: kit.set("ids", component="one", members=int),
        lambda ids: ids.deferred.sadd(RANDOM.getrandbits(60)),
    ),
    "set of text": (
        lambda kit: kit.set("texts", component="one"),
        lambda texts: texts.deferred.sadd(f"user:{RANDOM.getrandbits(40)}"),
    ),
    "hash": (
        lambda kit: kit.hash("hash", component="one"),
        lambda table: table.deferred.hset(f"user:{RANDOM.getrandbits(40)}", "v"),
    ),
    "sorted set": (
        lambda kit: kit.sorted_set("scores", component="one"),
        lambda scores: scores.deferred.zadd({f"user:{RANDOM.getrandbits(40)}": RANDOM.random()}),
    ),
}


def main() -> None:
    rows = []
    with LocalServer() as server, server.client() as client:
        shards = f"{{shards: [{{port: {server.port}}}]}}"
        with shardkit.connect(ShardMap.parse(f"components: {{one: {shards}}}")) as kit:
            for name, (make, add) in CASES.items():
                structure = make(kit)
                for calls in (MEMBERS, CALLS):
                    client.config_resetstat()
                    for _ in range(calls // AT_ONCE):
                        kit.together(*(add(structure) for _ in range(AT_ONCE)))
                found = client.info("latencystats")
                rows.append((name, found["latency_percentiles_usec_evalsha"]["p50"]))
    show("One member added alone: the server's time", ("to a growing", "us"), rows)
    save("growing", conditions() | {"median_us": dict(rows)})


if __name__ == "__main__":
    main()
