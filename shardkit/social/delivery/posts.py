"""Posts: stored, put into the author's profile, and delivered to the readers; and deleted.

::

    post     1  the status, its id, the count, a note that it is on its way      one script
             2  the author's profile
             3  followers' timelines, pass by pass, or nothing if readers fetch
             4  the note is removed
    delete   1  the status goes, the count, a note                               one script
             2  the profile
             3  followers' timelines, pass by pass, or nothing if readers fetch
             4  the note is removed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardkit.errors import ShardKitError
from shardkit.operations.operation import Operation
from shardkit.social.base.keys import KeyLayout
from shardkit.social.base.models import MICRO, Extra
from shardkit.social.content.statuses import DeletedStatus, Statuses, deletion_note, post_note
from shardkit.social.content.timelines import Timelines
from shardkit.social.delivery.fan_out import FanOut
from shardkit.social.delivery.fan_out_job import DELETE, POST, FanOutJob
from shardkit.social.delivery.resumable_jobs import ResumableJobs
from shardkit.social.relations.delivery_mode import FETCHED


@dataclass(frozen=True)
class Posts:
    """A network's posts.

    Args:
        layout: the network's keys.
        statuses: stores them.
        timelines: has the authors' profiles.
        fan_out: finishes posts that readers fetch.
        jobs: delivers all others.
    """

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
        [found] = yield from self.statuses.get([status])
        if action == POST and found is not None:
            yield from self._deliver(status, uid, round(found.posted * MICRO), None)
        else:
            yield from self._withdraw(status, uid, note)

    def _deliver(self, status: int, uid: int, time: int, fetched: str | None) -> Operation[None]:
        """Put a status into its author's profile and before its readers.

        Args:
            status: the status.
            uid: its author.
            time: when it was posted.
            fetched: the version of the mode, if readers fetch it.
        """
        timelines, note = self.timelines, post_note(status, uid)
        yield from self.statuses.persist(status)
        entry = (b"%d" % status, float(time))
        yield from timelines.add([self.layout.profile(uid)], [entry], timelines.profile_limit)
        # If it cannot be finished, it was deleted or the mode has changed: the job finds out.
        if fetched is None or not (yield from self.fan_out.finish(status, uid, note, fetched)):
            yield from self.jobs.begin(self._job(POST, status, uid, note, time))

    def _withdraw(
        self, status: int, uid: int, note: str, *, everywhere: bool = True
    ) -> Operation[None]:
        """Take a deleted status off its author's profile, and off the readers' timelines."""
        yield from self.statuses.remove_from_disk(status)
        yield from self.timelines.remove([self.layout.profile(uid)], [status])
        if not everywhere:
            pending = self.layout.near("pending", uid)
            yield [self.layout.at_user(pending, "ZREM", pending, note)]
            return
        yield from self.jobs.begin(self._job(DELETE, status, uid, note, 0))

    def _job(self, action: str, status: int, uid: int, note: str, time: int) -> FanOutJob:
        shards = self.layout.relation_shards
        return FanOutJob.begin(action, uid, shards, note, subject=status, time=time)
