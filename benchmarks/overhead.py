"""The cost of shardkit's layers over the bare redis-py call.

A decorated call and a router look-up are timed without the call that they lead to, against the same
function undecorated. An operation is timed against redis-py sending the same command to the same
server, the two in turn, because what it does it does instead of redis-py's own layers.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from statistics import median

from report import conditions, save, show

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalServers

MAP = """
components:
  visits:
    entry: {port: 7001}
    shards: {count: 16, over: [{port: 7001, db: 1}, {port: 7002}, {port: 7003}, {port: 7004}]}
"""
ROUNDS = 15
BUDGETS = {  # microseconds
    "decorated call": 1.0,
    "decorated call, awaited": 1.0,
    "router look-up": 1.0,
    "router look-up, awaiting": 1.0,
    "operation": 3.0,
}


def timed(call: Callable[[], object], times: int) -> float:
    """Return the microseconds that a call takes."""
    gc.collect()
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times * 1e6


def difference(one: Callable[[], object], other: Callable[[], object], times: int) -> float:
    """Return how many microseconds ``one`` takes more than ``other``, measured in turn."""
    return median(timed(one, times) - timed(other, times) for _ in range(ROUNDS))


async def awaited(call: Callable[[], Awaitable[object]], times: int) -> float:
    """Return the microseconds that an awaited call takes."""
    gc.collect()
    start = time.perf_counter()
    for _ in range(times):
        await call()
    return (time.perf_counter() - start) / times * 1e6


async def awaiting(shard_map: ShardMap) -> tuple[float, float]:
    """Return what a decorated coroutine and a router of an async kit cost more."""

    async def plain(conn: object, key: str) -> None: ...

    async with await shardkit.aconnect(shard_map) as kit:
        decorated = kit.sharded_connection("visits", shards=16)(plain)
        router = kit.key_sharded("visits", shards=16)
        calls, looks = [], []
        await decorated("home:42")
        for _ in range(ROUNDS):
            with_connection = await awaited(lambda: decorated("home:42"), 20_000)
            calls.append(with_connection - await awaited(lambda: plain(None, "home:42"), 20_000))
            looks.append(timed(lambda: router["home:42"], 20_000) - timed(lambda: None, 20_000))
    return median(calls), median(looks)


def main() -> None:
    with (
        LocalServers(ShardMap.parse(MAP), ports="free") as servers,
        shardkit.connect(servers.shard_map) as kit,
    ):

        def plain(conn: object, key: str) -> None: ...

        decorated = kit.sharded_connection("visits", shards=16)(plain)
        router = kit.key_sharded("visits", shards=16)
        ids = kit.set("ids", component="visits", total=100_000, members=int)
        ids.sadd(1)
        key = ids.key_of(1)
        client = router[key]
        assert client.sismember(key, 1)
        assert ids.sismember(1)
        call_awaited, look_awaiting = asyncio.run(awaiting(servers.shard_map))
        figures = {
            "decorated call": difference(
                lambda: decorated("home:42"), lambda: plain(None, "home:42"), 20_000
            ),
            "decorated call, awaited": call_awaited,
            "router look-up": difference(lambda: router["home:42"], lambda: None, 20_000),
            "router look-up, awaiting": look_awaiting,
            "operation": difference(
                lambda: ids.sismember(1), lambda: client.sismember(key, 1), 1_000
            ),
        }
        call = median(timed(lambda: client.sismember(key, 1), 1_000) for _ in range(ROUNDS))
        server = client.info("server")

    show(
        f"Microseconds over the bare call (redis-py's own takes {call:.1f})",
        ["", "measured", "budget", ""],
        [
            (name, value, BUDGETS[name], "over" if value > BUDGETS[name] else "within")
            for name, value in figures.items()
        ],
    )
    print(
        "A row over its budget does not fail this run: other programs slow it down too. If it stays"
        "\nover in a second run on an idle machine, a change has made shardkit slower: find it."
    )
    name = server.get("server_name", "redis")
    release = server.get(f"{name}_version", server["redis_version"])
    save(
        "overhead",
        {
            "unit": "microseconds over the bare redis-py call, median of interleaved rounds",
            "figures": {name: round(value, 3) for name, value in figures.items()},
            "budgets": BUDGETS,
            "redis-py call": round(call, 1),
            "conditions": conditions(f"{name} {release}"),
        },
    )


if __name__ == "__main__":
    main()
