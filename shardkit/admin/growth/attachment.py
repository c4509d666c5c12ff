"""Attaches replicas to servers in use, detaches them, and shows which server replicates which.

::

    attach   the new server follows, is filled and near its master ─► entries name it
    detach   entries no longer name it ─► clients have left it ─► it follows no server

A replica may follow a replica, which relieves the master; entries do not name it then, as clients
read only from replicas that follow the master itself, and a failover has to repoint more servers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from shardkit.admin.changes import Change, taking_part
from shardkit.admin.growth.entries import LEAVE, push_changed
from shardkit.admin.growth.failover import master_of
from shardkit.admin.growth.journal import lease
from shardkit.admin.growth.relocation import (
    Login,
    Same,
    ServerAddress,
    address_of,
    masters_in,
    replicas_in,
    with_replica,
    without_replica,
)
from shardkit.admin.growth.servers import (
    KnownServers,
    ServerRole,
    connected_to,
    is_refused,
    mismatched_tls,
    persist_roles,
    replicate,
    role_of,
    same_server,
    touched,
    unfit,
    wait_for_copy,
)
from shardkit.config.component import Component
from shardkit.config.store import read_components, read_epoch
from shardkit.errors import GrowthError, InvalidArgumentError
from shardkit.operations.arguments import Seconds, in_seconds

COPY = 3600.0  # seconds


@dataclass(frozen=True)
class AttachedReplica:
    """A replica that was attached or detached.

    Attributes:
        replica: the replica's address.
        master: the server that it follows, or followed.
        named: whether entries name it now.
        epoch: `config:epoch` now.
    """

    replica: ServerAddress
    master: ServerAddress
    named: bool
    epoch: int


def attach_replica(
    config: Any,
    replica: str,
    to: str,
    *,
    zone: str | None = None,
    copy: Seconds = COPY,
    within: str = "",
) -> AttachedReplica:
    """Make an empty server a replica; when it is filled, entries name it.

    Args:
        config: a client of the config server.
        replica: the new server, ``host:port``, empty. If it already follows, entries only name it.
        to: the server to follow: a shard (``timelines:3``), a master that entries name, or one of
            its replicas, ``host:port``. Entries do not name a replica of a replica.
        zone: where it is, for `read_from="zone"`.
        copy: how long the copy may take, in seconds.
        within: the id of the change that this is a step of.

    Raises:
        GrowthError: it cannot replicate that server, or was not filled in time. Then it follows
            that server, and no entry names it.
        InvalidArgumentError: no entry names the server to follow.
    """
    copy = in_seconds(copy)
    with lease(config) as held, ExitStack() as stack:
        components = read_components(config)
        target = ServerAddress.parse(replica)
        servers = KnownServers(components.values(), target)
        same = servers.same
        if servers.entries_on(target):
            raise GrowthError(f"entries name {target} as a master", "choose an empty server")
        source, login = _followed(components, to)
        master = stack.enter_context(connected_to(source, login))
        new = stack.enter_context(connected_to(target, login))
        role = role_of(new)
        databases = touched({target: "*", source: "*"}, lambda _: login)
        change = Change(kind="attach", name=str(target), databases=databases, within=within)
        stack.enter_context(taking_part(config, change))
        if problems := _obstacles(master, new, (source, target), login, same):
            raise GrowthError("; ".join(problems), "correct that, or choose another server")
        if role.is_master:
            replicate(new, source, login, held.order)
            persist_roles(new)
        wait_for_copy(master, new, copy)
        named = bool(servers.entries_on(source))
        epoch = read_epoch(config)
        if named:
            epoch = push_changed(
                held,
                lambda components: with_replica(components, source, target, same, zone),
                f"{target} replicates {source}",
            )
    return AttachedReplica(target, source, named, epoch)


def obstacles(components: Mapping[str, Component], replica: str, to: str) -> list[str]:
    """Return what prevents `attach_replica`."""
    target = ServerAddress.parse(replica)
    servers = KnownServers(components.values(), target)
    if servers.entries_on(target):
        return [f"entries name {target} as a master"]
    source, login = _followed(components, to)
    try:
        with (
            connected_to(source, login) as master,
            connected_to(target, login) as new,
        ):
            return _obstacles(master, new, (source, target), login, servers.same)
    except (RedisError, OSError) as error:
        return [f"{target} or {source} cannot be asked ({error})"]


def _obstacles(
    master: Any,
    new: Any,
    servers: tuple[ServerAddress, ServerAddress],
    login: Login,
    same: Same,
) -> list[str]:
    source, target = servers
    if same(*servers):
        return [f"{source} and {target} are one server"]
    info = master.info()
    problems = unfit((source, master, info), (target, new, new.info()))
    if role_of(new).is_master:
        problems += mismatched_tls(new, target, login)
    if info.get("cluster_enabled"):
        problems.append(f"{source} is a node of a cluster: CLUSTER REPLICATE")
    return problems


def detach_replica(
    config: Any, replica: str, *, force: bool = False, within: str = ""
) -> AttachedReplica:
    """Detach a replica, after entries no longer name it and clients have left it.

    It keeps its data and takes writes again. A server that is down is only removed from entries.

    Args:
        config: a client of the config server.
        replica: the server, ``host:port``.
        force: detach it even if its master refuses writes without it (``min-replicas-to-write``).
        within: the id of the change that this is a step of.

    Raises:
        GrowthError: it is a master, others follow it, or its master would refuse writes.
        InvalidArgumentError: it follows no server that entries name.
    """
    with lease(config) as held, ExitStack() as stack:
        components = read_components(config)
        target = ServerAddress.parse(replica)
        servers = KnownServers(components.values(), target)
        same = servers.same
        if servers.entries_on(target):
            raise GrowthError(f"entries name {target} as a master", "fail over first")
        source, login = _followed_by(components, target, same)
        databases = touched({target: "*", source: "*"}, lambda _: login)
        change = Change(kind="detach", name=str(target), databases=databases, within=within)
        stack.enter_context(taking_part(config, change))
        role = None
        client = stack.enter_context(connected_to(target, login))
        try:
            role = role_of(client)
        except (RedisError, OSError) as error:
            if not (force or is_refused(error)):
                raise GrowthError(
                    f"{target} may be alive, but INFO failed ({error}): it would still follow "
                    f"{source}, although no entry names it",
                    "make INFO work, or use --force",
                ) from error
        if role is not None and role.replicas:
            below = ", ".join(str(server) for server, _ in role.replicas)
            raise GrowthError(f"{target} has replicas itself: {below}", "detach them first")
        if role is not None and not force:
            _check_enough_are_left(source, login)
        epoch = push_changed(
            held,
            lambda components: without_replica(components, target, same),
            f"{target} no longer replicates {source}",
        )
        if role is not None and not role.is_master:
            _wait_for_clients(client)
            held.order(client, "REPLICAOF", "NO", "ONE")
            persist_roles(client)
    return AttachedReplica(target, source, False, epoch)


Components = Mapping[str, Component]


def _followed(components: Components, name: str) -> tuple[ServerAddress, Login]:
    """Return the server to follow, and a login of it."""
    try:
        return master_of(components, name)
    except InvalidArgumentError:
        for replica, login in replicas_in(components.values()):
            if str(replica) == name:
                return replica, login
        raise


def _followed_by(
    components: Components, replica: ServerAddress, same: Same
) -> tuple[ServerAddress, Login]:
    """Return the master of a server, by the entries or by its own INFO."""
    masters = list(masters_in(components.values()))
    for master, login in masters:
        if any(same(address_of(each), replica) for each in login.entry.replicas):
            return master, login
    for server, login in (*replicas_in(components.values()), *masters):
        with suppress(RedisError, OSError), connected_to(replica, login) as client:
            role = role_of(client)
            if role.master is not None and same_server(role.master, server):
                return server, login
    raise InvalidArgumentError(
        f"{replica} follows no server that entries name", "see: shardkit replicas tree"
    )


def _check_enough_are_left(source: ServerAddress, login: Login) -> None:
    """Refuse to detach the replica without which its master takes no writes."""
    try:
        with connected_to(source, login) as master:
            least = int(master.config_get("min-replicas-to-write").get("min-replicas-to-write", 0))
            left = len(role_of(master).replicas) - 1
    except (RedisError, OSError) as error:
        if is_refused(error):
            return
        raise GrowthError(
            f"{source} does not say how many replicas it needs to take writes ({error})",
            "make INFO and CONFIG GET work, or use --force",
        ) from error
    if left < least:
        raise GrowthError(
            f"{source} takes writes only with {least} replicas, and would have {left}",
            "attach another one first, or use --force",
        )


def _wait_for_clients(client: Any) -> None:
    """Wait, at most `LEAVE` seconds, until no connection of shardkit's is left."""
    end = time.monotonic() + LEAVE
    while time.monotonic() < end:
        with suppress(RedisError):  # the user may not call CLIENT LIST
            if not any(each["name"].startswith("shardkit:") for each in client.client_list()):
                return
        time.sleep(0.05)


_DEEPEST = 5


@dataclass(frozen=True)
class ReplicaNode:
    """One server of a tree.

    Attributes:
        server: its address, as its master or an entry names it.
        depth: 0 for a master that entries name.
        state: ``master``, ``in sync``, ``behind``, ``no link``, or why it does not answer.
        behind: how many bytes of writes it lacks; None if unknown.
    """

    server: ServerAddress
    depth: int
    state: str
    behind: int | None = None

    @property
    def ok(self) -> bool:
        """Whether it is a master, or a replica with a link to one."""
        return self.state in ("master", "in sync", "behind")


def replica_tree(components: Iterable[Component]) -> list[ReplicaNode]:
    """Return the masters that entries name, each followed by its replicas and theirs.

    Replicas that entries name but that do not follow are included. Cost: an INFO to each server.
    """
    components = list(components)
    servers = KnownServers(components)
    masters: dict[ServerAddress, Login] = {}
    for server, login in masters_in(components):
        if not any(servers.same(server, each) for each in masters):
            masters[server] = login
    tree: list[ReplicaNode] = []
    for server, login in masters.items():
        below = _visit(server, login, 0, None)
        for named in servers.replicas_of(server):
            if not any(servers.same(named, node.server) for node in below):
                below += _visit(named, login, 1, None)
        tree += below
    return tree


def _visit(
    server: ServerAddress, login: Login, depth: int, master: ServerRole | None
) -> list[ReplicaNode]:
    try:
        with connected_to(server, login) as client:
            role = role_of(client)
    except (RedisError, OSError) as error:
        return [ReplicaNode(server, depth, f"does not answer ({error})")]
    behind = None if master is None else max(0, master.offset - role.offset)
    if depth == 0:
        state = "master" if role.is_master else "is a replica, though an entry names it as master"
    elif role.is_master:
        state = "follows nobody"
    elif not role.linked:
        state = "no link"
    elif master is None:
        state = f"follows {role.master}, not the master of its entry"
    else:
        state = "behind" if behind else "in sync"
    nodes = [ReplicaNode(server, depth, state, behind)]
    if depth < _DEEPEST:
        for replica, _ in role.replicas:
            nodes += _visit(replica, login, depth + 1, role)
    return nodes
