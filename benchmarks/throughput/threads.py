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

sys.path.insert(0, str(Path(__file__).parents[1]))

from report import show

import shardkit
from throughput import cases
from throughput.contestants import Ours, RedisPy
from throughput.limits import RawSockets
from throughput.works import gets, sets

CALLS = 4000


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


def main() -> None:
    free = sysconfig.get_config_var("Py_GIL_DISABLED") and not sys._is_gil_enabled()  # type: ignore[attr-defined]
    rows = []
    with cases.servers() as shard_map, shardkit.connect(shard_map) as kit:
        cases.fill(shard_map, "of4", sets(100))
        addresses = cases.addresses_of(shard_map, "of4")
        ours, theirs = Ours(kit, "of4"), RedisPy(addresses)
        raws = [RawSockets(addresses) for _ in range(16)]
        ours.batch(ours.prepare(gets(100)))
        for count in (1, 2, 4, 8, 16):
            rounds = [
                (
                    rate([raw.one for raw in raws], count),
                    rate([ours.one] * count, count),
                    rate([theirs.one] * count, count),
                )
                for _ in range(5)
            ]
            rows.append(
                (f"{count} threads", *(sorted(each)[2] for each in zip(*rounds, strict=True)))
            )
        for raw in raws:
            raw.close()
        theirs.close()
    kind = "free-threaded" if free else "with a GIL"
    show(
        f"GETs a second, {sys.version.split()[0]} {kind}",
        ["", "limit", "shardkit", "redis-py"],
        rows,
    )


if __name__ == "__main__":
    main()
