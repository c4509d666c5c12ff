"""From a new status to its readers: posts, tasks that continue a fan-out, and backfills.

One script writes or deletes the status, counts it, and notes that it is on its way. Then it enters
or leaves the author's profile, and the followers' timelines, pass by pass, unless readers fetch it;
at last the note is removed.

A post reaches its first followers in the call itself. A task on a queue resumes it for the rest.
The task's id names the job and its turn, so it is queued only once, whichever process queues it. A
task that runs twice writes the same again. Without a queue, the call does everything.

**Backfill.** A timeline keeps its newest entries only. When its owner unfollows an account, that
account's posts leave, and older posts of the others were trimmed long ago. So a timeline with fewer
entries than its limit is filled again from the profiles of those its owner follows, some at a time.
Accounts whose posts are fetched on reading are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from heapq import nlargest
from typing import Any

from shardkit.errors import InvalidArgumentError, NewerFormatError, ShardKitError, counted
from shardkit.operations.arguments import accepts, shown
from shardkit.operations.operation import Operation
from shardkit.queues.task_queues import TaskQueues
from shardkit.social.fan_out import ACTIONS, DELETE, DONE, FILL, MARK, POST, FanOut, FanOutJob
from shardkit.social.keys import FOLLOWING, KINDS, KeyLayout, RelationKind
from shardkit.social.models import MICRO, Extra, FollowResult, stored_ids
from shardkit.social.relations import (
    FETCHED,
    FILLING,
    MARKING,
    NO_CHANGE,
    PUSHED,
    CounterState,
    RelationChange,
    Relations,
    mode_change_note,
    read_members,
)
from shardkit.social.statuses import DeletedStatus, Statuses, deletion_note, post_note
from shardkit.social.timelines import Timelines, scored_members, timeline_entries
from shardkit.structures.base.damage import stored_integer

# The most passes of one task, so that the worker gets to other tasks.
PASSES_A_TASK = 10
# The profiles that one step of a backfill reads: with 1,000 entries each, 50,000 entries.
PROFILES_AT_ONCE = 50


@dataclass(frozen=True)
class Posts:
    """A network's posts."""

    layout: KeyLayout
    statuses: Statuses
    timelines: Timelines
    fan_out: FanOut
    jobs: ResumableJobs

    def post(
        self, uid: int, message: str, extras: Mapping[str, Extra], idempotency_key: str | None
    ) -> Operation[int | None]:
        """Post a status; see `SocialNetwork.post`."""
        created = yield from self.statuses.create(
            uid, message, extras, idempotency_key, self.timelines.profile_limit
        )
        if created is None:
            return None
        if created.time is not None:
            fetched = created.version if created.mode == FETCHED else None
            try:
                yield from self._deliver(created.id, uid, created.time, fetched)
            except ShardKitError as error:
                error.ids = (created.id,)
                error.remedy = f"status {created.id} is stored: repair() delivers it"
                raise
        return created.id

    def delete(self, uid: int, status: int) -> Operation[bool]:
        """Delete a status; see `SocialNetwork.delete_status`."""
        deleted = yield from self.statuses.delete(uid, status)
        if deleted is DeletedStatus.NONE:
            return False
        everywhere = deleted is DeletedStatus.PUSHED
        yield from self._withdraw(status, uid, deletion_note(status, uid), everywhere=everywhere)
        return True

    def resume(self, action: str, status: int, uid: int, note: str) -> Operation[None]:
        """Finish the post or deletion that a note stands for."""
        [stored] = yield from self.statuses.get([status])
        if action == POST and stored is not None:
            yield from self._deliver(status, uid, round(stored.posted * MICRO), None)
        else:
            yield from self._withdraw(status, uid, note)

    def _deliver(self, status: int, uid: int, time: int, fetched: str | None) -> Operation[None]:
        """Put a status into its author's profile and the readers' timelines.

        ``fetched`` is the version of the mode, if readers fetch the status instead.
        """
        timelines, note = self.timelines, post_note(status, uid)
        yield from self.statuses.persist(status)
        entry = (b"%d" % status, float(time))
        yield from timelines.add([self.layout.profile(uid)], [entry], timelines.profile_limit)
        # If it cannot be finished, it was deleted or the mode has changed: the job detects which.
        if fetched is None or not (yield from self.fan_out.finish(status, uid, note, fetched)):
            yield from self.jobs.run(self._job(POST, status, uid, note, time), 1)

    def _withdraw(
        self, status: int, uid: int, note: str, *, everywhere: bool = True
    ) -> Operation[None]:
        """Remove a deleted status from its author's profile and the readers' timelines."""
        yield from self.statuses.remove_from_disk(status)
        yield from self.timelines.remove([self.layout.profile(uid)], [status])
        if everywhere:
            yield from self.jobs.run(self._job(DELETE, status, uid, note, 0), 1)
        else:
            pending = self.layout.near("pending", uid)
            yield [self.layout.at_user(pending, "ZREM", pending, note)]

    def _job(self, action: str, status: int, uid: int, note: str, time: int) -> FanOutJob:
        shards = self.layout.relation_shards
        return FanOutJob.begin(action, uid, shards, note, subject=status, time=time)


class ResumableJobs:
    """Begins jobs in the call, queues the rest, and resumes it in a worker.

    Without ``queues``, the call finishes everything.
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
                f"{self._layout.name}: job {job.action!r} for "
                f"{counted(len(job.positions), 'part')} was queued by a later release",
                "upgrade this program",
            )
        yield from self.run(job, PASSES_A_TASK)

    def change_mode(self, uid: int) -> Operation[None]:
        """Begin or repeat the job of a mode change; see `relations`."""
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
            yield from self.run(job, None)
        else:
            yield from self._enqueue(self.resume_name, job, job.task)

    def check_backfill(self, kind: str, positions: Sequence[Any]) -> None:
        """Check the arguments of a `backfill` task."""
        if kind not in KINDS or len(positions) not in (0, self._layout.relation_shards):
            raise NewerFormatError(
                f"{self._layout.name}: backfill of {kind!r} from "
                f"{counted(len(positions), 'part')} was queued by a later release",
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

    def run(self, job: FanOutJob, passes: int | None) -> Operation[None]:
        """Run some passes of a job and queue the rest; without a queue, run all of it."""
        rest = yield from self._fan_out.run(job, None if self._queues is None else passes)
        if rest is not None:
            following = rest._replace(turn=rest.turn + 1)
            yield from self._enqueue(self.resume_name, following, following.task)

    def _enqueue(self, name: str, args: Sequence[Any], task: str) -> Operation[None]:
        assert self._queues is not None
        yield from self._queues.deferred.enqueue(self._queue, name, list(args), id=task)


class Backfill:
    """Fills timelines from the profiles of those whom their owners follow."""

    def __init__(self, layout: KeyLayout, timelines: Timelines, relations: Relations) -> None:
        self._layout = layout
        self._timelines = timelines
        self._relations = relations

    def step(
        self, kind: RelationKind, owner: int, positions: Sequence[Any], *, always: bool = False
    ) -> Operation[list[Any]]:
        """Fill a timeline from the next profiles; return the progress now, empty once finished.

        ``positions`` are the progress in each part of the relations, as in a FanOutJob; empty to
        begin, which does nothing if the timeline is full, unless ``always``.
        """
        timelines, limit = self._timelines, self._timelines.home_limit
        key = self._layout.timeline(kind, owner)
        if not positions and not always:
            [size] = yield [self._layout.at_timeline(key, "ZCARD", key)]
            if size >= limit:
                return []
        followed, positions = yield from self.followed(owner, positions, PROFILES_AT_ONCE)
        if followed:
            users = [self._layout.owned("user", uid) for uid in followed]
            replies = yield [
                *(timelines.newest(self._layout.profile(uid), limit) for uid in followed),
                *(self._layout.at_user(user, "HGET", user, ":mode") for user in users),
            ]
            profiles, modes = replies[: len(followed)], replies[len(followed) :]
            rows = [
                row
                for flat, mode in zip(profiles, modes, strict=True)
                if mode != FETCHED.encode()
                for row in timeline_entries(flat)
            ]
            newest = nlargest(limit, rows, key=lambda row: (row[1], row[0]))
            yield from timelines.add([key], newest, limit)
            still = yield from self._relations.exist(kind, [(owner, uid) for uid in followed])
            for uid, follows in zip(followed, still, strict=True):
                if not follows:  # unfollowed in the meantime
                    yield from self._relations.check(kind, owner, uid)
        return [] if all(position == DONE for position in positions) else positions

    def followed(
        self, owner: int, positions: Sequence[Any], limit: int
    ) -> Operation[tuple[list[int], list[Any]]]:
        """Return the next accounts that an owner follows, and the progress in each part."""
        positions = list(positions) or [None] * self._layout.relation_shards
        parts = [part for part, position in enumerate(positions) if position != DONE]
        most = max(1, limit // max(1, len(parts)))
        places = self._layout.places(FOLLOWING, owner)
        replies = yield [read_members(*places[part], positions[part], most) for part in parts]
        uids: list[int] = []
        for part, flat in zip(parts, replies, strict=True):
            rows = scored_members(*places[part], flat)
            uids += stored_ids(*places[part], (member for member, _ in rows))
            positions[part] = DONE
            if len(rows) == most:
                positions[part] = [int(rows[-1][1]), rows[-1][0].decode()]
        return uids, positions


class Follows:
    """The rules of following: an account may follow at most ``limit`` others.

    Preconditions (both users exist, the limit is not reached) are checked before anything is
    written, and may be outdated by then. Users are never deleted, so only the limit can be
    exceeded, by at most the number of concurrent calls.
    """

    def __init__(
        self, layout: KeyLayout, relations: Relations, jobs: ResumableJobs, limit: int
    ) -> None:
        self._layout = layout
        self._relations = relations
        self._jobs = jobs
        self._limit = limit

    def follow(self, kind: RelationKind, first: int, second: int) -> Operation[FollowResult]:
        """Have an account follow another; see `SocialNetwork.follow`."""
        if first == second:
            raise InvalidArgumentError(
                f"{self._layout.name}: {first} would follow itself", "give two accounts"
            )
        layout = self._layout
        follower, followed = layout.owned(kind.account, first), layout.owned("user", second)
        following, exists = yield [
            layout.at_user(follower, "HGET", follower, "following"),
            layout.at_user(followed, "EXISTS", followed),
        ]
        if following is None or not exists:
            return FollowResult.NO_SUCH_USER
        if stored_integer(layout.users, follower, "following", following) >= self._limit:
            [already] = yield from self._relations.exist(kind, [(first, second)])
            return FollowResult.ALREADY_FOLLOWING if already else FollowResult.LIMIT_REACHED
        change = yield from self._relations.change("follow", kind, first, second)
        if not isinstance(change, RelationChange):
            return FollowResult.ALREADY_FOLLOWING if change == NO_CHANGE else FollowResult.BLOCKED
        counter = yield from self._relations.propagate(kind, first, second, change)
        yield from self._apply_mode(second, counter)
        return FollowResult.FOLLOWED

    def unfollow(self, kind: RelationKind, first: int, second: int) -> Operation[bool]:
        """Have an account no longer follow another; see `SocialNetwork.unfollow`."""
        if first == second:
            return False
        change = yield from self._relations.change("unfollow", kind, first, second)
        if not isinstance(change, RelationChange):
            return False
        counter = yield from self._relations.propagate(kind, first, second, change)
        yield from self._apply_mode(second, counter)
        yield from self._jobs.backfill(kind, first, ())
        return True

    def check(self, kind: RelationKind, first: int, second: int) -> Operation[None]:
        """Make everything agree with the relation between two accounts."""
        counter = yield from self._relations.check(kind, first, second)
        yield from self._apply_mode(second, counter)
        [follows] = yield from self._relations.exist(kind, [(first, second)])
        if not follows:
            yield from self._jobs.backfill(kind, first, ())

    def _apply_mode(self, uid: int, counter: CounterState | None) -> Operation[None]:
        """Change how an account's posts reach readers, if a count changed the mode."""
        if counter is not None and counter.changed:
            yield from self._jobs.change_mode(uid)
