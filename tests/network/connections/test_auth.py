"""Passwords: of the provider that an entry names, and those that change while clients are open."""

from __future__ import annotations

import asyncio
import base64
import http.server
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
import redis
from arranged import map_of
from faces import PATIENCE
from link_helpers import FACES, count_of, of, opened
from redis.credentials import CredentialProvider, StreamingCredentialProvider
from scripted_server import scripted

import shardkit
from shardkit import Entry, ShardMap
from shardkit.errors import ConfigError, InvalidEntryError, ShardKitError
from shardkit.local import LocalCluster, LocalSentinel, LocalServer

NAME = "shop_auth:password"


class Secret:
    """A password that a function of the application returns, and the server's user of it."""

    def __init__(self) -> None:
        self.user, self.password, self.seconds = "app", "s3cret-0", 1.0
        self.asked, self.fails, self.instead = 0, False, ...
        self.answers, self.hangs = threading.Event(), threading.Event()
        self.answers.set()

    def __call__(self, **_: Any) -> Any:
        self.asked += 1
        if self.asked > 1 and not self.answers.is_set():
            self.hangs.set()
            assert self.answers.wait(60 * PATIENCE)
        if self.fails:
            raise ValueError(self.password)
        given: Any = (self.user or None, self.password, self.seconds)
        return given if self.instead is ... else self.instead

    def change(self, client: Any, number: int, late: float = 0.0) -> None:
        """Change the password on the server, and what the function returns a little later."""
        client.execute_command("ACL", "SETUSER", "app", "resetpass", f">s3cret-{number}")
        time.sleep(late)  # so that some logins are refused
        self.password = f"s3cret-{number}"


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> Secret:
    found = Secret()
    monkeypatch.setitem(sys.modules, "shop_auth", SimpleNamespace(password=found))
    monkeypatch.setenv("SHARDKIT_ALLOW_AUTH", NAME)
    return found


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with LocalServer() as running:
        with running.client() as client:
            client.execute_command("ACL", "SETUSER", "app", "on", ">s3cret-0", "~*", "&*", "+@all")
        yield running


@pytest_asyncio.fixture(params=FACES)
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """Opens a kit of either face, until the end of the test."""
    async with AsyncExitStack() as stack:

        async def connected(where: Any, **options: Any) -> Any:
            return await stack.enter_async_context(opened(request.param, where, **options))

        yield connected


def auth(**options: Any) -> dict[str, Any]:
    # A source is shared by all entries of the process that have the same auth.
    return {"provider": NAME, "options": {"test": f"{time.monotonic_ns()}"}, **options}


def a_map(**entry: Any) -> ShardMap:
    return map_of(jobs={"entry": entry})


PAUSE = 0.005  # between two calls of many clients, or they take the processors from other tests


async def during(face: Any, seconds: float, call: Callable[[], Any]) -> None:
    """Call again and again, in four threads or tasks."""
    end = time.monotonic() + seconds

    def calls() -> None:
        while time.monotonic() < end:
            call()
            time.sleep(PAUSE)

    async def acalls() -> None:
        while time.monotonic() < end:
            await call()
            await asyncio.sleep(PAUSE)

    workers = (asyncio.to_thread(calls) if face.blocks else acalls() for _ in range(4))
    await asyncio.gather(*workers)


async def test_no_call_fails_while_the_password_changes(
    connect: Any, secret: Secret, server: LocalServer
) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(30))
    with server.client() as admin:
        described = a_map(port=server.port, auth=auth()).components["jobs"].entry.to_json()
        admin.set("config:redis:jobs", described)
    configured = await connect(Entry({"port": server.port, "auth": auth()}))
    face = await connect(a_map(port=server.port, auth=auth()))
    client, private, waiting = [
        await of(face.kit.client("jobs", private=own)) for own in (False, True, False)
    ]
    names = face.kit.strings("names", component="jobs")
    router = face.kit.key_sharded("jobs")
    events = router.pubsub(ignore_subscribe_messages=True)
    await of(events.subscribe("news"))

    def entries() -> Any:
        configured.kit.topology.expire()
        return configured.kit.component("jobs")

    def transaction() -> Any:
        return private.pipeline().incr("n").execute()

    def changes() -> None:
        for number in range(1, 4):
            time.sleep(2)  # between two changes
            with server.client() as admin:
                secret.change(admin, number, late=0.3)  # some connections renew theirs in between
            client.connection_pool.way.drop_idle()

    changing = asyncio.create_task(asyncio.to_thread(changes))
    await asyncio.gather(
        during(face, 6.5, lambda: client.incr("n")),
        during(face, 6.5, lambda: names.set("a", b"1")),
        during(face, 6.5, lambda: router.publish("news", "x")),
        during(face, 6.5, lambda: waiting.blpop("none", timeout=0.5)),
        during(face, 6.5, transaction),
        during(face, 6.5, entries),
    )
    await changing
    assert await of(client.get("n"))
    message = await of(events.get_message(timeout=5))
    assert message["type"] == "message"
    await of(events.aclose() if hasattr(events, "aclose") else events.close())


async def test_a_valid_password_is_used_while_its_provider_fails(
    connect: Any, secret: Secret, server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    secret.seconds = 3.0 * PATIENCE
    face = await connect(a_map(port=server.port, auth=auth()))
    client = await of(face.kit.client("jobs"))
    assert await of(client.ping())
    expired = time.monotonic() + secret.seconds
    secret.fails = True
    while f"auth provider {NAME} failed: ValueError" not in caplog.text:  # it is to be renewed
        assert await of(client.ping())
        await asyncio.sleep(0.02)
    assert await of(client.ping())
    await asyncio.sleep(expired - time.monotonic() + 0.1)  # it expires by the clock
    await of(client.connection_pool.disconnect())
    with pytest.raises(ConfigError, match=f"auth provider {NAME} failed: ValueError") as caught:
        await of(client.ping())
    everything = f"{caplog.text} {caught.value!r} {caught.value.__cause__!r} {face.kit!r}"
    everything += f"{client.connection_pool!r} {client.connection_pool.credentials!r}"
    assert "s3cret" not in everything


def test_others_use_a_valid_password_while_its_provider_hangs(
    secret: Secret, server: LocalServer
) -> None:
    secret.seconds = 5.0 * PATIENCE  # it is to be renewed a second before it expires
    secret.answers.clear()

    def ping() -> None:
        while not secret.hangs.is_set():
            client.ping()
            time.sleep(0.02)

    with (
        shardkit.connect(a_map(port=server.port, auth=auth())) as kit,
        ThreadPoolExecutor(1) as pool,
    ):
        client = kit.client("jobs")
        renewing = pool.submit(ping)
        assert secret.hangs.wait(60 * PATIENCE)
        assert client.ping()
        assert not renewing.done()
        secret.answers.set()
        renewing.result()


class Stream(StreamingCredentialProvider):
    """A redis-py's provider that streams."""

    def __init__(self) -> None:
        self.password = "s3cret-0"
        self.callback: Any = None

    def get_credentials(self) -> tuple[str, str]:
        return "app", self.password

    async def get_credentials_async(self) -> tuple[str, str]:
        return self.get_credentials()

    def on_next(self, callback: Callable[[Any], None]) -> None:
        self.callback = callback

    def on_error(self, callback: Callable[[Exception], None]) -> None:
        """Not used."""

    def is_streaming(self) -> bool:
        return True


async def test_tokens_of_streaming_providers_reach_open_connections(
    connect: Any, server: LocalServer
) -> None:
    stream = Stream()
    face = await connect(a_map(port=server.port), credential_providers={"jobs": stream})
    client = await of(face.kit.client("jobs"))
    number = await of(client.client_id())
    before = count_of(server, "auth")
    await asyncio.sleep(0.6)  # until it has expired
    stream.callback("a token")
    assert await of(client.client_id()) == number
    await of(client.ping())
    assert count_of(server, "auth") == before + 1


async def test_sentinels_have_providers_of_their_own(connect: Any, secret: Secret) -> None:
    secret.user = ""
    with LocalSentinel(password="s3cret-0", sentinel_password="s3cret-0") as group:
        fields = group.entry.fields
        fields.pop("password")
        fields["sentinel"].pop("password")
        fields |= {"auth": auth(), "sentinel": {**fields["sentinel"], "auth": auth()}}
        face = await connect(a_map(**fields))
        assert await of((await of(face.kit.client("jobs"))).set("a", 1))


async def test_nodes_of_clusters_are_logged_in_to_again(connect: Any, secret: Secret) -> None:
    secret.user = "app"
    with LocalCluster(users={"app": "s3cret-0"}) as cluster:
        fields = cluster.entry.fields
        fields.pop("password")
        face = await connect(a_map(**fields, auth=auth()))
        client = await of(face.kit.client("jobs"))
        await during(face, 0.2, lambda: client.set("a", 1))
        before = secret.asked
        await during(face, 1.5, lambda: client.set("a", 1))
        assert secret.asked > before


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"auth": {"provider": "aws"}}, r'auth.provider = "aws" is unknown'),
        ({"auth": {}}, "auth.provider = null is unknown"),
        ({"auth": {"provider": "gcp", "region": "x"}}, "auth.region is not an option of gcp"),
        ({"auth": {"provider": "a:b", "x": 1}}, "auth.x is not an option of module:function"),
        ({"auth": {"provider": "aws-iam", "cluster": "c"}}, "username is missing"),
        ({"username": "u", "auth": {"provider": "aws-iam"}}, "auth.cluster is missing"),
        ({"auth": {"provider": "gcp"}, "password": "s3cret"}, "password contradicts auth"),
        ({"url": "redis://:s3cret@h", "auth": {"provider": "gcp"}}, "password contradicts auth"),
        (
            {"sentinel": {"service": "m", "sentinels": [["h", 1]], "auth": {"provider": "x"}}},
            r'sentinel.auth.provider = "x" is unknown',
        ),
    ],
)
def test_an_entry_with_a_bad_provider_is_refused(fields: dict[str, Any], problem: str) -> None:
    for read in (Entry, lambda given: Entry.from_json(json.dumps(given), "entry")):
        with pytest.raises(InvalidEntryError, match=problem) as caught:
            read(fields)
        assert "s3cret" not in str(caught.value)


def test_functions_are_called_only_if_the_operator_allows_them(
    secret: Secret, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for allowed in ("", "shop_auth", f"{NAME}s, other:function"):
        monkeypatch.setenv("SHARDKIT_ALLOW_AUTH", allowed)
        with (
            shardkit.connect(a_map(port=server.port, auth=auth())) as kit,
            pytest.raises(ConfigError, match=rf"jobs: auth provider {NAME} is not allowed by SHA"),
        ):
            kit.client("jobs").ping()
    assert not secret.asked


@pytest.mark.parametrize(
    "given", [None, "", b"x", ("u",), ("u", "p", -1), ("u", "p", "1"), 7, "\udcff", ("\udcff", "p")]
)
def test_what_is_no_password_is_refused(secret: Secret, given: Any, server: LocalServer) -> None:
    secret.instead = given
    with (
        shardkit.connect(a_map(port=server.port, auth=auth())) as kit,
        pytest.raises(ConfigError, match=f"auth provider {NAME} failed: (Type|Value)Error"),
    ):
        kit.client("jobs").ping()


def login_by(entry: dict[str, Any]) -> list[str]:
    """What a server gets as user and password."""
    with scripted(AUTH=b"+OK\r\n") as server:
        with shardkit.connect(a_map(port=server.port, **entry)) as kit:
            kit.client("jobs").ping()
        [login] = [words[1:] for words in server.received if words[0] == b"AUTH"]
    return [word.decode() for word in login]


def test_aws_passwords_are_signed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("botocore")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    auth = {"provider": "aws-iam", "cluster": "my-cache", "region": "eu-west-1"}
    user, password = login_by({"username": "app", "auth": auth})
    assert user == "app"
    assert password.startswith("my-cache/?Action=connect&User=app&")
    assert "X-Amz-Expires=900" in password
    assert "eu-west-1%2Felasticache%2Faws4_request" in password
    assert "s3cret" not in password


@pytest.fixture
def tokens() -> Iterator[tuple[int, str]]:
    """A service that gives a token to whoever asks."""
    claims = base64.urlsafe_b64encode(b'{"oid": "object-id"}').decode().rstrip("=")
    token = f"x.{claims}.y"
    until = {"expires_in": 3600, "expires_on": str(int(time.time()) + 3600)}
    said = json.dumps({"access_token": token, "token_type": "Bearer", **until}).encode()

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        yield service.server_port, token
        service.shutdown()


def test_entra_passwords_are_tokens_of_the_machine(
    tokens: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("azure.identity")
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"http://127.0.0.1:{tokens[0]}/")
    monkeypatch.setenv("IDENTITY_HEADER", "x")
    assert login_by({"auth": {"provider": "entra"}}) == ["object-id", tokens[1]]


def test_gcp_passwords_are_access_tokens(
    tokens: tuple[int, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    pytest.importorskip("google.auth")
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
    encoding = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        encoding.Encoding.PEM, encoding.PrivateFormat.PKCS8, encoding.NoEncryption()
    )
    path = tmp_path / "credentials.json"
    account = {"type": "service_account", "client_email": "a@b", "private_key": key.decode()}
    path.write_text(json.dumps({**account, "token_uri": f"http://127.0.0.1:{tokens[0]}/"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    assert login_by({"auth": {"provider": "gcp"}}) == [tokens[1]]


@pytest.fixture
def locked() -> Iterator[LocalServer]:
    with LocalServer(password="first") as running:
        yield running


def rotate(server: LocalServer, old: str, new: str) -> None:
    """Change the password, and close every connection that used the old one."""
    with redis.Redis(port=server.port, password=old) as client:
        client.config_set("requirepass", new)
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        client.ping()  # the killed ones are closed before this is answered


@pytest.mark.parametrize("form", ["fields", "url"])
async def test_a_password_of_the_environment_may_be_rotated(
    connect: Any, form: str, locked: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SK_ROTATED", "first")
    entry: dict[str, Any] = {"port": locked.port, "password": "${SK_ROTATED}"}
    if form == "url":
        entry = {"url": f"redis://default:${{SK_ROTATED}}@127.0.0.1:{locked.port}"}
    kit = (await connect(a_map(**entry))).kit
    shared, private = [await of(kit.client("jobs", private=own)) for own in (False, True)]
    structure = kit.strings("names", component="jobs")
    for client in (shared, private):
        assert await of(client.ping())
    await of(structure.set("a", b"1"))
    monkeypatch.setenv("SK_ROTATED", "second/third")
    rotate(locked, "first", "second/third")
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


async def test_config_servers_may_have_a_provider(connect: Any, locked: LocalServer) -> None:
    with redis.Redis(port=locked.port, password="first") as client:
        client.set("config:redis:jobs", '{"host": "127.0.0.1", "port": 1}')
    where = Entry({"port": locked.port})
    kit = (await connect(where, credential_providers={"config-server": Tokens("first")})).kit
    assert (await of(kit.component("jobs"))).entry.address == "127.0.0.1:1/0"


async def test_providers_of_unknown_components_are_refused(
    connect: Any, locked: LocalServer
) -> None:
    options = {"credential_providers": {"job": Tokens("first")}}
    with pytest.raises(ConfigError, match=r"credential_providers: .* has no component 'job'"):
        await connect(a_map(port=locked.port), **options)
    with redis.Redis(port=locked.port, password="first") as client:
        client.set("config:redis:jobs", '{"host": "127.0.0.1", "port": 1}')
    where = Entry({"port": locked.port, "password": "first"})
    with pytest.raises(ConfigError, match=r"credential_providers: .* has no component 'job'"):
        await connect(where, **options)
    assert await connect(where, credential_providers={"jobs": Tokens("first")})


def test_providers_are_checked_when_the_config_server_is_back(locked: LocalServer) -> None:
    options = {"credential_providers": {"job": Tokens("first")}}
    where = Entry({"port": locked.port, "password": "first", "socket_timeout": 0.2 * PATIENCE})
    locked.pause()
    with shardkit.connect(where, **options) as kit:
        locked.resume()
        with redis.Redis(port=locked.port, password="first") as client:
            client.set("config:redis:jobs", '{"host": "127.0.0.1", "port": 1}')
        for _ in range(2):
            with pytest.raises(ConfigError, match="has no component 'job'"):
                kit.component("jobs")


@pytest.mark.parametrize("form", ["fields", "url", "config server"])
async def test_files_are_reread(
    connect: Any, form: str, locked: LocalServer, tmp_path: Path
) -> None:
    path = tmp_path / "password"
    path.write_text("\ufefffirst\n", encoding="utf-8")  # as Windows' editor writes it
    entry: dict[str, Any] = {"host": "127.0.0.1", "port": locked.port, "password_file": str(path)}
    url = f"redis://127.0.0.1:{locked.port}/0?password_file={path}"
    if form == "url":
        entry = {"url": url}
    where: Any = a_map(**entry)
    if form == "config server":
        with redis.Redis(port=locked.port, password="first") as client:
            client.set("config:redis:jobs", Entry(entry).to_json())
        where = url
    kit = (await connect(where)).kit
    client = await of(kit.client("jobs"))
    assert await of(client.ping())
    rotate(locked, "first", "second")
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
