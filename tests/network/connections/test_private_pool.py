"""Clients: what their holder does is theirs, and private ones go where their entry goes."""

from __future__ import annotations

import asyncio
import copy
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import redis
import yaml
from arranged import ask, exit_code, forked, map_of
from faces import Face, faced, own_client
from link_helpers import FACES, clients_of, eventually, in_threads, of, opened, paused
from redis.backoff import NoBackoff

import shardkit
from shardkit import ClosedError, ConfigError
from shardkit.errors import DeadlineExceeded
from shardkit.local import LocalCluster, LocalServer
from shardkit.network.connections import Connector
from shardkit.network.connections.private_pool import PrivatePool


class Moving:
    """A kit of either face whose entry the test changes."""

    def __init__(self, kit: Any, path: Path) -> None:
        self.kit = kit
        self.path = path
        self.blocks = isinstance(kit, shardkit.ShardKit)
        self.held: list[Any] = []  # until the kit is closed

    def write(self, server: Any, **fields: Any) -> None:
        entry = {"host": "127.0.0.1", "port": server.port, **fields}
        other = self.path.with_suffix(".new")
        other.write_text(yaml.safe_dump({"components": {"jobs": {"entry": entry}}}))
        other.replace(self.path)

    def move(self, server: Any, **fields: Any) -> None:
        self.write(server, **fields)
        if self.kit is not None:
            self.kit.topology.expire()

    async def client(self, **options: Any) -> Any:
        self.held.append(client := await of(self.kit.client("jobs", **options)))
        return client

    def start(self, call: Callable[..., Any], *args: Any) -> asyncio.Task[Any]:
        """Begin a call that will take a while."""
        if self.blocks:
            return asyncio.ensure_future(asyncio.to_thread(call, *args))  # type: ignore[return-value]
        return asyncio.ensure_future(call(*args))


@pytest_asyncio.fixture(params=FACES)
async def moving(
    request: pytest.FixtureRequest, tmp_path: Path, here: LocalServer, there: LocalServer
) -> AsyncIterator[Moving]:
    for server in (here, there):
        ask(server, "flushall")
    found = Moving(None, tmp_path / "map.yaml")
    found.move(here)
    async with opened(request.param, found.path) as face:
        found.kit, found.blocks = face.kit, face.blocks
        yield found
        await found.kit.aclose()


def blocked(server: LocalServer, command: str) -> bool:
    return any(found["cmd"] == command for found in ask(server, "client_list"))


async def test_it_follows_its_entry(moving: Moving, here: LocalServer, there: LocalServer) -> None:
    client = await moving.client(private=True)
    await of(client.set("k", 1))
    moving.move(there)
    with there.client() as asking:
        before = asking.info("stats")["total_connections_received"]
        for n in range(200):
            await of(client.set("k", n))
        assert asking.get("k") in ("199", b"199")
        assert asking.info("stats")["total_connections_received"] == before + 1
    assert await eventually(lambda: clients_of(here) == 0)
    moving.move(here)
    assert await of(client.get("k")) == b"1"
    assert await eventually(lambda: clients_of(there) == 0)


async def test_the_holders_arguments_outlive_a_move(moving: Moving, there: LocalServer) -> None:
    client = await moving.client(private=True)
    client.connection_pool.connection_kwargs["socket_timeout"] = 415
    client.connection_pool.connection_kwargs.update(client_name="queue")
    moving.move(there)
    assert await of(client.client_getname()) in (b"queue", "queue")
    assert client.connection_pool.connection_kwargs["socket_timeout"] == 415
    assert client.connection_pool.connection_kwargs["port"] == there.port


async def test_an_unused_private_client_leaves_nothing(moving: Moving, here: LocalServer) -> None:
    client = await moving.client(private=True)
    await of(client.ping())
    moving.held.clear()
    del client

    def is_gone() -> bool:
        gc.collect()
        return clients_of(here) == 0

    assert await eventually(is_gone)


def then_moving(
    plain: Any, moving: Moving, client: Any, there: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """A method after whose next call the entry moves, and another user of the client knows."""

    def call(*args: Any) -> Any:
        found = plain(*args)
        monkeypatch.undo()
        moving.move(there)
        client.ping()
        return found

    async def acall(*args: Any) -> Any:
        found = await plain(*args)
        monkeypatch.undo()
        moving.move(there)
        await client.ping()
        return found

    return call if moving.blocks else acall


@pytest.mark.parametrize("when", ["get_connection", "check_health"])
async def test_who_begins_to_wait_while_the_entry_moves_waits_at_the_new_place(
    moving: Moving,
    here: LocalServer,
    there: LocalServer,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    """The entry moves when a connection was just lent, or just before a command is sent on it."""
    client = await moving.client(private=True)
    await of(client.ping())
    pool = client.connection_pool
    hooked = pool if when == "get_connection" else pool.connections.idle[0]
    plain = getattr(hooked, when)
    if when == "check_health":
        hooked.health_check_interval = 60

    monkeypatch.setattr(hooked, when, then_moving(plain, moving, client, there, monkeypatch))
    waiting = moving.start(client.blpop, ["jobs"], 60)
    assert await eventually(lambda: blocked(there, "blpop"))
    await of(client.rpush("jobs", "one"))
    assert await waiting == (b"jobs", b"one")
    assert await eventually(lambda: clients_of(here) == 0)


async def test_a_subscriber_moves(moving: Moving, here: LocalServer, there: LocalServer) -> None:
    client = await moving.client(private=True)
    listener = client.pubsub()
    await of(listener.subscribe("news"))
    assert (await of(listener.get_message(timeout=10)))["type"] == "subscribe"
    moving.move(there)
    await of(client.ping())
    assert await eventually(lambda: clients_of(here) == 0)
    found = []
    for _ in range(10):
        with suppress(redis.ConnectionError):
            message = await of(listener.get_message(timeout=0.2))
            found.append(message and message["type"])
        await of(client.publish("news", "moved"))
        if "message" in found:
            break
    assert "message" in found
    await of(listener.close() if moving.blocks else listener.aclose())


async def test_idle_kits_move_waits(moving: Moving, here: LocalServer, there: LocalServer) -> None:
    """Nobody calls after the change, and the topology's own thread reads it."""
    shared, client = await moving.client(), await moving.client(private=True)
    await of(shared.ping())
    waiting = moving.start(client.blpop, ["jobs"], 60)
    assert await eventually(lambda: blocked(here, "blpop"))
    moving.write(there)
    with pytest.raises(redis.ConnectionError, match="Connection closed by server"):
        await waiting
    assert await eventually(lambda: clients_of(here) == 0)


async def test_a_transaction_stays(moving: Moving, here: LocalServer, there: LocalServer) -> None:
    client = await moving.client(private=True)
    pipeline = client.pipeline()
    await of(pipeline.watch("k"))
    moving.move(there)
    await of(client.ping())
    pipeline.multi()
    pipeline.set("k", "old place")
    assert await of(pipeline.execute()) == [True]
    assert ask(here, "get", "k") in ("old place", b"old place")
    assert await eventually(lambda: clients_of(here) == 0)


@contextmanager
def demoted(server: LocalServer, master: LocalServer) -> Iterator[None]:
    """Make a server a replica of another one inside."""
    with server.client() as client:
        client.replicaof("127.0.0.1", str(master.port))
        try:
            yield
        finally:
            client.replicaof("NO", "ONE")


async def test_waits_end_at_demotion(moving: Moving, here: LocalServer, there: LocalServer) -> None:
    client = await moving.client(private=True)
    waiting = moving.start(client.blpop, ["jobs"], 60)
    assert await eventually(lambda: blocked(here, "blpop"))
    with demoted(here, there):
        moving.write(there)
        with pytest.raises(
            redis.ConnectionError, match="is a replica now, and the entry names another"
        ):
            await waiting
        await of(client.rpush("jobs", "one"))
        assert await of(client.blpop(["jobs"], 60)) == (b"jobs", b"one")


async def test_refused_writes_wait(moving: Moving, here: LocalServer, there: LocalServer) -> None:
    client = await moving.client(private=True)
    await of(client.ping())
    with (
        demoted(here, there),
        moving.kit.deadline(0.1),
        pytest.raises(DeadlineExceeded, match=r"the deadline of 0\.1 s has passed"),
    ):
        await of(client.set("k", 1))


def test_an_older_entry_does_not_switch_back(here: LocalServer, there: LocalServer) -> None:
    first, second = (
        Connector().blocking({"host": "127.0.0.1", "port": server.port}) for server in (here, there)
    )
    found = [first]
    client = redis.Redis(connection_pool=PrivatePool(lambda anew: found[-1], first))
    assert client.info("server")["tcp_port"] == here.port
    first.connection_pool.drain()  # its entry has changed
    found.append(second)
    assert client.info("server")["tcp_port"] == there.port
    found.append(first)  # as of a thread that looked the entry up before it changed
    assert client.info("server")["tcp_port"] == there.port
    client.connection_pool.disconnect()


async def test_what_its_holder_sets_is_set_in_the_pool_of_the_current_entry(moving: Moving) -> None:
    client = await moving.client(private=True)
    pool = client.connection_pool
    pool.max_connections = 1
    held = await of(pool.get_connection())
    with pytest.raises(redis.exceptions.MaxConnectionsError, match="1 are in use"):
        await of(client.ping())
    await of(pool.release(held))
    assert copy.copy(pool).max_connections == 1
    assert repr(pool).startswith(f"<{type(pool).__name__} 127.0.0.1:")


async def test_a_move_to_a_cluster_says_what_to_do(moving: Moving, cluster: LocalCluster) -> None:
    client = await moving.client(private=True)
    moving.move(cluster.nodes[0], cluster=True)
    with pytest.raises(ConfigError, match="a cluster now; ask the kit for a new client"):
        await of(client.ping())
    anew = await moving.client(private=True)
    assert await of(anew.set("k", 1))
    await moving.kit.aclose()


def test_threads_survive_many_moves(tmp_path: Path, here: LocalServer, there: LocalServer) -> None:
    """Each thread makes its calls of a round, at whose start the entry moves under them."""
    for server in (here, there):
        ask(server, "flushall")
    found = Moving(None, tmp_path / "map.yaml")
    found.move(here)
    count, rounds = 4, 20
    with shardkit.connect(found.path) as kit:
        found.kit = kit
        client = kit.client("jobs", private=True)
        barrier = threading.Barrier(count + 1, timeout=60)

        def work(n: int) -> None:
            for turn in range(rounds):
                barrier.wait()
                if n == count:
                    found.move((there, here)[turn % 2])
                    client.ping()
                else:
                    for _ in range(15):
                        client.incr("n")

        in_threads(count + 1, work)
        kit.topology.expire()  # what was read last may be older than the last move
        client.ping()
        with here.client() as one, there.client() as other:
            counted = [int(each.get("n") or 0) for each in (one, other)]
        assert sum(counted) == count * rounds * 15
        assert asyncio.run(eventually(lambda: clients_of(there) == 0))


def test_private_clients_reconnect_after_a_fork(
    kind: str, tmp_path: Path, here: LocalServer
) -> None:
    """Though a thread of the parent was switching to another address, and held the lock."""
    moving = Moving(None, tmp_path / "map.yaml")
    moving.write(here)
    with faced(kind, moving.path) as face:  # type: ignore[arg-type]
        client = face.run(face.kit.client("jobs", private=True))
        face.run(client.set("k", 1))
        parents = face.run(client.client_id())

        async def differs() -> bool:
            return await of(client.get("k")) == b"1" and await of(client.client_id()) != parents

        def use() -> None:
            assert asyncio.run(differs())

        with nullcontext() if face.runner else client.connection_pool._switch:
            child = forked(use)
        assert exit_code(child) == 0
        assert face.run(client.client_id()) == parents


def both(face: Face) -> tuple[Any, Any]:
    """The client that is handed out, and the kit's own pool."""

    async def own() -> Any:
        return own_client(face.kit, "one")

    client = face.run(face.kit.client("one"))
    kits = face.run(own()) if face.runner else own_client(face.kit, "one")
    return client, kits.connection_pool


def line(face: Face, connection: Any) -> Any:
    """What the server calls its connection, by whatever object."""
    face.run(connection.send_command("CLIENT", "ID"))
    return face.run(connection.read_response())


def lines(face: Face, pool: Any) -> list[Any]:
    return [line(face, connection) for connection in pool.connections.idle]


def write(face: Face) -> None:
    face.run(face.kit.hash("h", component="one").hset("f", "v"))


def settings(pool: Any) -> Any:
    kept = dict(pool.connection_kwargs)
    return kept, pool.max_connections, pool.connection_class, kept["retry"].get_retries()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a database": lambda client: client.connection_pool.connection_kwargs.update(db=3),
    "a timeout": lambda client: client.connection_pool.connection_kwargs.update(socket_timeout=9),
    "a limit": lambda client: setattr(client.connection_pool, "max_connections", 1),
    "a class": lambda client: setattr(
        client.connection_pool,
        "connection_class",
        type("Own", (client.connection_pool.connection_class,), {}),
    ),
    "retries": lambda client: client.set_retry(
        type(client.connection_pool.connection_kwargs["retry"])(NoBackoff(), 7)
    ),
    "reset": lambda client: client.connection_pool.reset(),
    "disconnect": lambda client: client.connection_pool.disconnect(),
    "close": lambda client: (
        client.connection_pool.aclose() if hasattr(client, "aclose") else client.close()
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_holders_changes_do_not_affect_the_kit(face: Face, change: str) -> None:
    client, own = both(face)
    write(face)
    usual = settings(own)
    before = lines(face, own)
    face.run(CHANGES[change](client))
    if change in ("a database", "a timeout", "a class"):  # what is idle stays as it is, as anywhere
        taken = [face.run(client.connection_pool.get_connection()) for _ in range(2)]
        assert line(face, taken[0]) == before[0]
        assert taken[1] not in own.connections.lent
        other = line(face, taken[1])
        for connection in taken:
            face.run(client.connection_pool.release(connection))
        assert lines(face, client.connection_pool) == [other]
    write(face)
    assert settings(own) == usual
    assert lines(face, own) == before  # still there, still open
    face.run(client.ping())
    assert face.run(face.kit.hash("h", component="one").hget("f")) == b"v"


def test_a_call_under_way_goes_on_while_somebody_disconnects_the_shared_pool(face: Face) -> None:
    client, own = both(face)
    under_way = face.run(own.get_connection())
    lent = face.run(client.connection_pool.get_connection())
    face.run(client.connection_pool.disconnect())
    for connection in (under_way, lent):
        assert connection.is_connected
        assert not connection.should_reconnect()
    released = [line(face, lent), line(face, under_way)]
    face.run(client.connection_pool.release(lent))  # goes back to where it came from
    face.run(own.release(under_way))
    assert lines(face, own) == released
    assert not own.connections.lent
    assert client.connection_pool.connections.idle == []


@pytest.mark.parametrize("private", [False, True])
async def test_a_call_under_way_ends_well_when_others_reset_its_pool(
    kind: str, private: bool, here: LocalServer
) -> None:
    async with opened(kind, map_of(one={"entry": {"port": here.port}})) as face:
        client = await of(face.kit.client("one", private=private))
        get = client.get if kind == "awaiting" else partial(asyncio.to_thread, client.get)
        client.connection_pool.reset()
        await of(client.get("missing"))
        with paused(here):
            call = asyncio.ensure_future(get("missing"))
            assert await eventually(lambda: ": 1 in use" in repr(client.connection_pool))
            client.connection_pool.reset()
        assert await call is None
        assert await of(client.get("missing")) is None


def test_a_separated_pool_closes_with_its_kit(face: Face) -> None:
    client, _ = both(face)
    face.run(client.connection_pool.disconnect())
    face.run(client.blpop("none", timeout=0.01))
    held = client.connection_pool.connections.idle[-1]
    face.run(face.kit.aclose() if face.runner else face.kit.close())
    assert not held.is_connected
    with pytest.raises(ClosedError, match=r"kit is closed; open a new one with shardkit\."):
        face.run(client.ping())
    face.run(client.connection_pool.disconnect())  # as a library at its end


def test_a_clusters_client_can_be_closed_by_its_holder(cluster: LocalCluster) -> None:
    for kind in ("blocking", "awaiting"):
        with faced(kind, map_of(one={"entry": cluster.entry.fields})) as face:
            write(face)
            client = face.run(face.kit.client("one"))
            face.run(client.set("k", 1))
            face.run(client.aclose() if face.runner else client.close())
            write(face)
            assert face.run(client.get("k")) == b"1"
