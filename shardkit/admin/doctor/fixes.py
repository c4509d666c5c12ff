"""Raises limits: CONFIG SET on each server, and CONFIG REWRITE on request.

A new limit applies to keys that are written from now on. A key that is already a table stays one
until it is rewritten, which `shardkit.admin.doctor.scan` does for parts of structures.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from redis.exceptions import RedisError

from shardkit.admin.doctor.diagnosis import LimitChange
from shardkit.admin.doctor.targets import ServerInfo


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """The outcome of a change: why it failed; None if it succeeded."""

    change: LimitChange
    error: Exception | None = None


def apply_changes(changes: Iterable[LimitChange]) -> list[AppliedChange]:
    """Raise limits until the servers restart; return the outcome of each change."""
    applied = []
    for change in changes:
        try:
            change.server.client.config_set(change.setting, change.after)
            applied.append(AppliedChange(change))
        except (RedisError, OSError) as error:
            applied.append(AppliedChange(change, error))
    return applied


def rewrite_configs(servers: Iterable[ServerInfo]) -> dict[str, Exception | None]:
    """Make servers save their settings in their configuration files, to survive a restart.

    Returns:
        By address: None, or why it failed.
    """
    outcomes: dict[str, Exception | None] = {}
    for server in servers:
        try:
            server.client.config_rewrite()
            outcomes[server.address] = None
        except (RedisError, OSError) as error:
            outcomes[server.address] = error
    return outcomes
