r"""Task queues: waiting, delayed, leased and dead tasks.

::

    enqueue                                  take                     acknowledge
    ────────► waiting  LIST  id id id … ───────────► taken  ZSET ───────────────► gone
        │        ▲                                   by lease   │
        │        │ due                lease ended    ▲  │       │ fail: attempts left
        └────► delayed  ZSET by time ◄───────────────┼──┼───────┘
                                                     │  └────────► dead  ZSET, with reasons
                 ▲──────────────── moved back ───────┘    no attempts left; or not a task at all

All keys of a queue have its hash tag (docs/queues.md), so they live on one server and each arrow is
one script. No matter what crashes, a task is in exactly one of these, and runs at least once.

Taking also requeues due tasks and ended leases, so no separate poller is needed. All times are the
server's.

Each claim of a task has a random id. A late worker, whose lease ended and whose task was taken
again, holds an old claim, and can no longer acknowledge, extend or fail the task.

After Redis in Action, sections 6.4.1 and 6.4.2, whose workers lose what they popped when they die.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import accumulate, takewhile
from typing import Any, TypeAlias

from shardkit import log_records
from shardkit.errors import (
    InvalidArgumentError,
    NewerFormatError,
    ShardErrors,
    ShardKitError,
    counted,
)
from shardkit.operations.arguments import Seconds, in_seconds, is_number, rows_of, shown
from shardkit.operations.commands import Key, Transaction
from shardkit.operations.operation import (
    Cursor,
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Page,
    Stream,
    Structure,
    operation,
    pages,
    stream,
)
from shardkit.queues.claim import Absence, Claim
from shardkit.queues.commands import (
    Acknowledged,
    QueueCommands,
    QueueCounts,
    QueueKeys,
    QueueRates,
    check_queue,
)
from shardkit.queues.task_codec import DeadTask, NewTask, Task, decode_task, encode_task, queued_at
from shardkit.structures.base.arguments import check_integer, check_prefix, check_seconds
from shardkit.structures.base.check import Damage
from shardkit.structures.base.damage import stored_integer, whole_or_0
from shardkit.structures.base.server_clock import ServerClock
from shardkit.structures.sorted_set.merged_ranges import range_over

logger = logging.getLogger("shardkit.queues")

# Queues in order of priority; those in a tuple have the same.
QueueOrder: TypeAlias = Sequence[str | tuple[str, ...]]

ATTEMPTS = 5
LEASE = 60.0
RETRY_DELAY = 1.0
LONGEST_RETRY_DELAY = 3600.0
TASKS_AT_ONCE = 1000
BYTES_AT_ONCE = 1_000_000  # of tasks in a script: some milliseconds
DEAD_A_PAGE = 100
RESTORED_AT_ONCE = 100
RATE_MINUTES = 15  # of rates: in lua/base.lua, too
MOST_QUEUES = 100
LONGEST_TIME = 2**31 - 1
LONGEST_REASON = 1000
LONGEST_TRACEBACK = 8000
TRACEBACK = "\nTraceback (most recent call last):\n"  # stored behind the reason


class TaskQueues(Structure[Face]):
    """Task queues by name, each on the shard of its name. Made by ``kit.queues``.

    Args:
        attempts: how often a task is taken before it is dead, 1 to 1,000.
        retry_delay: the seconds until a failed task is retried, doubled for each further retry.
        longest_retry_delay: the most seconds of such a delay.
        clock: tells the time and makes ids.
    """

    deferred: DeferredFace[TaskQueues[Deferred]]

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str = "queues",
        attempts: int = ATTEMPTS,
        retry_delay: Seconds = RETRY_DELAY,
        longest_retry_delay: Seconds = LONGEST_RETRY_DELAY,
        clock: ServerClock | None = None,
    ) -> None:
        super().__init__(driver, component, check_prefix(name))
        check_integer(name, "attempts", attempts, 1, 1000)
        self.attempts = attempts
        self._retry_delay = self._seconds("retry_delay", retry_delay)
        self._longest_retry_delay = self._seconds("longest_retry_delay", longest_retry_delay)
        self._clock = clock or ServerClock()
        self._commands = QueueCommands(component, name, attempts, self._clock)
        # Shared by all faces: rotations of queues with one priority, and servers without an answer.
        self._turns = [0]
        self._absent: dict[Any, Absence] = {}

    @property
    def unknown_delay(self) -> float:
        """The seconds for which a task of a later release is delayed: ten times ``retry_delay``."""
        return min(10 * self._retry_delay, max(self._retry_delay, self._longest_retry_delay))

    # ---- for producers

    @operation
    def enqueue(
        self,
        queue: str,
        name: str,
        args: Sequence[Any] = (),
        *,
        delay: Seconds = 0,
        id: str | None = None,  # noqa: A002 - its usual name
    ) -> Operation[str]:
        """Queue a task; return its id.

        Args:
            name: the function that the worker calls.
            args: its arguments: what JSON can represent.
            delay: the seconds until it is due, by the server's clock; 0 or less for at once.
            id: the task's id, by default a random one. While a task with this id waits, is delayed
                or leased, the call changes nothing but the log. So a running task cannot queue
                itself: it needs another id. To move a delayed one, `cancel` it before.

        Raises:
            ShardErrors: the server failed. The task may have been queued. Queue it again with its
                id, from the error's ``ids``, so that it is not queued twice.

        Cost: one exchange, O(1), for a delayed task O(log n). If the connection breaks it is sent
        again, which is harmless unless the task was done in between.
        """
        [queued] = yield from self._enqueue(queue, [NewTask(name, args, delay, id)])
        return queued

    @operation
    def enqueue_many(self, queue: str, tasks: Iterable[NewTask]) -> Operation[list[str]]:
        """Queue tasks in order, 1,000 or 1 MB in an exchange; return their ids; see `enqueue`.

        Args:
            tasks: any iterable of ``NewTask(name, args, delay, id)``, read as they are sent.

        Raises:
            InvalidArgumentError: a task is not valid. The error's ``ids`` are those of the earlier
                pages, which were queued.
            ShardErrors: the server failed. ``ids`` also has those of the failed page, which may
                have been queued.
        """
        ids: list[str] = []
        for page in pages(
            rows_of(self.name, "tasks", tasks, "(name, args, delay, id)", 1, 4), TASKS_AT_ONCE
        ):
            try:
                ids += yield from self._enqueue(queue, page)
            except ShardKitError as error:
                error.ids = (*ids, *error.ids)
                raise
        return ids

    @operation
    def cancel(self, queue: str, id: str) -> Operation[bool]:  # noqa: A002
        """Remove a waiting or delayed task; return whether there was one.

        It does not remove a leased task, or one that was pushed without an id.

        Cost: one exchange, O(log n) for a delayed task, O(n) for one behind n waiting ones.
        """
        [cancelled] = yield [self._commands.call("cancel", self._keys(queue), id)]
        return bool(cancelled)

    # ---- for workers

    @operation
    def take(
        self, queues: QueueOrder | str, *, lease: Seconds = LEASE, timeout: Seconds | None = None
    ) -> Operation[Task | None]:
        """Take the next task from the first queue that has one; wait if none has.

        Args:
            queues: the queues in order of priority, at most 100. Queues in a tuple have the same
                priority, and take turns in coming first.
            lease: the seconds after which others may take the task unless it is acknowledged.
            timeout: the most seconds to wait; 0 not to wait, None for ever.

        Returns:
            The task; None if the wait timed out.

        Raises:
            ShardErrors: all servers failed, or some failed and the others had no task in time.

        Cancelling an async call requeues a task that it did not return. If the connection breaks
        or the process dies, the task is requeued when its lease ends.

        Anything in a queue that is not a task becomes a dead letter. A task that a later release
        wrote in an unknown format is requeued with a delay.

        Cost: one exchange if a queue on the first one's server has a task, otherwise two. See
        `shardkit.queues.claim` for the cost of waiting.
        """
        seconds = math.inf if timeout is None else self._seconds("timeout", timeout, 0.0)
        order, lasts = self._order(queues), self._seconds("lease", lease)
        claim = Claim(
            self.component, order, self._commands, lasts, self._absent, self._clock.monotonic
        )
        while True:
            task = yield from claim.take(seconds)
            if task is None:
                return None
            keys, id_, stored, attempts, claimed = task
            try:
                name, args = decode_task(stored)
            except ValueError as error:
                reason = str(error)[:LONGEST_REASON]
                call = self._commands.requeue
                yield [call(keys.queue, id_, attempts, claimed, dead=reason)]
            except NewerFormatError as error:
                id_text = _id_text(id_)
                about = log_records.fields("task-left", queue=keys.queue, id=id_text)
                logger.warning("task %s %s: requeued: %s", keys.queue, id_text, error, extra=about)
                call, delay = self._commands.requeue, self.unknown_delay
                yield [call(keys.queue, id_, attempts, claimed, delay=delay, counts=False)]
            else:
                return Task(_id_text(id_), keys.queue, name, args, attempts, claimed)

    @operation
    def acknowledge(self, task: Task) -> Operation[bool]:
        """Report that a task is done, which removes it.

        Returns:
            True, even after its lease ended if no other worker has taken it since. False if one
            has, so that the task runs twice; and if the task is gone: it was purged, already
            acknowledged, or its queue moved to another server.

        Cost: one exchange, O(log n).
        """
        return (yield from TaskQueues._acknowledge.steps(self, task)) is Acknowledged.YES

    @operation
    def _acknowledge(self, task: Task) -> Operation[Acknowledged]:
        """Acknowledge a task; return why it did not count, for workers."""
        claim = (_id_bytes(task.id), task.attempts, task.claim)
        [reply] = yield [self._commands.call("acknowledge", self._keys(task.queue), *claim)]
        return Acknowledged(reply)

    @operation
    def extend(self, task: Task, lease: Seconds = LEASE) -> Operation[bool]:
        """Extend a lease to `lease` seconds from now; False if it had ended.

        Cost: one exchange, O(log n).
        """
        claim = (_id_bytes(task.id), task.attempts, task.claim)
        args = (self._clock.script_seconds(), *claim, f"{self._seconds('lease', lease):.6f}")
        [extended] = yield [self._commands.call("extend", self._keys(task.queue), *args)]
        return bool(extended)

    @operation
    def release(self, task: Task, *, delay: Seconds = 0) -> Operation[bool]:
        """Requeue a task that was not started; it is no attempt. False if its lease has ended.

        Args:
            delay: the seconds until it is due; by default it becomes the first of its queue.

        Cost: one exchange, O(log n).
        """
        return (yield from self._requeue(task, self._delay(delay), counts=False))

    @operation
    def fail(
        self,
        task: Task,
        reason: str = "",
        *,
        delay: Seconds | None = None,
        traceback: str = "",
    ) -> Operation[bool]:
        """Have a failed task retried later, or be dead; return False if its lease has ended.

        Args:
            reason: why, for the dead letters; the first 1,000 characters are stored.
            delay: the seconds until the retry; by default ``retry_delay``, twice that after the
                second attempt, and so on; with 0 it is its queue's last at once. After the last
                of ``attempts`` it is dead.
            traceback: where it failed, for the dead letters; the last 8,000 characters are stored.

        Cost: one exchange, O(log n).
        """
        dead = None
        if task.attempts >= self.attempts:
            dead = (reason or "it failed")[:LONGEST_REASON]
            if traceback:
                dead += TRACEBACK + traceback.removeprefix(TRACEBACK[1:])[-LONGEST_TRACEBACK:]
        if delay is None:
            doubled = self._retry_delay * 2.0 ** min(task.attempts - 1, 60)
            delay = min(doubled, self._longest_retry_delay)
        return (yield from self._requeue(task, self._delay(delay), dead=dead))

    @operation
    def move_due(self, queue: str, *, limit: int = TASKS_AT_ONCE) -> Operation[int]:
        """Requeue due tasks, and tasks whose lease has ended.

        `take` does this too, 100 at a time. Any number of clients may call it.

        Args:
            limit: the most tasks of each kind, 1 to 1,000, oldest first.

        Returns:
            The number of tasks moved. A task without attempts left becomes a dead letter.

        Cost: one exchange, O(limit log n).
        """
        check_integer(self.name, "limit", limit, 1, TASKS_AT_ONCE)
        [[moved, *_]] = yield [self._commands.move(self._keys(queue), limit)]
        return int(moved)

    # ---- for monitoring

    @operation
    def next_due(self, queue: str) -> Operation[float | None]:
        """Return when a task is due next, in seconds since 1970, or None. Cost: one exchange."""
        key = self._keys(queue).delayed
        [first] = yield [self._at(key, "ZRANGE", key, 0, 0, "WITHSCORES")]
        return float(first[1]) if first else None

    @operation
    def length(self, queue: str) -> Operation[int]:
        """Return the number of waiting tasks. Cost: one exchange, O(1)."""
        key = self._keys(queue).waiting
        [length] = yield [self._at(key, "LLEN", key)]
        return int(length)

    @operation
    def oldest(self, queue: str) -> Operation[float | None]:
        """Return the age of the first waiting task in seconds, by the server's clock.

        None if no task waits, or if another program or an earlier release queued the first one.

        Cost: two exchanges, O(1).
        """
        keys = self._keys(queue)
        [first] = yield [self._at(keys.waiting, "LINDEX", keys.waiting, 0)]
        if first is None:
            return None
        [stored, [seconds, _]] = yield [
            self._at(keys.tasks, "HGET", keys.tasks, first),
            self._at(keys.tasks, "TIME"),
        ]
        at = None if stored is None else queued_at(stored)
        return None if at is None else max(0.0, int(seconds) - at)

    @operation
    def overdue(self, queue: str) -> Operation[float | None]:
        """Return by how many seconds the most overdue task is late, by the server's clock.

        That is a delayed task that is due, or a leased one whose lease has ended. Any worker that
        takes from the queue requeues it. None if nothing is overdue.

        Cost: one exchange, O(log n).
        """
        keys = self._keys(queue)
        delayed, leased, [seconds, _] = yield [
            self._at(keys.delayed, "ZRANGE", keys.delayed, 0, 0, "WITHSCORES"),
            self._at(keys.taken, "ZRANGE", keys.taken, 0, 0, "WITHSCORES"),
            self._at(keys.waiting, "TIME"),
        ]
        due = [float(first[1]) for first in (delayed, leased) if first]
        late = int(seconds) - min(due) if due else 0.0
        return late if late > 0 else None

    @operation
    def rates(self, queue: str, minutes: int = 5) -> Operation[QueueRates]:
        """Return tasks queued, tasks finished and attempts failed, per second.

        Args:
            minutes: the minutes to average over, 1 to 15, besides the current one.

        Workers of earlier releases are not counted.

        Cost: one exchange. Counting costs each call that queues, finishes or fails a HINCRBY.
        """
        check_integer(self.name, "minutes", minutes, 1, RATE_MINUTES)
        keys = self._keys(queue)
        [counted, [seconds, micros]] = yield [
            self._at(keys.rates, "HGETALL", keys.rates),
            self._at(keys.rates, "TIME"),
        ]
        now = int(seconds) + int(micros) / 1e6
        first = int(now // 60) - minutes
        totals = dict.fromkeys((b"enqueued", b"finished", b"failed"), 0)
        for field, value in zip(counted[::2], counted[1::2], strict=True):
            kind, _, minute = field.partition(b":")
            if kind in totals and whole_or_0(minute) >= first:
                totals[kind] += whole_or_0(value)
        return QueueRates(*(total / (now - 60 * first) for total in totals.values()))

    @operation
    def counts(self, queue: str) -> Operation[QueueCounts]:
        """Return the number of tasks of each kind at one moment. Cost: one exchange, O(1)."""
        keys = self._keys(queue)
        [counts] = yield [Transaction(self.component, keys.waiting, self._commands.counts(keys))]
        return QueueCounts(*counts)

    @stream
    def dead(self, queue: str) -> Stream[DeadTask]:
        """Iterate over the dead letters, oldest first. Cost: two exchanges for each 100."""
        keys = self._keys(queue)
        cursor: tuple[Key, float] | None = None
        while True:
            targets = [(self.component, keys.dead)]
            rows = yield from range_over(targets, "-inf", "+inf", DEAD_A_PAGE, cursor)
            if rows:
                yield (yield from self._dead_letters(keys, rows))
                cursor = rows[-1]
            if len(rows) < DEAD_A_PAGE:
                return

    @operation
    def revive(self, queue: str, id: str) -> Operation[bool]:  # noqa: A002
        """Requeue a dead task with all attempts, if there is one; return that. One exchange."""
        [revived] = yield [self._commands.call("revive", self._keys(queue), _id_bytes(id))]
        return bool(revived)

    @operation
    def revive_all(self, queue: str) -> Operation[int]:
        """Requeue all dead tasks; return how many. Cost: one exchange for each 1,000."""
        key = self._keys(queue).dead
        [left] = yield [self._at(key, "ZCARD", key)]
        revived = 0
        while revived < left:
            [count] = yield [self._commands.call("revive", self._keys(queue))]
            revived += count
            if count < TASKS_AT_ONCE:
                break
        return revived

    @operation
    def restore(self, queue: str) -> Operation[int]:
        """Requeue, in no order, tasks that a lost key has stranded; return how many.

        Call it when a key of the queue was removed, such as the LIST of waiting tasks. `enqueue`
        does the same for its id. If the key of leased tasks was lost, running tasks run twice.

        Cost: two exchanges for about 100 tasks, which are read. Each that is neither leased,
        delayed nor dead is searched for among up to half a million waiting ones; an exchange
        searches among at most a million.
        """
        keys = self._keys(queue)
        cursor = Cursor(self.component, keys.tasks)
        restored = 0
        while (flat := (yield from cursor.read("HSCAN", RESTORED_AT_ONCE))) is not None:
            ids = flat[::2]
            while ids:
                [[examined, count]] = yield [self._commands.call("restore", keys, *ids)]
                restored += count
                ids = ids[examined:]
        return restored

    @stream
    def check(self, queue: str) -> Stream[Damage]:
        """Read all tasks of a queue and return damage, without changing anything.

        Damage is a key of another type; a task that is neither waiting, delayed, leased nor dead,
        which `restore` requeues; or an id in one of these keys without a task.

        Cost: two exchanges for 1,000 tasks.
        """
        yield from check_queue(self.component, self._keys(queue))

    @operation
    def purge(self, queue: str) -> Operation[QueueCounts]:
        """Remove all tasks of a queue, even dead and leased ones; return how many there were.

        Workers that run one of these get False from `acknowledge`.

        Cost: one exchange, O(1); the server frees the memory later.
        """
        keys = self._keys(queue)
        unlink = self._at(keys.waiting, "UNLINK", *keys.all)
        commands = (*self._commands.counts(keys), unlink)
        [counts] = yield [Transaction(self.component, keys.waiting, commands)]
        return QueueCounts(*counts[:-1])

    # ---- what several operations share

    def _enqueue(self, queue: str, tasks: Sequence[NewTask]) -> Operation[list[str]]:
        keys = self._keys(queue)
        rows: list[str | bytes] = []
        ids = []
        for task in tasks:
            name, args, delay, given = NewTask(*task)
            id_ = self._clock.new_id() if given is None else given
            stored = encode_task(self.name, id_, queue, name, args)
            rows += [id_, f"{self._delay(delay):.6f}", stored]
            ids.append(id_)
        try:
            while rows:
                now = self._clock.script_seconds()
                sizes = accumulate(map(len, rows[2::3]))
                page = rows[: 3 + 3 * sum(1 for _ in takewhile(BYTES_AT_ONCE.__gt__, sizes))]
                [[done, added]] = yield [self._commands.call("put", keys, now, *page)]
                if added < done:
                    known = counted(done - added, "task")
                    about = log_records.fields("task-queued-already", queue=queue)
                    text = "queue %s: skipped %s whose id is already queued"
                    logger.info(text, queue, known, extra=about)
                rows = rows[3 * done :]
        except ShardKitError as error:
            error.ids = tuple(ids)
            if isinstance(error, ShardErrors):
                named = ", ".join(ids[:3]) + (", …" if len(ids) > 3 else "")
                may = "the tasks may be queued: " if error.maybe_executed else ""
                error.remedy = f"{may}queue them again with their ids ({named})"
            raise
        return ids

    def _requeue(
        self, task: Task, delay: float, *, counts: bool = True, dead: str | None = None
    ) -> Operation[bool]:
        id_ = _id_bytes(task.id)
        command = self._commands.requeue(
            task.queue, id_, task.attempts, task.claim, delay=delay, counts=counts, dead=dead
        )
        [done] = yield [command]
        return bool(done)

    def _dead_letters(
        self, keys: QueueKeys, rows: Sequence[tuple[bytes, float]]
    ) -> Operation[Page[DeadTask]]:
        ids = [id_ for id_, _ in rows]
        reads = tuple(
            self._at(key, "HMGET", key, *ids) for key in (keys.tasks, keys.reasons, keys.attempts)
        )
        [columns] = yield [Transaction(self.component, keys.dead, reads)]
        letters: Page[DeadTask] = Page()
        for (id_, at), stored, reason, attempts in zip(rows, *columns, strict=True):
            if stored is None or reason is None:  # revived since
                continue
            name: str | None = None
            args: tuple[Any, ...] = ()
            with suppress(ValueError, NewerFormatError):
                name, args = decode_task(stored)
            text, mark, trace = reason.decode(errors="replace").partition(TRACEBACK)
            tries = stored_integer(self.component, keys.attempts, shown(id_), attempts, missing=0)
            letters.append(
                DeadTask(
                    *(_id_text(id_), keys.queue, name, args, tries, text, at, stored),
                    traceback=f"{mark[1:]}{trace}",
                )
            )
        return letters

    def _keys(self, queue: str) -> QueueKeys:
        return self._commands.keys(queue)

    def _order(self, queues: QueueOrder | str) -> list[QueueKeys]:
        """Return the keys of queues in the order for this call; equal priorities rotate."""
        order: list[str] = []
        for entry in [queues] if isinstance(queues, str) else list(queues):
            if isinstance(entry, tuple) and entry:
                self._turns[0] += 1
                turn = self._turns[0] % len(entry)
                order += entry[turn:] + entry[:turn]
            else:
                order.append(entry)  # type: ignore[arg-type]  # an empty tuple is refused as a name
        keys = [self._keys(queue) for queue in order]
        if not 0 < len(order) <= MOST_QUEUES or len(set(order)) < len(order):
            raise InvalidArgumentError(
                f"{self.name}: queues={shown(queues)}", f"give 1 to {MOST_QUEUES}, each once"
            )
        return keys

    def _delay(self, delay: Seconds) -> float:
        delay = in_seconds(delay)
        past = is_number(delay) and delay <= 0
        return 0.0 if past else self._seconds("delay", delay, 0.0)

    def _seconds(self, field: str, value: Seconds, least: float = 0.001) -> float:
        return check_seconds(self.name, field, value, least, LONGEST_TIME)


# Ids of tasks that others pushed may be bytes that are not UTF-8; they survive the round trip.
def _id_bytes(id_: str) -> bytes:
    return id_.encode(errors="surrogateescape")


def _id_text(id_: bytes) -> str:
    return id_.decode(errors="surrogateescape")


def delayed_first(*queues: str) -> list[str]:
    """Return queues in order of priority, each after one for its delayed tasks.

    ``delayed_first("high", "low")`` is high-delayed, high, low-delayed, low. A delayed task that is
    queued to ``high-delayed`` runs, once it is due, before those that wait in ``high``.
    """
    return [name for queue in queues for name in (f"{queue}-delayed", queue)]
