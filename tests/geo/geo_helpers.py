"""Ranges for the tests, and what they mean, found in the slowest and plainest way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from random import Random
from socket import AF_INET, AF_INET6, inet_ntop

from arranged import map_of

import shardkit
from shardkit.geo import City, IpRange, LocalCities
from shardkit.testing import MemoryServers

# The numbers of addresses: those of IPv4 are below the one, those of IPv6 begin with the other.
IPV4, IPV6 = 2**32, 2**128

BONN = City("Bonn", "North Rhine-Westphalia", "Germany", 2946447)
OSLO = City("Oslo", "Oslo", "Norway", 3143244)
LIMA = City("Lima", "Lima region", "Peru")


def city(number: int) -> City:
    return City(f"City {number}", f"Region {number % 9}", f"Country {number % 3}", number)


def address_text(address_number: int) -> str:
    """Return the text of an address number."""
    if address_number < IPV4:
        return inet_ntop(AF_INET, address_number.to_bytes(4, "big"))
    return inet_ntop(AF_INET6, (address_number - IPV6).to_bytes(16, "big"))


def ranges(*written: tuple[str, City]) -> list[IpRange]:
    """Networks, or first and last joined by a hyphen, with their cities."""
    return [IpRange.of(*text.split("-"), city=place) for text, place in written]


def local_copy(items: Iterable[IpRange]) -> LocalCities:
    """A local copy of ranges, made without a server."""
    memory = MemoryServers(map_of(geo={"entry": {"port": 1}}))
    with shardkit.connect(memory.shard_map, connector=memory) as kit:
        ip = kit.ip_to_city(component="geo")
        ip.import_from(items)
        return ip.local()


def expected(items: Iterable[IpRange], address_number: int) -> City | int | str | None:
    """The city of the narrowest range around a point; of equal ones the last."""
    best: tuple[int, City | int | str] | None = None
    for item in sorted(items, key=lambda item: item.first):
        width = item.last - item.first
        if item.first <= address_number <= item.last and (best is None or width <= best[0]):
            best = width, item.city
    return None if best is None else best[1]


def some_ranges(random: Random, count: int) -> list[IpRange]:
    """Ranges of all sizes, of IPv4 and IPv6, that overlap, adjoin and meet at borders."""
    made: list[IpRange] = []
    for _ in range(count):
        kind = random.randrange(6)
        if kind == 0 and made:  # adjoining another
            first, most = made[-1].last + 1, 2 ** random.choice([3, 8, 17])
        elif kind < 3:
            first, most = random.getrandbits(32), 2 ** random.choice([1, 8, 16, 17, 24])
            if kind == 2:  # meeting a border
                first = (first >> 16) << 16
                first -= most
        else:
            first = IPV6 + (0x2001_0DB8 << 96) + random.getrandbits(random.choice([64, 70, 100]))
            most = 2 ** random.choice([1, 40, 64, 66, 96, 99, 114])
            if kind == 4:
                bits = random.choice([64, 96, 112])
                first = (first >> bits) << bits
                most = 1 << bits
        width = most if random.random() < 0.5 else random.randint(1, most)
        low, high = (0, IPV4 - 1) if first < IPV4 else (IPV6, 2 * IPV6 - 1)
        first = max(first, low)
        made.append(IpRange(first, min(first + width - 1, high), city(random.randrange(5))))
    return made


def telling_points(items: Sequence[IpRange], random: Random) -> Iterator[int]:
    """Points at and around the ends of ranges, and within them."""
    for item in items:
        around = (item.first, item.last, random.randint(item.first, item.last))
        for address_number in (*around, item.first - 1, item.last + 1):
            if 0 <= address_number < IPV4 or IPV6 <= address_number < 2 * IPV6:
                yield address_number
