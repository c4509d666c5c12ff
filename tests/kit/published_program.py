"""The published program: entries written by hand, module-level names, any order of first calls.

Run as ``published_program.py URL SERVERS FIRST COUNT``, it makes the five first calls in COUNT
of the 24 orders that begin with the call FIRST, on both faces, in the main thread, in another
thread and in a forked child. Each run is a process of its own, forked from
one that has only imported shardkit. It prints a JSON list: for each run its name, and for each call
the database that it reached, or the error.

SERVERS is ``real``; or ``memory``, where each run writes the entries to a config server in memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import warnings
from collections.abc import Callable
from itertools import permutations
from random import Random
from typing import Any

import shardkit
from shardkit import (
    AsyncIdPairShardedConnection,
    AsyncKeyShardedConnection,
    IdPairShardedConnection,
    KeyShardedConnection,
    redis_connection,
    sharded_connection,
)
from shardkit.testing import MemoryServers

CALLS = ("statistics", "expected", "count_visit", "timelines", "followers")
KEYS = {"count_visit": "a-session", "timelines": "home:42", "followers": (99, 42)}
FIRST = {"timelines": 32, "followers": 48, "unique": 16}  # the database of shard 0
COUNTS = {"timelines": 8, "followers": 16, "unique": 16}
UNSHARDED = {"statistics": 15, "unique": 14}

# From Python 3.12 on, each fork of a process that has threads warns.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)


def entries(port: int) -> dict[str, str]:
    """The entries that the program's reader writes, and nothing else."""
    databases = {f"config:redis:{name}": db for name, db in UNSHARDED.items()}
    for name, count in COUNTS.items():
        databases |= {f"config:redis:{name}:{n}": FIRST[name] + n for n in range(count)}
    return {
        key: json.dumps({"host": "127.0.0.1", "port": port, "db": db})
        for key, db in databases.items()
    }


def database(conn: Any) -> int:
    return int(conn.connection_pool.connection_kwargs.get("db") or 0)


def calls_of(face: str) -> dict[str, Callable[[], Any]]:
    """The program as a reader writes it, at the top of a module: what it calls, by name."""

    def reach(conn: Any, *key: str) -> int:
        conn.incr("used")
        return database(conn)

    async def areach(conn: Any, *key: str) -> int:
        await conn.incr("used")
        return database(conn)

    def used(router: Any, key: Any) -> int:
        return reach(router[key])

    async def aused(router: Any, key: Any) -> int:
        await router.load()
        return await areach(router[key])

    blocks = face == "blocking"
    function: Any = reach if blocks else areach
    route: Any = used if blocks else aused
    statistics = redis_connection("statistics")(function)
    expected = redis_connection("unique")(function)
    count_visit = sharded_connection("unique", 16)(function)
    by_key = KeyShardedConnection if blocks else AsyncKeyShardedConnection
    by_pair = IdPairShardedConnection if blocks else AsyncIdPairShardedConnection
    timelines, followers = by_key("timelines", 8), by_pair("followers", 16)
    return {
        "statistics": statistics,
        "expected": lambda: expected("2026-11-26"),
        "count_visit": lambda: count_visit(KEYS["count_visit"]),
        "timelines": lambda: route(timelines, KEYS["timelines"]),
        "followers": lambda: route(followers, KEYS["followers"]),
    }


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def program(face: str, order: tuple[str, ...]) -> dict[str, Any]:
    if face == "blocking":
        calls = calls_of(face)
        return {name: outcome(calls[name]) for name in order}
    with asyncio.Runner() as runner:
        calls = calls_of(face)

        async def run(name: str) -> Any:
            return await calls[name]()

        outcomes = {name: outcome(lambda name=name: runner.run(run(name))) for name in order}
        runner.run(shardkit.default_kit().aclose() or asyncio.sleep(0))
        return outcomes


def in_thread(face: str, order: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    thread = threading.Thread(target=lambda: found.update(program(face, order)))
    thread.start()
    thread.join()
    return found


def in_child(face: str, order: tuple[str, ...]) -> dict[str, Any]:
    """In a child of a process that has made the first of the calls itself."""
    program("blocking", order[:1])
    return forked(lambda: program(face, order))


def forked(run: Callable[[], Any]) -> Any:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            os.write(writing, json.dumps(outcome(run)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text)


def configured(url: str, servers: str) -> None:
    if servers == "real":
        os.environ["SHARDKIT_CONFIG"] = url
        return
    memory = MemoryServers()
    for key, entry in entries(7001).items():
        memory.config_server.client().set(key, entry)
    shardkit.configure(shardkit.connect(memory.config_server.entry, connector=memory))


def main(url: str, servers: str, first: str, count: str) -> None:
    if servers == "memory":
        MemoryServers()  # imports fakeredis, once for all
    runs = []
    orders = [order for order in permutations(CALLS) if order[0] == first]
    for order in Random(servers + first).sample(orders, int(count)):
        for face in ("blocking", "awaiting"):
            for where in (program, in_thread, in_child):

                def run(order: Any = order, face: str = face, where: Any = where) -> Any:
                    configured(url, servers)
                    return where(face, order)

                runs.append([f"{where.__name__} {face} {' '.join(order)}", forked(run)])
    print(json.dumps(runs))


if __name__ == "__main__":
    main(*sys.argv[1:])
