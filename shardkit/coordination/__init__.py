"""Coordination of processes: locks and their kin, latches, elections, rate limits."""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.coordination.election import Election as Election
    from shardkit.coordination.events import Barrier as Barrier
    from shardkit.coordination.events import CountdownLatch as CountdownLatch
    from shardkit.coordination.guard import Guard as Guard
    from shardkit.coordination.hold import Hold as Hold
    from shardkit.coordination.holdable import (
        Holder as Holder,
    )
    from shardkit.coordination.holdable import (
        HoldOptions as HoldOptions,
    )
    from shardkit.coordination.holdable import (
        HoldState as HoldState,
    )
    from shardkit.coordination.locks import (
        Lock as Lock,
    )
    from shardkit.coordination.locks import (
        ReadWriteLock as ReadWriteLock,
    )
    from shardkit.coordination.locks import (
        Semaphore as Semaphore,
    )
    from shardkit.coordination.rate_limit import (
        RateDecision as RateDecision,
    )
    from shardkit.coordination.rate_limit import (
        RateLimit as RateLimit,
    )
    from shardkit.coordination.several import (
        MultiLock as MultiLock,
    )
    from shardkit.coordination.several import (
        QuorumHold as QuorumHold,
    )
    from shardkit.coordination.several import (
        QuorumLock as QuorumLock,
    )
    from shardkit.coordination.transfers import (
        Account as Account,
    )
    from shardkit.coordination.transfers import (
        Leg as Leg,
    )
    from shardkit.coordination.transfers import (
        Recovered as Recovered,
    )
    from shardkit.coordination.transfers import (
        TransferResult as TransferResult,
    )
    from shardkit.coordination.transfers import (
        Transfers as Transfers,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
