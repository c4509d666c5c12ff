"""Functions that callers pass, such as tasks and event handlers: whether a call runs one.

A call of an ``async def`` function, or of one that contains ``yield``, only makes a coroutine or a
generator. Nothing runs unless that is awaited or iterated over.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Literal, TypeVar

from shardkit.errors import InvalidArgumentError

T = TypeVar("T")

Unrun = Literal["", "a coroutine", "a generator"]


def run(function: Callable[..., T], *args: object) -> T:
    """Call a caller's function: also what the call itself raises is no error over a reply."""
    return function(*args)


def makes(function: object) -> Unrun:
    """Return what a call of a function makes without running it; empty text if the call runs it."""
    for called in (function, type(function).__call__):
        if inspect.iscoroutinefunction(called):
            return "a coroutine"
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            return "a generator"
    return ""


def check_runs(owner: str, field: str, function: object) -> None:
    """Raise InvalidArgumentError if a call of a function only makes a coroutine or a generator."""
    if result := makes(function):
        raise InvalidArgumentError(
            f"{owner}: {field} makes {result}, which would not run", "give a plain function"
        )


def check_ran(result: object) -> None:
    """Raise InvalidArgumentError if what a call returned must still be awaited or iterated over."""
    kind = "a generator" if inspect.isgenerator(result) or inspect.isasyncgen(result) else ""
    if inspect.isawaitable(result):
        kind = "an awaitable"
    if kind:
        if inspect.iscoroutine(result):
            result.close()  # so that Python does not warn as well
        raise InvalidArgumentError(
            f"the function returned {kind}, which did not run", "run it inside the function"
        )
