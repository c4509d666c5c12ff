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
from typing import Any, Final, NamedTuple

from shardkit.errors import InvalidArgumentError, NewerFormatError, ShardKitError, counted
from shardkit.operations.arguments import accepts, shown
from shardkit.operations.commands import Command, Key, To
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation, pages
from shardkit.queues.task_queues import TaskQueues
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
from shardkit.social.status_cache import DeletedStatus, Statuses, deletion_note, post_note
from shardkit.social.timelines import Timelines, scored_members, timeline_entries
from shardkit.structures.base.damage import stored_integer

POST: Final = "post"
DELETE: Final = "delete"
MARK: Final = "mark"
FILL: Final = "fill"
ACTIONS: Final = (POST, DELETE, MARK, FILL)

# The position in a part: None at the beginning, then the last (version, member), or DONE.
DONE: Final = 0
_KINDS: Final = tuple(KINDS.values())
# The most followers whose relations one exchange checks.
AT_ONCE = 1000


class FanOutJob(NamedTuple):
    """A job for all followers of an account, as a task carries it: JSON can represent it.

    Each pass makes the next job of it. A position is the last follower's version and id, so nobody
    is skipped or visited twice while others follow or leave.
    """

    action: str  # post, delete, mark or fill
    author: int  # the account
    subject: int  # the status, of a post or delete
    time: int  # when the status was posted
    version: str  # of a mark or fill, the version of the mode change
    note: str  # the note to remove at the end
    turn: int  # the number of tasks so far
    positions: tuple[Any, ...]  # the progress in each part: of users' relations, then of lists'

    @classmethod
    def begin(
        cls,
        action: str,
        author: int,
        parts: int,
        note: str,
        *,
        subject: int = 0,
        time: int = 0,
        version: str = "",
    ) -> FanOutJob:
        """Return a new job for the followers in ``parts`` parts."""
        positions = (None,) * (len(_KINDS) * parts)
        return cls(action, author, subject, time, version, note, 0, positions)

    @property
    def task(self) -> str:
        """The id of the task that continues it: the same, whichever process queues it."""
        return f"{self.note}:{self.action}:{self.version}:{self.turn}"

    @property
    def open(self) -> list[int]:
        """The indexes of positions that are not done."""
        return [n for n, position in enumerate(self.positions) if position != DONE]

    def kind(self, n: int) -> RelationKind:
        """Return the kind of the followers whose progress position ``n`` tracks."""
        return _KINDS[n * len(_KINDS) // len(self.positions)]


class FollowerPage(NamedTuple):
    """Followers of one kind in one part, as a pass has read them."""

    kind: RelationKind
    to: To  # the shard of the part
    key: str  # of the account's followers there
    rows: list[tuple[bytes, int]]  # their ids and versions


@dataclass(frozen=True)
class FanOut:
    """Runs jobs for all followers of an account; a pass reads ``pass_size`` of them.

    A pass takes three exchanges. It reads the next followers from all parts of the relations,
    writes to their timelines with one script for each server, and verifies that its reads still
    hold. The verification shares its exchange with the next pass's reads.

    **New followers** miss no post. A post is in its author's profile before followers are read, and
    a follower is in the relations before the profile is copied. So a follower who was not read came
    later, and copies the post.

    **Followers who leave** may have been read before, and get a post after their timeline was
    cleaned. Versions in a part only grow, so new followers come behind those read. If there are now
    fewer between the first and the last one, a follower has left, and `Relations.check` cleans up.

    **A status that is deleted meanwhile** is removed from the timelines that the pass has just
    written. The deletion's own passes handle all others.

    An interrupted job has left a note, so `repair` starts it again; a pass may write everything
    again. Only of followers who left just before can an entry stay until `reconcile` checks them.
    """

    layout: KeyLayout
    statuses: Statuses
    timelines: Timelines
    relations: Relations
    pass_size: int

    def run(self, job: FanOutJob, passes: int | None) -> Operation[FanOutJob | None]:
        """Continue a job for some passes, or to its end; return its rest, if any is needed."""
        written: list[FollowerPage] = []
        left = -1 if passes is None else passes
        while True:
            open_ = job.open
            if not open_:
                yield from self._end(job, written)
                return None
            limit = max(1, self.pass_size // len(open_))
            places = self._places(job)
            reads = [
                read_members(places[n][0], places[n][1], job.positions[n], limit)
                for n in (open_ if left else ())
            ]
            checks = [*self._validity_check(job), *self._count_written(job, written)]
            fill = []
            if reads and job.action == FILL:
                profile = self.layout.profile(job.author)
                fill = [self.timelines.newest(profile, self.timelines.home_limit)]
            replies = yield [*checks, *fill, *reads]
            if not (yield from self._verify(job, written, replies[: len(checks)])):
                return None
            if not reads:
                return job
            newest = replies[len(checks)] if fill else ()
            pages_read = dict(zip(open_, replies[len(checks) + len(fill) :], strict=True))
            job, written = self._advance(job, pages_read, limit)
            if written:
                yield from self._write(job, written, newest)
                left -= 1

    def finish(self, status: int, uid: int, note: str, version: str) -> Operation[bool]:
        """Remove the note of a post that readers fetch, if the status exists and they do."""
        [done] = yield [self._finish_command(status, uid, note, version)]
        if done == 0 and (yield from self.statuses.is_on_disk(status)):
            [done] = yield [self._finish_command(status, uid, note, version, on_disk=True)]
        return bool(done == 1)

    # ---- reading

    def _places(self, job: FanOutJob) -> list[tuple[To, str]]:
        places = self.layout.places
        return [place for kind in _KINDS for place in places(kind.incoming, job.author)]

    def _advance(
        self, job: FanOutJob, replies: dict[int, Any], limit: int
    ) -> tuple[FanOutJob, list[FollowerPage]]:
        """Return the job after a pass's reads, and the followers that they returned."""
        places, positions, followers = self._places(job), list(job.positions), []
        for n, flat in replies.items():
            positions[n] = DONE
            if flat:
                read = scored_members(*places[n], flat)
                rows = [(member, int(version)) for member, version in read]
                stored_ids(*places[n], (member for member, _ in rows))
                followers.append(FollowerPage(job.kind(n), places[n][0], places[n][1], rows))
                if len(rows) == limit:
                    positions[n] = (rows[-1][1], rows[-1][0].decode())
        return job._replace(positions=tuple(positions)), followers

    # ---- writing

    def _write(
        self, job: FanOutJob, followers: Sequence[FollowerPage], newest: Sequence[Any]
    ) -> Operation[None]:
        timelines, limit = self.timelines, self.timelines.home_limit
        if job.action == POST:
            entry = (b"%d" % job.subject, job.time)
            yield from timelines.add(self._keys(followers), [entry], limit)
        elif job.action == DELETE:
            yield from timelines.remove(self._keys(followers), [job.subject])
        elif job.action == MARK:
            yield from timelines.mark(self._keys(followers, "pull"), job.author, job.version)
        else:
            yield from timelines.add(self._keys(followers), timeline_entries(newest), limit)
            yield from timelines.unmark(self._keys(followers, "pull"), job.author, job.version)

    def _keys(self, followers: Sequence[FollowerPage], prefix: str = "") -> list[bytes]:
        """Return the keys of the followers' timelines, or their keys with another prefix."""
        name = self.layout.name.encode()
        return [
            b"%b:{%b:%b}" % ((prefix or page.kind.timeline).encode(), name, member)
            for page in followers
            for member, _ in page.rows
        ]

    # ---- verifying

    def _validity_check(self, job: FanOutJob) -> list[Command]:
        """Return the command whose reply says whether the job is still needed."""
        layout = self.layout
        if job.action == POST:
            key = layout.owned("status", job.subject)
            return [layout.at_user(key, "EXISTS", key)]
        if job.action == DELETE:
            return []
        key = layout.owned("user", job.author)
        return [layout.at_user(key, "HGET", key, ":version")]

    def _count_written(self, job: FanOutJob, written: Sequence[FollowerPage]) -> list[Command]:
        """Return the commands that count the followers between the first and last one written."""
        if job.action == DELETE:
            return []
        return [
            Command(to, key, ("ZCOUNT", key, rows[0][1], rows[-1][1]))
            for _, to, key, rows in written
        ]

    def _verify(
        self, job: FanOutJob, written: Sequence[FollowerPage], replies: Sequence[Any]
    ) -> Operation[bool]:
        """Undo what no longer holds; return whether the job is still needed."""
        if job.action == DELETE:
            return True
        yield from self._clean_up_after_leavers(job, written, replies[1:])
        if job.action != POST:
            return bool(replies[0] == job.version.encode())
        exists = bool(replies[0]) or (yield from self.statuses.is_on_disk(job.subject))
        if not exists:
            yield from self._withdraw(job, written)
        return exists

    def _clean_up_after_leavers(
        self, job: FanOutJob, written: Sequence[FollowerPage], counts: Sequence[int]
    ) -> Operation[None]:
        for (kind, to, key, rows), count in zip(written, counts, strict=True):
            if count == len(rows):
                continue
            for page in pages(rows, AT_ONCE):
                members = [member for member, _ in page]
                [scores] = yield [Command(to, key, ("ZMSCORE", key, *members))]
                for member, score in zip(members, scores, strict=True):
                    if score is None:
                        yield from self.relations.check(kind, int(member), job.author)

    def _withdraw(self, job: FanOutJob, written: Sequence[FollowerPage]) -> Operation[None]:
        """Remove a deleted status from where it was just written, and remove its post's note."""
        keys: list[Key] = [self.layout.profile(job.author), *self._keys(written)]
        yield from self.timelines.remove(keys, [job.subject])
        yield [self._remove_note(job)]

    def _end(self, job: FanOutJob, written: Sequence[FollowerPage]) -> Operation[None]:
        if job.action == DELETE:
            yield [self._remove_note(job)]
            return
        counts = self._count_written(job, written)
        if job.action != POST:
            # Followers who came or left get their marks before the mode changes.
            replies = (yield counts) if counts else []
            yield from self._clean_up_after_leavers(job, written, replies)
            keys = [self.layout.owned("user", job.author), self.layout.near("pending", job.author)]
            sent = (job.version, FETCHED if job.action == MARK else PUSHED, job.note)
            yield [
                lua_call(self.layout.users, "social/end_mode_change", keys, sent, idempotent=True)
            ]
            return
        finish = self._finish_command(job.subject, job.author, job.note)
        [finished, *replies] = yield [finish, *counts]
        yield from self._clean_up_after_leavers(job, written, replies)
        if finished == 1:
            return
        # Passes of a deletion that begins now see everything that was written.
        if (yield from self.statuses.is_on_disk(job.subject)):
            yield [self._remove_note(job)]
        else:
            yield from self._withdraw(job, written)

    def _remove_note(self, job: FanOutJob) -> Command:
        pending = self.layout.near("pending", job.author)
        return self.layout.at_user(pending, "ZREM", pending, job.note)

    def _finish_command(
        self, status: int, uid: int, note: str, version: str = "", *, on_disk: bool = False
    ) -> Command:
        layout = self.layout
        owned = layout.owned("status", status), layout.owned("user", uid)
        keys = [layout.near("pending", uid), *owned]
        arguments = (note, version, int(on_disk))
        return lua_call(layout.users, "social/finish_post", keys, arguments, idempotent=True)


# The most passes of one task, so that the worker gets to other tasks.
PASSES_A_TASK = 10
# The profiles that one step of a backfill reads: with 1,000 entries each, 50,000 entries.
PROFILES_AT_ONCE = 50


@dataclass(frozen=True)
class Delivery:
    """Posts, jobs that tasks on ``queues`` continue, backfills, and the rules of following.

    Without ``queues``, a call finishes its job. An account may follow at most ``limit`` others.
    Preconditions (both users exist, the limit is not reached) are checked before anything is
    written, and may be outdated by then. Users are never deleted, so only the limit can be
    exceeded, by at most the number of concurrent calls.
    """

    layout: KeyLayout
    statuses: Statuses
    timelines: Timelines
    relations: Relations
    fan_out: FanOut
    queues: TaskQueues[Any] | None
    queue: str
    limit: int

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

    def finish_post(self, action: str, status: int, uid: int, note: str) -> Operation[None]:
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
            yield from self._run(self._job(POST, status, uid, note, time), 1)

    def _withdraw(
        self, status: int, uid: int, note: str, *, everywhere: bool = True
    ) -> Operation[None]:
        """Remove a deleted status from its author's profile and the readers' timelines."""
        yield from self.statuses.remove_from_disk(status)
        yield from self.timelines.remove([self.layout.profile(uid)], [status])
        if everywhere:
            yield from self._run(self._job(DELETE, status, uid, note, 0), 1)
        else:
            pending = self.layout.near("pending", uid)
            yield [self.layout.at_user(pending, "ZREM", pending, note)]

    def _job(self, action: str, status: int, uid: int, note: str, time: int) -> FanOutJob:
        shards = self.layout.relation_parts
        return FanOutJob.begin(action, uid, shards, note, subject=status, time=time)

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
                f"{self.layout.name}: job={shown(fields)}", "give the fields that its task has"
            )
        positions = len(KINDS) * self.layout.relation_parts
        if job.action not in ACTIONS or len(job.positions) != positions:
            raise NewerFormatError(
                f"{self.layout.name}: job {job.action!r} for "
                f"{counted(len(job.positions), 'part')} was queued by a later release",
                "upgrade this program",
            )
        yield from self._run(job, PASSES_A_TASK)

    def change_mode(self, uid: int) -> Operation[None]:
        """Begin or repeat the job of a mode change; see `relations`."""
        layout, note = self.layout, mode_change_note(uid)
        key, pending = layout.owned("user", uid), layout.near("pending", uid)
        [[mode, version]] = yield [layout.at_user(key, "HMGET", key, ":mode", ":version")]
        mode = "" if mode is None else mode.decode()
        if mode not in (PUSHED, FETCHED, MARKING, FILLING):
            return  # written by a later release, which will end the change
        if mode in (PUSHED, FETCHED):
            yield [layout.at_user(pending, "ZREM", pending, note)]
            return
        action = MARK if mode == MARKING else FILL
        job = FanOutJob.begin(action, uid, layout.relation_parts, note, version=version.decode())
        if self.queues is None:
            yield from self._run(job, None)
        else:
            yield from self._enqueue("resume_fan_out", job, job.task)

    def backfill(self, kind: RelationKind, owner: int, positions: Sequence[Any]) -> Operation[None]:
        """Fill a timeline: from some profiles now, from the others in tasks."""
        while positions := (yield from self.fill(kind, owner, positions)):
            if self.queues is not None:
                # A task's id has at most 200 characters, and there is a position for each part.
                progress = blake2b(json.dumps(positions).encode(), digest_size=16).hexdigest()
                task = f"backfill:{kind.name}:{owner}:{progress}"
                yield from self._enqueue("backfill", (kind.name, owner, positions), task)
                return

    def _run(self, job: FanOutJob, passes: int | None) -> Operation[None]:
        """Run some passes of a job and queue the rest; without a queue, run all of it."""
        rest = yield from self.fan_out.run(job, None if self.queues is None else passes)
        if rest is not None:
            following = rest._replace(turn=rest.turn + 1)
            yield from self._enqueue("resume_fan_out", following, following.task)

    def _enqueue(self, name: str, args: Sequence[Any], task: str) -> Operation[None]:
        assert self.queues is not None
        name = f"{self.layout.name}.{name}"
        yield from self.queues.deferred.enqueue(self.queue, name, list(args), id=task)

    # ---- backfills

    def fill(
        self, kind: RelationKind, owner: int, positions: Sequence[Any], *, always: bool = False
    ) -> Operation[list[Any]]:
        """Fill a timeline from the next profiles; return the progress now, empty once finished.

        ``positions`` are the progress in each part of the relations, as in a FanOutJob; empty to
        begin, which does nothing if the timeline is full, unless ``always``.
        """
        timelines, limit = self.timelines, self.timelines.home_limit
        key = self.layout.timeline(kind, owner)
        if not positions and not always:
            [size] = yield [self.layout.at_timeline(key, "ZCARD", key)]
            if size >= limit:
                return []
        followed, positions = yield from self.followed(owner, positions, PROFILES_AT_ONCE)
        if followed:
            users = [self.layout.owned("user", uid) for uid in followed]
            replies = yield [
                *(timelines.newest(self.layout.profile(uid), limit) for uid in followed),
                *(self.layout.at_user(user, "HGET", user, ":mode") for user in users),
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
            still = yield from self.relations.exist(kind, [(owner, uid) for uid in followed])
            for uid, follows in zip(followed, still, strict=True):
                if not follows:  # unfollowed in the meantime
                    yield from self.relations.check(kind, owner, uid)
        return [] if all(position == DONE for position in positions) else positions

    def followed(
        self, owner: int, positions: Sequence[Any], limit: int
    ) -> Operation[tuple[list[int], list[Any]]]:
        """Return the next accounts that an owner follows, and the progress in each part."""
        positions = list(positions) or [None] * self.layout.relation_parts
        parts = [part for part, position in enumerate(positions) if position != DONE]
        most = max(1, limit // max(1, len(parts)))
        places = self.layout.places(FOLLOWING, owner)
        replies = yield [read_members(*places[part], positions[part], most) for part in parts]
        uids: list[int] = []
        for part, flat in zip(parts, replies, strict=True):
            rows = scored_members(*places[part], flat)
            uids += stored_ids(*places[part], (member for member, _ in rows))
            positions[part] = DONE
            if len(rows) == most:
                positions[part] = [int(rows[-1][1]), rows[-1][0].decode()]
        return uids, positions

    # ---- following

    def follow(self, kind: RelationKind, first: int, second: int) -> Operation[FollowResult]:
        """Have an account follow another; see `SocialNetwork.follow`."""
        if first == second:
            raise InvalidArgumentError(
                f"{self.layout.name}: {first} would follow itself", "give two accounts"
            )
        layout = self.layout
        follower, followed = layout.owned(kind.account, first), layout.owned("user", second)
        following, exists = yield [
            layout.at_user(follower, "HGET", follower, "following"),
            layout.at_user(followed, "EXISTS", followed),
        ]
        if following is None or not exists:
            return FollowResult.NO_SUCH_USER
        if stored_integer(layout.users, follower, "following", following) >= self.limit:
            [already] = yield from self.relations.exist(kind, [(first, second)])
            return FollowResult.ALREADY_FOLLOWING if already else FollowResult.LIMIT_REACHED
        change = yield from self.relations.change("follow", kind, first, second)
        if not isinstance(change, RelationChange):
            return FollowResult.ALREADY_FOLLOWING if change == NO_CHANGE else FollowResult.BLOCKED
        counter = yield from self.relations.propagate(kind, first, second, change)
        yield from self._apply_mode(second, counter)
        return FollowResult.FOLLOWED

    def unfollow(self, kind: RelationKind, first: int, second: int) -> Operation[bool]:
        """Have an account no longer follow another; see `SocialNetwork.unfollow`."""
        if first == second:
            return False
        change = yield from self.relations.change("unfollow", kind, first, second)
        if not isinstance(change, RelationChange):
            return False
        counter = yield from self.relations.propagate(kind, first, second, change)
        yield from self._apply_mode(second, counter)
        yield from self.backfill(kind, first, ())
        return True

    def check(self, kind: RelationKind, first: int, second: int) -> Operation[None]:
        """Make everything agree with the relation between two accounts."""
        counter = yield from self.relations.check(kind, first, second)
        yield from self._apply_mode(second, counter)
        [follows] = yield from self.relations.exist(kind, [(first, second)])
        if not follows:
            yield from self.backfill(kind, first, ())

    def _apply_mode(self, uid: int, counter: CounterState | None) -> Operation[None]:
        if counter is not None and counter.changed:
            yield from self.change_mode(uid)
