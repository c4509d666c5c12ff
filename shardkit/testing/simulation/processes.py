"""Simulated processes: what a client runs, one piece at a time, all in one thread.

A process is one client: a kit, pools, caches of entries and a clock of its own. Its code, in an
event loop or in fibers of blocking code, runs until all of it waits for the network or for time;
then the scheduler chooses what is next. Blocking code has a stack of its own (a greenlet), from
which it hands over to the scheduler and back.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn, TypeVar

from greenlet import getcurrent, greenlet

from shardkit.testing.simulation.virtual_time import Clock

T = TypeVar("T")

MOST_TURNS = 100_000
"""How many turns an event loop may take without waiting for anything."""


class Killed(BaseException):
    """Ends the code of a process that was killed; nothing else can be observed of that."""


class SimulatedProcess:
    """A client's process."""

    current: ClassVar[SimulatedProcess | None] = None  # the one that runs, if it is not an observer

    def __init__(self, name: str, now: Callable[[], float], number: int = -1) -> None:
        self.name = name
        self.number = number  # of the client, from 0; -1 for an observer
        self.now = now
        self.clock = Clock(now)
        self.frozen_until = 0.0  # nothing of it runs before this time
        self.dead = False  # it was killed, or the simulation is over
        self.fibers: list[Fiber] = []
        self._vanished: list[Fiber] = []  # the threads of its parent
        self.loop: SimulatedLoop | None = None  # its event loop, if it has one
        self.immediate = False  # whether its requests are executed at once, without the scheduler
        self.cut_off: dict[str, float] = {}  # until when it cannot reach servers, by address
        # Until when nothing from servers reaches it, by address.
        self.deaf_to: dict[str, float] = {}
        self.failure: BaseException | None = None

    def runnable(self) -> Fiber | SimulatedLoop | None:
        """Return the parts of it that can run now."""
        if self.dead:
            return None
        now = self.now()
        if now < self.frozen_until:
            return None
        if self.loop is not None and self.loop.is_ready(now):
            return self.loop
        for fiber in self.fibers:
            if fiber.is_ready(now):
                return fiber
        return None

    def next_time(self) -> float:
        """Return when a part of it can run by itself."""
        if self.dead:
            return float("inf")
        times = [fiber.wake_at for fiber in self.fibers]
        if self.loop is not None:
            times.append(self.loop.next_time())
        return max(self.frozen_until, min(times, default=float("inf")))

    def start_blocking(self, function: Callable[[], object]) -> Fiber:
        """Run a blocking function as a fiber of this process."""
        fiber = Fiber(self, function)
        self.fibers.append(fiber)
        return fiber

    def start_awaiting(self, steps: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine in the event loop of this process."""
        if self.loop is None:
            self.loop = SimulatedLoop(self)
        return self.loop.create_task(steps)

    def fork(self) -> None:
        """Go on as a forked child: only the fiber that calls is left, and none ends its work."""
        self._vanished += [fiber for fiber in self.fibers if fiber is not Fiber.current]
        self.fibers = [fiber for fiber in self.fibers if fiber is Fiber.current]

    def unwind(self) -> NoReturn:
        """End the code that runs, as the process is dead; what it does on its way out fails.

        Raises:
            Killed: the first time.
            ConnectionRefusedError: when it has unwound, as in ``__del__``.
        """
        fiber = Fiber.current
        if fiber is None or fiber.process is not self or fiber.unwinding:
            raise ConnectionRefusedError(111, "the process is dead")
        fiber.unwinding = True
        raise Killed

    def end(self) -> None:
        """Drop all that is left of it."""
        self.dead = True
        for fiber in [*self.fibers, *self._vanished]:
            fiber.end()
        if self.loop is not None:
            self.loop.end()


class Fiber:
    """Blocking code that waits where it reads or sleeps."""

    current: ClassVar[Fiber | None] = None

    def __init__(self, process: SimulatedProcess, function: Callable[[], object]) -> None:
        self.process = process
        self.wake_at = 0.0  # when it runs again in any case
        self.done = False
        self.unwinding = False  # whether its process is dead and its code is being ended
        self._function = function
        self._ready: Callable[[], bool] | None = None
        self._stack: Any = None

    def is_ready(self, now: float) -> bool:
        """Whether it can run at a time, unless it is done."""
        return now >= self.wake_at or (self._ready is not None and self._ready())

    def resume(self) -> None:
        """Run it until it waits again, or ends."""
        if self._stack is None:
            self._stack = greenlet(self._run)
        self._stack.parent = getcurrent()  # runs when this one waits or ends
        outer, Fiber.current = Fiber.current, self
        self._stack.switch()
        Fiber.current = outer
        if self.done:
            self._stack = None
            with suppress(ValueError):
                self.process.fibers.remove(self)

    def wait(self, ready: Callable[[], bool] | None, until: float) -> None:
        """Called by its code: hand over until it is ready, or the time has come."""
        if self.process.dead:
            self.process.unwind()
        self._ready, self.wake_at = ready, until
        self._stack.parent.switch()
        self._ready = None
        if self.process.dead:
            self.process.unwind()

    def _run(self) -> None:
        try:
            self._function()
        except Killed:
            pass
        except BaseException as error:
            self.process.failure = self.process.failure or error
        finally:
            self.done = True

    def end(self) -> None:
        """End its code where it waits."""
        if self._stack is not None:
            self.resume()
        self.done = True


_Loop: Any = asyncio.BaseEventLoop


class SimulatedLoop(_Loop):  # type: ignore[misc]
    """An event loop of virtual time, which the scheduler runs until it waits."""

    def __init__(self, process: SimulatedProcess) -> None:
        self.process = process
        self.stalled_until, self.stopped = 0.0, False
        self._ended = True  # until it is made
        super().__init__()
        self._ended = False
        self._clock_resolution = 1e-9
        self._selector = SimpleNamespace(select=lambda timeout: ())  # the scheduler waits
        self._process_events = self._write_to_self = lambda *_: None
        self._tasks: list[asyncio.Task[Any]] = []
        self._main: asyncio.Task[Any] | None = None

    # ---- for the scheduler

    def hold_up(self, seconds: float, *, stopped: bool) -> None:
        """Stop for ``seconds`` seconds, or be blocked by a callback; other threads continue."""
        self.stalled_until, self.stopped = self.process.now() + seconds, stopped

    def _is_stalled(self) -> bool:
        return self.process.now() < self.stalled_until

    def is_ready(self, now: float) -> bool:
        """Whether anything of it can run at a time."""
        if now < self.stalled_until:
            return False
        return bool(self._ready or self._next_timer() <= now)

    def next_time(self) -> float:
        """Return when it can run by itself, in the time of the simulation."""
        if self._is_stalled() and self._ready:
            return self.stalled_until
        return max(self.stalled_until, self._next_timer())

    def _next_timer(self) -> float:
        while self._scheduled and self._scheduled[0].cancelled():
            heapq.heappop(self._scheduled)._scheduled = False
            self._timer_cancelled_count -= 1
        if not self._scheduled:
            return float("inf")
        return self.process.clock.reaches(self._scheduled[0].when())

    def resume(self) -> None:
        """Run all that is ready, until it waits."""
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self._asyncgen_firstiter_hook, self._asyncgen_finalizer_hook)
        try:
            with self._running():
                for _ in range(MOST_TURNS):
                    now = self.process.now()
                    if self.process.dead or not (self._ready or self._next_timer() <= now):
                        return
                    self._run_once()
                raise RuntimeError(f"{self.process.name} runs for ever without waiting")
        finally:
            sys.set_asyncgen_hooks(*hooks)

    @contextmanager
    def _running(self) -> Iterator[None]:
        outer = asyncio._get_running_loop()  # of a test that awaits, for example
        swap: Any = getattr(asyncio.tasks, "_swap_current_task", None)  # one a thread, from 3.14
        task = swap(outer, None) if outer is not None and swap else None
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(outer)
            if swap is not None and task is not None:
                swap(outer, task)

    def cancel_main(self) -> bool:
        """Cancel the task that was created first; return whether it was still running."""
        if self._main is None or self._main.done():
            return False
        return self._main.cancel()

    def end(self) -> None:
        """Drop all that is left."""
        if self._ended:
            return
        self._ended = True
        self._ready.clear()
        self._scheduled.clear()
        with self._running():
            for task in self._tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    with suppress(BaseException):
                        task.get_coro().close()
        self._ready.clear()
        self._scheduled.clear()
        self._tasks.clear()

    def finish(self, cleanup: Coroutine[Any, Any, None]) -> None:
        """Run a clean-up after the end: nothing of the simulation sees it."""
        self._ended = False
        self.process.dead = False
        self.create_task(cleanup)
        self.resume()
        self.process.dead = True
        self.end()

    # ---- for asyncio

    def time(self) -> float:
        """Return the monotonic time of the process."""
        return self.process.clock.monotonic()

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Run a coroutine."""
        task: asyncio.Task[Any] = super().create_task(coro, **options)
        self._tasks.append(task)
        if self._main is None:
            self._main = task
        if len(self._tasks) > 100:
            self._tasks = [task for task in self._tasks if not task.done()]
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        """Run a function that blocks, as a fiber."""
        future: asyncio.Future[Any] = self.create_future()

        def resolve(move: Callable[[Any], None], value: Any) -> None:
            if not future.done():
                move(value)

        def run() -> None:
            try:
                result = func(*args)
            except Exception as error:
                self.call_soon(resolve, future.set_exception, error)
            else:
                self.call_soon(resolve, future.set_result, result)

        self.process.start_blocking(run)
        return future

    def is_running(self) -> bool:
        """Whether it runs."""
        return not self._ended and not (self.stopped and self._is_stalled())

    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._ended

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Record an unhandled error."""
        error = context.get("exception")
        if error is not None and self.process.failure is None and not self._ended:
            self.process.failure = error
