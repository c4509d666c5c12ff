"""What workers of both kinds have: callbacks by name, what was done, and what they log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from redis.exceptions import RedisError

from shardkit.errors import ClosedError, InvalidArgumentError, ShardKitError
from shardkit.operations.operation import Face
from shardkit.queues.task_codec import Task
from shardkit.queues.task_queues import LEASE, MOST_QUEUES, QueueOrder, TaskQueues
from shardkit.structures.base.arguments import check_integer, shown

logger = logging.getLogger("shardkit.queues")

Called = TypeVar("Called", bound=Callable[..., Any])

# For how long a worker waits for a task before it looks whether it is to stop.
TAKE_TIMEOUT = 1.0
# A server that failed is asked again after so many seconds, each time twice as many.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
# How often it is tried to say what became of a task.
TRIES = 5
MOST_CONCURRENCY = 10_000
LEAST_LEASE = 1.0
# How often whoever looks on is told, and how long a burst waits for what running tasks may queue.
PROGRESS_INTERVAL = 0.2
IDLE_IN_BURST = 0.02

# What a server that cannot be asked raises.
SERVER_ERRORS = (ShardKitError, RedisError, OSError)


@dataclass
class WorkerSummary:
    """What a worker did.

    Attributes:
        done: tasks whose callback returned.
        failed: tasks whose callback raised, or that no callback has the name of.
        released: tasks that were given back when the worker stopped.
        overtaken: tasks whose lease ended while they were worked on, and that somebody else took.
        errors: how often a server could not be asked.
    """

    done: int = 0
    failed: int = 0
    released: int = 0
    overtaken: int = 0
    errors: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return it for JSON."""
        return asdict(self)


class BaseWorker(Generic[Face]):
    """What workers of both kinds have; its arguments are those of `Worker`.

    Attributes:
        queues: the queues it serves, in order of priority.
        concurrency: how many tasks it works on at a time.
        lease: for how many seconds it leases a task, and leases it again while it works on it.
        summary: what it did so far.
        left: whether it was told twice to stop, and did not finish what it worked on.
    """

    def __init__(
        self,
        tasks: TaskQueues[Face],
        queues: QueueOrder,
        callbacks: Mapping[str, Callable[..., Any]] | None = None,
        *,
        concurrency: int = 1,
        lease: float = LEASE,
    ) -> None:
        self.tasks = tasks
        self.queues: QueueOrder = [queues] if isinstance(queues, str) else list(queues)
        if not 0 < len(self.queues) <= MOST_QUEUES:
            raise InvalidArgumentError(f"worker: queues={shown(queues)}", "name 1 to 100 queues")
        check_integer("worker", "concurrency", concurrency, 1, MOST_CONCURRENCY)
        if not isinstance(lease, int | float) or isinstance(lease, bool) or lease < LEAST_LEASE:
            raise InvalidArgumentError(f"worker: lease={shown(lease)}", "give seconds, at least 1")
        self.concurrency = concurrency
        self.lease = float(lease)
        self.summary = WorkerSummary()
        self.aborted = False
        self._callbacks: dict[str, Callable[..., Any]] = {}
        for name, callback in (callbacks or {}).items():
            self.register(name, callback)

    def register(self, name: str, callback: Callable[..., Any]) -> None:
        """Have tasks of a name call a function.

        Raises:
            InvalidArgumentError: it is no function, or the name has one already.
        """
        if not isinstance(name, str) or not name or not callable(callback):
            raise InvalidArgumentError(
                f"worker: callback {shown(name)}={shown(callback)}", "give a name and a function"
            )
        if name in self._callbacks:
            raise InvalidArgumentError(
                f"worker: callback {shown(name)} is there already", "name each function once"
            )
        self._callbacks[name] = callback

    def task(self, name: str | None = None) -> Callable[[Called], Called]:
        """Return a decorator that registers a function, by its own name if none is given."""

        def decorate(callback: Called) -> Called:
            self.register(name or str(getattr(callback, "__name__", "")), callback)
            return callback

        return decorate

    @property
    def names(self) -> list[str]:
        """The names that it has callbacks for."""
        return sorted(self._callbacks)

    # ---- what is logged and counted

    def _callback_of(self, task: Task) -> Callable[..., Any]:
        try:
            return self._callbacks[task.name]
        except KeyError:
            raise LookupError(f"no callback is registered for {shown(task.name)}") from None

    def _succeeded(self, task: Task, seconds: float, acknowledged: bool) -> None:
        self.summary.done += 1
        logger.info("%s done in %.3f s", _describe(task), seconds)
        if not acknowledged:
            self._lease_lost(task)

    def _failed(self, task: Task, error: BaseException) -> None:
        self.summary.failed += 1
        trace = None if isinstance(error, LookupError) and task.name not in self.names else error
        logger.warning("%s failed: %s", _describe(task), failure_reason(error), exc_info=trace)

    def _lease_lost(self, task: Task) -> None:
        self.summary.overtaken += 1
        logger.warning("%s took longer than its lease: somebody else does it too", _describe(task))

    def _released(self, task: Task) -> None:
        self.summary.released += 1
        logger.info("%s was given back", _describe(task))

    def _could_not_report(self, task: Task, what: str, error: BaseException) -> None:
        self.summary.errors += 1
        logger.error("%s: it could not be said that it %s: %s", _describe(task), what, error)

    def _unreachable(self, error: BaseException, pause: float) -> None:
        self.summary.errors += 1
        logger.warning("no task could be taken; again in %.1f s: %s", pause, error)


def failure_reason(error: BaseException) -> str:
    """Return why a task failed, for its dead letter."""
    return f"{type(error).__name__}: {error}"


def is_fatal(error: BaseException) -> bool:
    """Whether a worker cannot go on: its kit was closed, or it was asked for what does not fit."""
    return isinstance(error, ClosedError | InvalidArgumentError)


def _describe(task: Task) -> str:
    again = f", attempt {task.attempts}" if task.attempts > 1 else ""
    return f"task {task.name} ({task.queue} {task.id}{again})"
