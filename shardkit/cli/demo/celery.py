"""``shardkit demo celery``: workers of Celery, one of which is killed, while their queues move."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import shardkit
from shardkit.admin.growth import start_move
from shardkit.errors import extra
from shardkit.local import LocalServers

with extra("celery", "shardkit demo celery"):
    from celery import Celery

    import shardkit.integrations.celery

LEASE, PATIENCE = 2, 60.0  # seconds; the latter for the last tasks
QUEUES = ("mail", "images", "reports", "search")
TASKS_MAP = """
config_server: {port: 7100}
defaults: {host: 127.0.0.1}
components:
  jobs: {shards: {count: 4, over: [{port: 7101, db: 1}]}}
  other: {entry: {port: 7102}}
  done: {entry: {port: 7102, db: 1}}
"""

# The workers' application; the others only send tasks by name.
app = Celery("demo", set_as_current=False)
app.conf.update(
    broker_url="shardkit://jobs",
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=4,
    broker_transport_options={"lease": LEASE},
    broker_connection_retry_on_startup=True,
)


@app.task(name="work")  # type: ignore[untyped-decorator]
def work(number: int) -> None:
    """Do nothing for a moment, and note that it was done."""
    time.sleep(0.01)
    client: Any = shardkit.default_kit().client("done")
    client.hincrby("runs", number, 1)


@dataclass
class TasksRun:
    """What was seen of tasks; times are in seconds since the start."""

    sent: int
    ran: int = 0
    lost: int = 0  # how many did not run
    again: int = 0  # how many ran more than once
    slices: tuple[int, ...] = ()  # how many ran until the end of each second
    moved: tuple[float, float] = (0.0, 0.0)  # from when to when queues moved
    killed: float = 0.0  # when a worker was killed


def run_tasks(url: str, servers: LocalServers, count: int) -> TasksRun:
    """Send tasks, move their queues and kill a worker, and return what was seen."""
    assert servers.config_server is not None
    run, environment = TasksRun(count), {**os.environ, "SHARDKIT_CONFIG": url}
    with ExitStack() as stack:
        kit = stack.enter_context(shardkit.connect(url))
        config = stack.enter_context(servers.config_server.client())

        def start() -> subprocess.Popen[bytes]:
            words = ["-A", __name__, "worker", "-c", "2", "-Q", ",".join(QUEUES), "-l", "ERROR"]
            worker = subprocess.Popen(
                [sys.executable, "-m", "celery", *words, "-n", f"w{time.monotonic_ns()}@demo"],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(worker.wait)
            stack.callback(worker.kill)
            return worker

        done: Any = kit.client("done")
        workers = [start(), start()]
        shardkit.configure(url)
        stack.callback(shardkit.configure)
        began, slices = time.monotonic(), [0]

        def note() -> float:
            now = time.monotonic() - began
            slices.extend([slices[-1]] * (int(now) + 1 - len(slices)))
            slices[-1] = int(done.hlen("runs"))
            return now

        with app.connection_for_write() as connection:
            for number in range(count):
                queue = QUEUES[number % len(QUEUES)]
                app.send_task("work", (number,), queue=queue, connection=connection)
        while slices[-1] < count / 4 and note() < PATIENCE:
            time.sleep(0.05)
        at = note()
        shards = [f"jobs:{n}" for n in range(4)]
        with ThreadPoolExecutor(1) as threads:
            moving = threads.submit(start_move, config, shards, servers.servers[-1].address)
            while not moving.done():
                note()
                time.sleep(0.05)
        moving.result()
        run.moved = at, note()
        workers[0].kill()
        run.killed = note()
        start()
        while slices[-1] < count and note() < run.killed + PATIENCE:
            time.sleep(0.05)
        runs = [int(times) for times in done.hvals("runs")]
        run.ran, run.lost, run.again = len(runs), count - len(runs), sum(n > 1 for n in runs)
        run.slices = tuple(slices)
    return run
