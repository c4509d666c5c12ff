"""A worker: takes tasks and calls functions, in threads, until it is stopped.

Each thread takes a task, calls its function, acknowledges it, and takes the next. Another thread
renews the leases of running tasks. SIGTERM and SIGINT stop the worker: it finishes running tasks,
and requeues tasks taken at that moment. At a second signal it requeues running tasks without
waiting, so they may run twice.

On an event loop `AsyncWorker` does the same, with asyncio tasks for threads. docs/queues.md says
what becomes of a task whose function raises, or is not registered.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from redis.exceptions import RedisError

from shardkit import log_records
from shardkit.callbacks import check_ran, check_runs, makes
from shardkit.errors import ClosedError, InvalidArgumentError, NewerFormatError, ShardKitError
from shardkit.operations.arguments import Seconds, check_calls, shown
from shardkit.operations.deadlines import DeadlineBlock
from shardkit.operations.lanes import AsyncLanes, Job, Lanes
from shardkit.operations.operation import Awaiting, Blocking, Face, Operation
from shardkit.operations.steps import arun_steps, run_steps, sleep
from shardkit.queues.claim import PATIENCE
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
T = TypeVar("T")
Steps: TypeAlias = Generator[Callable[[], Any], Any, T]
"""Yield what to call, or to await."""

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
        queues: str | QueueOrder,
        callbacks: Mapping[str, Callable[..., Any]] | None = None,
        *,
        concurrency: int = 1,
        lease: Seconds = LEASE,
    ) -> None:
        self.tasks = tasks
        self.queues: QueueOrder = [queues] if isinstance(queues, str) else list(queues)
        if not 0 < len(self.queues) <= MOST_QUEUES:
            raise InvalidArgumentError(f"worker: queues={shown(queues)}", "give 1 to 100 queues")
        # Whether they may be on several servers.
        self._several = len(self.queues) > 1 or not isinstance(self.queues[0], str)
        check_integer("worker", "concurrency", concurrency, 1, MOST_CONCURRENCY)
        self.concurrency = concurrency
        self.lease = check_seconds("worker", "lease", lease, LEAST_LEASE, LONGEST_TIME)
        self.summary = WorkerSummary()
        self.aborted = False
        self._running: dict[int, Task] = {}  # by thread or slot
        self._polled_at = time.monotonic()
        self._failing, self._is_failing = threading.Lock(), False  # whether taking tasks fails
        self._callbacks: dict[str, Callable[..., Any]] = {}
        for name, callback in (callbacks or {}).items():
            self.register(name, callback)
        self._reset()

    _awaits = False  # whether callbacks may be coroutine functions

    def _reset(self) -> None:
        raise NotImplementedError

    def register(self, name: str, callback: Callable[..., Any]) -> None:
        """Register what tasks with a name call; refuse a function that a call does not run."""
        if not name:
            raise InvalidArgumentError("worker: a callback's name is empty", "give a name")
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
        elif acknowledged is Acknowledged.MISSING:
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

    # ---- what a thread or a task does

    _stopping: Any
    _take: Callable[[bool], Any]
    _pause: Callable[[float], Any]
    _sleep: Callable[[float], Any]
    _handle: Callable[[int, Task], Any]
    _beside: Callable[[Steps[Any]], Any]

    def _serve(self, slot: int, burst: bool) -> Steps[None]:
        """Take tasks and handle them, until stopped."""
        tasks: Any = self.tasks
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                task = yield partial(self._take, burst)
            except SERVER_ERRORS as error:
                failures += 1
                pause = self._pause_after(error, failures, began, burst=burst)
                yield partial(self._pause, pause)
                continue
            failures = 0
            self._polled_at = time.monotonic()
            if self._is_failing:
                with self._failing:
                    is_news, self._is_failing = self._is_failing, False
                if is_news:
                    about = log_records.fields("worker-takes-again")
                    logger.warning("takes tasks again", extra=about)
            if task is not None and self._stopping.is_set():
                release = partial(tasks.release, task)
                if (yield from self._report(task, "was requeued", release)):
                    self._released(task)
            elif task is not None:
                yield partial(self._handle, slot, task)
            elif burst:
                if not self._running:
                    return
                yield partial(self._pause, IDLE_IN_BURST)  # running tasks may queue more

    def _end(self, task: Task, error: BaseException | None, seconds: float) -> Steps[None]:
        reported = yield from self._report(task, *self._outcome(task, error))
        if error is None:
            self._succeeded(task, seconds, reported)

    def _report(
        self, task: Task, what: str, report: Callable[[], Any], first: int = 1
    ) -> Steps[Any]:
        """Report what became of a task, with retries; None if no server could be reached.

        Other servers may have tasks, so retries are made beside them.
        """
        for attempt in range(first, TRIES + 1):
            try:
                with DeadlineBlock(PATIENCE) if self._several else nullcontext():
                    return (yield report)
            except SERVER_ERRORS as error:
                if attempt == TRIES or _is_fatal(error):
                    self._could_not_report(task, what, error)
                    return None
            if self._several and attempt == 1:
                yield partial(self._beside, self._report(task, what, report, 2))
                return None
            yield partial(self._sleep, FIRST_PAUSE * 2.0 ** (attempt - 1))
        return None

    def _requeue(self, task: Task) -> Steps[None]:
        """Requeue a task that runs, without waiting for it."""
        tasks: Any = self.tasks
        try:
            if (yield partial(tasks.release, task)):
                self._released(task)
        except SERVER_ERRORS as error:
            self._could_not_report(task, "was requeued", error)

    def _renewals(self) -> Iterator[Job]:
        for task in list(self._running.values()):
            key = self.tasks._keys(task.queue).waiting
            yield Job(self.tasks.component, key, self._renewed(task), lambda: self.lease / 3)

    def _renewed(self, task: Task) -> Operation[None]:
        try:
            yield from self.tasks.deferred.extend(task, self.lease)
        except SERVER_ERRORS as error:
            self._could_not_report(task, "still runs", error)

    def _could_not_report(self, task: Task, what: str, error: BaseException) -> None:
        self.summary.errors += 1
        about = _about("task-not-reported", task, cause=str(error))
        text = "%s: could not report that it %s: %s"
        logger.error(text, _describe(task), what, error, extra=about)

    def _pause_after(self, error: Exception, failures: int, began: float, *, burst: bool) -> float:
        """Return the seconds to wait after failures to take a task, or raise the last error."""
        if _is_fatal(error) or (burst and failures == TRIES):
            raise error
        pause = min(FIRST_PAUSE * 2.0 ** min(failures - 1, 10), LONGEST_PAUSE)
        if time.monotonic() - began >= TAKE_TIMEOUT:
            pause = 0.0  # perhaps there are servers that answer
        self.summary.errors += 1
        self._polled_at = time.monotonic()
        with self._failing:  # of many threads one logs it, and once until tasks are taken again
            is_news, self._is_failing = not self._is_failing, True
        if is_news:
            about = log_records.fields("worker-cannot-take", cause=str(error))
            logger.warning("cannot take tasks, and tries again: %s", error, extra=about)
        return pause

    @property
    def is_live(self) -> bool:
        """Whether it runs tasks, or has asked for some in the last minute: for liveness probes."""
        return bool(self._running) or time.monotonic() - self._polled_at < LIVE_FOR


check_calls(BaseWorker, "__init__")


class Worker(BaseWorker[Blocking]):
    """Runs tasks in threads.

    Args:
        tasks: the queues, as ``kit.queues`` of a blocking kit returns them.
        queues: the names of the queues to serve, in order of priority; see `TaskQueues.take`.
        callbacks: functions by name; `task` and `register` add more. They are called with a task's
            arguments, up to ``concurrency`` at a time. Generators and ``async def`` are refused.
        concurrency: the most tasks that run at a time.
        lease: the seconds that a task is leased, renewed every third of that while it runs. If the
            process dies, another worker takes the task after that time.

    Attributes:
        queues, concurrency, lease: see the arguments.
        aborted: whether it was told twice to stop, and requeued running tasks.
    """

    _sleep = staticmethod(sleep)

    def _reset(self) -> None:
        self._stopping = threading.Event()
        self._aborting = threading.Event()
        self._lock = threading.Lock()
        self._fatal: BaseException | None = None
        self._late: list[threading.Thread] = []  # report what could not be reported at once
        self.aborted = False

    def stop(self) -> None:
        """Take no more tasks, and stop after the running ones. Returns at once."""
        self._stopping.set()

    def run(
        self,
        *,
        burst: bool = False,
        signals: bool = True,
        on_progress: Callable[[WorkerSummary, int], object] | None = None,
    ) -> WorkerSummary:
        """Run tasks until stopped, by `stop` or a signal in the main thread; return a summary.

        Args:
            burst: return when no task is waiting, due or running; raise if five attempts in a row
                to take one fail, instead of waiting for the servers to come back.
            signals: stop at SIGTERM and SIGINT. Pass False in a program that handles them itself,
                such as a web server, and calls `stop`.
            on_progress: a plain function, called about five times a second with the summary so far
                and the number of running tasks.
        """
        check_runs("worker", "on_progress", on_progress)
        self._reset()
        renewer = threading.Thread(target=self._renew_leases, name="shardkit-leases", daemon=True)
        threads = [
            threading.Thread(target=self._work, args=(n, burst), name=f"shardkit-{n}", daemon=True)
            for n in range(self.concurrency)
        ]
        with self._signals() if signals else nullcontext():
            for thread in (renewer, *threads):
                thread.start()
            while not self._aborting.is_set() and (alive := [t for t in threads if t.is_alive()]):
                if on_progress is not None:
                    on_progress(self.summary, len(self._running))
                alive[0].join(PROGRESS_INTERVAL)
            if self._aborting.is_set():
                self.aborted = True
                with self._lock:
                    abandoned = list(self._running.values())
                    self._running.clear()
                for task in abandoned:
                    self._beside(self._requeue(task))
            self._stopping.set()
            self._aborting.set()
            renewer.join()
            until = time.monotonic() + PATIENCE
            for late in self._late:
                late.join(max(0.0, until - time.monotonic()))
        if on_progress is not None:
            on_progress(self.summary, len(self._running))
        if self._fatal is not None:
            raise self._fatal
        return self.summary

    # ---- a thread

    def _work(self, slot: int, burst: bool) -> None:
        try:
            run_steps(self._serve(slot, burst))
        except BaseException as error:  # run() raises it
            self._fatal = error
            self._stopping.set()

    def _take(self, burst: bool) -> Task | None:
        timeout = 0 if burst else TAKE_TIMEOUT
        return self.tasks.take(self.queues, lease=self.lease, timeout=timeout)

    def _pause(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def _handle(self, slot: int, task: Task) -> None:
        with self._lock:
            self._running[slot] = task
        started = time.monotonic()
        error: BaseException | None = None
        try:
            check_ran(self._callback_of(task)(*task.args))
        except BaseException as raised:  # even SystemExit must not end the worker
            error = raised
        seconds = time.monotonic() - started
        with self._lock:
            if self._running.pop(slot, None) is None:
                return  # it was requeued
        run_steps(self._end(task, error, seconds))

    # ---- beside the threads

    def _renew_leases(self) -> None:
        lanes = Lanes(self.tasks._driver, "shardkit-leases")
        while not self._aborting.wait(self.lease / 3):
            with self._lock:
                due = list(self._renewals())
            lanes.start(due)

    def _beside(self, steps: Steps[Any]) -> None:
        thread = threading.Thread(target=run_steps, args=(steps,), daemon=True)
        self._late = [late for late in self._late if late.is_alive()] + [thread]
        thread.start()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop at signals, which only the main thread can handle."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(_number: int, _frame: Any) -> None:
            (self._aborting if self._stopping.is_set() else self._stopping).set()

        before = {n: signal.signal(n, handle) for n in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class AsyncWorker(BaseWorker[Awaiting]):
    """Runs tasks on an event loop, and plain functions in threads.

    Arguments and attributes are those of `Worker`, with ``tasks`` of an async kit. Callbacks may be
    ``async def``.
    """

    _awaits = True
    _sleep = staticmethod(asyncio.sleep)

    def _reset(self) -> None:
        self._stopping, self._aborting = asyncio.Event(), asyncio.Event()
        self._waiting: set[asyncio.Task[Task | None]] = set()  # takes that wait for a task
        self._late: set[asyncio.Task[Any]] = set()  # report what could not be reported at once
        self.aborted = False

    def stop(self) -> None:
        """Take no more tasks, and stop after the running ones. Call it on the event loop."""
        self._stopping.set()
        for take in self._waiting:
            take.cancel()

    async def run(
        self,
        *,
        burst: bool = False,
        signals: bool = True,
        on_progress: Callable[[WorkerSummary, int], object] | None = None,
    ) -> WorkerSummary:
        """Run tasks until stopped, see `Worker.run`; if cancelled, requeue the running ones."""
        check_runs("worker", "on_progress", on_progress)
        self._reset()
        with self._signals() if signals else nullcontext():
            slots = [asyncio.ensure_future(self._work(n, burst)) for n in range(self.concurrency)]
            beside = [
                asyncio.ensure_future(self._renew_leases()),
                asyncio.ensure_future(self._watch_for_abort(slots)),
            ]
            if on_progress is not None:
                beside.append(asyncio.ensure_future(self._report_progress(on_progress)))
            try:
                outcomes = await asyncio.gather(*slots, return_exceptions=True)
                if self._late:
                    await asyncio.wait(self._late, timeout=PATIENCE)
            finally:
                for task in (*slots, *beside, *self._late):
                    task.cancel()
                await asyncio.gather(*slots, *beside, *self._late, return_exceptions=True)
        if on_progress is not None:
            on_progress(self.summary, len(self._running))
        for error in outcomes:
            if isinstance(error, Exception):
                raise error
        return self.summary

    # ---- a slot

    async def _work(self, slot: int, burst: bool) -> None:
        try:
            await arun_steps(self._serve(slot, burst))
        except Exception:  # run() raises it
            self.stop()
            raise

    async def _take(self, burst: bool) -> Task | None:
        """Take a task; stopping cancels a take that waits."""
        # Of several servers, others may have a task by the end of the wait below.
        with suppress(*SERVER_ERRORS) if self._several and not burst else nullcontext():
            task = await self.tasks.take(self.queues, lease=self.lease, timeout=0)
            if task is not None or burst or self._stopping.is_set():
                return task
        take = asyncio.ensure_future(
            self.tasks.take(self.queues, lease=self.lease, timeout=TAKE_TIMEOUT)
        )
        self._waiting.add(take)
        try:
            await asyncio.wait((take,))
        except asyncio.CancelledError:
            take.cancel()
            await asyncio.wait((take,))
            if not take.cancelled() and take.exception() is None:
                task = take.result()
                if task is not None:
                    await asyncio.shield(asyncio.ensure_future(arun_steps(self._requeue(task))))
            raise
        finally:
            self._waiting.discard(take)
        return None if take.cancelled() else take.result()

    async def _handle(self, slot: int, task: Task) -> None:
        self._running[slot] = task
        started = time.monotonic()
        try:
            try:
                error = await asyncio.ensure_future(self._call(task))
            except asyncio.CancelledError:
                this = asyncio.current_task()
                if this is None or not this.cancelling():  # the function cancelled itself
                    error = asyncio.CancelledError("it cancelled itself")
                else:
                    await asyncio.shield(asyncio.ensure_future(arun_steps(self._requeue(task))))
                    raise
            await arun_steps(self._end(task, error, time.monotonic() - started))
        finally:
            self._running.pop(slot, None)

    async def _call(self, task: Task) -> BaseException | None:
        """Call a task's function; return what it raised, unless it was cancelled.

        Run it as an asyncio task: a GeneratorExit closes all coroutines that it passes through.
        """

        def outcome() -> tuple[Any, BaseException | None]:
            try:
                return callback(*task.args), None
            except BaseException as raised:  # no future can hold a StopIteration
                return None, raised

        try:
            callback = self._callback_of(task)
            if makes(callback):
                result, error = callback(*task.args), None
            else:
                result, error = await asyncio.to_thread(outcome)
            if error is not None:
                raise error
            if inspect.isawaitable(result):
                result = await result
            check_ran(result)
        except asyncio.CancelledError:
            raise
        except BaseException as raised:  # even SystemExit must not end the worker
            return raised
        return None

    # ---- beside the slots

    async def _beside(self, steps: Steps[Any]) -> None:
        task = asyncio.ensure_future(arun_steps(steps))
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _renew_leases(self) -> None:
        lanes = AsyncLanes(self.tasks._driver, "shardkit-leases")
        try:
            while True:
                await asyncio.sleep(self.lease / 3)
                lanes.start(self._renewals())
        finally:
            lanes.close()

    async def _watch_for_abort(self, slots: Sequence[asyncio.Future[None]]) -> None:
        await self._aborting.wait()
        self.aborted = True
        for slot in slots:
            slot.cancel()

    async def _report_progress(self, on_progress: Callable[[WorkerSummary, int], object]) -> None:
        while True:
            on_progress(self.summary, len(self._running))
            await asyncio.sleep(PROGRESS_INTERVAL)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop at signals, which only the main thread can handle."""
        loop = asyncio.get_running_loop()

        def handle() -> None:
            if self._stopping.is_set():
                self._aborting.set()
            self.stop()

        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, handle)
        except (RuntimeError, ValueError, NotImplementedError):
            yield
            return
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


def _failure_reason(error: BaseException) -> str:
    """Return why a task failed, for its dead letter, whatever the error's ``__str__`` does."""
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
    named = {"task": task.name, "queue": task.queue, "id": task.id, "attempt": task.attempts}
    return log_records.fields(event, **named, **more)


def _describe(task: Task) -> str:
    again = f", attempt {task.attempts}" if task.attempts > 1 else ""
    return f"task {task.name} ({task.queue} {task.id}{again})"
