"""What idle processes cost the config server: told of changes, and reading every second.

Each process uses one component of 1,000 shards. ``PROCESSES=1,20,200`` for others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from report import bars, conditions, save, show

from shardkit import ShardMap
from shardkit.admin import push
from shardkit.local import LocalServer

PROCESSES = [int(n) for n in os.environ.get("PROCESSES", "1,4,16").split(",")]
SHARDS, SECONDS = 1000, 4.0
PROGRAM = """
import sys, shardkit
from shardkit.topology import ConfigServer
if sys.argv[2] == "read":
    ConfigServer.feed = lambda self: None
with shardkit.connect(sys.argv[1]) as kit:
    kit.key_sharded("users")["a"].get("a")
    print("ready", flush=True)
    sys.stdin.read()
"""


def measure(server: LocalServer, processes: int, how: str) -> dict[str, float]:
    """Return the config server's CPU in percent, and the bytes and commands of a second."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, f"redis://{server.address}", how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(processes)
    ]
    try:
        for each in running:
            assert each.stdout is not None
            each.stdout.readline()
        with server.client() as client:
            time.sleep(1.5)
            before, began = client.info(), time.monotonic()
            time.sleep(SECONDS)
            now, took = client.info(), time.monotonic() - began
    finally:
        for each in running:
            each.communicate()

    def grown(*names: str) -> float:
        return sum(float(now[name]) - float(before[name]) for name in names) / took

    return {
        "cpu": 100 * grown("used_cpu_sys", "used_cpu_user"),
        "bytes": grown("total_net_output_bytes"),
        "commands": grown("total_commands_processed"),
    }


def main() -> None:
    """Measure, show and save."""
    result: dict[str, dict[str, dict[str, float]]] = {"read": {}, "told": {}}
    with LocalServer() as server, server.client() as client:
        entries = [{"port": server.port, "db": 1 + n % 10} for n in range(SHARDS)]
        text = json.dumps({"components": {"users": {"shards": entries}}})
        push(client, ShardMap.parse(text))
        for how in result:
            for count in PROCESSES:
                result[how][str(count)] = measure(server, count, how)
    rows = [
        (f"{count} processes, {how}", *(round(value, 2) for value in found.values()))
        for how, of_counts in result.items()
        for count, found in of_counts.items()
    ]
    show("An idle config server", ["", "CPU %", "bytes/s", "commands/s"], rows)
    save("config_server", {"conditions": conditions(), "shards": SHARDS, "results": result})
    bars(
        "config_server",
        "The config server's CPU, by idle processes of 1,000 shards",
        {label: float(cpu) for label, cpu, *_ in rows},
        "percent of a core",
    )


if __name__ == "__main__":
    main()
