"""Pushes of what a failover or a move changed, whatever others push at the same time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

import redis

from shardkit.admin.growth.journal import Lease
from shardkit.admin.growth.relocation import Same, ServerAddress, relocated
from shardkit.admin.push import attest
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
    """Push entries that name one server in the place of another; return the epoch.

    Nothing is pushed if no entry names the source as a master any more.

    Raises: as `push_changed`.
    """
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
    """Push what a function changes of the components; return the epoch.

    Args:
        lease: what gives the right to; who has lost it pushes nothing.
        change: returns those of the components that change, as they shall be. It is called again
            if others have pushed meanwhile.
        message: why, for the history.
        witnessed: whether the servers are told, which takes time if one of them is away.

    Raises:
        GrowthError: the lease has ended.
        PushRefusedError: others pushed in between, again and again.
        ConfigServerError: the config server cannot be read or written.
    """
    config = lease.config
    for attempt in range(_ATTEMPTS):
        epoch = read_epoch(config)
        lease.check()  # who gets it after this also pushes after it: then this push is refused
        changed = change(read_components(config))
        if not changed:
            break
        try:
            push(config, ShardMap(dict(changed), source=message), epoch=epoch, message=message)
            if witnessed:  # masters only: replicas get this from theirs
                attest(list(changed.values()), read_epoch(config))
        except PushRefusedError:
            if attempt == _ATTEMPTS - 1:
                raise
    return read_epoch(config)


def wait_until_read(config: redis.Redis, epoch: int, seconds: float = LEAVE) -> None:
    """Wait until every process that is at work has read a push, but not for ever.

    Afterwards nobody uses a server that the push has replaced. A process says in the name of its
    connection to the config server which push it has read, and asks there every second.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            listed = config.client_list()
        except redis.RedisError:  # CLIENT LIST is not everybody's right
            return
        named = [(_READ.match(each.get("name", "")), int(each["idle"])) for each in listed]
        if not any(found and int(found[1]) < epoch and idle <= 2 for found, idle in named):
            return
        time.sleep(0.05)
