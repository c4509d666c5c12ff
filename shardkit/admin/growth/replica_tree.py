"""Which server replicates which, at every level, and whether it is in sync.

::

    a:6379                 master, offset 9000
      b:6379               in sync
        c:6379             4,000 bytes behind

A replica of a replica relieves the master, but a failover has to repoint more servers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from redis.exceptions import RedisError

from shardkit.admin.growth.failover import replicas_of
from shardkit.admin.growth.known_servers import KnownServers
from shardkit.admin.growth.relocation import ServerAddress, masters_in
from shardkit.admin.growth.servers import ServerRole, connected_to, role_of
from shardkit.config.component import Component
from shardkit.config.entry import Entry

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
    same = KnownServers(components).same
    masters: dict[ServerAddress, tuple[Entry, str]] = {}
    for server, entry, where in masters_in(components):
        if not any(same(server, each) for each in masters):
            masters[server] = entry, where
    tree: list[ReplicaNode] = []
    for server, (like, where) in masters.items():
        below = _visit(server, like, where, 0, None)
        for named in replicas_of(components, server, same):
            if not any(same(named, node.server) for node in below):
                below += _visit(named, like, where, 1, None)
        tree += below
    return tree


def _visit(
    server: ServerAddress, like: Entry, where: str, depth: int, master: ServerRole | None
) -> list[ReplicaNode]:
    try:
        with connected_to(server, like, where) as client:
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
            nodes += _visit(replica, like, where, depth + 1, role)
    return nodes
