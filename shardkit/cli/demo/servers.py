"""Starts and stops the embedded servers of a demonstration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shardkit.cli.output import DIM, Output
from shardkit.config.store import push
from shardkit.errors import counted
from shardkit.local import LocalServers


@contextmanager
def started(output: Output, servers: LocalServers) -> Iterator[str]:
    """Start servers, push their map to the config server, and yield the config server's URL."""
    total = counted(len(servers.servers), "server")
    try:
        with output.busy(f"starting {total}"):
            servers.start()
        config_server = servers.config_server
        assert config_server is not None
        with config_server.client() as client:
            push(client, servers.shard_map)
        url = f"redis://{config_server.address}/0"
        output.note(f"started {total} and pushed their map to {url}", DIM)
        yield url
    finally:
        servers.stop()
