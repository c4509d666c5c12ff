"""Runs a generator that yields what it needs and is sent the answers, blocking or awaiting.

What the provider raises is raised at the ``yield``; what a signal handler raises ends the steps.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from functools import wraps
from operator import call
from typing import Any, TypeVar

from shardkit.operations.interruptions import has_returned, reraise_handlers

N = TypeVar("N")
T = TypeVar("T")


def sleep(seconds: float) -> None:
    """Sleep by what `time.sleep` is at the call: simulations replace it."""
    time.sleep(seconds)


def run_steps(
    steps: Generator[N, Any, T],
    provide: Callable[[Any], Any] = call,
    errors: type[BaseException] = Exception,
) -> T:
    """Run the steps to their end, and return their value; by default, what they yield is called.

    ``errors`` are raised at the ``yield``; with BaseException also what a signal handler raised.
    """
    resume: Callable[[Any], N] = steps.send
    answer: Any = None
    try:
        while True:
            need = resume(answer)
            try:
                resume, answer = steps.send, provide(need)
            except errors as error:
                if errors is Exception:
                    reraise_handlers(error)
                resume, answer = steps.throw, error
    except StopIteration as done:
        if not has_returned(done):
            raise
        value: T = done.value
        return value
    finally:
        steps.close()


async def arun_steps(
    steps: Generator[N, Any, T],
    provide: Callable[[Any], Awaitable[Any]] = call,
    errors: type[BaseException] = Exception,
) -> T:
    """Run the steps to their end, awaiting what they need; see `run_steps`."""
    resume: Callable[[Any], N] = steps.send
    answer: Any = None
    try:
        while True:
            need = resume(answer)
            try:
                resume, answer = steps.send, await provide(need)
            except GeneratorExit:
                raise
            except errors as error:
                if errors is Exception:
                    reraise_handlers(error)
                resume, answer = steps.throw, error
    except StopIteration as done:
        if not has_returned(done):
            raise
        value: T = done.value
        return value
    finally:
        steps.close()


def run_by_face(steps: Callable[..., Generator[Any, Any, Any]]) -> Callable[..., Any]:
    """Make a method of steps one that runs them: returns their value, or a coroutine for it."""

    @wraps(steps)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.run(steps(self, *args, **kwargs))

    return method
