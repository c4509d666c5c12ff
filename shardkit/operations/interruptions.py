"""Exceptions that come from outside, at any moment: from signal handlers and other threads.

What a signal handler raises may be a TimeoutError, as deadlines by SIGALRM are. It must not be
mistaken for the server's.

CPython delivers `PyThreadState_SetAsyncExc`, by which task queues end calls that take too long, to
a thread that the caller is just starting, instead of to the caller. The new thread ends then, and
`threading.Thread.start` waits for it for ever.
"""

from __future__ import annotations

import signal
import threading
import traceback
from _thread import start_new_thread
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeGuard

_SIGNALS = signal.valid_signals()
_PATIENCE = 0.1  # seconds


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; raises as its ``start`` does.

    It is started from another thread, which may end at once and is replaced then.
    """
    if type(thread) is not threading.Thread:  # it is simulated
        thread.start()
        return
    claim, started = threading.Lock(), SimpleQueue[BaseException | None]()

    def begin() -> None:
        if claim.acquire(blocking=False):
            try:
                thread.start()
                started.put(None)
            except BaseException as error:
                started.put(error)

    while True:
        start_new_thread(begin, ())
        with suppress(Empty):
            failure = started.get(timeout=_PATIENCE)
            break
    if failure is not None:
        raise failure


def reraise_handlers(error: BaseException) -> None:
    """Re-raise an exception from a signal handler unchanged, if it caused an error.

    Otherwise the TimeoutError of a user's alarm would be mistaken for the server's.
    """
    cause: BaseException | None = error
    codes = None
    while cause is not None:
        frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
        if codes is None:
            codes = {
                getattr(handler, "__code__", None) for handler in map(signal.getsignal, _SIGNALS)
            }
        if any(frame.f_code in codes for frame in frames):
            raise cause
        # Only exceptions that led to this error, not one that the caller is handling.
        earlier = cause.__context__
        at = earlier.__traceback__ if earlier is not None else None
        cause = earlier if at is not None and at.tb_frame in frames else None


def has_returned(error: BaseException) -> TypeGuard[StopIteration]:
    """Return whether an exception means that the caller's generator has returned.

    A StopIteration of a signal handler comes from another module.
    """
    last = at = error.__traceback__
    if at is None or last is None or not isinstance(error, StopIteration):
        return False
    while last.tb_next is not None:
        last = last.tb_next
    return last is at or at.tb_frame.f_globals is last.tb_frame.f_globals


class tolerated(suppress):  # noqa: N801 - named as `suppress` is
    """Suppresses errors, but not what a signal handler raised."""

    def __exit__(self, kind: Any, error: BaseException | None, tb: Any) -> bool:
        """Re-raise an exception from a signal handler unchanged."""
        if error is not None:
            reraise_handlers(error)
        return super().__exit__(kind, error, tb)
