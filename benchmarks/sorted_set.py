"""A ZSET of a million members: plain, and in parts.

Bytes a member: each layout has a fresh server to itself, whose ``used_memory`` after the loader has
left is taken, less that of the server when it was empty. Time: processor time of the server and of
the caller, which is redis-py for the plain ZSET, so that what else the machine does hardly matters;
microseconds a member in bulk, or a call.

Members are 7 characters, scores whole numbers below a million.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import redis
from memory_set import settled, version
from report import conditions, save, show
from rich.progress import Progress

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalServer, find_server
from shardkit.operations.operation import pages

MEMBERS = 1_000_000
AT_ONCE = 10_000
CALLS = 2_000


class Layout(NamedTuple):
    """How the members are kept.

    Attributes:
        name: for the table.
        options: of the sorted set; None for a plain ZSET.
    """

    name: str
    options: dict[str, Any] | None


LAYOUTS = [
    Layout("one ZSET", None),
    Layout("parts of 128", {}),
    Layout("parts of 128, total given", {"total": MEMBERS}),
    Layout("parts of 128, no bounds", {"bound": 0}),
    Layout("parts of 64", {"part_size": 64}),
]
# Reads that a plain ZSET answers from one tree, and parts by visiting all: fewer calls will do.
EXPENSIVE = 10


def members() -> list[tuple[str, float]]:
    random = Random(42)
    found = [(f"u{n:06d}", float(random.randrange(MEMBERS))) for n in range(MEMBERS)]
    random.shuffle(found)
    return found


def spent(client: redis.Redis, work: Callable[[], Any], count: int) -> tuple[float, float]:
    """Return the microseconds of the server's and the caller's processor for each of a count."""

    def server() -> float:
        info = client.info("cpu")
        return float(info["used_cpu_user"] + info["used_cpu_sys"])

    before = server(), time.process_time()
    work()
    after = server(), time.process_time()
    return (
        (after[0] - before[0]) / count * 1e6,
        (after[1] - before[1]) / count * 1e6,
    )


def plain(client: redis.Redis, found: list[tuple[str, float]]) -> dict[str, tuple[Any, int]]:
    """What is done to a plain ZSET, and how often."""
    some = found[:CALLS]
    last = found[0][1]
    return {
        "ZADD": (lambda: [client.zadd("z", {m: s + 1}) for m, s in some], CALLS),
        "ZINCRBY": (lambda: [client.zincrby("z", 1, m) for m, _ in some], CALLS),
        "ZSCORE": (lambda: [client.zscore("z", m) for m, _ in some], CALLS),
        "top 10": (
            lambda: [client.zrange("z", 0, 9, desc=True, withscores=True) for _ in some],
            CALLS,
        ),
        "ZPOPMAX": (lambda: [client.zpopmax("z") for _ in some], CALLS),
        "page of 100": (
            lambda: [
                client.zrangebyscore("z", last, "+inf", 0, 100, withscores=True)
                for _ in range(EXPENSIVE)
            ],
            EXPENSIVE,
        ),
        "ZCOUNT": (lambda: [client.zcount("z", 5, last) for _ in range(EXPENSIVE)], EXPENSIVE),
        "ZRANK": (lambda: [client.zrank("z", m) for m, _ in some[:EXPENSIVE]], EXPENSIVE),
    }


def in_parts(each: Any, found: list[tuple[str, float]]) -> dict[str, tuple[Any, int]]:
    """The same in parts."""
    some = found[:CALLS]
    last = found[0]
    return {
        "ZADD": (lambda: [each.zadd({m: s + 1}) for m, s in some], CALLS),
        "ZINCRBY": (lambda: [each.zincrby(1, m) for m, _ in some], CALLS),
        "ZSCORE": (lambda: [each.zscore(m) for m, _ in some], CALLS),
        "top 10": (lambda: [each.top(10) for _ in some[:200]], 200),
        "ZPOPMAX": (lambda: [each.zpopmax() for _ in some[:200]], 200),
        "page of 100": (lambda: [each.page(last, 100) for _ in range(EXPENSIVE)], EXPENSIVE),
        "ZCOUNT": (lambda: [each.zcount(5, last[1]) for _ in range(EXPENSIVE)], EXPENSIVE),
        "ZRANK": (lambda: [each.zrank(m) for m, _ in some[:EXPENSIVE]], EXPENSIVE),
    }


def measure(
    binary: Path, layout: Layout, found: list[tuple[str, float]], progress: Progress
) -> tuple[float, dict[str, tuple[float, float]]]:
    """Return the bytes a member, and the times of what is done."""
    task = progress.add_task(layout.name, total=MEMBERS)
    with LocalServer(binary=binary) as server, server.client() as client:
        empty = settled(client)
        text = json.dumps({"components": {"own": {"entry": {"port": server.port}}}})
        with shardkit.connect(ShardMap.parse(text)) as kit:
            each = kit.sorted_set("z", component="own", **(layout.options or {}))
            cases = plain(client, found) if layout.options is None else in_parts(each, found)

            def load() -> None:
                for page in pages(found, AT_ONCE):
                    if layout.options is None:
                        client.zadd("z", dict(page))
                    else:
                        each.zadd_many(page)
                    progress.advance(task, len(page))

            times = {"bulk load, a member": spent(client, load, MEMBERS)}
            kit.clients.close()
            used = settled(client)
        with shardkit.connect(ShardMap.parse(text)) as kit:
            if layout.options is not None:
                each = kit.sorted_set("z", component="own", **layout.options)
                cases = in_parts(each, found)
                each.zcard()
            for name, (work, count) in cases.items():
                times[name] = spent(client, work, count)
        progress.remove_task(task)
    return (used - empty) / MEMBERS, times


def main() -> None:
    paths = [find_server(), shutil.which("redis-server")]
    binaries = {version(Path(path)): Path(path) for path in dict.fromkeys(paths) if path}
    found = members()
    bytes_: dict[str, dict[str, float]] = {}
    times: dict[str, dict[str, dict[str, tuple[float, float]]]] = {}
    with Progress() as progress:
        overall = progress.add_task("all", total=len(binaries) * len(LAYOUTS))
        for server, binary in binaries.items():
            bytes_[server], times[server] = {}, {}
            for layout in LAYOUTS:
                taken, spent_ = measure(binary, layout, found, progress)
                bytes_[server][layout.name] = round(taken, 2)
                times[server][layout.name] = {
                    name: (round(ours, 2), round(caller, 2))
                    for name, (ours, caller) in spent_.items()
                }
                progress.advance(overall)
    show(
        f"Bytes a member, {MEMBERS:,} members",
        ["layout", *bytes_],
        [(layout.name, *(f[layout.name] for f in bytes_.values())) for layout in LAYOUTS],
    )
    for server, by_layout in times.items():
        show(
            f"Microseconds of the server + the caller, {server}",
            ["what", *by_layout],
            [
                (what, *(f"{t[what][0]:,.1f} + {t[what][1]:,.1f}" for t in by_layout.values()))
                for what in by_layout["one ZSET"]
            ],
        )
    save(
        "sorted_set",
        {
            "members": MEMBERS,
            "bytes": {"unit": "a member: used_memory less the empty server's", "figures": bytes_},
            "times": {
                "unit": "microseconds of processor time: of the server, of the caller",
                "figures": times,
            },
            "conditions": conditions(", ".join(binaries)),
        },
    )


if __name__ == "__main__":
    main()
