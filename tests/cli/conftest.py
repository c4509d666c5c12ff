"""The command line in this process, and servers with passwords for it.

Whatever a test runs through `cli`, the password must not be in what it writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_helpers import SECRET, Cli, config_server

from shardkit import ShardMap
from shardkit.local import LocalServers

MAP = f"""
config_server: {{port: 7000, password: {SECRET}}}
defaults: {{host: 127.0.0.1, password: {SECRET}, socket_timeout: 5}}
components:
  unique:
    entry: {{port: 7001}}
    shards: {{count: 8, over: [{{port: 7001, db: 1}}, {{port: 7002, db: 1}}]}}
  followers:
    shards: {{count: 2, over: [{{port: 7001, db: 9}}, {{port: 7002, db: 9}}]}}
    placement: rendezvous
  sessions:
    entry: {{port: 7002, db: 3, replicas: [{{port: 7003}}]}}
"""


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith("SHARDKIT_") and n != "SHARDKIT_SERVER"]:
        monkeypatch.delenv(name)


@pytest.fixture
def cli() -> Cli:
    """Run a command line in this process."""
    return Cli()


@pytest.fixture(scope="session")
def town() -> Iterator[LocalServers]:
    """Servers for the map above: a config server, two masters and a replica, all with passwords."""
    with LocalServers(ShardMap.parse(MAP, "town.yaml"), ports="free") as running:
        yield running


@pytest.fixture
def town_map(town: LocalServers, tmp_path: Path) -> Path:
    """The file of the map of the running servers, which are empty."""
    for server in town.servers:
        with server.client() as client:
            if server is not town.servers[-1]:  # the replica follows
                client.flushall()
    path = tmp_path / "town.yaml"
    path.write_text(town.shard_map.to_yaml())
    return path


@pytest.fixture
def pushed_map(cli: Cli, town_map: Path) -> Path:
    """The same, which was pushed to its config server."""
    cli("config", "push", town_map, code=0)
    return town_map


@pytest.fixture
def town_url(town: LocalServers) -> str:
    """The URL of the config server, with its password."""
    return f"redis://:{SECRET}@{config_server(town).address}"
