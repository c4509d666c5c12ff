"""Unique visitors: what each precision takes a visitor, how many it misses, what time it takes.

Memory: each way of counting has a fresh server to itself; what it takes is the server's
``used_memory`` after loading less that of the server when it had been used and emptied, with
everything beside the ids. The day is planned as one without a day before (2,097,152 expected),
whatever comes.

Misses: visitors that were taken for others, where ids are so short that it happens: what was
counted, against what the odds of `shardkit.structures.unique.precision` say.

Time: the processor time of one client and one server a visit, one at a time and in bulk, against
SADD to one SET in the same run, in rounds by turns; the best round counts. Processor time, because
it is the same whoever else uses the machine.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import redis
from memory_set import settled, version
from report import conditions, save, show
from rich.progress import Progress

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.local import LocalServer, find_server
from shardkit.operations.operation import pages

VISITORS = 1_000_000
AT_ONCE = 10_000
DAY = date(2015, 5, 17)
DAYS = 3
SINGLE, BULK, ROUNDS = 1_000, 50_000, 8
PLAIN = "SADD to one SET"
PRECISIONS = ("exact", "60-bit", "compact", "hyperloglog", "bitmap")


class Way(NamedTuple):
    """A way to count.

    Attributes:
        name: for the table.
        parameters: of a counter; None for plain commands.
        of: of how many users those who came are; of 0 sessions.
        plain: what adds visitors by plain commands.
    """

    name: str
    parameters: dict[str, Any] | None = None
    of: int = 0
    plain: Callable[[redis.Redis, list[UUID]], Any] | None = None


def one_set(client: redis.Redis, page: list[UUID]) -> None:
    client.sadd("unique:2015-05-17", *(int(session.hex[:15], 16) for session in page))


def one_text_set(client: redis.Redis, page: list[UUID]) -> None:
    client.sadd("unique:2015-05-17", *map(str, page))


def hash_parts(client: redis.Redis, page: list[UUID]) -> None:
    """What exact ids would take as the fields of hashes, which Redis 7.0 keeps compactly."""
    pipe = client.pipeline(transaction=False)
    parts: dict[int, dict[bytes, bytes]] = {}
    for session in page:
        parts.setdefault(session.int % 13_312, {})[session.bytes] = b""
    for part, fields in parts.items():
        pipe.hset(f"unique:2015-05-17:{part}", mapping=fields)  # type: ignore[arg-type]
    pipe.execute()


WAYS = [
    Way("one SET of 36 characters", plain=one_text_set),
    Way("one SET of 60-bit ids", plain=one_set),
    Way("exact", {"precision": "exact"}),
    Way("exact, as fields of hashes", plain=hash_parts),
    Way("60-bit", {"precision": "60-bit"}),
    Way("60-bit, in the book's parts", {"precision": "60-bit", "partition": "redis-in-action"}),
    Way("compact", {"precision": "compact"}),
    Way("hyperloglog", {"precision": "hyperloglog"}),
    Way("bitmap, all users", {"precision": "bitmap"}, VISITORS),
    Way("bitmap, one in ten", {"precision": "bitmap"}, 10 * VISITORS),
    Way("bitmap, one in a hundred", {"precision": "bitmap"}, 100 * VISITORS),
]


def sessions(count: int, seed: int = 41) -> Iterator[UUID]:
    """Version 4 UUIDs, the same in every run."""
    random = Random(seed)
    for _ in range(count):
        yield UUID(int=random.getrandbits(128), version=4)


def users(of: int) -> Iterator[int]:
    """The numbers of the users that come, in no order."""
    yield from Random(41).sample(range(of), VISITORS)


def kit_of(server: LocalServer) -> ShardKit:
    text = json.dumps({"components": {"unique": {"entry": {"port": server.port}}}})
    return shardkit.connect(ShardMap.parse(text))


def measure(way: Way, binary: Path) -> float:
    """Return the bytes that a way takes a visitor."""
    with LocalServer(binary=binary) as server, server.client() as client:
        for came in (100_000, VISITORS):  # first with all that a first use leaves behind
            client.flushdb()
            empty = settled(client)
            load(way, server, client, came)
        return (settled(client) - empty) / VISITORS


def load(way: Way, server: LocalServer, client: redis.Redis, count: int) -> None:
    if way.parameters is None:
        assert way.plain
        for page in pages(sessions(count), AT_ONCE):
            way.plain(client, page)
        return
    came: Any = islice(users(way.of), count) if way.of else sessions(count)
    with kit_of(server) as kit:
        kit.unique_visitors(**way.parameters).visit_many(came, DAY)


class Missed(NamedTuple):
    """What was missed on days of a million visitors, and what was to be expected."""

    name: str
    bits: float
    expected: float
    found: int


def misses(binary: Path) -> Iterator[Missed]:
    """Count days of a million sessions with short ids."""
    for name, parameters in (
        ("compact, 1 part", {"precision": "compact", "part_size": 2**22}),
        ("compact, 9 parts", {"precision": "compact", "part_size": 2**19}),
        ("60-bit, 8 digits", {"digits": 8}),
        ("60-bit, 9 digits", {"digits": 9}),
    ):
        with LocalServer(binary=binary) as server, kit_of(server) as kit:
            counter = kit.unique_visitors(**parameters)  # type: ignore[arg-type]
            odds = counter.odds(VISITORS)
            found = 0
            for n in range(DAYS):
                day = DAY + timedelta(days=n)
                found += VISITORS - counter.visit_many(sessions(VISITORS, n), day)
            yield Missed(name, round(odds.bits, 1), round(DAYS * odds.missed, 1), found)


def error(binary: Path) -> float:
    """Return by how much a HyperLogLog of a million is wrong, in per cent: the mean of ten."""
    with LocalServer(binary=binary) as server, kit_of(server) as kit:
        counter = kit.unique_visitors(precision="hyperloglog", component="unique")
        wrong = []
        for seed in range(10):
            day = date(2015, 5, 1 + seed)
            counter.visit_many((str(session) for session in sessions(100_000, seed)), day)
            wrong.append((counter.count(day) / 100_000 - 1) ** 2)
    return 100 * (sum(wrong) / len(wrong)) ** 0.5


class Spent(NamedTuple):
    """Processor time a visit in microseconds: the client's, the server's."""

    client: float
    server: float


def spent(client: redis.Redis, visits: int, run: Callable[[], Any]) -> Spent:
    """Return what visits take."""

    def server() -> float:
        found: Any = client.info("cpu")
        return float(found["used_cpu_user"] + found["used_cpu_sys"])

    before, started = server(), time.process_time()
    run()
    ended, after = time.process_time(), server()
    micro = 1e6 / visits
    return Spent(round((ended - started) * micro, 1), round((after - before) * micro, 1))


def times(binary: Path) -> dict[str, dict[str, Spent]]:
    """Return what a visit takes by each way, one at a time and in bulk: the best of all rounds."""
    found: dict[str, dict[str, list[Spent]]] = {}
    with LocalServer(binary=binary) as server, kit_of(server) as kit, server.client() as client:
        counters = {p: kit.unique_visitors(p, component="unique", precision=p) for p in PRECISIONS}

        def sadd(page: list[UUID]) -> None:
            client.sadd("plain", *(int(session.hex[:15], 16) for session in page))

        for turn in range(ROUNDS):
            came: list[Any] = list(sessions(SINGLE + BULK, turn))
            numbers: list[Any] = Random(turn).sample(range(VISITORS), SINGLE + BULK)
            for name in (PLAIN, *PRECISIONS):
                visits = numbers if name == "bitmap" else came
                single, bulk = visits[:SINGLE], visits[SINGLE:]
                if name == PLAIN:
                    one = partial(deque, (sadd([session]) for session in single), 0)
                    many = partial(deque, map(sadd, pages(bulk, AT_ONCE)), 0)
                else:
                    counter = counters[name]
                    counter.count(DAY)
                    visit = counter.visit
                    one = partial(deque, (visit(session, DAY) for session in single), 0)
                    many = partial(counter.visit_many, bulk, DAY)
                best = found.setdefault(name, {"single": [], "bulk": []})
                best["single"].append(spent(client, SINGLE, one))
                best["bulk"].append(spent(client, BULK, many))
    return {
        name: {how: min(all_rounds, key=sum) for how, all_rounds in both.items()}
        for name, both in found.items()
    }


def main() -> None:
    found = [find_server(), shutil.which("redis-server")]
    binaries = {version(Path(path)): Path(path) for path in dict.fromkeys(found) if path}
    memory: dict[str, dict[str, float]] = {server: {} for server in binaries}
    with Progress() as progress:
        task = progress.add_task("memory", total=len(binaries) * len(WAYS))
        for server, binary in binaries.items():
            for way in WAYS:
                memory[server][way.name] = round(measure(way, binary), 3)
                progress.console.print(server, way.name, memory[server][way.name])
                progress.advance(task)
    show(
        f"Bytes a visitor, {VISITORS:,} visitors",
        ["way", *memory],
        [(way.name, *(f"{m[way.name]:.3f}" for m in memory.values())) for way in WAYS],
    )
    first = next(iter(binaries.values()))
    missed = list(misses(first))
    show(
        f"Missed on {DAYS} days of {VISITORS:,} visitors",
        ["ids", "bits", "by the odds", "found"],
        missed,
    )
    wrong = round(error(first), 2)
    print(f"HyperLogLog: {wrong}% wrong, root mean square of ten days of 100,000")
    fast = {server: times(binary) for server, binary in binaries.items()}
    for server, ways in fast.items():
        show(
            f"Microseconds of processor time a visit, {server}",
            ["way", "one: client", "one: server", "bulk: client", "bulk: server", "bulk, of SADD"],
            [
                (name, *how["single"], *how["bulk"], sum(how["bulk"]) / sum(ways[PLAIN]["bulk"]))
                for name, how in ways.items()
            ],
        )
    save(
        "unique",
        {
            "unit": "bytes a visitor; visitors missed; microseconds (client, server) a visit",
            "visitors": VISITORS,
            "memory": memory,
            "missed": [one._asdict() for one in missed],
            "hyperloglog_error_percent": wrong,
            "microseconds_a_visit": fast,
            "conditions": conditions(", ".join(binaries)),
        },
    )


if __name__ == "__main__":
    main()
