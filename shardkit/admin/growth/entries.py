"""Pushes of the entries that a failover or a move changed, even while others push."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import redis

from shardkit.admin.growth.journal import Lease
from shardkit.admin.growth.relocation import Same, ServerAddress, relocated
from shardkit.admin.pushes import attest, newest_witness
from shardkit.config.component import Component
from shardkit.config.shard_map import ShardMap
from shardkit.config.store import push, read_components, read_epoch
from shardkit.errors import PushRefusedError

LEAVE = 3.0  # seconds for clients to leave a server that was replaced
_ATTEMPTS = 10
_READ = re.compile(r"shardkit:config-server/([0-9]+)@")


def push_relocation(
    lease: Lease,
    source: ServerAddress,
    target: ServerAddress,
    same: Same,
    *,
    keep_source: bool,
    message: str,
) -> int:
    """Replace a server in all entries, unless none names it as a master; return the epoch."""
    return push_changed(
        lease,
        lambda components: relocated(components, source, target, same, keep_source=keep_source),
        message,
    )


def push_changed(
    lease: Lease,
    change: Callable[[Mapping[str, Component]], Mapping[str, Component]],
    message: str,
    *,
    witnessed: bool = True,
) -> int:
    """Push the components that a function changes; return the epoch.

    Args:
        lease: without it nothing is pushed.
        change: returns the changed components. It is called again after a push by others.
        message: the reason, for the history.
        witnessed: whether the servers store the epoch, which takes time if one does not answer.

    Raises:
        GrowthError: the lease has ended.
        PushRefusedError: others pushed in between, again and again.
        ConfigServerError: the config server cannot be read or written.
    """
    config = lease.config
    for attempt in range(_ATTEMPTS):
        epoch = read_epoch(config)
        lease.check()
        changed = change(read_components(config))
        if not changed:
            break
        try:
            shard_map = ShardMap(dict(changed), source=message)
            # Data has moved before its entries do, so nobody asks which keys a push strands.
            checks: dict[str, Any] = {"force": True, "sample": (), "guard": lease.watch}
            push(config, shard_map, epoch=epoch, message=message, **checks)
        except PushRefusedError:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            epoch = read_epoch(config)
            if witnessed:  # of masters; replicas copy it
                newest, _ = newest_witness(changed.values())
                if newest > epoch:  # the config server was restored from an old snapshot
                    push(config, shard_map, above=newest, message=message, **checks)
                    epoch = read_epoch(config)
                attest(list(changed.values()), epoch)
            break
    return epoch


def wait_until_read(config: redis.Redis, epoch: int, seconds: float = LEAVE) -> None:
    """Wait, at most `seconds` seconds, until every active process has read a push.

    Afterwards no process uses a server that the push has replaced. The name of a process's
    connection to the config server has the push that it has read; it reads once a second.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            listed = config.client_list()
        except redis.RedisError:  # the user may not call CLIENT LIST
            return
        named = [(_READ.match(each.get("name", "")), int(each["idle"])) for each in listed]
        if not any(found and int(found[1]) < epoch and idle <= 2 for found, idle in named):
            return
        time.sleep(0.05)
