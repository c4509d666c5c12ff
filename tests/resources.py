"""What a call may use, for tests of hostile data: memory, processor time, the interpreter's lock.

Times are those of the processor, so that a busy machine fails no test.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
