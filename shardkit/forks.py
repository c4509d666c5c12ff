"""Locks that a forked child finds free.

A thread of the parent may hold a lock when another one forks. The child has a copy of the lock, but
not of the thread, so that nobody would ever release it there.
"""

from __future__ import annotations

import os
import threading
import weakref


class ForkSafeLock:
    """A `threading.Lock` for with-statements, which is new in each forked child."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self.renew()
        _locks.add(self)

    def renew(self) -> None:
        """Make it free, whoever holds it."""
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()


_locks: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(after_in_child=_after_fork_in_child)
