"""No secret that is planted in a URL or an entry appears anywhere, however it is written."""

from __future__ import annotations

import json
import logging
import os
import traceback
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import shardkit
from shardkit import Entry, ShardKitError, ShardMap
from shardkit.cli.app import app
from shardkit.config.diff import diff
from shardkit.config.url import mask_url

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
hosts = st.sampled_from(["h", "h:1", "[::1]:1", "a,b:2", "/s.sock", "", "h/1", "h/m/2", "h:p"])
names = ["password", "ssl_password", "sentinel_password", "pasword", "Password", "pass", "pw"]
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


patient = settings(
    max_examples=int(os.environ.get("EXAMPLES", "200")),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


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


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis+cluster://app:secret@a:1,b:2", "redis+cluster://app:***@a:1,b:2"),
        ("rediss+cluster://a:1", "rediss+cluster://a:1"),
        ("redis://app:secret@a,b:6380/0", "redis://app:***@a,b:6380/0"),
        ("redis://a:secret,b", "redis://***"),
        ("redis+clusterr://app:secret@a", "***"),
    ],
)
def test_addresses_of_several_servers_are_shown_without_passwords(url: str, shown: str) -> None:
    assert mask_url(url) == shown
