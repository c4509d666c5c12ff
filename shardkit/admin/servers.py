"""Queries the servers behind entries, each once, however many shards live on it.

A server may have several names: ``localhost`` and ``127.0.0.1``, a socket, any node of its cluster.
`identify` asks the server itself which one it is; its address is only the way there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import redis
from redis.client import NEVER_DECODE

from shardkit.config.component import Component, entry_key
from shardkit.config.entry import Entry
from shardkit.errors import ConfigServerError
from shardkit.network.server_queries import TIMEOUT, ServerErrors, client_of, query_all
from shardkit.network.survey import Login, logins_of, server_of, targets_of
from shardkit.operations.arguments import Seconds, in_seconds
from shardkit.operations.commands import Shard

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
    each: str = "server",
    shard: int | None = None,
    timeout: Seconds = TIMEOUT,
    **login: str,
) -> dict[str, Any | Exception]:
    """Run a command on every server of components, or on every shard's database.

    Args:
        components: the components.
        command: the command and its arguments, as they are sent.
        each: ``server`` for once on each server (on a cluster, each node), ``shard`` for once in
            the database of each shard.
        shard: with ``shard``, only that one.
        timeout: seconds for one answer of a server.
        login: ``username`` and ``password`` to use instead of the entries'.

    Returns:
        By server or shard, the reply as redis-py returns it, or the exception. All servers are
        queried in parallel. Nothing is sent twice.
    """
    timeout = in_seconds(timeout)

    def run(client: Any) -> Any:
        return client.execute_command(*command, **{NEVER_DECODE: True})

    components = list(components)
    if each == "server":
        return query_servers(entries_of(components), run, timeout, **login)
    queries = {}
    for component in components:
        for where, entry in component.entries():
            if shard in (None, where.number) or not component.shards:

                def ask(where: Shard = where, entry: Any = entry) -> Any:
                    fields = {**entry.resolved(entry_key(*where)), **login}
                    with client_of(fields, timeout) as client:
                        return run(client)

                queries[str(where)] = ask
    return query_all(queries, timeout)


@contextmanager
def sentinels_of(entry: Entry, where: str, timeout: float = TIMEOUT) -> Iterator[list[Any]]:
    """Yield clients of all Sentinels that an entry names, even if they do not answer."""
    with client_of(entry.resolved(where), timeout) as client:
        sentinels = list(client.connection_pool.master.manager.sentinels)
        try:
            yield sentinels
        finally:
            for each in sentinels:
                each.connection_pool.disconnect()


def servers_of_service(
    entry: Entry, where: str, timeout: float = TIMEOUT
) -> list[tuple[str, Entry]]:
    """Return an entry for each server of a Sentinels' service, the master first."""
    service = entry.fields["sentinel"]["service"]
    shared = {name: value for name, value in entry.fields.items() if name not in _OF_SERVICES}
    with sentinels_of(entry, where, timeout) as sentinels:
        for each in sentinels:
            with suppress(*ServerErrors):
                found = [
                    each.execute_command("SENTINEL MASTER", service),
                    *each.sentinel_slaves(service),
                ]
                return [
                    (where, Entry({**shared, "host": said["ip"], "port": said["port"]}, where))
                    for said in found
                ]
    raise ConfigServerError(
        f"{where}: no Sentinel knows the servers of {service!r}", "start them, or correct the entry"
    )
