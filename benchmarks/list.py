"""A LIST of a million values: plain, and in parts of several sizes.

Bytes a value: each layout has a fresh server to itself, whose ``used_memory`` after the loader has
left is taken, less that of the server when it was empty. Time: of the server, as its
``commandstats`` have it, and of the caller, which is redis-py for the plain LIST; microseconds a
call, the best of several rounds.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import redis
from memory_set import settled, version
from report import conditions, save, show
from rich.progress import Progress

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalServer, find_server
from shardkit.operations.operation import pages

VALUES = 1_000_000
AT_ONCE = 1_000
CALLS = 100
ROUNDS = 40
SIZES = (128, 512, 1000, 2000)
KINDS: dict[str, Callable[[int], str]] = {
    "7 characters": lambda n: f"v{n:06d}",
    "a job of 70": lambda n: f'{{"id": {n:07d}, "task": "send", "to": "user{n:07d}@example.net"}}',
}


def values(kind: str) -> Iterator[str]:
    return map(KINDS[kind], range(VALUES))


def timed(
    client: redis.Redis, call: Callable[[], Any], calls: int, number: int = ROUNDS
) -> tuple[float, float]:
    """Return the microseconds that the server and the caller spent a call; the best round."""
    rounds = []
    for _ in range(number):
        client.config_resetstat()
        before = time.perf_counter()
        for _ in range(calls):
            call()
        spent = (time.perf_counter() - before) * 1e6
        stats = client.info("commandstats")
        # What runs inside a transaction or a script is counted there, and once more by itself.
        around = {f"cmdstat_{name}" for name in ("multi", "exec", "eval", "evalsha")} & set(stats)
        counted = around or set(stats) - {"cmdstat_config|resetstat", "cmdstat_info"}
        rounds.append((sum(stats[name]["usec"] for name in counted) / calls, spent / calls))
    return min(r[0] for r in rounds), min(r[1] for r in rounds)


def measure(
    binary: Path, kind: str, size: int | None, progress: Progress
) -> tuple[float, dict[str, tuple[float, float]]]:
    """Return what a value takes, and the microseconds of what is done to the list."""
    name = f"{kind}, {f'parts of {size}' if size else 'plain'}"
    task = progress.add_task(name, total=VALUES)
    times: dict[str, tuple[float, float]] = {}
    middle = VALUES // 2
    with LocalServer(binary=binary) as server, server.client() as client:
        empty = settled(client)
        text = json.dumps({"components": {"own": {"entry": {"port": server.port}}}})
        with shardkit.connect(ShardMap.parse(text)) as kit:
            jobs = kit.list("jobs", component="own", part_size=size or 1000)
            for page in pages(values(kind), AT_ONCE):
                if size:
                    jobs.rpush(*page)
                else:
                    client.rpush("jobs", *page)
                progress.advance(task, len(page))
        bytes_each = (settled(client) - empty) / VALUES
        with shardkit.connect(ShardMap.parse(text)) as kit:
            jobs = kit.list("jobs", component="own", part_size=size or 1000)
            target: Any = jobs if size else client
            key = () if size else ("jobs",)
            for command, arguments, label in [
                ("lindex", (middle,), "LINDEX"),
                ("lset", (middle, KINDS[kind](middle)), "LSET"),
                ("lrange", (middle, middle + 9), "LRANGE of 10"),
                ("rpush", (KINDS[kind](0),), "RPUSH"),
                ("rpop", (), "RPOP"),
                ("rpush", [KINDS[kind](n) for n in range(1000)], "RPUSH of 1,000"),
                ("rpop", (1000,), "RPOP of 1,000"),
                ("llen", (), "LLEN"),
            ]:
                call = partial(getattr(target, command), *key, *arguments)
                times[label] = timed(client, call, CALLS // 10 if "1,000" in label else CALLS)
            trim = partial(target.ltrim, *key, 0, middle)
            times["LTRIM by half"] = timed(client, trim, calls=1, number=1)
    progress.remove_task(task)
    rounded = {label: (round(of[0], 2), round(of[1], 2)) for label, of in times.items()}
    return round(bytes_each, 2), rounded


def main() -> None:
    found = [find_server(), shutil.which("redis-server")]
    binaries = {version(Path(path)): Path(path) for path in dict.fromkeys(found) if path}
    bytes_: dict[str, dict[str, float]] = {}
    times: dict[str, dict[str, dict[str, tuple[float, float]]]] = {}
    layouts = {"plain": None, **{f"parts of {size}": size for size in SIZES}}
    with Progress() as progress:
        overall = progress.add_task("all", total=len(binaries) * len(layouts) * len(KINDS))
        for server, binary in binaries.items():
            bytes_[server], times[server] = {}, {}
            for kind in KINDS:
                for name, size in layouts.items():
                    layout = f"{kind}, {name}"
                    measured = measure(binary, kind, size, progress)
                    bytes_[server][layout], times[server][layout] = measured
                    progress.advance(overall)
    show(
        f"Bytes a value, {VALUES:,} values",
        ["layout", *bytes_],
        [(layout, *(b[layout] for b in bytes_.values())) for layout in next(iter(bytes_.values()))],
    )
    for server, by_layout in times.items():
        names = list(next(iter(by_layout.values())))
        show(
            f"Microseconds a call, of {server} / of the caller; in the middle of the list",
            ["layout", *names],
            [
                (layout, *(f"{of[0]:,.1f} / {of[1]:,.0f}" for of in by.values()))
                for layout, by in by_layout.items()
            ],
        )
    save(
        "list",
        {
            "unit": "bytes a value: used_memory after loading less that of the empty server; "
            "microseconds a call, of the server and of the caller",
            "values": VALUES,
            "bytes": bytes_,
            "microseconds": times,
            "conditions": conditions(", ".join(binaries)),
        },
    )


if __name__ == "__main__":
    main()
