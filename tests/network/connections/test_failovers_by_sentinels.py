"""Sentinels tell of a failover, and clients leave the former master at once."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis
from link_helpers import FACES, eventually, of, opened

from shardkit import ShardKitError, ShardMap
from shardkit.local import LocalSentinel


@pytest.fixture
def watched() -> Iterator[LocalSentinel]:
    with LocalSentinel("main", replicas=1, sentinels=3) as running:
        yield running


def map_of(watched: LocalSentinel) -> ShardMap:
    return ShardMap.parse(str({"components": {"data": {"entry": watched.entry.fields}}}))


def subscribers(watched: LocalSentinel) -> list[int]:
    """How many connections each Sentinel has that have subscribed to something."""
    found = []
    for sentinel in watched.sentinels:
        with sentinel.client() as client:
            found.append(sum(int(each["sub"]) for each in client.client_list()))
    return found


@pytest.mark.parametrize("kind", FACES)
async def test_what_is_written_once_a_sentinel_tells_of_a_failover_is_not_lost(
    kind: str, watched: LocalSentinel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shardkit")
    acknowledged: list[tuple[float, str]] = []
    ended = threading.Event()

    def told() -> list[float]:
        records = list(caplog.records)
        return [each.created for each in records if "the master is" in each.getMessage()]

    async def write(client: Any, name: str) -> None:
        for n in range(100_000):
            if ended.is_set():
                return
            since = time.time()
            with suppress(redis.RedisError, ShardKitError):
                await of(client.set(f"{name}:{n}", "1"))
                acknowledged.append((since, f"{name}:{n}"))
            await asyncio.sleep(0.001)

    async with opened(kind, map_of(watched)) as face:
        client = await of(face.kit.client("data"))
        await of(client.ping())
        writing: list[Any] = []
        if kind == "blocking":
            for n in range(3):
                run = threading.Thread(target=asyncio.run, args=(write(client, str(n)),))
                run.start()
                writing.append(asyncio.to_thread(run.join))
        else:
            writing = [asyncio.create_task(write(client, str(n))) for n in range(3)]
        assert await eventually(lambda: subscribers(watched) == [1, 1, 1])
        listening = watched.sentinels[0].client()
        await asyncio.to_thread(listening.execute_command, "SENTINEL FAILOVER", "main")
        assert await eventually(lambda: bool(told()), 30)
        written = len(acknowledged)
        assert await eventually(lambda: len(acknowledged) > written + 200, 30)
        ended.set()
        await asyncio.gather(*writing)
        listening.close()
    # The write that an event loop has just begun may be the last one there.
    safe = sorted(entry for entry in acknowledged if entry[0] > told()[0] + 0.01)
    assert safe
    with watched.replicas[0].client() as there:
        assert there.exists(*[key for _, key in safe]) == len(safe)


@pytest.mark.parametrize("kind", FACES)
async def test_a_process_has_one_subscription_to_each_sentinel(
    kind: str, watched: LocalSentinel
) -> None:
    async with opened(kind, map_of(watched)) as one:
        assert await of((await of(one.kit.client("data"))).ping())
        assert await eventually(lambda: subscribers(watched) == [1, 1, 1])
        async with opened("blocking", map_of(watched)) as other:
            assert other.kit.client("data").ping()
            assert await of((await of(one.kit.client("data", private=True))).ping())
            assert subscribers(watched) == [1, 1, 1]
        assert subscribers(watched) == [1, 1, 1]
        watched.sentinels[0].restart()
        assert await eventually(lambda: subscribers(watched) == [1, 1, 1])
    assert await eventually(lambda: subscribers(watched) == [0, 0, 0])
