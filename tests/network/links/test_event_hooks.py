"""Events: what happens is told in order, on both faces, and to nobody if nobody listens."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from arranged import ask, exit_code, forked
from link_helpers import Face, command, eventually, hearing, mapped, opened, script_call
from redis.crc import key_slot
from scripted_server import bulk, scripted

import shardkit
from shardkit import ShardKit, ShardKitError, ShardMap, events
from shardkit.errors import InvalidArgumentError
from shardkit.local import LocalCluster, LocalServer
from shardkit.network.links import wakeups
from shardkit.operations import AwaitWakeup, Script, Shard, Subscribe, Transaction


@pytest.fixture
def told() -> Iterator[list[Any]]:
    found: list[Any] = []
    with hearing(found.append):
        yield found
    assert events.handlers == []


def of(told: list[Any], *kinds: type) -> list[Any]:
    return [event for event in told if isinstance(event, kinds)]


def names(told: list[Any]) -> list[str]:
    return [type(event).__name__ for event in told]


def test_handlers_must_run_when_they_are_called() -> None:
    async def later(event: Any) -> None:
        raise AssertionError(event)

    with pytest.raises(InvalidArgumentError, match="handler makes a coroutine"):
        events.subscribe(later)


async def test_operations_emit_no_keys(kind: str, own_map: ShardMap, told: list[Any]) -> None:
    async with opened(kind, own_map) as face:
        users = face.kit.hash("SECRET-KEY", component="own_shards")
        await face.value(users.hset(7, "SECRET-VALUE"))
        told.clear()
        assert await face.value(users.hget(7)) == b"SECRET-VALUE"
        assert names(told) == ["CallStarted", "CommandsSent", "CommandsFinished", "CallFinished"]
        started, sent, finished, ended = told
        assert started.name == ended.name == "ShardedHash.hget"
        assert (sent.name, sent.count) == ("HGET", 1)
        assert sent.shard.startswith("own_shards:")
        assert sent.address.startswith("localhost:")
        assert finished.sent is sent
        assert 0 < finished.seconds <= ended.seconds
        if face.blocks:
            assert finished.waited is None
        else:  # in the queue of the loop's connection
            assert 0 <= finished.waited < finished.seconds
        assert ended.started is started
        assert ended.error is None
        assert "SECRET" not in str(told)


async def test_transactions_list_commands(kind: str, own_map: ShardMap, told: list[Any]) -> None:
    async with opened(kind, own_map) as face:
        inner = (command("own", "k", "INCR"), command("own", "k", "GET"))
        batch = [Transaction("own", "k", inner), command("own", "k", "STRLEN")]
        assert await face.send(*batch) == [[1, b"1"], 1]
        [sent] = of(told, events.CommandsSent)
    assert list(sent.commands_of()) == [("INCR", "k"), ("GET", "k"), ("STRLEN", "k")]


async def test_every_event_is_told(kind: str, own_server: LocalServer, told: list[Any]) -> None:
    with scripted(GET=None) as bad:
        fields = {"port": bad.port, "breaker": {"failures": 2, "interval": 0.05, "min_seconds": 0}}
        async with opened(kind, mapped(fields)) as face:
            await face.send(command("data", "k", "GET", idempotent=True))
            await face.send(command("data", "k", "GET"))
            bad.close()
            for _ in range(3):
                await face.send(command("data", "k", "GET"))
            face.kit.breakers.all()[0].close()
    failed = of(told, events.CommandsFailed)
    assert [each.maybe_executed for each in failed[:2]] == [True, True]
    assert [(each.count, each.attempt) for each in of(told, events.CommandsRetried)][:1] == [(1, 1)]
    assert of(told, events.ConnectionOpened)
    assert of(told, events.ConnectionClosed)
    assert of(told, events.BreakerOpened)[0].address == f"localhost:{bad.port}/0"
    assert of(told, events.BreakerClosed)[0].seconds >= 0


async def test_loaded_scripts_are_reported(kind: str, own_map: ShardMap, told: list[Any]) -> None:
    script = Script("tests/one", "return 1 --" + kind)
    async with opened(kind, own_map) as face:
        for _ in range(2):
            assert await face.send(script_call(Shard("own"), script, ["k"])) == [1]
    assert [each.script for each in of(told, events.ScriptLoaded)] == ["tests/one"]
    assert of(told, events.CommandsSent)[-1].name == "tests/one"


def test_a_handler_that_fails_harms_nobody(
    own_map: ShardMap, told: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    def fails(event: object) -> None:
        raise RuntimeError("no")

    with hearing(fails), shardkit.connect(own_map) as kit:
        assert kit.client("own").ping()
    assert of(told, events.CommandsFinished)
    assert "the event handler" in caplog.text


@pytest.mark.parametrize(
    "words",
    [
        ("ACL", "SETUSER", "u", "on", ">SECRET", "+nosuch"),
        ("CONFIG", "SET", "requirepass", "SECRET", "nosuch", "1"),
        ("MIGRATE", "127.0.0.1", "1", "k", "0", "100", "AUTH2", "u", "SECRET", "x"),
        ("NOSUCH", "SECRET"),
        ("SET", "k", "v", "SECRET"),
    ],
)
async def test_no_log_has_what_refused_commands_sent(
    kind: str, own_map: ShardMap, words: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    stop = events.log()
    try:
        with caplog.at_level(logging.DEBUG, "shardkit"):
            async with opened(kind, own_map) as face:
                client: Any = await face.value(face.kit.client("own_shards", 0))
                router = face.kit.key_sharded("own_shards")
                for call in (
                    lambda: client.execute_command(*words),
                    lambda: client.pipeline().execute_command(*words).execute(),
                    lambda: client.pipeline(transaction=False).execute_command(*words).execute(),
                    lambda: router.execute_command(*words),
                    lambda: router.pipeline().execute_command(*words).execute(),
                ):
                    with pytest.raises((redis.RedisError, ShardKitError), match=r"(?s)\w"):
                        await face.value(call())
    finally:
        stop()
    assert any("cause" in vars(record).get("shardkit", ()) for record in caplog.records)
    assert "SECRET" not in caplog.text + repr([vars(record) for record in caplog.records])


def test_events_can_be_logged(own_map: ShardMap, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "shardkit")
    stop = events.log()
    try:
        with shardkit.connect(own_map) as kit:
            kit.client("own").get("k")
            kit.close()
    finally:
        stop()
    assert "CommandsSent(shard='own'" in caplog.text
    assert "ConnectionOpened" in caplog.text


TOO_LONG = 20


def on(server: LocalServer | LocalCluster, max_connections: int = 4, **more: Any) -> ShardMap:
    fields = server.entry.fields if isinstance(server, LocalCluster) else {"port": server.port}
    return mapped({**fields, "max_connections": max_connections, **more})


async def subscribed(face: Face) -> str:
    """The channel of the key ``x``."""
    channel: str = await face.value(face.kit.driver.link.subscribe(Subscribe("data", "x")))
    return channel


async def waiting(face: Face, *waiters: str) -> list[asyncio.Task[bytes | None]]:
    """Have some wait for a wake-up, and return when they do."""
    link: Any = face.kit.driver.link

    async def wait(waiter: str) -> bytes | None:
        request = AwaitWakeup("data", "x", waiter, TOO_LONG)
        started = asyncio.to_thread if face.blocks else lambda wait, request: wait(request)
        found: bytes | None = await started(link.await_wakeup, request)
        return found

    tasks = [asyncio.create_task(wait(waiter)) for waiter in waiters]
    subscription = await face.value(link._subscription("data", "x", False))
    assert await eventually(lambda: len(subscription._waiters) == len(waiters))
    return tasks


async def test_a_cut_connection_wakes_waiters(kind: str, own_server: LocalServer) -> None:
    complaints: list[dict[str, Any]] = []  # of tasks whose errors nobody took
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    async with opened(kind, on(own_server, 1)) as face, asyncio.timeout(TOO_LONG / 2):
        with own_server.client() as client:
            for _ in range(5):  # more often than there are connections
                channel = await subscribed(face)
                first, *others = await waiting(face, "a", "b", "c")
                assert client.publish(channel, "a it is yours") == 1
                assert await first == b"it is yours"
                client.client_kill_filter(_type="pubsub")
                assert await asyncio.gather(*others) == [None, None]
    gc.collect()
    assert complaints == []


async def test_no_channel_without_the_right(kind: str, own_server: LocalServer) -> None:
    with own_server.client() as client:
        client.execute_command("ACL", "SETUSER", "deaf", "on", "nopass", "~*", "+@all")
        client.execute_command("ACL", "SETUSER", "deaf", "resetchannels")
        try:
            fields = {"username": "deaf", "password": "any"}
            async with opened(kind, on(own_server, 1, **fields)) as face:
                for _ in range(3):
                    assert await subscribed(face) == ""
                assert client.execute_command("PUBSUB", "CHANNELS") == []
        finally:
            client.acl_deluser("deaf")


async def test_a_moved_slot_gives_its_waiters_another_channel(kind: str) -> None:
    with LocalCluster() as whole:
        async with opened(kind, on(whole)) as face, asyncio.timeout(TOO_LONG / 2):
            owner = ask(whole, "get_node_from_key", "x").name
            [node] = [each for each in whole.nodes if each.address == owner]
            other = next(each for each in whole.nodes if each.address != owner)
            with node.client() as source, other.client() as target:
                before = await subscribed(face)
                tasks = await waiting(face, "a", "b")
                new_owner = target.execute_command("CLUSTER MYID")
                for each in (target, source):
                    each.execute_command(
                        "CLUSTER SETSLOT", key_slot(before.encode()), "NODE", new_owner
                    )
                assert await asyncio.gather(*tasks) == [None, None]
                channel = await subscribed(face)
                assert channel != before
                [task] = await waiting(face, "a")
                assert source.execute_command("SPUBLISH", channel, "a it is yours") == 1
                assert await task == b"it is yours"


async def test_what_is_no_wake_up_wakes_nobody_and_is_passed_over(kind: str) -> None:
    def subscribe(args: list[bytes]) -> bytes:
        channel = bulk(args[1])
        confirmed = b"*3\r\n$9\r\nsubscribe\r\n" + channel + b":1\r\n"
        other = b"*3\r\n$9\r\nsubscribe\r\n$5\r\nother\r\n:2\r\n"
        return confirmed + other + b"*3\r\n$7\r\nmessage\r\n" + channel + bulk(b"a yours")

    with scripted(SUBSCRIBE=subscribe) as server:
        port = {"port": server.port}
        async with opened(kind, mapped(port)) as face, asyncio.timeout(TOO_LONG / 2):
            link: Any = face.kit.driver.link
            assert (await subscribed(face)).startswith(wakeups.PREFIX)
            request = AwaitWakeup("data", "x", "a", TOO_LONG)
            assert await face.value(link.await_wakeup(request)) == b"yours"
            assert server.names() == ["SUBSCRIBE"]


def test_cut_waits_close(kit: ShardKit, monkeypatch: pytest.MonkeyPatch) -> None:
    link: Any = kit.driver.link
    assert link.subscribe(Subscribe("one", "x"))
    subscription = link._subscription("one", "x", False)

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(subscription._connection), "can_read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        link.await_wakeup(AwaitWakeup("one", "x", "a", TOO_LONG))
    assert subscription.broken
    assert not subscription._waiters
    assert link.subscribe(Subscribe("one", "x")) != subscription.channel


def test_a_forked_child_subscribes_anew_and_leaves_its_parent_the_connection(kit: ShardKit) -> None:
    link: Any = kit.driver.link
    channel = link.subscribe(Subscribe("one", "x"))

    def subscribes_anew() -> None:
        assert link.subscribe(Subscribe("one", "x", connect=False)) == ""
        assert link.subscribe(Subscribe("one", "x")) not in ("", channel)

    assert exit_code(forked(subscribes_anew)) == 0
    assert link.subscribe(Subscribe("one", "x", connect=False)) == channel


async def test_a_subscription_whose_start_was_cancelled_is_none() -> None:
    starting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    starting.cancel()
    assert wakeups.AsyncSubscriptions._outcome(starting) is None
