"""Placement: maps a key to a shard number. Never changes.

docs/placement-specification.md specifies each placement; docs/placement-vectors.json has test
vectors. All but ``redis-in-action`` hash only the tag of a key, if it has one (see
`shardkit.routing.keys`). The placements of other programs are in `shardkit.routing.others`.

The weight of rendezvous is ``mix(h ^ mix(n + 1))``: ``h`` is the key's BLAKE2b-64 digest as a
big-endian integer, ``n`` the shard's number and ``mix`` the finaliser of SplitMix64 (G. Steele and
others, 2014). Highest random weight hashing is due to D. Thaler and C. Ravishankar (1998).
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import TypeAlias
from zlib import crc32

from crcmod.predefined import mkPredefinedCrcFun

from shardkit.errors import ConfigError, InvalidArgumentError
from shardkit.operations.commands import Key
from shardkit.routing.keys import hash_tag, hashed_parts, key_bytes
from shardkit.routing.others import place_as_others

Place: TypeAlias = Callable[[Key], int]
PlaceAll: TypeAlias = Callable[[Sequence[Key]], list[int]]

DEFAULT = "crc32"
SLOTS = 16384
_CRC_NAMES = """
    crc-8 crc-8-darc crc-8-i-code crc-8-itu crc-8-maxim crc-8-rohc crc-8-wcdma
    crc-16 crc-16-buypass crc-16-dds-110 crc-16-dect crc-16-dnp crc-16-en-13757 crc-16-genibus
    crc-16-maxim crc-16-mcrf4xx crc-16-riello crc-16-t10-dif crc-16-teledisk crc-16-usb
    x-25 xmodem modbus kermit crc-ccitt-false crc-aug-ccitt
    crc-24 crc-24-flexray-a crc-24-flexray-b
    crc-32 crc-32-bzip2 crc-32c crc-32d crc-32-mpeg crc-32q posix jamcrc xfer
    crc-64 crc-64-we crc-64-jones
"""
CRCS = frozenset(_CRC_NAMES.split())  # what crcmod 1.7 predefines
_MASK = (1 << 64) - 1


@lru_cache(maxsize=1024, typed=True)
def placement(name: str, count: int) -> Place:
    """Return the function that places a key among ``count`` shards.

    It raises InvalidKeyError for a value that is not a key. Cost: 0.1 to 0.3 microseconds;
    rendezvous 0.5 for each shard. ``name`` may be that of another program's placement, followed by
    its options.

    Raises:
        ConfigError: there is no such placement, or count is less than 1.
    """
    if type(count) is not int or count < 1:
        raise ConfigError(f"placement {name!r}: count={count!r}", "give 1 or more shards")
    if name == "crc32":
        return _crc32(count)
    if name == "slot":
        if count > SLOTS:
            raise ConfigError(f"placement 'slot': count={count}", f"give at most {SLOTS} shards")
        owner = _owners(count)
        return lambda key: owner[slot_of(key)]
    if name == "rendezvous":
        return _rendezvous(count)
    if name == "redis-in-action":
        return lambda key: crc32(b"x" + key_bytes(key)) % count
    if name.startswith("crc:"):
        return _named_crc(name, count)
    place = place_as_others(name, count)
    if place is None:
        raise ConfigError(
            f"placement {name!r} is unknown",
            "use crc32, slot, crc:<name>, rendezvous, redis-in-action or one of docs/placement.md",
        )
    return place


@lru_cache(maxsize=1024, typed=True)
def placement_of_all(name: str, count: int) -> PlaceAll:
    """Return the function that places many keys at once, each as `placement` does."""
    place = placement(name, count)
    if name == "crc32":
        return lambda keys: [number % count for number in map(crc32, hashed_parts(keys))]
    if name == "slot":
        owner = _owners(count)
        return lambda keys: [owner[slot] for slot in slots_of(keys)]
    return lambda keys: list(map(place, keys))


def slots_of(keys: Sequence[Key]) -> list[int]:
    """Return each key's slot in a Redis or Valkey Cluster, 0 to 16383."""
    crc = binascii.crc_hqx
    return [crc(part, 0) % SLOTS for part in hashed_parts(keys)]


def slot_of(key: Key) -> int:
    """Return a key's slot in a Redis or Valkey Cluster, 0 to 16383."""
    return binascii.crc_hqx(hash_tag(key_bytes(key)), 0) % SLOTS


def slot_ranges(count: int) -> list[range]:
    """Return each shard's slots: from ``i * 16384 / count``, rounded to the nearest slot.

    ``redis-cli --cluster create`` assigns the same ranges to its masters, but adds in single
    precision: from 78 masters on, some bounds differ by a slot. ``count`` is 1 to 16384.
    """
    bounds = [(2 * SLOTS * i + count) // (2 * count) for i in range(count)] + [SLOTS]
    return [range(bounds[i], bounds[i + 1]) for i in range(count)]


def _crc32(count: int) -> Place:
    def place(key: Key) -> int:
        if type(key) is str:  # the usual case, without a function call
            try:
                data = key.encode()
            except UnicodeEncodeError:
                data = key_bytes(key)  # raises InvalidKeyError
        else:
            data = key if type(key) is bytes else key_bytes(key)
        return crc32(hash_tag(data) if b"{" in data else data) % count

    return place


def _owners(count: int) -> tuple[int, ...]:
    return tuple(shard for shard, slots in enumerate(slot_ranges(count)) for _ in slots)


def _named_crc(name: str, count: int) -> Place:
    # crcmod accepts several spellings of a name; with only one, equal placements have equal names.
    if name.removeprefix("crc:") not in CRCS:
        raise ConfigError(
            f"placement {name!r}: crcmod predefines no such CRC",
            "use one from docs/placement.md, such as crc:crc-64",
        )
    crc: Callable[[bytes], int] = mkPredefinedCrcFun(name.removeprefix("crc:"))
    return lambda key: crc(hash_tag(key_bytes(key))) % count


def _rendezvous(count: int) -> Place:
    seeds = tuple(_mix(shard + 1) for shard in range(count))

    def place(key: Key) -> int:
        digest = blake2b(hash_tag(key_bytes(key)), digest_size=8).digest()
        value = int.from_bytes(digest, "big")
        weights = [_mix(value ^ seed) for seed in seeds]
        return weights.index(max(weights))

    return place


def _mix(z: int) -> int:
    """The finaliser of SplitMix64: each bit of the input changes half of the output bits."""
    z = (z + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


Partition: TypeAlias = Callable[[Key], int]
PartitionAll: TypeAlias = Callable[[Sequence[bytes]], list[int]]

PARTITIONS = ("crc32", "digits", "redis-in-action")


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

    A structure of about ``total`` members has parts of at most about ``part_size``, so that each
    keeps its compact encoding. Twice as many parts as needed are half full on average, and few grow
    larger than planned. ``crc32`` hashes the member's text, modulo the number of parts. ``digits``
    puts a member of ASCII digits into part ``int(member) // part_size``, so that neighbouring ids
    share a part, and hashes others. ``redis-in-action`` hashes ``x`` and the member, as the sharded
    SET in the published source of that book.

    Args:
        name: one of `PARTITIONS`.
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
    raise InvalidArgumentError(f"partition={name!r}", f"give one of {', '.join(PARTITIONS)}")


def partition_of_all(name: str, total: int, part_size: int) -> PartitionAll:
    """Return the function that maps many members, as they are sent, each as `partition` does."""
    part_of, count = partition(name, total, part_size), part_count(total, part_size)
    if name == "crc32":
        return lambda members: [number % count for number in map(crc32, members)]
    return lambda members: list(map(part_of, members))
