"""Drivers without servers: what is sent in which exchange, and who gets which reply or error."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
from operation_helpers import BlockingDriver, Run, ScriptedLink, failure, say, steps, tolerant

from shardkit.errors import (
    ConfigError,
    DamagedDataError,
    ShardErrors,
)
from shardkit.operations import (
    Call,
    Locate,
    Operation,
    Page,
    Partial,
    Pause,
    Replies,
    Stream,
    Transaction,
)

# ---- one operation


async def test_steps_are_closed_whatever_happens(run: Run) -> None:
    closed = []

    def operation(batch: Any) -> Operation[None]:
        try:
            yield batch
        finally:
            closed.append(batch)

    with pytest.raises(ConfigError, match="component 'nowhere' is not known"):
        await run.one(operation([say("GET", 1, to="nowhere")]))
    with pytest.raises(ShardErrors, match=r"1 shard failed \(c\)"):
        await run.one(operation([say("FAIL", "c")]))
    assert len(closed) == 2


# ---- streams


async def test_a_stream_that_is_left_early_sends_no_more_and_is_closed() -> None:
    closed = []

    def stream() -> Stream[int]:
        try:
            while True:
                yield Page((yield [say("GET", 1)]))
        finally:
            closed.append(True)

    blocking, awaiting = Run(True), Run(False)
    for _ in blocking.driver.iterate(stream()):
        break
    async for _ in (left := awaiting.driver.iterate(stream())):
        break
    await left.aclose()
    gc.collect()
    assert closed == [True, True]
    assert len(blocking.record) == len(awaiting.record) == 1


@pytest.mark.parametrize("shard", ["", "c:7"])
async def test_whoever_runs_what_finds_damage_says_where_it_is(run: Run, shard: str) -> None:
    def damage() -> DamagedDataError:
        return DamagedDataError("k", "text", "a number", component="c", shard=shard)

    def operation() -> Operation[None]:
        yield [say("GET", 1)]
        raise damage()

    def stream() -> Stream[int]:
        yield Page((yield [say("GET", 1)]))
        raise damage()

    found: list[Any] = []
    for way in (run.one(operation()), run.listed(stream())):
        with pytest.raises(DamagedDataError, match="k is damaged: text, where a number was") as one:
            await way
        found.append(one.value)
    with pytest.raises(ExceptionGroup, match="1 of 2 operations failed") as several:
        await run.together(operation(), steps("b", [say("GET", 2)]))
    found += several.value.exceptions
    assert [error.shard for error in found] == 3 * [shard or "c"]
    looked = [step for step in run.record if isinstance(step, Locate)]
    assert looked == ([] if shard else 3 * [Locate([("c", "k")])])


# ---- together


async def test_thousands_of_operations_are_as_many_exchanges_as_the_longest(run: Run) -> None:
    operations = [steps(str(n), *[[say("GET", n)]] * (1 + n % 3)) for n in range(3_000)]
    found = await run.together(*operations)
    assert [value for _, value in found[:3]] == [[[0]], [[1], [1]], [[2], [2], [2]]]
    assert [len(exchange) for exchange in run.record] == [3_000, 2_000, 1_000]


async def test_one_that_fails_does_not_lose_the_others(run: Run) -> None:
    with pytest.raises(ExceptionGroup, match="2 of 4 operations failed") as raised:
        await run.together(
            steps("a", [say("GET", 1)], [say("GET", "last of a")]),
            steps("b", [say("FAIL", "c:7")], [say("GET", "never")]),
            tolerant("c", [say("FAIL", "c:8"), say("GET", 3)], [say("GET", "last of c")]),
            steps("d", [say("GET", 4)], [say("FAIL", "c:9")]),
        )
    assert [sorted(e.shard for e in group.exceptions) for group in raised.value.exceptions] == [
        ["c:7"],
        ["c:9"],
    ]
    assert ("GET", "last of a") in run.record[1]
    assert ("GET", "last of c") in run.record[1]
    assert ("GET", "never") not in run.record[1]


async def test_commands_that_block_are_never_fused(run: Run) -> None:
    found = await run.together(
        steps("a", [say("BLPOP", "a", block=1.0)]),
        steps("b", [say("GET", "b")]),
        steps("c", [say("GET", "c1"), say("BLPOP", "c2", block=0)]),
        steps("d", [say("GET", "d")]),
    )
    assert [name for name, _ in found] == ["a", "b", "c", "d"]
    assert run.record == [
        [("GET", "b"), ("GET", "d")],
        [("BLPOP", "a")],
        [("GET", "c1"), ("BLPOP", "c2")],
    ]


async def test_those_who_pause_wait_at_the_same_time(run: Run) -> None:
    await run.together(
        *[steps("p", Pause(n / 10), [say("GET", n)]) for n in range(5)], steps("q", [say("GET", 9)])
    )
    assert run.record[:2] == [[("GET", 9)], Pause(0.4)]
    assert [len(exchange) for exchange in run.record[2:]] == [5]


async def test_operations_may_ask_where_keys_live_meanwhile(run: Run) -> None:
    found = await run.together(
        steps("a", Locate([("x", 1), ("y", 2)])), steps("b", [say("GET", 1)])
    )
    assert [shard.component for shard, _ in found[0][1][0]] == ["x", "y"]
    assert found[1] == ("b", [[1]])


async def test_failures_inside_a_transaction_are_its_operations(run: Run) -> None:
    class Link(ScriptedLink):
        def send(self, batch: Any) -> Replies:
            replies = Replies(
                [1, failure("c:1")] if isinstance(r, Transaction) else 1 for r in batch
            )
            replies.failed = True
            return replies

    driver = BlockingDriver(Link())
    group = Transaction("c", "k", (say("GET", 1), say("GET", 2)))
    with pytest.raises(ExceptionGroup, match="1 of 2"):
        driver.together(steps("a", [group]), steps("b", [say("GET", 1)]))
    with pytest.raises(ShardErrors, match="c:1"):
        driver.run(steps("a", [group]))
    assert driver.run(steps("a", Partial([group])))[0] == "a"


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
