"""Times of blocks of code: statistics by context, and the slowest contexts."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, aclosing, suppress
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from shardkit.metrics.logs import Logs
from shardkit.metrics.statistics import MOST_SLOWEST, MeasuredValues, Statistics
from shardkit.operations.arguments import Seconds, in_seconds
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Face,
    Operation,
    Structure,
    operation,
)

P = ParamSpec("P")
T = TypeVar("T")

KIND = "AccessTime"
OVERALL = "overall"


class AccessTimes(Structure[Face]):
    """Times of blocks of code, by context. Made by ``kit.access_times``.

    Args:
        statistics: keeps them, as values of the type AccessTime.
        overall: also record each time under the context "overall".
        logs: where `warn` counts its warnings.
    """

    deferred: DeferredFace[AccessTimes[Deferred]]

    def __init__(
        self,
        statistics: MeasuredValues[Face],
        *,
        overall: bool = False,
        logs: Logs[Face] | None = None,
    ) -> None:
        super().__init__(statistics._driver, statistics.component, statistics.name)
        self.statistics = statistics
        self._overall = overall
        self._logs = logs

    def record(self, context: str, seconds: Seconds) -> None:
        """Record a time that was measured elsewhere; see `MeasuredValues.record`."""
        seconds = in_seconds(seconds)
        self.statistics.record(context, KIND, seconds)
        if self._overall:
            self.statistics.record(OVERALL, KIND, seconds)

    def timed(self, context: str, *, errors: bool = True) -> TimedBlock:
        """Return a context manager and decorator that times a block or a function.

        Args:
            errors: also record a block that raises.
        """
        return TimedBlock(self.record, context, errors)

    @operation
    def flush(self) -> Operation[bool]:
        """Send recorded times; return whether none are left."""
        return (yield from self.statistics.deferred.flush())

    @operation
    def get(self, context: str, period: str = "current") -> Operation[Statistics | None]:
        """Return a context's statistics; see `MeasuredValues.get`."""
        return (yield from self.statistics.deferred.get(context, KIND, period))

    @operation
    def slowest(
        self, period: str = "current", limit: int = MOST_SLOWEST
    ) -> Operation[list[tuple[str, float]]]:
        """Return the slowest contexts and their averages; see `MeasuredValues.slowest`."""
        return (yield from self.statistics.deferred.slowest(KIND, period, limit))

    @operation
    def warn(self) -> Operation[list[str]]:
        """Count a warning for each of the slowest contexts whose average is above the overall one.

        Call it every minute. The warnings are in the common messages of the log.

        Returns:
            These contexts; none unless times are recorded under the context "overall".

        Cost: three exchanges.
        """
        values = self.statistics.deferred
        overall: Statistics | None = yield from values.get(OVERALL, KIND)
        if overall is None:
            return []
        ranked = yield from values.slowest(KIND)
        slow = [name for name, average in ranked if average > overall.mean and name != OVERALL]
        if self._logs is not None:
            for name in slow:
                self._logs.record("access-times", f"{name} is slower than the average", "warning")
        return slow


class TimedBlock:
    """Times a block or function: a context manager and decorator, made by `AccessTimes.timed`."""

    __slots__ = ("_began", "_context", "_errors", "_record")

    def __init__(
        self, record: Callable[[str, float], None], context: str, errors: bool = True
    ) -> None:
        self._record = record
        self._context = context
        self._errors = errors
        self._began = 0.0

    def __repr__(self) -> str:
        return f"TimedBlock({self._context!r})"

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind in (None, GeneratorExit) or self._errors:
            self._record(self._context, time.perf_counter() - self._began)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *exc_info: Any) -> None:
        self.__exit__(*exc_info)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Time every call of a function, even concurrent ones.

        A generator is timed from its first step to its end, including what its caller does between
        steps. A plain function that returns a coroutine or a future is timed until that is done;
        one that returns another awaitable, until it returns.
        """

        def block() -> TimedBlock:
            return TimedBlock(self._record, self._context, self._errors)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def timed_coroutine(*args: P.args, **kwargs: P.kwargs) -> Any:
                with block():
                    return await function(*args, **kwargs)

            return timed_coroutine  # type: ignore[return-value]

        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def timed_generator(*args: P.args, **kwargs: P.kwargs) -> Any:
                with block():
                    return (yield from function(*args, **kwargs))

            return timed_generator

        if inspect.isasyncgenfunction(function):

            @functools.wraps(function)
            async def timed_async_generator(*args: P.args, **kwargs: P.kwargs) -> Any:
                with block(), suppress(StopAsyncIteration):
                    async with aclosing(function(*args, **kwargs)) as steps:
                        step = anext(steps)
                        while True:  # as `yield from` does in a plain generator
                            value = await step
                            try:
                                sent = yield value
                            except GeneratorExit:
                                raise
                            except BaseException as error:
                                step = steps.athrow(error)
                            else:
                                step = steps.asend(sent)

            return timed_async_generator

        @functools.wraps(function)
        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            with ExitStack() as stack:
                stack.enter_context(block())
                result = function(*args, **kwargs)
                if inspect.iscoroutine(result):
                    return _awaited(stack.pop_all(), result)  # type: ignore[return-value]
                if isinstance(result, asyncio.Future):
                    result.add_done_callback(functools.partial(_done, stack.pop_all()))
                return result

        return timed


async def _awaited(stack: ExitStack, result: Coroutine[Any, Any, T]) -> T:
    with stack:
        return await result


def _done(stack: ExitStack, future: asyncio.Future[Any]) -> None:
    with suppress(BaseException), stack:
        future.result()
