"""The keys of one queue: they share a hash tag, so that every step is one script on one server."""

from __future__ import annotations

from functools import lru_cache

from shardkit.structures.base.arguments import check_tag

PARTS = ("delayed", "taken", "tasks", "attempts", "dead", "reasons", "signal", "claims", "rates")


class QueueKeys:
    """The keys of a queue.

    Attributes:
        queue: the queue's name.
        all: all keys, in the order of scripts' KEYS.
        waiting: the ids of waiting tasks, a LIST.
        delayed: the ids of tasks that are not due yet, a ZSET.
        taken: the ids of leased tasks, a ZSET.
        tasks: all tasks by id, a HASH.
        attempts: the number of attempts of each, a HASH.
        dead: the ids of dead letters, a ZSET.
        reasons: why they are dead, a HASH.
        signal: waiting workers block on it, a LIST.
        claims: the latest claim of each task, a HASH.
        rates: numbers of tasks queued, finished and failed by minute, a HASH.
    """

    def __init__(self, prefix: str, queue: str) -> None:
        self.queue = check_tag(prefix, "queue", queue)
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
            self.claims,
            self.rates,
        ) = self.all[1:]


@lru_cache(maxsize=1024)
def queue_keys(prefix: str, queue: str) -> QueueKeys:
    """Return the keys of a queue, cached."""
    return QueueKeys(prefix, queue)
