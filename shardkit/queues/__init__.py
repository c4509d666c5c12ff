"""Task queues over shards: waiting, delayed, leased and dead tasks, and workers."""

from typing import TYPE_CHECKING

from shardkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from shardkit.queues.async_worker import AsyncWorker
    from shardkit.queues.commands import QueueCounts, QueueRates
    from shardkit.queues.task_codec import DeadTask, NewTask, Task
    from shardkit.queues.task_queues import TaskQueues, delayed_first
    from shardkit.queues.worker import Worker
    from shardkit.queues.worker_base import WorkerSummary
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "shardkit.queues.async_worker": "AsyncWorker",
            "shardkit.queues.commands": "QueueCounts QueueRates",
            "shardkit.queues.task_codec": "DeadTask NewTask Task",
            "shardkit.queues.task_queues": "TaskQueues delayed_first",
            "shardkit.queues.worker": "Worker",
            "shardkit.queues.worker_base": "WorkerSummary",
        },
    )

__all__ = [
    "AsyncWorker",
    "DeadTask",
    "NewTask",
    "QueueCounts",
    "QueueRates",
    "Task",
    "TaskQueues",
    "Worker",
    "WorkerSummary",
    "delayed_first",
]
