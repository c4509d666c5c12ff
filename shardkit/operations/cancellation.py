"""Undoes batches that remove values when their task is cancelled.

Cancelling a task whose LPOP is in flight does not stop the server: the value is popped, and no one
receives the reply. So such a batch is still completed, and the values are put back before the
cancellation continues::

    task ── LPOP ──►  server            the value leaves the list
         ✗ cancelled
         ◄─ "job 7"                     its reply is waited for
         ── LPUSH "job 7" ──►           and put back where it was
         CancelledError

If the process ends or its connection breaks at that moment, the value is lost, as with a plain
LPOP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from shardkit.operations.commands import Command, Replies
from shardkit.operations.drivers import AwaitingDriver
from shardkit.operations.operation import Driver, Operation


class UndoableBatch(list[Command]):
    """A batch that removes values; ``undo`` makes commands or steps from the replies."""

    def __init__(
        self,
        commands: Iterable[Command],
        undo: Callable[[Replies], list[Command] | Operation[Any]],
    ) -> None:
        super().__init__(commands)
        self.undo = undo


def undo_on_cancel(driver: Driver) -> Driver:
    """Return a driver that undoes an `UndoableBatch` when its task is cancelled.

    A blocking driver is returned unchanged, because its calls cannot be cancelled.
    """
    return _UndoingDriver(driver.link) if isinstance(driver, AwaitingDriver) else driver


class _UndoingDriver(AwaitingDriver):
    def _run_step(self, step: Any) -> Any:
        return (
            self._send_shielded(step)
            if isinstance(step, UndoableBatch)
            else super()._run_step(step)
        )

    async def _send_shielded(self, step: UndoableBatch) -> Any:
        exchange = asyncio.ensure_future(self._send(step))
        try:
            return await asyncio.shield(exchange)
        except asyncio.CancelledError:
            with suppress(Exception):
                # A task of its own, so that a second cancellation does not end it.
                await asyncio.shield(asyncio.ensure_future(self._undo(step, exchange)))
            raise

    async def _undo(self, step: UndoableBatch, exchange: asyncio.Future[Replies]) -> None:
        undoing = step.undo(await exchange)
        if not isinstance(undoing, list):
            await self.run(undoing)
        elif undoing:
            await self._send(undoing)
