"""Shards that fail: what stands in whose slot, what is sent again, and how long it takes."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import pytest_asyncio
from arranged import map_of
from faces import PATIENCE, own_client
from faulty_proxy import faulty
from link_helpers import FACES, Face, command, count_of, mapped, opened, resolving
from redis.exceptions import ConnectionError, RedisError, TimeoutError  # noqa: A004
from scripted_server import scripted

import shardkit
from shardkit import CommandRefused, ShardErrors, ShardUnavailable
from shardkit.errors import CommandsRefused
from shardkit.local import LocalServer, LocalServers
from shardkit.operations import Command, Operation, Shard, Structure, operation

# Shard n of `data` is on server n.
TIMEOUTS = f"{{socket_timeout: {0.4 * PATIENCE}, socket_connect_timeout: {0.4 * PATIENCE}}}"
MAP = (
    f"defaults: {TIMEOUTS}"
    """
components:
  data: {shards: [{port: 7001}, {port: 7002}, {port: 7003}, {port: 7004}]}
  one: {entry: {port: 7001}}
  patient: {entry: {port: 7001, socket_timeout: 20}}
  mixed: {shards: [{port: 7001}, {port: 7002, socket_timeout: 20}]}
  wide: {shards: {count: 24, over: [{port: 7001}, {port: 7002}, {port: 7003}, {port: 7004}]}}
"""
)


@pytest.fixture
def own(own_servers: LocalServers) -> Iterator[list[LocalServer]]:
    """Four servers, empty and running; they may be killed and paused."""
    for server in own_servers.servers:
        if not server.running:
            server.restart()
        with server.client() as client:
            client.flushall()
            client.config_resetstat()
    yield own_servers.servers
    for server in own_servers.servers:
        if server.running:
            server.resume()


@pytest_asyncio.fixture(params=FACES)
async def mine(
    request: pytest.FixtureRequest, own_servers: LocalServers, own: list[LocalServer]
) -> AsyncIterator[Face]:
    async with opened(request.param, own_servers.shard_map) as found:
        await found.send(*to_all("PING"))  # connected before anything happens
        yield found


def to_all(name: str, *args: Any, shards: int = 4, **options: Any) -> list[Command]:
    """One command for each shard."""
    sent = (name,) if name == "PING" else (name, "k", *args)
    return [Command(Shard("data", n), "k", sent, **options) for n in range(shards)]


async def test_siblings_of_a_dead_shard_answer(mine: Face, own: list[LocalServer]) -> None:
    own[2].kill()
    for _ in range(2):  # lost while connected, refused after that
        replies = await mine.send(*to_all("INCR"))
        assert replies.failed
        failure: Any = replies[2]
        assert isinstance(failure, ShardUnavailable)
        assert (failure.shard, failure.command) == ("data:2", "INCR")
        assert own[2].address in failure.message
        assert isinstance(failure.error, RedisError | OSError)
        assert failure.__cause__ is failure.error
    assert [await mine.send(c) for c in to_all("GET")[:2]] == [[b"2"], [b"2"]]
    assert "cannot be reached" in str(replies[2])
    assert "shardkit status" in replies[2].remedy
    own[2].restart()
    assert await mine.send(*to_all("INCR")) == [3, 3, 1, 3]


async def test_a_cut_connection_fails_only_its_requests(mine: Face, own: list[LocalServer]) -> None:
    """CLIENT KILL of itself is answered by a closed connection: what follows is lost."""
    cut = Command(Shard("data", 0), "k", ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no"))
    replies = await mine.send(command(Shard("data", 0), "a", "SET", 1), cut, *to_all("INCR"))
    assert replies[3:] == [1, 1, 1]
    for reply in (replies[0], replies[2]) if mine.blocks else (replies[2],):
        assert isinstance(reply, ShardUnavailable)
        assert isinstance(reply.error, ConnectionError)
    assert await mine.send(command(Shard("data", 0), "a", "GET")) == [b"1"]


def one_batch(batch: Any) -> Operation[Any]:
    return (yield batch)


async def test_one_error_names_every_failed_shard(mine: Face, own: list[LocalServer]) -> None:
    own[1].kill()
    own[3].kill()
    refused = command(Shard("data", 0), "k", "NOSUCH")
    with pytest.raises(ShardErrors) as raised:
        await mine.run(one_batch([*to_all("GET"), *to_all("INCR"), refused]))
    errors = raised.value
    assert "3 shards failed (data:0, data:1, data:3)" in str(errors)
    assert {e.shard: type(e) for e in errors.exceptions} == {
        "data:0": CommandRefused,
        "data:1": ShardUnavailable,
        "data:3": ShardUnavailable,
    }
    caught = []
    try:
        raise errors
    except* CommandRefused as refusals:
        caught.append(("refused", [e.shard for e in refusals.exceptions]))
        kinds = type(refusals)
    except* ShardUnavailable as away:
        caught.append(("away", sorted(e.shard for e in away.exceptions)))
    assert kinds is CommandsRefused
    assert caught == [("refused", ["data:0"]), ("away", ["data:1", "data:3"])]


async def test_silent_shards_cost_one_timeout(mine: Face, own: list[LocalServer]) -> None:
    batch = [command(Shard("wide", n), "k", "GET") for n in range(24)]
    await mine.send(*batch)
    for server in own[1:]:
        server.pause()
    for _ in range(2):  # connected already; and to be connected anew
        started = time.monotonic()
        replies = await mine.send(*batch)
        assert time.monotonic() - started < 4 * PATIENCE  # eighteen times 0.4 would be 7.2
        assert replies[::4] == [None] * 6
        assert sum(isinstance(reply, ShardUnavailable) for reply in replies) == 18


async def test_a_command_may_outlast_the_timeout(mine: Face, own: list[LocalServer]) -> None:
    seconds = 0.4 * PATIENCE + 0.3  # than `socket_timeout`
    wait = Command("one", "queue", ("BLPOP", "queue", seconds), block=seconds)
    other = command(Shard("data", 1), "k", "INCR")
    assert await mine.send(wait, other, wait) == [None, 1, None]
    assert await mine.client_call("one", "blpop", "queue", timeout=seconds) is None
    with own[0].client() as client:
        client.rpush("queue", "job")
        connected = client.info("stats")["total_connections_received"]
        assert await mine.send(wait) == [[b"queue", b"job"]]
        assert client.info("stats")["total_connections_received"] == connected  # used again
    assert await mine.send(*to_all("PING")) == [b"PONG"] * 4


async def test_a_hanging_server_ends_a_blpop(mine: Face, own: list[LocalServer]) -> None:
    """After the command's own time and the socket timeout."""
    await mine.send(Command("one", "", ("PING",)))
    own[0].pause()
    started = time.monotonic()
    [reply] = await mine.send(Command("one", "queue", ("BLPOP", "queue", 0.5), block=0.5))
    assert time.monotonic() - started > 0.85
    assert isinstance(reply.error, TimeoutError)


async def test_a_blpop_can_be_cancelled(own_servers: LocalServers, own: list[LocalServer]) -> None:
    async with await shardkit.aconnect(own_servers.shard_map) as kit:
        send = kit.driver.link.send
        waiting = asyncio.create_task(send([Command("one", "q", ("BLPOP", "q", 0), block=0)]))
        await asyncio.sleep(0.6)  # longer than the entry lets replies take
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await send([command("one", "q", "RPUSH", "kept")]) == [1]
        assert await send([command("one", "q", "LLEN")]) == [1]  # nobody waits there any more


async def test_health_checks_come_before_a_command_and_never_in_between(
    kind: str, own_servers: LocalServers, own: list[LocalServer]
) -> None:
    fields = {**own_servers.shard_map.components["one"].entry.fields, "health_check_interval": 1}  # type: ignore[union-attr]
    async with opened(kind, mapped(fields, "one")) as face:
        await face.send(command("one", "k", "SET", "v"))
        [connection] = own_client(face.kit, "one").connection_pool.connections.idle
        connection.health_check_interval, connection.next_health_check = 1e-9, 0  # always due
        wait = Command("one", "queue", ("BLPOP", "queue", 0.5), block=0.5)
        replies = await face.send(*[command("one", "k", "GET") for _ in range(3_000)], wait)
        assert replies == [b"v"] * 3_000 + [None]
        assert await face.client_call("one", "blpop", "queue", timeout=0.5) is None
        assert count_of(own[0], "ping") > 0


async def test_name_with_a_silent_first_address_leads_to_the_second(
    kind: str, own_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent, ExitStack() as waiting:
        address = silent.getsockname()
        for _ in range(2):  # fill its queue: further connections get no answer
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(address)
        resolving("two.internal", address[1], monkeypatch).append(own_server.port)
        entry = {"host": "two.internal", "socket_connect_timeout": 1}
        async with opened(kind, mapped(entry)) as kit:
            assert await kit.client_call("data", "ping")


REFUSALS = {
    "a write": "OOM command not allowed when used memory > 'maxmemory'.",
    "all commands": "NOAUTH Authentication required.",
}


class Notebook(Structure[Any]):
    """Notes, each in a key."""

    @operation
    def put(self, names: list[str], text: str) -> Operation[list[Any]]:
        """Store a note under several names."""
        keys = [f"{self.name}:{name}" for name in names]
        return (yield [self._at(key, "SET", key, text, idempotent=True) for key in keys])


@pytest.mark.parametrize("refused", REFUSALS)
@pytest.mark.parametrize("count", [1, 9])
async def test_a_refused_repetition_says_that_the_first_attempt_may_have_been_executed(
    kind: str, count: int, refused: str
) -> None:
    names = [str(n) for n in range(count)]
    with LocalServer() as server, faulty(server.port) as proxy:
        async with opened(kind, map_of(data={"entry": {"port": proxy.port}})) as face:
            notes: Any = Notebook(face.kit.driver, "data", "notes")
            await face.value(notes.put(names, "first"))
            proxy.lose_answer("SET")
            for _ in names:
                proxy.answer(REFUSALS[refused], "SET")
            with pytest.raises(ShardErrors) as raised:
                await face.value(notes.put(names, "second"))
            assert server.client().get("notes:0") == b"second"
            [failure] = raised.value.exceptions
            assert failure.maybe_executed


async def test_a_repetition_without_a_node_says_that_the_first_attempt_may_have_been_executed(
    kind: str,
) -> None:
    with scripted(COMMAND=b"*0\r\n") as server:
        last = b"16383"

        def slots(_: list[bytes]) -> bytes:
            at = b"$9\r\n127.0.0.1\r\n:%d\r\n" % server.port
            return b"*1\r\n*3\r\n:0\r\n:%b\r\n*2\r\n%b" % (last, at)

        def lose(_: list[bytes]) -> None:
            nonlocal last
            last = b"0"

        server.answers |= {"CLUSTER": slots, "SET": lose}
        entry = {"cluster": True, "host": "127.0.0.1", "port": server.port}
        async with opened(kind, map_of(data={"entry": entry})) as face:
            notes: Any = Notebook(face.kit.driver, "data", "notes")
            with pytest.raises(ShardErrors) as raised:
                await face.value(notes.put(["a"], "text"))
        assert server.names().count("SET") == 1
        [failure] = raised.value.exceptions
        assert failure.maybe_executed
