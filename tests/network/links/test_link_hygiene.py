"""No reply reaches the wrong caller: cancelled, interrupted, forked, in threads and many loops."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import redis
from arranged import exit_code, forked, meanwhile
from faces import own_client
from link_helpers import (
    alarms_raise,
    clients_of,
    command,
    eventually,
    in_threads,
    mapped,
    opened,
    paused,
)
from scripted_server import bulk, scripted
from test_gate import described

import shardkit
from shardkit import AsyncShardKit, ShardKit, ShardMap, ShardUnavailable
from shardkit.local import LocalServer, LocalServers
from shardkit.operations import Command

KEYS = [f"k{n}" for n in range(500)]


def fill(kit: ShardKit) -> None:
    kit.driver.link.send([command("many", key, "SET", key) for key in KEYS])


def gets(dice: random.Random, most: int = 20) -> tuple[list[Command], list[bytes]]:
    keys = dice.choices(KEYS, k=dice.randrange(1, most))
    return [command("many", key, "GET") for key in keys], [key.encode() for key in keys]


async def test_cancellation_never_shifts_replies(kit: ShardKit, akit: AsyncShardKit) -> None:
    fill(kit)
    dice = random.Random(5)
    send = akit.driver.link.send
    wrong: list[Any] = []
    finished = 0

    async def read() -> None:
        nonlocal finished
        for _ in range(10):
            batch, expected = gets(dice)
            replies = await send(batch)
            if replies != expected:
                wrong.append((replies, expected))
            finished += 1

    tasks = [asyncio.create_task(read()) for _ in range(200)]
    for _ in range(250):
        await asyncio.sleep(0 if dice.random() < 0.7 else 0.001)
        dice.choice(tasks).cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert wrong == []
    assert any(task.cancelled() for task in tasks)
    assert finished > 100
    batch, expected = gets(dice, 300)
    assert await send(batch) == expected


async def test_tasks_of_one_turn_share_a_write(akit: AsyncShardKit, servers: LocalServers) -> None:
    """Automatic pipelining: 200 tasks need one connection, and few reads of the server."""
    send = akit.driver.link.send
    await send([command("one", "k", "SET", 0)])
    with servers.server_of("one").client() as client:
        before = client.info("stats")["total_connections_received"]
        reads = client.info("stats")["total_reads_processed"]
        await asyncio.gather(*[send([command("one", "k", "INCR")]) for _ in range(200)])
        after = client.info("stats")
    assert after["total_connections_received"] == before
    assert after["total_reads_processed"] - reads < 20


async def test_unwritten_requests_use_the_next_connection(lower: Callable[..., None]) -> None:
    lower(replies_due=1)  # the others wait until it is answered
    broken: list[list[bytes]] = []

    def answer(args: list[bytes]) -> bytes | None:
        if args[1] != b"k0":
            return bulk(args[1])
        broken.append(args)
        return None

    with scripted(INCR=answer) as server:
        async with await shardkit.aconnect(mapped({"port": server.port})) as kit:
            link: Any = kit.driver.link
            await link.send([Command("data", "k", ("PING",))])
            sending = [
                asyncio.create_task(link.send([command("data", f"k{n}", "INCR")])) for n in range(4)
            ]
            [first], *others = await asyncio.gather(*sending)
    assert isinstance(first, ShardUnavailable)
    assert "may have been executed" in first.remedy
    assert others == [[b"k1"], [b"k2"], [b"k3"]]
    assert len(broken) == 1


async def test_a_repr_says_what_a_connection_is_doing(akit: AsyncShardKit) -> None:
    link: Any = akit.driver.link
    first = asyncio.create_task(link.send([command("one", "k", "GET")]))
    while "connecting" not in repr(link):  # noqa: ASYNC110 - the task above makes it so
        await asyncio.sleep(0)
    assert "connecting, 1 waiting, 0 replies outstanding" in repr(link)
    assert await first == [None]
    assert "idle, 0 waiting, 0 replies outstanding" in repr(link)


async def test_slow_writes_do_not_time_out(akit: AsyncShardKit) -> None:
    link: Any = akit.driver.link
    await link.send([command("one", "k", "GET")])
    connection: Any = own_client(akit, "one").connection_pool.way.multiplexed
    waiting = asyncio.create_task(link.send([Command("one", "l", ("BLPOP", "l", 0))]))
    while connection._transport is None:  # noqa: ASYNC110 - the task above makes it so
        await asyncio.sleep(0)
    connection._timer.cancel()
    connection._last_read, connection._unwritten = -1e9, 100  # it was still to be written
    connection._check_timeout()
    assert not waiting.done()
    assert connection._transport is not None
    connection._timer.cancel()
    connection._last_read = -1e9
    connection._check_timeout()
    [lost] = await waiting
    assert isinstance(lost, ShardUnavailable)
    assert "no reply for" in str(lost)
    connection._check_timeout()  # as when its time was over just then
    connection.buffer_updated(5)  # and something came
    assert await link.send([command("one", "k", "GET")]) == [None]


@pytest.mark.parametrize("joined", [False, True])
async def test_a_batch_cancelled_between_its_chunks_leaves_no_transaction_open(
    joined: bool, own_server: LocalServer
) -> None:
    pairs = {f"k{n}": "x" * 100 for n in range(6000)}
    async with opened("awaiting", described(own_server)) as face:
        router = face.kit.key_sharded("t")
        clients = [await face.kit.client("t", n) for n in range(8)]
        for client in clients:
            await client.set("mine", 1)  # the databases are open
        pipe = router.pipeline()
        for key, value in pairs.items():
            pipe.append(key, value)
        with paused(own_server):
            call = asyncio.ensure_future(router.mset(pairs) if joined else pipe.execute())
            await asyncio.sleep(0.2)  # so that it has written all that may be in flight
            call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert [await client.get("mine") for client in clients] == [b"1"] * 8


class Interrupted(BaseException):
    pass


@pytest.mark.timeout(120, method="thread")  # SIGALRM is the test's own
@pytest.mark.parametrize(("size", "rounds"), [(1, 60), (3, 60), (4000, 20)])
def test_interrupts_leave_no_replies_behind(kit: ShardKit, size: int, rounds: int) -> None:
    fill(kit)
    dice = random.Random(7)
    send = kit.driver.link.send
    hits = 0
    with alarms_raise(Interrupted) as alarm:
        for _ in range(rounds):
            keys = dice.choices(KEYS, k=size)
            batch = [command("many", key, "GET") for key in keys]
            try:
                alarm(dice.random() * 2e-6 * size + 2e-5)
                for _ in range(20):
                    send(batch)
            except Interrupted:
                hits += 1
            finally:
                alarm(0)
            assert send(batch) == [key.encode() for key in keys]
            with kit.client("many", 3) as client:  # the client plane has the same connections
                assert client.echo("x") == b"x"
    assert hits


def child_of(kit: ShardKit, seed: int) -> int:
    """Use a kit in a forked child; return its process id."""

    def work() -> None:
        dice = random.Random(seed)
        for _ in range(100):
            batch, expected = gets(dice)
            assert kit.driver.link.send(batch) == expected
            key = dice.choice(KEYS)
            assert kit.key_sharded("many")[key].get(key) == key.encode()

    return forked(work)


def test_a_fork_while_other_threads_are_at_it_does_not_hang_the_child(kit: ShardKit) -> None:
    fill(kit)

    def work(dice: random.Random, seed: int) -> None:
        batch, expected = gets(dice)
        assert kit.driver.link.send(batch) == expected
        kit.topology.expire()
        client = kit.client("many", seed)
        client.connection_pool.disconnect(inuse_connections=False)  # so its locks are used

    with ExitStack() as threads:
        for seed in range(4):
            threads.enter_context(meanwhile(partial(work, random.Random(seed), seed)))
        children = [child_of(kit, seed) for seed in range(12)]
        assert [exit_code(pid) for pid in children] == [0] * 12


def test_what_a_parent_holds_at_a_fork_stays_its_own(kit: ShardKit) -> None:
    client = kit.client("one")
    single, piped, subscriber = client.client(), client.pipeline(), client.pubsub()
    known = single.client_id()
    piped.watch("k")
    subscriber.subscribe("news")
    assert subscriber.get_message(timeout=5)["type"] == "subscribe"

    def use() -> None:
        assert single.client_id() != known
        with pytest.raises(redis.WatchError, match="while watching"):
            piped.get("k")
        assert subscriber.get_message(timeout=5)["type"] == "subscribe"  # once more

    assert exit_code(forked(use)) == 0
    client.publish("news", "to the parent")
    assert subscriber.get_message(timeout=5)["data"] == b"to the parent"
    assert single.client_id() == known
    piped.multi()
    assert piped.set("k", 1).execute() == [True]


def looped(kit: ShardKit | AsyncShardKit, seed: int) -> None:
    """Use a kit in an event loop of its own."""

    @kit.sharded_connection("many")
    async def read(conn: redis.asyncio.Redis, key: str) -> Any:
        return await conn.get(key)

    async def main() -> None:
        dice = random.Random(seed)
        batch, expected = gets(dice)
        if isinstance(kit, AsyncShardKit):
            send = kit.driver.link.send
            results = await asyncio.gather(*[send(batch) for _ in range(20)])
            assert results == [expected] * 20
        assert await asyncio.gather(*map(read, KEYS[:50])) == [k.encode() for k in KEYS[:50]]

    asyncio.run(main())


@pytest.fixture
def loose_kit(shard_map: ShardMap, kit: ShardKit) -> Iterator[AsyncShardKit]:
    """An async kit that belongs to no loop in particular."""
    fill(kit)
    opened = asyncio.run(shardkit.aconnect(shard_map))
    yield opened
    asyncio.run(opened.aclose())


def test_decorated_async_functions_work_in_one_loop_after_another(kit: ShardKit) -> None:
    fill(kit)
    for seed in range(3):
        looped(kit, seed)
        gc.collect()


def test_an_async_kit_serves_loops_of_many_threads_at_once(loose_kit: AsyncShardKit) -> None:
    def work(seed: int) -> None:
        for n in range(3):
            looped(loose_kit, seed + n)

    in_threads(4, work)
    gc.collect()


async def test_an_ending_loop_closes_all(servers: LocalServers, shard_map: ShardMap) -> None:
    server = servers.server_of("one")
    before = clients_of(server)

    def leave() -> None:
        async def main() -> None:
            kit = await shardkit.aconnect(shard_map)
            send = kit.driver.link.send
            await send([command("one", "k", "SET", 1)])
            tasks = [
                asyncio.create_task(send([Command("one", "q", ("BLPOP", "q", 0), block=0)])),
                asyncio.create_task(send([command("one", "k", "GET") for _ in range(5000)])),
            ]
            await asyncio.sleep(0.001)  # somewhere in the replies
            assert tasks

        asyncio.run(main())
        gc.collect()

    await asyncio.to_thread(leave)
    assert await eventually(lambda: clients_of(server) == before)


def test_a_child_of_a_parent_with_a_loop_runs_its_own(loose_kit: AsyncShardKit) -> None:
    looped(loose_kit, 1)
    pid = forked(lambda: looped(loose_kit, 2))
    looped(loose_kit, 3)
    assert exit_code(pid) == 0
