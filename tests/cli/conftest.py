"""The command line in this process, and servers with passwords for it.

Whatever a test runs through `cli`, the password must not be in what it writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import SECRET, Cli, Result
from click.testing import CliRunner

from shardkit import ShardMap
from shardkit.cli.app import app
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
    """Run a command line in this process; no output may hold the password."""

    def run(*arguments: str | Path, secret: str = SECRET, **options: Any) -> Result:
        found = CliRunner().invoke(app, [str(argument) for argument in arguments], **options)
        assert secret not in found.output
        assert secret not in found.stderr
        return Result(found.exit_code, found.stdout, found.stderr)

    return run


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
def town_url(town: LocalServers) -> str:
    """The URL of the config server, with its password."""
    assert town.config_server is not None
    return f"redis://:{SECRET}@{town.config_server.address}"


@pytest.fixture
def read_json(cli: Cli) -> Callable[..., Any]:
    """Run a command line with --json and return the document."""

    def read(*arguments: str | Path, code: int = 0, **options: Any) -> Any:
        result = cli(*arguments, "--json", **options)
        assert result.code == code, result
        return json.loads(result.out)

    return read
