"""IP to city: bytes a range and look-ups a second, against the book's ZSET and HASH.

The ranges are made up, the cities real (`cities.py`). Of 56,000 /16 networks each has a share of
the ranges that is very unequal, as it is in geolocation databases, and ranges adjoin, with a gap
after one in twenty. Both layouts hold the same; the book's has no ends, so that gaps are a range
of their own there.

Each layout has a fresh server to itself. What it takes is the server's ``used_memory`` after the
loader has left, less that of the empty server. Look-ups go one after the other, then 10,000 in a
pipeline or a ``find_many``, in rounds that alternate between the layouts, whose median counts.
Those of the local copy are counted by this process's CPU time. The addresses are of random ranges.

    python benchmarks/ip_to_city.py [RANGES]      500,000 by default
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import redis
from cities import cities
from memory_set import settled, version
from report import conditions, save, show
from rich.progress import Progress

import shardkit
from shardkit import ShardMap
from shardkit.geo.readers import City, IpRange, Item
from shardkit.local import LocalServer, find_server
from shardkit.operations.operation import pages

RANGES = 500_000
CITIES = 100_000
NETWORKS = range(0x0100, 0xDBC0)  # /16: unicast, nearly all in use
AT_ONCE = 10_000
SINGLE, BULK, LOCAL = 2_000, 30_000, 300_000
ROUNDS = 5


def ranges(count: int) -> Iterator[tuple[int, int, int | None]]:
    """First, last and city of so many ranges in order; None for a gap."""
    random = Random(12)
    weights = [random.paretovariate(1.2) for _ in NETWORKS]
    each = count / sum(weights)
    left = 0.0
    for network, weight in zip(NETWORKS, weights, strict=True):
        left += each * weight
        wanted = min(int(left), 60_000)
        left -= wanted
        if not wanted:
            continue
        borders = sorted({0, *(random.randrange(65_536) for _ in range(wanted - 1))})
        for first, after in zip(borders, [*borders[1:], 65_536], strict=True):
            city = None if random.random() < 0.05 else random.randrange(CITIES)
            yield (network << 16) + first, (network << 16) + after - 1, city


@cache
def records() -> list[City]:
    return [City(*names, n) for n, names in enumerate(cities(CITIES))]


def addresses(count: int, wanted: int) -> list[str]:
    random = Random(31)
    starts = [first for first, _, _ in ranges(count)]
    return [str(ip_address(random.choice(starts))) for _ in range(wanted)]


def kit_of(server: LocalServer) -> shardkit.ShardKit:
    text = json.dumps({"components": {"geo": {"entry": {"port": server.port}}}})
    return shardkit.connect(ShardMap.parse(text))


def rate(call: Callable[[], Any], count: int, clock: Callable[[], float]) -> float:
    start = clock()
    call()
    return count / (clock() - start)


# ---- loading


def load_blocks(server: LocalServer, client: redis.Redis, count: int) -> dict[str, float]:
    def items() -> Iterator[Item]:
        yield from records()
        for first, last, city in ranges(count):
            if city is not None:
                yield IpRange(first, last, city)

    empty = settled(client)
    with kit_of(server) as kit:
        start = time.process_time()
        kit.ip_to_city(component="geo").import_from(items())
        spent = time.process_time() - start
    return {
        "bytes a range": (settled(client) - empty) / count,  # with the cities; see `measure`
        "import, microseconds of CPU a range": 1e6 * spent / count,
    }


def load_zset(server: LocalServer, client: redis.Redis, count: int) -> dict[str, float]:
    empty = settled(client)
    with server.client() as loader:
        start = time.process_time()
        for page in pages(enumerate(ranges(count)), AT_ONCE):
            loader.zadd("ip2cityid:", {f"{city}_{n}": first for n, (first, _, city) in page})
        spent = time.process_time() - start
    zset = settled(client)
    with server.client() as loader:
        for some in pages(records(), AT_ONCE):
            values = {city.id: json.dumps(city[:3]) for city in some}
            loader.hset("cityid2city:", mapping=values)
    full = settled(client)
    return {
        "bytes a range": (zset - empty) / count,
        "bytes a city": (full - zset) / CITIES,
        "import, microseconds of CPU a range": 1e6 * spent / count,
    }


# ---- looking up


def measure(binary: Path, count: int) -> dict[str, dict[str, float]]:
    with (
        LocalServer(binary=binary) as ours,
        LocalServer(binary=binary) as plain,
        ours.client() as client,
        plain.client() as book,
    ):
        blocks = load_blocks(ours, client, count)
        zset = load_zset(plain, book, count)
        with kit_of(ours) as kit:
            ip = kit.ip_to_city(component="geo")
            asked = addresses(count, LOCAL)
            single, bulk = asked[:SINGLE], asked[:BULK]
            calls: dict[str, tuple[Callable[[], Any], Callable[[], Any], int]] = {
                "one by one, a second": (
                    lambda: [ip.find(address) for address in single],
                    lambda: [find_by_book(book, [address]) for address in single],
                    SINGLE,
                ),
                "in bulk, a second": (
                    lambda: ip.find_many(bulk),
                    lambda: [find_by_book(book, page) for page in pages(bulk, AT_ONCE)],
                    BULK,
                ),
            }
            for what, (by_blocks, by_zset, number) in calls.items():
                by_blocks(), by_zset()
                rounds = [
                    [rate(call, number, time.perf_counter) for call in (by_blocks, by_zset)]
                    for _ in range(ROUNDS)
                ]
                blocks[what], zset[what] = map(median, zip(*rounds, strict=True))
            copy = ip.local()
            blocks["local copy, a second of CPU"] = max(
                rate(lambda: copy.find_many(asked), LOCAL, time.process_time) for _ in range(ROUNDS)
            )
            blocks["local copy, MB"] = copy.memory() / 1e6
        full = settled(client)
        for page in pages(client.scan_iter("ip2city:*:cities*", 1000), 1000):
            client.delete(*page)
        cities_took = full - settled(client)
        blocks["bytes a city"] = cities_took / CITIES
        blocks["bytes a range"] -= cities_took / count
    return {"ZSET and HASH": zset, "blocks": blocks}


def find_by_book(client: redis.Redis, asked: Sequence[str]) -> list[Any]:
    pipe = client.pipeline(transaction=False)
    for address in asked:
        score = int(ip_address(address))
        pipe.zrange("ip2cityid:", score, 0, desc=True, byscore=True, offset=0, num=1)
    for found in pipe.execute():
        pipe.hget("cityid2city:", found[0].partition(b"_")[0] if found else b"")
    return [None if stored is None else json.loads(stored) for stored in pipe.execute()]


def main() -> None:
    count = int(sys.argv[1].replace(",", "")) if len(sys.argv) > 1 else RANGES
    found = [find_server(), shutil.which("redis-server")]
    binaries = {version(Path(path)): Path(path) for path in dict.fromkeys(found) if path}
    figures: dict[str, dict[str, dict[str, float]]] = {}
    with Progress() as progress:
        overall = progress.add_task("all", total=len(binaries))
        for server, binary in binaries.items():
            figures[server] = {
                layout: {what: round(n, 2) for what, n in measured.items()}
                for layout, measured in measure(binary, count).items()
            }
            progress.advance(overall)
    columns = [(server, layout) for server in figures for layout in figures[server]]
    rows = dict.fromkeys(what for s, layout in columns for what in figures[s][layout])
    show(
        f"IP to city, {count:,} ranges, {CITIES:,} cities",
        ["", *(f"{layout}, {server}" for server, layout in columns)],
        [(what, *(figures[s][layout].get(what, "-") for s, layout in columns)) for what in rows],
    )
    name = "ip_to_city" if count == RANGES else f"ip_to_city_{count}"
    result = {"ranges": count, "cities": CITIES, "figures": figures}
    save(name, result | {"conditions": conditions(", ".join(binaries))})


if __name__ == "__main__":
    main()
