"""The servers behind components' entries, each visited once, however many shards live on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import redis

from shardkit.config.component import Component, entry_key
from shardkit.config.entry import Entry
from shardkit.errors import ConfigError
from shardkit.server_queries import TIMEOUT, client_of, query_all

T = TypeVar("T")


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

    def visit(server: str, fields: dict[str, Any]) -> dict[str, T | Exception]:
        with client_of(fields, timeout) as client:
            if not isinstance(client, redis.RedisCluster):
                return {server: query(client)}
            found: dict[str, T | Exception] = {}
            for node in client.get_nodes():  # type: ignore[no-untyped-call]
                try:
                    found[node.name] = query(client.get_redis_connection(node))
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
