"""What the tests of task queues share."""

from __future__ import annotations

from typing import Any

import redis
from faces import Face, holder

from shardkit import ShardKit
from shardkit.queues import AsyncWorker, Task, Worker


def unclaimed(task: Task | None) -> Task | None:
    """A task as everybody sees it, without what identifies the claim."""
    return task and task._replace(claim="")


def server_of(kit: ShardKit, component: str, queue: str) -> redis.Redis:
    """A client of the server on which a queue lives."""
    key = f"queues:{{{queue}}}"
    if not kit.component(component).shards:
        client: Any = kit.client(component)
        return client
    return holder(kit, component, key)


def worker_of(face: Face, *args: Any, component: str = "many", **options: Any) -> Any:
    """A worker of either kind."""
    kind: Any = Worker if face.runner is None else AsyncWorker
    tasks = face.kit.queues(component=component, retry_delay=0.01, attempts=3)
    return kind(tasks, *args, **options)
