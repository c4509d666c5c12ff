"""Operations: structures written once as pure steps, run blocking or awaiting. For your own too."""

from typing import TYPE_CHECKING

from shardkit.operations.commands import (
    Abandon as Abandon,
    AwaitWakeup as AwaitWakeup,
    Batch as Batch,
    Call as Call,
    Columns as Columns,
    Command as Command,
    CommandList as CommandList,
    Locate as Locate,
    Partial as Partial,
    Pause as Pause,
    Replies as Replies,
    Script as Script,
    Shard as Shard,
    ShardOf as ShardOf,
    Subscribe as Subscribe,
    Transaction as Transaction,
)
from shardkit.operations.operation import (
    Awaiting as Awaiting,
    Blocking as Blocking,
    Deferred as Deferred,
    DeferredFace as DeferredFace,
    Face as Face,
    Operation as Operation,
    Page as Page,
    Stream as Stream,
    Structure as Structure,
    operation as operation,
    pages as pages,
    stream as stream,
)

if not TYPE_CHECKING:  # all but its own modules and names of Python's
    __all__ = sorted(n for n, of in globals().items() if n[:1] != "_" and hasattr(of, "__module__"))
