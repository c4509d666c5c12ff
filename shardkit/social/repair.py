"""Repairs what an interrupted process left half done, and what a server lost.

Every change that spans servers first records a note, in the script that begins it, and removes the
note when it is done (the ZSET ``pending``, one in each part of the users and of the relations).
`PendingRepair` finds notes older than some age and repeats what they stand for; every step may be
repeated.

`Reconciler` checks one account: it recounts its relations and makes its timeline agree with whom it
follows. It is for damage without a note: data that a server lost, or that was changed by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from shardkit.lua import script
from shardkit.operations.commands import Command, To, script_call
from shardkit.operations.operation import Operation, pages
from shardkit.social.base.keys import FOLLOWING, KINDS, LIST, USER, KeyLayout, RelationKind
from shardkit.social.content.statuses import Statuses
from shardkit.social.content.timelines import Timelines
from shardkit.social.delivery.backfill import Backfill
from shardkit.social.delivery.background import BackgroundJobs
from shardkit.social.delivery.posts import Posts
from shardkit.social.follows import Follows
from shardkit.social.relations.counters import Counters
from shardkit.social.relations.delivery_mode import READ
from shardkit.social.relations.relations import Relations

AT_ONCE = 1000
FOLLOWED_AT_ONCE = 1000
MICRO = 1_000_000


class PendingRepair:
    """Does again what was noted and not ended.

    Args:
        layout: where the keys are.
        posting: posts and deletions.
        following: relations.
        work: changes between pushing and fetching.
    """

    def __init__(
        self, layout: KeyLayout, posts: Posts, following: Follows, background: BackgroundJobs
    ) -> None:
        self._layout = layout
        self._posts = posts
        self._follows = following
        self._background = background

    def all(self, older_than: float, *, take: bool) -> Operation[list[str]]:
        """Return what has been pending for so many seconds; ``take`` keeps others from it."""
        layout = self._layout
        places: list[tuple[To, str]] = [
            (layout.users, layout.of_part("pending", part)) for part in range(layout.parts)
        ]
        places += [
            (layout.relations(part), layout.of_relations("pending", part))
            for part in range(layout.relation_shards)
        ]
        arguments = (int(older_than * MICRO), AT_ONCE, int(take))
        found: list[str] = []
        for page in pages(places, AT_ONCE):
            call = script("social/stale")
            replies = yield [script_call(to, call, [key], arguments) for to, key in page]
            found += [member.decode() for members in replies for member in members]
        return found

    def one(self, note: str) -> Operation[None]:
        """Do again what a note stands for."""
        what, *numbers = note.split(":")
        ids = [int(number) for number in numbers]
        if what in KINDS:
            yield from self._follows.check(KINDS[what], ids[0], ids[1])
        elif what == "cross":
            yield from self._background.start_mode_change(ids[0])
        else:
            yield from self._posts.resume(what, ids[0], ids[1], note)


class ReconcileResult(NamedTuple):
    """What did not agree, and was mended.

    Attributes:
        followers: by how much the counter was changed.
        following: likewise.
        entries: how many entries of the timeline were no statuses any more.
        accounts: of how many accounts posts were missing or too many in the timeline.
    """

    followers: int
    following: int
    entries: int
    accounts: int


class Reconciler:
    """Has what is kept of one account agree with its relations.

    Args:
        layout: where the keys are.
        counters: its counters.
        statuses: what its timeline holds.
        timelines: its timeline.
        relations: whom it follows.
        following: mends what does not agree.
        refill: brings back what is missing.
        work: changes between pushing and fetching.
    """

    def __init__(
        self,
        layout: KeyLayout,
        counters: Counters,
        statuses: Statuses,
        timelines: Timelines,
        relations: Relations,
        following: Follows,
        backfill: Backfill,
        background: BackgroundJobs,
    ) -> None:
        self._layout = layout
        self._counters = counters
        self._statuses = statuses
        self._timelines = timelines
        self._relations = relations
        self._follows = following
        self._backfill = backfill
        self._background = background

    def account(self, kind: RelationKind, id_: int) -> Operation[ReconcileResult | None]:
        """Reconcile one account; see `SocialNetwork.reconcile`."""
        layout = self._layout
        key = layout.owned(kind.account, id_)
        [flat] = yield [layout.at_user(key, "HGETALL", key)]
        if not flat:
            return None
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        yield from self._recount(kind, id_, fields)
        entries, strangers = yield from self._strangers(kind, id_)
        for uid in strangers:
            yield from self._follows.check(kind, id_, uid)
        unmarked = yield from self._marks(kind, id_)
        for uid in unmarked:
            yield from self._follows.check(kind, id_, uid)
        yield from self._fill(kind, id_)
        [now] = yield [layout.at_user(key, "HMGET", key, "followers", "following")]
        followers, following = (
            int(total or 0) - int(fields.get(name, 0))
            for total, name in zip(now, (b"followers", b"following"), strict=True)
        )
        return ReconcileResult(followers, following, entries, len({*strangers, *unmarked}))

    def _recount(self, kind: RelationKind, id_: int, fields: dict[bytes, bytes]) -> Operation[None]:
        """Count the relations of all parts anew."""
        layout, counters = self._layout, self._counters
        whats = [FOLLOWING] if kind is LIST else [USER.incoming, FOLLOWING, LIST.incoming]
        cards = script("social/cards")
        replies = yield [
            script_call(
                layout.relations(part),
                cards,
                [
                    layout.of_relations("clock", part),
                    *(layout.relation(what, part, id_) for what in whats),
                ],
            )
            for part in range(layout.relation_shards)
        ]
        known = {what: counters.known_parts(fields, what) for what in whats}
        batch = [
            counters.take_in(kind, what, id_, part, version, count)
            for part, (version, *counts) in enumerate(replies)
            for what, count in zip(whats, counts, strict=True)
            if count or part in known[what]
        ]
        changed = False
        for page in pages(batch, AT_ONCE):
            for reply in (yield page):
                counted = counters.counted(reply)
                changed = changed or (counted is not None and counted.changed)
        if changed:
            yield from self._background.start_mode_change(id_)

    def _strangers(self, kind: RelationKind, id_: int) -> Operation[tuple[int, list[int]]]:
        """Remove entries that are no statuses, and return the authors who are not followed."""
        layout, timelines = self._layout, self._timelines
        key, pulled = layout.timeline(kind, id_), layout.pulled(id_)
        ids, marked = yield [
            layout.at_timeline(key, "ZRANGE", key, 0, -1),
            layout.at_timeline(pulled, "ZRANGE", pulled, 0, -1),
        ]
        statuses = [int(each) for each in ids]
        authors = yield from self._statuses.authors(statuses)
        gone = [status for status, uid in zip(statuses, authors, strict=True) if uid is None]
        yield from timelines.remove([key], gone)
        found = {uid for uid in authors if uid is not None} | set(map(int, marked))
        strangers: list[int] = []
        for page in pages(sorted(found - {id_}), AT_ONCE):
            held = yield from self._relations.holds(kind, [(id_, uid) for uid in page])
            strangers += [uid for uid, holds in zip(page, held, strict=True) if not holds]
        return len(gone), strangers

    def _marks(self, kind: RelationKind, id_: int) -> Operation[list[int]]:
        """Return followed accounts whose posts are to be fetched, and are not.

        Those whose posts are pushed, and are fetched all the same, are no longer: a mark that came
        late was left.
        """
        layout = self._layout
        missing: list[int] = []
        places: Sequence[Any] = ()
        while True:
            followed, places = yield from self._backfill.followed(id_, places, FOLLOWED_AT_ONCE)
            batch: list[Command] = []
            pulled = layout.pulled(id_)
            for uid in followed:
                key = layout.owned("user", uid)
                batch.append(layout.at_user(key, "HMGET", key, ":mode", ":version"))
            if followed:
                batch.append(layout.at_timeline(pulled, "ZMSCORE", pulled, *followed))
                *modes, scores = yield batch
                for uid, (mode, version), score in zip(followed, modes, scores, strict=True):
                    fetched = mode is not None and mode.decode() in READ
                    if fetched and score is None:
                        missing.append(uid)
                    elif score is not None and not fetched and version is not None:
                        yield from self._timelines.unmark([pulled], uid, version)
            if all(place == 0 for place in places):
                return missing

    def _fill(self, kind: RelationKind, id_: int) -> Operation[None]:
        places: Sequence[Any] = ()
        while True:
            places = yield from self._backfill.step(kind, id_, places, always=True)
            if not places:
                return
