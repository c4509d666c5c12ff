"""Fan-outs and backfills that continue after the call returns, as tasks on a queue.

A post reaches its first followers in the call itself. A task resumes it for the rest; the task's id
names the job and its turn, so that it is queued only once, whichever process queues it. A task that
runs twice writes the same again. Without a queue, everything is done in the call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from shardkit.errors import InvalidArgumentError, NewerFormatError
from shardkit.operations.arguments import accepts, shown
from shardkit.operations.operation import Operation
from shardkit.queues.task_queues import TaskQueues
from shardkit.social.base.keys import KINDS, KeyLayout, RelationKind
from shardkit.social.delivery.backfill import Backfill
from shardkit.social.delivery.fan_out import FanOut
from shardkit.social.delivery.fan_out_job import ACTIONS, FILL, MARK, FanOutJob
from shardkit.social.relations.counters import mode_change_note
from shardkit.social.relations.delivery_mode import FETCHED, FILLING, MARKING, PUSHED

# At most so many passes in one task, so that the worker gets to other tasks.
PASSES_A_TASK = 10


class ResumableJobs:
    """Begins jobs in the call, queues the rest, and resumes it in a worker.

    Args:
        layout: the network's keys.
        fan_out: runs jobs for all followers.
        backfill: fills timelines.
        queues: where tasks are enqueued; None to finish everything in the call.
        queue: the queue's name.
    """

    def __init__(
        self,
        layout: KeyLayout,
        fan_out: FanOut,
        backfill: Backfill,
        queues: TaskQueues[Any] | None,
        queue: str,
    ) -> None:
        self._layout = layout
        self._fan_out = fan_out
        self._backfill = backfill
        self._queues = queues
        self._queue = queue
        self.resume_name = f"{layout.name}.resume_fan_out"
        self.backfill_name = f"{layout.name}.backfill"

    def begin(self, job: FanOutJob) -> Operation[None]:
        """Run the first pass of a job and queue the rest; without a queue, run all of it."""
        yield from self._run(job, 1)

    def resume(self, fields: Sequence[Any]) -> Operation[None]:
        """Run some passes of a queued job, given its fields."""
        known = fields[: len(FanOutJob._fields)]  # a later release may add some
        try:
            job = FanOutJob._make([*known[:-1], tuple(known[-1])])
            valid = accepts(FanOutJob, job)
        except (TypeError, IndexError):
            valid = False
        if not valid:
            raise InvalidArgumentError(
                f"{self._layout.name}: job={shown(fields)}", "give the fields that its task has"
            )
        positions = len(KINDS) * self._layout.relation_shards
        if job.action not in ACTIONS or len(job.positions) != positions:
            raise NewerFormatError(
                f"{self._layout.name}: a job {job.action!r} for {len(job.positions)} parts",
                "upgrade this program",
            )
        yield from self._run(job, PASSES_A_TASK)

    def change_mode(self, uid: int) -> Operation[None]:
        """Begin or repeat the job of a mode change; see `relations.delivery_mode`."""
        layout, note = self._layout, mode_change_note(uid)
        key, pending = layout.owned("user", uid), layout.near("pending", uid)
        [[mode, version]] = yield [layout.at_user(key, "HMGET", key, ":mode", ":version")]
        mode = "" if mode is None else mode.decode()
        if mode not in (PUSHED, FETCHED, MARKING, FILLING):
            return  # written by a later release, which will end the change
        if mode in (PUSHED, FETCHED):
            yield [layout.at_user(pending, "ZREM", pending, note)]
            return
        action = MARK if mode == MARKING else FILL
        job = FanOutJob.begin(action, uid, layout.relation_shards, note, version=version.decode())
        if self._queues is None:
            yield from self._run(job, None)
        else:
            yield from self._enqueue(self.resume_name, job, job.task)

    def check_backfill(self, kind: str, positions: Sequence[Any]) -> None:
        """Check the arguments of a `backfill` task.

        Raises:
            NewerFormatError: a later release queued it.
        """
        if kind not in KINDS or len(positions) not in (0, self._layout.relation_shards):
            raise NewerFormatError(
                f"{self._layout.name}: a backfill of {kind!r} from {len(positions)} parts",
                "upgrade this program",
            )

    def backfill(self, kind: RelationKind, owner: int, positions: Sequence[Any]) -> Operation[None]:
        """Fill a timeline: from some profiles now, from the others in tasks."""
        while positions := (yield from self._backfill.step(kind, owner, positions)):
            if self._queues is not None:
                # A task's id has at most 200 characters, and there is a position for each part.
                progress = blake2b(json.dumps(positions).encode(), digest_size=16).hexdigest()
                task = f"backfill:{kind.name}:{owner}:{progress}"
                yield from self._enqueue(self.backfill_name, (kind.name, owner, positions), task)
                return

    def _run(self, job: FanOutJob, passes: int | None) -> Operation[None]:
        rest = yield from self._fan_out.run(job, None if self._queues is None else passes)
        if rest is not None:
            following = rest._replace(turn=rest.turn + 1)
            yield from self._enqueue(self.resume_name, following, following.task)

    def _enqueue(self, name: str, args: Sequence[Any], task: str) -> Operation[None]:
        assert self._queues is not None
        yield from self._queues.deferred.enqueue(self._queue, name, list(args), id=task)
