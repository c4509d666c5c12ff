"""Coordination of processes: locks and their kin, latches, elections, rate limits."""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.coordination.election import Election
    from shardkit.coordination.events import Barrier, CountdownLatch
    from shardkit.coordination.guard import Guard
    from shardkit.coordination.hold import Hold
    from shardkit.coordination.holdable import Holder, HoldOptions, HoldState
    from shardkit.coordination.locks import Lock, ReadWriteLock, Semaphore
    from shardkit.coordination.rate_limit import RateDecision, RateLimit
    from shardkit.coordination.several import MultiLock, QuorumHold, QuorumLock
    from shardkit.coordination.transfers import Account, Leg, Recovered, TransferResult, Transfers
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "shardkit.coordination.election": "Election",
            "shardkit.coordination.events": "Barrier CountdownLatch",
            "shardkit.coordination.guard": "Guard",
            "shardkit.coordination.hold": "Hold",
            "shardkit.coordination.holdable": "Holder HoldOptions HoldState",
            "shardkit.coordination.locks": "Lock ReadWriteLock Semaphore",
            "shardkit.coordination.rate_limit": "RateDecision RateLimit",
            "shardkit.coordination.several": "MultiLock QuorumHold QuorumLock",
            "shardkit.coordination.transfers": "Account Leg Recovered TransferResult Transfers",
        },
    )

__all__ = [
    "Account",
    "Barrier",
    "CountdownLatch",
    "Election",
    "Guard",
    "Hold",
    "HoldOptions",
    "HoldState",
    "Holder",
    "Leg",
    "Lock",
    "MultiLock",
    "QuorumHold",
    "QuorumLock",
    "RateDecision",
    "RateLimit",
    "ReadWriteLock",
    "Recovered",
    "Semaphore",
    "TransferResult",
    "Transfers",
]
