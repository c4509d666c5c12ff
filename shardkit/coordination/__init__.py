"""Coordination of processes: locks and their kin, latches, elections, rate limits."""

from shardkit.coordination.election import Election
from shardkit.coordination.events import Barrier, CountdownLatch
from shardkit.coordination.guard import Guard
from shardkit.coordination.hold import Hold
from shardkit.coordination.holdable import Holder, HoldState
from shardkit.coordination.locks import Lock, ReadWriteLock, Semaphore
from shardkit.coordination.rate_limit import RateDecision, RateLimit
from shardkit.coordination.several import MultiLock, QuorumHold, QuorumLock
from shardkit.coordination.transfers import Account, Leg, Recovered, TransferResult, Transfers

__all__ = [
    "Account",
    "Barrier",
    "CountdownLatch",
    "Election",
    "Guard",
    "Hold",
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
