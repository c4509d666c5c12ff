"""Plans the servers of a shard map, and rewrites its entries for the running servers. No I/O.

Each address of the map is one server, with enough databases; entries that differ only in the
database share it. A replica is a server, too; an entry of a cluster is one of three masters, and a
Sentinel entry a master, a replica, and as many Sentinels as are named. The addresses need not exist
on this machine. docs/local.md says what becomes of TLS, passwords and ``${NAME}``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from shardkit.config.component import entry_key
from shardkit.config.entry import DEFAULT_PORT, LOCATION, Entry
from shardkit.config.shard_map import ShardMap
from shardkit.errors import LocalServerError

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
        taken: dict[int, str] = {}
        for group in (self.servers, self.clusters, self.sentinels):
            for address, planned in group.items():
                shown = f"{planned.label} ({address[0]}:{address[1]})"
                other = taken.setdefault(planned.port, shown) if planned.port else shown
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
        kept = {
            name: value
            for name, value in fields.items()
            if name not in LOCATION and name != "replicas" and not name.startswith("ssl")
        }
        if entry.is_sentinel:
            sentinels = [[LOCAL_HOST, ports[address]] for address in addresses]
            kept["sentinel"] = {**fields["sentinel"], "sentinels": sentinels}
        else:
            kept |= {"host": LOCAL_HOST, "port": ports[addresses[0]]}
        if entry.replicas:
            kept["replicas"] = [self._moved(r, where, ports).fields for r in entry.replicas]
        return Entry(kept, where)


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
