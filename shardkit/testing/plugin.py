"""Fixtures for users' own tests. The plugin is installed with shardkit; pytest finds it.

::

    shardkit_map ──┬── shardkit_servers ──┬── shardkit_kit
       (session)   │      (session)       └── shardkit_async_kit
                   └── memory_servers ────┬── memory_kit
                          (test)          └── async_memory_kit

docs/testing.md says how a project chooses its map. Every pytest run on a machine with shardkit
loads this file, so it imports only pytest: fixtures import what they need when they are used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from shardkit.config.shard_map import ShardMap
    from shardkit.kit.kit import AsyncShardKit, ShardKit
    from shardkit.local import LocalServers
    from shardkit.testing.kits import MemoryServers

_MAP = "shardkit_map"
_CHECK_KEYS = "shardkit_check_keys"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--shardkit-map`` and the setting ``shardkit_map``."""
    about = "the shard map (YAML) whose servers the fixtures of shardkit start"
    parser.getgroup("shardkit").addoption(
        "--shardkit-map", dest=_MAP, metavar="PATH", help=f"{about}."
    )
    parser.addini(_MAP, f"{about}; relative to this file", default="")
    parser.addini(
        _CHECK_KEYS,
        "whether clients of key routers refuse keys that belong to other shards",
        type="bool",
        default=False,
    )


def pytest_configure(config: pytest.Config) -> None:
    """Have all kits of the run, and of processes that it starts, check keys if that is set."""
    if config.getini(_CHECK_KEYS):
        os.environ.setdefault(_CHECK_KEYS.upper(), "1")


@pytest.fixture(scope="session")
def shardkit_map(pytestconfig: pytest.Config) -> ShardMap:
    """The shard map of the other fixtures; override it to use another one.

    It is named by ``--shardkit-map`` or the setting ``shardkit_map``. The default is a small map
    with the components ``unique`` (an entry and 16 shards) and ``timelines`` (8 shards). An
    overriding fixture returns a `ShardMap` or its path.
    """
    from shardkit.config.shard_map import ShardMap
    from shardkit.testing.kits import built_in_map

    path = pytestconfig.getoption(_MAP)
    if path:
        return ShardMap.load(pytestconfig.invocation_params.dir / path)
    set_ = pytestconfig.getini(_MAP)
    if set_:
        beside = pytestconfig.inipath
        folder = pytestconfig.rootpath if beside is None else beside.parent
        return ShardMap.load(folder / set_)
    return built_in_map()


@pytest.fixture(scope="session")
def shardkit_servers(shardkit_map: ShardMap) -> Iterator[LocalServers]:
    """Real servers for the map on free ports of 127.0.0.1, started once per pytest worker.

    ``shard_map`` has their addresses, ``server_of(component, shard)`` returns one to kill or pause.
    The kit fixtures restart and empty them.
    """
    from shardkit.local import LocalServers
    from shardkit.testing.kits import as_map

    with LocalServers(as_map(shardkit_map), ports="free") as servers:
        yield servers


@pytest.fixture
def _shardkit_empty(shardkit_servers: LocalServers, shardkit_map: ShardMap) -> LocalServers:
    """The servers, all running and empty."""
    from shardkit.testing.kits import as_map, empty

    def outline(shard_map: ShardMap) -> dict[str, tuple[bool, int, str]]:
        return {
            name: (component.entry is not None, len(component.shards), component.placement)
            for name, component in shard_map.components.items()
        }

    if outline(as_map(shardkit_map)) != outline(shardkit_servers.shard_map):
        pytest.fail(
            "these servers were started for another shardkit_map: a module that overrides the map "
            "must override shardkit_servers as well, or the map be overridden for all tests",
            pytrace=False,
        )
    empty(shardkit_servers)
    return shardkit_servers


def _opened(kind: str, *args: Any) -> Any:
    from shardkit.kit import kit
    from shardkit.testing.kits import opened

    return opened(getattr(kit, kind), *args)


@pytest.fixture
def shardkit_kit(_shardkit_empty: LocalServers) -> Iterator[ShardKit]:
    """A blocking kit on real, empty servers."""
    with _opened("ShardKit", _shardkit_empty.shard_map) as kit:
        yield kit


@pytest.fixture
def shardkit_async_kit(_shardkit_empty: LocalServers) -> Iterator[AsyncShardKit]:
    """An async kit on real, empty servers. For any event loop."""
    with _opened("AsyncShardKit", _shardkit_empty.shard_map) as kit:
        yield kit


@pytest.fixture
def memory_servers(shardkit_map: ShardMap) -> MemoryServers:
    """The map's servers in memory, new for each test, with faults to inject.

    ``memory_servers.server_of(component, shard).down()``; see `shardkit.testing.fakes.servers`.
    """
    from shardkit.testing.kits import MemoryServers

    return MemoryServers(shardkit_map)


@pytest.fixture
def memory_kit(memory_servers: MemoryServers) -> Iterator[ShardKit]:
    """A blocking kit on empty servers in memory."""
    with _opened("ShardKit", memory_servers.shard_map, memory_servers) as kit:
        yield kit


@pytest.fixture
def async_memory_kit(memory_servers: MemoryServers) -> Iterator[AsyncShardKit]:
    """An async kit on empty servers in memory. For any event loop."""
    with _opened("AsyncShardKit", memory_servers.shard_map, memory_servers) as kit:
        yield kit
