"""Simulate a fleet: ever more kits of 1,000 shards on four servers, and what they cost the servers.

Real kits and servers; only the processes are simulated: each kit is what a process with one thread
has. They share a few processes, because a kit with 1,000 shards takes 1.5 MB. What each adds is
linear, so ``by arithmetic`` continues it to 10,000; `docs/connections.md` shows both.
``KITS=100,200,400,800`` for other numbers.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import redis
from report import conditions, save, show

import shardkit
from shardkit import ShardMap
from shardkit.config.store import push
from shardkit.local import LocalServer

KITS = [int(n) for n in os.environ.get("KITS", "100,200,400,800").split(",")]
HOSTS = 4  # real processes
SERVERS, SHARDS = 4, 1000
KEYS = [f"user:{n}:name" for n in range(64)]
SECONDS = 8.0
BEYOND = 10_000

Figures = dict[str, float]


def host(url: str, orders: Connection) -> None:
    """Have as many kits as it is told to; tell when all use a pushed zone."""
    with ExitStack() as stack:
        kits: list[Any] = []
        while (order := orders.recv()) is not None:
            count, zone = order
            while len(kits) < count:
                kit = stack.enter_context(shardkit.connect(url))
                kit.key_sharded("users").mget(KEYS)
                kits.append(kit)
            for kit in kits:
                while kit.topology.component("users").shards[0].zone != zone:
                    time.sleep(0.005)
            orders.send(time.monotonic())


class Fleet:
    """The servers, and the processes with kits."""

    def __init__(self, stack: ExitStack) -> None:
        limits = {"maxclients": 15_000}
        self.config = stack.enter_context(LocalServer(config=limits))
        databases = {**limits, "databases": 1 + -(-SHARDS // SERVERS)}
        self.data = [stack.enter_context(LocalServer(config=databases)) for _ in range(SERVERS)]
        self.admin = stack.enter_context(redis.Redis(port=self.config.port))
        self.at_data = stack.enter_context(redis.Redis(port=self.data[0].port))
        self.push("0")
        context = get_context("spawn")
        self._pipes = []
        for _ in range(HOSTS):
            ours, theirs = context.Pipe()
            url = f"redis://{self.config.address}"
            process = context.Process(target=host, args=(url, theirs), daemon=True)
            process.start()
            stack.callback(process.join)
            stack.callback(ours.send, None)
            self._pipes.append(ours)

    def push(self, zone: str) -> None:
        """Push the map, with this zone in the first shard's entry."""
        entries: list[dict[str, Any]] = [
            {"port": self.data[n % SERVERS].port, "db": 1 + n // SERVERS} for n in range(SHARDS)
        ]
        entries[0]["zone"] = zone
        described = json.dumps({"components": {"users": {"shards": entries}}})
        push(self.admin, ShardMap.parse(described))

    def order(self, count: int, zone: str) -> float:
        """Have as many kits, which use this zone; return when the last one does."""
        for n, pipe in enumerate(self._pipes):
            pipe.send((count // HOSTS + (n < count % HOSTS), zone))
        return max(pipe.recv() for pipe in self._pipes)

    def at_rest(self) -> Figures:
        """Return what the kits cost while nothing changes."""
        first, before = self.admin.info(), self.admin.info()
        time.sleep(SECONDS)
        now = self.admin.info()

        def grown(*names: str) -> float:
            """What has grown in a second, without the INFO that looks."""
            own = sum(before[name] - first[name] for name in names)
            return (sum(now[name] - before[name] for name in names) - own) / SECONDS

        found = {
            "config server, CPU %": 100 * grown("used_cpu_sys", "used_cpu_user"),
            "config server, commands/s": grown("total_commands_processed"),
            "config server, KB/s": grown("total_net_output_bytes") / 1e3,
        }
        for name, client in (("config server", self.admin), ("data server", self.at_data)):
            listed = [each for each in client.client_list() if "@" in each["name"]]
            found[f"{name}, connections"] = len(listed)
            found[f"{name}, client MB"] = sum(int(each["tot-mem"]) for each in listed) / 1e6
            most = Counter(each["name"].rpartition("@")[2] for each in listed)
            assert len(most) <= HOSTS
        return found

    def told(self, count: int, zone: str) -> Figures:
        """Return what it costs to tell all kits of one changed entry."""
        before = self.admin.info()
        self.push(zone)
        began = time.monotonic()
        last = self.order(count, zone)
        time.sleep(3)
        now = self.admin.info()
        cpu = sum(now[name] - before[name] for name in ("used_cpu_sys", "used_cpu_user"))
        output = now["total_net_output_bytes"] - before["total_net_output_bytes"]
        received = now["total_connections_received"] - before["total_connections_received"]
        return {
            "a change, s until the last kit uses it": last - began,
            "a change, config server's CPU s": cpu,
            "a change, MB": output / 1e6,
            "a change, connections made again": received,
        }


def main() -> None:
    """Measure, show and save."""
    found: dict[int, Figures] = {}
    with ExitStack() as stack:
        fleet = Fleet(stack)
        for n, count in enumerate(KITS):
            fleet.order(count, str(n))
            time.sleep(3)
            found[count] = fleet.at_rest() | fleet.told(count, str(n + 1))
    least, most = KITS[0], KITS[-1]
    by_arithmetic = {
        name: value + (value - found[least][name]) / max(1, most - least) * (BEYOND - most)
        for name, value in found[most].items()
        if name
        not in ("a change, s until the last kit uses it", "a change, connections made again")
    }
    show(
        f"A fleet of processes with {SHARDS:,} shards on {SERVERS} servers",
        ["", *(f"{count:,}" for count in KITS), f"{BEYOND:,}, by arithmetic"],
        [
            (name, *(found[count][name] for count in KITS), by_arithmetic.get(name, ""))
            for name in found[most]
        ],
    )
    save(
        "fleet",
        {
            "conditions": conditions() | {"load average": round(os.getloadavg()[1])},
            "shards": SHARDS,
            "servers": SERVERS,
            "figures": {
                str(count): {name: round(value, 3) for name, value in row.items()}
                for count, row in found.items()
            },
            f"{BEYOND}, by arithmetic": {
                name: round(value, 2) for name, value in by_arithmetic.items()
            },
        },
    )


if __name__ == "__main__":
    main()
