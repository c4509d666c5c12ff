"""Pushes of what a failover or a move changed, whatever others push at the same time."""

from __future__ import annotations

import redis

from shardkit.admin.push import attest
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

    Raises:
        PushRefusedError: others pushed in between, again and again.
        ConfigServerError: the config server cannot be read or written.
    """
    for attempt in range(_ATTEMPTS):
        epoch = read_epoch(config)
        changed = relocated(read_components(config), source, target, keep_source=keep_source)
        if not changed:
            break
        try:
            push(config, ShardMap(changed, source=message), epoch=epoch, message=message)
            # Not the source: it is a replica, and gets this from its master.
            attest(list(changed.values()), read_epoch(config))
        except PushRefusedError:
            if attempt == _ATTEMPTS - 1:
                raise
    return read_epoch(config)
