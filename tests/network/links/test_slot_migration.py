"""Slots on the move, nodes that join and slots that nobody owns: once, and by few connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any, Self

import pytest
import pytest_asyncio
import redis
from arranged import ask
from link_helpers import Face, command, eventually, mapped, of, opened, script_call
from redis.crc import key_slot

from shardkit import ShardMap, ShardUnavailable
from shardkit.local import LocalCluster
from shardkit.operations import Command, Script, Transaction

BUMP = Script("bump", "return redis.call('INCRBY', KEYS[1], ARGV[1])")
KEYS = [f"{{tag}}{n}" for n in range(1_000)]
SLOT = key_slot(KEYS[0].encode())


@pytest.fixture(scope="module")
def whole() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@asynccontextmanager
async def joined(whole: LocalCluster) -> AsyncIterator[Any]:
    """A node that has just joined and owns no slot."""
    with type(whole.nodes[0])(name="joined") as node, node.client() as client:
        clients = [client, *[each.client() for each in whole.nodes]]
        first = whole.nodes[0]
        client.execute_command("CLUSTER MEET", "127.0.0.1", first.port, first.bus_port)
        assert await eventually(lambda: all(len(each.cluster("NODES")) == 4 for each in clients))
        assert await eventually(lambda: client.cluster("INFO")["cluster_state"] == "ok")
        yield node
        for each in clients[1:]:
            each.execute_command("CLUSTER FORGET", client.execute_command("CLUSTER MYID"))
            each.close()


@pytest_asyncio.fixture
async def slots(kind: str, whole: LocalCluster) -> AsyncIterator[Face]:
    for node in whole.nodes:
        with node.client() as client:
            client.flushall()
            client.script_flush()
    async with opened(kind, map_of(whole)) as found:
        yield found


def map_of(whole: LocalCluster) -> ShardMap:
    return mapped({**whole.entry.fields, "max_connections": 20})


class Migration:
    """One slot's way from its node to another."""

    def __init__(self, whole: LocalCluster, target: Any = None) -> None:
        owner = ask(whole, "get_node_from_key", KEYS[0]).name
        nodes = {node.address: node for node in whole.nodes}
        self.source_node = nodes[owner]
        self.target_node: Any = target or next(n for a, n in nodes.items() if a != owner)
        self.source, self.target = self.source_node.client(), self.target_node.client()
        self.all = [node.client() for node in whole.nodes]

    def start(self) -> None:
        ids = [each.execute_command("CLUSTER MYID") for each in (self.source, self.target)]
        self.target.execute_command("CLUSTER SETSLOT", SLOT, "IMPORTING", ids[0])
        self.source.execute_command("CLUSTER SETSLOT", SLOT, "MIGRATING", ids[1])

    def move(self, *keys: str) -> None:
        port = self.target_node.port
        self.source.execute_command("MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", *keys)

    def finish(self) -> None:
        name = self.target.execute_command("CLUSTER MYID")
        for each in (self.target, self.source, *self.all):
            each.execute_command("CLUSTER SETSLOT", SLOT, "NODE", name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()
        for each in (self.source, self.target, *self.all):
            each.close()


def connections(node: Any) -> int:
    return int(ask(node, "info", "stats")["total_connections_received"])


def bumps() -> list[Any]:
    """Of each kind of request, a third."""
    batch: list[Any] = [command("data", key, "INCR") for key in KEYS[::3]]
    batch += [script_call("data", BUMP, [key], [1]) for key in KEYS[1::3]]
    return batch + [Transaction("data", k, (command("data", k, "INCR"),)) for k in KEYS[2::3]]


def counted(n: int) -> list[Any]:
    return [n] * len(KEYS[::3]) + [n] * len(KEYS[1::3]) + [[n]] * len(KEYS[2::3])


@pytest.mark.parametrize("joins", [False, True], ids=["known node", "node that just joined"])
async def test_asked_requests_run_once(slots: Face, whole: LocalCluster, joins: bool) -> None:
    async with joined(whole) if joins else nullcontext(None) as target:
        with Migration(whole, target) as move:
            assert await slots.send(*bumps()) == counted(1)
            move.start()
            move.move(*KEYS)
            before = connections(move.target_node)
            assert await slots.send(*bumps()) == counted(2)
            assert await slots.send(*bumps()) == counted(3)
            assert connections(move.target_node) - before <= 3  # one of them asks
            move.finish()
            if target is not None:  # and back
                move.source, move.target = move.target, move.source
                move.source_node, move.target_node = move.target_node, move.source_node
                move.start()
                move.move(*KEYS)


@pytest.mark.parametrize("transaction", [False, True])
async def test_pipelines_with_a_dump_follow_their_slot(
    kind: str, transaction: bool, whole: LocalCluster
) -> None:
    fields = {**whole.entry.fields, "decode_responses": True}
    async with opened(kind, mapped(fields)) as face:
        client = await of(face.kit.client("data"))
        with Migration(whole) as migration:
            await of(client.set(KEYS[0], 0))
            migration.start()
            migration.move(*KEYS)  # also those of other tests
            pipe = client.pipeline(transaction=transaction).incr(KEYS[0])
            added, dumped, value = await of(pipe.dump(KEYS[0]).get(KEYS[0]).execute())
            assert (added, type(dumped), value) == (1, bytes, "1")


async def test_a_slot_that_moves_is_followed_throughout(slots: Face, whole: LocalCluster) -> None:
    others = [command("data", f"k{n}", "SET", n) for n in range(300)]

    async def check(step: int) -> None:
        replies = await slots.send(*bumps(), *others)
        assert replies == [*counted(step), *[b"OK"] * 300]
        assert not replies.failed

    with Migration(whole) as move:
        await check(1)
        move.start()
        await check(2)  # all keys are still there
        move.move(*KEYS[:500])
        await check(3)  # half of them have gone: ASK, also for a script that the target never saw
        assert await slots.send(Command("data", KEYS[0], ("MGET", *KEYS[:2]))) == [[b"3", b"3"]]
        move.move(*KEYS[500:])
        await check(4)
        move.finish()
        await check(5)  # MOVED
        await check(6)


@pytest.mark.parametrize("stays", [False, True], ids=["new key", "key that has not moved"])
async def test_commands_behind_one_whose_keys_are_on_the_move_wait_for_it(
    slots: Face, whole: LocalCluster, stays: bool
) -> None:
    one, other, union = KEYS[:3]
    router: Any = slots.kit.key_sharded("data")
    await slots.value(router.sadd(one, 1, 2))
    await slots.value(router.sadd(other, 3))
    if stays:
        await slots.value(router.sadd(union, 0))
    with Migration(whole) as move:
        move.start()
        move.move(one)

        async def finish() -> None:
            assert await eventually(
                lambda: move.source.info("errorstats").get("errorstat_TRYAGAIN")
            )
            await asyncio.sleep(0.3)  # it is refused several times
            move.move(other, union)
            move.finish()

        move.source.config_resetstat()
        timer = asyncio.get_running_loop().run_in_executor(None, asyncio.run, finish())
        pipe = router.pipeline().sunionstore(union, one, other).scard(union).sadd(union, 9)
        assert await slots.value(pipe.execute()) == [3, 3, 1]
        await timer
    members = await slots.value(router.smembers(union))
    assert {int(member) for member in members} == {1, 2, 3, 9}


async def test_joined_calls_work_while_half_of_their_keys_have_moved(
    slots: Face, whole: LocalCluster
) -> None:
    values = {key: key.encode() for key in KEYS[:20]}
    router: Any = slots.kit.key_sharded("data")
    await slots.value(router.mset(values))
    with Migration(whole) as move:
        move.start()
        move.move(*KEYS[:10])
        assert await slots.value(router.mget(list(values))) == list(values.values())
        await slots.value(router.mset(values))
        move.move(*KEYS[10:20])


async def test_a_node_that_is_gone_was_sent_nothing_and_says_so(kind: str) -> None:
    keys = [f"k{n}" for n in range(60)]
    with LocalCluster(config={"cluster-require-full-coverage": False}) as whole:
        async with opened(kind, map_of(whole)) as face:
            await face.send(*[command("data", key, "GET") for key in keys])
            [node, *_] = whole.nodes
            with whole.client() as asking:
                own = {key for key in keys if asking.get_node_from_key(key).name == node.address}
            assert 0 < len(own) < len(keys)
            node.kill()
            await face.send(*[command("data", key, "GET") for key in keys])  # it is noticed
            replies = await face.send(*[command("data", key, "INCR") for key in keys])
        for key, reply in zip(keys, replies, strict=True):
            if key in own:
                assert isinstance(reply, ShardUnavailable)
                assert "cannot be reached" in str(reply)
                assert "may have been executed" not in str(reply)
            else:
                assert reply == 1


@pytest.mark.parametrize("when", ["before WATCH", "before GET", "before EXEC", "learned"])
async def test_a_watched_slot_that_moves_is_never_lost(
    slots: Face, whole: LocalCluster, when: str
) -> None:
    client, key = await of(slots.kit.client("data")), KEYS[0]
    await of(client.set(key, 1))
    with Migration(whole) as migration:

        def move(now: str) -> None:
            if when == now:
                migration.start()
                migration.move(key)
                migration.finish()

        async def add() -> Any:
            pipe = client.pipeline(transaction=True)
            try:
                move("before WATCH")
                await of(pipe.watch(key))
                move("before GET")
                found = int(await of(pipe.get(key)))
                move("before EXEC")
                move("learned")
                if when == "learned":
                    await of(client.incr(key))  # by which the client learns of the move
                pipe.multi()
                pipe.set(key, found + 1)
                return await of(pipe.execute())
            finally:
                await of(pipe.reset())

        if when == "before WATCH":
            assert len(await add()) == 1
        else:
            with pytest.raises(redis.WatchError, match="Slot rebalancing"):
                await add()
        expected = 2 if when in ("before WATCH", "learned") else 1
        when = "done"
        assert await of(client.get(key)) == b"%d" % expected
        assert len(await add()) == 1
        assert migration.target.get(key) == b"%d" % (expected + 1)
