"""Deadlines: by when a call must be done, however many attempts, shards and steps it takes.

::

    with kit.deadline(0.2):            at = now + 0.2, for all that is called inside
        users.hget(7)                  ┐
        docs.search("keys")            ┘ each exchange waits for what is left until then

    deadline: 0.5 in an entry          of each call by itself, counted from where it begins
    connect(…, deadline=0.5)           the same for entries that do not say it

A deadline is an absolute time, kept in a context variable: threads do not share it, tasks that are
started inside a block have it too. Where several apply, the earliest does. The idea is that of
gRPC's deadlines: https://grpc.io/docs/guides/deadlines/
"""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, Token
from typing import Any, Self

from redis.exceptions import TimeoutError  # noqa: A004 - redis-py's own

# A server that was silent for so long may be taken for one that does not answer.
LONG_ENOUGH = 0.1


class Deadline:
    """A time by which something must be done.

    Attributes:
        at: when, as `time.monotonic` tells it; infinite if only single servers have one.
        seconds: how long that was when it began, for messages.
        begun: when the call began, from which the deadlines of entries count; None in a block of
            several calls, of which each begins anew.
    """

    __slots__ = ("at", "begun", "seconds")

    def __init__(self, at: float, seconds: float, begun: float | None = None) -> None:
        self.at = at
        self.seconds = seconds
        self.begun = begun

    def left(self) -> float:
        """Return how many seconds are left; 0 or less if it has passed."""
        return self.at - time.monotonic()

    def shorten(self, timeout: float | None) -> float | None:
        """Return a timeout that does not last beyond it; 0 if it has passed."""
        if self.at == math.inf:
            return timeout
        left = max(0.0, self.left())
        return left if timeout is None else min(timeout, left)

    def require_left(self) -> None:
        """Raise DeadlineExceeded if it has passed."""
        if self.at <= time.monotonic():
            raise self.passed()

    def passed(self, waited: float = 0.0) -> DeadlineExceeded:
        """Return the error for who has waited for so long, in vain."""
        return DeadlineExceeded(f"the deadline of {self.seconds:g} s has passed", waited)

    def __repr__(self) -> str:
        return f"<Deadline of {self.seconds:g} s, {self.left():.3f} s left>"


class DeadlineExceeded(TimeoutError):
    """A deadline has passed; redis-py's TimeoutError for those who catch that.

    Attributes:
        waited: for how long the server was waited for, in seconds.
    """

    def __init__(self, message: str, waited: float = 0.0) -> None:
        super().__init__(message)
        self.waited = waited


class DeadlineBlock:
    """What is called inside ``with`` or ``async with`` is done by its end; see `ShardKit.deadline`.

    It can be used once at a time.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._token: Token[Deadline | None] | None = None

    def __enter__(self) -> Self:
        self._token = current.set(earliest(self._seconds, anew=True))
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._token is not None
        _reset(self._token)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *exc_info: object) -> None:
        self.__exit__()


class within:  # noqa: N801 - a context manager
    """Have what is called inside keep to a deadline, if there is one."""

    __slots__ = ("_deadline", "_token")

    def __init__(self, deadline: Deadline | None) -> None:
        self._deadline = deadline

    def __enter__(self) -> Deadline | None:
        self._token = current.set(self._deadline)
        return self._deadline

    def __exit__(self, *exc_info: object) -> None:
        _reset(self._token)


def earliest(seconds: float | None, *, anew: bool = False) -> Deadline | None:
    """Return the deadline of now, or that of a call of so many seconds if that is earlier.

    Args:
        seconds: how long the call may take; None for any time.
        anew: count from now, although a call has begun before.
    """
    outer = current.get()
    if seconds is None:
        return None if outer is None or outer.at == math.inf else outer
    begun = None if anew or outer is None else outer.begun
    at = (time.monotonic() if begun is None else begun) + seconds
    if outer is not None and outer.at <= at:
        return outer
    return Deadline(at, seconds, begun)


def begin() -> Deadline:
    """Return the deadline of a call that begins now: what there is, counted for its entries."""
    outer = current.get()
    now = time.monotonic()
    if outer is None:
        return Deadline(math.inf, 0.0, now)
    return Deadline(outer.at, outer.seconds, outer.begun or now)


def has_begun() -> bool:
    """Whether a call is under way, from whose beginning the deadlines of entries count."""
    outer = current.get()
    return outer is not None and outer.begun is not None


def call() -> AbstractContextManager[object]:
    """Return the context of one call: in it, the deadlines of entries count from now."""
    return within(begin()) if in_use.by_entries and not has_begun() else nullcontext()


def extend(seconds: float) -> None:
    """Have a call wait because it was asked to: the deadlines of entries do not count that."""
    outer = current.get()
    if outer is not None and outer.begun is not None:
        outer.begun += seconds


def _reset(token: Token[Any]) -> None:
    try:
        current.reset(token)
    except ValueError:  # a generator's block that is left in another context than it was entered in
        current.set(None)


class _InUse:
    """Whether any entry or kit of this process has a deadline; else calls need not note the time.

    Attributes:
        by_entries: set for good by the first one.
    """

    by_entries = False


in_use = _InUse()
current: ContextVar[Deadline | None] = ContextVar("shardkit_deadline", default=None)
