"""What bounds the calls to one server, as its entry says: see docs/resilience.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from redis import backoff
from redis.exceptions import MaxConnectionsError

from shardkit.errors import ClosedError
from shardkit.network.connections.breaker import Breaker, BreakerOpenError
from shardkit.network.connections.greeting import DatabaseMovedError
from shardkit.operations.commands import Shard
from shardkit.operations.deadlines import DeadlineExceeded, earliest, in_use

# So many commands may wait for one server; in a loop of their own no honest program has so many.
MAX_WAITING = 100_000
BASE, CAP = 0.05, 1.0


class OverloadError(MaxConnectionsError):
    """Too many commands wait for a server already."""


def overloaded(waiting: int, limit: int) -> OverloadError:
    """Return the error of a server for which too many commands wait already."""
    return OverloadError(
        f"{waiting:,} commands wait for it already, and max_waiting is {limit:,}; "
        "send fewer at once, or give the entry a higher max_waiting"
    )


@dataclass(slots=True, eq=False)
class CallPolicy:
    """What bounds the calls to one server; its pool, or its cluster's client, has it.

    Attributes:
        shard: whose server it is; None for a server of no component.
        address: the server, for messages.
        deadline: how long a call may take in all, in seconds; None for any time.
        breaker: fails calls at once while the server cannot be reached; None for never.
        retries: how often that is tried again which was certainly not executed, or is idempotent.
        backoff: how long to wait before that.
        max_waiting: how many commands may wait for the server.
        node: makes the breaker of a cluster's node, by its host and port.
    """

    shard: Shard | None = None
    address: str = ""
    deadline: float | None = None
    breaker: Breaker | None = None
    retries: int = 0
    backoff: Any = None
    max_waiting: int = MAX_WAITING
    node: Callable[[str, int], Breaker] | None = None
    _nodes: dict[tuple[str, int], CallPolicy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.deadline is not None:
            in_use.by_entries = True

    @classmethod
    def of(cls, fields: Mapping[str, Any], shard: Shard, address: str, **more: Any) -> CallPolicy:
        """Return the policy that an entry's fields describe."""
        asked = fields.get("retry") or {}
        return cls(
            shard,
            address,
            retries=asked.get("retries", 0),
            backoff=_backoff(asked),
            max_waiting=fields.get("max_waiting", MAX_WAITING),
            **more,
        )

    def of_node(self, host: str, port: int) -> CallPolicy:
        """Return the policy of a node of the cluster."""
        if self.node is None:
            return self
        known = self._nodes.get((host, port))
        if known is None:
            known = CallPolicy(
                self.shard,
                f"{host}:{port}",
                self.deadline,
                self.node(host, port),
                self.retries,
                self.backoff,
                self.max_waiting,
            )
            self._nodes[host, port] = known
        return known

    def pause_before_retry(self, retry: int, error: BaseException) -> float | None:
        """Return how long to wait before trying again; None if it is not tried again.

        Args:
            retry: which one it would be, from 1.
            error: why the attempt failed.
        """
        if retry > self.retries or isinstance(error, _FINAL):
            return None
        if self.breaker is not None and self.breaker.opened:
            return None
        pause = float(self.backoff.compute(retry))
        deadline = earliest(None)
        return None if deadline is not None and deadline.left() <= pause else pause

    def failed(self, error: BaseException, seconds: float) -> None:
        """Note that the server could not be reached, or did not answer, for so many seconds."""
        if self.breaker is not None:
            self.breaker.failed(error, seconds)


_FINAL = (BreakerOpenError, ClosedError, DatabaseMovedError, DeadlineExceeded, OverloadError)


def _backoff(asked: Mapping[str, Any]) -> Any:
    name = asked.get("backoff", "ExponentialWithJitterBackoff")
    times = {"base": asked.get("base", BASE), "cap": asked.get("cap", CAP)}
    if name == "NoBackoff":
        return backoff.NoBackoff()
    if name == "ConstantBackoff":
        return backoff.ConstantBackoff(times["base"])
    return getattr(backoff, name)(**times)


NO_POLICY = CallPolicy()


def policy_of(client: Any) -> CallPolicy:
    """Return the policy of a client's server."""
    holder = client if hasattr(client, "policy") else client.connection_pool
    policy: CallPolicy = getattr(holder, "policy", NO_POLICY)
    return policy
