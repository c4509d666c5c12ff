"""For how long single calls hold the server of a list of a million values.

Each call is sent exchange by exchange; between two of them the server is asked for how much
processor time its main thread has used. What a call holds the server for is the most that any of
its scripts used: others are served in between.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from typing import Any

import redis
from memory_set import version
from report import conditions, save, show

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalServer
from shardkit.operations.operation import pages

VALUES = 1_000_000
# In order; each leaves as much as the next one needs. A value in two is "even".
CALLS: dict[str, Callable[[Any], Any]] = {
    "linsert in the middle": lambda jobs: jobs.linsert("BEFORE", f"v{VALUES // 2 + 1}", "new"),
    "lrem of a value that is not there": lambda jobs: jobs.lrem(0, "none"),
    "lpos of a value that is not there": lambda jobs: jobs.lpos("none"),
    "expire": lambda jobs: jobs.expire(100_000),
    "persist": lambda jobs: jobs.persist(),
    "lrem of half of all values": lambda jobs: jobs.lrem(0, "even"),
    "ltrim by half": lambda jobs: jobs.ltrim(0, VALUES // 4 - 1),
    "delete": lambda jobs: jobs.delete(),
}


def spent(client: redis.Redis) -> float:
    """Return the milliseconds of processor time that the server's main thread has used."""
    used: Any = client.info("cpu")
    return 1000 * float(used["used_cpu_user_main_thread"] + used["used_cpu_sys_main_thread"])


def holds(kit: Any, client: redis.Redis, steps: Generator[Any, Any, Any]) -> list[float]:
    """Return the milliseconds of each exchange of a call."""
    found: list[float] = []
    try:
        step = next(steps)
        while True:
            before = spent(client)
            reply = kit.driver._run_step(step)
            found.append(spent(client) - before)
            step = steps.send(reply)
    except StopIteration:
        return found


def main() -> None:
    rows: dict[str, list[float]] = {}
    with LocalServer() as server, server.client() as client:
        entry = {"port": server.port, "socket_timeout": 60}
        text = json.dumps({"components": {"own": {"entry": entry}}})
        with shardkit.connect(ShardMap.parse(text)) as kit:
            jobs = kit.list("jobs", component="own")
            values = ("even" if n % 2 == 0 else f"v{n}" for n in range(VALUES))
            for page in pages(values, 5_000):
                jobs.rpush(*page)
            for name, call in CALLS.items():
                each = holds(kit, client, call(jobs.deferred))
                rows[name] = [len(each), round(max(each), 1), round(sum(each), 1)]
        about = conditions(version(server.binary))
    show(
        f"A list of {VALUES:,} values: milliseconds of the server's processor",
        ["call", "exchanges", "the longest", "all"],
        [(name, *row) for name, row in rows.items()],
    )
    save("list_holds", {"values": VALUES, "milliseconds": rows, "conditions": about})


if __name__ == "__main__":
    main()
