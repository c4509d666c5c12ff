"""Send, fetch and acknowledge messages of Celery's size: kombu's Redis transport, and shardkit's.

All take turns in one run, on servers of the same kind; one process sends to four queues, then
fetches. On four servers each queue has its own. Ratios are medians over the rounds.
``MESSAGES=5000 ROUNDS=9`` for others.
"""

from __future__ import annotations

import os
import statistics
import time
from contextlib import ExitStack
from typing import Any

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


def measure(url: str, queues: list[str]) -> dict[str, float]:
    """Return messages per second, and microseconds of the client's CPU for each."""
    with Connection(url) as connection, connection.Producer() as producer:
        names = [queues[n % len(queues)] for n in range(MESSAGES)]
        producer.publish(BODY, headers=HEADERS, routing_key=names[0])  # connects
        channel = connection.channel()
        channel.basic_get(names[0], no_ack=True)
        began, cpu = time.perf_counter(), time.process_time()
        for name in names:
            producer.publish(BODY, headers=HEADERS, routing_key=name)
        sent, sent_cpu = time.perf_counter() - began, time.process_time() - cpu
        left = [MESSAGES]

        def handle(_: Any, message: Any) -> None:
            message.ack()
            left[0] -= 1

        consumer = connection.Consumer([Queue(name) for name in queues], channel)
        consumer.qos(prefetch_count=PREFETCH)
        consumer.register_callback(handle)
        began, cpu = time.perf_counter(), time.process_time()
        with consumer:
            while left[0]:
                connection.drain_events(timeout=10)
        fetched, fetched_cpu = time.perf_counter() - began, time.process_time() - cpu
        channel.close()
    return {
        "sent/s": MESSAGES / sent,
        "fetched/s": MESSAGES / fetched,
        "CPU µs to send": 1e6 * sent_cpu / MESSAGES,
        "CPU µs to fetch": 1e6 * fetched_cpu / MESSAGES,
    }


def main() -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(LocalServer()) for _ in range(5)]
        entries = [{"host": "127.0.0.1", "port": server.port, "db": 1} for server in servers[1:]]
        components = {"one": {"entry": {**entries[0], "db": 2}}, "four": {"shards": entries}}
        shardkit.configure(ShardMap.decode(repr({"components": components}).encode(), "map"))
        stack.callback(shardkit.configure, None)
        place, by_shard = shardkit.default_kit().component("four").place, {}
        for n in range(100):
            by_shard.setdefault(place(f"{{q{n}}}"), f"q{n}")
        queues = list(by_shard.values())
        urls = {
            "kombu, one server": f"redis://{servers[0].address}/1",
            "shardkit, one server": "shardkit://one",
            "shardkit, four servers": "shardkit://four",
        }
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in urls}
        for n in range(ROUNDS + 1):
            for name, url in urls.items():
                figures = measure(url, queues)
                if n:  # the first warms up
                    rounds[name].append(figures)
            for server in servers:
                with redis.Redis(port=server.port) as client:
                    client.flushall()
        first = rounds["kombu, one server"]
        rows = []
        for name, each in rounds.items():
            row: dict[str, Any] = {"transport": name}
            for field in each[0]:
                row[field] = round(statistics.median(figures[field] for figures in each), 1)
            for field in ("sent/s", "fetched/s"):
                ratios = [a[field] / b[field] for a, b in zip(each, first, strict=True)]
                row[f"{field}, ratio"] = round(statistics.median(ratios), 2)
            rows.append(row)
        result = {"conditions": conditions(), "messages": MESSAGES, "rounds": ROUNDS, "rows": rows}
        show("Celery's messages", list(rows[0]), [list(row.values()) for row in rows])
        save("celery", result)


if __name__ == "__main__":
    main()
