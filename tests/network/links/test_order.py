"""What a server refuses is sent again in the order of the calls, or not at all."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import Any

import pytest
from link_helpers import command, opened
from scripted_server import Answer, ScriptedServer, bulk, scripted
from test_gate import map_of

from shardkit import ShardFailure, ShardMap
from shardkit.local import LocalServer
from shardkit.operations.commands import Command
from shardkit.routing.placement import slot_of

REFUSALS = [
    "-READONLY You can't write against a read only replica.",
    "-LOADING Redis is loading the dataset in memory",
]
MOVING = ["-TRYAGAIN Multiple keys request", "-MOVED {slot} {node}", "-ASK {slot} {node}"]
MOVING += ["-CLUSTERDOWN The cluster is down"]


class Refusing:
    """A server of lists that refuses commands at random; alone, it is also a whole cluster."""

    def __init__(self, seed: int, *, cluster: bool) -> None:
        self.dice = random.Random(seed)
        self.lists: defaultdict[bytes, list[bytes]] = defaultdict(list)
        self.refusals = REFUSALS + MOVING if cluster else REFUSALS
        self.left = 0  # refusals in a row
        self.server: ScriptedServer

    def answers(self) -> dict[str, Answer]:
        return {
            "RPUSH": lambda args: self.refused(args[1]) or self.push(args[1:2], args[2]),
            "LLEN": lambda args: self.refused(args[1]) or b":%d\r\n" % len(self.lists[args[1]]),
            "MSET": lambda args: self.refused(args[1]) or self.push(args[1::2], args[2]),
            "CLUSTER": lambda args: self.slots(),
            "COMMAND": b"*0\r\n",
        }

    def refused(self, key: bytes) -> bytes | None:
        if self.left == 0:
            if self.dice.random() < 0.8:
                return None
            self.left = self.dice.choice((1, 1, 2, 5))
        self.left -= 1
        node = f"127.0.0.1:{self.server.port}"
        text = self.dice.choice(self.refusals).format(slot=slot_of(key), node=node)
        return f"{text}\r\n".encode()

    def push(self, keys: list[bytes], value: bytes) -> bytes:
        for key in keys:
            self.lists[key].append(value)
        return b":%d\r\n" % len(self.lists[keys[0]])

    def slots(self) -> bytes:
        node = b"*3\r\n" + bulk(b"127.0.0.1") + b":%d\r\n" % self.server.port + bulk(b"0" * 40)
        return b"*1\r\n*3\r\n:0\r\n:16383\r\n" + node


@pytest.mark.long(12)
@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("cluster", [False, True], ids=["a server", "a cluster"])
async def test_refused_requests_never_overtake_others(kind: str, cluster: bool, seed: int) -> None:
    state = Refusing(seed, cluster=cluster)
    dice = random.Random(seed)
    with scripted(**state.answers()) as server:
        state.server = server
        entry = {"host": "127.0.0.1", "port": server.port, "cluster": cluster}
        shards = ShardMap.parse(f"components: {{c: {{entry: {entry}}}}}")
        async with opened(kind, shards) as face:
            for _ in range(4):
                state.lists.clear()
                batch: list[Any] = []
                for n in range(dice.choice((2, 4, 12, 40))):
                    key = dice.choice(("{t}a", "{t}b", "u"))
                    kinds = [
                        command("c", key, "RPUSH", n),
                        command("c", key, "LLEN"),
                        Command("c", "{t}a", ("MSET", "{t}a", n, "{t}b", n)),
                    ]
                    batch.append(dice.choices(kinds, (3, 2, 1))[0])
                replies = await face.carry(batch)
                check(batch, replies, state)


async def test_small_calls_do_not_overtake_one_that_needs_a_confirmed_select(
    own_server: LocalServer,
) -> None:
    async with opened("awaiting", map_of(own_server)) as face:
        router = face.kit.key_sharded("t")
        first = {router.shard_of(key): key for key in map(str, range(1000))}
        key, other, long = first[0], first[1], [str(n) for n in range(1001)]
        for _ in range(2):
            await router[other].set(other, 1)  # another database is selected
            large = router.pipeline()
            for n in long:
                large.rpush(key, n)
            await asyncio.gather(large.execute(), router[key].rpush(key, "last"))
            found = await router[key].lrange(key, 0, -1)
            assert found == [each.encode() for each in [*long, "last"]]
            await router[key].delete(key)


def check(batch: list[Any], replies: list[Any], state: Refusing) -> None:
    expected: defaultdict[bytes, list[bytes]] = defaultdict(list)
    for request, reply in zip(batch, replies, strict=True):
        if isinstance(reply, ShardFailure):
            assert not reply.maybe_executed
            continue
        name, key, *more = request.args
        if name != "LLEN":
            for each in [key, *more[1::2]]:
                expected[each.encode()].append(str(more[0]).encode())
        assert reply == len(expected[key.encode()])
    assert state.lists == {key: values for key, values in expected.items() if values} | {
        key: [] for key in state.lists if not expected[key]
    }
