"""Lanes: the background jobs of each server run by themselves.

::

    due:  a ─┐ server 1 ── together ──► answered          one thread for each server that is asked;
          b ─┘                                            on an event loop, one task for each job
          c ── server 2 ── together ─ ─ ─ no answer
          d ── server 2: waits for that thread

A server that does not answer delays only its own jobs. See docs/guarantees.md for who uses lanes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

from shardkit import log_records
from shardkit.errors import ClosedError
from shardkit.operations.commands import Key, To
from shardkit.operations.deadlines import DeadlineBlock
from shardkit.operations.forks import renewed_in_children
from shardkit.operations.operation import Operation

logger = logging.getLogger("shardkit")


class Job(NamedTuple):
    """An operation on one server, which handles the errors of servers itself.

    Attributes:
        to, key: where it goes; see `Command`.
        seconds: returns when it starts how long it may take; by default as long as it needs.
    """

    to: To
    key: Key
    steps: Operation[Any]
    seconds: Callable[[], float] = lambda: math.inf


class Lanes:
    """Runs jobs in a daemon thread for each server, those of a server together. Thread-safe."""

    def __init__(self, driver: Any, name: str) -> None:
        self._driver = driver
        self._name = name
        self.after_fork()
        renewed_in_children(self)

    def after_fork(self) -> None:
        """Start over in a forked child, which has no threads."""
        self._lock = threading.Lock()
        self._jobs: dict[Hashable, list[Job]] = {}  # for each thread to do next, by server
        self._threads: dict[Hashable, threading.Thread] = {}

    def start(self, jobs: Iterable[Job]) -> list[threading.Thread]:
        """Have jobs run; return the threads that run them, which end when nothing is left."""
        placed = [(self._driver.link.server_of(job.to, job.key), job) for job in jobs]
        unable = []
        with self._lock:
            for server, job in placed:
                self._jobs.setdefault(server, []).append(job)
                if server not in self._threads:
                    self._threads[server] = thread = threading.Thread(
                        target=self._run, args=(server,), name=self._name, daemon=True
                    )
                    try:
                        thread.start()
                    except RuntimeError:  # no more can be started
                        unable.append(server)
            used = [self._threads[server] for server in dict(placed) if server not in unable]
        for server in unable:
            self._run(server)
        return used

    def _run(self, server: Hashable) -> None:
        while True:
            with self._lock:
                jobs = self._jobs.pop(server, [])
                if not jobs:
                    del self._threads[server]
                    return
            try:
                with DeadlineBlock(min(job.seconds() for job in jobs)):
                    self._driver.together(*(job.steps for job in jobs))
            except Exception:  # the thread serves others
                _log_fault(self._name)


class AsyncLanes:
    """Runs each job in a task of the running event loop; the arguments are those of `Lanes`."""

    def __init__(self, driver: Any, name: str) -> None:
        self._driver = driver
        self._name = name
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, jobs: Iterable[Job]) -> None:
        """Have jobs run."""
        for job in jobs:
            task = asyncio.get_running_loop().create_task(self._run(job), name=self._name)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, job: Job) -> None:
        try:
            with DeadlineBlock(job.seconds()):
                await self._driver.run(job.steps)
        except ClosedError:  # the kit ends, as the job knows
            pass
        except Exception:
            _log_fault(self._name)

    def close(self) -> None:
        """Cancel what runs. Call it on the event loop."""
        for task in list(self._tasks):
            task.cancel()


def _log_fault(name: str) -> None:
    about = log_records.fields("background-failed", job=name)
    logger.exception("%s: an exchange in the background failed", name, extra=about)
