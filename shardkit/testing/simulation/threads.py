"""Threads in a simulation: each is a fiber of the process that starts it.

While a simulation runs, ``threading.Thread``, ``Lock``, ``RLock`` and ``local`` are these, events
and conditions wait for such locks, and ``get_ident`` tells fibers apart. So what a kit does in the
background (trials of a breaker, renewals of locks, reading entries again, sending metrics), a
worker's threads and a client's own take steps of the schedule. What was made before, subclasses of
``threading.Thread`` and thread pools are not reached: fibers share one real thread, so a
``threading.local`` of a module has the same values for all. Who has no scheduler to wait for, an
observer or code outside, waits for no event or condition.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

from shardkit.testing.simulation.processes import Fiber, SimulatedProcess

_RealLock: Final = threading.Lock
_real_ident: Final = threading.get_ident
_real_current: Final = threading.current_thread


def _wait(ready: Callable[[], bool], seconds: float | None) -> bool:
    fiber = Fiber.current
    if fiber is not None and not ready():
        process = fiber.process
        until = float("inf")
        if seconds is not None:
            until = process.now() + max(0.0, seconds) / process.clock.rate
        fiber.wait(ready, until)
    return ready()


class _SimulatedLock:
    """A lock; a fiber that waits for it hands over."""

    def __init__(self) -> None:
        self._real = _RealLock()
        self.locked = self._real.locked
        self.release = self._real.release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
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


class _WaiterLock(_SimulatedLock):
    """What Python's events and conditions acquire to wait; outside fibers that fails at once."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return super().acquire(blocking and Fiber.current is not None, timeout)


class _SimulatedRLock(threading._RLock):  # type: ignore[misc]  # final, in typeshed
    """A lock that its holder may acquire again: Python's own, around one of these."""

    def __init__(self) -> None:
        super().__init__()
        self._block = _SimulatedLock()


class _SimulatedLocal:
    """Attributes of which each fiber has values of its own."""

    def __init__(self) -> None:
        values: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
        vars(self).update(_values=values, _outside={})

    def _own(self) -> dict[str, Any]:
        fiber, names = Fiber.current, vars(self)
        own: dict[str, Any]
        own = names["_outside"] if fiber is None else names["_values"].setdefault(fiber, {})
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


class _SimulatedThread:
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
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def start(self) -> None:
        process = SimulatedProcess.current
        if process is not None and not process.dead:
            self._fiber = process.start_blocking(self.run)

    def is_alive(self) -> bool:
        return self._fiber is not None and not self._fiber.done

    def join(self, timeout: float | None = None) -> None:
        _wait(lambda: not self.is_alive(), timeout)


_SIMULATED: dict[str, Callable[..., Any]] = {
    "Thread": _SimulatedThread,
    "Lock": _SimulatedLock,
    "RLock": _SimulatedRLock,
    "_allocate_lock": _WaiterLock,
    "_time": lambda: time.monotonic(),  # for timeouts of conditions
    "get_ident": lambda: _real_ident() if Fiber.current is None else id(Fiber.current),
    "current_thread": lambda: (
        _SimulatedThread(name=Fiber.current.process.name) if Fiber.current else _real_current()
    ),
}


@contextmanager
def simulated_threads() -> Iterator[None]:
    """Replace Python's threads and what they wait for."""
    scheduler = _real_ident()
    originals = {name: getattr(threading, name) for name in (*_SIMULATED, "local")}

    def chosen(name: str) -> Callable[..., Any]:
        # A thread that has nothing to do with the simulation may run in the meantime.
        simulated, original = _SIMULATED[name], originals[name]
        return lambda *args, **kwargs: (simulated if _real_ident() == scheduler else original)(
            *args, **kwargs
        )

    for name in _SIMULATED:
        setattr(threading, name, chosen(name))
    threading.local = _SimulatedLocal  # type: ignore[assignment]
    try:
        yield
    finally:
        for name, value in originals.items():
            setattr(threading, name, value)
