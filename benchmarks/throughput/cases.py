"""The cases: which work, by which contestants, over which servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import redis

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalCluster, LocalServers
from shardkit.routing.placement import placement
from throughput.contestants import (
    OurAsyncClient,
    OurClient,
    RedisPyAsyncClient,
    RedisPyClient,
)
from throughput.limits import Address, RawAsyncSockets, RawSockets
from throughput.proxy import delayed
from throughput.rounds import LIMIT, aratios, ratios
from throughput.works import WORKS, Commands, columns_of, gets, sets

Figures = dict[str, float]
MAP = """
components:
  of4: {shards: {count: 4, over: [{port: 7001}, {port: 7002}, {port: 7003}, {port: 7004}]}}
  of16: {shards: {count: 16, over: [{port: 7001}, {port: 7002}, {port: 7003}, {port: 7004}]}}
  of64: {shards: {count: 64, over: [{port: 7001}, {port: 7002}, {port: 7003}, {port: 7004}]}}
"""
SIZES = (100, 1_000, 10_000, 100_000)


@contextmanager
def servers() -> Iterator[ShardMap]:
    """Run four servers, with as many databases as shards; give their map."""
    with LocalServers(ShardMap.parse(MAP), ports="free", config={"databases": 64}) as running:
        yield running.shard_map


def shown(work: str) -> str:
    """Return a kind of work as figures are called."""
    return work if work == "mixed" else work.upper()


def addresses_of(shard_map: ShardMap, component: str) -> list[Address]:
    """Return where each shard of a component is."""
    fields = [entry.resolved("") for entry in shard_map.components[component].shards]
    return [("127.0.0.1", each["port"], each.get("db", 0)) for each in fields]


def fill(shard_map: ShardMap, component: str, commands: Commands) -> None:
    """Carry commands beforehand, such as the SETs of what is got."""
    raw = RawSockets(addresses_of(shard_map, component))
    for n in range(0, len(commands), 1000):
        raw.batch(commands[n : n + 1000])
    raw.close()


def single(shard_map: ShardMap) -> dict[str, Figures]:
    """One command at a time, blocking."""
    addresses = addresses_of(shard_map, "of4")
    fill(shard_map, "of4", sets(1))
    raw, theirs = RawSockets(addresses), RedisPyClient(addresses)
    with shardkit.connect(shard_map) as kit:
        ours = OurClient(kit, "of4")
        found = {}
        for name, args in {"GET": gets(1)[0], "SET": sets(1)[0]}.items():
            found[name] = ratios(
                {
                    LIMIT: lambda args=args: raw.one(*args),
                    "shardkit": lambda args=args: ours.one(*args),
                    "redis-py": lambda args=args: theirs.one(*args),
                },
                repeats=15,
            )
    raw.close()
    theirs.close()
    return found


def batches(
    shard_map: ShardMap,
    works: Sequence[str] = tuple(WORKS),
    sizes: Sequence[int] = SIZES,
    component: str = "of4",
    peers: bool = True,
) -> dict[str, Figures]:
    """Batches, blocking."""
    addresses = addresses_of(shard_map, component)
    raw, theirs = RawSockets(addresses), RedisPyClient(addresses)
    found = {}
    with shardkit.connect(shard_map) as kit:
        ours = OurClient(kit, component)
        for work in works:
            for size in sizes:
                commands = WORKS[work](size)
                prepared, coalesced = ours.prepare(commands), ours.coalesced(commands)
                fill(shard_map, component, sets(size))
                assert list(ours.batch(prepared)) == raw.batch(commands) or work != "get"
                contestants: dict[str, Callable[[], object]] = {
                    LIMIT: lambda c=commands: raw.batch(c),
                    "shardkit": lambda p=prepared: ours.batch(p),
                    "shardkit, commands built too": lambda c=commands: ours.all(c),
                    "shardkit, coalesced": lambda c=coalesced: ours.batch(c),
                }
                if work != "mixed":  # a column is a list that an operation has anyway
                    name, *given = columns_of(commands)
                    contestants |= {
                        "shardkit, by column": lambda n=name, g=given: ours.columns(n, g),
                        "shardkit, by column, coalesced": lambda n=name, g=given: ours.columns(
                            n, g, coalesced=True
                        ),
                    }
                if peers:
                    contestants |= {
                        "redis-py, pipelines": lambda c=commands: theirs.batch(c),
                        "redis-py, in threads": lambda c=commands: theirs.batch_in_threads(c),
                    }
                found[f"{size:,} {shown(work)}"] = ratios(contestants, repeats=5)
    raw.close()
    theirs.close()
    return found


def value_sizes(shard_map: ShardMap) -> dict[str, Figures]:
    """Batches of larger values, blocking."""
    addresses = addresses_of(shard_map, "of4")
    raw, theirs = RawSockets(addresses), RedisPyClient(addresses)
    found = {}
    with shardkit.connect(shard_map) as kit:
        ours = OurClient(kit, "of4")
        for size, count, shown in (
            (16, 1000, "16 B"),
            (1024, 1000, "1 KB"),
            (65536, 200, "64 KB"),
        ):
            for work, commands in (("SET", sets(count, size)), ("GET", gets(count))):
                fill(shard_map, "of4", sets(count, size))
                prepared = ours.prepare(commands)
                found[f"{count:,} {work} of {shown}"] = ratios(
                    {
                        LIMIT: lambda c=commands: raw.batch(c),
                        "shardkit": lambda p=prepared: ours.batch(p),
                        "redis-py, pipelines": lambda c=commands: theirs.batch(c),
                    }
                )
    raw.close()
    theirs.close()
    return found


def shard_counts(shard_map: ShardMap) -> dict[str, Figures]:
    """10,000 GETs over more and more shards of the four servers, blocking."""
    found = {}
    for shards in (4, 16, 64):
        [figures] = batches(shard_map, ("get",), (10_000,), f"of{shards}").values()
        found[f"{shards} shards"] = figures
    return found


async def awaiting(shard_map: ShardMap) -> dict[str, Figures]:
    """Single commands and batches, awaited."""
    addresses = addresses_of(shard_map, "of4")
    raw, theirs = await RawAsyncSockets.open(addresses), RedisPyAsyncClient(addresses)
    found = {}
    async with await shardkit.aconnect(shard_map) as kit:
        ours = OurAsyncClient(kit, "of4")
        calls = {LIMIT: raw.one, "shardkit": ours.one, "redis-py": theirs.one}
        fill(shard_map, "of4", sets(10_000))
        for at_once in (1, 8, 64):
            turn = gets(at_once)
            found[f"{at_once} GET at once"] = await aratios(
                {name: _together(call, turn) for name, call in calls.items()}, repeats=15
            )
        for size in (1_000, 10_000):
            for work in ("get", "set"):
                commands = WORKS[work](size)
                prepared = OurClient.prepare(ours, commands)  # type: ignore[arg-type]
                name, *given = columns_of(commands)
                found[f"{size:,} {shown(work)}"] = await aratios(
                    {
                        LIMIT: lambda c=commands: raw.batch(c),
                        "shardkit": lambda p=prepared: ours.batch(p),
                        "shardkit, commands built too": lambda c=commands: ours.all(c),
                        "shardkit, by column, coalesced": lambda n=name, g=given: ours.columns(
                            n, g, coalesced=True
                        ),
                        "redis-py": lambda c=commands: theirs.batch(c),
                    }
                )
    raw.close()
    await theirs.aclose()
    return found


def _together(
    call: Callable[..., Awaitable[Any]], commands: Commands
) -> Callable[[], Awaitable[Any]]:
    if len(commands) == 1:
        return lambda: call(*commands[0])
    return lambda: asyncio.gather(*(call(*args) for args in commands))


def fan_out(shard_map: ShardMap) -> dict[str, Figures]:
    """One query to each of four shards that are a millisecond away."""
    commands = [next(c for c in gets(100) if _shard(c) == n) for n in range(4)]
    with delayed(addresses_of(shard_map, "of4"), seconds=0.0005) as away:
        far = ShardMap.parse(
            "components:\n  far:\n    shards:\n"
            + "".join(f"      - {{port: {port}}}\n" for _, port, _ in away)
        )
        raw, theirs = RawSockets(away), RedisPyClient(away)
        with shardkit.connect(far) as kit:
            ours = OurClient(kit, "far")
            prepared = ours.prepare(commands)
            found = ratios(
                {
                    LIMIT: lambda: raw.batch(commands),
                    "shardkit": lambda: ours.batch(prepared),
                    "one after another, raw": lambda: [raw.one(*args) for args in commands],
                    "redis-py, one after another": lambda: [theirs.one(*a) for a in commands],
                    "redis-py, in threads": lambda: theirs.batch_in_threads(commands),
                }
            )
        raw.close()
        theirs.close()
    return {"4 shards, 1 ms away": found}


def _shard(args: tuple[Any, ...]) -> int:
    return crc32(args[1].encode()) % 4


def cluster() -> dict[str, Figures]:
    """The same batch on a cluster of three masters: redis-py's RedisCluster beside ours."""
    found = {}
    with LocalCluster(3) as running:
        entry = running.entry.resolved("")
        shard_map = ShardMap.parse(
            f"components:\n  slots: {{entry: {{cluster: true, host: {entry['host']}, "
            f"port: {entry['port']}}}}}\n"
        )
        theirs: Any = redis.RedisCluster(host=entry["host"], port=entry["port"])
        nodes = [("127.0.0.1", node.port, 0) for node in running.nodes[:3]]
        with shardkit.connect(shard_map) as kit:
            ours = OurClient(kit, "slots")
            for work, size in (("get", 1_000), ("get", 10_000), ("set", 10_000)):
                commands = WORKS[work](size)
                prepared = ours.prepare(commands)
                raw = RawSockets(nodes, placement("slot", 3))

                def pipeline(commands: Commands = commands) -> object:
                    pipe = theirs.pipeline()
                    for args in commands:
                        pipe.execute_command(*args)
                    return pipe.execute()

                ours.batch(ours.prepare(sets(size)))
                found[f"{size:,} {shown(work)} on a cluster"] = ratios(
                    {
                        LIMIT: lambda c=commands, r=raw: r.batch(c),
                        "shardkit": lambda p=prepared: ours.batch(p),
                        "RedisCluster": pipeline,
                    },
                    repeats=5,
                )
                raw.close()
        theirs.close()
    return found
