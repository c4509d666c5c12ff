"""The config server: what is pushed there is there as a whole, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import redis
from arranged import everything_about, map_of
from click.testing import CliRunner
from hypothesis import given, settings, strategies as st
from redis.backoff import NoBackoff
from redis.retry import Retry

from shardkit import Entry, ShardMap
from shardkit.admin import push as admin_push
from shardkit.cli.app import app
from shardkit.config import store
from shardkit.config.component import Component
from shardkit.config.store import (
    EPOCH_KEY,
    ComponentChange,
    diff,
    pull,
    push,
    read_component,
    read_components,
)
from shardkit.errors import (
    ConfigError,
    ConfigServerError,
    InvalidEntryError,
    MissingEntryError,
    PushRefusedError,
)
from shardkit.local import LocalServer

SECRET = "hunter2"


def shard_map(text: str) -> ShardMap:
    return ShardMap.parse(f"components: {text}", "map.yaml")


def unique(count: int, placement: str = "crc32", host: str = "a") -> ShardMap:
    over = f"over: [{{host: {host}, db: 1}}]"
    return shard_map(f"{{unique: {{placement: {placement}, shards: {{count: {count}, {over}}}}}}}")


TWO = shard_map(
    "{unique: {entry: {host: a}, shards: {count: 4, over: [{host: a, db: 1}, {host: b, db: 1}]},"
    f" placement: slot}}, hits: {{entry: {{host: h, password: {SECRET}}}}}}}"
)


def yes(component: Component) -> bool:
    return True


def no(component: Component) -> bool:
    return False


def kinds(changes: list[ComponentChange]) -> dict[str, str]:
    return {change.component: change.kind for change in changes}


def stored(client: redis.Redis) -> dict[bytes, bytes]:
    return {key: client.dump(key) for key in client.keys("*")}  # type: ignore[misc]


@pytest.fixture
def connect(server: LocalServer) -> Iterator[Callable[..., redis.Redis]]:
    """Opens clients of an empty config server."""
    with ExitStack() as stack:

        def open_client(**arguments: Any) -> redis.Redis:
            arguments = {"port": server.port, "retry": Retry(NoBackoff(), 0), **arguments}
            return stack.enter_context(redis.Redis(**arguments))

        open_client().flushall()
        yield open_client


READERS: dict[str, dict[str, Any]] = {
    "bytes": {},
    "text": {"decode_responses": True},
    "RESP3": {"protocol": 3},
    "RESP3 text": {"decode_responses": True, "protocol": 3},
}


@pytest.fixture(params=list(READERS))
def client(request: pytest.FixtureRequest, connect: Callable[..., redis.Redis]) -> redis.Redis:
    return connect(**READERS[request.param])


@pytest.fixture
def plain(connect: Callable[..., redis.Redis]) -> redis.Redis:
    return connect()


# There and back


def test_entries_are_stored_under_their_keys(plain: redis.Redis) -> None:
    push(plain, TWO)
    keys = {"config:redis:hits", "config:redis:unique", "config:shards:unique", EPOCH_KEY}
    keys |= {f"config:redis:unique:{n}" for n in range(4)}
    keys |= {"config:pushed", "config:pushed:unique", "config:history"}
    assert {key.decode() for key in plain.keys("*")} == keys
    assert json.loads(plain.get("config:redis:unique:3")) == {"host": "b", "db": 2}
    assert json.loads(plain.get("config:shards:unique")) == {
        "shards": 4,
        "placement": "slot",
        "epoch": 1,
    }


def test_a_pulled_map_names_the_config_server_that_it_is_told(plain: redis.Redis) -> None:
    push(plain, TWO)
    entry = Entry({"host": "config.internal"})
    assert pull(plain, entry).config_server == entry
    assert ShardMap.parse(pull(plain, entry).to_yaml()).config_server == entry
    assert pull(plain).config_server is None
    whole = Entry({"url": "${CONFIG_SERVER}"})  # it may name a user
    assert pull(plain, whole).config_server == whole


# Epochs


def test_a_push_that_changes_nothing_writes_nothing(plain: redis.Redis) -> None:
    push(plain, TWO)
    plain.set("config:redis:unique:3", ' {"db" : 2,  "host": "\\u0062"}')  # written differently
    before = stored(plain)
    assert set(kinds(push(plain, TWO, force=True)).values()) == {"unchanged"}
    assert stored(plain) == before


# Refusals


@pytest.mark.long(8)
@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (unique(8), unique(16), "from 8 to 16 shards"),
        (unique(8), unique(4), "from 8 to 4 shards"),
        (unique(8), unique(8, "slot"), "from placement crc32 to slot"),
        (unique(8), unique(9, "slot"), "from 8 to 9 shards and from placement crc32 to slot"),
        (unique(8), shard_map("{unique: {entry: {host: a}}}"), "from 8 to 0 shards"),
        (shard_map("{unique: {entry: {host: a}}}"), unique(8), "from 0 to 8 shards"),
    ],
)
def test_a_push_that_would_strand_data_is_refused(
    client: redis.Redis, before: ShardMap, after: ShardMap, words: str
) -> None:
    push(client, before)
    was = stored(client)
    for has_data in (yes, None):
        with pytest.raises(PushRefusedError, match=words) as caught:
            push(client, after, has_data=has_data)
        assert "'unique' holds data" in str(caught.value)
        assert "of 10,000 sample keys" in str(caught.value)
        assert "--force" in caught.value.remedy
        assert stored(client) == was
    [change] = push(client, after, has_data=no)
    assert change.kind == "changed"
    assert 0 < change.moved <= change.sampled == 10_000
    assert after.components["unique"].same_as(read_component(client, "unique"))
    push(client, before, force=True, has_data=yes)
    assert before.components["unique"].same_as(read_component(client, "unique"))
    shards = len(before.components["unique"].shards)
    assert len(list(client.scan_iter("config:redis:unique:*"))) == shards  # none too many


def test_nothing_is_written_if_anything_is_refused(plain: redis.Redis) -> None:
    one, two = (
        f"{{a: {shards}, b: {shards}, c: {shards}, d: {{entry: {{}}}}}}"
        for shards in ("{shards: [{}]}", "{shards: [{}, {}]}")
    )
    push(plain, shard_map(one))
    before = stored(plain)
    asked: dict[str, int] = {}

    def has_data(component: Component) -> bool:
        asked[component.name] = len(component.shards)  # as it is now, not as it shall be
        return component.name != "c"

    with pytest.raises(PushRefusedError, match=r"nothing.*'a' holds data.*'b' holds") as caught:
        push(plain, shard_map(two.replace("d:", "new:")), has_data=has_data)
    assert "'c'" not in str(caught.value)
    assert asked == {"a": 1, "b": 1, "c": 1}
    assert stored(plain) == before


# Components that the map does not describe


def test_a_map_of_nothing_changes_nothing_and_leads_the_epoch_on(plain: redis.Redis) -> None:
    nothing = ShardMap({})
    assert push(plain, nothing) == []
    assert stored(plain) == {}
    push(plain, TWO)
    assert push(plain, nothing) == []
    assert plain.get(EPOCH_KEY) == b"1"
    assert push(plain, nothing, above=7) == []
    assert plain.get(EPOCH_KEY) == b"8"
    assert read_components(plain).keys() == TWO.components.keys()
    gone = push(plain, nothing, prune=True, has_data=no)
    assert kinds(gone) == {"hits": "removed", "unique": "removed"}


@pytest.mark.parametrize("allowed", [{"has_data": no}, {"has_data": yes, "force": True}])
def test_other_components_are_removed_if_empty_or_by_force(
    client: redis.Redis, allowed: dict[str, Any]
) -> None:
    push(client, TWO)
    new = shard_map("{new: {entry: {}}}")
    for has_data in (yes, None):
        with pytest.raises(PushRefusedError, match="'hits' holds data, and the push would remove"):
            push(client, new, prune=True, has_data=has_data)
    changes = push(client, new, prune=True, **allowed)
    assert kinds(changes) == {"hits": "removed", "unique": "removed", "new": "added"}
    assert sorted(read_components(client)) == ["new"]
    assert client.dbsize() == 4 + 2  # and the epochs of the removals


# What is broken


BROKEN: dict[str, list[str | bytes]] = {
    "config:redis:unique:7": [
        *("{", f'{{"password": "{SECRET}"', f'"redis://:{SECRET}@h"', b"\xff\xfe"),
        f'{{"passwrod": "{SECRET}", "password={SECRET}": 1, "min_release": "999"}}',
        f'{{"host": "redis://:{SECRET}@h"}}',
        *('{"host": "a", "host": "b"}', '{"cluster": true}'),
    ],
    "config:redis:unique": ["[" * 100_000],
    "config:shards:unique": [
        *("16", "{", f'{{"password": "{SECRET}"}}'),
        *(
            json.dumps({"shards": 8, "placement": "crc32", "epoch": 1} | wrong)
            for wrong in (
                *({"placement": name} for name in ("md5", "crc:md5", None, ["crc32"])),
                *({"shards": count} for count in (0, -1, True, 16.5, "16", 10**30, None)),
                *({"epoch": epoch} for epoch in (-1, True, 1.5, None)),
                *({"more": 1}, {f"password {SECRET}": SECRET}),
            )
        ),
        '{"placement": "crc32", "epoch": 1}',
    ],
}


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("config:redis:unique:7", None, MissingEntryError),
        ("config:shards:unique", None, MissingEntryError),
        *((key, value, InvalidEntryError) for key in BROKEN for value in BROKEN[key]),
    ],
)
def test_a_broken_entry_is_reported_by_its_key_and_replaced_by_a_push(
    client: redis.Redis, key: str, value: str | bytes | None, error: type[ConfigError]
) -> None:
    push(client, unique(8))
    if value is None:
        client.delete(key)
    else:
        client.set(key, value)
    for read in (read_components, lambda c: read_component(c, "unique"), pull):
        with pytest.raises(error, match=key + r"\b") as caught:
            read(client)
        assert caught.value.remedy
        assert SECRET not in everything_about(caught.value)
    was = stored(client)
    if key == "config:shards:unique":  # keys might move
        with pytest.raises(PushRefusedError, match=r"cannot be read.*config:shards:unique"):
            push(client, unique(8), has_data=no)
        assert stored(client) == was
        [change] = push(client, unique(8), force=True)
        assert change.shards_before == -1
    else:
        [change] = push(client, unique(8), has_data=yes)
        assert (change.shards_before, change.shards_after) == (8, 8)
        assert change.epoch == 2
    assert change.kind == "changed"
    assert unique(8).components["unique"].same_as(read_component(client, "unique"))


def test_another_count_over_a_broken_entry_is_refused(plain: redis.Redis) -> None:
    push(plain, unique(8))
    plain.set("config:redis:unique:7", "{")
    with pytest.raises(PushRefusedError, match="config:redis:unique:7: is not JSON"):
        push(plain, unique(4), has_data=no)
    push(plain, unique(4), force=True)
    assert len(list(plain.scan_iter("config:redis:unique:*"))) == 4


def test_broken_components_are_removed_by_force_only(plain: redis.Redis) -> None:
    push(plain, unique(2))
    plain.set("config:shards:unique", "{")
    new = shard_map("{new: {entry: {}}}")
    with pytest.raises(PushRefusedError, match="'unique' may hold data"):
        push(plain, new, prune=True, has_data=no)
    assert kinds(push(plain, new)) == {"new": "added"}  # it is left alone
    assert kinds(push(plain, new, prune=True, force=True))["unique"] == "removed"
    assert read_components(plain).keys() == {"new"}


def shards_of(client: redis.Redis, name: str) -> int:
    component = read_component(client, name)
    assert component is not None
    return len(component.shards)


def test_shards_beyond_the_count_are_not_read_and_go_with_the_next_change(
    plain: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    for name, further in (("beyond", "{ broken"), ("rest", '{"port": 7001, "spare": true}')):
        push(plain, shard_map(f"{{{name}: {{shards: [{{}}, {{}}]}}}}"))
        for number in (2, 70):
            plain.set(f"config:redis:{name}:{number}", further)
        assert len(read_components(plain)[name].shards) == shards_of(plain, name) == 2
    [message] = [r.getMessage() for r in caplog.records if r.name == "shardkit.config"]  # once
    assert message.startswith("config:redis:beyond:2 is stored, but config:shards:")
    push(plain, shard_map("{beyond: {shards: [{}, {port: 1}]}}"))
    assert len(list(plain.scan_iter("config:redis:beyond:*"))) == 2


@pytest.mark.parametrize(
    "key",
    [
        *(f"config:redis:{name}" for name in ("", "a b", ":0", "a\n", "é")),
        *(f"config:redis:unique:{rest}" for rest in ("", "007", "-1", "0:5", "9999999999")),
        *(b"config:redis:\xff", "config:shards:", "config:shards:unique:0"),
    ],
)
def test_a_key_of_no_component_is_named_and_left_alone_by_a_push(
    client: redis.Redis, key: str | bytes
) -> None:
    push(client, unique(2))
    client.set(key, "{}")
    if key == "config:redis:unique:-1":  # a fine name
        assert read_components(client).keys() == {"unique", "unique:-1"}
        return
    with pytest.raises(InvalidEntryError, match="belongs to no component") as caught:
        read_components(client)
    str(caught.value).encode()
    push(client, unique(2, host="b"), prune=True)
    assert client.exists(key)
    assert read_component(client, "unique") is not None


def test_a_key_of_another_type_is_named_and_replaced_by_a_push(client: redis.Redis) -> None:
    push(client, TWO)
    for key in ("config:redis:hits", "config:redis:unique", "config:redis:unique:1"):
        client.delete(key)
        client.hset(key, "host", "a")
        with pytest.raises(ConfigError, match=f"{key} "):
            read_components(client)
        push(client, TWO, has_data=yes)
        assert read_components(client).keys() == {"hits", "unique"}


def test_a_component_under_another_name_or_without_entries_is_refused(plain: redis.Redis) -> None:
    with pytest.raises(InvalidEntryError, match=": a is component 'b'"):
        push(plain, ShardMap({"a": Component("b", Entry({}))}))
    with pytest.raises(InvalidEntryError, match=": a has neither entry nor shards"):
        push(plain, ShardMap({"a": Component("a")}))
    assert plain.dbsize() == 0


# Differences


components = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.tuples(
        st.one_of(st.none(), st.integers(0, 1)),
        st.integers(0, 4),
        st.sampled_from(["crc32", "slot"]),
    ).filter(lambda drawn: drawn[0] is not None or drawn[1] > 0),
    min_size=1,
)


def _built(drawn: dict[str, tuple[int | None, int, str]]) -> ShardMap:
    return ShardMap(
        {
            name: Component(
                name,
                None if entry is None else Entry({"db": entry}),
                tuple(Entry({"db": n}) for n in range(shards)),
                rule if shards else "crc32",
            )
            for name, (entry, shards, rule) in drawn.items()
        }
    )


@settings(max_examples=40)
@given(st.lists(st.tuples(components, st.booleans()), min_size=1, max_size=5))
def test_after_any_pushes_there_is_what_was_pushed(
    server: LocalServer, pushes: list[tuple[dict[str, tuple[int | None, int, str]], bool]]
) -> None:
    with server.client() as client:
        client.flushall()
        expected: dict[str, Component] = {}
        epochs: dict[str, int] = {}
        for drawn, prune in pushes:
            wanted = _built(drawn)
            current = {name: c for name, c in expected.items() if prune or name in drawn}
            predicted = diff(current, wanted.components, [1])
            changes = push(client, wanted, prune=prune, force=True, sample=[1])
            assert kinds(changes) == kinds(predicted)
            expected = {**({} if prune else expected), **wanted.components}
            read = read_components(client)
            assert read.keys() == expected.keys()
            assert all(component.same_as(expected[name]) for name, component in read.items())
            for change in changes:
                component = read.get(change.component)
                if component is not None and not component.shards:
                    assert component.epoch == change.epoch == 0
                elif component is not None:
                    grew = component.epoch - epochs.get(change.component, 0)
                    assert (grew > 0) == (change.kind != "unchanged")
                    epochs[change.component] = component.epoch
            assert len(client.keys("config:shards:*")) == sum(bool(c.shards) for c in read.values())
            known = sum(len(c.shards) + (c.entry is not None) for c in read.values())
            assert len(client.keys("config:redis:*")) == known


# A real server, many at once


def test_pushes_that_meet_are_carried_out_one_after_the_other_and_read_as_a_whole(
    connect: Callable[..., redis.Redis],
) -> None:
    """Each push says its mark on every entry of `a` and `b`, and `c` comes and goes with them."""
    rounds, pushers = 6, 4

    def marked(mark: int) -> ShardMap:
        entries = [Entry({"client_name": str(mark), "db": n}) for n in range(1 + mark % 5)]
        built = {"a": Component("a", entries[0], tuple(entries)), "b": Component("b", entries[0])}
        if mark % 2:
            built["c"] = Component("c", None, tuple(entries))
        return ShardMap(built)

    def pusher(client: redis.Redis, number: int) -> list[int]:
        epochs = []
        for n in range(rounds):
            changes = push(client, marked(1 + number + pushers * n), prune=True, force=True)
            [change] = [each for each in changes if each.component == "a"]
            assert change.kind == "changed"
            epochs.append(change.epoch)
        return epochs

    def reader(client: redis.Redis, whole: bool) -> int:
        last = 0
        while not all(each.done() for each in pushing):
            read = read_components(client) if whole else {"a": read_component(client, "a")}
            components = {name: each for name, each in read.items() if each is not None}
            entries = [entry for each in components.values() for _, entry in each.entries()]
            [mark] = {int(entry.fields["client_name"]) for entry in entries}
            assert len(components["a"].shards) == 1 + mark % 5
            if whole:
                assert set(components) == ({"a", "b", "c"} if mark % 2 else {"a", "b"})
            assert components["a"].epoch >= last
            last = components["a"].epoch
        return last

    push(connect(), marked(0))
    clients = [connect() for _ in range(pushers + 2)]
    with ThreadPoolExecutor(pushers + 2) as threads:
        pushing = [threads.submit(pusher, clients[n], n) for n in range(pushers)]
        reading = [threads.submit(reader, clients[~n], bool(n)) for n in range(2)]
    # Exactly one epoch for each push, and every one was taken.
    epochs = sorted(epoch for each in pushing for epoch in each.result())
    assert epochs == list(range(2, 2 + rounds * pushers))
    assert all(each.result() for each in reading)
    assert read_components(connect())["a"].epoch == store.read_epoch(connect()) == epochs[-1]


def test_a_second_push_of_the_same_map_changes_nothing(
    connect: Callable[..., redis.Redis],
) -> None:
    clients = [connect() for _ in range(6)]
    with ThreadPoolExecutor(6) as threads:
        pushed = list(threads.map(lambda client: push(client, unique(16)), clients))
    assert [change.kind != "unchanged" for [change] in pushed].count(True) == 1
    assert read_components(connect())["unique"].epoch == 1


def test_a_push_sees_an_entry_written_by_hand_in_the_meantime(
    connect: Callable[..., redis.Redis],
) -> None:
    client, other = connect(), connect()
    push(client, unique(4))
    asked: list[int] = []

    def has_data(component: Component) -> bool:
        asked.append(len(component.shards))
        if len(asked) == 1:  # between reading and writing
            other.set("config:redis:unique:2", '{"host": "byhand"}')
        return False

    push(client, unique(8), has_data=has_data)
    assert asked == [4, 4]
    assert unique(8).components["unique"].same_as(read_component(client, "unique"))


def test_a_push_gives_up_when_others_always_come_first(
    connect: Callable[..., redis.Redis], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_PUSHES", 3)
    client, other = connect(), connect()
    push(client, unique(4))

    def has_data(component: Component) -> bool:
        other.incr(EPOCH_KEY)
        return False

    with pytest.raises(ConfigError, match="other pushes keep coming in between"):
        push(client, unique(8), has_data=has_data)
    assert len(read_components(client)["unique"].shards) == 4


@pytest.mark.parametrize(
    "read", [read_components, partial(store.components_at, epoch=1)], ids=["now", "then"]
)
def test_a_read_gives_up_when_pushes_always_come_in_between(
    plain: redis.Redis, monkeypatch: pytest.MonkeyPatch, read: Callable[[redis.Redis], Any]
) -> None:
    scan = store._scan
    reads: list[int] = []

    def meanwhile(client: redis.Redis) -> Any:
        found = scan(client)
        reads.append(len(found))
        if len(reads) < 3 or always:
            client.incr(EPOCH_KEY)
        return found

    always = False
    push(plain, unique(4))
    monkeypatch.setattr(store, "_scan", meanwhile)
    assert list(read(plain)) == ["unique"]
    assert len(reads) == 3
    always = True
    monkeypatch.setattr(store, "_READS", 5)
    with pytest.raises(ConfigServerError, match="the entries on the config server keep changing"):
        read(plain)
    assert len(reads) == 8


def test_a_connection_that_breaks_while_pushing_is_no_success(
    connect: Callable[..., redis.Redis],
) -> None:
    client, other = connect(), connect()
    push(client, unique(4))

    def has_data(component: Component) -> bool:
        other.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        return False

    with pytest.raises(ConfigServerError, match="the push may have been executed or not"):
        push(client, unique(8), has_data=has_data)
    assert len(read_components(client)["unique"].shards) == 4


def test_a_config_server_that_is_away_is_named(server: LocalServer) -> None:
    with redis.Redis(port=1, retry=Retry(NoBackoff(), 0)) as client:
        for use in (
            read_components,
            pull,
            lambda c: read_component(c, "a"),
            lambda c: push(c, TWO),
        ):
            with pytest.raises(ConfigServerError, match="config server cannot be used") as caught:
                use(client)
            assert caught.value.remedy


HISTORY_KEY = "config:history"
MOST_PUSHES = 100

Told = Callable[..., Any]


@pytest.fixture
def told(server: LocalServer) -> Told:
    """What a command of ``shardkit config`` says as JSON, or its error."""

    def run(*words: str) -> Any:
        at = ["-c", f"redis://{server.address}", "--json"]
        done = CliRunner().invoke(app, ["config", *words, *at])
        return done.stderr if done.exit_code else json.loads(done.stdout)

    return run


def timed_map(server: LocalServer, **timeouts: int) -> ShardMap:
    described = {
        name: {"shards": [{"port": server.port, "db": 1, "socket_timeout": seconds}]}
        for name, seconds in timeouts.items()
    }
    return replace(map_of(**described), source="some.yaml")


def test_a_push_says_who_when_from_where_and_why(
    plain: redis.Redis, server: LocalServer, told: Told
) -> None:
    admin_push(plain, timed_map(server, a=1), author="ada@ops", message="the first")
    admin_push(plain, timed_map(server, a=2))
    latest, first = told("history")["pushes"]
    said = {"epoch": 1, "author": "ada@ops", "source": "some.yaml", "message": "the first"}
    assert first == {**first, **said, "components": ["a"]}
    assert "@" in latest["author"]
    stored = json.loads(plain.lindex(HISTORY_KEY, 1))
    assert abs(stored["at"] - plain.time()[0]) < 60


def test_a_push_that_is_refused_or_changes_nothing_is_not_in_it(
    plain: redis.Redis, server: LocalServer, told: Told
) -> None:
    admin_push(plain, timed_map(server, a=1))
    admin_push(plain, timed_map(server, a=1))
    with pytest.raises(ConfigError, match="pushed: component 'a' holds data, and the push"):
        admin_push(plain, timed_map(server, b=1), prune=True)
    assert [each["epoch"] for each in told("history")["pushes"]] == [1]


def test_the_history_is_bounded(plain: redis.Redis, server: LocalServer, told: Told) -> None:
    for seconds in range(1, MOST_PUSHES + 6):
        admin_push(plain, timed_map(server, a=seconds), check=False)
    assert plain.llen(HISTORY_KEY) == MOST_PUSHES
    [shard] = told("show", "a", "--at", "5")["components"]["a"]["shards"]
    assert shard["socket_timeout"] == 5
    assert "choose one from 5 to 105" in told("show", "--at", "4")


WRONG = {"author": [7], "epoch": [True], "at": ["0"], "before": [{"a": 7}, {"a": {"k": 1}}]}


@pytest.mark.parametrize(
    "change",
    ["{}", "no JSON", '{"format": 2}', "[1]"]
    + [{field: value} for field in WRONG for value in WRONG[field]],  # type: ignore[attr-defined]
    ids=str,
)
def test_a_record_that_cannot_be_read_is_named(
    plain: redis.Redis, server: LocalServer, told: Told, change: Any
) -> None:
    admin_push(plain, timed_map(server, a=1))
    good = json.loads(plain.lindex(HISTORY_KEY, 0))
    plain.lpush(HISTORY_KEY, change if isinstance(change, str) else json.dumps(good | change))
    assert HISTORY_KEY in told("history")
