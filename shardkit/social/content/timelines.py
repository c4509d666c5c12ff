"""Timelines: ZSETs of statuses by time, written many at once and read in pages.

::

    profile:{social:4113}   ZSET  status -> time     4113's own posts
    home:{social:4113}      ZSET  status -> time     posts of those whom 4113 follows
    list:{social:8210}      ZSET  status -> time     the same for a list
    pull:{social:4113}      ZSET  account -> version followed accounts that have so many followers
                                                     that their posts are not written to each home

A page of a home timeline merges, on reading, the home itself and the profiles of the accounts in
``pull``. Those are read before the home and from its server, so that a page misses nothing while an
account changes from pushing to fetching (`shardkit.social.delivery.fan_out`).

Writing to many timelines takes one script for all that live on one server: 1,000 timelines over
four servers are four commands in one exchange.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeVar

from shardkit.operations.arguments import shown
from shardkit.operations.commands import Argument, Batch, Command, Key, Locate, To, script_call
from shardkit.operations.lua import script
from shardkit.operations.operation import Operation, pages
from shardkit.social.base.keys import KeyLayout, RelationKind
from shardkit.social.base.models import Status, TimelineCursor, TimelinePage, is_id, stored_ids
from shardkit.social.content.statuses import Statuses
from shardkit.structures.base.damage import damage, is_whole, stored_score
from shardkit.structures.sorted_set.merged_ranges import range_over

T = TypeVar("T")
Row = tuple[bytes, float]

# The most scripts of an exchange, timelines that one changes, entries that it takes, and timelines
# times entries. On a cluster a script changes the timelines of one slot: often one.
CALLS_AT_ONCE = 1000
KEYS_AT_ONCE = 1000
ENTRIES_AT_ONCE = 500
CHANGES_AT_ONCE = 10_000
# How far a timeline may exceed its limit before it is trimmed.
SLACK = 10  # a tenth


class Timelines:
    """A network's timelines.

    Args:
        layout: the network's keys.
        statuses: the statuses in them.
        home_limit: entries that a home or list timeline keeps.
        profile_limit: entries that a profile keeps.
    """

    def __init__(
        self, layout: KeyLayout, statuses: Statuses, home_limit: int, profile_limit: int
    ) -> None:
        self._layout = layout
        self._statuses = statuses
        self.home_limit = home_limit
        self.profile_limit = profile_limit

    # ---- writing

    def add(self, keys: Sequence[Key], rows: Sequence[Row], limit: int) -> Operation[int]:
        """Add entries to timelines, which keep their newest; return how many were new.

        Cost: one exchange for 10,000 entries in all; a script for each server and 1,000 timelines.
        """
        added = 0
        most = limit + limit // SLACK
        for page in pages(rows, ENTRIES_AT_ONCE):
            flat = [part for member, score in page for part in (int(score), member)]
            added += yield from self._change(keys, len(page), "add", limit, most, *flat)
        return added

    def remove(self, keys: Sequence[Key], members: Iterable[Key]) -> Operation[int]:
        """Remove entries from timelines; return how many existed. Cost: as `add`."""
        removed = 0
        for page in pages(members, ENTRIES_AT_ONCE):
            removed += yield from self._change(keys, len(page), "remove", "", "", *page)
        return removed

    def mark(self, keys: Sequence[Key], uid: int, version: Argument) -> Operation[int]:
        """Have readers, by the keys of their ``pull``, fetch an account's posts. Cost: as `add`."""
        return (yield from self._change(keys, 1, "mark", "", "", version, uid))

    def unmark(self, keys: Sequence[Key], uid: int, version: Argument) -> Operation[int]:
        """Have readers no longer fetch them, unless marked later than that. Cost: as `add`."""
        return (yield from self._change(keys, 1, "unmark", "", "", version, uid))

    def _change(self, keys: Sequence[Key], entries: int, *args: Argument) -> Operation[int]:
        to, fan_out = self._layout.timelines, script("social/content/fan_out")
        if len(keys) == 1:
            [done] = yield [script_call(to, fan_out, keys, args, idempotent=True)]
            return int(done)
        done = 0
        for page in pages(keys, CHANGES_AT_ONCE):
            places = yield Locate([(to, key) for key in page])
            groups: dict[Any, list[Key]] = {}
            for key, place in zip(page, places, strict=True):
                groups.setdefault(place, []).append(key)
            size = max(1, min(KEYS_AT_ONCE, CHANGES_AT_ONCE // entries))
            calls = [
                script_call(to, fan_out, some, args, idempotent=True)
                for group in groups.values()
                for some in pages(group, size)
            ]
            for batch in pages(calls, min(CALLS_AT_ONCE, CHANGES_AT_ONCE // entries)):
                done += sum((yield batch))
        return done

    def remove_author(
        self, kind: RelationKind, owner: int, uid: int, entries: Sequence[bytes]
    ) -> Operation[int]:
        """Remove an account's posts, and statuses that no longer exist, from a timeline.

        Args:
            kind: the kind of its owner.
            owner: the user or list.
            uid: the account.
            entries: the timeline's entries.

        Cost: two exchanges, if any entry's id says that it can be the account's.
        """
        parts = self._layout.parts
        key = self._layout.timeline(kind, owner)
        ids = stored_ids(self._layout.timelines, key, entries)
        own = [each for each in ids if each % parts == uid % parts]
        authors = yield from self._statuses.authors(own)
        gone = [
            entry
            for entry, author in zip(own, authors, strict=True)
            if author is None or author == uid
        ]
        return (yield from self.remove([self._layout.timeline(kind, owner)], gone))

    # ---- reading

    def newest(self, key: str, limit: int) -> Command:
        """Return the command that reads a timeline's newest entries with their times."""
        return self._layout.at_timeline(key, "ZRANGE", key, 0, limit - 1, "REV", "WITHSCORES")

    def profile(
        self, uid: int, number: int, limit: int, cursor: TimelineCursor | None
    ) -> Operation[TimelinePage]:
        """Return a page of a profile."""
        key = self._layout.profile(uid)
        builder = _PageBuilder(number, limit, cursor)
        while builder.wants:
            rows = yield from self._range([key], builder.wants, builder.cursor)
            yield from self._extend(key, builder, rows, ())
        yield from self.remove([key], builder.gone)
        return builder.page()

    def home(
        self,
        kind: RelationKind,
        owner: int,
        number: int,
        limit: int,
        cursor: TimelineCursor | None,
        muted: Command | None,
    ) -> Operation[TimelinePage]:
        """Return a page of a home or list timeline; ``muted`` reads whose posts to leave out."""
        key, pulled = self._layout.timeline(kind, owner), self._layout.pulled(owner)
        last = self.home_limit - 1
        first_reads = [
            self._layout.at_timeline(pulled, "ZRANGE", pulled, 0, -1),
            self._layout.at_timeline(key, "ZRANGE", key, last, last, "REV", "WITHSCORES"),
            *([muted] if muted else []),
        ]
        builder = _PageBuilder(number, limit, cursor)
        while builder.wants:
            wants, after = builder.wants, builder.cursor
            replies, rows = yield from _prepend(first_reads, self._range([key], wants, after))
            accounts, floor, hidden = replies[0], replies[1], replies[2] if muted else ()
            if floor:  # what is older is cut off, also of the profiles that are merged
                lowest = (float(floor[1]), floor[0])
                rows = [row for row in rows if (row[1], row[0]) >= lowest]
            if accounts:
                followed = stored_ids(self._layout.timelines, pulled, accounts)
                profiles = list(map(self._layout.profile, followed))
                low = floor[1].decode() if floor else "-inf"
                fetched = yield from self._range(profiles, wants, after, low)
                merged = sorted({*rows, *fetched}, key=lambda row: (row[1], row[0]), reverse=True)
                rows = merged[:wants]
            left_out = stored_ids(self._layout.users, str(muted.key), hidden) if muted else ()
            yield from self._extend(key, builder, rows, set(left_out))
        yield from self.remove([key], builder.gone)
        return builder.page()

    def _range(
        self, keys: Sequence[str], limit: int, cursor: TimelineCursor | None, low: str = "-inf"
    ) -> Operation[list[Row]]:
        position = None if cursor is None else (cursor.id, cursor.time)
        places = [(self._layout.timelines, key) for key in keys]
        return range_over(places, low, "+inf", limit, position, desc=True)

    def _extend(
        self, key: str, builder: _PageBuilder, rows: Sequence[Row], hidden: Collection[int]
    ) -> Operation[None]:
        ids = []
        for member, score in rows:
            stored_score(self._layout.timelines, key, score)
            if not member.isdigit() or len(member) > 16:
                found = f"an entry {shown(member)}"
                raise damage(self._layout.timelines, key, found, "ids of statuses")
            ids.append(int(member))
        skipped, wanted = ids[: builder.skip], ids[builder.skip :]
        authors, statuses = yield from self._statuses.read(skipped, wanted)
        builder.add(rows, authors, statuses, hidden)


def _prepend(batch: Batch, steps: Operation[T]) -> Operation[tuple[list[Any], T]]:
    """Run steps, with a batch before their first one; return its replies, and their result."""
    replies = yield [*batch, *next(steps)]
    own, answer = replies[: len(batch)], replies[len(batch) :]
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as done:
            return own, done.value
        answer = yield step


class _PageBuilder:
    """A page in the making: what it has, how much it wants, and from where on."""

    def __init__(self, number: int, limit: int, cursor: TimelineCursor | None) -> None:
        self.skip = (number - 1) * limit
        self.cursor = cursor
        self.gone: list[int] = []
        self._limit = limit
        self._found: list[Status] = []
        self._ended = False

    @property
    def wants(self) -> int:
        """The number of entries still to be read; 0 once the page is full."""
        missing = self._limit - len(self._found)
        return 0 if self._ended or not missing else self.skip + missing

    def add(
        self,
        rows: Sequence[Row],
        authors: Sequence[int | None],
        statuses: Sequence[Status | None],
        hidden: Collection[int],
    ) -> None:
        """Add the next entries: authors of those to skip, the others in full."""
        self._ended = len(rows) < self.wants
        shown = sum(author is not None and author not in hidden for author in authors)
        visible = [status for status in statuses if status and status.uid not in hidden]
        found: list[Any] = [*authors, *statuses]
        self.gone += [
            int(member) for (member, _), what in zip(rows, found, strict=True) if what is None
        ]
        self.skip -= shown
        self._found += visible[self.skip :]
        self.skip = max(0, self.skip - len(visible))
        if rows:
            member, score = rows[-1]
            self.cursor = TimelineCursor(int(score), int(member))

    def page(self) -> TimelinePage:
        """Return the page."""
        page = TimelinePage(self._found)
        page.cursor = None if self._ended else self.cursor
        return page


def scored_members(to: To, key: str, flat: Sequence[Any]) -> list[Row]:
    """Return a flat reply of members and scores as pairs.

    Raises:
        DamagedDataError: a score is no time and no version.
    """
    return [
        (member, stored_score(to, key, score))
        for member, score in zip(flat[::2], flat[1::2], strict=True)
    ]


def timeline_entries(flat: Sequence[Any]) -> list[Row]:
    """Return the entries of a timeline; without what is none, which `check` names.

    So it does not get into others.
    """
    rows = [(member, float(score)) for member, score in zip(flat[::2], flat[1::2], strict=True)]
    return [row for row in rows if is_id(row[0]) and is_whole(row[1])]
