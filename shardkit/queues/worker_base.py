"""The common part of blocking and async workers: callbacks by name, counts, and the log."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from redis.exceptions import RedisError

from shardkit import log_records
from shardkit.callbacks import check_runs, makes
from shardkit.errors import ClosedError, InvalidArgumentError, NewerFormatError, ShardKitError
from shardkit.operations.arguments import Seconds, shown
from shardkit.operations.lanes import Job
from shardkit.operations.operation import Face, Operation
from shardkit.queues.commands import Acknowledged
from shardkit.queues.task_codec import Task
from shardkit.queues.task_queues import (
    LEASE,
    LONGEST_REASON,
    LONGEST_TIME,
    MOST_QUEUES,
    QueueOrder,
    TaskQueues,
)
from shardkit.structures.base.arguments import check_integer, check_seconds

logger = logging.getLogger("shardkit.queues")

Called = TypeVar("Called", bound=Callable[..., Any])

# Seconds to wait for a task before checking whether to stop.
TAKE_TIMEOUT = 1.0
# Seconds until the retry after a failed server, doubled each time.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
# Attempts to report the outcome of a task.
TRIES = 5
MOST_CONCURRENCY = 10_000
LEAST_LEASE = 1.0
LIVE_FOR = 60.0  # seconds without asking for tasks, or running any, after which it is stuck
# Seconds between calls of on_progress, and of waiting for tasks that running tasks may queue.
PROGRESS_INTERVAL = 0.2
IDLE_IN_BURST = 0.02

# Errors of an unreachable server.
SERVER_ERRORS = (ShardKitError, RedisError, OSError)


@dataclass
class WorkerSummary:
    """The work of a worker.

    Attributes:
        done: tasks whose callback returned.
        failed: tasks whose callback raised.
        released: requeued tasks: the worker stopped, or lacks their function.
        overtaken: tasks that another worker took, because their lease ended while they ran.
        errors: calls that failed because a server was unreachable.
    """

    done: int = 0
    failed: int = 0
    released: int = 0
    overtaken: int = 0
    errors: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return a dictionary for JSON."""
        return asdict(self)


class BaseWorker(Generic[Face]):
    """The common part of blocking and async workers; see `Worker`."""

    def __init__(
        self,
        tasks: TaskQueues[Face],
        queues: QueueOrder,
        callbacks: Mapping[str, Callable[..., Any]] | None = None,
        *,
        concurrency: int = 1,
        lease: Seconds = LEASE,
    ) -> None:
        self.tasks = tasks
        self.queues: QueueOrder = [queues] if isinstance(queues, str) else list(queues)
        if not 0 < len(self.queues) <= MOST_QUEUES:
            raise InvalidArgumentError(f"worker: queues={shown(queues)}", "give 1 to 100 queues")
        check_integer("worker", "concurrency", concurrency, 1, MOST_CONCURRENCY)
        self.concurrency = concurrency
        self.lease = check_seconds("worker", "lease", lease, LEAST_LEASE, LONGEST_TIME)
        self.summary = WorkerSummary()
        self.aborted = False
        self._running: dict[int, Task] = {}  # by thread or slot
        self._asked_at = time.monotonic()
        self._failing, self._is_failing = threading.Lock(), False  # whether taking tasks fails
        self._callbacks: dict[str, Callable[..., Any]] = {}
        for name, callback in (callbacks or {}).items():
            self.register(name, callback)
        self._reset()

    _awaits = False  # whether callbacks may be coroutine functions

    def _reset(self) -> None:
        """Prepare for a run."""
        raise NotImplementedError

    def register(self, name: str, callback: Callable[..., Any]) -> None:
        """Register the function that tasks with a name call.

        Raises:
            InvalidArgumentError: it is not a function that runs when it is called, or the name is
                taken.
        """
        if not isinstance(name, str) or not name or not callable(callback):
            raise InvalidArgumentError(
                f"worker: callback {shown(name)}={shown(callback)}", "give a name and a function"
            )
        if not (self._awaits and makes(callback) == "a coroutine"):
            check_runs("worker", f"callback {shown(name)}", callback)
        if name in self._callbacks:
            raise InvalidArgumentError(
                f"worker: callback {shown(name)} is already registered",
                "use another name",
            )
        self._callbacks[name] = callback

    def task(self, name: str | None = None) -> Callable[[Called], Called]:
        """Return a decorator that registers a function, by default under its own name."""

        def decorate(callback: Called) -> Called:
            self.register(name or str(getattr(callback, "__name__", "")), callback)
            return callback

        return decorate

    @property
    def names(self) -> list[str]:
        """The names of the registered callbacks."""
        return sorted(self._callbacks)

    # ---- counting and logging

    def _callback_of(self, task: Task) -> Callable[..., Any]:
        try:
            return self._callbacks[task.name]
        except KeyError:
            raise NewerFormatError(
                f"task {shown(task.name)} has no registered callback",
                "register it, or start a worker that has it",
            ) from None

    def _succeeded(self, task: Task, seconds: float, acknowledged: Acknowledged | None) -> None:
        self.summary.done += 1
        about = _about("task-done", task, seconds=seconds)
        logger.info("%s done in %.3f s", _describe(task), seconds, extra=about)
        if acknowledged is Acknowledged.CLAIM_LOST:
            self.summary.overtaken += 1
            text = "%s: its lease ended, and another worker runs it too"
            logger.warning(text, _describe(task), extra=_about("task-overtaken", task))
        elif acknowledged is Acknowledged.GONE:
            logger.warning(
                "%s is done, but no longer in its queue: it was already acknowledged, or the queue "
                "was purged or moved to another server",
                _describe(task),
                extra=_about("task-gone", task),
            )

    def _failed(self, task: Task, error: BaseException) -> None:
        self.summary.failed += 1
        about = _about("task-failed", task, error=type(error).__name__)
        text, reason = "%s failed: %s", _failure_reason(error)
        logger.warning(text, _describe(task), reason, exc_info=error, extra=about)

    def _released(self, task: Task) -> None:
        self.summary.released += 1
        logger.info("%s was requeued", _describe(task), extra=_about("task-requeued", task))

    def _outcome(self, task: Task, error: BaseException | None) -> tuple[str, Callable[[], Any]]:
        """Log how a task has failed, if it has; return its outcome, and what reports it."""
        tasks: Any = self.tasks
        if error is None:
            return "is done", lambda: tasks._acknowledge(task)
        if isinstance(error, NewerFormatError):
            self.summary.released += 1
            text, left = "%s is left to other workers for %g s: %s", tasks.unknown_delay
            about = _about("task-left", task)
            logger.warning(text, _describe(task), left, error, extra=about)
            return "was requeued", lambda: tasks.release(task, delay=tasks.unknown_delay)
        self._failed(task, error)
        reason, trace = _failure_reason(error), _traceback_of(error)
        return "failed", lambda: tasks.fail(task, reason, traceback=trace)

    def _renewals(self) -> Iterator[Job]:
        """Yield the renewals of running tasks' leases."""
        for task in list(self._running.values()):
            key = self.tasks._keys(task.queue).waiting
            yield Job(self.tasks.component, key, self._renewed(task), lambda: self.lease / 3)

    def _renewed(self, task: Task) -> Operation[None]:
        try:
            yield from self.tasks.deferred.extend(task, self.lease)
        except SERVER_ERRORS as error:
            self._could_not_report(task, "still runs", error)

    def _pause_before_report(
        self, task: Task, what: str, error: BaseException, attempt: int
    ) -> float | None:
        """Return the seconds until an outcome is reported again; None if it is given up."""
        if attempt == TRIES or _is_fatal(error):
            self._could_not_report(task, what, error)
            return None
        return FIRST_PAUSE * 2.0 ** (attempt - 1)

    def _could_not_report(self, task: Task, what: str, error: BaseException) -> None:
        self.summary.errors += 1
        about = _about("task-not-reported", task, cause=str(error))
        text = "%s: could not report that it %s: %s"
        logger.error(text, _describe(task), what, error, extra=about)

    def _pause_after(self, error: Exception, failures: int, began: float, *, burst: bool) -> float:
        """Return the seconds to wait after failures to take a task, or raise the last error.

        None if the attempt took its time: perhaps there are servers that answer.
        """
        if _is_fatal(error) or (burst and failures == TRIES):
            raise error
        pause = min(FIRST_PAUSE * 2.0 ** min(failures - 1, 10), LONGEST_PAUSE)
        if time.monotonic() - began >= TAKE_TIMEOUT:
            pause = 0.0
        self.summary.errors += 1
        self._asked_at = time.monotonic()
        with self._failing:  # of many threads one logs it, and once until tasks are taken again
            is_news, self._is_failing = not self._is_failing, True
        if is_news:
            about = log_records.fields("worker-cannot-take", cause=str(error))
            logger.warning("cannot take tasks, and tries again: %s", error, extra=about)
        return pause

    @property
    def is_live(self) -> bool:
        """Whether it runs tasks, or has asked for some in the last minute: for liveness probes."""
        return bool(self._running) or time.monotonic() - self._asked_at < LIVE_FOR

    def _took(self) -> None:
        """Note that a call to take a task was answered."""
        self._asked_at = time.monotonic()
        if self._is_failing:
            with self._failing:
                is_news, self._is_failing = self._is_failing, False
            if is_news:
                logger.warning("takes tasks again", extra=log_records.fields("worker-takes-again"))


def _failure_reason(error: BaseException) -> str:
    """Return why a task failed, for its dead letter.

    The error is a callback's: its ``__str__`` may raise, or return a long text.
    """
    name = type(error).__name__
    try:
        reason = f"{name}: {error}"[:LONGEST_REASON]
        return reason.encode(errors="replace").decode()  # lone surrogates are no text
    except BaseException as raised:  # even SystemExit must not end the worker
        return f"{name}, without its text: __str__ raises {type(raised).__name__}"


def _traceback_of(error: BaseException) -> str:
    """Return where a task failed: the frames below the worker's own, as Python prints them."""
    trace = error.__traceback__
    below = trace.tb_next if trace is not None else None
    lines = traceback.format_exception(type(error), error, below or trace)
    return "".join(lines).encode(errors="replace").decode()  # lone surrogates are no text


def _is_fatal(error: BaseException) -> bool:
    """Return whether a worker must end: its kit was closed, or its arguments are wrong."""
    return isinstance(error, ClosedError | InvalidArgumentError)


def _about(event: str, task: Task, **more: object) -> dict[str, dict[str, Any]]:
    """Return the fields of a log record about a task."""
    named = {"task": task.name, "queue": task.queue, "id": task.id, "attempt": task.attempts}
    return log_records.fields(event, **named, **more)


def _describe(task: Task) -> str:
    again = f", attempt {task.attempts}" if task.attempts > 1 else ""
    return f"task {task.name} ({task.queue} {task.id}{again})"
