"""Counters and logs: what a hit costs its caller and the server, and what a counter takes.

100,000 hits of an interval are counted in the process, over 100 and over 1,000 names, and sent; the
server's processor time of that, of a second, is the share of a core that 100,000 hits a second
take. Against it stand hits that are sent one by one, and the HASHes of the book in one pipeline of
seven HINCRBYs for each hit. The median of three rounds counts; other load changes times.

    python benchmarks/metrics.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from statistics import median
from typing import Any

from memory_set import version
from report import conditions, save, show

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalServers, find_server
from shardkit.metrics.counters import PRECISIONS, group_of

ROUNDS = 3
HITS = 100_000
MAP = "components: {one: {entry: {port: 7005}}}"


def measured(client: Any, count: int, work: Callable[[], object]) -> tuple[float, float]:
    """Microseconds of the caller's time and of the server's processor time, of one of these."""
    rounds = []
    for _ in range(ROUNDS):
        before = client.info("cpu")
        began = time.perf_counter()
        work()
        seconds = time.perf_counter() - began
        after = client.info("cpu")
        cpu = sum(after[name] - before[name] for name in ("used_cpu_user", "used_cpu_sys"))
        rounds.append((seconds / count * 1e6, cpu / count * 1e6))
    return median(row[0] for row in rounds), median(row[1] for row in rounds)


def main() -> None:
    rows: list[list[Any]] = []
    random = Random(1)
    with (
        LocalServers(ShardMap.parse(MAP), ports="free") as servers,
        shardkit.connect(servers.shard_map) as kit,
    ):
        client: Any = kit.client("one")
        counters = kit.counters(component="one")
        kit._background._closed = True  # nothing is sent but by flush()
        for names in (100, 1000):
            some = [f"page:{random.randrange(names)}" for _ in range(HITS)]

            def hits(some: list[str] = some) -> None:
                for name in some:
                    counters.hit(name)

            caller, _ = measured(client, HITS, hits)
            counters.flush()

            def batched(some: list[str] = some) -> None:
                hits(some)
                counters.flush()

            both, server = measured(client, HITS, batched)
            rows.append([f"batched, {names} names", caller, both, server])
        caller, server = measured(
            client, 1000, lambda: [counters.add(name) for name in some[:1000]]
        )
        rows.append(["each at once", caller, caller, server])

        def book() -> None:
            now = int(time.time())
            for name in some[:1000]:
                pipe = client.pipeline()
                for precision in PRECISIONS:
                    pipe.zadd("known:", {f"{precision}:{name}": 0})
                    at = now // precision * precision
                    pipe.hincrby(f"count:{precision}:{name}", at, 1)
                pipe.execute()

        caller, server = measured(client, 1000, book)
        rows.append(["as in the book", caller, caller, server])
        logs = kit.logs(component="one")

        def log() -> None:
            for n in range(10_000):
                logs.record("shop", f"user {n} came", common="user came")
            logs.flush()

        caller, server = measured(client, 10_000, log)
        rows.append(["a log message, batched", caller, caller, server])

        month = kit.counters("month", component="one", precisions={60: 43_200})
        group, minute = group_of("x"), 60.0
        updates = [("x", n * minute, min(255, random.randrange(80, 121))) for n in range(43_200)]
        for at in range(0, len(updates), 500):
            command = month._add(group, updates[at : at + 500], "bench", "")
            kit.driver.link.send([command])
        packed = client.memory_usage(month._of(group, "x"), samples=0)
        stored = {str(1_700_000_000 + int(age)): count for _, age, count in updates}
        client.hset("book", mapping=stored)
        in_book = client.memory_usage("book", samples=0)
    columns = ["form", "caller us", "with sending us", "server us"]
    show("One hit, or one message", columns, rows)
    print(f"a month of minutes: {packed:,} bytes; as in the book {in_book:,}")
    result = {
        "conditions": conditions(version(find_server())),
        "rounds": ROUNDS,
        "rows": [dict(zip(columns, row, strict=True)) for row in rows],
        "share_of_a_core_at_100_000_hits_a_second": {row[0]: row[3] / 10 for row in rows[:2]},
        "month_of_minutes": {"packed": packed, "book": in_book, "ratio": in_book / packed},
    }
    save("metrics", result)


if __name__ == "__main__":
    main()
