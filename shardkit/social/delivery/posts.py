"""Posts: written, put into the author's profile, and on their way to the readers; and deleted.

::

    post     1  the status, its id, the count, a note that it is on its way      one script
             2  the author's profile
             3  followers' timelines, pass by pass, or nothing if readers fetch
             4  the note is crossed off
    delete   1  the status goes, the count, a note                               one script
             2  the profile
             3  followers' timelines, pass by pass
             4  the note is crossed off
"""

from __future__ import annotations

from collections.abc import Mapping

from shardkit.operations.operation import Operation
from shardkit.social.base.keys import KeyLayout
from shardkit.social.base.models import MICRO, Extra
from shardkit.social.content.statuses import Statuses, deletion_note, post_note
from shardkit.social.content.timelines import Timelines
from shardkit.social.delivery.background import BackgroundJobs
from shardkit.social.delivery.fan_out import FanOut
from shardkit.social.delivery.fan_out_job import DELETE, POST, FanOutJob
from shardkit.social.relations.delivery_mode import FETCHED


class Posts:
    """The steps of posts.

    Args:
        layout: where the keys are.
        statuses: what is posted.
        timelines: where it is read.
        syndication: crosses posts off.
        work: brings them to readers.
    """

    def __init__(
        self,
        layout: KeyLayout,
        statuses: Statuses,
        timelines: Timelines,
        fan_out: FanOut,
        background: BackgroundJobs,
    ) -> None:
        self._layout = layout
        self._statuses = statuses
        self._timelines = timelines
        self._fan_out = fan_out
        self._background = background

    def post(self, uid: int, message: str, extras: Mapping[str, Extra]) -> Operation[int | None]:
        """Post a status; see `SocialNetwork.post`."""
        created = yield from self._statuses.create(uid, message, extras)
        if created is None:
            return None
        fetched = created.version if created.mode == FETCHED else None
        yield from self._publish(created.id, uid, created.time, fetched)
        return created.id

    def _publish(self, status: int, uid: int, time: int, fetched: str | None) -> Operation[None]:
        """Put a status into its author's profile and before its readers.

        Args:
            status: the status.
            uid: its author.
            time: when it was posted.
            fetched: the version of the mode, if readers fetch it.
        """
        timelines = self._timelines
        yield from self._statuses.keep(status)
        entry = (b"%d" % status, float(time))
        yield from timelines.add([self._layout.profile(uid)], [entry], timelines.profile_limit)
        pending = post_note(status, uid)
        # If that says no, it was deleted, or the mode has changed: the job finds out.
        if fetched is not None and (yield from self._fan_out.finish(status, uid, pending, fetched)):
            return
        yield from self._background.begin(self._job(POST, status, uid, pending, time))

    def delete(self, uid: int, status: int) -> Operation[bool | None]:
        """Delete a status; see `SocialNetwork.delete_status`."""
        if not (yield from self._statuses.delete(uid, status)):
            return None
        yield from self._withdraw(status, uid, deletion_note(status, uid))
        return True

    def _withdraw(self, status: int, uid: int, pending: str) -> Operation[None]:
        yield from self._statuses.forget(status)
        yield from self._timelines.remove([self._layout.profile(uid)], [status])
        yield from self._background.begin(self._job(DELETE, status, uid, pending, 0))

    def resume(self, what: str, status: int, uid: int, pending: str) -> Operation[None]:
        """Do again what a note says that was not ended."""
        [found] = yield from self._statuses.get([status])
        if what == POST and found is not None:
            yield from self._publish(status, uid, round(found.posted * MICRO), None)
        else:
            yield from self._withdraw(status, uid, pending)

    def _job(self, what: str, status: int, uid: int, pending: str, time: int) -> FanOutJob:
        shards = self._layout.relation_shards
        return FanOutJob.begin(what, uid, shards, pending, subject=status, time=time)
