"""A worker: takes tasks and calls functions, in threads, until it is stopped.

::

    tasks = kit.queues(component="tasks")
    worker = Worker(tasks, ["high", "low"], concurrency=4)

    @worker.task()
    def send_mail(user: int, text: str) -> None: ...

    worker.run()                    # or: shardkit worker mymodule:worker

Each thread takes a task, calls its function, acknowledges it, and takes the next. Another thread
renews the leases of running tasks. SIGTERM and SIGINT stop the worker: it finishes running tasks,
and requeues tasks taken at that moment. At a second signal it requeues running tasks without
waiting, so they may run twice.

A function that raises does not stop a worker: the task is retried later, and is dead after its
attempts. A task without a registered function is requeued with a delay, and never dies: the next
version of the program may have that function.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from shardkit.callbacks import check_ran, check_runs
from shardkit.operations.lanes import Lanes
from shardkit.operations.operation import Blocking
from shardkit.queues.task_codec import Task
from shardkit.queues.worker_base import (
    IDLE_IN_BURST,
    PROGRESS_INTERVAL,
    SERVER_ERRORS,
    TAKE_TIMEOUT,
    BaseWorker,
    WorkerSummary,
)


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
        summary: its work so far.
        aborted: whether it was told twice to stop, and requeued running tasks.

    Raises:
        InvalidArgumentError: an argument is out of range.
    """

    def _reset(self) -> None:
        self._stopping = threading.Event()
        self._aborting = threading.Event()
        self._lock = threading.Lock()
        self._fatal: BaseException | None = None
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
        """Run tasks until stopped, by `stop` or, in the main thread, by a signal.

        Args:
            burst: return when no task is waiting, due or running; raise if five attempts in a row
                to take one fail, instead of waiting for the servers to come back.
            signals: stop at SIGTERM and SIGINT. Pass False in a program that handles them itself,
                such as a web server, and calls `stop`.
            on_progress: a plain function, called about five times a second with the summary so far
                and the number of running tasks.

        Returns:
            The summary of its work.

        Raises:
            ClosedError: the kit was closed.
            InvalidArgumentError: a queue's name or ``on_progress`` is not valid.
        """
        check_runs("worker", "on_progress", on_progress)
        self._reset()
        renewer = threading.Thread(target=self._renew_leases, name="shardkit-leases", daemon=True)
        threads = [
            threading.Thread(target=self._work, args=(burst,), name=f"shardkit-{n}", daemon=True)
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
                self._release_running()
            self._stopping.set()
            self._aborting.set()
            renewer.join()
        if on_progress is not None:
            on_progress(self.summary, len(self._running))
        if self._fatal is not None:
            raise self._fatal
        return self.summary

    # ---- a thread

    def _work(self, burst: bool) -> None:
        failures = 0
        try:
            while not self._stopping.is_set():
                began = time.monotonic()
                try:
                    timeout = 0 if burst else TAKE_TIMEOUT
                    task = self.tasks.take(self.queues, lease=self.lease, timeout=timeout)
                except SERVER_ERRORS as error:
                    failures += 1
                    self._stopping.wait(self._pause_after(error, failures, began, burst=burst))
                    continue
                failures = 0
                self._took()
                if task is not None:
                    self._handle(task)
                elif burst:
                    if not self._running:
                        return
                    self._stopping.wait(IDLE_IN_BURST)  # running tasks may queue more
        except BaseException as error:  # run() raises it
            self._fatal = error
            self._stopping.set()

    def _handle(self, task: Task) -> None:
        if self._stopping.is_set():
            if self._report(task, "was requeued", lambda: self.tasks.release(task)):
                self._released(task)
            return
        thread = threading.get_ident()
        with self._lock:
            self._running[thread] = task
        started = time.monotonic()
        error: BaseException | None = None
        try:
            check_ran(self._callback_of(task)(*task.args))
        except BaseException as raised:  # even SystemExit must not end the worker
            error = raised
        seconds = time.monotonic() - started
        with self._lock:
            if self._running.pop(thread, None) is None:
                return  # it was requeued
        reported = self._report(task, *self._outcome(task, error))
        if error is None:
            self._succeeded(task, seconds, reported)

    def _report(self, task: Task, what: str, report: Callable[[], Any]) -> Any:
        """Report the outcome of a task, with retries; None if no server could be reached."""
        attempt = 0
        while True:
            try:
                return report()
            except SERVER_ERRORS as error:
                attempt += 1
                pause = self._pause_before_report(task, what, error, attempt)
            if pause is None:
                return None
            time.sleep(pause)

    # ---- beside the threads

    def _renew_leases(self) -> None:
        """Renew the leases of running tasks."""
        lanes = Lanes(self.tasks._driver, "shardkit-leases")
        while not self._aborting.wait(self.lease / 3):
            with self._lock:
                due = list(self._renewals())
            lanes.start(due)

    def _release_running(self) -> None:
        """Requeue running tasks without waiting for them."""
        with self._lock:
            abandoned = list(self._running.values())
            self._running.clear()
        for task in abandoned:
            try:
                if self.tasks.release(task):
                    self._released(task)
            except SERVER_ERRORS as error:
                self._could_not_report(task, "was requeued", error)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop at signals, which only the main thread can handle."""
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
