"""No secret that is planted in a URL or an entry appears anywhere, however long the text."""

from __future__ import annotations

import json
import logging
import os
import traceback
from collections.abc import Callable
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
from click.testing import CliRunner
from faces import eventually
from hypothesis import HealthCheck, given, settings, strategies as st
from starlette.testclient import TestClient

import shardkit
from shardkit import Entry, ShardKitError, ShardMap
from shardkit.cli.app import app
from shardkit.config.store import diff
from shardkit.dashboard import FleetWatch, application
from shardkit.dashboard.app import VIEWS
from shardkit.errors import InvalidEntryError
from shardkit.integrations.kits import parse_url
from shardkit.local import LocalServer

SECRET = "hunter2"
# Signs that mean something in a URL, an address or YAML.
signs = st.lists(st.sampled_from([*"@:/?#&=%[]$ab1. ", "${X}", "p@", "://"]), max_size=4).map(
    "".join
)
secrets = st.builds("{}{}{}".format, signs, st.just(SECRET), st.sampled_from(["", "x", "@", "/"]))
schemes = st.sampled_from(
    [
        *("redis://", "rediss://", "valkey://", "unix://", "redis+sentinel://", "redis+cluster://"),
        *("reddis://", "redis:/", "redis:", "http://", "//", "", "Redis://", "tls+redis://"),
    ]
)
hosts = st.sampled_from(
    ["h", "h:1", "[::1]:1", "a,b:2", "/s.sock", "", "h/1", "h/m/2", "h:p", "127.0.0.1:LIVE"]
)
names = [
    "password",
    "ssl_password",
    "ssl_ca_data",
    "sentinel_password",
    "pasword",
    "Password",
    "pass",
    "pw",
]
queries = st.builds(
    "?{}={}{}".format, st.sampled_from(names), secrets, st.sampled_from(["", "&db=1"])
)
urls = st.one_of(
    st.builds("{}{}:{}@{}".format, schemes, st.sampled_from(["", "u"]), secrets, hosts),
    st.builds("{}{}{}".format, schemes, hosts, queries),
)
named = st.builds(lambda name, secret: {name: secret}, st.sampled_from(names), secrets)
others = st.sampled_from(["host", "port", "db", "ssl_keyfile"])
fields = st.one_of(
    named.map(lambda each: {"host": "h", **each}),
    named.map(lambda each: {"host": "h", "breaker": each}),
    named.map(lambda each: {"sentinel": each}),
    named.map(lambda each: {"host": "h", "replicas": [{"port": 2, **each}]}),
    urls.map(lambda url: {"url": url}),
    st.builds(lambda name, url: {name: url}, others, urls),
    urls.map(lambda url: {"sentinel": {"service": "m", "sentinels": [[url, 1]]}}),
    urls.map(lambda url: {"host": "h", "replicas": [url, {"url": url}]}),
)


COMMANDS = [
    *(["config", "show"], ["config", "show", "--json"], ["config", "log"], ["status"], ["check"]),
    *(["status", "--json"], ["clients"], ["locks", "show"], ["queues", "show"], ["doctor"]),
    *(["keys"], ["exec", "c0", "PING"], ["plan"], ["advise"], ["balance"], ["locate", "c0", "k"]),
]


def about(error: BaseException) -> str:
    """All that an error says, with what is behind it."""
    more = f"{error!r}{vars(error)}{getattr(error, 'problems', '')}"
    return more + "".join(traceback.format_exception_only(error))


def command(*args: str) -> str:
    """Run a command; return all that it prints."""
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(printed), suppress(SystemExit):
        app(list(args))
    return printed.getvalue()


def pages(kit: shardkit.ShardKit, config: Entry) -> str:
    """Return the text of all pages of a dashboard, and of its metrics."""
    with closing(FleetWatch(kit, config, interval=0.05)) as fleet:
        assert eventually(lambda: fleet.components or fleet.broken or fleet.banner)
        eventually(lambda: all(each.samples or each.error for each in fleet.servers.values()), 2)
        client = TestClient(application(fleet), base_url="http://127.0.0.1")
        paths = [path for path in client.get("/openapi.json").json()["paths"] if "{" not in path]
        paths += ["/metrics", *VIEWS]
        for name in (*fleet.components, *fleet.broken):
            paths += [f"/api/components/{name}", f"/api/components/{name}/contents"]
        paths += [f"/api/servers/{quote(address, safe='')}" for address in fleet.servers]
        return "".join(client.get(path).text for path in paths) + repr(vars(fleet))


EXAMPLES = int(os.environ.get("EXAMPLES", "20"))
AT_ONCE = 20 if EXAMPLES > 100 else 10  # entries of a config server
patient = settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
few = settings(patient, max_examples=max(2, EXAMPLES // AT_ONCE))


@patient
@given(fields)
def test_no_secret_of_an_entry_is_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fields: dict[str, Any]
) -> None:
    said = ""
    for is_stored in (False, True):
        with caplog.at_level(logging.DEBUG):
            try:
                entry = Entry(fields, "k", is_stored=is_stored)
            except ShardKitError as error:
                said += about(error)
                continue
        said += f"{entry!r}{entry}{entry.masked()}{entry.address}{entry.replicas}"
        with suppress(ShardKitError):
            entry.resolved("k", {"X": "1"})
    path = tmp_path / "map.yaml"
    path.write_text(json.dumps({"components": {"c": {"entry": fields}, "d": {"shards": [fields]}}}))
    try:
        shown = ShardMap.load(path)
    except ShardKitError as error:
        said += about(error)
    else:
        said += f"{shown!r}{shown.warnings}"
        other = ShardMap.parse("components: {c: {entry: {host: other}}, e: {entry: {host: o}}}")
        said += repr(list(diff(shown.components, other.components)))
    for args in (("config", "validate", str(path)), ("config", "show", "-c", str(path), "--json")):
        said += command(*args)
    assert SECRET not in said + caplog.text


@patient
@given(urls)
def test_no_secret_of_an_address_is_shown(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, url: str
) -> None:
    said = ""
    if not url.startswith("redis+cluster") or "h:p" in url:
        try:
            with shardkit.connect(url) as kit:
                said += repr(kit)
        except ShardKitError as error:
            said += about(error)
        said += command("config", "show", "-c", url)
    said += command("config", "validate", url) + command("config", "push", "--config", url)
    said += command("locate", "--config", url) + command("config", "diff", url, url)
    assert SECRET not in said + caplog.text


logins = st.one_of(
    st.builds("{}{}:{}@{}".format, schemes, st.sampled_from(["", "u"]), secrets, hosts),
    st.sampled_from(["-p", "-p=", "--pass=", "h#", "redis://h#", "h?password=", "PASSWORD: "]).map(
        lambda before: before + SECRET
    ),
)


@patient
@given(logins)
def test_no_secret_of_an_address_in_the_place_of_a_name_is_shown(login: str) -> None:
    nowhere = "components: {c: {shards: [{port: 1}]}}"
    calls: list[Callable[[shardkit.ShardKit], Any]] = [
        lambda kit: kit.client(login),
        lambda kit: kit.key_sharded(login).get("k"),
        lambda kit: kit.key_sharded("c", placement=login),
        lambda kit: kit.key_sharded("c", 1, placement=login),
        lambda kit: kit.key_sharded("c", read_from=login),
        lambda kit: kit.hash("h", component="c", codec=login),
        lambda kit: kit.set("s", component="c", partition=login),
        lambda kit: kit.lock("l", component=login).acquire(),
        lambda _: parse_url(login),
        lambda _: parse_url(login.replace("redis", "shardkit")),
        lambda _: ShardMap.parse(json.dumps({"components": {login: {"entry": {}}}})),
    ]
    said = ""
    with shardkit.connect(ShardMap.parse(nowhere)) as kit:
        for call in calls:
            try:
                call(kit)
            except ShardKitError as error:
                said += about(error)
    words = ([], ["worker"], ["clients"], ["exec", "--on"], ["files"], ["apply"], ["check", "--"])
    for args in words:
        said += command(*args, login)
    assert SECRET not in said


@pytest.mark.parametrize(
    "typed", ["h;password={}", "h&password={}", "{}@h:1", "redis:/h#{}", "-p{}"]
)
def test_what_is_no_address_is_shown_without_what_may_be_a_password(typed: str) -> None:
    url = typed.format(SECRET)
    said = command("status", "--config", url) + command("clients", url)
    with pytest.raises(InvalidEntryError, match="cannot be used") as raised:
        Entry({"host": url})
    said += about(raised.value)
    with suppress(ShardKitError):
        said += repr(Entry({"url": f"redis://{url}"}))
    assert SECRET not in said


# Threads that still look for the servers of the last entries draw lots.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@few
@given(st.lists(fields, min_size=AT_ONCE, max_size=AT_ONCE))
def test_no_secret_of_stored_entries_is_shown(
    server: LocalServer, caplog: pytest.LogCaptureFixture, entries: list[dict[str, Any]]
) -> None:
    caplog.clear()
    caplog.set_level(logging.DEBUG)
    with server.client() as client:
        client.flushall()
        for n, entry in enumerate(entries):
            client.set(f"config:redis:c{n}", json.dumps(entry).replace("LIVE", str(server.port)))
    url, said = f"redis://127.0.0.1:{server.port}", ""
    for args in COMMANDS:
        said += command(*args, "--config", url)
    with shardkit.connect(url) as kit:
        said += pages(kit, Entry({"port": server.port})) + repr(kit.health())
        for name in kit.components():
            try:
                said += repr(kit.client(name))
                kit.set("s", component=name).sadd("x")
            except (ShardKitError, redis.RedisError) as error:
                said += about(error)
    assert SECRET not in said + caplog.text


@pytest.mark.parametrize("scheme", ["redis+sentinel", "redis", "redis+cluster", "reddis"])
def test_a_slash_in_a_password_shows_none_of_it(scheme: str) -> None:
    with pytest.raises(ShardKitError) as raised:
        shardkit.connect(f"{scheme}://u:/{SECRET}@h")
    assert SECRET not in about(raised.value)


@pytest.mark.parametrize("typed", ["u:{}@h:1", "redis://u:{}@h:1", "[::1%{}@h]:1"])
@pytest.mark.parametrize(
    "words", ["failover", "move server --to h:1", "move abort", "changes open", "changes end"]
)
def test_a_server_that_is_typed_with_a_login_is_not_repeated(
    server: LocalServer, words: str, typed: str
) -> None:
    url = f"redis://127.0.0.1:{server.port}"
    said = command(*words.split(), typed.format(SECRET), "--config", url)
    assert "shardkit: error: " in said
    assert SECRET not in said


MANY = 200_000


def refused(fields: dict[str, object]) -> str:
    """Return what is said of an entry that cannot be used."""
    with pytest.raises(InvalidEntryError, match=r"host|url") as raised:
        Entry(fields)
    return str(raised.value)


def said(*words: str) -> Any:
    """Return what a command says that fails."""
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code, done.output
    return done.stderr


@pytest.mark.bounded
@pytest.mark.parametrize(
    "call",
    [
        lambda: refused({"url": f"redis+cluster://a,{'a' * MANY}!"}),
        lambda: repr(Entry({"url": f"redis+sentinel://a,{'a1.' * MANY}!/m"})),
        *(
            partial(refused, {"host": f" {part * MANY}"})
            for part in (
                ":",
                "a:",
                "?",
                ":/",
                "password",
                "password ",
                "token: ",
                " -p",
                "?a=",
                ":/#",
            )
        ),
        lambda: said("status", "--config", f"{'a' * MANY} redis://u:p@h:1"),
        lambda: said("status", "--config", f"://{'a.' * MANY}"),
    ],
)
def test_long_text_is_shown_in_linear_time(call: Callable[[], str]) -> None:
    assert call()


@pytest.mark.bounded
def test_long_names_of_keys_are_families_in_linear_time() -> None:
    with LocalServer() as server, server.client() as client:
        for sign in "a0-:.":
            client.set(sign * MANY, "v")
        words = ["advise", "--on", f"{server.address}/0", "--json"]
        done = CliRunner().invoke(app, words)
    assert done.exit_code in (0, 1), done.output
    assert "should not happen" not in done.output
