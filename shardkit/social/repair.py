"""Repairs what an interrupted process left half done, and what a server lost.

Every change that spans servers first records a note, in the script that begins it, and removes the
note at the end (the ZSET ``pending``, one in each part of the users and of the relations).
`finish` repeats the changes whose notes are older than some age; every step may be repeated.

`account` recounts an account's relations and makes its timeline agree with them. It is for
damage without a note: data that a server lost, or that was changed by hand.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardkit import log_records
from shardkit.operations.commands import Argument, Command, Partial, Replies, To
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation, pages
from shardkit.social.delivery import DELETE, DONE, POST, Delivery
from shardkit.social.keys import FOLLOWING, KINDS, LIST, USER, KeyLayout, RelationKind, is_id
from shardkit.social.models import MICRO, ReconcileResult, stored_ids
from shardkit.social.relations import READERS_FETCH, Relations, counters_of, remove_note
from shardkit.structures.base.arguments import LONGEST_WAIT, check_seconds
from shardkit.structures.base.damage import whole_or_0

logger = logging.getLogger("shardkit.social")

AT_ONCE = 1000
# After this many concurrent changes by others, posts are not recounted.
ROUNDS = 10
# The number of ids in a note after its kind. A later release may add further fields behind them,
# which are ignored, and further kinds, which are left to it.
_IDS_OF_NOTES: dict[str, int] = {**dict.fromkeys(KINDS, 2), "cross": 1, POST: 2, DELETE: 2}


class PendingNote(NamedTuple):
    """A note of an unfinished change."""

    text: str
    to: To  # the component or shard that has it
    key: str  # of its ZSET
    version: bytes  # its score


@dataclass(frozen=True)
class PendingRepair:
    """Finishes changes that left a note, and reconciles accounts with their relations."""

    layout: KeyLayout
    relations: Relations
    delivery: Delivery

    def notes(
        self, older_than: float, *, claim: bool
    ) -> Operation[tuple[list[PendingNote], Replies]]:
        """Return the notes older than an age in seconds, and all replies, for shards' failures.

        ``claim`` makes the notes new for others.
        """
        layout = self.layout
        check_seconds(layout.name, "older_than", older_than, -LONGEST_WAIT, LONGEST_WAIT)
        places: list[tuple[To, str]] = [
            (layout.users, layout.of_part("pending", part)) for part in range(layout.parts)
        ]
        places += [
            (layout.relations(part), layout.of_relations("pending", part))
            for part in range(layout.relation_parts)
        ]
        arguments: list[Argument] = [int(older_than * MICRO), AT_ONCE, int(claim), *_IDS_OF_NOTES]
        notes, every = [], Replies()
        for page in pages(places, AT_ONCE):
            replies = yield Partial(
                lua_call(to, "social/stale_notes", [key], arguments) for to, key in page
            )
            every += replies
            for (to, key), flat in zip(page, replies, strict=True):
                if type(flat) is not list:
                    continue
                for text, version in zip(flat[::2], flat[1::2], strict=True):
                    notes.append(PendingNote(text.decode(errors="replace"), to, key, version))
        return notes, every

    def finish(self, note: PendingNote) -> Operation[bool]:
        """Repeat a note's change; return False if only a later release knows its kind."""
        action, *numbers = note.text.split(":")
        wanted = _IDS_OF_NOTES.get(action, 0)
        ids = [int(number) for number in numbers[:wanted] if is_id(number.encode())]
        if not wanted or len(ids) < wanted:
            logger.warning(
                "%s: note %s in %s is left to a later release",
                self.layout.name,
                note.text,
                note.key,
                extra=log_records.fields("social-note-left", structure=self.layout.name),
            )
            return False
        if action in KINDS:
            yield from self.delivery.check(KINDS[action], ids[0], ids[1])
        elif action == "cross":
            yield from self.delivery.change_mode(ids[0])
        else:
            yield from self.delivery.finish_post(action, ids[0], ids[1], note.text)
        if len(numbers) > wanted:  # the change itself removes the note without further fields
            yield [remove_note(note.to, note.key, note.text, note.version)]
        return True

    def account(self, kind: RelationKind, id_: int) -> Operation[ReconcileResult | None]:
        """Reconcile one account; see `SocialNetwork.reconcile`."""
        layout = self.layout
        key = layout.owned(kind.account, id_)
        [exists] = yield [layout.at_user(key, "EXISTS", key)]
        if not exists:
            return None
        changes = yield from self._recount(kind, id_)
        posts = 0 if kind is LIST else (yield from self._recount_posts(id_))
        entries, strangers = yield from self._find_strangers(kind, id_)
        for uid in strangers:
            yield from self.delivery.check(kind, id_, uid)
        unmarked = yield from self._correct_marks(kind, id_)
        for uid in unmarked:
            yield from self.delivery.check(kind, id_, uid)
        positions: Sequence[Any] = ()
        while positions := (yield from self.delivery.fill(kind, id_, positions, always=True)):
            pass
        return ReconcileResult(
            changes.get(USER.incoming, 0),
            changes[FOLLOWING],
            entries,
            len({*strangers, *unmarked}),
            changes.get(LIST.incoming, 0),
            posts,
        )

    def _recount(self, kind: RelationKind, id_: int) -> Operation[dict[str, int]]:
        """Set the counters of relations to what the parts hold; return how much each changed."""
        layout, relations = self.layout, self.relations
        names = counters_of(kind)
        batch = []
        for part in range(layout.relation_parts):
            keys = [layout.relation(name, part, id_) for name in names]
            keys.insert(0, layout.of_relations("clock", part))
            batch.append(lua_call(layout.relations(part), "social/count_relations", keys))
        replies = yield batch
        recounted = yield [
            relations.recount(kind, name, id_, [(reply[0], reply[n]) for reply in replies])
            for n, name in enumerate(names, 1)
        ]
        # The counters are right now, so this decides whether posts are pushed or fetched.
        version, count = replies[0][:2]
        [reply] = yield [relations.record(kind, names[0], id_, 0, version, count)]
        counter = relations.state_of(reply)
        if counter is not None and counter.changed:
            yield from self.delivery.change_mode(id_)
        return {
            name: 0 if pair is None else pair[1] - whole_or_0(pair[0])
            for name, pair in zip(names, recounted, strict=True)
        }

    def _recount_posts(self, uid: int) -> Operation[int]:
        """Set the counter of posts to the number in the profile; return how much it changed.

        A profile that is or was as long as its limit does not have all posts, so it changes
        nothing. A post that is on its way is counted by its note.
        """
        layout, timelines = self.layout, self.delivery.timelines
        user, pending = layout.owned("user", uid), layout.near("pending", uid)
        profile = layout.profile(uid)
        end = f":{uid}".encode()
        for _ in range(ROUNDS):
            [posts, trimmed], notes = yield [
                layout.at_user(user, "HMGET", user, "posts", ":trimmed"),
                layout.at_user(pending, "ZRANGE", pending, 0, -1),
            ]
            [entries] = yield [layout.at_timeline(profile, "ZRANGE", profile, 0, -1)]
            before = whole_or_0(posts)
            if trimmed or max(before, len(entries)) >= timelines.profile_limit:
                return 0
            coming = {
                int(note.split(b":")[1])
                for note in notes
                if note.startswith(b"post:") and note.endswith(end)
            }
            authors = yield from self.delivery.statuses.authors(
                sorted({*stored_ids(layout.timelines, profile, entries), *coming})
            )
            count = authors.count(uid)
            arguments = ("posts", posts or b"", count)
            [done] = yield [lua_call(layout.users, "social/replace_counter", [user], arguments)]
            if done:
                return count - before
        return 0

    def _find_strangers(self, kind: RelationKind, id_: int) -> Operation[tuple[int, list[int]]]:
        """Remove entries without a status; return their number, and authors not followed."""
        layout, timelines = self.layout, self.delivery.timelines
        key, pulled = layout.timeline(kind, id_), layout.pulled(id_)
        ids, marked = yield [
            layout.at_timeline(key, "ZRANGE", key, 0, -1),
            layout.at_timeline(pulled, "ZRANGE", pulled, 0, -1),
        ]
        statuses = stored_ids(layout.timelines, key, ids)
        authors = yield from self.delivery.statuses.authors(statuses)
        removed = [status for status, uid in zip(statuses, authors, strict=True) if uid is None]
        yield from timelines.remove([key], removed)
        shown = {uid for uid in authors if uid is not None}
        shown.update(stored_ids(layout.timelines, pulled, marked))
        strangers: list[int] = []
        for page in pages(sorted(shown - {id_}), AT_ONCE):
            followed = yield from self.relations.exist(kind, [(id_, uid) for uid in page])
            strangers += [uid for uid, follows in zip(page, followed, strict=True) if not follows]
        return len(removed), strangers

    def _correct_marks(self, kind: RelationKind, id_: int) -> Operation[list[int]]:
        """Return followed accounts whose posts should be fetched and are not.

        Unmark accounts whose posts are both pushed and fetched, because a mark arrived late.
        """
        layout = self.layout
        missing: list[int] = []
        positions: Sequence[Any] = ()
        while True:
            followed, positions = yield from self.delivery.followed(id_, positions, AT_ONCE)
            batch: list[Command] = []
            pulled = layout.pulled(id_)
            for uid in followed:
                key = layout.owned("user", uid)
                batch.append(layout.at_user(key, "HMGET", key, ":mode", ":version"))
            if followed:
                batch.append(layout.at_timeline(pulled, "ZMSCORE", pulled, *followed))
                *modes, scores = yield batch
                for uid, (mode, version), score in zip(followed, modes, scores, strict=True):
                    fetched = mode is not None and mode.decode() in READERS_FETCH
                    if fetched and score is None:
                        missing.append(uid)
                    elif score is not None and not fetched and version is not None:
                        yield from self.delivery.timelines.unmark([pulled], uid, version)
            if all(position == DONE for position in positions):
                return missing
