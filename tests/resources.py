"""What a call may use, for tests of hostile data: memory, processor time, the interpreter's lock.

Times are those of the processor, so that a busy machine fails no test.
"""

from __future__ import annotations

import inspect
import resource
import threading
import time
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any

MEMORY = 2 << 30  # bytes of addresses, beyond those in use: a new thread takes 136 MB
SECONDS = 10.0
HELD = 2.0  # seconds in which no other thread runs


class Overuse(AssertionError):
    """A call used more than it may."""


@contextmanager
def bounded(memory: int = MEMORY, seconds: float = SECONDS, held: float = HELD) -> Iterator[None]:
    """Give the calls within no more memory than this, and fail if they take longer."""
    longest, stop = 0.0, threading.Event()

    def tick() -> None:
        nonlocal longest
        last = time.process_time()
        while not stop.wait(0.01):
            now = time.process_time()
            longest, last = max(longest, now - last), now

    ticking = threading.Thread(target=tick, daemon=True)
    ticking.start()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    began = time.process_time()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + memory, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        took = time.process_time() - began
        stop.set()
        ticking.join()
    if took > seconds or longest > held:
        raise Overuse(f"took {took:.1f} s, and the interpreter's lock for {longest:.1f} s at once")


def each_bounded(test: Callable[..., Any]) -> Callable[..., Any]:
    """Return a test, or a coroutine function, each of whose calls is bounded."""

    @wraps(test)
    async def awaited(*args: Any, **options: Any) -> None:
        with bounded():
            await test(*args, **options)

    return awaited if inspect.iscoroutinefunction(test) else bounded()(test)


@types.coroutine
def watched(call: Coroutine[Any, Any, Any], seconds: float = HELD) -> Generator[Any, Any, Any]:
    """Await a call among others; fail if its own steps take more time of the processor."""
    took, resume = 0.0, partial(call.send, None)
    while True:
        began = time.thread_time()
        try:
            future = resume()
        except StopIteration as done:
            return done.value
        finally:
            took += time.thread_time() - began
            if took > seconds:
                raise Overuse(f"a call took {took:.1f} s")
        try:
            resume = partial(call.send, (yield future))
        except BaseException as error:
            resume = partial(call.throw, error)
