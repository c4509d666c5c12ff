"""Batches by column say the same as lists of the commands that they stand for."""

from __future__ import annotations

from typing import Any

import hiredis
import pytest
from hypothesis import given, strategies as st
from link_helpers import Face, command, count_of, cut, mapped, opened
from redis.exceptions import ConnectionError, ExecAbortError, ResponseError  # noqa: A004 - redis-py's own

from shardkit import ShardMap
from shardkit.errors import InvalidArgumentError, InvalidKeyError
from shardkit.local import LocalCluster, LocalServers
from shardkit.network.connections.databases import ClientDatabase
from shardkit.network.connections.endpoints import Access, Endpoint
from shardkit.network.connections.framing import WRAPPED
from shardkit.network.connections.policy import NO_POLICY
from shardkit.network.connections.pool import Pool
from shardkit.network.links.dispatcher import Attempt, in_order
from shardkit.network.links.grouping import group_by_shard
from shardkit.network.links.resp import CHUNK_BYTES, Chunk, pack_command
from shardkit.network.links.server_request import ServerRequest
from shardkit.operations.commands import (
    Coalesced,
    Columns,
    Command,
    Home,
    Replies,
    Script,
    Shard,
    ShardOf,
    To,
    Transaction,
    coalesced,
    script_call,
)
from shardkit.operations.drivers import BlockingDriver
from shardkit.operations.operation import Operation

MAP = ShardMap.parse("components: {few: {shards: {count: 4, over: [{port: 1}]}}}")


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


def endpoint_of(shard: Shard) -> Endpoint:
    access = Access(None, Pool(), NO_POLICY, None, None)  # type: ignore[arg-type]
    return Endpoint(shard, "somewhere", access, ClientDatabase(shard.number or 0))


def packed(batch: Any, joins: bool = False) -> dict[Shard, tuple[list[int], bytes]]:
    """What is sent for each shard alone."""
    found = {}
    groups = group_by_shard(batch, range(len(batch)), MAP.components)
    for name, by_number in groups.by_shard.items():
        for number, positions in by_number.items():
            shard = Shard(name, number)
            request = ServerRequest.of_shard(
                endpoint_of(shard), positions, batch, rows=groups.rows, joins=joins
            )
            if groups.uniform is not None:
                request.uniform = in_order(request, groups.uniform)
            found[shard] = list(positions), b"".join(chunk.data for chunk in request.chunks())
    return found


KEY = st.one_of(st.text(st.characters(codec="utf-8"), max_size=5), st.binary(max_size=5))
VALUE = st.one_of(st.integers(), st.binary(max_size=5), st.floats(), st.text("é", max_size=3))


@given(
    st.one_of(
        st.lists(st.tuples(KEY, VALUE), max_size=40),
        st.lists(st.tuples(st.integers(), st.just(b"x")), max_size=40),
        st.lists(st.tuples(st.sampled_from(["{a}1", "{a}2", "{b}"]), st.integers()), max_size=40),
    )
)
def test_what_is_sent_is_what_a_list_would_send(pairs: list[tuple[Any, Any]]) -> None:
    batch = Columns("few", "SET", [key for key, _ in pairs], [value for _, value in pairs])
    found = packed(batch)
    assert found == packed(list(batch))
    for positions, data in found.values():
        assert data == b"".join(pack_command(batch[n].args) for n in positions)


@pytest.mark.parametrize("scripted", [0, 3000, None])
def test_a_list_with_a_script_is_not_packed_at_once(scripted: int | None) -> None:
    batch = [Command("few", f"k{n}", ("GET", f"k{n}")) for n in range(5000)]
    if scripted is not None:
        batch[scripted] = script_call("few", Script("x", "return 1"), [f"k{scripted}"])
    groups = group_by_shard(batch, range(5000), MAP.components)
    shard_of = MAP.components["few"].shard_of
    assert (groups.rows is None) == (scripted is not None)
    found = []
    for number, positions in groups.by_shard["few"].items():
        assert all(shard_of(batch[n].key) == Shard("few", number) for n in positions)
        found += positions
    assert sorted(found) == list(range(5000))


@pytest.mark.parametrize("to", [Home("few"), Home("one"), Shard("few", 2), ShardOf("few", 2, 4)])
async def test_they_may_be_for_any_target(face: Face, to: To) -> None:
    keys = [f"t{n}" for n in range(20)]
    assert await face.carry(Columns(to, "INCRBY", keys, range(20))) == list(range(20))
    assert await face.send(*[command(to, key, "GET") for key in keys]) == [
        b"%d" % n for n in range(20)
    ]


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


async def test_an_error_stands_in_its_slot(face: Face) -> None:
    keys = [f"k{n}" for n in range(20)]
    await face.send(command("few", "k7", "RPUSH", "x"))
    found = await face.carry(Columns("few", "GET", keys))
    assert found.failed
    assert [n for n, reply in enumerate(found) if reply is not None] == [7]
    assert "WRONGTYPE" in str(found[7])


async def test_a_lost_connection_repeats_reads(face: Face, servers: LocalServers) -> None:
    keys = [f"k{n}" for n in range(100)]
    reading = Columns("few", "GET", keys, idempotent=True, coalesced=True)
    await face.carry(reading)
    for server in servers.servers:
        cut(server)
    assert await face.carry(reading) == [None] * 100


def test_columns_are_joined_with_what_others_send_at_the_same_time() -> None:
    batches: list[Any] = []

    class Link:
        def send(self, batch: Any) -> Replies:
            batches.append(batch)
            return Replies([None] * len(batch))

    def steps(batch: Any) -> Operation[int]:
        return len((yield batch))

    by_column = Columns("few", "GET", ["a", "b"], coalesced=True)
    driver = BlockingDriver(Link())  # type: ignore[arg-type]
    assert driver.together(steps(by_column), steps(by_column)) == [2, 2]
    assert driver.together(steps(by_column), steps([by_column[0]])) == [2, 1]
    assert driver.together(*[steps(Coalesced([by_column[0]])) for _ in range(2)]) == [1, 1]
    sent = [(Coalesced, 4), (list, 3), (Coalesced, 2)]
    assert [(type(batch), len(batch)) for batch in batches] == sent


async def test_on_a_cluster_they_go_to_their_nodes(kind: str, cluster: LocalCluster) -> None:
    async with opened(kind, mapped(cluster.entry.fields, "slots")) as face:
        keys = [f"k{n}" for n in range(300)]
        assert await face.carry(Columns("slots", "SET", keys, keys)) == [b"OK"] * 300
        found = await face.carry(Columns("slots", "GET", keys, coalesced=True))
        assert found == [key.encode() for key in keys]
        assert all(count_of(node, "get") for node in cluster.nodes[:3])


def of_several(batch: Any) -> Attempt:
    """Return the attempt to send a batch to one server, whose databases are the shards."""
    groups = group_by_shard(batch, range(len(batch)), MAP.components)
    positions: list[int] = []
    starts, endpoints = [0], []
    for number, own in groups.by_shard["few"].items():
        positions += own
        starts.append(len(positions))
        endpoints.append(endpoint_of(Shard("few", number)))
    joins = coalesced(batch)
    request = ServerRequest(endpoints, positions, starts, batch, rows=groups.rows, joins=joins)
    if groups.uniform is not None:
        request.uniform = in_order(request, groups.uniform)
    return Attempt(request)


def answers(chunks: list[Chunk]) -> list[Any]:
    """Return the replies of a server that answers each GET with its key, and the database."""
    reader = hiredis.Reader()
    replies: list[Any] = []
    queued: list[Any] | None = None
    database = b""
    for chunk in chunks:
        before = len(replies)
        reader.feed(chunk.data)
        while (args := reader.gets()) is not False:
            name, *rest = args
            reply: Any = b"OK"
            if name == b"MULTI":
                queued = []
                replies.append(reply)
                continue
            if name == b"EXEC":
                reply, queued = queued, None
            elif name == b"SELECT":
                [database] = rest
            elif name == b"MGET":
                reply = [(database, key) for key in rest]
            elif name not in (b"MSET", b"SET"):
                reply = (database, rest[0])
            if queued is not None:
                queued.append(reply)
                reply = b"QUEUED"
            replies.append(reply)
        assert len(replies) - before == chunk.replies
    return replies


LARGE = b"x" * 200_000
LISTS: list[list[Command | Transaction]] = [
    [Command("few", f"k{n}", ("GET", f"k{n}")) for n in range(100)],
    [Command("few", f"k{n}", ("GET", f"k{n}") if n % 3 else ("TTL", f"k{n}")) for n in range(100)],
    [script_call("few", Script("x", "return 1"), [f"k{n}"]) for n in range(50)],
]


@pytest.mark.parametrize(
    "batch",
    [
        *(
            Columns("few", "GET", [f"k{n}" for n in range(count)], coalesced=joined)
            for count in (5, 60, 5000, 20_000)
            for joined in (False, True)
        ),
        *(
            Columns("few", "SET", [f"k{n}" for n in range(9)], [LARGE] * 9, coalesced=joined)
            for joined in (False, True)
        ),
        *LISTS,
        *(Coalesced(each) for each in LISTS),
    ],
    ids=lambda batch: f"{type(batch).__name__}-{batch[0].name}-{len(batch)}",
)
def test_each_database_is_sent_its_own(batch: Any) -> None:
    attempt = of_several(batch)
    request = attempt.server_request
    chunks = request.chunks()
    if not chunks:  # too large for transactions: each database's are sent alone
        assert batch[0].name == "SET"
        assert all(part.confirms for part in attempt.by_shard())
        return
    replies = answers(chunks)
    shard_of = MAP.components["few"].shard_of

    def expected(n: int) -> Any:
        name, first, *rest = batch[n].args
        number = str(shard_of(batch[n].key).number).encode()
        key = str(rest[0] if name == "EVALSHA" else first).encode()
        return b"OK" if name == "SET" else (number, key)

    def found(values: Any) -> list[Any]:
        if isinstance(batch[0], Command) and batch[0].script:  # the text in place of the key
            return [(value[0], None) for value in values]
        return list(values)

    wanted = [expected(n) for n in request.positions]
    assert found(request.values(replies)) == found(wanted)
    assert all(len(chunk.data) < CHUNK_BYTES + 10_000 or len(batch) < 10 for chunk in chunks)
    # A part of the replies is those of the first shards.
    attempt.replies, attempt.error = replies[: request.ends[1]], ConnectionError("lost")
    first, second, third, *_ = attempt.by_shard()
    assert (first.error, second.error, third.error) == (None, None, attempt.error)
    ends = request.starts
    assert found(first.server_request.values(first.replies)) == found(wanted[: ends[1]])
    assert found(second.server_request.values(second.replies)) == found(wanted[ends[1] : ends[2]])
    # One SELECT is refused.
    end, wrapped = request.ends[0], request.forms[0] == WRAPPED
    refused = [b"OK", ResponseError("no"), *replies[2 : end - 1], ExecAbortError("EXECABORT")]
    own = refused if wrapped else [ResponseError("no"), *replies[1:end]]
    attempt.replies, attempt.refused, attempt.error = [*own, *replies[end:]], True, None
    first, second, *_ = attempt.by_shard()
    assert (first.confirms, second.confirms) == (True, False)
    assert found(second.server_request.values(second.replies)) == found(wanted[ends[1] : ends[2]])
    # And one database is closed.
    left = of_several(batch)
    closed, *opened = left.server_request.databases
    usable, fenced = left.apart(set(opened))
    assert fenced.server_request.databases == [closed]
    again = usable.server_request
    assert found(again.values(answers(again.chunks()))) == found(wanted[ends[1] :])
