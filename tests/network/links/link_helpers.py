"""What the tests of links share: one way to send batches over either link."""

from __future__ import annotations

import asyncio
import inspect
import json
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest
from arranged import ask, paused as paused
from faces import PATIENCE

import shardkit
from shardkit import AsyncShardKit, ShardKit, ShardMap, events
from shardkit.errors import ClosedError
from shardkit.local import LocalServer
from shardkit.operations import Command, Operation, Replies, Script

FACES = ("blocking", "awaiting")


class Face:
    """A kit of either kind, awaited in any case."""

    bad: Any  # a server, of those that `beside` opens

    def __init__(self, kit: ShardKit | AsyncShardKit) -> None:
        self.kit = kit

    @property
    def blocks(self) -> bool:
        return isinstance(self.kit, ShardKit)

    async def value(self, found: Any) -> Any:
        return found if self.blocks else await found

    async def listed(self, found: Any) -> list[Any]:
        return list(found) if self.blocks else [each async for each in found]

    async def send(self, *batch: Any) -> Replies:
        return await self.carry(list(batch))

    async def carry(self, batch: Any) -> Replies:
        """Send a batch of any kind."""
        replies: Replies = await self.value(self.kit.driver.link.send(batch))
        return replies

    async def together(self, steps: Iterable[Operation[Any]]) -> Any:
        return await self.value(self.kit.together(*steps))

    async def run(self, steps: Operation[Any]) -> Any:
        return await self.value(self.kit.driver.run(steps))

    async def client_call(self, component: str, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the client that users get."""
        client = await self.value(self.kit.client(component))
        return await self.value(getattr(client, name)(*args, **kwargs))


@asynccontextmanager
async def opened(face: str, shard_map: ShardMap | str, **options: Any) -> AsyncIterator[Face]:
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
    return int(ask(server, "info", "commandstats").get(f"cmdstat_{name}", {}).get("calls", 0))


async def eventually(done: Callable[[], bool], seconds: float = 20) -> bool:
    """Look again and again until something is so."""
    deadline = time.monotonic() + seconds * PATIENCE
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


def clients_of(server: LocalServer) -> int:
    """How many clients a server has, except the one that asks."""
    return len(ask(server, "client_list")) - 1


@contextmanager
def hearing(handler: Callable[[Any], object]) -> Iterator[None]:
    """Let a function handle what is told of the library's work."""
    stop = events.subscribe(handler)
    try:
        yield
    finally:
        stop()


@contextmanager
def alarms_raise(error: Callable[[], BaseException]) -> Iterator[Callable[[float], object]]:
    """Have SIGALRM raise an error inside; what sets after how many seconds it comes."""

    def handler(*_: object) -> None:
        raise error()  # a new one: its traceback would keep what the last one met

    usual = signal.signal(signal.SIGALRM, handler)
    try:
        yield partial(signal.setitimer, signal.ITIMER_REAL)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)


def cut(server: LocalServer) -> int:
    """Close the connections of all clients; return how many there were."""
    with server.client() as client:
        killed = int(client.client_kill_filter(_type="normal", skipme=True))
        client.ping()  # they are closed before this is answered
    return killed


def mapped(fields: Mapping[str, Any], name: str = "data") -> ShardMap:
    """A map of one component with this entry."""
    described = {"components": {name: {"entry": dict(fields)}}}
    return ShardMap.parse(json.dumps(described), source="test")


TIMEOUTS = {"exchange_timeout", "socket_timeout", "socket_connect_timeout"}


def two(bad: int, good: int, **fields: Any) -> ShardMap:
    """Shard 0 of `data`, and `one`, are at the port `bad`, shard 1 at `good`."""
    fields |= {name: PATIENCE * fields[name] for name in TIMEOUTS & fields.keys()}
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


def script_call(to: Any, script: Script, keys: Sequence[Any], args: Sequence[Any] = ()) -> Command:
    """The command that runs a script on the server of its first key."""
    return Command(to, keys[0], ("EVALSHA", script.sha, len(keys), *keys, *args), script)
