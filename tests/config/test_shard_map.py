"""Shard maps: what a YAML file may say, and everything that can be wrong with one."""

from __future__ import annotations

import inspect
import json
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from arranged import everything_about
from hypothesis import given, settings, strategies as st
from resources import bounded

import shardkit
from shardkit import Entry, LuaScript, ShardKitError, ShardMap, admin, from_json, to_json
from shardkit.admin import growth
from shardkit.dashboard import FleetWatch, application
from shardkit.errors import ConfigError, InvalidArgumentError, InvalidEntryError
from shardkit.integrations import asgi, otel, prometheus, wsgi
from shardkit.network import health

ROOT = Path(__file__).parents[2]
MAX_SHARDS = 16_384
SECRET = "hunter2"


def addresses(shard_map: ShardMap, name: str) -> list[str]:
    return [entry.address for entry in shard_map.components[name].shards]


def entry(text: str, defaults: str = "{}") -> Entry:
    parsed = ShardMap.parse(f"defaults: {defaults}\ncomponents: {{a: {{entry: {text}}}}}")
    found = parsed.components["a"].entry
    assert found is not None
    return found


def test_null_in_an_entry_takes_a_default_away() -> None:
    assert entry("{password: null}", "{password: secret}") == Entry({})


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("configs/local.yaml", "a path; read a file with ShardMap.load(path)"),
        (Path("local"), "a path; read a file with ShardMap.load(path)"),
        ({"components": {}}, "a value of type dict; pass the text"),
        (b"components: {}", "a value of type bytes; pass the text"),
    ],
    ids=str,
)
def test_parse_says_that_it_takes_text(text: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"text of a shard map, not {what}")):
        ShardMap.parse(text)


@pytest.mark.parametrize("odd", [{"c": {"entry": {}}}, {"c": None}, None, []])
def test_a_map_is_made_of_components(odd: Any) -> None:
    with pytest.raises(ConfigError, match=r"takes components; pass YAML text to ShardMap\.parse"):
        ShardMap(odd)


@pytest.mark.parametrize("address", ["localhost:6379", "10.0.0.1:6379/2"])
def test_an_address_in_place_of_a_map_gets_its_url(address: str) -> None:
    hint = re.escape(f"or the config server's URL: redis://{address}")
    for open_it in ShardMap.load, shardkit.connect, shardkit.configure:
        with pytest.raises(ConfigError, match=hint):
            open_it(address)


def problems(text: str) -> list[str]:
    with pytest.raises(InvalidEntryError) as caught:
        ShardMap.parse(text, "map.yaml")
    assert all(problem.remedy for problem in caught.value.problems)
    return [str(problem) for problem in caught.value.problems]


def same(one: ShardMap, two: ShardMap) -> bool:
    return one.components.keys() == two.components.keys() and all(
        component.same_as(two.components[name]) for name, component in one.components.items()
    )


def test_the_examples_of_the_page_can_be_used() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    first, short, *_ = (block.partition("```")[0] for block in page.split("```yaml\n")[1:])
    parsed = ShardMap.parse(first)
    assert parsed.warnings == ()
    shards = ShardMap.parse(f"components:\n{short}").components["timelines"].shards
    assert shards[5].address == "b.internal:6379/3"
    ports = short.replace("databases", "ports")
    shards = ShardMap.parse(f"components:\n{ports}").components["timelines"].shards
    assert shards[5].address == "b.internal:6381/1"


# Defaults


@pytest.mark.parametrize(
    ("fields", "defaults", "merged"),
    [
        ("{}", "{host: a, port: 1}", {"host": "a", "port": 1}),
        ("{host: b}", "{host: a, port: 1}", {"host": "b", "port": 1}),
        ("{port: 2}", "{host: a, port: 1}", {"host": "a", "port": 2}),
        ("{port: 2}", "{host: a}", {"host": "a", "port": 2}),
        ("{db: 2}", "{url: 'redis://a/1'}", {"url": "redis://a/1", "db": 2}),
        ("{db: 2}", "{unix_socket_path: /a}", {"unix_socket_path": "/a", "db": 2}),
        ("{host: b}", "{url: 'redis://a'}", {"host": "b"}),
        ("{host: b}", "{unix_socket_path: /a}", {"host": "b"}),
        ("{url: 'redis://b'}", "{host: a, port: 1}", {"url": "redis://b"}),
        ("{url: 'rediss://b'}", "{host: a, ssl: true}", {"url": "rediss://b"}),
        ("{url: 'unix:///b'}", "{ssl: true, ssl_ca_certs: /a}", {"url": "unix:///b"}),
        ("{ssl: false}", "{ssl: true, ssl_ca_certs: /a}", {"ssl": False}),
        ("{url: 'redis://b'}", "{db: 3}", {"url": "redis://b", "db": 3}),
        ("{url: 'redis://b/1'}", "{db: 3, username: u}", {"url": "redis://b/1", "username": "u"}),
        ("{url: 'redis://:p@b'}", "{username: u, password: q}", {"url": "redis://:p@b"}),
        ("{url: 'redis://v:p@b'}", "{username: u, password: q}", {"url": "redis://v:p@b"}),
        ("{url: 'redis://b?db=1'}", "{db: 3}", {"url": "redis://b?db=1"}),
        ("{url: '${URL}'}", "{db: 3, password: q, protocol: 3}", {"url": "${URL}", "protocol": 3}),
        ("{unix_socket_path: /b}", "{host: a, ssl: true}", {"unix_socket_path": "/b"}),
        ("{cluster: true}", "{host: a, db: 3}", {"host": "a", "cluster": True}),
        ("{socket_timeout: null}", "{socket_timeout: 2}", {"socket_timeout": None}),
        ("{ssl: false}", "{ssl: true}", {"ssl": False}),
    ],
)  # fmt: skip
def test_defaults_fill_in_what_an_entry_does_not_say(
    fields: str, defaults: str, merged: dict[str, Any]
) -> None:
    assert entry(fields, defaults).fields == merged


def test_a_port_alone_does_not_silently_mean_this_host() -> None:
    text = "defaults: {url: 'redis://a'}\ncomponents: {b: {entry: {port: 7001}}}"
    assert problems(text) == ["map.yaml: components.b.entry: port has no host"]


# The short form


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{count: 3, over: [{host: a}, {host: b}]}", ["a:6379/0", "b:6379/0", "a:6379/1"]),
        ("{count: 3, over: [{host: a, db: 4}]}", ["a:6379/4", "a:6379/5", "a:6379/6"]),
        ("{count: 3, over: [{host: a}], spread: ports}", ["a:6379/0", "a:6380/0", "a:6381/0"]),
        ("{count: 2, over: [{host: a, port: 1, db: 3}], spread: ports}", ["a:1/3", "a:2/3"]),
        ("{count: 2, over: [{url: 'redis://a:1/3'}]}", ["a:1/3", "a:1/4"]),
        ("{count: 2, over: [{unix_socket_path: /a}]}", ["unix:/a/0", "unix:/a/1"]),
        ("{count: 1, over: [{host: a}, {host: b}]}", ["a:6379/0"]),
    ],
)  # fmt: skip
def test_many_shards_are_spread_over_few_servers(text: str, expected: list[str]) -> None:
    parsed = ShardMap.parse(f"components: {{u: {{shards: {text}}}}}")
    assert addresses(parsed, "u") == expected


@pytest.mark.parametrize(
    ("shards", "problem"),
    [
        ("{count: 0, over: [{}]}", "components.u.shards.count = 0 cannot be used"),
        ("{count: true, over: [{}]}", "components.u.shards.count = true cannot be used"),
        ("{count: '4', over: [{}]}", 'components.u.shards.count = "4" cannot be used'),
        (f"{{count: {MAX_SHARDS + 1}, over: [{{}}]}}", "count = 16385 cannot be used"),
        ("{count: 99999999999999999999, over: [{}]}", "cannot be used"),
        ("{over: [{}]}", "components.u.shards.count = null cannot be used"),
        ("{count: 4}", "components.u.shards.over is not a list of servers"),
        ("{count: 4, over: []}", "components.u.shards.over is not a list of servers"),
        ("{count: 4, over: {host: a}}", "components.u.shards.over is not a list of servers"),
        ("{count: 4, over: [{}], spread: servers}", 'spread = "servers" cannot be used'),
        ("{count: 4, over: [{}], spread: [ports]}", "spread = a list cannot be used"),
        ("{count: 4, over: [{}], more: 1}", "components.u.shards.more is not known"),
        ("{count: 4, over: [a]}", "components.u.shards.over[0]: is a str"),
        ("{count: 256, over: [{host: a, hots: 1}]}", "over[0]: hots is not a field"),
        ("{count: 4, over: [{host: a, port: 65535}], spread: ports}", "shards[1]: port = 65536"),
        ("{count: 4, over: [{cluster: true}]}", "over[0].cluster = true makes a cluster a shard"),
        ("{count: 4, over: [{url: 'redis://a'}], spread: ports}", "no port to spread from"),
        ("{count: 4, over: [{unix_socket_path: /a}], spread: ports}", "no port to spread from"),
        ("{count: 4, over: [{url: '${URL}'}]}", "no number to spread from"),
        ("{count: 2, over: [{host: a, replicas: [{host: b, db: 0}]}]}", "db is not its master's"),
        ("{}", "components.u.shards.count = null"),
        ("[]", "components.u.shards is not a list of entries"),
        ("5", "components.u.shards is not a list of entries"),
        ("[5]", "components.u.shards[0]: is a int"),
        ("[{cluster: true}]", "components.u.shards[0].cluster = true makes a cluster a shard"),
        ("{0: {}, 2: {}}", "components.u.shards leaves a gap in the shard numbers: 1"),
        ("{1: {}}", "leaves a gap in the shard numbers: 0"),
        ("{99999999999999: {}}", "leaves a gap in the shard numbers: 0, 1, 2, 3, 4, …"),
        ("{0: {}, -1: {}}", "components.u.shards = -1 is negative"),
        ("{true: {}}", "components.u.shards.true is not known"),
        ("{0: {}, 0: {}}", "components.u.shards.0 appears twice"),
    ],
)
def test_shards_that_cannot_be_used_are_found(shards: str, problem: str) -> None:
    found = problems(f"components: {{u: {{shards: {shards}}}}}")
    assert any(problem in each for each in found), found
    assert len(found) < 10


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ("{unix_socket_path: /a}", "unix_socket_path contradicts cluster"),
        ("{host: a, replicas: [{port: 3}]}", "replicas contradicts cluster"),
    ],
)
def test_an_entry_that_contradicts_its_defaults_is_found(fields: str, problem: str) -> None:
    assert ShardMap.parse(f"components: {{u: {{entry: {fields}}}}}").components["u"].entry
    text = f"defaults: {{cluster: true}}\ncomponents: {{u: {{entry: {fields}}}}}"
    assert problems(text) == [f"map.yaml: components.u.entry: {problem}"]


@pytest.mark.parametrize("text", ["components: " + "[" * 100_000, "{a: " * 50_000, "- " * 50_000])
def test_what_is_nested_too_deeply_is_refused_before_it_is_read(text: str) -> None:
    with bounded(seconds=3), pytest.raises(ConfigError, match="it is nested more than 100 deep"):
        ShardMap.parse(text)
    with pytest.raises(ConfigError, match="is not a shard map"):
        ShardMap.parse("[" * 100 + "]" * 100)


def test_no_list_of_shards_is_too_long_to_be_refused() -> None:
    text = f"components: {{u: {{shards: [{'{},' * (MAX_SHARDS + 1)}]}}}}"
    assert problems(text) == ["map.yaml: components.u.shards = 16385 is too many"]


# Everything else


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("components: {}", "components describes no component"),
        ("{}", "components describes no component"),
        ("components: [a]", "components is not a mapping"),
        ("components: {a: {entry: {}}}\nmore: 1", "map.yaml:2: more is not known"),
        ("components: {a: {entry: {}}}\ndefaults: [1]", "defaults is not a mapping"),
        ("components: {a: {entry: {}}}\nconfig_server: 5", "config_server: is a int"),
        ("components: {a: }", "components.a is not a mapping"),
        ("components: {a: {}}", "components.a has neither entry nor shards"),
        ("components: {a: {entry: }}", "components.a has neither entry nor shards"),
        ("components: {a: {entry: 5}}", "components.a.entry: is a int"),
        ("components: {a: {entry: {hots: b}}}", "components.a.entry: hots is not a field"),
        ("components: {a: {entries: {}}}", "components.a.entries is not known"),
        ("components: {a: {entry: {}, placement: slot}}", "placement needs shards"),
        ("components: {a: {shards: [{}], placement: md5}}", "placement 'md5' is unknown"),
        ("components: {a: {shards: [{}], placement: }}", "names null as placement"),
        ("components: {a: {shards: [{}], placement: [x]}}", "names a list as placement"),
        ("components: {a b: {entry: {}}}", '"a b" is not a component\'s name'),
        *(
            (f"components: {{{json.dumps(name)}: {{entry: {{}}}}}}", "is not a component's name")
            for name in ("", ":", "a:", ":a", "a::b", "a\n", "\u00e9", "a{b}", "a*")
        ),
        ("components: {7: {entry: {}}}", "7 is not a component's name"),
        ("components: {'a:b:007': {entry: {}}}", "a:b:007 is the name of a shard"),
        ("components: {? [a] : {entry: {}}}", "is not a component's name"),
        ("components: {? {a: b} : {entry: {}}}", "is not a component's name"),
        ("components: {'a:0': {entry: {}}}", "a:0 is the name of a shard of 'a'"),
        ("epoch: -1\ncomponents: {a: {entry: {}}}", "epoch = -1 is not an epoch"),
        ("epoch: true\ncomponents: {a: {entry: {}}}", "epoch = true is not an epoch"),
        ("components: {a: {entry: {}}, a: {entry: {}}}", "map.yaml:1: components.a appears twice"),
        ("components: {a: {entry: {db: 1,\n db: 2}}}", "map.yaml:2: components.a.entry.db appears"),
        ("components: {a: {shards: [{db: 1, db: 1}]}}", "components.a.shards.0.db appears twice"),
        ('components: {a: {entry: {host: "\\ud800"}}}', "surrogates"),
        ("components: {a: {entry: {socket_timeout: .nan}}}", "socket_timeout = NaN cannot be used"),
        ("components: {a: {entry: {socket_timeout: .inf}}}", "socket_timeout = Infinity"),
        ("components: {a: {entry: {port: 0x" + "f" * 9999 + "}}}", "port = a huge number"),
        ("components: {a: {entry: {password: 0123}}}", "digits in quotes"),
        ("components: {a: {entry: {username: no}}}", "username = false"),
    ],
)
def test_mistakes_are_reported_with_their_position(text: str, problem: str) -> None:
    with pytest.raises(InvalidEntryError) as caught:
        ShardMap.parse(text, "map.yaml")
    found = [f"{each}; {each.remedy}" for each in caught.value.problems]
    assert any(problem in each for each in found), found
    "".join(found).encode()


LAUGHS = "".join(
    f"{c}: &{c} [{','.join([f'*{p}'] * 10)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "".join(
    f"{c}: &{c} {{<<: [{','.join([f'*{p}'] * 10)}]}}\n"
    for p, c in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.long(12)
@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "- a", "5", "{", "a: b: c", "\t", "a: 'b", "--- {}\n--- {}"),
        "a: !!python/object/apply:os.system [ls]",
        *("a: !tag b", "a: !!set {b}", "a: !!binary aGk=", "a: !!timestamp 2001-01-01"),
        *(f"a: !!{kind}" for kind in ("int b", "float b", "bool b", "int ''")),
        "a: " + "1" * 5000,
        "a: *b",
        "&a {components: *a}",
        "components: &a {b: *a}",
        "components: &a [*a]",
        "components: &a {<<: *a}",
        "components: {<<: 5}",
        "? &a {b: *a}\n: 1",
        *(opening * 1500 for opening in ("[", "a: {b: ", "- ", "? ")),
        "{a: " * 5000,
        "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + LAUGHS,
        "a: &a {x: 1}\n" + MERGES,
        "a: \x00",
        "a: \ud800",
    ],
    ids=lambda text: text[:30],
)
def test_hostile_text_is_no_map(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^map.yaml: is not") as caught:
        ShardMap.parse(text, "map.yaml")
    assert caught.value.remedy


@pytest.mark.parametrize(
    "text",
    [
        f"defaults: password={SECRET}",
        f"defaults: {{password: *{SECRET}}}",
        f"defaults: {{password: !{SECRET} x}}",
        f"defaults: {{password: !{SECRET}!{SECRET} x}}",
        f"defaults: {{password: %{SECRET}}}",
        f"defaults: {{password: @{SECRET}}}",
        f"defaults: {{password: `{SECRET}}}",
        f"defaults: {{password: '{SECRET}}}",
        f'defaults: {{password: "\\q{SECRET}"}}',
        f"defaults: {{password:{SECRET}}}",
        f"defaults: {{password: &a {SECRET}, username: &a b}}\ncomponents: {{}}",
        f"defaults: {{password: !!int {SECRET}}}",
        f"defaults: {{password: {SECRET}, password: {SECRET}}}",
        f"defaults: {{password={SECRET}: x, password={SECRET}: x}}",
        f"components: {{a: {{entry: 'redis://:{SECRET}@h'}}}}",
        f"components: {{a: 'redis://:{SECRET}@h'}}",
        f"components: {{a: {{shards: 'redis://:{SECRET}@h'}}}}",
        f"components: {{a: {{shards: ['redis://:{SECRET}@h']}}}}",
        f"components: {{a: {{shards: {{count: 'redis://:{SECRET}@h', over: [{{}}]}}}}}}",
        f"components: {{a: {{shards: {{count: 4, spread: 'redis://:{SECRET}@h', over: [{{}}]}}}}}}",
        f"components: {{a: {{shards: [{{}}], placement: {{password: {SECRET}}}}}}}",
        f"config_server: 'redis://:{SECRET}@h'",
        f"config_server: {{url: 'redis://:{SECRET}@h/x'}}",
        f"password={SECRET}",
        f"password={SECRET}: x",
    ],
)
def test_no_error_shows_a_piece_of_the_text_that_may_be_secret(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ShardMap.parse(text)
    assert SECRET not in everything_about(caught.value)


@pytest.mark.parametrize("content", [b"\xff", b"a: \xe9", None])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "map.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"map.yaml: cannot be read") as caught:
        ShardMap.load(path)
    assert caught.value.__context__ is None  # which would hold the text
    with pytest.raises(ConfigError, match="cannot be read"):
        ShardMap.load(tmp_path)
    with pytest.raises(InvalidArgumentError, match="without NUL"):
        ShardMap.load("a\0b")


# Warnings


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("{u: {shards: [{host: a}, {host: b}, {host: a}]}}", "u:0, u:2 share a:6379/0"),
        ("{u: {shards: [{}, {host: '::1'}, {host: 127.0.0.1}]}}", "u:0, u:1, u:2 share localhost"),
        ("{u: {entry: {host: a}, shards: [{host: a}]}}", "u, u:0 share a:6379/0"),
        ("{u: {shards: [{host: a}]}, v: {shards: [{host: a}]}}", "u, v share a:6379/0"),
        ("{u: {shards: [{host: a}]}, v: {entry: {url: 'redis://a'}}}", "u, v share a:6379/0"),
        (
            "{u: {shards: &s {count: 8, over: [{host: a}]}}, v: {shards: *s}}",
            "u, v share a:6379/0 and 7 more databases",
        ),
        (
            "{u: {shards: &s {count: 2, over: [{host: a}]}}, v: {shards: *s}}",
            "u, v share a:6379/0 and 1 more database:",
        ),
        (
            "{u: {shards: {count: 16, over: [{host: a}]}, placement: 'crc:crc-64'}}",
            "crc:crc-64 is uneven over 16 shards",
        ),
        (
            "{u: {shards: [{host: a}, {host: b}, {host: c}],"
            " placement: {name: twemproxy, names: [r, s, t], hash: crc32}}}",
            "is uneven over 3 shards",
        ),
    ],
)
def test_suspicious_maps_give_a_warning_with_the_reason(text: str, warning: str) -> None:
    [found] = ShardMap.parse(f"components: {text}").warnings
    assert warning in str(found)
    assert found.field.startswith("components")
    assert found.warning
    assert found.remedy


@pytest.mark.parametrize(
    "text",
    [
        "{u: {entry: {host: a}}, v: {entry: {host: a}}}",
        "{u: {shards: [{host: a}, {host: a, db: 1}, {host: a, port: 1}, {host: b}]}}",
        "{u: {shards: [{sentinel: {service: m, sentinels: [[s, 1]]}},"
        " {sentinel: {service: m, sentinels: [[t, 1]]}}]}}",
        "{u: {shards: {count: 256, over: [{host: a}]}, placement: 'crc:crc-64-jones'}}",
        "{u: {shards: [{host: a}, {host: b}],"
        " placement: {name: twemproxy, names: [r, s], weights: [1, 20]}}}",
    ],
)
def test_usual_maps_give_no_warning(text: str) -> None:
    assert ShardMap.parse(f"components: {text}").warnings == ()


# There and back

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
entries = st.fixed_dictionaries(
    {},
    optional={
        "host": st.sampled_from(["a", "b.internal", "::1", "2001-01-01", "no", "1e3", "0777"]),
        "port": st.integers(1, 65535),
        "db": st.integers(0, 2**31 - 1),
        "username": texts,
        "password": texts,
        "ssl": st.booleans(),
        "ssl_ca_data": texts.filter(bool),
        "socket_timeout": st.one_of(
            st.none(), st.integers(1, 10**6), st.floats(1e-9, 1e9, allow_nan=False)
        ),
        "decode_responses": st.booleans(),
        "replicas": st.lists(st.fixed_dictionaries({"host": st.just("r"), "password": texts})),
    },
).filter(lambda fields: fields.get("ssl") or "ssl_ca_data" not in fields)
maps = st.dictionaries(
    st.from_regex(r"\A[a-z][A-Za-z_.-]{0,5}(:[a-z]{1,3})?\Z"),
    st.one_of(
        st.fixed_dictionaries({"entry": entries}),
        st.fixed_dictionaries(
            {"shards": st.lists(entries, min_size=1, max_size=4)},
            optional={
                "entry": entries,
                "placement": st.sampled_from(["crc32", "slot", "rendezvous", "crc:crc-32c"]),
            },
        ),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=30)  # YAML is written and read four times in each
@given(maps, st.one_of(st.none(), entries))
def test_a_map_that_is_written_out_says_the_same(
    described: dict[str, Any], config_server: dict[str, Any] | None
) -> None:
    top = {"config_server": config_server, "components": described}
    parsed = ShardMap.parse(yaml.safe_dump(top))
    again = ShardMap.parse(parsed.to_yaml())
    assert same(parsed, again)
    assert again.config_server == parsed.config_server
    for name, component in described.items():
        found = again.components[name]
        assert [shard.fields for shard in found.shards] == component.get("shards", [])


@given(st.text())
def test_any_text_is_a_map_or_an_error_that_can_be_printed(text: str) -> None:
    for written in (text, f"components: {text}", f"components: {{a: {{entry: {text}}}}}"):
        try:
            found: ShardMap | str = ShardMap.parse(written)
        except ConfigError as error:
            found = str(error)
        if isinstance(found, str):
            assert found.encode()
        else:
            assert same(found, ShardMap.parse(found.to_yaml()))


yamls = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-5, 20), st.floats(), st.text(max_size=5),
        st.just(f"redis://:{SECRET}@h"),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["a", "components", "defaults", "config_server", "entry", "shards", "placement",
                 "count", "over", "spread", "host", "port", "db", "url", "password", "replicas",
                 "sentinel", "cluster", 0, 1, None, True]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=20,
)  # fmt: skip


@given(
    st.fixed_dictionaries(
        {"components": st.dictionaries(st.just("a"), yamls, min_size=1)},
        optional={"defaults": yamls, "config_server": yamls},
    )
)
def test_any_map_is_one_or_an_error_that_can_be_printed(described: dict[str, Any]) -> None:
    text = yaml.safe_dump(described)
    try:
        parsed = ShardMap.parse(text)
    except ConfigError as error:
        str(error).encode()
        assert SECRET not in str(getattr(error, "problems", error))  # noqa: PT017
    else:
        assert same(parsed, ShardMap.parse(parsed.to_yaml()))


def test_a_map_pickles() -> None:
    component = "{entry: {password: p}, shards: [{db: 1}, {db: 1}]}"
    shard_map = ShardMap.parse(f"config_server: {{db: 9}}\ncomponents: {{c: {component}}}")
    assert shard_map.warnings
    found = pickle.loads(pickle.dumps(shard_map))
    assert found.to_yaml() == shard_map.to_yaml()
    assert (found.config_server, found.warnings) == (shard_map.config_server, shard_map.warnings)


class Text(str):
    """Text of an application's own class."""


class Odd:
    def __repr__(self) -> str:
        return "<odd>"


ODD: list[Any] = [None, 7, True, float("nan"), 10**5_000, b"\xff", "\ud800", "\0", [], {"a": 1}]
ODD += [(), Text("x"), Odd(), object, bytearray(b"x"), "x" * 10_000]
MAP = ShardMap.parse("components: {c: {shards: [{port: 1}, {port: 2}]}}")
ENTRY = Entry({"host": "a"})
SCRIPT = LuaScript("return 1")
METHODS: list[Callable[..., Any]] = [
    *(ShardMap.load, ShardMap.decode, lambda text: ShardMap.parse(text), MAP.entry_of),
    *(Entry.from_json, ENTRY.resolved, ENTRY.url, Entry, LuaScript, to_json, from_json),
]
USUAL: dict[str, Any] = {"data": b"{}", "text": "{}", "component": "c", "number": 1, "fields": {}}


def calls(method: Callable[..., Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield calls with an odd argument each: (its name, all arguments)."""
    parameters = inspect.signature(method).parameters
    usual = {name: USUAL.get(name, "x") for name in parameters if name != "environ"}
    for name in parameters:
        for value in ODD:
            yield name, usual | {name: value}


@pytest.mark.parametrize("method", METHODS)
def test_odd_arguments_of_maps_are_errors_of_the_tree(method: Callable[..., Any]) -> None:
    raw, tried = [], 0
    for name, arguments in calls(method):
        tried += 1
        try:
            method(**arguments)
        except ShardKitError:
            pass
        except Exception as error:
            raw.append((name, type(arguments[name]), error))
    assert raw == []
    assert tried >= len(ODD)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ShardMap.load(7), "ShardMap: path=7; give text or a Path"),  # type: ignore[arg-type]
        (lambda: ShardMap.decode("x", "s"), "ShardMap: data='x'; give bytes"),  # type: ignore[arg-type]
        (lambda: MAP.entry_of("c", "1"), "ShardMap: number='1'; give an integer or None"),  # type: ignore[arg-type]
        (lambda: Entry.from_json(None, "k"), "Entry: text=None; give text or bytes"),  # type: ignore[arg-type]
        (lambda: ENTRY.resolved("k", None), "Entry: environ=None; give a mapping"),  # type: ignore[arg-type]
        (lambda: LuaScript(None), "LuaScript: text=None; give text"),  # type: ignore[arg-type]
        (lambda: SCRIPT(None, args=7), "LuaScript: args=7; give a list"),  # type: ignore[call-overload]
        (lambda: to_json({"a": "\ud800"}), r"'\ud800' is not UTF-8 text; pass its bytes"),
        (lambda: from_json("[" * 100_000), "a script's reply is not JSON: nested too deeply"),
    ],
)
def test_an_odd_argument_of_a_map_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{re.escape(message)}"):
        call()


LATER = redis.Redis(port=1)  # nothing is sent
PUBLIC = [FleetWatch, application] + [
    getattr(module, name)
    for module in (admin, growth, asgi, wsgi, otel, prometheus, health)
    for name in module.__all__
    if inspect.isfunction(getattr(module, name)) or module in (asgi, wsgi)
]


@pytest.mark.parametrize("call", PUBLIC, ids=lambda call: f"{call.__module__}.{call.__qualname__}")
def test_an_odd_argument_of_an_operator_s_function_is_named(call: Callable[..., Any]) -> None:
    odd = Odd()
    parameters = [
        p for p in inspect.signature(call).parameters.values() if p.kind % 2
    ]  # have names
    required = {p.name: odd for p in parameters if p.default is p.empty}
    anything = ("Any", "Where", "BaseServer")
    checked = [p.name for p in parameters if not str(p.annotation).startswith(anything)]
    assert checked or call in (wsgi.init_flask, asgi.lifespan)
    for name in checked:
        with pytest.raises(
            InvalidArgumentError, match=rf"^{call.__name__}: {name}=(<odd>|\*+); give "
        ):
            call(**{name: odd, **required})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: growth.plan_growth("c", "h:1", growth=1, periods=1), "servers='h:1'; give a list"),
        (
            lambda: growth.plan_growth("c", [7], growth=1, periods=1),
            "servers=[7]; give a list of text",
        ),  # type: ignore[list-item]
        (
            lambda: growth.plan_growth("c", (n for n in [7]), growth=1, periods=1),
            "servers=[7]; give",
        ),  # type: ignore[arg-type]
        (lambda: admin.check([MAP]), "components=["),  # type: ignore[list-item]
        (
            lambda: admin.estimate_disk_rate(1, 1, {"save": 7}),
            "settings={'save': 7}; give a mapping",
        ),  # type: ignore[dict-item]
        (lambda: admin.execute([], ["PING"], once_per="node"), "once_per='node'; give one of"),  # type: ignore[arg-type]
        (lambda: admin.execute([], ["PING"], timeout=0), "timeout=0; give seconds, 0.001 to"),
        (
            lambda: admin.rotate(LATER, ENTRY, "u", "caf\udce9"),
            "rotate: password=***; give text or",
        ),
        (lambda: admin.verify("a\0b"), "directory='a\\x00b'; give text or a Path"),
    ],
)
def test_what_an_odd_argument_contains_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        call()
