"""The step that calls a function: on both faces, in lock step, and when it fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from operation_helpers import Run, say, steps

from shardkit.operations import Call, Operation


def calling(function: Callable[..., Any], *args: Any) -> Operation[Any]:
    try:
        return (yield Call(function, args))
    except OSError as error:
        return f"caught {error}"


@pytest.mark.parametrize("ending", [StopIteration, GeneratorExit])
async def test_what_would_end_steps_is_an_error(run: Run, ending: type[BaseException]) -> None:
    def end() -> None:
        raise ending

    with pytest.raises(RuntimeError, match=f"raised {ending.__name__}"):
        await run.one(calling(end))
    with pytest.raises(ExceptionGroup, match="1 of 2") as raised:
        await run.together(calling(end), steps("a", Call(abs, (-3,)), [say("GET", 1)]))
    assert f"raised {ending.__name__}" in str(raised.value.exceptions[0])
    assert run.link.record == [[("GET", 1)]]


async def test_the_event_loop_goes_on_while_a_function_blocks() -> None:
    run, going = Run(blocks=False), threading.Event()
    task = asyncio.ensure_future(run.one(calling(going.wait, 30)))
    await asyncio.sleep(0)
    going.set()
    assert await task is True


async def test_calls_of_one_turn_run_at_the_same_time_on_the_awaiting_face() -> None:
    meeting = threading.Barrier(3, timeout=30)
    found = await Run(blocks=False).together(*[calling(meeting.wait) for _ in range(3)])
    assert sorted(found) == [0, 1, 2]


async def test_a_cancelled_task_ends_its_steps_at_once() -> None:
    begun, going, ended = threading.Event(), threading.Event(), []

    def wait() -> None:
        begun.set()
        going.wait(30)

    def waiting() -> Operation[None]:
        try:
            yield Call(wait)
        finally:
            ended.append(True)

    task = asyncio.ensure_future(Run(blocks=False).one(waiting()))
    assert await asyncio.to_thread(begun.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]
    going.set()
