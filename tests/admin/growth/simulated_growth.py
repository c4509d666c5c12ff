"""Has the functions of growth work on simulated servers, whose databases share connections."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import call, eq
from typing import Any, NamedTuple

import pytest

from shardkit.admin.growth import moves
from shardkit.admin.servers import ServerIdentity
from shardkit.errors import GrowthError
from shardkit.operations.steps import run_steps
from shardkit.testing import Client, Protocol, Register, SimulationFailure, simulate
from shardkit.testing.simulation.connections import SimulatedConnection, SimulatedConnector
from shardkit.testing.simulation.processes import SimulatedProcess
from shardkit.testing.simulation.protocol import is_outage

SCHEDULES = int(os.environ.get("SCHEDULES", "8"))
MOST_FOR_A_MUTATION = 200
connectors: dict[SimulatedProcess, SimulatedConnector] = {}


def config_of(client: Client) -> Any:
    """Return a client of the config server, for functions of growth that this process calls."""
    connectors[client._process] = SimulatedConnector(client._world, client._process)
    return client.kit.topology.source.client()


class InUse(Protocol):
    """Clients write, read and delete a key while an operator works on its server."""

    config_server = True
    shard_map: Any = "components: {data: {entry: {host: old, port: 1}}}"
    faults = ("late", "kill", "time")
    most_faults = 2
    most_steps = 20_000
    model = Register()

    def write(self, client: Client) -> None:
        router = client.kit.key_sharded("data")

        def set_(value: str) -> None:
            router["k"].set("k", value)

        def delete() -> None:
            router["k"].delete("k")

        for n in range(8):
            if n % 3 == 2:
                self.call(client, "delete", delete)
            else:
                self.call(client, "set", set_, f"{n}")
            time.sleep(client.choose([0.02, 0.3, 1.0]))
        client.kit.close()

    def read(self, client: Client) -> None:
        def get() -> Any:
            value = client.kit.key_sharded("data")["k"].get("k")
            return None if value is None else value.decode()

        for _ in range(16):
            self.call(client, "get", get)
            time.sleep(client.choose([0.01, 0.1, 0.5]))
        client.kit.close()

    def attempt(self, client: Client, function: Callable[[], Any], pause: float = 0.0) -> None:
        """Call a function of growth; if that cannot be done, wait so many simulated seconds."""
        try:
            function()
        except GrowthError as error:
            client.log(str(error))
            if pause:
                time.sleep(pause)  # simulated seconds

    def call(self, client: Client, name: str, function: Callable[..., Any], *args: str) -> None:
        """Call, and record that for the history of the key."""
        client.call(function, *args, key="k", name=name)

    def is_done(self, kit: Any) -> bool:
        phases = {each.phase for each in moves(kit.topology.source.client())}
        return phases == {"done"}

    def allows(self, error: Exception) -> bool:
        return is_outage(error)


class Mutation(NamedTuple):
    """A part of the steps that is left out, what that leads to, and a schedule that shows it."""

    what: str
    protocol: type[InUse]
    owner: Any
    name: str
    instead: Any
    known: int
    why: str = "NotLinearizable"

    def shows(self, patched: pytest.MonkeyPatch) -> None:
        """Check that without this part the protocol fails."""
        patched.setattr(self.owner, self.name, self.instead)
        with pytest.raises(SimulationFailure, match=self.why):
            simulate(self.protocol(), schedules=MOST_FOR_A_MUTATION, seed=self.known, shrink_runs=0)


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
        patched.setattr("shardkit.admin.growth.servers.query_all", lambda queries: {})
        patched.setattr("shardkit.admin.growth.servers.same_server", eq)
        patched.setattr(
            "shardkit.admin.growth.servers.identify",
            lambda client: ServerIdentity(repr(client), repr(client)),
        )
        connect = SimulatedConnection.on_connect_check_health

        def introduce(self: Any, *args: Any, **options: Any) -> None:
            connect(self, *args, **options)
            if self.client_name:
                run_steps(self.ask([("CLIENT", "SETNAME", self.client_name)]), call)

        patched.setattr(SimulatedConnection, "on_connect_check_health", introduce)
        patched.setattr(SimulatedConnector, "shares", True)
        try:
            yield patched
        finally:
            connectors.clear()
