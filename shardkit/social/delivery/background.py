"""What goes on after a call has returned: jobs as tasks on a queue, or, without one, at once.

A post reaches the first followers in the call itself. What is left is a task with an id that says
which job it is and which of its tasks, so that it is queued once, whoever asks for it; a task that
is done twice writes what is there already.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from shardkit.operations.operation import Operation
from shardkit.queues.task_queues import TaskQueues
from shardkit.social.base.keys import KINDS, KeyLayout, RelationKind
from shardkit.social.delivery.backfill import Backfill
from shardkit.social.delivery.fan_out import FanOut
from shardkit.social.delivery.fan_out_job import FILL, MARK, FanOutJob
from shardkit.social.relations.counters import mode_change_note
from shardkit.social.relations.delivery_mode import FILLING, MARKING

# Passes of one task: so long a worker is kept from others.
PASSES_A_TASK = 10


class BackgroundJobs:
    """Begins jobs, and goes on with them.

    Args:
        layout: where the keys are.
        syndication: does jobs.
        refill: refills timelines.
        queues: where tasks go; None to do everything in the call.
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
        self.resume_name = f"{layout.name}.go_on"
        self.backfill_name = f"{layout.name}.refill"

    def begin(self, job: FanOutJob) -> Operation[None]:
        """Do the first pass of a job, and queue what is left; without a queue, do all of it."""
        yield from self._run(job, 1)

    def resume_fan_out(self, fields: Sequence[Any]) -> Operation[None]:
        """Do some passes of a job that was queued."""
        job = FanOutJob._make(fields)
        yield from self._run(job._replace(places=tuple(job.places)), PASSES_A_TASK)

    def start_mode_change(self, uid: int) -> Operation[None]:
        """Go on with an account's change between pushing and fetching; see `modes`."""
        layout = self._layout
        key, pending = layout.owned("user", uid), layout.near("pending", uid)
        [[mode, version]] = yield [layout.at_user(key, "HMGET", key, ":mode", ":version")]
        if mode is None or mode.decode() not in (MARKING, FILLING):
            yield [layout.at_user(pending, "ZREM", pending, mode_change_note(uid))]
            return
        what = MARK if mode.decode() == MARKING else FILL
        shards = layout.relation_shards
        job = FanOutJob.begin(what, uid, shards, mode_change_note(uid), version=version.decode())
        if self._queues is None:
            yield from self._run(job, None)
        else:
            yield from self._later(self.resume_name, job, job.task)

    def backfill(self, kind: RelationKind, owner: int, places: Sequence[Any]) -> Operation[None]:
        """Refill a timeline, some profiles now and the others as tasks."""
        while True:
            places = yield from self._backfill.step(kind, owner, places)
            if not places:
                return
            if self._queues is not None:
                # A task's id has at most 200 characters, and there is a place for each part.
                begun = blake2b(json.dumps(places).encode(), digest_size=16).hexdigest()
                task = f"refill:{kind.name}:{owner}:{begun}"
                yield from self._later(self.backfill_name, (kind.name, owner, places), task)
                return

    def backfill_task(self, kind: str, owner: int, places: Sequence[Any]) -> Operation[None]:
        """Go on with a refill that was queued."""
        yield from self.backfill(KINDS[kind], owner, places)

    def _run(self, job: FanOutJob, passes: int | None) -> Operation[None]:
        if self._queues is None:
            passes = None
        left = yield from self._fan_out.run(job, passes)
        if left is not None:
            following = left.next_task()
            yield from self._later(self.resume_name, following, following.task)

    def _later(self, name: str, args: Sequence[Any], task: str) -> Operation[None]:
        assert self._queues is not None
        yield from self._queues.deferred.enqueue(self._queue, name, list(args), id=task)
