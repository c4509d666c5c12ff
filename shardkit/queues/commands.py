"""The commands of task queues: scripts with the keys of queues and the time."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from shardkit.operations.arguments import shown
from shardkit.operations.commands import Argument, Command
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Cursor, Operation, Stream
from shardkit.structures.base.arguments import check_name, check_tag
from shardkit.structures.base.check import Damage, Suspicion, Suspicions, confirmed, read_or_note
from shardkit.structures.base.damage import damage
from shardkit.structures.base.server_clock import ServerClock

PARTS = ("delayed", "taken", "tasks", "attempts", "dead", "reasons", "signal", "claims", "rates")


class QueueKeys:
    """The keys of a queue; ``all`` in the order of scripts' KEYS, as `lua/base.lua` says."""

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


_cached_keys = lru_cache(maxsize=1024)(QueueKeys)

MOVED_AT_ONCE = 100


class QueueCounts(NamedTuple):
    """The number of tasks in a queue.

    Attributes:
        delayed: tasks that are not due yet.
        taken: leased tasks, which workers run.
    """

    waiting: int
    delayed: int
    taken: int
    dead: int


class QueueRates(NamedTuple):
    """The recent rates of a queue, per second.

    Attributes:
        enqueued: tasks that were queued, or pushed by another program and taken.
        finished: tasks that were acknowledged.
        failed: attempts that failed, or whose lease ended.
    """

    enqueued: float
    finished: float
    failed: float


class ClaimedTask(NamedTuple):
    """A task as returned by the script that took it, with the keys of its queue."""

    keys: QueueKeys
    id: bytes
    stored: bytes
    attempts: int
    claim: str


class Acknowledged(Enum):
    """The outcome of an acknowledgement, as its script replies."""

    YES = 1
    CLAIM_LOST = 0  # taken again or requeued since
    MISSING = -1


class QueueCommands:
    """Builds the commands of task queues."""

    def __init__(self, component: str, name: str, attempts: int, clock: ServerClock) -> None:
        self._component = component
        self._name = name
        self._attempts = attempts
        self._clock = clock

    def keys(self, queue: str) -> QueueKeys:
        """Return the keys of a queue."""
        check_name(queue)
        return _cached_keys(self._name, queue)

    def take(
        self, queues: Sequence[QueueKeys], lease: float, claim: str, *, waits: bool
    ) -> Command:
        """Return the command that takes a task from the first of these queues that has one.

        The queues live together, and no other call uses the claim.
        """
        keys = [key for queue in queues for key in queue.all]
        args = (
            self._clock.script_seconds(),
            f"{lease:.6f}",
            self._attempts,
            self._clock.new_id(),  # for a task that was pushed without one
            int(waits),
            MOVED_AT_ONCE,
            claim,
        )
        return lua_call(self._component, "queues/take", keys, args)

    def move(self, keys: QueueKeys, limit: int) -> Command:
        """Return the command that requeues due tasks and ended leases."""
        return self.call("move", keys, self._clock.script_seconds(), self._attempts, limit)

    def requeue(
        self,
        queue: str,
        id_: bytes,
        attempts: int,
        claim: str,
        *,
        delay: float = 0,
        counts: bool = True,
        dead: str | None = None,
    ) -> Command:
        """Return the command that requeues a leased task, which is not idempotent.

        ``counts`` says whether this was an attempt: then, without a delay, it becomes its queue's
        last, else the first. ``dead`` says why the task is dead, if it is.
        """
        args: list[Argument] = [self._clock.script_seconds(), id_, attempts, claim]
        args += [f"{delay:.6f}", 0 if counts else 1]
        if dead is not None:
            args.append(dead.encode(errors="replace"))
        return lua_call(self._component, "queues/return", self.keys(queue).all, args)

    def counts(self, keys: QueueKeys) -> tuple[Command, ...]:
        """Return the commands that count the tasks of each kind, in the order of QueueCounts."""
        names = {"LLEN": (keys.waiting,), "ZCARD": (keys.delayed, keys.taken, keys.dead)}
        return tuple(
            Command(self._component, key, (name, key)) for name, of in names.items() for key in of
        )

    def call(self, name: str, keys: QueueKeys, *args: Argument) -> Command:
        """Return the command that runs a script of a queue, and may be repeated."""
        return lua_call(self._component, f"queues/{name}", keys.all, args, idempotent=True)


_AT_ONCE = 1000
_LONGEST_SEARCH = 10_000  # of an LPOS; a longer LIST is not searched
_RESTORES = "restore(queue) requeues it"


def check_queue(component: str, keys: QueueKeys) -> Stream[Damage]:
    """Check a queue while others use it."""
    if (yield from confirmed(_check_types, component, keys)):
        return
    cursor = Cursor(component, keys.tasks)
    while (flat := (yield from cursor.read("HSCAN", _AT_ONCE))) is not None:
        yield from confirmed(_check_nowhere, component, keys, flat[::2])
    for key in (keys.delayed, keys.taken, keys.dead):
        cursor = Cursor(component, key)
        while (flat := (yield from cursor.read("ZSCAN", _AT_ONCE))) is not None:
            yield from confirmed(_check_tasks, component, keys, key, flat[::2])


def _check_types(component: str, keys: QueueKeys) -> Operation[Suspicions]:
    notes: Suspicions = []
    names = ("LLEN", "ZCARD", "ZCARD", "HLEN", "HLEN", "ZCARD", "HLEN", "LLEN", "HLEN", "HLEN")
    reads = [
        Command(component, key, (name, key)) for name, key in zip(names, keys.all, strict=True)
    ]
    yield from read_or_note(reads, notes, "delete the key", "what it holds")
    return notes


def _check_nowhere(component: str, keys: QueueKeys, ids: list[bytes]) -> Operation[Suspicions]:
    """Check that each task is waiting, delayed, leased or dead, or was removed since."""
    reads: list[Command] = []
    for id_ in ids:
        sent: list[tuple[Any, ...]] = [("ZSCORE", p, id_) for p in (keys.taken, keys.delayed)]
        sent += [("ZSCORE", keys.dead, id_), ("HEXISTS", keys.tasks, id_)]
        sent.append(("LPOS", keys.waiting, id_, "MAXLEN", _LONGEST_SEARCH))
        reads += [Command(component, args[1], args) for args in sent]
    replies = iter((yield [*reads, Command(component, keys.waiting, ("LLEN", keys.waiting))]))
    rows = [(id_, *(next(replies) for _ in range(5))) for id_ in ids]
    if next(replies) > _LONGEST_SEARCH:
        return []
    lost = [
        id_
        for id_, taken, delayed, dead, exists, waits in rows
        if exists and (taken, delayed, dead, waits) == (None,) * 4
    ]
    expected = "one that waits, is delayed, taken or dead"
    return [
        Suspicion(damage(component, keys.tasks, f"task {shown(id_)}, nowhere", expected), _RESTORES)
        for id_ in lost
    ]


def _check_tasks(
    component: str, keys: QueueKeys, key: str, ids: list[bytes]
) -> Operation[Suspicions]:
    """Check that each id in a ZSET has a task."""
    if not ids:
        return []
    [tasks] = yield [Command(component, keys.tasks, ("HMGET", keys.tasks, *ids))]
    [scores] = yield [Command(component, key, ("ZMSCORE", key, *ids))]
    return [
        Suspicion(damage(component, key, f"{shown(id_)} without a task", "tasks"))
        for id_, task, score in zip(ids, tasks, scores, strict=True)
        if task is None and score is not None
    ]
