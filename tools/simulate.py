"""Simulate shardkit's protocols until stopped, on all cores, and write what is found.

    python tools/simulate.py [SECONDS]
    python tools/simulate.py --each 1000
    python tools/simulate.py --plot FILE

Each process takes the protocols in turn, with seeds that none has used. What fails is written to
simulation-failures/. With ``--each`` it runs so many schedules of each protocol, the same ones each
time, and fails if one of them does. With ``--plot`` it counts how many distinct states are seen
after how many schedules, choosing steps at random and preferring rare ones, and draws that.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from multiprocessing import Pool, Process
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "testing" / "simulation"), str(ROOT)]

from protocols import PROTOCOLS  # noqa: E402

from shardkit.testing import SimulationFailure, simulate  # noqa: E402

FOUND = Path("simulation-failures")
AT_ONCE = 100  # schedules of a protocol, before the next one's turn


def search(worker: int, until: float) -> None:
    """Take the protocols in turn until the time is over."""
    seeds = random.SystemRandom()
    schedules = 0
    while time.time() < until:
        for name, kind in PROTOCOLS.items():
            seed = seeds.randrange(10**9)
            try:
                simulate(kind(), AT_ONCE, seed=seed, rare=bool(seed % 2), seconds=60)
            except SimulationFailure as failure:
                write(name, failure)
            schedules += AT_ONCE
            if time.time() >= until:
                break
        print(f"process {worker}: {schedules:,} schedules", flush=True)


def write(name: str, failure: SimulationFailure) -> None:
    """Keep what was found."""
    FOUND.mkdir(exist_ok=True)
    path = FOUND / f"{name.replace(' ', '-')}-{failure.seed}.txt"
    path.write_text(f"{failure}\n", encoding="utf-8")
    print(f"{name} fails: {path}", flush=True)


def run(task: tuple[str, int, int]) -> tuple[str, float, bool]:
    """Run some schedules of a protocol; return its name, the seconds, and whether they passed."""
    name, first, count = task
    started = time.process_time()
    try:
        simulate(PROTOCOLS[name](), count, seed=first)
    except SimulationFailure as failure:
        write(name, failure)
        return name, time.process_time() - started, False
    return name, time.process_time() - started, True


def each(count: int) -> bool:
    """Run so many schedules of each protocol on all cores; return whether all passed."""
    started = time.perf_counter()
    tasks = [
        (name, first, min(AT_ONCE, count - first))
        for first in range(0, count, AT_ONCE)
        for name in PROTOCOLS
    ]
    took: Counter[str] = Counter()
    passed = True
    with Pool(os.cpu_count()) as pool:
        for name, seconds, ok in pool.imap_unordered(run, tasks):
            took[name] += seconds  # type: ignore[assignment]
            passed &= ok
    for name, seconds in took.most_common():
        print(f"{seconds / count * 1000:6.1f} ms a schedule  {name}")
    print(
        f"{count:,} schedules of each of {len(PROTOCOLS)} protocols in "
        f"{time.perf_counter() - started:.0f} s, {sum(took.values()):.0f} s of processors"
    )
    return passed


def plot(path: str, schedules: int = 600) -> None:
    """Draw the distinct states by schedules, for both ways to choose steps."""
    from matplotlib import pyplot

    chosen = ("lists", "queues", "growing hash")
    _, axes = pyplot.subplots(1, len(chosen), figsize=(12, 3.6))
    for axis, name in zip(axes, chosen, strict=True):
        for rare, label in ((False, "random"), (True, "prefers rare steps")):
            kind: Any = PROTOCOLS[name]
            report = simulate(kind(), schedules, rare=rare, count_states=True)
            axis.plot(*zip(*report.growth, strict=True), label=label)
            print(f"{name}, {label}: {report.states:,} states", flush=True)
        axis.set_title(name)
        axis.set_xlabel("schedules")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("distinct states")
    axes[0].legend()
    pyplot.tight_layout()
    pyplot.savefig(path)


def main() -> None:
    """Read the arguments and begin."""
    arguments = sys.argv[1:]
    if "--plot" in arguments:
        plot(arguments[arguments.index("--plot") + 1])
        return
    if "--each" in arguments:
        sys.exit(not each(int(arguments[arguments.index("--each") + 1])))
    until = time.time() + (float(arguments[0]) if arguments else float("inf"))
    workers = [Process(target=search, args=(n, until)) for n in range(os.cpu_count() or 1)]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
    except KeyboardInterrupt:
        for worker in workers:
            worker.terminate()
    print(f"{len(list(FOUND.glob('*.txt')))} failures in {FOUND}/")


if __name__ == "__main__":
    main()
