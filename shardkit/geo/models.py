"""The items of an import: cities, address ranges, and skipped lines."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from shardkit.geo.addresses import parse_range


class City(NamedTuple):
    """A place.

    Attributes:
        city, region, country: names or codes, as in the source; empty if it has none.
        id: the source's own id of the city, if it has one.
    """

    city: str
    region: str
    country: str
    id: int | str | None = None


class IpRange(NamedTuple):
    """A range of addresses in one city.

    Attributes:
        first, last: address numbers (see `shardkit.geo.addresses`), both inclusive.
        city: the city, or the id of a city that came before.
        line, source: where it was read, for messages.
    """

    first: int
    last: int
    city: City | int | str
    line: int = 0
    source: str = ""

    @classmethod
    def of(cls, first: str, last: str | None = None, *, city: City | int | str) -> IpRange:
        """Return a range from text; see `shardkit.geo.addresses.parse_range`.

        Raises:
            ValueError: it is not a range.
        """
        return cls(*parse_range(first, last), city)


class SkippedLine(NamedTuple):
    """A line that could not be used.

    Attributes:
        line: its number, from 1.
        reason: what is wrong with it.
        source: the name of the file, or of another source.
    """

    line: int
    reason: str
    source: str = ""

    def __str__(self) -> str:
        where = f"{self.source}, line {self.line}" if self.source else f"line {self.line}"
        return f"{where}: {self.reason}"


Item: TypeAlias = City | IpRange | SkippedLine
