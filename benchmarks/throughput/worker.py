"""Times one peer against the limit; run by `peers.py` in the peer's environment.

Usage: ``worker.py PEER PORT ...``. Prints ratios as JSON. Needs hiredis and the peer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any
from zlib import crc32

# By themselves: the package is not installed here, and they need nothing of it.
sys.path.append(str(Path(__file__).parents[2] / "shardkit" / "cli" / "bench" / "throughput"))

from limits import RawAsyncSockets, RawSockets
from nutcracker import twemproxy
from rounds import LIMIT, aratios, ratios
from works import Commands, gets, sets

Calls = tuple[Callable[..., Any], Callable[[Commands], Any]]


def shard_of(args: tuple[Any, ...], count: int) -> int:
    """Return where a command goes."""
    return crc32(args[1].encode()) % count


def old_redis_py(ports: list[int]) -> Calls:
    """redis-py as installed here: a client and a pipeline for each shard."""
    import redis

    clients = [redis.Redis(port=port) for port in ports]

    def one(*args: Any) -> Any:
        return clients[shard_of(args, len(clients))].execute_command(*args)

    def batch(commands: Commands) -> Any:
        pipes = [client.pipeline(transaction=False) for client in clients]
        for args in commands:
            pipes[shard_of(args, len(pipes))].execute_command(*args)
        return [pipe.execute() for pipe in pipes]

    return one, batch


def rb(ports: list[int]) -> Calls:
    """rb: its routing client, and its map with automatic batches."""
    from rb import Cluster

    cluster: Any = Cluster({n: {"port": port} for n, port in enumerate(ports)})
    client = cluster.get_routing_client()

    def one(*args: Any) -> Any:
        return client.execute_command(*args)

    def batch(commands: Commands) -> Any:
        with cluster.map() as mapped:
            promises = [mapped.execute_command(*args) for args in commands]
        return [promise.value for promise in promises]

    return one, batch


def glide(ports: list[int]) -> Calls:
    """valkey-glide's blocking client: one for each shard, a batch each."""
    from glide_sync import Batch, GlideClient, GlideClientConfiguration, NodeAddress

    clients: list[Any] = [
        GlideClient.create(GlideClientConfiguration([NodeAddress("127.0.0.1", port)]))
        for port in ports
    ]

    def one(*args: Any) -> Any:
        return clients[shard_of(args, len(clients))].custom_command(list(args))

    def batch(commands: Commands) -> Any:
        batches = [Batch(is_atomic=False) for _ in clients]
        for args in commands:
            batches[shard_of(args, len(clients))].custom_command(list(args))
        return [c.exec(b, raise_on_error=True) for c, b in zip(clients, batches, strict=True)]

    return one, batch


def before_twemproxy(port: int) -> Calls:
    """redis-py before a twemproxy that listens on this port."""
    import redis

    client = redis.Redis(port=port)

    def batch(commands: Commands) -> Any:
        pipe = client.pipeline(transaction=False)
        for args in commands:
            pipe.execute_command(*args)
        return pipe.execute()

    return client.execute_command, batch


async def coredis(ports: list[int]) -> dict[str, dict[str, float]]:
    """coredis, awaited: a client and a pipeline for each shard."""
    import coredis as library

    raw = await RawAsyncSockets.open([("127.0.0.1", port, 0) for port in ports])
    opened = AsyncExitStack()
    clients: list[Any] = [
        await opened.enter_async_context(library.Redis(port=port)) for port in ports
    ]

    async def one(key: str) -> Any:
        return await clients[crc32(key.encode()) % len(clients)].get(key)

    async def batch(commands: Commands) -> None:
        async with AsyncExitStack() as pipes:
            each = [
                await pipes.enter_async_context(client.pipeline(transaction=False))
                for client in clients
            ]
            for args in commands:
                each[shard_of(args, len(each))].get(args[1])

    commands = gets(10_000)
    key = commands[0][1]
    async with opened:
        return {
            "GET": await aratios({LIMIT: lambda: raw.one("GET", key), "coredis": lambda: one(key)}),
            "10,000 GET": await aratios(
                {LIMIT: lambda: raw.batch(commands), "coredis": lambda: batch(commands)}
            ),
        }


def main(peer: str, ports: list[int]) -> dict[str, dict[str, float]]:
    """Return the peer's ratios."""
    if peer == "coredis":
        import asyncio

        return asyncio.run(coredis(ports))
    with ExitStack() as running:
        if peer == "twemproxy":
            one, batch = before_twemproxy(running.enter_context(twemproxy(ports)))
        else:
            one, batch = {"rb": rb, "glide": glide, "redis-py 4.6": old_redis_py}[peer](ports)
        raw = RawSockets([("127.0.0.1", port, 0) for port in ports])
        single = gets(1)[0]
        found = {"GET": ratios({LIMIT: lambda: raw.one(*single), peer: lambda: one(*single)})}
        for name, commands in (("10,000 GET", gets(10_000)), ("10,000 SET", sets(10_000))):
            found[name] = ratios(
                {LIMIT: lambda c=commands: raw.batch(c), peer: lambda c=commands: batch(c)}
            )
    return found


if __name__ == "__main__":
    name, *given = sys.argv[1:]
    print(json.dumps(main(name, [int(port) for port in given])))
