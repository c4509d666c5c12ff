"""What the tests of operations share: a counting link, and operations of given length."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

from shardkit.errors import ConfigError, InvalidArgumentError, ShardUnavailable
from shardkit.operations import (
    Batch,
    Command,
    Locate,
    Operation,
    Partial,
    Pause,
    Replies,
    Shard,
    Stream,
)
from shardkit.operations.drivers import AwaitingDriver, BlockingDriver


def failure(shard: str) -> ShardUnavailable:
    return ShardUnavailable(f"{shard} is away", shard=shard, command="GET")


class ScriptedLink:
    """A link without servers: answers each command with its last argument, and keeps a record.

    ``("FAIL", shard)`` fails as a value; component ``nowhere`` is not known; an argument that is
    an object cannot be sent.
    """

    def __init__(self) -> None:
        self.record: list[Any] = []

    def send(self, batch: Batch) -> Replies:
        for request in batch:
            if request.to == "nowhere":
                raise ConfigError("component 'nowhere' is not known")
            if isinstance(request, Command) and type(request.args[-1]) is object:
                raise InvalidArgumentError("an object cannot be sent")
        self.record.append([self._args(request) for request in batch])
        replies = [
            failure(str(args[1])) if args[0] == "FAIL" else args[-1]
            for args in map(self._args, batch)
        ]
        failed = any(isinstance(reply, ShardUnavailable) for reply in replies)
        found = Replies(replies)
        found.failed = failed
        return found

    @staticmethod
    def _args(request: Any) -> tuple[Any, ...]:
        return request.args if isinstance(request, Command) else ("MULTI", len(request.commands))

    def locate(self, request: Locate) -> list[tuple[Shard, int | None]]:
        self.record.append(request)
        return [(Shard(str(to)), None) for to, _ in request.targets]

    def pause(self, seconds: float) -> None:
        self.record.append(Pause(seconds))


class AwaitingScriptedLink:
    """The same, awaited."""

    def __init__(self) -> None:
        self._link = ScriptedLink()
        self.record = self._link.record

    async def send(self, batch: Batch) -> Replies:
        return self._link.send(batch)

    async def locate(self, request: Locate) -> list[tuple[Shard, int | None]]:
        return self._link.locate(request)

    async def pause(self, seconds: float) -> None:
        self._link.pause(seconds)


def say(*words: Any, to: str = "c", block: float | None = None) -> Command:
    return Command(to, "k", words, block=block)


def steps(name: str, *batches: Any) -> Operation[Any]:
    """An operation that sends these batches and returns its name with all replies."""
    replies: list[Any] = []
    for batch in batches:
        answer = yield batch
        replies.append(list(answer) if isinstance(answer, Replies) else answer)
    return name, replies


def tolerant(name: str, *batches: Any) -> Operation[Any]:
    """An operation that takes failures as values."""
    found = []
    for batch in batches:
        answer = yield Partial(batch)
        found.append((answer.failed, list(answer)))
    return name, found


class Run:
    """A driver of either kind over a link that keeps a record."""

    def __init__(self, blocks: bool) -> None:
        self.link: Any = ScriptedLink() if blocks else AwaitingScriptedLink()
        self.driver: Any = BlockingDriver(self.link) if blocks else AwaitingDriver(self.link)

    @property
    def record(self) -> list[Any]:
        return self.link.record  # type: ignore[no-any-return]

    async def one(self, operation: Operation[Any]) -> Any:
        found = self.driver.run(operation)
        return await found if inspect.isawaitable(found) else found

    async def together(self, *operations: Operation[Any]) -> Any:
        found = self.driver.together(*operations)
        return await found if inspect.isawaitable(found) else found

    async def listed(self, stream: Stream[Any]) -> list[Any]:
        found: Iterator[Any] | AsyncIterator[Any] = self.driver.iterate(stream)
        if isinstance(found, AsyncIterator):
            return [value async for value in found]
        return list(found)
