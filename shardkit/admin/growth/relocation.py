"""Functions that return components whose entries name another server.

Whether an entry names a server is decided by `KnownServers.same`, as one server may have several
names.

::

    {"host": "a", "port": 1, "db": 3, "zone": "x", "replicas": [{"host": "b"}]}
        a:1 ─► b:1, and a is its replica:
    {"host": "b", "port": 1, "db": 3, "replicas": [{"host": "a", "port": 1, "zone": "x"}]}

All other fields stay. In a ``url`` only host and port are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from shardkit.config.component import Component, entry_key
from shardkit.config.entry import DEFAULT_PORT, Entry
from shardkit.config.fields import is_host
from shardkit.config.problem import mask
from shardkit.config.url import REFERENCE, read_url
from shardkit.errors import ConfigError, InvalidArgumentError
from shardkit.operations.commands import Shard

_URL = re.compile(
    r"(?P<before>(?:redis|valkey)s?://(?:[^@/?#]*@)?)(?P<server>[^/?#]*)(?P<after>.*)", re.DOTALL
)


class ServerAddress(NamedTuple):
    """The address of a server, for any of its databases."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> ServerAddress:
        """Read ``host:port``, ``[::1]:6379`` or a host alone."""
        match = re.fullmatch(r"(?:\[([^\]@]+)\]|([^:\[\]/\s@]+))(?::([0-9]{1,5}))?", text)
        port = int(match[3] or DEFAULT_PORT) if match else 0
        if not match or not 0 < port < 65536 or not is_host(match[1] or match[2]):
            shown = mask("host", text)  # perhaps a login is in front of it
            raise InvalidArgumentError(f"{shown!r:.80} is not a server", "specify HOST:PORT")
        return cls(match[1] or match[2], port)


class Place(NamedTuple):
    """A database of a server, where shards live."""

    server: ServerAddress
    database: int

    def __str__(self) -> str:
        return f"{self.server}/{self.database}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read ``host:port/database``."""
        server, _, database = text.rpartition("/")
        if not re.fullmatch("[0-9]{1,9}", database):
            raise InvalidArgumentError(
                f"{mask('host', text)!r:.80} is not a database", "specify HOST:PORT/NUMBER"
            )
        return cls(ServerAddress.parse(server), int(database))


Same = Callable[[ServerAddress | None, ServerAddress], bool]


def address_of(entry: Entry) -> ServerAddress | None:
    """Return the server that an entry names; None if it has no host of its own, or a reference."""
    fields = entry.fields
    if entry.is_sentinel or "unix_socket_path" in fields:
        return None
    known = {**(read_url(fields["url"]) if "url" in fields else {}), **fields}
    host, port = known.get("host", "localhost"), known.get("port", DEFAULT_PORT)
    if not isinstance(host, str) or REFERENCE.search(host) or type(port) is not int:
        return None
    return ServerAddress(host, port)


class Stored(NamedTuple):
    """An entry whose user a server accepts, and where that is stored."""

    entry: Entry
    where: str


def place_of(entry: Entry) -> Place | None:
    """Return the database that an entry names; None if it does not say it, or of a cluster."""
    server = None if entry.is_cluster else address_of(entry)
    return None if server is None or entry.database is None else Place(server, entry.database)


def entries_in(components: Mapping[str, Component]) -> dict[str, Entry]:
    """Return all entries by their shards, as ``timelines:3``."""
    every = (pair for component in components.values() for pair in component.entries())
    return {str(shard): entry for shard, entry in every}


def entries_on(
    components: Iterable[Component], server: ServerAddress, same: Same
) -> list[tuple[Shard, Entry]]:
    """Return the shards of which a server is the master, each with its entry."""
    return [
        (shard, entry)
        for component in components
        for shard, entry in component.entries()
        if not entry.is_cluster and same(address_of(entry), server)
    ]


def masters_in(components: Iterable[Component]) -> Iterator[tuple[ServerAddress, Stored]]:
    """Yield the master that each entry names, with its login."""
    for component in components:
        for shard, entry in component.entries():
            server = None if entry.is_cluster else address_of(entry)
            if server is not None:
                yield server, Stored(entry, entry_key(*shard))


def replicas_in(
    components: Iterable[Component],
) -> Iterator[tuple[ServerAddress, ServerAddress, Stored]]:
    """Yield the replicas that entries name, each after its master and with that one's login."""
    for master, login in masters_in(components):
        for replica in map(address_of, login.entry.replicas):
            if replica is not None:
                yield master, replica, login


def relocated(
    components: Mapping[str, Component],
    source: ServerAddress,
    target: ServerAddress,
    same: Same,
    *,
    keep_source: bool,
) -> dict[str, Component]:
    """Return the components that change when one server replaces another.

    With ``keep_source`` the source is a replica from now on; otherwise no entry names it.
    """

    def change(entry: Entry, where: str) -> Entry:
        if entry.is_cluster or not same(address_of(entry), source):
            return entry
        fields = entry.fields
        former = {"host": source.host, "port": source.port}
        if "zone" in fields:
            former["zone"] = fields.pop("zone")
        replicas = []
        for replica, at_replica in _replicas(entry):
            if same(address_of(at_replica), target):
                if "zone" in replica:
                    fields["zone"] = replica["zone"]
            elif not same(address_of(at_replica), source):
                at = address_of(at_replica)  # which may come from its master
                if at is not None and "url" not in replica:
                    replica = {**replica, "host": at.host, "port": at.port}
                replicas.append(replica)
        if keep_source:
            replicas.append(former)
        fields.pop("replicas", None)
        if replicas:
            fields["replicas"] = replicas
        return Entry(at_server(fields, target, where), where)

    return _changed(components, change)


def with_replica(
    components: Mapping[str, Component],
    master: ServerAddress,
    replica: ServerAddress,
    same: Same,
    zone: str | None = None,
) -> dict[str, Component]:
    """Return the components that change when entries of a master name a replica too."""
    described = {"host": replica.host, "port": replica.port, **({"zone": zone} if zone else {})}

    def change(entry: Entry, where: str) -> Entry:
        is_named = any(same(address_of(other), replica) for other in entry.replicas)
        if entry.is_cluster or not same(address_of(entry), master) or is_named:
            return entry
        fields = entry.fields
        return Entry({**fields, "replicas": [*fields.get("replicas", ()), described]}, where)

    return _changed(components, change)


def place_in(entry: Entry, places: Iterable[Place], same: Same) -> Place | None:
    """Return which of some places an entry names."""
    named = place_of(entry)
    return named and next(
        (at for at in places if at.database == named.database and same(named.server, at.server)),
        None,
    )


def held(
    components: Mapping[str, Component],
    places: Collection[Place],
    by: str | None,
    same: Same,
    cluster: str = "",
) -> dict[str, Component]:
    """Return the components that change when a move holds places, or with None no longer does.

    The entries name the move, so that clients make new connections, which ask for the fence, and
    separate connections for reads. If the places are nodes, ``cluster`` is the component there.
    """

    def concerned(entry: Entry, where: str) -> bool:
        if entry.is_cluster:
            return bool(cluster) and where == entry_key(cluster)
        return not cluster and place_in(entry, places, same) is not None

    def change(entry: Entry, where: str) -> Entry:
        fields = entry.fields
        if fields.get("held") == by or not concerned(entry, where):
            return entry
        fields.pop("held", None)
        return Entry(fields if by is None else {**fields, "held": by}, where)

    return _changed(components, change)


def without_replica(
    components: Mapping[str, Component], replica: ServerAddress, same: Same
) -> dict[str, Component]:
    """Return the components that change when entries no longer name a replica."""

    def change(entry: Entry, where: str) -> Entry:
        kept = [
            fields for fields, other in _replicas(entry) if not same(address_of(other), replica)
        ]
        if len(kept) == len(entry.replicas):
            return entry
        fields = entry.fields
        fields.pop("replicas")
        return Entry({**fields, **({"replicas": kept} if kept else {})}, where)

    return _changed(components, change)


def moved(
    components: Mapping[str, Component], places: Mapping[Place, Place], same: Same
) -> dict[str, Component]:
    """Return the components that change when databases have moved to other places.

    They stay held until no client reads at the source. Entries no longer name the source's
    replicas, which do not receive the target's writes.
    """

    def change(entry: Entry, where: str) -> Entry:
        source = place_in(entry, places, same)
        return entry if source is None else entry_at(entry, places[source], where)

    return _changed(components, change)


def entry_at(like: Entry, place: Place, where: str) -> Entry:
    """Return an entry for another place, without replicas."""
    return Entry({**_elsewhere(like, place.server, where), "db": place.database}, where)


def cluster_at(like: Entry, server: ServerAddress, where: str) -> Entry:
    """Return an entry for the cluster of a node."""
    fields = _elsewhere(like, server, where)
    fields.pop("db", None)
    return Entry({**fields, "cluster": True}, where)


def _elsewhere(like: Entry, server: ServerAddress, where: str) -> dict[str, Any]:
    fields = at_server(like.fields, server, where)
    for name in ("replicas", "zone", "cluster", "startup_nodes"):
        fields.pop(name, None)
    return fields


def _changed(
    components: Mapping[str, Component], change: Callable[[Entry, str], Entry]
) -> dict[str, Component]:
    changed: dict[str, Component] = {}
    for name, component in components.items():
        entry = component.entry
        if entry is not None:
            entry = change(entry, entry_key(name))
        shards = tuple(
            change(shard, entry_key(name, n)) for n, shard in enumerate(component.shards)
        )
        if entry != component.entry or shards != component.shards:
            changed[name] = replace(component, entry=entry, shards=shards)
    return changed


def _replicas(entry: Entry) -> list[tuple[dict[str, Any], Entry]]:
    return list(zip(entry.fields.get("replicas", ()), entry.replicas, strict=True))


def at_server(fields: Mapping[str, Any], server: ServerAddress, where: str) -> dict[str, Any]:
    """Return an entry's fields with another server."""
    moved = dict(fields)
    if "url" not in moved:
        return {**moved, "host": server.host, "port": server.port}
    parts = _URL.fullmatch(moved["url"])
    if parts is None:
        raise ConfigError(
            f"{where}: its url is a reference, so its server cannot be replaced",
            "write host and port, with a reference for the password",
        )
    moved["url"] = f"{parts['before']}{server}{parts['after']}"
    return moved
