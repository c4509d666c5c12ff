"""What the tests of task queues share."""

from __future__ import annotations

from typing import Any

import redis
from faces import holder

from shardkit import ShardKit
from shardkit.queues import Task


class Clock:
    """A time that a test sets: given to queues as ``now``."""

    def __init__(self, seconds: float = 1_000_000.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


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
