"""Raising limits: CONFIG SET on each server, and CONFIG REWRITE where that is asked for.

A limit holds for keys that are made or changed from now on. What is a table already stays one until
it is written anew: `shardkit.doctor.scan` does that for parts of structures.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from redis.exceptions import RedisError

from shardkit.doctor.diagnosis import LimitChange
from shardkit.doctor.targets import ServerInfo


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """What became of a change.

    Attributes:
        change: the change.
        error: why it could not be made; None if it was.
    """

    change: LimitChange
    error: Exception | None = None


def mend(changes: Iterable[LimitChange]) -> list[AppliedChange]:
    """Raise limits, until the servers are restarted; return what became of each."""
    made = []
    for change in changes:
        try:
            change.server.client.config_set(change.setting, change.after)
            made.append(AppliedChange(change))
        except (RedisError, OSError) as error:
            made.append(AppliedChange(change, error))
    return made


def keep(servers: Iterable[ServerInfo]) -> dict[str, Exception | None]:
    """Have servers write their settings into their files, so that they outlive a restart.

    Returns:
        By address: None, or why it could not be done.
    """
    outcomes: dict[str, Exception | None] = {}
    for server in servers:
        try:
            server.client.config_rewrite()
            outcomes[server.address] = None
        except (RedisError, OSError) as error:
            outcomes[server.address] = error
    return outcomes
