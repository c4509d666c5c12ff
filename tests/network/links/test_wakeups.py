"""Wake-ups: who waits for one is not left waiting where none can come any more."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from link_helpers import Face, eventually, mapped, opened
from scripted_server import bulk, scripted

from shardkit import ShardKit, ShardMap
from shardkit.local import LocalCluster, LocalServer
from shardkit.network.links import wakeups
from shardkit.operations.commands import AwaitWakeup, Subscribe
from shardkit.routing.placement import slot_of

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


def test_only_the_latest_wake_ups_that_nobody_waits_for_are_kept() -> None:
    early = wakeups._Early()
    for n in range(wakeups.MOST_EARLY + 2):
        early.keep(b"%d" % n, b"it is yours")
    assert list(early) == [b"%d" % n for n in range(2, wakeups.MOST_EARLY + 2)]


async def test_a_moved_slot_gives_its_waiters_another_channel(kind: str) -> None:
    with LocalCluster() as whole:
        async with opened(kind, on(whole)) as face, asyncio.timeout(TOO_LONG / 2):
            with whole.client() as asking:
                owner = asking.get_node_from_key("x").name
            [node] = [each for each in whole.nodes if each.address == owner]
            other = next(each for each in whole.nodes if each.address != owner)
            with node.client() as source, other.client() as target:
                before = await subscribed(face)
                tasks = await waiting(face, "a", "b")
                new_owner = target.execute_command("CLUSTER MYID")
                for each in (target, source):
                    each.execute_command("CLUSTER SETSLOT", slot_of(before), "NODE", new_owner)
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
    parents = link._subscription("one", "x", False)
    link._subscriptions._pid = 0  # as in a child: it is another process's
    assert link.subscribe(Subscribe("one", "x", connect=False)) == ""
    assert link.subscribe(Subscribe("one", "x")) not in ("", channel)
    assert not parents.broken
    parents.close()


async def test_a_subscription_whose_start_was_cancelled_is_none() -> None:
    starting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    starting.cancel()
    assert wakeups.AsyncSubscriptions._outcome(starting) is None
