"""Exceptions from outside, at any moment: no connection is lost, and each stays what it is."""

from __future__ import annotations

import asyncio
import gc
import itertools
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import FrameType
from typing import Any

import pytest
from arranged import alarmed, emptied
from link_helpers import alarms_raise, paused
from places import at_place

import shardkit
from shardkit import ShardKit
from shardkit.coordination import Barrier, CountdownLatch, Election, Lock, Semaphore
from shardkit.local import LocalServers
from shardkit.messaging import Mailboxes
from shardkit.metrics import Logs
from shardkit.operations import Command, Operation, Shard
from shardkit.queues import TaskQueues

WHERE = ("shardkit.network.connections", "shardkit.network.links", "redis", "_weakrefset")
PLAN = """
components:
  c:
    entry: {port: 7001, socket_timeout: 60}
    shards: [{port: 7001, db: 1, socket_timeout: 60}, {port: 7001, db: 2, socket_timeout: 60}]
"""


@pytest.fixture
def kit(own: LocalServers) -> Iterator[ShardKit]:
    with emptied(own) as opened:  # of what an earlier test holds
        yield opened


def get() -> Operation[object]:
    [found] = yield [Command(Shard("c", 0), "k", ("GET", "k"), idempotent=True)]
    return found


def one(kit: ShardKit) -> object:
    return kit.driver.run(get())


def several(kit: ShardKit) -> object:
    router = kit.key_sharded("c")
    return router.mget([f"k{n}" for n in range(20)])


def redis_pys(kit: ShardKit) -> object:
    return kit.client("c", 0).get("k")


USES = pytest.mark.parametrize("use", [one, several, redis_pys])


def private_call(kit: ShardKit, client: Any) -> object:
    return client.get("k")


def private_transaction(kit: ShardKit, client: Any) -> object:
    with client.pipeline() as pipeline:
        pipeline.watch("k")
        pipeline.multi()
        pipeline.set("k", 1)
        return pipeline.execute()


def shared_transaction(kit: ShardKit, client: Any) -> object:
    return private_transaction(kit, kit.client("c"))


@pytest.mark.parametrize("use", [private_call, private_transaction, shared_transaction])
def test_interrupts_lose_no_link(kit: ShardKit, use: Callable[[ShardKit, Any], object]) -> None:
    """And what was watched is not watched by the next one who gets the connection."""
    client: Any = kit.client("c", private=True)
    other: Any = kit.client("c", private=True)
    pools = [client.connection_pool, kit.client("c").connection_pool]
    for n in itertools.count(1):
        use(kit, client)
        if not interrupted_at(n, partial(use, kit, client)):
            break
        assert lost(pools) == 0, n
        other.set("k", n)
        found = client.pipeline().set("k", "mine").execute()
        assert found == [True], f"watched still, interrupted at {n}"
        assert client.get("k") == kit.client("c").get("k") == b"mine", n
    assert n > 100


@USES
def test_interrupted_calls_lose_nothing(kit: ShardKit, use: Callable[[ShardKit], object]) -> None:
    """And none answers the next one with what the last one has not read."""
    pools: list[Any] = [kit.client("c", number).connection_pool for number in (None, 0, 1)]
    kit.client("c", 0).set("k", 1)
    expected = use(kit)
    for n in itertools.count(1):
        interrupted = interrupted_at(n, partial(use, kit))
        assert lost(pools) == 0, n
        assert use(kit) == expected, n
        if not interrupted:
            break
    assert n > 30


@pytest.mark.parametrize("transaction", [False, True])
def test_interrupted_pipelines_send_nothing_to_another_database(
    kit: ShardKit, transaction: bool
) -> None:
    first, second = kit.client("c", 0), kit.client("c", 1)
    for n in itertools.count(1):
        second.set("k", "second")  # so its database is selected
        interrupted = interrupted_at(n, first.pipeline(transaction).set("k", n).execute)
        first.set("k", "first")
        assert (first.get("k"), second.get("k")) == (b"first", b"second"), n
        if not interrupted:
            break
    assert n > 100


def lost(pools: list[Any]) -> int:
    """How many connections are in use, though nobody uses one."""
    if sum(len(pool.connections.lent) for pool in pools):
        gc.collect()
    return sum(len(pool.connections.lent) for pool in pools)


@pytest.mark.parametrize("private", [False, True])
async def test_cancelled_transactions_unwatch(own: LocalServers, private: bool) -> None:
    async with await shardkit.aconnect(own.shard_map) as kit:
        client: Any = await kit.client("c", private=private)
        other: Any = await kit.client("c", private=True)
        await client.ping()
        await other.ping()

        async def transact() -> object:
            async with client.pipeline() as pipeline:
                await pipeline.watch("k")
                pipeline.multi()
                pipeline.set("k", 1)
                return await pipeline.execute()

        for turns in itertools.count():
            task = asyncio.ensure_future(transact())
            for _ in range(turns):
                await asyncio.sleep(0)
            done = task.done()
            task.cancel()
            await asyncio.wait([task])
            await other.set("k", turns)
            assert not client.connection_pool.connections.lent, turns
            assert await client.pipeline().set("k", "mine").execute() == [True], turns
            if done:
                break
        assert turns > 3


def interrupt() -> None:
    raise KeyboardInterrupt


def interrupted_at(n: int, call: Callable[[], object]) -> bool:
    """Interrupt a thread that makes a call, wherever connections are lent, used and released.

    Returns:
        Whether there is an n-th place for it.
    """
    with ThreadPoolExecutor(1) as thread:
        try:
            return thread.submit(at_place, n, call, interrupt, WHERE).result()
        except KeyboardInterrupt:
            return True


class Alarm(TimeoutError):
    """What this test's own handler raises."""


@pytest.mark.parametrize("kind", [Alarm, TimeoutError, ConnectionError, OSError])
@USES
def test_an_error_of_a_signal_handler_is_nobody_elses(
    kit: ShardKit, own: LocalServers, use: Callable[[ShardKit], object], kind: type[Exception]
) -> None:
    use(kit)
    error = pytest.raises(kind, match=r"^of my own$")
    with paused(own.servers[0]), alarms_raise(partial(kind, "of my own")), error:
        alarmed(partial(use, kit))
    use(kit)


# Imported before an alarm rings: Python's imports ignore errors of files, such as a TimeoutError.
IMPORTED = Barrier, CountdownLatch, Election, Lock, Logs, Mailboxes, Semaphore, TaskQueues
WAITS: dict[str, Callable[[ShardKit], object]] = {
    "blpop": lambda kit: kit.client("c").blpop(["none"], timeout=20),
    "take": lambda kit: kit.queues(component="c").take("none", timeout=20),
    "lock": lambda kit: kit.lock("held", component="c").acquire(blocking_timeout=20),
    "barrier": lambda kit: kit.barrier("b", component="c", parties=2).wait(timeout=20),
    "fetch": lambda kit: kit.mailboxes(component="c").fetch("nobody", timeout=20),
    "latch": lambda kit: kit.countdown_latch("l", component="c").wait(timeout=20),
    "follow": lambda kit: next(iter(kit.logs(component="c").follow("none"))),
    "message": lambda kit: list(subscribed(kit).listen()),
    "poll": lambda kit: next(filter(None, iter(partial(subscribed(kit).get_message, True, 20), 0))),
    "election": lambda kit: kit.election("held", component="c").campaign(blocking_timeout=20),
    "semaphore": lambda kit: kit.semaphore("s", component="c", limit=1).acquire(
        blocking_timeout=20
    ),
}


def subscribed(kit: ShardKit) -> Any:
    events = kit.key_sharded("c").pubsub(ignore_subscribe_messages=True)
    events.subscribe("none")
    return events


@pytest.mark.timeout(120, method="thread")
@pytest.mark.parametrize("kind", [TimeoutError, ConnectionError])
@pytest.mark.parametrize("wait", WAITS)
def test_an_error_of_a_signal_handler_ends_a_wait(
    kit: ShardKit, wait: str, kind: type[Exception]
) -> None:
    lock, semaphore = kit.lock("held", component="c"), kit.semaphore("s", component="c", limit=1)
    kit.countdown_latch("l", component="c").set(1)
    kit.election("held", component="c").campaign()
    with alarms_raise(partial(kind, "of my own")), lock, semaphore:
        for _ in range(2):  # while it subscribes, perhaps, and later
            with pytest.raises(kind, match=r"^of my own$"):
                alarmed(partial(WAITS[wait], kit))


@pytest.mark.timeout(120, method="thread")
def test_an_error_of_a_signal_handler_ends_a_wait_that_begins(kit: ShardKit) -> None:
    def trace(frame: FrameType, event: str, arg: object) -> None:
        if frame.f_code.co_name == "set_timeout":  # a moment that no timer meets
            sys.settrace(None)
            signal.raise_signal(signal.SIGALRM)

    with alarms_raise(partial(TimeoutError, "of my own")):
        sys.settrace(trace)
        with pytest.raises(TimeoutError, match=r"^of my own$"):
            kit.list("none", component="c").blpop(timeout=1)
        sys.settrace(None)
