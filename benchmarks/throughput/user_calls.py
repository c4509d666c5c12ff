"""Time the calls that users write: ``python benchmarks/throughput/user_calls.py``.

Documented calls only, as a user writes them, as ratios to a loop over bare sockets with hiredis,
which packs, routes, sends and parses, and does nothing else. Everything takes turns with it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import redis
import redis.asyncio as aioredis

sys.path.insert(0, str(Path(__file__).parents[1]))

from report import conditions, save, show

import shardkit
from shardkit import KeyShardedConnection, ShardKit, ShardMap
from throughput import cases
from throughput.limits import RawAsyncSockets, RawSockets, pack
from throughput.rounds import LIMIT, aratios, ratios

COUNT, AT_ONCE = 10_000, 64
KEYS = [f"k{n}" for n in range(COUNT)]


class Bare(RawSockets):
    """Bare sockets, which do not even put the replies in order."""

    def batch(self, commands: Any) -> Any:
        """Carry commands; drop their replies."""
        packed: list[list[bytes]] = [[] for _ in self.sockets]
        for args in commands:
            packed[crc32(args[1].encode()) % len(self.sockets)].append(pack(args))
        for sock, pieces in zip(self.sockets, packed, strict=True):
            sock.sendall(b"".join(pieces))
        for sock, reader, pieces in zip(self.sockets, self.readers, packed, strict=True):
            left = len(pieces)
            while left:
                reader.feed(sock.recv(1 << 20))
                while reader.gets() is not False:
                    left -= 1


def six_kinds(pipe: Any) -> Any:
    for n in range(COUNT // 6):
        pipe.set(f"a{n}", n).get(f"a{n}").hset(f"h{n}", "f", n).hget(f"h{n}", "f")
        pipe.incr(f"n{n}").sadd(f"s{n}", n)
    return pipe


def collected(pipe: Any, method: str, *args: Any) -> Any:
    call = getattr(pipe, method)
    for key in KEYS:
        call(key, *args)
    return pipe


def many(kit: ShardKit, bare: Bare, addresses: Any) -> dict[str, dict[str, float]]:
    """10,000 commands over four shards."""
    router: KeyShardedConnection = kit.key_sharded("of4")
    clients = [redis.Redis(host=host, port=port, db=db) for host, port, db in addresses]

    def by_hand(method: str, *args: Any) -> None:
        pipes = [client.pipeline(transaction=False) for client in clients]
        for key in KEYS:
            getattr(pipes[crc32(key.encode()) % len(pipes)], method)(key, *args)
        for pipe in pipes:
            pipe.execute()

    mapping = dict.fromkeys(KEYS, "v")
    gets = {
        LIMIT: lambda: bare.batch([("GET", key) for key in KEYS]),
        "redis-py, by hand": lambda: by_hand("get"),
        "pipeline().get": lambda: collected(router.pipeline(), "get").execute(),
        "pipeline().mget": lambda: router.pipeline().mget(KEYS).execute(),
        "router.mget": lambda: router.mget(KEYS),
        "router.exists": lambda: router.exists(*KEYS),
        "router.touch": lambda: router.touch(*KEYS),
        'router.each("GET")': lambda: router.each("GET", KEYS),
        "six kinds in a pipeline": lambda: six_kinds(router.pipeline()).execute(),
    }
    sets = {
        LIMIT: lambda: bare.batch([("SET", key, "v") for key in KEYS]),
        "redis-py, by hand": lambda: by_hand("set", "v"),
        "pipeline().set": lambda: collected(router.pipeline(), "set", "v").execute(),
        "router.mset": lambda: router.mset(mapping),
        "router.delete": lambda: router.delete(*KEYS),  # of keys that another one has written
        "router.unlink": lambda: router.unlink(*KEYS),
    }
    for each in sets, gets:  # data, scripts and connections are there
        for call in each.values():
            call()
    return {"10,000 reads": ratios(gets), "10,000 writes": ratios(sets)}


def one(kit: ShardKit, bare: Bare, addresses: Any) -> dict[str, dict[str, float]]:
    """One GET."""
    router = kit.key_sharded("of4")
    host, port, db = addresses[crc32(b"k1") % len(addresses)]
    plain = redis.Redis(host=host, port=port, db=db)
    hashed = kit.hash("hash", component="of4")
    hashed.hset(mapping=dict.fromkeys(range(1000), "v"))

    @kit.sharded_connection("of4")
    def decorated(conn: redis.Redis, key: str) -> Any:
        return conn.get(key)

    calls: dict[str, Callable[[], Any]] = {
        LIMIT: lambda: bare.one("GET", "k1"),
        "redis-py": lambda: plain.get("k1"),
        "a router's client": lambda: router["k1"].get("k1"),
        "a decorated function": lambda: decorated("k1"),
        "hash.hget": lambda: hashed.hget(7),
    }
    return {"one GET": ratios(calls)}


async def awaited(shard_map: ShardMap, addresses: Any) -> dict[str, dict[str, float]]:
    """64 GETs at once, and pipelines, awaited."""
    async with await shardkit.aconnect(shard_map) as kit:
        router = kit.key_sharded("of4")
        clients = [aioredis.Redis(host=host, port=port, db=db) for host, port, db in addresses]
        hashed = kit.hash("hash", component="of4")
        bare = await RawAsyncSockets.open(addresses)

        @kit.sharded_connection("of4")
        async def decorated(conn: aioredis.Redis, key: str) -> Any:
            return await conn.get(key)

        def at_once(call: Callable[[str], Any]) -> Callable[[], Any]:
            return lambda: asyncio.gather(*(call(key) for key in KEYS[:AT_ONCE]))

        async def limit(key: str) -> Any:
            return await bare.one("GET", key)

        found = await aratios(
            {
                LIMIT: at_once(limit),
                "redis.asyncio": at_once(
                    lambda key: clients[crc32(key.encode()) % len(clients)].get(key)
                ),
                "a router's client": at_once(lambda key: router[key].get(key)),
                "a decorated function": at_once(decorated),
                "hash.hget": at_once(lambda key: hashed.hget(int(key[1:]))),
            }
        )
        gets = {
            LIMIT: lambda: bare.batch([("GET", key) for key in KEYS]),
            "pipeline().get": lambda: collected(router.pipeline(), "get").execute(),
        }
        sets = {
            LIMIT: lambda: bare.batch([("SET", key, "v") for key in KEYS]),
            "pipeline().set": lambda: collected(router.pipeline(), "set", "v").execute(),
        }
        piped = {
            "10,000 writes, awaited": await aratios(sets),
            "10,000 reads, awaited": await aratios(gets),
        }
        for client in clients:
            await client.aclose()
        bare.close()
    return {"64 GETs at once": found, **piped}


def main() -> None:
    with cases.servers() as shard_map:
        addresses = cases.addresses_of(shard_map, "of4")
        bare = Bare(addresses)
        with shardkit.connect(shard_map) as kit:
            figures = many(kit, bare, addresses) | one(kit, bare, addresses)
        bare.close()
        figures |= asyncio.run(awaited(shard_map, addresses))
    for work, row in figures.items():
        show(f"{work}: times as long as the limit", ["call", "ratio"], sorted(row.items()))
    save("user_calls", {"conditions": conditions(), "figures": figures})


if __name__ == "__main__":
    main()
