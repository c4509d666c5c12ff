"""What users name without end takes no memory without end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import _lru_cache_wrapper
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from faces import Face, faced

from shardkit import ShardMap
from shardkit.coordination import Leg
from shardkit.local import LocalServer

COUNT = 10
LEAST = 400  # bytes for each name; the interpreter itself keeps some
MAP = """
defaults: {{host: 127.0.0.1, port: {port}}}
components: {{one: {{entry: {{}}}}, few: {{shards: [{{db: 1}}, {{db: 2}}]}}}}
"""
ONE: dict[str, Any] = {"component": "one"}


def released(lock: Any) -> Iterator[Any]:
    """Take a lock, and release it."""
    hold = yield lock.acquire()
    yield lock.release(hold)


def recorded(records: Any, *what: Any) -> Iterator[Any]:
    getattr(records, "hit" if hasattr(records, "hit") else "record")(*what)
    yield records.flush()


# What is done with a name: one call, or some.
USES: dict[str, Callable[[Any, str], Any]] = {
    "set": lambda kit, name: kit.set(name, **ONE).sadd("x"),
    "hash": lambda kit, name: kit.hash(name, **ONE, codec="zstd").hset("a", "b"),
    "strings": lambda kit, name: kit.strings(name, **ONE).set("a", "b"),
    "sorted set": lambda kit, name: kit.sorted_set(name, **ONE).zadd({"a": 1}),
    "list": lambda kit, name: kit.list(name, **ONE).rpush("a"),
    "visitors": lambda kit, name: kit.unique_visitors(
        name, **ONE, precision="exact", first_day=9
    ).visit("ada"),
    "packed": lambda kit, name: kit.packed(name, **ONE, fields={"a": "u8"}).set(1, a=2),
    "search": lambda kit, name: kit.search(name, **ONE, parts=1).index("1", f"a {name}"),
    "words": lambda kit, name: kit.search("docs", **ONE, parts=1).search(name),
    "contacts": lambda kit, name: kit.recent_contacts(**ONE).touch(name, "bo"),
    "tasks": lambda kit, name: kit.queues(name, **ONE).enqueue("mail", name),
    "lock": lambda kit, name: released(kit.lock(name, **ONE)),
    "waiting": lambda kit, name: kit.countdown_latch(name, **ONE).wait(timeout=0.001),
    "rate": lambda kit, name: kit.rate_limit(name, **ONE, limit=9, per=9).hit(name),
    "transfers": lambda kit, name: kit.transfers(name, **ONE).issue(Leg(name, {"money": 1})),
    "mailboxes": lambda kit, name: kit.mailboxes(name, **ONE).send(name, "bo", 1),
    "chats": lambda kit, name: kit.chats(**ONE).create("ada", ["bo"], "hello", chat=name),
    "social": lambda kit, name: kit.social(**ONE, parts=1).create_user(name, name),
    "maintenance": lambda kit, name: kit.maintenance(**ONE).check(name),
    "logs": lambda kit, name: recorded(kit.logs(name, **ONE), "shop", name),
    "log": lambda kit, name: recorded(kit.logs(**ONE), name, "failed"),
    "counters": lambda kit, name: recorded(kit.counters(name, **ONE), "hits"),
    "counter": lambda kit, name: recorded(kit.counters(**ONE), name),
    "statistics": lambda kit, name: recorded(kit.statistics(**ONE), name, "latency", 1.0),
    "routes": lambda kit, name: kit.key_sharded("few").set(name, 1),
}


def use(face: Face, kind: str, first: int) -> None:
    """Use some new names."""
    for n in range(first, first + COUNT):
        done = USES[kind](face.kit, f"{kind.replace(' ', '-')}-{n}")
        if not isinstance(done, Iterator):
            face.run(done)
            continue
        reply = None
        with suppress(StopIteration):
            while True:
                reply = face.run(done.send(reply))  # type: ignore[attr-defined]


def in_use() -> int:
    """Return the bytes in use without those of the package's caches that have a size."""
    for each in gc.get_objects():
        if type(each).__name__ == "Recent":
            each.clear()
        elif type(each) is _lru_cache_wrapper and each.__module__.startswith("shardkit"):
            assert each.cache_parameters()["maxsize"] is not None or each.cache_info().misses < 99
            each.cache_clear()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def grown(face: Face, kind: str) -> list[int]:
    """Return the memory after each of some rounds, or nothing if a round needs no more."""
    sizes: list[int] = []
    ends = time.monotonic() + 3  # what is recorded is sent once a second
    for n in count():
        if n >= 15 and time.monotonic() > ends:
            break
        use(face, kind, n * COUNT)
        sizes.append(in_use())
        if n and sizes[-1] - sizes[-2] < LEAST * COUNT:
            return []
    return sizes


def measure(kind_of_face: str, port: str) -> None:
    """Print what grows with names, in a process that does nothing else."""
    with faced(kind_of_face, ShardMap.parse(MAP.format(port=port))) as face:
        kept: Any = face.kit.logs(**ONE), face.kit.counters(**ONE), face.kit.statistics(**ONE)
        tracemalloc.start()
        print([(kind, sizes) for kind in USES if (sizes := grown(face, kind))])
        assert kept


@pytest.mark.long(1)
def test_memory_does_not_grow_with_names(kind: str) -> None:
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    with LocalServer() as server:
        done = subprocess.run(
            [sys.executable, __file__, kind, str(server.port)],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
    assert (done.stdout, done.stderr) == ("[]\n", "")


if __name__ == "__main__":
    measure(*sys.argv[1:])
