"""A master with two replicas, real ones, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from arranged import ask, map_of
from link_helpers import count_of

from shardkit import ShardMap
from shardkit.local import LocalServer


class Replicated:
    """A master, its replicas, and a map with a component on it."""

    def __init__(self, master: LocalServer, replicas: list[LocalServer]) -> None:
        self.master = master
        self.replicas = replicas

    def map(self, **fields: Any) -> ShardMap:
        """A map: ``users`` has two shards, ``one`` an entry, each with both replicas."""
        replicas = [{"port": each.port, "zone": f"z{n}"} for n, each in enumerate(self.replicas)]
        entry = {"port": self.master.port, "zone": "z9", "replicas": replicas, **fields}
        return map_of(
            users={"shards": [{**entry, "db": 1}, {**entry, "db": 2}]}, one={"entry": entry}
        )

    def counts(self, command: str) -> list[int]:
        """How often each server, the master first, was sent a command."""
        return [count_of(server, command) for server in (self.master, *self.replicas)]

    def forget_counts(self) -> None:
        for server in (self.master, *self.replicas):
            ask(server, "config_resetstat")

    def settle(self) -> None:
        """Wait until the replicas have all that the master has."""
        with self.master.client() as client:
            client.set("settled", 1)
            assert client.wait(len(self.replicas), 5000) == len(self.replicas)


@pytest.fixture(scope="session")
def running() -> Iterator[Replicated]:
    fast = {"repl-diskless-sync-delay": 0, "repl-ping-replica-period": 1}
    with (
        LocalServer(name="master", config=fast) as master,
        LocalServer(name="replica 0", replica_of=master) as first,
        LocalServer(name="replica 1", replica_of=master) as second,
    ):
        yield Replicated(master, [first, second])


@pytest.fixture
def replicated(running: Replicated) -> Iterator[Replicated]:
    ask(running.master, "flushall")
    running.settle()
    running.forget_counts()
    yield running
    for server in running.replicas:
        with server.client() as client:
            client.replicaof("127.0.0.1", str(running.master.port))
            client.config_set("replica-read-only", "yes")
            client.config_set("replica-serve-stale-data", "yes")
