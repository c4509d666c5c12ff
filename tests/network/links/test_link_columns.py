"""Batches by column say the same as lists of the commands that they stand for."""

from __future__ import annotations

from typing import Any

import pytest
from link_helpers import (
    Face,
    command,
    count_of,
    in_threads,
)

from shardkit import ShardKit
from shardkit.errors import InvalidArgumentError, InvalidKeyError
from shardkit.local import LocalServers
from shardkit.operations import (
    Columns,
    Command,
    CommandList,
    Operation,
    Transaction,
)


@pytest.mark.parametrize("coalesced", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 9, 5000])
@pytest.mark.parametrize("component", ["one", "few", "many"])
async def test_replies_are_right(face: Face, component: str, count: int, coalesced: bool) -> None:
    keys = [f"k{n}" for n in range(count)]
    values = [b"v%d" % n for n in range(count)]
    written = Columns(component, "SET", keys, values, idempotent=True, coalesced=coalesced)
    assert await face.carry(written) == [b"OK"] * count
    found = await face.carry(Columns(component, "GET", keys, coalesced=coalesced))
    assert found == values
    assert found == await face.send(*[command(component, key, "GET") for key in keys])
    assert not found.failed


def test_columns_are_a_sequence_of_commands() -> None:
    batch = Columns("few", "SET", ["a", "b", "c"], [1, 2, 3], idempotent=True)
    made = [Command("few", k, ("SET", k, n), None, True) for k, n in (("a", 1), ("b", 2), ("c", 3))]
    assert list(batch) == made == [batch[n] for n in range(3)]
    assert batch[1:] == made[1:]
    assert batch[-1] == made[-1]
    assert len(batch) == 3
    assert repr(batch) == "Columns('few', 3 commands)"
    each = Columns.each("few", "EXPIRE", ["a", "b"], 60)
    assert list(each) == [Command("few", k, ("EXPIRE", k, 60)) for k in "ab"]


def test_columns_of_different_lengths_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"SET: 2 keys, and \[1\] arguments"):
        Columns("few", "SET", ["a", "b"], [1])


async def test_what_cannot_be_sent_is_said_and_nothing_is_sent(face: Face) -> None:
    keys: list[Any] = [f"k{n}" for n in range(30)]
    values: list[Any] = [1] * 29 + [None]
    with pytest.raises(InvalidArgumentError, match=r"SET.*None is a NoneType"):
        await face.carry(Columns("few", "SET", keys, values))
    for wrong in (None, 1.0, True, "\ud800"):
        with pytest.raises(
            (InvalidKeyError, InvalidArgumentError),
            match=r"give a str, bytes or an int|cannot be encoded as UTF-8",
        ):
            await face.carry(Columns("few", "SET", [*range(29), wrong], [1] * 30))
    assert await face.carry(Columns("few", "EXISTS", keys)) == [0] * 30


async def test_columns_are_joined_with_what_others_send_at_the_same_time(
    face: Face, servers: LocalServers
) -> None:
    def steps(batch: Any) -> Operation[Any]:
        return (yield batch)

    await face.send(command("one", "a", "SET", 1), command("one", "b", "SET", 2))
    by_column = Columns("one", "GET", ["a", "b"], coalesced=True)
    single = CommandList([by_column[0]], coalesced=True)
    before = count_of(servers.server_of("one"), "mget")
    for others, found in (
        ([by_column, by_column], [[b"1", b"2"]] * 2),
        ([by_column, [by_column[0]]], [[b"1", b"2"], [b"1"]]),
        ([single, single], [[b"1"]] * 2),
    ):
        assert await face.together(map(steps, others)) == found
    assert count_of(servers.server_of("one"), "mget") == before + 2  # not if one is no column


def ask(kit: ShardKit, *args: Any, to: str = "one") -> Any:
    [reply] = kit.driver.link.send([Command(to, args[1] if len(args) > 1 else "k", args)])
    return reply


def test_ended_threads_leave_their_connection(kit: ShardKit, servers: LocalServers) -> None:
    ids = {in_threads(1, lambda _: ask(kit, "CLIENT", "ID"))[0] for _ in range(5)}
    assert len(ids) == 1
    assert ask(kit, "CLIENT", "ID") in ids


async def test_large_joined_batches_keep_what_stands_between_their_runs(face: Face) -> None:
    count = 2_400  # the last slice has hundreds of GETs, and two commands behind them
    batch: list[Any] = [command("one", "n", "INCR"), command("one", "before", "SET", "b")]
    batch += [command("one", f"k{n}", "SET", n) for n in range(count)]
    batch += [Transaction("one", "t", (command("one", "t", "INCR"), command("one", "t", "GET")))]
    batch += [command("one", f"k{n}", "GET") for n in range(count)]
    batch += [command("one", "n", "INCR"), command("one", "before", "GET")]
    replies = await face.carry(CommandList(batch, coalesced=True))
    assert replies[: count + 2] == [1] + [b"OK"] * (count + 1)
    assert replies[count + 2] == [1, b"1"]
    assert replies[count + 3 : -2] == [str(n).encode() for n in range(count)]
    assert replies[-2:] == [2, b"b"]
