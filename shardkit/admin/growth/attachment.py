"""Attaches replicas to servers in use, detaches, shows and checks them.

::

    attach   the new server follows, is filled and near its master ─► entries name it
    detach   entries no longer name it ─► clients have left it ─► it follows no server

A replica may follow a replica, which relieves the master; entries do not name it then, as clients
read only from replicas that follow the master itself, and a failover has to repoint more servers.

`verify_replica` follows Redis in Action, section 4.2.4; its version waits for ever while the link
is up, and fails on a server that is not a replica or has no append-only file::

    ZADD sync:wait <now> <token>      on the master; removed at the end, with older ones
    ZSCORE sync:wait <token>          on the replica, while its link to the master is up
    INFO persistence                  aof_pending_bio_fsync 0, a second after the token arrived
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis
from redis.exceptions import RedisError

from shardkit.admin.changes import Change, explaining, taking_part
from shardkit.admin.growth import relocation, servers
from shardkit.admin.growth.failover import master_of
from shardkit.admin.growth.journal import lease, push_changed, wait_until_read
from shardkit.admin.growth.relocation import Same, ServerAddress, Stored
from shardkit.admin.growth.servers import KnownServers, ServerRole
from shardkit.config.component import Component
from shardkit.config.store import read_components
from shardkit.errors import GrowthError, InvalidArgumentError
from shardkit.network.server_queries import STEPS, query_all
from shardkit.operations.arguments import Seconds, check_seconds

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
    config: redis.Redis,
    replica: str,
    to: str,
    *,
    zone: str | None = None,
    copy_timeout: Seconds = COPY,
    within: str = "",
) -> AttachedReplica:
    """Make an empty server a replica; when it is filled, entries name it.

    Args:
        config: a client of the config server.
        replica: the new server, ``host:port``, empty. If it already follows, entries only name it.
        to: the server to follow: a shard (``timelines:3``), a master that entries name, or one of
            its replicas, ``host:port``. Entries do not name a replica of a replica.
        zone: where it is, for `read_from="zone"`.
        copy_timeout: how long the copy may take, in seconds.
        within: the id of the change that this is a step of.

    Raises:
        GrowthError: it cannot replicate that server, or was not filled in time. Then it follows
            that server, and no entry names it.
        InvalidArgumentError: no entry names the server to follow.
    """
    copy_timeout = check_seconds("attach_replica", "copy_timeout", copy_timeout)
    again = f"again: shardkit replicas attach {replica} --to {to}"
    with (
        explaining(lambda: f"{replica} is not yet attached to {to}", lambda: again),
        lease(config) as leased,
        ExitStack() as stack,
    ):
        components = read_components(config)
        target = ServerAddress.parse(replica)
        known = KnownServers(components.values(), target)
        same = known.same
        source, login = _followed(components, to)
        master = stack.enter_context(servers.connected_to(source, login))
        new = stack.enter_context(servers.connected_to(target, login))
        databases = servers.touched({target: "*", source: "*"}, lambda _: login)
        change = Change(kind="attach", name=str(target), databases=databases, within=within)
        stack.enter_context(taking_part(config, change))
        if problems := obstacles(components, replica, to):
            raise GrowthError("; ".join(problems), "correct that, or choose another server")
        role = servers.role_of(new)
        if role.is_master:
            with leased.marking(new):
                servers.replicate(new, source, login, leased.order)
            servers.persist_roles(new)
        servers.wait_for_copy(master, new, copy_timeout, f"and {again}", leased.check)
        named = bool(known.entries_on(source))
        epoch = push_changed(
            leased,
            lambda components: relocation.with_replica(components, source, target, same, zone),
            f"{target} replicates {source}",
        )
        now = read_components(config).values()
        if named and not relocation.entries_on(now, source, same):
            if role.is_master:
                with leased.marking(master):
                    leased.order(new, "REPLICAOF", "NO", "ONE")
                servers.persist_roles(new)
            raise GrowthError(
                f"entries have stopped naming {source} during the copy, so none names {target}",
                "empty it (FLUSHALL), and attach it to the server that they name",
            )
    return AttachedReplica(target, source, named, epoch)


def obstacles(components: Mapping[str, Component], replica: str, to: str) -> list[str]:
    """Return what prevents `attach_replica`."""
    target = ServerAddress.parse(replica)
    known = KnownServers(components.values(), target)
    if known.entries_on(target):
        return [f"entries name {target} as a master"]
    source, login = _followed(components, to)
    if known.same(source, target):
        return [f"{source} and {target} are one server"]
    with (
        servers.connected_to(source, login) as master,
        servers.connected_to(target, login) as new,
    ):
        infos: list[dict[str, Any]] = []
        for server, client in ((source, master), (target, new)):
            try:
                infos.append(client.info())
            except (RedisError, OSError) as error:
                return [f"{server} cannot be asked: {error}"]
        info, there = infos
        problems = servers.unfit((source, master, info), (target, new, there))
        if there["role"] == "master":
            problems += servers.mismatched_tls(new, target, login)
        if info.get("cluster_enabled"):
            problems.append(f"{source} is a node of a cluster: CLUSTER REPLICATE")
        return problems


def detach_replica(
    config: redis.Redis, replica: str, *, force: bool = False, within: str = ""
) -> AttachedReplica:
    """Detach a replica, after entries no longer name it and processes have read that.

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
    again = f"again: shardkit replicas detach {replica}"
    with (
        explaining(lambda: f"{replica} is not yet detached", lambda: again),
        lease(config) as leased,
        ExitStack() as stack,
    ):
        components = read_components(config)
        target = ServerAddress.parse(replica)
        known = KnownServers(components.values(), target)
        same = known.same
        if known.entries_on(target):
            raise GrowthError(f"entries name {target} as a master", "fail over first")
        source, login = _followed_by(components, target, same)
        databases = servers.touched({target: "*", source: "*"}, lambda _: login)
        change = Change(kind="detach", name=str(target), databases=databases, within=within)
        stack.enter_context(taking_part(config, change))
        role = None
        client = stack.enter_context(servers.connected_to(target, login))
        try:
            role = servers.role_of(client)
        except (RedisError, OSError) as error:
            if not (force or servers.is_refused(error)):
                raise GrowthError(
                    f"{target} may be alive, but INFO failed ({error}): it would still follow "
                    f"{source}, although no entry names it",
                    "make INFO work, or use --force",
                ) from error
        if role is not None and role.replicas:
            below = ", ".join(str(server) for server, _ in role.replicas)
            raise GrowthError(f"{target} has replicas itself: {below}", "detach them first")
        if role is not None and not force:
            _check_enough_are_left(source, login, partial(same, target))
        epoch = push_changed(
            leased,
            lambda components: relocation.without_replica(components, target, same),
            f"{target} no longer replicates {source}",
        )
        if role is not None and not role.is_master:
            wait_until_read(config, epoch)
            master = stack.enter_context(servers.connected_to(source, login))
            with leased.marking(master):  # which the replica gets, too
                leased.order(client, "REPLICAOF", "NO", "ONE")
            servers.persist_roles(client)
    return AttachedReplica(target, source, False, epoch)


def _followed(components: Mapping[str, Component], name: str) -> tuple[ServerAddress, Stored]:
    """Return the server to follow, and a login of it."""
    try:
        return master_of(components, name)
    except InvalidArgumentError:
        for _, replica, login in relocation.replicas_in(components.values()):
            if str(replica) == name:
                return replica, login
        raise


def _followed_by(
    components: Mapping[str, Component], replica: ServerAddress, same: Same
) -> tuple[ServerAddress, Stored]:
    """Return the master of a server, by the entries or by its own INFO."""
    named = list(relocation.replicas_in(components.values()))
    for master, other, login in named:
        if same(other, replica):
            return master, login
    others = [(other, login) for _, other, login in named]
    for server, login in (*others, *relocation.masters_in(components.values())):
        with suppress(RedisError, OSError):
            master_now = servers.role_at(replica, login).master
            if master_now is not None and servers.same_server(master_now, server):
                return server, login
    raise InvalidArgumentError(
        f"{replica} follows no server that entries name", "see: shardkit replicas tree"
    )


def _check_enough_are_left(
    source: ServerAddress, login: Stored, leaves: Callable[[ServerAddress], bool]
) -> None:
    """Refuse to detach the replica without which its master takes no writes."""
    try:
        with servers.connected_to(source, login) as master:
            least = int(master.config_get("min-replicas-to-write").get("min-replicas-to-write", 0))
            replicas = [server for server, _ in servers.role_of(master).replicas]
    except (RedisError, OSError) as error:
        if servers.is_refused(error):
            return
        raise GrowthError(
            f"{source} does not say how many replicas it needs to take writes ({error})",
            "make INFO and CONFIG GET work, or use --force",
        ) from error
    left = len(replicas) - sum(map(leaves, replicas))  # without one that does not follow
    if left < min(least, len(replicas)):
        raise GrowthError(
            f"{source} takes writes only with {least} replicas, and would have {left}",
            "attach another one first, or use --force",
        )


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
    known = KnownServers(components)
    masters: dict[ServerAddress, Stored] = {}
    for server, login in relocation.masters_in(components):
        masters.setdefault(known.name_of(server), login)
    tree: list[ReplicaNode] = []
    for server, login in masters.items():
        below = _visit(server, login, 0, None)
        for named in known.replicas_of(server):
            if not any(known.same(named, node.server) for node in below):
                below += _visit(named, login, 1, None)
        tree += below
    return tree


def _visit(
    server: ServerAddress, login: Stored, depth: int, master: ServerRole | None
) -> list[ReplicaNode]:
    try:
        role = servers.role_at(server, login)
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


KEY = "sync:wait"
TIMEOUT = 5.0
_OLD = 900  # seconds
_STEP = 0.005
_ANSWER = 2.0  # seconds
_EVERY_SECOND = 1.0  # the interval in which an append-only file is synced


@dataclass(frozen=True)
class VerifiedReplica:
    """How far a write to a master got.

    Attributes:
        linked: whether the replica's link to the master is up.
        written: whether the replica has the write.
        synced: whether it is on the replica's disk; None if it has no append-only file.
        seconds: how long this took.
    """

    linked: bool
    written: bool
    synced: bool | None
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the replica has the write, on disk too unless it has no append-only file."""
        return self.linked and self.written and self.synced is not False


def verify_replica(
    master: redis.Redis, replica: redis.Redis, timeout: Seconds = TIMEOUT
) -> VerifiedReplica:
    """Check whether a write to a master reaches a replica, and its disk, in time.

    Args:
        master: a redis-py client of the master.
        replica: a client of the replica, with the same database.
        timeout: seconds.

    Raises:
        redis.RedisError: the master or the replica does not answer within two seconds more,
            whatever the timeouts of the clients, or refuses.

    Cost: a few exchanges with both, one more with the replica every 5 ms, and a second if the
    replica has an append-only file.
    """
    timeout = check_seconds("verify_replica", "timeout", timeout, 0.001)
    check = partial(_verify, master, replica, timeout)
    [answer] = query_all({0: check}, (timeout + _ANSWER) / STEPS).values()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _verify(master: Any, replica: Any, timeout: float) -> VerifiedReplica:
    began = time.monotonic()
    end = began + timeout
    token = secrets.token_hex(16)
    linked = written = False
    synced: bool | None = False
    now = master.time()[0]
    master.zadd(KEY, {token: now})
    try:
        linked = replica.info("replication")["role"] != "master" and _until(
            end, lambda: replica.info("replication").get("master_link_status") == "up"
        )
        written = linked and _until(end, lambda: replica.zscore(KEY, token) is not None)
        if written and not replica.info("persistence")["aof_enabled"]:
            synced = None
        elif written:
            # A sync that was due when the token arrived has started a second later at most.
            seen = time.monotonic()
            synced = _until(
                end,
                lambda: (
                    time.monotonic() > seen + _EVERY_SECOND
                    and not replica.info("persistence").get("aof_pending_bio_fsync", 0)
                ),
            )
    finally:
        master.zrem(KEY, token)
        master.zremrangebyscore(KEY, "-inf", now - _OLD)
    return VerifiedReplica(linked, written, synced, time.monotonic() - began)


def _until(end: float, holds: Callable[[], bool]) -> bool:
    while not holds():
        if time.monotonic() >= end:
            return False
        time.sleep(_STEP)
    return True


def verify_replicas(
    components: Iterable[Component], timeout: Seconds = TIMEOUT
) -> dict[tuple[ServerAddress, ServerAddress], VerifiedReplica | Exception]:
    """Verify all replicas that entries name, in parallel.

    Args:
        components: the components.
        timeout: seconds.

    Returns:
        By master and replica, each pair once whatever its names, how far a write got, or the error.
    """
    timeout = check_seconds("verify_replicas", "timeout", timeout, 0.001)
    components = list(components)
    name_of = KnownServers(components).name_of
    pairs: dict[tuple[ServerAddress, ServerAddress], Stored] = {}
    for master, replica, login in relocation.replicas_in(components):
        pairs.setdefault((name_of(master), name_of(replica)), login)

    def verify(pair: tuple[ServerAddress, ServerAddress], login: Stored) -> VerifiedReplica:
        database = login.entry.resolved(login.where).get("db", 0)
        with (
            servers.connected_to(pair[0], login, database=database) as master,
            servers.connected_to(pair[1], login, database=database) as replica,
        ):
            return _verify(master, replica, timeout)

    checks = {pair: partial(verify, pair, login) for pair, login in pairs.items()}
    return query_all(checks, (timeout + _ANSWER) / STEPS)
