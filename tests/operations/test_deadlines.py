"""Deadlines: of a block, of a kit, of an entry; nothing lasts longer, and nobody else is hurt."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from arranged import paused
from faces import PATIENCE
from link_helpers import FACES, Face, command, opened, two
from redis.exceptions import (
    ResponseError,
    TimeoutError,  # noqa: A004 - redis-py's own
)
from scripted_server import ScriptedServer, bulk, scripted

import shardkit
from shardkit import ShardErrors, ShardFailure
from shardkit.errors import ConfigServerError, DeadlineExceeded, InvalidArgumentError
from shardkit.local import LocalServer
from shardkit.operations import Batch, Operation, Partial, Pause, Replies, Shard

pytestmark = pytest.mark.one_server

PATIENT = 5.0 * PATIENCE  # what nobody has to wait for


def on(shard: int, name: str, *args: Any, **options: Any) -> Any:
    return command(Shard("data", shard), "k", name, *args, **options)


@pytest.fixture(params=FACES)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def silent() -> Iterator[ScriptedServer]:
    """A server that never answers GET and BLPOP."""
    with scripted(GET=b"", BLPOP=b"") as server:
        yield server


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Generous to a busy machine, and far from the timeouts that would hold otherwise."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds + 1.5 * PATIENCE


async def test_it_covers_connecting(kind: str, own_server: LocalServer) -> None:
    with scripted(CLIENT=b"", HELLO=b"") as mute:  # accepts, and says nothing
        async with opened(kind, two(mute.port, own_server.port)) as face:
            seconds = 0.5 * PATIENCE
            with at_most(seconds), face.kit.deadline(seconds):
                failure, good = await face.send(on(0, "GET"), on(1, "INCR"))
            assert not failure.maybe_executed
            assert good == 1


def test_a_server_that_answers_is_asked_in_time_although_threads_start_late(
    own_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller does not connect to the silent one itself, which would take all of its time."""

    def late(function: Callable[..., object], args: tuple[Any, ...]) -> int:
        def run() -> None:
            time.sleep(0.1)  # as on a busy machine; nothing that users call delays a thread
            function(*args)

        return start_new_thread(run, ())

    monkeypatch.setattr("shardkit.network.links.link.start_new_thread", late)
    with (
        scripted(CLIENT=b"", HELLO=b"") as mute,
        shardkit.connect(two(mute.port, own_server.port)) as kit,
        kit.deadline(0.5 * PATIENCE),
    ):
        failure, good = kit.driver.link.send([on(0, "GET"), on(1, "INCR")])
    assert isinstance(failure, ShardFailure)
    assert good == 1


async def test_it_covers_the_handshake_of_tls(kind: str, own_server: LocalServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # the system accepts, and nobody answers
        port = mute.getsockname()[1]
        shard_map = two(port, own_server.port, ssl=True, ssl_cert_reqs="none")
        async with opened(kind, shard_map) as face:
            with at_most(0.1), face.kit.deadline(0.1):
                [failure] = await face.send(on(0, "GET"))
            assert "the deadline of 0.1 s has passed" in str(failure)
            assert not failure.maybe_executed
            client = await face.value(face.kit.client("one", private=True))  # redis-py's own way
            with (
                at_most(0.1),
                face.kit.deadline(0.1),
                pytest.raises(TimeoutError, match=r"the deadline of 0\.1 s has passed"),
            ):
                await face.value(client.get("k"))


async def test_unwritten_data_keeps_its_own_deadline(own_server: LocalServer) -> None:
    shard_map = two(own_server.port, own_server.port, socket_timeout=0.3 * PATIENCE)
    async with opened("awaiting", shard_map) as face:
        client: Any = await face.kit.client("one", private=True)
        number = await client.client_id()
        with (
            paused(own_server),
            face.kit.deadline(PATIENT),
            # Up to Python 3.13.1 asyncio's `drain` does not wait for what was written.
            pytest.raises(TimeoutError, match=r"Timeout (writing to socket|reading from)"),
        ):
            await client.set("large", bytes(2**24))  # more than fits on its way
        while number in [int(each["id"]) for each in await client.client_list()]:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
        assert not await client.exists("large")  # the rest was not written after all


def steps_of(batches: int) -> Operation[list[Any]]:
    replies: list[Any] = []
    for _ in range(batches):
        batch: Batch = [on(0, "INCR")]
        replies += yield batch
    return replies


@pytest.mark.parametrize("where", ["entry", "connect"])
async def test_that_of_an_entry_or_a_kit_is_one_for_all_steps_of_a_call(
    kind: str, where: str, own_server: LocalServer
) -> None:
    def slowly(args: list[bytes]) -> bytes:
        time.sleep(0.2 * PATIENCE)  # a fifth of what is allowed
        return b":1\r\n"

    with scripted(INCR=slowly) as slow:
        fields = {"deadline": PATIENCE} if where == "entry" else {}
        options = {"deadline": PATIENCE} if where == "connect" else {}
        async with opened(kind, two(slow.port, own_server.port, **fields), **options) as face:
            await face.send(on(0, "PING"))
            assert await face.run(steps_of(1)) == [1]
            with at_most(PATIENCE), pytest.raises(ShardErrors) as failed:
                await face.run(steps_of(10))
            assert f"deadline of {PATIENCE:g} s" in str(failed.value.exceptions[0])
            assert await face.run(steps_of(2)) == [1, 1]  # each call has its own


async def test_together_returns_values_under_a_deadline(kind: str, own_server: LocalServer) -> None:
    async with opened(kind, two(own_server.port, own_server.port, deadline=PATIENT)) as face:
        assert await face.run(steps_of(1)) == [1]  # from now on the entries' deadlines are known
        together = face.kit.together(steps_of(2), steps_of(1))
        assert await face.value(together) == [[2, 4], [3]]


async def test_requested_pauses_do_not_count(kind: str, own_server: LocalServer) -> None:
    def steps() -> Operation[Replies]:
        yield Pause(0.6 * PATIENCE)
        return (yield [on(1, "INCR")])

    async with opened(kind, two(own_server.port, own_server.port, deadline=0.5 * PATIENCE)) as face:
        assert await face.run(steps()) == [1]


async def test_a_loop_of_pauses_ends_with_it(kind: str, own_server: LocalServer) -> None:
    def steps() -> Operation[None]:
        while True:
            yield Partial([on(1, "INCR")])  # whose failures are values
            yield Pause(0.01)

    async with opened(kind, two(own_server.port, own_server.port)) as face:
        with (
            face.kit.deadline(0.1),
            pytest.raises(DeadlineExceeded, match=r"the deadline of 0\.1 s has passed"),
        ):
            await face.run(steps())


async def call_all_ways(face: Face) -> list[Any]:
    """Have a client, its pipelines and a pipeline over shards ask the silent server."""

    async def value(found: Any) -> Any:
        return found if face.blocks else await found

    async def pipeline(transaction: bool) -> Any:
        client = await value(face.kit.client("one"))
        return await value(client.pipeline(transaction=transaction).get("k").execute())

    failures = []
    for way in (
        lambda: face.client_call("one", "get", "k"),
        lambda: pipeline(False),
        lambda: value(face.kit.key_sharded("one").pipeline().get("k").execute()),
        lambda: value(face.kit.key_sharded("one").mget(["k"])),
    ):
        with at_most(0.2), pytest.raises((TimeoutError, ShardErrors)) as failed:
            await way()
        failures.append(failed.value)
    return failures


@pytest.mark.parametrize("where", ["entry", "block"])
async def test_it_holds_for_clients_and_pipelines(
    kind: str, where: str, own_server: LocalServer
) -> None:
    with scripted(GET=b"", MGET=b"") as silent:
        fields = {"deadline": 0.2} if where == "entry" else {}
        async with opened(kind, two(silent.port, own_server.port, **fields)) as face:
            if where == "block":
                with (
                    face.kit.deadline(0.2),
                    pytest.raises(TimeoutError, match=r"deadline of 0\.2 s"),
                ):
                    await face.client_call("one", "get", "k")
                return
            for failure in await call_all_ways(face):
                assert "deadline of 0.2 s" in str(failure)


async def test_blocking_extends_only_an_entrys_deadline(kind: str, own_server: LocalServer) -> None:
    short = {"deadline": 0.3 * PATIENCE, "socket_timeout": 0.4 * PATIENCE}
    async with opened(kind, two(own_server.port, own_server.port, **short)) as face:
        wait = 0.5 * PATIENCE
        assert await face.client_call("one", "blpop", "none", timeout=wait) is None
        assert await face.send(on(0, "BLPOP", wait, block=wait)) == [None]
        with at_most(0.2), face.kit.deadline(0.2):
            [failure] = await face.send(on(0, "BLPOP", PATIENT, block=PATIENT))
        assert failure.maybe_executed
        with pytest.raises(ResponseError, match="timeout is not"):  # no number of seconds: as it is
            await face.client_call("one", "execute_command", "BLPOP", "none", "long")
        for call in (
            ("blpop", "none", PATIENT),
            ("blpop", "none", 0),
            ("xread", {"none": "$"}, None, 0),
        ):
            with at_most(0.2), face.kit.deadline(0.2), pytest.raises(TimeoutError, match="deadl"):
                await face.client_call("one", *call)


def test_the_earliest_nested_block_holds(silent: ScriptedServer, own_server: LocalServer) -> None:
    with shardkit.connect(two(silent.port, own_server.port, socket_timeout=0.6)) as kit:
        with kit.deadline(60), kit.deadline(0.1), kit.deadline(60):
            [reply] = kit.driver.link.send([on(0, "GET")])
            assert "0.1 s" in str(reply)
        [reply] = kit.driver.link.send([on(0, "GET")])
        assert "deadline" not in str(reply)
        for wrong in (-1, float("nan"), "0.2", None, True):
            with pytest.raises(InvalidArgumentError, match="deadline"):
                kit.deadline(wrong)  # type: ignore[arg-type]
            if wrong is not None:
                with pytest.raises(InvalidArgumentError, match="deadline"):
                    shardkit.connect(two(1, 2), deadline=wrong)


async def test_of_two_tasks_each_has_its_own_over_one_connection(own_server: LocalServer) -> None:
    release = threading.Event()

    def late(args: list[bytes]) -> bytes:
        release.wait(10)
        return bulk(b"v")

    with scripted(GET=late) as server:
        async with opened("awaiting", two(server.port, own_server.port)) as face:
            await face.send(on(0, "PING"))

            async def hasty() -> ShardFailure:
                with face.kit.deadline(0.1):
                    [failure] = await face.send(on(0, "GET"))
                release.set()
                assert isinstance(failure, ShardFailure)
                return failure

            failure, patient = await asyncio.gather(hasty(), face.send(on(0, "GET")))
            assert failure.maybe_executed
            assert patient == [b"v"]
            assert server.connections == 1


async def test_asyncio_timeout_goes_on_working(own_server: LocalServer) -> None:
    with scripted(GET=b"") as silent:
        async with opened("awaiting", two(silent.port, own_server.port)) as face:
            await face.send(on(0, "PING"))
            with at_most(0.1), pytest.raises(asyncio.TimeoutError):
                async with asyncio.timeout(0.1), face.kit.deadline(PATIENT):
                    await face.send(on(0, "GET"))
            assert await face.send(on(1, "INCR")) == [1]


async def test_a_callers_deadline_is_not_an_outage(own_server: LocalServer) -> None:
    answers = iter([b"", b""])

    def first_never(args: list[bytes]) -> bytes:
        return next(answers, b"*1\r\n$-1\r\n")

    with (
        scripted(MGET=first_never) as config,
        shardkit.connect(f"redis://127.0.0.1:{config.port}") as kit,
    ):
        for _ in range(2):
            with kit.deadline(0.1), pytest.raises(ConfigServerError, match="deadline"):
                kit.component("data")


# ---- redis-py's own calls keep to the limits of replies
