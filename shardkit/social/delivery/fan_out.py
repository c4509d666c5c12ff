"""Syndication: what has to be done at all followers of an account, in passes.

A pass is three exchanges: it reads the next followers from all parts of the relations, writes to
their timelines, one script a server, and looks whether what it did still holds. The last of these
also reads the followers of the next pass.

::

    read   16 parts      ~60 followers each
    write  4 servers     one script each, ~250 timelines        ─┐  together with
    check  16 parts      are they as many as were read?          │  the next pass's
           1             is the status still there?             ─┘  read

**Who follows meanwhile** is missed by no pass and no copy. A post is in its author's profile before
followers are read, and a follower is in the relations before the profile is copied. So whoever is
not among those read came after that, and copies the post.

**Who leaves meanwhile** may have been read before, and got a post after the timeline was cleaned.
In one part versions only grow, so newcomers are behind what was read: if there are fewer between
the first and the last one now, somebody has left, and is dealt with as `Relations.check` does.

**A status that is deleted meanwhile** is removed from the timelines that the pass has just written;
the deletion's own passes see to all others.

A process that ends in between has left a note (`content.statuses`), so that `repair` begins
the job anew. All that a pass writes may be written again. What it cannot know any more is who has
left just then: an entry stays in that timeline, until `reconcile` looks at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardkit.lua import script
from shardkit.operations.commands import Command, Key, script_call
from shardkit.operations.operation import Operation, pages
from shardkit.social.base.keys import KeyLayout
from shardkit.social.content.statuses import Statuses
from shardkit.social.content.timelines import Timelines
from shardkit.social.delivery.fan_out_job import DELETE, FILL, MARK, POST, FanOutJob, FollowerPage
from shardkit.social.relations.delivery_mode import FETCHED, PUSHED
from shardkit.social.relations.relations import Relations, scored_members

# Members whose relation one exchange looks at.
AT_ONCE = 1000


class FanOut:
    """The steps of a network's passes.

    Args:
        layout: where the keys are.
        statuses: what is posted.
        timelines: what is written to.
        relations: who follows.
        pass_size: how many followers a pass reads, of all parts together.
    """

    def __init__(
        self,
        layout: KeyLayout,
        statuses: Statuses,
        timelines: Timelines,
        relations: Relations,
        pass_size: int,
    ) -> None:
        self._layout = layout
        self._statuses = statuses
        self._timelines = timelines
        self._relations = relations
        self._pass_size = pass_size

    def run(self, job: FanOutJob, passes: int | None) -> Operation[FanOutJob | None]:
        """Go on with a job.

        Args:
            job: how far it has come.
            passes: after how many passes to stop; None for its end.

        Returns:
            What is left of it; None once it has ended, or is no longer needed.
        """
        written: list[FollowerPage] = []
        left = -1 if passes is None else passes
        while True:
            if not job.open:
                yield from self._end(job, written)
                return None
            reads = self._reads(job) if left else []
            checks = [*self._still(job), *self._held(job, written)]
            rows = self._rows(job) if reads else []
            replies = yield [*checks, *rows, *reads]
            counted = replies[: len(checks)]
            if not (yield from self._look(job, written, counted)):
                return None
            if not reads:
                return job
            newest = replies[len(checks)] if rows else ()
            job, written = self._take_in(job, replies[len(checks) + len(rows) :])
            if written:
                yield from self._write(job, written, newest)
                left -= 1

    # ---- reading

    def _reads(self, job: FanOutJob) -> list[Command]:
        most = self._most(job)
        batch = []
        for n in job.open:
            kind, part = job.kind_and_part(n)
            to = self._layout.relations(part)
            key = self._layout.relation(kind.incoming, part, job.author)
            place = job.places[n]
            if place is None:
                command = ("ZRANGE", key, 0, most - 1, "WITHSCORES")
                batch.append(Command(to, key, command, None, True))
            else:
                arguments = ("-inf", "+inf", most, 0, place[0], place[1])
                call = script("structures/sorted_set/score_range")
                batch.append(script_call(to, call, [key], arguments, idempotent=True))
        return batch

    def _most(self, job: FanOutJob) -> int:
        return max(1, self._pass_size // max(1, len(job.open)))

    def _take_in(
        self, job: FanOutJob, replies: Sequence[Any]
    ) -> tuple[FanOutJob, list[FollowerPage]]:
        most = self._most(job)
        places, found = list(job.places), []
        for n, flat in zip(job.open, replies, strict=True):
            rows = [(member, int(version)) for member, version in scored_members(flat)]
            if rows:
                found.append(FollowerPage(*job.kind_and_part(n), rows))
                places[n] = (rows[-1][1], rows[-1][0].decode())
            if len(rows) < most:
                places[n] = 0
        return job._replace(places=tuple(places)), found

    def _rows(self, job: FanOutJob) -> list[Command]:
        """Return the command that reads what a fill writes."""
        if job.what != FILL:
            return []
        timelines = self._timelines
        return [timelines.newest(self._layout.profile(job.author), timelines.home_limit)]

    # ---- writing

    def _write(
        self, job: FanOutJob, readers: Sequence[FollowerPage], newest: Sequence[Any]
    ) -> Operation[None]:
        timelines, limit = self._timelines, self._timelines.home_limit
        if job.what in (POST, DELETE, FILL):
            homes = self._keys(readers)
        if job.what in (MARK, FILL):
            pulled = self._keys(readers, "pull")
        if job.what == POST:
            yield from timelines.add(homes, [(b"%d" % job.subject, job.time)], limit)
        elif job.what == DELETE:
            yield from timelines.remove(homes, [job.subject])
        elif job.what == MARK:
            yield from timelines.mark(pulled, job.author, job.version)
        else:
            yield from timelines.add(homes, scored_members(newest), limit)
            yield from timelines.unmark(pulled, job.author, job.version)

    def _keys(self, readers: Sequence[FollowerPage], what: str = "") -> list[bytes]:
        """Return the keys of readers' timelines, or of something else of theirs."""
        keys = []
        for kind, _, rows in readers:
            before, behind = self._layout.tagged(what or kind.timeline)
            keys += [before + member + behind for member, _ in rows]
        return keys

    # ---- looking whether it still holds

    def _still(self, job: FanOutJob) -> list[Command]:
        """Return the command that says whether the job is still needed."""
        layout = self._layout
        if job.what == POST:
            key = layout.owned("status", job.subject)
            return [layout.at_user(key, "EXISTS", key)]
        if job.what == DELETE:
            return []
        key = layout.owned("user", job.author)
        return [layout.at_user(key, "HGET", key, ":version")]

    def _held(self, job: FanOutJob, written: Sequence[FollowerPage]) -> list[Command]:
        """Return the commands that count those between the first and the last one of each part."""
        if job.what == DELETE:
            return []
        layout, batch = self._layout, []
        for kind, part, rows in written:
            to, key = layout.relations(part), layout.relation(kind.incoming, part, job.author)
            command = ("ZCOUNT", key, rows[0][1], rows[-1][1])
            batch.append(Command(to, key, command, None, True))
        return batch

    def _look(
        self, job: FanOutJob, written: Sequence[FollowerPage], replies: Sequence[Any]
    ) -> Operation[bool]:
        """Undo what no longer holds; whether the job is still needed."""
        if job.what == DELETE:
            return True
        yield from self._see_off(job, written, replies[1:])
        if job.what != POST:
            return bool(replies[0] == job.version.encode())
        there = bool(replies[0]) or (yield from self._statuses.is_there(job.subject))
        if not there:
            yield from self._take_back(job, written)
        return there

    def _see_off(
        self, job: FanOutJob, written: Sequence[FollowerPage], counts: Sequence[int]
    ) -> Operation[None]:
        """Deal with those that have left meanwhile."""
        for (kind, part, rows), count in zip(written, counts, strict=True):
            if count == len(rows):
                continue
            to = self._layout.relations(part)
            key = self._layout.relation(kind.incoming, part, job.author)
            for page in pages(rows, AT_ONCE):
                members = [member for member, _ in page]
                [scores] = yield [Command(to, key, ("ZMSCORE", key, *members), None, True)]
                for member, score in zip(members, scores, strict=True):
                    if score is None:
                        yield from self._relations.check(kind, int(member), job.author)

    def _take_back(self, job: FanOutJob, written: Sequence[FollowerPage]) -> Operation[None]:
        """Remove a deleted status from where it was just written, and cross its post off."""
        keys: list[Key] = [self._layout.profile(job.author), *self._keys(written)]
        yield from self._timelines.remove(keys, [job.subject])
        yield [self._crossing_off(job)]

    # ---- the end

    def _end(self, job: FanOutJob, written: Sequence[FollowerPage]) -> Operation[None]:
        layout = self._layout
        pending = layout.near("pending", job.author)
        held = self._held(job, written)
        if job.what == DELETE:
            yield [self._crossing_off(job)]
            return
        if job.what == POST:
            finish = self._finishing(job.subject, job.author, job.pending)
        else:
            mode = FETCHED if job.what == MARK else PUSHED
            keys = [layout.owned("user", job.author), pending]
            # Who reads marks has to have them all before posts are no longer pushed.
            replies = (yield held) if held else []
            yield from self._see_off(job, written, replies)
            call, arguments = script("social/delivery/cross"), (job.version, mode, job.pending)
            yield [script_call(layout.users, call, keys, arguments, idempotent=True)]
            return
        replies = yield [finish, *held]
        yield from self._see_off(job, written, replies[1:])
        if replies[0] == 1:
            return
        # Whoever deletes it from now on begins behind what was written.
        if (yield from self._statuses.is_there(job.subject)):
            yield [self._crossing_off(job)]
        else:
            yield from self._take_back(job, written)

    def _crossing_off(self, job: FanOutJob) -> Command:
        pending = self._layout.near("pending", job.author)
        return self._layout.at_user(pending, "ZREM", pending, job.pending)

    def finish(self, status: int, uid: int, pending: str, version: str) -> Operation[bool]:
        """Cross a post off that was not pushed, if it is there and its readers find it."""
        [done] = yield [self._finishing(status, uid, pending, version)]
        if done == 0 and (yield from self._statuses.is_there(status)):
            [done] = yield [self._finishing(status, uid, pending, version, on_disk=True)]
        return bool(done == 1)

    def _finishing(
        self, status: int, uid: int, pending: str, version: str = "", *, on_disk: bool = False
    ) -> Command:
        layout = self._layout
        keys = [
            layout.near("pending", uid),
            layout.owned("status", status),
            layout.owned("user", uid),
        ]
        call = script("social/delivery/finish_post")
        arguments = (pending, version, int(on_disk))
        return script_call(layout.users, call, keys, arguments, idempotent=True)
