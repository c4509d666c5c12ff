"""Cached endpoints of two kits at once: each has the values of its own servers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import shardkit
from shardkit import ShardMap
from shardkit.integrations.asgi import cached
from shardkit.local import LocalServer


def map_of(server: LocalServer) -> ShardMap:
    shards = [{"port": server.port}]
    return ShardMap.parse(json.dumps({"components": {"many": {"shards": shards}}}))


async def test_a_near_copy_is_used_for_its_own_kit_only() -> None:
    source = ["first"]

    @cached("many", ttl=600, key="k:{name}", near=100_000, max_age=30)
    async def load(kit: Any, name: str) -> str:
        return source[0]

    with LocalServer() as one, LocalServer() as other:
        async with (
            await shardkit.aconnect(map_of(one)) as first,
            await shardkit.aconnect(map_of(other)) as second,
        ):
            async with asyncio.timeout(60):
                while True:
                    assert await load(first, "a") == "first"
                    # Nothing else shows that there is a copy.
                    if any(copies.copies for copies in first.near_copies.values()):
                        break
                    await asyncio.sleep(0.01)  # until its server announces changes
            source[0] = "second"
            assert await load(second, "a") == "second"
            assert [await load(first, "a"), await load(second, "a")] == ["first", "second"]
