"""What a pool owes to whoever holds it: redis-py's contract, on both faces."""

from __future__ import annotations

import asyncio
import itertools
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio
import redis
from arranged import exit_code, forked
from faces import PATIENCE
from link_helpers import alarms_raise, eventually, of
from redis.exceptions import MaxConnectionsError, TimeoutError as RedisTimeoutError

from shardkit import Entry
from shardkit.errors import (
    ClosedError,
    DeadlineExceeded,
    InvalidEntryError,
    OverloadError,
)
from shardkit.local import LocalServer
from shardkit.network.connections import Connector, pool as pool_module
from shardkit.network.connections.policy import CallPolicy
from shardkit.network.connections.private_pool import AsyncPrivatePool, PrivatePool
from shardkit.operations.deadlines import Deadline, within

KINDS = ("own", "shared", "private")
BLOCKING, AWAITING = (
    pytest.mark.parametrize("face", [(face, kind) for kind in KINDS], indirect=True, ids="-".join)
    for face in ("blocking", "awaiting")
)


@pytest_asyncio.fixture(params=itertools.product(("blocking", "awaiting"), KINDS), ids="-".join)
async def face(request: pytest.FixtureRequest, server: LocalServer) -> AsyncIterator[Pooled]:
    found = Pooled(server.port, *request.param)
    yield found
    for pool in found.pools:
        await of(pool.disconnect())


class Pooled:
    """Clients of either face, whose methods are awaited.

    Their pools are a kit's own, or such as a kit gives to others: a shared one, or a private one.
    """

    def __init__(self, port: int, face: str, kind: str = "own") -> None:
        self.blocks = face == "blocking"
        self.port = port
        self.kind = kind
        self.owners: list[Any] = []  # the kits' own pools, whose connections others share
        self.pools: list[Any] = []  # these and those that others were given

    def client(self, **fields: Any) -> Any:
        build = Connector().blocking if self.blocks else Connector().awaiting
        own: Any = build({"host": "127.0.0.1", "port": self.port, **fields})
        self.owners.append(own.connection_pool)
        self.pools.append(own.connection_pool)
        if self.kind == "own":
            return own
        pool = self.private(own) if self.kind == "private" else own.connection_pool.share()
        self.pools.insert(0, pool)
        return type(own)(connection_pool=pool)

    def private(self, own: Any) -> Any:
        """A private pool of an entry that does not change."""
        if self.blocks:
            return PrivatePool(lambda anew: own, own)

        async def find(anew: bool) -> Any:
            return own

        return AsyncPrivatePool(find, own)

    def pool(self, **fields: Any) -> Any:
        return self.client(**fields).connection_pool

    async def ask(self, connection: Any, *command: Any) -> Any:
        await of(connection.send_command(*command))
        return await of(connection.read_response())


def line(connection: Any) -> Any:
    """What connects it, by whatever object."""
    return getattr(connection, "transport", None) or connection._sock


def counts(pool: Any) -> list[int]:
    """How many connections are idle, and in use."""
    return [count for count, _ in pool.get_connection_count()]


async def test_what_is_released_twice_is_lent_once(face: Pooled) -> None:
    pool = face.pool()
    connection = await of(pool.get_connection())
    await of(pool.release(connection))
    with pytest.raises(redis.ConnectionError, match="release each once"):
        await of(pool.release(connection))
    first, second = [await of(pool.get_connection()) for _ in range(2)]
    assert first is not second


async def test_the_limit_of_connections_holds_also_after_a_reset(face: Pooled) -> None:
    pool = face.pool(max_connections=2)
    for _ in range(2):
        lent = [await of(pool.get_connection()) for _ in range(2)]
        with pytest.raises(MaxConnectionsError, match=r"2 are in use.*max_connections"):
            await of(pool.get_connection())
        if not face.blocks:
            assert not pool.can_get_connection()
        await of(pool.disconnect())
        pool.reset()
    lent = [await of(pool.get_connection()) for _ in range(2)]
    await of(lent[0].disconnect())  # a broken one that comes back leaves room
    await of(pool.release(lent[0]))
    if not face.blocks:
        assert pool.can_get_connection()
    lent[0] = await of(pool.get_connection())
    await of(pool.disconnect())


async def test_a_connection_that_was_never_connected_has_no_reply(face: Pooled) -> None:
    connection = face.pool(protocol=3).make_connection()
    with pytest.raises(redis.ConnectionError, match="closed"):
        await of(connection.read_response())


@BLOCKING
def test_what_sent_nothing_and_what_is_not_connected_have_no_replies(face: Pooled) -> None:
    pool = face.pool()
    connection = pool.get_connection()
    assert connection.pack_commands([]) == []
    assert connection.due == 0  # else its release would close it
    connection.disconnect()
    with pytest.raises(redis.ConnectionError, match=r"[Cc]losed"):
        connection.read_response()
    pool.release(connection)


@AWAITING
async def test_cancelled_tasks_leave_their_connections_in_the_pool(face: Pooled) -> None:
    """Wherever a call is cancelled, it ends, and leaves its room to the next."""
    client = face.client(max_connections=1)
    for turns in range(40):
        if turns % 2:
            await client.connection_pool.disconnect()  # the next has to connect
        task = asyncio.create_task(client.blpop("nothing", 60))
        for _ in range(turns // 2):
            await asyncio.sleep(0)
        task.cancel()
        ended, _ = await asyncio.wait([task], timeout=20)
        assert ended, f"the call goes on, which was cancelled after {turns // 2} turns"
        assert task.cancelled()
    assert await client.ping()
    await client.aclose()


class Interrupted(BaseException):
    """What a signal handler raises."""


@BLOCKING
@pytest.mark.parametrize("error", [Interrupted("of my own"), TimeoutError("of my own")], ids=repr)
def test_a_handlers_error_costs_no_room(face: Pooled, error: BaseException) -> None:
    """The interrupt, or an error of a handler, comes in the check of an idle connection."""
    client = face.client(max_connections=1)
    client.ping()
    pool = client.connection_pool
    [idle] = pool._get_free_connections()

    def look() -> bool:
        signal.raise_signal(signal.SIGALRM)
        return True

    idle.is_reusable = look
    with alarms_raise(lambda: error), pytest.raises(type(error), match=r"^of my own$"):
        client.ping()
    assert counts(pool) == [0, 0]
    assert client.ping()


@BLOCKING
def test_a_fork_under_a_lock_gets_its_own_connections(face: Pooled) -> None:
    pool = face.pool()
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

    def use() -> None:
        pool.release(held)  # the parent's
        own = pool.get_connection()
        own.send_command("PING")
        assert own.read_response() == b"PONG"
        assert own not in (held, idle)
        assert counts(pool) == [0, 1]

    code = exit_code(forked(use))
    leave.set()
    thread.join()
    assert code == 0
    held.send_command("PING")
    assert held.read_response() == b"PONG"


async def test_an_awaiting_pool_closes_its_long_idle_connections(server: LocalServer) -> None:
    pool = Pooled(server.port, "awaiting").pool()
    lent = [await pool.get_connection() for _ in range(4)]
    lines = list(map(line, lent))
    for connection in lent:
        await pool.release(connection)
    for connection in pool.connections.idle:
        connection.idle_since -= pool_module.IDLE_SECONDS + 1
    for _ in range(5):
        await pool.release(await pool.get_connection())
    assert counts(pool) == [1, 0]
    await asyncio.sleep(0)
    assert [each.is_closing() for each in lines] == [True, True, True, False]
    await pool.disconnect()


TOO_MANY_FILES = """
import importlib.readers, os, resource, shardkit
from shardkit.routing.command_keys import reads_only
reads_only(("GET", "k"))  # reads its file
# Looking a name up takes descriptors too, and fails anyhow. Who has a name shares no connection.
shards = ", ".join("{host: 127.0.0.1, port: %d, client_name: n%%d}" %% n for n in range(16))
where = shardkit.ShardMap.parse("components: {c: {shards: [%%s]}}" %% shards)
other = shardkit.ShardMap.parse("components: {c: {shards: [{port: %d}]}}")
with shardkit.connect(other) as kit:
    kit.strings("s", component="c").mget(["k"])  # imports what it needs
with shardkit.connect(where) as kit:
    strings = kit.strings("s", component="c")
    there = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (there + 3, there + 3))
    try:
        strings.mget([f"k{n}" for n in range(100)])
    except shardkit.ShardErrors as error:
        print(error)
"""


def test_too_many_open_files_names_the_limit_and_few_shards(server: LocalServer) -> None:
    program = [sys.executable, "-c", TOO_MANY_FILES % (server.port, server.port)]
    found = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    assert "as many files and connections open as it may; raise its limit (ulimit -n)" in found
    assert re.search(r"\(c:\d+, .*, and \d more\)", found)
    assert found.count("ulimit -n") == 5


async def test_keepalive_options_of_an_entry_reach_the_socket(face: Pooled) -> None:
    fields = Entry({"socket_keepalive_options": {"TCP_KEEPIDLE": 61, "TCP_KEEPCNT": 4}}).fields
    pool = face.pool(**fields)
    connection = await of(pool.get_connection())
    sock = connection._sock if face.blocks else connection.transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 61
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 4
    await of(pool.disconnect())
    for wrong in ({"TCP_NODELAY": 1}, {"TCP_KEEPIDLE": 0}, {"TCP_KEEPIDLE": True}):
        with pytest.raises(InvalidEntryError, match="socket_keepalive_options"):
            Entry({"socket_keepalive_options": wrong})


def taking(face: Pooled, pool: Any) -> asyncio.Task[Any]:
    """Begin to take a connection, which may have to wait."""
    if face.blocks:
        return asyncio.ensure_future(asyncio.to_thread(pool.get_connection))  # type: ignore[return-value]
    return asyncio.ensure_future(pool.get_connection())


async def waits(face: Pooled, pool: Any) -> bool:
    return await eventually(lambda: pool.pending() > 0)


async def test_who_finds_a_blocking_pool_used_up_gets_what_comes_back(face: Pooled) -> None:
    pool = face.pool(blocking_pool={"size": 2, "timeout": None})
    held = [await of(pool.get_connection()) for _ in range(2)]
    lines = list(map(line, held))
    for n in (0, 1):
        waiting = taking(face, pool)
        assert await waits(face, pool)
        await of(pool.release(held[n]))
        held[n] = await waiting
    shared, separated = pool.share(), taking(face, pool)  # who was given it waits as well
    assert await waits(face, shared)
    await of(shared.release(held[1]))
    held[1] = await separated
    assert list(map(line, held)) == lines
    for connection in held:
        await of(pool.release(connection))


async def test_who_waits_for_a_connection_in_vain_is_told_the_field(face: Pooled) -> None:
    pool = face.pool(blocking_pool={"size": 1, "timeout": 0.02})
    held = await of(pool.get_connection())
    with pytest.raises(MaxConnectionsError, match="none was released within"):
        await of(pool.get_connection())
    with (
        within(Deadline(time.monotonic() + 0.01, 0.01)),
        pytest.raises(DeadlineExceeded, match=r"the deadline of 0.01 s has passed"),
    ):
        await of(pool.get_connection())
    known = line(held)
    await of(pool.release(held))
    assert line(await of(pool.get_connection())) is known
    assert face.pool(blocking_pool={}).max_connections == 50
    assert face.pool(blocking_pool={}).wait_seconds == 20


async def test_more_callers_than_may_wait_for_a_server_are_refused_at_once(face: Pooled) -> None:
    policy = CallPolicy(max_waiting=3)
    pool = face.pool(blocking_pool={"size": 2, "timeout": None}, policy=policy)
    held = [await of(pool.get_connection()) for _ in range(2)]
    waiting = taking(face, pool)
    assert await waits(face, pool)
    with pytest.raises(OverloadError, match="3 commands are waiting for the server already"):
        await of(pool.get_connection())
    known = line(held[0])
    await of(pool.release(held[0]))
    held[0] = await waiting
    assert line(held[0]) is known
    for connection in held:
        await of(pool.release(connection))
    for _ in range(3):  # one after the other is no crowd
        await of(pool.release(await of(pool.get_connection())))
    await of(pool.disconnect())
    unlimited = face.pool(policy=policy)  # one connection each: no more of them than may wait
    held = [await of(unlimited.get_connection()) for _ in range(3)]
    with pytest.raises(OverloadError, match="3 commands are waiting for the server already"):
        await of(unlimited.get_connection())
    for connection in held:
        await of(unlimited.release(connection))


async def test_waiters_learn_of_failed_connections_and_closed_kits(face: Pooled) -> None:
    pool = face.pool(blocking_pool={"size": 1, "timeout": None})
    held = await of(pool.get_connection())
    waiting = taking(face, pool)
    assert await waits(face, pool)
    await of(held.disconnect())
    await of(pool.release(held))  # broken: another one is made
    other = await waiting
    assert await face.ask(other, "PING") == b"PONG"
    waiting = taking(face, pool)
    assert await waits(face, pool)
    await of(pool.close_for_good())
    with pytest.raises(ClosedError, match=r"kit is closed; open a new one with shardkit\."):
        await waiting


async def test_what_connects_while_its_pool_is_disconnected_takes_no_room(face: Pooled) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pool = face.pool(port=silent.getsockname()[1], socket_timeout=0.5)
        connecting = taking(face, pool)
        assert await eventually(lambda: counts(pool) == [0, 1])
        await of(pool.disconnect())
        with pytest.raises(redis.RedisError) as lost:
            await connecting
        assert not lost.value.maybe_executed
        assert counts(face.owners[0]) == counts(pool) == [0, 0]


@pytest.mark.parametrize("noticed", [False, True], ids=["its turn has come", "it waits"])
async def test_a_cancelled_waiter_passes_its_turn_on(server: LocalServer, noticed: bool) -> None:
    face = Pooled(server.port, "awaiting")
    pool = face.pool(blocking_pool={"size": 1, "timeout": None})
    held = await pool.get_connection()
    first, second = taking(face, pool), taking(face, pool)
    await asyncio.sleep(0)
    known = line(held)
    steps = [lambda: pool.release_nowait(held), first.cancel]
    for step in reversed(steps) if noticed else steps:
        step()
    assert line(await second) is known
    assert first.cancelled()
    assert pool.pending() == 0
    await pool.disconnect()


# The alarm may go off in a finalizer.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@BLOCKING
def test_an_interrupted_waiter_passes_its_turn_on(face: Pooled) -> None:
    """An alarm goes off while it waits, at about the time at which the connection is released."""
    pool = face.pool(blocking_pool={"size": 1, "timeout": None})
    with alarms_raise(Interrupted) as alarm:
        for n in range(40):
            held = [pool.get_connection()]
            releasing = threading.Timer(0.01, lambda held=held: pool.release(held.pop()))
            releasing.start()
            with suppress(Interrupted):
                alarm(0.009 + 0.0001 * n)
                pool.release(pool.get_connection())
                alarm(0)
            releasing.join()
            with within(Deadline(time.monotonic() + 5, 5)):
                pool.release(pool.get_connection())
            assert pool.pending() == 0


@BLOCKING
def test_no_release_is_missed_before_a_wait(face: Pooled, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = face.pool(blocking_pool={"size": 1, "timeout": None})
    held = pool.get_connection()
    known = line(held)

    def lend_none() -> None:
        monkeypatch.undo()
        pool.release(held)

    monkeypatch.setattr(pool, "_lend_new", lend_none)
    assert line(pool.get_connection()) is known


async def test_an_entry_can_end_blocking_commands_early(face: Pooled) -> None:
    client = face.client(socket_timeout=0.1 * PATIENCE, extend_blocking_timeout=False)
    for seconds in (0, 9):
        with pytest.raises(RedisTimeoutError, match="Timeout reading from"):
            await of(client.blpop("none", timeout=seconds))
    await of(client.rpush("some", "v"))
    assert await of(client.blpop("some", timeout=0)) == (b"some", b"v")
