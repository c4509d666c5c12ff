"""What a forked child renews: locks, and whatever belongs to the threads and loops of its parent.

A thread of the parent may hold a lock when another one forks. The child has a copy of the lock, but
not of the thread, so that nobody would ever release it there. So with background threads, and with
connections, which the parent goes on using.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Renewable(Protocol):
    """Has state that a forked child must not share."""

    def after_fork(self) -> None:
        """Renew it; called in the child, which has one thread."""


_parts: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renewed_in_children(part: Renewable) -> None:
    """Have ``after_fork`` of something called in each forked child, in no particular order."""
    _parts.add(part)


class ForkSafeLock:
    """A `threading.Lock` for with-statements, which is new in each forked child."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self.after_fork()
        renewed_in_children(self)

    def after_fork(self) -> None:
        """Make it free, whoever holds it."""
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()


class _Process:
    """This process's id: to ask the system for it costs a quarter of a short command."""

    pid = os.getpid()


process = _Process()


def renew() -> None:
    """Do what a forked child does first."""
    process.pid = os.getpid()  # before the rest: by it connections know that they are the parent's
    for part in list(_parts):
        part.after_fork()


os.register_at_fork(after_in_child=renew)
