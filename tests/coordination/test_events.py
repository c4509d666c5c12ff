"""Latches, barriers and elections: who waits goes on when it may, and not before."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from coordination_helpers import line, processes
from faces import Exchanges, Face, eventually, holder

from shardkit import AsyncShardKit, ShardKit, ShardMap
from shardkit.errors import DamagedDataError, ParameterMismatchError, StaleTokenError


@pytest.mark.parametrize("component", ["one", "many"])
def test_a_latch_opens_when_it_was_counted_down(kit: ShardKit, component: str) -> None:
    latch = kit.countdown_latch("x", component=component)
    assert latch.wait(0) is True  # never set
    assert latch.set(3) is True
    assert latch.set(5) is False
    assert latch.wait(0.01) is False
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(latch.wait) for _ in range(4)]
        assert [latch.count_down() for _ in range(2)] == [2, 1]
        assert not any(each.done() for each in waiting)
        assert latch.count_down(7) == 0
        assert all(each.result(20) for each in waiting)
    assert latch.count() == 0
    assert latch.count_down() == 0
    assert latch.set(1) is True
    client: Any = holder(kit, component, latch.key) if component == "many" else kit.client("one")
    client.hdel(latch.key, "count")
    with pytest.raises(DamagedDataError, match="no count"):
        latch.count()
    client.delete(latch.key)
    assert latch.count() == 0  # as if it was never set
    client.sadd(f"{latch.key}:waiters", "- waiter")
    with pytest.raises(DamagedDataError, match="no count"):
        latch.count()


def test_who_gives_up_as_it_opens_is_let_in(face: Face) -> None:
    latch = face.kit.countdown_latch("x", component="one")
    face.run(latch.set(1))
    waiting = Exchanges(face, latch.deferred.wait(0))
    for number, _ in enumerate(waiting):
        if number == 2:  # it has subscribed and asked, and gives up
            assert face.run(latch.count_down()) == 0
    assert waiting.result is True


async def test_tasks_wait_at_a_latch_and_at_a_barrier(akit: AsyncShardKit) -> None:
    latch = akit.countdown_latch("x", component="one")
    await latch.set(1)
    waiting = [asyncio.ensure_future(latch.wait()) for _ in range(20)]
    client = await akit.client("one")
    async with asyncio.timeout(20):
        while await client.scard(f"{latch.key}:waiters") < 20:  # noqa: ASYNC110 - the server knows
            await asyncio.sleep(0.002)
    await latch.count_down()
    assert all(await asyncio.wait_for(asyncio.gather(*waiting), 1.5))  # woken: before they ask
    for _ in range(3):
        barriers = [akit.barrier("x", component="many", parties=10) for _ in range(10)]
        async with asyncio.timeout(1.5):
            assert all(await asyncio.gather(*(barrier.wait() for barrier in barriers)))


def test_a_barrier_opens_when_all_are_there_and_forgets_who_gave_up(face: Face) -> None:
    run, barrier = face.run, face.kit.barrier("x", component="one", parties=2)
    assert run(barrier.wait(0.01)) is False
    assert run(barrier.wait(0)) is False  # the first has withdrawn
    assert run(face.kit.barrier("y", component="one", parties=1).wait()) is True
    if not face.runner:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(barrier.wait, 20)
            client: Any = face.kit.client("one")
            assert eventually(lambda: client.hlen("barrier:{x}:arrived") == 1)
            with pytest.raises(ParameterMismatchError, match="parties=3, but others wait for 2"):
                face.kit.barrier("x", component="one", parties=3).wait()
            assert barrier.wait(20) is True
            assert waiting.result(20) is True
        for wrong in ("x", 2**53):
            client.hset("barrier:{x}", "round", wrong)
            with pytest.raises(DamagedDataError, match=f"round={wrong}, where an integer"):
                barrier.wait(0)
        client.hset("barrier:{x}", "round", 2**53 - 1)  # the largest that is exact
        assert barrier.wait(0) is False


CANDIDATE = """
election = kit.election("x", component="one", label=argument, ttl=0.5)
leadership = election.campaign(blocking_timeout=None)
print(leadership.token, flush=True)
sys.stdin.readline()
"""


def test_a_leader_that_is_killed_is_followed_in_a_later_term(kit: Any, shard_map: ShardMap) -> None:
    election = kit.election("x", component="one", label="here")
    assert election.leader() is None
    with processes(CANDIDATE, shard_map, "first") as [first]:
        term = int(line(first))
        leader = election.leader()
        assert (leader.label, leader.token) == ("first", term)
        assert election.campaign(blocking_timeout=0) is None
        first.kill()
        first.wait()
        leadership = election.campaign(blocking_timeout=20)
    assert leadership.token > term
    leadership.guard("many").claim("data")
    assert election.resign(leadership)
    assert election.leader() is None
    later = election.campaign()
    later.guard("many").claim("data")
    with pytest.raises(StaleTokenError, match="give up the work under the lock, or"):
        leadership.guard("many").execute(("SET", "data", 1))


def test_steps_of_all_that_coordinates_go_in_one_exchange(face: Face) -> None:
    kit = face.kit
    lock = kit.lock("a", component="many", renew=False)
    found = kit.together(
        lock.deferred.locked(),
        kit.semaphore("b", component="many", limit=2, renew=False).deferred.acquire(),
        kit.countdown_latch("c", component="many").deferred.set(3),
        kit.barrier("d", component="many", parties=1).deferred.wait(),
        kit.election("e", component="many", renew=False).deferred.campaign(),
        kit.rate_limit("f", component="many", limit=5, per=60).deferred.hit("key"),
    )
    locked, semaphore, was_open, passed, elected, hit = face.run(found)
    assert (locked, was_open, passed, hit.allowed) == (False, True, True, True)
    assert [hold.name for hold in (semaphore, elected)] == ["b", "e"]
    assert face.run(kit.countdown_latch("c", component="many").count()) == 3
