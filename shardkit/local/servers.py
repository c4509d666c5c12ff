"""All servers of a shard map, on this machine; `server_plan.py` decides which these are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from shardkit.config.component import entry_key
from shardkit.config.entry import Entry
from shardkit.config.shard_map import ShardMap
from shardkit.errors import LocalServerError
from shardkit.local.cluster import LocalCluster
from shardkit.local.sentinel import SentinelServer, await_agreement
from shardkit.local.server import (
    START_TIMEOUT,
    STOP_TIMEOUT,
    LocalServer,
    ServerGroup,
    Setting,
    start_all,
)
from shardkit.local.server_plan import CONFIG_SERVER, Address, PlannedServer, ServerPlan
from shardkit.operations.arguments import Seconds

Ports: TypeAlias = Literal["given", "free"]
Progress: TypeAlias = Callable[[str, int, int], object]


class LocalServers(ServerGroup):
    """The servers of a shard map: started together, stopped together.

    A context manager. They listen on 127.0.0.1 without TLS, whatever hosts the map names, with the
    users and passwords of the map. A ``${NAME}`` that is not set becomes ``local-NAME``.

    Args:
        shard_map: the map; equal addresses are one server.
        data_dir: where the servers save their data, each in a directory named after its address in
            the map; None saves none.
        ports: "given" for the map's ports, "free" for free ones. A cluster's nodes after the first,
            and servers behind Sentinels, always get free ones.
        config: further configuration of every server that holds data.
        binary: the server binary; None finds one (`shardkit.local.find_server`).
        progress: called with a server's name, how many have started, and how many there are.

    Attributes:
        clusters: the clusters, by the component that names them first.

    Raises:
        LocalServerError: the map contradicts itself about a server, or uses a port twice.
    """

    def __init__(
        self,
        shard_map: ShardMap,
        *,
        data_dir: str | Path | None = None,
        ports: Ports = "given",
        config: Mapping[str, Setting] | None = None,
        binary: str | Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._map = shard_map
        self._moved: ShardMap | None = None
        self._plan = ServerPlan(shard_map)
        if ports == "given":
            self._plan.check_ports()
        self._given = ports == "given"
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._config = dict(config or {})
        self._binary = binary
        self._progress = progress
        self._built: dict[PlannedServer, LocalServer] = {}
        self._by_address: dict[Address, LocalServer] = {}
        self._masters: list[LocalServer] = []
        self._replicas: list[LocalServer] = []
        self._sentinels: list[SentinelServer] = []
        self.clusters: dict[str, LocalCluster] = {}
        self._build()

    @property
    def servers(self) -> list[LocalServer]:
        """Every server process, in the order of starting."""
        nodes = [node for cluster in self.clusters.values() for node in cluster.nodes]
        return [*self._masters, *nodes, *self._replicas, *self._sentinels]

    @property
    def shard_map(self) -> ShardMap:
        """The map's components with the addresses of the running servers.

        Raises:
            LocalServerError: they were not started.
        """
        if self._moved is None:
            raise LocalServerError(
                f"the servers of {self._map.source} were not started", "start them first"
            )
        return self._moved

    @property
    def config_server(self) -> LocalServer | None:
        """The config server, if the map has one."""
        entry = self._map.config_server
        return None if entry is None else self._server(entry, CONFIG_SERVER)

    def server_of(self, component: str, number: int | None = None) -> LocalServer:
        """Return the server of a shard, or (number None) of the unsharded entry.

        For a cluster this is the first node, for a service behind Sentinels its first master.

        Raises:
            MissingEntryError: the map has no such entry.
        """
        entry = self._map.entry_of(component, number)
        return self._server(entry, entry_key(component, number))

    def start(self, timeout: Seconds = 2 * START_TIMEOUT) -> Self:
        """Start all servers in parallel, and wait until all answer and clusters are ready.

        Returns this object, after at most ``timeout`` seconds.

        Raises:
            LocalServerError: a server did not start; the others were stopped.
        """
        if any(server.running for server in self.servers):
            raise LocalServerError(
                f"the servers of {self._map.source} run already", "stop them first"
            )
        return super().start(timeout)

    def _start(self, deadline: float) -> None:
        clusters = list(self.clusters.values())
        nodes = [node for cluster in clusters for node in cluster.nodes]
        done = 0

        def started(server: LocalServer) -> None:
            nonlocal done
            done += 1
            if self._progress is not None:
                self._progress(server.name, done, len(self.servers))

        def start(servers: list[Any]) -> None:
            start_all(servers, deadline - time.monotonic(), started)

        start([*self._masters, *nodes])
        for cluster in clusters:
            cluster.join_nodes(deadline)
        start(self._replicas)
        start(self._sentinels)
        await_agreement(self._sentinels, deadline)
        for cluster in clusters:
            cluster.await_ready(deadline)
        ports = {address: server.port for address, server in self._by_address.items()}
        self._moved = self._plan.moved(self._map, ports)

    def stop(self, timeout: Seconds = STOP_TIMEOUT) -> None:
        """Stop all servers in parallel; they are killed after ``timeout`` seconds."""
        self._moved = None
        super().stop(timeout)

    def __repr__(self) -> str:
        return f"<LocalServers of {self._map.source}: {self._running()}>"

    # ---- from the plan to servers

    def _build(self) -> None:
        plan = self._plan
        for address, planned in plan.servers.items():
            if planned.replica_of is None:
                self._by_address[address] = self._plain(planned)
        for service in plan.services.values():
            self._plain(service.master)
            for replica in service.replicas:
                self._plain(replica)
        for address, planned in plan.servers.items():
            if planned.replica_of is not None:
                self._by_address[address] = self._plain(planned)
        for address, planned in plan.clusters.items():
            cluster = LocalCluster(config=self._config, **self._arguments(planned))
            self.clusters[planned.label] = cluster
            self._by_address[address] = cluster.nodes[0]
        for address, planned in plan.sentinels.items():
            sentinel = SentinelServer(
                watched={
                    key[0]: self._built[plan.services[key].master] for key in planned.services
                },
                quorums={name: len(others) // 2 + 1 for name, others in planned.services},
                **self._arguments(planned),
            )
            self._sentinels.append(sentinel)
            self._by_address[address] = sentinel

    def _plain(self, planned: PlannedServer) -> LocalServer:
        master = planned.replica_of
        server = LocalServer(
            databases=planned.databases,
            replica_of=None if master is None else self._built[master],
            config=self._config,
            **self._arguments(planned),
        )
        self._built[planned] = server
        (self._masters if master is None else self._replicas).append(server)
        return server

    def _arguments(self, planned: PlannedServer) -> dict[str, Any]:
        return {
            "port": planned.port if self._given else 0,
            "users": planned.users.passwords,
            "data_dir": None if self._data_dir is None else self._data_dir / planned.folder,
            "binary": self._binary,
            "name": planned.label,
        }

    def _server(self, entry: Entry, where: str) -> LocalServer:
        if entry.is_sentinel:
            return self._built[self._plan.service(entry, where).master]
        [address] = self._plan.addresses(entry, where)
        return self._by_address[address]
