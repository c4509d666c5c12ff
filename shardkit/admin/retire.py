"""Retires a component in two steps: a push removes it; its data is deleted after a quiet time.

The data is deleted only if the push is as old as the quiet time, by the config server's clock; no
remaining component has one of the databases, by any name of the server; no open move, split or
restore uses one (see `shardkit.admin.changes`); and within the quiet time no connection of the
component was used, nor any key, by OBJECT IDLETIME of every key, on replicas too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import redis
from redis.exceptions import ResponseError

from shardkit.admin.changes import Change, now_of, numbered, require_open, taking_part, working_on
from shardkit.admin.pushes import push
from shardkit.admin.servers import (
    connected_clients,
    entries_of,
    execute_unless_changed,
    identify_databases,
)
from shardkit.config.component import Component, entry_key, whole_component_of
from shardkit.config.entry import Entry
from shardkit.config.shard_map import ShardMap
from shardkit.config.store import read_components, read_epoch, read_history
from shardkit.errors import ConfigError, GrowthError, MissingEntryError
from shardkit.network.connections.databases import FENCE_KEY
from shardkit.network.server_queries import TIMEOUT, client_of
from shardkit.network.survey import data_keys
from shardkit.operations.arguments import Seconds, check_seconds
from shardkit.operations.operation import pages

QUIET = 60  # seconds without use before a component's data is deleted
_KEYS_DELETED = 500


@dataclass(frozen=True)
class Retirement:
    """A component that is retired, or will be.

    Attributes:
        component: its last known state.
        removed: whether a push has removed it.
        others: the remaining components.
        epoch: `config:epoch` when this was read.
        removed_for: seconds since the push that removed it, by the config server's clock.
        config: the client of the config server by which this was read.
    """

    component: Component
    removed: bool
    others: Mapping[str, Component]
    epoch: int
    removed_for: float = 0.0
    config: Any = field(default=None, repr=False, compare=False)


def last_known(config: redis.Redis, name: str) -> Retirement:
    """Return a component as it is, or was before a push removed it.

    Raises:
        MissingEntryError: it does not exist, and the history has no push that removed it.
        ConfigServerError: the config server cannot be read.
    """
    epoch = read_epoch(config)
    components = read_components(config)
    component = components.pop(name, None)
    if component is not None:
        return Retirement(component, False, components, epoch)
    now = now_of(config)
    for record in read_history(config):
        before = whole_component_of(name, record.before.get(name) or {})
        if before is not None:
            return Retirement(before, True, components, epoch, max(0.0, now - record.at), config)
    raise MissingEntryError(
        f"component {name!r} is not there, and the history has no push that removed it",
        "name another one: shardkit config show",
    )


def remove(
    config: redis.Redis, retirement: Retirement, message: str = "", within: str = ""
) -> None:
    """Remove a component by a push of all others. Its data stays.

    ``within`` is the id of the change that it is a step of.

    Raises:
        GrowthError: a move, split or restore uses one of its databases.
        PushRefusedError: another push came in between.
        ConfigServerError: the config server cannot be written.
    """
    name = retirement.component.name
    if not retirement.removed:
        with working_on(config, "retire", name, [retirement.component], within):
            push(
                config,
                ShardMap(retirement.others, source=f"retire {name}"),
                force=[name],
                prune=True,
                epoch=retirement.epoch,
                message=message,
            )


def still_used(
    component: Component, quiet: Seconds = QUIET, timeout: Seconds = TIMEOUT
) -> tuple[dict[str, int], dict[str, Exception]]:
    """Return the processes that used a component in the last ``quiet`` seconds.

    Returns:
        By process, ``web1/4711``, seconds since it last sent a command; and the servers that could
        not be asked. Programs that do not name their connections are not seen.
    """
    quiet = check_seconds("still_used", "quiet", quiet)
    timeout = check_seconds("still_used", "timeout", timeout, 0.001)
    processes, failed = connected_clients([component], timeout=timeout)
    idle = {
        f"{process.host}/{process.pid}": process.components[component.name]
        for process in processes
        if component.name in process.components
    }
    return {who: seconds for who, seconds in idle.items() if seconds < quiet}, failed


def delete_data(
    retirement: Retirement,
    *,
    quiet: Seconds = QUIET,
    timeout: Seconds = TIMEOUT,
    progress: Callable[[int], object] = lambda keys: None,
) -> int:
    """Delete all keys of a component that was removed; return their number.

    ``quiet`` are the seconds since its removal without any use; ``timeout`` is in seconds for one
    answer of a server. ``progress`` is called with the number of keys deleted so far. Keys of the
    configuration stay, in case a config server is in the same database.

    Raises:
        ConfigError: the component is not removed, or not for long enough; it is used; it shares a
            database with a component that stays, or that has been pushed since; or a server cannot
            be asked. Nothing was deleted, or nothing more.
        GrowthError: a move, split or restore uses one of the databases. Nothing was deleted.

    Cost: two exchanges for 500 keys to see when they were used, and five to delete them; none holds
    a server for more than about a millisecond.
    """
    quiet = check_seconds("delete_data", "quiet", quiet)
    timeout = check_seconds("delete_data", "timeout", timeout, 0.001)
    component = retirement.component
    name = component.name
    if not retirement.removed:
        raise ConfigError(f"component {name!r} is still there", "remove it first: shardkit retire")
    if retirement.removed_for < quiet:
        wait = math.ceil(quiet - retirement.removed_for)
        raise ConfigError(
            f"component {name!r} was removed {retirement.removed_for:.0f} s ago, less than the "
            f"quiet time of {quiet:g} s",
            f"repeat the command in {wait} s",
        )
    databases = _require_own_databases(retirement, timeout)
    still: Callable[[], None] = lambda: None  # noqa: E731
    with ExitStack() as stack:
        if retirement.config is not None:
            change = Change(kind="retire", name=name, databases=numbered(databases))
            stack.enter_context(taking_part(retirement.config, change))
            still = partial(_require_unused, retirement, change, timeout)
        users, failed = still_used(component, quiet, timeout)
        if failed:
            server, error = next(iter(failed.items()))
            raise ConfigError(
                f"component {name!r}: the processes that use it are unknown: "
                f"{server} cannot be asked: {error}",
                "start the server, or grant CLIENT LIST",
            )
        if users:
            who, seconds = min(users.items(), key=lambda user: user[1])
            raise ConfigError(
                f"component {name!r} is still used: by {who} {seconds} s ago",
                f"stop using it, and wait until nobody has for {quiet:g} s",
            )
        if quiet:
            for where, entry in entries_of([component], replicas=True):
                with client_of(entry.resolved(where), timeout) as client:
                    _require_idle(client, f"{where} ({entry.address})", quiet)
        deleted = 0
        for entry in dict.fromkeys(entry for _, entry in component.entries()):
            with client_of(entry.resolved(entry_key(name)), timeout) as client:
                for page in pages(data_keys(client), _KEYS_DELETED):
                    deleted += _unlink(client, page, still)
                    progress(deleted)
    return deleted


def _require_unused(retirement: Retirement, change: Change, timeout: float) -> None:
    """Check that the change is open, and that entries do not name the databases again.

    Entries that are written by hand count, too: they have no epoch.
    """
    require_open(retirement.config, change)
    name, others = retirement.component.name, read_components(retirement.config)
    if name in others:
        raise ConfigError(
            f"component {name!r} has entries again: no more keys were deleted",
            "see: shardkit config show",
        )
    if others != retirement.others:
        _require_own_databases(replace(retirement, others=others), timeout)


def _unlink(client: Any, page: Sequence[bytes], still: Callable[[], None]) -> int:
    """Delete keys, unless a move has begun to fill the database, however late this arrives."""

    def look(database: Any) -> None:
        still()
        if database.exists(FENCE_KEY):
            raise GrowthError(
                f"{FENCE_KEY} closes the database: a move has left or is filling it",
                "see: shardkit changes repair --dry-run",
            )

    # One by one, as a cluster's keys are on different nodes.
    unlinks = (("UNLINK", key) for key in page)
    replies = execute_unless_changed(client, FENCE_KEY, look, *unlinks)
    if replies is None:
        raise GrowthError(
            "the database is being filled by a move, and nothing more was deleted",
            "see: shardkit changes",
        )
    return sum(replies)


def _require_own_databases(retirement: Retirement, timeout: float) -> set[tuple[str, int]]:
    """Return what the databases are; refuse those that a remaining component has, or may have."""
    own = entries_of([retirement.component])
    others = entries_of(retirement.others.values())
    places: dict[tuple[str, Entry], set[tuple[str, int]]] = {}
    answers = identify_databases({pair: pair[1] for pair in own + others}, timeout)
    for (where, entry), answer in answers.items():
        if isinstance(answer, Exception):
            raise ConfigError(
                f"{where} ({entry.address}) cannot be asked which server it is, so the keys "
                f"stay: {answer}",
                "start the server, or remove the entry",
            )
        places[where, entry] = answer
    for where, entry in own:
        for other, same in others:
            if places[where, entry] & places[other, same]:
                raise ConfigError(
                    f"{where} ({entry.address}) shares a database with {other} "
                    f"({same.address}), whose keys cannot be told apart, so they stay",
                    "delete its keys by their names",
                )
    return set().union(*(places[pair] for pair in own))


def _require_idle(client: Any, where: str, quiet: float) -> None:
    """Refuse if a key of a database was used within the quiet time, or may have been."""
    if isinstance(client, redis.RedisCluster):
        for node in client.get_primaries():  # type: ignore[no-untyped-call]
            _require_idle(client.get_redis_connection(node), where, quiet)
        return
    for page in pages(data_keys(client), _KEYS_DELETED):
        pipe = client.pipeline(transaction=False)
        for key in page:
            pipe.object("idletime", key)
        for key, idle in zip(page, pipe.execute(raise_on_error=False), strict=True):
            if isinstance(idle, ResponseError):
                raise ConfigError(
                    f"{where} does not show when its keys were used, so nothing was deleted: "
                    f"{idle}",
                    "grant OBJECT, or replace an LFU maxmemory-policy by the LRU one "
                    f"(volatile-lru, allkeys-lru), and repeat the command in {quiet:g} s",
                )
            if idle is not None and idle < quiet:
                raise ConfigError(
                    f"{where} is still used, so nothing was deleted: key "
                    f"{key.decode(errors='backslashreplace')} {idle} s ago",
                    f"find out which clients use it, stop them, and wait for {quiet:g} s",
                )
