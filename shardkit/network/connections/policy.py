"""What bounds the calls to one server, as its entry says: see docs/resilience.md."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import redis
from redis import backoff
from redis.exceptions import BusyLoadingError, MasterDownError, MaxConnectionsError

from shardkit.errors import (
    BreakerOpenError,
    ClosedError,
    DeadlineExceeded,
    OverloadError,
    ShardTimeout,
    ShardUnavailable,
)
from shardkit.network.connections.breaker import Breaker, failover_of
from shardkit.network.connections.databases import DatabaseMovedError
from shardkit.network.connections.redis_private import is_unready
from shardkit.operations.commands import Shard
from shardkit.operations.deadlines import earliest, in_use
from shardkit.operations.server_errors import meaning

MAX_WAITING = 100_000  # commands that may wait for one server
BASE, CAP = 0.05, 1.0


def overloaded(waiting: int, limit: int) -> OverloadError:
    """Return the error of a server for which too many commands are waiting."""
    return OverloadError(
        f"{waiting:,} commands are waiting for the server already (max_waiting: {limit:,}). "
        "Send fewer at once, or set a higher max_waiting in the entry"
    )


@dataclass(slots=True, eq=False)
class CallPolicy:
    """Limits on the calls to one server; an attribute of its pool or its cluster's client."""

    shard: Shard | None = None
    address: str = ""
    deadline: float | None = None  # seconds for a whole call
    breaker: Breaker | None = None
    retries: int = 0  # of commands that were not executed, or are idempotent
    backoff: Any = None
    max_waiting: int = MAX_WAITING
    replaceable: bool = False  # whether a replica can take the server's place
    near: Collection[str] = ()  # the nodes of clusters that are in this process's zone
    stays: bool = False  # whether reads prefer a near master to replicas elsewhere
    of_replica: bool = False  # whether only reads are sent, which another server may answer
    node: Callable[[str, int], Breaker] | None = None  # makes the breaker of a cluster's node

    @property
    def if_away(self) -> str:
        """What to do about the server if it stays away; empty if nothing is known."""
        if self.breaker is not None and self.breaker.explanation:
            return self.breaker.explanation
        return failover_of(self.address) if self.replaceable else ""

    def __post_init__(self) -> None:
        if self.deadline is not None:
            in_use.by_entries = True

    @classmethod
    def of(cls, fields: Mapping[str, Any], shard: Shard, address: str, **more: Any) -> CallPolicy:
        """Return the policy that an entry's fields describe."""
        asked = fields.get("retry") or {}
        name = asked.get("backoff", "ExponentialWithJitterBackoff")
        times: tuple[Any, ...] = (asked.get("base", BASE),) if name == "ConstantBackoff" else ()
        if name not in ("NoBackoff", "ConstantBackoff"):
            times = asked.get("cap", CAP), asked.get("base", BASE)
        return cls(
            shard,
            address,
            retries=asked.get("retries", 0),
            backoff=getattr(backoff, name)(*times),
            max_waiting=fields.get("max_waiting", MAX_WAITING),
            replaceable=bool(fields.get("replicas")),
            **more,
        )

    def of_node(self, host: str, port: int) -> CallPolicy:
        """Return the policy of a node of the cluster."""
        if self.node is None:
            return self
        policy = copy.copy(self)
        policy.address, policy.breaker = f"{host}:{port}", self.node(host, port)
        policy.replaceable, policy.near, policy.node = False, (), None
        return policy

    def pause_before_retry(self, retry: int, error: BaseException) -> float | None:
        """Return the pause before retry ``retry`` (from 1) after an error; None for no retry."""
        if retry > self.retries or isinstance(error, _FINAL):
            return None
        if self.breaker is not None and self.breaker.opened:
            return None
        pause = float(self.backoff.compute(retry))
        deadline = earliest(None)
        return None if deadline is not None and deadline.left() <= pause else pause

    def waits_after(self, error: object) -> bool:
        """Whether a command that was refused waits until its server is ready, or has a successor.

        A read does not wait for a replica: the master, or another replica, answers it.
        """
        if self.of_replica and isinstance(error, BusyLoadingError | MasterDownError):
            return False
        return is_unready(error)

    def named(self, error: Exception, *, sent: bool | None = None) -> Exception:
        """Return a client's error with the names of its shard and server.

        If the server was not reached or lost, that is a `ShardUnavailable`. All other errors keep
        redis-py's class, and the beginning of their text, because programs look at both.
        """
        known: object = getattr(error, "shard", None)
        if self.shard is None or known:
            return error
        kind = type(error)
        if kind in (redis.ConnectionError, redis.TimeoutError) or isinstance(
            error, ShardUnavailable
        ):
            arrived = getattr(error, "maybe_executed", False) if sent is None else sent
            if_away = self.if_away
            return unreached(self.shard, self.address, error, if_away, sent=bool(arrived))
        naming = redis.ResponseError, redis.ConnectionError, redis.InvalidResponse
        if isinstance(error, naming) and error.args:
            text, *rest = error.args
            error.args = (f"{text} [{self.shard}, {self.address}]", *rest)
            error.shard, error.address = str(self.shard), self.address  # type: ignore[union-attr]
        return error

    def require_closed_breaker(self) -> None:
        """Refuse to use the server while its circuit breaker is open."""
        if self.breaker is not None and self.breaker.opened:
            raise self.breaker.error()

    def failed(self, error: BaseException, seconds: float) -> None:
        """Note that the server could not be reached, or did not answer, for ``seconds``."""
        if self.breaker is not None:
            self.breaker.failed(error, seconds, self.shard)


_FINAL = (BreakerOpenError, ClosedError, DatabaseMovedError, DeadlineExceeded, OverloadError)


NO_POLICY = CallPolicy()


def unreached(
    shard: object,
    address: str,
    error: Exception,
    if_away: str,
    *,
    sent: bool,
    **details: Any,
) -> ShardUnavailable:
    """Return the failure of a command without a reply; ``sent`` if it may have arrived.

    ``if_away`` is what to do about the server if it stays away.
    It is a `ShardTimeout` or another kind of `ShardUnavailable` if the error is of that kind.
    """
    if isinstance(error, ShardUnavailable) and error.error is not None:
        error = error.error  # of a client, which has named the server
    if sent:
        what = "did not answer in time" if isinstance(error, redis.TimeoutError) else "was lost"
        remedy = "the command may have been executed; check before you send it again"
    else:
        what = "cannot be used" if meaning(error) else "cannot be reached"
        remedy = "see `shardkit status`"
        if isinstance(error, BreakerOpenError):
            what = "is unavailable"
        elif isinstance(error, DeadlineExceeded):
            what, remedy = "got no command", "the command was not executed; allow it more time"
        elif isinstance(error, MaxConnectionsError):
            what = "got no command"
    text, better = meaning(error) or (str(error), "")
    if if_away and not isinstance(error, DeadlineExceeded | MaxConnectionsError):
        remedy += f". {if_away}"
    kind: type[ShardUnavailable] = ShardUnavailable
    if isinstance(error, ShardUnavailable):
        kind = type(error)
    elif isinstance(error, redis.TimeoutError):
        kind = ShardTimeout
    failure = kind(
        f"{shard} ({address}) {what}: {text}",
        better or remedy,
        shard=str(shard),
        address=address,
        error=error,
        maybe_executed=sent,
        **details,
    )
    if isinstance(error, DeadlineExceeded):
        failure.waited = error.waited  # type: ignore[attr-defined]
    return failure


def policy_of(client: Any) -> CallPolicy:
    """Return the policy of a client's server."""
    holder = client if hasattr(client, "policy") else client.connection_pool
    policy: CallPolicy = getattr(holder, "policy", NO_POLICY)
    return policy
