"""What users name without end takes no memory without end."""

from __future__ import annotations

import gc
import logging
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import _lru_cache_wrapper
from typing import Any

from faces import Face

from shardkit import ShardKit, ShardKitError, log_records
from shardkit.coordination import Leg
from shardkit.recent import Recent

COUNT = 20
LEAST = 300  # bytes for each name; the interpreter itself keeps some

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
    "search": lambda kit, name: kit.search(name, **ONE, shards=1).index("1", f"a {name}"),
    "words": lambda kit, name: kit.search("docs", **ONE, shards=1).search(name),
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


CACHES = [
    each
    for each in gc.get_objects()
    if type(each) is _lru_cache_wrapper and each.__module__.startswith("shardkit")
]


def emptied_caches() -> int:
    """Return the bytes in use without caches that have a size."""
    for each in CACHES:
        each.cache_clear()
    for table in gc.get_objects():
        if type(table) is Recent:
            table.clear()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def test_memory_does_not_grow_with_names(face: Face) -> None:
    kept: Any = face.kit.logs(**ONE), face.kit.counters(**ONE), face.kit.statistics(**ONE)

    def use(kind: str, first: int) -> None:
        for n in range(first, first + COUNT):
            done = USES[kind](face.kit, f"{kind.replace(' ', '-')}-{n}")
            if not isinstance(done, Iterator):
                face.run(done)
                continue
            reply = None
            with suppress(StopIteration):
                while True:
                    reply = face.run(done.send(reply))  # type: ignore[attr-defined]

    def grown(kind: str) -> list[int]:
        """Return by how much memory grew in each of some rounds, until it does not."""
        sizes = [0]
        for n in range(5):
            use(kind, n * COUNT)
            sizes.append(emptied_caches())
            if n and sizes[-1] - sizes[-2] < LEAST * COUNT:
                return []
        return sizes

    logging.disable()  # or the test keeps what is logged
    tracemalloc.start()
    try:
        assert [(kind, sizes) for kind in USES if (sizes := grown(kind))] == []
    finally:
        tracemalloc.stop()
        logging.disable(logging.NOTSET)
    assert kept


def test_components_that_do_not_exist_are_forgotten(kit: ShardKit) -> None:
    kit.client("one")
    kit.topology._missing.most = 50
    for n in range(200):
        with suppress(ShardKitError):
            kit.client(f"missing-{n}")
    assert len(kit.topology._cache) < 60
    assert "one" in kit.topology._cache


def test_the_latest_keys_are_kept() -> None:
    table: Recent[int, int] = Recent(3)
    for n in range(10):
        table[n] = n
        assert table.setdefault(n, -1) == n
    assert list(table) == [7, 8, 9]
    once = log_records.Once()
    assert once.first("a")
    assert not once.first("a")
