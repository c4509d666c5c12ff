"""Batches by column say the same as lists of the commands that they stand for."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import hiredis
import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st
from link_helpers import (
    Face,
    command,
    count_of,
    cut,
    exit_code,
    forked,
    in_threads,
    mapped,
    opened,
    script_call,
)
from redis.exceptions import ConnectionError, ExecAbortError, ResponseError  # noqa: A004 - redis-py's own
from scripted_server import bulk, scripted

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.cli.app import app
from shardkit.errors import InvalidArgumentError, InvalidKeyError
from shardkit.local import LocalCluster, LocalServer, LocalServers
from shardkit.network.connections.databases import ClientDatabase
from shardkit.network.connections.endpoints import Access, Endpoint
from shardkit.network.connections.framing import WRAPPED
from shardkit.network.connections.policy import NO_POLICY
from shardkit.network.connections.pool import Pool
from shardkit.network.links import multiplexer, resp
from shardkit.network.links.dispatcher import in_order
from shardkit.network.links.grouping import group_by_shard
from shardkit.network.links.resp import CHUNK_BYTES, Chunk, pack_command
from shardkit.network.links.server_request import Attempt
from shardkit.operations import (
    Columns,
    Command,
    CommandList,
    Operation,
    Replies,
    Script,
    Shard,
    ShardOf,
    Transaction,
)
from shardkit.operations.commands import Home, To, coalesced
from shardkit.operations.drivers import BlockingDriver

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
            request = Attempt.of_shard(
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
    assert driver.together(
        *[steps(CommandList([by_column[0]], coalesced=True)) for _ in range(2)]
    ) == [1, 1]
    sent = [(CommandList, 4), (list, 3), (CommandList, 2)]
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
    request = Attempt(endpoints, positions, starts, batch, rows=groups.rows, joins=joins)
    if groups.uniform is not None:
        request.uniform = in_order(request, groups.uniform)
    return request


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
        *(CommandList(each, coalesced=True) for each in LISTS),
    ],
    ids=lambda batch: f"{type(batch).__name__}-{batch[0].name}-{len(batch)}",
)
def test_each_database_is_sent_its_own(batch: Any) -> None:
    attempt = of_several(batch)
    request = attempt
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
    assert found(first.values(first.replies)) == found(wanted[: ends[1]])
    assert found(second.values(second.replies)) == found(wanted[ends[1] : ends[2]])
    # One SELECT is refused.
    end, wrapped = request.ends[0], request.forms[0] == WRAPPED
    refused = [b"OK", ResponseError("no"), *replies[2 : end - 1], ExecAbortError("EXECABORT")]
    own = refused if wrapped else [ResponseError("no"), *replies[1:end]]
    attempt.replies, attempt.refused, attempt.error = [*own, *replies[end:]], True, None
    first, second, *_ = attempt.by_shard()
    assert (first.confirms, second.confirms) == (True, False)
    assert found(second.values(second.replies)) == found(wanted[ends[1] : ends[2]])
    # And one database is closed.
    left = of_several(batch)
    closed, *opened = left.databases
    usable, fenced = left.apart(set(opened))
    assert fenced.databases == [closed]
    again = usable
    assert found(again.values(answers(again.chunks()))) == found(wanted[ends[1] :])


BUMP = Script("bump", "return redis.call('INCRBY', KEYS[1], ARGV[1])")
TWICE = Script("twice", "redis.call('INCR', KEYS[1]); return {redis.call('INCR', KEYS[1]), ARGV}")


class Model:
    """Counters, and what commands on them answer."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.counts: dict[str, int] = defaultdict(int)

    def request(self) -> tuple[Command | Transaction, Any]:
        key = f"k{self.dice.randrange(30)}"
        if self.dice.random() < 0.15:
            parts = [self.command(key) for _ in range(self.dice.randrange(5))]
            return Transaction("many", key, tuple(c for c, _ in parts)), [a for _, a in parts]
        return self.command(key)

    def command(self, key: str) -> tuple[Command, Any]:
        kind = self.dice.randrange(5)
        if kind == 0:
            count = self.counts.get(key)
            return command("many", key, "GET"), None if count is None else str(count).encode()
        if kind == 1:
            text = "v" * self.dice.choice([1, 100, 5_000])
            return Command("many", key, ("ECHO", text)), text.encode()
        if kind == 2:
            self.counts[key] += 2
            return script_call("many", TWICE, [key], ["a"]), [self.counts[key], [b"a"]]
        amount = self.dice.randrange(1, 10)
        self.counts[key] += amount
        if kind == 3:
            return script_call("many", BUMP, [key], [amount]), self.counts[key]
        return command("many", key, "INCRBY", amount), self.counts[key]


@pytest.mark.parametrize("chunk", [1, 2, 7, 1000])
async def test_batches_are_right(face: Face, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(resp, "CHUNK_REQUESTS", chunk)
    monkeypatch.setattr(multiplexer, "MAX_REPLIES", 2 * chunk)
    model = Model(random.Random(chunk))
    for _ in range(25):
        wanted = [model.request() for _ in range(model.dice.choice([1, 2, 10, 150]))]
        replies = await face.send(*[request for request, _ in wanted])
        assert replies == [answer for _, answer in wanted]


def ask(kit: ShardKit, *args: Any, to: str = "one") -> Any:
    [reply] = kit.driver.link.send([Command(to, args[1] if len(args) > 1 else "k", args)])
    return reply


def limited(servers: LocalServers, **fields: Any) -> ShardMap:
    return mapped({"port": servers.server_of("one").port, **fields}, "one")


def test_single_commands_of_a_thread_go_over_one_connection(kit: ShardKit) -> None:
    assert len({ask(kit, "CLIENT", "ID") for _ in range(20)}) == 1


def test_ended_threads_leave_their_connection(kit: ShardKit, servers: LocalServers) -> None:
    ids = {in_threads(1, lambda _: ask(kit, "CLIENT", "ID"))[0] for _ in range(5)}
    assert len(ids) == 1
    assert ask(kit, "CLIENT", "ID") in ids


def test_threads_share_what_a_limit_leaves_them(servers: LocalServers) -> None:
    with shardkit.connect(limited(servers, max_connections=1)) as kit:
        assert ask(kit, "SET", "k", "v") == b"OK"
        assert [in_threads(1, lambda _: ask(kit, "GET", "k")) for _ in range(3)] == [[b"v"]] * 3
        assert kit.client("one").get("k") == b"v"  # the same connection, lent to redis-py


def test_a_child_makes_a_connection_of_its_own(kit: ShardKit) -> None:
    client = kit.client("one")
    number = ask(kit, "CLIENT", "ID")

    def use() -> None:
        assert number not in (ask(kit, "CLIENT", "ID"), client.client_id())  # the parent's client

    assert exit_code(forked(use)) == 0
    assert ask(kit, "CLIENT", "ID") == number


@pytest.mark.parametrize("fields", [{"health_check_interval": 1}, {"protocol": 3}])
def test_entries_that_want_more_get_it(servers: LocalServers, fields: dict[str, Any]) -> None:
    with shardkit.connect(limited(servers, **fields)) as kit:
        assert ask(kit, "SET", "k", "v") == b"OK"
        assert ask(kit, "GET", "k") == b"v"
        refused = ask(kit, "INCR", "k")
        assert isinstance(refused, shardkit.CommandRefused)


async def test_commands_of_two_words_go_to_their_keys_shard(face: Face) -> None:
    router = face.kit.key_sharded("many")
    pipe = router.pipeline()
    keys = [f"k{n}" for n in range(20)]
    for key in keys:
        pipe.set(key, 1)
        pipe.object("ENCODING", key)
        pipe.memory_usage(key)
        pipe.xgroup_create(f"s{key}", "group", mkstream=True)
        pipe.xinfo_groups(f"s{key}")
    replies = await face.value(pipe.execute())
    for n in range(len(keys)):
        ok, encoding, size, created, groups = replies[5 * n : 5 * n + 5]
        assert (ok, encoding, created) == (True, b"int", True)
        assert size > 0
        assert len(groups) == 1


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


async def test_everything_works_over_a_unix_socket(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with LocalServer(config={"unixsocket": str(path), "unixsocketperm": "700"}):
        for fields in ({"unix_socket_path": str(path)}, {"url": f"unix://{path}?db=1"}):
            async with opened(kind, mapped(fields, "one")) as face:
                assert await face.send(command("one", "k", "INCR")) == [1]
                batch = [command("one", f"k{n}", "SET", b"v" * 300) for n in range(3_000)]
                assert await face.send(*batch) == [b"OK"] * 3_000
                gets = [command("one", f"k{n}", "GET") for n in range(3_000)]
                assert await face.send(*gets) == [b"v" * 300] * 3_000
                assert await face.client_call("one", "get", "k1") == b"v" * 300
                assert await face.client_call("one", "blpop", "queue", timeout=0.1) is None


REPLIES = [b"$-1\r\n", b":7\r\n", bulk(b"x\xffy"), b"*2\r\n*1\r\n:1\r\n$-1\r\n", b"*1\r\n:1\r\n"]
INFO = bulk(b"redis_version:7.2.4\r\nused_memory:1\r\nconnected_clients:1\r\n")


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("config show", ["MGET", "SCAN"]),
        ("status", ["ZRANGE", "GET", "SCAN"]),
        ("check", ["EXISTS", "ZRANGE", "GET", "SCAN"]),
        ("locate c k --in s --total 9", ["HGETALL"]),
    ],
)
def test_garbage_is_one_error_of_a_command(tmp_path: Path, command: str, names: list[str]) -> None:
    said = ""
    for reply in REPLIES:
        for name in names:
            with scripted(INFO=INFO, **{name: reply}) as server:
                where = tmp_path / "map.yaml"
                here = f"{{port: {server.port}, socket_timeout: 2}}"
                where.write_text(
                    f"{{config_server: {here}, components: {{c: {{shards: [{here}]}}}}}}"
                )
                url = f"redis://127.0.0.1:{server.port}"
                for place in (str(where), url):
                    said += CliRunner().invoke(app, [*command.split(), "-c", place]).output
    assert "should not happen" not in said
    assert "cannot be used" in said or "expected" in said
