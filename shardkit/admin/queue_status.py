"""The task queues of a component and their state."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from shardkit.errors import natural
from shardkit.kit.kit import ShardKit
from shardkit.operations.arguments import Seconds, check_seconds
from shardkit.queues import QueueCounts, QueueRates, TaskQueues
from shardkit.queues.commands import PARTS

_PAGE = 1000


@dataclass(frozen=True)
class QueueStatus:
    """The state of a queue.

    Attributes:
        queue: its name.
        counts: its tasks: waiting, delayed, taken and dead.
        oldest: the seconds since the first waiting task was queued; None if no task waits, or if
            that is unknown.
        overdue: the seconds by which the first delayed task is overdue, if it is: no worker takes
            tasks from the queue.
        rates: outcomes of its tasks in the last five minutes, a second.
        growth: tasks a second by which the queue grew while it was watched, without dead ones;
            negative if it shrank, None if it was not watched.
    """

    queue: str
    counts: QueueCounts
    oldest: float | None
    overdue: float | None
    rates: QueueRates
    growth: float | None


def queue_names(kit: ShardKit, component: str, name: str = "queues") -> list[str]:
    """Return the names of the queues that hold a task, or did in the last quarter of an hour.

    ``name`` is the prefix of their keys. Cost: a SCAN of the component's databases, 1,000 keys at a
    time.
    """
    described = kit.component(component)
    pattern = re.compile(
        rb"%s:\{([^{}]+)\}(?::(?:%s))?" % (re.escape(name.encode()), "|".join(PARTS).encode())
    )
    names = set()
    for shard in described.all_shards():
        client: Any = kit.client(component, shard.number)
        for key in client.scan_iter(match=f"{name}:{{*}}*", count=_PAGE):
            match = pattern.fullmatch(key.encode() if isinstance(key, str) else key)
            if match and not (match[0].endswith(b":signal")):
                names.add(match[1].decode(errors="replace"))
    return sorted(names, key=natural)


def queue_status(
    queues: TaskQueues[Any], names: Iterable[str], *, seconds: Seconds = 0
) -> list[QueueStatus]:
    """Return the state of queues, after watching their growth for ``seconds`` seconds, if any.

    Cost: six exchanges for each queue, one more if they are watched.
    """
    seconds = check_seconds("queue_status", "seconds", seconds)
    names = list(names)
    before = {queue: queues.counts(queue) for queue in names} if seconds else {}
    began = time.monotonic()
    time.sleep(seconds)
    statuses = []
    for queue in names:
        counts, elapsed = queues.counts(queue), time.monotonic() - began
        grown = sum(counts[:3]) - sum(before[queue][:3]) if seconds else 0
        growth = grown / elapsed if seconds else None
        more = queues.oldest(queue), queues.overdue(queue), queues.rates(queue)
        statuses.append(QueueStatus(queue, counts, *more, growth))
    return statuses
