from shardkit.queues.commands import QueueCounts as QueueCounts, QueueRates as QueueRates
from shardkit.queues.task_codec import DeadTask as DeadTask, NewTask as NewTask, Task as Task
from shardkit.queues.task_queues import TaskQueues as TaskQueues, delayed_first as delayed_first
from shardkit.queues.worker import (
    AsyncWorker as AsyncWorker,
    Worker as Worker,
    WorkerSummary as WorkerSummary,
)
