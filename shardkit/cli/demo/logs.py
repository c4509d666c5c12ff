"""``shardkit demo logs DIR``: the whole job of counting logs by place, with processes that die.

Files are published in chunks over four servers; workers, some of them killed and restarted, read
each line's day and the city of its address into totals by country, region and city; then one
process counts the same files. The ranges of addresses are made up, the same ones each time: every
/12 network of IPv4 belongs to a city of its own, every /10 to a region, and every /8 to a country.
"""

from __future__ import annotations

import gzip
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import shardkit
from shardkit.cli.demo.access_log import AccessLogParser
from shardkit.errors import FileLeaseLostError
from shardkit.geo.block_store import LocalCities
from shardkit.geo.readers import City, IpRange
from shardkit.kit.kit import ShardKit
from shardkit.messaging import RecordTally, by_place

CHANNEL, READER = "logs", "places"
KINDS = ("country", "region", "city")
LEASE = 2.0
LOGS_MAP = """
config_server: {port: 7100}
defaults: {host: 127.0.0.1}
components:
  geo: {entry: {port: 7101}}
  files:
    shards:
      count: 8
      over: [{port: 7101, db: 1}, {port: 7102, db: 1}, {port: 7103, db: 1}, {port: 7104, db: 1}]
  totals: {shards: [{port: 7101, db: 3}, {port: 7102, db: 3}, {port: 7103, db: 3}]}
"""


class LogCounts(NamedTuple):
    """The result of a run."""

    files: int
    lines: int  # how many lines have a day and a city
    kills: int
    seconds: float
    # For each day the totals by kind and member, as the workers stored them.
    days: dict[str, dict[tuple[str, str], int]]
    expected: dict[str, dict[tuple[str, str], int]]  # the same, as one process counts it


def ranges() -> Iterator[IpRange]:
    """Give out the made-up ranges of addresses."""
    for n in range(4096):
        city = City(f"City {n}", f"Region {n // 4}", f"Country {n // 16}")
        yield IpRange.of(f"{n // 16}.{n % 16 * 16}.0.0/12", city=city)


def tally_of(cities: LocalCities) -> RecordTally[Any]:
    """Return a tally of access log lines by day and place."""
    parser = AccessLogParser()

    def parse(line: bytes) -> tuple[str, str] | None:
        visits = parser.parse([line]).visits
        for day, [(address, _)] in visits.items():
            return day.isoformat(), address.decode("latin-1")
        return None

    return by_place(cities, parse)


def work(url: str, pause: float = 0.0) -> None:
    """Count files until all are counted: what a worker process does.

    It pauses after each 1,000 lines, so that a test can kill in time.
    """
    with shardkit.connect(url) as kit:
        files, totals = kit.files(component="files", attempts=1000), kit.totals(component="totals")
        cities = kit.ip_to_city(component="geo").local()
        for file in files.take_all(CHANNEL, READER, lease=LEASE):
            with suppress(FileLeaseLostError):  # this process slept too long: others count it
                tally = tally_of(cities)
                lines = files.lines(file)
                while page := list(islice(lines, 1000)):
                    tally.add(page)
                    time.sleep(pause)
                totals.flush(file.name, tally)
                files.done(file)


def count_logs(kit: ShardKit, url: str, folder: Path, workers: int, kills: int) -> LogCounts:
    """Publish the logs of a directory, have worker processes count them, and kill some of these.

    The killed ones are restarted: there are always as many ``workers``.
    """
    kit.ip_to_city(component="geo").import_from(ranges())
    files = kit.files(component="files")
    files.create(CHANNEL, [READER], chunk_size=2**16)
    names = [file.name for file in files.publish_directory(CHANNEL, folder)]
    files.close(CHANNEL)
    began, chance, killed = time.monotonic(), random.Random(7), 0
    running = [_start(url, kills) for _ in range(workers)]
    try:
        while files.status(CHANNEL).open[READER]:
            time.sleep(0.05)
            for process in running:
                if process.poll() not in (None, 0):
                    raise RuntimeError(f"a worker ended with {process.returncode}")
            busy = [n for n, process in enumerate(running) if process.poll() is None]
            if killed < kills and busy and chance.random() < 0.1:
                victim = chance.choice(busy)
                running[victim].kill()
                running[victim].wait()
                running[victim] = _start(url, kills)
                killed += 1
        for process in running:
            process.wait()
    finally:
        for process in running:
            process.kill()
            process.wait()
    seconds = time.monotonic() - began
    expected = _counted_here(kit, folder)
    totals = kit.totals(component="totals")
    days = {
        day: {(kind, member): n for kind in KINDS for member, n in totals.all(day, kind)}
        for day in sorted(expected)
    }
    lines = sum(n for of in expected.values() for (kind, _), n in of.items() if kind == "country")
    return LogCounts(len(names), lines, killed, seconds, days, expected)


def top_places(days: dict[str, dict[tuple[str, str], int]], kind: str) -> list[tuple[str, int]]:
    """Return the ten places of a kind with the most lines of all days."""
    counts: Counter[str] = Counter()
    for day in days.values():
        for (counted_kind, member), count in day.items():
            if counted_kind == kind:
                counts[member] += count
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:10]


def _start(url: str, kills: int) -> subprocess.Popen[bytes]:
    pause = 0.02 if kills else 0.0
    code = f"from shardkit.cli.demo.logs import work; work({url!r}, {pause})"
    return subprocess.Popen([sys.executable, "-c", code])


def _counted_here(kit: ShardKit, folder: Path) -> dict[str, dict[tuple[str, str], int]]:
    tally = tally_of(kit.ip_to_city(component="geo").local())
    for path in sorted(file for file in folder.iterdir() if file.is_file()):
        with path.open("rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if is_gzip else path.open("rb") as lines:
            tally.add(lines)
    return tally.totals()
