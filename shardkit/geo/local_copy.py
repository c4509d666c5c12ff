"""A copy of all ranges in this process, for log files: no exchange, a microsecond per address.

Where cities begin is sorted, and searched by bisection; with each is its city's number from 1, or 0
for none. There is one such table for IPv4, with starts of 32 bits, and one for each level of IPv6
(see `shardkit.geo.blocks`). An IPv4 range takes 8 bytes, most IPv6 ranges 12.

A copy holds the data that was current at loading; ``ip.local(copy)`` returns a new copy if there is
new data. Threads can share a copy, other processes can unpickle it, and forked children inherit it.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from socket import AF_INET, inet_pton

from shardkit.geo.blocks import LEVELS, NO_CITY, entries
from shardkit.geo.generations import Generation
from shardkit.geo.models import IPV4, IPV6, Address, City, address_number

_HOST_LEVEL = 3  # its buckets and offsets have 64 bits each, too many for one number


class _RangeTable:
    """Where cities begin, and their numbers."""

    def __init__(self, code: str) -> None:
        self.starts = array(code, [0])
        self.numbers = array("I", [0])
        self.next = 0  # the bucket after the last added one

    def memory(self) -> int:
        return sys.getsizeof(self.starts) + sys.getsizeof(self.numbers)


class RangeTables:
    """The tables of a copy, filled block by block."""

    def __init__(self) -> None:
        self.flat = {
            level.number: _RangeTable("Q" if level.bits > 16 else "I") for level in LEVELS[:3]
        }
        self.hosts: dict[int, _RangeTable] = {}

    def add(self, level: int, bucket: int, content: bytes) -> None:
        """Add a block; those of a level must come in order. A list of pages adds nothing."""
        block = entries(LEVELS[level], content)
        if block is None:
            return
        offsets, numbers = block
        if level == _HOST_LEVEL:
            table, base = self.hosts.setdefault(bucket, _RangeTable("Q")), 0
        else:
            table, bits = self.flat[level], LEVELS[level].bits
            if bucket > table.next or (bucket == table.next and offsets[0]):
                self._end(table, bits)
            base, table.next = bucket << bits, bucket + 1
        table.starts.extend([base + offset for offset in offsets])
        table.numbers.extend([0 if n == NO_CITY else n + 1 for n in numbers])

    def finish(self) -> None:
        """End the last city of each table at the end of its bucket."""
        for number, table in self.flat.items():
            bits = LEVELS[number].bits
            if table.next << bits < 2 ** (8 * table.starts.itemsize):
                self._end(table, bits)

    def _end(self, table: _RangeTable, bits: int) -> None:
        """End a city at the end of its bucket, so that it does not reach into the next one."""
        if table.numbers[-1]:
            table.starts.append(table.next << bits)
            table.numbers.append(0)


class LocalCities:
    """Finds cities in this process. Made by ``ip.local()``.

    Attributes:
        generation: the loaded generation.
    """

    def __init__(self, generation: Generation, tables: RangeTables, cities: list[City]) -> None:
        tables.finish()
        self.generation = generation
        self._cities: list[City | None] = [None, *cities]
        self._tables = tables
        self._starts = tables.flat[0].starts
        self._numbers = tables.flat[0].numbers
        # Where each /16 begins: bisecting within one takes few steps in adjacent memory.
        self._sixteenths = array(
            "L", [bisect_left(self._starts, bucket << 16) for bucket in range(2**16 + 1)]
        )

    def find(self, address: Address) -> City | None:
        """Return the city of an address; None if it is in no range.

        Args:
            address: text, bytes, or an address object of Python's ``ipaddress``.

        Raises:
            InvalidArgumentError: it is not an address.
        """
        try:
            at = int.from_bytes(inet_pton(AF_INET, address), "big")  # type: ignore[arg-type]
        except (OSError, ValueError, TypeError):
            at = address_number(address)
            if at >= IPV4:
                return self._cities[self._number(at - IPV6)]
        begins, bucket = self._sixteenths, at >> 16
        n = bisect_right(self._starts, at, begins[bucket], begins[bucket + 1]) - 1
        return self._cities[self._numbers[n]]

    def find_many(self, addresses: Iterable[Address]) -> list[City | None]:
        """Return the cities of addresses, in their order; see `find`."""
        return list(map(self.find, addresses))

    def memory(self) -> int:
        """Return the approximate memory in bytes."""
        tables = [*self._tables.flat.values(), *self._tables.hosts.values()]
        cities = sum(
            sys.getsizeof(city) + sum(map(sys.getsizeof, city)) for city in self._cities if city
        )
        own = sum(map(sys.getsizeof, (self._cities, self._sixteenths)))
        return sum(table.memory() for table in tables) + own + cities

    def __len__(self) -> int:
        """The number of cities."""
        return len(self._cities) - 1

    def __repr__(self) -> str:
        return f"LocalCities(generation={self.generation.number}, {len(self):,} cities)"

    def _number(self, address: int) -> int:
        """Return the number of the city of an IPv6 address."""
        for level in LEVELS[1:3]:
            table = self._tables.flat[level.number]
            number = table.numbers[bisect_right(table.starts, address >> level.unit) - 1]
            if number:
                return number
        hosts = self._tables.hosts.get(address >> 64)
        if hosts is None:
            return 0
        return hosts.numbers[bisect_right(hosts.starts, address & (2**64 - 1)) - 1]
