"""Servers that several test modules use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shardkit import ShardMap
from shardkit.local import LocalServer, LocalServers

PLAN = "components: {c: {shards: [{port: 7001}, {port: 7002}]}}"


@pytest.fixture(scope="module")
def own(request: pytest.FixtureRequest) -> Iterator[LocalServers]:
    """The servers of a module's PLAN."""
    plan = ShardMap.parse(getattr(request.module, "PLAN", PLAN))
    with LocalServers(plan, ports="free") as running:
        yield running


@pytest.fixture
def here(own: LocalServers) -> LocalServer:
    return own.servers[0]


@pytest.fixture
def there(own: LocalServers) -> LocalServer:
    return own.servers[1]


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer(name="config") as running:
        yield running
