"""What processes cost the config server: told of changes, and reading every second.

Each process uses one component of 1,000 shards, and is idle or calls it twenty times a second.
``PROCESSES=1,20,200`` for others.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from report import conditions, save, show

import shardkit
from shardkit import ShardMap
from shardkit.admin import push
from shardkit.errors import ShardKitError
from shardkit.local import LocalServer
from shardkit.network.topology import ConfigServer

PROCESSES = [int(n) for n in os.environ.get("PROCESSES", "1,10,50,100,200").split(",")]
BEYOND = (1000, 10_000)
SHARDS, SECONDS = 1000, 5.0
PAUSE = {"idle": None, "busy": 0.05}  # seconds between two calls
Figures = dict[str, float]


def work(url: str, how: str, pause: float | None, ready: Any, stop: Event) -> None:
    """Be one of the processes."""
    if how == "read":
        ConfigServer.feed = lambda self: None  # type: ignore[method-assign]
    with shardkit.connect(url) as kit:
        users = kit.key_sharded("users")
        while not stop.is_set():
            with suppress(ShardKitError):  # this machine has too much to do
                users["a"].get("a")
                break
        ready.release()
        while not stop.wait(pause):
            users["a"].get("a")


def processor_time(pids: list[int]) -> float:
    """The seconds that all threads of processes have run."""
    nanoseconds = 0
    for path in [path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]:
        with suppress(OSError):  # a thread that has just ended
            nanoseconds += int(path.read_text().split()[0])
    return nanoseconds / 1e9


def measure(config: LocalServer, how: str, pause: float | None) -> dict[str, Figures]:
    """Have ever more processes; return what they cost, by their number."""
    context = get_context("fork")
    ready, stop = context.Semaphore(0), context.Event()
    arguments = (f"redis://{config.address}", how, pause, ready, stop)
    running: list[Any] = []
    found = {}
    try:
        for count in PROCESSES:
            more = [
                context.Process(target=work, args=arguments) for _ in range(len(running), count)
            ]
            for each in more:
                running.append(each)
                each.start()
                ready.acquire()
            time.sleep(2.5)
            found[str(count)] = look(config, [each.pid for each in running])
    finally:
        stop.set()
        for each in running:
            each.join()
    return found


def look(config: LocalServer, pids: list[int]) -> Figures:
    """Return the CPU of the config server and of a process, and bytes and commands of a second."""
    with config.client() as client:
        first, before = client.info(), client.info()  # the second one counts the first one
        used, began = processor_time(pids), time.monotonic()
        time.sleep(SECONDS)
        now, used, took = client.info(), processor_time(pids) - used, time.monotonic() - began

    def grown(*names: str) -> float:
        asked = sum(float(before[name]) - float(first[name]) for name in names)
        return (sum(float(now[name]) - float(before[name]) for name in names) - asked) / took

    return {
        "config server, CPU %": 100 * grown("used_cpu_sys", "used_cpu_user"),
        "its bytes a second": grown("total_net_output_bytes"),
        "its commands a second": grown("total_commands_processed"),
        "a process, CPU %": 100 * used / took / len(pids),
    }


def beyond(found: dict[str, Figures]) -> dict[str, Figures]:
    """What more processes would cost, by what each of the most that were measured adds to one."""
    least, most = found[str(min(PROCESSES))], found[str(max(PROCESSES))]
    added = max(1, max(PROCESSES) - min(PROCESSES))
    return {
        str(count): {
            name: least[name] + (most[name] - least[name]) / added * (count - min(PROCESSES))
            for name in least
            if name != "a process, CPU %"
        }
        for count in BEYOND
    }


def main() -> None:
    """Measure, show and save."""
    result: dict[str, dict[str, Figures]] = {}
    with LocalServer() as config, LocalServer() as data, config.client() as client:
        entries = [{"port": data.port, "db": 1 + n % 10} for n in range(SHARDS)]
        push(client, ShardMap.parse(json.dumps({"components": {"users": {"shards": entries}}})))
        for how in ("read", "told"):
            for state, pause in PAUSE.items():
                result[f"{how}, {state}"] = measure(config, how, pause)
    names = list(result["told, idle"][str(PROCESSES[0])])
    rows = [
        (f"{count} processes, {how}", *(round(found[name], 2) for name in names))
        for how, of_counts in result.items()
        for count, found in of_counts.items()
    ]
    show(f"The config server of processes with {SHARDS:,} shards", ["", *names], rows)
    by_arithmetic = {how: beyond(found) for how, found in result.items()}
    load = {"load average": round(os.getloadavg()[1])}
    save(
        "config_server",
        {
            "conditions": conditions() | load,
            "shards": SHARDS,
            "results": result,
            "by arithmetic": by_arithmetic,
        },
    )


if __name__ == "__main__":
    main()
