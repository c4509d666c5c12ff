"""Steps that share an exchange with other commands."""

from __future__ import annotations

from typing import Any, TypeVar

from shardkit.operations.commands import Batch
from shardkit.operations.operation import Operation

T = TypeVar("T")


def alongside(batch: Batch, steps: Operation[T]) -> Operation[tuple[list[Any], T]]:
    """Run steps, and send a batch together with, and before, the first of theirs.

    Args:
        batch: commands.
        steps: an operation that was not started; its first step is a batch, or it has none.

    Returns:
        The replies to the batch, and what the steps return.
    """
    try:
        first: Any = next(steps)
    except StopIteration as done:
        replies = (yield list(batch)) if batch else []
        return list(replies), done.value
    replies = yield [*batch, *first]
    try:
        step = steps.send(replies[len(batch) :])
    except StopIteration as done:
        return list(replies[: len(batch)]), done.value

    def rest() -> Operation[T]:
        answer = yield step
        while True:
            try:
                following = steps.send(answer)
            except StopIteration as done:
                value: T = done.value
                return value
            answer = yield following

    return list(replies[: len(batch)]), (yield from rest())
