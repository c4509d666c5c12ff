"""A fleet of real servers with data of every kind that the dashboard shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from faces import eventually

import shardkit
from shardkit import ShardKit, ShardMap, events
from shardkit.admin import push
from shardkit.dashboard import FleetWatch
from shardkit.local import LocalServer, LocalServers
from shardkit.queues import NewTask

HOSTILE = "<img src=x onerror=alert(1)>"
MAP = """
config_server: {port: 7000}
defaults: {password: "a-secret"}
components:
  users: {shards: {count: 8, over: [{port: 7001}, {port: 7002}]}}
  jobs: {entry: {port: 7001, db: 9}}
"""


@dataclass
class Shown:
    """A fleet, its kit and its servers."""

    fleet: FleetWatch
    kit: ShardKit
    servers: LocalServers
    url: str

    def server(self, number: int) -> LocalServer:
        return self.servers.server_of("users", number)


def until(true: Callable[[], object], seconds: float = 30) -> None:
    """Wait until something is true."""
    assert eventually(true, seconds), "it did not come"


def record(kit: ShardKit) -> None:
    """Record what the view of metrics shows."""
    hits = kit.counters(component="users")
    hits.add_many({"page:/": 7, HOSTILE: 3})
    latencies = kit.statistics(component="users")
    for seconds in (0.25, 0.5, 4.0):
        latencies.update("shop", "latency", seconds)
    kit.logs(component="jobs").log("shop", f"refused {HOSTILE}", "error")


def heat_up(kit: ShardKit) -> None:
    """Use keys, tags, a structure and a function: ``hot:0`` most, ``hot:19`` least."""
    router, ids = kit.key_sharded("users"), kit.set("ids", component="users", members=int)

    @kit.sharded_connection("users")
    def visit(conn: Any, who: str) -> None:
        conn.get(who)

    until(lambda: any("HeatCounter" in repr(each) for each in events.handlers))
    for name, count in hottest().items():
        for _ in range(count):
            router.get(name)
    for n in range(10):
        router.get(f"{{{HOSTILE}}}:{n}")
        ids.sismember(n)
        visit(f"visitor:{n}")


def hottest() -> Counter[str]:
    """Return how often `heat_up` uses each key."""
    return Counter({f"hot:{n}": 100 - 4 * n for n in range(20)})


@contextmanager
def shown_fleet() -> Iterator[Shown]:
    with LocalServers(ShardMap.parse(MAP), ports="free") as servers:
        config = servers.shard_map.config_server
        assert config is not None
        url = config.url()
        assert servers.config_server is not None
        with servers.config_server.client() as client:
            push(client, servers.shard_map, message="the first")
        with shardkit.connect(url) as kit:
            router = kit.key_sharded("users")
            router.mset({f"user:{n}": str(n) for n in range(200)})
            kit.set("ids", component="users", members=int).sadd_many(range(1000))
            tasks = kit.queues(component="jobs", attempts=1)
            tasks.enqueue_many("email", [NewTask("welcome", [HOSTILE])] * 3)
            task = tasks.take("email")
            assert task is not None
            tasks.fail(task, f"ValueError: {HOSTILE}")
            kit.lock(HOSTILE, component="jobs").acquire(ttl=600)
            record(kit)
            with servers.server_of("users", 1).client() as plain:
                plain.config_set("slowlog-log-slower-than", 0)
                plain.hgetall("report:2026-11")
                plain.config_set("slowlog-log-slower-than", 10_000)
            with shardkit.connect(url, heat=1) as hot:
                heat_up(hot)
            with closing(FleetWatch(kit, config, interval=0.2)) as fleet:
                until(lambda: len(fleet.servers) == 3)
                until(lambda: all(each.samples for each in fleet.servers.values()))
                until(lambda: b'"name":"users"' in fleet.summary)
                yield Shown(fleet, kit, servers, url)
