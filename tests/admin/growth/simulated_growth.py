"""Has the functions of growth work on simulated servers, and these greet as real ones do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from operator import eq
from typing import Any

import pytest

from shardkit.network.connections.connection import Closable
from shardkit.testing.simulation import Client
from shardkit.testing.simulation.connections import SimulatedConnection, SimulatedConnector
from shardkit.testing.simulation.processes import SimulatedProcess

SCHEDULES = int(os.environ.get("SCHEDULES", "20"))
MOST_FOR_A_MUTATION = 200
connectors: dict[SimulatedProcess, SimulatedConnector] = {}


def config_of(client: Client) -> Any:
    """Return a client of the config server, for functions of growth that this process calls."""
    connectors[client._process] = SimulatedConnector(client._world, client._process)
    return client.kit.topology.source.client()


@contextmanager
def simulated_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Have growth work on simulated servers, and give what patches more of it."""
    with monkeypatch.context() as patched:

        @contextmanager
        def client_of(fields: Any, timeout: float = 1.0) -> Iterator[Any]:
            process = SimulatedProcess.current
            assert process is not None
            client: Any = connectors[process].blocking({**fields, "decode_responses": False})
            listed = client.client_list
            client.client_list = lambda: [{"flags": "N", **each} for each in listed()]
            try:
                yield client
            finally:
                client.connection_pool.disconnect()

        patched.setattr("shardkit.admin.growth.servers.client_of", client_of)
        patched.setattr("shardkit.admin.growth.known_servers.query_all", lambda queries: {})
        patched.setattr("shardkit.admin.growth.known_servers.same_server", eq)
        connect = SimulatedConnection.on_connect_check_health

        def greet(self: Any, *args: Any, **options: Any) -> None:
            connect(self, *args, **options)
            if self.client_name:
                self._replies_to([("CLIENT", "SETNAME", self.client_name)])
            if self.greeting is not None:
                Closable._greet(self, self.greeting)

        patched.setattr(SimulatedConnection, "on_connect_check_health", greet)
        try:
            yield patched
        finally:
            connectors.clear()
