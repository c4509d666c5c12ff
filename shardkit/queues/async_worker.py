"""A worker on an event loop: like `shardkit.queues.worker`, with tasks in the place of threads.

::

    tasks = kit.queues(component="tasks")                       # of an AsyncShardKit
    worker = AsyncWorker(tasks, ["high", "low"], concurrency=100)

    @worker.task()
    async def send_mail(user: int, text: str) -> None: ...

    await worker.run()

Functions that are no coroutines are called in threads, so that they do not hold up the others.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from shardkit.operations.operation import Awaiting
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


class AsyncWorker(BaseWorker[Awaiting]):
    """Works on tasks on an event loop.

    Args:
        tasks: the queues, as an async kit's ``kit.queues`` makes them.
        queues: see `shardkit.queues.Worker`.
        callbacks: likewise; coroutine functions, or functions, which are called in threads.
        concurrency: how many tasks are worked on at a time.
        lease: likewise.

    Raises:
        InvalidArgumentError: an argument does not fit.
    """

    def __init__(
        self,
        tasks: TaskQueues[Awaiting],
        queues: QueueOrder,
        callbacks: Mapping[str, Callable[..., Any]] | None = None,
        *,
        concurrency: int = 1,
        lease: float = LEASE,
    ) -> None:
        super().__init__(tasks, queues, callbacks, concurrency=concurrency, lease=lease)
        self._stopping = asyncio.Event()
        self._aborting = asyncio.Event()
        self._running: dict[int, Task] = {}  # by slot
        self._waiting: set[asyncio.Task[Task | None]] = set()  # the takes that wait

    def stop(self) -> None:
        """Have it stop: what it works on is finished, nothing more is taken. Returns at once.

        To be called on its event loop.
        """
        self._stopping.set()
        for taking in self._waiting:
            taking.cancel()

    async def run(
        self,
        *,
        burst: bool = False,
        signals: bool = True,
        on_progress: Callable[[WorkerSummary, int], object] | None = None,
    ) -> WorkerSummary:
        """Work until it is told to stop; see `shardkit.queues.worker.Worker.run`.

        When the task that awaits this is cancelled, or at a second signal, what is worked on is
        cancelled and given back.
        """
        self._stopping, self._aborting = asyncio.Event(), asyncio.Event()  # of this event loop
        self.aborted = False
        with self._signals() if signals else nullcontext():
            slots = [asyncio.ensure_future(self._work(n, burst)) for n in range(self.concurrency)]
            beside = [
                asyncio.ensure_future(self._renew_leases()),
                asyncio.ensure_future(self._watch_for_abort(slots)),
            ]
            if on_progress is not None:
                beside.append(asyncio.ensure_future(self._report_progress(on_progress)))
            try:
                found = await asyncio.gather(*slots, return_exceptions=True)
            finally:
                for each in (*slots, *beside):
                    each.cancel()
                await asyncio.gather(*slots, *beside, return_exceptions=True)
        if on_progress is not None:
            on_progress(self.summary, len(self._running))
        for error in found:
            if isinstance(error, Exception):
                raise error
        return self.summary

    # ---- a slot

    async def _work(self, slot: int, burst: bool) -> None:
        pause = FIRST_PAUSE
        try:
            while not self._stopping.is_set():
                try:
                    task = await self._take(burst)
                except SERVER_ERRORS as error:
                    if is_fatal(error):
                        raise
                    self._unreachable(error, pause)
                    await self._pause(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
                    continue
                pause = FIRST_PAUSE
                if task is not None:
                    await self._handle(slot, task)
                elif burst:
                    if not self._running:
                        return
                    await self._pause(IDLE_IN_BURST)  # what runs may queue more
        except Exception:  # run() raises it
            self.stop()
            raise

    async def _take(self, burst: bool) -> Task | None:
        """Take a task. When it is to stop, a take that waits is cancelled, and takes nothing."""
        task = await self.tasks.take(self.queues, lease=self.lease, timeout=0)
        if task is not None or burst or self._stopping.is_set():
            return task
        taking = asyncio.ensure_future(
            self.tasks.take(self.queues, lease=self.lease, timeout=TAKE_TIMEOUT)
        )
        self._waiting.add(taking)
        try:
            await asyncio.wait((taking,))
        except asyncio.CancelledError:
            taking.cancel()
            await asyncio.wait((taking,))
            if not taking.cancelled() and taking.exception() is None:
                task = taking.result()
                if task is not None:
                    await asyncio.shield(asyncio.ensure_future(self._give_back(task)))
            raise
        finally:
            self._waiting.discard(taking)
        return None if taking.cancelled() else taking.result()

    async def _handle(self, slot: int, task: Task) -> None:
        if self._stopping.is_set():
            if await self._retrying(task, "was given back", lambda: self.tasks.release(task)):
                self._released(task)
            return
        self._running[slot] = task
        started = time.monotonic()
        try:
            try:
                callback = self._callback_of(task)
                if inspect.iscoroutinefunction(callback):
                    await callback(*task.args)
                else:
                    found = await asyncio.to_thread(callback, *task.args)
                    if inspect.isawaitable(found):
                        await found
            except asyncio.CancelledError:
                if not _is_cancelled():  # the function's own doing
                    await self._fail(task, asyncio.CancelledError("it cancelled itself"))
                    return
                await asyncio.shield(asyncio.ensure_future(self._give_back(task)))
                raise
            except BaseException as error:  # also SystemExit: it is not the worker that exits
                await self._fail(task, error)
                return
            done = await self._retrying(task, "is done", lambda: self.tasks.acknowledge(task))
            self._succeeded(task, time.monotonic() - started, done is not False)
        finally:
            self._running.pop(slot, None)

    async def _fail(self, task: Task, error: BaseException) -> None:
        self._failed(task, error)
        reason = failure_reason(error)
        await self._retrying(task, "failed", lambda: self.tasks.fail(task, reason))

    async def _give_back(self, task: Task) -> None:
        try:
            if await self.tasks.release(task):
                self._released(task)
        except SERVER_ERRORS as error:
            self._could_not_report(task, "was given back", error)

    async def _retrying(
        self, task: Task, what: str, say: Callable[[], Coroutine[Any, Any, bool]]
    ) -> bool | None:
        """Say what became of a task, again if a server cannot be asked; None if it never could."""
        pause = FIRST_PAUSE
        for attempt in range(1, TRIES + 1):
            try:
                return await say()
            except SERVER_ERRORS as error:
                if attempt == TRIES or is_fatal(error):
                    self._could_not_report(task, what, error)
                    return None
                await asyncio.sleep(pause)
                pause *= 2
        return None

    # ---- beside the slots

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _renew_leases(self) -> None:
        """Lease again what is worked on."""
        while True:
            await asyncio.sleep(self.lease / 3)
            await asyncio.gather(*map(self._extend, list(self._running.values())))

    async def _extend(self, task: Task) -> None:
        try:
            await self.tasks.extend(task, self.lease)
        except SERVER_ERRORS as error:
            self._could_not_report(task, "is still worked on", error)

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
        """Stop at signals, where they can be handled: in the main thread."""
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


def _is_cancelled() -> bool:
    """Whether it is the running task that was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
