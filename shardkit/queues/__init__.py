"""Task queues over shards: waiting, delayed, leased and dead tasks, and workers."""

from shardkit.queues.async_worker import AsyncWorker
from shardkit.queues.commands import QueueCounts, QueueRates
from shardkit.queues.task_codec import DeadTask, NewTask, Task
from shardkit.queues.task_queues import TaskQueues, delayed_first
from shardkit.queues.worker import Worker
from shardkit.queues.worker_base import WorkerSummary

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
