"""Drivers run operations: they pass each batch to a link and the replies back to the steps.

A failure in a batch is raised inside the steps, at their ``yield``, as one ShardErrors that names
every failed shard; a ``Partial`` batch gets its failures as values instead.

``together`` runs many operations in lock step: all their first batches go out as one exchange,
then all their second ones, and so on. Where each of 10,000 operations takes two exchanges, the
whole takes two.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Generator, Sequence
from typing import Any, TypeVar

from shardkit.commands import Batch, Command, Locate, Partial, Pause, Replies
from shardkit.errors import ShardErrors
from shardkit.links.parcels import raise_failures
from shardkit.operation import Awaiting, Blocking, Operation, Page, Stream

T = TypeVar("T")


class BlockingDriver:
    """Runs steps over a blocking link."""

    def __init__(self, link: Blocking) -> None:
        self.link = link
        self._send = link.send

    def run(self, steps: Operation[T]) -> T:
        """Run an operation and return its value.

        Raises:
            ShardErrors: a shard failed, and the operation does not merge partial results.
        """
        try:
            step = next(steps)
            while True:
                if type(step) is list:
                    replies = self._send(step)
                    if not replies.failed:
                        step = steps.send(replies)
                        continue
                    step = _answer(steps, step, replies)
                else:
                    step = _answer(steps, step, self._other(step))
        except StopIteration as done:
            value: T = done.value
            return value
        finally:
            steps.close()

    def iterate(self, steps: Stream[T]) -> Generator[T, None, None]:
        """Run a stream: give out its values one by one."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, Page):
                    yield from step
                    step = next(steps)
                else:
                    step = _answer(steps, step, self._other(step))
        except StopIteration:
            return
        finally:
            steps.close()

    def together(self, *operations: Operation[T]) -> list[T]:
        """Run operations in lock step and return their values, in order.

        Args:
            operations: steps that were not started, as a deferred face gives them.

        Raises:
            BaseExceptionGroup: the errors of those that failed; all others have run to their end.
        """
        fleet = _Fleet(operations)
        while (step := fleet.next_step()) is not None:
            fleet.answer(self._other(step))
        return fleet.values()

    def _other(self, step: Any) -> Any:
        if isinstance(step, Locate):
            return self.link.locate(step)
        if isinstance(step, Pause):
            return self.link.pause(step.seconds)
        return self._send(step)


class AwaitingDriver:
    """Runs steps over an awaiting link."""

    def __init__(self, link: Awaiting) -> None:
        self.link = link
        self._send = link.send

    async def run(self, steps: Operation[T]) -> T:
        """Run an operation and return its value; see `BlockingDriver.run`."""
        try:
            step = next(steps)
            while True:
                if type(step) is list:
                    replies = await self._send(step)
                    if not replies.failed:
                        step = steps.send(replies)
                        continue
                    step = _answer(steps, step, replies)
                else:
                    step = _answer(steps, step, await self._other(step))
        except StopIteration as done:
            value: T = done.value
            return value
        finally:
            steps.close()

    async def iterate(self, steps: Stream[T]) -> AsyncGenerator[T, None]:
        """Run a stream: give out its values one by one."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, Page):
                    for value in step:
                        yield value
                    step = next(steps)
                else:
                    step = _answer(steps, step, await self._other(step))
        except StopIteration:
            return
        finally:
            steps.close()

    async def together(self, *operations: Operation[T]) -> list[T]:
        """Run operations in lock step; see `BlockingDriver.together`."""
        fleet = _Fleet(operations)
        while (step := fleet.next_step()) is not None:
            fleet.answer(await self._other(step))
        return fleet.values()

    def _other(self, step: Any) -> Coroutine[Any, Any, Any]:
        if isinstance(step, Locate):
            return self.link.locate(step)
        if isinstance(step, Pause):
            return self.link.pause(step.seconds)
        return self._send(step)


def _answer(steps: Generator[Any, Any, Any], step: Any, answer: Any) -> Any:
    """Send an answer into the steps, or raise a batch's failures there; return the next step."""
    if isinstance(answer, Replies) and answer.failed and not isinstance(step, Partial):
        try:
            raise_failures(answer)
        except ShardErrors as errors:
            return steps.throw(errors)
    return steps.send(answer)


class _Fleet(list[Any]):
    """Operations in lock step: joins the batches that they yield, deals out the replies. Pure."""

    def __init__(self, operations: Sequence[Operation[Any]]) -> None:
        super().__init__(operations)
        self._results: list[Any] = [None] * len(operations)
        self._errors: list[Exception] = []
        self._steps: dict[int, Any] = {}
        self._joined: list[tuple[int, int]] = []
        for n in range(len(operations)):
            self._advance(n, None, None)

    def next_step(self) -> Any:
        """Return the next step for the link, or None when all operations have ended."""
        if not self._steps:
            return None
        # What does not block goes first, as one exchange; then each other step by itself.
        self._joined = [(n, len(s)) for n, s in self._steps.items() if _joins(s)]
        if self._joined:
            return [request for n, _ in self._joined for request in self._steps[n]]
        n, step = next(iter(self._steps.items()))
        self._joined = [(n, -1)]
        return step

    def answer(self, answer: Any) -> None:
        start = 0
        for n, length in self._joined:
            step = self._steps.pop(n)
            if length < 0:
                self._advance(n, step, answer)
                continue
            part = Replies(answer[start : start + length], failed=answer.failed)
            start += length
            self._advance(n, step, part)

    def values(self) -> list[Any]:
        if self._errors:
            raise ExceptionGroup(
                f"{len(self._errors)} of {len(self)} operations failed", self._errors
            )
        return self._results

    def _advance(self, n: int, step: Any, answer: Any) -> None:
        operation = self[n]
        try:
            self._steps[n] = next(operation) if step is None else _answer(operation, step, answer)
        except StopIteration as done:
            self._results[n] = done.value
        except Exception as error:  # kept, and raised with the others
            self._errors.append(error)


def _joins(step: Batch | Locate | Pause) -> bool:
    return isinstance(step, list) and not any(
        isinstance(request, Command) and request.block is not None for request in step
    )
