"""Failover by Sentinels or by a cluster; no entry changes.

::

    Sentinels   SENTINEL FAILOVER main COORDINATED   the master hands over: no write is lost
                SENTINEL FAILOVER main               before Valkey 9: unreplicated writes are lost
                CONFIG SET replica-priority 1        for the wanted replica: Sentinels choose the
                                                     one with the lowest (0: never)
    cluster     CLUSTER FAILOVER, to a replica       the master hands over: no write is lost
                CLUSTER FAILOVER FORCE               its master is dead

What is sent to servers depends on the lease, as in `Lease.order`. Sentinels have no keys that could
tell: the lease is looked at before and afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError, ResponseError
from redis.utils import str_if_bytes

from shardkit.admin.growth.cluster_nodes import mark_of
from shardkit.admin.growth.journal import Lease
from shardkit.admin.growth.relocation import ServerAddress, address_of
from shardkit.admin.growth.servers import STEP, TIMEOUT, Takeover, connected_to
from shardkit.admin.servers import sentinels_of, servers_of_service
from shardkit.config.component import Component, entry_key
from shardkit.config.entry import Entry
from shardkit.errors import ConfigError, GrowthError, InvalidArgumentError
from shardkit.network.server_queries import ServerErrors, client_of

_SECONDS = 30.0  # for Sentinels to agree, or nodes to vote
_AGAIN = 2.0  # seconds
_AGREE = 5.0  # seconds for all nodes of a cluster to record the new roles
_PRIORITY = "replica-priority"
_PRIORITIES_KEY = "config:growth:priorities"  # former priorities while one is preferred
_DEAD = frozenset({"fail", "fail?", "noaddr", "handshake"})


def managed_by(components: Mapping[str, Component], name: str) -> tuple[str, Entry, str] | None:
    """Return the entry of Sentinels or of a cluster that a name means, and where that is stored.

    The name is a component, a shard, or a cluster's node. The node comes first in the result, empty
    if the name is no node. None if the name means something else.
    """
    for component in components.values():
        for shard, entry in component.entries():
            if not (entry.is_sentinel or entry.is_cluster):
                continue
            if str(shard) == name or (shard.number is None and component.name == name):
                return "", entry, entry_key(*shard)
            if entry.is_cluster and ":" in name:
                with suppress(GrowthError, ConfigError, InvalidArgumentError):
                    nodes = _nodes(entry, entry_key(*shard))
                    if any(node.address == ServerAddress.parse(name) for node in nodes):
                        return name, entry, entry_key(*shard)
    return None


def fail_over_sentinels(
    lease: Lease,
    components: Mapping[str, Component],
    entry: Entry,
    where: str,
    to: str | None,
) -> Takeover:
    """Have Sentinels replace the master of a service, by the replica `to` or by their own choice.

    The config server keeps the former priorities in the meantime.
    """
    with _preferring(lease, entry, where, None if to is None else ServerAddress.parse(to)):
        done = _replace_by_sentinels(lease, components, entry, where)
    if to is not None and done.target != ServerAddress.parse(to):
        raise GrowthError(
            f"the Sentinels chose {done.target}, not {to}, though that had the best priority: they "
            "did not find it in good order",
            "see their logs, and fail over once more",
        )
    return done


@contextmanager
def _preferring(
    lease: Lease, entry: Entry, where: str, wanted: ServerAddress | None
) -> Iterator[None]:
    """Make Sentinels prefer a replica, by its priority; restore all priorities at the end.

    This includes the priorities that a killed process has left changed.
    """
    listed = servers_of_service(entry, where)
    servers = {_address(each): each for _, each in listed}
    if wanted is not None and wanted not in list(servers)[1:]:
        said = "the master already" if wanted == next(iter(servers)) else "no replica of it"
        raise GrowthError(
            f"{wanted} is {said}, as the Sentinels of {where} know", "see: shardkit status"
        )
    with ExitStack() as stack:
        try:
            if wanted is not None:
                master = stack.enter_context(client_of(listed[0][1].resolved(where), TIMEOUT))
                stack.enter_context(lease.marking(master))
                for server in list(servers)[1:]:
                    priority = 1 if server == wanted else 2
                    _set_priority(lease, servers[server], where, server, priority)
                _wait_for_priority(entry, where, wanted)
            yield
        finally:
            for _ in range(2):  # Sentinels that give a replica its new master close connections
                for name, noted in lease.config.hgetall(_PRIORITIES_KEY).items():
                    address = ServerAddress.parse(str_if_bytes(name))
                    if address in servers and noted.isdigit():
                        former = (where, address, int(noted))
                        with suppress(RedisError, OSError, GrowthError):  # the next one restores it
                            _set_priority(lease, servers[address], *former, back=True)


def _set_priority(
    lease: Lease,
    entry: Entry,
    where: str,
    server: ServerAddress,
    priority: int,
    *,
    back: bool = False,
) -> None:
    """Set a priority, unless the replica has a worse one, and keep the former; or restore it."""
    with client_of(entry.resolved(where), TIMEOUT) as client:
        try:
            before = int(client.config_get(_PRIORITY)[_PRIORITY])
            if not back and before != priority and (priority == 1 or before == 1):
                lease.config.hsetnx(_PRIORITIES_KEY, str(server), str(before))
                lease.order(client, "CONFIG", "SET", _PRIORITY, priority)
            elif back:
                lease.order(client, "CONFIG", "SET", _PRIORITY, priority)
                lease.config.hdel(_PRIORITIES_KEY, str(server))
        except (ResponseError, KeyError) as error:
            raise GrowthError(
                f"{server} does not let its {_PRIORITY} be changed ({error}), by which Sentinels "
                "choose the replica",
                "give the user CONFIG, or leave out --to",
            ) from error


def _wait_for_priority(entry: Entry, where: str, wanted: ServerAddress) -> None:
    """Wait until all Sentinels that answer have seen that a replica has the best priority."""
    service = entry.fields["sentinel"]["service"]
    end = time.monotonic() + _SECONDS
    with sentinels_of(entry, where) as sentinels:
        for each in sentinels:
            while True:
                try:
                    known = each.sentinel_slaves(service)
                except (RedisError, OSError):
                    break
                best = {
                    ServerAddress(str(said["ip"]), int(said["port"])): int(said["slave-priority"])
                    for said in known
                }
                others = [n for server, n in best.items() if server != wanted and n > 0]
                if 0 < best.get(wanted, 0) < min(others, default=1_000_000):
                    break
                if time.monotonic() > end:
                    raise GrowthError(
                        f"a Sentinel did not learn within {_SECONDS:g} s that {wanted} has the "
                        "best priority: nothing has changed",
                        "check its log, or leave out --to",
                    )
                time.sleep(20 * STEP)


def _replace_by_sentinels(
    lease: Lease, components: Mapping[str, Component], entry: Entry, where: str
) -> Takeover:
    service = entry.fields["sentinel"]["service"]
    source = _address(servers_of_service(entry, where)[0][1])
    began = asked = time.monotonic()
    planned = _ask_sentinels(lease, entry, where, service)
    while True:
        target = _address(servers_of_service(entry, where)[0][1])
        if target != source and _is_master(entry, where):
            break
        now = time.monotonic()
        if now > began + _SECONDS:
            raise GrowthError(
                f"the Sentinels of {service!r} did not replace {source} within {_SECONDS:g} s",
                "check their logs",
            )
        if now > asked + _AGAIN:  # there may have been no majority
            asked = now
            lease.check()
            with suppress(GrowthError):  # a failover is in progress
                planned = _ask_sentinels(lease, entry, where, service)
        time.sleep(10 * STEP)
    shards = tuple(
        str(shard)
        for component in components.values()
        for shard, each in component.entries()
        if each.fields.get("sentinel", {}).get("service") == service
    )
    return Takeover(shards, source, target, planned, time.monotonic() - began)


def _ask_sentinels(lease: Lease, entry: Entry, where: str, service: str) -> bool:
    """Have one Sentinel start; return whether the master hands over."""
    why: Exception | None = None
    with sentinels_of(entry, where) as sentinels:
        for each in sentinels:
            for words in (("COORDINATED",), ()):
                lease.check()
                try:
                    each.execute_command("SENTINEL", "FAILOVER", service, *words)
                    return bool(words)
                except ResponseError as error:
                    why = error
                    if "number of arguments" not in str(error):
                        break  # it supports the command, and refuses
                except (RedisError, OSError) as error:
                    why = error
                    break
    raise GrowthError(
        f"the master of {service!r} is replaced by no Sentinel: {why}",
        "correct that: nothing has changed",
    )


def _is_master(entry: Entry, where: str) -> bool:
    with suppress(RedisError, OSError), client_of(entry.resolved(where), TIMEOUT) as client:
        return bool(client.info("replication")["role"] == "master")
    return False


@dataclass(frozen=True)
class _Node:
    address: ServerAddress
    id: str
    master: str  # the id of its master; empty if it is one
    alive: bool
    suspected: bool = False  # only the queried node considers it dead
    slots: tuple[tuple[int, int], ...] = ()


def _nodes(entry: Entry, where: str, at: ServerAddress | None = None) -> list[_Node]:
    """Ask a cluster, or one node of it, for its nodes."""
    try:
        with (
            client_of(entry.resolved(where), TIMEOUT)
            if at is None
            else connected_to(at, entry, where)
        ) as client:
            said: Any = client.execute_command("CLUSTER NODES")
    except ServerErrors as error:
        raise GrowthError(f"{where}: no node can be asked: {error}", "start them") from None
    found = []
    for name, each in said.items():
        flags = frozenset(each["flags"].split(","))
        if "noaddr" in flags:
            continue
        master = "" if "master" in flags else each["master_id"]
        found.append(
            _Node(
                ServerAddress.parse(name),
                each["node_id"],
                master,
                not flags & _DEAD,
                "fail?" in flags,
                tuple((int(each[0]), int(each[-1])) for each in each["slots"]),
            )
        )
    return found


def _agree(entry: Entry, where: str, nodes: list[_Node], source: _Node, target: _Node) -> bool:
    """Whether all nodes that answer report the new roles."""
    changed = {target.id: "", source.id: target.id} if source.alive else {target.id: ""}
    for each in nodes:
        with suppress(GrowthError):
            masters = {node.id: node.master for node in _nodes(entry, where, each.address)}
            if any(masters.get(id_) != master for id_, master in changed.items()):
                return False
    return True


def fail_over_cluster(
    lease: Lease, entry: Entry, where: str, name: str, to: str | None, *, force: bool
) -> Takeover:
    """Have a replica of a cluster replace its master.

    Either the master `name` or the replica `to` can be empty. ``force`` replaces a dead master.
    """
    nodes = _nodes(entry, where)
    by_id = {node.id: node for node in nodes}
    if to is not None:
        wanted = [node for node in nodes if node.address == ServerAddress.parse(to) and node.master]
    elif name:
        masters = {n.id for n in nodes if n.address == ServerAddress.parse(name) and not n.master}
        wanted = [node for node in nodes if node.master in masters and node.alive]
    else:
        raise InvalidArgumentError(
            f"{where} is a cluster of several masters", "name one, HOST:PORT, or its replica: --to"
        )
    if not wanted or wanted[0].master not in by_id:
        raise GrowthError(
            f"{to or name} is no {'replica' if to else 'master with a replica'} of the cluster",
            "see: shardkit status",
        )
    target, source = wanted[0], by_id[wanted[0].master]
    if name and source.address != ServerAddress.parse(name):
        raise GrowthError(
            f"{to} replicates {source.address}, not {name}: nothing has changed",
            "name one of its replicas",
        )
    if not source.alive and not force:
        state = "may be alive: only one node suspects it (fail?)" if source.suspected else "is dead"
        raise GrowthError(
            f"{source.address} {state}. A failover loses what {target.address} has not got",
            "let the cluster replace a dead master by itself, or use --force",
        )
    began = time.monotonic()
    with ExitStack() as stack:
        client, master = (
            stack.enter_context(connected_to(node.address, entry, where))
            for node in (target, source)
        )
        if source.slots:
            client.mark = master.mark = mark_of(source.slots)
        if source.alive:
            stack.enter_context(lease.marking(master, client))
        lease.order(client, "CLUSTER", "FAILOVER", *(() if source.alive else ("FORCE",)))
        while client.info("replication")["role"] != "master":
            if time.monotonic() > began + _SECONDS:
                raise GrowthError(
                    f"{target.address} did not take over within {_SECONDS:g} s: nothing changed",
                    "check its log",
                )
            time.sleep(STEP)
        held = time.monotonic() - began
        alive = [node for node in nodes if node.alive]
        end = time.monotonic() + _AGREE
        while not _agree(entry, where, alive, source, target) and time.monotonic() < end:
            time.sleep(4 * STEP)
    return Takeover(
        (where.removeprefix("config:redis:"),),
        source.address,
        target.address,
        source.alive,
        held,
    )


def _address(entry: Entry) -> ServerAddress:
    found = address_of(entry)
    assert found is not None, "Sentinels name servers by host and port"
    return found
