"""Renews locks, background threads and connections in a forked child.

If a thread of the parent holds a lock during the fork, nobody releases the child's copy. Background
threads do not exist in the child, and the parent still uses its connections.
"""

from __future__ import annotations

import os
import threading
import weakref
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol


class Renewable(Protocol):
    """An object whose state a forked child must not share."""

    def after_fork(self) -> None:
        """Renew the state, in the child, which has one thread."""


_parts: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renewed_in_children(part: Renewable) -> None:
    """Have ``part.after_fork`` called in each forked child, in no particular order."""
    _parts.add(part)


class ForkSafeLock:
    """A `threading.Lock` for with-statements, which is new in each forked child.

    No step of Python comes between taking the lock and the block, or an exception from outside
    could come there, and the lock would stay taken.
    """

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self.after_fork()
        renewed_in_children(self)

    def after_fork(self) -> None:
        """Replace the lock with a free one."""
        self._lock = threading.Lock()

    if TYPE_CHECKING:

        def __enter__(self) -> object: ...
        def __exit__(self, *exc_info: object) -> None: ...

    else:
        __enter__, __exit__ = map(property, map(attrgetter, ("_lock.__enter__", "_lock.__exit__")))


class _Process:
    """This process's id: asking the system for it costs a quarter of a short command."""

    pid = os.getpid()


process = _Process()


def renew() -> None:
    """Renew everything in a forked child."""
    process.pid = os.getpid()  # first, because connections compare it with their own
    for part in list(_parts):
        part.after_fork()


os.register_at_fork(after_in_child=renew)
