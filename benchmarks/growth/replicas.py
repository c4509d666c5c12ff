"""What reads from replicas save the master, and what durable writes cost."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from statistics import median
from typing import Any

from report import conditions, show

import shardkit
from shardkit import ShardMap
from shardkit.local import LocalServer
from shardkit.network.replicas import ReadFrom

PROCESSES, SECONDS = 4, float(os.environ.get("SECONDS", "4"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
KEYS, BATCH = 1000, 100
_VALUE = b"v" * 100

Figures = dict[str, Any]


@contextmanager
def replicated(replicas: int, **config: Any) -> Iterator[tuple[list[LocalServer], ShardMap]]:
    """Start a master and its replicas, described as component ``data``."""
    with ExitStack() as stack:
        master = stack.enter_context(LocalServer(name="master", config=config))
        servers = [master] + [
            stack.enter_context(LocalServer(name="replica", config=config, replica_of=master))
            for _ in range(replicas)
        ]
        hosts = [{"host": "127.0.0.1", "port": server.port} for server in servers]
        entry = {**hosts[0], **({"replicas": hosts[1:]} if replicas else {})}
        yield servers, ShardMap.parse(json.dumps({"components": {"data": {"shards": [entry]}}}))


def _read(shard_map: ShardMap, replicas: int, batch: int, ready: Barrier, out: Any) -> None:
    where = ReadFrom("replica", spread=True) if replicas else ReadFrom("master")
    names = [f"k{n}" for n in range(KEYS)]
    with shardkit.connect(shard_map) as kit:
        router = kit.key_sharded("data", read_from=where)
        router["k0"].get("k0")
        time.sleep(1)  # it knows its replicas
        ready.wait()
        done, end = 0, time.monotonic() + SECONDS
        while time.monotonic() < end:
            if batch == 1:
                key = names[done % KEYS]
                router[key].get(key)
            else:
                at = done % KEYS
                router.mget(names[at : at + batch])
            done += batch
        cpu = time.process_time()
    out.send((done, cpu))


def busy(servers: list[LocalServer]) -> list[float]:
    """The seconds that the main thread of each server has been at work."""
    found = []
    for server in servers:
        with server.client() as client:
            said = client.info("cpu")
        found.append(sum(float(said[f"used_cpu_{kind}_main_thread"]) for kind in ("sys", "user")))
    return found


def _reads(replicas: int, batch: int) -> Figures:
    context = get_context("fork")
    with replicated(replicas) as (servers, shard_map):
        with servers[0].client() as client:
            client.mset({f"k{n}": _VALUE for n in range(KEYS)})
        ready = context.Barrier(PROCESSES + 1)
        receiver, sender = context.Pipe(duplex=False)
        readers = [
            context.Process(target=_read, args=(shard_map, replicas, batch, ready, sender))
            for _ in range(PROCESSES)
        ]
        for each in readers:
            each.start()
        ready.wait()
        before = busy(servers)
        done = sum(receiver.recv()[0] for _ in readers)
        took = [now - then for now, then in zip(busy(servers), before, strict=True)]
        for each in readers:
            each.join()
    return {
        "reads a second": done / SECONDS,
        "master, ms of its thread for 1,000 reads": 1e6 * took[0] / done,
        "busiest replica, ms for 1,000 reads": 1e6 * max(took[1:], default=0.0) / done,
        "all servers, ms for 1,000 reads": 1e6 * sum(took) / done,
    }


def reads() -> Figures:
    """Reads with 0, 1 and 2 replicas, alone and in batches."""
    found: Figures = {"processes": PROCESSES, "seconds": SECONDS, "rounds": ROUNDS}
    for batch, how in ((1, "one at a time"), (BATCH, f"in batches of {BATCH}")):
        rows: dict[int, list[Figures]] = {0: [], 1: [], 2: []}
        for _ in range(ROUNDS):
            for replicas, row in rows.items():
                row.append(_reads(replicas, batch))
        found[how] = {str(count): middle(row) for count, row in rows.items()}
        names = list(found[how]["0"])
        show(
            f"GETs, {how}, by replicas",
            ["replicas", *names],
            [(count, *row.values()) for count, row in found[how].items()],
        )
    return found | {"conditions": conditions() | {"load average": round(os.getloadavg()[1])}}


def middle(rows: list[Figures]) -> Figures:
    """The median of each figure."""
    return {name: round(median(row[name] for row in rows), 4) for name in rows[0]}


POLICIES = ("always", "everysec")
WAYS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "replicas=1": {"replicas": 1},
    "fsync": {"replicas": 0, "fsync": True},
    "both": {"replicas": 1, "fsync": True},
}


def durable() -> Figures:
    """A write, and a hundred in a pipeline, in a `kit.durable` block of each kind and in none."""
    found: Figures = {"rounds": ROUNDS}
    for policy in POLICIES:
        with (
            replicated(1, appendonly=True, appendfsync=policy) as (servers, shard_map),
            shardkit.connect(shard_map) as kit,
        ):
            for what, count in (("one write", 1), (f"{BATCH} in a pipeline", BATCH)):
                rows: dict[str, list[Figures]] = {way: [] for way in WAYS}
                for _ in range(ROUNDS):
                    for way, options in WAYS.items():
                        rows[way].append(_blocks(kit, options, count, servers[0]))
                row = {way: middle(each) for way, each in rows.items()}
                found[f"appendfsync {policy}, {what}"] = row
                names = list(row["plain"])
                show(
                    f"appendfsync {policy}, {what}",
                    ["", *names],
                    [(way, *each.values()) for way, each in row.items()],
                )
    return found | {"conditions": conditions() | {"load average": round(os.getloadavg()[1])}}


def _blocks(kit: Any, options: dict[str, Any] | None, count: int, server: LocalServer) -> Figures:
    router, times = kit.key_sharded("data"), []
    [before] = busy([server])
    end = time.monotonic() + SECONDS / 2
    while time.monotonic() < end or len(times) < 3:
        began = time.monotonic()
        with nullcontext() if options is None else kit.durable(**options, timeout=5.0):
            pipe = router.pipeline()
            for n in range(count):
                pipe.set(f"k{n}", _VALUE)
            pipe.execute()
        times.append(time.monotonic() - began)
    [after] = busy([server])
    times.sort()
    return {
        "median, ms": 1000 * median(times),
        "p99, ms": 1000 * times[int(0.99 * len(times))],
        "master, ms of its thread": 1000 * (after - before) / len(times),
    }
