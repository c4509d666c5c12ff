"""Partition: maps a member or field to a part of its structure.

A structure of about ``total`` members has parts of at most about ``part_size``, so that each part
keeps its compact encoding. Twice as many parts as needed are half full on average, and few grow
larger than planned.

=================== ==========================================================================
name                part of a member
=================== ==========================================================================
``crc32``           CRC-32 of the member's text, modulo ``2 * total // part_size``: for members in
                    no particular order, numbers included.
``digits``          a member of ASCII digits goes to part ``int(member) // part_size``, so that
                    neighbouring ids share a part; all others as with ``crc32``.
``redis-in-action`` CRC-32 of ``x`` and the member, same modulus: the sharded SET in the published
                    source of that book.
=================== ==========================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias
from zlib import crc32

from shardkit.errors import InvalidArgumentError
from shardkit.operations.commands import Key
from shardkit.routing.keys import key_bytes

Partition: TypeAlias = Callable[[Key], int]
PartitionAll: TypeAlias = Callable[[Sequence[bytes]], list[int]]

NAMES = ("crc32", "digits", "redis-in-action")


def part_count(total: int, part_size: int) -> int:
    """Return the number of parts that members are hashed to.

    Raises:
        InvalidArgumentError: total or part_size is not a positive integer.
    """
    for name, value in (("total", total), ("part_size", part_size)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidArgumentError(f"{name}={value!r}", "give a positive integer")
    return max(1, 2 * total // part_size)


def partition(name: str, total: int, part_size: int) -> Partition:
    """Return the function that maps a member to the number of its part.

    Args:
        name: one of `NAMES`.
        total: about how many members the structure will have.
        part_size: how many members a part should have at most.

    Raises:
        InvalidArgumentError: an argument is out of range.
    """
    count = part_count(total, part_size)
    if name == "crc32":
        return lambda member: crc32(member if type(member) is bytes else key_bytes(member)) % count
    if name == "redis-in-action":
        return lambda member: crc32(b"x" + key_bytes(member)) % count
    if name == "digits":

        def part(member: Key) -> int:
            data = key_bytes(member)
            if data.isdigit() and len(data) <= 4300:  # Python's limit for int()
                return int(data) // part_size
            return crc32(data) % count

        return part
    raise InvalidArgumentError(f"partition={name!r}", f"give one of {', '.join(NAMES)}")


def partition_of_all(name: str, total: int, part_size: int) -> PartitionAll:
    """Return the function that maps many members, as they are sent, each as `partition` does."""
    part_of, count = partition(name, total, part_size), part_count(total, part_size)
    if name == "crc32":
        return lambda members: [number % count for number in map(crc32, members)]
    return lambda members: list(map(part_of, members))
