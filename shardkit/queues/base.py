"""The steps that task queues are made of: see `shardkit.queues.task_queues` for the idea."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from shardkit.errors import InvalidArgumentError
from shardkit.lua import script
from shardkit.operations.cancellation import undo_on_cancel
from shardkit.operations.commands import Argument, Command, Transaction, script_call
from shardkit.operations.operation import Driver, Face, Operation, Page, Structure
from shardkit.queues.claim import ClaimedTask
from shardkit.queues.keys import QueueKeys, check_prefix, queue_keys
from shardkit.queues.task_codec import DeadTask, NewTask, Task, decode_task, encode_task
from shardkit.structures.base.arguments import check_integer, check_name, shown

# Queues in order of priority; those in a tuple have the same.
QueueOrder: TypeAlias = Sequence[str | tuple[str, ...]]

ATTEMPTS = 5
LEASE = 60.0
RETRY_DELAY = 1.0
LONGEST_RETRY_DELAY = 3600.0
TASKS_AT_ONCE = 1000
MOST_QUEUES = 100
LONGEST_TIME = 2**31 - 1
LONGEST_REASON = 1000


class QueueCounts(NamedTuple):
    """How many tasks a queue has.

    Attributes:
        waiting: that wait.
        delayed: that are not due yet.
        taken: that somebody works on.
        dead: dead letters.
    """

    waiting: int
    delayed: int
    taken: int
    dead: int


class QueueSteps(Structure[Face]):
    """Task queues without their public operations; its arguments are those of `TaskQueues`."""

    def __init__(
        self,
        driver: Driver,
        component: str,
        name: str = "queues",
        attempts: int = ATTEMPTS,
        retry_delay: float = RETRY_DELAY,
        longest_retry_delay: float = LONGEST_RETRY_DELAY,
        now: Callable[[], float] | None = None,
        new_id: Callable[[], str] | None = None,
    ) -> None:
        super().__init__(undo_on_cancel(driver), component, check_prefix(name))
        check_integer(name, "attempts", attempts, 1, 1000)
        self.attempts = attempts
        self._retry_delay = self._seconds("retry_delay", retry_delay)
        self._longest_retry_delay = self._seconds("longest_retry_delay", longest_retry_delay)
        self._fixed = now
        self._new_id = new_id or _random_id
        self._turns = [0]  # how often queues of one priority were rotated; shared by all faces

    def _enqueue(self, queue: str, tasks: Sequence[NewTask]) -> Operation[list[str]]:
        sent: list[Argument] = []
        ids = []
        for task in tasks:
            name, args, delay, given = NewTask(*task)
            id_ = self._new_id() if given is None else given
            stored = encode_task(self.name, id_, queue, name, args)
            sent += [id_, f"{self._delay(delay):.6f}", stored]
            ids.append(id_)
        yield from self._call(queue, "queues/put", self._now(), *sent)
        return ids

    def _letters(
        self, keys: QueueKeys, rows: Sequence[tuple[bytes, float]]
    ) -> Operation[Page[DeadTask]]:
        ids = [id_ for id_, _ in rows]
        asking = tuple(
            self._at(key, "HMGET", key, *ids) for key in (keys.tasks, keys.reasons, keys.attempts)
        )
        [found] = yield [Transaction(self.component, keys.dead, asking)]
        letters: Page[DeadTask] = Page()
        for (id_, at), stored, reason, attempts in zip(rows, *found, strict=True):
            if stored is None or reason is None:  # revived meanwhile
                continue
            name: str | None = None
            args: tuple[Any, ...] = ()
            with suppress(ValueError):
                name, args = decode_task(stored)
            said = reason.decode(errors="replace")
            text = id_.decode(errors="surrogateescape")
            letters.append(
                DeadTask(text, keys.queue, name, args, int(attempts or 0), said, at, stored)
            )
        return letters

    def _give_back(
        self, task: Task, *, delay: float = 0, counts: bool = True, dead: str | None = None
    ) -> Operation[int]:
        taken = ClaimedTask(self._keys(task.queue), id_bytes(task.id), b"", task.attempts)
        [done] = yield [self._giving_back(taken, delay=delay, counts=counts, dead=dead)]
        return int(done)

    def _giving_back(
        self, taken: ClaimedTask, *, delay: float = 0, counts: bool = True, dead: str | None = None
    ) -> Command:
        sent: list[Argument] = [self._now(), taken.id, taken.attempts, f"{delay:.6f}"]
        sent.append(0 if counts else 1)
        if dead is not None:
            sent.append(dead.encode(errors="replace"))
        return script_call(self.component, script("queues/return"), taken.keys.all, sent)

    def _release(self, taken: ClaimedTask) -> Command:
        return self._giving_back(taken, counts=False)

    def _call(self, queue: str, name: str, *args: Argument) -> Operation[Any]:
        keys = self._keys(queue).all
        [reply] = yield [script_call(self.component, script(name), keys, args, idempotent=True)]
        return reply

    def _counting(self, keys: QueueKeys) -> list[Command]:
        sized = [self._at(key, "ZCARD", key) for key in (keys.delayed, keys.taken, keys.dead)]
        return [self._at(keys.waiting, "LLEN", keys.waiting), *sized]

    def _keys(self, queue: str) -> QueueKeys:
        check_name(queue)
        return queue_keys(self.name, queue)

    def _now(self) -> Argument:
        return "" if self._fixed is None else f"{self._fixed():.6f}"

    # ---- checks

    def _order(self, queues: QueueOrder | str) -> list[QueueKeys]:
        """Return the keys of queues in the order in which they are looked at this time."""
        given = [queues] if isinstance(queues, str) else list(queues)
        order: list[str] = []
        for each in given:
            if isinstance(each, tuple) and each:
                self._turns[0] += 1
                turn = self._turns[0] % len(each)
                order += each[turn:] + each[:turn]
            else:
                order.append(each)  # type: ignore[arg-type]  # an empty tuple is refused as a name
        found = [self._keys(queue) for queue in order]
        if not 0 < len(order) <= MOST_QUEUES or len(set(order)) < len(order):
            raise InvalidArgumentError(
                f"{self.name}: queues={shown(queues)}", f"name 1 to {MOST_QUEUES}, each once"
            )
        return found

    def _delay(self, delay: float) -> float:
        past = isinstance(delay, int | float) and delay <= 0
        return 0.0 if past else self._seconds("delay", delay, 0.0)

    def _seconds(self, field: str, value: float, least: float = 0.001) -> float:
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not least <= value <= LONGEST_TIME
        ):
            raise InvalidArgumentError(
                f"{self.name}: {field}={shown(value)}", f"give seconds, {least:g} to {LONGEST_TIME}"
            )
        return float(value)


def _random_id() -> str:
    return secrets.token_hex(8)


def id_bytes(id_: str) -> bytes:
    """Return an id as it is sent: also one that somebody else made of bytes that are no text."""
    return id_.encode(errors="surrogateescape")
