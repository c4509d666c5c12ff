"""The functions of `shardkit.admin.growth` for asyncio, with the same names and arguments.

::

    from shardkit.admin.growth import awaiting

    move = await awaiting.start_move(config, ["timelines:3"], "new.internal:6379")

Each runs in a thread of its own with the given blocking client of the config server, so the event
loop continues. ``progress`` and ``finished`` are called in the event loop. Cancelling the task does
not stop the work, because half of a move helps nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from shardkit.admin import growth

P = ParamSpec("P")
R = TypeVar("R")


def _awaiting(function: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    @wraps(function)
    async def run(*args: P.args, **options: P.kwargs) -> R:
        loop = asyncio.get_running_loop()

        def in_loop(function: Callable[..., object], *args: object) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(function, *args)

        for name in ("progress", "finished"):
            if callable(call := options.get(name)):
                options[name] = partial(in_loop, call)
        # Not in the loop's pool: a move takes long, and would block other work.
        threads = ThreadPoolExecutor(1, f"shardkit-{function.__name__}")
        work = partial(copy_context().run, partial(function, *args, **options))
        try:
            return await loop.run_in_executor(threads, work)
        finally:
            threads.shutdown(wait=False)

    return run


abort_move = _awaiting(growth.abort_move)
adopt = _awaiting(growth.adopt)
apply_balance = _awaiting(growth.apply_balance)
apply_fences = _awaiting(growth.apply_fences)
apply_map = _awaiting(growth.apply_map)
attach_replica = _awaiting(growth.attach_replica)
complete_move = _awaiting(growth.complete_move)
detach_replica = _awaiting(growth.detach_replica)
end_change = _awaiting(growth.end_change)
fail_over = _awaiting(growth.fail_over)
measure_balance = _awaiting(growth.measure_balance)
moves = _awaiting(growth.moves)
open_database = _awaiting(growth.open_database)
pending_fences = _awaiting(growth.pending_fences)
plan_apply = _awaiting(growth.plan_apply)
plan_balance = _awaiting(growth.plan_balance)
plan_move = _awaiting(growth.plan_move)
plan_split = _awaiting(growth.plan_split)
repair_changes = _awaiting(growth.repair_changes)
replica_tree = _awaiting(growth.replica_tree)
resume_move = _awaiting(growth.resume_move)
reverse_move = _awaiting(growth.reverse_move)
start_move = _awaiting(growth.start_move)
start_split = _awaiting(growth.start_split)
verify_move = _awaiting(growth.verify_move)
verify_replica = _awaiting(growth.verify_replica)
verify_replicas = _awaiting(growth.verify_replicas)

__all__ = [name for name in vars(growth) if name[:1] != "_" and name in globals()]
