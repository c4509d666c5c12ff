"""Counts log lines by day and city in this process, for `shardkit.geo.city_totals`.

::

    192.0.2.7 2015-05-17 10:05:03 7
    └ address └ day, ISO └ time   └ action (and the rest of the line are ignored)

A million lines of a day become one count for each city. A tally is not thread-safe: create one for
each file.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from shardkit.errors import InvalidArgumentError
from shardkit.geo.local_copy import LocalCities
from shardkit.geo.models import City


class LogTally:
    """The number of lines of each day and city.

    Args:
        cities: finds the cities: ``ip.local()``.

    Attributes:
        counts: for each day, such as ``2015-05-17``, the number of lines of each city.
        unknown: the number of lines whose address has no city.
        skipped: the number of lines without a valid address or day.
    """

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
        if counts is None and not _is_day(day):
            self.skipped += 1
            return
        try:
            city = self._find(address)
        except InvalidArgumentError:
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


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
