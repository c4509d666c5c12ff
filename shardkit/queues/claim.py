"""How a task is taken: of the first of several queues that has one, and waiting for it.

Queues that live together, on one server or in one slot of a cluster, are looked at by one script.
Where queues live apart, one exchange asks all their servers at the same time: the first ones for a
task, the others how many they have. So priorities cost a second exchange only when the first queues
are empty, and nothing is taken that is not worked on.

Waiting. Queues that live together have signals, LISTs on which one can block: whoever queues a task
puts a token there, which says "look" and nothing more, and whoever takes one of several puts it
back for the next. A token that is lost costs a second: nobody blocks for longer, and everybody
looks first when the next task is due. Queues that live apart cannot be blocked on together: they
are looked at again and again, after 10 milliseconds, then less and less often, up to 100::

    together     take ── BLPOP signals, up to 1 s or until something is due ── take ── …
    apart        take + look ── 10 ms ── take + look ── 15 ms ── … ── 100 ms ── take + look ── …
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from shardkit.errors import ShardFailure
from shardkit.lua import script
from shardkit.operations.cancellation import UndoableBatch
from shardkit.operations.commands import (
    Argument,
    Command,
    Locate,
    Partial,
    Pause,
    Replies,
    Reply,
    raise_failures,
    script_call,
)
from shardkit.operations.operation import Operation
from shardkit.queues.keys import QueueKeys

LONGEST_SLICE = 1.0  # seconds
SHORTEST_SLICE = 0.001
FIRST_PAUSE = 0.01
LONGEST_PAUSE = 0.1
MOVED_AT_ONCE = 100


class ClaimedTask(NamedTuple):
    """A task as a script gave it: where from, its id, itself, and how often it was taken."""

    keys: QueueKeys
    id: bytes
    stored: bytes
    attempts: int


class _Attempt(UndoableBatch, Partial):
    """Takes from some servers: whoever fails leaves the others, whoever is cancelled puts back."""


class Claim:
    """The steps of one take.

    Args:
        component: where the queues live.
        queues: the queues, in order of priority.
        lease: for how many seconds a task is leased.
        attempts: after how many attempts a task whose lease ended is dead.
        now: the time as scripts are told it: empty for the server's.
        new_id: gives an id for a task that has none.
        release: gives the command that undoes a take.
    """

    def __init__(
        self,
        component: str,
        queues: Sequence[QueueKeys],
        lease: float,
        attempts: int,
        now: Callable[[], Argument],
        new_id: Callable[[], str],
        release: Callable[[ClaimedTask], Command],
    ) -> None:
        self._component = component
        self._queues = queues
        self._lease = lease
        self._attempts = attempts
        self._now = now
        self._new_id = new_id
        self._release = release
        self._places: list[Any] = [None] * len(queues)
        # By queue: the time when it was first looked at, and the latest; until something is due.
        self._first: dict[int, float] = {}
        self._passed = 0.0
        self._due = math.inf
        self._failures = Replies()

    def take(self, timeout: float) -> Operation[ClaimedTask | None]:
        """Take a task, and wait for one if there is none, up to so many seconds."""
        if len(self._queues) > 1:
            targets = [(self._component, keys.waiting) for keys in self._queues]
            self._places = yield Locate(targets)
        together = self._end_of(0) == len(self._queues)
        waited, pause = 0.0, FIRST_PAUSE
        while True:
            taken = yield from self._attempt(waits=together and timeout > 0)
            if taken is not None:
                return taken
            left = timeout - max(waited, self._passed)
            if len(self._failures) == len(self._queues) or (left <= 0 and self._failures):
                raise_failures(self._failures)
            if left <= 0:
                return None
            if together:
                seconds = max(SHORTEST_SLICE, min(left, LONGEST_SLICE, self._due))
                signals = [keys.signal for keys in self._queues]
                waiting = ("BLPOP", *signals, f"{seconds:.3f}")
                to = self._component
                [token] = yield [Command(to, signals[0], waiting, None, True, seconds)]
                waited += 0 if token else seconds
            else:
                seconds = max(SHORTEST_SLICE, min(left, pause, self._due))
                yield Pause(seconds)
                waited += seconds
                pause = min(LONGEST_PAUSE, 1.5 * pause)

    def _attempt(self, *, waits: bool) -> Operation[ClaimedTask | None]:
        """Look once at all queues."""
        self._due = math.inf
        self._failures = Replies()
        end = self._end_of(0)
        commands = [self._take_command(0, end, waits=waits)]
        commands += [self._move_command(n) for n in range(end, len(self._queues))]
        [reply, *looked] = yield self._undoable(commands, 0)
        taken = self._handle_take(0, end, reply)
        if taken is not None:
            return taken
        held = [self._handle_move(n, each) for n, each in enumerate(looked, end)]
        for n, count in enumerate(held, end):
            if count and n >= end:
                end = self._end_of(n)
                [reply] = yield self._undoable([self._take_command(n, end, waits=waits)], n)
                taken = self._handle_take(n, end, reply)
                if taken is not None:
                    return taken
        return None

    def _end_of(self, first: int) -> int:
        """Return behind which queue those end that live where the first one does."""
        place = self._places[first]
        end = first + 1
        while end < len(self._queues) and self._places[end] == place:
            end += 1
        return end

    def _take_command(self, first: int, end: int, *, waits: bool) -> Command:
        keys = [key for queue in self._queues[first:end] for key in queue.all]
        args = (
            self._now(),
            f"{self._lease:.6f}",
            self._attempts,
            self._new_id(),
            int(waits),
            MOVED_AT_ONCE,
        )
        return script_call(self._component, script("queues/take"), keys, args)

    def _move_command(self, n: int) -> Command:
        args = (self._now(), self._attempts, MOVED_AT_ONCE)
        keys = self._queues[n].all
        return script_call(self._component, script("queues/move"), keys, args, idempotent=True)

    def _undoable(self, commands: list[Command], first: int) -> _Attempt:
        def put_back(replies: Replies) -> list[Command]:
            taken = self._parse_take(first, replies[0])
            return [] if taken is None else [self._release(taken)]

        return _Attempt(commands, put_back)

    def _parse_take(self, first: int, reply: Reply) -> ClaimedTask | None:
        if isinstance(reply, ShardFailure) or not reply[0]:
            return None
        n, _, _, id_, stored, attempts = reply
        return ClaimedTask(self._queues[first + n - 1], id_, stored, attempts)

    def _handle_take(self, first: int, end: int, reply: Reply) -> ClaimedTask | None:
        if isinstance(reply, ShardFailure):
            self._failures += [reply] * (end - first)
            return None
        self._note_times(first, reply[1], reply[2])
        return self._parse_take(first, reply)

    def _handle_move(self, n: int, reply: Reply) -> int:
        if isinstance(reply, ShardFailure):
            self._failures.append(reply)
            return 0
        _, held, now, due = reply
        self._note_times(n, now, due)
        return int(held)

    def _note_times(self, n: int, now: bytes, due: bytes) -> None:
        """Note what time it is, and when something is due, by the clock of a queue's server."""
        seconds = float(now)
        self._passed = max(self._passed, seconds - self._first.setdefault(n, seconds))
        if due:
            self._due = min(self._due, float(due) - seconds)
