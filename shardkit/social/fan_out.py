"""Fan-out: a change in the timelines of all followers of an account, in passes.

A pass takes three exchanges. It reads the next followers from all parts of the relations, writes to
their timelines with one script for each server, and verifies that its reads still hold. The
verification shares its exchange with the next pass's reads.

**New followers** miss no post. A post is in its author's profile before followers are read, and a
follower is in the relations before the profile is copied. So a follower who was not read came
later, and copies the post.

**Followers who leave** may have been read before, and get a post after their timeline was cleaned.
Versions in a part only grow, so new followers come behind those read. If there are now fewer
between the first and the last one, a follower has left, and `Relations.check` cleans up.

**A status that is deleted during a fan-out** is removed from the timelines that the pass has just
written. The deletion's own passes handle all others.

An interrupted job has left a note (`statuses`), so `repair` starts it again; a pass may write
everything again. Only followers who left just before the interruption are unknown then: an entry
can stay in their timelines until `reconcile` checks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from shardkit.operations.commands import Command, Key, To
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation, pages
from shardkit.social.keys import KINDS, KeyLayout, RelationKind
from shardkit.social.models import stored_ids
from shardkit.social.relations import FETCHED, PUSHED, Relations, read_members
from shardkit.social.statuses import Statuses
from shardkit.social.timelines import Timelines, scored_members, timeline_entries

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
    """Runs jobs for all followers of an account; a pass reads ``pass_size`` of them."""

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
        """Return the shard and key of the followers that each position tracks."""
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
        """Check the relations of followers who are no longer there."""
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

    # ---- the end

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
