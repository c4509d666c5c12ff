"""Totals of records: counted in the process, added exactly once for each source.

::

    line, line, … ──► RecordTally: 10 million lines become 300 counts ──► flush: pages of 1,000
                                                                            │
    totals:{2015-05-17}:of:country  ZSET  Germany 1307, France 88, …    ◄───┤ a page and its number,
    totals:{2015-05-17}:done        HASH  ["","a.log"] → "3 3 9f2c…"    ◄───┘ in one script

Totals are grouped, for example by day; a group's keys share a hash tag, so they are on one server.
A source, such as a file, is divided into pages of increments in a fixed order. The script that adds
a page also records it, so a repeated flush continues after a crash at any step: nothing is added
twice, nothing is left out. This requires the same counts each time. Their digest is recorded with
the first page, and a repeat with other counts is refused.

After Redis in Action, section 6.6.1, whose totals overwrite those of the file before.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Hashable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from shardkit.errors import ParameterMismatchError
from shardkit.geo.block_store import LocalCities
from shardkit.geo.city_totals import AT_ONCE, KINDS, MOST_SHOWN, TotalsPlan, member_of
from shardkit.geo.readers import Address, City
from shardkit.operations.arguments import parse_json, shown
from shardkit.operations.commands import Argument, Command
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import (
    Cursor,
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Page,
    Stream,
    Structure,
    operation,
    stream,
)
from shardkit.structures.base.arguments import check_integer, check_prefix, check_tag, duration
from shardkit.structures.base.check import Damage, check_reads
from shardkit.structures.base.damage import MOST_STORED, damage, stored_text
from shardkit.structures.base.parameters import of_this_format

K = TypeVar("K", bound=Hashable)

# Added pages, how many there are, and their digest: see ``lua/totals_add.lua``.
_PROGRESS = re.compile(rb"(\d+) (\d+) [0-9a-fA-F]+")
_MOST_KNOWN = 100_000  # addresses whose cities are cached


class Total(NamedTuple):
    """A total that a record is counted in.

    Attributes:
        group: totals that are added together and live on one server, such as a day.
        kind: the kind of total, such as ``country``.
    """

    group: str
    kind: str
    member: str


class RecordTally(Generic[K]):
    """Counts records in this process.

    Args:
        key: returns the key that a record is counted by; None to skip it. Called for each record.
        totals: returns the totals of a key. Called once for each key.

    Attributes:
        counts: the number of records of each key.
        skipped: the number of records without a key.

    Not thread-safe: create one for each source.
    """

    def __init__(
        self, key: Callable[[Any], K | None], totals: Callable[[K], Iterable[Total]]
    ) -> None:
        self.counts: dict[K, int] = {}
        self.skipped = 0
        self._key = key
        self._totals = totals

    def add(self, records: Iterable[Any]) -> None:
        """Count records."""
        counts: dict[K | None, int] = self.counts  # type: ignore[assignment]  # None is removed
        get, key = counts.get, self._key
        for record in records:
            by = key(record)
            counts[by] = get(by, 0) + 1
        self.skipped += counts.pop(None, 0)

    def totals(self) -> dict[str, dict[tuple[str, str], int]]:
        """Return for each group the totals by kind and member."""
        groups: dict[str, dict[tuple[str, str], int]] = {}
        for key, count in self.counts.items():
            for group, kind, member in self._totals(key):
                counts = groups.setdefault(group, {})
                counts[kind, member] = counts.get((kind, member), 0) + count
        return groups


def by_place(
    cities: LocalCities, parse: Callable[[bytes], tuple[str, Address] | None]
) -> RecordTally[tuple[str, City]]:
    """Return a tally of log lines by day, and by country, region and city of the address.

    Args:
        cities: finds the cities: ``ip.local()``.
        parse: returns the day and the address of a line; None to skip the line.
    """
    find, known = cities.find, dict[Address, City | None]()

    def key(line: bytes) -> tuple[str, City] | None:
        parsed = parse(line)
        if parsed is None:
            return None
        day, address = parsed
        try:
            city = known[address]
        except KeyError:
            try:
                city = find(address)
            except ValueError:
                city = None
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known[address] = city
        return None if city is None else (day, city)

    def totals(key: tuple[str, City]) -> list[Total]:
        day, city = key
        return [Total(day, kind, member_of(kind, city)) for kind in KINDS]

    return RecordTally(key, totals)


class Totals(Structure[Face]):
    """Totals by group, which lives on the shard of its name. Made by ``kit.totals``."""

    deferred: DeferredFace[Totals[Deferred]]

    def __init__(self, driver: Driver, component: str, name: str = "totals") -> None:
        super().__init__(driver, component, check_prefix(name))

    @operation
    def flush(
        self, source: str, tally: RecordTally[Any], *, aggregator: str = ""
    ) -> Operation[bool]:
        """Add the counts of a source, once; return whether anything was added.

        Args:
            source: the name of what was counted, such as a file or a part of one.
            tally: all of its counts.
            aggregator: the name of the counting program; each adds a source once.

        Raises:
            ParameterMismatchError: other counts of this source were added, or started.
            ShardErrors: a server failed. Call it again until it returns.

        Cost: one exchange for 1,000 totals of each group, all groups at once.
        """
        field = json.dumps([aggregator, source], ensure_ascii=False, separators=(",", ":"))
        plans = {
            group: TotalsPlan(totals) for group, totals in sorted(tally.totals().items()) if totals
        }
        changed = False
        while plans:
            replies = yield [self._add(group, field, plan) for group, plan in plans.items()]
            for (group, plan), (added, new) in zip(list(plans.items()), replies, strict=True):
                if added < 0:
                    raise ParameterMismatchError(
                        f"{self.name}: other totals of {shown(source)} were added to "
                        f"{shown(group)}",
                        "give each source another name, and count it the same way each time",
                    )
                changed |= bool(new)
                plan.next = added
                if added >= len(plan.pages):
                    del plans[group]
        return changed

    @operation
    def top(self, group: str, kind: str, limit: int = 10) -> Operation[list[tuple[str, int]]]:
        """Return the members with the largest totals.

        Args:
            limit: the most members, 1 to 10,000.

        Cost: one exchange, O(log n + limit).
        """
        check_integer(self.name, "limit", limit, 1, MOST_SHOWN)
        key = self._of(group, kind)
        read = ("ZRANGE", key, 0, limit - 1, "REV", "WITHSCORES")
        [flat] = yield from self._read(group, self._at(key, *read))
        return self._pairs(key, flat)

    @operation
    def get(self, group: str, kind: str, *members: str) -> Operation[list[int]]:
        """Return the totals of members, 0 for unknown ones. Cost: one exchange, O(1) each."""
        if not members:
            return []
        key = self._of(group, kind)
        [scores] = yield from self._read(group, self._at(key, "ZMSCORE", key, *members))
        pairs = zip(members, scores, strict=True)
        return [self._total(key, member.encode(), score or b"0") for member, score in pairs]

    @stream
    def all(self, group: str, kind: str) -> Stream[tuple[str, int]]:
        """Iterate over all members and their totals, in no order. Cost: one exchange for 1,000.

        Members may come again if the server of the totals changes.
        """
        cursor = Cursor(self.component, self._of(group, kind))
        while (yield from cursor.more()):
            cursor.at, totals = yield from self._page(group, kind, cursor.at)
            yield Page(totals)

    def _page(
        self, group: str, kind: str, cursor: Argument
    ) -> Operation[tuple[Argument, list[tuple[str, int]]]]:
        key = self._of(group, kind)
        scan = ("ZSCAN", key, cursor, "COUNT", AT_ONCE)
        [(cursor, flat)] = yield from self._read(group, self._at(key, *scan))
        return cursor, self._pairs(key, flat)

    @stream
    def check(self, group: str, *kinds: str) -> Stream[Damage]:
        """Return a group's damage. Cost: one exchange for 1,000 totals, and one."""

        def read(kind: str) -> Operation[None]:
            cursor = Cursor(self.component, self._of(group, kind))
            while (yield from cursor.more()):
                cursor.at, _ = yield from self._page(group, kind, cursor.at)

        yield from check_reads(
            partial(Totals.sources.steps, self, group), *(partial(read, kind) for kind in kinds)
        )

    @operation
    def sources(self, group: str) -> Operation[dict[tuple[str, str], bool]]:
        """Return whether a group's sources were added completely. Cost: one exchange, O(n)."""
        key = self._key(group, "done")
        [flat] = yield from self._read(group, self._at(key, "HGETALL", key))
        sources = {}
        for field, progress in zip(flat[::2], flat[1::2], strict=True):
            if field[:1] != b"[":  # the format, and fields of later releases
                continue
            try:
                aggregator, source = parse_json(field)
                match = _PROGRESS.fullmatch(progress)
                if match is None or not 0 < int(match[1]) <= int(match[2]):
                    raise ValueError
                sources[str(aggregator), str(source)] = int(match[1]) == int(match[2])
            except (ValueError, TypeError):
                wrong = f"{shown(field)}={shown(progress)}"
                raise damage(self.component, key, wrong, "the added pages of a source") from None
        return sources

    @operation
    def expire(self, group: str, time: int | timedelta, *kinds: str) -> Operation[bool]:
        """Make a group's totals of some kinds expire, and the record of its sources.

        After that, a source that is added again is counted again. Cost: two exchanges.
        """
        after = duration(self.name, time)
        keys = [self._key(group, "done"), *(self._of(group, kind) for kind in kinds)]
        yield from self._read(group)
        return any((yield [self._at(key, "EXPIRE", key, after, idempotent=True) for key in keys]))

    def _read(self, group: str, *reads: Command) -> Operation[list[Any]]:
        return of_this_format(self.component, self._key(group, "done"), *reads)

    def _key(self, group: str, suffix: str) -> str:
        return f"{self.name}:{{{check_tag(self.name, 'group', group)}}}:{suffix}"

    def _of(self, group: str, kind: str) -> str:
        return self._key(group, f"of:{kind}")

    def _total(self, key: str, member: bytes, score: bytes) -> int:
        total = float(score)
        if not 0 <= total <= MOST_STORED:
            raise damage(self.component, key, f"{shown(member)}={total:g}", "a total")
        return int(total)

    def _pairs(self, key: str, flat: list[bytes]) -> list[tuple[str, int]]:
        return [
            (stored_text(self.component, key, member), self._total(key, member, score))
            for member, score in zip(flat[::2], flat[1::2], strict=True)
        ]

    def _add(self, group: str, field: str, plan: TotalsPlan) -> Command:
        keys = [self._key(group, "done"), *(self._of(group, kind) for kind in plan.kinds)]
        number, page = secrets.token_hex(8), plan.pages[plan.next]
        args = (field, plan.next, len(plan.pages), plan.digest, number, *page)
        return lua_call(self.component, "messaging/totals_add", keys, args, idempotent=True)
