"""Time and count what shards cost: ``python benchmarks/throughput/by_shards.py [part ...]``.

Parts: calls, first, connections; what is not measured again stays in the results.

4 to 1,024 shards, as databases of four servers: what a bulk call takes, the first one too, and how
many connections and how much memory a process costs a server. Documented calls only, beside
redis-py by hand, its `RedisCluster`, twemproxy (Debian's nutcracker, left out where it is missing)
and raw sockets: one for each server, with SELECT in front of each shard's MGET. Everything takes
turns in one run, which takes two to three minutes on a machine that has nothing else to do.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import shutil
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from zlib import crc32

import redis
import redis.asyncio as aioredis

sys.path.insert(0, str(Path(__file__).parents[1]))

from report import RESULTS, conditions, save, show

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalCluster, LocalServers
from throughput import cases
from throughput.limits import RawAsyncSockets, RawSockets, pack
from throughput.nutcracker import twemproxy
from throughput.rounds import LIMIT, aratios, ratios

SERVERS = 4
SHARDS = (4, 64, 256, 1024)
SIZES = (64, 10_000)
THREADS = 8
FIRST_CALLS = 3
ROUNDS = 5
PATIENT: Any = {"socket_timeout": 60, "socket_connect_timeout": 60}  # thousands connect at once
IDLE = 6.0  # seconds until a server has shrunk the buffers of idle connections
LEAST = 0.004  # seconds of a turn of the limit: 10,000 keys once, 64 keys some twenty times
PART_SIZE = 16  # of the hash, so that 64 fields are in 64 parts
KEYS = [f"user:{n}:name" for n in range(max(SIZES))]
VALUE = "v" * 16

Figures = dict[str, dict[int, float]]  # by contestant and number of shards


def fields_of(size: int) -> Sequence[int]:
    """Return as many fields of the hash, in as many parts as possible."""
    return range(0, max(SIZES), max(1, min(PART_SIZE, max(SIZES) // size)))[:size]


def by_shard(keys: Sequence[str], shards: int) -> dict[int, list[str]]:
    """Return the keys of each shard."""
    groups: dict[int, list[str]] = {}
    for key in keys:
        groups.setdefault(crc32(key.encode()) % shards, []).append(key)
    return groups


def in_order(
    keys: Sequence[str], groups: Mapping[int, Sequence[str]], replies: Sequence[Any]
) -> list[Any]:
    """Return the values of keys from the replies of their shards."""
    values: dict[str, Any] = {}
    for some, reply in zip(groups.values(), replies, strict=True):
        values.update(zip(some, reply, strict=True))
    return [values[key] for key in keys]


# ---- contestants: each makes a client of its own, and returns a bulk call and what closes it

Bulk = Callable[[int], Any]  # reads so many keys
Opened = tuple[Bulk, Callable[[], Any]]


class Servers:
    """Four servers with data, a cluster and a proxy, and how each contestant uses them."""

    def __init__(self, shard_map: ShardMap, cluster_port: int, proxy_port: int | None) -> None:
        self.shard_map = shard_map
        self.addresses = {n: cases.addresses_of(shard_map, f"of{n}") for n in SHARDS}
        self._cluster_port, self._proxy_port = cluster_port, proxy_port

    def router(self, shards: int) -> Opened:
        """`router.mget`."""
        kit = shardkit.connect(self.shard_map)
        router = kit.key_sharded(f"of{shards}")
        return lambda size: router.mget(KEYS[:size]), kit.close

    def hash(self, shards: int) -> Opened:
        """`hash.hmget`."""
        kit = shardkit.connect(self.shard_map)
        hashed = kit.hash(f"h{shards}", component=f"of{shards}", part_size=PART_SIZE)
        return lambda size: hashed.hmget(fields_of(size)), kit.close

    def raw(self, shards: int) -> Opened:
        """One socket for each server; SELECT and MGET for each shard."""
        sockets = RawSockets([(host, port, 0) for host, port, _ in self.addresses[SERVERS]])

        def mget(size: int) -> list[Any]:
            groups = by_shard(KEYS[:size], shards)
            pieces: list[list[bytes]] = [[] for _ in sockets.sockets]
            for shard, keys in groups.items():
                pieces[shard % SERVERS] += [
                    pack(("SELECT", 1 + shard // SERVERS)),
                    pack(("MGET", *keys)),
                ]
            for sock, some in zip(sockets.sockets, pieces, strict=True):
                sock.sendall(b"".join(some))
            replies: list[list[Any]] = []
            for sock, reader, some in zip(sockets.sockets, sockets.readers, pieces, strict=True):
                replies.append([])
                while len(replies[-1]) < len(some):
                    reader.feed(sock.recv(1 << 18))
                    while (reply := reader.gets()) is not False:
                        replies[-1].append(reply)
            each = [iter(some[1::2]) for some in replies]
            return in_order(KEYS[:size], groups, [next(each[shard % SERVERS]) for shard in groups])

        return mget, sockets.close

    def clients(self, shards: int) -> Opened:
        """redis-py: a client for each shard, one MGET after another."""
        clients = [
            redis.Redis(**PATIENT, host=h, port=p, db=d) for h, p, d in self.addresses[shards]
        ]

        def mget(size: int) -> list[Any]:
            groups = by_shard(KEYS[:size], shards)
            replies = [clients[shard].mget(keys) for shard, keys in groups.items()]
            return in_order(KEYS[:size], groups, replies)

        return mget, lambda: [client.close() for client in clients]

    def pipelines(self, shards: int) -> Opened:
        """redis-py: a client for each shard, and a pipeline of GETs for each of them."""
        clients = [
            redis.Redis(**PATIENT, host=h, port=p, db=d) for h, p, d in self.addresses[shards]
        ]

        def get(size: int) -> list[Any]:
            groups = by_shard(KEYS[:size], shards)
            replies = []
            for shard, keys in groups.items():
                pipe = clients[shard].pipeline(transaction=False)
                for key in keys:
                    pipe.get(key)
                replies.append(pipe.execute())
            return in_order(KEYS[:size], groups, replies)

        return get, lambda: [client.close() for client in clients]

    def cluster(self, shards: int) -> Opened:
        """redis-py's `RedisCluster.mget_nonatomic`, on a cluster of four masters."""
        client: Any = redis.RedisCluster(host="127.0.0.1", port=self._cluster_port)
        return lambda size: client.mget_nonatomic(KEYS[:size]), client.close

    def proxy(self, shards: int) -> Opened:
        """redis-py before a twemproxy, which has only servers, and no databases."""
        assert self._proxy_port is not None
        client = redis.Redis(port=self._proxy_port, protocol=2, driver_info=None)
        return lambda size: client.mget(KEYS[:size]), client.close

    async def arouter(self, shards: int) -> Opened:
        """`await router.mget`."""
        kit = await shardkit.aconnect(self.shard_map)
        router = kit.key_sharded(f"of{shards}")
        return lambda size: router.mget(KEYS[:size]), kit.aclose

    async def ahash(self, shards: int) -> Opened:
        """`await hash.hmget`."""
        kit = await shardkit.aconnect(self.shard_map)
        hashed = kit.hash(f"h{shards}", component=f"of{shards}", part_size=PART_SIZE)
        return lambda size: hashed.hmget(fields_of(size)), kit.aclose

    async def aclients(self, shards: int) -> Opened:
        """redis.asyncio: a client for each shard, all MGETs at once."""
        clients = [
            aioredis.Redis(**PATIENT, host=h, port=p, db=d) for h, p, d in self.addresses[shards]
        ]

        async def mget(size: int) -> list[Any]:
            groups = by_shard(KEYS[:size], shards)
            replies = await asyncio.gather(*(clients[n].mget(some) for n, some in groups.items()))
            return in_order(KEYS[:size], groups, replies)

        async def close() -> None:
            for client in clients:
                await client.aclose()

        return mget, close

    @property
    def contestants(self) -> dict[str, Callable[[int], Opened]]:
        """Return the blocking ones by name."""
        found = {
            "router.mget": self.router,
            "hash.hmget": self.hash,
            "raw sockets": self.raw,
            "redis-py, a client for each shard": self.clients,
            "redis-py, a pipeline for each shard": self.pipelines,
            "RedisCluster": self.cluster,
        }
        return found if self._proxy_port is None else found | {"twemproxy": self.proxy}

    @property
    def awaited(self) -> dict[str, Callable[[int], Awaitable[Opened]]]:
        """Return the awaited ones by name."""
        return {
            "router.mget, awaited": self.arouter,
            "hash.hmget, awaited": self.ahash,
            "redis.asyncio, a client for each shard": self.aclients,
        }

    async def open(self, name: str, shards: int) -> Opened:
        """Make the client of a contestant."""
        opened: Opened = await done({**self.contestants, **self.awaited}[name](shards))
        return opened


OTHERS = ("redis-py, a client for each shard", "twemproxy")  # whose connections are counted
SAME = ("RedisCluster", "twemproxy")  # they have no shards as databases: measured once


def turns(names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield each contestant with each number of shards."""
    for name in names:
        yield from ((name, n) for n in (SHARDS[:1] if name in SAME else SHARDS))


@contextmanager
def running() -> Iterator[Servers]:
    """Start all servers and write the data."""
    over = [{"port": 7001 + n, "db": 1} for n in range(SERVERS)]
    components = {f"of{n}": {"shards": {"count": n, "over": over}} for n in SHARDS}
    described = ShardMap.parse(json.dumps({"components": components}))
    databases = 1 + max(SHARDS) // SERVERS
    with ExitStack() as stack:
        local = stack.enter_context(
            LocalServers(described, ports="free", config={"databases": databases})
        )
        shard_map = local.shard_map
        ports = [port for _, port, _ in cases.addresses_of(shard_map, "of4")]
        cluster = stack.enter_context(LocalCluster(SERVERS)).entry.resolved("")["port"]
        proxy = None
        if shutil.which("nutcracker"):
            proxy = stack.enter_context(twemproxy(ports))
            client = redis.Redis(port=proxy, protocol=2, driver_info=None)
            with closing(client), client.pipeline(transaction=False) as pipe:
                for key in KEYS:
                    pipe.set(key, VALUE)
                pipe.execute()
        else:
            print("twemproxy: left out, there is no nutcracker here")
        with closing(redis.RedisCluster(host="127.0.0.1", port=cluster)) as nodes:
            nodes.mset_nonatomic(dict.fromkeys(KEYS, VALUE))
        with shardkit.connect(shard_map) as kit:
            for n in SHARDS:
                kit.key_sharded(f"of{n}").mset(dict.fromkeys(KEYS, VALUE))
                hashed = kit.hash(f"h{n}", component=f"of{n}", part_size=PART_SIZE)
                hashed.hset(mapping=dict.fromkeys(range(max(SIZES)), VALUE))
        yield Servers(shard_map, cluster, proxy)


# ---- times of calls


def calls(servers: Servers) -> dict[str, Figures]:
    """Time bulk calls over open connections."""
    found = {}
    with ExitStack() as stack:
        bulks: dict[tuple[str, int], Bulk] = {}
        for name, shards in turns(servers.contestants):
            bulks[name, shards], close = servers.contestants[name](shards)
            stack.callback(close)
        for size in SIZES:
            for bulk in bulks.values():
                assert list(bulk(size)) == [VALUE.encode()] * size
            limit = bulks["raw sockets", SHARDS[0]]
            timed: dict[Any, Callable[[], object]] = {
                turn: lambda bulk=bulk, size=size: bulk(size)
                for turn, bulk in bulks.items()
                if bulk is not limit
            }
            row = ratios(
                {LIMIT: lambda size=size, limit=limit: limit(size), **timed}, ROUNDS, LEAST
            )
            found[f"{size:,} keys"] = sorted_out({("raw sockets", SHARDS[0]): 1.0, **row})
    return found


async def awaited_calls(servers: Servers) -> dict[str, Figures]:
    """Time the awaited bulk calls."""
    found = {}
    addresses = [(host, port, 1) for host, port, _ in servers.addresses[SERVERS]]
    raw = await RawAsyncSockets.open(addresses)
    bulks: dict[Any, Bulk] = {}
    closes = []
    for name, shards in turns(servers.awaited):
        bulks[name, shards], close = await servers.awaited[name](shards)
        closes.append(close)
    for size in SIZES:

        async def limit(size: int = size) -> list[Any]:
            groups = by_shard(KEYS[:size], SERVERS)
            replies = await raw.batch([("MGET", *some) for some in groups.values()])
            return in_order(KEYS[:size], groups, replies)

        timed: dict[Any, Callable[[], Awaitable[object]]] = {LIMIT: limit}
        for turn, bulk in bulks.items():
            assert list(await bulk(size)) == [VALUE.encode()] * size
            timed[turn] = lambda bulk=bulk, size=size: bulk(size)
        assert await limit() == [VALUE.encode()] * size
        row = await aratios(timed, ROUNDS, LEAST)
        row["limit, us, awaited"] = row.pop("limit, us")
        found[f"{size:,} keys"] = sorted_out(row)
    for close in closes:
        await close()
    raw.close()
    return found


def sorted_out(row: Mapping[Any, float]) -> Figures:
    """Return ratios by contestant and number of shards; the limit's microseconds stay alone."""
    found: Figures = {}
    for turn, value in row.items():
        name, shards = turn if isinstance(turn, tuple) else (turn, SHARDS[0])
        found.setdefault(name, {})[shards] = value
    return found


# ---- the first call, connections and memory


async def first_calls(servers: Servers) -> dict[str, Figures]:
    """Time making a client and its first call, in milliseconds: the median of some."""
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(FIRST_CALLS):
        for name, shards in turns([*servers.contestants, *servers.awaited]):
            if name == "redis-py, a pipeline for each shard":  # connects as the one with MGET
                continue
            gc.collect()
            start = time.perf_counter()
            bulk, close = await servers.open(name, shards)
            await done(bulk(max(SIZES)))
            times.setdefault((name, shards), []).append(time.perf_counter() - start)
            await done(close())
    return {"first call, ms": sorted_out({t: median(took) * 1e3 for t, took in times.items()})}


async def done(result: Any) -> Any:
    """Return a result, awaited if need be."""
    return await result if inspect.isawaitable(result) else result


class Watched:
    """One of the servers, and the connections to it."""

    def __init__(self, port: int) -> None:
        self._admin = redis.Redis(port=port)
        self._own = str(self._admin.client_id())
        self.proxied = set(self.kilobytes())  # connections of twemproxy, which stay

    def kilobytes(self) -> dict[str, float]:
        """Return what the server has in memory for each connection, by its id."""
        listed = self._admin.client_list()
        return {c["id"]: int(c["tot-mem"]) / 1024 for c in listed if c["id"] != self._own}

    def close(self) -> None:
        """Close the connection that watches."""
        self._admin.close()


def in_threads(bulk: Bulk, count: int) -> None:
    """Have threads call at the same time, some times."""
    start = threading.Barrier(count)

    def work() -> None:
        for _ in range(2):
            start.wait()
            bulk(max(SIZES))

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def held(servers: Servers) -> dict[str, Figures]:
    """Count the connections to a server, of one thread or task and of several, and their memory."""
    counts: dict[str, dict[Any, float]] = {}
    for name in ("router.mget", *OTHERS, *servers.awaited):
        if name not in (*servers.contestants, *servers.awaited) or name.startswith("hash"):
            continue
        watched = Watched(servers.addresses[SERVERS][0][1])
        ids: dict[tuple[int, int], set[str]] = {}  # of connections, by threads and shards
        closes = []
        for threads in 1, THREADS:
            for _, shards in turns([name]):
                before = set(watched.kilobytes())
                bulk, close = await servers.open(name, shards)
                if name in servers.awaited:
                    await asyncio.gather(*(bulk(max(SIZES)) for _ in range(threads)))
                else:
                    in_threads(bulk, threads)
                now = set(watched.kilobytes()) - before
                ids[threads, shards] = watched.proxied if name == "twemproxy" else now
                closes.append(close)
        await asyncio.sleep(IDLE)
        kilobytes = watched.kilobytes()
        for (threads, shards), some in ids.items():
            counts.setdefault(shown("connections", threads), {})[name, shards] = len(some)
            memory = sum(kilobytes[each] for each in some)
            counts.setdefault(shown("kilobytes", threads), {})[name, shards] = memory
        for close in closes:
            await done(close())
        watched.close()
    return {what: sorted_out(row) for what, row in counts.items()}


def shown(what: str, threads: int) -> str:
    """Return what is counted, with the number of threads."""
    return f"{what}, one thread" if threads == 1 else f"{what}, {threads} threads"


def main(chosen: list[str]) -> None:
    path = RESULTS / "throughput_by_shards.json"
    figures: dict[str, Figures] = {}
    if chosen:
        kept = json.loads(path.read_text(encoding="utf-8"))["figures"]
        for what, row in kept.items():
            figures[what] = {
                name: {int(n): value for n, value in by_count.items()}
                for name, by_count in row.items()
            }
    with running() as servers:
        for part in chosen or PARTS:
            for what, row in asyncio.run(PARTS[part](servers)).items():
                figures[what] = row
                rows = [
                    (name, *(by_count.get(n, "") for n in SHARDS)) for name, by_count in row.items()
                ]
                show(what, ["", *map(str, SHARDS)], rows)
            save(
                path.stem,
                {
                    "unit": "ratio to a raw socket for each server at 4 shards, median of rounds",
                    "figures": {
                        what: {
                            name: {str(n): round(value, 2) for n, value in by_count.items()}
                            for name, by_count in row.items()
                        }
                        for what, row in figures.items()
                    },
                    "conditions": conditions(),
                },
            )


async def all_calls(servers: Servers) -> dict[str, Figures]:
    """Time all bulk calls."""
    blocking, awaited = calls(servers), await awaited_calls(servers)
    return {what: row | awaited[what] for what, row in blocking.items()}


PARTS = {"calls": all_calls, "first": first_calls, "connections": held}


if __name__ == "__main__":
    main(sys.argv[1:])
