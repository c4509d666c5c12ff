"""Pushes of what a failover or a move changed, whatever others push at the same time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import redis

from shardkit.admin.push import attest
from shardkit.config.component import Component
from shardkit.config.shard_map import ShardMap
from shardkit.config.store import push, read_components, read_epoch
from shardkit.errors import PushRefusedError
from shardkit.growth.relocation import ServerAddress, relocated

_ATTEMPTS = 10


def push_relocation(
    config: redis.Redis,
    source: ServerAddress,
    target: ServerAddress,
    *,
    keep_source: bool,
    message: str,
) -> int:
    """Push entries that name one server in the place of another; return the epoch.

    Nothing is pushed if no entry names the source as a master any more.

    Raises: as `push_changed`.
    """
    return push_changed(
        config,
        lambda components: relocated(components, source, target, keep_source=keep_source),
        message,
    )


def push_changed(
    config: redis.Redis,
    change: Callable[[Mapping[str, Component]], Mapping[str, Component]],
    message: str,
) -> int:
    """Push what a function changes of the components; return the epoch.

    Args:
        config: a client of the config server.
        change: returns those of the components that change, as they shall be. It is called again
            if others have pushed meanwhile.
        message: why, for the history.

    Raises:
        PushRefusedError: others pushed in between, again and again.
        ConfigServerError: the config server cannot be read or written.
    """
    for attempt in range(_ATTEMPTS):
        epoch = read_epoch(config)
        changed = change(read_components(config))
        if not changed:
            break
        try:
            push(config, ShardMap(dict(changed), source=message), epoch=epoch, message=message)
            # Masters only: replicas get this from theirs.
            attest(list(changed.values()), read_epoch(config))
        except PushRefusedError:
            if attempt == _ATTEMPTS - 1:
                raise
    return read_epoch(config)
