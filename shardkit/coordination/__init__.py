"""Coordination of processes: locks, semaphores, read-write locks, rate limits."""

from shardkit.coordination.guard import Guard
from shardkit.coordination.hold import Hold
from shardkit.coordination.holdable import Holder, HoldState
from shardkit.coordination.locks import Lock, ReadWriteLock, Semaphore
from shardkit.coordination.rate_limit import RateDecision, RateLimit

__all__ = [
    "Guard",
    "Hold",
    "HoldState",
    "Holder",
    "Lock",
    "RateDecision",
    "RateLimit",
    "ReadWriteLock",
    "Semaphore",
]
