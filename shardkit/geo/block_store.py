"""The keys of a generation: blocks, cities, and lists of its blocks; docs/ip-to-city.md lists them.

A list names 1,000 blocks, 13 bytes each: level (1), page (4; 2**32 - 1: none) and bucket (8). It is
written before its blocks, so no block is ever orphaned.
"""

from __future__ import annotations

import json
import logging
import re
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from socket import AF_INET, inet_pton
from typing import Any, Final, NamedTuple, TypeAlias

from shardkit import log_records
from shardkit.callbacks import run
from shardkit.errors import DamagedDataError, StructureError
from shardkit.geo.blocks import ENTRIES_A_PAGE, LEVELS, NO_CITY, WHOLE, Block, blocks, entries
from shardkit.geo.readers import (
    CITIES_AT_ONCE,
    IPV4,
    IPV6,
    Address,
    City,
    ImportInput,
    address_number,
)
from shardkit.operations.arguments import parse_json, shown
from shardkit.operations.commands import Argument, Columns, Command, Home, Locate
from shardkit.operations.lua import lua_call
from shardkit.operations.operation import Driver, Operation, Stream, pages
from shardkit.structures.base.check import (
    Damage,
    Suspicion,
    Suspicions,
    confirmed,
    raised_twice,
    read_or_note,
)
from shardkit.structures.base.damage import damage, stored_integer
from shardkit.structures.base.members import escaped
from shardkit.structures.base.parameters import format_of
from shardkit.structures.hash.sharded_hash import ShardedHash

IMPORT_AGAIN = "import again"
_STATES: Final = {b"importing", b"left", b"retired"}


class Generation(NamedTuple):
    """A complete generation."""

    number: int  # later ones have larger numbers
    ranges: int  # how many were read
    cities: int  # how many there are, numbered from 0
    blocks: int  # how many there are
    levels: tuple[int, ...]  # the numbers of the levels that have blocks
    imported: int  # when the import finished, in seconds since 1970


class Generations:
    """The record of generations of one `IpToCity`, shared by its faces: a HASH.

    An import writes a new generation, which no reader sees. Then one script sets ``number`` and
    ``current``: all readers switch from the complete old data to the complete new data. The old
    generation expires after a grace period, and stays recorded (``retired:<number>``) until the
    next import, which also removes the leftovers of a failed one (``left:…``). Only one import can
    be in progress (``importing:…``). When a second one starts, the first fails at its next step, so
    a crashed import never blocks the next one.
    """

    def __init__(self, component: str, name: str) -> None:
        self.home = Home(component)
        self.key = f"{name}:generations"

    def parse(self, stored: bytes) -> Generation:
        """Return a generation from its stored form."""
        try:
            fields = parse_json(stored)
            format_of(self.home, "the current generation", str(fields.get("format", 1)))
            known = {name: fields[name] for name in Generation._fields}  # others are later ones
            return Generation(**{**known, "levels": tuple(known["levels"])})
        except (ValueError, TypeError, KeyError, AttributeError):
            actual = f"current={shown(stored)}"
            remedy = "import again, or upgrade this program if a later release wrote it"
            raise damage(self.home, self.key, actual, "a generation", remedy) from None

    def read_current(self) -> Command:
        """Return the command that reads the stored form of the current generation."""
        return self._at("HGET", "current")

    def begin(self) -> Operation[tuple[int, list[int], list[int]]]:
        """Begin an import; return its generation's number, and the generations to remove.

        Last come those of interrupted imports, which may still write a little more.
        """
        [reply] = yield [lua_call(self.home, "geo/begin", [self.key])]
        number, unused, interrupted = reply
        return number, unused, interrupted

    def alive(self, generation: int) -> Command:
        """Return the command that checks whether an import may continue; the reply is 1 or 0."""
        return self._at("HEXISTS", f"importing:{generation}")

    def switch(self, generation: Generation, grace: int) -> Operation[int]:
        """Make readers use a generation; return the previous one, 0 for none."""
        stored = json.dumps(generation._asdict(), separators=(",", ":"))
        arguments = (generation.number, stored, grace)
        call = lua_call(self.home, "geo/switch", [self.key], arguments, idempotent=True)
        [old] = yield [call]
        if old is None:
            raise superseded(self.key)
        return int(old)

    def abandon(self, generation: int) -> Operation[bool]:
        """Abandon an import; return whether its generation has to be removed."""
        abandon = lua_call(self.home, "geo/abandon", [self.key], [generation], idempotent=True)
        [unused] = yield [abandon]
        return bool(unused)

    def forget(self, generation: int) -> Operation[None]:
        """Record that a generation's keys are removed."""
        fields = [f"{state}:{generation}" for state in ("left", "retired")]
        yield [self._at("HDEL", *fields)]

    def read(self) -> Operation[tuple[Generation | None, dict[int, str]]]:
        """Return the current generation, and the states of others that have keys."""
        [flat] = yield [self._at("HGETALL")]
        fields = dict(zip(flat[::2], flat[1::2], strict=True))

        def number_of(text: bytes) -> int:
            return stored_integer(self.home, self.key, "number", text)

        states = {}
        for field in fields:
            state, _, number = field.partition(b":")
            if state in _STATES:
                states[number_of(number)] = state.decode()
        if b"number" not in fields and b"current" not in fields:
            return None, states
        current, number = self.parse(fields.get(b"current", b"")), fields.get(b"number", b"")
        if number_of(number) != current.number:
            raise damage(self.home, self.key, f"number={shown(number)}", f"{current.number}")
        return current, states

    def delete(self) -> Operation[None]:
        """Remove the HASH."""
        yield [self._at("UNLINK")]

    def _at(self, name: str, *args: str) -> Command:
        return Command(self.home, self.key, (name, self.key, *args), None, True)


def superseded(key: str) -> StructureError:
    """Return the error of an import that another one interrupted."""
    return StructureError(
        f"{key}: another import has started: this one has changed nothing",
        "import again when the other one has ended, if still needed",
    )


logger = logging.getLogger("shardkit")

Progress: TypeAlias = Callable[[str, int], None]

BLOCKS_AT_ONCE: Final = 1000
BYTES_AT_ONCE: Final = 4_000_000
CITIES_A_PART: Final = 128
_KEYS_LOCATED: Final = 10_000  # by which servers are found
_SCANNED: Final = 2_000  # of a server's keys, in one command
_LISTED: Final = struct.Struct("<BIQ")
_NO_PAGE: Final = 2**32 - 1


_HOST_LEVEL = 3  # its buckets and offsets have 64 bits each, too many for one number


class _RangeTable:
    def __init__(self, code: str) -> None:
        self.starts = array(code, [0])
        self.numbers = array("I", [0])
        self.next = 0  # the bucket after the last added one

    def memory(self) -> int:
        return sys.getsizeof(self.starts) + sys.getsizeof(self.numbers)


class RangeTables:
    """The tables of a copy, filled block by block, whose numbers are below that of ``cities``."""

    def __init__(self, cities: int) -> None:
        self.cities = cities
        self.flat = {
            level.number: _RangeTable("Q" if level.bits > 16 else "I") for level in LEVELS[:3]
        }
        self.hosts: dict[int, _RangeTable] = {}

    def add(self, level: int, bucket: int, content: bytes) -> None:
        """Add a block; those of a level must come in order. A list of pages adds nothing."""
        offsets, numbers = entries(LEVELS[level], content)
        if not numbers:
            return
        added = [0 if n == NO_CITY else n + 1 for n in numbers]
        if max(added) > self.cities:
            raise LookupError(f"city {max(added) - 1} of {self.cities}")
        if level == _HOST_LEVEL:
            table, base = self.hosts.setdefault(bucket, _RangeTable("Q")), 0
        else:
            table, bits = self.flat[level], LEVELS[level].bits
            if bucket > table.next or (bucket == table.next and offsets[0]):
                self._end(table, bits)
            base, table.next = bucket << bits, bucket + 1
        table.starts.extend([base + offset for offset in offsets])
        table.numbers.extend(added)

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
    """Finds cities in this process, without an exchange. Made by ``ip.local()``.

    It holds the data that was current at loading. Threads can share it, other processes can
    unpickle it, and forked children inherit it. An IPv4 range takes 8 bytes, most IPv6 ranges 12.

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

        An address is text, bytes, or an address object of Python's ``ipaddress``.

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
        return len(self._cities) - 1

    def __repr__(self) -> str:
        return f"LocalCities(generation={self.generation.number}, {len(self):,} cities)"

    def _number(self, address: int) -> int:
        for level in LEVELS[1:3]:
            table = self._tables.flat[level.number]
            number = table.numbers[bisect_right(table.starts, address >> level.unit) - 1]
            if number:
                return number
        hosts = self._tables.hosts.get(address >> 64)
        if hosts is None:
            return 0
        return hosts.numbers[bisect_right(hosts.starts, address & (2**64 - 1)) - 1]


class CityTable:
    """The cities of one generation: a sharded HASH, by the deferred face's driver.

    The import numbers them as it reads them, so the parts are full for any ids of the source.
    """

    def __init__(self, driver: Driver, component: str, name: str) -> None:
        # All fields are numbers: the one part for other fields stays empty.
        self.hash: Any = ShardedHash(
            driver, component, name, 1, CITIES_A_PART, codec="json", fields=int
        )

    def key(self, number: int) -> str:
        """Return the key of the part that has a city."""
        return f"{self.hash.name}:{number // CITIES_A_PART}"

    def write(self, cities: Iterable[tuple[int, City]]) -> Operation[None]:
        """Write cities by their numbers, 10,000 per exchange."""
        yield from self.hash.hset_many(
            (number, list(city if city.id is not None else city[:3])) for number, city in cities
        )

    def read(self, numbers: Sequence[int]) -> Operation[list[City | None]]:
        """Return cities by their numbers, 10,000 per exchange; None for missing ones."""
        records = yield from self.hash.hmget(numbers)
        return [None if record is None else City(*record) for record in records]


class BlockStore:
    """Reads and writes whole generations, by the deferred face's driver."""

    def __init__(self, driver: Driver, component: str, name: str, generations: Generations) -> None:
        self._driver = driver
        self._component = component
        self._name = name
        self._generations = generations

    def block_key(self, generation: int, level: int, bucket: int, page: int = WHOLE) -> str:
        """Return the key of a block."""
        return f"{self._name}:{generation}:{LEVELS[level].suffix(bucket, page)}"

    def table(self, generation: int) -> CityTable:
        """Return the city table of a generation."""
        return CityTable(self._driver, self._component, f"{self._name}:{generation}:cities")

    def write(
        self,
        number: int,
        source: ImportInput,
        cities: Iterable[list[tuple[int, City]]],
        progress: Progress,
        now: float,
    ) -> Operation[Generation]:
        """Write everything that an import reads; return the new generation."""
        table = self.table(number)
        for page in cities:
            yield from table.write(page)
            run(progress, "cities", max(number for number, _ in page) + 1)
        levels: set[int] = set()
        count = 0
        for turn, portion in enumerate(portions(blocks(source.ranges()))):
            yield from self._write_blocks(number, turn, portion)
            levels |= {block.level for block in portion}
            count += len(portion)
            run(progress, "blocks", count)
        return Generation(
            number, source.read, source.numbered, count, tuple(sorted(levels)), int(now)
        )

    def _write_blocks(self, number: int, turn: int, portion: Sequence[Block]) -> Operation[None]:
        listed = b"".join(
            _LISTED.pack(level, _NO_PAGE if page == WHOLE else page, bucket)
            for level, bucket, page, _ in portion
        )
        key = self._list_key(number, turn)
        [alive, _] = yield [
            self._generations.alive(number),
            Command(self._component, key, ("SET", key, listed), None, True),
        ]
        if not alive:
            raise superseded(self._generations.key)
        keys = [self.block_key(number, *block[:3]) for block in portion]
        contents = [block.content for block in portion]
        yield Columns(self._component, "SET", keys, contents, idempotent=True, coalesced=True)

    def expire(self, number: int, seconds: int) -> Operation[None]:
        """Make a generation expire."""
        yield from self._to_all_blocks(number, "EXPIRE", seconds)
        yield from self.table(number).hash.expire(seconds)

    def remove(self, number: int, *, keep_lists: bool = False) -> Operation[int]:
        """Remove a generation, even if it is incomplete; return how many listed blocks it had.

        ``keep_lists`` leaves the lists of its blocks. By them a later removal finds the blocks that
        an interrupted import still writes before it stops.
        """
        yield from self.table(number).hash.delete(force=True)
        return (yield from self._to_all_blocks(number, "UNLINK", lists=not keep_lists))

    def refuse_unlisted(self) -> Operation[None]:
        """Refuse keys of a generation if no record says that there is one."""
        if (yield from self._generations.read())[1] == {} and (
            yield from self.of_unlisted("EXISTS")
        ):
            key, wanted = self._generations.key, "the record of the generations that have keys"
            raise damage(self._generations.home, key, "nothing", wanted, IMPORT_AGAIN)

    def of_unlisted(self, name: str) -> Operation[int]:
        """Send a command for each key of any generation; return the sum of the replies.

        Cost: an exchange for each 2,000 keys of a server, with all servers at once.
        """
        places: dict[Any, str] = {}
        for page in pages(range(_KEYS_LOCATED), BLOCKS_AT_ONCE):
            keys = [f"{self._name}:{n}" for n in page]
            located = yield Locate([(self._component, key) for key in keys])
            places |= dict(zip(located, keys, strict=True))
        [(shard, slot), *_] = places
        if slot is not None:
            [ranges] = yield [Command(self._component, places[shard, slot], ("CLUSTER", "SLOTS"))]
            places = {
                tuple(owner[:2]): key
                for (_, slot), key in places.items()
                for first, last, owner, *_ in ranges
                if first <= slot <= last
            }
        own = re.compile(rb"%b:\d+:([46]|cities|keys):" % re.escape(self._name.encode()))
        total, cursors = 0, dict.fromkeys(places.values(), b"0")
        while cursors:
            scan = ("MATCH", f"{escaped(self._name)}:[0-9]*:*", "COUNT", _SCANNED)
            replies = yield [
                Command(self._component, key, ("SCAN", cursor, *scan))
                for key, cursor in cursors.items()
            ]
            unlisted = [key for _, keys in replies for key in keys if own.match(key)]
            if unlisted:
                total += sum((yield Columns.each(self._component, name, unlisted)))
            following = zip(cursors, (cursor for cursor, _ in replies), strict=True)
            cursors = {key: cursor for key, cursor in following if cursor != b"0"}
        return total

    def load(self, generation: Generation) -> Operation[LocalCities]:
        """Load a generation into this process."""
        tables = RangeTables(generation.cities)
        number, count, turn = generation.number, 0, 0
        while (listed := (yield from self._listed(number, turn, generation.levels))) is not None:
            keys = [self.block_key(number, *block) for block in listed]
            contents = yield Columns(self._component, "GET", keys, coalesced=True)
            for block, key, content in zip(listed, keys, contents, strict=True):
                self._add(tables, block, key, content, self._list_key(number, turn))
            count += len(listed)
            turn += 1
        yield from self._compare(generation, count, turn)
        cities: list[City] = []
        for page in pages(range(generation.cities), CITIES_AT_ONCE):
            cities += yield from self._cities(number, page)
        return LocalCities(generation, tables, cities)

    def check(self, generation: Generation, repair: str) -> Stream[Damage]:
        """Check all blocks and cities of a generation; see `IpToCity.check`."""
        number, count, turn = generation.number, 0, 0
        while True:
            listed, place = None, (number, turn, generation.levels)
            if not (yield from raised_twice(self._listed, *place, repair=repair)):
                listed = yield from self._listed(*place)
            if listed is None:
                break
            yield from confirmed(self._check_blocks, generation, turn, listed, repair)
            count += len(listed)
            turn += 1
        yield from raised_twice(self._compare, generation, count, turn, repair=repair)
        for page in pages(range(generation.cities), CITIES_AT_ONCE):
            yield from raised_twice(self._cities, number, page, repair=repair)

    def _compare(self, generation: Generation, count: int, turn: int) -> Operation[None]:
        """Check that the lists before one were of all blocks."""
        yield from ()
        if count != generation.blocks:
            key = self._list_key(generation.number, turn)
            wanted = f"lists of all {generation.blocks} blocks"
            raise damage(self._component, key, f"lists of {count} blocks", wanted, IMPORT_AGAIN)

    def _check_blocks(
        self,
        generation: Generation,
        turn: int,
        listed: Sequence[tuple[int, int, int]],
        repair: str,
    ) -> Operation[Suspicions]:
        keys, notes = [self.block_key(generation.number, *b) for b in listed], Suspicions()
        gets = [Command(self._component, key, ("GET", key)) for key in keys]
        contents = yield from read_or_note(gets, notes, repair)
        noted = {note.error.key for note in notes}
        lists = self._list_key(generation.number, turn)
        for block, key, content in zip(listed, keys, contents, strict=True):
            try:
                if key not in noted:
                    self._add(RangeTables(generation.cities), block, key, content, lists)
            except DamagedDataError as error:
                notes.append(Suspicion(error, repair))
        return notes

    def _cities(self, number: int, cities: Sequence[int]) -> Operation[list[City]]:
        table = self.table(number)
        records = yield from table.read(cities)
        for at, city in zip(cities, records, strict=True):
            if city is None:
                raise damage(self._component, table.key(at), "nothing", f"city {at}", IMPORT_AGAIN)
        return records  # type: ignore[return-value]  # all are there

    def _add(
        self,
        tables: RangeTables,
        block: tuple[int, int, int],
        key: str,
        content: bytes | None,
        lists: str,
    ) -> None:
        try:
            if content is None:
                raise LookupError(f"nothing, although {lists} lists it")
            tables.add(block[0], block[1], content)
        except (StructureError, LookupError, ValueError, struct.error) as error:
            raise damage(
                self._component, key, str(error), "a block of ranges", IMPORT_AGAIN
            ) from None

    def _listed(
        self, number: int, turn: int, levels: Sequence[int] = ()
    ) -> Operation[list[tuple[int, int, int]] | None]:
        """Return the (level, bucket, page) of one list; None if there are no more.

        With the levels of the generation, the list must be as it was written; without, it must only
        be readable, so that its blocks can be removed.
        """
        key = self._list_key(number, turn)
        [stored] = yield [Command(self._component, key, ("GET", key))]
        if stored is None:
            return None
        actual, last = f"{len(stored)} bytes", dict.fromkeys(levels or range(len(LEVELS)), (-1, 0))
        try:
            listed = list(_LISTED.iter_unpack(stored))
            for level, page, bucket in listed:
                before, last[level] = last[level], (bucket, page)
                size = LEVELS[level]
                possible = bucket >> 4 * size.digits == 0 and (
                    page == _NO_PAGE or page * ENTRIES_A_PAGE >> size.bits == 0
                )
                if levels and ((bucket, page) <= before or not possible):
                    actual = f"block {bucket:x} of level {level} after {before[0]:x}"
                    raise ValueError
            if levels and not listed:
                raise ValueError
        except (struct.error, LookupError, ValueError):
            wanted = f"a list of blocks, {_LISTED.size} bytes each"
            raise damage(self._component, key, actual, wanted, IMPORT_AGAIN) from None
        return [
            (level, bucket, WHOLE if page == _NO_PAGE else page) for level, page, bucket in listed
        ]

    def _to_all_blocks(
        self, number: int, name: str, *args: Argument, lists: bool = True
    ) -> Operation[int]:
        """Send a command for every block, then for the lists if ``lists`` is set.

        The first list comes last, so that a failed call can be repeated. Returns the sum of the
        replies for blocks.
        """
        turn = done = 0
        while True:
            try:
                listed = yield from self._listed(number, turn)
            except DamagedDataError as error:  # must not block the rest, nor a later import
                about = log_records.fields("geo-blocks-remain", structure=self._name)
                text = "%s: blocks of a damaged list remain: %s"
                logger.warning(text, self._name, error, extra=about)
                listed = []
            if listed is None:
                break
            if listed:
                keys = [self.block_key(number, *block) for block in listed]
                done += sum(
                    (yield Columns.each(self._component, name, keys, *args, idempotent=True))
                )
            turn += 1
        for list_turn in reversed(range(turn if lists else 0)):
            key = self._list_key(number, list_turn)
            yield [Command(self._component, key, (name, key, *args), None, True)]
        return done

    def _list_key(self, number: int, turn: int) -> str:
        return f"{self._name}:{number}:keys:{turn}"


def portions(packed: Iterable[Block]) -> Iterator[list[Block]]:
    """Split blocks into lists of at most 1,000 blocks and about 4 MB."""
    portion: list[Block] = []
    size = 0
    for block in packed:
        portion.append(block)
        size += len(block.content)
        if len(portion) >= BLOCKS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion
