"""The servers behind components' entries, each visited once, however many shards live on it.

A server may have several names: ``localhost`` and ``127.0.0.1``, a socket, any node of its cluster.
`identify` asks the server itself which one it is; its address is only the way there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import redis

from shardkit.config.component import Component, entry_key
from shardkit.config.entry import Entry
from shardkit.errors import ConfigError
from shardkit.network.server_queries import TIMEOUT, client_of, query_all

T = TypeVar("T")


@dataclass(frozen=True)
class ServerIdentity:
    """Which server answers, by whatever name it was asked.

    Attributes:
        server: its ``run_id``; for a client of a cluster, the cluster.
        data: the data that it holds: the same for a master and its replicas (``master_replid``),
            and for all nodes of a cluster.
    """

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
    fields_of: dict[str, dict[str, Any]] = {}
    places: dict[T, tuple[str, int] | Exception] = {}
    for key, entry in entries.items():
        try:
            fields = entry.resolved(str(key))
        except ConfigError as error:
            places[key] = error
            continue
        fields.pop("replicas", None)
        number = fields.pop("db", 0)
        address = json.dumps(fields, sort_keys=True)
        fields_of[address] = fields
        places[key] = address, number

    def ask(fields: dict[str, Any]) -> ServerIdentity:
        with client_of(fields, timeout) as client:
            return identify(client)

    answers = query_all(
        {address: partial(ask, fields) for address, fields in fields_of.items()}, timeout
    )
    found: dict[T, set[tuple[str, int]] | Exception] = {}
    for key, place in places.items():
        if isinstance(place, Exception):
            found[key] = place
            continue
        answer = answers[place[0]]
        found[key] = (
            answer
            if isinstance(answer, Exception)
            else {(answer.server, place[1]), (answer.data, place[1])}
        )
    return found


def entries_of(
    components: Iterable[Component], config_server: Entry | None = None, *, replicas: bool = False
) -> list[tuple[str, Entry]]:
    """Return entries and where they come from, for messages.

    Args:
        components: the components.
        config_server: the config server, to have it first.
        replicas: whether to have those under ``replicas`` as well.
    """
    found = [] if config_server is None else [("config server", config_server)]
    for component in components:
        for shard, entry in component.entries():
            found.append((entry_key(*shard), entry))
            if replicas:
                found += [
                    (f"{entry_key(*shard)} replicas[{n}]", each)
                    for n, each in enumerate(entry.replicas)
                ]
    return found


def query_servers(
    entries: Iterable[tuple[str, Entry]],
    query: Callable[[redis.Redis], T],
    timeout: float = TIMEOUT,
    **login: str,
) -> dict[str, T | Exception]:
    """Run a query once on each server, all in parallel; on a cluster on each node.

    A server with several names is visited by one of them, if its user may run INFO.

    Args:
        entries: entries, with where they come from.
        query: is given a client, which decodes nothing.
        timeout: seconds for one answer.
        login: ``username`` and ``password`` in place of the entries'.

    Returns:
        By address, what the query returned or raised; a ConfigError for an entry that this machine
        cannot use.
    """
    failed: dict[str, T | Exception] = {}
    fields_by_server: dict[str, tuple[str, dict[str, Any]]] = {}
    for where, entry in entries:
        server = entry.address.rpartition("/")[0] if "/" in entry.address else entry.address
        try:
            fields = {**entry.resolved(where), **login}
        except ConfigError as error:
            failed[server] = error
            continue
        for name in ("db", "replicas"):
            fields.pop(name, None)
        fields_by_server.setdefault(json.dumps(fields, sort_keys=True), (server, fields))

    visited: dict[str, object] = {}

    def is_first(client: Any) -> bool:
        with suppress(redis.ResponseError):  # INFO is not everybody's right
            own = object()
            return visited.setdefault(identify(client).server, own) is own
        return True

    def visit(server: str, fields: dict[str, Any]) -> dict[str, T | Exception]:
        with client_of(fields, timeout) as client:
            if not isinstance(client, redis.RedisCluster):
                return {server: query(client)} if is_first(client) else {}
            found: dict[str, T | Exception] = {}
            for node in client.get_nodes():  # type: ignore[no-untyped-call]
                try:
                    on_node = client.get_redis_connection(node)
                    if is_first(on_node):
                        found[node.name] = query(on_node)
                except Exception as error:  # whatever it is, the other nodes are asked
                    found[node.name] = error
            return found

    answers = query_all(
        {
            key: lambda each=each: visit(*each)  # type: ignore[misc]
            for key, each in fields_by_server.items()
        },
        timeout,
    )
    for key, answer in answers.items():
        failed |= answer if isinstance(answer, dict) else {fields_by_server[key][0]: answer}
    return failed
