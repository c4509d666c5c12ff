"""Readers: turn published files into the items of an import.

Each is a lazy iterator of `City`, `IpRange` and `SkippedLine`. Several can be chained
(``itertools.chain``), cities before the ranges that refer to them. An unusable line, such as a
heading, becomes a `SkippedLine`.

A file is a path (read as gzip if it ends in ``.gz``), an open file, or an iterable of lines, text
or bytes. A byte-order mark is ignored.
"""

from __future__ import annotations

import csv
import gzip
import heapq
import json
import pickle
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from itertools import chain
from operator import itemgetter
from os import PathLike, fspath
from socket import AF_INET, AF_INET6, inet_pton
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias, cast

from shardkit.config.entry import open_regular
from shardkit.errors import InvalidArgumentError, StructureError, counted, extra
from shardkit.operations.arguments import (
    accepts,
    check_integer,
    checked_function,
    is_text,
    parse_json,
    shown,
)
from shardkit.operations.operation import pages

Address: TypeAlias = str | bytes | IPv4Address | IPv6Address

IPV4: Final = 2**32
IPV6: Final = 2**128
_FIRST_MAPPED: Final = 0xFFFF << 32


def address_number(address: Address) -> int:
    """Return an address as a number."""
    try:  # nearly all addresses are IPv4 text
        return int.from_bytes(inet_pton(AF_INET, address), "big")  # type: ignore[arg-type]
    except (OSError, ValueError, TypeError):
        pass
    try:
        if isinstance(address, IPv4Address | IPv6Address):
            packed = address.packed
        else:
            spelled = address.decode("ascii") if isinstance(address, bytes) else address
            packed = inet_pton(AF_INET6 if ":" in spelled else AF_INET, spelled)
        number = int.from_bytes(packed, "big")
        return number if len(packed) == 4 else _ipv6_number(number)
    except (OSError, ValueError, TypeError):
        raise InvalidArgumentError(
            f"{shown(address)} is not an IP address", "give text such as 192.0.2.7 or 2001:db8::7"
        ) from None


def parse_range(first: str, last: str | None = None) -> tuple[int, int]:
    """Return the first and the last address number of a range, as files write it.

    An address is IPv4, IPv6 or one decimal number, both in the same notation. Without ``last``, the
    first is a network such as ``192.0.2.0/24``, of any prefix length, whose host bits are ignored.
    """
    address, slash, prefix = first.partition("/")
    if slash:
        if last:
            raise ValueError(f"the network {shown(first)} needs no last address")
        start, end = _network(address, prefix)
    elif not last:
        raise ValueError(f"{shown(first)} has no last address")
    elif _is_number(first) and _is_number(last):
        start, end = int(first), int(last)
        if max(start, end) >= IPV6:
            raise ValueError(f"{shown(first)} to {shown(last)} is beyond all addresses")
        if max(start, end) >= IPV4:
            start, end = _ipv6_number(start), _ipv6_number(end)
    else:
        start, end = _parse_address(first), _parse_address(last)
    if (start < IPV4) != (end < IPV4):
        raise ValueError("one end is an IPv4 address, and the other is not")
    if end < start:
        raise ValueError(f"{shown(first)} to {shown(last)} ends before it begins")
    return start, end


def _network(address: str, prefix: str) -> tuple[int, int]:
    try:
        packed = inet_pton(AF_INET6 if ":" in address else AF_INET, address)
    except (OSError, ValueError):
        raise ValueError(f"{shown(address)} is not an IP address") from None
    bits = 8 * len(packed)
    if not _is_number(prefix) or len(prefix) > 3 or int(prefix) > bits:
        raise ValueError(f"the prefix length {shown(prefix)} is not 0 to {bits}")
    hosts = 2 ** (bits - int(prefix)) - 1
    start = int.from_bytes(packed, "big") & ~hosts
    if bits == 32:
        return start, start + hosts
    return _ipv6_number(start), _ipv6_number(start + hosts)


def _parse_address(address: str) -> int:
    try:
        return address_number(address)
    except InvalidArgumentError as error:
        raise ValueError(error.message) from None


def _ipv6_number(number: int) -> int:
    """Return the number on the shared line of an address that has this number in IPv6."""
    mapped = number - _FIRST_MAPPED
    return mapped if 0 <= mapped < IPV4 else IPV6 + number


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 40


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
        first, last: address numbers (see `shardkit.geo.readers`), both inclusive.
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
        """Return a range from text; see `shardkit.geo.readers.parse_range`.

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


File: TypeAlias = "str | PathLike[str] | Iterable[str] | Iterable[bytes]"
CsvColumn: TypeAlias = int | str

LONGEST_LINE: Final = 2**20  # bytes; limits the memory for a file without line breaks
_BLANKS: Final = " \t"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class Lines:
    """The numbered lines of a file, without a byte-order mark and line ends.

    Bytes that are invalid in the encoding become lone surrogates; the reader of such a line skips
    it with a reason.
    """

    def __init__(self, file: File, encoding: str) -> None:
        if not isinstance(file, str | PathLike) and not accepts(Iterable, file):
            raise InvalidArgumentError(f"file={shown(file)}", "give a path, an open file or lines")
        try:
            b"\0\0\0\0".decode(encoding, "surrogateescape")
        except (LookupError, TypeError, ValueError):
            raise InvalidArgumentError(
                f"encoding={shown(encoding)}", "give one of Python's text encodings"
            ) from None
        self._file = file
        self._encoding = encoding
        named = file if isinstance(file, str | PathLike) else getattr(file, "name", "")
        # For messages.
        self.source = fspath(named) if isinstance(named, str | PathLike) else ""

    def __iter__(self) -> Iterator[tuple[int, str]]:
        if not isinstance(self._file, str | PathLike):
            yield from self._numbered(self._file)
            return
        path = fspath(self._file)
        with open_regular(path) as raw:
            file = gzip.GzipFile(fileobj=raw) if path.endswith(".gz") else raw
            yield from self._numbered(iter(partial(file.readline, LONGEST_LINE), b""))

    def _numbered(self, lines: Iterable[str | bytes]) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(lines, 1):
            text = (
                line.decode(self._encoding, "surrogateescape") if isinstance(line, bytes) else line
            )
            if not isinstance(text, str):
                raise InvalidArgumentError(
                    f"line {number} of file= is {shown(line)}", "give lines of text or bytes"
                )
            if number == 1:
                text = text.removeprefix("\ufeff")
            yield number, text.rstrip("\r\n")


class Rows:
    """The wanted cells of a file's lines (empty for None), or the reason why a line is skipped."""

    def __init__(
        self, file: File, wanted: Sequence[CsvColumn | None], delimiter: str, encoding: str
    ) -> None:
        if not is_text(delimiter) or len(delimiter) != 1:
            raise InvalidArgumentError(f"delimiter={shown(delimiter)}", "give one character")
        for column in wanted:
            if not accepts(str | None, column):
                check_integer("columns", "column", cast("int", column), 0, 100_000)
        self._lines = Lines(file, encoding)
        self._wanted = wanted
        self._delimiter = delimiter
        self.source = self._lines.source

    def __iter__(self) -> Iterator[tuple[int, list[str] | str]]:
        names = {column for column in self._wanted if isinstance(column, str)}
        positions = None if names else [c for c in self._wanted if not isinstance(c, str)]
        needed = 0
        for line, text in self._lines:
            if not text.strip():
                continue
            try:
                cells = self._split(text)
            except csv.Error as error:
                yield line, str(error)
                continue
            if positions is None:
                if names <= set(cells):
                    positions = [cells.index(c) if isinstance(c, str) else c for c in self._wanted]
                before = f"comes before a heading with {', '.join(sorted(names))}"
                yield line, "is the heading" if positions else before
                continue
            if not needed:
                needed = 1 + max(position for position in positions if position is not None)
            if len(cells) < needed:
                yield line, f"has {len(cells)} columns, not {needed}"
            elif not text.isascii() and _SURROGATE.search(text):
                yield line, "is not encoded as it should be"
            else:
                yield line, ["" if n is None else cells[n].strip(_BLANKS) for n in positions]

    def _split(self, text: str) -> list[str]:
        # Line by line, so that a stray quotation mark does not swallow the following lines.
        if '"' not in text:
            return text.split(self._delimiter)
        return next(csv.reader([text], delimiter=self._delimiter))


_METADATA: Final = b"\xab\xcd\xefMaxMind.com"  # begins the last section of a .mmdb
_SEPARATOR: Final = 16  # bytes between the search tree and the records of a .mmdb
NOT_A_CITY: Final = "names no city, region or country"


def csv_ranges(
    file: File,
    *,
    first: CsvColumn = 0,
    last: CsvColumn | None = 1,
    id: CsvColumn | Sequence[CsvColumn] | None = None,  # noqa: A002 - what it is
    city: CsvColumn | None = None,
    region: CsvColumn | None = None,
    country: CsvColumn | None = None,
    delimiter: str = ",",
    encoding: str = "utf-8",
) -> Iterator[Item]:
    """Read ranges from lines with columns.

    Args:
        file: see the module.
        first: the column of the first address: its number from 0, or its name in the heading (the
            first line that has all the names). An address is written as IPv4, as IPv6 or as one
            decimal number; or it is a network such as ``192.0.2.0/24``.
        last: the column of the last address; None if all ranges are networks.
        id: the column of the id of a city that was read before; of several columns, the first that
            is not empty.
        city: the column of the city's name, if names are in the same line; ``id`` is then the id of
            that city.
        region, country: the columns of these names.
        delimiter: the character between columns.
        encoding: the encoding of bytes.

    Raises:
        InvalidArgumentError: no column identifies the city.
        OSError: the file cannot be read.
    """
    names = (city, region, country)
    ids: Sequence[CsvColumn] = () if id is None else id if isinstance(id, list | tuple) else (id,)
    named = any(column is not None for column in names)
    if not ids and not named:
        raise InvalidArgumentError(
            "a range's city has no column", "set id=, or city=, region= and country="
        )
    wanted = [first, last, *names, *ids]
    return _csv_ranges(Rows(file, wanted, delimiter, encoding), named)


def _csv_ranges(rows: Rows, named: bool) -> Iterator[Item]:
    for line, cells in rows:
        if isinstance(cells, str):
            yield SkippedLine(line, cells, rows.source)
            continue
        start, end, city, region, country, *ids = cells
        id_ = next((source_id(cell) for cell in ids if cell), None)
        try:
            if named:
                place: City | int | str = City(city, region, country, id_)
                if not (city or region or country):
                    raise ValueError(NOT_A_CITY)
            elif id_ is None:
                raise ValueError("has no id of a city")
            else:
                place = id_
            yield IpRange(*parse_range(start, end), place, line, rows.source)
        except ValueError as error:
            yield SkippedLine(line, str(error), rows.source)


def csv_cities(
    file: File,
    *,
    id: CsvColumn = 0,  # noqa: A002 - what it is
    city: CsvColumn | None = None,
    region: CsvColumn | None = None,
    country: CsvColumn | None = None,
    delimiter: str = ",",
    encoding: str = "utf-8",
) -> Iterator[Item]:
    """Read cities, which ranges then refer to by their ids, from lines with columns.

    For the columns see `csv_ranges`. If they are given by numbers, a first line whose id is a word
    is the heading if the second line's id is a number.

    Raises:
        OSError: the file cannot be read.
    """
    rows = Rows(file, [id, city, region, country], delimiter, encoding)
    for line, cells in _without_heading(rows):
        if isinstance(cells, str):
            yield SkippedLine(line, cells, rows.source)
        elif not cells[0]:
            yield SkippedLine(line, "has no id", rows.source)
        else:
            yield City(cells[1], cells[2], cells[3], source_id(cells[0]))


def _without_heading(rows: Rows) -> Iterator[tuple[int, list[str] | str]]:
    """Yield rows; a first one whose id is a word, while the next one's is a number, is skipped."""
    first: tuple[int, list[str]] | None = None
    seen = False
    for line, cells in rows:
        if not seen and not isinstance(cells, str):
            seen = True
            if not cells[0].isdecimal():
                first = line, cells
                continue
        elif first is not None and not isinstance(cells, str):
            yield (first[0], "is the heading") if cells[0].isdecimal() else first
            first = None
        yield line, cells
    if first is not None:
        yield first


def geolite2(*blocks: File, locations: File) -> Iterator[Item]:
    """Read MaxMind's GeoLite2 City or GeoIP2 City as CSV.

    ``blocks`` are ``GeoLite2-City-Blocks-IPv4.csv`` and ``…-IPv6.csv``, or one of them;
    ``locations`` is ``GeoLite2-City-Locations-en.csv``, or that of another language. A network
    without a city is located where it is registered: often only the country is known.
    """
    cities = csv_cities(
        locations,
        id="geoname_id",
        city="city_name",
        region="subdivision_1_name",
        country="country_name",
    )
    ids = ("geoname_id", "registered_country_geoname_id")
    ranges = (csv_ranges(file, first="network", last=None, id=ids) for file in blocks)
    return chain(cities, chain.from_iterable(ranges))


def geolite_legacy(blocks: File, locations: File) -> Iterator[Item]:
    """Read the older GeoLiteCity as CSV: with numbers for addresses, codes for places, Latin 1.

    ``blocks`` is ``GeoLiteCity-Blocks.csv``, ``locations`` ``GeoLiteCity-Location.csv``.
    """
    cities = csv_cities(
        locations, id="locId", city="city", region="region", country="country", encoding="latin-1"
    )
    ranges = csv_ranges(blocks, first="startIpNum", last="endIpNum", id="locId", encoding="latin-1")
    return chain(cities, ranges)


def jsonl(file: File, *, names: Mapping[str, str] | None = None) -> Iterator[Item]:
    """Read one object per line.

    ``{"network": "192.0.2.0/24", "city": "Bonn", "region": "NW", "country": "DE"}`` and
    ``{"first": "192.0.2.0", "last": "192.0.2.63", "id": 7}`` are ranges,
    ``{"id": 7, "city": "Bonn", "region": "NW", "country": "DE"}`` is a city.

    ``names`` has the file's names for these: ``{"country": "country_code"}``.

    Raises:
        InvalidArgumentError: ``names`` has an unknown name.
        OSError: the file cannot be read.
    """
    usual = ("first", "last", "network", "id", "city", "region", "country")
    if not accepts(Mapping[str, str] | None, names):
        raise InvalidArgumentError(f"names={shown(names)}", "give a mapping of names to names")
    if unknown := (names or {}).keys() - set(usual):
        raise InvalidArgumentError(
            f"names={shown(dict(names or {}))}: there is no {', '.join(sorted(unknown))}",
            f"give names for {', '.join(usual)}",
        )
    return _jsonl(file, [(names or {}).get(name, name) for name in usual])


def _jsonl(file: File, names: Sequence[str]) -> Iterator[Item]:
    lines = Lines(file, "utf-8")
    for line, text in lines:
        if not text.strip():
            continue
        try:
            record = parse_json(text)
            if not isinstance(record, dict):
                raise ValueError("is not an object")
            yield _from_object([record.get(name) for name in names], line, lines.source)
        except ValueError as error:
            yield SkippedLine(line, _reason(error), lines.source)


def _from_object(values: Sequence[Any], line: int, source: str) -> Item:
    first, last, network, id_, *places = values
    if id_ is not None and (isinstance(id_, bool) or not isinstance(id_, int | str)):
        raise ValueError(f"the id {shown(id_)} is neither text nor an integer")
    if isinstance(id_, str):
        id_ = source_id(id_) if id_ else None
    for place in places:
        if not (place is None or isinstance(place, str)):
            raise ValueError(f"{shown(place)} is not the name of a place")
        if place is not None:
            place.encode()  # a lone surrogate cannot be stored
    named = any(places)
    names = [place or "" for place in places]
    city: City | int | str | None = City(names[0], names[1], names[2], id_) if named else id_
    if city is None:
        raise ValueError(NOT_A_CITY)
    if first is None and last is None and network is None:
        if not isinstance(city, City):
            raise ValueError("has neither a network nor names")
        return city
    if network is not None and (first is not None or last is not None):
        raise ValueError("has a network, and first or last too")
    if network is not None:
        return IpRange(*parse_range(_address(network)), city, line, source)
    return IpRange(*parse_range(_address(first), _address(last)), city, line, source)


def _address(value: object) -> str:
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    raise ValueError(f"{shown(value)} is not an IP address")


@checked_function
def mmdb(path: str | PathLike[str], *, language: str = "en") -> Iterator[Item]:
    """Read a MaxMind database file, such as ``GeoLite2-City.mmdb``.

    ``language`` is that of the names; English for places without a name in it.

    Raises:
        InvalidArgumentError: the file is not such a database, or the extra ``geo`` is not
            installed.
        OSError: the file cannot be read.
    """
    with extra("geo", "MaxMind databases"):
        from maxminddb import decoder, reader
    source = fspath(path)
    try:
        with open_regular(source) as file:  # not mapped: a truncated file would end the process
            data = file.read()
        start = data.rfind(_METADATA) + len(_METADATA)
        if start < len(_METADATA):
            raise ValueError("it has no metadata")
        about: Any = reader.Metadata(**decoder.Decoder(data, start).decode(start)[0])  # type: ignore[arg-type]
        decode = lru_cache(64)(decoder.Decoder(data, about.search_tree_size + _SEPARATOR).decode)
        for turn, (network, offset) in enumerate(_networks(data, about), 1):
            record, _ = decode(offset)
            try:
                city = _from_record(record, language)
                yield IpRange(*parse_range(str(network)), city, turn, source)
            except ValueError as error:
                yield SkippedLine(turn, f"{network}: {error}", source)
    except OSError:
        raise
    except Exception as error:  # whatever bytes of any kind do to a decoder
        raise InvalidArgumentError(
            f"{source} is not a MaxMind database: {error}", "give a .mmdb file with cities"
        ) from error


def _networks(data: bytes, about: Any) -> Iterator[tuple[IPv4Network | IPv6Network, int]]:
    """Yield the networks of a database, and where their records are.

    maxminddb's own iterators trust the file: of a damaged one they read what is not theirs, or
    never end. Here each node is read once.
    """
    count, width, size = about.node_count, about.record_size, about.record_size // 4
    bits = {4: 32, 6: 128}[about.ip_version]
    seen = bytearray(len(data) // size)

    def node_at(number: int) -> tuple[int, int]:
        node = int.from_bytes(data[number * size : (number + 1) * size])
        right = node & ((1 << width) - 1)
        if width == 28:  # the higher bits of both are between the lower ones
            return node >> 32 | (node >> 4 & 0xF000000), right
        return node >> width, right

    of_ipv4 = 0  # where other networks lead to, too: those of tunnels
    for _ in range(bits - 32):
        of_ipv4 = node_at(of_ipv4)[0] if of_ipv4 < count else of_ipv4
    waiting = [(0, 0, 0)]
    while waiting:
        number, first, length = waiting.pop()
        if number > count:
            is_ipv4 = length >= bits - 32 and first >> (length + 32 - bits) == 0
            address = first << (bits - length)
            if is_ipv4:
                yield IPv4Network((address, length + 32 - bits)), number - count + size * count
            else:
                yield IPv6Network((address, length)), number - count + size * count
        elif number < count and not (first and number == of_ipv4):
            if seen[number] or length == bits:
                raise ValueError("its search tree has a loop")
            seen[number] = True
            left, right = node_at(number)
            waiting += [(right, first << 1 | 1, length + 1), (left, first << 1, length + 1)]


def _from_record(record: Any, language: str) -> City:
    if not isinstance(record, dict):
        raise ValueError(NOT_A_CITY)
    regions = record.get("subdivisions") or [record.get("region")]
    places = [
        record.get("city"),
        regions[0] if isinstance(regions, list) else None,
        record.get("country") or record.get("registered_country"),
    ]
    city, region, country = (_place_name(place, language) for place in places)
    if not (city or region or country):
        raise ValueError(NOT_A_CITY)
    ids = (place.get("geoname_id") for place in places if isinstance(place, dict))
    return City(city, region, country, next((n for n in ids if isinstance(n, int)), None))


def _place_name(place: Any, language: str) -> str:
    """Return the name of a place; in some databases a place is only a name."""
    names = place.get("names") if isinstance(place, dict) else {"en": place}
    name = (names.get(language) or names.get("en")) if isinstance(names, dict) else None
    return name if isinstance(name, str) else ""


def source_id(text: str) -> int | str:
    """Return an id as it is compared and stored: digits as a number."""
    if text.isascii() and text.isdigit() and len(text) < 19 and (text[0] != "0" or text == "0"):
        return int(text)
    return text


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"is not JSON: {error.msg}"
    if isinstance(error, UnicodeEncodeError):
        return "is not UTF-8"
    return str(error)


RANGES_IN_MEMORY: Final = 200_000
CITIES_AT_ONCE: Final = 10_000
SKIPPED_SHOWN: Final = 10
MOST_CITIES: Final = 2**32 - 1  # the largest number means that there is no city
_RANGES_A_BLOCK: Final = 2_000

Numbered: TypeAlias = tuple[int, int, int]


class ImportInput:
    """The input of an import, read once: first all of `cities`, then `ranges`.

    Where ranges overlap, the narrowest wins, of equal ones the last; adjacent ranges of one city
    are merged. Memory holds 200,000 ranges at a time, and the ids of all cities; more ranges go
    through a temporary file.
    """

    def __init__(self, items: Iterable[Item], in_memory: int = RANGES_IN_MEMORY) -> None:
        self._items = items
        self._in_memory = in_memory
        self._numbers: dict[City | int | str, int] = {}
        self._ranges: list[Numbered] = []
        self._files = ExitStack()
        self._runs: list[_SortedRun] = []
        self.read = 0  # ranges that are used
        self.numbered = 0  # cities
        self.skipped = 0
        self.first_skipped: list[SkippedLine] = []

    def close(self) -> None:
        """Remove the temporary file."""
        self._files.close()
        self._runs.clear()
        self._ranges.clear()
        self._numbers.clear()

    def cities(self) -> Iterator[tuple[int, City]]:
        """Read everything; yield each city with its number when it first occurs."""
        for item in self._items:
            if type(item) is IpRange:
                first, last, city, line, source = item
                number = self._numbers.get(city)
                if number is None:
                    if not isinstance(city, City):
                        self._skip(SkippedLine(line, f"no city has the id {shown(city)}", source))
                        continue
                    number = self._number(city)
                    yield number, city
                self._ranges.append((first, last, number))
                self.read += 1
                if len(self._ranges) >= self._in_memory:
                    if not self._runs:
                        file = tempfile.TemporaryFile()  # noqa: SIM115 - until the import ends
                        self._file: BinaryIO = self._files.enter_context(file)
                    self._ranges.sort(key=itemgetter(0))
                    self._runs.append(_SortedRun(self._file, self._ranges))
                    self._ranges = []
            elif type(item) is City:
                if item.id is None:
                    reason = f"{item.city!r} has no id that a range could refer to"
                    self._skip(SkippedLine(0, reason))
                elif item.id not in self._numbers:  # the first city with an id wins
                    number = self._numbers[item.id] = self._number(item)
                    yield number, item
            elif type(item) is SkippedLine:
                self._skip(item)
            else:
                raise InvalidArgumentError(
                    f"{shown(item)} cannot be imported", "give City, IpRange and SkippedLine"
                )

    def pages(self, owner: str) -> Iterator[list[tuple[int, City]]]:
        """Yield `cities` by page; then refuse input of which no range could be read."""
        yield from pages(self.cities(), CITIES_AT_ONCE)
        if not self.read:
            first = "".join(f" ({skipped})" for skipped in self.first_skipped[:1])
            raise StructureError(
                f"{owner}: no range could be read, {counted(self.skipped, 'line')} skipped{first}",
                "specify the file's format (nothing was changed)",
            )

    def ranges(self) -> Iterator[Numbered]:
        """Return the ranges in order, disjoint, with adjacent ranges of one city merged."""
        self._ranges.sort(key=itemgetter(0))  # stable: otherwise in input order
        return merged(disjoint(heapq.merge(*self._runs, self._ranges, key=itemgetter(0))))

    def _number(self, city: City) -> int:
        number = self._numbers.setdefault(city, self.numbered)
        if number == self.numbered:
            self.numbered += 1
        if number >= MOST_CITIES:
            raise InvalidArgumentError(f"more than {MOST_CITIES:,} cities", "leave some out")
        return number

    def _skip(self, skipped: SkippedLine) -> None:
        self.skipped += 1
        if len(self.first_skipped) < SKIPPED_SHOWN:
            self.first_skipped.append(skipped)


class _SortedRun:
    """Sorted ranges appended to a file, read in blocks."""

    def __init__(self, file: BinaryIO, ranges: list[Numbered]) -> None:
        self._file = file
        self._blocks: list[int] = []
        for start in range(0, len(ranges), _RANGES_A_BLOCK):
            self._blocks.append(file.seek(0, 2))
            pickle.dump(ranges[start : start + _RANGES_A_BLOCK], file, pickle.HIGHEST_PROTOCOL)

    def __iter__(self) -> Iterator[Numbered]:
        for position in self._blocks:
            self._file.seek(position)
            yield from pickle.load(self._file)


def disjoint(ranges: Iterable[Numbered]) -> Iterator[Numbered]:
    """Cut ranges, sorted by their beginning, so that none overlap: the narrowest or last wins."""
    # The ranges that reach the current address, and some ended ones: the narrowest first.
    open_: list[tuple[int, int, int, int]] = []
    at = 0
    for turn, (first, last, number) in enumerate(ranges):
        while open_ and at < first:
            _, _, end, city = open_[0]
            if end >= at:
                stop = min(end, first - 1)
                yield at, stop, city
                at = stop + 1
            if end < first:
                heapq.heappop(open_)
        at = first
        heapq.heappush(open_, (last - first, -turn, last, number))
    while open_:
        _, _, end, city = heapq.heappop(open_)
        if end >= at:
            yield at, end, city
            at = end + 1


def merged(ranges: Iterable[Numbered]) -> Iterator[Numbered]:
    """Merge adjacent ranges of one city."""
    last_range: Any = None
    for first, last, number in ranges:
        if last_range is not None and last_range[2] == number and last_range[1] + 1 == first:
            last_range = (last_range[0], last, number)
            continue
        if last_range is not None:
            yield last_range
        last_range = first, last, number
    if last_range is not None:
        yield last_range
