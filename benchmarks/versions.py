"""Compare the calls of two checkouts: ``python benchmarks/versions.py OTHER [word of a call ...]``.

Each version is a process, and both use the same servers: they take turns in many short rounds, so
that other load on the machine affects both. A figure is the shortest round's. Where a process lies
in memory and which core it gets changes single calls by half: so there are several pairs of new
processes, and a ratio is the median of theirs. Long calls find no quiet round on a busy machine:
their processor time says more. Documented calls only.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
SERVERS, SHARDS = 4, (4, 256, 1024)
ROUNDS, LEAST = 300, 0.001  # of at least so many seconds
PAIRS = 7  # of processes
VALUE = "v" * 16
KEYS = [f"user:{n}:name" for n in range(10_000)]
MAPPING = dict.fromkeys(KEYS, VALUE)

Calls = dict[str, Callable[[], Any]]


# ---- the process of a version; it imports nothing of this checkout


def chosen(router: Any, same: bool) -> list[str]:
    """Return four keys of one shard, or two of each of two shards on different servers."""
    first = router.shard_of(KEYS[0])
    one = [key for key in KEYS if router.shard_of(key) == first]
    other = [key for key in KEYS if router.shard_of(key) == (first + 1) % SERVERS]
    return one[:4] if same else [one[0], other[0], one[1], other[1]]


def pipelined(pipe: Any, keys: list[str]) -> Any:
    """Collect four reads."""
    for key in keys:
        pipe.get(key)
    return pipe


def blocking(kit: Any) -> Calls:
    """Return the blocking calls."""
    router = kit.key_sharded("of4")
    client = router[KEYS[0]]
    hashed = kit.hash("hash", component="of4", part_size=16)
    hashed.hset(mapping=dict.fromkeys(range(1000), VALUE))
    one, two = chosen(router, True), chosen(router, False)

    @kit.sharded_connection("of4")
    def decorated(conn: Any, key: str) -> Any:
        return conn.get(key)

    cluster = kit.client("nodes")
    cluster.mset_nonatomic(MAPPING)
    for shards in SHARDS:
        kit.key_sharded(f"of{shards}").mset(MAPPING)
    calls: Calls = {
        "GET": lambda: client.get(KEYS[0]),
        "SET": lambda: client.set(KEYS[0], VALUE),
        "decorated GET": lambda: decorated(KEYS[0]),
        "hget": lambda: hashed.hget(7),
        "4 GETs on one shard": lambda: pipelined(router.pipeline(), one).execute(),
        "4 GETs on two shards": lambda: pipelined(router.pipeline(), two).execute(),
        "redis-py's pipeline of 4": lambda: pipelined(
            client.pipeline(transaction=False), one
        ).execute(),
        "cluster GET": lambda: cluster.get(KEYS[0]),
        "cluster, 4 GETs": lambda: pipelined(cluster.pipeline(), KEYS[:4]).execute(),
    }
    return calls | bulk(kit)


def bulk(kit: Any) -> Calls:
    """Return bulk reads and writes, of either face."""
    calls: Calls = {}
    for shards in SHARDS:
        router = kit.key_sharded(f"of{shards}", shards=shards)
        for size in (64, 10_000):
            keys, mapping = KEYS[:size], dict.fromkeys(KEYS[:size], VALUE)
            name = f"{size:,} keys, {shards:,} shards"
            calls[f"mget {name}"] = lambda router=router, keys=keys: router.mget(keys)
            calls[f"mset {name}"] = lambda router=router, mapping=mapping: router.mset(mapping)
    return calls


async def awaiting(kit: Any) -> Calls:
    """Return the awaited calls."""
    router = kit.key_sharded("of4")
    client = await kit.client("of4", router.shard_of(KEYS[0]))
    hashed = kit.hash("hash", component="of4", part_size=16)
    one, two = chosen(router, True), chosen(router, False)
    cluster = await kit.client("nodes")

    @kit.sharded_connection("of4")
    async def decorated(conn: Any, key: str) -> Any:
        return await conn.get(key)

    def at_once() -> Any:
        return asyncio.gather(*(router[key].get(key) for key in KEYS[:64]))

    calls: Calls = {
        "GET": lambda: client.get(KEYS[0]),
        "decorated GET": lambda: decorated(KEYS[0]),
        "hget": lambda: hashed.hget(7),
        "4 GETs on one shard": lambda: pipelined(router.pipeline(), one).execute(),
        "4 GETs on two shards": lambda: pipelined(router.pipeline(), two).execute(),
        "64 GETs": at_once,
        "64 hgets": lambda: asyncio.gather(*(hashed.hget(n) for n in range(0, 1000, 16))),
        "cluster GET": lambda: cluster.get(KEYS[0]),
        "cluster, 4 GETs": lambda: pipelined(cluster.pipeline(), KEYS[:4]).execute(),
    }
    return calls | bulk(kit)


def work(map_text: str) -> None:
    """Time the calls that come by standard input."""
    import shardkit

    assert Path(shardkit.__file__).parents[1] == Path(os.environ["PYTHONPATH"])
    loop = asyncio.new_event_loop()
    shard_map = shardkit.ShardMap.parse(map_text)
    kit, akit = shardkit.connect(shard_map), loop.run_until_complete(shardkit.aconnect(shard_map))
    calls = blocking(kit)
    awaited = {f"await {n}": call for n, call in loop.run_until_complete(awaiting(akit)).items()}

    async def repeated(call: Callable[[], Any], times: int) -> None:
        for _ in range(times):
            await call()

    print(json.dumps([*calls, *awaited]), flush=True)
    for line in sys.stdin:
        name, times = json.loads(line)
        began, used = time.perf_counter(), time.process_time()
        if name in awaited:
            loop.run_until_complete(repeated(awaited[name], times))
        else:
            call = calls[name]
            for _ in range(times):
                call()
        print([time.perf_counter() - began, time.process_time() - used], flush=True)
    loop.run_until_complete(akit.aclose())
    kit.close()


# ---- the process that compares them


@contextmanager
def version(root: Path, map_text: str) -> Iterator[subprocess.Popen[str]]:
    """Run the process of a version."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--work", map_text],
        env={**os.environ, "PYTHONPATH": str(root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process


def told(process: subprocess.Popen[str]) -> Any:
    """Return what the process of a version has written."""
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def asked(process: subprocess.Popen[str], name: str, times: int) -> list[float]:
    """Return the microseconds of a call in a round of a version, and those of the processor."""
    assert process.stdin is not None
    print(json.dumps([name, times]), file=process.stdin, flush=True)
    return [1e6 * seconds / times for seconds in told(process)]


def compared(before: Any, now: Any, words: list[str]) -> dict[str, dict[str, float]]:
    """Time the calls of both versions in turn."""
    names, found = [name for name in told(before) if all(word in name for word in words)], {}
    told(now)
    for name in names:
        for process in (before, now):  # data, scripts and connections are there
            asked(process, name, 3)
        times = max(1, round(LEAST / min(asked(before, name, 3)[0] for _ in range(3))))
        took: dict[Any, list[list[float]]] = {before: [], now: []}
        for _ in range(ROUNDS if times > 1 else ROUNDS // 6):
            for process in random.sample([before, now], 2):
                took[process].append(asked(process, name, times))
        (old, old_own), (new, new_own) = (
            map(min, zip(*took[each], strict=True)) for each in (before, now)
        )
        found[name] = {
            "before, us": round(old, 1),
            "now, us": round(new, 1),
            "ratio": round(new / old, 3),
            "ratio of processor time": round(new_own / old_own, 3),
        }
        print(name, *found[name].values(), flush=True)
    return found


def of_pairs(figures: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return the medians of what several pairs of processes took."""
    return {
        name: {what: median(pair[name][what] for pair in figures) for what in row}
        for name, row in figures[0].items()
    }


def main(other: str, *words: str) -> None:
    """Compare another checkout with this one."""
    from report import conditions, save, show

    from shardkit import ShardMap
    from shardkit.local import LocalCluster, LocalServers

    over = [{"port": 7001 + n, "db": 1} for n in range(SERVERS)]
    components: Any = {f"of{n}": {"shards": {"count": n, "over": over}} for n in SHARDS}
    described = ShardMap.parse(json.dumps({"components": components}))
    databases = {"databases": 1 + max(SHARDS) // SERVERS}
    with ExitStack() as stack:
        local = stack.enter_context(LocalServers(described, ports="free", config=databases))
        ports = [entry.resolved("")["port"] for entry in local.shard_map.components["of4"].shards]
        over = [{"port": port, "db": 1} for port in ports]
        components = {f"of{n}": {"shards": {"count": n, "over": over}} for n in SHARDS}
        cluster = stack.enter_context(LocalCluster(3)).entry.resolved("")["port"]
        components["nodes"] = {"entry": {"port": cluster, "cluster": True}}
        text = json.dumps({"components": components})
        pairs = []
        for _ in range(PAIRS):
            with version(Path(other).resolve(), text) as before, version(ROOT, text) as now:
                pairs.append(compared(before, now, list(words)))
                for process in (before, now):
                    process.stdin.close()  # type: ignore[union-attr]
        figures = of_pairs(pairs)
    show(
        f"Shortest rounds, medians of {PAIRS} pairs of processes",
        ["call", "before, us", "now, us", "ratio", "processor"],
        [(name, *row.values()) for name, row in figures.items()],
    )
    if not words:
        commits = [
            subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=root, text=True).strip()[:12]
            for root in (Path(other), ROOT)
        ]
        save(
            "versions",
            {
                "conditions": conditions() | {"pairs of processes": PAIRS},
                "commits": commits,
                "figures": figures,
            },
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2])
    else:
        main(*sys.argv[1:])
