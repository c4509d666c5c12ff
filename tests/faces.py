"""A kit of either face, used in one way by tests that hold for both."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any
from uuid import UUID

import redis

import shardkit
from shardkit import ServerClock, ShardKit, ShardMap
from shardkit.operations import Page

# How many times as long as on a quiet machine the suite waits.
PATIENCE = float(os.environ.get("PATIENCE", "1"))
ALL_CASES = os.environ.get("CASES") == "all"  # else long tests do a part of them


def drawn(some: int, of_all: int) -> int:
    """How many cases, steps or examples of a long test are tried: with ``CASES=all``, all."""
    return of_all if ALL_CASES else some


def seed(longer: str = "CASES") -> int:
    """The seed of what a test tries: 1, or a new one where a variable asks for a longer test."""
    found = Random().randrange(1_000_000) if ALL_CASES or longer in os.environ else 1
    print(f"seed {found}")
    return found


SESSION = "550e8400-e29b-41d4-a716-446655440000"
SESSION_ID = 383061330139657245


def sessions(count: int, seed: int = 0) -> list[str]:
    """Version 4 UUIDs, always the same ones."""
    random = Random(seed)
    return [str(UUID(int=random.getrandbits(128), version=4)) for _ in range(count)]


class Face:
    """A kit, and how what its structures return becomes a value or a list."""

    def __init__(self, kit: Any, runner: asyncio.Runner | None) -> None:
        self.kit = kit
        self.runner = runner

    def run(self, result: Any) -> Any:
        """What a call returned, awaited where it has to be."""
        return self.runner.run(result) if self.runner and inspect.isawaitable(result) else result

    def list(self, stream: Any) -> list[Any]:
        async def collect() -> list[Any]:
            return [value async for value in stream]

        return self.runner.run(collect()) if self.runner else list(stream)

    def start(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """Begin a call in a thread or task of its own; return what waits for its result."""
        if self.runner is None:
            threads = ThreadPoolExecutor(1)
            started = threads.submit(call)
            threads.shutdown(wait=False)
            return partial(started.result, 30 * PATIENCE)

        async def begin() -> Any:
            return asyncio.ensure_future(call())

        task = self.runner.run(begin())
        return lambda: self.run(asyncio.wait_for(task, 30 * PATIENCE))

    def eventually(self, done: Callable[[], Any]) -> bool:
        """Whether something is true in time, while the tasks of the event loop go on."""
        return self.run(asyncio.to_thread(eventually, done)) if self.runner else eventually(done)

    def iterate(self, stream: Any) -> Iterator[Any]:
        """Yield a stream's values one by one, so that the test can act in between."""
        if self.runner is None:
            yield from stream
            return
        values = aiter(stream)

        async def following() -> Any:
            return await anext(values, None)

        try:
            while (value := self.runner.run(following())) is not None:
                yield value
        finally:
            self.runner.run(values.aclose())


class Exchanges:
    """A deferred operation, or stream, one exchange at a time: a test can act before each."""

    def __init__(self, face: Face | ShardKit, operation: Any) -> None:
        self.result: Any = None
        self.values: list[Any] = []  # of a stream
        self._face = face if isinstance(face, Face) else Face(face, None)
        self._steps = self._run(operation)

    def __iter__(self) -> Iterator[Any]:
        return self._steps

    def stop_after(self, count: int) -> bool:
        """Carry out ``count`` exchanges, as a client that is killed; return whether more follow."""
        return any(number == count for number, _ in enumerate(self._steps))

    def until(self, name: str) -> Any:
        """Carry out what comes before a batch with a command or script; return that batch."""
        return next(batch for batch in self._steps if sends(batch, name))

    def end(self, before: Callable[[Any], object] = bool) -> Any:
        """Carry out the rest, with a call before each exchange; return the operation's result."""
        for step in self._steps:
            before(step)
        return self.result

    def _run(self, operation: Any) -> Iterator[Any]:
        def one(step: Any) -> Any:
            return (yield step)

        go_on = partial(operation.send, None)
        while True:
            try:
                step = go_on()
            except StopIteration as end:
                self.result = end.value
                return
            yield step
            if isinstance(step, Page):
                self.values += step
                go_on = partial(operation.send, None)
                continue
            try:
                go_on = partial(
                    operation.send, self._face.run(self._face.kit.driver.run(one(step)))
                )
            except Exception as error:
                go_on = partial(operation.throw, error)


def sends(step: Any, *names: str) -> bool:
    """Whether a step is a batch with one of these commands or scripts."""
    commands = step if isinstance(step, Sequence) else ()
    return any(getattr(command, "name", "") in names for command in commands)


@contextmanager
def faced(kind: str, shard_map: ShardMap | str, **options: Any) -> Iterator[Face]:
    """Open a kit of the kind ``blocking`` or ``awaiting``."""
    if kind == "blocking":
        with shardkit.connect(shard_map, **options) as kit:
            yield Face(kit, None)
        return
    with asyncio.Runner() as runner:
        akit = runner.run(shardkit.aconnect(shard_map, **options))
        try:
            yield Face(akit, runner)
        finally:
            runner.run(akit.aclose())


class Time:
    """A clock that a test sets."""

    def __init__(self, at: float = 1_000_000.0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


def alive(pid: int) -> bool:
    """Whether a process is there and more than a zombie that nobody has waited for."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # gone in between, or no Linux
        return not os.path.exists("/proc/self")


def eventually(done: Callable[[], Any], seconds: float = 20) -> Any:
    """What is true in time, or False."""
    deadline = time.monotonic() + seconds * PATIENCE
    while time.monotonic() < deadline:
        if found := done():
            return found
        threading.Event().wait(0.002)
    return False


def clocked(kit: Any, **readings: Any) -> Any:
    """The kit with another clock, `ServerClock(**readings)`, for what it makes."""
    other = object.__new__(type(kit))
    vars(other).update(vars(kit), _clock=ServerClock(**readings))
    return other


def over(kit: Any, link: Any) -> Any:
    """The kit with another link, for what it makes: one that a test puts before the kit's own."""
    other = object.__new__(type(kit))
    driver = type(kit.driver)(link)
    vars(other).update(vars(kit), driver=driver, _driver=driver)
    return other


def holder(kit: ShardKit, component: str, key: str) -> redis.Redis:
    """The client of the shard on which a key lives."""
    client = kit.client(component, kit.component(component).shard_of(key).number)
    assert isinstance(client, redis.Redis)
    return client


def own_client(kit: Any, component: str, number: int | None = None) -> Any:
    """The client by which structures and pipelines go; `kit.client` is one to hand out.

    Of an awaiting kit in its event loop, and a component that has been read.
    """
    get = kit.clients.get if isinstance(kit, ShardKit) else kit.clients.aget
    return get(kit.topology.last_known(component), number, raw=False)


def answer(kit: ShardKit, step: Any) -> Any:
    """Carry out one step of an operation."""

    def one() -> Any:
        return (yield step)

    return kit.driver.run(one())


def free_port() -> int:
    """A port of this machine at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def keys_of(kit: ShardKit, component: str) -> set[str]:
    """All keys of a component, of its entry and its shards; but what is kept of deletions."""
    found = kit.component(component)
    clients = [kit.client(component, n) for n in range(len(found.shards))]
    if found.entry is not None:
        clients.append(kit.client(component))
    keys = {key.decode() for client in clients for key in client.scan_iter()}
    return {key for key in keys if not key.endswith(":meta}:deleted")}
