"""Ten million locations of two bytes: what they take, and how long loading and counting takes.

Packed by `kit.locations`, users in random and in sequential order, and the same read and counted.
Against it, on fresh servers of the same kind:

- one key a user, and one field a user of one hash, on a sample of a tenth (a server takes as many
  bytes for each of a tenth as of all, more or less: tables grow by doubling);
- the book's way: one SETRANGE a user into strings of 2**20 users that grow as users arrive, all of
  them in random order, by redis-py's pipelines of 1,000.

Counting is a country and region table over everybody. For the sample it reads the values by MGET or
HMGET, 1,000 each, and counts in Python. Reading alone is GETRANGE of every part by redis-py.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import redis
from memory_set import settled, version
from report import conditions, save, show
from rich.progress import Progress

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalServer, find_server
from shardkit.operations.operation import pages
from shardkit.structures.packed.locations import encode, location_codes

USERS = 10_000_000
SAMPLE = USERS // 10
BOOKS = 2**20
CALLS = 20_000
AT_ONCE = 1_000

Times = dict[str, float]


def places() -> list[tuple[str, str | None]]:
    """Where users are: the same places for all layouts; of four users one is in the USA."""
    _, countries, regions = location_codes()
    found: list[tuple[str, str | None]] = [(country, None) for country in countries[:180]]
    return found + [("USA", region) for region in regions["USA"]] + [("CAN", "ON")] * 14


PLACES = places()
CODES = [encode(*place) for place in PLACES]


def users(count: int, order: str) -> Iterator[int]:
    if order == "sequential":
        yield from range(count)
        return
    shuffled = np.random.default_rng(43).permutation(count)
    for start in range(0, count, AT_ONCE):
        yield from shuffled[start : start + AT_ONCE].tolist()


def place_of(user: int) -> int:
    """The number of a user's place."""
    return (user * 2654435761 >> 16) % 256


class Measuring:
    """A fresh server, and what was measured on it.

    Attributes:
        client: a client of it.
        kit: a kit whose component ``location`` it is.
    """

    def __init__(self, binary: Path) -> None:
        self.server = LocalServer(binary=binary)
        self.figures: dict[str, float] = {}

    def __enter__(self) -> Measuring:
        self.server.start()
        self.client = self.server.client()
        self.empty = settled(self.client)
        text = json.dumps({"components": {"location": {"entry": {"port": self.server.port}}}})
        self.kit = shardkit.connect(ShardMap.parse(text))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kit.close()
        self.client.close()
        self.server.stop()

    def time(self, name: str, count: int, call: Callable[[], Any], times: int = 1) -> None:
        """Take the microseconds a user that a call takes, the best of some times."""
        for _ in range(times):
            started = time.perf_counter()
            call()
            spent = (time.perf_counter() - started) / count * 1e6
            self.figures[name] = min(spent, self.figures.get(name, spent))

    def weigh(self, count: int) -> None:
        """Take the bytes a user, when everybody else has left."""
        self.kit.close()
        self.figures["bytes"] = (settled(self.client) - self.empty) / count


def pipelined(client: redis.Redis, ids: Iterator[int], put: Callable[[Any, int], Any]) -> None:
    for page in pages(ids, AT_ONCE):
        with client.pipeline(transaction=False) as pipe:
            for user in page:
                put(pipe, user)
            pipe.execute()


def packed(m: Measuring, order: str) -> None:
    """Load all users, and count them."""
    locations = m.kit.locations(component="location")
    m.time(
        "load",
        USERS,
        lambda: locations.set_many((user, PLACES[place_of(user)]) for user in users(USERS, order)),
    )
    assert sum(locations.aggregate().countries.values()) == USERS
    m.time("count", USERS, locations.aggregate, times=15)
    m.time("count a sample by id", SAMPLE, lambda: locations.aggregate(range(0, USERS, 10)))
    parts = sorted(map(int, m.client.smembers("location:parts")))

    def read() -> None:
        for page in pages(parts, 32):
            with m.client.pipeline(transaction=False) as pipe:
                for part in page:
                    pipe.getrange(f"location:{part}", 0, -1)
                pipe.execute()

    m.time("read alone", USERS, read, times=15)
    if order == "random":
        single(m, locations)
        without_arrays(m, locations)
    m.weigh(USERS)


def single(m: Measuring, locations: Any) -> None:
    """One user at a time, against the plain commands, in turns."""
    some = list(users(CALLS, "random"))
    client, size = m.client, locations.records.part_size
    calls: dict[str, Callable[[int], Any]] = {
        "set one": lambda user: locations.set(user, "USA", "CA"),
        "SETRANGE": lambda user: client.setrange(
            f"location:{user // size}", user % size * 2, b"ab"
        ),
        "get one": lambda user: locations.get(user),
        "GETRANGE": lambda user: client.getrange(
            f"location:{user // size}", user % size * 2, user % size * 2 + 1
        ),
    }
    spent = dict.fromkeys(calls, 0.0)
    for start in range(0, CALLS, 1000):
        for name, call in calls.items():
            started = time.perf_counter()
            for user in some[start : start + 1000]:
                call(user)
            spent[name] += time.perf_counter() - started
    m.figures |= {name: seconds / CALLS * 1e6 for name, seconds in spent.items()}


def without_arrays(m: Measuring, locations: Any) -> None:
    """Count as on a machine without numpy."""
    names = ("numpy", "shardkit.structures.packed.numpy_aggregates")
    kept = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.modules["numpy"] = None  # type: ignore[assignment]
    try:
        m.time("count without numpy", USERS, locations.aggregate)
    finally:
        sys.modules.update(kept)


def growing(m: Measuring) -> None:
    """One SETRANGE a user, into strings that grow."""
    m.time(
        "load",
        USERS,
        lambda: pipelined(
            m.client,
            users(USERS, "random"),
            lambda pipe, user: pipe.setrange(
                f"location:{user // BOOKS}", user % BOOKS * 2, CODES[place_of(user)]
            ),
        ),
    )
    m.weigh(USERS)


def one_key_each(m: Measuring) -> None:
    m.time(
        "load",
        SAMPLE,
        lambda: pipelined(
            m.client,
            users(SAMPLE, "random"),
            lambda pipe, user: pipe.set(f"location:{user}", CODES[place_of(user)]),
        ),
    )
    m.time(
        "count",
        SAMPLE,
        lambda: counted(lambda page: m.client.mget([f"location:{user}" for user in page])),
    )
    m.weigh(SAMPLE)


def one_hash(m: Measuring) -> None:
    m.time(
        "load",
        SAMPLE,
        lambda: pipelined(
            m.client,
            users(SAMPLE, "random"),
            lambda pipe, user: pipe.hset("location", user, CODES[place_of(user)]),
        ),
    )
    m.time("count", SAMPLE, lambda: counted(lambda page: m.client.hmget("location", page)))
    m.weigh(SAMPLE)


def counted(read: Callable[[list[int]], Any]) -> None:
    counts: Counter[bytes] = Counter()
    for page in pages(range(SAMPLE), AT_ONCE):
        counts.update(read(page))
    assert sum(counts.values()) == SAMPLE


LAYOUTS: dict[str, Callable[[Measuring], None]] = {
    "one key a user": one_key_each,
    "one hash": one_hash,
    "SETRANGE a user, strings grow": growing,
    "packed, random order": lambda m: packed(m, "random"),
    "packed, sequential order": lambda m: packed(m, "sequential"),
}


def main() -> None:
    found = [find_server(), shutil.which("redis-server")]
    binaries = {version(Path(path)): Path(path) for path in dict.fromkeys(found) if path}
    figures: dict[str, dict[str, dict[str, float]]] = {}
    with Progress() as progress:
        task = progress.add_task("all", total=len(binaries) * len(LAYOUTS))
        for server, binary in binaries.items():
            figures[server] = {}
            for name, layout in LAYOUTS.items():
                with Measuring(binary) as measuring:
                    layout(measuring)
                figures[server][name] = {k: round(v, 4) for k, v in measuring.figures.items()}
                progress.advance(task)
    report(figures)


def report(figures: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print and keep the figures, by server and layout."""
    for server, layouts in figures.items():
        show(
            f"{USERS:,} locations on {server}: bytes, and microseconds, a user",
            ["layout", "bytes", "load", "count"],
            [
                (
                    name,
                    found["bytes"],
                    found["load"],
                    f"{found['count']:.4f}" if "count" in found else "",
                )
                for name, found in layouts.items()
            ],
        )
        for name, values in layouts.items():
            print(server, name, values)
    save(
        "packed",
        {
            "unit": "bytes (used_memory less the empty server's) and microseconds a user",
            "users": USERS,
            "sample": SAMPLE,
            "figures": figures,
            "conditions": conditions(", ".join(figures)),
        },
    )


if __name__ == "__main__":
    main()
