"""What happens to one shard's requests leaves the other shards' replies alone."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest
import redis
from arranged import ask, map_of
from faces import faced
from faulty_proxy import faulty
from link_helpers import FACES, command, hearing, mapped, of, opened, script_call, two
from redis.credentials import CredentialProvider
from redis.exceptions import (
    RedisClusterException,
    RedisError,
)
from scripted_server import bulk, scripted

from shardkit import CommandRefused, ShardErrors, ShardUnavailable, aconnect, events
from shardkit.admin import push
from shardkit.errors import RetiredError
from shardkit.local import LocalServer
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


@pytest.mark.parametrize("joined", [False, True])
async def test_what_came_before_a_connection_was_lost_counts(joined: bool) -> None:
    """Of the shards that are databases of one server, the first one's replies have come.

    Blocking calls read several replies at once, and have none of them then.
    """
    begun: set[bytes] = set()

    def found(args: list[bytes]) -> bytes | None:
        begun.add(args[1][:1])
        if len(begun) > 1:
            return None
        return b"*%d\r\n" % len(args[1:]) + b"".join(map(bulk, args[1:]))

    def one(args: list[bytes]) -> bytes | None:
        begun.add(args[1][:1])
        return None if len(begun) > 1 else bulk(args[1])

    with scripted(GET=one, MGET=found) as server:
        shards = [{"port": server.port, "db": n, "breaker": False} for n in (1, 2)]
        async with opened("awaiting", map_of(data={"shards": shards})) as face:
            await face.send(on(0, "STRLEN", "k"), on(1, "STRLEN", "k"))  # both are open
            keys = [f"{n}k{m}" for n in (0, 1) for m in range(40)]
            batch = [command(Shard("data", int(key[0])), key, "GET") for key in keys]
            replies = await face.carry(CommandList(batch, coalesced=joined))
        assert replies[:40] == [key.encode() for key in keys[:40]]
        lost: list[Any] = replies[40:]
        assert {type(reply) for reply in lost} == {ShardUnavailable}
        assert all(reply.maybe_executed for reply in lost)


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


class Failing(CredentialProvider):
    """Raises, where an attempt logs in to its server, what a library below may."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def get_credentials(self) -> Any:
        raise self.error


FORCED = [
    *(OSError("forced"), ArithmeticError("forced"), AttributeError("forced"), KeyError("forced")),
    *(MemoryError("forced"), RecursionError("forced"), TypeError("forced")),
    *(UnicodeDecodeError("utf-8", b"", 0, 1, "forced"), RedisError("forced")),
    *(RedisClusterException("forced"), ConnectionError("forced"), BlockingIOError("forced")),
]


@pytest.mark.parametrize("error", FORCED, ids=lambda error: type(error).__name__)
async def test_no_exception_of_an_attempt_takes_other_shards_replies_with_it(
    kind: str, error: Exception, own_server: LocalServer
) -> None:
    place = {"port": own_server.port, "breaker": False}
    providers = {"bad": Failing(error)}
    described = map_of(bad={"entry": place}, good={"entry": place})
    async with opened(kind, described, credential_providers=providers) as face:
        for n in (1, 2):
            batch = command("bad", "k", "SET", 1), command("good", "k", "INCR")
            lost, kept = await face.send(*batch)
            assert kept == n
            assert isinstance(lost, ShardUnavailable)
            assert not lost.maybe_executed
            assert "forced" in str(lost)


async def test_what_cannot_be_sent_again_leaves_the_replies_that_came(
    kind: str, own_server: LocalServer
) -> None:
    """The component is removed between the first attempt and the second."""
    shards = [{"port": own_server.port, "db": n} for n in (1, 2)]
    described = map_of(data={"shards": shards}, one={"entry": shards[0]})
    with own_server.client() as config:
        push(config, described)
        async with opened(kind, f"redis://{own_server.address}") as face:
            call = script_call(Shard("data", 0), BUMP, ["n"], [1])
            assert await face.send(call, on(1, "PING")) == [1, b"PONG"]
            config.script_flush()

            def remove(event: events.Event) -> None:
                if isinstance(event, events.CommandsRetried):
                    push(config, map_of(one={"entry": shards[0]}), prune=True, force=True)
                    face.kit.topology.expire()

            with hearing(remove):
                lost, kept = await face.send(call, on(1, "INCR", "k"))
            assert isinstance(lost, ShardUnavailable)
            assert isinstance(lost.error, RetiredError)
            assert not lost.maybe_executed
            assert kept == 1
            push(config, described, force=True)
            face.kit.topology.expire()
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


async def test_a_lost_write_before_multi_is_not_repeated(kind: str) -> None:
    with LocalServer() as server, faulty(server.port) as proxy:
        async with opened(kind, map_of(data={"entry": {"port": proxy.port}})) as face:
            client: Any = await of(face.kit.client("data"))

            def calls(name: str) -> Any:
                def blocking(pipe: Any) -> None:
                    getattr(pipe, name)("count")
                    pipe.multi()
                    pipe.set("copied", 1)

                async def awaiting(pipe: Any) -> None:
                    await getattr(pipe, name)("count")
                    pipe.multi()
                    pipe.set("copied", 1)

                return client.transaction(blocking if face.blocks else awaiting, "watched")

            proxy.lose_answer("INCRBY")
            with pytest.raises(ShardUnavailable) as raised:
                await of(calls("incr"))
            assert raised.value.maybe_executed
            assert server.client().get("count") == b"1"
            proxy.lose_answer("GET")
            assert await of(calls("get")) == [True]  # a read is repeated
            assert server.client().get("copied") == b"1"


async def test_calls_that_wait_at_a_fence_follow_a_changed_entry_in_their_order(
    tmp_path: Path,
) -> None:
    path = tmp_path / "map.yaml"
    with LocalServer() as server, server.client(db=3) as admin:

        def write(timeout: int) -> None:
            entry = {"port": server.port, "db": 3, "socket_timeout": timeout}
            path.write_text(map_of(data={"entry": entry}).to_yaml(), encoding="utf-8")

        write(50)
        admin.set("config:fence", "closed")
        async with await aconnect(str(path)) as kit:
            client = await kit.client("data")
            waiting = [asyncio.ensure_future(client.incr("count")) for _ in range(3)]
            waiting.append(asyncio.ensure_future(kit.hash("h", component="data").hset("f", "v")))
            await asyncio.sleep(0.2)  # they have been sent, or wait
            write(60)
            while await kit.client("data") is client:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.05)
            assert not any(each.done() for each in waiting)
            admin.delete("config:fence")
            assert await asyncio.gather(*waiting) == [1, 2, 3, 1]
            assert admin.get("count") == b"3"


@pytest.mark.parametrize("right", ["multi", "rpush"])
@pytest.mark.parametrize("kind", FACES)
def test_a_failure_says_whether_the_commands_of_a_transaction_were_executed(
    kind: str, right: str
) -> None:
    def steps() -> Any:
        inner = (command("c", "k", "RPUSH", 1), command("c", "k", "LLEN"))
        return (yield [Transaction("c", "k", inner)])

    with LocalServer() as server, faced(kind, map_of(c={"entry": {"port": server.port}})) as face:
        assert face.run(face.kit.driver.run(steps())) == [[1, 1]]
        ask(server, "execute_command", "ACL", "SETUSER", "default", f"-{right}")
        with pytest.raises(ShardErrors) as raised:
            face.run(face.kit.driver.run(steps()))
        [failure] = raised.value.exceptions
        assert f"+{right}" in str(failure)
        executed = ask(server, "llen", "k") == 2
        assert (executed, getattr(failure, "maybe_executed", None)) == (right == "multi",) * 2
