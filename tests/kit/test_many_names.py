"""What users name without end takes no memory without end."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from faces import eventually

from shardkit import ShardKit, ShardKitError, log_records
from shardkit.recent import Recent

COUNT = 150
KINDS = ("set", "hash", "list", "counters", "statistics", "logs", "queues", "mailboxes", "lock")
NAMED: dict[str, Callable[[ShardKit, str], Any]] = {
    **{
        kind: lambda kit, name, kind=kind: getattr(kit, kind)(name, component="one")  # type: ignore[misc]
        for kind in KINDS
    },
    "keys": lambda kit, name: kit.key_sharded("few")[name],
    "recorded": lambda kit, name: kit.counters(name, component="one").hit("a"),
}


def test_memory_does_not_grow_with_names(kit: ShardKit) -> None:
    def use(kind: str, first: int) -> None:
        for n in range(first, first + COUNT):
            NAMED[kind](kit, f"{kind}-{n}")

    def held() -> float:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        for kind in NAMED:
            for n in range(2):
                use(kind, COUNT * n)
            before = held()
            for n in range(2, 5):
                use(kind, COUNT * n)
            assert eventually(lambda: held() - before < 300 * COUNT), kind  # noqa: B023
    finally:
        tracemalloc.stop()


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
