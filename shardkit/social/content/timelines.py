"""Timelines: ZSETs of statuses by time, written many at once and read in pages.

::

    profile:{social:4113}   ZSET  status -> time     what 4113 has posted
    home:{social:4113}      ZSET  status -> time     what those have posted whom 4113 follows
    list:{social:8210}      ZSET  status -> time     likewise for a list
    pull:{social:4113}      ZSET  account -> version accounts that are followed by so many that
                                                     their posts are not written to each home

A page of a home is merged when it is read: of the home itself and the profiles of those accounts
that are in ``pull``. These are read before the home, and on its server, so that a page misses
nothing while an account changes from the one way to the other (`shardkit.social.delivery.fan_out`).

Writing to many timelines takes one script for all that live on one server: of 1,000 timelines over
four servers that is four commands in one exchange.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from shardkit.lua import script
from shardkit.operations.alongside import alongside
from shardkit.operations.commands import Argument, Command, Key, Locate, script_call
from shardkit.operations.operation import Operation, pages
from shardkit.social.base.keys import KeyLayout, RelationKind
from shardkit.social.base.models import Status, TimelineCursor, TimelinePage
from shardkit.social.content.statuses import Statuses
from shardkit.structures.sorted_set.merged_ranges import range_over

# Scripts of an exchange, timelines that one changes, entries that it takes, and both together. On a
# cluster a script changes the timelines of one slot: often one.
CALLS_AT_ONCE = 1000
KEYS_AT_ONCE = 1000
ENTRIES_AT_ONCE = 500
CHANGES_AT_ONCE = 10_000
# How far a timeline may grow before it is cut to its limit again.
SLACK = 10  # a tenth

Row = tuple[bytes, float]


class Timelines:
    """The steps of a network's timelines.

    Args:
        layout: where the keys are.
        statuses: what is in them.
        home_limit: how many entries a home or list timeline keeps.
        profile_limit: how many a profile keeps.
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

        Cost: one exchange for 10,000 entries in all; a script a server for 1,000 timelines.
        """
        added = 0
        most = limit + limit // SLACK
        for page in pages(rows, ENTRIES_AT_ONCE):
            flat = [part for member, score in page for part in (int(score), member)]
            added += yield from self._each(keys, len(page), "add", limit, most, *flat)
        return added

    def remove(self, keys: Sequence[Key], members: Iterable[Key]) -> Operation[int]:
        """Remove entries from timelines; return how many were there. Cost: as `add`."""
        removed = 0
        for page in pages(members, ENTRIES_AT_ONCE):
            removed += yield from self._each(keys, len(page), "remove", "", "", *page)
        return removed

    def mark(self, keys: Sequence[Key], uid: int, version: Argument) -> Operation[int]:
        """Have the readers with these keys fetch an account's posts. Cost: as `add`."""
        return (yield from self._each(keys, 1, "mark", "", "", version, uid))

    def unmark(self, keys: Sequence[Key], uid: int, version: Argument) -> Operation[int]:
        """Have them not do so any more, unless that was said later. Cost: as `add`."""
        return (yield from self._each(keys, 1, "unmark", "", "", version, uid))

    def _each(self, keys: Sequence[Key], entries: int, *args: Argument) -> Operation[int]:
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
                script_call(to, fan_out, together, args, idempotent=True)
                for group in groups.values()
                for together in pages(group, size)
            ]
            for batch in pages(calls, min(CALLS_AT_ONCE, CHANGES_AT_ONCE // entries)):
                done += sum((yield batch))
        return done

    # ---- what follows from a relation

    def newest(self, key: str, count: int) -> Command:
        """Return the command that reads a timeline's newest entries."""
        return self._layout.at_timeline(key, "ZRANGE", key, 0, count - 1, "REV", "WITHSCORES")

    def drop(
        self, kind: RelationKind, owner: int, uid: int, entries: Sequence[bytes]
    ) -> Operation[int]:
        """Remove what an account has posted from a timeline, and what is no status any more.

        Args:
            kind: whose timeline it is.
            owner: the user or list.
            uid: the account.
            entries: what is in the timeline.

        Cost: two exchanges, if any of the entries can be the account's: its id says so.
        """
        parts = self._layout.parts
        own = [int(entry) for entry in entries if int(entry) % parts == uid % parts]
        authors = yield from self._statuses.authors(own)
        gone = [
            entry
            for entry, author in zip(own, authors, strict=True)
            if author is None or author == uid
        ]
        return (yield from self.remove([self._layout.timeline(kind, owner)], gone))

    # ---- reading

    def profile(
        self, uid: int, number: int, count: int, before: TimelineCursor | None
    ) -> Operation[TimelinePage]:
        """Return a page of a profile."""
        key = self._layout.profile(uid)
        reading = _PageBuilder(number, count, before)
        while reading.wants:
            steps = self._range([key], reading.wants, reading.cursor)
            rows = yield from steps
            yield from self._show(reading, rows, ())
        yield from self.remove([key], reading.gone)
        return reading.page()

    def home(
        self,
        kind: RelationKind,
        owner: int,
        number: int,
        count: int,
        before: TimelineCursor | None,
        muted: Command | None,
    ) -> Operation[TimelinePage]:
        """Return a page of a home or list timeline; ``muted`` reads whose posts are left out."""
        key, pulled = self._layout.timeline(kind, owner), self._layout.pulled(owner)
        limit = self.home_limit
        others = [
            self._layout.at_timeline(pulled, "ZRANGE", pulled, 0, -1),
            self._layout.at_timeline(key, "ZRANGE", key, limit - 1, limit - 1, "REV", "WITHSCORES"),
            *([muted] if muted else []),
        ]
        reading = _PageBuilder(number, count, before)
        while reading.wants:
            wants, cursor = reading.wants, reading.cursor
            replies, rows = yield from alongside(others, self._range([key], wants, cursor))
            accounts, floor, hidden = replies[0], replies[1], replies[2] if muted else ()
            if floor:  # what lies below is cut off, of all that are merged
                lowest = (float(floor[1]), floor[0])
                rows = [row for row in rows if (row[1], row[0]) >= lowest]
            if accounts:
                profiles = [self._layout.profile(int(account)) for account in accounts]
                low = floor[1].decode() if floor else "-inf"
                fetched = yield from self._range(profiles, wants, cursor, low)
                rows = sorted({*rows, *fetched}, key=_newest, reverse=True)[:wants]
            yield from self._show(reading, rows, set(map(int, hidden)))
        yield from self.remove([key], reading.gone)
        return reading.page()

    def _range(
        self, keys: Sequence[str], count: int, before: TimelineCursor | None, low: str = "-inf"
    ) -> Operation[list[Row]]:
        cursor = None if before is None else (before.id, before.time)
        places = [(self._layout.timelines, key) for key in keys]
        return range_over(places, low, "+inf", count, cursor, desc=True)

    def _show(
        self, reading: _PageBuilder, rows: Sequence[Row], hidden: Collection[int]
    ) -> Operation[None]:
        ids = [int(member) for member, _ in rows]
        passed, wanted = ids[: reading.skip], ids[reading.skip :]
        authors, statuses = yield from self._statuses.look(passed, wanted)
        reading.take_in(rows, authors, statuses, hidden)


def _newest(row: Row) -> tuple[float, bytes]:
    return row[1], row[0]


class _PageBuilder:
    """A page while it is read: what it has, what it still wants, and from where on. Pure."""

    def __init__(self, number: int, count: int, before: TimelineCursor | None) -> None:
        self.skip = (number - 1) * count
        self.cursor = before
        self.gone: list[int] = []
        self._count = count
        self._found: list[Status] = []
        self._ended = False

    @property
    def wants(self) -> int:
        """How many entries have still to be looked at; none once the page is full."""
        missing = self._count - len(self._found)
        return 0 if self._ended or not missing else self.skip + missing

    def take_in(
        self,
        rows: Sequence[Row],
        authors: Sequence[int | None],
        statuses: Sequence[Status | None],
        hidden: Collection[int],
    ) -> None:
        """Take in the next entries: the authors of those to pass over, the others in full."""
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
