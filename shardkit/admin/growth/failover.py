"""Failover: a replica replaces its master, planned or after a crash.

::

    planned   the master hands over (FAILOVER): no write is lost, writers wait some milliseconds
    crash     the replica with the most writes; others follow it; the old master will be fenced
    both      the entries are pushed; a write that reaches the old master is refused (READONLY) and
              goes to the new one in the same call

A master has crashed if it refuses connections, or if it is silent and all its replicas have lost
their links. If INFO fails for another reason (too many clients, another password, a long script),
the master may be alive, and clients would continue to write to it beside the new one.

A master that crashed comes back as a master, where a client that has not read the new entries could
still write. A fence (`apply_fences`) makes it a replica of the new master, which drops its last,
unreplicated writes. ``min-replicas-to-write 1`` on all servers closes the gap until then.

Sentinels and clusters do it themselves, and no entry changes::

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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from operator import eq
from typing import Any

import redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError
from redis.utils import str_if_bytes

from shardkit.admin.changes import Change, explaining, taking_part
from shardkit.admin.growth import servers
from shardkit.admin.growth.exchange import mark_of
from shardkit.admin.growth.gate import give_up, proof_key
from shardkit.admin.growth.journal import (
    FENCES_KEY,
    Fence,
    Lease,
    lease,
    pending_fences,
    push_relocation,
    read_all,
    wait_until_read,
)
from shardkit.admin.growth.relocation import (
    Place,
    Same,
    ServerAddress,
    Stored,
    address_of,
    entries_on,
)
from shardkit.admin.growth.servers import STEP, TIMEOUT, KnownServers, Order, ServerRole, Takeover
from shardkit.admin.servers import sentinels_of, servers_of_service
from shardkit.config.component import Component, entry_key
from shardkit.config.entry import Entry
from shardkit.config.store import read_components, read_epoch
from shardkit.errors import ConfigError, GrowthError, InvalidArgumentError, counted
from shardkit.network.rules import MOST_DOWN
from shardkit.network.server_queries import ServerErrors, client_of
from shardkit.operations.arguments import Seconds, check_seconds
from shardkit.operations.commands import Shard

HOLD = 0.5  # seconds that writers may wait
_NOTICE = TIMEOUT  # seconds for replicas to notice that their master has crashed
_COPY = 30.0  # seconds to catch up before a planned failover


def fail_over(
    config: redis.Redis,
    name: str,
    to: str | None = None,
    *,
    force: bool = False,
    hold: Seconds = HOLD,
) -> Takeover:
    """Have a replica replace its master.

    Args:
        config: a client of the config server.
        name: a shard (``timelines:3``, or ``unique`` for an unsharded entry) or a master,
            ``host:port``, also of a cluster. All shards of the server are concerned. Sentinels and
            clusters do it themselves.
        to: the replica, ``host:port``; by default the one that has the most writes. Sentinels
            choose it because it has the best ``replica-priority`` during the failover.
        force: also replace a master that may be alive although INFO fails, or that came back after
            a killed failover had promoted another; the writes that it still acknowledges are lost.
            After a crash, also take a replica whose link had been down for more than 30 s; or one
            that is a master already, if ``to`` names it.
        hold: how long writers may wait, in seconds; of a planned failover.

    Raises:
        GrowthError: no replica can take over, or it did not catch up, or the master may be alive.
            The master is what it was.
        InvalidArgumentError: there is no such shard or server.
        ConfigError: the entries cannot be read, or do not name the server by host and port.
    """
    hold = check_seconds("fail_over", "hold", hold)
    change = Change(kind="failover", name=name, databases=["*/*"])
    with (
        explaining(
            lambda: f"the failover of {name} has stopped",
            lambda: f"again: shardkit failover {name}",
        ),
        lease(config) as leased,
        taking_part(config, change),
        ExitStack() as stack,
    ):
        components = read_components(config)
        if (managed := managed_by(components, name)) is not None:
            node, entry, where = managed
            if entry.is_sentinel:
                done = fail_over_sentinels(leased, components, entry, where, to)
            else:
                done = fail_over_cluster(leased, entry, where, node, to, force=force)
            leased.check()
            return replace(done, epoch=read_epoch(config))
        source, login = master_of(components, name)
        fleet = KnownServers(components.values())
        same = fleet.same
        if nameless := fleet.nameless(source):
            raise GrowthError(
                f"{nameless[0]} leads to {source} by a socket, Sentinels or a reference, which a "
                "failover cannot change",
                "write host and port",
            )
        shards = tuple(str(shard) for shard, _ in fleet.entries_on(source))
        message = f"failover of {source}"
        seconds: float | None
        master = stack.enter_context(servers.connected_to(source, login))
        role: ServerRole | None = None
        try:
            role = servers.role_of(master)
        except (RedisError, OSError) as error:
            why = error
        known = fleet.replicas_of(source)
        wanted = None if to is None else ServerAddress.parse(to)

        def connect(server: ServerAddress) -> Any:
            """Return a client of the new master, which asks for replicas again at the end."""
            client = stack.enter_context(servers.connected_to(server, login))
            stack.callback(servers.ask_for_replicas, client, config, server)
            return client

        forced = wanted if force and role is None else None
        successor = _taken_over(config, source, known, login, forced, same)
        if role is not None and not role.is_master:
            # A killed process has started this: only the entries are left.
            target = _named(known, role.master, same) or role.master
            assert target is not None
            new = _roles([target], login).get(target)
            if new is not None and new.is_master:
                successor = target
            elif not (force and wanted in (None, source)):
                raise GrowthError(
                    f"{source} is a replica of {target}, which does not take writes",
                    f"start that one. If it is gone for good: shardkit failover {name} --force has "
                    f"{source} take writes, without those that only {target} had",
                )
            else:
                source, wanted, role = target, source, None
        if successor and role and role.is_master and not force and master.info("keyspace"):
            raise GrowthError(
                f"{source} is back and takes writes, though a failover has promoted {successor} "
                "and was killed before its push: each may have writes that the other lacks",
                f"keep those of {successor}: --force. Or keep {source}, which entries name: have "
                f"{successor} follow it (REPLICAOF)",
            )
        if successor is not None:  # by a process that was killed before the push
            target, seconds, behind = successor, None, 0
            role = None if role is None or role.is_master else role  # handed over, or after a crash
            if role is None:
                leased.note_fence(Fence(source, target))
            servers.persist_roles(connect(target), *((master,) if role else ()))
        elif role is not None:
            numbers = [int(name[2:]) for name in master.info("keyspace")]
            if problems := servers.config_databases(source, login, numbers):
                raise GrowthError(
                    problems[0], "move it to a server of its own: nothing has changed"
                )
            if problems := servers.mismatched_tls(master, source, login):
                raise GrowthError(problems[0], "correct that: nothing has changed")
            seen = [one for one, _ in role.replicas]
            candidates = [wanted] if wanted is not None else known or seen
            offsets = _roles(candidates, login)
            target = _best(source, _following(offsets, source, same, role.history), None)
            replica = connect(target)
            again = "and fail over again"
            servers.wait_for_copy(master, replica, _COPY, again, leased.check)
            servers.take_writes_alone(replica, config, target)
            servers.follow_as(master, login, leased.order)
            with leased.marking(master, replica):
                seconds = servers.hand_over(master, replica, target, hold, leased.order)
            servers.persist_roles(master, replica)
            behind = 0
        else:
            everyone = list(dict.fromkeys(known if wanted is None else [*known, wanted]))
            if force:
                offsets = _roles(everyone, login)
            else:
                offsets = _require_crash(shards[0], source, why, everyone, login, same)
            written = [one.offset for one in offsets.values() if same(one.master, source)]
            if wanted is not None:
                offsets = {one: role for one, role in offsets.items() if one == wanted}
            if not force:
                offsets = _following(offsets, source, same)
            target = _best(source, offsets, None if force else MOST_DOWN)
            behind = max(0, *written, *(one.offset for one in offsets.values()))
            behind -= offsets[target].offset
            replica = connect(target)
            if behind and not force and not replica.info("keyspace"):
                raise GrowthError(
                    f"{target} has no keys, and other replicas have: they would lose theirs",
                    "leave out --to, or name another one",
                )
            servers.take_writes_alone(replica, config, target)
            leased.note_fence(Fence(source, target))
            leased.order(replica, "REPLICAOF", "NO", "ONE")
            stack.enter_context(leased.marking(replica))
            servers.persist_roles(replica)
            seconds = None
        others = [one for one in known if one != target]
        followers, failed = repoint(others, target, login, leased.order)
        epoch = push_relocation(
            leased, source, target, same, keep_source=role is not None, message=message
        )
        wait_until_read(config, epoch)
    return Takeover(
        shards, source, target, role is not None, seconds, behind, tuple(followers), failed, epoch
    )


def _require_crash(
    shard: str,
    source: ServerAddress,
    why: Exception,
    replicas: list[ServerAddress],
    login: Stored,
    same: Same,
) -> dict[ServerAddress, ServerRole]:
    """Return the replicas' roles if their master has crashed."""
    end = time.monotonic() + _NOTICE
    refused = servers.is_refused(why)
    while True:
        roles = _roles(replicas, login)
        links = {server: role.raw.get("master_link_status") for server, role in roles.items()}
        linked = [
            server
            for server, link in links.items()
            if link == "up" and same(roles[server].master, source)
        ]
        unsure = [server for server in replicas if links.get(server) != "down"]
        if not any(isinstance(error, OSError) for error in servers.errors_behind(why)):
            evidence = "it replied"
        elif linked:
            evidence = f"its replica {linked[0]} has a link to it"
        elif unsure and roles and not refused:
            evidence = f"its replica {unsure[0]} cannot say"
        else:
            return roles
        if not refused or time.monotonic() > end:
            raise GrowthError(
                f"{shard} ({source}): the master may be alive: {evidence}, but INFO failed "
                f"({why}). A failover now loses all writes that the replica has not got and all "
                "that clients still send to the old master",
                "make INFO work, or, if these writes may be lost: --force",
            )
        time.sleep(STEP)


def _following(
    roles: Mapping[ServerAddress, ServerRole],
    source: ServerAddress,
    same: Same,
    history: str = "",
) -> dict[ServerAddress, ServerRole]:
    """Return the roles without those of other masters' replicas."""
    following = {
        server: role
        for server, role in roles.items()
        if role.is_master or role.history == history or same(role.master, source)
    }
    if roles and not following:
        server, role = next(iter(roles.items()))
        raise GrowthError(
            f"{server} replicates {role.master}, not {source}: nothing has changed",
            "see: shardkit replicas tree. If this is a name of the dead master, use --force",
        )
    return following


def shard_named(components: Mapping[str, Component], name: str) -> Shard | None:
    """Return the shard that a name means: ``timelines:3``, or a component that has one."""
    component, _, number = name.rpartition(":")
    if component in components and number.isdigit():
        if int(number) >= len(components[component].shards):
            raise InvalidArgumentError(f"{name} is no shard", "see: shardkit status")
        return Shard(component, int(number))
    if name not in components:
        return None
    count = len(components[name].shards)
    if count > 1:
        raise InvalidArgumentError(
            f"{name} has {counted(count, 'shard')}", f"name one of them: {name}:0"
        )
    return components[name].all_shards()[0]


def master_of(components: Mapping[str, Component], name: str) -> tuple[ServerAddress, Stored]:
    """Return the master of a shard or by its address, and its login."""
    shard = shard_named(components, name)
    if shard is not None:
        entry, where = components[shard.component].entry_of(shard), entry_key(*shard)
        server = address_of(entry)
        if server is None or entry.is_cluster:
            kind = "cluster" if entry.is_cluster else "Sentinels" if entry.is_sentinel else ""
            raise ConfigError(
                f"{where} does not name its server by host and port",
                f"use the failover of its {kind}" if kind else "write host and port",
            )
        return server, Stored(entry, where)
    server = ServerAddress.parse(name)
    entries = entries_on(components.values(), server, eq)
    if not entries:  # entries may use another name of it
        fleet = KnownServers(components.values(), server)
        entries = entries_on(components.values(), server, fleet.same)
    for shard, entry in entries:
        return address_of(entry) or server, Stored(entry, entry_key(*shard))
    raise InvalidArgumentError(
        f"{name} is neither a shard nor a master that an entry names", "see: shardkit status"
    )


def _taken_over(
    config: Any,
    source: ServerAddress,
    known: list[ServerAddress],
    login: Stored,
    forced: ServerAddress | None,
    same: Same,
) -> ServerAddress | None:
    """Return the server that has already taken over, although entries name the old master.

    After a crash, or from a move, the config server has its name; if a master died after another
    handover, only the caller knows it.
    """
    noted = (fence.target for fence in pending_fences(config) if fence.is_of(source, same))
    candidates = [replica for replica in noted if _named(known, replica, same)]
    for move in read_all(config, []):
        if move.run_id and not move.is_over and same(ServerAddress.parse(move.source), source):
            target = ServerAddress.parse(move.target)
            with suppress(RedisError, OSError), servers.connected_to(target, login) as client:
                info = servers.role_of(client).raw
                until = str(info.get("master_replid2")), int(info.get("second_repl_offset", -1))
                replicas = _roles(known, login).values()
                # If one is ahead, somebody has detached the target, and the master went on.
                behind = any(one.history == until[0] and one.offset >= until[1] for one in replicas)
                if client.get(proof_key(client)) == move.id.encode() and not behind:
                    candidates.append(target)
    roles = _roles([*candidates, *([forced] if forced else [])], login)
    return next((server for server, role in roles.items() if role.is_master), None)


def _named(
    known: Iterable[ServerAddress], server: ServerAddress | None, same: Same
) -> ServerAddress | None:
    return next((named for named in known if same(server, named)), None)


def _roles(addresses: Iterable[ServerAddress], login: Stored) -> dict[ServerAddress, ServerRole]:
    roles = {}
    for server in addresses:
        with suppress(RedisError, OSError):
            roles[server] = servers.role_at(server, login)
    return roles


def _best(
    source: ServerAddress, offsets: Mapping[ServerAddress, ServerRole], most_down: int | None
) -> ServerAddress:
    """Return the replica of a master that has the most writes."""
    replicas = {server: role for server, role in offsets.items() if not role.is_master}
    if not replicas and offsets:
        named = ", ".join(map(str, offsets))
        raise GrowthError(
            f"{source}: {named} is a master already, and no replica answers",
            f"use --to {next(iter(offsets))} --force if it has taken over",
        )
    if not replicas:
        raise GrowthError(
            f"{source} has no replica that answers",
            "start one, or restore a backup: shardkit restore",
        )
    target = max(replicas, key=lambda server: replicas[server].offset)
    role = replicas[target]
    if most_down is not None and role.raw.get("master_sync_in_progress"):
        raise GrowthError(f"{target} is half filled: it has lost its old data", "use a backup")
    if most_down is not None and role.down_for > most_down:
        raise GrowthError(
            f"{source}: {target} has had no link to it for {role.down_for} s: what was written "
            "since is not there",
            "use --force if that may be lost",
        )
    return target


def repoint(
    addresses: Iterable[ServerAddress], master: ServerAddress, login: Stored, order: Order
) -> tuple[list[str], dict[str, str]]:
    """Have servers follow another master; return which do, and why others do not."""
    followers, failed = [], {}
    for server in addresses:
        try:
            with servers.connected_to(server, login) as client:
                servers.replicate(client, master, login, order)
                servers.persist_roles(client)
            followers.append(str(server))
        except (RedisError, OSError) as error:
            failed[str(server)] = str(error)
    return followers, failed


def apply_fences(config: redis.Redis, timeout: Seconds = 0.0) -> list[Fence]:
    """Make replaced masters that are back replicas of the new masters, and close databases.

    What entries name again by then stays as it is.

    Args:
        config: a client of the config server.
        timeout: how long to wait until all are back, in seconds.

    Returns:
        All fences that were pending, and whether each is applied.

    Raises:
        GrowthError: a master that is back has keys, and the one that it would follow has none.
    """
    timeout = check_seconds("apply_fences", "timeout", timeout)
    end = time.monotonic() + timeout
    done: dict[ServerAddress | Place, Fence] = {}
    same: Same = eq
    while True:
        components = read_components(config)
        pending = pending_fences(config)
        if pending and same is eq:
            same = KnownServers(components.values(), *(one.target for one in pending)).same
        for source in done.keys() - {one.source for one in pending}:
            done[source] = replace(done[source], applied=True)  # by another process
        lost: list[GrowthError] = []
        for fence in pending:
            done[fence.source] = fence
            try:
                done[fence.source] = _applied(config, fence, components, same)
            except GrowthError as error:  # the others can be fenced
                lost.append(error)
            if done[fence.source].applied:
                config.hdel(FENCES_KEY, str(fence.source))
        away = sum(not fence.applied for fence in done.values()) - len(lost)
        if not away or time.monotonic() >= end:
            if lost:
                raise lost[0]
            return list(done.values())
        time.sleep(4 * STEP)


def _applied(config: Any, fence: Fence, components: Mapping[str, Component], same: Same) -> Fence:
    """Fence a server or database that is back; return what has become of it."""
    server, number = fence.place
    used = replace(fence, applied=True, state="entries name it again")
    if number is not None and _is_named(fence, components, same):
        is_over = all(m.is_over for m in read_all(config, []) if m.id == fence.move)
        return used if is_over else fence  # the move has not pushed yet
    every = list(components.values())
    of_target = entries_on(every, fence.target, same)
    others = (pair for component in every for pair in component.entries())
    logins: dict[str, Stored] = {}
    for shard, entry in (*of_target, *others):
        if address_of(entry) is not None:
            logins.setdefault(servers.user_of(entry), Stored(entry, entry_key(*shard)))
    refused = fence
    for login in logins.values():
        lost = False
        try:
            with (
                servers.connected_to(server, login, 0.5, number or 0) as client,
                servers.connected_to(fence.target, login) as master,
            ):
                follows = servers.role_of(client).master
                if number is None and not (follows and entries_on(every, follows, same)):
                    follows = None  # it may be one that a move has promoted
                if follows is None:
                    with lease(config) as leased:  # so no failover is before its push
                        now = read_components(config)
                        if fence not in pending_fences(config):
                            return fence
                        if _is_named(fence, now, same):
                            return used if number is None else fence
                        if number is not None:
                            home = str(fence.target)
                            give_up(Place(server, number), client, fence.move, home, leased.check)
                        elif not (lost := servers.has_lost_keys(master, client)):
                            servers.replicate(client, fence.target, login, leased.order)
                    servers.persist_roles(client)
                if number is None:
                    servers.ask_for_replicas(master, config, fence.target)
        except (AuthenticationError, NoPermissionError) as error:  # another entry's user may do it
            refused = replace(fence, state=f"it refuses the users of all entries ({error})")
            continue
        except ConfigError as error:  # of a login that this machine does not have
            refused = replace(fence, state=refused.state or error.message)
            continue
        except GrowthError as error:
            return replace(fence, state=error.message)
        except (RedisError, OSError):
            return fence
        if lost:
            raise GrowthError(
                f"{server} is back and has keys, but {fence.target}, which has replaced it, has "
                "none: nothing has changed",
                f"stop {fence.target}, and then: shardkit failover {fence.target} --to {server} "
                f"--force. If they were deleted, empty {server} (FLUSHALL)",
            )
        became = f"a replica of {follows or fence.target}" if number is None else "closed"
        return replace(fence, applied=True, state=became)
    return refused


def _is_named(fence: Fence, components: Mapping[str, Component], same: Same) -> bool:
    """Whether an entry names what a fence is for, or may name it, by a reference."""
    server, number = fence.place
    numbers = [entry.database for _, entry in entries_on(components.values(), server, same)]
    if number is None:
        return bool(numbers)
    return number in numbers or None in numbers or bool(managed_by(components, str(server)))


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
    """Make Sentinels prefer a replica; restore all priorities, also those of a killed process."""
    listed = servers_of_service(entry, where)
    by_address = {_address(client): client for _, client in listed}
    if wanted is not None and wanted not in list(by_address)[1:]:
        text = "the master already" if wanted == next(iter(by_address)) else "no replica of it"
        raise GrowthError(
            f"{wanted} is {text}, as the Sentinels of {where} know", "see: shardkit status"
        )
    with ExitStack() as stack:
        try:
            if wanted is not None:
                master = stack.enter_context(client_of(listed[0][1].resolved(where), TIMEOUT))
                stack.enter_context(lease.marking(master))
                for server in list(by_address)[1:]:
                    priority = 1 if server == wanted else 2
                    _set_priority(lease, by_address[server], where, server, priority)
                _wait_for_priority(entry, where, wanted)
            yield
        finally:
            for _ in range(2):  # Sentinels that give a replica its new master close connections
                for name, noted in lease.config.hgetall(_PRIORITIES_KEY).items():
                    address = ServerAddress.parse(str_if_bytes(name))
                    if address in by_address and noted.isdigit():
                        former = (where, address, int(noted))
                        with suppress(RedisError, OSError, GrowthError):  # the next one restores it
                            _set_priority(lease, by_address[address], *former, back=True)


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
        for sentinel in sentinels:
            while True:
                try:
                    known = sentinel.sentinel_slaves(service)
                except (RedisError, OSError):
                    break
                best = {
                    ServerAddress(str(line["ip"]), int(line["port"])): int(line["slave-priority"])
                    for line in known
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
        for shard, old in component.entries()
        if old.fields.get("sentinel", {}).get("service") == service
    )
    return Takeover(shards, source, target, planned, time.monotonic() - began)


def _ask_sentinels(lease: Lease, entry: Entry, where: str, service: str) -> bool:
    """Have one Sentinel start; return whether the master hands over."""
    why: Exception | None = None
    with sentinels_of(entry, where) as sentinels:
        for sentinel in sentinels:
            for words in (("COORDINATED",), ()):
                lease.check()
                try:
                    sentinel.execute_command("SENTINEL", "FAILOVER", service, *words)
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
            else servers.connected_to(at, Stored(entry, where))
        ) as client:
            lines: Any = client.execute_command("CLUSTER NODES")
    except ServerErrors as error:
        raise GrowthError(f"{where}: no node can be asked: {error}", "start them") from None
    nodes = []
    for name, fields in lines.items():
        flags = frozenset(fields["flags"].split(","))
        if "noaddr" in flags:
            continue
        master = "" if "master" in flags else fields["master_id"]
        nodes.append(
            _Node(
                ServerAddress.parse(name),
                fields["node_id"],
                master,
                not flags & _DEAD,
                "fail?" in flags,
                tuple((int(slots[0]), int(slots[-1])) for slots in fields["slots"]),
            )
        )
    return nodes


def _agree(entry: Entry, where: str, nodes: list[_Node], source: _Node, target: _Node) -> bool:
    changed = {target.id: "", source.id: target.id} if source.alive else {target.id: ""}
    for asked in nodes:
        with suppress(GrowthError):
            masters = {node.id: node.master for node in _nodes(entry, where, asked.address)}
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
            stack.enter_context(servers.connected_to(node.address, Stored(entry, where)))
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
        seconds = time.monotonic() - began
        alive = [node for node in nodes if node.alive]
        end = time.monotonic() + _AGREE
        while not _agree(entry, where, alive, source, target) and time.monotonic() < end:
            time.sleep(4 * STEP)
    shards = (where.removeprefix("config:redis:"),)
    return Takeover(shards, source.address, target.address, source.alive, seconds)


def _address(entry: Entry) -> ServerAddress:
    address = address_of(entry)
    assert address is not None, "Sentinels name servers by host and port"
    return address
