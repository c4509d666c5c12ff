"""Retiring a component: removed by a push first, its data when nobody has used it for a while.

::

    remove        a push without the component; running clients stop using it within a second
    still_used    by the names of connections: who used it last, and when
    delete_data   SCAN and UNLINK, 500 keys at a time
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import redis

from shardkit.admin.check import CONFIG_KEYS
from shardkit.admin.client_list import connected_clients
from shardkit.admin.push import push
from shardkit.config.component import Component, entry_key
from shardkit.config.shard_map import ShardMap
from shardkit.config.store import read_components, read_epoch, read_history
from shardkit.config.stored import whole_component_of
from shardkit.errors import ConfigError, MissingEntryError
from shardkit.server_queries import TIMEOUT, client_of

QUIET = 60  # seconds that nobody may have used a component before its data is deleted
_PAGE = 500


@dataclass(frozen=True)
class Retirement:
    """A component that is, or is to be, retired.

    Attributes:
        component: as it was last.
        removed: whether a push has removed it.
        others: the components that stay.
        epoch: `config:epoch` when this was read.
    """

    component: Component
    removed: bool
    others: Mapping[str, Component]
    epoch: int


def last_known(config: redis.Redis, name: str) -> Retirement:
    """Return a component as it is, or was before a push removed it.

    Raises:
        MissingEntryError: it is not there, and the history has no push that removed it.
        ConfigServerError: the config server cannot be read.
    """
    epoch = read_epoch(config)
    components = read_components(config)
    component = components.pop(name, None)
    if component is not None:
        return Retirement(component, False, components, epoch)
    for record in read_history(config):
        before = whole_component_of(name, record.before.get(name) or {})
        if before is not None:
            return Retirement(before, True, components, epoch)
    raise MissingEntryError(
        f"component {name!r} is not there, and the history has no push that removed it",
        "name another one: shardkit config show",
    )


def remove(config: redis.Redis, retirement: Retirement, message: str = "") -> None:
    """Remove a component by a push of all others. Its data stays.

    Raises:
        PushRefusedError: another push came in between.
        ConfigServerError: the config server cannot be written.
    """
    name = retirement.component.name
    if not retirement.removed:
        push(
            config,
            ShardMap(retirement.others, source=f"retire {name}"),
            force=[name],
            prune=True,
            epoch=retirement.epoch,
            message=message,
        )


def still_used(
    component: Component, quiet: float = QUIET, timeout: float = TIMEOUT
) -> tuple[dict[str, int], dict[str, Exception]]:
    """Return who has used a component lately.

    Returns:
        By process, ``web1/4711``, seconds since it last sent a command; and the servers that could
        not be asked. Programs that do not name their connections are not seen.
    """
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
    quiet: float = QUIET,
    timeout: float = TIMEOUT,
    progress: Callable[[int], object] = lambda keys: None,
) -> int:
    """Delete all keys of a component that was removed.

    Args:
        retirement: the component, removed.
        quiet: how long nobody may have used it, in seconds.
        timeout: seconds for one answer of a server.
        progress: is told how many keys were deleted.

    Returns:
        How many keys were deleted. Those of the configuration stay, should a config server be in
        the same database. Cost: two exchanges for 500 keys; nothing of it is slow for a server.

    Raises:
        ConfigError: it is not removed, is used, shares a database with a component that stays, or
            a server cannot be asked. Nothing was deleted.
    """
    component = retirement.component
    name = component.name
    if not retirement.removed:
        raise ConfigError(f"component {name!r} is still there", "remove it first: shardkit retire")
    shared = _shared(component, retirement.others.values())
    if shared:
        raise ConfigError(
            f"component {name!r} shares a database with {shared}, whose keys cannot be told apart",
            "delete its keys by their names",
        )
    users, failed = still_used(component, quiet, timeout)
    if failed:
        server, error = next(iter(failed.items()))
        raise ConfigError(
            f"nobody knows who uses component {name!r}: {server} cannot be asked: {error}",
            "start the server, or grant CLIENT LIST",
        )
    if users:
        who, seconds = min(users.items(), key=lambda each: each[1])
        raise ConfigError(
            f"component {name!r} is still used: by {who} {seconds} s ago",
            f"stop using it, and wait until nobody has for {quiet:g} s",
        )
    deleted = 0
    for entry in dict.fromkeys(entry for _, entry in component.entries()):
        with client_of(entry.resolved(entry_key(name)), timeout) as client:
            for page in _pages(client):
                deleted += _unlink(client, page)
                progress(deleted)
    return deleted


def _shared(component: Component, others: Iterable[Component]) -> str:
    """Return the name of a component that has one of the databases too; nothing if none has."""
    own = {entry.address for _, entry in component.entries()}
    for other in others:
        if own & {entry.address for _, entry in other.entries()}:
            return repr(other.name)
    return ""


def _pages(client: Any) -> Iterator[list[bytes]]:
    page: list[bytes] = []
    for key in client.scan_iter(count=_PAGE):
        if not key.startswith(CONFIG_KEYS):
            page.append(key)
        if len(page) == _PAGE:
            yield page
            page = []
    yield page


def _unlink(client: Any, keys: list[bytes]) -> int:
    pipe = client.pipeline(transaction=False)
    for key in keys:  # one by one, as a cluster's are on different nodes
        pipe.unlink(key)
    return sum(pipe.execute())
