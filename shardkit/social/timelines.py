"""Timelines: ZSETs of statuses by time, written many at once and read in pages.

A page of a home timeline merges the home itself and the profiles of the accounts in ``pull``, whose
posts are not written to each home. ``pull`` is read before the home and from the same server, so a
page misses nothing while an account changes from pushing to fetching (`relations`).

One script writes to all timelines of a server: 1,000 timelines over four servers take four commands
in one exchange.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from shardkit.errors import DamagedDataError
from shardkit.operations.arguments import shown
from shardkit.operations.commands import Argument, Batch, Command, Key, Locate, To
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Operation, pages, relocated
from shardkit.social.keys import KeyLayout, RelationKind, is_id
from shardkit.social.models import Status, TimelineCursor, TimelinePage, stored_ids
from shardkit.social.status_cache import Statuses
from shardkit.structures.base.damage import is_whole, stored_score
from shardkit.structures.base.members import Place, find
from shardkit.structures.sorted_set.merged_ranges import RangeCursor, range_over

T = TypeVar("T")
Row = tuple[bytes, float]

# On a cluster a script changes the timelines of one slot: often one.
CALLS_AT_ONCE = 1000  # scripts in an exchange
KEYS_AT_ONCE = 1000  # timelines in a script
ENTRIES_AT_ONCE = 500  # entries in a script
CHANGES_AT_ONCE = 10_000  # timelines times entries in a script
SLACK = 10  # a timeline may exceed its limit by a tenth before it is trimmed


class Timelines:
    """A network's timelines."""

    def __init__(
        self, layout: KeyLayout, statuses: Statuses, home_limit: int, profile_limit: int
    ) -> None:
        self._layout = layout
        self._statuses = statuses
        self.home_limit = home_limit
        self.profile_limit = profile_limit

    def add(self, keys: Sequence[Key], rows: Sequence[Row], limit: int) -> Operation[int]:
        """Add entries to timelines, which keep their newest; return how many were new."""
        added = 0
        most = limit + limit // SLACK
        for page in pages(rows, ENTRIES_AT_ONCE):
            flat = [part for member, score in page for part in (int(score), member)]
            added += yield from self._change(keys, len(page), "add", limit, most, *flat)
        return added

    def remove(self, keys: Sequence[Key], members: Iterable[Key]) -> Operation[int]:
        """Remove entries from timelines; return how many existed."""
        removed = 0
        for page in pages(members, ENTRIES_AT_ONCE):
            removed += yield from self._change(keys, len(page), "remove", "", "", *page)
        return removed

    def mark(self, keys: Sequence[Key], uid: int, version: Argument) -> Operation[int]:
        """Have readers fetch an account's posts; ``keys`` are their ``pull``."""
        return (yield from self._change(keys, 1, "mark", "", "", version, uid))

    def unmark(self, keys: Sequence[Key], uid: int, version: Argument) -> Operation[int]:
        """Undo `mark`, unless a later version marked the account."""
        return (yield from self._change(keys, 1, "unmark", "", "", version, uid))

    @relocated
    def _change(self, keys: Sequence[Key], entries: int, *args: Argument) -> Operation[int]:
        to, change = self._layout.timelines, "social/change_timelines"
        if len(keys) == 1:
            [done] = yield [lua_call(to, change, keys, args, idempotent=True)]
            return int(done)
        done = 0
        for page in pages(keys, CHANGES_AT_ONCE):
            places = yield Locate([(to, key) for key in page])
            groups: dict[Any, list[Key]] = {}
            for key, place in zip(page, places, strict=True):
                groups.setdefault(place, []).append(key)
            size = max(1, min(KEYS_AT_ONCE, CHANGES_AT_ONCE // entries))
            calls = [
                lua_call(to, change, page, args, idempotent=True)
                for group in groups.values()
                for page in pages(group, size)
            ]
            for batch in pages(calls, min(CALLS_AT_ONCE, CHANGES_AT_ONCE // entries)):
                done += sum((yield batch))
        return done

    def remove_author(
        self, kind: RelationKind, owner: int, uid: int, entries: Sequence[bytes]
    ) -> Operation[int]:
        """Remove an account's posts, and statuses that are gone, from a timeline's entries."""
        parts = self._layout.parts
        key = self._layout.timeline(kind, owner)
        ids = stored_ids(self._layout.timelines, key, entries)
        near = [id_ for id_ in ids if id_ % parts == uid % parts]
        authors = yield from self._statuses.authors(near)
        wrong = [id_ for id_, of in zip(near, authors, strict=True) if of is None or of == uid]
        return (yield from self.remove([key], wrong))

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
            yield from self._extend(builder, rows, ())
        yield from self.remove([key], builder.removed)
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
            if floor:  # older entries are cut off, even those of merged profiles
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
            yield from self._extend(builder, rows, set(left_out))
        yield from self.remove([key], builder.removed)
        return builder.page()

    def _range(
        self, keys: Sequence[str], limit: int, cursor: TimelineCursor | None, low: str = "-inf"
    ) -> Operation[list[Row]]:
        position = None if cursor is None else (cursor.id, cursor.time)
        places = [(self._layout.timelines, key) for key in keys]
        return newest_rows(places, limit, position, low)

    def _extend(
        self, builder: _PageBuilder, rows: Sequence[Row], hidden: Collection[int]
    ) -> Operation[None]:
        ids = [int(member) for member, _ in rows]
        skipped, wanted = ids[: builder.skip], ids[builder.skip :]
        authors, statuses = yield from self._statuses.read(skipped, wanted)
        builder.add(rows, authors, statuses, hidden)


def _prepend(batch: Batch, steps: Operation[T]) -> Operation[tuple[list[Any], T]]:
    """Run steps with a batch before their first one; return the batch's replies and the result."""
    replies = yield [*batch, *next(steps)]
    own, answer = replies[: len(batch)], replies[len(batch) :]
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as done:
            return own, done.value
        answer = yield step


class _PageBuilder:
    def __init__(self, number: int, limit: int, cursor: TimelineCursor | None) -> None:
        self.skip = (number - 1) * limit
        self.cursor = cursor
        self.removed: list[int] = []
        self._limit = limit
        self._statuses: list[Status] = []
        self._ended = False

    @property
    def wants(self) -> int:
        """The number of entries still to be read; 0 once the page is full."""
        missing = self._limit - len(self._statuses)
        return 0 if self._ended or not missing else self.skip + missing

    def add(
        self,
        rows: Sequence[Row],
        authors: Sequence[int | None],
        statuses: Sequence[Status | None],
        hidden: Collection[int],
    ) -> None:
        """Add the next entries: the authors of those to skip, the others in full."""
        self._ended = len(rows) < self.wants
        visible = [status for status in statuses if status and status.uid not in hidden]
        entries: list[Any] = [*authors, *statuses]
        self.removed += [
            int(member) for (member, _), entry in zip(rows, entries, strict=True) if entry is None
        ]
        self.skip -= sum(author is not None and author not in hidden for author in authors)
        self._statuses += visible[self.skip :]
        self.skip = max(0, self.skip - len(visible))
        if rows:
            member, score = rows[-1]
            self.cursor = TimelineCursor(int(score), int(member))

    def page(self) -> TimelinePage:
        page = TimelinePage(self._statuses)
        page.cursor = None if self._ended else self.cursor
        return page


def newest_rows(
    places: Sequence[Place], limit: int, cursor: RangeCursor | None, low: str = "-inf"
) -> Operation[list[Row]]:
    """Return the newest members of ZSETs of ids, with their times or versions; see `range_over`."""
    rows = yield from range_over(places, low, "+inf", limit, cursor, desc=True)
    for member, score in rows:
        if not is_id(member) or not is_whole(score):
            actual = f"{shown(member)} with a score of {score:g}"
            raise DamagedDataError(
                str(places[0][1]),
                actual,
                "an id with a time or version",
                search=partial(find, places, "ZSCORE", member),
            )
    return rows


def scored_members(to: To, key: str, flat: Sequence[Any]) -> list[Row]:
    """Return a flat reply of members and scores as pairs."""
    return [
        (member, stored_score(to, key, score))
        for member, score in zip(flat[::2], flat[1::2], strict=True)
    ]


def timeline_entries(flat: Sequence[Any]) -> list[Row]:
    """Return the valid entries of a timeline, so that damaged ones do not spread to others."""
    rows = [(member, float(score)) for member, score in zip(flat[::2], flat[1::2], strict=True)]
    return [row for row in rows if is_id(row[0]) and is_whole(row[1])]
