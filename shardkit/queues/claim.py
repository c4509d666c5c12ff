"""Taking a task from the first of several queues that has one, and waiting for one.

One script reads queues that live together, on one server or in one slot of a cluster. Where they
live apart, one exchange reaches all their servers: it takes a task from the first group of queues,
and counts the tasks of the others. So priorities cost a second exchange only if the first queues
are empty, and no task is taken without being returned.

Queues that live together have signals, LISTs to block on. Queueing a task pushes a token, which
only wakes a waiter; a worker that takes one of several tasks pushes it again for the next waiter. A
lost token costs a second, since nobody blocks for longer, or past the time at which the next task
is due. An idle server ends blocks only ten times a second, so in the last 0.1 seconds before
something is due queues are polled instead. Queues that live apart cannot be blocked on together.
They are polled after 10 milliseconds, then less often, up to every 100, or when something is due::

    together     take ── BLPOP signals, at most 1 s, or until something is nearly due ── take ── …
    apart        take + count ── 10 ms ── take + count ── 15 ms ── … ── 100 ms ── take + count ── …
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import TimeoutError  # noqa: A004 - redis-py's own

from shardkit.errors import ShardFailure
from shardkit.operations.commands import (
    Command,
    Locate,
    Partial,
    Pause,
    Replies,
    Reply,
    is_separated,
    raise_failures,
)
from shardkit.operations.operation import Operation
from shardkit.queues.commands import MOVED_AT_ONCE, ClaimedTask, QueueCommands, QueueKeys

LONGEST_BLOCK = 1.0  # seconds
SHORTEST_PAUSE = 0.001
FIRST_PAUSE = 0.01
LONGEST_PAUSE = 0.1
# Seconds by which an idle server may end a block late.
LATENESS = 0.1
# Seconds for the answer of one of several servers; then the others are served without it, and it is
# asked again after a pause, which is doubled each time.
PATIENCE = 2.0
LONGEST_ABSENCE = 10.0


@dataclass
class Absence:
    """That a server, one of several, did not answer in time."""

    until: float  # when it is asked again
    pause: float
    failure: ShardFailure


class Claim:
    """Takes one task from queues, which are in order of priority.

    ``absent`` has the servers that did not answer in time. While others do, an absent server is
    asked now and then how many tasks wait there, and for a task only once it answers again: a claim
    that nobody reads would cost the task an attempt.
    """

    def __init__(
        self,
        component: str,
        queues: Sequence[QueueKeys],
        commands: QueueCommands,
        lease: float,
        absent: dict[Any, Absence],
        monotonic: Callable[[], float],
    ) -> None:
        self._component = component
        self._queues = queues
        self._commands = commands
        self._lease = lease
        self._absent = absent
        self._monotonic = monotonic
        self._servers: list[Any] = [None] * len(queues)
        self._claim = ""  # of the latest batch
        # By the clocks of the queues' servers: the time of the first attempt, by queue; the seconds
        # since then; and the seconds until something is due.
        self._first: dict[int, float] = {}
        self._elapsed = 0.0
        self._due: float
        self._failures = Replies()

    def take(self, timeout: float) -> Operation[ClaimedTask | None]:
        """Take a task, waiting at most `timeout` seconds."""
        targets = [(self._component, keys.waiting) for keys in self._queues]
        waited, pause = 0.0, FIRST_PAUSE
        while True:
            if len(self._queues) > 1:
                self._servers = yield Locate(targets)
            together = self._end_of(0) == len(self._queues)
            task = yield from self._attempt(waits=together and timeout > 0)
            if task is not None:
                return task
            left = timeout - max(waited, self._elapsed)
            if self._due <= 0:
                continue  # one script moves a hundred due tasks; there are more
            if len(self._failures) == len(self._queues) or (left <= 0 and self._failures):
                raise_failures(self._failures)
            if left <= 0:
                return None
            # A block that ends at a due time ends too late; a pause ends in time.
            soon = self._due <= LATENESS + SHORTEST_PAUSE
            if together and not soon:
                seconds = max(SHORTEST_PAUSE, min(left, LONGEST_BLOCK, self._due - LATENESS))
                pause = FIRST_PAUSE
                signals = [keys.signal for keys in self._queues]
                pop = ("BLPOP", *signals, f"{seconds:.3f}")
                waits = Command(self._component, signals[0], pop, None, True, seconds)
                [token] = replies = yield Partial([waits])
                if not is_separated(token):
                    raise_failures(replies)
                waited += 0 if token else seconds
            else:
                seconds = max(SHORTEST_PAUSE, min(left, pause, self._due))
                yield Pause(seconds)
                waited += seconds
                pause = min(LONGEST_PAUSE, 1.5 * pause)

    def _attempt(self, *, waits: bool) -> Operation[ClaimedTask | None]:
        self._due = math.inf
        self._failures = Replies()
        size = len(self._queues)
        first = next((n for n in range(size) if self._servers[n] not in self._absent), 0)
        end = self._end_of(first)
        others = [n for n in range(size) if not first <= n < end and self._wants(n)]
        counts = [self._commands.move(self._queues[n], MOVED_AT_ONCE) for n in others]
        [reply, *replies] = yield self._batch(first, end, waits, counts)
        task = self._handle_take(first, end, reply)
        waiting = []
        for n, reply in zip(others, replies, strict=True):
            if isinstance(reply, ShardFailure):
                self._note_failure(n, reply)
            else:
                self._absent.pop(self._servers[n], None)
                self._record_times(n, *reply[2:])
                if reply[1]:
                    waiting.append(n)
        end = 0
        for n in waiting:
            if task is not None or self._due <= 0:
                break
            if n >= end:
                end = self._end_of(n)
                [reply] = yield self._batch(n, end, waits, [])
                task = self._handle_take(n, end, reply)
        return task

    def _wants(self, n: int) -> bool:
        """Whether to ask a queue's server; if not, its latest failure counts."""
        absence, now = self._absent.get(self._servers[n]), self._monotonic()
        others_answer = any(server not in self._absent for server in self._servers)
        if absence is None or now >= absence.until or not others_answer:
            if absence is not None:  # one of many workers asks
                absence.until = now + absence.pause
            return True
        self._failures.append(absence.failure)
        return False

    def _note_failure(self, n: int, failure: ShardFailure) -> None:
        if is_separated(failure):
            self._due = 0.0  # they live elsewhere
            return
        self._failures.append(failure)
        server, several = self._servers[n], len(set(self._servers)) > 1
        if several and isinstance(failure.error, TimeoutError):
            known = self._absent.get(server)
            pause = PATIENCE if known is None else min(2 * known.pause, LONGEST_ABSENCE)
            self._absent[server] = Absence(self._monotonic() + pause, pause, failure)

    def _end_of(self, first: int) -> int:
        """Return the end of the run of queues on the first one's server."""
        end = first + 1
        while end < len(self._queues) and self._servers[end] == self._servers[first]:
            end += 1
        return end

    def _batch(self, first: int, end: int, waits: bool, more: list[Command]) -> Partial:
        """Return a batch that takes a task, and requeues it if cancelled."""
        # A random claim is never another's, no matter what happens to the task.
        claim = self._claim = secrets.token_hex(8)

        def undo(replies: Replies) -> Operation[None]:
            task = self._parse_take(first, replies[0], claim)
            if task is not None:
                keys, id_, _, attempts, _ = task
                yield [self._commands.requeue(keys.queue, id_, attempts, claim, counts=False)]

        queues = self._queues[first:end]
        take = self._commands.take(queues, self._lease, claim, waits=waits)
        timeout = PATIENCE if len(set(self._servers)) > 1 else None
        return Partial([take, *more], timeout, undo=undo)

    def _parse_take(self, first: int, reply: Reply, claim: str) -> ClaimedTask | None:
        if isinstance(reply, ShardFailure) or not reply[0]:
            return None
        n, _, _, id_, stored, attempts = reply
        return ClaimedTask(self._queues[first + n - 1], id_, stored, attempts, claim)

    def _handle_take(self, first: int, end: int, reply: Reply) -> ClaimedTask | None:
        if isinstance(reply, ShardFailure):
            for n in range(first, end):
                self._note_failure(n, reply)
            return None
        self._absent.pop(self._servers[first], None)
        self._record_times(first, reply[1], reply[2])
        return self._parse_take(first, reply, self._claim)

    def _record_times(self, n: int, now: bytes, due: bytes) -> None:
        seconds = float(now)
        self._elapsed = max(self._elapsed, seconds - self._first.setdefault(n, seconds))
        if due:
            self._due = min(self._due, float(due) - seconds)
