"""What an import reads: cities, ranges of addresses, and what could not be read."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from shardkit.geo.addresses import written_range


class City(NamedTuple):
    """A place.

    Attributes:
        city, region, country: names or codes, as the source has them; empty if it has none.
        id: the source's own id of it, if it has one.
    """

    city: str
    region: str
    country: str
    id: int | str | None = None


class IpRange(NamedTuple):
    """A range of addresses that are in one city.

    Attributes:
        first, last: places on the line of `shardkit.geo.addresses`, both inclusive.
        city: the city; or the id of one that came before it.
        line, source: where it was read, for messages.
    """

    first: int
    last: int
    city: City | int | str
    line: int = 0
    source: str = ""

    @classmethod
    def of(cls, first: str, last: str | None = None, *, city: City | int | str) -> IpRange:
        """Return a range that is given as text; see `shardkit.geo.addresses.written_range`.

        Raises:
            ValueError: it is no range.
        """
        return cls(*written_range(first, last), city)


class SkippedLine(NamedTuple):
    """A line that could not be used.

    Attributes:
        line: its number, from 1.
        reason: what is wrong with it.
        source: the file's name, or what else it is from.
    """

    line: int
    reason: str
    source: str = ""

    def __str__(self) -> str:
        where = f"{self.source}, line {self.line}" if self.source else f"line {self.line}"
        return f"{where}: {self.reason}"


Item: TypeAlias = City | IpRange | SkippedLine
