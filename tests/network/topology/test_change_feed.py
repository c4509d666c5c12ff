"""Clients are told of changed entries over few connections, and read nothing in between."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import redis
from faces import eventually
from link_helpers import paused
from scripted_server import scripted

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.admin import push
from shardkit.errors import MissingEntryError
from shardkit.local import LocalServer
from shardkit.network.topology import cache
from shardkit.network.topology.feed import ChangeFeed


class Fed:
    """A kit that is told of changes on its config server."""

    def __init__(self, server: LocalServer, stack: ExitStack) -> None:
        self.server = server
        self.client = stack.enter_context(server.client())
        self.url = f"redis://{server.address}"
        self._stack = stack

    def connect(self, url: str = "") -> None:
        self.kit = self._stack.enter_context(shardkit.connect(url or self.url))
        self.kit.key_sharded("users")["a"].get("a")

    def begin(self, url: str = "", shards: int = 3) -> None:
        self.push(1, shards)
        self.connect(url)
        assert eventually(self.is_fed)

    def is_fed(self) -> bool:
        """Whether the server tells the kit of changes."""
        return any("t" in each["flags"] for each in self.client.client_list())

    def push(self, first: int, shards: int = 3) -> None:
        """Push a component of so many shards, in few databases."""
        listed = [{"port": self.server.port, "db": first + n % 3} for n in range(shards)]
        described = json.dumps({"components": {"users": {"shards": listed}}})
        push(self.client, ShardMap.parse(described))

    def database(self) -> object:
        return self.kit.topology.last_known("users").shards[0].fields["db"]

    def uses(self, first: int) -> bool:
        """Whether a push is followed in time."""
        return bool(eventually(lambda: self.database() == first))

    def announced(self) -> set[int]:
        """The epochs that the kit says it uses."""
        names = [each["name"].partition("@")[0] for each in self.client.client_list()]
        prefix = "shardkit:config-server/"
        return {int(name.removeprefix(prefix)) for name in names if name.startswith(prefix)}

    def sent(self, *names: str) -> int:
        """How often the server was sent commands."""
        stats = self.client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in names)


@pytest.fixture
def fed() -> Iterator[Fed]:
    with LocalServer(name="config") as server, ExitStack() as stack:
        yield Fed(server, stack)


def test_idleness_is_quiet(fed: Fed, lower: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lower(feed_beat=0.1)
    fed.begin(shards=1000)
    asked: list[list[str]] = []
    source = fed.kit.topology.source
    fetch = source.fetch
    monkeypatch.setattr(source, "fetch", lambda keys: asked.append(keys) or fetch(keys))
    cached = fed.kit.topology._cache["users"]
    assert eventually(lambda: cached.fresh_until > time.monotonic() + cache.INTERVAL)
    asked.clear()
    before = fed.sent("mget")
    router = fed.kit.key_sharded("users")
    assert eventually(lambda: router["a"].get("a") is None and fed.sent("mget") >= before + 5)
    # Five times, whether the server is there; no entries. Once it said which epoch it has.
    assert asked in ([], [["config:epoch"]])
    asked.clear()
    fed.push(4, 1000)
    assert fed.uses(4)
    assert 1 <= len(asked) <= 3


def test_a_new_feed_catches_up(fed: Fed) -> None:
    fed.begin()
    fed.client.client_kill_filter(_type="normal", skipme=True)
    fed.push(4)
    assert fed.uses(4)
    assert eventually(fed.is_fed)
    fed.push(7)
    assert fed.uses(7)


@contextmanager
def feeding(port: int) -> Iterator[ChangeFeed]:
    """Have a feed over a connection of a kit's kind."""
    text = f"components: {{one: {{entry: {{port: {port}}}}}}}"
    with shardkit.connect(ShardMap.parse(text)) as kit:
        fed = ChangeFeed(kit.client("one").connection_pool.make_connection(protocol=3))
        yield fed
        fed.release()


@pytest.fixture
def feed(own_server: LocalServer) -> Iterator[ChangeFeed]:
    """A feed that is told of changes on a server of each kind."""
    with feeding(own_server.port) as fed:
        yield fed


def test_a_server_that_says_nothing_for_two_beats_is_away(
    feed: ChangeFeed, own_server: LocalServer, lower: Any
) -> None:
    lower(feed_beat=0.05)
    assert feed.wait() == (set(), 0)
    with paused(own_server), pytest.raises(redis.ConnectionError, match="server does not answer"):
        feed.wait()


def test_a_flush_changes_everything(feed: ChangeFeed, own_server: LocalServer) -> None:
    with own_server.client() as client:
        assert feed.wait() == (set(), 0)
        client.set("config:redis:users:0", "{}")
        assert feed.wait()[0] == {"users"}
        transaction = client.pipeline().set("config:redis:c", "{}").flushall()
        transaction.set("config:redis:d", "{}").execute()  # all that is told at once
    assert feed.wait()[0] is None


def test_the_name_that_the_config_servers_entry_gives_stays(fed: Fed) -> None:
    fed.begin(f"{fed.url}?client_name=mine")
    fed.push(4)
    assert fed.uses(4)
    names = [each["name"] for each in fed.client.client_list()]
    assert not [name for name in names if name.startswith("shardkit:config-server")]
    assert names.count("mine") == 2  # that of the feed, and that of what reads


def test_no_right_to_track(fed: Fed, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "shardkit")
    rights = ("on", ">secret", "~*", "+@all", "-client|tracking")
    fed.client.execute_command("ACL", "SETUSER", "reader", *rights)
    fed.push(1)
    fed.connect(f"redis://reader:secret@127.0.0.1:{fed.server.port}")
    fed.push(4)
    assert fed.uses(4)
    assert not fed.is_fed()
    assert f"{fed.kit.topology.source} does not tell of changes: " in caplog.text


def test_a_change_that_comes_while_a_caller_reads_is_not_missed(fed: Fed) -> None:
    fed.begin()
    cached = fed.kit.topology._cache["users"]
    with cached.lock:  # as a caller that has its answer, and has not stored it
        fed.push(4)
        time.sleep(0.1)  # time in which the feed would have stored it
        assert fed.database() == 1
    assert fed.uses(4)
    assert cached.fresh_until > time.monotonic() + cache.INTERVAL


def test_change_that_cannot_be_read_stays_due_and_is_not_announced(
    fed: Fed, lower: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower(feed_beat=0.2)
    fed.begin()
    epoch = int(fed.client.get("config:epoch"))
    assert eventually(lambda: fed.announced() == {epoch})
    source, failed, well = fed.kit.topology.source, threading.Event(), threading.Event()
    fetch = source.fetch

    def fetch_if_well(keys: list[str]) -> list[object]:
        if "config:shards:users" in keys and not well.is_set():
            failed.set()
            raise redis.TimeoutError("busy")
        return fetch(keys)

    monkeypatch.setattr(source, "fetch", fetch_if_well)
    fed.push(4)
    assert failed.wait(5)
    with pytest.raises(MissingEntryError, match="config:redis:other"):
        fed.kit.component("other")  # reads the new epoch
    time.sleep(0.5)  # two beats
    assert fed.announced() == {epoch}
    well.set()
    assert fed.uses(4)
    assert eventually(lambda: fed.announced() == {epoch + 1})


def test_more_than_1024_descriptors(fed: Fed, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as stack:
        for _ in range(1024):
            stack.enter_context(socket.socket())
        fed.begin()
        fed.push(4)
        assert fed.uses(4)
        assert not caplog.messages


SERVERS, PROCESSES = 2, 12
KEYS = [f"k{n}" for n in range(100)]


class Fleet:
    """A config server, data servers, and a component of as many shards as wanted."""

    def __init__(self, stack: ExitStack, shards: int) -> None:
        self.config = stack.enter_context(LocalServer())
        databases = {"databases": shards}
        self.data = [stack.enter_context(LocalServer(config=databases)) for _ in range(SERVERS)]
        self.at_config = stack.enter_context(redis.Redis(port=self.config.port))
        self.at_data = [stack.enter_context(redis.Redis(port=each.port)) for each in self.data]
        self.url = f"redis://{self.config.address}"
        self._shards = shards
        self.push("a")

    def push(self, zone: str) -> None:
        """Push the map, with this zone in the first shard's entry."""
        entries: list[dict[str, object]] = [
            {"port": self.data[n % SERVERS].port, "db": n // SERVERS} for n in range(self._shards)
        ]
        entries[0]["zone"] = zone
        described = json.dumps({"components": {"users": {"shards": entries}}})
        push(self.at_config, ShardMap.parse(described))


def count(client: redis.Redis) -> int:
    """Count the connections of kits."""
    return sum(each["name"].startswith("shardkit:") for each in client.client_list())


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(stack, 256)


@contextmanager
def kits(fleet: Fleet) -> Iterator[list[ShardKit]]:
    """Give kits of as many processes, each of which has used all shards."""
    with ExitStack() as stack:
        opened = [stack.enter_context(shardkit.connect(fleet.url)) for _ in range(PROCESSES)]
        for kit in opened:
            kit.key_sharded("users").mget(KEYS)
        yield opened


def test_a_process_has_two_connections_to_the_config_server_and_one_to_each_other(
    fleet: Fleet,
) -> None:
    with kits(fleet):
        assert eventually(lambda: count(fleet.at_config) == 2 * PROCESSES)
        assert [count(client) for client in fleet.at_data] == [PROCESSES] * SERVERS


def test_threads_at_the_same_time_have_a_connection_each(fleet: Fleet) -> None:
    with kits(fleet) as opened:
        several = 3
        [first, second] = fleet.at_data
        with ThreadPoolExecutor(several * PROCESSES) as threads:
            for kit in opened * several:
                threads.submit(kit.key_sharded("users").client(0).blpop, "empty", 30)
            try:
                assert eventually(
                    lambda: first.info("clients")["blocked_clients"] == several * PROCESSES
                )
                assert count(first) == several * PROCESSES
                assert count(second) == PROCESSES
            finally:
                first.rpush("empty", *range(several * PROCESSES))
        for kit in opened:
            kit.key_sharded("users").mget(KEYS)
        assert count(first) == several * PROCESSES  # they are kept for the next threads


def test_a_change_is_read_once_by_each_process_over_the_same_connections(fleet: Fleet) -> None:
    with kits(fleet) as opened:
        assert eventually(lambda: count(fleet.at_config) == 2 * PROCESSES)
        received = fleet.at_config.info("stats")["total_connections_received"]
        fleet.push("b")

        def zone(kit: ShardKit) -> str | None:
            return kit.topology.component("users").shards[0].zone

        assert eventually(lambda: all(zone(kit) == "b" for kit in opened))
        assert fleet.at_config.info("stats")["total_connections_received"] == received
        assert count(fleet.at_config) == 2 * PROCESSES


def test_a_change_that_comes_before_an_answer_takes_none_of_its_time() -> None:
    told = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$20\r\nconfig:redis:users:0\r\n"
    continues = threading.Event()

    def answer(_: list[bytes]) -> Iterator[bytes]:
        yield told
        continues.wait(10)
        yield b"*1\r\n$1\r\n7\r\n"

    with (
        scripted(HELLO=b"%1\r\n+proto\r\n:3\r\n", MGET=answer) as server,
        feeding(server.port) as changes,
    ):
        assert changes.wait() == ({"users"}, None)
        threading.Timer(0.1, continues.set).start()
        assert changes.wait() == (set(), 7)
