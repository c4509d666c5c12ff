"""The servers of a shard map, on this machine: planned from its entries, and started."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

from shardkit.config.component import entry_key
from shardkit.config.entry import DEFAULT_PORT, LOCATION, Entry
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
from shardkit.operations.arguments import Seconds

CONFIG_SERVER: Final = "config server"
LOCAL_HOST: Final = "127.0.0.1"

Address: TypeAlias = tuple[str, int]  # host and port; ("unix:/path", 0) for a Unix socket
ServiceKey: TypeAlias = tuple[str, tuple[Address, ...]]  # a service and its Sentinels

_THIS_HOST = frozenset({"localhost", LOCAL_HOST, "::1", ""})


class CompleteEnvironment(Mapping[str, str]):
    """An environment in which every name has a value.

    If ``keep``, references to known names stay, to be resolved when a client connects.
    """

    def __init__(self, known: Mapping[str, str], *, keep: bool = False) -> None:
        self._known = known
        self._keep = keep

    def __getitem__(self, name: str) -> str:
        if name not in self._known:
            return f"local-{name}"
        return f"${{{name}}}" if self._keep else self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


@dataclass
class Logins:
    """The users of a server: names and passwords, "" for none."""

    passwords: dict[str, str] = field(default_factory=dict)
    _first: dict[str, str] = field(default_factory=dict)

    def add(self, fields: Mapping[str, Any], where: str) -> None:
        """Add the user of an entry's fields; refuse another password for the same user."""
        name = fields.get("username") or "default"
        password = fields.get("password") or ""
        if self.passwords.setdefault(name, password) != password:
            raise LocalServerError(
                f"{self._first[name]} and {where} are one server, but give user {name!r} different "
                "passwords",
                "give both the same one",
            )
        self._first.setdefault(name, where)


@dataclass(eq=False)
class PlannedServer:
    """A server process: a master, a replica, or a Sentinel of services; its port in the map."""

    label: str
    folder: str
    port: int
    users: Logins = field(default_factory=Logins)
    databases: int = 16
    replica_of: PlannedServer | None = None
    services: list[ServiceKey] = field(default_factory=list)


@dataclass(eq=False)
class PlannedService:
    """A service that Sentinels watch: a master and its replicas."""

    name: str
    master: PlannedServer
    replicas: list[PlannedServer]


class ServerPlan:
    """The servers that a shard map needs; clusters by their address in the map.

    Raises:
        LocalServerError: two entries contradict each other about one server.
        ConfigError: an entry cannot be used in this environment.
    """

    def __init__(self, shard_map: ShardMap, environ: Mapping[str, str] = os.environ) -> None:
        self.servers: dict[Address, PlannedServer] = {}
        self.clusters: dict[Address, PlannedServer] = {}
        self.services: dict[ServiceKey, PlannedService] = {}
        self.sentinels: dict[Address, PlannedServer] = {}
        self._environ = environ
        self._kinds: dict[Address, tuple[str, str]] = {}
        for label, where, entry in _entries(shard_map):
            self._add(label, where, entry)

    def check_ports(self) -> None:
        """Refuse a map whose servers, on different hosts, have the same port."""
        names_by_port: dict[int, str] = {}
        for group in (self.servers, self.clusters, self.sentinels):
            for address, planned in group.items():
                shown = f"{planned.label} ({address[0]}:{address[1]})"
                other = names_by_port.setdefault(planned.port, shown) if planned.port else shown
                if other != shown:
                    raise LocalServerError(
                        f"{other} and {shown} would share port {planned.port} of {LOCAL_HOST}",
                        "start the servers on free ports",
                    )

    def moved(self, shard_map: ShardMap, ports: Mapping[Address, int]) -> ShardMap:
        """Return the map with the ports of running servers, by address in the map."""
        components = {
            name: component.with_entries(
                lambda shard, entry: self._moved(entry, entry_key(*shard), ports)
            )
            for name, component in shard_map.components.items()
        }
        config_server = shard_map.config_server
        if config_server is not None:
            config_server = self._moved(config_server, CONFIG_SERVER, ports)
        return ShardMap(components, config_server, (), f"{shard_map.source} (embedded servers)")

    def addresses(self, entry: Entry, where: str) -> list[Address]:
        """Return the address that an entry names; of a Sentinel entry, all its Sentinels'."""
        return _addresses(self._resolved(entry, where))

    def service(self, entry: Entry, where: str) -> PlannedService:
        """Return the service that a Sentinel entry names."""
        return self.services[_service_key(self._resolved(entry, where))]

    def _resolved(self, entry: Entry, where: str, *, keep: bool = False) -> dict[str, Any]:
        return entry.resolved(where, CompleteEnvironment(self._environ, keep=keep))

    def _add(self, label: str, where: str, entry: Entry) -> None:
        fields = self._resolved(entry, where)
        if entry.is_sentinel:
            master = self._add_service(label, where, fields)
            replicas = self.services[_service_key(fields)].replicas
        else:
            [address] = _addresses(fields)
            kind = "a cluster" if entry.is_cluster else "a server"
            self._claim(address, kind, where)
            group = self.clusters if entry.is_cluster else self.servers
            master = group.setdefault(address, PlannedServer(label, _folder(address), address[1]))
            replicas = []
        master.users.add(fields, where)
        master.databases = max(master.databases, int(fields.get("db", 0)) + 1)
        for replica in entry.replicas:
            self._add_replica(f"{where} replicas", replica, master)
        for planned in replicas:
            planned.users, planned.databases = master.users, master.databases

    def _add_replica(self, where: str, entry: Entry, master: PlannedServer) -> None:
        fields = self._resolved(entry, where)
        [address] = _addresses(fields)
        self._claim(address, f"a replica of {master.label}", where)
        if address not in self.servers:
            number = sum(server.replica_of is master for server in self.servers.values())
            self.servers[address] = PlannedServer(
                f"{master.label} replica {number}", _folder(address), address[1], replica_of=master
            )
        # One object for both, because they have the same users, whichever entry adds them.
        self.servers[address].users = master.users
        self.servers[address].databases = master.databases
        if "username" in fields or "password" in fields:
            master.users.add(fields, where)

    def _add_service(self, label: str, where: str, fields: Mapping[str, Any]) -> PlannedServer:
        key = _service_key(fields)
        name, addresses = key
        if key not in self.services:
            folder = f"{name}-{_folder(addresses[0])}"
            master = PlannedServer(f"{label} master", f"{folder}-master", 0)
            replica = PlannedServer(
                f"{label} replica 0", f"{folder}-replica-0", 0, replica_of=master
            )
            self.services[key] = PlannedService(name, master, [replica])
        for address in addresses:
            self._claim(address, "a Sentinel", where)
            planned = self.sentinels.setdefault(
                address,
                PlannedServer(
                    f"Sentinel {len(self.sentinels)}", f"sentinel-{_folder(address)}", address[1]
                ),
            )
            planned.users.add(fields["sentinel"], where)
            if any(name == other and key != (name, s) for other, s in planned.services):
                raise LocalServerError(
                    f"{where}: service {name!r} is given with different lists of Sentinels",
                    "list the same Sentinels wherever the service is named",
                )
            if key not in planned.services:
                planned.services.append(key)
        return self.services[key].master

    def _claim(self, address: Address, kind: str, where: str) -> None:
        first, first_where = self._kinds.setdefault(address, (kind, where))
        if first != kind:
            host, port = address
            raise LocalServerError(
                f"{host}:{port} is {first} for {first_where}, but {kind} for {where}",
                "give one of them another address",
            )

    def _moved(self, entry: Entry, where: str, ports: Mapping[Address, int]) -> Entry:
        addresses = _addresses(self._resolved(entry, where))
        fields = self._resolved(entry, where, keep=True)
        settings = {
            name: value
            for name, value in fields.items()
            if name not in LOCATION and name != "replicas" and not name.startswith("ssl")
        }
        if entry.is_sentinel:
            sentinels = [[LOCAL_HOST, ports[address]] for address in addresses]
            settings["sentinel"] = {**fields["sentinel"], "sentinels": sentinels}
        else:
            settings |= {"host": LOCAL_HOST, "port": ports[addresses[0]]}
        if entry.replicas:
            settings["replicas"] = [self._moved(r, where, ports).fields for r in entry.replicas]
        return Entry(settings, where)


def _entries(shard_map: ShardMap) -> Iterator[tuple[str, str, Entry]]:
    """Yield every entry with its label and the key that it is stored under."""
    if shard_map.config_server is not None:
        yield CONFIG_SERVER, CONFIG_SERVER, shard_map.config_server
    for component in shard_map.components.values():
        for shard, entry in component.entries():
            yield str(shard), entry_key(*shard), entry


def _addresses(fields: Mapping[str, Any]) -> list[Address]:
    if "sentinel" in fields:
        return [_address(host, port) for host, port in fields["sentinel"]["sentinels"]]
    if "unix_socket_path" in fields:
        return [(f"unix:{fields['unix_socket_path']}", 0)]
    return [_address(fields.get("host", "localhost"), fields.get("port", DEFAULT_PORT))]


def _address(host: str, port: int) -> Address:
    return (LOCAL_HOST if host in _THIS_HOST else host, port)


def _service_key(fields: Mapping[str, Any]) -> ServiceKey:
    return fields["sentinel"]["service"], tuple(sorted(set(_addresses(fields))))


def _folder(address: Address) -> str:
    """Name a directory after an address, so that it stays the same when the map grows."""
    host, port = address
    name = "".join(c if c.isalnum() or c in ".-_" else "_" for c in host).lstrip(".")
    return f"{name}-{port}" if port else name


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
        """Start all servers, and wait until clusters are ready too; see `ServerGroup.start`."""
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
