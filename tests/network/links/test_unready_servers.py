"""What a server refuses because it loads, or is a replica, was not executed: it is sent again.

Within the entry's socket timeout, and after its entry was read anew, so that a call that meets a
server that was just replaced ends on its successor. A split may have separated its keys meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, TypeAlias

import pytest
import redis
from arranged import ask, map_of
from faces import Face, faced
from faulty_proxy import faulty
from link_helpers import command, hearing, opened, resolving
from scripted_server import scripted

from shardkit import ShardMap, events
from shardkit.admin import push
from shardkit.errors import CommandRefused, CrossShardError
from shardkit.local import LocalServer

Pair: TypeAlias = tuple[LocalServer, LocalServer]
Connect: TypeAlias = Callable[[ShardMap], Face]

READONLY = b"-READONLY You can't write against a read only replica.\r\n"
LOADING = b"-LOADING Redis is loading the dataset in memory\r\n"


@pytest.fixture(scope="module")
def servers() -> Iterator[Pair]:
    with LocalServer() as old, LocalServer() as new:
        yield old, new


@pytest.fixture
def replaced(servers: Pair) -> Iterator[Pair]:
    """A server that is a replica by the time it is used, and its successor, the config server."""
    old, new = servers
    with old.client() as client, new.client() as config:
        client.replicaof("NO", "ONE")
        config.flushall()
        client.flushall()
        yield servers
        client.replicaof("NO", "ONE")


def described(port: int, timeout: float = 5) -> ShardMap:
    server = f"{{host: 127.0.0.1, port: {port}, socket_timeout: {timeout}}}"
    return ShardMap.parse(f"components: {{one: {{entry: {server}, shards: [{server}]}}}}")


@pytest.fixture
def connected(kind: str, replaced: Pair) -> Iterator[Connect]:
    """Open a kit of either face on a config server to which a map was pushed."""
    with ExitStack() as kits:

        def connect(shard_map: ShardMap) -> Face:
            with replaced[1].client() as config:
                push(config, shard_map, force=True, check=False)
            return kits.enter_context(faced(kind, f"redis://{replaced[1].address}"))

        yield connect


def client_of(face: Face) -> Any:
    return face.run(face.kit.client("one")) if face.runner else face.kit.client("one")


def fail_over(replaced: Pair) -> None:
    """Make the server in use a replica, and push its successor; the kit does not know yet."""
    old, new = replaced
    with old.client() as client, new.client() as config:
        client.replicaof("127.0.0.1", 1)
        push(config, described(new.port), force=True, check=False)


def test_a_write_that_meets_a_replica_ends_on_the_new_master_in_the_same_call(
    connected: Connect, replaced: Pair
) -> None:
    face = connected(described(replaced[0].port))
    ids = face.kit.set("ids", component="one", total=100, members=int)
    face.run(ids.sadd(1))
    client = client_of(face)
    face.run(client.incr("n"))
    fail_over(replaced)
    face.run(client.incr("n"))
    assert ask(replaced[1], "get", "n") == b"1"
    face.kit.topology.expire()
    face.run(ids.sadd(2))


def test_refusal_closes_idle_connections_so_that_the_name_is_resolved_again(
    connected: Connect,
    replaced: Pair,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, new = replaced
    ports = resolving("primary.internal", old.port, monkeypatch)
    server = "{host: primary.internal, socket_timeout: 1}"
    face = connected(
        ShardMap.parse(f"components: {{one: {{entry: {server}, shards: [{server}]}}}}")
    )
    client, router = client_of(face), face.kit.key_sharded("one")
    face.run(client.set("k", 0))
    ask(old, "replicaof", "127.0.0.1", new.port)
    ports[:] = [new.port]
    assert face.run(client.set("k", 1))
    assert face.run(router.pipeline().set("k", 2).set("k", 3).execute()) == [True, True]
    assert ask(new, "get", "k") == b"3"


def test_a_pipeline_over_shards_goes_to_the_successor_too(
    connected: Connect, replaced: Pair
) -> None:
    face = connected(described(replaced[0].port))
    router = face.kit.key_sharded("one")
    assert face.run(router.mset({"a": 1, "b": 2})) is True
    fail_over(replaced)
    assert face.run(router.pipeline().incr("a").incr("b").execute()) == [1, 1]
    assert ask(replaced[1], "mget", "a", "b") == [b"1", b"1"]


def test_a_server_that_loads_is_asked_again(connected: Connect) -> None:
    answers = [LOADING, LOADING, b":7\r\n"] * 2

    with scripted(INCRBY=lambda args: answers.pop(0)) as server:
        face = connected(described(server.port))
        server.received.clear()  # without what the push asked
        assert face.run(client_of(face).incr("n")) == 7
        router = face.kit.key_sharded("one")
        replies = face.run(router.pipeline().incrby("n", 1).execute())
        assert replies == [7]
        assert server.names() == ["INCRBY"] * 6


def test_an_uncertain_retry_is_not_repeated(connected: Connect) -> None:
    answers = [LOADING, None, b":7\r\n"]

    with scripted(INCRBY=lambda args: answers.pop(0)) as server:
        face = connected(described(server.port))
        server.received.clear()  # without what the push asked
        with pytest.raises(redis.ConnectionError, match=r"(?i)closed"):
            face.run(client_of(face).incr("n"))
        assert server.names() == ["INCRBY"] * 2


def test_the_socket_timeout_limits_how_long(connected: Connect) -> None:
    with scripted(SET=READONLY) as server:
        face = connected(described(server.port, timeout=0.3))
        server.received.clear()  # without what the push asked
        with pytest.raises(redis.ReadOnlyError, match="can't write against a read only replica"):
            face.run(client_of(face).set("k", 1))
        client_sent = len(server.received)
        assert 2 <= client_sent <= 6
        [reply] = face.run(
            face.kit.key_sharded("one").pipeline().set("k", 1).execute(raise_on_error=False)
        )
        assert "the server is a replica" in str(reply)
        assert client_sent + 2 <= len(server.received) <= 12


def test_what_a_script_calls_by_the_same_name_is_not_sent_again(
    connected: Connect, replaced: Pair
) -> None:
    face = connected(described(replaced[1].port))
    for name in ("READONLY of mine", "LOADING of mine"):
        text = f"redis.call('INCR', KEYS[1]) return {{err='{name}'}}"
        with pytest.raises(redis.RedisError, match="of mine"):
            face.run(client_of(face).eval(text, 1, name))
        assert face.run(client_of(face).get(name)) == b"1"


async def test_a_request_that_a_split_refuses_may_have_been_executed_before(
    kind: str, server: LocalServer
) -> None:
    def describe(shards: int) -> None:
        at = [{"port": proxy.port, "db": n} for n in range(1, shards + 1)]
        push(config, map_of(users={"shards": at}), force=True)

    def split(event: events.Event) -> None:
        if isinstance(event, events.CommandsRetried):
            describe(5)
            face.kit.topology.expire()

    with server.client() as config, faulty(server.port) as proxy:
        describe(2)
        async with opened(kind, f"redis://{server.address}") as face:
            place = face.kit.topology.reread if kind == "blocking" else face.kit.topology.areread
            component = await face.value(place("users"))
            keys = [key for n in range(40) if component.place(key := f"k{n}") == 0]
            with hearing(split):
                proxy.lose_answer("SINTER")
                batch = [command("users", keys[0], "SINTER", key) for key in keys[1:]]
                replies = await face.send(*batch)
            refused = [reply for reply in replies if isinstance(reply, CommandRefused)]
            assert refused
            assert all(isinstance(reply.error, CrossShardError) for reply in refused)
            assert all(reply.maybe_executed for reply in refused)
