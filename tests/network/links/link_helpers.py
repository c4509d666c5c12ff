"""What the tests of links share: one way to send batches over either link."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

import pytest

import shardkit
from shardkit import AsyncShardKit, ShardKit, ShardMap
from shardkit.errors import ClosedError
from shardkit.local import LocalServer
from shardkit.operations.commands import Command, Replies
from shardkit.operations.operation import Operation

FACES = ("blocking", "awaiting")


class Face:
    """A kit of either kind, awaited in any case."""

    def __init__(self, kit: ShardKit | AsyncShardKit) -> None:
        self.kit = kit

    @property
    def blocks(self) -> bool:
        return isinstance(self.kit, ShardKit)

    async def _value(self, found: Any) -> Any:
        return found if self.blocks else await found

    async def send(self, *batch: Any) -> Replies:
        replies: Replies = await self._value(self.kit.driver.link.send(list(batch)))
        return replies

    async def run(self, steps: Operation[Any]) -> Any:
        return await self._value(self.kit.driver.run(steps))

    async def client_call(self, component: str, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the client that users get."""
        client = await self._value(self.kit.client(component))
        return await self._value(getattr(client, name)(*args, **kwargs))


@asynccontextmanager
async def opened(face: str, shard_map: ShardMap, **options: Any) -> AsyncIterator[Face]:
    """Open a kit of a kind."""
    if face == "blocking":
        with shardkit.connect(shard_map, **options) as kit:
            yield Face(kit)
    else:
        async with await shardkit.aconnect(shard_map, **options) as akit:
            yield Face(akit)


def command(to: Any, key: Any, *args: Any, **options: Any) -> Command:
    """A command; its arguments are its name, the key, and the others."""
    return Command(to, key, (args[0], key, *args[1:]), **options)


def count_of(server: LocalServer, name: str) -> int:
    """How often a server has executed a command."""
    with server.client() as client:
        return int(client.info("commandstats").get(f"cmdstat_{name}", {}).get("calls", 0))


async def eventually(done: Callable[[], bool], seconds: float = 20) -> bool:
    """Look again and again until something is so."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True


async def of(value: Any) -> Any:
    """What a call of either face gives."""
    return await value if inspect.isawaitable(value) else value


async def listed(stream: Any) -> list[Any]:
    """The values of an iterator of either face."""
    return [each async for each in stream] if hasattr(stream, "__aiter__") else list(stream)


def closed() -> AbstractContextManager[Any]:
    """A block that a closed kit ends."""
    return pytest.raises(ClosedError, match=r"^the kit is closed; open a new one with shardkit\.")


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Call a function with 0, 1 and so on at once, each in a thread of its own."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def forked(work: Callable[[], object]) -> int:
    """Begin a function in a forked child; return its process id."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)  # one that hangs ends by itself
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def exit_code(pid: int) -> int:
    """Wait for a child's end; 0 says that its function has not failed."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def clients_of(server: LocalServer) -> int:
    """How many clients a server has, except the one that asks."""
    with server.client() as client:
        return len(client.client_list()) - 1


def two(bad: int, good: int, **fields: Any) -> ShardMap:
    """Shard 0 of `data`, and `one`, are at the port `bad`, shard 1 at `good`."""
    shards = [{"port": bad, **fields}, {"port": good, **fields}]
    components = {"data": {"shards": shards}, "one": {"entry": {"port": bad, **fields}}}
    return ShardMap.parse(str({"components": components}), source="test")


def resolving(name: str, port: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have a host name lead to this machine, and to the returned ports in turn."""
    ports, getaddrinfo = [port], socket.getaddrinfo

    def resolve(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host not in (name, name.encode()):
            return getaddrinfo(host, port, *args, **options)
        found = [getaddrinfo("127.0.0.1", each, *args, **options) for each in ports]
        return [info for infos in found for info in infos]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return ports
