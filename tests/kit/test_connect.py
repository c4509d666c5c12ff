"""Opening and closing kits: where the topology comes from, and that nothing is left open."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from arranged import ask, exit_code, forked
from link_helpers import clients_of, closed, eventually, of, opened

import shardkit
from shardkit import AsyncShardKit, ConfigError, Entry, ShardKit, ShardMap
from shardkit.admin import push
from shardkit.errors import InvalidEntryError
from shardkit.local import LocalServer


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """The only server of these tests: nobody else is connected to it."""
    with LocalServer(databases=8) as running:
        yield running


@pytest.fixture
def text(server: LocalServer) -> str:
    ask(server, "flushall")
    return f"""
components:
  few: {{shards: {{count: 4, over: [{{host: 127.0.0.1, port: {server.port}}}]}}}}
  one: {{entry: {{host: 127.0.0.1, port: {server.port}, db: 6}}}}
"""


@pytest.fixture
def where(text: str) -> ShardMap:
    return ShardMap.parse(text)


@pytest.fixture(autouse=True)
def _no_default(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("SHARDKIT_CONFIG", raising=False)
    yield
    shardkit.configure(None)


def works(kit: ShardKit) -> bool:
    return bool(kit.client("one").ping() and kit.client("few", 3).ping())


async def test_a_kit_opens_from_a_path_a_map_a_url_and_an_entry(
    tmp_path: Path, text: str, where: ShardMap, server: LocalServer, kind: str
) -> None:
    path = tmp_path / "map.yaml"
    path.write_text(text)
    with server.client(db=7) as client:
        push(client, where)
    url = f"redis://{server.address}/7"
    places: list[Any] = [path, str(path), where, url, f" {url}\n", Entry({"url": url})]
    for each in places:
        async with opened(kind, each) as face:
            assert await of((await of(face.kit.client("few", 3))).ping())
            assert await of(face.kit.components()) == ["few", "one"]
            assert len((await of(face.kit.component("few"))).shards) == 4


def test_the_environment_says_where_if_nobody_else_does(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        ConfigError,
        match=r"\$SHARDKIT_CONFIG is not set, and no shard map or config server is specified",
    ):
        shardkit.connect()
    (tmp_path / "map.yaml").write_text(text)
    monkeypatch.setenv("SHARDKIT_CONFIG", str(tmp_path / "map.yaml"))
    with shardkit.connect() as kit:
        assert works(kit)

    async def main() -> None:
        async with await shardkit.aconnect() as akit:
            assert await akit.key_sharded("few")["k"].ping()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("named", "error", "said"),
    [
        ("nowhere.yaml", ConfigError, "nowhere.yaml: cannot be read: No such file"),
        ("memcached://:hunter2@h/0", InvalidEntryError, "config server"),
        ("Redis://:hunter2@h:99999999/0", InvalidEntryError, "config server"),
        ("redis://:${NOT_THERE}@h/0", ConfigError, "NOT_THERE"),
    ],
)
def test_what_cannot_be_opened_is_refused_at_once_without_secrets(
    named: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as refused:
        shardkit.connect(named)
    assert said in str(refused.value)
    assert "hunter2" not in f"{refused.value} {refused.value!r}"
    with pytest.raises(error, match=re.escape(said)):
        asyncio.run(shardkit.aconnect(named))
    with pytest.raises(error, match=re.escape(said)):
        shardkit.configure(named)


def test_importing_and_decorating_opens_nothing() -> None:
    code = """
import socket, sys
def refuse(*args): raise AssertionError("somebody connects")
socket.socket.connect = socket.create_connection = refuse
import shardkit
@shardkit.redis_connection("one")
def one(conn): ...
@shardkit.sharded_connection("few", shards=4)
async def few(conn, key): ...
router = shardkit.KeyShardedConnection("few", shards=4)
pairs = shardkit.AsyncIdPairShardedConnection("few")
print(router, pairs)
try:
    one()
except shardkit.ConfigError as error:
    assert "nowhere.yaml" in str(error)
else:
    raise AssertionError("opened")
"""
    environment = os.environ | {"SHARDKIT_CONFIG": "nowhere.yaml"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.stderr == ""
    assert done.stdout == (
        "KeyShardedConnection('few', shards=4) AsyncIdPairShardedConnection('few')\n"
    )


def test_configuring_again_closes_the_old_default_kit(where: ShardMap, server: LocalServer) -> None:
    shardkit.configure(where)
    old = shardkit.default_kit()
    assert works(old)
    router = shardkit.KeyShardedConnection("few")
    with shardkit.connect(where) as mine:
        shardkit.configure(mine)
        assert shardkit.default_kit() is mine
        with closed():
            old.client("one")
        assert router["k"] is mine.key_sharded("few")["k"]
        shardkit.configure(mine)  # the same: it stays open
        assert works(mine)
    shardkit.configure(None)
    assert clients_of(server) == 0


def test_a_closed_default_kit_says_so_until_another_is_configured(where: ShardMap) -> None:
    shardkit.configure(where)
    with shardkit.default_kit():
        pass
    router = shardkit.KeyShardedConnection("few")
    with closed():
        router["k"]
    shardkit.configure(where)
    assert router["k"].ping()


async def test_async_functions_and_routers_use_the_default_kit(
    where: ShardMap, server: LocalServer
) -> None:
    @shardkit.sharded_connection("few")
    async def put(conn: Any, key: str) -> Any:
        return await conn.set(key, 1)

    shardkit.configure(where)
    assert await put("a")
    assert await shardkit.AsyncKeyShardedConnection("few")["a"].get("a") == b"1"

    # From a config server, a router has to read its component first.
    with server.client(db=7) as client:
        push(client, where)
    shardkit.configure(f"redis://{server.address}/7")
    router = shardkit.AsyncKeyShardedConnection("few")
    with pytest.raises(ConfigError, match=r"await the router's load\(\)"):
        router["a"]
    assert await (await router.load())["a"].get("a") == b"1"
    await shardkit.default_kit().aclose()


def use_blocking(kit: ShardKit | AsyncShardKit) -> None:
    @kit.sharded_connection("few")
    def ping(conn: redis.Redis, key: int) -> Any:
        return conn.ping()

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ping, range(64)))


async def use_awaiting(kit: ShardKit | AsyncShardKit) -> None:
    @kit.sharded_connection("few")
    async def ping(conn: Any, key: int) -> Any:
        return await conn.ping()

    @kit.redis_connection("one")
    async def pings(conn: Any) -> AsyncIterator[Any]:
        yield await conn.ping()

    assert all(await asyncio.gather(*[ping(n) for n in range(64)]))
    assert [one async for one in pings()] == [True]


async def test_closing_closes_every_pool(where: ShardMap, server: LocalServer, kind: str) -> None:
    async with opened(kind, where) as face:
        if not face.blocks:
            await use_awaiting(face.kit)
        use_blocking(face.kit)
        await of(face.kit.set("ids", component="few", total=100).sadd("a", "b"))
        await of(face.kit.key_sharded("few").pipeline().set("a", 1).dump("a").execute())
        assert clients_of(server) > 0
    assert await eventually(lambda: clients_of(server) == 0)


def test_a_kit_that_could_not_open_leaves_nothing_open(server: LocalServer) -> None:
    with pytest.raises(InvalidEntryError, match=r"components\.few\.entry: port = 0 cannot be"):
        shardkit.connect(ShardMap.parse("components: {few: {entry: {port: 0}}}"))
    with server.client(db=7) as client:
        client.set("config:redis:broken", "{")

    async def main() -> None:
        kit = await shardkit.aconnect(f"redis://{server.address}/7")
        await kit.aclose()
        await kit.aclose()

    asyncio.run(main())
    gc.collect()
    assert asyncio.run(eventually(lambda: clients_of(server) == 0))


FORKING = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12


def in_child(work: Callable[[], bool]) -> int:
    """Fork, do the work in the child, and return its exit code: 0 if it was true."""

    def checked() -> None:
        assert work()

    return exit_code(forked(checked))


@FORKING
def test_the_default_kit_goes_on_in_a_forked_child(where: ShardMap) -> None:
    @shardkit.sharded_connection("few")
    def put(conn: redis.Redis, key: str) -> bool:
        return bool(conn.set(key, 1))

    @shardkit.sharded_connection("few")
    async def aput(conn: Any, key: str) -> bool:
        return bool(await conn.set(key, 1))

    shardkit.configure(where)
    assert in_child(lambda: put("a")) == 0
    assert put("b")
    assert in_child(lambda: put("c")) == 0
    assert asyncio.run(aput("d"))
    assert in_child(lambda: asyncio.run(aput("e"))) == 0
    assert put("f")
