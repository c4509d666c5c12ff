"""Coalesced batches say the same as plain ones, but for GETs of keys of another type."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, strategies as st
from link_helpers import Face, command, count_of, mapped, opened

from shardkit import ShardFailure
from shardkit.errors import CommandRefused
from shardkit.local import LocalCluster, LocalServers
from shardkit.network.links.resp import (
    CHUNK_BYTES,
    UniformCommands,
    pack_all,
    pack_command,
    pack_joined,
    split,
)
from shardkit.operations.commands import Coalesced, Command, Replies, Transaction


async def send(face: Face, batch: list[Any]) -> Replies:
    return await face.carry(Coalesced(batch))


def some(count: int, dice: random.Random) -> list[Any]:
    """Commands, of which many neighbours can be joined."""
    batch: list[Any] = []
    while len(batch) < count:
        n = dice.randrange(40)
        kind = dice.choice(["get", "set", "hget", "hset", "other", "transaction"])
        for _ in range(dice.choice([1, 1, 2, 5, 30])):
            key = f"s{dice.randrange(40)}"
            made: dict[str, Any] = {
                "get": command("few", key, "GET"),
                "set": command("few", key, "SET", f"v{n}"),
                "hget": command("few", f"h{n % 3}", "HGET", f"f{n}"),
                "hset": command("few", f"h{n % 3}", "HSET", f"f{n}", n),
                "other": command("few", key, "STRLEN"),
                "transaction": Transaction(
                    "few", key, (command("few", key, "GET"), command("few", key, "EXISTS"))
                ),
            }
            batch.append(made[kind])
    return batch


async def test_random_batches_have_the_same_replies_as_one_by_one(face: Face) -> None:
    dice = random.Random(4)
    for count in (1, 2, 7, 300, 3000):
        batch = some(count, dice)
        empty = [command("few", request.key, "DEL") for request in batch]
        await face.send(*empty)
        expected = list(await face.send(*batch))
        await face.send(*empty)
        assert list(await send(face, batch)) == expected


async def test_what_follows_joined_deletions_has_its_own_replies(face: Face) -> None:
    keys = [f"k{n}" for n in range(60)]
    await send(face, [command("one", key, "SET", "v") for key in [*keys, "kept"]])
    batch = [command("one", key, "DEL") for key in keys]
    replies = await send(face, [*batch, command("one", "kept", "GET"), *batch])
    assert sum(replies[:60]) == 60
    assert replies[60] == b"v"
    assert replies[61:] == [0] * 60


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


async def test_a_command_without_its_key_is_refused_alone(face: Face) -> None:
    assert await face.send(command("one", "k", "SET", "v")) == [b"OK"]
    batch = [command("one", "k", "GET")] * 30
    batch[15:15] = [Command("one", "k", ("GET",)), Command("one", "k", ("GET",))]
    replies = await send(face, batch)
    assert [reply for reply in replies if not isinstance(reply, CommandRefused)] == [b"v"] * 30
    assert [isinstance(reply, CommandRefused) for reply in replies[14:18]] == [0, 1, 1, 0]


async def test_an_error_of_what_was_joined_stands_in_every_slot(face: Face) -> None:
    await face.send(command("one", "text", "SET", "x"))
    fields = [command("one", "text", "HGET", f"f{n}") for n in range(3)]
    found = await send(face, [*fields, command("one", "text", "GET")])
    assert found.failed
    assert all(isinstance(reply, CommandRefused) for reply in found[:3])
    assert [reply.command for reply in found[:3]] == ["HGET"] * 3
    assert found[3] == b"x"


async def test_large_values_are_cut_into_chunks(face: Face) -> None:
    value = b"v" * (CHUNK_BYTES // 3)
    keys = [f"k{n}" for n in range(20)]
    assert await send(face, [command("one", k, "SET", value) for k in keys]) == [b"OK"] * 20
    assert await send(face, [command("one", key, "GET") for key in keys]) == [value] * 20


async def test_on_a_cluster_keys_of_one_slot_are_joined(kind: str, cluster: LocalCluster) -> None:
    async with opened(kind, mapped(cluster.entry.fields, "slots")) as face:
        keys = [f"{{{n // 25}}}{n}" for n in range(100)]
        sets = [command("slots", key, "SET", key) for key in keys]
        assert await send(face, sets) == [b"OK"] * 100
        gets = [command("slots", key, "GET") for key in keys]
        assert await send(face, gets) == [key.encode() for key in keys]
        calls = sum(count_of(node, "mget") for node in cluster.nodes)
        assert 0 < calls <= 4


ARGUMENT = st.one_of(st.text(max_size=5), st.binary(max_size=5), st.integers(), st.floats())


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("GET"), ARGUMENT),
            st.tuples(st.just("HSET"), ARGUMENT, ARGUMENT, st.text("é\ud7ff", max_size=1100)),
            st.tuples(st.sampled_from(["SET", "DEL", "é"]), st.integers(), st.binary()),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_columns_pack_as_hiredis_does(commands: list[Any]) -> None:
    expected = b"".join(map(pack_command, commands))
    assert b"".join(chunk.data for chunk in pack_all(commands)) == expected
    first = [args for args in commands if args[0] == commands[0][0] and len(args[0]) > 1]
    uniform = UniformCommands.of(first) if first else None
    if uniform is not None:
        packed = b"".join(chunk.data for chunk in uniform.chunks())
        assert packed == b"".join(map(pack_command, first))


def test_what_is_sent_for_joined_commands_is_one_command() -> None:
    [chunk], runs = pack_joined([("GET", "a"), ("GET", "b")], in_slots=False)
    assert chunk.data == pack_command(("MGET", "a", "b"))
    assert (chunk.replies, runs) == (1, [(2, True)])
    [chunk], runs = pack_joined([("SET", "a", 1), ("SET", "b", 2)], in_slots=False)
    assert chunk.data == pack_command(("MSET", "a", 1, "b", 2))
    [chunk], runs = pack_joined([("HGET", "h", "x"), ("HGET", "h", "y")], in_slots=False)
    assert chunk.data == pack_command(("HMGET", "h", "x", "y"))
    [chunk], runs = pack_joined([("HGET", "h", "x"), ("HGET", "i", "y")], in_slots=False)
    assert (chunk.replies, runs) == (2, [(2, False)])
    [chunk], runs = pack_joined([("GET", 1), ("GET", 1.5), ("GET", "x")], in_slots=False)
    assert chunk.data == pack_command(("MGET", 1, 1.5, "x"))
    [chunk], runs = pack_joined([("HGET", 1, "x"), ("HGET", 1.0, "y")], in_slots=False)
    assert (chunk.replies, runs) == (2, [(2, False)])


LARGE = b"v" * (CHUNK_BYTES // 8)


@pytest.mark.parametrize(
    ("commands", "in_slots", "joined"),
    [
        ([("GET", "a")] * 20 + [("GET", "a", "x")] * 15, False, [(20, True), (15, False)]),
        ([("GET", 1.5)] * 20 + [("GET", "a", "b")], True, [(21, False)]),
        ([("HGET", 1.0, "f")] * 8 + [("HGET", 1, "f")] * 8, False, [(16, False)]),
        ([("SET", "{a}", LARGE)] * 20, True, [(7, True), (7, True), (6, True)]),
        ([("SET", "{a}", LARGE)] * 12 + [("SET", "{a}", 1)], True, [(13, False)]),
    ],
    ids=["nonsense", "no key", "another key", "large", "large and mixed"],
)
def test_only_what_can_be_one_command_is_joined_in_chunks(
    commands: list[Any], in_slots: bool, joined: list[tuple[int, bool]]
) -> None:
    chunks, runs = pack_joined(commands, in_slots)
    assert [tuple(run) for run in runs] == joined
    assert all(len(chunk.data) <= CHUNK_BYTES for chunk in chunks)
    expected = [1 if joins else size for size, joins in joined]
    assert sum(chunk.replies for chunk in chunks) == sum(expected)


def test_replies_are_split_again() -> None:
    error = ShardFailure("no", shard="c")
    runs = [
        (2, False),
        (3, True),
        (1, False),
        (2, True),
        (2, True),
    ]
    replies = [1, 2, [3, 4, 5], [6], b"OK", error]
    assert split(replies, runs) == [1, 2, 3, 4, 5, [6], b"OK", b"OK", error, error]
