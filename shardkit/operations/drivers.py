"""Drivers run operations: they pass each batch to a link and the replies back to the steps.

A failure in a batch is raised at the ``yield``, as one ShardErrors that names every failed shard; a
``Partial`` batch gets its failures as values instead.

``together`` runs many operations in lock step: all their first batches go out as one exchange,
then all their second ones, and so on. 10,000 operations of two exchanges each take two in all.

Steps whose task is cancelled, or whose thread is interrupted, may undo what they did; see
`cancellation.py`.

A ``Call`` is a function that the driver calls between exchanges: directly on the blocking face, in
a thread on the awaiting one. Its errors are raised at the ``yield``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

from shardkit.errors import (
    DamagedDataError,
    OperationErrors,
    ShardErrors,
    ShardFailure,
    ShardKitError,
    UnexpectedReply,
    not_pickled,
)
from shardkit.events import finished, handlers, observed, started
from shardkit.operations.arguments import check_seconds
from shardkit.operations.cancellation import Interrupted
from shardkit.operations.commands import (
    Abandon,
    AwaitWakeup,
    Batch,
    Call,
    Columns,
    Command,
    CommandList,
    Locate,
    Pause,
    Replies,
    Reply,
    Subscribe,
    coalesced,
    raise_failures,
)
from shardkit.operations.deadlines import (
    DeadlineBlock,
    begin,
    call as call_context,
    earliest,
    extend,
    has_started,
    in_use,
    within,
)
from shardkit.operations.interruptions import has_returned
from shardkit.operations.operation import Operation, Page, Stream
from shardkit.operations.reply_kinds import READING_ERRORS, misread
from shardkit.operations.steps import arun_steps, run_steps

T = TypeVar("T")


class _StepRunner:
    """What both drivers share."""

    link: Any
    _send: Callable[[Any], Any]
    _call: Callable[[Any], Any]
    _send_within: Callable[[Any, float], Any]
    _undo: Callable[[Any], Any]
    run: Callable[[Any], Any]
    __reduce__ = not_pickled

    def _ended(
        self, error: BaseException, steps: Any, event: Any, *exchanges: Any
    ) -> Generator[Any, Any, None]:
        """Let an operation that an error ends undo what it did; raise what explains the error."""
        failure = _explained(error, steps, *exchanges)
        if (step := _interrupt(steps, error)) is not None:
            yield partial(self._undo, _rest(steps, step))
        if isinstance(failure, _LOCATED):
            yield partial(self.run, _located(failure, self.link))
        if event is not None:
            finished(event, failure)
        if failure is not error:
            raise failure from error

    def _run_step(self, step: Any) -> Any:
        """Carry out a step; on the awaiting face, return an awaitable."""
        if isinstance(step, Locate):
            return self.link.locate(step)
        if isinstance(step, Pause):
            deadline = earliest(None)
            if deadline is not None:  # a loop whose failures are values would spin
                deadline.require_left()
            extend(step.seconds)
            return self.link.pause(step.seconds)
        if isinstance(step, Subscribe):
            return self.link.subscribe(step)
        if isinstance(step, AwaitWakeup):
            return self.link.await_wakeup(step)
        if isinstance(step, Abandon):
            return self.link.abandon(step.command)
        if isinstance(step, Call | _Calls):
            return self._call(step)
        if isinstance(step, CommandList) and step.timeout is not None:
            return self._send_within(step, check_seconds("Partial", "timeout", step.timeout))
        return self._send(step)


class BlockingDriver(_StepRunner):
    """Runs steps over a blocking link."""

    def __init__(self, link: Any) -> None:
        self.link = link
        self._send = link.send

    def run(self, steps: Operation[T]) -> T:
        """Return an operation's value; raise ShardErrors unless it merges partial results."""
        if in_use.by_entries and not has_started():
            with within(begin()):
                return self.run(steps)
        call = started(*call_of(steps)) if handlers else None
        older: Any = None  # the exchanges before the last, whose replies steps may read late
        past: Any = None
        sent = replies = None
        try:
            step = next(steps)
            while True:
                older, past, sent = past, (sent, replies), step
                if type(step) is list:
                    replies = self._send(step)
                    if not replies.failed:
                        step = steps.send(replies)
                        continue
                else:
                    replies = self._run_step(step)
                step = _answer(steps, step, replies)
        except BaseException as error:
            if has_returned(error):
                if call is not None:
                    finished(call, None)
                return error.value  # type: ignore[no-any-return]
            run_steps(self._ended(error, steps, call, (sent, replies), past, older))
            raise

    def iterate(self, steps: Stream[T]) -> Generator[T, None, None]:
        """Run a stream: yield its values one by one."""
        pages: _Pages[T] = _Pages(self, steps)
        try:
            while (page := run_steps(pages.following())) is not None:
                yield from page
                del page  # so that only one page is held at a time
        finally:
            steps.close()

    def together(self, *operations: Operation[T]) -> list[T]:
        """Run operations in lock step and return their values, in order.

        The operations are unstarted steps, as a deferred face returns them.

        Raises:
            OperationErrors: the errors of operations that failed; all others have completed.
        """
        with call_context(), observed("together"):
            lock_step = _LockStep(operations)
            try:
                run_steps(lock_step.turns(), self._run_step)
            except BaseException:
                if lock_step.interrupt():
                    self._undo(lock_step.turns())
                raise
            for error in lock_step.unlocated():
                self.run(_located(error, self.link))
            return lock_step.values()

    def _undo(self, steps: Generator[Any, Any, None]) -> None:
        with suppress(Exception, Interrupted), within(None):
            run_steps(steps, self._run_step)

    def _send_within(self, batch: Batch, seconds: float) -> Any:
        with DeadlineBlock(seconds):
            return self.link.send(batch)

    def _call(self, step: Call | _Calls) -> Any:
        return [_call(call) for call in step] if isinstance(step, _Calls) else _call(step)


class AwaitingDriver(_StepRunner):
    """Runs steps over an awaiting link."""

    def __init__(self, link: Any) -> None:
        self.link = link
        self._send = link.send

    async def run(self, steps: Operation[T]) -> T:
        """Run an operation and return its value; see `BlockingDriver.run`."""
        if in_use.by_entries and not has_started():
            with within(begin()):
                return await self.run(steps)
        call = started(*call_of(steps)) if handlers else None
        older: Any = None  # the exchanges before the last, whose replies steps may read late
        past: Any = None
        sent = replies = None
        try:
            step = next(steps)
            while True:
                older, past, sent = past, (sent, replies), step
                if type(step) is list:
                    replies = await self._send(step)
                    if not replies.failed:
                        step = steps.send(replies)
                        continue
                else:
                    replies = await self._run_step(step)
                step = _answer(steps, step, replies)
        except BaseException as error:
            if has_returned(error):
                if call is not None:
                    finished(call, None)
                return error.value  # type: ignore[no-any-return]
            await arun_steps(self._ended(error, steps, call, (sent, replies), past, older))
            raise

    async def iterate(self, steps: Stream[T]) -> AsyncGenerator[T, None]:
        """Run a stream: yield its values one by one."""
        pages: _Pages[T] = _Pages(self, steps)
        try:
            while (page := await arun_steps(pages.following())) is not None:
                for value in page:
                    yield value
                del page  # so that only one page is held at a time
        finally:
            steps.close()

    async def together(self, *operations: Operation[T]) -> list[T]:
        """Run operations in lock step; see `BlockingDriver.together`."""
        with call_context(), observed("together"):
            lock_step = _LockStep(operations)
            try:
                await arun_steps(lock_step.turns(), self._run_step)
            except GeneratorExit:
                raise
            except BaseException:
                if lock_step.interrupt():
                    await self._undo(lock_step.turns())
                raise
            for error in lock_step.unlocated():
                await self.run(_located(error, self.link))
            return lock_step.values()

    async def _undo(self, steps: Generator[Any, Any, None]) -> None:
        await shielded(arun_steps(steps, self._run_step))

    def _run_step(self, step: Any) -> Any:
        undo = step.undo if isinstance(step, CommandList) else None
        run = super()._run_step(step)
        return run if undo is None else self._send_undoable(run, undo)

    async def _send_undoable(self, run: Any, undo_steps: Callable[[Replies], Any]) -> Any:
        exchange = asyncio.ensure_future(run)

        async def undo() -> None:
            await self.run(undo_steps(await exchange))

        try:
            return await asyncio.shield(exchange)
        except asyncio.CancelledError:
            await shielded(undo())
            raise

    async def _send_within(self, batch: Batch, seconds: float) -> Any:
        with DeadlineBlock(seconds):
            return await self.link.send(batch)

    async def _call(self, step: Call | _Calls) -> Any:
        if isinstance(step, _Calls):
            return await asyncio.gather(*(asyncio.to_thread(_call, call) for call in step))
        return await asyncio.to_thread(_call, step)


def call_of(steps: object) -> tuple[str, str]:
    """Return an operation's name, ``ShardedHash.hget``, and its structure: ``unique users``."""
    name = str(getattr(steps, "__qualname__", ""))
    frame = getattr(steps, "gi_frame", None)
    if name.count(".") == 1 and frame is not None and "self" in frame.f_locals:
        owner = frame.f_locals["self"]
        kinds = [kind.__name__ for kind in type(owner).__mro__]
        public = next((kind for kind in kinds if not kind.startswith("_")), "")
        structure = f"{owner.component} {owner.name}" if hasattr(owner, "_driver") else ""
        # Not a base class's, which users do not know.
        return f"{public}.{name.rpartition('.')[2]}", structure
    return name, ""


_LOCATED = DamagedDataError, UnexpectedReply


def _explained(error: BaseException, steps: Any, *exchanges: Any) -> BaseException:
    """Return the error itself, unless steps raised it over a reply that Redis does not give."""
    ended = getattr(steps, "gi_frame", None) is None
    return (ended and misread(error, filter(None, exchanges))) or error


def _located(error: DamagedDataError | UnexpectedReply, link: Any) -> Operation[None]:
    """Add the key that must be searched for, and the shard, to an error."""
    if isinstance(error, UnexpectedReply):
        [(shard, _)] = yield Locate([(error.place, error.key)])
        error.locate(shard, link.address_of(shard))
        return
    if error.search is not None and (damaged := (yield from error.search())) is not None:
        place, key = damaged
        component = place if isinstance(place, str) else place.component
        error.__init__(  # type: ignore[misc]
            key, error.found, error.expected, error.remedy, component=component, place=place
        )
    if error.place and not error.shard:
        [(shard, _)] = yield Locate([(error.place, error.key)])
        error.shard = str(shard)


def _rest(steps: Operation[Any], step: Any) -> Generator[Any, Any, None]:
    """Yield the rest of an operation's steps, from one that it has yielded."""
    with suppress(StopIteration):
        while True:
            step = _answer(steps, step, (yield step))


class _Pages(Generic[T]):
    """The pages of a stream."""

    def __init__(self, driver: _StepRunner, steps: Stream[T]) -> None:
        self._driver = driver
        self._steps = steps
        self._exchanges: tuple[Any, ...] = ()  # the last two

    def following(self) -> Generator[Any, Any, Page[T] | None]:
        """Return the next page, None at the end: yield calls of what must be done before."""
        steps, driver = self._steps, self._driver
        try:
            step: Any = next(steps)
            while not isinstance(step, Page):
                replies = yield partial(driver._run_step, step)
                self._exchanges = (step, replies), *self._exchanges[:1]
                step = _answer(steps, step, replies)
        except StopIteration:
            return None
        except Exception as error:
            failure = _explained(error, steps, *self._exchanges)
            if isinstance(failure, _LOCATED):
                yield partial(driver.run, _located(failure, driver.link))
            if failure is not error:
                raise failure from error
            raise
        return step


def _interrupt(steps: Operation[Any], error: BaseException) -> Any:
    """Raise an error in steps unless they have ended; return what they yield then, or None."""
    if getattr(steps, "gi_frame", None) is None or isinstance(error, GeneratorExit):
        steps.close()
        return None
    try:
        return steps.throw(error if isinstance(error, ShardKitError) else Interrupted())
    except (Exception, Interrupted):
        return None


async def shielded(undoing: Awaitable[None]) -> None:
    """Wait for steps that undo; they are a task of their own, which no cancellation ends."""

    async def undo() -> None:
        with suppress(Exception, Interrupted), within(None):
            await undoing

    await asyncio.shield(asyncio.ensure_future(undo()))


class _Calls(list[Call]):
    """The calls of several operations in one turn."""


class _CallFailure(NamedTuple):
    """The answer to a call whose function raised an error."""

    error: Exception


def _call(call: Call) -> Any:
    try:
        return call.function(*call.args)
    except Exception as error:  # raised again in the steps
        return _CallFailure(error)
    except GeneratorExit as error:  # raised in the steps, it would close them
        failure = RuntimeError("a called function raised GeneratorExit")
        failure.__cause__ = error
        return _CallFailure(failure)


def _answer(steps: Generator[Any, Any, Any], step: Any, answer: Any) -> Any:
    """Send an answer into the steps, or raise a failure there; return the next step."""
    if isinstance(answer, _CallFailure):
        return steps.throw(answer.error)
    if isinstance(answer, Replies) and answer.failed and not getattr(step, "partial", False):
        try:
            raise_failures(answer)
        except (ShardErrors, DamagedDataError) as errors:
            return steps.throw(errors)
    try:
        return steps.send(answer)
    except READING_ERRORS as error:
        if (failure := _explained(error, steps, (step, answer))) is not error:
            raise failure from error
        raise


class _LockStep:
    """Operations in lock step: joins the batches that they yield, and splits the replies. Pure.

    A turn advances every operation by one step: first all batches as one exchange, then one pause
    for all, then all calls, then each other step alone.
    """

    def __init__(self, operations: Sequence[Operation[Any]]) -> None:
        self._operations = operations
        self._results: list[Any] = [None] * len(operations)
        self._errors: list[Exception] = []
        self._steps: dict[int, Any] = {}
        # The operations left in this turn, and those of the current step.
        self._waiting: list[list[int]] = []
        self._current: list[int] = []
        for n in range(len(operations)):
            self._advance(n, next, operations[n])

    def turns(self) -> Generator[Any, Any, None]:
        """Yield the steps for the link, one after the other, until all operations have ended."""
        while (step := self._next_step()) is not None:
            try:
                answer = yield step
            except ShardKitError as error:
                self._retry_alone(error)
            else:
                self._answer(answer)

    def _next_step(self) -> Any:
        if not self._waiting:
            if not self._steps:
                return None
            kinds: dict[Any, list[int]] = {}
            for n, step in self._steps.items():
                kinds.setdefault(_kind(step) or n, []).append(n)
            joined = [kinds.pop(kind) for kind in _JOINABLE if kind in kinds]
            self._waiting = joined + list(kinds.values())
        self._current = self._waiting.pop(0)
        steps = [self._steps[n] for n in self._current]
        if len(steps) == 1:
            return steps[0]
        if isinstance(steps[0], Pause):
            return max(steps)
        if isinstance(steps[0], Call):
            return _Calls(steps)
        requests = [request for step in steps for request in step]
        if any(getattr(step, "undo", None) for step in steps):
            return CommandList(requests, undo=partial(_undo_all, steps))
        return CommandList(requests, coalesced=True) if all(map(coalesced, steps)) else requests

    def _answer(self, answer: Any) -> None:
        """Give the link's answer to the operations concerned."""
        start = 0
        single = len(self._current) == 1
        for turn, n in enumerate(self._current):
            step = self._steps.pop(n)
            part = answer
            if not single and isinstance(step, Call):
                part = answer[turn]
            elif not single and not isinstance(step, Pause):
                part = Replies(answer[start : start + len(step)])
                part.failed = answer.failed and any(map(_failed, part))
                start += len(step)
            self._advance(n, _answer, self._operations[n], step, part)

    def _retry_alone(self, error: ShardKitError) -> None:
        """Retry joined steps alone that were rejected unsent, so that only the faulty one fails."""
        if len(self._current) > 1:
            self._waiting = [[n] for n in self._current] + self._waiting
            return
        [n] = self._current
        del self._steps[n]
        self._advance(n, self._operations[n].throw, error)

    def interrupt(self) -> bool:
        """Interrupt operations that have not ended; return whether some undo what they did."""
        self._waiting, interrupted, self._steps = [], self._steps, {}
        for n in interrupted:
            self._advance(n, self._operations[n].throw, Interrupted())
        return bool(self._steps)

    def unlocated(self) -> list[DamagedDataError | UnexpectedReply]:
        return [error for error in self._errors if isinstance(error, _LOCATED)]

    def values(self) -> list[Any]:
        """Return the operations' values, in order."""
        if self._errors:
            failed, count = len(self._errors), len(self._operations)
            raise OperationErrors(f"{failed} of {count} operations failed", self._errors)
        return self._results

    def _advance(self, n: int, move: Callable[..., Any], *args: Any) -> None:
        try:
            self._steps[n] = move(*args)
        except StopIteration as done:
            self._results[n] = done.value
        except Exception as error:  # raised with the others at the end
            self._errors.append(error)
        except Interrupted:
            pass


def _undo_all(batches: Sequence[Batch], replies: Replies) -> Operation[None]:
    rest = iter(replies)
    for batch in batches:
        part = Replies(islice(rest, len(batch)))
        if (undo := getattr(batch, "undo", None)) is not None:
            yield from undo(part)


_JOINABLE = ("batch", "pause", "call")


def _kind(step: Any) -> str:
    """Return the kind of steps with which a step can be joined; empty for none."""
    if isinstance(step, Pause):
        return "pause"
    if isinstance(step, Call):
        return "call"
    if isinstance(step, Columns):
        return "batch"
    if not isinstance(step, list) or any(
        isinstance(request, Command) and request.block is not None for request in step
    ):
        return ""
    return "batch"


def _failed(reply: Reply) -> bool:
    if isinstance(reply, list):  # a transaction's
        return any(isinstance(inner, ShardFailure) for inner in reply)
    return isinstance(reply, ShardFailure)
