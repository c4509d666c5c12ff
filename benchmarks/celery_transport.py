"""Send, fetch and acknowledge messages of Celery's size: kombu's Redis transport, and shardkit's.

A message is acknowledged after it was handled, as with ``task_acks_late``. All transports take
turns in one run, on servers of the same kind. One process sends to four queues, then fetches; and
four processes at once do so, each with a queue of its own. On four servers each queue has its own.
Ratios are medians over the rounds; so is the time that the busiest server computes for a message,
which says how many messages a server can carry at most. ``MESSAGES=5000 ROUNDS=9`` for others.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import redis
from kombu import Connection, Queue
from report import conditions, save, show

import shardkit
import shardkit.integrations.celery
from shardkit import ShardMap
from shardkit.local import LocalServer

MESSAGES = int(os.environ.get("MESSAGES", "1000"))
ROUNDS = int(os.environ.get("ROUNDS", "8"))
PREFETCH = 64
BODY = [[7, "x" * 200], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
HEADERS = {
    "lang": "py",
    "task": "app.work",
    "id": "9f86d081-884c-4d65-9f86-d081884c7d65",
    "retries": 0,
    "timelimit": [None, None],
    "argsrepr": "(7,)",
    "origin": "gen1@host",
}


class Times(NamedTuple):
    """When a process began to send and to fetch, when it ended, and its CPU seconds."""

    send: tuple[float, float, float]
    fetch: tuple[float, float, float]


def configure(shard_map: str, barrier: Any = None) -> None:
    """Prepare a process, which begins when all others do."""
    global begin
    begin = barrier.wait if barrier else lambda: None
    shardkit.configure(ShardMap.parse(shard_map))


def measure(url: str, queues: list[str], messages: int) -> Times:
    """Send messages, then fetch and acknowledge them."""
    with Connection(url) as connection, connection.Producer() as producer:
        names = [queues[n % len(queues)] for n in range(messages)]
        producer.publish(BODY, headers=HEADERS, routing_key=names[0])  # connects
        channel = connection.channel()
        channel.basic_get(names[0], no_ack=True)
        begin()
        began, cpu = time.perf_counter(), time.process_time()
        for name in names:
            producer.publish(BODY, headers=HEADERS, routing_key=name)
        send = began, time.perf_counter(), time.process_time() - cpu
        left = [messages]

        def handle(_: Any, message: Any) -> None:
            message.ack()
            left[0] -= 1

        consumer = connection.Consumer([Queue(name) for name in queues], channel)
        consumer.qos(prefetch_count=PREFETCH)
        consumer.register_callback(handle)
        begin()
        began, cpu = time.perf_counter(), time.process_time()
        with consumer:
            while left[0]:
                connection.drain_events(timeout=10)
        fetch = began, time.perf_counter(), time.process_time() - cpu
        channel.close()
    return Times(send, fetch)


def busy(servers: list[LocalServer]) -> list[float]:
    """Return the CPU seconds of servers."""
    seconds = []
    for server in servers:
        with server.client() as client:
            cpu = client.info("cpu")
        seconds.append(cpu["used_cpu_user"] + cpu["used_cpu_sys"])
    return seconds


def figures(
    run: Callable[[], list[Times]], messages: int, servers: list[LocalServer]
) -> dict[str, float]:
    """Return messages per second, and microseconds of CPU for each."""
    before = busy(servers)
    times = run()
    computed = max(b - a for a, b in zip(before, busy(servers), strict=True))
    row = {}
    for name, parts in (
        ("sent", [each.send for each in times]),
        ("fetched", [each.fetch for each in times]),
    ):
        took = max(end for _, end, _ in parts) - min(began for began, _, _ in parts)
        row[f"{name}/s"] = messages / took
        row[f"client µs, {name}"] = 1e6 * sum(cpu for _, _, cpu in parts) / messages
    row["busiest server µs"] = 1e6 * computed / messages
    return row


def main() -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(LocalServer()) for _ in range(5)]
        entries = [{"host": "127.0.0.1", "port": server.port, "db": 1} for server in servers[1:]]
        components = {"one": {"entry": {**entries[0], "db": 2}}, "four": {"shards": entries}}
        shard_map = json.dumps({"components": components})
        configure(shard_map)
        stack.callback(shardkit.configure, None)
        place, by_shard = shardkit.default_kit().component("four").place, {}
        for n in range(100):
            by_shard.setdefault(place(f"{{q{n}}}"), f"q{n}")
        queues = list(by_shard.values())
        spawning = multiprocessing.get_context("spawn")
        options = (shard_map, spawning.Barrier(len(queues)))
        pool = stack.enter_context(spawning.Pool(len(queues), configure, options))

        def alone(url: str) -> list[Times]:
            return [measure(url, queues, MESSAGES)]

        def together(url: str) -> list[Times]:
            args = [(url, [queue], MESSAGES // len(queues)) for queue in queues]
            return pool.starmap(measure, args, chunksize=1)

        urls = {
            "kombu, one server": f"redis://{servers[0].address}/1",
            "shardkit, one server": "shardkit://one",
            "shardkit, four servers": "shardkit://four",
        }
        rounds: dict[tuple[str, int], list[dict[str, float]]] = defaultdict(list)
        for n in range(ROUNDS + 1):
            for processes, run in ((1, alone), (len(queues), together)):
                for name, url in urls.items():
                    row = figures(partial(run, url), MESSAGES, servers)
                    if n:  # the first warms up
                        rounds[name, processes].append(row)
                for server in servers:
                    with redis.Redis(port=server.port) as client:
                        client.flushall()
        rows = []
        for (name, processes), each in rounds.items():
            first = rounds["kombu, one server", processes]
            row = {"transport": name, "processes": processes}
            for field in each[0]:
                row[field] = round(statistics.median(figure[field] for figure in each), 1)
            for field in ("sent/s", "fetched/s"):
                ratios = [a[field] / b[field] for a, b in zip(each, first, strict=True)]
                row[f"{field}, ratio"] = round(statistics.median(ratios), 2)
            rows.append(row)
        result = {"conditions": conditions(), "messages": MESSAGES, "rounds": ROUNDS, "rows": rows}
        show("Celery's messages", list(rows[0]), [list(row.values()) for row in rows])
        save("celery", result)


if __name__ == "__main__":
    main()
