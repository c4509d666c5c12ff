"""The biggest keys of components, over all their servers."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import redis

from shardkit.config.component import Component, entry_key
from shardkit.network.server_queries import TIMEOUT, client_of
from shardkit.operations.arguments import Seconds, check_integer, check_seconds
from shardkit.operations.commands import Shard

_PAGE = 500  # keys of one SCAN, and of one exchange about them
_COUNTED_BY = {
    "string": "STRLEN",
    "list": "LLEN",
    "set": "SCARD",
    "zset": "ZCARD",
    "hash": "HLEN",
    "stream": "XLEN",
}


@dataclass(frozen=True, order=True)
class BigKey:
    """A key and its size.

    Attributes:
        size: the value for the ranking: bytes or elements.
        memory: the bytes that it takes, with everything in it (`MEMORY USAGE`, some elements
            sampled).
        elements: how many elements it has; of a string, its bytes.
        kind: its type: ``hash``.
        key: the key.
        shard: its shard.
    """

    size: int
    memory: int
    elements: int
    kind: str
    key: bytes
    shard: str


def biggest_keys(
    components: Sequence[Component],
    limit: int = 20,
    *,
    by: Literal["memory", "elements"] = "memory",
    match: str | None = None,
    timeout: Seconds = TIMEOUT,
    progress: Callable[[int], object] = lambda keys: None,
) -> list[BigKey]:
    """Return the biggest keys of components, in descending order.

    They are ranked ``by`` memory or elements; ``match`` is a key pattern, as for SCAN. ``timeout``
    is in seconds for one answer of a server; ``progress`` is called with the number of keys
    examined so far. Databases that several shards or components share are examined once. Cost: two
    exchanges for 500 keys, O(keys); no single command takes long.

    Raises:
        InvalidArgumentError: limit or by cannot be used.
    """
    timeout = check_seconds("biggest_keys", "timeout", timeout, 0.001)
    check_integer("biggest_keys", "limit", limit, 1, 2**31)
    best: list[BigKey] = []
    seen: set[Any] = set()
    examined = 0
    for component in components:
        for shard, entry in component.entries():
            if entry in seen:
                continue
            seen.add(entry)
            with client_of(entry.resolved(entry_key(*shard)), timeout) as client:
                for page in _pages(client, match):
                    for key in _sizes(*page, shard, by):
                        heapq.heappush(best, key)
                        if len(best) > limit:
                            heapq.heappop(best)
                    examined += len(page[1])
                    progress(examined)
    return sorted(best, reverse=True)


def _pages(client: Any, match: str | None) -> Iterator[tuple[Any, list[bytes]]]:
    """Yield the keys of a database, or of each master of a cluster, with the client to ask."""
    clients = [client]
    if isinstance(client, redis.RedisCluster):
        nodes = client.get_primaries()  # type: ignore[no-untyped-call]
        clients = [client.get_redis_connection(node) for node in nodes]
    for own in clients:
        cursor = 0
        while True:
            cursor, keys = own.scan(cursor, match=match, count=_PAGE)
            if keys:
                yield own, keys
            if not cursor:
                break


def _sizes(client: Any, keys: Sequence[bytes], shard: Shard, by: str) -> Iterator[BigKey]:
    pipe = client.pipeline(transaction=False)
    for key in keys:
        pipe.execute_command("TYPE", key)
        pipe.execute_command("MEMORY USAGE", key)
    replies = pipe.execute(raise_on_error=False)
    kinds = [kind.decode() if isinstance(kind, bytes) else str(kind) for kind in replies[::2]]
    for key, kind in zip(keys, kinds, strict=True):
        if kind in _COUNTED_BY:
            pipe.execute_command(_COUNTED_BY[kind], key)
    counts = iter(pipe.execute(raise_on_error=False))
    for key, kind, memory in zip(keys, kinds, replies[1::2], strict=True):
        elements = next(counts) if kind in _COUNTED_BY else 0
        # 0 if the key is gone or has another type now.
        memory = memory if isinstance(memory, int) else 0
        elements = elements if isinstance(elements, int) else 0
        size = memory if by == "memory" else elements
        if kind != "none":
            yield BigKey(size, memory, elements, kind, key, str(shard))
