"""One command on many servers, for administrators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from redis.client import NEVER_DECODE

from shardkit.admin.servers import entries_of, query_servers
from shardkit.config.component import Component, entry_key
from shardkit.network.server_queries import TIMEOUT, client_of, query_all
from shardkit.operations.arguments import Seconds, in_seconds
from shardkit.operations.commands import Shard


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
