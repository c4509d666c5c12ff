"""Threads in a simulation: each is a fiber of the process that starts it.

While a simulation runs, ``threading.Thread``, ``Event``, ``Condition``, ``Lock``, ``RLock`` and
``local`` are these, and ``get_ident`` tells fibers apart. So what a kit does in the background
(trials of a breaker, renewals of locks, reading entries again, sending metrics), a worker's threads
and a client's own take steps of the schedule. What was made before, subclasses of
``threading.Thread`` and thread pools are not reached: fibers share one real thread, so a
``threading.local`` of a module has the same values for all. Who has no scheduler to wait for, an
observer or code outside, waits in none of them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

from shardkit.testing.simulation.processes import Fiber, SimulatedProcess

_RealLock: Final = threading.Lock
_RealThread: Final = threading.Thread
_real_ident: Final = threading.get_ident


def _wait(ready: Callable[[], bool], seconds: float | None) -> bool:
    """Wait until something is ready, or the time is over; return whether it is ready."""
    fiber = Fiber.current
    if fiber is not None and not ready():
        process = fiber.process
        until = float("inf")
        if seconds is not None:
            until = process.now() + max(0.0, seconds) / process.clock.rate
        fiber.wait(ready, until)
    return ready()


class SimulatedLock:
    """A lock; a fiber that waits for it hands over."""

    def __init__(self) -> None:
        self._real = _RealLock()
        self.locked = self._real.locked
        self.release = self._real.release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire it; return whether that was done."""
        if self._real.acquire(False):
            return True
        if not blocking:
            return False
        if Fiber.current is None:
            return self._real.acquire(True, timeout)
        free = _wait(lambda: not self._real.locked(), None if timeout < 0 else timeout)
        return free and self._real.acquire(False)

    def __enter__(self) -> bool:
        return self._real.acquire(False) or self.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self._real.release()


class SimulatedRLock(SimulatedLock):
    """A lock that its holder may acquire again."""

    def __init__(self) -> None:
        super().__init__()
        self._holder: object = None
        self._count = 0
        self.release = self._release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire it; return whether that was done."""
        caller = Fiber.current or _real_ident()
        if self._holder != caller:
            if not (self._real.acquire(False) or super().acquire(blocking, timeout)):
                return False
            self._holder = caller
        self._count += 1
        return True

    __enter__ = acquire

    def __exit__(self, *exc_info: object) -> None:
        self._release()

    def _is_owned(self) -> bool:  # asked by threading.Condition
        return bool(self._count) and self._holder == (Fiber.current or _real_ident())

    def _release(self) -> None:
        if not self._count or self._holder != (Fiber.current or _real_ident()):
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._holder = None
            self._real.release()


class SimulatedLocal:
    """Attributes of which each fiber has values of its own."""

    def __init__(self) -> None:
        values: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
        vars(self).update(_values=values, _outside={})

    def _own(self) -> dict[str, Any]:
        fiber, found = Fiber.current, vars(self)
        own: dict[str, Any]
        own = found["_outside"] if fiber is None else found["_values"].setdefault(fiber, {})
        return own

    def __getattr__(self, name: str) -> Any:
        try:
            return self._own()[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self._own()[name] = value

    def __delattr__(self, name: str) -> None:
        if self._own().pop(name, self) is self:
            raise AttributeError(name)


class SimulatedEvent:
    """An event."""

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it."""
        self._is_set = True

    def clear(self) -> None:
        """Have it be not set."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; return whether it is."""
        return _wait(self.is_set, timeout)


class SimulatedCondition:
    """A condition variable."""

    def __init__(self, lock: Any = None) -> None:
        self._lock = lock or SimulatedLock()
        self._waiting: deque[list[bool]] = deque()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> Any:
        return self._lock.__enter__()

    def __exit__(self, *exc_info: Any) -> None:
        self._lock.__exit__(*exc_info)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait to be notified; return whether that happened."""
        told = [False]
        self._waiting.append(told)
        self.release()
        try:
            return _wait(lambda: told[0], timeout)
        finally:
            self.acquire()
            if not told[0]:
                self._waiting.remove(told)

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until a predicate holds; return its value."""
        until = None if timeout is None else time.monotonic() + timeout
        while not (found := predicate()):
            left = None if until is None else until - time.monotonic()
            if (left is not None and left <= 0) or not self.wait(left):
                return predicate()
        return found

    def notify(self, n: int = 1) -> None:
        """Wake up some waiting threads."""
        for _ in range(min(n, len(self._waiting))):
            self._waiting.popleft()[0] = True

    def notify_all(self) -> None:
        """Wake up all waiting threads."""
        self.notify(len(self._waiting))


class SimulatedThread:
    """A thread of the simulated process that starts it; of an observer it never runs."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name = name or "thread"
        self.daemon = daemon
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        self._fiber: Fiber | None = None

    def run(self) -> None:
        """Call the target."""
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def start(self) -> None:
        """Begin."""
        process = SimulatedProcess.current
        if process is not None and not process.dead:
            self._fiber = process.start_blocking(self.run)

    def is_alive(self) -> bool:
        """Whether it has started and not ended."""
        return self._fiber is not None and not self._fiber.done

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        _wait(lambda: not self.is_alive(), timeout)


@contextmanager
def simulated_threads() -> Iterator[None]:
    """Replace Python's threads and what they wait for."""
    scheduler = _real_ident()

    def thread(*args: Any, **kwargs: Any) -> Any:
        # A thread that has nothing to do with the simulation may start another one in the meantime.
        ours = _real_ident() == scheduler
        return (SimulatedThread if ours else _RealThread)(*args, **kwargs)

    def current_thread() -> Any:
        if Fiber.current is None:
            return kept["current_thread"]()
        return SimulatedThread(name=Fiber.current.process.name)

    def ident() -> int:
        return _real_ident() if Fiber.current is None else id(Fiber.current)

    values = {
        "Thread": thread,
        "Event": SimulatedEvent,
        "Condition": SimulatedCondition,
        "Lock": SimulatedLock,
        "RLock": SimulatedRLock,
        "local": SimulatedLocal,
        "get_ident": ident,
        "current_thread": current_thread,
    }
    kept = {name: getattr(threading, name) for name in values}
    for name, value in values.items():
        setattr(threading, name, value)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(threading, name, value)
