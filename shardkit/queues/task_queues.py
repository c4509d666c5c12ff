r"""Task queues: tasks that wait, that are delayed, that somebody works on, and that are dead.

::

    enqueue                                  take                     acknowledge
    ────────► waiting  LIST  id id id … ───────────► taken  ZSET ───────────────► gone
        │        ▲                                   by lease   │
        │        │ due                lease ended    ▲  │       │ fail: attempts left
        └────► delayed  ZSET by time ◄───────────────┼──┼───────┘
                                                     │  └────────► dead  ZSET, with reasons
                 ▲──────────────── moved back ───────┘    no attempts left; or no task at all

All keys of a queue have its tag, ``queues:{email}``, ``queues:{email}:delayed`` and so on, so they
live on one server and each arrow is one script: a task is in exactly one place at any time, whoever
dies. Whoever takes a task leases it. When the lease ends before it was acknowledged, the task is
moved back, and taken again by somebody else: so every task is done at least once, and one that was
done by somebody who could not say so is done twice. Tasks must be such that this is harmless.

Moving what is due, of delayed tasks and ended leases, is part of taking: there is no poller whose
death would stop anything. All times are the server's.

Each taking has a number, the attempt. Who comes late, after its lease ended and the task was taken
again, has another number, and cannot acknowledge, extend or fail what is not its own any more.

After Redis in Action, sections 6.4.1 and 6.4.2, whose workers lose what they popped when they die.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from shardkit.operations.commands import Key, Transaction
from shardkit.operations.operation import (
    Deferred,
    Face,
    Operation,
    Stream,
    operation,
    pages,
    stream,
)
from shardkit.queues.base import (
    LEASE,
    LONGEST_REASON,
    TASKS_AT_ONCE,
    QueueCounts,
    QueueOrder,
    QueueSteps,
    id_bytes,
)
from shardkit.queues.claim import Claim
from shardkit.queues.task_codec import DeadTask, NewTask, Task, decode_task
from shardkit.structures.base.arguments import check_integer
from shardkit.structures.sorted_set.merged_ranges import range_over

DEAD_A_PAGE = 100


class TaskQueues(QueueSteps[Face]):
    """Task queues by name, each on the shard of its name. Made by ``kit.queues``.

    Args:
        driver: what runs its operations.
        component: where they live.
        name: what their keys begin with.
        attempts: how often a task is taken before it is dead, 1 to 1,000.
        retry_delay: after how many seconds a task that failed is tried again. Each further time it
            is twice as long.
        longest_retry_delay: up to so many.
        now: tells the time, seconds since 1970, in place of the servers; for tests.
        new_id: gives ids for tasks; by default 16 random hexadecimal digits.

    Raises:
        InvalidArgumentError: an argument does not fit.
    """

    @property
    def deferred(self) -> TaskQueues[Deferred]:
        """The same with the face whose calls return steps, for ``yield from`` and ``together``."""
        return self._deferred()  # type: ignore[return-value]

    # ---- those who have work

    @operation
    def enqueue(
        self,
        queue: str,
        name: str,
        args: Sequence[Any] = (),
        *,
        delay: float = 0,
        id: str | None = None,  # noqa: A002 - what it is called everywhere
    ) -> Operation[str]:
        """Queue a task.

        Args:
            queue: which queue.
            name: what the worker is to call.
            args: what with: what JSON can say.
            delay: in how many seconds it is due, by the server's clock; 0 or less for at once.
            id: its id. As long as a task with it waits, is delayed, or is worked on, it is not
                queued twice; the one that is there stays as it is. By default a random one.

        Returns:
            Its id.

        Raises:
            InvalidArgumentError: an argument does not fit.
            ShardErrors: the server failed.

        Cost: one exchange, O(1), of a delayed one O(log n). When the connection breaks it is sent
        once more, which is harmless unless the task was done in between.
        """
        [found] = yield from self._enqueue(queue, [NewTask(name, args, delay, id)])
        return found

    @operation
    def enqueue_many(self, queue: str, tasks: Iterable[NewTask]) -> Operation[list[str]]:
        """Queue any number of tasks, in their order, 1,000 an exchange; see `enqueue`.

        Args:
            queue: which queue.
            tasks: any iterable of ``NewTask(name, args, delay, id)``, read as they are sent.

        Returns:
            Their ids.

        Raises:
            InvalidArgumentError: a task does not fit; earlier pages were queued by then.
        """
        ids: list[str] = []
        for page in pages(tasks, TASKS_AT_ONCE):
            ids += yield from self._enqueue(queue, page)
        return ids

    @operation
    def cancel(self, queue: str, id: str) -> Operation[bool]:  # noqa: A002
        """Remove a task that waits or is delayed; return whether it was there.

        One that somebody works on is not, nor one that was pushed without an id.

        Cost: one exchange, O(log n) of a delayed one, O(n) of one that waits behind n others.
        """
        return bool((yield from self._call(queue, "queues/cancel", id)))

    # ---- those who do it

    @operation
    def take(
        self, queues: QueueOrder | str, *, lease: float = LEASE, timeout: float | None = None
    ) -> Operation[Task | None]:
        """Take the next task of the first queue that has one, and wait if none has.

        Args:
            queues: the queues in order of priority, at most 100. Some in a tuple have the same
                priority: they take turns being looked at first.
            lease: after how many seconds the task is somebody else's, if it was not acknowledged.
            timeout: for how many seconds to wait at most; 0 not to wait, None for ever.

        Returns:
            The task; None if there was none until then.

        Raises:
            InvalidArgumentError: an argument does not fit.
            ShardErrors: no server could be asked; or none that could had a task until then.

        A task whose awaiting is cancelled hands back what it did not get. When the connection
        breaks, or the process dies, the task is moved back when its lease ends.

        What is no task is put to the dead letters, and the next one taken.

        Cost: one exchange if a queue that lives where the first one does has a task, otherwise two.
        See `shardkit.queues.claim` for what waiting costs.
        """
        order = self._order(queues)
        seconds = math.inf if timeout is None else self._seconds("timeout", timeout, 0.0)
        taker = Claim(
            self.component,
            order,
            self._seconds("lease", lease),
            self.attempts,
            self._now,
            self._new_id,
            self._release,
        )
        while True:
            taken = yield from taker.take(seconds)
            if taken is None:
                return None
            try:
                name, args = decode_task(taken.stored)
            except ValueError as error:
                reason = str(error)[:LONGEST_REASON]
                yield [self._giving_back(taken, dead=reason)]
            else:
                task_id = taken.id.decode(errors="surrogateescape")
                return Task(task_id, taken.keys.queue, name, args, taken.attempts)

    @operation
    def acknowledge(self, task: Task) -> Operation[bool]:
        """Say that a task is done: it is removed.

        Returns:
            True; also if its lease has ended, but nobody has taken it since. False if somebody has:
            then it is done twice.

        Cost: one exchange, O(log n).
        """
        return bool(
            (
                yield from self._call(
                    task.queue, "queues/acknowledge", id_bytes(task.id), task.attempts
                )
            )
        )

    @operation
    def extend(self, task: Task, lease: float = LEASE) -> Operation[bool]:
        """Lease a task for so many seconds from now.

        Returns:
            False if its lease has ended and the task was moved back: then it is somebody else's.

        Cost: one exchange, O(log n).
        """
        seconds = f"{self._seconds('lease', lease):.6f}"
        sent = (self._now(), id_bytes(task.id), task.attempts, seconds)
        return bool((yield from self._call(task.queue, "queues/extend", *sent)))

    @operation
    def release(self, task: Task, *, delay: float = 0) -> Operation[bool]:
        """Give a task back that was not begun: it does not count as an attempt.

        Args:
            task: the task.
            delay: in how many seconds it is due; by default it waits as the first of its queue.

        Returns:
            False if its lease has ended.

        Cost: one exchange, O(log n).
        """
        return bool((yield from self._give_back(task, delay=self._delay(delay), counts=False)))

    @operation
    def fail(self, task: Task, reason: str = "", *, delay: float | None = None) -> Operation[bool]:
        """Say that a task failed: it is tried again later, or is dead.

        Args:
            task: the task.
            reason: why, for the dead letters; the first 1,000 characters are kept.
            delay: in how many seconds it is tried again; by default ``retry_delay``, twice that
                after the second attempt, and so on. After the last of ``attempts`` it is dead.

        Returns:
            False if its lease has ended.

        Cost: one exchange, O(log n).
        """
        dead = None
        if task.attempts >= self.attempts:
            dead = (reason or "it failed")[:LONGEST_REASON]
        if delay is None:
            doubled = self._retry_delay * 2.0 ** min(task.attempts - 1, 60)
            delay = min(doubled, self._longest_retry_delay)
        return bool((yield from self._give_back(task, delay=self._delay(delay), dead=dead)))

    @operation
    def move_due(self, queue: str, *, limit: int = TASKS_AT_ONCE) -> Operation[int]:
        """Move to those that wait what is due, and tasks whose lease has ended.

        `take` does this too, 100 at a time. Any number of pollers may run.

        Args:
            queue: which queue.
            limit: how many of each kind at most, 1 to 1,000. The oldest come first.

        Returns:
            How many were moved. A task with no attempts left is moved to the dead letters.

        Cost: one exchange, O(limit log n).
        """
        check_integer(self.name, "limit", limit, 1, TASKS_AT_ONCE)
        sent = (self._now(), self.attempts, limit)
        moved, *_ = yield from self._call(queue, "queues/move", *sent)
        return int(moved)

    # ---- those who look after it

    @operation
    def next_due(self, queue: str) -> Operation[float | None]:
        """Return when the next delayed task is due, in seconds since 1970; None if there is none.

        Cost: one exchange, O(log n).
        """
        key = self._keys(queue).delayed
        [found] = yield [self._at(key, "ZRANGE", key, 0, 0, "WITHSCORES", idempotent=True)]
        return float(found[1]) if found else None

    @operation
    def length(self, queue: str) -> Operation[int]:
        """Return how many tasks wait. Cost: one exchange, O(1)."""
        key = self._keys(queue).waiting
        [found] = yield [self._at(key, "LLEN", key, idempotent=True)]
        return int(found)

    @operation
    def counts(self, queue: str) -> Operation[QueueCounts]:
        """Return how many tasks there are of each kind, at one moment. Cost: one exchange, O(1)."""
        keys = self._keys(queue)
        [found] = yield [Transaction(self.component, keys.waiting, tuple(self._counting(keys)))]
        return QueueCounts(*found)

    @stream
    def dead(self, queue: str) -> Stream[DeadTask]:
        """Iterate over the dead letters, those that died first before the others.

        Cost: two exchanges for every 100.
        """
        keys = self._keys(queue)
        cursor: tuple[Key, float] | None = None
        while True:
            place = [(self.component, keys.dead)]
            rows = yield from range_over(place, "-inf", "+inf", DEAD_A_PAGE, cursor)
            if rows:
                yield (yield from self._letters(keys, rows))
                cursor = rows[-1]
            if len(rows) < DEAD_A_PAGE:
                return

    @operation
    def revive(self, queue: str, id: str) -> Operation[bool]:  # noqa: A002
        """Have a dead task wait again, with all its attempts; return whether it was there.

        Cost: one exchange, O(log n).
        """
        return bool((yield from self._call(queue, "queues/revive", id_bytes(id))))

    @operation
    def revive_all(self, queue: str) -> Operation[int]:
        """Have all tasks wait again that are dead now; return how many. Cost: 1,000 an exchange."""
        keys = self._keys(queue)
        [left] = yield [self._at(keys.dead, "ZCARD", keys.dead, idempotent=True)]
        revived = 0
        while revived < left:
            found = int((yield from self._call(queue, "queues/revive")))
            revived += found
            if found < TASKS_AT_ONCE:
                break
        return revived

    @operation
    def purge(self, queue: str) -> Operation[QueueCounts]:
        """Remove everything of a queue, dead letters and tasks that were taken included.

        Who works on one of these gets False when it is acknowledged.

        Returns:
            How many there were.

        Cost: one exchange, O(1); the server frees the memory later.
        """
        keys = self._keys(queue)
        unlinking = self._at(keys.waiting, "UNLINK", *keys.all)
        commands = (*self._counting(keys), unlinking)
        [found] = yield [Transaction(self.component, keys.waiting, commands)]
        return QueueCounts(*found[:-1])


def delayed_first(*queues: str) -> list[str]:
    """Return queues in order of priority, each behind one for its delayed tasks.

    ``delayed_first("high", "low")`` is high-delayed, high, low-delayed, low. Who queues a delayed
    task to ``high-delayed`` has it done, when it is due, before those that wait in ``high``.
    """
    return [name for queue in queues for name in (f"{queue}-delayed", queue)]
