"""A closed kit: every method says so, whatever was looked up or cached before, and in forks."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio

import shardkit
from shardkit import AsyncShardKit, ClosedError, ShardKit, ShardMap
from shardkit.config.store import push
from shardkit.local import LocalServer, LocalServers
from shardkit.network.connections.connection import AsyncTcpConnection, TcpConnection
from shardkit.search.text.stemming import stemmer

FORKING = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer() as running:
        plan = f"components: {{c: {{entry: {{port: {running.port}, db: 1}}}}}}"
        with running.client() as client:
            push(client, ShardMap.parse(plan))
        yield running


@pytest.fixture
def kit(server: LocalServer) -> Iterator[ShardKit]:
    with shardkit.connect(f"redis://127.0.0.1:{server.port}") as opened:
        opened.directory.set("flags", "checkout", {"new": True})
        yield opened


@pytest_asyncio.fixture
async def akit(kit: ShardKit, server: LocalServer) -> AsyncIterator[AsyncShardKit]:
    async with await shardkit.aconnect(f"redis://127.0.0.1:{server.port}") as opened:
        yield opened


def uses(kit: Any, client: Any, private: Any) -> list[Callable[[], Any]]:
    """Everything that would use a server, prepared while the kit was open."""
    directory, router = kit.directory, kit.key_sharded("c")
    words, visitors = kit.hash("h", component="c"), kit.unique_visitors(component="c")
    pipe = client.pipeline().get("k")
    return [
        lambda: directory.get("flags", "checkout", wait=60),
        lambda: directory.set("flags", "checkout", {}),
        lambda: directory.delete("flags", "checkout"),
        lambda: directory.names("flags"),
        lambda: kit.directory.get("flags", "checkout"),
        lambda: kit.component("c"),
        lambda: kit.components(),
        lambda: kit.client("c"),
        lambda: kit.client("c", private=True),
        lambda: client.get("k"),
        lambda: client.blpop("jobs", 1),
        lambda: private.get("k"),
        lambda: pipe.execute(),
        lambda: client.pubsub().subscribe("news"),
        lambda: words.hget("f"),
        lambda: words.hset("f", "v"),
        lambda: visitors.count(),
        lambda: router["k"].get("k"),
        lambda: router.mget(["a", "b"]),
        lambda: router.pipeline().set("a", 1).set("b", 1).execute(),
        lambda: kit.hash("new", component="c").hset("f", "v"),
    ]


def test_a_closed_kit_says_so_in_every_method(kit: ShardKit) -> None:
    client, private = kit.client("c"), kit.client("c", private=True)
    client.get("k"), private.get("k")
    prepared = uses(kit, client, private)
    assert kit.directory.get("flags", "checkout", wait=60) == {"new": True}
    kit.close()
    for use in prepared:
        with pytest.raises(ClosedError, match=r"kit is closed; open a new one with shardkit\."):
            use()


async def test_a_closed_async_kit_says_so_in_every_method(akit: AsyncShardKit) -> None:
    client, private = await akit.client("c"), await akit.client("c", private=True)
    await client.get("k"), await private.get("k")
    prepared = uses(akit, client, private)
    assert await akit.directory.get("flags", "checkout", wait=60) == {"new": True}
    await akit.aclose()
    for use in prepared:
        with pytest.raises(ClosedError, match="the kit is closed; open a new one"):  # noqa: PT012 - some raise at once
            found = use()
            if inspect.isawaitable(found):
                await found


async def test_a_closed_async_kit_is_let_go_at_once_not_when_a_timer_fires(
    server: LocalServer,
) -> None:
    shard_map = ShardMap.parse(f"components: {{c: {{entry: {{port: {server.port}}}}}}}")
    kit = await shardkit.aconnect(shard_map)
    await kit.hash("h", component="c").hset("f", "v")
    left = weakref.ref(kit)
    await kit.aclose()
    del kit
    gc.collect()
    assert left() is None


def connected(client: Any) -> set[str]:
    """The connections to a server, but for one's own."""
    return {each["id"] for each in client.client_list()} - {str(client.client_id())}


def test_a_kit_that_is_closed_during_a_handshake_leaves_no_connection(
    kit: ShardKit, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server.client() as client:
        before = connected(client)
    shake_hands = TcpConnection.on_connect_check_health

    def close_first(self: Any, *args: Any, **kwargs: Any) -> None:
        kit.close()
        shake_hands(self, *args, **kwargs)

    words = kit.hash("h", component="c")
    monkeypatch.setattr(TcpConnection, "on_connect_check_health", close_first)
    with pytest.raises(ClosedError, match=r"kit is closed; open a new one with shardkit\."):
        words.hget("f")
    monkeypatch.undo()
    with server.client() as client:
        deadline = time.monotonic() + 10
        while connected(client) - before and time.monotonic() < deadline:
            time.sleep(0.01)  # until the server has noticed
        assert connected(client) <= before


@pytest.mark.parametrize("through", ["structure", "client"])
async def test_an_async_kit_that_is_closed_during_a_handshake_leaves_no_connection(
    akit: AsyncShardKit,
    kit: ShardKit,
    server: LocalServer,
    monkeypatch: pytest.MonkeyPatch,
    through: str,
) -> None:
    kit.close()
    with server.client() as asking:
        before = connected(asking)
    shake_hands = AsyncTcpConnection.on_connect_check_health

    async def close_first(self: Any, *args: Any, **kwargs: Any) -> None:
        await akit.aclose()
        await shake_hands(self, *args, **kwargs)

    client, words = await akit.client("c"), akit.hash("h", component="c")
    monkeypatch.setattr(AsyncTcpConnection, "on_connect_check_health", close_first)
    with pytest.raises(ClosedError, match=r"kit is closed; open a new one with shardkit\."):
        await (words.hget("f") if through == "structure" else client.get("k"))
    monkeypatch.undo()
    with server.client() as asking:
        for _ in range(1000):
            if connected(asking) <= before:
                return
            await asyncio.sleep(0.001)
        raise AssertionError(asking.client_list())


def test_closing_twice_and_from_several_threads_is_closing_once(kit: ShardKit) -> None:
    kit.client("c").get("k")
    for _ in range(2):
        kit.close()
    with pytest.raises(ClosedError, match=r"kit is closed; open a new one with shardkit\."):
        kit.client("c")


def refused() -> Any:
    """A block that a closed kit ends."""
    return pytest.raises(ClosedError, match=r"kit is closed; open a new one with shardkit\.")


@pytest.mark.parametrize("blocks", [True, False])
async def test_a_client_whose_kit_nobody_has_serves_on_but_follows_no_entry(
    server: LocalServer, blocks: bool
) -> None:
    async def of(value: Any) -> Any:
        return await value if inspect.isawaitable(value) else value

    shard_map = ShardMap.parse(f"components: {{c: {{entry: {{port: {server.port}}}}}}}")
    kit: Any = shardkit.connect(shard_map) if blocks else await shardkit.aconnect(shard_map)
    client = await of(kit.client("c"))
    assert await of(client.set("k", 0))
    left = weakref.ref(kit)
    del kit
    gc.collect()
    assert left() is None
    assert await of(client.set("k", 1))
    with server.client() as asking:
        asking.set("config:fence", "{}")  # its shards move, to where nobody can tell it any more
        await of(client.connection_pool.disconnect())
        with refused():
            await of(client.get("k"))
        asking.delete("config:fence")
        client.connection_pool.drain()  # as if another client were in its place
        assert await of(client.get("k")) == b"1"
        asking.replicaof("127.0.0.1", "1")
        with refused():
            await of(client.set("k", 2))
        asking.replicaof("NO", "ONE")
        asking.delete("k")
    await of(client.close() if blocks else client.aclose())
    del client
    gc.collect()  # a connection that was left open would warn
    with server.client() as asking:
        assert len(asking.client_list()) == 1


# ---- forks while a thread holds a lock


def in_child(work: Callable[[], object]) -> int:
    """Fork, do the work in the child, which a hang would end, and return its exit code."""
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@FORKING
def test_a_child_that_is_forked_while_a_lock_is_held_goes_on(kit: ShardKit) -> None:
    directory = kit.directory
    with directory._lock:
        assert in_child(lambda: directory.get("flags", "checkout", wait=0)) == 0
    with kit.topology._lock:
        assert in_child(lambda: kit.hash("h", component="c").hset("f", "v")) == 0
    with kit.clients._lock:
        assert in_child(lambda: kit.client("c").get("k")) == 0
    pool: Any = kit.client("c").connection_pool
    with pool._lock:
        assert in_child(lambda: kit.client("c").get("k")) == 0
    kit.client("c").get("k")
    connection = pool.get_connection()
    with connection._closing:
        assert in_child(lambda: connection.disconnect()) == 0
    pool.release(connection)
    assert in_child(kit.close) == 0
    assert kit.client("c").get("k") is None  # the child's closing concerns nobody else


@FORKING
def test_a_child_that_is_forked_while_words_are_stemmed_stems(kit: ShardKit) -> None:
    pytest.importorskip("snowballstemmer")
    stem = stemmer("english")
    found = inspect.getclosurevars(stem.__wrapped__).nonlocals  # type: ignore[attr-defined]
    with found["lock"]:
        assert in_child(lambda: stem("running")) == 0


async def test_closing_while_a_cluster_or_a_sentinel_is_asked_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = """
    components:
      cluster: {entry: {cluster: true, port: 7301}}
      watched: {entry: {sentinel: {service: main, sentinels: [[s1, 26379]]}}}
    """
    shake_hands = AsyncTcpConnection.on_connect_check_health
    with LocalServers(ShardMap.parse(plan), ports="free") as servers:
        for component in ("cluster", "watched"):
            kit = await shardkit.aconnect(servers.shard_map)

            async def close_first(
                self: Any, *args: Any, kit: AsyncShardKit = kit, **kwargs: Any
            ) -> None:
                await kit.aclose()
                await shake_hands(self, *args, **kwargs)

            client = await kit.client(component)
            monkeypatch.setattr(AsyncTcpConnection, "on_connect_check_health", close_first)
            with pytest.raises(ClosedError, match="kit is closed; open a new one with"):
                await client.get("k")
            monkeypatch.undo()


def test_closing_under_a_call_of_a_clusters_client_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = "components: {cluster: {entry: {cluster: true, port: 7301}}}"
    with (
        LocalServers(ShardMap.parse(plan), ports="free") as servers,
        shardkit.connect(servers.shard_map) as kit,
    ):
        client: Any = kit.client("cluster")

        def close_first(*args: Any, **kwargs: Any) -> None:
            kit.close()
            raise AttributeError("as redis-py raises it then")

        monkeypatch.setattr(client, "_determine_nodes", close_first)
        with pytest.raises(ClosedError, match=r"kit is closed; open a new one with shardkit\."):
            client.get("k")
