"""Queries the servers behind entries, each once, however many shards live on it.

A server may have several names: ``localhost`` and ``127.0.0.1``, a socket, any node of its cluster.
`identify` asks the server itself which one it is; its address is only the way there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

import redis
from redis.client import NEVER_DECODE

from shardkit.config.component import MAX_SHARDS, Component, entry_key
from shardkit.config.entry import Entry
from shardkit.errors import ConfigServerError
from shardkit.network.server_queries import TIMEOUT, ServerErrors, client_of, query_all
from shardkit.network.survey import Login, logins_of, server_of, targets_of
from shardkit.operations.arguments import Seconds, check_integer, check_seconds
from shardkit.operations.commands import Shard
from shardkit.operations.server_errors import behind_watch

T = TypeVar("T")

# Fields of an entry that do not apply to the servers that Sentinels name.
_OF_SERVICES = ("sentinel", "read_from", "max_lag", "zone")


@dataclass(frozen=True)
class ServerIdentity:
    """Which server answers, whatever its name."""

    server: str
    data: str


def identify(client: Any) -> ServerIdentity:
    """Ask a server which one it is. Cost: one INFO; on a cluster CLUSTER NODES too."""
    is_cluster = isinstance(client, redis.RedisCluster)
    if is_cluster:
        client = client.get_redis_connection(client.get_primaries()[0])
    info = client.info()
    if not info.get("cluster_enabled"):
        return ServerIdentity(str(info["run_id"]), str(info["master_replid"]))
    nodes = client.execute_command("CLUSTER", "NODES").splitlines()
    cluster = min(line.split()[0].decode() for line in nodes if b"handshake" not in line)
    return ServerIdentity(cluster if is_cluster else str(info["run_id"]), cluster)


def identify_databases(
    entries: Mapping[T, Entry], timeout: float = TIMEOUT
) -> dict[T, set[tuple[str, int]] | Exception]:
    """Return the identities of the databases that entries lead to, or why they are unknown.

    Two entries lead to the same data if their identities overlap: by two names of one server, by a
    master and its replica, or by two nodes of one cluster. All servers are asked in parallel, each
    address once.
    """
    logins, failed = logins_of((key, str(key), entry) for key, entry in entries.items())

    def ask(fields: dict[str, Any]) -> ServerIdentity:
        with client_of(fields, timeout) as client:
            return identify(client)

    answers = query_all({n: partial(ask, login.fields) for n, login in enumerate(logins)}, timeout)
    identities: dict[T, set[tuple[str, int]] | Exception] = dict(failed)
    for n, login in enumerate(logins):
        answer = answers[n]
        for key, number in login.databases.items():
            identities[key] = (
                answer
                if isinstance(answer, Exception)
                else {(answer.server, number), (answer.data, number)}
            )
    return identities


def entries_of(
    components: Iterable[Component], config_server: Entry | None = None, *, replicas: bool = False
) -> list[tuple[str, Entry]]:
    """Return entries and where they are, for messages: the config server first."""
    targets = targets_of(components, config_server, replicas=replicas)
    return [(target.where, target.entry) for target in targets]


def query_servers(
    entries: Iterable[tuple[str, Entry]],
    query: Callable[[redis.Redis], T],
    timeout: float = TIMEOUT,
    **login: str,
) -> dict[str, T | Exception]:
    """Run a query once on each server, all in parallel; on a cluster on each node.

    A server with several names is queried by one of them, if its user is allowed to run INFO. The
    client decodes nothing. ``login`` replaces the entries' ``username`` and ``password``.

    Returns:
        By address, what the query returned or raised; a ConfigError for an entry that this machine
        cannot use.
    """
    listed = list(entries)
    logins, failed = logins_of(
        ((n, where, entry) for n, (where, entry) in enumerate(listed)), **login
    )
    queried: dict[str, object] = {}

    def is_first(client: Any) -> bool:
        with suppress(redis.ResponseError):  # not every user is allowed to run INFO
            own = object()
            return queried.setdefault(identify(client).server, own) is own
        return True

    def visit(login: Login[int]) -> dict[str, T | Exception]:
        with client_of(login.fields, timeout) as client:
            if not isinstance(client, redis.RedisCluster):
                return {login.address: query(client)} if is_first(client) else {}
            results: dict[str, T | Exception] = {}
            for node in client.get_nodes():  # type: ignore[no-untyped-call]
                try:
                    on_node = client.get_redis_connection(node)
                    if is_first(on_node):
                        results[node.name] = query(on_node)
                except Exception as error:  # the other nodes are asked, whatever it is
                    results[node.name] = error
            return results

    answers = query_all({n: partial(visit, login) for n, login in enumerate(logins)}, timeout)
    results: dict[str, T | Exception] = {
        server_of(listed[n][1].address): error for n, error in failed.items()
    }
    for n, answer in answers.items():
        results |= answer if isinstance(answer, dict) else {logins[n].address: answer}
    return results


def execute(
    components: Iterable[Component],
    command: Sequence[str],
    *,
    once_per: Literal["server", "shard"] = "server",
    shard: int | None = None,
    timeout: Seconds = TIMEOUT,
    **login: str,
) -> dict[str, Any | Exception]:
    """Run a command on every server of components, or on every shard's database.

    ``once_per`` is ``server`` (on a cluster, each node), or ``shard`` for once in the database of
    each shard, or only of shard number ``shard``. ``timeout`` is in seconds for one answer of a
    server; ``login``, a ``username`` and ``password``, replaces the entries'.

    Returns:
        By server or shard, the reply as redis-py returns it, or the exception. All servers are
        queried in parallel. Nothing is sent twice.
    """
    timeout = check_seconds("execute", "timeout", timeout, 0.001)
    check_integer("execute", "shard", shard or 0, 0, MAX_SHARDS - 1)

    def run(client: Any) -> Any:
        return client.execute_command(*command, **{NEVER_DECODE: True})

    components = list(components)
    if once_per == "server":
        return query_servers(entries_of(components), run, timeout, **login)

    def ask(where: Shard, entry: Entry) -> Any:
        with client_of({**entry.resolved(entry_key(*where)), **login}, timeout) as client:
            return run(client)

    queries = {
        str(where): partial(ask, where, entry)
        for component in components
        for where, entry in component.entries()
        if shard in (None, where.number) or not component.shards
    }
    return query_all(queries, timeout)


def execute_unless_changed(
    client: Any, key: str, look: Callable[[Any], object], *commands: Sequence[Any]
) -> list[Any] | None:
    """Execute commands, unless a key has changed since ``look``; return the replies, None if so.

    ``look`` is called with a client of the database. If it returns False, nothing is executed. A
    cluster has no such transaction: there, the key may change after the look.
    """
    is_one = not isinstance(client, redis.RedisCluster)
    with client.pipeline(transaction=is_one) as pipe:
        if is_one:
            pipe.watch(key)
        if look(pipe if is_one else client) is False:
            return None
        if is_one:
            pipe.multi()
        for command in commands:
            pipe.execute_command(*command)
        try:
            replies: list[Any] = pipe.execute()
        except redis.WatchError as error:
            if behind_watch(error) is not error:
                raise
            return None
        return replies


@contextmanager
def sentinels_of(entry: Entry, where: str, timeout: float = TIMEOUT) -> Iterator[list[Any]]:
    """Yield clients of all Sentinels that an entry names, even if they do not answer."""
    with client_of(entry.resolved(where), timeout) as client:
        sentinels = list(client.connection_pool.master.sentinels.clients)
        try:
            yield sentinels
        finally:
            for sentinel in sentinels:
                sentinel.connection_pool.disconnect()


def servers_of_service(
    entry: Entry, where: str, timeout: float = TIMEOUT
) -> list[tuple[str, Entry]]:
    """Return an entry for each server of a Sentinels' service, the master first."""
    service = entry.fields["sentinel"]["service"]
    shared = {name: value for name, value in entry.fields.items() if name not in _OF_SERVICES}
    with sentinels_of(entry, where, timeout) as sentinels:
        for sentinel in sentinels:
            with suppress(*ServerErrors):
                replies = [
                    sentinel.execute_command("SENTINEL MASTER", service),
                    *sentinel.sentinel_slaves(service),
                ]
                return [
                    (where, Entry({**shared, "host": server["ip"], "port": server["port"]}, where))
                    for server in replies
                ]
    raise ConfigServerError(
        f"{where}: no Sentinel knows the servers of {service!r}", "start them, or correct the entry"
    )


_NAME = re.compile(
    r"shardkit:(?:waiting/|reading/)?"
    r"(?:config-server/(?P<epoch>[0-9]+)|operator|(?P<components>[^;@]+)(?:;[0-9,-]+)?)"
    r"@(?P<host>[^@/]+)/(?P<pid>[0-9]+)"
)
_LIBRARY = re.compile(r"(?P<lib>[^(]*)\(shardkit_v(?P<version>[^;)]+)")
_SENTINEL = re.compile(r"sentinel-[0-9a-f]+-(cmd|pubsub)")
_SERVERS_OWN = frozenset("SM")  # flags of replicas and masters in CLIENT LIST


@dataclass
class ClientProcess:
    """One process that has connections to servers.

    Attributes:
        host: the host name that it reports; otherwise its address.
        pid: its process id; 0 if unknown.
        library: ``shardkit 0.1.0``, or the name and version of another library.
        users: the users that it is logged in as.
        components: the components that it has used over its connections, with the seconds since a
            command was sent over one of these.
        epoch: the `config:epoch` that it uses; None if it has no connection to the config server.
        entries: by component, the epoch of the entries that its oldest connection was made for, if
            connections report it.
        connections: how many connections it has.
        idle: seconds since any of them sent a command.
        age: seconds since the oldest was made.
    """

    host: str
    pid: int
    library: str
    users: set[str] = field(default_factory=set)
    components: dict[str, int] = field(default_factory=dict)
    epoch: int | None = None
    entries: dict[str, int] = field(default_factory=dict)
    connections: int = 0
    idle: int = 0
    age: int = 0


def connected_clients(
    components: Iterable[Component],
    config_server: Entry | None = None,
    timeout: Seconds = TIMEOUT,
    **login: str,
) -> tuple[list[ClientProcess], dict[str, Exception]]:
    """Return the processes connected to the servers of components, and to the config server.

    ``timeout`` is in seconds for one answer of a server. ``login``, a ``username`` and
    ``password``, replaces the entries', except for the config server.

    Returns:
        The processes, by host and process id, and the servers that did not answer. This call's own
        connections are left out. Cost: one CLIENT LIST for each server.
    """
    timeout = check_seconds("connected_clients", "timeout", timeout, 0.001)
    answers = query_servers(entries_of(components, replicas=True), _listed, timeout, **login)
    answers |= query_servers(entries_of((), config_server), _listed, timeout)
    processes: dict[tuple[str, int, str], ClientProcess] = {}
    failed: dict[str, Exception] = {}
    for server, answer in answers.items():
        if isinstance(answer, Exception):
            failed[server] = answer
            continue
        for line in answer:
            _count(line, processes)
    return sorted(processes.values(), key=lambda process: (process.host, process.pid)), failed


def _listed(client: redis.Redis) -> list[Mapping[str, str]]:
    with client.client() as single:  # type: ignore[no-untyped-call]
        own = str(single.client_id())
        listed: list[Mapping[str, str]] = single.client_list()
        return [
            line
            for line in listed
            if line["id"] != own and not _SERVERS_OWN & set(line.get("flags", ""))
        ]


def _count(line: Mapping[str, str], processes: dict[tuple[str, int, str], ClientProcess]) -> None:
    named = _NAME.fullmatch(line.get("name", ""))
    library = " ".join(filter(None, [line.get("lib-name", ""), line.get("lib-ver", "")]))
    ours = _LIBRARY.match(library)
    if ours:
        library = f"shardkit {ours['version']}"
    if _SENTINEL.fullmatch(line.get("name", "")):
        library = "Sentinel"
    if named:
        host, pid = named["host"], int(named["pid"])
    else:
        host, pid = line["addr"].rpartition(":")[0], 0
    name = "" if library == "Sentinel" else line.get("name", "")
    key = host, pid, "" if pid else f"{library} {name}"
    process = processes.setdefault(key, ClientProcess(host, pid, library))
    idle = int(line["idle"])
    process.idle = min(process.idle, idle) if process.connections else idle
    process.age = max(process.age, int(line["age"]))
    process.connections += 1
    process.users.add(line.get("user", "default"))
    if named and named["epoch"]:
        process.epoch = max(process.epoch or 0, int(named["epoch"]))
    elif named and named["components"]:
        for label in named["components"].split(","):
            name, _, made_for = label.partition("/")
            process.components[name] = min(idle, process.components.get(name, idle))
            if made_for.isdecimal():
                epoch = int(made_for)
                process.entries[name] = min(epoch, process.entries.get(name, epoch))
