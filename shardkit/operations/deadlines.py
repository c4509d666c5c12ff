"""Deadlines: by when a call must be done, however many attempts, shards and steps it takes.

::

    with kit.deadline(0.2):            at = now + 0.2, for all that is called inside
        users.hget(7)                  ┐
        docs.search("keys")            ┘ each exchange waits for what is left until then

    deadline: 0.5 in an entry          of each call by itself, counted from where it begins
    connect(…, deadline=0.5)           the same for entries that do not say it

A deadline is an absolute time in a context variable: threads do not share it; tasks started inside
a block inherit it. Of several, the earliest counts. The idea is that of gRPC's deadlines:
https://grpc.io/docs/guides/deadlines/
"""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Self

from shardkit.errors import DeadlineExceeded

_UNLIMITED = nullcontext()
LONG_ENOUGH = 0.1  # seconds of silence after which a server counts as not answering


class Deadline:
    """A time by which something must be done."""

    __slots__ = ("at", "seconds", "started")

    def __init__(self, at: float, seconds: float, started: float | None = None) -> None:
        self.at = at  # by `time.monotonic`; infinite if only entries have a deadline
        self.seconds = seconds  # its whole length, for messages
        # The start of the call, from which the deadlines of entries count; None in a block of
        # several calls.
        self.started = started

    def left(self) -> float:
        """Return how many seconds are left; 0 or less if it has passed."""
        return self.at - time.monotonic()

    def shorten(self, timeout: float | None) -> float | None:
        """Return a timeout shortened to the deadline; 0 if it has passed."""
        if self.at == math.inf:
            return timeout
        left = max(0.0, self.left())
        return left if timeout is None else min(timeout, left)

    def require_left(self) -> None:
        """Raise DeadlineExceeded if it has passed."""
        if self.at <= time.monotonic():
            raise self.passed()

    def passed(self, waited: float = 0.0) -> DeadlineExceeded:
        """Return the error for a caller whose wait timed out, after ``waited`` seconds."""
        error = DeadlineExceeded(f"the deadline of {self.seconds:g} s has passed")
        error.waited = waited
        return error

    def __repr__(self) -> str:
        return f"<Deadline of {self.seconds:g} s, {self.left():.3f} s left>"


class within:  # noqa: N801 - a context manager
    """Apply a deadline, or none, to the calls inside."""

    __slots__ = ("_deadline", "_token")

    def __init__(self, deadline: Deadline | None) -> None:
        self._deadline = deadline

    def __enter__(self) -> Self:
        self._token = current.set(self._deadline)
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            current.reset(self._token)
        except ValueError:  # a generator's block that ends in another context
            current.set(None)


class DeadlineBlock(within):
    """A block, not reentrant, whose calls must end within ``seconds``; see `ShardKit.deadline`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> Self:
        self._deadline = earliest(self._seconds, anew=True)
        return super().__enter__()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *exc_info: object) -> None:
        self.__exit__()


def earliest(seconds: float | None, *, anew: bool = False) -> Deadline | None:
    """Return the current deadline, or the one in ``seconds`` if that is earlier.

    The seconds count from the start of the call; with ``anew``, from now.
    """
    outer = current.get()
    if seconds is None:
        return None if outer is None or outer.at == math.inf else outer
    started = None if anew or outer is None else outer.started
    at = (time.monotonic() if started is None else started) + seconds
    if outer is not None and outer.at <= at:
        return outer
    return Deadline(at, seconds, started)


def begin() -> Deadline:
    """Return the current deadline for a call that starts now."""
    outer = current.get()
    now = time.monotonic()
    if outer is None:
        return Deadline(math.inf, 0.0, now)
    return Deadline(outer.at, outer.seconds, outer.started or now)


def has_started() -> bool:
    """Whether a call is in progress, from whose start the deadlines of entries count."""
    outer = current.get()
    return outer is not None and outer.started is not None


def call() -> AbstractContextManager[object]:
    """Return the context of one call, in which the deadlines of entries count from now."""
    return within(begin()) if in_use.by_entries and not has_started() else _UNLIMITED


def extend(seconds: float) -> None:
    """Exclude a requested wait from the deadlines of entries."""
    outer = current.get()
    if outer is not None and outer.started is not None:
        outer.started += seconds


class _InUse:
    """Whether any entry or kit of this process has had a deadline, so that calls note the time."""

    by_entries = False


in_use = _InUse()
current: ContextVar[Deadline | None] = ContextVar("shardkit_deadline", default=None)
