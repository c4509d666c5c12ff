"""What users of redis-py and asyncio expect of calls, types and shells."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from faces import Face

import shardkit
from shardkit import AsyncShardKit, ShardKit, ShardMap
from shardkit.errors import ClosedError, InvalidArgumentError, NotDurableError
from shardkit.queues import NewTask


async def test_an_async_kit_is_entered_with_and_without_await(shard_map: ShardMap) -> None:
    async with shardkit.aconnect(shard_map) as kit:
        assert await kit.key_sharded("many").set("a", 1)
    with pytest.raises(ClosedError, match="the kit is closed"):
        await kit.key_sharded("many").get("a")
    async with await shardkit.aconnect(shard_map) as kit:
        assert await kit.key_sharded("many").get("a") == b"1"
    kit = await asyncio.wait_for(shardkit.aconnect(shard_map), 10)
    await kit.aclose()


def test_opening_an_async_kit_is_a_coroutine_to_asyncio(shard_map: ShardMap) -> None:
    kit = asyncio.run(shardkit.aconnect(shard_map))
    assert isinstance(kit, AsyncShardKit)
    asyncio.run(kit.aclose())

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(shardkit.aconnect(shard_map))
        await task.result().aclose()

    asyncio.run(main())


async def test_an_async_kit_that_cannot_be_opened_is_not_entered() -> None:
    with pytest.raises(shardkit.ConfigError, match=r"absent\.yaml"):
        async with shardkit.aconnect("/absent.yaml"):
            pytest.fail("it was opened")


@pytest.mark.parametrize("opened", [shardkit.connect, shardkit.aconnect])
async def test_an_unknown_option_is_a_type_error_that_names_the_call(
    opened: Any, shard_map: ShardMap
) -> None:
    async def call() -> None:
        await opened(shard_map, decode_responses=True)

    with pytest.raises(TypeError, match=r"connect\(\) has no option 'decode_responses'.*entries"):
        await call()


def test_a_timedelta_is_as_good_as_seconds(face: Face) -> None:
    kit, second = face.kit, timedelta(seconds=1)
    lock = kit.lock("l", component="one", ttl=timedelta(minutes=1), wait=second, renew=False)
    hold = face.run(lock.acquire(wait=timedelta(0)))
    assert 50 < hold.remaining <= 60
    assert face.run(lock.extend(timedelta(minutes=5), hold))
    assert hold.remaining > 200
    face.run(lock.release(hold))
    queues = kit.queues(component="one", retry_delay=second, longest_retry_delay=60 * second)
    face.run(queues.enqueue("q", "later", delay=timedelta(hours=1)))
    assert face.run(queues.take("q", timeout=timedelta(milliseconds=10))) is None
    face.run(queues.enqueue_many("q", [NewTask("now", [], timedelta(0))]))
    task = face.run(queues.take("q", lease=second, timeout=second))
    assert task.name == "now"
    assert face.run(queues.release(task, delay=timedelta(hours=1)))
    limit = kit.rate_limit("r", component="one", limit=1, per=timedelta(hours=1))
    assert face.run(limit.wait("k", timeout=second))
    assert not face.run(limit.wait("k", timeout=timedelta(milliseconds=1)))
    assert face.run(kit.list("list", component="one").blpop(timedelta(milliseconds=10))) is None
    mailbox = kit.mailboxes(component="one")
    assert list(face.run(mailbox.fetch("ann", lease=second, timeout=timedelta(0)))) == []
    assert face.run(kit.health(second)).ok
    with kit.deadline(timedelta(seconds=20)):
        assert face.run(kit.set("s", component="one", total=10).scard()) == 0
    with pytest.raises(InvalidArgumentError, match=r"deadline=-1\.0 is not a number of seconds"):
        kit.deadline(-second)


def test_a_kits_deadline_and_decorators_take_timedeltas(shard_map: ShardMap) -> None:
    with shardkit.connect(shard_map, deadline=timedelta(seconds=20)) as kit:

        @kit.redis_connection("one", wait=timedelta(seconds=1))
        def ping(conn: Any) -> bool:
            return bool(conn.ping())

        assert ping()
        with (
            pytest.raises(NotDurableError, match="replica"),
            kit.durable(replicas=1, timeout=timedelta(milliseconds=50)),
        ):
            kit.client("one").set("a", 1)


def test_a_lock_takes_the_names_of_redis_py(face: Face) -> None:
    kit = face.kit
    lock = kit.lock("l", component="one", timeout=60, blocking_timeout=0.01, renew=False)
    hold = face.run(lock.acquire())
    assert 50 < hold.remaining <= 60
    other = kit.lock("l", component="one", blocking=False)
    assert face.run(other.acquire()) is None
    assert face.run(lock.acquire()) is None  # after a hundredth of a second
    assert face.run(other.acquire(blocking_timeout=0.01)) is None
    assert face.run(lock.acquire(blocking=False)) is None
    several = kit.multi_lock(["l", "m"], component="one", blocking=False)
    assert face.run(several.acquire()) is None
    face.run(lock.release(hold))
    with pytest.raises(InvalidArgumentError, match="blocking_timeout=1 beside another wait"):
        kit.lock("l", component="one", wait=2, blocking_timeout=1)


def test_completion_and_repr_show_what_users_need(kit: ShardKit) -> None:
    assert {"hash", "key_sharded", "client", "together", "close"} <= set(dir(kit))
    assert not {"plane", "topology", "clients", "driver", "breakers"} & set(dir(kit))
    assert not [name for name in dir(kit) if name.startswith("_")]
    for n in range(16):
        kit.client("many", n)
    assert "\n" not in repr(kit)
    assert repr(kit).startswith(f"<ShardKit of {kit.topology.source}: many:0, ")
