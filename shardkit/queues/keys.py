"""The keys of one queue. They have one tag, so that every step is one script on one server."""

from __future__ import annotations

from functools import lru_cache

from shardkit.errors import InvalidArgumentError
from shardkit.routing.keys import key_bytes
from shardkit.structures.base.arguments import check_name, shown

PARTS = ("delayed", "taken", "tasks", "attempts", "dead", "reasons", "signal")


class QueueKeys:
    """The keys of a queue, in the order in which scripts take them.

    Args:
        prefix: what the keys of all queues begin with.
        queue: its name.

    Attributes:
        queue: its name.
        all: every key.
        waiting: the ids that wait, a LIST.
        delayed: those that are not due yet, a ZSET.
        taken: those that were taken, a ZSET.
        tasks: all tasks by id, a HASH.
        attempts: how often each was taken, a HASH.
        dead: dead letters, a ZSET.
        reasons: why they are dead, a HASH.
        signal: who waits blocks on it, a LIST.

    Raises:
        InvalidArgumentError: the queue's name is none.
    """

    def __init__(self, prefix: str, queue: str) -> None:
        check_name(queue)
        if "{" in queue or "}" in queue:
            raise InvalidArgumentError(
                f"{prefix}: queue={shown(queue)}", "leave out braces: its name is the keys' tag"
            )
        self.queue = queue
        self.waiting = f"{prefix}:{{{queue}}}"
        self.all = [self.waiting, *(f"{self.waiting}:{part}" for part in PARTS)]
        (
            self.delayed,
            self.taken,
            self.tasks,
            self.attempts,
            self.dead,
            self.reasons,
            self.signal,
        ) = self.all[1:]


@lru_cache(maxsize=1024)
def queue_keys(prefix: str, queue: str) -> QueueKeys:
    """Return the keys of a queue, made once.

    Raises:
        InvalidArgumentError: the queue's name is none.
    """
    return QueueKeys(prefix, queue)


def check_prefix(name: str) -> str:
    """Check what the keys of all queues begin with.

    Raises:
        InvalidArgumentError: it is no name, or has a tag, which would keep all queues together.
    """
    check_name(name)
    if b"{" in key_bytes(name):
        raise InvalidArgumentError(
            f"name={shown(name)} of queues has a tag", "leave it out: each queue is its own"
        )
    return name
