"""The contestants that are compared with the limit: our links and redis-py.

redis-py does not route: its keys are placed here, as by `shardkit.routing.placement`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from zlib import crc32

import redis
import redis.asyncio as aioredis

import shardkit.operations.commands as batches
from shardkit import AsyncShardKit, ShardKit
from shardkit.operations.commands import Columns, Command
from throughput.limits import Address
from throughput.works import Commands


class OurClient:
    """A kit's link; with an awaiting link, results must be awaited."""

    def __init__(self, kit: ShardKit | AsyncShardKit, component: str) -> None:
        self._send: Callable[[Any], Any] = kit.driver.link.send
        self._component = component

    def prepare(self, commands: Commands) -> list[Command]:
        """Return the batch, as an operation yields it."""
        return [Command(self._component, args[1], args) for args in commands]

    def coalesced(self, commands: Commands) -> batches.CommandList:
        """Return the batch, as yielded by an operation that owns the keys."""
        return batches.CommandList(self.prepare(commands), coalesced=True)

    def columns(self, name: str, columns: Sequence[Any], *, coalesced: bool = False) -> Any:
        """Send commands of one name, given as columns, of which the first is the keys."""
        return self._send(Columns(self._component, name, *columns, coalesced=coalesced))

    def one(self, *args: Any) -> Any:
        """Send one command."""
        return self._send([Command(self._component, args[1], args)])[0]

    def batch(self, batch: Any) -> Any:
        """Send a prepared batch."""
        return self._send(batch)

    def all(self, commands: Commands) -> Any:
        """Prepare a batch, and send it."""
        component = self._component
        return self._send([Command(component, args[1], args) for args in commands])


class OurAsyncClient(OurClient):
    """An async kit's awaiting link."""

    async def one(self, *args: Any) -> Any:
        """Send one command."""
        [reply] = await self._send([Command(self._component, args[1], args)])
        return reply


class RedisPyClient:
    """redis-py: a client for each shard; batches by a pipeline each, one after another or not."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self.clients = [redis.Redis(host=h, port=p, db=d) for h, p, d in addresses]
        self.threads = ThreadPoolExecutor(len(self.clients))

    def one(self, *args: Any) -> Any:
        """Send one command."""
        client: Any = self.clients[crc32(args[1].encode()) % len(self.clients)]
        return client.execute_command(*args)

    def batch(self, commands: Commands) -> list[Any]:
        """Send commands in a pipeline for each shard."""
        pipes, places = _pipelines(self.clients, commands)
        return _ordered(len(commands), places, [pipe.execute() for pipe in pipes])

    def batch_in_threads(self, commands: Commands) -> list[Any]:
        """Send commands in a pipeline for each shard, all executed at the same time."""
        pipes, places = _pipelines(self.clients, commands)
        replies = self.threads.map(lambda pipe: pipe.execute(), pipes)
        return _ordered(len(commands), places, list(replies))

    def close(self) -> None:
        """Close the clients."""
        self.threads.shutdown()
        for client in self.clients:
            client.close()


class RedisPyAsyncClient:
    """redis.asyncio: a client for each shard, a pipeline each for batches."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self.clients = [aioredis.Redis(host=h, port=p, db=d) for h, p, d in addresses]

    async def one(self, *args: Any) -> Any:
        """Send one command."""
        client: Any = self.clients[crc32(args[1].encode()) % len(self.clients)]
        return await client.execute_command(*args)

    async def batch(self, commands: Commands) -> list[Any]:
        """Send commands in a pipeline for each shard, all at the same time."""
        pipes, places = _pipelines(self.clients, commands)
        replies = await asyncio.gather(*(pipe.execute() for pipe in pipes))
        return _ordered(len(commands), places, replies)

    async def aclose(self) -> None:
        """Close the clients."""
        for client in self.clients:
            await client.aclose()


def _pipelines(clients: Sequence[Any], commands: Commands) -> tuple[list[Any], list[list[int]]]:
    """Return a pipeline for each shard, and the places of its commands."""
    count = len(clients)
    pipes: list[Any] = [client.pipeline(transaction=False) for client in clients]
    places: list[list[int]] = [[] for _ in pipes]
    for n, args in enumerate(commands):
        shard = crc32(args[1].encode()) % count
        pipes[shard].execute_command(*args)
        places[shard].append(n)
    return pipes, places


def _ordered(count: int, places: list[list[int]], replies: Sequence[list[Any]]) -> list[Any]:
    out: list[Any] = [None] * count
    for positions, values in zip(places, replies, strict=True):
        for position, value in zip(positions, values, strict=True):
            out[position] = value
    return out
