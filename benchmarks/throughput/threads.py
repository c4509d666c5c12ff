"""Many threads on one kit: single GETs a second by 1, 2, 4, 8 and 16 threads.

Run by ``python benchmarks/throughput/threads.py``, with any Python that has the package: on a
free-threaded one it says so.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

from report import conditions, save, show

import shardkit
from throughput import cases
from throughput.contestants import OurClient, RedisPyClient
from throughput.limits import RawSockets
from throughput.works import gets, sets

CALLS = 4000
THREADS = (1, 2, 4, 8, 16)
REPEATS = 5
LIMIT = "limit, calls a second"


def rate(work: list[object], count: int) -> float:
    """Return calls a second of so many threads; each gets its own of the callables."""
    start = threading.Barrier(count + 1)

    def run(call: object) -> None:
        start.wait()
        for n in range(CALLS // count):
            call("GET", f"user:{n % 100}:name")  # type: ignore[operator]

    threads = [threading.Thread(target=run, args=(work[n],)) for n in range(count)]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return CALLS / (time.perf_counter() - began)


def measured() -> dict[str, dict[str, float]]:
    """Return by number of threads: the limit's calls a second, and the share of it of others."""
    found = {}
    with cases.servers() as shard_map, shardkit.connect(shard_map) as kit:
        cases.fill(shard_map, "of4", sets(100))
        addresses = cases.addresses_of(shard_map, "of4")
        ours, theirs = OurClient(kit, "of4"), RedisPyClient(addresses)
        raws = [RawSockets(addresses) for _ in range(max(THREADS))]
        ours.batch(ours.prepare(gets(100)))
        for count in THREADS:
            rounds = []
            for _ in range(REPEATS):
                limit = rate([raw.one for raw in raws], count)
                rounds.append(
                    {
                        LIMIT: limit,
                        "shardkit": rate([ours.one] * count, count) / limit,
                        "redis-py": rate([theirs.one] * count, count) / limit,
                    }
                )
            found[str(count)] = {
                name: round(median(each[name] for each in rounds), 2) for name in rounds[0]
            }
        for raw in raws:
            raw.close()
        theirs.close()
    return found


def main() -> None:
    free = sysconfig.get_config_var("Py_GIL_DISABLED") and not sys._is_gil_enabled()  # type: ignore[attr-defined]
    kind = "free-threaded" if free else "with a GIL"
    found = measured()
    show(
        f"GETs of many threads, {sys.version.split()[0]} {kind}",
        ["threads", *next(iter(found.values()))],
        [(count, *row.values()) for count, row in found.items()],
    )
    save(
        "throughput_threads_free" if free else "throughput_threads",
        {
            "unit": "the limit's calls a second; the others' as a share of it, medians of rounds",
            "figures": found,
            "conditions": conditions() | {"interpreter": kind},
        },
    )


if __name__ == "__main__":
    main()
