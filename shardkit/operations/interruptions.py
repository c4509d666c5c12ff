"""Threads that start even when an exception from outside comes at that moment.

CPython delivers `PyThreadState_SetAsyncExc`, by which task queues end calls that take too long, to
a thread that the caller is just starting, instead of to the caller. The new thread ends then, and
`threading.Thread.start` waits for it for ever.
"""

from __future__ import annotations

import threading
from _thread import start_new_thread
from queue import Empty, SimpleQueue

_PATIENCE = 0.1  # seconds


class BackgroundThread(threading.Thread):
    """A thread that is started from another one, which may end at once and is replaced then."""

    def start(self) -> None:
        """Start the thread; raises as `threading.Thread.start` does."""
        claim, started = threading.Lock(), SimpleQueue[RuntimeError | None]()

        def begin() -> None:
            if claim.acquire(blocking=False):
                try:
                    threading.Thread.start(self)
                except RuntimeError as error:
                    started.put(error)
                started.put(None)

        while True:
            start_new_thread(begin, ())
            try:
                failure = started.get(timeout=_PATIENCE)
                break
            except Empty:
                continue
        if failure is not None:
            raise failure
