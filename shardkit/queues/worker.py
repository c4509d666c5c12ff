"""A worker: takes tasks and calls functions, in threads, until it is told to stop.

::

    tasks = kit.queues(component="tasks")
    worker = Worker(tasks, ["high", "low"], concurrency=4)

    @worker.task()
    def send_mail(user: int, text: str) -> None: ...

    worker.run()                    # or: shardkit worker mymodule:worker

Each thread takes a task, calls its function, says that it is done, and takes the next. One more
thread leases again what takes long. SIGTERM and SIGINT stop it: what it works on is finished, and
what it took meanwhile is given back. A second signal does not wait: what it works on is given back
at once, and done by somebody else, though maybe for the second time.

A function that raises, or is not there, does not stop a worker: the task is tried again later, and
is dead after its attempts. A name that nobody knows yet may be one that the next version knows.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from shardkit.operations.operation import Blocking
from shardkit.queues.task_codec import Task
from shardkit.queues.task_queues import LEASE, QueueOrder, TaskQueues
from shardkit.queues.worker_base import (
    FIRST_PAUSE,
    IDLE_IN_BURST,
    LONGEST_PAUSE,
    PROGRESS_INTERVAL,
    SERVER_ERRORS,
    TAKE_TIMEOUT,
    TRIES,
    BaseWorker,
    WorkerSummary,
    failure_reason,
    is_fatal,
)


class Worker(BaseWorker[Blocking]):
    """Works on tasks in threads.

    Args:
        tasks: the queues, as a blocking kit's ``kit.queues`` makes them.
        queues: which of them to serve, in order of priority; see `TaskQueues.take`.
        callbacks: functions by name; more are added by `task` and `register`. They are called with
            a task's arguments, in threads, several at a time.
        concurrency: how many threads; so many tasks are worked on at a time.
        lease: for how many seconds a task is leased; as long as its function runs, it is leased
            again every third of that. So long it takes until a task is somebody else's when the
            process dies.

    Raises:
        InvalidArgumentError: an argument does not fit.
    """

    def __init__(
        self,
        tasks: TaskQueues[Blocking],
        queues: QueueOrder,
        callbacks: Mapping[str, Callable[..., Any]] | None = None,
        *,
        concurrency: int = 1,
        lease: float = LEASE,
    ) -> None:
        super().__init__(tasks, queues, callbacks, concurrency=concurrency, lease=lease)
        self._stopping = threading.Event()
        self._aborting = threading.Event()
        self._lock = threading.Lock()
        self._running: dict[int, Task] = {}  # by thread
        self._fatal: BaseException | None = None

    def stop(self) -> None:
        """Have it stop: what it works on is finished, nothing more is taken. Returns at once."""
        self._stopping.set()

    def run(
        self,
        *,
        burst: bool = False,
        signals: bool = True,
        on_progress: Callable[[WorkerSummary, int], object] | None = None,
    ) -> WorkerSummary:
        """Work until it is told to stop, by `stop` or, in the main thread, by a signal.

        Args:
            burst: end when there is no task that waits or is due, and none is worked on.
            signals: stop at SIGTERM and SIGINT. False inside of something that handles them itself,
                such as a web server, which then calls `stop`.
            on_progress: called about five times a second with the summary so far and the number of
                tasks in progress.

        Returns:
            What was done.

        Raises:
            ClosedError: the kit was closed.
            InvalidArgumentError: a queue's name is none.
        """
        self._stopping.clear()
        self._aborting.clear()
        self._fatal = None
        self.aborted = False
        keeper = threading.Thread(target=self._renew_leases, name="shardkit-leases", daemon=True)
        threads = [
            threading.Thread(target=self._work, args=(burst,), name=f"shardkit-{n}", daemon=True)
            for n in range(self.concurrency)
        ]
        with self._signals() if signals else nullcontext():
            for thread in (keeper, *threads):
                thread.start()
            while not self._aborting.is_set() and (alive := [t for t in threads if t.is_alive()]):
                if on_progress is not None:
                    on_progress(self.summary, len(self._running))
                alive[0].join(PROGRESS_INTERVAL)
            if self._aborting.is_set():
                self.aborted = True
                self._release_running()
            self._stopping.set()
            self._aborting.set()
            keeper.join()
        if on_progress is not None:
            on_progress(self.summary, len(self._running))
        if self._fatal is not None:
            raise self._fatal
        return self.summary

    # ---- a thread

    def _work(self, burst: bool) -> None:
        pause = FIRST_PAUSE
        try:
            while not self._stopping.is_set():
                try:
                    timeout = 0 if burst else TAKE_TIMEOUT
                    task = self.tasks.take(self.queues, lease=self.lease, timeout=timeout)
                except SERVER_ERRORS as error:
                    if is_fatal(error):
                        raise
                    self._unreachable(error, pause)
                    self._stopping.wait(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
                    continue
                pause = FIRST_PAUSE
                if task is not None:
                    self._handle(task)
                elif burst:
                    if not self._running:
                        return
                    self._stopping.wait(IDLE_IN_BURST)  # what runs may queue more
        except BaseException as error:  # run() raises it
            self._fatal = error
            self._stopping.set()

    def _handle(self, task: Task) -> None:
        if self._stopping.is_set():
            if self._retrying(task, "was given back", lambda: self.tasks.release(task)):
                self._released(task)
            return
        thread = threading.get_ident()
        with self._lock:
            self._running[thread] = task
        started = time.monotonic()
        error: BaseException | None = None
        try:
            self._callback_of(task)(*task.args)
        except BaseException as raised:  # also SystemExit: it is not the worker that exits
            error = raised
        seconds = time.monotonic() - started
        with self._lock:
            if self._running.pop(thread, None) is None:
                return  # it was given back, and is somebody else's
        if error is None:
            done = self._retrying(task, "is done", lambda: self.tasks.acknowledge(task))
            self._succeeded(task, seconds, done is not False)
        else:
            reason = failure_reason(error)
            self._failed(task, error)
            self._retrying(task, "failed", lambda: self.tasks.fail(task, reason))

    def _retrying(self, task: Task, what: str, say: Callable[[], bool]) -> bool | None:
        """Say what became of a task, again if a server cannot be asked; None if it never could."""
        pause = FIRST_PAUSE
        for attempt in range(1, TRIES + 1):
            try:
                return say()
            except SERVER_ERRORS as error:
                if attempt == TRIES or is_fatal(error):
                    self._could_not_report(task, what, error)
                    return None
                time.sleep(pause)
                pause *= 2
        return None

    # ---- the threads' keeper

    def _renew_leases(self) -> None:
        """Lease again what is worked on."""
        while not self._aborting.wait(self.lease / 3):
            with self._lock:
                running = list(self._running.values())
            for task in running:
                try:
                    self.tasks.extend(task, self.lease)
                except SERVER_ERRORS as error:
                    self._could_not_report(task, "is still worked on", error)

    def _release_running(self) -> None:
        """Give back what is worked on, without waiting for it."""
        with self._lock:
            abandoned = list(self._running.values())
            self._running.clear()
        for task in abandoned:
            try:
                if self.tasks.release(task):
                    self._released(task)
            except SERVER_ERRORS as error:
                self._could_not_report(task, "was given back", error)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop at signals, where they can be handled: in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(_number: int, _frame: Any) -> None:
            (self._aborting if self._stopping.is_set() else self._stopping).set()

        before = {each: signal.signal(each, handle) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
