"""What bounds the calls to one server, as its entry says: see docs/resilience.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardkit.deadlines import in_use
from shardkit.operations.commands import Shard


@dataclass(slots=True, eq=False)
class CallPolicy:
    """What bounds the calls to one server; its pool, or its cluster's client, has it.

    Attributes:
        shard: whose server it is; None for a server of no component.
        address: the server, for messages.
        deadline: how long a call may take in all, in seconds; None for any time.
    """

    shard: Shard | None = None
    address: str = ""
    deadline: float | None = None

    def __post_init__(self) -> None:
        if self.deadline is not None:
            in_use.by_entries = True


NO_POLICY = CallPolicy()


def policy_of(client: Any) -> CallPolicy:
    """Return the policy of a client's server."""
    holder = client if hasattr(client, "policy") else client.connection_pool
    policy: CallPolicy = getattr(holder, "policy", NO_POLICY)
    return policy
