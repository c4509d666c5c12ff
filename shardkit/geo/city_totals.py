"""Totals of log lines by day and country, region or city, added file by file, each file once.

The process that reads lines counts them (`LogTally`), and sends only totals, as increments: several
files may have lines of the same day. The script that adds a page of a file's totals also records
the page, so a failed add can safely be repeated, and continues.

All keys of a day share a hash tag, so they live on one server. docs/ip-to-city.md lists them.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import date, timedelta
from typing import Final

from shardkit.errors import InvalidArgumentError, ParameterMismatchError
from shardkit.geo.block_store import LocalCities
from shardkit.geo.readers import City
from shardkit.operations.arguments import checked, parse_json, shown
from shardkit.operations.commands import Argument
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import (
    Deferred,
    DeferredFace,
    Driver,
    Face,
    Operation,
    Stream,
    Structure,
    operation,
    pages,
    stream,
)
from shardkit.structures.base.arguments import check_integer, check_name, day_of, duration
from shardkit.structures.base.check import (
    Damage,
    Suspicion,
    Suspicions,
    confirmed,
    contents,
    lengths,
    read_or_note,
)
from shardkit.structures.base.damage import MOST_STORED, damage

KINDS: Final = ("country", "region", "city")
MOST_SHOWN: Final = 10_000
AT_ONCE: Final = 1000


class LogTally:
    """The number of lines of each day and city; ``cities`` finds these: ``ip.local()``.

    Attributes:
        counts: for each day, such as ``2015-05-17``, the number of lines of each city.
        unknown: the number of lines whose address has no city.
        skipped: the number of lines without a valid address or day.
    """

    @checked
    def __init__(self, cities: LocalCities) -> None:
        self.counts: dict[str, dict[City, int]] = {}
        self.unknown = 0
        self.skipped = 0
        self._find = cities.find

    def line(self, line: str | bytes) -> None:
        """Count a line; empty lines are ignored."""
        words = line.split(None, 2)
        if len(words) < 2:
            self.skipped += bool(words)
            return
        address, day = words[:2]
        if isinstance(day, bytes):
            day = day.decode("ascii", "replace")
        counts = self.counts.get(day)
        try:
            if counts is None and date.fromisoformat(day).isoformat() != day:
                raise ValueError(day)
            city = self._find(address)
        except (InvalidArgumentError, ValueError):
            self.skipped += 1
            return
        if city is None:
            self.unknown += 1
            return
        if counts is None:
            counts = self.counts[day] = {}
        counts[city] = counts.get(city, 0) + 1

    def lines(self, lines: Iterable[str] | Iterable[bytes]) -> None:
        """Count many lines, such as those of an open file."""
        count = self.line
        for line in lines:
            count(line)


class TotalsPlan:
    """The pages of totals by kind and member: always the same for the same totals."""

    def __init__(self, totals: Mapping[tuple[str, str], int]) -> None:
        ordered = sorted(totals.items())
        self.kinds = sorted({kind for (kind, _), _ in ordered})
        numbers = {kind: n for n, kind in enumerate(self.kinds, 1)}
        self.pages: list[list[Argument]] = []
        for page in pages(ordered, AT_ONCE):
            flat: list[Argument] = []
            for (kind, member), count in page:
                flat += [numbers[kind], count, member]
            self.pages.append(flat)
        self.digest = hashlib.sha1(repr(ordered).encode(), usedforsecurity=False).hexdigest()[:16]
        self.next = 0


class CityTotals(Structure[Face]):
    """Totals by day and place. Made by ``kit.city_totals``."""

    deferred: DeferredFace[CityTotals[Deferred]]

    def __init__(self, driver: Driver, component: str, name: str = "daily") -> None:
        check_name(name)
        super().__init__(driver, component, name)

    @operation
    def add(self, file: str, tally: LogTally) -> Operation[bool]:
        """Add the counts of a file, unless they were added before; return whether anything was.

        ``file`` identifies the file, such as its name. ``tally`` has all its counts: each day of a
        file is added only once.

        More than 1,000 totals of a day are added in steps: `top` has some of them before all.

        Raises:
            InvalidArgumentError: the file has no name.
            ParameterMismatchError: part of other counts of this file was added.
            ShardErrors: a shard failed; some totals were added. Call it again: it continues.

        Cost: one exchange for every 1,000 totals of each day, one for each day that was added.
        """
        if not isinstance(file, str) or not file:
            raise InvalidArgumentError(f"{self.name}: file={shown(file)}", "give its name")
        added = 0
        for day in sorted(tally.counts):
            totals: Counter[tuple[str, str]] = Counter()
            for city, count in tally.counts[day].items():
                for kind in KINDS:
                    totals[kind, member_of(kind, city)] += count
            plan = TotalsPlan(totals)
            keys = [self._key(prefix, day) for prefix in ("done", "adding", *plan.kinds)]
            while 0 <= plan.next < len(plan.pages):
                args = (file, plan.next, len(plan.pages), plan.digest, *plan.pages[plan.next])
                [plan.next] = yield [lua_call(self.component, "geo/add_totals", keys, args)]
            if plan.next == -2:
                raise ParameterMismatchError(
                    f"{self.name}: part of other totals of {shown(file)} was added to {day}",
                    "give each file another name, and count it the same way each time",
                )
            added += plan.next > 0
        return added > 0

    @operation
    def top(self, kind: str, day: date | str, limit: int = 10) -> Operation[list[tuple[City, int]]]:
        """Return the places with the most lines on a day, and the number of their lines.

        ``kind`` is country, region or city; a place's other names are empty. ``day`` is a date, or
        its ISO form. Cost: one exchange.
        """
        if kind not in KINDS:
            raise InvalidArgumentError(
                f"{self.name}: kind={shown(kind)}", f"give {', '.join(KINDS)}"
            )
        check_integer(self.name, "limit", limit, 1, MOST_SHOWN)
        key = self._key(kind, self._day(day))
        command = ("ZRANGE", key, 0, limit - 1, "REV", "WITHSCORES")
        [flat] = yield [self._at(key, *command)]
        places = []
        for member, score in zip(flat[::2], flat[1::2], strict=True):
            place, total = _place(kind, member), float(score)
            if place is None:
                raise damage(self.component, key, shown(member), f"a {kind}")
            if not 1 <= total <= MOST_STORED:
                raise damage(self.component, key, f"{shown(member)}={total:g}", "a total")
            places.append((place, int(total)))
        return places

    @operation
    def expire(self, day: date | str, time: int | timedelta) -> Operation[bool]:
        """Make a day's totals expire; return whether any existed.

        Use it when all files of the day are done: a file that is added again is counted again.

        Cost: one exchange.
        """
        after = duration(self.name, time)
        keys = [self._key(kind, self._day(day)) for kind in (*KINDS, "done", "adding")]
        replies = yield [self._at(key, "EXPIRE", key, after, idempotent=True) for key in keys]
        return any(replies)

    @stream
    def check(self, day: date | str) -> Stream[Damage]:
        """Read a day's totals, and return their damage; changes nothing.

        Finds keys of another type, impossible places and totals, different sums of countries,
        regions and cities, and totals without a record of their files.

        Cost: two exchanges; more for each 5,000 places. All places are in memory.
        """
        yield from confirmed(self._check, self._day(day))

    def _check(self, day: str) -> Operation[Suspicions]:
        repair, loses = "delete the day's keys, and add all its files again", "files that are gone"
        notes: Suspicions = []
        keys = [self._key(kind, day) for kind in KINDS]
        read = yield from contents(self.component, "ZSET", keys, notes, repair, loses)
        done = self._key("done", day)
        [files] = yield from lengths(self.component, "SET", [done], notes, repair, loses)
        adding = self._key("adding", day)
        read_adding = [self._at(adding, "HGETALL", adding)]
        [flat] = yield from read_or_note(read_adding, notes, repair, loses)
        if flat:
            actual = f"{shown(flat[0])}={shown(flat[1])}"
            error = damage(self.component, adding, actual, "whole files")
            notes.append(Suspicion(error, "add the file again: that continues"))

        def note(key: str, actual: str, expected: str) -> None:
            error = damage(self.component, key, actual, expected)
            notes.append(Suspicion(error, repair, loses))

        sums = {}
        for kind, key, entries in zip(KINDS, keys, read, strict=True):
            for member, total in entries:
                if _place(kind, member) is None:
                    note(key, shown(member), f"a {kind}")
                    break
                if not 1 <= total <= MOST_STORED or total != int(total):
                    note(key, f"{shown(member)}={total}", "a total")
                    break
            sums[key] = sum(total for _, total in entries)
        most = max(sums.values())
        for key, total in sums.items() if not notes else ():
            if total < most:
                note(key, f"{total:.0f} in all", f"{most:.0f}")
        if not notes and any(read) and not files:
            note(done, "no files", "those that were added")
        return notes

    def _key(self, prefix: str, day: str) -> str:
        return f"{self.name}:{prefix}:{{{day}}}"

    def _day(self, day: date | str) -> str:
        if isinstance(day, str):
            with suppress(ValueError):
                day = date.fromisoformat(day)
        return day_of(self.name, day).isoformat()  # type: ignore[arg-type]  # refuses text


def member_of(kind: str, city: City) -> str:
    """Return the text that stands for a place of a kind among others."""
    if kind == "country":
        return city.country
    names = city[1:3] if kind == "region" else city[:3]
    return json.dumps(names, ensure_ascii=False, separators=(",", ":"))


def _place(kind: str, member: bytes) -> City | None:
    try:
        if kind == "country":
            return City("", "", member.decode())
        names = parse_json(member)
        if len(names) == KINDS.index(kind) + 1 and all(isinstance(part, str) for part in names):
            return City(*["", *names][-3:])
    except (ValueError, TypeError):
        pass
    return None
