"""What a pool owes to whoever holds it: redis-py's contract, on both faces."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio as aioredis
from redis.exceptions import MaxConnectionsError

from shardkit.connections.connector import Connector
from shardkit.local import LocalServer


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer() as running:
        yield running


@pytest.fixture(params=["blocking", "awaiting"])
def face(request: pytest.FixtureRequest, server: LocalServer) -> Pooled:
    return Pooled(request.param, server.port)


class Pooled:
    """Clients of either face, whose methods are awaited."""

    def __init__(self, face: str, port: int) -> None:
        self.blocks = face == "blocking"
        self.port = port

    def client(self, **fields: Any) -> Any:
        build = Connector().blocking if self.blocks else Connector().awaiting
        return build({"host": "127.0.0.1", "port": self.port, **fields})

    def pool(self, **fields: Any) -> Any:
        return self.client(**fields).connection_pool

    @staticmethod
    async def of(value: Any) -> Any:
        return await value if inspect.isawaitable(value) else value

    async def ask(self, connection: Any, *command: Any) -> Any:
        await self.of(connection.send_command(*command))
        return await self.of(connection.read_response())


async def eventually(done: Callable[[], bool]) -> bool:
    for _ in range(2000):
        if done():
            return True
        await asyncio.sleep(0.005)
    return False


def counts(pool: Any) -> list[int]:
    """How many connections are idle, and in use."""
    return [count for count, _ in pool.get_connection_count()]


async def test_what_is_released_twice_is_lent_once(face: Pooled) -> None:
    pool = face.pool()
    connection = await face.of(pool.get_connection())
    for _ in range(2):
        await face.of(pool.release(connection))
    first, second = [await face.of(pool.get_connection()) for _ in range(2)]
    assert first is not second
    await face.of(pool.disconnect())


async def test_a_release_without_waiting_counts_once_as_well(server: LocalServer) -> None:
    pool = Pooled("awaiting", server.port).pool()
    connection = await pool.get_connection()
    pool.release_nowait(connection)
    pool.release_nowait(connection)
    assert await pool.get_connection() is not await pool.get_connection()
    await pool.disconnect()


async def test_the_connection_of_another_pool_is_not_taken_over(face: Pooled) -> None:
    one, other = face.pool(db=1), face.pool(db=2)
    foreign = await face.of(one.get_connection())
    await face.of(other.release(foreign))
    assert (counts(one), counts(other)) == ([0, 1], [0, 0])
    assert await face.ask(await face.of(other.get_connection()), "CLIENT", "INFO")
    assert await face.ask(foreign, "PING") == b"PONG"
    await face.of(one.release(foreign))
    assert await face.of(one.get_connection()) is foreign
    for pool in (one, other):
        await face.of(pool.disconnect())


async def test_a_reset_forgets_every_connection_and_takes_new_arguments(face: Pooled) -> None:
    client = face.client(db=0)
    pool = client.connection_pool
    await face.of(client.ping())
    held = await face.of(pool.get_connection())
    pool.connection_kwargs["db"] = 5
    pool.reset()
    await face.of(pool.release(held))  # it was forgotten
    assert counts(pool) == [0, 0]
    await face.of(client.set("here", 5))
    with redis.Redis(port=face.port, db=5) as asking:
        assert asking.delete("here") == 1
    await face.of(held.disconnect())
    await face.of(client.close() if face.blocks else client.aclose())
    await face.of(pool.disconnect())
    assert counts(pool)[1] == 0


async def test_the_limit_of_connections_holds_also_after_a_reset(face: Pooled) -> None:
    pool = face.pool(max_connections=2)
    for _ in range(2):
        lent = [await face.of(pool.get_connection()) for _ in range(2)]
        with pytest.raises(MaxConnectionsError, match=r"2 are in use.*max_connections"):
            await face.of(pool.get_connection())
        if not face.blocks:
            assert not pool.can_get_connection()
        await face.of(pool.disconnect())
        pool.reset()
    lent = [await face.of(pool.get_connection()) for _ in range(2)]
    await face.of(lent[0].disconnect())  # a broken one that comes back leaves room
    await face.of(pool.release(lent[0]))
    if not face.blocks:
        assert pool.can_get_connection()
    lent[0] = await face.of(pool.get_connection())
    await face.of(pool.disconnect())


async def test_idle_connections_are_counted_as_idle(face: Pooled) -> None:
    client = face.client()
    pool = client.connection_pool
    await face.of(client.ping())
    assert counts(pool) == [1, 0]
    held = await face.of(pool.get_connection())
    assert counts(pool) == [0, 1]
    await face.of(pool.release(held))
    assert counts(pool) == [1, 0]
    await face.of(pool.disconnect())


async def test_disconnecting_spares_those_in_use_if_so_asked(face: Pooled) -> None:
    pool = face.pool()
    held, idle = [await face.of(pool.get_connection()) for _ in range(2)]
    await face.of(pool.release(idle))
    await face.of(pool.disconnect(inuse_connections=False))
    assert (held.is_connected, idle.is_connected) == (True, False)
    assert await face.ask(held, "PING") == b"PONG"
    await face.of(pool.disconnect())
    await face.of(pool.release(held))
    again = await face.of(pool.get_connection())
    assert await face.ask(again, "PING") == b"PONG"  # it is still a pool
    await face.of(pool.disconnect())


async def test_what_could_not_connect_takes_no_room(face: Pooled) -> None:
    client = face.client(port=1, max_connections=1)
    for _ in range(3):
        with pytest.raises(redis.ConnectionError, match="onnect"):
            await face.of(client.ping())
    assert counts(client.connection_pool)[1] == 0


async def test_a_pool_has_the_arguments_that_a_plain_client_has(face: Pooled) -> None:
    plain = redis.Redis() if face.blocks else aioredis.Redis()
    theirs = plain.connection_pool.connection_kwargs
    names = {
        *("db", "username", "password", "socket_timeout", "socket_connect_timeout", "host", "port"),
        *("encoding", "encoding_errors", "decode_responses", "client_name", "retry", "protocol"),
        *("health_check_interval", "socket_keepalive"),
    }
    assert names <= face.pool().connection_kwargs.keys()
    ours = face.pool().connection_kwargs
    for name in ("db", "username", "password", "encoding", "decode_responses", "client_name"):
        assert ours[name] == theirs[name]
    client = face.client(db=3)
    assert client.get_connection_kwargs()["db"] == 3


async def test_cancelled_tasks_leave_their_connections_in_the_pool(server: LocalServer) -> None:
    client = Pooled("awaiting", server.port).client(max_connections=3)
    for _ in range(5):
        tasks = [asyncio.create_task(client.blpop("nothing", 30)) for _ in range(3)]
        assert await eventually(lambda: counts(client.connection_pool)[1] == 3)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert await client.ping()
    await client.aclose()
    await client.connection_pool.disconnect()


class Interrupted(BaseException):
    """What a signal handler raises."""


def test_an_interrupt_between_lending_and_use_costs_no_room(server: LocalServer) -> None:
    """The interrupt comes in the look whether the connection is still good."""
    client = Pooled("blocking", server.port).client(max_connections=1)
    client.ping()
    pool = client.connection_pool
    [idle] = pool._get_free_connections()

    def interrupt() -> bool:
        raise Interrupted

    idle.is_reusable = interrupt
    with pytest.raises(Interrupted):
        client.ping()
    assert counts(pool) == [0, 0]
    assert client.ping()
    pool.disconnect()


def test_a_forked_child_has_connections_of_its_own_though_a_thread_held_the_lock(
    server: LocalServer,
) -> None:
    pool = Pooled("blocking", server.port).pool()
    held, idle = pool.get_connection(), pool.get_connection()
    pool.release(idle)
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with pool._lock:
            entered.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            pool.release(held)  # the parent's
            own = pool.get_connection()
            own.send_command("PING")
            good = own.read_response() == b"PONG" and own not in (held, idle)
            code = 0 if good and counts(pool) == [0, 1] else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
    held.send_command("PING")
    assert held.read_response() == b"PONG"
    pool.disconnect()
