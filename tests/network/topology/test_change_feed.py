"""Clients are told of changed entries, and read nothing while nothing changes."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis

import shardkit
from shardkit import ShardMap
from shardkit.admin import push
from shardkit.errors import MissingEntryError
from shardkit.local import LocalServer
from shardkit.network.topology import cache
from shardkit.network.topology.feed import BEAT, ChangeFeed


@pytest.fixture
def config_server() -> Iterator[LocalServer]:
    with LocalServer(name="config") as running:
        yield running


def entries(server: LocalServer, shards: int, first: int = 1) -> ShardMap:
    """A component of so many shards, in few databases."""
    listed = [{"port": server.port, "db": first + n % 3} for n in range(shards)]
    return ShardMap.parse(json.dumps({"components": {"users": {"shards": listed}}}))


def connected(server: LocalServer) -> shardkit.ShardKit:
    return shardkit.connect(f"redis://{server.address}")


def until(condition: Callable[[], bool], seconds: float = 5.0) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds
        time.sleep(0.001)
    return time.monotonic() - began


def told(kit: shardkit.ShardKit) -> None:
    """Wait until a kit is told of changes."""
    kit.key_sharded("users")["a"].get("a")
    until(lambda: kit.topology._feed is not None and kit.topology._cache["users"].read_at > 0)


def test_changes_are_used_within_milliseconds(config_server: LocalServer) -> None:
    with (
        config_server.client() as client,
        shardkit.connect(f"redis://{config_server.address}") as kit,
    ):
        push(client, entries(config_server, 3))
        told(kit)
        took = []
        for first in (4, 7, 1):
            push(client, entries(config_server, 3, first))
            took.append(until(lambda first=first: database_of(kit) == first))
        stored = json.loads(client.get("config:redis:users:0"))
        client.set("config:redis:users:0", json.dumps({**stored, "db": 9}))
        took.append(until(lambda: database_of(kit) == 9))
        assert min(took) < 0.05, took
        until(lambda: announced(client) == {int(client.get("config:epoch"))})


def database_of(kit: shardkit.ShardKit) -> object:
    return kit.topology.last_known("users").shards[0].fields["db"]


def test_idleness_is_quiet(config_server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardkit.network.topology.feed.BEAT", 0.1)
    with (
        config_server.client() as client,
        shardkit.connect(f"redis://{config_server.address}") as kit,
    ):
        push(client, entries(config_server, 1000))
        told(kit)
        asked: list[list[str]] = []
        fetch = kit.topology.source.fetch
        monkeypatch.setattr(
            kit.topology.source, "fetch", lambda keys: asked.append(keys) or fetch(keys)
        )
        cached = kit.topology._cache["users"]
        until(lambda: cached.fresh_until > time.monotonic() + cache.INTERVAL)
        asked.clear()
        before = client.info("commandstats")["cmdstat_mget"]["calls"]
        router = kit.key_sharded("users")
        until(
            lambda: (
                router["a"].get("a") is None
                and client.info("commandstats")["cmdstat_mget"]["calls"] >= before + 5
            )
        )
        # Five times, whether the server is there; no entries. Once it said which epoch it has.
        assert asked in ([], [["config:epoch"]])
        asked.clear()
        push(client, entries(config_server, 1000, 4))
        until(lambda: database_of(kit) == 4)
        assert 1 <= len(asked) <= 3


def test_idle_beats_are_rare(config_server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert BEAT > 1, "seconds"
    monkeypatch.setattr("shardkit.network.topology.feed.BEAT", 0.2)
    with config_server.client() as client:
        push(client, entries(config_server, 1000))
        with connected(config_server) as kit:
            told(kit)

            def sent() -> int:
                ours = ("cmdstat_mget", "cmdstat_get", "cmdstat_scan", "cmdstat_client|setname")
                said = client.info("commandstats")
                return sum(said.get(name, {}).get("calls", 0) for name in ours)

            beats = kit.topology._feed
            assert beats is not None
            due = beats._beat
            until(lambda: beats._beat != due)  # what belongs to its beginning is over
            before, began = sent(), beats._beat
            until(lambda: beats._beat > began + 0.9)  # five times, or more seldom
            assert sent() - before <= 5 + 1


def test_a_new_feed_catches_up(config_server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        config_server.client() as client,
        shardkit.connect(f"redis://{config_server.address}") as kit,
    ):
        push(client, entries(config_server, 3))
        told(kit)
        client.client_kill_filter(_type="normal", skipme=True)
        push(client, entries(config_server, 3, 4))
        until(lambda: database_of(kit) == 4)
        until(lambda: kit.topology._feed is not None)
        push(client, entries(config_server, 3, 7))
        until(lambda: database_of(kit) == 7)


@pytest.fixture
def feed(own_server: LocalServer) -> Iterator[ChangeFeed]:
    """A feed that is told of changes on a server of each kind."""
    found = ChangeFeed(redis.Connection(host="127.0.0.1", port=own_server.port, protocol=3))
    yield found
    found.release()


def test_a_released_feed_leaves_nothing(feed: ChangeFeed, own_server: LocalServer) -> None:
    with own_server.client() as client:
        before = len(client.client_list())
        feed.release()
        until(lambda: len(client.client_list()) == before - 1)


def test_a_server_that_says_nothing_for_two_beats_is_away(
    feed: ChangeFeed, own_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardkit.network.topology.feed.BEAT", 0.05)
    assert feed.wait() == (set(), 0)
    own_server.pause()
    try:
        with pytest.raises(redis.ConnectionError, match="config server does not answer"):
            feed.wait()
    finally:
        own_server.resume()


def test_a_flush_changes_everything(feed: ChangeFeed, own_server: LocalServer) -> None:
    with own_server.client() as client:
        assert feed.wait() == (set(), 0)
        client.set("config:redis:users:0", "{}")
        assert feed.wait()[0] == {"users"}
        transaction = client.pipeline().set("config:redis:c", "{}").flushall()
        transaction.set("config:redis:d", "{}").execute()  # all that is told at once
    assert feed.wait()[0] is None


def test_the_name_that_the_config_servers_entry_gives_stays(config_server: LocalServer) -> None:
    with (
        config_server.client() as client,
        shardkit.connect(f"redis://{config_server.address}?client_name=mine") as kit,
    ):
        push(client, entries(config_server, 3))
        told(kit)
        push(client, entries(config_server, 3, 4))
        until(lambda: database_of(kit) == 4)
        names = [each["name"] for each in client.client_list()]
        assert not [name for name in names if name.startswith("shardkit:config-server")]
        assert names.count("mine") == 2  # that of the feed, and that of what reads


def test_no_right_to_track(config_server: LocalServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "shardkit")
    with config_server.client() as client:
        push(client, entries(config_server, 3))
        client.execute_command(
            "ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@all", "-client|tracking"
        )
        where = f"redis://reader:secret@127.0.0.1:{config_server.port}"
        with shardkit.connect(where) as kit:
            kit.key_sharded("users")["a"].get("a")
            push(client, entries(config_server, 3, 4))
            until(lambda: database_of(kit) == 4)
            assert kit.topology._feed is None
            assert f"{kit.topology.source} does not tell of changes: " in caplog.text


def test_a_change_that_comes_while_a_caller_reads_is_not_missed(config_server: LocalServer) -> None:
    with (
        config_server.client() as client,
        shardkit.connect(f"redis://{config_server.address}") as kit,
    ):
        push(client, entries(config_server, 3))
        told(kit)
        cached = kit.topology._cache["users"]
        with cached.lock:  # as a caller that has its answer, and has not stored it
            push(client, entries(config_server, 3, 4))
            time.sleep(0.1)  # time in which the feed would have stored it
            assert database_of(kit) == 1
        until(lambda: database_of(kit) == 4)
        assert cached.fresh_until > time.monotonic() + cache.INTERVAL


def test_change_that_cannot_be_read_stays_due_and_is_not_announced(
    config_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardkit.network.topology.feed.BEAT", 0.2)
    with config_server.client() as client, connected(config_server) as kit:
        push(client, entries(config_server, 3))
        told(kit)
        epoch = int(client.get("config:epoch"))
        until(lambda: announced(client) == {epoch})
        fetch, failed, well = kit.topology.source.fetch, threading.Event(), threading.Event()

        def fetch_if_well(keys: list[str]) -> list[object]:
            if "config:shards:users" in keys and not well.is_set():
                failed.set()
                raise redis.TimeoutError("busy")
            return fetch(keys)

        monkeypatch.setattr(kit.topology.source, "fetch", fetch_if_well)
        push(client, entries(config_server, 3, 4))
        assert failed.wait(5)
        with pytest.raises(MissingEntryError, match="config:redis:other"):
            kit.component("other")  # reads the new epoch
        time.sleep(0.5)  # two beats
        assert announced(client) == {epoch}
        well.set()
        until(lambda: database_of(kit) == 4)
        until(lambda: announced(client) == {epoch + 1})


def test_more_than_1024_descriptors(
    config_server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        for _ in range(1024):
            stack.enter_context(socket.socket())
        client = stack.enter_context(config_server.client())
        kit = stack.enter_context(connected(config_server))
        push(client, entries(config_server, 3))
        told(kit)
        push(client, entries(config_server, 3, 4))
        until(lambda: database_of(kit) == 4)
        assert not caplog.messages


def announced(client: redis.Redis) -> set[int]:
    """The epochs that the kit says it uses."""
    names = [each["name"].partition("@")[0] for each in client.client_list()]
    prefix = "shardkit:config-server/"
    return {int(name.removeprefix(prefix)) for name in names if name.startswith(prefix)}


def test_watches_end_quietly(config_server: LocalServer, caplog: pytest.LogCaptureFixture) -> None:
    with connected(config_server) as kit:
        topology = kit.topology
    left = iter([topology, None])
    cache._watch(lambda: next(left), threading.Event(), 0.01)
    assert next(left) is None
    assert caplog.messages == []
