"""Each shard's share of the visitors: ids, keys and bytes.

Bytes are those of ``MEMORY USAGE``: a key's name, its value and the server's bookkeeping, without
the table of keys. The figure is exact for a compact part; for others, the server samples members.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from shardkit.kit.kit import ShardKit
from shardkit.operations.commands import Command, Shard
from shardkit.operations.operation import Operation, pages
from shardkit.routing.keys import text

_AT_ONCE: Final = 1000  # keys in one pipeline
_PART = re.compile(r":\d+\Z")


@dataclass(frozen=True, slots=True)
class ShardLoad:
    """One shard's share of a structure."""

    shard: Shard
    address: str
    ids: int
    keys: int
    size: int


def loads(kit: ShardKit, component: str, name: str) -> Iterator[ShardLoad]:
    """Query each shard of a component for its share of a structure of sets.

    Cost: a SCAN of each shard's database, and two commands for each key of the structure.
    """
    router = kit.key_sharded(component)
    described = kit.component(component)
    for shard in described.all_shards():
        number = shard.number or 0
        found = set(map(text, router.client(number).scan_iter(match=f"{name}:*", count=_AT_ONCE)))
        # Shards may share a database.
        keys = [key for key in found if router.shard_of(key) == number]
        ids, size = kit.driver.run(_sums(component, keys))
        yield ShardLoad(shard, described.entry_of(shard).address, ids, len(keys), size)


def _sums(component: str, keys: Iterable[str]) -> Operation[tuple[int, int]]:
    """Return the total members and bytes of keys."""
    ids = size = 0
    for page in pages(keys, _AT_ONCE):
        size += sum((yield [_ask(component, key, "MEMORY", "USAGE", key) for key in page]))
        parts = filter(_PART.search, page)
        ids += sum((yield [_ask(component, key, "SCARD", key) for key in parts]))
    return ids, size


def _ask(component: str, key: str, *args: str) -> Command:
    return Command(component, key, args, idempotent=True)
