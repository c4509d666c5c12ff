"""Entries: what they may say, what they never show, and what they come to in an environment."""

from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from arranged import everything_about
from hypothesis import assume, given, strategies as st

from shardkit import Entry
from shardkit.errors import ConfigError, InvalidEntryError

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
# As its table has them; `docs/test_site.py` checks that these are all.
FIELDS = re.findall(
    r"^\| `(\w+)`",
    PAGE.read_text("utf-8").partition("<!-- fields -->")[2].partition("\n\n")[0],
    re.MULTILINE,
)
SECRET = "hunter2"
SENTINELS = {"service": "m", "sentinels": [["s", 1]]}

# One good entry of every kind.
GOOD: list[dict[str, Any]] = [
    {},
    {"db": 15},
    {"host": "a.internal", "port": 6379, "db": 1, "username": "app", "password": "p"},
    {"host": "::1", "port": 1},
    {"host": "fe80::1%eth0"},
    {"host": "münchen.example", "password": ""},
    {"unix_socket_path": "/run/redis.sock", "db": 3, "password": "p"},
    {"host": "a", "ssl": True, "ssl_ca_certs": "/ca.pem", "ssl_min_version": "TLSv1_3"},
    {"host": "a", "ssl": True, "ssl_ca_data": "-----BEGIN\nabc\n", "ssl_password": "p"},
    {"host": "a", "socket_timeout": None, "socket_connect_timeout": 0.25},
    {"host": "a", "encoding": "UTF-8", "encoding_errors": "replace", "protocol": 3},
    {"host": "a", "retry": {"retries": 2**31 - 1}},
    {"host": "a", "socket_keepalive_options": {"TCP_KEEPIDLE": 32767}},
    {"url": "valkey://a/1"},
    {"url": "redis://h"},
    {"url": "rediss://user:p%40ss@h.example:7000/3?socket_timeout=2&decode_responses=true"},
    {"url": "redis://[::1]:7000/1", "socket_timeout": 1},
    {"url": "unix:///run/redis.sock?db=2"},
    {"url": "unix://user:p@/run/redis.sock"},
    {"url": "${REDIS_URL}"},
    {
        "url": "redis://${USER}:${PW}@${HOST}:${PORT}/${DB}?socket_timeout=${T}&decode_responses=${D}"
    },
    {"host": "c", "cluster": True, "port": 7000},
    {"host": "a", "replicas": [{"host": "b"}, {"url": "redis://c:7000"}, {"port": 6380}]},
    {"sentinel": {"service": "main", "sentinels": [["s1", 26379], ["s2", 1]], "password": "p"}},
]


@pytest.mark.parametrize("fields", GOOD, ids=str)
def test_a_good_entry_is_stored_and_read_back_as_it_is(fields: dict[str, Any]) -> None:
    entry = Entry(fields, "config:redis:a")
    again = Entry.from_json(entry.to_json(), "config:redis:a")
    assert again == entry
    assert hash(again) == hash(entry)
    assert again.fields == fields
    assert Entry.from_json(entry.to_json().encode(), "k") == entry
    assert pickle.loads(pickle.dumps(entry)) == copy.deepcopy(entry) == entry


def test_null_is_an_absent_field_and_a_whole_number_may_have_a_point() -> None:
    written = '{"host": "a", "port": 6379.0, "db": 3.0, "password": null, "client_name": null}'
    entry = Entry.from_json(written, "config:redis:a")
    assert entry == Entry({"host": "a", "port": 6379, "db": 3})
    assert entry.resolved("a") == {"host": "a", "port": 6379, "db": 3}
    assert Entry({"socket_timeout": None}).fields == {"socket_timeout": None}  # it is a value
    assert Entry({"socket_timeout": 2.0}).fields == {"socket_timeout": 2.0}
    replica = Entry({"host": "a", "db": 3.0, "replicas": [{"host": "b", "db": 3.0, "ssl": None}]})
    assert replica == Entry({"host": "a", "db": 3, "replicas": [{"host": "b", "db": 3}]})


def test_fields_of_a_later_release_are_logged_once_ignored_and_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fields = {
        "host": "a",
        "colour": {"a": 1},
        "retry": {"retries": 1, "jitter": "none"},
        "replicas": [{"host": "b", "colour": 3}],
    }
    text = json.dumps(fields)
    with caplog.at_level(logging.WARNING, "shardkit.config"):
        for _ in range(2):
            entry = Entry.from_json(text, "config:redis:later")
    [record] = caplog.records
    assert record.getMessage() == (
        "config:redis:later has fields that this release does not know, and ignores: "
        "colour, retry.jitter, replicas[0].colour"
    )
    assert entry.fields == fields  # what is written back by others has them all
    assert entry.resolved("it") == {
        "host": "a",
        "retry": {"retries": 1},
        "replicas": [{"host": "b", "db": 0, "retry": {"retries": 1}}],
    }
    for written in (fields, {"host": "a", "colour": 1}, {"host": "a", "retry": {"jitter": 1}}):
        with pytest.raises(InvalidEntryError, match="is not a field of"):
            Entry(written)
    with pytest.raises(InvalidEntryError, match="port"):
        Entry.from_json('{"host": "a", "colour": 1, "port": "x"}', "config:redis:later")
    with pytest.raises(InvalidEntryError, match=r"later replicas\[0\]: is a int, not an object"):
        Entry.from_json('{"host": "a", "colour": 1, "replicas": [3]}', "config:redis:later")


@pytest.mark.parametrize("later", ["999", "0.1.1", "0.2", "1.0.0"])
def test_an_entry_that_earlier_releases_must_not_use_is_refused(later: str) -> None:
    assert Entry.from_json('{"host": "a", "min_release": "0.1"}', "it").address == "a:6379/0"
    with pytest.raises(InvalidEntryError, match=r"min_release = .* a release that is not above"):
        Entry.from_json(json.dumps({"host": "a", "new": 1, "min_release": later}), "it")
    with pytest.raises(InvalidEntryError, match="min_release"):
        Entry({"host": "a", "min_release": later}, "it")


# What cannot be used: the entry, the field that the message names, a word of it.
BAD: list[tuple[Any, str, str]] = [
    ([], "", "is a list"),
    ("redis://h", "", "is a str"),
    (None, "", "NoneType"),
    ({"hots": "a"}, "hots", "not a field"),
    ({1: 2}, "1", "not a field"),
    ({None: 2}, "null", "not a field"),
    *(
        ({"host": host}, "host", "host name")
        for host in (
            "",
            "a b",
            "user@a",
            "[::1]",
            "a\nb",
            "::a%pw@h",
            "::a%",
            5,
            "a..b",
            "x" * 64,
            "\u202e",
        )
    ),
    ({"host": "redis://a"}, "host", "url:"),
    ({"host": "a\0b"}, "host", "text"),
    ({"host": "\ud800"}, "host", "surrogates"),
    ({"host": ["a"]}, "host", "a list"),
    ({"host": {"a": "b"}}, "host", "a mapping"),
    ({"host": b"a"}, "host", "bytes"),
    *(({"port": port}, "port", "65535") for port in (0, 65536)),
    *(
        ({"port": port}, "port", shown)
        for port, shown in (
            ("6379", '"6379"'),
            (True, "true"),
            (6379.5, "6379.5"),
            (16**5000, "huge"),
        )
    ),
    ({"db": -1}, "db", "-1"),
    ({"db": 2**31}, "db", "0 or more"),
    ({"db": False}, "db", "false"),
    ({"password": 12345}, "password", "quotes"),
    ({"password": "\udc80"}, "password", "surrogates"),
    ({"username": True}, "username", "text"),
    *(
        ({"unix_socket_path": path}, "unix_socket_path", "a path")
        for path in ("", "/a\nb", "unix:///a")
    ),
    ({"ssl": "yes"}, "ssl", "true or false"),
    ({"ssl": 1}, "ssl", "true or false"),
    ({"ssl_cert_reqs": "maybe"}, "ssl_cert_reqs", "required"),
    ({"ssl_min_version": "TLSv1"}, "ssl_min_version", "TLSv1_2"),
    *(
        ({"socket_timeout": wrong}, "socket_timeout", "above 0")
        for wrong in (0, -1.5, float("nan"), float("inf"), 1e300, True, "2")
    ),
    ({"max_connections": 0}, "max_connections", "above 0"),
    ({"client_name": "a b"}, "client_name", "ASCII"),
    ({"client_name": "é"}, "client_name", "ASCII"),
    ({"encoding": "latin-1"}, "encoding", "give utf-8"),
    ({"url": "redis://h?encoding=latin-1"}, "url encoding", "give utf-8"),
    ({"encoding_errors": "nope"}, "encoding_errors", "handler"),
    ({"protocol": 4}, "protocol", "2 or 3"),
    ({"retries": -1}, "retries", "0 for none"),
    ({"cluster": "true"}, "cluster", "true or false"),
    ({"url": 5}, "url", "redis://"),
    *(
        ({"url": url}, "url", "scheme")
        for url in ("", "h:6379", "http://h", "REDIS://h", "${SCHEME}://h")
    ),
    ({"url": "h:6379"}, "url", "write redis://host:port/db"),
    *(
        ({"url": f"{url}"}, "url", "names no host")
        for url in (
            "redis://",
            "redis://:6379/0",
            "valkeys:///0",
            "redis://u:p@:1",
            "rediss://?db=1",
        )
    ),
    *(({"host": host}, "host", "the port port:") for host in ("h:6380", ":6380", "::1:x")),
    *(
        ({"url": f"redis://{rest}"}, "url", "cannot be read")
        for rest in ("h:port", "h:0", "h:65536", "[::1", "[${H}", ":pa/ss@h")
    ),
    ({"url": "redis://a b"}, "url", "blank"),
    ({"url": "redis://a\n"}, "url", "blank"),
    *(({"url": f"redis://h/{path}"}, "url", "database") for path in ("one", "1/2", "-1")),
    ({"url": "redis://h/9999999999"}, "url db", "0 or more"),
    ({"url": "redis://:12/ss@h"}, "url", "%2F"),
    *(
        ({"url": f"redis://h?{query}"}, "url", "unknown field")
        for query in ("db", "nope=1", "cluster=true", "host=b", "ssl=true", "retry_on_error=x")
    ),
    *(({"url": f"redis://{rest}"}, "url", "unknown field") for rest in (":12?ss@h", "h?${X}=1")),
    ({"url": "redis://:12#ss@h"}, "url", "%23"),
    *(({"url": f"unix://{path}"}, "url", "no socket") for path in ("run/redis.sock", "", "/")),
    ({"url": "unix://u:@/secret@h"}, "url", "%40"),
    *(
        ({"url": f"redis://h?{query}"}, f"url{field}", word)
        for query, field, word in (
            *(("db=1&db=2", "", "twice"), ("decode_responses=maybe", "", "true or false")),
            *(("protocol=three", "", "number"), ("protocol=4", " protocol", "2 or 3")),
            *(
                ("socket_timeout=0", " socket_timeout", "above 0"),
                ("socket_timeout=nan", "", "seconds"),
            ),
        )
    ),
    ({"url": "redis://h", "host": "h"}, "host", "contradicts url"),
    ({"url": "redis://h", "port": 1}, "port", "contradicts url"),
    ({"url": "redis://h", "ssl": True}, "ssl", "contradicts url"),
    ({"url": "redis://h", "sentinel": GOOD[-1]["sentinel"]}, "sentinel", "contradicts"),
    ({"unix_socket_path": "/a", "host": "h"}, "host", "contradicts unix_socket_path"),
    ({"sentinel": GOOD[-1]["sentinel"], "port": 1}, "port", "contradicts sentinel"),
    ({"host": "h", "password_file": "/a", "password": "b"}, "password", "contradicts password_f"),
    ({"startup_nodes": [["h", 1]]}, "startup_nodes", "is for clusters only"),
    ({"cluster": True, "startup_nodes": []}, "startup_nodes", "[[host, port], …]"),
    ({"cluster": True, "url": "unix:///a"}, "url", "contradicts cluster"),
    ({"cluster": True, "replicas": []}, "replicas", "contradicts cluster"),
    ({"cluster": True, "sentinel": GOOD[-1]["sentinel"]}, "sentinel", "contradicts cluster"),
    ({"sentinel": []}, "sentinel", "an object"),
    ({"sentinel": {}}, "sentinel.service", "is missing"),
    *(
        ({"sentinel": {**SENTINELS, "service": name}}, "sentinel.service", "name")
        for name in ("", "a b")
    ),
    ({"sentinel": {"service": "m"}}, "sentinel.sentinels", "is missing"),
    *(
        ({"sentinel": {**SENTINELS, "sentinels": wrong}}, "sentinel.sentinels", word)
        for wrong, word in (
            *(([], "[[host, port]"), (["s:1"], "host, port"), ([["s", 0]], "host, port")),
            *(([["s", "1"]], "port"), ([["", 1]], "port"), ({b"s": 1}, "a mapping")),
        )
    ),
    ({"sentinel": {"service": "m", "nope": 1}}, "sentinel.nope", "not a field"),
    ({"sentinel": {"service": "m", "password": 5}}, "sentinel.password", "text"),
    ({"replicas": {}}, "replicas", "a list of entries"),
    ({"replicas": [5]}, "", "is a int"),
    ({"replicas": [{}]}, "host", "is missing"),
    ({"replicas": [{"db": 0}]}, "host", "is missing"),
    ({"replicas": [{"host": "b", "hots": 1}]}, "hots", "not a field"),
    ({"replicas": [{"host": "b", "cluster": True}]}, "cluster", "not for a replica"),
    ({"replicas": [{"host": "b", "sentinel": {}}]}, "sentinel", "not for a replica"),
    ({"replicas": [{"host": "b", "replicas": []}]}, "replicas", "not for a replica"),
    ({"replicas": [{"host": "b", "db": 2}], "db": 1}, "db", "not its master's"),
    ({"replicas": [{"url": "redis://b/2"}], "db": 1}, "db", "not its master's"),
    ({"replicas": [{"host": "b"}], "url": "redis://a/${DB}"}, "db", "is missing"),
    ({"replicas": [{"host": "b"}], "url": "redis://a:${PORT}"}, "port", "is missing"),
    ({"replicas": [{"port": 7002}], "url": "redis://${HOST}/1"}, "host", "is missing"),
    ({"replicas": [{"port": 7002}], "url": "${URL}", "db": 1}, "host", "is missing"),
    ({"url": "redis://:${PW}@a?max_connections=0"}, "url max_connections", "above 0"),
]


VERBS = {"cannot", "contains", "contradicts", "ends", "has", "is", "names", "sets"}


@pytest.mark.parametrize(("fields", "field", "word"), BAD, ids=[bad[2] for bad in BAD])
def test_invalid_entries_are_reported_with_key_field_and_remedy(
    fields: Any, field: str, word: str
) -> None:
    with pytest.raises(InvalidEntryError) as caught:
        Entry(fields, "config:redis:unique:7")
    error = caught.value
    assert error.message.startswith("config:redis:unique:7")
    assert error.problems[0].field == field
    assert error.problems[0].problem.split()[0] in VERBS  # and not the remedy
    assert word in str(error)
    assert error.remedy
    str(error).encode()  # it can be printed


def test_the_entries_of_the_page_can_be_used() -> None:
    _, _, rest = PAGE.read_text(encoding="utf-8").partition("```json\n")
    lines = rest.partition("```")[0].splitlines()
    assert len(lines) > 3
    for line in lines:
        Entry.from_json(line, "page")


# JSON


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "hunter2",
        '{"password": "hunter2"',
        '{"password": "hunter2"} x',
        b"\xff\xfe\xfd",
        '{"port": ' + "1" * 5000 + "}",
        "[" * 100_000,
        '{"replicas": [' * 50_000,
    ],
    ids=lambda text: text[:20],
)
def test_invalid_json_is_an_error_that_does_not_quote_the_text(text: str | bytes) -> None:
    with pytest.raises(InvalidEntryError, match=r"^config:redis:a: is not JSON") as caught:
        Entry.from_json(text, "config:redis:a")
    assert SECRET not in everything_about(caught.value)


def test_a_field_that_stands_twice_is_named() -> None:
    with pytest.raises(InvalidEntryError, match="k: host appears twice"):
        Entry.from_json('{"host": "a", "host": "b"}', "k")
    with pytest.raises(InvalidEntryError, match="k: db appears twice"):
        Entry.from_json('{"replicas": [{"host": "a", "db": 1, "db": 1}]}', "k")


# Immutability


def test_an_entry_does_not_change_with_what_it_was_made_of_or_what_it_gave() -> None:
    fields: dict[str, Any] = {"host": "a", "replicas": [{"host": "b"}]}
    entry = Entry(fields)
    before = entry.to_json()
    for own in (fields, entry.fields, entry.masked(), entry.resolved("k", {})):
        own["replicas"].append({"host": "c"})
    assert entry.to_json() == before
    assert [replica.address for replica in entry.replicas] == ["b:6379/0"]


# Where it points


@pytest.mark.parametrize(
    ("fields", "address"),
    [
        ({}, "localhost:6379/0"),
        ({"db": 15}, "localhost:6379/15"),
        ({"host": "a", "port": 1, "db": 2}, "a:1/2"),
        ({"host": "::1"}, "[::1]:6379/0"),
        ({"unix_socket_path": "/run/a.sock", "db": 1}, "unix:/run/a.sock/1"),
        ({"url": "redis://H.example"}, "h.example:6379/0"),
        ({"url": "redis://u:p@h:1/2"}, "h:1/2"),
        ({"url": "redis://u:p@h:1/2", "db": 3}, "h:1/3"),
        ({"url": "redis://h/2?db=4"}, "h:6379/4"),
        ({"url": "redis://[::1]:1/2"}, "[::1]:1/2"),
        ({"url": "redis://[::1]"}, "[::1]:6379/0"),
        ({"url": "unix://u:p@/run/a%20b.sock?db=2"}, "unix:/run/a b.sock/2"),
        ({"url": "${REDIS_URL}"}, "${REDIS_URL}"),
        ({"url": "redis://${H}:${P}/1"}, "${H}:${P}/1"),
        ({"url": "redis://h/${DB}"}, "h:6379"),
        ({"host": "${H}"}, "${H}:6379/0"),
        ({"host": "c", "cluster": True}, "cluster:c:6379"),
        (GOOD[-1], "sentinel:main/0"),
    ],
)
def test_the_address_says_where_an_entry_points(fields: dict[str, Any], address: str) -> None:
    assert Entry(fields).address == address


# Replicas


def test_a_replica_takes_over_what_it_does_not_say() -> None:
    entry = Entry(
        {
            "host": "a",
            "port": 7000,
            "db": 3,
            "password": "${PW}",
            "ssl": True,
            "replicas": [
                {"host": "b"},
                {"port": 7001},
                {"host": "c", "port": 1, "password": "own"},
                {"url": "redis://d", "ssl": False},
                {"unix_socket_path": "/e"},
            ],
        }
    )
    common = {"db": 3, "password": "s", "ssl": True}
    assert entry.resolved("k", {"PW": "s"})["replicas"] == [
        {"host": "b", "port": 7000, **common},
        {"host": "a", "port": 7001, **common},
        {"host": "c", "port": 1, **common, "password": "own"},
        {"host": "d", "db": 3, "password": "s", "ssl": False},
        {"unix_socket_path": "/e", "db": 3, "password": "s"},
    ]


# References


ENVIRONMENT = {
    "HOST": "a.internal",
    "PW": "p:a/s?s#w@o%r d[é]",
    "PORT": "7000",
    "DB": "3",
    "NO": "false",
}


def test_references_are_taken_from_the_environment() -> None:
    entry = Entry({"host": "${HOST}", "password": "${PW}", "client_name": "web-${DB}"})
    assert entry.resolved("k", ENVIRONMENT) == {
        "host": "a.internal",
        "password": ENVIRONMENT["PW"],
        "client_name": "web-3",
    }
    sentinel = {"service": "${DB}", "sentinels": [["${HOST}", 1]], "password": "${PW}"}
    assert Entry({"sentinel": sentinel}).resolved("k", ENVIRONMENT) == {
        "sentinel": {
            "service": "3",
            "sentinels": [["a.internal", 1]],
            "password": ENVIRONMENT["PW"],
        }
    }


@pytest.mark.parametrize(
    ("url", "fields"),
    [
        ("redis://${HOST}", {"host": "a.internal"}),
        (
            "rediss://app:${PW}@${HOST}:${PORT}/${DB}",
            {
                "host": "a.internal",
                "port": 7000,
                "db": 3,
                "username": "app",
                "password": ENVIRONMENT["PW"],
                "ssl": True,
            },
        ),
        ("redis://:${PW}@h?db=${DB}", {"host": "h", "db": 3, "password": ENVIRONMENT["PW"]}),
        ("redis://h?password=${PW}", {"host": "h", "password": ENVIRONMENT["PW"]}),
        ("redis://${PW}@h", {"host": "h", "username": ENVIRONMENT["PW"]}),
        ("unix:///run/${HOST}.sock", {"unix_socket_path": "/run/a.internal.sock"}),
        ("redis://h?decode_responses=false", {"host": "h", "decode_responses": False}),
        ("redis://h?client_name=a%2Bb", {"host": "h", "client_name": "a+b"}),
        ("redis://h?decode_responses=${NO}", {"host": "h", "decode_responses": False}),
        ("valkey://h:1", {"host": "h", "port": 1}),
        ("valkeys://h", {"host": "h", "ssl": True}),
        ("redis://u%2520:p%25@h", {"host": "h", "username": "u%20", "password": "p%"}),
    ],
)  # fmt: skip
def test_a_url_is_taken_apart(url: str, fields: dict[str, Any]) -> None:
    assert Entry({"url": url}).resolved("k", ENVIRONMENT) == fields


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_a_password_from_the_environment_may_hold_any_text(password: str) -> None:
    environment = {"PW": password}
    assert Entry({"password": "${PW}"}).resolved("k", environment)["password"] == password
    url = Entry({"url": "redis://u:${PW}@[::1]:1/2"})
    assert url.resolved("k", environment).get("password", "") == password
    assert url.resolved("k", environment)["host"] == "::1"


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
def test_a_password_in_a_url_may_be_percent_encoded(password: str) -> None:
    assume(not re.search(r"\$\{[A-Za-z_]\w*\}", password))
    entry = Entry({"url": f"redis://u:{quote(password, safe='')}@h"})
    assert entry.resolved("k", {})["password"] == password


def test_a_name_that_the_environment_lacks_is_named_with_the_key_and_the_field() -> None:
    for fields, field in [
        ({"password": "${NOPE}"}, "password"),
        ({"url": "redis://:${NOPE}@h"}, "url"),
        ({"sentinel": {"service": "${NOPE}", "sentinels": [["s", 1]]}}, "sentinel.service"),
        ({"replicas": [{"host": "${NOPE}"}]}, "host"),
    ]:
        with pytest.raises(ConfigError, match=rf"config:redis:a.*{field} refers to \$\{{NOPE\}}"):
            Entry(fields).resolved("config:redis:a", {})


@pytest.mark.parametrize(
    ("fields", "given", "word"),
    [
        ({"host": "${V}"}, "", "host"),
        ({"host": "${V}"}, "redis://:hunter2@h", "host"),
        ({"ssl": True, "ssl_cert_reqs": "${V}"}, "hunter2", "ssl_cert_reqs"),
        ({"encoding": "${V}"}, "hunter2", "encoding"),
        *(({"password": "${V}"}, given, "password") for given in ("hunter2\udc80", "hunter2\0")),
        *(
            ({"url": "${V}"}, given, "url")
            for given in (
                *("hunter2", "", "redis://:hunter2@h/x", "${V}", "redis://h:${V}"),
                *("redis://:6379/0", "redis:///0"),
            )
        ),
        ({"url": "redis://${V}:1"}, "", "url"),
        ({"url": "redis://${V}/1"}, ":7000", "url"),
        ({"url": "redis://h:${V}"}, "hunter2", "url"),
        ({"url": "redis://h/${V}"}, "hunter2", "url"),
        ({"url": "redis://h?decode_responses=${V}"}, "maybe", "url"),
        ({"url": "redis://h?protocol=${V}"}, "4", "protocol"),
        ({"sentinel": {**SENTINELS, "service": "${V}"}}, "", "sentinel.service"),
        ({"sentinel": {**SENTINELS, "sentinels": [["${V}", 1]]}}, "", "sentinel.sentinels"),
        ({"replicas": [{"host": "${V}"}]}, "", "host"),
    ],
)
def test_values_from_the_environment_are_checked_and_not_shown(
    fields: dict[str, Any], given: str, word: str
) -> None:
    with pytest.raises(ConfigError, match=f"config:redis:a.*{word}") as caught:
        Entry(fields).resolved("config:redis:a", {"V": given})
    assert SECRET not in everything_about(caught.value)


# Secrets


@pytest.mark.parametrize(
    "fields",
    [
        {"url": "redis://h?ssl_cert_reqs=required"},
        {"url": "redis://h", "ssl_ca_certs": "/ca.pem"},
        {"url": "valkey://h", "ssl_ca_certs": "/ca.pem"},
        {"host": "h", "ssl_min_version": "TLSv1_2"},
        {"host": "h", "ssl": False, "ssl_min_version": "TLSv1_2"},
        {"unix_socket_path": "/s", "ssl_ca_certs": "/ca.pem"},
        {"sentinel": {"service": "m", "sentinels": [["s", 1]]}, "ssl_ca_certs": "/ca.pem"},
        {"host": "h", "replicas": [{"port": 2, "ssl_ca_certs": "/ca.pem"}]},
    ],
    ids=str,
)
def test_settings_of_tls_without_tls_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidEntryError, match=r"ssl_\w+ has no effect without TLS"):
        Entry(fields)
    Entry({"url": "${URL}", "ssl_ca_certs": "/ca.pem"})  # which may be rediss://


@pytest.mark.parametrize(
    "fields",
    [
        {"url": "rediss://h", "replicas": [{"url": "redis://b"}]},
        {"host": "h", "ssl": True, "replicas": [{"host": "c"}, {"url": "valkey://b"}]},
    ],
    ids=str,
)
def test_a_plain_url_of_a_replica_of_a_tls_master_is_refused(fields: dict[str, Any]) -> None:
    number = len(fields["replicas"]) - 1
    refused = rf"replicas\[{number}\]: ssl contradicts url.*ssl: false beside"
    with pytest.raises(InvalidEntryError, match=refused):
        Entry(fields)
    fields["replicas"][-1]["ssl"] = False  # that is meant
    assert not Entry(fields).resolved("k", {})["replicas"][-1]["ssl"]
    with pytest.raises(InvalidEntryError, match="ssl contradicts url"):
        Entry({"url": "rediss://h", "ssl": False})


@pytest.mark.parametrize(
    "fields",
    [
        {f"password:{SECRET}": None},
        {f"password={SECRET}": 1},
        {f"pass word {SECRET}": 1},
        {"password": [SECRET]},
        {"password": {"a": SECRET}},
        {"host": {"password": SECRET}},
        {"host": f"redis://:{SECRET}@h"},
        {"host": f"redis://:${{X}}{SECRET}@h"},
        {"sentinel": {"service": "m", "sentinels": [[f"${{X}}:{SECRET}@h", 1]]}},
        {"db": {"password": SECRET}, "cluster": True},
        {"db": f"rediss://u:{SECRET}@h"},
        {"sentinel": f"redis://:{SECRET}@h"},
        {"sentinel": {"service": "m", "sentinels": [f"redis://:{SECRET}@h"]}},
        {"sentinel": {"service": "m", f"password:{SECRET}": None}},
        {"replicas": [f"redis://:{SECRET}@h"]},
        {"replicas": f"redis://:{SECRET}@h"},
        *({"url": url} for url in (f"http://u:{SECRET}@h", f"u:{SECRET}@h", SECRET)),
        *(
            {"url": f"redis://{rest}"}
            for rest in (
                *(f":{SECRET}", f"u:{SECRET}/x@h", f"u:x/{SECRET}@h", f"u:12/{SECRET}@h"),
                *(f"u:12#{SECRET}@h", f"u:12?{SECRET}@h", f"u:12?{SECRET}", f"h/{SECRET}"),
                *(f"h#{SECRET}", f"h?%70assword={SECRET}", f"h?Password={SECRET}"),
                *(f"h?password={SECRET}&x=y@z", f"h?password={SECRET}#x", f"[{SECRET}"),
                *(f"[::1]{SECRET}@h", f"u:{SECRET} @h", f"u:{SECRET}@h:port"),
            )
        ),
        {"url": f"redis://u:{SECRET}@h", "host": "h"},
    ],
    ids=str,
)
def test_an_error_shows_no_secret(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidEntryError) as caught:
        Entry(fields)
    assert SECRET not in everything_about(caught.value)
    assert SECRET not in str(caught.value.problems)


anything = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(),
        st.just(f"redis://:{SECRET}@h"),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.text(), st.integers(), st.sampled_from(["password", *FIELDS])),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(st.one_of(st.text(), st.sampled_from([*FIELDS])), anything, max_size=4))
def test_any_object_is_an_entry_or_an_error_that_can_be_printed(fields: dict[str, Any]) -> None:
    try:
        entry = Entry(fields, "config:redis:a")
    except InvalidEntryError as error:
        said = f"{error} {error.problems} {pickle.loads(pickle.dumps(error)).message}"
    else:
        assert Entry.from_json(entry.to_json(), "k") == entry
        said = f"{entry!r}{entry.address}"
        json.dumps(entry.masked())
    assert SECRET not in said
    assert said.encode()


@given(st.text())
def test_any_text_is_a_url_or_an_error_that_can_be_printed(url: str) -> None:
    for written in (url, f"redis://{url}", f"redis://h?{url}", f"unix:///{url}"):
        try:
            entry = Entry({"url": written})
        except InvalidEntryError as error:
            said = str(error)
        else:
            said = entry.address
            try:
                assert isinstance(entry.resolved("k", {}), dict)
            except ConfigError as error:
                said += str(error)
        assert said.encode()


# ---- as a URL


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"host": "a.internal", "port": 7000, "db": 3},
        {"host": "::1", "username": "ü", "password": "p@/:#?% "},
        {"host": "a", "username": "app"},
        {"unix_socket_path": "/run/my redis.sock", "db": 2, "password": "p"},
        {"unix_socket_path": "/run/redis.sock"},
        {"host": "a", "ssl": True, "ssl_cert_reqs": "none", "ssl_check_hostname": False},
        {"url": "rediss://u:%24p@h/1?ssl_ca_certs=/ca.pem"},
    ],
)
def test_the_url_of_an_entry_leads_to_the_same_place(fields: dict[str, Any]) -> None:
    entry = Entry(fields)
    again = Entry({"url": entry.url()})
    assert again.address == entry.address
    said = {**again.resolved("again")}
    for name, value in entry.resolved("entry").items():
        assert said[name] == value
    assert again.url() == entry.url()


def test_a_url_has_the_secrets_of_the_environment_and_errors_have_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = Entry({"host": "a", "password": "${PW}"})
    monkeypatch.setenv("PW", "own")
    assert entry.url() == "redis://:own@a:6379/0"
    assert entry.url(environ={"PW": "x/y"}) == "redis://:x%2Fy@a:6379/0"
    with pytest.raises(ConfigError, match="config:redis:c: password refers to"):
        entry.url("config:redis:c", {})
    for fields in ({"cluster": True}, {"sentinel": {"service": "m", "sentinels": [["s", 1]]}}):
        with pytest.raises(ConfigError, match="has no URL; give the library a client"):
            Entry({**fields, "password": SECRET}).url()


@pytest.mark.parametrize(
    ("allowed", "is_allowed"),
    [
        (None, True),
        ("", False),
        ("OTHER_", False),
        ("OTHER_,REDIS_", True),
        ("OTHER REDIS_PW", True),
    ],
)
def test_an_operator_can_limit_the_names_that_entries_refer_to(
    monkeypatch: pytest.MonkeyPatch, allowed: str | None, is_allowed: bool
) -> None:
    if allowed is not None:
        monkeypatch.setenv("SHARDKIT_ALLOW_ENV", allowed)
    for fields in ({"password": "${REDIS_PW}"}, {"url": "redis://:${REDIS_PW}@h"}):
        if is_allowed:
            assert Entry(fields).resolved("k", {"REDIS_PW": "s"})["password"] == "s"
            continue
        with pytest.raises(ConfigError, match=r"REDIS_PW}, which SHARDKIT_ALLOW_ENV does not"):
            Entry(fields).resolved("k", {"REDIS_PW": "s"})


def test_a_password_file_is_a_small_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero"), tmp_path):
        with pytest.raises(ConfigError, match=f"password_file {path} cannot be used"):
            Entry({"password_file": str(path)}).resolved("k")
