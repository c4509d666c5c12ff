"""Splits: copied keys a second beside plain `MIGRATE`; what clients notice; how long writers wait.

Plain means what one would write without shardkit: SCAN, the place of each key, and MIGRATE COPY of
up to 100 keys a call, a thread for each old shard. It copies no changes, and compares nothing. Both
run in turn, on the same data.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any
from zlib import crc32

import redis
from report import conditions, show

from growth.moves import ALONE, busy
from growth.neighbours import neighbours
from shardkit import ShardMap
from shardkit.admin import push
from shardkit.admin.growth import start_split
from shardkit.local import LocalServer

COMPONENT = "users"
ROUNDS = int(os.environ.get("ROUNDS", "3"))
MEGABYTES = float(os.environ.get("MEGABYTES", "100"))
SIZES = (100, 1000, 4000)  # bytes of a value
COUNTS = (4, 16, 64, 256)  # shards after the split
KEYS = 20_000  # where the number of shards is measured
PACED = 200.0  # calls a second of each client
HOLD = 5.0  # seconds that writers may wait: it shall succeed at the first try
_CALL = 100  # keys of one MIGRATE
MOST_KEYS = int(os.environ.get("KEYS", "200000"))

Figures = dict[str, Any]
Shards = Sequence[tuple[LocalServer, int]]  # the server and the database of each


def fill(shards: Shards, keys: int, value: int) -> None:
    """Write values that cannot be compressed, each key to its shard."""
    pool = random.Random(1).randbytes(1 << 20)
    clients = [server.client(db=db) for server, db in shards]
    pipes = [client.pipeline(transaction=False) for client in clients]
    for n in range(keys):
        key, at = b"k%d" % n, n % (len(pool) - value)
        pipes[crc32(key) % len(pipes)].set(key, pool[at : at + value])
        if n % 2000 == 0 or n == keys - 1:
            for pipe in pipes:
                pipe.execute()
    for client in clients:
        client.close()


@contextmanager
def four_shards(keys: int, value: int) -> Iterator[tuple[redis.Redis, list[LocalServer], str]]:
    """Start two servers with two shards each, and two empty ones."""
    with ExitStack() as stack:
        config = stack.enter_context(LocalServer(name="config"))
        servers = [
            stack.enter_context(LocalServer(name=f"server {n}", databases=200)) for n in range(4)
        ]
        shards = [(servers[n % 2], 1 + n // 2) for n in range(4)]
        fill(shards, keys, value)
        entries = [{"host": "127.0.0.1", "port": each.port, "db": db} for each, db in shards]
        told = stack.enter_context(config.client())
        push(told, ShardMap.parse(json.dumps({"components": {COMPONENT: {"shards": entries}}})))
        yield told, servers, f"redis://{config.address}"


def migrate(servers: Sequence[LocalServer], count: int) -> None:
    """Copy all keys to `count` new shards by MIGRATE."""
    places = [(servers[2 + n % 2], n // 2) for n in range(count)]

    def copy(shard: int) -> None:
        with servers[shard % 2].client(db=1 + shard // 2) as client:
            groups: defaultdict[int, list[bytes]] = defaultdict(list)
            for key in client.scan_iter(count=_CALL):
                group = groups[crc32(key) % count]
                group.append(key)
                if len(group) == _CALL:
                    send(client, places[crc32(key) % count], group)
                    group.clear()
            for n, group in groups.items():
                if group:
                    send(client, places[n], group)

    def send(client: Any, place: tuple[LocalServer, int], keys: list[bytes]) -> None:
        server, db = place
        client.migrate("127.0.0.1", server.port, keys, db, 10_000, copy=True, replace=True)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(copy, range(4)))


class Work:
    """The time, and the seconds of processor, of this process, the old servers and the new ones."""

    def __init__(self, servers: Sequence[LocalServer]) -> None:
        self._clients = [server.client() for server in servers]
        self._last = self._now()
        self._phase = "copy"
        self.phases: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * 4)

    def _now(self) -> list[float]:
        a, b, c, d = map(busy, self._clients)
        return [time.monotonic(), time.process_time(), a + b, c + d]

    def __call__(self, what: str) -> None:
        """Note what a split says that it does."""
        first = what.split()[0].rstrip(":")
        phase = {"copying": "copy", "copied": "copy", "comparing": "compare"}.get(first, "switch")
        if phase != self._phase:
            self.end()
            self._phase = phase

    def end(self) -> None:
        """Note that a phase has ended."""
        now = self._now()
        of_phase = self.phases[self._phase]
        for n, (then, at) in enumerate(zip(self._last, now, strict=True)):
            of_phase[n] += at - then
        self._last = now

    def close(self) -> None:
        """Close its clients."""
        for client in self._clients:
            client.close()


def speed(value: int) -> Figures:
    """Split 4 shards into 8 on two other servers, and do the same by MIGRATE."""
    keys = min(MOST_KEYS, round(1e6 * MEGABYTES / (value + 100)))
    rounds: list[Figures] = []
    for _ in range(ROUNDS):
        with four_shards(keys, value) as (told, servers, _), ExitStack() as stack:
            plain = Work(servers)
            stack.callback(plain.close)
            migrate(servers, 8)
            plain.end()
            for server in servers[2:]:
                with server.client() as client:
                    client.flushall()
            split = Work(servers)
            stack.callback(split.close)
            over = [server.address for server in servers[2:]]
            move = start_split(told, COMPONENT, shards=8, over=over, hold=HOLD, progress=split)
            split.end()
            assert move.certificate is not None
            assert move.certificate["same"], move.certificate
            phases = {"MIGRATE": plain.phases["copy"], **split.phases}
            phases["the whole split"] = [
                sum(each) for each in zip(*split.phases.values(), strict=True)
            ]
            row: Figures = {}
            for name, (seconds, own, old, new) in phases.items():
                row |= {
                    f"{name}: keys a second": keys / seconds,
                    f"{name}: ms of the client for 1,000 keys": 1e6 * own / keys,
                    f"{name}: ms of old servers for 1,000 keys": 1e6 * old / keys,
                    f"{name}: ms of new servers for 1,000 keys": 1e6 * new / keys,
                }
            rounds.append(row | {"held, ms": 1000 * (move.held or 0)})
    return {"keys": keys} | {
        name: round(median(each[name] for each in rounds), 3) for name in rounds[0]
    }


def holds(count: int) -> Figures:
    """Split 4 shards into `count` on the same servers while two clients read and write."""
    rounds = []
    for _ in range(ROUNDS):
        with (
            four_shards(KEYS, 100) as (told, servers, url),
            neighbours(url, [COMPONENT] * 2, PACED) as clients,
        ):
            alone = time.monotonic()
            time.sleep(ALONE)
            began = time.monotonic()
            over = [server.address for server in servers]
            move = start_split(told, COMPONENT, shards=count, over=over, hold=HOLD)
            ended = time.monotonic()
            time.sleep(ALONE)
        assert move.certificate is not None
        assert move.certificate["same"], move.certificate
        quiet = [each.window([(alone, began), (ended, ended + ALONE)]) for each in clients]
        meanwhile = [each.window([(began, ended)]) for each in clients]
        rate = sum(each.rate for each in meanwhile) / sum(each.rate for each in quiet)
        p99 = max(each.p99 for each in meanwhile) / max(each.p99 for each in quiet)
        longest = max(each.longest for each in meanwhile)
        rounds.append((1000 * (move.held or 0), longest, rate, p99, ended - began))
    names = ("writers held, ms", "longest call, ms", "throughput, ratio", "p99, ratio", "seconds")
    return {
        name: round(median(each), 3)
        for name, each in zip(names, zip(*rounds, strict=True), strict=True)
    }


def run() -> Figures:
    """Measure both."""
    by_size = {str(value): speed(value) for value in SIZES}
    names = list(by_size[str(SIZES[0])])
    rows = [(name, *(row[name] for row in by_size.values())) for name in names]
    show("a split from 4 to 8 shards, by bytes of a value", ["", *map(str, SIZES)], rows)
    by_count = {str(count): holds(count) for count in COUNTS}
    names = list(by_count[str(COUNTS[0])])
    show(
        f"a split from 4 shards of {KEYS:,} keys, under load",
        ["shards", *names],
        [(count, *row.values()) for count, row in by_count.items()],
    )
    load = {"load average": round(os.getloadavg()[1])}
    found = {"rounds": ROUNDS, "megabytes": MEGABYTES, "by bytes of a value": by_size}
    return found | {"by shards": by_count, "conditions": conditions() | load}
