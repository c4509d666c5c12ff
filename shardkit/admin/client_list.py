"""Connected processes, by the names of their connections: ``shardkit:hits/9;1-64@web1/4711``.

Connections without such a name, of other programs and releases, are grouped by address and library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import redis

from shardkit.admin.servers import entries_of, query_servers
from shardkit.config.component import Component
from shardkit.config.entry import Entry
from shardkit.network.server_queries import TIMEOUT
from shardkit.operations.arguments import Seconds, in_seconds

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

    Args:
        components: the components.
        config_server: the config server, if there is one.
        timeout: seconds for one answer of a server.
        login: ``username`` and ``password`` to use instead of the entries', except for the config
            server.

    Returns:
        The processes, by host and process id, and the servers that did not answer. This call's own
        connections are left out. Cost: one CLIENT LIST for each server.
    """
    timeout = in_seconds(timeout)
    answers = query_servers(entries_of(components, replicas=True), _listed, timeout, **login)
    answers |= query_servers(entries_of((), config_server), _listed, timeout)
    found: dict[tuple[str, int, str], ClientProcess] = {}
    failed: dict[str, Exception] = {}
    for server, answer in answers.items():
        if isinstance(answer, Exception):
            failed[server] = answer
            continue
        for each in answer:
            _count(each, found)
    return sorted(found.values(), key=lambda process: (process.host, process.pid)), failed


def _listed(client: redis.Redis) -> list[Mapping[str, str]]:
    with client.client() as single:  # type: ignore[no-untyped-call]
        own = str(single.client_id())
        listed: list[Mapping[str, str]] = single.client_list()
        return [
            each
            for each in listed
            if each["id"] != own and not _SERVERS_OWN & set(each.get("flags", ""))
        ]


def _count(each: Mapping[str, str], found: dict[tuple[str, int, str], ClientProcess]) -> None:
    named = _NAME.fullmatch(each.get("name", ""))
    library = " ".join(filter(None, [each.get("lib-name", ""), each.get("lib-ver", "")]))
    ours = _LIBRARY.match(library)
    if ours:
        library = f"shardkit {ours['version']}"
    if _SENTINEL.fullmatch(each.get("name", "")):
        library = "Sentinel"
    if named:
        host, pid = named["host"], int(named["pid"])
    else:
        host, pid = each["addr"].rpartition(":")[0], 0
    name = "" if library == "Sentinel" else each.get("name", "")
    key = host, pid, "" if pid else f"{library} {name}"
    process = found.setdefault(key, ClientProcess(host, pid, library))
    idle = int(each["idle"])
    process.idle = min(process.idle, idle) if process.connections else idle
    process.age = max(process.age, int(each["age"]))
    process.connections += 1
    process.users.add(each.get("user", "default"))
    if named and named["epoch"]:
        process.epoch = max(process.epoch or 0, int(named["epoch"]))
    elif named and named["components"]:
        for label in named["components"].split(","):
            name, _, made_for = label.partition("/")
            process.components[name] = min(idle, process.components.get(name, idle))
            if made_for.isdecimal():
                epoch = int(made_for)
                process.entries[name] = min(epoch, process.entries.get(name, epoch))
