"""Credentials that change while clients are open: each connect uses those of its time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import redis
from link_helpers import FACES, of, opened
from redis.credentials import CredentialProvider

import shardkit
from shardkit import Entry, ShardMap
from shardkit.errors import ConfigError, ShardKitError
from shardkit.local import LocalServer
from shardkit.testing.fakes.servers import MemoryConnector


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with LocalServer(password="first") as running:
        yield running


@pytest_asyncio.fixture(params=FACES)
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """Opens a kit of either face, until the end of the test."""
    async with AsyncExitStack() as stack:

        async def connected(where: Any, **options: Any) -> Any:
            face = await stack.enter_async_context(opened(request.param, where, **options))
            return face.kit

        yield connected


def rotate(server: LocalServer, old: str, new: str) -> None:
    """Change the password, and close every connection that used the old one."""
    with redis.Redis(port=server.port, password=old) as client:
        client.config_set("requirepass", new)
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        client.ping()  # the killed ones are closed before this is answered


def a_map(server: LocalServer, **entry: Any) -> ShardMap:
    described = {"jobs": {"entry": entry}}
    return ShardMap.parse(str({"components": described}))


@pytest.mark.parametrize("form", ["fields", "url"])
async def test_a_password_of_the_environment_may_be_rotated(
    connect: Any, form: str, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SK_ROTATED", "first")
    entry: dict[str, Any] = {"port": server.port, "password": "${SK_ROTATED}"}
    if form == "url":
        entry = {"url": f"redis://default:${{SK_ROTATED}}@127.0.0.1:{server.port}"}
    kit = await connect(a_map(server, **entry))
    shared, private = [await of(kit.client("jobs", private=own)) for own in (False, True)]
    structure = kit.strings("names", component="jobs")
    for client in (shared, private):
        assert await of(client.ping())
    await of(structure.set("a", b"1"))
    monkeypatch.setenv("SK_ROTATED", "second/third")
    rotate(server, "first", "second/third")
    for client in (shared, private):
        assert await of(client.ping())
    assert await of(structure.get("a")) == b"1"
    assert shared.connection_pool.connection_kwargs["password"] == "first"  # when it was made
    monkeypatch.delenv("SK_ROTATED")
    await of(private.connection_pool.disconnect())
    with pytest.raises(ShardKitError, match=r"SK_ROTATED.*is not in the environment"):
        await of(private.ping())
    monkeypatch.setenv("SK_ROTATED", "second/third")
    assert await of(private.ping())


class Tokens(CredentialProvider):
    """An application's, whose token changes."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.asked = 0

    def get_credentials(self) -> tuple[str]:
        self.asked += 1
        return (self.token,)


async def test_connecting_with_a_password_logs_nothing(
    connect: Any, server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    kit = await connect(a_map(server, port=server.port, password="first"))
    assert await of((await of(kit.client("jobs"))).ping())
    assert not caplog.records


async def test_a_component_may_have_a_provider_of_its_own(
    connect: Any, server: LocalServer
) -> None:
    tokens = Tokens("first")
    kit = await connect(
        a_map(server, port=server.port, password="stale"),
        credential_providers={"jobs": tokens},
    )
    client = await of(kit.client("jobs"))
    assert await of(client.ping())
    tokens.token = "second"
    rotate(server, "first", "second")
    assert await of(client.ping())
    assert tokens.asked >= 2


async def test_config_servers_may_have_a_provider(connect: Any, server: LocalServer) -> None:
    with redis.Redis(port=server.port, password="first") as client:
        client.set("config:redis:jobs", '{"host": "127.0.0.1", "port": 1}')
    where = Entry({"port": server.port})
    kit = await connect(where, credential_providers={"config-server": Tokens("first")})
    assert (await of(kit.component("jobs"))).entry.address == "127.0.0.1:1/0"


async def test_providers_of_unknown_components_are_refused(
    connect: Any, server: LocalServer
) -> None:
    options = {"credential_providers": {"job": Tokens("first")}}
    with pytest.raises(ConfigError, match=r"credential_providers: .* has no component 'job'"):
        await connect(a_map(server, port=server.port), **options)
    with redis.Redis(port=server.port, password="first") as client:
        client.set("config:redis:jobs", '{"host": "127.0.0.1", "port": 1}')
    where = Entry({"port": server.port, "password": "first"})
    with pytest.raises(ConfigError, match=r"credential_providers: .* has no component 'job'"):
        await connect(where, **options)
    assert await connect(where, credential_providers={"jobs": Tokens("first")})


def test_providers_are_checked_when_the_config_server_is_back(server: LocalServer) -> None:
    options = {"credential_providers": {"job": Tokens("first")}}
    where = Entry({"port": server.port, "password": "first", "socket_timeout": 0.2})
    server.pause()
    with shardkit.connect(where, **options) as kit:
        server.resume()
        with redis.Redis(port=server.port, password="first") as client:
            client.set("config:redis:jobs", '{"host": "127.0.0.1", "port": 1}')
        for _ in range(2):
            with pytest.raises(ConfigError, match="has no component 'job'"):
                kit.component("jobs")


def test_a_memory_server_asks_for_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SK_ROTATED", "first")
    where = ShardMap.parse("components: {jobs: {entry: {password: '${SK_ROTATED}'}}}")
    with shardkit.connect(where, connector=MemoryConnector()) as kit:
        assert kit.client("jobs").ping()
        assert kit.client("jobs", private=True).ping()


@pytest.mark.parametrize("form", ["fields", "url", "config server"])
async def test_files_are_reread(
    connect: Any, form: str, server: LocalServer, tmp_path: Path
) -> None:
    path = tmp_path / "password"
    path.write_text("\ufefffirst\n", encoding="utf-8")  # as Windows' editor writes it
    entry: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "password_file": str(path)}
    url = f"redis://127.0.0.1:{server.port}/0?password_file={path}"
    if form == "url":
        entry = {"url": url}
    where: Any = a_map(server, **entry)
    if form == "config server":
        with redis.Redis(port=server.port, password="first") as client:
            client.set("config:redis:jobs", Entry(entry).to_json())
        where = url
    kit = await connect(where)
    client = await of(kit.client("jobs"))
    assert await of(client.ping())
    rotate(server, "first", "second")
    path.write_text("second")
    assert await of(client.ping())
    if form == "config server":
        kit.topology.expire()
        assert (await of(kit.component("jobs"))).entry.fields == entry
    path.unlink()
    await of(client.connection_pool.disconnect())
    with pytest.raises(ShardKitError, match=r"password_file .* cannot be used: No such file"):
        await of(client.ping())
    path.write_text("second")
    assert await of(client.ping())


async def test_passwords_rotate_smoothly(connect: Any, server: LocalServer, tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("old")
    with redis.Redis(port=server.port, password="first") as admin:
        admin.execute_command("ACL", "SETUSER", "app", "on", ">old", "~*", "&*", "+@all")
        entry = {"port": server.port, "username": "app", "password_file": str(path)}
        kit = await connect(a_map(server, **entry))
        client = await of(kit.client("jobs"))
        for step in (">new", path, "<old"):
            assert await of(client.incr("n"))
            if step == path:
                path.write_text("new")
            else:
                admin.execute_command("ACL", "SETUSER", "app", step)
            assert await of(client.incr("n"))
            await of(client.connection_pool.disconnect())
        assert await of(client.get("n")) == b"6"


@pytest.mark.parametrize("text", ["", "\n", "two\nlines", "\0"])
def test_a_file_that_holds_no_password_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "password"
    path.write_text(text)
    entry = Entry({"password_file": str(path)})
    with pytest.raises(ConfigError, match="it is empty, or not one line of UTF-8 text"):
        entry.resolved("config:redis:jobs")
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not one line of UTF-8 text"):
        entry.resolved("config:redis:jobs")


def test_a_password_or_a_file_of_it_takes_the_place_of_the_default() -> None:
    of_default = ShardMap.parse(
        "{defaults: {password_file: /f}, components: {a: {entry: {password: x}}, b: {entry: {}}}}"
    ).components
    assert of_default["a"].entry == Entry({"password": "x"})
    assert of_default["b"].entry == Entry({"password_file": "/f"})
