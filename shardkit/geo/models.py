"""The items of an import: cities, ranges, and skipped lines; addresses as numbers.

IPv6 begins at 2**128 on the same number line, so ranges of both families are sorted and cut by the
same code, and no range can span both. An IPv4 address written as IPv6 (``::ffff:192.0.2.7``) is the
IPv4 address.

Parsing is strict: four decimal numbers up to 255 without leading zeros, or RFC 4291; no blanks, no
zone. ``1.2.3`` and ``999.2.3.4`` are invalid.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from socket import AF_INET, AF_INET6, inet_pton
from typing import Final, NamedTuple, TypeAlias

from shardkit.errors import InvalidArgumentError
from shardkit.operations.arguments import shown

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
        return _parse_other(address)
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


def _parse_other(address: object) -> int:
    """Return the number of an address that is not IPv4 text."""
    if isinstance(address, IPv4Address | IPv6Address):
        packed = address.packed
    else:
        spelled = address.decode("ascii") if isinstance(address, bytes) else address
        if not isinstance(spelled, str):
            raise TypeError
        packed = inet_pton(AF_INET6 if ":" in spelled else AF_INET, spelled)
    number = int.from_bytes(packed, "big")
    return number if len(packed) == 4 else _ipv6_number(number)


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
        first, last: address numbers (see `shardkit.geo.models`), both inclusive.
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
        """Return a range from text; see `shardkit.geo.models.parse_range`.

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
