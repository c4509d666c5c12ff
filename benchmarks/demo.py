"""Log lines a second of the main job: ``shardkit demo`` without its tables.

The sample, over and over, each time five days later, is replayed as a plain file over the laptop
map's five servers, which share the machine with the client; and the same with an agent of its own
on every line, so that each line is a new visitor. Every run has fresh servers. Reading and parsing
are also timed alone; the rest is counting.
"""

from __future__ import annotations

import gzip
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from statistics import median

from report import conditions, save, show

import shardkit
from shardkit.cli.demo import sample
from shardkit.cli.demo.access_log import AccessLog, AccessLogParser
from shardkit.cli.demo.command import laptop_map
from shardkit.cli.demo.counting import VisitCounter
from shardkit.cli.demo.replay import BATCH_SIZE, replay
from shardkit.local import LocalServers

LINES = 1_000_000
RUNS = 5
BUDGET = 30_000  # lines a second


def repeated() -> Iterator[bytes]:
    """Yield the sample's text again and again, each time in the five days that follow."""
    text = gzip.decompress(sample.read())
    days = sorted(AccessLogParser().parse(text.splitlines(keepends=True)).visits)
    lines = 0
    for n in count():
        moved = text
        for day in reversed(days):
            later = day + timedelta(days=n * len(days))
            moved = moved.replace(f"{day:%d/%b/%Y}".encode(), f"{later:%d/%b/%Y}".encode())
        yield moved
        lines += moved.count(b"\n")
        if lines >= LINES:
            return


def all_new(text: bytes) -> bytes:
    """Return lines of which each has an agent that no other has."""
    lines = text.splitlines()
    return b"".join(
        b'%b%d"\n' % (line[:-1], n) for n, line in enumerate(lines) if line[-1:] == b'"'
    )


def one_run(path: Path) -> tuple[int, float]:
    """Replay a log on fresh servers; return how many lines it has, and the seconds it took."""
    with (
        LocalServers(laptop_map(), ports="free") as servers,
        shardkit.connect(servers.shard_map) as kit,
        AccessLog.open(path) as log,
    ):
        replayed = replay(log, VisitCounter(kit))
        return replayed.lines, replayed.seconds


def without_servers(path: Path, *, parse: bool) -> float:
    """Return the seconds that it takes to read a log, or to read and parse it."""
    parser = AccessLogParser()
    began = time.perf_counter()
    with AccessLog.open(path) as log:
        for lines in log.batches(BATCH_SIZE):
            if parse:
                parser.parse(lines)
    return time.perf_counter() - began


def main() -> None:
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        logs = {name: Path(directory) / name for name in ("sample", "new visitors")}
        with logs["sample"].open("wb") as one, logs["new visitors"].open("wb") as other:
            for text in repeated():
                one.write(text)
                other.write(all_new(text))
        for _ in range(RUNS):  # in turn, so that a busy minute is shared
            for name, path in logs.items():
                lines, seconds = one_run(path)
                figures.setdefault(name, []).append(lines / seconds)
                for step, parse in (("reading", False), ("reading, parsing", True)):
                    taken = without_servers(path, parse=parse)
                    figures.setdefault(f"{name}: {step}", []).append(lines / taken)
    with LocalServers(laptop_map(), ports="free") as servers, servers.servers[0].client() as client:
        info = client.info("server")
    server = info.get("server_name", "redis")

    medians = {name: round(median(speeds)) for name, speeds in figures.items()}
    show(
        f"Log lines a second ({LINES:,} lines, {RUNS} runs; budget {BUDGET:,})",
        ["", "median", "slowest", "fastest"],
        [
            (name, medians[name], round(min(speeds)), round(max(speeds)))
            for name, speeds in sorted(figures.items())
        ],
    )
    save(
        "demo",
        {
            "unit": f"log lines a second, median of {RUNS} runs on fresh servers",
            "figures": medians,
            "slowest": {name: round(min(speeds)) for name, speeds in figures.items()},
            "fastest": {name: round(max(speeds)) for name, speeds in figures.items()},
            "budgets": {"sample": BUDGET, "new visitors": BUDGET},
            "lines": LINES,
            "batch_size": BATCH_SIZE,
            "conditions": conditions(f"{server} {info[f'{server}_version']}"),
        },
    )


if __name__ == "__main__":
    main()
