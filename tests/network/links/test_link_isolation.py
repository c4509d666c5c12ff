"""What happens to one shard's requests leaves the other shards' replies alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import redis
from faces import own_client
from link_helpers import FACES, command, mapped, opened, script_call, two
from redis.exceptions import (
    ConnectionError,  # noqa: A004 - redis-py's own
    MasterDownError,
    RedisClusterException,
    RedisError,
)
from scripted_server import bulk, scripted

from shardkit import CommandRefused, ConfigError, ShardUnavailable
from shardkit.local import LocalServer
from shardkit.network.connections.clients import Clients
from shardkit.network.links import server_request
from shardkit.operations import Command, CommandList, Script, Shard, Transaction

BUMP = Script("bump", "return redis.call('INCRBY', KEYS[1], ARGV[1])")


def on(shard: int, name: str, *args: Any, **options: Any) -> Command:
    return Command(Shard("data", shard), "k", (name, *args), **options)


REDIRECTIONS = {
    b"-MOVED 7629 127.0.0.1:1\r\n": "cluster: true",
    b"-ASK 7629 127.0.0.1:1\r\n": "cluster: true",
    b"-CLUSTERDOWN Hash slot not served\r\n": "cluster: true",
    b"-MASTERDOWN Link with MASTER is down\r\n": "lost its master",
}


@pytest.mark.parametrize("answer", REDIRECTIONS, ids=lambda line: line.split()[0].decode())
async def test_cluster_errors_help(kind: str, answer: bytes, own_server: LocalServer) -> None:
    with scripted(GET=answer) as bad:
        async with opened(kind, two(bad.port, own_server.port)) as face:
            for batch in (
                [on(0, "GET", "k"), on(1, "INCR", "k")],
                [on(0, "GET", "k"), on(0, "PING"), on(1, "INCR", "k")],
            ):
                replies = await face.send(*batch)
                assert isinstance(replies[0], CommandRefused)
                assert REDIRECTIONS[answer] in str(replies[0])
                assert replies[-1] in (1, 2)
            [alone] = await face.send(on(0, "GET", "k"))
            assert isinstance(alone, CommandRefused)
            assert REDIRECTIONS[answer] in str(alone)
        assert bad.names().count("GET") == 3  # never sent again


async def test_a_lost_master_is_reported(kind: str, own_server: LocalServer) -> None:
    with LocalServer() as replica, replica.client() as client:
        client.config_set("replica-serve-stale-data", "no")
        client.replicaof("127.0.0.1", 1)
        async with opened(kind, two(replica.port, own_server.port)) as face:
            lost, kept = await face.send(on(0, "GET", "k"), on(1, "INCR", "k"))
            assert isinstance(lost, CommandRefused)
            assert isinstance(lost.error, MasterDownError)
            assert "lost its master" in str(lost)
            assert kept == 1


async def test_a_scripts_own_noscript_runs_it_once(kind: str, own_server: LocalServer) -> None:
    async with opened(kind, two(own_server.port, own_server.port)) as face:
        odd = Script("odd", "redis.call('INCR', KEYS[1]) return {err='NOSCRIPT of mine'}")
        for n in (1, 2, 3):  # sent as its text, and by its SHA-1
            [reply] = await face.send(script_call(Shard("data", 0), odd, ["n"]))
            assert isinstance(reply, CommandRefused)
            assert "of mine" in str(reply)
            assert await face.send(on(0, "GET", "n")) == [str(n).encode()]


@pytest.mark.parametrize("protocol", [2, 3])
async def test_an_undecodable_reply_fails_alone(
    kind: str, protocol: int, own_server: LocalServer
) -> None:
    shard_map = two(own_server.port, own_server.port, decode_responses=True, protocol=protocol)
    with own_server.client() as client:
        client.mset({"bad": b"\xff", "good": "ä"})
        client.rpush("list", b"\xff", "x")
    async with opened(kind, shard_map) as face:
        plane = face.kit.plane
        link = (plane.link if face.blocks else plane.alink)(raw=False)

        async def send(*batch: Any) -> Any:
            found = link.send(list(batch))
            return await found if inspect.isawaitable(found) else found

        good, bad = on(0, "GET", "good"), on(0, "GET", "bad")
        for batch in (
            [bad],
            [good, bad, good, on(0, "LRANGE", "list", 0, -1), good, on(1, "GET", "good")],
            [bad] * 5,
        ):
            replies = await send(*batch)
            assert len(replies) == len(batch)
            for sent, reply in zip(batch, replies, strict=True):
                if sent.args[1] == "good":
                    assert reply == "ä"
                else:
                    assert isinstance(reply, CommandRefused)
                    assert "cannot be decoded" in str(reply)
        with pytest.raises(redis.ResponseError, match="the reply cannot be decoded"):
            await face.value(face.kit.key_sharded("data")["bad"].get("bad"))


async def test_too_few_values_fail_one_server(beside: Any) -> None:
    """A proxy that answers MGET with too few values: no reply gets to the wrong key."""
    async with beside(scripted(MGET=b"*3\r\n" + bulk(b"1") * 3)) as face:
        batch = CommandList(
            [command(Shard("data", 0), f"k{n}", "GET") for n in range(20)] + [on(1, "INCR", "k")],
            coalesced=True,
        )
        replies = await face.carry(batch)
        assert all(isinstance(reply, ShardUnavailable) for reply in replies[:20])
        assert "do not match" in str(replies[0])
        assert replies[20] == 1


async def test_a_wrong_exec_fails_one_server(beside: Any) -> None:
    answers: dict[str, Any] = {
        "MULTI": b"+OK\r\n",
        "GET": b"+QUEUED\r\n",
        "EXEC": b"*2\r\n-ERR a\r\n-ERR b\r\n",
    }
    async with beside(scripted(**answers)) as face:
        group = Transaction(Shard("data", 0), "k", (on(0, "GET", "k"),))
        lost, kept = await face.send(group, on(1, "INCR", "k"))
        assert isinstance(lost, ShardUnavailable)
        assert kept == 1


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    return fail


ERRORS = [kind("forced") for kind in server_request.ATTEMPT_ERRORS] + [
    UnicodeDecodeError("utf-8", b"", 0, 1, "forced"),
    RecursionError("forced"),
    ConnectionError("forced"),
    BlockingIOError("forced"),
]
POINTS = {
    "blocking": [
        "_pool _acquired",
        "send_packed_command",
        "read_replies",
        "round_trip",
    ],
    "awaiting": ["_pool get_idle", "_pool acquire"],
}


@pytest.mark.long(12)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", [(f, p) for f in FACES for p in POINTS[f]], ids="-".join)
async def test_no_exception_of_an_attempt_takes_other_shards_replies_with_it(
    where: tuple[str, str], error: Exception, own_server: LocalServer, monkeypatch: Any
) -> None:
    kind, point = where
    with scripted() as other:
        async with opened(kind, two(other.port, own_server.port)) as face:
            await face.send(on(0, "PING"), on(1, "PING"))
            for batch in ([on(0, "SET", "k", 1)], [on(0, "SET", "k", 1), on(1, "INCR", "k")]):
                pool = own_client(face.kit, "data", 0).connection_pool
                with monkeypatch.context() as patched:
                    if point.startswith("_pool"):
                        pool = pool if face.blocks else pool.way
                        if "get_idle" not in point:
                            dropped = pool.disconnect()
                            if not face.blocks:
                                await dropped
                        patched.setattr(pool, point.split()[1], raising(error))
                    else:
                        original = getattr(pool.connection_class, point)

                        def only_there(self: Any, *args: Any, o: Any = original, **kw: Any) -> Any:
                            if self.port == other.port:
                                raise error
                            return o(self, *args, **kw)

                        patched.setattr(pool.connection_class, point, only_there)
                    replies = await face.send(*batch)
                if len(batch) == 2:
                    assert replies[1] == 1
                meets = {"round_trip": 1, "send_packed_command": 2, "read_replies": 2}
                if meets.get(point, len(batch)) == len(batch):
                    assert isinstance(replies[0], ShardUnavailable)
                    assert replies[0].error is error
            assert await face.send(on(0, "SET", "k", 1), on(1, "INCR", "k")) == [b"OK", 2]


@pytest.mark.parametrize(
    "error",
    [ConfigError("gone"), RuntimeError("odd"), RedisClusterException("none")],
    ids=lambda error: type(error).__name__,
)
async def test_what_cannot_be_sent_again_leaves_the_replies_that_came(
    kind: str, error: Exception, own_server: LocalServer, monkeypatch: Any
) -> None:
    """The entries, or the client, are gone between the first attempt and the second."""
    async with opened(kind, two(own_server.port, own_server.port)) as face:
        call = script_call(Shard("data", 0), BUMP, ["n"], [1])
        assert await face.send(call, on(1, "PING")) == [1, b"PONG"]
        with own_server.client() as client:
            client.script_flush()
        name, calls = "endpoints" if face.blocks else "aendpoints", 0
        original = getattr(Clients, name)

        def second_fails(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise error
            return original(self, *args, **kwargs)

        with monkeypatch.context() as patched:
            patched.setattr(Clients, name, second_fails)  # of the first attempt: both shards'
            lost, kept = await face.send(call, on(1, "INCR", "k"))
        assert isinstance(lost, ShardUnavailable)
        assert lost.error is error or lost.error is not None
        assert "may have been executed" not in lost.remedy
        assert kept == 1
        assert await face.send(call) == [2]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b">2\r\n+invalidate\r\n*1\r\n+k\r\n" + bulk(b"v"), b"v"),
        (b"%1\r\n*1\r\n+a\r\n+b\r\n", None),
    ],
    ids=["a push", "a map whose key is a list"],
)
async def test_noise_harms_no_call(kind: str, answer: bytes, expected: bytes | None) -> None:
    hello = b"%1\r\n+proto\r\n:3\r\n"
    with scripted(GET=answer, HELLO=hello) as server:
        async with opened(kind, mapped({"port": server.port, "protocol": 3})) as face:
            for _ in range(2):
                if expected is None:
                    with pytest.raises(RedisError, match=r"no RESP|unhash"):
                        await face.client_call("data", "get", "k")
                else:
                    assert await face.client_call("data", "get", "k") == expected
                assert await face.client_call("data", "ping") is True
