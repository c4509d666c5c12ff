"""IP addresses as numbers on one line, and ranges of them as they are written.

::

    0 ……………… 2**32 - 1                              IPv4
                            2**128 …… 2**129 - 1     IPv6: 2**128 and the address

So ranges of both kinds are sorted and cut in one way, and none reaches from one kind into the
other. An IPv4 address that is written as IPv6 (``::ffff:192.0.2.7``) is the IPv4 address.

Addresses are read strictly: four decimal numbers up to 255 without leading zeros, or what RFC 4291
allows; no blanks, no zone. ``1.2.3`` and ``999.2.3.4`` are none.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton
from typing import Final, TypeAlias

from shardkit.errors import InvalidArgumentError
from shardkit.structures.base.arguments import shown

Address: TypeAlias = str | bytes | IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

IPV4: Final = 2**32
IPV6: Final = 2**128
_FIRST_MAPPED: Final = 0xFFFF << 32


def point(address: Address) -> int:
    """Return where an address is on the line.

    Args:
        address: text, also as bytes; or an address of Python's ``ipaddress``.

    Raises:
        InvalidArgumentError: it is none.
    """
    try:  # what nearly all addresses are
        return int.from_bytes(inet_pton(AF_INET, address), "big")  # type: ignore[arg-type]
    except (OSError, ValueError, TypeError):
        pass
    try:
        return _point(address)
    except (OSError, ValueError, TypeError):
        raise InvalidArgumentError(
            f"{shown(address)} is not an IP address", "give text such as 192.0.2.7 or 2001:db8::7"
        ) from None


def written(point: int) -> str:
    """Return the address at a place of the line, as text."""
    if point < IPV4:
        return inet_ntop(AF_INET, point.to_bytes(4, "big"))
    return inet_ntop(AF_INET6, (point - IPV6).to_bytes(16, "big"))


def written_range(first: str, last: str | None = None) -> tuple[int, int]:
    """Return the first and the last place of a range, as files write them.

    Args:
        first: its first address: four numbers, or IPv6, or one decimal number; or a network such as
            ``192.0.2.0/24``, of any prefix length, whose host bits do not matter.
        last: its last address, written in the same way, of a range that is not a network.

    Raises:
        ValueError: it is no range; says why.
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
            start, end = _from_ipv6(start), _from_ipv6(end)
    else:
        start, end = _strictly(first), _strictly(last)
    if (start < IPV4) != (end < IPV4):
        raise ValueError("one end is an IPv4 address, and the other is not")
    if end < start:
        raise ValueError(f"{shown(first)} to {shown(last)} ends before it begins")
    return start, end


def network_range(network: Network) -> tuple[int, int]:
    """Return the first and the last place of a network of Python's ``ipaddress``.

    Raises:
        ValueError: its one end is an IPv4 address, and the other is not.
    """
    return written_range(str(network))


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
    return _from_ipv6(start), _from_ipv6(start + hosts)


def _strictly(address: str) -> int:
    try:
        return point(address)
    except InvalidArgumentError as error:
        raise ValueError(error.message) from None


def _point(address: object) -> int:
    """Return where an address is that is not text with four numbers.

    Raises:
        OSError, ValueError, TypeError: it is none.
    """
    if isinstance(address, IPv4Address | IPv6Address):
        packed = address.packed
    else:
        spelled = address.decode("ascii") if isinstance(address, bytes) else address
        if not isinstance(spelled, str):
            raise TypeError
        packed = inet_pton(AF_INET6 if ":" in spelled else AF_INET, spelled)
    number = int.from_bytes(packed, "big")
    return number if len(packed) == 4 else _from_ipv6(number)


def _from_ipv6(number: int) -> int:
    """Return where the address is that IPv6 writes as this number."""
    mapped = number - _FIRST_MAPPED
    return mapped if 0 <= mapped < IPV4 else IPV6 + number


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 40
