"""Breakers, retries, deadlines and limits of waiting: a bad server costs its callers little."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio
from faces import PATIENCE
from link_helpers import FACES, Face, command, eventually, mapped, of, opened, paused, two
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,  # noqa: A004 - redis-py's own
    ResponseError,
    TimeoutError,  # noqa: A004 - redis-py's own
)
from scripted_server import scripted

import shardkit
from shardkit import ShardFailure, ShardUnavailable
from shardkit.errors import BreakerOpenError, DeadlineExceeded
from shardkit.local import LocalCluster, LocalServer
from shardkit.network.connections.breaker import Breaker, BreakerSettings
from shardkit.network.connections.policy import CallPolicy
from shardkit.operations import Command, Shard

pytestmark = pytest.mark.one_server

QUICK = {"failures": 2, "min_seconds": 0, "interval": 0.05, "max_interval": 0.1}
NEVER_TRIED = {"failures": 2, "min_seconds": 0, "interval": 600}


def on(shard: int, name: str, *args: Any, **options: Any) -> Command:
    return command(Shard("data", shard), "k", name, *args, **options)


def reason(reply: Any) -> str:
    assert isinstance(reply, ShardUnavailable), reply
    return str(reply)


@pytest.mark.parametrize("default", [True, False])
async def test_calls_to_a_server_that_hangs_soon_fail_at_once_and_others_never_notice(
    beside: Any, default: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fields: dict[str, Any] = {} if default else {"breaker": QUICK}
    async with beside(LocalServer(), socket_timeout=0.3 * PATIENCE, **fields) as face:
        await face.send(on(0, "PING"), on(1, "PING"))
        with paused(face.bad):
            for n in range(3):
                bad, good = await face.send(on(0, "INCR"), on(1, "INCR"))
                assert good == n + 1
            assert isinstance(bad, ShardUnavailable)
            started = time.monotonic()
            for _ in range(20):
                bad, good = await face.send(on(0, "INCR"), on(1, "INCR"))
            assert time.monotonic() - started < 3 * PATIENCE  # not 20 times the timeout
            assert good == 23
            assert not bad.maybe_executed
            assert "is unavailable: circuit breaker open since" in reason(bad)
            assert "(last: " in reason(bad)
            assert "Next probe in" in reason(bad)
            with pytest.raises(ConnectionError, match="circuit breaker open since"):
                await face.client_call("one", "incr", "k")  # of the same server
        assert await eventually(lambda: not face.kit.breakers.all()[0].opened)
        [count] = await face.send(on(0, "GET"))
        assert not isinstance(count, Exception)
    said = [
        record.shardkit["event"]  # type: ignore[attr-defined]
        for record in caplog.records
        if record.levelno == logging.WARNING
    ]
    assert said == ["server-unavailable", "server-available"]


async def test_callers_with_deadlines_open_it_and_it_holds_for_connections_in_use(
    beside: Any,
) -> None:
    fields = {"breaker": {"failures": 3, "interval": 600}, "socket_timeout": 60}
    async with beside(LocalServer(), **fields) as face:
        client = await of(face.kit.client("one"))
        await of(client.ping())
        with paused(face.bad):
            for _ in range(3):
                with (
                    pytest.raises(DeadlineExceeded, match=r"did not answer|got no command"),
                    face.kit.deadline(0.3 * PATIENCE),
                ):
                    await of(client.get("k"))
            for call in (lambda: client.get("k"), client.pipeline().get("k").execute):
                with pytest.raises(BreakerOpenError, match="open since") as caught:
                    await of(call())
                assert not caught.value.maybe_executed
            assert "circuit breaker open" in reason((await face.send(on(0, "GET")))[0])


async def test_refused_connections_do_not_open_it(beside: Any) -> None:
    async with beside(LocalServer()) as face:
        port = face.bad.port
        face.bad.stop()
        with socket.socket() as nobody_elses:  # a test of another process might take the port
            nobody_elses.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            nobody_elses.bind(("127.0.0.1", port))
            for _ in range(6):
                assert "cannot be reached" in reason((await face.send(on(0, "INCR")))[0])
        with LocalServer(port=port):
            assert await face.send(on(0, "INCR")) == [1]


async def test_a_restarted_server_closes_it(kind: str, own_server: LocalServer) -> None:
    with LocalServer() as server:
        port = server.port
        async with opened(kind, two(port, own_server.port, breaker=QUICK)) as face:
            assert await face.send(on(0, "INCR")) == [1]
            server.stop()
            for _ in range(4):
                [reply] = await face.send(on(0, "INCR"))
            assert "breaker" in reason(reply)
            with LocalServer(port=port):
                assert await eventually(lambda: not face.kit.breakers.all()[0].opened)
                assert await face.send(on(0, "INCR")) == [1]


async def test_without_a_breaker_each_call_asks(beside: Any) -> None:
    async with beside(scripted(INCR=None), breaker=False) as face:
        for _ in range(6):
            assert "was lost" in reason((await face.send(on(0, "INCR")))[0])
        assert face.bad.names().count("INCR") == 6


async def test_failures_between_successes_do_not_open_it(own_server: LocalServer) -> None:
    with (
        scripted(INCR=None) as server,
        shardkit.connect(two(server.port, own_server.port, breaker=NEVER_TRIED)) as kit,
    ):
        pool: Any = kit.client("one").connection_pool
        other = pool.get_connection()
        for _ in range(5):
            kit.driver.link.send([on(0, "INCR")])
            pool.release(other)  # as after a reply
            other = pool.get_connection()
        assert not any(breaker.opened for breaker in kit.breakers.all())
        pool.release(other)


REFUSING: dict[str, dict[str, Any]] = {
    "a password": {"username": "nobody", "password": "wrong"},
    "a database": {"db": 9999},
    "more connections": {"max_connections": 1},
    "a hasty caller": {},
}


@pytest.mark.parametrize("what", REFUSING)
async def test_what_does_not_say_that_a_server_is_away_opens_no_breaker(
    what: str, own_server: LocalServer
) -> None:
    fields = {**REFUSING[what], "breaker": {"failures": 1, "min_seconds": 0, "interval": 600}}
    place = {"port": own_server.port, "socket_timeout": 20 * PATIENCE, **fields}
    with shardkit.connect(mapped(place)) as kit:
        wanted = command("data", "k", "GET")
        if what == "a hasty caller":
            kit.driver.link.send([wanted])
            with paused(own_server), kit.deadline(0.02):
                [reply] = kit.driver.link.send([wanted])
        elif what == "more connections":
            pool: Any = kit.client("data").connection_pool
            lent = pool.get_connection()
            [reply] = kit.driver.link.send([wanted])
            pool.release(lent)
        else:
            [reply] = kit.driver.link.send([wanted])
        assert isinstance(reply, ShardFailure)
        assert not any(each.opened for each in kit.breakers.all())


async def test_each_node_of_a_cluster_has_its_own(kind: str) -> None:
    with LocalCluster() as whole:
        entry = {**whole.entry.fields, "socket_timeout": 0.3 * PATIENCE, "breaker": QUICK}
        async with opened(kind, mapped(entry)) as face:
            keys = [f"k{n}" for n in range(60)]
            await face.send(*[command("data", key, "SET", 1) for key in keys])
            hung = whole.nodes[0]
            with paused(hung):
                for _ in range(3):
                    replies = await face.send(*[command("data", key, "GET") for key in keys])
                replies = await face.send(*[command("data", key, "GET") for key in keys])
                failed = [reply for reply in replies if isinstance(reply, Exception)]
                assert 0 < len(failed) < len(keys)
                states = {each.address: each.opened for each in face.kit.breakers.all()}
                assert [address for address, opened in states.items() if opened] == [hung.address]


def quick(probe: Any = lambda: None) -> Breaker:
    """A breaker that opens at the first failure."""
    return Breaker("s:1", BreakerSettings(failures=1, min_seconds=0, interval=0.01), probe)


@pytest.mark.parametrize("error", [AuthenticationError, BusyLoadingError, ResponseError])
async def test_an_error_reply_to_the_probe_closes_it(error: type[Exception]) -> None:
    answers: list[Exception] = [error("as it said"), OSError("not yet")]

    def probe() -> None:
        raise answers.pop()

    breaker = quick(probe)
    breaker.failed(TimeoutError("silent"), 9.0)
    assert await eventually(lambda: not breaker.opened)
    assert answers == []
    assert repr(breaker) == "<Breaker of s:1: closed>"


def test_without_a_thread_to_try_the_server_its_callers_try_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shardkit")
    states: list[str] = []
    breaker = quick()

    def refuses(thread: threading.Thread) -> None:
        states.append(repr(breaker))
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuses)
    breaker.failed(TimeoutError("silent"), 9.0)
    assert states == ["<Breaker of s:1: open>"]
    assert not breaker.opened
    assert caplog.messages == ["s:1 is unavailable: silent"]


@pytest.mark.parametrize(
    ("asked", "pauses"),
    [
        ({"backoff": "NoBackoff"}, [0.0, 0.0, None]),
        ({"backoff": "ConstantBackoff", "base": 0.3}, [0.3, 0.3, None]),
        ({"backoff": "ExponentialBackoff", "base": 0.1, "cap": 0.3}, [0.2, 0.3, None]),
    ],
)
def test_pauses_follow_the_entry(asked: dict[str, Any], pauses: list[float | None]) -> None:
    fields = {"retry": {"retries": 2, **asked}}
    breaker = quick()
    policy = CallPolicy.of(fields, Shard("data", 0), "s:1", breaker=breaker)
    lost = ConnectionError("lost")
    assert [policy.pause_before_retry(n, lost) for n in (1, 2, 3)] == pauses
    breaker.opened = True
    assert policy.pause_before_retry(1, lost) is None  # the kit tries, and no caller


async def test_connecting_is_retried_as_the_entry_says(kind: str, own_server: LocalServer) -> None:
    retry = {"retries": 40, "backoff": "ConstantBackoff", "base": 0.05}
    with LocalServer() as server:
        port = server.port
        async with opened(kind, two(port, own_server.port, retry=retry, breaker=False)) as face:
            assert await face.send(on(0, "INCR")) == [1]
            server.stop()

            def restart() -> LocalServer:
                time.sleep(0.2)  # several tries long
                return LocalServer(port=port).start()

            restarting = asyncio.get_running_loop().run_in_executor(None, restart)
            if face.blocks:
                await asyncio.sleep(0)
            try:
                replies = await face.send(on(0, "INCR"), on(1, "INCR"))
                assert replies[1] == 1
                assert replies[0] == 1
                assert await face.send(on(0, "GET")) == [b"1"]
            finally:
                (await restarting).stop()


async def test_only_idempotent_commands_are_retried(beside: Any) -> None:
    retry = {"retries": 3, "backoff": "ConstantBackoff", "base": 0.01}
    async with beside(scripted(GET=None, INCR=None), retry=retry, breaker=False) as face:
        server = face.bad
        [failed] = await face.send(on(0, "GET", idempotent=True))
        assert failed.maybe_executed
        await face.send(on(0, "INCR"))
        assert server.names().count("GET") == 4
        assert server.names().count("INCR") == 1
        with pytest.raises(
            (ConnectionError, TimeoutError), match="the server closed the connection"
        ):
            await face.client_call("one", "execute_command", "INCR", "k")
        assert server.names().count("INCR") == 2


async def test_as_many_commands_wait_as_may(own_server: LocalServer) -> None:
    shard_map = two(own_server.port, own_server.port, max_waiting=100)
    async with opened("awaiting", shard_map) as face:  # it connects while they wait
        found = await asyncio.gather(*(face.send(on(0, "INCR")) for _ in range(105)))
        answered = [reply for [reply] in found if isinstance(reply, int)]
        assert answered == list(range(1, 101))


LIMITS = {"deadline": 0.3 * PATIENCE, "socket_timeout": 5 * PATIENCE, "breaker": False}


@pytest.fixture(scope="module", params=["a server", "a cluster"])
def place(request: pytest.FixtureRequest) -> Any:
    kind: Any = LocalServer if request.param == "a server" else LocalCluster
    with kind() as running:
        yield running


@pytest_asyncio.fixture(params=FACES)
async def limited(request: pytest.FixtureRequest, place: Any) -> AsyncIterator[Face]:
    entry = place.entry.fields if hasattr(place, "nodes") else {"port": place.port}
    async with opened(request.param, mapped({**entry, **LIMITS})) as face:
        yield face


@pytest.mark.parametrize("name", ["watch", "get"])
async def test_commands_before_multi_end_with_the_deadline(
    limited: Face, place: Any, name: str
) -> None:
    client = await of(limited.kit.client("data"))
    await of(client.set("k", 1))
    pipe = client.pipeline(transaction=True)
    await of(pipe.watch("k"))
    with (
        paused(*getattr(place, "nodes", [place])),
        pytest.raises(DeadlineExceeded, match=r"the deadline of .* has passed"),
    ):
        await of(getattr(pipe, name)("k"))
    assert await of(client.get("k")) == b"1"


@pytest.mark.parametrize("name", ["unwatch", "reset"])
async def test_a_pipeline_that_is_dropped_waits_no_longer_than_the_deadline(
    limited: Face, place: Any, name: str
) -> None:
    client = await of(limited.kit.client("data"))
    pipe = client.pipeline(transaction=True)
    await of(pipe.watch("k"))
    # The socket's timeout would be raised.
    with paused(*getattr(place, "nodes", [place])), suppress(DeadlineExceeded):
        await of(getattr(pipe, name)())
    await of(pipe.reset())
    await of(client.set("k", 1))
    assert await of(pipe.get("k").execute()) == [b"1"]


async def test_a_connection_of_ones_own_is_taken_before_the_deadline(
    limited: Face, place: Any
) -> None:
    if hasattr(place, "nodes"):
        pytest.skip("clients of clusters have no connection of their own")
    client = await of(limited.kit.client("data"))
    take = client.client if limited.blocks else client.client().initialize
    with paused(place), pytest.raises(DeadlineExceeded, match=r"the deadline of .* has passed"):
        await of(take())
    assert await of(client.set("k", 1)) is True
