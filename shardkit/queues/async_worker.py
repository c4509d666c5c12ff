"""A worker on an event loop: like `shardkit.queues.worker`, with asyncio tasks for threads.

::

    tasks = kit.queues(component="tasks")                       # of an AsyncShardKit
    worker = AsyncWorker(tasks, ["high", "low"], concurrency=100)

    @worker.task()
    async def send_mail(user: int, text: str) -> None: ...

    await worker.run()

Functions that are not coroutine functions run in threads, so that they do not block the others.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from shardkit.callbacks import check_ran, check_runs, makes
from shardkit.operations.lanes import AsyncLanes
from shardkit.operations.operation import Awaiting
from shardkit.queues.task_codec import Task
from shardkit.queues.worker_base import (
    IDLE_IN_BURST,
    PROGRESS_INTERVAL,
    SERVER_ERRORS,
    TAKE_TIMEOUT,
    BaseWorker,
    WorkerSummary,
)


class AsyncWorker(BaseWorker[Awaiting]):
    """Runs tasks on an event loop, and plain functions in threads.

    Arguments and attributes are those of `Worker`, with ``tasks`` of an async kit. Callbacks may be
    ``async def``.
    """

    _awaits = True

    def _reset(self) -> None:
        self._stopping, self._aborting = asyncio.Event(), asyncio.Event()
        self._waiting: set[asyncio.Task[Task | None]] = set()  # takes that wait for a task
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
        """Run tasks until stopped; see `Worker.run`.

        Cancelling it, or a second signal, cancels and requeues running tasks.
        """
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
            finally:
                for each in (*slots, *beside):
                    each.cancel()
                await asyncio.gather(*slots, *beside, return_exceptions=True)
        if on_progress is not None:
            on_progress(self.summary, len(self._running))
        for error in outcomes:
            if isinstance(error, Exception):
                raise error
        return self.summary

    # ---- a slot

    async def _work(self, slot: int, burst: bool) -> None:
        failures = 0
        try:
            while not self._stopping.is_set():
                began = time.monotonic()
                try:
                    task = await self._take(burst)
                except SERVER_ERRORS as error:
                    failures += 1
                    await self._pause(self._pause_after(error, failures, began, burst=burst))
                    continue
                failures = 0
                self._took()
                if task is not None:
                    await self._handle(slot, task)
                elif burst:
                    if not self._running:
                        return
                    await self._pause(IDLE_IN_BURST)  # running tasks may queue more
        except Exception:  # run() raises it
            self.stop()
            raise

    async def _take(self, burst: bool) -> Task | None:
        """Take a task; stopping cancels a take that waits."""
        several = len(self.queues) > 1 or not isinstance(self.queues[0], str)
        # Of several servers, others may have a task by the end of the wait below.
        with suppress(*SERVER_ERRORS) if several and not burst else nullcontext():
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
                    await asyncio.shield(asyncio.ensure_future(self._requeue(task)))
            raise
        finally:
            self._waiting.discard(take)
        return None if take.cancelled() else take.result()

    async def _handle(self, slot: int, task: Task) -> None:
        if self._stopping.is_set():
            if await self._report(task, "was requeued", lambda: self.tasks.release(task)):
                self._released(task)
            return
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
                    await asyncio.shield(asyncio.ensure_future(self._requeue(task)))
                    raise
            seconds = time.monotonic() - started
            reported = await self._report(task, *self._outcome(task, error))
            if error is None:
                self._succeeded(task, seconds, reported)
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

    async def _requeue(self, task: Task) -> None:
        try:
            if await self.tasks.release(task):
                self._released(task)
        except SERVER_ERRORS as error:
            self._could_not_report(task, "was requeued", error)

    async def _report(self, task: Task, what: str, report: Callable[[], Any]) -> Any:
        """Report the outcome of a task, with retries; None if no server could be reached."""
        attempt = 0
        while True:
            try:
                return await report()
            except SERVER_ERRORS as error:
                attempt += 1
                pause = self._pause_before_report(task, what, error, attempt)
            if pause is None:
                return None
            await asyncio.sleep(pause)

    # ---- beside the slots

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _renew_leases(self) -> None:
        """Renew the leases of running tasks."""
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
            for each in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(each, handle)
        except (RuntimeError, ValueError, NotImplementedError):
            yield
            return
        try:
            yield
        finally:
            for each in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(each)
