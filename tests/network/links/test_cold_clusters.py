"""Many tasks that use a cluster at the same time, before its client knows the cluster."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from link_helpers import mapped

import shardkit
from shardkit import AsyncShardKit, ShardMap
from shardkit.local import LocalCluster


@pytest.fixture
def shard_map(cluster: LocalCluster) -> ShardMap:
    return mapped(cluster.entry.fields)


async def by_decorator(kit: AsyncShardKit, key: str) -> Any:
    @kit.redis_connection("data")
    async def bump(conn: Any, key: str) -> Any:
        return await conn.incr(key)

    return await bump(key)


async def by_sharded_decorator(kit: AsyncShardKit, key: str) -> Any:
    @kit.sharded_connection("data")
    async def bump(conn: Any, key: str) -> Any:
        return await conn.incr(key)

    return await bump(key)


async def by_client(kit: AsyncShardKit, key: str) -> Any:
    return await (await kit.client("data")).incr(key)


async def by_router(kit: AsyncShardKit, key: str) -> Any:
    return await kit.key_sharded("data")[key].incr(key)


async def by_pipeline(kit: AsyncShardKit, key: str) -> Any:
    return (await kit.key_sharded("data").pipeline().incr(key).execute())[0]


async def by_own_pipeline(kit: AsyncShardKit, key: str) -> Any:
    return (await (await kit.client("data")).pipeline().incr(key).execute())[0]


async def by_structure(kit: AsyncShardKit, key: str) -> Any:
    return await kit.strings("n", component="data").incr(key)


async def by_all(kit: AsyncShardKit, key: str) -> Any:
    return await WAYS[int(key[1:]) % len(WAYS)](kit, key)


WAYS = [
    by_decorator,
    by_sharded_decorator,
    by_client,
    by_router,
    by_pipeline,
    by_own_pipeline,
    by_structure,
]


@pytest.mark.long(3)
@pytest.mark.parametrize("way", [*WAYS, by_all])
async def test_many_tasks_start_cold(way: Any, shard_map: ShardMap, cluster: LocalCluster) -> None:
    for attempt in range(5):
        async with await shardkit.aconnect(shard_map) as kit:
            found = await asyncio.gather(
                *[way(kit, f"k{n}") for n in range(100)], return_exceptions=True
            )
        failed = [each for each in found if isinstance(each, BaseException)]
        assert not failed, Counter(map(repr, failed))
        assert found == [attempt + 1] * 100
