"""Blocking pops of a list in pieces: nothing lost, nothing twice, no wake-up missed.

Where a wake-up could be missed, waiters here block for a minute at a time in place of a second: a
test in which a token does not wake a consumer does not end in time.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from random import Random
from typing import Any

import pytest
from arranged import meanwhile
from faces import Face, faced, holder, over, sends

import shardkit
from shardkit import AsyncShardKit, ShardKit, ShardMap
from shardkit.local import LocalServer

STOP = "stop"


@pytest.fixture
def only_tokens_wake(lower: Any) -> None:
    lower(list_block=60.0)


def left_over(kit: ShardKit, name: str, component: str = "many") -> list[str]:
    return list(kit.list(name, component=component, part_size=3).items())


def test_a_missing_list_can_be_waited_for(kit: ShardKit, only_tokens_wake: None) -> None:
    jobs = kit.list("{new}:jobs", component="many", part_size=3)
    doing = kit.list("{new}:doing", component="many", part_size=3)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(jobs.blmove, doing)
        blocked(kit, "{new}:jobs", 1)
        next_ = pool.submit(doing.blpop)
        blocked(kit, "{new}:doing", 2)
        jobs.rpush("x")
        assert waiting.result(30) == "x"  # which wakes who waits for the other list
        assert next_.result(30) == "x"


def blocked(kit: ShardKit, name: str, count: int) -> None:
    """Wait until ``count`` clients block on the server of a list."""
    client = holder(kit, "many", name)
    while client.info("clients")["blocked_clients"] < count:
        threading.Event().wait(0.002)


ITEMS = 1500


def test_threads_at_both_ends_lose_nothing(kit: ShardKit, only_tokens_wake: None) -> None:
    jobs = kit.list("jobs", component="many", part_size=3)
    taken: list[list[str | None]] = [[] for _ in range(7)]

    def produce(n: int) -> None:
        random = Random(n)
        numbers = iter(range(n, ITEMS, 3))
        while page := list(islice(numbers, random.randint(1, 7))):
            random.choice([jobs.lpush, jobs.rpush])(*page)

    def consume(n: int) -> None:
        pop: Callable[[], str | None] = [jobs.blpop, jobs.brpop, jobs.blpop][n % 3]
        while (value := pop()) != STOP:
            taken[n].append(value)

    def snatch() -> None:
        taken[-1].extend(jobs.lpop(3) or ())

    with ThreadPoolExecutor(16) as pool:
        consumers = [pool.submit(consume, n) for n in range(6)]
        with meanwhile(snatch):
            list(pool.map(produce, range(3)))
            while jobs.llen():  # a STOP on the right would overtake values on the left
                threading.Event().wait(0.002)
        for _ in consumers:
            jobs.rpush(STOP)
        for consumer in consumers:
            consumer.result(60)
    assert Counter(value for values in taken for value in values) == Counter(map(str, range(ITEMS)))
    assert jobs.llen() == 0


async def test_cancelled_waiters_lose_nothing(
    akit: AsyncShardKit, kit: ShardKit, lower: Any
) -> None:
    lower(list_block=0.05)
    jobs = akit.list("jobs", component="many", part_size=3)
    random = Random(7)
    taken: list[str | None] = []
    pushed = 0
    for _ in range(40):
        tasks = [
            asyncio.ensure_future(random.choice([jobs.blpop, jobs.brpop, jobs.lpop])())
            for _ in range(10)
        ]
        for task in tasks:
            await asyncio.sleep(random.random() / 2000)
            if random.random() < 0.5:
                await jobs.rpush(pushed, pushed + 1)
                pushed += 2
            if random.random() < 0.7:
                task.cancel()
        await jobs.rpush(*range(pushed, pushed + 10))
        pushed += 10
        found = await asyncio.gather(*tasks, return_exceptions=True)
        taken += [value for value in found if isinstance(value, str)]
    taken += left_over(kit, "jobs")
    assert Counter(taken) == Counter(map(str, range(pushed)))


@pytest.mark.parametrize("cancellations", [1, 3])
@pytest.mark.parametrize("end", ["l", "r"])
async def test_cancelled_pops_are_put_back(
    akit: AsyncShardKit, kit: ShardKit, end: str, cancellations: int
) -> None:
    done, go_on = asyncio.Event(), asyncio.Event()

    class HeldUp:
        """A link that keeps the answer of a pop."""

        async def send(self, batch: Any) -> Any:
            replies = await akit.driver.link.send(batch)
            if sends(batch, "structures/list/pop"):
                done.set()
                await go_on.wait()
            return replies

    jobs = over(akit, HeldUp()).list("jobs", component="many", part_size=3)
    await jobs.rpush(*range(8))
    task = asyncio.ensure_future(getattr(jobs, f"{end}pop")(5))
    await done.wait()
    assert await jobs.llen() == 3  # the server has popped
    for _ in range(cancellations):
        task.cancel()
        await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    # After one cancellation all is done by now; later ones leave it to a task of its own.
    if cancellations > 1:
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
    assert left_over(kit, "jobs") == [*"01234567"]


@pytest.fixture(params=["blocking", "awaiting"])
def mortal(request: pytest.FixtureRequest) -> Iterator[tuple[Face, LocalServer]]:
    with LocalServer() as server:
        text = f'{{"components": {{"own": {{"entry": {{"port": {server.port}}}}}}}}}'
        with faced(request.param, ShardMap.parse(text)) as face:
            yield face, server


def blocking(client: Any, besides: int) -> int:
    """Wait until a client blocks, and return its id."""
    while True:
        for each in client.client_list():
            if each["cmd"] == "blpop" and "b" in each["flags"] and int(each["id"]) != besides:
                return int(each["id"])
        threading.Event().wait(0.002)


def test_a_wait_survives_a_lost_connection(mortal: tuple[Face, LocalServer]) -> None:
    """It can: a token is no value, so asking again for one is harmless."""
    face, server = mortal
    jobs = face.kit.list("jobs", component="own", part_size=3)
    with server.client() as client, ThreadPoolExecutor() as pool:

        def cut() -> None:
            cut = blocking(client, besides=0)
            client.client_kill_filter(_id=cut)
            blocking(client, besides=cut)
            with shardkit.connect(face.kit.topology.source.shard_map) as kit:
                kit.list("jobs", component="own", part_size=3).rpush("x")

        cutting = pool.submit(cut)
        assert face.run(jobs.blpop()) == "x"
        cutting.result(30)
