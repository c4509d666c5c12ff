"""What steps do when their task is cancelled or their thread interrupted: give back and undo.

A driver raises `Interrupted` at the ``yield``, and carries out what the steps yield after that, in
a task of its own, before the cancellation continues::

    task ── EVALSHA acquire ──►  server          it may get the lock
         ✗ cancelled
         ── EVALSHA release ──►                  the steps caught Interrupted
         CancelledError

Values that a server removed are in its reply only. So steps that remove values are `completed`
first::

    task ── LPOP ──►  server                     the value leaves the list
         ✗ cancelled
         ◄─ "job 7"                              its reply is waited for
         ── LPUSH "job 7" ──►                    and put back where it was
         CancelledError

If the process ends or its connection breaks at that moment, nothing is undone: a lock expires, and
a removed value is lost, as with a plain LPOP. Nor is it if a thread is interrupted during an LPOP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from shardkit.operations.commands import Batch, Columns, CommandList, Replies
from shardkit.operations.operation import Operation

T = TypeVar("T")


class Interrupted(BaseException):
    """The task was cancelled, or a signal handler raised an error in the thread."""


def surely(batch: Batch) -> Operation[Replies]:
    """Send a batch that gives something back; send it again if that is interrupted."""
    try:
        replies: Replies = yield batch
    except Interrupted:
        yield batch
        raise
    return replies


def completed(steps: Operation[T], undo: Callable[[T], Operation[Any]]) -> Operation[T]:
    """Run steps that remove values to their end even if their task is cancelled, then undo them."""

    def finish(replies: Replies) -> Operation[None]:
        yield from undo((yield from run(replies)))

    def run(answer: Any) -> Operation[T]:
        resume = steps.send
        try:
            while True:
                step: Any = resume(answer)
                resume = steps.send
                if isinstance(step, list | Columns):
                    kind = type(step) if isinstance(step, CommandList) else CommandList
                    step = kind(step, getattr(step, "timeout", None), undo=finish)
                try:
                    answer = yield step
                except Exception as error:
                    resume, answer = steps.throw, error
        except StopIteration as done:
            value: T = done.value
            return value

    return run(None)
