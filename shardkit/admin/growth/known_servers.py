"""Recognises servers by their ``run_id``, which each address is asked for once.

::

    a:6379, 10.0.0.2:6379   the same run_id          one server
    a:6379, b:6379          different run_ids        two servers
    a:6379, 10.0.0.2:6379   one does not answer      one server if both names resolve alike
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from functools import partial

from redis.exceptions import AuthenticationError, NoPermissionError

from shardkit.admin.growth.relocation import ServerAddress, address_of
from shardkit.admin.growth.servers import connected_to, same_server
from shardkit.admin.servers import entries_of
from shardkit.config.component import Component
from shardkit.config.entry import Entry
from shardkit.config.fields import database_of
from shardkit.errors import ConfigError
from shardkit.network.server_queries import TIMEOUT, client_of, query_all


class KnownServers:
    """Decides whether two addresses are one server. Asks servers only when it is created.

    It asks the masters and replicas of components, and the other servers with logins of entries.
    """

    def __init__(self, components: Iterable[Component], *others: ServerAddress) -> None:
        every: dict[str, tuple[str, Entry]] = {}
        by_address: defaultdict[ServerAddress, dict[str, tuple[str, Entry]]] = defaultdict(dict)
        self._nameless: list[tuple[str, Entry]] = []
        for where, entry in entries_of(components, replicas=True):
            address = address_of(entry)
            if entry.is_cluster:
                continue
            every.setdefault(_login(entry), (where, entry))
            if address is None:
                self._nameless.append((where, entry))
            else:
                by_address[address].setdefault(_login(entry), (where, entry))
        queries: dict[ServerAddress | str, Callable[[], str]] = {
            where: partial(_run_id, where, entry) for where, entry in self._nameless
        }
        for server in {*by_address, *others}:
            queries[server] = partial(_run_id_at, server, by_address.get(server, every).values())
        self._run_ids = {
            key: answer for key, answer in query_all(queries).items() if isinstance(answer, str)
        }
        self._resolved: dict[tuple[ServerAddress, ServerAddress], bool] = {}

    def same(self, one: ServerAddress | None, other: ServerAddress) -> bool:
        """Return whether two addresses are one server."""
        if one is None or one == other:
            return one == other
        ids = self._run_ids.get(one), self._run_ids.get(other)
        if None not in ids:
            return ids[0] == ids[1]
        if (one, other) not in self._resolved:
            self._resolved[one, other] = same_server(one, other)
        return self._resolved[one, other]

    def nameless(
        self, server: ServerAddress, databases: Collection[int] | None = None
    ) -> list[str]:
        """Return the entries that lead to a server, or to databases of it, without its address.

        They have a socket, Sentinels or a reference, so a move cannot rewrite them.
        """
        run_id = self._run_ids.get(server)
        return [
            where
            for where, entry in self._nameless
            if run_id is not None
            and self._run_ids.get(where) == run_id
            and (databases is None or database_of(entry.fields) in (None, *databases))
        ]


def _login(entry: Entry) -> str:
    fields = entry.fields
    for name in ("host", "port", "startup_nodes", "db", "replicas", "zone", "held"):
        fields.pop(name, None)
    return json.dumps(fields, sort_keys=True)


def _run_id(where: str, entry: Entry) -> str:
    fields = entry.resolved(where)
    fields.pop("replicas", None)
    with client_of(fields, TIMEOUT) as client:
        return str(client.info("server")["run_id"])


def _run_id_at(server: ServerAddress, logins: Iterable[tuple[str, Entry]]) -> str:
    for where, entry in logins:
        try:
            with connected_to(server, entry, where, TIMEOUT) as client:
                return str(client.info("server")["run_id"])
        except (AuthenticationError, NoPermissionError, ConfigError):
            continue  # another entry's user may be allowed to ask
    raise LookupError(f"no entry has a user of {server}")
