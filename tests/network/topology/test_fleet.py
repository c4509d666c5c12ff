"""The connections of a fleet: what docs/connections.md computes, with few kits."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import redis
from faces import eventually

import shardkit
from shardkit import ShardKit, ShardMap
from shardkit.admin import push
from shardkit.local import LocalServer

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
        threads = [
            threading.Thread(target=kit.key_sharded("users").client(0).blpop, args=("empty", 30))
            for kit in opened
            for _ in range(several)
        ]
        [first, second] = fleet.at_data
        try:
            for thread in threads:
                thread.start()
            assert eventually(
                lambda: first.info("clients")["blocked_clients"] == several * PROCESSES
            )
            assert count(first) == several * PROCESSES
            assert count(second) == PROCESSES
        finally:
            for _ in threads:
                first.rpush("empty", 1)
            for thread in threads:
                thread.join()
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
