"""Batches over many shards: order and size; refused, joined and coalesced commands."""

from __future__ import annotations

import random
from collections import defaultdict
from functools import partial
from typing import Any

import pytest
from link_helpers import Face, command, count_of, opened, script_call
from redis.crc import key_slot
from scripted_server import Answer, ScriptedServer, bulk, scripted

from shardkit import CommandRefused, ShardFailure, ShardMap
from shardkit.errors import (
    InvalidArgumentError,
    InvalidKeyError,
    MissingEntryError,
)
from shardkit.local import LocalServers
from shardkit.operations import (
    Command,
    CommandList,
    Replies,
    Script,
    Shard,
    Transaction,
)


@pytest.mark.parametrize("bad", [None, True, object(), [1], {"a": 1}, "\ud800"])
async def test_what_cannot_be_sent_is_named_and_nothing_is_sent(face: Face, bad: Any) -> None:
    good = command("many", "k1", "SET", 1)
    for batch in ([command("many", "k2", "SET", bad)], [good, command("many", "k2", "SET", bad)]):
        with pytest.raises(InvalidArgumentError, match=type(bad).__name__):
            await face.send(*batch)
    assert await face.send(command("many", "k1", "GET")) == [None]


@pytest.mark.parametrize("bad", ["\ud800", 10**5_000], ids=["surrogate", "too many digits"])
async def test_an_invalid_argument_refuses_the_whole_batch(face: Face, bad: Any) -> None:
    other = bad if isinstance(bad, int) else "v"
    batch = [command("one", f"k{n}", "SET", value) for n, value in enumerate([other] * 9 + [bad])]
    with pytest.raises(InvalidArgumentError, match="cannot be sent"):
        await face.send(*batch)
    assert await face.send(command("one", "k1", "GET")) == [None]


async def test_a_bad_key_or_shard_is_an_error_and_nothing_is_sent(face: Face) -> None:
    good = command("few", "k", "SET", 1)
    with pytest.raises(InvalidKeyError, match="5 is a float; give a str, bytes or an int"):
        await face.send(good, Command("few", 1.5, ("GET", "x")))  # type: ignore[arg-type]
    with pytest.raises(MissingEntryError, match="config:redis:few:9"):
        await face.send(good, command(Shard("few", 9), "x", "GET"))
    with pytest.raises(MissingEntryError, match="nowhere"):
        await face.send(good, command("nowhere", "x", "GET"))
    assert await face.send(command("few", "k", "GET")) == [None]


async def test_many_large_replies_and_requests_do_not_get_in_each_others_way(face: Face) -> None:
    megabyte = b"x" * (1 << 20)
    batch = []
    for n in range(48):  # requests and replies are both more than any socket buffers
        batch += [command("few", f"k{n % 4}", "SET", megabyte), command("few", f"k{n % 4}", "GET")]
    replies = await face.send(*batch)
    assert replies[::2] == [b"OK"] * 48
    assert all(reply == megabyte for reply in replies[1::2])
    await face.send(*[command("few", f"k{n}", "UNLINK") for n in range(4)])


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
        text = self.dice.choice(self.refusals).format(slot=key_slot(key), node=node)
        return f"{text}\r\n".encode()

    def push(self, keys: list[bytes], value: bytes) -> bytes:
        for key in keys:
            self.lists[key].append(value)
        return b":%d\r\n" % len(self.lists[keys[0]])

    def slots(self) -> bytes:
        node = b"*3\r\n" + bulk(b"127.0.0.1") + b":%d\r\n" % self.server.port + bulk(b"0" * 40)
        return b"*1\r\n*3\r\n:0\r\n:16383\r\n" + node


@pytest.mark.long(6)
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


async def send(face: Face, batch: list[Any]) -> Replies:
    return await face.carry(CommandList(batch, coalesced=True))


TWICE = Script("twice", "redis.call('INCR', KEYS[1]); return {redis.call('INCR', KEYS[1]), ARGV}")


def some(count: int, dice: random.Random) -> list[Any]:
    """Requests, of which many neighbours can be joined."""
    batch: list[Any] = []
    while len(batch) < count:
        n = dice.randrange(40)
        for _ in range(dice.choice([1, 1, 2, 5, 30])):
            key, counter = f"s{dice.randrange(40)}", f"n{dice.randrange(9)}"
            made = [
                command("few", key, "GET"),
                command("few", key, "SET", f"v{n}" * dice.choice([1, 1, 2000])),
                command("few", f"h{n % 3}", "HGET", f"f{n}"),
                command("few", f"h{n % 3}", "HSET", f"f{n}", n),
                command("few", key, "STRLEN"),
                command("few", counter, "INCRBY", n),
                script_call("few", TWICE, [counter], ["a"]),
                Transaction("few", key, (command("few", key, "GET"),) * (n % 3)),
            ]
            batch.append(made[n % len(made)])
    return batch


@pytest.mark.parametrize("chunk", [1, 2, 7, 1000])
async def test_random_batches_have_the_same_replies_as_one_by_one(
    face: Face, lower: Any, chunk: int
) -> None:
    lower(chunk_requests=chunk, replies_due=2 * chunk)
    dice = random.Random(chunk)
    for count in (1, 2, 7, 40, 300, 3 * chunk):
        batch = some(count, dice)
        empty = [command("few", f"{kind}{n}", "DEL") for kind in "shn" for n in range(40)]
        await face.send(*empty)
        expected = [(await face.send(request))[0] for request in batch]
        for way in (face.carry, partial(send, face)):
            await face.send(*empty)
            assert list(await way(batch)) == expected


@pytest.mark.parametrize("count", [1, 2, 3, 9, 5000])
async def test_bulk_takes_few_commands(face: Face, servers: LocalServers, count: int) -> None:
    keys = [f"k{n}" for n in range(count)]
    before = [count_of(server, "get") for server in servers.servers]
    assert await send(face, [command("one", k, "SET", f"v{k}") for k in keys]) == [b"OK"] * count
    found = await send(face, [command("one", key, "GET") for key in keys])
    assert found == [b"v%b" % key.encode() for key in keys]
    assert found.failed is False
    await face.send(command("one", "h", "HSET", *[x for k in keys for x in (k, f"h{k}")]))
    found = await send(face, [command("one", "h", "HGET", key) for key in keys])
    assert found == [b"h%b" % key.encode() for key in keys]
    after = [count_of(server, "get") for server in servers.servers]
    assert sum(after) - sum(before) == (1 if count == 1 else 0)


async def test_a_get_of_another_type_is_none_where_it_was_joined(face: Face) -> None:
    await face.send(command("one", "list", "RPUSH", "x"), command("one", "text", "SET", "x"))
    gets = [command("one", "list", "GET"), command("one", "text", "GET")]
    plain = await face.send(*gets)
    assert isinstance(plain[0], CommandRefused)
    assert "WRONGTYPE" in str(plain[0])
    assert await send(face, gets) == [None, b"x"]
