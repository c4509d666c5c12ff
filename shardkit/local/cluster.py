"""A real cluster on this machine.

The nodes are joined by the commands that `redis-cli --cluster create` uses. A node refuses requests
in its first two seconds, so a cluster takes that long to start.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import ResponseError

from shardkit.config.entry import Entry
from shardkit.errors import LocalServerError
from shardkit.local.process import GuardedProcess
from shardkit.local.server import (
    HOST,
    LocalServer,
    ServerGroup,
    Setting,
    Settings,
    comes_true,
    free_port,
    start_all,
)
from shardkit.structures.base.arguments import check_integer

SLOTS = 16384
_AWAY = frozenset({"fail", "fail?", "handshake"})


class ClusterNode(LocalServer):
    """One node of a cluster, before it joins the others."""

    bus_port = 0  # for messages between nodes

    def _configure(self, process: GuardedProcess) -> None:
        self.bus_port = free_port()
        super()._configure(process)

    def _settings(self) -> Settings:
        return [
            ("cluster-enabled", True),
            ("cluster-config-file", "nodes.conf"),
            ("cluster-node-timeout", 3000),
            ("cluster-port", self.bus_port),
            ("cluster-announce-ip", HOST),
            ("cluster-allow-replica-migration", False),
            *super()._settings(),  # last, so that config= overrides
        ]


class LocalCluster(ServerGroup):
    """A cluster of several server processes. A context manager.

    Args:
        masters: how many masters; failover needs at least 3.
        replicas_per_master: how many replicas each of them has.
        port: the first node's port; 0 for a free one. All other nodes have free ones.
        data_dir: where the nodes save their data, in ``node-0`` and so on; None saves none.

    The other arguments are those of `LocalServer`, for each node.

    Attributes:
        nodes: the nodes, masters first; node ``masters + n`` is a replica of node ``n % masters``.
    """

    def __init__(
        self,
        masters: int = 3,
        replicas_per_master: int = 0,
        *,
        port: int = 0,
        password: str | None = None,
        users: Mapping[str, str] | None = None,
        data_dir: str | Path | None = None,
        config: Mapping[str, Setting] | None = None,
        binary: str | Path | None = None,
        name: str = "cluster",
    ) -> None:
        check_integer(name, "masters", masters, 1, 1000)
        check_integer(name, "replicas_per_master", replicas_per_master, 0, 1000)
        self.name = name
        self._masters = masters
        self.nodes = [
            ClusterNode(
                port=0 if n else port,
                password=password,
                users=users,
                data_dir=None if data_dir is None else Path(data_dir) / f"node-{n}",
                config=config,
                binary=binary,
                name=f"{name} node {n}",
            )
            for n in range(masters * (1 + replicas_per_master))
        ]

    @property
    def entry(self) -> Entry:
        """The entry to connect with, as a user with all permissions."""
        return Entry({**self.nodes[0].entry.fields, "cluster": True}, self.name)

    def client(self, **arguments: Any) -> redis.RedisCluster:
        """Return a client of the cluster as a user with all permissions.

        ``arguments`` are further ones of ``redis.RedisCluster``.
        """
        fields = self.nodes[0].entry.fields
        return redis.RedisCluster(**{"protocol": 2, **fields, **arguments})

    @property
    def servers(self) -> list[LocalServer]:
        """The nodes."""
        return [*self.nodes]

    def _start(self, deadline: float) -> None:
        start_all(self.nodes, deadline - time.monotonic())
        self.join_nodes(deadline)
        self.await_ready(deadline)

    def __repr__(self) -> str:
        return f"<LocalCluster {self.name!r}: {self._running('nodes ')}>"

    def join_nodes(self, deadline: float) -> None:
        """Assign slots to masters that have none, and make every node meet every other.

        Nodes that restart with their data have their slots and know each other, but perhaps by old
        ports; meeting again updates them.
        """
        with ExitStack() as stack:
            clients = [stack.enter_context(node.client()) for node in self.nodes]
            fresh = all(
                int(client.cluster("info")["cluster_slots_assigned"]) < SLOTS for client in clients
            )
            for n, client in enumerate(clients if fresh else []):
                # First, because only a node that knows no other accepts an epoch. A node that
                # refuses has it, or its slots, from an earlier start that was interrupted.
                with suppress(ResponseError):
                    client.execute_command("CLUSTER SET-CONFIG-EPOCH", n + 1)
                if n < self._masters:
                    first = SLOTS * n // self._masters
                    last = SLOTS * (n + 1) // self._masters - 1
                    with suppress(ResponseError):
                        client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
            for n, client in enumerate(clients):
                for other in self.nodes[n + 1 :]:
                    client.execute_command("CLUSTER MEET", HOST, other.port, other.bus_port)
            ids = [client.execute_command("CLUSTER MYID") for client in clients]
            for n, client in enumerate(clients[self._masters :] if fresh else []):
                master = ids[n % self._masters]
                replicate = partial(client.execute_command, "CLUSTER REPLICATE", master)
                if not comes_true(replicate, deadline):
                    raise self._late()

    def await_ready(self, deadline: float) -> None:
        """Wait until every node serves, and all agree on the slots."""
        with ExitStack() as stack:
            clients = [stack.enter_context(node.client()) for node in self.nodes]
            if not comes_true(partial(self._agree, clients), deadline):
                raise self._late()

    def _agree(self, clients: list[redis.Redis]) -> bool:
        views = [_view(client) for client in clients]
        ports = {node.port for node in self.nodes}
        for view, client in zip(views, clients, strict=True):
            info = client.cluster("info")
            if info["cluster_state"] != "ok" or info["cluster_slots_ok"] != str(SLOTS):
                return False
            if view != views[0] or {port for port, _ in view.values()} != ports:
                return False
        replications: list[Any] = [client.info("replication") for client in clients]
        return all(info.get("master_link_status", "up") == "up" for info in replications)

    def _late(self) -> LocalServerError:
        logs = "\n".join(node.log(3) for node in self.nodes)
        return LocalServerError(
            f"{self.name}: the cluster did not form in time: the nodes' logs end:\n{logs}\n",
            "give them more time",
        )


def _view(client: redis.Redis) -> dict[str, tuple[int, Any]]:
    """Return each node's port, and its slots or its master, as one node sees them."""
    view = {}
    for address, node in client.cluster("nodes").items():
        if not _AWAY.isdisjoint(node["flags"].split(",")):
            continue  # still joining, or unreachable
        port = int(address.rpartition(":")[2])
        view[node["node_id"]] = (port, node["slots"] or node["master_id"])
    return view
