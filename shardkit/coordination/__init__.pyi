from shardkit.coordination.events import Barrier as Barrier, CountdownLatch as CountdownLatch
from shardkit.coordination.guard import Guard as Guard
from shardkit.coordination.hold import Hold as Hold
from shardkit.coordination.holdable import (
    Election as Election,
    Holder as Holder,
    HoldOptions as HoldOptions,
    HoldState as HoldState,
    Lock as Lock,
    ReadWriteLock as ReadWriteLock,
    Semaphore as Semaphore,
)
from shardkit.coordination.rate_limit import (
    RateDecision as RateDecision,
    RateLimit as RateLimit,
)
from shardkit.coordination.several import (
    MultiLock as MultiLock,
    QuorumHold as QuorumHold,
    QuorumLock as QuorumLock,
)
from shardkit.coordination.transfers import (
    Account as Account,
    Leg as Leg,
    Recovered as Recovered,
    TransferResult as TransferResult,
    Transfers as Transfers,
)
